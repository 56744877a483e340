"""Quantisation-aware training of a GCN: what is trained is what is exported, to the bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse as bs  # noqa: E402
import bitsparse.torch as bst  # noqa: E402
from bitsparse import datasets  # noqa: E402
from bitsparse import nn as networks  # noqa: E402

NODES, INPUTS, CLASSES = 70, 19, 3


def data() -> tuple[Any, Any, Any]:
    random = torch.Generator().manual_seed(1)
    edges = torch.randint(NODES, (2, 200), generator=random)
    edges = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
    x = torch.randn(NODES, INPUTS, generator=random)
    return bst.Graph(edges, NODES), x, x[:, :CLASSES].argmax(dim=1)


def adjacency(graph: Any) -> Any:
    return bs.TCTiledCSR.from_arrays(graph.indptr.numpy(), graph.indices.numpy(), (NODES, NODES)).to_scipy()


@pytest.mark.parametrize("bits", [8, 4, 2, (8, 3), (4, 6, 2)])
def test_logits_are_those_of_the_exported_network(bits: Any) -> None:
    graph, x, labels = data()
    torch.manual_seed(0)
    widths = (INPUTS, 12, CLASSES) if bits != (4, 6, 2) else (INPUTS, 12, 9, CLASSES)
    net = bst.LowBitGCN(widths, bits)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        logits = net(x, graph)
        exported = net.export()
        np.testing.assert_array_equal(exported(adjacency(graph), x.numpy()), logits.detach().numpy())
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert all(p.grad.abs().sum() > 0 for p in net.parameters())
    net.eval()
    with torch.no_grad():
        want = net(x, graph).numpy()
    np.testing.assert_array_equal(net.export()(adjacency(graph), x.numpy()), want)


@pytest.mark.parametrize("bits", [8, 2, 1, (3, 1)])
@pytest.mark.parametrize("options", [{"ranges": "learned"}, {"protect": (0.0, 0.4)}, {"warm_up": 7}])
def test_options_end_in_the_exported_network_too(options: Any, bits: Any) -> None:
    """Learned ranges have gradients; protected nodes and warming up change training only."""
    graph, x, labels = data()
    torch.manual_seed(0)
    net = bst.LowBitGCN((INPUTS, 12, CLASSES), bits, **options)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for step in range(30):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x, graph), labels)
        loss.backward()
        if step == 9:
            assert all(p.grad is not None for p in net.range_parameters())
            moved = [p.grad.abs().sum() > 0 for name, p in net.named_parameters() if name.endswith("log_step")]
            assert len(moved) == 5 * ("ranges" in options)
            assert all(moved)
        optimiser.step()
        losses.append(float(loss.detach()))
        assert bool(net.known) == (step >= options.get("warm_up", 0))
    assert len(net.range_parameters()) == (7 if "ranges" in options else 0)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    net.eval()
    with torch.no_grad():
        want = net(x, graph).numpy()
    np.testing.assert_array_equal(net.export()(adjacency(graph), x.numpy()), want)


def test_rows_of_features_may_have_scales_of_their_own() -> None:
    graph, x, labels = data()
    words = networks.Features((x > 0.5).numpy())
    torch.manual_seed(0)
    net = bst.LowBitGCN((INPUTS, 12, CLASSES), 2)
    for _ in range(3):
        torch.nn.functional.cross_entropy(net(words, graph), labels).backward()
    net.eval()
    with torch.no_grad():
        want = net(words, graph).numpy()
    np.testing.assert_array_equal(net.export()(adjacency(graph), words), want)
    with pytest.raises(bs.DTypeError, match=r"ranges were found for nn\.Features"):
        net(x, graph)
    with pytest.raises(ValueError, match="negative values"):
        bst.LowBitGCN((INPUTS, 2), 4)(networks.Features(x.numpy()), graph)


def test_gradients_of_ranges() -> None:
    """Those of the rounding's formula with its integers held: by the step and by the lower end, inside and outside."""
    from bitsparse.torch.ranges import CodeRange

    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 3
    grid = CodeRange(3, 2, "any", learned=True)
    grid.follow(x)
    with torch.no_grad():
        grid.log_step -= 0.7  # so that some lie outside
    weights = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    (grid.through(x) * weights).sum().backward()
    step, zero = (part.detach().clone().requires_grad_() for part in (grid.log_step, grid.zero))
    place = (x.double() - step.exp().detach() * zero.detach()) / step.exp().detach()
    inside = (place > -0.5) & (place < 3.5)
    codes = place.round().clamp(0, 3)
    assert 10 < int((~inside).sum()) < 140
    # Straight through: inside the rounding's error is constant in steps, and the lower end cancels.
    real = torch.where(inside, x + step.exp() * (codes - place), step.exp() * (codes + zero))
    (real * weights * (50 * 3) ** -0.5).sum().backward()
    low_by_step = ((weights * ~inside).double() * (50 * 3) ** -0.5).sum(dim=0)
    torch.testing.assert_close(grid.zero.grad, zero.grad)
    torch.testing.assert_close(grid.log_step.grad, step.grad)
    torch.testing.assert_close(grid.zero.grad, low_by_step * grid.step.detach())


