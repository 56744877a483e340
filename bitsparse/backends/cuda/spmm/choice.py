"""Which kernels can compute a sparse product on the GPU within the allowed error, and which one is estimated to be fastest."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.chips import H200, RowRates
from bitsparse.backends.cuda.sparse.windows import cells_of
from bitsparse.backends.params import SIXTEEN
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.jit import cupy

#: Values of ``kernel``: one edge at a time or windows of 8 rows on the CUDA cores, or windows of 16 or 32 rows on the matrix units.
KERNELS = ("csr", "windows", "tiles")
#: The greatest number of rows, columns and edges that panels take.
_MOST_IN_PANELS = (1 << 31) - 1
#: The fewest columns that sums without rows of zeros take: a group then has at least as many lanes as edges in flight.
NONZERO_COLUMNS = 17
#: Kernels other than "csr" are considered if windows of 8 rows have at least this many edges per column.
WORTH = 1.3
#: Heights of the windows of tiles, and the fewest columns of features for which the taller ones are considered.
_HEIGHTS, _WIDE = (16, 32), 64
#: The most entries that windows of 8 rows can number, with padding.
_MOST_ENTRIES = 1 << 28


class Kind(NamedTuple):
    """What is multiplied and how.

    Attributes
    ----------
    dtype : dtype
        Dtype of the features and, if it is floating, of the result.
    columns : int
        Columns of the features, all heads together.
    reduce, precision : str
    values : dtype or None
        Dtype of the edges' values.
    fixed : bool
        Whether the values are known beforehand.
    per_head : bool
        Whether every head has values of its own.
    scaled : bool
        Whether the columns of the sparse matrix have factors.
    has_columns : bool
        False if every edge is its own column.
    frozen : bool
        Whether the values are known beforehand and never change, so that they are rearranged only once.
    """

    dtype: Any
    columns: int
    reduce: str = "sum"
    precision: str = "fp32"
    values: Any = None
    fixed: bool = False
    per_head: bool = False
    scaled: bool = False
    has_columns: bool = True
    frozen: bool = False


class Shared(NamedTuple):
    """How many columns the windows of a pattern have.

    Attributes
    ----------
    entries : int
        Columns of all windows together.
    groups : dict
        The number of groups of 8 and of 16 columns, for windows of the heights of tiles.
    """

    entries: int
    groups: dict[int, int]


class Estimate(NamedTuple):
    """A kernel, the rows of its windows (0 without windows) and its estimated time in microseconds."""

    kernel: str
    height: int
    cost: float


def alignment_of(address: int, itemsize: int, out: int, out_itemsize: int) -> int:
    """The usable alignment of features in bytes, at most 16, given the address of the result (0: any).

    Examples
    --------
    >>> alignment_of(64, 4, 0, 4), alignment_of(64, 4, 1032, 4), alignment_of(64, 2, 1032, 4)
    (16, 8, 4)
    """
    found = math.gcd(16, address)
    if out % 16:
        # A vector of results has as many elements as a vector of features.
        found = min(found, max(math.gcd(16, out) * itemsize // out_itemsize, 1))
    return found


def group_of(dtype: Any) -> int:
    """The number of columns that one step on the matrix units processes.

    Examples
    --------
    >>> group_of(np.float32), group_of(np.float16)
    (8, 16)
    """
    return 8 if np.dtype(dtype).itemsize == 4 else 16


def shared_columns(indptr: Any, indices: Any, shape: tuple[int, int], height: int) -> Shared:
    """The columns of windows of `height` rows. This takes one pass over the pattern and waits for the stream."""
    starts = cells_of("spmm", indptr, indices, shape, height, 0, "starts").starts
    if height not in _HEIGHTS:  # only tiles need groups
        return Shared(int(starts[-1].get()), {})
    each = (starts[1:] - starts[:-1]).astype(np.int64)
    entries, by8, by16 = (
        int(n) for n in cupy.stack([each.sum(), ((each + 7) // 8).sum(), ((each + 15) // 16).sum()]).get()
    )
    return Shared(entries, {8: by8, 16: by16})


def refusals(kind: Kind, shape: tuple[int, int], nnz: int) -> dict[str, str]:
    """The kernels that cannot compute a product within the allowed error, and the reasons.

    Examples
    --------
    >>> refusals(Kind(np.float32, 128), (9, 9), 20)
    {'tiles': "float32 features are multiplied in float32; permit precision='tf32' or '3xtf32'"}
    >>> sorted(refusals(Kind(np.float16, 128, reduce="max"), (9, 9), 20))
    ['tiles', 'windows']
    """
    made = {"windows": _windows_refuse(kind, shape, nnz), "tiles": _tiles_refuse(kind, shape)}
    return {name: why for name, why in made.items() if why is not None}


def panels_refuse(kind: Kind, shape: tuple[int, int], nnz: int) -> str | None:
    """Why panels, which are only taken if they are asked for, cannot compute a product; None if they can.

    Examples
    --------
    >>> panels_refuse(Kind(np.float16, 128), (9, 9), 20)
    'panels take features of float32, not float16'
    """
    name, values = np.dtype(kind.dtype).name, kind.values
    if name != "float32":
        return f"panels take features of float32, not {name}"
    if REDUCTIONS[kind.reduce].selects:
        return f"panels take reduce='sum' and 'mean', not {kind.reduce!r}"
    if values is not None:
        return f"panels take edges without values, not {np.dtype(values).name} values"
    if not kind.has_columns:
        return "panels take patterns, but an edge of this matrix is its own column"
    if max(*shape, nnz) > _MOST_IN_PANELS:
        return f"panels number rows, columns and edges in 31 bits, but A has shape {shape} and {nnz} edges"
    chip = jit.capability()
    if chip.major != 9:
        return f"panels need a GPU of compute capability 9.0, but {chip.name} has {chip.major}.{chip.minor}"
    return None


def nonzero_refuses(kind: Kind, shape: tuple[int, int], nnz: int) -> str | None:
    """Why sums that do not fetch rows of zeros, which are only taken if they are asked for, cannot compute a product; None if they can.

    Examples
    --------
    >>> nonzero_refuses(Kind(np.float32, 16), (9, 9), 20)
    'it takes features of at least 17 columns, not 16'
    """
    name, values = np.dtype(kind.dtype).name, kind.values
    if name != "float32":
        return f"it takes features of float32, not {name}"
    if kind.columns < NONZERO_COLUMNS:
        return f"it takes features of at least {NONZERO_COLUMNS} columns, not {kind.columns}"
    if REDUCTIONS[kind.reduce].selects:
        return f"it takes reduce='sum' and 'mean', not {kind.reduce!r}"
    if values is not None:  # a value may be infinite, and 0 times that is no number
        return f"it takes edges without values, not {np.dtype(values).name} values"
    return None if kind.has_columns else "an edge of this matrix is its own column"


def nonzero_pays(kind: Kind, shape: tuple[int, int], nnz: int) -> bool:
    """Whether sums of gradients should not fetch rows of zeros: those of many edges whose features "csr" would copy in any case.

    In float32 no other kernel takes such features. Gradients of nodes without a label are zeros. If none are, sums take some 4 % longer on
    an H200 (``benchmarks/fit/zeros.py``).

    Examples
    --------
    >>> [nonzero_pays(Kind(np.float32, columns), (232_965, 232_965), 114_615_892) for columns in (41, 64)]
    [True, False]
    """
    if nonzero_refuses(kind, shape, nnz) is not None or kind.columns % 4 == 0 or kind.precision != "fp32":
        return False
    return nnz * kind.columns * 4 >= H200.rows.nonzero_bytes


#: Why a kernel that is only taken if it is named cannot compute a product.
NAMED = {"panels": panels_refuse, "nonzero": nonzero_refuses}


def _common_refusal(kind: Kind) -> str | None:
    if REDUCTIONS[kind.reduce].selects:
        return "they take sums and means only"
    return None if kind.has_columns else "an edge of this matrix is its own column"


def _windows_refuse(kind: Kind, shape: tuple[int, int], nnz: int) -> str | None:
    name = np.dtype(kind.dtype).name
    if name != "float32":
        return f"they take features of float32, not {name}"
    if kind.columns % 4:
        return f"they take columns in fours, not {kind.columns}"
    if kind.per_head:
        return "they take one value to an edge, not one to each head"
    if shape[1] >= 1 << 32 or nnz > _MOST_ENTRIES:
        return f"{nnz} edges and {shape[1]} columns are too many for 32 bits"
    return _common_refusal(kind)


def _tiles_refuse(kind: Kind, shape: tuple[int, int]) -> str | None:
    name = np.dtype(kind.dtype).name
    if name == "float32":
        if kind.precision == "fp32":
            return "float32 features are multiplied in float32; permit precision='tf32' or '3xtf32'"
    elif name not in SIXTEEN:
        return f"they take features of float32, float16 and bfloat16, not {name}"
    elif kind.values is not None and kind.values not in (np.dtype(kind.dtype), np.dtype(np.bool_)):
        return f"values of {np.dtype(kind.values)} would be rounded to {name}"
    if shape[1] > 1 << 32:
        return f"{shape[1]} columns are too many for 32 bits"
    return _common_refusal(kind)


def tiles_precision(kind: Kind) -> str:
    """The precision with which tiles multiply.

    For 16-bit features with column factors, products are split in two unless "tf32" is requested, so that factors keep their digits.

    Examples
    --------
    >>> tiles_precision(Kind(np.float16, 8, scaled=True)), tiles_precision(Kind(np.float16, 8))
    ('3xtf32', 'tf32')
    """
    if np.dtype(kind.dtype).itemsize == 2:
        return "3xtf32" if kind.scaled and kind.precision != "tf32" else "tf32"
    return kind.precision


def estimates(kind: Kind, shape: tuple[int, int], nnz: int, shared: dict[int, Shared]) -> list[Estimate]:
    """The kernels that can compute a product, sorted by their estimated times on an H200, fastest first.

    Values that are new in every call exclude "windows".

    Parameters
    ----------
    shared : dict of Shared
        The columns of windows, by the heights 8, 16 and 32.

    Examples
    --------
    >>> collab = {8: Shared(5_280_977, {}), 16: Shared(2_993_592, {8: 384_335}), 32: Shared(1_725_948, {8: 220_830})}
    >>> size = (372_474, 372_474), 24_574_995
    >>> [(e.kernel, e.height, round(e.cost)) for e in estimates(Kind(np.float32, 128), *size, collab)]
    [('windows', 8, 400), ('csr', 0, 716)]
    >>> estimates(Kind(np.float32, 128, precision="tf32"), *size, collab)[0][:2]
    ('tiles', 32)
    """
    r = H200.rows
    refused, weighted = refusals(kind, shape, nnz), kind.values is not None
    sharing = nnz / max(1, shared[8].entries)
    row_bytes = kind.columns * np.dtype(kind.dtype).itemsize
    moved = (sum(shape) * row_bytes + 4 * nnz * (1 + weighted)) / r.memory
    found = [Estimate("csr", 0, _edges_us(r, kind, nnz, row_bytes, sharing) + r.edges_moved * moved)]
    above = r.start + r.windows_moved * moved
    arranged = weighted and not kind.frozen

    def windowed(kernel: str, height: int, cost: float, bytes_arranged: float, margin: tuple[float, float]) -> None:
        cost += r.arrange_start + bytes_arranged * nnz / r.memory if arranged else 0.0
        found.append(Estimate(kernel, height, (margin[1] if sharing < margin[0] else 1.0) * (above + cost)))

    if "windows" not in refused and (kind.fixed or not weighted):
        entry, column = r.window[weighted]
        cost = shared[8].entries * (entry + column * kind.columns)
        windowed("windows", 8, cost, r.arrange_windows, r.margin_windows)
    if "tiles" not in refused:
        group = group_of(kind.dtype)
        base, by_row, column, column_by_row = r.tile8 if group == 8 else r.tile16
        split = 2.0 if tiles_precision(kind) == "3xtf32" else 1.0
        for height in _HEIGHTS if kind.columns >= _WIDE and not weighted else _HEIGHTS[:1]:
            each = base + by_row * height + split * kind.columns * (column + column_by_row * height)
            cost = shared[height].groups[group] * each * (r.tile_weighed if weighted else 1.0)
            windowed("tiles", height, cost, r.arrange_tiles, r.margin_tiles)
    return sorted(found, key=lambda estimate: estimate.cost)


def _edges_us(rates: RowRates, kind: Kind, nnz: int, row_bytes: int, sharing: float) -> float:
    """The time of gathering a row of features for every edge, with some bytes from the L1; weights hardly matter."""
    half = np.dtype(kind.dtype).itemsize == 2
    most = rates.l1_least + row_bytes / rates.l1_bytes
    gain = min(most, 1 + rates.l1_gain * max(0.0, sharing - 1))
    return rates.edges_start + nnz * (rates.row[half] + row_bytes / rates.row_bytes[half] / gain)
