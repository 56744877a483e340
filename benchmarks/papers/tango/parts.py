"""Measure TANGO's operations: products that quantise their operands, sums of edges, products of several heads, sampled products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.edges import edge_rows
from benchmarks.cases.graphs import graph
from benchmarks.cases.sparse_gpu import Matrix, Timed, in_turns
from benchmarks.gpu_timing import machine, torch_graph, torch_module
from bitsparse import jit
from bitsparse.bench import Record, Unavailable
from bitsparse.datasets import SIZES, synthetic_csr
from bitsparse.errors import BitsparseError

__all__ = ["GRAPHS", "measurements"]

#: The paper's graphs, as (nodes, entries): both directions of every edge are stored. None: the graph is read from its file.
GRAPHS: dict[str, tuple[int, int] | None] = {
    "pubmed": None,
    "dblp": (317_080, 2_099_732),
    "amazon": (410_236, 6_713_648),
    "arxiv": SIZES["arxiv"],
    "products": SIZES["products"],
}
CACHED_WIDTHS = (128, 256)
GEMM_WIDTHS = (256, 512)
EDGE_FEATURES = (4, 8, 12, 16, 20)
HEADS = ((2, 128), (4, 128), (2, 256), (4, 256))
SPMV_FEATURES = (2, 4, 6, 8, 10, 12)
SDDMM_HEADS = (4, 64)
#: The most bytes that one operand or result may take.
_MOST = 24_000_000_000
#: Largest allowed error of a sum of numbers near one, divided by the square root of their count.
TOLERANCE = 3e-5
_Record = dict[str, Any]


def measurements(
    part: str, commit: str | None, repetitions: int
) -> Iterator[tuple[str, Callable[[], Iterable[_Record]]]]:
    """Yield a name and a measurement for each graph of a part."""
    makers: dict[str, Callable[[Part], Iterable[_Record]]] = {
        "figure-10": figure_10,
        "figure-11": figure_11,
        "figure-13a": figure_13a,
        "figure-13b": figure_13b,
        "figure-14": figure_14,
        "figure-15": figure_15,
        "figure-16": figure_16,
    }
    for name in ("arxiv",) if part == "figure-14" else GRAPHS:
        yield f"{part}-{name}", partial(_measured, makers[part], part, name, commit, repetitions)


def _measured(
    make: Callable[[Part], Iterable[_Record]], part: str, graph: str, commit: str | None, repetitions: int
) -> Iterable[_Record]:
    return make(Part(part, graph, commit, repetitions))


class Part:
    """A part on one graph: measures several sides in turns and records the first against one of the others."""

    def __init__(self, part: str, graph: str, commit: str | None, repetitions: int) -> None:
        self.part, self.graph, self.repetitions = part, graph, repetitions
        self.machine = machine(1, commit)

    @property
    def matrix(self) -> Matrix:
        """The graph on the GPU; only the last one is kept."""
        return matrix_of(self.graph)

    def times(self, sides: Sequence[Timed]) -> list[float]:
        """Return the milliseconds of one call of each side."""
        return in_turns(sides, self.repetitions)

    def record(
        self, case: str, params: _Record, ms: float, peer: str | None, peer_ms: float | None, moved: int
    ) -> _Record:
        """Return a record of this part."""
        facts = {"part": self.part} | self.matrix.facts() | {"graph": self.graph} | params
        name = f"{self.part}-{self.graph}-{case}"
        return Record("tango", name, facts, ms, peer, peer_ms, moved, self.machine).flat()


_held: dict[str, Matrix] = {}


def matrix_of(name: str) -> Matrix:
    """Return a graph of the paper; only the last one is kept."""
    if name not in _held:
        cupy = jit.require_cupy("tango")
        _held.clear()
        cupy.get_default_memory_pool().free_all_blocks()
        size = GRAPHS[name]
        if size is None:
            data, source = graph(name)
            arrays = cupy.asarray(data.indptr), cupy.asarray(data.indices)
        else:
            arrays = synthetic_csr(size, "communities", device="cuda")
            source = f"synthetic communities graph of {size[0]} nodes and {size[1]} entries, seed 0"
        _held[name] = Matrix(name, (*arrays, source))
    return _held[name]


def normal(seed: int, shape: tuple[int, ...]) -> Any:
    """Return normally distributed float32 numbers on the GPU."""
    if 4 * int(np.prod(shape, dtype=np.int64)) > _MOST:
        raise Unavailable(f"an array of shape {shape} would take {4e-9 * np.prod(shape, dtype=np.float64):.0f} GB")
    return jit.require_cupy("tango").random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def close(case: str, got: Any, wanted: Any, terms: Any, tolerance: float = TOLERANCE) -> None:
    """Raise an error if the result is wrong; ``terms`` is the number of terms in each sum."""
    cupy = jit.require_cupy("tango")
    root = cupy.sqrt(cupy.maximum(cupy.asarray(terms), 1))
    error = float((cupy.abs(got - wanted) / root).max().get()) if got.size else 0.0
    if not error <= tolerance:
        raise AssertionError(f"{case}: the result is wrong, error {error:.2e} but {tolerance:.0e} is allowed")


# ---- dense products
def quantized(x: Any, w: Any, bits: int, out: Any, scale: Any = None) -> Timed:
    """Return our product that quantises its operands, checked against the product of the dequantised codes."""
    import bitsparse as bs

    call = bs.plan_quantized_matmul(w, x.shape[0], bits)
    options = {} if scale is None else {"scale": scale}
    call(x, out=out, **options)
    torch = torch_module()
    rows = slice(0, min(4096, x.shape[0]))
    whole = bs.quantize(x, bits, scheme="symmetric").dequantize()[rows]
    exact = (
        torch.from_dlpack(whole).double()
        @ torch.from_dlpack(bs.quantize(w, bits, scheme="symmetric").dequantize()).double()
    )
    error = float((torch.from_dlpack(out[rows]) - exact).abs().max()) / float(exact.abs().max())
    if not error <= 1e-5:
        raise AssertionError(f"quantized_matmul of {bits} bits: the result is wrong, error {error:.2e}")
    return Timed(partial(call, x, out=out, **options), f"quantised, {bits} bits")


def dense(x: Any, w: Any, dtype: str, *, tf32: bool = False) -> Timed:
    """Return the product of cuBLAS through PyTorch, into a preallocated result."""
    torch = torch_module()
    a, b = (torch.from_dlpack(array).to(getattr(torch, dtype)) for array in (x, w))
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)

    def call() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return torch.matmul(a, b, out=out)

    return Timed(call, f"cuBLAS {dtype}{', TF32' if tf32 else ''}", torch_graph)


def products(part: Part, bits: int, widths: Sequence[int]) -> Iterator[_Record]:
    """Measure (nodes x D) x (D x D): ours with a computed and a given scale, and cuBLAS in float32, TF32 and float16."""
    cupy = jit.require_cupy("tango")
    for columns in widths:
        nodes = part.matrix.shape[0]
        x, w = normal(0, (nodes, columns)), normal(1, (columns, columns))
        out = cupy.empty((nodes, columns), np.float32)
        scale = np.float32(cupy.abs(x).max().get()) / np.float32(2 ** (bits - 1) - 1)
        found, given = quantized(x, w, bits, out), quantized(x, w, bits, out, scale)
        peers = [dense(x, w, "float32"), dense(x, w, "float32", tf32=True), dense(x, w, "float16")]
        ms, given_ms, *rest = part.times([found, given, *peers])
        params = {"D": columns, "bits": bits, "given_ms": given_ms, "fp32_ms": rest[0], "tf32_ms": rest[1]}
        params |= {"fp16_ms": rest[2], "flops": 2 * nodes * columns * columns}
        moved = int(x.nbytes + w.nbytes + out.nbytes)
        yield part.record(f"int{bits}-D{columns}", params, ms, peers[0].name, rest[0], moved)


def figure_10(part: Part) -> Iterator[_Record]:
    """Compare a product that takes quantised operands from the cache with one that quantises them again."""
    from bitsparse import QuantCache
    from bitsparse import quantized_matmul as multiply

    cupy = jit.require_cupy("tango")
    for columns in CACHED_WIDTHS:
        nodes = part.matrix.shape[0]
        x, w = normal(0, (nodes, columns)), normal(1, (columns, columns))
        outs = [cupy.empty((nodes, columns), np.float32) for _ in range(2)]
        held = QuantCache(check="never")
        multiply(x, w, out=outs[0])
        for _ in range(2):
            multiply(x, w, out=outs[1], cache=held)
        if not bool((outs[0] == outs[1]).all()):
            raise AssertionError(f"figure-10-{part.graph}: the cached product differs")
        again = Timed(partial(multiply, x, w, out=outs[0]), "quantised anew")
        kept = Timed(partial(multiply, x, w, out=outs[1], cache=held), "out of the cache")
        ms, peer_ms = part.times([kept, again])
        params = {"D": columns, "hits": int(held.info().hits), "replayed": kept.replayed and again.replayed}
        yield part.record(f"D{columns}", params, ms, again.name, peer_ms, int(x.nbytes + outs[0].nbytes))


def figure_11(part: Part) -> Iterator[_Record]:
    """Measure the dense products of 8 bits."""
    yield from products(part, 8, GEMM_WIDTHS)


# ---- sums of edges
def figure_13a(part: Part) -> Iterator[_Record]:
    """Compare our sum of edge features per row with PyTorch's scattered sum."""
    import bitsparse as bs

    cupy, torch = jit.require_cupy("tango"), torch_module()
    matrix = part.matrix
    rows = torch.from_dlpack(edge_rows(matrix))
    degrees = cupy.diff(matrix.indptr)[:, None]
    for columns in EDGE_FEATURES:
        edges = normal(0, (matrix.nnz, columns))
        out = cupy.empty((matrix.shape[0], columns), np.float32)
        there, source = torch.empty(out.shape, device="cuda"), torch.from_dlpack(edges)
        call = partial(bs.aggregate_edges, matrix.tiled, edges, out=out)

        def scatter(into: Any = there, source: Any = source) -> Any:
            return into.zero_().index_add_(0, rows, source)

        call(), scatter()
        close(f"figure-13a-{part.graph}-D{columns}", out, cupy.from_dlpack(there), degrees)
        sides = [Timed(call, "aggregate_edges"), Timed(scatter, "torch index_add_", torch_graph)]
        ms, peer_ms = part.times(sides)
        moved = int(edges.nbytes + out.nbytes + matrix.indptr.nbytes)
        params = {"D": columns, "replayed": sides[0].replayed}
        yield part.record(f"D{columns}", params, ms, sides[1].name, peer_ms, moved)


