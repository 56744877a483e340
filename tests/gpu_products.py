"""Operands of low-bit products and the comparison of the CUDA backend with the NumPy oracle, shared by the GPU tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check
from bitsparse.backends.reference.bits import pack as reference_bits
from bitsparse.backends.reference.matmul import matmul as reference_matmul

ENCODINGS = ("unsigned", "signed", "bipolar")
#: Fills a result before a call ("poisoned array"), so that elements which the kernel fails to write are noticed.
POISON = -1234567


def operand(rng: np.random.Generator, shape: tuple[int, ...], bits: int, density: float = 1.0) -> np.ndarray:
    """Words (layout "planes") of random codes (..., outer, k); some rows are all ones, some are zero."""
    codes = rng.integers(0, 1 << bits, shape, np.uint64)
    codes[rng.random(shape[:-1]) < 0.1] = (1 << bits) - 1
    codes[rng.random(shape[:-1]) < 0.1] = 0
    if density < 1:
        tiles = rng.random((*shape[:-2], -(-shape[-2] // 8), -(-shape[-1] // 128))) < density
        codes *= tiles.repeat(8, -2).repeat(128, -1)[..., : shape[-2], : shape[-1]].astype(np.uint64)
    return reference_bits.codes_to_words(codes, bits, "planes")


def encodings(rng: np.random.Generator, bits: int) -> str:
    allowed = ENCODINGS if bits == 1 else ENCODINGS[:2]
    return str(rng.choice(allowed))


def accumulator(k: int, a_bits: int, b_bits: int) -> type[np.signedinteger[Any]]:
    return np.int32 if k << (a_bits + b_bits) < 2**31 else np.int64


def multiply(a: Any, b: Any, out: Any = None, **arguments: Any) -> Any:
    """Prepare and run one product of device arrays; NaN that would become a code is an error."""
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    product = cuda_matmul.prepare(a, n=b.shape[-3], b_batch=b.shape[:-3], **arguments)
    result = product(b, out)
    _check.no_nan_in_epilogue("matmul", product.nan_seen())
    return result


def check(a: np.ndarray, b: np.ndarray, **arguments: Any) -> None:
    import cupy

    want = reference_matmul.matmul(a, b, **{name: v for name, v in arguments.items() if name != "kernel"})
    if arguments.get("bitmap") is not None:
        arguments["bitmap"] = cupy.asarray(arguments["bitmap"])
    out = cupy.full(want.shape, POISON, want.dtype)
    got = multiply(cupy.asarray(a), cupy.asarray(b), out=out, **arguments)
    assert got is out
    np.testing.assert_array_equal(cupy.asnumpy(out), want)
