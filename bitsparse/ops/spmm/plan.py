"""Products of a sparse matrix with dense features, prepared for one sparse operand and one width of features."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bitsparse import _check, _records, interop
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.backends.params import Array, OperandParams, PackedFeatures
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.interop import converted
from bitsparse.ops.finish.epilogue import Epilogue, target_behind
from bitsparse.ops.operands.csr import CSROperand, fits_heads
from bitsparse.ops.operands.dense import Features, as_features, gathered, native, sum_dtypes, unpacked
from bitsparse.ops.operands.places import same_place, working_with
from bitsparse.ops.operands.target import zeros
from bitsparse.ops.plan import KeptCall
from bitsparse.ops.spmm.codes import CodeProducts
from bitsparse.ops.spmm.finish import Scales, SumFinish
from bitsparse.ops.spmm.gpu import GpuProducts, Product, ProductKey, kept_product
from bitsparse.ops.spmm.sums import Sums, division_on_host, kept_on_host

PRECISIONS = ("fp32", "tf32", "3xtf32")
KERNELS = ("csr", "windows", "tiles", "panels", "nonzero", "codes")
#: Scale and offset of features that have neither.
_UNSCALED: Scales = (None, None)
#: The epilogue by which a GPU turns sums of integers into real values.
_REAL = Epilogue(offset_correction=True)


class SpmmPlan:
    """A prepared product ``plan(x, values=None, out=None)``; made by :func:`plan_spmm`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Device of the sparse operand, on which all other arrays must be too.
    kernel : str
        Name of the kernel that multiplies features as planned; the CPU has one, "csr".
    longest_row : int
        Largest number of edges in a row of A.

    A plan for BitTensors takes those of the planned bits and encoding, in any layout, with any scale and offset.

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
        precision = _check.choice(function, "precision", precision, PRECISIONS)
        self._forced = _check.kernel(function, kernel, KERNELS)
        self._columns = math.prod(inner)
        #: The key of the plan's products on a GPU.
        self._key = ProductKey(function, self._columns, self._reduce, precision, self._forced)
        self.device = operand.device
        self.shape = (operand.shape[0], *inner)
        self._finish: SumFinish | None = None
        if epilogue is not None:
            self._finish = SumFinish.kept(function, epilogue, operand, self.shape, self._reduce)
        #: Bits and encoding of the planned features, if they are BitTensors.
        self._planned: tuple[int, str] | None = None
        self._products: GpuProducts | None = None
        self._codes: CodeProducts | None = None
        #: Sentences for :meth:`explain`, by dtype: which kernel sums unpacked features, and why.
        self._told: dict[str, str] = {}
        self._planned_dtype: np.dtype[Any] = np.dtype(np.float32)
        self.kernel = "csr"
        #: On a GPU, the call that CuPy features of the planned dtype take without further checks.
        self._short: KeptCall | None = None
        if self.device != "cpu":
            self._products = GpuProducts.kept(operand, self._key)
            self._codes = CodeProducts(function, self._reduce, self._forced, epilogue is not None)
        elif self._forced not in (None, "csr"):
            raise KernelError(
                f"{function}: kernel {_check.shown(self._forced)} runs on a GPU, but A is on the CPU; pass kernel=None"
            )

    @property
    def _is_empty(self) -> bool:
        """Whether there is nothing to sum, so that no kernel runs: every element of the result is 0, if it has any."""
        return 0 in self.shape or self._operand.nnz == 0

    @property
    def _needs_values(self) -> bool:
        """Whether A's own values do not fit the planned features, so that every call must pass others."""
        own = self._operand.values
        return own is not None and not fits_heads(own, self._inner)

    @property
    def longest_row(self) -> int:
        """Largest number of edges in a row of A; on a GPU it is copied to the host at the first use."""
        return self._operand.longest_row

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result for features as planned, without scale and offset if they are BitTensors."""
        if self._finish is not None:
            return self._finish.epilogue.dtype
        return self._dtypes(self._operand, self._planned_dtype, self._operand.values)[2]

    @property
    def nbytes(self) -> int:
        """Bytes of the schedule by which a GPU walks the pattern, and of the index of panels; all plans of this pattern share them."""
        return self._operand.schedule_bytes + (0 if self._products is None else self._products.nbytes)

    def explain(self) -> str:
        """Say in a few lines how the work is divided and, on a GPU, which kernel runs and why."""
        (rows, cols), edges = self._operand.shape, self._operand.nnz
        width = " x ".join(map(str, self._inner)) or "1"
        first = f"{rows} x {cols}, {edges} edges, longest row {self.longest_row}: {self._reduce} of {width} columns"
        if self._codes is None:
            return "\n".join((first, *self._told.values(), division_on_host(self._operand)))
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
            features = as_features(self._function, "x", x)
            wanted = (features.shape[0], *self._inner)
            _check.planned(self._function, "x has shape", features.shape, wanted)
            return self.run(features, values, out)

    def check(self) -> None:
        """Raise if NaN was to become a code in a product with an epilogue since the last check; waits for products on a GPU.

        On a CPU each call raises by itself. On a GPU a plan does not wait, and such results hold the smallest code in place of NaN;
        :func:`spmm` checks every time.

        Raises
        ------
        ValueError
        """
        if self._finish is not None and self.device != "cpu" and self._finish.epilogue.gives_bits:
            with working_with(self.device):
                chains = () if self._codes is None else self._codes.chains(self._operand, self._finish)
                self._finish.check(chains)

    def _takes_out(self, bits: int, scales: Scales) -> bool:
        """Whether a GPU sums the integers of a BitTensor with scales exactly and computes the real values from the sums."""
        operand = self._operand
        if self._codes is None or len(self._inner) != 1 or operand.values is not None:
            return False
        if bits not in _check.ROW_LAYOUT_BITS or self._forced not in (None, "codes"):
            return False
        plain = all(part is None for part in (*scales, operand.row_scale))
        return not plain and self._real.takes_out(scales, None)

    @property
    def _real(self) -> SumFinish:
        return SumFinish.kept(self._function, _REAL, self._operand, self.shape, self._reduce)

    def plan_bits(self, bits: int, encoding: str) -> None:
        """Choose and compile the kernel for BitTensors of this kind, without scale and offset."""
        self._planned, self._planned_dtype = (bits, encoding), construct.smallest_dtype(bits, encoding)
        if self._codes is not None:
            self.kernel = "codes"
        if self._is_empty or self._needs_values:
            return
        operand, weights, shape = self._operand, self._operand.values, (self._operand.shape[1], *self._inner)
        words = interop.namespace(operand.indptr).zeros((0,), np.uint32)
        packed = PackedFeatures(bits, encoding, shape[-1]) if bits in _check.ROW_LAYOUT_BITS else None
        features = Features(words, shape, self._planned_dtype, packed, interop.NUMPY)
        finish = self._finish if self._finish is not None or not self._takes_out(bits, _UNSCALED) else self._real
        if finish is not None and finish.takes_out(_UNSCALED, weights):
            operand = without_row_scale(operand)
        else:
            finish = None
        sums = self._sums(operand, features, weights)
        if self._codes is None:
            by_counters = self._finish is not None and sums.is_counted
            self._told["packed"] = f"{bits} {encoding} bits: {sums.explain(by_counters)}"
        elif self._codes.prepare(sums, finish) is None and self._forced in (None, "csr"):
            self._product(sums, self._planned_dtype)

    def prepare(self, planned: Any, after: bool = False) -> KeptCall | None:
        """Choose and compile the kernel for features of a dtype; returns the kept call for CuPy arrays of that dtype, if possible.

        With `after`, calls pass steps after the sums behind the features (N, columns), which are float32, float16 or bfloat16.
        """
        wanted = self._planned_dtype = _check.dtype(self._function, np.float32 if planned is None else planned)
        if self._products is None or self._is_empty or self._needs_values:
            return None
        shape, own = (0, *self._inner), self._operand.values
        empty = interop.namespace(self._operand.indptr).empty(shape, wanted)
        sums = self._sums(self._operand, Features(empty, shape, wanted, None, interop.CUPY), own)
        data_dtype = wanted if wanted.kind in "biu" else sums.dtype
        product = self._product(sums, data_dtype, after)
        # Integers whose sums might need more than 64 bits are checked in every call.
        wide = sums.acc.kind == "i" and 8 in (wanted.itemsize, 0 if own is None else own.dtype.itemsize)
        if data_dtype == wanted and not wide and self._finish is None:
            kinds = wanted, self._inner, sums.result_dtype
            self._short = kept_product(self._operand, product.run, *kinds, after=after)
        return self._short

    def _product(self, sums: Sums, dtype: np.dtype[Any], after: bool = False) -> Product:
        """The product on a GPU for unpacked features of `dtype`."""
        assert self._products is not None and self._codes is not None
        operand, products = sums.operand, self._products
        if operand is not self._operand:  # the operand without its row scale
            key = _records.replace(self._key, function=f"{self._function} of integers")
            products = GpuProducts.kept(operand, key)
        product = products.product(operand, dtype, sums.acc, sums.weights, self._keep, after)
        self.kernel = product.kernel
        if dtype.name not in self._told:
            what = dtype.name
            if self._planned is not None:
                what = f"{self._planned[0]} {self._planned[1]} bits as {what} ({self._codes.refusal(sums)})"
            behind = "" if self._finish is None else ", the epilogue in a kernel of its own"
            self._told[dtype.name] = f"{what}: {product.explain}{behind}"
        return product

    def as_they_lie(self, operand: CSROperand, family: interop.Family, x: Any, values: Any = None) -> KeptCall | None:
        """A kept call of the kernel itself, for features (and, on a GPU, edge values) that need no conversion; else None."""
        if self._is_empty or values is operand.values is not None:
            return None
        weights = operand.values if values is None else values
        dtype, acc, result_dtype = self._dtypes(operand, x.dtype, weights)
        if not dtype == result_dtype == x.dtype:
            return None
        if self._products is None:
            return kept_on_host(operand, family, x, values, acc, self._reduce)
        run = self._products.product(operand, dtype, acc, values, self._keep).run
        return kept_product(operand, run, dtype, self._inner, result_dtype, values)

    def _dtypes(
        self, operand: CSROperand, dtype: np.dtype[Any], weights: Array | None, largest: Any = None
    ) -> tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]]:
        """The dtypes of a sum, of its accumulators and of the result for features of `dtype`; see :func:`sum_dtypes`."""
        scaled = operand.is_scaled
        exact = not scaled and dtype.kind in "biu" and (weights is None or weights.dtype.kind in "biu")
        longest = operand.longest_row if exact else 0
        if REDUCTIONS[self._reduce].selects:
            longest = min(longest, 1)
        summed, acc = sum_dtypes(self._function, dtype, weights, scaled, longest, largest)
        return summed, acc, np.dtype(np.float32) if self._reduce == "mean" and acc.kind == "i" else summed

    def _sums(self, operand: CSROperand, x: Features, weights: Array | None) -> Sums:
        told = len(x.shape) == 3 and (x.packed is not None or (weights is not None and weights.ndim == 2))
        dtypes = self._dtypes(operand, x.dtype, weights, x.largest)
        return Sums(operand, x, weights, self._reduce, *dtypes, x.shape[1] if told else 1)

    def run(self, x: Features, values: Any, out: Any) -> Any:
        """The product with features of the planned width."""
        function, operand, finish, bits = self._function, self._operand, self._finish, x.source
        operand.check_features(function, x.shape)
        same_place(function, [("A", self.device), ("x", interop.device_of(x.data))])
        operand.ready.wait()
        weights, behind = self._weights(values, x.shape), None
        scales = None if bits is None else (bits.scale, bits.offset)
        if finish is None and weights is None and bits is not None and self._takes_out(bits.bits, scales or _UNSCALED):
            finish = self._real
        if finish is not None and finish.takes_out(scales, weights):
            behind, operand = finish.behind(operand, bits, weights), without_row_scale(operand)
        if bits is not None:
            x = gathered(function, x, integers=behind is not None)
        sums, target = self._sums(operand, x, weights), None
        read = (x.data,) if weights is None else (x.data, weights)
        if out is not None:
            epilogue = None if finish is None else finish.epilogue
            target = target_behind(function, epilogue, out, self.shape, sums.result_dtype, self.device, read)
        if finish is None:
            result = self._call(sums, target)
            return out if out is not None else interop.from_array(result, x.family, function)
        result = self._finished(finish, sums, behind, target)
        return out if out is not None else finish.epilogue.wrap(result, self.shape, x.family, function)

    def _finished(self, finish: SumFinish, sums: Sums, behind: OperandParams | None, target: Array | None) -> Array:
        """Compute the sums and apply the epilogue `finish`, in the same kernel if possible."""
        if self._codes is None:
            if sums.is_counted and not self._is_empty:
                with sums.operand.checked(self._function):
                    return finish.on_host(sums.counted(), behind, target)
            return finish.on_host(self._call(sums, None), behind, target)
        if behind is not None and not self._is_empty:
            finished = self._codes.run(sums, target, finish, behind)
            if finished is not None:
                return finished
        schedule, dtype = sums.operand.schedule, sums.result_dtype
        with schedule.order:
            # The workspace keeps its address, so that a captured plan finds it again.
            kept = dtype.name in ("int32", "int64", "float32")
            room = schedule.workspace("sums", self.shape, dtype) if kept else None
            return finish.on_gpu(self._call(sums, room), behind, target)

    def _weights(self, values: Any, shape: tuple[int, ...]) -> Array | None:
        """Values per edge in canonical order, checked for features of this shape; None for a pattern."""
        function, operand = self._function, self._operand
        if values is None:
            own = operand.values
            if own is not None and not fits_heads(own, shape[1:]):
                raise ShapeError(
                    f"{function}: A has values of shape {own.shape}, one per edge and head, but x has shape {shape}; pass x of shape "
                    f"({operand.shape[1]}, {own.shape[1]}, columns), or one value to an edge as values="
                )
            return own
        given = interop.as_array(values, function, "values")[0]
        same_place(function, [("A", self.device), ("values", interop.device_of(given))])
        _check.numeric(function, "values", given)
        weights = native(operand.edge_values(function, "values", given))
        if weights.ndim > 2 or not fits_heads(weights, shape[1:]):
            wanted = f"({operand.nnz},) or ({operand.nnz}, {shape[1]})" if len(shape) == 3 else f"({operand.nnz},)"
            raise ShapeError(
                f"{function}: values have shape {given.shape}, but x of shape {shape} takes {wanted}; reshape one of them"
            )
        return weights

    def _call(self, sums: Sums, target: Array | None) -> Array:
        """The sums, in `target` if it is given."""
        operand, x = sums.operand, sums.x
        if self._is_empty:
            return zeros(interop.namespace(operand.indptr), self.shape, sums.result_dtype, target)
        if self._codes is not None and x.packed is not None:
            summed = self._codes.run(sums, target)
            if summed is not None:
                return summed.reshape(self.shape)
            x = unpacked(self._function, "x", x)
        data = x.data
        if x.packed is None:
            data = data.reshape(x.shape[0], self._columns)
            if data.dtype != sums.dtype and data.dtype.kind not in "biu":
                data = converted(data, sums.dtype)
        into = None if target is None else target.reshape(self.shape[0], self._columns)
        if self._products is not None:
            result = self._product(sums, data.dtype).run(data, sums.weights, into)
        else:
            with operand.checked(self._function):
                result = sums.by_edges(data, into)
        return result.reshape(self.shape)


def without_row_scale(operand: CSROperand) -> CSROperand:
    """The operand without its row scale, which is then applied behind the sums."""
    return operand if operand.row_scale is None else replace(operand, row_scale=None)
