"""The host's sparse products must equal the reference's, bit for bit, at every SIMD level and on several threads."""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
from cases import functions_of
from scipy.sparse import csr_array, random_array, vstack
from sparse_inputs import FLOATS, INTEGERS, WIDTHS, dtype_of, features, graphs, same

from bitsparse.backends import host as host_backend
from bitsparse.backends.host.edges import attention as host_attention
from bitsparse.backends.host.edges import gatv2 as host_gatv2
from bitsparse.backends.host.edges import sddmm as host_sddmm
from bitsparse.backends.host.spmm import spmm as host_spmm
from bitsparse.backends.params import PackedFeatures, Pattern
from bitsparse.backends.reductions import REDUCTIONS, Reduce
from bitsparse.backends.reference.bits import pack as reference_bits
from bitsparse.backends.reference.edges import attention as reference_attention
from bitsparse.backends.reference.edges import gatv2 as reference_gatv2
from bitsparse.backends.reference.edges import sddmm as reference_sddmm
from bitsparse.backends.reference.spmm import spmm as reference_spmm
from bitsparse.jit.cubins import source_dir

GRAPHS = graphs()
LEVELS = host_backend.simd_levels()
REDUCES = ["sum", "mean", "max", "min"]


def accumulators(name: str) -> list[str]:
    if name in ("float16", "bfloat16", "float32"):
        return ["float32"]
    if name == "float64":
        return ["float64"]
    return ["int32", "int64", "float32", "float64"] if dtype_of(name).itemsize <= 2 else ["int64", "float64"]


def factors(rng: np.random.Generator, graph, acc: np.dtype, heads: int, kind: str) -> dict[str, np.ndarray]:
    """Return values and scales of one kind: none, values alone, values per head, scales alone, everything."""
    given = {}
    if kind in ("values", "everything"):
        given["values"] = rng.integers(-2, 3, graph.nnz)
    if kind == "heads":
        given["values"] = rng.integers(-2, 3, (graph.nnz, heads))
    if "values" in given and acc.kind == "f":
        given["values"] = given["values"] * 0.37
    if kind in ("scales", "everything") and acc.kind == "f":
        given["row_scale"] = rng.standard_normal(graph.shape[0]).astype(np.float32)
        given["col_scale"] = rng.standard_normal(graph.shape[1]).astype(np.float32)
    return given


def both(graph, x: np.ndarray, index: str = "int32", **options) -> np.ndarray:
    """Return the host's result after comparing it with the reference's."""
    edges = Pattern(graph.indptr.astype(index), graph.indices.astype(index), graph.shape)
    got = host_spmm.spmm(edges, x, **options)
    same(got, reference_spmm.spmm(edges, x, **options))
    return got


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_every_dtype_reduction_and_width(name: str, level: str, host) -> None:
    host.set_simd(level)
    graph, dtype = GRAPHS["square"], dtype_of(name)
    rng = np.random.default_rng(3)
    for acc, reduce, width in itertools.product(accumulators(name), REDUCES, WIDTHS):
        x = features(rng, (graph.shape[1], width), dtype)
        if dtype.kind in "iu":
            x //= max(1, np.iinfo(dtype).max // 1000)  # leaves room for the sums
        for kind in ("none", "scales", "everything"):
            both(graph, x, acc_dtype=acc, reduce=reduce, **factors(rng, graph, np.dtype(acc), 1, kind))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_every_graph_and_weight(name: str, index: str) -> None:
    graph = GRAPHS[name]
    rng = np.random.default_rng(4)
    for acc, reduce, (heads, width) in itertools.product(
        ("float32", "float64", "int32", "int64"), REDUCES, ((1, 6), (3, 5))
    ):
        x = features(rng, (graph.shape[1], heads * width), np.dtype(acc) if acc[0] == "f" else np.dtype(np.int8))
        for kind in ("none", "values", "heads", "scales", "everything"):
            weights = factors(rng, graph, np.dtype(acc), heads, kind)
            both(graph, x, index, acc_dtype=acc, reduce=reduce, heads=heads, **weights)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_packed_features(bits: int, level: str, host) -> None:
    host.set_simd(level)
    rng = np.random.default_rng(bits)
    for name, encoding in itertools.product(("square", "hubs"), ("unsigned", "signed", "bipolar")):
        if encoding == "bipolar" and bits != 1:
            continue
        graph = GRAPHS[name]
        for heads, width in ((1, 1), (1, 13), (2, 9), (3, 40), (1, 300)) if name == "square" else ((1, 70),):
            codes = rng.integers(0, 1 << bits, (graph.shape[1], heads, width), np.uint64)
            words = reference_bits.codes_to_words(codes, bits, "rows")
            for affine in (None, "row", "column"):
                size = graph.shape[1] if affine == "row" else heads * width
                scale, offset = rng.standard_normal((2, size)).astype(np.float32)
                packed = PackedFeatures(bits, encoding, width, affine, *((scale, offset) if affine else ()))
                for acc in ("float32", "float64") if affine else ("int32", "int64", "float32"):
                    kind = "heads" if heads > 1 else "none"
                    weights = factors(rng, graph, np.dtype(acc), heads, kind)
                    both(graph, words, acc_dtype=acc, heads=heads, packed=packed, reduce="sum", **weights)
                    both(graph, words, acc_dtype=acc, heads=heads, packed=packed, reduce="max", **weights)


