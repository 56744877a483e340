"""Inputs of low-bit networks: codes in a BitTensor or, for sparse features, in a TCTiledCSR. This makes sparse codes and checks both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.features import Features, code_dtype, codes_of_entries

if TYPE_CHECKING:
    from bitsparse.nn.lowbit.network import LowBitNetwork

#: Features stay sparse if at most one element in this many is not zero: on a CPU an entry of a sparse product takes about as long as this
#: many codes of a dense one, and dense codes would have to be made first.
_CODES_PER_ENTRY = 8


def multiplies_first(network: LowBitNetwork) -> bool:
    """Whether features are multiplied by weights before they are summed over neighbours, which sparse codes need."""
    return hasattr(network.steps[0], "weights")


def stays_sparse(network: LowBitNetwork, rows: Any) -> bool:
    """Whether features should be quantised to sparse codes: they have few entries, and zero has the code 0."""
    from scipy import sparse

    csr = rows.csr if isinstance(rows, Features) else rows
    if not (sparse.issparse(csr) and csr.ndim == 2 and csr.shape[1] == network.features and multiplies_first(network)):
        return False
    few = _CODES_PER_ENTRY * csr.nnz <= csr.shape[0] * csr.shape[1]
    if isinstance(rows, Features):
        return few and network.input_grid is None and not rows.has_negative
    return few and network.input_grid is not None and not _codes_of_zeros(network).any()


def sparse_codes(network: LowBitNetwork, rows: Any) -> TCTiledCSR:
    """Codes of a canonical csr_array on the network's grid; a column in which zero has a code other than 0 is stored in full."""
    from scipy import sparse

    zeros, (step, low) = _codes_of_zeros(network), (part.astype(np.float64) for part in network.input_grid or ())
    high = low + step * float(2**network.input_bits - 1)
    codes = codes_of_entries(rows.data, (low, high), rows.indices, network.input_bits)
    # A copy, since eliminate_zeros below would change the caller's index arrays.
    made = sparse.csr_array((codes, rows.indices, rows.indptr), shape=rows.shape, copy=True)
    full = np.flatnonzero(zeros)
    if full.size:
        stored = sparse.csr_array((np.ones(codes.size, np.bool_), rows.indices, rows.indptr), shape=rows.shape)
        row, column = np.nonzero(~stored[:, full].toarray())
        filled = (zeros[full[column]], (row, full[column]))
        made = sparse.csr_array(made + sparse.coo_array(filled, shape=rows.shape, dtype=codes.dtype))
    made.eliminate_zeros()
    return TCTiledCSR(made)


def _codes_of_zeros(network: LowBitNetwork) -> NDArray[Any]:
    """The code of zero in each column."""
    return np.asarray(network.quantize(np.zeros((1, network.features), np.float32)).toarray())[0]


def check_codes(function: str, network: LowBitNetwork, nodes: int, x: Any) -> None:
    """Refuse an `x` that the network cannot read as the codes of `nodes` nodes.

    Raises
    ------
    DTypeError
        `x` is neither a BitTensor nor a TCTiledCSR, or its codes have another dtype.
    ShapeError
        The shape or, of a BitTensor, bits, encoding or packed axis are not the network's.
    ValueError
        Scales, offsets or codes do not fit the network, or it cannot read sparse codes.
    """
    remedy = "pass network.quantize(x)"
    if isinstance(x, TCTiledCSR):
        _check_sparse(function, network, nodes, x)
    else:
        _check.instance(function, "x", x, BitTensor, "a BitTensor, or a TCTiledCSR of codes", remedy)
        of_rows = network.input_grid is None
        bits = min(x.bits, network.input_bits) if of_rows else network.input_bits
        wanted = ((nodes, network.features), bits, network.input_encoding, -1)
        if (x.shape, x.bits, x.encoding, x.axis) != wanted:
            raise ShapeError(
                f"{function}: x has (shape, bits, encoding, axis) {(x.shape, x.bits, x.encoding, x.axis)}, but graph and network need "
                f"{wanted}; {remedy} with one row for each node"
            )
    _check_affine(function, network, scale_of(x), None if isinstance(x, TCTiledCSR) else x.offset)


def scale_of(x: Any) -> Any:
    """The scales of the rows of codes, None if there are none."""
    return x.row_scale if isinstance(x, TCTiledCSR) else x.scale


def _check_affine(function: str, network: LowBitNetwork, scale: Any, offset: Any) -> None:
    of_rows = network.input_grid is None
    if of_rows and scale is None:
        raise ValueError(
            f"{function}: the codes have no scale, but the network was calibrated on nn.Features, each row of which has its own "
            f"scale; pass network.quantize(nn.Features(x))"
        )
    for name, affine in (("scale", None if of_rows else scale), ("offset", offset)):
        if affine is not None:  # the network's own grid is part of its first product
            raise ValueError(
                f"{function}: the codes have a {name} of their own, but the network was calibrated for a fixed grid; pass "
                f"network.quantize(x.dequantize()), or x.with_affine() if the codes are on the network's grid"
            )


def _check_sparse(function: str, network: LowBitNetwork, nodes: int, x: TCTiledCSR) -> None:
    if not multiplies_first(network):
        raise ValueError(
            f"{function}: x is sparse, but a {network.kind} sums over neighbours before its first product; pass the BitTensor that "
            f"network.quantize(x) makes of dense features"
        )
    if x.shape != (nodes, network.features):
        raise ShapeError(
            f"{function}: x has shape {x.shape}, but graph and network need {(nodes, network.features)}; pass "
            f"network.quantize(x) with one row for each node"
        )
    if x.col_scale is not None:
        raise ValueError(f"{function}: x has a col_scale, but codes are integers; pass network.quantize(values)")
    if x.data is None:
        return
    if x.data.ndim != 1 or x.data.dtype != code_dtype(network.input_bits):
        raise DTypeError(
            f"{function}: x has values of dtype {x.data.dtype} and shape {x.data.shape}, but codes of {network.input_bits} bits are "
            f"{code_dtype(network.input_bits)} and one-dimensional; pass network.quantize(values)"
        )
    largest = int(x.data.max()) if x.nnz else 0
    if largest >> network.input_bits:
        raise ValueError(
            f"{function}: x has code {largest}, but the network reads codes of {network.input_bits} bits; pass network.quantize(values)"
        )
