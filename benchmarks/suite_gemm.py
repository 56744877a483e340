"""Suite ``gemm``: low-bit products on the GPU against cuBLASLt int8 (``torch._int_mm``).

The general protocol is in ``run.py``. In this suite:

- ``matmul-AxB-MxKxN`` multiplies an M x K matrix of A-bit by a K x N matrix of B-bit unsigned integers (8 bits: signed), uniform over
  their whole range, into a preallocated int32 result, through a prepared product of the CUDA backend. Operands are packed beforehand.
  The peer multiplies the same integers held as int8. Both results are compared before anything is timed.
- Both sides are captured into CUDA graphs of 20 calls (fewer for long ones) and replayed in turns; a time is the median of 15 replays
  over the number of calls. Replays find the operands in the L2 where they fit. ``params.cold_ms`` and ``params.peer_cold_ms`` come from
  graphs whose calls take turns among copies of the operands that together exceed 256 MB.
- ``params.fp8_ms`` is cuBLASLt's product of 8-bit floats into bfloat16, which is not exact.
- ``matmul-1x1-blockdiag-...``: the left operand has 64 dense blocks on its diagonal and zeros elsewhere; the peer is our own product
  without its zero-tile bitmap.
- Above 8 plane products the operands are unpacked to bytes; the right operand's unpacking is part of every call.

``floor_ms`` is the larger of operations over the measured rate of the one-bit matrix unit (15.4e15 a second, or 1.93e15 for bytes) and
the bytes of operands and result over 4 TB/s; warm replays of small operands may go below the second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import stats
from bitsparse.backends.cuda.matmul import Product
from bitsparse.bench import Case, Machine, Prepared, Protocol, Unavailable

BIT_RATE, BYTE_RATE, MEMORY_RATE = 15.4e15, 1.93e15, 4.0e12
COLD_BYTES = 256 << 20
#: Replays of what stands beside the two sides compared.
REPETITIONS = 9


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this machine for the records."""
    cupy = jit.require_cupy("suite gemm")
    driver = cupy.cuda.runtime.driverGetVersion()
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    name = jit.capability().name
    return Machine("cuda", threads, commit, name, f"CUDA {driver // 1000}.{driver % 1000 // 10}", str(runtime))


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    shapes = [(1, 1, s, s, 64) for s in (2048, 4096, 8192, 16384, 32768)]
    shapes += [(1, 4, s, s, 64) for s in (4096, 8192, 16384, 32768)]
    shapes += [(1, 8, 8192, 8192, 64), (1, 2, 8192, 8192, 64), (1, 1, 8192, 8192, 256), (1, 1, 8192, 8192, 1024)]
    shapes += [(1, 1, s, s, s) for s in (4096, 8192, 16384)]
    shapes += [(2, 2, 16384, 16384, 16384), (4, 2, 16384, 16384, 16384)]
    shapes += [(a, b, 8192, 8192, 8192) for a, b in ((2, 4), (5, 7), (8, 8))]
    shapes += [(8, 8, 16384, 16384, 16384)]
    table = [Case(f"matmul-{a}x{b}-{m}x{k}x{n}", partial(product, a, b, m, k, n)) for a, b, m, k, n in shapes]
    return [*table, Case("matmul-1x1-blockdiag-65536x65536x64", partial(block_diagonal, 65536, 64, 64))]


def product(a_bits: int, b_bits: int, m: int, k: int, n: int) -> Prepared:
    """A product against the peer's on the same integers."""
    cupy, torch = jit.require_cupy("suite gemm"), _torch()
    encodings = ["signed" if bits == 8 else "unsigned" for bits in (a_bits, b_bits)]
    kernel = "planes" if a_bits * b_bits <= 8 else "digits"
    one = random_words(m, a_bits, k), random_words(n, b_bits, k)
    kind: dict[str, Any] = {"k": k, "n": n, "a_bits": a_bits, "b_bits": b_bits, "kernel": kernel}
    kind |= dict(zip(("a_encoding", "b_encoding"), encodings, strict=True))
    prepared = Product(one[0], **kind)
    out = cupy.empty((m, n), np.int32)
    # The bytes of a code are its int8 value, in two's complement for 8 signed bits.
    left = torch.from_dlpack(stats.digits_of(one[0], a_bits, k, False).view(np.int8).reshape(m, k))
    right = torch.from_dlpack(stats.digits_of(one[1], b_bits, k, False).view(np.int8).reshape(n, k)).t()
    prepared(one[1], out)
    cupy.cuda.runtime.deviceSynchronize()
    if not torch.equal(torch.from_dlpack(out), torch._int_mm(left, right)):
        raise AssertionError(f"matmul-{a_bits}x{b_bits}-{m}x{k}x{n}: the results differ")
    small = float(m) * k * n < 1e12
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "a_bits": a_bits, "b_bits": b_bits, "kernel": kernel}
    params["tiling"] = None if prepared.tiling is None else prepared.tiling._asdict()
    moved = one[0].nbytes + one[1].nbytes + out.nbytes

    calls = 20 if small else 3
    ours = ours_graph([lambda: prepared(one[1], out)] * calls)
    peer = torch_graph([lambda: torch._int_mm(left, right)] * calls)
    params["fp8_ms"] = fp8_ms(left, right, calls)
    if small:
        params["cold_ms"], params["peer_cold_ms"] = cold(kind, one, out, left, right)

    def measure(protocol: Protocol) -> tuple[float, float]:
        times = replay([ours, peer], protocol.repetitions)
        return times[0] / calls, times[1] / calls

    planes = a_bits * b_bits if kernel == "planes" else 1
    floor = max(2.0 * m * k * n * planes / (BIT_RATE if kernel == "planes" else BYTE_RATE), moved / MEMORY_RATE) * 1e3
    return Prepared(lambda: None, None, f"torch {torch.__version__} _int_mm", params, moved, floor, measure=measure)


