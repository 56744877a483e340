"""Public sparse functions on arrays in a GPU's memory: the host's dtypes, errors and exact results, in the caller's library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, features, graphs, pattern

import bitsparse as bs

pytestmark = pytest.mark.gpu

GRAPHS = {
    name: graph
    for name, graph in graphs().items()
    if name in ("no rows", "no edges", "one", "wide", "square", "many empty rows")
}
GRAPHS["hubs"] = pattern([2, 300, 0, 256, 3, 700, 0, 1], 800)
RNG = np.random.default_rng(0)


def cp() -> Any:
    import cupy

    return cupy


def on_gpu(x: np.ndarray) -> Any:
    """Return a copy in the GPU's memory; CuPy copies bfloat16 as its bits."""
    if x.dtype.name == "bfloat16":
        return cp().asarray(x.view(np.uint16)).view(x.dtype)
    return cp().asarray(x)


def here(x: Any) -> np.ndarray:
    assert isinstance(x, cp().ndarray), type(x)
    return x.view(np.uint16).get().view(x.dtype) if x.dtype.name == "bfloat16" else x.get()


def close(there: Any, wanted: np.ndarray, A: sp.csr_array, x: np.ndarray, unit: float = 2.0**-24) -> None:
    """Require the same dtype and shape, and an error within the bound of a sum of as many terms in any order."""
    got = here(there)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    exact = A.astype(np.float64) @ x.astype(np.float64).reshape(x.shape[0], -1)
    bound = (
        (np.diff(A.indptr)[:, None] + 4)
        * unit
        * (abs(A).astype(np.float64) @ abs(x.astype(np.float64)).reshape(x.shape[0], -1))
    )
    assert (abs(got.astype(np.float64).reshape(exact.shape) - exact) <= bound).all()


def equal(there: Any, wanted: np.ndarray) -> None:
    got = here(there)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)


def weighted(graph: sp.csr_array, dtype: Any = np.float32, seed: int = 0) -> sp.csr_array:
    made = graph.astype(dtype)
    made.data = features(np.random.default_rng(seed), (graph.nnz,), np.dtype(dtype))
    return made


def forms(A: sp.csr_array) -> dict[str, Any]:
    """Return the matrix in every container that can hold it on a GPU."""
    import cupyx.scipy.sparse as cusp

    made: dict[str, Any] = {"TCTiledCSR": bs.TCTiledCSR(A).to_device("cuda")}
    if A.dtype in (np.float32, np.float64, np.bool_):
        there = cusp.csr_matrix(sp.csr_matrix(A))
        made |= {"csr": there, "csc": cusp.csc_matrix(sp.csc_matrix(A)), "coo": cusp.coo_matrix(sp.coo_matrix(A))}
    if A.dtype == np.bool_:
        made |= {"FRDC": bs.FRDC(A).to_device("cuda"), "BitTensor": bs.BitTensor(A, 1).to_device("cuda")}
        made["BitTensor of columns"] = bs.BitTensor(A, 1, axis=-2).to_device("cuda")
    return made


