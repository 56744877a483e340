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
    assert taken == ["product", "product", "product_over_rows"]
    wide = [part.detach().double().requires_grad_() for part in given]
    exact = torch.nn.functional.linear(*wide) + (before.double() if how == "added" else 0)
    assert close(out, exact.detach())
    for one, other in zip(found, torch.autograd.grad(exact, wide, gradient.double()), strict=True):
        assert close(one, other)
