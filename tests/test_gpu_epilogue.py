"""The epilogue on the GPU, after products and on sums in memory, agrees with the host's bit for bit; results go into poisoned arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_products import multiply

import bitsparse as bs
from bitsparse.backends.params import EpilogueParams, OperandParams
from bitsparse.backends.reference.bits import pack as reference_bits
from bitsparse.backends.reference.matmul import matmul as reference_matmul

pytestmark = pytest.mark.gpu

Params = dict[str, Any]
ACTIVATIONS = (None, "relu", "leaky_relu", "tanh")
ROUNDINGS = ("floor", "nearest", "stochastic")
ROWS_BITS = (1, 2, 4, 8, 16)
#: Lengths around blocks of 16 and 64, words of 32 and groups of 128.
LENGTHS = (1, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 191, 192, 193, 250)


def same(got: np.ndarray, want: np.ndarray, about: str = "") -> None:
    """Assert equality bit for bit, except that any NaN equals any other."""
    assert got.shape == want.shape and got.dtype == want.dtype, about
    if want.dtype == np.float32:
        both = np.isnan(got) & np.isnan(want)
        got, want = (np.where(both, np.float32(0), x).view(np.uint32) for x in (got, want))
    np.testing.assert_array_equal(got, want, err_msg=about)


def poisoned(shape: tuple[int, ...], dtype: Any) -> Any:
    import cupy

    words = cupy.full((int(np.prod(shape)),), 0xDEADBEEF, np.uint32)
    return words.view(dtype).reshape(shape)


def host(acc: np.ndarray, params: EpilogueParams) -> np.ndarray:
    with np.errstate(all="ignore"):
        return reference_matmul.epilogue(acc, params)


def on_sums(acc: np.ndarray, params: EpilogueParams, about: str = "") -> None:
    """Compare the kernel for sums in memory with the host's."""
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue

    want = host(acc, params)
    chain = DeviceEpilogue(params, acc.shape, np.inf if acc.dtype.kind == "f" else float(np.abs(acc).max(initial=0)))
    out = poisoned(chain.out_shape, chain.out_dtype)
    chain.on(acc.dtype).run(cupy.asarray(acc), out)
    same(cupy.asnumpy(out), want, about or str(params))
    assert not chain.nan_seen()


def behind_product(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    k: int,
    params: EpilogueParams,
    *,
    a_bits: int = 1,
    b_bits: int = 1,
    kernel: str = "planes",
    **more: Any,
) -> None:
    """Compare an epilogue fused into a product, called through the one-shot function, with the host's."""
    import cupy

    *batch, m, n = shape
    kind: Params = {"k": k, "a_bits": a_bits, "b_bits": b_bits, "acc_dtype": np.int32}
    kind |= {"a_encoding": encoding(rng, a_bits), "b_encoding": encoding(rng, b_bits)} | more
    a, b = words_of(rng, (*batch, m, k), a_bits), words_of(rng, (n, k), b_bits)
    acc = reference_matmul.matmul(a, b, **kind)
    want = host(acc, params)
    out = poisoned(want.shape, want.dtype)
    if kind.get("bitmap") is not None:
        kind["bitmap"] = cupy.asarray(kind["bitmap"])
    got = multiply(cupy.asarray(a), cupy.asarray(b), epilogue=params, out=out, kernel=kernel, **kind)
    assert got is out
    same(cupy.asnumpy(out), want, f"{shape} {k} {kind} {params}")


