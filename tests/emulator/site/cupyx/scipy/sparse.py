"""Sparse matrices of ``cupyx.scipy.sparse``: arrays of the fake device, on which SciPy computes on the host."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy
import numpy as np
import scipy.sparse as sp

__all__ = ["coo_matrix", "csc_matrix", "csr_matrix", "issparse", "isspmatrix", "spmatrix"]

#: The dtypes that CuPy's sparse matrices hold.
_KINDS = "?fdFD"


class spmatrix:
    """Base class of the three formats; made from arrays on the device, another matrix or one of SciPy's."""

    format: ClassVar[str]
    _parts: ClassVar[tuple[str, ...]]

    def __init__(self, arg: Any, shape: Any = None, dtype: Any = None, copy: bool = False) -> None:
        if isinstance(arg, spmatrix):
            arg = arg.get()
        elif isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[1], tuple):
            data, (row, col) = arg
            arg = sp.coo_matrix((_host(data), (_host(row), _host(col))), shape=shape)
        elif isinstance(arg, tuple) and len(arg) == 3:
            kind = sp.csc_matrix if self.format == "csc" else sp.csr_matrix
            arg = kind(tuple(_host(part) for part in arg), shape=shape)
        elif isinstance(arg, cupy.ndarray):
            arg = sp.csr_matrix(arg.get())
        host = arg.asformat(self.format)
        if dtype is not None:
            host = host.astype(dtype)
        if host.dtype.char not in _KINDS:
            raise ValueError("Only bool, float32, float64, complex64 and complex128 are supported")
        self.shape = tuple(int(n) for n in host.shape)
        for name in self._parts:
            part = getattr(host, name)
            setattr(self, name, cupy.asarray(part if name == "data" else part.astype(np.int32)))

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def nnz(self) -> int:
        return int(self.data.size)

    @property
    def ndim(self) -> int:
        return 2

    @property
    def device(self) -> Any:
        return self.data.device

    def get(self, stream: Any = None) -> Any:
        if self.format == "coo":
            return sp.coo_matrix((self.data.get(), (self.row.get(), self.col.get())), shape=self.shape)
        kind = sp.csc_matrix if self.format == "csc" else sp.csr_matrix
        return kind((self.data.get(), self.indices.get(), self.indptr.get()), shape=self.shape)

    def asformat(self, format: str) -> Any:
        return _FORMATS[format](self.get())

    def tocsr(self, copy: bool = False) -> Any:
        return self.asformat("csr")

    def tocsc(self, copy: bool = False) -> Any:
        return self.asformat("csc")

    def tocoo(self, copy: bool = False) -> Any:
        return self.asformat("coo")

    def toarray(self, order: Any = None, out: Any = None) -> Any:
        return cupy.asarray(self.get().toarray())

    def astype(self, dtype: Any) -> Any:
        return type(self)(self.get().astype(dtype))

    def transpose(self) -> Any:
        return _FORMATS[{"csr": "csc", "csc": "csr", "coo": "coo"}[self.format]](self.get().T)

    @property
    def T(self) -> Any:
        return self.transpose()


class _Compressed(spmatrix):
    _parts = ("data", "indices", "indptr")

    @property
    def has_canonical_format(self) -> bool:
        return bool(self.get().has_canonical_format)

    @property
    def has_sorted_indices(self) -> bool:
        return bool(self.get().has_sorted_indices)


class csr_matrix(_Compressed):
    format = "csr"


class csc_matrix(_Compressed):
    format = "csc"


class coo_matrix(spmatrix):
    format = "coo"
    _parts = ("data", "row", "col")


_FORMATS = {"csr": csr_matrix, "csc": csc_matrix, "coo": coo_matrix}


def _host(part: Any) -> Any:
    if not isinstance(part, cupy.ndarray):
        raise ValueError("arrays of cupyx.scipy.sparse are CuPy's")
    return part.get()


def issparse(x: Any) -> bool:
    return isinstance(x, spmatrix)


isspmatrix = issparse
