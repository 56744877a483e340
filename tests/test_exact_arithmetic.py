"""``+ - *`` of a BitTensor with integers give the results of Python's integers, or are refused."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from cases import value_range
from hypothesis import given
from hypothesis import strategies as st

import bitsparse as bs

OPERATORS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def near_the_ends(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(
        st.integers(low, high), st.sampled_from([low, high, min(max(0, low), high), min(max(1, low), high)])
    )


@st.composite
def bit_tensors(draw: st.DrawFn) -> bs.BitTensor:
    bits = draw(st.one_of(st.integers(1, 32), st.sampled_from([15, 16, 17, 31, 32])))
    encoding = draw(st.sampled_from(["unsigned", "signed"] + ["bipolar"] * (bits == 1)))
    low, high = value_range(bits, encoding)
    element = st.sampled_from([-1, 1]) if encoding == "bipolar" else near_the_ends(low, high)
    values = draw(st.lists(element, min_size=6, max_size=6))
    return bs.BitTensor(np.array(values, np.int64).reshape(2, 3), bits, encoding=encoding)  # type: ignore[arg-type]


@st.composite
def others(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["python", "scalar", "array", "bits"]))
    if kind == "bits":
        return draw(bit_tensors())
    if kind == "python":
        return draw(st.one_of(st.booleans(), near_the_ends(-(2**65), 2**65), near_the_ends(-(2**32), 2**32)))
    dtype = draw(st.sampled_from(INTEGERS))
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    values = draw(st.lists(near_the_ends(low, high), min_size=3, max_size=3))
    return np.array(values, dtype) if kind == "array" else np.array(values, dtype)[0]


def exactly(x: Any) -> Any:
    """The values as an array of Python integers."""
    return np.asarray(x.toarray() if isinstance(x, bs.BitTensor) else x).astype(object) + 0


@given(bit_tensors(), others(), st.sampled_from(list(OPERATORS)), st.booleans())
def test_results_are_exact_or_refused(q: bs.BitTensor, other: Any, name: str, swap: bool) -> None:
    operation = OPERATORS[name]
    pair = (other, q) if swap else (q, other)
    wanted = operation(*map(exactly, pair))
    fits = wanted.min() >= -(2**63) and wanted.max() < 2**63
    if not fits or (not (hasattr(other, "dtype") and other.ndim) and not -(2**63) <= int(other) < 2**63):
        with pytest.raises(ValueError, match=rf"{name}: .* beyond int64"):
            operation(*pair)
        return
    result = operation(*pair)
    assert result.dtype in (np.int32, np.int64)
    assert result.tolist() == wanted.tolist()


@given(bit_tensors())
def test_negation_is_exact(q: bs.BitTensor) -> None:
    assert (-q).tolist() == (-exactly(q)).tolist()


def test_results_that_wrapped() -> None:
    wide = bs.BitTensor([[65535]], 16)
    assert (wide * wide).tolist() == [[4294836225]]
    assert (bs.BitTensor([[2**31 - 1]], 31) + 1).tolist() == [[2**31]]
    assert (-bs.BitTensor([[-(2**31)]], 32, encoding="signed")).tolist() == [[2**31]]
    assert (wide * 3).dtype == np.int32
    assert (wide + np.array([2**63], np.uint64) * 0).tolist() == [[65535]]


def test_what_int64_cannot_hold_is_refused() -> None:
    q = bs.BitTensor([[3, 1]], 2)
    with pytest.raises(
        ValueError, match=r"multiply: values in 1\.\.3 and 4\.\.4611686018427387904 give results beyond int64.*float64"
    ):
        q * np.array([2**62, 4])
    assert (q * np.array([4, 2**62])).tolist() == [[12, 2**62]]
    with pytest.raises(ValueError, match=r"add: .* beyond int64"):
        q + 2**64
    assert (q.astype(np.float64) * np.array([2.0**62, 4])).tolist() == [[3 * 2.0**62, 4]]


@pytest.mark.gpu
def test_a_gpu_computes_and_refuses_the_same() -> None:
    import cupy

    here = bs.BitTensor([[65535, 7, 0]], 16)
    there = here.to_device("cuda")
    others = (1, 2**40, np.int64(5), np.array([9, 8, 7], np.uint16), np.array([-5, 2**31 - 1, 3], np.int32))
    for other in (*others, np.array([0, 2**40, 2**63], np.uint64), here):
        moved = (
            other.to_device("cuda")
            if other is here
            else cupy.asarray(other)
            if isinstance(other, np.ndarray)
            else other
        )
        for operation in (operator.mul, operator.add, operator.sub):
            if getattr(other, "dtype", None) == np.uint64 and operation is not operator.mul:
                continue
            for got, want in (
                (operation(there, moved), operation(here, other)),
                (operation(moved, there), operation(other, here)),
            ):
                assert got.dtype == want.dtype
                assert got.get().tolist() == want.tolist()
    with pytest.raises(ValueError, match=r"add: .* beyond int64"):
        there + cupy.array([0, 1, 2**63], np.uint64)
