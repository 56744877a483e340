"""Every cell of function x dtype x layout gives the right answer or a named error, never a silent fallback."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import FLOATS, INTEGERS, dtype_of
from scipy import sparse

import bitsparse as bs

DTYPES = [*INTEGERS, *FLOATS, "complex64", "object", "str"]
FORMS = [(bits, axis, layout) for bits in (1, 3, 4) for axis in (-1, -2) for layout in ("planes", "rows")]
SHAPE = (9, 140)


def data(dtype: str) -> np.ndarray:
    """Values 0 and 1 in any dtype, which fit every width and every function."""
    x = np.random.default_rng(0).integers(0, 2, SHAPE)
    x[0, :2] = 0, 1
    return x.astype(dtype_of(dtype))


# Predicates for `takes` of a row: which dtypes a function takes at which widths.
def integers_only(dtype: str, bits: int) -> bool:
    return dtype in INTEGERS or (dtype in FLOATS and bits == 1)


def numbers(dtype: str, bits: int) -> bool:
    return dtype in INTEGERS or dtype in FLOATS


class Row:
    """One function: how to call it, which dtypes it takes at which widths, and a check of its answer."""

    def __init__(self, call: Callable, takes: Callable[[str, int], bool], right: Callable, forms: bool = True) -> None:
        self.call, self.takes, self.right, self.forms = call, takes, right, forms


def packed_values(x: np.ndarray, bits: int) -> np.ndarray:
    return (x >= 0).astype(int) if x.dtype.kind not in "biu" else x.astype(int)


def quantised(x: np.ndarray, bits: int) -> np.ndarray:
    return x.astype(int) * (2**bits - 1)


def as_floats(got: Any, want: np.ndarray) -> bool:
    return np.array_equal(got.toarray().astype(float), want.astype(float))


def right_of_pack(got: bs.BitTensor, x: np.ndarray, bits: int) -> bool:
    return np.array_equal(got.toarray(), packed_values(x, bits))


RIGHT = np.random.default_rng(1).integers(-2, 2, (140, 5))
SIGNS = np.where(RIGHT >= 0, 1.0, -1.0).astype(np.float32)
BELOW_FLOAT64 = ("float16", "bfloat16", "float32")
ROWS = {
    "pack_bits": Row(lambda x, b, f: bs.pack_bits(x, b, **f), integers_only, right_of_pack),
    "BitTensor": Row(lambda x, b, f: bs.BitTensor(x, b, **f), integers_only, right_of_pack),
    "TCTiledCSR": Row(
        lambda x, b, f: bs.TCTiledCSR(x),
        numbers,
        lambda got, x, b: got.dtype == (np.uint8 if x.dtype == bool else x.dtype) and bool((got.toarray() == x).all()),
        forms=False,
    ),
    "FRDC": Row(
        lambda x, b, f: bs.FRDC(x),
        numbers,
        lambda got, x, b: got.dtype == np.uint8 and np.array_equal(got.toarray(), x.astype(int)),
        forms=False,
    ),
    "quantize": Row(
        lambda x, b, f: bs.quantize(x, b, **f),
        numbers,
        lambda got, x, b: np.array_equal(got.toarray(), quantised(x, b)),
    ),
    "QuantCache": Row(
        lambda x, b, f: bs.QuantCache().quantize(x, b, **f),
        numbers,
        lambda got, x, b: np.array_equal(got.toarray(), quantised(x, b)),
    ),
    "dequantize": Row(
        lambda x, b, f: bs.dequantize(bs.quantize(x, b, **f)),
        numbers,
        lambda got, x, b: got.dtype == np.float32 and np.allclose(got, x.astype(float), atol=1e-6),
    ),
    "unpack_bits": Row(
        lambda x, b, f: bs.unpack_bits(bs.pack_bits(x, b, **f)),
        integers_only,
        lambda got, x, b: got.dtype == np.uint8 and np.array_equal(got, packed_values(x, b)),
    ),
    "stochastic_round": Row(
        lambda x, b, f: bs.stochastic_round(x, seed=0),
        lambda dtype, bits: dtype in FLOATS,
        lambda got, x, b: np.array_equal(got.astype(float), x.astype(float)),
        forms=False,
    ),
    "quantization_error": Row(
        lambda x, b, f: bs.quantization_error(x, bs.quantize(x, b, **f)), numbers, lambda got, x, b: 0 <= got < 1e-6
    ),
    "choose_bits": Row(lambda x, b, f: bs.choose_bits(x), numbers, lambda got, x, b: got == 2, forms=False),
    "matmul": Row(
        lambda x, b, f: bs.matmul(bs.pack_bits(x, b, **f), bs.pack_bits(RIGHT, 2, encoding="signed")),
        integers_only,
        lambda got, x, b: got.dtype == np.int32 and np.array_equal(got, packed_values(x, b) @ RIGHT),
    ),
    "matmul of arrays": Row(
        lambda x, b, f: bs.matmul(x, RIGHT),
        lambda dtype, bits: dtype in INTEGERS,
        lambda got, x, b: got.dtype == np.int32 and np.array_equal(got, x.astype(int) @ RIGHT),
        forms=False,
    ),
    "plan_matmul": Row(
        lambda x, b, f: bs.plan_matmul(bs.pack_bits(x, b, **f), 5, bits=2, encoding="signed")(
            bs.pack_bits(RIGHT, 2, encoding="signed", axis=-2)
        ),
        integers_only,
        lambda got, x, b: np.array_equal(got, packed_values(x, b) @ RIGHT),
    ),
    "quantized_matmul": Row(
        lambda x, b, f: bs.quantized_matmul(x, SIGNS),
        lambda dtype, bits: dtype in BELOW_FLOAT64,
        lambda got, x, b: (
            got.dtype == np.float32 and np.allclose(got, x.astype(np.float32) @ np.asarray(SIGNS), rtol=1e-6)
        ),
        forms=False,
    ),
    "plan_quantized_matmul": Row(
        lambda x, b, f: bs.plan_quantized_matmul(SIGNS, x.shape[0], dtype=x.dtype)(x),
        lambda dtype, bits: dtype in BELOW_FLOAT64,
        lambda got, x, b: (
            got.dtype == np.float32 and np.allclose(got, x.astype(np.float32) @ np.asarray(SIGNS), rtol=1e-6)
        ),
        forms=False,
    ),
    "Epilogue": Row(
        lambda x, b, f: bs.matmul(
            bs.pack_bits(x, b, **f), bs.pack_bits(RIGHT, 2, encoding="signed"), epilogue=bs.Epilogue(activation="relu")
        ),
        integers_only,
        lambda got, x, b: got.dtype == np.float32 and np.array_equal(got, np.maximum(packed_values(x, b) @ RIGHT, 0)),
    ),
    "Epilogue of an accumulator": Row(
        lambda x, b, f: bs.Epilogue(bias=1.0)(x),
        lambda dtype, bits: dtype in ("int32", "int64", "float32"),
        lambda got, x, b: got.dtype == np.float32 and np.array_equal(got, x.astype(np.float32) + 1),
        forms=False,
    ),
}
GRAPH = sparse.csr_array((np.random.default_rng(3).random((6, 9)) < 0.5).astype(np.int8))
SQUARE = sparse.csr_array((np.random.default_rng(4).random((9, 9)) < 0.4).astype(np.int8))
EDGES = SQUARE.nnz
EDGE_ROW = np.repeat(np.arange(9), np.diff(SQUARE.indptr))


def floats(dtype: str, bits: int) -> bool:
    return dtype in FLOATS


def edge_rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1)[: 3 * EDGES].reshape(EDGES, 3)


def aggregated(got: np.ndarray, x: np.ndarray, bits: int) -> bool:
    integral = x.dtype.kind in "biu"
    return (got.dtype.kind == "i" if integral else got.dtype == x.dtype) and np.array_equal(
        got.astype(float), GRAPH.toarray() @ x.astype(float)
    )


def softmax_of(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores.astype(float))
    return powers / np.bincount(EDGE_ROW, powers, 9)[EDGE_ROW]


def attended(got: np.ndarray, x: np.ndarray, bits: int) -> bool:
    values = x.astype(float)
    scores = values[SQUARE.indices, 0] + values[EDGE_ROW, 1]
    weights = sparse.csr_array((softmax_of(scores), SQUARE.indices, SQUARE.indptr), SQUARE.shape)
    return got.dtype == x.dtype and np.allclose(got.astype(float), weights @ values, rtol=2e-2, atol=2e-2)


def cosines(got: np.ndarray, x: np.ndarray, bits: int) -> bool:
    values = x.astype(float)
    unit = values / np.sqrt((values**2).sum(axis=1, keepdims=True))
    scores = (unit[EDGE_ROW] * unit[SQUARE.indices]).sum(axis=1)
    weights = sparse.csr_array((softmax_of(scores), SQUARE.indices, SQUARE.indptr), SQUARE.shape)
    dtype = np.float32 if x.dtype.kind in "biu" else x.dtype
    return got.dtype == dtype and np.allclose(got.astype(float), weights @ values, rtol=2e-2, atol=2e-2)


def attended_gradient(x: np.ndarray) -> np.ndarray:
    values = x.astype(float)
    weights = softmax_of(values[SQUARE.indices, 0] + values[EDGE_ROW, 1])
    return sparse.csr_array((weights, SQUARE.indices, SQUARE.indptr), SQUARE.shape).toarray().T @ values


def cosine_gradient(x: np.ndarray) -> np.ndarray:
    values = x.astype(float)
    norms = np.sqrt((values**2).sum(axis=1, keepdims=True))
    unit = values / norms
    scores = (unit[EDGE_ROW] * unit[SQUARE.indices]).sum(axis=1)
    weights = softmax_of(scores)
    slopes = weights * (values[EDGE_ROW] * values[SQUARE.indices]).sum(axis=1)
    slopes -= weights * np.bincount(EDGE_ROW, slopes, 9)[EDGE_ROW]
    matrix, turns = np.zeros((9, 9)), np.zeros((9, 9))
    matrix[EDGE_ROW, SQUARE.indices], turns[EDGE_ROW, SQUARE.indices] = weights, slopes
    turned = (turns + turns.T) @ unit
    return matrix.T @ values + (turned - unit * (turned * unit).sum(axis=1, keepdims=True)) / norms


def leaky_ends(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of GATv2 with the first row as the attention vector, and the slope of leaky ReLU for every edge and column."""
    values = x.astype(float)
    both = values[EDGE_ROW] + values[SQUARE.indices]
    slopes = np.where(both > 0, 1, 0.2)
    return (both * slopes) @ values[0], slopes


