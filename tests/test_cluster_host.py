"""On a CPU, networks over packets in pieces give the bits of the same network step by step, and refuse damaged packets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bitsparse import nn
from bitsparse._ext import lowbit as lowbit_ext
from bitsparse.backends import host
from bitsparse.backends.host import packets as host_packets
from bitsparse.backends.host import settings
from bitsparse.backends.host.matmul import bytes as steps
from bitsparse.backends.host.matmul import matmul as host_matmul
from bitsparse.backends.params import EpilogueParams
from bitsparse.nn.cluster import host as cluster_host
from bitsparse.nn.lowbit.host import layers_in_bytes

NODES = 700
LEVELS = ("scalar", "avx2", "avxvnni", "avx512", "amx")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param in host.simd_levels():
        host.set_simd(request.param)
    yield request.param
    host.set_simd(None)


@cache
def graph() -> tuple[Any, np.ndarray]:
    """A directed graph with self-loops, isolated nodes, a hub; labels with empty parts, one-node parts and a part of over a chunk."""
    rng = np.random.default_rng(3)
    dense = rng.random((NODES, NODES)) < 0.03
    dense[5], dense[:, 9] = True, True
    dense[[2, 44]] = False
    dense[:, [2, 44, 45]] = False
    labels = rng.integers(0, 12, NODES) * 3
    labels[:330] = 7
    labels[[2, 400]] = 8, 9
    return sparse.csr_array(dense), labels


@cache
def network(kind: Any, widths: tuple[int, ...], bits: int) -> tuple[Any, np.ndarray]:
    """A network, and features for it."""
    x = np.random.default_rng(bits).standard_normal((NODES, widths[0])).astype(np.float32)
    return nn.quantize_network(nn.random_network(kind, list(widths), seed=1), graph()[0], x, bits), x


class Stepwise:
    """A network of a class that the engine does not know, so that it runs step by step."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def stepwise(a: Any, model: Any, x: np.ndarray, **about: Any) -> np.ndarray:
    return np.asarray(nn.ClusterRunner(a, Stepwise(model), **about).run(x))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize(
    ("kind", "widths", "bits"),
    [
        ("gcn", [29, 16, 16, 5], 1), ("gcn", [100, 16, 16, 12], 2), ("gcn", [65, 33, 1], 4), ("gcn", [1, 1, 121], 8),
        ("gin", [29, 64, 64, 2], 1), ("gin", [50, 64, 40], 3), ("gin", [90, 64, 17, 3], 4), ("gin", [130, 140, 16, 7], 8),
    ],
)  # fmt: skip
def test_pieces_give_the_bits_of_the_steps(kind: Any, widths: list[int], bits: int, monkeypatch: Any) -> None:
    a, labels = graph()
    model, x = network(kind, tuple(widths), bits)
    for between in (False, True):
        about: Any = {"labels": labels, "parts_per_batch": 3, "between": between}
        expected = stepwise(a, model, x, group_nodes=200, **about)
        for group_nodes, threads in ((1, 1), (10_000, 3)):
            runner = nn.ClusterRunner(a, model, group_nodes=group_nodes, **about)
            assert runner._layers is not None
            packed, out = runner.pack(x), np.full((NODES, widths[-1]), np.nan, np.float32)
            monkeypatch.setattr(settings, "work_per_thread", 0)
            monkeypatch.setattr(settings, "_threads", threads)
            assert runner.run_packed(packed, out) is out
            assert out.tobytes() == expected.tobytes()
            assert runner.report.forms == {"csr": len(packed.packets)}
            monkeypatch.undo()


