"""Layers' products in float32 on a GPU, and their gradients, against PyTorch's in float64."""

from __future__ import annotations

from typing import Any

import pytest

from bitsparse.backends.cuda.matmul import floats

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.hopper]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take the kernels for products of every size, since those for which they are quicker would be long tests; list the calls."""
    calls: list[str] = []
    for name in ("product", "product_over_rows"):
        compute = getattr(floats, name)

        def call(*arguments: Any, compute: Any = compute, name: str = name, **options: Any) -> None:
            calls.append(name)
            compute(*arguments, **options)

        monkeypatch.setattr(floats, name, call)
    monkeypatch.setattr(floats, "is_quicker", lambda *_: True)
    monkeypatch.setattr(floats, "is_quicker_over_rows", lambda *_: True)
    return calls


def close(one: Any, exact: Any) -> bool:
    return float((one.detach().double() - exact).abs().max()) <= 2e-6 * float(exact.abs().max())


@pytest.mark.parametrize(("rows", "depth", "columns"), [(300, 70, 128), (130, 100, 47), (77, 40, 40), (200, 33, 300)])
@pytest.mark.parametrize("how", ["plain", "bias", "added", "width"])
def test_linear_and_its_gradients(taken: list[str], rows: int, depth: int, columns: int, how: str) -> None:
    import torch

    from bitsparse.torch import bias
    from bitsparse.torch.dense import Rows

    torch.manual_seed(rows)
    x, weight, behind = (
        torch.randn(size, device="cuda", requires_grad=True) for size in ((rows, depth), (columns, depth), (columns,))
    )
    before, gradient = torch.randn(rows, columns, device="cuda"), torch.randn(rows, columns, device="cuda")
    given = [x, weight] + [behind] * (how == "bias")
    if how == "added":
        out = bias.added(before.clone(), x, weight)
    elif how == "width":
        out = bias.linear(x, weight, rows=Rows(-(-columns // 4) * 4))
    else:
        out = bias.linear(*given)
    found = torch.autograd.grad(out, given, gradient)
    assert taken == ["product", "product", "product_over_rows"]
    wide = [part.detach().double().requires_grad_() for part in given]
    exact = torch.nn.functional.linear(*wide) + (before.double() if how == "added" else 0)
    assert close(out, exact.detach())
    for one, other in zip(found, torch.autograd.grad(exact, wide, gradient.double()), strict=True):
        assert close(one, other)


def layers() -> dict[str, Any]:
    """Layers whose steps are part of products and sums, with the calls of products that a step of training makes."""
    import torch

    import bitsparse.torch as bst

    relu, linear = torch.relu, torch.nn.Linear
    forward, both, over = ["product"], ["product", "product"], ["product_over_rows"]
    return {
        "gcn, narrower": (lambda: bst.GCNConv(100, 47, activation=relu), forward + both[:1] + over),
        "gcn, wider": (lambda: bst.GCNConv(100, 128, activation=relu), forward + both[:1] + over),
        "gcn without an activation": (lambda: bst.GCNConv(100, 47), forward + both[:1] + over),
        "sage, narrower": (lambda: bst.SAGEConv(100, 47, activation=relu), forward + over * 2 + both[:1]),
        "sage, of whole vectors": (lambda: bst.SAGEConv(100, 64), forward + over * 2 + both[:1]),
        "sage, wider": (lambda: bst.SAGEConv(100, 128, activation=relu), forward + both + over * 2),
        "sage, sums": (
            lambda: bst.SAGEConv(100, 30, "sum", bias=False, activation=relu),
            forward + over * 2 + both[:1],
        ),
        "gin, narrower": (lambda: bst.GINConv(torch.nn.Sequential(linear(100, 47), torch.nn.ReLU())), None),
        "gin, as wide": (lambda: bst.GINConv(torch.nn.Sequential(linear(100, 100), torch.nn.ReLU()), 0.5, True), None),
    }


@pytest.mark.parametrize(
    "kind",
    [
        *("gcn, narrower", "gcn, wider", "gcn without an activation", "sage, narrower", "sage, of whole vectors"),
        *("sage, wider", "sage, sums", "gin, narrower", "gin, as wide"),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_layers_with_steps_inside_kernels(
    taken: list[str], kind: str, constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and gradients of layers are those of the same layers in float64 on the CPU; hubs have rows in pieces."""
    import torch

    import bitsparse.torch as bst
    from bitsparse.torch import product_sums

    monkeypatch.setattr(product_sums, "_FEWEST", 0)
    random, nodes = torch.Generator().manual_seed(0), 1500
    edges = torch.randint(nodes, (2, 20_000), generator=random)
    edges[1, :4000] = 7
    edges[0, 4000:7000] = 11
    edges = edges.unique(dim=1)
    x, weight = (torch.randn(nodes, size, generator=random) for size in (100, 128))
    make, calls = layers()[kind]
    torch.manual_seed(1)
    layer = make()
    for part in layer.parameters():
        if part.ndim == 1:
            torch.nn.init.normal_(part)
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32), ("cuda", torch.float32)):
        there = make().to(device, dtype)
        there.load_state_dict(layer.state_dict())
        at = x.to(device, dtype).requires_grad_(not constant)
        taken.clear()
        y = there(at, bst.Graph(edges.to(device), nodes))
        (y * weight.to(device, dtype)[:, : y.shape[1]]).sum().backward()
        found.append([y.detach().cpu(), *(part.grad.cpu() for part in there.parameters())])
        if not constant:
            found[-1].append(at.grad.cpu())
    if calls is not None:
        wanted = sorted(calls)
        if constant:  # nothing goes back to the features
            wanted = sorted(["product", *(name for name in calls if name != "product")])
        assert sorted(taken) == wanted
    exact, *mine = found
    for one, again, other in zip(*mine, exact, strict=True):
        assert torch.equal(one, again)
        assert float((one.double() - other).abs().max()) <= 1e-5 * float(other.abs().max())


