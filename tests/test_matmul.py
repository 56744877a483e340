"""Products: every pair of widths and encodings, every shape, batches, zero tiles, kernels, plans and the fused epilogue."""

from __future__ import annotations

import importlib
import itertools
import re

import numpy as np
import pytest
from cases import (
    BATCHES,
    BIT_PAIRS,
    ENCODINGS,
    OUTPUTS,
    accumulator,
    encodings_of,
    make_words,
    same,
    tile_bitmap_of,
    value_range,
)

import bitsparse as bs
from bitsparse.backends.reference import scalar
from bitsparse.backends.reference.bits import pack as reference_bits

KERNELS = ["planes", "digits", "bytes"]
FORMS = list(itertools.product((-1, -2), ("planes", "rows")))
SIZES = [0, 1, 7, 127, 128, 129, 131]


def draw(rng: np.random.Generator, shape: tuple[int, ...], bits: int, encoding: str = "unsigned") -> np.ndarray:
    """Return random integers over the whole range, including both ends."""
    low, high = value_range(bits, encoding)
    x = rng.integers(low, high, shape, np.int64, endpoint=True)
    if encoding == "bipolar":
        x = np.where(x >= 0, 1, -1)
    if x.size > 1:
        x.flat[0], x.flat[-1] = low, high
    return x


def left(x: np.ndarray, bits: int, encoding: str = "unsigned", **options) -> bs.BitTensor:
    return bs.BitTensor(x, bits, encoding=encoding, **options)


def right(x: np.ndarray, bits: int, encoding: str = "unsigned", **options) -> bs.BitTensor:
    return bs.BitTensor(x, bits, encoding=encoding, **{"axis": -2, **options})


# ---- exactness
@pytest.mark.parametrize(("a_bits", "b_bits"), BIT_PAIRS)
@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_every_width_and_encoding_is_exact(a_bits: int, b_bits: int, kernel: str | None) -> None:
    rng = np.random.default_rng([a_bits, b_bits])
    done = 0
    for a_encoding, b_encoding in itertools.product(encodings_of(a_bits), encodings_of(b_bits)):
        m, k, n = 10, 137, 19
        wanted = accumulator(k, a_bits, b_bits, a_encoding, b_encoding)
        x, y = draw(rng, (m, k), a_bits, a_encoding), draw(rng, (k, n), b_bits, b_encoding)
        a, b = left(x, a_bits, a_encoding), right(y, b_bits, b_encoding)
        done += 1
        if kernel == "bytes" and max(a_bits, b_bits) > 8:
            with pytest.raises(
                bs.KernelError, match=rf"'bytes' takes operands of up to 8 bits, got {a_bits} and {b_bits}"
            ):
                bs.matmul(a, b, kernel=kernel)
            continue
        got = bs.matmul(a, b, kernel=kernel)
        assert got.dtype == wanted
        assert np.array_equal(got, x @ y)
    assert done == len(encodings_of(a_bits)) * len(encodings_of(b_bits))


