"""Suite ``host``: the CPU backend against NumPy, on the same number of threads.

The general protocol is in ``run.py``. In this suite:

- ``matmul-AxB-MxKxN`` multiplies an M x K matrix of A-bit by a K x N matrix of B-bit unsigned integers, uniform over
  their whole range, into a preallocated int32 result. Both operands are packed beforehand, as weights and quantised
  features are. The peer is NumPy's ``@`` on the same numbers as float32, also into a preallocated result.
  ``-avx2`` forbids everything beyond AVX2.
- ``matmul-blockdiag-16``: the left operand is the adjacency of 16 separate subgraphs of 1024 nodes, half of each
  block's bits set, so that 1/16 of its 8 x 128 tiles are non-zero. The peer is our own product with
  ``skip_zero_tiles=False``. In the ``-wide`` case, writing the result takes longer than the product.
- ``pack-...``: signs of a float32 array, 1 bit each. A copy of the array with ``numpy.copyto`` into a preallocated one
  moves 512 MiB (reading and writing), packing 256 + 8 MiB. The peer's time is scaled to the bytes that packing moves,
  so that the ratio compares bytes per second; ``params.copy_bytes`` are the bytes of the measured copy.
- ``quantize-...``: float32 to integers of that many bits with the range taken from the data, packed. The peer is the
  same formula in NumPy (in place where it can be) into uint8, not packed.
- ``epilogue-...``: a product with row scale, bias, ReLU and requantisation fused, against our own product into int32
  followed by the same steps in NumPy and ``quantize``.
- ``bspmm-...`` and ``sampled-...`` are described in ``cases/host_bspmm.py``.
- ``translate-...``, ``frdc-...``: see ``cases/host_build.py``.
- ``spmm-...``, ``sddmm-...`` and ``attention-...``: see ``cases/host_spmm.py``.
- ``cluster-...``: see ``cases/host_cluster.py``.
- ``lowbit-...``: see ``cases/host_lowbit.py``.
- ``once-...``: see ``cases/host_once.py``.
- ``...-torch``: see ``cases/host_torch.py``.
- ``import``: time spent importing in a fresh interpreter, ``import bitsparse`` against
  ``import numpy, scipy.sparse``.

``floor_ms`` of products is the time of the fewest vector instructions known for the operation (``compute_floor``) at the processor's
*stated* clock; that of ``import`` is the time to import NumPy alone. ``estimate_ms`` is the larger of the floor and the time to move the
bytes at the best rate, measured when the suite starts, at which all threads together copy or read an array. On a shared machine that rate
changes from hour to hour, so it is no floor.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bitsparse as bs
from benchmarks.cases import host_bspmm, host_build, host_cluster, host_lowbit, host_once, host_spmm, host_torch
from bitsparse.backends import host
from bitsparse.bench import Case, Machine, Prepared, Protocol, Unavailable, time_interleaved, time_once

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMPY = f"numpy {np.__version__}"


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this machine for the records."""
    return Machine.of_cpu(threads, commit)


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    table: list[tuple[str, Callable[[], Prepared]]] = [
        ("matmul-1x1-4096x4096x4096", partial(product, 1, 1, 4096, 4096, 4096, threads)),
        ("matmul-1x1-4096x4096x4096-avx2", partial(product, 1, 1, 4096, 4096, 4096, threads, simd="avx2")),
        ("matmul-2x2-4096x4096x4096", partial(product, 2, 2, 4096, 4096, 4096, threads)),
        ("matmul-1x4-4096x4096x4096", partial(product, 1, 4, 4096, 4096, 4096, threads)),
        ("matmul-1x1-8192x8192x64", partial(product, 1, 1, 8192, 8192, 64, threads)),
        ("matmul-blockdiag-16", partial(block_diagonal, 256, threads)),
        ("matmul-blockdiag-16-wide", partial(block_diagonal, 4096, threads)),
        ("pack-8192x8192-f32-1bit", partial(pack, 8192, threads)),
        ("import", imports),
        ("matmul-4x4-4096x4096x4096", partial(product, 4, 4, 4096, 4096, 4096, threads)),
        ("matmul-8x8-4096x4096x4096", partial(product, 8, 8, 4096, 4096, 4096, threads)),
        ("matmul-16x1-4096x4096x4096", partial(product, 16, 1, 4096, 4096, 4096, threads)),
        ("matmul-1x4-8192x8192x64", partial(product, 1, 4, 8192, 8192, 64, threads)),
        ("quantize-8192x8192-f32-4bit", partial(quantise, 8192, 4, threads)),
        ("quantize-8192x8192-f32-8bit", partial(quantise, 8192, 8, threads)),
        ("epilogue-1x4-4096x4096x256", partial(epilogue, 1, 4, 4096, 4096, 256, threads)),
        *host_spmm.table(threads, bounds_of),
        *host_cluster.table(threads, bounds_of),
    ]
    own = [Case(name, prepare) for name, prepare in table] + host_build.cases() + host_bspmm.cases()
    own += host_lowbit.cases(bounds_of) + host_once.cases(threads, bounds_of)
    # PyTorch comes last, because its threads and allocators then stay in the process.
    return own + host_torch.cases(threads, bounds_of)


