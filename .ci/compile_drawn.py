"""Compile a share of the kernels' variants, drawn by a seed, for every architecture: ``CI_SHARE=3 CI_SEED=7 compile_drawn.py``.

CI_SHARE is the number of shares; successive seeds take one share after another. ``bitsparse compile`` compiles all variants, which takes
longer than CI has. Fails if a variant does not compile, spills registers, or makes the products of warpgroups wait for each other. Needs
NVRTC but no GPU.
"""

from __future__ import annotations

import os
import sys
from zlib import crc32

from bitsparse import jit
from bitsparse.backends import cuda

PARTS, SEED = int(os.environ["CI_SHARE"]), int(os.environ["CI_SEED"])

chosen = cuda.variants()
done, bad = 0, []
for arch in jit.ARCHS:
    drawn = [one for one in chosen if crc32(f"{arch} {one}".encode()) % PARTS == SEED % PARTS]
    for compiled in jit.compile_all([arch], drawn, len(os.sched_getaffinity(0))):
        done += 1
        if compiled.spilled:
            bad.append(f"{compiled.arch} {compiled.variant}: {compiled.spilled} bytes of registers spilled")
        if compiled.waits:
            bad.append(f"{compiled.arch} {compiled.variant}: products of warpgroups wait for each other")
print(f"one of {PARTS} parts, seed {SEED}: {done} variants for {', '.join(jit.ARCHS)}, {len(bad)} complaints")
print(*bad, sep="\n")
sys.exit(not done or bool(bad))
