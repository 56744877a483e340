"""Chooses the tests that a run on the emulator takes: one in thirty-two, by a seed, so that as many seeds in a row take all."""

from __future__ import annotations

from zlib import crc32

#: One seed in this many draws a given test.
PARTS = 32


def part_of(nodeid: str) -> int:
    """The part, 0 to ``PARTS - 1``, that a test belongs to: by its name alone, so that a new test moves no other."""
    return crc32(nodeid.encode()) % PARTS


def is_drawn(nodeid: str, seed: int) -> bool:
    """Whether the draw of `seed`, any integer, takes this test."""
    return part_of(nodeid) == seed % PARTS
