"""The ranks of ``torchrun`` in suite ``scale``: their communicator and devices, and timing of calls that all ranks make together."""

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

#: Repetitions, and those with ``--quick``; all ranks must use the same number.
REPETITIONS, QUICK = 9, 3
#: The least milliseconds for which a row of calls lasts, and the most calls in a row.
SAMPLE_MS, _MOST_CALLS = 20.0, 100


@cache
def communicator() -> Any:
    """The communicator of torchrun's ranks, or of this process alone."""
    if "RANK" not in os.environ:
        return next(iter(distributed.local(1)))
    torch = torch_module()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        # End the group while Python still runs: its threads abort the process if they outlive Python.
        atexit.register(_end)
    return distributed.from_torch(torch.distributed.group.WORLD)


def _end() -> None:
    gc.collect()  # NCCL's end waits for graphs that recorded its exchanges
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
    """Milliseconds of a call that all ranks make together, from idle devices to idle devices: the median of the slowest rank's times.

    Each sample is a row of calls that lasts at least `SAMPLE_MS`, because ranks do not leave a barrier at the same time.
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
    """Milliseconds of a call that only the first rank prepares and makes; the other ranks wait and receive the time."""
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
    """Milliseconds of `calls` calls in a row, until this rank's device is idle again."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    _finish()
    return 1e3 * (time.perf_counter() - begin)


def _calls(once_ms: float) -> int:
    """The number of calls in a row if one takes `once_ms` milliseconds.

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
    """A case whose sides all ranks time together: ``peer(repetitions)`` returns milliseconds."""
    comm = communicator()

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        count = QUICK if protocol == Protocol.quick() else REPETITIONS
        return together_ms(ours, count), None if peer is None else peer(count)

    told = {"ranks": comm.size, "engine": comm.engine, "device": device().partition(":")[0]} | params
    if settings := {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}:
        told["settings"] = settings
    return Prepared(ours, None, peer_name, told, size, measure=measure)


def space() -> Any:
    """The array library of this rank's device: NumPy or CuPy."""
    return np if device() == "cpu" else interop.require_cupy("suite scale")
