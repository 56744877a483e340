"""Registration of operators with PyTorch: their implementation on each device, their shapes for compilers, and their gradients."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _AutoDispatchBelowAutograd, _is_torch_function_mode_enabled
from torch._C._autograd import _get_current_graph_task_keep_graph, _profiler_enabled
from torch.overrides import _get_current_function_mode_stack

from bitsparse import interop
from bitsparse.interop.tensors import dual_level, nothing_recorded
from bitsparse.torch.pattern import Pattern

#: Classes of tensors that do not intercept calls.
_ORDINARY = (Tensor, torch.nn.Parameter)
_LIBRARY = torch.library.Library("bitsparse", "DEF")


def _allocate(size: int, device: int) -> int:
    return int(torch.cuda.caching_allocator_alloc(size, device, interop.stream_for_torch(device)))


def _release(pointer: int, device: int) -> None:
    torch.cuda.caching_allocator_delete(pointer)


@functools.cache
def _allocator() -> Any:
    """An allocator that gives CuPy memory from PyTorch's pool, which can also serve a step that is being captured."""
    return interop.require_cupy("bitsparse.torch").cuda.PythonFunctionAllocator(_allocate, _release)


def on_gpu(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that all memory that it allocates on a GPU comes from PyTorch's pool."""

    @functools.wraps(compute)
    def call(*arguments: Any) -> Any:
        with interop.lent_memory(_allocator().malloc):
            return compute(*arguments)

    return call


@functools.cache
def _has_cupy() -> bool:
    return importlib.util.find_spec("cupy") is not None


def torch_memory() -> contextlib.AbstractContextManager[Any]:
    """Within this context CuPy allocates from PyTorch's pool, if PyTorch uses a GPU: memory that one frees, the other can reuse."""
    if not torch.cuda.is_initialized() or not _has_cupy():
        return contextlib.nullcontext()
    return interop.lent_memory(_allocator().malloc)


class _Refused(torch.autograd.Function):
    """Results that depend on all their inputs, but whose differentiation raises an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, count: int, *parts: Any) -> tuple[Any, ...]:
        return parts[:count]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            f"{ctx.name}: its gradient cannot be differentiated again; sums and means of bitsparse.torch.spmm can"
        )


def once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a gradient function so that differentiating its results raises an error that names the function `name`.

    PyTorch's own `once_differentiable` checks the incoming gradient but not the saved tensors: if the former is a constant, as for a sum,
    it silently treats the result as a constant.
    """

    def marked(gradient: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(gradient)
        def call(ctx: Any, *given: Any) -> Any:
            with torch.no_grad():
                made = gradient(ctx, *given)
            if not torch.is_grad_enabled():
                return made
            results = made if isinstance(made, tuple) else (made,)
            # Saved codes are no tensors, hence an extra input that needs a gradient: results must always depend on one.
            of = (*given, *ctx.saved_tensors, torch.empty(0, requires_grad=True))
            found = _Refused.apply(name, len(results), *results, *of)
            return found if isinstance(made, tuple) else found[0]

        return call

    return marked


#: What a context holds in place of what :func:`taken` has let go of.
_GONE = object()


def taken(ctx: Any, name: str) -> Any:
    """What the context of a gradient keeps under a name.

    As PyTorch lets go of saved tensors once a gradient is computed, the context forgets it, unless the graph stays for another pass:
    contexts live as long as the loss, and memory of few bits should not wait for that.
    """
    found = getattr(ctx, name)
    if found is _GONE:
        raise RuntimeError(
            "bitsparse.torch: trying to backward through the graph a second time, but what its gradients need was freed the first time; "
            "pass retain_graph=True then"
        )
    if not _get_current_graph_task_keep_graph():
        setattr(ctx, name, _GONE)
    return found


class Operator(NamedTuple):
    """The name of an operator over a pattern, and its implementation on each kind of device, ``compute(pattern, *others)``."""

    name: str
    on_cpu: Callable[..., Any]
    on_gpu: Callable[..., Any]


#: A pattern in a schema of the dispatcher: six tensors.
_PATTERN = "Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor order, Tensor t_order"


def _with_pattern(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt a function of a pattern and others to the dispatcher, which passes a pattern's tensors one by one."""
    return lambda *parts: function(Pattern(*parts[:6]), *parts[6:])


def register(schema: str, on_cpu: Callable[..., Any], on_gpu: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register an operator without a gradient: its implementations, and `fake`, which gives compilers the shape of the result."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, on_cpu, "CPU")
    _LIBRARY.impl(name, on_gpu, "CUDA")
    torch.library.register_fake(f"bitsparse::{name}", fake, lib=_LIBRARY)


def operator(name: str, schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Operator:
    """Register an operator over a pattern; `schema` continues after the pattern, as in ``"Tensor x) -> Tensor"``."""
    made = Operator(name, compute, on_gpu(compute))
    functions = map(_with_pattern, (made.on_cpu, made.on_gpu, fake))
    register(f"{name}({_PATTERN}, {schema}", *functions)
    return made


def straight(of: Operator) -> Callable[..., Any]:
    """A faster call of an operator without a gradient: it skips PyTorch's dispatcher if nothing intercepts the call."""
    packet = getattr(torch.ops.bitsparse, of.name)

    def call(pattern: Pattern, *arguments: Any) -> Any:
        looked_at = torch.compiler.is_compiling() or _are_functorch_transforms_active()
        compute = None if looked_at else _plain(of, arguments)
        return packet(*pattern, *arguments) if compute is None else compute(pattern, *arguments)

    return call


class Recorded(NamedTuple):
    """The input of an operator's gradient: the pattern, saved tensors, which arguments need a gradient, and constant arguments.

    The saved tensors include the results if these are kept; the constants are the arguments after the tensors.
    """

    pattern: Pattern
    saved_tensors: tuple[Any, ...]
    needs: tuple[bool, ...]
    constants: tuple[Any, ...]


def differentiable(
    of: Operator,
    gradient: Callable[..., Any],
    vmap: Callable[..., Any] | None = None,
    keeps_result: bool = False,
    read_by: Mapping[int, int] = MappingProxyType({}),
) -> Callable[..., Any]:
    """Give an operator its gradient, ``gradient(recorded, by_result)`` for the arguments after the pattern; return a fast way to call it.

    `read_by` maps an argument to the only other argument whose gradient reads it. If that gradient is not needed, an empty tensor with the
    same dtype and number of axes is kept in its place.

    Transforms of torch.func handle autograd functions but not operators, so they get a function. It costs several times as much per call,
    hence all other calls go straight to the implementation. Only the first result has a gradient.
    """
    name = of.name
    packet = getattr(torch.ops.bitsparse, name)

    def below(pattern: Pattern, *arguments: Any) -> Any:
        with _AutoDispatchBelowAutograd():
            return packet.default(*pattern, *arguments)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any, needs: tuple[bool, ...] | None = None) -> None:
        tensors = [part for part in inputs if part is None or isinstance(part, Tensor)]
        for place, reader in read_by.items():
            part = tensors[place]
            if part is not None and needs is not None and not needs[reader]:
                tensors[place] = part.new_empty((0,) * part.ndim)
        results = (output,) if isinstance(output, Tensor) else output
        ctx.save_for_backward(*tensors, *(results if keeps_result else ()))
        ctx.mark_non_differentiable(*results[1:])
        ctx.set_materialize_grads(len(results) == 1)  # no zeros for the others, which have no gradient
        ctx.constants = inputs[len(tensors) :]

    def forward(ctx: Any, run: Callable[..., Any], pattern: Pattern, *arguments: Any) -> Any:
        made = run(pattern, *arguments)
        keep(ctx, arguments, made, ctx.needs_input_grad[2:])
        ctx.pattern = pattern
        return made

    def gradients(recorded: Recorded, by_results: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return (None,) * len(recorded.needs) if by_results[0] is None else gradient(recorded, *by_results)

    def backward(ctx: Any, *by_results: Tensor) -> tuple[Tensor | None, ...]:
        recorded = Recorded(ctx.pattern, ctx.saved_tensors, ctx.needs_input_grad[2:], ctx.constants)
        return None, None, *gradients(recorded, by_results)

    def transformed_backward(ctx: Any, *by_results: Tensor) -> tuple[Tensor | None, ...]:
        pattern, saved = Pattern(*ctx.saved_tensors[:6]), ctx.saved_tensors[6:]
        recorded = Recorded(pattern, saved, ctx.needs_input_grad[6:], ctx.constants)
        return *(None,) * 6, *gradients(recorded, by_results)

    def function(**members: Any) -> Any:
        made: Any = type(name, (torch.autograd.Function,), {key: staticmethod(part) for key, part in members.items()})
        return made.apply

    record, mapped = function(forward=forward, backward=backward), {} if vmap is None else {"vmap": vmap}
    transform = function(forward=_with_pattern(below), setup_context=keep, backward=transformed_backward, **mapped)

    def autograd(pattern: Pattern, *arguments: Any) -> Any:
        return record(below, pattern, *arguments) if _is_recorded(arguments) else below(pattern, *arguments)

    _LIBRARY.impl(name, _with_pattern(autograd), "Autograd")

    def call(pattern: Pattern, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return packet(*pattern, *arguments)
        if _are_functorch_transforms_active():
            return transform(*pattern, *arguments)
        compute = _plain(of, arguments)
        if compute is None:
            return packet(*pattern, *arguments)
        if _is_recorded(arguments):
            return record(compute, pattern, *arguments)
        return compute(pattern, *arguments)

    return call


def _plain(of: Operator, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """The implementation for ordinary tensors of the CPU or of a GPU if no mode or profiler intercepts the call; otherwise None.

    In these cases PyTorch's dispatcher would only cost time.
    """
    on_cpu = on_gpu = False
    for part in arguments:
        if isinstance(part, Tensor):
            if part.__class__ not in _ORDINARY:
                return None
            on_cpu, on_gpu = on_cpu or part.is_cpu, on_gpu or part.is_cuda
    if on_cpu == on_gpu or not nothing_recorded(torch) or _is_intercepted() or _profiler_enabled():
        return None
    return of.on_cpu if on_cpu else of.on_gpu


def is_plain(*parts: Tensor) -> bool:
    """Whether these are ordinary tensors without tangents, and no mode or profiler is active."""
    looked_at = not nothing_recorded(torch) or _is_intercepted() or _profiler_enabled()
    return not looked_at and all(part.__class__ in _ORDINARY for part in parts)


def _is_intercepted() -> bool:
    """Whether a mode may want to see the calls of operators; modes of this library, marked by `leaves_operators`, do not."""
    if not _is_torch_function_mode_enabled():
        return False
    return not all(getattr(mode, "leaves_operators", False) for mode in _get_current_function_mode_stack())


def _is_recorded(arguments: tuple[Any, ...]) -> bool:
    """Whether a gradient is recorded for one of these; in forward mode also True, so that PyTorch refuses it: there is no rule."""
    if dual_level() >= 0:
        return True
    return torch.is_grad_enabled() and any(isinstance(part, Tensor) and part.requires_grad for part in arguments)
