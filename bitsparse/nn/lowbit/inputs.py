"""What a low-bit network reads: codes in a BitTensor or, of sparse features, in a TCTiledCSR; how the latter are made, and both checked."""

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

#: Sparse features of which at most one in so many is not zero are multiplied as they are: an entry takes a CPU about as long as that many
#: codes of a dense product, and dense codes have to be made first.
_CODES_PER_ENTRY = 8


def multiplies_first(network: LowBitNetwork) -> bool:
    """Whether the features meet weights before they are summed over neighbours, as sparse codes have to."""
    return hasattr(network.steps[0], "weights")


def stays_sparse(network: LowBitNetwork, rows: Any) -> bool:
    """Whether features are best quantised to sparse codes: few entries, and none of those that there are not becomes a code."""
    from scipy import sparse

    csr = rows.csr if isinstance(rows, Features) else rows
    if not (sparse.issparse(csr) and csr.ndim == 2 and csr.shape[1] == network.features and multiplies_first(network)):
        return False
    few = _CODES_PER_ENTRY * csr.nnz <= csr.shape[0] * csr.shape[1]
    if isinstance(rows, Features):
        return few and (network.input_grid is None) and not rows.has_negative
    return few and network.input_grid is not None and not _codes_of_zeros(network).any()


def sparse_codes(network: LowBitNetwork, rows: Any) -> TCTiledCSR:
    """Codes on the network's grid of a canonical csr_array; a column in which zero has a code is stored as a whole."""
    from scipy import sparse

    zeros, (step, low) = _codes_of_zeros(network), (part.astype(np.float64) for part in network.input_grid or ())
    high = low + step * float(2**network.input_bits - 1)
    codes = codes_of_entries(rows.data, (low, high), rows.indices, network.input_bits)
    # A copy: the caller's index arrays stay as they are.
    made = sparse.csr_array((codes, rows.indices, rows.indptr), shape=rows.shape, copy=True)
    full = np.flatnonzero(zeros)
    if full.size:
        stored = sparse.csr_array((np.ones(codes.size, np.bool_), rows.indices, rows.indptr), shape=rows.shape)
        there, column = np.nonzero(~stored[:, full].toarray())
        filled = (zeros[full[column]], (there, full[column]))
        made = sparse.csr_array(made + sparse.coo_array(filled, shape=rows.shape, dtype=codes.dtype))
    made.eliminate_zeros()
    return TCTiledCSR(made)


def _codes_of_zeros(network: LowBitNetwork) -> NDArray[Any]:
    """What zero becomes in every column."""
    return np.asarray(network.quantize(np.zeros((1, network.features), np.float32)).toarray())[0]


def check_codes(function: str, network: LowBitNetwork, nodes: int, x: Any) -> None:
    """Refuse what a network does not take for the codes of so many nodes.

    Raises
    ------
    DTypeError, ShapeError, ValueError
    """
    how = "pass network.quantize(x)"
    if isinstance(x, TCTiledCSR):
        _check_sparse(function, network, nodes, x)
    else:
        _check.instance(function, "x", x, BitTensor, "a BitTensor, or a TCTiledCSR of codes", how)
        of_rows = network.input_grid is None
        bits = min(x.bits, network.input_bits) if of_rows else network.input_bits
        wanted = ((nodes, network.features), bits, network.input_encoding, -1)
        if (x.shape, x.bits, x.encoding, x.axis) != wanted:
            raise ShapeError(
                f"{function}: x is (shape, bits, encoding, axis) {(x.shape, x.bits, x.encoding, x.axis)}, but graph and network take "
                f"{wanted}; {how} of one row for each node"
            )
    _check_affine(function, network, scale_of(x), None if isinstance(x, TCTiledCSR) else x.offset)


def scale_of(x: Any) -> Any:
    """The scales of the rows of codes, or None."""
    return x.row_scale if isinstance(x, TCTiledCSR) else x.scale


def _check_affine(function: str, network: LowBitNetwork, scale: Any, offset: Any) -> None:
    of_rows = network.input_grid is None
    if of_rows and scale is None:
        raise ValueError(
            f"{function}: the codes have no scale, but the network was calibrated on nn.Features, whose rows have scales of their "
            f"own; pass network.quantize(nn.Features(x))"
        )
    for name, affine in (("scale", None if of_rows else scale), ("offset", offset)):
        if affine is not None:  # the network's own grid is part of its first product
            raise ValueError(
                f"{function}: the codes have a {name}, which is not the grid that the network was calibrated for; pass "
                f"network.quantize(x.dequantize()), or x.with_affine() if the codes are on the network's grid"
            )


def _check_sparse(function: str, network: LowBitNetwork, nodes: int, x: TCTiledCSR) -> None:
    if not multiplies_first(network):
        raise ValueError(
            f"{function}: x is sparse, but a {network.kind} sums over neighbours before its first product; pass "
            f"network.quantize(x) in another layout"
        )
    if x.shape != (nodes, network.features):
        raise ShapeError(
            f"{function}: x has shape {x.shape}, but graph and network take {(nodes, network.features)}; pass "
            f"network.quantize(x) of one row for each node"
        )
    if x.col_scale is not None:
        raise ValueError(
            f"{function}: x has a col_scale, but codes are integers; pass network.quantize(x) of the values"
        )
    if x.data is None:
        return
    if x.data.ndim != 1 or x.data.dtype != code_dtype(network.input_bits):
        raise DTypeError(
            f"{function}: x has values of {x.data.dtype} and shape {x.data.shape}, but codes of {network.input_bits} bits are "
            f"{code_dtype(network.input_bits)} of one dimension; pass network.quantize(x) of the values"
        )
    largest = int(x.data.max()) if x.nnz else 0
    if largest >> network.input_bits:
        raise ValueError(
            f"{function}: x has code {largest}, but the network reads {network.input_bits} bits; pass network.quantize(x) of the values"
        )
