"""What activations, dropout and layers keep for their gradients in few bits: how many bytes, right on average, and known again."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse.torch as bst  # noqa: E402
from bitsparse.torch import kept_codes  # noqa: E402
from bitsparse.torch.code_source import CodeSource  # noqa: E402
from bitsparse.torch.kept import KeptInFewBits, kept_bytes  # noqa: E402
from bitsparse.torch.kept_codes import KeptCodes, KeptElu, KeptRelu, elu_map, relu_map, signed_map  # noqa: E402
from bitsparse.torch.quantization import Quantization  # noqa: E402

MAPS: dict[str, Any] = {
    "signed": (signed_map, lambda x: x),
    "relu": (relu_map, torch.relu),
    "elu": (elu_map, torch.nn.functional.elu),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_codes, "PIECE_BYTES", (1 << 14, 1 << 14))


def source(rounding: Any = "stochastic") -> Any:
    return CodeSource(Quantization(bst.Tango(rounding=rounding)), False)


def numbers(rows: int = 2500, columns: int = 5, seed: int = 0) -> Any:
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(seed))


def matrix(kept: KeptCodes) -> Any:
    """All that codes stand for."""
    return torch.cat([torch.empty((0, *kept.packed.shape[1:])), *(values for _, values in kept)])


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("kind", MAPS)
def test_codes_are_near_and_right_on_average(kind: str, bits: int) -> None:
    """Values, and relu's and elu's slopes, which follow from the same codes; in several pieces, of which the last ends within a row."""
    map_of, activation = MAPS[kind]
    x = numbers()
    y = activation(x)
    draws, slopes, step = [], [], float(map_of(y, (1 << bits - 1) - 1).step)
    source_ = source()
    for _ in range(200):
        kept = KeptCodes(y, bits, source_, map_of)
        assert len(list(kept)) == 3
        draws.append(matrix(kept))
        if kind == "relu":
            assert torch.equal(kept.packed.times(torch.ones_like(y), kept.slopes_of_relu()), (x > 0).float())
        if kind == "elu":
            slopes.append(KeptElu(y, bits, source_).times(torch.ones_like(y)))
    assert torch.equal(draws[0] == 0, draws[0].abs() < 1e-6)
    coarsest = max(step, 1 / elu_map(y, (1 << bits - 1) - 1).below) if kind == "elu" else step  # type: ignore[operator]
    for made, want in [(draws, y), *([(slopes, torch.where(x > 0, 1.0, y + 1))] if slopes else [])]:
        off = torch.stack(made) - want
        assert float(off.abs().max()) <= coarsest * (1 + 1e-4)
        # By Hoeffding's bound a mean of 200 is further off once in 10^8 times.
        assert float(off.mean(0).abs().max()) <= coarsest * (np.log(2e8 * off[0].numel()) / 400) ** 0.5
        assert abs(float(off.mean())) <= 6 * float(off.std()) / off.numel() ** 0.5 + 1e-6


def test_codes_take_their_bits_and_nothing_else() -> None:
    for bits in (8, 4, 2):
        for shape in ((2048, 100), (3000, 47)):
            kept = KeptCodes(numbers(*shape), bits, source())
            assert kept.packed.words.nbytes <= shape[0] * shape[1] * bits / 8 + 16


def test_pieces_are_small_beside_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_codes, "PIECE_BYTES", (1 << 16, 1 << 20))
    for shape, count in (((3000, 4), 1), ((100_000, 4), 17), ((1 << 18, 20), 22)):
        pieces = list(kept_codes.PackedRows(torch.Size(shape), 4, torch.device("cpu")).rows)
        assert abs(len(pieces) - count) <= 1
        assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
        assert pieces[-1].stop == shape[0]


def test_no_rows_no_columns_zeros_and_what_is_not_finite() -> None:
    for shape in ((0, 4), (4, 0), (3, 1)):
        x = torch.zeros(shape)
        for map_of in (signed_map, relu_map, elu_map):
            kept = KeptCodes(x, 4, source(), map_of)
            assert torch.equal(matrix(kept), x if x.numel() else x[:0])
            assert torch.equal(kept.over_rows(torch.ones(shape[0], 2)), torch.zeros(2, shape[1]))
    for value in (float("nan"), float("inf")):
        x = numbers(10)
        x[3, 2] = value
        for map_of in (signed_map, relu_map, elu_map):
            assert not torch.isfinite(
                KeptCodes(x.clamp(min=-1), 4, source(), map_of).over_rows(torch.ones(10, 1))
            ).any()


def test_seeds_views_and_nearest_rounding() -> None:
    x = numbers(1500, 8)
    first, second = (matrix(KeptCodes(x, 4, source())) for _ in range(2))
    assert torch.equal(first, second)
    wide = torch.cat([x, x], 1)[:, :8]
    assert torch.equal(matrix(KeptCodes(wide, 4, source())), first)
    kept = KeptCodes(x, 8, source("nearest"))
    assert float((matrix(kept) - x).abs().max()) <= float(x.abs().max()) / 127 / 2 * (1 + 1e-5)
    heads = KeptCodes(x.view(1500, 2, 4), 4, source())
    assert torch.equal(matrix(heads).view(1500, 8), first)
    pieces = heads.in_pieces(8)
    assert torch.equal(torch.cat([torch.as_tensor(pieces.make(i)) for i in range(len(pieces.pieces))]), first)
    gradient = numbers(1500, 3, 1)
    torch.testing.assert_close(kept.over_rows(gradient), gradient.t() @ matrix(kept), rtol=1e-4, atol=1e-3)


def test_bits_of_relu_give_way_to_codes_of_its_result() -> None:
    x, gradient = numbers(), numbers(seed=1)
    kept = KeptRelu(x)
    alone = kept.times(gradient)
    assert torch.equal(alone, gradient * (x > 0))
    before = kept.packed
    codes = kept.codes(x.relu(), 4, source())
    assert kept.codes(x.relu(), 4, source()) is codes
    assert kept.packed is codes.packed is not before
    assert torch.equal(kept.times(gradient), alone)


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """The networks whose bytes are told: two layers with 128 columns between them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer: Any = bst.GCNConv if kind == "gcn" else bst.GATConv
        width: Any = (128,) if kind == "gcn" else (32, 4)
        self.first, self.second = layer(100, *width), layer(128, 47)
        self.activation = torch.relu if kind == "gcn" else torch.nn.functional.elu

    def forward(self, x: Any, graph: Any) -> Any:
        return self.second(self.activation(self.first(x, graph)), graph)


