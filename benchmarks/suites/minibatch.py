"""Suite ``minibatch``: epochs on batches of sampled neighbours, on a GPU and on the CPU.

``minibatch-{cpu|cuda}-sage-{graph}`` is an epoch of GraphSAGE, three layers with 256 columns between them, over 4 batches (32 on large
synthetic graphs) of 1024 targets with at most 15, 10 and 5 neighbours. Ours samples on the CPU in ``--threads`` threads, and keeps features
at 8 bits in host memory; ``params.loader_ms`` is the time of its batches alone. The peer is PyTorch Geometric with ``NeighborLoader`` and
float32. Its number of worker processes is none, half the threads, or all threads but one, whichever is fastest. It needs pyg-lib or
torch-sparse; without them there is no peer, and ``params.peer_missing`` says so. The two draw different neighbours, so losses are not
compared. Whole epochs are timed by the clock, in turns.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from benchmarks import gpu_timing
from benchmarks.cases.products import SYNTHETIC
from benchmarks.suites import training
from bitsparse import jit
from bitsparse.bench import Case, Prepared

__all__ = ["cases", "machine"]

#: Graphs of the epochs on both devices.
GRAPHS = ("pubmed", "artist")

machine = training.machine


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    return [
        Case(f"minibatch-{device}-sage-{name}", partial(minibatch, name, threads, device))
        for device in ("cpu", "cuda")
        for name in (*GRAPHS, *(SYNTHETIC if device == "cuda" else ()))
    ]


def minibatch(name: str, threads: int, device: str) -> Prepared:
    """An epoch on batches of sampled neighbours."""
    gpu_timing.torch_module()
    if device != "cpu":
        jit.require_cupy("suite minibatch")
    # Imported only here, so that cases can be listed without PyTorch.
    batches: Any = importlib.import_module("benchmarks.cases.minibatch")
    made: Prepared = batches.epoch(name, threads, device)
    return made
