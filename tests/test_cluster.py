"""Low-bit networks over a graph in batches: packets, forms, files, interrupted runs. For the GPU see tests/test_gpu_cluster.py."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs
from bitsparse import errors, graph, nn
from bitsparse._text import duration, size
from bitsparse.backends.host import packets as host
from bitsparse.backends.reference import packets as reference
from bitsparse.cli import main
from bitsparse.graph.packets import FeatureForm, Packets
from bitsparse.graph.parts import cached_partition, graph_hash
from bitsparse.nn import features as node_features
from bitsparse.nn.cluster.journal import FileSink

NODES, PARTS = 300, 24


@cache
def example(directed: bool = True) -> tuple[Any, np.ndarray, np.ndarray]:
    """A graph with self-loops, isolated nodes and a hub; labels with an empty part, a part of one node and a large one; features."""
    rng = np.random.default_rng(5)
    dense = rng.random((NODES, NODES)) < 0.08
    dense[7], dense[:, 7] = True, True
    dense[[3, 90]] = False
    dense[:, [3, 90]] = False
    labels = rng.integers(0, PARTS, NODES)
    labels[labels == 4] = 5
    labels[labels == 6] = 9
    labels[200] = 6
    labels[labels > 19] = 20
    a = sparse.csr_array(dense if directed else dense | dense.T)
    return a, labels, rng.normal(size=(NODES, 29)).astype(np.float32)


@cache
def network(kind: str, bits: int) -> Any:
    a, _, x = example()
    return nn.quantize_network(nn.random_network(kind, [29, 16, 16, 5], seed=1), a, x, bits)


def kept(a: Any, labels: np.ndarray) -> Any:
    """The graph without edges between parts."""
    coo = a.tocoo()
    inside = labels[coo.coords[0]] == labels[coo.coords[1]]
    return sparse.csr_array((np.ones(inside.sum(), bool), tuple(end[inside] for end in coo.coords)), shape=a.shape)


def whole(model: Any, a: Any, x: np.ndarray) -> np.ndarray:
    """The network's logits over a whole graph."""
    operand = nn.Graph.from_csr(a.indptr, a.indices, normalisation=model.normalisation, self_loops=model.self_loops)
    return np.asarray(model(operand, model.quantize(x)))


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_batches_give_what_the_whole_graph_gives_on_the_edges_they_keep(kind: str, bits: int) -> None:
    a, labels, x = example()
    model = network(kind, bits)
    expected = whole(model, kept(a, labels), x)
    for form, nodes in (("csr", 50), ("dense", None), ("frdc", 120), ("tiled", 10_000), ("auto", 1)):
        runner = nn.ClusterRunner(a, model, labels=labels, parts_per_batch=3, form=form, group_nodes=nodes)
        found = runner.run(x)
        assert np.array_equal(found, expected), form
        assert np.array_equal(runner.run_packed(runner.pack(x)), expected), form


