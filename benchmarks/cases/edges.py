"""Cases of suite ``spmm`` that compute per edge: sampled products and attention.

``sddmm-fp32-{graph}-D{D}`` is :func:`bitsparse.sddmm` into a given array, and ``sddmm-tf32-...`` the same with TF32 allowed. For both, the
peer is ``cusparseSDDMM`` in float32, in the faster of two forms. The field is that of ``op = sddmm`` in ``field-h200.csv``, scaled by
cuSPARSE's times here and in the table.

``gat-fp32-{graph}-H4x32`` is :func:`bitsparse.attention` with 4 heads of 32 columns, ``agnn-fp32-{graph}-D{D}`` is
``bitsparse.cosine_attention``. The peer is what PyTorch users write: scores by gathers (GAT) or ``torch.sparse.sampled_addmm`` of
normalised features (AGNN), leaky relu, a softmax from ``scatter_reduce`` and ``index_add``, and a product of a CSR matrix for each head.
All of it is captured into one graph if PyTorch can (``params.peer_replayed``). Both results are compared with the same steps in float64.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmarks.cases.sparse_gpu import Cell, Matrix, Timed, cell_of, in_turns
from benchmarks.ceilings import gather_bounds
from benchmarks.gpu_timing import torch_graph, torch_module
from benchmarks.peers.cusparse import SDDMM_FORMS, SampledProduct
from benchmarks.peers.field import GRAPHS, field_ms
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol, Unavailable

OTHERS = ("ss_pkustk04", "web_notredame")
HEADS, HEAD_COLUMNS, SLOPE = 4, 32, 0.2
AGNN_WIDTHS = (16, 128)
PRECISIONS: tuple[Literal["fp32"], Literal["tf32"]] = ("fp32", "tf32")
#: Largest errors: of a dot product, divided by the square root of its length, and of a weighted mean of numbers of about 1.
DOT_TOLERANCE, MEAN_TOLERANCE = {"fp32": 2e-5, "tf32": 1e-2}, 1e-4
_EDGES = 1 << 20


def cases(name: str, columns: int) -> list[Case]:
    """The cases of one graph and one width."""
    found = []
    if name in GRAPHS + OTHERS:
        for precision in PRECISIONS:
            found.append(Case(f"sddmm-{precision}-{name}-D{columns}", partial(dots, name, columns, precision)))
    if name in GRAPHS and columns == HEADS * HEAD_COLUMNS:
        found.append(Case(f"gat-fp32-{name}-H{HEADS}x{HEAD_COLUMNS}", partial(gat, name)))
    if name in GRAPHS and columns in AGNN_WIDTHS:
        found.append(Case(f"agnn-fp32-{name}-D{columns}", partial(agnn, name, columns)))
    return found


# ---- sampled products
def dots(name: str, columns: int, precision: Literal["fp32", "tf32"]) -> Prepared:
    """Dot products of both ends of every edge."""
    import bitsparse as bs

    cupy = jit.require_cupy("suite spmm")
    cell = cell_of(name, columns)
    matrix, case = cell.matrix, f"sddmm-{precision}-{name}-D{columns}"
    y, _ = cell.inputs("float32", pattern=True)
    x = y[::-1].copy()
    out = cupy.full(matrix.nnz, np.nan, np.float32)
    reference = exact_dots(matrix, x, y)

    def error_of(what: str, got: Any, precision: str = "fp32") -> float:
        error = float(cupy.abs(got - reference).max().get()) / math.sqrt(columns)
        if not error <= DOT_TOLERANCE[precision]:
            raise AssertionError(f"{what}: the result is wrong, error {error:.2e}")
        return error

    call = partial(bs.sddmm, matrix.tiled, x, y, precision=precision, out=out)
    call()
    error = error_of(case, out, precision)
    ours = Timed(call, case)
    peers = []
    for form in SDDMM_FORMS:
        try:
            into = cupy.zeros(matrix.nnz, np.float32)
            peer = SampledProduct(matrix.indptr, matrix.indices, matrix.shape, x, y, into, form)
            peer()
            error_of(f"cuSPARSE, {form}", peer.out)
            peers.append(Timed(peer, f"cuSPARSE SDDMM, {form}"))
        except (RuntimeError, AssertionError) as reason:
            print(f"{case}: {reason}", file=sys.stderr)
    if not peers:
        raise RuntimeError(f"{case}: no sampled product of cuSPARSE is right")
    vendor = min(zip(in_turns(peers, 5), peers, strict=True), key=lambda pair: pair[0])[1]
    moved = int(matrix.pattern_bytes + x.nbytes + y.nbytes + out.nbytes)
    limits, more = gather_bounds(matrix.nnz, 4 * columns, matrix.shape[1], moved, matrix.reuse)
    params = matrix.facts() | {"D": columns, "precision": precision, "error": error, "replayed": ours.replayed}
    params |= more | {"vendor": vendor.name, "flops": 2 * matrix.nnz * columns}

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, vendor_ms = in_turns([ours, vendor], protocol.repetitions)
        found = field_ms(name, columns, "fp32", vendor_ms, op="sddmm") if matrix.is_file else None
        if found is not None:
            params.update(field_ms=found[0], field_ratio=found[0] / ms, field=found[1])
        return ms, vendor_ms

    return Prepared(lambda: None, None, vendor.name, params, moved, *limits, measure=measure)


def edge_rows(matrix: Matrix) -> Any:
    """The row of every edge, int64."""
    cupy = jit.require_cupy("suite spmm")
    return cupy.searchsorted(matrix.indptr[1:], cupy.arange(matrix.nnz, dtype=matrix.indptr.dtype), side="right")


def exact_dots(matrix: Matrix, x: Any, y: Any) -> Any:
    """Dot products in float64, computed for a part of the edges at a time."""
    cupy = jit.require_cupy("suite spmm")
    rows, out = edge_rows(matrix), cupy.empty(matrix.nnz, np.float64)
    for first in range(0, matrix.nnz, _EDGES):
        part = slice(first, first + _EDGES)
        left, right = (array.astype(np.float64) for array in (x[rows[part]], y[matrix.indices[part]]))
        out[part] = (left * right).sum(axis=1)
    return out


# ---- attention
def gat(name: str) -> Prepared:
    """Graph attention with several heads."""
    import bitsparse as bs

    cupy = jit.require_cupy("suite spmm")
    cell, case = cell_of(name, HEADS * HEAD_COLUMNS), f"gat-fp32-{name}-H{HEADS}x{HEAD_COLUMNS}"
    matrix = cell.matrix
    x = cell.inputs("float32", pattern=True)[0].reshape(-1, HEADS, HEAD_COLUMNS)
    scores = cupy.random.default_rng(1).standard_normal((2, matrix.shape[0], HEADS), dtype=np.float32)
    source, target = scores[0].copy(), scores[1].copy()
    peer = PyTorch(matrix)
    params = matrix.facts() | {"heads": HEADS, "D": HEAD_COLUMNS, "slope": SLOPE}
    return attention(
        case,
        cell,
        partial(bs.attention, matrix.tiled, x, source, target, negative_slope=SLOPE),
        partial(peer.gat, *map(torch_module().from_dlpack, (x, source, target))),
        x,
        int(source.nbytes + target.nbytes),
        params,
    )


def agnn(name: str, columns: int) -> Prepared:
    """Attention by the cosine of both ends."""
    import bitsparse as bs

    ours = getattr(bs, "cosine_attention", None)
    if ours is None:
        raise Unavailable("there is no bitsparse.cosine_attention")
    cell, case = cell_of(name, columns), f"agnn-fp32-{name}-D{columns}"
    x, _ = cell.inputs("float32", pattern=True)
    peer = PyTorch(cell.matrix)
    call = partial(peer.agnn, torch_module().from_dlpack(x))
    params = cell.matrix.facts() | {"D": columns}
    return attention(case, cell, partial(ours, cell.matrix.tiled, x), call, x, 0, params)


def attention(
    case: str,
    cell: Cell,
    ours: Callable[..., object],
    theirs: Callable[..., Any],
    x: Any,
    more_bytes: int,
    params: dict[str, Any],
) -> Prepared:
    """One pass of ours against PyTorch's steps; ``theirs(dtype)`` computes in that dtype."""
    cupy, torch = jit.require_cupy("suite spmm"), torch_module()
    out = cupy.full(x.shape, np.nan, np.float32)
    ours(out=out)
    exact = theirs(torch.float64)
    for what, got in ((case, torch.from_dlpack(out)), ("PyTorch", theirs(torch.float32))):
        error = float((got.reshape(exact.shape) - exact).abs().max())
        if not error <= MEAN_TOLERANCE:
            raise AssertionError(f"{what}: the result is wrong, error {error:.2e}")
        params.setdefault("error", error)
    del exact, got
    mine = Timed(partial(ours, out=out), case)
    peer = Timed(partial(theirs, torch.float32), "PyTorch", torch_graph)
    params |= {"precision": "fp32", "replayed": mine.replayed, "peer_replayed": peer.replayed}
    matrix = cell.matrix
    moved = int(matrix.pattern_bytes + 2 * x.nbytes + more_bytes)
    limits, more = gather_bounds(matrix.nnz, 4 * cell.columns, matrix.shape[1], moved, matrix.reuse)
    params |= more

    def measure(protocol: Protocol) -> tuple[float, float]:
        times = in_turns([mine, peer], protocol.repetitions)
        return times[0], times[1]

    name = f"torch {torch.__version__}, scatter softmax and CSR products"
    return Prepared(lambda: None, None, name, params, moved, *limits, measure=measure)


