"""Steps on codes in bytes must agree with NumPy, and whole networks with the steps on packed words, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bitsparse import nn
from bitsparse._ext import matmul as matmul_ext
from bitsparse.backends import host
from bitsparse.backends.host.matmul import bytes as steps
from bitsparse.backends.host.matmul import matmul as host_matmul
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import EpilogueParams
from bitsparse.graph import Graph
from bitsparse.nn.lowbit import plan as lowbit_plan
from bitsparse.nn.lowbit.host import steps_in_bytes
from bitsparse.ops import steps as on_codes

LEVELS = ("scalar", "avx2", "avxvnni", "avx512", "amx")


@pytest.fixture(params=LEVELS)
def _level(request: pytest.FixtureRequest) -> Any:
    if request.param in host.simd_levels():
        host.set_simd(request.param)
    yield
    host.set_simd(None)


def rows_of(values: np.ndarray) -> np.ndarray:
    made = np.zeros((values.shape[0], steps.row_bytes(values.shape[1])), np.uint8)
    made[:, : values.shape[1]] = values
    return made


def chains(m: int, n: int, rng: np.random.Generator) -> list[EpilogueParams]:
    """Return epilogues: none, all parts with float results, codes of the integers' own grid, and codes of another grid."""
    row, col = (rng.uniform(0.5, 1.5, size).astype(np.float32) for size in (m, n))
    full = EpilogueParams(
        row_scale=row, col_scale=col / np.float32(1000), row_term=(row, col), col_term=(row, -col), bias=col,
        bn_scale=col, bn_shift=-col, activation="leaky_relu",
    )  # fmt: skip
    plain = full._replace(out="bits", bits=5, qmax=31, offset=np.float32(0), divisor=np.float32(1), rounding="nearest")
    grid = plain._replace(bits=8, qmax=255, offset=col[None, :], divisor=np.full((1, n), 0.01, np.float32))
    return [EpilogueParams(), full, plain, grid, grid._replace(rounding="floor")]


