"""Compile every kernel for the architectures named (default: all of them) and show what the assembler says; fails on spills.

python3 -m bitsparse.jit [sm_90a ...]
"""

from __future__ import annotations

import re
import sys
import time

from bitsparse.jit import ARCHS, compile_all, variants


def main(archs: list[str]) -> int:
    """Compile for ``archs``; the number of variants that spill registers is the exit status, at most 1."""
    spilling = 0
    for arch in archs or ARCHS:
        start = time.perf_counter()
        for _, variant, path, log in compile_all([arch], variants()):
            registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
            spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))
            spilling += spills > 0
            constants = " ".join(f"{name}={value}" for name, value in variant.defines)
            print(
                f"{arch} {variant.source} {constants}: registers {registers}, spilled bytes {spills}, {path.stat().st_size} bytes"
            )
        print(f"{arch}: {time.perf_counter() - start:.1f} s")
    return int(spilling > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