# ---- spmm
@pytest.mark.parametrize("name", GRAPHS)
def test_sums_of_every_form(name: str) -> None:
    for A in (GRAPHS[name].astype(bool), weighted(GRAPHS[name])):
        x = features(RNG, (A.shape[1], 12), np.dtype(np.float32))
        wanted = bs.spmm(A, x)
        for there in forms(A).values():
            close(bs.spmm(there, on_gpu(x)), wanted, A, x)
            close(there @ on_gpu(x) if hasattr(there, "csr_arrays") else bs.spmm(there, on_gpu(x)), wanted, A, x)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_integers_are_the_hosts(dtype: str, reduce: Any) -> None:
    A = GRAPHS["hubs"].astype(bool)
    x = features(RNG, (A.shape[1], 5), np.dtype(dtype))
    there = bs.TCTiledCSR(A).to_device("cuda")
    equal(bs.spmm(there, on_gpu(x), reduce=reduce), bs.spmm(A, x, reduce=reduce))
    values = RNG.integers(-9, 9, A.nnz).astype(np.int8)
    equal(bs.spmm(there, on_gpu(x), values=on_gpu(values), reduce=reduce), bs.spmm(A, x, values=values, reduce=reduce))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_in_every_reduction(dtype: str) -> None:
    A = weighted(GRAPHS["square"])
    x = features(RNG, (A.shape[1], 7), dtype_of(dtype))
    there = bs.TCTiledCSR(A.astype(bool)).to_device("cuda")
    unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-24, "float64": 2.0**-53}[dtype]
    close(bs.spmm(there, on_gpu(x)), bs.spmm(A.astype(bool), x), A.astype(bool), x, unit)
    for reduce in ("max", "min"):
        equal(bs.spmm(there, on_gpu(x), reduce=reduce), bs.spmm(A.astype(bool), x, reduce=reduce))
    mean = here(bs.spmm(there, on_gpu(x), reduce="mean"))
    np.testing.assert_allclose(
        mean.astype(float), bs.spmm(A.astype(bool), x, reduce="mean").astype(float), rtol=8 * unit, atol=8 * unit
    )
    # Values of a wider dtype widen the features.
    close(
        bs.spmm(there, on_gpu(x), values=on_gpu(A.data)),
        bs.spmm(A, x),
        A,
        x,
        max(unit, 2.0**-24) if dtype == "float64" else 2.0**-24,
    )


