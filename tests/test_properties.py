"""Properties that must hold for any shape, dtype, width, encoding and layout; hypothesis looks for counterexamples."""

from __future__ import annotations

import io
import pickle

import numpy as np
from cases import MEMORY, accumulator, lay_out, value_range, words_of
from hypothesis import assume, given
from hypothesis import strategies as st

import bitsparse as bs

SIZES = st.one_of(st.integers(0, 9), st.sampled_from([31, 32, 33, 127, 128, 129, 255, 257]))
SMALL = st.integers(0, 5)
WIDTHS = st.integers(1, 32)


@st.composite
def formats(draw, widths=WIDTHS) -> dict:
    bits = draw(widths)
    encodings = ["unsigned", "signed"] + (["bipolar"] if bits == 1 else [])
    layouts = ["planes"] + (["rows"] if bits in (1, 2, 4, 8, 16) else [])
    return {
        "bits": bits,
        "encoding": draw(st.sampled_from(encodings)),
        "axis": draw(st.sampled_from([-1, -2])),
        "layout": draw(st.sampled_from(layouts)),
    }


@st.composite
def integer_arrays(draw, bits: int, encoding: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    if shape is None:
        shape = (*draw(st.lists(st.integers(0, 3), max_size=2)), draw(SIZES), draw(SIZES))
    low, high = value_range(bits, encoding)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.integers(low, high, shape, np.int64, endpoint=True)
    if encoding == "bipolar":
        x = np.where(x > 0, 1, -1)
    elif draw(st.booleans()):
        x = np.where(rng.random(shape) < 0.9, 0, x)
    return lay_out(x, draw(st.sampled_from(MEMORY)))


@st.composite
def packed(draw, **options) -> tuple[np.ndarray, dict, bs.BitTensor]:
    form = draw(formats(**options))
    x = draw(integer_arrays(form["bits"], form["encoding"]))
    return x, form, bs.BitTensor(x, **form)


@given(packed())
def test_packing_loses_nothing(made: tuple) -> None:
    x, form, q = made
    assert np.array_equal(q.toarray(), x)
    assert (q.shape, q.bits, q.encoding, q.axis, q.layout) == (x.shape, *form.values())
    codes = (x > 0) if form["encoding"] == "bipolar" else x & ((1 << form["bits"]) - 1)
    codes = np.swapaxes(codes, -1, -2) if form["axis"] == -2 else codes
    assert np.array_equal(q.words, words_of(codes.astype(np.uint64), form["bits"], form["layout"]))
    assert q.nnz == np.count_nonzero(x)


@given(packed(), st.data())
def test_every_way_through_the_layouts_ends_in_the_same_words(made: tuple, data: st.DataObject) -> None:
    _, form, q = made
    moved = q
    for _ in range(3):
        layouts = ["planes"] + (["rows"] if q.bits in (1, 2, 4, 8, 16) else [])
        moved = moved.repack(axis=data.draw(st.sampled_from([-1, -2])), layout=data.draw(st.sampled_from(layouts)))
    back = moved.repack(axis=form["axis"], layout=form["layout"])
    assert np.array_equal(back.words, q.words)


@given(packed())
def test_files_and_pickles_give_it_back(made: tuple) -> None:
    _, _, q = made
    file = io.BytesIO()
    bs.save_npz(file, q, compressed=False)
    file.seek(0)
    for other in (bs.load_npz(file), pickle.loads(pickle.dumps(q)), bs.BitTensor(q), q.copy()):
        assert np.array_equal(other.words, q.words)
        assert (other.shape, other.bits, other.encoding, other.axis, other.layout) == (
            q.shape, q.bits, q.encoding, q.axis, q.layout,
        )  # fmt: skip


@given(packed(), st.data())
def test_slices_follow_numpy(made: tuple, data: st.DataObject) -> None:
    x, _, q = made
    steps = st.sampled_from([None, 1, 2, -1, 3])
    ends = st.one_of(st.none(), st.integers(-300, 300))
    key = tuple(slice(data.draw(ends), data.draw(ends), data.draw(steps)) for _ in x.shape)
    got = q[key]
    assert np.array_equal(got.toarray(), x[key])
    again = bs.BitTensor.from_words(
        got.words, got.shape, got.bits, encoding=got.encoding, axis=got.axis, layout=got.layout
    )
    assert np.array_equal(again.toarray(), x[key]), "padding bits are zero"


@given(st.data(), st.integers(1, 16), st.integers(1, 16))
def test_products_are_exact(data: st.DataObject, a_bits: int, b_bits: int) -> None:
    a_form = data.draw(formats(widths=st.just(a_bits)))
    b_form = data.draw(formats(widths=st.just(b_bits)))
    m, k, n = (data.draw(SIZES) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (1,), (2,), (0,)]))
    x = data.draw(integer_arrays(a_bits, a_form["encoding"], (*batch, m, k)))
    y = data.draw(integer_arrays(b_bits, b_form["encoding"], (k, n)))
    dtype = accumulator(k, a_bits, b_bits, a_form["encoding"], b_form["encoding"])
    assume(dtype is not None)
    a, b = bs.BitTensor(x, **a_form), bs.BitTensor(y, **b_form)
    want = np.matmul(x, y)
    skip = data.draw(st.booleans())
    small = max(a_bits, b_bits) <= 8
    for kernel in (None, "planes", "digits", *(["bytes"] if small else [])):
        got = bs.matmul(a, b, kernel=kernel, skip_zero_tiles=skip)
        assert got.dtype == dtype
        assert got.shape == want.shape
        assert np.array_equal(got, want)


