"""Inputs of low-bit networks: codes on their own grid in either layout, graphs without weights, features of any library."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import bitsparse as bs
from bitsparse import nn
from bitsparse.datasets import GraphData
from bitsparse.graph.adjacency import refuse_weights

KINDS: Any = ("gcn", "sage", "gin")
FORMS: Any = ("csr", "dense", "frdc", "tiled")
NODES = 30


@cache
def case(kind: Any, bits: int) -> tuple[Any, Any, np.ndarray]:
    """Return a graph, a low-bit network, and features."""
    rng = np.random.default_rng(bits)
    a, x = sparse.csr_array(rng.random((NODES, NODES)) < 0.2), rng.normal(size=(NODES, 10)).astype(np.float32)
    return a, nn.quantize_network(nn.random_network(kind, [10, 6, 3], seed=1), a, x, bits), x


def operand(a: Any, model: Any, form: Any = "csr") -> nn.Graph:
    how = {"normalisation": model.normalisation, "self_loops": model.self_loops}
    return nn.Graph.from_csr(a.indptr, a.indices, form=form, **how)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_in_either_layout_give_the_same_logits(kind: Any, bits: int) -> None:
    a, model, x = case(kind, bits)
    expected = model(operand(a, model), model.quantize(x))
    for form in FORMS:
        for layout in ("planes", "rows"):
            codes = model.quantize(x, layout=layout)
            plan = model.plan(operand(a, model, form), codes)
            assert np.array_equal(plan(), expected), (form, layout)
            codes.words[...] = model.quantize(-x, layout=layout).words  # a plan must read the changed codes
            assert np.array_equal(plan(), model(operand(a, model), model.quantize(-x))), (form, layout)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([1, 4, 8]),
    st.sampled_from(["scale", "offset"]),
    st.sampled_from(["scalar", "rows", "columns"]),
    st.floats(-4, 4, width=32),
)
def test_codes_on_another_grid_are_refused(kind: Any, bits: int, name: str, along: str, value: float) -> None:
    a, model, x = case(kind, bits)
    shape = {"scalar": (), "rows": (NODES, 1), "columns": (1, 10)}[along]
    codes = model.quantize(x).with_affine(**{name: np.full(shape, abs(value) + 0.5, np.float32)})
    with pytest.raises(
        ValueError, match=rf"plan: the codes have a {name} of their own, .* pass network.quantize\(x.dequantize\(\)\)"
    ):
        model(operand(a, model), codes)
    assert np.array_equal(model(operand(a, model), codes.with_affine()), model(operand(a, model), model.quantize(x)))


class Scaled:
    """A caller's model whose codes have a scale."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def quantize(self, rows: Any) -> bs.BitTensor:
        codes: bs.BitTensor = self._model.quantize(rows).with_affine(scale=2.0)
        return codes


def test_packets_carry_no_scale() -> None:
    a, model, x = case("gcn", 4)
    with pytest.raises(ValueError, match="codes with a scale or an offset, which packets do not carry"):
        nn.ClusterRunner(a, Scaled(model), labels=np.zeros(NODES, int)).run(x)


def test_features_of_a_runner_are_values_and_not_their_codes() -> None:
    a, model, x = case("gcn", 4)
    runner = nn.ClusterRunner(a, model, labels=np.zeros(NODES, int))
    codes = bs.quantize(x, 8)
    for given_as in (codes, codes.with_affine(scale=codes.scale), codes.with_affine(offset=codes.offset)):
        for run in (runner.run, runner.pack):
            with pytest.raises(bs.DTypeError, match=r"codes with a scale or an offset, .* pass x.dequantize\(\)"):
                run(given_as)
    assert np.array_equal(runner.run(codes.with_affine()), runner.run(codes.toarray()))
    assert np.array_equal(runner.run(codes.dequantize()), runner.run(np.asarray(codes.dequantize(), np.float64)))


def test_codes_where_values_are_needed_are_refused_by_name() -> None:
    _, model, x = case("gcn", 4)
    for codes in (bs.quantize(x, 8), model.quantize(x)):
        with pytest.raises(bs.DTypeError, match=r"LowBitNetwork.quantize: .* pass rows.dequantize\(\)"):
            model.quantize(codes)
        with pytest.raises(bs.DTypeError, match=r"Features: x is a BitTensor, .* pass x.dequantize\(\)"):
            nn.Features(codes)


# -- edge weights -----------------------------------------------------------------------------------------------------
def weighted_forms(weight: float) -> dict[str, Any]:
    """Return one weighted graph in every form that a ClusterRunner takes."""
    a = case("gcn", 4)[0].astype(np.float32)
    a.data[3] = weight
    coo = a.tocoo()
    pattern = {"indptr": a.indptr, "indices": a.indices}
    return {
        "csr": a,
        "csc": a.tocsc(),
        "coo": coo,
        "lil": a.tolil(),
        "dok": a.todok(),
        "dense": a.toarray(),
        "coordinates": (coo.data, coo.coords),
        "TCTiledCSR": bs.TCTiledCSR(a),
        "GraphData": GraphData(**pattern, weights=a.data),
    }


