"""Products with a fused epilogue on the GPU: cases of suite ``gemm``.

``requant-1x1-MxKxN`` multiplies 1-bit matrices and requantises the result to 4 bits: a scale per row and per column, a bias per column,
relu, one grid for all, rounding to nearest; bit planes packed along the columns (``-down``: along the rows).
``epilogue-float-1x1-MxKxN`` stores the same chain as float32. The peer is the same product with an int32 result, followed by the epilogue
as a separate kernel, which works at the speed of memory; a replayed graph has 20 calls of each. Results are compared before anything is
timed.

``params.product_ms`` is the product alone with its int32 result, and ``params.epilogue_ms`` the epilogue alone on that result.
``floor_ms`` is the larger of two times: the operations at the rate of the one-bit matrix unit, and the bytes of operands and result at
4 TB/s.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.ceilings import bounds
from benchmarks.gpu_timing import REPETITIONS, ours_graph, random_words, replay
from bitsparse import jit
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.cuda.matmul.matmul import Product
from bitsparse.backends.params import EpilogueParams
from bitsparse.bench import Case, Prepared, Protocol

SHAPES = ((8192, 8192, 8192), (16384, 16384, 64), (4096, 4096, 1024))
BITS, CALLS = 4, 20


def cases() -> list[Case]:
    """All cases of this file."""
    forms = (("requant", -1, ""), ("requant", -2, "-down"), ("epilogue-float", None, ""))
    return [
        Case(f"{name}-1x1-{m}x{k}x{n}{suffix}", partial(fused, m, k, n, axis))
        for m, k, n in SHAPES
        for name, axis, suffix in forms
    ]


def layer(m: int, k: int, n: int, axis: int | None) -> EpilogueParams:
    """The epilogue of a quantised layer whose sums have mean k / 4."""
    rng = np.random.default_rng(0)
    row, col = (rng.uniform(0.9, 1.1, size).astype(np.float32) for size in (m, n))
    bias = rng.normal(-k / 4, k / 40, n).astype(np.float32)
    params = EpilogueParams(row_scale=row, col_scale=col, bias=bias, activation="relu")
    if axis is None:
        return params
    levels = (1 << BITS) - 1
    return params._replace(
        out="bits", bits=BITS, offset=np.float32(0), divisor=np.float32(k / 10), multiplier=float(levels), qmax=levels,
        rounding="nearest", axis=axis,
    )  # fmt: skip


def fused(m: int, k: int, n: int, axis: int | None) -> Prepared:
    """A product with its epilogue in one kernel, against two kernels."""
    cupy = jit.require_cupy("suite gemm")
    a, b = random_words(m, 1, k), random_words(n, 1, k)
    kind: dict[str, Any] = {"k": k, "n": n, "a_bits": 1, "b_bits": 1}
    kind |= {"a_encoding": "unsigned", "b_encoding": "unsigned"}
    chain = DeviceEpilogue(layer(m, k, n, axis), (m, n), float(k))
    together, alone, behind = Product(a, epilogue=chain, **kind), Product(a, **kind), chain.on(np.int32)
    out, other, sums = chain.empty(), chain.empty(), cupy.empty((m, n), np.int32)

    def apart() -> None:
        alone(b, sums)
        behind.run(sums, other)

    together(b, out)
    apart()
    cupy.cuda.runtime.deviceSynchronize()
    if not bool((out == other).all()):
        raise AssertionError(f"epilogue of 1x1-{m}x{k}x{n}, axis {axis}: the results differ")
    graphs = [ours_graph([call] * CALLS) for call in (partial(together, b, out), apart)]
    parts = [ours_graph([call] * CALLS) for call in (partial(alone, b, sums), partial(behind.run, sums, other))]
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "a_bits": 1, "b_bits": 1, "axis": axis}
    params["bits"] = None if axis is None else BITS
    params["tiling"] = None if together.tiling is None else together.tiling._asdict()
    product_ms, epilogue_ms = replay(parts, REPETITIONS)
    params["product_ms"], params["epilogue_ms"] = product_ms / CALLS, epilogue_ms / CALLS

    def measure(protocol: Protocol) -> tuple[float, float]:
        ours, peer = replay(graphs, protocol.repetitions)
        return ours / CALLS, peer / CALLS

    moved = int(a.nbytes + b.nbytes + out.nbytes)
    limits = bounds(moved, bit_operations=2.0 * m * k * n)
    return Prepared(lambda: None, None, "bitsparse, two kernels", params, moved, *limits, measure=measure)
