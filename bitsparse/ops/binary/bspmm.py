"""Aggregation with one-bit features, one-bit adjacency, or both (BitGNN's BSpMM)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.frdc import FRDC
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.interop.kept import Slot
from bitsparse.ops.binary import letters
from bitsparse.ops.binary.bspmm_gpu import TILES, GpuAggregates
from bitsparse.ops.binary.bspmm_host import HostCall
from bitsparse.ops.binary.bspmm_operands import FLOATS, METHODS, Addend, Features, addend_of, as_features, pattern_of
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.places import device_of_sparse, working_with
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.operands.target import target_of

__all__ = ["KERNELS", "BspmmPlan", "bspmm", "plan_bspmm"]

#: What gives bits, for messages.
_OTHERWISE = "a variant that ends in B"
#: Ways to count, and kernels for a GPU.
KERNELS = (*METHODS, "csr", "frdc", "windows")


class BspmmPlan:
    """A prepared aggregation ``plan(x, add=None, out=None)``; made by :func:`plan_bspmm`.

    Attributes
    ----------
    shape : tuple of int
        Of the result.
    variant : str
        The three letters.
    device : str
        Where the adjacency is and all others must be.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> bs.plan_bspmm(sp.csr_array(np.array([[False, True], [True, True]])), 8)
    <BspmmPlan BBF shape=(2, 8) reduce=sum edges=3>
    """

    def __init__(
        self,
        function: str,
        csr: CSROperand,
        columns: int,
        variant: str,
        epilogue: Epilogue | None,
        reduce: str,
        kernel: str | None,
        added: bool,
    ) -> None:
        self._function, self._columns, self._epilogue, self._added = function, columns, epilogue, added
        _check.choice(function, "reduce", reduce, ("sum", "mean"))
        self._mean, self._forced = reduce == "mean", _check.kernel(function, kernel, KERNELS)
        self._csr = csr = pattern_of(csr) if variant[1] == "B" and csr.values is not None else csr
        self.variant, self.device, self.shape = variant, csr.device, (csr.shape[0], columns)
        self._gpu: GpuAggregates | None = None
        if self.device != "cpu":
            self._gpu = GpuAggregates.kept(function, csr, variant, columns, self._mean, epilogue, self._forced)
        elif self._forced not in (None, *METHODS):
            raise KernelError(
                f"{function}: kernel {_check.shown(self._forced)} runs on a GPU, but A is on the CPU; pass kernel=None"
            )

    def __repr__(self) -> str:
        reduce = "mean" if self._mean else "sum"
        return f"<BspmmPlan {self.variant} shape={self.shape} reduce={reduce} edges={self._csr.nnz}>"

    @property
    def kernel(self) -> str:
        """How bits are counted or floats are summed."""
        if self._gpu is not None:
            return self._gpu.kernel
        return self._forced or METHODS[0 if self.variant[:2] == "BB" else 2]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the result, with an addend of float32 if there is one; of the integers that it holds if it is a BitTensor."""
        if self._epilogue is not None:
            return self._epilogue.dtype
        plain = not (self._mean or self._added) and self._csr.row_scale is None and self._csr.col_scale is None
        return np.dtype(np.int32 if plain and self.variant[:2] == "BB" else np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept for the adjacency beside its own arrays."""
        return 0 if self._gpu is None else int(self._csr.schedule.nbytes)

    def explain(self) -> str:
        """Which kernel computes it and why, in a few lines."""
        (rows, cols), edges = self._csr.shape, self._csr.nnz
        reduce = "mean" if self._mean else "sum"
        first = f"{self.variant}: {rows} x {cols}, {edges} edges: {reduce} of {self._columns} features"
        if self._gpu is None:
            how = "vertical counters where both are one bit, else float32 sums"
            return f"{first}\non the CPU, edge by edge: {how}"
        return "\n".join((first, *self._tiles(), *self._gpu.explain()))

    def _tiles(self) -> list[str]:
        """Why 4 x 4 tiles are not summed as such, where the adjacency has some."""
        tiles = TILES.get(self._csr.prepared)
        if tiles is None or self._forced == "frdc":
            return []
        each = self._csr.nnz / max(1, tiles[1].size)
        return [f"4 x 4 tiles hold {each:.2f} edges each; edges are taken from CSR, made from them once"]

    def check(self) -> None:
        """Raise if NaN was to become a bit in a call since the last check; waits for those on a GPU.

        A CPU raises as it goes. On a GPU a plan does not wait, and such bits are 0; :func:`bspmm` checks every time.

        Raises
        ------
        ValueError
        """
        if self._gpu is not None and self._gives_bits:
            with working_with(self.device):
                _check.no_nan_in_epilogue(self._function, self._gpu.nan_seen())

    @property
    def _gives_bits(self) -> bool:
        return self._epilogue is not None and self._epilogue.gives_bits

    def __call__(self, x: Any, add: Any = None, out: Any = None) -> Any:
        """The aggregate of features of the planned width; see :func:`bspmm`."""
        function = self._function
        if (add is None) == self._added:
            raise ValueError(
                f"{function}: the plan is for calls {'with' if self._added else 'without'} add, but this one comes "
                f"{'without' if self._added else 'with'} it; make another plan with add={not self._added}"
            )
        with working_with(self.device, x, add, out):
            return self.run(as_features(function, self._csr.shape[1], self.device, x), add, out)

    def prepare(self, x: Features) -> None:
        """Choose and compile for features like these, and an addend of float32 if there is one."""
        if self._gpu is not None and 0 not in self.shape:
            shape = self.shape
            space: Any = interop.namespace(self._csr.indptr)
            floats = Addend(space.empty((0, shape[1]), np.float32), None, x.family) if self._added else None
            self._gpu.prepare(self._csr, x, floats)

    def run(self, x: Features, add: Any, out: Any, checked: bool = False) -> Any:
        """The aggregate of features that fit the adjacency, on its device's current stream; `checked` as by :meth:`check`."""
        function, epilogue = self._function, self._epilogue
        if x.shape[1] != self._columns:
            raise ShapeError(
                f"{function}: x has shape {x.shape}, but the plan is for {(self._csr.shape[1], self._columns)}; make another plan"
            )
        if (x.encoding is None) != (self.variant[0] == "F"):
            kind = "an ordinary array" if x.encoding is None else "a BitTensor of 1 bit"
            raise DTypeError(f"{function}: x is {kind}, but the plan is for {self.variant}; make another plan")
        addend = None if add is None else addend_of(function, add, self.shape, self.device)
        family = interop.common_family([x.family, x.family if addend is None else addend.family])
        like = epilogue.wrap(x.data[:0], self.shape, interop.NUMPY, function) if self._gives_bits and epilogue else None
        result = self._on_cpu(x, addend, out, like) if self._gpu is None else self._on_gpu(x, addend, out, like)
        if checked:
            self.check()
        if out is not None:
            return out
        if epilogue is not None and self._gives_bits:
            return epilogue.wrap(result, self.shape, family, function)
        return interop.from_array(result, family, function)

    def _on_cpu(self, x: Features, addend: Addend | None, out: Any, like: BitTensor | None) -> Any:
        function = self._function
        call = HostCall(function, self._csr, x, self.variant, self._epilogue, self._mean, self._forced, addend)
        with self._csr.checked(function):
            result = call.run()
        if out is not None:
            target = target_of(function, out, result.shape, result.dtype, self.device, (), like, _OTHERWISE)
            target[...] = result.reshape(target.shape)
        return result

    def _on_gpu(self, x: Features, addend: Addend | None, out: Any, like: BitTensor | None) -> Any:
        gpu, target = self._gpu, None
        assert gpu is not None
        if out is not None:
            read = [x.data] if addend is None else [x.data, addend.data]
            dtype = gpu.result_dtype(x, addend)
            target = target_of(self._function, out, self.shape, dtype, self.device, read, like, _OTHERWISE)
        if 0 in self.shape:
            return gpu.nothing(interop.namespace(x.data), x, addend) if target is None else target
        return gpu.run(self._csr, x, addend, target)


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
        TCTiledCSR, FRDC, any :mod:`scipy.sparse` array, a matrix of ``cupyx.scipy.sparse``, a one-bit BitTensor, or any object with
        ``csr_arrays()``. Its ``row_scale`` and ``col_scale`` (factorised edge weights, section 3.1.2) are applied. Letter B takes the
        pattern without explicit zeros; letter F the values (ones if it has none). The aggregate is computed where A lies, and all other
        arrays have to be there; containers on a GPU keep what was prepared for their pattern.
    x : BitTensor (n, d) of one bit, or float array (n, d)
        Letter B: bipolar bits for -1/+1 (unsigned bits for 0/1 are summed as such), fastest packed along the features (``axis=-1``).
        Letter F: float16, bfloat16 or float32. A scale of the bits is applied wherever the result is float (or the sign of a float):
        with an epilogue, a mean, scales or values of A, or an addend that is float or has a scale or an offset.
    variant : str, optional
        ``"BBB"``, ``"BBF"``, ``"FBB"``, ``"FBF"``, ``"BFB"``, ``"BFF"``, ``"FFB"`` or ``"FFF"``. By default the letters of the operands,
        and B out if the epilogue binarises.
    reduce : {"sum", "mean"}
        The mean divides by the number of entries of the row; an empty row gives 0.
    add : array or one-bit BitTensor (m, d), optional
        Added to the aggregate, before the epilogue (BitGNN's ADD, for the node's own features).
    epilogue : Epilogue, optional
        Scale, bias, batch norm, activation; binarised for B out, at exactly the sign of that float32 chain.
    kernel : {None, "twice-plus", "plus-minus", "select", "csr", "frdc", "windows"}
        How 0/1 times -1/+1 is computed: ``2 popc(a & b) - popc(a)`` (default), ``popc(a & b) - popc(a & ~b)``, or bit by bit. All
        give the same result; full-precision operands, and scales of columns, only know "select". On a GPU bits are counted an edge at a
        time ("csr", also for FRDC, from what is made of its tiles once) or, if asked for, a 4 x 4 tile of FRDC at a time ("frdc");
        full-precision features are gathered an edge at a time ("csr") or in windows of eight rows that share them ("windows"), as
        :func:`spmm` does, by default what is estimated to be quicker.
    out : array or BitTensor, optional
        Where to write, of exactly the result's kind, shape and dtype; also returned.

    Returns
    -------
    array (m, d) or BitTensor (m, d)
        Int32 for B features and B adjacency without scales of A, mean, epilogue or real addend; else float32; for B out a bipolar
        BitTensor packed along the features (as the epilogue says). A row without neighbours aggregates to 0, and sign(0) = +1.

    Raises
    ------
    ShapeError, DTypeError
        Operands that do not fit each other or the letters.
    KernelError
        A kernel that does not exist, or not for these letters.

    Notes
    -----
    Float sums are float32, added in column order with one rounding a product and a sum: |error| <= (row_nnz + 2) 2^-24 sum |a x|. On a GPU
    rows longer than some L edges are summed in pieces, as :func:`spmm` says, scales of columns and of rows may be multiplied into the
    weights first (three roundings more), and the same bits come out in every run. A bit of a float sum may differ between devices where
    the number whose sign it is lies within that bound. There the epilogue is applied in the kernel that sums; only bits packed along the
    rows (``axis=-2``) are turned by a second one. NaN has no sign: ValueError, on a GPU after the kernel has run.

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
        csr = as_csr(function, A, device).single_values(function)
        found = letters.activation_letter(function, "x", x) + ("B" if csr.values is None else "F")
        chosen = letters.checked(function, variant, found, epilogue)
        if chosen[0] != found[0]:
            remedy = "pack_bits(x, encoding='bipolar')" if found[0] == "F" else "x.astype(np.float32)"
            kind = "an ordinary array" if found[0] == "F" else "a BitTensor of 1 bit"
            raise DTypeError(
                f"{function}: variant {_check.shown(chosen)} wants letter {chosen[0]} for x, which is {kind}; pass {remedy}"
            )
        finish = _finish(A, csr, function, chosen[2], epilogue)
        features = as_features(function, csr.shape[1], device, x)
        plan = BspmmPlan(function, csr, features.shape[1], chosen, finish, reduce, kernel, add is not None)
        return plan.run(features, add, out, checked=True)


def plan_bspmm(
    A: Any,
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
        As in :func:`bspmm`. By default x is one bit, or full precision where `dtype` is given.
    add : bool
        Whether calls bring an addend, of float32 first of all.
    dtype : dtype, optional
        Of full-precision features to come: float16, bfloat16 or float32 (default). On a GPU their kernel is chosen and compiled now, as
        that of bipolar bits is; others' at their first call.

    Returns
    -------
    BspmmPlan
        On a GPU ``plan(x, out=y)`` and ``plan(x, add, out=y)`` with features as planned, packed along the features, allocate, compile and
        wait for nothing from their second call on, so that they can be captured into a CUDA graph. Exceptions: addends of other dtypes
        than float32 are converted, and integers added to integers are allocated for. NaN that should become a bit gives 0 there and is
        reported by ``plan.check()``.

    Raises
    ------
    DTypeError, ValueError, KernelError
        As :func:`bspmm`.

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
        csr = as_csr(function, A).single_values(function)
        found = ("B" if dtype is None else "F") + ("B" if csr.values is None else "F")
        chosen = letters.checked(function, variant, found, epilogue)
        wanted = _check.dtype(function, np.float32 if dtype is None else dtype)
        if wanted.name not in FLOATS or (dtype is not None and chosen[0] == "B"):
            why = "x is one bit" if chosen[0] == "B" else "full-precision features are float16, bfloat16 or float32"
            raise DTypeError(
                f"{function}: dtype is {wanted}, but {why} (variant {_check.shown(chosen)}); pass dtype=None"
            )
        finish = _finish(A, csr, function, chosen[2], epilogue)
        plan = BspmmPlan(function, csr, columns, chosen, finish, reduce, kernel, bool(add))
        if plan.device != "cpu":
            space: Any = interop.namespace(csr.indptr)
            bits = chosen[0] == "B"
            data = space.empty((0, 1, 4), np.uint32) if bits else space.empty((0, columns), wanted)
            plan.prepare(Features((0, columns), data, "bipolar" if bits else None, None, None, interop.CUPY))
        return plan


#: The epilogue that only binarises, whose thresholds are prepared once.
_BINARISING: Slot[Epilogue | None] = Slot("binarising", most=1)


def _finish(A: Any, csr: CSROperand, function: str, letter: str, epilogue: Epilogue | None) -> Epilogue | None:
    """The epilogue that gives the output letter; a container on a GPU keeps the one that only binarises."""
    if isinstance(A, FRDC) and csr.device != "cpu":
        TILES.keep(csr.prepared, (A.indptr, A.indices, A.tiles))
    if epilogue is not None or letter == "F" or csr.device == "cpu":
        return letters.with_output(function, letter, epilogue)
    return _BINARISING.of(csr.prepared, lambda: letters.with_output(function, letter, None))
