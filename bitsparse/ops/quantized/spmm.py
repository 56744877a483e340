"""Sums over neighbours in integers: features are quantised to a few bits, summed as integers and scaled back (TANGO section 3.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from bitsparse import _check, _records, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import with_scale
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.backends.params import Array, CodeSumKind, SumScales
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import converted
from bitsparse.interop.kept import Slot
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.finish import schemes
from bitsparse.ops.finish.epilogue import PLAIN
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import as_features
from bitsparse.ops.operands.places import same_place
from bitsparse.ops.operands.sparse import sparse_operand
from bitsparse.ops.quantized.operands import checked_dtype
from bitsparse.ops.quantized.scaled import GRANULARITIES, MOST_STEPS, ScaledCodes, scaled_codes
from bitsparse.ops.spmm.plan import SpmmPlan

Granularity = Literal["tensor", "node"]
BITS = (2, 4, 8)
#: Bits of the edges' values, and the bit by which their stream of random draws differs from that of the features.
_VALUE_BITS, _VALUE_STREAM = 8, 1 << 31


#: Slot for prepared sums of codes that are scaled in the same kernel, by their kind.
SCALED_SUMS: Slot[Any] = Slot("scaled sums of codes", most=16)


class Own(NamedTuple):
    """A term added to the sums: float32 features (M, D) of the nodes themselves, times a float32 array of one element."""

    x: Array
    factor: Array


class SumSettings(NamedTuple):
    """Checked settings for quantising and summing features or gradients."""

    bits: int
    granularity: str
    reduce: str
    coding: Coding

    @classmethod
    def checked(
        cls, function: str, bits: Any, granularity: Any, reduce: Any, rounding: Any, seed: Any, stream: Any
    ) -> SumSettings:
        """Settings made from a user's arguments."""
        number = _check.integer(function, "bits", bits, 1, 32)
        if number not in BITS:
            raise ValueError(
                f"{function}: bits must be 2, 4 or 8, got {number}; use quantize and spmm for other widths"
            )
        if granularity is None:
            granularity = "tensor" if number == 8 else "node"
        _check.choice(function, "granularity", granularity, GRANULARITIES)
        _check.choice(function, "reduce", reduce, ("sum", "mean"))
        name = _check.rounding_of(function, "symmetric", rounding)
        drawn, stream = schemes.checked_seed(function, name, seed, stream)
        return cls(number, granularity, reduce, Coding(number, name, drawn, stream, -1, "rows"))


