"""The operands of a quantised product of real matrices: settings of quantisation, checks of activations, and codes of weights."""

from __future__ import annotations

import functools
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.bits.pack import Coding, coded, on_grid, real
from bitsparse.ops.finish import schemes

#: Bits that activations and weights may be quantised to.
BITS = (4, 8)
_DTYPES = ("float32", "float16", "bfloat16")


class Settings(NamedTuple):
    """Checked settings for quantising the operands."""

    bits: int
    rounding: str
    seed: int | None
    stream: int
    granularity: str

    @classmethod
    def checked(
        cls, function: str, bits: Any, scheme: Any, rounding: Any, seed: Any, stream: Any, granularity: Any
    ) -> Settings:
        """Settings made from a user's arguments."""
        _check.choice(function, "scheme", scheme, ("symmetric",))
        number = _check.integer(function, "bits", bits, 1, 32)
        if number not in BITS:
            raise ValueError(f"{function}: bits must be 4 or 8, got {number}; use quantize and matmul for other widths")
        name = _check.rounding_of(function, "symmetric", rounding)
        schemes.checked_seed(function, name, 0 if seed is None and name == "stochastic" else seed, stream)
        return cls(
            number, name, seed, int(stream), _check.choice(function, "w_granularity", granularity, ("tensor", "col"))
        )

    def drawn(self) -> int:
        """The seed of a plan, or of a call without its own: the user's seed, or a fresh one if rounding is stochastic."""
        return schemes.drawn_seed(self.rounding) if self.seed is None else self.seed

    def options(self, seed: int | None, further: int = 0) -> dict[str, Any]:
        """The keywords of :func:`quantize` by which a cache knows codes; weights draw from a later stream (`further` = 1)."""
        found: dict[str, Any] = {"scheme": "symmetric", "rounding": self.rounding}
        return found | ({"seed": seed, "stream": self.stream + further} if self.rounding == "stochastic" else {})


@functools.cache  # NumPy builds a dtype's name again every time
def _is_taken(dtype: np.dtype[Any]) -> bool:
    return dtype.name in _DTYPES


def checked_dtype(function: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of activations; refuses one that kernels do not take."""
    if not _is_taken(dtype):
        raise DTypeError(
            f"{function}: x has dtype {dtype}, but activations are {', '.join(_DTYPES)}; use astype, or quantize and matmul"
        )
    return dtype


def check_matrix(function: str, name: str, x: Any, wanted: str) -> None:
    """Refuse an array that does not have exactly two dimensions."""
    if len(x.shape) != 2:
        remedy = f"; pass {name}[None, :] for one row or {name}[:, None] for one column" if len(x.shape) == 1 else ""
        raise ShapeError(f"{function}: {name} has shape {tuple(x.shape)}, but it must be a matrix {wanted}{remedy}")


def weight_of(function: str, w: Any, settings: Settings, seed: int) -> BitTensor:
    """The weight's codes; an array is quantised, and a BitTensor is copied without what it keeps, sharing its words.

    New codes are packed along the contraction axis as products read them: in planes on a CPU, as bytes on a GPU.
    """
    if not isinstance(w, BitTensor):
        array, family = interop.as_array(w, function, "w", kinds="biuf")
        check_matrix(function, "w", array, "(k, n)")
        device = interop.device_of(array)
        layout = "planes" if device == "cpu" else "rows"
        coding = Coding(settings.bits, settings.rounding, seed, settings.stream + 1, -2, layout)
        with interop.working_on(device, family):
            return codes_of(function, "w", real(array), family, coding, settings.granularity)
    check_matrix(function, "w", w, "(k, n)")
    if w.offset is not None:
        raise ValueError(
            f"{function}: w has an offset, which the product of integers leaves out; quantize it with scheme='symmetric'"
        )
    if w.scale is not None and w.scale.ndim and w.scale.shape[-2] != 1:
        raise ValueError(
            f"{function}: w has a scale of shape {w.scale.shape} along the contraction axis; quantize it with one per column"
        )
    return copy(w)


def bytes_of(w: BitTensor) -> Any:
    """The codes of a weight as signed bytes, packed along the contraction axis."""
    if w.bits == 8 and w.encoding == "signed":
        return w.repack(axis=-2, layout="rows").words
    values = interop.as_array(w.toarray(np.int8), "quantized_matmul", "w")[0]
    backend = backends.family(w.device, "bits.pack")
    return backend.pack(values, 8, axis=-2, layout="rows", encoding="signed", check=False)


def codes_of(
    function: str,
    name: str,
    x: Any,
    family: interop.Family,
    coding: Coding,
    granularity: str = "tensor",
    scale: Any = None,
    largest: Any = None,
) -> BitTensor:
    """The result of :func:`quantize` with the symmetric scheme, for a known `scale`, a known range `largest`, or neither."""
    low, high, is_finite = backends.family(interop.device_of(x), "bits.pack").calibrate(x, granularity)
    _check.finite(function, name, is_finite)
    if scale is not None:
        return on_grid(x, family, schemes.grid_from_scale("symmetric", coding.bits, scale, None), coding)
    if largest is not None:
        low = high = largest
    elif not low.ndim:  # a single grid is computed on the host
        low, high = interop.move(low, "cpu"), interop.move(high, "cpu")
    return coded(function, x, family, "symmetric", (low, high), coding)
