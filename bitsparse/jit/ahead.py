"""Kernels compiled ahead of time, for any list of architectures, on a machine that need not have a GPU."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bitsparse.jit.cache import compile_kernel, nvrtc_version
from bitsparse.jit.variant import Variant

__all__ = ["Compiled", "compile_all"]


class Compiled(NamedTuple):
    """One variant compiled for one architecture.

    Attributes
    ----------
    arch : str
    variant : Variant
    path : Path
        The cubin in the cache.
    log : str
        What the assembler said about registers and spills.
    seconds : float
        Hardly more than nothing for a cubin that was there already.
    """

    arch: str
    variant: Variant
    path: Path
    log: str
    seconds: float

    @property
    def registers(self) -> int:
        """Registers of a thread, of the hungriest function in the file.

        Examples
        --------
        >>> from bitsparse.jit import Compiled, Variant
        >>> log = "4 bytes spill stores, 8 bytes spill loads; Used 40 registers; Used 32 registers"
        >>> one = Compiled("sm_80", Variant("bits/stats.cu", "code_sums"), Path(), log, 0.5)
        >>> one.registers, one.spilled
        (40, 12)
        """
        return max((int(n) for n in re.findall(r"Used (\d+) registers", self.log)), default=0)

    @property
    def spilled(self) -> int:
        """Bytes that spilling stores and loads, over all functions of the file."""
        return sum(int(n) for n in re.findall(r"(\d+) bytes spill", self.log))


def compile_all(archs: Iterable[str], chosen: Iterable[Variant], jobs: int = 1) -> Iterator[Compiled]:
    """Compile kernels ahead of time; needs NVRTC but no GPU.

    Parameters
    ----------
    archs : iterable of str
    chosen : iterable of Variant
    jobs : int, default 1
        Compilations at the same time.

    Yields
    ------
    Compiled
        One for each variant that an architecture can run, architecture after architecture, as soon as it is there.

    Raises
    ------
    DeviceError, KernelError
        NVRTC is missing (said before anything is compiled), or refuses a source or an architecture.
    """
    nvrtc_version()
    wanted = list(chosen)
    work = [(arch, variant) for arch in archs for variant in wanted if variant.runs_on(arch)]
    # The compiler runs outside Python's lock, so threads are enough.
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        compilations = [pool.submit(_compile, arch, variant) for arch, variant in work]
        try:
            for future in compilations:
                yield future.result()
        finally:
            for future in compilations:
                future.cancel()


def _compile(arch: str, variant: Variant) -> Compiled:
    start = time.perf_counter()
    path, log = compile_kernel(variant.source, dict(variant.defines), arch)
    return Compiled(arch, variant, path, log, time.perf_counter() - start)
