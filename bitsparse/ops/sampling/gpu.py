"""Sums over sampled edges on a GPU, which draw the sample again in every call or keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.indices import gather
from bitsparse.backends.params import Array, CodeFeatures, Sampling
from bitsparse.errors import KernelError
from bitsparse.interop import as_bits
from bitsparse.interop.kept import Slot, Store
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.operands.target import written
from bitsparse.ops.sampling.sample import distinct_edges, drawing_of
from bitsparse.ops.spmm.gpu import GpuProducts, ProductKey
from bitsparse.ops.spmm.plan import KERNELS

Run = Callable[[Array, Array | None, Array | None], Array]
#: Kernels for a sample that is kept.
SAMPLE_KERNELS = (*KERNELS, "short")
#: By default "short" is used up to this many columns; above half as many, only if the result has at most this many bytes.
SHORT_COLUMNS, SHORT_BYTES = 64, 1 << 24
#: The sampling that leaves nothing out.
_EVERY_EDGE = Sampling(1 << 48, "sfs")


#: Slots for the kernels of sampled sums over a pattern: first by width, strategy and rescaling, then by dtype or kind of codes, number of
#: columns and alignment of the arrays; each kernel is kept with the weights that it reads.
DRAWN_SUMS: Slot[tuple[Any, Store]] = Slot("sampled sums", most=8)
_KERNELS: Slot[tuple[Any, EdgeWeights]] = Slot("kernels", most=8)


class DrawnSums:
    """Sums that draw their samples in every call: ``sums(x, acc, out)``.

    The prepared kernels, one for each kind of features, are kept with the pattern of a container.
    """

    def __init__(self, operand: CSROperand, sampling: Sampling, rescale: bool) -> None:
        self.operand, self._sampling, self._rescale = operand, sampling, rescale
        self.drawing = drawing_of(operand, sampling)
        self._kernels = operand.kept_with_factors(DRAWN_SUMS, dict, (sampling.width, sampling.strategy, rescale))

    def explain(self) -> list[str]:
        """Describe the sample of a call."""
        total, edges = self.drawing.total, self.drawing.nnz
        return [f"{total} samples, {100 * total / max(1, edges):.1f} % of the edges, drawn in every call"]

    def prepare(self, dtype: np.dtype[Any], acc: np.dtype[Any], columns: int) -> Run:
        """Compile the kernel for aligned features of a dtype; returns ``run(x, values, out)`` for them."""
        self._at(dtype, acc, columns, 16)
        return lambda x, _, out: self(x, acc, out)

    def _at(self, kind: Any, acc: np.dtype[Any], columns: int, alignment: int) -> Any:
        """The kernel for features of a dtype, or codes of a kind, with its weights brought up to date."""
        operand, key = self.operand, (kind, columns, alignment)
        kept = _KERNELS.get(self._kernels, key)
        if kept is None:
            operand.ready.wait()
            weights = EdgeWeights(operand, operand.values, acc)
            made = backends.family(operand.device, "sampling.sample").SampledSum(
                self.drawing,
                operand.indices,
                columns=columns,
                x_dtype=kind,
                values=weights.now(),
                col_scale=operand.col_scale,
                row_scale=operand.row_scale,
                rescale=self._rescale,
                alignment=alignment,
            )
            kept = _KERNELS.keep(self._kernels, (made, weights), key)
            operand.ready.renew()
        made, weights = kept
        weights.now()  # writes the current weights to the memory that the kernel reads
        return made

    def __call__(self, x: Array | CodeFeatures, acc: np.dtype[Any], out: Array | None) -> Array:
        """The sums of rows of `x`, which is contiguous and of the result's dtype, or codes."""
        device = self.operand.device
        self.operand.ready.wait()
        if isinstance(x, CodeFeatures):
            kind = backends.family(device, "sampling.sample").Codes.of(x)
            product = self._at(kind, np.dtype(np.float32), x.features, 16)
        else:
            place, item = 0 if out is None else cast(Any, out).data.ptr, x.dtype.itemsize
            alignment = backends.family(device, "spmm.choice").alignment_of(cast(Any, x).data.ptr, item, place, item)
            product = self._at(x.dtype, acc, int(x.shape[1]), alignment)
        return product(x, out, seed=self._sampling.seed, stream=self._sampling.stream)


