"""Dot products per edge on the GPU for patterns whose neighbouring rows share columns: the windows of eight rows of the sparse product."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.build_checks import THREADS, launch, streaming
from bitsparse.backends.cuda.windows import ROWS, Windows

__all__ = ["DotWindows", "window_defines"]

_WARPS = THREADS // 32


class DotWindowsParams(ctypes.Structure):
    """The argument of ``sddmm_windows`` in ``sddmm_windows.cu``, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "y", "out", "units", "entries", "places")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_uint32) for name in ("row_bytes", "vectors")),
        ("count", ctypes.c_int),
    )


class PlacesParams(ctypes.Structure):
    """The argument of ``place_units`` in ``windows_fill.cu``, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("units", "entries", "indptr", "places")),
        ("rows", ctypes.c_int64),
        ("count", ctypes.c_int),
    )


def window_defines(
    vectors: int, *, each: int | None = None, blocks: int | None = None, ahead: int = 0
) -> dict[str, int]:
    """Constants of ``sddmm_windows`` for rows of so many vectors of 16 bytes.

    Parameters
    ----------
    each : int, optional
        Columns that a group of lanes takes at a time, 4 or 8.
    blocks : int, optional
        Blocks of a multiprocessor.
    ahead : int
        Whether vectors are loaded a step ahead.

    Examples
    --------
    >>> window_defines(32)
    {'BS_LANES': 8, 'BS_EACH': 4, 'BS_FULL': 1}
    >>> window_defines(5)
    {'BS_LANES': 4, 'BS_EACH': 4}
    """
    lanes = 8 if vectors > 4 and (vectors % 8 == 0 or vectors > 8) else 4
    found = {"BS_LANES": lanes, "BS_EACH": each or 4}
    found |= {"BS_FULL": 1} if vectors % lanes == 0 else {}
    found |= {} if blocks is None else {"BS_BLOCKS": blocks}
    return found | ({"BS_AHEAD": 1} if ahead else {})


class DotWindows:
    """Dot products of a canonical pattern; made once, kept by its owner.

    Parameters
    ----------
    windows : Windows
        Of the pattern.
    indptr : cupy.ndarray of int32 or int64
    """

    def __init__(self, windows: Windows, indptr: Any) -> None:
        cupy = jit.require_cupy("sddmm")
        self._windows = windows
        self._places = cupy.empty((windows.count, ROWS), np.uint32)
        params = PlacesParams(windows.units.data.ptr, windows.entries.data.ptr, indptr.data.ptr, self._places.data.ptr)
        params.rows, params.count = windows.shape[0], windows.count
        launch("windows_fill.cu", "place_units", indptr.dtype, streaming(32 * windows.count), params)

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without those of the windows."""
        return int(self._places.nbytes)

    def run(self, x: Any, y: Any, out: Any, **variant: Any) -> Any:
        """Write the dot product of ``x[row]`` and ``y[column]`` for every edge into `out`, in edge order, and return it.

        Parameters
        ----------
        x, y : cupy.ndarray of float32, (rows, D) and (columns, D)
            C-contiguous, aligned to 16 bytes, D a multiple of 4 and not 0.
        out : cupy.ndarray of float32, as many elements as edges
            C-contiguous.
        """
        windows, vectors = self._windows, x.shape[1] // 4
        if not windows.nnz:
            return out
        defines = window_defines(vectors, **variant)
        steps = -(-vectors // defines["BS_LANES"])
        params = DotWindowsParams(x.data.ptr, y.data.ptr, out.data.ptr, windows.units.data.ptr)
        params.entries, params.places = windows.entries.data.ptr, self._places.data.ptr
        params.rows, params.row_bytes, params.vectors = windows.shape[0], 16 * vectors, vectors
        params.count = windows.count
        shared = _WARPS * steps * ROWS * defines["BS_LANES"] * 16
        kernel = jit.kernel("sddmm_windows.cu", "sddmm_windows", defines)
        kernel.launch(-(-windows.count // _WARPS), THREADS, params, shared=shared)()
        return out
