"""Products of randomly drawn shapes with every kernel forced, and the cost figures that choose among the kernels.

For each shape (``cases/random_products.py``, with another seed than the suite's), the most likely tilings of every kernel are timed in
turns: bits and bytes on warpgroups, bits and bytes by warps, bytes times packed planes, and as a peer cuBLASLt on operands that are bytes
already. Every result is compared with the peer's. A quarter of the shapes, by their names, is held out of the fit; the choice is judged on
those. The fit finds the figures of small products in ``backends/cuda/chips.py``, and those of larger ones on these shapes, which
``fit/dense.py`` fits to hand-picked ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from benchmarks.cases.random_products import Shape, packed, shapes
from benchmarks.fit.fitting import Facts, Fit, Row, Values, search
from benchmarks.gpu_timing import Int8Product, accumulator, encoding_of, ours_graph, replay, torch_graph
from bitsparse import jit
from bitsparse.backends.cuda.chips import H200, MixedRates, ResidentRates
from bitsparse.backends.cuda.matmul import choice, mixed, one_launch, resident, wgmma, wgmma_tilings
from bitsparse.backends.cuda.matmul.matmul import Product
from bitsparse.backends.cuda.matmul.passes import Sizes

__all__ = ["FITS", "PROBES", "held_out", "measured", "predict", "variants", "verdict"]

SEED, COUNT = 0, 150
CALLS, REPETITIONS = 20, 5
#: The most operations of one call; larger products are bound by the matrix unit, whose rate is known.
MOST_OPERATIONS = 2e11
#: The number of other tilings of each kernel to time, which are cut differently from the most likely one.
MORE = 2
#: Small shapes for which all tilings are timed that cost less than twice as much as the most likely one.
PROBES = (
    Shape(2, 2, 2672, 128, 112),
    Shape(2, 2, 13216, 128, 32),
    Shape(1, 8, 256, 176, 6016),
    Shape(4, 4, 8080, 768, 48),
    Shape(8, 8, 2704, 1440, 64),
)
PEER = "int8"
FITTED = (
    *(
        "launch_us",
        "fill_clocks",
        "arrive_bytes",
        "leave_bytes",
        "part_clocks",
        "overhead",
        "multicast_clocks",
        "unpack_clocks",
    ),
    *("small_rows", "small_bytes", "half_sectors", "result_bytes_per_us"),
)
#: The other figures are left as ``fit/dense.py`` found them: few of these products are bound by the matrix unit or by memory, and what
#: sharing loads costs shows in products with 64 columns.
FITTED_LARGER = (
    *("fill_clocks", "arrive_bytes", "leave_bytes", "part_clocks", "store_bytes", "copy_bytes", "tile_clocks"),
    "half_sectors",
)
FITTED_MIXED = tuple(name for name in MixedRates._fields if name != "clock_mhz")
FITTED_RESIDENT = tuple(name for name in ResidentRates._fields if name != "clock_mhz")
#: Rows that take this many times as long as the fastest of their kernel are no candidates, so the fit ignores them.
NEAR = 1.6
#: How much the fit holds on to the figures with which it starts (``search`` in ``fitting.py``).
STAY = 0.3


def facts_of(shape: Shape, kernel: str, tiling: Any = None) -> dict[str, Any]:
    """The facts about a variant that the models read."""
    a_bits, b_bits, m, k, n = shape
    step = 8 if choice.in_bytes(kernel) else 1
    planes = [-(-bits // step) for bits in (a_bits, b_bits)]
    if kernel == "mixed":
        planes[1] = b_bits
    facts: dict[str, Any] = {"kernel": kernel, "m": m, "k": k, "n": n, "a_bits": a_bits, "b_bits": b_bits, "step": step}
    facts |= {"blocks": -(-k * step // 1024), "a_planes": planes[0], "b_planes": planes[1]}
    return facts | {"tiling": None if tiling is None else [int(part) for part in tiling]}


def sizes_of(facts: Facts) -> Sizes:
    """The sizes of a product."""
    m, n, blocks, a_planes, b_planes = (facts[name] for name in ("m", "n", "blocks", "a_planes", "b_planes"))
    return Sizes(m, n, blocks, a_planes, b_planes, 1, facts["step"] * 16 * -(-facts["k"] // 128))


def tiling_of(facts: Facts) -> wgmma_tilings.Tiling:
    """The tiling on warpgroups that the facts describe."""
    return wgmma_tilings.Tiling(*facts["tiling"])


def mixed_sizes_of(facts: Facts) -> mixed.MixedSizes:
    """The sizes of a product of bytes and packed planes."""
    return mixed.MixedSizes(facts["m"], facts["n"], facts["blocks"], facts["b_planes"], 1, -(-facts["k"] // 32))


def mixed_tiling_of(facts: Facts) -> one_launch.AnyMixedTiling:
    """The tiling, of either kind, that facts of kernel "mixed" describe."""
    kind: Any = resident.ResidentTiling if is_resident(facts) else mixed.MixedTiling
    tiling: one_launch.AnyMixedTiling = kind._make(facts["tiling"])
    return tiling


def is_resident(facts: Facts) -> bool:
    """Whether the tiling is of the kind whose blocks keep the columns that they unpack."""
    return facts["kernel"] == "mixed" and len(facts["tiling"]) == len(resident.ResidentTiling._fields)


def offered(facts: Facts) -> bool:
    """Whether the library may choose a variant; some tilings of older measurements no longer exist."""
    if facts["kernel"] == "mixed":
        return is_resident(facts) or mixed_tiling_of(facts)._replace(parts=1) in mixed.TILES
    return facts["kernel"] in choice.CHOICES


def predict(values: Values, facts: Facts) -> float:
    """The library's own estimate of a tiling with other figures."""
    changed: Any = values
    if facts["kernel"] == "mixed":
        tile, sizes = mixed_tiling_of(facts), mixed_sizes_of(facts)
        if isinstance(tile, resident.ResidentTiling):
            return resident.estimate_us(tile, sizes, H200.resident_products._replace(**changed))
        return mixed.estimate_us(tile, sizes, H200.mixed_products._replace(**changed))
    tiling, whole = tiling_of(facts), sizes_of(facts)
    rates = wgmma.rates_of(whole, facts["step"])._replace(**changed)
    us = wgmma.estimate_us(tiling, whole, rates, step=facts["step"])
    if facts["step"] == 1:
        return us
    us += wgmma.unpacking_us(tiling, whole, rates) if wgmma.is_small(whole, 8) else 0.0
    return us + choice.beside_us(*(facts[name] for name in ("m", "n", "k", "a_bits", "b_bits")))


