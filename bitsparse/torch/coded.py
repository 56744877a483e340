"""PyTorch functions that compute products and sums in integers of a few bits: tensors are floats, but codes are multiplied and kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bitsparse import interop
from bitsparse.backends.row_pieces import RowPieces
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized.product import product_with_codes
from bitsparse.ops.quantized.scaled import ScaledCodes, scaled_codes
from bitsparse.ops.quantized.spmm import Own, sum_of_codes
from bitsparse.ops.quantized.vjp import product_of_codes, product_over_rows
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import once, taken, torch_memory

_NAME = "bitsparse.torch"
#: The attribute in which an autograd context keeps codes that outlive the step, such as those of the data; others are in ``x``.
LASTING = "lasting"


class Source(Protocol):
    """What supplies codes: it remembers tensors that were quantised already, and says how to quantise others."""

    def codes(
        self,
        x: Tensor,
        bits: int,
        granularity: str = "tensor",
        fixed: bool = False,
        factors: Tensor | None = None,
    ) -> ScaledCodes:
        """The codes of a matrix: known ones, or new ones. A matrix that never changes (`fixed`) is rounded to nearest.

        With `factors`, they are the codes of the rows times these factors (float32), and new unless the matrix is said never to change.
        """

    def known(self, x: Tensor, bits: int) -> ScaledCodes | None:
        """The codes that a matrix has already, or None."""

    def is_data(self, x: Tensor) -> bool:
        """Whether a tensor is data, whose codes outlive the step: it needs no gradient, and an earlier step had codes of it as well."""

    def coding(self, x: Tensor, bits: int) -> Coding:
        """How to quantise a matrix that has no codes yet, with random draws of its own."""

    def keep(self, x: Tensor, bits: int, made: ScaledCodes) -> None:
        """Remember the codes of `x` that a product made."""

    def largest(self, x: Tensor) -> Any:
        """The largest magnitude of a tensor (float32, one element) if the kernel that made the tensor found it, else None."""

    def keep_largest(self, x: Tensor, found: Any) -> None:
        """Remember the largest magnitude of a tensor that has just been made."""


@contextmanager
def working(x: Tensor) -> Iterator[Any]:
    """Work on the device and stream of a tensor, allocate from PyTorch's memory, and yield the array over the tensor's memory."""
    array, _ = interop.as_array(x.detach().contiguous(), _NAME)
    memory: AbstractContextManager[Any] = torch_memory() if x.is_cuda else nullcontext()
    with memory, interop.working_on(interop.device_of(array), interop.TORCH):
        yield array


def coded(
    x: Tensor, coding: Coding, granularity: str, factors: Tensor | None = None, largest: Any = None
) -> ScaledCodes:
    """The codes of a matrix, or of its rows times `factors`; `largest` is the largest magnitude of `x`, if it is known."""
    with working(x) as array:
        by_rows = None if factors is None else array_of(factors)
        return scaled_codes(_NAME, "x", array, interop.TORCH, coding, granularity, by_rows, largest)


def array_of(x: Tensor) -> Any:
    """A contiguous array over a tensor's memory, or over a copy if the tensor is not contiguous."""
    return interop.as_array(x.detach().contiguous(), _NAME)[0]


def tensor_of(array: Any) -> Tensor:
    """A tensor over the memory of an array of NumPy or CuPy."""
    return array if isinstance(array, Tensor) else interop.from_array(array, interop.TORCH, _NAME)


