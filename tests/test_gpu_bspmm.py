"""One-bit aggregation on the GPU against the host's, bit for bit: widths, rows around the width of the counters, thresholds, chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_inputs import graphs

from bitsparse.backends.host.binary import bspmm as on_host
from bitsparse.backends.host.matmul import matmul as host_matmul
from bitsparse.backends.host.sparse import build as host_build
from bitsparse.backends.params import EpilogueParams, OperandParams, Thresholds
from bitsparse.backends.reference.bits.pack import codes_to_words
from bitsparse.errors import KernelError

pytestmark = pytest.mark.gpu

WIDTHS = [1, 31, 33, 64, 100, 128, 256, 300, 512, 1100]
#: Lengths of rows: every remainder of a batch, around powers of two, longer than a piece, a hub, empty rows at both ends.
LENGTHS = [0, 0, *range(36), 0, 47, 48, 49, 63, 64, 65, 127, 128, 255, 256, 257, 1007, 1008, 1009, 2500, 0]
NODES = 2600


def pattern(lengths: list[int], cols: int, index: Any = np.int32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(lengths))
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    rows = [np.sort(rng.choice(cols, n, replace=False)) for n in lengths]
    return indptr, np.concatenate([*rows, []]).astype(index)


def features(nodes: int, d: int, ones: float = 0.5) -> np.ndarray:
    return codes_to_words((np.random.default_rng(d).random((nodes, d)) < ones).astype(np.int64), 1, "planes")


def poisoned(like: np.ndarray) -> Any:
    import cupy

    out = cupy.empty(like.shape, like.dtype)
    out.view(np.uint8).fill(0xA5)
    return out


def same(got: Any, want: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    wrong = np.argwhere(got.get().view(np.uint32) != want.view(np.uint32))
    assert not len(wrong), f"{len(wrong)} of {want.size} differ, the first at {wrong[0]}"


def limits_of(d: int, longest: int, classes: int = 0, rows: int = 0) -> Thresholds:
    """Thresholds about zero, at equality for many sums, and out of reach, with every direction."""
    rng = np.random.default_rng([d, classes])
    values = rng.integers(-4, 5, (max(classes, 1), d))
    values[rng.random(values.shape) < 0.1] = longest + 1
    values[rng.random(values.shape) < 0.1] = -longest
    class_of = rng.integers(0, classes, rows).astype(np.int32) if classes else None
    return Thresholds(values, rng.random(values.shape) < 0.5, class_of, longest)


def check(indptr: np.ndarray, indices: np.ndarray, d: int, nodes: int, **given: Any) -> None:
    """Sums, bits and chains of one pattern against the host's."""
    import cupy

    from bitsparse.backends.cuda.binary import bspmm
    from bitsparse.backends.cuda.csr.schedule import Schedule

    words = features(nodes, d)
    pattern_there, words_there = (cupy.asarray(indptr), cupy.asarray(indices)), cupy.asarray(words)
    rows, longest = indptr.size - 1, int(np.diff(indptr).max(initial=0))
    schedule = Schedule(*pattern_there, (rows, nodes), indices.size)
    for bipolar in (True, False):
        sums = on_host.count(indptr, indices, words, d, bipolar=bipolar)

        def run(want: np.ndarray, bipolar: bool = bipolar, **more: Any) -> None:
            product = bspmm.BinarySum(schedule, features=d, bipolar=bipolar, **given, **more)
            out = poisoned(want)
            assert product(words_there, out) is out
            same(out, want)
            same(product(words_there), want)

        run(sums)
        one = Thresholds(np.full((1, 1), 1), np.full((1, 1), bipolar), None, longest)
        for limits in (one, limits_of(d, longest), limits_of(d, longest, 3, rows)):
            want = on_host.sign(indptr, indices, words, d, limits, bipolar=bipolar)
            run(want, output="bits", thresholds=limits)


