"""Attention with a bias in its kernel: the gradients of the usual steps, also if the result is changed in place before."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse.torch as bst  # noqa: E402
from bitsparse.torch import attention_operators, biased_attention  # noqa: E402

NODES, HEADS, WIDTH = 12, 2, 3
OPS = torch.ops.bitsparse


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compute by the usual operators; the list says of each pass forward whether it made what gradients need."""
    passes: list[bool] = []

    def forward(pattern: Any, x: Any, first: Any, second: Any, bias: Any, *rest: Any) -> tuple[Any, ...]:
        passes.append(rest[-1])
        result, *others = OPS.scored_attention(*pattern, x, first, second, *rest)
        return result + bias.view(HEADS, WIDTH), *others

    def backward(pattern: Any, x: Any, first: Any, second: Any, bias: Any, *rest: Any) -> tuple[Any, ...]:
        seed, result, *others = rest
        sums = result - bias.view(HEADS, WIDTH)
        made = OPS.scored_attention_vjp(*pattern, x, first, second, seed, sums, *others)
        return *made, others[5].sum(dim=0).flatten()

    monkeypatch.setattr(biased_attention, "_forward_on_gpu", forward)
    monkeypatch.setattr(biased_attention, "_vjp_on_gpu", backward)
    return passes


def pattern() -> Any:
    edges = torch.randint(NODES, (2, 40), generator=torch.Generator().manual_seed(0)).unique(dim=1)
    return bst.Graph(edges, NODES).pattern()


def operands() -> list[Any]:
    random = torch.Generator().manual_seed(1)
    sizes = (NODES, HEADS, WIDTH), (HEADS, WIDTH), (HEADS, WIDTH), (HEADS * WIDTH,)
    return [torch.randn(size, generator=random, dtype=torch.float64).requires_grad_() for size in sizes]


def together(parts: list[Any], dropout: float = 0.0) -> Any:
    seed = torch.tensor([3]) if dropout else None
    return biased_attention._BiasedAttention.apply(*parts, pattern(), seed, 0.2, dropout, True)


def in_steps(parts: list[Any], dropout: float = 0.0) -> Any:
    seed = torch.tensor([3]) if dropout else None
    y = attention_operators.scored_attention(pattern(), *parts[:3], 0.2, dropout, seed)
    return y + parts[3].view(HEADS, WIDTH)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_are_those_of_two_steps(on_the_cpu: list[bool], dropout: float, in_place: bool) -> None:
    found, right = operands(), operands()
    y, z = together(found, dropout), in_steps(right, dropout)
    assert torch.equal(y, z)
    weight = torch.arange(y.numel(), dtype=y.dtype).view(NODES, -1)
    changed = torch.nn.functional.elu(y.flatten(1), inplace=in_place)
    (changed * weight).sum().backward()
    (torch.nn.functional.elu(z.flatten(1)) * weight).sum().backward()
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)
    assert on_the_cpu == ([True, False] if in_place else [True])


def test_what_counts_changes_holds_no_memory(on_the_cpu: list[bool]) -> None:
    parts = operands()
    y = together(parts)
    counts = y.grad_fn.changes
    assert counts.untyped_storage().nbytes() == 0


def test_gradients_are_not_differentiated_again(on_the_cpu: list[bool]) -> None:
    parts = operands()
    found = torch.autograd.grad(together(parts).sum(), parts[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        found.sum().backward()


def test_a_layer_on_the_cpu_adds_its_bias_afterwards() -> None:
    g = bst.Graph(torch.tensor([[0, 1], [1, 0]]))
    for how in ({"concat": True}, {"concat": False}, {"residual": True}):
        layer = bst.GATConv(3, 2, heads=2, **how)
        plain = bst.GATConv(3, 2, heads=2, bias=False, **how)
        plain.load_state_dict({name: part for name, part in layer.state_dict().items() if name != "bias"})
        torch.nn.init.normal_(layer.bias)
        x = torch.ones(2, 3)
        torch.testing.assert_close(layer(x, g), plain(x, g) + layer.bias)
