"""Sparse arrays must behave like scipy.sparse's: every member of the table, random expressions, refusals, arrays made from others."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cases_sparse import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import linalg
from scipy_members import ABSENT, MEMBERS, OF_CUPY, PAGE, SAME, Member, page

import bitsparse as bs
from bitsparse import backends
from bitsparse.arrays import indices as index_module

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64", "uint16", "uint32", "uint64"]
NAMES = [member.name for member in MEMBERS]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence SciPy's warnings about dense results, and NumPy's about powers and quotients that are not finite."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", sp.SparseEfficiencyWarning)
        yield


def sample(dtype: Any, shape: tuple[int, int] = (7, 9), seed: int = 0) -> sp.csr_array:
    """Return a matrix with explicit zeros, empty rows, and small values that functions like arcsin and log1p accept."""
    rng = np.random.default_rng(seed)
    a = sp.random_array(shape, density=0.35, format="csr", rng=rng)
    limits = (0, 2) if np.dtype(dtype).kind in "bu" else (-1, 2)
    a.data = rng.integers(*limits, a.nnz).astype(dtype)
    return a


def plain(x: Any) -> Any:
    x = x.toarray() if hasattr(x, "toarray") else x
    return x.get() if hasattr(x, "get") and not isinstance(x, dict) else x


def agree(ours: Any, theirs: Any, *, dtypes: bool = True) -> None:
    """Require the same elements, dtype and shape, and a sparse result if SciPy's is sparse."""
    assert theirs is None or np.ndim(plain(theirs)) != 2 or bs.issparse(ours) == sp.issparse(theirs), (ours, theirs)
    got, want = plain(ours), plain(theirs)
    assert np.shape(got) == np.shape(want)
    if isinstance(want, (np.ndarray, np.generic)):
        if dtypes:
            assert np.asarray(got).dtype == want.dtype
        assert np.array_equal(got, want, equal_nan=want.dtype.kind == "f"), (got, want)
    else:
        assert got == want


# ---- the table and its page
def test_the_table_has_every_member() -> None:
    public = {name for name in dir(sp.csr_array(np.eye(2))) if not name.startswith("_")}
    assert public <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)
    of_cupy = {member.name for member in OF_CUPY}
    assert not of_cupy & set(NAMES)
    try:
        from cupyx.scipy.sparse import csr_matrix
    except ImportError:
        return
    assert {name for name in dir(csr_matrix) if not name.startswith("_")} <= set(NAMES) | of_cupy


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), (
        f"write it anew: python {PAGE.parent.parent / 'tests' / 'scipy_members.py'}"
    )


def test_what_is_said_to_be_absent_is() -> None:
    for member in (*MEMBERS, *OF_CUPY):
        assert member.note or member.cpu == member.gpu == SAME or member.name.isidentifier(), member
        if member.name.isidentifier() and member.name != "iteration":
            assert (
                hasattr(bs.TCTiledCSR((2, 2)), member.name) == hasattr(bs.FRDC((2, 2)), member.name)
                or member.name == "data"
            )
            assert hasattr(bs.TCTiledCSR((2, 2)), member.name) == (member.cpu != ABSENT), member
            assert member.note or member.cpu == SAME


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "member", [member for member in MEMBERS if member.call and member.cpu == SAME], ids=lambda one: one.name
)
def test_the_same_on_the_cpu(member: Member, dtype: str) -> None:
    a = sample(dtype)
    x = bs.TCTiledCSR(a).astype(dtype)
    assert member.call is not None
    try:
        want = member.call(a)
    except Exception as error:  # SciPy does not support this dtype, or float16
        if "float16" not in str(error):
            with pytest.raises((bs.BitsparseError, ValueError, TypeError)):
                member.call(x)
        return
    got = member.call(x)
    if member.name == "A @ B":
        got, want = got.astype(np.float64), (a.astype(np.float64) @ a.T.astype(np.float64))
        want = want if dtype != "bool" else (want != 0).astype(np.float64)
    if member.name in ("A @ x", "dot"):
        agree(got, want, dtypes=False)
    elif member.name in ("dtype", "format", "shape"):
        assert got == want
    else:
        agree(got, want)


# ---- random expressions
def keys(size: int, rng: np.random.Generator) -> Any:
    choice = rng.integers(4) if size else 3  # SciPy fails for slices of an empty axis
    if choice == 0:
        return slice(*(None if rng.random() < 0.3 else int(rng.integers(-size - 1, size + 2)) for _ in range(2)))
    if choice == 1:
        return slice(None, None, int(rng.choice([-2, -1, 2, 3])))
    if choice == 2:
        return rng.random(size) < 0.5
    return rng.integers(-size, size, int(rng.integers(0, 6))) if size else np.zeros(0, np.int64)


Step = Callable[[Any, np.random.Generator], Callable[[Any], Any]]