def test_scales_values_and_heads() -> None:
    A = GRAPHS["hubs"].astype(bool)
    rows, cols = (RNG.standard_normal(n).astype(np.float32) for n in A.shape)
    x = RNG.standard_normal((A.shape[1], 3, 4)).astype(np.float32)
    per_head = RNG.standard_normal((A.nnz, 3)).astype(np.float32)
    local = bs.TCTiledCSR(A, row_scale=rows, col_scale=cols)
    there = local.to_device("cuda")
    plain = bs.TCTiledCSR(A).to_device("cuda")
    for reduce in ("sum", "mean", "max", "min"):
        for given in (None, per_head[:, 0], per_head):
            got = bs.spmm(there, on_gpu(x), values=None if given is None else on_gpu(given), reduce=reduce)
            np.testing.assert_allclose(here(got), bs.spmm(local, x, values=given, reduce=reduce), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(
        here(bs.spmm(plain, on_gpu(x), values=on_gpu(per_head))), bs.spmm(A, x, values=per_head), rtol=2e-4, atol=2e-4
    )
    one = bs.spmm(there, on_gpu(x[:, 0, 0]))
    np.testing.assert_allclose(here(one), bs.spmm(local, x[:, 0, 0]), rtol=2e-4, atol=2e-4)


def test_containers_of_one_pattern_keep_their_own_values_and_scales() -> None:
    A = GRAPHS["hubs"].astype(bool)
    x = RNG.standard_normal((A.shape[1], 4)).astype(np.float32)
    values = RNG.standard_normal((2, A.nnz)).astype(np.float32)
    rows = RNG.standard_normal(A.shape[0]).astype(np.float32)
    local = bs.TCTiledCSR(A)
    each = [local, local.with_values(values[0]), local.with_values(values[1]), local.with_scales(row_scale=rows)]
    first = local.to_device("cuda")
    there = [first, *(first.with_values(on_gpu(v)) for v in values), first.with_scales(row_scale=rows)]
    assert all(one._prepared is first._prepared for one in there)
    given = on_gpu(x)
    for _ in range(3):  # later calls take a shorter path
        for one, other in zip(there, each, strict=True):
            np.testing.assert_allclose(here(bs.spmm(one, given)), bs.spmm(other, x), rtol=2e-4, atol=2e-4)
            np.testing.assert_allclose(here(one @ given), bs.spmm(other, x), rtol=2e-4, atol=2e-4)


def test_packed_features_are_unpacked_to_the_same_dtypes() -> None:
    A = GRAPHS["hubs"].astype(bool)
    there = bs.TCTiledCSR(A).to_device("cuda")
    for bits in (1, 3, 4, 8):
        codes = RNG.integers(0, 1 << bits, (A.shape[1], 37))
        q = bs.BitTensor(codes, bits)
        equal(bs.spmm(there, q.to_device("cuda")), bs.spmm(A, q))
        real = q.with_affine(0.25, -1.0)
        np.testing.assert_allclose(here(bs.spmm(there, real.to_device("cuda"))), bs.spmm(A, real), rtol=1e-4, atol=1e-3)
    heads = bs.BitTensor(RNG.integers(0, 16, (A.shape[1], 2, 20)), 4, layout="rows")
    equal(bs.spmm(there, heads.to_device("cuda")), bs.spmm(A, heads))


def test_unsorted_matrices_keep_the_callers_edge_order() -> None:
    import cupyx.scipy.sparse as cusp

    A = weighted(GRAPHS["square"])
    order = np.concatenate([RNG.permutation(np.arange(a, b)) for a, b in zip(A.indptr[:-1], A.indptr[1:], strict=True)])
    mixed = cusp.csr_matrix((on_gpu(A.data[order]), on_gpu(A.indices[order]), on_gpu(A.indptr)), shape=A.shape)
    local = sp.csr_array((A.data[order], A.indices[order], A.indptr), shape=A.shape)
    x = RNG.standard_normal((A.shape[1], 8)).astype(np.float32)
    values = RNG.standard_normal(A.nnz).astype(np.float32)
    close(bs.spmm(mixed, on_gpu(x)), bs.spmm(A, x), A, x)
    weights = A.copy()
    weights.data = values
    close(bs.spmm(mixed, on_gpu(x), values=on_gpu(values[order])), bs.spmm(weights, x), weights, x)
    for side in ("rows", "cols"):
        np.testing.assert_allclose(
            here(bs.aggregate_edges(mixed, on_gpu(values[order]), side=side)),
            bs.aggregate_edges(A, values, side=side),
            rtol=1e-5,
            atol=1e-5,
        )
    ends = (
        RNG.standard_normal((A.shape[0], 3)).astype(np.float32),
        RNG.standard_normal((A.shape[1], 3)).astype(np.float32),
    )
    np.testing.assert_allclose(here(bs.sddmm(mixed, *map(on_gpu, ends))), bs.sddmm(local, *ends), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        here(bs.edge_softmax(mixed, on_gpu(values[order]))), bs.edge_softmax(local, values[order]), rtol=1e-5
    )
    out = cp().empty(A.nnz, np.float32)
    assert bs.sddmm(mixed, *map(on_gpu, ends), out=out) is out
    np.testing.assert_allclose(here(out), bs.sddmm(local, *ends), rtol=1e-5, atol=1e-5)


def test_duplicates_are_summed_and_have_no_edge_values() -> None:
    import cupyx.scipy.sparse as cusp

    data, indices, indptr = (
        np.array([1.0, 2.0, 4.0, 8.0]),
        np.array([1, 0, 1, 1], np.int32),
        np.array([0, 0, 3, 4, 4], np.int32),
    )
    x = np.array([[1.0], [10.0]])
    made = cusp.csr_matrix((on_gpu(data), on_gpu(indices), on_gpu(indptr)), shape=(4, 2))
    equal(bs.spmm(made, on_gpu(x)), np.array([[0.0], [52.0], [80.0], [0.0]]))
    equal(bs.spmm(made, on_gpu(x), reduce="mean"), np.array([[0.0], [26.0], [80.0], [0.0]]))
    with pytest.raises(ValueError, match=r"spmm: A holds duplicate entries.*sum_duplicates"):
        bs.spmm(made, on_gpu(x), values=on_gpu(np.ones(4)))
    # COO edges are those after duplicates are summed, as in SciPy's tocsr().
    coo = cusp.coo_matrix((on_gpu(data), (on_gpu(np.array([1, 1, 1, 2])), on_gpu(indices))), shape=(4, 2))
    if coo.nnz == 4:
        equal(bs.spmm(coo, on_gpu(x)), np.array([[0.0], [52.0], [80.0], [0.0]]))
        equal(bs.spmm(coo, on_gpu(x), values=on_gpu(np.ones(3))), np.array([[0.0], [11.0], [10.0], [0.0]]))


@pytest.mark.parametrize("side", ["rows", "cols"])
def test_edges_are_aggregated_at_either_end(side: Any) -> None:
    A = GRAPHS["hubs"].astype(bool)
    there = bs.TCTiledCSR(A).to_device("cuda")
    edges = RNG.integers(-99, 99, (A.nnz, 2, 3))
    for reduce in ("sum", "max", "mean"):
        wanted = bs.aggregate_edges(A, edges, side=side, reduce=reduce)
        equal(bs.aggregate_edges(there, on_gpu(edges), side=side, reduce=reduce), wanted)
        equal(bs.aggregate_edges(there, on_gpu(edges), side=side, reduce=reduce), wanted)


def test_plans() -> None:
    A = weighted(GRAPHS["hubs"])
    x = RNG.standard_normal((A.shape[1], 2, 8)).astype(np.float32)
    for there in (bs.TCTiledCSR(A).to_device("cuda"), forms(A)["csr"]):
        plan = bs.plan_spmm(there, 8, heads=2)
        assert plan.device == "cuda:0"
        assert plan.longest_row == 700
        assert repr(plan) == f"<SpmmPlan shape=(8, 2, 8) reduce=sum edges={A.nnz}>"
        assert "kernel csr" in plan.explain()
        given = on_gpu(x)
        close(plan(given), bs.spmm(A, x), A, x)
        out = cp().empty((8, 2, 8), np.float32)
        assert plan(given, out=out) is out
        close(out, bs.spmm(A, x), A, x)
        values = RNG.standard_normal((A.nnz, 2)).astype(np.float32)
        np.testing.assert_allclose(
            here(plan(given, on_gpu(values))), bs.spmm(A, x, values=values), rtol=2e-4, atol=2e-4
        )
        np.testing.assert_allclose(
            here(plan(given.astype(np.float64))), bs.spmm(A, x.astype(np.float64)), rtol=1e-10, atol=1e-10
        )
        with pytest.raises(bs.ShapeError, match="the plan is for"):
            plan(given[:, 0])
    square = cp().zeros((81, 4), np.float32)
    plan = bs.plan_spmm(bs.TCTiledCSR(pattern([3] * 81, 81)).to_device("cuda"), 4)
    with pytest.raises(ValueError, match="shares memory"):
        plan(square, out=square)


def test_a_plan_of_the_transpose() -> None:
    A = weighted(GRAPHS["hubs"])
    g = RNG.standard_normal((A.shape[0], 16)).astype(np.float32)
    there = bs.TCTiledCSR(A).to_device("cuda")
    plan = bs.plan_spmm(there.T, 16)
    turned = sp.csr_array(A.T)
    close(plan(on_gpu(g)), bs.spmm(turned, g), turned, g)
    left = np.ascontiguousarray(g.T)
    np.testing.assert_allclose(here(on_gpu(left) @ there), left @ A, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [("float32", "csr"), ("float32", "windows"), ("float32", "tiles"), ("float16", "tiles"), ("int8", None)],
)
def test_a_plan_that_writes_in_place_is_captured_and_replayed(dtype: str, kernel: str | None) -> None:
    cupy = cp()
    A = GRAPHS["hubs"].astype(bool)
    plan = bs.plan_spmm(bs.TCTiledCSR(A).to_device("cuda"), 16, dtype=dtype, precision="tf32", kernel=kernel)
    x = on_gpu(features(RNG, (A.shape[1], 16), np.dtype(dtype)))
    first = plan(x)
    out = cupy.empty_like(first)
    plan(x, out=out)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cupy.cuda.get_current_stream().synchronize()
        stream.begin_capture()
        plan(x, out=out)
        graph = stream.end_capture()
        x[:] = on_gpu(features(RNG, (A.shape[1], 16), np.dtype(dtype)))
        out.fill(0)
        graph.launch()
        stream.synchronize()
    equal(out, here(plan(x)))


@pytest.mark.parametrize("kernel", ["csr", "windows", "tiles"])
def test_a_call_in_place_allocates_and_waits_for_nothing(kernel: str) -> None:
    counts = pytest.importorskip("emulator").counts if hasattr(cp(), "_is_emulated") else None
    A = GRAPHS["hubs"].astype(np.float32)
    plan = bs.plan_spmm(bs.TCTiledCSR(A).to_device("cuda"), 16, precision="tf32", kernel=kernel)
    x = on_gpu(features(RNG, (A.shape[1], 16), np.dtype(np.float32)))
    out = plan(x)
    plan(x, out=out)
    if counts is not None:
        before = counts()
        plan(x, out=out)
        after = counts()
        assert after["launches"] > before["launches"]
        assert {name: n for name, n in after.items() if name != "launches"} == {
            name: n for name, n in before.items() if name != "launches"
        }


def test_other_streams() -> None:
    cupy = cp()
    A = weighted(GRAPHS["hubs"])
    x = RNG.standard_normal((A.shape[1], 8)).astype(np.float32)
    there, given = bs.TCTiledCSR(A).to_device("cuda"), on_gpu(x)
    cupy.cuda.Device().synchronize()
    for _ in range(2):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            got = bs.spmm(there, given)
            scores = bs.sddmm(there, on_gpu(np.ones((A.shape[0], 8), np.float32)), given)
            stream.synchronize()
        close(got, bs.spmm(A, x), A, x)
        np.testing.assert_allclose(
            here(scores), bs.sddmm(A, np.ones((A.shape[0], 8), np.float32), x), rtol=1e-5, atol=1e-5
        )


# ---- precision and kernels
def test_precision_is_a_permission() -> None:
    A = weighted(GRAPHS["square"])
    x = RNG.standard_normal((A.shape[1], 16)).astype(np.float32)
    there = bs.TCTiledCSR(A).to_device("cuda")
    for precision, unit in (("fp32", 2.0**-24), ("tf32", 2.0**-9), ("3xtf32", 2.0**-19)):
        for kernel in (None, "csr", "tiles"):
            if (precision, kernel) == ("fp32", "tiles"):
                with pytest.raises(bs.KernelError, match="tf32"):
                    bs.spmm(there, on_gpu(x), precision=precision, kernel=kernel)
                continue
            close(bs.spmm(there, on_gpu(x), precision=precision, kernel=kernel), bs.spmm(A, x), A, x, unit)
            plan = bs.plan_spmm(there, 16, precision=precision, kernel=kernel)
            close(plan(on_gpu(x)), bs.spmm(A, x), A, x, unit)
            if kernel is not None:
                assert f"kernel {kernel} (forced" in plan.explain()
    with pytest.raises(bs.KernelError, match="tiles"):
        bs.spmm(there, on_gpu(x), precision="tf32", kernel="tiles", reduce="max")
    with pytest.raises(bs.KernelError, match="tiles"):
        bs.spmm(there, on_gpu(x.astype(np.float64)), precision="tf32", kernel="tiles")


def cliques() -> sp.csr_array:
    """Return rows that share all their columns with their neighbours, in blocks of which one is very large."""
    blocks = sp.block_diag([sp.coo_array(np.ones((n, n), np.float32)) for n in (40, 1, 33, 8, 300)], format="csr")
    blocks.data = RNG.standard_normal(blocks.nnz).astype(np.float32)
    return sp.csr_array(blocks)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_windows_of_rows_that_share_columns(reduce: Any) -> None:
    A = cliques()
    rows, cols = (RNG.standard_normal(n).astype(np.float32) for n in A.shape)
    x = RNG.standard_normal((A.shape[1], 20)).astype(np.float32)
    given, values = on_gpu(x), RNG.standard_normal(A.nnz).astype(np.float32)
    for local in (bs.TCTiledCSR(A.astype(bool)), bs.TCTiledCSR(A), bs.TCTiledCSR(A, row_scale=rows, col_scale=cols)):
        there = local.to_device("cuda")
        for kernel in ("windows", None, "csr"):
            got = bs.spmm(there, given, reduce=reduce, kernel=kernel)
            np.testing.assert_allclose(here(got), bs.spmm(local, x, reduce=reduce), rtol=2e-4, atol=5e-4)
            got = bs.spmm(there, given, values=on_gpu(values), reduce=reduce, kernel=kernel)
            np.testing.assert_allclose(here(got), bs.spmm(local, x, values=values, reduce=reduce), rtol=2e-4, atol=5e-4)
        # Features and results in memory that is not aligned to 16 bytes.
        room = cp().zeros(x.size + 1, np.float32)
        shifted = room[1:].reshape(x.shape)
        shifted[...] = given
        out = cp().zeros(A.shape[0] * 20 + 1, np.float32)[1:].reshape(A.shape[0], 20)
        plan = bs.plan_spmm(there, 20, reduce=reduce, kernel="windows")
        assert "kernel windows (forced" in plan.explain()
        assert plan(shifted, out=out) is out
        np.testing.assert_array_equal(here(out), here(plan(given)))
    with pytest.raises(bs.KernelError, match="in fours"):
        bs.spmm(there, given[:, :3], kernel="windows")
    with pytest.raises(bs.KernelError, match="float64"):
        bs.plan_spmm(there, 20, dtype="float64", kernel="windows")
    with pytest.raises(bs.KernelError, match="sums and means"):
        bs.plan_spmm(there, 20, reduce="max", kernel="windows")


def test_the_kernel_is_chosen_by_what_rows_share() -> None:
    shared, alone = (bs.TCTiledCSR(A).to_device("cuda") for A in (cliques(), GRAPHS["wide"].astype(np.float32)))
    for precision, named in (("fp32", ("csr", "windows8")), ("tf32", ("csr", "windows8", "tiles16"))):
        said = bs.plan_spmm(shared, 128, precision=precision).explain()
        assert "lowest estimated cost" in said
        assert all(name in said for name in named)
    assert "tiles32" in bs.plan_spmm(shared.with_values(None), 128, precision="tf32").explain()
    assert "edges to a column" in bs.plan_spmm(alone, 128, precision="tf32").explain()
    assert "not windows: they take features of float32" in bs.plan_spmm(shared, 128, dtype="float64").explain()
    assert "not windows" in bs.plan_spmm(shared, 128, reduce="max").explain()


def test_sixteen_bits_on_tensor_cores() -> None:
    A = GRAPHS["hubs"].astype(bool)
    there = bs.TCTiledCSR(A).to_device("cuda")
    for dtype, unit in (("float16", 2.0**-10), ("bfloat16", 2.0**-7)):
        x = features(RNG, (A.shape[1], 24), dtype_of(dtype))
        for kernel in ("csr", "tiles"):
            close(bs.spmm(there, on_gpu(x), kernel=kernel), bs.spmm(A, x), A, x, unit)


# ---- edges
@pytest.mark.parametrize("op", ["dot", "add", "mul"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64"])
def test_products_per_edge(op: Any, dtype: str) -> None:
    A = GRAPHS["square"].astype(bool)
    x, y = (features(RNG, (n, 2, 5), dtype_of(dtype)) for n in A.shape)
    if dtype == "int64":
        x, y = x % 1000, y % 1000
    wanted = bs.sddmm(A, x, y, op=op)
    for there in (bs.TCTiledCSR(A).to_device("cuda"), forms(A)["FRDC"]):
        got = here(bs.sddmm(there, on_gpu(x), on_gpu(y), op=op))
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        rtol = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}.get(dtype, 0)
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=rtol, atol=8 * rtol)
        out = (
            cp().empty(got.shape, np.uint16).view(got.dtype)
            if dtype == "bfloat16"
            else cp().empty(got.shape, got.dtype)
        )
        assert bs.sddmm(there, on_gpu(x), on_gpu(y), op=op, out=out) is out
        np.testing.assert_array_equal(here(out), got)


def test_products_of_unlike_features() -> None:
    A = GRAPHS["square"].astype(bool)
    there = bs.TCTiledCSR(A).to_device("cuda")
    x, y = RNG.integers(-5, 5, (A.shape[0], 6)), RNG.standard_normal((A.shape[1], 6))
    for one, other in (("int8", "float16"), ("float16", "float32"), ("bfloat16", "float32"), ("uint8", "int32")):
        a, b = x.astype(dtype_of(one)), (y * 4).astype(dtype_of(other))
        wanted, got = bs.sddmm(A, a, b), here(bs.sddmm(there, on_gpu(a), on_gpu(b)))
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_softmax_over_edges(dtype: str) -> None:
    for name in ("hubs", "no edges", "many empty rows"):
        A = GRAPHS[name].astype(bool)
        there = bs.TCTiledCSR(A).to_device("cuda")
        for shape in ((A.nnz,), (A.nnz, 3)):
            scores = RNG.standard_normal(shape).astype(dtype_of(dtype))
            wanted = bs.edge_softmax(A, scores)
            given = on_gpu(scores)
            got = here(bs.edge_softmax(there, given))
            assert got.dtype == wanted.dtype
            rtol = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
            np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=rtol, atol=1e-7)
            assert bs.edge_softmax(there, given, out=given) is given
            np.testing.assert_array_equal(here(given), got)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("edges", [1, 3, 7, 1030])
