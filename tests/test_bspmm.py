"""One-bit aggregation: kernels agree with the reference, the eight variants with NumPy, and thresholds with the float chain."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import bitsparse as bs
from bitsparse.backends import host as host_backend
from bitsparse.backends.host import settings
from bitsparse.backends.host.binary import bspmm as compiled
from bitsparse.backends.params import METHODS, Thresholds
from bitsparse.backends.reference.binary import bspmm as oracle
from bitsparse.backends.reference.bits.pack import codes_to_words

LEVELS = host_backend.simd_levels()


@pytest.fixture(autouse=True)
def _threads_for_small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "work_per_thread", 0)


#: Widths around words, groups of 128 bits and all vector widths.
WIDTHS = [1, 31, 33, 127, 128, 129, 256, 300, 385, 512, 513, 1000]


@dataclass
class Scaled:
    """A stand-in for any container: a pattern with factorised weights."""

    matrix: Any
    row_scale: Any = None
    col_scale: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def csr_arrays(self) -> tuple[Any, Any, Any]:
        values = None if self.matrix.dtype == bool else self.matrix.data
        return self.matrix.indptr, self.matrix.indices, values


def pattern(rng: np.random.Generator, lengths: list[int], cols: int, index: Any = np.int32) -> tuple[Any, Any]:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    rows = [np.sort(rng.choice(cols, n, replace=False)) for n in lengths]
    return indptr, np.concatenate([*rows, []]).astype(index)


def features(rng: np.random.Generator, nodes: int, d: int) -> np.ndarray:
    return codes_to_words(rng.integers(0, 2, (nodes, d)), 1, "planes")


def graph(rng: np.random.Generator, m: int = 40, n: int = 30, density: float = 0.2) -> sp.csr_array:
    """A bool matrix with empty rows and one full row."""
    dense = rng.random((m, n)) < density
    dense[::7] = False
    dense[1] = True
    return sp.csr_array(dense)


# ---- kernels
#: Row lengths: all remainders modulo 8 and 16, powers of two, a hub, and empty rows.
LENGTHS = [*range(36), 0, 63, 64, 65, 127, 128, 255, 256, 700, 0]


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("d", WIDTHS)
def test_kernels_agree_with_the_reference(d: int, level: str, index: Any, host: Any) -> None:
    rng = np.random.default_rng(d)
    host.set_simd(level)
    indptr, indices = pattern(rng, LENGTHS, 900, index)
    words = features(rng, 900, d)
    rows = len(LENGTHS)
    for bipolar in (True, False):
        want = oracle.count(indptr, indices, words, d, bipolar=bipolar)
        for kernel in METHODS:
            got = compiled.count(indptr, indices, words, d, bipolar=bipolar, kernel=kernel)
            assert got.dtype == np.int32
            assert np.array_equal(got, want)
        several = Thresholds(
            rng.integers(-30, 31, (3, d)), rng.random((3, d)) < 0.5, rng.integers(0, 3, rows).astype(np.int32), 700
        )
        per_feature = Thresholds(rng.integers(-701, 702, (1, d)), rng.random((1, d)) < 0.5, None, 700)
        one = Thresholds(np.full((1, 1), 3), np.full((1, 1), d % 2 == 1), None, 700)
        for limits in (several, per_feature, one):
            got = compiled.sign(indptr, indices, words, d, limits, bipolar=bipolar)
            assert np.array_equal(got, oracle.sign(indptr, indices, words, d, limits, bipolar=bipolar))


def test_the_three_ways_are_three_computations_in_the_reference() -> None:
    rng = np.random.default_rng(1)
    indptr, indices = pattern(rng, [0, 5, 9], 12)
    words = features(rng, 12, 20)
    results = [oracle.count(indptr, indices, words, 20, bipolar=True, kernel=k) for k in METHODS]
    assert all(np.array_equal(results[0], result) for result in results[1:])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (3, 4)])
@pytest.mark.parametrize("d", [0, 7])
def test_empty_things(shape: tuple[int, int], d: int) -> None:
    A = sp.csr_array(shape, dtype=bool)
    x = bs.pack_bits(np.ones((shape[1], d)), encoding="bipolar")
    assert bs.bspmm(A, x).shape == (shape[0], d)
    assert not bs.bspmm(A, x).any()
    signs = bs.bspmm(A, x, "BBB")
    assert signs.shape == (shape[0], d)
    assert (signs.toarray() == 1).all()
    assert bs.bspmm(A, np.ones((shape[1], d), np.float32), "FBB").shape == (shape[0], d)
    # from_words checks that padding bits stay zero, although every sign is +1.
    bs.BitTensor.from_words(signs.words, signs.shape, 1, encoding="bipolar")


# ---- the eight variants
CONTAINERS = ["csr", "csc", "coo", "lil", "bit tensor", "frdc", "tc tiled", "scaled"]


def real(x: Any) -> np.ndarray:
    """Values of features in float64, scales included."""
    if isinstance(x, bs.BitTensor):
        values = x.toarray().astype(np.float64)
        return values if x.scale is None else values * x.scale
    return np.asarray(x, np.float64)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("variant", ["".join(v) for v in itertools.product("FB", "FB", "FB")])
def test_variants_against_numpy(variant: str, scaled: bool, reduce: str) -> None:
    rng = np.random.default_rng(7)
    A, d = graph(rng), 45
    weights = A.astype(np.float32)
    weights.data = rng.standard_normal(A.nnz).astype(np.float32)
    raw = rng.standard_normal((30, d)).astype(np.float32)
    x = bs.pack_bits(raw, encoding="bipolar") if variant[0] == "B" else raw
    matrix = weights if variant[1] == "F" else A
    row, col = rng.standard_normal(40).astype(np.float32), rng.random(30).astype(np.float32)
    operand = Scaled(matrix, row, col) if scaled else matrix
    got = bs.bspmm(operand, x, variant, reduce=reduce)

    dense = matrix.toarray().astype(np.float64)
    dense = dense * row[:, None] * col if scaled else dense
    counts = np.maximum(np.diff(A.indptr), 1)[:, None] if reduce == "mean" else 1.0
    want, size = dense @ real(x) / counts, np.abs(dense) @ np.abs(real(x)) / counts
    bound = 40 * 2.0**-24 * size
    if variant[2] == "F":
        exact = variant == "BBF" and not scaled and reduce == "sum"
        assert got.dtype == (np.int32 if exact else np.float32)
        assert (np.abs(got - want) <= (0 if exact else bound)).all()
    else:
        assert isinstance(got, bs.BitTensor)
        assert (got.bits, got.encoding, got.axis) == (1, "bipolar", -1)
        clear = np.abs(want) > bound
        assert clear.mean() > 0.5
        signs = got.toarray()
        assert np.array_equal(signs[clear], np.where(want >= 0, 1, -1)[clear])
        # An empty row sums to 0, and sign(0) is +1.
        assert (signs[::7] == 1).all()


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_of_the_adjacency(container: str) -> None:
    rng = np.random.default_rng(2)
    A = graph(rng)
    make: dict[str, Any] = {
        "csr": A,
        "csc": A.tocsc(),
        "coo": A.tocoo(),
        "lil": A.tolil(),
        "bit tensor": bs.BitTensor(A, 1),
        "frdc": bs.FRDC(A),
        "tc tiled": bs.TCTiledCSR(A),
        "scaled": Scaled(A),
    }
    x = bs.pack_bits(rng.standard_normal((30, 70)), encoding="bipolar")
    want = A.toarray().astype(np.int32) @ x.toarray().astype(np.int32)
    assert np.array_equal(bs.bspmm(make[container], x), want)


@pytest.mark.parametrize("container", [bs.FRDC, bs.TCTiledCSR])
def test_factorised_weights_of_the_containers(container: Any) -> None:
    rng = np.random.default_rng(14)
    A, raw = graph(rng, 30), rng.standard_normal((30, 70)).astype(np.float32)
    row, col = rng.random(30).astype(np.float32), rng.random(30).astype(np.float32)
    weighted = container(A, row_scale=row, col_scale=col)
    dense = A.toarray() * row[:, None].astype(np.float64) * col
    for x in (raw, bs.pack_bits(raw, encoding="bipolar")):
        assert np.allclose(bs.bspmm(weighted, x), dense @ real(x), atol=1e-4)
        assert np.allclose(bs.sampled_spmm(weighted, real(x), 64), dense @ real(x), atol=1e-12)


def test_duplicates_explicit_zeros_and_unsorted_indices() -> None:
    x = bs.pack_bits(np.array([[1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]]), encoding="bipolar")
    A = sp.csr_array(
        (np.array([2.0, 0.0, 3.0, 1.0], np.float32), np.array([2, 1, 0, 2]), np.array([0, 4])), shape=(1, 3)
    )
    assert not A.has_sorted_indices
    # "F" takes values and sums duplicates; "B" takes the pattern, without the explicit zero.
    assert bs.bspmm(A, x, "BFF").tolist() == [[6.0, 0.0]]
    assert bs.bspmm(A, x, "BBF").tolist() == [[2, 0]]
    assert A.nnz == 4, "the caller's matrix was changed"


def test_unsigned_bits_are_summed_as_zero_and_one() -> None:
    rng = np.random.default_rng(3)
    A, values = graph(rng), rng.integers(0, 2, (30, 50))
    x = bs.pack_bits(values)
    want = A.toarray().astype(np.int32) @ values
    for kernel in (None, *METHODS):
        assert np.array_equal(bs.bspmm(A, x, kernel=kernel), want)
    at_two = bs.Epilogue(bias=np.float32(-2), binarize=True)
    for kernel in (None, *METHODS):
        assert np.array_equal(bs.bspmm(A, x, "BBB", epilogue=at_two, kernel=kernel).toarray() == 1, want >= 2)


@pytest.mark.parametrize(("axis", "layout"), list(itertools.product((-1, -2), ("planes", "rows"))))
def test_packed_axis_and_layout_of_operand_and_result(axis: int, layout: str) -> None:
    rng = np.random.default_rng(4)
    A, x = graph(rng), bs.pack_bits(rng.standard_normal((30, 50)), encoding="bipolar")
    want = bs.bspmm(A, x, "BBB").toarray()
    got = bs.bspmm(
        A, x.repack(axis=axis, layout=layout), "BBB", epilogue=bs.Epilogue(binarize=True, axis=axis, layout=layout)
    )
    assert (got.axis, got.layout) == (axis, layout)
    assert np.array_equal(got.toarray(), want)


# ---- thresholds
def chain_signs(A: Any, x: Any, epilogue: bs.Epilogue, mean: bool = False) -> np.ndarray | None:
    """Sign of the float32 chain applied to the exact sums by the public Epilogue, or None if the chain gives NaN."""
    sums = bs.bspmm(A, x)
    if mean:
        counts = np.maximum(np.diff(A.indptr), 1).astype(np.float32)[:, None]
        sums = sums.astype(np.float32) / counts
    values = epilogue(sums)
    return None if np.isnan(values).any() else np.where(values >= 0, 1, -1)


NASTY = [0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 3.0, 1e-30, -1e-30, 1e-42, 2.0**-149, 7.5, -12.25, 1e30, -1e30, 16777216.0]


@st.composite
def chains(draw: Any) -> dict[str, Any]:
    """Scales and biases that lead to exact ties, underflow, signed zeros and large cancellations."""
    number = st.one_of(st.sampled_from(NASTY), st.floats(-40, 40, width=32))
    few = st.lists(number, min_size=9, max_size=9).map(lambda v: np.array(v, np.float32))
    chosen: dict[str, Any] = {}
    for name in ("col_scale", "bias"):
        if draw(st.booleans()):
            chosen[name] = draw(few)
    if draw(st.booleans()):
        chosen["row_scale"] = np.array(draw(st.lists(number, min_size=2, max_size=2)), np.float32)[np.arange(40) % 2]
    if draw(st.booleans()):
        positive = st.lists(st.floats(0.015625, 9, width=32), min_size=9, max_size=9)
        mild = st.lists(st.floats(-40, 40, width=32), min_size=9, max_size=9)
        chosen["batch_norm"] = (draw(mild), draw(positive), draw(mild), draw(few))
    chosen["activation"] = draw(st.sampled_from([None, "relu", "leaky_relu", "tanh"]))
    chosen["negative_slope"] = draw(st.sampled_from([0.01, 0.0, -0.5, 1e-45, 2.0]))
    return chosen


@given(chains(), st.booleans(), st.integers(0, 5))
def test_thresholds_are_the_sign_of_the_float_chain(chosen: dict[str, Any], mean: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, x = graph(rng, 40, 30, 0.3), bs.pack_bits(rng.standard_normal((30, 9)), encoding="bipolar")
    epilogue, plain = bs.Epilogue(binarize=True, **chosen), bs.Epilogue(**chosen)
    want = chain_signs(A, x, plain, mean)
    if want is None:
        with pytest.raises(ValueError, match="NaN"):
            bs.bspmm(A, x, "BBB", epilogue=epilogue)
        return
    got = bs.bspmm(A, x, "BBB", epilogue=epilogue, reduce="mean" if mean else "sum").toarray()
    assert np.array_equal(got, want)


@pytest.mark.parametrize("kernel", METHODS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_negative_scales_turn_the_comparison_round(sign: float, kernel: str) -> None:
    rng = np.random.default_rng(5)
    A, x = graph(rng, 200), bs.pack_bits(rng.standard_normal((30, 64)), encoding="bipolar")
    # Two classes of rows, with factors of opposite signs, and a factor per feature.
    row = np.where(np.arange(200) % 2 == 0, sign, -0.5 * sign).astype(np.float32)
    col = np.where(np.arange(64) % 3 == 0, -1.0, 0.25).astype(np.float32)
    epilogue = bs.Epilogue(row_scale=row, col_scale=col, bias=rng.standard_normal(64), binarize=True)
    got = bs.bspmm(A, x, "BBB", epilogue=epilogue, kernel=kernel).toarray()
    plain = bs.Epilogue(row_scale=row, col_scale=col, bias=epilogue.bias)
    assert np.array_equal(got, chain_signs(A, x, plain))


@pytest.mark.parametrize("distinct", [1, 3, 200])
def test_row_scales_of_the_adjacency(distinct: int) -> None:
    """The bits must be the same with classes of thresholds (few distinct factors) and with the chain itself (many)."""
    rng = np.random.default_rng(6)
    A, x = graph(rng, 200), bs.pack_bits(rng.standard_normal((30, 33)), encoding="bipolar")
    row = rng.standard_normal(distinct).astype(np.float32)[np.arange(200) % distinct]
    bias = rng.standard_normal(33).astype(np.float32)
    got = bs.bspmm(Scaled(A, row), x, "BBB", epilogue=bs.Epilogue(bias=bias, binarize=True)).toarray()
    assert np.array_equal(got, chain_signs(A, x, bs.Epilogue(row_scale=row, bias=bias)))


def test_dropping_a_positive_scale_without_bias_changes_nothing() -> None:
    rng = np.random.default_rng(8)
    A, x = graph(rng), bs.pack_bits(rng.standard_normal((30, 40)), encoding="bipolar")
    scaled = bs.bspmm(Scaled(A, rng.random(40).astype(np.float32) + 0.1), x, "BBB")
    assert np.array_equal(scaled.words, bs.bspmm(A, x, "BBB").words)


# ---- add, scales of the bits, out
def test_add_before_the_epilogue() -> None:
    rng = np.random.default_rng(9)
    A, x = graph(rng, 30), bs.pack_bits(rng.standard_normal((30, 20)), encoding="bipolar")
    sums = bs.bspmm(A, x)
    assert np.array_equal(bs.bspmm(A, x, add=x), sums + x.toarray())
    assert bs.bspmm(A, x, add=x).dtype == np.int32
    large = np.full((30, 20), 2**31 - 1, np.int64)
    assert np.array_equal(bs.bspmm(A, x, add=large), sums + large)
    own = rng.standard_normal((30, 20)).astype(np.float32)
    row = rng.standard_normal(30).astype(np.float32)
    epilogue = bs.Epilogue(bias=rng.standard_normal(20), activation="relu", row_scale=rng.standard_normal(30))
    want = epilogue(bs.Epilogue(row_scale=row)(sums) + own)
    assert np.array_equal(bs.bspmm(Scaled(A, row), x, add=own, epilogue=epilogue), want)
    signs = bs.bspmm(Scaled(A, row), x, "BBB", add=own)
    assert np.array_equal(signs.toarray(), np.where(bs.Epilogue(row_scale=row)(sums) + own >= 0, 1, -1))


@pytest.mark.parametrize("shape", [(1, 1), (30, 1), (1, 20)])
def test_scales_of_the_bits(shape: tuple[int, int]) -> None:
    """Scales of packed features, as in Bi-GCN, must count for float results only; scales per node weight the neighbours."""
    rng = np.random.default_rng(10)
    A, x = graph(rng), bs.pack_bits(rng.standard_normal((30, 20)), encoding="bipolar")
    scale = rng.random(shape).astype(np.float32) + np.float32(0.5)
    y = x.with_affine(scale)
    assert np.array_equal(bs.bspmm(A, y), bs.bspmm(A, x))
    got = bs.bspmm(A, y, epilogue=bs.Epilogue())
    want = A.toarray().astype(np.float64) @ (x.toarray() * scale.astype(np.float64))
    assert got.dtype == np.float32
    assert np.abs(got - want).max() < 1e-4


def test_out_is_written_in_place() -> None:
    rng = np.random.default_rng(11)
    A, x = graph(rng), bs.pack_bits(rng.standard_normal((30, 20)), encoding="bipolar")
    out = np.empty((40, 20), np.int32)
    assert bs.bspmm(A, x, out=out) is out
    assert np.array_equal(out, bs.bspmm(A, x))
    bits = bs.bspmm(A, bs.pack_bits(-x.toarray(np.float32), encoding="bipolar"), "BBB")
    assert bs.bspmm(A, x, "BBB", out=bits) is bits
    assert np.array_equal(bits.toarray(), bs.bspmm(A, x, "BBB").toarray())
    with pytest.raises(bs.DTypeError, match="out has dtype float64"):
        bs.bspmm(A, x, out=np.empty((40, 20)))
    with pytest.raises(bs.ShapeError, match="out"):
        bs.bspmm(A, x, "BBB", out=bs.pack_bits(np.ones((40, 21)), encoding="bipolar"))
    with pytest.raises(bs.DTypeError, match="BitTensor"):
        bs.bspmm(A, x, "BBB", out=out)
    with pytest.raises(bs.DTypeError, match="ordinary"):
        bs.bspmm(A, x, out=bits)


# ---- determinism
@pytest.mark.parametrize("variant", ["FBF", "BFF", "FFF", "FFB", "BBF", "BBB"])
def test_same_bits_for_every_level_and_thread_count(variant: str, host: Any) -> None:
    rng = np.random.default_rng(12)
    A = graph(rng, 700, 300, 0.1)
    weights = A.astype(np.float32)
    weights.data = rng.standard_normal(A.nnz).astype(np.float32)
    raw = rng.standard_normal((300, 83)).astype(np.float32)
    x = bs.pack_bits(raw, encoding="bipolar") if variant[0] == "B" else raw
    results = set()
    for level, threads in itertools.product(LEVELS, (1, 2, 5)):
        host.set_simd(level)
        host.set_num_threads(threads)
        got = bs.bspmm(weights if variant[1] == "F" else A, x, variant)
        results.add((got.words if variant[2] == "B" else got).tobytes())
    assert len(results) == 1


# ---- errors
def test_errors_say_what_to_do() -> None:
    rng = np.random.default_rng(13)
    A, raw = graph(rng), rng.standard_normal((30, 20)).astype(np.float32)
    x = bs.pack_bits(raw, encoding="bipolar")
    cases: list[tuple[type[Exception], str, Any]] = [
        (bs.ShapeError, "30 columns but x has 29 rows", lambda: bs.bspmm(A, x[:29])),
        (bs.ShapeError, "2 dimensions", lambda: bs.bspmm(A, raw[None])),
        (bs.DTypeError, "float64", lambda: bs.bspmm(A, raw.astype(np.float64))),
        (bs.DTypeError, "int64", lambda: bs.bspmm(A, raw.astype(np.int64))),
        (bs.DTypeError, "wants letter B for x.*pack_bits", lambda: bs.bspmm(A, raw, "BBB")),
        (bs.DTypeError, "wants letter F for x", lambda: bs.bspmm(A, x, "FBB")),
        (bs.DTypeError, "x has 2 bits", lambda: bs.bspmm(A, bs.pack_bits(np.ones((30, 4), int), 2))),
        (
            bs.DTypeError,
            "one signed bit",
            lambda: bs.bspmm(A, bs.BitTensor(-np.ones((30, 4), int), 1, encoding="signed")),
        ),
        (bs.DTypeError, "must be sparse", lambda: bs.bspmm(A.toarray(), x)),
        (ValueError, "bipolar, so that it has no zeros", lambda: bs.bspmm(bs.pack_bits(raw.T, encoding="bipolar"), x)),
        (ValueError, "variant must be one of", lambda: bs.bspmm(A, x, "BB")),
        (ValueError, "reduce must be one of", lambda: bs.bspmm(A, x, reduce="max")),
        (ValueError, "ends in B", lambda: bs.bspmm(A, x, "BBF", epilogue=bs.Epilogue(binarize=True))),
        (ValueError, "asks for 3 bits", lambda: bs.bspmm(A, x, epilogue=bs.Epilogue(bits=3, out_scale=1.0))),
        (ValueError, "offset", lambda: bs.bspmm(A, x.with_affine(1.0, 2.0))),
        (bs.KernelError, "no kernel 'fast'", lambda: bs.bspmm(A, x, kernel="fast")),
        (bs.KernelError, "counts bits", lambda: bs.bspmm(A, raw, kernel="plus-minus")),
        (bs.ShapeError, "add has shape", lambda: bs.bspmm(A, x, add=raw)),
        (bs.ShapeError, "bias", lambda: bs.bspmm(A, x, epilogue=bs.Epilogue(bias=np.ones(3)))),
        (bs.DTypeError, "epilogue must be", lambda: bs.bspmm(A, x, epilogue=3)),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()
    # Kernel "select" also works on numbers.
    assert np.array_equal(bs.bspmm(A, raw, kernel="select"), bs.bspmm(A, raw))


def test_nan_features_reach_float_results_and_are_refused_as_bits() -> None:
    A = sp.csr_array(np.array([[1, 0], [0, 1]], dtype=bool))
    x = np.array([[np.nan], [1.0]], np.float32)
    assert np.isnan(bs.bspmm(A, x)[0, 0])
    with pytest.raises(ValueError, match="NaN"):
        bs.bspmm(A, x, "FBB")


def test_a_real_graph(cora: Any) -> None:
    A, _ = cora
    A = A.astype(bool)
    rng = np.random.default_rng(0)
    x = bs.pack_bits(rng.standard_normal((A.shape[1], 100)), encoding="bipolar")
    want = A.astype(np.int32) @ x.toarray().astype(np.int32)
    assert np.array_equal(bs.bspmm(A, x), want)
    assert np.array_equal(bs.bspmm(A, x, "BBB").toarray(), np.where(want >= 0, 1, -1))


@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu", "tanh"])
def test_limits_of_float_sums_are_where_the_chain_changes_its_sign(activation: Any) -> None:
    """At the limit with which a GPU compares float sums, and at the two floats next to it, signs must be those of the chain."""
    from bitsparse.backends.cuda.finish.floats import _limits
    from bitsparse.backends.host.matmul import matmul as host_matmul
    from bitsparse.backends.params import EpilogueParams

    rng = np.random.default_rng(20)
    vectors = [rng.standard_normal(70).astype(np.float32) for _ in range(4)]
    vectors[0][:4], vectors[2][3:6] = (0, -0.0, 1e30, 1e-30), (0, 1e20, -1e-20)
    names = ("col_scale", "bias", "bn_scale", "bn_shift")
    chain = EpilogueParams(activation=activation, **dict(zip(names, vectors, strict=True)))
    limits, words = _limits(chain, 70)
    flips = np.unpackbits(words.view(np.uint8), bitorder="little")[:70].astype(bool)
    near = [limits, np.nextafter(limits, np.float32(np.inf)), np.nextafter(limits, np.float32(-np.inf))]
    sums = np.array(
        [np.nan_to_num(v, nan=0, posinf=1, neginf=-1) for v in near] + [np.zeros(70), rng.standard_normal(70)]
    )
    sums = sums.astype(np.float32)
    want = host_matmul.epilogue(sums, chain) >= 0
    with np.errstate(invalid="ignore"):
        assert np.array_equal((sums >= limits) ^ flips, want)
