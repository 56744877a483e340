"""Products of randomly drawn shapes against cuBLASLt int8, so that no shape is chosen by hand.

Rows, contraction and columns are multiples of 16, uniform in their logarithms within :data:`ROWS`, :data:`LENGTHS` and :data:`COLUMNS`;
bit widths take turns. The suite measures the shapes of :data:`SEED`, and ``benchmarks/fit/products.py`` those of another seed, so that the
cost model is not fitted to the shapes that are measured.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import bitsparse as bs
from benchmarks.ceilings import product_bounds
from benchmarks.gpu_timing import (
    Int8Product,
    accumulator,
    encoding_of,
    ours_graph,
    random_words,
    replay,
    torch_graph,
    torch_module,
)
from bitsparse import jit
from bitsparse.backends.cuda.matmul import choice
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["Shape", "cases", "packed", "shapes"]

SEED, COUNT = 1, 1000
ROWS, LENGTHS, COLUMNS = (256, 37_000), (128, 16_384), (16, 8_192)
WIDTHS = ((1, 1), (1, 4), (1, 8), (2, 2), (3, 3), (4, 4), (8, 8))
#: The most elements of an operand or a result; larger shapes are drawn again.
MOST = 1 << 28


class Shape(NamedTuple):
    """A product of A-bit (m, k) by B-bit (k, n) integers."""

    a_bits: int
    b_bits: int
    m: int
    k: int
    n: int

    @property
    def name(self) -> str:
        """The shape as ``AxB-MxKxN``."""
        return f"{self.a_bits}x{self.b_bits}-{self.m}x{self.k}x{self.n}"


def shapes(count: int, seed: int, most_operations: float = math.inf) -> list[Shape]:
    """Draw `count` shapes from a seed, of products with at most `most_operations` operations.

    Examples
    --------
    >>> shapes(2, 1) == shapes(2, 1), shapes(1, 1) == shapes(1, 2)
    (True, False)
    """
    rng = np.random.default_rng(seed)
    found: list[Shape] = []
    while len(found) < count:
        ends = [rng.uniform(math.log(low), math.log(high)) for low, high in (ROWS, LENGTHS, COLUMNS)]
        m, k, n = (16 * max(1, round(math.exp(end) / 16)) for end in ends)
        shape = Shape(*WIDTHS[len(found) % len(WIDTHS)], m, k, n)
        if max(m * k, k * n, m * n) <= MOST and 2.0 * m * k * n <= most_operations and shape not in found:
            found.append(shape)
    return found


def packed(shape: Shape) -> tuple[Any, Any]:
    """Random operands of a shape as BitTensors on the GPU."""
    a_bits, b_bits, m, k, n = shape
    kinds: list[dict[str, Any]] = [{"bits": bits, "encoding": encoding_of(bits)} for bits in (a_bits, b_bits)]
    left = bs.BitTensor.from_words(random_words(m, a_bits, k), (m, k), **kinds[0])
    return left, bs.BitTensor.from_words(random_words(n, b_bits, k), (k, n), **kinds[1], axis=-2)


def cases() -> list[Case]:
    """The cases for the shapes of the suite's seed."""
    return [Case(f"random-{shape.name}", partial(product, shape)) for shape in shapes(COUNT, SEED)]


def product(shape: Shape) -> Prepared:
    """A plan as users make it, whose kernel the cost model chooses, against the peer's product of the same integers."""
    cupy, torch = jit.require_cupy("suite gemm"), torch_module()
    a_bits, b_bits, m, k, n = shape
    a, b = packed(shape)
    plan = bs.plan_matmul(a, n, bits=b_bits, encoding=b.encoding, skip_zero_tiles=False)
    int8 = Int8Product(a.words, b.words, k, a_bits, b_bits)
    out = cupy.empty((m, n), accumulator(k, a_bits, b_bits))
    plan(b, out=out)
    int8()
    cupy.cuda.runtime.deviceSynchronize()
    if not torch.equal(torch.from_dlpack(out), int8.out):
        raise AssertionError(f"random-{shape.name}: the results differ")
    calls = 20 if 2.0 * m * k * n < 1e11 else 5
    graphs = [ours_graph([partial(plan, b, out)] * calls), torch_graph([int8] * calls)]
    params = dict(shape._asdict()) | {"kernel": plan.kernel, "explained": plan.explain().splitlines()[-1]}
    params["estimates_us"] = {name: round(ns / 1e3, 2) for name, ns in plan.costs.items() if math.isfinite(ns)}

    def measure(protocol: Protocol) -> tuple[float, float]:
        ours, peer = replay(graphs, protocol.repetitions)
        return ours / calls, peer / calls

    moved = a.words.nbytes + b.words.nbytes + out.nbytes
    limits = product_bounds("digits" if choice.in_bytes(str(plan.kernel)) else "planes", m, k, n, a_bits, b_bits, moved)
    name = f"torch {torch.__version__} _int_mm"
    return Prepared(lambda: None, None, name, params, moved, *limits, measure=measure)
