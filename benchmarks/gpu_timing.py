"""Shared parts of the GPU suites: random operands, CUDA graphs of calls on both sides, replays in turns, the exact int8 peer.

Both sides are captured into CUDA graphs of several calls and replayed in turns on one stream; a time is the median over the replays,
divided by the number of calls. A cold time comes from a graph whose calls take turns among copies of the operands that together exceed
256 MB.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.bits import words as packed
from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
from bitsparse.bench import Machine, Unavailable
from bitsparse.interop.streams import stream_at

COLD_BYTES = 256 << 20
#: Replays of additional measurements, other than the two sides that are compared.
REPETITIONS = 9


def wall_ms(make: Callable[[], object], repetitions: int) -> float:
    """Median wall-clock milliseconds of a call that allocates and waits, such as a constructor, after one untimed call."""
    cupy = jit.require_cupy("benchmarks")

    def once() -> float:
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        made = make()
        cupy.cuda.runtime.deviceSynchronize()
        seconds = time.perf_counter() - start
        del made
        return 1e3 * seconds

    once()
    return median(once() for _ in range(repetitions))


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this machine for the records."""
    cupy = jit.require_cupy("the GPU suites")
    newest = cupy.cuda.runtime.driverGetVersion()
    driver = f"{driver_version()} (CUDA {newest // 1000}.{newest % 1000 // 10})"
    cuda = str(cupy.cuda.runtime.runtimeGetVersion())
    here = Machine("cuda", threads, commit, gpu=jit.capability().name, driver=driver, cuda=cuda)
    return replace(here, versions=here.versions | {"cupy": cupy.__version__})


def driver_version() -> str:
    """The version of NVIDIA's driver, from nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        lines = []
    return f"driver {lines[0] if lines else 'unknown'}"


def torch_module() -> Any:
    """Import PyTorch; if it is missing, the case is unavailable."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"the peer is PyTorch, which is not installed ({error})") from error
    return torch


