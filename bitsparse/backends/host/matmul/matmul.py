"""Products of packed operands on the host, with the fused epilogue. Callers in ``ops`` have validated the arguments."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bitsparse import _check
from bitsparse._ext import matmul as _ext
from bitsparse.backends.host.buffers import as_bytes, dtype_code, fold_shape, strided
from bitsparse.backends.host.settings import run_on, simd_level
from bitsparse.backends.params import (
    ACTIVATIONS,
    ENCODINGS,
    LAYOUTS,
    ROUNDINGS,
    EpilogueParams,
    Factors,
    OperandParams,
    words_shape,
)

#: The kernels that can be forced by name.
KERNELS = ("planes", "digits")
#: The kernels that the cost model chooses among.
CHOICES = KERNELS

Array = NDArray[Any]

_INT32, _INT64, _FLOAT, _BITS = range(4)


def chain_of(params: EpilogueParams, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The epilogue as the compiled part takes it; the tuple owns the buffers."""

    def full(operand: Any) -> Any:
        return None if operand is None else strided(operand, shape, np.float32)

    def row(vector: Any) -> Any:
        return None if vector is None else full(np.asarray(vector)[..., None])

    def col(vector: Any) -> Any:
        return full(np.asarray(vector)[..., None, :] if vector is not None and np.ndim(vector) else vector)

    p, nothing = params, (None, None)
    pairs = (p.row_term or nothing, p.col_term or nothing)
    terms = [side(end) for pair in pairs for side, end in zip((row, col), pair, strict=True)]
    columns = (col(p.bias), col(p.bn_scale), col(p.bn_shift))
    operands = (row(p.row_scale), col(p.col_scale), *terms, *columns, full(p.offset), full(p.divisor))
    activation = ACTIVATIONS[p.activation], p.negative_slope
    quantiser = (p.multiplier, p.qmin, p.qmax, ROUNDINGS[p.rounding])
    draws, form = (p.seed & 0xFFFFFFFFFFFFFFFF, p.stream & 0xFFFFFFFF), (p.bits, p.axis, LAYOUTS[p.layout])
    return operands, *activation, p.binarize, quantiser, *draws, *form


def _result(
    shape: tuple[int, ...], acc_dtype: DTypeLike, params: EpilogueParams | None, out: Array | None
) -> tuple[int, Array]:
    """Kind of the result and the array it is written to."""
    want: tuple[int, ...] = shape
    if params is None:
        dtype = np.dtype(acc_dtype)
        kind = _INT32 if dtype == np.int32 else _INT64
    elif params.out == "float":
        dtype, kind = np.dtype(np.float32), _FLOAT
    else:
        dtype, kind = np.dtype(np.uint32), _BITS
        want = words_shape(shape, params.bits, params.axis, params.layout)
    if out is None:
        return kind, np.empty(want, dtype)
    if not out.flags.carray:
        raise ValueError("matmul: out must be C-contiguous, aligned and writeable; pass such an array or leave it away")
    return kind, out


def _operand_index(lead: tuple[int, ...], batch: tuple[int, ...]) -> NDArray[np.int64]:
    """Which matrix of an operand each matrix of the result uses."""
    index = np.arange(math.prod(lead), dtype=np.int64).reshape(lead)
    return np.ascontiguousarray(np.broadcast_to(index, batch)).reshape(-1)


