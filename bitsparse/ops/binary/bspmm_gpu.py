"""Aggregation with one-bit operands on a GPU: which kernel computes it, why, and what is kept between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse._check import shown
from bitsparse._records import replace
from bitsparse.backends.params import OperandParams, packed_words
from bitsparse.errors import DTypeError, KernelError
from bitsparse.interop.kept import Slot
from bitsparse.ops.binary.bspmm_floats import float_product, weights_of
from bitsparse.ops.binary.bspmm_operands import Addend, Features, float_addend
from bitsparse.ops.finish import thresholds
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.csr import CSROperand

__all__ = ["TILES", "GpuAggregates"]

Array = NDArray[Any]
#: Aggregations of one kind of features that are kept for an epilogue.
_KEPT = 8
#: Ways to count, and kernels for float sums.
_METHODS, _FLOAT_KERNELS = ("twice-plus", "plus-minus", "select"), ("csr", "windows")


class Made(NamedTuple):
    """One aggregation, ready to run.

    Attributes
    ----------
    kernel : str
    run : callable
        ``run(x, addend, out)`` gives numbers, or words packed along the features.
    explain : str
    nan_seen : callable
        Whether NaN was to become a bit since this was asked last; waits.
    """

    kernel: str
    run: Callable[[Features, Addend | None, Array | None], Array]
    explain: str
    nan_seen: Callable[[], bool]


class GpuAggregates:
    """Aggregations over one pattern with one epilogue, one for each kind of features.

    It holds the operand's arrays but not what the container keeps, so that the container can keep it without a cycle.
    """

    def __init__(
        self,
        function: str,
        operand: CSROperand,
        variant: str,
        columns: int,
        mean: bool,
        epilogue: Epilogue | None,
        kernel: str | None,
    ) -> None:
        self.function, self._variant, self._mean = function, variant, mean
        self._epilogue, self._forced = epilogue, kernel
        self._shape = (operand.shape[0], columns)
        #: Arrays by which a product is known; containers of one pattern may differ in values and scales.
        self.owner = owner_of(operand)
        self._ready = operand.ready
        # Without a float step the stored integers are summed, as matmul multiplies them.
        self._counts = variant[1] == "B" and operand.col_scale is None
        self._plain = epilogue is None and not mean and operand.row_scale is None
        self._made: dict[Any, Made] = {}
        chain = epilogue or Epilogue()
        #: The chain as it is, and as the kernels take it, which pack along the features.
        self._wanted = chain.params(function, self._shape)
        self._params = replace(self._wanted, axis=-1, layout="planes")
        #: Axis, layout and encoding of bits that come out.
        self.bits: tuple[int, str, str] | None = None
        if chain.gives_bits:
            self.bits = (self._wanted.axis, self._wanted.layout, chain.encoding or "bipolar")

    @classmethod
    def kept(
        cls,
        function: str,
        operand: CSROperand,
        variant: str,
        columns: int,
        mean: bool,
        epilogue: Epilogue | None,
        kernel: str | None,
    ) -> GpuAggregates:
        """What a container keeps for aggregations of this kind, or new ones."""
        key = (variant, columns, mean, epilogue, kernel)
        kept = _AGGREGATES.get(operand.prepared, key)
        if kept is not None and all(a is b for a, b in zip(kept.owner, owner_of(operand), strict=True)):
            kept.function = function
            return kept
        return _AGGREGATES.keep(operand.prepared, cls(function, operand, variant, columns, mean, epilogue, kernel), key)

    def explain(self) -> list[str]:
        """Which kernel runs for what has been prepared so far, and why."""
        return [f"{key[0]}: {made.explain}" for key, made in self._made.items()] or ["nothing is prepared yet"]

    def result_dtype(self, x: Features, addend: Addend | None) -> np.dtype[Any] | None:
        """Of the numbers that come out; None where integers are added whose values decide."""
        if not self._is_exact(x, addend):
            return np.dtype(np.float32)
        return np.dtype(np.int32) if addend is None or addend.encoding is not None else None

    def run(self, operand: CSROperand, x: Features, addend: Addend | None, out: Array | None) -> Array:
        """The aggregate, into `out` if it is given."""
        self._ready.wait()
        made = self.prepare(operand, x, addend)
        wanted = self._wanted
        if wanted.out == "float" or wanted.axis == -1:
            shape = None if out is None else out.shape
            if out is not None and wanted.out == "bits":
                out = out.reshape(self._shape[0], 1, -1)
            result = made.run(x, addend, out)
            if wanted.out == "bits" and wanted.layout == "rows":
                result = result.reshape(self._shape[0], -1)
            return result if shape is None else result.reshape(shape)
        words = operand.schedule.workspace(
            "signs", (self._shape[0], 1, packed_words(self._shape[1], 1, "planes")), np.uint32
        )
        made.run(x, addend, words)
        turned: Array = backends.family(operand.device, "bits.pack").repack(
            words, self._shape, 1, axis=-1, layout="planes", to_axis=-2, to_layout=wanted.layout, out=out
        )
        return turned

    @property
    def kernel(self) -> str:
        """Which kernel was prepared last; before that the one forced, or the usual one."""
        return next((made.kernel for made in reversed(self._made.values())), self._forced or self._method)

    def nothing(self, space: Any, x: Features, addend: Addend | None) -> Array:
        """A result without elements."""
        if self.bits is None:
            empty: Array = space.zeros(self._shape, self.result_dtype(x, addend) or np.dtype(np.int32))
            return empty
        rows, columns = self._shape
        outer, length = (columns, rows) if self._wanted.axis == -2 else (rows, columns)
        width = packed_words(length, 1, "planes")
        shape = (outer, width) if self._wanted.layout == "rows" else (outer, 1, width)
        made: Array = space.zeros(shape, np.uint32)
        return made

    def nan_seen(self) -> bool:
        """Whether NaN was to become a bit since this was asked last; waits for the current stream."""
        return sum([made.nan_seen() for made in self._made.values()]) > 0

    def _is_exact(self, x: Features, addend: Addend | None) -> bool:
        """Whether stored integers are summed and no float step follows."""
        stays = self._plain and (addend is None or addend.is_integer)
        return self._counts and x.encoding is not None and stays

    def prepare(self, operand: CSROperand, x: Features, addend: Addend | None) -> Made:
        """The aggregation for features and an addend like these."""
        exact = self._is_exact(x, addend)
        kind = x.encoding or x.data.dtype.name
        # The chain of the counters knows neither factors of nodes nor what is added before it.
        counted = exact or (self._counts and x.encoding is not None and x.node_scale is None and addend is None)
        # The chain of counters knows the factors of the features when it is made.
        scale = x.feature_scale if counted and not exact else None
        added = None if addend is None else "floats" if addend.encoding is None else "bits"
        joins = None if addend is None else addend.is_integer if counted else added
        key = (kind, x.node_scale is None, x.feature_scale is None, id(scale) if scale is not None else 0, joins)
        made = self._made.get(key)
        if made is None:
            self._ready.wait()
            longest = operand.longest_row if counted else 0
            self._check_kernel(operand, x, counted, longest)
            if len(self._made) >= _KEPT:
                self._made.clear()
            if x.encoding is None:
                made = self._floats(operand, x, added)
            elif counted and exact:
                made = self._integers(operand, x, longest)
            elif counted:
                made = self._counted(operand, x, longest)
            else:
                made = self._packed(operand, x, added)
            self._made[key] = made
            self._ready.renew()
        return made

    def _check_kernel(self, operand: CSROperand, x: Features, counted: bool, longest: int) -> None:
        function, forced = self.function, self._forced
        if longest >= 1 << 31:
            raise ValueError(f"{function}: a row has {longest} entries, beyond int32 counters; split the graph")
        if forced == "frdc" and not (counted and TILES.get(operand.prepared) is not None):
            raise KernelError(
                f"{function}: kernel 'frdc' counts bits over the tiles of an FRDC array; pass kernel=None"
            )
        if counted and forced == "windows":
            raise KernelError(f"{function}: kernel 'windows' sums floats, but x is one bit; pass kernel=None")
        if not counted and forced in _METHODS and forced != "select":
            raise KernelError(
                f"{function}: kernel {shown(forced)} counts bits, but variant {shown(self._variant)} with these scales sums numbers; "
                f"pass kernel=None"
            )
        if not counted and x.encoding is not None and forced == "windows":
            raise KernelError(f"{function}: kernel 'windows' gathers floats, but x is one bit; pass kernel='csr'")

    # ---- counters
    def _integers(self, operand: CSROperand, x: Features, longest: int) -> Made:
        family, bits = (backends.family(operand.device, name) for name in ("binary.bspmm", "bits.pack"))
        sums = self._counter(family, operand, x, output="int32")
        space, shape = interop.namespace(x.data), self._shape

        def run(x: Features, addend: Addend | None, out: Array | None) -> Array:
            if addend is None:
                counted: Array = sums(x.data, out)
                return counted
            if addend.encoding is not None:
                given = bits.unpack(
                    addend.data, shape, 1, axis=-1, layout="planes", encoding=addend.encoding, dtype=np.int32
                )
            else:
                given = addend.data
                given = given.astype(_sum_dtype(given, longest), copy=False)
            if out is not None and out.dtype != given.dtype:
                raise DTypeError(
                    f"{self.function}: out has dtype {out.dtype}, but the sums are {given.dtype}; pass out=None or an array of that dtype"
                )
            found: Array = space.add(sums(x.data), given)
            if out is None:
                return found
            out[...] = found
            return out

        return Made(self._method, run, f"kernel {self._method} ({self._why(operand)})", lambda: False)

    def _counted(self, operand: CSROperand, x: Features, longest: int) -> Made:
        family, params = backends.family(operand.device, "binary.bspmm"), self._params
        how = "chain in the same kernel"
        limits = None
        given: dict[str, Any]
        if params.out == "bits":
            scales = {
                "row_scale": _times(params.row_scale, operand.row_scale),
                "col_scale": _times(
                    params.col_scale, interop.move(x.feature_scale, "cpu") if x.feature_scale is not None else None
                ),
            }
            lengths = operand.indptr[1:] - operand.indptr[:-1]
            limits = thresholds.of_epilogue(
                replace(params, **scales), lengths, self._shape[1], longest, mean=self._mean
            )
        if limits is not None:
            classes = limits.values.shape[0]
            how = f"integer thresholds of {classes} class{'es' if classes != 1 else ''} of rows"
            given = {"output": "bits", "thresholds": limits}
        else:
            behind = OperandParams(row_scale=operand.row_scale, col_scale=x.feature_scale)
            output = "bits" if params.out == "bits" else "float32"
            given = {"output": output, "params": params, "operand": behind, "mean": self._mean}
        sums = self._counter(family, operand, x, **given)
        scale = x.feature_scale  # kept, as its address is what the product is known by

        def run(x: Features, addend: Addend | None, out: Array | None, _scale: Any = scale) -> Array:
            found: Array = sums(x.data, out)
            return found

        return Made(self._method, run, f"kernel {self._method} ({self._why(operand)}), {how}", sums.nan_seen)

    @property
    def _method(self) -> str:
        return self._forced if self._forced in _METHODS else _METHODS[0]

    def _why(self, operand: CSROperand) -> str:
        if self._forced == "frdc":
            return "forced, tile by tile"
        return "forced" if self._forced is not None else "vertical counters, edge by edge"

    def _counter(self, family: Any, operand: CSROperand, x: Features, /, **given: Any) -> Any:
        bipolar = x.encoding == "bipolar"
        if self._forced != "frdc":
            schedule, indices = operand.schedule, operand.indices
        else:
            held = TILES.get(operand.prepared)
            assert held is not None
            indptr, indices, tiles = held
            schedule = _TILE_SCHEDULES.of(operand.prepared, lambda: family.TileSchedule(indptr, tiles, operand.shape))
        return family.BinarySum(
            schedule, indices, features=self._shape[1], bipolar=bipolar, kernel=self._method, **given
        )

    # ---- float sums
    def _packed(self, operand: CSROperand, x: Features, added: str | None) -> Made:
        """One-bit features with weights, with factors of columns, or with an addend before a chain."""
        packed, finishing = (backends.family(operand.device, name) for name in ("spmm.packed", "finish.floats"))
        values, row_scale = weights_of(operand, self._mean)
        finish = finishing.Finish(
            self._params, self._shape, row_scale=row_scale, added=added, scaled=x.feature_scale is not None
        )
        schedule = operand.schedule
        kind = "general" if x.node_scale is not None else "none" if values is None else "edge"
        sums = packed.PackedSum(
            schedule,
            operand.indices,
            features=self._shape[1],
            encoding=x.encoding,
            finish=finish,
            values=None if values is None else values.now(),
            weights=kind,
            mean=self._mean,
        )

        def run(x: Features, addend: Addend | None, out: Array | None) -> Array:
            node = None if x.node_scale is None else interop.contiguous(x.node_scale)
            now = None if values is None else values.now()
            result: Array = sums(x.data, now, node, out, self.behind(finishing, schedule, x, addend))
            return result

        return Made("csr", run, f"kernel csr, weights times signs, {lanes_of(sums.tuning)}", finish.nan_seen)

    def _floats(self, operand: CSROperand, x: Features, added: str | None) -> Made:
        """Float features: the kernels of :func:`spmm`, with the chain in them."""
        finishing = backends.family(operand.device, "finish.floats")
        schedule, plain = operand.schedule, self._epilogue is None and added is None
        run, kernel, explain, nan_seen = float_product(
            self.function, operand, x, self._shape, self._mean, self._params, plain, added, self._float_kernel
        )

        def whole(x: Features, addend: Addend | None, out: Array | None) -> Array:
            return run(x.data, None if addend is None else self.behind(finishing, schedule, x, addend), out)

        return Made(kernel, whole, explain, nan_seen)

    @property
    def _float_kernel(self) -> str | None:
        return self._forced if self._forced in _FLOAT_KERNELS else None

    def behind(self, finishing: Any, schedule: Any, x: Features, addend: Addend | None) -> Any:
        """What one call brings along for the finish of float sums."""
        scale = x.feature_scale
        if scale is not None:
            room = schedule.workspace("factors", (finishing.padded_columns(self._shape[1]),), np.float32)
            room[: self._shape[1]] = scale
            scale = room
        if addend is None:
            return finishing.Behind(None, None, scale)
        data = addend.data if addend.encoding is not None else float_addend(addend)
        return finishing.Behind(data, addend.encoding, scale)


def lanes_of(tuning: Any) -> str:
    """What an explanation says of a tuning for packed features."""
    return f"{tuning.lane} features a lane, {tuning.lanes} lanes a row"


def owner_of(operand: CSROperand) -> tuple[Any, ...]:
    """Arrays by which a product is known; containers of one pattern may differ in values and scales."""
    return operand.indptr, operand.values, operand.row_scale, operand.col_scale


#: Aggregations that a pattern keeps, by letters, columns, mean, epilogue and kernel.
_AGGREGATES: Slot[GpuAggregates] = Slot("aggregates", most=_KEPT)
#: The arrays of an FRDC array, and how its tiles are dealt out.
TILES: Slot[tuple[Any, ...]] = Slot("frdc tiles", most=1)
_TILE_SCHEDULES: Slot[Any] = Slot("tile schedule", most=1)


def _times(own: Any, theirs: Any) -> Any:
    """The product of factors of the host and of the device or the host; None is one."""
    if own is None or theirs is None:
        return theirs if own is None else own
    return interop.namespace(theirs).asarray(own) * theirs


def _sum_dtype(given: Array, longest: int) -> np.dtype[Any]:
    """int32 where sums of counters and these integers fit, else int64; wide ones are looked at, which waits."""
    dtype = given.dtype
    if dtype.itemsize <= 2:
        return np.dtype(np.int32 if longest + 65536 < 1 << 31 else np.int64)
    if not given.size:
        return np.dtype(np.int32)
    low, high = int(given.min()), int(given.max())
    if low - longest >= -(1 << 31) and high + longest < 1 << 31:
        return np.dtype(np.int32)
    if high >= 1 << 62:
        raise ValueError(f"bspmm: add reaches {high}, too close to the end of int64; use smaller integers")
    return np.dtype(np.int64)
