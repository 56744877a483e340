"""Integer sums and products and their gradients on a GPU must have the same bits as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_quantized_gradients import COLUMNS, ROWS, features, graph

import bitsparse as bs
from bitsparse import interop
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized import vjp
from bitsparse.ops.quantized.attention import Settings, attention_of_codes, attention_of_codes_vjp
from bitsparse.ops.quantized.product import product_with_codes
from bitsparse.ops.quantized.scaled import scaled_codes, step_up_to
from bitsparse.ops.quantized.spmm import Own, sum_of_codes
from bitsparse.ops.quantized.vjp import product_of_codes

pytestmark = pytest.mark.gpu


def there(x: Any) -> Any:
    import cupy

    return cupy.asarray(x)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_their_gradients(bits: int, weighted: bool) -> None:
    A = graph(1, np.random.default_rng(2).standard_normal if weighted else None)
    row, col = np.linspace(0.5, 2, ROWS, dtype=np.float32), np.linspace(2, 0.25, COLUMNS, dtype=np.float32)
    array = bs.TCTiledCSR(A.astype(np.float32)).with_scales(row, col)
    array = array if weighted else array.with_values(None)
    x, gradient = features(COLUMNS), features(ROWS, 3, (2, 5))
    drawn = {"rounding": "stochastic", "seed": 3, "stream": 5}
    for granularity in ("tensor", "node"):
        for reduce in ("sum", "mean"):
            for how in ({}, drawn):
                given: Any = {"granularity": granularity, "reduce": reduce} | how
                want = bs.quantized_spmm(array, x, bits, **given)
                got = bs.quantized_spmm(array.to_device("cuda"), there(x), bits, **given)
                np.testing.assert_array_equal(got.get(), want)
                want = bs.quantized_spmm_vjp(array, gradient, bits, **given)
                got = bs.quantized_spmm_vjp(array.to_device("cuda"), there(gradient), bits, **given)
                np.testing.assert_array_equal(got.get(), want)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(300, 17, 9), (140, 200, 70)])
def test_gradients_of_products(rows: int, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, gradient = features(rows, 1, (inputs,)), features(inputs, 2, (outputs,)), features(rows, 3, (outputs,))
    for how in ({}, {"rounding": "stochastic", "seed": 3, "stream": 5}):
        want = bs.quantized_matmul_vjp(x, w, gradient, **how)
        for piece in (vjp.PIECE, 128):  # rows that are multiplied in pieces, with a remainder
            monkeypatch.setattr(vjp, "PIECE", piece)
            got = bs.quantized_matmul_vjp(there(x), there(w), there(gradient), **how)
            for one, other in zip(got, want, strict=True):
                np.testing.assert_array_equal(one.get(), other)
        monkeypatch.undo()


@pytest.mark.parametrize(("shape", "piece"), [((300, 41), 128), ((129, 130), 144), ((40, 602), 48), ((16, 1), 16)])
def test_bytes_turn(shape: tuple[int, int], piece: int) -> None:
    """Every byte must arrive at its transposed place, with zeros behind the last row."""
    from bitsparse.backends.cuda.matmul.bytes import scaled_sums, turned

    rng, (rows, columns) = np.random.default_rng(shape[0]), shape
    codes = rng.integers(-128, 128, shape).astype(np.int8)
    words = there(bs.BitTensor(codes, 8, encoding="signed", layout="rows").words)
    got = turned(words, columns, piece).get().view(np.int8).reshape(-1, columns, piece)
    want = np.zeros((-(-rows // piece) * piece, columns), np.int8)
    want[:rows] = codes
    np.testing.assert_array_equal(got, want.reshape(-1, piece, columns).transpose(0, 2, 1))
    sums, one, two = rng.integers(-(2**31), 2**31, (3, *shape)).astype(np.int32), np.float32(0.37), np.float32(1.9)
    kept = max(1, columns - 3)
    made = scaled_sums(there(sums), kept, there(np.array(one)), there(np.array(two))).get()
    np.testing.assert_array_equal(made, sums.sum(axis=0, dtype=np.int64).astype(np.float32)[:, :kept] * one * two)


@pytest.mark.parametrize(
    ("rows", "m", "n", "most"),
    [
        (1, 1, 1, 64),
        (300, 17, 41, 8192),
        (700, 130, 70, 128),
        (331, 9, 330, 8192),
        (64, 64, 64, 8192),
        (257, 70, 602, 192),
    ],
)
def test_bytes_are_multiplied_over_rows(rows: int, m: int, n: int, most: int) -> None:
    """Products of all byte values, -128 included, must be exact, also if tiles, pieces and stages end before a boundary."""
    from bitsparse.backends.cuda.matmul.bytes import product_over_rows

    rng = np.random.default_rng(rows)
    a, b = (rng.choice(np.array([-128, -127, -1, 0, 1, 2, 127], np.int8), (rows, columns)) for columns in (m, n))
    left, right = (there(bs.BitTensor(part, 8, encoding="signed", layout="rows").words) for part in (a, b))
    made = product_over_rows(left, right, m, n, most).get()
    assert len(made) >= -(-rows // most)
    np.testing.assert_array_equal(made[..., :n].sum(axis=0, dtype=np.int64), a.astype(np.int64).T @ b.astype(np.int64))


@pytest.mark.parametrize(("inputs", "outputs"), [(17, 9), (150, 9), (40, 128)])
def test_products_with_their_codes(inputs: int, outputs: int) -> None:
    """Products and their codes must equal the host's, also with a bias added and when accumulated onto a matrix."""
    x, w = features(300, 1, (inputs,)), features(inputs, 2, (outputs,))
    bias, before = features(outputs, 4, ()), features(300, 5, (outputs,))
    codes = bs.quantize(w, 8, scheme="symmetric", layout="rows")
    for coding in (Coding(8, "nearest", 0, 0, -1, "rows"), Coding(8, "stochastic", 5, 7, -1, "rows")):
        want = product_with_codes("test", x, codes, coding)
        got = product_with_codes("test", there(x), codes.to_device("cuda"), coding)
        np.testing.assert_array_equal(got[0].get(), want[0])
        np.testing.assert_array_equal(got[1].toarray().get(), want[1].toarray())
        np.testing.assert_array_equal(got[1].scale.get(), want[1].scale)
        assert got.largest is None or got.largest.get().item() == abs(want[0]).max()
        for place, x_codes in ((np.array, want[1]), (there, got[1])):
            right = codes.to_device(x_codes.device)
            for behind, joins in ((bias, False), (None, True), (bias, True)):
                wanted = want[0] if behind is None else want[0] + behind
                wanted = before + wanted if joins else wanted
                vector = None if behind is None else place(behind)
                outs = [place(before) if joins else None for _ in range(2)]
                made = product_with_codes("test", place(x), right, coding, vector, outs[0])[0]
                again = product_of_codes("test", x_codes, right, vector, outs[1])
                for one in (made, again, *(out for out in outs if out is not None)):
                    np.testing.assert_array_equal(one.get() if place is there else one, wanted)
    x[3, 3] = np.nan
    made = product_with_codes("test", there(x), codes.to_device("cuda"), coding)
    assert np.isnan(made.product.get()).all()
    assert made.largest is None or np.isnan(made.largest.get())


