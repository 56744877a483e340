"""How an operator is registered with PyTorch: on which devices it computes, what a compiler is told, and how it is differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _AutoDispatchBelowAutograd, _is_torch_function_mode_enabled
from torch._C._autograd import _profiler_enabled

from bitsparse import interop
from bitsparse.interop.tensors import dual_level, nothing_recorded
from bitsparse.torch.pattern import Pattern

#: Classes of tensors that do nothing of their own in a call.
_ORDINARY = (Tensor, torch.nn.Parameter)
_LIBRARY = torch.library.Library("bitsparse", "DEF")


def _allocate(size: int, device: int) -> int:
    return int(torch.cuda.caching_allocator_alloc(size, device, torch.cuda.current_stream(device)))


def _release(pointer: int, device: int) -> None:
    torch.cuda.caching_allocator_delete(pointer)


@functools.cache
def _allocator() -> Any:
    """PyTorch's memory for CuPy: one pool, which also knows how to serve a step that is being captured."""
    return interop.require_cupy("bitsparse.torch").cuda.PythonFunctionAllocator(_allocate, _release)


def _on_gpu(compute: Callable[..., Any]) -> Callable[..., Any]:
    """What computes, with PyTorch's memory for all that it allocates."""

    @functools.wraps(compute)
    def call(*arguments: Any) -> Any:
        with interop.require_cupy("bitsparse.torch").cuda.using_allocator(_allocator().malloc):
            return compute(*arguments)

    return call


def operator(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """Register an operator without a gradient: how it computes, and what a compiler is told of the result. Its name, and how."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, compute, "CPU")
    _LIBRARY.impl(name, _on_gpu(compute), "CUDA")
    torch.library.register_fake(f"bitsparse::{name}", fake, lib=_LIBRARY)
    return name, compute


def differentiable(
    of: tuple[str, Callable[..., Any]],
    gradient: Callable[..., Any],
    vmap: Callable[..., Any] | None = None,
    keeps_result: bool = False,
) -> Callable[..., Any]:
    """Give an operator its gradient; what to call in its place.

    While a transform of torch.func is active a function is called, as these look for functions and not for operators; what they ask of
    it costs several times what a call on the CPU costs otherwise, which goes straight to what computes. The gradient finds in its context
    ``saved_tensors``, also the results if these are kept, of which only the first has a gradient, and ``constants``, the other arguments.
    """
    name, compute = of
    packet = getattr(torch.ops.bitsparse, name)

    def below(*arguments: Any) -> Any:
        with _AutoDispatchBelowAutograd():
            return packet.default(*arguments)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors = [part for part in inputs if part is None or isinstance(part, Tensor)]
        results = (output,) if isinstance(output, Tensor) else output
        ctx.save_for_backward(*tensors, *(results if keeps_result else ()))
        ctx.mark_non_differentiable(*results[1:])
        ctx.constants = inputs[len(tensors) :]

    def forward(ctx: Any, run: Callable[..., Any], pattern: Pattern, *arguments: Any) -> Any:
        made = run(*pattern, *arguments)
        keep(ctx, arguments, made)
        ctx.pattern = pattern
        return made

    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        needs, saved = (*(False,) * 6, *ctx.needs_input_grad[2:]), (*ctx.pattern, *ctx.saved_tensors)
        return None, None, *gradient(_Recorded(saved, needs, ctx.constants), *gradients)[6:]

    def function(**members: Any) -> Any:
        made: Any = type(name, (torch.autograd.Function,), {key: staticmethod(part) for key, part in members.items()})
        return made.apply

    record, mapped = function(forward=forward, backward=backward), {} if vmap is None else {"vmap": vmap}
    transform = function(forward=below, setup_context=keep, backward=gradient, **mapped)

    def autograd(*arguments: Any) -> Any:
        if _is_recorded(arguments[6:]):
            return record(below, Pattern(*arguments[:6]), *arguments[6:])
        return below(*arguments)

    _LIBRARY.impl(name, autograd, "Autograd")

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return packet(*arguments)
        if _are_functorch_transforms_active():
            return transform(*arguments)
        if not _is_plain(arguments[6:]):
            return packet(*arguments)
        if _is_recorded(arguments[6:]):
            return record(compute, Pattern(*arguments[:6]), *arguments[6:])
        return compute(*arguments)

    return call


class _Recorded(NamedTuple):
    """The context of a gradient whose pattern is not among the tensors that PyTorch keeps."""

    saved_tensors: tuple[Tensor | None, ...]
    needs_input_grad: tuple[bool, ...]
    constants: tuple[Any, ...]


def _is_plain(arguments: tuple[Any, ...]) -> bool:
    """Whether these are ordinary tensors of the CPU and nobody looks on, so that asking PyTorch's dispatcher would only take time."""
    for part in arguments:
        if isinstance(part, Tensor) and not (part.is_cpu and part.__class__ in _ORDINARY):
            return False
    return nothing_recorded(torch) and not (_is_torch_function_mode_enabled() or _profiler_enabled())


def _is_recorded(arguments: tuple[Any, ...]) -> bool:
    """Whether somebody differentiates by one of these; forward mode, for which there is no rule, is refused by PyTorch."""
    if dual_level() >= 0:
        return True
    return torch.is_grad_enabled() and any(isinstance(part, Tensor) and part.requires_grad for part in arguments)
