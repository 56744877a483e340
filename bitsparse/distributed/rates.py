"""What links carry: the figures by which an exchange is chosen, in one place, and the time that they promise."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

#: Bytes, and bytes per second in an exchange of so many.
Points = tuple[tuple[float, float], ...]


class Link(NamedTuple):
    """What an engine carries between ranks.

    Attributes
    ----------
    latency : float
        Seconds that a small exchange takes.
    gather, pairs : tuple of (bytes, bytes per second)
        What a rank receives in an exchange of so many bytes in all, when all get the same and when all ranks send to all; in between the
        time is interpolated.
    picked : float
        Bytes per second of rows that are picked out for who asks for them, before they are sent.
    """

    latency: float
    gather: Points
    pairs: Points
    picked: float = math.inf


#: "nccl": four H100 of one host linked all to all (NVLink 4, 18 links, without multicast), as suite ``scale`` measured them, from idle to
#: idle devices, with blocks of odd numbers of bytes; four H200 carried 129, 258 and 314 GB/s in all-gathers of these sizes. Rows that are
#: picked out are read with their numbers and written, a round figure. The other engines have round figures that nobody measured: what
#: counts there is that their two ways have one rate, so that fewer bytes win.
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
    """What an exchange takes in which each rank receives so many bytes.

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


def exchange_seconds(engine: str, method: str, received: float, *, back: bool = False) -> float:
    """What an exchange takes in which a rank receives so many bytes, and sends as many `back`; an engine that is not known counts as gloo.

    Examples
    --------
    >>> exchange_seconds("gloo", "halo", 1e6) == exchange_seconds("gloo", "allgather", 1e6)
    True
    """
    link = LINKS.get(engine, LINKS["gloo"])
    pairs = carried_seconds(link.latency, link.pairs, received)
    gathered = carried_seconds(link.latency, link.gather, received)
    there = gathered if method == "allgather" else pairs + received / link.picked
    return there + pairs if back else there


class Sums(NamedTuple):
    """What a device does while rows travel.

    Attributes
    ----------
    entries : float
        Rows per second that are added at most, however short they are.
    gathered : float
        Bytes per second of these rows.
    copied : float
        Bytes per second that are read and written where rows are put elsewhere.
    call : float
        Seconds that a second call and what waits for the exchange cost.
    """

    entries: float
    gathered: float
    copied: float
    call: float


#: "cuda": an H200, of which a binary layer of 1.6 G entries took 39.6 ms and products of 124 M entries with rows of 128 bytes 3.5 ms.
#: What is put elsewhere: on four H100 overlapping cost 0.66 ms (sums of 8 bits) and 0.8 (float32) more than it saved where 0.57 M rows of
#: 512 bytes were outer ones, three times 0.29 GB; a call is a round figure. "cpu": two cores of a server with AVX-512 that others used as
#: well added 100 M entries/s of 16 bytes and gathered 3 (codes) to 10 GB/s (floats); NumPy put rows elsewhere at 7 to 12 GB/s.
SUMS = {
    "cuda": Sums(41e9, 4.5e12, 1.3e12, 30e-6),
    "cpu": Sums(1e8, 8e9, 8e9, 100e-6),
}
