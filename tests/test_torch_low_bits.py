"""Quantisation-aware training of networks on bits: what is trained is what is exported, to the bit."""

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
    edges = edges[:, edges[0] != edges[1]]
    x = torch.randn(NODES, INPUTS, generator=random)
    return bst.Graph(edges, NODES), x, x[:, :CLASSES].argmax(dim=1)


def adjacency(graph: Any) -> Any:
    return bs.TCTiledCSR.from_arrays(graph.indptr.numpy(), graph.indices.numpy(), (NODES, NODES)).to_scipy()


def low_bits(
    bits: Any, kind: Any = "gcn", x: Any = None, widths: Any = (INPUTS, 12, CLASSES), activation: Any = "relu"
) -> Any:
    graph, default, _ = data()
    full = networks.random_network(kind, list(widths), seed=3)
    for layer in full.layers[:-1]:
        object.__setattr__(layer.updates[-1], "activation", activation)
    return networks.quantize_network(full, adjacency(graph), default.numpy() if x is None else x, bits)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("gcn", 8),
        ("gcn", 4),
        ("gcn", 2),
        ("gcn", 1),
        ("gcn", (8, 3)),
        ("gcn", 12),
        ("sage", 4),
        ("sage", 1),
        ("gin", 4),
    ],
)
def test_logits_are_those_of_the_exported_network(kind: Any, bits: Any) -> None:
    """From the first step, in which they are those of the network that training starts from, to the last."""
    graph, x, labels = data()
    low = low_bits(bits, kind)
    net = bst.LowBitModule(low)
    assert net.export().fingerprint() == low.fingerprint()
    before = [p.detach().clone() for p in net.parameters()]
    optimiser = torch.optim.Adam(net.parameters(), lr=0.03)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        logits = net(x, graph)
        np.testing.assert_array_equal(net.export()(adjacency(graph), x.numpy()), logits.detach().numpy())
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert all((p != old).any() for p, old in zip(net.parameters(), before, strict=True))
    assert net.export().fingerprint() != low.fingerprint()
    for step in net.export().steps:
        if hasattr(step, "weights") and bits == 1:
            codes = step.weights.toarray()
            assert all(len(np.unique(column)) <= 2 for column in codes.T)


