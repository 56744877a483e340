"""Packing functions of the CUDA backend agree with the host backend bit for bit; results are written into poisoned arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cases import (
    CASES,
    ENCODINGS,
    FLOATS,
    FORMATS,
    INTEGERS,
    ROUNDED,
    Case,
    dtype_of,
    floats,
    integers,
    make_words,
    value_range,
)

from bitsparse.backends.host.bits import pack as host_bits
from bitsparse.backends.reference.bits import pack as reference_bits

pytestmark = pytest.mark.gpu

#: The functions that must agree to the last bit; sums of floats are tested separately.
FUNCTIONS = sorted({case.function for case in CASES if case.module == "bits.pack"} - set(ROUNDED))
#: Larger shapes: whole chunks (loaded four elements at a time), ragged ones (loaded singly), few and many rows, batches.
LARGE = [
    (3, 2048),
    (9, 1024),
    (2, 4, 512),
    (40, 132),
    (130, 257),
    (257, 130),
    (1, 5000),
    (5000, 1),
    (3, 5, 7, 33),
    (2, 128, 96),
]


# ---- arrays to the device and back
def to_device(x: np.ndarray) -> Any:
    """A CuPy array equal to ``x`` whose elements lie in the same order, with gaps where ``x`` has them."""
    import cupy

    flips = tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)
    straight = x[flips]
    order = sorted(range(x.ndim), key=lambda d: (-straight.strides[d], d))
    dense = np.ascontiguousarray(straight.transpose(order))
    device = cupy.asarray(dense.view(np.uint16)).view(x.dtype) if x.dtype.name == "bfloat16" else cupy.asarray(dense)
    gaps = (
        x.size > 0 and min((s for s, n in zip(straight.strides, x.shape, strict=True) if n > 1), default=0) > x.itemsize
    )
    if gaps:
        room = empty(tuple(2 * n + 1 for n in dense.shape), x.dtype)
        view = room[tuple(slice(1, None, 2) for _ in dense.shape)]
        raw(view)[...] = raw(device)
        device = view
    device = device.transpose(np.argsort(order).tolist())[flips]
    assert device.shape == x.shape
    return device


def raw(array: Any) -> Any:
    """The bits of an array as unsigned integers, which every version of CuPy can copy."""
    return array.view(f"uint{8 * array.dtype.itemsize}")


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """A poisoned array: its bytes are 0xA5, so that elements which a call fails to write are noticed."""
    import cupy

    array = cupy.empty(shape, dtype)
    if array.size:
        array.reshape(-1).view(np.uint8).fill(0xA5)
    return array


def to_host(value: Any) -> Any:
    import cupy

    if not isinstance(value, cupy.ndarray):
        return value
    return cupy.asnumpy(raw(value)).view(value.dtype) if value.dtype.name == "bfloat16" else cupy.asnumpy(value)


def same(got: Any, want: Any) -> None:
    """Assert equal type, shape and bits."""
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other)
        return
    got = to_host(got)
    if isinstance(want, (bool, int)):
        assert type(got) is type(want)
        assert got == want
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.tobytes() == np.ascontiguousarray(want).tobytes(), f"{int((got != want).sum())} of {want.size} differ"


def both(function: str, *args: Any, poisoned: bool = True, **kwargs: Any) -> Any:
    """Compare one call of ``function`` with the host's, and return the result."""
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    want = getattr(host_bits, function)(*args, **kwargs)
    device = [to_device(a) if isinstance(a, np.ndarray) and a.ndim else a for a in args]
    named = {name: to_device(a) if isinstance(a, np.ndarray) and a.ndim else a for name, a in kwargs.items()}
    call = getattr(cuda_bits, function)
    got = call(*device, **named)
    if function == "calibrate" and not want[2]:
        got, want = got[2], want[2]
    same(got, want)
    if poisoned and isinstance(want, np.ndarray) and function not in ("tile_bitmap", "code_sums", "stochastic_round"):
        out = empty(want.shape, want.dtype)
        assert call(*device, **named, out=out) is out
        same(out, want)
    return want


# ---- the table that all backends share
def table(function: str) -> list[Case]:
    return [case for case in CASES if case.module == "bits.pack" and case.function == function]


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_shared_table(function: str, part: int) -> None:
    cases = table(function)[part::4]
    assert cases
    for case in cases:
        args, kwargs = case.make()
        try:
            both(function, *args, **kwargs)
        except AssertionError as error:
            error.add_note(case.id)
            raise


