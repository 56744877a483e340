"""Networks on signs, trained with PyTorch and exported to bits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse as bs  # noqa: E402
import bitsparse.torch as bst  # noqa: E402

NODES, INPUTS, CLASSES = 60, 37, 4
NETWORKS = {"gcn": bst.BinaryGCN, "sage": bst.BinarySAGE, "saint": bst.BinarySAINT}
WIDTHS = {"gcn": (INPUTS, 16, CLASSES), "sage": (INPUTS, 16, CLASSES), "saint": (INPUTS, 16, 12, CLASSES)}


def data() -> tuple[Any, Any, Any]:
    random = torch.Generator().manual_seed(1)
    edges = torch.randint(NODES, (2, 200), generator=random)
    edges = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
    x = torch.randn(NODES, INPUTS, generator=random)
    return edges, x, (x[:, :CLASSES].argmax(dim=1))


def test_the_product_is_that_of_the_definition() -> None:
    _, x, _ = data()
    torch.manual_seed(0)
    layer = bst.SignLinear(INPUTS, 5, dropout=0.5)
    with torch.no_grad():
        layer.bias.normal_()
        layer.weight.mul_(3)
    x[0, 0] = 0
    x.requires_grad_()
    torch.manual_seed(7)
    got = layer(x)
    torch.manual_seed(7)
    kept = (torch.rand_like(x) >= 0.5).float()
    w = layer.weight.detach().clone().requires_grad_()
    signs, of_weights = torch.where(x >= 0, 1.0, -1.0), torch.where(w >= 0, 1.0, -1.0)
    alpha, size = x.abs().mean(dim=1, keepdim=True).detach(), w.abs().mean(dim=0).detach()
    want = (signs * kept * 2 * alpha) @ (of_weights * size) + layer.bias
    torch.testing.assert_close(got, want)
    gradient = torch.randn_like(got)
    got.backward(gradient)
    dx = (gradient @ (of_weights * size).t()) * kept * 2 * (x.abs() <= 1)
    torch.testing.assert_close(x.grad, dx.detach())
    by_weight = (signs * kept * 2 * alpha).t() @ gradient
    dw = by_weight * size * (w.abs() <= 1) + of_weights * (of_weights * by_weight).sum(dim=0) / INPUTS
    torch.testing.assert_close(layer.weight.grad, dw.detach())
    torch.testing.assert_close(layer.bias.grad, gradient.sum(dim=0))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_in_other_dtypes(kind: str, dtype: str) -> None:
    edges, x, _ = data()
    graph, found = bst.Graph(edges, len(x)), []
    torch.manual_seed(0)
    net = NETWORKS[kind]((INPUTS, 9, 9, CLASSES), dropout=0.0)
    for each in (torch.float32, getattr(torch, dtype)):
        made = copy.deepcopy(net).to(each)
        made(x.to(each), graph).square().sum().backward()
        found.append(torch.cat([p.grad.flatten().double() for p in made.parameters()]))
    assert (found[0] - found[1]).norm() <= 0.02 * found[0].norm()


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_dropout_leaves_some_signs(rate: float) -> None:
    with pytest.raises(ValueError, match=f"SignLinear: dropout must be .* got {rate}"):
        bst.SignLinear(3, 2, dropout=rate)


@pytest.mark.parametrize("kind", NETWORKS)
def test_trained_and_exported(kind: str) -> None:
    edges, x, labels = data()
    graph = bst.Graph(edges, NODES)
    torch.manual_seed(0)
    net = NETWORKS[kind](WIDTHS[kind], dropout=0.2)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x, graph), labels)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])
    net.eval()
    with torch.no_grad():
        want = net(x, graph).numpy()
    adjacency = np.zeros((NODES, NODES), bool)
    adjacency[edges[1], edges[0]] = True
    model = net.export()
    got = model(bs.TCTiledCSR(adjacency).tocsr().astype(bool), x.numpy())
    # A sum that all but vanishes may have another sign where it was added up in another order.
    same = np.isclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max()).all(axis=1)
    assert same.mean() >= 0.95
    assert (got.argmax(axis=1) == want.argmax(axis=1)).mean() >= 0.95
    assert "binary" in model.with_settings("binary").settings[0].__class__.__name__.lower() or model.with_settings(
        "binary"
    )


def test_state_and_norm() -> None:
    edges, x, _ = data()
    net = bst.BinaryGCN(WIDTHS["gcn"])
    net(x, edges)
    torch.testing.assert_close(net.mean, x.mean(dim=0))
    torch.testing.assert_close(net.var, x.var(dim=0, correction=0))
    net(x + 1, edges)
    torch.testing.assert_close(net.mean, x.mean(dim=0))
    other = bst.BinaryGCN(WIDTHS["gcn"])
    other.load_state_dict(net.state_dict())
    net.eval(), other.eval()
    assert torch.equal(net(x, edges), other(x, edges))
    with pytest.raises(ValueError, match="norm must be"):
        bst.BinaryGCN((3, 2), norm="layer")
    with pytest.raises(ValueError, match="inputs and outputs"):
        bst.BinaryGCN((3,))


@pytest.mark.parametrize("integers", [False, True])
def test_binary_aggregation_is_that_of_the_exported_network(integers: bool) -> None:
    """Signs are counted, so no sum is rounded on the way to the last layer; it learns, and its float and integer steps are alike."""
    edges, x, labels = data()
    graph = bst.Graph(edges, NODES)
    torch.manual_seed(0)
    net = bst.BinaryGCN((INPUTS, 64, 32, CLASSES), dropout=0.1, aggregation="binary")
    net(x, graph)
    other = copy.deepcopy(net)
    gradients = []
    for each in (net, bst.quantize_(other, bst.Tango(rounding="nearest", last="quantized"))):
        for layer in each.layers:
            layer.dropout = 0.0
        torch.nn.functional.cross_entropy(each(x, graph), labels).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in each.parameters()]))
    assert 0 < (gradients[0] - gradients[1]).norm() <= 0.05 * gradients[0].norm()
    if integers:
        bst.quantize_(net, bst.Tango(last="sums"))
    for layer in net.layers:
        layer.dropout = 0.1
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x, graph), labels)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])
    net.eval()
    with torch.no_grad():
        want = net(x, graph).numpy()
    adjacency = np.zeros((NODES, NODES), bool)
    adjacency[edges[1], edges[0]] = True
    model = net.export()
    assert [str(setting) for setting in model.settings] == ["FBB+BBB", "BBB+BBB", "BBF+FBF scaled"]
    got = model(bs.TCTiledCSR(adjacency).tocsr().astype(bool), x.numpy())
    np.testing.assert_allclose(got, want, atol=(0.02 if integers else 1e-5) * np.abs(want).max())
    with pytest.raises(ValueError, match="BinaryGCN: aggregation must be"):
        bst.BinaryGCN((3, 2), aggregation="half")