def gatv2_gradient(x: np.ndarray) -> np.ndarray:
    made = np.zeros(x.shape)
    weighted = leaky_ends(x)[1] * x.astype(float).reshape(-1)[:EDGES, None] * x.astype(float)[0]
    np.add.at(made, EDGE_ROW, weighted)
    return made


def mean_gradient(x: np.ndarray) -> np.ndarray:
    return SQUARE.toarray().T @ (x.astype(float) / np.maximum(np.diff(SQUARE.indptr), 1)[:, None])


def quantised_sums(got: np.ndarray, x: np.ndarray, matrix: np.ndarray) -> bool:
    """Whether sums of 8-bit codes are right up to half a step per edge, plus the rounding of sums and values."""
    want, step = matrix.astype(float) @ x.astype(float), float(np.abs(x.astype(float)).max()) / 127
    bound = 0.51 * step * matrix.sum(axis=1, keepdims=True) + 0.005 * np.abs(want).max()
    return got.dtype == np.float32 and bool((np.abs(got - want) <= bound).all())


def product_gradient(got: np.ndarray, x: np.ndarray) -> bool:
    want = x.astype(float).sum(axis=0)[:, None]
    return got.dtype == np.float32 and bool(np.abs(got - want).max() <= 0.02 * np.abs(want).max())