def chain_of(rows: int, d: int, activation: str | None = "tanh") -> EpilogueParams:
    rng = np.random.default_rng(rows + d)
    row, *columns = (rng.standard_normal(n).astype(np.float32) for n in (rows, d, d, d, d))
    col, bias, scale, shift = columns
    return EpilogueParams(
        row_scale=row, col_scale=col, bias=bias, bn_scale=scale, bn_shift=shift, activation=activation
    )


@pytest.mark.parametrize("d", WIDTHS)
def test_sums_and_bits_of_every_width(d: int) -> None:
    check(*pattern(LENGTHS, NODES), d, NODES)


@pytest.mark.parametrize("name", graphs())
def test_every_graph(name: str) -> None:
    graph = graphs()[name]
    check(graph.indptr, graph.indices, 100, graph.shape[1])


@pytest.mark.parametrize(
    ("d", "team", "threads"), [(128, 16, 64), (128, 16, 128), (100, 4, 128), (33, 8, 32), (300, 16, 32)]
)
def test_pieces_of_hubs_are_added_up_as_trees(d: int, team: int, threads: int) -> None:
    """Rows of one to three levels, their last nodes of one piece, of two and of all; several calls, as counters go back to zero.

    Blocks have from one to 32 pieces, of one row or of several, and streams behind the last. Nodes of one child at the end of the last row
    must leave alone what lies behind the counters.
    """
    from bitsparse.backends.cuda.binary.bspmm import CountTuning

    lengths = [3, 16 * 32, 16 * 32 + 1, 0, 16 * 33 + 5, 16 * 1024, 20_001, 17, 16 * 1024 + 16 * 32 * 3 + 1, 16 * 1025]
    pieces = sum(-(-length // 16) for length in lengths if length > 16)
    lengths = [16 * 5] * (-pieces % 4) + lengths  # a number of counters that fills their memory
    tuning = CountTuning(team, 4, 6, 4, threads=threads, piece_team=team, span=16, longest=16)
    check(*pattern(lengths, 21_000), d, 21_000, tuning=tuning)


def test_int64_indices() -> None:
    check(*pattern(LENGTHS, NODES, np.int64), 128, NODES)


@pytest.mark.parametrize("kernel", ["plus-minus", "select"])
@pytest.mark.parametrize("d", [33, 128])
def test_other_kernels_give_the_same(d: int, kernel: str) -> None:
    check(*pattern([0, 1, 2, 40, 700, 0], NODES), d, NODES, kernel=kernel)


@pytest.mark.parametrize(
    "tuning",
    [(4, 4, 6, 4, 128, 4, 0), (8, 8, 8, 4, 64, 8, 4), (16, 4, 5, 4, 128, 3, 0), (32, 16, 6, 2, 32, 4, 0)],
    ids=str,
)
@pytest.mark.parametrize("d", [20, 128, 512])
def test_every_tuning_gives_the_same(d: int, tuning: tuple[int, ...]) -> None:
    from bitsparse.backends.cuda.binary.bspmm import CountTuning

    check(*pattern(LENGTHS, NODES), d, NODES, tuning=CountTuning(*tuning, span=16, longest=64))


@pytest.mark.parametrize(
    "tuning",
    [
        (1, 4, 7, 4, 128, 3, 16, 0, 16, 16),
        (2, 8, 6, 3, 128, 6, 4, 0, 16, 64),
        (1, 8, 5, 2, 32, 4, 1, 0, 16, 16),
        (1, 8, 7, 4, 128, 4, 16, 1 << 20, 48, 64),
        (2, 4, 7, 4, 128, 4, 8, 16, 100, 256),
        (8, 8, 8, 4, 128, 4, 0, 32, 300, 128),
    ],
    ids=str,
)
@pytest.mark.parametrize("d", [1, 40, 128, 300])
def test_narrow_teams_and_dealt_rows_give_the_same(d: int, tuning: tuple[int, ...]) -> None:
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    indptr, indices = pattern(LENGTHS, NODES)
    words, rows = features(NODES, d), indptr.size - 1
    schedule = bspmm.Schedule(cupy.asarray(indptr), cupy.asarray(indices), (rows, NODES), indices.size)

    def run(want: np.ndarray, **more: Any) -> None:
        chosen = bspmm.CountTuning(*tuning)
        product = bspmm.BinarySum(schedule, features=d, bipolar=True, tuning=chosen, **more)
        for _ in range(2):
            out = poisoned(want)
            product(cupy.asarray(words), out)
            same(out, want)
        assert product.cut is not None
        assert product.cut.pieces > 0

    for limits in (Thresholds(np.full((1, 1), 2), np.ones((1, 1), bool), None, 2500), limits_of(d, 2500, 2, rows)):
        want = on_host.sign(indptr, indices, words, d, limits, bipolar=True)
        run(want, output="bits", thresholds=limits)
    run(on_host.count(indptr, indices, words, d, bipolar=True))


def test_rows_are_dealt_out_by_batches() -> None:
    """Every row once, in a stream of its own or in pieces; in a window rows of more batches come first."""
    import cupy

    from bitsparse.backends.cuda.binary.bspmm_params import deal
    from bitsparse.backends.cuda.csr.schedule import Schedule

    indptr, indices = pattern(LENGTHS * 3, NODES)
    rows = indptr.size - 1
    schedule = Schedule(cupy.asarray(indptr), cupy.asarray(indices), (rows, NODES), indices.size)
    found = deal(schedule, short=60, longest=128, batch=8, window=50)
    assert deal(schedule, short=60, longest=128, batch=8, window=50) is found
    order, row, first = (part.get() for part in (found.order, found.piece_row, found.piece_first))
    lengths = np.diff(indptr)
    assert np.array_equal(np.sort(order), np.flatnonzero(lengths <= 60))
    assert np.array_equal(found.bounds.get(), np.stack([indptr[order], indptr[order + 1]], axis=1))
    batches = -(-(lengths + indptr[:-1] % 4) // 8)[order]
    assert (np.diff(order // 50) >= 0).all()
    assert (np.diff(batches)[np.diff(order // 50) == 0] <= 0).all()
    pieces = [(i, e) for i in np.flatnonzero(lengths > 60) for e in range(indptr[i], indptr[i + 1], 128)]
    assert list(zip(row.tolist(), first.tolist(), strict=True)) == pieces
    numbers = [(i, int(np.flatnonzero(row == i)[0]), int((row == i).sum())) for i, _ in pieces]
    ends = [min(e + 128, int(indptr[i + 1])) for i, e in pieces]
    edges = [(end, int(lengths[i]), *rest) for end, (i, *rest) in zip(ends, numbers, strict=True)]
    assert found.piece_edges.get().tolist() == [list(one) for one in edges]


def tiled() -> dict[str, Any]:
    """Patterns with full tiles, with one edge to a tile, with strips of hundreds of tiles, with a last strip and block cut off."""
    import scipy.sparse as sp

    rng = np.random.default_rng(3)
    hub = rng.random((41, 1203)) < 0.01
    hub[17:20], hub[30:36] = True, False
    return {
        "blocks": sp.block_diag([sp.coo_array(np.ones((n, n))) for n in (13, 1, 30, 8, 3)], format="csr"),
        "hub": sp.csr_array(hub),
        "random": sp.random_array((67, 50), density=0.1, rng=rng, format="csr"),
        "empty": sp.csr_array((6, 9)),
    }


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("d", [31, 64, 100, 300])
@pytest.mark.parametrize("name", ["blocks", "hub", "random", "empty"])
def test_tiles(name: str, d: int, index: Any) -> None:
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    graph = tiled()[name]
    (rows, nodes), longest = graph.shape, int(np.diff(graph.indptr).max(initial=0))
    indptr, indices = graph.indptr.astype(index), graph.indices.astype(index)
    starts, blocks, tiles = host_build.frdc(indptr, indices, graph.shape)
    schedule = bspmm.TileSchedule(*(cupy.asarray(part) for part in (starts, blocks, tiles)), graph.shape)
    assert np.array_equal(schedule.edges.get()[:rows], np.diff(indptr))
    words = features(nodes, d)
    for bipolar in (True, False):

        def run(want: np.ndarray, bipolar: bool = bipolar, **more: Any) -> None:
            product = bspmm.BinarySum(schedule, features=d, bipolar=bipolar, **more)
            for _ in range(2):
                out = poisoned(want)
                product(cupy.asarray(words), out)
                same(out, want)

        sums = on_host.count(indptr, indices, words, d, bipolar=bipolar)
        run(sums)
        one = Thresholds(np.full((1, 1), 1), np.full((1, 1), bipolar), None, longest)
        for limits in (one, limits_of(d, longest, 3, rows)):
            want = on_host.sign(indptr, indices, words, d, limits, bipolar=bipolar)
            run(want, output="bits", thresholds=limits)
    chain = chain_of(rows, d, "relu")
    run(host_matmul.epilogue(sums, chain), output="float32", params=chain)
    chain = chain._replace(out="bits", binarize=True)
    run(host_matmul.epilogue(sums, chain), output="bits", params=chain)
    with pytest.raises(KernelError, match="takes edges, not tiles"):
        bspmm.BinarySum(schedule, features=d, bipolar=True, kernel="select")


@pytest.mark.parametrize("tuning", [(4, 6, 3), (4, 8, 3), (8, 7, 2), (4, 7, 3, 128, 4, 0, 4)], ids=str)
def test_every_tuning_of_tiles_gives_the_same(tuning: tuple[int, ...]) -> None:
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    graph = tiled()["hub"]
    words = features(graph.shape[1], 128)
    starts, blocks, tiles = host_build.frdc(graph.indptr, graph.indices, graph.shape)
    schedule = bspmm.TileSchedule(*(cupy.asarray(part) for part in (starts, blocks, tiles)), graph.shape)
    want = on_host.count(graph.indptr, graph.indices, words, 128, bipolar=True)
    chosen = bspmm.CountTuning(4, *tuning, span=8, longest=16)
    product = bspmm.BinarySum(schedule, features=128, bipolar=True, tuning=chosen)
    same(product(cupy.asarray(words), poisoned(want)), want)
    assert product.cut is not None
    assert product.cut.pieces > 0


@pytest.mark.parametrize("ones", [0.0, 1.0])
def test_counters_at_their_fullest(ones: float) -> None:
    """All bits the same: a row of n edges counts 0 or n, which is where carries run through."""
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    lengths = [n for p in range(3, 12) for n in (2**p - 1, 2**p, 2**p + 1)]
    indptr, indices = pattern(lengths, NODES)
    words = features(NODES, 128, ones)
    for planes in (5, 8):
        tuning = bspmm.CountTuning(planes=planes)
        schedule = bspmm.Schedule(cupy.asarray(indptr), cupy.asarray(indices), (len(lengths), NODES), indices.size)
        product = bspmm.BinarySum(schedule, features=128, bipolar=False, tuning=tuning)
        got = product(cupy.asarray(words)).get()
        assert np.array_equal(got, np.repeat(np.asarray(lengths)[:, None] * int(ones), 128, axis=1))


@pytest.mark.parametrize("kernel", ["twice-plus", "select"])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("d", [1, 33, 64, 100, 128, 300])
def test_chains(d: int, mean: bool, kernel: str) -> None:
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    indptr, indices = pattern([*LENGTHS[:-2], 0] if kernel == "twice-plus" else [0, 3, 40, 0], NODES)
    words, rows = features(NODES, d), indptr.size - 1
    sums: Any = on_host.count(indptr, indices, words, d, bipolar=True)
    if mean:
        sums = sums.astype(np.float32) / np.maximum(np.diff(indptr), 1).astype(np.float32)[:, None]
    words_there = cupy.asarray(words)
    schedule = bspmm.Schedule(cupy.asarray(indptr), cupy.asarray(indices), (rows, NODES), indices.size)

    def chained(params: EpilogueParams, operand: OperandParams | None = None) -> Any:
        how: dict[str, Any] = {"mean": mean, "kernel": kernel, "params": params, "operand": operand}
        output = "bits" if params.out == "bits" else "float32"
        return bspmm.BinarySum(schedule, features=d, bipolar=True, output=output, **how)

    for activation in ("tanh", "relu", None):
        chain = chain_of(rows, d, activation)
        for params in (chain, chain._replace(out="bits", binarize=True)):
            want = host_matmul.epilogue(sums, params)
            out = poisoned(want)
            chained(params)(words_there, out)
            same(out, want)
    # a factor of the device times one of the host, rounded once
    scale = np.random.default_rng(1).standard_normal(rows).astype(np.float32)
    want = host_matmul.epilogue(sums, chain._replace(row_scale=chain.row_scale * scale))
    operand = OperandParams(row_scale=cupy.asarray(scale))
    same(chained(chain, operand)(words_there), want)
    if mean:
        same(chained(EpilogueParams())(words_there), sums)


def test_words_of_two_dimensions_and_thresholds_of_either_place() -> None:
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    indptr, indices = pattern(LENGTHS, NODES)
    words = features(NODES, 100)
    schedule = bspmm.Schedule(cupy.asarray(indptr), cupy.asarray(indices), (indptr.size - 1, NODES), indices.size)
    limits = limits_of(100, 2500, 2, indptr.size - 1)
    there = limits._replace(values=cupy.asarray(limits.values), flips=cupy.asarray(limits.flips))
    sums, bits = (
        on_host.count(indptr, indices, words, 100, bipolar=True),
        on_host.sign(indptr, indices, words, 100, limits, bipolar=True),
    )
    kinds: tuple[Any, ...] = ((sums, {}), (bits, {"output": "bits", "thresholds": there}))
    for given in (cupy.asarray(words), cupy.asarray(words).reshape(NODES, -1)):
        for want, more in kinds:
            product = bspmm.BinarySum(schedule, features=100, bipolar=True, **more)
            same(product(given), want)


def test_nan_is_noticed_and_other_chains_are_refused() -> None:
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    indptr, indices = pattern([3, 1], 5)
    arrays = tuple(cupy.asarray(part) for part in (indptr, indices))
    schedule = bspmm.Schedule(*arrays, (2, 5), 4)
    chain = EpilogueParams(out="bits", binarize=True, bias=np.array([np.nan] + [0] * 32, np.float32))
    product = bspmm.BinarySum(schedule, features=33, bipolar=True, output="bits", params=chain)
    product(cupy.asarray(features(5, 33)))
    assert product.nan_seen()
    assert not product.nan_seen()
    with pytest.raises(KernelError, match="binarise along the features"):
        bspmm.BinarySum(schedule, features=33, bipolar=True, output="bits", params=chain._replace(binarize=False))
    with pytest.raises(KernelError, match="a mean is a float"):
        bspmm.BinarySum(schedule, features=33, bipolar=True, mean=True)
    with pytest.raises(KernelError, match="unheard"):
        bspmm.BinarySum(schedule, features=33, bipolar=True, kernel="unheard")


def test_streams_and_capture() -> None:
    """A prepared sum with hubs, on two streams and in a graph, over and over: the counters of pieces are zero again every time."""
    import cupy

    from bitsparse.backends.cuda.binary import bspmm

    indptr, indices = pattern(LENGTHS, NODES)
    schedule = bspmm.Schedule(cupy.asarray(indptr), cupy.asarray(indices), (indptr.size - 1, NODES), indices.size)
    limits = limits_of(128, 2500)
    product = bspmm.BinarySum(schedule, features=128, bipolar=True, output="bits", thresholds=limits)
    words = features(NODES, 128)
    there, stream = cupy.asarray(words), cupy.cuda.Stream(non_blocking=True)
    want = on_host.sign(indptr, indices, words, 128, limits, bipolar=True)
    out = poisoned(want)
    product(there, out)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        product(there, out)
        graph = stream.end_capture()
        for turn in range(3):
            other = features(NODES, 128, 0.3 + 0.1 * turn)
            there.set(other)
            graph.launch(stream)
            stream.synchronize()
            same(out, on_host.sign(indptr, indices, other, 128, limits, bipolar=True))