def words_of(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> np.ndarray:
    return reference_bits.codes_to_words(rng.integers(0, 1 << bits, shape, np.uint64), bits, "planes")


def encoding(rng: np.random.Generator, bits: int) -> str:
    return str(rng.choice(("unsigned", "signed", "bipolar") if bits == 1 else ("unsigned", "signed")))


def floats(rng: np.random.Generator, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.asarray(rng.uniform(low, high, shape), np.float32)


def sums_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.int32) -> np.ndarray:
    acc = rng.integers(-300, 300, shape).astype(dtype)
    acc[rng.random(shape) < 0.1] = 0
    if dtype == np.float32:
        acc *= rng.choice(np.float32([1.0, 0.37, -0.0, 1e-3]), shape)
    return acc


def vector(rng: np.random.Generator, batch: tuple[int, ...], length: int) -> np.ndarray:
    """A row or column vector in one of the allowed shapes."""
    whole = (*batch, length)
    partial = (*(1 if rng.random() < 0.5 else size for size in batch), length)
    return floats(rng, [(), (length,), whole, partial][int(rng.integers(4))])


def grid(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> Params:
    """Offset and divisor in one of the allowed shapes, and the other numbers of a scheme."""
    *batch, m, n = shape
    form = int(rng.integers(5))
    where = [(), (m, 1), (1, n), (*batch, 1, n), (*batch, m, 1)][form]
    where = where if form in (0, 1, 2) else (1,) * (len(shape) - len(where)) + where
    scheme = str(rng.choice(["affine", "affine-pow2", "symmetric"] if bits > 1 else ["affine", "affine-pow2"]))
    if scheme == "symmetric":
        top = (1 << (bits - 1)) - 1
        given: Params = {"offset": np.zeros((), np.float32), "multiplier": 1.0, "qmin": -top, "qmax": top}
        rounding = str(rng.choice(ROUNDINGS[1:]))
    else:
        top = (1 << bits) - 1
        offset = np.zeros((), np.float32) if rng.random() < 0.5 else floats(rng, where)
        given = {"offset": offset, "multiplier": float(top) if scheme == "affine" else 1.0, "qmin": 0, "qmax": top}
        rounding = "floor" if scheme == "affine-pow2" else str(rng.choice(ROUNDINGS))
    divisor = floats(rng, where, 0.5, 2.0) * np.float32(600.0 / (1 if given["multiplier"] > 1.0 else top + 1))
    given |= {"divisor": np.asarray(divisor, np.float32), "rounding": rounding}
    return given | {"seed": int(rng.integers(1 << 63)), "stream": int(rng.integers(1 << 32))}


def random_params(rng: np.random.Generator, shape: tuple[int, ...]) -> EpilogueParams:
    """A random chain: each step may be present or absent, and the result of any kind."""
    batch, m, n = tuple(shape[:-2]), shape[-2], shape[-1]
    p: Params = {"activation": ACTIVATIONS[int(rng.integers(4))], "negative_slope": float(np.float32(0.07))}
    for name, length in (("row_scale", m), ("col_scale", n), ("bias", n)):
        if rng.random() < 0.6:
            p[name] = vector(rng, batch, length)
    for name in ("row_term", "col_term"):
        if rng.random() < 0.3:
            p[name] = vector(rng, batch, m), vector(rng, batch, n)
    if rng.random() < 0.4:
        p["bn_scale"] = floats(rng, (n,))
        p["bn_shift"] = floats(rng, (n,))
    if rng.random() < 0.25:
        return EpilogueParams(**p)
    p |= {"out": "bits", "axis": int(rng.choice([-1, -2]))}
    if rng.random() < 0.15:
        return EpilogueParams(**p, bits=1, binarize=True, layout=str(rng.choice(["planes", "rows"])))
    layout = str(rng.choice(["planes", "planes", "rows"]))
    bits = int(rng.choice(ROWS_BITS)) if layout == "rows" else int(rng.integers(1, 25))
    return EpilogueParams(**p, **grid(rng, shape, bits), bits=bits, layout=layout)


def requantised(shape: tuple[int, ...], bits: int, axis: int, layout: str = "planes") -> EpilogueParams:
    """The epilogue of a typical layer: scales, bias, ReLU, unsigned codes."""
    rng = np.random.default_rng(bits)
    m, n = shape[-2:]
    levels = (1 << bits) - 1
    return EpilogueParams(
        row_scale=floats(rng, (m,), 0.5, 1.5), col_scale=floats(rng, (n,), 0.5, 1.5), bias=floats(rng, (n,), -20, 20),
        activation="relu", out="bits", bits=bits, axis=axis, layout=layout, offset=np.zeros((), np.float32),
        divisor=np.asarray(311.7, np.float32), multiplier=float(levels), qmin=0, qmax=levels,
        rounding="nearest" if bits % 2 else "floor",
    )  # fmt: skip


# ---- every step, every result
STEPS: dict[str, Params] = {
    "nothing": {},
    "row_scale": {"row_scale": np.linspace(-1, 1, 37, dtype=np.float32)},
    "row_scale-number": {"row_scale": np.float32(0.3)},
    "col_scale": {"col_scale": np.linspace(-1, 1, 70, dtype=np.float32)},
    "scales": {"row_scale": np.linspace(-1, 1, 37, dtype=np.float32), "col_scale": np.float32(0.1)},
    "row_term": {"row_term": (np.linspace(-9, 9, 37, dtype=np.float32), np.float32(1.1))},
    "col_term": {"col_term": (np.float32(-1.3), np.linspace(0, 3, 70, dtype=np.float32))},
    "bias": {"bias": np.linspace(-99, 99, 70, dtype=np.float32)},
    "batch_norm": {
        "bn_scale": np.linspace(1, 2, 70, dtype=np.float32),
        "bn_shift": np.linspace(1, -2, 70, dtype=np.float32),
    },
    "relu": {"activation": "relu"},
    "leaky_relu": {"activation": "leaky_relu", "negative_slope": float(np.float32(0.2))},
    "tanh": {"activation": "tanh", "row_scale": np.float32(0.01)},
}
CODES: dict[str, Params] = {
    "float": {},
    "floor": {"out": "bits", "bits": 4, "multiplier": 15.0, "qmax": 15, "rounding": "floor"},
    "nearest": {"out": "bits", "bits": 3, "multiplier": 7.0, "qmax": 7, "rounding": "nearest"},
    "offset": {"out": "bits", "bits": 5, "multiplier": 31.0, "qmax": 31, "offset": np.float32(-250)},
    "signed": {"out": "bits", "bits": 6, "qmin": -31, "qmax": 31, "rounding": "nearest", "divisor": np.float32(9.7)},
    "stochastic": {"out": "bits", "bits": 4, "multiplier": 15.0, "qmax": 15, "rounding": "stochastic", "seed": 1 << 40},
    "binarize": {"out": "bits", "binarize": True},
    "rows": {"out": "bits", "bits": 4, "multiplier": 15.0, "qmax": 15, "layout": "rows"},
}
GRID: Params = {"offset": np.float32(0), "divisor": np.float32(290.3)}


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("step", STEPS)
def test_each_step_alone(step: str, codes: str, axis: int) -> None:
    params = EpilogueParams(**GRID | STEPS[step] | CODES[codes] | {"axis": axis})
    rng = np.random.default_rng(1)
    on_sums(sums_of(rng, (37, 70)), params)
    behind_product(rng, (37, 70), 300, params)


@pytest.mark.parametrize("seed", range(60))
def test_any_chain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.choice(LENGTHS)), int(rng.choice(LENGTHS)))
    batch: tuple[int, ...] = ((), (3,), (2, 2), (1,))[int(rng.integers(4))]
    params = random_params(rng, (*batch, *shape))
    on_sums(sums_of(rng, (*batch, *shape), (np.int32, np.int64, np.float32)[seed % 3]), params)
    widths = {"a_bits": int(rng.integers(1, 4)), "b_bits": int(rng.integers(1, 5))}
    kernel = ("planes", "digits")[seed % 2]
    behind_product(rng, (*batch, *shape), int(rng.integers(1, 400)), params, kernel=kernel, **widths)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("bits", range(1, 25))
