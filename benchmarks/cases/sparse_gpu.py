"""Shared parts of the cases of suite ``spmm``: graphs on the GPU, their features and float64 results, captured calls, cuSPARSE.

One graph and one width are kept at a time; asking for others drops them and frees their memory.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.graphs import SIZES, file_of, stands_in
from benchmarks.gpu_timing import ours_graph, replay, torch_module, torch_stream
from benchmarks.peers.cusparse import SPMM_ALGORITHMS, SparseProduct
from bitsparse import jit
from bitsparse.datasets import SIZES as PUBLISHED
from bitsparse.datasets import read_npz, synthetic_csr

__all__ = [
    "DTYPES",
    "KINDS",
    "TOLERANCE",
    "Cell",
    "Matrix",
    "Timed",
    "cell_of",
    "check",
    "drop_all",
    "hold",
    "in_turns",
    "matrix_of",
    "vendor_product",
]

KINDS = ("power_law", "communities")
#: The dtype of features for each precision.
DTYPES = {"fp32": "float32", "tf32": "float32", "3xtf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
#: The largest error of a correct result, in units of the square root of the row's edge count: features are about 1, weights 1/2 to 3/2.
TOLERANCE = {"fp32": 2e-5, "tf32": 1.5e-2, "3xtf32": 5e-5, "fp16": 5e-3, "bf16": 3e-2}
#: The most calls in one CUDA graph, and the milliseconds after which fewer suffice.
MOST_CALLS, FILL_MS = 20, 1.0
_ROWS = 1 << 18


class Matrix:
    """The pattern of a graph on the GPU: that with a known name, or given CSR arrays and their source."""

    def __init__(self, name: str, given: tuple[Any, Any, str] | None = None) -> None:
        import bitsparse as bs

        cupy = jit.require_cupy("suite spmm")
        self.name = name
        size, _, kind = name.partition("-")
        made: tuple[Any, Any] | None = None
        if given is not None:
            self.indptr, self.indices, self.source = given
        elif size in PUBLISHED and kind in KINDS:
            made, self.source = (size, kind), f"synthetic {kind} graph of the size of {size}, seed 0"
        elif (path := file_of(name)) is None:
            made, self.source = (SIZES[name][:2], SIZES[name][2]), stands_in(name)
        else:
            data = read_npz(path)
            self.indptr, self.indices, self.source = cupy.asarray(data.indptr), cupy.asarray(data.indices), path.name
        if made is not None:
            self.indptr, self.indices = synthetic_csr(*made, device="cuda")
        rows = int(self.indptr.size) - 1
        self.shape, self.nnz = (rows, rows), int(self.indices.size)
        self.tiled = bs.TCTiledCSR.from_csr_arrays(self.indptr, self.indices, self.shape)
        #: Edges per column that a window of 16 rows touches.
        self.reuse = self.nnz / max(int(self.tiled.cols_indptr[-1].get()), 1)
        self.root = cupy.sqrt(cupy.maximum(cupy.diff(self.indptr), 1).astype(np.float64))[:, None]

    @property
    def is_file(self) -> bool:
        """Whether this is the real graph and not a stand-in."""
        return self.source.endswith(".npz")

    def facts(self) -> dict[str, Any]:
        """Facts about the graph for the record."""
        return {
            "graph": self.name,
            "source": self.source,
            "nodes": self.shape[0],
            "entries": self.nnz,
            "reuse": round(self.reuse, 4),
        }

    @property
    def pattern_bytes(self) -> int:
        """Bytes of the CSR arrays without values."""
        return int(self.indptr.nbytes + self.indices.nbytes)


class Cell:
    """Seeded random features of one width for a matrix, and float64 products; computed when they are first asked for.

    ``coarse`` features and weights are multiples of 1/64, which float16 and bfloat16 hold exactly, so that products of 16-bit features are
    checked against float64 products of exactly the same numbers.
    """

    def __init__(self, matrix: Matrix, columns: int) -> None:
        self.matrix, self.columns = matrix, columns
        self._made: dict[tuple[Any, ...], Any] = {}
        #: The best products of cuSPARSE by dtype, as far as measured.
        self.vendor: dict[str, Timed | None] = {}

    def _once(self, make: Callable[[], Any], *key: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _drawn(self, coarse: bool) -> tuple[Any, Any]:
        cupy = jit.require_cupy("suite spmm")
        random = cupy.random.default_rng(0)
        x = random.standard_normal((self.matrix.shape[1], self.columns), dtype=np.float32)
        values = random.random(self.matrix.nnz, dtype=np.float32) + np.float32(0.5)
        if coarse:
            x = cupy.rint(cupy.clip(x, -2, 2) * 64) / np.float32(64)
            values = cupy.rint(values * 64) / np.float32(64)
        return x.astype(np.float32), values.astype(np.float32)

    def inputs(self, dtype: str, *, pattern: bool = False) -> tuple[Any, Any]:
        """Features and weights of a dtype; weights are None for a pattern."""
        coarse = dtype in ("float16", "bfloat16")
        x, values = self._once(partial(self._drawn, coarse), "drawn", coarse)
        if coarse:
            x, values = (
                self._once(partial(narrow, array, dtype), "narrow", dtype, i) for i, array in enumerate((x, values))
            )
        return x, None if pattern else values

    def reference(self, dtype: str, *, pattern: bool = False) -> Any:
        """The product in float64."""
        return self._once(
            partial(self._reference, dtype, pattern), "reference", dtype in ("float16", "bfloat16"), pattern
        )

    def _reference(self, dtype: str, pattern: bool) -> Any:
        x, values = self.inputs(dtype, pattern=pattern)
        return self.product(widened(x), None if values is None else widened(values))

    def product(self, x: Any, values: Any = None) -> Any:
        """The float64 product of the pattern with other features and weights."""
        cupy = jit.require_cupy("suite spmm")
        matrix = self.matrix
        weights = cupy.ones(matrix.nnz, np.float64) if values is None else values.astype(np.float64)
        out = cupy.full((matrix.shape[0], self.columns), np.nan, np.float64)
        wide = x.astype(np.float64)
        SparseProduct(matrix.indptr, matrix.indices, weights, matrix.shape, wide, out, "ALG2")()
        return out

    def release(self) -> None:
        """Drop all arrays."""
        self._made.clear()
        self.vendor.clear()


_held: dict[str, Any] = {}


def matrix_of(name: str) -> Matrix:
    """The matrix of a graph; it is kept until another one is asked for."""
    held = _held.get("matrix")
    if held is None or held.name != name:
        _let_go("cell", "matrix")
        held = _held["matrix"] = Matrix(name)
    return held


def hold(matrix: Matrix) -> Matrix:
    """Keep this matrix until another one is asked for."""
    drop_all()
    _held["matrix"] = matrix
    return matrix


def cell_of(name: str, columns: int) -> Cell:
    """The cell of a graph and a width; it is kept until another one is asked for."""
    matrix = matrix_of(name)
    held = _held.get("cell")
    if held is None or held.columns != columns or held.matrix is not matrix:
        _let_go("cell")
        held = _held["cell"] = Cell(matrix, columns)
    return held


def drop_all() -> None:
    """Drop all that is kept."""
    _let_go("cell", "matrix")


def _let_go(*names: str) -> None:
    """Drop kept objects and free their memory."""
    cupy, torch = jit.require_cupy("suite spmm"), torch_module()
    if not _held:
        gc.freeze()  # later collections skip all objects that imports created
    for name in names:
        held = _held.pop(name, None)
        if isinstance(held, Cell):
            held.release()
    gc.collect()
    cupy.cuda.runtime.deviceSynchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()


# ---- numbers
def narrow(array: Any, dtype: str) -> Any:
    """Convert float32 numbers to a dtype that should hold them exactly; bfloat16 truncates other numbers."""
    if dtype != "bfloat16":
        return array.astype(dtype, copy=False)
    from ml_dtypes import bfloat16

    return (array.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(bfloat16)


def widened(array: Any) -> Any:
    """The same numbers in a dtype that CuPy computes with."""
    if array.dtype.name != "bfloat16":
        return array
    return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def check(name: str, precision: str, out: Any, reference: Any, root: Any) -> float:
    """The largest error in units of ``root``; an AssertionError if it is too large or not a number."""
    cupy = jit.require_cupy("suite spmm")
    error = 0.0
    for first in range(0, out.shape[0], _ROWS):
        rows = slice(first, first + _ROWS)
        part = cupy.abs(widened(out[rows]).astype(np.float64) - reference[rows]) / root[rows]
        error = float(np.maximum(error, part.max().get())) if part.size else error
    if not error <= TOLERANCE[precision]:
        raise AssertionError(
            f"{name}: the result is wrong, error {error:.2e} but {TOLERANCE[precision]:.0e} is allowed"
        )
    return error


# ---- calls
class Timed:
    """A call captured several times into a CUDA graph, or called directly if it cannot be captured; ``replayed`` says which.

    Parameters
    ----------
    call : callable
        Enqueues work on the current stream of CuPy and PyTorch.
    name : str
    capture : callable or None
        Makes a graph from a list of calls: ``ours_graph``, or ``torch_graph`` for calls that allocate with PyTorch.
    """

    def __init__(
        self,
        call: Callable[[], object],
        name: str,
        capture: Callable[[Sequence[Callable[[], object]]], Callable[[], object]] | None = ours_graph,
    ) -> None:
        self.call, self.name, self.ms = call, name, float("nan")
        cupy = jit.require_cupy("suite spmm")
        cupy.cuda.runtime.deviceSynchronize()  # operands were made on another stream
        estimate = replay([partial(_repeated, call, 1)], 3)[0]
        self.calls = max(1, min(MOST_CALLS, int(FILL_MS / max(estimate, 1e-4))))
        self.replayed = False
        self.launch: Callable[[], object] = partial(_repeated, call, self.calls)
        # Memory that a call allocates while it is captured belongs to the graph as long as the graph lives.
        self._pool = cupy.cuda.MemoryPool()
        if capture is not None:
            try:
                with cupy.cuda.using_allocator(self._pool.malloc):
                    self.launch = capture([call] * self.calls)
                self.replayed = True
            except Exception as error:
                print(f"{name}: not captured, {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)


def _repeated(call: Callable[[], object], times: int) -> None:
    with torch_stream():
        for _ in range(times):
            call()


def in_turns(timed: Sequence[Timed], repetitions: int) -> list[float]:
    """Median milliseconds per call, measured in turns; long calls are repeated less often."""
    once = replay([one.launch for one in timed], 1)
    times = max(3, min(repetitions, int(600 / max(sum(once), 1e-3))))
    found = replay([one.launch for one in timed], times)
    return [ms / one.calls for ms, one in zip(found, timed, strict=True)]


def vendor_product(cell: Cell, precision: str) -> Timed | None:
    """The fastest correct product of cuSPARSE for a dtype, among all algorithms and, in float32, PyTorch's call; measured once per cell.

    None if no product is correct.
    """
    dtype = DTYPES[precision]
    if dtype in cell.vendor:
        return cell.vendor[dtype]
    cupy = jit.require_cupy("suite spmm")
    matrix, (x, values) = cell.matrix, cell.inputs(dtype)
    reference = cell.reference(dtype)
    strict = "fp32" if dtype == "float32" else precision
    found: list[Timed] = []
    failed = []
    for algorithm in SPMM_ALGORITHMS:
        out = cupy.zeros((matrix.shape[0], cell.columns), np.uint32 if dtype == "float32" else np.uint16).view(x.dtype)
        try:
            product = SparseProduct(matrix.indptr, matrix.indices, values, matrix.shape, x, out, algorithm)
            product()
            check(f"cuSPARSE {algorithm}", strict, out, reference, matrix.root)
            found.append(Timed(product, f"cuSPARSE {algorithm} {dtype}"))
        except (RuntimeError, AssertionError) as error:
            failed.append(f"{algorithm}: {error}")
    if dtype == "float32":
        found += _torch_product(matrix, x, values, reference)
    if not found:
        print(f"{matrix.name}, {dtype}: no product of cuSPARSE is right: {'; '.join(failed)}", file=sys.stderr)
        cell.vendor[dtype] = None
        return None
    for one, ms in zip(found, in_turns(found, 5), strict=True):
        one.ms = ms
    best = cell.vendor[dtype] = min(found, key=lambda one: one.ms)
    return best


def _torch_product(matrix: Matrix, x: Any, values: Any, reference: Any) -> list[Timed]:
    """PyTorch's product; it allocates its result, so it is not captured."""
    cupy, torch = jit.require_cupy("suite spmm"), torch_module()
    arrays = [torch.from_dlpack(array) for array in (matrix.indptr, matrix.indices, values, x)]
    sparse = torch.sparse_csr_tensor(*arrays[:3], size=matrix.shape)
    name = f"torch {torch.__version__} sparse_csr @ dense"
    try:
        check(name, "fp32", cupy.from_dlpack(sparse @ arrays[3]), reference, matrix.root)
        return [Timed(lambda: sparse @ arrays[3], name, None)]
    except (RuntimeError, AssertionError) as error:
        print(f"{name}: {error}".splitlines()[0], file=sys.stderr)
        return []
