"""Products per edge of packed integers on the GPU, against exact integers, the host's floats and float64, in poisoned arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs, pattern, same
from test_gpu_bits import empty, raw, to_host

import bitsparse as bs
from bitsparse.arrays.inside import store_of
from bitsparse.ops.edges.products import CODE_CALLS, CODE_PRODUCTS

pytestmark = pytest.mark.gpu

GRAPHS = {name: graph for name, graph in graphs().items() if graph.nnz} | {
    "hubs": pattern([2, 300, 0, 256, 3, 99, 0, 1], 400)
}
ENCODINGS = ("unsigned", "signed", "bipolar")


def codes(rng: np.random.Generator, shape: tuple[int, ...], bits: int, encoding: Any, **form: Any) -> bs.BitTensor:
    """Return integers over the whole range; the first row holds the largest one and the last row the smallest."""
    low, high = {"unsigned": (0, 2**bits - 1), "signed": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), "bipolar": (0, 1)}[
        encoding
    ]
    values = rng.integers(low, high, shape, endpoint=True)
    values[:1], values[-1:] = high, low
    values = 2 * values - 1 if encoding == "bipolar" else values
    return bs.BitTensor(values, bits, encoding=encoding, **({"layout": "rows"} | form))


def affine(rng: np.random.Generator, q: bs.BitTensor, along: str, offset: bool = True) -> bs.BitTensor:
    """Add a scale of both signs and an offset of another magnitude, one for the tensor or one per row or column."""
    rows, columns = q.shape[-2:]
    shape = {"tensor": (), "row": (*q.shape[:-2], rows, 1), "column": (*(1,) * (q.ndim - 1), columns)}[along]
    scale, shift = (rng.standard_normal(shape).astype(np.float32) for _ in "ab")
    return q.with_affine(scale + np.copysign(np.float32(0.1), scale), 3 * shift if offset else None)


def reals(q: bs.BitTensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the values in float64, without rounding, and the magnitudes that bound their errors: |scale q| + |offset|."""
    scaled = q.toarray().astype(np.float64) * (1.0 if q.scale is None else q.scale.astype(np.float64))
    offset = 0.0 if q.offset is None else q.offset.astype(np.float64)
    return scaled + offset, abs(scaled) + abs(offset)


def check(A: sp.csr_array, x: bs.BitTensor, y: bs.BitTensor | None, op: Any, there: Any = None) -> None:
    """Require the bits of the host, which unpacks; dot products of real values only have to be within a bound of float64."""
    pattern_there = bs.TCTiledCSR(A).to_device("cuda") if there is None else there
    ends = [one.to_device("cuda") for one in ((x,) if y is None else (x, y))]
    want = bs.sddmm(A, x, y, op=op)
    out = empty(want.shape, want.dtype)
    assert bs.sddmm(pattern_there, *ends, op=op, out=out) is out
    got = to_host(out)
    same(to_host(bs.sddmm(pattern_there, *ends, op=op)), got)
    if op != "dot" or want.dtype.kind == "i":
        same(got, want)
        return
    rows, cols = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.indices
    (left, a), (right, b) = reals(x), reals(x if y is None else y)
    exact, size = (left[rows] * right[cols]).sum(axis=-1), (a[rows] * b[cols]).sum(axis=-1)
    assert got.dtype == want.dtype
    assert (abs(got - exact) <= 8 * 2.0**-24 * size).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("columns", [1, 31, 33, 100, 128, 256, 602])
def test_dot_products_are_exact(columns: int, bits: int) -> None:
    rng = np.random.default_rng([columns, bits])
    A = GRAPHS["square"]
    there = bs.TCTiledCSR(A).to_device("cuda")
    encodings = ENCODINGS if bits == 1 else ENCODINGS[:2]
    # At one width, test every pair of encodings, each with its own compiled kernel; at the other widths, one pair.
    pairs = [(one, other) for one in encodings for other in encodings] if columns == 33 else [("signed", "signed")]
    for one, other in pairs:
        check(A, codes(rng, (81, columns), bits, one), codes(rng, (81, columns), bits, other), "dot", there)


