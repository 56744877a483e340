"""``bitsparse info``: versions, instruction sets, threads, devices."""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
from typing import Any

import numpy as np

from bitsparse.backends import host

__all__ = ["add_parser"]

#: Packages that some function uses, with the names of their distributions.
_OPTIONAL = {
    "pymetis": ("pymetis",),
    "scikit-learn": ("scikit-learn",),
    "matplotlib": ("matplotlib",),
    "tqdm": ("tqdm",),
    "ml_dtypes": ("ml_dtypes",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "torch": ("torch",),
    "jax": ("jax",),
}


def add_parser(commands: Any) -> None:
    """Declare the command."""
    info = commands.add_parser(
        "info", help="versions, instruction sets, threads, devices", description="What bitsparse runs on."
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_info)


def _info(args: argparse.Namespace) -> None:
    facts = _facts()
    if args.json:
        print(json.dumps(facts))
        return
    optional = ", ".join(f"{name} {version or '-'}" for name, version in facts.pop("optional").items())
    for name, value in (*facts.items(), ("optional", optional)):
        print(f"{name:<14}{', '.join(value) if isinstance(value, list) else value}")


def _facts() -> dict[str, Any]:
    from importlib.metadata import version

    import scipy

    from bitsparse._ext import bits as compiled

    return {
        "bitsparse": version("bitsparse"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "platform": platform.platform(),
        "simd": host.simd_level(),
        "simd_levels": list(host.simd_levels()),
        "openmp": bool(compiled.has_openmp()),
        "threads": host.get_num_threads(),
        "devices": ["cpu"],
        "optional": {name: _version(names) for name, names in _OPTIONAL.items()},
    }


def _version(distributions: tuple[str, ...]) -> str | None:
    """Installed version, read without importing the package."""
    from importlib.metadata import PackageNotFoundError, version

    for name in distributions:
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return None
