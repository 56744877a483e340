"""Hostile arguments of the compiled functions of bspmm and sample give an error or a result, and no write outside the output."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse._ext import bspmm, sample

ROUNDS = 22_000
#: Bytes before and after every output, which no call may change.
GUARD = 64

NUMBERS = [
    -(2**63),
    -(2**31),
    -5,
    -1,
    0,
    1,
    2,
    3,
    4,
    7,
    64,
    127,
    128,
    129,
    2**15,
    2**31 - 1,
    2**31,
    2**47,
    2**62,
    2**64,
]


class Room:
    """An output buffer between two guards."""

    def __init__(self, nbytes: int) -> None:
        self.whole = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)

    @property
    def view(self) -> np.ndarray:
        return self.whole[GUARD:-GUARD]

    def untouched(self) -> bool:
        return bool((self.whole[:GUARD] == 0xA5).all() and (self.whole[-GUARD:] == 0xA5).all())


def raw(array: Any) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def spoil(rng: random.Random, value: Any) -> Any:
    """Another value of the same kind, which is usually wrong."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, rng.choice(NUMBERS)])
    if isinstance(value, tuple):
        at = rng.randrange(len(value))
        return (*value[:at], spoil(rng, value[at]), *value[at + 1 :])
    if isinstance(value, np.ndarray):
        kind = rng.randrange(4)
        if kind == 0 or not value.size:
            return np.zeros(rng.choice([0, 1, 3, value.size + 4, value.size * 2]), np.uint8)
        if kind == 1:
            return value[: rng.randrange(value.size)].copy()
        if kind == 2:
            # The same size, with one number of 4 or 8 bytes replaced.
            changed = value.copy()
            number = np.array(rng.choice([-1, -(2**31), 2**31 - 1, 1000, 2**30, rng.randrange(-3, 40)]), np.int64)
            size = rng.choice([4, 8])
            at = rng.randrange(max(1, changed.size // size)) * size
            part = changed[at : at + size]
            part[:] = raw(number)[: part.size]
            return changed
        return np.frombuffer(rng.randbytes(value.size), np.uint8)
    return value


def pattern(rng: np.random.Generator, wide: bool) -> tuple[np.ndarray, np.ndarray, int, int]:
    rows, cols = int(rng.integers(0, 6)), int(rng.integers(1, 7))
    dtype = np.int64 if wide else np.int32
    lengths = rng.integers(0, cols + 1, rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)
    return indptr, rng.integers(0, cols, indptr[-1]).astype(dtype), rows, cols


Made = tuple[Callable[..., None], dict[str, Any], Room]


def make_count(rng: np.random.Generator) -> Made:
    wide, features = bool(rng.integers(2)), int(rng.integers(0, 300))
    indptr, indices, rows, cols = pattern(rng, wide)
    width = -(-features // 128) * 4
    room = Room(rows * features * 4)
    arguments = {
        "on": (int(rng.integers(0, 3)), 1), "indptr": raw(indptr), "indices": raw(indices), "wide": wide, "rows": rows, "cols": cols,
        "words": raw(rng.integers(0, 2**32, cols * width, np.uint32)), "features": features, "bipolar": True,
        "kernel": int(rng.integers(0, 3)), "counts": room.view,
    }  # fmt: skip
    return bspmm.count, arguments, room


def make_sign(rng: np.random.Generator) -> Made:
    _, arguments, _ = make_count(rng)
    for name in ("kernel", "counts"):
        del arguments[name]
    rows, width = arguments["rows"], -(-arguments["features"] // 128) * 4
    room, classes, planes = Room(rows * width * 4), 3, 5
    arguments |= {
        "mask": np.full(width * 4, 255, np.uint8), "uniform": None if rng.integers(3) else (0, False),
        "thresholds": raw(rng.integers(0, 2**32, classes * planes * width, np.uint32)),
        "flips": raw(rng.integers(0, 2**32, classes * width, np.uint32)),
        "class_of": raw(rng.integers(0, classes, rows).astype(np.int32)), "planes": planes, "classes": classes, "base": 8,
        "bits": room.view,
    }  # fmt: skip
    return bspmm.sign, arguments, room


def make_counts(rng: np.random.Generator) -> Made:
    wide = bool(rng.integers(2))
    indptr, indices, rows, _ = pattern(rng, wide)
    room = Room(rows * 8)
    arguments = {
        "on": (0, 1), "indptr": raw(indptr), "wide": wide, "rows": rows, "nnz": int(indices.size),
        "sampler": (int(rng.integers(0, 5)), int(rng.integers(1, 9)), 3, 4), "out": room.view,
    }  # fmt: skip
    return sample.counts, arguments, room


def make_edges(rng: np.random.Generator) -> Made:
    _, arguments, room = make_counts(rng)
    sample.counts(*arguments.values())
    starts = np.concatenate([[0], np.cumsum(room.view.view(np.int64))])
    room = Room(int(starts[-1]) * 8)
    del arguments["out"]
    return sample.edges, arguments | {"starts": raw(starts), "out": room.view}, room


def make_gather(rng: np.random.Generator) -> Made:
    wide, features, kind = bool(rng.integers(2)), int(rng.integers(0, 80)), int(rng.integers(0, 3))
    indptr, indices, rows, cols = pattern(rng, wide)
    bits, item = int(rng.choice([1, 2, 4, 8])), 8 if kind == 1 else 4
    stride = -(-features * bits // 128) * 4 if kind == 2 else features
    nothing = np.zeros(0, np.uint8)
    room = Room(rows * features * item)

    def maybe(n: int) -> np.ndarray:
        return nothing if rng.integers(2) else np.zeros(n * item, np.uint8)

    strides = [(0, 0), (1, 0), (0, 1)][int(rng.integers(3))]
    affine = np.zeros(4 * (cols if strides[0] else features if strides[1] else 1), np.uint8)
    arguments = {
        "on": (int(rng.integers(0, 3)), 1), "indptr": raw(indptr), "indices": raw(indices), "wide": wide, "rows": rows, "cols": cols,
        "sampler": (int(rng.integers(0, 5)), int(rng.integers(1, 9)), 3, 4), "kind": kind,
        "x": np.zeros(cols * stride * item, np.uint8), "features": features, "bits": bits, "encoding": int(rng.integers(0, 2)),
        "scale": affine, "scale_strides": strides, "offset": affine, "offset_strides": strides, "values": maybe(indices.size),
        "col_scale": maybe(cols), "row_scale": maybe(rows), "rescale": True, "mean": bool(rng.integers(2)), "out": room.view,
    }  # fmt: skip
    return sample.gather, arguments, room


MAKERS = [make_count, make_sign, make_counts, make_edges, make_gather]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__[5:])
def test_hostile_arguments_raise(make: Callable[[np.random.Generator], Made]) -> None:
    rng, chance = np.random.default_rng(0), random.Random(0)
    refused = 0
    for turn in range(ROUNDS):
        if turn % 20 == 0:
            function, valid, room = make(rng)
            function(*valid.values())
        arguments = dict(valid)
        for name in chance.sample(list(arguments), chance.choice([1, 1, 1, 2, 3])):
            if arguments[name] is not room.view:
                arguments[name] = spoil(chance, arguments[name])
        try:
            function(*arguments.values())
        except (ValueError, OverflowError, TypeError):
            refused += 1
        assert room.untouched()
    assert refused > ROUNDS // 4


def test_corrupted_matrices_reach_the_user_as_errors() -> None:
    """Public functions, too, must refuse a container whose arrays are no valid CSR."""

    class Broken:
        row_scale = col_scale = None

        def __init__(self, indptr: list[int], indices: list[int], cols: int = 3) -> None:
            self.arrays = np.array(indptr, np.int32), np.array(indices, np.int32)
            self.shape = (len(indptr) - 1, cols)

        def csr_arrays(self) -> tuple[Any, Any, None]:
            return (*self.arrays, None)

    x = bs.pack_bits(np.ones((3, 5)), encoding="bipolar")
    for indptr, indices in (([0, 2, 1, 3], [0, 1, 2]), ([0, 1], [3]), ([0, 1], [-1]), ([-1, 1], [0]), ([0, 5], [0])):
        broken = Broken(indptr, indices)
        for call in (
            lambda A: bs.bspmm(A, x),
            lambda A: bs.bspmm(A, x, "BBB"),
            lambda A: bs.bspmm(A, np.ones((3, 5), np.float32)),
            lambda A: bs.sampled_spmm(A, np.ones((3, 5)), 2),
        ):
            with pytest.raises(ValueError, match=r"CSR|sparse matrix|indptr"):
                call(broken)
