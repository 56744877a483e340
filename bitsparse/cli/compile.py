"""``bitsparse compile``: compiles every kernel ahead of time, without a GPU.

Each row of the table shows what the assembler reports about one compiled variant. ``--json`` prints one object::

    {"nvrtc": "13.0", "cache": folder, "seconds": wall, "spilling": variants that spill, "waiting": variants that wait,
     "kernels": [{"arch", "source", "function", "constants", "registers", "spilled_bytes", "waiting", "cubin_bytes",
                  "seconds"}, ...]}

The exit code is 1 if a variant spills registers or if the products of its warpgroups wait for each other.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from bitsparse import jit
from bitsparse._progress import progress
from bitsparse.backends import cuda
from bitsparse.cli.common import add_counts, add_json, emit
from bitsparse.interop.transfers import cores

#: The oldest compute capability that the kernels run on, times 10.
_OLDEST = 80
_NATIVE = "native"


DESCRIPTION = (
    "Compile every GPU kernel into the cache, so that nothing is compiled at the first call. Needs NVRTC (pip install "
    "'bitsparse[cuda13]') but no GPU. Exit code 1: a kernel spills registers, or has its warpgroups' products wait for each other."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--arch",
        type=_arch,
        nargs="+",
        default=list(jit.ARCHS),
        metavar="ARCH",
        help=f"architectures, or {_NATIVE!r} for the GPU at hand (default: {' '.join(jit.ARCHS)})",
    )
    add_counts(parser, jobs=(None, 1024, "compilations at the same time (default: one for each core)"))
    add_json(parser, " instead of a table")


def _arch(text: str) -> str:
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", text)
    if text != _NATIVE and match is None:
        raise argparse.ArgumentTypeError(f"must be {_NATIVE!r} or like 'sm_80' or 'sm_90a', got {text!r}")
    if match is not None and int(match[1]) < _OLDEST:
        raise argparse.ArgumentTypeError(
            f"must be at least sm_{_OLDEST}, the first with a one-bit matrix AND, got {text!r}"
        )
    return text


def run(args: argparse.Namespace) -> int:
    """Serve the command."""
    archs = list(dict.fromkeys(jit.capability().arch if arch == _NATIVE else arch for arch in args.arch))
    chosen = cuda.variants()
    jobs = args.jobs or cores()
    nvrtc = ".".join(map(str, jit.nvrtc_version()))
    total = sum(variant.runs_on(arch) for arch in archs for variant in chosen)
    start = time.perf_counter()
    kernels: list[dict[str, Any]] = []
    show: Callable[[str], object] = (lambda _: None) if args.json else partial(print, flush=True)
    show(f"NVRTC {nvrtc}, {total} variants for {', '.join(archs)}, into {jit.cache_dir()}\n\n{_HEADINGS}")
    with progress(total, "kernel") if args.json else nullcontext(lambda: None) as advance:
        for one in jit.compile_all(archs, chosen, jobs):
            kernels.append(_record(one))
            advance()
            show(_row(kernels[-1]))
    seconds = round(time.perf_counter() - start, 2)
    spilling = sum(kernel["spilled_bytes"] > 0 for kernel in kernels)
    waiting = sum(kernel["waiting"] for kernel in kernels)
    facts = {"nvrtc": nvrtc, "cache": str(jit.cache_dir()), "seconds": seconds, "spilling": spilling}
    size = sum(kernel["cubin_bytes"] for kernel in kernels)
    spills = f"{spilling} of them SPILL registers" if spilling else "none spills registers"
    waits = f"{waiting} have products that WAIT for each other, " if waiting else ""
    said = f"\n{len(kernels)} variants, {waits}{spills}; {size / 1e6:.1f} MB in {seconds:.1f} s"
    emit(args, facts | {"waiting": waiting, "kernels": kernels}, lambda: said)
    return int(spilling + waiting > 0)


def _record(one: jit.Compiled) -> dict[str, Any]:
    return {
        "arch": one.arch,
        "source": one.variant.source,
        "function": one.variant.function,
        "constants": dict(one.variant.defines),
        "registers": one.registers,
        "spilled_bytes": one.spilled,
        "waiting": one.waits,
        "cubin_bytes": one.path.stat().st_size,
        "seconds": round(one.seconds, 3),
    }


#: The constants come last because their length varies.
_LAYOUT = "{:<8}  {:<20}  {:>9}  {:>7}  {:>8}  {:>6}  {}"
_HEADINGS = _LAYOUT.format("arch", "source", "registers", "spilled", "bytes", "s", "constants")


def _row(kernel: dict[str, Any]) -> str:
    constants = " ".join(f"{name}={value}" for name, value in kernel["constants"].items())
    names = ("arch", "source", "registers", "spilled_bytes", "cubin_bytes")
    return _LAYOUT.format(*(kernel[name] for name in names), f"{kernel['seconds']:.1f}", constants).rstrip()
