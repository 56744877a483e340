"""``bspmm`` and ``add`` of one-bit activations with any scale agree with NumPy on the decoded values."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from test_encoded_features import COLUMNS, affine_parts, graphs, near, packed_features, real, reduced

import bitsparse as bs

BIT = st.just(1)


@st.composite
def activations(draw: st.DrawFn, rows: int, columns: int | None = None) -> bs.BitTensor:
    """Bipolar or unsigned bits with any scale."""
    x = draw(packed_features(rows, BIT, st.just(columns) if columns is not None else COLUMNS))
    x = x.with_affine(x.scale)
    if x.encoding == "signed":
        x = bs.BitTensor(np.where(x.toarray() == 0, -1, 1), 1, encoding="bipolar", axis=x.axis, scale=x.scale)
    return x


@st.composite
def addends(draw: st.DrawFn, shape: tuple[int, int]) -> np.ndarray | bs.BitTensor | None:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["none", "float32", "int16", "bits"]))
    if kind == "none":
        return None
    return draw(activations(*shape)) if kind == "bits" else (rng.integers(-9, 9, shape) / 2).astype(kind)


@given(st.data(), graphs(), st.sampled_from(["sum", "mean"]), st.booleans(), st.booleans())
def test_bspmm_applies_the_scale_wherever_a_float_step_follows(
    data: st.DataObject, A: sp.csr_array, reduce: str, chained: bool, planned: bool
) -> None:
    x = data.draw(activations(A.shape[1]))
    add = data.draw(addends((A.shape[0], x.shape[1])))
    variant = ("BFF" if A.dtype.kind != "b" else "BBF") if data.draw(st.booleans()) else None
    weighted = (variant or ("BFF" if A.dtype.kind != "b" else "BBF"))[1] == "F"
    options = {"reduce": reduce, "epilogue": bs.Epilogue(bias=0.5) if chained else None}
    if planned:
        kind = None if variant is None else variant
        got = bs.plan_bspmm(A, x.shape[1], kind, add=add is not None, **options)(x, *([] if add is None else [add]))
    else:
        got = bs.bspmm(A, x, variant, add=add, **options)
    stays = add is None or (add.dtype.kind in "iu" and not (isinstance(add, bs.BitTensor) and add.scale is not None))
    if not weighted and reduce == "sum" and not chained and stays:
        want = reduced(A, np.asarray(x.toarray(), np.float64), reduce)[0]
        assert got.dtype.kind == "i"
        assert np.array_equal(
            got, want + (0 if add is None else np.asarray(add.toarray() if isinstance(add, bs.BitTensor) else add))
        )
        return
    want, size = reduced(A, real(x), reduce)
    extra = 0.0 if add is None else real(add) if isinstance(add, bs.BitTensor) else add.astype(np.float64)
    assert got.dtype == np.float32
    near(got, want + extra + 0.5 * chained, size + np.abs(extra))


@given(st.data(), st.integers(0, 4), COLUMNS, st.booleans())
def test_add_applies_scales_and_offsets_wherever_a_float_step_follows(
    data: st.DataObject, rows: int, columns: int, binarize: bool
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = st.sampled_from(["none", "none", "scalar", "row", "col"])
    a, b = (
        bs.BitTensor(
            rng.choice([-1, 1], (rows, columns)), 1, encoding="bipolar", axis=data.draw(st.sampled_from([-1, -2])),
            scale=affine_parts(rng, (rows, columns), data.draw(kinds), False),
            offset=affine_parts(rng, (rows, columns), data.draw(kinds), True),
        )
        for _ in range(2)
    )  # fmt: skip
    assert np.array_equal(bs.add(a, b), a.toarray(np.int32) + b.toarray(np.int32))
    total = real(a) + real(b)
    assert np.array_equal(bs.add(a, b, epilogue=bs.Epilogue(bias=0.5)), (total + 0.5).astype(np.float32))
    assert np.array_equal(bs.add(a, b, "BBB").toarray(), np.where(total >= 0, 1, -1))
    signs = bs.add(a, b, epilogue=bs.Epilogue(bias=0.5, binarize=True))
    assert np.array_equal(signs.toarray(), np.where(total + 0.5 >= 0, 1, -1))


@pytest.mark.parametrize("add", [np.float32(0.5), np.float16(0.5)])
def test_a_scale_stands_before_a_float_addend(add: np.floating) -> None:
    x = bs.pack_bits(np.ones((2, 1)), encoding="bipolar").with_affine(2.0)
    assert bs.bspmm(sp.csr_array(np.ones((1, 2), bool)), x, add=np.full((1, 1), add)) == 4.5