def matmul(
    a_words: NDArray[np.uint32],
    b_words: NDArray[np.uint32],
    *,
    bitmap: NDArray[np.uint32] | None = None,
    epilogue: EpilogueParams | None = None,
    out: Array | None = None,
    kernel: str = "planes",
    **factors: Unpack[Factors],
) -> Array:
    """Exact product of ``a (..., m, k)`` and ``b (..., k, n)``, both packed along ``k`` in planes.

    Parameters
    ----------
    a_words, b_words
        uint32 ``(*batch, m, a_bits, W)`` and ``(*batch, n, b_bits, W)`` with ``W = ceil(k / 128) * 4``;
        batches broadcast.
    bitmap
        Zero-tile bitmap of ``a``; its zero tiles are skipped. ``None``: nothing is skipped.
    epilogue
        What to do with the integers before they are stored; ``None`` stores them.
    out
        Array for the result, written in place. When the epilogue produces NaN its content is unspecified.
    kernel
        "planes": popcounts of pairs of bit planes. "digits": multiply-adds of short integers. The result is the same.

    Returns
    -------
    ndarray
        ``(*batch, m, n)`` of ``acc_dtype``, float32 with ``epilogue.out == "float"``, or packed words with "bits".

    Raises
    ------
    ValueError
        If NaN reaches requantisation.
    MemoryError
        If the panels of ``b`` do not fit.

    Examples
    --------
    >>> from bitsparse.backends.host.bits.pack import pack
    >>> a = pack(np.array([[1, 2, 3]]), 2, axis=-1, layout="planes", encoding="unsigned")
    >>> matmul(a, a, k=3, a_bits=2, b_bits=2, a_encoding="unsigned", b_encoding="unsigned", acc_dtype=np.int32)
    array([[14]], dtype=int32)
    """
    a_lead, b_lead = a_words.shape[:-3], b_words.shape[:-3]
    batch = np.broadcast_shapes(a_lead, b_lead)
    m, n = a_words.shape[-3], b_words.shape[-3]
    shape, acc_dtype, bits = (*batch, m, n), factors["acc_dtype"], (factors["a_bits"], factors["b_bits"])
    kind, result = _result(shape, acc_dtype, epilogue, out)
    # A step of the product takes 8 words of one plane pair about as long as an element takes elsewhere.
    work = math.prod(shape) * max(1, a_words.shape[-1] * math.prod(bits) // 8)
    operands = as_bytes(a_words), as_bytes(b_words), None if bitmap is None else as_bytes(bitmap)
    counts = math.prod(a_lead), math.prod(b_lead), math.prod(batch)
    batches = _operand_index(a_lead, batch), _operand_index(b_lead, batch), counts
    encodings = ENCODINGS[factors["a_encoding"]], ENCODINGS[factors["b_encoding"]]
    sums = np.dtype(acc_dtype) == np.int32, kind, None if epilogue is None else chain_of(epilogue, shape)
    arguments = *operands, *batches, (m, n, factors["k"]), bits, encodings, *sums
    found_nan = _ext.matmul(run_on(work), kernel == "digits", *arguments, as_bytes(result))
    if epilogue is not None:
        _check.no_nan_in_epilogue(epilogue.function, bool(found_nan))
    return result


class Prepared:
    """A product with one left operand: ``prepared(b_words, out, operand)`` is :func:`matmul` with the other arguments fixed."""

    #: There is no shorter way, calls read the words of the left operand as they are then, and nothing is kept.
    is_plain, keeps_left, nbytes = False, False, 0

    def __init__(self, a_words: NDArray[np.uint32], epilogue: EpilogueParams | None, arguments: dict[str, Any]) -> None:
        self._a_words, self._epilogue, self._arguments = a_words, epilogue, arguments

    def __call__(
        self, b_words: NDArray[np.uint32], out: Array | None = None, operand: OperandParams | None = None
    ) -> Array:
        """The product with ``b_words``, through the epilogue if there is one, with what operands contribute to that."""
        chain = self._epilogue
        if chain is not None and operand is not None:
            chain = chain.joined(operand)
        return matmul(self._a_words, b_words, epilogue=chain, out=out, **self._arguments)

    def explain(self) -> tuple[str, ...]:
        """Lines that a plan's explanation adds."""
        return ()

    def nan_seen(self) -> bool:
        """Never: NaN on its way to bits is an error of the call itself."""
        return False


def prepare(
    a_words: NDArray[np.uint32],
    *,
    n: int,
    b_batch: tuple[int, ...],
    epilogue: EpilogueParams | None = None,
    **arguments: Any,
) -> Prepared:
    """Products of one left operand with right operands of ``n`` columns and batch dimensions ``b_batch``; see :func:`matmul`."""
    return Prepared(a_words, epilogue, arguments)


def epilogue(acc: Array, params: EpilogueParams) -> Array:
    """The epilogue of :func:`matmul` on an int32, int64 or float32 array ``(..., m, n)``.

    Raises
    ------
    ValueError
        If NaN reaches requantisation.

    Examples
    --------
    >>> epilogue(np.array([[-3, 5]], np.int32), EpilogueParams(activation="relu", bias=np.float32(1)))
    array([[0., 6.]], dtype=float32)
    """
    kind, result = _result(acc.shape, np.float32, params, None)
    sums = as_bytes(acc), dtype_code(acc.dtype), fold_shape(acc.shape)
    found_nan = _ext.epilogue(run_on(acc.size), *sums, kind, chain_of(params, acc.shape), as_bytes(result))
    _check.no_nan_in_epilogue(params.function, bool(found_nan))
    return result


class _Rates(NamedTuple):
    """Nanoseconds on one thread of a 3.5 GHz Zen 4 core, random data, at one SIMD level."""

    bit_mac: float  # planes: one bit times one bit
    panel_bit: float  # planes: bringing one bit of b into panels
    digit_mac: float  # digits: one digit times one digit
    a_decode: tuple[float, float]  # digits: per element of a, and more for each of its bits
    b_decode: tuple[float, float]  # digits: per element of b, and more for each of its bits


# Measured with 512 x 4096 x 512 products (the rates per product), and with 8 x 4096 x 4096 and 4096 x 4096 x 8 ones
# (what remains per element of b and of a), at 1 x 1, 1 x 8, 8 x 1 and 8 x 8 bits.
_RATES = {
    "scalar": _Rates(0.0135, 0.03, 0.34, (1.0, 0.5), (2.5, 0.5)),
    "avx2": _Rates(0.0022, 0.02, 0.0175, (0.39, 0.075), (2.0, 0.075)),
    "avx512": _Rates(0.0009, 0.008, 0.011, (0.08, 0.032), (1.66, 0.027)),
}


def _digit_products(a_bits: int, b_bits: int) -> int:
    """Products of digits that the digits kernel forms: widths of at most 15 bits each and 22 together."""
    best = a_bits * b_bits
    for a_digits in range(1, a_bits + 1):
        for b_digits in range(1, b_bits + 1):
            a_width, b_width = -(-a_bits // a_digits), -(-b_bits // b_digits)
            if max(a_width, b_width) <= 15 and a_width + b_width <= 22:
                best = min(best, a_digits * b_digits)
    return best


def cost(
    kernel: str,
    m: int,
    n: int,
    k: int,
    a_bits: int,
    b_bits: int,
    share_nonzero: float = 1.0,
    *,
    level: str | None = None,
) -> float:
    """Estimated nanoseconds of :func:`matmul` on one thread.

    Both kernels spread over threads alike, so that the smaller estimate wins.

    Parameters
    ----------
    kernel
        "planes" or "digits".
    share_nonzero
        Share of the 8 x 128 tiles of ``a`` that are not skipped.
    level
        SIMD level; the one in use if ``None``.

    Examples
    --------
    >>> cost("planes", 4096, 4096, 4096, 1, 1, level="avx512") < cost("digits", 4096, 4096, 4096, 1, 1, level="avx512")
    True
    >>> cost("planes", 4096, 4096, 4096, 8, 8, level="avx512") < cost("digits", 4096, 4096, 4096, 8, 8, level="avx512")
    False
    """
    rates = _RATES[simd_level() if level is None else level]
    rows, cols, depth = -(-m // 8) * 8, -(-n // 16) * 16, -(-k // 128) * 128
    products = rows * cols * depth * share_nonzero
    if kernel == "planes":
        return rates.bit_mac * products * a_bits * b_bits + rates.panel_bit * cols * depth * b_bits
    a_decode = (rates.a_decode[0] + rates.a_decode[1] * a_bits) * rows * depth
    b_decode = (rates.b_decode[0] + rates.b_decode[1] * b_bits) * cols * depth
    return rates.digit_mac * products * _digit_products(a_bits, b_bits) + a_decode + b_decode
