"""Sums of packed integers on a GPU, gathered as they are: against NumPy, bit for bit, with epilogues against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.ops.spmm import codes as spmm_codes

pytestmark = pytest.mark.gpu

M, N = 60, 50


def cp() -> Any:
    import cupy

    return cupy


def graph(seed: int = 0) -> Any:
    """Empty rows, rows of all lengths and a full one."""
    rng = np.random.default_rng(seed)
    dense = rng.random((M, N)) < rng.random((M, 1)) * 0.5
    dense[::7] = False
    dense[-1] = False
    dense[3] = True
    return sp.csr_array(dense)


def rows_of_lengths(lengths: list[int]) -> tuple[Any, int]:
    """A pattern whose rows have so many edges, to columns in order and over again (which canonical patterns have not, but kernels take)."""
    columns = 64
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return (indptr, np.arange(indptr[-1]) % columns), columns


def codes_of(rng: np.random.Generator, shape: tuple[int, ...], bits: int, encoding: str) -> np.ndarray:
    low, high = {"unsigned": (0, 1 << bits), "signed": (-(1 << bits - 1), 1 << bits - 1), "bipolar": (0, 2)}[encoding]
    codes = rng.integers(low, high, shape)
    codes[rng.random(shape[0]) < 0.2] = high - 1
    codes[rng.random(shape[0]) < 0.1] = low
    return 2 * codes - 1 if encoding == "bipolar" else codes


def words_of(codes: np.ndarray, bits: int, encoding: str) -> Any:
    return cp().asarray(bs.BitTensor(codes, bits, encoding=encoding, layout="rows").words)  # type: ignore[arg-type]


def code_sum(pattern: Any, shape: tuple[int, int], index: Any = np.int32, **given: Any) -> Any:
    from bitsparse.backends.cuda.csr.schedule import Schedule
    from bitsparse.backends.cuda.spmm.codes import CodeSum
    from bitsparse.backends.params import CodeSumKind

    indptr, indices = (cp().asarray(part.astype(index)) for part in pattern)
    how = {name: given.pop(name) for name in ("chain", "tuning") if name in given}
    return CodeSum(Schedule(indptr, indices, shape, int(indices.size)), CodeSumKind(**given), **how)


def poisoned(made: Any) -> Any:
    out = cp().empty(made.shape, made.dtype)
    out.view(np.uint8).fill(0xA5)
    return out


@pytest.mark.parametrize("d", [1, 31, 33, 100, 128, 256, 602])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_sums_of_every_width(bits: int, d: int) -> None:
    rng, A = np.random.default_rng(bits * d), graph()
    for encoding, index in (("unsigned", np.int32), ("signed", np.int64)):
        if encoding == "signed" and d not in (33, 128):
            continue
        codes = codes_of(rng, (N, d), bits, encoding)
        made = code_sum((A.indptr, A.indices), (M, N), index, width=d, bits=bits, encoding=encoding)
        out = poisoned(made)
        assert made(words_of(codes, bits, encoding), out=out) is out
        np.testing.assert_array_equal(out.get(), A.astype(np.int64) @ codes)


@pytest.mark.parametrize("encoding", ["unsigned", "signed"])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_lanes_are_full(bits: int, encoding: str) -> None:
    """Rows as long as the lanes of registers hold, of the largest integers, and hubs in pieces."""
    hub = 70_000 if bits < 16 else 30_000  # whose sum fits int32
    lengths = [16, 17, 18, 84, 85, 86, 0, 255, 256, 257, 1, 7, 8, 9, 1023, 1024, 1025, hub, 0, 272, 273]
    pattern, columns = rows_of_lengths(lengths)
    for value in ((1 << bits) - 1, 0) if encoding == "unsigned" else ((1 << bits - 1) - 1, -(1 << bits - 1)):
        codes = np.full((columns, 20), value)
        for tuning in (None, *tunings(bits, 20)):
            made = code_sum(pattern, (len(lengths), columns), width=20, bits=bits, encoding=encoding, tuning=tuning)
            out = poisoned(made)
            made(words_of(codes, bits, encoding), out=out)
            np.testing.assert_array_equal(out.get(), np.array(lengths)[:, None] * np.full(20, value))


def tunings(bits: int, d: int) -> list[Any]:
    """Longest pieces and shortest, rows for warps and for groups, several in a row, other words and lanes, and one group to a warp."""
    from bitsparse.backends.cuda.csr.sums import Tuning

    return [
        Tuning(4, 2, longest=1024, limit=1024),
        Tuning(4, 32, longest=1024, limit=16, each=3),
        Tuning(1 if bits < 8 else 2, 4, unroll=16, span=8, longest=32, limit=4, each=2),
    ]


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_factors_of_nodes(bits: int) -> None:
    """A byte for each gathered row, in exact sums and means; rows of the largest products, which fill half words."""
    rng, A = np.random.default_rng(bits), graph()
    codes, factors = codes_of(rng, (N, 60), bits, "signed"), rng.integers(0, 256, N).astype(np.uint8)
    codes[5], factors[5] = -(1 << bits - 1), 255
    given: dict[str, Any] = {"width": 60, "bits": bits, "encoding": "signed", "weights": "nodes"}
    want = A.astype(np.int64) @ (codes * factors[:, None].astype(np.int64))
    for tuning in (None, *tunings(bits, 60)):
        for mean in (False, True):
            made = code_sum((A.indptr, A.indices), (M, N), tuning=tuning, mean=mean, **given)
            got = made(words_of(codes, bits, "signed"), cp().asarray(factors), out=poisoned(made)).get()
            counts = np.maximum(np.diff(A.indptr), 1)[:, None].astype(np.float32)
            np.testing.assert_array_equal(got, want.astype(np.float32) / counts if mean else want)
    lengths = [15, 16, 17, 33, 0, 1025, 4099] if bits < 16 else [15, 16, 17, 33, 0, 128]  # whose sums fit int32
    pattern, columns = rows_of_lengths(lengths)
    made = code_sum(pattern, (len(lengths), columns), **given)
    for value in ((1 << bits - 1) - 1, -(1 << bits - 1)):
        words, table = words_of(np.full((columns, 60), value), bits, "signed"), cp().full(columns, 255, np.uint8)
        got = made(words, table, out=poisoned(made)).get()
        np.testing.assert_array_equal(got, np.array(lengths)[:, None] * np.full(60, 255 * value))


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_tunings_means_heads_and_values(bits: int) -> None:
    rng, A = np.random.default_rng(bits), graph()
    pattern, degrees = (A.indptr, A.indices), np.diff(A.indptr)
    codes = codes_of(rng, (N, 3, 20), bits, "signed")
    flat = codes.reshape(N, 60)
    want = A.astype(np.int64) @ flat
    words = words_of(codes, bits, "signed")
    given: dict[str, Any] = {"width": 20, "heads": 3, "bits": bits, "encoding": "signed"}
    for tuning in (None, *tunings(bits, 60)):
        made = code_sum(pattern, (M, N), tuning=tuning, **given)
        np.testing.assert_array_equal(made(words, out=poisoned(made)).get(), want)
    made = code_sum(pattern, (M, N), mean=True, **given)
    mean = want.astype(np.float32) / np.maximum(degrees, 1).astype(np.float32)[:, None]
    np.testing.assert_array_equal(made(words, out=poisoned(made)).get(), mean)
    values = rng.integers(-100, 100, A.nnz)
    weighted = sp.csr_array((values, A.indices, A.indptr), A.shape)
    for tuning in (None, *tunings(bits, 60)):
        made = code_sum(pattern, (M, N), tuning=tuning, weights="int32", **given)
        got = made(words, cp().asarray(values.astype(np.int32)), out=poisoned(made)).get()
        np.testing.assert_array_equal(got, weighted @ flat)
    weighted.data = rng.standard_normal(A.nnz).astype(np.float32)
    for tuning, mean in ((None, True), *((tuning, False) for tuning in tunings(bits, 60))):
        made = code_sum(pattern, (M, N), tuning=tuning, weights="float32", mean=mean, **given)
        got = made(words, cp().asarray(weighted.data), out=poisoned(made)).get()
        parts = np.maximum(degrees, 1)[:, None] if mean else 1
        bound = (N + 6) * 2.0**-24 * (abs(weighted).astype(np.float64) @ abs(flat)) / parts
        assert (abs(got - weighted.astype(np.float64) @ flat / parts) <= bound).all()


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("encoding", ["unsigned", "signed"])
@pytest.mark.parametrize(("heads", "width"), [(3, 20), (4, 32), (1, 40), (7, 3)])
def test_values_of_edges_and_heads(heads: int, width: int, encoding: str, bits: int) -> None:
    """Every head as a product of its own, number by number, with integers and with floats."""
    rng, A = np.random.default_rng([bits, heads]), graph()
    pattern, degrees = (A.indptr, A.indices), np.diff(A.indptr)
    codes = codes_of(rng, (N, heads, width), bits, encoding)
    words = words_of(codes, bits, encoding)
    given: dict[str, Any] = {"width": width, "heads": heads, "bits": bits, "encoding": encoding, "per_head": True}
    whole = rng.integers(-100, 100, (A.nnz, heads)).astype(np.int32)
    real = rng.standard_normal((A.nnz, heads)).astype(np.float32)
    for tuning in (None, *tunings(bits, heads * width)):
        made = code_sum(pattern, (M, N), tuning=tuning, weights="int32", **given)
        got = made(words, cp().asarray(whole), out=poisoned(made)).get().reshape(M, heads, width)
        for head in range(heads):
            want = sp.csr_array((whole[:, head], A.indices, A.indptr), A.shape).astype(np.int64) @ codes[:, head]
            np.testing.assert_array_equal(got[:, head], want)
        for mean in (False, True):
            made = code_sum(pattern, (M, N), tuning=tuning, weights="float32", mean=mean, **given)
            got = made(words, cp().asarray(real), out=poisoned(made)).get().reshape(M, heads, width)
            parts = np.maximum(degrees, 1)[:, None] if mean else 1
            for head in range(heads):
                one = sp.csr_array((real[:, head].astype(np.float64), A.indices, A.indptr), A.shape)
                bound = (N + 6) * 2.0**-24 * (abs(one) @ abs(codes[:, head])) / parts
                assert (abs(got[:, head] - one @ codes[:, head] / parts) <= bound).all()


@pytest.mark.parametrize("kernel", [None, "codes"])
def test_values_of_edges_and_heads_through_the_public_function(kernel: str | None) -> None:
    """As features that are unpacked, within two bounds; brought by calls, and as the matrix's own; forced or by the chip's row."""
    rng, A = np.random.default_rng(8), graph()
    codes = codes_of(rng, (N, 4, 32), 8, "signed")
    weights = rng.standard_normal((A.nnz, 4)).astype(np.float32)
    pattern = bs.TCTiledCSR(A.astype(bool)).to_device("cuda")
    x = bs.BitTensor(cp().asarray(codes), 8, encoding="signed", layout="rows")
    want = bs.spmm(pattern, cp().asarray(codes.astype(np.float32)), values=cp().asarray(weights))
    plan = bs.plan_spmm(pattern, 32, heads=4, bits=8, encoding="signed", kernel=kernel)
    got = plan(x, values=cp().asarray(weights))
    assert ("float32 sums of words" in plan.explain()) == (kernel == "codes")
    bound = 2 * (N + 6) * 2.0**-24 * 128 * abs(weights).max() * N
    assert float(abs(got - want).max()) <= bound
    own = bs.spmm(pattern.with_values(cp().asarray(weights)), x, kernel=kernel)
    np.testing.assert_array_equal(own.get(), got.get())


def chains(d: int, rows: int = M) -> list[bs.Epilogue]:
    rng = np.random.default_rng(d)
    scale, *columns = (rng.standard_normal(size).astype(np.float32) for size in (rows, d, d, d, d))
    norm = bs.BatchNorm(columns[0], abs(columns[1]), columns[2], columns[3])
    return [
        bs.Epilogue(offset_correction=True),
        bs.Epilogue(row_scale=scale, col_scale=columns[0], bias=columns[1], batch_norm=norm, activation="tanh", offset_correction=True),
        bs.Epilogue(bits=4, out_scale=0.7, activation="relu", offset_correction=True),
        bs.Epilogue(bits=8, out_scale=0.3, out_offset=-2.0, bias=columns[0], layout="rows", offset_correction=True),
        bs.Epilogue(bits=3, out_scale=np.full((1, d), 0.5, np.float32), scheme="symmetric", offset_correction=True),
        bs.Epilogue(bits=2, out_scale=1.5, layout="rows", row_scale=scale, offset_correction=True),
        bs.Epilogue(bits=4, out_scale=0.9, axis=-2, offset_correction=True),
        bs.Epilogue(bits=8, out_scale=0.4, scheme="symmetric", rounding="stochastic", seed=3, offset_correction=True),
        bs.Epilogue(binarize=True, bias=columns[1], offset_correction=True),
    ]  # fmt: skip


def features_of(d: int, bits: int, encoding: str, kind: int) -> bs.BitTensor:
    rng = np.random.default_rng(kind)
    x = bs.BitTensor(
        codes_of(rng, (N, d), bits, encoding), bits, encoding=encoding, layout=("rows", "planes")[kind % 2]
    )  # type: ignore[arg-type]
    if kind == 0:
        return x
    size = () if kind == 1 else (1, d)
    return x.with_affine(*(rng.random(size).astype(np.float32) + 0.5 for _ in range(2)))


def same(got: Any, want: Any) -> None:
    if isinstance(want, bs.BitTensor):
        assert (got.shape, got.bits, got.axis, got.layout, got.encoding) == (
            want.shape, want.bits, want.axis, want.layout, want.encoding,
        )  # fmt: skip
        got, want = got.words.get(), want.words
    else:
        got = got.get()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize(
    ("bits", "encoding", "d"),
    [(8, "unsigned", 100), (4, "signed", 128), (2, "unsigned", 33), (16, "signed", 40), (1, "bipolar", 65)],
)
def test_epilogues_are_the_hosts(
    bits: int, encoding: str, d: int, kernels: int, reduce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spmm_codes, "ONE_KERNEL_BYTES", 0 if kernels == 1 else 1 << 30)
    monkeypatch.setattr(spmm_codes, "FEW_EDGES", 0)
    A = bs.TCTiledCSR(graph())
    scaled = bs.TCTiledCSR(graph(), row_scale=np.random.default_rng(1).random(M).astype(np.float32))
    for i, epilogue in enumerate(chains(d)):
        x, adjacency = features_of(d, bits, encoding, i % 3), (A, scaled)[i % 2]
        want = bs.spmm(adjacency, x, reduce=reduce, epilogue=epilogue)
        there, moved = adjacency.to_device("cuda"), x.to_device("cuda")
        same(bs.spmm(there, moved, reduce=reduce, epilogue=epilogue), want)
        plan = bs.plan_spmm(there, d, bits=bits, encoding=encoding, reduce=reduce, epilogue=epilogue)  # type: ignore[arg-type]
        out = want.to_device("cuda") if isinstance(want, bs.BitTensor) else cp().asarray(want)
        (out.words if isinstance(want, bs.BitTensor) else out).view(np.uint8).fill(0xA5)
        assert plan(moved, out=out) is out
        same(out, want)
        plan.check()
        assert "kernel codes" in plan.explain()


def test_rows_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """More lanes than a group has, and pads of the result beyond those of the features."""
    monkeypatch.setattr(spmm_codes, "ONE_KERNEL_BYTES", 0)
    A, x = bs.TCTiledCSR(graph()), features_of(602, 8, "unsigned", 2)
    for epilogue in (chains(602)[2], chains(602)[1]):
        want = bs.spmm(A, x, epilogue=epilogue)
        same(bs.spmm(A.to_device("cuda"), x.to_device("cuda"), epilogue=epilogue), want)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 12, 16])
def test_public_sums_are_the_hosts(bits: int) -> None:
    """Every layout and packed axis, heads, values, means, a maximum; dtypes as on the CPU."""
    rng, A = np.random.default_rng(bits), graph()
    there = bs.TCTiledCSR(A).to_device("cuda")
    for encoding in ("unsigned", "signed", *(("bipolar",) if bits == 1 else ())):
        codes = codes_of(rng, (N, 37), bits, encoding)
        layouts = ("planes", "rows") if bits in (1, 2, 4, 8, 16) else ("planes",)
        for layout, axis in ((layout, axis) for layout in layouts for axis in (-1, -2)):
            x = bs.BitTensor(codes, bits, encoding=encoding, layout=layout, axis=axis)  # type: ignore[arg-type]
            for reduce in ("sum", "mean") if axis == -1 else ("max",):
                want = bs.spmm(A, x, reduce=reduce)  # type: ignore[arg-type]
                got = bs.spmm(there, x.to_device("cuda"), reduce=reduce)  # type: ignore[arg-type]
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got.get(), want)
    values = rng.integers(-9, 9, A.nnz).astype(np.int8)
    x = bs.BitTensor(codes_of(rng, (N, 2, 40), bits, "unsigned"), bits)
    edges = bs.BitTensor(codes_of(rng, (A.nnz, 21), bits, "unsigned"), bits)
    for side in ("rows", "cols"):
        want = bs.aggregate_edges(A, edges, side=side)  # type: ignore[arg-type]
        got = bs.aggregate_edges(there, edges.to_device("cuda"), side=side)  # type: ignore[arg-type]
        np.testing.assert_array_equal(got.get(), want)
    want = bs.spmm(A, x, values=values)
    np.testing.assert_array_equal(bs.spmm(there, x.to_device("cuda"), values=cp().asarray(values)).get(), want)


@pytest.mark.parametrize("bits", [1, 8])
def test_real_values_are_found_from_exact_sums(bits: int) -> None:
    """Without an epilogue, within the stated bound; scales by node, values and factors of columns are summed with the features."""
    rng, A = np.random.default_rng(bits), graph()
    x = bs.BitTensor(codes_of(rng, (N, 37), bits, "unsigned"), bits, layout="rows")
    row, col = (rng.random(size).astype(np.float32) for size in (M, N))
    one, other = {"row_scale": row}, {"col_scale": col}
    kinds = (((), {}, "sum"), ((1, 37), one, "mean"), ((1, 37), other, "sum"), ((N, 1), {}, "sum"))
    for size, factors, reduce in kinds:
        scale, offset = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
        real, there = x.with_affine(scale, offset), bs.TCTiledCSR(A, **factors)
        got = bs.spmm(there.to_device("cuda"), real.to_device("cuda"), reduce=reduce)  # type: ignore[arg-type]
        assert got.dtype == np.float32
        weights = A.astype(np.float64).toarray()
        if reduce == "mean":
            weights /= np.maximum(np.diff(A.indptr), 1)[:, None]
        weights = weights * factors.get("row_scale", np.ones(M))[:, None] * factors.get("col_scale", np.ones(N))
        codes = x.toarray().astype(np.float64)
        bound = (N + 6) * 2.0**-24 * (weights @ (abs(codes * scale) + abs(offset)))
        if factors.keys() != {"col_scale"} and size != (N, 1):
            bound *= 6 / (N + 6)
        assert (abs(got.get() - weights @ (codes * scale + offset)) <= bound).all()


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_float_weights_and_factors(bits: int) -> None:
    """Values and scales on the edges: float32 sums within the bound of spmm, with an epilogue behind them or without."""
    rng, A = np.random.default_rng(bits), graph()
    values = rng.standard_normal(A.nnz).astype(np.float32)
    row, col = (rng.random(size).astype(np.float32) for size in (M, N))
    x = bs.BitTensor(codes_of(rng, (N, 40), bits, "unsigned"), bits, layout="rows")
    codes, moved = x.toarray().astype(np.float64), x.to_device("cuda")
    weighted = sp.csr_array((values, A.indices, A.indptr), A.shape)
    one, other = {"row_scale": row}, {"col_scale": col}
    for matrix, factors in ((weighted, {}), (A, one | other), (weighted, other), (A, one)):
        there = bs.TCTiledCSR(matrix, **factors).to_device("cuda")
        full = matrix.astype(np.float64).toarray()
        full = full * factors.get("row_scale", np.ones(M))[:, None] * factors.get("col_scale", np.ones(N))
        bound = (N + 6) * 2.0**-24 * (abs(full) @ codes)
        out = cp().full((M, 40), np.nan, np.float32)
        plan = bs.plan_spmm(there, 40, bits=bits)
        assert plan(moved, out=out) is out
        assert (abs(out.get() - full @ codes) <= bound).all()
        assert bits == 1 or "kernel codes" in plan.explain()
        got = bs.spmm(there, moved, epilogue=bs.Epilogue(bias=np.ones(40, np.float32))).get()
        assert (abs(got - (full @ codes + 1)) <= bound + 1e-6 * (1 + abs(full @ codes))).all()
    there = bs.TCTiledCSR(A).to_device("cuda")
    got = bs.spmm(there, moved, values=cp().asarray(values)).get()
    assert (abs(got - weighted.astype(np.float64) @ codes) <= (N + 6) * 2.0**-24 * (abs(weighted) @ codes)).all()


def test_plans_name_their_own_kernel() -> None:
    """Before and after the first product, whatever else the container keeps."""
    rng, A = np.random.default_rng(0), bs.TCTiledCSR(graph()).to_device("cuda")
    weighted = A.with_values(cp().asarray(rng.standard_normal(A.nnz).astype(np.float32)))
    relu = bs.Epilogue(activation="relu")
    floats = bs.plan_spmm(A, 40)
    given: dict[str, Any]
    for there, bits, given, wanted in (
        (A, 8, {}, "8 unsigned bits: kernel codes (spmm_codes, integer sums"),
        (A, 1, {"reduce": "mean"}, "1 unsigned bits: kernel codes (bspmm_count"),
        (A, 4, {"epilogue": relu}, "the epilogue in a kernel of its own"),
        (A, 1, {"epilogue": relu}, "the epilogue in a kernel of its own"),
        (weighted, 2, {}, "2 unsigned bits: kernel codes (spmm_codes, float32 sums"),
        (
            weighted,
            1,
            {},
            "1 unsigned bits as uint8 (single bits are counted only without values and scales): kernel csr",
        ),
        (A, 3, {}, "3 unsigned bits as uint8 (features are gathered packed only with 1, 2, 4, 8 or 16 bits"),
        (A, 8, {"reduce": "max"}, "8 unsigned bits as uint8 (a maximum is taken of unpacked integers): kernel csr"),
        (
            A,
            8,
            {"kernel": "csr"},
            "8 unsigned bits as uint8 (kernel 'csr' takes unpacked features): kernel csr (forced",
        ),
    ):
        plan = bs.plan_spmm(there, 40, bits=bits, **given)
        said = plan.explain()
        assert wanted in said
        assert said.count("kernel c") == 1
        x = bs.BitTensor(rng.integers(0, 2, (N, 40)), bits).to_device("cuda")
        plan(x)
        assert plan.explain() == said
    plan = bs.plan_spmm(A, 40, bits=8)
    real = bs.BitTensor(rng.integers(0, 9, (N, 40)), 8).with_affine(rng.random((N, 1)).astype(np.float32), None)
    plan(real.to_device("cuda"))
    assert "8 unsigned bits as float32 (" in plan.explain()
    assert floats.explain().count("kernel") == 1


def test_a_plan_in_a_graph_and_wrong_calls() -> None:
    cupy = cp()
    A, d = bs.TCTiledCSR(graph()).to_device("cuda"), 48
    epilogue = bs.Epilogue(bits=4, out_scale=0.5, layout="rows", offset_correction=True)
    plan = bs.plan_spmm(A, d, bits=4, epilogue=epilogue)
    x = features_of(d, 4, "unsigned", 0).with_affine(0.5, 1.0).to_device("cuda")
    first = plan(x)
    out = plan(x)
    other = bs.plan_spmm(A, d, bits=4, epilogue=bs.Epilogue(bits=4, out_scale=0.5, axis=-2, offset_correction=True))
    turned = other(x)
    first_turned = turned.copy()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for each, into in ((plan, out), (other, turned)):
            each(x, out=into)
            stream.synchronize()
            stream.begin_capture()
            each(x, out=into)
            captured = stream.end_capture()
            into.words.fill(0)
            captured.launch(stream)
    stream.synchronize()
    same(out, first.to_device("cpu"))
    same(turned, first_turned.to_device("cpu"))
    with pytest.raises(bs.errors.DTypeError, match="8 unsigned bits, but the plan is for 4 unsigned bits"):
        plan(features_of(d, 8, "unsigned", 0).to_device("cuda"))
    with pytest.raises(ValueError, match="offset_correction"):
        bs.spmm(A, x, epilogue=bs.Epilogue())
    with pytest.raises(bs.errors.KernelError, match="a maximum is taken of unpacked integers"):
        bs.spmm(A, x.with_affine(), reduce="max", kernel="codes")
    with pytest.raises(bs.errors.KernelError, match="x is not packed"):
        bs.plan_spmm(A, d, kernel="codes")
    with pytest.raises(bs.errors.ShapeError, match="takes rows and columns"):
        bs.spmm(A, cupy.ones((N, 2, 3), np.int8), epilogue=epilogue)
    for kernel in ("csr", "codes"):
        np.testing.assert_array_equal(
            bs.spmm(A, x.with_affine(), kernel=kernel).get(), bs.spmm(A, x.with_affine()).get()
        )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("bits", "width", "nodes"), [(8, 41, False), (8, 64, True), (4, 33, False), (2, 7, True)])
def test_sums_become_real_numbers_at_once(bits: int, width: int, nodes: bool, own: bool) -> None:
    """A rounding to each step, sums and means, with factors of the rows and without, and multiples of the rows themselves."""
    from bitsparse.backends.params import SumScales

    rng, A = np.random.default_rng(bits), graph()
    codes, factors = codes_of(rng, (N, width), bits, "signed"), rng.integers(1, 256, N)
    scale, rows = np.float32(0.3711), rng.standard_normal(M).astype(np.float32)
    x, factor = rng.standard_normal((M, width)).astype(np.float32), np.array([1.3], np.float32)
    bias = rng.standard_normal(width).astype(np.float32)
    sums = A.astype(np.int64) @ (codes * factors[:, None] if nodes else codes)
    counts = np.maximum(np.diff(A.indptr), 1)[:, None].astype(np.float32)
    given: dict[str, Any] = {"width": width, "bits": bits, "encoding": "signed", "scaled": True}
    table = cp().asarray(factors.astype(np.uint8)) if nodes else None
    for mean in (False, True):
        made = code_sum((A.indptr, A.indices), (M, N), mean=mean, weights="nodes" if nodes else "none", **given)
        for by_rows in (None, rows):
            want = sums.astype(np.float32) / counts if mean else sums.astype(np.float32)
            want = (want if by_rows is None else want * rows[:, None]) * scale
            want = want + factor * x + bias if own else want
            parts = [
                None if part is None else cp().asarray(part) for part in (np.array(scale), by_rows, x, factor, bias)
            ]
            scales = SumScales(*parts[: 5 if own else 2])
            words = words_of(codes, bits, "signed")
            wider = cp().full((N, words.shape[1] + 4), 0xA5A5A5A5, np.uint32)  # of which the end is nobody's
            wider[:, :-4] = words
            for each in (words, wider):
                got = made(each, table, out=poisoned(made), scales=scales).get()
                np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))
