"""Copies to and from a GPU, in pieces and during its work: everything must arrive, and nothing may be overwritten too early."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import graph, interop
from bitsparse.interop import transfers, uploads

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
LARGE = RNG.integers(0, 256, (23 << 20) + 5).astype(np.uint8)


def cp() -> Any:
    import cupy

    return cupy


@pytest.mark.parametrize("size", [0, 3, (1 << 20) - 1, 1 << 20, 4 << 20, (4 << 20) + 1, LARGE.size])
@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_single_copies(size: int, locked: bool, later: bool) -> None:
    source = LARGE[:size]
    if locked:
        source = interop.pinned_empty(size)
        source[...] = LARGE[:size]
        assert transfers.is_pinned(source) == (size > 0)
    with cp().cuda.Stream(non_blocking=True) as stream:
        there = interop.to_gpu(source, "cuda:0", later=later)
        if not (later and locked):
            source = np.zeros(0, np.uint8) if not locked else source
            if locked:
                source[...] = 0  # it has already been read
        stream.synchronize()
    np.testing.assert_array_equal(there.get(), LARGE[:size])


def test_any_strides_and_dtypes() -> None:
    x = RNG.normal(size=(700, 900))
    for source in (x, x.T, x[::2, 1:], x.astype(np.float16), x[:, :1] > 0, np.float32(3.5)):
        there = interop.move(np.asarray(source), "cuda:0")
        assert isinstance(there, cp().ndarray)
        assert there.dtype == np.asarray(source).dtype
        np.testing.assert_array_equal(there.get(), source)


def test_bfloat16() -> None:
    x = RNG.normal(size=(900, 700)).astype(ml_dtypes.bfloat16)
    there = interop.to_gpu(x, "cuda:0")
    assert there.dtype == x.dtype
    np.testing.assert_array_equal(there.view(np.uint16).get(), x.view(np.uint16))


def test_small_locked_memory_may_change_at_once() -> None:
    source = interop.pinned_empty((4, 5), np.float32)
    source[...] = 1
    with cp().cuda.Stream(non_blocking=True) as stream:
        there = interop.to_gpu(source, "cuda:0")
        source[...] = 2
        stream.synchronize()
    np.testing.assert_array_equal(there.get(), np.ones((4, 5)))


def test_pieces_are_shared_by_threads() -> None:
    found: list[Any] = [None] * 6

    def work(number: int) -> None:
        with cp().cuda.Stream(non_blocking=True) as stream:
            found[number] = interop.to_gpu(LARGE[number:], "cuda:0")
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, there in enumerate(found):
        np.testing.assert_array_equal(there.get(), LARGE[number:])


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_threads_fill_pieces(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    shared = transfers._Shared()
    monkeypatch.setattr(transfers, "_shared", shared)
    there = interop.to_gpu(LARGE, "cuda:0")
    np.testing.assert_array_equal(there.get(), LARGE)
    assert shared.workers == max(1, min(4, cores - 1))


def test_a_piece_that_could_not_be_filled_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, cupy = transfers.Chunks(1000, 3), cp()
    there, calls = cupy.zeros(20_000, np.uint8), []

    def failing(to: Any, source: Any) -> None:
        calls.append(len(source))
        if len(calls) == 5:
            raise OSError("the file ends here")
        to[...] = source

    monkeypatch.setattr(transfers.np, "copyto", failing)
    stream = cupy.cuda.Stream(non_blocking=True)
    for size in (3000, 20_000):  # copied by the caller, then by threads
        calls.clear()
        if size > 4000:
            with pytest.raises(OSError, match="ends here"):
                transfers.enqueue(cupy, there.data.ptr, LARGE[:size], stream, chunks)
        else:
            transfers.enqueue(cupy, there.data.ptr, LARGE[:size], stream, chunks)
    monkeypatch.undo()
    transfers.enqueue(cupy, there.data.ptr, LARGE[:20_000], stream, chunks)
    stream.synchronize()
    np.testing.assert_array_equal(there.get(), LARGE[:20_000])


def test_nothing_is_copied_into_a_capture() -> None:
    cupy = cp()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(bs.DeviceError, match=r"to_device: 96 bytes .* capturing; move them before"):
            bs.pack_bits(np.eye(3, dtype=int), bits=2).to_device("cuda")
        stream.end_capture()


def test_arrays_on_a_stream_of_the_callers() -> None:
    cupy = cp()
    stream = cupy.cuda.Stream(non_blocking=True)
    codes = RNG.integers(0, 256, (3000, 500))
    here = bs.quantize(codes.astype(np.float32), 8, layout="rows", granularity="col")
    locked = interop.pinned_empty(here.words.shape, np.uint32)
    locked[...] = here.words
    quick = bs.BitTensor.from_words(locked, here.shape, 8, layout="rows", scale=here.scale, offset=here.offset)
    tiled = bs.TCTiledCSR(sp.random(3000, 3000, 0.05, "csr", random_state=0, dtype=np.float32), row_scale=np.ones(3000))
    for array in (here, quick, tiled):
        there = array.to_device("cuda", stream=stream)
        assert there.device == "cuda:0"
        event = stream.record()
        cupy.cuda.get_current_stream().wait_event(event)
        np.testing.assert_array_equal(there.get().toarray(), array.toarray())
    assert quick.to_device("cuda").get().words.tobytes() == here.words.tobytes()


def test_only_answers_come_home() -> None:
    """Choosing bits must copy to the host only the range and one error per candidate."""
    emulator = sys.modules.get("emulator")
    for scheme, granularity in (("symmetric", "tensor"), ("affine", "tensor"), ("symmetric", "row")):
        x = RNG.normal(size=(40, 100)).astype(np.float32)
        there: Any = cp().asarray(x)
        way: dict[str, Any] = {"scheme": scheme, "granularity": granularity, "threshold": 0.1}
        want = bs.choose_bits(x, **way)
        before = emulator.counts()["to_host"] if emulator else 0
        assert bs.choose_bits(there, **way) == want
        if emulator and granularity == "tensor":
            assert emulator.counts()["to_host"] - before == 1 + (want - 1)
        before = emulator.counts()["to_host"] if emulator else 0
        bs.quantize(there, 8, scheme=scheme, rounding="stochastic", seed=1, layout="rows")  # type: ignore[arg-type]
        assert not emulator or emulator.counts()["to_host"] == before + 1
        with pytest.raises(ValueError, match=r"choose_bits: .*NaN"):
            bs.choose_bits(there * np.float32("nan"))


# -- uploads ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["ordinary", "staging", "memmap", "mixed"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_batches(kind: str, slots: int, tmp_path: Path) -> None:
    cupy = cp()
    count, sums = 7, []
    batches = [RNG.integers(0, 1 << 31, 5000 + 700 * number).astype(np.int32) for number in range(count)]
    ends = [RNG.normal(size=(number, 3)).astype(np.float32) for number in range(count)]
    up = interop.Uploader("cuda", slots=slots, chunk_bytes=4096)
    held: list[uploads.Upload] = []

    def send(number: int) -> None:
        source: Any = batches[number]
        if kind == "staging":
            source = up.staging(source.nbytes)
            source[...] = batches[number].view(np.uint8)
        elif kind == "memmap":
            source = np.memmap(tmp_path / f"{number}", np.int32, "w+", shape=source.shape)
            source[...] = batches[number]
        elif kind == "mixed" and number % 2:
            source = interop.pinned_empty(source.shape, np.int32)
            source[...] = batches[number]
        held.append(up.upload(source, ends[number]))
        if kind == "ordinary":
            assert held[-1].offsets[1] % 128 == 0

    with up:
        for number in range(min(slots, count)):
            send(number)
        for number in range(count):
            batch = held[number]
            assert batch.slot == number % slots
            with batch as buffer:
                assert buffer.nbytes == batch.nbytes
                there = interop.view(buffer, batch.offsets[0], batches[number].shape, np.int32)
                end = interop.view(buffer, batch.offsets[1], (number, 3), np.float32)
                sums.append((there.copy(), end.copy()))
            if number + slots < count:
                send(number + slots)
        moved = up.moved
    assert moved == sum(b.nbytes + e.nbytes for b, e in zip(batches, ends, strict=True))
    for (there, end), batch, last in zip(sums, batches, ends, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(there), batch)
        np.testing.assert_array_equal(cupy.asnumpy(end), last)


def test_addresses_stay_below_the_capacity() -> None:
    with interop.Uploader("cuda", capacity=4096, timed=True) as up:
        seen = set()
        for size in (100, 4096, 0, 17):
            batch = up.upload(LARGE[:size])
            seen.add((batch.slot, batch.wait().data.ptr if size else None))
            batch.release()
            assert batch.ms is not None
            assert batch.done()
        assert up.grown == 0
        assert len({address for _, address in seen} - {None}) == 2
        up.upload(LARGE[:5000]).release()
        assert up.grown == 1


def test_staging_waits_for_what_travels_and_takes_back_what_was_dropped() -> None:
    with interop.Uploader("cuda", slots=1) as up:
        first, second = up.staging(1000), up.staging(2000)
        addresses = {first.ctypes.data, second.ctypes.data}
        del first  # dropped without being uploaded
        third = up.staging(900)
        assert third.ctypes.data in addresses
        third[...] = 7
        sent = up.upload(third[:10])
        sent.release()
        again = up.staging(900)  # waits until the copy is complete
        assert again.ctypes.data == third.ctypes.data
        again[...] = 9
        del again
        larger = up.staging(5000)  # replaces a buffer that is too small
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(up.staging(10)))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        np.testing.assert_array_equal(sent.buffer[:10].get(), 7)
        up.upload(larger).release()
        waiting.join(10)
        assert got[0].nbytes == 10
        del second


def test_uploads_that_cannot_be() -> None:
    up = interop.Uploader("cuda", slots=1)
    with pytest.raises(bs.DTypeError, match=r"upload: source 1 is a list"):
        up.upload(LARGE[:4], [1, 2])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"source 0 of shape \(2, 2\) has strides .*ascontiguousarray"):
        up.upload(np.ones((2, 2)).T)
    held = up.upload(LARGE[:4])
    with pytest.raises(
        bs.DeviceError, match=r"batch of 8 bytes came, but none of its 1 slots was released; call release"
    ):
        up.upload(LARGE[:8])
    held.release()
    held.release()
    with pytest.raises(bs.DeviceError, match="released already"):
        held.wait()
    up.upload(LARGE[:8]).release()
    up.close()
    with pytest.raises(bs.DeviceError, match="it is closed; make another"):
        up.upload(LARGE[:8])
    with pytest.raises(ValueError, match="slots=0"):
        interop.Uploader("cuda", slots=0)
    with pytest.raises(bs.DTypeError, match="Uploader: stream must be"):
        interop.Uploader("cuda", stream="fast")


def test_the_slot_is_overwritten_after_the_work_that_reads_it() -> None:
    """The copy stream must wait for the event recorded at release, on whatever stream that was."""
    cupy = cp()
    worker = cupy.cuda.Stream(non_blocking=True)
    waited: list[Any] = []
    with interop.Uploader("cuda", slots=1) as up:
        batch = up.upload(LARGE[:64])
        batch.wait(worker)
        batch.release(worker)
        free = up._slots[0].free
        original = type(up._stream).wait_event
        up._stream.wait_event = lambda event: (waited.append(event), original(up._stream, event))
        up.upload(LARGE[:64]).release()
    assert waited[0] is free


# -- downloads --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("slots", [1, 3])
def test_results_come_home(slots: int, tmp_path: Path) -> None:
    cupy = cp()
    results = [RNG.normal(size=(number * 40, 5)).astype(np.float32) for number in range(6)]
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(sum(len(r) for r in results), 5))
    place, one = 0, cupy.empty((200, 5), np.float32)
    with interop.Downloader("cuda", slots=slots) as down:
        made = []
        for result in results:
            part = one[: len(result)]
            part[...] = cupy.asarray(result)
            made.append(down.download(part, out[place : place + len(result)]))
            made[-1].hold()
            place += len(result)
            part[...] = -1  # overwritten as by the next result, which must wait
        assert made[-1].wait() is made[-1].wait()
    np.testing.assert_array_equal(out, np.concatenate(results))


def test_downloads_that_cannot_be() -> None:
    cupy = cp()
    down = interop.Downloader("cuda")
    with pytest.raises(bs.ShapeError, match=r"shape \(3,\) and dtype float32, but out \(3,\) and float64"):
        down.download(cupy.zeros(3, np.float32), np.zeros(3))
    with pytest.raises(ValueError, match="contiguous memory"):
        down.download(cupy.zeros((3, 2)).T, np.zeros((2, 3)))
    with pytest.raises(ValueError, match="slots=0"):
        interop.Downloader("cuda", slots=0)


# -- batches of subgraphs ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("features", ["none", "floats", "tensor", "col"])
def test_a_batch_moves_in_one_copy(features: str) -> None:
    a = sp.random(90, 90, 0.1, "csr", random_state=0)
    labels = RNG.integers(0, 4, 90)
    x: Any = RNG.normal(size=(90, 33)).astype(np.float32)
    given = {"none": None, "floats": x}.get(features)
    if given is None and features != "none":
        given = bs.quantize(x, 4, granularity=features)  # type: ignore[arg-type]
    with interop.Uploader("cuda") as up:
        for here in graph.batch(a, labels, given, parts_per_batch=2):
            before = copies()
            there = here.to_device("cuda")
            assert before is None or copies() == before + 1
            sent = up.upload(here.buffer)
            with sent as buffer:
                compare(here.placed(buffer), here)
            compare(there, here)
            assert (there.device, here.device) == ("cuda:0", "cpu")
            compare(there, there.to_device("cpu"))
            assert there.to_device("cuda") is there
            compare(here.to_device("cuda", stream=cp().cuda.get_current_stream()), here)


def copies() -> int | None:
    """Return the number of copies to the device so far, or None on a real device."""
    emulator = sys.modules.get("emulator")
    return None if emulator is None else emulator.counts()["to_device"]


def compare(there: Any, here: Any) -> None:
    assert there.adjacency.device == "cuda:0"
    np.testing.assert_array_equal(there.adjacency.words.get(), here.adjacency.words)
    np.testing.assert_array_equal(there.tile_bitmap.get(), here.tile_bitmap)
    assert (there.edges, there.dropped, there.nbytes) == (here.edges, here.dropped, here.nbytes)
    if here.features is None:
        assert there.features is None
    elif isinstance(here.features, bs.BitTensor):
        assert there.features.words.data.ptr - there.buffer.data.ptr == there.sections["features"][0]
        got = there.features.get()
        assert got.words.tobytes() == here.features.words.tobytes()
        np.testing.assert_array_equal(got.scale, here.features.scale)
        np.testing.assert_array_equal(got.offset, here.features.offset)
    else:
        np.testing.assert_array_equal(there.features.get(), here.features)
