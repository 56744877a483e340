"""QuantCache must never return codes of other content, must quantise once for all who ask, and keep nothing for arrays that are gone."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse.interop.identity import memory_of
from bitsparse.ops.quantized import cache as quant_cache

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def same(q: bs.BitTensor, want: bs.BitTensor) -> None:
    for name in ("shape", "bits", "axis", "layout", "encoding"):
        assert getattr(q, name) == getattr(want, name), name
    assert q.words.tobytes() == want.words.tobytes()
    for name in ("scale", "offset"):
        mine, theirs = getattr(q, name), getattr(want, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or np.array_equal(mine, theirs)


WAYS: list[dict[str, Any]] = [
    {"bits": 8, "scheme": "symmetric"},
    {"bits": 8, "scheme": "symmetric", "granularity": "row"},
    {"bits": 4, "scheme": "symmetric", "rounding": "stochastic", "seed": 3},
    {"bits": 4, "scheme": "symmetric", "rounding": "stochastic", "seed": 3, "stream": 1},
    {"bits": 4},
    {"bits": 4, "rounding": "floor"},
    {"bits": 4, "range": (-1, 1)},
    {"bits": 4, "range": (-1, 2)},
    {"bits": 4, "granularity": "col", "range": (np.full((1, 70), -1.0), np.full((1, 70), 1.0))},
    {"bits": 2, "scheme": "affine-pow2"},
]


@pytest.mark.parametrize("check", ["content", "never"])
def test_every_way_has_its_own_codes_and_every_form_the_same(check: Any) -> None:
    cache, x = bs.QuantCache(check=check), normal(40, 70)
    for _ in range(2):
        for way in WAYS:
            for axis in (-1, -2):
                for layout in ("planes", "rows"):
                    same(
                        cache.quantize(x, **way, axis=axis, layout=layout),
                        bs.quantize(x, **way, axis=axis, layout=layout),
                    )
    info = cache.info()
    assert info[:4] == (len(WAYS) * 7, len(WAYS), len(WAYS) * 3, 0)
    assert info.entries == len(cache) == len(WAYS)
    assert info.nbytes == cache.nbytes > 0
    assert "hits=70" in repr(cache)
    cache.clear()
    assert cache.info() == (0,) * 6


def test_a_draw_is_kept() -> None:
    cache, x = bs.QuantCache(), normal(30, 40)
    way: dict[str, Any] = {"scheme": "symmetric", "rounding": "stochastic"}
    first = cache.quantize(x, 4, **way)
    assert cache.quantize(x, 4, **way) is first
    assert not np.array_equal(bs.quantize(x, 4, **way).words, first.words)


@pytest.mark.parametrize("change", ["one", "view", "swap", "tail", "sign of zero"])
def test_changes_are_seen(change: str) -> None:
    cache, x = bs.QuantCache(), normal(33, 37)
    x[3, 3] = 0.0
    cache.quantize(x, 8)
    if change == "one":
        x[20, 20] = np.nextafter(x[20, 20], np.float32(9))
    elif change == "view":
        x.T[5] += 1
    elif change == "swap":
        x[[0, 1]] = x[[1, 0]]
    elif change == "tail":
        x[-1, -1] *= 2
    else:
        x[3, 3] = -0.0
    same(cache.quantize(x, 8), bs.quantize(x, 8))
    assert cache.info().misses == 2
    assert len(cache) == 1  # no array has the old content any more


def test_equal_arrays_share_codes_until_both_are_gone_or_changed() -> None:
    cache, x = bs.QuantCache(), normal(20, 30)
    y, q = x.copy(), cache.quantize(x, 8)
    assert cache.quantize(y, 8) is q
    assert cache.quantize(x.astype(np.float64), 8) is not q
    x += 1
    cache.quantize(x, 8)
    assert cache.quantize(y, 8) is q
    del x
    assert cache.info().entries == 1
    del y
    gc.collect()
    assert cache.info().entries == 0
    assert cache.quantize([[1.0, 2.0]], 2) is cache.quantize([[1.0, 2.0]], 2)
    assert cache.info().entries == 1


def test_caller_says_when_an_array_changes() -> None:
    cache, x = bs.QuantCache(check="never"), normal(20, 30)
    other = normal(20, 30)
    q = cache.quantize(x, 8)
    x *= 3
    assert cache.quantize(x, 8) is q
    cache.quantize(other, 8)
    cache.invalidate(x[2:])  # the same memory
    same(cache.quantize(x, 8), bs.quantize(x, 8))
    assert cache.info().misses == 3
    cache.invalidate()
    assert len(cache) == 0


def test_an_address_used_again_is_another_array() -> None:
    """An array must not get the codes of one that is gone, although the allocator reuses its address, shape and strides."""
    cache = bs.QuantCache(check="never")
    memory = np.empty(8 * 600, np.uint8)

    def array(value: float) -> np.ndarray:
        class Buffer:  # a separate owner of the same address
            __array_interface__ = memory.__array_interface__

        x = np.asarray(Buffer()).view(np.float32)[:1200].reshape(30, 40)
        x[...] = np.arange(1200).reshape(30, 40) * value
        return x

    for value in range(1, 6):
        x = array(value)
        assert cache.quantize(x, 8).scale == bs.quantize(x, 8).scale
        del x
    assert cache.info().hits == 0


def test_bounds() -> None:
    arrays = [normal(64, 128) for _ in range(4)]
    each = bs.quantize(arrays[0], 8).nbytes
    cache = bs.QuantCache(max_bytes=2 * each + 10)
    first, second, third, _ = (cache.quantize(x, 8) for x in arrays)
    del first, second, third
    assert cache.info()[:5] == (0, 4, 0, 2, 2)
    cache.quantize(arrays[2], 8)  # used again: arrays[3] goes next
    cache.quantize(arrays[0], 8)
    cache.quantize(arrays[2], 8)
    assert cache.info()[:2] == (2, 5)
    cache.quantize(arrays[2], 8, axis=-2)  # a second form takes room as well
    assert cache.nbytes <= 2 * each + 10
    held = cache.info()
    cache.quantize(normal(640, 128), 8)  # too large: nothing makes room for it
    assert (len(cache), cache.nbytes) == (held.entries, held.nbytes)
    tiny = bs.QuantCache(max_bytes=0)
    same(tiny.quantize(arrays[0], 8), bs.quantize(arrays[0], 8))
    assert (len(tiny), tiny.info().evictions) == (0, 1)


def test_codes_made_elsewhere() -> None:
    cache, x = bs.QuantCache(), normal(20, 30)
    assert cache.find(x, 8, scheme="symmetric") is None
    q = bs.quantize(x, 8, scheme="symmetric", axis=-2)
    cache.keep(x, q, scheme="symmetric")
    assert cache.find(x, 8, scheme="symmetric", axis=-2) is q
    same(cache.quantize(x, 8, scheme="symmetric"), bs.quantize(x, 8, scheme="symmetric"))
    assert cache.info()[:3] == (2, 1, 1)
    with pytest.raises(bs.DTypeError, match="q is a ndarray"):
        cache.keep(x, x)  # type: ignore[arg-type]
    with pytest.raises(bs.ShapeError, match=r"q has shape \(20, 30\) but x has shape \(30, 20\)"):
        cache.keep(x.T, q, scheme="symmetric")
    with pytest.raises(ValueError, match=r"q is signed .* scheme='affine' makes unsigned"):
        cache.keep(x, q)


def test_threads_quantise_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, x, calls = bs.QuantCache(), normal(50, 60), []

    def slowly(*arguments: Any, **options: Any) -> Any:
        calls.append(threading.get_ident())
        time.sleep(0.05)
        if len(calls) == 1:
            raise MemoryError("the first one fails")
        return bs.quantize(*arguments, **options)

    monkeypatch.setattr(quant_cache, "quantize", slowly)
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(cache.quantize(x, 8))
        except MemoryError as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 2
    assert sum(isinstance(one, MemoryError) for one in found) == 1
    assert len({id(one) for one in found if isinstance(one, bs.BitTensor)}) == 1


def test_errors_name_the_cache() -> None:
    with pytest.raises(ValueError, match="QuantCache: check"):
        bs.QuantCache(check="always")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_bytes"):
        bs.QuantCache(max_bytes=-1)
    cache, x = bs.QuantCache(), normal(4, 4)
    for arguments, options, error, text in (
        ((x, 1), {"scheme": "symmetric"}, ValueError, "bits"),
        ((x, 8), {"layout": "heap"}, ValueError, "layout"),
        ((x, 3), {"layout": "rows"}, ValueError, "rows"),
        ((x, 8), {"axis": 3}, ValueError, "axis"),
        ((x, 8), {"seed": 1}, ValueError, "seed"),
        ((x[0], 8), {}, bs.ShapeError, "x"),
    ):
        with pytest.raises(error, match=rf"QuantCache\.quantize: .*{text}"):
            cache.quantize(*arguments, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grain"):
        cache.quantize(x, 8, grain=2)
    assert cache.info().misses == 0
    with pytest.raises(ValueError, match="NaN"):
        cache.quantize(np.full((2, 2), np.nan), 8)
    with pytest.raises(
        bs.DTypeError, match=r"check='version' cannot see changes of x, a numpy\.ndarray; use check='content'"
    ):
        bs.QuantCache(check="version").quantize(x, 8)
    with pytest.raises(bs.DTypeError, match=r"builtins\.list; use check='content'"):
        bs.QuantCache(check="never").quantize([[1.0]], 8)


def test_copies_and_pickles_begin_empty_with_the_same_settings() -> None:
    cache, x = bs.QuantCache(max_bytes=10_000, check="never"), normal(6, 8)
    kept = cache.quantize(x, 4)
    for made in (copy.copy(cache), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (type(made), made.max_bytes, made.check) == (bs.QuantCache, 10_000, "never")
        assert made.info() == (0,) * 6
        same(made.quantize(x, 4), kept)
    assert cache.info().entries == 1


def test_memory() -> None:
    x = normal(6, 8)
    mine = memory_of(x)
    assert mine is not None
    for view in (x[1:], x.T, x.reshape(-1), x[::2, ::3]):
        theirs = memory_of(view)
        assert theirs is not None
        assert theirs.owner == mine.owner
        assert theirs.view != mine.view
    again = memory_of(x[:])
    assert again is not None
    assert again.view == mine.view
    assert memory_of([1.0]) is None
    buffered = np.frombuffer(bytearray(32), np.float32)
    assert memory_of(buffered) is not None


@pytest.mark.torch
def test_tensors() -> None:
    torch = importlib.import_module("torch")
    cache = bs.QuantCache(check="version")
    x = torch.randn(20, 30)
    weights = torch.nn.Parameter(torch.randn(8, 5))
    q = cache.quantize(x, 8)
    assert cache.quantize(x.view(20, 30), 8) is q
    assert cache.quantize(weights.detach(), 8) is cache.quantize(weights.detach(), 8)
    assert cache.info()[:2] == (2, 2)
    for change in (lambda: x.add_(1), lambda: x[3].mul_(2), lambda: x.T.zero_()):
        change()
        same(cache.quantize(x, 8), bs.quantize(x, 8))
    with torch.no_grad():
        weights -= 0.1
    same(cache.quantize(weights.detach(), 8), bs.quantize(weights.detach(), 8))
    assert cache.info()[:2] == (2, 6)
    assert len(cache) == 2
    with pytest.raises(bs.DTypeError, match="requires a gradient"):
        cache.quantize(weights, 8)
    x.data.fill_(3)  # PyTorch does not count this change
    cache.invalidate(x)
    same(cache.quantize(x, 8), bs.quantize(x, 8))
    for _ in range(4):  # the allocator reuses the address
        fresh = torch.randn(500, 500)
        same(cache.quantize(fresh, 8), bs.quantize(fresh, 8))
        del fresh
    assert cache.info().entries == 2
    with torch.inference_mode():
        uncounted = torch.ones(3, 3)
    with pytest.raises(bs.DTypeError, match=r"Tensor; use check='content'"):
        cache.quantize(uncounted, 8)
    by_content = bs.QuantCache()
    by_content.quantize(x, 8)
    x.data.fill_(5)
    same(by_content.quantize(x, 8), bs.quantize(x, 8))


@pytest.mark.jax
def test_jax_arrays_never_change() -> None:
    jnp = importlib.import_module("jax").numpy
    cache, x = bs.QuantCache(check="version"), jnp.linspace(0, 1, 12).reshape(3, 4)
    assert cache.quantize(x, 8) is cache.quantize(x, 8)
    y = x.at[0, 0].set(2.0)
    assert cache.quantize(y, 8).words.tobytes() == bs.quantize(y, 8).words.tobytes()
    assert cache.info()[:2] == (1, 2)
