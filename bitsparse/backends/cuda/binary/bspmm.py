"""Sums of one-bit features over 0/1 patterns on the GPU, as integers, as bits by thresholds, or after the chain of an epilogue."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.binary.bspmm_params import (
    THREADS,
    TILE_TUNING,
    ChainParams,
    CountParams,
    CountTuning,
    Deal,
    TileChainParams,
    TileParams,
    constants,
    deal,
    device_chain,
    set_thresholds,
    shape_of_row,
    slot_planes,
    tuning_of,
)
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr.bounds import COUNTS, TILES
from bitsparse.backends.cuda.csr.schedule import Cut, Schedule, Workspaces
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.params import METHODS, EpilogueParams, OperandParams, Thresholds, packed_words
from bitsparse.errors import KernelError
from bitsparse.jit import cupy

_OUTPUTS = {"int32": 0, "bits": 1, "float32": 2}
_CHAIN = 2
#: Warps that fit on a multiprocessor, given the registers of the kernels over edges and over tiles.
_WARPS, _TILE_WARPS = 16, 12
_WARP = 32
#: The most edges per lane of a row that is dealt out, and edges of a piece of a longer row.
_SHORT, _PIECE = 64, 256
#: Lanes that share the four results of a strip, and the most words of each.
_STRIP, _TILE_WORDS = 4, 2
_NIBBLES = [bin(n).count("1") for n in range(16)]


class TileSchedule:
    """How the kernel over FRDC's tiles walks one pattern.

    It is built once for a pattern and kept by the pattern's owner; the arrays must not change.

    Parameters
    ----------
    indptr, tiles : cupy.ndarray
        Starts of strips of four rows, which must be valid; and tiles, uint16.
    shape : tuple of int
        Shape of the matrix.

    Attributes
    ----------
    strips : Schedule
        Schedule of the tiles.
    edges : cupy.ndarray of int32
        Edges of each row.
    """

    def __init__(self, indptr: Any, indices: Any, tiles: Any, shape: tuple[int, int]) -> None:
        self.shape, strips = (int(shape[0]), int(shape[1])), int(indptr.size) - 1
        self.strips = Schedule(indptr, indices, (strips, -(-self.shape[1] // _STRIP)), int(tiles.size))
        self.tiles = interop.aligned(tiles)
        self.edges = cupy.zeros(strips * _STRIP, np.int32)
        counts, before = cupy.asarray(_NIBBLES, np.int32), cupy.zeros(int(tiles.size) + 1, np.int64)
        for row in range(_STRIP):
            before[1:] = cupy.cumsum(counts[(tiles >> (_STRIP * row)) & 15], dtype=np.int64)
            self.edges[row::_STRIP] = before[indptr[1:]] - before[indptr[:-1]]


class BinarySum:
    """Prepared sums of one-bit features over a pattern: ``sums(words, out=None)``.

    Building it compiles the kernel and cuts up the pattern. The first call on a stream allocates workspace; later calls allocate nothing
    but the result. It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule or TileSchedule
        Schedule of the pattern.
    indices : cupy.ndarray
        As `indptr` of the schedule: columns of the edges, or blocks of four columns of the tiles.
    features : int
        Features of a node.
    bipolar : bool
        Whether bits stand for -1 and +1 instead of 0 and 1.
    kernel : {"twice-plus", "plus-minus", "select"}
    output : {"int32", "float32", "bits"}
        Sums (m, features); the chain's floats (m, features); or words (m, 1, W), by `thresholds` if given, else by the chain.
    thresholds : Thresholds, optional
        Thresholds, with arrays on the host or the device.
    params : EpilogueParams, optional
        The chain of `output` "float32", and of "bits" without thresholds (then it binarises), with vectors on the host.
    operand : OperandParams, optional
        More factors and terms of the chain, as float32 arrays on the device.
    mean : bool
        Whether the chain starts from sums divided by the lengths of the rows (0 for an empty row).
    tuning : CountTuning, optional

    Attributes
    ----------
    shape, dtype
        Shape and dtype of the result.
    cut : Cut or Deal
    """

    def __init__(
        self,
        schedule: Schedule | TileSchedule,
        *,
        features: int,
        bipolar: bool,
        kernel: str = "twice-plus",
        output: str = "int32",
        thresholds: Thresholds | None = None,
        params: EpilogueParams | None = None,
        operand: OperandParams | None = None,
        mean: bool = False,
        tuning: CountTuning | None = None,
    ) -> None:
        rows = schedule.shape[0]
        self.schedule, self.features, self.output = schedule, features, output
        self._width = packed_words(features, 1, "planes")
        words = output == "bits"
        self.shape = (rows, 1, self._width) if words else (rows, features)
        self.dtype = np.dtype("uint32" if words else output)
        self._stream = cupy.cuda.get_current_stream
        self._lock = threading.Lock()
        self._kernel: Any = None
        self.cut: Cut | Deal | None = None
        self._slot = 0
        self._chain: DeviceEpilogue | None = None
        chained = output == "float32" or (words and thresholds is None)
        if kernel not in METHODS:
            raise KernelError(f"bspmm: there is no kernel {kernel!r}; choose among {', '.join(METHODS)}")
        if kernel != METHODS[0] and isinstance(schedule, TileSchedule):
            raise KernelError(f"bspmm: kernel {kernel!r} takes edges, not tiles; give it the CSR pattern")
        if mean and not chained:
            raise KernelError("bspmm: a mean is a float; give its thresholds for the sums, or ask for float32")
        if 0 in self.shape:
            return
        if chained:
            self._chain = device_chain(params, operand, (rows, features), words)
        self.tuning = tuning
        chain_too = self._chain is not None
        if isinstance(schedule, TileSchedule):
            self._argument: Any = TileChainParams() if chain_too else TileParams()
            raw = self._argument.count
        else:
            raw = self._argument = ChainParams() if chain_too else CountParams()
        self._params = raw
        raw.bipolar, raw.mean = int(bipolar), int(mean)
        self._keep = None if thresholds is None or chained else set_thresholds(raw, thresholds, features, bipolar)
        self._prepare(_CHAIN if chained else _OUTPUTS[output], kernel)

    def _prepare(self, output: int, kernel: str) -> None:
        raw = self._params
        raw.rows, raw.width, raw.features = self.shape[0], self._width, self.features
        if isinstance(self.schedule, TileSchedule):
            name, defines, grid = self._over_tiles(self.schedule, output)
        elif kernel == METHODS[0]:
            name, defines, grid = self._over_edges(self.schedule, output)
        else:
            name, defines = "bspmm_methods", {"BS_OUT": output, "BS_METHOD": METHODS.index(kernel)}
            grid = (-(-self.shape[0] * _WARP // THREADS), self._width, 1)
            jit.filled(raw.streams, indptr=self.schedule.indptr, indices=self.schedule.indices)
            defines |= self.schedule.defines
        threads = THREADS if self.tuning is None else self.tuning.threads
        self._kernel = jit.kernel(f"binary/{name}.cu", name, defines).launch(grid, threads, self._argument)
        pieces = 0 if self.cut is None else self.cut.pieces
        self._workspaces = Workspaces(pieces * self._slot, np.uint32, pieces * self._params.slices)

    def _over_edges(self, schedule: Schedule, output: int) -> tuple[str, dict[str, int], tuple[int, int, int]]:
        """Name, constants and grid of the kernel over edges."""
        tuning = self.tuning or tuning_of(schedule.shape[0], schedule.nnz, self.features, chip_here().bit_sums)
        piece_team = tuning.piece_team or tuning.team
        words, across, slices = shape_of_row(self.features, max(tuning.team, piece_team))
        # Rows and pieces are short enough for the counters.
        most = tuning.team * ((1 << tuning.planes) - 4), piece_team * ((1 << tuning.planes) - 4)
        cut = self._cut_for(schedule, tuning, across, slices, most, _WARPS)
        if piece_team == tuning.team:
            blocks = -(-(cut.streams + cut.pieces) * (tuning.team << across) // tuning.threads)
        else:
            self._params.piece_blocks = -(-cut.pieces * (piece_team << across) // tuning.threads)
            blocks = self._params.piece_blocks - (-cut.streams * (tuning.team << across) // tuning.threads)
        longest = min(schedule.nnz, schedule.shape[1])
        self._slot = slices * (words << across) * slot_planes(longest)
        defines = constants(tuning, output, words, bool(self._params.limits), longest=longest) | schedule.defines
        return "bspmm_count", defines | COUNTS.blocks(defines, chip_here()), (blocks, slices, 1)

    def _over_tiles(self, schedule: TileSchedule, output: int) -> tuple[str, dict[str, int], tuple[int, int, int]]:
        """Name, constants and grid of the kernel over tiles; a tile adds up to four to a count."""
        tuning, strips = self.tuning or TILE_TUNING, schedule.strips
        words, across, slices = shape_of_row(self.features, _STRIP, _TILE_WORDS)
        most = 16 * (((1 << tuning.planes) - 1) // 16)
        cut = self._cut_for(strips, tuning, across, slices, (most, most), _TILE_WARPS)
        self._slot = slices * (_STRIP * words << across) * slot_planes(schedule.shape[1])
        self._argument.tiles, self._argument.edges = schedule.tiles.data.ptr, schedule.edges.data.ptr
        blocks = -(-(cut.streams + cut.pieces) * (_STRIP << across) // tuning.threads)
        defines = constants(tuning, output, words, bool(self._params.limits), self._width, schedule.shape[1])
        defines |= strips.defines
        return "bspmm_tiles", defines | TILES.blocks(defines, chip_here()), (blocks, slices, 1)

    def _cut_for(
        self, schedule: Schedule, tuning: CountTuning, across: int, slices: int, most: tuple[int, int], warps: int
    ) -> Cut | Deal:
        """The pattern cut into streams and pieces, or dealt out; `most` are the most edges of a row and of a piece.

        `across` is log2 of the lanes along a row.
        """
        raw, lanes = self._params, tuning.team
        self.tuning, raw.across, raw.slices = tuning, across, slices
        if tuning.window:
            short, longest = min(tuning.span or _SHORT * lanes, most[0]), min(tuning.longest or _PIECE, most[1])
            batch = lanes * tuning.unroll
            dealt = self.cut = deal(schedule, short=short, longest=longest, batch=batch, window=tuning.window)
            raw.streams = dealt.params(schedule, lanes.bit_length() - 1 + across)
            raw.order = dealt.order.data.ptr
            raw.bounds = None if dealt.bounds is None else dealt.bounds.data.ptr
            raw.piece_edges = dealt.piece_edges.data.ptr
            return dealt
        cut = schedule.cut(lanes << across, warps=warps, span=tuning.span, longest=tuning.longest)
        if cut.longest > min(most):
            cut = schedule.cut(lanes << across, warps=warps, span=tuning.span, longest=min(most))
        raw.streams = schedule.params(cut, lanes << across)
        self.cut = cut
        return cut

    def __call__(self, words: Any, out: Any = None) -> Any:
        """The sums of `words`, uint32 (n, 1, W) or (n, W), C-contiguous and aligned to 16 bytes, with zero pad bits."""
        if out is None:
            out = cupy.empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        words = interop.aligned(words)
        with self._lock:
            stream = self._stream().ptr
            work = self._workspaces.on(stream)
            raw = self._params
            raw.words, raw.out = words.data.ptr, out.data.ptr
            raw.aligned = int(self.features % 4 == 0 and out.data.ptr % 16 == 0)
            raw.partial, raw.arrived = work.partial.data.ptr, work.arrived.data.ptr
            if self._chain is not None:
                raw.epilogue = self._chain.aim(out)
            self._kernel(stream)
        return out

    def nan_seen(self) -> bool:
        """Whether a product since the previous call met NaN that should become a bit; waits for the current stream."""
        return self._chain is not None and self._chain.nan_seen()


def _variants() -> list[jit.Variant]:
    """Variants for sums, bits by one or many thresholds and chains, for several lane and team widths, for tiles and other methods."""
    large, short = {"BS_LARGE": 1}, tuning_of(1 << 20, 1 << 23, 128)
    plain = (_OUTPUTS["int32"], _OUTPUTS["bits"])
    found = [constants(short, output, words) for output in plain for words in (4, 2, 1)]
    found += [large | constants(short, output, 4) for output in plain]
    found += [constants(short, output, 4, longest=1 << 30) for output in plain]
    found += [constants(short, _OUTPUTS["bits"], 4, many=True), constants(short, _CHAIN, 4)]
    teams = (tuning_of(1 << 20, 1 << 23, 256), tuning_of(1 << 17, 5 << 20, 128), tuning_of(1 << 15, 1 << 23, 128))
    found += [constants(team, output, 4) for team in teams for output in plain]
    tiles = ((plain[0], False), (plain[1], False), (plain[1], True))
    strips = [constants(TILE_TUNING, output, 2, many, 4) for output, many in tiles]
    strips.append(constants(TILE_TUNING, plain[0], 2, False, 4, 1 << 30))
    methods = [{"BS_METHOD": way, "BS_OUT": output} for way, output in ((1, plain[0]), (2, plain[1]), (2, _CHAIN))]
    return [
        *COUNTS.variants("binary/bspmm_count.cu", "bspmm_count", found),
        *TILES.variants("binary/bspmm_tiles.cu", "bspmm_tiles", strips),
        *jit.variants_of("binary/bspmm_methods.cu", "bspmm_methods", methods),
    ]


VARIANTS = _variants()
