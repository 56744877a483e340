"""Cases of packing, quantising and their inverses on the GPU, compared with the speed of memory.

- Both sides are captured into CUDA graphs of several calls and replayed in turns; a time is the median of 15 replays divided by the number
  of calls. Replays find arrays in the L2 cache if they fit (60 MB on an H200). ``params.cold_ms`` comes from a graph whose calls take turns
  among copies of the input that together exceed 256 MB.
- The peer is ``torch.Tensor.copy_`` of a float32 array, scaled to the bytes that the case reads and writes (``params.peer_copied`` says
  how many were copied).
- ``estimate_ms`` is the time of the bytes read and written at 4 TB/s.
- Every result is compared with the host backend's on a part of the input before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.ceilings import bounds
from benchmarks.gpu_timing import COLD_BYTES, REPETITIONS, ours_graph, replay, torch_graph, torch_module
from bitsparse import jit
from bitsparse.backends.cuda.bits import pack as cuda_bits
from bitsparse.backends.host.bits import pack as host_bits
from bitsparse.bench import Case, Prepared, Protocol

#: The number of rows compared with the host's.
CHECKED = 128
STEPS: dict[str, Any] = {"offset": np.float32(-4), "divisor": np.float32(8), "multiplier": 15.0, "qmin": 0, "qmax": 15}
STEPS |= {"seed": 1, "stream": 0, "layout": "planes"}
WAY: dict[str, Any] = {"layout": "planes", "encoding": "unsigned"}


def cases() -> list[Case]:
    """Packing by sign, quantising, dequantising, unpacking, repacking and calibrating, along both axes."""
    found = []
    for axis, name in ((-1, ""), (-2, "-axis2")):
        found += [
            Case(f"pack-8192x8192-f32-1bit{name}", partial(pack_signs, 8192, 8192, axis)),
            Case(f"pack-8192x8192-u8-4bit{name}", partial(pack_bytes, 8192, 8192, axis)),
        ]
        found += [
            Case(f"pack-{m}x{n}-f32-4bit{suffix}{name}", partial(quantize, m, n, axis, rounding))
            for m, n in ((8192, 1024), (8192, 8192))
            for suffix, rounding in (("", "floor"), ("-stochastic", "stochastic"))
        ]
        found += [
            Case(f"dequantize-8192x8192-4bit-f32{name}", partial(dequantize, 8192, 8192, axis)),
            Case(f"unpack-8192x8192-1bit-u8{name}", partial(unpack, 8192, 8192, 1, axis)),
            Case(f"unpack-8192x8192-4bit-u8{name}", partial(unpack, 8192, 8192, 4, axis)),
        ]
    found += [Case(f"repack-16384x16384-{bits}bit-axis", partial(repack, 16384, bits)) for bits in (1, 4)]
    return [
        *found,
        *(Case(f"calibrate-8192x8192-f32-{g}", partial(calibrate, 8192, 8192, g)) for g in ("tensor", "row", "col")),
    ]


def pack_signs(rows: int, cols: int, axis: int) -> Prepared:
    """One bit of each float32."""
    x = _normal(rows, cols)
    kind: dict[str, Any] = {"axis": axis, "layout": "planes", "encoding": "bipolar"}
    out = cuda_bits.pack(x, 1, **kind)
    _compare(out, host_bits.pack(x[:CHECKED].get(), 1, **kind), axis)
    return beside_a_copy(lambda a: cuda_bits.pack(a, 1, out=out, check=False, **kind), x, out)


def pack_bytes(rows: int, cols: int, axis: int) -> Prepared:
    """Four bits of each byte."""
    x = _generator().integers(0, 16, (rows, cols), dtype=np.uint32).astype(np.uint8)
    out = cuda_bits.pack(x, 4, axis=axis, **WAY)
    _compare(out, host_bits.pack(x[:CHECKED].get(), 4, axis=axis, **WAY), axis)
    return beside_a_copy(lambda a: cuda_bits.pack(a, 4, axis=axis, out=out, **WAY), x, out)


def quantize(rows: int, cols: int, axis: int, rounding: str) -> Prepared:
    """float32 to four bits with a given range."""
    x, kind = _normal(rows, cols), STEPS | {"axis": axis, "rounding": rounding}
    out = cuda_bits.quantize(x, 4, **kind)
    _compare(out, host_bits.quantize(x[:CHECKED].get(), 4, **kind), axis)
    return beside_a_copy(lambda a: cuda_bits.quantize(a, 4, out=out, **kind), x, out)


def dequantize(rows: int, cols: int, axis: int) -> Prepared:
    """Four bits to float32."""
    words = _words(rows, cols, 4, axis)
    kind: dict[str, Any] = WAY | {"axis": axis, "scale": np.float32(0.5), "offset": np.float32(-4), "dtype": np.float32}
    out = cuda_bits.dequantize(words, (rows, cols), 4, **kind)
    part = words[:CHECKED] if axis == -1 else words[:, :, : CHECKED // 32]
    some = host_bits.dequantize(np.ascontiguousarray(part.get()), (CHECKED, cols), 4, **kind)
    _same(out[:CHECKED], some)
    return beside_a_copy(lambda w: cuda_bits.dequantize(w, (rows, cols), 4, out=out, **kind), words, out)


def unpack(rows: int, cols: int, bits: int, axis: int) -> Prepared:
    """Bits to bytes."""
    words, kind = _words(rows, cols, bits, axis), WAY | {"axis": axis, "dtype": np.uint8}
    out = cuda_bits.unpack(words, (rows, cols), bits, **kind)
    part = words[:CHECKED] if axis == -1 else words[:, :, : CHECKED // 32]
    _same(out[:CHECKED], host_bits.unpack(np.ascontiguousarray(part.get()), (CHECKED, cols), bits, **kind))
    return beside_a_copy(lambda w: cuda_bits.unpack(w, (rows, cols), bits, out=out, **kind), words, out)


def repack(size: int, bits: int) -> Prepared:
    """Repack planes along the other axis."""
    words = _words(size, size, bits, -1)
    kind: dict[str, Any] = {"axis": -1, "layout": "planes", "to_axis": -2, "to_layout": "planes"}
    out = cuda_bits.repack(words, (size, size), bits, **kind)
    some = host_bits.repack(words[:CHECKED].get(), (CHECKED, size), bits, **kind)
    _compare(out, some, -2)
    return beside_a_copy(lambda w: cuda_bits.repack(w, (size, size), bits, out=out, **kind), words, out)


def calibrate(rows: int, cols: int, granularity: str) -> Prepared:
    """The range of a float32 array; its result goes to the host, so wall time is measured and no graph. The peer is torch.aminmax."""
    torch, cupy = torch_module(), jit.require_cupy("suite gemm")
    x = _normal(rows, cols)
    low, high, finite = cuda_bits.calibrate(x, granularity)
    dim = {"tensor": None, "row": 1, "col": 0}[granularity]
    array = torch.from_dlpack(x)
    want = torch.aminmax(array) if dim is None else torch.aminmax(array, dim=dim, keepdim=True)
    for one, other in ((low, want.min), (high, want.max)):
        _same(one, cupy.from_dlpack(other).get())
    if not finite:
        raise AssertionError("calibrate: the input is finite")

    def peer() -> None:
        (torch.aminmax(array) if dim is None else torch.aminmax(array, dim=dim)).min.sum().item()

    params = {"shape": [rows, cols], "granularity": granularity, "wall": True}
    return Prepared(
        lambda: cuda_bits.calibrate(x, granularity),
        peer,
        f"torch {torch.__version__} aminmax",
        params,
        x.nbytes,
        *bounds(x.nbytes),
    )


def beside_a_copy(call: Callable[[Any], object], source: Any, out: Any) -> Prepared:
    """Time ``call(source)``, which writes ``out``, warm and cold, against a copy of the same number of bytes."""
    torch, cupy = torch_module(), jit.require_cupy("suite gemm")
    moved = source.nbytes + out.nbytes
    calls = 20 if moved < 100e6 else 5
    copied = max(1 << 20, moved // 2)  # each byte of a copy is read and written
    left = torch.empty(copied // 4, dtype=torch.float32, device="cuda").normal_()
    right = torch.empty_like(left)
    ours = ours_graph([partial(call, source)] * calls)
    peer = torch_graph([lambda: right.copy_(left)] * calls)
    copies = [source, *(source.copy() for _ in range(max(1, COLD_BYTES // source.nbytes)))]
    cold = replay([ours_graph([partial(call, one) for one in copies])], REPETITIONS)[0] / len(copies)
    del copies
    cupy.get_default_memory_pool().free_all_blocks()
    params = {
        "shape": list(source.shape),
        "dtype": str(source.dtype),
        "out": list(out.shape),
        "cold_ms": cold,
        "peer_copied": copied,
    }

    def measure(protocol: Protocol) -> tuple[float, float]:
        times = replay([ours, peer], protocol.repetitions)
        return times[0] / calls, times[1] / calls * moved / (2 * left.numel() * 4)

    return Prepared(
        lambda: None, None, f"torch {torch.__version__} copy_", params, moved, *bounds(moved), measure=measure
    )


def _generator() -> Any:
    return jit.require_cupy("suite gemm").random.default_rng(0)


def _normal(rows: int, cols: int) -> Any:
    return _generator().standard_normal((rows, cols), dtype=np.float32)


def _words(rows: int, cols: int, bits: int, axis: int) -> Any:
    """Words of random codes in planes; both sizes must be multiples of 128."""
    outer, length = (rows, cols) if axis == -1 else (cols, rows)
    return _generator().integers(0, 1 << 32, (outer, bits, length // 32), dtype=np.uint32)


def _compare(words: Any, part: np.ndarray, axis: int) -> None:
    """Compare the words of the first ``CHECKED`` rows with the host's."""
    _same(words[:CHECKED] if axis == -1 else words[:, :, : CHECKED // 32], part)


def _same(got: Any, want: np.ndarray) -> None:
    if not np.array_equal(jit.require_cupy("suite gemm").asnumpy(got), want):
        raise AssertionError("the result differs from the host's")
