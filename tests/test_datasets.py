"""Graphs from files and from scikit-learn: the parts that are read, and the content that is refused."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.datasets import GraphData, digits, read, read_npz
from bitsparse.errors import DTypeError, ShapeError


def parts(n: int = 12, features: int = 5) -> dict[str, np.ndarray]:
    """A ring with sparse features, labels and a split."""
    ring = sp.coo_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    graph = (ring + ring.T).tocsr()
    x = sp.random_array((n, features), density=0.5, rng=np.random.default_rng(0), dtype=np.float32).tocsr()
    return {
        "indptr": graph.indptr,
        "indices": graph.indices,
        "num_nodes": np.int64(n),
        "x_indptr": x.indptr,
        "x_indices": x.indices,
        "x_data": x.data,
        "x_shape": np.array(x.shape),
        "labels": (np.arange(n) % 3).astype(np.int32),
        "train_mask": np.arange(n) < 4,
        "val_mask": (np.arange(n) >= 4) & (np.arange(n) < 6),
        "test_mask": np.arange(n) >= 6,
    }


@pytest.fixture
def write(tmp_path):
    def write(*, without=(), **changes):
        """An npz file of the ring, with some arrays changed or left out."""
        arrays = {**parts(), **changes}
        file = tmp_path / "ring.npz"
        np.savez(file, **{key: value for key, value in arrays.items() if key not in without})
        return file

    return write


def test_reads_every_part(write):
    want, got = parts(), read_npz(write())
    assert (got.name, got.num_nodes, got.num_edges, got.num_classes) == ("ring", 12, 24, 3)
    for key in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask"):
        np.testing.assert_array_equal(getattr(got, key), want[key])
    x = sp.csr_array((want["x_data"], want["x_indices"], want["x_indptr"]), shape=tuple(want["x_shape"]))
    np.testing.assert_array_equal(got.x.toarray(), x.toarray())
    assert got.adjacency.sum() == 24
    assert repr(got) == "GraphData(ring: 12 nodes, 24 edges, 5 features, 3 classes)"


@pytest.mark.parametrize("order", ["C", "F"])
def test_reads_dense_features_compressed_files_and_other_byte_orders(tmp_path, order):
    want = parts()
    dense = np.asarray(np.random.default_rng(1).random((12, 3)), dtype=">f8", order=order)
    np.savez_compressed(
        tmp_path / "dense.npz", indptr=want["indptr"].astype(">i8"), indices=want["indices"], features=dense
    )
    got = read_npz(str(tmp_path / "dense.npz"))
    np.testing.assert_array_equal(got.x, dense)
    assert got.x.dtype.isnative
    assert got.labels is None
    assert got.train_mask is None
    assert got.targets.tolist() == [-1] * 12


def test_a_pattern_alone_is_a_graph(write):
    keep = ("indptr", "indices")
    got = read_npz(write(without=[key for key in parts() if key not in keep]))
    assert (got.x, got.labels, got.num_classes) == (None, None, 0)


ring = parts()


def changed(**changes):
    """The arrays that `write` is to change."""
    return changes


HOSTILE = {
    "no indptr": (changed(without=["indptr"]), ValueError, "indptr missing"),
    "no indices": (changed(without=["indices"]), ValueError, "indices missing"),
    "float indptr": (changed(indptr=ring["indptr"] * 1.0), DTypeError, "indptr has dtype float64"),
    "float indices": (changed(indices=ring["indices"] * 1.0), DTypeError, "indices has dtype float64"),
    "two-dimensional indptr": (changed(indptr=ring["indptr"][None]), ShapeError, "one-dimensional"),
    "empty indptr": (changed(indptr=np.empty(0, int), without=["num_nodes"]), ShapeError, "indptr is empty"),
    "decreasing indptr": (
        changed(indptr=np.r_[0, 4, 2, ring["indptr"][3:]]),
        ValueError,
        "indptr decreases from 4 to 2 at node 1",
    ),
    "indptr from 1": (changed(indptr=np.r_[1, ring["indptr"][1:]]), ShapeError, "runs from 1 to 24"),
    "indptr beyond": (
        changed(indptr=np.r_[ring["indptr"][:-1], 99]),
        ShapeError,
        "runs from 0 to 99, but indices has 24",
    ),
    "index too large": (
        changed(indices=np.r_[ring["indices"][:-1], 12]),
        ValueError,
        "holds 12, but the nodes are 0..11",
    ),
    "negative index": (changed(indices=np.r_[ring["indices"][:-1], -1]), ValueError, "holds -1"),
    "num_nodes": (changed(num_nodes=np.int64(13)), ShapeError, "num_nodes is 13"),
    "num_nodes array": (changed(num_nodes=np.arange(2)), ShapeError, "num_nodes must be one integer"),
    "short labels": (changed(labels=ring["labels"][:-1]), ShapeError, r"labels has shape \(11,\)"),
    "float labels": (changed(labels=ring["labels"] * 1.0), DTypeError, "labels has dtype float64"),
    "long mask": (changed(test_mask=np.ones(13, bool)), ShapeError, r"test_mask has shape \(13,\)"),
    "integer mask": (changed(val_mask=ring["val_mask"].astype(int)), DTypeError, "val_mask has dtype int64"),
    "one mask missing": (changed(without=["val_mask"]), ValueError, "val_mask missing"),
    "masks without labels": (changed(without=["labels"]), ValueError, "no labels"),
    "mask without label": (changed(labels=np.where(np.arange(12) == 7, -1, 0)), ValueError, "test_mask selects node 7"),
    "overlap": (changed(test_mask=np.arange(12) >= 3), ValueError, "train_mask and test_mask share 1 nodes"),
    "part of x": (changed(without=["x_data"]), ValueError, "x_data missing"),
    "x rows": (changed(x_shape=np.array([11, 5])), ShapeError, "x_indptr has 13 entries"),
    "x of another graph": (
        changed(x_shape=np.array([1, 5]), x_indptr=np.array([0, 2]), x_indices=np.array([0, 1]), x_data=np.ones(2)),
        ShapeError,
        r"x has shape \(1, 5\), but the graph has 12 nodes",
    ),
    "x_shape": (changed(x_shape=np.array([12])), ShapeError, "x_shape is"),
    "negative x_shape": (changed(x_shape=np.array([12, -5])), ShapeError, "x_shape is"),
    "x columns": (changed(x_shape=np.array([12, 1])), ValueError, r"x_indices holds \d, but the columns are 0\.\.0"),
    "x data length": (changed(x_data=np.ones(3, np.float32)), ShapeError, "x_data has 3 entries"),
    "x indptr": (changed(x_indptr=np.zeros(13, int)), ValueError, "x_indptr runs from 0 to 0, but x_indices has"),
    "x dtype": (changed(x_data=ring["x_data"].astype("U5")), DTypeError, "x_data has dtype"),
    "x not finite": (changed(x_data=ring["x_data"] * np.nan), ValueError, "NaN or infinity"),
    "complex features": (
        changed(features=np.ones((12, 2), complex), without=["x_indptr", "x_indices", "x_data", "x_shape"]),
        DTypeError,
        "x has dtype complex128",
    ),
    "pickled labels": (changed(labels=np.array([None] * 12)), ValueError, "labels holds pickled Python objects"),
}


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_bad_contents_are_refused_by_name(write, case):
    changes, error, message = case
    file = write(**changes)
    with pytest.raises(error, match=message) as raised:
        read_npz(file)
    assert str(raised.value).startswith(f"read_npz: {file}: ")


def test_a_pickle_is_never_run(tmp_path, capsys):
    class Loud:
        def __reduce__(self):
            return print, ("unpickled",)

    np.savez(tmp_path / "loud.npz", indptr=np.array([Loud()], dtype=object), indices=np.array([0]))
    with pytest.raises(ValueError, match="pickled"):
        read_npz(tmp_path / "loud.npz")
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + bytes(40)], ids=["empty", "text", "zip header"])
def test_files_of_another_kind(tmp_path, content):
    file = tmp_path / "other.npz"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.npz: it is not a readable \.npz file"):
        read_npz(file)


def test_a_graph_that_was_saved_is_read_again(tmp_path):
    rng = np.random.default_rng(0)
    a = sp.random_array((40, 40), density=0.1, format="csr", rng=rng)
    features = sp.random_array((40, 7), density=0.3, format="csr", rng=rng)
    parts = {"indptr": a.indptr, "indices": a.indices}
    whole = GraphData(**parts, x=features, labels=np.arange(40) % 3, weights=a.data).with_split(per_class=3)
    for graph in (whole, GraphData(**parts), GraphData(**parts, x=rng.random((40, 3), np.float32))):
        graph.save(tmp_path / "again.npz")
        again = read(tmp_path / "again.npz")
        assert again.name == "again"
        for name in ("indptr", "indices", "labels", "weights", "train_mask", "val_mask", "test_mask"):
            one, other = getattr(graph, name), getattr(again, name)
            assert (one is None) == (other is None), name
            assert one is None or (one.dtype == other.dtype and np.array_equal(one, other)), name
        x, y = (getattr(each.x, "toarray", lambda each=each: each.x)() for each in (graph, again))
        assert np.array_equal(x, y) and sp.issparse(graph.x) == sp.issparse(again.x)


@pytest.mark.parametrize("form", ["csr", "coo", "lil", "dok", "dia", "bsr"])
def test_features_of_every_sparse_form_are_checked_and_saved(form, tmp_path):
    parts = {"indptr": np.array([0, 1, 2]), "indices": np.array([1, 0])}
    GraphData(**parts, x=sp.csr_array(np.diag([1.5, 2.0])).asformat(form)).save(tmp_path / "made.npz")
    assert read(tmp_path / "made.npz").x.toarray().tolist() == [[1.5, 0.0], [0.0, 2.0]]
    with pytest.raises(ValueError, match="x holds NaN or infinity"):
        GraphData(**parts, x=sp.csr_array(np.diag([1.5, np.nan])).asformat(form))


def test_features_and_seeds_that_are_none_are_named():
    class Foreign:
        """An array of another library, whose dtypes have no kind."""

        shape, dtype = (2, 1), "float32"

    parts = {"indptr": np.array([0, 1, 2]), "indices": np.array([1, 0]), "labels": np.array([0, 1])}
    for x in (Foreign(), bs.quantize(np.ones((2, 1)), 4)):
        with pytest.raises(DTypeError, match=f"x must be an array of NumPy or a sparse one, got {type(x).__name__}"):
            GraphData(**parts, x=x)
    graph = GraphData(**parts)
    with pytest.raises(ValueError, match="with_split: seed must be at least 0, got -1"):
        graph.with_split(seed=-1)
    with pytest.raises(DTypeError, match="with_generated: seed must be an integer"):
        graph.with_generated(labels=parts["labels"], seed=0.5)


def test_arrays_of_the_library_are_graphs(tmp_path):
    dense = (np.random.default_rng(1).random((30, 30)) < 0.2).astype(np.float32)
    half = np.full(30, 0.5, np.float32)
    for array, weight in (
        (bs.FRDC(dense), None), (bs.TCTiledCSR(dense), None), (bs.TCTiledCSR(dense).astype(bool), None), (bs.pack_bits(dense > 0), None),
        (bs.TCTiledCSR(dense * 3), 3.0), (bs.FRDC(dense, row_scale=half), 0.5), (bs.TCTiledCSR(dense * 3, col_scale=half), 1.5),
    ):  # fmt: skip
        bs.save_npz(tmp_path / "array.npz", array)
        graph = read(tmp_path / "array.npz")
        assert (graph.name, graph.weights is None) == ("array", weight is None)
        assert np.array_equal(graph.weighted.toarray(), dense * (weight or 1))
    bs.save_npz(tmp_path / "wide.npz", bs.FRDC(dense[:5]))
    with pytest.raises(ShapeError, match=r"wide\.npz: the array has shape \(5, 30\).*load_npz"):
        read(tmp_path / "wide.npz")
    np.savez(tmp_path / "odd.npz", header=np.array("no JSON"), indptr=[0, 1], indices=[0])
    with pytest.raises(ValueError, match=r"read_npz: .*odd\.npz: the header is not JSON"):
        read(tmp_path / "odd.npz")


def test_truncated_and_damaged_files(write, tmp_path):
    content = write().read_bytes()
    other = tmp_path / "cut.npz"
    for length in (len(content) // 3, len(content) - 40):
        other.write_bytes(content[:length])
        with pytest.raises(ValueError, match="read_npz"):
            read_npz(other)
    place = content.index(ring["indices"].tobytes())
    other.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(ValueError, match="CRC"):
        read_npz(other)


def member(header: str, payload: bytes = b"") -> bytes:
    stream = io.BytesIO()
    text = header.encode() + b"\n"
    stream.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + payload)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,)}", "announces 8000000000000000 bytes"),
        ("{'descr': '<i8', 'fortran_order': False, 'shape': (4,)}", "announces 32 bytes, but the file holds 16"),
        ("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}", "indptr"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", "pickled"),
        ("__import__('os')", "not a plain array"),
        ("{", "not a plain array"),
    ],
)
def test_announced_sizes_are_checked_before_memory_is_taken(tmp_path, header, message):
    file = tmp_path / "huge.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("indptr.npy", member(header, bytes(16)))
        archive.writestr("indices.npy", member("{'descr': '<i8', 'fortran_order': False, 'shape': (0,)}"))
    with pytest.raises(ValueError, match=message):
        read_npz(file)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_npz(tmp_path / "none.npz")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_npz(tmp_path)


def test_labels_need_not_start_at_zero():
    graph = GraphData(indptr=np.zeros(5, int), indices=np.empty(0, int), labels=np.array([7, -1, 3, 7]))
    assert graph.classes.tolist() == [3, 7]
    assert graph.targets.tolist() == [1, -1, 0, 1]


def test_splits_are_seeded_disjoint_and_labelled():
    labels = np.r_[np.arange(90) % 3, [-1] * 10]
    graph = GraphData(indptr=np.zeros(101, int), indices=np.empty(0, int), labels=labels)
    one, same, other = (graph.with_split(per_class=5, val=20, test=40, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.train_mask, same.train_mask)
    assert (one.train_mask != other.train_mask).any()
    assert [int(mask.sum()) for mask in (one.train_mask, one.val_mask, one.test_mask)] == [15, 20, 40]
    assert np.bincount(labels[one.train_mask]).tolist() == [5, 5, 5]
    small = graph.with_split()  # half of each class of 30 trains; the other 45 are shared as 500 to 1000
    assert [int(mask.sum()) for mask in (small.train_mask, small.val_mask, small.test_mask)] == [45, 15, 30]


def test_splits_refuse_the_impossible():
    graph = GraphData(indptr=np.zeros(3, int), indices=np.empty(0, int))
    with pytest.raises(ValueError, match="no labels to split by"):
        graph.with_split()
    labelled = GraphData(indptr=np.zeros(3, int), indices=np.empty(0, int), labels=np.array([0, 1]))
    with pytest.raises(ValueError, match="per_class must be at least 1, got 0"):
        labelled.with_split(per_class=0)


def test_digits():
    graph = digits(3, seed=1)
    adjacency = graph.adjacency.astype(int)
    assert (adjacency != adjacency.T).nnz == 0
    assert adjacency.diagonal().sum() == 0
    assert adjacency.sum(axis=1).min() >= 3
    assert graph.x.dtype == np.float32
    assert [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [200, 500, 1000]
    with pytest.raises(ValueError, match=r"neighbors must lie in 1\.\.1796, got 0"):
        digits(0)


def test_digits_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'bitsparse\[data\]'"):
        digits()


def test_importing_datasets_stays_cheap(tmp_path):
    script = "import sys, bitsparse.datasets; print({'scipy', 'sklearn', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "set()"
