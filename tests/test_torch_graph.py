"""bitsparse.torch: operators under every way of differentiating, graphs as modules, and layers against PyTorch Geometric's."""

from __future__ import annotations

import copy
import functools
import importlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs

torch: Any = pytest.importorskip("torch")
bst: Any = pytest.importorskip("bitsparse.torch")
operators: Any = pytest.importorskip("bitsparse.torch.operators")
attention_operators: Any = pytest.importorskip("bitsparse.torch.attention_operators")
kept_graphs: Any = pytest.importorskip("bitsparse.torch.kept_graphs")
pattern: Any = pytest.importorskip("bitsparse.torch.pattern")
pytestmark = [
    pytest.mark.torch,
    # PyTorch's own modules use the parts of it that it deprecates.
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
]
NODES, SOURCES, TARGETS = 40, 31, 23


def edge_list(sources: int, targets: int, edges: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(0, sources, edges), rng.integers(0, targets - 2, edges)]))


def random(*shape: int, seed: int = 1, dtype: str = "float64") -> Any:
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape)).to(getattr(torch, dtype))


def bipartite() -> Any:
    """A rectangle with repeated edges and empty rows."""
    return bst.Graph(edge_list(SOURCES, TARGETS, 120), (SOURCES, TARGETS))


def small() -> Any:
    """The same for what perturbs every number."""
    return bst.Graph(edge_list(SOURCES // 3, TARGETS // 3, 24), (SOURCES // 3, TARGETS // 3))


CALLS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "sum": (lambda g, x: bst.spmm(g, x), [(0, 3)]),
    "vector": (lambda g, x: bst.spmm(g, x), [(0,)]),
    "mean": (lambda g, x: bst.spmm(g, x, reduce="mean"), [(0, 3)]),
    "heads": (lambda g, x: bst.spmm(g, x), [(0, 2, 3)]),
    "values": (lambda g, x, v: bst.spmm(g, x, v), [(0, 3), (-1,)]),
    "values of heads": (lambda g, x, v: bst.spmm(g, x, v), [(0, 2, 3), (-1, 2)]),
    "values for all heads": (lambda g, x, v: bst.spmm(g, x, v), [(0, 2, 3), (-1,)]),
}


def operands(name: str, g: Any) -> tuple[Callable[..., Any], list[Any]]:
    call, shapes = CALLS[name]
    counts = {0: g.num_sources, -1: g.num_edges}
    arrays = [random(*(counts.get(size, size) for size in shape)) for shape in shapes]
    return lambda *given: call(g, *given), [array.requires_grad_() for array in arrays]


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_any_order(name: str) -> None:
    call, arrays = operands(name, small())
    assert torch.autograd.gradcheck(call, arrays)
    assert torch.autograd.gradgradcheck(call, arrays)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradients_of_extremes(reduce: str) -> None:
    g = bipartite()
    x, values = random(SOURCES, 3).requires_grad_(), random(g.num_edges).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bst.spmm(g, x, reduce=reduce), [x])
    assert torch.autograd.gradcheck(lambda x, v: bst.spmm(g, x, v, reduce=reduce), [x, values])


@pytest.mark.parametrize("name", CALLS)
def test_transforms_of_functions(name: str) -> None:
    call, arrays = operands(name, bipartite())
    plain = [array.detach() for array in arrays]
    wanted = torch.autograd.grad(call(*arrays).pow(2).sum(), arrays)
    every = tuple(range(len(arrays)))
    for got, want in zip(torch.func.grad(lambda *a: call(*a).pow(2).sum(), every)(*plain), wanted, strict=True):
        torch.testing.assert_close(got, want)
    backward = torch.func.jacrev(call, every)(*plain)
    for jacobian, want in zip(backward, torch.autograd.functional.jacobian(call, tuple(plain)), strict=True):
        torch.testing.assert_close(jacobian, want)
    for number in every:
        batches = [torch.stack([a, 2 * a, -a], dim=1) if n == number else a for n, a in enumerate(plain)]
        dims = tuple(1 if n == number else None for n in every)
        together = torch.func.vmap(call, dims)(*batches)
        for k, factor in enumerate((1, 2, -1)):
            one = [factor * a if n == number else a for n, a in enumerate(plain)]
            torch.testing.assert_close(together[k], call(*one))


