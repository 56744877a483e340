"""TensorFlow and PaddlePaddle: their tensors are read in place, and results are returned in the same library.

Each library is tested in its own process, since some builds of the two cannot be loaded into one.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = {
    "tensorflow": "import tensorflow as lib; kind, make, out = lib.Tensor, lib.constant, False",
    "paddle": "import paddle as lib; kind, make, out = lib.Tensor, lib.to_tensor, True",
}
CODE = """
import numpy as np, scipy.sparse as sp
{library}
import bitsparse as bs

rng = np.random.default_rng(0)
dense = (rng.random((5, 7)) < 0.5).astype(np.float32)
a = bs.TCTiledCSR(dense)
for dtype in ("float32", "float64", "float16", "int8", "int32", "int64", "uint8", "bool"):
    x = (rng.random((7, 3)) * 3).astype(dtype)
    got, want = bs.spmm(a, make(x)), bs.spmm(a, x)
    assert isinstance(got, kind), type(got)
    assert np.array_equal(np.asarray(got), want), dtype
    packed = bs.BitTensor(make(x), 2) if dtype == "int32" else None
    if packed is not None:
        assert isinstance(packed.toarray(), kind)
        assert np.array_equal(np.asarray(packed.toarray()), x)
row = make(np.ones((2, 5), np.float32))
assert isinstance(row @ a, kind) or isinstance(a.__rmatmul__(row), kind)
y = make(np.zeros((5, 3), np.float32))
x = make(np.ones((7, 3), np.float32))
try:
    bs.spmm(a, x, out=y)
    assert out and np.array_equal(np.asarray(y), dense.sum(1, keepdims=True) @ np.ones((1, 3)))
except bs.DTypeError as error:
    assert not out and "out=None" in str(error), error
print("done")
"""


@pytest.mark.parametrize(
    "library",
    [
        pytest.param("tensorflow", marks=pytest.mark.tensorflow),
        pytest.param("paddle", marks=pytest.mark.paddle),
    ],
)
def test_results_come_back_in_the_library_of_the_features(library: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE.format(library=LIBRARIES[library])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.strip().endswith("done"), done.stderr[-2000:]
