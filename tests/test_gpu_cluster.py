"""Low-bit networks over a graph in batches on a GPU: packets opened there, sums without a schedule, streams, CUDA graphs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs
from bitsparse import _check, interop, nn
from bitsparse.backends.cuda import packets
from bitsparse.backends.cuda.packets import CodeSums
from bitsparse.graph.packets import Packets

pytestmark = pytest.mark.gpu

NODES = 300


@cache
def example() -> tuple[Any, np.ndarray, np.ndarray]:
    """A directed graph with self-loops, isolated nodes and a hub; labels with parts of one node and a large one; features."""
    rng = np.random.default_rng(5)
    dense = rng.random((NODES, NODES)) < 0.08
    dense[7], dense[:, 7] = True, True
    dense[[3, 90]] = False
    dense[:, [3, 90]] = False
    labels = rng.integers(0, 20, NODES)
    labels[labels > 12] = 13
    labels[200] = 20
    return sparse.csr_array(dense), labels, rng.normal(size=(NODES, 29)).astype(np.float32)


@cache
def network(kind: str, bits: int) -> Any:
    a, _, x = example()
    return nn.quantize_network(nn.random_network(kind, [29, 16, 5], seed=1), a, x, bits)


def runner(device: str, kind: str = "gcn", bits: int = 8, **options: Any) -> nn.ClusterRunner:
    a, labels, _ = example()
    made: dict[str, Any] = {"labels": labels, "parts_per_batch": 2, "group_nodes": 60, **options}
    return nn.ClusterRunner(a, network(kind, bits), device=device, **made)


@pytest.mark.parametrize(("kind", "bits"), [("gcn", 8), ("gcn", 3), ("sage", 1), ("sage", 4), ("gin", 2)])
def test_the_cpu_s_logits(kind: str, bits: int) -> None:
    import cupy

    x = example()[2]
    expected = runner("cpu", kind, bits).run(x)
    ours = runner("cuda", kind, bits)
    assert np.array_equal(ours.run(x), expected)
    packed = ours.pack(x)
    for _ in range(2):
        out = cupy.full(expected.shape, np.nan, np.float32)
        assert ours.run_packed(packed, out) is out
        assert np.array_equal(out.get(), expected)
    assert np.array_equal(ours.run_packed(packed, timed=True), expected)
    report = ours.report
    assert all(event is not None for _, *events in ours._engine._events for event in events)
    assert len(ours._engine._events) == 2 * report.groups  # one pair of events for the copy, one for the work
    assert report.copy_ms is not None and report.compute_ms is not None and 0 <= (report.idle_share or 0) <= 1
    assert report.forms == {"csr": report.groups} and report.groups > 3


@pytest.mark.parametrize("form", ["dense", "frdc", "tiled"])
def test_other_forms(form: Any) -> None:
    x = example()[2]
    ours = runner("cuda", form=form, group_nodes=200)
    assert np.array_equal(ours.run(x), runner("cpu").run(x))
    assert ours.report.forms == {form: ours.report.groups}


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("normalisation", ["gcn", "mean", "sum"])
def test_opened_packets(loops: bool, between: bool, normalisation: str) -> None:
    import cupy

    from bitsparse.backends.cuda.packets import PacketArrays
    from bitsparse.graph.operand import factors

    a, labels, _ = example()
    packets = Packets(a, labels, parts_per_batch=4, between=between, self_loops=loops, group_nodes=90)
    words = cupy.full((384, 8), 7, np.uint32)
    nodes = words.shape[0]
    table = factors(normalisation, np.arange(nodes + 1))[0]
    sides = {"gcn": 2, "mean": 1, "sum": 0}[normalisation]
    arrays = PacketArrays(nodes, max(g.entries for g in packets.groups), 20, table, sides, words, 2, 13, 16)
    rng = np.random.default_rng(1)
    for group in packets.groups:
        packet = packets.pack(group, 26)
        rows = rng.integers(0, 256, (group.nodes, 2, 13), np.uint8)
        packet.buffer[packet.features_at : packet.features_at + rows.size] = rows.ravel()
        arrays.open(cupy.asarray(packet.buffer[: packet.nbytes]))
        indptr, indices = packet.pattern()
        found = arrays.indptr.get()
        assert np.array_equal(found[: group.nodes + 1], indptr) and (found[group.nodes :] == group.entries).all()
        assert np.array_equal(arrays.indices.get()[: group.entries], indices)
        operand = nn.Graph.of_pattern(indptr, indices, normalisation, loops, "csr")
        for mine, theirs in (
            (arrays.degrees, operand.degrees),
            (arrays.left, operand.row_scale),
            (arrays.right, operand.col_scale),
        ):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert np.array_equal(mine.get()[: group.nodes], theirs) and not mine.get()[group.nodes :].any()
        bytes_there = words.get().view(np.uint8).reshape(nodes, 2, 16)
        assert np.array_equal(bytes_there[: group.nodes, :, :13], rows)
        assert not bytes_there[:, :, 13:].any() and not bytes_there[group.nodes :].any()


#: Bits and encoding of codes, and a row length at which a lane just overflows with their largest value, or with their excess.
LANES = [
    (1, "unsigned", 256), (1, "bipolar", 255), (1, "signed", 9), (2, "unsigned", 86), (2, "signed", 85), (3, "unsigned", 40),
    (3, "signed", 9), (4, "unsigned", 18), (4, "signed", 17), (8, "unsigned", 258), (8, "signed", 257), (16, "unsigned", 40),
    (16, "signed", 5),
]  # fmt: skip


def full_lanes(bits: int, encoding: Any, edges: int, columns: int) -> tuple[nn.Graph, bs.BitTensor]:
    """A graph with rows just long enough to fill lanes, and codes that have the largest value in most columns."""
    top = {"unsigned": 2**bits - 1, "signed": 2 ** (bits - 1) - 1, "bipolar": 1}[encoding]
    low = {"unsigned": 0, "signed": -(2 ** (bits - 1)), "bipolar": -1}[encoding]
    nodes = 300
    q = np.full((nodes, columns), top)
    q[:, 1::5] = low
    q[::7, 2::5] = low
    lengths = np.array([edges, 0, edges + 1, 3, *([1] * (nodes - 4))])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.arange(length) for length in lengths])
    x = bs.BitTensor(q, bits, encoding=encoding, offset=np.float32(0.25))
    return nn.Graph.from_csr(indptr, indices, normalisation="mean", self_loops=False, form="csr"), x


@pytest.mark.parametrize(("bits", "encoding", "edges"), LANES)
@pytest.mark.parametrize("columns", [1, 31, 100])
def test_sums_at_the_lanes_ends(bits: int, encoding: Any, edges: int, columns: int) -> None:
    """Sums over a whole graph, whose schedule is kept, must not overflow the lanes."""
    operand, x = full_lanes(bits, encoding, edges, columns)
    epilogue = bs.Epilogue(col_scale=0.5, bias=1.0, offset_correction=True)
    runs = [
        each.aggregate(columns, bits, encoding=encoding, epilogue=epilogue)
        for each in (operand, operand.to_device("cuda:0"))
    ]
    assert np.array_equal(runs[0](x), runs[1](x.to_device("cuda")).get())


@pytest.mark.parametrize(("bits", "encoding", "edges"), LANES)
@pytest.mark.parametrize("columns", [1, 31, 100])
def test_sums_of_a_packet_at_the_lanes_ends(bits: int, encoding: Any, edges: int, columns: int) -> None:
    """Sums of packets/sums.cu, for patterns that may change in place, must not overflow the lanes, which are emptied in time."""
    operand, x = full_lanes(bits, encoding, edges, columns)
    epilogue = bs.Epilogue(col_scale=0.5, bias=1.0, offset_correction=True)
    there = operand.to_device("cuda:0")
    there.fixed = False
    launched: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packets, "CodeSums", lambda *given: launched.append(CodeSums(*given)) or launched[0])
        run = there.aggregate(columns, bits, encoding=encoding, epilogue=epilogue)
        found = run(x.to_device("cuda")).get()
    assert len(launched) == 1 and launched[0]._launch is not None
    assert np.array_equal(found, operand.aggregate(columns, bits, encoding=encoding, epilogue=epilogue)(x))


def test_codes_out_into_memory_that_is_there() -> None:
    a, _, _ = example()
    rng = np.random.default_rng(3)
    x = bs.BitTensor(rng.integers(0, 16, (NODES, 40)), 4).repack(layout="rows")
    epilogue = bs.Epilogue(bits=3, out_scale=0.5, rounding="nearest", activation="relu", axis=-1)
    operands = [nn.Graph.from_csr(a.indptr, a.indices, device=device, form="csr") for device in ("cpu", "cuda")]
    runs = [operand.aggregate(40, 4, epilogue=epilogue) for operand in operands]
    expected, moved = runs[0](x), x.to_device("cuda")
    out = runs[1](moved)
    words = out.words
    words[...] = 0xFFFFFFFF
    assert runs[1](moved, out=out) is out and out.words is words
    assert np.array_equal(out.get().words, expected.words)
    with pytest.raises(ValueError, match="without row_scale"):
        operands[1].aggregate(40, 4, epilogue=bs.Epilogue(row_scale=np.ones(NODES)))
    with pytest.raises(ValueError, match="offset_correction=True"):
        operands[1].aggregate(40, 4, epilogue=epilogue)(moved.with_affine(offset=1.0))


def test_no_row_is_longer_than_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], _check.accumulator

    def accumulator(function: str, terms: int, *rest: Any) -> Any:
        asked.append(terms)
        return real(function, terms, *rest)

    monkeypatch.setattr(_check, "accumulator", accumulator)
    ours = runner("cuda", bits=2, group_nodes=10_000)
    assert np.array_equal(ours.run(example()[2]), runner("cpu", bits=2).run(example()[2]))
    # The bound must not be a group's number of nodes: with 16-bit codes, sums over a large group would not fit 32 bits.
    assert np.diff(ours.packets.blocks).max() in asked and NODES not in asked and 384 not in asked


def test_an_error_leaves_the_engine_ready() -> None:
    x = example()[2]
    ours, expected = runner("cuda", bits=2), runner("cpu", bits=2).run(x)
    bad = x.copy()
    bad[ours.packets.order[-1], 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        ours.run(bad)
    assert np.array_equal(ours.run(x), expected)


def test_order_with_the_caller_s_stream() -> None:
    import cupy

    x = example()[2]
    ours = runner("cuda", bits=2)
    packed = ours.pack(x)
    out = cupy.zeros((NODES, 5), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        out.fill(3)
        ours.run_packed(packed, out)
        copy = out + 0
    stream.synchronize()
    assert np.array_equal(copy.get(), ours.run_packed(packed))
    assert interop.device_of(out) == ours.device


def test_a_run_begun_on_a_gpu_goes_on_on_a_cpu(tmp_path: Path) -> None:
    x, path = example()[2], tmp_path / "y.npy"

    def stop(done: int, groups: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner("cuda", progress=stop).run(x, path, resume=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["y.npy.journal", "y.npy.partial"]
    there, expected = runner("cpu"), runner("cpu").run(x)
    assert np.array_equal(there.run(x, path, resume=True), expected) and there.report.resumed == 2
    assert np.array_equal(runner("cuda").run(x, path), expected)
    assert [file.name for file in tmp_path.iterdir()] == ["y.npy"]
