"""Shared set-up: it chooses the bitsparse to test, the graphs to use, and the tests that can run on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# ``python -m pytest`` puts the source root first on sys.path, where bitsparse/ has no compiled part. Drop it, so that
# the installed package is the one under test; an in-place build (a compiled part in the tree) stays visible.
if not any((ROOT / "bitsparse" / "_ext" / f"bits{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]

# By default, JAX takes three quarters of a GPU's memory when it starts, which leaves too little for tests that run beside it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Runs are reproducible, and no test fails for being slow.
hypothesis.settings.register_profile(
    "bitsparse",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("bitsparse")


# ---- real graphs
def _find_data() -> tuple[Path | None, str]:
    named = os.environ.get("BITSPARSE_DATA")
    if named:
        if not Path(named).is_dir():
            raise pytest.UsageError(f"BITSPARSE_DATA names {named!r}, which is not a folder")
        return Path(named), f"{named} (from BITSPARSE_DATA)"
    beside = ROOT.parent / "shared" / "data"
    if beside.is_dir():
        return beside, f"{beside} (beside the checkout)"
    return None, "seeded synthetic graphs (set BITSPARSE_DATA to a folder of NAME.npz to use real ones)"


DATA, DATA_SAYS = _find_data()


# ---- what can run here
def _gpu_present() -> bool:
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    return bool(cupy.cuda.is_available())


def _hopper_present() -> bool:
    from bitsparse import jit

    return jit.capability().has_wgmma


def _available() -> dict[str, bool]:
    gpu = _gpu_present()
    return {
        "gpu": gpu,
        "hopper": gpu and _hopper_present(),
        "cora": DATA is not None and (DATA / "cora.npz").is_file(),
        "pubmed": DATA is not None and (DATA / "pubmed.npz").is_file(),
        "mpi": importlib.util.find_spec("mpi4py") is not None and shutil.which("mpiexec") is not None,
        "safetensors": importlib.util.find_spec("safetensors") is not None,
        "torch": importlib.util.find_spec("torch") is not None,
        "jax": importlib.util.find_spec("jax") is not None,
        "tensorflow": importlib.util.find_spec("tensorflow") is not None,
        "paddle": importlib.util.find_spec("paddle") is not None,
        "flax": all(importlib.util.find_spec(name) is not None for name in ("jax", "flax", "equinox")),
        "pyg": all(importlib.util.find_spec(name) is not None for name in ("torch", "torch_geometric")),
    }


AVAILABLE = _available()

# The emulator's own tests need it installed before anything imports CuPy: python -m pytest -p emulator.plugin tests/emulator
collect_ignore = [] if "emulator.plugin" in sys.modules else ["emulator"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect (and so count) tests whose hardware or library is absent. Nothing is ever skipped."""
    kept, dropped = [], []
    for item in items:
        missing = [name for name, there in AVAILABLE.items() if not there and item.get_closest_marker(name)]
        (dropped if missing else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_report_header() -> list[str]:
    import bitsparse

    here = ", ".join(f"{name}: {'yes' if there else 'no'}" for name, there in AVAILABLE.items())
    return [f"bitsparse: {Path(bitsparse.__file__).parent}", f"graphs: {DATA_SAYS}", f"optional: {here}"]


@pytest.fixture(scope="session")
def cora():
    """(adjacency as a scipy CSR pattern, its source): Cora, or a seeded random graph of Cora's size."""
    import numpy as np
    import scipy.sparse as sp

    path = None if DATA is None else DATA / "cora.npz"
    if path is not None and path.is_file():
        with np.load(path, allow_pickle=False) as f:
            n = int(f["num_nodes"])
            indptr, indices = f["indptr"], f["indices"]
        return sp.csr_array((np.ones(indices.size, np.int8), indices, indptr), shape=(n, n)), str(path)
    n, rng = 2708, np.random.default_rng(0)
    weight = (np.arange(n) + 10.0) ** -0.9
    ends = rng.choice(n, size=(2, 5278), p=weight / weight.sum())
    graph = sp.coo_array(
        (np.ones(2 * 5278, np.int8), (np.r_[ends[0], ends[1]], np.r_[ends[1], ends[0]])), shape=(n, n)
    ).tocsr()
    graph.data[:] = 1
    return graph, "synthetic"


# ---- the host backend's two switches
@pytest.fixture
def host() -> Iterator[object]:
    """The host backend; its thread count and instruction set are restored after the test."""
    from bitsparse.backends import host as backend

    threads, level = backend.get_num_threads(), backend.simd_level()
    yield backend
    backend.set_num_threads(threads)
    backend.set_simd(level)
