"""Cosines do not depend on the features' scale: if features are multiplied by a power of two, so are the sums, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.backends.params import Pattern
from bitsparse.backends.reference.edges import attention as reference

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
#: Exponents of powers of two whose squares overflow or underflow the dtype, while products with small elements do not underflow.
EXPONENTS = {np.dtype(np.float64): (-1000, -600, 600, 1000), np.dtype(np.float32): (-85, -70, 70, 120)}
EXPONENTS[np.dtype(ml_dtypes.bfloat16)] = EXPONENTS[np.dtype(np.float32)]


def graph() -> Any:
    rng = np.random.default_rng(2)
    return sp.csr_array((rng.random((50, 50)) < 0.2) | np.eye(50, dtype=bool)).astype(np.float32)


def there(x: Any, device: str) -> Any:
    if device == "cpu":
        return x
    import cupy

    return cupy.asarray(x.view(np.uint16)).view(x.dtype) if x.dtype.name == "bfloat16" else cupy.asarray(x)


def back(y: Any) -> Any:
    return y.get() if hasattr(y, "get") else y


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [7, 64, 1100])
@pytest.mark.parametrize("dtype", EXPONENTS, ids=str)
def test_scaled_features_give_scaled_sums(dtype: np.dtype[Any], columns: int, device: str) -> None:
    a = bs.TCTiledCSR(graph(), pattern=True).to_device(device)
    x = np.random.default_rng(3).normal(size=(50, columns)).astype(dtype)
    x[4] = 0
    plain = back(bs.cosine_attention(a, there(x, device), beta=3.0)).astype(np.float64)
    assert np.isfinite(plain).all()
    for exponent in EXPONENTS[dtype]:
        scaled = np.ldexp(x.astype(np.float64), exponent).astype(dtype)
        found = back(bs.cosine_attention(a, there(scaled, device), beta=3.0)).astype(np.float64)
        assert np.array_equal(np.ldexp(found, -exponent), plain)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_of_very_different_sizes_attend_to_each_other(dtype: Any, device: str) -> None:
    exponents = np.linspace(-90, 90, 50) * (8 if dtype == np.float64 else 1)
    unit = np.random.default_rng(4).normal(size=(50, 16))
    x = np.ldexp(unit, exponents.astype(int)[:, None]).astype(dtype)
    csr = graph()
    made, lse = bs.cosine_attention(
        bs.TCTiledCSR(csr, pattern=True).to_device(device), there(x, device), beta=2.0, return_lse=True
    )
    ones = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    scores = np.where(csr.toarray() != 0, 2.0 * ones @ ones.T, -np.inf)
    np.testing.assert_allclose(
        back(lse), np.log(np.exp(scores).sum(axis=1)), rtol=1e-5 if dtype == np.float32 else 1e-13
    )
    wanted = reference.cosine_attention(Pattern(csr.indptr, csr.indices, csr.shape), x, beta=2.0)
    np.testing.assert_allclose(back(made), wanted, rtol=2e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [7, 1100])
@pytest.mark.parametrize("beta", [0.0, -2.5, 90.0])
def test_a_factor_may_be_an_array_where_the_features_are(beta: float, columns: int, device: str) -> None:
    a = bs.TCTiledCSR(graph(), pattern=True).to_device(device)
    x, gradient = (there(part, device) for part in np.random.default_rng(5).normal(size=(2, 50, columns)))
    factor = there(np.array([beta], np.float32), device)
    wanted = back(bs.cosine_attention(a, x, beta=beta))
    np.testing.assert_allclose(back(bs.cosine_attention(a, x, beta=factor)), wanted, rtol=1e-12, atol=1e-12)
    by_x, by_beta = bs.cosine_attention_vjp(a, x, gradient, beta=factor, wrt=("x", "beta"))
    others = bs.cosine_attention_vjp(a, x, gradient, beta=beta, wrt=("x", "beta"))
    np.testing.assert_allclose(back(by_x), back(others[0]), rtol=1e-12, atol=1e-12)
    assert by_beta.shape == (1,)
    assert by_beta.dtype == np.float32
    np.testing.assert_allclose(float(by_beta[0]), float(others[1]), rtol=1e-6)
    with pytest.raises(bs.ShapeError, match=r"cosine_attention: beta has shape \(2,\)"):
        bs.cosine_attention(a, x, beta=there(np.ones(2, np.float32), device))
    with pytest.raises(bs.DTypeError, match="cosine_attention_vjp"):
        bs.cosine_attention_vjp(a, x, gradient, beta=there(np.ones(1, np.int32), device))