def test_every_width_of_codes(bits: int, axis: int) -> None:
    rng = np.random.default_rng(bits)
    for shape in ((33, 65), (130, 129)):
        acc = sums_of(rng, shape)
        on_sums(acc, requantised(shape, bits, axis))
        scale = np.float32(300.0 / ((1 << (bits - 1)) - 1 or 1))
        top = max((1 << (bits - 1)) - 1, 1)
        signed = EpilogueParams(
            out="bits", bits=bits, axis=axis, offset=np.float32(0), divisor=scale, qmin=-top if bits > 1 else 0,
            qmax=top, rounding="stochastic" if bits % 3 == 0 else "nearest", seed=bits, stream=7,
        )  # fmt: skip
        on_sums(acc, signed)
        if bits in ROWS_BITS:
            on_sums(acc, requantised(shape, bits, axis, "rows"))
            on_sums(acc, signed._replace(layout="rows"))
    behind_product(rng, (130, 129), 200, requantised((130, 129), bits, axis))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("length", LENGTHS)
def test_pad_bits_are_cleared(length: int, axis: int) -> None:
    rng = np.random.default_rng(length)
    for other in (1, 17, 70):
        shape = (other, length) if axis == -1 else (length, other)
        acc = sums_of(rng, shape)
        for bits, layout in ((1, "planes"), (5, "planes"), *((b, "rows") for b in ROWS_BITS)):
            on_sums(acc, requantised(shape, bits, axis, layout))
        behind_product(rng, shape, 140, requantised(shape, 4, axis))
        behind_product(rng, shape, 140, requantised(shape, 2, axis, "rows"))
        on_sums(acc, EpilogueParams(bias=np.float32(0.5)))


