"""Integer products of real matrices on the CPU must equal plain NumPy to the bit and be close to the real product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitsparse as bs

SHAPES = [(1, 1, 1), (5, 7, 3), (33, 130, 65), (17, 602, 40)]


def matrices(m: int, k: int, n: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + k + n)
    x = rng.standard_normal((m, k)) * 3
    x[rng.random((m, k)) < 0.1] = 0.0
    return x.astype(dtype), rng.standard_normal((k, n)).astype(np.float32)


def plain(x: np.ndarray, bits: int, axis: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return codes, rounded to nearest, and scale, straight from the definition."""
    top = np.float32(2 ** (bits - 1) - 1)
    wide = x.astype(np.float32)
    scale = (np.abs(wide).max(axis=axis, keepdims=axis is not None) / top).astype(np.float32)
    scale = np.where(scale >= np.finfo(np.float32).smallest_normal, scale, np.float32(1))
    return np.clip(np.rint(wide / scale), -top, top).astype(np.int64), scale


def wanted(qx: np.ndarray, sx: Any, qw: np.ndarray, sw: Any, bias: Any = None) -> np.ndarray:
    value = (qx @ qw).astype(np.float32) * np.float32(sx) * np.asarray(sw, np.float32)
    return value if bias is None else value + np.asarray(bias, np.float32)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_against_plain_numpy(shape: tuple[int, int, int], bits: int, dtype: str) -> None:
    m, k, n = shape
    x, w = matrices(m, k, n, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    bias = np.linspace(-1, 1, n, dtype=np.float32)
    (qx, sx), (qw, sw), (qc, sc) = plain(x, bits), plain(w, bits), plain(w, bits, 0)
    out, top = np.full((m, n), np.nan, np.float32), np.full((), np.nan, np.float32)
    assert bs.quantized_matmul(x, w, bits, out=out, absmax=top) is out
    assert np.array_equal(out, wanted(qx, sx, qw, sw))
    assert top == np.abs(out).max()
    product = bs.quantized_matmul(x, w, bits, w_granularity="col", bias=bias, return_operands=True)
    assert np.array_equal(product.out, wanted(qx, sx, qc, sc, bias))
    assert np.array_equal(product.x.toarray(), qx)
    assert np.array_equal(product.w.toarray(), qc)
    assert product.x.layout == product.w.layout == "rows"
    assert (product.x.axis, product.w.axis, product.x.bits) == (-1, -2, bits)
    assert product.x.words.tobytes() == bs.quantize(x, bits, scheme="symmetric", layout="rows").words.tobytes()


@pytest.mark.parametrize("bits", [8, 4])
def test_ways_to_say_how_x_is_quantised(bits: int) -> None:
    x, w = matrices(9, 40, 6)
    top, (qw, sw) = np.float32(2 ** (bits - 1) - 1), plain(w, bits)
    scale = np.float32(0.037)
    codes = np.clip(np.rint(x / scale), -top, top).astype(np.int64)
    assert np.array_equal(bs.quantized_matmul(x, w, bits, scale=scale), wanted(codes, scale, qw, sw))
    known = bs.quantize(x, bits, scheme="symmetric", range=2.0)
    product = bs.quantized_matmul(x, w, bits, range=2.0, return_operands=True)
    assert np.array_equal(product.x.toarray(), known.toarray())
    assert np.array_equal(product.out, wanted(known.toarray().astype(int), known.scale, qw, sw))
    plan = bs.plan_quantized_matmul(w, 9, bits)
    assert np.array_equal(plan(x, scale=known.scale), product.out)
    assert np.array_equal(plan(x), bs.quantized_matmul(x, w, bits))
    assert "quantised, then multiplied" in plan.explain()


def test_stochastic_rounding() -> None:
    x, w = matrices(8, 30, 5)
    qx = bs.quantize(x, 8, scheme="symmetric", rounding="stochastic", seed=3, stream=7)
    qw = bs.quantize(w, 8, scheme="symmetric", rounding="stochastic", seed=3, stream=8)
    want = wanted(qx.toarray().astype(int), qx.scale, qw.toarray().astype(int), qw.scale)
    got = bs.quantized_matmul(x, w, rounding="stochastic", seed=3, stream=7)
    assert np.array_equal(got, want)
    plan = bs.plan_quantized_matmul(w, 8, rounding="stochastic", seed=3, stream=7)
    assert np.array_equal(plan(x), want)
    assert not np.array_equal(plan(x, seed=4), want)
    assert not np.array_equal(*(bs.quantized_matmul(x, qw, rounding="stochastic") for _ in range(2)))
    many = np.mean([plan(x, seed=seed) for seed in range(400)], axis=0)
    assert np.abs(many - x @ qw.dequantize()).max() < 0.05  # the mean is kept


@pytest.mark.parametrize(
    ("bits", "encoding"), [(8, "signed"), (4, "signed"), (3, "unsigned"), (8, "unsigned"), (1, "bipolar")]
)
def test_weights_that_are_quantised_already(bits: int, encoding: Any) -> None:
    x, _ = matrices(6, 50, 1)
    values = {"bipolar": np.array([-1, 1])}.get(encoding)
    low = -(2 ** (bits - 1)) if encoding == "signed" else 0
    values = np.arange(low, low + 2**bits) if values is None else values
    codes = np.random.default_rng(0).choice(values, (50, 4))
    (qx, sx) = plain(x, 8)
    for scale in (None, 0.5, np.array([[1.0, 2.0, 0.25, 3.0]])):
        w = bs.BitTensor(codes, bits, encoding=encoding, axis=-1, scale=scale)
        want = wanted(qx, sx, codes, 1 if scale is None else scale)
        assert np.array_equal(bs.quantized_matmul(x, w), want)
        assert bs.quantized_matmul(x, w, return_operands=True).w.scale is w.scale


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_stated_bound(bits: int, rounding: Any) -> None:
    x, w = matrices(20, 300, 30)
    seed = None if rounding == "nearest" else 1
    got = bs.quantized_matmul(x, w, bits, rounding=rounding, seed=seed)
    a, b, k = np.abs(x).max(), np.abs(w).max(), x.shape[1]
    sx, sw = (float(top) / (2 ** (bits - 1) - 1) for top in (a, b))
    bound = k * (a * sw + b * sx + sx * sw / 2) / 2 * (1 if rounding == "nearest" else 2)
    error = np.abs(got - x.astype(np.float64) @ w.astype(np.float64)).max()
    assert error < bound * (1 + 1e-5)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0), (0, 0, 0)])
