"""On arrays in GPU memory, public functions give the host's bits, in arrays of the caller's library, and in stream order."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
FLOATS = RNG.normal(size=(37, 300)).astype(np.float32)
CODES = RNG.integers(0, 8, (37, 300))
BOUNDARY = RNG.integers(0, 2, (3, 9, 130))


def cp() -> Any:
    import cupy

    return cupy


def address(there: Any) -> int:
    return int(there.data.ptr)


def same(there: Any, here: Any) -> None:
    """Assert that a CuPy array and a NumPy array are equal to the bit."""
    cupy = cp()
    assert isinstance(there, cupy.ndarray), type(there)
    here = np.asarray(here)
    assert there.dtype == here.dtype
    assert there.shape == here.shape
    np.testing.assert_array_equal(cupy.asnumpy(there), here)


def same_bits(there: bs.BitTensor, here: bs.BitTensor) -> None:
    """Assert that two BitTensors, of which the first is on the GPU, are equal to the bit."""
    assert there.device == "cuda:0"
    assert here.device == "cpu"
    for name in ("shape", "bits", "axis", "layout", "encoding", "dtype", "nbytes"):
        assert getattr(there, name) == getattr(here, name), name
    same(there.words, here.words)
    for name in ("scale", "offset"):
        mine, theirs = getattr(there, name), getattr(here, name)
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            same(mine, theirs)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("layout", ["planes", "rows"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "int64", "uint64"])
def test_packing(axis: int, layout: str, dtype: str) -> None:
    for codes in (CODES, BOUNDARY, CODES[:0], CODES[:, :0], CODES[::-2, 5::3]):
        values = codes.astype(dtype)
        bits = None if layout == "planes" else 4
        there, here = (bs.pack_bits(x, bits, axis=axis, layout=layout) for x in (cp().asarray(values), values))
        same_bits(there, here)
        assert there.family == "cupy"
        same(there.toarray(), here.toarray())
        same(bs.unpack_bits(there, np.int64), here.toarray(np.int64))
        assert there.nnz == here.nnz
        same_bits(there.repack(axis=-3 - axis), here.repack(axis=-3 - axis))


def test_signs_and_encodings() -> None:
    for dtype in ("float16", "float32", "float64"):
        x = FLOATS.astype(dtype)
        for encoding in ("unsigned", "bipolar"):
            same_bits(bs.pack_bits(cp().asarray(x), encoding=encoding), bs.pack_bits(x, encoding=encoding))
    signed = CODES - 4
    same_bits(bs.BitTensor(cp().asarray(signed), encoding="signed"), bs.BitTensor(signed, encoding="signed"))
    plus_minus = np.where(CODES > 3, 1, -1)
    same_bits(bs.BitTensor(cp().asarray(plus_minus), encoding="bipolar"), bs.BitTensor(plus_minus, encoding="bipolar"))


@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize(
    ("scheme", "rounding"),
    [
        ("affine", "floor"),
        ("affine", "nearest"),
        ("affine", "stochastic"),
        ("affine-pow2", "floor"),
        ("symmetric", "nearest"),
    ],
)
def test_quantising(scheme: str, rounding: str, granularity: str) -> None:
    for dtype, bits in (("float32", 4), ("float16", 8), ("float64", 3), ("float32", 27), ("int16", 5)):
        x = (FLOATS * (100 if dtype == "int16" else 1)).astype(dtype)
        how: dict[str, Any] = {"scheme": scheme, "rounding": rounding, "granularity": granularity}
        how |= {"seed": 3} if rounding == "stochastic" else {}
        there, here = bs.quantize(cp().asarray(x), bits, **how), bs.quantize(x, bits, **how)
        same_bits(there, here)
        same(there.dequantize(), here.dequantize())
        same(bs.dequantize(there, np.float64), bs.dequantize(here, np.float64))
        same(bs.dequantize(there, np.float16), bs.dequantize(here, np.float16))
        assert bs.quantization_error(cp().asarray(x), there) == pytest.approx(bs.quantization_error(x, here), rel=1e-12)


def test_quantising_to_a_given_range() -> None:
    x = cp().asarray(FLOATS)
    same_bits(bs.quantize(x, 4, range=(-1, 1)), bs.quantize(FLOATS, 4, range=(-1, 1)))
    low, high = FLOATS.min(1, keepdims=True), np.float32(2)
    there = bs.quantize(x, 4, range=(cp().asarray(low), high), granularity="row")
    same_bits(there, bs.quantize(FLOATS, 4, range=(low, high), granularity="row"))
    same_bits(
        bs.quantize(x, 4, scheme="symmetric", range=2.0, axis=-2),
        bs.quantize(FLOATS, 4, scheme="symmetric", range=2.0, axis=-2),
    )


def test_rounding_and_choice() -> None:
    for dtype in ("float16", "float32", "float64"):
        x = (FLOATS * 10).astype(dtype)
        same(bs.stochastic_round(cp().asarray(x), seed=5), bs.stochastic_round(x, seed=5))
    assert bs.choose_bits(cp().asarray(FLOATS)) == bs.choose_bits(FLOATS)


def test_there_and_back() -> None:
    graph = sp.random_array((200, 150), density=0.05, rng=np.random.default_rng(1), format="csr")
    for here in (
        bs.quantize(FLOATS, 4, granularity="row"),
        bs.TCTiledCSR(graph, row_scale=np.ones(200), col_scale=np.full(150, 2)),
        bs.FRDC(graph.astype(bool), row_scale=np.ones(200)),
    ):
        there = here.to_device("cuda")
        assert there.device == "cuda:0"
        assert there.family == "cupy"
        assert there.to_device("cuda:0") is there
        assert there.shape == here.shape
        assert there.nbytes == here.nbytes
        assert "cuda:0" in repr(there)
        back = there.get()
        assert back.device == "cpu"
        assert back.family == "numpy"
        np.testing.assert_array_equal(back.toarray(), here.toarray())
        again = pickle.loads(pickle.dumps(there))
        assert again.device == "cuda:0"
        np.testing.assert_array_equal(again.get().toarray(), here.toarray())
        file = io.BytesIO()
        bs.save_npz(file, there)
        file.seek(0)
        np.testing.assert_array_equal(bs.load_npz(file).toarray(), here.toarray())


def test_what_a_bit_tensor_knows_and_does() -> None:
    here = bs.BitTensor(CODES * (RNG.random(CODES.shape) < 0.1), 3)
    there, other = here.to_device("cuda"), bs.BitTensor(CODES, 3)
    same(there.tile_bitmap, here.tile_bitmap)
    same(there.line_sums, here.line_sums)
    assert there.tile_density == here.tile_density
    assert there.density == here.density
    for key in (
        (slice(2, 9),),
        (slice(None), slice(5, 200, 3)),
        (np.array([3, 1, 1]),),
        (slice(None), [True] * 3 + [False] * 297),
    ):
        same_bits(there[key], here[key])
    same_bits(there[cp().asarray([4, 2])], here[[4, 2]])
    moved = other.to_device("cuda")
    same_bits(there & moved, here & other)
    same_bits(there | moved, here | other)
    same_bits(there ^ moved.repack(axis=-2), here ^ other)
    same_bits(~there, ~here)
    same_bits(there.T, here.T)
    same_bits(there.copy(), here)
    for mine, theirs in (
        (there + 1, here + 1),
        (2.5 * there, 2.5 * here),
        (there == moved, here == other),
        (-there, -here),
    ):
        same(mine, theirs)
    same(there + cp().asarray(FLOATS), here + FLOATS)
    same(there.with_affine(0.5, [[1.0]]).decoded(), here.with_affine(0.5, [[1.0]]).decoded())
    same(there.astype(np.float32), here.astype(np.float32))
    assert (there.to_scipy() != here.tocsr()).nnz == 0
    words = bs.BitTensor.from_words(there.words, there.shape, 3)
    assert address(words.words) == address(there.words)


def test_bad_input() -> None:
    x = cp().asarray(FLOATS)
    holes = x.copy()
    holes[3, 4] = np.nan
    for call in (lambda: bs.quantize(holes, 4), lambda: bs.pack_bits(holes), lambda: bs.stochastic_round(holes)):
        with pytest.raises(ValueError, match="NaN"):
            call()
    with pytest.raises(ValueError, match=r"reach 0\.\.7, but 2 bits"):
        bs.pack_bits(cp().asarray(CODES), 2)
    dirty = cp().full((2, 1, 4), 2**32 - 1, np.uint32)
    with pytest.raises(ValueError, match="padding bits"):
        bs.BitTensor.from_words(dirty, (2, 100), 1)
    with pytest.raises(bs.DTypeError, match="quantize"):
        bs.matmul(x, bs.pack_bits(cp().asarray(CODES.T)))
    there, here = bs.pack_bits(cp().asarray(CODES)), bs.pack_bits(CODES)
    for mixed in (
        lambda: there @ here.T,
        lambda: here @ there.T,
        lambda: there & here,
        lambda: there + CODES,
        lambda: here + cp().asarray(CODES),
        lambda: bs.matmul(there, there.T, out=np.empty((37, 37), np.int32)),
        lambda: bs.quantization_error(FLOATS, there),
    ):
        with pytest.raises(bs.DeviceError, match="cuda:0"):
            mixed()
    graph, signs = bs.FRDC(np.eye(37, dtype=int)), bs.pack_bits(x, encoding="bipolar")
    for not_yet in (
        lambda: bs.spmm(graph, x),
        lambda: bs.spmm(graph.to_device("cuda"), FLOATS),
        lambda: bs.bspmm(graph, signs),
        lambda: bs.bspmm(graph.to_device("cuda"), FLOATS),
        lambda: bs.sampled_spmm(graph, x, width=2),
        lambda: bs.sampled_spmm(graph.to_device("cuda"), FLOATS, width=2),
        lambda: there.tocsr(),
    ):
        with pytest.raises(bs.DeviceError, match=r"\.get\(\)"):
            not_yet()
    with pytest.raises(bs.DeviceError, match=r"'cuda:99'.*GPUs"):
        here.to_device("cuda:99")


def test_out_of_memory_leaves_the_library_usable() -> None:
    column = bs.pack_bits(cp().ones((1 << 21, 1), np.uint8))
    with pytest.raises(MemoryError, match=r"(?i)out of memory"):
        column @ column.T  # 16 TiB
    same(bs.pack_bits(cp().asarray(CODES)).toarray(), CODES.astype(np.uint8))


# -- products ---------------------------------------------------------------------------------------------------------
def operands(a_bits: int = 3, b_bits: int = 2, shape: tuple[int, int, int] = (70, 300, 33)) -> tuple[Any, Any]:
    m, k, n = shape
    return RNG.integers(0, 1 << a_bits, (m, k)), RNG.integers(0, 1 << b_bits, (k, n))


@pytest.mark.parametrize("bits", [(1, 1), (3, 2), (8, 8), (16, 16), (32, 1)])
def test_products(bits: tuple[int, int]) -> None:
    x, y = operands(*bits)
    a = bs.BitTensor(cp().asarray(x), bits[0])
    for axis in (-1, -2):
        for right in (y, y, y[:, ::-1]):  # the second product takes the shorter path of repeated calls
            b = bs.BitTensor(cp().asarray(right), bits[1], axis=axis)
            same(a @ b, (x @ right).astype(np.int32 if 300 << sum(bits) < 2**31 else np.int64))
    same(a @ cp().asarray(y), a.get() @ y)
    same(cp().asarray(x) @ b, x @ b.get())


def test_products_of_batches_and_encodings() -> None:
    x, y = RNG.integers(-4, 4, (2, 1, 40, 130)), np.where(RNG.random((3, 130, 20)) < 0.5, 1, -1)
    a, b = bs.BitTensor(x, 3, encoding="signed"), bs.BitTensor(y, encoding="bipolar", axis=-2)
    same(a.to_device("cuda") @ b.to_device("cuda"), a @ b)


@pytest.mark.parametrize("kernel", ["planes", "digits", "mixed", "planes-mma", "digits-mma"])
def test_plans(kernel: str) -> None:
    x, y = operands()
    x[8:16] = 0
    a, b = bs.BitTensor(cp().asarray(x)), bs.BitTensor(cp().asarray(y), axis=-2)
    plan = bs.plan_matmul(a, 33, bits=2, kernel=kernel)
    assert plan.kernel == kernel
    assert plan.device == "cuda:0"
    assert plan.share_skipped == bs.plan_matmul(a.get(), 33, bits=2).share_skipped > 0
    assert kernel in plan.explain()
    assert "forced" in plan.explain()
    same(plan(b), (x @ y).astype(np.int32))
    out = cp().full((70, 33), -7, np.int32)
    assert plan(b, out=out) is out
    same(out, (x @ y).astype(np.int32))


def epilogues() -> list[bs.Epilogue]:
    bias = np.random.default_rng(7).normal(size=33).astype(np.float32)
    norm = bs.BatchNorm(mean=bias, var=np.abs(bias) + 1)
    return [
        bs.Epilogue(row_scale=np.linspace(-1, 1, 70), bias=bias, activation="relu"),
        bs.Epilogue(col_scale=bias, batch_norm=norm, activation="tanh"),
        bs.Epilogue(bias=bias, activation="leaky_relu", bits=4, out_scale=30.0, out_offset=-10.0),
        bs.Epilogue(bits=8, out_scale=np.linspace(1, 9, 70)[:, None], scheme="symmetric", axis=-2),
        bs.Epilogue(bits=2, out_scale=100.0, rounding="stochastic", seed=4, layout="rows"),
        bs.Epilogue(bias=-300 * np.ones(33), binarize=True, axis=-2),
    ]


@pytest.mark.parametrize("which", range(6))
def test_epilogues(which: int) -> None:
    x, y = operands()
    a, b = bs.BitTensor(x, scale=0.5), bs.BitTensor(y, axis=-2, scale=np.linspace(0.1, 2, 33)[None])
    there, right = a.to_device("cuda"), b.to_device("cuda")
    for left, other in ((a.with_affine(), b.with_affine()), (a, b)):
        finish = epilogues()[which]
        want = bs.matmul(left, other, epilogue=finish)
        plan = bs.plan_matmul(left.to_device("cuda"), 33, bits=2, epilogue=finish)
        for got in (
            bs.matmul(left.to_device("cuda"), other.to_device("cuda"), epilogue=finish),
            plan(other.to_device("cuda")),
        ):
            (same_bits if isinstance(want, bs.BitTensor) else same)(got, want)
        out = plan(other.to_device("cuda"))
        assert plan(other.to_device("cuda"), out=out) is out
    acc = (x @ y).astype(np.int32)
    finish, want = epilogues()[which], epilogues()[which](acc)
    (same_bits if isinstance(want, bs.BitTensor) else same)(finish(cp().asarray(acc)), want)
    assert there.scale is not None
    assert right.scale is not None


def test_offsets_are_corrected() -> None:
    x, y = RNG.normal(size=(20, 90)).astype(np.float32), RNG.normal(size=(90, 10)).astype(np.float32)
    finish = bs.Epilogue(offset_correction=True, bias=np.arange(10), row_scale=2.0)
    a, b = bs.quantize(x, 4, granularity="row"), bs.quantize(y, 3, granularity="col", axis=-2)
    there = bs.matmul(a.to_device("cuda"), b.to_device("cuda"), epilogue=finish)
    same(there, bs.matmul(a, b, epilogue=finish))


def test_nan_on_the_way_to_bits() -> None:
    finish = bs.Epilogue(row_scale=3e38, batch_norm=(0.0, 1.0, 0.0), bits=4, out_scale=1.0)
    here = bs.pack_bits(np.ones((4, 4), np.uint8))
    there = here.to_device("cuda")
    for a in (here, there):
        with pytest.raises(ValueError, match="NaN"):
            bs.matmul(a, a.T, epilogue=finish)
    plan = bs.plan_matmul(there, 4, epilogue=finish)
    plan(there.T)
    with pytest.raises(ValueError, match="NaN"):
        plan.check()
    plan.check()  # an error is reported only once


@pytest.mark.parametrize("case", ["plain", "epilogue", "signs", "means", "scaled signs", "quantized", "unscaled"])
def test_plans_are_compiled_when_they_are_made(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The first call of a plan, with operands as planned, must load no further kernel."""
    loaded: dict[Any, Any] = {}
    monkeypatch.setattr(sys.modules["bitsparse.jit.kernel"], "_loaded", loaded)
    x, y = operands()
    a, b = bs.BitTensor(x).to_device("cuda"), bs.BitTensor(y, axis=-2).to_device("cuda")
    floats, weight = (cp().asarray(RNG.standard_normal(shape).astype(np.float32)) for shape in ((6, 70), (70, 5)))
    options: dict[str, Any] = {}
    plan: Any
    if case == "signs":
        plan, operand = bs.plan_bmm(weight, 6, "FFB"), floats
    elif case == "means":
        plan, operand, options = bs.plan_bmm(weight, 6, "FFB"), floats, {"absmean": cp().empty(6, np.float32)}
    elif case == "scaled signs":
        signs = [bs.pack_bits(one, encoding="bipolar", axis=axis) for one, axis in ((floats, -1), (weight, -2))]
        plan, operand = bs.plan_bmm(signs[1], 6, "BBB"), signs[0].with_affine(np.linspace(1, 2, 6)[:, None])
    elif case in ("quantized", "unscaled"):
        plan, operand = bs.plan_quantized_matmul(weight, 6), floats
        options = {"range": 1.0} if case == "quantized" else {}
    else:
        finish = bs.Epilogue(bias=np.arange(33), activation="relu") if case == "epilogue" else None
        plan, operand = bs.plan_matmul(a, 33, bits=2, epilogue=finish), b
    before = len(loaded)
    plan(operand, **options)
    assert before == len(loaded) > 0
    assert plan.kernel
    assert plan.nbytes >= 0


