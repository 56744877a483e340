"""Cases of suite ``sampled``: transfer of 8-bit packed features to the GPU, against that of float32 features.

- ``transfer-{pageable|pinned}-{name}``: the time from the call of ``BitTensor.to_device("cuda")`` to the arrival of the last byte, by the
  host's clock, against the same for float32 through ``torch.Tensor.to``. Both come from ordinary memory, or both from page-locked memory
  (PyTorch's copy is then ``non_blocking``). Quantising and page-locking are not timed. ``params.ours_f32_ms`` is float32 through our own
  copy, and ``params.cupy_f32_ms`` through ``cupy.asarray``. ``estimate_ms`` is the time of the bytes at the rate of one large page-locked
  copy in the same run (``params.link_gbs``), and ``floor_ms`` that at the rate of PCIe 5 with 16 lanes.
- ``overlap-{name}``: batches of packed features go through :class:`bitsparse.interop.Uploader` while the device works on the previous
  batch, a product that takes about as long as the copy. The time is that of all batches; the peer alternates one copy and one product.
  ``params.copies_ms`` and ``params.work_ms`` are the times of the copies and of the products alone. Perfect overlap would take the longer
  of these; ``params.hidden`` is that time divided by ours.
- The words on the device are compared with those on the host before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, lru_cache, partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.ceilings import LINK_PEAK
from benchmarks.gpu_timing import torch_module
from bitsparse import interop, jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["cases"]

#: Features of graphs, by nodes and columns: arxiv, reddit, products.
SIZES = {"arxiv-128": (169_343, 128), "reddit-602": (232_965, 602), "products-100": (2_449_029, 100)}
BATCHES = 16


def cases() -> list[Case]:
    """Transfers from both kinds of memory for every size, and overlap of batches with work."""
    found = [
        Case(f"transfer-{kind}-{name}", partial(transfer, name, kind == "pinned"))
        for name in SIZES
        for kind in ("pageable", "pinned")
    ]
    return [*found, *(Case(f"overlap-{name}", partial(overlap, name)) for name in ("arxiv-128", "reddit-602"))]


@cache
def link_rate() -> float:
    """Bytes per second of a page-locked copy of 256 MB."""
    cupy = jit.require_cupy("suite sampled")
    source, to = interop.pinned_empty(256 << 20), cupy.empty(256 << 20, np.uint8)
    source[...] = 1

    def copy() -> None:
        stream = cupy.cuda.get_current_stream()
        kind = cupy.cuda.runtime.memcpyHostToDevice
        cupy.cuda.runtime.memcpyAsync(to.data.ptr, source.ctypes.data, source.nbytes, kind, stream.ptr)

    return float(source.nbytes / (walls([copy], 9)[0] / 1e3))


def walls(functions: list[Callable[[], Any]], repetitions: int) -> list[float]:
    """Median wall-clock milliseconds of each function, including its work on the device, measured in turns."""
    cupy = jit.require_cupy("suite sampled")
    samples: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repetitions):
        for function, into in zip(functions, samples, strict=True):
            cupy.cuda.runtime.deviceSynchronize()
            start = time.perf_counter()
            made = function()
            cupy.cuda.runtime.deviceSynchronize()
            into.append(1e3 * (time.perf_counter() - start))
            del made
    return [median(sample) for sample in samples]


@lru_cache(maxsize=1)
def ordinary(name: str) -> tuple[Any, Any]:
    """Float32 features, and the same features in 8 bits, in ordinary memory."""
    import bitsparse as bs

    x = np.random.default_rng(0).standard_normal(SIZES[name], dtype=np.float32)
    return x, bs.quantize(x, 8, layout="rows")


def features(name: str, pinned: bool) -> tuple[Any, Any]:
    """The same features, both in ordinary or both in page-locked memory."""
    import bitsparse as bs

    x, q = ordinary(name)
    if pinned:
        wide, narrow = interop.pinned_empty(x.shape, np.float32), interop.pinned_empty(q.words.shape, np.uint32)
        wide[...], narrow[...] = x, q.words
        x = wide
        q = bs.BitTensor.from_words(narrow, q.shape, 8, layout="rows", scale=q.scale, offset=q.offset)
    return x, q


def transfer(name: str, pinned: bool) -> Prepared:
    """The transfer of one array, packed and as float32."""
    cupy, torch = jit.require_cupy("suite sampled"), torch_module()
    x, q = features(name, pinned)
    there = q.to_device("cuda")
    if not np.array_equal(there.words.get(), q.words):
        raise AssertionError("transfer: the words differ")
    del there
    stream = cupy.cuda.Stream(non_blocking=True)
    tensor = torch.from_numpy(x)
    if pinned and not tensor.is_pinned():
        raise AssertionError("transfer: PyTorch does not see that the memory is page-locked")
    theirs = partial(tensor.to, "cuda", non_blocking=pinned)
    sides = {
        "ours": partial(q.to_device, "cuda", stream=stream if pinned else None),
        "peer": theirs,
        "ours_f32_ms": partial(interop.to_gpu, x, "cuda:0", later=pinned),
        "cupy_f32_ms": partial(cupy.asarray, x),
    }
    params: dict[str, Any] = {
        "shape": list(x.shape),
        "bits": 8,
        "pinned": pinned,
        "link_gbs": link_rate() / 1e9,
        "bytes_share": q.nbytes / x.nbytes,
        "wall": True,
    }

    def measure(protocol: Protocol) -> tuple[float, float]:
        times = dict(zip(sides, walls(list(sides.values()), min(9, protocol.repetitions)), strict=True))
        params.update({key: times[key] for key in ("ours_f32_ms", "cupy_f32_ms")})
        return times["ours"], times["peer"]

    limits = 1e3 * q.nbytes / LINK_PEAK, 1e3 * q.nbytes / link_rate()
    peer_name = f"torch {torch.__version__} Tensor.to of float32"
    return Prepared(lambda: None, None, peer_name, params, q.nbytes, *limits, measure=measure)


def overlap(name: str) -> Prepared:
    """Batches through an uploader, overlapped with products that take about the same time."""
    cupy, torch = jit.require_cupy("suite sampled"), torch_module()
    _, q = features(name, False)
    parts = np.array_split(q.words.reshape(-1), BATCHES)
    size = max(part.nbytes for part in parts)
    side = torch.ones((4096, 4096), device="cuda", dtype=torch.bfloat16)
    result = torch.empty_like(side)
    up = interop.Uploader("cuda", capacity=size)
    got = [cupy.empty(part.nbytes, np.uint8) for part in parts]

    def copies() -> None:
        for part in parts:
            up.upload(part).release()

    stream = cupy.cuda.Stream(non_blocking=True)

    def work(times: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            for _ in range(times):
                torch.mm(side, side, out=result)

    each = max(1, round(walls([copies], 5)[0] / BATCHES / max(1e-3, walls([partial(work, 10)], 5)[0] / 10)))

    def together(keep: bool = False) -> None:
        waiting = up.upload(parts[0])
        for number in range(BATCHES):
            following = up.upload(parts[number + 1]) if number + 1 < BATCHES else None
            with stream, waiting as buffer:
                if keep:
                    got[number][...] = buffer
                work(each)
            if following is not None:
                waiting = following

    def one_by_one() -> None:
        for part in parts:
            with stream, up.upload(part):
                work(each)
            cupy.cuda.runtime.deviceSynchronize()

    together(keep=True)
    for part, there in zip(parts, got, strict=True):
        if not np.array_equal(there.get(), part.view(np.uint8)):
            raise AssertionError("overlap: a batch differs")
    params: dict[str, Any] = {"batches": BATCHES, "products": each, "link_gbs": link_rate() / 1e9, "wall": True}

    def measure(protocol: Protocol) -> tuple[float, float]:
        sides = [together, one_by_one, copies, lambda: work(each * BATCHES)]
        times = walls(sides, min(9, protocol.repetitions))
        params.update(copies_ms=times[2], work_ms=times[3], hidden=max(times[2:]) / times[0])
        return times[0], times[1]

    limits = 1e3 * q.nbytes / LINK_PEAK, 1e3 * q.nbytes / link_rate()
    return Prepared(lambda: None, None, "one after the other", params, q.nbytes, *limits, measure=measure)
