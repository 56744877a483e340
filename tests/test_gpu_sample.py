"""Edge sampling on a GPU must draw the host's samples, index for index; sums over samples are drawn in every call or kept."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs, pattern

import bitsparse as bs
from bitsparse.arrays.inside import store_of
from bitsparse.backends.host.sampling import sample as host
from bitsparse.backends.params import CodeFeatures, Sampling
from bitsparse.backends.reference.bits.pack import codes_to_values, codes_to_words
from bitsparse.ops.sampling.sample import DRAWINGS

pytestmark = pytest.mark.gpu

GRAPHS = graphs()
STRATEGIES = ("aes", "afs", "sfs", "uniform")
#: Unit roundoff of each dtype of results.
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def cp() -> Any:
    import cupy

    return cupy


def cuda() -> Any:
    from bitsparse.backends.cuda.sampling import sample

    return sample


def sampled(indptr: Any, *, width: int, strategy: str, seed: int = 0, stream: int = 0) -> tuple[Any, Any]:
    """Return where the samples of each row start, and the edges that were sampled."""
    drawing = cuda().Drawing(indptr, (int(indptr.size) - 1, 0), int(indptr[-1]), width=width, strategy=strategy)
    return drawing.starts.astype(np.int64), drawing.edges(seed, stream, columns=False)[0]


def gathered(
    indptr: Any,
    indices: Any,
    x: Any,
    out: Any,
    *,
    width: int,
    strategy: str,
    seed: int = 0,
    stream: int = 0,
    **kind: Any,
) -> Any:
    """Sum over a sample into `out`."""
    codes, alignment = isinstance(x, CodeFeatures), 16
    while not codes and (x.data.ptr % alignment or out.data.ptr % alignment):
        alignment //= 2
    (cols, _), columns = (x.words.shape, x.features) if codes else (x.shape, x.shape[1])
    drawing = cuda().Drawing(indptr, (int(indptr.size) - 1, cols), int(indptr[-1]), width=width, strategy=strategy)
    kind |= {"columns": columns, "x_dtype": cuda().Codes.of(x) if codes else x.dtype, "alignment": alignment}
    return cuda().SampledSum(drawing, indices, **kind)(x, out, seed=seed, stream=stream)


def to_device(array: Any) -> Any:
    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return cp().asarray(array.view(np.uint16)).view(array.dtype)
    return cp().asarray(array)


def to_host(array: Any) -> Any:
    return array.view(np.uint16).get().view(array.dtype) if array.dtype.name == "bfloat16" else array.get()


def poisoned(shape: tuple[int, ...], dtype: Any) -> Any:
    out = cp().empty(shape, np.dtype(dtype).str.replace("V", "u") if np.dtype(dtype).name == "bfloat16" else dtype)
    out.view(np.uint8).fill(0xA5)
    return out.view(dtype)


def lengths(seed: int = 0) -> np.ndarray:
    """Return row lengths: no edges, the steps of AFS and of AES's table, hubs, and many short rows."""
    rng = np.random.default_rng(seed)
    edge = [w * r + d for w in (3, 16, 64) for r in (1, 2, 36, 54) for d in (0, 1)]
    return np.concatenate(
        [[0, 1, 2, 577, 1154, 6000, *edge], rng.integers(0, 300, 40), [0, 0], rng.integers(0, 9, 90), [0]]
    )


def rows(index: str, seed: int = 0) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths(seed))]).astype(index)


# ---- the sampled edges
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_hosts_samples(strategy: str, index: str) -> None:
    indptr = rows(index)
    for width, seed in itertools.product((1, 2, 3, 7, 16, 33, 64, 100, 1000, 100_000, 1 << 40), (0, 2**64 - 1)):
        want = host.sample_edges(indptr, width=width, strategy=strategy, seed=seed, stream=3)
        if strategy == "uniform" and width >= 1 << 31:
            assert width > indptr[-1]
        got = sampled(to_device(indptr), width=width, strategy=strategy, seed=seed, stream=3)
        for one, two in zip(got, want, strict=True):
            assert one.dtype == two.dtype
            assert np.array_equal(one.get(), two), (width, seed)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph(name: str) -> None:
    for strategy, index in itertools.product(STRATEGIES, ("int32", "int64")):
        indptr = GRAPHS[name].indptr.astype(index)
        want = host.sample_edges(indptr, width=6, strategy=strategy, seed=1)
        got = sampled(to_device(indptr), width=6, strategy=strategy, seed=1)
        assert all(np.array_equal(one.get(), two) for one, two in zip(got, want, strict=True))


