"""Sparse times dense on a GPU: which kernel computes a product, why, and what it keeps between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse._check import shown
from bitsparse._records import replace
from bitsparse.arrays.sparse_base import DERIVED
from bitsparse.errors import KernelError
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import converted
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.plan import KeptCall

__all__ = [
    "GpuProducts",
    "Product",
    "by_alignment",
    "counts_of",
    "kept_product",
    "run_windows",
    "shared_columns",
    "windows_of",
]

Array = NDArray[Any]


class Product(NamedTuple):
    """One product, ready to run.

    Attributes
    ----------
    run : callable
        ``run(x, weights, out)`` of features (cols, columns), values per edge or None, and an array for the result or None.
    explain : str
        Which kernel it is and why.
    """

    run: Callable[[Array, Array | None, Array | None], Array]
    explain: str


class ProductKey(NamedTuple):
    """What tells apart the products that a pattern keeps."""

    function: str
    columns: int
    reduce: str
    precision: str
    forced: str | None


class WindowsKey(NamedTuple):
    """Which windows of rows: their height and, for matrix units, the columns that are multiplied at once."""

    height: int
    columns: int = 0


#: Kinds of product that a pattern keeps; what windows of rows share, by their height; the windows of both kernels.
PRODUCTS: Slot[GpuProducts] = Slot("products", most=8)
SHARED_COLUMNS: Slot[Any] = Slot("shared columns")
WINDOWS: Slot[Any] = Slot("windows")
TILES: Slot[Any] = Slot("tiles")


def kept_product(
    operand: CSROperand, run: Any, dtype: np.dtype[Any], inner: tuple[int, ...], result_dtype: np.dtype[Any]
) -> KeptCall:
    """A product with A's own values of CuPy features of one dtype and shape."""
    rows, cols = operand.shape
    values, columns = operand.values, int(np.prod(inner, dtype=np.int64))

    def product(x: Any, out: Any) -> None:
        run(x, values, out)

    def reshaped(x: Any, out: Any) -> None:
        run(x.reshape(cols, columns), values, out.reshape(rows, columns))

    return KeptCall(
        product if len(inner) == 1 else reshaped,
        [((cols, *inner), dtype)],
        ((rows, *inner), result_dtype),
        operand.device,
        ready=operand.ready,
        owner=(values, operand.row_scale, operand.col_scale),
    )


