"""bspmm and its plans on a GPU against the CPU: integers bit for bit, floats within their bound, signs where numbers are clear of 0."""

from __future__ import annotations

import gc
import itertools
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs

pytestmark = pytest.mark.gpu

VARIANTS = ["".join(letters) for letters in itertools.product("FB", repeat=3)]


def cp() -> Any:
    import cupy

    return cupy


def pattern(m: int = 70, n: int = 50, seed: int = 0) -> Any:
    """A bool matrix with empty rows, rows of one edge and a full one."""
    rng = np.random.default_rng(seed)
    dense = rng.random((m, n)) < 0.15
    dense[::7] = False
    dense[5] = False
    dense[5, 3] = True
    dense[2] = True
    return sp.csr_array(dense)


def containers(scaled: bool, weighted: bool, seed: int = 1) -> tuple[Any, Any]:
    """The same matrix on the CPU and on the GPU."""
    rng = np.random.default_rng(seed)
    A = pattern()
    if weighted:
        A = sp.csr_array((rng.standard_normal(A.nnz).astype(np.float32), A.indices, A.indptr), A.shape)
    scales = {}
    if scaled:
        scales = {
            "row_scale": rng.standard_normal(70).astype(np.float32),
            "col_scale": rng.random(50).astype(np.float32),
        }
    here = bs.TCTiledCSR(A, **scales)
    return here, here.to_device("cuda")


def epilogues(d: int, letter: str, axis: int = -1, layout: str = "planes") -> dict[str, Any]:
    rng = np.random.default_rng(d)
    columns, rows = (rng.standard_normal((5, size)).astype(np.float32) for size in (d, 70))
    norm = bs.BatchNorm(columns[0], np.abs(columns[1]) + 0.5, columns[2], columns[3])
    more: dict[str, Any] = {"binarize": True, "axis": axis, "layout": layout} if letter == "B" else {}
    return {
        "none": None,
        "bias": bs.Epilogue(bias=columns[4], **more),
        "norm": bs.Epilogue(batch_norm=norm, bias=columns[4], activation="leaky_relu", **more),
        "all": bs.Epilogue(row_scale=rows[0], col_scale=columns[1], batch_norm=norm, activation="tanh", **more),
    }


def real(x: Any) -> np.ndarray:
    if isinstance(x, bs.BitTensor):
        values = x.toarray().astype(np.float64)
        return values if x.scale is None else values * x.scale
    return np.asarray(x).astype(np.float64)


def poisoned(result: Any) -> Any:
    """Something like a result on the GPU, full of what nobody computes."""
    if isinstance(result, bs.BitTensor):
        words = cp().full(result.words.shape, 0xA5A5A5A5, np.uint32)
        made = bs.BitTensor.from_words(
            cp().zeros_like(words), result.shape, 1, encoding=result.encoding, axis=result.axis, layout=result.layout
        )
        made.words[...] = words
        return made
    out = cp().empty(result.shape, result.dtype)
    out.view(np.uint8).fill(0xA5)
    return out


def number_of(A: Any, x: Any, reduce: str, add: Any, epilogue: Any) -> tuple[np.ndarray, np.ndarray]:
    """The float64 number that comes out or is compared with 0, and a bound of what float32 makes different about it."""
    dense = A.toarray().astype(np.float64)
    if A.row_scale is not None:
        dense = dense * A.row_scale[:, None] * A.col_scale
    counts = np.maximum(np.diff(A.tocsr().indptr), 1)[:, None] if reduce == "mean" else 1.0
    v, size = dense @ real(x) / counts, np.abs(dense) @ np.abs(real(x)) / counts
    if add is not None:
        v, size = v + real(add), size + np.abs(real(add))
    fixed = None if epilogue is None else epilogue._fixed
    for name in ("row_scale", "col_scale", "bias", "bn_scale", "bn_shift"):
        part = None if fixed is None else getattr(fixed, name)
        if part is None:
            continue
        part = part.astype(np.float64)
        part = part[:, None] if name == "row_scale" else part
        by = name in ("row_scale", "col_scale", "bn_scale")
        v, size = (v * part, size * np.abs(part)) if by else (v + part, size + np.abs(part))
    if fixed is not None and fixed.activation == "tanh":
        v = np.tanh(v)
    if fixed is not None and fixed.activation == "leaky_relu":
        v = np.where(v >= 0, v, v * fixed.negative_slope)
    return v, size * 80 * 2.0**-23 + 1e-6


