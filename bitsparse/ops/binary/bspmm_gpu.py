"""Aggregation with one-bit operands on a GPU: the choice of the kernel, and what is kept between calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import backends, interop
from bitsparse._records import replace
from bitsparse.backends.params import Array, OperandParams, times, words_shape
from bitsparse.errors import DTypeError, KernelError
from bitsparse.interop.kept import Slot
from bitsparse.ops.binary.bspmm_floats import Made, float_sums
from bitsparse.ops.binary.bspmm_operands import Addend, Aggregation, sum_dtype
from bitsparse.ops.finish import thresholds
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features

#: The most aggregations that are kept for an epilogue, one for each kind of features.
_KEPT = 8


class GpuAggregates:
    """Aggregations over one pattern with one epilogue, one for each kind of features.

    It holds the operand's arrays but not the container's store, so that the container can keep it without a reference cycle.
    """

    def __init__(self, rows: int, wanted: Aggregation, ready: interop.Ready) -> None:
        self.wanted, self._shape, self._ready = wanted, (rows, wanted.columns), ready
        self._made: dict[Any, Made] = {}
        #: The chain as asked for; and the chain for the kernels, which always pack bits along the features.
        self._chain = (wanted.epilogue or Epilogue()).params(wanted.function, self._shape)
        self._params = replace(self._chain, axis=-1, layout="planes")

    def explain(self) -> list[str]:
        """Name the kernel of each aggregation that has been prepared so far, and say why it was chosen."""
        return [f"{key[0]}: {made.explain}" for key, made in self._made.items()] or ["nothing is prepared yet"]

    def result_dtype(self, x: Features, addend: Addend | None) -> np.dtype[Any] | None:
        """Dtype of numbers in the result; None if it depends on the values of an integer addend."""
        if not self.wanted.is_exact(x, addend):
            return np.dtype(np.float32)
        return np.dtype(np.int32) if addend is None or addend.encoding is not None else None

    def run(self, operand: CSROperand, x: Features, addend: Addend | None, out: Array | None) -> Array:
        """The aggregate, in `out` if it is given."""
        chain, shape = self._chain, self._shape
        stored = words_shape(shape, 1, chain.axis, chain.layout) if chain.out == "bits" else shape
        if 0 in shape:
            dtype = np.dtype(np.uint32) if chain.out == "bits" else self.result_dtype(x, addend)
            return interop.namespace(x.data).zeros(stored, dtype or np.int32) if out is None else out
        self._ready.wait()
        made = self.prepare(operand, x, addend)
        if chain.out == "float":
            return made.run(x, addend, out)
        words = words_shape(shape, 1, -1, "planes")
        if chain.axis == -1:
            return made.run(x, addend, None if out is None else out.reshape(words)).reshape(stored)
        along = operand.schedule.workspace("signs", words, np.uint32)
        made.run(x, addend, along)
        return backends.family(operand.device, "bits.pack").repack(
            along, shape, 1, axis=-1, layout="planes", to_axis=-2, to_layout=chain.layout, out=out
        )

    @property
    def kernel(self) -> str:
        """Name of the kernel that was prepared last; before that, of the forced kernel or the usual one."""
        return next((made.kernel for made in reversed(self._made.values())), self.wanted.kernel or self.wanted.method)

    def nan_seen(self) -> bool:
        """Whether NaN was to become a bit since the last such question; waits for the current stream."""
        return sum([made.nan_seen() for made in self._made.values()]) > 0

    def prepare(self, operand: CSROperand, x: Features, addend: Addend | None) -> Made:
        """The aggregation for features and an addend like these."""
        exact, counts = self.wanted.is_exact(x, addend), self.wanted.counts(x)
        # The chain behind counters takes neither scales of nodes nor an addend before it.
        counted = exact or (counts and x.node_scale is None and addend is None)
        # It takes the scale of the features when it is prepared, so that the scale is part of the key.
        scale = None if x.source is None or not counted or exact else x.source.scale
        added = None if addend is None else "floats" if addend.encoding is None else "bits"
        key = (x.encoding or x.data.dtype.name, x.node_scale is None, x.feature_scale is None, id(scale), added)
        made = self._made.get(key)
        if made is None:
            self._ready.wait()
            # Finding the longest row waits for the GPU, so it is done only if something depends on it.
            wide = operand.indptr.dtype.itemsize == 8
            asked = counted and (wide or addend is not None or self._chain.out == "bits")
            longest = operand.longest_row if asked else 0
            self._check_kernel(operand, x, counted, longest)
            if len(self._made) >= _KEPT:
                self._made.clear()
            if exact:
                made = self._integers(operand, x, longest)
            elif counted:
                made = self._counted(operand, x, longest)
            else:
                made = float_sums(operand, x, self.wanted, self._params, added)
            self._made[key] = made
            self._ready.renew()
        return made

    def _check_kernel(self, operand: CSROperand, x: Features, counted: bool, longest: int) -> None:
        function, forced = self.wanted.function, self.wanted.kernel
        self.wanted.check_sums(counted, longest)
        if forced == "frdc" and not (counted and TILES.get(operand.prepared) is not None):
            raise KernelError(
                f"{function}: kernel 'frdc' counts bits over the tiles of an FRDC array; pass kernel=None"
            )
        if forced == "windows" and x.encoding is not None:
            raise KernelError(f"{function}: kernel 'windows' sums floats, but x is one bit; pass kernel=None")

    def _integers(self, operand: CSROperand, x: Features, longest: int) -> Made:
        sums = self._counter(operand, x, output="int32")
        unpack, shape = backends.family(operand.device, "bits.pack").unpack, self._shape

        def run(x: Features, addend: Addend | None, out: Array | None) -> Array:
            counted: Array = sums(x.data, out if addend is None else None)
            if addend is None:
                return counted
            encoding = addend.encoding
            if encoding is None:
                given = addend.data.astype(sum_dtype(addend.data, longest), copy=False)
            else:
                given = unpack(addend.data, shape, 1, axis=-1, layout="planes", encoding=encoding, dtype=np.int32)
            if out is not None and out.dtype != given.dtype:
                raise DTypeError(
                    f"{self.wanted.function}: out has dtype {out.dtype}, but the sums are {given.dtype}; pass out=None or an array of that "
                    f"dtype"
                )
            return interop.namespace(counted).add(counted, given, out=out)

        return Made(self.wanted.method, run, self._explained(), lambda: False)

    def _counted(self, operand: CSROperand, x: Features, longest: int) -> Made:
        params, mean, scale = self._params, self.wanted.mean, x.feature_scale
        known_by = None if x.source is None else x.source.scale
        limits = None
        if params.out == "bits":
            features = None if scale is None else interop.move(scale, "cpu")
            scales = {
                "row_scale": times(params.row_scale, operand.row_scale),
                "col_scale": times(params.col_scale, features),
            }
            lengths = operand.indptr[1:] - operand.indptr[:-1]
            limits = thresholds.of_epilogue(replace(params, **scales), lengths, self._shape[1], longest, mean=mean)
        if limits is not None:
            classes = limits.values.shape[0]
            how = f"integer thresholds of {classes} class{'es' if classes != 1 else ''} of rows"
            sums = self._counter(operand, x, output="bits", thresholds=limits)
        else:
            how, output = "chain in the same kernel", "bits" if params.out == "bits" else "float32"
            behind = OperandParams(row_scale=operand.row_scale, col_scale=scale)
            sums = self._counter(operand, x, output=output, params=params, operand=behind, mean=mean)

        def run(x: Features, addend: Addend | None, out: Array | None, _kept: Any = known_by) -> Array:
            return sums(x.data, out)  # _kept holds the scale, since its id is part of the key

        return Made(self.wanted.method, run, f"{self._explained()}, {how}", sums.nan_seen)

    def _explained(self) -> str:
        forced = self.wanted.kernel
        why = "vertical counters, edge by edge" if forced is None else "forced"
        return f"kernel {self.wanted.method} ({why}{', tile by tile' if forced == 'frdc' else ''})"

    def _counter(self, operand: CSROperand, x: Features, /, **given: Any) -> Any:
        family = backends.family(operand.device, "binary.bspmm")
        given |= {"features": self._shape[1], "bipolar": x.encoding == "bipolar", "kernel": self.wanted.method}
        tiles = TILES.get(operand.prepared) if self.wanted.kernel == "frdc" else None
        if tiles is None:
            return family.BinarySum(operand.schedule, **given)
        schedule = _TILE_SCHEDULES.of(operand.prepared, lambda: family.TileSchedule(*tiles, operand.shape))
        return family.BinarySum(schedule, **given)


#: Slots for the arrays of an FRDC array, and for the schedule of its tiles.
TILES: Slot[tuple[Any, ...]] = Slot("frdc tiles", most=1)
_TILE_SCHEDULES: Slot[Any] = Slot("tile schedule", most=1)
