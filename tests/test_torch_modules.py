"""Graphs and arrays as parts of PyTorch's modules: moved, copied, pickled, saved, loaded; mini-batches; hooks."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

import bitsparse as bs

torch: Any = pytest.importorskip("torch")
bst: Any = pytest.importorskip("bitsparse.torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning")]
NODES = 12


def edge_list(edges: int = 40, seed: int = 0, nodes: int = NODES) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, nodes, (2, edges)))


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Holds its graph."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph, self.first, self.second = graph, bst.GCNConv(4, 5), bst.SAGEConv(5, 3)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x, self.graph), self.graph)


def net(seed: int = 0, graph_seed: int = 0, weighted: bool = True) -> Any:
    torch.manual_seed(seed)
    weight = torch.rand(40, generator=torch.Generator().manual_seed(graph_seed)) if weighted else None
    return Net(bst.Graph(edge_list(seed=graph_seed), NODES, edge_weight=weight))


def features() -> Any:
    return torch.from_numpy(np.random.default_rng(1).standard_normal((NODES, 4)).astype(np.float32))


def saved(state: Any) -> Any:
    """A state after a file that nothing is unpickled from."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---- graphs
@pytest.mark.parametrize("weighted", [True, False])
def test_modules_with_graphs_are_copied_and_saved(weighted: bool) -> None:
    made = net(weighted=weighted)
    want = made(features())
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert torch.equal(other(features()), want)
    whole = io.BytesIO()
    torch.save(made, whole)
    whole.seek(0)
    assert torch.equal(torch.load(whole, weights_only=False)(features()), want)
    state = saved(made.state_dict())
    parts = {"sizes", "indptr", "indices"} | ({"weight"} if weighted else set()) | {"multiplicity"}
    assert {key for key in state if key.startswith("graph.")} == {f"graph.{name}" for name in parts}
    for used in (False, True):  # before and after layers have derived graphs
        other = net(1, 2, weighted)
        while other.graph.num_edges != made.graph.num_edges:
            other = net(1, int(torch.randint(1000, ())), weighted)
        if used:
            assert not torch.equal(other(features()), want)
        other.load_state_dict(state)
        assert torch.equal(other(features()), want)
        assert torch.equal(other.graph.inverse_degree, made.graph.inverse_degree)


def test_the_same_state_changes_nothing() -> None:
    made = net()
    made(features())
    before = dict(made.named_buffers())
    made.load_state_dict(saved(made.state_dict()))
    assert all(part is before[name] for name, part in made.named_buffers())


def test_a_state_of_another_graph_is_refused_by_name() -> None:
    small, state = net(), net().state_dict()
    for other, sizes in (
        (bst.Graph(edge_list(30), NODES), "12 x 12"),
        (bst.Graph(edge_list(40), NODES + 1), "13 x 13"),
        (bst.Graph(edge_list(40), (NODES + 2, NODES)), "12 x 14"),
    ):
        wrong = Net(other)
        with pytest.raises(
            RuntimeError, match=rf"graph: the state is of a graph of 12 x 12 .* but this one is {sizes}"
        ):
            wrong.load_state_dict(state)
    small.load_state_dict({key: part for key, part in state.items() if "graph" not in key}, strict=False)
    with pytest.raises(RuntimeError, match=r"Missing key.*graph\.indices"):
        small.load_state_dict({key: part for key, part in state.items() if "indices" not in key})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*graph\.order"):
        small.load_state_dict(state | {"graph.order": torch.zeros(1)})
    broken = state | {"graph.indices": state["graph.indices"] + NODES}
    with pytest.raises(RuntimeError, match=r"graph: TCTiledCSR\.from_arrays"):
        small.load_state_dict(broken)
    with pytest.raises(RuntimeError, match="graph: the state is of a graph"):
        small.load_state_dict(state | {"graph.weight": torch.ones(3)})
    small.load_state_dict(state)
    assert torch.equal(small(features()), net()(features()))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_network_on_meta_gets_its_edges_with_a_state(weighted: bool) -> None:
    made, x = net(weighted=weighted), features()
    want, state = made(x), made.state_dict()
    empty = copy.deepcopy(made).to("meta")
    assert empty(x.to("meta")).shape == want.shape  # of graphs that were made before
    with (
        pytest.warns(UserWarning, match="no-op"),
        pytest.raises(RuntimeError, match=r"graph: its edges would be on meta.*assign=True"),
    ):
        empty.load_state_dict(state)
    empty.load_state_dict(state, assign=True)
    torch.testing.assert_close(empty(x), want)
    assert empty.graph.indptr.device.type == "cpu"


