"""Products of features with weights.

On a CPU, whichever of oneDNN and PyTorch's own library is faster computes them; on a GPU, our own kernels do where those are faster.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Second(NamedTuple):
    """Another pair of factors, whose product is added."""

    x: Tensor
    weight: Tensor


class Rows(NamedTuple):
    """Where a product lies: in rows of `width` elements, the last of which are not set, each multiplied by its `scale` if given."""

    width: int
    scale: Tensor | None = None


@on_gpu
def _multiply(
    floats: Any, out: Tensor, parts: dict[str, Tensor | None], relu: bool = False, added: bool = False
) -> None:
    """Call the kernels with parts by name: `x` and `weight`, those of a second pair as `x2` and `weight2`, `bias` and `scale`."""
    names = [name for name, part in parts.items() if part is not None]

    def call(into: Any, *arrays: Any) -> None:
        given = dict(zip(names, arrays, strict=True))
        second = (given.pop("x2"), given.pop("weight2")) if "x2" in given else None
        floats.product(out=into, **given, second=second, relu=relu, added=added)

    on_cupy(call, out, *(parts[name] for name in names))


def is_quicker_on_gpu(x: Tensor, weight: Tensor) -> bool:
    """Whether :func:`product` beats PyTorch's own product on a GPU."""
    if _quicker_floats(x, weight) is None or not is_alone(x):
        return False
    with torch.no_grad():
        return _takes_floats(x, weight)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False, second: Second | None = None
) -> Tensor:
    """``x @ weight.T``, plus the product of a second pair, plus a bias, and through relu if asked for.

    On a CPU, matrices must be float32, and `weight` or its transpose contiguous.
    """
    quick = _onednn() if x.is_cpu else None
    # Grad mode is on here if a gradient of the gradient is asked for, and oneDNN's function has no gradient.
    if quick is not None and not torch.is_grad_enabled() and weight.shape[0] >= _NARROWEST and second is None:
        made = quick(x, weight, bias, "none", [], "")
        return made.relu_() if relu else made
    others = [part for part in (bias, *(second or ())) if part is not None]
    lies = second is None or second.x.stride(1) == 1  # not so with an expanded gradient
    floats = _is_quick(x, weight, *others) if lies else None
    if floats is None:
        made = torch.nn.functional.linear(x, weight, bias)
        if second is not None:
            made = torch.addmm(made, second.x, second.weight.t())
        return made.relu() if relu else made
    out = x.new_empty((x.shape[0], weight.shape[0]))
    parts = {"x": x, "weight": weight, "bias": None if bias is None else bias.contiguous()}
    if second is not None:
        parts |= {"x2": second.x, "weight2": second.weight}
    _multiply(floats, out, parts, relu)
    return out


def product_in_rows(x: Tensor, weight: Tensor, rows: Rows) -> Tensor:
    """``x @ weight.T`` in memory that lies as `rows` says."""
    made = x.new_empty((x.shape[0], rows.width))[:, : weight.shape[0]]
    floats = _is_quick(x, weight)
    if floats is not None:
        _multiply(floats, made, {"x": x, "weight": weight, "scale": rows.scale})
        return made
    torch.mm(x, weight.t(), out=made)
    return made if rows.scale is None else made.mul_(rows.scale[:, None])


def add_product(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add ``x @ weight.T`` to `out`, in its memory."""
    floats = _is_quick(x, weight, out) if out.stride(1) == 1 else None
    if floats is None:
        return out.addmm_(x, weight.t())
    _multiply(floats, out, {"x": x, "weight": weight}, False, True)
    return out


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return behind_relu(gradient, *ctx.saved_tensors)


def clipped(y: Tensor) -> Tensor:
    """Make the gradient of relu follow for what relu was applied to within another function, whose own gradient does not know of it.

    As a function of its own, it lets go of the result and of its gradient before the other function takes memory for its gradient.
    """
    made: Tensor = _Clipped.apply(y)
    return made


def behind_relu(gradient: Tensor, y: Tensor) -> Tensor:
    """The gradient by what relu was applied to, of its result `y` and the gradient by that."""
    made: Tensor = torch.ops.aten.threshold_backward(gradient, y, 0)
    return made


def product_over_rows(one: Tensor, other: Tensor, relu: Tensor | None = None) -> Tensor:
    """``one.T @ other``, a small result that is a sum over many rows; with the result of a `relu`, of :func:`behind_relu` of `one`.

    On a CPU every thread sums a part of the rows. MKL would instead divide the result among threads, so that each reads all rows, and
    oneDNN would need a copy of the transpose.
    """
    rows, parts = len(one), torch.get_num_threads()
    if one.is_cuda:
        return _over_rows(one, other, False, relu)[0]
    one = one if relu is None else behind_relu(one, relu)
    if not one.is_cpu or torch.is_grad_enabled() or parts == 1 or rows < _TALLER * parts * one.shape[1]:
        return one.t() @ other
    rest = rows - rows % parts
    left, right = (part[:rest].reshape(parts, rest // parts, part.shape[1]) for part in (one, other))
    made = torch.bmm(left.transpose(1, 2), right).sum(dim=0)
    return made if rest == rows else made.addmm_(one[rest:].t(), other[rest:])


def product_and_sums(one: Tensor, other: Tensor, relu: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """:func:`product_over_rows` and the sums of the columns of `one`."""
    if one.is_cuda:
        made, sums = _over_rows(one, other, True, relu)
        return made, column_sums(one) if sums is None else sums
    one = one if relu is None else behind_relu(one, relu)
    return product_over_rows(one, other), column_sums(one)


def _over_rows(one: Tensor, other: Tensor, summed: bool, relu: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The product on a GPU, and the sums if `summed` and they came with it."""
    floats, m, n = backends.family("cuda", "matmul.floats"), one.shape[1], other.shape[1]
    lies = one.stride(1) == other.stride(1) == 1
    if not (lies and floats.is_quicker_over_rows(len(one), m, n, one.device.index) and _takes_floats(one, other)):
        one = one if relu is None else behind_relu(one, relu)
        return one.t() @ other, column_sums(one) if summed and relu is not None else None
    if relu is None and floats.is_better_exchanged(m, n):
        return _over_rows_of(floats, other, one, None, None).t().contiguous(), None
    sums = one.new_empty(m) if summed else None
    return _over_rows_of(floats, one, other, sums, relu), sums


@on_gpu
def _over_rows_of(floats: Any, one: Tensor, other: Tensor, sums: Tensor | None, relu: Tensor | None) -> Tensor:
    out = one.new_empty((one.shape[1], other.shape[1]))
    names = [name for name, part in (("sums", sums), ("mask", relu)) if part is not None]

    def call(a: Any, b: Any, into: Any, *others: Any) -> None:
        floats.product_over_rows(a, b, into, **dict(zip(names, others, strict=True)))

    on_cupy(call, one, other, out, sums, relu)
    return out