def test_long_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The separate kernel must be right if each warp takes several blocks of columns, as it does with many sums."""
    from bitsparse.backends.cuda.finish import epilogue as cuda_epilogue

    monkeypatch.setattr(cuda_epilogue, "_RESIDENT", 0)
    rng = np.random.default_rng(13)
    for shape in ((2, 90, 570), (3, 280, 130), (1, 17, 256), (2, 5, 33)):
        acc = sums_of(rng, shape)
        m, n = shape[1:]
        for params in (requantised((m, n), 4, -1), requantised((m, n), 3, -2), EpilogueParams(bias=floats(rng, (n,)))):
            on_sums(acc, params)


# ---- numbers
def test_division_by_a_known_divisor() -> None:
    """Division by a known divisor must round correctly for quotients next to the borders between codes."""
    rng = np.random.default_rng(8)
    for bits in (1, 4, 8, 16, 20, 21):
        for divisor in (*floats(rng, (6,), 0.01, 900.0), 2.0**-61, 2.0**-59, 2.0**60, 2.0**61, 3e38):
            levels = (1 << bits) - 1
            for rounding in ("floor", "nearest"):
                half = 0.5 if rounding == "nearest" else 0.0
                border = (rng.integers(0, levels + 1, (8, 192)) + half) / levels * float(divisor)
                acc = np.minimum(border, 3e38).astype(np.float32)
                for nudge in (-1, 0, 1):
                    x = (acc.view(np.int32) + nudge * (acc > 0)).view(np.float32)
                    params = EpilogueParams(
                        out="bits", bits=bits, offset=np.float32(0), divisor=np.float32(divisor),
                        multiplier=float(levels), qmin=0, qmax=levels, rounding=rounding,
                    )  # fmt: skip
                    on_sums(x, params, f"{bits} {divisor} {rounding} {nudge}")


def test_infinities_and_small_numbers() -> None:
    """Values that the fast computation of codes does not cover must be detected and computed in the slow way."""
    special = np.float32([np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 1.0, -1.0, 1e13, 5e-20])
    rng = np.random.default_rng(3)
    acc = rng.choice(special, (40, 130))
    for codes in CODES:
        for extra in ({}, {"divisor": np.float32(1e-30)}, {"divisor": np.float32(1e30)}, {"offset": np.float32(1e-40)}):
            for activation in ACTIVATIONS:
                params = EpilogueParams(**GRID | CODES[codes] | extra, activation=activation)
                on_sums(acc, params, f"{codes} {extra} {activation}")
    on_sums(acc, EpilogueParams(row_scale=np.float32(0)))  # NaN is a valid float result
    huge = EpilogueParams(col_scale=np.float32(3e38), **GRID | CODES["floor"] | {"divisor": np.float32(2e38)}, axis=-2)
    on_sums(sums_of(rng, (40, 130)), huge)
    for axis in (-1, -2):
        behind_product(rng, (40, 130), 90, huge._replace(axis=axis))
    scale = rng.choice(np.float32([1.0, -1.0, 1e20, -1e20, 1e-38, np.inf]), 130)
    bias = np.where(np.isinf(scale), np.float32(3), rng.choice(np.float32([0.0, 1e30, -1e30, 50.0]), 130))
    for rounding in ("floor", "nearest"):
        codes = CODES["floor"] | {"rounding": rounding}
        mixed = EpilogueParams(col_scale=scale, row_scale=np.float32(1), bias=bias, **GRID | codes)
        behind_product(rng, (40, 130), 900, mixed, a_encoding="unsigned", b_encoding="unsigned")  # no sum is 0


def test_nan_is_reported() -> None:
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(4)
    kind: Params = {"k": 90, "a_bits": 1, "b_bits": 1, "a_encoding": "unsigned", "b_encoding": "unsigned"}
    a, b = (cupy.asarray(words_of(rng, (outer, 90), 1)) for outer in (40, 130))
    for codes in ("floor", "signed", "binarize", "rows", "stochastic"):
        for axis in (-1, -2):
            bias = np.zeros(130, np.float32)
            bias[129] = np.nan
            params = EpilogueParams(**GRID | CODES[codes], bias=bias, axis=axis)
            with pytest.raises(ValueError, match="produced NaN"):
                multiply(a, b, epilogue=params, acc_dtype=np.int32, **kind)
            with pytest.raises(ValueError, match="produced NaN"):
                cuda_matmul.epilogue(cupy.zeros((40, 130), np.int32), params)
            chain = DeviceEpilogue(params, (40, 130))
            product = cuda_matmul.Product(a, n=130, epilogue=chain, **kind)
            assert not product.nan_seen()
            got = product(b)
            assert product.nan_seen() and not product.nan_seen()
            finite = params._replace(bias=np.nan_to_num(bias, nan=-1e30))
            want = multiply(a, b, epilogue=finite, acc_dtype=np.int32, **kind)
            if codes != "stochastic":  # NaN gets the code of the lowest number
                same(cupy.asnumpy(got), cupy.asnumpy(want))
    # Kernels may compute NaN beyond the edge of the result, which must not be reported.
    scale = np.ones(37, np.float32)
    scale[-1] = np.inf
    on_sums(np.ones((37, 70), np.int32), EpilogueParams(**GRID | CODES["floor"], row_scale=scale))
    on_sums(np.ones((37, 70), np.int32), EpilogueParams(**GRID | CODES["floor"], row_scale=scale, axis=-2))


# ---- operands, tilings, batches
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("result", ["float", "floor", "binarize"])
def test_scales_and_terms_of_operands(result: str, fused: bool) -> None:
    """Device arrays given for one call must work: scales multiply the chain's own scales first, terms and bias replace its own."""
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(5)
    batch, m, n, k = (3,), 70, 130, 200
    a, b = words_of(rng, (m, k), 2), words_of(rng, (*batch, n, k), 2)
    kind: Params = {"k": k, "a_bits": 2, "b_bits": 2, "a_encoding": "signed", "b_encoding": "unsigned"}
    kind["acc_dtype"] = np.int32 if fused else np.int64
    acc = reference_matmul.matmul(a, b, **kind)
    own = EpilogueParams(
        **GRID | CODES[result], row_scale=floats(rng, (m,)), col_scale=floats(rng, (*batch, n)), activation="relu"
    )
    for params in (own, own._replace(row_scale=None, col_scale=None), own._replace(bias=floats(rng, (n,)))):
        chain = DeviceEpilogue(params, (*batch, m, n))
        product = cuda_matmul.Product(cupy.asarray(a), n=n, b_batch=batch, epilogue=chain, **kind)
        assert product.fused is fused
        for a_shape, b_shape in ((None, None), ((), ()), ((m,), (n,)), ((1, m), (*batch, n)), ((*batch, m), None)):
            for terms in (False, True):
                row, col = (None if shape is None else floats(rng, shape) for shape in (a_shape, b_shape))
                pairs = [(floats(rng, (m,)), floats(rng, (*batch, n))) if terms else None for _ in range(2)]
                bias = floats(rng, (n,)) if rng.random() < 0.5 else None
                want = host(
                    acc,
                    params._replace(
                        row_scale=times(params.row_scale, row), col_scale=times(params.col_scale, col),
                        row_term=pairs[0], col_term=pairs[1], bias=params.bias if bias is None else bias,
                    ),
                )  # fmt: skip
                out = poisoned(want.shape, want.dtype)
                device = [None if x is None else cupy.asarray(x) for x in (row, col, bias)]
                device_pairs = [None if x is None else (cupy.asarray(x[0]), cupy.asarray(x[1])) for x in pairs]
                product(cupy.asarray(b), out, OperandParams(*device[:2], *device_pairs, device[2]))
                same(cupy.asnumpy(out), want, f"{a_shape} {b_shape} {terms}")


