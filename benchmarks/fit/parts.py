"""Products of floats and 8-bit weights with few rows: the best number of parts into which to cut the contraction axis.

Cells are first layers over bags of words and some shapes in between. Variants cut the axis into 1 to 8 parts (``parts_of`` in
``backends/cuda/quantized/product.py`` chooses the number) or use the kernel of other chips. Nothing is fitted: the table shows how much
the choice loses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import Timed, in_turns
from benchmarks.fit.fitting import Fit, Row
from bitsparse import jit, quantize
from bitsparse.backends.cuda.quantized.product import QuantizedProduct

__all__ = ["FITS", "SHAPES", "measured"]

#: Rows, contraction axis, columns: first layers on cora, citeseer and pubmed with 16 or 64 columns, then fewer rows with longer axes.
SHAPES = (
    *((2708, 1433, n) for n in (16, 64)),
    *((3327, 3703, n) for n in (16, 64)),
    (19717, 500, 64),
    (1000, 8000, 128),
    (512, 4096, 256),
    (128, 16384, 64),
)
PARTS = (1, 2, 3, 4, 6, 8)
REPETITIONS = 15
FITS: tuple[Fit, ...] = ()


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all variants, shape by shape."""
    for shape in SHAPES:
        cell = "parts-{}x{}x{}".format(*shape)
        if any(part in cell for part in only):
            yield from _variants(cell, *shape)


def _variants(cell: str, m: int, k: int, n: int) -> Iterator[Row]:
    cupy = jit.require_cupy("fit")
    rng = np.random.default_rng(0)
    x = cupy.asarray(rng.standard_normal((m, k), dtype=np.float32))
    weights = cupy.asarray(rng.standard_normal((k, n), dtype=np.float32))
    packed: Any = quantize(weights, 8, scheme="symmetric", axis=-2, layout="rows")
    kind: dict[str, Any] = {"sizes": (m, n, k), "dtype": x.dtype, "bits": 8, "rounding": "nearest"}
    kind["w_scale"] = packed.scale.reshape(())
    taken = QuantizedProduct(packed.words, **kind)
    products = {("mma", 1): QuantizedProduct(packed.words, kernel="mma", **kind)}
    for parts in PARTS if taken.kernel == "wgmma" else ():
        made = QuantizedProduct(packed.words, k_parts=parts, **kind)
        products.setdefault(("wgmma", made.params.k_parts), made)
    out = cupy.empty((m, n), np.float32)
    timed = [
        Timed(partial(product, x, out, scale=0.05), f"{name}, {parts} parts")
        for (name, parts), product in products.items()
    ]
    chosen = taken.kernel, taken.params.k_parts
    for key, one, ms in zip(products, timed, in_turns(timed, REPETITIONS), strict=True):
        yield Row(cell, one.name, {"rows": m, "axis": k, "columns": n}, 1e3 * ms, key == chosen)