def test_ranges_of_few_bits_have_the_least_squared_error() -> None:
    from bitsparse.torch.ranges import SHARES, CodeRange

    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) ** 3
    for kind in ("any", "weights"):
        grid = CodeRange(2, 2, kind, learned=False)  # type: ignore[arg-type]
        grid.follow(x)
        error = (grid.through(x) - x).square().mean(dim=0)
        for share in (*SHARES, *(-each for each in SHARES)):
            step = share * (x.amax(0) - x.amin(0)) / 3 if kind == "any" else share * x.abs().amax(0) / 2
            low = share * x.amin(0) if kind == "any" else 0
            if kind == "any" and share < 0:
                continue
            codes = ((x - low) / step).round().clamp(*grid.limits)
            assert (error <= (codes * step + low - x).square().mean(dim=0) + 1e-6).all()


def test_many_bits_come_close_to_floats() -> None:
    graph, x, _ = data()
    torch.manual_seed(0)
    net = bst.LowBitGCN((INPUTS, 12, CLASSES), 8)
    logits = net(x, graph)
    gradient = torch.randn_like(logits)
    logits.backward(gradient)
    normal = graph.normalized()
    plain = [p.detach().clone().requires_grad_() for p in (*net.weights, *net.biases)]
    h = bst.spmm(normal, x @ plain[0]) + plain[2]
    y = bst.spmm(normal, h.relu() @ plain[1]) + plain[3]
    y.backward(gradient)
    assert (logits - y).norm() <= 0.05 * y.norm()
    for one, other in zip((*net.weights, *net.biases), plain, strict=True):
        # The relu is open or closed otherwise where its input is about 0.
        assert (one.grad - other.grad).norm() <= 0.2 * other.grad.norm()


def test_hidden_columns_of_zeros_leave_the_weights_their_grid() -> None:
    """Some that never were anything else, and one that dies while ranges follow."""
    graph, x, _ = data()
    x = x.abs() / 50
    net = bst.LowBitGCN((INPUTS, 12, CLASSES), 8, momentum=0.5)
    torch.manual_seed(0)
    net.reset_parameters()
    for dead in (slice(0, 4), slice(0, 5)):
        with torch.no_grad():
            net.weights[0][:, dead] = -net.weights[0][:, dead].abs()
        for _ in range(15):
            logits = net(x, graph)
        normal = graph.normalized()
        h = bst.spmm(normal, x @ net.weights[0]).relu()
        assert (h[:, dead] == 0).all()
        y = bst.spmm(normal, h @ net.weights[1])
        assert (logits - y).norm() <= 0.05 * y.norm()