def test_nothing(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, w = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    top = np.full(1, np.nan, np.float32)
    product = bs.quantized_matmul(x, w, bias=1.5, absmax=top, return_operands=True)
    assert product.out.shape == (m, n)
    assert (product.out == (127 * 127 * k * (1 / np.float32(127)) ** 2 + 1.5)).all()
    assert product.x.shape == (m, k)
    assert top[0] == (np.abs(product.out).max() if m * n else 0)


def test_strides_and_families() -> None:
    x, w = matrices(12, 20, 8)
    want = bs.quantized_matmul(x, w)
    for given in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1][::-1], x.tolist()):
        given = np.asarray(given, np.float32) if isinstance(given, list) else given
        assert np.array_equal(bs.quantized_matmul(given, np.asfortranarray(w)), want)


class Cache:
    """A stand-in for a cache that keeps everything by identity."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.hits = 0

    def find(self, x: Any, bits: int, **options: Any) -> Any:
        found = self.kept.get((id(x), bits, *sorted(options.items())))
        self.hits += found is not None
        return found

    def keep(self, x: Any, q: Any, **options: Any) -> None:
        options |= {"axis": q.axis, "layout": q.layout}
        self.kept[(id(x), q.bits, *sorted(options.items()))] = q

    def quantize(self, x: Any, bits: int, **options: Any) -> Any:
        found = self.find(x, bits, **options)
        if found is None:
            found = bs.quantize(x, bits, **options)
            self.keep(x, found, **options)
        return found


def test_a_cache_is_asked_first() -> None:
    (x, w), cache = matrices(7, 33, 4), Cache()
    want = bs.quantized_matmul(x, w)
    for turn in range(2):
        top = np.zeros(1, np.float32)
        assert np.array_equal(bs.quantized_matmul(x, w, cache=cache, absmax=top), want)
        assert top[0] == np.abs(want).max()
        assert cache.hits == 2 * turn
    product = bs.quantized_matmul(x, w, cache=cache, return_operands=True)
    assert np.array_equal(product.out, want)
    assert np.array_equal(product.x.toarray(), bs.quantize(x, 8, scheme="symmetric").toarray())
    out, wrong = np.full((7, 4), 7, np.float32), np.zeros(5)
    with pytest.raises(
        bs.ShapeError, match="absmax must be one float32"
    ):  # raised before anything is written, as without cached codes
        bs.quantized_matmul(x, w, cache=cache, out=out, absmax=wrong)
    with pytest.raises(ValueError, match="absmax shares memory"):
        bs.quantized_matmul(x, w, cache=cache, out=out, absmax=out[0, :1])
    with pytest.raises(ValueError, match="absmax is read-only"):
        bs.quantized_matmul(x, w, cache=cache, out=out, absmax=np.broadcast_to(np.float32(0), 1))
    assert (out == 7).all()
    assert not wrong.any()
    with pytest.raises(ValueError, match=r"quantized_matmul: a cache knows codes by their range.*pass range"):
        bs.quantized_matmul(x, w, cache=cache, scale=0.5)
    with pytest.raises(ValueError, match="pass seed="):
        bs.quantized_matmul(x, w, cache=cache, rounding="stochastic")


def test_the_suite_has_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent))
    from benchmarks.cases import qgemm as cases_qgemm_gpu

    names = [case.name for case in cases_qgemm_gpu.cases()]
    assert len(set(names)) == len(names)
    assert {f"qgemm-169343x512x512-tf32{state}" for state in ("off", "on")} <= set(names)
    assert all(name.startswith("qgemm-") for name in names)


def test_refusals() -> None:
    x, w = matrices(3, 8, 2)
    name = "quantized_matmul"
    plan = bs.plan_quantized_matmul(w, 3)
    out, one = np.zeros((3, 2), np.float32), np.zeros(1, np.float32)
    nan = x.copy()
    nan[1, 2] = np.nan
    offset = bs.quantize(w, 4)
    along = bs.BitTensor(np.ones((8, 2), int), 8, scale=np.ones((8, 1)))
    calls: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "bits must be 4 or 8, got 5", lambda: bs.quantized_matmul(x, w, 5)),
        (ValueError, "scheme", lambda: bs.quantized_matmul(x, w, scheme="affine")),  # type: ignore[arg-type]
        (ValueError, "rounding", lambda: bs.quantized_matmul(x, w, rounding="floor")),  # type: ignore[arg-type]
        (ValueError, "seed=3 has no effect", lambda: bs.quantized_matmul(x, w, seed=3)),
        (ValueError, "pass one of them", lambda: bs.quantized_matmul(x, w, scale=1.0, range=1.0)),
        (ValueError, "positive and normal, got 0.0", lambda: bs.quantized_matmul(x, w, scale=0.0)),
        (ValueError, "cannot be negative, got -1.0", lambda: bs.quantized_matmul(x, w, range=-1.0)),
        (ValueError, "scale", lambda: bs.quantized_matmul(x, w, scale=np.inf)),
        (bs.ShapeError, r"scale has shape \(3, 1\)", lambda: bs.quantized_matmul(x, w, scale=np.ones((3, 1)))),
        (bs.ShapeError, r"x has shape \(3,\)", lambda: bs.quantized_matmul(x[:, 0], w)),
        (bs.ShapeError, "8 columns but", lambda: bs.quantized_matmul(x, w[:5])),
        (bs.ShapeError, "must be a matrix", lambda: bs.plan_quantized_matmul(w[0], 3)),
        (bs.ShapeError, r"bias has shape \(3,\)", lambda: bs.quantized_matmul(x, w, bias=np.ones(3))),
        (bs.ShapeError, "absmax must be one float32", lambda: bs.quantized_matmul(x, w, absmax=out)),
        (bs.ShapeError, r"out has shape \(3, 2\)", lambda: bs.quantized_matmul(x, w[:, :1], out=out)),
        (bs.DTypeError, "x has dtype float64", lambda: bs.quantized_matmul(x.astype(float), w)),
        (bs.DTypeError, "x has dtype int8", lambda: bs.quantized_matmul(x.astype(np.int8), w)),
        (bs.DTypeError, "quantised already", lambda: bs.quantized_matmul(bs.quantize(x, 8), w)),
        (bs.DTypeError, "the plan is for float32", lambda: plan(x.astype(np.float16))),
        (bs.ShapeError, r"the plan is for \(3, 8\)", lambda: plan(x[:2])),
        (bs.KernelError, "runs on a GPU, but w is on the CPU", lambda: bs.quantized_matmul(x, w, kernel="wgmma")),
        (bs.KernelError, "there is no kernel 'fast'", lambda: bs.quantized_matmul(x, w, kernel="fast")),
        (ValueError, "NaN", lambda: bs.quantized_matmul(nan, w, scale=1.0)),
        (ValueError, "NaN", lambda: bs.quantized_matmul(nan, w)),
        (ValueError, "w has an offset", lambda: bs.quantized_matmul(x, offset)),
        (ValueError, r"a scale of shape \(8, 1\)", lambda: bs.quantized_matmul(x, along)),
        (ValueError, "shares memory", lambda: bs.quantized_matmul(x, w, out=out, absmax=out[:1, 0])),
    ]
    for error, text, call in calls:
        with pytest.raises(error, match=text) as caught:
            call()
        assert name in str(caught.value), text
    assert not out.any()
    assert not one.any()


@pytest.mark.parametrize("w", [np.ones(4), np.ones((4, 1, 1)), [1.0, 2.0, 3.0, 4.0], np.float32(2)], ids=np.shape)
def test_a_weight_that_is_no_matrix_is_refused(w: Any) -> None:
    x = np.ones((2, 4), np.float32)
    for function, call in (
        ("quantized_matmul", lambda: bs.quantized_matmul(x, w)),
        ("plan_quantized_matmul", lambda: bs.plan_quantized_matmul(w, 2)),
        ("quantized_matmul", lambda: bs.quantized_matmul(x, w, cache=bs.QuantCache())),
    ):
        with pytest.raises(
            bs.ShapeError,
            match=rf"^{function}: w has shape \({', ?'.join(map(str, np.shape(w)))},?\), but it must be a matrix",
        ):
            call()


def test_a_weight_may_be_a_nested_list() -> None:
    x = np.array([[1.0, 2.0]], np.float32)
    assert np.array_equal(bs.quantized_matmul(x, [[1.0], [0.5]]), bs.quantized_matmul(x, np.array([[1.0], [0.5]])))


@pytest.mark.parametrize("given", ["array", "planes", "rows", "other axis"])
def test_a_plan_follows_what_is_written_to_its_weight(given: str) -> None:
    x, w = matrices(5, 7, 4)
    if given != "array":
        axis, layout = (-1 if given == "other axis" else -2), "rows" if given == "rows" else "planes"
        w = bs.quantize(w, 8, scheme="symmetric", axis=axis, layout=layout)
    plan = bs.plan_quantized_matmul(w, 5)
    before, codes, weight = plan(x), np.arange(-14, 14).reshape(7, 4), plan.w if given == "array" else w
    step = {"out_scale": weight.scale, "scheme": "symmetric"}
    into = bs.Epilogue(bits=8, axis=weight.axis, layout=weight.layout, **step)
    eye = bs.pack_bits(np.eye(7, dtype=int))
    signed = bs.pack_bits(codes, 8, encoding="signed", axis=-2).with_affine(weight.scale)
    bs.matmul(eye, signed, epilogue=into, out=weight)
    assert np.array_equal(weight.toarray(), codes)
    (qx, sx), after = plain(x, 8), plan(x)
    assert np.array_equal(after, wanted(qx, sx, codes, weight.scale))
    assert not np.array_equal(after, before)


def test_a_product_made_once_makes_no_plan_of_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = matrices(5, 7, 4)
    want = bs.quantized_matmul(x, w)

    def refused(*_: Any) -> None:
        raise AssertionError("a plan that is thrown away")

    monkeypatch.setattr(bs.ops.MatmulPlan, "__init__", refused)
    assert np.array_equal(bs.quantized_matmul(x, w), want)
    bits = bs.pack_bits([[1, 0, 1]])
    assert bs.matmul(bits, bits.T, epilogue=bs.Epilogue()).item() == 2.0
