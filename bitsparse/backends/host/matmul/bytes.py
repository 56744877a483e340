"""Steps of low-bit networks on codes that lie in bytes: products with weights, sums over neighbours, each through the epilogue.

A row of codes takes a whole number of 16 bytes, with zeros behind its last code. Words of packed codes would have to be taken apart in
every product and every sum, which costs a CPU more than the product itself where rows are short.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._ext import lowbit as _ext
from bitsparse.backends.host.buffers import as_bytes
from bitsparse.backends.host.matmul.matmul import chain_of
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import Array, EpilogueParams

#: Columns that a result has at most.
LONGEST = _ext.LONGEST
#: A piece of a packet, which no edge leaves, must have fewer nodes.
PIECE_ROWS = _ext.PIECE_ROWS
_FLOAT, _BYTES = 2, 4
_NORMALISATIONS = {"sum": 0, "gcn": 1}
_VECTORS = {None: 0, "left": 1, "right": 2, "degrees": 3}
#: What :func:`layer` makes.
Layer = tuple[Any, int, tuple[Any, ...], tuple[int, int, int]]


def row_bytes(columns: int) -> int:
    """Bytes of a row of so many codes.

    >>> row_bytes(100)
    112
    """
    return -(-columns // 16) * 16


def panels_of(weights: NDArray[np.int8]) -> NDArray[np.int8]:
    """Weights ``(k, n)`` as :func:`product` reads them: ``(n / 16, k / 4, 16, 4)``, zeros where there are none.

    >>> panels_of(np.ones((5, 17), np.int8)).shape
    (2, 2, 16, 4)
    """
    k, n = weights.shape
    wide = np.zeros((-(-k // 4) * 4, row_bytes(n)), np.int8)
    wide[:k, :n] = weights
    return np.ascontiguousarray(wide.reshape(-1, 4, wide.shape[1] // 16, 16).transpose(2, 0, 3, 1))


def product(x: NDArray[np.uint8], panels: NDArray[np.int8], k: int, n: int, params: EpilogueParams, out: Array) -> None:
    """Codes ``(m, row_bytes(k))`` times weights, through the epilogue into `out`: float32 ``(m, n)`` or codes ``(m, row_bytes(n))``.

    Examples
    --------
    >>> x, out = np.zeros((1, 16), np.uint8), np.empty((1, 2), np.float32)
    >>> x[0, :3] = 1, 2, 3
    >>> product(x, panels_of(np.array([[1, 0], [1, 0], [1, -4]], np.int8)), 3, 2, EpilogueParams(), out)
    >>> out
    array([[  6., -12.]], dtype=float32)
    """
    _step(x, (x.shape[0], n, k), (as_bytes(panels), None, None), params, out, x.shape[0] * n * max(1, k // 8))


def lines_of(weights: Array) -> NDArray[np.int32]:
    """Weights ``(k, n)`` of up to 16 bits as :func:`sparse_product` reads them: a whole number of 16 to a line, zeros behind.

    >>> lines_of(np.ones((5, 17), np.int8)).shape
    (5, 32)
    """
    lines = np.zeros((weights.shape[0], row_bytes(weights.shape[1])), np.int32)
    lines[:, : weights.shape[1]] = weights
    return lines


def sparse_product(
    pattern: tuple[NDArray[np.int32], NDArray[np.int32]],
    codes: NDArray[np.uint8] | None,
    lines: NDArray[np.int32],
    n: int,
    params: EpilogueParams,
    out: Array,
) -> None:
    """Sparse codes, by the arrays of CSR, times weights, through the epilogue into `out` as in :func:`product`.

    Without `codes` every entry is 1.

    Examples
    --------
    >>> pattern, codes = (np.array([0, 2, 2], np.int32), np.array([0, 2], np.int32)), np.array([3, 200], np.uint8)
    >>> out = np.empty((2, 2), np.float32)
    >>> sparse_product(pattern, codes, lines_of(np.array([[1, 0], [9, 9], [-1, 2]])), 2, EpilogueParams(), out)
    >>> out
    array([[-197.,  400.],
           [   0.,    0.]], dtype=float32)
    """
    indptr, indices = pattern
    kind, shape = _kind(params), (indptr.size - 1, n)
    run = run_on((indices.size + 4 * shape[0]) * max(1, n // 8))
    dims, values = (*shape, lines.shape[0]), None if codes is None else as_bytes(codes)
    chain, flat = chain_of(params, shape), lines.reshape(-1)
    found_nan = _ext.sparse_step(run, flat, dims, indptr, indices, values, kind, chain, as_bytes(out))
    _check.no_nan_in_epilogue("LowBitNetwork", bool(found_nan))


def sums(
    x: NDArray[np.uint8],
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    n: int,
    params: EpilogueParams,
    out: Array,
) -> None:
    """Sums of rows of codes, those that each row of a CSR pattern names, through the epilogue into `out` as in :func:`product`.

    Examples
    --------
    >>> x, out = np.zeros((2, 16), np.uint8), np.empty((2, 2), np.float32)
    >>> x[:, :2] = [[1, 2], [30, 40]]
    >>> sums(x, np.array([0, 2, 2], np.int32), np.array([0, 1], np.int32), 2, EpilogueParams(), out)
    >>> out
    array([[31., 42.],
           [ 0.,  0.]], dtype=float32)
    """
    work = (indices.size + 4 * x.shape[0]) * max(1, n // 8)
    _step(x, (x.shape[0], n, n), (None, indptr, indices), params, out, work)


def layer(
    panels: NDArray[np.int8] | None, n: int, params: EpilogueParams, vectors: tuple[str | None, str | None, str | None]
) -> Layer:
    """A step of :func:`network` with `n` columns: a product with weights or, without `panels`, a sum over neighbours.

    `params` is for one row. `vectors` say what stands in it for the rows, as factor of the sums, in the row term and in the column
    term: "left" and "right", the factors of the normalisation, or "degrees", which are the edges of a row times its left factor.
    """
    factor, row_term, col_term = (_VECTORS[which] for which in vectors)
    return None if panels is None else as_bytes(panels), n, chain_of(params, (1, n)), (factor, row_term, col_term)


def network(
    packet: NDArray[np.uint8],
    edges: int,
    normalisation: str,
    features: tuple[int, int, bool, int],
    layers: tuple[Layer, ...],
    places: NDArray[np.int32],
    out: NDArray[np.float32],
) -> None:
    """All steps over a packet, piece by piece: the floats of its node i into row ``places[i]`` of `out`.

    Parameters
    ----------
    packet : ndarray of uint8
        Of a :class:`~bitsparse.graph.packets.Packets` whose blocks have fewer than ``PIECE_ROWS`` nodes.
    edges : int
        That it holds.
    normalisation : {"sum", "gcn"}
    features : tuple
        Columns, bits, whether they lie in planes, and bytes of a row, or of a row's plane.
    layers : tuple
        From :func:`layer`; codes come out of all but the last, floats out of that one.
    """
    columns = features[0] + sum(layer[1] for layer in layers)
    work = (4 * places.size + edges) * max(1, columns // 8)
    form = _NORMALISATIONS[normalisation]
    found_nan = _ext.network(run_on(work), packet, form, features, layers, places, as_bytes(out))
    _check.no_nan_in_epilogue("LowBitNetwork", bool(found_nan))


def _kind(params: EpilogueParams) -> int:
    return _FLOAT if params.out == "float" else _BYTES


def _step(
    x: Array, dims: tuple[int, int, int], other: tuple[Any, Any, Any], params: EpilogueParams, out: Array, work: int
) -> None:
    """A step with `other`: panels of weights, or the index arrays of neighbours."""
    kind = _kind(params)
    chain = chain_of(params, dims[:2])
    found_nan = _ext.bytes_step(run_on(work), as_bytes(x), x.shape[1], dims, *other, kind, chain, as_bytes(out))
    _check.no_nan_in_epilogue("LowBitNetwork", bool(found_nan))
