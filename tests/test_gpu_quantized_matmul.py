"""Quantised products of real matrices on a GPU must equal the host's to the bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitsparse as bs
from bitsparse.backends.cuda.quantized import product as quantized
from bitsparse.jit import capability

pytestmark = pytest.mark.gpu

#: Ragged sizes, columns split among blocks, codes that fit into the ring and codes that do not, one row, one column.
SHAPES = [(1, 1, 1), (130, 7, 3), (150, 130, 260), (300, 512, 66), (40, 1100, 140), (129, 602, 128)]
POISON = 0x7FBADBAD


def cp() -> Any:
    import cupy

    return cupy


def kernels() -> list[str]:
    return ["wgmma", "mma"] if capability().has_wgmma else ["mma"]


def to_device(x: np.ndarray) -> Any:
    if x.dtype.name == "bfloat16":
        return cp().asarray(x.view(np.uint16)).view(x.dtype)
    return cp().asarray(x)


def poisoned(shape: tuple[int, ...]) -> Any:
    return cp().full(shape, POISON, np.uint32).view(np.float32)


def matrices(m: int, k: int, n: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + k + n)
    x = rng.standard_normal((m, k)) * 3
    x[rng.random((m, k)) < 0.1] = -0.0
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), rng.standard_normal((k, n)).astype(
        np.float32
    )


def ties(m: int, k: int, scale: float) -> np.ndarray:
    """Return multiples of half a step and their neighbouring floats, far beyond the grid as well."""
    rng = np.random.default_rng(k)
    x = (rng.integers(-300, 301, (m, k)) * np.float32(scale) / 2).astype(np.float32)
    towards = np.where(rng.random((m, k)) < 0.5, np.inf, -np.inf).astype(np.float32)
    return np.where(rng.random((m, k)) < 0.5, x, np.nextafter(x, towards))


@pytest.mark.hopper
@pytest.mark.parametrize("k_parts", [2, 3, 8, 100])
@pytest.mark.parametrize("shape", [(1, 300, 5), (150, 1433, 64), (200, 1200, 300), (130, 2100, 129)])
def test_parts_of_the_contraction_axis(shape: tuple[int, int, int], k_parts: int) -> None:
    """Several parts must give the bits of one part, codes and largest magnitude included, and a call must leave nothing for the next."""
    m, k, n = shape
    x, w = matrices(m, k, n)
    packed = bs.quantize(cp().asarray(w), 8, scheme="symmetric", axis=-2, layout="rows")
    kind: dict[str, Any] = {"sizes": (m, n, k), "dtype": np.dtype(np.float32), "bits": 8, "rounding": "nearest"}
    kind |= {"w_scale": packed.scale.reshape(()), "bias": cp().arange(n, dtype=np.float32), "kernel": "wgmma"}
    made = [quantized.QuantizedProduct(packed.words, k_parts=parts, **kind) for parts in (1, k_parts)]
    assert made[0].params.k_parts == 1
    assert made[1].params.k_parts == min(k_parts, -(-k // 128)) * (m <= 128 * capability().multiprocessors) or 1
    found = []
    for product in made:
        for scale in (0.05, 0.02):
            out, largest = poisoned((m, n)), cp().zeros(1, np.float32)
            codes = cp().full((m, -(-k // 16) * 4), 0xA5A5A5A5, np.uint32)
            product(cp().asarray(x), out, scale=scale, absmax=largest, codes=codes)
            found.append([part.get() for part in (out, largest, codes)])
    for one, other in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.hopper
def test_few_rows_share_a_long_contraction_axis() -> None:
    """The contraction axis must be split by default; the first call may be captured in its own stream and must give the host's bits."""
    m, k, n = 150, 1433, 64
    (x, w), blocks = matrices(m, k, n), capability().multiprocessors
    want = bs.quantized_matmul(x, w, 8, range=4.0)
    packed = bs.quantize(to_device(w), 8, scheme="symmetric", axis=-2, layout="rows")
    kind: dict[str, Any] = {"dtype": np.dtype(np.float32), "bits": 8, "rounding": "nearest"}
    product = quantized.QuantizedProduct(
        packed.words, sizes=(m, n, k), w_scale=packed.scale.reshape(()), kernel="wgmma", **kind
    )
    assert product.params.k_parts == quantized.parts_of(m, n, k, blocks) > 1
    given, out, top = to_device(np.ones_like(x)), poisoned((m, n)), to_device(np.full(1, 4, np.float32))
    stream = cp().cuda.Stream(non_blocking=True)
    cp().cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        product(given, out, largest=top)
        graph = stream.end_capture()
        given[...] = to_device(x)
        for _ in range(2):
            out.fill(0)
            graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), want)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    (x, w), bias = matrices(m, k, n), np.linspace(-9, 9, n, dtype=np.float32)
    top = np.zeros(1, np.float32)
    want = bs.quantized_matmul(x, w, range=4.0, bias=bias, absmax=top)
    x_there, w_there = to_device(x), to_device(w)
    for kernel in kernels():
        plan = bs.plan_quantized_matmul(w_there, m, bias=bias, kernel=kernel)
        out, found = poisoned((m, n)), poisoned((1,))
        assert plan(x_there, out, range=4.0, absmax=found) is out
        assert np.array_equal(out.get(), want), kernel
        assert found.get() == top
        plan.check()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_operands_come_back(rounding: Any, dtype: str, bits: int) -> None:
    m, k, n = (135, 141, 70) if rounding == "nearest" else (135, 140, 36)
    x, w = matrices(m, k, n, dtype)
    seed = None if rounding == "nearest" else 5
    want = bs.quantized_matmul(
        x, w, bits, rounding=rounding, seed=seed, stream=2, w_granularity="col", return_operands=True
    )
    for kernel in kernels():
        plan = bs.plan_quantized_matmul(
            to_device(w),
            m,
            bits,
            rounding=rounding,
            seed=seed,
            stream=2,
            w_granularity="col",
            dtype=x.dtype,
            kernel=kernel,
        )
        got = plan(to_device(x), poisoned((m, n)), return_operands=True)
        assert np.array_equal(got.out.get(), want.out), kernel
        assert np.array_equal(got.x.words.get(), bs.quantize(x, bits, scheme="symmetric", layout="rows").words) or seed
        assert np.array_equal(got.x.get().toarray(), want.x.toarray())
        assert np.array_equal(got.w.get().toarray(), want.w.toarray())
        assert got.x.scale.get() == want.x.scale
        plan.check()


