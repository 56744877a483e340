"""Products of packed integers on warpgroups: every tiling of products of bits and of bytes, and the figures behind ``estimate_us``.

Shapes have 1024 to 16384 rows, contractions of the same length and 64 to 16384 columns, with 1 to 8 planes or with one or two digits of 8
bits. A time is the median of replays of a CUDA graph of 20 calls. All figures of ``WarpgroupRates`` (``backends/cuda/chips.py``) are
fitted, except known facts (the clock, the size of the L2, the number of clusters that run at a time) and the launch, which the times cannot
distinguish from ``fill_clocks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.fit.fitting import Facts, Fit, Row, Values, search
from benchmarks.gpu_timing import REPETITIONS, accumulator, encoding_of, ours_graph, random_words, replay
from bitsparse import jit
from bitsparse.backends.cuda.matmul import wgmma, wgmma_tilings
from bitsparse.backends.cuda.matmul.matmul import Product
from bitsparse.backends.cuda.matmul.passes import Sizes

__all__ = ["FITS", "SHAPES", "measured", "predict"]

CALLS = 20
#: Bits of both operands, rows (equal to the contraction), and columns.
SHAPES = (
    *((1, bits, size, 64) for bits in (1, 2, 4, 8) for size in (1024, 2048, 4096, 8192, 16384)),
    *((a, b, 4096, columns) for a, b in ((1, 1), (2, 2), (4, 2)) for columns in (256, 1024, 4096)),
    *((1, 1, size, size) for size in (8192, 16384)),
    *((8, 8, size, columns) for size in (2048, 4096, 8192) for columns in (64, 1024)),
    *((16, 8, size, 64) for size in (2048, 4096, 8192)),
)
FITTED = (
    *("fill_clocks", "arrive_bytes", "leave_bytes", "part_clocks", "store_bytes", "copy_bytes"),
    *("overhead", "multicast_clocks", "memory_bytes_per_us", "carry_clocks", "flush_bytes_per_us", "unpack_clocks"),
)


def predict(values: Values, facts: Facts) -> float:
    """The library's own estimate with other figures; a product of bytes includes unpacking its right operand."""
    m, n, blocks, a_planes, b_planes = (facts[name] for name in ("m", "n", "blocks", "a_planes", "b_planes"))
    sizes = Sizes(m, n, blocks, a_planes, b_planes, 1)
    changed: Any = values
    rates, tiling = wgmma.RATES._replace(**changed), wgmma_tilings.Tiling(*facts["tiling"])
    wide, step = facts["wide"], facts["step"]
    us = wgmma.estimate_us(tiling, sizes, rates, wide=wide, step=step)
    return us + (wgmma.unpacking_us(tiling, sizes, rates) if step == 8 else 0.0)


def fitted(rows: Sequence[Row]) -> Values:
    """Fit the figures, starting from the library's own."""
    used = [row for row in rows if np.isfinite(predict({}, row.facts))]
    return search(used, predict, {name: getattr(wgmma.RATES, name) for name in FITTED})


FITS = (Fit("products on warpgroups", "WarpgroupRates of backends/cuda/chips.py", fitted, predict, lambda row: True),)


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all tilings of every shape."""
    cupy = jit.require_cupy("fit")
    for a_bits, b_bits, size, columns in SHAPES:
        cell = f"{a_bits}x{b_bits}-{size}x{size}x{columns}"
        if not any(part in cell for part in only):
            continue
        step = 8 if a_bits >= 8 else 1
        planes = [-(-bits // step) for bits in (a_bits, b_bits)]
        dtype = accumulator(size, a_bits, b_bits)
        blocks, wide = size * step // 1024, dtype is np.int64
        a, b = random_words(size, a_bits, size), random_words(columns, b_bits, size)
        kind: dict[str, Any] = {"k": size, "n": columns, "a_bits": a_bits, "b_bits": b_bits, "acc_dtype": dtype}
        kind |= {"a_encoding": encoding_of(a_bits), "b_encoding": encoding_of(b_bits)}
        kind["kernel"] = "planes" if step == 1 else "digits"
        out = cupy.empty((size, columns), dtype)
        chosen = wgmma.choose_tiling(Sizes(size, columns, blocks, planes[0], planes[1], 1), False, wide, step)
        for tiling in wgmma_tilings.tilings(columns, planes[1], masked=False, wide=wide, a_planes=planes[0]):
            facts: dict[str, Any] = {
                "m": size,
                "n": columns,
                "blocks": blocks,
                "a_planes": planes[0],
                "b_planes": planes[1],
            }
            facts |= {"wide": wide, "step": step, "tiling": list(tiling)}
            if not np.isfinite(predict({}, facts)):
                continue
            product = Product(a, **kind, tiling=tiling)
            graph = ours_graph([partial(product, b, out)] * CALLS)
            us = 1e3 * replay([graph], REPETITIONS)[0] / CALLS
            yield Row(cell, "-".join(map(str, tiling)), facts, us, tiling == chosen)
