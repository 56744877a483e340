"""What activations and dropout keep for their gradients, in few bits: signs and masks as bits, magnitudes as unbiased codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.overrides import TorchFunctionMode

from bitsparse import interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.ops.bits.pack import pack_bits
from bitsparse.ops.quantized.scaled import ScaledCodes
from bitsparse.torch.coded import Source, matrix_of, tensor_of, working
from bitsparse.torch.registration import once

_NAME = "bitsparse.torch"


def _bits(mask: Tensor) -> BitTensor:
    """A mask of a matrix, a bit each."""
    with working(mask) as array:
        return pack_bits(array, 1)


def _mask(bits: BitTensor, like: Tensor) -> Tensor:
    with working(like):
        return tensor_of(bits.toarray()).to(like.dtype).reshape(like.shape)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.bits = _bits(matrix_of(x) > 0)
        return x.relu()

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * _mask(ctx.bits, gradient)


class _Elu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int, source: Source) -> Tensor:
        y = nn.functional.elu(x)
        # The slope is 1, or 1 + y below 0: linear in what is rounded, so that it is right on average.
        ctx.codes = source.codes(matrix_of(y).clamp(max=0), bits)
        return y

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with working(gradient):
            below = tensor_of(ctx.codes.dequantize()).reshape(gradient.shape)
        return gradient * (1 + below), None, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        kept = torch.rand_like(matrix_of(x)) >= rate
        ctx.bits, ctx.scale = _bits(kept), 0.0 if rate >= 1 else 1 / (1 - rate)
        return x * (kept.to(x.dtype) * ctx.scale).reshape(x.shape)

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient * _mask(ctx.bits, gradient) * ctx.scale, None


class _ExactLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bits: int, source: Source) -> Tensor:
        ctx.codes = source.codes(x, bits)
        ctx.save_for_backward(weight)
        return x @ weight.t()

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        dx = gradient @ weight.to(gradient.dtype) if ctx.needs_input_grad[0] else None
        dw = None
        if ctx.needs_input_grad[1]:
            with working(gradient):
                dw = gradient.t() @ tensor_of(ctx.codes.dequantize()).to(gradient.dtype)
        return dx, dw, None, None


def exact_linear(x: Tensor, weight: Tensor, bits: int, source: Source) -> Tensor:
    """``x @ weight.T`` of float matrices in floats, which keeps codes of `x` for the gradient by the weight."""
    return _ExactLinear.apply(x, weight, bits, source)


class KeptInFewBits(TorchFunctionMode):
    """Within it relu, elu and dropout of matrices that need a gradient keep bits and codes; all else is as ever.

    So is what somebody else keeps, or computes again, by hooks on saved tensors: a checkpoint counts those, and codes and bits are none.
    """

    def __init__(self, bits: int, source: Callable[[Tensor], Source]) -> None:
        super().__init__()
        self._bits, self._source = bits, source

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        x = args[0] if args else given.get("input")
        if not (isinstance(x, Tensor) and x.ndim >= 2 and x.requires_grad and x.dtype == torch.float32):
            return function(*args, **given)
        if _top_saved_tensors_default_hooks(False) is not None:
            return function(*args, **given)
        if function in (torch.relu, Tensor.relu) or (
            function is nn.functional.relu and not _option(args, given, 1, "inplace", False)
        ):
            return _Relu.apply(x)
        if (
            function is nn.functional.elu
            and _option(args, given, 1, "alpha", 1.0) == 1
            and not _option(args, given, 2, "inplace", False)
        ):
            return _Elu.apply(x, self._bits, self._source(x))
        if function is nn.functional.dropout and not _option(args, given, 3, "inplace", False):
            rate = _option(args, given, 1, "p", 0.5)
            return _Dropout.apply(x, rate) if _option(args, given, 2, "training", True) and rate else x
        return function(*args, **given)


def _option(args: tuple[Any, ...], given: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else given.get(name, default)


def kept_bytes(net_output: Tensor) -> int:
    """Bytes that the functions behind a result keep for its gradient, parameters apart: tensors, codes and bits, each memory once."""
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
        parts += list(getattr(node, "__dict__", {}).values())
        parts = [inner for part in parts for inner in (part if isinstance(part, list) else [part])]
        for part in parts:
            if isinstance(part, ScaledCodes):
                part = part.codes
            if isinstance(part, BitTensor):
                array = interop.as_array(part.words, _NAME)[0]
                found[array.ctypes.data if hasattr(array, "ctypes") else array.data.ptr] = part.nbytes
            elif isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                found[part.data_ptr()] = part.nbytes
        todo += [other for other, _ in node.next_functions]
    return sum(found.values())
