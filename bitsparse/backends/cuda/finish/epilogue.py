"""The epilogue on the GPU, which turns integer sums into floats or packed codes, in a product's kernel or in a kernel of its own."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop, jit
from bitsparse.backends.cuda.finish.flag import Flag
from bitsparse.backends.params import ACTIVATIONS, ROUNDINGS, EpilogueParams, OperandParams, packed_words
from bitsparse.jit import cupy

# The bits of enum EpilogueStep.
_TERMS, _NORM, _BITS, _DOWN, _WHOLE, _BINARIZE, _QUICK, _PLAIN, _BOUNDED, _ALIGNED, _JOINS = (1 << i for i in range(11))
#: The epilogue's own vectors are padded to multiples of this, so that kernels may read past their ends.
_WHOLE_BLOCK = 64
#: Conditions of codes_quickly: ranges of divisor and multiplier, the most bits, and a bound of the quotients.
_DIVISORS, _MULTIPLIERS, _QUICK_BITS, _QUOTIENTS = (2.0**-60, 2.0**60), (2.0**-10, 2.0**24), 20, 0.99e12
#: The most bits of codes for which the short path of ``finish/fragments.cuh`` is used.
_FRAGMENT_BITS = 4
#: Sums whose epilogue is deferred are kept in 16 bits.
_WAITING_SUMS = 2.0**15 - 1
_LARGEST = float(np.finfo(np.float32).max)
#: Warps of a block of the separate kernel, and rows and columns of a block of sums.
_WARPS, _HEIGHT, _WIDTH = 4, 16, 64
#: For the separate kernel: blocks of a strip, and warps that run on a multiprocessor.
_STRIP, _RESIDENT = 4, 16
#: Threads of a block that processes octets.
_THREADS = 256


EpilogueStruct = jit.struct("finish/chain.cuh", "EpilogueParams")
SumsParams = jit.struct("finish/sums.cu", "SumsParams")


class Upload:
    """Float32 arrays collected in one buffer for one upload; each starts at a multiple of 256 bytes."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.float32]] = []
        self._places: list[tuple[Any, str | int, int]] = []
        self._used = 0

    def add(self, struct: Any, field: str | int, values: NDArray[np.float32]) -> None:
        """Add ``values``; :meth:`finish` stores their address in a field of a structure or in an element of an array."""
        size = -(-values.size // _WHOLE_BLOCK) * _WHOLE_BLOCK
        part = np.zeros(size, np.float32)
        part[: values.size] = values.ravel()
        self._parts.append(part)
        self._places.append((struct, field, 4 * self._used))
        self._used += size

    def finish(self) -> Any:
        """Upload the buffer to the current device, store the addresses and return it."""
        if not self._parts:
            return None
        buffer = interop.uploaded(np.concatenate(self._parts), "epilogue")
        for struct, field, offset in self._places:
            if isinstance(field, str):
                setattr(struct, field, buffer.data.ptr + offset)
            else:
                struct[field] = buffer.data.ptr + offset
        return buffer


class DeviceEpilogue:
    """An epilogue prepared for products of one shape on the current device; its vectors are uploaded once.

    Parameters
    ----------
    params : EpilogueParams
        The epilogue, whose vectors are arrays on the host.
    shape : tuple of int
        ``(*batch, m, n)`` of the product.
    largest : float
        A bound of the magnitude of sums; infinite if there is none.

    Attributes
    ----------
    out_shape, out_dtype
        Shape and dtype of the result: float32 ``(*batch, m, n)``, or uint32 words.
    may_see_nan : bool
        Whether NaN can reach a code at all.
    largest : float
        As given.
    """

    def __init__(self, params: EpilogueParams, shape: tuple[int, ...], largest: float = 2.0**31) -> None:
        self._batch, m, n = shape[:-2], shape[-2], shape[-1]
        self._m, self._n = m, n
        self.shape, self.params, self.largest = shape, params, largest
        self.out_shape, self.out_dtype = shape, np.dtype("float32" if params.out == "float" else "uint32")
        raw = self.struct = EpilogueStruct(m=m, n=n, activation=ACTIVATIONS[params.activation])
        upload = Upload()
        self._add_vector(upload, raw.row_scale[0], params.row_scale, m)
        self._add_vector(upload, raw.col_scale[0], params.col_scale, n)
        for term, given in ((raw.row_term, params.row_term), (raw.col_term, params.col_term)):
            if given is not None:
                raw.steps |= _TERMS
                self._add_vector(upload, term[0], given[0], m)
                self._add_vector(upload, term[1], given[1], n)
        self._add_vector(upload, raw.bias, params.bias, n)
        if params.bn_scale is not None:
            raw.steps |= _NORM
            self._add_vector(upload, raw.bn_scale, params.bn_scale, n)
            self._add_vector(upload, raw.bn_shift, params.bn_shift, n)
        raw.slope = params.negative_slope
        bound = _bound(params, largest)
        self.may_see_nan = params.out == "bits" and not bound < _LARGEST
        if params.out == "bits":
            self._set_codes(upload, params, bound)
        self._buffer = upload.finish()
        self._flag = Flag() if params.out == "bits" else None
        raw.nan = None if self._flag is None else self._flag.address
        self._own_steps, self._own_nan = raw.steps, self.may_see_nan
        self._own_terms, self._own_bias = (bytes(raw.row_term), bytes(raw.col_term)), bytes(raw.bias)
        self._operand: list[Any] = []
        #: Whether the next launch adds its floats to the content of ``out``.
        self.joins = False

    @property
    def way(self) -> int:
        """The epilogue path that the next launch of a product's kernel uses: 2 (short, ``finish/fragments.cuh``) or 1 (general)."""
        raw = self.struct
        return 2 if raw.steps & _PLAIN and not raw.steps & _DOWN and raw.bits <= _FRAGMENT_BITS else 1

    @property
    def can_wait(self) -> bool:
        """Whether way 2 may be deferred while the next tile is multiplied (``finish/deferred.cuh``)."""
        return self.way == 2 and bool(self.struct.steps & _BOUNDED) and self.largest <= _WAITING_SUMS

    def _add_vector(self, upload: Upload, vector: Any, values: Any, length: int) -> None:
        """Broadcast a vector along its axis and, if it has a batch, over the batch, and add it to the upload."""
        if values is None:
            return
        values = np.asarray(values, np.float32)
        batched = values.ndim > 1 and math.prod(values.shape[:-1]) != 1
        room = -(-length // _WHOLE_BLOCK) * _WHOLE_BLOCK
        if not batched:
            values = values.reshape(values.shape[-1:])
        spread = np.zeros((*(self._batch if batched else ()), room), np.float32)
        spread[..., :length] = values
        upload.add(vector, "at", spread)
        vector.step, vector.padded, vector.batch_step = 4, 1, room if batched else 0

    def _set_codes(self, upload: Upload, p: EpilogueParams, bound: float) -> None:
        raw, down = self.struct, p.axis == -2
        outer, length = (self._n, self._m) if down else (self._m, self._n)
        raw.bits, raw.words = p.bits, packed_words(length, p.bits, p.layout)
        planes = (p.bits,) if p.layout == "planes" else ()
        self.out_shape = (*self._batch, outer, *planes, raw.words)
        raw.steps |= _BITS | (_DOWN if down else 0) | (_WHOLE if p.layout == "rows" else 0)
        raw.rounding = ROUNDINGS[p.rounding]
        raw.seed, raw.stream = p.seed & 0xFFFFFFFFFFFFFFFF, p.stream & 0xFFFFFFFF
        if p.binarize:
            raw.steps |= _BINARIZE | _QUICK
            return
        raw.multiplier, raw.low, raw.high = p.multiplier, p.qmin, p.qmax
        offset, divisor = np.asarray(p.offset, np.float32), np.asarray(p.divisor, np.float32)
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / divisor
        single = offset.size == 1 and divisor.size == 1
        if single:
            raw.offset, raw.divisor, raw.inverse = offset.item(), divisor.item(), inverse.item()
        else:
            self._add_grid(upload, offset, divisor, inverse)
        small, large = (float(divisor.min()), float(divisor.max())) if divisor.size else (1.0, 1.0)
        if not (small >= _DIVISORS[0] and large <= _DIVISORS[1]):
            return
        steady = (raw.grid_row if down else raw.grid_col) == 0
        to_code = p.rounding == "nearest" or (p.rounding == "floor" and p.qmin >= 0)
        middling = _MULTIPLIERS[0] <= p.multiplier <= _MULTIPLIERS[1] and p.bits <= _QUICK_BITS
        within = -(1 << (p.bits - 1)) <= p.qmin <= p.qmax < 1 << p.bits
        if steady and to_code and middling and within:
            raw.steps |= _QUICK
        if p.activation == "relu" and p.qmin >= 0 and not offset.any():
            raw.activation = 0  # clipping to codes from 0 on does what ReLU would do
        if (bound + float(np.abs(offset).max(initial=0.0))) / small <= _QUOTIENTS:
            raw.steps |= _BOUNDED
        if (
            raw.steps & _QUICK
            and not raw.steps & (_TERMS | _NORM | _WHOLE)
            and single
            and not offset.any()
            and p.qmin == 0
            and raw.activation == 0
        ):
            raw.steps |= _PLAIN
            raw.unit = float(1 << p.bits)
            raw.factor, raw.ceiling = p.multiplier / raw.unit, p.qmax / raw.unit

    def _add_grid(self, upload: Upload, offset: Any, divisor: Any, inverse: Any) -> None:
        """Upload the grid as (offset, divisor, 1 / divisor, 0) for every index along which it varies."""
        raw = self.struct
        shape = np.broadcast_shapes(offset.shape, divisor.shape)
        shape = (1,) * (len(self.shape) - len(shape)) + shape
        if math.prod(shape[:-2]) != 1:
            shape = (*self._batch, *shape[-2:])
            raw.grid_batch = shape[-2] * shape[-1]
        grid = np.zeros((*shape, 4), np.float32)
        for i, part in enumerate((offset, divisor, inverse)):
            grid[..., i] = part
        raw.grid_row = shape[-1] if shape[-2] > 1 else 0
        raw.grid_col = 1 if shape[-1] > 1 else 0
        upload.add(raw, "grid", grid)

    def with_operand(self, operand: OperandParams) -> DeviceEpilogue:
        """Use float32 arrays on the device in the following launches, and return this epilogue. The arrays must outlive the launches.

        Scales are first multiplied by the chain's own, ``v *= fl(own * operand's)``. Terms (pairs of a row and a column vector) and the
        bias replace the chain's own. Shapes are those of :class:`~bitsparse.backends.params.EpilogueParams`. ``None`` removes a vector.
        """
        row_scale, col_scale, row_term, col_term, bias = operand
        if not self._operand and row_scale is col_scale is row_term is col_term is bias is None:
            return self
        raw, self._operand = self.struct, []
        self._set_operand(raw.row_scale[1], row_scale, self._m)
        self._set_operand(raw.col_scale[1], col_scale, self._n)
        for term, own, given in zip((raw.row_term, raw.col_term), self._own_terms, (row_term, col_term), strict=True):
            if given is None:
                ctypes.memmove(term, own, len(own))
            else:
                self._set_operand(term[0], given[0], self._m)
                self._set_operand(term[1], given[1], self._n)
        if bias is None:
            ctypes.memmove(ctypes.addressof(raw.bias), self._own_bias, len(self._own_bias))
        else:
            self._set_operand(raw.bias, bias, self._n)
        unknown = bool(self._operand)
        raw.steps = self._own_steps & ~(_BOUNDED if unknown else 0)
        if row_term is not None or col_term is not None:
            raw.steps = (raw.steps | _TERMS) & ~_PLAIN
        self.may_see_nan = self._own_nan or (unknown and self._flag is not None)
        return self

    def _set_operand(self, vector: Any, values: Any, length: int) -> None:
        if values is None:
            vector.at = None
            return
        vector.padded, vector.batch_step, vector.step = 0, 0, 4 if values.ndim else 0
        if values.dtype != np.float32 or not values.flags.c_contiguous:
            values = cupy.ascontiguousarray(values, np.float32)
        if values.ndim > 1 and values.size != length:
            if values.shape[:-1] != self._batch:  # some batch dimensions of 1
                values = cupy.ascontiguousarray(cupy.broadcast_to(values, (*self._batch, length)))
            vector.batch_step = length
        self._operand.append(values)
        vector.at = values.data.ptr

    def aim(self, out: Any) -> ctypes.Structure:
        """The structure for a launch that writes ``out``."""
        raw = self.struct
        address = raw.out = out.data.ptr
        if self.params.out == "float":
            aligned = self._n % 4 == 0 and address % 16 == 0
            raw.steps &= ~(_ALIGNED | _JOINS)
            raw.steps |= (_ALIGNED if aligned else 0) | (_JOINS if self.joins else 0)
        elif address % 16:
            raise ValueError(
                f"{self.params.function}: the words of out must begin at a multiple of 16 bytes; pass a whole array"
            )
        return raw

    def nan_seen(self) -> bool:
        """Whether a launch since the previous call met NaN that should become a code; waits for the current stream."""
        return self._flag is not None and self._flag.seen()

    def empty(self) -> Any:
        """An uninitialised array for the result."""
        return cupy.empty(self.out_shape, self.out_dtype)

    def on(self, dtype: Any) -> SumsEpilogue:
        """The prepared separate kernel for sums of ``dtype``."""
        return SumsEpilogue(self, np.dtype(dtype))


class SumsEpilogue:
    """The epilogue as a separate kernel on sums in memory: ``run(sums, out)``."""

    def __init__(self, chain: DeviceEpilogue, dtype: np.dtype[Any]) -> None:
        self._chain, self._launch = chain, None
        if 0 in chain.shape:
            self.params = SumsParams()
            return
        # For planes, the lanes of a strip together write whole words; separate octets would write single bytes, also of the padding.
        planes = chain.struct.steps & _BITS and not chain.struct.steps & _WHOLE
        if chain.struct.steps & _DOWN or planes:
            self.params = _strips_of(chain)
            name, threads = "epilogue", 32 * _WARPS
            blocks = -(-self.params.strips // _WARPS)
        else:
            self.params = _octets_of(chain)
            name, threads = "octets", _THREADS
            blocks = -(-self.params.strips // _THREADS)
        self._launch = jit.kernel("finish/sums.cu", f"{name}_{dtype.name}").launch(blocks, threads, self.params)

    def run(self, sums: Any, out: Any) -> None:
        """Enqueue ``out = epilogue(sums)``; both are C-contiguous."""
        if self._launch is None:
            return
        p = self.params
        p.sums = sums.data.ptr
        p.aligned = int(p.sums % 16 == 0 and self._chain.shape[-1] % 4 == 0)
        p.epilogue = self._chain.aim(out)
        self._launch()


def _strips_of(chain: DeviceEpilogue) -> ctypes.Structure:
    """The arguments for strips of blocks."""
    *batch, m, n = chain.shape
    across, down = -(-n // _WIDTH), -(-m // _HEIGHT)
    all_blocks = math.prod(batch) * across * down
    # Long strips only if they leave enough work for all resident warps.
    blocks = _STRIP if all_blocks >= 2 * _STRIP * _RESIDENT * jit.capability().multiprocessors else 1
    across = -(-across // blocks)
    return SumsParams(strips=math.prod(batch) * across * down, down=down, across=across, blocks=blocks)


def _octets_of(chain: DeviceEpilogue) -> ctypes.Structure:
    """The arguments for octets of rows, including the padding of packed rows."""
    raw, across = chain.struct, -(-chain.shape[-1] // 8)
    if raw.steps & _BITS:
        across = 4 * raw.words // raw.bits
    return SumsParams(strips=math.prod(chain.shape[:-1]) * across, across=across)


def _bound(p: EpilogueParams, largest: float) -> float:
    """An upper bound of the chain's results for sums up to ``largest``; infinite if anything may overflow or is not finite."""

    def top(vector: Any) -> float:
        return float(np.abs(np.asarray(vector, np.float64)).max(initial=0.0))

    v = largest * 1.001
    for factor in (p.row_scale, p.col_scale):
        if factor is not None:
            v = _checked(v * top(factor) * 1.001)
    for term in (p.row_term, p.col_term):
        if term is not None:
            v = _checked(v + _checked(top(term[0]) * top(term[1])) * 1.001) * 1.001
    if p.bias is not None:
        v = _checked(v + top(p.bias)) * 1.001
    if p.bn_scale is not None:
        v = _checked(_checked(v * top(p.bn_scale)) + top(p.bn_shift)) * 1.001
    if p.activation == "leaky_relu":
        v = _checked(v * max(1.0, abs(p.negative_slope)))
    return _checked(v)


def _checked(v: float) -> float:
    return v if v < _LARGEST / 2 else math.inf


def epilogue(acc: Any, params: EpilogueParams) -> Any:
    """The epilogue on an int32, int64 or float32 array ``(..., m, n)`` of the device, on the current stream.

    Raises
    ------
    ValueError
        If NaN reaches requantisation. Unless NaN can be ruled out beforehand, this check waits for the device.
    """
    largest = math.inf if acc.dtype.kind == "f" else 2.0 ** (8 * acc.dtype.itemsize - 1)
    chain = DeviceEpilogue(params, acc.shape, largest)
    out = chain.empty()
    chain.on(acc.dtype).run(cupy.ascontiguousarray(acc), out)
    if chain.may_see_nan:
        _check.no_nan_in_epilogue(params.function, chain.nan_seen())
    return out


VARIANTS = jit.variants_of("finish/sums.cu", "epilogue_int32")
