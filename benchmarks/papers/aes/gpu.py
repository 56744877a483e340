"""The measurements of AES-SpMM on a GPU: sampled products against cuSPARSE, and the share of copying the features."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.sampled import held, sampled_reference
from benchmarks.cases.sparse_gpu import Timed, check, in_turns, vendor_product
from benchmarks.gpu_timing import machine, torch_graph, torch_module
from benchmarks.papers.aes.parts import PAPERS, WIDTHS
from bitsparse import jit
from bitsparse.bench import Record
from bitsparse.ops.sampling.sample import Strategy

__all__ = ["measured"]

#: Width of the products of Figure 7, and hidden units of Table 3.
COLUMNS = 64
#: Features and classes of the paper's graphs.
SHAPES = {
    "cora": (1433, 7),
    "pubmed": (500, 3),
    "arxiv": (128, 40),
    "proteins39": (8, 112),
    "reddit": (602, 41),
    "products": (100, 47),
}
#: The sides that Figure 7 compares: strategy, and bits of features (None: float32).
SIDES: tuple[tuple[Strategy, int | None], ...] = (("aes", None), ("aes", 8), ("afs", None), ("sfs", None))


def measured(part: str, name: str, commit: str | None, repetitions: int) -> Iterator[dict[str, Any]]:
    """Yield the records of one graph."""
    yield from {"figure-7": figure_7, "table-3": table_3}[part](name, commit, repetitions)


def operand_of(name: str, columns: int) -> tuple[Any, Any]:
    """The graph's cell and its pattern with the factors ``D^-1/2`` on both sides."""
    cupy = jit.require_cupy("aes")
    cell = held(name if PAPERS[name] == "file" else f"{name}-communities", columns)
    degrees = cupy.maximum(cupy.diff(cell.matrix.indptr), 1)
    factor = (1 / cupy.sqrt(degrees.astype(np.float64))).astype(np.float32)
    return cell, cell.matrix.tiled.with_scales(factor, factor)


def figure_7(name: str, commit: str | None, repetitions: int) -> Iterator[dict[str, Any]]:
    """Stored samples of every width and strategy against cuSPARSE's product of all edges."""
    import bitsparse as bs

    cupy = jit.require_cupy("aes")
    cell, operand = operand_of(name, COLUMNS)
    matrix, x = cell.matrix, cell.inputs("float32", pattern=True)[0]
    codes = bs.quantize(x, 8, layout="rows")
    out = cupy.empty((matrix.shape[0], COLUMNS), np.float32)
    vendor = vendor_product(cell, "fp32")
    if vendor is None:
        raise RuntimeError(f"figure-7-{name}: no product of cuSPARSE is right")
    sides, facts = [], []
    for strategy, bits in SIDES:
        for width in WIDTHS:
            case = f"figure-7-{name}-{strategy}{'' if bits is None else f'-int{bits}'}-W{width}"
            features = x if bits is None else codes
            plan = bs.plan_sampled_spmm(operand, COLUMNS, width, strategy)
            sample = bs.edge_sample(operand, width, strategy)
            out.fill(np.nan)
            plan(features, out)
            exact = sampled_reference(cell, sample.tocsr(), x if bits is None else codes.dequantize())
            error = check(case, "fp32", out, exact, matrix.root)
            sides.append(Timed(partial(plan, features, out), case))
            facts.append({"strategy": strategy, "bits": bits, "width": width, "kept": sample.rate, "error": error})
            del sample, exact
    *times, vendor_ms = in_turns([*sides, vendor], repetitions)
    for side, params, ms in zip(sides, facts, times, strict=True):
        params = (
            {"part": "figure-7"} | matrix.facts() | {"graph": name, "D": COLUMNS, "replayed": side.replayed} | params
        )
        where = machine(1, commit)
        yield Record("aes", side.name, params, ms, vendor.name, vendor_ms, 0, where).flat()


def table_3(name: str, commit: str | None, repetitions: int) -> Iterator[dict[str, Any]]:
    """Copying the features, and inference of a two-layer GCN: float32 features with AFS, and 8-bit features with AES."""
    import cupyx

    import bitsparse as bs

    cupy, torch = jit.require_cupy("aes"), torch_module()
    cell, operand = operand_of(name, COLUMNS)
    nodes, (inputs, classes) = cell.matrix.shape[0], SHAPES[name]
    random = cupy.random.default_rng(0)
    x = random.standard_normal((nodes, inputs), dtype=np.float32)
    codes = bs.quantize(x, 8, layout="rows")
    weights = [random.standard_normal(shape, dtype=np.float32) for shape in ((inputs, COLUMNS), (COLUMNS, classes))]
    hidden = cupy.zeros((nodes, COLUMNS), np.float32)
    results = [cupy.empty((nodes, weights[i].shape[1]), np.float32) for i in (0, 1)]

    def product(a: Any, b: Any, into: Any) -> Timed:
        parts = [torch.from_dlpack(array) for array in (a, b)]
        return Timed(partial(torch.matmul, *parts, out=torch.from_dlpack(into)), "torch.matmul", torch_graph)

    def copy(array: Any) -> Timed:
        source = cupyx.empty_pinned(array.shape, array.dtype)
        source[...] = array.get()
        target = cupy.empty_like(array)

        def run() -> None:
            target.set(source, stream=cupy.cuda.get_current_stream())

        return Timed(run, "copy", None)

    torch.backends.cuda.matmul.allow_tf32 = False
    dense = [product(x, weights[0], results[0]), product(hidden, weights[1], results[1])]
    decoded = Timed(codes.dequantize, "dequantize")
    loads = {None: copy(x), 8: copy(codes.words)}
    plans: dict[tuple[Any, int], list[Timed]] = {}
    compared: tuple[tuple[int | None, Strategy], ...] = ((None, "afs"), (8, "aes"))
    for bits, strategy in compared:
        for width in WIDTHS:
            made = []
            for out in results:
                plan = bs.plan_sampled_spmm(operand, out.shape[1], width, strategy)
                features = cupy.zeros_like(out)
                plan(features, out)
                made.append(Timed(partial(plan, features, out), f"{strategy} of width {width}"))
            plans[bits, width] = made
    everything = [*dense, decoded, *loads.values(), *(one for pair in plans.values() for one in pair)]
    times = dict(zip(everything, in_turns(everything, repetitions), strict=True))
    for (bits, width), pair in plans.items():
        compute = sum(times[one] for one in (*dense, *pair, *([decoded] if bits else [])))
        load = times[loads[bits]]
        params = {"part": "table-3"} | cell.matrix.facts() | {"graph": name, "bits": bits, "width": width}
        params |= {"inputs": inputs, "classes": classes, "compute_ms": compute, "share": load / (load + compute)}
        moved = int(x.nbytes if bits is None else codes.words.nbytes)
        case = f"table-3-{name}-{'float32' if bits is None else f'int{bits}'}-W{width}"
        yield Record("aes", case, params, load, None, None, moved, machine(1, commit)).flat()