# ---- larger arrays, every dtype, every format
def formats() -> Iterator[tuple[int, str, int, int]]:
    for i, ((layout, bits), axis) in enumerate(itertools.product(FORMATS, (-1, -2))):
        yield i, layout, bits, axis


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_pack(dtype: str, order: str) -> None:
    rng = np.random.default_rng(len(dtype))
    for i, layout, bits, axis in formats():
        if dtype in FLOATS:
            layout, bits = "planes" if i % 2 else "rows", 1
        shape = LARGE[i % len(LARGE)]
        x = (floats if dtype in FLOATS else integers)(rng, shape, dtype_of(dtype))
        encoding = ENCODINGS[i % 3] if bits == 1 else ENCODINGS[i % 2]
        both("pack", np.asarray(x, order=order), bits, axis=axis, layout=layout, encoding=encoding)


@pytest.mark.parametrize("dtype", FLOATS)
def test_pack_of_nan(dtype: str) -> None:
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    for shape, axis in itertools.product([(1, 1), (9, 1024), (40, 131)], (-1, -2)):
        x = np.ones(shape, dtype_of(dtype))
        x[-1, -1] = np.nan
        kind: dict[str, Any] = {"axis": axis, "layout": "planes", "encoding": "bipolar"}
        with pytest.raises(ValueError, match="x holds NaN, which has no sign"):
            cuda_bits.pack(to_device(x), 1, **kind)
        x[-1, -1] = -1
        want = host_bits.pack(x, 1, **kind)
        x[-1, -1] = np.nan
        same(cuda_bits.pack(to_device(x), 1, check=False, **kind), want)


def test_stride_zero_and_batches_that_do_not_fold() -> None:
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    rng = np.random.default_rng(1)
    row = integers(rng, (1, 300), np.dtype(np.int16))
    column = integers(rng, (300, 1), np.dtype(np.int16))
    block = integers(rng, (4, 3, 5, 130), np.dtype(np.int16))
    views = [
        (row, lambda a, xp: xp.broadcast_to(a, (7, 300))),
        (column, lambda a, xp: xp.broadcast_to(a, (300, 9))),
        (block, lambda a, xp: a.transpose(1, 0, 2, 3)),
        (block, lambda a, xp: a[:, ::2, ::-1, ::3]),
        (block, lambda a, xp: xp.broadcast_to(a[:, :1], (4, 6, 5, 130))),
        (block, lambda a, xp: a.transpose(3, 0, 2, 1)),
        (block, lambda a, xp: a[1:3, 1:, 1:, 5:]),
    ]
    import cupy

    for base, view in views:
        for axis, (layout, bits) in itertools.product((-1, -2), (("planes", 3), ("rows", 8))):
            kind: dict[str, Any] = {"axis": axis, "layout": layout, "encoding": "signed"}
            want = host_bits.pack(view(base, np), bits, **kind)
            same(cuda_bits.pack(view(to_device(base), cupy), bits, **kind), want)


# ---- quantising
def grid(rng: np.random.Generator, shape: tuple[int, ...], granularity: str, steps: Any, bits: int) -> dict[str, Any]:
    lead = {
        "tensor": (),
        "row": (*shape[:-1], 1),
        "col": (*shape[:-2], 1, shape[-1]),
        "one row": (1,) * (len(shape) - 1) + shape[-1:],
        "batch": (*shape[:-2], 1, 1),
    }[granularity]
    offset = rng.normal(-3, 0.1, lead).astype(steps)
    divisor = rng.uniform(3, 6, lead).astype(steps)
    return {"offset": offset, "divisor": divisor, "multiplier": float(2**bits - 1), "qmin": 0, "qmax": 2**bits - 1}