# -- streams and other libraries --------------------------------------------------------------------------------------
def test_streams_and_capture() -> None:
    cupy = cp()
    x, y = operands()
    stream = cupy.cuda.Stream(non_blocking=True)
    finish = bs.Epilogue(bias=np.arange(33), activation="relu", bits=4, out_scale=40.0, axis=-2)
    want = bs.matmul(bs.BitTensor(x), bs.BitTensor(y, axis=-2), epilogue=finish)
    with stream:
        a, b = bs.BitTensor(cupy.asarray(x)), bs.BitTensor(cupy.asarray(y), axis=-2)
        plain, fused = bs.plan_matmul(a, 33, bits=2), bs.plan_matmul(a, 33, bits=2, epilogue=finish)
        out, packed = plain(b), fused(b)
        stream.begin_capture()
        plain(b, out=out)
        fused(b, out=packed)
        graph = stream.end_capture()
        out.fill(-1)
        packed.words.fill(0xDEADBEEF)
        graph.launch(stream)
        stream.synchronize()
    same(out, (x @ y).astype(np.int32))
    same_bits(packed, want)


def test_use_stream() -> None:
    cupy = cp()
    x, y = operands()
    a, b = bs.BitTensor(cupy.asarray(x)), bs.BitTensor(cupy.asarray(y), axis=-2)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    before = cupy.cuda.get_current_stream().ptr
    for handle in (stream, stream.ptr):
        with bs.use_stream(handle):
            assert cupy.cuda.get_current_stream().ptr == stream.ptr
            got = a @ b
        stream.synchronize()
        same(got, (x @ y).astype(np.int32))
    assert cupy.cuda.get_current_stream().ptr == before
    with pytest.raises(bs.DTypeError, match="use_stream"), bs.use_stream("fast"):
        pass


