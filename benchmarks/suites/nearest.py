"""Suite ``nearest``: exact searches among rows of bits, on the CPU and, if there is one, on a GPU.

- ``nearest-{kind}-{queries}x{rows}x{bits}-k{k}-{metric}`` is ``plan(queries, out=)`` of ``bitsparse.plan_nearest``. Codes are uniform or
  lie around 4096 centres, and queries lie near rows of the database. Peers search only its first 131 072 rows (int8 with at most 2000
  queries), and their times are scaled up. ``params.int8_ms`` is ``torch._int_mm`` of -1 and +1 followed by ``torch.topk``;
  ``peers/faiss_binary.py`` explains ``params.faiss_method_ms``.
- ``pairs-...`` is all of ``bitsparse.pairs``: ordering rows, the search, and ordering pairs.
- ``cpu-...`` are described in ``cases/nearest_host.py``.

``floor_ms`` is the larger of the time of the operations at the rate of the one-bit matrix unit and that of reading the database.
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
