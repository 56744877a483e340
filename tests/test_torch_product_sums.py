"""Sums of products in wide rows: the gradients of the usual steps, and memory that is let go of while gradients are computed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse.torch as bst  # noqa: E402
from bitsparse.torch import operators, product_sums  # noqa: E402
from bitsparse.torch.bias import linear  # noqa: E402
from bitsparse.torch.code_source import CodeSource  # noqa: E402
from bitsparse.torch.dense import Rows, clipped  # noqa: E402
from bitsparse.torch.kept import KeptInFewBits, exact_linear, kept_codes  # noqa: E402
from bitsparse.torch.quantization import Quantization  # noqa: E402
from bitsparse.torch.registration import is_plain  # noqa: E402

NODES, WIDTH = 40, 8


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute sums of products by the usual function."""

    def compute(products: Any, pattern: Any, rows: Any, behind: Any) -> Any:
        assert products.stride() == (WIDTH, 1)
        made = operators.spmm(pattern, None, rows, None, products)
        made = made if behind.bias is None else made + behind.bias
        return made.relu() if behind.relu else made

    monkeypatch.setattr(product_sums, "_compute_on_gpu", compute)


def graph() -> Any:
    return bst.Graph(torch.randint(NODES, (2, 200), generator=torch.Generator().manual_seed(0)).unique(dim=1), NODES)


def operands(dtype: Any) -> list[Any]:
    random = torch.Generator().manual_seed(1)
    sizes = (NODES, 6), (5, 6), (5,)
    return [torch.randn(size, generator=random, dtype=dtype).requires_grad_() for size in sizes]


def in_rows(products: Any, bias: Any, relu: bool, pattern: Any, factors: Any = (None, None)) -> Any:
    made = product_sums._ProductSums.apply(products, bias, relu, pattern, factors, factors[0])
    return clipped(made) if relu else made


def source() -> Any:
    return CodeSource(Quantization(bst.Tango()), False)


def test_gradients_of_any_order(on_the_cpu: None) -> None:
    pattern = graph().pattern()
    for biased, relu in ((True, False), (False, False), (True, True)):
        x, weight, bias = operands(torch.float64)

        def call(x: Any, weight: Any, bias: Any = None, relu: bool = relu) -> Any:
            return in_rows(linear(x, weight, rows=Rows(WIDTH)), bias, relu, pattern)

        given = (x, weight, bias) if biased else (x, weight)
        assert torch.autograd.gradcheck(call, given)
        assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("mean", [False, True])
def test_the_gradients_of_both_steps(mean: bool, on_the_cpu: None) -> None:
    g = graph().normalized()
    pattern, factors = g.pattern(), g.factors(mean, torch.float32)
    found = []
    for together in (True, False):
        x, weight, bias = operands(torch.float32)
        if together:
            made = in_rows(linear(x, weight, rows=Rows(WIDTH, factors[1])), bias, False, pattern, factors)
        else:
            made = operators.spmm(pattern, None, *factors, torch.nn.functional.linear(x, weight)) + bias
        made.square().sum().backward()
        found.append([made.detach(), x.grad, weight.grad, bias.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_an_input_in_few_bits_is_the_one_that_two_steps_keep(on_the_cpu: None) -> None:
    pattern, found = graph().pattern(), []
    for together in (True, False):
        (x, weight, bias), of = operands(torch.float32), source()

        def keep(x: Any, of: Any = of) -> Any:
            return kept_codes(x, 4, of)

        if together:
            made = in_rows(exact_linear(x, weight, keep, Rows(WIDTH)), bias, False, pattern)
        else:
            made = operators.spmm(pattern, None, None, None, exact_linear(x, weight, keep)) + bias
        made.square().sum().backward()
        found.append([made.detach(), x.grad, weight.grad, bias.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def network() -> Any:
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = bst.GCNConv(6, 16), bst.GATConv(16, 4)

        def forward(self, x: Any, g: Any) -> Any:
            return self.second(torch.nn.functional.elu(self.first(x, g)), g)

    net = Net()
    bst.quantize_(net, bst.Tango(activations=4))
    return net


def contexts(loss: Any) -> list[Any]:
    """The contexts of all gradients."""
    todo, found = [loss.grad_fn], []
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.append(node)
            todo += [other for other, _ in node.next_functions]
    return found


def test_codes_are_gone_before_the_loss_is(on_the_cpu: None) -> None:
    net, g, x = network(), graph(), operands(torch.float32)[0].detach()
    loss = net(x, g).square().sum()
    words = [
        weakref.ref(part.packed.words)
        for node in contexts(loss)
        for kept in getattr(node, "__dict__", {}).values()
        for part in (kept if isinstance(kept, list) else [kept])
        if hasattr(part, "packed")
    ]
    assert len(words) >= 4
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in net.parameters()]
    gc.collect()
    assert all(part() is not None for part in words)
    net.zero_grad()
    loss.backward()
    gc.collect()
    assert all(part() is None for part in words)
    assert len(first) == len(list(net.parameters()))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_says_that_it_is_gone() -> None:
    x = torch.randn(8, 3, requires_grad=True)
    with KeptInFewBits(4, lambda _: source()):
        y = torch.relu(x * 1).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        torch.autograd.backward(y)


def test_operators_are_plain_under_modes_of_this_library_alone() -> None:
    class Other(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    x = torch.ones(2)
    with KeptInFewBits(4, lambda _: source()):
        assert is_plain(x)
        with Other():
            assert not is_plain(x)
    with Other():
        assert not is_plain(x)
        with KeptInFewBits(4, lambda _: source()):
            assert not is_plain(x)
