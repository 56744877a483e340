"""The reference definition of looking packed codes up in a table."""

from __future__ import annotations

from bitsparse.backends.params import Array
from bitsparse.backends.reference.bits.pack import words_to_codes


def look_up(words: Array, size: int, bits: int, *, table: Array, times: Array | None = None) -> Array:
    """``table[code]``, or ``times * table[code]``, of codes that follow each other without gaps."""
    values: Array = table[words_to_codes(words.reshape(1, -1), size, bits, "rows")[0]]
    return values if times is None else times * values
