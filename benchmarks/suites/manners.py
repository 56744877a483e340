"""Suite ``manners``: what a user of scipy.sparse does with the arrays: on a GPU against CuPy's matrices, elsewhere against SciPy's.

Where this suite differs from the protocol of ``run.py``:

- On a machine with a GPU the cases are those of :mod:`benchmarks.cases.manners_gpu`, else those of :mod:`benchmarks.cases.manners_cpu`.
- ``members``: the calls of the table in ``tests/scipy_members.py``, made of SciPy's array and of ours and compared; nothing is timed.
  ``params.share`` is that of the public members of ``scipy.sparse.csr_array`` with the same result, ``params.differing`` names the others.
- Both sides allocate their results. A call on a GPU ends when the GPU is done.

``python3 benchmarks/summary.py FILE`` holds the records against the bars.
"""

from __future__ import annotations

from benchmarks.cases import manners_cpu, manners_gpu, members
from benchmarks.gpu_timing import machine as gpu_machine
from bitsparse.bench import Case, Machine

__all__ = ["cases", "machine"]


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this machine for the records."""
    return gpu_machine(threads, commit) if manners_gpu.present() else Machine.of_cpu(threads, commit)


def cases(threads: int) -> list[Case]:
    """All cases of the suite for this machine."""
    where = manners_gpu if manners_gpu.present() else manners_cpu
    return [*where.cases(), Case("members", members.prepared)]
