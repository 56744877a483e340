"""Products per edge on a GPU that the pattern of a container keeps, for arrays and for BitTensors, whose packed words are gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of, kind_of, store_of
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.backends.params import Array
from bitsparse.interop import ArrayKind
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features, largest_magnitude
from bitsparse.ops.plan import KeptCall, edge_call
from bitsparse.ops.spmm.patterns import shared_columns, tiles_of, windows_of


class EdgeKey(NamedTuple):
    """The key that distinguishes the products per edge that a pattern keeps."""

    op: str
    dtype: str
    columns: int
    heads: int
    precision: str


#: Slots of a pattern for its products of arrays, its calls with packed integers, and its products of packed integers.
EDGE_PRODUCTS: Slot[Callable[..., Any]] = Slot("products per edge")
CODE_CALLS: Slot[KeptCall] = Slot("calls of codes")
CODE_PRODUCTS: Slot[Callable[[Any, Any, Array], Array]] = Slot("products of codes")


def is_kept(A: Any, operand: CSROperand, heads: int) -> bool:
    """Whether a pattern keeps products per edge: it must belong to a container on a GPU, whose index dtype can number rows times heads."""
    if operand.device == "cpu" or not isinstance(A, SparseArray) or operand.order is not None:
        return False
    return operand.indptr.dtype.itemsize == 8 or max(*operand.shape, 1) * heads < 1 << 31


def edge_product(
    operand: CSROperand, op: str, dtype: np.dtype[Any], columns: int, heads: int, precision: str = "fp32"
) -> Callable[..., Any]:
    """The kept ``product(x, y, out)`` per edge for a pattern, of arrays (rows, columns) aligned to 16 bytes; created once."""
    key = EdgeKey(op, dtype.name, columns, heads, precision)
    return operand.kept(EDGE_PRODUCTS, lambda: _product(operand, key, dtype), key)


def _product(operand: CSROperand, key: EdgeKey, dtype: np.dtype[Any]) -> Any:
    """The quickest product: windows of rows with shared columns, on matrix units if their precision is allowed; or edge by edge."""
    op, columns, heads = key.op, key.columns, key.heads
    height = 0 if key.precision == "fp32" else _tile_height(operand, key, dtype)
    if height:
        tiles = backends.family(operand.device, "edges.sddmm_tiles")
        how: dict[str, Any] = {"dtype": key.dtype, "columns": columns, "heads": heads, "precision": key.precision}
        return tiles.DotTiles(tiles_of(operand, height, dtype), **how)
    backend = backends.family(operand.device, "edges.sddmm")
    possible = backend.windows_can(op, dtype, columns, heads, operand.shape, operand.nnz)
    if possible and backend.windows_pay(operand.nnz, shared_columns(operand, 8).entries):
        return backend.DotWindows(windows_of(operand), operand.indptr, columns)
    return backend.EdgeProduct(operand.schedule, op=op, dtype=dtype, columns=columns, heads=heads)


def _tile_height(operand: CSROperand, key: EdgeKey, dtype: np.dtype[Any]) -> int:
    """The number of rows in a window for the matrix units if these are estimated to be quicker, else 0."""
    tiles, choice = (backends.family(operand.device, name) for name in ("edges.sddmm_tiles", "spmm.choice"))
    possible = tiles.heights(key.op, key.dtype, key.columns, key.heads, operand.shape[1])
    if not possible or operand.nnz < choice.WORTH * shared_columns(operand, 8).entries:
        return 0
    shared = {height: shared_columns(operand, height) for height in (8, 16, 32)}
    kind = choice.Kind(dtype, key.columns, precision=key.precision)
    row_bytes = key.columns * dtype.itemsize
    height: int = tiles.taken(
        possible, key.dtype, row_bytes, choice.estimates(kind, operand.shape, operand.nnz, shared)
    )
    return height


@dataclass(frozen=True)
class CodePair:
    """Both ends of a product per edge as packed integers of the same width.

    Attributes
    ----------
    op : "dot", "add" or "mul"
    bits : int
    x, y : backends.cuda.sddmm_codes.CodeEnds
    left, right : Features
        Shapes and dtypes of both ends, for checks.
    """

    op: str
    bits: int
    x: Any
    y: Any
    left: Features
    right: Features

    def product(self, operand: CSROperand, kept: bool) -> Callable[[Any, Any, Array], Array]:
        """``product(x, y, out)`` of such ends for a pattern with edges; the pattern keeps it if `kept`."""
        shape = self.left.shape
        heads = shape[1] if len(shape) == 3 else 1
        backend = backends.family(operand.device, "edges.sddmm_codes")
        kind = backend.CodesKind.of(self.op, self.bits, shape[-1], heads, self.x, self.y)
        with operand.walked("sddmm") as schedule:

            def make() -> Any:
                return backend.CodesProduct(schedule, kind)

            product: Callable[[Any, Any, Array], Array] = operand.kept(CODE_PRODUCTS, make, kind) if kept else make()
        return product


def code_pair(x: Any, y: Any, op: str) -> CodePair | None:
    """Both ends of the edges in packed form, if they are BitTensors on a GPU for which a kernel exists; else None, to unpack them.

    No kernel exists for differences and quotients, for integers of more than 8 bits, for sums beyond int32, for dot products whose scale or
    offset depends on the column, and for a scale or an offset that depends on row and column.
    """
    y = x if y is None else y
    if op not in ("dot", "add", "mul"):
        return None
    for one in (x, y):
        if not isinstance(one, BitTensor) or one.device == "cpu" or one.bits > 8 or one.ndim > 3 or one.shape[-1] == 0:
            return None
    if x.device != y.device or x.shape[1:] != y.shape[1:]:
        return None  # refused by the caller
    largest = [largest_magnitude(np.empty(0, one.dtype)) for one in (x, y)]
    if op == "dot" and x.shape[-1] * largest[0] * largest[1] >= 1 << 31:
        return None
    if not all(_has_kernel(one, part, op) for one in (x, y) for part in (one.scale, one.offset)):
        return None
    backend = backends.family(x.device, "edges.sddmm_codes")
    bits = min(width for width in backend.BITS if width >= max(x.bits, y.bits))
    ends = []
    for one in (x,) if y is x else (x, y):
        words, encoding = _packed(one, bits)
        end = _end(backend, one, words, encoding)
        dtype = np.dtype(np.float32) if end.is_real else one.dtype
        limit = largest_magnitude(np.empty(0, one.dtype))
        ends.append((end, Features(words, one.shape, dtype, None, family_of(one), limit)))
    (first, left), (second, right) = ends[0], ends[-1]
    return CodePair(op, bits, first, second, left, right)


def repeated_codes(A: Any, x: Any, y: Any, op: Any, out: Any) -> Any:
    """The result of a call with BitTensors on a GPU that the pattern of A keeps; None for any other call."""
    calls = store_of(A).get(CODE_CALLS) if isinstance(A, SparseArray) else None
    y = x if y is None else y
    if not calls or x.__class__ is not BitTensor or y.__class__ is not BitTensor or not isinstance(op, str):
        return None
    call = calls.get(_key(x, y, op))
    if call is None or not call.fits((x.words, y.words), out):
        return None
    backend = backends.family(x.device, "edges.sddmm_codes")
    return call([_end(backend, one, one.words) for one in (x, y)], out)


def learn_codes(A: Any, operand: CSROperand, ends: tuple[Any, Any], pair: CodePair, result: ArrayKind) -> None:
    """Keep a call with a container on a GPU, if its BitTensors' own words are gathered."""
    x, y = ends[0], ends[0] if ends[1] is None else ends[1]
    for one in (x, y):
        if (one.bits, one.axis, one.layout) != (pair.bits, -1, "rows") or family_of(one).name not in ("numpy", "cupy"):
            return

    def make() -> KeptCall:
        return edge_call(operand, pair.product(operand, True), (x.words, y.words), *result)

    CODE_CALLS.of(store_of(A), make, _key(x, y, pair.op))