@pytest.mark.parametrize("name", GRAPHS)
def test_patterns(name: str) -> None:
    A, rng = GRAPHS[name], np.random.default_rng(7)
    x, y = (codes(rng, (n, 20), 8, "unsigned") for n in A.shape)
    for op in ("dot", "add", "mul"):
        check(A, x, y, op)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("columns", [1, 6, 100])
def test_sums_and_products(columns: int, bits: int) -> None:
    rng = np.random.default_rng([columns, bits])
    A = GRAPHS["square"]
    there = bs.TCTiledCSR(A).to_device("cuda")
    for one, other in (("signed", "unsigned"), ("bipolar", "signed")) if bits == 1 else (("signed", "unsigned"),):
        x, y = codes(rng, (81, columns), bits, one), codes(rng, (81, columns), bits, other)
        for op in ("add", "mul"):
            check(A, x, y, op, there)
        # With scales of any kind on both sides, the values are dequantised in the kernel: same bits as dequantising first.
        for along, offset in (("row", True), ("column", False)):
            check(A, affine(rng, x, along, offset), affine(rng, y, "tensor"), "add", there)
            check(A, x, affine(rng, y, along), "mul", there)


@pytest.mark.parametrize(("bits", "columns"), [(8, 128), (4, 33), (2, 70), (1, 200)])
def test_dot_products_of_real_values(bits: int, columns: int) -> None:
    rng = np.random.default_rng(bits)
    A = GRAPHS["hubs"]
    there = bs.TCTiledCSR(A).to_device("cuda")
    encoding = "bipolar" if bits == 1 else "signed"
    x, y = codes(rng, (A.shape[0], columns), bits, encoding), codes(rng, (A.shape[1], columns), bits, "unsigned")
    check(A, affine(rng, x, "row", False), affine(rng, y, "tensor", False), "dot", there)
    check(A, affine(rng, x, "tensor"), affine(rng, y, "row"), "dot", there)
    check(A, x, affine(rng, y, "row", False), "dot", there)
    # With a scale per column, the sum is not one of integers: values are dequantised first, within the bound of floats.
    wanted = bs.sddmm(A, x, affine(np.random.default_rng(1), y, "column"))
    got = bs.sddmm(there, x.to_device("cuda"), affine(np.random.default_rng(1), y, "column").to_device("cuda"))
    np.testing.assert_allclose(to_host(got), wanted, rtol=1e-4, atol=1e-3 * columns)


def test_heads() -> None:
    rng = np.random.default_rng(3)
    for name, heads, width in (("square", 3, 40), ("hubs", 4, 8)):
        A = GRAPHS[name]
        x, y = (codes(rng, (n, heads, width), 4, "signed") for n in A.shape)
        for op in ("dot", "add", "mul"):
            check(A, x, y, op)
            check(A, affine(rng, x, "row"), affine(rng, y, "column" if op != "dot" else "tensor"), op)


