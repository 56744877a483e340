"""The short way of a prepared product of signs on a GPU: operands of CuPy's that leave nothing to be decided."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of, words_to_overwrite
from bitsparse.ops.finish.epilogue import Epilogue

__all__ = ["ShortWay"]


class ShortWay:
    """``way(a, out=None)``, where ``way.fits(a, out)``: one launch, and no question but these.

    Whatever does not fit is looked at one by one by the plan, which then says what is wrong with it.
    """

    def __init__(
        self,
        product: Any,
        right: Any,
        device: str,
        dtype: np.dtype[Any] | None,
        m: int,
        k: int,
        epilogue: Epilogue | None,
    ) -> None:
        self._product, self._packed = product, dtype is None
        self._gpu, self._current_gpu = int(device[5:]), interop.current_gpu()
        self._ndarray = right.__class__
        self._right = right.data.ptr, right.nbytes
        words = construct.words_shape((m, k), 1, -1, "planes")
        self._x = (words, np.dtype(np.uint32)) if dtype is None else ((m, k), dtype)
        self._out = product.out_shape, product.out_dtype
        self._left_kind = ((m, k), 1, -1, "planes", "bipolar", True)
        self._out_kind: tuple[Any, ...] | None = None
        if epilogue is not None and epilogue.gives_bits:
            self._out_kind = _kind_of(epilogue.wrap(right[:0], (m, right.shape[0]), interop.CUPY, "bmm"))

    def fits(self, a: Any, out: Any = None) -> bool:
        """Whether the operands are arrays or BitTensors of exactly the planned kind, whole and apart from each other."""
        if self._packed:
            if a.__class__ is not BitTensor or _kind_of(a) != self._left_kind or family_of(a) is not interop.CUPY:
                return False
            a = a.words
        if a.__class__ is not self._ndarray or (a.shape, a.dtype) != self._x or not a.flags.c_contiguous:
            return False
        memory = a.data
        if not memory.device_id == self._gpu == self._current_gpu():
            return False
        return out is None or self._takes(out, memory.ptr, a.nbytes)

    def _takes(self, out: Any, x_start: int, x_bytes: int) -> bool:
        """Whether a result can be written to `out`."""
        if self._out_kind is not None:
            if out.__class__ is not BitTensor or _kind_of(out) != self._out_kind:
                return False
            out = out.words
        if out.__class__ is not self._ndarray or (out.shape, out.dtype) != self._out or not out.flags.c_contiguous:
            return False
        target = out.data
        start, end = target.ptr, target.ptr + out.nbytes
        apart = all(end <= at or start >= at + size for at, size in (self._right, (x_start, x_bytes)))
        return apart and bool(target.device_id == self._gpu)

    def __call__(self, a: Any, out: Any = None) -> Any:
        """Enqueue the product on CuPy's current stream; the result's array, words if it is packed."""
        if out is not None and self._out_kind is not None:
            out = words_to_overwrite(out)
        return self._product(a.words if self._packed else a, out)


def _kind_of(x: BitTensor) -> tuple[Any, ...]:
    return x._shape, x._bits, x.axis, x.layout, x._encoding, x._scale is None and x._offset is None
