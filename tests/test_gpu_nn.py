"""Binary networks on a GPU: agreement with the host, replayed graphs, streams, memory, and the tuner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from binary_networks import expected, gcn, linear, random_graph, sage, saint
from conftest import DATA

import bitsparse as bs
from bitsparse import datasets, nn

pytestmark = pytest.mark.gpu

TRAINED = sorted((Path(__file__).resolve().parent / "data").glob("bigcn-cora-*.npz"))


def cp() -> Any:
    import cupy

    return cupy


def networks(rng: np.random.Generator) -> dict[str, nn.BinaryModel]:
    return {
        "gcn": gcn([33, 40, 7], rng),
        "deep gcn": gcn([33, 20, 31, 5], rng),
        "sage": sage([33, 24, 5], rng),
        "saint": saint([33, 20, 31], 5, rng),
        "dense saint": saint([33, 20, 24], 5, rng, dense=True),
    }


def on_gpu(name: str, graph: Any) -> tuple[Any, Any]:
    """Return the graph in the form that the model takes, for the host and for a GPU."""
    if "gcn" in name:
        made = nn.Graph(graph)
        return made, made
    bits = bs.FRDC(graph)
    return bits, bits.to_device("cuda")


def close(got: Any, want: np.ndarray) -> None:
    assert str(got.device) not in ("cpu", "CPU")
    host = got.get()
    assert host.dtype == np.float32
    np.testing.assert_allclose(host, want, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(want).max())))


def counted(settings: list[nn.Setting]) -> bool:
    """Return whether every sum over neighbours is a sum of integers, so that the order of additions does not matter."""
    return all(each.message == "B" and not each.scaled for each in settings)


def chosen(name: str, model: nn.BinaryModel) -> list[list[nn.Setting]]:
    every = model.candidates()
    step = {"gcn": 2, "deep gcn": 23, "sage": 5, "saint": 7, "dense saint": 4}[name]
    named = [model.with_settings(way).settings for way in ("full", "binary")]
    return [*every[::step], *named, next(each for each in every if counted(each))]


@pytest.mark.parametrize("name", ["gcn", "deep gcn", "sage", "saint", "dense saint"])
def test_mixtures_of_precisions(name: str) -> None:
    rng = np.random.default_rng(4)
    graph, x = random_graph(60, rng), rng.normal(size=(60, 33)).astype(np.float32)
    model, there = networks(rng)[name], cp().asarray(x)
    host, device = on_gpu(name, graph)
    exact = 0
    for settings in chosen(name, model):
        each = model.with_settings(settings)
        plan = each.plan(device, there)
        out = cp().full(plan.shape, np.nan, np.float32)
        assert plan(there, out=out) is out
        close(out, expected(each, graph, x))
        if counted(settings) and name != "dense saint":
            assert np.array_equal(out.get(), each(host, x))
            exact += 1
        again = plan(there)
        assert np.array_equal(again.get(), out.get())
        plan.check()
    assert exact > 0 or name == "dense saint"


def test_replays_read_and_write_where_they_are_told() -> None:
    rng = np.random.default_rng(5)
    plain = random_graph(50, rng)
    graph = nn.Graph(plain)
    first, second = (rng.normal(size=(50, 33)).astype(np.float32) for _ in range(2))
    for way in ("full", "binary"):
        model = gcn([33, 40, 7], rng, way)
        x, other = cp().asarray(first), cp().asarray(second)
        plan = model.plan(graph, x)
        assert plan.device == "cuda:0" and plan.shape == (50, 7)
        outs = [cp().full((50, 7), np.nan, np.float32) for _ in range(2)]
        wants = [expected(model, plain, each) for each in (first, second)]
        for each, want in ((x, wants[0]), (other, wants[1]), (x, wants[0])):
            for out in outs:
                out.fill(np.nan)
                close(plan(each, out=out), want)
        x[...] = other
        outs[0].fill(np.nan)
        close(plan(x, out=outs[0]), wants[1])
        one, two = plan(x), plan(other)
        assert one.data.ptr != two.data.ptr and np.array_equal(one.get(), two.get())
        # More pairs of arrays than the plan keeps.
        for _ in range(6):
            close(plan(cp().asarray(first), out=cp().full((50, 7), np.nan, np.float32)), wants[0])
        sliced = cp().zeros((50, 66), np.float32)
        sliced[:, ::2] = cp().asarray(first)
        close(plan(sliced[:, ::2]), wants[0])
        close(model(graph, cp().asarray(first)), wants[0])


def test_packed_and_half_precision_features() -> None:
    rng = np.random.default_rng(6)
    graph, x = nn.Graph(random_graph(50, rng)), rng.normal(size=(50, 33)).astype(np.float32)
    for way in ("full", "binary"):
        model = gcn([33, 40, 7], rng, way)
        host, packed = model.packed(x), model.packed(cp().asarray(x))
        assert np.array_equal(host.words, packed.words.get()) and np.array_equal(host.scale, packed.scale.get())
        plan = model.plan(graph, packed)
        want = model(graph, x)
        close(plan(packed), want)
        other = model.packed(cp().asarray(2 * x))
        assert not np.array_equal(plan(other).get(), plan(packed).get())
        close(plan(packed.repack(axis=-2)), want)
        half = x.astype(np.float16)
        close(model(graph, cp().asarray(half)), model(graph, half))


def test_standardized_rows() -> None:
    rng = np.random.default_rng(12)
    graph, x = random_graph(40, rng), (rng.normal(size=(40, 33)) + 2).astype(np.float32)
    made, there = sage([33, 20, 5], rng), cp().asarray(x)
    for way in ("full", "binary"):
        model = nn.BinarySAGE(made.layers, way, input_norm="rows")
        plan = model.plan(bs.FRDC(graph).to_device("cuda"), there)
        for _ in range(2):
            close(plan(there, out=cp().full(plan.shape, np.nan, np.float32)), expected(model, graph, x))


def test_a_stream_and_a_graph_of_the_callers() -> None:
    rng = np.random.default_rng(7)
    plain, x = random_graph(50, rng), rng.normal(size=(50, 33)).astype(np.float32)
    graph, model = nn.Graph(plain), gcn([33, 40, 7], rng, "binary")
    want = expected(model, plain, x)
    stream = cp().cuda.Stream(non_blocking=True)
    with stream:
        there = cp().asarray(x)
        plan = model.plan(graph, there)
        out = cp().full((50, 7), np.nan, np.float32)
        plan(there, out=out)
        out.fill(np.nan)
        plan(there, out=out)
        stream.synchronize()
        close(out, want)
        plan._steps(there, out)  # run once before the capture: kernels keep their workspace per stream
        stream.begin_capture()
        plan(there, out=out)
        recorded = stream.end_capture()
        out.fill(np.nan)
        recorded.launch(stream)
        stream.synchronize()
    close(out, want)


def test_calls_take_no_memory() -> None:
    rng = np.random.default_rng(8)
    graph, x = random_graph(50, rng), rng.normal(size=(50, 33)).astype(np.float32)
    pool = cp().get_default_memory_pool()
    for name, model in networks(rng).items():
        operand, there = on_gpu(name, graph)[1], cp().asarray(x)
        plan = model.with_settings("binary").plan(operand, there)
        out = cp().empty(plan.shape, np.float32)
        plan(there, out=out)
        before = pool.used_bytes()
        for _ in range(3):
            plan(there, out=out)
        assert pool.used_bytes() == before


def test_high_level_functions() -> None:
    rng = np.random.default_rng(11)
    graph, x = random_graph(40, rng), rng.normal(size=(40, 33)).astype(np.float32)
    one, two = linear(33, 40, rng), linear(33, 40, rng)
    host, device = bs.FRDC(graph), bs.FRDC(graph).to_device("cuda")
    for variant in ("FBB+BBB", "FBB+BBF", "FBF+FBB"):
        got, want = nn.bmm_bspmm(device, cp().asarray(x), one, variant), nn.bmm_bspmm(host, x, one, variant)
        same = [each.toarray() if variant[-1] == "B" else each for each in (got, want)]
        assert np.array_equal(same[0].get(), same[1])
    for variant in ("FBB+BBF+FFF", "FBB+BBB+BBF", "FBB+BBB+BBB", "FBB+BBF+FFB"):
        got = nn.bmm_bspmm_add(device, cp().asarray(x), one, two, variant)
        want = nn.bmm_bspmm_add(host, x, one, two, variant)
        same = [each.toarray() if variant[-1] == "B" else each for each in (got, want)]
        assert np.array_equal(same[0].get(), same[1])


def test_tuning() -> None:
    rng = np.random.default_rng(9)
    graph, x = nn.Graph(random_graph(60, rng)), rng.normal(size=(60, 33)).astype(np.float32)
    model, there = gcn([33, 40, 4], rng), cp().asarray(x)
    labels = model(graph, x).argmax(axis=1)
    tuned = bs.tune(model, graph, there, labels, labels >= 0, candidates=["full", "binary"], cache=False)
    assert tuned.device == "cuda:0" and tuned.reference.accuracy == 1.0
    assert all(each.milliseconds > 0 for each in tuned.candidates)
    close(tuned.plan(there), tuned.model(graph, x))


def test_what_is_refused() -> None:
    rng = np.random.default_rng(10)
    graph, x = nn.Graph(random_graph(40, rng)), rng.normal(size=(40, 33)).astype(np.float32)
    model, there = gcn([33, 40, 7], rng), cp().asarray(x)
    plan = model.plan(graph, there)
    with pytest.raises(bs.DeviceError, match="cpu"):
        plan(x)
    with pytest.raises(bs.DeviceError, match="cpu"):
        plan(there, out=np.zeros((40, 7), np.float32))
    with pytest.raises(bs.DTypeError, match="x holds float16, but the plan is for float32"):
        plan(there.astype(np.float16))
    there[3, 5] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model(graph, there)


def test_bigcn_on_cora() -> None:
    model = nn.load_binary(TRAINED[0])
    if DATA is None or not (DATA / "cora.npz").is_file():
        data, x = None, np.random.default_rng(0).random((300, 1433)).astype(np.float32)
        graph = nn.Graph(random_graph(300, np.random.default_rng(1)))
    else:
        data = datasets.read(DATA / "cora.npz")
        graph, x = nn.Graph(data.adjacency), data.x.toarray().astype(np.float32)
    for way, accuracy in (("full", 80.8), ("binary", 82.4)):
        each = model.with_settings(way)
        got = each(graph, cp().asarray(x)).get()
        assert (got.argmax(axis=1) == each(graph, x).argmax(axis=1)).mean() > 0.998
        if data is not None:
            right = (got.argmax(axis=1) == data.targets)[data.test_mask]
            assert abs(100 * right.mean() - accuracy) < 0.21
