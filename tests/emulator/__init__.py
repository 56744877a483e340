"""A CPU emulator of the CUDA kernels, and a fake CuPy over it, for tests on machines without a GPU.

:func:`install` must come before anything imports CuPy; ``-p emulator.plugin`` does so for pytest. The files in ``cuda_src`` are
translated to C++, compiled by g++ and run with a fiber for each thread; ``site`` holds the fake package, which is not found before that.
"""

from __future__ import annotations

import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"


def install() -> None:
    """Make ``import cupy`` import the fake CuPy, and libcuda the emulated driver."""
    old = sys.modules.get("cupy")
    if old is not None and not getattr(old, "_is_emulated", False):
        raise RuntimeError("emulator.install(): the real cupy is imported already")
    while str(SITE) in sys.path:
        sys.path.remove(str(SITE))
    sys.path.insert(0, str(SITE))
    import cupy  # sets everything up

    if not getattr(cupy, "_is_emulated", False):
        raise RuntimeError(f"emulator.install(): {cupy.__file__} came first")


def set_order(order: int) -> None:
    """Set the order of warps and copies: 0 forward, 1 backward, any other number seeds a random schedule."""
    from emulator import runtime

    runtime.state.order = order


def counts() -> dict[str, int]:
    """How many launches, copies to the host (get, item, bool, ...), uploads and allocations there have been so far."""
    from emulator import runtime

    return dict(runtime.counts)
