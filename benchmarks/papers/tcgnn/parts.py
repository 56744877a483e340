"""What ``papers/tcgnn/program.py`` measures on a GPU: Figure 8, Tables 5 and 6 of TC-GNN."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.products import planned
from benchmarks.cases.sparse_gpu import Cell, Matrix, Timed, cell_of, hold, in_turns, vendor_product
from benchmarks.gpu_timing import machine
from benchmarks.papers.tcgnn.tiles import GRAPHS
from bitsparse import jit
from bitsparse.bench import Record

__all__ = ["measurements"]

#: Columns of the features in the paper's Table 4, for the graphs of Table 5.
TABLE_5 = {"amazon0505": 96, "artist": 100, "com-amazon": 96, "soc-BlogCatalog": 128, "amazon0601": 96}
#: Columns of a hidden layer of GCN in the paper, and the epochs that its Figure 8 sets the translation against.
HIDDEN, EPOCHS = 16, 200
#: Dense blocks of 16 x 16 in each window of rows, and the size of the matrix, of the paper's Table 6.
BLOCKS, BLOCK, SIZE = (1, 2, 4, 8, 16, 32), 16, 4096


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """A name and a measurement for each line of a part."""
    if part == "figure-8":
        for name in GRAPHS:
            yield f"{part}-{name}", partial(translation, part, name, commit, repetitions)
    elif part == "table-5":
        for name, columns in TABLE_5.items():
            for width in (columns, HIDDEN):
                yield f"{part}-{name}-D{width}", partial(product, part, name, width, commit, repetitions)
    else:
        for blocks in BLOCKS:
            yield f"{part}-{blocks}", partial(sparsity, part, blocks, commit, repetitions)


def both(case: str, cell: Cell, repetitions: int) -> dict[str, Any]:
    """Milliseconds of our pattern's product in both precisions and of cuSPARSE's."""
    sides: dict[str, Timed] = {}
    facts: dict[str, Any] = {}
    for precision in ("fp32", "tf32"):
        sides[precision], params, _ = planned(f"{case}-{precision}", cell, precision, pattern=True)
        facts[f"{precision}_kernel"] = params["kernel"]
    vendor = vendor_product(cell, "fp32")
    if vendor is not None:
        sides["vendor"] = vendor
        facts["vendor"] = vendor.name
    times = in_turns(list(sides.values()), repetitions)
    return facts | {f"{name}_ms": ms for name, ms in zip(sides, times, strict=True)}


def record(part: str, case: str, cell: Cell, found: dict[str, Any], commit: str | None) -> dict[str, Any]:
    """A record with our faster precision as ours."""
    matrix = cell.matrix
    params = {"part": part, "D": cell.columns} | matrix.facts() | found
    ours = min(found["fp32_ms"], found["tf32_ms"])
    moved = matrix.pattern_bytes + 8 * matrix.shape[0] * cell.columns
    made = Record("tcgnn", case, params, ours, found.get("vendor"), found.get("vendor_ms"), moved, machine(1, commit))
    return made.flat()


def product(part: str, name: str, columns: int, commit: str | None, repetitions: int) -> dict[str, Any]:
    """One line of Table 5."""
    case = f"{part}-{name}-D{columns}"
    cell = cell_of(name, columns)
    return record(part, case, cell, both(case, cell, repetitions), commit)


def translation(part: str, name: str, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Translation against the aggregations of a training: two layers, forward and backward, in each of 200 epochs."""
    cupy = jit.require_cupy("tcgnn")
    case = f"{part}-{name}"
    cell = cell_of(name, HIDDEN)
    matrix, samples = cell.matrix, []
    for _ in range(1 + min(repetitions, 9)):
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        bs.TCTiledCSR.from_csr_arrays(matrix.indptr, matrix.indices, matrix.shape)
        cupy.cuda.runtime.deviceSynchronize()
        samples.append(1e3 * (time.perf_counter() - start))
    found = both(case, cell, repetitions) | {"translate_ms": median(samples[1:])}
    aggregations = 4 * EPOCHS * min(found["fp32_ms"], found["tf32_ms"])
    found |= {"epochs": EPOCHS, "share": found["translate_ms"] / (found["translate_ms"] + aggregations)}
    return record(part, case, cell, found, commit)


def sparsity(part: str, blocks: int, commit: str | None, repetitions: int) -> dict[str, Any]:
    """One line of Table 6: dense blocks at random places of each window of rows."""
    cupy = jit.require_cupy("tcgnn")
    case = f"{part}-{blocks}"
    rng = np.random.default_rng(0)
    places = np.stack([np.sort(rng.permutation(SIZE // BLOCK)[:blocks]) for _ in range(SIZE // BLOCK)])
    columns = (places[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(-1, 1, blocks * BLOCK)
    indices = np.broadcast_to(columns, (SIZE // BLOCK, BLOCK, blocks * BLOCK)).reshape(-1).astype(np.int32)
    indptr = np.arange(0, indices.size + 1, blocks * BLOCK, dtype=np.int32)
    source = f"{blocks} dense blocks in each window, seed 0"
    matrix = hold(Matrix(case, (cupy.asarray(indptr), cupy.asarray(indices), source)))
    cell = cell_of(case, HIDDEN)
    found = both(case, cell, repetitions)
    flops = 2 * matrix.nnz * HIDDEN
    rates = {name.replace("_ms", "_gflops"): flops / ms / 1e6 for name, ms in found.items() if name.endswith("_ms")}
    return record(part, case, cell, found | rates | {"blocks": blocks, "sparsity": 1 - matrix.nnz / SIZE**2}, commit)
