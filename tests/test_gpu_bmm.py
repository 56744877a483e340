"""Products of signs on a GPU agree with the host's to the bit, for every dtype, kind of result, alignment and tuning."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitsparse as bs
from bitsparse.backends.cuda.binary.bmm import SignProduct, Tuning
from bitsparse.backends.host.bits import pack as host_bits
from bitsparse.backends.host.matmul import matmul as host_matmul
from bitsparse.backends.params import EpilogueParams
from bitsparse.backends.signs import mean_magnitudes
from bitsparse.ops.finish import thresholds

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
SHAPES = [(1, 1, 1), (5, 7, 3), (70, 130, 64), (33, 602, 129), (17, 1433, 65)]
DTYPES = ["float32", "float16", "bfloat16", "float64", "bool", "int8", "uint8", "int16", "int32", "int64", "uint64"]


def cp() -> Any:
    import cupy

    return cupy


def to_device(x: np.ndarray) -> Any:
    if x.dtype.name == "bfloat16":
        return cp().asarray(x.view(np.uint16)).view(x.dtype)
    return cp().asarray(x)


def poisoned(shape: tuple[int, ...], dtype: Any) -> Any:
    words = cp().full(shape, 0x7FBADBAD, np.uint32)
    return words.view(dtype)


def signs(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1, -1)


def activations(m: int, k: int, dtype: str = "float32") -> np.ndarray:
    x = 3 * RNG.standard_normal((m, k))
    x[RNG.random((m, k)) < 0.1] = -0.0
    with np.errstate(invalid="ignore"):
        return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))


def weight(k: int, n: int) -> tuple[np.ndarray, Any]:
    w = signs(RNG.standard_normal((k, n)))
    return w, cp().asarray(host_bits.pack(w.astype(np.float32), 1, axis=-2, layout="planes", encoding="bipolar"))


def product_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (signs(x).astype(np.int64) @ w).astype(np.int32)


# ---- the kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:4])
def test_sums_and_mean_magnitudes(shape: tuple[int, int, int], dtype: str) -> None:
    m, k, n = shape
    x, (w, words) = activations(m, k, dtype), weight(k, n)
    product = SignProduct(words, m=m, k=k, dtype=x.dtype, absmean=True)
    out, means = poisoned((m, n), np.int32), poisoned((m,), np.float32)
    assert product(to_device(x), out, means) is out
    assert np.array_equal(out.get(), product_of(x, w))
    assert np.array_equal(means.get(), mean_magnitudes(x.astype(np.float32)))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]])
@pytest.mark.parametrize("dtype", ["float32", None])
def test_tunings_and_parts(shape: tuple[int, int, int], dtype: str | None) -> None:
    m, k, n = shape
    x, (w, words) = activations(m, k), weight(k, n)
    given = to_device(x)
    if dtype is None:
        given = cp().asarray(host_bits.pack(x, 1, axis=-1, layout="planes", encoding="bipolar"))
    for tuning in (
        Tuning(16, 4),
        Tuning(64, 8, 2, 2),
        Tuning(32, 2, 1, 2, 16),
        Tuning(16, 1, 1, 2, 48),
        Tuning(8, 2, 2, 2),
    ):
        product = SignProduct(words, m=m, k=k, dtype=None if dtype is None else x.dtype, tuning=tuning)
        out = product(given, poisoned((m, n), np.int32))
        assert np.array_equal(out.get(), product_of(x, w)), tuning
    if dtype is not None:
        product = SignProduct(words, m=m, k=k, dtype=x.dtype, absmean=True, tuning=Tuning(16, 4, 1, 2, 16))
        means = poisoned((m,), np.float32)
        product(given, None, means)
        assert np.array_equal(means.get(), mean_magnitudes(x))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normed", [False, True])
def test_thresholds_and_the_chain_agree(shape: tuple[int, int, int], normed: bool) -> None:
    m, k, n = shape
    x, (w, words) = activations(m, k), weight(k, n)
    norm = None
    values = x
    if normed:
        norm = RNG.standard_normal(k).astype(np.float32), RNG.standard_normal(k).astype(np.float32)
        norm[0][::5] = 0.0
        values = x * norm[0]
        values += norm[1]
    sums = product_of(values, w)
    # A third of the biases cancels a sum that occurs, and the sign of zero is +1; the scales of some columns are negative.
    scale = np.where(np.arange(n) % 3, 0.25, -0.25).astype(np.float32)
    bias = RNG.standard_normal(n).astype(np.float32)
    bias[::3] = -0.25 * np.where(np.arange(n) % 3, 1, -1)[::3] * sums[0, ::3]
    chain = EpilogueParams(out="bits", bits=1, binarize=True, col_scale=scale, bias=bias)
    found = thresholds.of_epilogue(chain, np.ones(m, np.int64), n, k, mean=False)
    want = host_matmul.epilogue(sums, chain)
    for given, tuning in ((None, None), (found, None), (None, Tuning(8, 4, 2, 2)), (found, Tuning(8, 4, 2, 2, 0, 0))):
        product = SignProduct(
            words, m=m, k=k, dtype=x.dtype, norm=norm, epilogue=chain, thresholds=given, tuning=tuning
        )
        out = product(to_device(x), poisoned(product.out_shape, np.uint32))
        assert np.array_equal(out.get(), want)


@pytest.mark.parametrize("chosen", range(6))
def test_ways_out_scaled_by_mean_magnitudes(chosen: int) -> None:
    m, k, n = [(33, 602, 129), (70, 130, 64)][chosen % 2]
    x, (w, words) = activations(m, k), weight(k, n)
    chain = EpilogueParams(col_scale=RNG.random(n).astype(np.float32), bias=RNG.standard_normal(n).astype(np.float32))
    if chosen >= 2:
        chain = chain._replace(out="bits", bits=1, binarize=True, axis=(-1, -2)[chosen // 2 % 2])
    if chosen >= 4:
        chain = chain._replace(layout="rows", row_scale=RNG.standard_normal(m).astype(np.float32), activation="tanh")
    means = mean_magnitudes(x)
    factor = means if chain.row_scale is None else chain.row_scale * means
    want = host_matmul.epilogue(product_of(x, w), chain._replace(row_scale=factor))
    product = SignProduct(words, m=m, k=k, dtype=x.dtype, epilogue=chain, scale_rows=True)
    out = product(to_device(x), poisoned(product.out_shape, product.out_dtype))
    assert np.array_equal(out.get().view(np.uint32), want.view(np.uint32))


def test_rows_at_any_address() -> None:
    (w, words), m, k, n = weight(120, 40), 37, 120, 40
    for dtype in ("float32", "float16", "int8", "float64"):
        room = to_device(activations(2 * m, k + 8, dtype))
        product = SignProduct(words, m=m, k=k, dtype=room.dtype)
        for x in (room[:m, :k], room[:m, 1 : k + 1], room[:m, 2 : k + 2], room[::2, 4 : k + 4], room[:m][::-1, :k]):
            out = product(x, poisoned((m, n), np.int32))
            assert np.array_equal(out.get(), product_of(x.get(), w))


def test_nothing_to_multiply() -> None:
    for m, k, n in ((0, 5, 3), (4, 0, 3), (4, 5, 0)):
        a, w = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
        for options in (
            {},
            {"row_absmean": True},
            {"variant": "FFB"},
            {"epilogue": bs.Epilogue(bias=-1.0), "variant": "FFB"},
        ):
            if options.get("variant") is None:
                packed: Any = bs.pack_bits(w, encoding="bipolar", axis=-2)
                there: Any = bs.pack_bits(cp().asarray(w), encoding="bipolar", axis=-2)
            else:
                packed, there = w, cp().asarray(w)
            want, got = bs.bmm(a, packed, **options), bs.bmm(cp().asarray(a), there, **options)
            if isinstance(want, bs.BitTensor):
                assert np.array_equal(got.words.get(), want.words)
            else:
                assert got.dtype == want.dtype
                assert np.array_equal(got.get(), want)


# ---- the public functions
VARIANTS = ["BBB", "BBF", "BFB", "BFF", "FBB", "FBF", "FFB"]


def operand(x: Any, letter: str, axis: int) -> Any:
    return bs.pack_bits(x, encoding="bipolar", axis=axis) if letter == "B" else x


def compare(got: Any, want: Any) -> None:
    if isinstance(want, bs.BitTensor):
        assert (got.shape, got.axis, got.layout, got.encoding) == (want.shape, want.axis, want.layout, want.encoding)
        assert np.array_equal(got.words.get(), want.words)
        return
    assert got.dtype == want.dtype
    assert np.array_equal(got.get(), want)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_and_plans(variant: str) -> None:
    m, k, n = 45, 200, 70
    a, w = activations(m, k), RNG.standard_normal((k, n)).astype(np.float32)
    here = operand(a, variant[0], -1), operand(w, variant[1], -2)
    there = operand(cp().asarray(a), variant[0], -1), operand(cp().asarray(w), variant[1], -2)
    chain = bs.Epilogue(col_scale=-np.abs(w).mean(0), bias=RNG.standard_normal(n), batch_norm=(0.1, 2.0))
    rows = bs.Epilogue(row_scale=RNG.random(m) + 0.1, bias=RNG.standard_normal(n))
    for epilogue in (None, chain, rows):
        want = bs.bmm(*here, variant, epilogue=epilogue)
        compare(bs.bmm(*there, variant, epilogue=epilogue), want)
        plan = bs.plan_bmm(there[1], m, variant, epilogue=epilogue)
        compare(plan(there[0]), want)
        on_cpu = bs.plan_bmm(here[1], m, variant, epilogue=epilogue)(here[0])
        compare(plan(there[0]), on_cpu)
        assert "rows" in plan.explain()
    if variant[0] == "B":  # both operands have scales
        column = RNG.standard_normal((1, n)).astype(np.float32)
        (a1, w1), (a2, w2) = (
            (left.with_affine(-0.5), right.with_affine(column) if variant[1] == "B" else right)
            for left, right in (there, here)
        )
        compare(bs.plan_bmm(w1, m, variant, epilogue=chain)(a1), bs.bmm(a2, w2, variant, epilogue=chain))
    else:
        options = {"a_norm": (RNG.standard_normal(k), RNG.random(k) + 0.1), "row_absmean": True, "epilogue": chain}
        means, here_means = poisoned((m,), np.float32), np.empty(m, np.float32)
        want = bs.bmm(*here, variant, absmean=here_means, **options)
        compare(bs.bmm(*there, variant, absmean=means, **options), want)
        assert np.array_equal(means.get(), here_means)
        plan, on_cpu = (bs.plan_bmm(w, m, variant, **options) for _, w in (there, here))
        compare(plan(there[0]), on_cpu(here[0]))
        means.fill(7)
        compare(plan(there[0], absmean=means), want)
        assert np.array_equal(means.get(), here_means)


def test_other_kernels_batches_and_columns_in_a_row() -> None:
    a, w = activations(40, 96), RNG.standard_normal((96, 33)).astype(np.float32)
    packed = bs.pack_bits(cp().asarray(w), encoding="bipolar", axis=-2)
    want = product_of(a, signs(w))
    there = cp().asarray(a)
    for kernel in (None, "rows", "planes", "digits"):
        assert np.array_equal(bs.bmm(there, packed, kernel=kernel).get(), want)
    turned = cp().asfortranarray(there)
    assert np.array_equal(bs.bmm(turned, packed).get(), want)
    with pytest.raises(bs.KernelError, match="rows that are contiguous"):
        bs.bmm(turned, packed, kernel="rows")
    with pytest.raises(ValueError, match="contiguous"):
        bs.plan_bmm(packed, 40)(turned)
    # The weight caches the prepared product, which must not depend on the activations of the first call.
    for x, left in ((there, a), (turned, a), (-there, -a), (there.astype(float), a), (there[:9], a[:9])) * 2:
        assert np.array_equal(bs.bmm(x, packed).get(), product_of(left, signs(w)))
    with pytest.raises(bs.ShapeError, match="a has 95 columns but b has 96 rows"):
        bs.bmm(there[:, :95], packed)
    options = {"row_absmean": True, "a_norm": (0.5, 2.0), "epilogue": bs.Epilogue(bias=0.5)}
    batched = bs.bmm(cp().stack([there, -there]), packed, **options)
    on_cpu = bs.bmm(np.stack([a, -a]), packed.get(), **options)
    assert np.array_equal(batched.get(), on_cpu)
    assert np.array_equal(on_cpu[1], bs.bmm(-a, packed.get(), **options))


def test_capture_and_other_streams() -> None:
    cupy = cp()
    m, k, n = 64, 300, 64
    first, second, w = activations(m, k), activations(m, k), RNG.standard_normal((k, n)).astype(np.float32)
    chain = bs.Epilogue(bias=np.ones(n))
    plan = bs.plan_bmm(cupy.asarray(w), m, "FFB", epilogue=chain, row_absmean=True)
    x, out = cupy.asarray(first), bs.BitTensor(cupy.zeros((m, n), np.float32), 1, encoding="bipolar")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        plan(x, out=out)
        stream.synchronize()
        stream.begin_capture()
        plan(x, out=out)
        graph = stream.end_capture()
        x[...] = cupy.asarray(second)
        graph.launch(stream)
        stream.synchronize()
    want = bs.bmm(second, w, "FFB", epilogue=chain, row_absmean=True)
    assert np.array_equal(cupy.asnumpy(out.words), want.words)


def test_nan_and_other_errors() -> None:
    cupy = cp()
    a, w = activations(20, 50), RNG.standard_normal((50, 8)).astype(np.float32)
    packed = bs.pack_bits(cupy.asarray(w), encoding="bipolar", axis=-2)
    bits = bs.pack_bits(cupy.asarray(a), encoding="bipolar").with_affine(1.0, 0.5)
    bad = a.copy()
    bad[19, 49] = np.nan
    plan = bs.plan_bmm(packed, 20)
    plan(cupy.asarray(a))
    plan.check()
    plan(cupy.asarray(bad))
    with pytest.raises(ValueError, match="a holds NaN"):
        plan.check()
    plan.check()
    bad[19, 49] = np.inf
    assert np.array_equal(bs.bmm(cupy.asarray(bad), packed).get(), product_of(bad, signs(w)))
    bad[0, 0] = np.nan
    with pytest.raises(ValueError, match="bmm: a holds NaN"):
        bs.bmm(cupy.asarray(bad), packed)
    with pytest.raises(ValueError, match="bmm: w holds NaN"):
        bs.bmm(bits.with_affine(), cupy.asarray(w) * np.float32(np.nan))
    with pytest.raises(ValueError, match="absmean shares memory"):
        bs.bmm(there := cupy.asarray(a), packed, absmean=there[0, :20])
    cases: list[tuple[type[Exception], str, Any]] = [
        (bs.DeviceError, "cuda:0", lambda: bs.bmm(a, packed)),
        (bs.DeviceError, "a is on cpu", lambda: plan(a)),
        (bs.ShapeError, r"\(20, 50\)", lambda: plan(cupy.asarray(a[:3]))),
        (bs.DTypeError, "float64", lambda: plan(cupy.asarray(a.astype(float)))),
        (bs.DTypeError, "a is a BitTensor", lambda: plan(bs.pack_bits(cupy.asarray(a), encoding="bipolar"))),
        (bs.ShapeError, "out has shape", lambda: plan(cupy.asarray(a), out=cupy.empty((20, 7), np.int32))),
        (bs.DTypeError, "out has dtype", lambda: plan(cupy.asarray(a), out=cupy.empty((20, 8), np.float32))),
        (bs.ShapeError, "absmean has shape", lambda: plan(cupy.asarray(a), absmean=cupy.empty(3, np.float32))),
        (bs.KernelError, "'rows'", lambda: bs.plan_bmm(packed, 20, kernel="planes")),
        (ValueError, "w has an offset", lambda: bs.plan_bmm(packed.with_affine(1.0, 0.5), 20)),
        (ValueError, "a has an offset", lambda: bs.plan_bmm(packed, 20, "BBF")(bits)),
        (bs.DTypeError, "row_absmean", lambda: bs.plan_bmm(packed, 20, "BBF", row_absmean=True)),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()


def test_a_call_with_two_mistakes_names_the_same_one_as_on_a_cpu() -> None:
    """Options are checked in front of the choice of kernels, which differ in what they would notice first."""
    a, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    norm = (np.zeros(4), 1.0)

    def message(call: Any) -> str:
        with pytest.raises(Exception, match="bmm") as caught:
            call()
        return f"{caught.type.__name__}: {caught.value}"

    cases = [(a, w, norm), (a[:, :2], w, norm), (a[:, :2], w, 3), (a[:1, 0], w, 3), (a.astype(complex), w, 3)]
    for x, weights, a_norm in cases:

        def call(place: Any, x: Any = x, weights: Any = weights, a_norm: Any = a_norm) -> Any:
            return bs.bmm(place(x), bs.pack_bits(place(weights), encoding="bipolar", axis=-2), a_norm=a_norm)

        assert message(lambda call=call: call(cp().asarray)) == message(lambda call=call: call(np.asarray))
    bits = [bs.pack_bits(place(a), encoding="bipolar") for place in (np.asarray, cp().asarray)]
    weights = [bs.pack_bits(place(w), encoding="bipolar", axis=-2) for place in (np.asarray, cp().asarray)]
    one, two = (message(lambda x=x, y=y: bs.bmm(x, y, a_norm=norm)) for x, y in zip(bits, weights, strict=True))
    assert one == two
