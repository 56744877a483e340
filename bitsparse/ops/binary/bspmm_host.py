"""Aggregation with one-bit operands on the CPU: the sums, and the steps that follow them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends
from bitsparse._records import replace
from bitsparse.backends.params import METHODS, Array, CodeFeatures, EpilogueParams, OperandParams, times, words_shape
from bitsparse.ops.binary.bspmm_operands import Addend, Aggregation, sum_dtype
from bitsparse.ops.finish import thresholds
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features

_ROOM = 1 << 22  # bytes of sums held at a time on the way to their final form


class HostCall:
    """One aggregation: it chooses the kind of sums, and applies the chain to them."""

    def __init__(self, csr: CSROperand, x: Features, wanted: Aggregation, extra: Addend | None) -> None:
        if x.encoding is None:
            x = dataclasses.replace(x, data=np.ascontiguousarray(x.data, np.float32))
        self.csr, self.x, self.wanted = csr, x, wanted
        self._extra = None if extra is None else extra.data
        self.shape = (csr.shape[0], x.shape[1])
        self.indices: Any = csr.indices
        self.lengths = np.diff(csr.indptr)
        self.longest = int(self.lengths.max(initial=0))
        self.exact = wanted.is_exact(x, extra)
        self.counts = self.exact or (wanted.counts(x) and x.node_scale is None)
        wanted.check_sums(self.counts, self.longest if self.counts else 0)

    def run(self) -> Array:
        """The result, as numbers or packed words."""
        extra = self._extra
        if self.exact:
            sums = self._counted(self.csr.indptr, self.indices)
            if extra is None:
                return sums
            dtype = sum_dtype(extra, self.longest)
            return np.asarray(sums.astype(dtype, copy=False) + extra.astype(dtype))
        wanted = self.wanted
        # With an addend, the scales are applied to the sums before it, and so not by the chain.
        own = OperandParams(self.csr.row_scale, self.x.feature_scale) if extra is None else OperandParams()
        params = (wanted.epilogue or Epilogue()).params(wanted.function, self.shape, own)
        if params.out == "float":
            return self._chained(params, np.empty(self.shape, np.float32))
        words = self._signs(params)
        if (params.axis, params.layout) == (-1, "planes"):
            return words
        repack = backends.family("cpu", "bits.pack").repack
        turned = {"to_axis": params.axis, "to_layout": params.layout}
        return np.asarray(repack(words, self.shape, 1, axis=-1, layout="planes", **turned))

    def _counted(self, indptr: Array, indices: Array) -> NDArray[np.int32]:
        """The counts of set bits for the rows of a pattern, as sums of 0/1 or -1/+1."""
        bipolar, kernel = self.x.encoding == "bipolar", self.wanted.method
        return backends.family("cpu", "binary.bspmm").count(
            indptr, indices, self.x.data, self.shape[1], bipolar=bipolar, kernel=kernel
        )

    def _signs(self, params: EpilogueParams) -> Array:
        """The signs of the results, as words packed along the features."""
        features, wanted, limits = self.shape[1], self.wanted, None
        # Only the first method of counting can compare its sums with thresholds without storing them.
        if self.counts and self._extra is None and wanted.method == METHODS[0]:
            limits = thresholds.of_epilogue(params, self.lengths, features, self.longest, mean=wanted.mean)
        if limits is None:
            words = np.empty(words_shape(self.shape, 1, -1, "planes"), np.uint32)
            return self._chained(replace(params, axis=-1, layout="planes"), words)
        sign, bipolar = backends.family("cpu", "binary.bspmm").sign, self.x.encoding == "bipolar"
        return np.asarray(sign(self.csr.indptr, self.indices, self.x.data, features, limits, bipolar=bipolar))

    def _chained(self, params: EpilogueParams, made: Array) -> Array:
        """Apply the chain to the sums of some rows at a time, and write to `made`, so that little other memory is needed."""
        extra, chain = self._extra, backends.family("cpu", "matmul.matmul").epilogue
        step = max(1, _ROOM // max(4 * self.shape[1], 1))
        for start in range(0, self.shape[0], step):
            rows = slice(start, min(start + step, self.shape[0]))
            sums = self._sums(rows)
            if extra is not None:
                # the scales of adjacency and features apply to the aggregate, but not to the addend
                first = EpilogueParams(row_scale=_part(self.csr.row_scale, rows), col_scale=self.x.feature_scale)
                sums = chain(sums, first) + extra[rows].astype(np.float32)
            made[rows] = chain(sums, replace(params, row_scale=_part(params.row_scale, rows)))
        return made

    def _sums(self, rows: slice) -> Array:
        """Int32 or float32 sums (or means) of some rows, before any scale."""
        csr, x = self.csr, self.x
        first, last = int(csr.indptr[rows.start]), int(csr.indptr[rows.stop])
        indptr, indices = (
            csr.indptr[rows.start : rows.stop + 1] - csr.indptr.dtype.type(first),
            self.indices[first:last],
        )
        if self.counts:
            sums = self._counted(indptr, indices)
            if not self.wanted.mean:
                return sums
            divisor = np.maximum(self.lengths[rows], 1).astype(np.float32)[:, None]
            return np.asarray(sums.astype(np.float32) / divisor)
        data: Any = x.data
        if x.encoding is not None:
            data = CodeFeatures(x.data.reshape(x.data.shape[0], x.data.shape[-1]), x.shape[1], 1, x.encoding)
        sums = backends.family("cpu", "sampling.sample").gather(
            indptr,
            indices,
            data,
            values=None if csr.values is None else csr.values[first:last].astype(np.float32),
            col_scale=times(csr.col_scale, x.node_scale),
            mean=self.wanted.mean,
        )
        return np.asarray(sums)


def _part(scale: Any, rows: slice) -> Any:
    return scale if scale is None or np.ndim(scale) == 0 else np.ascontiguousarray(scale[rows])
