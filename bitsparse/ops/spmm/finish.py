"""An epilogue behind a sparse product: which scales can be taken out of the sums, and how they become part of the chain."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.backends.params import Array, OperandParams
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.errors import ShapeError
from bitsparse.interop import converted
from bitsparse.interop.kept import Slot, Store
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.finish.terms import Factor, operand_terms
from bitsparse.ops.operands.csr import CSROperand

#: Scale and offset of a BitTensor.
Scales = tuple[Array | None, Array | None]


#: Slot for the finishes of a pattern, each with the arrays of the operand to which it belongs.
FINISHES: Slot[tuple[tuple[Any, ...], SumFinish]] = Slot("finishes", most=8)
#: Slot for the terms of a BitTensor's scale and offset, by their ids; both arrays are held too, so that no other array gets these ids.
_TERMS: Slot[tuple[Any, Any, OperandParams]] = Slot("contributions", most=8)


class SumFinish:
    """An epilogue behind sums or means over one pattern, of features of one width.

    Integers are summed exactly if their factors are per tensor, per column or per row: the factors then belong to the chain, as in
    :func:`matmul`, so that host and GPU give the same bits. If a factor differs by neighbour (a `col_scale` of the matrix, values that are
    not integers, one scale per node, or a maximum or minimum of real values), the sums are those of :func:`spmm` without an epilogue,
    rounded to float32.

    Parameters
    ----------
    epilogue : Epilogue
    operand : CSROperand
    shape : tuple of int
        Shape of the result, which has two dimensions.
    reduce : str
        One of `REDUCTIONS`.
    """

    def __init__(
        self, function: str, epilogue: Epilogue, operand: CSROperand, shape: tuple[int, ...], reduce: str
    ) -> None:
        self._function, self.epilogue, self.shape, self._reduce = function, epilogue, shape, reduce
        self._row_scale, self._scaled = operand.row_scale, operand.col_scale is not None
        #: The epilogue's own chain; wrong shapes in the epilogue raise here.
        self.params = epilogue.params(function, shape)
        self._kept: Store = {}
        self._device: dict[str, tuple[Any, Any]] = {}
        self._lock = threading.Lock()
        self._ready = interop.Ready()

    @classmethod
    def kept(cls, function: str, epilogue: Any, operand: CSROperand, shape: tuple[int, ...], reduce: str) -> SumFinish:
        """The finish that a container on a GPU keeps for this epilogue, or a new one.

        Raises
        ------
        DTypeError
            `epilogue` is not an Epilogue.
        ShapeError
            The result does not have two dimensions, or the vectors of the epilogue do not fit it.
        """
        _check.instance(function, "epilogue", epilogue, Epilogue, "an Epilogue")
        if len(shape) != 2:
            raise ShapeError(
                f"{function}: the result has shape {shape}, but an epilogue takes rows and columns; reshape x to (N, columns)"
            )
        # A symmetric graph is summed with row scales in the forward pass and without them in the backward pass.
        key = epilogue, shape, reduce, operand.row_scale is not None
        return operand.kept_with_factors(FINISHES, lambda: cls(function, epilogue, operand, shape, reduce), key)

    def takes_out(self, scales: Scales | None, weights: Array | None) -> bool:
        """Whether the chain takes all scales, so that integers (or plain features, if `scales` is None) are summed without them."""
        real = weights is not None and weights.dtype.kind not in "biu"
        if self._scaled or real or REDUCTIONS[self._reduce].selects:
            return False
        if scales is None:
            return self._row_scale is None
        return all(part is None or part.ndim == 0 or part.shape[-2] == 1 for part in scales)

    def behind(self, operand: CSROperand, x: BitTensor | None, weights: Array | None) -> OperandParams:
        """What the factors that were taken out of the sums of the integers of `x` add to the chain; kept by scale and offset."""
        scale, offset = (None, None) if x is None else (x.scale, x.offset)
        if x is None or (scale is None and offset is None and self._row_scale is None):
            return OperandParams()
        # With values, the term of an offset depends on them, and they may have changed since the last call.
        fixed = weights is operand.values and (weights is None or offset is None)
        key = (id(scale), id(offset))
        found = _TERMS.get(self._kept, key) if fixed else None
        if found is not None:
            return found[2]
        sums = None if offset is None else self._line_sums(operand, weights)
        row_scale = None if self._row_scale is None else self._row_scale[:, None]
        left, epilogue = Factor(operand.shape, row_scale, None, sums), self.epilogue
        terms = operand_terms(self._function, left, x, epilogue.offset_correction, ("A", "x"))
        made = epilogue.behind(terms, operand.device)
        if fixed:
            if operand.device != "cpu":
                operand.ready.renew()
            _TERMS.keep(self._kept, (scale, offset, made), key)
        return made

    def _line_sums(self, operand: CSROperand, weights: Array | None) -> Array:
        """How often the sum of a row contains its neighbours' offset; for a mean, that number divided by the count."""
        space: Any = interop.namespace(operand.indptr)
        counts = operand.indptr[1:] - operand.indptr[:-1]
        if weights is None:
            sums = counts
        else:
            ones = space.ones((operand.shape[1], 1), np.int8)
            with operand.walked(self._function) as pattern:
                summed = backends.family(operand.device, "spmm.spmm").spmm
                sums = summed(pattern, ones, acc_dtype=np.int64, values=weights)[:, 0]
        if self._reduce == "mean":
            return sums.astype(np.float64) / space.maximum(counts, 1)
        return sums.astype(np.int64)

    # ---- the chain on sums in memory
    def on_host(self, sums: Array, behind: OperandParams | None, target: Array | None) -> Array:
        """Apply the chain to sums on the CPU."""
        params = self.params if behind is None else self.params.joined(behind)
        made: Array = backends.family("cpu", "matmul.matmul").epilogue(_as_sums(sums), params)
        if target is None:
            return made
        target[...] = made.reshape(target.shape)
        return target

    def device_chain(self, largest: float) -> Any:
        """A new chain prepared on the current device, for sums up to `largest` and for one user at a time."""
        return backends.family("cuda", "matmul.matmul").DeviceEpilogue(self.params, self.shape, largest)

    def on_gpu(self, sums: Array, behind: OperandParams | None, target: Array | None) -> Array:
        """Apply the chain to sums on the current device and stream, in a kernel behind that of the sums."""
        sums = _as_sums(sums)
        with self._lock:
            kind = sums.dtype.name
            if kind not in self._device:
                chain = self.device_chain(np.inf if sums.dtype.kind == "f" else 2.0 ** (8 * sums.dtype.itemsize - 1))
                self._device[kind] = chain, chain.on(sums.dtype)
                self._ready.renew()
            self._ready.wait()
            chain, kernel = self._device[kind]
            chain.with_operand(behind or OperandParams())
            made: Array = chain.empty() if target is None else target
            kernel.run(sums, made)
        return made

    def check(self, chains: tuple[Any, ...] = ()) -> None:
        """Raise if NaN was to become a code since the last check; waits for the GPU unless NaN is impossible.

        Raises
        ------
        ValueError
        """
        own = (chain for chain, _ in self._device.values())
        found = [chain.nan_seen() for chain in (*own, *chains) if chain.may_see_nan]
        _check.no_nan_in_epilogue(self._function, any(found))


def _as_sums(sums: Array) -> Array:
    """The sums in a dtype that the chain takes: int32, int64 or float32."""
    wanted = sums.dtype if sums.dtype.name in ("int32", "int64") else np.dtype(np.float32)
    return interop.contiguous(converted(sums, wanted))
