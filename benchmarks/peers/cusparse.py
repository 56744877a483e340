"""cuSPARSE through its C interface: products of CSR and blocked matrices with features, and sampled products.

PyTorch and CuPy use the same library, but allocate around each call, and neither offers every algorithm or the analysis that the library
can do once per matrix (``cusparseSpMM_preprocess``). Here a call is only the library's call, into a preallocated result, on CuPy's current
stream; it can be captured.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmarks.gpu_timing import torch_module
from bitsparse import jit
from bitsparse.bench import Unavailable

__all__ = [
    "BLOCKED_FORMS",
    "SDDMM_FORMS",
    "SPMM_ALGORITHMS",
    "BlockedProduct",
    "Blocks",
    "SampledProduct",
    "SparseProduct",
]

#: Values of cusparseSpMMAlg_t.
SPMM_ALGORITHMS = {"ALG1": 4, "ALG2": 6, "ALG3": 12}
_BLOCKED_ALGORITHM = 13
#: Memory layouts of the features and results of blocked products.
BLOCKED_FORMS = ("row-major", "column-major")
#: Descriptions of the columns' features: row-major and transposed by the call, or as a column-major matrix.
SDDMM_FORMS = ("transposed", "column-major")
#: Values of cudaDataType.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_INDEX = {"int32": 2, "int64": 3}
_COLUMN_MAJOR, _ROW_MAJOR = 1, 2
_PLAIN, _TRANSPOSED = 0, 1

_Pointer, _Int, _Long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_PRODUCT = [_Pointer, _Int, _Int, _Pointer, _Pointer, _Pointer, _Pointer, _Pointer, _Int, _Int, _Pointer]
_SIGNATURES: dict[str, list[Any]] = {
    "cusparseCreate": [_Pointer],
    "cusparseSetStream": [_Pointer, _Pointer],
    "cusparseCreateCsr": [_Pointer, _Long, _Long, _Long, *[_Pointer] * 3, *[_Int] * 4],
    "cusparseCreateBlockedEll": [_Pointer, *[_Long] * 4, *[_Pointer] * 2, *[_Int] * 3],
    "cusparseDestroySpMat": [_Pointer],
    "cusparseCreateDnMat": [_Pointer, _Long, _Long, _Long, _Pointer, _Int, _Int],
    "cusparseDestroyDnMat": [_Pointer],
}
_SIGNATURES |= {
    f"cusparse{kind}{step}": _PRODUCT for kind in ("SpMM", "SDDMM") for step in ("", "_bufferSize", "_preprocess")
}


@cache
def library() -> Any:
    """The shared library that PyTorch has loaded, or else the system's."""
    torch_module()
    try:
        found = ctypes.CDLL("libcusparse.so.12")
    except OSError as error:
        raise Unavailable(f"cuSPARSE cannot be loaded ({error})") from error
    for name, types in _SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, _Int
    return found


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library; an error names it."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} failed with status {status}")


@cache
def handle() -> ctypes.c_void_p:
    """The library's context, made once."""
    made = ctypes.c_void_p()
    call("cusparseCreate", ctypes.byref(made))
    return made


class _Descriptor:
    """A descriptor of a matrix for the library; its creator must keep the arrays alive."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        self.pointer = ctypes.c_void_p()
        # Kept here, because the module may be gone when the last descriptors are deleted.
        self._destroy = getattr(library(), f"cusparseDestroy{kind if kind == 'DnMat' else 'SpMat'}")
        call(f"cusparseCreate{kind}", ctypes.byref(self.pointer), *arguments)

    def __del__(self) -> None:
        if self.pointer.value:
            self._destroy(self.pointer)


def _csr(indptr: Any, indices: Any, values: Any, shape: Sequence[int]) -> _Descriptor:
    arrays = (indptr.data.ptr, indices.data.ptr, values.data.ptr)
    kinds = (_INDEX[indptr.dtype.name], _INDEX[indices.dtype.name], 0, _TYPES[values.dtype.name])
    return _Descriptor("Csr", *shape, indices.size, *arrays, *kinds)


def _dense(array: Any, shape: Sequence[int], order: int) -> _Descriptor:
    leading = shape[1] if order == _ROW_MAJOR else shape[0]
    return _Descriptor("DnMat", *shape, max(leading, 1), array.data.ptr, _TYPES[array.dtype.name], order)


class _Call:
    """A prepared call with descriptors, workspace and factors; it keeps every array that it needs."""

    def __init__(self, kind: str, operations: tuple[int, int], algorithm: int, dtype: str, kept: Sequence[Any]) -> None:
        self._kind, self._operations, self._algorithm, self._kept = kind, operations, algorithm, kept
        compute = np.float64 if dtype == "float64" else np.float32
        self._compute = _TYPES[np.dtype(compute).name]
        self._factors = np.array([1, 0], compute)

    def prepare(self, matrices: Sequence[_Descriptor]) -> None:
        """Allocate the workspace, and run the library's analysis."""
        cupy = jit.require_cupy("suite spmm")
        self._matrices, size = matrices, ctypes.c_size_t()
        self._workspace = cupy.empty(0, np.uint8)
        self._run("_bufferSize", ctypes.byref(size))
        self._workspace = cupy.empty(max(size.value, 16), np.uint8)
        #: Whether the library accepted a request for analysis with this algorithm.
        self.analysed = True
        try:
            self._run("_preprocess", self._workspace.data.ptr)
        except RuntimeError:
            self.analysed = False

    def _run(self, step: str, last: Any) -> None:
        cupy = jit.require_cupy("suite spmm")
        one = self._factors.ctypes.data
        first, second, third = (matrix.pointer for matrix in self._matrices)
        call("cusparseSetStream", handle(), cupy.cuda.get_current_stream().ptr)
        call(
            f"cusparse{self._kind}{step}",
            handle(),
            *self._operations,
            one,
            first,
            second,
            one + self._factors.itemsize,
            third,
            self._compute,
            self._algorithm,
            last,
        )

    def __call__(self) -> None:
        """Enqueue the product on CuPy's current stream."""
        self._run("", self._workspace.data.ptr)


