"""Where a sparse function works: the device of its operands and the stream to which they belong."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.errors import DeviceError


def device_of_sparse(A: Any) -> str:
    """The device of a sparse operand of any kind, ``"cpu"`` or ``"cuda:N"``, without touching its data.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> device_of_sparse(sp.eye_array(3)), device_of_sparse(bs.FRDC((2, 2)))
    ('cpu', 'cpu')
    """
    if isinstance(A, (SparseArray, BitTensor)):
        return A.device
    if hasattr(A, "csr_arrays"):
        starts = getattr(A, "indptr", None)
        return interop.device_of(A.csr_arrays()[0] if starts is None else starts)
    if isinstance(A, np.ndarray):  # a dense array is refused later; its dtype may not even support the buffer protocol
        return "cpu"
    if not hasattr(A, "tocsr"):
        return interop.device_of_graph(A)
    # Matrices of cupyx.scipy.sparse, like those of SciPy, hold their values in `data`; `device` raises on some of them.
    return interop.device_of(getattr(A, "data", None))


def working_with(device: str, *operands: Any) -> AbstractContextManager[Any]:
    """A context on the device and stream for `operands`: PyTorch's stream if one of them is or came from a tensor, else CuPy's."""
    if device == "cpu":
        return interop.working_on(device, interop.NUMPY)
    torch = sys.modules.get("torch")
    families = [getattr(x, "_family", None) for x in operands]
    tensors = torch is not None and any(isinstance(x, torch.Tensor) for x in operands)
    theirs = tensors or any(family == interop.TORCH for family in families)
    return interop.working_on(device, interop.TORCH if theirs else interop.CUPY)


def same_place(function: str, places: Iterable[tuple[str, str]]) -> str:
    """The common device of operands given as (name, device); refuses operands on different devices.

    Examples
    --------
    >>> same_place("spmm", [("A", "cpu"), ("x", "cpu")])
    'cpu'
    """
    (name, device), *others = places
    for other, there in others:
        if there != device:
            raise DeviceError(
                f"{function}: {name} is on {device} but {other} is on {there}; move one of them, as with .to_device(...) or .get()"
            )
    return device
