"""Benchmark records: one JSON object a line, the same fields in every suite."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Machine", "Record", "cpu_name", "git_commit"]


@dataclass(frozen=True)
class Machine:
    """Where the numbers were taken; GPU fields are ``None`` for a suite that runs on the CPU."""

    device: str
    threads: int
    commit: str | None
    gpu: str | None = None
    driver: str | None = None
    cuda: str | None = None


@dataclass(frozen=True)
class Record:
    """One measured case.

    Attributes
    ----------
    suite, case : str
        Names, as the command line takes them.
    params : dict
        Sizes, options and everything else one needs to repeat the measurement.
    ours_ms, peer_ms : float
        Median milliseconds of one call, measured in turns; ``peer_ms`` is ``None`` without a peer.
    peer : str or None
        What it is compared with.
    ratio : float or None
        ``peer_ms / ours_ms``: above 1 ours is faster.
    floor_ms : float or None
        The time no implementation could beat at the rates that ``params["floor"]`` states.
    bytes : int
        Bytes of operands and result that one call of ours has to touch.
    device, gpu, driver, cuda, threads, commit
        See :class:`Machine`.

    Examples
    --------
    >>> here = Machine(device="cpu", threads=2, commit=None)
    >>> record = Record.measured("host", "pack", {"m": 4}, 1.0, "numpy.copyto", 2.0, 0.5, 32, here)
    >>> record.ratio, record.to_json()[:40]
    (2.0, '{"suite": "host", "case": "pack", "param')
    """

    suite: str
    case: str
    params: dict[str, Any]
    ours_ms: float
    peer: str | None
    peer_ms: float | None
    ratio: float | None
    floor_ms: float | None
    bytes: int
    device: str
    gpu: str | None
    driver: str | None
    cuda: str | None
    threads: int
    commit: str | None

    @classmethod
    def measured(
        cls,
        suite: str,
        case: str,
        params: dict[str, Any],
        ours_ms: float,
        peer: str | None,
        peer_ms: float | None,
        floor_ms: float | None,
        bytes: int,
        machine: Machine,
    ) -> Record:
        """Make a record from a measurement and the machine it was taken on; the ratio follows."""
        ratio = None if peer_ms is None else peer_ms / ours_ms
        return cls(suite, case, params, ours_ms, peer, peer_ms, ratio, floor_ms, bytes, **asdict(machine))

    def to_json(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(asdict(self))


def cpu_name() -> str:
    """Name of the processor, as the operating system tells it.

    Examples
    --------
    >>> bool(cpu_name())
    True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def git_commit(folder: Path) -> str | None:
    """Short hash of the commit checked out in ``folder`` (``-dirty`` with local changes); ``None`` outside git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() or None
