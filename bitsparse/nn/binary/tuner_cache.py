"""Figures of earlier tuning runs on disk, known by everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse._files import keep, open_plain
from bitsparse.arrays import BitTensor
from bitsparse.nn.binary.archive import parts_of
from bitsparse.nn.binary.candidates import Candidate
from bitsparse.nn.binary.network import BinaryModel
from bitsparse.nn.binary.plan import BinaryPlan
from bitsparse.nn.binary.variants import Setting

__all__ = ["key", "load", "store"]

#: A file of figures is far shorter.
_MOST_BYTES = 1 << 24


def key(
    model: BinaryModel,
    graph: Any,
    x: Any,
    judged: tuple[Any, Any],
    chosen: list[tuple[Setting, ...]] | None,
    plan: BinaryPlan,
) -> str:
    """A name for a run: weights, graph, features, labels, mask, choices, device, version."""
    digest = hashlib.blake2b(digest_size=16)
    weights = parts_of(model)
    for name in sorted(weights):
        _add(digest, weights[name], name)
    for name, array in plan.graph_arrays():
        _add(digest, array, name)
    if isinstance(x, BitTensor):
        _add(digest, x.repack(axis=-1, layout="planes").words, "words")
        _add(digest, x.scale, "scale")
    else:
        _add(digest, interop.as_array(x, "tune", "x")[0], "x")
    for array in judged:
        _add(digest, array, "judged")
    digest.update(json.dumps([chosen, plan.shape, _machine(plan.device), version("bitsparse")]).encode())
    return digest.hexdigest()


def _machine(device: str) -> str:
    """What times depend on: the GPU's name, or the processor and its threads."""
    if device != "cpu":
        return jit.capability(int(device[5:])).name
    from bitsparse.backends.host import get_num_threads, simd_level

    return f"{platform.machine()} {platform.processor()} {os.cpu_count()} {get_num_threads()} {simd_level()}"


def _add(digest: Any, array: Any, name: str) -> None:
    if array is None:
        digest.update(f"{name}: none".encode())
        return
    host = np.ascontiguousarray(interop.as_host(array, "tune", name))
    digest.update(f"{name} {host.dtype} {host.shape} ".encode())
    digest.update(host.reshape(-1).view(np.uint8) if host.dtype.kind != "U" else host.tobytes())


def _path(name: str) -> Path:
    return jit.cache_dir() / "tune" / f"{name}.json"


def load(name: str | None) -> list[Candidate] | None:
    """The figures of a run, or None; a file that cannot be read counts as none."""
    if name is None:
        return None
    try:
        with open_plain(_path(name)) as stream:
            records = json.loads(stream.read(_MOST_BYTES))
        return [_candidate(each) for each in records]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _candidate(record: dict[str, Any]) -> Candidate:
    settings = tuple(Setting(str(variant), bool(scaled)) for variant, scaled in record["settings"])
    accuracy, milliseconds, nbytes = float(record["accuracy"]), float(record["milliseconds"]), int(record["nbytes"])
    if not (0 <= accuracy <= 1 and 0 < milliseconds < math.inf and nbytes >= 0):
        raise ValueError("figures that no run gives")
    return Candidate(settings, accuracy, milliseconds, nbytes)


def store(name: str | None, candidates: list[Candidate]) -> None:
    """Keep the figures: the whole file or none. A folder that cannot be written costs the next run its time, no more."""
    if name is None:
        return
    records = [each.record() for each in candidates]
    keep(_path(name), lambda stream: stream.write(json.dumps(records).encode()))