@pytest.mark.parametrize("form", weighted_forms(0.5))
def test_edge_weights_are_refused(form: str) -> None:
    _, model, x = case("gcn", 4)
    graph = weighted_forms(0.5)[form]
    with pytest.raises(
        ValueError, match=r"ClusterRunner: the graph has edge weights \(0\.\d+ to 1\.0\), .* set them to 1"
    ):
        nn.ClusterRunner(graph, model, labels=np.zeros(NODES, int))
    if sparse.issparse(graph) or form == "GraphData":
        full = nn.random_network("gcn", [10, 6, 3])
        with pytest.raises(ValueError, match="quantize_network: the graph has edge weights"):
            nn.quantize_network(full, graph, x, 4)
        with pytest.raises(ValueError, match="tune_bits: the graph has edge weights"):
            nn.tune_bits(full, graph, x, np.zeros(NODES, int), np.ones(NODES, bool))
    ones = weighted_forms(1.0)[form]
    assert nn.ClusterRunner(ones, model, labels=np.zeros(NODES, int)).run(x).shape == (NODES, 3)


@pytest.mark.parametrize("name", ["row_scale", "col_scale"])
def test_factors_of_rows_and_columns_are_refused(name: Any) -> None:
    a, model, _ = case("gcn", 4)
    for cls in (bs.FRDC, bs.TCTiledCSR):
        graph = cls(a, **{name: np.full(NODES, 0.5, np.float32)})
        with pytest.raises(ValueError, match=f"the graph has {name}"):
            nn.ClusterRunner(graph, model, labels=np.zeros(NODES, int))


def test_a_multigraph_is_no_weighted_graph() -> None:
    """Repeated entries must count as one edge, and their sum not as a weight."""
    refuse_weights("f", sparse.coo_array((np.ones(2), ([0, 0], [1, 1])), shape=(2, 2)))
    refuse_weights("f", (np.ones(2, bool), ([0, 0], [1, 1])))
    refuse_weights("f", (4, 4))
    refuse_weights("f", np.array([[0, 1], [1, 0]]))
    refuse_weights("f", bs.pack_bits(np.array([[0, 1], [1, 0]])))
    refuse_weights("f", GraphData(indptr=np.array([0, 1]), indices=np.array([0])))
    for graph in (bs.pack_bits(np.array([[0, 2], [1, 0]])), np.array([[0, 2], [1, 0]])):
        with pytest.raises(ValueError, match=r"\(1 to 2\)"):
            refuse_weights("f", graph)
    zero = sparse.csr_array((np.array([0.0, 1.0]), ([0, 1], [1, 0])), shape=(2, 2))
    for graph in (zero, sparse.csr_array(np.eye(4)).tobsr((2, 2))):  # blocks are stored including their zeros
        with pytest.raises(ValueError, match=r"\(0\.0 to 1\.0\), .* eliminate_zeros\(\) of a csr_array"):
            refuse_weights("f", graph)


# -- graphs and features ----------------------------------------------------------------------------------------------
def test_a_graph_data_is_a_graph() -> None:
    a, model, x = case("sage", 4)
    data = GraphData(indptr=a.indptr, indices=a.indices, labels=np.arange(NODES) % 3)
    full = nn.random_network("sage", [10, 6, 3], seed=1)
    assert nn.quantize_network(full, data, x, 4).fingerprint() == model.fingerprint()
    mask = np.ones(NODES, bool)
    tuned = [nn.tune_bits(full, graph, x, data.labels, mask, candidates=[2, 4]) for graph in (a, data)]
    assert tuned[0].tried == tuned[1].tried
    runners = [nn.ClusterRunner(graph, model, labels=np.zeros(NODES, int)) for graph in (a, replace(data, x=x))]
    assert np.array_equal(runners[0].run(x), runners[1].run(x))


@pytest.mark.parametrize("kind", KINDS)
def test_networks_take_what_a_user_has(kind: Any) -> None:
    a, model, x = case(kind, 4)
    want = model(operand(a, model), model.quantize(x))
    data = GraphData(indptr=a.indptr, indices=a.indices)
    for adjacency in (a, a.tocoo(), bs.FRDC(a), bs.TCTiledCSR(a), data):
        assert np.array_equal(model(adjacency, x), want)
    assert np.array_equal(model(a, sparse.csr_array(x)), want) and np.array_equal(model(a, model.quantize(x)), want)
    full = nn.random_network(kind, [10, 6, 3], seed=1)
    assert np.array_equal(full(bs.FRDC(a), x), full(a, x))
    assert nn.quantize_network(full, bs.FRDC(a), x, 4).fingerprint() == model.fingerprint()
    for adjacency in (a * 0.5, bs.TCTiledCSR(a * 0.5), replace(data, weights=np.full(a.nnz, 0.5))):
        with pytest.raises(ValueError, match="LowBitNetwork: the graph has edge weights"):
            model(adjacency, x)
    with pytest.raises(bs.ShapeError, match="LowBitNetwork"):
        model(a[:5], x)
    with pytest.raises(bs.ShapeError, match=r"x has \(shape"):
        model(a, x[:5])


