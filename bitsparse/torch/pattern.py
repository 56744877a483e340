"""Both directions of a sparse pattern as tensors, and this library's arrays over their memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from bitsparse import backends
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.torch.buffers import state_of


class Pattern(NamedTuple):
    """Both directions of a sparse pattern in the form that operators take.

    Attributes
    ----------
    indptr, indices : Tensor
        Canonical CSR arrays, int32 or int64.
    t_indptr, t_indices : Tensor
        The CSR arrays of the transpose.
    order, t_order : Tensor (nnz,)
        For each edge of the transpose, its number in the pattern; and for each edge of the pattern, its number in the transpose.
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
        """The number of rows of the pattern."""
        return int(self.indptr.shape[0]) - 1


#: Cached arrays over the memory of patterns, by the tensor `indptr` and then by the state of all parts.
_ARRAYS: Any = WeakTensorKeyDictionary()


#: The tensors `indptr` of patterns whose sums take panels where these can compute them.
_BY_PANELS: Any = WeakTensorKeyDictionary()


def take_panels(*patterns: Tensor | None) -> None:
    """Let the sums over patterns with these tensors `indptr` take panels, as long as the tensors live."""
    for indptr in patterns:
        if indptr is not None:
            _BY_PANELS[indptr] = True


def sums_kernel(pattern: Pattern, x: Tensor) -> str | None:
    """The kernel that sums of `x` without values were asked to take, if it can compute them on this GPU; else None."""
    if x.dtype != torch.float32 or not x.is_cuda or pattern.indptr not in _BY_PANELS:
        return None
    choice, shape = backends.family("cuda", "spmm.choice"), (pattern.rows, pattern.turned.rows)
    kind = choice.Kind(np.float32, x.shape[-1])
    return None if choice.panels_refuse(kind, shape, len(pattern.indices)) else "panels"


def array_over(pattern: Pattern, row_scale: Tensor | None = None, col_scale: Tensor | None = None) -> TCTiledCSR:
    """The array over the pattern's memory, with all that is prepared for it; cached while `indptr` lives and no part is written to."""
    shape = (pattern.indptr.shape[0] - 1, pattern.t_indptr.shape[0] - 1)
    key = (shape, *(state_of(part) for part in (pattern.indptr, pattern.indices, row_scale, col_scale)))
    kept = _ARRAYS.setdefault(pattern.indptr, {})
    made = kept.get(key)
    if made is not None:
        return made
    if row_scale is None and col_scale is None:
        made = TCTiledCSR.from_arrays(pattern.indptr.detach(), pattern.indices.detach(), shape)
    else:
        made = array_over(pattern).with_scales(row_scale, col_scale)
    if len(kept) >= 8:  # scales may change with every call: do not keep them for ever
        kept.clear()
    kept[key] = made
    return made
