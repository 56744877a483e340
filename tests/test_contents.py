"""Caches of packed words belong to the memory: every BitTensor and plan over the same memory notices writes to it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bitsparse as bs
from bitsparse.arrays.packed import PackedArray

_SIZE = 256
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

VIEWS = {
    "itself": lambda h: h,
    "rows": lambda h: h[8:200],
    "turned twice": lambda h: h.T.T,
    "copy.copy": copy.copy,
    "with_affine": lambda h: h.with_affine(),
    "from_words": lambda h: bs.BitTensor.from_words(h.words, h.shape, h.bits, encoding=h.encoding, axis=h.axis),
    "BitTensor": lambda h: bs.BitTensor(h),
    "from_words of a part": lambda h: bs.BitTensor.from_words(h.words[8:200], (192, h.shape[1]), 1, axis=-1),
}


def target(axis: int = -1) -> Any:
    """Bits that a product can be written to, all zero."""
    return bs.pack_bits(np.zeros((_SIZE, _SIZE), np.uint8), 1, axis=axis)


def _form(axis: int) -> dict[str, Any]:
    return {"bits": 1, "out_scale": 1.0, "out_offset": 0.0, "axis": axis}


def to_host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x


def write(h: Any, values: Any) -> None:
    """Write `values` into h, as a product with the identity and `out`."""
    one = bs.pack_bits(np.eye(h.shape[1], dtype=np.uint8), 1, axis=-2).to_device(h.device)
    bs.matmul(
        bs.pack_bits(values, 1).to_device(h.device),
        one,
        epilogue=bs.Epilogue(**_form(h.axis)),
        out=h.with_affine(1.0, 0.0),
    )


def ones() -> Any:
    return np.ones((_SIZE, _SIZE), np.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", VIEWS)
def test_views_notice_what_is_written_through_another(view: str, device: str) -> None:
    h = target().to_device(device)
    seen = VIEWS[view](h)
    right = bs.pack_bits(ones(), 1, axis=-2).to_device(device)
    plan = bs.plan_matmul(seen, _SIZE)
    assert not plan(right).any() and not bs.matmul(seen, right).any()
    assert not seen.tile_bitmap.any() and not seen.line_sums.any()
    write(h, ones())
    assert seen.tile_bitmap.any() and (seen.line_sums == _SIZE).all() and seen.tile_density == 1.0
    assert (bs.matmul(seen, right) == _SIZE).all()
    assert (plan(right) == _SIZE).all() and plan.share_skipped == 0.0


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_written_through_a_view_is_noticed_by_the_whole(view: str) -> None:
    h = target()
    assert not h.tile_bitmap.any() and not h.line_sums.any()
    seen = VIEWS[view](h)
    rows = seen.shape[0]
    write(seen, ones()[:rows])
    assert int(np.bitwise_count(h.tile_bitmap).sum()) == -(-rows // 8) * 2
    assert sorted(set(h.line_sums.tolist())) in ([0, _SIZE], [_SIZE])


@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_of_a_repacked_operand_notices(device: str) -> None:
    h = target(axis=-2).to_device(device)
    plan = bs.plan_matmul(h, 4, skip_zero_tiles=False)
    right = bs.pack_bits(np.ones((_SIZE, 4), np.uint8), 1, axis=-2).to_device(device)
    assert not plan(right).any()
    write(h, ones())
    assert (plan(right) == _SIZE).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", ["planes", "digits"])
def test_a_product_that_unpacks_its_left_operand_notices(kernel: str, device: str) -> None:
    h = target().to_device(device)
    plan = bs.plan_matmul(h, 5, bits=2, encoding="signed", kernel=kernel if device != "cpu" else None)
    values = np.random.default_rng(0).integers(-2, 2, (_SIZE, 5))
    right = bs.pack_bits(values, 2, encoding="signed", axis=-2).to_device(device)
    assert not plan(right).any()
    for seed in (1, 2):
        new = np.random.default_rng(seed).integers(0, 2, (_SIZE, _SIZE)).astype(np.uint8)
        write(h, new)
        np.testing.assert_array_equal(to_host(plan(right)), new.astype(int) @ values)


@pytest.mark.gpu
def test_what_cannot_be_made_anew_while_capturing_is_an_error() -> None:
    cupy = pytest.importorskip("cupy")
    h = target().to_device("cuda")
    right = bs.pack_bits(ones(), 1, axis=-2).to_device("cuda")
    kept, read = bs.plan_matmul(h, _SIZE), bs.plan_matmul(h, _SIZE, skip_zero_tiles=False)
    out = cupy.empty((_SIZE, _SIZE), np.int32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for plan in (kept, read):
            plan(right, out=out)
        write(h, ones())
        read(right, out=out)
        stream.synchronize()
        stream.begin_capture()
        read(right, out=out)
        with pytest.raises(bs.DeviceError, match="call the plan once between"):
            kept(right, out=out)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    assert (out.get() == _SIZE).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [-1, -2])
def test_products_of_signs_notice_another_weight(axis: int, device: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, 64)).astype(np.float32)
    given = bs.pack_bits(x, encoding="bipolar").to_device(device)
    signs = [np.where(rng.random((64, 64)) < 0.5, -1.0, 1.0) for _ in range(2)]
    w = bs.pack_bits(signs[0], encoding="bipolar", axis=axis).to_device(device)
    view, plan = w.T.T, bs.plan_bmm(w, 5, "BBF")
    epilogue = bs.Epilogue(binarize=True, axis=axis)
    # The inner size is 1, so that a sum is a single product of signs, and its sign is known.
    left = bs.pack_bits(np.sign(signs[1][:, :1]), encoding="bipolar").to_device(device)
    right = bs.pack_bits(np.ones((1, 64)), encoding="bipolar", axis=-2).to_device(device)
    for _ in range(2):
        for one in (plan(given), bs.bmm(given, view, "BBF"), bs.bmm(given, view, "BBF")):
            np.testing.assert_array_equal(to_host(one), np.sign(x) @ to_host(w.toarray()).astype(int))
        bs.bmm(left, right, "BBB", epilogue=epilogue, out=w)
    np.testing.assert_array_equal(to_host(w.toarray()), np.repeat(signs[1][:, :1], 64, axis=1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", [None, "composed"])
def test_quantised_products_notice_another_weight(kernel: str | None, device: str) -> None:
    rng = np.random.default_rng(2)
    w = target().with_affine(1.0).to_device(device)
    plan = bs.plan_quantized_matmul(w, 3, kernel=kernel)
    x = bs.BitTensor(rng.integers(1, 9, (3, _SIZE)), 8).to_device(device).astype(np.float32)
    view = copy.copy(w)
    for product in (plan(x), bs.quantized_matmul(x, view), bs.quantized_matmul(x, view)):
        assert not product.any()
    other = rng.integers(0, 2, (_SIZE, _SIZE), dtype=np.uint8)
    write(w, other)
    want = to_host(bs.quantized_matmul(x, bs.pack_bits(other, 1).with_affine(1.0).to_device(device)))
    for product in (plan(x), bs.quantized_matmul(x, view)):
        np.testing.assert_array_equal(to_host(product), want)
    assert want.any()


def test_codes_that_were_written_over_are_not_given_out_again() -> None:
    cache = bs.QuantCache()
    x = np.arange(_SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
    q = cache.quantize(x, 1, scheme="affine-pow2")
    was = q.toarray().copy()
    assert cache.quantize(x, 1, scheme="affine-pow2") is q
    write(q, 1 - was)
    again = cache.quantize(x, 1, scheme="affine-pow2")
    assert again is not q
    np.testing.assert_array_equal(again.toarray(), was)


def test_arrays_of_other_libraries_over_one_memory_are_taken_for_one() -> None:
    torch = pytest.importorskip("torch")
    words = torch.zeros((_SIZE, 1, 8), dtype=torch.int32)
    one, other = (bs.BitTensor.from_words(words, (_SIZE, _SIZE), 1, scale=1.0, offset=0.0) for _ in range(2))
    assert not one.tile_bitmap.any()
    write(other, ones())
    assert one.tile_bitmap.any() and (one.line_sums == _SIZE).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sequence_of_views_writes_and_products_is_that_of_plain_arrays(data: st.DataObject) -> None:
    rows, cols = 48, 160
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    plain = np.zeros((rows, cols), np.int32)
    h = bs.pack_bits(plain, 1)
    views: list[tuple[Any, Any]] = [(h, plain)]
    plans: list[tuple[Any, Any]] = []
    other = rng.integers(0, 4, (cols, 3))
    right = bs.pack_bits(other, 2, axis=-2)
    for step in data.draw(st.lists(st.sampled_from(["view", "write", "use", "plan"]), min_size=4, max_size=14)):
        mine, model = views[data.draw(st.integers(0, len(views) - 1))]
        if step == "view":
            low = data.draw(st.integers(0, mine.shape[0] - 1))
            kind = data.draw(st.sampled_from(["rows", "copy", "turned"]))
            if kind == "rows":
                views.append((mine[low:], model[low:]))
            else:
                views.append((copy.copy(mine) if kind == "copy" else mine.T.T, model))
        elif step == "write":
            share = data.draw(st.sampled_from([0.0, 0.01, 1.0]))
            bits = (rng.random(model.shape) < share).astype(np.uint8)
            write(mine, bits)
            model[...] = bits
        elif step == "plan":
            plans.append((bs.plan_matmul(mine, 3, bits=2), model))
            plans[-1][0](right)
        else:
            np.testing.assert_array_equal(bs.matmul(mine, right), model @ other)
            np.testing.assert_array_equal(mine.line_sums, model.sum(axis=1))
            np.testing.assert_array_equal(mine.nnz, np.count_nonzero(model))
    for plan, model in plans:
        np.testing.assert_array_equal(plan(right), model @ other)
    for mine, model in views:
        np.testing.assert_array_equal(bs.matmul(mine, right), model @ other)
        assert mine.tile_density == (
            sum(model[i : i + 8, j : j + 128].any() for i in range(0, len(model), 8) for j in (0, 128))
            / (-(-len(model) // 8) * 2)
        )


def test_a_copy_shares_nothing_and_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    h = target()
    mine = h.copy()
    bitmap = mine.tile_bitmap
    write(h, ones())

    def refuse(self: PackedArray) -> Any:
        raise AssertionError("looked again at words that nobody has written to")

    monkeypatch.setattr(PackedArray, "_backend", refuse)
    assert mine.tile_bitmap is bitmap
