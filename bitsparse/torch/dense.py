"""Products of features with weights; on a CPU, by whichever of oneDNN and PyTorch's own library is faster."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_torch_function_mode_enabled

from bitsparse.errors import DTypeError
from bitsparse.interop.tensors import dual_level, nothing_recorded

#: Below this many multiplications a product takes next to no time; below this many columns oneDNN is not faster.
_FEWEST_STEPS, _NARROWEST = 1 << 21, 8
#: Each thread sums at least this many times as many rows as its partial result has, so that adding the partial results is cheap.
_TALLER = 4


@functools.cache
def _onednn() -> Callable[..., Tensor] | None:
    """The float32 matrix product of oneDNN that PyTorch's compiler uses; None in builds without it.

    PyTorch itself multiplies float32 with MKL, which leaves AVX-512 unused on processors from other makers than Intel: there oneDNN
    takes half the time.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(packet, "default", None)


def check_dense(function: str, **parts: Any) -> None:
    """Refuse arguments that are not dense tensors, such as other libraries' arrays or sparse tensors; None (not given) passes."""
    for name, part in parts.items():
        if part is not None and not isinstance(part, Tensor):
            raise DTypeError(
                f"{function}: {name} is a {type(part).__name__}; pass a tensor, or call bitsparse.{function} for other arrays"
            )
        if part is not None and part.layout != torch.strided:
            raise DTypeError(
                f"{function}: {name} is a {part.layout} tensor, but a dense one is needed; pass {name}.to_dense()"
            )


def is_autocast(x: Tensor) -> bool:
    """Whether autocast converts tensors on the device of `x`; it never does so on meta."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def is_alone(x: Tensor) -> bool:
    """Whether `x` is a matrix and no compiler, torch.func transform or autocast is active."""
    looked_at = torch.compiler.is_compiling() or _are_functorch_transforms_active()
    return x.ndim == 2 and not looked_at and not is_autocast(x)


def _is_ordinary(*parts: Tensor | None) -> bool:
    return all(part is None or type(part) in (Tensor, torch.nn.Parameter) for part in parts)


def is_quicker(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether :func:`product` beats PyTorch's own product; it can only do so on a CPU."""
    return (
        x.is_cpu
        and x.numel() * weight.shape[0] >= _FEWEST_STEPS
        and all(part is None or (part.dtype == torch.float32 and part.is_contiguous()) for part in (x, weight, bias))
        and is_alone(x)
        and _is_ordinary(x, weight, bias)
        and _onednn() is not None
        and torch.backends.mkldnn.enabled
        and dual_level() < 0
        and nothing_recorded(torch)
        and not _is_torch_function_mode_enabled()
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``; on a CPU, matrices must be float32, and `weight` or its transpose contiguous."""
    quick = _onednn() if x.is_cpu else None
    # Grad mode is on here if a gradient of the gradient is asked for, and oneDNN's function has no gradient.
    if quick is None or torch.is_grad_enabled() or weight.shape[0] < _NARROWEST:
        return torch.nn.functional.linear(x, weight, bias)
    return quick(x, weight, bias, "none", [], "")


def product_in_rows(x: Tensor, weight: Tensor, width: int) -> Tensor:
    """``x @ weight.T`` in memory whose rows have `width` elements, of which those behind the product's columns are not set."""
    made = x.new_empty((x.shape[0], width))[:, : weight.shape[0]]
    return torch.mm(x, weight.t(), out=made)


def product_over_rows(one: Tensor, other: Tensor) -> Tensor:
    """``one.T @ other``, a small result that is a sum over many rows.

    On a CPU every thread sums a part of the rows. MKL would instead divide the result among threads, so that each reads all rows, and
    oneDNN would need a copy of the transpose.
    """
    rows, parts = len(one), torch.get_num_threads()
    if not one.is_cpu or torch.is_grad_enabled() or parts == 1 or rows < _TALLER * parts * one.shape[1]:
        return one.t() @ other
    rest = rows - rows % parts
    left, right = (part[:rest].reshape(parts, rest // parts, part.shape[1]) for part in (one, other))
    made = torch.bmm(left.transpose(1, 2), right).sum(dim=0)
    return made if rest == rows else made.addmm_(one[rest:].t(), other[rest:])
