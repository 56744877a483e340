"""Gradients of attention on the GPU, and the state kept for them, agree with float64; results are written into poisoned arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, graphs
from test_gpu_bits import empty, raw, to_device, to_host
from test_gpu_sddmm import scheduled

import bitsparse as bs
from bitsparse.backends.cuda.edges import attention as cuda
from bitsparse.backends.params import Dropout, Pattern
from bitsparse.backends.reference.edges import attention as reference
from bitsparse.backends.row_pieces import RowPieces

pytestmark = pytest.mark.gpu

GRAPHS = graphs()
NAMES = ("x", "source", "target")
BOUNDS = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


def operands(A: sp.csr_array, heads: int, width: int, dtype: str) -> list[np.ndarray]:
    """Features, source and target scores, and the gradient with respect to the result."""
    rng = np.random.default_rng([heads, width])
    rows, columns = A.shape
    compute = np.float64 if dtype == "float64" else np.float32
    x, gradient = (rng.standard_normal((n, heads * width)).astype(dtype_of(dtype)) for n in (columns, rows))
    source, target = (rng.standard_normal((n, heads)).astype(compute) for n in (columns, rows))
    return [x, source, target, gradient]


def check(
    A: sp.csr_array,
    heads: int,
    width: int,
    dtype: str = "float32",
    dropout: Dropout | None = None,
    slope: float = 0.2,
    wide: bool = False,
    wrt: tuple[str, ...] = NAMES,
    **cut: int,
) -> None:
    parts = operands(A, heads, width, dtype)
    turned = sp.csr_array(A.T.tocsr())
    compute, kind = parts[1].dtype, dtype_of(dtype)
    rows = A.shape[0]
    shapes = (rows, heads * width), (rows, heads), (rows, heads), (rows, heads * width)
    state = [empty(shape, kind if i in (0, 3) else compute) for i, shape in enumerate(shapes)]
    x, source, target, gradient = (to_device(part) for part in parts)
    how: dict[str, Any] = {"negative_slope": slope, "dropout": dropout}
    sums: dict[str, Any] = {"out": state[0], "lse": state[1], "state": (state[2], state[3])}
    cuda.attention(scheduled(A, wide), x, source, target, **how, **sums, **cut)
    got = cuda.attention_vjp(scheduled(turned, wide), x, source, target, gradient, tuple(state), **how, wrt=wrt, **cut)
    exact = [part.astype(np.float64) for part in parts]
    if dropout is not None and not isinstance(dropout.seed, int):
        how["dropout"] = Dropout(dropout.rate, int(to_host(dropout.seed)[0]) & (1 << 64) - 1)
    want = [np.empty(shape) for shape in shapes]
    reference.attention(
        Pattern(A.indptr, A.indices, A.shape), *exact[:3], **how, out=want[0], lse=want[1], state=(want[2], want[3])
    )
    there = Pattern(turned.indptr, turned.indices, turned.shape)
    slopes = reference.attention_vjp(there, *exact, tuple(want), **how)
    assert set(got) >= set(wrt)
    pairs = [*zip(state, want, strict=True), *((got[name], slopes[name]) for name in wrt)]
    for found, right in pairs:
        host = to_host(found).astype(np.float64)
        assert host.shape == right.shape
        finite = np.isfinite(right)
        assert np.array_equal(host[~finite], right[~finite])
        error = abs(host[finite] - right[finite]).max(initial=0)
        assert error <= BOUNDS[dtype] * max(abs(right[finite]).max(initial=0), 1)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    for heads, width in ((4, 32), (1, 16)):
        check(GRAPHS[name], heads, width)
        check(GRAPHS[name], heads, width, dropout=Dropout(0.4, 2**63 + 1))


@pytest.mark.parametrize(
    ("heads", "width"), [(1, 1), (1, 3), (1, 100), (1, 300), (2, 64), (2, 256), (3, 20), (5, 7), (16, 2), (33, 1)]
)
def test_heads_and_widths(heads: int, width: int) -> None:
    check(GRAPHS["square"], heads, width)
    check(GRAPHS["hubs"], heads, width, dropout=Dropout(0.5, 3), longest=128, span=64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype: str) -> None:
    for name, heads, width in (("square", 4, 32), ("hubs", 1, 48), ("hubs", 3, 5)):
        check(GRAPHS[name], heads, width, dtype)
        check(GRAPHS[name], heads, width, dtype, Dropout(0.5, 7), longest=256, span=64)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_heads_that_are_laid_out_as_whole_vectors(dtype: str) -> None:
    for name, heads, width in (("square", 1, 41), ("hubs", 3, 5), ("hubs", 2, 1), ("square", 4, 32)):
        check(GRAPHS[name], heads, width, dtype, lay=True)
        check(GRAPHS[name], heads, width, dtype, Dropout(0.5, 7), longest=128, span=64, lay=True)


def test_slopes_wide_indices_and_seeds_on_the_device() -> None:
    for slope in (0.0, 1.0, -0.5):
        check(GRAPHS["square"], 2, 8, slope=slope)
    check(GRAPHS["hubs"], 4, 8, wide=True, dropout=Dropout(0.9, 5))
    check(GRAPHS["square"], 4, 8, "float64", Dropout(0.5, to_device(np.array([-9], np.int64))))
    check(GRAPHS["square"], 4, 8, dropout=Dropout(1.0, 5))


@pytest.mark.parametrize("wrt", [("x",), ("source",), ("target",), ("target", "x")])
def test_some_of_the_gradients(wrt: tuple[str, ...]) -> None:
    check(GRAPHS["hubs"], 2, 8, wrt=wrt, longest=512, span=64)


@pytest.mark.parametrize("wrt", [NAMES, ("x",), ("target",)])
def test_sums_that_are_made_in_pieces_of_rows(wrt: tuple[str, ...]) -> None:
    """Features and sums in pieces of rows must give the same bits as whole arrays."""
    A, heads, width = GRAPHS["square"], 4, 8
    x, source, target, gradient = (to_device(part) for part in operands(A, heads, width, "float32"))
    rows, turned = A.shape[0], scheduled(sp.csr_array(A.T.tocsr()))
    result, above = empty((rows, heads * width), np.float32), empty((rows, heads * width), np.float32)
    lse, share = empty((rows, heads), np.float32), empty((rows, heads), np.float32)
    how: dict[str, Any] = {"negative_slope": 0.2}
    cuda.attention(scheduled(A), x, source, target, **how, out=result, lse=lse, state=(share, above))
    pieces = [slice(start, min(start + 16, rows)) for start in range(0, rows, 16)]
    parts = [RowPieces(part.shape, pieces, lambda i, part=part: part[pieces[i]].copy()) for part in (x, result, above)]
    whole = cuda.attention_vjp(turned, x, source, target, gradient, (result, lse, share, above), **how, wrt=wrt)
    state = parts[1], lse, share, parts[2]
    made = cuda.attention_vjp(turned, parts[0], source, target, gradient, state, **how, wrt=wrt)
    assert A.shape[0] == A.shape[1]
    assert len(pieces) > 1
    assert set(made) == set(whole)
    for name in wrt:
        assert np.array_equal(raw(made[name]), raw(whole[name]))


@pytest.mark.parametrize("completed", [True, False])
@pytest.mark.parametrize(
    ("heads", "width", "dtype", "cut"),
    [
        (4, 32, "float32", {"longest": 128, "span": 64}),
        (1, 47, "float32", {"lay": True, "longest": 128, "span": 64}),
        (1, 41, "float32", {"lay": False}),
        (1, 100, "float32", {"longest": 4096}),
        (3, 5, "float32", {"lay": True}),
        (3, 20, "float32", {}),
        (8, 32, "float32", {}),
        (2, 2, "float64", {"longest": 256, "span": 64}),
        (4, 32, "float16", {}),
        (1, 41, "bfloat16", {"lay": True, "longest": 128, "span": 64}),
    ],
)
def test_scores_that_are_made_of_the_features_and_a_bias(
    heads: int, width: int, dtype: str, cut: Any, completed: bool
) -> None:
    """Scores are written on the way; the gradient by the features includes theirs; sums with a bias have the bits of two steps."""
    A, kind = GRAPHS["hubs"], dtype_of(dtype)
    A = sp.csr_array(sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), A.shape)[: min(A.shape), : min(A.shape)])
    rng, n, exact = np.random.default_rng(width), A.shape[0], np.float64
    compute = np.float64 if dtype == "float64" else np.float32
    x, gradient = (rng.standard_normal((n, heads * width)).astype(kind) for _ in range(2))
    vectors = [(rng.standard_normal((heads, width)) / width**0.5).astype(compute) for _ in range(2)]
    bias = (
        rng.standard_normal(heads * width).astype(compute) if dtype.startswith("float") and dtype != "float16" else None
    )
    at = [to_device(part) for part in (x, gradient, *vectors)]
    there = None if bias is None else to_device(bias)
    how: dict[str, Any] = {"negative_slope": 0.2, "dropout": Dropout(0.3, 5)}
    runs = []
    for _ in range(2):
        sums, plain, above = (empty((n, heads * width), kind) for _ in range(3))
        source, target, lse, share = (empty((n, heads), compute) for _ in range(4))
        cuda.attention(
            scheduled(A),
            at[0],
            source,
            target,
            **how,
            out=sums,
            lse=lse,
            state=(share, above),
            vectors=(at[2], at[3]),
            bias=there,
            **cut,
        )
        cuda.attention(scheduled(A), at[0], source, target, **how, out=plain, **cut)
        by = {"x": empty((n, heads * width), kind), "vectors": empty((2, heads, width), compute)}
        if bias is not None:
            by["bias"] = empty((heads * width,), compute)
        state, turned = (sums, lse, share, above), scheduled(sp.csr_array(A.T.tocsr()))
        more: dict[str, Any] = {"vectors": (at[2], at[3]), "bias": there, "completed": completed} | cut
        cuda.attention_vjp(turned, at[0], source, target, at[1], state, **how, out=by, **more)
        runs.append([raw(part).tobytes() for part in (sums, source, target, *by.values())])
    assert runs[0] == runs[1]
    if bias is not None:
        assert np.array_equal(to_host(sums), to_host(plain) + bias)
    rows = x.astype(exact).reshape(n, heads, width)
    ends = [np.einsum("nhd,hd->nh", rows, vector.astype(exact)) for vector in vectors]
    want = [np.empty(shape) for shape in ((n, heads * width), (n, heads), (n, heads), (n, heads * width))]
    pattern = Pattern(A.indptr, A.indices, A.shape)
    reference.attention(pattern, x.astype(exact), *ends, **how, out=want[0], lse=want[1], state=(want[2], want[3]))
    other = sp.csr_array(A.T.tocsr())
    there_and_back = Pattern(other.indptr, other.indices, other.shape)
    slopes = reference.attention_vjp(there_and_back, x.astype(exact), *ends, gradient.astype(exact), tuple(want), **how)
    through = sum(slopes[name][..., None] * vector for name, vector in zip(("source", "target"), vectors, strict=True))
    by_vectors = np.stack([np.einsum("nh,nhd->hd", slopes[name], rows) for name in ("source", "target")])
    right = {
        "x": slopes["x"] + through.reshape(n, -1),
        "vectors": by_vectors,
        "bias": gradient.astype(exact).sum(axis=0),
    }
    for found, wanted in [(source, ends[0]), (target, ends[1]), *((by[name], right[name]) for name in by)]:
        error = abs(to_host(found).astype(exact) - wanted).max()
        assert error <= 4 * BOUNDS[dtype] * abs(wanted).max(), (wanted.shape, error / abs(wanted).max())


def test_public_functions_give_the_same_bits_every_time() -> None:
    import cupy

    A = bs.TCTiledCSR(GRAPHS["hubs"], pattern=True)
    there = A.to_device("cuda")
    for dtype in ("float32", "bfloat16"):
        x, source, target, gradient = operands(GRAPHS["hubs"], 2, 6, dtype)
        parts = [x.reshape(-1, 2, 6), source, target, gradient.reshape(-1, 2, 6)]
        device = [to_device(part) for part in parts]
        seed = cupy.array([11])
        made = []
        for known in (11, seed, 11):
            y, state = bs.attention(there, *device[:3], dropout=0.5, seed=known, return_state=True)
            plain = bs.attention(there, *device[:3], dropout=0.5, seed=known)
            assert raw(plain).tobytes() == raw(y).tobytes()
            made.append(bs.attention_vjp(there, *device, dropout=0.5, seed=known, state=state))
        for others in made[1:]:
            for one, other in zip(made[0], others, strict=True):
                assert raw(one).tobytes() == raw(other).tobytes()
        want = bs.attention_vjp(A, *(part.astype(np.float64) for part in parts), dropout=0.5, seed=11)
        for one, other, part in zip(made[0], want, parts, strict=False):
            assert one.dtype == part.dtype
            error = abs(to_host(one).astype(np.float64) - other).max()
            assert error <= BOUNDS[dtype] * abs(other).max()
    with pytest.raises(bs.DeviceError, match="seed"):
        bs.attention(there, *device[:3], dropout=0.5, seed=np.array([1]))


def test_a_captured_call_reads_the_seed_when_it_runs() -> None:
    import cupy

    A = GRAPHS["square"]
    schedule = scheduled(A)
    x, source, target, _ = (to_device(part) for part in operands(A, 2, 8, "float32"))
    seed, out = to_device(np.array([1], np.int64)), empty((A.shape[0], 16), np.float32)

    def call(given: Any = seed) -> None:
        how = {"negative_slope": 0.2, "dropout": Dropout(0.5, given)}
        cuda.attention(schedule, x, source, target, **how, out=out)

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        call()
        stream.begin_capture()
        call()
        captured = stream.end_capture()
        seed.fill(2)
        captured.launch(stream)
        stream.synchronize()
        replayed = out.get()
        call(2)
        stream.synchronize()
    assert replayed.tobytes() == out.get().tobytes()
