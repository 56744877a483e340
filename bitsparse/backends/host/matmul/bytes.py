"""Steps of low-bit networks on codes stored one per byte: products with weights and sums over neighbours, each with an epilogue.

A row of codes is padded with zeros to a multiple of 16 bytes. Words of packed codes would have to be unpacked in every product and every
sum, which on a CPU costs more than the product itself if rows are short.
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

#: The most columns of a result.
LONGEST = _ext.LONGEST
#: A piece of a packet (a set of nodes that no edge leaves) must have fewer nodes than this.
PIECE_ROWS = _ext.PIECE_ROWS
_FLOAT, _BYTES = 2, 4
_NORMALISATIONS = {"sum": 0, "gcn": 1}
_VECTORS = {None: 0, "factor": 1, "degrees": 2}
#: The result of :func:`layer`.
Layer = tuple[Any, int, tuple[Any, ...], tuple[int, int, int]]


def row_bytes(columns: int) -> int:
    """Bytes of a row of `columns` codes.

    >>> row_bytes(100)
    112
    """
    return -(-columns // 16) * 16


def panels_of(weights: NDArray[np.int8]) -> NDArray[np.int8]:
    """Weights ``(k, n)`` as :func:`product` reads them: ``(n / 16, k / 4, 16, 4)``, padded with zeros.

    >>> panels_of(np.ones((5, 17), np.int8)).shape
    (2, 2, 16, 4)
    """
    k, n = weights.shape
    wide = np.zeros((-(-k // 4) * 4, row_bytes(n)), np.int8)
    wide[:k, :n] = weights
    return np.ascontiguousarray(wide.reshape(-1, 4, wide.shape[1] // 16, 16).transpose(2, 0, 3, 1))


def product(x: NDArray[np.uint8], panels: NDArray[np.int8], k: int, n: int, params: EpilogueParams, out: Array) -> None:
    """Codes ``(m, row_bytes(k))`` times weights, then the epilogue, into `out`: float32 ``(m, n)`` or codes ``(m, row_bytes(n))``.

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
    """Weights ``(k, n)`` of up to 16 bits as :func:`sparse_product` reads them: each row is padded with zeros to a multiple of 16.

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
    """Sparse codes in CSR form times weights, then the epilogue, into `out` as in :func:`product`.

    Without `codes`, every entry is 1.

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
    """The sum of the rows of codes that each row of a CSR pattern selects, then the epilogue, into `out` as in :func:`product`.

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

    `params` describes one row. `vectors` name the row vectors that replace its row scale and those of its row term and column term:
    "factor" is that of the normalisation; "degrees" is the number of a row's edges times its factor.
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
    """Run all layers on a packet, piece by piece; the floats of its node i go to row ``places[i]`` of `out`.

    Parameters
    ----------
    packet : ndarray of uint8
        A packet of a :class:`~bitsparse.graph.packets.Packets` whose blocks have fewer than ``PIECE_ROWS`` nodes.
    edges : int
        Edges in the packet.
    normalisation : {"sum", "gcn"}
    features : tuple
        Columns, bits, whether the layout is planes, and bytes of a row, or of a plane of a row.
    layers : tuple
        Results of :func:`layer`. The last layer produces floats, all others codes.
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
    """Run one step; `other` holds panels of weights or the index arrays of neighbours."""
    kind = _kind(params)
    chain = chain_of(params, dims[:2])
    found_nan = _ext.bytes_step(run_on(work), as_bytes(x), x.shape[1], dims, *other, kind, chain, as_bytes(out))
    _check.no_nan_in_epilogue("LowBitNetwork", bool(found_nan))