def on_warpgroups(row: Row, *, small: bool) -> bool:
    """Whether a row is a product by planes or digits on warpgroups, small or larger."""
    if row.facts["tiling"] is None or row.facts["kernel"] not in ("planes", "digits"):
        return False
    return wgmma.is_small(sizes_of(row.facts), row.facts["step"]) == small


def held_out(row: Row) -> bool:
    """Whether a row is held out of the fit; this holds for all rows of a shape or for none."""
    return crc32(row.cell.encode()) % 4 == 0


def _fitted(rows: Sequence[Row], of: Callable[[Values, Facts], float], start: Any, names: Sequence[str]) -> Values:
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row.cell, row.facts["kernel"])
        best[key] = min(best.get(key, math.inf), row.us)
    near = [row for row in rows if row.us <= NEAR * best[row.cell, row.facts["kernel"]] and not held_out(row)]
    used = [row for row in near if math.isfinite(of({}, row.facts))]
    return search(used, of, {name: getattr(start, name) for name in names}, stay=STAY)


def warpgroups_fitted(rows: Sequence[Row]) -> Values:
    """Fit the figures of small products, starting from the library's own."""
    return _fitted(rows, predict, wgmma.SMALL_RATES, FITTED)


def larger_fitted(rows: Sequence[Row]) -> Values:
    """Fit the figures of larger products, starting from the library's own."""
    return _fitted(rows, predict, wgmma.RATES, FITTED_LARGER)