def check(sums: np.ndarray, run: Any, rng: np.random.Generator) -> None:
    """Require the floats and codes of the epilogue on the same sums, and zero bytes behind a row's codes."""
    m, n = sums.shape
    for params in chains(m, n, rng):
        wanted = host_matmul.epilogue(sums, params)
        if params.out == "float":
            out: np.ndarray = np.full((m, n), np.nan, np.float32)
            run(params, out)
            assert out.tobytes() == wanted.tobytes()
            continue
        planes = (wanted[..., None] >> np.arange(32, dtype=np.uint32)) & 1
        bits = planes.reshape(m, params.bits, -1)[:, :, :n]
        out = np.full((m, steps.row_bytes(n)), 0xAA, np.uint8)
        run(params, out)
        np.testing.assert_array_equal(out[:, :n], (bits << np.arange(params.bits, dtype=np.uint32)[:, None]).sum(1))
        assert not out[:, n:].any()


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (9, 3, 16), (300, 100, 17), (70, 64, 121), (5, 33, 512)])
def test_products(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(k)
    x, w = rng.integers(0, 256, (m, k)), rng.integers(-128, 128, (k, n))
    x[0], w[:, 0] = 255, -128
    codes, panels = rows_of(x), steps.panels_of(w.astype(np.int8))
    check((x @ w).astype(np.int32), lambda params, out: steps.product(codes, panels, k, n, params, out), rng)


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("n", [1, 16, 31, 33, 64, 100, 128, 200, 512])
def test_sums(n: int) -> None:
    rng = np.random.default_rng(n)
    counts = np.array([0, 1, 255, 256, 257, 258, 513, 0, 3, 600])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    indices = rng.integers(0, counts.size, indptr[-1]).astype(np.int32)
    x = rng.integers(0, 256, (counts.size, n))
    x[:, 0] = 255  # 16 bits hold at most 257 of these
    codes = rows_of(x)
    wanted = sparse.csr_array((np.ones(indices.size, np.int64), indices, indptr), shape=(counts.size,) * 2) @ x
    check(wanted.astype(np.int32), lambda params, out: steps.sums(codes, indptr, indices, n, params, out), rng)


def graph(nodes: int, rng: np.random.Generator) -> Any:
    dense = rng.random((nodes, nodes)) < min(1.0, 6 / nodes)
    dense[nodes // 2] = True
    dense[0] = False
    return sparse.csr_array(dense.astype(np.float32))


@pytest.mark.parametrize("kind", ["gcn", "gin"])
@pytest.mark.parametrize(
    ("widths", "bits"), [([9, 16, 16, 5], 1), ([33, 1, 7, 2], 2), ([70, 64, 121], 5), ([100, 16, 12], 8)]
)
def test_networks_give_the_same_bits(kind: Any, widths: list[int], bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(bits)
    for nodes in (1, 37, 400):
        adjacency, x = graph(nodes, rng), rng.standard_normal((nodes, widths[0])).astype(np.float32)
        model = nn.quantize_network(nn.random_network(kind, widths, seed=1), adjacency, x, bits)
        about: Any = {"normalisation": model.normalisation, "self_loops": model.self_loops, "form": "csr"}
        operand = Graph.from_csr(adjacency.indptr, adjacency.indices, **about)
        codes = model.quantize(x)
        assert steps_in_bytes(model, operand, codes) is not None
        plan = model.plan(operand, codes)
        with monkeypatch.context() as patch:
            patch.setattr(lowbit_plan, "steps_in_bytes", lambda *_: None)
            wanted = model.plan(operand, codes)()
        assert plan().tobytes() == wanted.tobytes()
        out = np.full((nodes, widths[-1]), np.nan, np.float32)
        assert plan(out=out) is out  # a second call, into the caller's memory
        assert out.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("of_rows", "columns"), [(False, 100), (True, 33), (False, 32), (True, 64)])
def test_features_that_are_taken_apart_in_pieces_give_the_same_bits(
    of_rows: bool, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece must use its own rows' factors, constants and scales, and only memory for one piece may be taken."""
    rng = np.random.default_rng(columns)
    adjacency, x = graph(45, rng), rng.random((45, columns)).astype(np.float32)
    features = nn.Features(x) if of_rows else x
    model = nn.quantize_network(nn.random_network("gcn", [columns, 16, 5], seed=1), adjacency, features, 4)
    operand, codes = Graph(adjacency, form="csr"), model.quantize(features)
    whole = model.plan(operand, codes)
    wanted, row = whole(), steps.row_bytes(columns)
    with monkeypatch.context() as patch:
        patch.setattr(lowbit_plan, "steps_in_bytes", lambda *_: None)
        assert model.plan(operand, codes)().tobytes() == wanted.tobytes()
    for rows in (1, 7, 44):
        monkeypatch.setattr(on_codes, "_PIECE_BYTES", rows * row)
        plan = model.plan(operand, codes)
        assert plan().tobytes() == wanted.tobytes()
        assert whole.nbytes - plan.nbytes == (45 - rows) * row
    assert whole.nbytes == 45 * (row + 16 + 16 + 16)


def test_other_networks_take_other_steps() -> None:
    rng = np.random.default_rng(0)
    adjacency, x = graph(20, rng), rng.standard_normal((20, 6)).astype(np.float32)
    for kind, bits, form in (("sage", 4, "csr"), ("gcn", 9, "csr"), ("gcn", 4, "dense")):
        model = nn.quantize_network(nn.random_network(kind, [6, 4, 2], seed=1), adjacency, x, bits)  # type: ignore[arg-type]
        about: Any = {"normalisation": model.normalisation, "self_loops": model.self_loops, "form": form}
        operand = Graph.from_csr(adjacency.indptr, adjacency.indices, **about)
        assert steps_in_bytes(model, operand, model.quantize(x)) is None
        assert np.isfinite(model(operand, model.quantize(x))).all()


def test_wide_perceptrons_and_wide_indices_take_other_steps() -> None:
    rng = np.random.default_rng(3)
    adjacency, x = graph(20, rng), rng.standard_normal((20, 6)).astype(np.float32)
    for inner, index in ((steps.LONGEST + 1, np.int32), (7, np.int64)):
        dense = [nn.Dense(rng.standard_normal(shape), activation="relu") for shape in ((6, inner), (inner, 4))]
        model = nn.quantize_network(nn.Network("gin", [nn.Layer(dense)]), adjacency, x, 4)
        about: Any = {"normalisation": model.normalisation, "self_loops": model.self_loops, "form": "csr"}
        operand = Graph.from_csr(adjacency.indptr, adjacency.indices, **about)
        wanted = model(operand, model.quantize(x))
        operand.indptr, operand.indices = (part.astype(index) for part in (operand.indptr, operand.indices))
        assert steps_in_bytes(model, operand, model.quantize(x)) is None
        assert np.array_equal(model(operand, model.quantize(x)), wanted) and np.isfinite(wanted).all()


def test_wrong_buffers_are_refused() -> None:
    x, out = np.zeros((3, 16), np.uint8), np.zeros((3, 2), np.float32)
    indptr, indices = np.array([0, 1, 1, 2], np.int32), np.array([0, 2], np.int32)
    steps.sums(x, indptr, indices, 2, EpilogueParams(), out)
    for starts, columns in (
        (indptr, [0, 3]), (indptr, [-1, 2]), (indptr[:3], [0, 2]), (np.array([0, 2, 1, 2]), [0, 2]), (indptr + 1, [0, 2]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"indptr|holds"):
            steps.sums(x, starts.astype(np.int32), np.array(columns, np.int32), 2, EpilogueParams(), out)
    panels = steps.panels_of(np.zeros((5, 2), np.int8))
    with pytest.raises(ValueError, match="panels"):
        steps.product(x, panels[:, :1], 5, 2, EpilogueParams(), out)
    with pytest.raises(ValueError, match="out"):
        steps.product(x, panels, 5, 2, EpilogueParams(), out[:2])
    with pytest.raises(ValueError, match="stride"):
        steps.product(x, steps.panels_of(np.zeros((17, 2), np.int8)), 17, 2, EpilogueParams(), out)
    wide = EpilogueParams(out="bits", bits=9, qmax=511, offset=np.float32(0), divisor=np.float32(1))
    with pytest.raises(ValueError, match="up to 8 bits"):
        steps.product(x, panels, 5, 2, wide, np.zeros((3, 16), np.uint8))
    words, one, chain = np.zeros(16, np.uint8), np.zeros(1, np.int64), host_matmul.chain_of(wide, (1, 1, 1))
    product = matmul_ext.Product(matmul_ext.PLANES, words, None, one, one, (1, 1, 1), (1, 1, 1), (1, 1), (0, 0), False)
    with pytest.raises(ValueError, match="an epilogue gives floats or packed words"):  # only steps write bytes
        product.through(run_on(1), words, 4, chain, words)
