"""The members of the SciPy table on a GPU must give the host's values, or a refusal that names what works."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy_members import ABSENT, MEMBERS, REFUSED, SAME, Member
from test_scipy_members import DTYPES, ENDS, STEPS, plain, sample

import bitsparse as bs

pytestmark = pytest.mark.gpu

KEYS = [
    slice(1, 4), (slice(None), slice(2, 7)), ([2, 0], slice(None)), (slice(None), [3, 3, 1]), (slice(None, None, -2), slice(8, 0, -3)),
    slice(4, 16), (slice(None), slice(3, 3)),
]  # fmt: skip
#: Members that return CuPy matrices, which cannot hold integers.
TO_CUPY = ("asformat", "tocoo", "tocsc", "tocsr")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", sp.SparseEfficiencyWarning)
        yield


def up(x: Any) -> Any:
    return x.to_device("cuda")


def features(name: str) -> Callable[[Any], Any]:
    """Return the table's call for a member that takes features; the features are on the GPU, like the array."""
    import cupy

    return lambda x: x @ cupy.ones((9, 2), np.float32)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float32", "float64", "bits"])
@pytest.mark.parametrize("member", [one for one in MEMBERS if one.call and one.gpu == SAME], ids=lambda one: one.name)
def test_the_same_on_a_gpu(member: Member, dtype: str) -> None:
    a = sample("bool" if dtype == "bits" else dtype)
    here = bs.FRDC(a) if dtype == "bits" else bs.TCTiledCSR(a).astype(dtype)
    assert member.call is not None
    try:
        want = member.call(here)
    except (bs.BitsparseError, TypeError, ValueError):
        with pytest.raises((bs.BitsparseError, TypeError, ValueError)):
            member.call(up(here))
        return
    except AttributeError:
        assert member.name == "data" and dtype == "bits"
        return
    got = features(member.name)(up(here)) if member.name in ("A @ x", "dot") else member.call(up(here))
    if isinstance(want, (bs.TCTiledCSR, bs.FRDC)):
        assert type(got) is type(want)
        assert got.device == "cuda:0"
        assert got.index_dtype == want.index_dtype
    got, want = plain(got), plain(want)
    assert np.shape(got) == np.shape(want)
    if isinstance(want, (np.ndarray, np.generic)):
        if member.name not in TO_CUPY:
            assert np.asarray(got).dtype == want.dtype
        assert (
            np.allclose(got, want, rtol=1e-6, atol=0, equal_nan=True)
            if want.dtype.kind == "f"
            else np.array_equal(got, want)
        )
    else:
        assert got == want


@pytest.mark.parametrize(
    "member", [one for one in MEMBERS if one.call and one.gpu == REFUSED], ids=lambda one: one.name
)
def test_what_a_gpu_refuses_names_what_works(member: Member) -> None:
    there = up(bs.TCTiledCSR(sample("float32")))
    assert member.cpu in (SAME, ABSENT)
    assert member.call is not None
    with pytest.raises(bs.DeviceError, match=r"A\.get\(\)|toarray|A\[i:i \+ 1\]|A\.get\("):
        member.call(there)


@pytest.mark.parametrize("one", ["bool", "int8", "float32", "bits"])
@pytest.mark.parametrize("other", ["bool", "int64", "float32", "bits"])
def test_operators_of_two(one: str, other: str) -> None:
    a, b = (
        bs.FRDC(sample("bool", seed=at)) if dtype == "bits" else bs.TCTiledCSR(sample(dtype, seed=at)).astype(dtype)
        for at, dtype in enumerate((one, other))
    )
    for operation in (
        operator.add,
        operator.mul,
        operator.lt,
        operator.ne,
        lambda x, y: x.maximum(y),
        lambda x, y: x.minimum(y),
    ):
        want, got = operation(a, b), operation(up(a), up(b))
        assert type(got) is type(want)
        assert np.array_equal(plain(got), want.toarray()) and got.dtype == want.dtype
    with pytest.raises(bs.DeviceError, match="opposite, and ~"):
        up(a) >= up(b)  # noqa: B015
    with pytest.raises(bs.DeviceError, match="move"):
        a + up(b)
    if {one, other} <= {"bool", "bits"}:
        for operation in (operator.and_, operator.or_, operator.xor):
            assert np.array_equal(plain(operation(up(a), up(b))), operation(a, b).toarray())
        assert np.array_equal(plain(~up(a)), (~a).toarray())


