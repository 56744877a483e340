"""Sparse features of low-bit networks: the nonzero codes in CSR must give the logits of all codes, bit for bit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from test_lowbit_host import check

import bitsparse as bs
from bitsparse import nn
from bitsparse.backends import host
from bitsparse.backends.host.matmul import bytes as steps
from bitsparse.nn.lowbit import plan as lowbit_plan


@pytest.fixture(params=("scalar", "avx2", "avxvnni", "avx512", "amx"))
def _level(request: pytest.FixtureRequest) -> Any:
    if request.param in host.simd_levels():
        host.set_simd(request.param)
    yield
    host.set_simd(None)


def graph(nodes: int, rng: np.random.Generator) -> Any:
    return sparse.csr_array((rng.random((nodes, nodes)) < min(1.0, 5 / nodes)).astype(np.float32))


def words(nodes: int, columns: int, rng: np.random.Generator, of: str = "ones") -> Any:
    """Return a matrix with few entries, a row and a column without any, and a column that every row has."""
    there = rng.random((nodes, columns)) < 0.05
    there[nodes // 3], there[:, columns // 2] = False, False
    values = there * {"ones": 1.0, "weights": rng.random((nodes, columns)), "signed": rng.normal(size=there.shape)}[of]
    return sparse.csr_array(values.astype(np.float32))


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("n", [1, 16, 17, 40, 64, 65, 100, 512])
def test_products_of_sparse_codes(n: int) -> None:
    rng = np.random.default_rng(n)
    counts = np.array([0, 1, 2, 3, 4, 5, 0, 63, 7, 8, 9])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = np.concatenate([np.sort(rng.choice(70, count, replace=False)) for count in counts]).astype(np.int32)
    codes, weights = rng.integers(0, 256, columns.size).astype(np.uint8), rng.integers(-128, 128, (70, n))
    codes[-9:], weights[:, 0] = 255, -128
    for values in (codes, None):
        data = np.ones(columns.size) if values is None else values
        wanted = sparse.csr_array((data.astype(np.int64), columns, indptr), shape=(counts.size, 70)) @ weights
        lines = steps.lines_of(weights)
        check(
            wanted.astype(np.int32),
            lambda params, out, values=values, lines=lines: steps.sparse_product(
                (indptr, columns), values, lines, n, params, out
            ),
            rng,
        )


def test_wrong_patterns_are_refused() -> None:
    lines, out = steps.lines_of(np.ones((3, 2), np.int8)), np.zeros((2, 2), np.float32)
    for indptr, indices in (([0, 1, 2], [0, 3]), ([0, 1, 2], [0, -1]), ([0, 2, 1], [0, 1]), ([1, 1, 2], [0, 1])):
        pattern = np.array(indptr, np.int32), np.array(indices, np.int32)
        with pytest.raises(ValueError, match=r"index names no row|descend|indptr holds|does not fit"):
            steps.sparse_product(pattern, None, lines, 2, steps.EpilogueParams(), out)
    good = np.array([0, 1, 2], np.int32), np.array([0, 2], np.int32)
    with pytest.raises(ValueError, match="values holds"):
        steps.sparse_product(good, np.ones(3, np.uint8), lines, 2, steps.EpilogueParams(), out)
    assert not out.any()
    steps.sparse_product(good, None, lines, 2, steps.EpilogueParams(), out)
    assert out.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("kind", ["gcn", "gin"])
@pytest.mark.parametrize(("widths", "bits"), [([90, 16, 5], 8), ([600, 33, 4], 4), ([70, 20, 3], 1), ([50, 9, 3], 12)])
@pytest.mark.parametrize("of", ["ones", "weights", "signed"])
def test_logits_are_those_of_dense_codes(
    kind: Any, widths: list[int], bits: int, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([bits, widths[0]])
    adjacency, x = graph(80, rng), words(80, widths[0], rng, of)
    low = nn.quantize_network(nn.random_network(kind, widths, seed=1), adjacency, x, bits)
    operand = nn.Graph(adjacency, low.normalisation, self_loops=low.self_loops, form="csr")
    indices = x.indices.copy()
    codes, dense = low.quantize(x, layout="csr"), low.quantize(x)
    assert isinstance(codes, bs.TCTiledCSR)
    assert np.array_equal(x.indices, indices)  # zeros among the codes are dropped from a copy
    np.testing.assert_array_equal(codes.toarray(), dense.toarray())
    wanted = low.plan(operand, dense)()
    plan = low.plan(operand, codes)
    assert plan().tobytes() == wanted.tobytes()
    out = np.full(wanted.shape, np.nan, np.float32)
    assert plan(out=out) is out
    assert out.tobytes() == wanted.tobytes()
    with monkeypatch.context() as patch:
        patch.setattr(lowbit_plan, "steps_in_bytes", lambda *_: None)
        assert low.plan(operand, codes)().tobytes() == wanted.tobytes()
    assert low(operand, x).tobytes() == wanted.tobytes()
    assert low(operand, codes).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("of", ["ones", "weights"])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_features_with_scales_of_their_rows(bits: int, of: str) -> None:
    rng = np.random.default_rng(bits)
    adjacency, x = graph(60, rng), nn.Features(words(60, 120, rng, of))
    low = nn.quantize_network(nn.random_network("gcn", [120, 16, 3], seed=1), adjacency, x, bits)
    operand = nn.Graph(adjacency, low.normalisation, self_loops=low.self_loops, form="csr")
    codes, dense = low.quantize(x, layout="csr"), low.quantize(x)
    np.testing.assert_array_equal(codes.toarray(), dense.dequantize())
    wanted = low.plan(operand, dense)()
    assert low.plan(operand, codes)().tobytes() == wanted.tobytes()
    assert low(operand, x).tobytes() == wanted.tobytes()


def test_codes_changed_in_place_count() -> None:
    rng = np.random.default_rng(0)
    adjacency, x = graph(30, rng), words(30, 40, rng)
    low = nn.quantize_network(nn.random_network("gcn", [40, 8, 3], seed=1), adjacency, x, 8)
    codes = low.quantize(x, layout="csr")
    plan = low.plan(nn.Graph(adjacency, "gcn", self_loops=True, form="csr"), codes)
    before = plan()
    codes.data[...] = 3
    assert not np.array_equal(plan(), before)


def test_what_is_refused_is_refused_by_name() -> None:
    rng = np.random.default_rng(0)
    adjacency, x = graph(20, rng), words(20, 40, rng)
    low = nn.quantize_network(nn.random_network("gcn", [40, 8, 3], seed=1), adjacency, x, 4)
    operand, codes = nn.Graph(adjacency, "gcn", self_loops=True, form="csr"), low.quantize(x, layout="csr")
    large = bs.TCTiledCSR(codes)
    large = large.with_values(np.full(codes.nnz, 16, np.uint8))
    for error, text, wrong in (
        (bs.DTypeError, "values of dtype float32 .* codes of 4 bits are uint8", bs.TCTiledCSR(x)),
        (ValueError, "code 16, but the network reads codes of 4 bits", large),
        (ValueError, "the codes have a scale", codes.with_scales(row_scale=np.ones(20))),
        (ValueError, "a col_scale", codes.with_scales(col_scale=np.ones(40))),
        (bs.ShapeError, re.escape("(19, 40), but graph and network need (20, 40)"), low.quantize(x[:19], layout="csr")),
    ):
        with pytest.raises(error, match=rf"LowBitNetwork.plan: .*{text}"):
            low.plan(operand, wrong)
    sage = nn.quantize_network(nn.random_network("sage", [40, 8, 3], seed=1), adjacency, x, 4)
    about: Any = {"self_loops": sage.self_loops, "form": "csr"}
    with pytest.raises(ValueError, match="a sage sums over neighbours before its first product"):
        sage.plan(nn.Graph(adjacency, sage.normalisation, **about), sage.quantize(x, layout="csr"))
    assert sage(nn.Graph(adjacency, sage.normalisation, **about), x).shape == (20, 3)
    with pytest.raises(ValueError, match="negative values"):
        nn.Features(words(20, 40, rng, "signed")).quantized_entries(8)