# ---- several heads
def of_heads(part: Part, heads: int, columns: int) -> _Record:
    """Compare a product with one weight per edge and head, of float32 and 8-bit features, with one cuSPARSE product per head."""
    import bitsparse as bs

    cupy, torch = jit.require_cupy("tango"), torch_module()
    matrix = part.matrix
    x = normal(0, (matrix.shape[1], heads, columns))
    values = cupy.random.default_rng(1).random((matrix.nnz, heads), dtype=np.float32) + np.float32(0.5)
    out = cupy.empty((matrix.shape[0], heads, columns), np.float32)
    call = partial(bs.spmm, matrix.tiled, x, values=values, out=out)
    call()
    parts = [torch.from_dlpack(array) for array in (matrix.indptr, matrix.indices)]
    weights = [torch.from_dlpack(values[:, h].copy()) for h in range(heads)]
    ends = [torch.from_dlpack(x[:, h].copy()) for h in range(heads)]
    sparse = [torch.sparse_csr_tensor(*parts, one, size=matrix.shape, check_invariants=False) for one in weights]

    def theirs() -> Any:
        return [one @ end for one, end in zip(sparse, ends, strict=True)]

    got = torch.stack(theirs(), 1)
    degrees = cupy.diff(matrix.indptr)[:, None, None]
    close(f"{part.part}-{part.graph}-{heads}x{columns}", out, cupy.from_dlpack(got), degrees)
    del got
    sides = [Timed(call, "spmm"), Timed(theirs, f"torch sparse_csr, {heads} products", torch_graph)]
    ms, peer_ms = part.times(sides)
    params: _Record = {"heads": heads, "D": columns, "replayed": sides[0].replayed, "peer_replayed": sides[1].replayed}
    codes = bs.quantize(x, 8, scheme="symmetric", layout="rows")
    try:
        narrow = Timed(partial(bs.spmm, matrix.tiled, codes, values=values, out=out), "spmm, 8 bits")
        params["int8_ms"] = part.times([narrow])[0]
    except BitsparseError as reason:
        params["int8"] = str(reason)
    return part.record(
        f"{heads}x{columns}", params, ms, sides[1].name, peer_ms, int(x.nbytes + out.nbytes + values.nbytes)
    )