class SparseProduct(_Call):
    """``out = A @ x`` for a CSR matrix and row-major features; 16-bit floats are summed in float32."""

    def __init__(
        self, indptr: Any, indices: Any, values: Any, shape: tuple[int, int], x: Any, out: Any, algorithm: str
    ) -> None:
        number = SPMM_ALGORITHMS[algorithm]
        super().__init__("SpMM", (_PLAIN, _PLAIN), number, x.dtype.name, (indptr, indices, values, x, out))
        self.out = out
        matrix = _csr(indptr, indices, values, shape)
        features = [_dense(array, array.shape, _ROW_MAJOR) for array in (x, out)]
        self.prepare([matrix, *features])


class Blocks:
    """A CSR pattern as cuSPARSE's Blocked-ELL matrix of float32 ones: square blocks, the same number for each row of blocks.

    Parameters
    ----------
    indptr, indices : cupy.ndarray
    shape : tuple of int
    size : int
        Rows and columns of a block.
    most_bytes : int
        Patterns whose values would take more bytes raise :class:`~bitsparse.bench.Unavailable`.

    Attributes
    ----------
    shape : tuple of int
        The shape, rounded up to whole blocks.
    columns : cupy.ndarray of int32 (rows of blocks, blocks of a row)
        The columns of the blocks; -1 for padding.
    values : cupy.ndarray of float32 (rows, columns of all blocks of a row)
    """

    def __init__(self, indptr: Any, indices: Any, shape: tuple[int, int], size: int, most_bytes: int) -> None:
        cupy = jit.require_cupy("suite spmm")
        self.size, tall, wide = size, *(-(-extent // size) for extent in shape)
        self.shape = tall * size, wide * size
        rows = cupy.searchsorted(indptr[1:], cupy.arange(indices.size, dtype=indptr.dtype), side="right")
        places, of_entry = cupy.unique(rows // size * wide + indices // size, return_inverse=True)
        counts = cupy.bincount(places // wide, minlength=tall)
        slots = cupy.arange(places.size) - (cupy.cumsum(counts) - counts)[places // wide]
        each = max(int(counts.max()), 1)
        nbytes = 4 * self.shape[0] * each * size
        if nbytes > most_bytes:
            raise Unavailable(
                f"in blocks of {size} x {size}, {each} for each row of blocks, it takes {nbytes / 1e9:.0f} GB"
            )
        self.columns = cupy.full((tall, each), -1, np.int32)
        self.columns[places // wide, slots] = places % wide
        self.values = cupy.zeros((self.shape[0], each * size), np.float32)
        self.values[rows, slots[of_entry] * size + indices % size] = 1


class BlockedProduct(_Call):
    """``out = A @ x`` for a blocked matrix and float32 features, which tensor cores multiply in TF32; it allocates `out`."""

    def __init__(self, blocks: Blocks, x: Any, form: str) -> None:
        cupy = jit.require_cupy("suite spmm")
        order = "C" if form == "row-major" else "F"
        whole = [cupy.zeros((extent, x.shape[1]), np.float32, order=order) for extent in reversed(blocks.shape)]
        whole[0][: len(x)] = x
        super().__init__("SpMM", (_PLAIN, _PLAIN), _BLOCKED_ALGORITHM, "float32", (blocks, *whole))
        self.out = whole[1]
        arrays = blocks.columns.data.ptr, blocks.values.data.ptr
        sizes = *blocks.shape, blocks.size, blocks.values.shape[1]
        matrix = _Descriptor("BlockedEll", *sizes, *arrays, _INDEX["int32"], 0, _TYPES["float32"])
        major = _ROW_MAJOR if form == "row-major" else _COLUMN_MAJOR
        self.prepare([matrix, *(_dense(array, array.shape, major) for array in whole)])


class SampledProduct(_Call):
    """``out[e] = x[i] . y[j]`` for every entry e = (i, j) of a CSR pattern."""

    def __init__(self, indptr: Any, indices: Any, shape: tuple[int, int], x: Any, y: Any, out: Any, form: str) -> None:
        transposed = form == "transposed"
        operations = (_PLAIN, _TRANSPOSED if transposed else _PLAIN)
        super().__init__("SDDMM", operations, 0, x.dtype.name, (indptr, indices, x, y, out))
        self.out = out
        right = _dense(y, y.shape, _ROW_MAJOR) if transposed else _dense(y, (y.shape[1], y.shape[0]), _COLUMN_MAJOR)
        self.prepare([_dense(x, x.shape, _ROW_MAJOR), right, _csr(indptr, indices, out, shape)])
