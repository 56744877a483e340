"""How rows of features lie on lanes in attention's pass over the edges on the GPU: constants of its kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.rows import WIDEST

#: Edges of a row at a time, vectors of a row to a lane at most.
_STEPS, _MOST_PARTS = 8, 4
_THREADS = 256
#: Bytes of codes that a lane takes.
CODES_VECTOR = 8


class Layout(NamedTuple):
    """How rows lie on lanes: constants of the kernel, and what goes into its argument."""

    defines: dict[str, int]
    vectors: int
    head_vectors: int
    slices: int

    @property
    def lanes(self) -> int:
        """Lanes of a group."""
        return self.defines["BS_LANES"]


def layout(dtype: Any, vector: int, columns: int, heads: int, cosine: bool, *, large: bool = False) -> Layout:
    """The layout for rows of `columns` elements, int8 for codes, moved `vector` bytes at a time; 64-bit indices if they are `large`.

    Examples
    --------
    >>> made = layout(np.float32, 16, 128, 4, False)
    >>> made.lanes, made.defines["BS_TOGETHER"], made.slices
    (32, 8, 1)
    """
    itemsize = np.dtype(dtype).itemsize
    vectors = columns * itemsize // vector
    head_vectors = vectors // heads
    lanes = min(32, edges.power_of_two(vectors))
    parts = edges.power_of_two(-(-vectors // lanes)) if cosine else 1
    many = cosine and vector // itemsize > 4  # sums to a lane, and elements of the row that attends
    steps = max(2, (_STEPS // 2 if many else _STEPS) // parts)
    together = 1  # lanes of one head
    if heads == 1 or head_vectors % lanes == 0:
        together = lanes
    elif head_vectors & (head_vectors - 1) == 0:
        together = head_vectors
    codes = np.dtype(dtype) == np.int8  # which results of float32 come from
    defines = edges.rows_defines(np.float32 if codes else dtype, vector, vectors)
    defines |= {"BS_PARTS": parts, "BS_STEPS": steps, "BS_TOGETHER": together, "BS_THREADS": _THREADS}
    defines |= jit.flags(large=large, cosine=cosine, int8=codes)
    return Layout(defines, vectors, head_vectors, 1 if cosine else -(-vectors // lanes))


def tuned(defines: dict[str, int]) -> dict[str, int]:
    """The constants of a kernel over float32 with what an H200 was quickest with: edges at a time, and threads of a block.

    Small blocks let more warps share a multiprocessor's registers, by whose number the kernels for training are bound.

    Examples
    --------
    >>> made = tuned(layout(np.float32, 16, 32, 1, True).defines)
    >>> made["BS_STEPS"], made["BS_THREADS"]
    (8, 128)
    """
    trained = defines.get("BS_ABOVE", 0) + 2 * defines.get("BS_TURNED", 0)
    narrow = defines["BS_TYPE"] == 0 and defines["BS_VECTOR"] == WIDEST and defines["BS_PARTS"] == 1
    if not narrow or defines.get("BS_LARGE"):
        return defines
    cosine = "BS_COSINE" in defines
    steps, threads = {0: (_STEPS, 128 if cosine else _THREADS), 1: (_STEPS, 64), 3: (_STEPS // 2, 128)}.get(
        trained, (defines["BS_STEPS"], _THREADS)
    )
    return defines | {"BS_STEPS": steps, "BS_THREADS": threads}


def fits_registers(dtype: Any, columns: int, alignment: int = 16) -> bool:
    """Whether rows of so many columns fit into the registers of a warp, so that cosines are computed in one pass.

    Examples
    --------
    >>> fits_registers(np.float32, 512), fits_registers(np.float32, 516)
    (True, False)
    """
    row_bytes, itemsize = columns * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
    return bool(row_bytes // edges.vector_bytes(row_bytes | alignment, itemsize, ()) <= 32 * _MOST_PARTS)