@pytest.mark.parametrize("scale", [1.0, 0.037, 3e-30, 2.5e30, float(np.finfo(np.float32).smallest_normal)])
def test_ties_and_scales(scale: float) -> None:
    m, k = 24, 100
    x, w = ties(m, k, scale), np.eye(k, 9, dtype=np.float32)
    x[0, :4] = np.finfo(np.float32).smallest_subnormal, -np.finfo(np.float32).max, np.finfo(np.float32).max, -0.0
    for bits in (8, 4):
        want = bs.quantized_matmul(x, w, bits, scale=scale, return_operands=True)
        for kernel in kernels():
            plan = bs.plan_quantized_matmul(to_device(w), m, bits, kernel=kernel)
            for given in (scale, cp().full(1, scale, np.float32)):
                got = plan(to_device(x), poisoned((m, 9)), scale=given, return_operands=True)
                assert np.array_equal(got.x.get().toarray(), want.x.toarray())
                assert np.array_equal(got.out.get(), want.out)


@pytest.mark.parametrize("k", [37, 40, 44])
@pytest.mark.parametrize("scale", [None, 0.3, 7.0])
def test_stochastic_rounding(k: int, scale: float | None) -> None:
    x, w = matrices(9, k, 4)
    x[0, :6] = np.array([1e-45, -1e-45, 3e38, -3e38, 1e-38, -1e-38], np.float32) if scale else 0
    x[1, :12] = np.arange(120, 132) * np.float32(scale or 0)  # at the largest code
    q = bs.quantize(w, 8, scheme="symmetric", axis=-2)
    options = {"scale": scale, "seed": 1 << 40}
    want = bs.quantized_matmul(x, q, rounding="stochastic", return_operands=True, **options)
    for kernel in kernels():
        plan = bs.plan_quantized_matmul(q.to_device("cuda"), 9, rounding="stochastic", kernel=kernel)
        got = plan(to_device(x), return_operands=True, **options)
        assert np.array_equal(got.x.get().toarray(), want.x.toarray())
        assert np.array_equal(got.out.get(), want.out)