@pytest.mark.parametrize("kernel", ["planes", "digits"])
@pytest.mark.parametrize("bits", [29, 30, 31, 32])
def test_wide_operands_against_python_integers(bits: int, kernel: str) -> None:
    rng = np.random.default_rng(bits)
    x, y = draw(rng, (3, 2), bits, "signed"), draw(rng, (2, 3), 30, "signed")
    want = [[sum(int(p) * int(q) for p, q in zip(row, col, strict=True)) for col in y.T] for row in x]
    assert bs.matmul(left(x, bits, "signed"), right(y, 30, "signed"), kernel=kernel).tolist() == want


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("k", "a_bits", "a_encoding", "b_bits", "b_encoding", "dtype"),
    [
        (33025, 8, "unsigned", 8, "unsigned", "int32"),  # 2 147 450 625 < 2**31
        (33026, 8, "unsigned", 8, "unsigned", "int64"),  # 2 147 515 650
        (1, 31, "unsigned", 1, "unsigned", "int32"),  # 2**31 - 1
        (2, 31, "unsigned", 1, "unsigned", "int64"),
        (1, 32, "signed", 1, "bipolar", "int64"),  # 2**31
        (1, 16, "signed", 16, "signed", "int32"),  # 2**30
        (2, 16, "signed", 16, "signed", "int64"),  # 2**31
        (1, 32, "signed", 32, "signed", "int64"),  # 2**62
        (2**31 // (255 * 128), 8, "unsigned", 8, "signed", "int32"),
        (2**31 // (255 * 128) + 1, 8, "unsigned", 8, "signed", "int64"),
    ],
)
def test_accumulator_boundary(
    k: int, a_bits: int, a_encoding: str, b_bits: int, b_encoding: str, dtype: str, kernel: str
) -> None:
    """The dtype must change exactly at the documented bound, and the extreme products themselves must be right."""
    assert accumulator(k, a_bits, b_bits, a_encoding, b_encoding) == dtype
    if kernel == "bytes" and max(a_bits, b_bits) > 8:
        return  # refused, as the test of every width shows
    for a_end, b_end in itertools.product((0, 1), repeat=2):
        p, q = value_range(a_bits, a_encoding)[a_end], value_range(b_bits, b_encoding)[b_end]
        x, y = np.full((2, k), p, np.int64), np.full((k, 3), q, np.int64)
        got = bs.matmul(left(x, a_bits, a_encoding), right(y, b_bits, b_encoding), kernel=kernel)
        assert got.dtype == dtype
        assert got.tolist() == [[p * q * k] * 3] * 2


@pytest.mark.parametrize(
    ("k", "a_bits", "b_bits", "encoding"), [(1, 32, 32, "unsigned"), (2, 32, 32, "signed"), (5, 32, 31, "unsigned")]
)
def test_beyond_int64_is_refused(k: int, a_bits: int, b_bits: int, encoding: str) -> None:
    a, b = bs.BitTensor((2, k), a_bits, encoding=encoding), bs.BitTensor((k, 2), b_bits, encoding=encoding, axis=-2)
    with pytest.raises(ValueError, match=r"matmul: .*int64.*fewer bits"):
        bs.matmul(a, b)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("m", SIZES)
def test_every_shape(m: int, kernel: str) -> None:
    rng = np.random.default_rng(m)
    for k, n in itertools.product(SIZES, SIZES):
        x, y = draw(rng, (m, k), 1), draw(rng, (k, n), 2, "signed")
        got = bs.matmul(left(x, 1), right(y, 2, "signed"), kernel=kernel)
        assert got.shape == (m, n)
        assert np.array_equal(got, (x.astype(np.float64) @ y).astype(np.int64)), (m, k, n)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("a_batch", "b_batch"), BATCHES)
def test_batches_broadcast(a_batch: tuple, b_batch: tuple, kernel: str) -> None:
    rng = np.random.default_rng(4)
    x, y = draw(rng, (*a_batch, 9, 140), 2, "signed"), draw(rng, (*b_batch, 140, 11), 3)
    got = bs.matmul(left(x, 2, "signed"), right(y, 3), kernel=kernel)
    want = np.matmul(x, y)
    assert got.shape == want.shape
    assert np.array_equal(got, want)


@pytest.mark.parametrize("level", ["scalar", "avx2", "avxvnni", "avx512", "amx"])
def test_forced_instruction_sets_agree(level: str, host) -> None:
    """Instruction sets must agree on a product that fills blocks of every size; a level this CPU lacks must be refused by name."""
    if level not in host.simd_levels():
        with pytest.raises((ValueError, bs.KernelError), match=level):
            host.set_simd(level)
        return
    host.set_simd(level)
    assert host.simd_level() == level
    rng = np.random.default_rng(0)
    for a_bits, b_bits, a_encoding, b_encoding in [
        (1, 1, "unsigned", "bipolar"),
        (2, 3, "signed", "unsigned"),
        (8, 8, "unsigned", "signed"),
    ]:
        x, y = draw(rng, (300, 1500), a_bits, a_encoding), draw(rng, (1500, 270), b_bits, b_encoding)
        want = (x.astype(np.float64) @ y).astype(np.int64)
        for kernel in KERNELS:
            got = bs.matmul(left(x, a_bits, a_encoding), right(y, b_bits, b_encoding), kernel=kernel)
            assert np.array_equal(got, want), kernel