class GpuProducts:
    """Products of one operand with features of one width, one for each kind of features and values.

    It holds the operand's arrays but not what the container keeps, so that the container can keep it without a cycle.
    """

    def __init__(
        self, function: str, operand: CSROperand, columns: int, reduce: str, precision: str, forced: str | None
    ) -> None:
        self._function, self._columns, self._reduce = function, columns, reduce
        self._precision, self._forced = precision, forced
        self._indptr, self._values = operand.indptr, operand.values
        self._row_scale, self._col_scale = operand.row_scale, operand.col_scale
        self._made: dict[Any, Product] = {}

    @classmethod
    def kept(
        cls, function: str, operand: CSROperand, columns: int, reduce: str, precision: str, forced: str | None
    ) -> GpuProducts:
        """What a container keeps for products of this kind, or new ones; values that one plan alone has are kept by that plan."""
        if operand.frozen:
            return cls(function, operand, columns, reduce, precision, forced)
        key = ProductKey(function, columns, reduce, precision, forced)
        products = PRODUCTS.get(operand.prepared, key)
        if products is None or not products.belongs_to(operand):
            products = PRODUCTS.keep(operand.prepared, cls(function, operand, columns, reduce, precision, forced), key)
        return products

    def belongs_to(self, operand: CSROperand) -> bool:
        """Whether the operand has these very arrays; containers of one pattern may differ in values and scales."""
        mine = (self._indptr, self._values, self._row_scale, self._col_scale)
        theirs = (operand.indptr, operand.values, operand.row_scale, operand.col_scale)
        return all(one is other for one, other in zip(mine, theirs, strict=True))

    def explain(self) -> list[str]:
        """Which kernel runs for what has been prepared so far, and why."""
        return [f"{name}: {product.explain}" for (name, *_), product in self._made.items()]

    def product(
        self,
        operand: CSROperand,
        dtype: np.dtype[Any],
        acc: np.dtype[Any],
        weights: Array | None,
        heads: int,
        keep: bool,
    ) -> Product:
        """The product for features of `dtype` summed in `acc`, with weights like these.

        With `keep` what takes a pass over the pattern may be prepared to find the quickest kernel.
        """
        own = weights is not None and weights is self._values
        values = None if weights is None else weights.dtype
        key = (dtype.name, acc.name, values, weights is not None and weights.ndim, own, heads, keep)
        found = self._made.get(key)
        if found is None:
            choice = backends.family(operand.device, "spmm.choice")
            kind = choice.Kind(
                dtype,
                self._columns,
                self._reduce,
                self._precision,
                values,
                own,
                weights is not None and weights.ndim == 2,
                self._col_scale is not None,
                operand.indices is not None,
                own and operand.frozen,
            )
            operand.ready.wait()
            kernel, height, why = self.chosen(operand, kind, keep)
            made = (
                self._csr(operand, kind, acc, weights, heads)
                if kernel == "csr"
                else self._windows(operand, kind, weights)
                if kernel == "windows"
                else self._tiles(operand, kind, weights, height)
            )
            found = self._made[key] = replace(made, explain=f"kernel {kernel} ({why}){made.explain}")
            operand.ready.renew()
        return found

    def chosen(self, operand: CSROperand, kind: Any, keep: bool) -> tuple[str, int, str]:
        """Kernel, height of its windows and why."""
        choice = backends.family(operand.device, "spmm.choice")
        refused = choice.refusals(kind, operand.shape, operand.nnz)
        forced = self._forced
        if forced == "codes":
            raise KernelError(
                f"{self._function}: kernel 'codes' cannot compute this: x is not packed; pass a BitTensor"
            )
        if forced in refused:
            raise KernelError(f"{self._function}: kernel {shown(forced)} cannot compute this: {refused[forced]}")
        if forced == "csr":
            return forced, 0, "forced"
        others = [name for name in choice.KERNELS if name not in refused and name != "csr"]
        if forced is None and not others:
            return "csr", 0, "; ".join(f"not {name}: {why}" for name, why in refused.items())
        if forced is None and not keep:
            return "csr", 0, "nothing is prepared for a single product"
        shared = {8: shared_columns(operand, 8)}
        sharing = operand.nnz / max(1, shared[8].entries)
        if forced is None and sharing < choice.WORTH:
            return "csr", 0, f"neighbouring rows have {sharing:.2f} edges to a column"
        shared |= {height: shared_columns(operand, height) for height in (16, 32) if "tiles" in others}
        found = choice.estimates(kind, operand.shape, operand.nnz, shared)
        if forced is not None:
            height = next((one.height for one in found if one.kernel == forced), 0)
            return forced, height, "forced"
        costs = ", ".join(f"{one.kernel}{one.height or ''} {one.cost:.3g} us" for one in found)
        return found[0].kernel, found[0].height, f"lowest estimated cost; {costs}"

    def _csr(self, operand: CSROperand, kind: Any, acc: np.dtype[Any], weights: Array | None, heads: int) -> Product:
        """An edge at a time. Arrays of an unusual alignment have products of their own, made when they first come."""
        backend, choice = (backends.family(operand.device, name) for name in ("spmm.spmm", "spmm.choice"))
        row_scale, col_scale = self._row_scale, self._col_scale
        # Values of 16 bits go with such features as they are, unless scales become part of them.
        narrow = None
        if weights is not None and row_scale is None and col_scale is None:
            narrow = backend.value_dtype_of(weights.dtype, kind.dtype, weights.ndim)
        brought_in = acc if narrow is None else narrow
        own: EdgeWeights | None = None
        if kind.fixed and weights is not None:
            # Scales of the matrix's own values become part of them: a stream of factors, not a second gather for every edge.
            if acc.kind == "f" and kind.reduce == "sum" and not kind.per_head:
                own, col_scale, row_scale = EdgeWeights(operand, weights, brought_in, col_scale, row_scale), None, None
            else:
                own = EdgeWeights(operand, weights, brought_in)
        # What a product needs is named here, so that it does not hold the operand.
        schedule, indices, ready = operand.schedule, operand.indices, operand.ready
        brought = "none" if weights is None else "head" if kind.per_head else "edge"

        at = by_alignment(
            ready,
            lambda alignment: backend.Spmm(
                schedule,
                indices,
                columns=kind.columns,
                x_dtype=kind.dtype,
                acc_dtype=acc,
                heads=heads,
                weights=brought,
                value_dtype=narrow,
                row_scale=row_scale,
                col_scale=col_scale,
                reduce=kind.reduce,
                alignment=alignment,
            ),
        )
        usual = at(16)

        def run(x: Array, values: Array | None, out: Array | None) -> Array:
            given = own.now() if own is not None else None if values is None else converted(values, brought_in)
            result: Array = at(choice.alignment_of(x, out, usual.dtype))(x, given, out)
            return result

        return Product(run, "")

    def _windows(self, operand: CSROperand, kind: Any, weights: Array | None) -> Product:
        """Windows of eight rows on the CUDA cores; arrays of an unusual alignment are copied."""
        windows = windows_of(operand)
        col_scale, row_scale, rows = self._col_scale, self._row_scale, operand.shape[0]
        counts = counts_of(operand) if kind.reduce == "mean" else None
        own = EdgeWeights(operand, weights, np.float32) if weights is not None and kind.fixed else None
        fixed = None
        if own is not None:
            fixed = windows.weigh(own.now(), col_scale)
        elif kind.values is None and col_scale is not None:
            fixed = windows.weigh(col_scale=col_scale)

        def run(x: Array, values: Array | None, out: Array | None) -> Array:
            factors = fixed
            if own is not None:
                if not own.frozen:
                    windows.weigh(own.now(), col_scale, out=fixed)
            elif values is not None:
                factors = windows.weigh(interop.contiguous(converted(values, np.float32)), col_scale)
            how = {"weights": factors, "row_scale": row_scale, "counts": counts}
            return run_windows(windows, x, out, (rows, kind.columns), np.float32, how)

        return Product(run, f", {windows.reuse:.2f} edges to a row of features that is read")

    def _tiles(self, operand: CSROperand, kind: Any, weights: Array | None, height: int) -> Product:
        """Windows of rows on the matrix units."""
        choice = backends.family(operand.device, "spmm.choice")
        group = choice.group_of(kind.dtype)
        translation = DERIVED.get(operand.prepared, ("translation", height))
        family = backends.family(operand.device, "spmm.tiles")
        tiles = TILES.of(
            operand.prepared,
            lambda: family.Tiles(
                operand.indptr,
                operand.indices,
                operand.shape,
                operand.nnz,
                rows=height,
                k=group,
                translation=translation,
            ),
            WindowsKey(height, group),
        )
        own = EdgeWeights(operand, weights, np.float32) if weights is not None and kind.fixed else None
        fixed = None if own is None else tiles.arrange(own.now())
        precision, reduce = choice.tiles_precision(kind), kind.reduce
        row_scale, col_scale, ready = self._row_scale, self._col_scale, operand.ready
        known: list[bool] = []

        def run(x: Array, values: Array | None, out: Array | None) -> Array:
            given: Any = None
            if own is not None:
                given = fixed if own.frozen else tiles.arrange(own.now(), fixed)
            elif values is not None:
                given = interop.contiguous(converted(values, np.float32))
            result: Array = tiles.run(x, given, row_scale, col_scale, reduce, precision, out)
            if not known:  # the first product prepares the rest
                ready.renew()
                known.append(True)
            return result

        how = precision if kind.dtype == np.float32 else kind.dtype
        return Product(run, f", {how}, {height} rows, {tiles.stats.reuse:.2f} edges to a row of features that is read")