@pytest.mark.parametrize("activation", ["tanh", "leaky_relu"])
def test_activations_and_deep_networks(activation: Any) -> None:
    graph, x, _ = data()
    for kind in ("gcn", "sage"):
        net = bst.LowBitModule(low_bits((4, 6, 2), kind, widths=(INPUTS, 12, 9, CLASSES), activation=activation))
        logits = net(x, graph)
        np.testing.assert_array_equal(net.export()(adjacency(graph), x.numpy()), logits.detach().numpy())
        logits.square().sum().backward()
        assert all(p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize(
    ("kind", "activation"), [("gcn", "relu"), ("gcn", "tanh"), ("gcn", "leaky_relu"), ("sage", "relu"), ("gin", "relu")]
)
def test_gradients_are_those_of_the_steps_in_floats(kind: Any, activation: Any) -> None:
    """With many bits a network is nearly its own float32, whose gradients by factors, biases and offsets are differences."""
    graph, x, _ = data()
    net = bst.LowBitModule(low_bits(15, kind, activation=activation))
    random = torch.Generator().manual_seed(5)
    direction = torch.randn(NODES, CLASSES, generator=random)
    (net(x, graph) * direction).sum().backward()
    for name, p in net.named_parameters():
        # Factors by their logarithm, what tanh reads as it is, all others in codes: far enough that roundings average out.
        small = name.startswith("scales") or (activation == "tanh" and name == "biases.1")
        change = p.grad.sign() * (0.001 if small else 30.0)
        values = []
        with torch.no_grad():
            for sign in (1, -2):
                p += sign * change
                values.append(float((net(x, graph).double() * direction).sum()))
            p += change
        slope = 2 * float((p.grad * change).sum())
        assert abs(values[0] - values[1] - slope) <= 0.3 * slope, name


def test_sums_of_codes_are_exact() -> None:
    from bitsparse.torch.low_bits import exact_product

    left, right = (torch.full((1, 3), 8191.0), torch.full((3, 1), 8191.0))
    assert exact_product(left, right).item() == 3 * 8191**2
    assert exact_product(left[:, :0], right[:0]).item() == 0


def test_what_lies_beyond_the_codes_has_no_gradient() -> None:
    graph, x, _ = data()
    net = bst.LowBitModule(low_bits(2))
    with torch.no_grad():
        net.biases[1][0] = 1000.0
    net(x, graph).sum().backward()
    assert net.biases[1].grad[0] == 0
    assert net.biases[1].grad[1:].abs().sum() > 0


def test_rows_of_features_may_have_scales_of_their_own() -> None:
    graph, x, labels = data()
    words = networks.Features((x > 0.5).numpy() * np.arange(1, NODES + 1, dtype=np.float32)[:, None])
    net = bst.LowBitModule(low_bits(2, x=words))
    for _ in range(3):
        torch.nn.functional.cross_entropy(net(words, graph), labels).backward()
    with torch.no_grad():
        want = net(words, graph).numpy()
    np.testing.assert_array_equal(net.export()(adjacency(graph), words), want)
    with pytest.raises(bs.DTypeError, match=r"calibrated on nn\.Features"):
        net(x, graph)
    with pytest.raises(ValueError, match="the codes have a"):
        net(networks.Features(x.numpy()), graph)


def test_what_is_kept_is_that_of_the_graph_and_features_given() -> None:
    graph, x, _ = data()
    x = x @ torch.randn(INPUTS, NODES, generator=torch.Generator().manual_seed(2))
    net = bst.LowBitModule(low_bits(4, x=x.numpy(), widths=(NODES, 12, CLASSES)))
    with torch.inference_mode():
        ours = x.clone()
        found = [net(x, graph), net(x.T, graph), net(ours, graph), net(ours.mul_(0.5), graph)]
        for made, features in zip(found, (x, x.T, x, x / 2), strict=True):
            assert torch.equal(made, copy.deepcopy(net)(features.contiguous(), graph))
        assert not torch.equal(found[0], found[1])
    found = net(x, graph)
    x.mul_(0.5)
    assert not torch.equal(net(x, graph), found)
    edges = torch.stack([graph.rows(), graph.indices.long()])[:, :-1]
    here, there = bst.Graph(edges, NODES), bst.Graph((edges + 1) % NODES, NODES)
    net(x, here)
    here.load_state_dict(there.state_dict())
    assert torch.equal(net(x, here), copy.deepcopy(net)(x, there))


def test_saved_and_refused(tmp_path: Any) -> None:
    graph, x, labels = data()
    low = low_bits(4)
    net = bst.LowBitModule(low)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    torch.nn.functional.cross_entropy(net(x, graph), labels).backward()
    optimiser.step()
    low.save(tmp_path / "start.npz")
    torch.save(net.state_dict(), tmp_path / "state.pt")
    other = bst.LowBitModule(networks.load_lowbit(tmp_path / "start.npz"))
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert other.export().fingerprint() == net.export().fingerprint() != low.fingerprint()
    with pytest.raises(ValueError, match="this one was made of"):
        bst.LowBitModule(net.export()).load_state_dict(net.state_dict())
    with pytest.raises(bs.errors.DTypeError, match=r"see nn\.quantize_network"):
        bst.LowBitModule(networks.random_network("gcn", [3, 2]))
    with pytest.raises(ValueError, match=r"x requires a gradient.*pass x.detach\(\)"):
        net(x.requires_grad_(), graph)
    with pytest.raises(bs.errors.ShapeError, match=rf"{NODES} nodes but x has shape \(3, {INPUTS}\)"):
        net(x.detach()[:3], graph)
    with pytest.raises(bs.errors.DTypeError, match="LowBitModule: graph is a Tensor"):
        net(x.detach(), torch.zeros(2, 0))


def test_training_lowers_what_one_bit_costs() -> None:
    """It learns the classes that the network in floats predicts, and predicts them elsewhere as well; same steps, same bits."""
    found = datasets.digits()
    graph, x = bst.Graph(found.adjacency), networks.Features(found.x)
    full = networks.train(networks.Graph(found.adjacency), x, found.targets, found.train_mask, epochs=60)
    classes = torch.from_numpy(full(found.adjacency, x).argmax(axis=1))
    low = networks.quantize_network(full, found.adjacency, x, 1)
    test = torch.from_numpy(found.test_mask)
    fingerprints = []
    for _ in range(2):
        net = bst.LowBitModule(low)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
        alike = []
        for _ in range(40):
            logits = net(x, graph)
            alike.append(float((logits.argmax(dim=1) == classes)[test].float().mean()))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(logits[~test], classes[~test]).backward()
            optimiser.step()
        assert alike[-1] > alike[0] + 0.01
        fingerprints.append(net.export().fingerprint())
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_features_of_other_dtypes_are_those_numbers_in_float32(dtype: torch.dtype) -> None:
    graph, x, _ = data()
    net = bst.LowBitModule(low_bits(4))
    narrowed = x.to(dtype)
    assert torch.equal(net(narrowed, graph), net(narrowed.float(), graph))


@pytest.mark.parametrize("passed", [np.asarray, torch.from_numpy])
def test_arrays_that_are_written_to_are_read_anew(passed: Any) -> None:
    graph, x, _ = data()
    net, array = bst.LowBitModule(low_bits(4)), x.numpy().copy()
    before = net(passed(array), graph)
    array *= -1
    after = net(passed(array), graph)
    assert torch.equal(after, net(-x, graph))
    assert not torch.equal(after, before)


def test_an_evaluation_leaves_nothing_that_cannot_train() -> None:
    graph, x, labels = data()
    net = bst.LowBitModule(low_bits(4))
    with torch.inference_mode():
        found = net(x, graph)
    made = net(x, graph)
    assert torch.equal(made, found)
    torch.nn.functional.cross_entropy(made, labels).backward()


def test_logits_are_exact_under_autocast() -> None:
    graph, x, labels = data()
    net = bst.LowBitModule(low_bits(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = net(x, graph)
        torch.nn.functional.cross_entropy(made, labels).backward()
    assert torch.equal(made, net(x, graph))
    assert all(part.grad is not None for part in net.parameters())