@pytest.mark.torch
def test_torch() -> None:
    import torch

    x, y = operands()
    tx, ty = (torch.from_numpy(v).cuda() for v in (x, y))
    a, b = bs.pack_bits(tx), bs.pack_bits(ty, axis=-2)
    assert (a.family, a.device) == ("torch", "cuda:0")
    got = a @ b
    assert isinstance(got, torch.Tensor)
    assert got.is_cuda
    np.testing.assert_array_equal(got.cpu().numpy(), x @ y)
    assert isinstance(bs.quantize(torch.from_numpy(FLOATS).cuda(), 4).dequantize(), torch.Tensor)
    half = torch.from_numpy(FLOATS).bfloat16()
    same_bits(bs.quantize(half.cuda(), 4), bs.quantize(half, 4))
    words = torch.zeros((5, 1, 4), dtype=torch.int32, device="cuda")
    adopted = bs.BitTensor.from_words(words, (5, 100), 1)
    assert address(adopted.words) == words.data_ptr()
    out = torch.full((70, 33), -1, dtype=torch.int32, device="cuda")
    assert bs.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out.cpu().numpy(), x @ y)
    with pytest.raises(bs.DTypeError, match="detach"):
        bs.quantize(torch.ones(3, 3, device="cuda", requires_grad=True), 4)


