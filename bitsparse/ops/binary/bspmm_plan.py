"""Aggregation with one-bit operands, prepared for one adjacency and one width of features."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.ops.binary.bspmm_gpu import TILES, GpuAggregates
from bitsparse.ops.binary.bspmm_host import HostCall
from bitsparse.ops.binary.bspmm_operands import Addend, Features, addend_of, as_features, pattern_of
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.operands.target import target_of

__all__ = ["KERNELS", "METHODS", "BspmmPlan"]

#: How 0/1 times -1/+1 is counted, and kernels for a GPU.
METHODS = ("twice-plus", "plus-minus", "select")
#: What gives bits, for messages.
_OTHERWISE = "a variant that ends in B"
KERNELS = (*METHODS, "csr", "frdc", "windows")


class BspmmPlan:
    """A prepared aggregation ``plan(x, add=None, out=None)``; made by :func:`plan_bspmm`.

    Attributes
    ----------
    shape : tuple of int
        Of the result.
    variant : str
        The three letters.
    device : str
        Where the adjacency is and all others must be.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> bs.plan_bspmm(sp.csr_array(np.array([[False, True], [True, True]])), 8)
    <BspmmPlan BBF shape=(2, 8) reduce=sum edges=3>
    """

    def __init__(
        self,
        function: str,
        csr: CSROperand,
        columns: int,
        variant: str,
        epilogue: Epilogue | None,
        reduce: str,
        kernel: str | None,
        added: bool,
    ) -> None:
        self._function, self._columns, self._epilogue, self._added = function, columns, epilogue, added
        _check.choice(function, "reduce", reduce, ("sum", "mean"))
        self._mean, self._forced = reduce == "mean", _check.kernel(function, kernel, KERNELS)
        self._csr = csr = pattern_of(csr) if variant[1] == "B" and csr.values is not None else csr
        self.variant, self.device, self.shape = variant, csr.device, (csr.shape[0], columns)
        self._gpu: GpuAggregates | None = None
        if self.device != "cpu":
            self._gpu = GpuAggregates.kept(function, csr, variant, columns, self._mean, epilogue, self._forced)
        elif self._forced not in (None, *METHODS):
            raise KernelError(
                f"{function}: kernel {_check.shown(self._forced)} runs on a GPU, but A is on the CPU; pass kernel=None"
            )

    def __repr__(self) -> str:
        reduce = "mean" if self._mean else "sum"
        return f"<BspmmPlan {self.variant} shape={self.shape} reduce={reduce} edges={self._csr.nnz}>"

    @property
    def kernel(self) -> str:
        """How bits are counted or floats are summed."""
        if self._gpu is not None:
            return self._gpu.kernel
        return self._forced or METHODS[0 if self.variant[:2] == "BB" else 2]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the result, with an addend of float32 if there is one; of the integers that it holds if it is a BitTensor."""
        if self._epilogue is not None:
            return self._epilogue.dtype
        plain = not (self._mean or self._added) and self._csr.row_scale is None and self._csr.col_scale is None
        return np.dtype(np.int32 if plain and self.variant[:2] == "BB" else np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept for the adjacency beside its own arrays."""
        return 0 if self._gpu is None else int(self._csr.schedule.nbytes)

    def explain(self) -> str:
        """Which kernel computes it and why, in a few lines."""
        (rows, cols), edges = self._csr.shape, self._csr.nnz
        reduce = "mean" if self._mean else "sum"
        first = f"{self.variant}: {rows} x {cols}, {edges} edges: {reduce} of {self._columns} features"
        if self._gpu is None:
            how = "vertical counters where both are one bit, else float32 sums"
            return f"{first}\non the CPU, edge by edge: {how}"
        return "\n".join((first, *self._tiles(), *self._gpu.explain()))

    def _tiles(self) -> list[str]:
        """Why 4 x 4 tiles are not summed as such, where the adjacency has some."""
        tiles = TILES.get(self._csr.prepared)
        if tiles is None or self._forced == "frdc":
            return []
        each = self._csr.nnz / max(1, tiles[1].size)
        return [f"4 x 4 tiles hold {each:.2f} edges each; edges are taken from CSR, made from them once"]

    def check(self) -> None:
        """Raise if NaN was to become a bit in a call since the last check; waits for those on a GPU.

        A CPU raises as it goes. On a GPU a plan does not wait, and such bits are 0; :func:`bspmm` checks every time.

        Raises
        ------
        ValueError
        """
        if self._gpu is not None and self._gives_bits:
            with working_with(self.device):
                _check.no_nan_in_epilogue(self._function, self._gpu.nan_seen())

    @property
    def _gives_bits(self) -> bool:
        return self._epilogue is not None and self._epilogue.gives_bits

    def __call__(self, x: Any, add: Any = None, out: Any = None) -> Any:
        """The aggregate of features of the planned width; see :func:`bspmm`."""
        function = self._function
        if (add is None) == self._added:
            raise ValueError(
                f"{function}: the plan is for calls {'with' if self._added else 'without'} add, but this one comes "
                f"{'without' if self._added else 'with'} it; make another plan with add={not self._added}"
            )
        with working_with(self.device, x, add, out):
            return self.run(as_features(function, self._csr.shape[1], self.device, x), add, out)

    def prepare(self, x: Features) -> None:
        """Choose and compile for features like these, and an addend of float32 if there is one."""
        if self._gpu is not None and 0 not in self.shape:
            shape = self.shape
            space: Any = interop.namespace(self._csr.indptr)
            floats = Addend(space.empty((0, shape[1]), np.float32), None, x.family) if self._added else None
            self._gpu.prepare(self._csr, x, floats)

    def run(self, x: Features, add: Any, out: Any, checked: bool = False) -> Any:
        """The aggregate of features that fit the adjacency, on its device's current stream; `checked` as by :meth:`check`."""
        function, epilogue = self._function, self._epilogue
        if x.shape[1] != self._columns:
            raise ShapeError(
                f"{function}: x has shape {x.shape}, but the plan is for {(self._csr.shape[1], self._columns)}; make another plan"
            )
        if (x.encoding is None) != (self.variant[0] == "F"):
            kind = "an ordinary array" if x.encoding is None else "a BitTensor of 1 bit"
            raise DTypeError(f"{function}: x is {kind}, but the plan is for {self.variant}; make another plan")
        addend = None if add is None else addend_of(function, add, self.shape, self.device)
        family = interop.common_family([x.family, x.family if addend is None else addend.family])
        like = epilogue.wrap(x.data[:0], self.shape, interop.NUMPY, function) if self._gives_bits and epilogue else None
        result = self._on_cpu(x, addend, out, like) if self._gpu is None else self._on_gpu(x, addend, out, like)
        if checked:
            self.check()
        if out is not None:
            return out
        if epilogue is not None and self._gives_bits:
            return epilogue.wrap(result, self.shape, family, function)
        return interop.from_array(result, family, function)

    def _on_cpu(self, x: Features, addend: Addend | None, out: Any, like: BitTensor | None) -> Any:
        function = self._function
        call = HostCall(function, self._csr, x, self.variant, self._epilogue, self._mean, self._forced, addend)
        with self._csr.checked(function):
            result = call.run()
        if out is not None:
            target = target_of(function, out, result.shape, result.dtype, self.device, (), like, _OTHERWISE)
            target[...] = result.reshape(target.shape)
        return result

    def _on_gpu(self, x: Features, addend: Addend | None, out: Any, like: BitTensor | None) -> Any:
        gpu, target = self._gpu, None
        assert gpu is not None
        if out is not None:
            read = [x.data] if addend is None else [x.data, addend.data]
            dtype = gpu.result_dtype(x, addend)
            target = target_of(self._function, out, self.shape, dtype, self.device, read, like, _OTHERWISE)
        if 0 in self.shape:
            return gpu.nothing(interop.namespace(x.data), x, addend) if target is None else target
        return gpu.run(self._csr, x, addend, target)
