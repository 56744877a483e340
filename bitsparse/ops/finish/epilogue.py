"""Epilogues, the last steps of a product before it is stored: scales, bias, batch norm, activation, requantisation (QGTC section 4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse._records import as_dict, replace
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.construct import smallest_dtype
from bitsparse.arrays.inside import assembled
from bitsparse.arrays.packed import Encoding, Layout
from bitsparse.backends.params import Array, EpilogueParams, OperandParams
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop.arrays import as_host_floats
from bitsparse.ops.finish import schemes
from bitsparse.ops.operands import target

_ACTIVATIONS = ("relu", "leaky_relu", "tanh")
#: Options that only requantisation reads, and options that apply only if the result is a BitTensor.
_OF_GRID = ("out_scale", "out_offset", "scheme", "rounding")
_OF_BITS = (*_OF_GRID, "seed", "stream", "encoding", "axis", "layout")


class BatchNorm(NamedTuple):
    """Batch normalisation in inference (QGTC Eq. 8): ``(x - mean) / sqrt(var + eps) * weight + bias``, per column.

    Examples
    --------
    >>> bs.BatchNorm(mean=[0.0, 1.0], var=[1.0, 4.0]).eps
    1e-05
    """

    mean: Any
    var: Any
    weight: Any = None
    bias: Any = None
    eps: float = 1e-5


@dataclass(frozen=True, kw_only=True, eq=False)  # fields may be arrays, so objects are compared and hashed by identity
class Epilogue:
    """A chain of steps fused behind a product; each is one IEEE float32 operation (equal on every device, bit for bit).

    The steps in order: ``v = float32(acc) * row_scale * col_scale``; ``+ bias``; ``* bn_scale + bn_shift``; activation; then `v` is
    returned as float32, requantised to `bits`, or binarised (``v >= 0``).

    Parameters
    ----------
    row_scale, col_scale : array_like, optional
        `row_scale` is a scalar, ``(m,)`` or ``(*batch, m)``; `col_scale` is a scalar, ``(n,)`` or ``(*batch, n)``. The operands' own
        scales, which are scalars or one per row of `a` and column of `b`, are multiplied in as well.
    bias : array_like, optional
        Per column: scalar, ``(n,)`` or ``(*batch, n)``.
    batch_norm : BatchNorm or tuple ``(mean, var[, weight, bias, eps])``, optional
        Folded into one multiplication and one addition, in float64, when the Epilogue is made (QGTC Eq. 8).
    activation : {None, "relu", "leaky_relu", "tanh"}
    negative_slope : float, default 0.01
        Slope of leaky relu.
    bits : int, optional
        Requantise to this many bits (1..24); the result is a BitTensor. Needs `out_scale`.
    binarize : bool, default False
        One bit, ``v >= 0`` (BitGNN section 2); the result is a BitTensor, bipolar unless `encoding` says "unsigned".
    out_scale, out_offset : array_like, optional
        The grid of requantisation: a scalar, per row ``(m, 1)`` or per column ``(1, n)``, with batch dimensions in front if needed.
    scheme, rounding, seed, stream
        As in :func:`quantize`; the range of ``"affine"`` begins at `out_offset` and is ``out_scale * (2**bits - 1)`` wide.
    encoding : str, optional
        Only with `binarize`: "bipolar" (default) or "unsigned".
    axis, layout
        Packed axis and layout of the resulting BitTensor, so that it fits the next product.
    offset_correction : bool, default False
        Take the operands' offsets into account through exact row and column sums. Without it, an operand with an offset is refused.

    Raises
    ------
    ValueError, ShapeError, DTypeError
        At construction where possible, else when the product's shape is known.

    Examples
    --------
    >>> a = bs.pack_bits([[1, 0, 1], [1, 1, 1]])
    >>> w = bs.pack_bits([[1, -2], [3, 0], [0, 1]], bits=3, encoding="signed", axis=-2)
    >>> bs.matmul(a, w, epilogue=bs.Epilogue(row_scale=[1.0, 0.5], bias=[0.0, 1.0], activation="relu"))
    array([[1. , 0. ],
           [2. , 0.5]], dtype=float32)
    >>> bs.matmul(a, w, epilogue=bs.Epilogue(binarize=True)).toarray()
    array([[ 1, -1],
           [ 1, -1]], dtype=int8)
    """

    row_scale: Any = None
    col_scale: Any = None
    bias: Any = None
    batch_norm: Any = None
    activation: Literal["relu", "leaky_relu", "tanh"] | None = None
    negative_slope: float = 0.01
    bits: int | None = None
    binarize: bool = False
    out_scale: Any = None
    out_offset: Any = None
    scheme: Literal["affine", "affine-pow2", "symmetric"] = "affine"
    rounding: Literal["floor", "nearest", "stochastic"] | None = None
    seed: int | None = None
    stream: int = 0
    encoding: Encoding | None = None
    axis: int = -1
    layout: Layout = "planes"
    offset_correction: bool = False
    _fixed: EpilogueParams = field(init=False, repr=False, compare=False)
    _grid: schemes.Grid | None = field(init=False, repr=False, compare=False)
    _placed: dict[tuple[str, int], tuple[Any, Any]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = "Epilogue"
        if self.activation is not None:
            _check.choice(name, "activation", self.activation, _ACTIVATIONS)
        for option in ("binarize", "offset_correction"):
            _check.flag(name, option, getattr(self, option))
        slope = as_host_floats(self.negative_slope, name, "negative_slope")
        if slope.ndim:
            raise ShapeError(f"{name}: negative_slope must be a number, got shape {slope.shape}")
        vectors: dict[str, Any] = {
            each: None if (value := getattr(self, each)) is None else as_host_floats(value, name, each)
            for each in ("row_scale", "col_scale", "bias")
        }
        bn_scale, bn_shift = folded(self.batch_norm)
        vectors |= {"bn_scale": bn_scale, "bn_shift": bn_shift}
        fixed = EpilogueParams(**vectors, activation=self.activation, negative_slope=float(slope))
        grid = None
        if self.bits is not None and self.binarize:
            raise ValueError(f"{name}: bits={self.bits} and binarize=True exclude each other; binarize gives one bit")
        if self.bits is not None or self.binarize:
            fixed, grid = self._with_bits_out(fixed)
        elif unused := [option for option in _OF_BITS if not _is_default(option, getattr(self, option))]:
            raise ValueError(
                f"{name}: {' and '.join(unused)} would describe bits that come out; pass bits= or binarize=True too"
            )
        object.__setattr__(self, "_fixed", fixed)
        object.__setattr__(self, "_grid", grid)
        object.__setattr__(self, "_placed", {})

    def _with_bits_out(self, fixed: EpilogueParams) -> tuple[EpilogueParams, schemes.Grid | None]:
        name = "Epilogue"
        axis = _check.axis(name, self.axis, 2)
        if self.binarize:
            if unused := [option for option in _OF_GRID if not _is_default(option, getattr(self, option))]:
                raise ValueError(f"{name}: binarize=True has no grid; drop {' and '.join(unused)}")
            schemes.checked_seed(name, "nearest", self.seed, self.stream)
            layout = _check.layout(name, self.layout, 1)
            _check.choice(name, "encoding", self.encoding or "bipolar", ("bipolar", "unsigned"))
            return replace(fixed, out="bits", bits=1, binarize=True, axis=axis, layout=layout), None
        scheme, bits = schemes.scheme_bits(name, self.scheme, self.bits)
        bits = _check.bit_count(name, bits, high=schemes.MAX_FLOAT32_BITS)
        layout = _check.layout(name, self.layout, bits)
        rounding = _check.rounding_of(name, scheme, self.rounding)
        seed, stream = schemes.checked_seed(name, rounding, self.seed, self.stream)
        if self.encoding is not None:
            raise ValueError(
                f"{name}: encoding={_check.shown(self.encoding)} goes with binarize=True; scheme={_check.shown(scheme)} decides it here"
            )
        if self.out_scale is None:
            raise ValueError(
                f"{name}: bits={bits} needs out_scale, the size of one step; calibrate it with quantize(...).scale"
            )
        scale = as_host_floats(self.out_scale, name, "out_scale")
        if not (scale >= np.finfo(np.float32).smallest_normal).all():
            raise ValueError(f"{name}: out_scale must be positive and normal, got {scale.min()}")
        if scheme == "symmetric" and self.out_offset is not None:
            raise ValueError(f"{name}: scheme='symmetric' has no offset; drop out_offset or use scheme='affine'")
        offset = None if self.out_offset is None else as_host_floats(self.out_offset, name, "out_offset")
        grid = schemes.grid_from_scale(scheme, bits, scale, offset)
        _check.finite(name, "out_scale * (2**bits - 1)", bool(np.isfinite(grid.divisor).all()))
        fixed = replace(fixed,
            out="bits", bits=bits, offset=grid.offset, divisor=grid.divisor, multiplier=grid.multiplier, qmin=grid.qmin,
            qmax=grid.qmax, rounding=rounding, seed=seed, stream=stream, axis=axis, layout=layout,
        )  # fmt: skip
        return fixed, grid

    def __call__(self, acc: Any) -> Any:
        """Apply the same chain to an ordinary array of int32, int64 or float32, ``(..., m, n)``.

        Examples
        --------
        >>> bs.Epilogue(activation="relu")(np.array([[-3, 4]], dtype=np.int32))
        array([[0., 4.]], dtype=float32)
        """
        return self.applied("Epilogue", acc)

    def applied(self, function: str, acc: Any) -> Any:
        """Apply the chain as the last step of `function`, which error messages name."""
        array, family = interop.as_array(acc, function, "acc")
        if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float32)):
            raise DTypeError(
                f"{function}: acc has dtype {array.dtype}, but the chain takes int32, int64 or float32; use astype"
            )
        _check.at_least_2d(function, "acc", array.shape)
        device = interop.device_of(array)
        params = self.params(function, array.shape)
        with interop.working_on(device, family):
            contiguous = interop.namespace(array).ascontiguousarray(array)
            result = backends.family(device, "matmul.matmul").epilogue(contiguous, params)
            return self.wrap(result, array.shape, family, function)

    def params(self, function: str, shape: tuple[int, ...], operands: OperandParams | None = None) -> EpilogueParams:
        """The chain for a product of ``shape``, with the operands' scales and offsets folded in; checks all shapes."""
        batch, m, n = shape[:-2], shape[-2], shape[-1]
        fixed = self._fixed
        for key, length in (("row_scale", m), ("col_scale", n), ("bias", n), ("bn_scale", n)):
            value = getattr(fixed, key)
            if value is not None:
                _check.vector(function, "batch_norm" if key == "bn_scale" else key, value, length, batch)
        if fixed.out == "bits" and not fixed.binarize:
            for name, value in (("out_scale", fixed.divisor), ("out_offset", fixed.offset)):
                _check.affine_shape(function, name, _full_ndim(value, len(shape)), shape)
            fixed = replace(
                fixed, divisor=_full_ndim(fixed.divisor, len(shape)), offset=_full_ndim(fixed.offset, len(shape))
            )
        named = replace(fixed, function=function)
        return named if operands is None else named.joined(self.behind(operands, "cpu"))

    def behind(self, operands: OperandParams, device: str) -> OperandParams:
        """What the operands of a product on `device` add to the chain that :meth:`params` gives without them."""
        if operands.row_term is None and operands.col_term is None:
            return operands
        scales = [interop.move(scale, device) for scale in (self._fixed.row_scale, self._fixed.col_scale)]
        terms = (_scaled_term(term, scales) for term in (operands.row_term, operands.col_term))
        return OperandParams(operands.row_scale, operands.col_scale, *terms)

    def _stored_grid(self, device: str, ndim: int) -> tuple[Any, Any]:
        """Scale and offset of the resulting BitTensor; they are copied to each GPU once and kept there."""
        if self._grid is None:
            return None, None
        key = (device, ndim)
        if key not in self._placed:
            parts = (self._grid.scale, self._grid.stored_offset)
            scale, offset = (None if part is None else interop.move(_full_ndim(part, ndim), device) for part in parts)
            return self._placed.setdefault(key, (scale, offset))  # concurrent callers get the same arrays
        return self._placed[key]

    @property
    def gives_bits(self) -> bool:
        """Whether the result is a BitTensor."""
        return self._fixed.out == "bits"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result; if that is a BitTensor, of the integers that it holds."""
        return smallest_dtype(self._fixed.bits, self._bits_encoding) if self.gives_bits else np.dtype(np.float32)

    @property
    def _bits_encoding(self) -> str:
        """Encoding of the resulting BitTensor."""
        if self._fixed.binarize:
            return self.encoding or "bipolar"
        return "unsigned" if self._grid is None else self._grid.encoding

    def wrap(self, result: Array, shape: tuple[int, ...], family: interop.Family, function: str) -> Any:
        """The backend's result as an array of the user's family, or as a BitTensor."""
        fixed = self._fixed
        if fixed.out == "float":
            return interop.from_array(result, family, function)
        encoding = self._bits_encoding
        scale, offset = self._stored_grid(interop.device_of(result), len(shape))
        return assembled(
            BitTensor, result, shape, fixed.bits, fixed.axis, fixed.layout, encoding, family, scale, offset
        )


def _is_default(option: str, value: Any) -> bool:
    """Whether an option of an Epilogue has its default value, which is the class attribute of that name."""
    default = getattr(Epilogue, option)
    return value is default or (default is not None and value == default)


def target_behind(
    function: str,
    epilogue: Epilogue | None,
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: str,
    operands: Sequence[Any],
) -> Any:
    """The NumPy or CuPy array behind `out`, which takes the epilogue's result, or sums of `dtype` without an epilogue.

    It is checked before anything is written: its kind, its device, and that it shares no memory with the operands' arrays.
    """
    like = None
    if epilogue is not None:
        dtype = np.dtype(np.float32)
        if epilogue.gives_bits:
            like = epilogue.wrap(operands[0][:0], shape, interop.NUMPY, function)
    return target.target_of(function, out, shape, dtype, device, operands, like)


def as_array_or_bits(
    function: str, epilogue: Epilogue | None, result: Any, shape: tuple[int, ...], family: interop.Family
) -> Any:
    """A product's stored result as an array of the user's family, or as the array or BitTensor of its epilogue."""
    if epilogue is None:
        return interop.from_array(result, family, function)
    return epilogue.wrap(result, shape, family, function)


def _scaled_term(term: tuple[Array, Array] | None, scales: Sequence[Any]) -> tuple[Any, Any] | None:
    """A correction term times the Epilogue's own scales, as these multiply the whole product; rounded to float32 once."""
    if term is None:
        return None
    row, col = (
        (part if scale is None else part * scale.astype(np.float64)).astype(np.float32)
        for part, scale in zip(term, scales, strict=True)
    )
    return row, col


