"""Cases of suite ``manners`` on a GPU: everyday calls against CuPy's matrices of float32, and ``A @ A`` of booleans.

- ``transpose-...``, ``slice-...``, ``pick-rows-...``, ``sum-1-...``, ``add-...``, ``times-...``, ``diagonal-...``: as on the CPU
  (:mod:`benchmarks.cases.manners_cpu`), on artist and COLLAB. `bytes` is the number of bytes that a call has to read and write, so that
  its time at the memory's rate is the floor; results that share the pattern of `A` need not copy it.
- ``square-bool-...``: ``A @ A`` of booleans against cuSPARSE's product of the same pattern in float32, through CuPy, which has no boolean
  product.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.graphs import graph
from bitsparse import interop, jit
from bitsparse.arrays.inside import with_fields
from bitsparse.bench import Case, Prepared, Protocol, time_interleaved
from bitsparse.errors import DeviceError

__all__ = ["cases", "present"]

GRAPHS = ("artist", "COLLAB")
SQUARED = ("cora", "pubmed", "artist")


def present() -> bool:
    """Whether there is a GPU that CuPy can use."""
    try:
        return bool(interop.require_cupy("benchmarks").cuda.is_available())
    except DeviceError:
        return False


def cases() -> list[Case]:
    """The cases of this file."""
    everyday: dict[str, Callable[[Any, Any], Any]] = {
        "slice-2:5": lambda a, b: a[2:5],
        "slice-rows": lambda a, b: a[1000:20000],
        "slice-columns": lambda a, b: a[:, 1000:20000],
        "pick-rows": lambda a, b: a[some_rows(a.shape[0])],
        "sum-1": lambda a, b: a.sum(axis=1),
        "add": operator.add,
        "times": lambda a, b: a * 2,
        "diagonal": lambda a, b: a.diagonal(),
    }
    table = []
    for name in GRAPHS:
        table.append(Case(f"transpose-{name}", partial(transpose, name)))
        table += [Case(f"{case}-{name}", partial(everyday_call, name, case, call)) for case, call in everyday.items()]
    return table + [Case(f"square-bool-{name}", partial(square, name)) for name in SQUARED]


@cache
def matrix(name: str) -> tuple[Any, str]:
    """A graph as a CuPy matrix of random float32 numbers, and its source."""
    cupy = jit.require_cupy("suite manners")
    from cupyx.scipy import sparse

    data, source = graph(name)
    values = cupy.random.default_rng(0).random(data.indices.size, dtype=np.float32)
    indices, indptr = cupy.asarray(data.indices, dtype=np.int32), cupy.asarray(data.indptr, dtype=np.int32)
    made = sparse.csr_matrix((values, indices, indptr), shape=(data.num_nodes, data.num_nodes))
    made.sum_duplicates()
    return made, source


@cache
def some_rows(size: int) -> Any:
    """The numbers of five thousand random rows, on the GPU."""
    return jit.require_cupy("suite manners").asarray(np.random.default_rng(2).integers(0, size, 5000))


def floor_bytes(case: str, rows: int, nnz: int, made: Any) -> int:
    """Bytes that a call has to move: 4 per index, per value and per row start; `made` is its result.

    Examples
    --------
    >>> floor_bytes("sum-1", 10, 100, None), floor_bytes("times", 10, 100, None)
    (480, 800)
    """
    if case == "sum-1":
        return 4 * (nnz + 2 * rows)
    if case == "times":
        return 8 * nnz
    if case == "diagonal":  # at least one memory sector of each row's columns
        return (8 + 32) * rows
    if case == "transpose":
        return 2 * (8 * nnz + 4 * rows)
    picked = 8 * made.nnz + 4 * made.shape[0]
    return picked + (16 * nnz + 8 * rows if case == "add" else picked)


def pair(ours: Callable[[], Any], peer: Callable[[], Any], params: dict[str, Any], nbytes: int) -> Prepared:
    """Check that both sides agree in positions and values of entries, and prepare them; calls wait for the GPU."""
    cupy = jit.require_cupy("suite manners")
    got, want = ours(), peer()
    if hasattr(want, "tocsr"):
        want = want.tocsr()
        want.sum_duplicates()
        indptr, indices, values = got.csr_arrays()
        same = bool((indptr == want.indptr).all()) and bool((indices == want.indices).all())
        if values.dtype == want.dtype:  # false if ours are booleans
            same = same and bool(cupy.allclose(values, want.data, rtol=1e-4))
    else:
        same = bool(cupy.allclose(cupy.asarray(got).ravel(), cupy.asarray(want).ravel(), rtol=1e-4))
    if not same:
        raise AssertionError("cupyx gives something else")

    def waited(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            call()
            cupy.cuda.runtime.deviceSynchronize()

        return run

    def measure(protocol: Protocol) -> tuple[float, float]:
        ours_ms, peer_ms = time_interleaved([waited(ours), waited(peer)], protocol._replace(pause=0.0, seconds=2.0))
        return ours_ms, peer_ms

    return Prepared(ours, peer, f"cupy {cupy.__version__} cupyx.scipy.sparse float32", params, nbytes, measure=measure)


def everyday_call(name: str, case: str, call: Callable[[Any, Any], Any]) -> Prepared:
    """An everyday call of two arrays; the second is the transpose of the first."""
    theirs, source = matrix(name)
    other = theirs.T.tocsr()
    other.sum_duplicates()
    arrays = bs.TCTiledCSR(theirs), bs.TCTiledCSR(other)
    params = {"graph": source, "nnz": int(theirs.nnz)}
    nbytes = floor_bytes(case, theirs.shape[0], int(theirs.nnz), call(*arrays))
    return pair(lambda: call(*arrays), lambda: call(theirs, other), params, nbytes)


def transpose(name: str) -> Prepared:
    """The transpose and its arrays, of an array that has nothing cached."""
    theirs, source = matrix(name)
    ours = bs.TCTiledCSR(theirs)
    params = {"graph": source, "nnz": int(theirs.nnz)}
    nbytes = floor_bytes("transpose", theirs.shape[0], int(theirs.nnz), None)
    return pair(lambda: with_fields(ours, prepared={}).T, lambda: theirs.T.tocsr(), params, nbytes)


def square(name: str) -> Prepared:
    """The square of a boolean matrix: paths of two edges."""
    theirs, source = matrix(name)
    theirs = theirs.copy()
    theirs.data[:] = 1
    ours = bs.TCTiledCSR(theirs).astype(bool)
    params = {"graph": source, "nnz": int(theirs.nnz)}
    return pair(lambda: ours @ ours, lambda: theirs @ theirs, params, ours.nbytes)
