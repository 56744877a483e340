"""How rows of features are spread over lanes in attention's pass over the edges on the GPU: constants of its kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.rows import WIDEST

#: Edges of a row that are processed at a time, and the most vectors of a row per lane.
_STEPS, _MOST_PARTS = 8, 4
_THREADS = 256
#: Bytes of codes that a lane loads at a time.
CODES_VECTOR = 8


class Layout(NamedTuple):
    """How rows are spread over lanes: constants of the kernel, and numbers for its argument."""

    defines: dict[str, int]
    vectors: int
    head_vectors: int
    slices: int

    @property
    def lanes(self) -> int:
        """Lanes of a group."""
        return self.defines["BS_LANES"]


def layout(dtype: Any, vector: int, columns: int, heads: int, cosine: bool, *, large: bool = False) -> Layout:
    """The layout for rows of `columns` elements (int8 for codes), loaded `vector` bytes at a time; `large` for 64-bit indices.

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
    many = cosine and vector // itemsize > 4  # a lane then keeps many sums and elements of the attending row
    steps = max(2, (_STEPS // 2 if many else _STEPS) // parts)
    together = 1  # lanes that share a head
    if heads == 1 or head_vectors % lanes == 0:
        together = lanes
    elif head_vectors & (head_vectors - 1) == 0:
        together = head_vectors
    codes = np.dtype(dtype) == np.int8  # results are then float32
    defines = edges.rows_defines(np.float32 if codes else dtype, vector, vectors)
    defines |= {"BS_PARTS": parts, "BS_STEPS": steps, "BS_TOGETHER": together, "BS_THREADS": _THREADS}
    defines |= jit.flags(large=large, cosine=cosine, int8=codes)
    return Layout(defines, vectors, head_vectors, 1 if cosine else -(-vectors // lanes))


def tuned(defines: dict[str, int]) -> dict[str, int]:
    """Replace constants of a float32 kernel by those that were fastest on an H200: edges at a time, and threads of a block.

    Small blocks let more warps fit on a multiprocessor, whose registers limit the kernels for training.

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
    """Whether rows of `columns` columns fit in the registers of a warp, so that cosine attention can run in one pass.

    Examples
    --------
    >>> fits_registers(np.float32, 512), fits_registers(np.float32, 516)
    (True, False)
    """
    row_bytes, itemsize = columns * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
    return bool(row_bytes // edges.vector_bytes(row_bytes | alignment, itemsize, ()) <= 32 * _MOST_PARTS)