def product(a_bits: int, b_bits: int, m: int, k: int, n: int, threads: int, *, simd: str | None = None) -> Prepared:
    """An unsigned product against NumPy's float32 one."""
    level = simd or host.simd_level()
    if level not in host.simd_levels():
        raise Unavailable(f"this processor has no {simd} (it has {', '.join(host.simd_levels())})")
    rng = np.random.default_rng(0)
    a_values = random_integers(rng, a_bits, (m, k))
    b_values = random_integers(rng, b_bits, (k, n))
    a = bs.BitTensor(a_values, a_bits, axis=-1)
    b = bs.BitTensor(b_values, b_bits, axis=-2)
    a_float, b_float = a_values.astype(np.float32), b_values.astype(np.float32)
    out = np.empty((m, n), np.int32)
    out_float = np.empty((m, n), np.float32)

    def ours() -> None:
        bs.matmul(a, b, out=out)

    # A forced level is set only during the measurement, so that the next case starts with the processor's own level.
    def measured_at_level(protocol: Protocol) -> tuple[float, float]:
        host.set_simd(simd)
        try:
            check_product(ours, out, a_values, b_values)
            ours_ms, peer_ms = time_interleaved([ours, peer], protocol)
        finally:
            host.set_simd(None)
        return ours_ms, peer_ms

    def peer() -> None:
        np.matmul(a_float, b_float, out=out_float)

    moved = a.words.nbytes + b.words.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads, compute_floor(a_bits, b_bits, m, k, n, threads, level))
    params = {"m": m, "k": k, "n": n, "a_bits": a_bits, "b_bits": b_bits, "simd": level, "estimate": rates}
    return Prepared(ours, peer, f"{NUMPY} float32 @", params, moved, *limits, measure=measured_at_level)


def block_diagonal(n: int, threads: int) -> Prepared:
    """A block-diagonal product that skips zero tiles, against the same product without skipping."""
    blocks, size = 16, 1024
    rng = np.random.default_rng(0)
    a_values = np.zeros((blocks * size, blocks * size), np.uint8)
    for i in range(blocks):
        part = slice(i * size, (i + 1) * size)
        a_values[part, part] = rng.integers(0, 2, (size, size), dtype=np.uint8)
    b_values = random_integers(rng, 1, (blocks * size, n))
    a = bs.BitTensor(a_values, 1, axis=-1)
    b = bs.BitTensor(b_values, 1, axis=-2)
    out = np.empty((blocks * size, n), np.int32)

    def ours() -> None:
        bs.matmul(a, b, out=out)

    def peer() -> None:
        bs.matmul(a, b, out=out, skip_zero_tiles=False)

    check_product(ours, out, a_values, b_values)
    check_product(peer, out, a_values, b_values)
    m = k = blocks * size
    moved = a.words.nbytes // blocks + b.words.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads, compute_floor(1, 1, size, size, n * blocks, threads, host.simd_level()))
    params = {
        "m": m,
        "k": k,
        "n": n,
        "a_bits": 1,
        "b_bits": 1,
        "blocks": blocks,
        "simd": host.simd_level(),
        "estimate": rates,
    }
    return Prepared(ours, peer, "bitsparse, skip_zero_tiles=False", params, moved, *limits)


def pack(side: int, threads: int) -> Prepared:
    """Packing the signs of a float32 array, against copying it, per byte moved."""
    x = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32)
    copy = np.zeros_like(x)

    def ours() -> None:
        bs.pack_bits(x, 1)

    def peer() -> None:
        np.copyto(copy, x)

    packed = bs.pack_bits(x, 1)
    if not np.array_equal(packed.toarray(), (x >= 0).astype(np.uint8)):
        raise AssertionError("pack_bits differs from NumPy")
    moved = x.nbytes + packed.words.nbytes
    limits, rates = bounds_of(moved, threads)
    params = {"shape": [side, side], "copy_bytes": 2 * x.nbytes, "simd": host.simd_level(), "estimate": rates}
    scale = moved / (2 * x.nbytes)
    return Prepared(ours, peer, f"{NUMPY} copyto, scaled to our bytes", params, moved, *limits, peer_scale=scale)


