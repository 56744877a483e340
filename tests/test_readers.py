"""Readers of every form: what they read, and that no file crashes them, runs code or takes memory for sizes that it merely announces."""

from __future__ import annotations

import collections
import contextlib
import gzip
import pickle
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings

from bitsparse import datasets
from bitsparse.datasets import read, read_edges, read_mtx, read_npz, read_planetoid, recognise
from bitsparse.datasets.planetoid import PIECES, safe_load
from bitsparse.errors import BitsparseError, DTypeError, ShapeError

REFUSED = (ValueError, OSError, BitsparseError)


def dense(graph):
    return graph.adjacency.toarray().astype(int)


# ---- TC-GNN's npz
def test_tcgnn_form(tmp_path):
    file = tmp_path / "tc.npz"
    np.savez(file, src_li=np.array([2, 0, 0, 2]), dst_li=np.array([1, 2, 1, 1]), num_nodes=4)
    graph = read(file)
    assert repr(graph) == "GraphData(tc: 4 nodes, 3 edges)"
    np.testing.assert_array_equal(np.argwhere(dense(graph)), [[0, 1], [0, 2], [2, 1]])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dst_li": None}, ValueError, "dst_li or num_nodes is missing"),
        ({"num_nodes": None}, ValueError, "dst_li or num_nodes is missing"),
        ({"num_nodes": np.int64(2)}, ValueError, "a node has number 2, but there are 2 nodes"),
        ({"num_nodes": np.int64(1 << 40)}, ValueError, "number of nodes is 1099511627776"),
        ({"num_nodes": np.arange(2)}, ShapeError, "num_nodes must be one integer"),
        ({"src_li": np.array([0, -1])}, ValueError, "a node has number -1"),
        ({"src_li": np.array([0, 1, 2])}, ShapeError, "3 sources but 2 targets"),
        ({"src_li": np.array([0.0, 1.0])}, DTypeError, "src_li has dtype float64"),
        ({"src_li": np.zeros((1, 2), int)}, ShapeError, "must be one-dimensional"),
    ],
)
def test_bad_tcgnn_files(tmp_path, changes, error, message):
    arrays = {"src_li": np.array([0, 1]), "dst_li": np.array([1, 2]), "num_nodes": np.int64(3)} | changes
    np.savez(tmp_path / "bad.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(error, match=message):
        read(tmp_path / "bad.npz")


def test_npz_weights(tmp_path):
    np.savez(tmp_path / "w.npz", indptr=[0, 1, 2], indices=[1, 0], weights=[0.5, 2.0])
    graph = read_npz(tmp_path / "w.npz")
    np.testing.assert_array_equal(graph.weighted.toarray(), [[0, 0.5], [2, 0]])
    for weights, message in (([1.0], r"weights has shape \(1,\)"), ([np.nan, 1], "NaN"), (["a", "b"], "dtype")):
        np.savez(tmp_path / "w.npz", indptr=[0, 1, 2], indices=[1, 0], weights=weights)
        with pytest.raises(REFUSED, match=message):
            read_npz(tmp_path / "w.npz")


# ---- Matrix Market
def mtx(header, *lines):
    return "\n".join((f"%%MatrixMarket matrix {header}", *lines)) + "\n"


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        (mtx("coordinate pattern general", "% a comment", "3 3 2", "1 2", "3 1"), [[0, 1], [2, 0]]),
        (mtx("coordinate real symmetric", "3 3 2", "2 1 0.5", "3 3 2"), [[0, 1], [1, 0], [2, 2]]),
        (mtx("coordinate integer general", "3 3 3", "1 2 4", "1 2 5", "2 1 1"), [[0, 1], [1, 0]]),
        (mtx("array real general", "2 2", "0", "1", "2", "0"), [[0, 1], [1, 0]]),
        (mtx("coordinate pattern general", "0 0 0"), np.empty((0, 2))),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_matrix_market(tmp_path, text, edges, zipped):
    file = tmp_path / ("m.mtx.gz" if zipped else "m.mtx")
    file.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    graph = read(file)
    assert graph.name == "m"
    assert graph.weights is None
    np.testing.assert_array_equal(np.argwhere(dense(graph)).reshape(-1, 2), edges)


def test_matrix_market_weights(tmp_path):
    file = tmp_path / "w.mtx"
    file.write_text(mtx("coordinate real symmetric", "2 2 2", "2 1 0.5", "2 2 3"))
    np.testing.assert_array_equal(read(file, weights=True).weighted.toarray(), [[0, 0.5], [0.5, 3]])


def test_what_scipy_writes_comes_back(tmp_path):
    from scipy.io import mmwrite

    a = sp.random_array((40, 40), density=0.1, rng=np.random.default_rng(0))
    mmwrite(tmp_path / "a.mtx", a)
    np.testing.assert_allclose(read_mtx(tmp_path / "a.mtx", weights=True).weighted.toarray(), a.toarray())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a Matrix Market header"),
        ("%%MatrixMarket vector coordinate real general\n", "not a Matrix Market header"),
        (mtx("coordinate pattern general"), "the size line holds ''"),
        (mtx("coordinate pattern general", "3 3"), "3 whole numbers are needed"),
        (mtx("coordinate pattern general", "3 3 -2"), "3 whole numbers are needed"),
        (mtx("coordinate pattern general", "3 2 1", "1 1"), "as many rows as columns"),
        (mtx("coordinate pattern general", "3 3 900000000000", "1 1"), "is truncated or damaged"),
        (mtx("coordinate pattern general", "900000000000 900000000000 1", "1 1"), "at most"),
        (mtx("array real general", "900000 900000", "1"), "is truncated or damaged"),
        (mtx("coordinate pattern general", "3 3 2", "1 2   "), "cannot be parsed"),
        (mtx("coordinate pattern general", "3 3 1", "1 9"), "cannot be parsed"),
        (mtx("coordinate pattern general", "3 3 1", "0 1"), "cannot be parsed"),
        (mtx("coordinate real general", "2 2 1", "1 1 x"), "cannot be parsed"),
        (mtx("coordinate complex general", "2 2 1", "1 1 1 2"), "complex"),
    ],
)
def test_bad_matrix_market_files(tmp_path, text, message):
    file = tmp_path / "bad.mtx"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read_mtx(file, weights=True)
    assert str(raised.value).startswith(f"read_mtx: {file}: ")