def test_long_rows_are_exact_in_every_step() -> None:
    """Samples must be exact for row lengths at which float quotients are off by one, up to millions of edges (no indices are needed)."""
    indptr = np.cumsum([0, 577 * 1429, 46_000, 44_299 + 8, 1_000_003, 16_777_217, 2]).astype(np.int32)
    for strategy, width in itertools.product(STRATEGIES, (64, 257, 40_000)):
        want = host.sample_edges(indptr, width=width, strategy=strategy, seed=9)
        got = sampled(to_device(indptr), width=width, strategy=strategy, seed=9)
        assert all(np.array_equal(one.get(), two) for one, two in zip(got, want, strict=True))


def test_more_than_31_bits_of_a_row_are_refused() -> None:
    from bitsparse.backends.cuda.sampling.sample import sampler_params

    with pytest.raises(bs.KernelError, match="2147483648 asks a GPU"):
        sampler_params(cp().zeros(1, np.int64), 1 << 32, 1 << 31, "uniform", 0, 0)


# ---- sums of the backend
def check(
    indptr: np.ndarray,
    cols: int,
    d: int,
    dtype: str,
    tuning: Any = None,
    kind: str = "none",
    offset: int = 0,
    **how: Any,
) -> np.ndarray:
    """Compute the GPU's sums into a poisoned array, compare them with the host's, and return them."""
    rng = np.random.default_rng([d, cols])
    real = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    acc = np.dtype("float64" if dtype == "float64" else "float32")
    indices = rng.integers(0, max(1, cols), int(indptr[-1])).astype(indptr.dtype)
    x = rng.standard_normal((cols, d)).astype(real)
    given: dict[str, Any] = {}
    if kind in ("values", "everything"):
        given["values"] = rng.standard_normal(indices.size).astype(acc)
    if kind in ("columns", "everything"):
        given["col_scale"] = rng.standard_normal(cols).astype(acc)
    if kind in ("rows", "everything"):
        given["row_scale"] = rng.standard_normal(indptr.size - 1).astype(acc)
    how["rescale"] = kind in ("rescaled", "everything")
    rescale = how.pop("rescale")
    want = host.gather(indptr, indices, x.astype(acc), Sampling(**how), **given, rescale=rescale)
    sizes = host.gather(
        indptr,
        indices,
        np.abs(x.astype(np.float64)),
        Sampling(**how),
        **{k: np.abs(v.astype(np.float64)) for k, v in given.items()},
        rescale=rescale,
    )
    how["rescale"] = rescale
    room = poisoned((want.size + offset,), real)
    out = room[offset:].reshape(want.shape)
    device = {k: to_device(v) for k, v in given.items()}
    got_there = gathered(to_device(indptr), to_device(indices), to_device(x), out, tuning=tuning, **device, **how)
    assert got_there is out
    got = to_host(out)
    samples = np.minimum(np.diff(indptr), how["width"])[:, None]
    bound = (
        sizes * (2 * samples + 8) * UNITS[acc.name] + np.abs(want) * UNITS[dtype] * (acc != real) + 1e-7 * (acc != real)
    )
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()
    return got


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["none", "values", "columns", "rows", "rescaled", "everything"])
def test_sums_of_every_kind(kind: str, strategy: str) -> None:
    indptr = rows("int32")
    for d, width in ((128, 16), (16, 33), (5, 3), (20, 1000)):
        check(indptr, 300, d, "float32", kind=kind, width=width, strategy=strategy, seed=4)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 16, 32, 33, 64, 100, 128, 160, 256, 602])
def test_every_width_of_features(d: int) -> None:
    indptr = rows("int32")[:90]
    for dtype in ("float32", "float16"):
        check(indptr, 200, d, dtype, width=16, strategy="aes")


@pytest.mark.parametrize("dtype", list(UNITS))
def test_every_float_and_index(dtype: str) -> None:
    for index, kind, d in itertools.product(("int32", "int64"), ("none", "everything"), (24, 9)):
        check(rows(index)[:80], 150, d, dtype, kind=kind, width=20, strategy="uniform", seed=2**64 - 1, stream=7)


@pytest.mark.parametrize("offset", [1, 2])
def test_results_at_every_alignment(offset: int) -> None:
    for dtype, d in itertools.product(("float32", "float16"), (16, 64)):
        check(rows("int32")[:60], 90, d, dtype, offset=offset, width=16, strategy="aes")