def compare(got: Any, want: Any, number: np.ndarray, bound: np.ndarray) -> None:
    if isinstance(want, bs.BitTensor):
        got = got.to_device("cpu")
        assert (got.shape, got.bits, got.encoding, got.axis, got.layout) == (
            want.shape, 1, want.encoding, want.axis, want.layout,
        )  # fmt: skip
        bs.BitTensor.from_words(got.words, got.shape, 1, encoding=got.encoding, axis=got.axis, layout=got.layout)
        differ = got.toarray() != want.toarray()
        assert not (differ & (np.abs(number) > bound)).any()
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "i":
        assert np.array_equal(got.get(), want)
        return
    assert (np.abs(got.get().astype(np.float64) - want) <= bound).all()


def features(rng: np.random.Generator, letter: str, n: int, d: int, scale: str = "none") -> Any:
    raw = rng.standard_normal((n, d)).astype(np.float32)
    if letter == "F":
        return raw
    bits = bs.pack_bits(raw, encoding="bipolar")
    shapes = {"none": None, "scalar": (), "node": (n, 1), "feature": (1, d)}
    shape = shapes[scale]
    return bits if shape is None else bits.with_affine(rng.standard_normal(shape).astype(np.float32))


def on_gpu(x: Any) -> Any:
    return x.to_device("cuda") if isinstance(x, bs.BitTensor) else cp().asarray(x)


def check(here: Any, there: Any, x: Any, variant: str, add: Any = None, **options: Any) -> None:
    """One call and a plan's calls against the host's."""
    want = bs.bspmm(here, x, variant, add=add, **options)
    y, more = on_gpu(x), None if add is None else on_gpu(add)
    number, bound = number_of(here, x, options.get("reduce", "sum"), add, options.get("epilogue"))
    compare(bs.bspmm(there, y, variant, add=more, **options), want, number, bound)
    out = poisoned(want)
    assert bs.bspmm(there, y, variant, add=more, out=out, **options) is out
    compare(out, want, number, bound)
    plan = bs.plan_bspmm(there, x.shape[1], variant, add=add is not None, **options)
    compare(plan(y, more), want, number, bound)
    assert (plan.shape, plan.variant) == (want.shape, variant)
    assert "kernel" in plan.explain()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, scaled: bool) -> None:
    rng = np.random.default_rng(7)
    here, there = containers(scaled, variant[1] == "F")
    for reduce in ("sum", "mean"):
        check(here, there, features(rng, variant[0], 50, 45), variant, reduce=reduce)


@pytest.mark.parametrize("name", ["bias", "norm", "all"])
@pytest.mark.parametrize("variant", ["FBF", "FBB", "FFB", "BBF", "BBB", "BFB"])
def test_epilogues(variant: str, name: str) -> None:
    rng = np.random.default_rng(8)
    d = 68 if variant[0] == "F" else 45
    here, there = containers(variant != "BBB", variant[1] == "F")
    epilogue = epilogues(d, variant[2])[name]
    for reduce in ("sum", "mean"):
        check(here, there, features(rng, variant[0], 50, d), variant, reduce=reduce, epilogue=epilogue)


@pytest.mark.parametrize("scale", ["scalar", "node", "feature"])
@pytest.mark.parametrize("variant", ["BBF", "BBB", "BFB"])
def test_scales_of_features(variant: str, scale: str) -> None:
    rng = np.random.default_rng(9)
    for scaled in (False, True):
        here, there = containers(scaled, variant[1] == "F")
        x = features(rng, "B", 50, 100, scale)
        for name in ("none", "bias"):
            check(here, there, x, variant, epilogue=epilogues(100, variant[2])[name])


@pytest.mark.parametrize("kind", ["floats", "halves", "bits", "unsigned bits", "small integers", "integers"])
@pytest.mark.parametrize("variant", ["FBB", "FBF", "BBF", "BBB", "BFF"])
def test_addends(variant: str, kind: str) -> None:
    rng = np.random.default_rng(10)
    here, there = containers(False, variant[1] == "F")
    d = 36
    add: Any = {
        "floats": rng.standard_normal((70, d)).astype(np.float32),
        "halves": rng.standard_normal((70, d)).astype(np.float16),
        "bits": bs.pack_bits(rng.standard_normal((70, d)), encoding="bipolar"),
        "unsigned bits": bs.pack_bits(rng.integers(0, 2, (70, d))),
        "small integers": rng.integers(-100, 100, (70, d)).astype(np.int8),
        "integers": rng.integers(-(1 << 30), 1 << 31, (70, d)),
    }[kind]
    if kind == "unsigned bits" and variant == "BBB":
        return  # the host takes the encoding for its own
    check(here, there, features(rng, variant[0], 50, d), variant, add)
    if kind in ("floats", "bits"):
        check(here, there, features(rng, variant[0], 50, d), variant, add, reduce="mean")
        scaled = containers(True, variant[1] == "F")
        check(*scaled, features(rng, variant[0], 50, d), variant, add, epilogue=epilogues(d, variant[2])["all"])


