"""On every case of the shared table, two backends give equal dtype, shape and bits."""

from __future__ import annotations

import importlib
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cases import CASES, ROUNDED, Case, functions_of, same, tile_bitmap_of, words_of

from bitsparse.backends.reference.bits import pack as reference_bits
from bitsparse.backends.reference.matmul import matmul as reference_matmul

# A GPU backend would be added as ("cuda", "host") with the marker gpu.
PAIRS = [("host", "reference")]
MODULES = sorted({case.module for case in CASES})


def backend(name: str) -> ModuleType:
    package = importlib.import_module(f"bitsparse.backends.{name}")
    for module in MODULES:
        importlib.import_module(f"bitsparse.backends.{name}.{module}")
    return package


def contents(args: tuple, kwargs: dict) -> list[bytes]:
    return [np.ascontiguousarray(x).tobytes() for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray)]


def answers(package: Any, case: Case) -> list[tuple[str, Any]]:
    """The backend's answer on each of its instruction sets, or its only answer if it has no choice of them."""
    found = []
    for level in package.simd_levels() if hasattr(package, "simd_levels") else [None]:
        if level is not None:
            package.set_simd(level)
        args, kwargs = case.make()
        before = contents(args, kwargs)
        result = attrgetter(f"{case.module}.{case.function}")(package)(*args, **kwargs)
        assert contents(args, kwargs) == before, f"{level}: the call changed its arguments"
        if case.function == "calibrate" and not result[2]:
            result = result[2]  # if x contains NaN or infinity, the two ends are undefined
        found.append((level or "only", result))
    return found


@pytest.mark.parametrize("pair", PAIRS, ids="-vs-".join)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_two_backends_agree(case: Case, pair: tuple[str, str], host) -> None:
    one, other = map(backend, pair)
    ((_, want),) = answers(other, case)[-1:]
    got = answers(one, case)
    assert got
    for level, result in got:
        try:
            same(result, want, ROUNDED.get(case.function, 0.0))
        except AssertionError as error:
            error.add_note(f"instruction set: {level}")
            raise


@pytest.mark.parametrize("case", CASES[::23], ids=lambda case: case.id)
def test_awkward_shapes_on_several_threads(case: Case, host, monkeypatch) -> None:
    """Three threads must give the bits of one, even if there are more threads than rows, columns or words."""
    package = backend("host")
    one = case.run(package)
    host.set_num_threads(3)
    monkeypatch.setattr(importlib.import_module("bitsparse.backends.host.settings"), "work_per_thread", 0)
    three = case.run(package)
    if case.function == "calibrate" and not one[2]:
        one, three = one[2], three[2]
    same(three, one)


def test_the_table_is_complete() -> None:
    """Every public function that both backends define must be in the table, under unique ids and with many cases."""
    host_and_reference = [backend(name) for name in ("host", "reference")]
    shared = set()
    for module in MODULES:
        ours, theirs = (functions_of(attrgetter(module)(package)) for package in host_and_reference)
        shared |= {(module, name) for name in ours & theirs}
    assert {(case.module, case.function) for case in CASES} == shared
    assert len({case.id for case in CASES}) == len(CASES)
    for function in {case.function for case in CASES}:
        assert sum(case.function == function for case in CASES) >= 30


@pytest.mark.parametrize("bits", range(1, 33))
def test_reference_packing_against_packbits(bits: int) -> None:
    """The oracle must agree with an implementation that shares no line with it (numpy.packbits)."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (3, 5, 77), np.uint64)
    same(reference_bits.codes_to_words(codes, bits, "planes"), words_of(codes, bits, "planes"))
    if bits in (1, 2, 4, 8, 16):
        same(reference_bits.codes_to_words(codes, bits, "rows"), words_of(codes, bits, "rows"))
    words = words_of(codes, bits, "planes")
    assert np.array_equal(reference_bits.words_to_codes(words, 77, bits, "planes"), codes)
    same(reference_bits.tile_bitmap(words, 77), tile_bitmap_of(words))


def test_reference_matmul_against_python_integers() -> None:
    """The oracle's int64 arithmetic must agree with unbounded integers, at widths where a float64 would round."""
    backend("reference")
    rng = np.random.default_rng(3)
    a_codes, b_codes = rng.integers(0, 1 << 31, (3, 2), np.uint64), rng.integers(0, 1 << 31, (4, 2), np.uint64)
    got = reference_matmul.matmul(
        words_of(a_codes, 31, "planes"),
        words_of(b_codes, 31, "planes"),
        k=2,
        a_bits=31,
        b_bits=31,
        a_encoding="signed",
        b_encoding="unsigned",
        acc_dtype=np.dtype(np.int64),
    )
    a = [[int(v) - (int(v) >> 30 << 31) for v in row] for row in a_codes]
    want = [[sum(x * int(y) for x, y in zip(row, col, strict=True)) for col in b_codes] for row in a]
    assert got.tolist() == want
