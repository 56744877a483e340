"""The kernel variants that usual calls launch must be declared for ahead-of-time compilation. No kernel of a product runs here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import bitsparse as bs
from bitsparse import interop, jit
from bitsparse.backends import cuda
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized.attention import Settings, attention_of_codes
from bitsparse.ops.quantized.scaled import scaled_codes

pytestmark = pytest.mark.gpu

#: Kernels that prepare patterns; these do run, because their results are read.
PREPARING = ("sparse/", "csr/", "bits/", "sampling/edges.cu", "spmm/tiles_build.cu", "spmm/windows_fill.cu")
NODES = 640


def cp() -> Any:
    import cupy

    return cupy


class NothingHappens:
    """A stand-in for a kernel, which is never compiled or run."""

    params: Any = None

    def launch(self, grid: Any, threads: int, params: Any, **_: Any) -> NothingHappens:
        self.params = params
        return self

    def __call__(self, *_: Any) -> None:
        pass

    def run(self, *_: Any, **__: Any) -> None:
        pass

    def quick(self, *_: Any) -> None:
        return None

    def resident_clusters(self, *_: Any) -> int:
        return 1


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    """Return a list that collects the source and constants of every kernel requested from now on."""
    seen = []
    real = jit.kernel

    def kernel(source: str, name: str, defines: Any = None) -> Any:
        seen.append((source, tuple(sorted((defines or {}).items()))))
        return real(source, name, defines) if source.startswith(PREPARING) else NothingHappens()

    monkeypatch.setattr(jit, "kernel", kernel)
    return seen


def pattern(dtype: Any = None) -> Any:
    """Return a graph on the device with about eight edges per row, with values of the given dtype or none."""
    rng = np.random.default_rng(5)
    found = scipy.sparse.random(NODES, NODES, 8 / NODES, format="csr", random_state=rng, dtype=np.float32)
    if dtype is None:
        return bs.TCTiledCSR(found, pattern=True).to_device("cuda")
    return bs.TCTiledCSR(found).to_device("cuda").astype(dtype)


def features(columns: int, dtype: Any = np.float32) -> Any:
    """Return one row of features per node, on the device."""
    return cp().ones((NODES, columns), dtype)


def words(bits: int, columns: int = 128, axis: int = -1, layout: str = "planes") -> Any:
    """Return one row of packed integers per node, of the given number of bits, on the device."""
    return bs.pack_bits(cp().ones((NODES, columns), np.uint8), bits, axis=axis, layout=layout)


def symmetric(rows: int, columns: int) -> Any:
    """Return 8-bit weights without an offset, packed along their rows."""
    return bs.quantize(cp().ones((rows, columns), np.float32), 8, axis=-2, scheme="symmetric")


def attended_codes() -> Any:
    """Run attention over codes with four heads of 32 columns, as layers do in training."""
    codes = scaled_codes(
        "test", "x", cp().ones((NODES, 4, 32), np.float32), interop.CUPY, Coding(8, "nearest", 0, 0, -1, "rows")
    )
    scores = cp().ones((NODES, 4), np.float32)
    return attention_of_codes(pattern(), codes, scores, scores, Settings(0.2, 0.0, None))


CALLS: dict[str, Callable[[], object]] = {
    "spmm float32": lambda: bs.spmm(pattern(np.float32), features(128), kernel="csr"),
    "spmm float16": lambda: bs.spmm(pattern(np.float16), features(128, np.float16), kernel="csr"),
    "spmm mean": lambda: bs.spmm(pattern(), features(128), reduce="mean", kernel="csr"),
    "spmm 8 bits": lambda: bs.spmm(pattern(), words(8, layout="rows")),
    "spmm 4 bits": lambda: bs.spmm(pattern(), words(4, layout="rows")),
    "spmm windows": lambda: bs.spmm(pattern(), features(64), kernel="windows"),
    "spmm tiles": lambda: bs.spmm(pattern(), features(64, np.float32), precision="tf32", kernel="tiles"),
    "sddmm": lambda: bs.sddmm(pattern(), features(128), features(128)),
    "softmax": lambda: bs.edge_softmax(pattern(), cp().ones((pattern().nnz, 4), np.float32)),
    "matmul": lambda: words(1) @ words(2).T,
    "matmul by warps": lambda: bs.matmul(words(1), words(2).T, kernel="planes-mma"),
    "bmm": lambda: bs.bmm(
        cp().ones((1 << 15, 256), np.float32),
        bs.pack_bits(cp().ones((256, 64), np.float32), 1, axis=-2, encoding="bipolar"),
    ),
    "quantized": lambda: bs.quantized_matmul(features(256), symmetric(256, 64), bits=8),
    "quantized sums of 8 bits": lambda: bs.quantized_spmm(pattern(), features(128)),
    "quantized sums of 4 bits": lambda: bs.quantized_spmm(pattern(), features(128), 4),
    "attention of codes": lambda: attended_codes(),
    "bits of sums": lambda: bs.bspmm(pattern(), words(1)),
    "sampled": lambda: bs.sampled_spmm(pattern(), features(128), width=16, strategy="aes"),
}


@pytest.mark.parametrize("name", CALLS)
def test_usual_calls_launch_what_is_declared(name: str, launched: list[Any]) -> None:
    declared: dict[str, set[Any]] = {}
    for variant in cuda.variants():
        if variant.runs_on(jit.capability().arch):
            declared.setdefault(variant.source, set()).add(variant.defines)
    CALLS[name]()
    products = [one for one in launched if not one[0].startswith(PREPARING)]
    assert products
    for source, defines in launched:
        assert defines in declared[source], (source, defines)
