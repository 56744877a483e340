"""Rows of codes that carry their scale with them: how they are made, how they become real numbers, and their sums over neighbours."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends, interop
from bitsparse._records import replace
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.backends.params import Array, CodeSumKind, SumScales, words_shape
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import as_features
from bitsparse.ops.quantized.scaled import on_steps, step_up_to
from bitsparse.ops.quantized.spmm import SCALED_SUMS
from bitsparse.ops.spmm.plan import SpmmPlan


class CodedRows(NamedTuple):
    """Signed codes of 2, 4 or 8 bits, side by side, and at the end of each row its scale.

    Attributes
    ----------
    words : uint32 array (N, words)
        Rows fill whole groups of 16 bytes. The last word is the scale, a float32; what lies between codes and scale is zero.
    columns, bits : int
    """

    words: Array
    columns: int
    bits: int

    def codes(self) -> BitTensor:
        """The codes as a BitTensor (N, columns) with scales (N, 1); they are copied."""
        shape = (self.words.shape[0], self.columns)
        width, scale = words_shape(shape, self.bits, -1, "rows")[-1], self.words[:, -1:]
        words = self.words[:, :width].copy()
        words[:, self.words.shape[1] - 1 :] = 0
        family = interop.NUMPY if interop.device_of(words) == "cpu" else interop.CUPY
        scales = interop.contiguous(scale).view(np.float32)
        return assembled(BitTensor, words, shape, self.bits, -1, "rows", "signed", family, scales, None)


def words_of_row(columns: int, bits: int) -> int:
    """Words of a row of so many codes, with its scale.

    Examples
    --------
    >>> words_of_row(124, 8), words_of_row(128, 8), words_of_row(47, 8), words_of_row(128, 4)
    (32, 36, 16, 20)
    """
    return -(-(columns * bits + 32) // 128) * 4


def coded_rows(x: Array, bits: int, coding: Coding, factors: Any = None, out: Any = None) -> CodedRows:
    """Quantise a float32 matrix symmetrically to `bits` bits, rounded at random, each row by its own largest magnitude.

    Codes lie in fields of ``coding.bits`` bits. The scale of a row is the step of its codes, which a GPU finds in the pass that rounds,
    times the row's factor if there are `factors`, float32 (M,). It is NaN if the row is not finite, and the codes are then meaningless.
    Words are written to `out` if it is given.

    Examples
    --------
    >>> x = np.array([[0.5, -1.0], [0.0, 3.0]], np.float32)
    >>> rows = coded_rows(x, 2, Coding(8, "stochastic", 0))
    >>> rows.codes().scale.tolist(), rows.codes().toarray()[:, 1].tolist()
    ([[1.0], [3.0]], [-1, 1])
    """
    columns, device = x.shape[1], interop.device_of(x)
    space: Any = interop.namespace(x)
    words = space.empty((x.shape[0], words_of_row(columns, coding.bits)), np.uint32) if out is None else out
    top = (1 << (bits - 1)) - 1
    if device != "cpu":
        draws = {"seed": coding.seed, "stream": coding.stream, "first_index": coding.first_index}
        quantize_rows = backends.family(device, "bits.rows").quantize_rows
        quantize_rows(x, coding.bits, words, top=top, factors=factors, **draws)
        return CodedRows(words, columns, coding.bits)
    largest = np.maximum(x.max(axis=1, initial=0), -x.min(axis=1, initial=0))
    steps = step_up_to(largest[:, None], bits)
    alike = replace(coding, axis=-1, layout="rows")
    codes = on_steps(x, interop.NUMPY, steps, steps, alike, top).words
    words[:, codes.shape[1] :] = 0
    words[:, : codes.shape[1]] = codes[:, : words.shape[1]]
    words[:, -1:] = (steps if factors is None else steps * factors[:, None]).view(np.uint32)
    return CodedRows(words, columns, coding.bits)


def sum_of_rows(function: str, operand: CSROperand, x: CodedRows) -> Array:
    """Sums over neighbours of codes times their scales, times the operand's row scale: a NumPy or CuPy array (M, columns) of float32.

    Values and column scales of the operand are not used. Each product is added to its row in the order of the columns; a GPU, which reads
    a scale behind the codes of its row, cuts long rows into pieces.
    """
    assert operand.values is None and operand.col_scale is None
    shape = operand.shape[0], x.columns
    operand.check_features(function, (x.words.shape[0], x.columns))
    if operand.device == "cpu" or 0 in (operand.nnz, *operand.shape, x.columns):
        plan = SpmmPlan(function, operand, shape[1:], "sum")
        return interop.as_array(plan.run(as_features(function, "x", x.codes()), None, None), function)[0]
    kind = CodeSumKind(x.bits, "signed", x.columns, weights="row", scaled=True)
    backend = backends.family(operand.device, "spmm.codes")
    product = operand.kept(SCALED_SUMS, lambda: backend.CodeSum(operand.schedule, kind), kind)
    with operand.schedule.order:
        made: Array = product(x.words, scales=SumScales(row_scale=operand.row_scale))
    return made
