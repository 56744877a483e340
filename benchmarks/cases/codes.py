"""Cases of suite ``sampled`` that sum packed integers over all edges.

``codes-spmm-int{bits}-{graph}-D{D}`` is ``plan(codes, out=y)`` of :func:`bitsparse.plan_spmm` of a pattern and unsigned integers of 8, 4 or
2 bits in rows layout: exact int32 sums, compared number for number with a float64 product. ``codes-spmm-int{bits}-out-...`` is the same
followed by an :class:`bitsparse.Epilogue` that scales, adds a bias, applies relu and requantises to the same number of bits, packed along
the features (some of the rows are compared with the host's); ``codes-spmm-int{bits}-weighted-...`` has a float32 weight on every edge, so
its sums are float32. The peer is our own product of the same pattern (and weights) with float32 features, so the ratio shows the gain from
narrow features; graphs have more than a million edges. ``codes-spmm-int8-heads-{graph}-H4x32`` sums signed integers, gathered packed
(``kernel="codes"``), with a float32 weight for each edge and head, against float32 features with the same weights; ``params.tunings_us``
are the times of other layouts of a row in the same kernel, and ``params.unpacked_ms`` is the time if integers are unpacked first.
``estimate_ms`` is that of suite ``spmm`` for rows of the same number of bytes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.products import SYNTHETIC
from benchmarks.cases.sparse_gpu import TOLERANCE, Cell, Timed, cell_of, check, in_turns
from benchmarks.ceilings import gather_bounds
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["GRAPHS", "cases"]

GRAPHS = ("artist", "DD", "COLLAB", "web_notredame", "ss_pkustk04", *SYNTHETIC)
WIDTHS = (128, 256)
BITS = (8, 4, 2)
#: Graphs with requantised and weighted sums.
MORE = ("artist", "COLLAB")
#: Heads of the sums with a weight for each edge and head, and features of a head.
HEADS, HEAD_COLUMNS = 4, 32
#: Words per lane and lanes per row, in the layouts that are timed for these sums.
CUTS = ((4, 8), (2, 16), (1, 32))
#: The number of rows of requantised sums that are compared with the host's.
_ROWS = 4096


def cases() -> list[Case]:
    """All cases, grouped by graph and width, so that operands are built once."""
    table = []
    for name in GRAPHS:
        for columns in WIDTHS:
            for bits in BITS:
                table.append(Case(f"codes-spmm-int{bits}-{name}-D{columns}", partial(sums, name, columns, bits)))
            for bits in (8, 4) if name in MORE else ():
                for form in ("out", "weighted"):
                    case = f"codes-spmm-int{bits}-{form}-{name}-D{columns}"
                    table.append(Case(case, partial(sums, name, columns, bits, form)))
        table.append(Case(f"codes-spmm-int8-heads-{name}-H{HEADS}x{HEAD_COLUMNS}", partial(weighted_heads, name)))
    return table


def weighted_heads(name: str) -> Prepared:
    """Sums of signed 8-bit integers with a weight for each edge and head, in one pass."""
    import bitsparse as bs
    from bitsparse.backends.cuda.csr.schedule import Schedule
    from bitsparse.backends.cuda.csr.sums import Tuning
    from bitsparse.backends.cuda.spmm.codes import CodeSum
    from bitsparse.backends.params import CodeSumKind

    cupy = jit.require_cupy("suite sampled")
    case, columns = f"codes-spmm-int8-heads-{name}-H{HEADS}x{HEAD_COLUMNS}", HEADS * HEAD_COLUMNS
    cell = cell_of(name, columns)
    matrix, random = cell.matrix, cupy.random.default_rng(3)
    shape = (matrix.shape[0], HEADS, HEAD_COLUMNS)
    drawn = (random.integers(0, 255, (matrix.shape[1], *shape[1:]), dtype=np.uint8).astype(np.int16) - 127).astype(
        np.int8
    )
    codes = bs.BitTensor(drawn, 8, encoding="signed", layout="rows")
    weights = random.random((matrix.nnz, HEADS), dtype=np.float32) + np.float32(0.5)
    a = matrix.tiled.with_values(weights)
    calls, results = [], []
    for kernel in ("codes", None):
        plan = bs.plan_spmm(a, HEAD_COLUMNS, heads=HEADS, bits=8, encoding="signed", kernel=kernel)
        out = cupy.full(shape, np.nan, np.float32)
        plan(codes, out=out)
        calls.append(partial(plan, codes, out=out))
        results.append(out)
    x = drawn.astype(np.float32)
    whole, float_out = bs.plan_spmm(a, HEAD_COLUMNS, heads=HEADS), cupy.full(shape, np.nan, np.float32)
    whole(x, out=float_out)
    for what, out in (("unpacked", results[1]), ("float32", float_out)):
        # The tolerance is for features of about 1, but codes are as large as 2**7.
        far = float((abs(results[0] - out).reshape(shape[0], -1) / matrix.root.astype(np.float32)).max().get()) / 128
        if not far <= TOLERANCE["fp32"]:
            raise AssertionError(f"{case}: sums of codes and {what} ones differ by {far:.2e}")
    timed = [Timed(call, case) for call in calls] + [Timed(partial(whole, x, out=float_out), "float32")]
    kind = CodeSumKind(8, "signed", HEAD_COLUMNS, HEADS, weights="float32", per_head=True)
    walk = Schedule(matrix.indptr, matrix.indices, matrix.shape, matrix.nnz)
    for words, lanes in CUTS:
        product = CodeSum(walk, kind, tuning=Tuning(words, lanes))
        timed.append(
            Timed(
                partial(product, codes.words, weights, None, cupy.empty(product.shape, np.float32)), f"{words}x{lanes}"
            )
        )
    moved = int(matrix.pattern_bytes + codes.words.nbytes + float_out.nbytes + weights.nbytes)
    limits, more = gather_bounds(matrix.nnz, columns, matrix.shape[1], moved, matrix.reuse)
    params = matrix.facts() | more | {"heads": HEADS, "D": HEAD_COLUMNS, "bits": 8, "form": "heads"}
    params["replayed"] = timed[0].replayed and timed[2].replayed

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, unpacked, float_ms, *cuts = in_turns(timed, protocol.repetitions)
        params["unpacked_ms"] = unpacked
        params["tunings_us"] = {one.name: round(1e3 * cut, 2) for one, cut in zip(timed[3:], cuts, strict=True)}
        return ms, float_ms

    return Prepared(
        lambda: None, None, "bitsparse.plan_spmm, float32 features", params, moved, *limits, measure=measure
    )


def sums(name: str, columns: int, bits: int, form: str = "") -> Prepared:
    """Sums of packed integers against sums of float32 features."""
    import bitsparse as bs

    cupy = jit.require_cupy("suite sampled")
    case = f"codes-spmm-int{bits}-{f'{form}-' if form else ''}{name}-D{columns}"
    cell = cell_of(name, columns)
    matrix = cell.matrix
    x, values = cell.inputs("float32", pattern=form != "weighted")
    drawn = cupy.random.default_rng(3).integers(0, 1 << bits, x.shape, dtype=np.uint8)
    codes = bs.BitTensor(drawn, bits, layout="rows")
    a = matrix.tiled if values is None else matrix.tiled.with_values(values)
    shape = (matrix.shape[0], columns)
    options: dict[str, Any] = {"bits": bits}
    out: Any = None
    if form == "out":
        options["epilogue"] = epilogue_of(matrix.indptr.get(), columns, bits)
    else:
        out = cupy.full(shape, -1, np.int32) if form == "" else cupy.full(shape, np.nan, np.float32)
    plan = bs.plan_spmm(a, columns, **options)
    made = plan(codes, out=out)
    if form == "out":
        out = made
        _compare_with_host(case, cell, drawn, bits, made)
    elif form == "weighted":
        # The tolerance is for features of about 1, but codes are as large as 2**bits.
        check(case, "fp32", made / np.float32(1 << bits), cell.product(drawn, values) / (1 << bits), matrix.root)
    elif not bool((made == cell.product(drawn)).all()):
        raise AssertionError(f"{case}: a sum of integers is wrong")
    ours = Timed(partial(plan, codes, out=out), case)
    whole = bs.plan_spmm(a, columns)
    float_out = cupy.empty(shape, np.float32)
    peer = Timed(partial(whole, x, out=float_out), "bitsparse.plan_spmm, float32 features")
    row_bytes = int(codes.words.shape[-1]) * 4
    written = int(out.nbytes)
    moved = int(matrix.pattern_bytes + codes.words.nbytes + written + (0 if values is None else values.nbytes))
    limits, more = gather_bounds(matrix.nnz, row_bytes, matrix.shape[1], moved, matrix.reuse)
    params = matrix.facts() | more | {"D": columns, "bits": bits, "form": form or "sums", "plan": plan.explain()}
    params["replayed"] = ours.replayed and peer.replayed

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, float_ms = in_turns([ours, peer], protocol.repetitions)
        return ms, float_ms

    return Prepared(lambda: None, None, peer.name, params, moved, *limits, measure=measure)


def epilogue_of(indptr: Any, columns: int, bits: int) -> Any:
    """The epilogue of a quantised layer: a mean, a bias, relu, and requantisation to the same number of bits."""
    import bitsparse as bs

    scale = (1 / np.maximum(np.diff(indptr), 1)).astype(np.float32)
    bias = np.random.default_rng(4).standard_normal(columns, dtype=np.float32)
    return bs.Epilogue(row_scale=scale, bias=bias, activation="relu", bits=bits, out_scale=1.0, axis=-1, layout="rows")


def _compare_with_host(case: str, cell: Cell, drawn: Any, bits: int, made: Any) -> None:
    """Compare the codes of the first rows with the host's."""
    import bitsparse as bs

    matrix, rows = cell.matrix, min(_ROWS, cell.matrix.shape[0])
    starts = matrix.indptr[: rows + 1].get()
    part = bs.TCTiledCSR.from_csr_arrays(starts, matrix.indices[: int(starts[-1])].get(), (rows, matrix.shape[1]))
    options: dict[str, Any] = {"epilogue": epilogue_of(starts, cell.columns, bits)}
    wanted = bs.spmm(part, bs.BitTensor(drawn.get(), bits, layout="rows"), **options)
    if not bool((made[:rows].words.get() == wanted.words).all()):
        raise AssertionError(f"{case}: codes differ from the host's")