def mixed_fitted(rows: Sequence[Row]) -> Values:
    """Fit the figures of bytes times packed planes, starting from the library's own."""
    return _fitted(rows, predict, H200.mixed_products, FITTED_MIXED)


def resident_fitted(rows: Sequence[Row]) -> Values:
    """Fit the figures of bytes times packed planes on warpgroups, starting from the library's own."""
    return _fitted(rows, predict, H200.resident_products, FITTED_RESIDENT)


PLACE = "of backends/cuda/chips.py"
FITS = (
    Fit(
        "products on warpgroups",
        f"small_products {PLACE}",
        warpgroups_fitted,
        predict,
        partial(on_warpgroups, small=True),
    ),
    Fit(
        "products of bytes and packed planes",
        f"mixed_products {PLACE}",
        mixed_fitted,
        predict,
        lambda row: row.facts["kernel"] == "mixed" and not is_resident(row.facts) and offered(row.facts),
    ),
    Fit(
        "products of bytes and packed planes on warpgroups",
        f"resident_products {PLACE}",
        resident_fitted,
        predict,
        lambda row: is_resident(row.facts),
    ),
    Fit(
        "larger products on warpgroups",
        f"warpgroups {PLACE}",
        larger_fitted,
        predict,
        partial(on_warpgroups, small=False),
    ),
)


