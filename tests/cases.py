"""The table of cases on which all backends must agree.

A case is a backend function with plain NumPy arguments. ``test_backends.py`` runs each on two backends and compares the
answers bit for bit. A new function adds its cases here and nowhere else.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from types import ModuleType
from typing import Any

import cases_sparse
import ml_dtypes
import numpy as np

from bitsparse.backends.params import EpilogueParams, PairTest, Sides, packed_words
from bitsparse.backends.signs import Drop

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
ENCODINGS = ["unsigned", "signed", "bipolar"]
#: (layout, bits): every width for "planes", and for "rows" the five widths that tile a word.
FORMATS = [("planes", b) for b in range(1, 33)] + [("rows", b) for b in (1, 2, 4, 8, 16)]
#: Shapes: empty, one element, one row, one column, ragged, around the 128-element group, primes, batches, and an empty batch.
SHAPES = [
    (0, 5),
    (5, 0),
    (0, 0),
    (1, 1),
    (1, 257),
    (257, 1),
    (3, 130),
    (127, 9),
    (8, 128),
    (129, 33),
    (31, 131),
    (2, 3, 40),
    (2, 1, 2, 17),
    (0, 3, 4),
    (3, 0, 7),
]
#: How an input array lies in memory.
MEMORY = ["C", "F", "strided", "reversed", "readonly", "unaligned"]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def lay_out(x: np.ndarray, memory: str) -> np.ndarray:
    """An array equal to ``x`` that lies in memory as ``memory`` says."""
    if memory == "C":
        return np.ascontiguousarray(x)
    if memory == "F":
        return np.asfortranarray(x)
    if memory == "strided":
        big = np.zeros(tuple(2 * s + 1 for s in x.shape), x.dtype)
        view = big[tuple(slice(1, None, 2) for _ in x.shape)]
        view[...] = x
        return view
    if memory == "reversed":
        flip = tuple(slice(None, None, -1) for _ in x.shape)
        return np.ascontiguousarray(x[flip])[flip]
    if memory == "readonly":
        x = x.copy()
        x.flags.writeable = False
        return x
    if memory == "unaligned":
        raw = np.zeros(x.nbytes + 1, np.uint8)
        view = np.frombuffer(raw.data, x.dtype, x.size, offset=1) if x.size else np.zeros(0, x.dtype)
        view = view.reshape(x.shape)
        view[...] = x
        return view
    raise AssertionError(memory)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Random integers over the whole range of ``dtype``, half of them small."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    wide = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    small = rng.integers(-3 if info.min < 0 else 0, 4, shape).astype(dtype)
    return np.where(rng.random(shape) < 0.5, wide, small)


def floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Random floats with zeros of both signs and exact ties among them."""
    x = rng.standard_normal(shape) * 3
    kind = rng.integers(0, 8, shape)
    x = np.where(kind == 0, 0.0, x)
    x = np.where(kind == 1, -0.0, x)
    x = np.where(kind == 2, np.round(x * 2) / 2, x)
    return x.astype(dtype)


