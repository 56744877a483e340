"""Suite ``binary``: aggregation and products with one-bit operands on a GPU, whole binary networks, and their memory.

Where this suite differs from the protocol of ``run.py``:

- ``bspmm-{letters}-{graph}-D{D}`` is ``plan(x, out=y)`` of ``bitsparse.plan_bspmm``; the letters stand for activation, adjacency and output
  (B one bit, F floats). One-bit features are packed beforehand, as the previous layer leaves them, and edges have no weights if the
  adjacency is B. Graphs are those of ``suites/spmm.py``.
- The peer of ``bbb`` and ``bbf`` (and of cases with weights) is the fastest correct float32 product of cuSPARSE with the same number of
  columns. The peer of ``fbf`` and ``fbb`` is our own float32 product of the pattern; for ``fbb``, ``params.packed_ms`` is that product
  followed by our sign-and-pack. ``params.vendor_ms`` is cuSPARSE's time in all cases (for ``fbf`` and ``fbb`` measured beforehand).
- Counters are compared with exact sums, and bits with the signs of these; bits of float sums may differ if the sum is closer to 0 than the
  rounding error of float32 sums (``params.differ`` counts those).
- Both sides are replayed as CUDA graphs in turns (see ``suites/spmm.py``).
- ``params.gather_ms`` is the time to fetch a row of features for each edge at the measured rate of the card, with one bit or four bytes
  per feature. ``estimate_ms`` is the larger of it and ``compulsory_ms`` if rows are hardly used twice, else ``compulsory_ms``. If rows stay
  in a cache, a product can beat the estimate; it cannot beat ``floor_ms`` (``ceilings.py``).
- ``hub-...`` are in ``cases/hubs.py``: a matrix with a row and a column of 30 000 entries against one of the same size without them.
- ``bmm-...``, ``papers-...``, ``frdc-...``, ``gcn-...``: see their modules in ``cases/``.

``python3 benchmarks/summary.py FILE`` prints means and worst cells of the records.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases import bmm, gcn, hubs, large
from benchmarks.cases.binary_gpu import (
    Features,
    check_bits,
    explained,
    features_of,
    function,
    poison,
    slack_of,
    spmm_and_pack,
    spmm_plan,
)
from benchmarks.cases.sparse_gpu import KINDS, Timed, check, in_turns, vendor_product
from benchmarks.ceilings import gather_bounds
from benchmarks.gpu_timing import machine
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["cases", "machine"]

GRAPHS = ("artist", "soc_slashdot0902", "COLLAB")
SYNTHETIC = tuple(f"reddit-{kind}" for kind in KINDS)
WIDTHS = (64, 128, 256)
#: Letters measured on every graph and width; synthetic graphs beyond BBB, and weighted edges (first graph only), have a single width.
LETTERS = ("BBB", "BBF", "FBF", "FBB")
WEIGHTED = ("BFB", "BFF", "FFB", "FFF")
ONE_WIDTH = 128


def cases(threads: int) -> list[Case]:
    """All cases of the suite, grouped by graph and width, so that operands are built once."""
    table = []
    for name in (*GRAPHS, *SYNTHETIC):
        for columns in WIDTHS:
            for letters in LETTERS:
                if letters == "BBB" or columns == ONE_WIDTH or name in GRAPHS:
                    table.append(case_of(letters, name, columns))
            if name == GRAPHS[0] and columns == ONE_WIDTH:
                table += [case_of(letters, name, columns) for letters in WEIGHTED]
            if name == GRAPHS[-1] and columns == ONE_WIDTH:
                frdc = partial(aggregation, "BBB", name, columns, frdc=True)
                table.append(Case(f"bspmm-bbb-frdc-{name}-D{columns}", frdc))
    for module in (bmm, gcn, large):
        table += module.cases()
    return table + hubs.binary_cases()


def case_of(letters: str, name: str, columns: int) -> Case:
    """The case of a variant, a graph and a width."""
    return Case(f"bspmm-{letters.lower()}-{name}-D{columns}", partial(aggregation, letters, name, columns))


def aggregation(letters: str, name: str, columns: int, *, frdc: bool = False) -> Prepared:
    """One variant against its peer."""
    plan_of = function("plan_bspmm")
    case = f"bspmm-{letters.lower()}-{'frdc-' if frdc else ''}{name}-D{columns}"
    features = features_of(name, columns)
    cell, matrix = features.cell, features.cell.matrix
    weighted = letters[1] == "F"
    values = cell.inputs("float32")[1] if weighted else None
    a: Any = matrix.tiled if values is None else matrix.tiled.with_values(values)
    if frdc:
        a = bs.FRDC.from_csr_arrays(matrix.indptr, matrix.indices, matrix.shape)
    x = features.bits if letters[0] == "B" else features.floats
    plan = plan_of(a, columns, letters, dtype=None if letters[0] == "B" else features.floats.dtype)
    out = plan(x)
    poison(out)
    plan(x, out=out)
    params = matrix.facts() | {"D": columns, "letters": letters, "weighted": weighted, "frdc": frdc} | explained(plan)
    params |= checked(case, letters, features, out, values)
    ours = Timed(partial(plan, x, out=out), case)
    params["replayed"] = ours.replayed
    vendor, peers = vendor_product(cell, "fp32"), []
    if letters[0] == "F" and not weighted:
        peers.append(Timed(spmm_plan(cell)[0], "bitsparse spmm float32, pattern"))
        if letters == "FBB":
            peers.append(spmm_and_pack(cell))
    elif vendor is not None:
        peers.append(vendor)
    row_bytes = 4 * columns if letters[0] == "F" else -(-columns // 8)
    moved = int(matrix.pattern_bytes + x.nbytes + out.nbytes + (0 if values is None else values.nbytes))
    limits, more = gather_bounds(matrix.nnz, row_bytes, matrix.shape[1], moved, matrix.reuse)
    params |= more

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        ms, *others = in_turns([ours, *peers], protocol.repetitions)
        params["vendor_ms"] = vendor and vendor.ms
        if peers and peers[0] is vendor:
            params["vendor_ms"] = others[0]
        if len(others) > 1:
            params["packed_ms"] = others[1]
        return ms, others[0] if others else None

    name_of_peer = peers[0].name if peers else None
    return Prepared(lambda: None, None, name_of_peer, params, moved, *limits, measure=measure)


def checked(case: str, letters: str, features: Features, out: Any, values: Any) -> dict[str, Any]:
    """Check a result and return its errors for the record; an AssertionError if it is wrong."""
    cupy = jit.require_cupy("suite binary")
    cell, matrix = features.cell, features.cell.matrix
    if letters[:2] == "BB":
        if letters == "BBF":
            if out.dtype != np.int32 or not bool((out == features.sums).all()):
                raise AssertionError(f"{case}: the counters are wrong")
            return {"error": 0.0}
        return {"differ": check_bits(case, out.words, features.sums)}
    if letters[0] == "F":
        reference = cell.reference("float32", pattern=values is None)
    else:
        signs = cupy.where(features.floats >= 0, np.float32(1), np.float32(-1))
        reference = cell.product(signs, values)
    if letters[2] == "F":
        return {"error": check(case, "fp32", out, reference, matrix.root)}
    return {"differ": check_bits(case, out.words, reference, slack_of(matrix))}
