"""Measure TC-GNN's products on a GPU for ``papers/tcgnn/program.py``: Tables 1, 5 and 6, Figures 6c, 9 and 10."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.binary_gpu import torch_product
from benchmarks.cases.products import planned
from benchmarks.cases.sparse_gpu import Cell, Matrix, Timed, cell_of, check, hold, in_turns, vendor_product
from benchmarks.gpu_timing import machine, torch_graph
from benchmarks.papers.tcgnn.tables import WARPS_OF_A_BLOCK
from benchmarks.papers.tcgnn.tiles import GRAPHS, TILES
from benchmarks.peers.cusparse import BLOCKED_FORMS, BlockedProduct, Blocks
from bitsparse import jit
from bitsparse.backends.cuda.spmm.tiles import Tiles
from bitsparse.bench import Record, Unavailable

__all__ = ["HIDDEN", "both", "layers", "measurements", "record"]

#: The graphs of the paper's Tables 1 and 5.
TABLE_1 = ("cora", "citeseer", "pubmed")
TABLE_5 = tuple(name for name, data in GRAPHS.items() if data.kind == "III")
#: Columns of a hidden layer of GCN in the paper, and the numbers of columns in its Figure 10.
HIDDEN, WIDTHS = 16, (16, 32, 64, 128, 256)
#: For the paper's Table 6: numbers of dense blocks in each window of rows, the size of a block (16 x 16), and the size of the matrix.
BLOCKS, BLOCK, SIZE = (1, 2, 4, 8, 16, 32), 16, 4096
#: The size of a block in cuSPARSE's blocked product, as in the paper, and the most bytes that its matrix may take here.
BLOCKED, MOST_BYTES = 32, 24_000_000_000
_Measurement = tuple[str, Callable[[], dict[str, Any]]]


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[_Measurement]:
    """Yield a name and a measurement for each line of a part."""
    how: dict[str, tuple[Callable[..., dict[str, Any]], list[tuple[Any, ...]]]] = {
        "table-1": (profile, layers()),
        "table-5": (product, [(name, width) for name in TABLE_5 for width in (GRAPHS[name].columns, HIDDEN)]),
        "table-6": (sparsity, [(blocks,) for blocks in BLOCKS]),
        "figure-6c": (blocked, [(name,) for name in GRAPHS]),
        "figure-9": (warps, [(name,) for name in TABLE_5]),
        "figure-10": (product, [(name, width) for name in TABLE_5 for width in WIDTHS]),
    }
    measure, lines = how[part]
    for line in lines:
        name, *width = line
        case = f"{part}-{name}{''.join(f'-D{columns}' for columns in width)}"
        yield case, partial(measure, part, case, *line, commit, repetitions)


def layers() -> list[tuple[str, int]]:
    """List Table 1's graphs with the columns that a GCN layer sums: the features', or those of their product with the weights."""
    return [(name, columns) for name in TABLE_1 for columns in (GRAPHS[name].columns, HIDDEN)]


def both(case: str, cell: Cell, repetitions: int, *more: Timed) -> dict[str, Any]:
    """Measure our product of a pattern in both precisions, cuSPARSE's product, and ``more`` sides by their names."""
    sides: dict[str, Timed] = {}
    facts: dict[str, Any] = {}
    for precision in ("fp32", "tf32"):
        sides[precision], params, _ = planned(f"{case}-{precision}", cell, precision, pattern=True)
        facts[f"{precision}_kernel"] = params["kernel"]
    vendor = vendor_product(cell, "fp32")
    if vendor is not None:
        sides["vendor"] = vendor
        facts["vendor"] = vendor.name
    sides |= {one.name: one for one in more}
    times = in_turns(list(sides.values()), repetitions)
    found = {f"{name}_ms": ms for name, ms in zip(sides, times, strict=True)}
    flops = 2 * cell.matrix.nnz * cell.columns
    return facts | found | {name.replace("_ms", "_gflops"): flops / ms / 1e6 for name, ms in found.items()}


def record(part: str, case: str, cell: Cell, found: dict[str, Any], commit: str | None) -> dict[str, Any]:
    """Return a record that counts our faster precision as ours."""
    matrix = cell.matrix
    params = {"part": part, "D": cell.columns} | matrix.facts() | found
    ours = min(found["fp32_ms"], found["tf32_ms"])
    moved = matrix.pattern_bytes + 8 * matrix.shape[0] * cell.columns
    made = Record("tcgnn", case, params, ours, found.get("vendor"), found.get("vendor_ms"), moved, machine(1, commit))
    return made.flat()


