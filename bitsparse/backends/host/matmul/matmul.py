"""Products of packed operands on the host, with the fused epilogue. Callers in ``ops`` have validated the arguments."""

from __future__ import annotations

import math
from typing import Any, Unpack, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bitsparse import _check
from bitsparse._ext import matmul as _ext
from bitsparse.backends.host.buffers import as_bytes, dtype_code, fold_shape, strided
from bitsparse.backends.host.matmul.costs import BYTE, cost
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import (
    ACTIVATIONS,
    ENCODINGS,
    LAYOUTS,
    ROUNDINGS,
    Array,
    EpilogueParams,
    Factors,
    OperandParams,
    words_shape,
)
from bitsparse.errors import KernelError

__all__ = ["CHOICES", "KERNELS", "Prepared", "chain_of", "cost", "epilogue", "matmul", "prepare"]

#: The kernels that can be forced by name.
KERNELS = ("planes", "digits", "bytes")
#: The kernels that the cost model chooses among.
CHOICES = KERNELS


_INT32, _INT64, _FLOAT, _BITS = range(4)
_NUMBERS = {"planes": _ext.PLANES, "digits": _ext.DIGITS, "bytes": _ext.BYTES}


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


#: The index of the one matrix of an operand without batches.
_ONLY = np.zeros(1, np.int64)


def _operand_index(lead: tuple[int, ...], batch: tuple[int, ...]) -> NDArray[np.int64]:
    """Which matrix of an operand each matrix of the result uses."""
    if not batch:
        return _ONLY
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
        "planes": popcounts of pairs of bit planes. "digits": multiply-adds of short integers. "bytes": the same of bytes, four at a
        time, for at most 8 bits of each operand. The result is the same.

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
    fixed, work = _fixed(a_words, b_lead, b_words.shape[-3], bitmap, kernel, factors)
    shape = (*np.broadcast_shapes(a_lead, b_lead), a_words.shape[-3], b_words.shape[-3])
    kind, result = _result(shape, factors["acc_dtype"], epilogue, out)
    number, a, *others = fixed
    chain = None if epilogue is None else chain_of(epilogue, shape)
    arguments: tuple[Any, ...] = (run_on(work), number, a, as_bytes(b_words), *others, kind, chain, as_bytes(result))
    found_nan = _ext.matmul(*arguments)
    if epilogue is not None:
        _check.no_nan_in_epilogue(epilogue.function, bool(found_nan))
    return result


def _fixed(
    a_words: NDArray[np.uint32],
    b_lead: tuple[int, ...],
    n: int,
    bitmap: NDArray[np.uint32] | None,
    kernel: str,
    factors: Factors,
) -> tuple[tuple[Any, ...], int]:
    """What the compiled part takes besides a right operand and a result, and the work of the product."""
    a_lead, m = a_words.shape[:-3], a_words.shape[-3]
    batch = np.broadcast_shapes(a_lead, b_lead)
    bits = factors["a_bits"], factors["b_bits"]
    # A step of the product takes 8 words of one plane pair about as long as an element takes elsewhere.
    work = math.prod(batch) * m * n * max(1, a_words.shape[-1] * math.prod(bits) // 8)
    counts = math.prod(a_lead), math.prod(b_lead), math.prod(batch)
    batches = _operand_index(a_lead, batch), _operand_index(b_lead, batch), counts
    encodings = ENCODINGS[factors["a_encoding"]], ENCODINGS[factors["b_encoding"]]
    operands = as_bytes(a_words), None if bitmap is None else as_bytes(bitmap)
    narrow = np.dtype(factors["acc_dtype"]) == np.int32
    return (_NUMBERS[kernel], *operands, *batches, (m, n, factors["k"]), bits, encodings, narrow), work


class Prepared:
    """A product with one left operand: ``prepared(b_words, out, operand)`` is :func:`matmul` with the other arguments fixed."""

    #: Calls read the words of the left operand as they are then, and nothing is kept.
    keeps_left, nbytes = False, 0

    def __init__(
        self,
        a_words: NDArray[np.uint32],
        right: tuple[tuple[int, ...], int],
        epilogue: EpilogueParams | None,
        arguments: dict[str, Any],
    ) -> None:
        self.left_words, self._epilogue, self._arguments = a_words, epilogue, arguments
        #: Of the integers; `left_words` are those of the left operand.
        self.dtype = np.dtype(arguments["acc_dtype"])
        self.shape = (*np.broadcast_shapes(a_words.shape[:-3], right[0]), a_words.shape[-3], right[1])
        #: Whether there is a shorter way, `run_plain`: for integers, of which there are some.
        self.is_plain = epilogue is None and bool(a_words.size) and 0 not in (*self.shape, *right[0])
        if self.is_plain:
            factors = cast(Factors, {name: arguments[name] for name in Factors.__annotations__})
            fixed, self._work = _fixed(a_words, *right, arguments["bitmap"], arguments["kernel"], factors)
            self._product = _ext.PlainProduct(*fixed)

    def run_plain(self, b_words: NDArray[np.uint32], out: Array | None = None) -> Array:
        """The product with ``b_words``, into `out` if there is one: a C-contiguous array of the result's shape and dtype."""
        result = np.empty(self.shape, self.dtype) if out is None else out
        if not b_words.flags.c_contiguous:
            b_words = np.ascontiguousarray(b_words)
        self._product(run_on(self._work), b_words, result)
        return result

    def __call__(
        self, b_words: NDArray[np.uint32], out: Array | None = None, operand: OperandParams | None = None
    ) -> Array:
        """The product with ``b_words``, through the epilogue if there is one, with what operands contribute to that."""
        chain = self._epilogue
        if chain is not None and operand is not None:
            chain = chain.joined(operand)
        return matmul(self.left_words, b_words, epilogue=chain, out=out, **self._arguments)

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
    """Products of one left operand with right operands of ``n`` columns and batch dimensions ``b_batch``; see :func:`matmul`.

    Raises
    ------
    KernelError
        Kernel "bytes" does not take so many bits.
    """
    bits = arguments["a_bits"], arguments["b_bits"]
    if arguments["kernel"] == "bytes" and max(bits) > BYTE:
        raise KernelError(
            f"matmul: kernel 'bytes' takes operands of up to {BYTE} bits, got {bits[0]} and {bits[1]}; choose another kernel or None"
        )
    return Prepared(a_words, (b_batch, n), epilogue, {"bitmap": None} | arguments)


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