def graph_of(nodes: int) -> Any:
    edges = torch.randint(nodes, (2, 4 * nodes), generator=torch.Generator().manual_seed(2))
    return bst.Graph(torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1), nodes)


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_a_quarter_and_an_eighth_of_the_bytes(kind: str) -> None:
    graph, x = graph_of(12000), numbers(12000, 100)  # beside which codes of weights are few
    net = Net(kind)
    plain = kept_bytes(net(x, graph), x)
    for bits, share in ((8, 0.27), (4, 0.14)):
        low = bst.quantize_(copy.deepcopy(net), bst.Tango(activations=bits))
        low(x, graph)  # from the second step on codes of the data are there
        assert 0 < kept_bytes(low(x, graph), x) <= share * plain


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_gradients_of_a_last_layer_in_floats_are_right_on_average(kind: str) -> None:
    graph, x = graph_of(300), numbers(300, 100)
    net = Net(kind)
    by_result = numbers(300, 47, 3)
    (net(x, graph) * by_result).sum().backward()
    low = bst.quantize_(copy.deepcopy(net), bst.Tango(exact=("first",), activations=4))
    low.zero_grad()
    draws = []
    for _ in range(200):
        low.zero_grad()
        (low(x, graph) * by_result).sum().backward()
        draws.append({name: part.grad.clone() for name, part in low.named_parameters()})
    for name, part in net.named_parameters():
        off = torch.stack([draw[name] for draw in draws]) - part.grad
        error = off.std(0) / len(draws) ** 0.5
        assert bool((off.mean(0).abs() <= 6 * error + 1e-4 * part.grad.abs().max()).all()), name
    assert any(float(torch.stack([draw[name] for draw in draws]).std(0).max()) > 0 for name in draws[0])


def test_a_layer_between_keeps_fewer_bits_than_it_multiplies() -> None:
    """The gradient by its weight is near that of the codes which were multiplied, and needs no codes of the data again."""
    graph, x = graph_of(300), numbers(300, 100)
    found = []
    for activations in (None, 8, 4):
        net = bst.quantize_(Net("gcn"), bst.Tango(last="quantized", activations=activations))
        y = net(x, graph)
        y.square().mean().backward()
        found.append(net.first.lin.weight.grad)
    for other in found[1:]:
        assert float((other - found[0]).norm() / found[0].norm()) < 0.3
    assert not torch.equal(found[1], found[2])


@pytest.mark.parametrize("rate", [1.5, -0.5])
def test_rates_of_dropout_that_pytorch_refuses(rate: float) -> None:
    with KeptInFewBits(4, lambda x: source()), pytest.raises(ValueError, match="probability"):
        torch.nn.functional.dropout(torch.ones(2, 2, requires_grad=True), rate)


def test_steps_are_the_same_after_a_capture() -> None:
    """After a capture codes of data do not stay from step to step; what is kept in few bits, and thus drawn, must not depend on it."""
    graph, x = graph_of(300), numbers(300, 100)
    nets = [bst.quantize_(Net("gat"), bst.Tango(activations=4)) for _ in range(2)]
    for step in range(5):
        if step == 3:
            x.mul_(0.5)
        made = [net(x, graph) for net in nets]
        assert torch.equal(*made)
        for y in made:
            y.square().sum().backward()
        assert nets[0].quantization.draws == nets[1].quantization.draws
        nets[1].quantization._recorded = True
        assert torch.equal(*(net.first.lin.weight.grad for net in nets))
