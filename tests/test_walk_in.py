"""Sparse matrices, graphs and tables of other libraries must be accepted, and arrays must be convertible to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.graph.adjacency import square_pattern

igraph = pytest.importorskip("igraph")
networkx = pytest.importorskip("networkx")
pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")

# PyTorch warns that these layouts are new, and about parts of its own when PyTorch Geometric is loaded.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR) tensor support:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
DENSE = (np.random.default_rng(0).random((6, 5)) < 0.4) * np.arange(1, 31, dtype=np.float32).reshape(6, 5)
X = np.arange(10, dtype=np.float32).reshape(5, 2)


# ---- PyTorch and JAX
@pytest.mark.torch
@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_csc", "to_sparse"])
def test_sparse_tensors(layout: str) -> None:
    import torch

    tensor = getattr(torch.from_numpy(DENSE), layout)()
    a = bs.TCTiledCSR(tensor)
    assert a.family == "torch"
    assert np.array_equal(a.to_scipy().toarray(), DENSE)
    assert torch.equal(bs.spmm(tensor, torch.from_numpy(X)), torch.from_numpy(DENSE @ X))
    assert np.array_equal(bs.FRDC(tensor, pattern=True).to_scipy().toarray(), DENSE != 0)
    if layout == "to_sparse_csr":
        assert a.data.ctypes.data == tensor.values().data_ptr()
        back = a.to_torch()
        assert back.layout == torch.sparse_csr
        assert back.values().data_ptr() == tensor.values().data_ptr()
        assert torch.equal(back.to_dense(), tensor.to_dense())
        assert torch.equal(back @ torch.from_numpy(X), tensor @ torch.from_numpy(X))


@pytest.mark.torch
def test_tensors_of_other_forms() -> None:
    import torch

    repeated = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([1.0, 2.0, 4.0]), (2, 2))
    a = bs.TCTiledCSR(repeated)
    assert a.to_scipy().toarray().tolist() == [[0, 3], [4, 0]]
    assert a.had_duplicates
    heads = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 3), (2, 2, 3))
    assert bs.TCTiledCSR(heads).data.shape == (2, 3)
    assert bs.TCTiledCSR((2, 2), pattern=True).to_torch().values().dtype == torch.float32
    for bad, error, match in (
        (torch.ones(4, 4).to_sparse_bsr((2, 2)), bs.DTypeError, "to_sparse_csr"),
        (torch.ones(2, 2, 2).to_sparse(), bs.ShapeError, "sparse dimensions"),
        (torch.ones(3).to_sparse(), bs.ShapeError, "2 dimensions"),
        (torch.ones(2, 2, requires_grad=True).to_sparse_csr(), bs.DTypeError, "gradient"),
    ):
        with pytest.raises(error, match=match):
            bs.TCTiledCSR(bad)


@pytest.mark.jax
@pytest.mark.parametrize("kind", ["BCSR", "BCOO"])
@pytest.mark.parametrize("room", [0, 7])
def test_sparse_arrays_of_jax(kind: str, room: int) -> None:
    from jax.experimental import sparse

    matrix = getattr(sparse, kind).fromdense(DENSE, nse=np.count_nonzero(DENSE) + room)
    a = bs.TCTiledCSR(matrix)
    assert a.family == "jax"
    assert np.array_equal(a.to_scipy().toarray(), DENSE)
    assert np.array_equal(a.to_jax().todense(), DENSE)
    assert np.array_equal(bs.spmm(matrix, X), DENSE @ X)
    with pytest.raises(bs.ShapeError, match="take one of a batch"):
        bs.TCTiledCSR(getattr(sparse, kind).fromdense(np.ones((2, 2, 2)), n_batch=1))


# ---- graphs
EDGES = np.array([[0, 0, 2, 2], [1, 3, 3, 3]])


def test_edge_index_is_turned() -> None:
    a = bs.TCTiledCSR.from_edge_index(EDGES, 5)
    assert a.shape == (5, 5)
    assert list(zip(*(part.tolist() for part in a.nonzero()), strict=True)) == [(1, 0), (3, 0), (3, 2)]
    weighted = bs.TCTiledCSR.from_edge_index(EDGES, (3, 4), np.array([1.0, 2.0, 4.0, 8.0]))
    assert weighted.shape == (4, 3)
    assert weighted[3, 2] == 12
    assert isinstance(bs.FRDC.from_edge_index(EDGES), bs.FRDC)
    edge_index, edge_weight = weighted.to_edge_index()
    assert edge_index.tolist() == [[0, 0, 2], [1, 3, 3]]
    assert edge_weight.tolist() == [1, 2, 12]
    assert a.to_edge_index()[1] is None
    for bad, error in ((EDGES.T, bs.ShapeError), (EDGES + 0.5, bs.DTypeError), (EDGES - 1, ValueError)):
        with pytest.raises(error, match="from_edge_index"):
            bs.TCTiledCSR.from_edge_index(bad)
    with pytest.raises(bs.ShapeError, match="outside of shape"):
        bs.TCTiledCSR.from_edge_index(EDGES, 2)


@pytest.mark.pyg
def test_data_of_pyg() -> None:
    import torch
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Data

    edge_index = torch.from_numpy(EDGES)
    want = bs.TCTiledCSR.from_edge_index(EDGES, 5)
    a = bs.TCTiledCSR(Data(edge_index=edge_index, num_nodes=5))
    assert a.family == "torch"
    assert np.array_equal(a.to_scipy().toarray(), want.toarray())
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0])
    weighted = bs.TCTiledCSR(Data(edge_index=edge_index, num_nodes=5, edge_weight=weights))
    assert weighted[3, 2] == 12
    assert bs.FRDC(EdgeIndex(edge_index, sparse_size=(3, 4))).shape == (4, 3)
    turned = torch.sparse_csr_tensor(torch.tensor([0, 1, 1]), torch.tensor([1]), torch.ones(1), (2, 2))
    assert bs.TCTiledCSR(Data(adj_t=turned))[0, 1] == 1
    x = torch.ones(5, 2)
    assert torch.equal(bs.spmm(Data(edge_index=edge_index, num_nodes=5), x), want.astype(np.float32) @ x)
    with pytest.raises(bs.DTypeError, match="neither edge_index nor adj_t"):
        bs.TCTiledCSR(Data(edge_index=None))


class OfDGL:
    """Stands in for a DGL graph, with all that is read from one."""

    def __init__(self, kinds: int = 1) -> None:
        self.canonical_etypes = [("node", f"to{kind}", "node") for kind in range(kinds)]
        self.num_src_nodes, self.num_dst_nodes = lambda: 3, lambda: 4

    def edges(self) -> tuple[Any, Any]:
        return EDGES[0], EDGES[1]


def test_graphs_of_dgl() -> None:
    a = bs.TCTiledCSR(OfDGL())
    assert a.shape == (4, 3)
    assert np.array_equal(a.toarray(), bs.TCTiledCSR.from_edge_index(EDGES, (3, 4)).toarray())
    with pytest.raises(bs.DTypeError, match=r"2 kinds of edges; pick one, as in graph\[etype\]"):
        bs.TCTiledCSR(OfDGL(2))


def test_sparse_tensors_of_torch_sparse() -> None:
    csr = sp.csr_array(DENSE)
    there = SimpleNamespace(csr=lambda: (csr.indptr, csr.indices, csr.data), sparse_sizes=lambda: csr.shape)
    assert np.array_equal(bs.TCTiledCSR(there).toarray(), DENSE)
    there.csr = lambda: (csr.indptr, csr.indices, None)
    assert np.array_equal(bs.FRDC(there).toarray(), DENSE != 0)


GRAPHS = {
    "path": networkx.path_graph(4),
    "loop": networkx.Graph([(0, 0), (0, 1)]),
    "weights": networkx.Graph([("a", "b", {"weight": 2.5}), ("b", "c")]),
    "directions": networkx.DiGraph([(2, 0), (0, 1)]),
    "several edges": networkx.MultiDiGraph([(0, 1), (0, 1), (2, 2)]),
    "several edges without directions": networkx.MultiGraph([(0, 1), (0, 1), (2, 2)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_networkx(name: str) -> None:
    graph = GRAPHS[name]
    a, want = bs.TCTiledCSR(graph), networkx.to_scipy_sparse_array(graph).toarray()
    assert np.array_equal(a.toarray(), want)
    assert (a.data is None) == (name in ("path", "loop", "directions"))
    back = a.to_networkx(networkx.MultiDiGraph if "several" in name else None)
    assert np.array_equal(networkx.to_scipy_sparse_array(back).toarray(), want)
    assert np.array_equal(square_pattern("test", graph).indptr, a.indptr)
    assert bs.TCTiledCSR(networkx.Graph()).shape == (0, 0)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_graphs_of_igraph(directed: bool, weighted: bool) -> None:
    edges = [(0, 0), (0, 1), (0, 1), (3, 1)]
    attributes = {"weight": [2.5, 1.0, 4.0, 8.0]} if weighted else {}
    graph = igraph.Graph(n=5, edges=edges, directed=directed, edge_attrs=attributes)
    want = np.zeros((5, 5))
    for (i, j), weight in zip(edges, attributes.get("weight", [1] * 4), strict=True):
        want[i, j] += weight
        if not directed and i != j:
            want[j, i] += weight
    assert np.array_equal(bs.TCTiledCSR(graph).toarray(), want)
    assert bs.TCTiledCSR(igraph.Graph.Ring(4)).data is None
    assert bs.TCTiledCSR(igraph.Graph()).shape == (0, 0)


# ---- tables
TABLE = pandas.DataFrame({"source": [0, 2, 2], "target": [1, 0, 0], "weight": [0.5, 1.0, 4.0]})


@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        TABLE.convert_dtypes(dtype_backend="pyarrow"),
        pyarrow.Table.from_pandas(TABLE),
        pyarrow.concat_tables([pyarrow.Table.from_pandas(TABLE[:1]), pyarrow.Table.from_pandas(TABLE[1:])]),
        {name: TABLE[name].tolist() for name in TABLE},
    ],
    ids=["pandas", "pandas on Arrow", "Arrow", "Arrow in pieces", "dict"],
)
def test_tables(table: Any) -> None:
    a = bs.TCTiledCSR.from_table(table, values="weight")
    assert a.toarray().tolist() == [[0, 0.5, 0], [0, 0, 0], [5, 0, 0]]
    turned = bs.FRDC.from_table(table, "target", "source", shape=(2, 4))
    assert turned.toarray().tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    with pytest.raises(ValueError, match="no column 'from'"):
        bs.TCTiledCSR.from_table(table, "from")


def test_names_are_no_numbers() -> None:
    with pytest.raises(bs.DTypeError, match=r"column 'source' has dtype .*pandas\.factorize"):
        bs.TCTiledCSR.from_table(pandas.DataFrame({"source": ["a"], "target": ["b"]}))
    assert bs.TCTiledCSR.from_table({"source": [], "target": []}).shape == (0, 0)


# ---- scales, errors
def test_scales_are_multiplied_in() -> None:
    a = bs.TCTiledCSR(np.array([[0, 2], [0, 0]], np.float32), row_scale=[0.5, 1], col_scale=[1, 4])
    assert a.to_edge_index()[1].tolist() == [4]
    assert a.to_networkx()[0][1]["weight"] == 4
    pattern = bs.FRDC(np.eye(2, dtype=int)).with_scales(row_scale=[2, 3])
    assert pattern.to_edge_index()[1].tolist() == [2, 3]


def test_what_is_no_graph() -> None:
    with pytest.raises(bs.DTypeError, match="spmm: A must be sparse"):
        bs.spmm(np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(bs.DTypeError, match="must be an array"):
        bs.TCTiledCSR(object())
