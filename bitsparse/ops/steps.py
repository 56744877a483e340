"""The single steps of a planned network, which allocate nothing: products and sums of codes in words or bytes, and conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends
from bitsparse._records import replace
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.backends.cuda.packets import PacketArrays as PacketArrays
from bitsparse.backends.host.bits import pack
from bitsparse.backends.host.matmul.bytes import LONGEST as LONGEST
from bitsparse.backends.host.matmul.bytes import Layer as Layer
from bitsparse.backends.host.matmul.bytes import layer as layer
from bitsparse.backends.host.matmul.bytes import lines_of as lines_of
from bitsparse.backends.host.matmul.bytes import network as network
from bitsparse.backends.host.matmul.bytes import panels_of as panels_of
from bitsparse.backends.host.matmul.bytes import product as _product
from bitsparse.backends.host.matmul.bytes import row_bytes as row_bytes
from bitsparse.backends.host.matmul.bytes import sparse_product as sparse_product
from bitsparse.backends.host.matmul.bytes import sums as sums
from bitsparse.backends.params import GROUP_BITS as GROUP_BITS
from bitsparse.backends.params import Array, EpilogueParams, OperandParams
from bitsparse.backends.params import words_shape as words_shape
from bitsparse.ops.finish.epilogue import Epilogue

#: Bytes of features that are unpacked at a time for the first product. With much smaller pieces, waiting for the threads of a busy CPU
#: takes longer than the work itself.
_PIECE_BYTES = 1 << 24


# -- codes in words ---------------------------------------------------------------------------------------------------------
def blank(
    space: Any, shape: tuple[int, ...], bits: int, axis: int, layout: str, family: Any, encoding: str = "unsigned"
) -> BitTensor:
    """A BitTensor of zeros, in memory of the NumPy-like module `space`, to be overwritten later."""
    words = space.zeros(words_shape(shape, bits, axis, layout), np.uint32)
    return assembled(BitTensor, words, shape, bits, axis, layout, encoding, family)


def repacking(codes: BitTensor, turned: BitTensor) -> Callable[[], Any]:
    """A function that repacks the current words of `codes` into the words of `turned`, a BitTensor of another axis or layout."""
    backend: Any = backends.family(codes.device, "bits.pack")
    about = {"axis": codes.axis, "layout": codes.layout, "to_axis": turned.axis, "to_layout": turned.layout}
    given = codes.shape, codes.bits
    if codes.device != "cpu":
        return lambda: backend.repack(codes.words, *given, out=turned.words, **about)

    def convert() -> None:
        turned.words[...] = backend.repack(codes.words, *given, **about)

    return convert


def product(
    function: str, left: BitTensor, weights: BitTensor, epilogue: Epilogue, rows: dict[str, Any]
) -> Callable[[Any], Any]:
    """A function that multiplies unsigned codes by signed weights and writes the epilogue's result into an array or a BitTensor.

    Nothing derived from the left operand is kept from one call to the next. `rows` come from :func:`row_operands`.
    """
    (k, n), device = weights.shape, left.device
    params = epilogue.params(function, (left.shape[0], n))
    about = {
        "k": k,
        "a_bits": left.bits,
        "b_bits": weights.bits,
        "a_encoding": left.encoding,
        "b_encoding": weights.encoding,
        "acc_dtype": _check.accumulator(function, k, 2**left.bits - 1, 2 ** (weights.bits - 1)),
        "bitmap": None,
    }
    backend: Any = backends.family(device, "matmul.matmul")
    more = {} if device == "cpu" else {"fresh": True}
    sizes = left.shape[0], n, k, left.bits, weights.bits, 1.0
    about["kernel"] = min(backend.CHOICES, key=lambda name: backend.cost(name, *sizes, **more))
    if device == "cpu":
        about["epilogue"] = replace(params, **rows)
        return lambda out: backend.matmul(left.words, weights.words, out=_memory(out), **about)
    prepared = backend.prepare(left.words, n=n, b_batch=(), epilogue=params, **more, **about)
    extra = OperandParams(**rows)
    return lambda out: prepared(weights.words, _memory(out), extra)


def _memory(out: Any) -> Any:
    """The array that a product into `out` writes."""
    return out.words if isinstance(out, BitTensor) else out


def row_operands(right: Any, constant: Any, scale: Any) -> dict[str, Any]:
    """The row scale and the column term of a product with weights, from the graph's right-hand factors and the codes' scale, if any."""
    term = None if constant is None else (right, constant)
    if scale is not None:
        right = scale.reshape(-1) if right is None else right * scale.reshape(-1)
    return {"row_scale": right, "col_term": term}


# -- codes in bytes, on a CPU ------------------------------------------------------------------------------------------------
def finished(acc: NDArray[np.int64], params: EpilogueParams) -> Array:
    """The result of an epilogue's chain for sums of integers on the CPU: float32 values, or words."""
    return backends.family("cpu", "matmul.matmul").epilogue(acc, params)


def room_in_bytes(rows: int, columns: int) -> NDArray[np.uint8]:
    """Uninitialised memory for codes; only the padding behind each row is set to zero."""
    codes = np.empty((rows, row_bytes(columns)), np.uint8)
    codes[:, columns:] = 0
    return codes


def piece_rows(shape: tuple[int, ...]) -> int:
    """The number of rows of packed features that are unpacked at a time."""
    return min(shape[0], max(1, _PIECE_BYTES // max(1, row_bytes(shape[1]))))


def unpack(x: BitTensor, codes: NDArray[np.uint8]) -> None:
    """Write the codes of `x` into memory from :func:`room_in_bytes`."""
    if codes.shape != x.shape:
        codes[:, : x.shape[1]] = x.toarray()
        return
    pack.unpack(x.words, x.shape, x.bits, axis=x.axis, layout=x.layout, encoding=x.encoding, dtype=np.uint8, out=codes)


def product_in_bytes(
    codes: NDArray[np.uint8],
    panels: NDArray[np.int8],
    sizes: tuple[int, int],
    params: EpilogueParams,
    x: BitTensor | None,
    out: Array,
) -> None:
    """Write the product of `codes` with weights of `sizes` into `out`; given packed codes `x`, unpack them into `codes` piece by piece."""
    if x is None:
        _product(codes, panels, *sizes, params, out)
        return
    for start in range(0, x.shape[0], codes.shape[0]):
        rows = slice(start, min(start + codes.shape[0], x.shape[0]))
        piece = codes[: rows.stop - start]
        unpack(x[rows], piece)
        _product(piece, panels, *sizes, _params_of(params, rows), out[rows])


def _params_of(params: EpilogueParams, rows: slice) -> EpilogueParams:
    """The parameters of some rows only, for per-row parts made by :func:`row_operands`."""
    term = params.col_term
    if term is not None and term[0] is not None:
        term = (term[0][rows], term[1])
    scale = None if params.row_scale is None else params.row_scale[rows]
    return replace(params, row_scale=scale, col_term=term)