def verdict(rows: Sequence[Row], found: Sequence[Values]) -> Iterator[str]:
    """Report how the choice by these constants compares with the peer, on held-out and on all shapes."""
    warpgroups, warps, kept, larger = found
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, {})[row.variant] = row

    def expected(row: Row) -> float:
        if not offered(row.facts):
            return math.inf
        if row.facts["kernel"] == "mixed":
            return predict(kept if is_resident(row.facts) else warps, row.facts)
        return predict(warpgroups if on_warpgroups(row, small=True) else larger, row.facts)

    def taken(cell: dict[str, Row]) -> float:
        return min((row for name, row in cell.items() if name != PEER), key=expected).us

    def line(name: str, pick: Callable[[dict[str, Row]], float], some: dict[str, dict[str, Row]]) -> str:
        ratios = {cell: variants[PEER].us / pick(variants) for cell, variants in some.items() if PEER in variants}
        if not ratios:
            return f"{name}: no shape"
        worst = min(ratios, key=ratios.__getitem__)
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        slower = sum(ratio < 0.95 for ratio in ratios.values()) / len(ratios)
        return (
            f"{name}: {len(ratios)} shapes, mean {mean:.2f}x of int8, {100 * slower:.1f} % below 0.95x, "
            f"worst {ratios[worst]:.2f}x ({worst})"
        )

    unseen = {cell: some for cell, some in cells.items() if held_out(next(iter(some.values())))}
    yield line("chosen by these constants, shapes held out", taken, unseen)
    yield line("chosen by these constants, all shapes", taken, cells)
    yield line(
        "chosen today, all shapes",
        lambda cell: min((row.us for row in cell.values() if row.chosen), default=math.nan),
        cells,
    )
    yield line(
        "the quickest variant, all shapes",
        lambda cell: min(row.us for name, row in cell.items() if name != PEER),
        cells,
    )


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all variants of every shape."""
    for shape in (*PROBES, *shapes(COUNT, SEED, MOST_OPERATIONS)):
        if any(part in shape.name for part in only):
            yield from variants(shape, probe=shape in PROBES)


def likely(shape: Shape, kernel: str, *, probe: bool) -> list[Any]:
    """The tilings with the lowest estimates; for a probe, all that may be fast."""
    facts = facts_of(shape, kernel)
    if kernel == "mixed":
        sizes, chip = mixed_sizes_of(facts), jit.capability()
        table: list[Any] = mixed.tilings(sizes, clusters=True)
        table = [tiling for tiling in table if tiling.shared_bytes(sizes.planes) <= chip.shared_bytes]
        table += resident.tilings(sizes, chip)
    else:
        table = wgmma_tilings.tilings(shape.n, facts["b_planes"], masked=False, wide=False, a_planes=facts["a_planes"])
        table += wgmma_tilings.fitted_tilings(sizes_of(facts), jit.capability().multiprocessors)
    costs = {tiling: predict({}, facts | {"tiling": [int(part) for part in tiling]}) for tiling in table}
    found = sorted((tiling for tiling in table if math.isfinite(costs[tiling])), key=costs.__getitem__)
    if probe:
        return [tiling for tiling in found if costs[tiling] < 2 * costs[found[0]]]
    alike: dict[Any, Any] = {}
    for tiling in found:
        kind = tiling[:4] if kernel == "mixed" else (*tiling[:3], tiling.groups, tiling.parts > 1, tiling.width)
        alike.setdefault(kind, tiling)
    blocks = [tiling for tiling in alike.values() if kernel == "mixed" or not tiling.width]
    widths = [tiling for tiling in alike.values() if tiling not in blocks]
    return blocks[: 1 + MORE] + widths[: 1 + MORE]


def chosen_tiling(shape: Shape, kernel: str) -> Any:
    """The tiling that the library chooses."""
    facts = facts_of(shape, kernel)
    if kernel == "mixed":
        return one_launch.choose_tiling(mixed_sizes_of(facts), jit.capability())
    return wgmma.choose_tiling(sizes_of(facts), False, False, facts["step"])


def variants(shape: Shape, *, probe: bool, forced: Sequence[str] = choice.KERNELS) -> Iterator[Row]:
    """Every variant of a shape, compared with the peer and timed in turns with it."""
    cupy = jit.require_cupy("fit")
    a_bits, b_bits, m, k, n = shape
    a, b = packed(shape)
    int8 = Int8Product(a.words, b.words, k, a_bits, b_bits)
    int8()
    cupy.cuda.runtime.deviceSynchronize()
    want = cupy.from_dlpack(int8.out)
    kind: dict[str, Any] = {
        "k": k,
        "n": n,
        "a_bits": a_bits,
        "b_bits": b_bits,
        "acc_dtype": accumulator(k, a_bits, b_bits),
    }
    kind |= {"a_encoding": encoding_of(a_bits), "b_encoding": encoding_of(b_bits)}
    costs = {kernel: choice.cost(kernel, m, n, k, a_bits, b_bits) for kernel in choice.CHOICES}
    kernel = min(costs, key=costs.__getitem__)
    chosen = (kernel, chosen_tiling(shape, kernel))
    tried: list[tuple[str, Any]] = []
    for name in forced:
        if name in choice.CHOICES:
            tried += [(name, tiling) for tiling in likely(shape, name, probe=probe)]
        else:
            tried.append((name, None))
    tried += [chosen] if chosen not in tried else []
    graphs, rows = [torch_graph([int8] * CALLS)], [(PEER, facts_of(shape, PEER), False)]
    for name, tiling in tried:
        product = Product(a.words, kernel=name, tiling=tiling, **kind)
        out = cupy.full((m, n), -1, np.int32)
        for _ in range(2):  # the second call may start before the first one has ended
            product(b.words, out)
        if not bool((out == want).all()):
            raise AssertionError(f"{shape.name}: {name} {tiling} differs from the peer")
        graphs.append(ours_graph([partial(product, b.words, out)] * CALLS))
        label = name if tiling is None else f"{name}-{'-'.join(str(int(part)) for part in tiling)}"
        rows.append((label, facts_of(shape, name, tiling), (name, tiling) == chosen))
    for (label, facts, is_chosen), ms in zip(rows, replay(graphs, REPETITIONS), strict=True):
        yield Row(shape.name, label, facts, 1e3 * ms / CALLS, is_chosen)