def test_threads_and_levels_do_not_change_a_bit(host) -> None:
    graph = GRAPHS["hubs"]
    rng = np.random.default_rng(5)
    x = rng.standard_normal((graph.shape[1], 70)).astype(np.float32)
    y = rng.standard_normal((graph.shape[0], 70)).astype(np.float32)
    values = rng.standard_normal(graph.nnz).astype(np.float32)
    scores = rng.standard_normal((graph.nnz, 3)).astype(np.float32)
    edges = Pattern(graph.indptr, graph.indices, graph.shape)

    def results() -> list[bytes]:
        return [
            host_spmm.spmm(edges, x, acc_dtype=np.float32, values=values).tobytes(),
            host_spmm.spmm(edges, x, acc_dtype=np.float32, reduce="mean").tobytes(),
            host_attention.attention(edges, x, x[:, :2].copy(), y[:, :2].copy(), negative_slope=0.1).tobytes(),
            host_sddmm.sddmm(edges, y, x, op="dot", heads=2).tobytes(),
            host_sddmm.edge_softmax(edges, scores).tobytes(),
        ]

    host.set_num_threads(1)
    want = results()
    for threads, level in itertools.product((1, 2, 3, 7), LEVELS):
        host.set_num_threads(threads)
        host.set_simd(level)
        assert results() == want, f"{threads} threads, {level}"


#: At least 8 edges per column, and x larger than a core's own cache: the host then lays the columns of x side by side.
OFTEN = random_array((300, 4200), density=0.03, format="csr", rng=12, dtype=np.float32)
OFTEN = vstack([OFTEN, csr_array(np.ones((1, 4200), np.float32))], format="csr")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [16, 31, 32, 33, 100, 130])
def test_columns_side_by_side(width: int, level: str, host) -> None:
    host.set_simd(level)
    rng = np.random.default_rng(width)
    x = features(rng, (OFTEN.shape[1], width), np.dtype(np.float32))
    x[-1, -1], x[7, 3] = np.inf, np.nan
    for reduce, kind in itertools.product(("sum", "mean"), ("none", "values", "scales", "everything")):
        both(OFTEN, x, acc_dtype="float32", reduce=reduce, **factors(rng, OFTEN, np.dtype(np.float32), 1, kind))


def test_columns_side_by_side_are_of_the_call_that_laid_them() -> None:
    given = factors(np.random.default_rng(13), OFTEN, np.dtype(np.float32), 1, "scales")
    edges = Pattern(OFTEN.indptr, OFTEN.indices, OFTEN.shape)
    features = [np.random.default_rng(i).random((OFTEN.shape[1], 40 * (1 + i % 3)), np.float32) for i in range(24)]

    def sums(x: np.ndarray) -> bytes:
        return host_spmm.spmm(edges, x, acc_dtype=np.float32, **given).tobytes()

    want = [sums(x) for x in features]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(sums, features)) == want


def test_columns_out_of_range_are_found_where_others_lie_side_by_side() -> None:
    x = np.ones((OFTEN.shape[1], 100), np.float32)
    for wrong in (OFTEN.shape[1], -1, 2**31 - 1):
        indices = OFTEN.indices.copy()
        indices[4321] = wrong
        with pytest.raises(ValueError, match="column"):
            host_spmm.spmm(Pattern(OFTEN.indptr, indices, OFTEN.shape), x, acc_dtype=np.float32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 1000, 5003])