@pytest.mark.parametrize("graph", [None, 3, np.eye(NODES), "graph", (np.ones(1), ([0], [0]))])
def test_what_is_no_graph_is_refused_by_name(graph: Any) -> None:
    a, model, x = case("gcn", 4)
    full = nn.random_network("gcn", [10, 6, 3])
    with pytest.raises(
        bs.DTypeError, match=r"quantize_network: the graph must be a sparse array of SciPy or of bitsparse, got"
    ):
        nn.quantize_network(full, graph, x, 4)
    with pytest.raises(bs.DTypeError, match="tune_bits: the graph must be"):
        nn.tune_bits(full, graph, x, np.zeros(NODES, int), np.ones(NODES, bool))
    with pytest.raises(
        bs.DTypeError, match=re.escape("make one with Graph.from_csr(indptr, indices, normalisation='gcn'")
    ):
        model.plan(graph, model.quantize(x))
    with pytest.raises(bs.DTypeError, match="LowBitNetwork: adjacency must be a sparse array"):
        model(graph, x)
    with pytest.raises(bs.ShapeError, match="as many rows as columns"):
        nn.quantize_network(full, a[:5], x, 4)


def test_features_that_do_not_fit_are_refused_by_name() -> None:
    a, model, x = case("gcn", 4)
    full = nn.random_network("gcn", [10, 6, 3])
    for wrong in (x[:, :4], x[:7], x[0], np.float32(1), x[None]):
        with pytest.raises(bs.ShapeError, match="features have shape"):
            nn.quantize_network(full, a, wrong, 4)
    for wrong in (x[:, :4], x[0], np.float32(1), x[None], 3.0):
        with pytest.raises(bs.ShapeError, match="rows have shape"):
            model.quantize(wrong)
    for wrong in (x.astype(complex), x.astype(object), x.astype(str), sparse.csr_array(x.astype(complex))):
        with pytest.raises(bs.DTypeError, match=r"LowBitNetwork.quantize: rows|dtype object"):
            model.quantize(wrong)
        with pytest.raises(bs.DTypeError, match=r"quantize_network: features|dtype object"):
            nn.quantize_network(full, a, wrong, 4)


def test_lists_give_the_codes_of_arrays() -> None:
    a, model, x = case("gcn", 4)
    full = nn.random_network("gcn", [10, 6, 3], seed=1)
    assert np.array_equal(model.quantize(x.tolist()).words, model.quantize(x).words)
    assert nn.quantize_network(full, a, x.tolist(), 4).fingerprint() == model.fingerprint()


@pytest.mark.torch
def test_tensors_give_the_codes_of_arrays() -> None:
    import torch

    a, model, x = case("gcn", 4)
    full, tensor = nn.random_network("gcn", [10, 6, 3], seed=1), torch.from_numpy(x)
    for given_as in (tensor, tensor.double(), tensor.T.contiguous().T):
        assert np.array_equal(model.quantize(given_as).words, model.quantize(x).words)
    half = tensor.to(torch.bfloat16)
    assert np.array_equal(model.quantize(half).words, model.quantize(half.float()).words)
    assert nn.quantize_network(full, a, tensor, 4).fingerprint() == model.fingerprint()
    labels, mask = torch.zeros(NODES, dtype=torch.int64), torch.ones(NODES, dtype=torch.bool)
    assert nn.tune_bits(full, a, tensor, labels, mask, candidates=[4]).bits == (4, 4)
    runner = nn.ClusterRunner(a, model, labels=np.zeros(NODES, int))
    assert np.array_equal(runner.run(tensor), runner.run(x))


def test_a_sampled_network_names_what_it_takes() -> None:
    a, _, x = case("gcn", 4)
    graph, features = nn.Graph(a), nn.Features(x)
    model = nn.train(graph, features, np.arange(NODES) % 3, np.ones(NODES, bool), epochs=1)
    for wrong in (bs.quantize(x, 8), x, features.quantized(8)):
        with pytest.raises(
            bs.DTypeError, match=r"SampledNetwork: features must be nn.Features, .* pass nn.Features\(x\)"
        ):
            nn.SampledNetwork(model, graph, wrong, 4)


@pytest.mark.gpu
def test_the_form_of_a_graph_on_a_gpu_is_that_on_the_cpu() -> None:
    a = sparse.random_array((300, 300), density=4e-3, format="csr", rng=np.random.default_rng(0))
    assert nn.Graph(a, "sum", device="cuda").form == nn.Graph(a, "sum").form == "csr"