@pytest.mark.parametrize("where", [(1, 1), (1, 1, 1), (3, 1, 1)], ids=str)
def test_scales_of_one_element_are_those_of_all_rows_and_columns(where: tuple[int, ...]) -> None:
    """A scale of one element must apply to all rows and columns, even if there are as many matrices as rows and columns."""
    rng = np.random.default_rng(len(where))
    batch = (3,) * (len(where) - 2)
    for m, n in ((5, 70), (3, 3)):
        grids = [{name: floats(rng, where, 0.5, 1.5) for name in ("scale", "offset")} for _ in "ab"]
        codes = [rng.integers(0, 4, (*batch, *shape)) for shape in ((m, 40), (40, n))]
        a, b = (
            bs.BitTensor(*of, axis=axis, **grid) for *of, axis, grid in zip(codes, (2, 2), (-1, -2), grids, strict=True)
        )
        epilogue = bs.Epilogue(offset_correction=True)
        got = bs.matmul(a.to_device("cuda"), b.to_device("cuda"), epilogue=epilogue)
        same(got.get(), bs.matmul(a, b, epilogue=epilogue))


def times(own: np.ndarray | None, theirs: np.ndarray | None) -> np.ndarray | None:
    if own is None or theirs is None:
        return theirs if own is None else own
    return np.asarray(own * theirs, np.float32)


