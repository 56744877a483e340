"""Reductions of a BitTensor equal NumPy's reductions of its integers, on the CPU and on a GPU; its words are not exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bitsparse as bs

NAMES = ("sum", "count_nonzero", "any", "all")


def made(rng: np.random.Generator, shape: tuple[int, ...], encoding: str, bits: int) -> np.ndarray:
    low, high = {"unsigned": (0, 2**bits), "signed": (-(2 ** (bits - 1)), 2 ** (bits - 1)), "bipolar": (0, 2)}[encoding]
    values = rng.integers(low, high, shape)
    if encoding == "bipolar":
        return values * 2 - 1
    values[rng.random(shape) < 0.3] = 0
    values[rng.random(shape[:-1]) < 0.2] = 0
    return values


FORMS = st.sampled_from(
    [("unsigned", 1), ("unsigned", 3), ("unsigned", 32), ("signed", 4), ("bipolar", 1), ("signed", 16)]
)
SHAPES = st.lists(st.integers(0, 6), min_size=0, max_size=2).flatmap(
    lambda batch: st.tuples(st.integers(0, 40), st.integers(0, 140)).map(lambda last: (*batch, *last))
)


def compare(form: tuple[str, int], shape: tuple[int, ...], seed: int, device: str) -> None:
    rng = np.random.default_rng(seed)
    encoding, bits = form
    values = made(rng, shape, encoding, bits)
    layout = "rows" if bits in (1, 4, 16) and rng.random() < 0.5 else "planes"
    x = bs.BitTensor(values, bits, encoding=encoding, axis=int(rng.integers(-2, 0)), layout=layout).to_device(device)
    axes = tuple(int(one) for one in rng.permutation(len(shape))[: rng.integers(0, len(shape) + 1)])
    axis: Any = None if not axes else axes[0] - len(shape) if len(axes) == 1 and rng.random() < 0.5 else axes
    keepdims = bool(rng.random() < 0.5)
    for name in NAMES:
        want = getattr(np, name)(values, axis=axis, keepdims=keepdims)
        got = getattr(x, name)(axis=axis, keepdims=keepdims)
        got = got.get() if hasattr(got, "get") else got
        assert np.shape(got) == np.shape(want)
        assert np.asarray(got).dtype == (np.bool_ if name in ("any", "all") else np.int64)
        assert np.array_equal(got, want), (name, axis)


@given(FORMS, SHAPES, st.integers(0, 9999))
def test_reductions_are_numpys(form: tuple[str, int], shape: tuple[int, ...], seed: int) -> None:
    compare(form, shape, seed, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("form", [("unsigned", 1), ("unsigned", 3), ("signed", 4), ("bipolar", 1)])
def test_reductions_on_a_gpu(form: tuple[str, int]) -> None:
    for seed, shape in enumerate([(5, 7), (3, 4, 130), (2, 3, 33, 5)]):
        compare(form, shape, seed, "cuda")


def test_numpys_functions() -> None:
    x = bs.BitTensor(np.array([[0, 1, 5], [7, 2, 0]]))
    assert np.sum(x) == 15
    assert np.any(x, axis=0).tolist() == [True, True, True]
    assert not np.all(x)
    assert np.count_nonzero(x, axis=1).tolist() == [2, 2]


def test_refusals() -> None:
    x = bs.BitTensor(np.array([[0, 1, 5], [7, 2, 0]]), scale=0.5)
    for call, error, match in (
        (lambda: x.sum(), bs.DTypeError, r"sum: .*x\.dequantize\(\)\.sum"),
        (lambda: x.with_affine(offset=1).any(), bs.DTypeError, r"any: .*dequantize"),
        (lambda: x.count_nonzero(2), bs.ShapeError, r"axis=2 is out of bounds for 2 dimensions"),
        (lambda: x.count_nonzero((0, -2)), bs.ShapeError, r"names an axis twice"),
        (lambda: x.count_nonzero(0.5), bs.DTypeError, r"axis must be"),
        (lambda: x.count_nonzero(keepdims=1), bs.DTypeError, r"keepdims must be True or False"),
        (lambda: np.sum(x.with_affine(), dtype=int), TypeError, "dtype"),
    ):
        with pytest.raises(error, match=match):
            call()
    assert x.count_nonzero() == 4


def test_batches_are_picked_by_index_arrays() -> None:
    values = np.random.default_rng(0).integers(0, 8, (4, 3, 5, 6))
    x = bs.BitTensor(values, 3, scale=np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1) + 1)
    for key in (np.s_[[2, 0], :, [1, 1]], np.s_[np.array([True, False, True, True]), 1], np.s_[1, [2, 0], ::2, [3, 3]]):
        want, real = values, np.asarray(x.dequantize())
        for at in range(len(key) - 1, -1, -1):
            want, real = (part[(slice(None),) * at + (key[at],)] for part in (want, real))
        assert np.array_equal(x[key].toarray(), want)
        assert np.array_equal(x[key].dequantize(), real)
    with pytest.raises(IndexError, match=r"indices reach 0\.\.4, but axis -4 has 4"):
        x[[0, 4]]


@pytest.mark.parametrize("array", [bs.BitTensor(np.eye(3, dtype=int)), bs.TCTiledCSR(np.eye(3)), bs.FRDC((3, 3))])
def test_containers_are_not_exported(array: Any) -> None:
    for call in (np.from_dlpack, lambda x: x.__dlpack_device__()):
        with pytest.raises(
            bs.DTypeError, match=r"not exported through DLPack.*\.toarray\(\), or one of \.(words|indptr)"
        ):
            call(array)


@pytest.mark.torch
def test_pytorch_is_told() -> None:
    import torch

    x = bs.BitTensor(np.eye(3, dtype=int))
    with pytest.raises(bs.DTypeError, match="DLPack"):
        torch.from_dlpack(x)
    assert torch.from_dlpack(x.words).shape == (3, 1, 4)
