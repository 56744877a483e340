"""Products of floats and 8-bit weights on the GPU.

Activations are quantised while they are loaded (``quantized/wgmma.cu``, ``quantized/mma.cu``).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.binary.bmm import vector_of
from bitsparse.backends.cuda.chips import RELEASED
from bitsparse.backends.cuda.csr.schedule import Workspaces
from bitsparse.backends.cuda.finish.flag import Flag
from bitsparse.backends.cuda.matmul.wgmma import operand_map
from bitsparse.backends.params import words_shape
from bitsparse.jit import cupy

#: The kernels. The first one runs only on Hopper.
KERNELS = ("wgmma", "mma")
#: Rows and columns of a tile, and elements of the contraction axis that are multiplied at a time.
TILE, BLOCK = 128, 128
#: Threads and shared memory of a block. The first kernel has rings of 8 and 4 blocks of 16 KB and an output buffer; the second one has two
#: blocks of codes and three of weights.
_WGMMA, _MMA = (512, 12 * 16384 + 32768 + 1024), (256, 5 * 16384 + 128)
#: Warps of the first kernel that multiply.
_CONSUMER_WARPS = 8
#: With at least this much shared memory, two blocks of the second kernel share a multiprocessor.
_ROOM_FOR_TWO = 160 << 10
#: The most parts of the contraction axis.
_MOST_PARTS = 8
#: Rows that a loading warp of the first kernel has in flight, by bytes of an element; the bytes in flight are the same.
_AHEAD = {4: 8, 2: 16}


QuantizedParams = jit.struct("quantized/load.cuh", "QuantizedParams")
AbsmaxParams = jit.struct("quantized/absmax.cu", "AbsmaxParams")


def constants(
    kernel: str,
    kind: str,
    vector: int,
    shared_bytes: int,
    *,
    random: bool = False,
    whole: bool = True,
    stream: bool = False,
) -> dict[str, int]:
    """Compile-time constants of a kernel for activations of dtype `kind`, loaded `vector` bytes at a time.

    The chip has `shared_bytes` of shared memory. `random`: round stochastically; `whole`: rows have a multiple of four elements; `stream`:
    do not keep the activations in the L2.
    """
    wide = kind == "float32"
    found = {"BS_KIND": 5 if wide else 4, "BS_VECTOR": vector}
    if kernel == "wgmma":
        found["BS_AHEAD"] = 8 if random else _AHEAD[4 if wide else 2]
    else:
        # Random draws need more than half of a multiprocessor's registers.
        found["BS_BLOCKS"] = 2 if shared_bytes >= _ROOM_FOR_TWO and not random else 1
    return found | jit.flags(bfloat=kind == "bfloat16", random=random, whole=whole, stream=stream)


def absmax_into(x: Any, largest: Any, factors: Any = None) -> None:
    """Write the largest magnitude of `x` (m, k), whose rows are contiguous, into the one float32 element of ``largest``.

    With `factors`, float32 (m,), `x` must be a C-contiguous float32 matrix, and its rows are first multiplied by these. NaN and infinity
    count as larger than everything else. Nothing is allocated or waited for.
    """
    largest.fill(0)
    m, k = (int(size) for size in x.shape)
    address = None if factors is None else factors.data.ptr
    params = AbsmaxParams(x.data.ptr, largest.data.ptr, address, m, x.strides[0], k)
    params.words = int((m == 1 or x.strides[0] == k * x.itemsize) and x.data.ptr % 16 == 0)
    if factors is not None and k % 4:
        params.words = 0
    params.infinity = geometry.infinity_of(x.dtype)
    blocks = min(8 * jit.capability().multiprocessors, max(1, -(-m * k // 4096)))
    _absmax_kernel(x.itemsize, factors is not None).run(blocks, 256, params)


def _absmax_kernel(itemsize: int, by_factors: bool = False) -> Any:
    kind = {"BS_KIND": 5 if itemsize == 4 else 4} | jit.flags(factors=by_factors)
    return jit.kernel("quantized/absmax.cu", "quantized_absmax", kind)


def has_wgmma() -> bool:
    """Whether the current device has the instructions of the first kernel."""
    return jit.capability().has_wgmma


def deal(m: int, n: int, blocks: int, k_parts: int = 1) -> dict[str, int]:
    """How row tiles are dealt out to `blocks` blocks.

    Whole tiles are dealt out as long as every block gets one; the rest are split by columns and by the contraction axis.

    Examples
    --------
    >>> deal(169343, 512, 132)
    {'n_tiles': 4, 'full': 1320, 'split': 4, 'per_part': 1, 'k_parts': 1, 'units': 1332}
    >>> deal(200, 300, 132, 5)
    {'n_tiles': 3, 'full': 0, 'split': 3, 'per_part': 1, 'k_parts': 5, 'units': 30}
    """
    tiles, columns = -(-m // TILE), -(-n // TILE)
    full = tiles // blocks * blocks
    rest = tiles - full
    per_part = -(-columns // max(1, min(columns, blocks // rest))) if rest else columns
    split = -(-columns // per_part)
    cut = {"n_tiles": columns, "full": full, "split": split, "per_part": per_part, "k_parts": k_parts}
    return cut | {"units": full + rest * split * k_parts}


def parts_of(m: int, n: int, k: int, blocks: int) -> int:
    """The number of parts into which the contraction axis is cut if row tiles leave blocks idle.

    A part has at least two blocks of the axis, and there are at most eight parts.

    Examples
    --------
    >>> parts_of(2708, 64, 1433, 132), parts_of(169343, 64, 512, 132), parts_of(128, 64, 128, 132)
    (6, 1, 1)
    """
    units = deal(m, n, blocks)
    if units["full"]:
        return 1
    return max(1, min(blocks // units["units"], -(-k // BLOCK) // 2, _MOST_PARTS))


class QuantizedProduct:
    """``product(x, out)``: float activations (m, k), quantised while they are loaded, times the 8-bit weights of one right operand.

    Parameters
    ----------
    weights : uint32 (n, words)
        Codes as signed bytes in natural order, packed along the contraction axis; ``words`` is a multiple of 4.
    sizes : tuple of int
        m, n and k, none of them zero; ``127 * 128 * k`` fits int32.
    dtype : dtype
        Dtype of the activations: float32, float16 or bfloat16.
    bits : int
        Bits of the activations' codes, 4 or 8; also of the codes that calls return.
    rounding : {"nearest", "stochastic"}
    w_scale, bias : float32 array
        Arrays that broadcast to (n,); `bias` may be None.
    kernel : str
        One of :data:`KERNELS`.
    k_parts : int, optional
        The number of parts into which the first kernel cuts the contraction axis if there are fewer row tiles than multiprocessors; by
        default it is chosen.
    """

    def __init__(
        self,
        weights: Any,
        sizes: tuple[int, int, int],
        *,
        dtype: np.dtype[Any],
        bits: int,
        rounding: str,
        w_scale: Any,
        bias: Any = None,
        kernel: str | None = None,
        k_parts: int | None = None,
    ) -> None:
        chip, (m, n, k) = jit.capability(), sizes
        self.kernel = kernel or KERNELS[0 if chip.has_wgmma else 1]
        self._dtype, self._random = np.dtype(dtype), rounding == "stochastic"
        p = self.params = QuantizedParams(m=m, n=n, k=k, top=float((1 << (bits - 1)) - 1), codes_bits=bits)
        if k_parts is None:
            k_parts = parts_of(m, n, k, chip.multiprocessors)
        if self.kernel != "wgmma" or -(-m // TILE) >= chip.multiprocessors:
            k_parts = 1
        jit.filled(p, **deal(m, n, chip.multiprocessors, min(k_parts, -(-k // BLOCK))))
        vectors = [self._padded(vector, n) for vector in (w_scale, bias)]
        self._flag = Flag()
        self._keep = [weights, *vectors]
        jit.filled(p, weights=weights, w_words=weights.shape[-1], w_scale=vectors[0], bias=vectors[1])
        p.odd = self._flag.address
        if self.kernel == "wgmma":
            p.w[:] = operand_map(weights, n, 1, TILE)
        self._threads, self._shared = _WGMMA if self.kernel == "wgmma" else _MMA
        self._grid = min(p.units, chip.multiprocessors) if self.kernel == "wgmma" else -(-m // TILE) * p.n_tiles
        self._launches: dict[int, Any] = {}
        self._mapped = 0
        self._lock = threading.Lock()
        #: Streams on which products were enqueued since the flag was last read.
        self._ran: dict[int, Any] = {}
        self._stream = cupy.cuda.get_current_stream
        self._launch_for(0, k * self._dtype.itemsize)
        _absmax_kernel(self._dtype.itemsize)  # compiled now for calls without a scale or range
        # Sums of parts, 16 KB for the 64 rows of each warpgroup, and a counter for each warp and tile.
        tiles = -(-m // TILE) * p.n_tiles
        split = p.k_parts > 1
        self._spaces = Workspaces(split * tiles * p.k_parts * TILE * TILE, np.int32, split * tiles * _CONSUMER_WARPS)
        #: Receives the largest magnitude of the activations.
        self._largest = Workspaces(1, np.float32)
        # Both are allocated now, since a capture cannot allocate.
        self._largest.on(self._stream().ptr)
        if split:
            self._spaces.on(self._stream().ptr)

    def _padded(self, vector: Any, n: int) -> Any:
        """A vector over the columns, padded with zeros to whole tiles."""
        if vector is None:
            return None
        room = cupy.zeros(-(-n // TILE) * TILE, np.float32)
        room[:n] = interop.uploaded(vector, "quantized_matmul", np.float32)
        return room

    def defines(self, vector: int) -> dict[str, int]:
        """The compile-time constants for loads of `vector` bytes."""
        p, chip = self.params, jit.capability()
        # X is read only once if its codes are kept for all columns.
        once = self.kernel == "wgmma" and (p.k <= 8 * BLOCK or p.n_tiles == 1)
        stream = once and p.m * p.k * self._dtype.itemsize > chip.l2_bytes
        kind, random, whole = self._dtype.name, self._random, p.k % 4 == 0
        return constants(self.kernel, kind, vector, chip.shared_bytes, random=random, whole=whole, stream=stream)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept in addition to the weights."""
        kept = sum(part.nbytes for part in (self._flag, *self._keep[1:]) if part is not None)
        return int(kept) + self._spaces.nbytes + self._largest.nbytes

    def _launch_for(self, address: int, step: int) -> Any:
        """The kernel for rows of activations that start at `address`, `step` bytes apart; compiled when it is first needed."""
        vector = vector_of(self._dtype, address, step if self.params.m > 1 else 0)
        if vector not in self._launches:
            kernel = jit.kernel(f"quantized/{self.kernel}.cu", f"quantized_{self.kernel}", self.defines(vector))
            self._launches[vector] = kernel.launch(self._grid, self._threads, self.params, shared=self._shared)
        return self._launches[vector]

    def room_for_codes(self, x: Any, scale: Any, largest: Any) -> tuple[Any, Any, Any]:
        """An array for the codes of `x`, the size of their step, and the largest magnitude from which it is computed without a scale."""
        bits = self.params.codes_bits
        codes = cupy.empty(words_shape(x.shape, bits, -1, "rows"), np.uint32)
        if scale is not None:
            return codes, cupy.full((), scale, np.float32), largest
        if largest is None:
            largest = cupy.empty(1, np.float32)
            absmax_into(x, largest)
        step = cupy.abs(largest.reshape(())) / np.float32((1 << (bits - 1)) - 1)
        return codes, cupy.where(step >= np.finfo(np.float32).smallest_normal, step, cupy.ones_like(step)), largest

    def __call__(
        self,
        x: Any,
        out: Any,
        *,
        scale: Any = None,
        largest: Any = None,
        seed: int = 0,
        stream: Any = 0,
        absmax: Any = None,
        codes: Any = None,
    ) -> None:
        """Enqueue the product into the C-contiguous float32 ``out`` (m, n).

        `scale` is a number or a float32 array of one element. By default it is computed from `largest`, such an array with the largest
        magnitude of the activations, which is determined if not given. `stream`, the stream of draws, is a number or an array of one
        uint32. `absmax` receives the largest magnitude of the result, `codes` (m, words) the codes of `x`.
        """
        p = self.params
        with self._lock:  # the launch's arguments are shared
            current = self._stream().ptr
            found = self._largest.on(current).partial
            launch = self._launch_for(x.data.ptr, x.strides[0])
            p.x, p.x_row, p.seed = x.data.ptr, x.strides[0], seed & 0xFFFFFFFFFFFFFFFF
            p.stream, p.stream_at = geometry.stream_of_draws(stream)
            p.scale = p.largest = p.codes = p.absmax = None
            if scale is None:
                if largest is None:
                    largest = found
                    absmax_into(x, largest)
                p.largest = largest.data.ptr
            elif hasattr(scale, "data") and hasattr(scale.data, "ptr"):
                p.scale = scale.data.ptr
            else:
                p.scale_value = float(scale)
            if codes is not None:
                p.codes, p.codes_words = codes.data.ptr, codes.shape[-1]
            if absmax is not None:
                absmax.fill(0)
                p.absmax = absmax.data.ptr
            address = out.data.ptr
            # If the contraction axis is cut, the last warp to finish adds up its own rows, so warpgroups do not store together.
            bulk = self.kernel == "wgmma" and p.k_parts == 1 and p.n % 4 == 0 and address % 16 == 0
            p.out, p.bulk = address, int(bulk)
            p.pairs = int(p.n % 2 == 0 and address % 8 == 0)
            if p.bulk and address != self._mapped:
                p.y[:] = jit.tensor_map(address, (p.n, p.m, 1), (4 * p.n, 4 * p.m * p.n), (32, 64, 1))
                self._mapped = address
            if p.k_parts > 1:
                work = self._spaces.on(current)
                p.partial, p.arrived = work.partial.data.ptr, work.arrived.data.ptr
            launch(current)
            self._ran[current] = self._stream()

    def not_finite(self) -> bool:
        """Whether an activation was NaN or infinite since the previous call; waits for the streams on which products were enqueued."""
        for stream in self._ran.values():
            stream.synchronize()
        self._ran.clear()
        return self._flag.seen()


