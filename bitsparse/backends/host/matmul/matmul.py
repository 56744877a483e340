"""Products of packed operands on the host, with the fused epilogue. Callers in ``ops`` have validated the arguments."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._ext import matmul as _ext
from bitsparse.backends.host.buffers import as_bytes, dtype_code, fold_shape, in_order, strided
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


#: The numbers of an epilogue's kinds of result in compiled code.
_KINDS = {"float": 2, "bits": 3}
_NUMBERS = {"planes": _ext.PLANES, "digits": _ext.DIGITS, "bytes": _ext.BYTES}


def chain_of(params: EpilogueParams, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The epilogue as the compiled part takes it; the tuple owns the buffers."""

    def row(vector: Any) -> Any:
        return None if vector is None else strided(np.asarray(vector)[..., None], shape, np.float32)

    def col(vector: Any) -> Any:
        if vector is None:
            return None
        array = np.asarray(vector)
        return strided(array[..., None, :] if array.ndim else array, shape, np.float32)

    def full(operand: Any) -> Any:
        return None if operand is None else strided(operand, shape, np.float32)

    p, nothing = params, (None, None)
    (row_sums, of_rows), (of_columns, column_sums) = p.row_term or nothing, p.col_term or nothing
    terms = row(row_sums), col(of_rows), row(of_columns), col(column_sums)
    columns = col(p.bias), col(p.bn_scale), col(p.bn_shift)
    operands = row(p.row_scale), col(p.col_scale), *terms, *columns, full(p.offset), full(p.divisor)
    activation = ACTIVATIONS[p.activation], p.negative_slope
    quantiser = (p.multiplier, p.qmin, p.qmax, ROUNDINGS[p.rounding])
    draws, form = (p.seed & 0xFFFFFFFFFFFFFFFF, p.stream & 0xFFFFFFFF), (p.bits, p.axis, LAYOUTS[p.layout])
    return operands, *activation, p.binarize, quantiser, *draws, *form


