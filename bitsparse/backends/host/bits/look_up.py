"""Packed codes to the numbers of a table on the host."""

from __future__ import annotations

import numpy as np

from bitsparse.backends.host.bits.pack import Words, unpack
from bitsparse.backends.params import Array, Packing, packed_words

#: Codes that are unpacked to bytes at a time, so that no temporary is large.
_CHUNK = 1 << 17


def look_up(
    words: Words, size: int, bits: int, *, table: Array, times: Array | None = None, out: Array | None = None
) -> Array:
    """The numbers for which packed codes stand, or other numbers times these.

    Parameters
    ----------
    words
        Codes of 1, 2, 4 or 8 bits that follow each other without gaps, in whole groups of four words.
    size
        The number of codes.
    table : float32 (1 << bits,)
        What each code stands for, first that of code 0.
    times : float32 (size,), optional
        The numbers to be multiplied.
    out : float32 (size,), optional
        Where to write; may be `times`.

    Examples
    --------
    >>> look_up(np.array([0b1110_0100, 0, 0, 0], np.uint32), 4, 2, table=np.array([0, 0.5, 2, 4], np.float32))
    array([0. , 0.5, 2. , 4. ], dtype=float32)
    """
    values = np.empty(size, np.float32) if out is None else out
    layout, lead = ("planes", (1, 1)) if bits == 1 else ("rows", (1,))
    for start in range(0, size, _CHUNK):
        here = slice(start, min(start + _CHUNK, size))
        count = here.stop - start
        some = words[start * bits // 32 :][: packed_words(count, bits, "rows")].reshape(*lead, -1)
        how: Packing = {"axis": -1, "layout": layout, "encoding": "unsigned"}
        codes = unpack(some, (1, count), bits, dtype=np.uint8, **how)[0]
        if times is None:
            np.take(table, codes, out=values[here], mode="clip")
        else:
            np.multiply(times[here], table[codes], out=values[here])
    return values
