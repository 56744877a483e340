"""Helpers for comparisons with other libraries: conversion to their arrays, and calls that wait for a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bitsparse import jit


def finished(call: Callable[[], Any], device: str) -> Callable[[], Any]:
    """``call``, followed on a GPU by a wait until its work is done.

    Examples
    --------
    >>> finished(lambda: 3, "cpu")()
    3
    """
    if device == "cpu":
        return call
    cupy = jit.require_cupy("bench")

    def both() -> Any:
        result = call()
        cupy.cuda.Device().synchronize()
        return result

    return both


def torch_csr(matrix: Any, device: str) -> Any:
    """A SciPy csr_array as a sparse tensor of PyTorch, which must be installed; on the CPU the two share their arrays."""
    torch: Any = import_module("torch")
    arrays = (torch.from_numpy(part).to(device) for part in (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that CSR is a beta feature
        return torch.sparse_csr_tensor(*arrays, size=matrix.shape, check_invariants=False)
