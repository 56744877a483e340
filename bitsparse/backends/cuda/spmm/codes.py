"""Sums of packed features on the GPU, gathered without unpacking along streams of edges: integers (exact unless weighted) and bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse._records import as_dict, replace
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr.bounds import CODES, PACKED
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.csr.sums import StreamedSum, Tuning
from bitsparse.backends.cuda.csr.units import edges_of_a_warp, limits_of
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.cuda.finish.floats import Behind, Finish, finish_constants
from bitsparse.backends.params import CodeSumKind, OperandParams, SumScales, packed_words

#: Bit widths of integers for which there are kernels.
BITS = (2, 4, 8, 16)
_INTEGERS, _FLOATS, _CHAIN = range(3)
#: Words of a lane by bit width: 8 integers if possible, since ends of rows are processed in eights, or 16 in the wide form.
_WORDS, _WIDE_WORDS = {2: 1, 4: 1, 8: 2, 16: 4}, {2: 1, 4: 2, 8: 4, 16: 4}
#: Integers of 4 bits are gathered 16 at a time if rows have at least this many edges on average; with float32 weights they always are.
_LONG_ROWS = 48
#: The most edges of a piece, and of a row that is not for a whole warp: lanes of 16 bits hold the sum of so many. Those of a warp that
#: shares a row of 8 bits are emptied in time.
_MOST, _MOST_ALONE = 1024, {8: 256}
_NO_OPERAND = OperandParams()
#: Weights with float32 sums, and weights of the gathered rows instead of the edges.
_FLOAT_WEIGHTS, _NODE_WEIGHTS = ("float32", "row"), ("nodes", "row")
_WEIGHTS = {"none": 0, "edge": 1, "general": 2}
#: Words of a line of the L1, and the edges per gathered row at which it pays to pad rows so that none crosses a line.
_LINE_WORDS, _OFTEN = 32, 16
#: With at least this many features, a lane holds eight instead of four: fewer instructions per edge, but fewer lanes for a row.
_WIDE = 64

CodeParams = jit.struct("spmm/codes.cu", "CodeParams")
PackedParams = jit.struct("spmm/packed.cu", "PackedParams")
ChainParams = jit.struct("spmm/codes.cu", "CodeParams", optional=True)


def code_tuning(row_words: int, bits: int, mean: float = 0.0, weighted: bool = False) -> Tuning:
    """The tuning for gathered rows of `row_words` words: a lane per vector or, for more than 32, the number that leaves fewest lanes idle.

    Parameters
    ----------
    mean : float
        Edges of a row on average.
    weighted : bool
        Whether edges have float32 weights, or nodes have factors.

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
        lanes = 1 << (vectors - 1).bit_length()
    else:
        # Each slice reads the columns of the edges again, which costs about as much as one more lane.
        lanes = min((8, 16, 32), key=lambda lanes: (-(-vectors // lanes) * (lanes + 1), -lanes))
    return Tuning(words, lanes, threads=64)  # small blocks free their place sooner than larger ones


def constants(
    tuning: Tuning,
    bits: int,
    weights: str = "none",
    *,
    mean: bool = False,
    chain: bool = False,
    signed: bool = False,
    direct: bool = False,
    per_head: bool = False,
    scaled: bool = False,
    several: bool = False,
) -> dict[str, int]:
    """Constants of ``spmm/codes.cu`` for int32 indices; see :class:`CodeSum` for the arguments."""
    floats, nodes = weights in _FLOAT_WEIGHTS, weights in _NODE_WEIGHTS
    out = _CHAIN if chain else _FLOATS if mean or floats or scaled else _INTEGERS
    found = tuning.defines | {"BS_BITS": bits, "BS_WORDS": tuning.load, "BS_OUT": out}
    found |= jit.flags(
        mean=mean and (chain or floats or scaled), scaled=scaled, signed=signed and bits == 8 and weights == "none"
    )
    found |= jit.flags(direct=direct, nodes=nodes, per_head=per_head, several=several)
    return found | jit.flags(weights=0 if weights == "none" else 2 if floats else 1)


def pitch_of(row_words: int, edges: float) -> int:
    """The best stride in words for rows of `row_words` words, each gathered by `edges` edges on average: short rows stay within one line.

    Examples
    --------
    >>> [pitch_of(words, 100.0) for words in (4, 12, 16, 20, 32, 152)], pitch_of(12, 2.0)
    ([4, 16, 16, 32, 32, 152], 12)
    """
    if row_words > _LINE_WORDS or edges < _OFTEN:
        return row_words
    return 1 << (row_words - 1).bit_length()


def takes_heads() -> bool:
    """Whether the current device by default gathers integers without unpacking if each edge and head has a weight."""
    return chip_here().rows.codes_per_head


class CodeSum(StreamedSum):
    """Sums of packed integers prepared for one pattern: ``sums(words, values=None, operand=None, out=None)``.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the pattern.
    indices : cupy.ndarray or None
        As `indptr` of the schedule; None if edge e belongs to row e of the features.
    kind : CodeSumKind
        Kind of the sums. The words of heads are adjacent, and those of each head are padded to 16 bytes.
    chain : DeviceEpilogue, optional
        The epilogue of the sums or means of one head: float32, or codes packed along the features. Nothing else may use this object.
    tuning : Tuning, optional
        At most 16 edges in flight for 2 and 4 bits, and pieces of at most 1024 edges.

    The result is int32 or float32 (rows, heads * width), or the words of the chain.
    """

    def __init__(
        self,
        schedule: Schedule,
        kind: CodeSumKind,
        *,
        chain: DeviceEpilogue | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        bits, encoding, width, heads, mean, weights, per_head, scaled = kind
        floats, weighted = weights in _FLOAT_WEIGHTS, weights != "none"
        shape: tuple[int, ...] = (schedule.shape[0], heads * width)
        dtype = np.dtype(np.float32 if mean or floats or scaled else np.int32)
        super().__init__(*((shape, dtype) if chain is None else (chain.out_shape, chain.out_dtype)))
        self.chain = chain
        if 0 in shape:
            return
        row_words = heads * packed_words(width, bits, "rows")
        if tuning is None:
            tuning = code_tuning(row_words, bits, schedule.nnz / schedule.shape[0], floats or weights in _NODE_WEIGHTS)
        each = 32 * tuning.load // bits
        longest = min(_MOST, tuning.longest or limits_of(edges_of_a_warp(schedule.nnz), tuning.lanes)[1])
        alone = _MOST if weighted else _MOST_ALONE.get(bits, _MOST)
        limit = None if tuning.limit is None else min(tuning.limit, alone)
        tuning = replace(tuning, longest=longest, limit=limit)
        # Other kernels would have no registers left for the next row.
        several = bits == 8 and not weighted and chain is None and not schedule.large
        params = self._walk(CodeParams if chain is None else ChainParams, schedule, tuning, several)
        params.vectors = params.gathered = row_words // tuning.load
        if chain is not None and chain.params.out == "bits":  # padding is written too
            fields = 1 if chain.params.layout == "planes" else chain.params.bits
            params.vectors = -(-(32 * chain.out_shape[-1] // fields) // each)
        slices = params.slices = -(-max(params.vectors, params.gathered) // tuning.lanes)
        params.heads, params.columns, params.width = heads, heads * width, width
        params.padded = 32 * row_words // heads // bits
        signed = encoding == "signed"
        if signed:
            params.flip = sum(1 << (i + bits - 1) for i in range(0, 32, bits))
            params.base = 1 << (bits - 1)
        forms = {"mean": mean, "chain": chain is not None, "signed": signed, "direct": schedule.indices is None}
        forms["scaled"], forms["several"] = scaled, self._each > 1
        forms["per_head"] = per_head and heads > 1
        defines = schedule.defines | constants(tuning, bits, weights, **forms)
        kernel = CODES.kernel("spmm/codes.cu", "spmm_codes", defines)
        slot = each if weighted or bits == 8 else each * (32 if bits == 16 else 16) // 32
        self._prepare(kernel, params, slices, (slices * tuning.lanes * slot, np.uint32), slices)

    def __call__(
        self,
        words: Any,
        values: Any = None,
        operand: OperandParams | None = None,
        out: Any = None,
        scales: SumScales | None = None,
    ) -> Any:
        """The sums of the integers in `words`, (columns of the pattern, heads, words) or without heads; rows may have more words.

        `operand` holds float32 device arrays that this call adds to the chain; `scales` are this call's scales, for a scaled kind.
        """
        if out is None:
            out = self._empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        words = interop.aligned(words)
        with self._lock:
            params = self._params
            params.values = None if values is None else values.data.ptr
            params.row_bytes = words.itemsize * math.prod(words.shape[1:])
            params.aligned = int(params.width % 4 == 0 and out.data.ptr % 16 == 0)
            if scales is not None:
                jit.filled(params, **as_dict(scales))
                params.aligned &= int(scales.own is None or scales.own.data.ptr % 16 == 0)
            if self.chain is not None:
                self.chain.with_operand(_NO_OPERAND if operand is None else operand)
                params.epilogue = self.chain.aim(out)
            self._enqueue(words, out)
        return out


def packed_tuning(features: int, general: bool = False) -> Tuning:
    """The tuning for rows of `features` features; `general` if columns have factors.

    Examples
    --------
    >>> packed_tuning(128)[:2], packed_tuning(256, True)[:2], packed_tuning(3)[:2]
    ((8, 16), (4, 32), (4, 1))
    """
    lane = 8 if features >= _WIDE and not general else 4
    return Tuning(lane, min(32, 1 << (-(-features // lane) - 1).bit_length()))


def packed_constants(tuning: Tuning, weights: str = "none", *, bipolar: bool = True) -> dict[str, int]:
    """Constants of ``spmm/packed.cu`` for int32 indices, without those of its finish."""
    return tuning.defines | {"BS_LANE": tuning.load, "BS_WEIGHTS": _WEIGHTS[weights], "BS_BIPOLAR": int(bipolar)}


class PackedSum(StreamedSum):
    """Sums of packed features prepared for one pattern: ``sums(words, values=None, col_scale=None, out=None, behind=None)``.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the pattern.
    indices : cupy.ndarray
        As `indptr` of the schedule.
    features : int
        Features of a node, one bit each.
    encoding : {"unsigned", "bipolar"}
    finish : Finish
        The finish of the sums or means.
    values : cupy.ndarray of float32 (nnz,), optional
        Default weights of the edges; calls may pass others.
    weights : {"none", "edge", "general"}
        No weights, values of edges, or also factors of columns (``col_scale`` of the calls, (columns,) float32).
    mean : bool
    tuning : Tuning, optional

    Notes
    -----
    Edges are added in order, with one rounding for each inexact product and each sum. `schedule` cuts long rows into pieces, and the sums
    of pieces are added in order. Every run gives the same bits.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        features: int,
        encoding: str,
        finish: Finish,
        values: Any = None,
        weights: str = "none",
        mean: bool = False,
        tuning: Tuning | None = None,
    ) -> None:
        super().__init__(finish.out_shape, finish.out_dtype)
        self.finish = finish
        self._features, self._values = features, values
        self.tuning = tuning = packed_tuning(features, weights == "general") if tuning is None else tuning
        if 0 in (schedule.shape[0], features):
            return
        vectors = -(-features // tuning.load)
        slices = -(-vectors // tuning.lanes)
        params = self._walk(PackedParams, schedule, tuning)
        params.row_bytes = 4 * packed_words(features, 1, "planes")
        params.vectors, params.slices, params.finish = vectors, slices, finish.struct
        defines = schedule.defines | packed_constants(tuning, weights, bipolar=encoding == "bipolar")
        defines |= finish.defines | finish.pads(tuning.lanes, slices, tuning.load)
        if mean and finish.mode != 2:  # the sign of a mean is that of the sum
            defines["BS_MEAN"] = 1
        kernel = PACKED.kernel("spmm/packed.cu", "spmm_packed", defines)
        self._prepare(kernel, params, slices, (slices * tuning.lanes * tuning.load, np.float32), slices)

    def __call__(
        self, words: Any, values: Any = None, col_scale: Any = None, out: Any = None, behind: Behind | None = None
    ) -> Any:
        """The sums of the features in `words`, (columns, W) or (columns, 1, W), C-contiguous."""
        if out is None:
            out = self._empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        words = interop.contiguous(words)
        values = self._values if values is None else values
        with self._lock:
            params = self._params
            params.values = None if values is None else values.data.ptr
            params.col_scale = None if col_scale is None else col_scale.data.ptr
            params.aligned = int(self._features % 4 == 0 and out.data.ptr % 16 == 0)
            self.finish.aim(params.finish, behind)
            self._enqueue(words, out)
        return out


def _code_variants() -> list[jit.Variant]:
    """Variants for sums of integers of every width, means, chains, signed integers, values of edges and int64 indices."""
    large, tunings = {"BS_LARGE": 1}, {bits: code_tuning(32, bits) for bits in BITS}
    found = [constants(tunings[bits], bits) for bits in BITS]
    found += [constants(tunings[bits], bits, chain=True) for bits in BITS[:3]]
    found += [constants(code_tuning(32, 4, _LONG_ROWS), 4, chain=chain) for chain in (False, True)]
    eight = tunings[8]
    found += [constants(eight, 8, mean=True), constants(eight, 8, mean=True, chain=True)]
    found += [constants(eight, 8, "int32"), constants(eight, 8, signed=True)]
    found += [constants(code_tuning(32, bits, weighted=True), bits, "nodes", scaled=True) for bits in (4, 8)]
    found += [constants(code_tuning(32, bits, weighted=True), bits, "row", scaled=True) for bits in (2, 4, 8)]
    found += [constants(eight, 8, signed=True, scaled=True), constants(tunings[4], 4, scaled=True)]
    found += [constants(eight, 8, mean=mean, several=True) for mean in (False, True)]
    found += [constants(eight, 8, mean=mean, signed=True, scaled=True, several=True) for mean in (False, True)]
    found += [constants(code_tuning(32, bits, weighted=True), bits, "float32") for bits in (4, 8)]
    found += [constants(code_tuning(32, 8, weighted=True), 8, "float32", per_head=True)]
    found += [large | constants(eight, 8), large | constants(tunings[4], 4, chain=True)]
    return CODES.variants("spmm/codes.cu", "spmm_codes", found)


def _packed_variants() -> list[jit.Variant]:
    """Variants for weighted sums as floats or signs, narrow and wide rows, signs of plain sums, factors of columns and int64 indices."""
    narrow, wide = packed_tuning(32), packed_tuning(128)
    found = [packed_constants(tuning, "edge") | finish_constants(1) for tuning in (narrow, wide)]
    found += [
        packed_constants(tuning, "edge") | finish_constants(2, pads=pads) for tuning, pads in ((narrow, 2), (wide, 0))
    ]
    found += [packed_constants(narrow) | finish for finish in (finish_constants(1), finish_constants(3, pads=2))]
    found += [packed_constants(packed_tuning(128, True), "general") | finish_constants(1)]
    found += [packed_constants(narrow, "edge") | finish_constants(1) | {"BS_LARGE": 1}]
    return PACKED.variants("spmm/packed.cu", "spmm_packed", found)


VARIANTS = _code_variants() + _packed_variants()
