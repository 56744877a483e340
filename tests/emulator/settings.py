"""Settings of the emulator: environment variables, which are read once, when it is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Chip(NamedTuple):
    """A chip that can be emulated."""

    name: str
    major: int
    minor: int
    shared_bytes: int
    l2_bytes: int


CHIPS = {
    "sm_80": Chip("Emulated A100", 8, 0, 166912, 40 << 20),
    "sm_86": Chip("Emulated A10", 8, 6, 101376, 6 << 20),
    "sm_89": Chip("Emulated L4", 8, 9, 101376, 48 << 20),
    "sm_90a": Chip("Emulated H200", 9, 0, 232448, 60 << 20),
    "sm_100a": Chip("Emulated B200", 10, 0, 232448, 126 << 20),
    "sm_120a": Chip("Emulated RTX 5090", 12, 0, 101376, 96 << 20),
}


def _named(name: str, default: str) -> str:
    return os.environ.get(f"BITSPARSE_EMULATE_{name}") or default


ARCH = _named("ARCH", "sm_90a")
if ARCH not in CHIPS:
    raise ValueError(f"BITSPARSE_EMULATE_ARCH is {ARCH!r}, must be one of {', '.join(CHIPS)}")
CHIP = CHIPS[ARCH]
#: Only a few, so that persistent kernels loop and grids are small.
MULTIPROCESSORS = int(_named("MULTIPROCESSORS", "6"))
DEVICES = int(_named("DEVICES", "1"))
#: Order of warps: 0 forward, 1 backward, else the seed of a random schedule of warps and copies.
ORDER = int(_named("ORDER", "0"))
#: Allocations are rounded up to CuPy's 512 bytes; a tight fence rounds to 16, so that reads beyond them fault sooner.
GRANULE = 16 if _named("FENCE", "") == "tight" else 512
TRACE = bool(_named("TRACE", ""))
#: The file to which the translated source of the kernel compiled last is written.
KEEP = _named("KEEP", "")
SANITIZE = _named("SANITIZE", "1") != "0"
OPTIMISE = _named("OPTIMISE", "-O2")


def _cache() -> Path:
    # The same folder as in bitsparse.jit, which cannot be imported here: the package would find no fake CuPy yet.
    named = os.environ.get("BITSPARSE_CACHE_DIR")
    if named:
        return Path(named) / "emulator"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitsparse" / "emulator"


#: Compiled kernels, the runtime library and the precompiled prelude, all named by their content.
CACHE = _cache()