def product(part: str, case: str, name: str, columns: int, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Measure one line of Table 5, or one point of Figure 10."""
    cell = cell_of(name, columns)
    return record(part, case, cell, both(case, cell, repetitions), commit)


def profile(part: str, case: str, name: str, columns: int, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Measure a GCN layer: the aggregation of ``columns`` columns, and the product of features and weights with TF32 allowed."""
    cupy = jit.require_cupy("tcgnn")
    cell = cell_of(name, columns)
    random = cupy.random.default_rng(3)
    shapes = (cell.matrix.shape[0], GRAPHS[name].columns), (GRAPHS[name].columns, HIDDEN)
    x, weights = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    found = both(case, cell, repetitions, Timed(torch_product(x, weights, pack=False), "update", torch_graph))
    del found["update_gflops"]  # wrong: the aggregation's operations in the update's time
    for who, ms in (("ours", min(found["fp32_ms"], found["tf32_ms"])), ("vendor", found.get("vendor_ms"))):
        if ms is not None:
            found[f"{who}_share"] = ms / (ms + found["update_ms"])
    return record(part, case, cell, found, commit)


def blocked(part: str, case: str, name: str, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Compare our aggregation with cuSPARSE's blocked product, and give the share of edges among the entries that each multiplies."""
    cupy = jit.require_cupy("tcgnn")
    cell = cell_of(name, HIDDEN)
    found = with_blocks(case, cell, BLOCKED, repetitions)
    matrix = cell.matrix
    tall, wide = TILES["spmm"]
    tiles = int((-(-cupy.diff(matrix.tiled.cols_indptr) // wide)).sum().get())
    found |= {"kind": GRAPHS[name].kind, "tiles_share": matrix.nnz / (tiles * tall * wide)}
    return record(part, case, cell, found, commit)


def with_blocks(case: str, cell: Cell, size: int, repetitions: int) -> dict[str, Any]:
    """Measure our products, cuSPARSE's, and its blocked product in the fastest layout of features that gives a correct result."""
    matrix, (x, _) = cell.matrix, cell.inputs("float32", pattern=True)
    reference, found = cell.reference("float32", pattern=True), []
    try:
        blocks = Blocks(matrix.indptr, matrix.indices, matrix.shape, size, MOST_BYTES)
    except Unavailable as reason:
        return both(case, cell, repetitions) | {"blocked_missing": str(reason)}
    for form in BLOCKED_FORMS:
        try:
            one = BlockedProduct(blocks, x, form)
            one()
            check(f"{case}, {form}", "tf32", one.out[: matrix.shape[0]], reference, matrix.root)
            found.append(Timed(one, form))
        except (RuntimeError, AssertionError) as error:
            print(f"{case}: not {form}, {error}", file=sys.stderr)
    facts = {"block": size, "blocks_of_a_row": blocks.columns.shape[1], "blocked_bytes": int(blocks.values.nbytes)}
    if not found:
        return both(case, cell, repetitions) | facts | {"blocked_missing": "no result is right"}
    best = min(zip(in_turns(found, 3), found, strict=True), key=lambda pair: pair[0])[1]
    facts |= {"blocked_form": best.name, "blocked_share": matrix.nnz / blocks.values.size}
    best.name = "blocked"
    return both(case, cell, repetitions, best) | facts


def warps(part: str, case: str, name: str, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Measure the tensor core kernel with different numbers of warps in a block, and the kernel that the library chooses."""
    cupy = jit.require_cupy("tcgnn")
    cell = cell_of(name, HIDDEN)
    matrix, (x, _) = cell.matrix, cell.inputs("float32", pattern=True)
    reference, sides = cell.reference("float32", pattern=True), []
    for count in WARPS_OF_A_BLOCK:
        tiles = Tiles(matrix.indptr, matrix.indices, matrix.shape, matrix.nnz, warps=count)
        out = cupy.full((matrix.shape[0], HIDDEN), np.nan, np.float32)
        call = partial(tiles.run, x, out=out)
        call()
        check(f"{case}, {count} warps", "tf32", out, reference, matrix.root)
        sides.append(Timed(call, f"warps_{count}"))
    found = both(case, cell, repetitions, *sides)
    windows = -(-matrix.shape[0] // TILES["spmm"][0])
    return record(part, case, cell, found | {"edges_of_a_window": matrix.nnz / windows}, commit)


def sparsity(part: str, case: str, blocks: int, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Measure one line of Table 6: dense blocks at random places in each window of rows."""
    cupy = jit.require_cupy("tcgnn")
    rng = np.random.default_rng(0)
    places = np.stack([np.sort(rng.permutation(SIZE // BLOCK)[:blocks]) for _ in range(SIZE // BLOCK)])
    columns = (places[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(-1, 1, blocks * BLOCK)
    indices = np.broadcast_to(columns, (SIZE // BLOCK, BLOCK, blocks * BLOCK)).reshape(-1).astype(np.int32)
    indptr = np.arange(0, indices.size + 1, blocks * BLOCK, dtype=np.int32)
    source = f"{blocks} dense blocks in each window, seed 0"
    matrix = hold(Matrix(case, (cupy.asarray(indptr), cupy.asarray(indices), source)))
    cell = cell_of(case, HIDDEN)
    found = with_blocks(case, cell, BLOCK, repetitions)
    return record(part, case, cell, found | {"blocks": blocks, "sparsity": 1 - matrix.nnz / SIZE**2}, commit)
