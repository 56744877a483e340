"""Arrays of every library are accepted, results are returned in the same library, and nothing is copied if the documentation says so."""

from __future__ import annotations

import array
import importlib

import array_api_strict
import ml_dtypes
import numpy as np
import pytest
from cases import MEMORY, lay_out, same

import bitsparse as bs
from bitsparse import interop

torch_only = pytest.mark.torch
jax_only = pytest.mark.jax


class Library:
    """Makes and recognises the arrays of one library."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def module(self):
        return importlib.import_module({"numpy": "numpy", "strict": "array_api_strict"}.get(self.name, self.name))

    def make(self, x: np.ndarray):
        if self.name == "torch":
            return self.module.from_numpy(x.copy())
        if self.name == "jax":
            return self.module.numpy.asarray(x)
        return self.module.asarray(x)

    def owns(self, x: object) -> bool:
        kind = {"numpy": np.ndarray, "strict": type(array_api_strict.ones(1))}.get(self.name)
        if kind is None:
            kind = self.module.Tensor if self.name == "torch" else self.module.Array
        return isinstance(x, kind)

    def numpy(self, x) -> np.ndarray:
        return np.from_dlpack(x) if self.name == "strict" else np.asarray(x)


LIBRARIES = [
    pytest.param(Library("numpy"), id="numpy"),
    pytest.param(Library("strict"), id="array_api_strict"),
    pytest.param(Library("torch"), id="torch", marks=torch_only),
    pytest.param(Library("jax"), id="jax", marks=jax_only),
]
DATA = np.random.default_rng(0).integers(0, 8, (12, 150)).astype(np.int32)
REAL = np.random.default_rng(1).normal(size=(12, 150)).astype(np.float32)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32"])
def test_integers_in_and_out(library: Library, dtype: str) -> None:
    x = (DATA > 3) if dtype == "bool" else DATA.astype(dtype)
    q = bs.pack_bits(library.make(x))
    assert q.bits == (1 if dtype == "bool" else 3)
    back = bs.unpack_bits(q)
    assert library.owns(back)
    assert np.array_equal(library.numpy(back), x)
    same(q.words, bs.pack_bits(x).words)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_reals_in_and_out(library: Library, dtype: str) -> None:
    if dtype == "float64" and library.name == "jax":
        with importlib.import_module("jax").enable_x64(True):
            _reals(library, dtype)
    elif dtype == "float16" and library.name == "strict":
        with pytest.raises((TypeError, ValueError)):
            library.make(REAL.astype(dtype)).__add__(1.0)
    else:
        _reals(library, dtype)


def _reals(library: Library, dtype: str) -> None:
    x = REAL.astype(dtype)
    q = bs.quantize(library.make(x), 6)
    want = bs.quantize(x, 6)
    same(q.words, want.words)
    same(np.asarray(q.scale), np.asarray(want.scale))
    back = bs.dequantize(q)
    assert library.owns(back)
    same(np.ascontiguousarray(library.numpy(back)), want.dequantize())
    rounded = bs.stochastic_round(library.make(x), seed=1)
    assert library.owns(rounded)
    same(np.ascontiguousarray(library.numpy(rounded)), bs.stochastic_round(x, seed=1))
    assert bs.quantization_error(library.make(x), q) == bs.quantization_error(x, want)
    assert bs.choose_bits(library.make(x)) == bs.choose_bits(x)


@pytest.mark.parametrize("library", LIBRARIES)
def test_products_come_back_in_the_callers_family(library: Library) -> None:
    y = np.random.default_rng(2).integers(-2, 2, (150, 9)).astype(np.int32)
    want = DATA.astype(np.int64) @ y
    a = bs.pack_bits(library.make(DATA))
    b = bs.pack_bits(library.make(y), 2, encoding="signed", axis=-2)
    numpy_b = bs.pack_bits(y, 2, encoding="signed", axis=-2)
    assert a.family == ("array_api_strict" if library.name == "strict" else library.name)
    for got in (a @ b, a @ numpy_b, bs.matmul(library.make(DATA), numpy_b), bs.matmul(a, b, kernel="digits")):
        assert library.owns(got)
        assert np.array_equal(library.numpy(got), want)
    real = bs.matmul(a, b, epilogue=bs.Epilogue(col_scale=library.make(np.full(9, 0.5, np.float32))))
    assert library.owns(real)
    assert np.array_equal(library.numpy(real), want.astype(np.float32) / 2)
    bits = bs.matmul(a, b, epilogue=bs.Epilogue(bits=4, out_scale=8.0))
    assert library.owns(bits.toarray())
    decoded = a * 2
    assert library.owns(decoded)
    assert np.array_equal(library.numpy(decoded), DATA * 2)


@pytest.mark.parametrize("library", [p for p in LIBRARIES if p.id in ("numpy", "torch")])
def test_operators_from_the_other_side(library: Library) -> None:
    y = bs.pack_bits(np.random.default_rng(2).integers(0, 4, (150, 9)), axis=-2)
    x = library.make(DATA)
    got = x @ y
    assert library.owns(got)
    assert np.array_equal(library.numpy(got), DATA.astype(np.int64) @ np.asarray(y.toarray()))
    q = bs.pack_bits(DATA)
    for result, want in ((x + q, DATA * 2), (x - q, DATA * 0), (x * q, DATA * DATA)):
        assert library.owns(result)
        assert np.array_equal(library.numpy(result), want)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "float64"])
def test_any_numpy_memory_layout(memory: str, dtype: str) -> None:
    x = lay_out((DATA > 3).astype(dtype), memory)
    before = x.copy()
    assert np.array_equal(bs.pack_bits(x, 1).toarray(), (before >= 0) if x.dtype.kind == "f" else before)
    if dtype == "bool":
        same(bs.quantize(x, 3).words, bs.quantize(before.astype(np.float32), 3).words)
    else:
        same(bs.quantize(x, 3).words, bs.quantize(before, 3).words)
    same(np.ascontiguousarray(x), np.ascontiguousarray(before))


def test_broadcast_and_zero_stride_inputs() -> None:
    row = np.arange(150, dtype=np.int16) % 5
    x = np.broadcast_to(row, (4, 7, 150))
    assert np.array_equal(bs.pack_bits(x).toarray(), x)
    real = np.broadcast_to(REAL[:1], (7, 150))
    same(bs.quantize(real, 4).words, bs.quantize(real.copy(), 4).words)


def test_read_only_words_are_adopted() -> None:
    source = bs.pack_bits(DATA)
    frozen = source.words.view()
    frozen.flags.writeable = False
    q = bs.BitTensor.from_words(frozen, DATA.shape, 3)
    assert np.shares_memory(q.words, source.words)
    assert np.array_equal(q.toarray(), DATA)
    assert np.array_equal((q @ q.T), DATA @ DATA.T)
    assert np.array_equal((~q).toarray(), 7 - DATA)


def test_bfloat16_of_ml_dtypes() -> None:
    x = REAL.astype(ml_dtypes.bfloat16)
    same(bs.quantize(x, 5).words, bs.quantize(x.astype(np.float32), 5).words)
    assert np.array_equal(bs.pack_bits(x, 1).toarray(), x >= 0)
    q = bs.quantize(x, 8)
    same(q.dequantize(ml_dtypes.bfloat16), q.dequantize().astype(ml_dtypes.bfloat16))


def test_sequences_buffers_and_foreign_protocols() -> None:
    assert bs.pack_bits([[1, 0], [3, 2]]).toarray().tolist() == [[1, 0], [3, 2]]
    buffer = memoryview(array.array("H", [1, 2, 3, 4])).cast("B").cast("H", (2, 2))
    assert bs.pack_bits(buffer).toarray().tolist() == [[1, 2], [3, 4]]

    class OnlyDLPack:
        def __init__(self, x: np.ndarray) -> None:
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    class OnlyInterface:
        def __init__(self, x: np.ndarray) -> None:
            self.__array_interface__ = x.__array_interface__
            self.x = x

    for wrapper in (OnlyDLPack, OnlyInterface):
        got = bs.pack_bits(wrapper(DATA))
        assert np.array_equal(got.toarray(), DATA)


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_are_viewed_without_a_copy(library: Library) -> None:
    x = library.make(REAL)
    view, family = interop.as_numpy(x, "test")
    assert np.shares_memory(view, library.numpy(x))
    assert family.name == ("array_api_strict" if library.name == "strict" else library.name)


@pytest.mark.parametrize("library", [p for p in LIBRARIES if p.id != "jax"])
def test_results_are_handed_over_without_a_copy(library: Library) -> None:
    result = np.arange(6, dtype=np.int32).reshape(2, 3)
    family = interop.as_numpy(library.make(DATA), "test")[1]
    theirs = interop.from_array(result, family, "test")
    assert library.owns(theirs)
    assert np.shares_memory(library.numpy(theirs), result)


def test_components_carry_dlpack() -> None:
    q = bs.quantize(REAL, 4, granularity="row")
    for component in (q.words, q.scale, q.offset, q.tile_bitmap):
        same(np.from_dlpack(component), component)


@pytest.mark.parametrize("library", [p for p in LIBRARIES if p.id in ("numpy", "torch")])
def test_out_may_be_of_the_library(library: Library) -> None:
    b = bs.pack_bits(np.ones((150, 4), np.int8), axis=-2)
    out = library.make(np.full((12, 4), -1, np.int32))
    assert bs.matmul(bs.pack_bits(DATA), b, out=out) is out
    assert np.array_equal(library.numpy(out), DATA.sum(1, keepdims=True).repeat(4, 1))


def test_out_of_an_immutable_library_is_refused() -> None:
    b = bs.pack_bits(np.ones((150, 4), np.int8), axis=-2)
    with pytest.raises((TypeError, ValueError), match="matmul: out"):
        bs.matmul(bs.pack_bits(DATA), b, out=[[0] * 4] * 12)


# ---- PyTorch
@torch_only
def test_torch_bfloat16_both_ways() -> None:
    import torch

    x = torch.from_numpy(REAL).to(torch.bfloat16)
    same(bs.quantize(x, 5).words, bs.quantize(x.float().numpy(), 5).words)
    back = bs.quantize(x, 8).dequantize(ml_dtypes.bfloat16)
    assert back.dtype == torch.bfloat16
    assert torch.equal(back.float(), bs.quantize(x, 8).dequantize().to(torch.bfloat16).float())


@torch_only
def test_torch_refusals_name_the_remedy() -> None:
    import torch

    x = torch.from_numpy(REAL)
    with pytest.raises(bs.DTypeError, match=r"quantize: x requires a gradient.*detach"):
        bs.quantize(x.clone().requires_grad_(), 4)
    with pytest.raises(bs.DTypeError, match=r"pack_bits: x is a .*sparse.*to_dense"):
        bs.pack_bits(torch.eye(4, dtype=torch.int32).to_sparse())
    with pytest.raises(bs.DeviceError, match=r"quantize: x is on meta"):
        bs.quantize(torch.empty(3, 4, device="meta"), 4)
    with pytest.raises(bs.DTypeError, match="complex"):
        bs.quantize(torch.zeros(2, 2, dtype=torch.complex64), 4)
    with pytest.raises(bs.DTypeError, match=r"bfloat16"):
        bs.matmul(bs.pack_bits(DATA), bs.pack_bits(DATA.T, axis=-2), out=torch.zeros(12, 12, dtype=torch.bfloat16))


@torch_only
def test_torch_views() -> None:
    import torch

    x = torch.from_numpy(DATA)
    assert np.array_equal(bs.pack_bits(x.T).toarray(), DATA.T)
    assert np.array_equal(bs.pack_bits(x[::2, 1::3]).toarray(), DATA[::2, 1::3])
    assert np.array_equal(bs.pack_bits(x[:1].expand(5, 150)).toarray(), DATA[:1].repeat(5, 0))
    words = torch.from_numpy(bs.pack_bits(DATA).words.view(np.int32).copy())
    q = bs.BitTensor.from_words(words, DATA.shape, 3)
    assert q.family == "torch"
    assert np.shares_memory(q.words, words.numpy())
    assert torch.equal(q.toarray(), torch.from_numpy(DATA.astype(np.uint8)))


# ---- JAX
@jax_only
def test_jax_refuses_to_truncate_silently() -> None:
    import jax

    wide = jax.numpy.full((2, 40000), 255, dtype=jax.numpy.uint8)
    a = bs.pack_bits(wide)
    with pytest.raises(bs.DTypeError, match=r"matmul: the result is int64.*jax_enable_x64"):
        a @ a.T
    with pytest.raises(bs.DTypeError, match="dequantize"):
        a.dequantize(np.float64)


@jax_only
def test_jax_tracers_are_refused() -> None:
    import jax

    with pytest.raises(bs.DTypeError, match=r"quantize: x is a JAX tracer.*outside of jit"):
        jax.jit(lambda x: bs.quantize(x, 4).toarray())(jax.numpy.ones((3, 4)))


# ---- inputs that are not arrays
@pytest.mark.parametrize(
    "thing", [None, "text", {1: 2}, object(), {1, 2}, b"bytes"], ids=lambda thing: type(thing).__name__
)
def test_things_that_are_no_arrays(thing: object) -> None:
    for call in (lambda: bs.pack_bits(thing), lambda: bs.quantize(thing, 4), lambda: bs.stochastic_round(thing)):
        with pytest.raises((bs.DTypeError, bs.ShapeError), match=r"(pack_bits|quantize|stochastic_round): x"):
            call()


def test_masked_and_sparse_arrays_are_not_taken_silently() -> None:
    import scipy.sparse as sp

    with pytest.raises(bs.DTypeError, match=r"quantize: x is a masked array.*filled"):
        bs.quantize(np.ma.masked_less(REAL, 0), 4)
    for sparse in (sp.csr_array(DATA), sp.coo_matrix(DATA)):
        with pytest.raises(bs.DTypeError, match=r"quantize: x is a .*toarray"):
            bs.quantize(sparse, 4)