def test_attention_and_the_softmax_over_rows() -> None:
    sources, targets = SOURCES // 3, TARGETS // 3
    g = bst.Graph(edge_list(sources, targets, 24).unique(dim=1), (sources, targets))
    pattern = g.pattern()
    for heads in ((), (2,)):
        parts = [random(sources, *heads, 3), random(sources, *heads), random(targets, *heads)]
        parts = [part.requires_grad_() for part in parts]
        assert torch.autograd.gradcheck(lambda *given: bst.attention(g, *given), parts)
        scores = random(g.num_edges, *heads).requires_grad_()
        assert torch.autograd.gradcheck(lambda scores: attention_operators.edge_softmax(pattern, scores), [scores])
    seed = torch.tensor([-5])
    for how in ((None, 0.2, 0.0, True), (None, 0.2, 0.0, False), (seed, 0.2, 0.5, True)):
        torch.library.opcheck(torch.ops.bitsparse.attention.default, (*pattern, *(p.detach() for p in parts), *how))
    torch.library.opcheck(torch.ops.bitsparse.attention.default, (*pattern, *parts, *how))
    dropped = functools.partial(attention_operators.attention, pattern, slope=0.1, dropout=0.3, seed=seed)
    assert torch.autograd.gradcheck(dropped, parts)
    of_loss = torch.func.grad(lambda *given: dropped(*given).sum(), (0, 1, 2))(*(p.detach() for p in parts))
    for one, other in zip(of_loss, torch.autograd.grad(dropped(*parts).sum(), parts), strict=True):
        torch.testing.assert_close(one, other)
    torch.library.opcheck(torch.ops.bitsparse.edge_softmax.default, (*pattern, scores))
    kept = []
    for _ in range(2):
        torch.manual_seed(0)
        kept.append(bst.attention(g, *parts, dropout=0.5))
        kept.append(torch.autograd.grad(kept[-1].sum(), parts))
    assert torch.equal(kept[0], kept[2])
    assert all(torch.equal(a, b) for a, b in zip(kept[1], kept[3], strict=True))
    several = torch.stack([bst.attention(g, *parts, dropout=0.5) for _ in range(400)]).mean(0)
    assert (several - bst.attention(g, *parts)).abs().max() < 0.5
    with pytest.raises(ValueError, match="repeated edges"):
        bst.attention(small(), *parts)


def test_attention_by_cosines_and_of_the_second_kind() -> None:
    g = bst.Graph(edge_list(SOURCES, TARGETS, 120).unique(dim=1), (SOURCES, TARGETS))
    for heads in ((), (2,)):
        shapes = ((SOURCES, *heads, 3), (TARGETS, *heads, 3), (*heads, 3))
        parts = [random(*shape).requires_grad_() for shape in shapes]
        assert torch.autograd.gradcheck(lambda *given: bst.gatv2_attention(g, *given), parts)
        torch.library.opcheck(torch.ops.bitsparse.gatv2_scores.default, (*g.pattern(), *parts, 0.2))
    kept = []
    for _ in range(2):
        torch.manual_seed(0)
        kept.append(bst.gatv2_attention(g, *parts, dropout=0.5))
    assert torch.equal(*kept)
    assert not torch.equal(kept[0], bst.gatv2_attention(g, *parts))
    narrow = [parts[0].bfloat16(), parts[1].bfloat16(), parts[2].float()]
    assert bst.gatv2_attention(g, *narrow).dtype == torch.bfloat16
    square = bst.Graph(edge_list(NODES, NODES, 200).unique(dim=1), NODES)
    x, beta = random(NODES, 3).requires_grad_(), random(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: bst.cosine_attention(square, *given), (x, beta))
    torch.library.opcheck(torch.ops.bitsparse.cosine_attention.default, (*square.pattern(), x, beta, True))
    for call in (lambda g: bst.cosine_attention(g, x, beta), lambda g: bst.gatv2_attention(g, *parts)):
        with pytest.raises(ValueError, match="repeated edges"):
            call(bipartite())