class PyTorch:
    """Attention in PyTorch's own steps; the rows and columns of the edges are prepared beforehand."""

    def __init__(self, matrix: Matrix) -> None:
        torch = torch_module()
        self.nodes = matrix.shape[0]
        self.indptr, self.indices = torch.from_dlpack(matrix.indptr), torch.from_dlpack(matrix.indices)
        self.rows, self.cols = torch.from_dlpack(edge_rows(matrix)), self.indices.long()

    def csr(self, values: Any) -> Any:
        """A sparse matrix with the graph's pattern and these values."""
        size = (self.nodes, self.nodes)
        return torch_module().sparse_csr_tensor(self.indptr, self.indices, values, size=size, check_invariants=False)

    def softmax(self, scores: Any) -> Any:
        """Softmax over the edges of each row; scores are (edges, heads)."""
        torch = torch_module()
        shape, index = (self.nodes, scores.shape[1]), self.rows[:, None].expand_as(scores)
        highest = torch.full(shape, -math.inf, dtype=scores.dtype, device=scores.device)
        highest.scatter_reduce_(0, index, scores, "amax")
        powers = (scores - highest[self.rows]).exp()
        total = torch.zeros(shape, dtype=scores.dtype, device=scores.device).index_add_(0, self.rows, powers)
        return powers / total[self.rows]

    def gat(self, x: Any, source: Any, target: Any, dtype: Any) -> Any:
        """Attention of features (nodes, heads, columns)."""
        torch = torch_module()
        x, source, target = (array.to(dtype) for array in (x, source, target))
        scores = torch.nn.functional.leaky_relu(source[self.cols] + target[self.rows], SLOPE)
        weights = self.softmax(scores)
        heads = [self.csr(weights[:, h].contiguous()) @ x[:, h].contiguous() for h in range(x.shape[1])]
        return torch.stack(heads, 1)

    def agnn(self, x: Any, dtype: Any) -> Any:
        """Attention by cosines of features (nodes, columns)."""
        torch = torch_module()
        x = x.to(dtype)
        unit = torch.nn.functional.normalize(x, dim=1)
        pattern = self.csr(torch.zeros(self.cols.shape, dtype=dtype, device=x.device))
        scores = torch.sparse.sampled_addmm(pattern, unit, unit.t(), beta=0.0).values()
        return self.csr(self.softmax(scores[:, None])[:, 0]) @ x