def test_what_is_kept_is_that_of_the_graph_and_features_given() -> None:
    graph, x, _ = data()
    x = x @ torch.randn(INPUTS, NODES, generator=torch.Generator().manual_seed(2))
    net = bst.LowBitGCN((NODES, 12, CLASSES), 4)
    net(x, graph)
    net.eval()
    with torch.inference_mode():
        ours = x.clone()
        found = [net(x, graph), net(x.T, graph), net(ours, graph), net(ours.mul_(0.5), graph)]
        for made, features in zip(found, (x, x.T, x, x / 2), strict=True):
            assert torch.equal(made, copy.deepcopy(net)(features.contiguous(), graph))
        assert not torch.equal(found[0], found[1])
    edges = torch.stack([graph.rows(), graph.indices.long()])[:, :-1]
    here, there = bst.Graph(edges, NODES), bst.Graph((edges + 1) % NODES, NODES)
    net(x, here)
    here.load_state_dict(there.state_dict())
    assert torch.equal(net(x, here), copy.deepcopy(net)(x, there))


def test_saved_and_refused(tmp_path: Any) -> None:
    graph, x, _ = data()
    net = bst.LowBitGCN((INPUTS, CLASSES), 4)
    with pytest.raises(ValueError, match="before the first training step"):
        net.export()
    net(x, graph)
    other = bst.LowBitGCN((INPUTS, CLASSES), 4)
    other.load_state_dict(net.state_dict())
    assert other.export().fingerprint() == net.export().fingerprint()
    net.export().save(tmp_path / "net.npz")
    assert networks.load_lowbit(tmp_path / "net.npz").fingerprint() == net.export().fingerprint()
    with pytest.raises(ValueError, match="bits must be 1 to 8"):
        bst.LowBitGCN((3, 2), 0)
    with pytest.raises(ValueError, match="two probabilities"):
        bst.LowBitGCN((3, 2), 4, protect=(0.5, 0.1))
    with pytest.raises(ValueError, match="inputs and outputs"):
        bst.LowBitGCN((3,), 4)
    with pytest.raises(ValueError, match=r"x requires a gradient.*pass x.detach\(\)"):
        net(x.requires_grad_(), graph)
    with pytest.raises(bs.errors.ShapeError, match=rf"{NODES} nodes but x has shape \(3, {INPUTS}\)"):
        net(x.detach()[:3], graph)
    with pytest.raises(bs.errors.DTypeError, match="LowBitGCN: graph is a Tensor"):
        net(x.detach(), torch.zeros(2, 0))


def test_two_bits_learn_digits() -> None:
    """Where rounding a trained network to 2 bits costs much, training with the roundings costs little."""
    found = datasets.digits()
    graph, x, labels = (
        bst.Graph(found.adjacency),
        torch.from_numpy(found.x / 16).float(),
        torch.from_numpy(found.targets),
    )
    train, test = torch.from_numpy(found.train_mask), torch.from_numpy(found.test_mask)
    torch.manual_seed(0)
    net = bst.LowBitGCN((64, 16, 10), 2)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x, graph)[train], labels[train]).backward()
        optimiser.step()
    net.eval()
    with torch.no_grad():
        right = (net(x, graph).argmax(dim=1) == labels)[test].float().mean()
    assert right > 0.8


@pytest.mark.parametrize("warm_up", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_features_may_be_of_any_dtype_and_weights_of_float32_alone(dtype: torch.dtype, warm_up: int) -> None:
    graph, x = bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]])), torch.tensor([[1.0, 0], [3, 2], [0, 4]])
    net = bst.LowBitGCN((2, 5, 3), warm_up=warm_up)
    same = copy.deepcopy(net)
    for _ in range(2):
        assert torch.equal(same(x.to(dtype), graph), net(x, graph))
    for changed in (net.double(), net.half(), net.bfloat16()):
        with pytest.raises(bs.DTypeError, match=r"^LowBitGCN: the weights are torch\.\w+, .*; call net\.float\(\)"):
            changed(x.to(dtype), graph)
    assert net.float()(x.to(dtype), graph).dtype == torch.float32