def test_graphs_and_features_on_meta_go_together() -> None:
    graph, x = net().graph, features()
    with pytest.raises(bs.DeviceError, match="x is on meta, but the graph is on cpu"):
        bst.spmm(graph, x.to("meta"))
    y = bst.spmm(graph.to("meta"), x.to("meta").requires_grad_(), reduce="max")
    assert y.is_meta and y.shape == x.shape
    with pytest.raises(bs.DeviceError, match="call the layer once before"):
        bst.GCNConv(4, 3).to("meta")(x.to("meta"), graph)


def test_features_and_values_are_dense_tensors() -> None:
    graph, x = bst.Graph(edge_list(seed=0).unique(dim=1), NODES), features()
    scores = x[:, 0].contiguous()
    for call, name in (
        (lambda wrong: bst.spmm(graph, wrong), "spmm: x"),
        (lambda wrong: bst.spmm(graph, x, wrong), "spmm: values"),
        (lambda wrong: bst.attention(graph, wrong, scores, scores), "attention: x"),
        (lambda wrong: bst.cosine_attention(graph, x, wrong), "cosine_attention: beta"),
        (lambda wrong: bst.gatv2_attention(graph, x, wrong, x[0]), "gatv2_attention: target"),
    ):
        for wrong, said in (
            (x.numpy(), "a ndarray; pass a tensor"),
            (x.to_sparse(), r"a torch\.sparse_coo tensor.*to_dense"),
        ):
            with pytest.raises(bs.DTypeError, match=f"{name} is {said}"):
                call(wrong)


@pytest.mark.parametrize(
    "nodes", [np.int64(NODES), np.array(NODES), torch.tensor(NODES), [NODES, NODES], (torch.tensor(NODES),) * 2]
)
def test_numbers_of_nodes_are_integers_of_every_library(nodes: Any) -> None:
    assert (
        bst.Graph(edge_list(), nodes).num_sources
        == bst.Graph(edge_list(), torch.tensor([NODES, 15])).num_sources
        == NODES
    )
    for wrong, error in (("12", bs.DTypeError), (12.0, bs.DTypeError), (True, bs.DTypeError), (-1, ValueError)):
        with pytest.raises(error, match=r"Graph: num_nodes must be"):
            bst.Graph(edge_list(), wrong)
    with pytest.raises(bs.ShapeError, match=r"num_nodes is \(12,\)"):
        bst.Graph(edge_list(), (12,))


@pytest.mark.pyg
def test_one_kind_of_edges_of_several_kinds_of_nodes() -> None:
    data: Any = pytest.importorskip("torch_geometric.data")
    several = data.HeteroData()
    several["user"].num_nodes, several["item"].num_nodes = NODES + 3, NODES + 1
    several["user", "buys", "item"].edge_index = edge_list()
    edges = several["user", "buys", "item"]
    graph = bst.Graph(edges)
    assert (graph.num_targets, graph.num_sources) == bs.TCTiledCSR(edges).shape == (NODES + 1, NODES + 3)