def test_beyond_the_largest_code_nothing_is_drawn() -> None:
    """Values beyond the largest code must always become that code, even if 127 steps divided by the step round to less than 127."""
    scale = np.float32(1.1350965)
    x = np.repeat(np.float32([-1000, 1000, -127.25]) * scale, 22)[None].repeat(1500, axis=0)
    w = np.ones((66, 8), np.float32)
    for kernel in kernels():
        product = bs.quantized_matmul(
            to_device(x), to_device(w), rounding="stochastic", seed=0, scale=scale, kernel=kernel, return_operands=True
        )
        codes = product.x.get().toarray()
        assert np.array_equal(codes, np.repeat(np.int8([-127, 127, -127]), 22)[None].repeat(1500, axis=0))


def test_a_bias_may_change_between_calls() -> None:
    x, w = matrices(5, 40, 8)
    weight = bs.quantize(to_device(w), 8, scheme="symmetric", axis=-2, layout="rows")
    bias = cp().zeros(8, "float32")
    before = bs.quantized_matmul(to_device(x), weight, bias=bias)
    bias += 3
    after = bs.quantized_matmul(to_device(x), weight, bias=bias)
    assert float(cp().abs(after - before - 3).max()) < 1e-4


@pytest.mark.parametrize(
    ("bits", "encoding"), [(8, "signed"), (4, "signed"), (5, "unsigned"), (1, "bipolar"), (8, "unsigned")]
)
def test_weights_that_are_quantised_already(bits: int, encoding: Any) -> None:
    x, _ = matrices(10, 150, 1)
    low, high = {"bipolar": (-1, 1), "unsigned": (0, 2**bits - 1)}.get(
        encoding, (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    codes = np.random.default_rng(0).choice([low, high] if bits == 1 else np.arange(low, high + 1), (150, 6))
    w = bs.BitTensor(codes, bits, encoding=encoding, scale=np.linspace(0.5, 2, 6).reshape(1, 6))
    want = bs.quantized_matmul(x, w)
    there = w.to_device("cuda")
    for turn in range(2):  # the second call uses the plan that was kept
        got = bs.quantized_matmul(to_device(x), there)
        assert np.array_equal(got.get(), want), turn
    plan = bs.plan_quantized_matmul(there, 10)
    assert plan.kernel == ("composed" if (bits, encoding) == (8, "unsigned") else kernels()[0])
    composed = bs.quantized_matmul(to_device(x), there, kernel="composed", scale=0.25)
    assert np.array_equal(composed.get(), bs.quantized_matmul(x, w, scale=0.25))


def test_strides_and_alignments() -> None:
    x, w = matrices(20, 64, 12)
    want, w_there = bs.quantized_matmul(x, w), to_device(w)
    for step, first in ((64, 0), (66, 0), (66, 1), (68, 0), (68, 2), (68, 4), (71, 3)):
        view = cp().zeros((20, step), np.float32)[:, first : first + 64]
        view[...] = to_device(x)
        assert np.array_equal(bs.quantized_matmul(view, w_there).get(), want), (step, first)
    assert np.array_equal(bs.quantized_matmul(cp().asfortranarray(to_device(x)), w_there).get(), want)
    assert np.array_equal(bs.quantized_matmul(to_device(x)[::-1], w_there).get(), want[::-1])
    half = x.astype(np.float16)
    odd = cp().zeros((20, 67), np.float16)[:, 3:]
    odd[...] = to_device(half)
    assert np.array_equal(bs.quantized_matmul(odd, w_there).get(), bs.quantized_matmul(half, w))
    out = poisoned((20 * 12 + 1,))[1:].reshape(20, 12)  # misaligned by four bytes
    assert np.array_equal(bs.quantized_matmul(to_device(x), w_there, out=out).get(), want)


def test_nothing_beside_the_result_is_written() -> None:
    m, k, n = 131, 50, 132
    x, w = matrices(m, k, n)
    want = bs.quantized_matmul(x, w)
    for kernel in kernels():
        room = poisoned((m * n + 64,))
        plan = bs.plan_quantized_matmul(to_device(w), m, kernel=kernel)
        plan(to_device(x), room[32 : 32 + m * n].reshape(m, n))
        words = room.view(np.uint32).get()
        assert (words[:32] == POISON).all()
        assert (words[-32:] == POISON).all()
        assert np.array_equal(room[32:-32].get().reshape(m, n), want)


@pytest.mark.parametrize("m", [140, 1100])
def test_rows_and_columns_are_dealt_out(m: int) -> None:
    x, w = matrices(m, 33, 270)
    want, blocks = bs.quantized_matmul(x, w, range=3.0), capability().multiprocessors
    plan = bs.plan_quantized_matmul(to_device(w), m)
    assert np.array_equal(plan(to_device(x), range=3.0).get(), want)
    for rows, columns in ((m, 270), (128 * blocks * 2 + 1, 5), (128 * (blocks - 1), 1000), (1, 1)):
        dealt = quantized.deal(rows, columns, blocks)
        tiles = -(-rows // 128)
        assert dealt["full"] % blocks == 0
        assert dealt["units"] == dealt["full"] + (tiles - dealt["full"]) * dealt["split"]
        assert (dealt["split"] - 1) * dealt["per_part"] < dealt["n_tiles"] <= dealt["split"] * dealt["per_part"]


def test_a_stream_and_a_graph() -> None:
    x, w = matrices(50, 96, 20)
    want = bs.quantized_matmul(x, w)
    plan, given = bs.plan_quantized_matmul(to_device(w), 50), to_device(np.ones_like(x))
    out, top = poisoned((50, 20)), poisoned((1,))
    stream = cp().cuda.Stream(non_blocking=True)
    with stream:
        plan(given, out, absmax=top)
        stream.synchronize()
        stream.begin_capture()
        plan(given, out, absmax=top)
        graph = stream.end_capture()
        given[...] = to_device(x)
        out.fill(0)
        for _ in range(2):
            graph.launch(stream)
        stream.synchronize()
    assert np.array_equal(out.get(), want)
    assert top.get()[0] == np.abs(want).max()


def test_layers_pass_their_absmax_on() -> None:
    x, w = matrices(30, 64, 48)
    v, top = matrices(48, 16, 1)[0], np.zeros(1, np.float32)
    between = bs.quantized_matmul(x, w, absmax=top)
    want = bs.quantized_matmul(between, v, range=top)
    first, second = bs.plan_quantized_matmul(to_device(w), 30), bs.plan_quantized_matmul(to_device(v), 30)
    found = poisoned(())
    got = second(first(to_device(x), absmax=found), range=found)
    assert np.array_equal(got.get(), want)


def test_not_finite_and_refusals() -> None:
    x, w = matrices(9, 24, 4)
    w_there = to_device(w)
    for bad in (np.nan, np.inf, -np.inf):
        x[5, 20] = bad
        for options in ({}, {"range": 2.0}, {"scale": 0.5}, {"scale": 0.5, "kernel": "composed"}):
            with pytest.raises(ValueError, match="quantized_matmul: x holds NaN or infinity"):
                bs.quantized_matmul(to_device(x), w_there, **options)
    x[5, 20] = 0
    plan, out = bs.plan_quantized_matmul(w_there, 9), poisoned((9, 4))
    there = to_device(x)
    for error, text, call in (
        (bs.DeviceError, "x is on cpu but w is on cuda:0", lambda: plan(x, out)),
        (ValueError, "rows that are contiguous", lambda: plan(cp().asfortranarray(there), out)),
        (bs.ShapeError, "must be one float32", lambda: plan(there, out, scale=cp().ones(2, np.float32))),
        (
            bs.DeviceError,
            "out is on cpu but the result is on cuda:0",
            lambda: plan(there, np.zeros((9, 4), np.float32)),
        ),
        (
            bs.KernelError,
            "signed bytes",
            lambda: bs.plan_quantized_matmul(bs.BitTensor((4, 4), 9).to_device("cuda"), 1, kernel="mma"),
        ),
    ):
        with pytest.raises(error, match=text):
            call()
    assert (out.view(np.uint32).get() == POISON).all()
    if not capability().has_wgmma:
        with pytest.raises(bs.KernelError, match="needs a Hopper GPU"):
            bs.plan_quantized_matmul(w_there, 9, kernel="wgmma")
    for shape in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
        m, k, n = shape
        ones = bs.quantized_matmul(cp().ones((m, k), np.float32), cp().ones((k, n), np.float32), bias=1.5)
        assert np.array_equal(
            ones.get(), bs.quantized_matmul(np.ones((m, k), np.float32), np.ones((k, n), np.float32), bias=1.5)
        )
