"""Sums of one-bit features: over edges and over FRDC's tiles, and tunings of the sum over edges.

Times are those of ``plan_bspmm`` (BBB and BBF) of CSR, which the library sums edge by edge, and of FRDC with the kernel over tiles forced,
for 64 to 512 features. Team sizes, edges in flight and blocks per multiprocessor are varied around the library's own choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import bitsparse as bs
from benchmarks.cases.binary_gpu import features_of
from benchmarks.cases.sparse_gpu import Timed, in_turns
from benchmarks.fit.fitting import Fit, Row
from bitsparse.backends.cuda.binary import bspmm_params
from bitsparse.backends.cuda.binary.bspmm import BinarySum
from bitsparse.backends.cuda.csr.schedule import Schedule

__all__ = ["FITS", "GRAPHS", "measured"]

GRAPHS = ("artist", "soc_slashdot0902", "COLLAB", "DD", "reddit-power_law", "reddit-communities")
WIDTHS = (64, 128, 256, 512)
REPETITIONS = 9


#: No rates are fitted, because no choice depends on an estimate.
FITS: tuple[Fit, ...] = ()


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of both forms and of tunings, by graph and width."""
    for name in GRAPHS:
        for features in WIDTHS:
            for letters in ("BBB", "BBF"):
                case = f"{name}-D{features}-{letters}"
                if any(part in case for part in only):
                    yield from forms(case, name, features, letters)
            if any(part in f"{name}-D{features}-tunings" for part in only):
                yield from tunings(f"{name}-D{features}-tunings", name, features)


def forms(case: str, name: str, features: int, letters: Any) -> Iterator[Row]:
    """The sum over edges, which the library uses, and that over tiles."""
    held = features_of(name, features)
    matrix, x = held.cell.matrix, held.bits
    frdc = bs.FRDC.from_csr_arrays(matrix.indptr, matrix.indices, matrix.shape)
    facts: dict[str, Any] = {
        "features": features,
        "rows": matrix.shape[0],
        "nnz": matrix.nnz,
        "tiles": int(frdc.tiles.size),
    }
    facts["output"] = "bits" if letters == "BBB" else "int32"
    timed = []
    for kernel, a in (("csr", matrix.tiled), ("frdc", frdc)):
        plan = bs.plan_bspmm(a, features, letters, kernel=kernel if kernel == "frdc" else None)
        timed.append(Timed(partial(plan, x, out=plan(x)), kernel))
    for one, ms in zip(timed, in_turns(timed, REPETITIONS), strict=True):
        yield Row(case, one.name, facts | {"kernel": one.name}, 1e3 * ms, one.name == "csr")


def tunings(case: str, name: str, features: int) -> Iterator[Row]:
    """Variations of the library's choice of team, edges in flight and blocks, for integer results."""
    held = features_of(name, features)
    matrix = held.cell.matrix
    schedule = Schedule(matrix.indptr, matrix.indices, matrix.shape, matrix.nnz)
    taken = bspmm_params.tuning_of(matrix.shape[0], matrix.nnz, features)
    others = [taken._replace(unroll=unroll, blocks=blocks) for unroll in (4, 8, 16) for blocks in (4, 5, 6)]
    # If rows are divided into windows, the team is bound to these.
    others += [taken._replace(team=team) for team in (2, 4, 8, 16) if not taken.window]
    timed = []
    for tuning in dict.fromkeys((taken, *others)):
        sums = BinarySum(schedule, features=features, bipolar=True, tuning=tuning)
        described = f"team {tuning.team}, unroll {tuning.unroll}, {tuning.blocks} blocks"
        timed.append(Timed(partial(sums, held.bits.words, sums(held.bits.words)), described))
    for i, (one, ms) in enumerate(zip(timed, in_turns(timed, REPETITIONS), strict=True)):
        yield Row(case, one.name, {}, 1e3 * ms, i == 0)