@pytest.mark.parametrize("b_bits", [1, 2, 4])
@pytest.mark.parametrize("step", [1, 8])
@pytest.mark.hopper
def test_every_tiling(b_bits: int, step: int) -> None:
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    rng = np.random.default_rng(b_bits)
    widths = (1, b_bits) if step == 1 else (3, 8 * b_bits - 6)
    for m, n, k in ((300, 70, 2200), (135, 264, 1100 // step)):
        a, b = words_of(rng, (m, k), widths[0]), words_of(rng, (n, k), widths[1])
        kind: Params = {"k": k, "a_bits": widths[0], "b_bits": widths[1], "a_encoding": "signed"}
        kind |= {"b_encoding": "unsigned"}
        if widths[0] == 1:
            kind["a_encoding"] = "bipolar"
        acc = reference_matmul.matmul(a, b, acc_dtype=np.int64, **kind).astype(np.int32)
        chains = [
            EpilogueParams(row_scale=floats(rng, (m,)), bias=floats(rng, (n,)), activation="leaky_relu"),
            requantised((m, n), 4, -1),
            requantised((m, n), 4, -2)._replace(rounding="nearest"),
            random_params(rng, (m, n)),
        ]
        wants = [host(acc, params) for params in chains]
        device_a, device_b = cupy.asarray(a), cupy.asarray(b)
        planes = -(-widths[1] // step)
        for tiling in gemm.tilings(n, planes, masked=False, wide=False):
            for params, want in zip(chains, wants, strict=True):
                chain = DeviceEpilogue(params, (m, n))
                product = cuda_matmul.Product(
                    device_a, n=n, tiling=tiling, kernel="planes" if step == 1 else "digits", epilogue=chain, **kind
                )
                out = poisoned(want.shape, want.dtype)
                product(device_b, out)
                same(cupy.asnumpy(out), want, f"{tiling} {params}")


#: Tiling (nb, qb, mc), planes of the right operand, and blocks of columns that wait at once (0: all, for separate warps).
WAITING = (
    ((1, 1, 1), 1, 4), ((1, 2, 2), 2, 4), ((1, 4, 1), 4, 4), ((2, 1, 1), 1, 4), ((2, 1, 2), 2, 1), ((2, 2, 1), 2, 2),
    ((3, 1, 1), 1, 4), ((3, 1, 1), 1, 2), ((4, 1, 2), 1, 4), ((4, 1, 1), 1, 2), ((4, 1, 1), 1, 1),
    ((1, 1, 1), 1, 0), ((1, 2, 2), 2, 0), ((2, 1, 1), 1, 0), ((2, 2, 1), 2, 0), ((3, 1, 1), 1, 0), ((4, 1, 1), 1, 0), ((4, 1, 2), 1, 0),
)  # fmt: skip


@pytest.mark.parametrize("cut", WAITING, ids=str)
@pytest.mark.hopper
def test_sums_that_wait_for_the_next_tile(monkeypatch: pytest.MonkeyPatch, cut: tuple[Any, ...]) -> None:
    """The chain must be right if a tile's sums go through it, at once or in parts, while the block multiplies the next tile."""
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    (nb, qb, mc), b_bits, held = cut
    monkeypatch.setattr(gemm, "HELD_BLOCKS", max(held, 1))
    monkeypatch.setattr(gemm, "HANDED_BLOCKS", 5 if held else 1)
    monkeypatch.setattr(gemm, "_room_for", lambda _: 2)
    rng = np.random.default_rng([nb, qb, b_bits, held])
    for m, n, k, batch, negative in ((515, 64 * nb + 37, 2048 * nb, (), False), (250, 129 * nb, 1990 * nb, (2,), True)):
        a, b = words_of(rng, (*batch, m, k), 1), words_of(rng, (n, k), b_bits)
        kind: Params = {"k": k, "a_bits": 1, "b_bits": b_bits, "a_encoding": "bipolar" if negative else "unsigned"}
        kind["b_encoding"] = "signed" if negative else "unsigned"
        acc = reference_matmul.matmul(a, b, acc_dtype=np.int32, **kind)
        plain = requantised((m, n), 4, -1)._replace(divisor=np.float32(np.abs(acc).max()))
        per_batch = plain._replace(
            row_scale=floats(rng, (*batch, m)), bits=3, qmax=7, multiplier=7.0, rounding="nearest"
        )
        bare = plain._replace(row_scale=None, col_scale=None, bias=None, bits=1, qmax=1, multiplier=1.0)
        device_a, device_b = cupy.asarray(a), cupy.asarray(b)
        largest = cuda_matmul.largest_sum(k, 1, b_bits)
        for params in (plain, per_batch, bare, plain._replace(bias=floats(rng, (*batch, n), -99, 99))):
            chain = DeviceEpilogue(params, acc.shape, largest)
            tiling = gemm.Tiling(1, nb, qb, mc)
            product = cuda_matmul.Product(device_a, n=n, b_batch=(), tiling=tiling, epilogue=chain, **kind)
            assert product._product._way() == ((3 if held else 4) if largest < 2**15 else 2)
            want = host(acc, params)
            for scale in (None, floats(rng, (n,), 0.5, 1.5), None):  # with an operand's scale, no sums wait
                out = poisoned(want.shape, want.dtype)
                product(device_b, out, OperandParams(col_scale=None if scale is None else cupy.asarray(scale)))
                expected = (
                    want if scale is None else host(acc, params._replace(col_scale=times(params.col_scale, scale)))
                )
                same(cupy.asnumpy(out), expected, f"{cut} {params}")


@pytest.mark.parametrize("batches", [((3,), (3,)), ((2, 3), (3,)), ((), (4,)), ((2, 1), (1, 3)), ((0,), (0,))], ids=str)
def test_batches(batches: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    import cupy

    rng = np.random.default_rng(1)
    kind: Params = {"k": 300, "a_bits": 1, "b_bits": 2, "a_encoding": "bipolar", "b_encoding": "signed"}
    a, b = words_of(rng, (*batches[0], 37, 300), 1), words_of(rng, (*batches[1], 70, 300), 2)
    acc = reference_matmul.matmul(a, b, acc_dtype=np.int32, **kind)
    for _ in range(6):
        params = random_params(rng, acc.shape)
        want = host(acc, params)
        out = poisoned(want.shape, want.dtype)
        multiply(cupy.asarray(a), cupy.asarray(b), acc_dtype=np.int32, epilogue=params, out=out, **kind)
        same(cupy.asnumpy(out), want, str(params))


def test_many_tiles_a_block() -> None:
    """Persistent blocks that take several wide tiles each, with ragged edges on both sides, must be right."""
    rng = np.random.default_rng(6)
    for shape in ((4100, 2100), (2050, 515)):
        for params in (requantised(shape, 4, -1), requantised(shape, 4, -2), EpilogueParams(bias=np.float32(1))):
            behind_product(rng, shape, 40, params)


def test_wide_sums_and_no_sums() -> None:
    """Sums of 64 bits and empty sums must be right; they go through the separate kernel."""
    rng = np.random.default_rng(7)
    for axis in (-1, -2):
        params = requantised((45, 70), 7, axis)._replace(divisor=np.float32(1e12))
        behind_product(rng, (45, 70), 130, params, a_bits=16, b_bits=20, acc_dtype=np.int64, kernel="digits")
        behind_product(rng, (45, 70), 130, params, a_bits=16, b_bits=20, acc_dtype=np.int64)
    for m, n, k in ((5, 7, 0), (0, 7, 5), (5, 0, 7), (0, 0, 0)):
        for params in (EpilogueParams(bias=np.float32(2)), requantised((m, n), 3, -1), requantised((m, n), 3, -2)):
            behind_product(rng, (m, n), k, params)


@pytest.mark.parametrize("density", [0.0, 0.1])
def test_zero_tiles(density: float) -> None:
    """Tiles whose products are all skipped must go through the chain as zeros."""
    import cupy

    rng = np.random.default_rng(9)
    m, n, k = 515, 70, 5000
    codes = rng.integers(0, 2, (m, k), np.uint64)
    codes *= (rng.random((-(-m // 8), -(-k // 128))) < density).repeat(8, 0).repeat(128, 1)[:m, :k]
    a, b = reference_bits.codes_to_words(codes, 1, "planes"), words_of(rng, (n, k), 2)
    kind: Params = {"k": k, "a_bits": 1, "b_bits": 2, "a_encoding": "unsigned", "b_encoding": "signed"}
    acc = reference_matmul.matmul(a, b, acc_dtype=np.int32, **kind)
    bitmap = cupy.asarray(reference_bits.tile_bitmap(a, k))
    for params in (EpilogueParams(bias=np.float32(2)), requantised((m, n), 3, -1), requantised((m, n), 3, -2)):
        want = host(acc, params)
        out = poisoned(want.shape, want.dtype)
        multiply(cupy.asarray(a), cupy.asarray(b), bitmap=bitmap, acc_dtype=np.int32, epilogue=params, out=out, **kind)
        same(cupy.asnumpy(out), want)


# ---- calls
def test_the_function_on_sums() -> None:
    """The function must take sums with any strides, and return a new array."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(10)
    for dtype in (np.int32, np.int64, np.float32):
        acc = sums_of(rng, (3, 50, 90), dtype)
        for _ in range(4):
            params = random_params(rng, (3, 45, 90))
            got = cuda_matmul.epilogue(cupy.asarray(acc)[:, ::-1][:, 5:], params)
            same(cupy.asnumpy(got), host(np.ascontiguousarray(acc[:, ::-1][:, 5:]), params))


def test_results_that_are_not_aligned() -> None:
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue

    rng = np.random.default_rng(11)
    acc = sums_of(rng, (37, 68))
    params = EpilogueParams(bias=floats(rng, (68,)))
    chain = DeviceEpilogue(params, acc.shape)
    room, sums = cupy.zeros(37 * 68 + 1, np.float32), cupy.zeros(37 * 68 + 1, np.int32)
    out, from_here = room[1:].reshape(37, 68), sums[1:].reshape(37, 68)
    from_here[...] = cupy.asarray(acc)
    chain.on(np.int32).run(from_here, out)
    same(cupy.asnumpy(out), host(acc, params))
    words = DeviceEpilogue(requantised(acc.shape, 1, -1), acc.shape)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        words.on(np.int32).run(from_here, cupy.zeros(37 * 4 + 1, np.uint32)[1:].reshape(37, 1, 4))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("n", [60, 130, 131])
@pytest.mark.parametrize("shift", [0, 1])
def test_floats_join_what_is_there(n: int, fused: bool, shift: int) -> None:
    """With ``joins`` floats must be added to the result as the last step, also if it is unaligned; without, it is overwritten."""
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(n)
    m, k = 70, 200
    a, b = words_of(rng, (m, k), 2), words_of(rng, (n, k), 2)
    kind: Params = {"k": k, "a_bits": 2, "b_bits": 2, "a_encoding": "signed", "b_encoding": "unsigned"}
    kind["acc_dtype"] = np.int32 if fused else np.int64
    params = EpilogueParams(bias=floats(rng, (n,)), row_scale=floats(rng, (m,)), activation="relu")
    product = cuda_matmul.Product(cupy.asarray(a), n=n, epilogue=DeviceEpilogue(params, (m, n)), **kind)
    assert product.fused is fused
    plain = host(reference_matmul.matmul(a, b, **kind), params)
    before = floats(rng, (m * n + 1,))
    room = cupy.asarray(before)
    out = room[shift : shift + m * n].reshape(m, n)
    for joins, want in ((True, before[shift : shift + m * n].reshape(m, n) + plain), (False, plain)):
        product(cupy.asarray(b), out, joins=joins)
        same(cupy.asnumpy(out), want, f"{n} {shift}")


def test_streams_and_graphs() -> None:
    """A prepared product with an epilogue, also with operands' scales, must be capturable: it allocates and compiles nothing."""
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(12)
    m, n, k = 400, 70, 3000
    a, b, scale = words_of(rng, (m, k), 1), words_of(rng, (n, k), 3), floats(rng, (n,), 0.5, 1.0)
    kind: Params = {"k": k, "a_bits": 1, "b_bits": 3, "a_encoding": "unsigned", "b_encoding": "signed"}
    stream = cupy.cuda.Stream(non_blocking=True)
    for dtype in (np.int32, np.int64):
        acc = reference_matmul.matmul(a, b, acc_dtype=dtype, **kind)
        for params in (requantised((m, n), 4, -1), requantised((m, n), 4, -2), EpilogueParams(bias=np.float32(3))):
            want = host(acc, params._replace(col_scale=times(params.col_scale, scale)))
            with stream:
                device_b, device_scale = cupy.asarray(b), cupy.asarray(scale)
                chain = DeviceEpilogue(params, (m, n))
                product = cuda_matmul.Product(cupy.asarray(a), n=n, acc_dtype=dtype, epilogue=chain, **kind)
                out = poisoned(want.shape, want.dtype)
                product(device_b, out, OperandParams(col_scale=device_scale))
                same(cupy.asnumpy(out), want)
                stream.begin_capture()
                for _ in range(2):
                    product(device_b, out, OperandParams(col_scale=device_scale))
                graph = stream.end_capture()
                for _ in range(2):
                    out.fill(0)
                    graph.launch(stream)
                    same(cupy.asnumpy(out, stream=stream), want)


def test_named_errors() -> None:
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    a = cupy.zeros((8, 1, 4), np.uint32)
    kind: Params = {"k": 128, "a_bits": 1, "b_bits": 1, "a_encoding": "unsigned", "b_encoding": "unsigned"}
    with pytest.raises(ValueError, match=r"for a result of shape \(8, 9\), the product's is \(8, 8\)"):
        cuda_matmul.Product(a, n=8, epilogue=DeviceEpilogue(EpilogueParams(), (8, 9)), **kind)
