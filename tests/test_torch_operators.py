"""The operators of bitsparse.torch as PyTorch sees them: registration, gradients in every dtype, compiled, exported, distributed."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
bst: Any = pytest.importorskip("bitsparse.torch")
operators: Any = pytest.importorskip("bitsparse.torch.operators")
attention_operators: Any = pytest.importorskip("bitsparse.torch.attention_operators")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning"),
]
SOURCES, TARGETS = 7, 9
SQUARE = ("cosine_attention", "cosine_attention_vjp", "scored_attention", "scored_attention_vjp")
OPS = torch.ops.bitsparse


def edge_list(edges: int = 16, sources: int = SOURCES, targets: int = TARGETS - 2, seed: int = 0) -> Any:
    """Edges to all but the last targets, each once."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(0, sources, edges), rng.integers(0, targets, edges)])).unique(dim=1)


def graph(name: str = "") -> Any:
    """A rectangle with empty rows; a square for operators that need one."""
    return bst.Graph(edge_list(), TARGETS if name in SQUARE else (SOURCES, TARGETS))


def random(*shape: int, dtype: Any = None, spread: bool = False) -> Any:
    """Random leaves that require a gradient; with `spread` they are views that are not contiguous."""
    shape = shape if not spread else (*shape[:-1], 2 * shape[-1])
    made = torch.from_numpy(np.random.default_rng([7, *shape]).standard_normal(shape)).to(dtype or torch.float64)
    return (made[..., ::2] if spread else made).requires_grad_()


def arguments(name: str, g: Any, heads: tuple[int, ...] = (), **how: Any) -> tuple[Any, ...]:
    """Arguments for an operator over this graph."""
    n = g.num_edges
    x, y = random(SOURCES, *heads, 3, **how), random(TARGETS, *heads, 3, **how)
    source, target, edges = (random(size, *heads, **how) for size in (SOURCES, TARGETS, n))
    scales, pattern = (torch.rand(TARGETS), torch.rand(SOURCES)), g.pattern(values=True)
    weights, square, beta = random(*heads, 3, **how), random(TARGETS, 4, **how), random(1, **how | {"spread": False})
    attended, seed, features = (x, source, target), torch.tensor([-3]), random(TARGETS, *(heads or (1,)), 3, **how)
    vectors, state = random(*(heads or (1,)), 3, **how), ()
    others = (vectors.detach() * 2).requires_grad_()
    if name == "attention_vjp":
        state = OPS.attention(*pattern, *(part.detach() for part in attended), seed, 0.2, 0.3, True)
    if name == "scored_attention_vjp":
        parts = (part.detach() for part in (features, vectors, others))
        state = OPS.scored_attention(*pattern, *parts, seed, 0.2, 0.3, True)
    if name == "cosine_attention_vjp":
        state = OPS.cosine_attention(*pattern, square.detach(), beta.detach(), True)
    rest = {
        "spmm": (edges, *scales, x, False),
        "sddmm": (*scales, y, x),
        "spmm_extreme": (edges, x, "max"),
        "spmm_extreme_vjp": (edges, x, y, "min"),
        "attention": (*attended, seed, 0.2, 0.3, True),
        "attention_vjp": (*attended, seed, *state, y, 0.2, 0.3),
        "scored_attention": (features, vectors, others, seed, 0.2, 0.3, True),
        "scored_attention_vjp": (features, vectors, others, seed, *state, features * 2, 0.2, 0.3),
        "gatv2_scores": (x, y, weights, 0.2),
        "gatv2_scores_vjp": (x, y, weights, edges, 0.2),
        "cosine_attention": (square, beta, True),
        "cosine_attention_vjp": (square, beta, *state, square * 2),
        "edge_softmax": (edges,),
        "edge_softmax_vjp": (edges, edges * 2),
    }[name]
    return (*pattern, *rest)


NAMES = [
    "spmm",
    "sddmm",
    "spmm_extreme",
    "spmm_extreme_vjp",
    "attention",
    "attention_vjp",
    "scored_attention",
    "scored_attention_vjp",
    "edge_softmax",
    "edge_softmax_vjp",
    "gatv2_scores",
    "gatv2_scores_vjp",
    "cosine_attention",
    "cosine_attention_vjp",
]
DIFFERENTIABLE = [name for name in NAMES if not name.endswith("vjp")]
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads": {"heads": (2,)},
    "strided": {"heads": (2,), "spread": True},
}


