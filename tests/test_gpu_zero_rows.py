"""Sums that do not fetch rows of zeros (``kernel="nonzero"``), and gradients that take them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs, same
from test_gpu_bits import empty, to_device

import bitsparse as bs
from bitsparse import jit
from bitsparse.backends.after_sums import AfterSums
from bitsparse.backends.cuda.chips import H200
from bitsparse.backends.cuda.csr.fetched import FetchedEdges
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.spmm import choice
from bitsparse.backends.cuda.spmm import spmm as spmm_kernel
from bitsparse.interop import StandIn
from bitsparse.ops.spmm.spmm import call_of, spmm_and_after

pytestmark = pytest.mark.gpu


class Watched(FetchedEdges):
    """Keeps what was found last, on the host."""

    found: list[np.ndarray]

    def __call__(self, marks: Any) -> tuple[int, int]:
        given = super().__call__(marks)
        if jit.cupy.cuda.runtime.streamIsCapturing(jit.cupy.cuda.get_current_stream().ptr):
            return given
        kept = self._rooms.on_stream("edges that are fetched", (0,), "uint32", self._size).arrived
        state = kept.get().view(np.uint32)
        self.found[:] = state[:4], state[4 : 4 + self._words], state[4 + self._words :]
        return given


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What was found out last: ``Fetching``, the marks, the bits of edges."""
    Watched.found = []
    monkeypatch.setattr(spmm_kernel, "FetchedEdges", Watched)
    return Watched.found


def bits_of(words: np.ndarray, count: int) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:count]


def features(rows: int, columns: int, share: float) -> np.ndarray:
    """Of these rows a share are not zeros, with a number in any column; zeros have both signs."""
    rng = np.random.default_rng(3)
    x = np.where(rng.random((rows, columns)) < 0.5, np.float32(-0.0), np.float32(0))
    kept = np.flatnonzero(rng.random(rows) < share)
    x[kept, rng.integers(0, columns, len(kept))] = rng.standard_normal(len(kept))
    x[kept[::2]] = rng.standard_normal((len(kept[::2]), columns))
    return x


@pytest.mark.parametrize(
    ("columns", "share", "scaled"),
    [
        (33, 0.1, (False, False)),
        (17, 0.2, (True, True)),
        (47, 0.0, (True, True)),
        (41, 0.95, (False, True)),
        (130, 0.5, (True, False)),
    ],
)
def test_rows_of_zeros(columns: int, share: float, scaled: tuple[bool, bool], found: list[np.ndarray]) -> None:
    A = graphs()["hubs"]
    ours = bs.TCTiledCSR(A, pattern=True).to_device("cuda")
    rng = np.random.default_rng(4)
    scales = [
        rng.random(size).astype(np.float32) + 1 if one else None for size, one in zip(A.shape, scaled, strict=True)
    ]
    ours = ours.with_scales(*(None if scale is None else to_device(scale) for scale in scales))
    x = features(A.shape[1], columns, share)
    host = bs.TCTiledCSR(A, pattern=True).with_scales(*scales)
    for reduce in ("sum", "mean"):
        found.clear()
        out = empty((A.shape[0], columns), np.float32)
        bs.spmm(ours, to_device(x), reduce=reduce, kernel="nonzero", out=out)
        given = out.get()
        fetching, marks, edges = found
        there = (x != 0).any(axis=1)
        assert fetching[0] == (4 * there.sum() <= 3 * A.shape[1])
        if fetching[0]:
            assert not there[int(fetching[2:].view(np.int64)[0])]
            np.testing.assert_array_equal(bits_of(marks, A.shape[1]), there)
            np.testing.assert_array_equal(bits_of(edges, A.nnz), there[A.indices])
        close = bs.spmm(host, x, reduce=reduce)
        np.testing.assert_allclose(given, close, rtol=1e-4, atol=1e-4)
    after = AfterSums(bias=to_device(np.ones(columns, np.float32)), relu=True)
    sums = bs.spmm(ours, to_device(x), kernel="nonzero").get()
    assert spmm_and_after(ours, to_device(x), after, reduce="sum", precision="fp32", kernel="nonzero", out=out)
    same(out.get(), np.maximum(sums + np.float32(1), 0))