class StoredSums:
    """Sums over one sample that is kept as a sparse matrix in canonical order and multiplied by the kernels of :func:`spmm`.

    An edge that was drawn several times is kept once, with that number as an exact weight; if there are no other weights, it may instead be
    kept as often as it was drawn. Codes are gathered packed.
    """

    def __init__(
        self, function: str, csr: CSROperand, columns: int, sampling: Sampling, rescale: bool, kernel: str | None
    ) -> None:
        forced = _check.kernel(function, kernel, SAMPLE_KERNELS)
        drawing = drawing_of(csr, sampling)
        csr.ready.wait()
        drawn = drawing.edges(sampling.seed, sampling.stream, columns=False)[0]
        starts, edges, weights = distinct_edges(drawing.starts, drawn)
        if weights is not None and csr.values is None and forced in (None, "csr", "short"):
            # Reading some edges twice costs less than reading a weight for every edge.
            starts, edges, weights, forced = drawing.starts, interop.namespace(drawn).sort(drawn), None, forced or "csr"
        row_scale = csr.row_scale
        if rescale:
            factors = drawing.factors(np.float32)
            row_scale = factors if row_scale is None else factors * row_scale
        found = csr.columns[edges]
        #: The values of the matrix, which may change, and the array into which every call gathers those of the sample.
        self._values, self._drawn_edges, self._taken = csr.values, edges, None
        self._weights: EdgeWeights | None = None
        if csr.values is not None:
            self._taken = gather(csr.values, edges)
            wide = np.dtype(np.float64 if self._taken.dtype.itemsize == 8 else np.float32)
            self._weights = EdgeWeights(csr, self._taken, wide, counts=weights)
            weights = self._weights.now()
        self.operand = CSROperand(starts, found, weights, row_scale, csr.col_scale, csr.shape, count=int(edges.size))
        self._function, self._columns, self._asked = function, columns, kernel
        self._short: tuple[Any, EdgeWeights] | None = None
        others = None if forced == "short" else forced
        self._products = GpuProducts(self.operand, ProductKey(function, columns, forced=others))
        self._drawn, self._edges = drawing.total, drawing.nnz
        csr.ready.renew()
        self.operand.ready.renew()

    def explain(self) -> list[str]:
        """Describe the sample that is kept, and the kernels for it."""
        kept, share = self.operand.nnz, 100 * self._drawn / max(1, self._edges)
        first = f"{self._drawn} samples, {share:.1f} % of the edges, kept as {kept} of them"
        if self._short is not None:
            return [first, f"float32: kernel short ({'forced' if self._asked else 'few columns'})"]
        return [first, *self._products.explain()]

    def prepare(self, dtype: np.dtype[Any], acc: np.dtype[Any], columns: int) -> Run:
        """Choose and compile the kernel; returns ``run(x, values, out)`` for features of this dtype."""
        run = self._by_length(dtype, columns)
        if run is None:
            run = self._products.product(self.operand, dtype, acc, self.operand.values, True).run
        if self._weights is None:
            return run

        def fresh(x: Array, values: Array | None, out: Array | None) -> Array:
            self._take()
            return run(x, values, out)

        return fresh

    def _take(self) -> None:
        """Gather the current values of the sampled edges into the memory that kernels read; takes two or three launches."""
        if self._weights is None:
            return
        values, taken = as_bits(self._values), as_bits(self._taken)
        cast(Any, interop.namespace(taken)).take(values, self._drawn_edges, axis=0, out=taken)
        self._weights.now()
        if self._short is not None:
            short, weights = self._short
            short.weigh(weights.now())

    def _by_length(self, dtype: np.dtype[Any], columns: int) -> Run | None:
        """The kernel "short"; None if it cannot be used or is not the quickest, unless the caller demands it."""
        operand = self.operand
        # The quickest for few columns, as measured on graphs of 14 000 to 70 000 rows.
        most = SHORT_COLUMNS if operand.shape[0] * columns * 4 <= SHORT_BYTES else SHORT_COLUMNS // 2
        if self._asked != "short" and (self._asked is not None or columns > most):
            return None
        family = backends.family(operand.device, "spmm.short_rows")
        why = family.refusal(columns, dtype, operand.longest_row, operand.nnz + 3 * operand.shape[0])
        if why is not None:
            if self._asked is None:
                return None
            raise KernelError(f"{self._function}: kernel 'short' cannot compute this: {why}; pass kernel=None")
        if self._short is None:
            operand.ready.wait()
            own = EdgeWeights(operand, operand.values, np.float32, operand.col_scale)
            how = {"values": own.now(), "row_scale": operand.row_scale}
            self._short = family.ShortSum(operand.indptr, operand.columns, columns, **how), own
            operand.ready.renew()
        short, shape = self._short[0], (operand.shape[0], columns)
        return lambda x, _, out: written(lambda target: short(x, target), out, x, shape, np.float32)

    def __call__(self, x: Array | CodeFeatures, acc: np.dtype[Any], out: Array | None) -> Array:
        """The sums of rows of `x`, which is contiguous and of the result's dtype, or codes."""
        self.operand.ready.wait()
        if isinstance(x, CodeFeatures):
            self._take()
            return DrawnSums(self.operand, _EVERY_EDGE, False)(x, acc, out)
        return self.prepare(x.dtype, acc, self._columns)(x, self.operand.values, out)