@pytest.mark.torch
def test_torch_streams_and_graphs() -> None:
    import torch

    x, y = operands()
    tx, ty = (torch.from_numpy(v).cuda() for v in (x, y))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a, b = bs.pack_bits(tx + 0), bs.pack_bits(ty + 0, axis=-2)
        got = (a @ b) * 1
    side.synchronize()
    np.testing.assert_array_equal(got.cpu().numpy(), x @ y)
    plan, out = bs.plan_matmul(a, 33, bits=2), torch.zeros((70, 33), dtype=torch.int32, device="cuda")
    plan(b, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(b, out=out)
    out.fill_(-5)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), x @ y)


@pytest.mark.jax
def test_jax() -> None:
    import jax

    x, y = (v.astype(np.int32) for v in operands())
    if jax.default_backend() != "gpu":
        jx = jax.numpy.asarray(x)
        assert bs.pack_bits(jx).device == "cpu"
        return
    jx, jy = jax.numpy.asarray(x), jax.numpy.asarray(y)
    a, b = bs.pack_bits(jx), bs.pack_bits(jy, axis=-2)
    assert (a.family, a.device) == ("jax", "cuda:0")
    got = a @ b
    assert isinstance(got, jax.Array)
    np.testing.assert_array_equal(np.asarray(got), x @ y)