def test_sums_do_not_depend_on_what_is_fetched(found: list[np.ndarray]) -> None:
    A = graphs()["hubs"]
    ours = bs.TCTiledCSR(A, pattern=True).to_device("cuda")
    x = to_device(np.rint(4 * features(A.shape[1], 47, 0.3)))  # sums are exact in any order
    x[5, 7], x[6, 0] = np.nan, np.inf
    left_out = bs.spmm(ours, x, kernel="nonzero").get()
    assert found[0][0] == 1
    same(bs.spmm(ours, x, kernel="csr").get(), left_out)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rows_of_zeros_change(index: Any, found: list[np.ndarray]) -> None:
    """Other rows, the same ones again, none at all, and the first ones again: sums follow."""
    A = graphs()["hubs"]
    ours = bs.TCTiledCSR.from_csr_arrays(A.indptr.astype(index), A.indices.astype(index), A.shape).to_device("cuda")
    host = bs.TCTiledCSR(A, pattern=True)
    inputs = [features(A.shape[1], 44, 0.2), features(A.shape[1], 44, 0.6), features(A.shape[1], 44, 1)]
    changed = []
    for i in (0, 1, 1, 2, 1, 0):
        y = bs.spmm(ours, to_device(inputs[i]), kernel="nonzero").get()
        np.testing.assert_allclose(y, bs.spmm(host, inputs[i]), rtol=1e-4, atol=1e-4)
        changed.append(int(found[0][1]))
    assert changed == [1, 1, 0, 0, 0, 1]


def test_what_it_refuses() -> None:
    A = bs.TCTiledCSR(graphs()["hubs"], pattern=True).to_device("cuda")
    weighted = bs.TCTiledCSR(graphs()["hubs"]).to_device("cuda")
    x = to_device(np.zeros((A.shape[1], 20), np.float32))
    for array, features_, how, why in (
        (A, x[:, :16], {}, "at least 17 columns, not 16"),
        (A, x.astype(np.float64), {}, "float32, not float64"),
        (A, x, {"reduce": "max"}, "'sum' and 'mean', not 'max'"),
        (weighted, x, {}, "without values"),
    ):
        with pytest.raises(bs.KernelError, match=why):
            bs.spmm(array, features_, kernel="nonzero", **how)
    plan = bs.plan_spmm(A, 20, kernel="nonzero")
    assert "kernel nonzero" in plan.explain()
    assert plan.nbytes - bs.plan_spmm(A, 20, kernel="csr").nbytes >= A.nnz / 8