def weighted_ends(x: np.ndarray) -> np.ndarray:
    weights = x.astype(float).reshape(-1)[:EDGES]
    return sparse.csr_array((weights, SQUARE.indices, SQUARE.indptr), SQUARE.shape).toarray().T @ x.astype(float)


def softmax_gradient(x: np.ndarray) -> np.ndarray:
    weights, gradient = (x.astype(float).reshape(-1)[start : EDGES + start] for start in (0, 1))
    return weights * (gradient - np.bincount(EDGE_ROW, weights * gradient, 9)[EDGE_ROW])


ROWS |= {
    "spmm": Row(lambda x, b, f: bs.spmm(GRAPH, x), numbers, aggregated, forms=False),
    "spmm of bits": Row(
        lambda x, b, f: bs.spmm(GRAPH, bs.pack_bits(x, b, **f)),
        integers_only,
        lambda got, x, b: got.dtype == np.int32 and np.array_equal(got, GRAPH @ packed_values(x, b)),
    ),
    "plan_spmm": Row(lambda x, b, f: bs.plan_spmm(GRAPH, 140)(x), numbers, aggregated, forms=False),
    "plan_spmm of bits with an epilogue": Row(
        lambda x, b, f: bs.plan_spmm(GRAPH, 140, bits=b, epilogue=bs.Epilogue(bits=3, out_scale=1.0))(
            bs.pack_bits(x, b, **f)
        ),
        integers_only,
        lambda got, x, b: np.array_equal(got.toarray(), np.minimum(GRAPH @ packed_values(x, b), 7)),
    ),
    "sddmm": Row(
        lambda x, b, f: bs.sddmm(SQUARE, x),
        numbers,
        lambda got, x, b: np.allclose(
            got.astype(float), (x.astype(float)[EDGE_ROW] * x.astype(float)[SQUARE.indices]).sum(axis=1), rtol=1e-2
        ),
        forms=False,
    ),
    "sddmm of BitTensors": Row(
        lambda x, b, f: bs.sddmm(SQUARE, bs.pack_bits(x, b, **f)),
        integers_only,
        lambda got, x, b: (
            got.dtype == np.int32
            and np.array_equal(got, (packed_values(x, b)[EDGE_ROW] * packed_values(x, b)[SQUARE.indices]).sum(axis=1))
        ),
    ),
    "aggregate_edges": Row(
        lambda x, b, f: bs.aggregate_edges(SQUARE, edge_rows(x)),
        numbers,
        lambda got, x, b: np.array_equal(
            got.astype(float),
            np.stack([np.bincount(EDGE_ROW, column, 9) for column in edge_rows(x).astype(float).T], 1),
        ),
        forms=False,
    ),
    "quantized_spmm": Row(
        lambda x, b, f: bs.quantized_spmm(SQUARE, x),
        lambda dtype, bits: dtype in BELOW_FLOAT64,
        lambda got, x, b: quantised_sums(got, x, SQUARE.toarray()),
        forms=False,
    ),
    "quantized_spmm_vjp": Row(
        lambda x, b, f: bs.quantized_spmm_vjp(SQUARE, x),
        lambda dtype, bits: dtype in BELOW_FLOAT64,
        lambda got, x, b: quantised_sums(got, x, SQUARE.toarray().T),
        forms=False,
    ),
    "quantized_matmul_vjp": Row(
        lambda x, b, f: bs.quantized_matmul_vjp(x, SIGNS, (SIGNS[:1] ** 2).repeat(len(x), axis=0), wrt="w"),  # ones
        lambda dtype, bits: dtype in BELOW_FLOAT64,
        lambda got, x, b: product_gradient(got, x),
        forms=False,
    ),
    "spmm_vjp": Row(
        lambda x, b, f: bs.spmm_vjp(SQUARE, x, x, reduce="mean"),
        floats,
        lambda got, x, b: got.dtype == x.dtype and np.allclose(got.astype(float), mean_gradient(x), rtol=2e-2),
        forms=False,
    ),
    "sddmm_vjp": Row(
        lambda x, b, f: bs.sddmm_vjp(SQUARE, x, x, x.reshape(-1)[:EDGES], wrt="y"),
        floats,
        lambda got, x, b: got.dtype == x.dtype and np.allclose(got.astype(float), weighted_ends(x), rtol=2e-2),
        forms=False,
    ),
    "attention_vjp": Row(
        lambda x, b, f: bs.attention_vjp(SQUARE, x, x[:, 0], x[:, 1], x, wrt="x"),
        floats,
        lambda got, x, b: (
            got.dtype == x.dtype and np.allclose(got.astype(float), attended_gradient(x), rtol=2e-2, atol=2e-2)
        ),
        forms=False,
    ),
    "cosine_attention_vjp": Row(
        lambda x, b, f: bs.cosine_attention_vjp(SQUARE, x, x),
        floats,
        lambda got, x, b: (
            got.dtype == x.dtype and np.allclose(got.astype(float), cosine_gradient(x), rtol=2e-2, atol=2e-2)
        ),
        forms=False,
    ),
    "gatv2_scores": Row(
        lambda x, b, f: bs.gatv2_scores(SQUARE, x, x, x[0]),
        floats,
        lambda got, x, b: got.dtype == x.dtype and np.allclose(got.astype(float), leaky_ends(x)[0], rtol=1e-2),
        forms=False,
    ),
    "gatv2_scores_vjp": Row(
        lambda x, b, f: bs.gatv2_scores_vjp(SQUARE, x, x, x[0], x.reshape(-1)[:EDGES], wrt="target"),
        floats,
        lambda got, x, b: got.dtype == x.dtype and np.allclose(got.astype(float), gatv2_gradient(x), rtol=1e-2),
        forms=False,
    ),
    "sampled_spmm_vjp": Row(
        lambda x, b, f: bs.sampled_spmm_vjp(SQUARE, x, x, 9),
        floats,
        lambda got, x, b: got.dtype == x.dtype and np.array_equal(got, SQUARE.toarray().T @ x.astype(float)),
        forms=False,
    ),
    "edge_softmax_vjp": Row(
        lambda x, b, f: bs.edge_softmax_vjp(SQUARE, x.reshape(-1)[:EDGES], x.reshape(-1)[1 : EDGES + 1]),
        floats,
        lambda got, x, b: got.dtype == x.dtype and np.array_equal(got.astype(float), softmax_gradient(x)),
        forms=False,
    ),
    "aggregate_edges_vjp": Row(
        lambda x, b, f: bs.aggregate_edges_vjp(SQUARE, edge_rows(x), x[:, :3], side="cols"),
        floats,
        lambda got, x, b: got.dtype == x.dtype and np.array_equal(got, x[SQUARE.indices, :3]),
        forms=False,
    ),
    "edge_softmax": Row(
        lambda x, b, f: bs.edge_softmax(SQUARE, x.reshape(-1)[:EDGES]),
        floats,
        lambda got, x, b: (
            got.dtype == x.dtype and np.allclose(got.astype(float), softmax_of(x.reshape(-1)[:EDGES]), rtol=1e-2)
        ),
        forms=False,
    ),
    "attention": Row(lambda x, b, f: bs.attention(SQUARE, x, x[:, 0], x[:, 1]), floats, attended, forms=False),
    "cosine_attention": Row(lambda x, b, f: bs.cosine_attention(SQUARE, x), numbers, cosines, forms=False),
    "sampled_spmm": Row(lambda x, b, f: bs.sampled_spmm(GRAPH, x, 9), floats, aggregated, forms=False),
    "plan_sampled_spmm": Row(
        lambda x, b, f: bs.plan_sampled_spmm(GRAPH, SHAPE[1], 9, dtype=x.dtype)(x), floats, aggregated, forms=False
    ),
    "edge_sample": Row(
        lambda x, b, f: bs.edge_sample(sparse.csr_array(x) if x.dtype in (bool, "i4", "f4", "f8") else x, 140),
        lambda dtype, bits: dtype in ("bool", "int32", "float32", "float64"),
        lambda got, x, b: np.array_equal(got.tocsr().toarray() != 0, x != 0),
        forms=False,
    ),
    "bmm": Row(
        lambda x, b, f: bs.bmm(x, bs.pack_bits(SIGNS, encoding="bipolar", axis=-2)),
        numbers,
        lambda got, x, b: np.array_equal(got, np.where(x.astype(float) >= 0, 1, -1) @ SIGNS),
        forms=False,
    ),
    "plan_bmm": Row(
        lambda x, b, f: bs.plan_bmm(SIGNS, len(x), "FFB", dtype=x.dtype)(x),
        numbers,
        lambda got, x, b: np.array_equal(got.toarray() > 0, np.where(x.astype(float) >= 0, 1, -1) @ SIGNS >= 0),
        forms=False,
    ),
    "bspmm": Row(
        lambda x, b, f: bs.bspmm(GRAPH, x),
        lambda dtype, bits: dtype in BELOW_FLOAT64,
        lambda got, x, b: got.dtype == np.float32 and np.array_equal(got, GRAPH.toarray() @ x.astype(np.float32)),
        forms=False,
    ),
    "plan_bspmm": Row(
        lambda x, b, f: bs.plan_bspmm(GRAPH, x.shape[1], dtype=x.dtype)(x),
        lambda dtype, bits: dtype in BELOW_FLOAT64,
        lambda got, x, b: got.dtype == np.float32 and np.array_equal(got, GRAPH.toarray() @ x.astype(np.float32)),
        forms=False,
    ),
    "add": Row(
        lambda x, b, f: bs.add(x, x),
        numbers,
        lambda got, x, b: np.array_equal(got.astype(float), 2 * x.astype(float)),
        forms=False,
    ),
    "vstack": Row(
        lambda x, b, f: bs.vstack([x, x]), numbers, lambda got, x, b: as_floats(got, np.vstack([x, x])), forms=False
    ),
    "hstack": Row(
        lambda x, b, f: bs.hstack([x, x]), numbers, lambda got, x, b: as_floats(got, np.hstack([x, x])), forms=False
    ),
    "block_diag": Row(
        lambda x, b, f: bs.block_diag([x, x]),
        numbers,
        lambda got, x, b: as_floats(got, np.kron(np.eye(2), x.astype(float))),
        forms=False,
    ),
    "kron": Row(
        lambda x, b, f: bs.kron(x[:2, :5], x[:3, :7]),
        numbers,
        lambda got, x, b: as_floats(got, np.kron(x[:2, :5].astype(float), x[:3, :7].astype(float))),
        forms=False,
    ),
    "tril": Row(lambda x, b, f: bs.tril(x, 3), numbers, lambda got, x, b: as_floats(got, np.tril(x, 3)), forms=False),
    "triu": Row(lambda x, b, f: bs.triu(x, 3), numbers, lambda got, x, b: as_floats(got, np.triu(x, 3)), forms=False),
    "eye": Row(
        lambda x, b, f: bs.eye(9, 140, 2, x.dtype),
        numbers,
        lambda got, x, b: got.dtype == x.dtype and as_floats(got, np.eye(9, 140, 2)),
        forms=False,
    ),
    "random": Row(
        lambda x, b, f: bs.random(9, 140, 0.1, dtype=x.dtype, rng=0),
        numbers,
        lambda got, x, b: got.dtype == x.dtype and got.nnz == 126 and got.shape == (9, 140),
        forms=False,
    ),
    "issparse": Row(
        lambda x, b, f: bs.issparse(x), lambda dtype, bits: True, lambda got, x, b: got is False, forms=False
    ),
    "concat": Row(
        lambda x, b, f: bs.concat([x, x]),
        lambda dtype, bits: True,
        lambda got, x, b: got.dtype == x.dtype and np.array_equal(got, np.concatenate([x, x], axis=-1)),
        forms=False,
    ),
    "concat of bits": Row(
        lambda x, b, f: bs.concat([bs.pack_bits(x, b, **f)] * 2, axis=f["axis"]),
        integers_only,
        lambda got, x, b: np.array_equal(got.toarray(), np.concatenate([packed_values(x, b)] * 2, axis=got.axis)),
    ),
}


