"""QuantCache over arrays in a GPU's memory must give the host's codes and keep streams in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bitsparse as bs

pytestmark = pytest.mark.gpu

X = np.random.default_rng(0).normal(size=(60, 200)).astype(np.float32)


def cp() -> Any:
    import cupy

    return cupy


def same(there: bs.BitTensor, here: bs.BitTensor) -> None:
    assert there.device == "cuda:0"
    got = there.get()
    assert got.words.tobytes() == here.words.tobytes()
    np.testing.assert_array_equal(got.scale, here.scale)


@pytest.mark.parametrize("check", ["content", "never"])
def test_codes_are_the_hosts(check: Any) -> None:
    cache, x = bs.QuantCache(check=check), cp().asarray(X)
    for _ in range(2):
        for bits, layout in ((8, "rows"), (4, "planes")):
            for axis in (-1, -2):
                way: dict[str, Any] = {"scheme": "symmetric", "axis": axis, "layout": layout}
                same(cache.quantize(x, bits, **way), bs.quantize(X, bits, **way))
    assert cache.info()[:4] == (6, 2, 2, 0)
    x[3, 5] = 9
    if check == "never":
        cache.invalidate(x[1:].T)
        assert len(cache) == 0
    here = X.copy()
    here[3, 5] = 9
    same(cache.quantize(x, 8), bs.quantize(here, 8))
    assert cache.info().misses == 3
    del x
    assert cache.info().entries == 0


def test_devices_have_their_own() -> None:
    cache = bs.QuantCache()
    here, there = cache.quantize(X, 8), cache.quantize(cp().asarray(X), 8)
    assert (here.device, there.device) == ("cpu", "cuda:0")
    same(there, here)


def test_streams_and_captures() -> None:
    cupy = cp()
    cache, free, x = bs.QuantCache(), bs.QuantCache(check="never"), cupy.asarray(X)
    one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with one:
        q = free.quantize(x, 8)
    with other:
        assert free.quantize(x, 8) is q
        entry = next(iter(free._entries.values()))
        assert other.ptr in entry.ready._known
    one.begin_capture()
    with one:
        assert free.quantize(x, 8) is q
        with pytest.raises(bs.DeviceError, match=r"packed as \(-2, 'planes'\) .* capturing"):
            free.quantize(x, 8, axis=-2)
        with pytest.raises(bs.DeviceError, match=r"QuantCache\.quantize: check='content' .* capturing"):
            cache.quantize(x, 8)
    one.end_capture()
    assert free.info().repacks == 0


@pytest.mark.torch
def test_tensors() -> None:
    import torch

    cache = bs.QuantCache(check="version")
    x = torch.from_numpy(X.copy()).cuda()
    q = cache.quantize(x, 8)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert cache.quantize(x.detach(), 8) is q
    x.mul_(2)
    same(cache.quantize(x, 8), bs.quantize(X * 2, 8))
    for _ in range(3):
        fresh = torch.randn(300, 300, device="cuda")
        same(cache.quantize(fresh, 8), bs.quantize(fresh.cpu(), 8))
        del fresh
    assert cache.info().hits == 1
