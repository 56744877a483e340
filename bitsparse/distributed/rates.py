"""The rates of links and devices in one place, and the estimates of time by which an exchange is chosen."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

#: Pairs of an exchange's bytes and the bytes per second that it reaches.
Points = tuple[tuple[float, float], ...]


class Link(NamedTuple):
    """The latency and the rates of an engine between ranks.

    Attributes
    ----------
    latency : float
        Seconds that a small exchange takes.
    gather, pairs : tuple of (bytes, bytes per second)
        The rate at which a rank receives, by the bytes that it receives in all: in an all-gather, and in an exchange in which each rank
        sends different rows to each other rank. Between the points the time is interpolated.
    picked : float
        Bytes per second at which the rows asked for are collected before they are sent.
    """

    latency: float
    gather: Points
    pairs: Points
    picked: float = math.inf


#: "nccl": measured by suite ``scale`` on four H100 of one host, linked all to all (NVLink 4, 18 links, without multicast), from idle to
#: idle devices, with blocks of odd numbers of bytes. Four H200 reached 129, 258 and 314 GB/s in all-gathers of these sizes. Collecting rows
#: reads them with their numbers and writes them; its rate is a round figure. The other engines have round figures that were not measured.
#: Both of their ways have the same rate, so that the way with fewer bytes wins.
LINKS = {
    "nccl": Link(
        65e-6,
        ((16.8e6, 72e9), (134e6, 186e9), (1.07e9, 195e9)),
        ((16.8e6, 73e9), (134e6, 149e9), (1.07e9, 169e9)),
        900e9,
    ),
    "gloo": Link(200e-6, ((1e6, 1e9),), ((1e6, 1e9),)),
    "mpi": Link(20e-6, ((1e6, 2e9),), ((1e6, 2e9),)),
    "local": Link(50e-6, ((1e6, 4e9),), ((1e6, 4e9),)),
}


def carried_seconds(latency: float, points: Points, received: float) -> float:
    """The seconds of an exchange in which each rank receives `received` bytes.

    Examples
    --------
    >>> round(1e3 * carried_seconds(LINKS["nccl"].latency, LINKS["nccl"].gather, 1.07e9), 2)
    5.49
    """
    first, last = points[0], points[-1]
    if received <= first[0]:
        return latency + received * max(first[0] / first[1] - latency, 0) / first[0]
    for (low, slow), (high, fast) in pairwise(points):
        if received <= high:
            share = (received - low) / (high - low)
            return (1 - share) * low / slow + share * high / fast
    return received / last[1]


def exchange_seconds(engine: str, method: str, received: float) -> float:
    """The seconds of an exchange that receives `received` bytes. Unknown engines count as gloo.

    Examples
    --------
    >>> exchange_seconds("gloo", "halo", 1e6) == exchange_seconds("gloo", "allgather", 1e6)
    True
    """
    link = LINKS.get(engine, LINKS["gloo"])
    if method == "allgather":
        return carried_seconds(link.latency, link.gather, received)
    return carried_seconds(link.latency, link.pairs, received) + received / link.picked


class Sums(NamedTuple):
    """The rates of a device that sums rows.

    Attributes
    ----------
    entries : float
        The most rows per second that are added, however short they are.
    gathered : float
        The most bytes per second of the added rows.
    copied : float
        Bytes per second, read and written, of moving rows to another place.
    call : float
        Seconds that a second call and waiting for the exchange cost.
    """

    entries: float
    gathered: float
    copied: float
    call: float


#: "cuda": on an H200 a binary layer of 1.6 G entries took 39.6 ms, and products of 124 M entries with rows of 128 bytes took 3.5 ms.
#: `copied` is from four H100: overlapping cost 0.66 ms (sums of 8 bits) and 0.8 ms (float32) more than it saved if 0.57 M rows of 512 bytes
#: were outer ones, which is three times 0.29 GB. `call` is a round figure. "cpu": two cores of a shared server with AVX-512 added
#: 100 M entries/s of 16 bytes and gathered 3 GB/s (codes) to 10 GB/s (floats); NumPy moved rows at 7 to 12 GB/s.
SUMS = {
    "cuda": Sums(41e9, 4.5e12, 1.3e12, 30e-6),
    "cpu": Sums(1e8, 8e9, 8e9, 100e-6),
}
