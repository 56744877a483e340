"""Calls over a graph that a traced function closes over, with launches recorded ahead: what is traced, tested without a GPU."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest
from scipy import sparse

pytestmark = pytest.mark.jax
jax = pytest.importorskip("jax")
jnp = jax.numpy
bsj: Any = pytest.importorskip("bitsparse.jax")

from bitsparse import jit  # noqa: E402
from bitsparse.interop import NotRecordable, StandIn  # noqa: E402
from bitsparse.jax import launches, ways  # noqa: E402
from bitsparse.jax.launches import Recording, digest  # noqa: E402

SPACES = [4096, 12]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Treat graphs as if they were on a GPU, where every call is recorded."""
    kept: list[Any] = []
    monkeypatch.setattr(launches, "spaces_of", lambda text, known: SPACES)
    monkeypatch.setattr(launches, "keep", lambda *given: kept.append(given))
    return kept


def graph() -> Any:
    rng = np.random.default_rng(0)
    A = sparse.csr_array((rng.random((12, 12)) < 0.3).astype(np.float32))
    return bsj.graph(A, self_loops=True), A


def lowered(function: Any, *arrays: Any, platform: str = "cuda") -> str:
    return str(jax.jit(function).trace(*arrays).lower(lowering_platforms=(platform,)).as_text())


def calls_in(text: str) -> list[str]:
    return re.findall(r"custom_call @(\w+)", text)


def test_a_step_is_made_of_recorded_calls_on_a_gpu_and_of_others_elsewhere(recorded: list[Any]) -> None:
    g, _ = graph()
    x, w = jnp.ones((12, 4)), jnp.ones((4, 4))

    def loss(w: Any, x: Any) -> Any:
        return (bsj.spmm(g, jnp.tanh(bsj.spmm(g, x @ w, norm="gcn")), norm="gcn") ** 2).sum()

    step = jax.value_and_grad(loss)
    text = lowered(step, w, x)
    assert set(calls_in(text)) == {"bitsparse_recorded"}
    assert len(calls_in(text)) == 4
    assert text.count("tensor<4096xui8>, tensor<12xui8>") >= 4  # XLA provides the workspace
    assert set(calls_in(lowered(step, w, x, platform="cpu"))) == {"bitsparse"}
    assert {len(key) for _, key, _ in recorded} == {17}
    for text, key, known in recorded:
        assert key == digest(text, 0)
        assert '"spaces": [4096, 12]' in text
        assert known is ways.graph_called(text.known)


def test_transformations_of_recorded_calls_give_what_others_give(recorded: list[Any]) -> None:
    g, A = graph()
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 12, 4)), jnp.float32)
    one = lambda x: bsj.spmm(g, x)  # noqa: E731
    wanted = np.stack([A @ np.asarray(part) + np.asarray(part) * (A.diagonal() == 0)[:, None] for part in x])
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(x), wanted, rtol=1e-5, atol=1e-6)
    total = jax.jit(jax.grad(lambda x: (jax.checkpoint(one)(x) ** 2).sum()))
    np.testing.assert_allclose(total(x[0]), jax.grad(lambda x: (one(x) ** 2).sum())(x[0]), rtol=1e-5, atol=1e-6)
    scanned = jax.jit(lambda x: jax.lax.scan(lambda x, _: (jnp.tanh(one(x)), None), x, None, length=3)[0])
    unrolled = x[0]
    for _ in range(3):
        unrolled = jnp.tanh(one(unrolled))
    np.testing.assert_allclose(scanned(x[0]), unrolled, rtol=1e-5, atol=1e-6)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec(None, "d")
    sharded = jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_allclose(jax.jit(sharded)(x[0]), wanted[0], rtol=1e-5, atol=1e-6)
    assert recorded


def test_a_graph_of_the_host_is_recorded_nowhere() -> None:
    g, _ = graph()
    assert set(calls_in(lowered(lambda x: bsj.spmm(g, x), jnp.ones((12, 4))))) == {"bitsparse"}


def test_launches_live_as_long_as_their_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    made = jit.Recorded([jit.Node(b"k", 1, (1, 1, 1), 32, 0, b"", bytes(16), ((0, 0, 0), (8, 1, 0)))], [256])
    monkeypatch.setattr(launches, "_record_on", lambda task, call: Recording(made, ()))
    known = ways.Known({"indptr": np.zeros(2, np.int32)})
    known.device = "cuda:0"
    ways._KNOWN["a graph"] = known
    sides = {"shape": [1, 1], "nnz": 0, "known": "a graph", "forward": [None] * 5, "backward": [None] * 5}
    told = (
        '{"function": "spmm", "ways": %s, "arrays": [], "operands": [[[4], "float32"]], "results": [], "options": {}%s}'
    )
    import json

    text = told % (json.dumps(sides), "")
    assert launches.spaces_of(text, known) == [256]
    for spaces, fits in (([255], False), ([256, 1], False), ([256], True), ([300], True)):
        ahead = told % (json.dumps(sides), f', "spaces": {json.dumps(spaces)}')
        launches.keep(ahead, digest(ahead, 0), known)
        assert ((digest(ahead, 0).encode(), 0) in known.kept) == fits
    del known
    gc.collect()
    with pytest.raises(RuntimeError, match="is gone"):
        ways.graph_called("a graph")


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: 2.0 * x,
        lambda x: x[0],
        lambda x: np.asarray(x),
        lambda x: np.add(x, x),
        lambda x: np.concatenate([x, x]),
        lambda x: list(x),
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.float32),
        lambda x: x.reshape(5),
        lambda x: x.fill(0),
        lambda x: x.__setitem__(0, 1),
        lambda x: x.__cuda_array_interface__,
        lambda x: x.strides,
        lambda x: x == 1,
        bool,
        float,
        lambda x: StandIn(128, (1,), np.float32),
    ],
)
def test_a_stand_in_is_read_by_nothing(use: Any) -> None:
    x = StandIn(1, (3, 2), np.float32)
    with pytest.raises(NotRecordable):
        use(x)
    assert x.astype(np.float32, copy=False) is x
    assert (x.ndim, x.size, x.nbytes, len(x), x.flags.c_contiguous) == (2, 6, 24, 3, True)
    assert StandIn(5, (0, 2), np.float32).data.ptr == 0
