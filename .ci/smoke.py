"""Use an installed bitsparse for real work once; run this outside of the source tree."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

import bitsparse as bs
from bitsparse.backends import host

root = Path(__file__).resolve().parent.parent
if root in Path(bs.__file__).resolve().parents and "site-packages" not in bs.__file__:
    sys.exit(f"smoke: {bs.__file__} is the source tree, not an installed package")
if bs.__version__ != version("bitsparse"):
    sys.exit(f"smoke: __version__ is {bs.__version__}, the metadata says {version('bitsparse')}")

rng = np.random.default_rng(0)
a, b = rng.integers(0, 8, (33, 300)), rng.integers(-4, 4, (300, 17))
expected = a @ b
for level in host.simd_levels():
    host.set_simd(level)
    product = bs.matmul(bs.BitTensor(a, 3), bs.BitTensor(b, 3, encoding="signed", axis=-2))
    if not np.array_equal(np.asarray(product), expected):
        sys.exit(f"smoke: wrong product with {level}")
q = bs.quantize(rng.standard_normal((20, 130), dtype=np.float32), 4)
if q.toarray().shape != (20, 130) or not (Path(bs.__file__).parent / "cuda_src" / "common/scalar.h").is_file():
    sys.exit("smoke: quantize or cuda_src is broken")
print(f"smoke: bitsparse {bs.__version__}, Python {sys.version.split()[0]}, {', '.join(host.simd_levels())}: right")
