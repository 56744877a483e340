"""Binary products in seven variants, ``add`` and ``concat``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import bitsparse as bs

VARIANTS = ["BBB", "BBF", "BFB", "BFF", "FBB", "FBF", "FFB"]


def signs(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1, -1)


def operand(x: np.ndarray, letter: str, axis: int) -> Any:
    return bs.pack_bits(x, encoding="bipolar", axis=axis) if letter == "B" else x


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 130, 7), (33, 64, 129), (0, 3, 2), (3, 0, 2), (4, 5, 0)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_against_numpy(variant: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(k)
    a, w = rng.standard_normal((m, k)), rng.standard_normal((k, n)).astype(np.float32)
    a[a < -1] = 0.0
    want = signs(a) @ signs(w)
    got = bs.bmm(operand(a, variant[0], -1), operand(w, variant[1], -2), variant)
    if variant[2] == "F":
        assert got.dtype == np.int32
        assert np.array_equal(got, want)
    else:
        assert (got.bits, got.encoding) == (1, "bipolar")
        assert np.array_equal(got.toarray(), signs(want))


@pytest.mark.parametrize("variant", VARIANTS)
def test_default_variant_and_epilogue(variant: str) -> None:
    rng = np.random.default_rng(1)
    a, w = rng.standard_normal((9, 40)), rng.standard_normal((40, 20))
    one, two = operand(a, variant[0], -1), operand(w, variant[1], -2)
    # As in Bi-GCN: mean magnitudes as scales, and a bias, so that every element has another threshold.
    chain = {
        "row_scale": np.abs(a).mean(1),
        "col_scale": -np.abs(w).mean(0),
        "bias": rng.standard_normal(20),
    }
    values = bs.Epilogue(**chain)((signs(a) @ signs(w)).astype(np.int32))
    if variant[2] == "F":
        assert np.array_equal(bs.bmm(one, two, epilogue=bs.Epilogue(**chain)), values)
    else:
        for epilogue in (bs.Epilogue(**chain), bs.Epilogue(**chain, binarize=True)):
            got = bs.bmm(one, two, variant, epilogue=epilogue)
            assert np.array_equal(got.toarray(), signs(values))
        assert isinstance(bs.bmm(one, two, epilogue=bs.Epilogue(**chain, binarize=True)), bs.BitTensor)


def test_batches_integers_and_packing_along_the_other_axis() -> None:
    rng = np.random.default_rng(2)
    a, w = rng.integers(-3, 4, (2, 3, 70)), rng.integers(-3, 4, (70, 5))
    want = signs(a) @ signs(w)
    packed = bs.pack_bits(w.astype(np.float32), encoding="bipolar", axis=-1)
    assert np.array_equal(bs.bmm(a, packed), want)
    assert np.array_equal(bs.bmm(a, w, "FFB").toarray(), signs(want))
    out = np.empty(want.shape, np.int32)
    assert bs.bmm(a, packed, out=out, kernel="planes") is out
    assert np.array_equal(out, want)


def test_errors_say_what_to_do() -> None:
    a, w = np.ones((2, 3)), np.ones((3, 2))
    packed = bs.pack_bits(w, encoding="bipolar", axis=-2)
    cases: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "FFF is an ordinary product", lambda: bs.bmm(a, w)),
        (ValueError, "FFF is an ordinary product", lambda: bs.bmm(a, packed, "FFF")),
        (bs.DTypeError, "does not fit operands 'FB'", lambda: bs.bmm(a, packed, "BBF")),
        (bs.DTypeError, "holds unsigned bits", lambda: bs.bmm(a, bs.pack_bits(w.astype(int), axis=-2))),
        (bs.DTypeError, "w has 2 bits", lambda: bs.bmm(a, bs.pack_bits(w.astype(int), 2, axis=-2))),
        (bs.ShapeError, "a has 2 columns but b has 3 rows", lambda: bs.bmm(a[:, :2], packed)),
        (bs.ShapeError, "at least 2 dimensions", lambda: bs.bmm(a[0], packed)),
        (ValueError, "NaN", lambda: bs.bmm(np.full((2, 3), np.nan), packed)),
        (ValueError, "asks for 2 bits", lambda: bs.bmm(a, packed, epilogue=bs.Epilogue(bits=2, out_scale=1.0))),
        (ValueError, "one of", lambda: bs.bmm(a, packed, "XYZ")),
        (bs.DTypeError, "complex", lambda: bs.bmm(a.astype(complex), packed)),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()


# ---- batch norm in front of the sign, mean magnitudes, plans
def chunked_mean(x: np.ndarray) -> np.ndarray:
    """Mean magnitudes of rows, with single float32 additions in the documented order."""
    found = []
    for row in np.abs(x.astype(np.float32)):
        total = np.float32(0)
        for start in range(0, row.size, 128):
            group = np.zeros(128, np.float32)
            part = row[start : start + 128]
            group[: part.size] = part
            while group.size > 1:
                group = np.array([group[i] + group[i + 1] for i in range(0, group.size, 2)], np.float32)
            total = total + group[0]
        found.append(total / np.float32(row.size) if row.size else np.float32(0))
    return np.array(found, np.float32)


@pytest.mark.parametrize("k", [0, 1, 3, 127, 128, 129, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int16])
def test_mean_magnitudes(k: int, dtype: type) -> None:
    rng = np.random.default_rng(k)
    a, w = (3 * rng.standard_normal((4, k))).astype(dtype), rng.standard_normal((k, 5))
    means = np.full(4, np.nan, np.float32)
    sums = bs.bmm(a, w, "FFB", absmean=means, epilogue=bs.Epilogue(bias=0.5))
    assert np.array_equal(means, chunked_mean(a))
    assert np.array_equal(sums.toarray(), signs(signs(a) @ signs(w) + 0.5))
    packed = bs.pack_bits(w, encoding="bipolar", axis=-2)
    chain = {"row_scale": rng.random(4), "bias": rng.standard_normal(5)}
    got = bs.bmm(a, packed, row_absmean=True, epilogue=bs.Epilogue(**chain))
    chain["row_scale"] = chain["row_scale"].astype(np.float32) * means
    assert np.array_equal(got, bs.Epilogue(**chain)((signs(a) @ signs(w)).astype(np.int32)))
    plain = bs.bmm(a, packed, row_absmean=True)
    assert plain.dtype == np.float32
    assert np.array_equal(plain, means[:, None] * (signs(a) @ signs(w)).astype(np.float32))


def test_batch_norm_in_front_of_the_sign() -> None:
    rng = np.random.default_rng(5)
    a, w = rng.standard_normal((6, 40)).astype(np.float32), rng.standard_normal((40, 7))
    packed = bs.pack_bits(w, encoding="bipolar", axis=-2)
    norm = bs.BatchNorm(rng.standard_normal(40), rng.random(40) + 0.1, rng.standard_normal(40), rng.standard_normal(40))
    scale = (norm.weight / np.sqrt(norm.var + norm.eps)).astype(np.float32)
    shift = (norm.bias - norm.mean * (norm.weight / np.sqrt(norm.var + norm.eps))).astype(np.float32)
    values = a * scale + shift
    means = np.empty(6, np.float32)
    assert np.array_equal(bs.bmm(a, packed, a_norm=norm, absmean=means), signs(values) @ signs(w))
    assert np.array_equal(means, chunked_mean(values))
    # With a threshold for each column, signs are exact even where a subtraction of the threshold would round.
    threshold = a[3].copy()
    got = bs.bmm(a, packed, a_norm=(threshold, 1.0, 1.0, 0.0, 0.0))
    assert np.array_equal(got, np.where(a >= threshold, 1, -1) @ signs(w))
    batch = np.stack([a, -a])
    assert np.array_equal(bs.bmm(batch, packed, a_norm=norm)[1], bs.bmm(-a, packed, a_norm=norm))


@pytest.mark.parametrize("variant", VARIANTS)
def test_plans(variant: str) -> None:
    rng = np.random.default_rng(6)
    a, w = rng.standard_normal((9, 40)).astype(np.float32), rng.standard_normal((40, 20))
    one, two = operand(a, variant[0], -1), operand(w, variant[1], -2)
    chain = bs.Epilogue(col_scale=rng.standard_normal(20), bias=rng.standard_normal(20))
    plan = bs.plan_bmm(two, 9, variant, epilogue=chain)
    want = bs.bmm(one, two, variant, epilogue=chain)
    got = plan(one)
    if variant[2] == "B":
        assert np.array_equal(got.words, want.words)
        out = bs.BitTensor(np.ones((9, 20), np.float32), 1, encoding="bipolar")
        assert plan(one, out=out) is out
        assert np.array_equal(out.words, want.words)
    else:
        assert np.array_equal(got, want)
        out = np.full((9, 20), np.nan, np.float32)
        assert plan(one, out=out) is out
        assert np.array_equal(out, want)
    assert (plan.shape, plan.device, plan.variant) == ((9, 20), "cpu", variant)
    assert "9 x 40 x 20" in plan.explain()
    plan.check()


def test_errors_of_plans_and_options() -> None:
    a, w, both = np.ones((2, 3), np.float32), np.ones((3, 2)), np.empty((2, 2), np.float32)
    packed, bits = bs.pack_bits(w, encoding="bipolar", axis=-2), bs.pack_bits(a, encoding="bipolar")
    plan = bs.plan_bmm(packed, 2)
    cases: list[tuple[type[Exception], str, Any]] = [
        (bs.DTypeError, "a_norm needs the values", lambda: bs.bmm(bits, packed, a_norm=(0.0, 1.0))),
        (bs.DTypeError, "row_absmean needs the values", lambda: bs.bmm(bits, packed, row_absmean=True)),
        (bs.DTypeError, "absmean needs the values", lambda: bs.bmm(bits, packed, absmean=np.empty(2, np.float32))),
        (bs.ShapeError, "a_norm has shape", lambda: bs.bmm(a, packed, a_norm=(np.zeros(4), 1.0))),
        (ValueError, "a_norm.var", lambda: bs.bmm(a, packed, a_norm=(0.0, -1.0))),
        (ValueError, "a_norm must be a BatchNorm", lambda: bs.bmm(a, packed, a_norm=3.0)),
        (bs.KernelError, "runs on a GPU", lambda: bs.bmm(a, packed, kernel="rows")),
        (bs.KernelError, "'rows'", lambda: bs.plan_bmm(packed, 2, kernel="rows")),
        (bs.ShapeError, "absmean has shape", lambda: bs.bmm(a, packed, absmean=np.empty(3, np.float32))),
        (bs.DTypeError, "absmean has dtype", lambda: bs.bmm(a, packed, absmean=np.empty(2))),
        (bs.DTypeError, r"absmean \(list\)", lambda: bs.bmm(a, packed, absmean=[0.0, 0.0])),
        (ValueError, "absmean is read-only", lambda: bs.bmm(a, packed, absmean=np.broadcast_to(np.float32(0), 2))),
        (ValueError, "absmean is not C-contiguous", lambda: bs.bmm(a, packed, absmean=both[:, 0])),
        (ValueError, "absmean shares memory", lambda: bs.bmm(a, packed, absmean=both[0], row_absmean=True, out=both)),
        (ValueError, "absmean shares memory", lambda: bs.bmm(a, packed, absmean=a[0, :2])),
        (ValueError, "bmm: a holds NaN", lambda: bs.bmm(np.full((2, 3), np.inf), packed, a_norm=(0.0, 1.0, 0.0))),
        (ValueError, "bmm: a holds NaN", lambda: bs.bmm(a * np.nan, packed)),
        (ValueError, "bmm: w holds NaN", lambda: bs.bmm(bits, w * np.nan)),
        (ValueError, "plan_bmm: w holds NaN", lambda: bs.plan_bmm(w * np.nan, 2, "FFB")),
        (bs.DTypeError, "plan is for float32", lambda: plan(a.astype(float))),
        (bs.DTypeError, "plan is for 'FBF'", lambda: plan(bits)),
        (bs.ShapeError, "plan is for", lambda: plan(a[:1])),
        (bs.DTypeError, "drop it", lambda: bs.plan_bmm(packed, 2, "BBF", dtype=np.float32)),
        (bs.ShapeError, "two dimensions", lambda: bs.plan_bmm(np.ones((2, 3, 2)), 2, "FFB")),
        (ValueError, "FFF is an ordinary product", lambda: bs.plan_bmm(w, 2)),
        (bs.DTypeError, "does not fit operands 'FB'", lambda: bs.plan_bmm(packed, 2, "FFB")),
        (ValueError, "w has an offset", lambda: bs.plan_bmm(packed.with_affine(1.0, 0.5), 2)),
        (ValueError, "a has an offset", lambda: bs.plan_bmm(packed, 2, "BBF")(bits.with_affine(1.0, 0.5))),
        (ValueError, "at least 0", lambda: bs.plan_bmm(packed, -1)),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()


# ---- ADD
def test_add_in_four_variants() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 5, 33)).astype(np.float32), rng.standard_normal((2, 5, 33)).astype(np.float32)
    one, two = (bs.pack_bits(x, encoding="bipolar") for x in (a, b))
    total = signs(a) + signs(b)
    got = bs.add(one, two)
    assert got.dtype == np.int32
    assert np.array_equal(got, total)
    # -1 + 1 = 0, and sign(0) = +1
    assert np.array_equal(bs.add(one, two, "BBB").toarray(), signs(total))
    assert np.array_equal(bs.add(one, two.repack(axis=-2, layout="rows"), "BBB").toarray(), signs(total))
    assert np.array_equal(bs.add(a, b), a + b)
    assert np.array_equal(bs.add(a, b, "FFB").toarray(), signs(a + b))
    chain = {"bias": rng.standard_normal(33), "col_scale": -rng.random(33)}
    for left, right, raw in ((one, two, total.astype(np.int32)), (a, b, a + b)):
        values = bs.Epilogue(**chain)(raw)
        assert np.array_equal(bs.add(left, right, epilogue=bs.Epilogue(**chain)), values)
        assert np.array_equal(
            bs.add(left, right, epilogue=bs.Epilogue(**chain, binarize=True)).toarray(), signs(values)
        )


def test_add_refuses_mixed_precisions_and_shapes() -> None:
    a = np.ones((2, 3))
    packed = bs.pack_bits(a, encoding="bipolar")
    with pytest.raises(bs.DTypeError, match="one precision"):
        bs.add(a, packed)
    with pytest.raises(bs.DTypeError, match="does not fit operands 'FF'"):
        bs.add(a, a, "BBB")
    with pytest.raises(bs.ShapeError, match=r"\(2, 3\) but b has \(2, 2\)"):
        bs.add(a, a[:, :2])
    with pytest.raises(bs.DTypeError, match="unsigned bits"):
        bs.add(bs.pack_bits(a.astype(int)), packed)


# ---- CONCAT
@pytest.mark.parametrize(("axis", "layout"), list(itertools.product((-1, -2), ("planes", "rows"))))
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_concat_of_bits_along_every_axis(bits: int, axis: int, layout: str) -> None:
    rng = np.random.default_rng(bits)
    sizes = [1, 31, 32, 64, 5, 128, 0, 129, 3]
    for place in (0, 1, 2, -1, -2):
        values = []
        for size in sizes:
            shape = [3, 40, 20]
            shape[place] = size
            values.append(rng.integers(0, 1 << bits, shape))
        parts = [bs.BitTensor(v, bits, axis=axis, layout=layout) for v in values]
        got = bs.concat(parts, axis=place)
        assert np.array_equal(got.toarray(), np.concatenate(values, axis=place))
        # from_words checks that padding bits are zero.
        bs.BitTensor.from_words(got.words, got.shape, bits, axis=axis, layout=layout)
    mixed = [parts[0], parts[1].repack(axis=-3 - axis)]
    assert bs.concat(mixed, axis=-2).axis == axis


def test_concat_of_arrays_and_its_errors() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(bs.concat([a, a + 1]), np.concatenate([a, a + 1], axis=-1))
    assert np.array_equal(bs.concat((a, a), axis=0), np.concatenate([a, a]))
    packed = bs.pack_bits(a, encoding="bipolar")
    with pytest.raises(bs.ShapeError, match="sequence"):
        bs.concat([])
    with pytest.raises(bs.ShapeError, match="sequence"):
        bs.concat(a)
    with pytest.raises(bs.DTypeError, match="1 of 2 parts are BitTensors"):
        bs.concat([a, packed])
    with pytest.raises(bs.ShapeError, match="differ beside axis"):
        bs.concat([a, a[:1]])
    with pytest.raises(bs.DTypeError, match="1 bipolar and 1 unsigned"):
        bs.concat([packed, bs.pack_bits(a.astype(bool))])
    with pytest.raises(ValueError, match="scale"):
        bs.concat([packed, packed.with_affine(2.0)])
    with pytest.raises(ValueError, match="axis"):
        bs.concat([a, a], axis=2)
