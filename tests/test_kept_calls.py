"""A call on the CPU that is like an earlier one must go straight to its kernel, and any difference must be noticed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.ops.spmm.plan import SpmmPlan

RNG = np.random.default_rng(0)
ROWS, COLS = 9, 7


def container(values: Any = None, **scales: Any) -> bs.TCTiledCSR:
    A = bs.TCTiledCSR(sp.csr_array(np.arange(ROWS * COLS).reshape(ROWS, COLS) % 3 == 0), **scales)
    return A if values is None else A.with_values(values)


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which any call that is planned fails the test."""

    def forbid() -> None:
        def run(*_: Any) -> Any:
            raise AssertionError("a call that is like an earlier one was planned")

        monkeypatch.setattr(SpmmPlan, "run", run)

    return forbid


def given(library: str, array: Any) -> Any:
    if library == "numpy":
        return array
    torch = pytest.importorskip("torch")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def bits(array: Any) -> bytes:
    if isinstance(array, np.ndarray):
        return array.tobytes()
    torch = pytest.importorskip("torch")
    return bytes(array.contiguous().view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_the_second_call_is_kept(library: str, dtype: Any, reduce: Any, directly: Any) -> None:
    A = container(row_scale=RNG.random(ROWS, np.float32))
    shapes = ((COLS, 5), (COLS, 2, 3), (COLS,))
    features = [given(library, RNG.standard_normal(shape).astype(dtype)) for shape in shapes]
    want = [bs.spmm(A, x, reduce=reduce) for x in features]
    directly()
    for x, expected in zip(features, want, strict=True):
        got = bs.spmm(A, x, reduce=reduce)
        assert type(got) is type(expected) and got.dtype == expected.dtype and got.shape == expected.shape
        assert bits(got) == bits(expected)
        out = given(library, np.zeros(tuple(got.shape), dtype))
        assert bs.spmm(A, x, reduce=reduce, out=out) is out and bits(out) == bits(expected)


def test_a_product_from_the_left_is_kept_with_the_transpose(directly: Any) -> None:
    """The kept product must use current values although the transpose's values are a new array in every product."""
    A, x = container(), RNG.standard_normal((4, ROWS), np.float32)
    A = A.with_values(RNG.standard_normal(A.nnz, np.float32))
    first = x @ A
    directly()
    assert bits(x @ A) == bits(first)
    A.data[:] *= 2
    assert bits(x @ A) == bits(first * 2)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("heads", [None, 2])
def test_values_are_read_in_every_call(library: str, heads: int | None, directly: Any) -> None:
    A = container()
    nnz, shape = A.nnz, (COLS, 4) if heads is None else (COLS, heads, 4)
    x = given(library, RNG.standard_normal(shape).astype(np.float32))
    own = RNG.standard_normal(nnz if heads is None else (nnz, heads)).astype(np.float32)
    held = A.with_values(own)
    brought = given(library, own.copy())
    bs.spmm(held, x), bs.spmm(A, x, values=brought)
    held.data[...] *= 2
    own *= 2
    brought[...] = given(library, own)
    want = bits(bs.spmm(container(own.copy()), x))
    directly()
    assert bits(bs.spmm(held, x)) == want
    assert bits(bs.spmm(A, x, values=brought)) == want
    assert bits(bs.spmm(A, x, values=given(library, own.copy()))) == want


def test_arrays_over_one_pattern_are_told_apart(directly: Any) -> None:
    A, scale = container(), RNG.random(ROWS, np.float32)
    x = RNG.standard_normal((COLS, 4)).astype(np.float32)
    arrays = [
        A,
        A.with_scales(scale, None),
        A.with_scales(None, scale[:COLS]),
        A.with_values(RNG.random(A.nnz, np.float32)),
    ]
    want = [bs.spmm(B, x).tobytes() for B in arrays]
    directly()
    assert [bs.spmm(B, x).tobytes() for B in arrays] == want
    assert len(set(want)) == len(want)


def test_other_calls_are_planned() -> None:
    A, x = container(), RNG.standard_normal((COLS, 4)).astype(np.float32)
    bs.spmm(A, x)
    for other in (np.asfortranarray(x), x[:, ::2], x.astype(np.float64), np.tile(x, 2), x.astype(np.int8), x.tolist()):
        np.testing.assert_allclose(bs.spmm(A, other), A.toarray() @ np.asarray(other), rtol=1e-5, atol=1e-5)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    assert bs.spmm(A, unaligned).tobytes() == bs.spmm(A, x).tobytes()
    with pytest.raises(bs.ShapeError, match="A has 7 columns but x has 6 rows"):
        bs.spmm(A, x[:-1])
    read_only = np.zeros((ROWS, 4), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        bs.spmm(A, x, out=read_only)
    with pytest.raises(bs.ShapeError):
        bs.spmm(A, x, out=np.zeros((ROWS, 5), np.float32))
    with pytest.raises(bs.DTypeError):
        bs.spmm(A, x, out=np.zeros((ROWS, 4)))


def test_results_do_not_overlap_what_is_read() -> None:
    n = 8
    A = bs.TCTiledCSR(sp.csr_array(np.ones((n, n), np.float32)))
    x = np.ones((n, n), np.float32)
    bs.spmm(A, x)
    bs.spmm(A, x, values=A.data.copy())
    for out, values in ((x, None), (A.data, None), (A.data, A.data)):
        with pytest.raises(ValueError, match="out shares memory with an operand"):
            bs.spmm(A, x, values=values, out=out.reshape(n, n))


def test_a_damaged_pattern_is_named_as_before() -> None:
    matrix = sp.csr_array(np.ones((3, 3), bool))
    A, x = bs.TCTiledCSR.from_arrays(matrix.indptr, matrix.indices, (3, 3)), np.ones((3, 2), np.float32)
    bs.spmm(A, x)
    matrix.indices[4] = 7
    with pytest.raises(ValueError, match="spmm: A is not a sparse matrix: "):
        bs.spmm(A, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_gradients_are_not_lost() -> None:
    torch = pytest.importorskip("torch")
    A, x = container(), torch.ones(COLS, 4)
    forward_ad = torch.autograd.forward_ad
    want = bs.spmm(A, x)
    weights = torch.nn.Parameter(x.clone())
    with torch.no_grad():
        assert torch.equal(bs.spmm(A, weights), want)
    with pytest.raises(bs.DTypeError, match="x requires a gradient"):
        bs.spmm(A, weights)
    with torch.no_grad(), pytest.raises(bs.DTypeError, match="out requires a gradient"):
        bs.spmm(A, x, out=torch.zeros(ROWS, 4, requires_grad=True))
    with forward_ad.dual_level(), pytest.raises(bs.DTypeError, match="tangent"):
        bs.spmm(A, forward_ad.make_dual(x, x))
    with pytest.raises(bs.DTypeError):
        torch.func.vmap(lambda part: bs.spmm(A, part))(x[None])
    with pytest.raises(bs.DTypeError):
        torch.jit.trace(lambda part: bs.spmm(A, part), (x,))
    with pytest.raises(bs.DTypeError):
        torch.fx.experimental.proxy_tensor.make_fx(lambda part: bs.spmm(A, part))(x)
    assert torch.equal(bs.spmm(A, torch._neg_view(-x)), want)
    columns = torch.arange(4.0 * COLS).reshape(4, COLS).t()
    assert torch.equal(bs.spmm(A, columns), bs.spmm(A, columns.contiguous()))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_operators_are_seen_by_those_who_look() -> None:
    """Modes and profilers must see PyTorch's operators, although ordinary calls skip these and go straight to the computation."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    import bitsparse.torch as bst

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    g = bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    x = torch.randn(3, 4, requires_grad=True)
    want = bst.spmm(g, x)
    with Watch():
        assert torch.equal(bst.spmm(g, x), want)
    assert "bitsparse.spmm.default" in seen
    with torch.profiler.profile() as profile:
        bst.spmm(g, x)
    assert "bitsparse::spmm" in {event.name for event in profile.events()}
    with torch.autograd.forward_ad.dual_level(), pytest.raises(Exception, match="forward"):
        bst.spmm(g, torch.autograd.forward_ad.make_dual(x.detach(), x.detach()))