def test_edges_between_the_parts_of_a_batch() -> None:
    a, labels, x = example()
    batches = np.unique(labels, return_inverse=True)[1] // 4
    runner = nn.ClusterRunner(a, network("gcn", 4), labels=labels, parts_per_batch=4, between=True, group_nodes=90)
    assert np.array_equal(runner.run(x), whole(network("gcn", 4), kept(a, batches), x))
    assert runner.report.dropped == a.nnz - kept(a, batches).nnz


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("between", [False, True])
def test_packets_are_the_reference_s(loops: bool, between: bool) -> None:
    a, labels, _ = example()
    for group_nodes in (1, 130, 10_000):
        packets = Packets(a, labels, parts_per_batch=2, between=between, self_loops=loops, group_nodes=group_nodes)
        assert np.array_equal(reference.chunk_sizes(packets._graph, packets._chunks, loops), packets._sizes)
        given = graph.batch(a, labels, parts_per_batch=2, between=between, self_loops=loops)
        for group in packets.groups:
            packet = packets.pack(group)
            data = packet.buffer[: packet.nbytes]
            indptr, indices = packet.pattern()
            slow = reference.expand(data, group.nodes, group.entries)
            assert np.array_equal(indptr, slow[0]) and np.array_equal(indices, slow[1])
            chunks = slice(group.first_chunk, group.last_chunk)
            sizes = packets._sizes[chunks]
            starts = np.cumsum(-(-sizes[:, 1] // 4) * 4) - (-(-sizes[:, 1] // 4) * 4)
            stream = np.zeros(group.stream_bytes, np.uint8)
            reference.encode_chunks(packets._graph, packets._chunks[chunks], loops, sizes, starts, stream)
            at = packets.layout(group, 0)[1]
            assert np.array_equal(stream, data[at : at + stream.size])
            dense = np.zeros((group.nodes, group.nodes), int)
            np.add.at(dense, (np.repeat(np.arange(group.nodes), np.diff(indptr)), indices), 1)
            at = 0
            for _ in range(group.batches):
                block = next(given).adjacency.toarray()
                assert np.array_equal(dense[at : at + len(block), at : at + len(block)], block)
                dense[at : at + len(block), at : at + len(block)] = 0
                at += len(block)
            assert not dense.any()


@pytest.mark.parametrize("gap", [14, 15, 16, 254, 255, 256, 3000, 70_000])
def test_gaps_of_every_size(gap: int) -> None:
    nodes = 2 * gap + 3
    a = sparse.csr_array((np.ones(3), ([0, 0, nodes - 1], [gap, 2 * gap + 2, 0])), shape=(nodes, nodes))
    packets = Packets(a, np.zeros(nodes, int), group_nodes=nodes)
    indptr, indices = packets.pack(packets.groups[0]).pattern()
    assert indices.tolist() == [gap, 2 * gap + 2, 0]
    assert np.array_equal(indptr, a.indptr)


@pytest.mark.parametrize(("nodes", "parts"), [(0, 1), (1, 1), (5, 5), (40, 1)])
def test_small_graphs(nodes: int, parts: int) -> None:
    a = sparse.csr_array((nodes, nodes), dtype=bool)
    model, x = network("gcn", 2), np.ones((nodes, 29), np.float32)
    runner = nn.ClusterRunner(a, model, labels=np.arange(nodes) * parts // max(nodes, 1), parts_per_batch=2)
    found = runner.run(x)
    assert found.shape == (nodes, 5)
    if nodes:
        assert np.array_equal(found, whole(model, a, x))
    assert runner.report.parts == (parts if nodes else 0)
    assert str(runner.report)


def test_features_travel_without_their_padding() -> None:
    a, labels, x = example()
    for bits in (1, 8):
        runner = nn.ClusterRunner(a, network("gcn", bits), labels=labels, group_nodes=64)
        packed = runner.pack(x)
        again = runner.pack(x, into=packed)
        assert all(a.buffer is b.buffer for a, b in zip(packed.packets, again.packets, strict=True))
        facts = packed.facts()
        assert facts["feature_bytes"] == NODES * {1: 4, 8: 29}[bits]  # 29 features in a plane, or 29 codes
        assert packed.nbytes == facts["feature_bytes"] + facts["adjacency_bytes"]
        runner.run_packed(packed)
        assert runner.report.bytes_moved == packed.nbytes and runner.report.edges == facts["edges"]
    form = FeatureForm(29, 4, "unsigned", "rows")
    words = bs.pack_bits(np.arange(NODES * 29).reshape(NODES, 29) % 16, 4).repack(layout="rows").words
    packets = Packets(a, labels, group_nodes=10**6)
    packet = packets.pack(packets.groups[0], form.row_bytes)
    packets.put_features(packet, 0, words, form)
    assert np.array_equal(packet.features(form), words)


def test_sparse_mapped_and_foreign_features(tmp_path: Any) -> None:
    a, labels, x = example()
    x = np.where(np.abs(x) > 1, x, 0)
    model = network("gcn", 4)
    runner = nn.ClusterRunner(a, model, labels=labels, group_nodes=70)
    expected = runner.run(x)
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, x.shape)
    mapped[...] = x
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, expected.shape)
    assert runner.run(mapped, out) is out and np.array_equal(out, expected)
    assert np.array_equal(runner.run(sparse.csr_array(x)), expected)
    assert np.array_equal(runner.run(x.astype(np.float64)), expected)
    assert np.array_equal(runner.run(np.asfortranarray(x)), expected)
    strided = np.zeros((NODES, 10), np.float32)
    with pytest.raises(ValueError, match="contiguous"):
        runner.run(x, strided[:, ::2])


class Stopping:
    """A network that raises KeyboardInterrupt after ``left`` groups."""

    def __init__(self, model: Any, left: int) -> None:
        self._model, self.left = model, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def plan(self, operand: Any, x: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self._model.plan(operand, x)


def test_an_interrupted_run_goes_on(tmp_path: Any) -> None:
    a, labels, x = example()
    path, model = tmp_path / "logits.npy", network("gcn", 4)
    made = {"labels": labels, "parts_per_batch": 2, "group_nodes": 1}
    expected = nn.ClusterRunner(a, model, **made).run(x)
    with pytest.raises(KeyboardInterrupt):
        nn.ClusterRunner(a, Stopping(model, 3), **made).run(x, path)
    assert not list(tmp_path.iterdir())  # a run without resume=True leaves no files
    for done in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            nn.ClusterRunner(a, Stopping(model, done - (3 if done > 3 else 0)), **made).run(x, path, resume=True)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["logits.npy.journal", "logits.npy.partial"]
    with open(f"{path}.journal", "a") as stream:
        stream.write('{"grou')  # an entry cut off in the middle
    for other in (network("gcn", 2), network("gcn", 1)):
        with pytest.raises(ValueError, match=r"another graph, features, model or settings; repeat that one, or delete"):
            nn.ClusterRunner(a, other, **made).run(x, path, resume=True)
    with pytest.raises(ValueError, match="belongs to a run"):
        nn.ClusterRunner(a, model, **made).run(x + 1, path, resume=True)
    seen: list[tuple[int, int]] = []
    runner = nn.ClusterRunner(a, model, **made, progress=lambda *at: seen.append(at))
    assert np.array_equal(runner.run(x, path, resume=True), expected)
    assert runner.report.resumed == 5 and seen[0] == (6, runner.report.groups) and seen[-1][0] == runner.report.groups
    assert [file.name for file in tmp_path.iterdir()] == ["logits.npy"]
    assert np.array_equal(np.load(path), expected)


def test_a_journal_s_rows_are_there(tmp_path: Any) -> None:
    a, labels, x = example()
    path, model = tmp_path / "logits.npy", network("gcn", 4)
    made = {"labels": labels, "parts_per_batch": 2, "group_nodes": 1}
    expected = nn.ClusterRunner(a, model, **made).run(x)
    with pytest.raises(KeyboardInterrupt):
        nn.ClusterRunner(a, Stopping(model, 2), **made).run(x, path, resume=True)
    journal = tmp_path / "logits.npy.journal"
    with journal.open("a") as stream:
        stream.write('{"grou')  # an entry cut off in the middle
    with pytest.raises(KeyboardInterrupt):  # the next entry starts on a new line
        nn.ClusterRunner(a, Stopping(model, 1), **made).run(x, path, resume=True)
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [entry["group"] for entry in entries[1:]] == [0, 1, 2]
    # After a run with resume=False that is killed, no rows may count as done.
    sink = FileSink(path, expected.shape, np.arange(NODES, dtype=np.int32), "", resume=False)
    assert not journal.exists()
    sink.abandon()
    runner = nn.ClusterRunner(a, model, **made)
    assert np.array_equal(runner.run(x, path, resume=True), expected) and runner.report.resumed == 0


def test_every_row_of_the_features_counts_for_a_journal(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, labels, x = example()
    path, model = tmp_path / "logits.npy", network("gcn", 4)
    monkeypatch.setattr(node_features, "_CHUNK_BYTES", 4 * 29 * 7)  # the features are read in many pieces
    made = {"labels": labels, "parts_per_batch": 2, "group_nodes": 1}
    with pytest.raises(KeyboardInterrupt):
        nn.ClusterRunner(a, Stopping(model, 2), **made).run(x, path, resume=True)
    runner = nn.ClusterRunner(a, model, **made)
    for row in range(0, NODES, 13):
        other = x.copy()
        other[row, 11] += 1
        with pytest.raises(ValueError, match="belongs to a run"):
            runner.run(other, path, resume=True)
    runner.run(x, path, resume=True)
    assert runner.report.resumed == 2


def test_errors_leave_no_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, labels, x = example()
    runner = nn.ClusterRunner(a, network("gcn", 2), labels=labels)
    taken = tmp_path / "taken.npy"
    (taken / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        runner.run(x, taken)
    assert [file.name for file in tmp_path.iterdir()] == ["taken.npy"]
    group = runner.packets.groups[0]
    with pytest.raises(ValueError, match=r"but a packet takes 4 GiB; pass a smaller parts_per_batch"):
        runner.packets.layout(group, (1 << 32) // group.nodes + 1)
    monkeypatch.setattr(FeatureForm, "row_bytes", property(lambda form: 1 << 32))
    for resume in (False, True):
        with pytest.raises(ValueError, match="4 GiB"):
            runner.run(x, tmp_path / "y.npy", resume=resume)
    assert [file.name for file in tmp_path.iterdir()] == ["taken.npy"]


def test_an_epoch_is_its_runner_s() -> None:
    a, labels, x = example()
    one, other = (nn.ClusterRunner(a, network("gcn", 2), labels=each) for each in (labels, labels[::-1]))
    packed, out = one.pack(x), np.full((NODES, 5), np.nan, np.float32)
    with pytest.raises(
        ValueError, match=r"run_packed: the epoch of 300 nodes in 1 groups was packed by another runner"
    ):
        other.run_packed(packed, out)
    with pytest.raises(ValueError, match=r"pack: .* pack it with this runner's pack\(\)"):
        other.pack(x, into=packed)
    assert np.isnan(out).all()
    assert np.array_equal(one.run_packed(packed), one.run(x))


def test_a_runner_runs_once_at_a_time() -> None:
    a, labels, x = example()
    wanted = nn.ClusterRunner(a, network("gcn", 2), labels=labels, parts_per_batch=2, group_nodes=50).run(x)

    def again(done: int, groups: int) -> None:
        copied = copy.copy(runner)
        copied._progress = None
        for call in (runner.run, lambda x: runner.run_packed(packed)):
            with pytest.raises(errors.LockError, match=r"this runner is in the middle of another run; .* copy\.copy"):
                call(-x)
        assert np.array_equal(copied.run(x), wanted)

    runner = nn.ClusterRunner(a, network("gcn", 2), labels=labels, parts_per_batch=2, group_nodes=50, progress=again)
    packed = runner.pack(x)
    assert np.array_equal(runner.run(x), wanted) and np.array_equal(runner.run_packed(packed), wanted)
    assert runner.report.groups > 2


@pytest.mark.parametrize("copied", [lambda runner: pickle.loads(pickle.dumps(runner)), copy.deepcopy, copy.copy])
def test_runners_are_copied_after_a_run(copied: Any) -> None:
    a, labels, x = example()
    runner = nn.ClusterRunner(a, network("gcn", 2), labels=labels)
    wanted = runner.run(x)
    assert np.array_equal(copied(runner).run(x), wanted)


def test_graphs_and_labels_as_documented() -> None:
    a, labels, x = example()
    coo, model = a.tocoo(), network("gcn", 2)
    entries = (np.ones(coo.nnz, bool), coo.coords)
    assert nn.ClusterRunner(entries, model, parts=3, cache=False).packets.nodes == NODES
    expected = nn.ClusterRunner(a, model, labels=labels).run(x)
    spread = labels.astype(np.int64) << 40  # labels may be any numbers, as no array has their size
    assert np.array_equal(nn.ClusterRunner(a, model, labels=spread).run(x), expected)


def test_partitions_are_kept_on_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path))
    a, _, x = example(directed=False)
    labels, found = cached_partition(a, 6)
    again, found_again = cached_partition(a, 6)
    assert (found, found_again) == (False, True) and np.array_equal(labels, again)
    assert np.array_equal(labels, graph.partition(a, 6))
    (file,) = (tmp_path / "parts").iterdir()
    for damage in (b"", b"no array", file.read_bytes()[:-8]):
        file.write_bytes(damage)
        mended, found = cached_partition(a, 6)
        assert not found and np.array_equal(mended, labels)
    assert graph_hash(a) != graph_hash(example()[0])
    runner = nn.ClusterRunner(a, network("gcn", 2), parts=6)
    assert np.array_equal(runner.run(x), nn.ClusterRunner(a, network("gcn", 2), labels=labels).run(x))
    assert np.array_equal(runner.run(x), nn.ClusterRunner(a, network("gcn", 2), parts=6, cache=False).run(x))


def test_refusals() -> None:
    a, labels, x = example()
    model = network("gcn", 2)
    runner = nn.ClusterRunner(a, model, labels=labels)
    with pytest.raises(
        bs.errors.ShapeError, match=r"features have shape \(300, 28\), but graph and model take \(300, 29\)"
    ):
        runner.run(x[:, :28])
    with pytest.raises(bs.errors.DTypeError, match="complex64"):
        runner.run(x.astype(np.complex64))
    with pytest.raises(bs.errors.ShapeError, match=r"out has shape \(300, 4\)"):
        runner.run(x, np.empty((NODES, 4), np.float32))
    with pytest.raises(ValueError, match="resume=True goes with out as a path"):
        runner.run(x, resume=True)
    with pytest.raises(ValueError, match="form must be one of"):
        nn.ClusterRunner(a, model, labels=labels, form="full")  # type: ignore[arg-type]
    with pytest.raises(bs.errors.ShapeError, match="7 labels for 300 nodes"):
        nn.ClusterRunner(a, model, labels=np.zeros(7, int))
    with pytest.raises(ValueError, match="parts count from 0"):
        nn.ClusterRunner(a, model, labels=labels - 1)
    with pytest.raises(ValueError, match="group_nodes"):
        nn.ClusterRunner(a, model, labels=labels, group_nodes=0)
    nan = x.copy()
    nan[17, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        runner.run(nan)


def test_damaged_packets_are_refused() -> None:
    a, labels, _ = example()
    packets = Packets(a, labels, self_loops=True, group_nodes=10**6)
    packet = packets.pack(packets.groups[0])
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = packet.buffer[: packet.nbytes].copy()
        where = rng.integers(0, data.size, 3)
        data[where] = rng.integers(0, 256, 3)
        with contextlib.suppress(ValueError):
            indptr, indices = host.expand(data, packet.group.nodes, packet.group.entries)
            assert indices.min() >= 0 and indices.max() < packet.group.nodes
            assert indptr[-1] == packet.group.entries
    with pytest.raises(ValueError, match="damaged"):
        host.expand(packet.buffer[:40], packet.group.nodes, packet.group.entries)
    broken = Packets(a, labels)
    broken._graph = (broken._graph[0], broken._graph[1] + 10**6, *broken._graph[2:])
    with pytest.raises(ValueError, match="not valid"):
        _ = broken.groups


def test_wide_indices_give_the_same_packets() -> None:
    a, labels, _ = example()
    narrow, wide = Packets(a, labels), Packets(a, labels)
    wide._graph = (wide._graph[0].astype(np.int64), wide._graph[1].astype(np.int64), *wide._graph[2:])
    one, two = (each.pack(each.groups[0]) for each in (narrow, wide))
    assert np.array_equal(one.buffer[: one.nbytes], two.buffer[: two.nbytes])


@pytest.mark.parametrize("normalisation", ["gcn", "mean", "sum"])
@pytest.mark.parametrize(("bits", "encoding"), [(1, "bipolar"), (3, "unsigned"), (4, "signed"), (16, "unsigned")])
def test_operands_of_every_form(normalisation: Any, bits: int, encoding: Any) -> None:
    a, _, _ = example()
    rng = np.random.default_rng(2)
    q = rng.integers(0, 2**bits, (NODES, 9))
    q = 2 * q - 1 if encoding == "bipolar" else q - 2 ** (bits - 1) if encoding == "signed" else q
    x = bs.BitTensor(q, bits, encoding=encoding, offset=np.arange(9.0, dtype=np.float32)[None, :])
    epilogue = bs.Epilogue(bias=np.arange(9.0), offset_correction=True)
    pattern = (a.toarray() != 0) | np.eye(NODES, dtype=bool)
    results = []
    for form in ("csr", "dense", "frdc", "tiled"):
        operand = nn.Graph.from_csr(a.indptr, a.indices, normalisation=normalisation, self_loops=True, form=form)
        results.append(operand.aggregate(9, bits, encoding=encoding, epilogue=epilogue)(x))
        assert operand.nbytes > 0 and form in repr(operand)
    left = {"gcn": pattern.sum(axis=1) ** -0.5, "mean": 1 / pattern.sum(axis=1), "sum": np.ones(NODES)}[normalisation]
    exact = left[:, None] * (pattern @ (q + np.arange(9.0))) + np.arange(9.0)
    assert np.allclose(results[0], exact, rtol=1e-5, atol=1e-3)
    assert all(np.array_equal(results[0], other) for other in results[1:])
    assert operand.tiles()[1] <= operand.tiles()[0]


def test_report_is_one_object() -> None:
    a, labels, x = example()
    runner = nn.ClusterRunner(a, network("gin", 2), labels=labels, parts_per_batch=2, group_nodes=100)
    runner.run(x)
    record = json.loads(json.dumps(runner.report.record()))
    assert record["device"] == "cpu" and record["batches"] == -(-record["parts"] // 2) and record["compute_ms"] > 0
    assert record["float_bytes"] == 16 * (record["edges"] - NODES) + 4 * 29 * NODES


def test_a_report_s_bytes_are_those_of_the_packets_and_its_times_are_times() -> None:
    a, labels, x = example()
    runner = nn.ClusterRunner(a, network("gcn", 4), labels=labels, parts_per_batch=2, group_nodes=100)
    packed = runner.pack(x)
    moved = sum(packet.nbytes for packet in packed.packets)
    reports = []
    for run in (lambda: runner.run(x), lambda: runner.run_packed(packed)):
        run()
        reports.append(runner.report)
    for report in reports:
        assert isinstance(report.bytes_moved, int)
        assert report.bytes_moved == moved == packed.nbytes == report.adjacency_bytes + report.feature_bytes
        assert report.groups == len(packed.packets) > 1 and report.float_bytes > report.bytes_moved
        assert dict(report.stages())["packing"] == report.pack_seconds > 0
        assert f"{size(moved)} moved" in str(report) and f"packing {duration(report.pack_seconds)}" in str(report)
    assert 0 < reports[0].pack_seconds < reports[0].seconds  # packing is part of the first run
    assert reports[1].pack_seconds == packed.seconds  # the second run was packed before it


def test_the_command_line_says_that_weights_are_left_out(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path / "cache"))
    a, _, x = example(directed=False)
    about = {"indptr": a.indptr, "indices": a.indices, "num_nodes": NODES, "features": x}
    said = []
    for weights in ({}, {"weights": np.full(a.nnz, 0.5)}):
        np.savez(tmp_path / "g.npz", **about, **weights)
        assert main(["run", "--graph", str(tmp_path / "g.npz"), "--parts", "3", "--model", "gin"]) == 0
        said.append("the edge weights of g are left out" in capsys.readouterr().err)
    assert said == [False, True]


def test_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path / "cache"))
    a, _, x = example(directed=False)
    file = tmp_path / "g.npz"
    csr = sparse.csr_array(x)
    np.savez(
        file, indptr=a.indptr, indices=a.indices, num_nodes=NODES, x_indptr=csr.indptr, x_indices=csr.indices, x_data=csr.data,
        x_shape=np.array(csr.shape), labels=np.arange(NODES) % 3,
    )  # fmt: skip
    out, page = tmp_path / "y.npy", tmp_path / "r.html"
    common = ["run", "--graph", str(file), "--parts", "12", "--batch", "3"]
    assert main([*common, "--json", "--bits", "4", "--out", str(out), "--report", str(page)]) == 0
    record = json.loads(capsys.readouterr().out)
    batches = record["batches"]
    assert (batches["parts"], batches["batches"], record["bits"], record["graph"]) == (12, 4, 4, "g")
    assert 0 <= record["accuracy"] <= 100 and batches["bytes_moved"] < batches["float_bytes"] and batches["tiles"] > 0
    assert np.load(out).shape == (NODES, 3)
    assert "<table" in page.read_text() and "gcn-29-16-3-b4" in page.read_text()
    weights = tmp_path / "gin.npz"
    nn.random_network("gin", [29, 8, 3]).save(weights)
    plain = ["--model", str(weights), "--form", "dense", "--between", "--no-cache", "--out", str(out)]
    assert main([*common, *plain]) == 0
    assert "times less than edge lists" in capsys.readouterr().out
    # A network from a file gets the features as they are, without normalisation.
    model = nn.quantize_network(nn.load_network(weights), a, csr, 8)
    options: Any = {"parts": 12, "parts_per_batch": 3, "between": True}
    assert np.array_equal(np.load(out), nn.ClusterRunner(a, model, **options).run(csr))
    for wrong, said in (
        (["--model", "nope"], "neither gcn, sage, gin nor a file"),
        (["--resume"], "--resume goes with --out"),
        (["--report", "r.txt"], "must end in .html or .png"),
    ):
        assert main([*common, *wrong]) == 2
        assert said in capsys.readouterr().err
