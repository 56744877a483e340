"""Sparse times dense, prepared for one sparse operand and one width of features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor, Layout
from bitsparse.arrays.inside import assembled
from bitsparse.backends.params import PackedFeatures
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.csr import CSROperand, fits_heads
from bitsparse.ops.operands.dense import Features, as_features, converted, native, sum_dtypes, unpacked
from bitsparse.ops.operands.places import same_place, working_with
from bitsparse.ops.operands.target import target_array, zeros
from bitsparse.ops.plan import KeptCall, edge_call
from bitsparse.ops.spmm.codes import CodeProducts
from bitsparse.ops.spmm.finish import SumFinish
from bitsparse.ops.spmm.gpu import GpuProducts, Product, kept_product
from bitsparse.ops.spmm.host import counted, explain, explain_packed, is_counted

__all__ = ["SpmmPlan"]

Array = NDArray[Any]
PRECISIONS = ("fp32", "tf32", "3xtf32")
KERNELS = ("csr", "windows", "tiles", "codes")
#: What becomes on a GPU of integers that stand for real values.
_REAL = Epilogue(offset_correction=True)


class SpmmPlan:
    """A prepared product ``plan(x, values=None, out=None)``; made by :func:`plan_spmm`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Where the sparse operand is and all others must be.
    longest_row : int
        Most edges in a row of A.

    A plan for a BitTensor takes those of the planned bits and encoding, in any layout, with any scale and offset.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> bs.plan_spmm(sp.csr_array(np.array([[0, 1], [1, 1]])), 8)
    <SpmmPlan shape=(2, 8) reduce=sum edges=3>
    """

    def __init__(
        self,
        function: str,
        operand: CSROperand,
        inner: tuple[int, ...],
        reduce: str,
        precision: str = "fp32",
        kernel: str | None = None,
        keep: bool = True,
        epilogue: Any = None,
    ) -> None:
        self._function, self._operand, self._inner, self._keep = function, operand, inner, keep
        self._reduce = _check.choice(function, "reduce", reduce, tuple(REDUCTIONS))
        self._precision = _check.choice(function, "precision", precision, PRECISIONS)
        self._forced = _check.kernel(function, kernel, KERNELS)
        self.device = operand.device
        self.shape = (operand.shape[0], *inner)
        self._finish: SumFinish | None = None
        if epilogue is not None:
            self._finish = SumFinish.kept(function, epilogue, operand, self.shape, self._reduce)
        #: Bits and encoding of the features to come, if they are BitTensors.
        self._planned: tuple[int, str] | None = None
        self._products: GpuProducts | None = None
        self._codes: CodeProducts | None = None
        #: On a GPU, which kernel sums unpacked features of a dtype, and why.
        self._told: dict[str, str] = {}
        #: On a GPU, what a call may do at once for features of CuPy's of the planned dtype.
        self._short: KeptCall | None = None
        if self.device != "cpu":
            self._products = GpuProducts.kept(
                function, operand, self._columns, self._reduce, self._precision, self._forced
            )
            self._codes = CodeProducts(function, self._reduce, self._forced, epilogue is not None)
        elif self._forced not in (None, "csr"):
            raise KernelError(
                f"{function}: kernel {_check.shown(self._forced)} runs on a GPU, but A is on the CPU; pass kernel=None"
            )

    @property
    def _columns(self) -> int:
        return int(np.prod(self._inner, dtype=np.int64))

    @property
    def _is_empty(self) -> bool:
        """Whether there is nothing to sum, so that no kernel runs: every element of the result is 0, if it has any."""
        return 0 in self.shape or self._operand.nnz == 0

    @property
    def _needs_values(self) -> bool:
        """Whether A's own values do not fit the planned features, so that every call has to bring others."""
        own = self._operand.values
        return own is not None and not fits_heads(own, self._inner)

    @property
    def longest_row(self) -> int:
        """Most edges in a row of A; on a GPU it is read back at the first question."""
        return self._operand.longest_row

    def explain(self) -> str:
        """How the work is divided, in a few lines; on a GPU also which kernel runs, and why."""
        (rows, cols), edges = self._operand.shape, self._operand.nnz
        width = " x ".join(map(str, self._inner)) or "1"
        first = f"{rows} x {cols}, {edges} edges, longest row {self.longest_row}: {self._reduce} of {width} columns"
        if self._codes is None:
            return "\n".join((first, *self._told.values(), explain(self._operand)))
        return "\n".join((first, *(self._codes.explain() + [*self._told.values()] or ["nothing is prepared yet"])))

    def __repr__(self) -> str:
        return f"<SpmmPlan shape={self.shape} reduce={self._reduce} edges={self._operand.nnz}>"

    def __call__(self, x: Any, values: Any = None, out: Any = None) -> Any:
        """The product with features of the planned width; see :func:`spmm`."""
        if self._short is not None and values is None and self._short.fits((x,), out):
            return self._short((x,), out)
        planned = self._planned
        if planned is not None and (not isinstance(x, BitTensor) or (x.bits, x.encoding) != planned):
            found = f"{x.bits} {x.encoding} bits" if isinstance(x, BitTensor) else f"a {type(x).__name__}"
            raise DTypeError(
                f"{self._function}: x has {found}, but the plan is for {planned[0]} {planned[1]} bits; make another plan"
            )
        with working_with(self.device, x, values, out):
            features = self.features(x)
            if features.shape[1:] != self._inner:
                raise ShapeError(
                    f"{self._function}: x has shape {features.shape}, but the plan is for {(self._operand.shape[1], *self._inner)}; "
                    f"make another plan"
                )
            return self.run(features, values, out, x)

    def check(self) -> None:
        """Raise if NaN was to become a code in a product with an epilogue since the last check; waits for those on a GPU.

        A CPU raises as it goes. On a GPU a plan does not wait, and such results hold the smallest code; :func:`spmm` checks every time.

        Raises
        ------
        ValueError
        """
        if self._finish is not None and self.device != "cpu" and self._finish.epilogue.gives_bits:
            with working_with(self.device):
                chains = () if self._codes is None else self._codes.chains(self._operand, self._finish)
                self._finish.check(chains)

    def features(self, x: Any) -> Features:
        """What is summed: the integers of a BitTensor where its scales may be taken out of the sum, as for an epilogue."""
        real = isinstance(x, BitTensor) and (x.scale is not None or x.offset is not None)
        if real and (self._finish is not None or self._takes_out(x)):
            return as_features(self._function, "x", x.with_affine())
        return as_features(self._function, "x", x)

    def _takes_out(self, x: Any) -> bool:
        """Whether integers that stand for real values are summed on a GPU, and what they stand for is found from the sums."""
        if (
            self._codes is None
            or len(self._inner) != 1
            or self._operand.values is not None
            or not isinstance(x, BitTensor)
        ):
            return False
        if x.bits not in _check.ROW_LAYOUT_BITS or self._forced not in (None, "codes") or x.shape[1:] != self._inner:
            return False
        plain = x.scale is None and x.offset is None and self._operand.row_scale is None
        return not plain and self._real.takes_out(x, None)

    @property
    def _real(self) -> SumFinish:
        return SumFinish.kept(self._function, _REAL, self._operand, self.shape, self._reduce)

    def plan_bits(self, bits: int, encoding: str) -> None:
        """Choose and compile for BitTensors of this kind, without scale and offset."""
        self._planned = (bits, encoding)
        if self._is_empty or self._needs_values:
            return
        operand, weights, in_rows = self._operand, self._operand.values, bits in _check.ROW_LAYOUT_BITS
        space: Any = interop.namespace(operand.indptr)
        shape, family = (operand.shape[1], *self._inner), interop.NUMPY if space is np else interop.CUPY
        layout: Layout = "rows" if in_rows else "planes"
        x = assembled(BitTensor, space.zeros((0,), np.uint32), shape, bits, -1, layout, encoding, family)
        packed = PackedFeatures(bits, encoding, shape[-1]) if in_rows else None
        features = Features(x.words, shape, x.dtype, packed, family)
        finish = self._finish if self._finish is not None or not self._takes_out(x) else self._real
        if finish is not None and finish.takes_out(x, weights):
            operand = replace(operand, row_scale=None)
        else:
            finish = None
        acc = self._dtypes(features, weights, operand)[1]
        if self._codes is None:
            by_counters = self._finish is not None and is_counted(operand, features, weights, acc, self._reduce)
            self._told["packed"] = f"{bits} {encoding} bits: {explain_packed(features, acc, by_counters)}"
        elif self._codes.prepare(operand, features, weights, acc, finish) is None and self._forced in (None, "csr"):
            per_head = weights is not None and weights.ndim == 2
            heads = self._inner[0] if len(self._inner) == 2 and (in_rows or per_head) else 1
            self._product(operand, features, x.dtype, acc, weights, heads)

    def prepare(self, planned: Any) -> KeptCall | None:
        """Choose and compile for features of a dtype; how CuPy arrays of that dtype are to be multiplied, if they may be at once."""
        wanted = _check.dtype(self._function, np.float32 if planned is None else planned)
        if self._products is None or self._is_empty or self._needs_values:
            return None
        space = interop.namespace(self._operand.indptr)
        x = Features(space.empty((0, *self._inner), wanted), (0, *self._inner), wanted, None, interop.CUPY)
        dtype, acc, result_dtype = self._dtypes(x, self._operand.values)
        data_dtype = wanted if wanted.kind in "biu" else dtype
        own = self._operand.values
        heads = self._inner[0] if own is not None and own.ndim == 2 else 1
        product = self._product(self._operand, x, data_dtype, acc, own, heads)
        # Integers whose sums might need more than 64 bits are looked at in every call.
        wide = acc.kind == "i" and 8 in (wanted.itemsize, 0 if own is None else own.dtype.itemsize)
        if data_dtype == wanted and not wide and self._finish is None:
            self._short = kept_product(self._operand, product.run, wanted, self._inner, result_dtype)
        return self._short

    def _product(
        self,
        operand: CSROperand,
        x: Features,
        dtype: np.dtype[Any],
        acc: np.dtype[Any],
        weights: Array | None,
        heads: int,
    ) -> Product:
        """On a GPU the kernel for `x` as an array of `dtype`."""
        assert self._products is not None and self._codes is not None
        products = self._products
        if operand is not self._operand:  # without its factors of rows
            products = GpuProducts.kept(
                f"{self._function} of integers", operand, self._columns, self._reduce, self._precision, self._forced
            )
        product = products.product(operand, dtype, acc, weights, heads, self._keep)
        if dtype.name not in self._told:
            what = dtype.name
            if self._planned is not None:
                why = self._codes.refusal(operand, x, weights, acc)
                what = f"{self._planned[0]} {self._planned[1]} bits as {what} ({why})"
            behind = "" if self._finish is None else ", the epilogue in a kernel of its own"
            self._told[dtype.name] = f"{what}: {product.explain}{behind}"
        return product

    def with_values(self, operand: CSROperand, x: Any, values: Any) -> KeptCall | None:
        """The kernel itself, for CuPy arrays of features and of values for every edge that are summed as they are."""
        if self._products is None or self._is_empty or values is operand.values:
            return None
        dtype, acc, result_dtype = self._dtypes(as_features(self._function, "x", x), values)
        if not dtype == result_dtype == x.dtype:
            return None
        heads = x.shape[1] if values.ndim == 2 else 1
        run = self._products.product(operand, dtype, acc, values, heads, self._keep).run
        flat, flat_out = (operand.shape[1], self._columns), (operand.shape[0], self._columns)

        def product(x: Any, values: Any, out: Any) -> None:
            run(x.reshape(flat), values, out.reshape(flat_out))

        owner = (operand.values, operand.row_scale, operand.col_scale)
        return edge_call(operand, product, (x, values), self.shape, dtype, owner=owner)

    def _dtypes(
        self, x: Features, weights: Array | None, operand: CSROperand | None = None
    ) -> tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]]:
        """(dtype of a sum, of its accumulators, of the result)."""
        operand = self._operand if operand is None else operand
        scaled = operand.row_scale is not None or operand.col_scale is not None
        exact = x.dtype.kind in "biu" and (weights is None or weights.dtype.kind in "biu") and not scaled
        longest = (min(self.longest_row, 1) if REDUCTIONS[self._reduce].selects else self.longest_row) if exact else 0
        dtype, acc = sum_dtypes(self._function, x, weights, scaled, longest)
        return dtype, acc, np.dtype(np.float32) if self._reduce == "mean" and acc.kind == "i" else dtype

    def run(self, x: Features, values: Any, out: Any, given: Any = None) -> Any:
        """The product with features of the planned width; `given` is the BitTensor that they came from."""
        function, operand = self._function, self._operand
        if x.shape[0] != operand.shape[1]:
            raise ShapeError(
                f"{function}: A has {operand.shape[1]} columns but x has {x.shape[0]} rows (shapes {operand.shape} and {x.shape}); "
                f"transpose A, or check which graph x belongs to"
            )
        same_place(function, [("A", self.device), ("x", x.device)])
        operand.ready.wait()
        weights, per_head = self._weights(values, x)
        heads = x.shape[1] if len(x.shape) == 3 and (per_head or x.packed is not None) else 1
        finish = self._finish
        if finish is None and self._takes_out(given):
            if weights is None:
                finish = self._real
            else:
                x = as_features(function, "x", given)
        if finish is not None:
            return self._finished(finish, x, weights, out, given)
        dtype, acc, result_dtype = self._dtypes(x, weights)
        target = None
        if out is not None:
            read = (x.data,) if weights is None else (x.data, weights)
            target = target_array(function, out, self.shape, result_dtype, self.device, read)
        result = self._call(operand, x, weights, dtype, acc, result_dtype, heads, target)
        return out if out is not None else interop.from_array(result, x.family, function)

    def _finished(self, finish: SumFinish, x: Features, weights: Array | None, out: Any, given: Any) -> Any:
        """Sums through an epilogue; in the kernel of the sums where that can be."""
        operand, behind = self._operand, None
        if finish.takes_out(given, weights):
            behind = finish.behind(operand, given, weights)
            operand = replace(operand, row_scale=None)
        elif isinstance(given, BitTensor):
            x = as_features(self._function, "x", given)
        dtype, acc, sums_dtype = self._dtypes(x, weights, operand)
        target = None
        if out is not None:
            read = (x.data,) if weights is None else (x.data, weights)
            target = finish.target(out, self.device, read)
        made: Any = None
        if self._codes is not None and behind is not None and not self._is_empty:
            made = self._codes.run(operand, x, weights, acc, target, finish, behind)
        if made is None and self._codes is not None:
            with operand.schedule.order:
                room = None
                if sums_dtype.name in ("int32", "int64", "float32"):
                    # Where a captured plan may find it again.
                    room = operand.schedule.workspace("sums", self.shape, sums_dtype)
                made = finish.on_gpu(self._call(operand, x, weights, dtype, acc, sums_dtype, 1, room), behind, target)
        if made is None:
            if not self._is_empty and is_counted(operand, x, weights, acc, self._reduce):
                with operand.checked(self._function):
                    sums = counted(operand, x, self._reduce)
            else:
                sums = self._call(operand, x, weights, dtype, acc, sums_dtype, 1, None)
            made = finish.on_host(sums, behind, target)
        if out is not None:
            return out
        return finish.epilogue.wrap(made, self.shape, x.family, self._function)

    def _weights(self, values: Any, x: Features) -> tuple[Array | None, bool]:
        """Values per edge in canonical order, and whether each head has its own."""
        function, operand = self._function, self._operand
        if values is None:
            own = operand.values
            if own is not None and not fits_heads(own, x.shape[1:]):
                raise ShapeError(
                    f"{function}: A has values of shape {own.shape}, one per edge and head, but x has shape {x.shape}; pass x of shape "
                    f"({operand.shape[1]}, {own.shape[1]}, columns), or one value to an edge as values="
                )
            return own, own is not None and own.ndim == 2
        given = interop.as_array(values, function, "values")[0]
        same_place(function, [("A", self.device), ("values", interop.device_of(given))])
        _check.numeric(function, "values", given)
        weights = native(operand.edge_values(function, "values", given))
        per_head = weights.ndim == 2
        if weights.ndim > 2 or not fits_heads(weights, x.shape[1:]):
            wanted = f"({operand.nnz},) or ({operand.nnz}, {x.shape[1]})" if len(x.shape) == 3 else f"({operand.nnz},)"
            raise ShapeError(
                f"{function}: values have shape {given.shape}, but x of shape {x.shape} takes {wanted}; reshape one of them"
            )
        return weights, per_head

    def _call(
        self,
        operand: CSROperand,
        x: Features,
        weights: Array | None,
        dtype: np.dtype[Any],
        acc: np.dtype[Any],
        result_dtype: np.dtype[Any],
        heads: int,
        target: Array | None,
    ) -> Array:
        if self._is_empty:
            return zeros(interop.namespace(x.data), self.shape, result_dtype, target)
        if self._codes is not None and x.packed is not None:
            summed = self._codes.run(operand, x, weights, acc, target)
            if summed is not None:
                return summed.reshape(self.shape)
        given, packed = x, x.packed
        if packed is not None and self._codes is not None:
            x, packed = unpacked(self._function, "x", x), None
        data = x.data
        if packed is None:
            data = data.reshape(x.shape[0], x.columns)
            if data.dtype.kind not in "biu":
                data = converted(data, dtype)
        into = None if target is None else target.reshape(self.shape[0], x.columns)
        result: Array
        if self._products is not None:
            result = self._product(operand, given, data.dtype, acc, weights, heads).run(data, weights, into)
            return result.reshape(self.shape)
        with operand.checked(self._function):
            result = backends.family("cpu", "spmm.spmm").spmm(
                operand.indptr,
                operand.indices,
                operand.shape,
                data,
                nnz=operand.nnz,
                acc_dtype=acc,
                heads=heads,
                values=weights,
                row_scale=operand.row_scale,
                col_scale=operand.col_scale,
                reduce=self._reduce,
                packed=packed,
                out=into,
            )
        return result.reshape(self.shape)