def cold(kind: dict[str, Any], one: tuple[Any, Any], out: Any, left: Any, right: Any) -> tuple[float, float]:
    """Milliseconds a call when every call finds other operands than the calls before it."""
    result = []
    for operands, graph_of in (((one[0], one[1]), "ours"), ((left, right), "peer")):
        size = sum(int(x.nbytes) for x in operands)
        copies = max(2, min(256, -(-COLD_BYTES // size)))
        calls: list[Callable[[], object]] = []
        for _ in range(copies):
            if graph_of == "ours":
                words = one[1].copy()
                calls.append(partial(Product(one[0].copy(), **kind), words, out))
            else:
                calls.append(partial(_torch()._int_mm, left.clone(), right.t().clone().t()))
        graph = (ours_graph if graph_of == "ours" else torch_graph)(calls)
        result.append(replay([graph], REPETITIONS)[0] / copies)
    return result[0], result[1]


def block_diagonal(size: int, n: int, blocks: int) -> Prepared:
    """A block-diagonal left operand, with its zero tiles jumped over, against the same product without."""
    cupy = jit.require_cupy("suite gemm")
    part = size // blocks
    a, b = cupy.zeros((size, 1, size // 32), np.uint32), random_words(n, 1, size)
    for i in range(blocks):
        a[i * part : (i + 1) * part, 0, i * part // 32 : (i + 1) * part // 32] = random_words(part, 1, part)[:, 0]
    kind: dict[str, Any] = {"k": size, "n": n, "a_bits": 1, "b_bits": 1}
    kind |= {"a_encoding": "unsigned", "b_encoding": "unsigned"}
    jumping = Product(a, bitmap=stats.tile_bitmap(a, size), **kind)
    dense = Product(a, **kind)
    out, other = cupy.empty((size, n), np.int32), cupy.empty((size, n), np.int32)
    jumping(b, out)
    dense(b, other)
    if not bool((out == other).all()):
        raise AssertionError("matmul-1x1-blockdiag: the results differ")
    params = {"m": size, "k": size, "n": n, "a_bits": 1, "b_bits": 1, "blocks": blocks}

    def measure(protocol: Protocol) -> tuple[float, float]:
        graphs = [ours_graph([lambda: jumping(b, out)] * 20), ours_graph([lambda: dense(b, other)] * 20)]
        ours, peer = replay(graphs, protocol.repetitions)
        return ours / 20, peer / 20

    moved = a.nbytes // blocks + b.nbytes + out.nbytes
    floor = 1e3 * moved / MEMORY_RATE
    return Prepared(lambda: None, None, "bitsparse without the bitmap", params, moved, floor, measure=measure)


def random_words(outer: int, bits: int, k: int) -> Any:
    """Planes words of random integers; k must be a multiple of 128."""
    cupy = jit.require_cupy("suite gemm")
    return cupy.random.default_rng(0).integers(0, 1 << 32, (outer, bits, k // 32), dtype=np.uint32)


def ours_graph(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """Capture calls that enqueue on CuPy's current stream."""
    cupy = jit.require_cupy("suite gemm")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        for call in dict.fromkeys(calls):
            call()
        stream.synchronize()
        stream.begin_capture()
        for call in calls:
            call()
        graph = stream.end_capture()
    return partial(_launch_on_torch_stream, graph)


def _launch_on_torch_stream(graph: Any) -> None:
    cupy, torch = jit.require_cupy("suite gemm"), _torch()
    graph.launch(cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream))


def torch_graph(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """Capture PyTorch calls."""
    torch = _torch()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in dict.fromkeys(calls):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    replay_graph: Callable[[], object] = graph.replay
    return partial(_keeping, replay_graph, kept)


def _keeping(call: Callable[[], object], _kept: object) -> object:
    return call()


def replay(graphs: list[Callable[[], object]], repetitions: int) -> list[float]:
    """Median milliseconds of one replay of each graph, measured in turns on one stream."""
    torch = _torch()
    samples: list[list[float]] = [[] for _ in graphs]
    with torch.cuda.stream(torch.cuda.Stream()):
        for launch in graphs:
            launch()
        for _ in range(repetitions):
            for launch, into in zip(graphs, samples, strict=True):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                launch()
                end.record()
                end.synchronize()
                into.append(start.elapsed_time(end))
    return [median(sample) for sample in samples]


def fp8_ms(left: Any, right: Any, calls: int) -> float:
    """Milliseconds of cuBLASLt's product of e4m3 floats of the same shape into bfloat16."""
    torch = _torch()
    a, b = left.to(torch.float8_e4m3fn), right.t().contiguous().to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    graph = torch_graph([lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)] * calls)
    return replay([graph], REPETITIONS)[0] / calls


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"the peer is PyTorch, which is not installed ({error})") from error
    return torch
