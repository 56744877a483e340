"""Sparse times dense on a GPU: which kernel computes a product, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends
from bitsparse.errors import KernelError
from bitsparse.ops.csr_operand import CSROperand
from bitsparse.ops.features import converted

__all__ = ["GpuProducts"]

Array = NDArray[Any]
#: A product of features (cols, columns) with values per edge, into an array of the result's shape and dtype if it is given.
Product = Callable[[Array, "Array | None", "Array | None"], Array]
#: Prepared kinds of product that a container keeps.
_KEPT = 8


class GpuProducts:
    pass
