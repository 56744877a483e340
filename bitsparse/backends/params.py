"""Plain data that public functions hand to a backend, and the layout arithmetic that all backends share."""

from __future__ import annotations

from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bitsparse import interop
from bitsparse._records import replace

#: An array on the backend's device, of NumPy or CuPy. Both are annotated as NumPy's, since CuPy has no type annotations.
Array = NDArray[Any]

#: The numbers that stand for options in compiled code.
ENCODINGS = {"unsigned": 0, "signed": 1, "bipolar": 2}
LAYOUTS = {"planes": 0, "rows": 1}
ROUNDINGS = {"floor": 0, "nearest": 1, "stochastic": 2}
ACTIVATIONS = {None: 0, "relu": 1, "leaky_relu": 2, "tanh": 3}
#: Ways to compute products of 0/1 with -1/+1 by counting bits. Their positions are their numbers in compiled code.
METHODS = ("twice-plus", "plus-minus", "select")
#: Ways to sample the edges of a row ("all" leaves none out). Their positions are their numbers in compiled code.
STRATEGIES = ("aes", "afs", "sfs", "uniform", "all")
#: Dtypes. Their positions are their numbers in compiled code.
DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
#: Floats that are summed in float32 and rounded at the end.
SIXTEEN = ("float16", "bfloat16")
#: The packed axis is padded to a multiple of this many bits (16 bytes).
GROUP_BITS = 128
#: A tile of the zero-tile bitmap: rows of the left operand, and elements along the contraction axis.
TILE_ROWS, TILE_COLS = 8, 128

#: The sort key of a row that has no bit in common with the query, and of a missing neighbour (``common/neighbours.h``).
FARTHEST = 0xFFFFFFFF

#: The distance given for a missing neighbour, by metric.
NOWHERE: dict[str, float] = {"hamming": 2**31 - 1, "jaccard": float("inf"), "dot": -(2**31)}


class PairTest(NamedTuple):
    """Two rows count as similar if ``weight * common >= share * (ones of both) + bound``; `common` is the number of bits set in both."""

    weight: int
    share: int
    bound: int


