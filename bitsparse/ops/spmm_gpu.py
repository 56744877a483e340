"""Sparse times dense on a GPU: which kernel computes a product, why, and what it keeps between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.errors import KernelError
from bitsparse.ops.csr_operand import CSROperand
from bitsparse.ops.features import converted

__all__ = ["GpuProducts", "Product", "ShortWay"]

Array = NDArray[Any]
#: Kinds of product that the pattern of a container keeps.
_KEPT = 8


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


class ShortWay:
    """A product of CuPy arrays that leave nothing to be decided: of one dtype and shape, without gaps, on one GPU."""

    def __init__(
        self, operand: CSROperand, run: Any, dtype: np.dtype[Any], inner: tuple[int, ...], result_dtype: np.dtype[Any]
    ) -> None:
        self._owner = (operand.values, operand.row_scale, operand.col_scale)
        self._run, self._ready, self._values = run, operand.ready, operand.values
        self._dtype, self._shape = dtype, (operand.shape[1], *inner)
        self._result_dtype, self._result_shape = result_dtype, (operand.shape[0], *inner)
        columns = int(np.prod(inner, dtype=np.int64))
        self._flat, self._result_flat = (operand.shape[1], columns), (operand.shape[0], columns)
        self._space: Any = interop.namespace(operand.indptr)
        self._gpu = int(operand.device[5:])

    def fits(self, x: Any, out: Any) -> bool:
        """Whether `x` and `out` are such arrays; all others go the long way."""
        kind = self._space.ndarray
        if x.__class__ is not kind or x.dtype != self._dtype or x.shape != self._shape:
            return False
        if not x.flags.c_contiguous or x.data.device_id != self._gpu or interop.current_gpu() != self._gpu:
            return False
        if out is None:
            return True
        if out.__class__ is not kind or out.dtype != self._result_dtype or out.shape != self._result_shape:
            return False
        start, other = out.data.ptr, x.data.ptr
        apart = start >= other + x.nbytes or start + out.nbytes <= other
        return bool(apart and out.flags.c_contiguous and out.data.device_id == self._gpu)

    @staticmethod
    def kept(A: SparseArray, x: Any, how: tuple[Any, ...]) -> ShortWay | None:
        """The one that a container keeps for features like `x`; containers of one pattern may differ in values and scales."""
        if interop.namespace(x) is np:
            return None
        found: ShortWay | None = A._prepared.get("short ways", {}).get((how, x.shape, x.dtype))
        if found is None:
            return None
        mine, (data, values) = getattr(A, "_data", None), A._prepared.get("values", (None, None))
        theirs = (None if mine is None else values, A._row_scale, A._col_scale)
        right = (mine is None or data is mine) and all(
            one is other for one, other in zip(found._owner, theirs, strict=True)
        )
        return found if right else None

    @staticmethod
    def keep(A: SparseArray, x: Any, how: tuple[Any, ...], made: ShortWay | None) -> None:
        """Remember one with a container on a GPU."""
        if made is None:
            return
        ways = A._prepared.setdefault("short ways", {})
        if len(ways) >= _KEPT:
            ways.clear()
        ways[how, x.shape, x.dtype] = made

    def __call__(self, x: Any, out: Any) -> Any:
        """The product, into `out` if it is given."""
        self._ready.wait()
        made = self._space.empty(self._result_shape, self._result_dtype) if out is None else out
        self._run(x.reshape(self._flat), self._values, made.reshape(self._result_flat))
        return made


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
        """What a container keeps for products of this kind, or new ones."""
        made: dict[Any, GpuProducts] = operand.prepared.setdefault("products", {})
        key = (function, columns, reduce, precision, forced)
        found = made.get(key)
        if found is not None and found._belongs_to(operand):
            return found
        if len(made) >= _KEPT:
            made.clear()
        made[key] = cls(function, operand, columns, reduce, precision, forced)
        return made[key]

    def _belongs_to(self, operand: CSROperand) -> bool:
        """Whether the operand has these very arrays; containers of one pattern may differ in values and scales."""
        mine = (self._indptr, self._values, self._row_scale, self._col_scale)
        theirs = (operand.indptr, operand.values, operand.row_scale, operand.col_scale)
        return all(one is other for one, other in zip(mine, theirs, strict=True))

    def explain(self) -> list[str]:
        """Which kernel runs for what has been prepared so far, and why."""
        return [f"{name}: {product.explain}" for (name, *_), product in self._made.items()] or ["nothing is prepared yet"]

    def product(
        self, operand: CSROperand, dtype: np.dtype[Any], acc: np.dtype[Any], weights: Array | None, heads: int, keep: bool
    ) -> Product:
        """The product for features of `dtype` summed in `acc`, with weights like these.

        With `keep` what takes a pass over the pattern may be prepared to find the quicker kernel.
        """
        own = weights is not None and weights is self._values
        kind = None if weights is None else (weights.dtype.name, weights.ndim, own)
        key = (dtype.name, acc.name, kind, heads, keep)
        found = self._made.get(key)
        if found is None:
            operand.ready.wait()
            found = self._made[key] = self._prepare(operand, dtype, acc, weights, heads, own, keep)
            operand.ready.renew()
        return found

    def _prepare(
        self,
        operand: CSROperand,
        dtype: np.dtype[Any],
        acc: np.dtype[Any],
        weights: Array | None,
        heads: int,
        own: bool,
        keep: bool,
    ) -> Product:
        choice = backends.family(operand.device, "spmm_choice")
        refusal = choice.tiles_refuse(
            dtype,
            None if weights is None else weights.dtype,
            reduce=self._reduce,
            precision=self._precision,
            has_columns=operand.indices is not None,
        )
        if self._forced == "tiles":
            if refusal is not None:
                raise KernelError(f"{self._function}: kernel 'tiles' cannot compute this: {refusal}")
            return self._tiles(operand, dtype, weights, own, "forced")
        if self._forced == "csr":
            return self._csr(operand, dtype, acc, weights, heads, own, "forced")
        if refusal is not None or not keep:
            why = f"for tiles {refusal}" if refusal is not None else "nothing else is prepared for one call"
            return self._csr(operand, dtype, acc, weights, heads, own, why)
        tiles = _tiles_of(operand, choice.group_of(dtype), choice.WINDOW)
        costs = choice.costs_us(operand.shape, tiles.stats, self._columns, dtype, weights is not None)
        why = "lowest estimated cost; " + ", ".join(f"{name} {cost:.3g} us" for name, cost in costs.items())
        if min(costs, key=costs.__getitem__) == "tiles":
            return self._tiles(operand, dtype, weights, own, why)
        return self._csr(operand, dtype, acc, weights, heads, own, why)

    def _csr(
        self,
        operand: CSROperand,
        dtype: np.dtype[Any],
        acc: np.dtype[Any],
        weights: Array | None,
        heads: int,
        own: bool,
        why: str,
    ) -> Product:
        """An edge at a time. Arrays of an unusual alignment have products of their own, made when they first come."""
        backend, choice = (backends.family(operand.device, name) for name in ("spmm", "spmm_choice"))
        fixed = converted(weights, acc) if own and weights is not None else None
        made: dict[int, Any] = {}
        # What a product needs is named here, so that it does not hold the operand.
        schedule, indices, columns, reduce = operand.schedule, operand.indices, self._columns, self._reduce
        row_scale, col_scale, ready = self._row_scale, self._col_scale, operand.ready
        kind = "none" if weights is None else "edge" if weights.ndim == 1 else "head"

        def at(alignment: int) -> Any:
            if alignment not in made:
                ready.wait()
                made[alignment] = backend.Spmm(
                    schedule,
                    indices,
                    columns=columns,
                    x_dtype=dtype,
                    acc_dtype=acc,
                    heads=heads,
                    weights=kind,
                    row_scale=row_scale,
                    col_scale=col_scale,
                    reduce=reduce,
                    alignment=alignment,
                )
                ready.renew()
            return made[alignment]

        usual = at(16)

        def run(x: Array, values: Array | None, out: Array | None) -> Array:
            given = fixed if fixed is not None or values is None else converted(values, acc)
            result: Array = at(choice.alignment_of(x, out, usual.dtype))(x, given, out)
            return result

        return Product(run, f"kernel csr ({why})")

    def _tiles(
        self, operand: CSROperand, dtype: np.dtype[Any], weights: Array | None, own: bool, why: str
    ) -> Product:
        """Windows of rows on the matrix units."""
        choice = backends.family(operand.device, "spmm_choice")
        tiles = _tiles_of(operand, choice.group_of(dtype), choice.WINDOW)
        fixed = tiles.arrange(converted(weights, np.float32)) if own and weights is not None else None
        precision = choice.tiles_precision(dtype, self._precision, self._col_scale is not None)
        row_scale, col_scale, reduce = self._row_scale, self._col_scale, self._reduce
        ready, known = operand.ready, [False]

        def run(x: Array, values: Array | None, out: Array | None) -> Array:
            given = fixed if fixed is not None or values is None else interop.contiguous(converted(values, np.float32))
            result: Array = tiles.run(x, given, row_scale, col_scale, reduce, precision, out)
            if not known[0]:  # the first product prepares the rest
                ready.renew()
                known[0] = True
            return result

        share = f"{tiles.stats.reuse:.2f} edges to a row of features that is read"
        return Product(run, f"kernel tiles ({why}), {precision if dtype == np.float32 else dtype}, {share}")


def _tiles_of(operand: CSROperand, group: int, window: int) -> Any:
    """The pattern's tiles, made once."""
    key = ("tiles", group, window)
    made = operand.prepared.get(key)
    if made is None:
        family = backends.family(operand.device, "tiles")
        made = family.Tiles(operand.indptr, operand.indices, operand.shape, operand.nnz, rows=window, k=group)
        operand.prepared[key] = made
    return made
