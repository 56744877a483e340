"""Cases of suite ``sampled``: stochastic rounding of float32 to codes, against a copy and against the expression that CuPy's users write.

The peer of ``rounding-...-copy-...`` is ``torch.Tensor.copy_``, scaled to the bytes that the case reads and writes (see ``cases/bits.py``),
so the ratio is our share of a copy's bytes per second; ``at-random-...`` are other widths and layouts. The peer of
``rounding-...-cupy-...`` is ``floor(x / scale + cupy.random)`` clipped to int8, which draws other numbers; both sides are timed by events
around rows of calls, because CuPy's generator cannot be captured. Codes are those of ``bs.quantize`` with a symmetric scheme, stochastic
rounding, seed 1 and a given scale; the first rows are compared with the host's. ``fingerprint`` is the sum by which
:class:`bitsparse.QuantCache` recognises an array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cases.bits import CHECKED, beside_a_copy
from benchmarks.ceilings import bounds
from bitsparse import jit
from bitsparse.backends.cuda.bits import pack as cuda_bits
from bitsparse.backends.cuda.bits import stats as cuda_stats
from bitsparse.backends.host.bits import pack as host_bits
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["cases"]

SHAPES = ((8192, 8192), (169_343, 128))
CALLS = 10


def cases() -> list[Case]:
    """8 and 4 bits in rows and 8 bits in planes against a copy, int8 against CuPy, and the fingerprint of an array."""
    found = []
    for rows, cols in SHAPES:
        for bits, layout in ((8, "rows"), (4, "rows"), (8, "planes")):
            front = "rounding" if (bits, layout) == (8, "rows") else "at-random"
            name = f"{front}-f32-{bits}bit-copy-{layout}-{rows}x{cols}"
            found.append(Case(name, partial(beside_copy, rows, cols, bits, layout)))
        found.append(Case(f"rounding-f32-8bit-cupy-rows-{rows}x{cols}", partial(beside_cupy, rows, cols)))
    return [*found, Case("fingerprint-f32-8192x8192", fingerprint)]


def steps(bits: int, layout: str) -> dict[str, Any]:
    """The symmetric grid of -4..4 in the form that backends take."""
    top = (1 << (bits - 1)) - 1
    grid = {"offset": np.float32(0), "divisor": np.float32(4.0 / top), "multiplier": 1.0, "qmin": -top, "qmax": top}
    return grid | {"rounding": "stochastic", "seed": 1, "stream": 0, "axis": -1, "layout": layout}


def operand(rows: int, cols: int) -> Any:
    """An array of normal numbers."""
    cupy = jit.require_cupy("suite sampled")
    return cupy.random.default_rng(0).standard_normal((rows, cols), dtype=np.float32)


def beside_copy(rows: int, cols: int, bits: int, layout: str) -> Prepared:
    """Ours in a CUDA graph against a copy in a CUDA graph."""
    x, kind = operand(rows, cols), steps(bits, layout)
    out = compared(x, bits, kind)
    return beside_a_copy(lambda a: cuda_bits.quantize(a, bits, out=out, **kind), x, out)


def compared(x: Any, bits: int, kind: dict[str, Any]) -> Any:
    """The words of the codes, after a check that those of the first rows equal the host's."""
    out = cuda_bits.quantize(x, bits, **kind)
    if not np.array_equal(out[:CHECKED].get(), host_bits.quantize(x[:CHECKED].get(), bits, **kind)):
        raise AssertionError("rounding: the codes differ from the host's")
    return out


def beside_cupy(rows: int, cols: int) -> Prepared:
    """Ours against the expression that users write, which draws its random numbers into the same array every time."""
    cupy = jit.require_cupy("suite sampled")
    x, kind = operand(rows, cols), steps(8, "rows")
    out, scale = compared(x, 8, kind), np.float32(kind["divisor"])
    generator, drawn = cupy.random.default_rng(1), cupy.empty((rows, cols), np.float32)

    def theirs() -> Any:
        generator.random(dtype=np.float32, out=drawn)
        return cupy.clip(cupy.floor(x / scale + drawn), -127, 127).astype(np.int8)

    params: dict[str, Any] = {"shape": [rows, cols], "bits": 8, "calls": CALLS}

    def measure(protocol: Protocol) -> tuple[float, float]:
        ours, peer = in_rows([lambda: cuda_bits.quantize(x, 8, out=out, **kind), theirs], protocol.repetitions)
        return ours, peer

    moved = x.nbytes + out.nbytes
    peer_name = f"cupy {cupy.__version__} random, floor, clip, astype"
    return Prepared(lambda: None, None, peer_name, params, moved, *bounds(moved), measure=measure)


def in_rows(functions: list[Callable[[], Any]], repetitions: int) -> list[float]:
    """Median milliseconds per call of each function, from rows of calls between events that take turns."""
    cupy = jit.require_cupy("suite sampled")
    samples: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repetitions):
        for function, into in zip(functions, samples, strict=True):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            for _ in range(CALLS):
                function()
            end.record()
            end.synchronize()
            into.append(cupy.cuda.get_elapsed_time(start, end) / CALLS)
    return [median(sample) for sample in samples]


def fingerprint() -> Prepared:
    """The cost of a look-up in a :class:`bitsparse.QuantCache` that compares contents, with the answer on the host; no peer."""
    x = operand(8192, 8192)
    if cuda_stats.content_sum(x[:CHECKED]) != host_bits.content_sum(x[:CHECKED].get()):
        raise AssertionError("fingerprint: it differs from the host's")
    params = {"shape": [8192, 8192], "wall": True}
    return Prepared(lambda: cuda_stats.content_sum(x), None, None, params, x.nbytes, *bounds(x.nbytes))
