"""Products of features with weights, on a CPU by the library that is quicker there."""

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

#: Products with fewer steps take no time, and those with fewer columns are no quicker.
_FEWEST_STEPS, _NARROWEST = 1 << 21, 8
#: By how much a thread's rows exceed those of the result that it makes of them, so that adding up the results takes no time.
_TALLER = 4


@functools.cache
def _onednn() -> Callable[..., Tensor] | None:
    """The product of float32 matrices of oneDNN, which PyTorch's compiler uses; None in builds without it.

    PyTorch itself multiplies float32 by MKL, which leaves AVX-512 unused on processors that are not Intel's: there oneDNN takes half the
    time.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(packet, "default", None)


def check_dense(function: str, **parts: Any) -> None:
    """Refuse what is no dense tensor: arrays of other libraries, sparse tensors; None stands for what was not given."""
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
    """Whether autocast converts tensors that are where `x` is, which it never does without memory."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def is_alone(x: Tensor) -> bool:
    """Whether it is a matrix, and neither a compiler nor a transform of torch.func nor autocast looks on."""
    looked_at = torch.compiler.is_compiling() or _are_functorch_transforms_active()
    return x.ndim == 2 and not looked_at and not is_autocast(x)


def _is_ordinary(*parts: Tensor | None) -> bool:
    return all(part is None or type(part) in (Tensor, torch.nn.Parameter) for part in parts)


def is_quicker(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether :func:`product` is quicker than PyTorch's own on a CPU, and only there."""
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
    """``x @ weight.T + bias``; on a CPU matrices are float32, and `weight` or its transpose has no gaps."""
    quick = _onednn() if x.is_cpu else None
    # A gradient is recorded where that of a gradient is asked for, and this function of oneDNN has none.
    if quick is None or torch.is_grad_enabled() or weight.shape[0] < _NARROWEST:
        return torch.nn.functional.linear(x, weight, bias)
    return quick(x, weight, bias, "none", [], "")


def product_over_rows(one: Tensor, other: Tensor) -> Tensor:
    """``one.T @ other``, a small result that is a sum over many rows.

    On a CPU every thread sums a part of the rows. MKL shares out the result, for which all of them read everything, and oneDNN wants the
    transpose copied.
    """
    rows, parts = len(one), torch.get_num_threads()
    if not one.is_cpu or torch.is_grad_enabled() or parts == 1 or rows < _TALLER * parts * one.shape[1]:
        return one.t() @ other
    rest = rows - rows % parts
    left, right = (part[:rest].reshape(parts, rest // parts, part.shape[1]) for part in (one, other))
    made = torch.bmm(left.transpose(1, 2), right).sum(dim=0)
    return made if rest == rows else made.addmm_(one[rest:].t(), other[rest:])