def test_every_tuning() -> None:
    indptr = rows("int32")
    for bytes_, lanes, unroll, span, limit, longest, chunk in (
        (4, 1, 4, 12, 32, 32, None),
        (8, 2, 8, 32, 9, 64, 16),
        (16, 4, 4, 8, 1, 32, 32),
        (16, 8, 8, 100, 400, 416, None),
        (8, 16, 8, 64, 32, 32, 32),
        (4, 32, 4, 4, 3, 4, None),
        (16, 32, 8, 16, 1, 1024, None),
    ):
        threads = 32 * lanes if lanes < 8 else 128
        tuning = cuda().Tuning(bytes_, lanes, 1, unroll, None, threads, span, longest, limit, chunk)
        for width, kind in itertools.product((16, 700), ("none", "everything")):
            check(indptr, 300, 48, "float32", tuning, kind, width=width, strategy="aes")


@pytest.mark.parametrize("name", GRAPHS)
def test_sums_over_every_graph(name: str) -> None:
    graph = GRAPHS[name]
    for strategy in STRATEGIES:
        check(graph.indptr, graph.shape[1], 20, "float32", width=5, strategy=strategy)


def test_nothing_but_the_sample_is_read() -> None:
    """Features of columns that are not in the sample must not be read: they are NaN here."""
    graph = GRAPHS["square"]
    sample = bs.edge_sample(graph, 3)
    x = np.full((graph.shape[1], 8), np.nan, np.float32)
    x[np.unique(sample.indices)] = 1
    A = bs.TCTiledCSR(graph != 0).to_device("cuda")
    want = np.repeat(np.diff(sample.indptr)[:, None], 8, axis=1)
    for got in (bs.sampled_spmm(A, to_device(x), 3), bs.plan_sampled_spmm(A, 8, 3)(to_device(x))):
        assert np.array_equal(got.get(), want)


# ---- the public functions
def operands() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    graph = pattern([0, *rng.integers(0, 90, 60), 700, 0, 577], 800, 2)
    values = graph.copy()
    values.data = rng.standard_normal(values.nnz).astype(np.float32)
    scales = {"row_scale": rng.random(64).astype(np.float32), "col_scale": rng.random(800).astype(np.float32)}
    return {
        "pattern": bs.TCTiledCSR(graph != 0),
        "values": bs.TCTiledCSR(values),
        "scaled": bs.TCTiledCSR(graph != 0, **scales),
        "both": bs.TCTiledCSR(values, **scales),
        "bits": bs.FRDC(graph != 0),
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["pattern", "values", "scaled", "both", "bits"])
def test_public_functions_against_the_host(name: str, strategy: str) -> None:
    A = operands()[name]
    there = A.to_device("cuda")
    rng = np.random.default_rng(5)
    seed = {"seed": 11} if strategy == "uniform" else {}
    mine, theirs = bs.edge_sample(A, 20, strategy, **seed), bs.edge_sample(there, 20, strategy, **seed)
    for part in ("indptr", "edges", "indices", "factors"):
        one, two = getattr(mine, part), getattr(theirs, part)
        assert one.dtype == two.dtype
        assert np.array_equal(one, two.get())
    assert (mine.nnz, mine.distinct, mine.rate) == (theirs.nnz, theirs.distinct, theirs.rate)
    assert theirs.device == "cuda:0"
    for dtype, rescale in itertools.product((np.float32, np.float16, np.float64), (False, True)):
        x = rng.standard_normal((800, 24)).astype(dtype)
        want = bs.sampled_spmm(A, x, 20, strategy, rescale=rescale, **seed)
        matrix = mine.tocsr(rescale).astype(np.float64)
        bound = (
            abs(matrix) @ np.abs(x.astype(np.float64)) * 60 * 2.0**-24
            + 2 * np.abs(want) * UNITS[want.dtype.name]
            + 1e-6
        )
        out = poisoned(want.shape, want.dtype)
        assert bs.sampled_spmm(there, to_device(x), 20, strategy, rescale=rescale, out=out, **seed) is out
        assert (np.abs(out.get().astype(np.float64) - want) <= bound).all()
        for store in (True, False):
            plan = bs.plan_sampled_spmm(there, 24, 20, strategy, rescale=rescale, dtype=dtype, store=store, **seed)
            out.view(np.uint8).fill(0xA5)
            assert plan(to_device(x), out) is out
            assert (np.abs(out.get().astype(np.float64) - want) <= bound).all()
            assert f"{'kept' if store else 'drawn in every call'}" in plan.explain()