def _variants() -> list[jit.Variant]:
    """Variants for float32 at any alignment and with draws, for float16 and bfloat16, and on Hopper for streamed activations."""
    kinds: list[tuple[str, int, dict[str, bool]]] = [
        ("float32", 16, {}),
        ("float32", 8, {"whole": False}),
        ("float32", 16, {"random": True}),
        ("float16", 8, {}),
    ]
    hopper = [*kinds, ("float32", 16, {"stream": True}), ("bfloat16", 8, {})]
    rooms = {arch: chip.card.shared_bytes for arch, chip in RELEASED.items()}
    wgmma = [constants("wgmma", kind, vector, 0, **how) for kind, vector, how in hopper]
    found = jit.variants_of("quantized/wgmma.cu", "quantized_wgmma", wgmma, "sm_90a")
    for arch, room in rooms.items():
        mma = [constants("mma", kind, vector, room, **how) for kind, vector, how in kinds]
        found += jit.variants_of("quantized/mma.cu", "quantized_mma", mma, arch)
    absmax = [{"BS_KIND": 4}, {"BS_KIND": 5}, {"BS_KIND": 5, "BS_FACTORS": 1}]
    return [*found, *jit.variants_of("quantized/absmax.cu", "quantized_absmax", absmax)]


VARIANTS = _variants()