def codes_only(dtype: str, bits: int) -> bool:
    return dtype in ("bool", "int8", "uint8")


def itself(got: Any, x: np.ndarray, bits: int) -> bool:
    """Whether every row's distance to its nearest row, itself, is zero."""
    return got.shape == (len(x), 1) and not got.any()


ROWS |= {
    "nearest": Row(lambda x, b, f: bs.nearest(x, x, 1)[0], codes_only, itself, forms=False),
    "plan_nearest": Row(lambda x, b, f: bs.plan_nearest(x, len(x), 1)(x)[0], codes_only, itself, forms=False),
    "pairs": Row(
        lambda x, b, f: bs.pairs(x, threshold=0.0)[0],
        codes_only,
        lambda got, x, b: got.size == len(x) * (len(x) - 1) // 2,
        forms=False,
    ),
    "pairs_iter": Row(
        lambda x, b, f: next(iter(bs.pairs_iter(x, threshold=0.0)))[0],
        codes_only,
        lambda got, x, b: got.size == len(x) * (len(x) - 1) // 2,
        forms=False,
    ),
    "from_packbits": Row(
        lambda x, b, f: bs.from_packbits(x),
        lambda dtype, bits: dtype in ("int8", "uint8"),
        lambda got, x, b: np.array_equal(
            got.toarray(), np.unpackbits(x.view(np.uint8) ^ np.uint8(128 if x.dtype == np.int8 else 0), axis=-1)
        ),
        forms=False,
    ),
    "from_rdkit": Row(
        lambda x, b, f: bs.from_rdkit(x), lambda dtype, bits: False, lambda got, x, b: False, forms=False
    ),
}
CELLS = [
    (name, dtype, form)
    for name, dtype, form in itertools.product(ROWS, DTYPES, FORMS)
    if ROWS[name].forms or form == FORMS[0]
]


