"""Packed codes to the numbers of a table on the host."""

from __future__ import annotations

import numpy as np

from bitsparse.backends.host.bits.pack import Words, unpack
from bitsparse.backends.params import Array


def look_up(
    words: Words, size: int, bits: int, *, table: Array, times: Array | None = None, out: Array | None = None
) -> Array:
    """The numbers for which packed codes stand, or other numbers times these.

    Parameters
    ----------
    words
        Codes of 1, 2, 4 or 8 bits that follow each other without gaps.
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
    >>> look_up(np.array([0b1110_0100], np.uint32), 4, 2, table=np.array([0, 0.5, 2, 4], np.float32))
    array([0. , 0.5, 2. , 4. ], dtype=float32)
    """
    layout = "planes" if bits == 1 else "rows"
    lines = words.reshape(1, 1, -1) if bits == 1 else words.reshape(1, -1)
    codes = unpack(lines, (1, size), bits, axis=-1, layout=layout, encoding="unsigned", dtype=np.uint8)[0]
    values = np.take(table, codes, out=out if times is None else None, mode="clip")
    return values if times is None else np.multiply(times, values, out=out)
