"""Sums over sampled edges on a GPU: drawn anew in every call, or over a sample that is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays.indices import as_bits
from bitsparse.backends.params import CodeFeatures
from bitsparse.errors import KernelError
from bitsparse.interop.kept import Slot, Store
from bitsparse.ops.operands.csr import CSROperand, take_rows
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.sampling.sample import distinct_edges, drawing_of
from bitsparse.ops.spmm.gpu import GpuProducts
from bitsparse.ops.spmm.plan import KERNELS

__all__ = ["SAMPLE_KERNELS", "DrawnSums", "StoredSums"]

Array = NDArray[Any]
Run = Callable[[Array, Array | None, Array | None], Array]
#: Kernels for a sample that is kept.
SAMPLE_KERNELS = (*KERNELS, "short")
#: Columns up to which a sample takes the last of them unless another is asked for, and bytes of the result beyond half as many.
SHORT_COLUMNS, SHORT_BYTES = 64, 1 << 24
#: The sampling that leaves nothing out.
_EVERY_EDGE = {"width": 1 << 48, "strategy": "sfs", "seed": 0, "stream": 0}


def _takes_short(rows: int, columns: int) -> bool:
    """Whether rows dealt out by their length are the quicker ones, as measured on graphs of 14 000 to 70 000 rows."""
    return columns <= SHORT_COLUMNS // 2 or (columns <= SHORT_COLUMNS and rows * columns * 4 <= SHORT_BYTES)


class SumsKey(NamedTuple):
    """What tells apart the sampled sums that a pattern keeps."""

    width: int
    strategy: str
    rescale: bool


class SumKey(NamedTuple):
    """What tells apart the kernels of one kind of sums: a dtype or what codes are, columns, and the alignment of the arrays."""

    kind: Any
    columns: int
    alignment: int


#: Sums of a pattern, and the kernels of one kind of sums with the weights that they read.
DRAWN_SUMS: Slot[DrawnSums] = Slot("sampled sums", most=8)
_KERNELS: Slot[tuple[Any, EdgeWeights | None]] = Slot("kernels", most=8)


class DrawnSums:
    """Sums that draw their samples as they go: ``sums(csr, x, acc, sampling, out)``, one kernel for each kind of features.

    It holds the operand's arrays but not what the container keeps, so that the container can keep it without a cycle.
    """

    def __init__(self, csr: CSROperand, drawing: Any, rescale: bool) -> None:
        self.drawing, self._rescale = drawing, rescale
        self.factors = (csr.values, csr.col_scale, csr.row_scale)
        self._kernels: Store = {}

    @classmethod
    def kept(cls, csr: CSROperand, sampling: dict[str, Any], rescale: bool) -> DrawnSums:
        """What a container keeps for sums of this kind, or new ones. Containers of one pattern may differ in values and scales."""
        key = SumsKey(sampling["width"], sampling["strategy"], rescale)
        sums, mine = DRAWN_SUMS.get(csr.prepared, key), (csr.values, csr.col_scale, csr.row_scale)
        if sums is None or not all(one is other for one, other in zip(sums.factors, mine, strict=True)):
            csr.ready.wait()
            sums = DRAWN_SUMS.keep(csr.prepared, cls(csr, drawing_of(csr, sampling), rescale), key)
            csr.ready.renew()
        return sums

    def explain(self) -> list[str]:
        """What a call does."""
        total, edges = self.drawing.total, self.drawing.nnz
        return [f"{total} samples, {100 * total / max(1, edges):.1f} % of the edges, drawn in every call"]

    def prepare(
        self, csr: CSROperand, dtype: np.dtype[Any], acc: np.dtype[Any], sampling: dict[str, Any], columns: int
    ) -> tuple[CSROperand, Run]:
        """Compile for aligned features of a dtype; whose sum a call is, and ``run(x, values, out)`` of such features."""
        self._at(csr, dtype, acc, columns, 16)
        return csr, lambda x, _, out: self(csr, x, acc, sampling, out)

    def _at(self, csr: CSROperand, kind: Any, acc: np.dtype[Any], columns: int, alignment: int) -> Any:
        """For features of a dtype, or codes of a kind."""
        key = SumKey(kind, columns, alignment)
        kept = _KERNELS.get(self._kernels, key)
        if kept is None:
            csr.ready.wait()
            values, col_scale, row_scale = self.factors
            weights = None if values is None else EdgeWeights(csr, values, acc)
            made = backends.family(csr.device, "sampling.sample").SampledSum(
                self.drawing,
                csr.indices,
                columns=columns,
                x_dtype=kind,
                values=None if weights is None else weights.now(),
                col_scale=col_scale,
                row_scale=row_scale,
                rescale=self._rescale,
                alignment=alignment,
            )
            kept = _KERNELS.keep(self._kernels, (made, weights), key)
            csr.ready.renew()
        made, weights = kept
        if weights is not None:
            weights.now()  # written to where the kernel reads them
        return made

    def __call__(
        self, csr: CSROperand, x: Array | CodeFeatures, acc: np.dtype[Any], sampling: dict[str, Any], out: Array | None
    ) -> Array:
        """The sums of the rows of `x`, contiguous and of the result's dtype, or codes."""
        csr.ready.wait()
        if isinstance(x, CodeFeatures):
            kind = backends.family(csr.device, "sampling.sample").Codes.of(x)
            product = self._at(csr, kind, np.dtype(np.float32), x.features, 16)
        else:
            alignment = backends.family(csr.device, "spmm.choice").alignment_of(x, out, x.dtype)
            product = self._at(csr, x.dtype, acc, int(x.shape[1]), alignment)
        result: Array = product(x, out, seed=sampling["seed"], stream=sampling["stream"])
        return result


