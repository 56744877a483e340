"""Products of signs on the GPU: activations are turned into bits while they are loaded (``binary/bmm_rows.cu``)."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop, jit
from bitsparse._records import replace
from bitsparse.backends.cuda.bits import words as packed
from bitsparse.backends.cuda.chips import RELEASED
from bitsparse.backends.cuda.csr.schedule import Workspaces
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.cuda.finish.flag import Flag
from bitsparse.backends.cuda.geometry import FLOAT, HALF, kind_of
from bitsparse.backends.params import EpilogueParams, OperandParams, Thresholds
from bitsparse.jit import cupy

_SOURCE = "binary/bmm_rows.cu"
#: BS_KIND of words.
_WORDS_KIND = 7
#: Words of the contraction axis that two instructions process together.
_STEP_WORDS = 16
#: Columns of a warp's item, and bytes of its slot of shared memory for the epilogue.
_ITEM_COLUMNS, _SLOT_BYTES = 64, 4096
_SUMS, _EPILOGUE, _THRESHOLDS, _CHAIN = range(4)
#: Vectors over at most this many columns are kept in shared memory.
_NEAR_COLUMNS = 1024
#: A count that is never reached.
_NEVER = np.iinfo(np.int32).max
#: The most shared memory of a block with which several blocks run on a multiprocessor.
_ROOMY = 56 << 10


BmmParams = jit.struct("binary/bmm_rows.cuh", "BmmParams")
FusedParams = jit.struct("binary/bmm_rows.cuh", "BmmParams", optional=True)


class Tuning(NamedTuple):
    """How a product is cut up; the names are those of ``binary/bmm_rows.cu``."""

    rows: int  # rows that a block processes at a time
    warps: int = 8
    ahead: int = 1  # groups of eight rows of 128 columns that a warp loads at once
    blocks: int = 3  # blocks that run on a multiprocessor at a time
    part_words: int = 0  # words of the contraction axis in shared memory at a time; 0: all
    staged: int = 1  # whether a block copies the weights to shared memory

    def pitch(self, words: int) -> int:
        """Stride of rows in shared memory, in words: 16 times an odd number."""
        steps = -(-(self.part_words or words) // _STEP_WORDS)
        return _STEP_WORDS * (steps | 1)

    def shared_bytes(self, words: int, n: int, finish: int, packed: bool = False) -> int:
        """Shared memory of a block."""
        slots = self.warps * _SLOT_BYTES if finish == _EPILOGUE else 0
        chunks = -(-(self.part_words or words) // 4)
        buffers = 2 if packed and not self.part_words else 1
        weights = 4 * -(-n // _ITEM_COLUMNS) * _ITEM_COLUMNS * self.pitch(words) if self.staged else 0
        room = -(-self.rows // 16) * 16
        weights += 20 * -(-n // _ITEM_COLUMNS) * _ITEM_COLUMNS if n <= _NEAR_COLUMNS else 0
        return 272 + slots + 4 * room * (buffers * self.pitch(words) + 1 + chunks) + weights


def choose_tuning(
    m: int, n: int, words: int, finish: int, dtype: np.dtype[Any] | None, capability: jit.Capability
) -> Tuning:
    """The tuning: so few rows per block that every multiprocessor has blocks, and that several blocks fit in its shared memory."""
    packed = dtype is None
    size = 16 if dtype is None else dtype.itemsize
    ahead = 2 if size < 4 else 1  # the same bytes in flight for small elements
    # More blocks leave too few registers. Wide elements, epilogues and an emulated one-bit instruction need more of them.
    blocks = 2 if size == 8 or finish == _EPILOGUE or capability.major >= 10 else 3
    enough = 2 * capability.multiprocessors
    for rows in (64, 32, 16):
        if -(-m // rows) < enough and rows > 16:
            continue
        few = -(-m // rows) <= enough  # then copying the weights to shared memory gains nothing
        t = Tuning(rows, ahead=2 if few and size <= 4 else ahead, blocks=2 if few else blocks, staged=int(not few))
        for candidate in (t, replace(t, staged=0)):
            if candidate.shared_bytes(words, n, finish, packed) <= _ROOMY:
                return candidate
    t = replace(t, staged=0)
    if t.shared_bytes(words, n, finish, packed) <= min(capability.shared_bytes, 2 * _ROOMY):
        return replace(t, blocks=min(blocks, 2))
    # Parts keep accumulators between them, which costs registers.
    return Tuning(16, blocks=1, part_words=_STEP_WORDS * 31, staged=0)


def vector_of(dtype: np.dtype[Any], *steps: int) -> int:
    """The bytes of a load of up to four adjacent elements: at most 16, and a divisor of every address and step.

    Examples
    --------
    >>> [vector_of(np.dtype(np.float32), step) for step in (0, 2408, 4 * 1433)], vector_of(np.dtype(np.int8), 16)
    ([16, 8, 4], 4)
    """
    width = min(16, 4 * dtype.itemsize)
    while width > dtype.itemsize and any(step % width for step in steps):
        width //= 2
    return width if width >= 4 else dtype.itemsize


def _way_of(epilogue: EpilogueParams) -> int:
    """How the kernel applies an epilogue: the usual ones to the sums in registers (`_CHAIN`), others by way of shared memory."""
    usual = epilogue.activation in (None, "relu") and epilogue.row_term is None and epilogue.col_term is None
    along_rows = epilogue.out == "float" or (epilogue.binarize and epilogue.axis == -1)
    return _CHAIN if usual and along_rows else _EPILOGUE


def constants(
    tuning: Tuning, kind: int, vector: int, finish: int, *, near: bool = True, **extra: bool
) -> dict[str, int]:
    """Compile-time constants of ``binary/bmm_rows.cu``.

    Parameters
    ----------
    kind, vector : int
        Kind of the elements of the activations, and bytes of a load.
    finish : int
        How the sums are finished.
    near : bool
        Whether the vectors over the columns are in shared memory.
    extra : bool
        The flags BS_BFLOAT, BS_NORM, BS_MEANS, BS_STREAM and BS_TINY of the file, in lower case without the prefix.
    """
    t = tuning
    found = {"BS_KIND": kind, "BS_VECTOR": vector, "BS_ROWS": t.rows, "BS_WARPS": t.warps}
    found |= {"BS_AHEAD": t.ahead, "BS_BLOCKS": t.blocks, "BS_FINISH": finish}
    return found | jit.flags(parts=bool(t.part_words), staged=t.staged, near=near, **extra)


class SignProduct:
    """``product(x, out=None, absmean=None)``: sign(x) times packed signs, prepared for one right operand, on the current stream.

    The first call on a stream allocates workspace, and the first call with a new alignment of activations compiles. Later calls with
    `out` (and `absmean`) allocate nothing. It may be shared by threads and streams.

    Parameters
    ----------
    w_words : uint32 (n, 1, words)
        Signs, packed along the contraction axis.
    m, k : int
        Shape of the activations.
    dtype : dtype or None
        Dtype of the activations; None for packed bits, given as words (m, 1, words).
    norm : pair of float32 (k,), optional
        Factor and addend of every feature, applied before the sign as two float32 operations.
    epilogue : EpilogueParams, optional
        Epilogue of the sums; by default they are stored as int32.
    thresholds : Thresholds, optional
        Thresholds of one class, equivalent to an epilogue that binarises along the rows.
    absmean, scale_rows : bool
        Whether calls return the mean magnitudes of the rows, and whether these are the operand's row scale in the epilogue.
    tuning : Tuning, optional
        By default the result of :func:`choose_tuning`.

    Attributes
    ----------
    tuning : Tuning
    out_shape, out_dtype
        Shape and dtype of the result.
    """

    def __init__(
        self,
        w_words: Any,
        *,
        m: int,
        k: int,
        dtype: np.dtype[Any] | None,
        norm: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        epilogue: EpilogueParams | None = None,
        thresholds: Thresholds | None = None,
        absmean: bool = False,
        scale_rows: bool = False,
        tuning: Tuning | None = None,
    ) -> None:
        n, words = w_words.shape[0], w_words.shape[-1]
        self._m, self._k = m, k
        self._packed, self._dtype = dtype is None, np.dtype(np.uint32 if dtype is None else dtype)
        self._absmean, self._scale_rows = (absmean or scale_rows) and not self._packed, scale_rows
        self._finish = _SUMS if epilogue is None else _way_of(epilogue) if thresholds is None or k == 0 else _THRESHOLDS
        chain = None if epilogue is None else DeviceEpilogue(epilogue, (m, n), float(k))
        self.out_shape: tuple[int, ...] = (m, n) if chain is None else chain.out_shape
        self.out_dtype = np.dtype(np.int32) if chain is None else chain.out_dtype
        self._chain = chain if self._finish in (_EPILOGUE, _CHAIN) else None
        self.tuning = tuning or choose_tuning(
            m, n, words, self._finish, None if self._packed else self._dtype, jit.capability()
        )
        if 0 < self.tuning.part_words < words:
            self.tuning = replace(self.tuning, staged=0)
        else:
            self.tuning = replace(self.tuning, part_words=0)
        t = self.tuning
        p = self.params = BmmParams() if self._chain is None else FusedParams()
        p.m, p.n, p.k, p.words, p.w = m, n, k, words, w_words.data.ptr
        p.part_words, p.pitch = t.part_words or words, t.pitch(words)
        p.is_signed = int(self._dtype.kind == "i")
        self._flag = Flag()
        p.nan = self._flag.address
        self._keep: list[Any] = [w_words]
        #: Sums of the right operand's columns, and what kernels read instead: the negated sums, or the smallest counts that give a 1.
        self._sums, padded = cupy.zeros(n, np.int32), -(-n // _ITEM_COLUMNS) * _ITEM_COLUMNS
        self._limits: Any = None
        if self._finish == _THRESHOLDS and thresholds is not None:
            self._limits = interop.uploaded(
                np.broadcast_to(thresholds.values.reshape(-1), (n,)).astype(np.int32), "bmm"
            )
            flips = np.zeros(padded, np.uint8)
            flips[:n] = thresholds.flips.reshape(-1)
            self._keep.append(interop.uploaded(np.packbits(flips, bitorder="little").view(np.uint32), "bmm"))
            p.flips, p.out_words = self._keep[-1].data.ptr, self.out_shape[-1]
        self._columns = cupy.full(padded, 0 if self._limits is None else _NEVER, np.int32)
        p.columns = self._columns.data.ptr
        self.renew()
        self._normed = norm is not None
        if norm is not None:
            vectors = np.zeros((2, -(-k // 4) * 4), np.float32)
            vectors[0, :k], vectors[1, :k] = norm
            self._keep.append(interop.uploaded(vectors, "bmm"))
            at = self._keep[-1].data.ptr
            p.norm[:] = at, at + vectors[0].nbytes
        self._launches: dict[tuple[int, bool], Any] = {}
        self._launch: Any = None
        self._aimed: tuple[int, ...] | None = None  # addresses of the last launch
        self._lock = threading.Lock()
        self._stream, self._empty = cupy.cuda.get_current_stream, cupy.empty
        self._nothing = 0 in (m, n) or k == 0
        self._zeros = None
        if k == 0 and m * n and self._chain is not None:
            self._zeros = self._chain.on(np.int32), cupy.zeros((m, n), np.int32)
        if not self._nothing:
            step = words * 4 if self._packed else k * self._dtype.itemsize
            self._launch_for(0, step, self._absmean)
        self._made_on = self._stream().ptr
        #: Means of the rows, for calls on each stream.
        self._means = Workspaces(m if self._absmean else 0, np.float32, 0)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept in addition to the packed signs."""
        parts = self._flag, self._sums, self._columns, *self._keep[1:]
        return sum(int(part.nbytes) for part in parts) + self._means.nbytes

    def renew(self) -> None:
        """Sum the signs of the right operand again after its words changed; kernels read the words themselves in every call.

        Let ``a`` be the ones of a row and ``c`` the common ones. ``4 c - 2 a - sums >= t`` is tested as ``2 c - a >= (t + sums) / 2``.
        """
        sums = self._sums
        if sums.size and self.params.words:
            packed.code_sums(self._keep[0], 1, "bipolar", self._k, dtype="int32", out=sums)
        self._columns[: sums.size] = -sums if self._limits is None else (self._limits + sums + 1) >> 1

    def _launch_for(self, address: int, step: int, means: bool) -> Any:
        """The prepared launch for activations at this address and step, with or without mean magnitudes; compiled on first use."""
        vector = 16 if self._packed else vector_of(self._dtype, address, step)
        key = vector, means
        if key not in self._launches:
            t = self.tuning
            defines = self.defines(vector, means)
            kernel = jit.kernel(_SOURCE, "bmm_rows", defines)
            shared = t.shared_bytes(self.params.words, self.params.n, self._finish, self._packed)
            grid = -(-self._m // t.rows)
            if self._packed and not t.part_words:  # a block takes several groups of rows, one after the other
                grid = min(grid, t.blocks * jit.capability().multiprocessors)
            self._launches[key] = kernel.launch(grid, 32 * t.warps, self.params, shared=shared)
        return self._launches[key]

    def defines(self, vector: int, means: bool) -> dict[str, int]:
        """The compile-time constants for loads of `vector` bytes."""
        kind, flags = _WORDS_KIND, {"near": self.params.n <= _NEAR_COLUMNS, "norm": self._normed, "means": means}
        if not self._packed:
            kind, size = kind_of(self._dtype), self._m * self._k * self._dtype.itemsize
            flags |= {"bfloat": self._dtype.name == "bfloat16", "stream": size > jit.capability().l2_bytes}
            flags["tiny"] = self._k < 4
        return constants(self.tuning, kind, vector, self._finish, **flags)

    @property
    def fused(self) -> str:
        """A short description of how the sums are finished."""
        if self._finish == _SUMS:
            return "int32 sums"
        return f"{'thresholds' if self._finish == _THRESHOLDS else 'epilogue'} in the same kernel"

    @property
    def may_see_nan(self) -> bool:
        """Whether a call may meet NaN in the activations, or in an epilogue that produces bits."""
        floating = not self._packed and (self._dtype.kind not in "biu" or self._normed)
        return floating or (self._chain is not None and self._chain.may_see_nan)

    def nan_seen(self) -> tuple[bool, bool]:
        """Whether an activation, and whether an epilogue, was NaN since the previous call; waits for the current stream."""
        return self._flag.seen(), self._chain is not None and self._chain.may_see_nan and self._chain.nan_seen()

    def __call__(self, x: Any, out: Any = None, absmean: Any = None, row_scale: Any = None) -> Any:
        """The product with activations whose rows are contiguous.

        `absmean` (m,) receives the mean magnitudes of the rows; `row_scale` is the row scale of packed activations.
        """
        with self._lock:  # the launch's arguments are shared
            stream = self._stream().ptr
            if out is None:
                out = self._empty(self.out_shape, self.out_dtype)
            if absmean is None and self._absmean:
                absmean = self._means.on(stream).partial
            elif stream != self._made_on:
                self._means.on(stream)
            chain = self._chain
            if chain is not None:
                chain.with_operand(OperandParams(absmean if self._scale_rows and not self._packed else row_scale))
            if self._nothing:
                self._of_nothing(out, absmean)
                return out
            p = self.params
            aimed = (x.data.ptr, x.strides[0], out.data.ptr, 0 if absmean is None else absmean.data.ptr)
            if aimed == self._aimed and row_scale is None:  # nothing has changed since the last call
                self._launch(stream)
                return out
            p.x, p.x_row, p.out = x.data.ptr, x.strides[0], out.data.ptr
            p.pairs = int(p.n % 2 == 0 and p.out % 8 == 0)
            p.absmean = None if absmean is None else absmean.data.ptr
            if chain is not None:
                p.epilogue = chain.aim(out)
            self._launch = self._launch_for(p.x, p.x_row, absmean is not None)
            self._aimed = aimed if row_scale is None else None
            self._launch(stream)
        return out

    def _of_nothing(self, out: Any, absmean: Any) -> None:
        if absmean is not None:
            absmean.fill(0)
        if self._zeros is not None:
            self._zeros[0].run(self._zeros[1], out)
        elif out.size:
            out.fill(0)


def _variants_for(card: jit.Capability) -> list[dict[str, int]]:
    """Variants for float32 with every finish and alignment, 16-bit floats, bits, and small results with batch norm and in parts."""
    ways, single, half = (_SUMS, _EPILOGUE, _THRESHOLDS, _CHAIN), np.dtype(np.float32), np.dtype(np.float16)
    wide = {way: choose_tuning(1 << 20, _ITEM_COLUMNS, 8, way, single, card) for way in ways}
    found = [constants(wide[way], FLOAT, 16, way) for way in ways]
    found += [constants(wide[way], FLOAT, 8, way) for way in (_THRESHOLDS, _CHAIN)]
    for way in (_THRESHOLDS, _CHAIN):
        tuning = choose_tuning(1 << 20, _ITEM_COLUMNS, 8, way, half, card)
        found.append(constants(tuning, HALF, 8, way, bfloat=way == _CHAIN))
    for way in (_SUMS, _THRESHOLDS, _CHAIN):
        found.append(constants(choose_tuning(1 << 20, _ITEM_COLUMNS, 8, way, None, card), _WORDS_KIND, 16, way))
    small = choose_tuning(1 << 8, _ITEM_COLUMNS, 8, _CHAIN, single, card)
    found += [constants(small, FLOAT, 16, _CHAIN, norm=more, means=more) for more in (False, True)]
    parts = choose_tuning(1 << 8, _ITEM_COLUMNS, 1 << 16, _CHAIN, single, card)
    return [*found, constants(parts, FLOAT, 16, _CHAIN)]


VARIANTS = [
    variant
    for arch, chip in RELEASED.items()
    for variant in jit.variants_of(_SOURCE, "bmm_rows", _variants_for(chip.card), arch)
]