def test_repeated_sums_of_one_column_over_rows_of_all_lengths(rows: int, dtype: type, level: str, host) -> None:
    """Rows are taken in an order of their lengths then: none, few or many edges, in several units, beside a row in pieces."""
    host.set_simd(level)
    rng = np.random.default_rng(rows)
    lengths = np.minimum(rng.geometric(0.3, rows) - 1, 900)
    lengths[rng.integers(0, rows, 3)] = (0, 40, 700)
    if rows > 1000:
        lengths[rows // 2] = 3000
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    graph = csr_array((np.ones(indptr[-1]), rng.integers(0, 999, indptr[-1]).astype(np.int32), indptr), (rows, 999))
    edges, x = Pattern(graph.indptr, graph.indices, graph.shape), rng.standard_normal((999, 1)).astype(dtype)
    for reduce, kind in itertools.product(("sum", "mean"), ("none", "values", "scales", "everything")):
        given = factors(rng, graph, np.dtype(dtype), 1, kind)
        given |= {"values": given["values"].astype(dtype)} if "values" in given else {}
        sums = host_spmm.Sums(edges, dtype=np.dtype(dtype), columns=1, reduce=reduce, **given)
        out = np.full((rows, 1), np.nan, dtype)
        sums(x, given.get("values"), out)
        same(out, reference_spmm.spmm(edges, x, acc_dtype=dtype, reduce=reduce, **given))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FLOATS)
def test_nan_and_infinity_propagate(name: str, value: float) -> None:
    graph, dtype = GRAPHS["hubs"], dtype_of(name)
    rng = np.random.default_rng(6)
    x = features(rng, (graph.shape[1], 20), dtype)
    x[rng.integers(0, graph.shape[1], 40), rng.integers(0, 20, 40)] = value
    touched = (graph @ (x.astype(np.float64) != x.astype(np.float64)).astype(np.float32)) > 0
    for reduce in REDUCES:
        got = both(graph, x, acc_dtype="float64" if name == "float64" else "float32", reduce=reduce)
        assert np.isnan(got[touched]).all()
        if np.isinf(value) and reduce in ("max", "min"):
            assert not np.isnan(got.astype(np.float64)).any()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("level", LEVELS)
def test_sddmm_and_softmax(name: str, level: str, host) -> None:
    host.set_simd(level)
    graph = GRAPHS[name]
    rng = np.random.default_rng(7)
    for dtype, (heads, width) in itertools.product(
        ("float32", "float64", "int32", "int64"), ((1, 1), (1, 16), (3, 5), (2, 67), (1, 128))
    ):
        x, y = (
            features(rng, (n, heads * width), np.dtype(dtype) if dtype[0] == "f" else np.dtype(np.int8)).astype(dtype)
            for n in graph.shape
        )
        quotients = ("div",) if dtype[0] == "f" else ()
        for op, index in itertools.product(("dot", "add", "sub", "mul", *quotients), ("int32", "int64")):
            arrays = (Pattern(graph.indptr.astype(index), graph.indices.astype(index), graph.shape), x, y)
            same(host_sddmm.sddmm(*arrays, op=op, heads=heads), reference_sddmm.sddmm(*arrays, op=op, heads=heads))
    whole = Pattern(graph.indptr, graph.indices, graph.shape)
    for heads in (1, 3):
        scores = (rng.standard_normal((graph.nnz, heads)) * 30).astype(np.float32)
        same(host_sddmm.edge_softmax(whole, scores), reference_sddmm.edge_softmax(whole, scores))
        wide = scores.astype(np.float64)
        # The C library's exp and NumPy's differ in the last place.
        np.testing.assert_allclose(
            host_sddmm.edge_softmax(whole, wide), reference_sddmm.edge_softmax(whole, wide), rtol=1e-13
        )


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("level", LEVELS)
def test_graph_attention_of_the_second_kind(name: str, level: str, host) -> None:
    host.set_simd(level)
    graph = GRAPHS[name]
    rng = np.random.default_rng(11)
    sizes, dtypes = ((1, 1), (1, 16), (3, 5), (2, 67)), ("float32", "float64")
    for dtype, (heads, width), index in itertools.product(dtypes, sizes, ("int32", "int64")):
        x, y = (features(rng, (n, heads * width), np.dtype(dtype)) for n in graph.shape)
        weights, edges = (rng.standard_normal(shape).astype(dtype) for shape in ((heads, width), (graph.nnz, heads)))
        weights[0, -1], edges[:1] = np.inf, np.nan
        arrays = (Pattern(graph.indptr.astype(index), graph.indices.astype(index), graph.shape), x, y)
        how = {"negative_slope": 0.3}
        same(host_gatv2.gatv2_scores(*arrays, weights, **how), reference_gatv2.gatv2_scores(*arrays, weights, **how))
        same(host_gatv2.steep_sums(*arrays, edges, **how), reference_gatv2.steep_sums(*arrays, edges, **how))