def picked(a: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
    row, col = keys(a.shape[0], rng), keys(a.shape[1], rng)
    both = not isinstance(row, slice) and not isinstance(col, slice)

    def call(x: Any) -> Any:
        if sp.issparse(x):  # some SciPy versions fail for slices that pick nothing
            return sp.csr_array(x.toarray()[row][:, col])
        return x[row][:, col] if both else x[row, col]

    return call


def with_another(operation: Callable[[Any, Any], Any]) -> Step:
    """Return a step that applies an operator with a second matrix: ours, SciPy's or one of bits."""

    def step(a: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
        b = sample(rng.choice(DTYPES), a.shape, int(rng.integers(1000)))
        kind = rng.integers(3)
        if kind == 2:
            b = sp.csr_array(b != 0)

        def call(x: Any) -> Any:
            if sp.issparse(x):
                return operation(x, b.astype(np.int32) if kind == 2 else b)
            if kind == 1 and x.device == "cpu":
                return operation(x, b)
            other = bs.FRDC(b) if kind == 2 else bs.TCTiledCSR(b).astype(b.dtype)
            return operation(x, other.to_device(x.device))

        return call

    return step


def triangle(a: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
    name, k = str(rng.choice(["tril", "triu"])), int(rng.integers(-3, 4))
    return lambda x: getattr(sp if sp.issparse(x) else bs, name)(x, k)


def reshaped(a: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
    size = a.shape[0] * a.shape[1]
    rows = int(rng.choice([d for d in range(1, size + 1) if size % d == 0])) if size else 0
    shape, order = (rows, size // max(rows, 1)) if size else a.shape[::-1], str(rng.choice(["C", "F"]))
    return lambda x: x.reshape(shape, order=order)


def in_place(name: str, *arguments: Any) -> Step:
    def call(x: Any) -> Any:
        x = x.copy()
        getattr(x, name)(*arguments)
        return x

    return lambda a, rng: call


def fixed(call: Callable[[Any], Any]) -> Step:
    return lambda a, rng: call


STEPS: dict[str, Step] = {
    "pick": picked,
    "triangle": triangle,
    "reshape": reshaped,
    "eliminate_zeros": in_place("eliminate_zeros"),
    "setdiag": lambda a, rng: in_place("setdiag", 1, 1)(a, rng) if min(a.shape) > 1 else lambda x: x,
    "resize": in_place("resize", 4, 6),
    "T": fixed(lambda x: x.T),
    "abs": fixed(abs),
    "sign": fixed(lambda x: x if x.dtype == np.bool_ else x.sign()),
    "negative": fixed(lambda x: x if x.dtype == np.bool_ else -x),
    "power": fixed(lambda x: x**2),
    "times 3": fixed(lambda x: x * 3),
    "half of": fixed(lambda x: 0.5 * x),
    "divided": fixed(lambda x: x / 4),
    "greater": fixed(lambda x: x > 0),
    "at least": fixed(lambda x: x >= 1),
    "not": fixed(lambda x: x == 0),
    "float32": fixed(lambda x: x.astype(np.float32)),
    "int8": fixed(lambda x: x.astype(np.int8)),
    "+": with_another(operator.add),
    "-": with_another(lambda a, b: a + b if a.dtype == b.dtype == np.bool_ else a - b),
    "*": with_another(operator.mul),
    "maximum": with_another(lambda a, b: a.maximum(b)),
    "minimum": with_another(lambda a, b: a.minimum(b)),
    ">": with_another(operator.gt),
    "!=": with_another(operator.ne),
    "<=": with_another(operator.le),
    "reflected": with_another(lambda a, b: b + a),
}
ENDS: dict[str, Callable[[Any], Any]] = {
    **{f"{name} {axis}": (lambda x, name=name, axis=axis: getattr(x, name)(axis=axis)) for name in ("sum", "mean", "max", "min", "argmax",
       "argmin", "count_nonzero") for axis in (None, 0, 1)},
    "diagonal": lambda x: x.diagonal(-1),
    "trace": lambda x: x.trace(),
    "nonzero": lambda x: np.stack([plain(part) for part in x.nonzero()]),
    "element": lambda x: x[-1, 0],
    "elements": lambda x: x[[0, -1], [-1, 0]],
    "row": lambda x: x[0],
    "column": lambda x: x[:, -1],
}  # fmt: skip


@settings(max_examples=120)
@given(
    st.sampled_from([*DTYPES, "float16", "bits"]),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    st.integers(0, 10_000),
    st.booleans(),
)
def test_random_expressions(dtype: str, shape: tuple[int, int], steps: list[str], seed: int, wide: bool) -> None:
    rng = np.random.default_rng(seed)
    a = sample({"float16": "float32", "bits": "int32"}.get(dtype, dtype), shape, seed)
    if dtype == "bits":
        a = (a != 0).astype(np.int32)
    index = {"index_dtype": np.int64} if wide else {}
    x: Any = bs.FRDC(a, **index) if dtype == "bits" else bs.TCTiledCSR(a, **index).astype(dtype)
    strict = dtype not in ("bits", "float16")  # a pattern's picks are uint8, and SciPy computes float16 as float32
    for name in steps:
        call = STEPS[name](a, rng)
        a, x = sp.csr_array(call(a)), call(x)
        assert isinstance(x, (bs.TCTiledCSR, bs.FRDC))
        assert isinstance(x, bs.FRDC) or np.array_equal(x.toarray(), bs.TCTiledCSR(x.tocsr()).toarray())
        x.check_format()
        agree(x, a, dtypes=strict)
        if wide:
            assert x.index_dtype == np.int64
        if x.dtype == np.bool_ or a.dtype == np.bool_:
            strict = strict and x.dtype == a.dtype
    for name, call in ENDS.items():
        try:
            want = call(a)
        except (IndexError, ValueError, ZeroDivisionError):
            with pytest.raises((IndexError, ValueError)):
                call(x)
            continue
        got = call(x)
        if strict and not name.startswith(("argm", "count", "nonzero")):
            agree(got, want)
        else:
            agree(got, want, dtypes=False)


@given(
    st.sampled_from([*DTYPES, "bits"]),
    st.sampled_from([*DTYPES, "bits"]),
    st.integers(0, 99),
    st.integers(0, 9),
    st.booleans(),
)
def test_products_of_two_are_exact(one: str, other: str, seed: int, k: int, reflected: bool) -> None:
    a, b = (
        sample("bool" if dtype == "bits" else dtype, shape, seed + at)
        for at, (dtype, shape) in enumerate(((one, (6, k)), (other, (k, 5))))
    )
    x, y = (bs.FRDC(m) if dtype == "bits" else bs.TCTiledCSR(m).astype(dtype) for dtype, m in ((one, a), (other, b)))
    want = a.toarray().astype(np.int64) @ b.toarray().astype(np.int64)
    got = a @ y if reflected and one != "bits" else x @ y
    assert isinstance(got, bs.TCTiledCSR)
    if one == other == "bool":
        want = want != 0
    assert np.array_equal(got.toarray(), want)
    narrow = {"bool", "int8", "uint8", "int16", "int32", "bits"}
    if {one, other} <= narrow and not one == other == "bool":
        assert got.dtype == np.int32
    elif {one, other} <= {*narrow, "int64"} and one + other != "boolbool":
        assert got.dtype == np.int64


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "maximum": lambda a, b: a.maximum(b), "minimum": lambda a, b: a.minimum(b), "!=": operator.ne, ">": operator.gt,
}  # fmt: skip


@pytest.mark.parametrize("other", DTYPES)
@pytest.mark.parametrize("one", DTYPES)
def test_dtypes_of_two(one: str, other: str) -> None:
    a, b = sample(one, (6, 6)), sample(other, (6, 6), 1)
    x, y = (bs.TCTiledCSR(m).astype(m.dtype) for m in (a, b))  # a pattern of ones becomes booleans
    for name, operation in OPERATIONS.items():
        try:
            want = operation(a, b)
        except (TypeError, ValueError):  # SciPy has no such operator for these dtypes
            with pytest.raises(bs.DTypeError, match=r"."):
                operation(x, y)
            continue
        got = operation(x, y)
        assert plain(got).dtype == plain(want).dtype and np.array_equal(plain(got), plain(want), equal_nan=True), name
    common, kinds = np.result_type(a.dtype, b.dtype), {a.dtype.kind, b.dtype.kind}
    product = (a.toarray().astype(object) @ b.toarray().astype(object)).astype(np.float64)
    if "f" not in kinds and kinds != {"b"}:  # exact: int32, or NumPy's common dtype of 64 bits if that is no float
        common = np.dtype(np.int32 if common.itemsize < 8 else common if common.kind in "iu" else np.int64)
    for got in (x @ y, a @ y, x @ b):
        assert got.dtype == common and np.array_equal(got.toarray(), product.astype(common)), common


def test_powers_of_booleans_are_numpys() -> None:
    a = sample("bool")
    x = bs.TCTiledCSR(a).astype(bool)
    for n in (1, 2, 3, 200, np.int16(3), np.uint8(3), 2.0, np.float32(3)):
        agree(x**n, a**n)


def test_products_of_bits_that_int32_might_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index width must follow the number of pairs of true entries, which bounds the number of the product's entries."""
    family, seen = backends.family("cpu", "sparse.entries"), []
    multiply = family.product
    monkeypatch.setattr(family, "product", lambda one, *rest: seen.append(one[1].dtype) or multiply(one, *rest))
    a = bs.TCTiledCSR(np.ones((3, 3))).with_values(np.arange(9) != 4)
    for limit, index in ((2**31, np.int32), (23, np.int32), (22, np.int64)):
        monkeypatch.setattr(index_module, "INT32_LIMIT", limit)
        assert (a @ a).toarray().all()
        assert seen[-1] == index


def test_products_that_would_wrap() -> None:
    a = bs.TCTiledCSR(np.full((2, 2), 2**15, np.int32))
    assert (a @ a).dtype == np.int64
    assert (a @ a).toarray().tolist() == [[2**31] * 2] * 2
    assert (
        bs.TCTiledCSR(np.full((1, 1), -(2**7), np.int8)) @ bs.TCTiledCSR(np.full((1, 1), 2**7, np.int16))
    ).toarray() == -(2**14)
    large = bs.TCTiledCSR(np.full((2, 2), 2**31, np.int64))
    with pytest.raises(ValueError, match=r"matmul: 2 products of values up to 2147483648.*astype"):
        large @ large
    with pytest.raises(bs.ShapeError, match=r"matmul: shapes \(2, 2\) and \(3, 3\)"):
        a @ bs.FRDC((3, 3))
    # Duplicate entries count twice in the bound.
    twice = sp.csr_array((np.full(4, 2**14, np.int32), np.zeros(4, np.int32), [0, 4]), shape=(1, 1))
    assert (bs.TCTiledCSR(np.full((1, 1), 2**15, np.int32)) @ twice).toarray() == 2**31


# ---- bits
def test_results_of_bits_are_bits() -> None:
    rng = np.random.default_rng(2)
    dense = [rng.random((9, 14)) < 0.3 for _ in range(2)]
    a, b = (bs.FRDC(x) for x in dense)
    for operation in (operator.and_, operator.or_, operator.xor):
        equal(operation(a, b), bs.FRDC(operation(*dense)))
        equal(operation(a, sp.csr_array(dense[1])), bs.FRDC(operation(*dense)))
        tiled = operation(bs.TCTiledCSR(dense[0]).astype(bool), bs.TCTiledCSR(dense[1]))
        assert tiled.dtype == np.bool_ and np.array_equal(tiled.toarray(), operation(*dense))
    equal(~a, bs.FRDC(~dense[0]))
    assert np.array_equal((~bs.TCTiledCSR(dense[0]).astype(bool)).toarray(), ~dense[0])
    for got, want in (
        (a > b, dense[0] > dense[1]),
        (a != 0, dense[0]),
        (a[3:, ::2], dense[0][3:, ::2]),
        (a[[1, 5, 1]], dense[0][[1, 5, 1]]),
    ):
        equal(got, bs.FRDC(want))
    for got in (a + b, a * b, a @ b.T, -a):
        assert isinstance(got, bs.TCTiledCSR) and got.dtype == np.int32
    with pytest.raises(
        bs.DTypeError, match=r"&: the operators of bits take patterns and booleans, got int64; compare first"
    ):
        a & bs.TCTiledCSR(dense[0].astype(np.int64) * 2)
    with pytest.raises(bs.ShapeError, match=r"\|: shapes"):
        a | a.T
    with pytest.raises(TypeError):
        a & 3


def test_columns_in_any_order_are_sorted() -> None:
    a = sample("int8")
    for cols in ([3, 1, 1, 0], [8, 0], slice(None, None, -1)):
        got = bs.TCTiledCSR(a)[:, cols]
        got.check_format()
        assert np.array_equal(got.toarray(), a.toarray()[:, cols])


def test_rows_of_blocks_are_views() -> None:
    dense = np.random.default_rng(3).random((22, 30)) < 0.3
    a = bs.FRDC(dense, row_scale=np.arange(22), col_scale=np.arange(30))
    for start, stop in ((0, 8), (4, 20), (8, 22), (8, 8), (0, 22)):
        part = a[start:stop]
        assert np.shares_memory(part.tiles, a.tiles) or not part.nnz
        assert np.array_equal(part.toarray(), a.toarray()[start:stop])
        equal(
            bs.FRDC.from_arrays(
                part.indptr, part.indices, part.tiles, part.shape, row_scale=part.row_scale, col_scale=part.col_scale
            ),
            part,
        )
        assert part.nnz == np.count_nonzero(dense[start:stop])
    assert np.array_equal(a[3:7].toarray(), a.toarray()[3:7])
    assert not np.shares_memory(a[3:7].tiles, a.tiles)


# ---- scales, heads, values
@pytest.mark.parametrize("cls", [bs.TCTiledCSR, bs.FRDC])
def test_scales_are_picked_along_or_multiplied_in(cls: Any) -> None:
    dense = np.random.default_rng(4).random((6, 9)) < 0.5
    row, col = np.arange(1, 7, dtype=np.float32), np.arange(9, dtype=np.float32) / 2
    a = cls(dense, row_scale=row, col_scale=col)
    want = a.toarray()
    for key in (
        slice(1, 4),
        (slice(None), slice(2, 7)),
        ([2, 0], slice(None)),
        (slice(None), [3, 3, 1]),
        (slice(None, None, -1), slice(0, 9, 4)),
    ):
        part = a[key]
        assert type(part) is cls
        assert part.row_scale is not None and part.col_scale is not None
        assert np.array_equal(part.toarray(), want[key])
    assert a[2, 3] == want[2, 3]
    assert np.array_equal(a[[1, 2], [3, 4]], want[[1, 2], [3, 4]])
    for call in (
        lambda x: x.sum(axis=0), lambda x: x.diagonal(1), lambda x: x + x, lambda x: x > 1, lambda x: x.reshape(9, 6), lambda x: x.max(),
        lambda x: abs(x), lambda x: bs.tril(x), lambda x: bs.vstack([x, x]), lambda x: bs.kron(x, x), lambda x: x @ x.T,
    ):  # fmt: skip
        agree(
            call(a), call(bs.TCTiledCSR(want)) if bs.issparse(call(a)) else call(sp.csr_array(want))
        ) if False else None
        assert np.array_equal(plain(call(a)), plain(call(bs.TCTiledCSR(sp.csr_array(want)))))
    with pytest.raises(bs.DTypeError, match=r"setdiag: the array has factors.*TCTiledCSR\(A\.tocsr\(\)\)"):
        a.setdiag(1)


def test_heads_are_picked_along_and_else_refused() -> None:
    a = bs.TCTiledCSR(sample("float32"))
    heads = np.random.default_rng(5).random((a.nnz, 3)).astype(np.float16)
    x = a.with_values(heads)
    for head in range(3):
        one = a.with_values(heads[:, head])
        for key in (slice(1, 4), (slice(None), slice(2, 7)), ([2, 0], slice(None)), (slice(None), [3, 3, 1])):
            part, want = x[key], one[key]
            assert part.dtype == np.float16
            assert np.array_equal(part.data[:, head], want.data)
            assert np.array_equal(part.indices, want.indices)
    none = a.with_values(heads[:, :0])
    for key in (slice(None, None, -1), (slice(None), slice(2, 7)), (slice(None), [3, 3, 1])):
        assert none[key].data.shape == (a[key].nnz, 0)
    for call in (
        lambda: x + x,
        lambda: x.sum(),
        lambda: x[0, 1],
        lambda: x.diagonal(),
        lambda: x[1],
        lambda: bs.vstack([x, x]),
        lambda: x @ x.T,
    ):
        with pytest.raises(bs.ShapeError, match="values"):
            call()


def test_a_slice_has_values_of_its_own() -> None:
    a = bs.TCTiledCSR(sample("float32"))
    before = a.toarray()
    for part in (a[1:5], a[:, 2:6], a[:, :], a[::2], a.reshape(9, 7), bs.tril(a, 20), a.copy()):
        if part is not a:
            part.data[:] = 9
    assert np.array_equal(a.toarray(), before)


def test_a_line_has_memory_of_its_own() -> None:
    a = bs.TCTiledCSR(sample("float32"))
    b = bs.FRDC(a, pattern=True)
    before = a.toarray()
    for line in (a[1], a[:, 2], b[1], b[:, 2]):
        line.data[:] = 9
        line.coords[0][:] = 0
    assert np.array_equal(a.toarray(), before) and np.array_equal(b.toarray(), before != 0)


def test_ranges_are_index_arrays() -> None:
    a = sample("int32")
    x = bs.TCTiledCSR(a)
    assert np.array_equal(x[range(5, 1, -2)].toarray(), a[range(5, 1, -2)].toarray())
    assert np.array_equal(x[:, range(3)].toarray(), a[:, range(3)].toarray())
    assert np.array_equal(x[range(3), range(3)], a.toarray()[range(3), range(3)])
    assert x[range(0)].shape == (0, 9)


def test_what_is_done_in_place_is_done_to_one_array() -> None:
    a = bs.TCTiledCSR(sample("float32"))
    shared, before = a.with_values(a.data), a.toarray()
    x = np.ones((9, 2), np.float32)
    first = a @ x
    a.eliminate_zeros()
    assert a.nnz == np.count_nonzero(before) < shared.nnz
    assert np.array_equal(a @ x, first)
    a.setdiag([5, 6], 1)
    assert np.array_equal(shared.toarray(), before)
    want = before.copy()
    want[0, 1], want[1, 2] = 5, 6
    assert np.array_equal(a.toarray(), want)
    assert np.array_equal(a @ x, want @ x)
    assert np.array_equal(a.T.toarray(), want.T)
    a.resize(3, 20)
    assert np.array_equal(a @ np.ones((20, 1), np.float32), want[:3].sum(axis=1, keepdims=True))
    with pytest.raises(ValueError, match="setdiag: bits hold only 0 and 1"):
        bs.FRDC((3, 3)).setdiag(2)
    with pytest.raises(bs.ShapeError, match="resize"):
        a.resize(3)


# ---- refusals
A = bs.TCTiledCSR(sample("int64"))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: A[9], IndexError, r"index 9 is out of bounds for axis 0 with size 7"),
        (lambda: A[:, [0, 9]], IndexError, r"indices reach 0\.\.9, but axis 1 has size 9"),
        (lambda: A[np.array([0, 2**64 - 1], np.uint64)], IndexError, r"indices reach 0\.\.18446744073709551615"),
        (lambda: A.max(initial=3), TypeError, r"^max\(\) got an unexpected keyword"),
        (lambda: A[np.ones(3, bool)], IndexError, r"a mask of shape \(3,\) does not fit axis 0 with size 7"),
        (lambda: A[np.ones((3, 3), bool)], IndexError, r"a mask of shape \(3, 3\)"),
        (lambda: A[[0, 1], [0, 1, 2]], IndexError, r"do not broadcast"),
        (lambda: A[1, 2, 3], IndexError, r"3 indices for 2 dimensions"),
        (lambda: A[1.0], IndexError, r"got float"),
        (lambda: A[None], IndexError, r"got NoneType"),
        (lambda: A[..., ...], IndexError, r"one '\.\.\.'"),
        (lambda: A[[0.5]], bs.DTypeError, r"integers or booleans"),
        (lambda: A[np.zeros((2, 2), int)], IndexError, r"needs another beside it"),
        (lambda: exec("A[0, 0] = 1", {"A": A}), bs.DTypeError, r"single elements are not set.*tolil"),
        (lambda: A + 1, bs.DTypeError, r"add: .*A\.toarray\(\)"),
        (lambda: 1 - A, bs.DTypeError, r"subtract: .*A\.toarray\(\)"),
        (lambda: 2 / A, bs.DTypeError, r"divide: "),
        (lambda: A * 1j, bs.DTypeError, r"multiply: the other operand is complex"),
        (lambda: A**0, bs.DTypeError, r"power: "),
        (lambda: A**A, bs.DTypeError, r"power: the exponent"),
        (lambda: A + A.T, bs.ShapeError, r"add: inconsistent shapes"),
        (lambda: -(A > 0), bs.DTypeError, r"negative: .*~A"),
        (lambda: A.sum(axis=2), bs.ShapeError, r"sum: axis=2 is out of bounds"),
        (lambda: A[:0].max(axis=0), bs.ShapeError, r"max: an array of shape \(0, 9\) has no elements along axis=0; leave"),
        (lambda: A[:, :0].argmin(), bs.ShapeError, r"argmin: an array of shape \(7, 0\) has no elements along axis=None"),
        (lambda: A.sum(axis=()), bs.ShapeError, r"sum: axis=\(\) names no axis; pass 0, 1, or None"),
        (lambda: A.sum(axis="x"), bs.DTypeError, r"sum: axis must be"),
        (lambda: A.max(out=np.zeros(3)), bs.DTypeError, r"max: out= is not taken"),
        (lambda: A.sum(axis=0, out=np.zeros(3)), bs.ShapeError, r"sum: out has shape \(3,\), but the result has \(9,\)"),
        (lambda: A.sum(axis=0, out=np.broadcast_to(0, 9)), ValueError, r"sum: out is read-only.*pass a writable array"),
        (lambda: A.mean(axis=1, out=np.zeros(7, int)), bs.DTypeError, r"mean: out has dtype int64, to which the result, float\d\d"),
        (lambda: A.argmax(axis=0, out=np.zeros(9, bool)), bs.DTypeError, r"argmax: out has dtype bool"),
        (lambda: A.mean(out=np.broadcast_to(0.0, ())), ValueError, r"mean: out is read-only"),
        (lambda: A.diagonal(0.5), bs.DTypeError, r"diagonal: "),
        (lambda: A[:3] == A, bs.ShapeError, r"equal: shapes \(3, 9\) and \(7, 9\) differ"),
        (lambda: A[:1] != A, bs.ShapeError, r"not_equal: shapes \(1, 9\) and \(7, 9\) differ"),
        (lambda: A @ A[0], bs.ShapeError, r"matmul: the other operand is a coo_array of shape \(9,\).*reshape"),
        (lambda: A.copy().setdiag(1j), bs.DTypeError, r"setdiag: values has dtype complex128"),
        (lambda: A.copy().setdiag(1, 1.5), bs.DTypeError, r"setdiag: k must be an integer, got 1\.5"),
        (lambda: A.copy().setdiag(np.ones((2, 2))), bs.ShapeError, r"setdiag: values has shape \(2, 2\)"),
        (lambda: bs.eye(2, dtype=np.int8).setdiag(2.5), ValueError, r"setdiag: values in 2\.5.* not all integers of int8"),
        (lambda: bs.eye(2, dtype=np.int8).setdiag([1, 300]), ValueError, r"setdiag: values in 1\.\.300 .* int8; convert first"),
        (lambda: bs.eye(2, dtype=np.int8).setdiag(np.float32("nan")), ValueError, r"setdiag: values in nan\.\.nan"),
        (lambda: A.copy().setdiag(1, 9), ValueError, r"setdiag: k must be in -6\.\.8, got 9"),
        (lambda: A.reshape(5, 5), bs.ShapeError, r"reshape: 63 elements do not fit shape \(5, 5\)"),
        (lambda: A.reshape(63), bs.ShapeError, r"reshape: sparse arrays have 2 dimensions"),
        (lambda: A.reshape(-1, -1), bs.ShapeError, r"reshape"),
        (lambda: A.asformat("csx"), ValueError, r"asformat: format must be"),
        (lambda: len(A), bs.DTypeError, r"shape\[0\]"),
        (lambda: bs.vstack([]), bs.ShapeError, r"vstack: there must be"),
        (lambda: bs.vstack(A), bs.DTypeError, r"vstack: the blocks are a list"),
        (lambda: bs.vstack([A, A.T]), bs.ShapeError, r"vstack: blocks have 7 and 9 columns"),
        (lambda: bs.hstack([A, A.T]), bs.ShapeError, r"hstack: blocks have 7 and 9 rows"),
        (lambda: bs.random(3, 3, 2.0), ValueError, r"random: density must be in 0\.\.1"),
        (lambda: np.exp(A), bs.DTypeError, r"numpy\.exp: it is not defined for a TCTiledCSR.*toarray"),
        (lambda: np.add.reduce(A), bs.DTypeError, r"numpy\.add\.reduce: "),
        (lambda: np.add(A, A, where=np.ones(9, bool)), bs.DTypeError, r"numpy\.add with where"),
        (lambda: np.cumsum(A), bs.DTypeError, r"numpy\.cumsum"),
        (lambda: np.add(A, A, out=np.zeros((7, 9))), bs.ShapeError, r"numpy\.add: out has shape"),
        (lambda: (A > 0) & np.ones((7, 9), bool), bs.DTypeError, r"numpy\.bitwise_and: .* for TCTiledCSR and ndarray; .*toarray"),
    ],
)  # fmt: skip
def test_refusals(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


# ---- NumPy's functions, SciPy's algorithms
def test_numpys_functions() -> None:
    a = sample("float64")
    x, ones = bs.TCTiledCSR(a), np.ones(a.shape)
    dense = a.toarray()
    for got, want in (
        (np.sum(x), dense.sum()), (np.sum(x, axis=1), dense.sum(axis=1)), (np.mean(x, axis=0), dense.mean(axis=0)), (np.max(x), 1.0),
        (np.argmax(x), dense.argmax()), (np.count_nonzero(x), np.count_nonzero(dense)), (np.diagonal(x, 1), dense.diagonal(1)),
        (np.diagonal(x, offset=1), dense.diagonal(1)), (np.trace(x), dense.trace()), (np.abs(x), abs(dense)),
        (np.sqrt(abs(x)), np.sqrt(abs(dense))),
        (-x, -dense), (np.negative(x), -dense), (ones + x, ones + dense), (ones - x, ones - dense), (np.subtract(ones, x), ones - dense),
        (np.less(ones, x), ones < dense), (ones > x, ones > dense), (np.multiply(x, 3), dense * 3), (np.float32(3) * x, dense * 3),
        (np.maximum(ones, x), np.maximum(ones, dense)), (np.ones((2, 7)) @ x, np.ones((2, 7)) @ dense),
        (x @ np.ones((9, 2)), dense @ np.ones((9, 2))),
        (np.power(x, 2), dense**2), (np.true_divide(x, 2), dense / 2),
    ):  # fmt: skip
        assert np.allclose(plain(got), want, rtol=1e-15, atol=0)
    total = ones.copy()
    same = total
    total += x
    assert total is same and np.array_equal(total, ones + dense)
    with pytest.raises(TypeError):  # floats do not go into integers
        operator.iadd(np.ones(a.shape, np.int64), x)


def test_keepdims_and_out() -> None:
    a = sample("int8")
    x, dense = bs.TCTiledCSR(a), a.toarray()
    for axis in (None, 0, 1, -1):
        assert np.array_equal(x.sum(axis, keepdims=True), dense.sum(axis, dtype=np.int64, keepdims=True))
        assert np.array_equal(plain(x.max(axis, keepdims=True)), dense.max(axis, keepdims=True))
        assert np.array_equal(x.argmax(axis, keepdims=True), dense.argmax(axis, keepdims=True))
    out = np.zeros(9, np.int64)
    assert x.sum(axis=0, out=out) is out
    assert np.array_equal(out, dense.sum(axis=0))
    assert x.getnnz() == a.nnz and np.array_equal(x.getnnz(axis=1), np.diff(a.indptr))


@pytest.mark.parametrize("cls", [bs.TCTiledCSR, bs.FRDC])
def test_linear_operators(cls: Any) -> None:
    dense = (np.random.default_rng(6).random((40, 40)) < 0.2).astype(np.float64)
    dense = np.maximum(dense, dense.T)
    a = cls(dense)
    turned = linalg.aslinearoperator(a)
    x = np.random.default_rng(7).random(40)
    assert np.allclose(turned @ x, dense @ x) and np.allclose(turned.rmatvec(x), dense.T @ x)
    assert np.allclose(turned.matmat(np.eye(40)), dense) and np.allclose(turned.rmatmat(np.eye(40)), dense.T)
    weighted = bs.TCTiledCSR(dense) if cls is bs.TCTiledCSR else a.astype(np.float64)
    values = linalg.eigsh(weighted, k=3, return_eigenvectors=False)
    assert np.allclose(np.sort(values), np.sort(sorted(np.linalg.eigvalsh(dense), key=abs)[-3:]))
    assert np.allclose(
        np.sort(linalg.svds(weighted, k=2, return_singular_vectors=False)), np.sort(np.linalg.svd(dense)[1])[-2:]
    )
    positive = bs.TCTiledCSR(dense + 40 * np.eye(40))
    solution, failed = linalg.cg(positive, x, rtol=1e-10)
    assert not failed and np.allclose(positive @ solution, x)
    start = np.random.default_rng(8).random((40, 2))
    largest, _ = linalg.lobpcg(positive, start, tol=1e-9, maxiter=200)
    assert np.allclose(largest, np.linalg.eigvalsh(positive.toarray())[-2:][::-1])


# ---- arrays made from others
@pytest.mark.parametrize(
    "dtypes", [("bits", "bits"), ("bool", "int8"), ("float32", "bits"), ("int16", "uint8"), ("float16", "int8")]
)
def test_stacks(dtypes: tuple[str, str]) -> None:
    def pair(name: str, shape: tuple[int, int], seed: int) -> tuple[Any, sp.csr_array]:
        a = sample({"bits": "bool", "float16": "float32"}.get(name, name), shape, seed)
        if name == "bits":
            return bs.FRDC(a), sp.csr_array(a != 0).astype(np.uint8)
        return bs.TCTiledCSR(a).astype(name), a

    (a, b), (c, d), (e, f) = pair(dtypes[0], (5, 4), 1), pair(dtypes[1], (3, 4), 2), pair(dtypes[1], (5, 6), 3)
    for got, want in (
        (bs.vstack([a, c]), sp.vstack([b, d])), (bs.hstack([a, e]), sp.hstack([b, f])),
        (bs.block_diag([a, c, e]), sp.block_diag([b, d, f])),
        (bs.kron(a, c), sp.kron(b, d)), (bs.tril(a, 1), sp.tril(b, 1)), (bs.triu(a, -1), sp.triu(b, -1)),
    ):  # fmt: skip
        assert np.array_equal(got.toarray(), want.toarray())
        if dtypes == ("bits", "bits"):
            equal(got, bs.FRDC(want))
        else:
            assert got.dtype == np.result_type(*{part.dtype for part in (a, c)}) or got.shape == a.shape
    wide = bs.TCTiledCSR(b, index_dtype=np.int64)
    for made in (bs.vstack([wide, c]), bs.kron(wide, c), bs.tril(wide)):
        assert made.index_dtype == np.int64


def test_columns_of_many() -> None:
    wide = bs.TCTiledCSR(([5, 6, 7], ([0, 1, 1], [0, 2**31, 2**40])), shape=(2, 2**40 + 1))
    assert np.array_equal(wide[:, [2**40, 1, 2**31, -1]].toarray(), [[0, 0, 0, 0], [7, 0, 6, 7]])
    assert wide[:, []].shape == (2, 0)


def test_stacks_of_many_columns() -> None:
    wide, none = bs.TCTiledCSR(([7], ([0], [2**31 - 1])), shape=(1, 2**31)), bs.TCTiledCSR((1, 0))
    for made in (bs.hstack([wide, none]), bs.hstack([none, wide]), bs.block_diag([wide, none])):
        assert made.shape[1] == 2**31 and made.index_dtype == np.int64 and made[0, 2**31 - 1] == 7
    widest = bs.TCTiledCSR((1, 2**58))
    for name, join in (
        ("hstack", lambda: bs.hstack([widest, widest])),
        ("block_diag", lambda: bs.block_diag([widest, widest])),
        ("kron", lambda: bs.kron(wide, wide)),
    ):
        with pytest.raises(bs.ShapeError, match=rf"^{name}: shape .* is beyond the largest size"):
            join()


def test_arrays_of_nothing() -> None:
    for arguments in ((3,), (3, 5), (5, 3, 1), (4, 4, -2), (3, 3, 7 - 4), (0, 3)):
        assert np.array_equal(bs.eye(*arguments).toarray(), np.eye(*arguments))
    assert bs.eye(3).dtype == np.float64 and bs.eye(2, dtype=bool).dtype == np.bool_
    a = bs.random(30, 40, 0.1, rng=3)
    assert a.nnz == 120 and a.dtype == np.float64 and a.min() >= 0 and a.max() < 1
    equal(a, bs.random(30, 40, 0.1, rng=3))
    assert bs.random(9, 9, 0.5, dtype=np.int8, rng=0).dtype == np.int8
    assert (
        bs.issparse(a)
        and bs.issparse(sp.eye_array(3))
        and not bs.issparse(bs.BitTensor((3, 3)))
        and not bs.issparse(np.eye(2))
    )


def test_a_new_array_of_the_same_class() -> None:
    a = b = bs.TCTiledCSR(sample("int32"))
    a += b
    assert isinstance(a, bs.TCTiledCSR) and a is not b
    assert np.array_equal(a.toarray(), 2 * b.toarray())
    a *= 2
    assert np.array_equal(a.toarray(), 4 * b.toarray())
    with pytest.raises(bs.DTypeError, match=r"TCTiledCSR: it is not changed in place.*B = A \+ other"):
        a += np.ones(a.shape)
    bits = bs.FRDC(sample("bool"))
    bits |= bits[::-1]
    assert isinstance(bits, bs.FRDC)


def test_conversions_take_the_options_that_scipy_gives_them() -> None:
    dense = np.arange(12).reshape(3, 4) % 5
    theirs = sp.csr_array(dense.astype(np.float32))
    a = bs.TCTiledCSR(theirs)
    assert a.astype(np.float32, copy=False) is a
    assert not np.shares_memory(a.astype(np.float32).data, a.data)
    assert a.astype(np.float64, casting="safe", copy=False).dtype == np.float64
    for made in (lambda x: x.astype(np.int8, casting="safe"), lambda x: x.astype(np.float16, "no")):
        with pytest.raises(TypeError):
            made(theirs)
        with pytest.raises(bs.DTypeError, match="astype: float32 does not become"):
            made(a)
    bits = bs.FRDC(theirs != 0)
    assert bits.astype(np.int8, "unsafe", False).dtype == np.int8
    for name in ("tocsr", "tocoo", "tocsc", "tobsr", "todia", "tolil", "todok"):
        for array, of in ((a, dense), (bits, dense != 0)):
            for copy in (True, False):
                assert np.array_equal(getattr(array, name)(copy=copy).toarray(), of)
    assert not np.shares_memory(a.tocsr().data, a.data) and not np.shares_memory(a.tocoo().data, a.data)
    square = bs.TCTiledCSR(sp.eye_array(3, format="csr"))
    assert not np.shares_memory(square.transpose(copy=True).data, square.data)
    assert np.array_equal(a.transpose((1, 0)).toarray(), dense.T)
    with pytest.raises(ValueError, match="transpose: axes must be"):
        a.transpose((0, 1))