@pytest.mark.parametrize("d", [1, 4, 31, 33, 64, 100, 128, 260])
@pytest.mark.parametrize("variant", ["FBB", "FFB", "BFB", "BFF"])
def test_widths(variant: str, d: int) -> None:
    rng = np.random.default_rng(d)
    here, there = containers(False, variant[1] == "F")
    check(here, there, features(rng, variant[0], 50, d), variant)


@pytest.mark.parametrize(("axis", "layout"), [(-2, "planes"), (-1, "rows"), (-2, "rows")])
@pytest.mark.parametrize("variant", ["FBB", "BBB", "BFB"])
def test_packed_axes_and_layouts(variant: str, axis: int, layout: str) -> None:
    rng = np.random.default_rng(11)
    here, there = containers(False, variant[1] == "F")
    check(here, there, features(rng, variant[0], 50, 45), variant, epilogue=epilogues(45, "B", axis, layout)["bias"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(dtype: str) -> None:
    rng = np.random.default_rng(12)
    element = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    here, there = containers(True, False)
    for d, variant in itertools.product((3, 64, 72), ("FBF", "FBB")):
        x = rng.standard_normal((50, d)).astype(element)
        want = bs.bspmm(here, x, variant)
        y = cp().asarray(x.view(np.uint16)).view(x.dtype)
        compare(bs.bspmm(there, y, variant), want, *number_of(here, x, "sum", None, None))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64"]
)
def test_sums_with_bfloat16_are_the_hosts(dtype: str) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    rng = np.random.default_rng(13)
    x, y = (9 * rng.random((7, 33)) for _ in "xy")
    a, b = x.astype(bfloat16), y.astype(bfloat16 if dtype == "bfloat16" else dtype)
    there = [cp().asarray(one.view(f"u{one.itemsize}")).view(one.dtype) for one in (a, b)]
    for want, got in ((bs.add(a, b), bs.add(*there)), (bs.add(b, a), bs.add(*there[::-1]))):
        assert got.dtype == want.dtype
        assert got.get().tobytes() == want.tobytes()


def test_windows_and_csr_can_be_forced() -> None:
    rng = np.random.default_rng(13)
    for weighted, scaled in itertools.product((False, True), repeat=2):
        here, there = containers(scaled, weighted)
        x = features(rng, "F", 50, 64)
        want = bs.bspmm(here, x, None, epilogue=epilogues(64, "B")["norm"])
        number, bound = number_of(here, x, "sum", None, epilogues(64, "B")["norm"])
        for kernel in ("csr", "windows"):
            plan = bs.plan_bspmm(there, 64, dtype=np.float32, epilogue=epilogues(64, "B")["norm"], kernel=kernel)
            compare(plan(on_gpu(x)), want, number, bound)
            assert f"kernel {kernel} (forced" in plan.explain()


def test_ways_to_count() -> None:
    rng = np.random.default_rng(14)
    here, there = containers(False, False)
    for x in (features(rng, "B", 50, 70), bs.pack_bits(rng.integers(0, 2, (50, 70)))):
        for kernel, variant in itertools.product(("twice-plus", "plus-minus", "select"), ("BBF", "BBB")):
            check(here, there, x, variant, kernel=kernel)
    with pytest.raises(bs.KernelError, match="'plus-minus' counts bits"):
        bs.bspmm(there, cp().ones((50, 4), np.float32), kernel="plus-minus")
    _, scaled = containers(True, False)
    with pytest.raises(bs.KernelError, match="with these scales sums numbers"):  # a factor of columns stays in the sum
        bs.bspmm(scaled, on_gpu(features(rng, "B", 50, 4)), kernel="twice-plus")
    with pytest.raises(bs.KernelError, match="'windows' sums floats"):
        bs.bspmm(there, on_gpu(features(rng, "B", 50, 4)), kernel="windows")
    with pytest.raises(bs.KernelError, match="runs on a GPU"):
        bs.bspmm(here, features(rng, "F", 50, 4), kernel="csr")


@pytest.mark.parametrize("container", ["frdc", "bit tensor", "cupyx", "explicit zeros"])
def test_other_matrices(container: str) -> None:
    import cupyx.scipy.sparse as cusp

    rng = np.random.default_rng(15)
    A = pattern()
    zeros = A.astype(np.float32)
    zeros.data[::3] = 0
    x = features(rng, "B", 50, 40)
    there = {
        "frdc": lambda: bs.FRDC(A).to_device("cuda"),
        "bit tensor": lambda: bs.BitTensor(A, 1).to_device("cuda"),
        "cupyx": lambda: cusp.csr_matrix(A.astype(np.float32)),
        "explicit zeros": lambda: bs.TCTiledCSR(zeros).to_device("cuda"),
    }[container]()
    host = zeros if container == "explicit zeros" else A
    for variant in ("BBF", "BBB"):
        want = bs.bspmm(host, x, variant)
        for _ in range(2):
            got = bs.bspmm(there, on_gpu(x), variant)
            assert np.array_equal(
                (got if variant == "BBF" else got.toarray()).get(), want if variant == "BBF" else want.toarray()
            )
    if container == "frdc":
        for variant, epilogue in (("BBF", None), ("BBB", None), ("BBB", epilogues(40, "B")["bias"])):
            want = bs.bspmm(A, x, variant, epilogue=epilogue)
            got = bs.bspmm(there, on_gpu(x), variant, epilogue=epilogue, kernel="frdc")
            compare(got, want, *number_of(bs.TCTiledCSR(A), x, "sum", None, epilogue))
        with pytest.raises(bs.KernelError, match="'frdc' counts bits"):
            bs.bspmm(there, cp().ones((50, 4), np.float32), kernel="frdc")
        assert "4 x 4 tiles hold" in bs.plan_bspmm(there, 40).explain()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (3, 4)])
