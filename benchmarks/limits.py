"""Measure the matrix units and the memory of this GPU: the rates behind ``estimate_ms`` and the cost model.

python3 benchmarks/limits.py [--json FILE]

Matrix units: every multiprocessor repeats one instruction on random operands that stay in shared memory or registers. Memory: reading a
random array, copying one (bytes read plus bytes written), and gathering random rows, one lane for 16 bytes with four loads in flight.
Each figure is the median of 9 launches of at least a few milliseconds, timed by events after two untimed launches.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.bench import Record, format_table, program_commit

ROOT = Path(__file__).resolve().parents[1]


class LimitsParams(ctypes.Structure):
    """The argument of ``matrix_rate``."""

    _fields_ = (("seed", ctypes.c_void_p), ("out", ctypes.c_void_p), ("repeats", ctypes.c_int))


class MemoryParams(ctypes.Structure):
    """The argument of ``read_all`` and ``gather_rows``."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_longlong),
        ("lanes", ctypes.c_int),
    )


def milliseconds(call: Callable[[], object]) -> float:
    """Median time of one call on the device."""
    cupy = jit.require_cupy("limits")
    samples = []
    for i in range(11):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        end.record()
        end.synchronize()
        if i >= 2:
            samples.append(float(cupy.cuda.get_elapsed_time(start, end)))
    return median(samples)


def matrix_units() -> list[tuple[str, float, str]]:
    """(instruction, rate, unit) of every matrix instruction that this device has."""
    cupy = jit.require_cupy("limits")
    chip = jit.capability()
    seed = cupy.random.default_rng(0).integers(0, 1 << 32, 16384, dtype=np.uint32)
    out = cupy.empty(chip.multiprocessors * 512, np.int32)
    found = []
    for bytes_ in (False, True):
        kind, k = ("u8", 32) if bytes_ else ("b1 and", 256)
        constants = {"BS_BYTES": 1} if bytes_ else {}
        variants = [(f"mma.sync m16n8k{k} {kind}", {"BS_NB": 1}, 512, 0, 20000, 16 * 8 * 16 * 8)]
        if chip.has_wgmma:
            for nb in (4, 2, 1):
                operations = 2 * 64 * 64 * nb * 4
                variants.append(
                    (f"wgmma m64n{64 * nb}k{k} {kind}", {"BS_NB": nb, "BS_WARPGROUP": 1}, 256, 50176, 4000, operations)
                )
        for name, defines, threads, shared, repeats, products in variants:
            params = LimitsParams(seed.data.ptr, out.data.ptr, repeats)
            kernel = jit.kernel("limits/instructions.cu", "matrix_rate", defines | constants)
            ms = milliseconds(kernel.launch(chip.multiprocessors, threads, params, shared=shared))
            found.append((name, 2.0 * k * products * repeats * chip.multiprocessors / ms / 1e9, "TOPS"))
    return found


def memory() -> list[tuple[str, float, str]]:
    """(path, rate, unit) of reading, copying and gathering."""
    cupy = jit.require_cupy("limits")
    chip = jit.capability()
    random = cupy.random.default_rng(0)
    out = cupy.empty(1, np.uint32)
    found = []
    for name, size in (("HBM", 4 << 30), ("L2", 24 << 20)):
        table = random.integers(0, 1 << 32, size // 4, dtype=np.uint32)
        params = MemoryParams(table.data.ptr, None, out.data.ptr, size // 16, 1)
        read = jit.kernel("limits/memory.cu", "read_all").launch(chip.multiprocessors * 4, 512, params)
        times = 1 if size > 1 << 28 else 100

        def repeated(launch: Callable[[], object] = read, times: int = times) -> None:
            for _ in range(times):
                launch()

        found.append((f"{name} read, {size >> 20} MB", size * times / milliseconds(repeated) / 1e6, "GB/s"))
        if name == "HBM":
            ms = milliseconds(partial(cupy.copyto, cupy.empty_like(table), table))
            found.append((f"{name} copy", 2 * size / ms / 1e6, "GB/s"))
        del table
    for rows in (131_072, 2_449_029):
        for row_bytes in (16, 32, 64, 128, 512):
            table = random.integers(0, 1 << 32, (rows, row_bytes // 4), dtype=np.uint32)
            count = 1 << 26 if row_bytes <= 64 else 1 << 23
            picks = random.integers(0, rows, count, dtype=np.int32)
            params = MemoryParams(table.data.ptr, picks.data.ptr, out.data.ptr, count, row_bytes // 16)
            gather = jit.kernel("limits/memory.cu", "gather_rows").launch(chip.multiprocessors * 8, 256, params)
            rate = count / milliseconds(gather) / 1e6
            found.append((f"gather of {row_bytes} B rows, {rows} rows", rate, "G rows/s"))
    return found


def main() -> None:
    """Measure, print a table, write JSON lines."""
    parser = argparse.ArgumentParser(description="Measure the GPU's ceilings.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON object a line to FILE")
    options = parser.parse_args()
    rates = matrix_units() + memory()
    chip: dict[str, Any] = jit.capability()._asdict()
    print(chip["name"] + "\n")
    print(format_table(("path", "rate", "unit"), [(name, f"{rate:.0f}", unit) for name, rate, unit in rates]))
    if options.json:
        # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
        sys.path.insert(0, str(ROOT))
        timing: Any = importlib.import_module("benchmarks.gpu_timing")
        here = timing.machine(1, program_commit(ROOT))
        records = (Record.counted("limits", name, {"rate": rate, "unit": unit}, here) for name, rate, unit in rates)
        options.json.write_text("".join(record.to_json() + "\n" for record in records), encoding="utf-8")


if __name__ == "__main__":
    main()
