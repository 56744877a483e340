"""Suite ``frameworks``: the same step in two frameworks, both with our sums.

- ``jax-gcn-{graph}-torch`` is loss and gradients of the gcn of ``training-gcn-fp32-{graph}``, biases included, without an optimiser, in JAX
  against the same in ``bitsparse.torch``: what JAX costs around sums that both share. Launched as it is in PyTorch, jitted in JAX; products
  in float32 on both sides. Gradients of equal weights are compared before anything is timed. ``jax-cpu-...`` is the same on the CPU.

It is a suite of its own as it needs both frameworks. Records of one H100 were made when its cases were of suite ``training``.
"""

from __future__ import annotations

from functools import partial

from benchmarks.cases.products import SYNTHETIC
from benchmarks.suites.training import machine, of_jax
from bitsparse.bench import Case

__all__ = ["cases", "machine"]

#: Graphs of which a step takes as long in JAX as in PyTorch, if sums are all that counts.
LARGEST = tuple(name for name in SYNTHETIC if name.startswith("products"))


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    cells = [("-cpu", "cpu", "artist"), *(("", "gpu", name) for name in LARGEST)]
    return [
        Case(case, partial(of_jax, "against_torch", case, name, platform, threads))
        for place, platform, name in cells
        for case in (f"jax{place}-gcn-{name}-torch",)
    ]
