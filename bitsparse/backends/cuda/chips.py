"""What the chips can do with the matrix instructions of a warp (``mma.sync``): one table by compute capability."""

from __future__ import annotations

from typing import NamedTuple

from bitsparse import jit
from bitsparse.jit import Capability

__all__ = ["CHIPS", "RELEASED", "VARIANTS", "Chip", "chip_of"]


class Chip(NamedTuple):
    """Rates that the estimates of :mod:`bitsparse.backends.cuda.matmul.mma` are made of.

    Attributes
    ----------
    card : Capability
        One with this chip.
    bits, bytes : int
        Multiply-adds a clock of one multiprocessor, of one-bit and of 8-bit integers; 0 bits where the one-bit AND is emulated.
    clock_mhz : float
    load_bytes : float
        Bytes a clock that one multiprocessor reads from the L2 while all of them do.
    memory_bytes_per_us : float
    launch_us : float
        A kernel in a replayed graph.
    """

    card: Capability
    bits: int
    bytes: int
    clock_mhz: float
    load_bytes: float
    memory_bytes_per_us: float
    launch_us: float = 2.5


#: Matrix rates: 9.0 measured (``limits.py``), the others by their data sheets (dense int8; one-bit AND is 8 times that up to 9.0 and
#: assembled into many instructions on 10.0 and 12.0, as the compiler shows). Memory: nine tenths of the data sheet's slowest card.
CHIPS: dict[tuple[int, int], Chip] = {
    (8, 0): Chip(Capability("NVIDIA A100", 8, 0, 108, 166912, 41943040), 16384, 2048, 1410.0, 27.0, 1.4e6),
    (8, 6): Chip(Capability("NVIDIA RTX A6000", 8, 6, 84, 101376, 6291456), 8192, 1024, 1700.0, 18.0, 0.54e6),
    (8, 7): Chip(Capability("Orin", 8, 7, 16, 166912, 4194304), 8192, 1024, 1300.0, 16.0, 0.18e6),
    (8, 9): Chip(Capability("NVIDIA L40S", 8, 9, 142, 101376, 100663296), 8192, 1024, 2400.0, 20.0, 0.78e6),
    (9, 0): Chip(Capability("NVIDIA H200", 9, 0, 132, 232448, 62914560), 19400, 2430, 1850.0, 32.0, 4.2e6, 1.8),
    (10, 0): Chip(Capability("NVIDIA B200", 10, 0, 148, 232448, 132120576), 0, 2048, 1800.0, 32.0, 6.5e6),
    (12, 0): Chip(Capability("NVIDIA RTX PRO 6000", 12, 0, 188, 101376, 134217728), 0, 1024, 2300.0, 20.0, 1.5e6),
}

#: Any other: nothing is known of its one-bit instruction, so bytes are taken.
UNKNOWN = Chip(Capability("unknown", 8, 0, 64, 101376, 4194304), 0, 1024, 1400.0, 16.0, 0.4e6)


def chip_of(capability: Capability) -> Chip:
    """The rates of a device; those of unknown chips are low guesses.

    Examples
    --------
    >>> chip_of(Capability("NVIDIA A100", 8, 0, 108, 166912, 41943040)).bits
    16384
    >>> chip_of(Capability("NVIDIA B200", 10, 0, 148, 232448, 132120576)).bits
    0
    """
    return CHIPS.get((capability.major, capability.minor), UNKNOWN)


#: By the architectures that a release is compiled for.
RELEASED = {chip.card.arch: chip for chip in CHIPS.values() if chip.card.arch in jit.ARCHS}


def _variants() -> list[jit.Variant]:
    """Of the kernels that ``benchmarks/limits.py`` measures rates with."""
    found = jit.variants_of("limits/memory.cu", "read_all")
    for kind in ({}, {"BS_BYTES": 1}):
        found += jit.variants_of("limits/instructions.cu", "matrix_rate", [kind | {"BS_NB": 1}])
        groups = [kind | {"BS_NB": nb, "BS_WARPGROUP": 1} for nb in (1, 2, 4)]
        found += jit.variants_of("limits/instructions.cu", "matrix_rate", groups, "sm_90a")
    return found


VARIANTS = _variants()
