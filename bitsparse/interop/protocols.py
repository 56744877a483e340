"""Types of the arguments of public functions, for type checkers: arrays and sparse matrices of any library."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy.typing as npt


class _Dlpack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...


class _Cuda(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class SparseLike(Protocol):
    """A sparse matrix of this library, of :mod:`scipy.sparse` or of ``cupyx.scipy.sparse``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def nnz(self) -> int:
        """Stored entries."""

    @property
    def dtype(self) -> Any:
        """Dtype of the values."""


#: An array of NumPy, CuPy, PyTorch, JAX or another producer of DLPack or of the CUDA array interface, a BitTensor, lists or a number.
ArrayLike: TypeAlias = npt.ArrayLike | _Dlpack | _Cuda
