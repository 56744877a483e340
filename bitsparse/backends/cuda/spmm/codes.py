"""Sums of packed integers of 2, 4, 8 or 16 bits on the GPU, exact without float weights, gathered as they are along streams of edges."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse._records import as_dict
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.chips import RELEASED, chip_here
from bitsparse.backends.cuda.csr.bounds import CODES
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.csr.units import edges_of_a_warp, limits_of, units_of
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.cuda.workspaces import Workspaces
from bitsparse.backends.params import OperandParams, packed_words
from bitsparse.errors import KernelError

__all__ = ["BITS", "CodeSum", "CodeTuning", "code_tuning"]

#: Widths of integers that there are kernels for.
BITS = (2, 4, 8, 16)
_GRID_Y, _THREADS = 65535, 128
_INTEGERS, _FLOATS, _CHAIN = range(3)
#: Words of a lane: 8 integers where that can be, since a row's end is dealt out by them, or 16.
_WORDS, _WIDE_WORDS = {2: 1, 4: 1, 8: 2, 16: 4}, {2: 1, 4: 2, 8: 4, 16: 4}
#: Edges of a row, on average, from which integers of 4 bits are gathered 16 at a time; those with float32 weights always are.
_LONG_ROWS = 48
#: Edges of a row that lanes of 16 bits hold at least: 255 * 256 is below 2**16; else as many as pieces ever have.
_LONGEST = {8: 256}
_MOST = 1024
_NO_OPERAND = OperandParams()


CodeParams = jit.struct("spmm/codes.cu", "CodeParams")
ChainParams = jit.struct("spmm/codes.cu", "CodeParams", optional=True)


class CodeTuning(NamedTuple):
    """What may be chosen about a sum; every choice gives the same integers.

    Attributes
    ----------
    words : int
        That a lane gathers of a neighbour: 1, 2 or 4.
    lanes : int
        Of a group, which walks a stream: a power of two up to 32.
    unroll : int
        Edges in flight, a multiple of 8; for 2 and 4 bits at most 16.
    blocks : int or None
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers; None for what they suffice for.
    span, limit, longest : int or None
        Edges and rows of a stream, edges of a row from which a warp takes it, edges of a piece of a long row (a multiple of 4, at most
        256 for 8 bits and 1024 else); None for what suits the pattern.
    """

    words: int
    lanes: int
    unroll: int = 8
    blocks: int | None = None
    span: int | None = None
    longest: int | None = None
    limit: int | None = None


def code_tuning(row_words: int, bits: int, mean: float = 0.0, weighted: bool = False) -> CodeTuning:
    """The tuning for gathered rows of so many words: as many lanes as a row has, or of the wide ones the number that leaves fewest idle.

    Parameters
    ----------
    mean : float
        Edges of a row on average.
    weighted : bool
        Edges have float32 weights.

    Examples
    --------
    >>> [code_tuning(32, 8)[:2], code_tuning(16, 4)[:2], code_tuning(8, 2)[:2], code_tuning(152, 8)[:2], code_tuning(4, 8)[:2]]
    [(2, 16), (1, 16), (1, 8), (2, 16), (2, 2)]
    >>> code_tuning(16, 4, 70.0)[:2], code_tuning(32, 8, weighted=True)[:2]
    ((2, 8), (4, 8))
    """
    words = (_WIDE_WORDS if weighted or (bits == 4 and mean >= _LONG_ROWS) else _WORDS)[bits]
    vectors = -(-row_words // words)
    if vectors <= 32:
        return CodeTuning(words, 1 << (vectors - 1).bit_length())
    # A slice reads the edges' columns once more, which is worth a lane or so.
    return CodeTuning(words, min((8, 16, 32), key=lambda lanes: (-(-vectors // lanes) * (lanes + 1), -lanes)))


def constants(
    tuning: CodeTuning,
    bits: int,
    weights: str = "none",
    *,
    mean: bool = False,
    chain: bool = False,
    signed: bool = False,
    direct: bool = False,
) -> dict[str, int]:
    """What ``spmm/codes.cu`` is compiled with for int32 indices; see :class:`CodeSum` for the arguments."""
    floats = weights == "float32"
    out = _CHAIN if chain else _FLOATS if mean or floats else _INTEGERS
    found = {"BS_BITS": bits, "BS_WORDS": tuning.words, "BS_U": tuning.unroll, "BS_OUT": out}
    extra = {"BS_MEAN": mean and (chain or floats), "BS_SIGNED": signed and bits == 8 and weights == "none"}
    found |= {name: 1 for name, wanted in (extra | {"BS_DIRECT": direct}).items() if wanted}
    found |= {} if tuning.blocks is None else {"BS_BLOCKS": tuning.blocks}
    return found | ({} if weights == "none" else {"BS_WEIGHTS": 2 if floats else 1})


class CodeSum:
    """Sums of packed integers prepared for one pattern: ``sums(words, values=None, operand=None, out=None)``.

    Building it compiles the kernel and cuts the pattern. The first call on a stream allocates what such calls work in; later ones allocate
    nothing but the result. It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Of the pattern.
    indices : cupy.ndarray or None
        As `indptr` of the schedule; None if edge e belongs to row e of the features.
    width, bits : int
        Integers of a head of a node, and bits of each.
    encoding : {"unsigned", "signed"}
    heads : int
        Whose words lie side by side, those of each padded to 16 bytes.
    mean : bool
        float32, the quotients of sums and lengths of rows; 0 for an empty one.
    weights : {"none", "int32", "float32"}
        What calls bring as values of the edges. Sums of integers must fit int32 with them, as without; with float32 ones sums are float32.
    chain : DeviceEpilogue, optional
        What becomes of the sums or means of one head: float32, or codes packed along the features. Not used by anybody else.
    tuning : CodeTuning, optional

    Attributes
    ----------
    shape, dtype
        Of the result: int32 or float32 (rows, heads * width), or the words of the chain.
    """

    def __init__(
        self,
        schedule: Schedule,
        indices: Any,
        *,
        width: int,
        bits: int,
        encoding: str,
        heads: int = 1,
        mean: bool = False,
        weights: str = "none",
        chain: DeviceEpilogue | None = None,
        tuning: CodeTuning | None = None,
    ) -> None:
        cupy = self._cupy = jit.require_cupy("spmm")
        if bits not in BITS:
            raise KernelError(
                f"spmm: integers of {bits} bits are not gathered as they are; repack them to one of {BITS}"
            )
        if chain is not None and (heads != 1 or (chain.params.out == "bits" and chain.params.axis == -2)):
            raise KernelError("spmm: a chain in the kernel of the sums takes one head and packs along the features")
        if chain is not None and weights == "float32":
            raise KernelError(
                "spmm: a chain in the kernel of the sums takes sums of integers; pass float sums to its own kernel"
            )
        self.schedule, self.chain = schedule, chain
        self.shape: tuple[int, ...] = (schedule.shape[0], heads * width)
        floats, weighted = weights == "float32", weights != "none"
        self.dtype = np.dtype(np.float32 if mean or floats else np.int32)
        if chain is not None:
            self.shape, self.dtype = chain.out_shape, chain.out_dtype
        self._stream = cupy.cuda.get_current_stream
        self._lock = threading.Lock()
        self._kernel: Any = None
        if schedule.shape[0] == 0 or heads * width == 0:
            return
        row_words = heads * packed_words(width, bits, "rows")
        if tuning is None:
            tuning = code_tuning(row_words, bits, schedule.nnz / schedule.shape[0], floats)
        self.tuning = tuning
        each = 32 * tuning.words // bits
        if chain is not None and each % 8:
            raise KernelError(f"spmm: a lane with a chain has whole octets, not {each} integers; give it more words")
        self._indices = indices if indices is None or indices.data.ptr % 16 == 0 else indices.copy()
        most = _LONGEST.get(bits, _MOST) if not weighted else _MOST
        longest = min(most, tuning.longest or limits_of(edges_of_a_warp(schedule.nnz), tuning.lanes)[1])
        self.cut = units_of(schedule, tuning.lanes, span=tuning.span, limit=tuning.limit, longest=longest)
        params = self._params = (CodeParams if chain is None else ChainParams)(
            schedule.walk_params(self._indices, tuning.lanes, self.cut.longest), self.cut.params()
        )
        params.row_bytes, params.gathered = 4 * row_words, row_words // tuning.words
        params.vectors = params.gathered
        if chain is not None and chain.params.out == "bits":  # pads are written as well
            fields = 1 if chain.params.layout == "planes" else chain.params.bits
            params.vectors = -(-(32 * chain.out_shape[-1] // fields) // each)
        self._slices = params.slices = -(-max(params.vectors, params.gathered) // tuning.lanes)
        params.heads, params.columns, params.width, params.padded = (
            heads,
            heads * width,
            width,
            32 * row_words // heads // bits,
        )
        if encoding == "signed":
            params.flip = sum(1 << (i + bits - 1) for i in range(0, 32, bits))
            params.base = 1 << (bits - 1)
        signed, direct = encoding == "signed", indices is None
        defines = schedule.defines | constants(
            tuning, bits, weights, mean=mean, chain=chain is not None, signed=signed, direct=direct
        )
        self._slot = each if weighted else each * (32 if bits == 16 else 16) // 32
        grid = -(-self.cut.warps(tuning.lanes) * 32 // _THREADS)
        across = -(-self._slices // _GRID_Y)
        defines |= CODES.blocks(defines, chip_here())
        self._kernel = jit.kernel("spmm/codes.cu", "spmm_codes", defines).launch(
            (grid, -(-self._slices // across), across), _THREADS, params
        )
        self._workspaces = Workspaces(
            self.cut.pieces * self._slices * tuning.lanes * self._slot, np.uint32, self.cut.pieces * self._slices
        )

    def __call__(self, words: Any, values: Any = None, operand: OperandParams | None = None, out: Any = None) -> Any:
        """The sums of the integers in `words`, (columns of the pattern, heads, words) or without heads.

        `operand` are float32 arrays of the device that join the chain of this call.
        """
        if out is None:
            out = self._cupy.empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        words = geometry.contiguous(words)
        if words.data.ptr % 16:
            words = words.copy()
        with self._lock:
            stream = self._stream().ptr
            partial, arrived = self._workspaces.on(stream)
            params = self._params
            params.x, params.out = words.data.ptr, out.data.ptr
            params.values = None if values is None else values.data.ptr
            params.partial, params.arrived = partial.data.ptr, arrived.data.ptr
            params.aligned = int(params.width % 4 == 0 and out.data.ptr % 16 == 0)
            if self.chain is not None:
                self.chain.with_operand(**as_dict(_NO_OPERAND if operand is None else operand))
                params.epilogue = self.chain.aim(out)
            self._kernel(stream)
        return out


def _variants() -> list[jit.Variant]:
    """Sums of integers of every width, as they are, as means and through a chain; signed ones; values of edges; int64 indices."""
    large, tunings = {"BS_LARGE": 1}, {bits: code_tuning(32, bits) for bits in BITS}
    found = [constants(tunings[bits], bits) for bits in BITS]
    found += [constants(tunings[bits], bits, chain=True) for bits in BITS[:3]]
    found += [constants(code_tuning(32, 4, _LONG_ROWS), 4, chain=chain) for chain in (False, True)]
    eight = tunings[8]
    found += [constants(eight, 8, mean=True), constants(eight, 8, mean=True, chain=True)]
    found += [constants(eight, 8, "int32"), constants(eight, 8, signed=True)]
    found += [constants(code_tuning(32, bits, weighted=True), bits, "float32") for bits in (4, 8)]
    found += [large | constants(eight, 8), large | constants(tunings[4], 4, chain=True)]
    return [
        variant
        for arch, chip in RELEASED.items()
        for variant in jit.variants_of(
            "spmm/codes.cu", "spmm_codes", [one | CODES.blocks(one, chip) for one in found], arch
        )
    ]


VARIANTS = _variants()
