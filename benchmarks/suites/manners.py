"""Suite ``manners``: everyday operations of scipy.sparse on our arrays, against CuPy's matrices on a GPU and SciPy's arrays elsewhere.

Where this suite differs from the protocol of ``run.py``:

- On a machine with a GPU, the cases are those of :mod:`benchmarks.cases.manners_gpu`, else those of :mod:`benchmarks.cases.manners_cpu`.
- ``members`` makes the calls of the table in ``tests/scipy_members.py`` on SciPy's array and on ours and compares the results; nothing is
  timed. ``params.share`` is the share of public members of ``scipy.sparse.csr_array`` with the same result, and ``params.differing`` names
  the others.
- Both sides allocate their results. A call on a GPU ends when the GPU is done.

``python3 benchmarks/summary.py FILE`` compares the records with the bars.
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