@settings(max_examples=60)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_two_of_any_dtypes(one: str, other: str, seed: int, shape: tuple[int, int]) -> None:
    """Results must have SciPy's entries and dtype, in canonical order, without the zeros that an operation produces."""
    a, b = sample(one, shape, seed), sample(other, shape, seed + 1)
    x, y = (up(bs.TCTiledCSR(m).astype(m.dtype)) for m in (a, b))
    calls: tuple[Callable[[Any, Any], Any], ...] = (
        operator.add, operator.sub, operator.mul, operator.gt, operator.lt, operator.ne,
        lambda p, q: p.maximum(q), lambda p, q: p.minimum(q),
    )  # fmt: skip
    for call in calls:
        want, got = sp.csr_array(call(a, b)), call(x, y)
        got.check_format()
        assert got.dtype == want.dtype
        assert np.array_equal(plain(got), want.toarray())
        assert got.nnz == np.count_nonzero(want.toarray())


def test_results_keep_what_is_known_of_the_pattern() -> None:
    """Arrays with other values of the same entries must share the pattern and its kept transpose."""
    a = up(bs.TCTiledCSR(sample("float32")))
    for made in (a * 2, a / 4, -a, abs(a), a * 0.5):
        assert made.indices is a.indices
        assert made.T.indices is a.T.indices
        assert made.data is not a.data


