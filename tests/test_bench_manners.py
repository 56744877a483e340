"""Suite ``manners``: its cases can be prepared, its members are counted, and its bars tell a CPU from a GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitsparse.bench import Protocol

ROOT = Path(__file__).resolve().parent.parent
TINY = Protocol(warmup=1, repetitions=3, seconds=0.1, sample_ms=0.01, pause=0.0)


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


def module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def test_members_are_counted_by_calling_them() -> None:
    members = module("cases.members")
    ready = members.prepared()
    assert ready.measure(TINY) == (None, None)
    table = members.table()
    absent = {one.name for one in table.MEMBERS if one.cpu != table.SAME and members.is_public(one.name)}
    assert set(ready.params["differing"]) == absent
    assert ready.params["members"] == 74
    assert not members.same(table.Member("sum", lambda a: a.sum() + (type(a).__name__ == "TCTiledCSR")), "cpu")


@pytest.mark.parametrize("case", ["short-vector-cora", "short-product-64", "construct-frdc-pubmed", "square-bool-cora"])
def test_cases_are_prepared_and_checked(case: str) -> None:
    (found,) = [one for one in module("cases.manners_cpu").cases() if one.name == case]
    ready = found.prepare()
    assert ready.ours() is not None
    assert ready.peer() is not None


def test_bars_tell_a_cpu_from_a_gpu() -> None:
    here = {"params": {}, "ours_ms": 1.0, "peer_ms": 2.0}
    records = [
        here | {"case": "add-artist", "ratio": 2.0, "gpu": None},
        here | {"case": "add-artist", "ratio": 0.5, "gpu": "one"},
        here | {"case": "members", "ratio": None, "gpu": None, "params": {"share": 0.9}},
    ]
    bars = {bar.title: bar for bar in module("suites.manners_bars").bars(records)}
    assert bars["CPU: everyday calls, SciPy"].cells == {"add-artist": 2.0}
    assert bars["GPU: everyday calls, cupyx"].cells == {"add-artist": 0.5}
    assert bars["CPU: members of csr_array that are the same"].cells == {"members": 0.9}
    assert not bars["GPU: members of csr_array that are the same"].cells


def test_floors_of_a_gpu_are_what_has_to_be_moved() -> None:
    gpu = module("cases.manners_gpu")
    made = type("Made", (), {"nnz": 7, "shape": (3, 9)})
    assert gpu.floor_bytes("slice-2:5", 50, 100, made) == 2 * (7 * 8 + 3 * 4)
    assert gpu.floor_bytes("add", 50, 100, made) == 2 * (100 * 8 + 50 * 4) + 7 * 8 + 3 * 4
    assert gpu.floor_bytes("diagonal", 50, 100, made) == 2000
    assert gpu.floor_bytes("transpose", 50, 100, made) == 2 * (800 + 200)
    bars = module("suites.manners_bars").EVERYDAY
    timed = {case.name for case in gpu.cases()}
    assert {f"{first}{graph}" for first in bars for graph in gpu.GRAPHS} <= timed


@pytest.mark.gpu
def test_calls_of_a_gpu_agree_with_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case must prepare on a small graph, which compares the results of both sides."""
    import cupy
    from cupyx.scipy import sparse

    gpu = module("cases.manners_gpu")
    rng = np.random.default_rng(3)
    dense = (rng.random((90, 90)) < 0.2) * rng.random((90, 90), dtype=np.float32)
    made = sparse.csr_matrix(cupy.asarray(dense.astype(np.float32)))
    monkeypatch.setattr(gpu, "matrix", lambda name: (made, "made up"))
    rows = cupy.asarray(rng.integers(0, 90, 20))
    monkeypatch.setattr(gpu, "some_rows", lambda size: rows)
    for case in gpu.cases():
        if case.name.endswith("artist") and not case.name.startswith(("slice-rows", "slice-columns", "square")):
            ready = case.prepare()
            assert ready.bytes > 0, case.name
