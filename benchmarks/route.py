"""Trace how far an argument travels: the modules that it enters during one cold call on a GPU, as JSON.

The argument is in a function if a local variable is the argument itself, an array over its memory, or an object or tuple that holds one
of these. It enters a module when a function of that module that has it is called from another module, or continues after such a call. An
entry is a return if an earlier one led into the same module: ``back`` is ``entries`` minus the number of different modules. The call is
traced in a fresh process, in which nothing was called before; `--emulate` uses the emulator instead of a GPU.

    python benchmarks/route.py spmm --emulate
    python benchmarks/route.py bspmm --emulate --list
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


class Route:
    """Traces the modules that one argument enters.

    Parameters
    ----------
    addresses : set of int
        The addresses at which the memory of its arrays begins.
    subject : object
        The argument.
    """

    def __init__(self, subject: Any, addresses: set[int]) -> None:
        self._subject, self._addresses = subject, addresses
        #: The module of each entry, in order, with the function that was called.
        self.entries: list[tuple[str, str]] = []
        self._last = ""

    def __call__(self, frame: FrameType | None, event: str, argument: Any) -> None:
        """Handle an event of :func:`sys.setprofile`: a function begins, or returns to its caller."""
        if event == "return" and frame is not None:
            frame = frame.f_back
            while frame is not None and self._module_of(frame) is None:
                frame = frame.f_back
        elif event != "call":
            return
        module = None if frame is None else self._module_of(frame)
        if frame is None or module is None or module == self._last or not self._holds(frame):
            return
        self._last = module
        self.entries.append((module, frame.f_code.co_name))

    @staticmethod
    def _module_of(frame: FrameType) -> str | None:
        name = str(frame.f_globals.get("__name__", ""))
        return name if name.startswith("bitsparse.") else None

    def _holds(self, frame: FrameType) -> bool:
        return any(self._is(value, 2) for value in frame.f_locals.values())

    def _is(self, value: Any, deeper: int) -> bool:
        """Whether a value is the argument, shares its memory, or holds such a value."""
        if value is self._subject or _address(value) in self._addresses:
            return True
        if not deeper:
            return False
        if isinstance(value, (tuple, list)):
            return len(value) < 32 and any(self._is(part, deeper - 1) for part in value)
        if type(value).__module__.startswith("bitsparse.ops"):
            return any(self._is(part, deeper - 1) for part in getattr(value, "__dict__", {}).values())
        return False


def _address(value: Any) -> int:
    """The address of a CuPy array's memory; 0 for everything else."""
    memory = getattr(value, "data", None) if type(value).__name__ == "ndarray" else None
    return int(getattr(memory, "ptr", 0))


def traced(product: str, rows: int, columns: int) -> list[tuple[str, str]]:
    """The entries of the features through a cold :func:`bitsparse.spmm`, or of the matrix through a cold :func:`bitsparse.bspmm`."""
    cupy: Any = importlib.import_module("cupy")
    import bitsparse as bs

    generator = np.random.default_rng(0)
    there = cupy.asarray(generator.random((rows, columns), np.float32))
    indptr = cupy.asarray(np.arange(rows + 1, dtype=np.int32) * 4)
    indices = cupy.asarray(np.sort(np.stack([generator.permutation(rows)[:4] for _ in range(rows)])).reshape(-1))
    values = cupy.asarray(generator.random(4 * rows, np.float32)) if product == "spmm" else None
    A = bs.TCTiledCSR((values, indices.astype(np.int32), indptr), shape=(rows, rows))
    call: Any
    if product == "spmm":
        route = Route(there, {_address(there)})
        call, arguments, options = bs.spmm, (A, there), {"out": cupy.empty_like(there)}
    else:
        features = bs.pack_bits(there - 0.5, encoding="bipolar")
        route = Route(A, {_address(part) for part in A.csr_arrays() if part is not None})
        call, arguments, options = bs.bspmm, (A, features), {}

    sys.setprofile(route)
    try:
        call(*arguments, **options)
    finally:
        sys.setprofile(None)
    return route.entries


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("product", choices=("spmm", "bspmm"))
    parser.add_argument("--emulate", action="store_true", help="without a GPU")
    parser.add_argument("--list", action="store_true", help="also print every entry")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--columns", type=int, default=16)
    options = parser.parse_args()
    if options.emulate:
        sys.path.insert(0, str(ROOT / "tests"))
        importlib.import_module("emulator").install()
    entries = traced(options.product, options.rows, options.columns)
    modules = [module for module, _ in entries]
    counts = {"argument": "x" if options.product == "spmm" else "A", "product": options.product}
    counts |= {"entries": len(modules), "modules": len(set(modules)), "back": len(modules) - len(set(modules))}
    print(json.dumps(counts | ({"route": [".".join(entry) for entry in entries]} if options.list else {})))


if __name__ == "__main__":
    main()