def test_a_graph_without_its_weights_shares_memory_where_it_is_moved() -> None:
    g = bst.Graph(edge_list(), NODES, edge_weight=torch.rand(40))
    plain = g.unweighted()
    x = features()
    want = bst.spmm(plain, x)
    assert plain is g.unweighted()
    g._apply(lambda part: part.clone())  # what .cuda() does
    for moved in (g, copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        plain = moved.unweighted()
        assert plain.weight is None
        assert plain.scale is None
        shared = [name for name, part in moved._buffers.items() if part is not None and name != "weight"]
        assert all(getattr(plain, name).data_ptr() == getattr(moved, name).data_ptr() for name in shared)
        assert torch.equal(bst.spmm(plain, x), want)
    assert bst.Graph(edge_list(), NODES).normalized().unweighted().scale is None


def test_networks_become_narrow_and_graphs_do_not() -> None:
    made = net()
    want = made(features())
    for narrow in (made.half(), made.bfloat16(), made.double(), made.float()):
        assert narrow.graph.weight.dtype == narrow.graph.inverse_degree.dtype == torch.float32
    assert torch.allclose(made(features()), want, atol=1e-2)


def test_hooks_are_called() -> None:
    made, called = net(), []
    made.first.register_forward_pre_hook(lambda module, given: called.append(("before", given[1] is made.graph)))
    made.first.register_forward_hook(lambda module, given, result: called.append(("after", result.shape)))
    made.first.register_full_backward_hook(
        lambda module, inputs, outputs: called.append(("backward", outputs[0].shape))
    )
    made.graph.register_load_state_dict_post_hook(lambda module, keys: called.append(("loaded", keys.missing_keys)))
    made.graph._register_state_dict_hook(lambda module, state, prefix, metadata: called.append(("saved", prefix)))
    made(features().requires_grad_()).sum().backward()
    made.load_state_dict(made.state_dict())
    shape = torch.Size([NODES, 5])
    assert called == [
        ("before", True),
        ("after", shape),
        ("backward", shape),
        ("saved", "graph."),
        ("loaded", []),
    ]


# ---- mini-batches
def blocks(seeds: Any, edges: Any, fanout: int, hops: int) -> tuple[list[Any], Any]:
    """Sampled neighbours of `seeds`, hop by hop: (edges, (sources, targets)) of every layer and the nodes that the first one reads."""
    generator, nodes, made = np.random.default_rng(0), np.asarray(seeds), []
    for _ in range(hops):
        columns = []
        for target in nodes:
            incoming = np.flatnonzero(edges[1].numpy() == target)
            columns.append(generator.permutation(incoming)[:fanout])
        chosen = edges[:, np.concatenate([np.empty(0, np.int64), *columns])].numpy()
        fresh = np.setdiff1d(chosen[0], nodes)
        order = np.concatenate([nodes, fresh])
        where = {int(node): k for k, node in enumerate(order)}
        local = np.array([[where[int(node)] for node in row] for row in chosen], np.int64).reshape(2, -1)
        made.insert(0, (torch.from_numpy(local), (len(order), len(nodes))))
        nodes = order
    return made, torch.from_numpy(nodes)


@pytest.mark.pyg
@pytest.mark.parametrize("kind", ["SAGE", "GIN", "SAGE max"])
@pytest.mark.parametrize("seeds", [[3, 7, 1], [5], []])
def test_bipartite_blocks_of_mini_batches(kind: str, seeds: list[int]) -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")

    def layers(module: Any) -> Any:
        if kind == "GIN":
            return torch.nn.ModuleList(module.GINConv(torch.nn.Linear(4, 4)) for _ in range(2))
        return torch.nn.ModuleList(module.SAGEConv(4, 4, aggr="max" if "max" in kind else "mean") for _ in range(2))

    ours, theirs, theirs_faster = layers(bst), layers(gnn), bst.accelerate(layers(gnn))
    ours.load_state_dict(theirs.state_dict())
    theirs_faster.load_state_dict(theirs.state_dict())
    sizes, nodes = blocks(np.array(seeds, np.int64), edge_list(60).unique(dim=1), 3, 2)
    outputs = []
    for net_, wraps in ((theirs, False), (ours, False), (ours, True), (theirs_faster, True)):
        x = features()[nodes].requires_grad_()
        h = x
        for layer, (local, size) in zip(net_, sizes, strict=True):
            h = layer((h, h[: size[1]]), bst.Graph(local, size) if wraps else local).relu()
        h.square().sum().backward()
        outputs.append((h, x.grad))
    for h, gradient in outputs[1:]:
        assert h.shape == (len(seeds), 4)
        torch.testing.assert_close(h, outputs[0][0])
        torch.testing.assert_close(gradient, outputs[0][1])


@pytest.mark.pyg
@pytest.mark.filterwarnings("ignore:Using .* without a 'pyg-lib' installation:UserWarning")
def test_batches_of_pytorch_geometric() -> None:
    data: Any = pytest.importorskip("torch_geometric.data")
    loader: Any = pytest.importorskip("torch_geometric.loader")
    whole = data.Data(x=features(), edge_index=edge_list(60).unique(dim=1), edge_weight=None)
    layer = bst.SAGEConv(4, 3)
    for batch in loader.RandomNodeLoader(whole, num_parts=3):
        g = bst.Graph(batch)
        assert (g.num_sources, g.num_targets) == (batch.num_nodes, batch.num_nodes)
        torch.testing.assert_close(layer(batch.x, g), layer(batch.x, batch.edge_index))
    for batch in loader.DataLoader([whole, whole], batch_size=2):
        assert bst.Graph(batch).num_edges == 2 * whole.num_edges


# ---- arrays
def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    codes, dense = rng.integers(0, 8, (6, 200)), rng.standard_normal((6, 9)) * (rng.random((6, 9)) < 0.5)
    values = rng.standard_normal((int((dense != 0).sum()), 2)).astype(np.float32)
    return {
        "planes": bs.BitTensor(codes, 3, scale=0.5, offset=rng.random((6, 1))),
        "rows": bs.BitTensor(codes, 4, layout="rows", encoding="unsigned"),
        "signed columns": bs.BitTensor(codes - 4, 4, encoding="signed", axis=-2),
        "bipolar": bs.pack_bits(codes - 3.5, encoding="bipolar"),
        "pattern": bs.TCTiledCSR(dense, pattern=True, window=8, row_scale=rng.random(6)),
        "values": bs.TCTiledCSR(dense),
        "heads": bs.TCTiledCSR(dense, pattern=True).with_values(values),
        "unsigned values": bs.TCTiledCSR(np.abs(dense * 100).astype(np.uint16)),
        "blocks": bs.FRDC(dense != 0, col_scale=rng.random(9)),
        "empty": bs.TCTiledCSR((0, 3)),
    }


def same(one: Any, other: Any) -> bool:
    parts = (
        {name: np.asarray(part) for name, part in x.components().items() if part is not None} for x in (one, other)
    )
    left, right = parts
    return (
        type(one) is type(other)
        and one.settings() == other.settings()
        and left.keys() == right.keys()
        and all(left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left)
    )


@pytest.mark.parametrize("name", arrays())
def test_arrays_as_buffers(name: str) -> None:
    array = arrays()[name]
    holder = torch.nn.Sequential(torch.nn.Linear(1, 1), bst.Buffer(array))
    assert same(holder[1].array, array)
    assert holder[1].array is holder[1].array
    assert holder[1].array.family == "torch"
    assert len([*holder.buffers()]) == len([part for part in array.components().values() if part is not None])
    holder.half().double().to(torch.bfloat16)
    for other in (holder, copy.deepcopy(holder), pickle.loads(pickle.dumps(holder))):
        assert same(other[1].array, array)
    whole = io.BytesIO()
    torch.save(holder, whole)
    whole.seek(0)
    assert same(torch.load(whole, weights_only=False)[1].array, array)
    state = saved(holder.state_dict())
    other = copy.deepcopy(holder)
    kept = other[1].array
    for part in other[1].buffers():
        if name != "empty":
            part.copy_(part.flip(0) if part.ndim else part + 1)
    with_others = other.load_state_dict(state)
    assert not with_others.missing_keys
    assert same(other[1].array, array)
    assert other[1].array is not kept or name == "empty"


def test_buffers_share_memory_and_compute() -> None:
    codes = np.random.default_rng(0).integers(0, 8, (6, 200))
    array = bs.BitTensor(codes, 3)
    buffer = bst.Buffer(array)
    assert buffer.words.data_ptr() == array.words.ctypes.data == buffer.array.words.ctypes.data
    x = torch.from_numpy(np.random.default_rng(1).integers(0, 4, (200, 3)))
    assert torch.equal(bs.matmul(buffer.array, bs.BitTensor(x, 2, axis=-2)).long(), torch.from_numpy(codes) @ x)
    sparse = bst.Buffer(bs.TCTiledCSR(codes % 2 * 1.5))
    with torch.inference_mode():
        assert torch.equal(bs.spmm(sparse.array, x.double()), torch.from_numpy(codes % 2 * 1.5) @ x.double())
        sparse.data.mul_(2)
    assert torch.equal(bs.spmm(sparse.array, x.double()), torch.from_numpy(codes % 2 * 3.0) @ x.double())


def test_a_buffer_refuses_what_does_not_fit() -> None:
    with pytest.raises(bs.DTypeError, match="Buffer: array is a Tensor; pass a BitTensor"):
        bst.Buffer(torch.ones(2))
    codes = np.ones((2, 3), int)
    buffer = bst.Buffer(bs.BitTensor(codes, 2))
    for other in (bs.BitTensor(codes, 2, encoding="signed"), bs.BitTensor(np.ones((2, 4), int), 2)):
        with pytest.raises(ValueError, match=r"Buffer: the state is of .* but this one holds .*make the Buffer"):
            bst.Buffer(other).load_state_dict(buffer.state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for indices"):
        bst.Buffer(bs.TCTiledCSR(np.eye(3))).load_state_dict(bst.Buffer(bs.TCTiledCSR(np.ones((3, 3)))).state_dict())
    broken = bst.Buffer(bs.TCTiledCSR(np.eye(3)))
    broken.indices.add_(7)
    with pytest.raises(ValueError, match="column"):
        _ = broken.array
    assert repr(buffer) == "Buffer(BitTensor, shape=(2, 3), bits=2, axis=-1, layout=planes, encoding=unsigned)"