def test_what_knows_its_size_waits_for_nothing() -> None:
    """Calls of known result size must be capturable in a CUDA graph, which forbids waiting, and a replay must read the current values."""
    import cupy

    a = bs.TCTiledCSR(sample("float32", (40, 40), 2))
    calls: tuple[Callable[[Any], Any], ...] = (  # these only allocate their results
        lambda x: x.sum(axis=1), lambda x: x.diagonal(1), lambda x: (x * 2).data, lambda x: (x / 4).data, lambda x: x.T.data,
        lambda x: abs(x).data, lambda x: x.with_values(None).sum(axis=1),
    )  # fmt: skip
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        there = up(a)
        kept = [call(there) for call in calls]  # kernels are compiled and the transpose is computed before the capture
        stream.begin_capture()
        found = [call(there) for call in calls]
        graph = stream.end_capture()
        data = there.data
        data *= 3
        graph.launch(stream)
        stream.synchronize()
    data = a.data
    data *= 3
    for call, got, before in zip(calls, found, kept, strict=True):
        want = call(a)
        assert got.dtype == want.dtype == before.dtype
        assert np.allclose(got.get(), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("of", ["float32", "float16", "bits"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float64"])
def test_sums_of_another_dtype(of: str, dtype: str, axis: int | None) -> None:
    """Elements are converted before they are added, as NumPy does, whichever version of SciPy is there."""
    a = 3 * abs(sample("float32"))
    x = bs.FRDC(a != 0).with_scales(np.full(a.shape[0], 0.75)) if of == "bits" else bs.TCTiledCSR(a).astype(of)
    found = x.sum(axis, dtype)
    alike(up(x).sum(axis, dtype), found)
    alike(found, np.asarray(x.toarray()).astype(dtype).sum(axis, dtype=dtype))


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32"])
def test_members_of_wide_indices(dtype: str) -> None:
    """int64 indices must work, also together with int32 indices."""
    a, b = (sample(dtype, (30, 30), seed) for seed in (1, 2))
    wide, other = (bs.TCTiledCSR(part, index_dtype=np.int64).astype(dtype) for part in (a, b))
    narrow = bs.TCTiledCSR(b).astype(dtype)
    rows = np.array([3, -1, 3, 0])
    for call in (
        lambda x, y: x + y, lambda x, y: y - x, lambda x, y: x * y, lambda x, y: x.T, lambda x, y: x[2:9], lambda x, y: x[:, 2:9],
        lambda x, y: x[rows], lambda x, y: x[:, rows], lambda x, y: x != y, lambda x, y: x.sum(axis=1), lambda x, y: x.sum(axis=0),
        lambda x, y: x.diagonal(-2), lambda x, y: x[rows, rows], lambda x, y: x.count_nonzero(axis=1), lambda x, y: x.nonzero()[1],
    ):  # fmt: skip
        for second in (other, narrow):
            got, want = call(up(wide), up(second)), call(wide, second)
            assert got.dtype == want.dtype
            if isinstance(want, bs.TCTiledCSR):
                got.check_format()
                assert got.nnz == want.nnz
            assert np.allclose(plain(got), plain(want), rtol=1e-6, atol=0)


def test_dense_and_scalars() -> None:
    import cupy

    a = bs.TCTiledCSR(sample("float32"))
    dense = np.random.default_rng(0).random(a.shape).astype(np.float32)
    for operation in (operator.add, operator.sub, operator.mul, operator.gt):
        assert np.array_equal(plain(operation(up(a), cupy.asarray(dense))), plain(operation(a, dense)))
    dense[::2] = 0  # zeros in the divisor, also where nothing is stored
    with np.errstate(divide="ignore"):
        want, got = a / dense, up(a) / cupy.asarray(dense)
    assert isinstance(got, bs.TCTiledCSR) and got.nnz == want.nnz and got.dtype == want.dtype
    assert np.array_equal(plain(got), plain(want), equal_nan=True)  # NaN: a stored zero divided by zero
    for call in (
        lambda x: x * 3,
        lambda x: 0.5 * x,
        lambda x: x / 4,
        lambda x: x > 0.5,
        lambda x: x != 0,
        lambda x: x < 0,
    ):
        assert np.array_equal(plain(call(up(a))), plain(call(a)))
    for call in (lambda x: x + 1, lambda x: x == 0, lambda x: x >= 0, lambda x: x < 1):
        with pytest.raises(bs.DeviceError, match=r"A\.toarray\(\)"):
            call(up(a))


def test_picks_with_scales_and_heads() -> None:
    a = bs.TCTiledCSR(sample("float32"), row_scale=np.arange(7), col_scale=np.arange(9))
    heads = bs.TCTiledCSR(sample("float32")).with_values(np.random.default_rng(1).random((a.nnz, 3)).astype(np.float16))
    bits = bs.FRDC(sample("bool", (22, 30)))
    mask = np.arange(9) % 2 == 0
    for x in (a, heads, bits):
        for key in KEYS:
            want, got = x[key], up(x)[key]
            for name, part in want.components().items():
                there = got.components()[name]
                assert (there is None) == (part is None)
                assert part is None or there.get().tobytes() == np.ascontiguousarray(part).tobytes(), (name, key)
    assert np.array_equal(plain(up(a)[:, mask]), a[:, mask].toarray())


def test_arrays_made_of_others() -> None:
    a, b, bits = (
        bs.TCTiledCSR(sample("float32")),
        bs.TCTiledCSR(sample("int8", (7, 9), 4)),
        bs.FRDC(sample("bool", (7, 9), 5)),
    )
    for call in (
        lambda f: bs.vstack([f(a), f(b)]), lambda f: bs.hstack([f(a), f(bits)]), lambda f: bs.block_diag([f(bits), f(bits)]),
        lambda f: bs.kron(f(a), f(b)), lambda f: bs.kron(f(bits), f(bits)), lambda f: bs.tril(f(a), 1), lambda f: bs.triu(f(bits)),
    ):  # fmt: skip
        want, got = call(lambda x: x), call(up)
        assert type(got) is type(want) and got.dtype == want.dtype and got.device == "cuda:0"
        assert np.array_equal(plain(got), want.toarray())
    assert np.array_equal(plain(bs.eye(3, 4, k=1, device="cuda")), np.eye(3, 4, k=1))
    with pytest.raises(bs.DeviceError, match="vstack"):
        bs.vstack([a, up(b)])


# ---- products of two
@pytest.mark.parametrize(
    "dtypes", [("bool", "bool"), ("bits", "bits"), ("int8", "bool"), ("int64", "uint8"), ("bits", "int16")]
)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_products_of_two_are_exact(dtypes: tuple[str, str], index: Any) -> None:
    for seed, (m, k, n) in enumerate([(7, 9, 40), (1, 300, 70), (33, 5, 9000), (0, 3, 4), (5, 0, 4), (6, 4, 0)]):
        a, b = (
            sample("bool" if dtype == "bits" else dtype, shape, seed)
            for dtype, shape in zip(dtypes, [(m, k), (k, n)], strict=True)
        )
        x, y = (
            bs.FRDC(part, index_dtype=index)
            if dtype == "bits"
            else bs.TCTiledCSR(part, index_dtype=index).astype(dtype)
            for dtype, part in zip(dtypes, (a, b), strict=True)
        )
        want, got = x @ y, up(x) @ up(y)
        assert type(got) is type(want)
        assert got.dtype == want.dtype
        for name, part in want.components().items():
            there = got.components()[name]
            assert (there is None) == (part is None)
            assert part is None or (there.dtype == part.dtype and np.array_equal(there.get(), part)), (name, m, k, n)


def test_columns_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products must be exact if the bitmap of one pass holds fewer columns than the result, so that rows span several passes."""
    from bitsparse.backends.cuda.sparse import products

    monkeypatch.setattr(products, "_SHARED", 64)
    a, b = sample("int32", (9, 30), 1), sample("int32", (30, 1000), 2)
    for x, y in ((a, b), (a.astype(bool), b.astype(bool))):
        want, got = bs.TCTiledCSR(x) @ bs.TCTiledCSR(y), up(bs.TCTiledCSR(x)) @ up(bs.TCTiledCSR(y))
        assert np.array_equal(got.indptr.get(), want.indptr) and np.array_equal(got.indices.get(), want.indices)
        assert np.array_equal(got.data.get(), want.data) and got.dtype == want.dtype


def test_sums_that_come_to_zero_are_left_out() -> None:
    a, b = np.array([[1, 1, 0]]), np.array([[2, 0, 1], [-2, 3, 0], [5, 5, 5]])
    got = up(bs.TCTiledCSR(a)) @ up(bs.TCTiledCSR(b))
    assert got.indices.get().tolist() == [1, 2] and got.data.get().tolist() == [3, 1]


def test_a_product_that_does_not_fit() -> None:
    from bitsparse.backends.cuda.sparse import products

    with pytest.raises(MemoryError, match=r"matmul: the product has 1000000000000000 entries.*A\[i:j\] @ B"):
        products._fits(10**15, 4)
    x = up(bs.TCTiledCSR(sample("bool", (5, 5)))).astype(bool)
    with pytest.raises(bs.DeviceError, match=r"matmul: csr_array is not on cuda:0; wrap it there"):
        x @ sp.csr_array(np.eye(5))
    with pytest.raises(bs.ShapeError, match="do not fit"):
        x @ up(bs.TCTiledCSR((4, 4)))


def test_products_of_floats_are_cusparses() -> None:
    a, b = (sp.random_array((60, 60), density=0.2, format="csr", rng=seed, dtype=np.float64) for seed in (1, 2))
    for dtype, bound in ((np.float32, 1e-5), (np.float64, 1e-13), (np.float16, 1e-2)):
        x, y = (bs.TCTiledCSR(part).astype(dtype) for part in (a, b))
        want, got = x @ y, up(x) @ up(y)
        assert got.dtype == want.dtype
        assert np.allclose(plain(got), want.toarray(), rtol=bound, atol=bound)
        got.check_format()


# ---- random expressions
def alike(got: Any, want: Any) -> None:
    got, want = np.asarray(plain(got)), np.asarray(plain(want))
    assert got.shape == want.shape
    assert got.dtype == want.dtype or want.dtype.kind in "iu"  # NumPy gives indices and counts another integer width
    if want.dtype.kind == "f":
        assert np.allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    else:
        assert np.array_equal(got, want)


@settings(max_examples=80)
@example("bool", (2, 2), ["setdiag"], 0)  # every entry is True, and the dtype must stay bool
@given(
    st.sampled_from([*DTYPES, "bits"]),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    st.integers(0, 10_000),
)
def test_random_expressions(dtype: str, shape: tuple[int, int], steps: list[str], seed: int) -> None:
    """Every step must give the host's result (itself compared with SciPy) or be refused; the next step then starts from the host."""
    rng = np.random.default_rng(seed)
    a = sample("bool" if dtype == "bits" else dtype, shape, seed)
    here: Any = bs.FRDC(a) if dtype == "bits" else bs.TCTiledCSR(a).astype(dtype)
    there = up(here)
    for name in steps:
        call = STEPS[name](sp.csr_array(here.tocsr()), rng)
        here = call(here)
        try:
            there = call(there)
        except bs.DeviceError:
            there = up(here)
        assert type(there) is type(here)
        assert there.device == "cuda:0"
        there.check_format()
        alike(there, here)
    for call in ENDS.values():
        try:
            want = call(here)
        except (IndexError, ValueError, ZeroDivisionError):
            with pytest.raises((IndexError, ValueError, ZeroDivisionError, bs.DeviceError)):
                call(there)
            continue
        try:
            got = call(there)
        except bs.DeviceError:
            continue
        alike(got, want)


@pytest.mark.parametrize("kind", [np.int64, np.int16, np.uint8, np.uint64])
def test_rows_by_an_array_on_the_gpu(kind: Any) -> None:
    """Rows must be picked for negative indices, scales, both types and wide indices; a bad index must raise and leave the array usable."""
    import cupy

    a = sample("float32")
    signed = np.issubdtype(kind, np.signedinteger)
    rows = np.array([2, 0, 0, a.shape[0] - 1, *([-1, -a.shape[0]] if signed else [])], kind)
    scales = {"row_scale": np.arange(a.shape[0]) + 1.0, "col_scale": np.arange(a.shape[1]) + 1.0}
    for here in (
        bs.TCTiledCSR(a), bs.TCTiledCSR(a, **scales), bs.TCTiledCSR(a, pattern=True, index_dtype=np.int64), bs.FRDC(a != 0, **scales),
    ):  # fmt: skip
        there = up(here)
        got, want = there[cupy.asarray(rows)], here[rows]
        assert type(got) is type(want)
        assert (got.shape, got.dtype, got.index_dtype) == (want.shape, want.dtype, want.index_dtype)
        np.testing.assert_array_equal(got.toarray().get(), want.toarray())
        for wrong in (a.shape[0], -a.shape[0] - 1 if signed else np.iinfo(kind).max):
            with pytest.raises(IndexError, match=f"{wrong}.*size {a.shape[0]}"):
                there[cupy.asarray(np.array([0, wrong], kind))]
        assert there[cupy.asarray(rows[:0])].shape == (0, a.shape[1])


@pytest.mark.parametrize("name", ["max", "min", "nanmax", "nanmin", "argmax", "argmin", "mean"])
@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((3, 0), -1), ((0, 3), None), ((3, 0), None), ((0, 0), 1)])
def test_nothing_to_choose_from_is_one_error_on_both_devices(
    name: str, shape: tuple[int, int], axis: int | None
) -> None:
    here = bs.TCTiledCSR(np.zeros(shape, np.float32))
    where = re.escape(f"{name}: an array of shape {shape} has no elements along axis={axis and abs(axis)}; leave empty")
    for x in (here, up(here)):
        with pytest.raises(bs.ShapeError, match=where):
            getattr(x, name)(axis=axis)
