"""Words and numbers in text, found with NumPy: every byte is looked at by code of ours, in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse._check import shown

__all__ = ["Words", "blocks", "floats", "integers", "table", "words"]

_BLOCK = 1 << 22
#: Digits that int64 holds for certain.
_MOST_DIGITS = 18

_Places = NDArray[Any]


class Words(NamedTuple):
    """Where the words of a block begin and end, and the number of the block's first line."""

    block: NDArray[np.uint8]
    starts: _Places
    ends: _Places
    first_line: int

    def at(self, which: Any) -> Words:
        """Some of the words."""
        return Words(self.block, self.starts[which], self.ends[which], self.first_line)

    def line(self, i: int) -> int:
        """The number of the line that a word stands on, counted from 1."""
        return self.first_line + 1 + int(np.count_nonzero(self.block[: self.starts[i]] == 10))

    def line_starts(self) -> _Places:
        """For every line of the block, how many words stand before it; last, how many there are."""
        before = np.searchsorted(self.starts, np.flatnonzero(self.block == 10).astype(self.starts.dtype))
        return np.concatenate([[0], before, [self.starts.size]])

    def text(self, i: int) -> bytes:
        """One word."""
        return self.block[self.starts[i] : self.ends[i]].tobytes()

    def refuse(self, bad: NDArray[np.bool_], what: str) -> None:
        """An error that names the first bad word and its line, if there is one."""
        if bad.any():
            i = int(bad.argmax())
            raise ValueError(f"line {self.line(i)}: {shown(self.text(i).decode('utf-8', 'replace'))} is not {what}")


def table(separators: bytes) -> NDArray[np.bool_]:
    """Which bytes belong to words: all but these and the ends of lines."""
    inside = np.ones(256, np.bool_)
    inside[list(separators + b"\n")] = False
    return inside


def blocks(content: bytes, at: int = 0, line: int = 0) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Blocks of whole lines from byte `at` on, each with the number of its first line."""
    while at < len(content):
        end = len(content) if len(content) - at <= _BLOCK else content.rfind(b"\n", at, at + _BLOCK) + 1
        if not end:  # one line is longer than a block
            end = content.find(b"\n", at) + 1 or len(content)
        block = np.frombuffer(content, np.uint8, end - at, at)
        yield block, line
        line += int(np.count_nonzero(block == 10))
        at = end


def words(block: NDArray[np.uint8], inside: NDArray[np.bool_], line: int = 0) -> Words:
    r"""The words of a block whose first line has the number `line`, from 0.

    Examples
    --------
    >>> block_words = words(np.frombuffer(b"12 345\n6", np.uint8), table(b" "))
    >>> block_words.starts, block_words.ends, block_words.line_starts()
    (array([0, 3, 7], dtype=int32), array([2, 6, 8], dtype=int32), array([0, 2, 3]))
    """
    marks = np.zeros(block.size + 2, np.bool_)
    np.take(inside, block, out=marks[1:-1])
    edges = np.flatnonzero(marks[1:] != marks[:-1])
    if block.size < 1 << 31:
        edges = edges.astype(np.int32)
    return Words(block, edges[::2].copy(), edges[1::2].copy(), line)


def integers(block_words: Words) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The value of every word that is a whole number of at most 18 digits, and which words are none.

    Examples
    --------
    >>> integers(words(np.frombuffer(b"12 -345 6.0 -", np.uint8), table(b" ")))
    (array([  12, -345,    0,    0]), array([False, False,  True,  True]))
    """
    block, starts, ends, _ = block_words
    first = block[starts]
    negative = first == ord("-")
    begin = starts + (negative | (first == ord("+")))
    digits = ends - begin
    bad = (digits > _MOST_DIGITS) | (digits == 0)
    value = np.zeros(starts.size, np.int64)
    for place in range(min(int(digits.max(initial=0)), _MOST_DIGITS)):
        # The words of this many digits and more, as long as that is not all of them.
        live: Any = np.flatnonzero(digits > place) if place >= int(digits.min()) else slice(None)
        digit = block[ends[live] - (1 + place)] - np.uint8(ord("0"))  # what is no digit wraps to 10 or more
        bad[live] |= digit > 9
        value[live] += digit * np.int64(10**place)
    value[bad] = 0
    return np.negative(value, out=value, where=negative), bad


def floats(block_words: Words) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The value of every word that is a number, and which words are none.

    Examples
    --------
    >>> floats(words(np.frombuffer(b"1e1 -.5 1_0 x", np.uint8), table(b" ")))
    (array([10. , -0.5,  0. ,  0. ]), array([False, False,  True,  True]))
    """
    raw = block_words.block.tobytes()
    texts = [raw[start:end] for start, end in zip(block_words.starts.tolist(), block_words.ends.tolist(), strict=True)]
    if b"_" not in raw:  # which Python lets stand between digits
        try:
            return np.array(list(map(float, texts)), np.float64), np.zeros(len(texts), np.bool_)
        except ValueError:
            pass
    bad = np.array([not _is_number(text) for text in texts], np.bool_)
    return np.array([0.0 if none else float(text) for text, none in zip(texts, bad, strict=True)], np.float64), bad


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return b"_" not in text