def numbers(name: str, given: tuple[Any, ...]) -> tuple[Callable[..., Any], list[Any]]:
    """The operator as a function of only those arguments that require a gradient, and these arguments."""
    where = [k for k, part in enumerate(given) if isinstance(part, torch.Tensor) and part.requires_grad]

    def call(*leaves: Any) -> Any:
        every = list(given)
        for k, leaf in zip(where, leaves, strict=True):
            every[k] = leaf
        parts = every[6:]
        if name in ("attention", "scored_attention"):
            seed, slope, dropout, _ = parts[3:]
            parts[3:] = [slope, dropout, seed]
        if name == "cosine_attention":
            parts = parts[:2]
        module = operators if hasattr(operators, name) else attention_operators
        return getattr(module, name)(operators.Pattern(*every[:6]), *parts)

    return call, [given[k] for k in where]


# ---- registration
def test_the_table_names_every_operator() -> None:
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("bitsparse::")}
    assert registered == {f"bitsparse::{name}" for name in (*NAMES, "column_sums")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_operators_are_registered_as_they_should_be(name: str, form: str) -> None:
    given = arguments(name, graph(name), **FORMS[form])
    if name.endswith("vjp"):
        given = tuple(part.detach() if isinstance(part, torch.Tensor) else part for part in given)
    torch.library.opcheck(getattr(OPS, name).default, given)


@pytest.mark.parametrize("name", NAMES)
def test_operators_take_nothing_and_graphs_without_edges(name: str) -> None:
    g = bst.Graph(torch.empty((2, 0), dtype=torch.int64), TARGETS if name in SQUARE else (SOURCES, TARGETS))
    given = tuple(part.detach() if isinstance(part, torch.Tensor) else part for part in arguments(name, g))
    made = getattr(OPS, name)(*given)
    sums = made if name.endswith("vjp") else made[:1] if isinstance(made, tuple) else (made,)
    assert not any(part.any() for part in sums)
    torch.library.opcheck(getattr(OPS, name).default, given, test_utils=("test_schema", "test_faketensor"))
    if name in ("spmm", "spmm_extreme"):  # without values
        given = arguments(name, graph())
        given = (*given[:6], None, *given[7:])
        torch.library.opcheck(getattr(OPS, name).default, given)
        if name == "spmm":
            torch.library.opcheck(OPS.spmm.default, (*given[:6], None, None, None, given[9], True))


# ---- gradients
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_in_float64(name: str, form: str) -> None:
    call, leaves = numbers(name, arguments(name, graph(name), **FORMS[form]))
    assert torch.autograd.gradcheck(call, leaves, fast_mode=form != "plain")
    if name in ("spmm", "sddmm"):
        assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    else:
        for loss in (call(*leaves).square().sum(), call(*leaves).sum()):  # the gradient of a sum is a constant
            penalty = sum(part.square().sum() for part in torch.autograd.grad(loss, leaves, create_graph=True))
            with pytest.raises(RuntimeError, match="cannot be differentiated again; sums and means"):
                torch.autograd.grad(penalty + sum(part.sum() for part in leaves), leaves, retain_graph=True)
            with pytest.raises(RuntimeError, match="cannot be differentiated again; sums and means"):
                penalty.backward()


def differences(name: str, kind: Any, form: dict[str, Any]) -> list[tuple[float, float]]:
    """For the result and each gradient in a dtype: the largest difference from float64, and the largest magnitude in float64."""
    exact = arguments(name, graph(name), **form)
    rounded = tuple(
        part.detach().to(kind).requires_grad_() if isinstance(part, torch.Tensor) and part.requires_grad else part
        for part in exact
    )
    # Both sides start from the same (rounded) numbers.
    exact = tuple(
        part.detach().double().requires_grad_() if isinstance(part, torch.Tensor) and part.requires_grad else part
        for part in rounded
    )
    results = []
    for given in (exact, rounded):
        call, leaves = numbers(name, given)
        made = call(*leaves)
        direction = torch.from_numpy(np.random.default_rng(1).standard_normal(made.shape)).to(kind).to(made.dtype)
        gradients = torch.autograd.grad(made, leaves, direction)
        assert all(g.dtype == leaf.dtype for g, leaf in zip(gradients, leaves, strict=True))
        results.append((made.detach(), *gradients))
    sizes = [float(one.abs().max()) for one in results[0]]
    if name == "scored_attention":  # gradients of the vectors are sums over all nodes, which nearly cancel
        sizes[2:] = [max(sizes[1:])] * 2
    errors = [float((other.double() - one).abs().max()) for one, other in zip(*results, strict=True)]
    return list(zip(errors, sizes, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_narrow_gradients_are_near_those_in_float64(name: str, dtype: str) -> None:
    bound = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for form in FORMS.values():
        for error, largest in differences(name, getattr(torch, dtype), form):
            assert error <= bound * largest


class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Every layer, over a graph that it holds."""

    def __init__(self, g: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = g
        self.first, self.second = bst.GCNConv(6, 8), bst.SAGEConv(8, 8)
        self.third, self.fourth = bst.GATConv(8, 4, heads=2), bst.GINConv(torch.nn.Linear(8, 4))
        self.fifth, self.sixth = bst.GATv2Conv(4, 4), bst.AGNNConv()
        self.last = bst.SAGEConv(4, 3, aggr="max")

    def forward(self, x: Any) -> Any:
        x = self.second(self.first(x, self.net).relu(), self.net).relu()
        x = self.fourth(self.third(x, self.net).relu(), self.net)
        x = self.sixth(self.fifth(x, self.net), self.net)
        return self.last(x, self.net)


NODES = 40
ATTENTIONS = ("scored_attention", "gatv2_scores", "edge_softmax", "cosine_attention")


def network() -> tuple[Any, Any]:
    edges = edge_list(160, NODES, NODES)
    net = Network(
        bst.Graph(edges, NODES, edge_weight=torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(1)))
    )
    return net, random(NODES, 6, dtype=torch.float32)


def step(net: Any, x: Any) -> list[Any]:
    """The result, and the gradients of all parameters and of the features."""
    made = net(x)
    direction = torch.from_numpy(np.random.default_rng(1).standard_normal(made.shape)).to(made.dtype)
    return [made, *torch.autograd.grad(made, [*net.parameters(), x], direction)]


def sizes(results: list[Any]) -> list[Any]:
    """What errors are relative to: the largest magnitude of each result; for single numbers, which nearly cancel, that of all gradients."""
    largest = max(part.abs().max() for part in results[1:])
    return [part.abs().max() if part.numel() > 1 else largest for part in results]


def test_gradients_of_networks_in_float32_are_within_1e_5_of_float64() -> None:
    net, x = network()
    wide = copy.deepcopy(net).double()
    want = step(wide, x.detach().double().requires_grad_())
    for one, other, size in zip(want, step(net, x), sizes(want), strict=True):
        assert (one - other).abs().max() <= 1e-5 * size


def test_a_hundred_runs_have_the_same_bits() -> None:
    net, x = network()
    first = step(net, x)
    for _ in range(99):
        assert all(torch.equal(one, other) for one, other in zip(first, step(net, x), strict=True))


# ---- compiled, narrow, exported
@pytest.mark.parametrize(("autocast", "steps"), [(False, 100), (True, 20)])
def test_compiled_steps_are_compiled_once(autocast: bool, steps: int) -> None:
    from torch._dynamo.utils import counters

    net, x = network()
    net(x)  # layers now derive from the graph what they need
    eager = copy.deepcopy(net)
    labels = torch.arange(NODES) % 3
    torch._dynamo.reset()
    counters.clear()
    losses: list[list[float]] = []
    for model, count in ((torch.compile(net, fullgraph=True, backend="aot_eager"), steps), (eager, 5)):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses.append([])
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = torch.nn.functional.cross_entropy(model(x.detach()).float(), labels)
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
        assert counters["stats"]["unique_graphs"] == 1
        assert not counters["graph_break"]
    assert losses[0][:5] == pytest.approx(losses[1], rel=0.05 if autocast else 1e-5)
    assert losses[0][-1] < losses[0][0]
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_trains_near_float32(dtype: str) -> None:
    net, x = network()
    want = step(net, x)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with torch.autocast("cpu", getattr(torch, dtype)):
        made = net(x)
    assert made.dtype == getattr(torch, dtype)
    direction = torch.from_numpy(np.random.default_rng(1).standard_normal(made.shape)).float()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler.scale((made.float() * direction).sum()).backward()
    scaler.unscale_(optimizer)
    bound = 0.15 if dtype == "bfloat16" else 0.02
    made_too = [made, *(part.grad for part in net.parameters())]
    for one, other, size in zip(want, made_too, sizes(want), strict=False):
        assert other.dtype in (torch.float32, made.dtype)
        assert (one - other).abs().max() <= bound * size
    before = [part.detach().clone() for part in net.parameters()]
    scaler.step(optimizer)
    assert not any(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize("strict", [False, True])
def test_networks_are_exported_saved_and_loaded(strict: bool) -> None:
    net, x = network()
    x = x.detach()
    with pytest.raises(Exception, match=r"Graph: torch\.compile and torch\.export cannot make graphs"):
        torch.export.export(net, (x,), strict=strict)
    want = net(x)
    program = torch.export.export(net, (x,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for made in (program, torch.export.load(file), program.run_decompositions()):
        assert torch.equal(made.module()(x), want)
    called = {str(node.target) for node in program.graph.nodes if "bitsparse" in str(node.target)}
    assert called == {f"bitsparse.{name}.default" for name in ("spmm", "spmm_extreme", *ATTENTIONS)}


# ---- several processes
WORKER = """
import os, sys, torch, torch._dynamo
import torch.distributed as dist
sys.path.insert(0, sys.argv[3])
import test_torch_operators as here

rank, where = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + where + "/meet", rank=rank, world_size=2)
parts = [(here.bst.Graph(here.edge_list(60 + 40 * k, 20, 20, seed=k), 20), here.random(20, 6, dtype=torch.float32) * (k + 1))
         for k in range(2)]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = here.bst.GCNConv(6, 8), here.bst.GATConv(8, 3)
        self.shared = here.bst.Graph(here.edge_list(30, 20, 20, seed=5), 20)

    def forward(self, x, g):
        return self.second(self.first(x, g).relu(), self.shared)

alone = Net()
sum(alone(x.detach(), g).square().mean() for g, x in parts).div(2).backward()
model = Net()
together = torch.nn.parallel.DistributedDataParallel(model)
g, x = parts[rank]
for _ in range(3):
    model.zero_grad()
    together(x.detach(), g).square().mean().backward()
for one, other in zip(alone.parameters(), model.parameters(), strict=True):
    torch.testing.assert_close(one.grad, other.grad)
dist.barrier()  # neither leaves while the other still receives
dist.destroy_process_group()
print("agreed", flush=True)
os._exit(0)  # PyTorch's own threads now and then abort a process that ends in the ordinary way
"""


def test_two_processes_share_gradients(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER, str(rank), str(tmp_path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        results = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (output, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors
        assert output == "agreed\n"


@pytest.mark.parametrize("sizes", [(3, 5), (0, 3), (3, 0)])
def test_graphs_without_edges_have_batches_and_gradients(sizes: tuple[int, int]) -> None:
    g = bst.Graph(torch.zeros((2, 0), dtype=torch.int64), sizes)
    x, values = torch.ones(sizes[0], 2, requires_grad=True), torch.ones(0, requires_grad=True)
    bst.spmm(g, x, values).sum().backward()
    assert x.grad.count_nonzero() == 0 and values.grad.shape == (0,)
    many = torch.vmap(lambda v: bst.spmm(g, x.detach(), v))(torch.ones(4, 0))
    assert torch.equal(many, torch.zeros(4, sizes[1], 2))
    pattern, target = g.pattern(values=True), torch.ones(sizes[1], 2)
    one_each = torch.vmap(lambda y: operators.sddmm(pattern, None, None, target, y))(torch.ones(4, sizes[0], 2))
    assert one_each.shape == (4, 0)


@pytest.mark.parametrize("heads", [(), (2,)])
def test_sums_keep_what_their_gradients_read(heads: tuple[int, ...]) -> None:
    from bitsparse.torch.kept import kept_bytes

    g, x, y = graph(), random(SOURCES, *heads, 3), random(TARGETS, *heads, 3)
    weights = random(g.num_edges, *heads)
    assert kept_bytes(bst.spmm(g, x)) == 0
    assert kept_bytes(bst.spmm(g, x, weights.detach())) == weights.nbytes
    assert kept_bytes(bst.spmm(g, x.detach(), weights)) == x.nbytes
    assert kept_bytes(bst.spmm(g, x, weights)) == x.nbytes + weights.nbytes
    pattern = g.pattern(values=True)
    assert kept_bytes(operators.sddmm(pattern, None, None, y, x.detach())) == x.nbytes
    assert kept_bytes(operators.sddmm(pattern, None, None, y.detach(), x)) == y.nbytes
    # The same gradients, whatever else is asked for.
    both = torch.autograd.grad(bst.spmm(g, x, weights).square().sum(), (x, weights))
    alone = (
        torch.autograd.grad(bst.spmm(g, x, weights.detach()).square().sum(), x)[0],
        torch.autograd.grad(bst.spmm(g, x.detach(), weights).square().sum(), weights)[0],
    )
    assert all(torch.equal(one, other) for one, other in zip(both, alone, strict=True))
