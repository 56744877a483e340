"""Products of features with weights on a CPU by oneDNN: the numbers of PyTorch's own, and theirs wherever somebody looks on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
bst: Any = pytest.importorskip("bitsparse.torch")

from bitsparse.torch import bias, dense  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning"),
    pytest.mark.skipif(dense._onednn() is None, reason="this build of PyTorch has no oneDNN"),
]
ROWS, INPUTS, OUTPUTS = 700, 60, 70


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Shapes of the products that oneDNN computes."""
    found: list[Any] = []
    quick = dense._onednn()

    def noted(x: Any, weight: Any, *rest: Any) -> Any:
        found.append((tuple(x.shape), tuple(weight.shape)))
        return quick(x, weight, *rest)

    monkeypatch.setattr(dense, "_onednn", lambda: noted)
    return found


def operands(rows: int = ROWS, inputs: int = INPUTS, outputs: int = OUTPUTS, dtype: Any = None) -> list[Any]:
    random = torch.Generator().manual_seed(0)
    shapes = (rows, inputs), (outputs, inputs), (outputs,)
    return [torch.randn(shape, generator=random).to(dtype or torch.float32).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("shape", [(ROWS, INPUTS, OUTPUTS), (9000, 80, 3), (5, 900, 600), (3, 900, 900), (30000, 9, 8)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_numbers_and_gradients(shape: tuple[int, int, int], has_bias: bool, taken: list[Any]) -> None:
    parts = operands(*shape)[: 2 + has_bias]
    made = bias.linear(*parts)
    made.square().sum().backward()
    exact = [part.detach().double().requires_grad_() for part in parts]
    wanted = torch.nn.functional.linear(*exact)
    wanted.square().sum().backward()
    torch.testing.assert_close(made.double(), wanted, rtol=1e-5, atol=1e-4)
    for part, other in zip(parts, exact, strict=True):
        assert float((part.grad - other.grad).norm() / other.grad.norm()) < 1e-5
    rows, inputs, outputs = shape
    products = [
        ((rows, inputs), (outputs, inputs)),
        ((rows, outputs), (inputs, outputs)),
    ]
    assert taken == [pair for pair in products if pair[1][0] >= 8]


def test_gradients_of_gradients(taken: list[Any]) -> None:
    taken_first: list[int] = []

    def second(linear: Any) -> list[Any]:
        parts = operands()
        first = torch.autograd.grad(linear(*parts).pow(3).sum(), parts, create_graph=True)
        taken_first.append(len(taken))  # what is to be differentiated again is recorded
        found: list[Any] = list(torch.autograd.grad(sum(part.square().sum() for part in first), parts))
        return found

    for one, other in zip(second(bias.linear), second(torch.nn.functional.linear), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=float(other.abs().max()) * 1e-5)
    assert taken_first[0] == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_to_pytorch(dtype: Any, taken: list[Any]) -> None:
    parts = operands(dtype=dtype)
    assert torch.equal(bias.linear(*parts), torch.nn.functional.linear(*parts))
    assert taken == []


def test_whoever_looks_on_sees_pytorchs_own(taken: list[Any]) -> None:
    x, weight, added = (part.detach() for part in operands())
    wanted = torch.nn.functional.linear(x, weight, added)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bias.linear(x, weight, added).dtype == torch.bfloat16
    torch.testing.assert_close(torch.func.vmap(bias.linear, (0, None, None))(x[None], weight, added)[0], wanted)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(bias.linear(dual, weight, added)).tangent is not None
    gaps = torch.stack([x, x], 2)[:, :, 0]
    torch.testing.assert_close(bias.linear(gaps, weight, added), wanted)
    assert bias.linear(x.expand(2, *x.shape), weight, added).shape == (2, ROWS, OUTPUTS)
    torch._C._set_mkldnn_enabled(False)
    try:
        assert torch.equal(bias.linear(x, weight, added), wanted)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert taken == []


def test_a_layer_compiles_and_trains_as_without_it(taken: list[Any]) -> None:
    edges = torch.from_numpy(np.random.default_rng(0).integers(0, ROWS, (2, 3000)))
    graph, x = bst.Graph(edges.unique(dim=1), ROWS), operands()[0].detach()
    found = []
    for layer in (
        bst.GCNConv(INPUTS, 50),
        bst.GCNConv(INPUTS, OUTPUTS),
        bst.SAGEConv(INPUTS, 50),
        bst.GATConv(INPUTS, 20, 4),
    ):
        eager = layer(x, graph)
        eager.square().sum().backward()
        gradients = [part.grad.clone() for part in layer.parameters()]
        layer.zero_grad()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, graph)
        compiled.square().sum().backward()
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
        for one, part in zip(gradients, layer.parameters(), strict=True):
            torch.testing.assert_close(one, part.grad, rtol=1e-3, atol=float(one.abs().max()) * 1e-4)
        found.append(len(taken))
        taken.clear()
    assert all(found)
    exported = torch.nn.Sequential(torch.nn.Linear(INPUTS, OUTPUTS))
    layer = bst.GINConv(exported)
    layer(x, graph).sum().backward()
    assert exported[0].weight.grad is not None


def test_a_bias_goes_into_the_memory_of_sums_that_nobody_else_knows_of() -> None:
    added = torch.arange(3.0)
    own, kept, half = torch.ones(5, 3), torch.ones(5, 3), torch.ones(5, 3, dtype=torch.float16)
    assert bias.biased(own, added, owned=True) is own
    assert torch.equal(own, bias.biased(kept, added))
    assert torch.equal(kept, torch.ones(5, 3))
    assert bias.biased(half, added, owned=True).dtype == torch.float32
    of_each = torch.func.vmap(lambda added: bias.biased(torch.ones(5, 3), added, owned=True))(added.repeat(2, 1))
    assert torch.equal(of_each, own.repeat(2, 1, 1))


@pytest.mark.parametrize("rows", [ROWS, ROWS + 2, 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_the_rows_of_a_sum_over_them(rows: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda one, other: called.append(len(one)) or bmm(one, other))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    one, other = operands(rows, 9)[0].detach(), operands(rows, 5)[0].detach()
    with torch.no_grad():
        made = dense.product_over_rows(one, other)
        assert torch.equal(made, dense.product_over_rows(one, other))
    torch.testing.assert_close(made.double(), one.double().t() @ other.double(), rtol=1e-5, atol=1e-4)
    assert called == [threads] * 2 * (threads > 1 and rows > 40)


@pytest.mark.parametrize("shape", [(ROWS, 0, 5), (ROWS, 5, 0), (0, 0, 0)])
def test_sums_over_rows_of_nothing(shape: tuple[int, int, int]) -> None:
    rows, columns, others = shape
    with torch.no_grad():
        made = dense.product_over_rows(torch.ones(rows, columns), torch.ones(rows, others))
    assert made.shape == (columns, others)