# ---- operands in other forms
@pytest.mark.parametrize("a_form", FORMS)
@pytest.mark.parametrize("b_form", FORMS)
def test_operands_in_any_layout(a_form: tuple, b_form: tuple) -> None:
    rng = np.random.default_rng(1)
    x, y = draw(rng, (2, 13, 150), 4, "signed"), draw(rng, (150, 21), 2)
    a = left(x, 4, "signed", axis=a_form[0], layout=a_form[1])
    b = right(y, 2, axis=b_form[0], layout=b_form[1])
    same(a @ b, (x @ y).astype(np.int32))
    assert (a.axis, a.layout, b.axis, b.layout) == (*a_form, *b_form)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64"])
def test_ordinary_integer_operands(dtype: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(0 if dtype in ("bool", "uint8") else -1, 2, (7, 30)).astype(dtype)
    y = draw(rng, (30, 5), 3)
    want = x.astype(np.int64) @ y
    packed = right(y, 3)
    for got in (bs.matmul(x, packed), x @ packed, bs.matmul(x, y)):
        assert isinstance(got, np.ndarray)
        assert np.array_equal(got, want)
    assert np.array_equal(packed.T @ x.T, want.T)


def test_transposes_are_exact() -> None:
    x, y = draw(np.random.default_rng(0), (11, 140), 3), draw(np.random.default_rng(1), (140, 9), 2)
    a, b = left(x, 3), right(y, 2)
    assert np.array_equal(b.T @ a.T, (x @ y).T)
    assert np.array_equal(a @ a.T, x @ x.T)
    assert np.array_equal(b.mT @ b, y.T @ y)


# ---- zero tiles
def sparse_blocks(rng: np.random.Generator, rows: int, cols: int, keep: float) -> np.ndarray:
    """Return a 0/1 matrix in which about the share `keep` of the 8 x 128 tiles is not zero."""
    tiles = rng.random((-(-rows // 8), -(-cols // 128))) < keep
    mask = tiles.repeat(8, 0).repeat(128, 1)[:rows, :cols]
    return (mask & (rng.random((rows, cols)) < 0.2)).astype(np.int64)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(8, 128), (130, 1000), (17, 4200), (3, 130)])
def test_skipping_changes_nothing_and_is_reported(shape: tuple, keep: float, kernel: str) -> None:
    rng = np.random.default_rng(5)
    x, y = sparse_blocks(rng, *shape, keep), draw(rng, (shape[1], 20), 4, "signed")
    a, b = left(x, 1), right(y, 4, "signed")
    plan = bs.plan_matmul(a, 20, bits=4, encoding="signed", kernel=kernel)
    off = bs.plan_matmul(a, 20, bits=4, encoding="signed", kernel=kernel, skip_zero_tiles=False)
    want = x @ y
    assert np.array_equal(plan(b), want)
    assert np.array_equal(off(b), want)
    assert np.array_equal(bs.matmul(a, b, kernel=kernel, skip_zero_tiles=False), want)
    padded = np.zeros((-(-shape[0] // 8) * 8, -(-shape[1] // 128) * 128))
    padded[: shape[0], : shape[1]] = x
    tiles = padded.reshape(padded.shape[0] // 8, 8, padded.shape[1] // 128, 128).any((1, 3))
    assert plan.share_skipped == pytest.approx(1 - tiles.mean())
    assert a.tile_density == pytest.approx(tiles.mean())
    assert off.share_skipped == 0.0
    same(a.tile_bitmap, tile_bitmap_of(a.words))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_skipping_respects_the_encodings(encoding: str, kernel: str) -> None:
    """Skipping must respect that for bipolar a clear bit is -1, so a tile of clear bits is not a tile of zeros."""
    bits = 1 if encoding == "bipolar" else 3
    rng = np.random.default_rng(6)
    x = draw(rng, (40, 700), bits, encoding)
    x[8:24, 128:512] = value_range(bits, encoding)[0] if encoding == "bipolar" else 0
    for other in ENCODINGS:
        b_bits = 1 if other == "bipolar" else 2
        y = draw(rng, (700, 9), b_bits, other)
        plan = bs.plan_matmul(left(x, bits, encoding), 9, bits=b_bits, encoding=other, kernel=kernel)
        assert plan.share_skipped > 0.15
        assert np.array_equal(plan(right(y, b_bits, other)), x @ y)


def test_clear_tiles_are_really_left_out(host) -> None:
    """Tiles that a bitmap calls clear must never be read: with a wrong bitmap, the result is the one that the bitmap describes."""
    rng = np.random.default_rng(7)
    a = make_words(rng, (40, 600), 2, -1, "planes")
    b = make_words(rng, (30, 600), 1, -1, "planes")
    lie = tile_bitmap_of(a)
    lie[1, 0] = 0b00110
    lie[3, 0] = 0
    x = reference_bits.words_to_codes(a, 600, 2, "planes")
    x[8:16] *= np.repeat([0, 1, 1, 0, 0], 128)[:600]
    x[24:32] = 0
    want = (x @ reference_bits.words_to_codes(b, 600, 1, "planes").T).astype(np.int32)
    arguments = {"k": 600, "a_bits": 2, "b_bits": 1, "a_encoding": "unsigned", "b_encoding": "unsigned"}
    for level in host.simd_levels():
        host.set_simd(level)
        same(
            host.matmul.matmul.matmul(a, b, **arguments, acc_dtype=np.dtype(np.int32), bitmap=lie, kernel="planes"),
            want,
        )


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_real_graph(cora, kernel: str) -> None:
    """Aggregating quantised features over a real graph, with a 1-bit adjacency made from CSR, must equal SciPy."""
    graph, _ = cora
    n = graph.shape[0]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 16, (n, 24))
    a = bs.BitTensor(graph, 1)
    assert a.nnz == graph.nnz
    plan = bs.plan_matmul(a, 24, bits=4, kernel=kernel)
    assert np.array_equal(plan(right(x, 4)), graph.astype(np.int64) @ x)
    assert 0.0 < plan.share_skipped < 1.0
    assert plan.share_skipped == pytest.approx(1 - a.tile_density)


# ---- plans
def test_a_plan_says_what_it_does() -> None:
    a = left(draw(np.random.default_rng(0), (20, 300), 2), 2)
    plan = bs.plan_matmul(a, 7, bits=3, encoding="signed", kernel="digits")
    assert plan.kernel == "digits"
    assert plan.shape == (20, 7)
    assert plan.acc_dtype == np.int32
    text = plan.explain()
    for fact in ("20 x 300 x 7", "digits", "forced", "int32", "0.0 %"):
        assert fact in text
    free = bs.plan_matmul(a, 7, bits=3)
    assert free.kernel in KERNELS
    assert "forced" not in free.explain()
    assert free.kernel in free.explain()


def test_out_is_written_and_returned() -> None:
    rng = np.random.default_rng(0)
    x, y = draw(rng, (9, 200), 2), draw(rng, (200, 6), 2)
    a, b = left(x, 2), right(y, 2)
    out = np.full((9, 6), -1, np.int32)
    assert bs.matmul(a, b, out=out) is out
    assert np.array_equal(out, x @ y)
    plan = bs.plan_matmul(a, 6, bits=2, epilogue=bs.Epilogue(row_scale=0.5))
    floats = np.full((9, 6), np.nan, np.float32)
    assert plan(b, out=floats) is floats
    assert np.array_equal(floats, (x @ y).astype(np.float32) * np.float32(0.5))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("m", [9, 0])
def test_out_the_second_time(axis: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prepared product must serve a second call with the same results and the same errors."""
    rng = np.random.default_rng(0)
    x, y, z = draw(rng, (m, 200), 2), draw(rng, (200, 6), 2), draw(rng, (200, 6), 2)
    a = left(x, 2, axis=axis)
    first, second, memory = np.full((m, 6), -1, np.int32), np.full((m, 6), -1, np.int32), right(y, 2)
    assert bs.matmul(a, memory, out=first) is first
    inside = memory.words.view(np.int32).reshape(-1)[: 6 * m].reshape(m, 6)
    bad = [np.empty((m, 5), np.int32), first.astype(np.int64), [[1]], memory, *([inside] if m else [])]
    askew = np.frombuffer(bytearray(24 * m + 1), np.int32, 6 * m, 1).reshape(m, 6)
    bad += [askew, np.empty((6, m), np.int32).T, np.broadcast_to(first[:1], (m, 6))] if m else []
    for out in bad:
        with pytest.raises(Exception, match="out") as fresh:
            bs.matmul(left(x, 2, axis=axis), memory, out=out)
        with pytest.raises(type(fresh.value), match=re.escape(str(fresh.value))):
            bs.matmul(a, memory, out=out)
    monkeypatch.setattr(importlib.import_module("bitsparse.ops.matmul.matmul"), "MatmulPlan", None)
    assert bs.matmul(a, right(z, 2), out=second) is second
    assert np.array_equal(first, x @ y)
    assert np.array_equal(second, x @ z)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("layout", ["planes", "rows"])
def test_out_may_be_a_bit_tensor(axis: int, layout: str) -> None:
    rng = np.random.default_rng(0)
    a, b = left(draw(rng, (9, 200), 2), 2), right(draw(rng, (200, 6), 2), 2)
    epilogue = bs.Epilogue(bits=4, out_scale=30.0, axis=axis, layout=layout)
    want = bs.matmul(a, b, epilogue=epilogue)
    out = bs.matmul(a, right(np.zeros((200, 6), np.int64), 2), epilogue=epilogue)
    assert not out.nnz
    assert out.tile_density == 0.0
    assert bs.matmul(a, b, epilogue=epilogue, out=out) is out
    same(out.words, want.words)
    assert out.tile_density == want.tile_density > 0


# ---- the epilogue, step by step
def chain(acc: np.ndarray, e: bs.Epilogue, row: np.ndarray | None = None, col: np.ndarray | None = None) -> np.ndarray:
    """Return the documented float32 chain up to the activation."""
    one = np.float32(1)
    v = acc.astype(np.float32)
    if e.row_scale is not None or row is not None:
        mine = one if e.row_scale is None else np.float32(e.row_scale)
        v = v * np.asarray(mine * (one if row is None else row), np.float32)[..., None]
    if e.col_scale is not None or col is not None:
        mine = one if e.col_scale is None else np.float32(e.col_scale)
        v = v * np.asarray(mine * (one if col is None else col), np.float32)
    if e.bias is not None:
        v = v + np.float32(e.bias)
    if e.batch_norm is not None:
        mean, var, weight, bias, eps = (np.asarray(part, np.float64) for part in bs.BatchNorm(*e.batch_norm))
        scale = weight / np.sqrt(var + eps)
        v = v * scale.astype(np.float32)
        v = v + (bias - mean * scale).astype(np.float32)
    return scalar.activate(v, e.activation, e.negative_slope)


FULL = ("row_scale", "col_scale", "bias", "batch_norm")


@pytest.mark.parametrize("parts", [c for r in range(5) for c in itertools.combinations(FULL, r)], ids="+".join)
@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu", "tanh"])
def test_epilogue_in_every_combination(parts: tuple, activation: str | None) -> None:
    rng = np.random.default_rng(len(parts))
    m, k, n = 19, 140, 23
    x, y = draw(rng, (m, k), 2, "signed"), draw(rng, (k, n), 3)
    a, b = left(x, 2, "signed"), right(y, 3)
    given = {
        "row_scale": rng.uniform(-0.1, 0.1, m).astype(np.float32),
        "col_scale": rng.uniform(-1, 1, n).astype(np.float32),
        "bias": rng.normal(size=n).astype(np.float32),
        "batch_norm": (rng.normal(size=n), rng.uniform(0.1, 2, n), rng.normal(size=n), rng.normal(size=n), 1e-5),
    }
    common = {name: given[name] for name in parts} | {"activation": activation, "negative_slope": 0.125}
    v = chain(x @ y, bs.Epilogue(**common))
    for kernel in KERNELS:
        same(bs.matmul(a, b, epilogue=bs.Epilogue(**common), kernel=kernel), v)
    for output in OUTPUTS[1:]:
        form = {"axis": output["axis"], "layout": output["layout"]}
        if output.get("binarize"):
            epilogue = bs.Epilogue(**common, binarize=True, **form)
            want = np.where(v >= 0, 1, -1)
        else:
            bits, rounding = output["bits"], output["rounding"]
            seed = {"seed": 77, "stream": 2} if rounding == "stochastic" else {}
            step, zero = np.float32(0.3), np.float32(-0.7)
            epilogue = bs.Epilogue(
                **common, bits=bits, out_scale=step, out_offset=zero, rounding=rounding, **seed, **form
            )
            levels = 2**bits - 1
            divisor = np.float32(np.float64(step) * levels)
            t = ((v - zero) / divisor) * np.float32(levels)
            want = np.clip(reference_bits.round_to_integers(t, rounding, 77, 2), 0, levels).astype(np.int64)
        got = bs.matmul(a, b, epilogue=epilogue)
        assert isinstance(got, bs.BitTensor)
        assert (got.axis, got.layout, got.shape) == (*form.values(), (m, n))
        assert np.array_equal(got.toarray().astype(np.int64), want)
        same(epilogue((x @ y).astype(np.int32)).words, got.words)


@pytest.mark.parametrize("scheme", ["affine", "affine-pow2", "symmetric"])
def test_requantised_result_remembers_its_grid(scheme: str) -> None:
    rng = np.random.default_rng(0)
    x, y = draw(rng, (12, 100), 1), draw(rng, (100, 10), 3, "signed")
    offset = {} if scheme == "symmetric" else {"out_offset": -80.0}
    e = bs.Epilogue(bits=6, out_scale=2.5, scheme=scheme, **offset)
    got = bs.matmul(left(x, 1), right(y, 3, "signed"), epilogue=e)
    assert got.scale == np.float32(2.5)
    assert got.encoding == ("signed" if scheme == "symmetric" else "unsigned")
    real, decoded = (x @ y).astype(np.float32), got.dequantize()
    low, high = (-31, 31) if scheme == "symmetric" else (0, 63)
    inside = (got.toarray() > low) & (got.toarray() < high)
    assert inside.mean() > 0.5
    assert np.abs(real - decoded)[inside].max() <= 2.5 + 1e-4


@pytest.mark.parametrize("granularity", ["row", "col"])
def test_out_scale_per_row_and_per_column(granularity: str) -> None:
    rng = np.random.default_rng(1)
    x, y = draw(rng, (2, 9, 60), 2), draw(rng, (60, 14), 2)
    shape = (9, 1) if granularity == "row" else (1, 14)
    scale = rng.uniform(3, 9, shape).astype(np.float32)
    offset = rng.uniform(0, 9, shape).astype(np.float32)
    e = bs.Epilogue(bits=5, out_scale=scale, out_offset=offset, scheme="affine-pow2")
    got = bs.matmul(left(x, 2), right(y, 2), epilogue=e)
    want = np.clip(np.floor(((x @ y).astype(np.float32) - offset) / scale), 0, 31)
    assert np.array_equal(got.toarray(), want)
    assert np.array_equal(np.broadcast_to(got.scale, got.shape), np.broadcast_to(scale, got.shape))


def test_scales_of_the_operands_are_multiplied_in() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(15, 90)).astype(np.float32), rng.normal(size=(90, 8)).astype(np.float32)
    a = bs.quantize(x, 8, scheme="symmetric", granularity="row")
    b = bs.quantize(w, 8, scheme="symmetric", granularity="col", axis=-2)
    got = bs.matmul(a, b, epilogue=bs.Epilogue(bias=np.ones(8)))
    row, col = np.asarray(a.scale)[:, 0], np.asarray(b.scale)[0]
    want = chain(a.toarray().astype(np.int64) @ b.toarray(), bs.Epilogue(bias=np.ones(8)), row, col)
    same(got, want)
    exact = a.dequantize(np.float64) @ b.dequantize(np.float64) + 1
    assert np.allclose(got, exact, rtol=1e-5, atol=1e-4)
    integers = bs.matmul(a, b)
    assert integers.dtype == np.int32, "without an epilogue the stored integers are multiplied"
    assert np.array_equal(integers, a.toarray().astype(np.int64) @ b.toarray())


@pytest.mark.parametrize("a_granularity", ["tensor", "row"])
@pytest.mark.parametrize("b_granularity", ["tensor", "col"])
@pytest.mark.parametrize("which", ["both", "a", "b"])
def test_offset_correction(a_granularity: str, b_granularity: str, which: str) -> None:
    rng = np.random.default_rng(4)
    x, w = rng.normal(1, 1, (2, 15, 90)).astype(np.float32), rng.normal(-1, 1, (90, 8)).astype(np.float32)
    a_scheme, b_scheme = ("affine" if which in ("both", name) else "symmetric" for name in "ab")
    a = bs.quantize(x, 7, scheme=a_scheme, granularity=a_granularity)
    b = bs.quantize(w, 5, scheme=b_scheme, granularity=b_granularity, axis=-2)
    with pytest.raises(ValueError, match=r"matmul: [ab] has an offset.*offset_correction=True"):
        bs.matmul(a, b, epilogue=bs.Epilogue())
    exact = a.dequantize(np.float64) @ b.dequantize(np.float64)
    for extra in ({}, {"row_scale": 0.5, "col_scale": np.linspace(0.5, 2, 8), "bias": np.arange(8.0)}):
        got = bs.matmul(a, b, epilogue=bs.Epilogue(offset_correction=True, **extra))
        want = exact if not extra else exact * 0.5 * extra["col_scale"] + extra["bias"]
        assert np.allclose(got, want, rtol=1e-4, atol=1e-3 * np.abs(want).max())
    for form in itertools.product((-1, -2), ("planes",)):
        moved = bs.matmul(
            a.repack(axis=form[0]), b.repack(axis=-3 - form[0]), epilogue=bs.Epilogue(offset_correction=True)
        )
        same(moved, bs.matmul(a, b, epilogue=bs.Epilogue(offset_correction=True)))


@pytest.mark.parametrize(("which", "granularity", "axis"), [("a", "col", -1), ("b", "row", -2)])
def test_scales_along_the_contraction_are_refused(which: str, granularity: str, axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    bad = bs.quantize(x, 4, scheme="symmetric", granularity=granularity, axis=axis)
    good = bs.quantize(x, 4, scheme="symmetric", axis=-3 - axis)
    operands = (bad, good) if which == "a" else (good, bad)
    with pytest.raises(ValueError, match=rf"matmul: {which} has a scale .*contraction axis.*quantize {which}"):
        bs.matmul(*operands, epilogue=bs.Epilogue())
    assert bs.matmul(*operands).dtype == np.int32


def test_batched_vectors() -> None:
    rng = np.random.default_rng(8)
    x, y = draw(rng, (3, 7, 50), 2), draw(rng, (3, 50, 5), 2)
    row, col, bias = rng.normal(size=(3, 7)), rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    got = bs.matmul(left(x, 2), right(y, 2), epilogue=bs.Epilogue(row_scale=row, col_scale=col, bias=bias))
    v = (x @ y).astype(np.float32) * row.astype(np.float32)[..., None] * col.astype(np.float32)[:, None]
    same(got, v + bias.astype(np.float32)[:, None])


def test_binarize_takes_zero_as_plus_one() -> None:
    """A row without neighbours aggregates to 0, and sign(0) must be +1 (BitGNN section 2)."""
    x = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    y = np.array([[1, -1], [-1, 1], [1, 1]])
    a, b = left(x, 1), right(y, 1, "bipolar")
    got = bs.matmul(a, b, epilogue=bs.Epilogue(binarize=True))
    assert got.encoding == "bipolar"
    assert got.toarray().tolist() == [[1, 1], [1, -1], [-1, 1]]
    unsigned = bs.matmul(a, b, epilogue=bs.Epilogue(binarize=True, encoding="unsigned"))
    assert unsigned.toarray().tolist() == [[1, 1], [1, 0], [0, 1]]
    # -0.0 from a negative scale is still zero
    flipped = bs.matmul(a, b, epilogue=bs.Epilogue(row_scale=-1.0, binarize=True))
    assert flipped.toarray().tolist() == [[1, 1], [-1, 1], [1, -1]]


def nan_producers() -> dict:
    """Return finite parameters with which the chain multiplies infinity by zero."""
    return {"row_scale": np.float32(3e38), "col_scale": np.array([1.0, 0.0])}


def test_nan_reaches_floats_and_is_refused_for_bits() -> None:
    a, b = left(np.full((2, 9), 3), 2), right(np.full((9, 2), 3), 2)
    floats = bs.matmul(a, b, epilogue=bs.Epilogue(**nan_producers()))
    assert np.isinf(floats[:, 0]).all()
    assert np.isnan(floats[:, 1]).all()
    for activation in ("relu", "leaky_relu", "tanh"):
        active = bs.matmul(a, b, epilogue=bs.Epilogue(**nan_producers(), activation=activation))
        assert np.isnan(active[:, 1]).all(), activation
    for form in ({"binarize": True}, {"bits": 3, "out_scale": 1.0}):
        with pytest.raises(ValueError, match=r"matmul: the epilogue produced NaN"):
            bs.matmul(a, b, epilogue=bs.Epilogue(**nan_producers(), **form))


def test_infinity_is_clipped_to_the_last_code() -> None:
    a, b = left(np.full((1, 9), 3), 2), right(np.array([[1, -1]]).repeat(9, 0), 2, "signed")
    for rounding in ("floor", "nearest", "stochastic"):
        seed = {"seed": 0} if rounding == "stochastic" else {}
        e = bs.Epilogue(row_scale=np.float32(3e38), bits=4, out_scale=1.0, rounding=rounding, **seed)
        assert bs.matmul(a, b, epilogue=e).toarray().tolist() == [[15, 0]]


def test_two_layers_stay_in_bits() -> None:
    """The result of one product must be usable as an operand of the next, packed as that product needs it."""
    rng = np.random.default_rng(9)
    graph = (rng.random((60, 60)) < 0.1).astype(np.int64)
    x, w = draw(rng, (60, 40), 4), draw(rng, (40, 16), 4, "signed")
    hidden = bs.matmul(
        left(x, 4), right(w, 4, "signed"), epilogue=bs.Epilogue(bits=4, out_scale=20.0, scheme="symmetric", axis=-2)
    )
    out = bs.matmul(left(graph, 1), hidden)
    codes = np.clip(np.rint((x @ w).astype(np.float32) / np.float32(20)), -7, 7).astype(np.int64)
    assert np.array_equal(out, graph @ codes)


# ---- tanh
def test_tanh_is_accurate_odd_and_saturates(host) -> None:
    x = np.concatenate(
        [
            np.linspace(-12, 12, 200_001, dtype=np.float32),
            np.geomspace(1e-40, 1e3, 100_001, dtype=np.float64).astype(np.float32),
            np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 9.01, 9.0099, 1e-45, 3e38], np.float32),
        ]
    ).reshape(1, -1)
    want = scalar.tanh(x)
    numbers = ~np.isnan(x)
    assert np.abs(want[numbers] - np.tanh(x[numbers].astype(np.float64))).max() <= 2e-7
    same(scalar.tanh(-x), -want)
    assert (np.abs(want[numbers][np.abs(x[numbers]) >= 9.01]) == 1).all()
    assert np.isnan(want[~numbers]).all()
    epilogue = bs.Epilogue(activation="tanh")
    for level in host.simd_levels():
        host.set_simd(level)
        same(epilogue(x), want)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rounding": "stochastic"}, ValueError, "rounding would describe bits"),
        ({"axis": -2, "layout": "rows"}, ValueError, "axis and layout would describe bits"),
        ({"out_scale": np.ones((2, 1))}, ValueError, "out_scale would describe bits"),
        ({"binarize": True, "scheme": "symmetric"}, ValueError, "no grid; drop scheme"),
        ({"binarize": "no"}, bs.DTypeError, "binarize must be True or False"),
        ({"offset_correction": "no"}, bs.DTypeError, "offset_correction must be True or False"),
    ],
)
def test_an_epilogue_leaves_no_option_unread(options: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        bs.Epilogue(**options)


def test_a_vector_is_named_as_the_operand_that_it_is() -> None:
    with pytest.raises(bs.ShapeError, match=r"matmul: b has shape \(3,\).* or b\[:, None\]"):
        bs.matmul(np.ones((2, 3), int), np.ones(3, int))
