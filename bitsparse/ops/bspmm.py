"""Aggregation with one-bit features, one-bit adjacency, or both (BitGNN's BSpMM)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.backends.params import CodeFeatures, EpilogueParams
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.ops import combine, letters, thresholds
from bitsparse.ops.epilogue import Epilogue, Operands
from bitsparse.ops.csr_operand import CSROperand
from bitsparse.ops.operands import host_csr

__all__ = ["bspmm"]

KERNELS = ("twice-plus", "plus-minus", "select")
_ROOM = 1 << 22  # bytes of sums held at a time on the way to their final form


def bspmm(
    A: Any,
    x: Any,
    variant: str | None = None,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    add: Any = None,
    epilogue: Epilogue | None = None,
    kernel: str | None = None,
    out: Any = None,
) -> Any:
    """Aggregate neighbours' features, ``A @ x``, with one bit per feature, per edge or per result (BitGNN sections 3.2.2 and 3.3).

    The letters of `variant` are the precisions of the activation `x`, of the adjacency `A` and of the output: F is full precision, B is one
    bit. One-bit features are -1/+1, a one-bit adjacency is 0/1. With both, sums are exact integer counters; with B out and B in they are
    compared with integer thresholds and never stored.

    Parameters
    ----------
    A : sparse (m, n)
        TCTiledCSR, FRDC, any :mod:`scipy.sparse` array, a one-bit BitTensor, or any object with ``csr_arrays()``. Its ``row_scale`` and
        ``col_scale`` (factorised edge weights, section 3.1.2) are applied. Letter B takes the pattern without explicit zeros; letter F the
        values (ones if it has none).
    x : BitTensor (n, d) of one bit, or float array (n, d)
        Letter B: bipolar bits for -1/+1 (unsigned bits for 0/1 are summed as such), fastest packed along the features (``axis=-1``).
        Letter F: float16, bfloat16 or float32. A scale of the bits is applied wherever the result is float.
    variant : str, optional
        ``"BBB"``, ``"BBF"``, ``"FBB"``, ``"FBF"``, ``"BFB"``, ``"BFF"``, ``"FFB"`` or ``"FFF"``. By default the letters of the operands,
        and B out if the epilogue binarises.
    reduce : {"sum", "mean"}
        The mean divides by the number of entries of the row; an empty row gives 0.
    add : array or one-bit BitTensor (m, d), optional
        Added to the aggregate, before the epilogue (BitGNN's ADD, for the node's own features).
    epilogue : Epilogue, optional
        Scale, bias, batch norm, activation; binarised for B out, at exactly the sign of that float32 chain.
    kernel : {None, "twice-plus", "plus-minus", "select"}
        How 0/1 times -1/+1 is computed: ``2 popc(a & b) - popc(a)`` (default), ``popc(a & b) - popc(a & ~b)``, or bit by bit. All
        give the same result; full-precision operands only know "select".
    out : array or BitTensor, optional
        Where to write, of exactly the result's kind, shape and dtype; also returned.

    Returns
    -------
    array (m, d) or BitTensor (m, d)
        Int32 for B features and B adjacency without scales, mean or epilogue; else float32; for B out a bipolar BitTensor packed
        along the features (as the epilogue says). A row without neighbours aggregates to 0, and sign(0) = +1.

    Raises
    ------
    ShapeError, DTypeError
        Operands that do not fit each other or the letters.
    KernelError
        A kernel that does not exist, or not for these letters.

    Notes
    -----
    Float sums are float32, added in column order with one rounding a product and a sum: |error| <= (row_nnz + 2) 2^-24 sum |a x|.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> A = csr_array(np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=bool))
    >>> x = bs.pack_bits(np.array([[0.5, -1.0], [2.0, -3.0], [-1.0, -1.0]]), encoding="bipolar")
    >>> bs.bspmm(A, x)
    array([[ 0, -2],
           [ 1, -1],
           [ 0,  0]], dtype=int32)
    >>> bs.bspmm(A, x, "BBB").toarray()
    array([[ 1, -1],
           [ 1, -1],
           [ 1,  1]], dtype=int8)
    """
    function = "bspmm"
    csr = host_csr(function, A)
    found = letters.activation_letter(function, "x", x) + ("B" if csr.values is None else "F")
    chosen = letters.checked(function, variant, found, epilogue)
    if chosen[0] != found[0]:
        remedy = "pack_bits(x, encoding='bipolar')" if found[0] == "F" else "x.astype(np.float32)"
        kind = "an ordinary array" if found[0] == "F" else "a BitTensor of 1 bit"
        raise DTypeError(
            f"{function}: variant {chosen!r} wants letter {chosen[0]} for x, which is {kind}; pass {remedy}"
        )
    epilogue = letters.with_output(function, chosen[2], epilogue)
    _check.choice(function, "reduce", reduce, ("sum", "mean"))
    name = _check.kernel(function, kernel, KERNELS)
    csr = _pattern(csr) if chosen[1] == "B" else csr
    features = _features(function, csr, x)
    call = _Call(function, csr, features, chosen, epilogue, reduce == "mean", name)
    return call.run(add, out)


def _pattern(csr: CSROperand) -> CSROperand:
    """The 0/1 matrix: no values, explicit zeros dropped (NaN counts as an entry)."""
    if csr.values is None or csr.indices is None:
        return csr
    keep = csr.values != 0
    if keep.all():
        return dataclasses.replace(csr, values=None)
    before = np.concatenate([[0], np.cumsum(keep)]).astype(csr.indptr.dtype)
    return dataclasses.replace(csr, indptr=before[csr.indptr], indices=csr.indices[keep], values=None)


class _Features(NamedTuple):
    shape: tuple[int, int]
    data: NDArray[Any]  # float32, or packed words of (n, 1, W)
    encoding: str | None  # None: float32
    node_scale: NDArray[np.float32] | None
    feature_scale: NDArray[np.float32] | None
    family: interop.Family


def _features(function: str, csr: CSROperand, x: Any) -> _Features:
    if not isinstance(x, BitTensor):
        array, family = interop.as_numpy(x, function, "x")
        if array.dtype.name not in ("float16", "bfloat16", "float32"):
            raise DTypeError(
                f"{function}: x has dtype {array.dtype}, but full-precision features are float16, bfloat16 or float32; pass "
                f"x.astype(np.float32), or pack_bits(x, encoding='bipolar') for one bit"
            )
        _fits(function, csr, array.shape)
        return _Features(array.shape, np.ascontiguousarray(array, np.float32), None, None, None, family)
    _check.on_cpu(function, "x", x.device)
    _fits(function, csr, x.shape)
    if x.offset is not None and x.offset.any():
        raise ValueError(f"{function}: x has an offset, which sums of signs leave out; pass x.with_affine(x.scale)")
    node = feature = None
    if x.scale is not None:
        if x.scale.ndim and x.scale.shape[0] != 1:
            node = x.scale.reshape(-1)
        else:
            feature = x.scale.reshape(-1) if x.scale.size != 1 else x.scale.reshape(())
    packed = x.repack(axis=-1, layout="planes")
    return _Features((x.shape[0], x.shape[1]), packed.words, x.encoding, node, feature, x._family)


def _fits(function: str, csr: CSROperand, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise ShapeError(
            f"{function}: x has shape {shape}, but features have 2 dimensions (nodes, features); aggregate batches one by one"
        )
    if csr.shape[1] != shape[0]:
        raise ShapeError(
            f"{function}: A has {csr.shape[1]} columns but x has {shape[0]} rows; pass one row of features per column of A"
        )


class _Call:
    """One aggregation: which sums, and what happens to them."""

    def __init__(
        self,
        function: str,
        csr: CSROperand,
        x: _Features,
        variant: str,
        epilogue: Epilogue | None,
        mean: bool,
        kernel: str | None,
    ) -> None:
        self.function, self.csr, self.x, self.epilogue, self.mean = function, csr, x, epilogue, mean
        self.shape = (csr.shape[0], x.shape[1])
        self.indices: Any = csr.indices
        self.lengths = np.diff(csr.indptr)
        self.longest = int(self.lengths.max(initial=0))
        counts = x.encoding is not None and variant[1] == "B" and csr.col_scale is None
        # Without a float step the stored integers are summed, as matmul multiplies them.
        self.exact = counts and epilogue is None and not mean and csr.row_scale is None
        self.counts = counts and (self.exact or x.node_scale is None)
        if self.counts:
            if self.longest >= 1 << 31:
                raise ValueError(
                    f"{function}: a row has {self.longest} entries, beyond int32 counters; split the graph"
                )
        elif kernel not in (None, "select"):
            raise KernelError(
                f"{function}: kernel {kernel!r} counts bits, but variant {variant!r} with these scales sums numbers; pass kernel=None"
            )
        self.kernel = kernel or KERNELS[0]

    def run(self, add: Any, out: Any) -> Any:
        function, epilogue = self.function, self.epilogue
        gives_bits = epilogue is not None and epilogue.gives_bits
        extra, family = combine.addend(function, add, self.shape) if add is not None else (None, self.x.family)
        family = interop.common_family([self.x.family, family])
        if self.exact:
            result = combine.exact_sum(self._integers(), extra) if extra is not None else self._integers()
        elif gives_bits and epilogue is not None:
            result = self._bits(epilogue, extra)
        else:
            result = self._floats(extra)
        if out is not None:
            return combine.store(function, out, result, self.shape, epilogue)
        if gives_bits and epilogue is not None:
            return epilogue.wrap(result, self.shape, family, function)
        return interop.from_numpy(result, family, function)

    def _integers(self) -> NDArray[np.int32]:
        sums: NDArray[np.int32] = backends.family("cpu", "bspmm").count(
            self.csr.indptr, self.indices, self.x.data, self.shape[1], bipolar=self._bipolar, kernel=self.kernel
        )
        return sums

    @property
    def _bipolar(self) -> bool:
        return self.x.encoding == "bipolar"

    def _params(self, own: bool) -> EpilogueParams:
        """The epilogue's chain, with the adjacency's row scale and the features' scale folded in if `own`."""
        operands = Operands(self.csr.row_scale, self.x.feature_scale) if own else Operands()
        return (self.epilogue or Epilogue()).params(self.function, self.shape, operands)

    def _bits(self, epilogue: Epilogue, extra: NDArray[Any] | None) -> NDArray[np.uint32]:
        rows, features = self.shape
        params = self._params(own=extra is None)
        limits = None
        if self.counts and extra is None:
            limits = thresholds.of_epilogue(params, self.lengths, features, self.longest, mean=self.mean)
        if limits is not None:
            words = backends.family("cpu", "bspmm").sign(
                self.csr.indptr,
                self.indices,
                self.x.data,
                features,
                limits,
                bipolar=self._bipolar,
                kernel=self.kernel,
            )
        else:
            along = params._replace(axis=-1, layout="planes")
            words = np.concatenate([part for _, part in self._chained(along, extra)] or [_no_words(rows, features)])
        if (params.axis, params.layout) != (-1, "planes"):
            words = backends.family("cpu", "bits").repack(
                words, self.shape, 1, axis=-1, layout="planes", to_axis=params.axis, to_layout=params.layout
            )
        return np.asarray(words)

    def _floats(self, extra: NDArray[Any] | None) -> NDArray[np.float32]:
        result = np.empty(self.shape, np.float32)
        for rows, part in self._chained(self._params(own=extra is None), extra):
            result[rows] = part
        return result

    def _chained(self, params: EpilogueParams, extra: NDArray[Any] | None) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Sums of some rows at a time, through the chain: nothing of the size of the result is held besides it."""
        chain = backends.family("cpu", "matmul").epilogue
        step = max(1, _ROOM // max(4 * self.shape[1], 1))
        for start in range(0, self.shape[0], step):
            rows = slice(start, min(start + step, self.shape[0]))
            sums = self._sums(rows)
            if extra is not None:
                # the adjacency's and the features' scales belong to the aggregate alone
                first = EpilogueParams(row_scale=_part(self.csr.row_scale, rows), col_scale=self.x.feature_scale)
                sums = chain(sums, first) + extra[rows].astype(np.float32)
            yield rows, chain(sums, params._replace(row_scale=_part(params.row_scale, rows)))

    def _sums(self, rows: slice) -> NDArray[Any]:
        """Int32 or float32 sums (or means) of some rows, before any scale."""
        csr, x = self.csr, self.x
        first, last = int(csr.indptr[rows.start]), int(csr.indptr[rows.stop])
        indptr, indices = (
            csr.indptr[rows.start : rows.stop + 1] - csr.indptr.dtype.type(first),
            self.indices[first:last],
        )
        if self.counts:
            sums = backends.family("cpu", "bspmm").count(
                indptr, indices, x.data, self.shape[1], bipolar=self._bipolar, kernel=self.kernel
            )
            if not self.mean:
                return np.asarray(sums)
            divisor = np.maximum(self.lengths[rows], 1).astype(np.float32)[:, None]
            return np.asarray(sums.astype(np.float32) / divisor)
        data: Any = x.data
        if x.encoding is not None:
            data = CodeFeatures(x.data.reshape(x.data.shape[0], -1), x.shape[1], 1, x.encoding)
        sums = backends.family("cpu", "sample").gather(
            indptr,
            indices,
            data,
            values=None if csr.values is None else csr.values[first:last].astype(np.float32),
            col_scale=_times(csr.col_scale, x.node_scale),
            mean=self.mean,
        )
        return np.asarray(sums)


def _part(scale: Any, rows: slice) -> Any:
    return scale if scale is None or np.ndim(scale) == 0 else np.ascontiguousarray(scale[rows])


def _times(a: NDArray[np.float32] | None, b: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    if a is None or b is None:
        return b if a is None else a
    return np.asarray(a * b, np.float32)


def _no_words(rows: int, features: int) -> NDArray[np.uint32]:
    return np.zeros((rows, 1, -(-features // 128) * 4), np.uint32)
