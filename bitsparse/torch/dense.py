"""Products of features with weights.

On a CPU, whichever of oneDNN and PyTorch's own library is faster computes them; on a GPU, our own kernels do where those are faster.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_torch_function_mode_enabled

from bitsparse import backends
from bitsparse.errors import DTypeError
from bitsparse.interop.tensors import dual_level, nothing_recorded
from bitsparse.torch.operators import column_sums, on_cupy, permitted
from bitsparse.torch.registration import is_plain, on_gpu

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


def _takes_floats(*parts: Tensor) -> bool:
    """Whether our kernels on a GPU can take these matrices of float32.

    PyTorch computes what may be differentiated again, what it may compute in TF32, and what modes or profilers watch.
    """
    if torch.is_grad_enabled() or not is_plain(*parts) or permitted(torch.float32) != "fp32":
        return False
    return all(part.dtype == torch.float32 and part.device == parts[0].device for part in parts)


def _quicker_floats(x: Tensor, weight: Tensor) -> Any:
    """The kernels of products on a GPU if they are quicker than cuBLAS for these sizes, else None."""
    if not x.is_cuda or x.ndim != 2 or x.stride(1) != 1 or weight.ndim != 2:
        return None
    floats = backends.family("cuda", "matmul.floats")
    return floats if floats.is_quicker(*x.shape, weight.shape[0], x.device.index) else None


def _is_quick(x: Tensor, weight: Tensor, *others: Tensor) -> Any:
    """The kernels of products on a GPU if they can take these matrices and are quicker than cuBLAS, else None."""
    floats = _quicker_floats(x, weight)
    return floats if floats is not None and _takes_floats(x, weight, *others) else None


@on_gpu
def _multiply(
    floats: Any, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None, add: bool = False
) -> None:
    def call(one: Any, other: Any, into: Any, behind: Any = None) -> None:
        floats.product(one, other, into, behind, added=add)

    on_cupy(call, x, weight, out, None if bias is None else bias.contiguous())


def is_quicker_on_gpu(x: Tensor, weight: Tensor) -> bool:
    """Whether :func:`product` beats PyTorch's own product on a GPU."""
    if _quicker_floats(x, weight) is None or not is_alone(x):
        return False
    with torch.no_grad():
        return _takes_floats(x, weight)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``; on a CPU, matrices must be float32, and `weight` or its transpose contiguous."""
    quick = _onednn() if x.is_cpu else None
    # Grad mode is on here if a gradient of the gradient is asked for, and oneDNN's function has no gradient.
    if quick is not None and not torch.is_grad_enabled() and weight.shape[0] >= _NARROWEST:
        return quick(x, weight, bias, "none", [], "")
    floats = _is_quick(x, weight) if bias is None else _is_quick(x, weight, bias)
    if floats is None:
        return torch.nn.functional.linear(x, weight, bias)
    out = x.new_empty((x.shape[0], weight.shape[0]))
    _multiply(floats, x, weight, out, bias)
    return out


def product_in_rows(x: Tensor, weight: Tensor, width: int) -> Tensor:
    """``x @ weight.T`` in memory whose rows have `width` elements, of which those behind the product's columns are not set."""
    made = x.new_empty((x.shape[0], width))[:, : weight.shape[0]]
    floats = _is_quick(x, weight)
    if floats is None:
        return torch.mm(x, weight.t(), out=made)
    _multiply(floats, x, weight, made)
    return made


def add_product(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add ``x @ weight.T`` to `out`, in its memory."""
    floats = _is_quick(x, weight, out) if out.stride(1) == 1 else None
    if floats is None:
        return out.addmm_(x, weight.t())
    _multiply(floats, x, weight, out, None, True)
    return out


def product_over_rows(one: Tensor, other: Tensor) -> Tensor:
    """``one.T @ other``, a small result that is a sum over many rows.

    On a CPU every thread sums a part of the rows. MKL would instead divide the result among threads, so that each reads all rows, and
    oneDNN would need a copy of the transpose.
    """
    rows, parts = len(one), torch.get_num_threads()
    if one.is_cuda:
        return _over_rows(one, other, False)[0]
    if not one.is_cpu or torch.is_grad_enabled() or parts == 1 or rows < _TALLER * parts * one.shape[1]:
        return one.t() @ other
    rest = rows - rows % parts
    left, right = (part[:rest].reshape(parts, rest // parts, part.shape[1]) for part in (one, other))
    made = torch.bmm(left.transpose(1, 2), right).sum(dim=0)
    return made if rest == rows else made.addmm_(one[rest:].t(), other[rest:])


def product_and_sums(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`product_over_rows` and the sums of the columns of `one`."""
    if one.is_cuda:
        made, sums = _over_rows(one, other, True)
        return made, column_sums(one) if sums is None else sums
    return product_over_rows(one, other), column_sums(one)


def _over_rows(one: Tensor, other: Tensor, summed: bool) -> tuple[Tensor, Tensor | None]:
    """The product on a GPU, and the sums if `summed` and they came with it."""
    floats, m, n = backends.family("cuda", "matmul.floats"), one.shape[1], other.shape[1]
    lies = one.stride(1) == other.stride(1) == 1
    if not (lies and floats.is_quicker_over_rows(len(one), m, n, one.device.index) and _takes_floats(one, other)):
        return one.t() @ other, None
    if floats.is_better_exchanged(m, n):
        return _over_rows_of(floats, other, one, None).t().contiguous(), None
    sums = one.new_empty(m) if summed else None
    return _over_rows_of(floats, one, other, sums), sums


@on_gpu
def _over_rows_of(floats: Any, one: Tensor, other: Tensor, sums: Tensor | None) -> Tensor:
    out = one.new_empty((one.shape[1], other.shape[1]))
    on_cupy(floats.product_over_rows, one, other, out, sums)
    return out
