"""Products and sums in integers of a few bits as functions of PyTorch: real numbers come and go, codes are what is multiplied and kept."""

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
from bitsparse.torch.registration import once, torch_memory

_NAME = "bitsparse.torch"
#: Under what name a function has codes that outlive the step.
LASTING = "lasting"


class Source(Protocol):
    """Where codes come from: what was quantised already, and how what was not is."""

    def codes(
        self,
        x: Tensor,
        bits: int,
        granularity: str = "tensor",
        fixed: bool = False,
        factors: Tensor | None = None,
    ) -> ScaledCodes:
        """Codes of a matrix, those that it has already if there are any; of one that never changes (`fixed`) to nearest.

        With `factors` new ones of the rows of float32 times these.
        """

    def known(self, x: Tensor, bits: int) -> ScaledCodes | None:
        """Codes that a matrix has already."""

    def coding(self, x: Tensor, bits: int) -> Coding:
        """How a matrix that has no codes is quantised, with draws that nobody else has."""

    def keep(self, x: Tensor, bits: int, made: ScaledCodes) -> None:
        """Remember codes that a product made on its way."""

    def largest(self, x: Tensor) -> Any:
        """The largest magnitude of a tensor, float32 of one element, where what made it found that; else None."""

    def keep_largest(self, x: Tensor, found: Any) -> None:
        """Remember the largest magnitude of a tensor that was made just now."""


@contextmanager
def working(x: Tensor) -> Iterator[Any]:
    """The device and stream of a tensor, with PyTorch's memory for all that is allocated; the array over the tensor's memory."""
    array, _ = interop.as_array(x.detach().contiguous(), _NAME)
    memory: AbstractContextManager[Any] = torch_memory() if x.is_cuda else nullcontext()
    with memory, interop.working_on(interop.device_of(array), interop.TORCH):
        yield array


def coded(
    x: Tensor, coding: Coding, granularity: str, factors: Tensor | None = None, largest: Any = None
) -> ScaledCodes:
    """The codes of a matrix, whose `largest` magnitude may be known, or of its rows times `factors`."""
    with working(x) as array:
        by_rows = None if factors is None else array_of(factors)
        return scaled_codes(_NAME, "x", array, interop.TORCH, coding, granularity, by_rows, largest)


def array_of(x: Tensor) -> Any:
    """The array over a tensor's memory, without gaps."""
    return interop.as_array(x.detach().contiguous(), _NAME)[0]


def tensor_of(array: Any) -> Tensor:
    """An array of this library's as a tensor over its memory."""
    return array if isinstance(array, Tensor) else interop.from_array(array, interop.TORCH, _NAME)


class Kept(Protocol):
    """A float matrix that a gradient needs, in few bits."""

    def over_rows(self, gradient: Tensor) -> Tensor:
        """``gradient.T @ x``."""

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows, and what they hold, piece by piece."""

    def in_pieces(self, columns: int) -> RowPieces:
        """As a matrix with so many columns."""


#: What keeps a matrix in few bits for a gradient.
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
        # Codes of data, which need no gradient, are there from one step to the next.
        lasting = x_codes is not None and not ctx.needs_input_grad[0]
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
        if by_x or by_weight:
            g = ctx.source.codes(gradient, ctx.bits).codes
            with working(gradient):
                if by_weight and ctx.kept is None:
                    x = getattr(ctx, LASTING, None)
                    dw = tensor_of(product_over_rows(_NAME, g, ctx.x if x is None else x)).to(ctx.dtypes[1])
                if by_x:
                    dx = tensor_of(product_of_codes(_NAME, g, ctx.w.T)).to(ctx.dtypes[0])
            if by_weight and ctx.kept is not None:
                dw = ctx.kept.over_rows(gradient).to(ctx.dtypes[1])
        by_bias = _sum_over_nodes(gradient) if by_bias else None
        return dx, dw, None, None, by_bias, gradient if by_out else None, None


def _sum_over_nodes(gradient: Tensor) -> Tensor:
    """The gradient by a bias."""
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
    """``x @ weight.T`` of float matrices as a product of integers; so are both gradients, for which codes are kept in place of `x`.

    Plus a float32 `bias`, if there is one; added to a contiguous float32 `out`, in its memory, if there is such. Where `keep` keeps `x` in
    fewer bits, the gradient by the weight is a product of what these stand for, in floats.
    """
    return _Linear.apply(x, weight, bits, source, bias, out, keep)


def matrix_of(x: Tensor) -> Tensor:
    """Features with one axis behind the nodes."""
    return x if x.ndim == 2 else x.reshape(x.shape[0], math.prod(x.shape[1:]))


class Grid(NamedTuple):
    """On which numbers features are rounded for sums, and where their codes come from."""

    bits: int
    granularity: str
    source: Source

    def codes(self, x: Tensor, fixed: bool, factors: Tensor | None = None) -> ScaledCodes:
        """Codes of features (N, ...), or (N, all others) where a node has a multiple for all that it has; of (N, D) times factors."""
        whole = x if self.granularity == "tensor" else matrix_of(x)
        return self.source.codes(whole, self.bits, self.granularity, fixed, factors)

    def rounded(self, x: Tensor, fixed: bool) -> Tensor:
        """What the codes of features stand for."""
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
        ctx.pattern, ctx.factors, ctx.grid, ctx.values, ctx.own, ctx.dtype = (
            pattern,
            factors,
            grid,
            values,
            own,
            x.dtype,
        )
        return _summed(x, pattern, factors, grid, values, own, bias, False, not ctx.needs_input_grad[0])

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dx = None
        by_bias = _sum_over_nodes(gradient) if ctx.needs_input_grad[6] else None
        if ctx.needs_input_grad[0]:
            rows, columns = ctx.factors
            turned = ctx.pattern.turned
            dx = _summed(gradient, turned, (columns, rows), ctx.grid, ctx.values, ctx.own, None, True, False).to(
                ctx.dtype
            )
        return dx, None, None, None, None, None, by_bias


def _summed(
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
    """Sums over the rows of a pattern of the codes of features times the factors of the columns, plus `own` times these and a bias."""
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
        return (
            result if x.ndim == 2 else result.reshape(pattern.rows, *x.shape[1:])
        )  # a view could not be written to any more


def spmm(
    x: Tensor,
    pattern: Pattern,
    factors: Factors,
    grid: Grid,
    values: tuple[Any, Any, Any] | None,
    own: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Sums of float features over a pattern, with factors of rows and columns, as sums of integers; so is the gradient.

    `values` are whole numbers for the edges, in the order of the pattern and of its transpose, and their scale. With a float32 number
    `own` that many times the features (N, D) of float32 are added, which are not rounded; the pattern is then of as many rows as columns.
    At last comes a float32 `bias` (D,), if there is one.
    """
    return _Sum.apply(x, pattern, factors, grid, values, own, bias)


class _Rounded(torch.autograd.Function):
    """Features on a grid; the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        return grid.rounded(x, not ctx.needs_input_grad[0])

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, None


class _GradientRounded(torch.autograd.Function):
    """Features as they are; the gradient on a grid."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        ctx.grid = grid
        return x.view_as(x)

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.grid.rounded(gradient, False), None


def on_grid(x: Tensor, grid: Grid) -> Tensor:
    """What the codes of features stand for; gradients pass as they are."""
    return _Rounded.apply(x, grid)


def gradient_on_grid(x: Tensor, grid: Grid) -> Tensor:
    """Features as they are, whose gradient becomes what its codes stand for."""
    return _GradientRounded.apply(x, grid)
