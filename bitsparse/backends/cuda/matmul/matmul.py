"""The exact low-bit product on the GPU: operands, correction terms, the choice of kernel, and the epilogue."""

from __future__ import annotations

import math
import threading
from functools import partial
from sys import getrefcount
from typing import Any, NamedTuple, Unpack

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.bits import words as packed
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue, epilogue
from bitsparse.backends.cuda.matmul import mma as gemm_mma
from bitsparse.backends.cuda.matmul import one_launch, wgmma_tilings
from bitsparse.backends.cuda.matmul import wgmma as gemm
from bitsparse.backends.cuda.matmul.choice import CHOICES, KERNELS, cost, in_bytes, on_warps
from bitsparse.backends.cuda.matmul.passes import Multiplication, Operand, batch_indices, left_out, signed_bytes
from bitsparse.backends.cuda.tables import on_device
from bitsparse.backends.params import EpilogueParams, Factors, OperandParams
from bitsparse.errors import KernelError

__all__ = [
    "CHOICES",
    "KERNELS",
    "DeviceEpilogue",
    "Product",
    "cost",
    "epilogue",
    "largest_sum",
    "prepare",
]

#: A product reuses the memory of results of up to this many bytes.
_SMALL = 1 << 20
_NO_OPERAND = OperandParams()
#: A tiling of any kernel.
AnyTiling = wgmma_tilings.Tiling | gemm_mma.MmaTiling | one_launch.AnyMixedTiling


def _count_of_a_local() -> int:
    """The value of ``getrefcount`` for an object that only one local variable holds, which depends on the interpreter."""
    probe = object()
    return getrefcount(probe)


_ALONE = _count_of_a_local()


class _Workspace(NamedTuple):
    """Workspace of a product's calls on one stream; captured graphs hold its addresses."""

    sums: Any  # for an epilogue in a separate kernel
    terms: Any  # correction terms of the right operand
    digits: Any  # the right operand as bytes


