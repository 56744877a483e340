"""Activations and dropout that keep little for their gradients: signs and masks as bits, magnitudes as unbiased codes of few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.overrides import TorchFunctionMode

from bitsparse import interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.ops.quantized.scaled import ScaledCodes
from bitsparse.torch.coded import LASTING, Keep, Source
from bitsparse.torch.dense import Rows, product_in_rows
from bitsparse.torch.kept_codes import KeptCodes, KeptElu, KeptRelu, PackedRows, packed_mask
from bitsparse.torch.registration import once, taken

_NAME = "bitsparse.torch"


class _Activation(torch.autograd.Function):
    """An activation whose gradient needs only what `keep` stores of its input and its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: Any, keep: Callable[[Tensor, Tensor], KeptRelu | KeptElu]) -> Tensor:
        y: Tensor = activation(x)
        ctx.kept = keep(x, y)
        return y

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return taken(ctx, "kept").times(gradient), None, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        ctx.scale, made = 0.0 if rate >= 1 else 1 / (1 - rate), torch.empty_like(x)

        def mask(rows: slice) -> Tensor:
            kept = torch.rand_like(x[rows]) >= rate
            torch.mul(x[rows], kept.to(x.dtype).mul_(ctx.scale), out=made[rows])
            return kept

        ctx.kept = packed_mask(x.shape, x.device, mask)
        return made

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        table = torch.arange(2, dtype=gradient.dtype, device=gradient.device) * ctx.scale
        return taken(ctx, "kept").times(gradient, table), None


class _ExactLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, keep: Keep, rows: Rows | None) -> Tensor:
        ctx.kept = keep(x)
        ctx.save_for_backward(weight)
        return x @ weight.t() if rows is None else product_in_rows(x, weight, rows)

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        kept = taken(ctx, "kept")
        dw = kept.over_rows(gradient) if ctx.needs_input_grad[1] else None
        del kept  # whose memory is free before the larger gradient takes some
        return gradient @ weight.to(gradient.dtype) if ctx.needs_input_grad[0] else None, dw, None, None


def exact_linear(x: Tensor, weight: Tensor, keep: Keep, rows: Rows | None = None) -> Tensor:
    """``x @ weight.T`` computed in floats, in `rows` if given; codes of `x` are kept for the gradient by the weight."""
    return _ExactLinear.apply(x, weight, keep, rows)


class Keeping(Source, Protocol):
    """A source of codes that also remembers what was kept of a tensor, so that several functions can share it."""

    def kept(self, x: Tensor) -> Any:
        """What was kept of a tensor before, an object with a method `codes`; else None."""

    def keep_kept(self, x: Tensor, made: Any) -> None:
        """Remember what is kept of a tensor."""


def kept_codes(x: Tensor, bits: int, source: Keeping) -> KeptCodes:
    """Codes of a matrix for gradients, shared by all that need them; codes of outputs of relu and elu also encode the slope."""
    found = source.kept(x)
    if found is None:
        found = KeptCodes(x, bits, source)
        source.keep_kept(x, found)
    made: KeptCodes = found.codes(x, bits, source)
    return made


class KeptInFewBits(TorchFunctionMode):
    """A mode in which relu, elu and dropout of matrices that need a gradient keep bits and codes; all other functions are unchanged.

    Under hooks on saved tensors nothing changes either: a checkpoint counts the saved tensors, and codes and bits are not among them.
    """

    #: Sums and attention need not be shown to this mode, so they take the ways that they take without it.
    leaves_operators = True

    def __init__(self, bits: int, source: Callable[[Tensor], Keeping]) -> None:
        super().__init__()
        self._bits, self._source = bits, source

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        x = args[0] if args else given.get("input")
        if not (isinstance(x, Tensor) and x.ndim >= 2 and x.requires_grad and x.dtype == torch.float32):
            return function(*args, **given)
        if not torch.is_grad_enabled() or _top_saved_tensors_default_hooks(False) is not None:
            return function(*args, **given)
        if function in (torch.relu, Tensor.relu) or (
            function is nn.functional.relu and not _option(args, given, 1, "inplace", False)
        ):
            return self._activated(x, torch.relu, lambda x, y: KeptRelu(x))
        if (
            function is nn.functional.elu
            and _option(args, given, 1, "alpha", 1.0) == 1
            and not _option(args, given, 2, "inplace", False)
        ):
            return self._activated(x, nn.functional.elu, lambda x, y: KeptElu(y, self._bits, self._source(x)))
        if function is nn.functional.dropout and not _option(args, given, 3, "inplace", False):
            rate = _option(args, given, 1, "p", 0.5)
            if 0 <= rate <= 1:  # PyTorch refuses any other
                return _Dropout.apply(x, rate) if _option(args, given, 2, "training", True) and rate else x
        return function(*args, **given)

    def _activated(self, x: Tensor, activation: Any, keep: Callable[[Tensor, Tensor], KeptRelu | KeptElu]) -> Tensor:
        made: Tensor = _Activation.apply(x, activation, keep)
        kept: Any = made.grad_fn
        self._source(x).keep_kept(made, kept.kept)
        return made


def _option(args: tuple[Any, ...], given: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else given.get(name, default)


def kept_bytes(net_output: Tensor, *apart: Tensor) -> int:
    """Bytes that the autograd graph of a result keeps for its gradient: tensors, codes and bits; shared memory counts once.

    Not counted are parameters, the tensors in `apart`, such as the data, and codes that outlive the step, such as those of the data.
    """
    found: dict[int, int] = {}
    seen: set[Any] = set()
    todo = [net_output.grad_fn]
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        parts: list[Any] = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        parts += list(getattr(node, "saved_tensors", ()) or ())
        parts += [part for name, part in getattr(node, "__dict__", {}).items() if name != LASTING]
        for part in parts:
            found.update(_memory(part))
        todo += [other for other, _ in node.next_functions]
    for data in apart:
        found.pop(data.data_ptr(), None)
    return sum(found.values())


def _memory(part: Any) -> dict[int, int]:
    """The memory of an object that a function keeps: addresses and bytes."""
    if isinstance(part, list):
        return {place: size for inner in part for place, size in _memory(inner).items()}
    if isinstance(part, (KeptCodes, KeptRelu, KeptElu)):
        part = part.packed
    if isinstance(part, PackedRows):
        part = part.words
    if isinstance(part, Tensor):
        return {} if isinstance(part, nn.Parameter) else {part.data_ptr(): part.nbytes}
    codes = part.codes if isinstance(part, ScaledCodes) else part
    if not isinstance(codes, BitTensor):
        return {}
    array = interop.as_array(codes.words, _NAME)[0]
    return {array.ctypes.data if hasattr(array, "ctypes") else array.data.ptr: codes.nbytes}
