"""The operands of :func:`bspmm` besides the adjacency: features of one bit or full precision, and an addend; and its options."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends, interop
from bitsparse._check import shown
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of
from bitsparse.backends.params import METHODS, Array
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.interop.kept import Slot
from bitsparse.ops.binary import letters
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features, as_features, matrix
from bitsparse.ops.operands.places import same_place

#: Dtypes of full-precision features.
FLOATS = ("float16", "bfloat16", "float32")


class Addend(NamedTuple):
    """The addend of an aggregate: numbers (m, features), or words (m, 1, W) of one bit with their encoding."""

    data: Array
    encoding: str | None
    family: interop.Family

    @property
    def is_integer(self) -> bool:
        """Whether integer sums stay integers with this addend."""
        return self.encoding is not None or self.data.dtype.kind in "biu"


class Aggregation(NamedTuple):
    """The options of an aggregation.

    Attributes
    ----------
    function : str
        The public function, for error messages.
    variant : str
        The three letters.
    columns : int
        Features of a node.
    reduce : {"sum", "mean"}
    epilogue : Epilogue or None
    kernel : str or None
        The forced kernel.
    row_factors, col_factors : bool
        Whether the adjacency has row scales, and column scales.
    """

    function: str
    variant: str
    columns: int
    reduce: str
    epilogue: Epilogue | None
    kernel: str | None
    row_factors: bool
    col_factors: bool

    @property
    def mean(self) -> bool:
        """Whether sums are divided by the lengths of the rows."""
        return self.reduce == "mean"

    @property
    def method(self) -> str:
        """Name of the method that counts bits."""
        return self.kernel if self.kernel in METHODS else METHODS[0]

    def counts(self, x: Features) -> bool:
        """Whether the sums over neighbours are integers, which takes bits and no weights."""
        return x.encoding is not None and self.variant[1] == "B" and not self.col_factors

    def is_exact(self, x: Features, addend: Addend | None) -> bool:
        """Whether no float step follows, so that stored integers are summed without their scale, as in matmul."""
        plain = self.epilogue is None and not self.mean and not self.row_factors
        return plain and self.counts(x) and (addend is None or addend.is_integer)

    def check_sums(self, counted: bool, longest: int) -> None:
        """Refuse rows that are too long for counters, and a method of counting if numbers are summed."""
        if longest >= 1 << 31:
            raise ValueError(f"{self.function}: a row has {longest} entries, beyond int32 counters; split the graph")
        if not counted and self.kernel in METHODS and self.kernel != "select":
            raise KernelError(
                f"{self.function}: kernel {shown(self.kernel)} counts bits, but variant {shown(self.variant)} with these scales sums "
                f"numbers; pass kernel=None"
            )


def signs_or_floats(function: str, csr: CSROperand, x: Any) -> Features:
    """Features of the columns of an adjacency, as floats or as words of one bit packed along the features; copied only if need be."""
    features = as_features(function, "x", x)
    source = features.source
    if source is None and features.dtype.name not in FLOATS:
        raise DTypeError(
            f"{function}: x has dtype {features.dtype}, but full-precision features are float16, bfloat16 or float32; pass "
            f"x.astype(np.float32), or pack_bits(x, encoding='bipolar') for one bit"
        )
    same_place(function, [("A", csr.device), ("x", features.device)])
    shape = matrix(function, features)
    if shape[0] != csr.shape[1]:
        csr.check_features(function, shape)
    if source is None:
        return features
    if source.offset is not None and source.offset.any():
        raise ValueError(f"{function}: x has an offset, which sums of signs leave out; pass x.with_affine(x.scale)")
    return dataclasses.replace(features, data=source.repack(axis=-1, layout="planes").words)


#: Slot for the mask of a matrix's non-zero entries, and the pattern of these entries.
_NONZERO: Slot[tuple[Array, CSROperand]] = Slot("entries that are not zero", most=1)


def pattern_of(csr: CSROperand) -> CSROperand:
    """The 0/1 matrix: no values, explicit zeros dropped (NaN counts as an entry)."""
    if csr.values is None or csr.indices is None:
        return csr
    keep = csr.values != 0
    if bool(keep.all()):
        return dataclasses.replace(csr, values=None)
    # The remaining pattern, with all that is prepared for it, is kept while the mask stays the same; so the values are compared every time.
    kept = _NONZERO.get(csr.prepared)
    if kept is not None and bool((kept[0] == keep).all()):
        return kept[1]
    entries = backends.family(csr.device, "sparse.entries")
    indptr, indices, _ = entries.keep(csr.indptr, csr.indices, None, keep)
    pattern = dataclasses.replace(csr, indptr=indptr, indices=indices, values=None, count=None, prepared={})
    _NONZERO.keep(csr.prepared, (keep, pattern))
    if csr.device != "cpu":
        csr.ready.renew()
    return pattern


def addend_of(function: str, value: Any, shape: tuple[int, int], device: str) -> Addend:
    """The checked addend of :func:`bspmm`."""
    if isinstance(value, BitTensor):
        letters.activation_letter(function, "add", value)
        found, there = value.shape, value.device
    else:
        array, family = interop.as_array(value, function, "add", kinds="biuf")
        found, there = array.shape, interop.device_of(array)
    if tuple(found) != shape:
        raise ShapeError(
            f"{function}: add has shape {tuple(found)}, but the aggregate has shape {shape}; make them equal"
        )
    same_place(function, [("A", device), ("add", there)])
    if not isinstance(value, BitTensor):
        return Addend(array, None, family)
    if value.scale is not None or value.offset is not None:
        return Addend(interop.as_array(value.dequantize(), function, "add")[0], None, family_of(value))
    if device == "cpu":
        return Addend(interop.as_numpy(value.toarray(), function, "add")[0], None, family_of(value))
    return Addend(value.repack(axis=-1, layout="planes").words, value.encoding, family_of(value))


def sum_dtype(addend: Array, longest: int) -> np.dtype[Any]:
    """int32 if sums of counters and these integers fit, else int64; for wide integers it reads the data, which waits for a GPU.

    Examples
    --------
    >>> sum_dtype(np.array([1 << 30]), 9), sum_dtype(np.array([(1 << 31) - 9]), 9)
    (dtype('int32'), dtype('int64'))
    """
    dtype = addend.dtype
    if dtype.itemsize <= 2:
        return np.dtype(np.int32 if longest + 65536 < 1 << 31 else np.int64)
    low, high = (int(addend.min()), int(addend.max())) if addend.size else (0, 0)
    if low - longest >= -(1 << 31) and high + longest < 1 << 31:
        return np.dtype(np.int32)
    if high >= 1 << 62:
        raise ValueError(f"bspmm: add reaches {high}, too close to the end of int64; use smaller integers")
    return np.dtype(np.int64)