def random_codes(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> np.ndarray:
    return rng.integers(0, 1 << bits, shape, np.uint64)


def make_words(
    rng: np.random.Generator, shape: tuple[int, ...], bits: int, axis: int, layout: str, density: float = 1.0
) -> np.ndarray:
    """Valid words (pad bits zero) of random codes, packed by :func:`words_of` without any backend."""
    codes = random_codes(rng, shape, bits)
    if density < 1:
        codes[rng.random(shape) >= density] = 0
    if axis == -2:
        codes = np.swapaxes(codes, -1, -2)
    return words_of(codes, bits, layout)


def words_of(codes: np.ndarray, bits: int, layout: str) -> np.ndarray:
    """Pack codes along their last axis by writing out the bits as a byte string, least significant first."""
    *lead, length = codes.shape
    each = ((codes.astype(np.uint64)[..., None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)).astype(np.uint8)
    stream = np.moveaxis(each, -1, -2) if layout == "planes" else each.reshape(*lead, length * bits)
    n_bytes = packed_words(length, bits, layout) * 4
    packed = np.zeros((*stream.shape[:-1], n_bytes), np.uint8)
    some = np.packbits(stream, axis=-1, bitorder="little") if stream.size else packed[..., :0]
    packed[..., : some.shape[-1]] = some
    return packed.view("<u4").astype(np.uint32)


def functions_of(module: ModuleType) -> set[str]:
    """The public functions that a module defines itself."""
    defined = inspect.getmembers(module, inspect.isfunction)
    return {name for name, each in defined if each.__module__ == module.__name__ and not name.startswith("_")}


# ---- the table
@dataclass(frozen=True)
class Case:
    """Call ``function`` of the backend's ``module`` with the arguments that ``make()`` returns."""

    module: str
    function: str
    name: str
    make: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] = field(repr=False)

    @property
    def id(self) -> str:
        return f"{self.function}-{self.name}"

    def run(self, backend: Any) -> Any:
        args, kwargs = self.make()
        return attrgetter(f"{self.module}.{self.function}")(backend)(*args, **kwargs)


def _shape_id(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


# A generator that is the same in every run for the same key.
def _seed(*key: object) -> np.random.Generator:
    return np.random.default_rng([sum(map(ord, part)) + i for i, part in enumerate(map(str, key))])


def _pack_cases() -> Iterator[Case]:
    turn = itertools.count()
    for dtype, (layout, bits), axis in itertools.product(INTEGERS + FLOATS, FORMATS, (-1, -2)):
        if dtype in FLOATS and bits > 1:
            continue
        for _ in range(6 if bits == 1 else 1):
            i = next(turn)
            shape, memory = SHAPES[i % len(SHAPES)], MEMORY[(i // len(SHAPES) + i) % len(MEMORY)]
            encoding = ENCODINGS[i % 3] if bits == 1 else ENCODINGS[i % 2]

            # Here and below, defaults bind the loop's variables, as `make` is called after the loop.
            def make(dtype=dtype, layout=layout, bits=bits, axis=axis, shape=shape, memory=memory, encoding=encoding):
                rng = _seed(dtype, bits, shape)
                x = (floats if dtype in FLOATS else integers)(rng, shape, dtype_of(dtype))
                return (lay_out(x, memory), bits), {"axis": axis, "layout": layout, "encoding": encoding}

            yield Case(
                "bits.pack", "pack", f"{dtype}-{layout}{bits}-ax{axis}-{encoding}-{_shape_id(shape)}-{memory}", make
            )


def _unpack_cases() -> Iterator[Case]:
    turn = itertools.count()
    for (layout, bits), axis, encoding in itertools.product(FORMATS, (-1, -2), ENCODINGS):
        if encoding == "bipolar" and bits > 1:
            continue
        # The dtypes that hold all values take turns.
        fits = [d for d in INTEGERS[1:] if _holds(dtype_of(d), bits, encoding)]
        for _ in range(4):
            i = next(turn)
            shape, dtype = SHAPES[i % len(SHAPES)], fits[i % len(fits)]

            def make(layout=layout, bits=bits, axis=axis, encoding=encoding, shape=shape, dtype=dtype):
                words = make_words(_seed(bits, shape), shape, bits, axis, layout)
                return (words, shape, bits), {
                    "axis": axis,
                    "layout": layout,
                    "encoding": encoding,
                    "dtype": dtype_of(dtype),
                }

            yield Case("bits.pack", "unpack", f"{layout}{bits}-ax{axis}-{encoding}-{_shape_id(shape)}-{dtype}", make)


def _holds(dtype: np.dtype[Any], bits: int, encoding: str) -> bool:
    low, high = value_range(bits, encoding)
    info = np.iinfo(dtype)
    return bool(info.min <= low and high <= info.max)


def value_range(bits: int, encoding: str) -> tuple[int, int]:
    """Smallest and largest integer of ``bits`` bits in ``encoding``."""
    if encoding == "bipolar":
        return -1, 1
    if encoding == "signed":
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1


def _repack_cases() -> Iterator[Case]:
    turn = itertools.count()
    for (layout, bits), axis, to_axis, to_layout in itertools.product(FORMATS, (-1, -2), (-1, -2), ("planes", "rows")):
        if to_layout == "rows" and bits not in (1, 2, 4, 8, 16):
            continue
        for _ in range(2):
            shape = SHAPES[next(turn) % len(SHAPES)]

            def make(layout=layout, bits=bits, axis=axis, to_axis=to_axis, to_layout=to_layout, shape=shape):
                words = make_words(_seed(bits, shape), shape, bits, axis, layout)
                return (words, shape, bits), {
                    "axis": axis,
                    "layout": layout,
                    "to_axis": to_axis,
                    "to_layout": to_layout,
                }

            yield Case(
                "bits.pack", "repack", f"{layout}{bits}-ax{axis}-to-{to_layout}-ax{to_axis}-{_shape_id(shape)}", make
            )


def _calibrate_cases() -> Iterator[Case]:
    turn = itertools.count()
    for dtype, granularity, shape in itertools.product(FLOATS, ("tensor", "row", "col"), SHAPES):
        i = next(turn)
        memory, poison = MEMORY[i % len(MEMORY)], (None, None, np.nan, np.inf, -np.inf)[i % 5]

        def make(dtype=dtype, granularity=granularity, shape=shape, memory=memory, poison=poison):
            x = floats(_seed(dtype, shape), shape, dtype_of(dtype))
            if poison is not None and x.size:
                x[tuple(s // 2 for s in shape)] = poison
            return (lay_out(x, memory), granularity), {}

        yield Case("bits.pack", "calibrate", f"{dtype}-{granularity}-{_shape_id(shape)}-{memory}-{poison}", make)


def _affine(
    rng: np.random.Generator, shape: tuple[int, ...], granularity: str, dtype: Any, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    lead = {"tensor": (), "row": (*shape[:-1], 1), "col": (*shape[:-2], 1, shape[-1])}[granularity]
    return rng.normal(-spread / 2, 0.1, lead).astype(dtype), rng.uniform(0.5 * spread, spread, lead).astype(dtype)


def _quantize_cases() -> Iterator[Case]:
    turn = itertools.count()
    for (layout, bits), axis, rounding, granularity in itertools.product(
        FORMATS, (-1, -2), ("floor", "nearest", "stochastic"), ("tensor", "row", "col")
    ):
        i = next(turn)
        dtype, shape, memory = FLOATS[i % 4], SHAPES[(i // 4 + i) % len(SHAPES)], MEMORY[i % len(MEMORY)]
        scheme = ("affine", "affine-pow2", "symmetric")[i % 3]
        steps = np.float64 if dtype == "float64" or bits > 24 else np.float32

        def make(
            layout=layout,
            bits=bits,
            axis=axis,
            rounding=rounding,
            granularity=granularity,
            dtype=dtype,
            shape=shape,
            memory=memory,
            scheme=scheme,
            steps=steps,
            first=(0, 16, 13, (1 << 40) + 8, (1 << 63) - 1)[i // 3 % 5],
        ):
            rng = _seed(dtype, bits, shape)
            x = floats(rng, shape, dtype_of(dtype))
            offset, divisor = _affine(rng, shape, granularity, steps, 6.0)
            multiplier, (qmin, qmax) = 1.0, value_range(bits, "unsigned")
            if scheme == "affine":
                multiplier = float(2**bits - 1)
            elif scheme == "affine-pow2":
                divisor = divisor / steps(2.0**bits)
            else:
                offset, divisor = np.zeros_like(offset), divisor / steps(2.0 ** (bits - 1))
                qmin, qmax = value_range(bits, "signed")
            return (lay_out(x, memory), bits), {
                "offset": offset,
                "divisor": divisor,
                "multiplier": multiplier,
                "qmin": qmin,
                "qmax": qmax,
                "rounding": rounding,
                "seed": 12345678901234567890 + bits,
                "stream": bits,
                "first_index": first,
                "axis": axis,
                "layout": layout,
            }

        yield Case(
            "bits.pack",
            "quantize",
            f"{dtype}-{layout}{bits}-ax{axis}-{scheme}-{rounding}-{granularity}-{_shape_id(shape)}-{memory}",
            make,
        )


def _sided_cases() -> Iterator[Case]:
    """Quantisation that goes on after the division: every kind of sides on every width, lines that begin and end within an octet too."""
    kinds = {"signed": Sides(3), "below": Sides(-1, 2.0), "marked": Sides(-1, 0.0, True)}
    for (kind, sides), bits, rounding, shape in itertools.product(
        kinds.items(), (2, 4, 8), ("nearest", "stochastic"), [(0, 5), (1, 257), (5, 1024), (33, 130)]
    ):

        def make(kind=kind, sides=sides, bits=bits, rounding=rounding, shape=shape):
            x = floats(_seed(kind, bits, shape), shape, np.dtype(np.float32))
            x[::3] = np.maximum(x[::3], 0)  # many zeros, as relu makes them
            top = 2 ** (bits - 1) - 1
            how = {"offset": np.zeros((), np.float32), "divisor": np.full((), 1.7 / top, np.float32), "multiplier": 1.0}
            how |= {"qmin": -top, "qmax": top, "rounding": rounding, "seed": 7, "stream": bits, "first_index": 3 * bits}
            return (x, bits), how | {"sides": sides, "axis": -1, "layout": "rows"}

        yield Case("bits.pack", "quantize", f"sides-{kind}-{bits}-{rounding}-{_shape_id(shape)}", make)


def _look_up_cases() -> Iterator[Case]:
    for bits, size, times in itertools.product((1, 2, 4, 8), (0, 1, 8, 257, 4099), (False, True)):

        def make(bits=bits, size=size, times=times):
            rng = _seed("look_up", bits, (size,))
            words = rng.integers(0, 1 << 32, packed_words(size, bits, "rows"), dtype=np.uint32)
            given = {"table": rng.normal(size=1 << bits).astype(np.float32)}
            if times:
                given["times"] = rng.normal(size=size).astype(np.float32)
            return (words, size, bits), given

        yield Case("bits.look_up", "look_up", f"{bits}-{size}{'-times' * times}", make)


def _dequantize_cases() -> Iterator[Case]:
    turn = itertools.count()
    for (layout, bits), axis, granularity in itertools.product(FORMATS, (-1, -2), ("tensor", "row", "col")):
        for _ in range(2):
            i = next(turn)
            shape, dtype = SHAPES[(i // 4 + i) % len(SHAPES)], FLOATS[i % 4]
            encoding = ENCODINGS[i % 3] if bits == 1 else ENCODINGS[i % 2]

            def make(
                layout=layout,
                bits=bits,
                axis=axis,
                granularity=granularity,
                shape=shape,
                dtype=dtype,
                encoding=encoding,
            ):
                rng = _seed(dtype, bits, shape)
                words = make_words(rng, shape, bits, axis, layout)
                offset, scale = _affine(rng, shape, granularity, np.float32, 0.3)
                return (words, shape, bits), {
                    "axis": axis,
                    "layout": layout,
                    "encoding": encoding,
                    "scale": scale,
                    "offset": offset,
                    "dtype": dtype_of(dtype),
                }

            yield Case(
                "bits.pack",
                "dequantize",
                f"{layout}{bits}-ax{axis}-{encoding}-{granularity}-{_shape_id(shape)}-{dtype}",
                make,
            )


def _stochastic_round_cases() -> Iterator[Case]:
    for dtype, memory, shape in itertools.product(
        ("float16", "float32", "float64"), MEMORY, [(0,), (7,), (1000,), (3, 0), (13, 17), (2, 3, 5)]
    ):

        def make(dtype=dtype, memory=memory, shape=shape):
            return (
                lay_out(floats(_seed(dtype, shape), shape, dtype_of(dtype)) * dtype_of(dtype).type(9), memory),
                2**63 + 5,
                3,
            ), {}

        yield Case("bits.pack", "stochastic_round", f"{dtype}-{memory}-{_shape_id(shape)}", make)


def _statistics_cases() -> Iterator[Case]:
    shapes = [*SHAPES, (16, 5000), (9, 4097), (2, 17, 4096)]
    for shape, bits in itertools.product(shapes, (1, 3, 8, 17, 32)):

        def words(shape=shape, bits=bits):
            return make_words(_seed(bits, shape), shape, bits, -1, "planes", density=2e-3)

        yield Case(
            "bits.pack", "tile_bitmap", f"{_shape_id(shape)}-{bits}", lambda w=words, k=shape[-1]: ((w(), k), {})
        )
        for encoding in ENCODINGS[: 3 if bits == 1 else 2]:
            yield Case(
                "bits.pack",
                "code_sums",
                f"{_shape_id(shape)}-{bits}-{encoding}",
                lambda w=words, b=bits, e=encoding, k=shape[-1]: ((w(), b, e, k), {}),
            )
    for shape, (layout, bits), broken in itertools.product(SHAPES, FORMATS[:30:3] + FORMATS[-5:], (False, True)):

        def words_and_length(shape=shape, layout=layout, bits=bits, broken=broken):
            words = make_words(_seed(bits, shape), shape, bits, -1, layout, density=0.5)
            length = max(shape[-1] - 1, 0) if broken else shape[-1]  # one element too few: a pad bit may now be set
            return (words, bits, layout, length), {}

        name = f"{layout}{bits}-{_shape_id(shape)}-{'broken' if broken else 'whole'}"
        yield Case("bits.pack", "pad_is_zero", name, words_and_length)
        if not broken:
            yield Case("bits.pack", "count_nonzero", name, words_and_length)


# ---- products
#: (m, k, n): sizes around the edges of blocks of 8, 16, 32 and 128, primes, and zeros
PRODUCTS = [
    (0, 5, 3),
    (5, 0, 3),
    (5, 3, 0),
    (0, 0, 0),
    (1, 1, 1),
    (1, 129, 1),
    (7, 127, 129),
    (8, 128, 16),
    (9, 131, 17),
    (127, 257, 15),
    (129, 64, 127),
    (128, 128, 128),
    (130, 1031, 3),
    (3, 1031, 130),
    (1, 5000, 33),
    (33, 31, 1),
]
#: (batch of a, batch of b)
BATCHES = [((), ()), ((2,), (2,)), ((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((1,), (2,)), ((0,), ()), ((2, 2), (2,))]
#: every pair of widths up to 8, and some wider pairs
BIT_PAIRS = [(p, q) for p in range(1, 9) for q in range(1, 9)] + [
    (16, 16),
    (32, 1),
    (1, 32),
    (12, 4),
    (4, 12),
    (16, 8),
    (24, 3),
    (31, 2),
    (32, 20),
    (9, 9),
    (11, 13),
]


def encodings_of(bits: int) -> list[str]:
    return ENCODINGS if bits == 1 else ENCODINGS[:2]


def accumulator(k: int, a_bits: int, b_bits: int, a_encoding: str, b_encoding: str) -> str | None:
    """The accumulator that the documentation promises for sums of k products of these operands, or None for an error."""
    bound = k
    for bits, encoding in ((a_bits, a_encoding), (b_bits, b_encoding)):
        bound *= max(map(abs, value_range(bits, encoding)))
    return "int32" if bound < 2**31 else "int64" if bound < 2**63 else None


def _matmul_cases() -> Iterator[Case]:
    turn = itertools.count()
    for a_bits, b_bits in BIT_PAIRS:
        for a_encoding, b_encoding in itertools.product(encodings_of(a_bits), encodings_of(b_bits)):
            for kernel in ("planes", "digits"):
                i = next(turn)
                yield _matmul_case(
                    PRODUCTS[i % len(PRODUCTS)],
                    BATCHES[(i // 3) % len(BATCHES)] if i % 3 == 0 else ((), ()),
                    a_bits,
                    b_bits,
                    a_encoding,
                    b_encoding,
                    kernel,
                    skip=bool((i // 2) % 2),
                )
    # The loop above takes shapes and batches in turn; here every shape and every batch meets both kernels.
    for shape, kernel, skip in itertools.product(PRODUCTS, ("planes", "digits"), (False, True)):
        yield _matmul_case(shape, ((), ()), 1, 1, "unsigned", "unsigned", kernel, skip)
        yield _matmul_case(shape, ((), ()), 3, 2, "signed", "unsigned", kernel, skip)
    for batch, kernel, skip in itertools.product(BATCHES, ("planes", "digits"), (False, True)):
        yield _matmul_case((17, 150, 19), batch, 2, 3, "unsigned", "signed", kernel, skip)


def _matmul_case(shape, batch, a_bits, b_bits, a_encoding, b_encoding, kernel, skip) -> Case:
    m, k, n = shape
    acc = accumulator(k, a_bits, b_bits, a_encoding, b_encoding)
    if acc is None:
        k = 3
        acc = accumulator(k, a_bits, b_bits, a_encoding, b_encoding)

    def make(m=m, k=k, n=n):
        rng = _seed(m, k, n, a_bits, b_bits)
        a = make_words(rng, (*batch[0], m, k), a_bits, -1, "planes", density=0.01 if skip else 1.0)
        b = make_words(rng, (*batch[1], n, k), b_bits, -1, "planes")
        bitmap = tile_bitmap_of(a) if skip else None
        return (a, b), {
            "k": k,
            "a_bits": a_bits,
            "b_bits": b_bits,
            "a_encoding": a_encoding,
            "b_encoding": b_encoding,
            "acc_dtype": np.dtype(acc),
            "bitmap": bitmap,
            "kernel": kernel,
        }

    batches = "" if batch == ((), ()) else f"-batch{batch[0]}{batch[1]}".replace(" ", "")
    name = f"{a_encoding[0]}{a_bits}x{b_encoding[0]}{b_bits}-{m}x{k}x{n}{batches}-{kernel}{'-skip' if skip else ''}"
    return Case("matmul.matmul", "matmul", name, make)


def tile_bitmap_of(words: np.ndarray) -> np.ndarray:
    """Zero-tile bitmap of "planes" words, computed by reshaping."""
    *batch, outer, bits, n_words = words.shape
    rows, tiles = -(-outer // 8), n_words // 4
    padded = np.zeros((*batch, rows * 8, bits, n_words), np.uint32)
    padded[..., :outer, :, :] = words
    hit = padded.reshape(*batch, rows, 8 * bits, tiles, 4).any((-1, -3))
    full = np.zeros((*batch, rows, -(-tiles // 32) * 32), np.uint8)
    full[..., :tiles] = hit
    packed = (
        np.packbits(full, axis=-1, bitorder="little")
        if full.size
        else np.zeros((*full.shape[:-1], full.shape[-1] // 8), np.uint8)
    )
    return (
        packed.view("<u4").astype(np.uint32)
        if packed.size
        else np.zeros((*full.shape[:-1], full.shape[-1] // 32), np.uint32)
    )


OUTPUTS: list[dict[str, Any]] = [
    {"out": "float"},
    {"out": "bits", "binarize": True, "axis": -1, "layout": "planes"},
    {"out": "bits", "binarize": True, "axis": -2, "layout": "rows"},
    {"out": "bits", "bits": 3, "rounding": "floor", "axis": -1, "layout": "planes"},
    {"out": "bits", "bits": 8, "rounding": "nearest", "axis": -2, "layout": "planes"},
    {"out": "bits", "bits": 4, "rounding": "stochastic", "axis": -1, "layout": "rows"},
    {"out": "bits", "bits": 2, "rounding": "nearest", "axis": -2, "layout": "rows"},
]


def make_epilogue(
    m: int,
    n: int,
    parts: tuple[str, ...],
    activation: str | None,
    output: dict[str, Any],
    vectors: str = "full",
    batch: tuple[int, ...] = (),
) -> EpilogueParams:
    """An epilogue with the named parts, random but fixed; its vectors are "full" (per row and column), "scalar" or "batched"."""
    rng = _seed(m, n, len(parts))
    lead = batch if vectors == "batched" else ()

    def row(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, () if vectors == "scalar" else (*lead, m)).astype(np.float32)

    def col(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, () if vectors == "scalar" else (*lead, n)).astype(np.float32)

    fields: dict[str, Any] = dict(output)
    if "row_scale" in parts:
        fields["row_scale"] = row(-0.3, 0.4)
    if "col_scale" in parts:
        fields["col_scale"] = col(-0.3, 0.4)
    if "row_term" in parts:
        fields["row_term"] = (row(-2, 2), col(-1, 1))
    if "col_term" in parts:
        fields["col_term"] = (row(-1, 1), col(-2, 2))
    if "bias" in parts:
        fields["bias"] = col(-3, 3)
    if "bn" in parts:
        fields["bn_scale"], fields["bn_shift"] = col(-1.5, 1.5), col(-1, 1)
    if activation == "leaky_relu":
        fields["negative_slope"] = float(np.float32(0.03))
    if output["out"] == "bits" and not output.get("binarize"):
        bits, signed = output["bits"], output["bits"] == 8
        fields["qmin"], fields["qmax"] = value_range(bits, "signed" if signed else "unsigned")
        shapes = {"full": ((), ()), "scalar": ((), ()), "batched": ((*lead, m, 1), (*lead, 1, n))}[vectors]
        fields["offset"] = rng.uniform(-2, 0, shapes[0]).astype(np.float32)
        fields["divisor"] = rng.uniform(2.0, 4.0, shapes[1]).astype(np.float32)
        fields["multiplier"] = 1.0 if signed else float(2**bits - 1)
        fields["seed"], fields["stream"] = 7, 1
    return EpilogueParams(activation=activation, **fields)


PARTS = ("row_scale", "col_scale", "row_term", "col_term", "bias", "bn")
ACTIVATIONS = (None, "relu", "leaky_relu", "tanh")


def _epilogue_cases() -> Iterator[Case]:
    for chosen in itertools.product((False, True), repeat=len(PARTS)):
        parts = tuple(itertools.compress(PARTS, chosen))
        for j, (activation, output) in enumerate(itertools.product(ACTIVATIONS, OUTPUTS)):
            # All 64 sets of parts meet all activations and outputs; the accumulators and kinds of vectors take turns.
            acc = ("int32", "int64")[j % 2]
            vectors = ("full", "scalar", "batched")[(j + sum(chosen)) % 3]

            def make(parts=parts, activation=activation, output=output, acc=acc, vectors=vectors):
                batch, m, n = (2,), 9, 37
                rng = _seed(acc, len(parts))
                values = rng.integers(-40, 40, (*batch, m, n)).astype(acc)
                return (values, make_epilogue(m, n, parts, activation, output, vectors, batch)), {}

            name = "+".join(parts) or "bare"
            form = "-".join(str(v) for v in output.values())
            yield Case("matmul.matmul", "epilogue", f"{name}-{activation}-{form}-{acc}-{vectors}", make)


def _fused_cases() -> Iterator[Case]:
    turn = itertools.count()
    for shape, output, kernel in itertools.product(PRODUCTS, OUTPUTS, ("planes", "digits")):
        i = next(turn)
        m, k, n = shape
        batch = ((), (2,))[i % 2]
        activation = ACTIVATIONS[i % 4]
        parts = PARTS if i % 3 else ("row_scale", "bias")

        def make(m=m, k=k, n=n, output=output, kernel=kernel, batch=batch, activation=activation, parts=parts, i=i):
            rng = _seed(m, k, n, i)
            a = make_words(rng, (*batch, m, k), 2, -1, "planes", density=0.1)
            b = make_words(rng, (n, k), 3, -1, "planes")
            params = make_epilogue(m, n, parts, activation, output, ("full", "batched")[i % 2], batch)
            return (a, b), {
                "k": k,
                "a_bits": 2,
                "b_bits": 3,
                "a_encoding": "unsigned",
                "b_encoding": "signed",
                "acc_dtype": np.dtype("int32"),
                "bitmap": tile_bitmap_of(a) if i % 4 == 0 else None,
                "epilogue": params,
                "kernel": kernel,
            }

        form = "-".join(str(v) for v in output.values())
        yield Case("matmul.matmul", "matmul", f"fused-{m}x{k}x{n}-{form}-{activation}-batch{len(batch)}-{kernel}", make)


def _build_cases() -> Iterator[Case]:
    flat = [shape for shape in SHAPES if len(shape) == 2]
    for i, ((layout, bits), axis) in enumerate(itertools.product(FORMATS, (-1, -2))):
        shape = flat[i % len(flat)]
        dtype = ("bool", "uint8", "int32", "int64", "uint64")[i % 5]

        def make(layout=layout, bits=bits, axis=axis, shape=shape, dtype=dtype):
            rng = _seed(bits, shape)
            count = 0 if 0 in shape else 40  # some bits repeat: repeats are combined by OR
            rows, cols = (rng.integers(0, max(size, 1), count, np.int64) for size in shape)
            values = integers(rng, (count,), dtype_of(dtype))
            return (rows, cols, values, shape, bits), {"axis": axis, "layout": layout}

        yield Case("sparse.build", "pack_coo", f"{layout}{bits}-ax{axis}-{_shape_id(shape)}-{dtype}", make)


def _stats_cases() -> Iterator[Case]:
    for dtype, memory, shape in itertools.product(FLOATS, MEMORY, [(0, 3), (1, 1), (7, 9), (2, 3, 5), (600, 601)]):
        if shape[0] == 600 and memory != "F":
            continue

        def make(dtype=dtype, memory=memory, shape=shape):
            rng = _seed(dtype, shape)
            x, y = (floats(rng, shape, dtype_of(dtype)) for _ in range(2))
            return (lay_out(x, memory), np.where(rng.random(shape) < 0.3, x, y).astype(np.float64)), {}

        yield Case("bits.pack", "relative_error", f"{dtype}-{memory}-{_shape_id(shape)}", make)


def _content_cases() -> Iterator[Case]:
    for dtype, memory, shape in itertools.product(
        ("uint8", "float16", "bfloat16", "float32", "float64"), MEMORY, [(0, 3), (1, 1), (7, 9), (2, 3, 5), (63, 65)]
    ):

        def make(dtype=dtype, memory=memory, shape=shape):
            return (lay_out(floats(_seed(dtype, shape), shape, np.float64).astype(dtype_of(dtype)), memory),), {}

        yield Case("bits.pack", "content_sum", f"{dtype}-{memory}-{_shape_id(shape)}", make)


def _rows_of_bits(rng: np.random.Generator, shape: tuple[int, int], density: float) -> np.ndarray:
    """Words (N, W) of N rows of bits; some rows are empty, some full, some equal."""
    bits = rng.random(shape) < density
    bits[1::7], bits[3::11] = False, True
    bits[::5] = bits[:1]
    return words_of(bits.astype(np.uint8), 1, "planes")[:, 0]


def _ones(words: np.ndarray) -> np.ndarray:
    return np.bitwise_count(words).sum(axis=1).astype(np.int32)


def _search_cases() -> Iterator[Case]:
    sizes = [(1, 1), (3, 0), (0, 3), (2, 40), (9, 300), (17, 129), (5, 700)]
    for (queries, n), length, density, k in itertools.product(sizes, (0, 5, 128, 300, 1024), (0.5, 0.05), (1, 9, 40)):
        jaccard, masked = (n + length + k) % 2 == 0, (queries + k) % 3 == 0

        def make(sizes=(queries, n), length=length, density=density, k=k, jaccard=jaccard, masked=masked):
            rng = _seed("nearest", sizes, length)
            asked, rows = (_rows_of_bits(rng, (size, length), density) for size in sizes)
            ones = _ones(rows)
            ones[::3] = -1 if masked else ones[::3]
            return (asked, rows, ones, k, jaccard), {}

        yield Case("search.nearest", "nearest", f"{queries}x{n}x{length}-{density}-k{k}-{jaccard}-{masked}", make)
    tests = [(2, 1, -9), (2, 1, 0), (17, 7, 0), (1, 0, 0), (3, 1, 0), (2, 1, 1)]
    for (m, n), length, test in itertools.product(sizes, (0, 5, 300), tests):

        def make(m=m, n=n, length=length, test=test):
            rng = _seed("pairs", m, n, length)
            a, b = (_rows_of_bits(rng, (size, length), 0.3) for size in (m, n))
            b = b[np.argsort(_ones(b), kind="stable")]
            triangle = (m + n + length) % 2 == 1
            return ((b if triangle else a), _ones(b if triangle else a), b, _ones(b), PairTest(*test), triangle), {}

        yield Case("search.nearest", "pairs", f"{m}x{n}x{length}-{test}", make)
    for rows, length in itertools.product((0, 1, 33), range(0, 1300, 118)):

        def make(rows=rows, length=length):
            return (_rows_of_bits(_seed("ones", rows, length), (rows, length), 0.5),), {}

        yield Case("search.nearest", "ones_of", f"{rows}x{length}", make)
    for metric, union in itertools.product(("jaccard", "hamming", "dot"), (1, 2, 3, 7, 100, 1023, 4096, 65535, 65536)):
        for rows in (0, 1, 70):

            def make(metric=metric, union=union, rows=rows):
                rng = _seed("distances", metric, union, rows)
                apart = rng.integers(0, union + 1, (rows, 3))
                found = rng.integers(-1, 4, (rows, 3))
                keys = np.minimum((apart << 32) // union, 2**32 - 1) if metric == "jaccard" else apart
                return (keys.astype(np.uint32), found, metric, union), {}

            yield Case("search.nearest", "distances", f"{metric}-{union}-{rows}", make)


def _sign_cases() -> Iterator[Case]:
    sizes = itertools.product((0, 1, 5, 130), (0, 1, 7, 31, 33, 127, 128, 130, 602))
    ways = itertools.cycle(itertools.product((False, True), (None, 0.6, 1 / 3), (False, True)))
    for (rows, columns), (normed, share, passes) in zip(itertools.chain(sizes, [(9, 300)] * 12), ways, strict=False):

        def make(shape=(rows, columns), normed=normed, share=share, passes=passes):
            rng = _seed("signs", shape, normed, share)
            x = floats(rng, shape, np.dtype(np.float32))
            if x.size > 20:
                x.ravel()[[3, 7]] = np.nan, -np.inf
            norm = rng.random(shape[1], np.float32) + np.float32(0.1), rng.standard_normal(shape[1], np.float32)
            drop = None if share is None else Drop(share, 5, 7)
            return (x, norm if normed else None, drop, 1.25, passes), {}

        yield Case("binary.signs", "sign_rows", f"{rows}x{columns}-{normed}-{share}-{passes}", make)
    sizes = [(0, 3), (3, 0), (1, 1), (5, 31), (33, 130), (9, 602)]
    sizes += [(2, columns) for columns in (7, 8, 15, 16, 17, 32, 33, 63, 64, 65, 127, 128)]
    for (rows, columns), planes in itertools.product(sizes, (1, 2)):

        def make(shape=(rows, columns), planes=planes):
            codes = _seed("sign bytes", shape, planes).integers(0, 2, shape)
            codes = codes if planes == 1 else np.where(codes == 1, 3, _seed("zeros", shape).integers(0, 2, shape))
            return (words_of(codes, planes, "planes"), shape[1]), {}

        yield Case("binary.signs", "sign_bytes", f"{rows}x{columns}-{planes}", make)


_ALL = [
    *_sign_cases(),
    *_pack_cases(),
    *_unpack_cases(),
    *_repack_cases(),
    *_calibrate_cases(),
    *_quantize_cases(),
    *_sided_cases(),
    *_look_up_cases(),
    *_dequantize_cases(),
    *_stochastic_round_cases(),
    *_statistics_cases(),
    *_matmul_cases(),
    *_epilogue_cases(),
    *_fused_cases(),
    *_build_cases(),
    *(Case(*spec) for spec in cases_sparse.specs()),
    *_stats_cases(),
    *_content_cases(),
    *_search_cases(),
]
#: All cases, one for each id: the tables above generate some cases twice.
CASES: list[Case] = list({case.id: case for case in _ALL}.values())
#: Functions that sum floats, with the relative difference allowed; all other functions must agree bit for bit.
ROUNDED = {"relative_error": 1e-13}


# ---- comparing
def same(got: Any, want: Any, relative: float = 0.0) -> None:
    """Assert equal type, dtype, shape and bits (any NaN equals any NaN), and name the first difference.

    Sums of floats may differ by the relative error ``relative``.
    """
    if isinstance(want, tuple):
        assert isinstance(got, tuple)
        for one_got, one_want in zip(got, want, strict=True):
            same(one_got, one_want)
        return
    if relative:
        assert type(got) is type(want)
        assert math.isclose(got, want, rel_tol=relative, abs_tol=0), f"got {got!r}, expected {want!r}"
        return
    if not isinstance(want, np.ndarray):
        assert (type(got), got) == (type(want), want), f"got {got!r}, expected {want!r}"
        return
    assert isinstance(got, np.ndarray), f"got a {type(got).__name__}, expected an array"
    assert got.dtype == want.dtype, f"got dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"got shape {got.shape}, expected {want.shape}"
    differs = bits_of(got) != bits_of(want)
    if want.dtype.kind not in "biu":
        differs &= ~(np.isnan(got) & np.isnan(want))
    if differs.any():
        where = tuple(int(i) for i in np.argwhere(differs)[0])
        raise AssertionError(
            f"{int(differs.sum())} of {differs.size} differ, first at {where}: "
            f"got {got[where]!r}, expected {want[where]!r}"
        )


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bit patterns of an array as unsigned integers, so that +0 and -0 differ."""
    return np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.dtype.itemsize}")
