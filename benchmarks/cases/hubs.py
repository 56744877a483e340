"""The cost of a hub: a graph with one very long row and column, against a graph of the same size without them.

``hub-{kernel}`` is one call on a random pattern of 100 000 nodes and 700 000 entries, in which one row and one column have 30 000 each; the
peer is the same call on a pattern of the same size whose entries are all random. The ratio is 1 if long rows cost nothing. Both results
are checked: sums of bits against counts in NumPy, attention against float64 steps on some rows, including the hub's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.sparse_gpu import Matrix, Timed, in_turns
from benchmarks.ceilings import bounds
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["attention_cases", "binary_cases", "pattern"]

NODES, ENTRIES, HUB = 100_000, 700_000, 30_000
HEADS, HEAD_COLUMNS, SLOPE = 4, 32, 0.2
TOLERANCE = 1e-4


def pattern(hubs: bool, seed: int = 0) -> tuple[Any, Any]:
    """The arrays indptr and indices of a pattern, int32, with ascending entries in every row.

    Examples
    --------
    >>> indptr, indices = pattern(True)
    >>> int(np.diff(indptr).max()), int(np.bincount(indices).max()), indices.size
    (30000, 30000, 700000)
    """
    rng = np.random.default_rng(seed)
    # The last row and column are the hub's and hold only its entries; both include the corner.
    keys = np.empty(0, np.int64)
    inner = NODES - 1 if hubs else NODES
    some = np.empty(0, np.int64)
    if hubs:
        row = rng.choice(inner, HUB - 1, replace=False)
        column = rng.choice(inner, HUB - 1, replace=False)
        last = np.int64(NODES - 1)
        some = np.concatenate([last * NODES + row, column * NODES + last, [last * NODES + last]])
    while keys.size < ENTRIES - some.size:
        more = rng.integers(0, inner, (ENTRIES, 2))
        keys = np.unique(np.concatenate([keys, more[:, 0] * NODES + more[:, 1]]))
    keys = np.sort(np.concatenate([rng.permutation(keys)[: ENTRIES - some.size], some]))
    indptr = np.searchsorted(keys, np.arange(NODES + 1, dtype=np.int64) * NODES)
    return indptr.astype(np.int32), (keys % NODES).astype(np.int32)


def binary_cases() -> list[Case]:
    """The cases that sum one-bit features."""
    letters = [("BBB", columns) for columns in (64, 128, 256)] + [("BBF", 128)]
    return [Case(f"hub-bspmm-{name.lower()}-D{columns}", partial(binary, name, columns)) for name, columns in letters]


def attention_cases() -> list[Case]:
    """The cases of fused attention and of sums of floats."""
    return [
        Case(f"hub-gat-H{HEADS}x{HEAD_COLUMNS}", gat),
        *(Case(f"hub-agnn-D{columns}", partial(agnn, columns)) for columns in (16, 64, 128)),
        *(Case(f"hub-spmm-fp32-D{columns}", partial(sums, columns)) for columns in (16, 64, 128)),
    ]


def matrices() -> list[Matrix]:
    """The matrices with a hub and without."""
    cupy = jit.require_cupy("hubs")
    found = []
    for hubs in (True, False):
        indptr, indices = (cupy.asarray(part) for part in pattern(hubs))
        found.append(Matrix("hub" if hubs else "even", (indptr, indices, "synthetic, drawn by a seed")))
    return found


def prepared(name: str, calls: list[Any], moved: int, params: dict[str, Any]) -> Prepared:
    """The call on the pattern with a hub against that on the other."""
    timed = [Timed(call, name) for call in calls]
    params |= {"nodes": NODES, "entries": ENTRIES, "hub": HUB, "replayed": timed[0].replayed}

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, even = in_turns(timed, protocol.repetitions)
        return ms, even

    return Prepared(lambda: None, None, "the same without hubs", params, moved, *bounds(moved), measure=measure)


def binary(letters: str, columns: int) -> Prepared:
    """Sums of bits, as bits or as integers."""
    cupy = jit.require_cupy("hubs")
    floats = cupy.random.default_rng(0).standard_normal((NODES, columns), dtype=np.float32)
    x, calls, params = bs.pack_bits(floats, encoding="bipolar"), [], {"D": columns, "letters": letters}
    signs = np.where(floats.get() >= 0, 1, -1)
    moved = 0
    for matrix in matrices():
        plan = bs.plan_bspmm(matrix.tiled, columns, letters)
        out = plan(x)
        indptr, indices = matrix.indptr.get(), matrix.indices.get()
        got = out.toarray().get() if letters[2] == "B" else out.get()
        for row in (NODES - 1, 0, 1, 17):
            want = signs[indices[indptr[row] : indptr[row + 1]]].sum(axis=0)
            if letters[2] == "B":
                want = np.where(want >= 0, 1, -1)
            if not np.array_equal(got[row], want):
                raise AssertionError(f"hub-bspmm-{letters.lower()}-D{columns}: row {row} is wrong")
        calls.append(partial(plan, x, out=out))
        params |= {f"{matrix.name}_plan": str(plan.explain()).splitlines()[-1]}
        moved = int(matrix.pattern_bytes + x.nbytes + out.nbytes)
    return prepared(f"hub-bspmm-{letters.lower()}-D{columns}", calls, moved, params)


def checked(name: str, matrix: Matrix, got: Any, scores: Any, x: Any) -> None:
    """Compare some rows of weighted means, (N, heads, D), with float64; ``scores(row, columns)`` gives (edges, heads)."""
    indptr, indices, got = matrix.indptr.get(), matrix.indices.get(), got.get()
    for row in (NODES - 1, 0, 1, 17):
        columns = indices[indptr[row] : indptr[row + 1]]
        weights = scores(row, columns).astype(np.float64)
        weights = np.exp(weights - weights.max(axis=0, initial=-np.inf))
        weights /= weights.sum(axis=0)
        want = (weights[:, :, None] * x[columns].astype(np.float64)).sum(axis=0)
        if len(columns) and not np.abs(got[row] - want).max() <= TOLERANCE:
            raise AssertionError(f"{name}: row {row} is wrong")


def gat() -> Prepared:
    """Attention by scores."""
    cupy = jit.require_cupy("hubs")
    random = cupy.random.default_rng(0)
    x = random.standard_normal((NODES, HEADS, HEAD_COLUMNS), dtype=np.float32)
    source, target = (random.standard_normal((NODES, HEADS), dtype=np.float32) for _ in range(2))
    name, calls, moved = f"hub-gat-H{HEADS}x{HEAD_COLUMNS}", [], 0
    left, right, features = target.get(), source.get(), x.get()

    def scores(row: int, columns: Any) -> Any:
        sums = left[row] + right[columns]
        return np.where(sums < 0, np.float32(SLOPE) * sums, sums)

    for matrix in matrices():
        out = cupy.full(x.shape, np.nan, np.float32)
        call = partial(bs.attention, matrix.tiled, x, source, target, negative_slope=SLOPE, out=out)
        call()
        checked(name, matrix, out, scores, features)
        calls.append(call)
        moved = int(matrix.pattern_bytes + 2 * x.nbytes + 2 * source.nbytes)
    return prepared(name, calls, moved, {"heads": HEADS, "D": HEAD_COLUMNS})


def _cosines(unit: Any, row: int, at: Any) -> Any:
    """Cosines of one row with others; all rows must have length 1."""
    return (unit[at] @ unit[row])[:, None]


def agnn(columns: int) -> Prepared:
    """Attention by cosines."""
    cupy = jit.require_cupy("hubs")
    x = cupy.random.default_rng(0).standard_normal((NODES, columns), dtype=np.float32)
    name, calls, moved, features = f"hub-agnn-D{columns}", [], 0, x.get()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for matrix in matrices():
        out = cupy.full(x.shape, np.nan, np.float32)
        call = partial(bs.cosine_attention, matrix.tiled, x, out=out)
        call()
        checked(name, matrix, out[:, None], partial(_cosines, unit), features[:, None])
        calls.append(call)
        moved = int(matrix.pattern_bytes + 2 * x.nbytes)
    return prepared(name, calls, moved, {"D": columns})


def sums(columns: int) -> Prepared:
    """Sums of float32 features."""
    cupy = jit.require_cupy("hubs")
    x = cupy.random.default_rng(0).standard_normal((NODES, columns), dtype=np.float32)
    name, calls, moved, features = f"hub-spmm-fp32-D{columns}", [], 0, x.get().astype(np.float64)
    for matrix in matrices():
        plan = bs.plan_spmm(matrix.tiled, columns, precision="fp32", dtype=x.dtype)
        out = plan(x)
        indptr, indices, got = matrix.indptr.get(), matrix.indices.get(), out.get()
        for row in (NODES - 1, 0):
            want = features[indices[indptr[row] : indptr[row + 1]]].sum(axis=0)
            if not np.abs(got[row] - want).max() <= TOLERANCE * max(1.0, np.sqrt(indptr[row + 1] - indptr[row])):
                raise AssertionError(f"{name}: row {row} is wrong")
        calls.append(partial(plan, x, out=out))
        moved = int(matrix.pattern_bytes + x.nbytes + out.nbytes)
    return prepared(name, calls, moved, {"D": columns})