def _key(x: BitTensor, y: BitTensor, op: str) -> tuple[Any, ...]:
    """What two alike calls share: the operation, the kinds of both ends, and the shapes of their scales and offsets."""
    parts = (None if part is None else part.shape for one in (x, y) for part in (one.scale, one.offset))
    return op, kind_of(x), kind_of(y), tuple(parts)


def _end(backend: Any, x: BitTensor, words: Any, encoding: str | None = None) -> Any:
    """One end in the form that kernels take."""
    parts = (None if part is None else _placed(part, x.ndim) for part in (x.scale, x.offset))
    return backend.CodeEnds(words, encoding or x.encoding, *parts)


def _has_kernel(x: BitTensor, part: Any, op: str) -> bool:
    """Whether kernels take `part`, a scale or offset of `x`."""
    if part is None or part.ndim == 0 or part.shape[-1] == 1:
        return True
    return op != "dot" and all(size == 1 for size in part.shape[:-1])


def _placed(part: Any, ndim: int) -> Any:
    """A scale or offset as (nodes, heads, columns)."""
    shape = (1, 1, 1) if part.ndim == 0 else part.shape if ndim == 3 else (part.shape[0], 1, part.shape[1])
    return part.reshape(shape)


def _packed(x: BitTensor, bits: int) -> tuple[Any, str]:
    """The words in rows layout with `bits` bits, repacked if width or layout differ, and their encoding."""
    if x.bits == bits:
        found = interop.aligned(x.repack(axis=-1, layout="rows").words)
        return found, x.encoding
    backend = backends.family(x.device, "bits.pack")
    values = backend.unpack(x.words, x.shape, x.bits, axis=x.axis, layout=x.layout, encoding=x.encoding, dtype=x.dtype)
    encoding = "signed" if x.encoding == "bipolar" else x.encoding
    return backend.pack(values, bits, axis=-1, layout="rows", encoding=encoding), encoding
