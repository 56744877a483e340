"""Integer sums and products in few bits and their gradients: equal to plain NumPy to the bit, unbiased over seeds; errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.interop import NUMPY
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized.scaled import scaled_codes

ROWS, COLUMNS, D = 40, 30, 17


def graph(seed: int = 0, values: Any = None) -> Any:
    rng = np.random.default_rng(seed)
    dense = rng.random((ROWS, COLUMNS)) < rng.random((ROWS, 1))
    dense[3] = False
    made = sp.csr_array(dense)
    return made if values is None else sp.csr_array((values(made.nnz), made.indices, made.indptr), made.shape)


def features(rows: int, seed: int = 1, shape: tuple[int, ...] = (D,)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = (rng.standard_normal((rows, *shape)) * 10 ** rng.uniform(-2, 1, (rows, *(1,) * len(shape)))).astype(
        np.float32
    )
    made[1] = 0
    return made


def plain(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.float32]:
    """Return codes, rounded to nearest, and their scale, straight from the definition."""
    top = np.float32(2 ** (bits - 1) - 1)
    scale = np.abs(x).max() / top
    return np.clip(np.rint(x / scale), -top, top).astype(np.int64), scale


def by_node(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Return codes, whole multiples, and the step that these multiply."""
    top = np.float32(2 ** (bits - 1) - 1)
    largest = np.abs(x).max(axis=1, keepdims=True)
    step = largest.max() / (top * np.float32(255))
    multiples = np.clip(np.ceil(largest / (top * step)), 1, 255).astype(np.float32)
    codes = np.clip(np.rint(x / (multiples * step)), -top, top).astype(np.int64)
    return codes, multiples.astype(np.int64), step


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_sums_are_those_of_the_definition(bits: int, reduce: Any) -> None:
    A, x = graph(), features(COLUMNS)
    counts = np.maximum(np.diff(A.indptr), 1)[:, None].astype(np.float32)
    row, col = np.linspace(0.5, 2, ROWS, dtype=np.float32), np.linspace(2, 0.25, COLUMNS, dtype=np.float32)
    scaled = bs.TCTiledCSR(A).with_scales(row, col)
    for operand, factors, weighed in ((A, np.ones(ROWS, np.float32), x), (scaled, row, x * col[:, None])):
        codes, scale = plain(weighed, bits)
        mine, multiples, step = by_node(weighed, bits)
        ints = {"tensor": (codes, scale), "node": (mine * multiples, step)}
        for granularity, (q, one) in ints.items():
            sums = (A.astype(np.int64) @ q).astype(np.float32)
            sums = sums / counts if reduce == "mean" else sums
            want = sums * factors[:, None] * one
            got = bs.quantized_spmm(operand, x, bits, granularity=granularity, reduce=reduce)
            np.testing.assert_array_equal(got, want)
        default = "tensor" if bits == 8 else "node"
        got = bs.quantized_spmm(operand, x, bits, reduce=reduce)
        np.testing.assert_array_equal(got, bs.quantized_spmm(operand, x, bits, granularity=default, reduce=reduce))


def test_values_are_integers_too() -> None:
    A, x = graph(2, np.random.default_rng(5).standard_normal), features(COLUMNS)
    ints, one = plain(A.data.astype(np.float32), 8)
    codes, scale = plain(x, 8)
    weighed = sp.csr_array((ints, A.indices, A.indptr), A.shape)
    np.testing.assert_array_equal(bs.quantized_spmm(A, x), (weighed @ codes).astype(np.float32) * (scale * one))
    mine, multiples, step = by_node(x, 4)
    want = (weighed @ (mine * multiples)).astype(np.float32) * (step * one)
    np.testing.assert_array_equal(bs.quantized_spmm(A, x, 4), want)
    # The result does not depend on the order of the caller's arrays.
    shuffled = sp.csr_array(A[:, ::-1])
    np.testing.assert_array_equal(bs.quantized_spmm(shuffled, x[::-1].copy()), bs.quantized_spmm(A, x))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_of_sums_are_sums_over_the_transpose(bits: int, reduce: Any) -> None:
    A = graph(3, np.random.default_rng(5).standard_normal)
    row, col = np.linspace(0.5, 2, ROWS, dtype=np.float32), np.linspace(2, 0.25, COLUMNS, dtype=np.float32)
    gradient = features(ROWS, 4, (2, 5))
    counts = np.maximum(np.diff(A.indptr), 1).astype(np.float32)
    factor = (1 / counts) * row if reduce == "mean" else row
    turned = bs.TCTiledCSR(sp.csr_array(A.T.astype(np.float32))).with_scales(col, factor)
    want = bs.quantized_spmm(turned, gradient, bits)
    given = bs.TCTiledCSR(A.astype(np.float32)).with_scales(row, col)
    got = bs.quantized_spmm_vjp(given, gradient, bits, reduce=reduce)
    np.testing.assert_array_equal(got, want)
    real = bs.spmm_vjp(given, np.zeros((COLUMNS, 2, 5), np.float32), gradient, reduce=reduce)
    assert np.abs(got - real).max() <= (0.02 if bits == 8 else 0.2) * np.abs(real).max()


