"""Suite ``nearest``: exact searches among rows of bits, on a GPU where there is one, and on the CPU.

- ``nearest-{kind}-{queries}x{rows}x{bits}-k{k}-{metric}`` is ``plan(queries, out=)`` of ``bitsparse.plan_nearest``, codes uniform or around
  4096 centres, queries near rows of the database. Peers search its first 131 072 rows (int8 with at most 2000 queries), and their times are
  multiplied: ``params.int8_ms`` is ``torch._int_mm`` of -1 and +1 followed by ``torch.topk``, ``params.faiss_method_ms`` what
  ``peers/faiss_binary.py`` says.
- ``pairs-...`` is ``bitsparse.pairs`` with all that it does: ordering rows, the search, ordering pairs.
- ``cpu-...`` are described in ``cases/nearest_host.py``.

``floor_ms`` is the larger of the operations at the rate of the one-bit matrix unit and of the bytes of the database.
"""

from __future__ import annotations

from benchmarks import gpu_timing
from benchmarks.cases import nearest_gpu, nearest_host
from bitsparse import jit
from bitsparse.bench import Case, Machine
from bitsparse.errors import BitsparseError

__all__ = ["cases", "machine"]


def _has_gpu() -> bool:
    try:
        jit.capability()
    except BitsparseError:
        return False
    return True


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this machine for the records."""
    return gpu_timing.machine(threads, commit) if _has_gpu() else Machine.of_cpu(threads, commit)


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    return [*(nearest_gpu.cases() if _has_gpu() else ()), *nearest_host.cases(threads)]
