"""Aggregation with one-bit features, a one-bit adjacency, or both (BitGNN's BSpMM)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from bitsparse import _check, interop
from bitsparse._records import replace
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.frdc import FRDC
from bitsparse.arrays.inside import assembled
from bitsparse.backends.params import METHODS, words_shape
from bitsparse.errors import DTypeError, KernelError
from bitsparse.interop import ArrayLike, SparseLike
from bitsparse.interop.kept import READY, Slot
from bitsparse.ops.binary import letters
from bitsparse.ops.binary.bspmm_gpu import TILES, GpuAggregates
from bitsparse.ops.binary.bspmm_host import HostCall
from bitsparse.ops.binary.bspmm_operands import (
    FLOATS,
    Addend,
    Aggregation,
    addend_of,
    pattern_of,
    signs_or_floats,
)
from bitsparse.ops.finish.epilogue import Epilogue, as_array_or_bits
from bitsparse.ops.operands.csr import CSROperand, same_arrays
from bitsparse.ops.operands.dense import Features
from bitsparse.ops.operands.places import device_of_sparse, working_with
from bitsparse.ops.operands.sparse import single_csr
from bitsparse.ops.operands.target import target_of

#: The remedy in the message about an `out` of bits.
_OTHERWISE = "a variant that ends in B"
#: Ways to count bits, and kernels for a GPU.
KERNELS = (*METHODS, "csr", "frdc", "windows")


class BspmmPlan:
    """A prepared aggregation ``plan(x, add=None, out=None)``; made by :func:`plan_bspmm`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    variant : str
        The three letters.
    device : str
        Device of the adjacency, on which all other arrays must be too.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> bs.plan_bspmm(sp.csr_array(np.array([[False, True], [True, True]])), 8)
    <BspmmPlan BBF shape=(2, 8) reduce=sum edges=3>
    """

    def __init__(self, csr: CSROperand, wanted: Aggregation, added: bool) -> None:
        function, self._added = wanted.function, added
        _check.choice(function, "reduce", wanted.reduce, ("sum", "mean"))
        forced = _check.kernel(function, wanted.kernel, KERNELS)
        self._wanted, self.variant = wanted, wanted.variant
        self._csr = csr = pattern_of(csr) if wanted.variant[1] == "B" and csr.values is not None else csr
        self.device, self.shape = csr.device, (csr.shape[0], wanted.columns)
        plain = not (wanted.mean or added) and csr.row_scale is None and csr.col_scale is None
        #: Dtype of the result for an addend of float32, if there is one; for a BitTensor, of the integers that it holds.
        self.dtype: np.dtype[Any] = np.dtype(np.int32 if plain and self.variant[:2] == "BB" else np.float32)
        if wanted.epilogue is not None:
            self.dtype = wanted.epilogue.dtype
        self._gpu = None if self.device == "cpu" else _aggregates(csr, wanted)
        if self._gpu is None and forced not in (None, *METHODS):
            raise KernelError(
                f"{function}: kernel {_check.shown(forced)} runs on a GPU, but A is on the CPU; pass kernel=None"
            )

    def __repr__(self) -> str:
        return f"<BspmmPlan {self.variant} shape={self.shape} reduce={self._wanted.reduce} edges={self._csr.nnz}>"

    @property
    def kernel(self) -> str:
        """Name of the method that counts bits, or of the kernel that sums floats."""
        if self._gpu is not None:
            return self._gpu.kernel
        return self._wanted.kernel or METHODS[0 if self.variant[:2] == "BB" else 2]

    @property
    def nbytes(self) -> int:
        """Bytes that are kept for the adjacency in addition to its own arrays."""
        return 0 if self._gpu is None else int(self._csr.schedule.nbytes)

    def explain(self) -> str:
        """Say in a few lines which kernel computes the aggregate and why."""
        (rows, cols), edges = self._csr.shape, self._csr.nnz
        first = f"{self.variant}: {rows} x {cols}, {edges} edges: {self._wanted.reduce} of {self.shape[1]} features"
        if self._gpu is None:
            how = "vertical counters where both are one bit, else float32 sums"
            return f"{first}\non the CPU, edge by edge: {how}"
        return "\n".join((first, *self._tiles(), *self._gpu.explain()))

    def _tiles(self) -> list[str]:
        """Say why 4 x 4 tiles are not summed tile by tile, if the adjacency has tiles."""
        tiles = TILES.get(self._csr.prepared)
        if tiles is None or self._wanted.kernel == "frdc":
            return []
        each = self._csr.nnz / max(1, tiles[1].size)
        return [f"4 x 4 tiles hold {each:.2f} edges each; edges are taken from CSR, made from them once"]

    def check(self) -> None:
        """Raise if NaN was to become a bit in a call since the last check; waits for calls on a GPU.

        On a CPU each call raises by itself. On a GPU a plan does not wait, and such bits are 0; :func:`bspmm` checks every time.

        Raises
        ------
        ValueError
        """
        epilogue = self._wanted.epilogue
        if self._gpu is not None and epilogue is not None and epilogue.gives_bits:
            with working_with(self.device):
                _check.no_nan_in_epilogue(self._wanted.function, self._gpu.nan_seen())

    def __call__(self, x: Any, add: Any = None, out: Any = None) -> Any:
        """The aggregate of features of the planned width; see :func:`bspmm`."""
        function = self._wanted.function
        if (add is None) == self._added:
            raise ValueError(
                f"{function}: the plan is for calls {'with' if self._added else 'without'} add, but this one comes "
                f"{'without' if self._added else 'with'} it; make another plan with add={not self._added}"
            )
        with working_with(self.device, x, add, out):
            return self.run(signs_or_floats(function, self._csr, x), add, out)

    def prepare(self, dtype: np.dtype[Any]) -> None:
        """Choose and compile the kernel for bipolar bits, or for floats of `dtype`, with a float32 addend if calls have one."""
        if self._gpu is None or 0 in self.shape:
            return
        space: Any = interop.namespace(self._csr.indptr)
        none = (0, self.shape[1])
        source, data = None, space.empty(none, dtype)
        if self.variant[0] == "B":
            data = space.empty(words_shape(none, 1, -1, "planes"), np.uint32)
            source = assembled(BitTensor, data, none, 1, -1, "planes", "bipolar", interop.CUPY)
        x = Features(data, none, data.dtype, None, interop.CUPY, source=source)
        added = Addend(space.empty(none, np.float32), None, x.family) if self._added else None
        self._gpu.prepare(self._csr, x, added)

    def run(self, x: Features, add: Any, out: Any, checked: bool = False) -> Any:
        """The aggregate of features that fit the adjacency, on the current stream of its device; `checked` adds a :meth:`check`."""
        wanted, csr = self._wanted, self._csr
        function, epilogue = wanted.function, wanted.epilogue
        _check.planned(function, "x has shape", x.shape, (csr.shape[1], wanted.columns))
        if (x.encoding is None) != (self.variant[0] == "F"):
            kind = "an ordinary array" if x.encoding is None else "a BitTensor of 1 bit"
            raise DTypeError(f"{function}: x is {kind}, but the plan is for {self.variant}; make another plan")
        addend = None if add is None else addend_of(function, add, self.shape, self.device)
        family = interop.common_family([x.family, x.family if addend is None else addend.family])
        result: Any = None
        target, like = None, None
        if self._gpu is None:
            with csr.checked(function):
                result = HostCall(csr, x, wanted, addend).run()
        if out is not None:
            if epilogue is not None and epilogue.gives_bits:
                like = epilogue.wrap(x.data[:0], self.shape, interop.NUMPY, function)
            # A CPU has computed its result already, so `out` may overlap its operands.
            read = [] if self._gpu is None else [x.data] if addend is None else [x.data, addend.data]
            dtype = result.dtype if self._gpu is None else self._gpu.result_dtype(x, addend)
            target = target_of(function, out, self.shape, dtype, self.device, read, like, _OTHERWISE)
        if self._gpu is not None:
            result = self._gpu.run(csr, x, addend, target)
        elif target is not None:
            target[...] = result.reshape(target.shape)
        if checked:
            self.check()
        if out is not None:
            return out
        return as_array_or_bits(function, epilogue, result, self.shape, family)


def bspmm(
    A: SparseLike,
    x: ArrayLike,
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
    bit. One-bit features are -1/+1, and a one-bit adjacency is 0/1. With both, sums are exact integer counts; for output B, these are
    compared with integer thresholds and never stored.

    Parameters
    ----------
    A : sparse (m, n)
        TCTiledCSR, FRDC, any :mod:`scipy.sparse` array, a matrix of ``cupyx.scipy.sparse``, a one-bit BitTensor, or any object with
        ``csr_arrays()``. Its ``row_scale`` and ``col_scale`` (factorised edge weights, section 3.1.2) are applied. Letter B takes the
        pattern without explicit zeros, and letter F the values (ones if A has none). The aggregate is computed on A's device, where all
        other arrays must be too; containers on a GPU keep what was prepared for their pattern.
    x : BitTensor (n, d) of one bit, or float array (n, d)
        Letter B: bipolar bits for -1/+1 (unsigned bits are summed as 0/1), fastest if packed along the features (``axis=-1``).
        Letter F: float16, bfloat16 or float32. A scale of the bits is applied whenever the result is float (or the sign of a float):
        with an epilogue, a mean, scales or values of A, or an addend that is float or has a scale or an offset.
    variant : str, optional
        ``"BBB"``, ``"BBF"``, ``"FBB"``, ``"FBF"``, ``"BFB"``, ``"BFF"``, ``"FFB"`` or ``"FFF"``. By default the letters of the operands,
        with output B if the epilogue binarises, else F.
    reduce : {"sum", "mean"}
        The mean divides by the number of entries of the row; an empty row gives 0.
    add : array or one-bit BitTensor (m, d), optional
        Added to the aggregate, before the epilogue (BitGNN's ADD, for the node's own features).
    epilogue : Epilogue, optional
        Scale, bias, batch norm, activation; for output B the result is exactly the sign of that float32 chain.
    kernel : {None, "twice-plus", "plus-minus", "select", "csr", "frdc", "windows"}
        The first three say how 0/1 times -1/+1 is computed: ``2 popc(a & b) - popc(a)`` (default), ``popc(a & b) - popc(a & ~b)``, or bit
        by bit. All give the same result; full-precision operands and column scales allow only "select". The others are for a GPU. Bits are
        counted edge by edge ("csr", default; edges of FRDC are derived from its tiles once) or by 4 x 4 tiles of FRDC ("frdc").
        Full-precision features are gathered edge by edge ("csr") or in windows of eight rows that share them ("windows"), as in
        :func:`spmm`; the default is the one with the lower estimated cost.
    out : array or BitTensor, optional
        Where to write, of exactly the result's kind, shape and dtype; also returned.

    Returns
    -------
    array (m, d) or BitTensor (m, d)
        Int32 for B features and B adjacency without scales of A, mean, epilogue or real addend; else float32. For output B, a bipolar
        BitTensor packed along the features, unless the epilogue says otherwise. A row without neighbours gives 0, and sign(0) = +1.

    Raises
    ------
    ShapeError, DTypeError
        Operands that do not fit each other or the letters.
    KernelError
        The kernel does not exist, or does not take these letters.

    Notes
    -----
    Float sums are float32, added in column order with one rounding per product and per sum: the error is at most
    ``(row_nnz + 2) * 2**-24 * sum |a x|``. On a GPU, rows longer than some L edges are summed in pieces, as in :func:`spmm`; column and row
    scales may be multiplied into the weights first (three more roundings); and every run gives the same bits. The sign of a float sum may
    differ between devices if the sum lies within that bound of 0. A GPU applies the epilogue in the kernel that sums; only bits packed
    along the rows (``axis=-2``) need a second kernel. NaN has no sign and raises ValueError, on a GPU after the kernel has run.

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
    device = device_of_sparse(A)
    with working_with(device, x, add, out):
        csr = single_csr(function, A, device)
        found = letters.activation_letter(function, "x", x) + ("B" if csr.values is None else "F")
        chosen = letters.checked(function, variant, found, epilogue)
        if chosen[0] != found[0]:
            remedy = "pack_bits(x, encoding='bipolar')" if found[0] == "F" else "x.astype(np.float32)"
            kind = "an ordinary array" if found[0] == "F" else "a BitTensor of 1 bit"
            raise DTypeError(
                f"{function}: variant {_check.shown(chosen)} wants letter {chosen[0]} for x, which is {kind}; pass {remedy}"
            )
        finish = _finish(A, csr, function, chosen[2], epilogue)
        features = signs_or_floats(function, csr, x)
        factors = csr.row_scale is not None, csr.col_scale is not None
        wanted = Aggregation(function, chosen, features.shape[1], reduce, finish, kernel, *factors)
        plan = BspmmPlan(csr, wanted, add is not None)
        return plan.run(features, add, out, checked=True)


def plan_bspmm(
    A: SparseLike,
    n: int,
    variant: str | None = None,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    epilogue: Epilogue | None = None,
    add: bool = False,
    kernel: str | None = None,
    dtype: Any = None,
) -> BspmmPlan:
    """Prepare aggregations over one adjacency of many features of the same width.

    Parameters
    ----------
    A, reduce, epilogue, kernel
        As in :func:`bspmm`.
    n : int
        Features of a node.
    variant : str, optional
        As in :func:`bspmm`. By default x is one bit, or full precision if `dtype` is given.
    add : bool
        Whether calls pass an addend, which the plan expects to be float32.
    dtype : dtype, optional
        Dtype of full-precision features: float16, bfloat16 or float32 (default). On a GPU, the kernel for it, or for bipolar bits, is
        chosen and compiled now; those for other features at their first call.

    Returns
    -------
    BspmmPlan
        On a GPU ``plan(x, out=y)`` and ``plan(x, add, out=y)`` with features as planned, packed along the features, allocate, compile and
        wait for nothing from their second call on, so that they can be captured into a CUDA graph. There are two exceptions: addends that
        are not float32 are converted, and integer addends of integer sums take new memory. A NaN that should become a bit gives 0 on a
        GPU and is reported by ``plan.check()``.

    Raises
    ------
    DTypeError, ValueError, KernelError
        As in :func:`bspmm`.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> plan = bs.plan_bspmm(csr_array(np.array([[False, True], [True, True]])), 3, "FBB")
    >>> plan(np.array([[1, -1, 2], [-3, 1, -2]], np.float32)).toarray()
    array([[-1,  1, -1],
           [-1,  1,  1]], dtype=int8)
    """
    function = "plan_bspmm"
    columns = _check.integer(function, "n", n, 0)
    with working_with(device_of_sparse(A)):
        csr = single_csr(function, A)
        found = ("B" if dtype is None else "F") + ("B" if csr.values is None else "F")
        chosen = letters.checked(function, variant, found, epilogue)
        x_dtype = _check.dtype(function, np.float32 if dtype is None else dtype)
        if x_dtype.name not in FLOATS or (dtype is not None and chosen[0] == "B"):
            why = "x is one bit" if chosen[0] == "B" else "full-precision features are float16, bfloat16 or float32"
            raise DTypeError(
                f"{function}: dtype is {x_dtype}, but {why} (variant {_check.shown(chosen)}); pass dtype=None"
            )
        finish = _finish(A, csr, function, chosen[2], epilogue)
        factors = csr.row_scale is not None, csr.col_scale is not None
        wanted = Aggregation(function, chosen, columns, reduce, finish, kernel, *factors)
        plan = BspmmPlan(csr, wanted, _check.flag(function, "add", add))
        plan.prepare(x_dtype)
        return plan


#: Slot for the aggregations that a pattern keeps on a GPU, by their options, each with the arrays to which it belongs.
_AGGREGATES: Slot[tuple[tuple[Any, ...], GpuAggregates]] = Slot("aggregates", most=8)


def _aggregates(csr: CSROperand, wanted: Aggregation) -> GpuAggregates:
    """The aggregations of this kind that a container keeps, or new ones."""
    key, arrays = replace(wanted, function=""), (csr.indptr, csr.values, csr.row_scale, csr.col_scale)
    held = _AGGREGATES.get(csr.prepared, key)
    if held is None or not same_arrays(held[0], arrays):
        ready = READY.of(csr.prepared, interop.Ready)
        held = _AGGREGATES.keep(csr.prepared, (arrays, GpuAggregates(csr.shape[0], wanted, ready)), key)
    held[1].wanted = wanted
    return held[1]


#: Slot for the epilogue that only binarises; it is kept so that its thresholds are prepared once.
_BINARISING: Slot[Epilogue | None] = Slot("binarising", most=1)


def _finish(A: Any, csr: CSROperand, function: str, letter: str, epilogue: Epilogue | None) -> Epilogue | None:
    """The epilogue for the output letter; a container on a GPU keeps the one that only binarises."""
    if isinstance(A, FRDC) and csr.device != "cpu":
        TILES.keep(csr.prepared, (A.indptr, A.indices, A.tiles))
    if epilogue is not None or letter == "F" or csr.device == "cpu":
        return letters.with_output(function, letter, epilogue)
    return _BINARISING.of(csr.prepared, lambda: letters.with_output(function, letter, None))
