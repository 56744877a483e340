"""bitsparse.torch keeps what graphs are made of: factors, weights, repeated edges, and the dtypes of all."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs

torch: Any = pytest.importorskip("torch")
bst: Any = pytest.importorskip("bitsparse.torch")
graphs: Any = pytest.importorskip("bitsparse.torch.graph")
kept_graphs: Any = pytest.importorskip("bitsparse.torch.kept_graphs")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
]
TARGETS, SOURCES = 6, 5
RNG = np.random.default_rng(3)
DENSE = np.where(RNG.random((TARGETS, SOURCES)) < 0.5, RNG.standard_normal((TARGETS, SOURCES)), 0)
DENSE[2] = 0
EDGES = torch.from_numpy(np.stack(DENSE.nonzero()[::-1]))  # (sources, targets), by targets
WEIGHTS = torch.from_numpy(DENSE[DENSE != 0])


def features(dtype: Any = None, seed: int = 1) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((SOURCES, 3))).to(dtype or torch.float64)


# ---- weights
@pytest.mark.parametrize("kind", [bs.TCTiledCSR, bs.FRDC])
def test_factors_of_an_array_become_weights(kind: Any) -> None:
    rows, columns = RNG.random(TARGETS).astype(np.float32), RNG.random(SOURCES).astype(np.float32)
    for factors in ({"row_scale": rows}, {"col_scale": columns}, {"row_scale": rows, "col_scale": columns}):
        array = kind(DENSE != 0, **factors)
        torch.testing.assert_close(
            bst.spmm(bst.Graph(array), features(torch.float32)),
            torch.from_numpy(array.toarray()) @ features(torch.float32),
        )
    array = bs.TCTiledCSR(DENSE, row_scale=rows)
    torch.testing.assert_close(bst.spmm(bst.Graph(array), features()), torch.from_numpy(array.toarray()) @ features())


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_several_values_an_edge_are_no_weights(heads: int) -> None:
    array = bs.TCTiledCSR(DENSE, pattern=True).with_values(np.ones((len(WEIGHTS), heads), np.float32))
    with pytest.raises(
        bs.ShapeError, match=rf"Graph: the adjacency has values of shape \({len(WEIGHTS)}, {heads}\).*with_values"
    ):
        bst.Graph(array)
    assert bst.Graph(array.with_values(None)).weight is None
    with pytest.raises(bs.ShapeError, match=rf"Graph: edge_weight has shape \({len(WEIGHTS)}, {heads}\)"):
        bst.Graph(EDGES, edge_weight=torch.ones(len(WEIGHTS), heads))
    hybrid = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(len(WEIGHTS), heads), (TARGETS, SOURCES, heads))
    with pytest.raises(bs.ShapeError, match=r"Graph: the sparse tensor has shape .* with 1 dense"):
        bst.Graph(hybrid)


def test_weights_are_of_edges_and_sizes_agree() -> None:
    with pytest.raises(bs.ShapeError, match=r"Graph: edge_weight has shape \(3,\), but there are"):
        bst.Graph(EDGES, edge_weight=torch.ones(3))
    with pytest.raises(ValueError, match="Graph: edge_weight goes with an edge list, but edges is a csr_array"):
        bst.Graph(sparse.csr_array(DENSE), edge_weight=WEIGHTS)
    with pytest.raises(bs.ShapeError, match=r"num_nodes asks for shape \(7, 7\), but the adjacency has \(6, 5\)"):
        bst.Graph(sparse.csr_array(DENSE), 7)
    with pytest.raises(bs.DTypeError, match=r"Graph: weights are complex64; pass real ones"):
        bst.Graph(EDGES, edge_weight=WEIGHTS.to(torch.complex64))


def test_float64_weights_stay_float64() -> None:
    want = torch.from_numpy(DENSE) @ features()
    dense = torch.from_numpy(DENSE)
    forms = [
        bst.Graph(EDGES, (SOURCES, TARGETS), edge_weight=WEIGHTS),
        bst.Graph(EDGES.numpy(), (SOURCES, TARGETS), edge_weight=WEIGHTS.numpy()),
        bst.Graph(sparse.csr_array(DENSE)),
        bst.Graph(bs.TCTiledCSR(DENSE)),
        bst.Graph(dense.to_sparse_coo()),
        bst.Graph(dense.to_sparse_csr()),
    ]
    for g in forms:
        assert g.weight.dtype == torch.float64
        assert (bst.spmm(g, features()) - want).abs().max() <= 1e-14
        assert bst.spmm(g, features(torch.float32)).dtype == torch.float32
    square = bst.Graph(EDGES, SOURCES + 1, edge_weight=WEIGHTS.abs())
    adjacency = np.zeros((SOURCES + 1, SOURCES + 1))
    adjacency[EDGES[1], EDGES[0]] = WEIGHTS.abs()
    np.fill_diagonal(adjacency, np.where(np.diag(adjacency) == 0, 1, np.diag(adjacency)))
    scale = adjacency.sum(1) ** -0.5
    x = torch.cat([features(), features()[:1]])
    want = torch.from_numpy(scale[:, None] * adjacency * scale) @ x
    assert square.normalized().scale.dtype == torch.float32
    assert (bst.spmm(square.normalized(), x) - want).abs().max() <= 1e-14
    again = square.normalized().normalized(False)
    twice = (scale[:, None] * adjacency * scale).sum(1) ** -0.5
    want = torch.from_numpy(twice[:, None] * (scale[:, None] * adjacency * scale) * twice) @ x
    assert (bst.spmm(again, x) - want).abs().max() <= 1e-6, "normalised twice is normalised twice"


def test_integer_weights_are_exact() -> None:
    large = torch.tensor([1 << 25, (1 << 25) + 1])
    g = bst.Graph(torch.tensor([[0, 1], [0, 0]]), 2, edge_weight=large)
    assert bst.spmm(g, torch.eye(2, dtype=torch.float64))[0].tolist() == large.tolist()
    assert bst.Graph(EDGES, edge_weight=torch.arange(len(WEIGHTS))).weight.dtype == torch.float32
    with_zeros = bs.TCTiledCSR.from_csr_arrays([0, 2], [0, 1], (1, 2), np.array([True, False]))
    assert bst.spmm(bst.Graph(with_zeros), torch.tensor([[1.0], [10.0]])).tolist() == [[1.0]]


def test_weights_of_ones_are_none() -> None:
    for form in (sparse.csr_array((DENSE != 0).astype(np.float32)), bs.TCTiledCSR((DENSE != 0).astype(np.int64))):
        assert bst.Graph(form).weight is None


def test_weights_that_learn_are_refused_and_go_with_spmm() -> None:
    learns = WEIGHTS.clone().requires_grad_()
    with pytest.raises(
        ValueError, match=r"Graph: edge_weight requires a gradient.*values=graph\.edge_values\(edge_index"
    ):
        bst.Graph(EDGES, edge_weight=learns)
    with pytest.raises(ValueError, match="Graph: the sparse tensor requires a gradient"):
        bst.Graph(torch.sparse_coo_tensor(EDGES.flip(0), learns, (TARGETS, SOURCES)))
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert bst.Graph(EDGES, edge_weight=learns).weight is not None
    shuffled = torch.from_numpy(np.random.default_rng(0).permutation(len(WEIGHTS)))
    g = bst.Graph(EDGES, (SOURCES, TARGETS))
    y = bst.spmm(g, features(), g.edge_values(EDGES[:, shuffled], learns[shuffled]))
    torch.testing.assert_close(y, torch.from_numpy(DENSE) @ features())
    y.sum().backward()
    torch.testing.assert_close(learns.grad, features().sum(1)[EDGES[0]])
    outside = EDGES + torch.tensor([[SOURCES], [-1]])  # as far along the rows of the adjacency as the edges
    for others in (EDGES[:, 1:], EDGES[:, [0, *range(len(WEIGHTS) - 1)]], EDGES.flip(1).clone().fill_(0), outside):
        with pytest.raises(ValueError, match=rf"edge_values: the graph has {len(WEIGHTS)} edges"):
            g.edge_values(others, learns[: others.shape[1]])
    for values in (learns[1:], torch.cat([learns, learns])):
        with pytest.raises(bs.ShapeError, match=rf"edge_values: values have shape .* has {len(WEIGHTS)} edges"):
            g.edge_values(EDGES, values)


# ---- repeated edges, loops
def test_loops_leave_the_other_edges_as_often_as_they_are() -> None:
    edges = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 2]])
    g = bst.Graph(edges, 3).with_self_loops()
    x = torch.tensor([[1.0], [10.0], [100.0]])
    assert bst.spmm(g, x).flatten().tolist() == [1, 12, 110]
    assert g.multiplicity.tolist() == [1, 2, 1, 1, 1]
    with pytest.raises(ValueError, match="attention: the graph has repeated edges"):
        bst.attention(g, x, x[:, 0], x[:, 0])
    weighted = bst.Graph(edges, 3, edge_weight=torch.arange(5.0)).with_self_loops()
    assert weighted.weight is None
    assert weighted.multiplicity.tolist() == g.multiplicity.tolist()


def test_bipartite_loops_are_those_of_nodes_at_both_ends() -> None:
    for sources, targets in ((3, 2), (2, 3)):
        g = bst.Graph(torch.tensor([[1], [0]]), (sources, targets)).with_self_loops()
        assert (g.num_sources, g.num_targets) == (sources, targets)
        want = torch.eye(targets, sources)
        want[0, 1] = 1
        assert torch.equal(bst.spmm(g, torch.eye(sources)), want)


# ---- dtypes of sums
FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize(
    ("of_x", "of_values", "compiled"),
    [(one, other, False) for one in FLOATS for other in (*FLOATS, "int64")]
    + [("float16", "float32", True), ("float32", "float64", True), ("bfloat16", "float16", True)],
)
def test_values_are_promoted(of_x: str, of_values: str, compiled: bool) -> None:
    g = bst.Graph(EDGES, (SOURCES, TARGETS))
    x = features(getattr(torch, of_x)).requires_grad_()
    values = (100 * WEIGHTS).to(getattr(torch, of_values))
    values.requires_grad_(values.is_floating_point())
    dtype = torch.promote_types(x.dtype, values.dtype)
    adjacency = torch.zeros(TARGETS, SOURCES, dtype=torch.float64)
    adjacency[EDGES[1], EDGES[0]] = values.detach().double()
    bound = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    call = torch.compile(bst.spmm, fullgraph=True, backend="aot_eager") if compiled else bst.spmm
    for reduce in ("sum", "mean", "max"):
        made = call(g, x, values, reduce)
        assert made.dtype == dtype
        if reduce == "sum":
            want = adjacency @ x.detach().double()
            assert (made.double() - want).abs().max() <= bound * want.abs().max()
        made.double().sum().backward()
        assert x.grad.dtype == x.dtype
        assert values.grad is None or values.grad.dtype == values.dtype
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", FLOATS)
def test_own_weights_follow_the_features(dtype: str) -> None:
    for weight in (WEIGHTS, WEIGHTS.float()):
        g = bst.Graph(EDGES, (SOURCES, TARGETS), edge_weight=weight)
        for reduce in ("sum", "mean", "max"):
            assert bst.spmm(g, features(getattr(torch, dtype)), reduce=reduce).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_converts_features_and_values(compiled: bool) -> None:
    g = bst.Graph(EDGES, (SOURCES, TARGETS))
    x, values = features(torch.float32).requires_grad_(), WEIGHTS.float().requires_grad_()

    def call(x: Any, values: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return bst.spmm(g, x, values)

    run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    made = run(x, values)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, bst.spmm(g, x.bfloat16(), values.bfloat16()))
    made.sum().backward()
    assert x.grad.dtype == values.grad.dtype == torch.float32
    assert run(x.detach().double(), values).dtype == torch.float64, (
        "float64 is left alone, as PyTorch's own products leave it"
    )
    torch._dynamo.reset()


def test_means_and_factors_are_exact_in_float64() -> None:
    edges = torch.cat([EDGES, EDGES[:, :3]], 1)
    for given in (EDGES, edges):
        counts = np.zeros((TARGETS, SOURCES))
        np.add.at(counts, (given[1].numpy(), given[0].numpy()), 1)
        want = torch.from_numpy(counts / np.maximum(counts.sum(1, keepdims=True), 1)) @ features()
        g = bst.Graph(given, (SOURCES, TARGETS))
        assert g.inverse_degree.dtype == torch.float32
        assert (bst.spmm(g, features(), reduce="mean") - want).abs().max() <= 1e-15
        assert (bst.spmm(g, features(torch.float32), reduce="mean") - want).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_of_a_normalised_graph_have_its_factors(dtype: str) -> None:
    x = torch.rand(SOURCES + 1, 2, dtype=getattr(torch, dtype)) + 1
    for weight in (None, WEIGHTS.abs()):
        g = bst.Graph(EDGES, SOURCES + 1, edge_weight=weight).normalized()
        matrix = bst.spmm(g, torch.eye(SOURCES + 1, dtype=torch.float64))
        want = (matrix[:, :, None] * x).amax(1)
        assert (bst.spmm(g, x, reduce="max") - want).abs().max() <= (1e-6 if dtype == "float32" else 1e-15)


def test_dropout_of_attention_keeps_the_dtype() -> None:
    g = bst.Graph(EDGES, (SOURCES, TARGETS))
    x, source, target = features(torch.bfloat16), torch.rand(SOURCES), torch.rand(TARGETS)
    for dropout in (0.0, 0.5):
        assert bst.attention(g, x, source, target, dropout=dropout).dtype == torch.bfloat16


# ---- what is kept
def test_graphs_over_the_same_arrays_with_other_sizes_are_told_apart() -> None:
    indptr, indices = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    results = []
    for columns in (2, 4, 2):
        t_indptr = torch.tensor([0, 1, *(columns - 1) * [2]], dtype=torch.int32)
        none = indptr[:0]
        pattern = graphs.Pattern(indptr, indices, t_indptr, indices, none, none)
        results.append(graphs.operators.spmm(pattern, None, None, None, torch.eye(columns)))
    assert [result.shape for result in results] == [(2, 2), (2, 4), (2, 2)]


def test_graphs_made_under_inference_mode_serve_training() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    x = torch.rand(3, 2).requires_grad_()
    layer = bst.SAGEConv(2, 2)
    with torch.inference_mode():
        want = layer(x, edges)
        made = bst.Graph(edges, 3)
        looped, normalized = made.with_self_loops(), made.normalized()
        made.pattern(values=True)
        inside = edges.clone()
        assert torch.equal(layer(x, inside), want)
        inside[0] = inside[0].flip(0)
        assert not torch.equal(layer(x, inside), want), "nobody counts writes to these"
    torch.testing.assert_close(layer(x, edges), want)
    for g in (kept_graphs.as_graph(edges, 3), made, looped, normalized):
        values = torch.rand(g.num_edges).requires_grad_()
        bst.spmm(g, x, values).sum().backward()
        bst.spmm(g, x, reduce="mean").sum().backward()


@pytest.mark.pyg
@pytest.mark.parametrize("loops", [True, False])
def test_attention_without_features_of_targets_is_that_of_pytorch_geometric(loops: bool) -> None:
    gnn: Any = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    theirs = gnn.GATConv(3, 2, heads=2, add_self_loops=loops)
    ours = bst.accelerate(gnn.GATConv(3, 2, heads=2, add_self_loops=loops))
    ours.load_state_dict(theirs.state_dict())
    x = features(torch.float32)
    for targets in (None, torch.rand(TARGETS - 2, 3), torch.rand(TARGETS, 3)):
        size = SOURCES if targets is None else len(targets)
        edges = EDGES[:, EDGES[1] < size]
        want = theirs((x, targets), edges)
        torch.testing.assert_close(ours((x, targets), bst.Graph(edges, (SOURCES, size))), want)


def test_nothing_is_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bst.spmm(bst.Graph(EDGES.numpy()[:, ::-1], (SOURCES, TARGETS), edge_weight=WEIGHTS), features(torch.float32))


# ---- TF32
@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """PyTorch's setting for its own products of float32 matrices on a GPU."""
    before, torch.backends.cuda.matmul.fp32_precision = torch.backends.cuda.matmul.fp32_precision, precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_sums_may_use_what_pytorch_may_use_for_its_own_products(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def spy(name: str) -> None:
        function = getattr(bs.ops, name)

        def call(*arguments: Any, precision: str = "fp32", **options: Any) -> Any:
            asked.append(precision)
            return function(*arguments, precision=precision, **options)

        monkeypatch.setattr(bs.ops, name, call)

    spy("spmm")
    spy("sddmm")
    g = bst.Graph(EDGES, (SOURCES, TARGETS))
    found = []
    for precision in ("ieee", "tf32"):
        x, values = (part.detach().to(getattr(torch, dtype)).requires_grad_() for part in (features(), WEIGHTS))
        asked.clear()
        with products_in(precision):
            y = bst.spmm(g, x, values)
            y.sum().backward()  # one product with the transpose, and one number for every edge
        assert asked == ["tf32" if (precision, dtype) == ("tf32", "float32") else "fp32"] * 3
        found.append(torch.cat([part.flatten() for part in (y, x.grad, values.grad)]))
    assert torch.equal(*found)  # a CPU computes in float32 all the same


def test_every_setting_of_pytorch_permits_tf32() -> None:
    operators: Any = pytest.importorskip("bitsparse.torch.operators")
    with products_in("ieee"):
        assert operators.permitted(torch.float32) == "fp32"
        torch.backends.cuda.matmul.allow_tf32 = True
        assert operators.permitted(torch.float32) == "tf32"
        torch.set_float32_matmul_precision("highest")
        assert operators.permitted(torch.float32) == "fp32"
        torch.set_float32_matmul_precision("high")
        assert operators.permitted(torch.float32) == "tf32"
        assert operators.permitted(torch.float16) == "fp32"
        torch.set_float32_matmul_precision("highest")
