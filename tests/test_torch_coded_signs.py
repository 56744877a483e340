"""Networks on signs whose gradients are products of integers: what is computed, draws, what is kept between steps, and errors."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from test_torch_binary import CLASSES, INPUTS, NETWORKS, NODES, WIDTHS, data  # noqa: E402

import bitsparse as bs  # noqa: E402
import bitsparse.torch as bst  # noqa: E402
from bitsparse.backends.reference.binary.signs import sign_rows  # noqa: E402
from bitsparse.backends.reference.bits.pack import codes_to_values, words_to_codes  # noqa: E402
from bitsparse.backends.signs import Drop, mean_magnitudes  # noqa: E402
from bitsparse.torch.kept import kept_bytes  # noqa: E402


class Two(torch.nn.Module):
    """A layer on signs, and another module that takes the rule for the last layer."""

    def __init__(self, outputs: int, dropout: float) -> None:
        super().__init__()
        self.signs, self.end = bst.SignLinear(INPUTS, outputs, dropout), bst.SignLinear(outputs, 2, dropout)

    def forward(self, x: Any) -> Any:
        return self.signs(x)


def codes(x: Any) -> tuple[Any, Any]:
    """8-bit codes of an array to nearest, and their scale."""
    made = bs.quantize(x, 8, scheme="symmetric")
    return made.toarray().astype(np.int64), made.scale


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_products_and_gradients_are_those_of_the_definition(rate: float) -> None:
    """To the bit: signs and draws of the reference, sums of integers in NumPy, and each scale applied to them by itself."""
    _, x, _ = data()
    x[0, 0] = 0
    torch.manual_seed(0)
    net = bst.quantize_(Two(5, rate), bst.Tango(rounding="nearest", seed=11))
    layer, (given,) = net.signs, (x.clone().requires_grad_(),)
    with torch.no_grad():
        layer.bias.normal_()
        layer.weight.mul_(3)
    got = net(given)
    w, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    share = round((1 - rate) * 65536) / 65536
    drop, gain = (Drop(share, 11, 0), 1 / share) if rate else (None, 1.0)
    words, means, _ = sign_rows(x.numpy(), None, drop, gain, False)
    planes = 2 if rate else 1
    signs = codes_to_values(words_to_codes(words, INPUTS, planes, "planes"), planes, "signed" if rate else "bipolar")
    assert np.array_equal(np.unique(signs), [-1, 0, 1] if rate else [-1, 1])
    size = layer.weight.detach().abs().mean(dim=0).numpy()
    of_weights = np.where(w >= 0, 1, -1)
    want = (signs @ of_weights).astype(np.float32) * means[:, None] * size + bias
    assert np.array_equal(got.detach().numpy(), want)
    gradient = torch.randn_like(got)
    got.backward(gradient)
    g = gradient.numpy()
    integers, scale = codes(g * means[:, None])
    by_weight = torch.from_numpy((signs.T @ integers).astype(np.float32) * scale)
    straight = torch.from_numpy(size) * by_weight * (layer.weight.detach().abs() <= 1)
    dw = (
        straight
        + torch.from_numpy(of_weights).float() * (torch.from_numpy(of_weights).float() * by_weight).sum(0) / INPUTS
    )
    assert torch.equal(layer.weight.grad, dw)
    integers, scale = codes(g * (size * np.float32(gain)))
    dx = (integers @ of_weights.T).astype(np.float32) * scale * (np.abs(x.numpy()) <= 1) * (signs != 0)
    assert np.array_equal(given.grad.numpy(), dx)
    torch.testing.assert_close(layer.bias.grad, gradient.sum(dim=0))


def test_gradients_are_unbiased() -> None:
    """Their mean over 250 steps is that of the float network within four and a half standard errors."""
    _, x, _ = data()
    torch.manual_seed(0)
    net = Two(5, 0.0)
    given = x.requires_grad_()
    weights = torch.randn(NODES, 5)
    (net(given) * weights).sum().backward()
    parts = [net.signs.weight, net.signs.bias, given]
    want = [part.grad.clone() for part in parts]
    bst.quantize_(net, bst.Tango(seed=3))
    draws: list[list[Any]] = [[] for _ in parts]
    for _ in range(250):
        for part in parts:
            part.grad = None
        (net(given) * weights).sum().backward()
        for kept, part in zip(draws, parts, strict=True):
            kept.append(part.grad.clone())
    for made, exact in zip(draws, want, strict=True):
        off = torch.stack(made) - exact
        error = off.std(dim=0) / len(made) ** 0.5
        assert (off.mean(dim=0).abs() <= 4.5 * error + 1e-5 * exact.abs().max()).all()
    assert torch.stack(draws[0]).std(dim=0).max() > 0


@pytest.mark.parametrize("last", ["float32", "sums", "quantized"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_near_the_network_in_floats_and_back(kind: str, last: Any) -> None:
    edges, x, labels = data()
    graph = bst.Graph(edges, NODES)
    torch.manual_seed(0)
    net = NETWORKS[kind](WIDTHS[kind], dropout=0.0)
    found = []
    for each in ("floats", "integers", "floats"):
        if each == "integers":
            bst.quantize_(net, bst.Tango(rounding="nearest", last=last))
        else:
            bst.unquantize_(net)
        net.zero_grad()
        y = net(x, graph)
        torch.nn.functional.cross_entropy(y, labels).backward()
        found.append((y.detach(), torch.cat([p.grad.flatten() for p in net.parameters()])))
    (y, gradient), (low, other), again = found
    # A sum that all but vanishes may change its sign, so some rows differ by more than the rounding.
    assert (y - low).abs().median() <= 0.05 * y.abs().median()
    assert 0 < (gradient - other).norm() <= 0.3 * gradient.norm()
    assert all(torch.equal(one, two) for one, two in zip(found[0], again, strict=True))


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_last_layer_is_all_that_makes_the_logits(kind: str) -> None:
    net = bst.quantize_(NETWORKS[kind](WIDTHS[kind]))
    rounds = {
        name
        for name, part in net.named_modules()
        if isinstance(part, bst.SignLinear) and vars(part)["_quantizer"]._products
    }
    every = {name for name, part in net.named_modules() if isinstance(part, bst.SignLinear)}
    assert every - rounds == {"gcn": {"layers.1"}, "sage": {"own.1", "others.1"}, "saint": {"head"}}[kind]


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_same_seed_same_bits_and_resumed_to_the_bit(kind: str, rounding: Any) -> None:
    edges, x, labels = data()
    graph = bst.Graph(edges, NODES)

    def made(seed: int) -> Any:
        torch.manual_seed(0)
        net = bst.quantize_(NETWORKS[kind](WIDTHS[kind]), bst.Tango(seed=seed, rounding=rounding, last="quantized"))
        return net, torch.optim.Adam(net.parameters(), lr=0.01)

    def step(net: Any, optimiser: Any) -> float:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x, graph), labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    runs = []
    for seed in (0, 0, 1):
        both = made(seed)
        torch.manual_seed(len(runs))  # PyTorch's own draws do not matter
        losses = [step(*both) for _ in range(3)]
        if not runs:
            file = io.BytesIO()
            torch.save([part.state_dict() for part in both], file)
        runs.append([*losses, *(step(*both) for _ in range(3))])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    file.seek(0)
    both = made(5)
    for part, state in zip(both, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    both[0].quantization.config = bst.Tango(seed=0, rounding=rounding, last="quantized")
    assert [step(*both) for _ in range(3)] == runs[0][3:]


def test_signs_of_data_are_packed_once() -> None:
    edges, x, _ = data()
    net = bst.quantize_(bst.BinaryGCN(WIDTHS["gcn"], dropout=0.0), bst.Tango(last="quantized"))
    state, counts = net.quantization, []
    for change in (None, None, "features", None, "norm", None):
        if change == "features":
            x += 1
        elif change == "norm":
            net.load_state_dict({**net.state_dict(), "mean": net.mean + 1})
        before = state.misses
        y = net(x, edges)
        counts.append(state.misses - before)
        fresh = copy.deepcopy(net).eval()  # it remembers no signs
        assert torch.equal(net.eval()(x, edges), fresh(x, edges))
        net.train()
    # The signs of the features, those of the hidden layer, and the codes of both products.
    assert counts == [4, 3, 4, 3, 4, 3]
    # Kept for gradients: of the hidden features two planes, signs and where they pass, in 16 bytes a row, and magnitudes.
    assert 2 * 16 * NODES <= kept_bytes(y, x) <= (2 * 16 + 4) * NODES + 64


def test_dropped_signs_are_drawn_anew_and_none_in_evaluation() -> None:
    edges, x, _ = data()
    net = bst.quantize_(bst.BinaryGCN(WIDTHS["gcn"], dropout=0.5), bst.Tango(rounding="nearest", last="quantized"))
    assert not torch.equal(net(x, edges), net(x, edges))
    assert net.quantization.draws == 4
    net.eval()
    assert torch.equal(net(x, edges), net(x, edges))
    assert net.quantization.draws == 4


@pytest.mark.parametrize("kind", NETWORKS)
def test_trained_in_integers_and_exported(kind: str) -> None:
    edges, x, labels = data()
    graph = bst.Graph(edges, NODES)
    torch.manual_seed(0)
    net = bst.quantize_(NETWORKS[kind](WIDTHS[kind], dropout=0.2), bst.Tango(last="quantized"))
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
    got = net.export()(bs.TCTiledCSR(adjacency).tocsr().astype(bool), x.numpy())
    # The exported network sums floats, not codes; so sums that all but vanish may have another sign.
    near = np.abs(got - want).max(axis=1) <= 0.05 * np.abs(want).max()
    assert near.mean() >= 0.85
    assert (got.argmax(axis=1) == want.argmax(axis=1)).mean() >= 0.9


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_features(dtype: str) -> None:
    _, x, _ = data()
    torch.manual_seed(0)
    net = bst.quantize_(Two(5, 0.0), bst.Tango(rounding="nearest"))
    narrow = copy.deepcopy(net).to(getattr(torch, dtype))
    narrow_x = x.to(getattr(torch, dtype)).requires_grad_()
    y = narrow(narrow_x)
    assert y.dtype == narrow_x.dtype
    y.sum().backward()
    wide_x = narrow_x.detach().float().requires_grad_()
    net(wide_x).sum().backward()
    torch.testing.assert_close(narrow_x.grad.float(), wide_x.grad, rtol=0.05, atol=0.02)


def test_features_that_need_a_gradient_behind_a_batch_norm() -> None:
    edges, x, labels = data()
    torch.manual_seed(0)
    net = bst.BinaryGCN(WIDTHS["gcn"], dropout=0.0)
    found = []
    for low in (False, True):
        if low:
            bst.quantize_(net, bst.Tango(rounding="nearest"))
        given = x.clone().requires_grad_()
        torch.nn.functional.cross_entropy(net(given, edges), labels).backward()
        found.append(given.grad)
    assert 0 < (found[0] - found[1]).norm() <= 0.2 * found[0].norm()


def test_errors() -> None:
    edges, x, _ = data()
    net = bst.quantize_(bst.BinaryGCN(WIDTHS["gcn"]), bst.Tango(rounding="nearest"))
    with pytest.raises(bs.DTypeError, match=r"SignLinear: x is torch.float64, but quantize_ needs .* pass x.float"):
        net(x.double(), edges)
    with pytest.raises(bs.ShapeError, match=r"SignLinear: x has shape \(60, 36\), but the layer takes \(nodes, 37\)"):
        net.layers[0](x[:, 1:])
    given = x.clone().requires_grad_()
    y = torch.utils.checkpoint.checkpoint(net.layers[0], given, use_reentrant=False)
    with pytest.raises(RuntimeError, match=r"SignLinear: a layer is computed again .* pass dropout=0"):
        y.sum().backward()
    bst.quantize_(net, bst.Tango())
    y = torch.utils.checkpoint.checkpoint(net.layers[0], given, use_reentrant=False)
    with pytest.raises(RuntimeError, match=r"pass Tango\(rounding='nearest'\)"):
        y.sum().backward()


def test_bits_are_chosen_by_the_first_layer() -> None:
    edges, x, _ = data()
    net = bst.quantize_(bst.BinaryGCN(WIDTHS["gcn"]), bst.Tango(bits="auto"))
    net(x, edges)
    assert net.quantization.bits in (4, 8)
    assert net(x, edges).shape == (NODES, CLASSES)


def test_the_mean_magnitude_is_that_of_exported_networks() -> None:
    _, x, _ = data()
    _, means, _ = sign_rows(x.numpy(), None, None, 1.0, False)
    assert np.array_equal(means, mean_magnitudes(x.numpy()))