def test_other_forms_of_the_same_integers() -> None:
    rng = np.random.default_rng(4)
    A = GRAPHS["square"]
    there = bs.TCTiledCSR(A).to_device("cuda")
    x = codes(rng, (81, 50), 8, "unsigned")
    check(A, x, None, "dot", there)
    check(A, x, codes(rng, (81, 50), 8, "signed", layout="planes"), "dot", there)
    check(A, codes(rng, (50, 81), 4, "unsigned", axis=-2).T, codes(rng, (81, 50), 4, "signed"), "dot", there)
    # Operands of different widths are both stored at the wider one; unsupported widths at the next supported one.
    check(A, x, codes(rng, (81, 50), 3, "signed", layout="planes"), "dot", there)
    check(A, affine(rng, codes(rng, (81, 50), 1, "bipolar"), "row"), codes(rng, (81, 50), 2, "unsigned"), "dot", there)
    check(A, x, codes(rng, (81, 50), 16, "unsigned"), "dot", there)  # unpacked
    mixed, order = A[:, ::-1][:, ::-1].copy(), np.arange(A.nnz)
    for first, end in zip(A.indptr[:-1], A.indptr[1:], strict=True):
        order[first:end] = order[first:end][::-1]
    mixed = sp.csr_array((A.data, A.indices[order], A.indptr), shape=A.shape)
    y = codes(rng, (81, 50), 8, "signed").to_device("cuda")
    import cupyx.scipy.sparse as cusp  # keeps the caller's own order of edges

    foreign = cusp.csr_matrix(mixed)
    same(to_host(bs.sddmm(foreign, x.to_device("cuda"), y)), bs.sddmm(mixed, x, y.to_device("cpu")))


def test_wide_indices() -> None:
    A, rng = GRAPHS["hubs"], np.random.default_rng(5)
    there = bs.TCTiledCSR(A, index_dtype=np.int64).to_device("cuda")
    x, y = (codes(rng, (n, 2, 12), 8, "signed") for n in A.shape)
    for op in ("dot", "add"):
        check(A, x, y, op, there)


def test_a_product_is_prepared_once_and_captured() -> None:
    import cupy

    A, rng = GRAPHS["hubs"], np.random.default_rng(8)
    there = bs.TCTiledCSR(A).to_device("cuda")
    x, y = (affine(rng, codes(rng, (n, 64), 8, "signed"), "row").to_device("cuda") for n in A.shape)
    for op in ("dot", "mul"):
        want = bs.sddmm(there, x, y, op=op)
        out = empty(want.shape, np.float32)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            bs.sddmm(there, x, y, op=op, out=out)
            graph = stream.end_capture()
            graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(raw(out).get(), raw(want).get())
    assert len(CODE_PRODUCTS.all(store_of(there))) == 2


def test_later_calls_give_the_same() -> None:
    A, rng = GRAPHS["square"], np.random.default_rng(10)
    there = bs.TCTiledCSR(A).to_device("cuda")
    for op in ("dot", "mul"):
        for along in ("tensor", "row"):
            for _ in range(3):  # other integers, scales and offsets of the same kind
                x, y = (affine(rng, codes(rng, (81, 20), 8, "signed"), along) for _ in "xy")
                check(A, x, y, op, there)
        check(A, x, None, op, there)
        check(A, codes(rng, (81, 20), 8, "signed"), x, op, there)
    assert len(CODE_CALLS.all(store_of(there))) == 6
    far = bs.TCTiledCSR(A, index_dtype=np.int64).to_device("cuda")
    check(A, x, y, "dot", far)


def test_wrong_calls() -> None:
    A, rng = GRAPHS["square"], np.random.default_rng(9)
    there = bs.TCTiledCSR(A).to_device("cuda")
    x = codes(rng, (81, 8), 8, "unsigned").to_device("cuda")
    bs.sddmm(there, x)
    with pytest.raises(ValueError, match="op"):
        bs.sddmm(there, x, op=["dot"])
    with pytest.raises(bs.ShapeError, match="sddmm: A has 81 columns but y has 80 rows"):
        bs.sddmm(there, x, codes(rng, (80, 8), 8, "unsigned").to_device("cuda"))
    with pytest.raises(bs.ShapeError, match="all but the first"):
        bs.sddmm(there, x, codes(rng, (81, 9), 8, "unsigned").to_device("cuda"))
    with pytest.raises(bs.DeviceError, match="y is on cpu"):
        bs.sddmm(there, x, x.to_device("cpu"))
    with pytest.raises(bs.DTypeError):
        bs.sddmm(there, x, out=empty((A.nnz,), np.float32))
