"""Aggregation with one-bit operands on the CPU: which sums, and what happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends
from bitsparse._records import replace
from bitsparse.backends.params import CodeFeatures, EpilogueParams
from bitsparse.errors import KernelError
from bitsparse.ops.binary import combine
from bitsparse.ops.binary.bspmm_operands import Addend, Features
from bitsparse.ops.finish import thresholds
from bitsparse.ops.finish.epilogue import Epilogue, Operands
from bitsparse.ops.operands.csr import CSROperand

__all__ = ["HostCall"]

_ROOM = 1 << 22  # bytes of sums held at a time on the way to their final form
_METHODS = ("twice-plus", "plus-minus", "select")


class HostCall:
    """One aggregation: which sums, and what happens to them."""

    def __init__(
        self,
        function: str,
        csr: CSROperand,
        x: Features,
        variant: str,
        epilogue: Epilogue | None,
        mean: bool,
        kernel: str | None,
        extra: Addend | None,
    ) -> None:
        if x.encoding is None:
            x = replace(x, data=np.ascontiguousarray(x.data, np.float32))
        self.function, self.csr, self.x, self.epilogue, self.mean = function, csr, x, epilogue, mean
        self._extra = None if extra is None else extra.data
        self.shape = (csr.shape[0], x.shape[1])
        self.indices: Any = csr.indices
        self.lengths = np.diff(csr.indptr)
        self.longest = int(self.lengths.max(initial=0))
        counts = x.encoding is not None and variant[1] == "B" and csr.col_scale is None
        # Without a float step the stored integers are summed, as matmul multiplies them.
        plain = epilogue is None and not mean and csr.row_scale is None
        self.exact = counts and plain and (extra is None or extra.is_integer)
        self.counts = counts and (self.exact or x.node_scale is None)
        if self.counts:
            if self.longest >= 1 << 31:
                raise ValueError(
                    f"{function}: a row has {self.longest} entries, beyond int32 counters; split the graph"
                )
        elif kernel not in (None, "select"):
            raise KernelError(
                f"{function}: kernel {kernel!r} counts bits, but variant {variant!r} with these scales sums numbers; pass kernel=None"
            )
        self.kernel = kernel or _METHODS[0]

    def run(self) -> NDArray[Any]:
        """Numbers, or packed words."""
        epilogue, extra = self.epilogue, self._extra
        if self.exact:
            return self._integers() if extra is None else combine.exact_sum(self._integers(), extra)
        if epilogue is not None and epilogue.gives_bits:
            return self._bits(epilogue, extra)
        return self._floats(extra)

    def _integers(self) -> NDArray[np.int32]:
        sums: NDArray[np.int32] = backends.family("cpu", "binary.bspmm").count(
            self.csr.indptr, self.indices, self.x.data, self.shape[1], bipolar=self._bipolar, kernel=self.kernel
        )
        return sums

    @property
    def _bipolar(self) -> bool:
        return self.x.encoding == "bipolar"

    def _params(self, own: bool) -> EpilogueParams:
        """The epilogue's chain, with the adjacency's row scale and the features' scale folded in if `own`."""
        operands = Operands(self.csr.row_scale, self.x.feature_scale) if own else Operands()
        return (self.epilogue or Epilogue()).params(self.function, self.shape, operands)

    def _bits(self, epilogue: Epilogue, extra: NDArray[Any] | None) -> NDArray[np.uint32]:
        rows, features = self.shape
        params = self._params(own=extra is None)
        limits = None
        if self.counts and extra is None:
            limits = thresholds.of_epilogue(params, self.lengths, features, self.longest, mean=self.mean)
        if limits is not None:
            words = backends.family("cpu", "binary.bspmm").sign(
                self.csr.indptr,
                self.indices,
                self.x.data,
                features,
                limits,
                bipolar=self._bipolar,
                kernel=self.kernel,
            )
        else:
            along = replace(params, axis=-1, layout="planes")
            words = np.concatenate([part for _, part in self._chained(along, extra)] or [_no_words(rows, features)])
        if (params.axis, params.layout) != (-1, "planes"):
            words = backends.family("cpu", "bits.pack").repack(
                words, self.shape, 1, axis=-1, layout="planes", to_axis=params.axis, to_layout=params.layout
            )
        return np.asarray(words)

    def _floats(self, extra: NDArray[Any] | None) -> NDArray[np.float32]:
        result = np.empty(self.shape, np.float32)
        for rows, part in self._chained(self._params(own=extra is None), extra):
            result[rows] = part
        return result

    def _chained(self, params: EpilogueParams, extra: NDArray[Any] | None) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Sums of some rows at a time, through the chain: nothing of the size of the result is held besides it."""
        chain = backends.family("cpu", "matmul.matmul").epilogue
        step = max(1, _ROOM // max(4 * self.shape[1], 1))
        for start in range(0, self.shape[0], step):
            rows = slice(start, min(start + step, self.shape[0]))
            sums = self._sums(rows)
            if extra is not None:
                # the adjacency's and the features' scales belong to the aggregate alone
                first = EpilogueParams(row_scale=_part(self.csr.row_scale, rows), col_scale=self.x.feature_scale)
                sums = chain(sums, first) + extra[rows].astype(np.float32)
            yield rows, chain(sums, replace(params, row_scale=_part(params.row_scale, rows)))

    def _sums(self, rows: slice) -> NDArray[Any]:
        """Int32 or float32 sums (or means) of some rows, before any scale."""
        csr, x = self.csr, self.x
        first, last = int(csr.indptr[rows.start]), int(csr.indptr[rows.stop])
        indptr, indices = (
            csr.indptr[rows.start : rows.stop + 1] - csr.indptr.dtype.type(first),
            self.indices[first:last],
        )
        if self.counts:
            sums = backends.family("cpu", "binary.bspmm").count(
                indptr, indices, x.data, self.shape[1], bipolar=self._bipolar, kernel=self.kernel
            )
            if not self.mean:
                return np.asarray(sums)
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
            col_scale=_times(csr.col_scale, x.node_scale),
            mean=self.mean,
        )
        return np.asarray(sums)


def _part(scale: Any, rows: slice) -> Any:
    return scale if scale is None or np.ndim(scale) == 0 else np.ascontiguousarray(scale[rows])


def _times(a: NDArray[np.float32] | None, b: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    if a is None or b is None:
        return b if a is None else a
    return np.asarray(a * b, np.float32)


def _no_words(rows: int, features: int) -> NDArray[np.uint32]:
    return np.zeros((rows, 1, -(-features // 128) * 4), np.uint32)