def test_compiled_steps_have_no_break_and_are_compiled_once() -> None:
    compiled: list[int] = []

    def backend(module: Any, _: Any) -> Any:
        compiled.append(1)
        return module

    g = bst.Graph(edge_list(NODES, NODES, 200), NODES)
    net = bst.GCNConv(5, 4)
    x = random(NODES, 5, dtype="float32")
    want = net(x, g)
    fast = torch.compile(net, fullgraph=True, backend=backend)
    for _ in range(10):
        torch.testing.assert_close(fast(x, g), want)
    assert len(compiled) == 1


def test_compiled_attention_drops_other_weights_in_every_step() -> None:
    g = bst.Graph(edge_list(NODES, NODES, 200).unique(dim=1), NODES)
    net = bst.GATConv(5, 4, heads=2, dropout=0.5)
    x = random(NODES, 5, dtype="float32")
    fast = torch.compile(net, fullgraph=True, backend="aot_eager")
    for training in (True, False):
        net.train(training)
        made = []
        for call in (net, fast, fast):
            torch.manual_seed(len(made) // 2)
            y = call(x, g)
            made.append((y, *torch.autograd.grad(y.square().sum(), net.parameters())))
        for one, other in zip(made[0], made[1], strict=True):
            torch.testing.assert_close(one, other)
        assert torch.equal(made[1][0], made[2][0]) != training
    with torch.no_grad():
        torch.testing.assert_close(net(x, g), made[0][0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_and_repetition(dtype: str) -> None:
    g = bipartite()
    bound = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-13}[dtype]
    for reduce in ("sum", "mean", "max"):
        exact = random(SOURCES, 5).requires_grad_()
        want = bst.spmm(g, exact, reduce=reduce)
        want.sum().backward()
        first = None
        for _ in range(5):
            x = exact.detach().to(getattr(torch, dtype)).requires_grad_()
            y = bst.spmm(g, x, reduce=reduce)
            y.sum().backward()
            assert y.dtype == x.grad.dtype == getattr(torch, dtype)
            assert (y.double() - want).abs().max() <= bound * want.abs().max()
            if reduce != "max" or dtype == "float64":  # narrow numbers tie where wide ones do not
                assert (x.grad.double() - exact.grad).abs().max() <= bound * exact.grad.abs().max()
            assert first is None or all(torch.equal(a, b) for a, b in zip(first, (y, x.grad), strict=True))
            first = (y.detach(), x.grad)


def test_autocast_converts_features() -> None:
    g = bipartite()
    x = random(SOURCES, 5, dtype="float32").requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = bst.spmm(g, x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == torch.float32


# ---- graphs
def test_a_graph_comes_from_every_form() -> None:
    edges = edge_list(NODES, NODES, 100).unique(dim=1)
    dense = torch.zeros(NODES, NODES)
    dense[edges[1], edges[0]] = 1
    csr = sparse.csr_array(dense.numpy())
    forms: list[Any] = [
        edges,
        edges.flip(1),
        edges.numpy(),
        csr,
        csr.tocoo(),
        bs.TCTiledCSR(csr, pattern=True),
        bs.FRDC(csr),
        dense.to_sparse_coo(),
        dense.to_sparse_csr(),
        type("Data", (), {"edge_index": edges, "num_nodes": NODES})(),
    ]
    x = random(NODES, 3, dtype="float32")
    for form in forms:
        g = bst.Graph(form, NODES if form is forms[0] else None)
        if g.num_targets == NODES == g.num_sources:
            torch.testing.assert_close(bst.spmm(g, x), dense @ x)
            assert g.num_edges == csr.nnz


def test_weights_and_repeated_edges_add_up() -> None:
    edges = torch.tensor([[0, 0, 1, 2], [1, 1, 0, 2]])
    x = torch.tensor([[1.0], [10.0], [100.0]])
    assert bst.spmm(bst.Graph(edges), x).flatten().tolist() == [10, 2, 100]
    assert bst.spmm(bst.Graph(edges), x, reduce="mean").flatten().tolist() == [10, 1, 100]
    g = bst.Graph(edges, edge_weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert bst.spmm(g, x).flatten().tolist() == [30, 3, 400]
    assert g.num_edges == 3


def test_a_symmetric_graph_is_kept_once() -> None:
    edges = edge_list(NODES, NODES, 100)
    g = bst.Graph(torch.cat([edges, edges.flip(0)], 1).unique(dim=1), NODES)
    assert g.t_indices is None
    assert g.order is None
    x, values = random(NODES, 2).requires_grad_(), random(g.num_edges).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, v: bst.spmm(g, x, v), [x, values])


def test_graphs_are_copied_saved_and_loaded() -> None:
    g = bst.Graph(edge_list(NODES, NODES, 100), NODES)
    x = random(NODES, 3, dtype="float32")
    want = bst.spmm(g.normalized(), x)
    for other in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert torch.equal(bst.spmm(other.normalized(), x), want)
    file = io.BytesIO()
    torch.save(g.state_dict(), file)
    file.seek(0)
    empty = bst.Graph(edge_list(NODES, NODES, 100), NODES)
    empty.normalized()
    empty.load_state_dict(torch.load(file))
    assert torch.equal(bst.spmm(empty.normalized(), x), want)


def test_a_graph_stays_precise_where_a_network_becomes_narrow() -> None:
    g = bst.Graph(edge_list(NODES, NODES, 300), NODES)
    x = random(NODES, 3, dtype="float32")
    want = bst.spmm(g.normalized(), x), bst.spmm(g, x, reduce="mean")
    torch.nn.ModuleList([g, torch.nn.Linear(2, 2)]).half().double().bfloat16()
    assert torch.equal(bst.spmm(g.normalized(), x), want[0])
    assert torch.equal(bst.spmm(g, x, reduce="mean"), want[1])


def test_a_graph_written_to_is_read_anew() -> None:
    g = bst.Graph(torch.tensor([[0, 1], [1, 0]]), 2)
    x = torch.tensor([[1.0], [2.0]])
    assert bst.spmm(g, x).flatten().tolist() == [2, 1]
    g.indices.copy_(torch.tensor([0, 1]))
    assert bst.spmm(g, x).flatten().tolist() == [1, 2]


class OfOthersToo(dict[Any, Any]):
    """What is kept, which another thread throws away right after a look at it."""

    def __contains__(self, key: Any) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found


def test_other_threads_may_throw_away_what_is_kept() -> None:
    edges, x = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0], [2.0]])
    graph = bst.Graph(edges, 2)
    kept_graphs._GRAPHS[edges], pattern._ARRAYS[graph.indptr] = OfOthersToo(), OfOthersToo()
    for _ in range(2):
        assert torch.equal(bst.spmm(kept_graphs.as_graph(edges, 2), x), bst.spmm(graph, x))