@cache
def activated(kind: Any, activation: Any) -> tuple[Any, np.ndarray]:
    """A network with the given activation, and features for it."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((NODES, 9)).astype(np.float32)
    shapes = ((9, 16), (16, 16), (16, 3))
    layers = [nn.Layer([nn.Dense(rng.standard_normal(shape), activation=activation)]) for shape in shapes]
    return nn.quantize_network(nn.Network(kind, layers), graph()[0], x, 4), x


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("activation", ["tanh", "leaky_relu", "relu"])
def test_activations(activation: str) -> None:
    a, labels = graph()
    for kind in ("gcn", "gin"):
        model, x = activated(kind, activation)
        assert layers_in_bytes(model) is not None
        found = nn.ClusterRunner(a, model, labels=labels, parts_per_batch=2).run(x)
        assert found.tobytes() == stepwise(a, model, x, labels=labels, parts_per_batch=2).tobytes()


@pytest.mark.usefixtures("level")
def test_long_rows_and_wide_gaps() -> None:
    nodes = 5000
    rng = np.random.default_rng(2)
    rows, columns = rng.integers(0, nodes, (2, 300))
    hub = np.arange(0, nodes, 11)
    ends = np.append(rows, hub * 0 + 17), np.append(columns, hub)
    a = sparse.csr_array((np.ones(300 + hub.size), ends), shape=(nodes, nodes))
    x = rng.standard_normal((nodes, 20)).astype(np.float32)
    kind: Any
    for kind in ("gcn", "gin"):
        model = nn.quantize_network(nn.random_network(kind, [20, 16, 4], seed=1), a, x, 8)
        runner = nn.ClusterRunner(a, model, labels=np.zeros(nodes, int))
        assert runner.run(x).tobytes() == stepwise(a, model, x, labels=np.zeros(nodes, int)).tobytes()


def test_other_networks_and_large_parts_go_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    a, labels = graph()
    x = np.random.default_rng(0).standard_normal((NODES, 6)).astype(np.float32)
    kind: Any
    for kind, bits in (("sage", 4), ("gcn", 9)):
        model = nn.quantize_network(nn.random_network(kind, [6, 4, 2], seed=1), a, x, bits)
        assert nn.ClusterRunner(a, model, labels=labels)._layers is None
    model = nn.quantize_network(nn.random_network("gcn", [6, 4, 2], seed=1), a, x, 4)
    expected = nn.ClusterRunner(a, model, labels=labels).run(x)
    assert nn.ClusterRunner(a, model, labels=labels, form="tiled")._layers is None
    monkeypatch.setattr(cluster_host, "_PIECE_NODES", 300)
    runner = nn.ClusterRunner(a, model, labels=labels)
    assert runner._layers is None and np.array_equal(runner.run(x), expected)


# -- steps ------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("bits", range(1, 9))
def test_values_about_a_half_become_the_codes_of_the_epilogue(bits: int) -> None:
    """Values near a half must get the epilogue's codes: the side is decided by v / high * high, with both steps rounded."""
    high = 2**bits - 1
    around = [np.float32(0.5)]
    for way in (0.0, 1.0):
        for _ in range(3):
            around.append(np.nextafter(around[-1], np.float32(way)))
        around.append(np.float32(0.5))
    scale = np.array([*around, 1 / 3, 0.1, 1e-30, 1e30, -1.0, 0.25], np.float32)
    x = np.arange(min(2 * high + 6, 256))
    codes = np.zeros((x.size, 16), np.uint8)
    codes[:, 0] = x
    weights = np.array([[1] * scale.size, [0] * scale.size], np.int8) * 127
    for factor, bias in ((1 / 127, 0.0), (1 / 127, 0.5), (2 / 127, 0.25), (1.0, 1e-7)):
        params = EpilogueParams(
            col_scale=scale * np.float32(factor), bias=np.full(scale.size, bias, np.float32), out="bits", bits=bits,
            qmax=high, offset=np.float32(0), divisor=np.float32(high), multiplier=float(high), rounding="nearest",
        )  # fmt: skip
        wanted = host_matmul.epilogue((codes[:, :2].astype(np.int32) @ weights.astype(np.int32)), params)
        planes = (wanted[..., None] >> np.arange(32, dtype=np.uint32)) & 1
        values = (planes.reshape(x.size, bits, -1)[:, :, : scale.size] << np.arange(bits)[:, None]).sum(1)
        out = np.full((x.size, steps.row_bytes(scale.size)), 0xAA, np.uint8)
        steps.product(codes, steps.panels_of(weights), 2, scale.size, params, out)
        np.testing.assert_array_equal(out[:, : scale.size], values)
        assert not out[:, scale.size :].any()