def test_softmax_writes_nothing_behind_its_last_edge(dtype: str, edges: int) -> None:
    """Nothing must be written behind the last edge, although blocks store whole vectors of weights and the last one may reach further."""
    A = pattern([edges], edges).astype(bool)
    there = bs.TCTiledCSR(A).to_device("cuda")
    for heads in ((), (3,)):
        scores = RNG.standard_normal((edges, *heads)).astype(dtype)
        room = cp().full(scores.size + 16, 99, dtype)
        out = room[: scores.size].reshape(scores.shape)
        assert bs.edge_softmax(there, on_gpu(scores), out=out) is out
        np.testing.assert_allclose(here(out).sum(axis=0, dtype=np.float64), 1, rtol=1e-2)
        assert (here(room[scores.size :]) == 99).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_attention(dtype: str) -> None:
    A = GRAPHS["hubs"].astype(bool)
    there = bs.TCTiledCSR(A).to_device("cuda")
    for inner in ((6,), (2, 8)):
        x = features(RNG, (A.shape[1], *inner), dtype_of(dtype))
        per_head = inner[:-1]
        source, target = (RNG.standard_normal((n, *per_head)).astype(np.float32) for n in reversed(A.shape))
        wanted = bs.attention(A, x, source, target)
        got = bs.attention(there, on_gpu(x), on_gpu(source), on_gpu(target))
        assert got.dtype == wanted.dtype
        rtol = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-4}[dtype]
        np.testing.assert_allclose(here(got).astype(float), wanted.astype(float), rtol=rtol, atol=rtol)


