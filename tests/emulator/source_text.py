"""Finds brackets and separators outside of strings in C++ text, and declares the error for text that cannot be translated."""

from __future__ import annotations

import re


class Untranslatable(Exception):
    """Source that the emulator does not understand; the message says what and where."""


def matching(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start``."""
    depth, i, n = 0, start, len(text)
    while i < n:
        c = text[i]
        if c in "\"'":
            i += 1
            while text[i] != c:
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise Untranslatable("unbalanced brackets")


# Splits at separators outside of strings and brackets.
def split(text: str, separator: str) -> list[str]:
    parts, depth, last, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[last:i])
            last = i + 1
        i += 1
    parts.append(text[last:])
    return parts


# Removes the preprocessor's line markers.
def strip_markers(text: str) -> str:
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
