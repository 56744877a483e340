"""Suite ``gemm``: low-bit products on the GPU against cuBLASLt int8 (``torch._int_mm``), and the steps around them.

The general protocol is in ``run.py``. In this suite:

- ``matmul-AxB-MxKxN`` multiplies an M x K matrix of A-bit by a K x N matrix of B-bit unsigned integers (8 bits: signed), uniform over
  their whole range, into a preallocated result of int32, or int64 if int32 could overflow, through a prepared product of the CUDA
  backend. Operands are packed beforehand. The peer computes the same integers from int8: one ``torch._int_mm`` up to 8 bits; wider
  integers are cut into 8-bit digits (16 x 16: the operations of 4 calls, 32 x 1: of 4), multiplied by a single call and added up by one
  fused pass (``gpu_timing.Int8Product``). Both results are compared before anything is timed.
- Both sides are captured into CUDA graphs of 20 calls (fewer for long ones) and replayed in turns; a time is the median of 15 replays
  divided by the number of calls. Replays find operands in the L2 cache if they fit. ``params.cold_ms`` and ``params.peer_cold_ms`` come
  from graphs whose calls take turns among copies of the operands that together exceed 256 MB.
- The kernel is the one with the lower estimate of the library's cost model. ``params.estimates_us`` holds the estimates, and
  ``params.other_ms`` the time of the other kernel if its estimate is less than three times as long. The kernel for bytes ("digits") unpacks
  its right operand in every call, but the left one only once.
- ``params.fp8_ms`` is cuBLASLt's product of 8-bit floats into bfloat16, which is not exact.
- ``small-AxB-MxKxN``: products of 4 to 8 bits a side with small square left operands, for which cuBLASLt's small tiles are hard to beat.
  They are measured like ``matmul-...``, warm only, so that the records show the weak spots too. Statements about ``matmul-...`` do not
  include them.
- ``matmul-1x1-blockdiag-...``: the left operand has 64 dense blocks on its diagonal and zeros elsewhere; the peer is our own product
  without its zero-tile bitmap.
- ``random-AxB-MxKxN``: a thousand shapes drawn from a seed (``cases/random_products.py``), through ``plan_matmul`` with the kernel that the
  cost model chooses, warm; their bars, as shares of cells, are in ``gemm_bars.py``.
- ``overhead-...``, ``pack-...``, ``requant-...`` and others: see their modules in ``cases/``.

``estimate_ms`` is the larger of two times: the operations at the measured rate of the one-bit matrix unit (15.4e15 per second, or 1.93e15
for bytes), and the bytes of operands and result at 4 TB/s; warm replays of small operands may beat the latter. ``floor_ms``: see
``ceilings.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases import bits, epilogue, overhead, random_products
from benchmarks.ceilings import bounds, product_bounds
from benchmarks.gpu_timing import (
    REPETITIONS,
    Int8Product,
    accumulator,
    cold_copies,
    encoding_of,
    estimates_us,
    machine,
    ours_graph,
    random_words,
    replay,
    torch_graph,
    torch_module,
)
from bitsparse import jit
from bitsparse.backends.cuda.bits import words as packed
from bitsparse.backends.cuda.matmul.matmul import Product
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["cases", "machine"]


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    shapes = [(1, 1, s, s, 64) for s in (2048, 4096, 8192, 16384, 32768)]
    shapes += [(1, 4, s, s, 64) for s in (4096, 8192, 16384, 32768)]
    shapes += [(1, 8, 8192, 8192, 64), (1, 2, 8192, 8192, 64), (1, 1, 8192, 8192, 256), (1, 1, 8192, 8192, 1024)]
    shapes += [(1, 1, s, s, s) for s in (4096, 8192, 16384)]
    shapes += [(2, 2, 16384, 16384, 16384), (4, 2, 16384, 16384, 16384)]
    shapes += [(a, b, 8192, 8192, 8192) for a, b in ((2, 4), (5, 7), (8, 8))]
    shapes += [(8, 8, 16384, 16384, 16384)]
    pairs = ((1, 3), (3, 3), (3, 5), (6, 2), (2, 8), (7, 7), (12, 4), (16, 1), (16, 16), (32, 1))
    shapes += [(a, b, s, s, n) for a, b in pairs for s, n in ((8192, 64), (4096, 4096))]
    table = [Case(f"matmul-{a}x{b}-{m}x{k}x{n}", partial(product, a, b, m, k, n)) for a, b, m, k, n in shapes]
    small = [(s, n) for s in (512, 1024, 2048, 4096) for n in (16, 64, 256)]
    for a, b in ((8, 8), (7, 7), (5, 5), (4, 4)):
        table += [Case(f"small-{a}x{b}-{s}x{s}x{n}", partial(product, a, b, s, s, n, brief=True)) for s, n in small]
    table.append(Case("matmul-1x1-blockdiag-65536x65536x64", partial(block_diagonal, 65536, 64, 64)))
    for module in (bits, epilogue, overhead, random_products):
        table += module.cases()
    return table


def product(a_bits: int, b_bits: int, m: int, k: int, n: int, *, brief: bool = False) -> Prepared:
    """A product against the peer's on the same integers; ``brief`` leaves out floats and cold operands."""
    cupy, torch = jit.require_cupy("suite gemm"), torch_module()
    a, b = random_words(m, a_bits, k), random_words(n, b_bits, k)
    estimates = estimates_us(m, k, n, a_bits, b_bits)
    kernel, other = sorted(estimates, key=estimates.__getitem__)[:2]
    kind: dict[str, Any] = {
        "k": k,
        "n": n,
        "a_bits": a_bits,
        "b_bits": b_bits,
        "acc_dtype": accumulator(k, a_bits, b_bits),
    }
    kind |= {"a_encoding": encoding_of(a_bits), "b_encoding": encoding_of(b_bits)}
    prepared = Product(a, kernel=kernel, **kind)
    int8 = Int8Product(a, b, k, a_bits, b_bits)
    out = cupy.empty((m, n), kind["acc_dtype"])
    prepared(b, out)
    int8()
    cupy.cuda.runtime.deviceSynchronize()
    if not torch.equal(torch.from_dlpack(out), int8.out):
        raise AssertionError(f"matmul-{a_bits}x{b_bits}-{m}x{k}x{n}: the results differ")
    small = float(m) * k * n < 1e12
    calls = 20 if small else 3
    ours, peer = ours_graph([lambda: prepared(b, out)] * calls), torch_graph([int8] * calls)
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "a_bits": a_bits, "b_bits": b_bits, "kernel": kernel}
    params["result"] = np.dtype(kind["acc_dtype"]).name
    params["tiling"] = None if prepared.tiling is None else prepared.tiling._asdict()
    params["estimates_us"] = {name: round(us, 2) for name, us in estimates.items()}
    if estimates[other] < 3 * estimates[kernel]:
        second = Product(a, kernel=other, **kind)
        params["other_ms"] = replay([ours_graph([lambda: second(b, out)] * calls)], REPETITIONS)[0] / calls
    if max(a_bits, b_bits) <= 8 and not brief:
        params["fp8_ms"] = fp8_ms(int8.left, int8.right, calls)
    if small and not brief:
        params["cold_ms"], params["peer_cold_ms"] = cold(a, b, out, kind | {"kernel": kernel}, int8)

    def measure(protocol: Protocol) -> tuple[float, float]:
        times = replay([ours, peer], protocol.repetitions)
        return times[0] / calls, times[1] / calls

    moved = a.nbytes + b.nbytes + out.nbytes
    name = f"torch {torch.__version__} _int_mm" + ("" if int8.digits == (1, 1) else " on 8-bit digits")
    limits = product_bounds(kernel, m, k, n, a_bits, b_bits, moved)
    return Prepared(lambda: None, None, name, params, moved, *limits, measure=measure)