@pytest.mark.parametrize("d", [0, 7])
def test_empty_things(shape: tuple[int, int], d: int) -> None:
    A = bs.TCTiledCSR(sp.csr_array(shape, dtype=bool)).to_device("cuda")
    bits = bs.pack_bits(cp().ones((shape[1], d), np.float32), encoding="bipolar")
    floats = cp().ones((shape[1], d), np.float32)
    for x, variant in ((bits, "BBB"), (bits, "BBF"), (floats, "FBB"), (floats, "FBF")):
        got = bs.bspmm(A, x, variant)
        assert got.shape == (shape[0], d)
        if variant[2] == "B":
            assert bool((got.toarray() == 1).all())
            bs.BitTensor.from_words(got.words, got.shape, 1, encoding="bipolar")
        else:
            assert not bool(got.any())


@pytest.mark.parametrize("variant", ["FBB", "FBF", "BBB", "BFB", "BBF"])
def test_capture(variant: str) -> None:
    """A plan's calls in a graph, with an addend and scales that come along; nothing is allocated for them."""
    cupy = cp()
    rng = np.random.default_rng(16)
    here, there = containers(variant == "BFB", variant[1] == "F")
    epilogue = epilogues(64, variant[2], axis=-2 if variant == "BBB" else -1)["bias"]
    add = features(rng, "F", 70, 64)
    xs = [features(rng, variant[0], 50, 64, "node" if variant == "BFB" else "none") for _ in range(2)]
    wants = [bs.bspmm(here, x, variant, add=add, epilogue=epilogue) for x in xs]
    plan = bs.plan_bspmm(there, 64, variant, add=True, epilogue=epilogue)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, more, out = on_gpu(xs[0]), on_gpu(add), poisoned(wants[0])
        plan(x, more, out=out)
        stream.synchronize()
        stream.begin_capture()
        plan(x, more, out=out)
        graph = stream.end_capture()
        for again, want in zip(xs, wants, strict=True):
            other = on_gpu(again)
            if isinstance(x, bs.BitTensor):
                x.words[...] = other.words
                if x.scale is not None:
                    x.scale[...] = other.scale
            else:
                x[...] = other
            (out.words if isinstance(out, bs.BitTensor) else out).fill(0)
            graph.launch(stream)
            stream.synchronize()
            compare(out, want, *number_of(here, again, "sum", add, epilogue))