@pytest.mark.usefixtures("level")
def test_infinity_nan_and_minus_zero() -> None:
    codes, panels = np.zeros((3, 16), np.uint8), steps.panels_of(np.array([[1, -1]], np.int8))
    codes[:, 0] = 0, 200, 255
    big = np.float32(3e38)
    for activation in (None, "relu"):
        chain = EpilogueParams(col_scale=np.full(2, big), activation=activation)
        out = np.full((3, 2), np.nan, np.float32)
        steps.product(codes, panels, 1, 2, chain, out)
        acc = codes[:, :1].astype(np.int32) * np.array([[1, -1]], np.int32)
        assert out.tobytes() == host_matmul.epilogue(acc, chain).tobytes()
        chain = EpilogueParams(col_scale=np.array([-1, 1], np.float32), activation=activation)  # gives -0
        steps.product(codes, panels, 1, 2, chain, out)
        assert out.tobytes() == host_matmul.epilogue(acc, chain).tobytes()
    affine = EpilogueParams(
        col_scale=np.full(2, big), out="bits", bits=4, qmax=15, offset=np.float32(0), divisor=np.float32(15),
        multiplier=15.0, rounding="nearest",
    )  # fmt: skip
    packed = np.zeros((3, 16), np.uint8)
    steps.product(codes, panels, 1, 2, affine, packed)
    assert packed[:, :2].tolist() == [[0, 0], [15, 0], [15, 0]]
    for plain in (affine, affine._replace(divisor=np.float32(1), multiplier=1.0)):
        with pytest.raises(ValueError, match="NaN"):  # infinity - infinity
            steps.product(codes, panels, 1, 2, plain._replace(bias=np.full(2, -np.inf, np.float32)), packed)


# -- arguments and packets that are wrong -----------------------------------------------------------------------------
def prepared(kind: Any = "gcn") -> tuple[Any, Any, Any]:
    a, labels = graph()
    x = np.random.default_rng(0).standard_normal((NODES, 10)).astype(np.float32)
    model = nn.quantize_network(nn.random_network(kind, [10, 16, 3], seed=1), a, x, 4)
    runner = nn.ClusterRunner(a, model, labels=labels, parts_per_batch=4)
    return runner, runner.pack(x).packets[0], model


def test_wrong_arguments_are_refused() -> None:
    runner, packet, model = prepared()
    order, out, layers = runner.packets.order, np.zeros((NODES, 3), np.float32), layers_in_bytes(model)
    data, form = packet.buffer[: packet.nbytes], (10, 4, False, 5)

    def run(data: Any = data, form: Any = form, layers: Any = layers, places: Any = order, out: Any = out) -> None:
        steps.network(data, packet.group.entries, "gcn", form, layers, places, out)

    run()
    assert out.any()
    far = order.copy()
    far[3] = NODES
    for wrong in (
        {"places": order[1:]}, {"places": far}, {"places": -order}, {"out": out[:-1]}, {"data": data[:-1]}, {"data": data[:20]},
        {"form": (10, 4, False, 4)}, {"form": (10, 4, True, 5)}, {"form": (10, 9, False, 12)}, {"form": (0, 4, False, 5)},
        {"form": (30, 4, False, 15)}, {"layers": layers[1:]}, {"layers": ()},
        {"layers": ((None, *layers[0][1:]), *layers[1:])}, {"layers": ((*layers[0][:3], (4, 0, 0)), *layers[1:])},
        {"layers": ((*layers[0][:3], (0, 2, 0)), *layers[1:])},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            run(**wrong)
    row = steps.layer(None, 3, EpilogueParams(row_scale=np.ones(2, np.float32)), (None, None, None))
    with pytest.raises(ValueError, match="the same for all rows"):
        run(layers=(*layers[:-1], (row[0], 3, row[2], row[3])))
    with pytest.raises(ValueError, match="the normalisation"):
        lowbit_ext.network((0, 1), data, 3, form, layers, order, out.reshape(-1).view(np.uint8))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_damaged_packets_are_refused_or_read_within_their_bounds(kind: Any) -> None:
    runner, packet, model = prepared(kind)
    order, out, layers = runner.packets.order, np.zeros((NODES, 3), np.float32), layers_in_bytes(model)
    assert layers is not None
    rng, refused, form = np.random.default_rng(7), 0, runner.feature_form
    about = (form.columns, form.bits, form.layout == "planes", form.used)
    for trial in range(300):
        data = packet.buffer[: packet.nbytes].copy()
        near = 32 if trial < 60 else 120 if trial < 150 else packet.features_at
        for at in rng.integers(0, near, 1 + trial % 4):
            data[at] ^= 1 << rng.integers(0, 8)
        for read in (
            lambda data=data: steps.network(data, 1, model.normalisation, about, layers, order, out),
            lambda data=data: host_packets.expand(data, NODES, packet.group.entries),
        ):
            try:
                read()
            except ValueError:
                refused += 1
    assert refused > 100
