"""Shared parts of the cases of suite ``binary``: bits of a cell's features, exact sums, checks, and peers.

Graphs, float features and the vendor's products are those of ``cases/sparse_gpu.py``; one-bit features are the signs of the same floats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.sparse_gpu import TOLERANCE, Cell, Matrix, Timed, cell_of
from benchmarks.gpu_timing import torch_module, torch_stream
from benchmarks.peers.cusparse import SparseProduct
from bitsparse import jit
from bitsparse.backends.cuda.bits import pack as cuda_bits
from bitsparse.bench import Unavailable

__all__ = [
    "Features",
    "check_bits",
    "explained",
    "features_of",
    "function",
    "let_go",
    "packed",
    "poison",
    "sign_and_pack",
    "slack_of",
    "spmm_and_pack",
    "spmm_plan",
    "torch_product",
]

#: The number of rows compared at a time.
_ROWS = 1 << 18
#: Options that pack one bit of each float along the features.
SIGNS: dict[str, Any] = {"axis": -1, "layout": "planes", "encoding": "bipolar"}


class Features:
    """The bits of a cell's features, and exact sums of these bits."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.floats, _ = cell.inputs("float32", pattern=True)
        self.bits = bs.pack_bits(self.floats, encoding="bipolar")
        self._sums: Any = None

    @property
    def sums(self) -> Any:
        """Sums of the signs over each row's edges, int32."""
        if self._sums is None:
            cupy = jit.require_cupy("suite binary")
            matrix = self.cell.matrix
            signs = cupy.where(self.floats >= 0, np.float32(1), np.float32(-1))
            found = cupy.full((matrix.shape[0], self.cell.columns), np.nan, np.float32)
            ones = cupy.ones(matrix.nnz, np.float32)
            # Whole numbers far below 2^24 sum exactly in float32, in any order.
            SparseProduct(matrix.indptr, matrix.indices, ones, matrix.shape, signs, found, "ALG2")()
            self._sums = found.astype(np.int32)
        return self._sums


_held: dict[str, Features] = {}


def features_of(name: str, columns: int) -> Features:
    """The features of a graph and a width; they are kept until others are asked for."""
    held = _held.get("features")
    if held is None or (held.cell.matrix.name, held.cell.columns) != (name, columns):
        _held.clear()  # before the next cell is made, which may want the memory
        held = _held["features"] = Features(cell_of(name, columns))
    return held


def explained(plan: Any) -> dict[str, str | None]:
    """A plan's explanation, and the kernel that it names."""
    text = str(plan.explain())
    named = re.search(r"kernel ([\w-]+)", text)
    return {"kernel": named and named.group(1), "plan": text}


def let_go() -> None:
    """Drop the kept features."""
    _held.clear()


def function(name: str) -> Callable[..., Any]:
    """A public function of the library by name; if it does not exist, the case is not measured."""
    found = getattr(bs, name, None)
    if found is None:
        raise Unavailable(f"there is no bitsparse.{name}")
    made: Callable[..., Any] = found
    return made


# ---- results
def poison(out: Any) -> None:
    """Overwrite a result, so that nothing of an earlier call is left."""
    getattr(out, "words", out).view(np.uint8).fill(0xA5)


def packed(signs: Any) -> Any:
    """Pack a bool array into words (m, 1, W), by other means than the library's."""
    cupy = jit.require_cupy("suite binary")
    rows, columns = signs.shape
    padded = cupy.zeros((rows, -(-columns // 128) * 128), np.bool_)
    padded[:, :columns] = signs
    return cupy.packbits(padded.reshape(-1), bitorder="little").view(np.uint32).reshape(rows, 1, -1)


def check_bits(name: str, words: Any, sums: Any, slack: Any = None) -> int:
    """Count bits that differ from ``sums >= 0``; an AssertionError if one does whose sum exceeds ``slack``, or if a pad bit is set."""
    cupy = jit.require_cupy("suite binary")
    wrong = differ = 0
    for first in range(0, sums.shape[0], _ROWS):
        rows = slice(first, first + _ROWS)
        part = sums[rows]
        delta = words[rows].reshape(part.shape[0], -1) ^ packed(part >= 0).reshape(part.shape[0], -1)
        if not bool(delta.any()):
            continue
        bits = cupy.unpackbits(delta.view(np.uint8).reshape(-1), bitorder="little").reshape(part.shape[0], -1)
        inside, beyond = bits[:, : part.shape[1]].astype(np.bool_), bits[:, part.shape[1] :]
        near = cupy.zeros(part.shape, np.bool_) if slack is None else cupy.abs(part) <= slack[rows]
        differ += int(inside.sum())
        wrong += int((inside & ~near).sum()) + int(beyond.sum())
    if wrong:
        raise AssertionError(f"{name}: {wrong} bits are wrong")
    return differ


def slack_of(matrix: Matrix) -> Any:
    """The error allowed for float32 sums, by rows."""
    return TOLERANCE["fp32"] * matrix.root


# ---- peers
def spmm_plan(cell: Cell) -> tuple[Callable[[], object], Any]:
    """Our float32 product of the pattern, and its result."""
    cupy = jit.require_cupy("suite binary")
    x, _ = cell.inputs("float32", pattern=True)
    plan = bs.plan_spmm(cell.matrix.tiled, cell.columns, precision="fp32", dtype=x.dtype)
    out = cupy.empty((cell.matrix.shape[0], cell.columns), np.float32)
    return partial(plan, x, out=out), out


def sign_and_pack(values: Any) -> Callable[[], object]:
    """A call that packs the signs of floats by our own kernel, into preallocated words."""
    words = cuda_bits.pack(values, 1, **SIGNS)
    return partial(cuda_bits.pack, values, 1, out=words, check=False, **SIGNS)


def spmm_and_pack(cell: Cell) -> Timed:
    """Our float32 product, followed by packing the signs of its result in a second launch."""
    product, out = spmm_plan(cell)
    product()
    pack = sign_and_pack(out)

    def both() -> None:
        product()
        pack()

    return Timed(both, "bitsparse spmm, then sign and pack")


def torch_product(x: Any, w: Any, *, pack: bool, tf32: bool = True) -> Callable[[], Any]:
    """``x @ w`` by PyTorch into a preallocated result, with or without TF32; with `pack`, our kernel then packs the signs."""
    torch, cupy = torch_module(), jit.require_cupy("suite binary")
    left, right = torch.from_dlpack(x), torch.from_dlpack(w)
    out = torch.empty((left.shape[0], right.shape[1]), dtype=left.dtype, device="cuda")
    signs = sign_and_pack(cupy.from_dlpack(out)) if pack else None

    def call() -> Any:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            torch.mm(left, right, out=out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        if signs is not None:
            with torch_stream():
                signs()
        return out

    return call