def test_edge_lists_and_numbers_of_nodes_of_other_kinds() -> None:
    edges = [[0, 1, 2], [1, 2, 1]]
    want = bst.spmm(bst.Graph(torch.tensor(edges), 4), torch.eye(4))
    for given in (edges, tuple(map(tuple, edges)), np.array(edges)):
        for nodes in (4, np.int64(4), (4, 4), [4, np.int32(4)]):
            assert torch.equal(bst.spmm(bst.Graph(given, nodes), torch.eye(4)), want)


def test_what_does_not_fit_is_refused() -> None:
    g = bst.Graph(torch.tensor([[0, 1], [1, 0]]), 2)
    with pytest.raises(bs.ShapeError, match=r"spmm: the graph has 2 sources but x has shape \(3, 1\)"):
        bst.spmm(g, torch.ones(3, 1))
    with pytest.raises(bs.DTypeError, match="spmm: graph is a Tensor; pass a Graph"):
        bst.spmm(torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 1))
    with pytest.raises(bs.DTypeError, match="attention: graph is a Tensor; pass a Graph"):
        bst.attention(torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 1), torch.ones(2), torch.ones(2))
    with pytest.raises(bs.DTypeError, match="spmm: x is a ndarray; pass a tensor"):
        bst.spmm(g, np.ones((2, 1)))
    for number in (2.5, "two"):
        with pytest.raises(bs.DTypeError, match="Graph: num_nodes must be"):
            bst.Graph(torch.tensor([[0, 1], [1, 0]]), number)
    with pytest.raises(bs.DTypeError, match="spmm: x is torch"):
        bst.spmm(g, torch.ones(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="spmm: reduce must"):
        bst.spmm(g, torch.ones(2, 1), reduce="median")
    with pytest.raises(bs.ShapeError, match=r"Graph: edges has shape \(3, 2\)"):
        bst.Graph(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(bs.ShapeError, match="normalized: the graph is 2 x 3"):
        bst.Graph(torch.tensor([[0, 2], [1, 0]]), (3, 2)).normalized()
    with pytest.raises(ValueError, match="add_self_loops"):
        bst.GCNConv(2, 2, add_self_loops=True, normalize=False)
    with pytest.raises(ValueError, match="SAGEConv: aggr"):
        bst.SAGEConv(2, 2, aggr="lstm")
    with pytest.raises(NotImplementedError, match="several graphs"):
        torch.func.vmap(lambda s: operators.spmm(g.pattern(), None, s, None, torch.ones(2, 1)))(torch.ones(3, 2))


# ---- layers
def layers(module: Any) -> dict[str, Callable[[], Any]]:
    mlp = torch.nn.Linear
    return {
        "GCN": lambda: module.GCNConv(6, 4),
        "GCN widens": lambda: module.GCNConv(6, 9, bias=False),
        "GCN improved": lambda: module.GCNConv(6, 4, improved=True),
        "GCN without loops": lambda: module.GCNConv(6, 4, add_self_loops=False),
        "GCN without factors": lambda: module.GCNConv(6, 4, normalize=False),
        "SAGE": lambda: module.SAGEConv(6, 4),
        "SAGE widens": lambda: module.SAGEConv(6, 9, bias=False),
        "SAGE sum": lambda: module.SAGEConv(6, 4, aggr="sum", normalize=True),
        "SAGE max": lambda: module.SAGEConv(6, 4, aggr="max", project=True),
        "SAGE min": lambda: module.SAGEConv(6, 4, aggr="min", root_weight=False),
        "GIN": lambda: module.GINConv(torch.nn.Sequential(mlp(6, 8), torch.nn.ReLU(), mlp(8, 4))),
        "GIN narrows": lambda: module.GINConv(torch.nn.Sequential(mlp(6, 3), torch.nn.ReLU(), mlp(3, 4))),
        "GIN learns": lambda: module.GINConv(mlp(6, 4), eps=0.3, train_eps=True),
        "GAT": lambda: module.GATConv(6, 4, heads=3),
        "GAT means": lambda: module.GATConv(6, 4, heads=3, concat=False, residual=True, negative_slope=0.1),
        "GAT without loops": lambda: module.GATConv(6, 4, add_self_loops=False, bias=False),
        "GATv2": lambda: module.GATv2Conv(6, 4, heads=3),
        "GATv2 means": lambda: module.GATv2Conv(6, 4, heads=3, concat=False, residual=True, negative_slope=0.1),
        "GATv2 shares": lambda: module.GATv2Conv(6, 4, heads=2, share_weights=True, residual=True),
        "GATv2 without loops": lambda: module.GATv2Conv(6, 4, add_self_loops=False, bias=False),
        "GATv2 wide": lambda: module.GATv2Conv(6, 40, heads=8),
        "AGNN": lambda: module.AGNNConv(),
        "AGNN without loops": lambda: module.AGNNConv(add_self_loops=False),
        "AGNN fixed": lambda: module.AGNNConv(requires_grad=False),
    }


@pytest.mark.pyg
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", layers(None))
def test_layers_have_the_numbers_of_pytorch_geometric(name: str, weighted: bool) -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    theirs, ours = layers(gnn)[name](), layers(bst)[name]()
    ours.load_state_dict(theirs.state_dict())
    edges = edge_list(NODES, NODES, 300)
    edges = edges.unique(dim=1) if name[:2] in ("GA", "AG") else edges
    given = (edges, random(300, dtype="float32").abs()) if weighted else (edges,)
    if weighted and "GCN" not in name:
        given = (edges,)
    graph = bst.Graph(edges, NODES, edge_weight=given[1]) if len(given) > 1 else edges
    if weighted and len(given) > 1:  # of repeated loops PyTorch Geometric takes the last
        alone = edges[0] != edges[1]
        given = (edges[:, alone], given[1][alone])
        graph = bst.Graph(given[0], NODES, edge_weight=given[1])
    x = random(NODES, 6, dtype="float32")
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = ours(one, graph), theirs(other, *given)
    direction = random(*want.shape, dtype="float32")
    (got * direction).sum().backward()
    (want * direction).sum().backward()
    assert (got - want).abs().max() <= 2e-6 * want.abs().max()
    pairs = [(one.grad, other.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
    for a, b in pairs:
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def test_products_of_gin_are_summed_unless_somebody_watches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(6, 3)
    layer, widths, seen = bst.GINConv(torch.nn.Sequential(linear, torch.nn.ReLU())), [], []
    x, g = random(NODES, 6, dtype="float32"), bst.Graph(edge_list(NODES, NODES, 100), NODES)
    spmm: Any = bst.spmm
    monkeypatch.setattr(
        importlib.import_module("bitsparse.torch.quantizer"),
        "spmm",
        lambda graph, x, reduce: widths.append(x.shape[1]) or spmm(graph, x, reduce=reduce),
    )
    want = layer(x, g)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x, g), want)
    linear.register_forward_hook(lambda module, given, result: seen.append(result))
    torch.testing.assert_close(layer(x, g), want)
    assert widths[0] == 3
    assert widths[-1] == 6
    assert len(seen) == 1


class Twice(torch.nn.Linear):  # type: ignore[misc, name-defined]
    """A linear layer with a forward of its own."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x).relu()


@pytest.mark.parametrize("put", ["subclass", "sequence", "hook", "bias"])
@pytest.mark.parametrize("outputs", [3, 8])
@pytest.mark.parametrize(
    ("kind", "name"), [("GCNConv", "lin"), ("SAGEConv", "lin_l"), ("SAGEConv", "lin_r"), ("GATConv", "lin")]
)
def test_a_layer_put_in_the_place_of_a_linear_one_is_called(kind: str, name: str, outputs: int, put: str) -> None:
    """Adapters and the like: its own forward counts, and is given what PyTorch Geometric's layers give it."""
    layer, given = getattr(bst, kind)(6, outputs), []
    linear = {
        "subclass": Twice(6, outputs),
        "sequence": torch.nn.Sequential(torch.nn.Linear(6, outputs), torch.nn.ReLU()),
        "hook": torch.nn.Linear(6, outputs),
        "bias": torch.nn.Linear(6, outputs),
    }[put]
    if put == "hook":
        linear.register_forward_hook(lambda module, x, result: given.append(x) or result.relu())
    setattr(layer, name, linear)
    x, g = random(NODES, 6, dtype="float32"), bst.Graph(edge_list(NODES, NODES, 100).unique(dim=1), NODES)
    got = layer(x, g)
    if kind == "GCNConv":
        want = bst.spmm(g.normalized(), linear(x)) + layer.bias
    elif kind == "SAGEConv":
        want = layer.lin_l(bst.spmm(g, x, reduce="mean")) + layer.lin_r(x)
    else:
        h = linear(x)
        ends = (h @ part.flatten() for part in (layer.att_src, layer.att_dst))
        want = bst.attention(g.with_self_loops(), h, *ends) + layer.bias
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv"])
def test_layers_take_an_adjacency(kind: str, layout: str) -> None:
    dense = random(NODES, NODES, dtype="float32").relu()
    given, x, layer = (
        getattr(dense, f"to_sparse_{layout}")(),
        random(NODES, 6, dtype="float32"),
        getattr(bst, kind)(6, 3),
    )
    torch.testing.assert_close(layer(x, given), layer(x, bst.Graph(given)))
    (given._values() if layout == "coo" else given.values()).mul_(torch.arange(1.0, given._nnz() + 1))
    torch.testing.assert_close(layer(x, given), layer(x, bst.Graph(given)))


@pytest.mark.pyg
def test_bipartite_blocks() -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    edges = edge_list(SOURCES, TARGETS, 90)
    sources, targets = random(SOURCES, 6, dtype="float32"), random(TARGETS, 5, dtype="float32")
    theirs, ours = gnn.SAGEConv((6, 5), 4), bst.SAGEConv((6, 5), 4)
    ours.load_state_dict(theirs.state_dict())
    want = theirs((sources, targets), edges)
    torch.testing.assert_close(ours((sources, targets), bst.Graph(edges, (SOURCES, TARGETS))), want)
    torch.testing.assert_close(ours((sources, targets), edges), want)
    theirs, ours = (module.GATv2Conv((6, 5), 4, heads=2, add_self_loops=False, residual=True) for module in (gnn, bst))
    ours.load_state_dict(theirs.state_dict())
    edges = edges.unique(dim=1)
    want = theirs((sources, targets), edges)
    torch.testing.assert_close(ours((sources, targets), edges), want)
    torch.testing.assert_close(bst.accelerate(theirs)((sources, targets), bst.Graph(edges, (SOURCES, TARGETS))), want)


# ---- models of PyTorch Geometric
def models() -> dict[str, Callable[[], Any]]:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    return {
        "GCN": lambda: gnn.GCN(6, 8, 2, 4),
        "GraphSAGE": lambda: gnn.GraphSAGE(6, 8, 2, 4),
        "GraphSAGE max": lambda: gnn.GraphSAGE(6, 8, 2, 4, aggr="max"),
        "GIN": lambda: gnn.GIN(6, 8, 2, 4),
        "GAT": lambda: gnn.GAT(6, 8, 2, 4, heads=2),
        "GATv2": lambda: gnn.GAT(6, 8, 2, 4, heads=2, v2=True),
        "AGNN": lambda: Agnn(gnn),
    }


class Agnn(torch.nn.Module):
    """Two layers with attention by cosines between linear ones."""

    def __init__(self, gnn: Any) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)
        self.layers = torch.nn.ModuleList([gnn.AGNNConv(), gnn.AGNNConv(requires_grad=False)])

    def forward(self, x: Any, graph: Any) -> Any:
        x = self.first(x).relu()
        for layer in self.layers:
            x = layer(x, graph)
        return self.last(x)


@pytest.mark.pyg
@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GraphSAGE max", "GIN", "GAT", "GATv2", "AGNN"])
def test_models_of_pytorch_geometric_are_accelerated_in_place(name: str) -> None:
    theirs = models()[name]().eval()
    ours = bst.accelerate(copy.deepcopy(theirs))
    left = "calls with return_attention_weights=True are PyTorch Geometric's" if name.startswith("GAT") else ""
    assert [(layer.accelerated, layer.reason) for layer in bst.report(ours)] == [(True, left)] * 2
    assert not any(layer.accelerated for layer in bst.report(theirs))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    edges = edge_list(NODES, NODES, 300).unique(dim=1)
    g, x = bst.Graph(edges, NODES), random(NODES, 6, dtype="float32")
    want = theirs(x, edges)
    for model in (
        ours,
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.compile(ours, fullgraph=True, backend="aot_eager"),
    ):
        assert (model(x, g) - want).abs().max() <= 5e-6 * want.abs().max()
    assert torch.equal(ours(x, edges), want)
    for model, graph in ((ours, g), (theirs, edges)):
        model(x, graph).square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (a.grad - b.grad).abs().max() <= 1e-4 * b.grad.abs().max()


@pytest.mark.pyg
def test_layers_that_are_not_known_are_named() -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    model = torch.nn.ModuleList(
        [
            gnn.GATConv(6, 4, edge_dim=2),
            gnn.TransformerConv(6, 4),
            gnn.GCNConv(6, 4, flow="target_to_source"),
            gnn.SAGEConv(6, 4, aggr="median"),
            gnn.GCNConv(6, 4),
        ]
    )
    found = bst.report(bst.accelerate(model))
    assert [layer.accelerated for layer in found] == [False, False, False, False, True]
    assert all(
        text in layer.reason for text, layer in zip(("edge_dim", "known", "flow", "median", ""), found, strict=True)
    )
    with pytest.raises(ValueError, match="edge_weight beside a Graph"):
        model[4](random(NODES, 6, dtype="float32"), bst.Graph(edge_list(NODES, NODES, 9), NODES), torch.ones(9))


@pytest.mark.pyg
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv"])
def test_weights_of_attention_are_returned_as_by_pytorch_geometric(kind: str, loops: bool) -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    layer = getattr(gnn, kind)(6, 4, heads=2, add_self_loops=loops)
    edges, x = edge_list(NODES, NODES, 300).unique(dim=1), random(NODES, 6, dtype="float32")
    want, (its_edges, its_weights) = layer(x, edges, return_attention_weights=True)
    g, order = bst.Graph(edges, NODES), (its_edges[0] * NODES + its_edges[1]).argsort()
    by_place = (None,) * (2 if kind == "GATConv" else 1)
    for model in (bst.accelerate(bst.accelerate(layer)), copy.deepcopy(layer)):
        assert len(model._forward_pre_hooks) == 1
        for made in (model(x, g, return_attention_weights=True), model(x, g, *by_place, True)):
            got, (our_edges, our_weights) = made
            torch.testing.assert_close(got, want)
            same = (our_edges[0] * NODES + our_edges[1]).argsort()
            assert torch.equal(our_edges[:, same], its_edges[:, order])
            torch.testing.assert_close(our_weights[same], its_weights[order])
        assert isinstance(model(x, g, *by_place, None), torch.Tensor)
    with pytest.raises(ValueError, match="repeated edges"):
        layer(x, bst.Graph(torch.cat([edges, edges], 1), NODES), return_attention_weights=True)


@pytest.mark.pyg
def test_weights_of_attention_to_targets_without_features() -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    layer = bst.accelerate(gnn.GATConv((6, 3), 4, add_self_loops=False))
    g, x = bst.Graph(edge_list(20, 9, 40).unique(dim=1), (20, 9)), (random(20, 6, dtype="float32"), None)
    got, (_, weights) = layer(x, g, return_attention_weights=True)
    torch.testing.assert_close(got, layer(x, g))
    assert len(weights) == g.num_edges
    with pytest.raises(bs.ShapeError, match=r"size=\(20, 20\), but the Graph has \(20, 9\)"):
        layer(x, g, size=(20, 20))


@pytest.mark.pyg
@pytest.mark.parametrize("shape", [(3, NODES), (NODES, NODES), (2, 3, NODES)])
def test_batches_of_features_over_one_graph(shape: tuple[int, ...]) -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    edges = edge_list(NODES, NODES, 300).unique(dim=1)
    x, g = random(*shape, 6, dtype="float32"), bst.Graph(edges, NODES)
    for layer in (gnn.GCNConv(6, 4), gnn.SAGEConv(6, 4, aggr="max"), gnn.GINConv(torch.nn.Linear(6, 4))):
        want = layer(x, edges)
        torch.testing.assert_close(bst.accelerate(layer)(x, g), want)


@pytest.mark.pyg
def test_who_watches_messages_is_told_that_there_are_none() -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    edges, x = edge_list(NODES, NODES, 300), random(NODES, 6, dtype="float32")
    layer, g = bst.accelerate(gnn.GCNConv(6, 4)), bst.Graph(edges, NODES)
    hook = layer.register_message_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match=r"message_forward_hooks.*pass edge_index"):
        layer(x, g)
    hook.remove()
    layer(x, g)
    layer.explain = True  # puts another propagate in place
    assert "explain" in bst.report(layer)[0].reason
    with pytest.raises(ValueError, match=r"explain=True.*pass edge_index"):
        bst.accelerate(layer)(x, g)


def test_layers_without_weights_leave_those_of_a_graph_out() -> None:
    edges = edge_list(NODES, NODES, 60).unique(dim=1)
    x, layer = random(NODES, 6, dtype="float32"), bst.SAGEConv(6, 4)
    weighted = bst.Graph(edges, NODES, edge_weight=torch.full((edges.shape[1],), 2.0))
    torch.testing.assert_close(layer(x, weighted), layer(x, bst.Graph(edges, NODES)))