def packed_words(length: int, bits: int, layout: str) -> int:
    """Number of uint32 words for ``length`` packed elements, per plane ("planes") or in total ("rows").

    Examples
    --------
    >>> packed_words(129, 3, "planes"), packed_words(129, 4, "rows")
    (8, 20)
    """
    return -(-(length if layout == "planes" else length * bits) // GROUP_BITS) * (GROUP_BITS // 32)


def words_shape(shape: tuple[int, ...], bits: int, axis: int, layout: str) -> tuple[int, ...]:
    """Shape of the array of words that holds an array of `shape` packed along `axis`.

    Examples
    --------
    >>> words_shape((3, 130), 2, -1, "planes"), words_shape((3, 130), 2, -2, "rows")
    ((3, 2, 8), (130, 4))
    """
    row = (bits,) if layout == "planes" else ()
    return (*shape[:-2], shape[-3 - axis], *row, packed_words(shape[axis], bits, layout))


def ends_shape(shape: tuple[int, ...], granularity: str) -> tuple[int, ...]:
    """Shape of an array with one end of each range, if there is one range per "tensor", "row" or "col".

    Examples
    --------
    >>> ends_shape((5, 2, 3), "tensor"), ends_shape((5, 2, 3), "row"), ends_shape((5, 2, 3), "col")
    ((), (5, 2, 1), (5, 1, 3))
    """
    return {"tensor": (), "row": (*shape[:-1], 1), "col": (*shape[:-2], 1, shape[-1])}[granularity]


class Packing(TypedDict):
    """How integers become bits: keywords of the packing functions of every backend. See :class:`bitsparse.BitTensor`."""

    axis: int
    layout: str
    encoding: str


class Sides(NamedTuple):
    """What a quantiser does with ``x / divisor`` before it rounds, for maps in which the two sides of 0 differ."""

    zero: float  # the whole number that is added, on which 0 therefore lies
    below: float = 0.0  # unless 0, negative x give ``x * below`` in place of the quotient
    marked: bool = False  # whether all x that are not positive get the lowest code


class Quantisation(TypedDict):
    """How real numbers become packed codes, ``clip(round(((x - offset) / divisor) * multiplier), qmin, qmax)`` modulo ``2**bits``.

    Keywords of ``quantize`` in every backend. Each step is rounded to the dtype of ``offset`` and ``divisor`` (float32 or float64).
    Element i in C order takes the random bits of index ``first_index + i`` (``first_index`` is 0 by default).
    """

    offset: Any
    divisor: Any
    multiplier: float
    qmin: int
    qmax: int
    rounding: str  # "floor" | "nearest" | "stochastic"
    seed: int
    stream: Any  # a number; on a GPU also an array of one uint32, which the kernel reads when it runs
    first_index: NotRequired[int]
    sides: NotRequired[Sides | None]  # only for offset 0, float32 x and adjacent codes of 2, 4 or 8 bits
    axis: int
    layout: str


class Factors(TypedDict):
    """Sizes and encodings of the packed operands of a product ``(..., m, k) @ (..., k, n)``: keywords of ``matmul`` in every backend."""

    k: int
    a_bits: int
    b_bits: int
    a_encoding: str
    b_encoding: str
    acc_dtype: DTypeLike  # int32 or int64: a type that holds every element of the product


def check_indices(*arrays: Array) -> None:
    """Raise ValueError unless all index arrays have the same dtype, int32 or int64."""
    dtypes = {array.dtype for array in arrays}
    if dtypes not in ({np.dtype(np.int32)}, {np.dtype(np.int64)}):
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise ValueError(f"index arrays must all be int32 or all int64, got {names}; convert them with astype")


def tile_bitmap_shape(outer: int, length: int) -> tuple[int, int]:
    """Shape of the zero-tile bitmap of one ``outer x length`` left operand, one bit per 8 x 128 tile.

    Examples
    --------
    >>> tile_bitmap_shape(9, 5000)
    (2, 2)
    """
    tile_columns = -(-length // TILE_COLS)
    return -(-outer // TILE_ROWS), -(-tile_columns // 32)


class Pattern(NamedTuple):
    """A CSR pattern as functions over edges take it on a CPU. On a GPU they take its schedule, which has these fields and more.

    If `indices` is None, edge e lies in column e, and `edges` is the number of edges.

    Examples
    --------
    >>> Pattern(np.array([0, 2]), np.array([0, 1]), (1, 2)).nnz, Pattern(np.array([0, 2]), None, (1, 2), 2).nnz
    (2, 2)
    """

    indptr: Any
    indices: Any
    shape: tuple[int, int]
    edges: int | None = None

    @property
    def nnz(self) -> int:
        """Number of edges."""
        return int(self.indices.size) if self.edges is None else self.edges


class Translation(NamedTuple):
    """The condensed windows of a canonical CSR pattern, which tile kernels load. See :class:`bitsparse.TCTiledCSR`."""

    window: int
    cols_indptr: Any
    cols: Any
    edge_col: Any


def position_dtype(most: int) -> np.dtype[Any]:
    """The smallest dtype that can number `most` columns of a window.

    Examples
    --------
    >>> position_dtype(256), position_dtype(257)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.dtype(np.uint8 if most <= 1 << 8 else np.uint16 if most <= 1 << 16 else np.int32)


class EpilogueParams(NamedTuple):
    """What happens to an integer accumulator before it is stored; ``None`` skips a step.

    Row vectors have shape ``()``, ``(m,)`` or ``(*batch, m)``, column vectors ``()``, ``(n,)`` or ``(*batch, n)``; all are float32.
    The steps, in this order and each rounded to float32, are: ``v = acc``, ``v *= row_scale``, ``v *= col_scale``,
    ``v += row_term[0] * row_term[1]``, ``v += col_term[0] * col_term[1]`` (each a row vector times a column vector), ``v += bias``,
    ``v = v * bn_scale + bn_shift``, the activation, and then ``out``.
    """

    out: str = "float"  # "float": v as float32; "bits": requantised words
    row_scale: Any = None
    col_scale: Any = None
    row_term: tuple[Any, Any] | None = None
    col_term: tuple[Any, Any] | None = None
    bias: Any = None  # column vector
    bn_scale: Any = None  # column vectors
    bn_shift: Any = None
    activation: str | None = None  # None | "relu" | "leaky_relu" | "tanh"
    negative_slope: float = 0.01  # a float32 value
    # out == "bits": q = clip(round(((v - offset) / divisor) * multiplier), qmin, qmax), or v >= 0 when binarize
    bits: int = 1
    binarize: bool = False
    offset: Any = None  # float32, () | (m, 1) | (1, n) with optional batch dimensions
    divisor: Any = None
    multiplier: float = 1.0
    qmin: int = 0
    qmax: int = 1
    rounding: str = "nearest"  # "floor" | "nearest" | "stochastic"
    seed: int = 0
    stream: int = 0
    axis: int = -1
    layout: str = "planes"
    function: str = "matmul"  # the public function that was called, for messages

    def joined(self, operand: OperandParams) -> EpilogueParams:
        """A copy of the epilogue that includes the scales, terms and bias of one product's operands."""
        row_scale = times(self.row_scale, operand.row_scale)
        col_scale = times(self.col_scale, operand.col_scale)
        bias = self.bias if operand.bias is None else operand.bias
        terms = {"row_term": operand.row_term, "col_term": operand.col_term}
        return replace(self, row_scale=row_scale, col_scale=col_scale, bias=bias, **terms)


class OperandParams(NamedTuple):
    """What the operands of one product contribute to an epilogue: float32 vectors on the operands' device, or None.

    A scale is first multiplied by the epilogue's own scale (``v *= fl(own * operand's)``). A term is a row vector and a column vector.
    A bias replaces the epilogue's own.
    """

    row_scale: Any = None
    col_scale: Any = None
    row_term: tuple[Any, Any] | None = None
    col_term: tuple[Any, Any] | None = None
    bias: Any = None


def times(mine: Any, theirs: Any) -> Any:
    """The float32 product of two factors, on the device of the second one; None stands for 1.

    Examples
    --------
    >>> times(np.ones(2, np.float32), np.full(2, 3, np.float32)), times(None, 5)
    (array([3., 3.], dtype=float32), 5)
    """
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return (interop.namespace(theirs).asarray(mine) * theirs).astype(np.float32)


class Thresholds(NamedTuple):
    """Integer thresholds that decide the sign of a float epilogue: bit = ``(sum >= values[class]) ^ flips[class]``.

    ``values`` (int64) and ``flips`` (bool) have shape ``(classes, features)`` or ``(classes, 1)``; ``class_of`` gives the class of each row
    as int32 ``(m,)``, or is None if there is one class. No row has more than ``longest`` entries.
    """

    values: Any
    flips: Any
    class_of: Any
    longest: int

    @property
    def single(self) -> tuple[int, bool] | None:
        """The threshold and flip if they are the same for all sums, else None. This reads the arrays, which may be on a GPU."""
        values, flips = self.values.reshape(-1), self.flips.reshape(-1)
        if not values.size or not (values.size == 1 or bool((values == values[0]).all() & (flips == flips[0]).all())):
            return None
        return int(values[0]), bool(flips[0])


class Sampling(NamedTuple):
    """Which edges of each row are summed: at most `width`, drawn by a strategy of :func:`bitsparse.edge_sample`, or all of them."""

    width: int = 1
    strategy: str = "all"
    seed: int = 0
    stream: int = 0


#: The sampling that leaves nothing out.
EVERY_EDGE = Sampling()


class CodeFeatures(NamedTuple):
    """Feature rows of adjacent ``bits``-bit codes (``rows`` layout), and the affine map to their real values.

    ``scale`` and ``offset`` are float32 scalars, ``(n, 1)`` or ``(1, features)``, or None.
    """

    words: Any
    features: int
    bits: int
    encoding: str
    scale: Any = None
    offset: Any = None


class PackedFeatures(NamedTuple):
    """What the words ``(rows, heads, words)`` of a gathered operand mean: adjacent integers of `bits` bits, `width` integers per head.

    With a scale and an offset, a value is ``fl(fl(q * scale) + offset)``. Both are float32 vectors with one element for each row
    (``affine="row"``) or for each column of all heads (``affine="column"``).
    """

    bits: int
    encoding: str
    width: int
    affine: str | None = None
    scale: Any = None
    offset: Any = None


class CodeSumKind(NamedTuple):
    """What a GPU sums over the edges of a pattern: adjacent integers of `bits` bits, `width` integers per head of a node.

    Attributes
    ----------
    mean : bool
        Give float32 means, sums divided by the lengths of their rows, with 0 for empty rows.
    weights : {"none", "int32", "float32", "nodes", "row"}
        The values that calls pass for the edges, or for "nodes" the uint8 factors of the gathered rows; "row" takes the float32 in the last
        word of each gathered row. Sums of integers, weighted or not, must fit int32; float32 weights give float32 sums.
    per_head : bool
        The values of the edges have shape (nnz, heads), one value per head.
    scaled : bool
        Sums or means are turned into real numbers by the :class:`SumScales` of each call.
    """

    bits: int
    encoding: str
    width: int
    heads: int = 1
    mean: bool = False
    weights: str = "none"
    per_head: bool = False
    scaled: bool = False


class SumScales(NamedTuple):
    """How sums become real numbers: ``sum * row_scale * scale + own_scale * own + bias``.

    Attributes
    ----------
    scale : float32 array () or None
    row_scale : float32 array (rows,) or None
    own : float32 array of the result's shape or None
        C-contiguous.
    own_scale : float32 array of one element or None
    bias : float32 array of the result's columns or None
    """

    scale: Any = None
    row_scale: Any = None
    own: Any = None
    own_scale: Any = None
    bias: Any = None


class Dropout(NamedTuple):
    """Dropout of edge weights: each is set to 0 with probability `rate`; the others are divided by ``1 - rate``.

    The random numbers are those of :func:`bitsparse.backends.reference.scalar.edges_kept`. `seed` is a 64-bit integer or, on a GPU, also
    an array that holds one, which kernels read when they run.

    Examples
    --------
    >>> Dropout(0.75, 1).threshold / 2**32, Dropout(0.75, 1).scale
    (0.75, 4.0)
    """

    rate: float
    seed: Any

    @property
    def threshold(self) -> int:
        """An edge is kept if its 32 random bits, as an integer, are at least this number."""
        return min(round(self.rate * 2.0**32), 2**32 - 1)

    @property
    def scale(self) -> float:
        """The factor by which kept weights are multiplied."""
        return 1 / (1 - self.rate) if self.rate < 1 else 0.0


#: The most edges of a row that are summed one after another. A longer row is summed in pieces of this length, then the pieces in order.
SEGMENT = 1024