@pytest.mark.parametrize(("name", "dtype", "form"), CELLS)
def test_cell(name: str, dtype: str, form: tuple[int, int, str]) -> None:
    row, (bits, axis, layout) = ROWS[name], form
    x = data(dtype)
    keywords: dict[str, Any] = {"axis": axis, "layout": layout}
    expected: tuple[type[Exception], ...] = ()
    if not row.takes(dtype, bits):
        expected += (bs.DTypeError,)
    if row.forms and layout == "rows" and bits == 3:
        expected += (ValueError,)
    if expected:
        with pytest.raises(
            expected, match=name.split(" ")[0] if name in ("pack_bits", "BitTensor", "quantize") else None
        ):
            row.call(x, bits, keywords)
        return
    assert row.right(row.call(x, bits, keywords), x, bits)


# ---- the same table with arrays on a GPU
ON_GPU = {
    "pack_bits",
    "BitTensor",
    "quantize",
    "QuantCache",
    "dequantize",
    "unpack_bits",
    "stochastic_round",
    "quantization_error",
    "choose_bits",
}
ON_GPU |= {"matmul", "plan_matmul", "Epilogue"}
ON_GPU |= {"bmm", "plan_bmm"}
ON_GPU |= {"quantized_matmul", "plan_quantized_matmul", "quantized_matmul_vjp", "quantized_spmm", "quantized_spmm_vjp"}
ON_GPU |= {"spmm", "plan_spmm", "sddmm", "aggregate_edges", "edge_softmax", "attention", "cosine_attention"}
ON_GPU |= {"spmm_vjp", "sddmm_vjp", "attention_vjp", "edge_softmax_vjp", "aggregate_edges_vjp"}
ON_GPU |= {"cosine_attention_vjp", "gatv2_scores", "gatv2_scores_vjp", "sampled_spmm_vjp"}
ON_GPU |= {"bspmm", "plan_bspmm"}
ON_GPU |= {"FRDC", "TCTiledCSR"}
ON_GPU |= {"add", "concat"}
ON_GPU |= {"vstack", "hstack", "block_diag", "kron", "tril", "triu"}
ON_GPU |= {"sampled_spmm", "plan_sampled_spmm"}
ON_GPU |= {"nearest", "plan_nearest", "pairs", "pairs_iter", "from_packbits", "from_rdkit"}