# ---- edge lists
@pytest.mark.parametrize(
    "text",
    ["0 1\n1 2\n", "# head\n0\t1\n\n% more\n1\t2", "source,target\n0,1\n1,2\n", "0;1;x\n1;2;y\n", "0 1 7\r\n1 2 8\r\n"],
)
def test_edge_lists(tmp_path, text):
    file = tmp_path / "e.txt"
    file.write_text(text)
    np.testing.assert_array_equal(dense(read(file)), [[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(dense(read(file, symmetric=True)), [[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def test_edge_list_options(tmp_path):
    file = tmp_path / "e.el.gz"
    file.write_bytes(gzip.compress(b"1 2 0.5\n2 2 1\n1 2 0.25\n"))
    graph = read_edges(file, base=1, weights=True, symmetric=True, nodes=4)
    assert (graph.name, graph.num_nodes) == ("e", 4)
    np.testing.assert_array_equal(graph.weighted.toarray()[:2, :2], [[0, 0.75], [0.75, 1]])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "holds no edge"),
        ("# only\n# comments\n", {}, "holds no edge"),
        ("a b\nc d\n", {}, "line 2: 'c' is not a node's number"),
        ("0\n", {}, "line 1 holds 1 word, but 2 are needed"),
        ("0 1\n0 x\n", {}, "line 2: 'x' is not a node's number"),
        ("0 1.5\n", {}, "'1.5' is not a node's number"),
        ("0 -1\n", {}, "a node has number -1"),
        ("0 1\n", {"base": 1}, "a node has number -1"),
        ("0 99999999999\n", {}, "at most"),
        ("0 99999999999999999999999\n", {}, "is not a node's number"),
        ("# 99999999999 nodes, source target\n", {}, "the number of nodes is 99999999999, but with 0 entries at most"),
        ("# 3 nodes, source target\n0 5\n", {}, "a node has number 5, but there are 3 nodes"),
        ("0 5\n", {"nodes": 3}, "a node has number 5, but there are 3 nodes"),
        ("0 1\n", {"weights": True}, "no weights to keep"),
        ("0 1 nan\n", {"weights": True}, "NaN"),
        ("0 1\n", {"base": 2}, "base must be 0 or 1"),
        ("0 1\n", {"nodes": -1}, "nodes must be at least 0"),
        ("0 1 2\n0 1\n", {"weights": True}, "line 2 holds 2 words, but 3 are needed"),
        ("0 1 2\n0 1 x\n", {"weights": True}, "line 2: 'x' is not a weight"),
    ],
)
def test_bad_edge_lists(tmp_path, text, options, message):
    file = tmp_path / "bad.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read_edges(file, **options)
    assert str(raised.value).startswith("read_edges: ")


def test_bytes_that_are_no_text(tmp_path):
    for content, message in ((b"0 1\n\xff\xfe", "not text"), (b"0 1\n" + bytes(9), "not text|no form")):
        (tmp_path / "bad.txt").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "bad.txt")
    lines = "\n".join(f"{i} {i * i % 1009}" for i in range(2000)).encode()
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(lines)[:-2000])
    with pytest.raises(ValueError, match="damaged gzip file"):
        read(tmp_path / "cut.txt.gz")


# ---- Planetoid
def planetoid(folder, name="tiny", *, python2=True):
    """Write a ring of nine nodes: three for training, six known ones, two for tests with a gap between them; node 7 is bare."""
    rng = np.random.default_rng(0)
    x = sp.random(8, 5, density=0.6, format="csr", dtype=np.float32, random_state=0)
    y = np.eye(2, dtype=np.int32)[rng.integers(0, 2, 8)]
    graph = collections.defaultdict(list, {i: [(i + 1) % 9, (i - 1) % 9, (i + 1) % 9] for i in range(9)})
    pieces = {"x": x[:3], "allx": x[:6], "tx": x[6:], "y": y[:3], "ally": y[:6], "ty": y[6:], "graph": graph}
    for piece, value in pieces.items():
        content = pickle.dumps(value, protocol=2)
        if python2:
            content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            content = content.replace(b"scipy.sparse._csr", b"scipy.sparse.csr")
        (folder / f"ind.{name}.{piece}").write_bytes(content)
    (folder / f"ind.{name}.test.index").write_text("8\n6\n")
    return x.toarray(), y


@pytest.mark.parametrize("python2", [True, False])
def test_planetoid(tmp_path, python2):
    x, y = planetoid(tmp_path, python2=python2)
    for path in (tmp_path, tmp_path / "ind.tiny.x", str(tmp_path / "ind.tiny.test.index")):
        assert recognise(path) == "planetoid"
        graph = read(path)
        assert repr(graph) == "GraphData(tiny: 9 nodes, 18 edges, 5 features, 2 classes)"
    np.testing.assert_array_equal(dense(graph)[0], [0, 1, 0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(graph.labels, [*y[:6].argmax(axis=1), y[7].argmax(), -1, y[6].argmax()])
    np.testing.assert_array_equal(graph.x.toarray()[[0, 6, 7, 8]], [x[0], x[7], 0 * x[0], x[6]])
    assert [np.flatnonzero(mask).tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 8],
    ]


def test_five_hundred_nodes_behind_the_training_nodes_validate(tmp_path):
    planetoid(tmp_path)
    known = 520
    pieces = {
        "x": sp.csr_matrix(np.ones((3, 5), np.float32)), "y": np.eye(2, dtype=np.int32)[[0, 1, 0]],
        "allx": sp.csr_matrix(np.ones((known, 5), np.float32)), "ally": np.eye(2, dtype=np.int32)[np.arange(known) % 2],
        "graph": {i: [(i + 1) % known] for i in range(known)},
    }  # fmt: skip
    for piece, value in pieces.items():
        (tmp_path / f"ind.tiny.{piece}").write_bytes(pickle.dumps(value, protocol=2))
    (tmp_path / "ind.tiny.test.index").write_text(f"{known}\n{known + 1}\n")
    graph = read_planetoid(tmp_path)
    assert np.flatnonzero(graph.train_mask).tolist() == [0, 1, 2]
    assert np.flatnonzero(graph.val_mask).tolist() == list(range(3, 503))
    assert np.flatnonzero(graph.test_mask).tolist() == [known, known + 1]


def test_planetoid_files_that_do_not_fit(tmp_path):
    def changed(piece, value, message, error=ValueError):
        planetoid(tmp_path)
        content = value if isinstance(value, bytes) else pickle.dumps(value, protocol=2)
        (tmp_path / f"ind.tiny.{piece}").write_bytes(content)
        with pytest.raises(error, match=message):
            read_planetoid(tmp_path)

    changed("test.index", b"8\n", "test.index names 1 nodes", ShapeError)
    changed("test.index", b"8\n8\n", "one each is needed", ShapeError)
    changed("test.index", b"8\n3\n", "none of test.index")
    changed("test.index", b"8\n-3\n", "one whole number a line")
    changed("test.index", b"8\n999999999999\n", "number of nodes")
    changed("y", np.eye(2), "y has 2", ShapeError)
    changed("y", [1, 2], "two-dimensional array")
    changed("graph", [1, 2], "dict from node")
    changed("graph", {0: [999]}, "graph names nodes")
    changed("graph", {0: ["a"]}, "node numbers")
    changed("x", np.eye(3), "csr_matrix")
    changed("graph", {i: [0] for i in range(9)} | {9: [10**9]}, "graph names nodes")
    shared = [0] * 3000
    changed("graph", dict.fromkeys(range(9000), shared), "spreads")
    (tmp_path / "ind.tiny.ty").unlink()
    with pytest.raises(FileNotFoundError, match=r"ind\.tiny\.ty"):
        read_planetoid(tmp_path)
    (tmp_path / "ind.other.graph").write_bytes(b"")
    with pytest.raises(ValueError, match="other, tiny"):
        read_planetoid(tmp_path)
    with pytest.raises(ValueError, match=r"is not one of ind\.NAME"):
        read_planetoid(tmp_path / "cora.graph")


class Loud:
    def __reduce__(self):
        return print, ("unpickled",)


def opcode(name, argument=b""):
    import pickletools

    (code,) = [op.code for op in pickletools.opcodes if op.name == name]
    return code.encode("latin-1") + argument


HOSTILE = {
    "a call": pickle.dumps(Loud(), protocol=2),
    "a call, text protocol": pickle.dumps(Loud(), protocol=0),
    "a call, newest protocol": pickle.dumps(Loud(), protocol=5),
    "a module": b"cos\nsystem\n(S'true'\ntR.",
    "an attribute of numpy": b"cnumpy\nload\n(S'x'\ntR.",
    "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
    "objects": pickle.dumps(np.array([None, Loud()], dtype=object), protocol=2),
    "a class of ours": pickle.dumps(ShapeError("x"), protocol=2),
    "a persistent id": b"Px\n.",
    "an extension": opcode("EXT1", b"\x01") + b".",
    "a buffer": opcode("PROTO", b"\x05") + opcode("BYTEARRAY8", (1 << 40).to_bytes(8, "little")) + b".",
    "long bytes": opcode("BINBYTES8", (1 << 60).to_bytes(8, "little")) + b"x.",
    "long text": opcode("BINUNICODE", b"\xff\xff\xff\x7f") + b"x.",
    "bytes of a length": b"c__builtin__\nbytes\n(I1000000000000\ntR.",
    "an empty stack": b".",
    "nothing": b"",
    "no end": b"]",
    "a dtype of objects": b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
    "an announced array": pickle.dumps(np.zeros(3), protocol=2).replace(b"K\x03\x85", b"J\xff\xff\xff\x7f\x85"),
    "a class called": b"cnumpy\nndarray\n)R}b.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_nothing_but_data_is_unpickled(content, capsys):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\w"):
            safe_load(content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert capsys.readouterr().out == ""


def test_a_large_memo_number_takes_no_memory():
    tracemalloc.start()
    assert safe_load(b"]" + opcode("LONG_BINPUT", b"\xff\xff\xff\xff") + b".") == []
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_what_such_files_hold_is_unpickled():
    for value in ({0: [1, 2], "a": (3.5, None, True)}, [2**70, -1, "text"], collections.defaultdict(list, {1: [2]})):
        for protocol in range(5):
            assert safe_load(pickle.dumps(value, protocol=protocol)) == value
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.eye(3, dtype=">i4")),
        np.array([True]),
        np.empty((0, 2)),
    ):
        for protocol in range(5):
            got = safe_load(pickle.dumps(array, protocol=protocol))
            np.testing.assert_array_equal(got, array)
            assert got.dtype == array.dtype.newbyteorder("=")
    matrix = sp.csr_matrix(np.eye(3, 4))
    np.testing.assert_array_equal(safe_load(pickle.dumps(matrix, protocol=2)).toarray(), matrix.toarray())


# ---- damaged files of every form
def samples(folder):
    planetoid(folder)
    graph = datasets.synthetic((40, 80), seed=1)
    np.savez(folder / "plain.npz", indptr=graph.indptr, indices=graph.indices, weights=np.ones(80))
    rows = np.repeat(np.arange(40), np.diff(graph.indptr))
    np.savez(folder / "tc.npz", src_li=rows, dst_li=graph.indices, num_nodes=40)
    pairs = [f"{a} {b} 0.5" for a, b in zip(rows + 1, graph.indices + 1, strict=True)]
    (folder / "m.mtx").write_text(mtx("coordinate real general", "40 40 80", *pairs))
    (folder / "e.txt").write_text("\n".join(pairs))
    return [folder / name for name in ("plain.npz", "tc.npz", "m.mtx", "e.txt", *(f"ind.tiny.{p}" for p in PIECES))]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("number", range(12))
def test_damaged_files_are_read_or_refused(tmp_path, number):
    """Files with bytes changed, cut off, doubled or inserted must give a graph or a clear error, and never take much memory."""
    file = samples(tmp_path)[number]
    whole = file.read_bytes()
    rng = np.random.default_rng(number)
    read(file)
    tracemalloc.start()
    refused = 0
    for trial in range(250):
        content = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, len(content) + 1))
            what = rng.integers(0, 5)
            if what == 0:
                content[at:] = b""
            elif what == 1:
                content[at : at + 1] = bytes([rng.integers(0, 256)])
            elif what == 2:
                content[at : at + 1] = (
                    bytes([content[at] ^ (1 << int(rng.integers(0, 8)))]) if at < len(content) else b"\xff"
                )
            elif what == 3:
                content[at:at] = content[at : at + 20]
            else:
                content[at:at] = rng.choice([b"9" * 12, b"-", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"nan", b"\n"])
        file.write_bytes(bytes(content))
        try:
            graph = read(file, weights=trial % 2 == 0)
        except REFUSED:
            refused += 1
        else:
            assert graph.num_edges <= 40 * len(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused
    assert peak < 1 << 30


@given(st.binary(max_size=400))
@settings(max_examples=150)
def test_any_bytes(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any", numbered=True)
    for name in ("any.npz", "any.mtx", "any.txt", "any.gz"):
        (folder / name).write_bytes(content)
        with contextlib.suppress(*REFUSED):
            read(folder / name)
    with contextlib.suppress(ValueError):
        safe_load(content)


def test_recognised_forms(tmp_path):
    files = samples(tmp_path)
    assert [recognise(file) for file in files] == ["npz", "npz", "mtx", "edges", *["planetoid"] * 8]
    (tmp_path / "named.dat").write_bytes(files[2].read_bytes())
    assert recognise(tmp_path / "named.dat") == "mtx"
    (tmp_path / "b.dat").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="no form that is known"):
        read(tmp_path / "b.dat")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read(tmp_path / "none")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read(tmp_path.parent)
    with pytest.raises(ValueError, match="belong to edge lists"):
        read(files[0], base=1)