@pytest.mark.parametrize("name", GRAPHS)
def test_attention(name: str) -> None:
    graph = GRAPHS[name]
    rng = np.random.default_rng(8)
    for dtype, (heads, width) in itertools.product(("float16", "float32", "float64"), ((1, 7), (4, 8), (2, 70))):
        compute = np.float64 if dtype == "float64" else np.float32
        x = rng.standard_normal((graph.shape[1], heads * width)).astype(dtype)
        source, target = ((rng.standard_normal((n, heads)) * 3).astype(compute) for n in graph.shape[::-1])
        arrays = (Pattern(graph.indptr, graph.indices, graph.shape), x, source, target)
        got = host_attention.attention(*arrays, negative_slope=0.2)
        want = reference_attention.attention(*arrays, negative_slope=0.2)
        if dtype == "float64":
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
        else:
            same(got, want)


def test_incidence_form_needs_no_indices() -> None:
    graph = GRAPHS["hubs"]
    edges = np.random.default_rng(9).standard_normal((graph.nnz, 12)).astype(np.float32)
    shape = (graph.shape[0], graph.nnz)
    bare, whole = (Pattern(graph.indptr, of, shape, graph.nnz) for of in (None, np.arange(graph.nnz, dtype=np.int32)))
    got = host_spmm.spmm(bare, edges, acc_dtype=np.float32)
    same(got, reference_spmm.spmm(bare, edges, acc_dtype=np.float32))
    same(got, host_spmm.spmm(whole, edges, acc_dtype=np.float32))


def test_both_backends_have_the_same_functions() -> None:
    for ours, theirs in (
        (host_spmm, reference_spmm),
        (host_sddmm, reference_sddmm),
        (host_attention, reference_attention),
        (host_gatv2, reference_gatv2),
    ):
        assert functions_of(theirs) <= functions_of(ours) <= functions_of(theirs) | {"features_of", "unit_rows"}


@pytest.mark.parametrize("name", GRAPHS)
def test_cosine_attention_and_logarithms_of_sums(name: str) -> None:
    graph = GRAPHS[name]
    rng = np.random.default_rng(10)
    size = max(graph.shape)
    indptr = np.append(graph.indptr, np.full(size - graph.shape[0], graph.nnz, graph.indptr.dtype))
    for dtype, width in itertools.product(("float16", "float32", "float64"), (1, 70)):
        compute = np.float64 if dtype == "float64" else np.float32
        x = rng.standard_normal((size, width)).astype(dtype)
        x[::5] = 0
        scores = rng.standard_normal((2, size, 2)).astype(compute)
        made: list[np.ndarray] = []
        for backend in (host_attention, reference_attention):
            one, two = np.empty((size, 1), compute), np.empty((size, 2), compute)
            whole = Pattern(indptr, graph.indices, (size, size))
            made += [backend.cosine_attention(whole, x, beta=1.5, lse=one), one]
            made += [backend.attention(whole, np.hstack([x, x]), *scores, negative_slope=0.2, lse=two), two]
        for got, want in zip(made[:4], made[4:], strict=True):
            rtol = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-12}[dtype]
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


def test_reductions_are_those_of_the_header() -> None:
    header = (source_dir() / "common/reductions.h").read_text()
    numbers = dict(re.findall(r"#define BS_REDUCE_(\w+) (\d+)", header))
    assert {name.lower(): int(number) for name, number in numbers.items()} == {
        name: reduction.number for name, reduction in REDUCTIONS.items()
    }
    assert f"#define BS_REDUCTIONS {len(REDUCTIONS)}\n" in header
    assert get_args(Reduce) == tuple(REDUCTIONS)
