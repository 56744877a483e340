"""`bitsparse inspect`, `bitsparse convert`, and the forms of the adjacency in low-bit networks and in `bitsparse demo`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import nn, viz
from bitsparse.bench import Protocol
from bitsparse.cli import main
from bitsparse.cli import run as run_command
from bitsparse.cli.demo import large, sides
from bitsparse.datasets import GraphData, read, synthetic
from bitsparse.errors import DTypeError
from bitsparse.graph.operand import form_for


@pytest.fixture
def graph_file(tmp_path):
    graph = synthetic((300, 2400), "communities").with_generated(features=24, classes=3).with_split(per_class=10)
    file = tmp_path / "made.npz"
    parts = {key: getattr(graph, key) for key in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask")}
    np.savez(file, features=graph.x, **parts)
    return file


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


# ---- inspect
def test_inspect_counts(graph_file, capsys):
    code, out, err = run(capsys, "inspect", graph_file, "--json", "--parts", 40)
    assert (code, err) == (0, "")
    facts = json.loads(out)
    matrix = read(graph_file).adjacency
    rows, cols = matrix.nonzero()
    assert (facts["name"], facts["form"], facts["shape"], facts["entries"]) == ("made", "npz", [300, 300], 2400)
    assert facts["symmetric"]
    assert facts["self_loops"] == 0
    degrees = np.diff(matrix.indptr)
    assert facts["degrees"]["max"] == degrees.max()
    assert facts["degrees"]["mean"] == 8
    for tile in facts["tiles"]:
        window, width = tile["window"], tile["width"]
        assert tile["before"] == len(set(zip(rows // window, cols // width, strict=True)))
        unique = [np.unique(cols[rows // window == w]).size for w in range(-(-300 // window))]
        assert tile["after"] == sum(-(-size // width) for size in unique)
    blocks = len(set(zip(rows // 4, cols // 4, strict=True)))
    assert facts["frdc"] == {"tiles": blocks, "entries_per_tile": round(2400 / blocks, 4)}
    assert facts["bytes"]["frdc"] == bs.FRDC(matrix).nbytes
    assert facts["bytes"]["bits"] == bs.BitTensor(matrix.toarray()).words.nbytes
    assert 0 <= facts["batches"]["zero_tile_share"] <= 1
    assert facts["batches"]["parts"] == 40


@pytest.mark.parametrize("width", [1, 2, 8, 64, 128, 512, 4096])
def test_tiles_of_any_width_start_at_multiples_of_it(width):
    rng = np.random.default_rng(width)
    cols = np.sort(rng.choice(100_000, 400, replace=False))
    rows = rng.integers(0, 40, 400)
    matrix = sp.coo_array((np.ones(400, bool), (rows, cols)), shape=(40, 100_000)).tocsr()
    found = bs.graph.tile_statistics(matrix, window=8, width=width)
    assert found.before == len(set(zip(rows // 8, cols // width, strict=True)))


def test_inspect_prints_a_table(graph_file, capsys, tmp_path):
    code, out, err = run(capsys, "inspect", graph_file, "--plot", tmp_path / "spy.png", "--parts", 10)
    assert code == 0
    assert out.startswith("made (npz): 300 x 300, 2400 entries, symmetric, 0 self loops\ndegrees: mean 8.00")
    assert "FRDC: " in out
    assert "batches of 20 of 10 parts" in out
    assert err == f"bitsparse inspect: wrote {tmp_path / 'spy.png'}\n"
    assert (tmp_path / "spy.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_reads_what_bitsparse_saves(tmp_path, capsys):
    a = sp.random_array((50, 70), density=0.1, rng=np.random.default_rng(1), format="csr")
    for name, made in (
        ("f", bs.FRDC(a, pattern=True)),
        ("t", bs.TCTiledCSR(a)),
        ("b", bs.BitTensor((a != 0).toarray())),
    ):
        bs.save_npz(tmp_path / f"{name}.npz", made)
        code, out, _ = run(capsys, "inspect", tmp_path / f"{name}.npz", "--json")
        facts = json.loads(out)
        assert (code, facts["shape"], facts["entries"], facts["symmetric"]) == (0, [50, 70], a.nnz, False)


def test_inspect_an_empty_graph(tmp_path, capsys):
    np.savez(tmp_path / "none.npz", indptr=[0], indices=np.empty(0, int))
    code, out, _ = run(capsys, "inspect", tmp_path / "none.npz", "--json")
    assert code == 0
    assert json.loads(out)["density"] == 0
    assert run(capsys, "inspect", tmp_path / "none.npz")[0] == 0


# ---- convert
@pytest.mark.parametrize("edges", [[], [(0, 2)]])
@pytest.mark.parametrize("name", ["a.npz", "a.mtx", "a.txt"])
def test_nodes_without_edges_come_back(capsys, tmp_path, name, edges):
    whole = sp.coo_array((np.full(len(edges), 0.5), tuple(np.array(edges, int).reshape(-1, 2).T)), (5, 5)).tocsr()
    GraphData(indptr=whole.indptr, indices=whole.indices, weights=whole.data, name="a").save(tmp_path / "given.npz")
    assert run(capsys, "convert", tmp_path / "given.npz", tmp_path / name)[0] == 0
    for weights in (False, True):
        back = read(tmp_path / name, weights=weights)
        assert (back.num_nodes, back.num_edges) == (5, len(edges))
        assert (back.weighted if weights else back.adjacency).sum() == len(edges) * (0.5 if weights else 1)


@pytest.mark.parametrize("name", ["a.npz", "a.tcgnn.npz", "a.mtx", "a.txt", "a.frdc.npz", "a.tiled.npz", "a.bits.npz"])
def test_every_form_and_back(graph_file, tmp_path, capsys, name):
    code, out, err = run(capsys, "convert", graph_file, tmp_path / name)
    assert (code, out) == (0, "")
    assert err.startswith("bitsparse convert: made (npz), 300 x 300, 2400 entries -> ")
    code, _, err = run(capsys, "convert", tmp_path / name, tmp_path / "back.npz")
    assert code == 0, err
    one, other = read(graph_file), read(tmp_path / "back.npz")
    np.testing.assert_array_equal(other.indptr, one.indptr)
    np.testing.assert_array_equal(other.indices, one.indices)
    assert other.weights is None
    if name == "a.npz":
        np.testing.assert_array_equal(other.x, one.x)
        np.testing.assert_array_equal(other.labels, one.labels)
        np.testing.assert_array_equal(other.test_mask, one.test_mask)


def test_weights_survive_where_the_form_has_them(tmp_path, capsys):
    (tmp_path / "w.txt").write_text("0 1 0.5\n1 2 0.25\n2 2 4\n")
    for form in ("w.mtx", "w.npz", "w.tiled.npz", "again.txt"):
        assert run(capsys, "convert", tmp_path / "w.txt", tmp_path / form)[0] == 0
        assert run(capsys, "convert", tmp_path / form, tmp_path / "check.npz", "--force")[0] == 0
        np.testing.assert_array_equal(read(tmp_path / "check.npz").weights, [0.5, 0.25, 4])
    code, _, err = run(capsys, "convert", tmp_path / "w.txt", tmp_path / "w.frdc.npz")
    assert code == 2
    assert "bits hold only 0 and 1" in err
    assert run(capsys, "convert", tmp_path / "w.txt", tmp_path / "w.frdc.npz", "--pattern")[0] == 0
    assert run(capsys, "convert", tmp_path / "w.txt", tmp_path / "s.npz", "--pattern", "--symmetric")[0] == 0
    assert read(tmp_path / "s.npz").num_edges == 5


def test_convert_refuses_in_one_line(graph_file, tmp_path, capsys):
    bs.save_npz(tmp_path / "wide.npz", bs.FRDC(np.ones((2, 3), int)))
    for arguments, message in (
        ([graph_file, tmp_path / "x.dat"], "does not tell its form"),
        ([graph_file, graph_file], "exists already"),
        ([tmp_path / "none.npz", tmp_path / "x.npz"], "there is no file"),
        ([tmp_path / "wide.npz", tmp_path / "x.npz"], "as many rows as columns"),
        ([graph_file, tmp_path / "x.npz", "--base", 1], "belong to edge lists"),
        ([tmp_path / "wide.npz", tmp_path / "x.mtx", "--symmetric"], "belong to edge lists"),
    ):
        code, out, err = run(capsys, "convert", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert run(capsys, "convert", tmp_path / "wide.npz", tmp_path / "wide.mtx")[0] == 0
    # If nothing can be written to a path, this is reported before anything is read.
    with pytest.raises(SystemExit, match="2"):
        run(capsys, "convert", tmp_path / "none.npz", tmp_path / "nowhere" / "x.npz")
    assert "must lie in a folder that exists" in capsys.readouterr().err


# ---- demo
@pytest.fixture(scope="module")
def trained():
    data = synthetic((400, 4800), "communities", seed=2).with_generated(features=32, classes=4).with_split(per_class=15)
    graph, features = nn.Graph(data.adjacency), nn.Features(abs(data.x))
    model = nn.train(graph, features, data.targets, data.train_mask, epochs=60)
    return data.adjacency, partial(nn.quantize_network, model, data.adjacency, features), features


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8, 12, 16])
def test_every_form_gives_the_same_bits(trained, bits):
    """All forms of the adjacency must give the same logits, also if the features have a scale for each row."""
    adjacency, quantized, features = trained
    network = quantized(bits)
    codes = network.quantize(features)
    assert codes.scale is not None
    csr, *others = (network(nn.Graph(adjacency, form=f), codes) for f in ("csr", "dense", "frdc", "tiled"))
    for logits in others:
        np.testing.assert_array_equal(logits, csr)


def test_the_sparse_route_makes_no_dense_adjacency(trained):
    adjacency, quantized, features = trained
    network, fresh = quantized(4), nn.Graph(adjacency, form="frdc")
    network(fresh, network.quantize(features))
    assert "dense" not in fresh._packed


def test_codes_of_rows_are_those_of_features(trained):
    adjacency, quantized, features = trained
    network = quantized(4)
    with pytest.raises(DTypeError, match=r"pass nn\.Features"):
        network.quantize(features.normalized)
    codes = network.quantize(features)
    with pytest.raises(ValueError, match=r"no scale.*network\.quantize\(nn\.Features\(x\)\)"):
        network(nn.Graph(adjacency), codes.with_affine())


def test_the_form_that_auto_takes():
    assert form_for("auto", 50_515, 1_638_396) == "csr"
    assert form_for("auto", 1000, 900_000) == "dense"
    assert form_for("auto", 100_000, 10**9) == "csr"
    assert form_for("frdc", 1000, 900_000) == "frdc"
    with pytest.raises(ValueError, match="form must be one of"):
        form_for("rows", 1, 1)


def test_demo_routes_agree(capsys, monkeypatch):
    monkeypatch.setattr(large, "_TIMING", Protocol(warmup=0, repetitions=1, seconds=0.0, sample_ms=0.0, pause=0.0))
    monkeypatch.setattr(sides, "geometric", lambda *_: None)
    agreements, patterns = {}, {}
    for form in ("csr", "frdc", "tiled"):
        arguments = "--only", "large", "--large", "640,6400", "--bits", 4, 1, "--adjacency", form, "--json"
        code, out, _ = run(capsys, "demo", *arguments)
        assert code == 0
        _, _, *ours = json.loads(out)["large"]["results"]
        agreements[form] = [row["agreement"] for row in ours]
        (patterns[form],) = {row["bytes"]["graph"] for row in ours}
    assert agreements["csr"] == agreements["frdc"] == agreements["tiled"]
    assert patterns["csr"] == 4 * (7040 + 641) + 8 * 640
    assert patterns["frdc"] != patterns["csr"]


def test_demo_of_a_bare_graph(tmp_path, capsys):
    graph = synthetic((600, 6000), "communities")
    np.savez(tmp_path / "bare.npz", indptr=graph.indptr, indices=graph.indices)
    code, _, err = run(capsys, "demo", "--only", "accuracy", "--graph", tmp_path / "bare.npz")
    assert code == 2
    assert "--generate" in err
    arguments = "--only", "accuracy", "--graph", tmp_path / "bare.npz", "--generate", "--bits", 8, "--json"
    code, out, err = run(capsys, "demo", *arguments)
    assert code == 0
    assert "are made up" in err
    assert json.loads(out)["accuracy"]["results"][0]["accuracy"] > 50


# ---- pictures
@pytest.mark.parametrize("form", [bs.BitTensor, bs.FRDC, bs.TCTiledCSR, sp.csr_array])
def test_pictures_of_every_form_agree(form):
    x = np.random.default_rng(3).random((70, 700)) < 0.004
    assert viz.spy(form(x)).get_title() == viz.spy(bs.BitTensor(x)).get_title()


def test_pictures_of_large_sparse_arrays_are_coarse():
    n = 200_000
    axes = viz.spy(sp.eye_array(n, format="csr", dtype=bool))
    assert axes.images[0].get_array().shape[0] <= 512
    assert axes.get_title().startswith(f"{n} x {n}, {n // 8} of ")


def test_the_accuracy_of_a_run_is_that_of_the_test_nodes_or_of_all_labelled_ones():
    labels = np.array([0, 1, 0, 1, -1, 0], np.int32)
    logits = np.eye(2)[[0, 1, 1, 0, 0, 1]]
    masks = {name: np.isin(np.arange(6), nodes) for name, nodes in (("train", [0]), ("val", [2, 3]), ("test", [1, 5]))}
    common = {"indptr": np.zeros(7, int), "indices": np.empty(0, int), "labels": labels}
    split = GraphData(**common, **{f"{name}_mask": mask for name, mask in masks.items()})
    assert run_command._accuracy(split, logits) == 50.0
    assert run_command._accuracy(GraphData(**common), logits) == 40.0
    assert run_command._accuracy(GraphData(**common | {"labels": np.full(6, -1, np.int32)}), logits) is None
    assert run_command._accuracy(GraphData(**common | {"labels": None}), logits) is None


@pytest.mark.skipif(os.name != "posix", reason="pipes and /dev/full")
@pytest.mark.parametrize(("command", "unbuffered"), [("info", ""), ("info", "1"), ("--help", "")])
def test_output_that_nobody_takes(command: str, unbuffered: str) -> None:
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as unread, open("/dev/full", "wb") as full:
        for stdout, status, said in ((unread, 141, ""), (full, 2, "No space left on device")):
            done = subprocess.run(
                [sys.executable, "-P", "-m", "bitsparse", command],
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
                check=False,
            )
            assert (done.returncode, len(done.stderr.splitlines())) == (status, bool(said))
            assert said in done.stderr


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code in (0, None) and capsys.readouterr().out == f"bitsparse {bs.__version__}\n"