class Product:
    """A product prepared for one left operand and right operands of one kind: ``product(b_words, out=None)``.

    Building it compiles what is needed, unpacks the left operand for "digits" and coarsens its bitmap. The first call on a stream allocates
    workspace; later calls allocate nothing but the result. It may be shared by threads and streams.

    With `fresh`, every call reads the current words of the left operand, and unpacks them again if necessary. Such a product must be used
    on one stream at a time.

    With `as_bytes`, for "digits" of signed 8-bit integers on warpgroups, the words of both operands (..., outer, 1, W) are the bytes
    themselves. Their order along the contraction axis is arbitrary but must be the same in both, and padding must be zero in one of them.

    Attributes
    ----------
    tiling : Tiling, MmaTiling, MixedTiling, ResidentTiling or None
        How the product is cut up; ``None`` if there is nothing to multiply.
    epilogue : DeviceEpilogue or None
        The epilogue of the sums.
    is_plain : bool
        Whether a call is a single launch, so that :meth:`run_plain` may be used.
    """

    def __init__(
        self,
        a_words: Any,
        *,
        n: int,
        b_batch: tuple[int, ...] = (),
        bitmap: Any = None,
        kernel: str = "planes",
        tiling: AnyTiling | None = None,
        epilogue: DeviceEpilogue | None = None,
        fresh: bool = False,
        as_bytes: bool = False,
        **factors: Unpack[Factors],
    ) -> None:
        if kernel not in KERNELS:
            names = ", ".join(map(repr, KERNELS[:-1]))
            raise ValueError(f"matmul: kernel must be {names} or {KERNELS[-1]!r}, got {kernel!r}")
        cupy = self._cupy = jit.require_cupy("matmul")
        chip, by_warps = jit.capability(), on_warps(kernel)
        self._mixed = kernel == "mixed"
        kind: Any = (
            one_launch.AnyMixedTiling if self._mixed else gemm_mma.MmaTiling if by_warps else wgmma_tilings.Tiling
        )
        if tiling is not None and not isinstance(tiling, kind):
            raise KernelError(f"matmul: the tiling {tiling} is not one of kernel {kernel!r} on {chip.name}")
        m = a_words.shape[-3]
        self._dtype = np.dtype(factors.get("acc_dtype", np.int32))
        k = self._k = factors["k"]
        self._digits = in_bytes(kernel)
        batch, table = batch_indices(tuple(a_words.shape[:-3]), tuple(b_batch))
        indices = None if table is None else on_device("matmul", table)
        self.shape = (*batch, m, n)
        batches = int(np.prod(batch, dtype=np.int64))
        kinds = (factors["a_bits"], factors["a_encoding"]), (factors["b_bits"], factors["b_encoding"])
        self._a, self._b = kinds
        signed = signed_bytes(*kinds) if self._mixed or (self._digits and not by_warps) else 0
        self._a_signed, self._b_signed = bool(signed & 1), bool(signed & 2)
        self._as_bytes = as_bytes
        if as_bytes and not (signed == 3 and kinds[0][0] == kinds[1][0] == 8):
            raise KernelError(
                f"matmul: operands of {kinds} are no bytes for kernel {kernel!r} on {chip.name}; repack them to planes"
            )
        self._a_constant = left_out(*kinds[0], self._digits and not self._a_signed)
        self._b_constant = left_out(*kinds[1], self._digits and not self._b_signed)
        self._row_term: Any = None
        self._product: Any = None
        self._unpacked: Any = None
        self._renewed: Any = None
        self.epilogue, self._finish = epilogue, None
        self._workspaces: dict[int, _Workspace] = {}
        self._lock = threading.Lock()
        self._stream, self._ndarray = cupy.cuda.get_current_stream, cupy.ndarray
        self._settled = False
        self._kept: dict[int, Any] = {}
        self._small = math.prod(self.shape) * self._dtype.itemsize <= _SMALL
        self.tiling: AnyTiling | None = None
        if epilogue is not None and epilogue.shape != self.shape:
            raise ValueError(
                f"matmul: the epilogue is for a result of shape {epilogue.shape}, the product's is {self.shape}"
            )
        # Kernels with an epilogue have 32-bit sums. For wider or empty sums, and for "mixed", which has no epilogue, the sums are stored
        # and a second kernel applies the epilogue.
        if epilogue is not None and (self._dtype == np.int64 or k == 0 or self._mixed):
            self._finish = epilogue.on(self._dtype)
        self._b_outer, self._b_words = (*b_batch, n), a_words.shape[-1]
        self._made_on = cupy.cuda.get_current_stream().ptr
        self._made = cupy.cuda.Event(disable_timing=True)
        nothing = 0 in self.shape or k == 0
        self.is_plain = not (
            nothing or fresh or self._a_constant or epilogue is not None or (self._digits and not self._mixed)
        )
        if nothing:
            return
        self._read_left(a_words)
        if fresh and (self._digits or self._b_constant):
            self._renewed = a_words
        a = self._left(a_words)
        b_bits, b_encoding = self._b
        unpacked = self._digits and not self._mixed
        planes, weight = -(-b_bits // 8) if unpacked else b_bits, 2 if b_encoding == "bipolar" else 1
        b_batches = int(np.prod(b_batch, dtype=np.int64))
        b = Operand(None, n, planes, b_batches, a.step, weight, 0, b_encoding == "signed" and not unpacked)
        wide = self._dtype == np.int64
        # Unpacking to bytes may flip the sign bit, so a zero tile of the operand need not be a zero tile of bytes.
        tiles = None if self._digits else bitmap
        product: Any = gemm_mma.MmaProduct
        what = Multiplication(a, b, batches, indices, tiles, wide, None if self._finish is not None else epilogue)
        if self._mixed:
            self._product = one_launch.product(what, k, tiling, signed)
        else:
            if not by_warps:
                # Before a product of bytes, a kernel unpacks the right operand. The first such kernel on each stream starts after all
                # earlier work.
                # Unpacking puts 32 elements into 8 words; what follows the last ones is zero.
                used = 8 * -(-k // 32) if self._unpacks else 0
                product = partial(gemm.WgmmaProduct, early=self._unpacks, signed=signed, used=used)
            self._product = product(what, tiling)
        self.tiling = self._product.tiling
        self._made.record()

    def _read_left(self, words: Any) -> None:
        """Prepare the left operand: unpack it to bytes, and compute its share of the correction terms."""
        bits, encoding = self._a
        if self._b_constant:
            self._row_term = packed.code_sums(
                words, bits, encoding, self._k, factor=self._b_constant, dtype=self._dtype.name, out=self._row_term
            )
        if self._digits:
            extend = self._a_signed and encoding == "signed"
            flip = encoding == "signed" and not extend
            words = self._cupy.ascontiguousarray(words)
            if self._as_bytes:
                self._unpacked = words
                return
            self._unpacked = packed.digits_of(words, bits, self._k, flip, self._unpacked, extend=extend)

    def _left(self, words: Any) -> Operand:
        """The left operand as the kernel takes it: unchanged planes, or bytes."""
        bits, encoding = self._a
        outer, weight = words.shape[-3], 2 if encoding == "bipolar" else 1
        batches = words.size // (outer * words.shape[-2] * words.shape[-1])
        if not self._digits:
            words = self._cupy.ascontiguousarray(words)
            return Operand(words, outer, bits, batches, 1, weight, 0, encoding == "signed")
        return Operand(self._unpacked, outer, self._unpacked.shape[-2], batches, 8, weight)

    @property
    def _unpacks(self) -> bool:
        """Whether calls unpack the right operand to bytes."""
        return self._digits and not (self._as_bytes or self._mixed)

    @property
    def fused(self) -> bool:
        """Whether the epilogue is part of the product's kernel; otherwise, if there is one, it is a second kernel."""
        return self.epilogue is not None and self._finish is None

    def __call__(
        self, b_words: Any, out: Any = None, operand: OperandParams | None = None, *, joins: bool = False
    ) -> Any:
        """The product with ``b_words`` (*b_batch, n, b_bits, W), into ``out`` if given.

        With an epilogue, the result is the epilogue's, including what `operand` contributes to it. With `joins`, float results are added to
        the content of ``out``.
        """
        chain = self.epilogue
        with self._lock:  # the launch's arguments are shared
            stream = self._stream().ptr
            work = self._workspaces.get(stream) or self._on_stream(stream)
            if chain is not None:
                chain.with_operand(_NO_OPERAND if operand is None else operand).joins = joins
                if out is None:
                    out = chain.empty()
            elif out is None:
                out = self._cupy.ndarray(self.shape, self._dtype)
            if self._finish is None:
                self._multiply(b_words, out, work, stream)
            else:
                if self.tiling is not None:
                    self._multiply(b_words, work.sums, work, stream)
                self._finish.run(work.sums, out)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes that are kept in addition to the operands: the prepared left operand, and workspace."""
        parts = [self._row_term, self._unpacked, *(part for work in self._workspaces.values() for part in work)]
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def keeps_left(self) -> bool:
        """Whether calls read prepared data of the left operand (bytes, or sums of its rows) instead of only its words."""
        return self._digits or self._b[1] == "bipolar"

    def run_plain(self, b_words: Any, out: Any = None) -> Any:
        """The same as a call, with less overhead; only if :attr:`is_plain` is True and ``b_words`` are C-contiguous."""
        stream = self._stream().ptr
        if out is None:
            out = self._result_on(stream) if self._small else self._ndarray(self.shape, self._dtype)
        quick = self._product.quick
        if (
            quick is not None
            and out.data.ptr % gemm.QUICK_BYTES == 0
            and stream in self._workspaces
            and not quick.launch(stream, b_words.data.ptr, out.data.ptr)
        ):
            return out
        with self._lock:
            self._multiply(b_words, out, self._workspaces.get(stream) or self._on_stream(stream), stream)
        return out

    def _result_on(self, stream: int) -> Any:
        """An array for a small result: the previous one on this stream if nobody holds it, a view of it or its memory any more.

        CuPy's memory pool would return the same memory, but that takes a third of the time of a call.
        """
        kept = self._kept.pop(stream, None)
        if kept is None or getrefcount(kept) != _ALONE or getrefcount(kept.data) > 2 or getrefcount(kept.data.mem) > 2:
            kept = self._ndarray(self.shape, self._dtype)
        self._kept[stream] = kept
        return kept

    def _on_stream(self, stream: int) -> _Workspace:
        """The workspace for calls on one stream; also makes the stream wait for what was prepared on another one."""
        cupy = self._cupy
        if cupy.cuda.runtime.streamIsCapturing(stream):
            # A capture begins after a synchronisation and cannot allocate, so it takes over the workspace of earlier calls.
            self._settled = False
            if self._workspaces:
                work = self._workspaces[stream] = self._workspaces.pop(next(iter(self._workspaces)))
                return work
        elif stream != self._made_on and self.tiling is not None:
            cupy.cuda.get_current_stream().wait_event(self._made)
        bits, _ = self._b
        self._settled = False
        work = self._workspaces[stream] = _Workspace(
            cupy.zeros(self.shape, self._dtype) if self._finish is not None else None,
            cupy.empty(self._b_outer, self._dtype) if self._a_constant else None,
            cupy.empty((*self._b_outer, -(-bits // 8), 8 * self._b_words), np.uint32) if self._unpacks else None,
        )
        return work

    def explain(self) -> tuple[str, ...]:
        """Lines that a plan's explanation adds."""
        behind = ""
        if self.epilogue is not None:
            behind = f", epilogue in {'the same kernel' if self.fused else 'a kernel behind it'}"
        return (f"on {jit.capability().name}: {self.tiling or 'nothing to multiply'}{behind}",)

    def nan_seen(self) -> bool:
        """Whether a product since the previous call met NaN that should become a code; waits only if NaN is possible."""
        return self.epilogue is not None and self.epilogue.may_see_nan and self.epilogue.nan_seen()

    def _multiply(self, b_words: Any, out: Any, work: _Workspace, stream: int) -> None:
        if self.tiling is None:
            out.fill(0)
            return
        bits, encoding = self._b
        if self._renewed is not None:
            self._read_left(self._renewed)
        if not b_words.flags.c_contiguous:
            b_words = self._cupy.ascontiguousarray(b_words)
        col_term = None
        if self._a_constant:
            col_term = packed.code_sums(
                b_words,
                bits,
                encoding,
                self._k,
                factor=self._a_constant,
                addend=-self._a_constant * self._b_constant * self._k,
                dtype=self._dtype.name,
                out=work.terms,
            )
        if self._mixed:
            self._product.run(b_words, out, self._row_term, col_term, stream, settled=self._settled)
            self._settled = self._renewed is None
            return
        if self._unpacks:
            # The first unpacking on a stream waits for all earlier work. After that, the left operand is known to be complete, unless every
            # call reads it again.
            extend = self._b_signed and encoding == "signed"
            flip = encoding == "signed" and not extend
            b_words = packed.digits_of(
                b_words, bits, self._k, flip, work.digits, extend=extend, dependent=self._settled
            )
            self._settled = self._renewed is None
        self._product.run(b_words, out, self._row_term, col_term, stream)


def largest_sum(k: int, a_bits: int, b_bits: int) -> float:
    """A bound of the product's elements for operands of these widths in any encoding."""
    return float(k) * (2.0**a_bits - 1) * (2.0**b_bits - 1)


def prepare(
    a_words: Any,
    *,
    n: int,
    b_batch: tuple[int, ...],
    epilogue: EpilogueParams | None = None,
    fresh: bool = False,
    as_bytes: bool = False,
    bitmap: Any = None,
    kernel: str = "planes",
    **factors: Unpack[Factors],
) -> Product:
    """Products of one left operand with right operands of one kind; see :class:`Product` for the arguments."""
    chain = None
    if epilogue is not None:
        shape = (*np.broadcast_shapes(a_words.shape[:-3], b_batch), a_words.shape[-3], n)
        chain = DeviceEpilogue(epilogue, shape, largest_sum(factors["k"], factors["a_bits"], factors["b_bits"]))
    how: dict[str, Any] = {"bitmap": bitmap, "kernel": kernel, "fresh": fresh, "as_bytes": as_bytes}
    return Product(a_words, n=n, b_batch=b_batch, epilogue=chain, **how, **factors)