@pytest.mark.parametrize("shape", [(300, 24), (37, 13)])
@pytest.mark.parametrize("granularity", ["tensor", "node"])
def test_the_number_of_a_stream_is_read_when_the_kernel_runs(shape: tuple[int, int], granularity: str) -> None:
    """Codes, and products that return their codes, must use the stream number that is in memory when the kernel runs."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    codes = bs.quantize(there(x[:5].T.copy()), 8, scheme="symmetric", layout="rows")
    number = there(np.zeros(1, np.uint32))
    for stream in (7, 2**32 - 1):
        by_value, by_address = (Coding(8, "stochastic", 5, one, -1, "rows") for one in (stream, number))
        number.fill(stream)
        want, got = (
            scaled_codes("test", "x", there(x), interop.CUPY, one, granularity) for one in (by_value, by_address)
        )
        np.testing.assert_array_equal(got.dequantize().get(), want.dequantize().get())
        want, got = (product_with_codes("test", there(x), codes, one) for one in (by_value, by_address))
        np.testing.assert_array_equal(got[1].toarray().get(), want[1].toarray().get())
        np.testing.assert_array_equal(got[0].get(), want[0].get())
        host = scaled_codes("test", "x", x, interop.NUMPY, by_value, granularity)
        np.testing.assert_array_equal(
            host.dequantize(),
            scaled_codes("test", "x", there(x), interop.CUPY, by_address, granularity).dequantize().get(),
        )


def test_what_is_not_finite_makes_all_of_it_nan() -> None:
    A, x = graph(), features(COLUMNS)
    x[4, 2] = np.inf
    for bits in (8, 4):
        made = bs.quantized_spmm(bs.TCTiledCSR(A).to_device("cuda"), there(x), bits).get()
        assert np.isnan(made[np.diff(A.indptr) > 0]).all()


@pytest.mark.parametrize(("heads", "width"), [(4, 32), (1, 41), (3, 5)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_attention_of_codes(heads: int, width: int, dropout: float) -> None:
    """Attention must agree with the CPU, which gathers dequantised values instead of 8-bit codes; hubs are joined from pieces."""
    rng = np.random.default_rng(heads)
    dense = rng.random((50, 50)) < 0.1
    dense[7] = True
    dense[3] = False
    array = bs.TCTiledCSR(dense | dense.T)
    x, gradient = (rng.standard_normal((50, heads, width)).astype(np.float32) for _ in range(2))
    ends = [rng.standard_normal((50, heads)).astype(np.float32) for _ in range(2)]
    coding, how = Coding(8, "stochastic", 5, 7, -1, "rows"), Settings(0.2, dropout, 3 if dropout else None)

    def both(place: Any, operand: Any) -> list[np.ndarray]:
        family = interop.NUMPY if operand.device == "cpu" else interop.CUPY
        codes = [scaled_codes("test", "x", place(part), family, coding) for part in (x, gradient)]
        state = attention_of_codes(operand, codes[0], *map(place, ends), how)
        stand_for, scores = codes[0].dequantize().reshape(x.shape), tuple(map(place, ends))
        made = attention_of_codes_vjp(operand, stand_for, scores, place(gradient), codes[1], state, how)
        return [part if isinstance(part, np.ndarray) else part.get() for part in (*state, *made)]

    names = ("result", "lse", "share", "above", "x", "source", "target")
    for name, got, want in zip(names, both(there, array.to_device("cuda")), both(np.asarray, array), strict=True):
        assert got.shape == want.shape
        # Products of a node's own rows use its unrounded gradient on a GPU, and the dequantised one on the CPU.
        bound = 3e-2 if name in ("source", "target") else 1e-5
        largest = max(1.0, float(np.abs(want[np.isfinite(want)]).max()))
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound * largest, err_msg=name)


@pytest.mark.parametrize(
    ("name", "sizes"), [("x", (49, 49, 50)), ("x", (51, 51, 50)), ("source", (50, 49, 50)), ("target", (50, 50, 51))]
)
def test_attention_of_codes_of_other_nodes_is_refused(name: str, sizes: tuple[int, ...]) -> None:
    """Sizes of other nodes must be refused, as on the CPU, before a kernel reads beyond an array."""
    array = bs.TCTiledCSR(np.eye(50, dtype=bool))
    nodes, *ends = sizes
    coding = Coding(8, "nearest", 0, 0, -1, "rows")
    for place, operand, family in ((np.asarray, array, interop.NUMPY), (there, array.to_device("cuda"), interop.CUPY)):
        codes = scaled_codes("test", "x", place(np.ones((nodes, 2, 5), np.float32)), family, coding)
        scores = [place(np.ones((size, 2), np.float32)) for size in ends]
        with pytest.raises(bs.ShapeError, match=f"attention: .*{name} has"):
            attention_of_codes(operand, codes, *scores, Settings(0.2, 0.0, None))


@pytest.mark.parametrize("nodes", [49, 51])
def test_sums_of_codes_of_other_nodes_are_refused(nodes: int) -> None:
    array = bs.TCTiledCSR(np.eye(50, dtype=bool))
    coding = Coding(8, "nearest", 0, 0, -1, "rows")
    for place, operand, family in ((np.asarray, array, interop.NUMPY), (there, array.to_device("cuda"), interop.CUPY)):
        codes = scaled_codes("test", "x", place(np.ones((nodes, 5), np.float32)), family, coding)
        with pytest.raises(bs.ShapeError, match="test: A has 50 columns but x has"):
            sum_of_codes("test", as_csr("test", operand), codes, None, None, "sum", True)


@pytest.mark.parametrize("shape", [(300, 128), (301, 41), (57, 64), (40, 1), (9, 8)])
@pytest.mark.parametrize("size", [1.0, 3e-9])
def test_codes_of_rows_times_factors(shape: tuple[int, int], size: float) -> None:
    """Codes must be those of the rounded products, also if steps are small and if a value is not finite."""
    rng = np.random.default_rng(shape[1])
    x, factors = features(shape[0], 5, shape[1:]) * np.float32(size), rng.uniform(-2, 2, shape[0]).astype(np.float32)
    x[3, 0], x[5] = 1e-44, 0
    for coding in (Coding(8, "nearest", 0, 0, -1, "rows"), Coding(8, "stochastic", 5, 7, -1, "rows")):
        want = scaled_codes("test", "x", x * factors[:, None], interop.NUMPY, coding).codes
        for given in ((x, factors, interop.NUMPY), (there(x), there(factors), interop.CUPY)):
            got = scaled_codes("test", "x", given[0], given[2], coding, "tensor", given[1]).codes.to_device("cpu")
            np.testing.assert_array_equal(got.scale, want.scale)
            np.testing.assert_array_equal(got.words, want.words)
    x[2, 0] = np.inf
    got = scaled_codes("test", "x", there(x), interop.CUPY, coding, "tensor", there(factors)).codes
    assert np.isnan(got.scale.get())


@pytest.mark.parametrize(("width", "granularity"), [(41, "tensor"), (41, "node"), (64, "tensor"), (70, "tensor")])
def test_sums_of_rows_that_many_gather(width: int, granularity: str) -> None:
    """Sums must equal the host's if short rows are moved apart first, with multiples of the rows themselves and without."""
    rng = np.random.default_rng(width)
    A = bs.TCTiledCSR(rng.random((40, 40)) < 0.7)
    x, factor = rng.standard_normal((40, width)).astype(np.float32), np.array([1.3], np.float32)
    for own in (False, True):
        made: list[Any] = []
        for array, family, place in ((A, interop.NUMPY, np.asarray), (A.to_device("cuda"), interop.CUPY, there)):
            codes = scaled_codes("test", "x", place(x), family, Coding(8, "nearest", 0, 0, -1, "rows"), granularity)
            added = Own(place(x), place(factor)) if own else None
            made.append(sum_of_codes("test", as_csr("test", array), codes, None, None, "sum", True, added))
        np.testing.assert_array_equal(made[1].get(), made[0])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_steps_of_largest_magnitudes(bits: int) -> None:
    values = np.array([0, 1e-45, 1e-38, 2.0**-126, 1e-36, 0.37, 1, 254, 3e38, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(step_up_to(there(values), bits).get(), step_up_to(values, bits))
    assert step_up_to(there(values[5]), bits).shape == ()