@pytest.mark.parametrize("kind", ["sage, narrower", "sage, wider", "gin, as wide", "gcn, narrower"])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_and_features_that_do_not_lie_row_by_row(
    taken: list[str], kind: str, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a sum is one number that is expanded; features may be the transpose of what lies in memory."""
    import torch

    import bitsparse.torch as bst
    from bitsparse.torch import product_sums

    monkeypatch.setattr(product_sums, "_FEWEST", 0)
    random, nodes = torch.Generator().manual_seed(0), 700
    edges = torch.randint(nodes, (2, 6000), generator=random).unique(dim=1)
    x = torch.randn(100, nodes, generator=random).t() if turned else torch.randn(nodes, 100, generator=random)
    torch.manual_seed(1)
    layer, found = layers()[kind][0](), []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        there = layers()[kind][0]().to(device, dtype)
        there.load_state_dict(layer.state_dict())
        at = x.to(device, dtype).requires_grad_()
        assert at.is_contiguous() is not turned
        y = there(at, bst.Graph(edges.to(device), nodes))
        y.sum().backward()
        found.append([y.detach().cpu(), at.grad.cpu(), *(part.grad.cpu() for part in there.parameters())])
    for exact, other in zip(*found, strict=True):
        assert float((other.double() - exact).abs().max()) <= 1e-5 * float(exact.abs().max())


@pytest.mark.parametrize("kind", ["gcn, narrower", "gcn without an activation", "gin, narrower", "gin, as wide"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layers_in_16_bits(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients are near those of the same numbers in float64; steps behind sums are part of these."""
    import torch

    import bitsparse.torch as bst
    from bitsparse.torch import layer_sums

    taken, summed = [], layer_sums.spmm_and_after

    def watched(*arguments: Any, **options: Any) -> bool:
        taken.append(summed(*arguments, **options))
        return taken[-1]

    monkeypatch.setattr(layer_sums, "spmm_and_after", watched)
    half, random, nodes = getattr(torch, dtype), torch.Generator().manual_seed(0), 900
    edges = torch.randint(nodes, (2, 12_000), generator=random)
    edges[1, :700] = 7
    edges = edges.unique(dim=1)
    x, weight = (torch.randn(nodes, size, generator=random).to(half) for size in (100, 128))
    make, _ = layers()[kind]
    torch.manual_seed(1)
    layer, found = make(), []
    for part in layer.parameters():
        if part.ndim == 1:
            torch.nn.init.normal_(part)
    layer = layer.to(half)
    for device, wanted in (("cpu", torch.float64), ("cuda", half), ("cuda", half)):
        there = make().to(device, wanted)
        there.load_state_dict(layer.state_dict())
        at = x.to(device, wanted).requires_grad_()
        y = there(at, bst.Graph(edges.to(device), nodes))
        grads = torch.autograd.grad(y, [at, *there.parameters()], weight.to(device, wanted)[:, : y.shape[1]])
        assert all(part.dtype == wanted for part in (y, *grads))
        found.append([part.detach().cpu() for part in (y, *grads)])
    assert taken
    assert all(taken)
    exact, *mine = found
    for one, again, other in zip(*mine, exact, strict=True):
        assert torch.equal(one, again)
        # Relu's gradient is another one where a rounding changes the sign; sums to a single number may nearly cancel.
        assert other.numel() == 1 or float((one.double() - other).norm()) <= 0.06 * float(other.norm())


@pytest.mark.parametrize("count", [900, 0])
def test_a_factor_of_own_features_is_read_when_a_captured_step_runs(count: int) -> None:
    """Steps behind sums wait for nothing, also those of a graph without edges, which no kernel of sums takes."""
    import torch

    import bitsparse.torch as bst

    edges = torch.randint(200, (2, count), generator=torch.Generator().manual_seed(0)).unique(dim=1).cuda()
    graph, x = bst.Graph(edges, 200), torch.randn(200, 8, device="cuda")
    layer = bst.GINConv(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), train_eps=True).cuda()

    def step() -> Any:
        return layer(x, graph)

    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            made = step()
        for eps in (0.0, 2.5):
            layer.eps.fill_(eps)
            recorded.replay()
            assert torch.equal(made, step())