def test_kernels_of_a_stored_sample() -> None:
    A = operands()["pattern"]
    there, x = A.to_device("cuda"), np.random.default_rng(0).standard_normal((800, 32)).astype(np.float32)
    for strategy in ("aes", "sfs"):
        want = bs.sampled_spmm(A, x, 30, strategy)
        for kernel in ("csr", "windows"):
            plan = bs.plan_sampled_spmm(there, 32, 30, strategy, kernel=kernel)
            assert np.allclose(plan(to_device(x)).get(), want, atol=1e-4)
            assert f"kernel {kernel} (forced)" in plan.explain()


@pytest.mark.parametrize(
    ("bits", "encoding"), [(1, "bipolar"), *itertools.product((1, 2, 4, 8), ("unsigned", "signed"))]
)
def test_packed_features(bits: int, encoding: str) -> None:
    """Codes with every kind of scale and offset must be summed right; unweighted sums stay exact integers until a row is complete."""
    rng = np.random.default_rng(bits)
    indptr, cols = rows("int32")[:70], 90
    indices = rng.integers(0, cols, int(indptr[-1])).astype(np.int32)
    full = {
        "values": rng.standard_normal(indices.size).astype(np.float32),
        "col_scale": rng.standard_normal(cols).astype(np.float32),
        "row_scale": rng.standard_normal(indptr.size - 1).astype(np.float32),
        "rescale": True,
    }
    for d, (scale, offset), (width, weights) in itertools.product(
        (64, 33, 300),
        ((None, None), ((), ()), ((1, -1), (cols, 1)), ((cols, 1), (1, -1)), ((cols, 1), ())),
        ((16, {}), (16, full), (700, {})),
    ):
        affine = [
            None if s is None else rng.standard_normal([d if n < 0 else n for n in s]).astype(np.float32)
            for s in (scale, offset)
        ]
        codes = rng.integers(0, 1 << bits, (cols, d))
        x = CodeFeatures(
            codes_to_words(codes, bits, "rows"),
            d,
            bits,
            encoding,
            *(None if p is None else np.asarray(p) for p in affine),
        )
        want = host.gather(indptr, indices, x, Sampling(width, "aes"), **weights)
        there = x._replace(words=to_device(x.words), scale=to_device(x.scale), offset=to_device(x.offset))
        out = poisoned(want.shape, np.float32)
        device = {k: v if k == "rescale" else to_device(v) for k, v in weights.items()}
        gathered(to_device(indptr), to_device(indices), there, out, width=width, strategy="aes", **device)
        real = np.abs(codes_to_values(codes, bits, encoding)).astype(np.float64)
        real = real * (1 if x.scale is None else np.abs(x.scale)) + (0 if x.offset is None else np.abs(x.offset))
        sizes = host.gather(
            indptr,
            indices,
            real,
            Sampling(width, "aes"),
            **{k: v if k == "rescale" else np.abs(v).astype(np.float64) for k, v in weights.items()},
        )
        samples = np.minimum(np.diff(indptr), width)[:, None]
        assert (np.abs(out.get() - want.astype(np.float64)) <= sizes * (2 * samples + 8) * 2.0**-24 + 1e-12).all()


def test_codes_of_rows_too_long_for_31_bits_are_summed_in_floats() -> None:
    rng = np.random.default_rng(0)
    indptr, codes = rows("int32")[:70], rng.integers(0, 256, (90, 40))
    indices = rng.integers(0, 90, int(indptr[-1])).astype(np.int32)
    x = CodeFeatures(codes_to_words(codes, 8, "rows"), 40, 8, "unsigned", None, None)
    want = host.gather(indptr, indices, x, Sampling(30, "afs"))
    there = x._replace(words=to_device(x.words))
    for longest in (30, 1 << 23):
        drawing = cuda().Drawing(to_device(indptr), (69, 90), indices.size, width=30, strategy="afs")
        assert drawing.longest == 30
        drawing.longest = longest
        kind = cuda().Codes.of(there)
        got = cuda().SampledSum(drawing, to_device(indices), columns=40, x_dtype=kind)(
            there, poisoned(want.shape, "float32")
        )
        assert np.array_equal(got.get(), want)  # integers below 2**24, so the floats are exact


def test_quantised_features() -> None:
    for name in ("pattern", "both"):
        A = operands()[name]
        there = A.to_device("cuda")
        x = np.random.default_rng(0).standard_normal((800, 40)).astype(np.float32)
        for bits, granularity in itertools.product((1, 2, 4, 8), ("tensor", "row", "col")):
            q = bs.quantize(x, bits, granularity=granularity, layout="rows")
            want = bs.sampled_spmm(A, q, 16)
            got = bs.sampled_spmm(there, q.to_device("cuda"), 16)
            assert got.dtype == want.dtype
            assert np.allclose(got.get(), want, atol=1e-4)
            out = poisoned(want.shape, np.float32)
            bs.plan_sampled_spmm(there, 40, 16)(q.to_device("cuda"), out)
            assert np.allclose(out.get(), want, atol=1e-4)


