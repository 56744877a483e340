"""Functions that build sparse arrays from other arrays or from a shape alone, named as in :mod:`scipy.sparse`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.frdc import FRDC
from bitsparse.arrays.indices import index_dtype, matrix_shape, rows_of
from bitsparse.arrays.inside import working
from bitsparse.arrays.manners.plain import entries
from bitsparse.arrays.manners.products import is_operand
from bitsparse.arrays.manners.reshaping import triangle
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import as_bits, converted


def issparse(x: Any) -> bool:
    """Whether `x` is a sparse array of this library, of SciPy or of CuPy.

    Examples
    --------
    >>> bs.issparse(bs.FRDC((2, 2))), bs.issparse(np.zeros((2, 2)))
    (True, False)
    """
    return is_operand(x)


# -- from other arrays ------------------------------------------------------------------------------------------------
def vstack(blocks: Sequence[Any]) -> TCTiledCSR | FRDC:
    """Arrays on top of each other.

    Parameters
    ----------
    blocks : sequence of sparse or dense arrays, shapes (m_i, n)
        All on one device. Scales are multiplied in.

    Returns
    -------
    FRDC or TCTiledCSR
        An FRDC if all blocks are FRDC without scales; else a TCTiledCSR, a pattern if all blocks are, or of a dtype that holds all values.

    Raises
    ------
    ShapeError
        The widths differ, or there is no block.

    Examples
    --------
    >>> bs.vstack([bs.FRDC(np.eye(2, dtype=int)), bs.FRDC(np.ones((1, 2), dtype=int))]).toarray()
    array([[1, 0],
           [0, 1],
           [1, 1]], dtype=uint8)
    """
    return _stacked("vstack", blocks, False)


def hstack(blocks: Sequence[Any]) -> TCTiledCSR | FRDC:
    """Arrays of shapes (m, n_i) side by side; otherwise as :func:`vstack`.

    Examples
    --------
    >>> bs.hstack([bs.FRDC(np.eye(2, dtype=int)), bs.FRDC(np.ones((2, 1), dtype=int))]).toarray()
    array([[1, 0, 1],
           [0, 1, 1]], dtype=uint8)
    """
    return _stacked("hstack", blocks, True)


def block_diag(blocks: Sequence[Any]) -> TCTiledCSR | FRDC:
    """Arrays as blocks along the diagonal; otherwise as :func:`vstack`.

    Examples
    --------
    >>> bs.block_diag([bs.FRDC(np.ones((1, 2), dtype=int)), bs.FRDC(np.ones((1, 1), dtype=int))]).toarray()
    array([[1, 1, 0],
           [0, 0, 1]], dtype=uint8)
    """
    arrays = _arrays("block_diag", blocks)
    with working(arrays[0]):
        widths = [array.shape[1] for array in arrays]
        parts = _alike("block_diag", arrays)
        moved = []
        for part, first in zip(parts, itertools.accumulate([0, *widths[:-1]]), strict=True):
            moved.append(
                replace(part, indices=part.indices.astype(np.int64) + first, shape=(part.shape[0], sum(widths)))
            )
        return _like(arrays, _below(moved), "block_diag")


def _stacked(function: str, blocks: Sequence[Any], across: bool) -> TCTiledCSR | FRDC:
    arrays = _arrays(function, blocks)
    sizes = sorted({array.shape[0 if across else 1] for array in arrays})
    if len(sizes) > 1:
        raise ShapeError(
            f"{function}: blocks have {sizes[0]} and {sizes[-1]} {'rows' if across else 'columns'}, but need as many"
        )
    with working(arrays[0]):
        parts = _alike(function, arrays)
        return _like(arrays, (_beside if across else _below)(parts), function)


def _arrays(function: str, blocks: Sequence[Any]) -> list[SparseArray]:
    if isinstance(blocks, BitArray) or not isinstance(blocks, Sequence):
        raise DTypeError(f"{function}: the blocks are a list or tuple of arrays, got {type(blocks).__name__}")
    if not blocks:
        raise ShapeError(f"{function}: there must be at least one block")
    arrays = [block if isinstance(block, SparseArray) else TCTiledCSR(block) for block in blocks]
    _check.same_device(function, [array.device for array in arrays])
    return arrays


def _alike(function: str, arrays: list[SparseArray]) -> list[Pattern]:
    """The entries of each array: either all have no values, or all have values of one dtype."""
    parts = [entries(array, function) for array in arrays]
    if all(part.values is None for part in parts):
        return parts
    if any(part.values is not None and part.values.ndim == 2 for part in parts):
        raise ShapeError(f"{function}: an array has several values at each edge; pick one with with_values")
    space = interop.namespace(parts[0].indptr)
    dtypes = {array.dtype for array in arrays}
    try:
        dtype = np.result_type(*dtypes)
    except TypeError:
        raise DTypeError(f"{function}: no dtype holds {' and '.join(map(str, dtypes))}; convert with astype") from None
    return [
        replace(
            part,
            values=space.ones(part.indices.size, dtype)
            if part.values is None
            else converted(part.values, dtype, copy=True),
        )
        for part in parts
    ]


def _below(parts: list[Pattern]) -> Pattern:
    space = interop.namespace(parts[0].indptr)
    counts = [part.indptr[1:].astype(np.int64) - part.indptr[:-1] for part in parts]
    starts = space.zeros(sum(count.size for count in counts) + 1, np.int64)
    starts[1:] = space.cumsum(space.concatenate(counts))
    values = parts[0].values
    if values is not None:
        values = space.concatenate([as_bits(part.values) for part in parts]).view(values.dtype)
    indices = space.concatenate([part.indices for part in parts])
    family = interop.common_family([part.family for part in parts])
    return Pattern(starts, indices, (starts.size - 1, parts[0].shape[1]), values, family=family)


def _beside(parts: list[Pattern]) -> Pattern:
    space = interop.namespace(parts[0].indptr)
    rows, widths = parts[0].shape[0], [part.shape[1] for part in parts]
    counts = [part.indptr[1:].astype(np.int64) - part.indptr[:-1] for part in parts]
    starts = space.zeros(rows + 1, np.int64)
    starts[1:] = space.cumsum(sum(counts))
    total = sum(int(part.indices.size) for part in parts)
    values: Any = parts[0].values
    indices = space.empty(total, np.int64 if sum(widths) >= 1 << 31 else np.int32)
    together = None if values is None else space.empty(total, as_bits(values).dtype)
    at, first = starts[:-1].copy(), 0  # where the next part of each row begins, and its first column
    for part, count, width in zip(parts, counts, widths, strict=True):
        # An entry keeps its distance from the beginning of its row's part.
        moved = (at - part.indptr[:-1])[rows_of(part.indptr)] + space.arange(part.indices.size)
        indices[moved] = part.indices + indices.dtype.type(first)
        if together is not None:
            together[moved] = as_bits(part.values)
        at += count
        first += width
    family = interop.common_family([part.family for part in parts])
    return Pattern(
        starts, indices, (rows, first), None if together is None else together.view(values.dtype), family=family
    )


def _like(arrays: list[SparseArray], made: Pattern, function: str) -> TCTiledCSR | FRDC:
    asked = np.int64 if any(array.index_dtype == np.int64 for array in arrays) else None
    dtype = index_dtype(function, matrix_shape(function, made.shape), int(made.indices.size), asked)
    made = replace(made, indptr=made.indptr.astype(dtype, copy=False), indices=made.indices.astype(dtype, copy=False))
    if made.values is None and all(isinstance(array, FRDC) for array in arrays):
        return FRDC(made)
    windows = {array.window for array in arrays if isinstance(array, TCTiledCSR)}
    return TCTiledCSR(made, window=windows.pop() if len(windows) == 1 else 16)


def kron(A: Any, B: Any) -> TCTiledCSR | FRDC:
    """Kronecker product: every element of `A` times `B`. Scales are multiplied in.

    Examples
    --------
    >>> bs.kron(bs.FRDC(np.eye(2, dtype=int)), bs.FRDC(np.ones((1, 2), dtype=int))).toarray()
    array([[1, 1, 0, 0],
           [0, 0, 1, 1]], dtype=uint8)
    """
    arrays = _arrays("kron", [A, B])
    with working(arrays[0]):
        left, right = (entries(array, "kron") for array in arrays)
        if any(part.values is not None and part.values.ndim == 2 for part in (left, right)):
            raise ShapeError("kron: an array has several values at each edge; pick one with with_values")
        shape = matrix_shape("kron", (left.shape[0] * right.shape[0], left.shape[1] * right.shape[1]))
        rows, cols = (
            (first[:, None].astype(np.int64) * size + second).ravel()
            for first, second, size in (
                (rows_of(left.indptr), rows_of(right.indptr), right.shape[0]),
                (left.indices, right.indices, right.shape[1]),
            )
        )
        values = None
        if left.values is not None or right.values is not None:
            one, two = (
                interop.namespace(part.indices).ones(part.indices.size, np.uint8)
                if part.values is None
                else part.values
                for part in (left, right)
            )
            values = _products(one, two)
        bits = values is None and all(isinstance(array, FRDC) for array in arrays)
        wide = np.int64 if any(array.index_dtype == np.int64 for array in arrays) else None
        made = TCTiledCSR((values, (rows, cols)), shape=shape, index_dtype=wide)
        if values is not None and made.data is None:
            made = made.astype(np.bool_)
        return FRDC(made) if bits else made


def _products(one: Any, two: Any) -> Any:
    """Every value of `one` times every value of `two`; bfloat16 goes through float32, because CuPy cannot multiply it."""
    dtype = np.result_type(one.dtype, two.dtype)
    if dtype.name != "bfloat16":
        return (one[:, None] * two).ravel()
    single = np.dtype(np.float32)
    return converted((converted(one, single)[:, None] * converted(two, single)).ravel(), dtype)


def tril(A: Any, k: int = 0) -> TCTiledCSR | FRDC:
    """The entries of `A` on and below diagonal `k`. Scales are multiplied in.

    Examples
    --------
    >>> bs.tril(bs.FRDC(np.ones((2, 3), dtype=int))).toarray()
    array([[1, 0, 0],
           [1, 1, 0]], dtype=uint8)
    """
    return _triangle(A, k, True, "tril")


def triu(A: Any, k: int = 0) -> TCTiledCSR | FRDC:
    """The entries of `A` on and above diagonal `k`. Scales are multiplied in.

    Examples
    --------
    >>> bs.triu(bs.FRDC(np.ones((2, 3), dtype=int)), 1).toarray()
    array([[0, 1, 1],
           [0, 0, 1]], dtype=uint8)
    """
    return _triangle(A, k, False, "triu")


def _triangle(A: Any, k: int, lower: bool, function: str) -> Any:
    (array,) = _arrays(function, [A])
    with working(array):
        return triangle(array, k, lower, function)


# -- from a shape alone -----------------------------------------------------------------------------------------------
def _sizes(function: str, m: Any, n: Any) -> tuple[int, int]:
    return matrix_shape(function, (_check.integer(function, "m", m, 0), _check.integer(function, "n", n, 0)))


def eye(m: int, n: int | None = None, k: int = 0, dtype: Any = np.float64, *, device: str = "cpu") -> TCTiledCSR:
    """Ones on diagonal `k` of an array (m, n), which is square by default.

    Examples
    --------
    >>> bs.eye(2, 3, k=1, dtype=np.int8).toarray()
    array([[0, 1, 0],
           [0, 0, 1]], dtype=int8)
    """
    rows, cols = _sizes("eye", m, m if n is None else n)
    k = _check.integer("eye", "k", k, -rows, cols)
    first, last = max(0, -k), max(min(rows, cols - k), max(0, -k))
    at = np.arange(first, last, dtype=np.int64)
    made = TCTiledCSR((None, (at, at + k)), shape=(rows, cols)).astype(_check.dtype("eye", dtype))
    return made.to_device(device)


def random(
    m: int, n: int, density: float = 0.01, *, dtype: Any = None, rng: Any = None, device: str = "cpu"
) -> TCTiledCSR:
    """An array (m, n) with entries at random places, drawn by :func:`scipy.sparse.random_array`.

    Parameters
    ----------
    m, n : int
    density : float, default 0.01
        Share of the elements that are stored, 0 to 1.
    dtype : dtype, optional
        By default float64. Floats are uniform in [0, 1), integers over their whole range.
    rng : numpy.random.Generator or int, optional

    Examples
    --------
    >>> bs.random(4, 5, 0.5, rng=0).nnz
    10
    """
    from scipy import sparse

    shape = _sizes("random", m, n)
    if shape[0] * shape[1] >= 1 << 63:
        raise ShapeError(
            f"random: shape {shape} has more than 2**63 elements, of which none can be drawn; use from_edges"
        )
    if not 0 <= _check.number("random", "density", density) <= 1:
        raise ValueError(f"random: density must be in 0..1, got {density}")
    wanted = None if dtype is None else _check.dtype("random", dtype)
    # SciPy cannot hold 16-bit floats.
    drawn = wanted if wanted is None or (wanted.kind in "biuf" and wanted != np.float16) else np.dtype(np.float32)
    made = TCTiledCSR(
        sparse.random_array(shape, density=density, format="coo", dtype=drawn, rng=np.random.default_rng(rng))
    )
    return (made if wanted is None else made.astype(wanted)).to_device(device)