@pytest.mark.parametrize("rounding", ["floor", "nearest", "stochastic"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_quantize(dtype: str, rounding: str) -> None:
    rng = np.random.default_rng(len(dtype))
    granularities = ("tensor", "row", "col", "one row", "batch")
    for i, layout, bits, axis in formats():
        steps = np.float64 if dtype == "float64" or bits > 24 else np.float32
        for j in range(2):
            shape = LARGE[(2 * i + j) % len(LARGE)]
            x = np.asarray(floats(rng, shape, dtype_of(dtype)), order="CF"[(i // 2 + j) % 2])
            both(
                "quantize",
                x,
                bits,
                **grid(rng, shape, granularities[(i + 3 * j) % 5], steps, bits),
                rounding=rounding,
                seed=2**63 + i,
                stream=i,
                first_index=(0, 3, 2**35 + 16, 2**40 + 5)[(i // 3 + j) % 4],
                axis=axis,
                layout=layout,
            )


@pytest.mark.parametrize("axis", [-1, -2])
def test_division_is_correctly_rounded(axis: int) -> None:
    """Division must round correctly for quotients next to whole numbers, where one wrong rounding changes a code."""
    rng = np.random.default_rng(5)
    rows, cols = 64, 4096
    for symmetric, bits in itertools.product((False, True), (4, 8, 16, 22)):
        divisor = np.exp2(rng.uniform(-30, 30, (rows, 1))).astype(np.float32)
        offset = (
            np.zeros((rows, 1), np.float32) if symmetric else (divisor * rng.normal(size=(rows, 1))).astype(np.float32)
        )
        codes = rng.integers(0, 1 << (bits - 1), (rows, cols))
        near = np.nextafter((codes * divisor).astype(np.float32), np.float32(rng.choice([-np.inf, np.inf])))
        x = np.where(rng.random(codes.shape) < 0.5, near, (codes * divisor).astype(np.float32)) + offset
        limit = (1 << (bits - 1)) - 1
        kind: dict[str, Any] = {
            "multiplier": 1.0,
            "qmin": -limit,
            "qmax": limit,
            "seed": 3,
            "stream": 1,
            "layout": "planes",
        }
        for rounding in ("floor", "nearest", "stochastic"):
            both("quantize", x, bits, offset=offset, divisor=divisor, rounding=rounding, axis=axis, **kind)
        both("quantize", x, bits, offset=offset[0, 0], divisor=divisor[0, 0], rounding="floor", axis=axis, **kind)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest", "floor"])
def test_fields_by_octets(dtype: str, bits: int, rounding: str) -> None:
    """Threads that round octets must be right for whole and ragged rows, with gaps or not, and grids of tensors, rows and batches."""
    rng = np.random.default_rng(bits)
    limit, kind = (1 << (bits - 1)) - 1, {"rounding": rounding, "axis": -1, "layout": "rows", "stream": 5}
    for i, shape in enumerate(
        [
            (1, 8),
            (7, 24),
            (5, 128),
            (3, 2048),
            (2, 3, 40),
            (3, 5, 256),
            (33, 264),
            (9, 20),
            (6, 31),
            (40, 47),
            (2, 3, 1),
        ]
    ):
        wide = floats(rng, (*shape[:-1], shape[-1] + 8), dtype_of(dtype))
        for x in (np.ascontiguousarray(wide[..., 8:]), wide[..., 8:]):
            for granularity in ("tensor", "row", "one row", "batch"):
                both("quantize", x, bits, **grid(rng, shape, granularity, np.float32, bits), seed=2**63 + i, **kind)  # type: ignore[arg-type]
            for divisor in (0.03, 3.0, -2.0):
                step = {"offset": np.float32(0), "divisor": np.float32(divisor), "multiplier": 1.0}
                first = (0, 16, 5, 2**36 + 8)[i % 4]
                both("quantize", x, bits, **step, qmin=-limit, qmax=limit, seed=i, first_index=first, **kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("rounding", ["stochastic", "nearest", "floor"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_octets_beside_the_boundaries(bits: int, rounding: str) -> None:
    """Codes must be right for quotients at and next to boundaries, numerators of every size, NaN and infinity."""
    rng, limit = np.random.default_rng(7), (1 << (bits - 1)) - 1
    kind: dict[str, Any] = {
        "rounding": rounding,
        "axis": -1,
        "layout": "rows",
        "seed": 3,
        "stream": 1,
        "multiplier": 1.0,
    }
    kind |= {"qmin": -limit, "qmax": limit, "poisoned": False}
    divisor = np.exp2(rng.uniform(-30, 30, (64, 1))).astype(np.float32)
    codes = rng.integers(-limit, limit + 1, (64, 4096)) + (0.5 if rounding == "nearest" else 0.0)
    near = np.nextafter((codes * divisor).astype(np.float32), np.float32(rng.choice([-np.inf, np.inf], codes.shape)))
    x = np.where(rng.random(codes.shape) < 0.5, near, (codes * divisor).astype(np.float32))
    both("quantize", x, bits, offset=np.zeros((64, 1), np.float32), divisor=divisor, **kind)
    with np.errstate(all="ignore"):
        for row, by in enumerate(divisor[:12, 0]):  # one scale for all, whose limits are among the values
            both("quantize", x[row::16], bits, offset=np.float32(0), divisor=by, **kind)
            both("quantize", x[row : row + 1], bits, offset=np.float32(0), divisor=by, **kind)
    x = (np.exp2(rng.uniform(-149, 127, (6, 2048))) * rng.choice([-1, 1], (6, 2048))).astype(np.float32)
    for step, value in ((37, 0), (41, np.inf), (43, -np.inf), (47, np.nan), (53, np.finfo(np.float32).max), (59, -0.0)):
        x.reshape(-1)[::step] = value
    with np.errstate(all="ignore"):
        for by in (
            1.0,
            0.3,
            2.0**-24,
            5e-8,
            3.1e-9,
            1.7e-27,
            2.0**-125.5,
            2.0**-126,
            3.0,
            1e-38,
            1e-45,
            1e38,
            -7.0,
            2.0**-61,
            2.0**40,
            2.0**41,
            np.inf,
            0.0,
        ):
            for offset in (0.0, 1e-30, 1e30):
                both("quantize", x, bits, offset=np.float32(offset), divisor=np.float32(by), **kind)
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    del kind["poisoned"]
    for value in (np.nan, np.inf):
        y = np.zeros((3, 64), np.float32)
        y[2, 63] = value
        with pytest.raises(ValueError, match="NaN or inf"):
            cuda_bits.quantize(to_device(y), bits, offset=np.float32(0), divisor=np.float32(1), check=True, **kind)


@pytest.mark.parametrize("rounding", ["floor", "nearest", "stochastic"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_bits_beside_the_boundaries(dtype: str, rounding: str) -> None:
    """Codes must be right for quotients within a few units in the last place, and within about 2**-16, of where codes change."""
    rng = np.random.default_rng(17)
    rows, cols = 64, 2048
    for i, (bits, axis) in enumerate(itertools.product((1, 2, 3, 4), (-1, -2))):
        low = -(1 << (bits - 1)) if i % 3 == 0 else 0
        high = low + (1 << bits) - 1
        for far, granularity in itertools.product((0.0, 3.0, 1e4), ("tensor", "line")):
            lead = () if granularity == "tensor" else (rows, 1) if axis == -1 else (1, cols)
            divisor = np.exp2(rng.uniform(-20, 20, lead)).astype(np.float32)
            offset = (divisor * rng.normal(size=lead) * far).astype(np.float32)
            code = rng.integers(low - 2, high + 3, (rows, cols)) + rng.choice([0, 0.5], (rows, cols))
            away = rng.choice([0, 1e-7, 1e-6, 1e-5, 1e-4, 0.1], (rows, cols)) * rng.normal(size=(rows, cols))
            x = (code + away) / high * divisor.astype(np.float64) + offset if high else (code + away) * divisor + offset
            x = x.astype(np.float32).astype(dtype_of(dtype))
            x.reshape(-1)[rng.integers(0, x.size, 5)] = [np.inf, -np.inf, np.nan, 0, np.float32(3e38)]
            kind = {
                "multiplier": float(high or 1),
                "qmin": low,
                "qmax": high,
                "seed": 3,
                "stream": 1,
                "layout": "planes",
            }
            with np.errstate(all="ignore"):
                both("quantize", x, bits, offset=offset[()], divisor=divisor[()], rounding=rounding, axis=axis, **kind)


@pytest.mark.parametrize("steps", [np.float32, np.float64])
def test_extreme_values_and_divisors(steps: Any) -> None:
    rng = np.random.default_rng(6)
    x = np.exp2(rng.uniform(-149, 127, (6, 2048))).astype(np.float32) * rng.choice([-1, 1], (6, 2048)).astype(
        np.float32
    )
    x.reshape(-1)[::37] = 0
    x.reshape(-1)[::41] = np.inf
    x.reshape(-1)[::43] = -np.inf
    x.reshape(-1)[::47] = np.nan
    x.reshape(-1)[::53] = np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        for divisor in (1.0, 3.0, 1e-38, 1e-45, 1e38, -7.0, 2.0**-61, 2.0**40, 2.0**41, np.inf, 0.0):
            for offset, rounding in itertools.product((0.0, 1e-30, 1e30), ("floor", "nearest", "stochastic")):
                for bits, top, axis in (
                    (4, 15, -1),
                    (22, 1 << 21, -2),
                    (24, 1 << 24, -1),
                    (32, 2**32 - 1, -2),
                    (3, 2**31, -1),
                ):
                    both(
                        "quantize",
                        x,
                        bits,
                        offset=steps(offset),
                        divisor=steps(divisor),
                        multiplier=15.0,
                        qmin=-top if bits < 32 else 0,
                        qmax=top,
                        rounding=rounding,
                        seed=1,
                        stream=2,
                        axis=axis,
                        layout="planes",
                        poisoned=False,
                    )


def test_quantize_looks_for_what_is_not_finite() -> None:
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    kind: dict[str, Any] = {
        "multiplier": 1.0,
        "qmin": 0,
        "qmax": 15,
        "rounding": "floor",
        "seed": 0,
        "stream": 0,
        "layout": "planes",
    }
    for dtype, axis, odd in itertools.product(FLOATS, (-1, -2), (np.nan, np.inf, -np.inf)):
        steps = np.float64 if dtype == "float64" else np.float32
        x = np.ones((40, 1100), dtype_of(dtype))
        kind |= {"offset": steps(0), "divisor": steps(1), "axis": axis}
        same(cuda_bits.quantize(to_device(x), 4, check=True, **kind), host_bits.quantize(x, 4, **kind))
        x[39, 1000] = odd
        with pytest.raises(ValueError, match="NaN or infinity"):
            cuda_bits.quantize(to_device(x), 4, check=True, **kind)


def test_quantize_of_integers_and_of_doubles_in_float32_steps() -> None:
    rng = np.random.default_rng(7)
    for dtype, axis in itertools.product(("int8", "uint16", "int64", "bool", "float64"), (-1, -2)):
        make = floats if dtype in FLOATS else integers
        both(
            "quantize",
            make(rng, (20, 300), dtype_of(dtype)),
            5,
            **grid(rng, (20, 300), "tensor", np.float32, 5),
            rounding="nearest",
            seed=0,
            stream=0,
            axis=axis,
            layout="planes",
        )


# ---- back to values
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_unpack(dtype: str) -> None:
    rng = np.random.default_rng(len(dtype))
    for i, layout, bits, axis in formats():
        encoding = ENCODINGS[i // 2 % 3] if bits == 1 else ENCODINGS[i // 2 % 2]
        if dtype in INTEGERS[1:]:
            low, high = value_range(bits, encoding)
            info = np.iinfo(dtype)
            if low < info.min or high > info.max:
                continue
        shape = LARGE[i % len(LARGE)]
        words = make_words(rng, shape, bits, axis, layout)
        both("unpack", words, shape, bits, axis=axis, layout=layout, encoding=encoding, dtype=dtype_of(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_dequantize(dtype: str) -> None:
    rng = np.random.default_rng(len(dtype))
    granularities = ("tensor", "row", "col", "one row", "batch")
    for i, layout, bits, axis in formats():
        encoding = ENCODINGS[i // 2 % 3] if bits == 1 else ENCODINGS[i // 2 % 2]
        for j in range(2):
            shape = LARGE[(i + 5 * j) % len(LARGE)]
            vectors = grid(rng, shape, granularities[(i + j) % 5], np.float32, 1)
            both(
                "dequantize",
                make_words(rng, shape, bits, axis, layout),
                shape,
                bits,
                axis=axis,
                layout=layout,
                encoding=encoding,
                scale=vectors["divisor"],
                offset=vectors["offset"],
                dtype=dtype_of(dtype),
            )


@pytest.mark.parametrize(("shape", "bits"), [((70, 4, 32), 8), ((3, 2, 5, 16), 8), ((9, 3, 64), 4), ((6, 3, 22), 8)])
@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_short_lines_side_by_side(shape: tuple[int, ...], bits: int, granularity: str) -> None:
    """Contiguous short lines with the same scale may be decoded as one line, which must not change the result."""
    rng = np.random.default_rng(shape[0])
    words = make_words(rng, shape, bits, -1, "rows")
    vectors, how = grid(rng, shape, granularity, np.float32, 1), {"axis": -1, "layout": "rows", "encoding": "signed"}
    both("unpack", words, shape, bits, **how, dtype=np.dtype(np.int8))
    vectors = {"scale": vectors["divisor"], "offset": vectors["offset"]}
    both("dequantize", words, shape, bits, **how, **vectors, dtype=np.dtype(np.float32))


def test_results_at_any_address() -> None:
    """Calls must be right if results and inputs begin in the middle of a vector."""
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    rng = np.random.default_rng(16)
    words = make_words(rng, (9, 1024), 4, -1, "planes")
    way: dict[str, Any] = {"axis": -1, "layout": "planes"}
    for dtype in (np.uint8, np.float16, np.float32, np.float64):
        kind: dict[str, Any] = way | {
            "encoding": "signed",
            "scale": np.float32(0.3),
            "offset": np.float32(1),
            "dtype": dtype,
        }
        if dtype == np.uint8:
            kind = way | {"encoding": "unsigned", "dtype": dtype}
        function = "unpack" if dtype == np.uint8 else "dequantize"
        out = empty((9 * 1024 + 1,), np.dtype(dtype))[1:].reshape(9, 1024)
        getattr(cuda_bits, function)(to_device(words), out.shape, 4, out=out, **kind)
        same(out, getattr(host_bits, function)(words, out.shape, 4, **kind))
        shifted = empty((9, 1025), np.dtype(dtype))[:, 1:]
        raw(shifted)[...] = raw(out)
        if dtype != np.uint8:
            same(
                cuda_bits.pack(shifted, 1, encoding="bipolar", **way),
                host_bits.pack(to_host(out), 1, encoding="bipolar", **way),
            )


def test_repack_leaves_hostile_pad_bits_behind() -> None:
    rng = np.random.default_rng(8)
    ways = list(itertools.product((-1, -2), ("planes", "rows"), (-1, -2), ("planes", "rows")))
    for bits, shape in itertools.product((1, 2, 4, 8, 16), [(3, 130), (130, 3), (2, 129, 300), (1, 1)]):
        for axis, layout, to_axis, to_layout in ways:
            words = np.full(make_words(rng, shape, bits, axis, layout).shape, 0xFFFFFFFF, np.uint32)
            both("repack", words, shape, bits, axis=axis, layout=layout, to_axis=to_axis, to_layout=to_layout)


def test_repack_of_every_width() -> None:
    """Repacking must be right in both directions for every number of words that a block may take."""
    rng = np.random.default_rng(18)
    for bits, shape in itertools.product(
        (1, 3), [(700, 100), (600, 200), (300, 500), (530, 1000), (40, 1500), (1030, 2100), (2, 90, 300)]
    ):
        for axis in (-1, -2):
            words = rng.integers(0, 1 << 32, make_words(rng, shape, bits, axis, "planes").shape, np.uint32)
            both("repack", words, shape, bits, axis=axis, layout="planes", to_axis=-3 - axis, to_layout="planes")


@pytest.mark.parametrize("dtype", FLOATS)
def test_stochastic_round(dtype: str) -> None:
    rng = np.random.default_rng(9)
    for shape in ((8,), (1001,), (3, 1024), (5, 7, 9)):
        x = (floats(rng, shape, np.dtype(np.float32)) * 9).astype(dtype_of(dtype))
        both("stochastic_round", x, 2**64 - 1, 2**32 - 1)
        both("stochastic_round", np.asarray(x, order="F"), 5, 6)


# ---- ranges
@pytest.mark.parametrize("dtype", FLOATS)
def test_calibrate(dtype: str) -> None:
    rng = np.random.default_rng(10)
    shapes = [*LARGE, (1, 40_000), (40_000, 1), (3, 9000), (9000, 3), (2, 70, 9000)]
    for shape, granularity, order in itertools.product(shapes, ("tensor", "row", "col"), "CF"):
        both("calibrate", np.asarray(floats(rng, shape, dtype_of(dtype)), order=order), granularity)
        both("calibrate", np.asarray(-np.zeros(shape, dtype_of(dtype)), order=order), granularity)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_minmax_of_integers(dtype: str) -> None:
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    rng = np.random.default_rng(11)
    for shape in ((1,), (1, 1), (7, 9), (3, 9000), (2, 3, 40)):
        x = integers(rng, shape, dtype_of(dtype))
        for view in (x, x.T, x[..., ::-1]):
            low, high, bad = cuda_bits.minmax(to_device(view))
            assert (low, high, bad) == (int(x.min()), int(x.max()), False)
            assert type(low) is int
    if dtype != "bool":
        info = np.iinfo(dtype)
        assert cuda_bits.minmax(to_device(np.array([info.max, info.min], dtype))) == (info.min, info.max, False)
    assert cuda_bits.minmax(to_device(np.zeros((0, 5), dtype))) == (0, 0, False)


@pytest.mark.parametrize("dtype", FLOATS)
def test_minmax_of_floats(dtype: str) -> None:
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    x = floats(np.random.default_rng(12), (50, 300), dtype_of(dtype))
    assert cuda_bits.minmax(to_device(x)) == (float(x.min()), float(x.max()), False)
    for odd in (np.nan, np.inf, -np.inf):
        x[49, 7] = odd
        assert cuda_bits.minmax(to_device(x))[2]


def test_relative_error() -> None:
    from bitsparse.backends.cuda.bits import stats

    rng = np.random.default_rng(13)
    for n, (one, other) in itertools.product(
        (0, 1, 8191, 8193, 100_003), (("float32", "float32"), ("float64", "bfloat16"), ("int8", "float16"))
    ):
        x = (rng.normal(size=n) * 100).astype(dtype_of(one))
        y = (x.astype(np.float64) + rng.normal(size=n)).astype(dtype_of(other))
        got, want = stats.relative_error(to_device(x), to_device(y)), host_bits.relative_error(x, y)
        assert math.isclose(got, want, rel_tol=1e-13)
        assert math.isclose(got, reference_bits.relative_error(x, y), rel_tol=1e-13)
        assert stats.relative_error(to_device(x), to_device(y)) == got
    x = rng.normal(size=(40, 50))
    assert stats.relative_error(to_device(x.T), to_device(x.T)) == 0.0


def test_fingerprints() -> None:
    from bitsparse.backends.cuda.bits import stats

    data = np.random.default_rng(14).integers(0, 256, 1_300_000).astype(np.uint8)
    for n in (0, 1, 7, 8, 9, 15, 16, 17, 31, 4096, 16 * 256 * 4, 16 * 256 * 4 + 1, 262_143, 1_300_000):
        for start in (0, 1, 4, 8) if n < 5000 else (0,):
            x = data[start : start + n]
            got = stats.content_sum(to_device(data)[start : start + n])
            assert got == host_bits.content_sum(x)
            if n < 5000:
                assert got == reference_bits.content_sum(x)
    for dtype in FLOATS:
        x = floats(np.random.default_rng(15), (70, 90), dtype_of(dtype))
        for view in (x, x.T, x[::2, 1:]):
            assert stats.content_sum(to_device(view)) == host_bits.content_sum(view)


# ---- how calls behave
def test_streams_and_graphs() -> None:
    """Calls must run on the current stream, and be capturable if they have ``out`` and the host waits for no answer."""
    import cupy

    from bitsparse.backends.cuda.bits import pack as cuda_bits

    rng = np.random.default_rng(14)
    x = floats(rng, (70, 2048), np.dtype(np.float32))
    way: dict[str, Any] = {"axis": -1, "layout": "planes"}
    steps: dict[str, Any] = {
        "multiplier": 15.0,
        "qmin": 0,
        "qmax": 15,
        "rounding": "stochastic",
        "seed": 4,
        "stream": 5,
    }
    steps |= {"offset": np.float32(-3), "divisor": np.float32(6)}
    back: dict[str, Any] = {
        "scale": np.float32(0.4),
        "offset": np.float32(-3),
        "dtype": np.float32,
        "encoding": "unsigned",
    }
    signs = host_bits.pack(x, 1, encoding="bipolar", **way)
    words = host_bits.quantize(x, 4, **steps, **way)
    values = host_bits.dequantize(words, x.shape, 4, **back, **way)
    numbers = host_bits.unpack(words, x.shape, 4, encoding="unsigned", dtype=np.int8, **way)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device = cupy.asarray(x)
        outs = [empty(a.shape, a.dtype) for a in (signs, words, values, numbers)]

        def calls() -> None:
            cuda_bits.pack(device, 1, encoding="bipolar", check=False, out=outs[0], **way)
            cuda_bits.quantize(device, 4, out=outs[1], **steps, **way)
            cuda_bits.dequantize(outs[1], x.shape, 4, out=outs[2], **back, **way)
            cuda_bits.unpack(outs[1], x.shape, 4, encoding="unsigned", dtype=np.int8, out=outs[3], **way)

        calls()
        stream.synchronize()
        stream.begin_capture()
        calls()
        graph = stream.end_capture()
        for _ in range(2):
            for out in outs:
                raw(out).fill(0)
            graph.launch(stream)
            for out, want in zip(outs, (signs, words, values, numbers), strict=True):
                np.testing.assert_array_equal(cupy.asnumpy(out, stream=stream), want)


def test_named_errors() -> None:
    import cupy

    from bitsparse.backends.cuda.bits import pack as cuda_bits
    from bitsparse.errors import DTypeError, ShapeError

    x = cupy.zeros((4, 130), np.int8)
    way: dict[str, Any] = {"axis": -1, "layout": "planes", "encoding": "unsigned"}
    with pytest.raises(ShapeError, match=r"pack_bits: out has shape \(4, 1, 4\), but the result has \(4, 1, 8\)"):
        cuda_bits.pack(x, 1, out=cupy.zeros((4, 1, 4), np.uint32), **way)
    with pytest.raises(DTypeError, match="pack_bits: out has dtype int32, but the result has uint32"):
        cuda_bits.pack(x, 1, out=cupy.zeros((4, 1, 8), np.int32), **way)
    words = cuda_bits.pack(x, 1, **way)
    with pytest.raises(ShapeError, match="unpack_bits: out must be C-contiguous"):
        cuda_bits.unpack(words, (4, 130), 1, dtype=np.int8, out=cupy.zeros((130, 4), np.int8).T, **way)
    with pytest.raises(DTypeError, match="dtype complex64 is not supported; convert to one of bool"):
        cuda_bits.pack(cupy.zeros((4, 130), np.complex64), 1, **way)


def test_64_bit_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for large arrays must be right on small arrays, too."""
    from bitsparse.backends.cuda.bits import pack as cuda_bits

    monkeypatch.setattr(cuda_bits, "_is_large", lambda *counts: True)
    rng = np.random.default_rng(15)
    for shape, axis, (layout, bits), order in itertools.product(LARGE, (-1, -2), (("planes", 3), ("rows", 8)), "CF"):
        way: dict[str, Any] = {"axis": axis, "layout": layout}
        codes = np.asarray(rng.integers(0, 8, shape, np.uint8), order=order)
        words = both("pack", codes, bits, encoding="unsigned", **way)
        both("unpack", words, shape, bits, encoding="unsigned", dtype=np.uint8, **way)
        x = np.asarray(floats(rng, shape, np.dtype(np.float32)), order=order)
        both("pack", x, 1, encoding="bipolar", axis=axis, layout="planes")
        for granularity, rounding in (("tensor", "floor"), ("row", "stochastic"), ("col", "nearest")):
            vectors = grid(rng, shape, granularity, np.float32, bits)
            both("quantize", x, bits, **vectors, rounding=rounding, seed=1, stream=2, **way)
            affine = {"scale": vectors["divisor"], "offset": vectors["offset"]}
            both("dequantize", words, shape, bits, encoding="unsigned", dtype=np.float32, **affine, **way)


def test_more_than_two_to_the_31_elements() -> None:
    """Elements at both ends of an array that needs 64-bit indices must survive packing and unpacking."""
    import cupy

    from bitsparse.backends.cuda.bits import pack as cuda_bits

    cols, rows = (1 << 21) + 128, 1025
    x = cupy.zeros((rows, cols), np.uint8)
    assert x.size > 1 << 31
    places = [(0, 0), (0, cols - 1), (rows - 1, 0), (rows - 1, cols - 1), (1023, 12345), (1024, 77)]
    for place in places:
        x[place] = 1
    for axis in (-1, -2):
        way: dict[str, Any] = {"axis": axis, "layout": "planes"}
        words = cuda_bits.pack(x, 1, encoding="unsigned", **way)
        assert cuda_bits.count_nonzero(words, 1, "planes", x.shape[axis]) == len(places)
        back = cuda_bits.unpack(words, x.shape, 1, encoding="unsigned", dtype=np.uint8, **way)
        assert bool((back == x).all())
    assert cuda_bits.minmax(x) == (0, 1, False)


# ---- quotients that are mapped further, and tables
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_sides(bits: int) -> None:
    """The rows of the shared table, with divisors on the device, and one that is NaN as it is if something was not finite."""
    cases = [case for case in table("quantize") if "sides-" in case.id]
    for case in cases:
        args, how = case.make()
        if args[1] == bits:
            both("quantize", *args, **how | {"divisor": how["divisor"].reshape(1, 1)})
    args, how = cases[-1].make()
    both("quantize", *args, **how | {"divisor": np.full((1, 1), np.nan, np.float32)})


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_look_up(bits: int) -> None:
    """The rows of the shared table, and a stretch that begins where vectors do not."""
    from bitsparse.backends.cuda.bits.look_up import look_up
    from bitsparse.backends.host.bits.look_up import look_up as on_host

    for case in CASES:
        if case.function != "look_up":
            continue
        args, given = case.make()
        if args[2] != bits:
            continue
        words, size, _ = args
        there = {name: to_device(part) for name, part in given.items()}
        want = on_host(*args, **given)
        same(look_up(to_device(words), size, bits, **there), want)
        out = empty((size + 3,), np.float32)
        look_up(to_device(words), size, bits, **there, out=out[1 : size + 1])
        same(out[1 : size + 1], want)
        assert to_host(out[size + 1 :]).tobytes() == b"\xa5" * 8
