"""Products of 8-bit codes on a GPU, which multiplies the codes as bytes that are contiguous along the contraction axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _records, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import derived_of, family_of
from bitsparse.backends.params import Array
from bitsparse.interop.kept import Slot
from bitsparse.ops.finish.epilogue import PLAIN
from bitsparse.ops.finish.terms import operand_terms

#: Slot for bytes that are contiguous along the rows, by the length of a piece; kept because codes of the data serve several gradients.
TURNED: Slot[Array] = Slot("bytes along the rows", most=4)
#: Pieces, like rows, are padded to a multiple of this many bytes.
_RUN = 16
_KIND: dict[str, Any] = {"a_bits": 8, "b_bits": 8, "a_encoding": "signed", "b_encoding": "signed"}


def fits(a: BitTensor, b: BitTensor, length: int) -> bool:
    """Whether two matrices can be multiplied as bytes, with 32-bit sums of `length` products."""
    return length << 14 < 1 << 31 and takes(a) and takes(b)


def takes(x: BitTensor) -> bool:
    """Whether `x` can be an operand: a matrix of signed 8-bit codes with one scale, in rows on a GPU that multiplies bytes."""
    kind, scale = (x.bits, x.encoding, x.layout, x.ndim), x.scale
    if x.device == "cpu" or 0 in x.shape or kind != (8, "signed", "rows", 2):
        return False
    return x.offset is None and scale is not None and scale.ndim == 0 and bool(_backend(x).takes_bytes())


def _backend(x: BitTensor) -> Any:
    return backends.family(x.device, "matmul.bytes")


def product(function: str, a: BitTensor, b: BitTensor, bias: Any = None, out: Any = None) -> Any:
    """``fl(fl(fl32(a @ b) * a.scale) * b.scale)`` of codes that :func:`fits` takes.

    A `bias`, float32 (n,) on their device, is added if given. All this is added to a C-contiguous float32 `out` (m, n) if given.
    """
    shape = (a.shape[0], b.shape[1])
    with interop.working_on(a.device, interop.common_family((family_of(a), family_of(b)))):
        left = _along_columns(a)
        right = _along_columns(b.T)
        prepare = backends.family(a.device, "matmul.matmul").prepare
        made = prepare(
            left,
            n=shape[1],
            b_batch=(),
            kernel="digits",
            epilogue=PLAIN.params(function, shape),
            as_bytes=True,
            k=a.shape[1],
            acc_dtype=np.dtype(np.int32),
            **_KIND,
        )
        behind = PLAIN.behind(operand_terms(function, a, b, False), a.device)
        result = made(right, out, _records.replace(behind, bias=bias), joins=out is not None)
        return interop.from_array(result, family_of(b), function)


def product_over_rows(function: str, a: BitTensor, b: BitTensor, most: int) -> Any:
    """``a.T @ b`` of such codes (m, k) and (m, n), scaled likewise; pieces of up to `most` rows run in parallel, to keep a GPU busy."""
    with interop.working_on(a.device, interop.common_family((family_of(a), family_of(b)))):
        left, right = (part.repack(axis=-1, layout="rows").words for part in (a, b))
        sums = _backend(a).product_over_rows(left, right, a.shape[1], b.shape[1], most)
        return interop.from_array(_backend(a).scaled_sums(sums, b.shape[1], a.scale, b.scale), family_of(b), function)


def _along_columns(x: BitTensor) -> Array:
    """The words of a matrix (m, k) with those of a row side by side, as (m, 1, W)."""
    if x.axis == -1:
        words: Array = interop.aligned(x.words)
        return words[:, None, :]
    # x is packed along its columns, so its transpose is packed along the rows
    return _along_rows(x.T, -(-x.shape[1] // _RUN) * _RUN)[0]


def _along_rows(x: BitTensor, piece: int) -> Array:
    """The words of a matrix (m, k) in pieces of its rows, with the bytes of a piece contiguous along the rows; kept with `x`."""
    if x.axis == -2:
        x = x.repack(axis=-1, layout="rows")

    def make() -> Array:
        turned: Array = _backend(x).turned(x.words, x.shape[1], piece)
        return turned

    return TURNED.of(derived_of(x).prepared, make, piece)