class Kept(Protocol):
    """A float matrix that is kept for a gradient in few bits."""

    def over_rows(self, gradient: Tensor) -> Tensor:
        """``gradient.T @ x``, for the kept matrix x."""

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Slices of rows with their values, piece by piece."""

    def in_pieces(self, columns: int) -> RowPieces:
        """The values as a matrix with `columns` columns, in pieces of rows."""


#: A function that keeps a matrix in few bits for a gradient.
Keep = Callable[[Tensor], Kept]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bits: int,
        source: Source,
        bias: Tensor | None,
        out: Tensor | None,
        keep: Keep | None,
    ) -> Tensor:
        w = source.codes(weight, bits).codes.T
        x_codes = source.known(x, bits)
        # The codes of data stay until the next step anyway, so there is no need to keep fewer bits as well.
        lasting = source.is_data(x)
        ctx.kept = None if keep is None or lasting else keep(x)
        with working(x) as array:
            vector, onto = (None if part is None else array_of(part) for part in (bias, out))
            if x_codes is None:
                coding = source.coding(x, bits)
                made, codes, largest = product_with_codes(_NAME, array, w, coding, vector, onto, source.largest(x))
                x_codes = ScaledCodes(codes)
                source.keep(x, bits, x_codes)
            else:
                made, largest = product_of_codes(_NAME, x_codes.codes, w, vector, onto), None
            result = tensor_of(made) if out is None else out
            if largest is not None:
                source.keep_largest(result, largest)
        if out is not None:
            ctx.mark_dirty(out)
        if ctx.kept is None:
            setattr(ctx, LASTING if lasting else "x", x_codes.codes)
        ctx.w, ctx.bits, ctx.source = w, bits, source
        ctx.dtypes = x.dtype, weight.dtype
        return result

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_x, by_weight, _, _, by_bias, by_out, _ = ctx.needs_input_grad
        dx = dw = None
        kept, w = taken(ctx, "kept"), taken(ctx, "w")
        if by_x or (by_weight and kept is None):
            g = ctx.source.codes(gradient, ctx.bits).codes
            with working(gradient):
                if by_weight and kept is None:
                    x = ctx.lasting if hasattr(ctx, LASTING) else taken(ctx, "x")
                    dw = tensor_of(product_over_rows(_NAME, g, x)).to(ctx.dtypes[1])
                    del x  # whose memory is free before the larger gradient takes some
                if by_x:
                    dx = tensor_of(product_of_codes(_NAME, g, w.T)).to(ctx.dtypes[0])
        if by_weight and kept is not None:
            dw = kept.over_rows(gradient).to(ctx.dtypes[1])
        by_bias = sum_over_nodes(gradient) if by_bias else None
        return dx, dw, None, None, by_bias, gradient if by_out else None, None


def sum_over_nodes(gradient: Tensor) -> Tensor:
    """The gradient with respect to a bias."""
    made: Tensor = torch.ops.bitsparse.column_sums(gradient) if gradient.is_cuda else gradient.sum(dim=0)
    return made


def linear(
    x: Tensor,
    weight: Tensor,
    bits: int,
    source: Source,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    keep: Keep | None = None,
) -> Tensor:
    """``x @ weight.T`` of float matrices, computed as a product of integers, as both gradients are; codes are kept in place of `x`.

    Parameters
    ----------
    x, weight : Tensor
    bits : int
        Bits of the codes.
    source : Source
        What supplies the codes.
    bias : Tensor of float32, optional
        Added to the product.
    out : Tensor of float32, optional
        Contiguous; the product and the bias are added to it in place.
    keep : Keep, optional
        Keeps `x` in fewer bits; the gradient of the weight is then a float product of the values that these stand for.
    """
    return _Linear.apply(x, weight, bits, source, bias, out, keep)


def matrix_of(x: Tensor) -> Tensor:
    """Features as a matrix (nodes, all other axes)."""
    return x if x.ndim == 2 else x.reshape(x.shape[0], math.prod(x.shape[1:]))


class Grid(NamedTuple):
    """How features are rounded for sums, and what supplies their codes."""

    bits: int
    granularity: str
    source: Source

    def codes(self, x: Tensor, fixed: bool, factors: Tensor | None = None) -> ScaledCodes:
        """Codes of features (N, ...), as a matrix if each node has a scale; with `factors`, codes of the rows of (N, D) times these."""
        whole = x if self.granularity == "tensor" else matrix_of(x)
        return self.source.codes(whole, self.bits, self.granularity, fixed, factors)

    def rounded(self, x: Tensor, fixed: bool) -> Tensor:
        """The values that the codes of features stand for."""
        codes = self.codes(matrix_of(x), fixed)
        with working(x):
            return tensor_of(codes.dequantize()).reshape(x.shape).to(x.dtype)


Factors = tuple[Tensor | None, Tensor | None]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        pattern: Pattern,
        factors: Factors,
        grid: Grid,
        values: Any,
        own: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.pattern, ctx.factors, ctx.grid = pattern, factors, grid
        ctx.values, ctx.own, ctx.dtype = values, own, x.dtype
        return summed(x, pattern, factors, grid, values, own, bias, False, not ctx.needs_input_grad[0])

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dx = None
        by_bias = sum_over_nodes(gradient) if ctx.needs_input_grad[6] else None
        if ctx.needs_input_grad[0]:
            rows, columns = ctx.factors
            turned = ctx.pattern.turned
            dx = summed(gradient, turned, (columns, rows), ctx.grid, ctx.values, ctx.own, None, True, False)
            dx = dx.to(ctx.dtype)
        return dx, None, None, None, None, None, by_bias


def summed(
    x: Tensor,
    pattern: Pattern,
    factors: Factors,
    grid: Grid,
    values: Any,
    own: Tensor | None,
    bias: Tensor | None,
    turned: bool,
    fixed: bool,
) -> Tensor:
    """Sum the codes of features, scaled by the columns' factors, over each row of a pattern; add `own` times the features, and a bias."""
    rows, columns = factors
    flat = matrix_of(x)
    if columns is not None and not flat.dtype == columns.dtype == torch.float32:
        flat, columns = flat * columns[:, None], None
    codes = grid.codes(flat, fixed, columns)
    with working(flat):
        operand = as_csr(_NAME, array_over(pattern, rows))
        ints, scale = (None, None) if values is None else (values[turned], values[2])
        added = None if own is None else Own(array_of(x), array_of(own))
        behind = None if bias is None else array_of(bias)
        result = tensor_of(sum_of_codes(_NAME, operand, codes, ints, scale, "sum", True, added, behind))
        # a matrix is returned as it is: autograd would not let the caller write into a view
        return result if x.ndim == 2 else result.reshape(pattern.rows, *x.shape[1:])