def by_alignment(ready: interop.Ready, make: Callable[[int], Any]) -> Callable[[int], Any]:
    """What `make` makes for arrays of an alignment, kept; users of other streams wait for it through `ready`."""
    made: dict[int, Any] = {}

    def at(alignment: int) -> Any:
        if alignment not in made:
            ready.wait()
            made[alignment] = make(alignment)
            ready.renew()
        return made[alignment]

    return at


def counts_of(operand: CSROperand) -> Array:
    """What the sums of the rows are divided by for their means."""
    space: Any = interop.namespace(operand.indptr)
    made: Array = space.maximum(operand.indptr[1:] - operand.indptr[:-1], 1).astype(np.float32)
    return made


def run_windows(
    windows: Any, x: Array, out: Array | None, shape: tuple[int, ...], dtype: Any, how: dict[str, Any]
) -> Array:
    """A product over windows, into `out` if it is given; arrays that the kernel cannot take are copied."""
    given, made = interop.aligned(x), cast(Any, out)
    if made is None or made.data.ptr % 16:
        made = cast(Any, interop.namespace(x)).empty(shape, dtype)
    windows.run(given, made, **how)
    if out is None or made is out:
        return cast(Array, made)
    out[...] = made
    return out


def windows_of(operand: CSROperand) -> Any:
    """Windows of eight rows of the pattern, made once."""
    family = backends.family(operand.device, "spmm.windows")
    return WINDOWS.of(
        operand.prepared, lambda: family.Windows(operand.indptr, operand.indices, operand.shape), WindowsKey(8)
    )


def shared_columns(operand: CSROperand, height: int) -> Any:
    """What windows of so many rows share, counted once for a pattern."""
    choice = backends.family(operand.device, "spmm.choice")
    return SHARED_COLUMNS.of(
        operand.prepared,
        lambda: choice.shared_columns(operand.indptr, operand.indices, operand.shape, height),
        WindowsKey(height),
    )
