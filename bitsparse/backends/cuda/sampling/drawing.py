"""Which edges of a pattern's rows are sampled, on the GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.errors import KernelError

__all__ = ["STRATEGIES", "Drawing", "SamplerParams", "sampler_params"]

STRATEGIES = ("aes", "afs", "sfs", "uniform")
_THREADS = 256
#: AES-SpMM, Table 1: R = edges / W up to 2, 36, 54 and beyond, and how many parts W is cut into.
_LIMITS, _PARTS = (2, 36, 54), (4, 8, 16, 32)


SamplerParams = jit.struct("sampling/draw.cuh", "Sampler")
EdgesParams = jit.struct("sampling/edges.cu", "SampleEdgesParams")


def sampler_params(indptr: Any, nnz: int, width: int, strategy: str, seed: int, stream: int) -> ctypes.Structure:
    """What a kernel samples by. Rows are shorter than the limit of the indices, so that widths beyond it all mean the same."""
    limit = int(np.iinfo(indptr.dtype).max)
    if strategy == "uniform" and 2**31 <= width < nnz:
        raise KernelError(
            f"sample_edges: width={width} asks a GPU to draw more than {2**31 - 1} edges of a row; draw fewer, or take strategy='sfs'"
        )
    width = min(width, limit)
    found = SamplerParams(width, seed)
    found.most[:] = [min(most * width, limit) for most in _LIMITS]
    found.run[:] = [max(1, width // parts) for parts in _PARTS]
    found.inverse[:] = [1 / max(1, width // parts) for parts in _PARTS]
    found.samples[:] = [min(parts, width) for parts in _PARTS]
    found.stream, found.strategy = stream, STRATEGIES.index(strategy)
    return found


class Drawing:
    """How many edges of each row of a pattern are sampled, and how the kernels walk the sample; made once for a width and a strategy.

    Parameters
    ----------
    indptr : cupy.ndarray of int32 or int64
        Valid: from 0 to `nnz`, never decreasing.
    shape : tuple of int
    nnz, width : int
    strategy : {"aes", "afs", "sfs", "uniform"}

    Attributes
    ----------
    starts : cupy.ndarray (rows + 1,), dtype of `indptr`
        Where each row's samples start.
    total, longest : int
        Samples of all rows and of the row with most, repeats counted.
    schedule : Schedule
        Of the samples.
    """

    def __init__(self, indptr: Any, shape: tuple[int, int], nnz: int, *, width: int, strategy: str) -> None:
        cupy = self._cupy = jit.require_cupy("sample_edges")
        self.indptr, self.shape, self.nnz = indptr, (int(shape[0]), int(shape[1])), int(nnz)
        self.width, self.strategy = width, strategy
        rows = self.shape[0]
        self.starts = cupy.zeros(rows + 1, indptr.dtype)
        self.total = self.longest = 0
        if rows:
            counts = cupy.empty(rows, indptr.dtype)
            self._launch("sample_counts", rows, 0, 0, counts=counts)
            cupy.cumsum(counts, out=self.starts[1:])
            self.total, self.longest = (int(n) for n in cupy.stack([self.starts[-1], counts.max()]).get())
        self.schedule = Schedule(self.starts, self.shape, self.total)
        self._factors: dict[str, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.starts.nbytes) + self.schedule.nbytes + sum(int(made.nbytes) for made in self._factors.values())

    def factors(self, dtype: Any) -> Any:
        """``row_nnz / samples`` of each row in `dtype`, 1 for empty rows; made once."""
        name = np.dtype(dtype).name
        if name not in self._factors:
            samples, edges = (part[1:] - part[:-1] for part in (self.starts, self.indptr))
            quotient = edges.astype(dtype) / self._cupy.maximum(samples, 1).astype(dtype)
            self._factors[name] = self._cupy.where(samples > 0, quotient, np.dtype(dtype).type(1))
        return self._factors[name]

    def sampler(self, seed: int, stream: int) -> ctypes.Structure:
        """The argument of a kernel."""
        return sampler_params(self.indptr, self.nnz, self.width, self.strategy, seed, stream)

    def edges(self, seed: int = 0, stream: int = 0, indices: Any = None, columns: bool = True) -> tuple[Any, Any]:
        """The sample: numbers of its edges (int64), and with `columns` their columns (without `indices` an edge lies in its own)."""
        cupy = self._cupy
        edges = cupy.empty(self.total, np.int64)
        found = cupy.empty(self.total, self.indptr.dtype) if columns else None
        if self.total:
            self._launch("sample_edges", self.total, seed, stream, indices=indices, edges=edges, columns=found)
        return edges, found

    def _launch(self, name: str, items: int, seed: int, stream: int, **arrays: Any) -> None:
        params = EdgesParams(self.sampler(seed, stream))
        params.indptr, params.starts = self.indptr.data.ptr, self.starts.data.ptr
        params.rows, params.total = self.shape[0], items
        for array, data in arrays.items():
            setattr(params, array, None if data is None else data.data.ptr)
        defines = {"BS_LARGE": 1} if self.indptr.dtype.itemsize == 8 else {}
        jit.kernel("sampling/edges.cu", name, defines).launch(-(-items // _THREADS), _THREADS, params)()


VARIANTS = jit.variants_of("sampling/edges.cu", "sample_edges", ({}, {"BS_LARGE": 1}))
