"""Suite ``frameworks``: the same step in two frameworks, both with our sums.

- ``jax-gcn-{graph}-torch`` computes the loss and gradients of the gcn of ``training-gcn-fp32-{graph}``, biases included but without an
  optimiser, in JAX against the same in ``bitsparse.torch``. As both share the sums, this shows the cost of JAX around them. PyTorch
  launches step by step, JAX is jitted; products are in float32 on both sides. Gradients of equal weights are compared before anything is
  timed. ``jax-cpu-...`` is the same on the CPU.

This is a separate suite because it needs both frameworks. Records of one H100 date from when its cases belonged to suite ``training``.
"""

from __future__ import annotations

from functools import partial

from benchmarks.cases.products import SYNTHETIC
from benchmarks.suites.training import machine, of_jax
from bitsparse.bench import Case

__all__ = ["cases", "machine"]

#: Graphs so large that sums dominate, so that a step should take as long in JAX as in PyTorch.
LARGEST = tuple(name for name in SYNTHETIC if name.startswith("products"))


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    cells = [("-cpu", "cpu", "artist"), *(("", "gpu", name) for name in LARGEST)]
    return [
        Case(case, partial(of_jax, "against_torch", case, name, platform, threads))
        for place, platform, name in cells
        for case in (f"jax{place}-gcn-{name}-torch",)
    ]
