"""Layers' products in float32 on a GPU, and their gradients, against PyTorch's in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bitsparse.backends.cuda.matmul import floats  # noqa: E402
from bitsparse.torch import bias  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.hopper]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Sizes from which the kernels are quicker would be long tests."""
    monkeypatch.setattr(floats, "_LEAST_ROWS", 1)
    monkeypatch.setattr(floats, "_LEAST_STEPS", 1)


def close(one, exact):
    return float((one.detach().double() - exact).abs().max()) <= 2e-6 * float(exact.abs().max())


@pytest.mark.parametrize(("rows", "depth", "columns"), [(300, 70, 128), (130, 100, 47), (77, 40, 40), (200, 33, 300)])
@pytest.mark.parametrize("how", ["plain", "bias", "added", "width"])
def test_linear_and_its_gradients(rows, depth, columns, how):
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch on a GPU")
    torch.manual_seed(rows)
    x, weight, behind = (
        torch.randn(size, device="cuda", requires_grad=True) for size in ((rows, depth), (columns, depth), (columns,))
    )
    before, gradient = torch.randn(rows, columns, device="cuda"), torch.randn(rows, columns, device="cuda")
    given = [x, weight] + [behind] * (how == "bias")
    if how == "added":
        out = bias.added(before.clone(), x, weight)
    elif how == "width":
        out = bias.linear(x, weight, width=-(-columns // 4) * 4)
    else:
        out = bias.linear(*given)
    found = torch.autograd.grad(out, given, gradient)
    wide = [part.detach().double().requires_grad_() for part in given]
    exact = torch.nn.functional.linear(*wide) + (before.double() if how == "added" else 0)
    assert close(out, exact.detach())
    for one, other in zip(found, torch.autograd.grad(exact, wide, gradient.double()), strict=True):
        assert close(one, other)