# ---- refusals
def refusals() -> dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]]:
    return {
        "x on the CPU": (lambda A, x: bs.spmm(A, x.get()), bs.DeviceError, "spmm: A is on cuda:0 but x is on cpu"),
        "A on the CPU": (lambda A, x: bs.spmm(GRAPHS["square"], x), bs.DeviceError, "A is on cpu but x is on cuda:0"),
        "values on the CPU": (
            lambda A, x: bs.spmm(A, x, values=np.ones(GRAPHS["square"].nnz)),
            bs.DeviceError,
            "values is on cpu",
        ),
        "out on the CPU": (
            lambda A, x: bs.spmm(A, x, out=np.empty((81, 4), np.float32)),
            bs.DeviceError,
            "out is on cpu",
        ),
        "out of another shape": (
            lambda A, x: bs.spmm(A, x, out=cp().empty((3, 4), np.float32)),
            bs.ShapeError,
            "spmm: out has shape",
        ),
        "scores on the CPU": (
            lambda A, x: bs.edge_softmax(A, np.ones(GRAPHS["square"].nnz, np.float32)),
            bs.DeviceError,
            "scores is on cpu",
        ),
        "one end on the CPU": (lambda A, x: bs.sddmm(A, x, x.get()), bs.DeviceError, "y is on cpu"),
        "a score on the CPU": (
            lambda A, x: bs.attention(A, x, np.ones(81, np.float32), cp().ones(81, np.float32)),
            bs.DeviceError,
            "source is on cpu",
        ),
        "dense A": (lambda A, x: bs.spmm(x, x), bs.DTypeError, "must be sparse"),
    }


