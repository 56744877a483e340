"""Sums over rows of features that their maker writes where the kernel gathers them, so that no copy of the features is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.backends.after_sums import AfterSums
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.spmm.gpu import GpuProducts, Laid, ProductKey

_FLOAT32 = np.dtype(np.float32)


class LaidSums:
    """Sums ``laid(rows, out, after=None)`` of float32 features on a GPU, for one pattern and one number of columns.

    Attributes
    ----------
    columns : int
        Columns of the rows, at least as many as the features have. What stands behind the features' columns does not matter.
    scaled : bool
        Whether the caller must have multiplied each row by its `col_scale`.
    """

    def __init__(self, operand: CSROperand, laid: Laid) -> None:
        self.columns, self.scaled, self._run, self._ready = laid.columns, laid.scaled, laid.run, operand.ready

    def __call__(self, rows: Any, out: Any, after: AfterSums | None = None) -> None:
        """Write the sums over `rows`, a CuPy array (N, columns), into `out`, and take steps `after` them if planned so.

        Rows may be parts of wider rows. They start at multiples of 16 bytes, as `out` does, which shares no memory with what is read.
        """
        self._ready.wait()
        self._run(rows, out, after, rows.strides[0])


def laid_sums(
    A: SparseArray, columns: int, after: bool = False, kernel: str | None = None, always: bool = False
) -> LaidSums | None:
    """The sums of :func:`bitsparse.spmm` for features that lie in rows of whole vectors; None if its kernel would not copy features.

    They have the bits that :func:`bitsparse.spmm` gives with this `kernel`. With `after`, calls may pass steps after the sums. With
    `always`, for rows that are parts of wider rows, kernels that gather features where they lie give such sums, too; None remains for
    kernels that cannot gather wider rows.
    """
    operand = as_csr("spmm", A)
    if operand.device == "cpu" or operand.values is not None or 0 in (*operand.shape, operand.nnz, columns):
        return None
    products = GpuProducts.kept(operand, ProductKey("spmm", columns, forced=kernel))
    laid = products.product(operand, _FLOAT32, _FLOAT32, None, True, after).laid
    return LaidSums(operand, laid) if laid is not None and (laid.copies or always) else None