class StoredSums:
    """Sums over one sample, kept as a sparse matrix in canonical order: products by the kernels of :func:`spmm`.

    An edge drawn several times is kept once and weighted with how often, which is exact; or, where there are no weights else, as often as
    it was drawn. Codes are gathered packed.
    """

    def __init__(
        self,
        function: str,
        csr: CSROperand,
        drawing: Any,
        columns: int,
        sampling: dict[str, Any],
        rescale: bool,
        kernel: str | None,
    ) -> None:
        forced = _check.kernel(function, kernel, SAMPLE_KERNELS)
        csr.ready.wait()
        drawn = drawing.edges(sampling["seed"], sampling["stream"], columns=False)[0]
        starts, edges, weights = distinct_edges(drawing.starts, drawn)
        if weights is not None and csr.values is None and forced in (None, "csr", "short"):
            # Reading some edges twice takes less than reading a weight for each.
            starts, edges, weights, forced = drawing.starts, interop.namespace(drawn).sort(drawn), None, forced or "csr"
        row_scale = csr.row_scale
        if rescale:
            factors = drawing.factors(np.float32)
            row_scale = factors if row_scale is None else factors * row_scale
        found = csr.columns[edges]
        #: Where the values of the matrix are, which may change, and where those of the sample are put in every call.
        self._values, self._drawn_edges, self._taken = csr.values, edges, None
        self._weights: EdgeWeights | None = None
        if csr.values is not None:
            self._taken = take_rows(csr.values, edges)
            wide = np.dtype(np.float64 if self._taken.dtype.itemsize == 8 else np.float32)
            self._weights = EdgeWeights(csr, self._taken, wide, counts=weights)
            weights = self._weights.now()
        self._operand = CSROperand(starts, found, weights, row_scale, csr.col_scale, csr.shape, count=int(edges.size))
        self._function, self._columns, self._asked = function, columns, kernel
        self._short: Any = None
        self._short_weights: EdgeWeights | None = None
        others = None if forced == "short" else forced
        self._products = GpuProducts(function, self._operand, columns, "sum", "fp32", others)
        self._drawn, self._edges = drawing.total, drawing.nnz
        csr.ready.renew()
        self._operand.ready.renew()

    def explain(self) -> list[str]:
        """What a call does."""
        kept, share = self._operand.nnz, 100 * self._drawn / max(1, self._edges)
        first = f"{self._drawn} samples, {share:.1f} % of the edges, kept as {kept} of them"
        if self._short is not None:
            return [first, f"float32: kernel short ({'forced' if self._asked else 'few columns'})"]
        return [first, *self._products.explain()]

    def _run(self, dtype: np.dtype[Any], acc: np.dtype[Any]) -> Run:
        """``run(x, values, out)`` for features of this dtype."""
        if self._asked == "short" or (self._asked is None and _takes_short(self._operand.shape[0], self._columns)):
            short = self._short_sum(dtype)
            if short is not None:
                return self._with_values(lambda x, _, out: cast(Array, short(x, out)))
        return self._with_values(self._products.product(self._operand, dtype, acc, self._operand.values, 1, True).run)

    def _with_values(self, run: Run) -> Run:
        """The same sum after a look at the values of the matrix, if it has any."""
        if self._weights is None:
            return run

        def fresh(x: Array, values: Array | None, out: Array | None) -> Array:
            self._take()
            return run(x, values, out)

        return fresh

    def _take(self) -> None:
        """Write the values of the edges that were drawn to where the kernels read them; two or three launches."""
        if self._weights is None:
            return
        values, taken = as_bits(self._values), as_bits(self._taken)
        cast(Any, interop.namespace(taken)).take(values, self._drawn_edges, axis=0, out=taken)
        self._weights.now()
        if self._short_weights is not None:
            self._short.weigh(self._short_weights.now())

    def _short_sum(self, dtype: np.dtype[Any]) -> Any:
        """Rows dealt out by their length; None if they cannot be and nobody insists."""
        operand = self._operand
        family = backends.family(operand.device, "spmm.short_rows")
        why = family.refusal(self._columns, dtype, operand.longest_row, operand.nnz + 3 * operand.shape[0])
        if why is not None and self._asked is None:
            return None
        if why is not None:
            raise KernelError(f"{self._function}: kernel 'short' cannot compute this: {why}; pass kernel=None")
        if self._short is None:
            operand.ready.wait()
            own = None
            if operand.values is not None or operand.col_scale is not None:
                own = EdgeWeights(operand, operand.values, np.float32, operand.col_scale)
            self._short = family.ShortSum(
                operand.indptr,
                operand.columns,
                self._columns,
                values=None if own is None else own.now(),
                row_scale=operand.row_scale,
            )
            self._short_weights = own
            operand.ready.renew()
        return self._short

    def prepare(
        self, csr: CSROperand, dtype: np.dtype[Any], acc: np.dtype[Any], sampling: dict[str, Any], columns: int
    ) -> tuple[CSROperand, Run]:
        """Choose and compile the kernel; whose sum a call is, and ``run(x, values, out)`` of features of this dtype."""
        return self._operand, self._run(dtype, acc)

    def __call__(
        self, csr: CSROperand, x: Array | CodeFeatures, acc: np.dtype[Any], sampling: dict[str, Any], out: Array | None
    ) -> Array:
        """The sums of the rows of `x`, contiguous and of the result's dtype, or codes."""
        self._operand.ready.wait()
        if isinstance(x, CodeFeatures):
            self._take()
            return DrawnSums.kept(self._operand, _EVERY_EDGE, False)(self._operand, x, acc, _EVERY_EDGE, out)
        return self._run(x.dtype, acc)(x, self._operand.values, out)
