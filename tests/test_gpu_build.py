"""Builders on the GPU: the reference's arrays, bit for bit, and errors for hostile input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases_sparse import PATTERNS, as_int64, disordered, specs

from bitsparse import backends
from bitsparse.backends.reference import build as reference

pytestmark = pytest.mark.gpu


def up(x: Any) -> Any:
    import cupy

    return cupy.asarray(x) if isinstance(x, np.ndarray) else x


def gpu() -> Any:
    return backends.family("cuda:0", "build")


def same(got: Any, want: Any) -> None:
    if not isinstance(want, (tuple, np.ndarray)):
        assert got == want
        return
    for one, other in zip(got, want, strict=True) if isinstance(want, tuple) else ((got, want),):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_array_equal(one.get(), other)


@pytest.mark.parametrize("spec", [spec for spec in specs() if spec[0] == "build"], ids=lambda spec: f"{spec[1]}-{spec[2]}")
def test_the_shared_table(spec: Any) -> None:
    _, name, _, make = spec
    args, kwargs = make()
    want = getattr(reference, name)(*args, **kwargs)
    same(getattr(gpu(), name)(*map(up, args), **kwargs), want)


# ---- what the arrays do there
def formats() -> dict[str, Any]:
    import bitsparse as bs

    rng = np.random.default_rng(3)
    dense = rng.integers(-3, 4, (53, 71)) * (rng.random((53, 71)) < 0.2)
    heads = bs.TCTiledCSR(dense, pattern=True)
    return {
        "values": bs.TCTiledCSR(dense, window=7),
        "pattern": bs.TCTiledCSR(dense, pattern=True, row_scale=rng.random(53), col_scale=rng.random(71)),
        "heads": heads.with_values(rng.random((heads.nnz, 3))),
        "frdc": bs.FRDC(dense, pattern=True),
        "wide": bs.TCTiledCSR(dense, index_dtype="int64"),
        "nothing": bs.TCTiledCSR((0, 5)),
    }


@pytest.mark.parametrize("name", list(formats()))
def test_csr_arrays(name: str) -> None:
    here = formats()[name]
    there = here.to_device("cuda")
    assert there.device == "cuda:0"
    assert there._prepared == {}
    for one, other in zip(there.csr_arrays(), here.csr_arrays(), strict=True):
        if other is None:
            assert one is None
        else:
            same(one, other)
    first = there.csr_arrays()
    again = there.with_scales(None, None).csr_arrays()
    assert first[0] is again[0]
    assert first[1] is again[1]
