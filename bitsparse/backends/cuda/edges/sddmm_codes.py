"""Products per edge of packed integers on the GPU, without unpacking them first. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from bitsparse import jit
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.bounds import PAIRED_CODES
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.sddmm import OPS, EdgeCalls, dot_defines, walked
from bitsparse.backends.params import ENCODINGS, packed_words

#: Bit widths of integers for which there are kernels.
BITS = (1, 2, 4, 8)
_THREADS, _DOT_THREADS = 256, 128
_INT32 = "int32"  # a vector is four words, whatever the words contain


CodeParams = jit.struct("edges/ends.cuh", "EdgesParams", optional=True)


class CodeEnds(NamedTuple):
    """Rows of packed integers at one end of the edges.

    Attributes
    ----------
    words : cupy.ndarray of uint32 (nodes, words) or (nodes, heads, words)
        Rows layout, C-contiguous and aligned to 16 bytes.
    encoding : {"unsigned", "signed", "bipolar"}
    scale, offset : cupy.ndarray of float32, optional
        (nodes, heads, columns), with size 1 along axes on which they do not depend; any strides.
    """

    words: Any
    encoding: str
    scale: Any = None
    offset: Any = None

    @property
    def is_real(self) -> bool:
        """Whether the integers stand for real values."""
        return self.scale is not None or self.offset is not None

    @property
    def by_column(self) -> bool:
        """Whether scale or offset depend on the column."""
        return any(part is not None and part.shape[2] > 1 for part in (self.scale, self.offset))

    @property
    def form(self) -> tuple[Any, ...]:
        """Shapes and strides of scale and offset, which determine their steps."""
        return tuple(None if part is None else (part.shape, part.strides) for part in (self.scale, self.offset))

    def fill(self, side: ctypes.Structure) -> None:
        """Write the steps of scale and offset into a kernel's argument."""
        for name in ("scale", "offset"):
            part = getattr(self, name)
            for i, axis in enumerate(("node", "head", "column")):
                varies = part is not None and part.shape[i] > 1
                setattr(side, f"{name}_{axis}", part.strides[i] // 4 if varies else 0)


class CodesKind(NamedTuple):
    """The properties of a product for which its kernel is compiled.

    Attributes
    ----------
    op : "dot", "add" or "mul"
    bits : int
        1, 2, 4 or 8, for both ends.
    encodings : tuple of str
        Encodings of both ends.
    columns, heads : int
        Integers per head, and number of heads.
    real, offsets, by_column : bool
        Whether results are float32 for real values; whether an end has offsets; whether scales or offsets depend on the column, which dot
        products do not allow.
    """

    op: str
    bits: int
    encodings: tuple[str, str]
    columns: int
    heads: int = 1
    real: bool = False
    offsets: bool = False
    by_column: bool = False

    @classmethod
    def of(cls, op: str, bits: int, columns: int, heads: int, x: CodeEnds, y: CodeEnds) -> CodesKind:
        """The kind of a product of these ends."""
        offsets = x.offset is not None or y.offset is not None
        real, by_column = x.is_real or y.is_real, x.by_column or y.by_column
        return cls(op, bits, (x.encoding, y.encoding), columns, heads, real, offsets, by_column)


def codes_defines(kind: CodesKind, *, large: bool = False) -> dict[str, int]:
    """Constants of the kernel for a kind: ``sddmm_edges`` for dot products (see :func:`dot_defines`), else ``sddmm_codes``.

    Examples
    --------
    >>> kind = CodesKind("dot", 8, ("signed", "signed"), 128, 1, False, False, False)
    >>> made = codes_defines(kind)
    >>> made["BS_CODES"], made["BS_LANES"], made["BS_FULL"], made["BS_LEFT"]
    (8, 8, 1, 1)
    >>> from bitsparse._records import replace
    >>> made = codes_defines(replace(kind, op="add", columns=6))
    >>> made["BS_VECTOR"], made["BS_LANES"]
    (8, 4)
    """
    found = {"BS_CODES": kind.bits} | jit.flags(real=kind.real)
    if kind.op == "dot":
        vectors = packed_words(kind.columns, kind.bits, "rows") // 4
        found |= dot_defines(_INT32, 16, vectors, kind.heads, large=large, blocks=8)
        found["BS_LEFT"], found["BS_RIGHT"] = (ENCODINGS[encoding] for encoding in kind.encodings)
        return found | jit.flags(offsets=kind.offsets)
    vector = edges.vector_bytes(4 * kind.columns, 4, ())
    lanes = edges.lanes_for(4 * kind.columns // vector)
    found |= {"BS_TYPE": edges.element_type(_INT32), "BS_VECTOR": vector, "BS_LANES": lanes}
    return found | {"BS_STEPS": min(lanes, 2)} | jit.flags(columns=kind.by_column, large=large, heads=kind.heads > 1)


class CodesProduct(EdgeCalls):
    """Dot products, sums or products of rows of packed integers for every edge, prepared for one pattern: ``product(x, y, out)``.

    Sums of products are exact in int32; the caller has made sure that they fit. A real dot product is computed from the exact sums of
    products and, with offsets, of the integers of each row, with at most six roundings. Real sums and products equal those of the
    dequantised ends.

    Parameters
    ----------
    schedule : Schedule
        Schedule of a pattern with edges.
    indices : cupy.ndarray
        As `indptr` of the schedule.
    kind : CodesKind
    """

    def __init__(self, schedule: Schedule, kind: CodesKind) -> None:
        self._forms: list[Any] = [None, None]
        params = CodeParams(columns=kind.columns, op=OPS[kind.op])
        schedule = walked(params, schedule, kind.heads)
        params.row_bytes = 4 * packed_words(kind.columns, kind.bits, "rows")
        half = 1 << (kind.bits - 1)
        for side, encoding in zip((params.left, params.right), kind.encodings, strict=True):
            side.shift, side.minus = int(encoding == "bipolar"), int(encoding == "bipolar")
            if encoding == "signed":
                side.flip = side.minus = half
        defines = codes_defines(kind, large=schedule.large)
        dot = kind.op == "dot"
        name, threads = ("sddmm_edges", _DOT_THREADS) if dot else ("sddmm_codes", _THREADS)
        params.vectors = (params.row_bytes if dot else 4 * kind.columns) // defines["BS_VECTOR"]
        kernel = PAIRED_CODES.kernel("edges/sddmm_dot.cu" if dot else "edges/sddmm_codes.cu", name, defines)
        super().__init__(kernel.launch(-(-params.warps // (threads // 32)), threads, params), schedule)

    def __call__(self, x: CodeEnds, y: CodeEnds, out: Any) -> Any:
        """Write the products into `out`, C-contiguous int32 or float32 aligned to 16 bytes, and return it."""
        with self._lock:
            params = self._params
            params.x, params.y, params.out = x.words.data.ptr, y.words.data.ptr, out.data.ptr
            for i, (end, side) in enumerate(((x, params.left), (y, params.right))):
                side.scale = None if end.scale is None else end.scale.data.ptr
                side.offset = None if end.offset is None else end.offset.data.ptr
                form = end.form
                if form != self._forms[i]:  # rarely; filling takes longer than everything else here
                    end.fill(side)
                    self._forms[i] = form
            self._launch()
        return out


def _variants() -> list[jit.Variant]:
    """Variants for dot products of 128, 256 and more integers with equal and mixed encodings, and for sums of integers and real values."""
    signed, mixed, signs = ("signed", "signed"), ("unsigned", "signed"), ("bipolar", "bipolar")
    kinds = [CodesKind("dot", 8, signed, columns, real=True) for columns in (128, 256)]
    kinds += [CodesKind("dot", 4, signed, 128, real=True), CodesKind("dot", 8, mixed, 128, real=True, offsets=True)]
    kinds += [CodesKind("dot", 2, signed, 128), CodesKind("dot", 1, signs, 128)]
    kinds += [CodesKind("dot", 4, mixed, 256, 2, real=True, offsets=True)]
    dots = [codes_defines(kind) for kind in kinds]
    dots += [codes_defines(CodesKind("dot", 8, signed, 1536, real=True), large=True)]
    rows = [CodesKind("add", 8, signed, 128), CodesKind("add", 8, signed, 128, real=True)]
    rows += [CodesKind("add", 8, signed, 128, real=True, by_column=True)]
    sums = [codes_defines(kind) for kind in rows]
    sums += [codes_defines(CodesKind("add", 8, signed, 128, 2, real=True), large=True)]
    return [
        *jit.variants_of("edges/sddmm_dot.cu", "sddmm_edges", dots),
        *PAIRED_CODES.variants("edges/sddmm_codes.cu", "sddmm_codes", sums),
    ]


VARIANTS = _variants()
