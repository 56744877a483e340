"""Benchmark records: one JSON object per line, with the same fields in every suite."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse._ext import bits

#: Packages that affect speed and results; records name the versions of those that are installed.
_LIBRARIES = ("bitsparse", "numpy", "scipy", "torch", "torch_geometric")


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def installed_version(*distributions: str) -> str | None:
    """The version of the first installed one of these distributions, read without importing it."""
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def _library_versions() -> dict[str, str]:
    versions = {library: installed_version(library) for library in _LIBRARIES}
    return {"python": platform.python_version()} | {name: text for name, text in versions.items() if text is not None}


@dataclass(frozen=True)
class Machine:
    """Where and when the numbers were measured; GPU fields are ``None`` for a suite that runs on the CPU.

    ``date`` is the day in UTC. ``versions`` are those of the libraries, plus CuPy on a GPU, or the compiler of our C code and NumPy's BLAS
    on a CPU.
    """

    device: str
    gpu: str | None = field(default=None, kw_only=True)
    driver: str | None = field(default=None, kw_only=True)
    cuda: str | None = field(default=None, kw_only=True)
    threads: int
    commit: str | None
    date: str = field(default_factory=_today)
    versions: dict[str, str] = field(default_factory=_library_versions)

    @classmethod
    def of_cpu(cls, threads: int, commit: str | None) -> Machine:
        """Describe this machine for a suite that runs on the CPU."""
        versions = _library_versions() | {"compiler": _compiler(), "blas": _blas()}
        return cls(f"cpu: {cpu_name()}", threads, commit, versions=versions)


@dataclass(frozen=True)
class Record:
    """One measured case.

    Attributes
    ----------
    suite, case : str
        Names, as on the command line.
    params : dict
        Sizes, options and everything else needed to repeat the measurement.
    ours_ms, peer_ms : float or None
        Median milliseconds of one call, measured in turns; ``peer_ms`` is ``None`` without a peer, and both are if nothing was timed.
    peer : str or None
        What our function is compared with.
    ratio : float or None
        ``peer_ms / ours_ms``: if it is above 1, ours is faster.
    floor_ms : float or None
        Lower bound of the time; it follows from the specification of the hardware, never from a measurement.
    estimate_ms : float or None
        The time expected from rates measured on this kind of machine. Caches can make a call faster than that.
    bytes : int
        Bytes of operands and result that one call of ours has to touch.
    machine : Machine
        Where and when it was measured; :meth:`flat` merges its fields with the others.

    Examples
    --------
    >>> here = Machine(device="cpu", threads=2, commit=None)
    >>> record = Record("host", "pack", {"m": 4}, 1.0, "numpy.copyto", 2.0, 32, here, floor_ms=0.5)
    >>> record.ratio, record.to_json()[:40]
    (2.0, '{"suite": "host", "case": "pack", "param')
    """

    suite: str
    case: str
    params: dict[str, Any]
    ours_ms: float | None
    peer: str | None
    peer_ms: float | None
    ratio: float | None = field(init=False)
    floor_ms: float | None = field(default=None, kw_only=True)
    estimate_ms: float | None = field(default=None, kw_only=True)
    bytes: int
    machine: Machine

    def __post_init__(self) -> None:
        ratio = None if self.peer_ms is None or self.ours_ms is None else self.peer_ms / self.ours_ms
        object.__setattr__(self, "ratio", ratio)  # because the record is frozen

    @classmethod
    def counted(cls, suite: str, case: str, params: dict[str, Any], machine: Machine) -> Record:
        """Make a record of a case that was counted and not timed."""
        return cls(suite, case, params, None, None, None, 0, machine)

    def flat(self) -> dict[str, Any]:
        """All fields by name, including those of the machine."""
        fields = asdict(self)
        machine: dict[str, Any] = fields.pop("machine")
        return fields | machine

    def to_json(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(self.flat())


def cpu_name() -> str:
    """Name of the processor, as reported by the operating system.

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


def _compiler() -> str:
    """The compiler that built our C code, from the signature that it left in the library."""
    signed = re.search(rb"GCC: \([^)]*\) [0-9.]+|clang version [0-9.]+", Path(bits.__file__).read_bytes())
    return signed[0].decode("ascii", "replace") if signed else "unknown"


def _blas() -> str:
    """NumPy's BLAS and its version."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def program_commit(root: Path) -> str | None:
    """First twelve digits of the commit in ``BITSPARSE_COMMIT``, else of the commit checked out in ``root``; ``None`` without git there.

    The variable has priority: it names the commit that the package was installed from, while ``root`` may belong to another git
    repository. ``-dirty`` is appended to a checked-out commit if sources have changed since. Records and documents do not count as
    changes, because suites write them.
    """
    named = os.environ.get("BITSPARSE_COMMIT", "").strip()[:12]
    if named or not (root / ".git").exists():
        return named or None
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    written = (":!benchmarks/results", ":!docs", ":!*.md")
    changed = commit and _git(root, "status", "--porcelain", "--untracked-files=no", ".", *written)
    return f"{commit}-dirty" if changed else commit


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
