"""Steps of layers that are part of sums and products: own features, biases, second products and relu, with gradients of any order."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse.torch as bst  # noqa: E402
from bitsparse.backends.after_sums import AfterSums  # noqa: E402
from bitsparse.torch import bias, layer_sums, operators, product_sums  # noqa: E402
from bitsparse.torch.dense import Rows, Second, clipped  # noqa: E402

NODES, WIDTH = 30, 5


def follow(made: Any, after: AfterSums) -> Any:
    """The steps after sums, one after the other."""
    if after.own is not None:
        made = made + (after.own if after.own_scale is None else after.own_scale * after.own)
    made = made if after.bias is None else made + after.bias
    return made.relu() if after.relu else made


def check(call: Any, steps: Any, operands: Any, differentiated: Any = None) -> None:
    """Both functions of the operands agree, as do their gradients, by default by the operands; those of `call` are right."""
    found = []
    for function in (call, steps):
        made = function(*operands)
        found.append([made, *torch.autograd.grad(made.square().sum(), differentiated or operands)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradcheck(call, operands)
    assert torch.autograd.gradgradcheck(call, operands)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute sums by the usual function, and what follows step by step."""

    def summed(pattern: Any, rows: Any, columns: Any, x: Any, after: AfterSums) -> Any:
        return follow(operators.spmm(pattern, None, rows, columns, x.contiguous()), after)

    def of_products(products: Any, pattern: Any, laid: Any, after: AfterSums) -> Any:
        return follow(operators.spmm(pattern, None, None, None, products.contiguous()), after)

    monkeypatch.setattr(layer_sums, "_summed_on_gpu", summed)
    monkeypatch.setattr(product_sums, "_compute_on_gpu", of_products)


def graph(sources: int = NODES) -> Any:
    edges = torch.randint(min(NODES, sources), (2, 150), generator=torch.Generator().manual_seed(0)).unique(dim=1)
    return bst.Graph(edges, (sources, NODES))


def random(*sizes: int, seed: int = 1) -> Any:
    made = torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.requires_grad_()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    "given",
    [("bias",), ("own",), ("own", "factor"), ("own", "factor", "bias"), ("itself",), ("itself", "factor", "bias")],
)
def test_sums_and_steps_behind_them(given: tuple[str, ...], relu: bool, on_the_cpu: None) -> None:
    itself = "itself" in given
    g = graph(NODES if itself else NODES + 4)
    pattern = g.pattern()
    # Powers of two: kernels take scales in float32.
    rows, columns = (2.0 ** random(size).detach().round() for size in (NODES, g.num_sources))
    sizes = {"own": (NODES, WIDTH), "factor": (1,), "bias": (WIDTH,)}
    parts = {name: random(*sizes[name], seed=i) for i, name in enumerate(given) if name in sizes}

    def call(x: Any, *others: Any) -> Any:
        own, factor, behind = (dict(zip(parts, others, strict=True)).get(name) for name in sizes)
        made = layer_sums._Sums.apply(x, own, factor, behind, relu, itself, pattern, rows, columns)
        return clipped(made) if relu else made

    def steps(x: Any, *others: Any) -> Any:
        found = dict(zip(parts, others, strict=True))
        own = x if itself else found.get("own")
        made = rows[:, None] * operators.spmm(pattern, None, None, None, columns[:, None] * x)
        return follow(made, AfterSums(found.get("bias"), own, found.get("factor"), relu))

    operands = (random(g.num_sources, WIDTH), *parts.values())
    check(call, steps, operands)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("itself", [False, True])