@given(st.data(), formats(widths=st.integers(2, 24)), st.sampled_from(["affine", "affine-pow2", "symmetric"]))
def test_quantised_values_stay_within_a_step(data: st.DataObject, form: dict, scheme: str) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = (data.draw(SMALL), data.draw(SIZES), data.draw(SIZES))
    spread = 10.0 ** data.draw(st.integers(-20, 20))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    x = (rng.standard_normal(shape) * spread).astype(dtype)
    granularity = data.draw(st.sampled_from(["tensor", "row", "col"]))
    del form["encoding"]
    q = bs.quantize(lay_out(x, data.draw(st.sampled_from(MEMORY))), **form, scheme=scheme, granularity=granularity)
    low, high = value_range(q.bits, q.encoding)
    codes = q.toarray().astype(np.int64)
    assert x.size == 0 or (codes.min() >= low and codes.max() <= high)
    error = np.abs(q.dequantize(np.float64) - x)
    step = np.broadcast_to(np.asarray(q.scale, np.float64), shape)
    rounding = np.abs(x).max(initial=0.0) * 2.0**-20  # offset and scale are float32
    assert (error <= step * 1.001 + rounding * 2).all()


@given(st.data(), formats(widths=st.integers(2, 24)))
def test_quantised_codes_are_fixed_points(data: st.DataObject, form: dict) -> None:
    """Decoding and quantising again to nearest, over the same range, must give the same codes."""
    del form["encoding"]
    bits = min(form["bits"], 12)
    form["bits"] = bits if form["layout"] == "planes" else form["bits"] if form["bits"] <= 8 else 8
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = rng.uniform(-1, 1, (data.draw(SIZES), data.draw(SIZES))).astype(np.float32)
    q = bs.quantize(x, **form, scheme="symmetric", range=1.0)
    again = bs.quantize(q.dequantize(), **form, scheme="symmetric", range=1.0)
    assert np.array_equal(q.words, again.words)


@given(st.data())
def test_stochastic_rounding_picks_a_neighbour(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = tuple(data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=3)))
    x = (rng.standard_normal(shape) * 100).astype(dtype)
    seed, stream = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 2**32 - 1))
    got = bs.stochastic_round(lay_out(x, data.draw(st.sampled_from(MEMORY))), seed=seed, stream=stream)
    assert got.dtype == dtype
    assert ((got == np.floor(x)) | (got == np.floor(x) + 1)).all()
    assert np.array_equal(got, bs.stochastic_round(x, seed=seed, stream=stream))


@given(st.data(), st.integers(1, 8))
def test_the_epilogue_does_not_depend_on_the_form_of_its_result(data: st.DataObject, bits: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    m, k, n = (data.draw(SIZES) for _ in range(3))
    a = bs.BitTensor(rng.integers(0, 4, (m, k)), 2)
    b = bs.BitTensor(rng.integers(-4, 4, (k, n)), 3, encoding="signed", axis=-2)
    chain = {
        "row_scale": rng.normal(size=m),
        "bias": rng.normal(size=n),
        "activation": data.draw(st.sampled_from([None, "relu", "leaky_relu", "tanh"])),
    }
    real = bs.matmul(a, b, epilogue=bs.Epilogue(**chain))
    assert real.shape == (m, n)
    layouts = ["planes"] + (["rows"] if bits in (1, 2, 4, 8, 16) else [])
    form = {"axis": data.draw(st.sampled_from([-1, -2])), "layout": data.draw(st.sampled_from(layouts))}
    fused = bs.matmul(a, b, epilogue=bs.Epilogue(**chain, bits=bits, out_scale=0.5, out_offset=-2.0, **form))
    levels = np.float32(2**bits - 1)
    t = ((real - np.float32(-2)) / (np.float32(0.5) * levels)) * levels
    assert np.array_equal(fused.toarray(), np.clip(np.rint(t), 0, levels))
    signs = bs.matmul(a, b, epilogue=bs.Epilogue(**chain, binarize=True))
    assert np.array_equal(signs.toarray(), np.where(real >= 0, 1, -1))
