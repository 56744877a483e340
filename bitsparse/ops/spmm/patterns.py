"""What kernels of sparse products prepare for a pattern, and the pattern's owner keeps: windows of rows, tiles and panels."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import backends, interop
from bitsparse.arrays.sparse_base import TRANSLATIONS
from bitsparse.backends.params import Array
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand

#: Slots of a pattern: the columns that windows of rows share by their height, windows of eight rows, windows for matrix units by their
#: height and the number of columns that are multiplied at once, and panels by the vectors of a row of features.
SHARED_COLUMNS: Slot[Any] = Slot("shared columns")
WINDOWS: Slot[Any] = Slot("windows")
TILES: Slot[Any] = Slot("tiles")
PANELS: Slot[Any] = Slot("panels")


def counts_of(operand: CSROperand) -> Array:
    """The divisors of the rows' sums for means: the number of edges, but at least 1, as float32."""
    space: Any = interop.namespace(operand.indptr)
    return space.maximum(operand.indptr[1:] - operand.indptr[:-1], 1).astype(np.float32)


def windows_of(operand: CSROperand) -> Any:
    """Windows of eight rows of the pattern, computed once."""
    family = backends.family(operand.device, "spmm.windows")
    return WINDOWS.of(operand.prepared, lambda: family.Windows(operand.indptr, operand.indices, operand.shape))


def tiles_of(operand: CSROperand, height: int, dtype: Any) -> Any:
    """Condensed windows of the pattern for features of a dtype, computed once."""
    choice, family = (backends.family(operand.device, name) for name in ("spmm.choice", "spmm.tiles"))
    group, translation = choice.group_of(dtype), TRANSLATIONS.get(operand.prepared, height)
    pattern = (operand.indptr, operand.indices, operand.shape, operand.nnz)

    def make() -> Any:
        return family.Tiles(*pattern, height=height, k=group, translation=translation)

    return TILES.of(operand.prepared, make, (height, group))


def panels_of(operand: CSROperand, columns: int) -> Any:
    """The index of the pattern by panels for float32 features of `columns` columns, computed once for each number of 16-byte vectors."""
    family, pattern = backends.family(operand.device, "spmm.panels"), (operand.indptr, operand.indices, operand.shape)
    return PANELS.of(operand.prepared, lambda: family.PanelIndex(*pattern, columns), -(-columns // 4))


def shared_columns(operand: CSROperand, height: int) -> Any:
    """How many columns windows of `height` rows share, counted once per pattern."""
    count = backends.family(operand.device, "spmm.choice").shared_columns
    pattern = operand.indptr, operand.indices, operand.shape
    return SHARED_COLUMNS.of(operand.prepared, lambda: count(*pattern, height), height)
