"""Both directions of a sparse pattern as tensors, and the arrays of this library over their memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.torch.buffers import state_of


class Pattern(NamedTuple):
    """Both directions of a sparse pattern, as the operators take them.

    Attributes
    ----------
    indptr, indices : Tensor
        Canonical CSR arrays, int32 or int64.
    t_indptr, t_indices : Tensor
        Those of the transpose.
    order, t_order : Tensor (nnz,)
        Which edge of the pattern each edge of the transpose is, and the other way round.
    """

    indptr: Tensor
    indices: Tensor
    t_indptr: Tensor
    t_indices: Tensor
    order: Tensor
    t_order: Tensor

    @property
    def turned(self) -> Pattern:
        """The transpose."""
        return Pattern(self.t_indptr, self.t_indices, self.indptr, self.indices, self.t_order, self.order)

    @property
    def rows(self) -> int:
        """Rows of the pattern."""
        return int(self.indptr.shape[0]) - 1


#: Arrays over the memory of patterns by the tensor of their rows, and by what else they are made of.
_ARRAYS: Any = WeakTensorKeyDictionary()


def array_over(pattern: Pattern, row_scale: Tensor | None = None, col_scale: Tensor | None = None) -> TCTiledCSR:
    """The array over the pattern's memory, with what is prepared for it; kept while the tensor of its rows lives and none is written to."""
    shape = (pattern.indptr.shape[0] - 1, pattern.t_indptr.shape[0] - 1)
    key = (shape, *(state_of(part) for part in (pattern.indptr, pattern.indices, row_scale, col_scale)))
    kept = _ARRAYS.setdefault(pattern.indptr, {})
    if key in kept:
        return kept[key]
    if row_scale is None and col_scale is None:
        made = TCTiledCSR.from_arrays(pattern.indptr.detach(), pattern.indices.detach(), shape)
    else:
        made = array_over(pattern).with_scales(row_scale, col_scale)
    if len(kept) >= 8:  # scales that change with every call are not kept for ever
        kept.clear()
    kept[key] = made
    return made