def test_memory_of_results_is_used_again_only_when_nobody_holds_it() -> None:
    import cupy

    rng = np.random.default_rng(8)
    x = rng.integers(0, 2, (40, 300))
    plan = bs.plan_matmul(bs.pack_bits(cupy.asarray(x)), 9)
    values = [rng.integers(0, 2, (300, 9)) for _ in range(5)]
    operands = [bs.pack_bits(cupy.asarray(y), axis=-2) for y in values]
    whole = plan(operands[0])
    view = whole[1:, ::2]
    pointer = plan(operands[1]).data  # keeps the memory alive, not the array
    shared = cupy.from_dlpack(plan(operands[2]))
    del whole
    kept = [plan(operand) for operand in operands]
    addresses = {array.data.ptr for array in kept}
    assert len(addresses) == 5
    assert not addresses & {view.base.data.ptr, pointer.ptr, shared.data.ptr}
    np.testing.assert_array_equal(cupy.asnumpy(view), (x @ values[0])[1:, ::2])
    np.testing.assert_array_equal(cupy.asnumpy(shared), x @ values[2])
    again = cupy.ndarray((40, 9), np.int32, pointer)
    np.testing.assert_array_equal(cupy.asnumpy(again), x @ values[1])
    for y, array in zip(values, kept, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(array), x @ y)
