"""Suite ``sampled``: sums over sampled edges on a GPU, through the public functions.

This suite differs from the protocol of ``run.py`` in the same points as suite ``spmm`` (graphs, features, replays in turns), and also:

- ``sampled-{strategy}-{graph}-D{D}-W{W}`` is ``plan(x, out=y)`` of :func:`bitsparse.plan_sampled_spmm` of a pattern and float32 features.
  The plan stores its sample; ``params.drawn_ms`` is the time with ``store=False``, which draws in every call, and ``params.csr_ms`` and
  ``params.short_ms`` are the times with the kernels of these names. The peer is our own product of all edges, ``bitsparse.plan_spmm``. The
  prefix ``int8-`` of a strategy means features of 8 bits with one scale and one offset.
- ``params.field_ms`` is ES-SpMM's time for the same strategy and width in ``field-h200.csv``, times cuSPARSE's float32 time here divided
  by that in the table; ``params.field_ratio`` is ``field_ms`` divided by our time. AES is compared with ES-SpMM's accuracy-first strategy,
  because no code of AES-SpMM is public.
- ``proteins39`` is the synthetic graph of that name with 39 561 252 stored entries, as AES-SpMM counts them; the peer is the fastest
  correct product of cuSPARSE over all edges.
- ``params.kept`` is the share of edges that are drawn, counting repeats, and ``params.distinct`` the share that is read; ``estimate_ms`` is
  that of suite ``spmm`` for the latter.
- The other cases have modules of their own in ``cases/``: sums of packed integers over all edges, products of packed integers per edge,
  products that quantise their operands, copies to the GPU, and stochastic rounding.

``python3 benchmarks/summary.py FILE`` prints means and worst cells of the records.
"""

from __future__ import annotations

from functools import partial

from benchmarks.cases import codes, qgemm, rounding, sddmm_codes, transfer
from benchmarks.cases.products import WIDTHS
from benchmarks.cases.sampled import sampled
from benchmarks.cases.sparse_gpu import KINDS
from benchmarks.gpu_timing import machine
from benchmarks.peers.field import GRAPHS
from bitsparse.bench import Case

__all__ = ["cases", "machine"]

SAMPLES = (16, 64, 256)
STRATEGIES = ("sfs", "afs", "aes", "uniform")


def cases(threads: int) -> list[Case]:
    """All cases of the suite, grouped by graph and width, so that operands are built once."""
    table = []
    for name in GRAPHS:
        for columns in WIDTHS:
            for strategy in STRATEGIES:
                for width in SAMPLES:
                    case = f"sampled-{strategy}-{name}-D{columns}-W{width}"
                    table.append(Case(case, partial(sampled, name, columns, strategy, width)))
            case = f"sampled-int8-aes-{name}-D{columns}-W64"
            table.append(Case(case, partial(sampled, name, columns, "aes", 64, bits=8)))
    for kind in KINDS:
        for bits in (None, 8, 4):
            front = "" if bits is None else f"int{bits}-"
            for strategy in ("aes", "uniform"):
                case = f"sampled-{front}{strategy}-proteins39-{kind}-D128-W64"
                table.append(Case(case, partial(sampled, f"proteins39-{kind}", 128, strategy, 64, bits=bits)))
    for module in (codes, sddmm_codes, qgemm, transfer, rounding):
        table += module.cases()
    return table