def random_words(outer: int, bits: int, k: int) -> Any:
    """Words of random integers in bit planes; pad bits are zero."""
    cupy = jit.require_cupy("the GPU suites")
    words = cupy.random.default_rng(0).integers(0, 1 << 32, (outer, bits, 4 * -(-k // 128)), dtype=np.uint32)
    if k % 128:
        left = np.clip(k - 32 * np.arange(words.shape[-1]), 0, 32)
        words &= cupy.asarray(((1 << left.astype(np.uint64)) - 1).astype(np.uint32))
    return words


# ---- graphs
def ours_graph(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Capture calls that enqueue on CuPy's current stream; the graph keeps the calls and thus their operands alive."""
    cupy = jit.require_cupy("the GPU suites")
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
    return partial(_launch_on_torch_stream, graph, list(dict.fromkeys(calls)))


def _launch_on_torch_stream(graph: Any, _kept: object) -> None:
    graph.launch(torch_stream())


def torch_stream() -> Any:
    """PyTorch's current stream as a stream of CuPy."""
    cupy = jit.require_cupy("the GPU suites")
    return stream_at(cupy, torch_module().cuda.current_stream().cuda_stream)


def torch_graph(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Capture PyTorch calls; the graph keeps the calls, their operands and their results alive.

    After a capture that fails, PyTorch's stream and memory are again what they were.
    """
    torch = torch_module()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in dict.fromkeys(calls):
            call()
    torch.cuda.synchronize()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=pool):
            kept = [call() for call in calls]
    except RuntimeError:
        _give_up(graph, pool)
        raise
    replay_graph: Callable[[], object] = graph.replay
    return partial(_keeping, replay_graph, [kept, *dict.fromkeys(calls)])


def _give_up(graph: Any, pool: Any) -> None:
    """Release the memory of a capture that failed.

    PyTorch would otherwise reserve memory for that capture for ever, and no longer return any memory that it caches.
    """
    torch = torch_module()
    try:
        graph.pool()
    except RuntimeError:  # the capture did not end; one that did releases its memory itself
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool)


def _keeping(call: Callable[[], object], _kept: object) -> object:
    return call()


def replay(graphs: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Median milliseconds of one replay of each graph, measured in turns on one stream."""
    torch = torch_module()
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


def cold_copies(nbytes: int) -> int:
    """The number of copies of operands of `nbytes` bytes that together exceed every cache."""
    return max(2, min(256, -(-COLD_BYTES // nbytes)))


# ---- products
def accumulator(k: int, a_bits: int, b_bits: int) -> type[np.signedinteger[Any]]:
    """The dtype of the library's product of unsigned integers (8-bit integers are signed)."""
    largest = [128 if bits == 8 else (1 << bits) - 1 for bits in (a_bits, b_bits)]
    return np.int32 if k * largest[0] * largest[1] < 2**31 else np.int64


def encoding_of(bits: int) -> str:
    """Signed for 8 bits, where int8 has the same range; else unsigned."""
    return "signed" if bits == 8 else "unsigned"


def estimates_us(m: int, k: int, n: int, a_bits: int, b_bits: int) -> dict[str, float]:
    """The library's estimate for each kernel that a prepared product, whose left operand is unpacked already, may choose."""
    found = {name: cuda_matmul.cost(name, m, n, k, a_bits, b_bits) / 1e3 for name in cuda_matmul.CHOICES}
    return {name: us for name, us in found.items() if math.isfinite(us)}


class Int8Product:
    """The same exact product through ``torch._int_mm``.

    Integers of up to 8 bits take one call. Wider ones are cut into 8-bit digits; the digits of `a` are stacked by rows and those of `b` by
    columns, so that one call with the same number of operations computes all products of digits and reads each operand once. One fused pass
    then adds them up with their powers of 256, in int64 if the library does so. Full digits of unsigned integers are stored minus 128; the
    correction depends on sums of rows and of columns, which are computed beforehand and not timed.
    """

    def __init__(self, a_words: Any, b_words: Any, k: int, a_bits: int, b_bits: int) -> None:
        torch = torch_module()
        cupy = jit.require_cupy("the GPU suites")
        self.m, self.n = int(a_words.shape[0]), int(b_words.shape[0])
        a, self.a_constant, a_sums = int8_digits(a_words, a_bits, k)
        b, self.b_constant, b_sums = int8_digits(b_words, b_bits, k)
        self.digits = int(a.shape[0]), int(b.shape[0])
        self.left = torch.from_dlpack(a.reshape(-1, k))
        self.right = torch.from_dlpack(b.reshape(-1, k)).t()
        self.products = torch.empty((self.left.shape[0], self.right.shape[1]), dtype=torch.int32, device="cuda")
        self.out = self.products
        self._combine: Callable[[], None] | None = None
        if self.digits != (1, 1) or self.a_constant or self.b_constant:
            out = cupy.empty((self.m, self.n), accumulator(k, a_bits, b_bits))
            row = self.b_constant * a_sums
            col = self.a_constant * b_sums + self.a_constant * self.b_constant * k
            products = cupy.from_dlpack(self.products)
            self._combine = partial(_combination(*self.digits), products, row, col, self.m, self.n, out)
            self.out = torch.from_dlpack(out)

    def __call__(self) -> None:
        """Enqueue the product on PyTorch's current stream."""
        torch_module()._int_mm(self.left, self.right, out=self.products)
        if self._combine is not None:
            with torch_stream():
                self._combine()

    @property
    def nbytes(self) -> int:
        """Bytes of the operands."""
        return int(self.left.nbytes + self.right.nbytes)

    def copy(self) -> Int8Product:
        """The same product with copies of its operands."""
        other = object.__new__(Int8Product)
        other.__dict__.update(self.__dict__)
        other.left, other.right = self.left.clone(), self.right.t().clone().t()
        return other


def int8_digits(words: Any, bits: int, k: int) -> tuple[Any, int, Any]:
    """Digits (digits, outer, k) as int8, the constant that was subtracted from each integer, and int64 sums over k of stored numbers."""
    cupy = jit.require_cupy("the GPU suites")
    outer, count = int(words.shape[0]), -(-bits // 8)
    # Byte c of word i of eight is element 8 c + i.
    bytes_ = packed.digits_of(words, bits, k, False).view(np.uint8).reshape(outer, count, -1, 8, 4)
    natural = bytes_.transpose(1, 0, 2, 4, 3).reshape(count, outer, -1)
    digits = cupy.ascontiguousarray(natural[:, :, :k])
    constant = 0
    sums = cupy.zeros(outer, np.int64)
    for i in range(count):
        if bits - 8 * i >= 8 and encoding_of(bits) == "unsigned":
            digits[i] ^= 128
            constant += 128 << 8 * i
        sums += digits[i].view(np.int8).sum(axis=1, dtype=np.int64) << 8 * i
    return digits.view(np.int8), constant, sums


@cache
def _combination(a_digits: int, b_digits: int) -> Any:
    """The kernel that adds up all products of digits in one pass."""
    cupy = jit.require_cupy("the GPU suites")
    terms = " + ".join(
        f"(O)p[(row + (size_t)m * {i}) * (n * {b_digits}ull) + n * {j}ull + column] * (O){1 << 8 * (i + j)}ll"
        for i in range(a_digits)
        for j in range(b_digits)
    )
    return cupy.ElementwiseKernel(
        "raw int32 p, raw int64 r, raw int64 c, uint32 m, uint32 n",
        "O out",
        f"unsigned row = (unsigned)i / n, column = (unsigned)i % n; out = {terms} + (O)r[row] + (O)c[column];",
        f"combine_{a_digits}_{b_digits}",
    )
