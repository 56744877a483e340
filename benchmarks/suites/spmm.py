"""Suite ``spmm``: sparse products, products per edge, attention and format translation on a GPU, through the public functions.

Where this suite differs from the protocol of ``run.py``:

- ``spmm-{precision}-{graph}-D{D}`` is ``plan(x, out=y)`` of :func:`bitsparse.plan_spmm` with a weight on every edge; ``spmm-pattern-...``
  is the same without weights. fp32 and tf32 use float32 features with that ``precision=``; fp16 and bf16 use features (and weights) of 16
  bits, summed in float32. Features are normal, weights uniform in 1/2 to 3/2. Graphs are the files of ``cases/graphs.py`` and seeded
  synthetic ones of the sizes of reddit and ogbn-products, made on the GPU. If a file is missing, a synthetic graph stands in for it;
  ``params.source`` then says so, and the graph is not compared with the field.
- The peer is the fastest correct product of cuSPARSE in the same dtype: its algorithms 1 to 3 on row-major features with the analysis done
  beforehand, and in float32 also PyTorch's ``sparse_csr @ dense``. A pattern's peer has weights, as cuSPARSE has no patterns.
- Every result is compared with a float64 product before it is timed: ``params.error`` is the largest difference divided by the square root
  of the row's number of edges.
- Both sides are captured into CUDA graphs of as many calls as fill a millisecond, at most 20, and replayed in turns; a time is the median
  of 15 replays divided by the number of calls (at least 3 replays if one takes long). ``params.replayed`` is false if a side could not be
  captured and was called repeatedly instead.
- ``params.field_ms`` is the best correct entry of ``field-h200.csv`` for this graph, width and precision, times cuSPARSE's float32 time
  here divided by that in the table; ``params.field_ratio`` is ``field_ms`` divided by our time. ``peers/field.py`` says which entries count
  for which precision.
- ``hub-...`` are in ``cases/hubs.py``: a matrix with a row and a column of 30 000 entries against one of the same size without them.
- ``params.gather_ms`` is the time to fetch a row of features per edge at the measured rate of the card; ``params.compulsory_ms`` is the
  time to read all operands and write the result once at 4 TB/s. ``estimate_ms`` is the larger of both if rows are hardly used twice
  (``params.reuse`` below 1.25 edges for each column that a window of 16 rows touches), else ``compulsory_ms``. If rows stay in a cache, a
  product can beat the estimate, by up to 1.7 times; it cannot beat ``floor_ms`` (``ceilings.py``).
- The other cases are in ``cases/edges.py`` and ``cases/synthetic.py``.

``python3 benchmarks/summary.py FILE`` prints means and worst cells of the records.
"""

from __future__ import annotations

from functools import partial

from benchmarks.cases import edges, hubs, synthetic
from benchmarks.cases.products import SYNTHETIC, WIDTHS, product
from benchmarks.gpu_timing import machine
from benchmarks.peers.field import GRAPHS
from bitsparse.bench import Case

__all__ = ["cases", "machine"]

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
#: Real graphs without entries in the field's table.
OTHERS = ("ss_pkustk04", "web_notredame")


def cases(threads: int) -> list[Case]:
    """All cases of the suite, grouped by graph and width, so that operands are built once."""
    table = []
    for name in (*GRAPHS, *OTHERS, *SYNTHETIC):
        for columns in WIDTHS:
            for precision in PRECISIONS[:3] if name in SYNTHETIC else PRECISIONS:
                table.append(Case(f"spmm-{precision}-{name}-D{columns}", partial(product, name, columns, precision)))
            for precision in () if name in SYNTHETIC else ("fp32", "tf32"):
                case = f"spmm-pattern-{precision}-{name}-D{columns}"
                table.append(Case(case, partial(product, name, columns, precision, pattern=True)))
            for module in (edges, synthetic):
                table += module.cases(name, columns)
    return table + hubs.attention_cases()