def test_gradients_of_products() -> None:
    x, w, gradient = features(33), features(D, 2, (5,)), features(33, 3, (5,))
    (qx, sx), (qw, sw), (qg, sg) = plain(x, 8), plain(w, 8), plain(gradient, 8)
    dx, dw = bs.quantized_matmul_vjp(x, w, gradient)
    np.testing.assert_array_equal(dx, (qg @ qw.T).astype(np.float32) * sg * sw)
    np.testing.assert_array_equal(dw, (qx.T @ qg).astype(np.float32) * sx * sg)
    codes = bs.quantized_matmul(x, w, return_operands=True)
    again = bs.quantized_matmul_vjp(codes.x, codes.w, bs.quantize(gradient, 8, scheme="symmetric"), wrt=("w", "x"))
    np.testing.assert_array_equal(again[0], dw)
    np.testing.assert_array_equal(again[1], dx)
    drawn = {"rounding": "stochastic", "seed": 7}
    got = bs.quantized_matmul_vjp(codes.x, codes.w, gradient, **drawn, stream=3, wrt="w")
    draw = bs.quantize(gradient, 8, scheme="symmetric", **drawn, stream=3)
    np.testing.assert_array_equal(got, (qx.T @ draw.toarray().astype(int)).astype(np.float32) * sx * draw.scale)


def test_sums_beyond_32_bits_are_exact() -> None:
    rows = 140_000
    x, gradient = np.full((rows, 2), 2.0, np.float32), np.full((rows, 1), -3.0, np.float32)
    got = bs.quantized_matmul_vjp(x, np.ones((2, 1), np.float32), gradient, wrt="w")
    want = np.float32(-127 * 127 * rows) * np.float32(2 / 127) * np.float32(3 / 127)
    np.testing.assert_array_equal(got, np.full((2, 1), want))
    hub = sp.csr_array(np.ones((1, rows), bool))
    codes = np.float32(127 * 255 * rows)
    x = np.full((rows, 1), 5.0, np.float32)
    np.testing.assert_array_equal(
        bs.quantized_spmm(hub, x, granularity="node"), [[codes * (np.float32(5) / (np.float32(127) * np.float32(255)))]]
    )