def cold(a: Any, b: Any, out: Any, kind: dict[str, Any], int8: Int8Product) -> tuple[float, float]:
    """Milliseconds per call if each call uses other operands than the calls before it."""
    copies = cold_copies(int(a.nbytes + b.nbytes))
    calls: list[Callable[[], object]] = [partial(Product(a.copy(), **kind), b.copy(), out) for _ in range(copies)]
    ours = replay([ours_graph(calls)], REPETITIONS)[0] / copies
    calls.clear()
    copies = cold_copies(int8.nbytes)
    calls += [int8.copy() for _ in range(copies)]
    return ours, replay([torch_graph(calls)], REPETITIONS)[0] / copies


def block_diagonal(size: int, n: int, blocks: int) -> Prepared:
    """A product with a block-diagonal left operand that skips its zero tiles, against the same product without skipping."""
    cupy = jit.require_cupy("suite gemm")
    part = size // blocks
    a, b = cupy.zeros((size, 1, size // 32), np.uint32), random_words(n, 1, size)
    for i in range(blocks):
        a[i * part : (i + 1) * part, 0, i * part // 32 : (i + 1) * part // 32] = random_words(part, 1, part)[:, 0]
    kind: dict[str, Any] = {"k": size, "n": n, "a_bits": 1, "b_bits": 1}
    kind |= {"a_encoding": "unsigned", "b_encoding": "unsigned"}
    jumping = Product(a, bitmap=packed.tile_bitmap(a, size), **kind)
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
    return Prepared(lambda: None, None, "bitsparse without the bitmap", params, moved, *bounds(moved), measure=measure)


def fp8_ms(left: Any, right: Any, calls: int) -> float:
    """Milliseconds of cuBLASLt's product of e4m3 floats of the same shape into bfloat16."""
    torch = torch_module()
    a, b = left.to(torch.float8_e4m3fn), right.t().contiguous().to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    graph = torch_graph([lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)] * calls)
    return replay([graph], REPETITIONS)[0] / calls
