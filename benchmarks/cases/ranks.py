"""Ranks of ``torchrun`` as suite ``scale`` has them: their communicator and devices, and the times of what all of them call together."""

from __future__ import annotations

import atexit
import gc
import math
import os
import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu_timing import torch_module
from bitsparse import distributed, interop
from bitsparse._communicator import together
from bitsparse.bench import Prepared, Protocol

#: Repetitions, and those of a first impression: the same on every rank.
REPETITIONS, QUICK = 9, 3
#: Milliseconds that a row of calls lasts at least, and the most calls in one.
SAMPLE_MS, _MOST_CALLS = 20.0, 100


@cache
def communicator() -> Any:
    """That of torchrun's ranks, or of this process alone."""
    if "RANK" not in os.environ:
        return next(iter(distributed.local(1)))
    torch = torch_module()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        # While Python still runs: a thread of the group that meets a Python already ending aborts the process.
        atexit.register(_end)
    return distributed.from_torch(torch.distributed.group.WORLD)


def _end() -> None:
    gc.collect()  # the end of NCCL waits for the graphs in which its exchanges are recorded
    torch_module().distributed.destroy_process_group()


@cache
def device() -> str:
    """The GPU of this rank, or the CPU."""
    torch = torch_module()
    if not torch.cuda.is_available():
        return "cpu"
    place = f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"
    torch.cuda.set_device(place)
    interop.require_cupy("suite scale").cuda.Device(int(place[5:])).use()
    return place


def together_ms(call: Callable[[], object], repetitions: int) -> float:
    """Milliseconds of a call that all ranks make together, from idle devices to idle devices: of the slowest rank, the median.

    Calls are made in rows that last `SAMPLE_MS` at least, as ranks do not come out of a barrier at the same time.
    """
    comm, samples, calls = communicator(), [], 1
    for number in range(repetitions + 2):
        _finish()
        comm.barrier()
        taken = np.array([_row_ms(call, calls)])
        comm.all_reduce(taken, "max")
        if number == 1:
            calls = _calls(float(taken[0]))
        if number >= 2:
            samples.append(float(taken[0]) / calls)
    return median(samples)


def alone_ms(call: Callable[[], Callable[[], object]], repetitions: int) -> float:
    """Milliseconds of what the first rank does alone, made ready there alone; the others wait for it and learn the figure."""
    comm, found = communicator(), np.zeros(1)
    with together(comm, "suite scale"):
        if comm.rank == 0:
            made = call()
            _row_ms(made, 1)
            calls = _calls(_row_ms(made, 1))
            found[0] = median(_row_ms(made, calls) / calls for _ in range(repetitions))
    comm.all_reduce(found, "max")
    return float(found[0])


def _row_ms(call: Callable[[], object], calls: int) -> float:
    """Milliseconds of so many calls, until this rank's device is idle again."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    _finish()
    return 1e3 * (time.perf_counter() - begin)


def _calls(once_ms: float) -> int:
    """How many calls make a row, by how long one takes.

    >>> _calls(3.0), _calls(400.0), _calls(0.0)
    (7, 1, 100)
    """
    return min(_MOST_CALLS, math.ceil(SAMPLE_MS / max(once_ms, 1e-3)))


def _finish() -> None:
    if device() != "cpu":
        interop.require_cupy("suite scale").cuda.Device().synchronize()


def prepared(
    ours: Callable[[], object],
    peer: Callable[[int], float] | None,
    peer_name: str | None,
    size: int,
    **params: Any,
) -> Prepared:
    """A case whose sides are timed by all ranks: `peer` gives milliseconds for a number of repetitions."""
    comm = communicator()

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        count = QUICK if protocol == Protocol.quick() else REPETITIONS
        return together_ms(ours, count), None if peer is None else peer(count)

    told = {"ranks": comm.size, "engine": comm.engine, "device": device().partition(":")[0]} | params
    if settings := {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}:
        told["settings"] = settings
    return Prepared(ours, None, peer_name, told, size, measure=measure)


def space() -> Any:
    """NumPy or CuPy."""
    return np if device() == "cpu" else interop.require_cupy("suite scale")