def test_gradients_of_16_bits_have_16_bits(dtype: str, itself: bool, on_the_cpu: None) -> None:
    g, kind, found = graph(), getattr(torch, dtype), []
    given = [random(*size, seed=i).detach().to(kind) for i, size in enumerate([(NODES, WIDTH)] * 2 + [(1,), (WIDTH,)])]
    for wanted in (kind, torch.float64):
        x, own, factor, behind = (part.to(wanted).requires_grad_() for part in given)
        operands = [x, factor, behind] if itself else [x, own, factor, behind]
        how = (True, itself, g.pattern(), None, None)
        made = clipped(layer_sums._Sums.apply(x, None if itself else own, factor, behind, *how))
        found.append([made.detach(), *torch.autograd.grad(made.sum(), operands)])
        assert all(part.dtype == wanted for part in found[-1])
    for one, other in zip(*found, strict=True):
        assert float((one.double() - other).norm()) <= 0.03 * float(other.norm())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_kernels_take_as_steps(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features keep their dtype, a factor and a bias are float32; where the kernel takes no steps, PyTorch takes them in place."""
    kind = getattr(torch, dtype)
    sums, own, factor, behind = (random(*size, seed=1).detach().to(kind) for size in [(4, 5), (4, 5), (1,), (5,)])

    def call(run: Any, *tensors: Any) -> Any:
        return run(*(part for part in tensors if part is not None))

    def run(x: Any, out: Any, steps: Any) -> str:
        assert x is out is sums
        assert (steps.own.dtype, steps.own_scale.dtype, steps.bias.dtype) == (kind, torch.float32, torch.float32)
        assert steps.relu
        return "taken"

    monkeypatch.setattr(layer_sums, "on_cupy", call)
    whole = AfterSums(behind, own, factor, True)
    assert layer_sums.call_with(run, sums, sums, whole) == "taken"
    for steps in (whole, AfterSums(behind, own), AfterSums(relu=True), AfterSums(behind)):
        made = sums.clone()
        layer_sums.take(steps, made)
        far = 8 * torch.finfo(kind).eps
        torch.testing.assert_close(made, follow(sums, steps), rtol=far, atol=far)


class Laid:
    """What stands for prepared sums here."""

    columns, scaled = 6, False


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_sums_of_a_product_and_the_product_of_the_nodes_own(biased: bool, relu: bool, on_the_cpu: None) -> None:
    g = graph()
    operands = [random(NODES, 7), random(WIDTH, 7, seed=2), random(WIDTH, 7, seed=3), random(WIDTH, seed=4)]
    operands = operands if biased else operands[:3]

    def call(x: Any, weight: Any, own: Any, behind: Any = None) -> Any:
        made = product_sums._SumsAndOwn.apply(x, weight, own, behind, relu, g.pattern(), (None, None), Laid)
        return clipped(made) if relu else made

    def steps(x: Any, weight: Any, own: Any, behind: Any = None) -> Any:
        sums = operators.spmm(g.pattern(), None, None, None, x @ weight.t())
        return follow(sums, AfterSums(behind, x @ own.t(), None, relu))

    check(call, steps, operands)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_products_with_a_second_pair_and_relu(second: bool, relu: bool, constant: bool) -> None:
    """Inputs that need no gradient take another way back."""
    x, y = random(NODES, 7), random(NODES, 6, seed=9)
    weights = [random(WIDTH, 7, seed=2), random(WIDTH, seed=4)]
    weights += [random(WIDTH, 6, seed=5)] if second else []
    x, y = (part.detach() if constant else part for part in (x, y))

    def call(weight: Any, behind: Any, other: Any = None, x: Any = x, y: Any = y) -> Any:
        more = () if other is None else Second(y, other)
        return bias._linear(x, weight, behind, None, relu, *more)

    def steps(weight: Any, behind: Any, other: Any = None) -> Any:
        made = x @ weight.t() + behind
        made = made if other is None else made + y @ other.t()
        return made.relu() if relu else made

    operands = weights if constant else [*weights, *([x, y] if second else [x])]
    check(call, steps, weights, operands)


def test_scales_of_rows_are_part_of_the_product() -> None:
    x, weight, scale = random(NODES, 7), random(WIDTH, 7, seed=2), random(NODES, seed=3).detach()
    made = bias.linear(x, weight, rows=Rows(8, scale))
    assert made.stride() == (8, 1)
    torch.testing.assert_close(made, (x @ weight.t()) * scale[:, None])


def layers() -> dict[str, Any]:
    linear = torch.nn.Linear
    return {
        "gcn, narrower": lambda act: bst.GCNConv(9, 4, activation=act),
        "gcn, wider": lambda act: bst.GCNConv(4, 9, activation=act),
        "gcn, watched": lambda act: watched(bst.GCNConv(9, 4, activation=act), "lin"),
        "sage, narrower": lambda act: bst.SAGEConv(9, 4, activation=act),
        "sage, wider": lambda act: bst.SAGEConv(4, 9, activation=act),
        "sage, alone": lambda act: bst.SAGEConv(9, 4, root_weight=False, activation=act),
        "sage, largest": lambda act: bst.SAGEConv(9, 4, "max", activation=act),
        "sage, normalised": lambda act: bst.SAGEConv(9, 4, normalize=True, activation=act),
        "sage, watched": lambda act: watched(bst.SAGEConv(9, 4, activation=act), "lin_l"),
        "sage, other watched": lambda act: watched(bst.SAGEConv(9, 4, activation=act), "lin_r"),
        "gin, narrower": lambda act: bst.GINConv(torch.nn.Sequential(linear(9, 4), act)),
        "gin, as wide": lambda act: bst.GINConv(torch.nn.Sequential(linear(9, 9), act, linear(9, 3)), train_eps=True),
        "gin, wider": lambda act: bst.GINConv(torch.nn.Sequential(linear(4, 9), act), 0.5),
    }


def watched(layer: Any, name: str) -> Any:
    getattr(layer, name).register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize("kind", list(layers()))
@pytest.mark.parametrize("activation", [torch.nn.ReLU(), torch.nn.ELU()])
def test_activations_of_layers(kind: str, activation: Any) -> None:
    """An activation that belongs to a layer is the one behind it."""
    g, found = graph(), []
    x = random(NODES, 4 if "wider" in kind else 9).detach().float()
    for together in (True, False):
        torch.manual_seed(0)
        layer = layers()[kind](activation if together else torch.nn.Identity())
        y = layer(x, g)
        if not together and "as wide" in kind:
            continue  # the activation is in the middle
        y = y if together else activation(y)
        y.square().sum().backward()
        found.append([y.detach(), *(part.grad for part in layer.parameters())])
    for one, other in zip(found[0], found[-1], strict=True):
        torch.testing.assert_close(one, other)
    if "watched" not in kind:
        layer.reset_parameters()


@pytest.mark.parametrize("make", [bst.GCNConv, bst.SAGEConv])
def test_activations_that_cannot_be_called_are_refused(make: Any) -> None:
    with pytest.raises(TypeError, match=f"{make.__name__}: activation is 'relu', .* torch.relu"):
        make(9, 4, activation="relu")


def test_activations_that_are_watched_are_called() -> None:
    seen = []
    act = torch.nn.ReLU()
    act.register_forward_hook(lambda *_: seen.append(1))
    x = random(NODES, 9).detach().float()
    bst.GCNConv(9, 4, activation=act)(x, graph())
    bst.GINConv(torch.nn.Sequential(torch.nn.Linear(9, 4), act))(x, graph())
    bst.SAGEConv(9, 4, activation=act)(x, graph())
    assert len(seen) == 3


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_layers_in_integers_have_the_activation_behind_them(kind: str) -> None:
    g, found = graph(), []
    x = random(NODES, 9).detach().float()
    make = {"gcn": bst.GCNConv, "sage": bst.SAGEConv}[kind]
    for together in (True, False):
        torch.manual_seed(0)
        net = torch.nn.ModuleList([make(9, 4, activation=torch.relu if together else None)])
        bst.quantize_(net, bst.Tango(rounding="nearest", last="quantized"))
        y = net[0](x, g)
        found.append(y if together else y.relu())
    assert torch.equal(*found)


def test_a_compiler_sees_layers_with_activations_whole() -> None:
    g, x = graph(), random(NODES, 9).detach().float()
    net = bst.SAGEConv(9, 4, activation=torch.relu)
    fast = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(fast(x, g), net(x, g))
