"""The host's overhead per call on GPU arrays: cases of suite ``gemm``.

``overhead-matmul`` is ``a @ b`` and ``overhead-plan`` is ``plan(b)`` of :func:`bitsparse.plan_matmul`, on 256 x 256 and 256 x 16 one-bit
arrays on the GPU. The time is that of the host: that of 10000 calls in a row, divided by their number, without waiting for the GPU, which
takes less time for a call than Python does. The median of 5 such rows counts (fewer with ``--quick``), measured in turns with the peer's.
The peer is ``torch._int_mm`` of the same shape, called the same way. ``params.out_ms`` is ``plan(b, out=out)``, which allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu_timing import torch_module
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol, time_once

M, K, N = 256, 256, 16
CALLS = 10_000


def cases() -> list[Case]:
    """All cases of this file."""
    return [Case("overhead-matmul", partial(overhead, plan=False)), Case("overhead-plan", partial(overhead, plan=True))]


def overhead(*, plan: bool) -> Prepared:
    """Host time of one call of the public function, on operands on the GPU."""
    import bitsparse as bs

    cupy, torch = jit.require_cupy("suite gemm"), torch_module()
    rng = np.random.default_rng(0)
    x, y = (cupy.asarray(rng.integers(0, 2, shape, dtype=np.int8)) for shape in ((M, K), (K, N)))
    a, b = bs.pack_bits(x), bs.pack_bits(y, axis=-2)
    planned = bs.plan_matmul(a, N)
    out = cupy.empty((M, N), np.int32)
    left, right = torch.from_dlpack(x), torch.from_dlpack(cupy.ascontiguousarray(y.T)).t()
    want = torch._int_mm(left, right)
    for name, got in (("a @ b", a @ b), ("plan(b)", planned(b)), ("plan(b, out=out)", planned(b, out=out))):
        cupy.cuda.runtime.deviceSynchronize()
        if not torch.equal(torch.from_dlpack(got), want):
            raise AssertionError(f"overhead: the result of {name} differs")
    ours: Callable[[], Any] = partial(planned, b) if plan else lambda: a @ b
    params: dict[str, Any] = {"m": M, "k": K, "n": N, "a_bits": 1, "b_bits": 1, "calls": CALLS}
    if plan:
        params["out_ms"] = rows([partial(planned, b, out=out)], 3)[0]

    def measure(protocol: Protocol) -> tuple[float, float]:
        times = rows([ours, lambda: torch._int_mm(left, right)], min(protocol.repetitions, 5))
        return times[0], times[1]

    moved = int(a.words.nbytes + b.words.nbytes + out.nbytes)
    return Prepared(lambda: None, None, f"torch {torch.__version__} _int_mm", params, moved, measure=measure)


def rows(functions: list[Callable[[], Any]], repetitions: int) -> list[float]:
    """Median milliseconds per call of each function, from rows of calls that take turns."""
    cupy = jit.require_cupy("suite gemm")
    samples: list[list[float]] = [[] for _ in functions]
    for _ in range(repetitions):
        for function, into in zip(functions, samples, strict=True):
            time_once(function, 100)
            cupy.cuda.runtime.deviceSynchronize()
            into.append(time_once(function, CALLS))
            cupy.cuda.runtime.deviceSynchronize()
    return [median(sample) for sample in samples]