def figure_13b(part: Part) -> Iterator[_Record]:
    """Measure products of a few heads with many columns each."""
    for heads, columns in HEADS:
        if 4 * part.matrix.shape[0] * heads * columns <= _MOST // 4:
            yield of_heads(part, heads, columns)


def figure_14(part: Part) -> Iterator[_Record]:
    """Measure products of several heads with one column each: sparse matrix times vector."""
    for heads in SPMV_FEATURES:
        yield of_heads(part, heads, 1)


# ---- sampled products
def sampled(part: Part, op: Any, bits: int) -> _Record | None:
    """Compare a sampled product of packed integers and their scales with our own in float32 and with PyTorch's gathers."""
    import bitsparse as bs

    cupy, torch = jit.require_cupy("tango"), torch_module()
    matrix, (heads, columns) = part.matrix, SDDMM_HEADS
    shape = (matrix.nnz, heads) if op == "dot" else (matrix.nnz, heads, columns)
    if 4 * int(np.prod(shape, dtype=np.int64)) > _MOST:
        return None
    ends = [normal(i, (matrix.shape[0], heads, columns)) for i in (0, 1)]
    codes = [bs.quantize(end, bits, scheme="symmetric", layout="rows") for end in ends]
    real = [code.dequantize() for code in codes]
    out, float_out = (cupy.full(shape, np.nan, np.float32) for _ in range(2))
    calls = [
        partial(bs.sddmm, matrix.tiled, *given, op=op, out=into) for given, into in ((codes, out), (real, float_out))
    ]
    for call in calls:
        call()
    close(f"{part.part}-{part.graph}-{op}-int{bits}", out, float_out, np.float32(columns if op == "dot" else 1))
    sides = [Timed(calls[0], f"sddmm, {bits} bits"), Timed(calls[1], "sddmm, float32")]
    if matrix.nnz * heads * columns * 4 <= _MOST // 4:
        rows, cols = torch.from_dlpack(edge_rows(matrix)), torch.from_dlpack(matrix.indices).long()
        x, y = map(torch.from_dlpack, real)

        def gathers() -> Any:
            left, right = x[rows], y[cols]
            return (left * right).sum(-1) if op == "dot" else left + right

        sides.append(Timed(gathers, "torch gathers", torch_graph))
    ms, float_ms, *more = part.times(sides)
    params = {"op": op, "bits": bits, "heads": heads, "D": columns, "torch_ms": more[0] if more else None}
    params["replayed"] = sides[0].replayed
    moved = int(sum(code.words.nbytes for code in codes) + out.nbytes + matrix.pattern_bytes)
    return part.record(f"{op}-int{bits}", params, ms, sides[1].name, float_ms, moved)


def figure_15(part: Part) -> Iterator[_Record]:
    """Measure the sampled products and sums of 8 bits."""
    for op in ("add", "dot"):
        made = sampled(part, op, 8)
        if made is not None:
            yield made


def figure_16(part: Part) -> Iterator[_Record]:
    """Measure the sampled products and sums, and the dense products, of 4 bits."""
    for op in ("add", "dot"):
        made = sampled(part, op, 4)
        if made is not None:
            yield made
    yield from products(part, 4, GEMM_WIDTHS)