@pytest.mark.torch
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("layer", ["gcn", "sage", "sums"])
def test_gradients_leave_out_nodes_without_a_label(
    layer: str, captured: bool, found: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient by 30 classes comes from a third of the nodes; those of float64 on the CPU are the same."""
    import torch

    import bitsparse.torch as bst

    monkeypatch.setattr(choice, "nonzero_pays", lambda *_: True)
    random, nodes = torch.Generator().manual_seed(0), 1500
    edges = torch.randint(nodes, (2, 20_000), generator=random)
    edges[1, :4000], edges[0, 4000:7000] = 7, 11
    edges = edges.unique(dim=1)
    x, target = torch.randn(nodes, 30, generator=random), torch.randint(30, (nodes,), generator=random)
    labelled = torch.rand(nodes, generator=random) < 1 / 3
    torch.manual_seed(1)
    net = {"gcn": bst.GCNConv, "sage": bst.SAGEConv}.get(layer, torch.nn.Linear)(30, 30)

    def step(device: str, dtype: Any) -> Any:
        there = type(net)(30, 30).to(device, dtype)
        there.load_state_dict(net.state_dict())
        at, graph = x.to(device, dtype).requires_grad_(), bst.Graph(edges.to(device), nodes)
        wanted, mask = target.to(device), labelled.to(device)

        def run() -> None:
            there.zero_grad(set_to_none=True)
            at.grad = None
            scores = bst.spmm(graph, there(at), reduce="mean") if layer == "sums" else there(at, graph)
            losses = torch.nn.functional.cross_entropy(scores, wanted, reduction="none")
            (losses * mask).sum().backward()

        run()
        if captured and device == "cuda":
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                run()
            torch.cuda.current_stream().wait_stream(stream)
            graph_of_step = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph_of_step):
                run()
            for _ in range(2):
                graph_of_step.replay()
        return [at.grad.cpu(), *(part.grad.cpu() for part in there.parameters())]

    exact, mine = step("cpu", torch.float64), step("cuda", torch.float32)
    assert found[0][0] == 1
    for one, other in zip(mine, exact, strict=True):
        assert (one.double() - other).abs().max() <= 1e-5 * other.abs().max()


def test_patterns_with_the_same_rows_and_other_columns() -> None:
    """They share a schedule's workspaces, but neither the edges that are fetched nor the factors of edges."""
    A = graphs()["hubs"]
    reverse = (A.shape[1] - 1 - A.indices).astype(np.int32)
    schedule = Schedule(to_device(A.indptr.astype(np.int32)), to_device(A.indices.astype(np.int32)), A.shape, A.nnz)
    schedules = schedule, schedule.along(to_device(reverse))
    x, scale = features(A.shape[1], 20, 0.3), np.linspace(1, 2, A.shape[1], dtype=np.float32)
    there, factors, alive = to_device(x), to_device(scale), []
    for indices, one in zip((A.indices, reverse), schedules, strict=True):
        exact = sp.csr_array((np.ones(A.nnz), indices, A.indptr), A.shape) @ (x * scale[:, None]).astype(np.float64)
        for how in ({"nonzero": True}, {"lay": False}):
            product = spmm_kernel.Spmm(
                one, columns=20, x_dtype="float32", acc_dtype="float32", col_scale=factors, **how
            )
            alive.append(product)
            np.testing.assert_allclose(product(there).get(), exact, rtol=1e-4, atol=1e-4)


def test_products_share_the_factors_of_edges() -> None:
    A = graphs()["hubs"]
    schedule = Schedule(to_device(A.indptr.astype(np.int32)), to_device(A.indices.astype(np.int32)), A.shape, A.nnz)
    rows, columns = (to_device(np.linspace(1, 2, size, dtype=np.float32)) for size in A.shape)
    kind = {"x_dtype": "float16", "acc_dtype": "float32", "col_scale": columns}
    made = [spmm_kernel.Spmm(schedule, columns=width, row_scale=rows, **kind) for width in (64, 48)]
    assert len(schedule.factors) == 1
    other = spmm_kernel.Spmm(schedule, columns=64, **kind)
    assert len(schedule.factors) == 2
    x = np.ones((A.shape[1], 64), np.float16)
    exact = sp.csr_array((np.ones(A.nnz), A.indices, A.indptr), A.shape) @ columns.get().astype(np.float64)
    np.testing.assert_allclose(other(to_device(x)).get()[:, 0], exact, rtol=1e-3)
    np.testing.assert_allclose(made[0](to_device(x)).get()[:, 0], exact * rows.get(), rtol=1e-3)
    del made, other
    gc.collect()
    assert not schedule.factors


def test_the_gradient_of_a_large_sum_leaves_out_rows_of_zeros(
    found: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    A, rng = graphs()["hubs"], np.random.default_rng(0)
    ours = bs.TCTiledCSR(A, pattern=True).to_device("cuda")
    gradient, x = features(A.shape[0], 41, 0.4), rng.standard_normal((A.shape[1], 41)).astype(np.float32)
    bs.spmm_vjp(ours, to_device(x), to_device(gradient))
    assert not found  # too few edges
    monkeypatch.setattr(choice, "H200", H200._replace(rows=H200.rows._replace(nonzero_bytes=0)))
    for reduce in ("sum", "mean"):
        found.clear()
        made = bs.spmm_vjp(ours, to_device(x), to_device(gradient), reduce=reduce).get()
        assert found[0][0] == 1
        np.testing.assert_allclose(made, bs.spmm_vjp(A != 0, x, gradient, reduce=reduce), rtol=1e-4, atol=1e-4)
    found.clear()
    bs.spmm_vjp(ours, to_device(x), to_device(gradient), precision="tf32")
    assert not found  # other kernels may be quicker


def test_recorded_launches_find_the_edges_in_every_call() -> None:
    """As JAX's calls on a GPU do, whose work memory is zeros at first."""
    A = bs.TCTiledCSR(graphs()["hubs"], pattern=True).to_device("cuda")
    x, out = (StandIn(number, (rows, 41), np.float32) for number, rows in enumerate((A.shape[1], A.shape[0])))
    call = call_of(A, x, None, "sum", "nonzero")
    assert call is not None
    recorded = jit.record(lambda: call((x,), out), 2)
    names = [node.name.decode() for node in recorded.nodes]
    assert [name for name in names if name != "zeros"] == ["lay_rows", "compare_marks", "mark_edges", "spmm_csr"]
    assert names.index("zeros") < names.index("compare_marks")
