"""What becomes of the float32 sums of a sparse product on the GPU, in the product's own kernel: an addend, the epilogue's chain, floats or signs."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.params import EpilogueParams, packed_words

__all__ = ["Behind", "Finish", "FinishStruct", "padded_columns"]

_ACTIVATIONS = {None: 0, "relu": 1, "leaky_relu": 2, "tanh": 3}
#: Vectors over the columns are stored in whole blocks, so that kernels may read past their ends.
_BLOCK = 64


class FinishStruct(ctypes.Structure):
    """``Finish`` of ``spmm_finish.cuh``, field by field."""

    _fields_ = (
        ("row_scale", ctypes.c_void_p * 2),
        ("col_scale", ctypes.c_void_p * 2),
        *((name, ctypes.c_void_p) for name in ("addend", "bias", "bn_scale", "bn_shift")),
        *((name, ctypes.c_int) for name in ("addend_kind", "addend_bytes", "columns", "row_bytes", "activation")),
        ("slope", ctypes.c_float),
    )


class Behind(NamedTuple):
    """What one call brings along for its finish.

    Attributes
    ----------
    addend : cupy.ndarray or None
        float32 (rows, columns), or uint32 words of one bit (rows, words), C-contiguous.
    encoding : str or None
        Of the addend's bits.
    col_scale : cupy.ndarray or None
        Factors of the sums' columns, float32, from :func:`padded_columns`.
    """

    addend: Any = None
    encoding: str | None = None
    col_scale: Any = None


def padded_columns(columns: int) -> int:
    """Elements that an array of one factor to a column must have.

    Examples
    --------
    >>> padded_columns(1), padded_columns(64), padded_columns(65)
    (64, 64, 128)
    """
    return max(1, -(-columns // _BLOCK)) * _BLOCK


class Finish:
    """The finish of products of one shape, prepared on the current device.

    Parameters
    ----------
    params : EpilogueParams
        Vectors on the host. ``out`` is "float", or "bits" that binarise, packed along the columns.
    shape : tuple of int
        (rows, columns) of the product.
    row_scale : cupy.ndarray of float32 (rows,), optional
        The operand's, before an addend.
    added, scaled : bool
        Calls bring an addend, or factors of the columns.

    Attributes
    ----------
    mode : int
        BS_FINISH of the kernels: 1 the chain and floats, 2 signs of the sums as they are, 3 the chain and signs.
    out_shape, out_dtype
        Of the result: float32 (rows, columns), or uint32 words (rows, 1, words).
    """

    def __init__(
        self,
        params: EpilogueParams,
        shape: tuple[int, int],
        *,
        row_scale: Any = None,
        added: bool = False,
        scaled: bool = False,
    ) -> None:
        cupy = jit.require_cupy("bspmm")
        rows, columns = shape
        signs = params.out == "bits"
        raw = self.struct = FinishStruct(columns=columns, activation=_ACTIVATIONS[params.activation])
        raw.slope = params.negative_slope
        vectors: dict[str, Any] = {name: getattr(params, name) for name in ("bias", "bn_scale", "bn_shift")}
        vectors["col_scale"] = params.col_scale
        given = {name: np.asarray(v, np.float32) for name, v in vectors.items() if v is not None}
        own_row = None if params.row_scale is None else np.asarray(params.row_scale, np.float32)
        width = padded_columns(columns)
        parts = [np.zeros(width, np.float32) for _ in given]
        for part, vector in zip(parts, given.values(), strict=True):
            part[:columns] = vector
        if own_row is not None:
            parts.append(np.ascontiguousarray(np.broadcast_to(own_row, (rows,))))
        #: Holds the vectors that the structure points to.
        self._kept = (cupy.asarray(np.concatenate(parts)) if parts else None, row_scale)
        for i, name in enumerate(given):
            address = self._kept[0].data.ptr + 4 * width * i
            if name == "col_scale":
                raw.col_scale[0] = address
            else:
                setattr(raw, name, address)
        if own_row is not None:
            raw.row_scale[0] = self._kept[0].data.ptr + 4 * width * len(given)
        if row_scale is not None:
            raw.row_scale[1] = row_scale.data.ptr
        chained = bool(parts) or row_scale is not None or added or scaled or params.activation is not None
        self.mode = 1 if not signs else 3 if chained else 2
        words = packed_words(columns, 1, "planes")
        self.out_shape: tuple[int, ...] = (rows, 1, words) if signs else shape
        self.out_dtype = np.dtype(np.uint32 if signs else np.float32)
        raw.row_bytes = 4 * (words if signs else columns)

    def aim(self, struct: FinishStruct, behind: Behind | None) -> None:
        """Put into a kernel's argument what one call brings along."""
        if behind is None:
            return
        struct.col_scale[1] = None if behind.col_scale is None else behind.col_scale.data.ptr
        addend = behind.addend
        if addend is not None:
            struct.addend, struct.addend_bytes = addend.data.ptr, addend.strides[0]
            struct.addend_kind = 1 if behind.encoding is None else 3 if behind.encoding == "bipolar" else 2
