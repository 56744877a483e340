"""Low-bit graph networks on a GPU: the host's logits bit for bit, plans that read current operands, streams, memory, CUDA graphs."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from lowbit_networks import KINDS, logits, network, operand, random_graph

import bitsparse as bs
from bitsparse import backends, nn
from bitsparse.backends.params import OperandParams

pytestmark = pytest.mark.gpu


def cp() -> Any:
    import cupy

    return cupy


class OnGpu:
    """A graph as dense bits on a GPU, in the form over which networks aggregate."""

    def __init__(self, graph: Any, model: Any) -> None:
        host = operand(graph, model, "dense")
        self.nodes, self.normalisation, self.self_loops = host.nodes, host.normalisation, host.self_loops
        self.adjacency = host.packed().to_device("cuda")
        self.device = self.adjacency.device
        scales = (host.row_scale, host.col_scale)
        self.row_scale, self.col_scale = (None if part is None else cp().asarray(part) for part in scales)
        self.degrees = host.degrees * (1 if host.row_scale is None else host.row_scale.astype(np.float64))

    def message_form(self, bits: int) -> dict[str, Any]:
        return {"axis": -2, "layout": "planes"}

    def aggregate(
        self, columns: int, bits: int, *, encoding: str = "unsigned", epilogue: Any, scaled: bool = True
    ) -> Any:
        """The product of dense bits; the term that the messages' offset adds is computed only once."""
        shape, kinds = (self.nodes, columns), {"a_encoding": "unsigned", "b_encoding": encoding, "kernel": "planes"}
        run = backends.family(self.device, "matmul.matmul").prepare(
            self.adjacency.words,
            k=self.nodes,
            n=columns,
            a_bits=1,
            b_bits=bits,
            b_batch=(),
            acc_dtype=np.int32,
            bitmap=None,
            epilogue=epilogue.params("aggregate", shape),
            **kinds,
        )
        kept: list[OperandParams] = []

        def step(x: Any, out: Any = None) -> Any:
            if not kept:
                term = None
                if x.offset is not None:
                    scaled = x.offset.get().ravel().astype(np.float64) * epilogue.col_scale.astype(np.float64)
                    term = tuple(cp().asarray(part.astype(np.float32)) for part in (self.degrees, scaled))
                kept.append(OperandParams(row_scale=self.row_scale, row_term=term))
            run(x.words, out.words if isinstance(out, bs.BitTensor) else out, kept[0])
            return out

        return step


def setting(kind: str, seed: int = 0, n: int = 70, widths: Any = (33, 16, 5), **how: Any) -> Any:
    rng = np.random.default_rng(seed)
    return (
        random_graph(n, rng),
        network(kind, list(widths), rng, **how),
        rng.normal(size=(n, widths[0])).astype(np.float32),
    )


def test_sparse_codes_are_refused_by_name() -> None:
    graph, full, x = setting("gcn")
    x = np.where(x > 1.2, x, np.float32(0))
    model = nn.quantize_network(full, graph, x, 8)
    codes = model.quantize(x, layout="csr")
    with pytest.raises(bs.DeviceError, match="sparse codes are multiplied on a CPU alone"):
        model.plan(OnGpu(graph, model), codes.to_device("cuda:0"))


@pytest.mark.parametrize("kernel", ["planes", "digits"])
@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_hosts_logits(kind: str, bits: int, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitsparse.backends.cuda.matmul.matmul.CHOICES", (kernel,))
    graph, full, x = setting(kind)
    model = nn.quantize_network(full, graph, x, bits)
    codes = model.quantize(cp().asarray(x))
    assert np.array_equal(cp().asnumpy(codes.words), model.quantize(x).words)
    plan = model.plan(OnGpu(graph, model), codes)
    out = cp().full(plan.shape, np.nan, np.float32)
    want = logits(model, graph, x)
    for _ in range(2):
        out.fill(np.nan)
        assert plan(out) is out
        assert np.array_equal(out.get(), want)
    other = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
    codes.words[...] = model.quantize(cp().asarray(other)).words
    assert np.array_equal(plan().get(), logits(model, graph, other))


@pytest.mark.parametrize("how", [{"perceptron": True}, {"eps": 0.5}, {"activation": "tanh", "batch_norm": True}])
def test_kinds_of_gin(how: dict[str, Any]) -> None:
    graph, full, x = setting("gin", 2, **how)
    model = nn.quantize_network(full, graph, x, [3, 1])
    got = model(OnGpu(graph, model), model.quantize(x).to_device("cuda"))
    assert np.array_equal(got.get(), logits(model, graph, x))


@pytest.mark.parametrize("kind", KINDS)
def test_no_memory_and_no_waiting_in_a_captured_graph(kind: str) -> None:
    graph, full, x = setting(kind, 3)
    model = nn.quantize_network(full, graph, x, 3)
    stream = cp().cuda.Stream(non_blocking=True)
    pool = cp().get_default_memory_pool()
    with stream:
        codes = model.quantize(x).to_device("cuda")
        plan = model.plan(OnGpu(graph, model), codes)
        out = cp().empty(plan.shape, np.float32)
        plan(out)
        gc.collect()
        before = pool.used_bytes()
        plan(out)
        assert pool.used_bytes() == before
        stream.synchronize()
        stream.begin_capture()
        plan(out)
        recorded = stream.end_capture()
        other = np.random.default_rng(4).normal(size=x.shape).astype(np.float32)
        codes.words[...] = model.quantize(other).to_device("cuda").words
        out.fill(np.nan)
        recorded.launch(stream)
        stream.synchronize()
    assert np.array_equal(out.get(), logits(model, graph, other))


def test_nothing_at_all() -> None:
    graph, full, x = setting("sage", 5)
    model = nn.quantize_network(full, graph, x, 3)
    empty = graph[:0, :0]
    assert model(OnGpu(empty, model), model.quantize(cp().asarray(x[:0]))).shape == (0, 5)


def test_what_is_refused() -> None:
    graph, full, x = setting("gin", 6)
    model = nn.quantize_network(full, graph, x, 3)
    there = OnGpu(graph, model)
    with pytest.raises(bs.DeviceError, match="cpu"):
        model.plan(there, model.quantize(x))
    plan = model.plan(there, model.quantize(cp().asarray(x)))
    with pytest.raises(bs.DeviceError, match="cpu"):
        plan(np.empty(plan.shape, np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_one_bit_in_either_layout(kind: str) -> None:
    graph, full, x = setting(kind, 7)
    model = nn.quantize_network(full, graph, x, 1)
    rows = model.quantize(cp().asarray(x), layout="rows")
    assert rows.layout == "rows"
    assert np.array_equal(model(OnGpu(graph, model), rows).get(), logits(model, graph, x))
    with pytest.raises(ValueError, match="the codes have a scale"):
        model(OnGpu(graph, model), rows.with_affine(scale=2.0))
