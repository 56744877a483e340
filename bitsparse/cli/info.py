"""``bitsparse info``: shows versions, instruction sets, threads and devices."""

from __future__ import annotations

import argparse
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse._ext import bits as compiled
from bitsparse.backends import host
from bitsparse.bench.records import installed_version
from bitsparse.cli.common import add_json, emit
from bitsparse.errors import BitsparseError

#: Optional packages that some functions use. CuPy is installed under one of the distribution names in ``_CUPY``.
_OPTIONAL = ("pymetis", "scikit-learn", "matplotlib", "tqdm", "ml_dtypes", "cupy", "torch", "jax")
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


DESCRIPTION = "What bitsparse runs on."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    facts = _facts()
    emit(args, facts, lambda: _report(facts))


def _report(facts: dict[str, Any]) -> str:
    optional = ", ".join(f"{name} {version or '-'}" for name, version in facts.pop("optional").items())
    gpu = _gpu_lines(facts.pop("gpu"))
    lines = (*facts.items(), *gpu, ("optional", optional))
    return "\n".join(f"{name:<14}{', '.join(value) if isinstance(value, list) else value}" for name, value in lines)


def _facts() -> dict[str, Any]:
    import scipy

    gpu = _gpu()
    return {
        "bitsparse": installed_version("bitsparse"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "platform": platform.platform(),
        "simd": host.simd_level(),
        "simd_levels": list(host.simd_levels()),
        "openmp": bool(compiled.has_openmp()),
        "threads": host.get_num_threads(),
        "devices": ["cpu", *(f"cuda:{i}" for i in range(len(gpu["devices"])))],
        "gpu": gpu,
        "optional": {name: installed_version(*(_CUPY if name == "cupy" else (name,))) for name in _OPTIONAL},
    }


def _gpu() -> dict[str, Any]:
    """The GPUs, the versions of the software that they need, and one sentence for each thing that is missing."""
    found: dict[str, Any] = {"devices": [], "cupy": None, "nvrtc": None, "cuda": None, "driver": _driver()}
    missing: list[str] = []
    cubins = list(jit.cache_dir().glob("*/*.cubin"))
    found |= {"missing": missing, "cache": str(jit.cache_dir()), "cubins": len(cubins)}
    with _noting(missing):
        cupy = jit.require_cupy("info")
        found["cupy"] = cupy.__version__
        with _noting(missing):
            found["nvrtc"] = ".".join(map(str, jit.nvrtc_version()))
        jit.capability()
        version = cupy.cuda.runtime.driverGetVersion()
        found["cuda"] = f"{version // 1000}.{version % 1000 // 10}"
        found["devices"] = [_device(cupy, i) for i in range(cupy.cuda.runtime.getDeviceCount())]
    return found


@contextmanager
def _noting(missing: list[str]) -> Iterator[None]:
    """Append an error to `missing` as one line, without the function name at its front."""
    try:
        yield
    except (BitsparseError, RuntimeError) as error:  # ours, or CUDA's own
        line = " ".join(str(error).split())
        missing.append(line.partition(": ")[2] or line)


def _device(cupy: Any, number: int) -> dict[str, Any]:
    chip = jit.capability(number)
    memory = int(cupy.cuda.runtime.getDeviceProperties(number)["totalGlobalMem"])
    return {
        "name": chip.name,
        "compute_capability": f"{chip.major}.{chip.minor}",
        "arch": chip.arch,
        "multiprocessors": chip.multiprocessors,
        "memory_bytes": memory,
    }


def _driver() -> str | None:
    """The version of NVIDIA's kernel driver, None if there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return version[0] if version else None


def _gpu_lines(gpu: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("gpu", f"{one['name']}, compute capability {one['compute_capability']}, {one['memory_bytes'] / 2**30:.0f} GiB")
        for one in gpu["devices"]
    ]
    lines += [("gpu", f"missing: {sentence}") for sentence in gpu["missing"]]
    parts = {"CuPy": gpu["cupy"], "NVRTC": gpu["nvrtc"], "driver": gpu["driver"], "for CUDA": gpu["cuda"]}
    if gpu["cupy"]:
        lines.append(("cuda", ", ".join(f"{name} {version or '-'}" for name, version in parts.items())))
    return [*lines, ("cubins", f"{gpu['cubins']} in {gpu['cache']}")]
