"""Products of sparse matrices with dense features on a GPU: the choice of the kernel, and what is kept between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends, interop
from bitsparse._check import shown
from bitsparse.backends.after_sums import AfterSums
from bitsparse.backends.params import Array
from bitsparse.errors import KernelError
from bitsparse.interop import converted
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.operands.target import written
from bitsparse.ops.plan import KeptCall
from bitsparse.ops.spmm.patterns import counts_of, panels_of, shared_columns, tiles_of, windows_of

#: ``run(x, weights, out)`` takes features (cols, columns), values per edge or None, and an array for the result or None.
Run = Callable[[Array, Array | None, Array | None], Array]


class Laid(NamedTuple):
    """A product over rows that callers write as its kernel gathers them.

    Attributes
    ----------
    columns : int
        Columns of a row, those of the features or a few more.
    copies : bool
        Whether the kernel otherwise copies features to such rows.
    scaled : bool
        Whether the copy multiplies each row by the scale of its column of A.
    run : callable
        ``run(rows, out, after, apart)``, with the number of bytes from a row to the next one.
    """

    columns: int
    copies: bool
    scaled: bool
    run: Callable[..., None]


class Product(NamedTuple):
    """One product, ready to run.

    Attributes
    ----------
    run : Run
    explain : str
        Which kernel it is and why.
    kernel : str
        Its name.
    laid : Laid, optional
    """

    run: Run
    explain: str
    kernel: str
    laid: Laid | None = None


class ProductKey(NamedTuple):
    """The key that distinguishes the products that a pattern keeps: the public function, and the options."""

    function: str
    columns: int
    reduce: str = "sum"
    precision: str = "fp32"
    forced: str | None = None


#: Slot of a pattern: its products by key.
PRODUCTS: Slot[tuple[Any, GpuProducts]] = Slot("products", most=16)


def kept_product(
    operand: CSROperand,
    run: Any,
    dtype: np.dtype[Any],
    inner: tuple[int, ...],
    result_dtype: np.dtype[Any],
    brought: Array | None = None,
    after: bool = False,
) -> KeptCall:
    """A kept call for CuPy features of one dtype and shape, with A's own values or with values like `brought`.

    With `after`, a call also passes steps after the sums behind the features (N, columns); nothing checks them.
    """
    rows, cols = operand.shape
    values, columns = operand.values, int(np.prod(inner, dtype=np.int64))

    def product(x: Any, out: Any) -> None:
        run(x, values, out)

    def reshaped(x: Any, out: Any) -> None:
        run(x.reshape(cols, columns), values, out.reshape(rows, columns))

    def with_values(x: Any, given: Any, out: Any) -> None:
        run(x.reshape(cols, columns), given, out.reshape(rows, columns))

    def with_steps(x: Any, steps: AfterSums, out: Any) -> None:
        run(x, values, out, steps)

    kinds, result = [((cols, *inner), dtype)], ((rows, *inner), result_dtype)
    flat: Callable[..., None] = product if len(inner) == 1 else reshaped
    alignment = 1
    if brought is not None:
        kinds.append((brought.shape, brought.dtype))
        flat, alignment = with_values, 16
    if after:
        flat = with_steps
    device, ready = operand.device, operand.ready
    own = operand.factors
    return KeptCall(flat, kinds, result, device, ready=ready, owner=own, beside=own[:1], alignment=alignment)


class GpuProducts:
    """Products of one operand with features of one width, one per kind of features and values.

    It holds the operand's arrays but not the container's store, so that the container can keep it without a reference cycle.
    """

    def __init__(self, operand: CSROperand, key: ProductKey) -> None:
        self._key = key
        self._values, self._row_scale, self._col_scale = operand.factors
        self._made: dict[Any, Product] = {}
        #: Bytes of the index that the kernel named by the caller needs beside the pattern.
        self.nbytes = 0

    @classmethod
    def kept(cls, operand: CSROperand, key: ProductKey) -> GpuProducts:
        """The products of this kind that a container keeps, or new ones; products with frozen values belong to one plan alone.

        The key contains which factors exist, so that a mean and its gradient, which scale rows and columns of one pattern, do not evict
        each other.
        """
        if operand.frozen:
            return cls(operand, key)
        which = tuple(factor is not None for factor in operand.factors)
        return operand.kept_with_factors(PRODUCTS, lambda: cls(operand, key), (key, which))

    def explain(self) -> list[str]:
        """Name the kernel of each product that has been prepared so far, and say why it was chosen."""
        return [f"{name}: {product.explain}" for (name, *_), product in self._made.items()]

    def product(
        self,
        operand: CSROperand,
        dtype: np.dtype[Any],
        acc: np.dtype[Any],
        weights: Array | None,
        keep: bool,
        after: bool = False,
    ) -> Product:
        """The product for features of `dtype` summed in `acc`, with weights like `weights`; `after`: calls pass steps after the sums, too.

        With `keep`, preparations that take a pass over the pattern are allowed in order to find the quickest kernel.
        """
        own = weights is not None and weights is self._values
        values = None if weights is None else weights.dtype
        per_head = weights is not None and weights.ndim == 2
        key = (dtype.name, acc.name, values, weights is not None and weights.shape[1:], own, keep, after)
        found = self._made.get(key)
        if found is None:
            kind = backends.family(operand.device, "spmm.choice").Kind(
                dtype,
                *self._key[1:4],
                values,
                own,
                per_head,
                self._col_scale is not None,
                operand.indices is not None,
                own and operand.frozen,
            )
            operand.ready.wait()
            kernel, height, why = self.chosen(operand, kind, keep)
            laid = None
            if after and kernel not in ("csr", "panels"):
                # The steps are separate kernels, and the index of tiles or windows is that of sums without steps.
                plain = self.product(operand, dtype, acc, weights, keep)
                found = self._made[key] = plain._replace(run=_followed(plain.run))
                return found
            if kernel in ("csr", "nonzero"):
                (run, laid), more = self._csr(operand, kind, acc, weights, after, kernel == "nonzero"), ""
            elif kernel == "panels":
                run, laid, more = self._panels(operand, kind, after)
            elif kernel == "windows":
                run, more = self._windows(operand, kind, weights)
            else:
                run, more = self._tiles(operand, kind, weights, height)
            found = self._made[key] = Product(run, f"kernel {kernel} ({why}){more}", kernel, laid)
            operand.ready.renew()
        return found

    def chosen(self, operand: CSROperand, kind: Any, keep: bool) -> tuple[str, int, str]:
        """The chosen kernel, the height of its windows, and the reason."""
        choice = backends.family(operand.device, "spmm.choice")
        refused = choice.refusals(kind, operand.shape, operand.nnz)
        forced = self._key.forced
        why = "x is not packed; pass a BitTensor" if forced == "codes" else refused.get(forced or "")
        if forced in choice.NAMED and (reason := choice.NAMED[forced](kind, operand.shape, operand.nnz)):
            why = f"{reason}; pass kernel=None"
        if why is not None:
            raise KernelError(f"{self._key.function}: kernel {shown(forced)} cannot compute this: {why}")
        if forced is not None and forced in ("csr", *choice.NAMED):
            return forced, 0, "forced"
        others = [name for name in choice.KERNELS if name not in refused and name != "csr"]
        if forced is None and not others:
            return "csr", 0, "; ".join(f"not {name}: {reason}" for name, reason in refused.items())
        if forced is None and not keep:
            return "csr", 0, "nothing is prepared for a single product"
        shared = {8: shared_columns(operand, 8)}
        sharing = operand.nnz / max(1, shared[8].entries)
        if forced is None and sharing < choice.WORTH:
            return "csr", 0, f"neighbouring rows have {sharing:.2f} edges to a column"
        shared |= {height: shared_columns(operand, height) for height in (16, 32) if "tiles" in others}
        found = choice.estimates(kind, operand.shape, operand.nnz, shared)
        if forced is not None:
            return forced, next((one.height for one in found if one.kernel == forced), 0), "forced"
        costs = ", ".join(f"{one.kernel}{one.height or ''} {one.cost:.3g} us" for one in found)
        return found[0].kernel, found[0].height, f"lowest estimated cost; {costs}"

    def _csr(
        self, operand: CSROperand, kind: Any, acc: np.dtype[Any], weights: Array | None, after: bool, nonzero: bool
    ) -> tuple[Callable[..., Array], Laid | None]:
        """The kernel that takes one edge at a time, and its way for rows that are laid already, if there are no weights."""
        row_scale, col_scale = self._row_scale, self._col_scale
        # Values of 16 bits are not converted for features of 16 bits, unless scales become part of them.
        narrow = None
        if weights is not None and row_scale is None and col_scale is None:
            backend = backends.family(operand.device, "spmm.spmm")
            narrow = backend.value_dtype_of(weights.dtype, kind.dtype, weights.ndim)
        brought_in = acc if narrow is None else narrow
        own: EdgeWeights | None = None
        if kind.fixed and weights is not None:
            # Scales become part of the matrix's own values: reading one stream of factors replaces a second gather for every edge.
            if acc.kind == "f" and kind.reduce == "sum" and not kind.per_head:
                own, col_scale, row_scale = EdgeWeights(operand, weights, brought_in, col_scale, row_scale), None, None
            else:
                own = EdgeWeights(operand, weights, brought_in)
        brought = "none" if weights is None else "head" if kind.per_head else "edge"
        heads = weights.shape[1] if weights is not None and kind.per_head else 1
        how = {"heads": heads, "weights": brought, "value_dtype": narrow, "after": after, "nonzero": nonzero}
        sums, usual = edge_sums(operand, kind, acc, row_scale=row_scale, col_scale=col_scale, **how)

        def run(x: Array, values: Array | None, out: Array | None, after: AfterSums | None = None) -> Array:
            given = own.now() if own is not None else None if values is None else converted(values, brought_in)
            return sums(x, given, out, after=after)

        self.nbytes, copies = usual.index_nbytes, not usual.is_plain
        laid = Laid(usual.width, copies, copies and col_scale is not None, usual.of_laid)
        return run, laid if weights is None and not nonzero else None

    def _windows(self, operand: CSROperand, kind: Any, weights: Array | None) -> tuple[Run, str]:
        """The kernel with windows of eight rows on the CUDA cores; arrays of an unusual alignment are copied."""
        windows = windows_of(operand)
        col_scale, row_scale, shape = self._col_scale, self._row_scale, (operand.shape[0], kind.columns)
        counts = counts_of(operand) if kind.reduce == "mean" else None
        of_columns = windows.weigh(col_scale=col_scale) if kind.values is None and col_scale is not None else None
        arranged = _arranged(operand, kind, weights, lambda values, into: windows.weigh(values, col_scale, out=into))

        def run(x: Array, values: Array | None, out: Array | None) -> Array:
            factors = of_columns if arranged is None else arranged(values)
            how = {"weights": factors, "row_scale": row_scale, "counts": counts}
            return run_windows(windows, x, out, shape, np.float32, how)

        return run, f", {windows.reuse:.2f} edges to a row of features that is read"

    def _tiles(self, operand: CSROperand, kind: Any, weights: Array | None, height: int) -> tuple[Run, str]:
        """The kernel with windows of rows on the matrix units."""
        choice, tiles = backends.family(operand.device, "spmm.choice"), tiles_of(operand, height, kind.dtype)
        arranged = _arranged(operand, kind, weights, tiles.arrange)
        precision, reduce = choice.tiles_precision(kind), kind.reduce
        row_scale, col_scale, ready = self._row_scale, self._col_scale, operand.ready
        known: list[bool] = []

        def run(x: Array, values: Array | None, out: Array | None) -> Array:
            given = None if arranged is None else arranged(values)
            result: Array = tiles.run(x, given, row_scale, col_scale, reduce, precision, out)
            if not known:  # the first call prepares the rest
                ready.renew()
                known.append(True)
            return result

        how = precision if kind.dtype == np.float32 else kind.dtype
        return run, f", {how}, {height} rows, {tiles.reuse:.2f} edges to a row of features that is read"

    def _panels(self, operand: CSROperand, kind: Any, after: bool) -> tuple[Callable[..., Array], Laid, str]:
        """The kernel that stages the rows of features that panels of rows share; arrays of an unusual alignment are copied."""
        factor, col_scale, columns = self._row_scale, self._col_scale, kind.columns
        if kind.reduce == "mean":
            inverse: Any = 1 / counts_of(operand)
            factor = inverse if factor is None else inverse * factor
        index, shape = panels_of(operand, columns), (operand.shape[0], columns)
        family = backends.family(operand.device, "spmm.panels")
        sums = family.PanelSum(index, columns, factor=factor, col_scale=col_scale, after=after)
        self.nbytes = index.nbytes

        def run(x: Array, values: Array | None, out: Array | None, after: AfterSums | None = None) -> Array:
            return written(lambda target: sums(interop.aligned(x), target, after), out, x, shape, np.float32)

        laid = Laid(sums.width, sums.lays, col_scale is not None, sums.of_laid)
        staged = f"{index.share:.0%} of the edges staged, {index.reuse:.2f} of them to a staged row of features"
        return run, laid, f", {staged}, index of {index.nbytes} bytes"


def _followed(run: Run) -> Callable[..., Array]:
    """A product that runs `run` and then takes the steps after the sums one by one."""

    def followed(x: Array, values: Array | None, out: Array | None, after: AfterSums) -> Array:
        made = run(x, values, out)
        after.take(made)
        return made

    return followed


def _arranged(
    operand: CSROperand, kind: Any, weights: Array | None, arrange: Callable[[Any, Any], Any]
) -> Callable[[Any], Any] | None:
    """A function from the values of a call to the array that ``arrange(values, into)`` makes for a kernel; None without values.

    The matrix's own values are arranged again in every call, into memory that was allocated once, unless they are frozen.
    """
    if weights is None:
        return None
    if not kind.fixed:
        return lambda values: arrange(interop.contiguous(converted(values, np.float32)), None)
    own = EdgeWeights(operand, weights, np.float32)
    fixed = arrange(own.now(), None)
    return (lambda _: fixed) if own.frozen else lambda _: arrange(own.now(), fixed)


def edge_sums(operand: CSROperand, kind: Any, acc: np.dtype[Any], **how: Any) -> tuple[Callable[..., Array], Any]:
    """A function ``sums(x, values, out, behind=None, after=None)`` that takes one edge at a time, and its kernel for aligned arrays.

    Each unusual alignment of arrays has its own kernel, compiled at its first use; other streams wait for that.
    """
    backend, choice = (backends.family(operand.device, name) for name in ("spmm.spmm", "spmm.choice"))
    # Only these parts of the operand are named, so that the function does not hold the operand itself.
    schedule, ready, alignment_of = operand.schedule, operand.ready, choice.alignment_of
    how |= {"columns": kind.columns, "x_dtype": kind.dtype, "acc_dtype": acc, "reduce": kind.reduce}
    made: dict[int, Any] = {}

    def make(alignment: int) -> Any:
        ready.wait()
        product = made[alignment] = backend.Spmm(schedule, alignment=alignment, **how)
        ready.renew()
        return product

    usual = make(16)
    result: np.dtype[Any] = usual.dtype
    item, out_item, is_words = np.dtype(kind.dtype).itemsize, result.itemsize, result == np.uint32

    def sums(x: Any, values: Array | None, out: Any, behind: Any = None, after: AfterSums | None = None) -> Array:
        place = 0 if out is None or is_words else out.data.ptr  # words are always aligned
        alignment = alignment_of(x.data.ptr, item, place, out_item)
        return (made.get(alignment) or make(alignment))(x, values, out, behind, after)

    return sums, usual


def run_windows(
    windows: Any, x: Array, out: Array | None, shape: tuple[int, ...], dtype: Any, how: dict[str, Any]
) -> Array:
    """A product over windows, in `out` if it is given; arrays that the kernel cannot take are copied."""
    return written(lambda target: windows.run(interop.aligned(x), target, **how), out, x, shape, dtype)