def _result(shape: tuple[int, ...], params: EpilogueParams) -> Array:
    """An uninitialised array for the epilogue's result."""
    if params.out == "float":
        return np.empty(shape, np.float32)
    return np.empty(words_shape(shape, params.bits, params.axis, params.layout), np.uint32)


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
        Zero-tile bitmap of ``a``, by which zero tiles are skipped. With ``None``, nothing is skipped.
    epilogue
        What to do with the integers before they are stored; ``None`` stores the integers themselves.
    out
        Array for the result, written in place. If the epilogue produces NaN, its content is unspecified.
    kernel
        "planes": popcounts of pairs of bit planes. "digits": multiply-adds of short integers. "bytes": multiply-adds of bytes, four at a
        time, for operands of at most 8 bits. The result is the same.

    Returns
    -------
    ndarray
        ``(*batch, m, n)`` of ``acc_dtype``; with an epilogue, float32 if ``epilogue.out == "float"`` or packed words if it is "bits".

    Raises
    ------
    ValueError
        If NaN reaches requantisation.
    MemoryError
        If the panels of ``b`` do not fit in memory.

    Examples
    --------
    >>> from bitsparse.backends.host.bits.pack import pack
    >>> a = pack(np.array([[1, 2, 3]]), 2, axis=-1, layout="planes", encoding="unsigned")
    >>> matmul(a, a, k=3, a_bits=2, b_bits=2, a_encoding="unsigned", b_encoding="unsigned", acc_dtype=np.int32)
    array([[14]], dtype=int32)
    """
    right = b_words.shape[:-3], b_words.shape[-3]
    return Prepared(a_words, right, epilogue, bitmap, kernel, factors)(b_words, out)


class Prepared:
    """A product with one left operand: ``prepared(b_words, out, operand)`` is :func:`matmul` with the other arguments fixed."""

    #: No copy of the left operand is kept: each call reads its current words.
    keeps_left, nbytes = False, 0

    def __init__(
        self,
        a_words: NDArray[np.uint32],
        right: tuple[tuple[int, ...], int],
        epilogue: EpilogueParams | None,
        bitmap: NDArray[np.uint32] | None,
        kernel: str,
        factors: Factors,
    ) -> None:
        self.left_words, self._epilogue = a_words, epilogue
        (*lead, m, _, width), (b_batch, n) = a_words.shape, right
        a_batch = tuple(lead)
        batch = a_batch if a_batch == b_batch else np.broadcast_shapes(a_batch, b_batch)
        #: The dtype of the integers.
        self.dtype = np.dtype(factors["acc_dtype"])
        self.shape = (*batch, m, n)
        #: Whether the result is the integers themselves, which `run_plain` computes with less overhead.
        self.is_plain = epilogue is None
        bits = factors["a_bits"], factors["b_bits"]
        # The product processes 8 words of one pair of planes in about the time that other functions need for one element.
        self._work = math.prod(batch) * m * n * max(1, width * math.prod(bits) // 8)
        counts = math.prod(a_batch), math.prod(b_batch), math.prod(batch)
        indices = _operand_index(a_batch, batch), _operand_index(b_batch, batch)
        encodings = ENCODINGS[factors["a_encoding"]], ENCODINGS[factors["b_encoding"]]
        operands = as_bytes(a_words), None if bitmap is None else as_bytes(bitmap)
        dims, narrow = (m, n, factors["k"]), self.dtype == np.int32
        self._product = _ext.Product(_NUMBERS[kernel], *operands, *indices, counts, dims, bits, encodings, narrow)

    def run_plain(self, b_words: NDArray[np.uint32], out: Array | None = None) -> Array:
        """The product with ``b_words``, into `out` if given, an array of the result's shape and dtype; both are C-contiguous."""
        result = np.empty(self.shape, self.dtype) if out is None else out
        self._product(run_on(self._work), b_words, result)
        return result

    def __call__(
        self, b_words: NDArray[np.uint32], out: Array | None = None, operand: OperandParams | None = None
    ) -> Array:
        """The product with ``b_words``, followed by the epilogue, if any, including what `operand` contributes to it."""
        if out is not None and not out.flags.carray:
            raise ValueError(
                "matmul: out must be C-contiguous, aligned and writeable; pass such an array or leave it away"
            )
        chain = self._epilogue
        if chain is None:
            return self.run_plain(in_order(b_words), out)
        if operand is not None:
            chain = chain.joined(operand)
        result = _result(self.shape, chain) if out is None else out
        form = _KINDS[chain.out], chain_of(chain, self.shape), as_bytes(result)
        _check.no_nan_in_epilogue(chain.function, self._product.through(run_on(self._work), in_order(b_words), *form))
        return result

    def explain(self) -> tuple[str, ...]:
        """Lines that a plan's explanation adds."""
        return ()

    def nan_seen(self) -> bool:
        """Always False: a call raises an error itself if NaN is about to become bits."""
        return False


def prepare(
    a_words: NDArray[np.uint32],
    *,
    n: int,
    b_batch: tuple[int, ...],
    epilogue: EpilogueParams | None = None,
    bitmap: NDArray[np.uint32] | None = None,
    kernel: str = "planes",
    **factors: Unpack[Factors],
) -> Prepared:
    """Products of one left operand with right operands of ``n`` columns and batch dimensions ``b_batch``; see :func:`matmul`.

    Raises
    ------
    KernelError
        If an operand has too many bits for kernel "bytes".
    """
    bits = factors["a_bits"], factors["b_bits"]
    if kernel == "bytes" and max(bits) > BYTE:
        raise KernelError(
            f"matmul: kernel 'bytes' takes operands of up to {BYTE} bits, got {bits[0]} and {bits[1]}; choose another kernel or None"
        )
    return Prepared(a_words, (b_batch, n), epilogue, bitmap, kernel, factors)


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
    result = _result(acc.shape, params)
    sums = as_bytes(acc), dtype_code(acc.dtype), fold_shape(acc.shape)
    form = _KINDS[params.out], chain_of(params, acc.shape), as_bytes(result)
    _check.no_nan_in_epilogue(params.function, _ext.epilogue(run_on(acc.size), *sums, *form))
    return result