def quantized_spmm(
    A: Any,
    x: Any,
    bits: int = 8,
    *,
    granularity: Granularity | None = None,
    reduce: Literal["sum", "mean"] = "sum",
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
    stream: int = 0,
) -> Any:
    """Sums or means of neighbours' features, which are quantised to a few bits, summed as integers and scaled back (TANGO section 3.3).

    The features times the `col_scale` of A are quantised symmetrically. Their codes, a quarter of float32's bytes or fewer, are gathered
    and summed exactly. The sums are multiplied by the `row_scale` of A and by the scale of the codes. CPU and GPU give the same bits.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit, scipy.sparse array or cupyx.scipy.sparse matrix, (M, N)
        Edge values, (nnz,), are quantised to 8 bits, so that products are integers.
    x : array (N,), (N, D) or (N, H, D) of float32, float16 or bfloat16
        Features of the nodes.
    bits : {8, 4, 2}
        Bits of a code.
    granularity : {"tensor", "node"}, optional
        One scale for all features, or one per node: a multiple, 1 to 255, of a common step, so that sums stay integers. The default is
        "tensor" for 8 bits, and "node" for fewer bits, where a single scale costs several points of accuracy.
    reduce : {"sum", "mean"}
        A mean divides by the number of edges of the row; rows without edges give 0.
    rounding : {"nearest", "stochastic"}
        How features and values are rounded.
    seed, stream : int, optional
        Seed and stream of stochastic rounding, which makes the result unbiased: its mean over seeds is the real sum. Edge values draw
        from the stream ``stream ^ 2**31``.

    Returns
    -------
    float32 array (M,), (M, D) or (M, H, D), in the family of `x`

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        Operands do not match, or edges have one value per head, which only :func:`spmm` takes.
    ValueError
        An option is unknown, or `x` holds NaN or infinity on a CPU. On a GPU the call does not wait, and results are NaN instead.

    Notes
    -----
    The result is ``fl(fl(fl(sum of codes) * row_scale) * scale)``; for a mean, the sum is first divided by the number of edges. If node j
    has the scale ``s[j]``, nearest rounding changes an element by at most half of the sum of ``s[j]`` over its neighbours, each times the
    edge's value and scales; stochastic rounding changes it by at most twice as much. Node scales as multiples of a common step follow
    VS-Quant (Dai et al., MLSys 2021).

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]]))
    >>> x = np.array([[1.0, -2.0], [0.5, 0.25], [0.02, 0.01]], np.float32)
    >>> bs.quantized_spmm(A != 0, x).round(2)
    array([[ 0.52,  0.27],
           [ 1.01, -2.  ],
           [ 0.  ,  0.  ]], dtype=float32)
    >>> bs.quantized_spmm(A != 0, x, 4).round(2)
    array([[ 0.52,  0.23],
           [ 0.86, -2.  ],
           [ 0.  ,  0.  ]], dtype=float32)
    """
    function = "quantized_spmm"
    settings = SumSettings.checked(function, bits, granularity, reduce, rounding, seed, stream)
    with sparse_operand(function, A, x) as operand:
        flat, shape, family = feature_rows(function, "x", x, operand)
        made = summed(function, operand, flat, settings, isinstance(A, SparseArray))
        return interop.from_array(made.reshape(operand.shape[0], *shape[1:]), family, function)


def feature_rows(
    function: str, name: str, x: Any, operand: CSROperand
) -> tuple[Array, tuple[int, ...], interop.Family]:
    """Features as a matrix, their shape and their family; they must be floats, with one row per column of the operand."""
    if isinstance(x, BitTensor):
        raise DTypeError(f"{function}: {name} is a BitTensor, which is quantised already; use spmm")
    features = as_features(function, name, x)
    checked_dtype(function, features.dtype)
    same_place(function, [("A", operand.device), (name, features.device)])
    operand.check_features(function, features.shape)
    if operand.values is not None and operand.values.ndim != 1:
        raise ShapeError(
            f"{function}: A has values of shape {operand.values.shape}, but sums of integers take one value for each edge, "
            f"({operand.nnz},); use spmm"
        )
    return features.data.reshape(features.shape[0], features.columns), features.shape, features.family


def summed(function: str, operand: CSROperand, x: Array, settings: SumSettings, keep: bool) -> Array:
    """Quantise a matrix times the operand's column scales, sum the codes, and scale the sums back to real numbers."""
    if operand.col_scale is not None:
        x = converted(x, np.float32)
    home, factors = _home(operand.device), operand.col_scale
    coded = scaled_codes(function, "x", x, home, settings.coding, settings.granularity, factors)
    values = scale = None
    if operand.values is not None:
        values, scale = coded_values(function, operand, settings.coding)
    return sum_of_codes(function, operand, coded, values, scale, settings.reduce, keep)


def coded_values(function: str, operand: CSROperand, coding: Coding) -> tuple[Array, Any]:
    """The edge values as int8 codes, rounded like features but with their own draws, and the scale of these codes."""
    assert operand.values is not None
    how = _records.replace(coding, bits=_VALUE_BITS, stream=coding.stream ^ _VALUE_STREAM)
    given: Array = converted(operand.values, np.float32).reshape(1, -1)
    made = scaled_codes(function, "values", given, _home(operand.device), how).codes
    return interop.as_array(made.with_affine().toarray(), function)[0].reshape(-1), made.scale