def to_gpu(x: np.ndarray) -> Any:
    import cupy

    if x.dtype.name == "bfloat16":  # CuPy cannot convert bfloat16
        return cupy.asarray(x.view(np.uint16)).view(x.dtype)
    return cupy.asarray(x)


def to_host(got: Any) -> Any:
    return got.get() if hasattr(got, "get") else got


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype", "form"),
    [
        cell
        for cell in CELLS
        if cell[1] not in ("object", "str") and cell[0] not in ("edge_sample", "eye", "random", "issparse")
    ],
)
def test_cell_on_a_gpu(name: str, dtype: str, form: tuple[int, int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    row, (bits, axis, layout) = ROWS[name], form
    x = data(dtype)
    there, keywords = to_gpu(x), {"axis": axis, "layout": layout}
    expected: tuple[type[Exception], ...] = ()
    if not row.takes(dtype, bits):
        expected += (bs.DTypeError,)
    if row.forms and layout == "rows" and bits == 3:
        expected += (ValueError,)
    if name.split(" ")[0] not in ON_GPU:
        expected += (bs.DeviceError,)
    with monkeypatch.context() as patch:
        for right in ("RIGHT", "SIGNS"):
            patch.setitem(globals(), right, to_gpu(globals()[right]))
        for graph in ("GRAPH", "SQUARE"):
            patch.setitem(globals(), graph, bs.TCTiledCSR(globals()[graph]).to_device("cuda"))
        if expected:
            with pytest.raises(expected):
                row.call(there, bits, keywords)
            return
        got = row.call(there, bits, keywords)
    if not isinstance(got, (int, float)):
        assert str(got.device) not in ("cpu", "CPU")
    assert row.right(to_host(got), x, bits)


def test_the_table_names_every_public_function() -> None:
    functions = {
        name
        for name in bs.__all__
        if callable(getattr(bs, name))
        and not name.endswith(
            ("threads", "stream", "npz", "Error", "Plan", "Product", "Norm", "Sample", "State", "tune")
        )
    }
    assert functions == {name.split(" ")[0] for name in ROWS}
    taken = [cell for cell in CELLS if ROWS[cell[0]].takes(cell[1], cell[2][0])]
    assert len(taken) > len(CELLS) // 3
