"""What the kernels of one-bit sums are told: their parameters, the chain of an epilogue, thresholds in bits, what may be tuned."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse._records import as_dict, replace
from bitsparse.backends.cuda.bits import pack as cuda_bits
from bitsparse.backends.cuda.chips import H200, BitRates
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.params import EpilogueParams, OperandParams, Thresholds, packed_words
from bitsparse.errors import KernelError

__all__ = [
    "THREADS",
    "ChainParams",
    "CountParams",
    "CountTuning",
    "Estimate",
    "TileChainParams",
    "TileParams",
    "TileTuning",
    "constants",
    "device_chain",
    "estimates",
    "set_thresholds",
    "shape_of_row",
    "tile_constants",
    "tuning_of",
]

#: Threads of a block at most.
THREADS = 128
_WARP = 32
#: Rows that are put in order as a whole, else in windows of so many.
_FEW_ROWS, _WHOLE, _WINDOW = 1 << 17, 1 << 30, 8192
#: Blocks for which the registers suffice with a chain, and with numbers from teams of two.
_INTEGERS, _CHAIN, _NUMBERS_BLOCKS = 0, 2, 4


CountParams = jit.struct("binary/bspmm_count.cuh", "CountParams")
ChainParams = jit.struct("binary/bspmm_count.cuh", "CountParams", optional=True)
TileParams = jit.struct("binary/bspmm_tiles.cu", "TileParams")
TileChainParams = jit.struct("binary/bspmm_tiles.cu", "TileParams", optional=True)


class CountTuning(NamedTuple):
    """What may be chosen about a sum; every choice gives the same bits.

    Attributes
    ----------
    team : int
        Lanes that take edges of a row at the same time: a power of two up to 32.
    unroll : int
        Edges in flight of a lane: 4, 8 or 16.
    planes : int
        Of a lane's counters, 4 to 8: a row, or a piece of one, has fewer than ``team << planes`` edges.
    blocks : int
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers.
    threads : int
        Of a block, 32 to 128.
    few : int
        Planes of a lane's counters that most rows need.
    piece_team : int
        Lanes that take edges of a piece at the same time, 0 for as many as `team`.
    window : int
        If not 0, rows are dealt out one by one to teams, in the order of their lengths within so many of them.
    span, longest : int or None
        Edges and rows of a stream, edges of a piece of a long row; None for what suits the pattern. Of rows that are dealt out, those of
        more than `span` edges are cut into pieces.
    """

    team: int = 4
    unroll: int = 8
    planes: int = 8
    blocks: int = 4
    threads: int = THREADS
    few: int = 4
    piece_team: int = 0
    window: int = 0
    span: int | None = None
    longest: int | None = None


class TileTuning(NamedTuple):
    """The same for tiles, of which four lanes take some at a time.

    Attributes
    ----------
    words : int
        Of a lane: 1 or 2.
    unroll : int
        Tiles in flight of a lane, a multiple of 4.
    planes, blocks, threads, window, span, longest
        As in :class:`CountTuning`, with tiles and strips for edges and rows.
    """

    words: int = 2
    unroll: int = 4
    planes: int = 7
    blocks: int = 3
    threads: int = THREADS
    window: int = 0
    span: int | None = None
    longest: int | None = None

    @property
    def most(self) -> int:
        """Tiles of a piece at most; each counts up to four.

        Examples
        --------
        >>> TileTuning().most
        112
        """
        return 16 * (((1 << self.planes) - 1) // 16)

    def shape_of_row(self, features: int) -> tuple[int, int, int]:
        """As :func:`shape_of_row`.

        Examples
        --------
        >>> [TileTuning().shape_of_row(n) for n in (1, 33, 128, 129, 512, 5000)]
        [(1, 0, 1), (2, 0, 1), (2, 1, 1), (2, 2, 1), (2, 3, 1), (2, 3, 10)]
        """
        filled = -(-features // _WARP) if features <= 64 else packed_words(features, 1, "planes")
        words = min(self.words, filled)
        vectors = filled // words
        across = min((vectors - 1).bit_length(), 3)
        return words, across, -(-vectors >> across)


def tuning_of(rows: int, nnz: int, features: int, rates: BitRates = H200.bit_sums) -> CountTuning:
    """What a chip was quickest with: teams as wide as rows are long, rows dealt out where they are short or few.

    Examples
    --------
    >>> [tuning_of(*size, 128).team for size in ((50_515, 1_638_396), (334_925, 1_686_092), (232_965, 114_615_892))]
    [4, 2, 16]
    """
    mean = nnz / max(1, rows)
    if mean >= rates.long_rows:
        return CountTuning(16, 8, 6, 5)
    if mean >= rates.middling_rows and nnz >= rates.many_edges:
        return CountTuning(4, 8, 7, 5, piece_team=16, span=256, longest=480)
    across = shape_of_row(features, 16)[1]
    lanes, unroll, blocks, each, longest = rates.dealt[(mean >= 16) + (mean >= 32)]
    team = max(1, lanes >> across)
    window = _WHOLE if rows <= _FEW_ROWS else _WINDOW
    return CountTuning(team, unroll, 7, blocks, piece_team=16, window=window, span=each * team, longest=longest)


def shape_of_row(features: int, team: int) -> tuple[int, int, int]:
    """(words of a lane, log2 of the lanes beside each other, slices) for rows of so many bits.

    Examples
    --------
    >>> [shape_of_row(n, 4) for n in (1, 33, 128, 129, 512, 5000)]
    [(1, 0, 1), (2, 0, 1), (4, 0, 1), (4, 1, 1), (4, 2, 1), (4, 3, 5)]
    """
    if features <= 64:
        return (1 if features <= 32 else 2), 0, 1
    vectors = packed_words(features, 1, "planes") // 4
    across = min((vectors - 1).bit_length(), (_WARP // team).bit_length() - 1)
    return 4, across, -(-vectors >> across)


def constants(tuning: CountTuning, output: int, words: int, many: bool = False) -> dict[str, int]:
    """What ``binary/bspmm_count.cu`` is compiled with, for int32 indices; `many` if features have thresholds of their own."""
    many_registers = output == _CHAIN or (output == _INTEGERS and tuning.team == 2)
    return {
        "BS_OUT": output,
        "BS_LIMITS": int(many),
        "BS_WORDS": words,
        "BS_TEAM": tuning.team,
        "BS_PIECE_TEAM": tuning.piece_team or tuning.team,
        "BS_U": tuning.unroll,
        "BS_PLANES": tuning.planes,
        "BS_FEW": tuning.few,
        "BS_BLOCKS": min(tuning.blocks, _NUMBERS_BLOCKS) if many_registers else tuning.blocks,
    }


def tile_constants(tuning: TileTuning, output: int, words: int, width: int, many: bool = False) -> dict[str, int]:
    """What ``binary/bspmm_tiles.cu`` is compiled with, as :func:`constants`."""
    return {
        "BS_OUT": output,
        "BS_LIMITS": int(many),
        "BS_WORDS": words,
        "BS_TEAM": 4,
        "BS_U": tuning.unroll,
        "BS_PLANES": tuning.planes,
        "BS_WIDTH": width,
        "BS_BLOCKS": tuning.blocks,
    }


class Estimate(NamedTuple):
    """A kernel that can compute a sum, and microseconds that it takes about."""

    kernel: str
    cost: float


def estimates(
    shape: tuple[int, int],
    nnz: int,
    features: int,
    *,
    tiles: int | None = None,
    output: str = "bits",
    rates: BitRates = H200.bit_sums,
) -> list[Estimate]:
    """The kernels over edges ("csr") and over FRDC's tiles ("frdc"), the quicker one first by what was measured of a chip.

    Parameters
    ----------
    shape, nnz
        Of the pattern.
    features : int
    tiles : int, optional
        Of the pattern's FRDC form, if there is one.
    output : str
        As for ``BinarySum``.
    rates : BitRates, optional

    Examples
    --------
    >>> [e.kernel for e in estimates((372_474, 372_474), 24_574_995, 128, tiles=2_931_610)]
    ['csr', 'frdc']
    >>> [e.kernel for e in estimates((100_000, 100_000), 16_000_000, 128, tiles=1_000_000)]
    ['frdc', 'csr']
    """
    stored = features / 8 if output == "bits" else 4.0 * features
    moved = rates.start + shape[0] * stored / rates.stored
    vectors = packed_words(features, 1, "planes") / 4
    found = [Estimate("csr", moved + nnz * (rates.edge + rates.edge_vector * (vectors - 1)))]
    if tiles is not None:
        found.append(Estimate("frdc", moved + tiles * rates.tile * max(0.5, features / 128)))
    return sorted(found, key=lambda estimate: estimate.cost)


def device_chain(
    params: EpilogueParams | None, operand: OperandParams | None, shape: tuple[int, int], words: bool
) -> DeviceEpilogue:
    """The chain on the device; vectors that are there already stay there where they can."""
    params = params or (EpilogueParams(out="bits", binarize=True) if words else EpilogueParams())
    if words and not (params.out == "bits" and params.binarize and params.bits == 1 and params.axis == -1):
        raise KernelError("bspmm: the chain must binarise along the features to give bits; binarise, then repack")
    if not words:
        params = replace(params, out="float", binarize=False)
    given = operand or OperandParams()
    on_device = {
        name: getattr(params, name)
        for name in ("row_scale", "col_scale", "row_term", "col_term")
        if _is_on_device(getattr(params, name)) and getattr(given, name) is None
    }
    given = replace(given, **on_device)
    without: dict[str, Any] = dict.fromkeys(on_device)
    chain = DeviceEpilogue(_on_host(replace(params, **without)), shape, 2.0**31)
    return chain.with_operand(**as_dict(given))


def _is_on_device(part: Any) -> bool:
    if isinstance(part, tuple):
        return all(_is_on_device(one) for one in part)
    return hasattr(part, "__cuda_array_interface__")


def _on_host(params: EpilogueParams) -> EpilogueParams:
    """The parameters with every vector on the host; waits for those that are not."""

    def fetched(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(fetched(one) for one in part)
        return part.get() if hasattr(part, "__cuda_array_interface__") else part

    return EpilogueParams(*(fetched(part) for part in params))


def set_thresholds(raw: Any, thresholds: Thresholds, features: int, bipolar: bool) -> Any:
    """Fills in one threshold as a number, or many bit-sliced; gives what must be kept on the device."""
    cupy = jit.require_cupy("bspmm")
    values, flips, longest = thresholds.values, thresholds.flips, int(thresholds.longest)
    if values.size == 1 or _all_the_same(values, flips):
        raw.limit = min(max(int(values.reshape(-1)[0]), -longest - 1), longest + 1, (1 << 31) - 1)
        raw.flip = int(bool(flips.reshape(-1)[0]))
        return None
    base = longest if bipolar else 0
    shape = (values.shape[0], features)
    raised = cupy.clip(cupy.asarray(values), -base, longest + 1) + base
    planes = max(1, (base + longest + 1).bit_length())
    words = cuda_bits.pack(
        cupy.broadcast_to(raised, shape), planes, axis=-1, layout="planes", encoding="unsigned", check=False
    )
    turned = cuda_bits.pack(
        cupy.broadcast_to(cupy.asarray(flips), shape),
        1,
        axis=-1,
        layout="planes",
        encoding="unsigned",
        check=False,
    )
    class_of = None if thresholds.class_of is None else cupy.asarray(thresholds.class_of, np.int32)
    raw.limits, raw.flips, raw.limit_planes, raw.base = words.data.ptr, turned.data.ptr, planes, base
    raw.class_of = None if class_of is None else class_of.data.ptr
    return words, turned, class_of


def _all_the_same(values: Any, flips: Any) -> bool:
    return bool(values.size) and bool((values == values.reshape(-1)[0]).all() & (flips == flips.reshape(-1)[0]).all())