def test_the_same_bits_every_time_and_in_a_graph() -> None:
    A = operands()["both"].to_device("cuda")
    x = cp().asarray(np.random.default_rng(1).standard_normal((800, 48)).astype(np.float32))
    for store, width in itertools.product((True, False), (16, 600)):
        plan = bs.plan_sampled_spmm(A, 48, width, "uniform", seed=3, store=store)
        want, out = plan(x), cp().empty((64, 48), np.float32)
        stream = cp().cuda.Stream(non_blocking=True)
        with stream:
            plan(x, out)
            stream.synchronize()
            stream.begin_capture()
            plan(x, out)
            graph = stream.end_capture()
            for _ in range(3):
                out.fill(np.nan)
                graph.launch(stream)
                stream.synchronize()
                assert out.tobytes() == want.tobytes()


def test_what_a_pattern_keeps() -> None:
    A = operands()["values"].to_device("cuda")
    x = cp().ones((800, 8), np.float32)
    first = bs.sampled_spmm(A, x, 9)
    other = A.with_values(cp().ones(A.nnz, np.float32) * 2)
    assert not np.array_equal(bs.sampled_spmm(other, x, 9).get(), first.get())
    assert np.array_equal(bs.sampled_spmm(A, x, 9).get(), first.get())
    for width in range(1, 20):
        bs.sampled_spmm(A, x, width)
    assert len(DRAWINGS.all(store_of(A))) <= 8


def test_columns_of_cupys_matrices_and_empty_operands() -> None:
    import cupyx.scipy.sparse as cusp

    graph = GRAPHS["square"]
    x = np.random.default_rng(0).standard_normal((81, 6)).astype(np.float32)
    made = cusp.csr_matrix(sp.csr_matrix(graph))
    assert np.allclose(bs.sampled_spmm(made, to_device(x), 4).get(), bs.sampled_spmm(graph, x, 4), atol=1e-5)
    assert np.allclose(
        bs.edge_sample(made, 4).tocsr(True).toarray().get(), bs.edge_sample(graph, 4).tocsr(True).toarray()
    )
    for shape, d in (((0, 5), 3), ((4, 5), 0), ((4, 0), 3), ((4, 5), 3)):
        A = bs.FRDC(sp.csr_array(shape, dtype=bool)).to_device("cuda")
        out = poisoned((shape[0], d), np.float32)
        for store in (None, False):
            plan = bs.plan_sampled_spmm(A, d, 3, store=store)
            assert not plan(cp().zeros((shape[1], d), np.float32), out).get().any()
        assert not bs.sampled_spmm(A, cp().ones((shape[1], d), np.float32), 3, out=out).get().any()
        assert bs.edge_sample(A, 3).nnz == 0


def test_errors_say_what_to_do() -> None:
    A = operands()["pattern"]
    there, x = A.to_device("cuda"), np.ones((800, 4), np.float32)
    on_gpu = to_device(x)
    out = poisoned((64, 4), np.float32)
    cases: list[tuple[type[Exception], str, Any]] = [
        (bs.DeviceError, "A is on cuda:0 but x is on cpu", lambda: bs.sampled_spmm(there, x, 2)),
        (bs.DeviceError, "A is on cpu but x is on cuda:0", lambda: bs.sampled_spmm(A, on_gpu, 2)),
        (bs.ShapeError, "800 columns but x has 799 rows", lambda: bs.sampled_spmm(there, on_gpu[:799], 2, out=out)),
        (bs.ShapeError, "out has shape", lambda: bs.sampled_spmm(there, on_gpu, 2, out=out[:9])),
        (bs.DTypeError, "x has 3 bits", lambda: bs.sampled_spmm(there, bs.quantize(on_gpu * 2 - 1, 3), 2)),
        (bs.DTypeError, "int32", lambda: bs.sampled_spmm(there, on_gpu.astype(np.int32), 2, out=out)),
        (bs.ShapeError, "the plan is for", lambda: bs.plan_sampled_spmm(there, 5, 2)(on_gpu)),
        (bs.KernelError, "is for a GPU", lambda: bs.plan_sampled_spmm(A, 5, 2, store=True)),
        (bs.KernelError, "stored sample", lambda: bs.plan_sampled_spmm(there, 5, 2, store=False, kernel="csr")),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()
    assert (out.view(np.uint8) == 0xA5).all()