@pytest.mark.parametrize(("bits", "axis"), [(False, 0), (False, 1), (True, 1)])
def test_many_parts_are_joined_in_a_capture(bits: bool, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy joins more than eight arrays over addresses that it uploads, which a replay would read from whatever is there by then."""
    from bitsparse.ops.recorded import Recorded

    cupy, rng = cp(), np.random.default_rng(17)
    dtypes = [np.int8 if bits or i % 2 else np.int32 for i in range(11)]
    parts = [cupy.asarray(rng.integers(0, 2, (6, 5)).astype(dtype)) for dtype in dtypes]
    made = []

    def joined() -> None:
        given = [bs.BitTensor(part.astype(bool), 1, axis=-2) for part in parts] if bits else parts
        result = bs.concat(given, axis=axis)
        made[:] = [result.words if bits else result]
        monkeypatch.setattr(cupy, "concatenate", None)  # it stands for an upload from here on

    recorded = Recorded(joined)
    monkeypatch.undo()
    replayed = made[0]
    for part in parts:
        part[...] = 1 - part
    recorded()
    cupy.cuda.get_current_stream().synchronize()
    joined()
    assert replayed.dtype == made[0].dtype
    assert np.array_equal(replayed.get(), made[0].get())


def test_a_recorded_call_keeps_what_its_graph_reads() -> None:
    """With `held`, a replay must find the plan, its matrix and its operands in their memory, though no one else holds them any more."""
    from bitsparse.ops.recorded import Recorded

    cupy = cp()
    graph = pattern()
    x = np.random.default_rng(3).standard_normal((graph.shape[1], 8)).astype(np.float32)
    plan, features = bs.plan_spmm(bs.TCTiledCSR(graph).to_device("cuda:0"), 8), cupy.asarray(x)
    out = plan(features)
    held = [weakref.ref(plan), weakref.ref(features)]
    call = partial(plan, features, out=out)
    recorded = Recorded(call, held=call)
    del plan, features, call
    gc.collect()
    assert all(each() is not None for each in held)
    out.fill(0)
    recorded()
    assert np.allclose(out.get(), graph @ x, rtol=1e-5, atol=1e-5)
    del recorded
    gc.collect()
    assert all(each() is None for each in held)


def test_nan_has_no_sign() -> None:
    _, there = containers(False, False)
    x = cp().ones((50, 8), np.float32)
    x[4, 4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        bs.bspmm(there, x, "FBB")
    plan = bs.plan_bspmm(there, 8, "FBB")
    plan(x)
    with pytest.raises(ValueError, match="NaN"):
        plan.check()
    plan.check()
    assert bool(cp().isnan(bs.bspmm(there, x)).any())


def test_containers_of_one_pattern_do_not_mix() -> None:
    here, there = containers(False, True)
    x = features(np.random.default_rng(17), "F", 50, 16)
    first = bs.bspmm(there, on_gpu(x), "FFF")
    doubled = there.with_values(2 * cp().asarray(here.tocsr().data))
    assert np.allclose(bs.bspmm(doubled, on_gpu(x), "FFF").get(), 2 * first.get())
    assert np.allclose(bs.bspmm(there, on_gpu(x), "FFF").get(), first.get())


def test_refusals() -> None:
    here, there = containers(False, False)
    x = features(np.random.default_rng(18), "B", 50, 16)
    y = on_gpu(x)
    with pytest.raises(bs.DeviceError, match="A is on cuda:0 but x is on cpu"):
        bs.bspmm(there, x)
    with pytest.raises(bs.DeviceError, match="A is on cpu but x is on cuda:0"):
        bs.bspmm(here, y)
    with pytest.raises(bs.DeviceError, match="add is on cpu"):
        bs.bspmm(there, y, add=np.ones((70, 16), np.float32))
    with pytest.raises(bs.DTypeError, match="out has dtype float32"):
        bs.bspmm(there, y, out=cp().empty((70, 16), np.float32))
    with pytest.raises(bs.DTypeError, match="out must be a BitTensor, got ndarray"):
        bs.bspmm(there, y, "BBB", out=cp().empty((70, 16), np.float32))
    square = bs.TCTiledCSR(pattern(50, 50)).to_device("cuda")
    with pytest.raises(ValueError, match="shares memory"):
        bs.bspmm(square, y, "BBB", out=y)
    plan = bs.plan_bspmm(there, 16)
    with pytest.raises(ValueError, match="without add"):
        plan(y, cp().ones((70, 16), np.float32))
    with pytest.raises(bs.ShapeError, match="make another plan"):
        plan(on_gpu(features(np.random.default_rng(1), "B", 50, 17)))
    with pytest.raises(bs.DTypeError, match="make another plan"):
        plan(cp().ones((50, 16), np.float32))
    with pytest.raises(bs.DTypeError, match="dtype is float64"):
        bs.plan_bspmm(there, 16, dtype=np.float64)