def spmm(
    x: Tensor,
    pattern: Pattern,
    factors: Factors,
    grid: Grid,
    values: tuple[Any, Any, Any] | None,
    own: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Sums of float features over a pattern, with factors of rows and columns, computed in integers, as the gradient is.

    Parameters
    ----------
    x : Tensor (N, ...)
        Features.
    pattern : Pattern
        The edges.
    factors : tuple of Tensor or None
        Factors of the rows and of the columns.
    grid : Grid
        How features and gradients are rounded.
    values : tuple, or None
        Codes of the edges' values in the order of the pattern, the same in the order of its transpose, and their scale.
    own : float32 Tensor of one element, optional
        The float32 features (N, D), not rounded, times this are added; the pattern must be square.
    bias : float32 Tensor (D,), optional
        Added last.
    """
    return _Sum.apply(x, pattern, factors, grid, values, own, bias)


class _Rounded(torch.autograd.Function):
    """Round features to a grid; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        return grid.rounded(x, not ctx.needs_input_grad[0])

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, None


class _GradientRounded(torch.autograd.Function):
    """Pass features unchanged; round their gradient to a grid."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        ctx.grid = grid
        return x.view_as(x)

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.grid.rounded(gradient, False), None


def on_grid(x: Tensor, grid: Grid) -> Tensor:
    """The values that the codes of features stand for; the gradient passes unchanged."""
    return _Rounded.apply(x, grid)


def gradient_on_grid(x: Tensor, grid: Grid) -> Tensor:
    """The same features; their gradient is rounded to the grid."""
    return _GradientRounded.apply(x, grid)
