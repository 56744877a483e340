"""Binary products in seven variants, and ADD and CONCAT."""

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
    # Bi-GCN: mean magnitudes as scales, and a bias, so that the threshold differs for every element
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
        # padding bits are zero
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