@pytest.mark.parametrize("what", list(refusals()))
def test_refusals(what: str) -> None:
    call, error, words = refusals()[what]
    A = bs.TCTiledCSR(pattern([3] * 81, 81)).to_device("cuda")
    with pytest.raises(error, match=words):
        call(A, cp().ones((81, 4), np.float32))


def test_damaged_matrices_are_refused() -> None:
    import cupyx.scipy.sparse as cusp

    A = GRAPHS["square"]
    x = cp().ones((A.shape[1], 4), np.float32)
    made = cusp.csr_matrix(sp.csr_matrix(A))
    made.indices[7] = 10**6
    for call in (lambda: bs.spmm(made, x), lambda: bs.aggregate_edges(made, made.data, side="cols")):
        with pytest.raises(ValueError, match="rebuild"):
            call()


# ---- other libraries
@pytest.mark.torch
def test_torch_in_torch_out() -> None:
    import torch

    A = weighted(GRAPHS["hubs"])
    there = bs.TCTiledCSR(A).to_device("cuda")
    x = RNG.standard_normal((A.shape[1], 16)).astype(np.float32)
    given = torch.from_numpy(x).cuda()
    got = bs.spmm(there, given)
    assert isinstance(got, torch.Tensor)
    assert got.is_cuda
    close(cp().asarray(got), bs.spmm(A, x), A, x)
    out = torch.empty_like(got)
    assert bs.spmm(there, given, out=out) is out
    assert torch.equal(out, got)
    half = bs.spmm(bs.TCTiledCSR(A.astype(bool)).to_device("cuda"), given.bfloat16())
    assert half.dtype == torch.bfloat16
    scores = bs.sddmm(there, torch.ones(A.shape[0], 16, device="cuda"), given)
    assert isinstance(bs.edge_softmax(there, scores), torch.Tensor)
    with pytest.raises(bs.DTypeError, match="detach"):
        bs.spmm(there, given.requires_grad_())


@pytest.mark.torch
def test_torch_streams_and_graphs() -> None:
    import torch

    A = weighted(GRAPHS["hubs"])
    x = RNG.standard_normal((A.shape[1], 16)).astype(np.float32)
    given, there = torch.from_numpy(x).cuda(), bs.TCTiledCSR(A).to_device("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        got = bs.spmm(there, given + 0) * 1
    side.synchronize()
    close(cp().asarray(got), bs.spmm(A, x), A, x)
    plan, out = bs.plan_spmm(there, 16), torch.zeros((A.shape[0], 16), device="cuda")
    plan(given, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(given, out=out)
    out.fill_(-5)
    graph.replay()
    torch.cuda.synchronize()
    close(cp().asarray(out), bs.spmm(A, x), A, x)


@pytest.mark.jax
def test_jax_in_jax_out() -> None:
    import jax

    A = weighted(GRAPHS["square"])
    x = RNG.standard_normal((A.shape[1], 8)).astype(np.float32)
    got = bs.spmm(bs.TCTiledCSR(A).to_device("cuda"), jax.device_put(x, jax.devices("gpu")[0]))
    assert isinstance(got, jax.Array)
    close(cp().asarray(got), bs.spmm(A, x), A, x)
