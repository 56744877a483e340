"""Dot products per edge on the GPU for patterns whose neighbouring rows share columns: the windows of eight rows of the sparse product."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import THREADS, launch, streaming
from bitsparse.backends.cuda.spmm.windows import ROWS, Windows

__all__ = ["DotWindows", "window_defines"]


DotWindowsParams = jit.struct("edges/sddmm_windows.cu", "DotWindowsParams")
PlacesParams = jit.struct("spmm/windows_fill.cu", "PlacesParams")


def window_defines(vectors: int) -> dict[str, int]:
    """Constants of ``sddmm_windows`` for rows of so many vectors of 16 bytes.

    Examples
    --------
    >>> window_defines(32), window_defines(5)
    ({'BS_LANES': 8, 'BS_FULL': 1}, {'BS_LANES': 4})
    """
    lanes = 8 if vectors >= 8 else 4
    return {"BS_LANES": lanes} | ({"BS_FULL": 1} if vectors % lanes == 0 else {})


class DotWindows:
    """Dot products prepared for one pattern and float32 features of one width: ``product(x, y, out)``, as those of
    :class:`bitsparse.backends.cuda.edges.sddmm.EdgeProduct`.

    Eight lanes (four below 32 columns) sum up every eighth vector of four elements of the rows each, in order with fused steps, and the
    sums of the lanes are added in a fixed tree.

    Parameters
    ----------
    windows : Windows
        Of a canonical pattern with edges.
    indptr : cupy.ndarray of int32 or int64
    columns : int
        Of the features: a multiple of 4, not 0.
    """

    def __init__(self, windows: Windows, indptr: Any, columns: int) -> None:
        cupy = jit.require_cupy("sddmm")
        units, count, vectors = windows.units, len(windows.units), columns // 4
        self._windows, self._lock = windows, threading.Lock()
        self._places = cupy.empty((count, ROWS), np.uint32)
        places = PlacesParams(units.data.ptr, windows.entries.data.ptr, indptr.data.ptr, self._places.data.ptr)
        places.rows, places.count = windows.shape[0], count
        launch("spmm/windows_fill.cu", "place_units", indptr.dtype, streaming(32 * count), places)
        defines = window_defines(vectors)
        params = self._params = DotWindowsParams(units=units.data.ptr, entries=windows.entries.data.ptr)
        params.places, params.rows, params.count = self._places.data.ptr, windows.shape[0], count
        params.row_bytes, params.vectors = 16 * vectors, vectors
        padded = -(-vectors // defines["BS_LANES"]) * defines["BS_LANES"]
        shared = THREADS // 32 * ROWS * 16 * padded
        kernel = jit.kernel("edges/sddmm_windows.cu", "sddmm_windows", defines)
        self._launch = kernel.launch(-(-count // (THREADS // 32)), THREADS, params, shared=shared)

    def __call__(self, x: Any, y: Any, out: Any) -> Any:
        """Write the dot product of ``x[row]`` and ``y[column]`` for every edge into `out`, in edge order, and return it.

        Parameters
        ----------
        x, y : cupy.ndarray of float32, (rows, D) and (columns, D)
            C-contiguous, aligned to 16 bytes.
        out : cupy.ndarray of float32, as many elements as edges
            C-contiguous.
        """
        with self._lock:
            params = self._params
            params.x, params.y, params.out = x.data.ptr, y.data.ptr, out.data.ptr
            self._launch()
        return out


VARIANTS = jit.variants_of("edges/sddmm_windows.cu", "sddmm_windows", [window_defines(n) for n in (8, 4, 9)])
