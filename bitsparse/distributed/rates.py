"""What links carry: the figures by which an exchange is chosen, in one place, and the time that they promise."""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """What an engine carries between ranks.

    Attributes
    ----------
    latency : float
        Seconds that a small exchange takes.
    gather : tuple of (bytes, bytes per second)
        What a rank receives in an all-gather of so many bytes in all; in between the time is interpolated.
    pairs : float
        Bytes per second that a rank receives when all ranks send to all.
    """

    latency: float
    gather: tuple[tuple[float, float], ...]
    pairs: float


#: "nccl": four H200 linked all to all (NVLink 4, 18 links, without multicast), where all-gathers were measured; rows that go to who asks
#: for them were not, and count as the largest all-gather (a copy between two GPUs reached 372 GB/s). Suite ``scale`` on four H100, from
#: idle devices to idle devices, found 27, 115 and 185 GB/s in all-gathers of these sizes, 31, 109 and 157 from all to all. The other
#: engines have round figures that nobody measured: what counts there is that their two ways have one rate, so that fewer bytes win.
LINKS = {
    "nccl": Link(65e-6, ((16e6, 129e9), (128e6, 258e9), (1e9, 314e9)), 314e9),
    "gloo": Link(200e-6, ((1e6, 1e9),), 1e9),
    "mpi": Link(20e-6, ((1e6, 2e9),), 2e9),
    "local": Link(50e-6, ((1e6, 4e9),), 4e9),
}


def gather_seconds(link: Link, received: float) -> float:
    """What an all-gather takes in which each rank receives so many bytes.

    Examples
    --------
    >>> round(1e3 * gather_seconds(LINKS["nccl"], 1e9), 2)
    3.18
    """
    first, last = link.gather[0], link.gather[-1]
    if received <= first[0]:
        return link.latency + received * max(first[0] / first[1] - link.latency, 0) / first[0]
    for (low, slow), (high, fast) in zip(link.gather, link.gather[1:], strict=False):
        if received <= high:
            share = (received - low) / (high - low)
            return (1 - share) * low / slow + share * high / fast
    return received / last[1]


def exchange_seconds(engine: str, method: str, received: float) -> float:
    """What an exchange takes in which a rank receives so many bytes; an engine that is not known counts as gloo.

    Examples
    --------
    >>> exchange_seconds("gloo", "halo", 1e6) == exchange_seconds("gloo", "allgather", 1e6) + 2e-4
    True
    """
    link = LINKS.get(engine, LINKS["gloo"])
    return gather_seconds(link, received) if method == "allgather" else link.latency + received / link.pairs


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