def quantise(side: int, bits: int, threads: int) -> Prepared:
    """Range, quantisation and packing, against the formula in NumPy; both round down, as the recorded runs did."""
    x = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32)
    scratch = np.empty_like(x)
    top = np.float32(2**bits - 1)

    def ours() -> bs.BitTensor:
        return bs.quantize(x, bits, rounding="floor")

    def peer() -> NDArray[np.uint8]:
        low, high = x.min(), x.max()
        np.subtract(x, low, out=scratch)
        np.divide(scratch, high - low, out=scratch)
        np.multiply(scratch, top, out=scratch)
        np.floor(scratch, out=scratch)
        np.clip(scratch, 0, top, out=scratch)
        return scratch.astype(np.uint8)

    q = ours()
    if not np.array_equal(q.toarray(), peer()):
        raise AssertionError("quantize differs from NumPy")
    moved = 2 * x.nbytes + q.words.nbytes  # finding the range needs a separate pass
    limits, rates = bounds_of(moved, threads)
    params = {"shape": [side, side], "bits": bits, "simd": host.simd_level(), "estimate": rates}
    return Prepared(ours, peer, f"{NUMPY}, same formula, to uint8", params, moved, *limits)


def epilogue(a_bits: int, b_bits: int, m: int, k: int, n: int, threads: int) -> Prepared:
    """A product that returns packed activations for the next layer: fused, against step by step."""
    rng = np.random.default_rng(0)
    a_values = random_integers(rng, a_bits, (m, k))
    b_values = random_integers(rng, b_bits, (k, n))
    a = bs.BitTensor(a_values, a_bits, axis=-1)
    b = bs.BitTensor(b_values, b_bits, axis=-2)
    row_scale = rng.uniform(0.5, 1.5, m).astype(np.float32) / np.float32(k)
    bias = rng.standard_normal(n).astype(np.float32)
    step = np.float32(0.5)
    fused = bs.Epilogue(row_scale=row_scale, bias=bias, activation="relu", bits=b_bits, out_scale=step)
    high = float(step) * (2**b_bits - 1)
    out = np.empty((m, n), np.int32)

    def ours() -> bs.BitTensor:
        result = bs.matmul(a, b, epilogue=fused)
        assert isinstance(result, bs.BitTensor)
        return result

    def peer() -> bs.BitTensor:
        bs.matmul(a, b, out=out)
        v = out.astype(np.float32)
        v *= row_scale[:, None]
        v += bias
        np.maximum(v, 0, out=v)
        return bs.quantize(v, b_bits, range=(0.0, high))

    if not np.array_equal(ours().toarray(), peer().toarray()):
        raise AssertionError("the fused epilogue differs from the separate steps")
    level = host.simd_level()
    moved = a.words.nbytes + b.words.nbytes + ours().words.nbytes
    limits, rates = bounds_of(moved, threads, compute_floor(a_bits, b_bits, m, k, n, threads, level))
    params = {
        "m": m,
        "k": k,
        "n": n,
        "a_bits": a_bits,
        "b_bits": b_bits,
        "out_bits": b_bits,
        "simd": level,
        "estimate": rates,
    }
    return Prepared(ours, peer, f"bitsparse int32, then {NUMPY} and quantize", params, moved, *limits)


def imports() -> Prepared:
    """Import time in a fresh interpreter."""
    ours_statement, peer_statement, floor_statement = "import bitsparse", "import numpy, scipy.sparse", "import numpy"

    def measure(protocol: Protocol) -> tuple[float, float]:
        samples: dict[str, list[float]] = {ours_statement: [], peer_statement: [], floor_statement: []}
        for statement in samples:
            import_ms(statement)  # reads the files once and writes byte code
        for _ in range(max(5, protocol.repetitions)):
            for statement, sample in samples.items():
                sample.append(import_ms(statement))
        ours_ms, peer_ms, prepared.floor_ms = (statistics.median(sample) for sample in samples.values())
        return ours_ms, peer_ms

    params = {"python": sys.version.split()[0], "floor": "measured beside it: import numpy"}
    prepared = Prepared(lambda: None, None, peer_statement, params, 0, measure=measure)
    return prepared