def _full_ndim(value: NDArray[np.float32], ndim: int) -> NDArray[np.float32]:
    """Put 1s in front of the shape up to `ndim` dimensions: ``(m, 1)`` becomes ``(1, ..., m, 1)``."""
    return value if value.ndim in (0, ndim) else value.reshape((1,) * (ndim - value.ndim) + value.shape)


def folded(
    batch_norm: Any, function: str = "Epilogue", what: str = "batch_norm"
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """A batch norm as one factor and one addend per column, computed in float64 and stored as float32."""
    if batch_norm is None:
        return None, None
    if not isinstance(batch_norm, tuple) or not 2 <= len(batch_norm) <= 5:
        raise ValueError(
            f"{function}: {what} must be a BatchNorm or (mean, var[, weight, bias, eps]), got {type(batch_norm).__name__}"
        )
    given = BatchNorm(*batch_norm)
    parts = []
    for (name, value), default in zip(as_dict(given).items(), (0.0, 1.0, 1.0, 0.0, 1e-5), strict=True):
        part = default if value is None else value
        parts.append(interop.as_host(part, function, f"{what}.{name}", kinds="biuf").astype(np.float64))
    try:
        mean, var, weight, bias, eps = np.broadcast_arrays(*parts)
    except ValueError:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ShapeError(
            f"{function}: {what} mean, var, weight, bias and eps have shapes {shapes}, which do not fit together"
        ) from None
    if (var + eps <= 0).any():
        raise ValueError(f"{function}: {what}.var + eps must be positive, got {float((var + eps).min())}")
    with np.errstate(over="ignore", invalid="ignore"):  # reported below
        scale = weight / np.sqrt(var + eps)
        shift = (bias - mean * scale).astype(np.float32)
        scale = scale.astype(np.float32)
    _check.finite(function, what, bool(np.isfinite(scale).all() and np.isfinite(shift).all()))
    return scale, shift


#: An epilogue without steps of its own: it applies only the operands' scales.
PLAIN = Epilogue()
