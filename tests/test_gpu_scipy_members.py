"""The table of SciPy's members on a GPU: the same values as on the host, or a refusal that names what works."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy_members import ABSENT, MEMBERS, REFUSED, SAME, Member
from test_scipy_members import plain, sample

import bitsparse as bs

pytestmark = pytest.mark.gpu

KEYS = [
    slice(1, 4), (slice(None), slice(2, 7)), ([2, 0], slice(None)), (slice(None), [3, 3, 1]), (slice(None, None, -2), slice(8, 0, -3)),
    slice(4, 16), (slice(None), slice(3, 3)),
]  # fmt: skip
#: What answers with matrices of CuPy, which hold no integers.
TO_CUPY = ("asformat", "tocoo", "tocsc", "tocsr")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", sp.SparseEfficiencyWarning)
        yield


def up(x: Any) -> Any:
    return x.to_device("cuda")


def features(name: str) -> Callable[[Any], Any]:
    """The calls of the table with features, which lie where the array does."""
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
    except (bs.BitsparseError, TypeError):
        with pytest.raises((bs.BitsparseError, TypeError)):
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


def test_dense_and_scalars() -> None:
    import cupy

    a = bs.TCTiledCSR(sample("float32"))
    dense = np.random.default_rng(0).random(a.shape).astype(np.float32)
    for operation in (operator.add, operator.sub, operator.mul, operator.gt):
        assert np.array_equal(plain(operation(up(a), cupy.asarray(dense))), plain(operation(a, dense)))
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
