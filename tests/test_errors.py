"""Bad input is refused before anything is written, with a message that names the function, the values and the remedy."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest

import bitsparse as bs

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(6, 40)).astype(np.float32)
INTS = RNG.integers(0, 8, (6, 40))


def refuses(error: type[Exception], *facts: object):
    """Like ``pytest.raises``, and asserts that the message contains every fact and is short."""

    class Refusal:
        def __enter__(self) -> None:
            self.raised = pytest.raises(error)
            self.info = self.raised.__enter__()

        def __exit__(self, *details: object) -> bool:
            if details[0] is None or not issubclass(details[0], error):
                return self.raised.__exit__(*details)  # no error, or another one
            passed = self.raised.__exit__(*details)
            message = str(self.info.value)
            for fact in facts:
                assert str(fact) in message, f"{fact!r} is not in {message!r}"
            assert len(message) < 600
            return bool(passed)

    return Refusal()


# ---- error classes
def test_errors_are_the_builtin_ones_too() -> None:
    pairs = [
        (bs.ShapeError, ValueError),
        (bs.DTypeError, TypeError),
        (bs.DeviceError, RuntimeError),
        (bs.KernelError, RuntimeError),
    ]
    for ours, builtin in pairs:
        assert issubclass(ours, builtin)
        assert issubclass(ours, bs.BitsparseError)


# ---- bits, encodings, layouts, axes
@pytest.mark.parametrize("bits", [0, 33, -1, 1000])
def test_bit_counts_out_of_range(bits: int) -> None:
    for call, name in [
        (lambda: bs.quantize(REAL, bits), "quantize"),
        (lambda: bs.pack_bits(INTS, bits), "pack_bits"),
        (lambda: bs.BitTensor(INTS, bits), "BitTensor"),
        (lambda: bs.BitTensor((2, 3), bits), "BitTensor"),
        (lambda: bs.BitTensor(bs.pack_bits(INTS), bits), "BitTensor"),
        (lambda: bs.BitTensor.from_words(np.zeros((6, 1, 4), np.uint32), (6, 40), bits), "BitTensor.from_words"),
        (lambda: bs.choose_bits(REAL, bits=[bits]), "choose_bits"),
        (lambda: bs.plan_matmul(bs.pack_bits(INTS), 3, bits=bits), "plan_matmul"),
        (lambda: bs.Epilogue(bits=bits, out_scale=1.0), "Epilogue"),
    ]:
        with refuses(ValueError, name, "bits", "1..", bits):
            call()


@pytest.mark.parametrize("bits", [2.0, 2.5, "2", True, None, [2], np.float32(3)], ids=repr)
def test_bit_counts_of_another_type(bits: object) -> None:
    with refuses(TypeError, "quantize", "bits", "integer"):
        bs.quantize(REAL, bits)


def test_one_bit_has_no_symmetric_scheme() -> None:
    with refuses(ValueError, "quantize", "2..32", "1"):
        bs.quantize(REAL, 1, scheme="symmetric")


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("scheme", "log", "affine-pow2"),
        ("rounding", "up", "nearest"),
        ("granularity", "channel", "row"),
        ("layout", "columns", "planes"),
        ("scheme", 3, "symmetric"),
        ("layout", None, "rows"),
    ],
)
def test_unknown_options(option: str, value: object, wanted: str) -> None:
    with refuses(ValueError, "quantize", option, wanted, repr(value)):
        bs.quantize(REAL, 4, **{option: value})


@pytest.mark.parametrize(("scheme", "rounding"), [("affine-pow2", "nearest"), ("symmetric", "floor")])
def test_roundings_that_a_scheme_does_not_have(scheme: str, rounding: str) -> None:
    with refuses(ValueError, "quantize", scheme, rounding):
        bs.quantize(REAL, 4, scheme=scheme, rounding=rounding)


@pytest.mark.parametrize("axis", [0, -3, 1, 5])
def test_axes_that_cannot_be_packed(axis: int) -> None:
    x = np.zeros((2, 3, 4, 5), int)
    with refuses(ValueError, "pack_bits", "axis", axis):
        bs.pack_bits(x, axis=axis)


def test_positive_axes_count_from_the_front() -> None:
    assert bs.pack_bits(INTS, axis=1).axis == -1
    assert bs.pack_bits(INTS, axis=0).axis == -2


@pytest.mark.parametrize("bits", [3, 5, 12, 32])
def test_rows_layout_takes_powers_of_two(bits: int) -> None:
    for call in (
        lambda: bs.pack_bits(INTS, bits, layout="rows"),
        lambda: bs.quantize(REAL, bits, layout="rows"),
        lambda: bs.pack_bits(INTS, bits).repack(layout="rows"),
        lambda: bs.Epilogue(bits=min(bits, 24) - (bits == 32), out_scale=1.0, layout="rows"),
    ):
        with refuses(ValueError, "rows", "1, 2, 4, 8, 16", "planes"):
            call()


@pytest.mark.parametrize("shape", [(), (5,)])
def test_too_few_dimensions(shape: tuple) -> None:
    x = np.zeros(shape, np.float32)
    for name, call in [
        ("quantize", lambda: bs.quantize(x, 4)),
        ("pack_bits", lambda: bs.pack_bits(x.astype(int))),
        ("BitTensor", lambda: bs.BitTensor(x.astype(int))),
    ]:
        with refuses(bs.ShapeError, name, shape, "2 dimensions"):
            call()


# ---- values
@pytest.mark.parametrize(
    ("values", "bits", "encoding", "facts"),
    [
        ([[0, 4]], 2, "unsigned", ("0..4", "0..3")),
        ([[-1, 0]], 2, "unsigned", ("-1..0", "signed")),
        ([[8, 0]], 4, "signed", ("0..8", "-8..7")),
        ([[-9, 0]], 4, "signed", ("-9..0", "-8..7")),
        ([[2**32, 0]], None, "unsigned", ("4294967296", "32 bits")),
        ([[2**40, -1]], 32, "signed", ("1099511627776",)),
        ([[0, 1]], 1, "bipolar", ("-1 and +1",)),
        ([[-2, 1]], 1, "bipolar", ("-1 and +1",)),
    ],
)
def test_values_that_do_not_fit(values: list, bits: int | None, encoding: str, facts: tuple) -> None:
    for name, call in [
        ("pack_bits", lambda: bs.pack_bits(values, bits, encoding=encoding)),
        ("BitTensor", lambda: bs.BitTensor(np.array(values), bits, encoding=encoding)),
    ]:
        with refuses(ValueError, name, *facts):
            call()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0), (5, 39), (3, 17)])
def test_nan_and_infinity(dtype: str, bad: float, where: tuple) -> None:
    x = REAL.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x[where] = bad
    for scheme, granularity in [("affine", "tensor"), ("affine-pow2", "row"), ("symmetric", "col")]:
        with refuses(ValueError, "quantize", "NaN or infinity", "nan_to_num"):
            bs.quantize(x, 4, scheme=scheme, granularity=granularity)
    with refuses(ValueError, "quantize", "NaN or infinity"):
        bs.quantize(x, 4, range=(-1.0, 1.0))
    with refuses(ValueError, "stochastic_round", "NaN or infinity"):
        bs.stochastic_round(x, seed=0)
    with refuses(ValueError, "NaN or infinity"):
        bs.choose_bits(x)
    if np.isnan(bad):
        with refuses(ValueError, "pack_bits", "NaN"):
            bs.pack_bits(x, 1)


@pytest.mark.parametrize(
    "dtype", [np.complex64, np.longdouble, object, "U3", "S3", "datetime64[s]", "timedelta64[s]"], ids=str
)
def test_dtypes_that_are_no_plain_numbers(dtype: object) -> None:
    if np.dtype(dtype) == np.float64:  # longdouble is float64 on some platforms, and float64 is accepted
        assert bs.quantize(np.zeros((2, 3), dtype), 4).bits == 4
        return
    x = np.zeros((2, 3), dtype)
    for name, call in [
        ("quantize", lambda: bs.quantize(x, 4)),
        ("pack_bits", lambda: bs.pack_bits(x)),
        ("stochastic_round", lambda: bs.stochastic_round(x)),
        ("quantization_error", lambda: bs.quantization_error(x, x)),
        ("matmul", lambda: bs.matmul(x, bs.pack_bits(INTS.T))),
    ]:
        with refuses(TypeError, name, np.dtype(dtype)):
            call()


@pytest.mark.parametrize("order", [">i4", ">f4", ">f8", ">u2", "<i4"])
def test_either_byte_order(order: str) -> None:
    x = (INTS.astype(order), REAL.astype(order))[order[1] == "f"]
    native = x.astype(x.dtype.newbyteorder("="))
    call = (lambda v: bs.pack_bits(v, 3)) if order[1] != "f" else (lambda v: bs.quantize(v, 3))
    assert np.array_equal(call(x).words, call(native).words)


def test_floats_are_not_packed_silently() -> None:
    with refuses(bs.DTypeError, "pack_bits", "float32", "bits=1", "quantize"):
        bs.pack_bits(REAL, 3)
    with refuses(bs.DTypeError, "matmul", "a", "float32", "quantize"):
        bs.matmul(REAL, bs.pack_bits(INTS.T, axis=-2))
    with refuses(bs.DTypeError, "matmul", "b", "float32"):
        bs.pack_bits(INTS) @ REAL.T
    with refuses(bs.DTypeError, "stochastic_round", "int64"):
        bs.stochastic_round(INTS)


# ---- quantisation ranges and seeds
@pytest.mark.parametrize(
    ("given", "error", "facts"),
    [
        ((1.0, -1.0), ValueError, ("low > high", "1.0", "-1.0")),
        ((np.nan, 1.0), ValueError, ("NaN",)),
        ((0.0, np.inf), ValueError, ("infinity",)),
        (3.0, ValueError, ("(low, high)", "3.0")),
        ((1.0, 2.0, 3.0), ValueError, ("(low, high)",)),
        ((np.zeros(3), np.ones(3)), bs.ShapeError, ("(3,)", "tensor")),
        (("a", "b"), bs.DTypeError, ("low",)),
    ],
)
def test_unusable_ranges(given: object, error: type[Exception], facts: tuple) -> None:
    with refuses(error, "quantize", *facts):
        bs.quantize(REAL, 4, range=given)


def test_negative_absmax() -> None:
    with refuses(ValueError, "quantize", "absmax", "-1.0"):
        bs.quantize(REAL, 4, scheme="symmetric", range=-1.0)


def test_a_range_too_wide_for_float32() -> None:
    with refuses(ValueError, "quantize", "range", "clip"):
        bs.quantize(np.array([[-3e38, 3e38]], np.float32), 4)
    with refuses(ValueError, "quantize", "range"):
        bs.quantize(np.array([[-1e300, 1e300]]), 4, scheme="symmetric")
    with refuses(ValueError, "quantize", "range"):
        bs.quantize(np.array([[1e300, 2e300]]), 4)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "s"])
def test_seeds(seed: object) -> None:
    for name, call in [
        ("stochastic_round", lambda: bs.stochastic_round(REAL, seed=seed)),
        ("quantize", lambda: bs.quantize(REAL, 4, rounding="stochastic", seed=seed)),
        ("Epilogue", lambda: bs.Epilogue(bits=4, out_scale=1.0, rounding="stochastic", seed=seed)),
    ]:
        with refuses((ValueError, TypeError), name, "seed", seed):
            call()
    with refuses(ValueError, "stream", 2**32):
        bs.stochastic_round(REAL, seed=0, stream=2**32)
    with refuses(ValueError, "quantize", "seed", "nearest"):
        bs.quantize(REAL, 4, seed=3)


def test_choose_bits_without_an_answer() -> None:
    with refuses(ValueError, "choose_bits", "2..3 bits", "threshold=0.01"):
        bs.choose_bits(REAL, threshold=0.01, bits=(2, 3))
    with refuses(ValueError, "choose_bits", "no candidate"):
        bs.choose_bits(REAL, bits=())
    for threshold in (-0.5, "a", True, float("nan")):
        with refuses(ValueError, "choose_bits", "threshold", repr(threshold)):
            bs.choose_bits(REAL, threshold=threshold)
    for bits in (4, None):
        with refuses(bs.DTypeError, "choose_bits", "bits must hold the candidates", f"got {bits}"):
            bs.choose_bits(REAL, bits=bits)


def test_quantization_error_of_another_shape() -> None:
    with refuses(bs.ShapeError, "quantization_error", "(6, 40)", "(40, 6)"):
        bs.quantization_error(REAL, bs.quantize(REAL.T, 4))


@pytest.mark.parametrize("function", [bs.dequantize, bs.unpack_bits], ids=lambda f: f.__name__)
def test_functions_of_bit_tensors_take_nothing_else(function) -> None:
    with refuses(bs.DTypeError, function.__name__, "BitTensor", "ndarray"):
        function(REAL)
    with refuses(bs.DTypeError, "dequantize", "int32", "unpack_bits"):
        bs.dequantize(bs.quantize(REAL, 4), np.int32)


# ---- products
A = bs.pack_bits(INTS)
B = bs.pack_bits(RNG.integers(0, 4, (40, 5)), 2, axis=-2)


def test_shapes_that_do_not_meet() -> None:
    with refuses(bs.ShapeError, "matmul", "40 columns", "6 rows"):
        bs.matmul(A, A)
    with refuses(bs.ShapeError, "matmul", "(2,)", "(3,)", "broadcast"):
        bs.matmul(bs.BitTensor((2, 6, 40)), bs.BitTensor((3, 40, 5)))
    plan = bs.plan_matmul(A, 5, bits=2)
    with refuses(bs.ShapeError, "plan_matmul", "(40, 4)", "(40, 5)"):
        plan(B[:, :4])
    with refuses(TypeError, "plan_matmul", "2 unsigned", "3"):
        plan(bs.BitTensor((40, 5), 3, axis=-2))
    with refuses(ValueError, "plan_matmul", "n", "-1"):
        bs.plan_matmul(A, -1)


def test_ordinary_operands_are_checked_in_the_name_of_matmul() -> None:
    with refuses(bs.ShapeError, "matmul", "(40,)"):
        bs.matmul(np.ones(40, int), B)
    with refuses(ValueError, "matmul", "4294967296"):
        bs.matmul(np.full((2, 40), 2**32), B)


def test_an_epilogue_is_compared_by_identity() -> None:
    one, other = (bs.Epilogue(bias=np.ones(3)) for _ in range(2))
    assert one == one
    assert one != other
    assert len({one, other}) == 2


def test_unknown_kernels() -> None:
    for call in (lambda: bs.matmul(A, B, kernel="tensor"), lambda: bs.plan_matmul(A, 5, kernel="tensor")):
        with refuses(bs.KernelError, "'tensor'", "'planes'", "'digits'"):
            call()


def test_options_that_are_another_kind_of_thing() -> None:
    ring, x, scores = bs.TCTiledCSR(np.eye(3)), np.ones((3, 2)), np.ones(3)
    with refuses(bs.DTypeError, "plan_matmul", "batch", "int", "(3,)"):
        bs.plan_matmul(A, 5, batch=3)
    with refuses(bs.DTypeError, "TCTiledCSR", "shape", "3"):
        bs.TCTiledCSR(np.eye(3), shape=3)
    with refuses(bs.DTypeError, "plan_bspmm", "add", "True or False"):
        bs.plan_bspmm(ring, 2, add=x)
    with refuses(bs.DTypeError, "attention_vjp", "state", "tuple", "return_state=True"):
        bs.attention_vjp(ring, x, scores, scores, x, state=(x, scores))


class OnAnotherDevice:
    """A DLPack producer that says its memory is on a device of the given kind: 10 is ROCm, 2 is CUDA."""

    shape = (6, 40)

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, 0)

    def __dlpack__(self, **options: object) -> object:
        raise AssertionError("nobody may read memory of another device")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: bs.quantize(x, 4),
        lambda x: bs.pack_bits(x),
        lambda x: bs.BitTensor(x),
        lambda x: bs.matmul(x, B),
        lambda x: bs.matmul(A, x),
        lambda x: bs.matmul(A, B, out=x),
        lambda x: bs.matmul(A, B, epilogue=bs.Epilogue(bias=x)),
        lambda x: bs.stochastic_round(x),
        lambda x: A + x,
        lambda x: bs.BitTensor.from_words(x, (6, 40), 1),
    ],
)
def test_arrays_of_another_device(call, monkeypatch) -> None:
    with refuses(bs.DeviceError, "(10, 0)", "CPU"):
        call(OnAnotherDevice(10))
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    with refuses(bs.DeviceError, "CuPy", "bitsparse[cuda13]"):
        call(OnAnotherDevice(2))


class Elsewhere(bs.BitTensor):
    """A stand-in for a BitTensor on a GPU, which it claims to be."""

    __slots__ = ()

    @property
    def device(self) -> str:
        return "cuda:0"


def test_mixed_devices() -> None:
    there = Elsewhere(np.asarray(B.toarray()), 2, axis=-2)
    before = np.full((6, 5), -7, np.int32)
    out = before.copy()
    with refuses(bs.DeviceError, "matmul", "cpu", "cuda:0", "to_device"):
        bs.matmul(A, there, out=out)
    assert np.array_equal(out, before)
    with refuses(bs.DeviceError, "matmul", "cpu", "cuda:0"):
        bs.matmul(there, bs.BitTensor((5, 3), axis=-2))


# ---- a refused call leaves out= untouched
def poisoned(shape: tuple = (6, 5), dtype: object = np.int32) -> np.ndarray:
    return np.full(shape, -12345, dtype)


BAD_OUT = {
    "shape": (lambda: poisoned((5, 6)), bs.ShapeError, ("(5, 6)", "(6, 5)")),
    "ndim": (lambda: poisoned((1, 6, 5)), bs.ShapeError, ("(1, 6, 5)",)),
    "int64": (lambda: poisoned(dtype=np.int64), bs.DTypeError, ("int64", "int32")),
    "float": (lambda: poisoned(dtype=np.float32), bs.DTypeError, ("float32", "int32")),
    "unsigned": (lambda: np.full((6, 5), 77, np.uint32), bs.DTypeError, ("uint32", "int32")),
    "strided": (lambda: poisoned((6, 10))[:, ::2], ValueError, ("C-contiguous",)),
    "fortran": (lambda: np.asfortranarray(poisoned()), ValueError, ("C-contiguous",)),
    "read-only": (lambda: np.frombuffer(poisoned().tobytes(), np.int32).reshape(6, 5), ValueError, ("read-only",)),
    "misaligned": (
        lambda: np.frombuffer(bytearray(121), np.uint8)[1:].view(np.int32).reshape(6, 5),
        ValueError,
        ("not aligned to its dtype",),
    ),
    "bits": (lambda: bs.BitTensor((6, 5)), bs.DTypeError, ("BitTensor",)),
    "byte order": (lambda: poisoned(dtype=">i4"), bs.DTypeError, (">i4",)),
    "list": (lambda: [[0] * 5] * 6, bs.DTypeError, ("list",)),
}


@pytest.mark.parametrize("name", BAD_OUT)
def test_out_that_does_not_fit(name: str) -> None:
    make, error, facts = BAD_OUT[name]
    out = make()
    before = out.words.copy() if isinstance(out, bs.BitTensor) else np.array(out)
    with refuses(error, "matmul", "out", *facts):
        bs.matmul(A, B, out=out)
    assert np.array_equal(out.words if isinstance(out, bs.BitTensor) else np.array(out), before)


def test_out_that_overlaps_an_operand() -> None:
    words = np.zeros((6, 1, 4), np.uint32)
    a = bs.BitTensor.from_words(words, (6, 128), 1)
    out = a.words.reshape(-1)[:6].view(np.int32).reshape(6, 1)
    with refuses(ValueError, "matmul", "out", "shares memory"):
        bs.matmul(a, bs.BitTensor((128, 1), axis=-2), out=out)
    assert not words.any()


REFUSED_PRODUCTS = {
    "shape": lambda out: bs.matmul(A, A, out=out),
    "kernel": lambda out: bs.matmul(A, B, out=out, kernel="none"),
    "epilogue": lambda out: bs.matmul(A, B, out=out, epilogue="relu"),
    "row_scale": lambda out: bs.matmul(A, B, out=out, epilogue=bs.Epilogue(row_scale=np.ones(5))),
    "bias": lambda out: bs.matmul(A, B, out=out, epilogue=bs.Epilogue(bias=np.ones(6))),
    "batch_norm": lambda out: bs.matmul(A, B, out=out, epilogue=bs.Epilogue(batch_norm=(np.ones(6), np.ones(6)))),
    "offset": lambda out: bs.matmul(bs.quantize(REAL, 3), B, out=out, epilogue=bs.Epilogue()),
    "scale": lambda out: bs.matmul(
        bs.quantize(REAL, 3, granularity="col", scheme="symmetric"), B, out=out, epilogue=bs.Epilogue()
    ),
    "out_scale": lambda out: bs.matmul(A, B, out=out, epilogue=bs.Epilogue(bits=2, out_scale=np.ones((5, 1)))),
    "int64": lambda out: bs.matmul(bs.BitTensor((6, 40), 32), bs.BitTensor((40, 5), 32, axis=-2), out=out),
    "float": lambda out: bs.matmul(REAL, B, out=out),
}


@pytest.mark.parametrize("name", REFUSED_PRODUCTS)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_refusals_leave_out_alone(name: str, dtype: type) -> None:
    out = poisoned(dtype=dtype)
    with pytest.raises((ValueError, TypeError, RuntimeError)) as info:
        REFUSED_PRODUCTS[name](out)
    assert "matmul" in str(info.value)
    assert np.array_equal(out, poisoned(dtype=dtype))


def test_out_bits_of_another_form() -> None:
    epilogue = bs.Epilogue(bits=4, out_scale=2.0)
    good = bs.matmul(A, B, epilogue=epilogue)
    for bad in (
        good.repack(axis=-2),
        good.repack(layout="rows"),
        good.with_affine(scale=3.0, offset=0.0),
        bs.BitTensor((6, 5), 3),
        bs.BitTensor((6, 6), 4),
        poisoned(),
    ):
        before = bad.words.copy() if isinstance(bad, bs.BitTensor) else bad.copy()
        with refuses((ValueError, TypeError), "matmul", "out"):
            bs.matmul(A, B, epilogue=epilogue, out=bad)
        assert np.array_equal(bad.words if isinstance(bad, bs.BitTensor) else bad, before)


# ---- epilogues
@pytest.mark.parametrize(
    ("options", "error", "facts"),
    [
        ({"activation": "gelu"}, ValueError, ("activation", "'gelu'", "'relu'")),
        ({"bits": 3}, ValueError, ("out_scale", "bits=3")),
        ({"bits": 25, "out_scale": 1.0}, ValueError, ("bits", "24", "25")),
        ({"bits": 1, "out_scale": 1.0, "scheme": "symmetric"}, ValueError, ("2..", "1")),
        ({"bits": 3, "out_scale": 0.0}, ValueError, ("out_scale", "0")),
        ({"bits": 3, "out_scale": -1.0}, ValueError, ("out_scale", "-1")),
        ({"bits": 3, "out_scale": np.nan}, ValueError, ("out_scale", "NaN")),
        ({"bits": 3, "out_scale": 1e-42}, ValueError, ("out_scale",)),
        ({"bits": 24, "out_scale": 1e35}, ValueError, ("out_scale",)),
        ({"bits": 3, "out_scale": 1.0, "binarize": True}, ValueError, ("bits=3", "binarize")),
        ({"binarize": True, "out_scale": 1.0}, ValueError, ("binarize", "out_scale")),
        ({"binarize": True, "encoding": "signed"}, ValueError, ("encoding", "'signed'", "'bipolar'")),
        ({"out_scale": 1.0}, ValueError, ("out_scale", "bits=")),
        ({"seed": 3}, ValueError, ("seed", "bits=")),
        ({"bits": 3, "out_scale": 1.0, "rounding": "floor", "seed": 1}, ValueError, ("seed", "stochastic")),
        ({"bits": 3, "out_scale": 1.0, "scheme": "symmetric", "out_offset": 1.0}, ValueError, ("out_offset", "affine")),
        ({"bits": 3, "out_scale": 1.0, "layout": "rows"}, ValueError, ("rows", "bits=3")),
        ({"bits": 3, "out_scale": 1.0, "axis": 2}, ValueError, ("axis", "2")),
        ({"row_scale": np.inf}, ValueError, ("row_scale", "infinity", "must be finite")),
        ({"bias": [np.nan]}, ValueError, ("bias", "NaN")),
        ({"bias": 1e39}, ValueError, ("bias", "infinity")),
        ({"col_scale": "x"}, bs.DTypeError, ("col_scale",)),
        ({"negative_slope": [1.0, 2.0]}, bs.ShapeError, ("negative_slope", "(2,)")),
        ({"batch_norm": (0.0, -1.0)}, ValueError, ("var", "positive")),
        ({"batch_norm": ([0.0, 1.0], [1.0, 1.0, 1.0])}, bs.ShapeError, ("(2,)", "(3,)")),
        ({"batch_norm": 3.0}, ValueError, ("batch_norm", "float")),
        ({"batch_norm": (np.nan, 1.0)}, ValueError, ("batch_norm", "NaN")),
    ],
    ids=str,
)
def test_unusable_epilogues(options: dict, error: type[Exception], facts: tuple) -> None:
    with refuses(error, "Epilogue", *facts):
        bs.Epilogue(**options)


def test_epilogue_as_a_function_checks_its_input() -> None:
    relu = bs.Epilogue(activation="relu")
    with refuses(bs.DTypeError, "Epilogue", "float64"):
        relu(np.zeros((2, 2)))
    with refuses(bs.ShapeError, "Epilogue", "(3,)"):
        relu(np.zeros(3, np.int32))
    with refuses(bs.DTypeError, "matmul", "epilogue", "str"):
        bs.matmul(A, B, epilogue="relu")


# ---- constructors
@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (((2, -3),), {}, ValueError),
        (((2,),), {}, bs.ShapeError),
        (((2, 2.5),), {}, (ValueError, TypeError)),
        (((2, 3),), {"encoding": "bipolar"}, ValueError),
        ((np.zeros((2, 3), int),), {"shape": (2, 3)}, bs.DTypeError),
        (((np.ones(2, int), ([0, 5], [0, 1])),), {"shape": (2, 3)}, bs.ShapeError),
        (((np.ones(2, int), ([0, -1], [0, 1])),), {"shape": (2, 3)}, ValueError),
        (((np.ones(2, int), [0, 9], [0, 1, 2]),), {"shape": (2, 3)}, ValueError),
        (((np.ones(2, int), [0, 1], [0, 2, 1]),), {"shape": (2, 3)}, ValueError),
        (((np.ones(2, int), [0, 1], [0, 1]),), {"shape": (2, 3)}, ValueError),
        (((np.ones(2), ([0, 1], [0, 1])),), {"shape": (2, 3)}, bs.DTypeError),
        (([[1, 2], [3]],), {}, bs.DTypeError),
        ((np.zeros((2, 3), int),), {"scale": np.nan}, ValueError),
        ((np.zeros((2, 3), int),), {"scale": "big"}, bs.DTypeError),
        ((np.zeros((2, 3), int),), {"offset": np.zeros((3, 2))}, bs.ShapeError),
        ((np.zeros((2, 3), int),), {"encoding": "gray"}, ValueError),
    ],
)
def test_unusable_constructor_arguments(arguments: tuple, options: dict, error: type[Exception]) -> None:
    with refuses(error, "BitTensor"):
        bs.BitTensor(*arguments, **options)


@pytest.mark.parametrize(
    ("words", "options", "error"),
    [
        (np.zeros((6, 2, 4), np.uint32), {}, bs.ShapeError),
        (np.zeros((6, 4), np.uint32), {}, bs.ShapeError),
        (np.zeros((6, 3, 3), np.uint32), {}, bs.ShapeError),
        (np.zeros((40, 3, 4), np.uint32), {}, bs.ShapeError),
        (np.zeros((6, 3, 4), np.uint64), {}, bs.DTypeError),
        (np.zeros((6, 3, 4), np.float32), {}, bs.DTypeError),
        (np.zeros((6, 3, 4), np.uint32), {"layout": "rows"}, ValueError),
        (np.zeros((6, 3, 4), np.uint32), {"encoding": "bipolar"}, ValueError),
    ],
)
def test_words_that_do_not_fit(words: np.ndarray, options: dict, error: type[Exception]) -> None:
    with refuses(error, "BitTensor.from_words"):
        bs.BitTensor.from_words(words, (6, 40), 3, **options)


# ---- files
def saved(x: bs.BitTensor | None = None) -> bytes:
    file = io.BytesIO()
    bs.save_npz(file, bs.quantize(REAL, 3, granularity="row") if x is None else x)
    return file.getvalue()


def rewritten(change) -> io.BytesIO:
    """A saved file after ``change(members)``, where members is a dict of name -> bytes."""
    with zipfile.ZipFile(io.BytesIO(saved())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    file.seek(0)
    return file


def npy(x: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(x), **options)
    return file.getvalue()


def header(**changes: object):
    def change(members: dict) -> None:
        old = json.loads(str(np.load(io.BytesIO(members["header.npy"]))))
        members["header.npy"] = npy(np.array(json.dumps(old | changes)))

    return change


def part(name: str, content: bytes | None):
    def change(members: dict) -> None:
        if content is None:
            del members[name]
        else:
            members[name] = content

    return change


class Bomb:
    """An object whose unpickling fails the test."""

    def __reduce__(self):
        return (pytest.fail, ("load_npz unpickled an object",))


def words_header(text: str, payload: bytes = b"\0" * 288) -> bytes:
    """A .npy member with the given text as its header."""
    body = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + payload


HOSTILE = {
    "other format": header(format="bitsparse-99"),
    "other type": header(type="Matrix"),
    "bits 0": header(bits=0),
    "bits 33": header(bits=33),
    "bits 4": header(bits=4),
    "bits text": header(bits="3"),
    "axis": header(axis=7),
    "axis float": header(axis=-1.0),
    "shape": header(shape=[6, 4000]),
    "shape negative": header(shape=[-6, 40]),
    "shape huge": header(shape=[2**62, 2**62]),
    "shape text": header(shape="6x40"),
    "shape one": header(shape=[240]),
    "shape null": header(shape=None),
    "layout": header(layout="rows"),
    "encoding": header(encoding="bipolar"),
    "encoding list": header(encoding=["unsigned"]),
    "no header": part("header.npy", None),
    "no words": part("words.npy", None),
    "header is not JSON": part("header.npy", npy(np.array("not json"))),
    "header is a list": part("header.npy", npy(np.array("[1, 2]"))),
    "header is a number": part("header.npy", npy(np.array(3))),
    "header is deep": part("header.npy", npy(np.array("[" * 15000))),
    "header is large": part("header.npy", npy(np.array(" " * 200_000))),
    "header lacks keys": part("header.npy", npy(np.array('{"format": "bitsparse-3", "type": "BitTensor"}'))),
    "words dtype": part("words.npy", npy(np.zeros((6, 3, 4), np.int64))),
    "words float": part("words.npy", npy(np.zeros((6, 3, 4), np.float32))),
    "words big-endian": part("words.npy", npy(np.zeros((6, 3, 4), ">u4"))),
    "words shape": part("words.npy", npy(np.zeros((6, 3, 8), np.uint32))),
    "words fortran": part("words.npy", npy(np.asfortranarray(np.zeros((6, 3, 4), np.uint32)))),
    "words pickled": part("words.npy", npy(np.array([Bomb()], object), allow_pickle=True)),
    "words raw pickle": part("words.npy", pickle.dumps([1, 2, 3])),
    "scale pickled": part("scale.npy", npy(np.array([Bomb()], object), allow_pickle=True)),
    "pad bits": part("words.npy", npy(np.full((6, 3, 4), 0xFFFFFFFF, np.uint32))),
    "words short": part("words.npy", npy(np.zeros((6, 3, 4), np.uint32))[:-8]),
    "words long": part("words.npy", npy(np.zeros((6, 3, 4), np.uint32)) + b"12345678"),
    "words empty": part("words.npy", b""),
    "words text": part("words.npy", b"hello"),
    "words announce too much": part(
        "words.npy", words_header("{'descr': '<u4', 'fortran_order': False, 'shape': (6, 3, 4000000000000), }")
    ),
    "words header is code": part("words.npy", words_header("__import__('os').system('exit 1')")),
    "words header is not a dict": part("words.npy", words_header("[1, 2, 3]")),
    "words negative shape": part(
        "words.npy", words_header("{'descr': '<u4', 'fortran_order': False, 'shape': (-6, -3, 4), }")
    ),
    "words structured": part(
        "words.npy", words_header("{'descr': [('a', '<u4')], 'fortran_order': False, 'shape': (6, 3, 4), }")
    ),
    "words version 9": part("words.npy", b"\x93NUMPY\x09\x00" + saved()[8:]),
    "scale shape": part("scale.npy", npy(np.ones((40, 6), np.float32))),
    "scale dtype": part("scale.npy", npy(np.ones((6, 1), np.float64))),
    "scale NaN": part("scale.npy", npy(np.full((6, 1), np.nan, np.float32))),
    "offset infinite": part("offset.npy", npy(np.full((6, 1), np.inf, np.float32))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path) -> None:
    file = rewritten(HOSTILE[name])
    path = tmp_path / "x.npz"
    path.write_bytes(file.getvalue())
    for source in (file, path):
        with pytest.raises((ValueError, TypeError)) as info:
            bs.load_npz(source)
        assert "load_npz" in str(info.value) or "BitTensor" in str(info.value)


def test_truncated_files_at_every_length() -> None:
    whole = saved()
    assert bs.load_npz(io.BytesIO(whole)).bits == 3
    for length in range(len(whole)):
        with pytest.raises(ValueError, match="load_npz"):
            bs.load_npz(io.BytesIO(whole[:length]))


def test_flipped_bytes_are_noticed_or_harmless() -> None:
    """A file with any one byte inverted must be refused, or give the saved array if the zip format does not use that byte."""
    whole = saved()
    want = bs.load_npz(io.BytesIO(whole))
    refused = 0
    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 0xFF
        try:
            got = bs.load_npz(io.BytesIO(bytes(broken)))
        except (ValueError, TypeError):
            refused += 1
            continue
        assert np.array_equal(got.words, want.words), position
        assert (got.shape, got.bits, got.encoding) == (want.shape, want.bits, want.encoding)
    assert refused > len(whole) // 3


def test_a_zip_bomb_is_not_inflated() -> None:
    """A small file whose words inflate to 256 MiB must be refused because of its header, before a byte is inflated."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        with zipfile.ZipFile(io.BytesIO(saved())) as source:
            archive.writestr("header.npy", source.read("header.npy"))
        with archive.open("words.npy", "w", force_zip64=True) as stream:
            stream.write(words_header("{'descr': '<u4', 'fortran_order': False, 'shape': (6, 3, 4), }", b""))
            for _ in range(16):
                stream.write(bytes(1 << 24))
    assert len(file.getvalue()) < 1 << 21
    import tracemalloc

    file.seek(0)
    tracemalloc.start()
    try:
        with refuses(ValueError, "load_npz"):
            bs.load_npz(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 24


@pytest.mark.parametrize(
    "content",
    [b"", b"PK", b"\x93NUMPY\x01\x00", b"PK\x05\x06" + bytes(18), pickle.dumps({"a": 1}), b"x" * 1000],
    ids=repr,
)
def test_files_of_another_kind(content: bytes, tmp_path) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with refuses(ValueError, "load_npz"):
        bs.load_npz(tmp_path / "x.npz")


def test_missing_and_unwritable_files(tmp_path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        bs.load_npz(tmp_path / "nowhere.npz")
    with refuses(bs.DTypeError, "save_npz", "BitTensor", "ndarray"):
        bs.save_npz(tmp_path / "x.npz", REAL)
    assert not (tmp_path / "x.npz").exists()


def test_text_files_are_told_from_binary_ones(tmp_path) -> None:
    with refuses(TypeError, "save_npz", "binary file", "StringIO"):
        bs.save_npz(io.StringIO(), bs.BitTensor((2, 3), 1))
    with (tmp_path / "x.txt").open("w+") as file, refuses(TypeError, "load_npz", "binary file", "TextIOWrapper"):
        bs.load_npz(file)


def test_a_tampered_pickle_goes_through_the_checks() -> None:
    """Unpickling must validate: words whose padding bits were set after pickling are refused."""
    q = bs.BitTensor(np.zeros((3, 40), int), 1)
    data = pickle.dumps(q)
    at = data.rindex(bytes(48))
    bad = data[:at] + bytes(12) + b"\xff" * 4 + data[at + 16 :]
    with refuses(ValueError, "padding"):
        pickle.loads(bad)