def _home(device: str) -> interop.Family:
    return interop.NUMPY if device == "cpu" else interop.CUPY


def sum_of_codes(
    function: str,
    operand: CSROperand,
    x: ScaledCodes,
    values: Any,
    value_scale: Any,
    reduce: str,
    keep: bool,
    own: Own | None = None,
    bias: Array | None = None,
) -> Array:
    """``fl(fl(sums of integers * row_scale) * scale)``, a NumPy or CuPy array (M, D).

    ``fl(own.factor * own.x)`` is added to it if `own` is given, and then the `bias`, float32 (D,), if that is given.

    Parameters
    ----------
    operand : CSROperand
        The pattern and its row scales; its own values and column scales are ignored.
    values, value_scale : int8 array (nnz,) and float32 array, or None
        Codes of the edge values in canonical order, and their scale.
    """
    bare = replace(operand, values=None, col_scale=None, order=None, summed=False)
    codes = x.codes
    operand.check_features(function, codes.shape)
    if value_scale is not None:
        space: Any = interop.namespace(operand.indptr)
        codes = with_scale(codes, space.asarray(codes.scale * value_scale, np.float32))
    shape, by_nodes = (operand.shape[0], codes.shape[1]), x.multiples is not None
    if values is None and _fits_kernel(bare, codes, by_nodes):
        return _scaled_at_once(bare, codes, x.multiples, shape, reduce, own, bias)
    if by_nodes:
        factors = x.multiples[operand.columns]
        values = factors if values is None else values.astype(np.int16) * factors
    plan = SpmmPlan(function, bare, shape[1:], reduce, keep=keep, epilogue=PLAIN)
    made: Array = interop.as_array(plan.run(as_features(function, "x", codes), values, None), function)[0]
    made = made if own is None else made + own.factor * own.x
    return made if bias is None else made + bias


def _fits_kernel(operand: CSROperand, codes: BitTensor, by_nodes: bool) -> bool:
    """Whether the kernel that sums and scales takes these codes: on a GPU, in rows, with one scale and sums that fit int32."""
    if operand.device == "cpu" or 0 in (operand.nnz, *operand.shape, codes.shape[1]):
        return False
    if codes.scale is None or codes.scale.ndim or codes.offset is not None:
        return False
    if codes.bits not in BITS or (codes.encoding, codes.axis, codes.layout) != ("signed", -1, "rows"):
        return False
    return operand.longest_row * (MOST_STEPS if by_nodes else 1) << (codes.bits - 1) < 1 << 31


def _scaled_at_once(
    operand: CSROperand,
    codes: BitTensor,
    multiples: Array | None,
    shape: tuple[int, int],
    reduce: str,
    own: Own | None,
    bias: Array | None,
) -> Array:
    """:func:`sum_of_codes` in one GPU kernel, which gathers the multiple of a node along with its row.

    Scaling takes two multiplications per element of the result, which costs less than writing the sums and reading them again.
    """
    weights = "none" if multiples is None else "nodes"
    kind = CodeSumKind(codes.bits, "signed", shape[1], mean=reduce == "mean", weights=weights, scaled=True)
    backend, words = backends.family(operand.device, "spmm.codes"), codes.words
    product = operand.kept(SCALED_SUMS, lambda: backend.CodeSum(operand.schedule, kind), kind)
    own_x, factor = (None, None) if own is None else (interop.contiguous(own.x), own.factor)
    nodes, width = words.shape
    pitch = backend.pitch_of(width, operand.nnz / nodes)
    with operand.schedule.order:
        if pitch != width:
            room = operand.schedule.workspace("rows of integers", (nodes, pitch), np.uint32)
            room[:, :width] = words
            words = room
        made: Array = product(words, multiples, scales=SumScales(codes.scale, operand.row_scale, own_x, factor, bias))
    return made