@pytest.mark.parametrize(("bits", "granularity"), [(8, "tensor"), (4, "node"), (2, "node")])
def test_unbiased_over_draws(bits: int, granularity: Any) -> None:
    """The mean over 10000 draws must be within four and a half standard errors of the real sum, also for gradients."""
    A, x, gradient = graph(6), features(COLUMNS, 7, (3,)), features(ROWS, 8, (3,))
    seeds, copies = 100, 100  # draws depend on an element's place, so copies side by side are separate draws

    def how(seed: int) -> dict[str, Any]:
        return {"granularity": granularity, "rounding": "stochastic", "seed": seed}

    for function, dense, want in (
        (bs.quantized_spmm, x, A @ x.astype(float)),
        (bs.quantized_spmm_vjp, gradient, A.T @ gradient.astype(float)),
    ):
        tiled = np.tile(dense, (1, copies))
        made = [function(A, tiled, bits, **how(seed)).reshape(-1, copies, 3) for seed in range(seeds)]
        off = np.concatenate(made, axis=1) - want[:, None]
        error = off.std(axis=1) / np.sqrt(seeds * copies)
        assert (np.abs(off.mean(axis=1)) <= 4.5 * error + 1e-6 * np.abs(want).max()).all(), function.__name__
    again = [bs.quantized_spmm(A, x, bits, **how(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(again[0], again[1])
    assert not np.array_equal(again[0], again[2])


def test_values_and_gradients_of_products_are_unbiased() -> None:
    x, w, gradient = features(12, 1, (4,)), features(4, 2, (3,)), features(12, 3, (3,))
    A = graph(6, np.random.default_rng(6).standard_normal)[:, :12]
    wanted = gradient.astype(float) @ w.T, x.T.astype(float) @ gradient, A @ x.astype(float)
    found: list[list[np.ndarray]] = [[], [], []]
    for seed in range(1500):
        how: Any = {"rounding": "stochastic", "seed": seed}
        for made, part in zip(
            found, (*bs.quantized_matmul_vjp(x, w, gradient, **how), bs.quantized_spmm(A, x, **how)), strict=True
        ):
            made.append(part)
    for parts, want in zip(found, wanted, strict=True):
        off = np.stack(parts) - want
        error = off.std(axis=0) / np.sqrt(len(parts))
        assert (np.abs(off.mean(axis=0)) <= 4.5 * error + 1e-6 * np.abs(want).max()).all()


def test_codes_of_nodes_keep_small_rows() -> None:
    x = features(50, 9)
    coded = scaled_codes("test", "x", x, NUMPY, Coding(4, "nearest", 0), "node")
    largest = np.abs(x).max(axis=1)
    off = np.abs(coded.dequantize() - x).max(axis=1)
    assert (off <= (largest / 7 + largest.max() / 7 / 255) / 2 * 1.001).all()
    assert coded.codes.toarray().max() == 7


def test_shapes_and_empty_operands() -> None:
    A, x = graph(), features(COLUMNS)
    np.testing.assert_array_equal(bs.quantized_spmm(A, x[:, 0]), bs.quantized_spmm(A, x[:, :1])[:, 0])
    wide = features(COLUMNS, 3, (2, 6))
    np.testing.assert_array_equal(
        bs.quantized_spmm(A, wide, 4).reshape(ROWS, 12), bs.quantized_spmm(A, wide.reshape(-1, 12), 4)
    )
    for bits in (8, 4):
        assert bs.quantized_spmm(A, x[:, :0], bits).shape == (ROWS, 0)
        assert not bs.quantized_spmm(sp.csr_array((3, COLUMNS), dtype=bool), x, bits).any()
        assert not bs.quantized_spmm(A, np.zeros_like(x), bits).any()
        assert bs.quantized_spmm(sp.csr_array((3, 0), dtype=bool), np.zeros((0, 2), np.float32), bits).shape == (3, 2)
    np.testing.assert_array_equal(bs.quantized_spmm(bs.FRDC(A), x), bs.quantized_spmm(A, x))
    np.testing.assert_array_equal(bs.quantized_spmm(A, np.asfortranarray(x), 4), bs.quantized_spmm(A, x, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda A, x: bs.quantized_spmm(A, x, 3), ValueError, "bits must be 2, 4 or 8, got 3"),
        (lambda A, x: bs.quantized_spmm(A, x[1:]), bs.errors.ShapeError, "30 columns but x has 29 rows"),
        (lambda A, x: bs.quantized_spmm(A, x.astype(float)), bs.errors.DTypeError, "float64"),
        (lambda A, x: bs.quantized_spmm(A, bs.quantize(x, 8)), bs.errors.DTypeError, "quantised already"),
        (lambda A, x: bs.quantized_spmm(A, x, seed=3), ValueError, "seed=3 has no effect"),
        (lambda A, x: bs.quantized_spmm(A, x * np.nan), ValueError, "NaN or infinity"),
        (lambda A, x: bs.quantized_spmm(A, x, reduce="max"), ValueError, "reduce must be"),
        (lambda A, x: bs.quantized_spmm_vjp(A, x), bs.errors.ShapeError, "40 rows"),
        (lambda A, x: bs.quantized_matmul_vjp(x, x.T, x), bs.errors.ShapeError, "goes with x"),
        (lambda A, x: bs.quantized_matmul_vjp(x, x.T, x[:, :1], wrt="y"), ValueError, "wrt"),
        (
            lambda A, x: bs.quantized_matmul_vjp(bs.quantize(x, 8), x.T[:, :4], x[:, :4], wrt="w"),
            ValueError,
            "one scale and no offset",
        ),
    ],
)
def test_errors_say_what_to_do(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(graph(), features(COLUMNS))


class Exported:
    """An array that is known only through DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_operands_may_be_known_through_dlpack_alone() -> None:
    x, w, gradient = (np.arange(m * n, dtype=np.float32).reshape(m, n) - 2 for m, n in ((2, 3), (3, 2), (2, 2)))
    want = bs.quantized_matmul_vjp(x, w, gradient)
    got = bs.quantized_matmul_vjp(Exported(x), Exported(w), Exported(gradient))
    assert all((one == other).all() for one, other in zip(got, want, strict=True))
    with pytest.raises(
        bs.ShapeError, match=r"^quantized_matmul_vjp: x has shape \(\), but a gradient of shape \(2, 2\)"
    ):
        bs.quantized_matmul_vjp(np.float32(1), w, gradient, wrt="x")