def import_ms(statement: str) -> float:
    """Milliseconds that a fresh interpreter spends on an import statement, its own start not included."""
    code = f"import time; start = time.perf_counter_ns(); {statement}; print(time.perf_counter_ns() - start)"
    # Isolated mode: neither the current folder nor user settings take part.
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return int(result.stdout) / 1e6


def random_integers(rng: np.random.Generator, bits: int, shape: tuple[int, int]) -> NDArray[Any]:
    """Integers uniform over the whole range of ``bits`` bits, in the smallest unsigned type."""
    dtype = np.uint8 if bits <= 8 else np.uint16
    return rng.integers(0, 2**bits, shape, dtype=dtype)


def check_product(
    multiply: Callable[[], object], out: NDArray[np.int32], a: NDArray[Any], b: NDArray[Any], rows: int = 16
) -> None:
    """Compare some rows of a product with float64, which is exact at these sizes."""
    multiply()
    chosen = np.linspace(0, len(a) - 1, rows).astype(int)
    if not np.array_equal(out[chosen], a[chosen].astype(np.float64) @ b.astype(np.float64)):
        raise AssertionError("matmul differs from the float64 product")


def bounds_of(
    moved: int, threads: int, compute_ms: float | None = None
) -> tuple[tuple[float | None, float | None], str]:
    """``floor_ms`` and ``estimate_ms``, and the rate on which the estimate rests."""
    rate = memory_rate(threads)
    memory_ms = moved / rate * 1e3
    if compute_ms is not None and compute_ms > memory_ms:
        return (compute_ms, compute_ms), f"stated: instructions at {clock() / 1e9:.2f} GHz"
    return (compute_ms, memory_ms), f"measured: memory at {rate / 1e9:.1f} GB/s"


def compute_floor(a_bits: int, b_bits: int, m: int, k: int, n: int, threads: int, simd: str) -> float | None:
    """Milliseconds that the arithmetic of a product takes at best; ``None`` if the clock is not stated.

    There are two ways to multiply, and the cheaper one counts. By bit planes, 64 elements of a pair of planes are one word. AVX-512
    VPOPCNTDQ takes 3 instructions (AND, count, add) for 8 words; AVX2 takes 6.5 (AND, five for a carry-save adder, half of one to count its
    output) for 4 words. The widest processors start four instructions per cycle (AMD Zen 5). Scalar code handles one word per cycle. By
    multiplication, a processor starts two instructions per cycle, each with as many products as the vector has bytes (VNNI) or, above 8
    bits, 16-bit digits; the unit for tiles (AMX) computes 1024 products of bytes per cycle.
    """
    if not clock():
        return None
    rates = {"amx": (32 / 3, 1024.0), "avx512": (32 / 3, 128.0), "avxvnni": (16 / 6.5, 64.0), "avx2": (16 / 6.5, 64.0)}
    words, products = rates.get(simd, (1.0, 2.0))
    if max(a_bits, b_bits) > 8:
        products = min(products, 128.0) / 2
    cycles = min(m * n * -(-k // 64) * a_bits * b_bits / words, m * n * k / products)
    return cycles / clock() / threads * 1e3


@cache
def clock() -> float:
    """The highest clock in hertz if the system states it, else twice the clock that it does state, else 0."""
    highest = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    try:
        if highest.is_file():
            return float(highest.read_text(encoding="ascii")) * 1e3
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    stated = [float(line.partition(":")[2]) * 1e6 for line in lines if line.startswith("cpu MHz")]
    return 2 * max(stated, default=0.0)


@cache
def memory_rate(threads: int) -> float:
    """Bytes per second at which all threads together copy (reading and writing) or read; the best of a dozen tries."""
    source = np.ones(1 << 26, np.float32)
    target = np.zeros_like(source)
    sources, targets = np.array_split(source, threads), np.array_split(target, threads)

    def share(function: Callable[..., object], parts: list[tuple[NDArray[np.float32], ...]]) -> None:
        workers = [threading.Thread(target=function, args=part) for part in parts]  # both release the GIL
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    copy = partial(share, np.copyto, list(zip(targets, sources, strict=True)))
    read = partial(share, np.max, [(part,) for part in sources])
    copy_ms = min(time_once(copy) for _ in range(12))
    read_ms = min(time_once(read) for _ in range(12))
    return max(2 * source.nbytes / copy_ms, source.nbytes / read_ms) * 1e3
