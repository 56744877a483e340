"""Sums of sampled neighbours' features, once or prepared for many features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.backends.params import CodeFeatures, Sampling
from bitsparse.errors import DTypeError, KernelError
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features, as_features, compute_dtype, matrix, sum_dtypes
from bitsparse.ops.operands.places import same_place, working_with
from bitsparse.ops.operands.sparse import single_values, sparse_operand
from bitsparse.ops.operands.target import target_array, zeros
from bitsparse.ops.plan import KeptCall
from bitsparse.ops.sampling.gpu import DrawnSums, StoredSums
from bitsparse.ops.sampling.sample import DEFAULT, Strategy, sampling_of
from bitsparse.ops.spmm.gpu import kept_product

#: Codes with these numbers of bits never cross a word boundary and are dequantised on the fly.
CODE_BITS = (1, 2, 4, 8)


def sampled_spmm(
    A: SparseLike,
    x: ArrayLike,
    width: int,
    strategy: Strategy = DEFAULT,
    *,
    rescale: bool = False,
    seed: int | None = None,
    stream: int = 0,
    out: Any = None,
) -> Any:
    """Sum of sampled neighbours' features: ``edge_sample(A, width, strategy).tocsr(rescale) @ x`` without storing the sample.

    This is AES-SpMM's kernel (Algorithm 1) with its quantised features (section 3.1): codes of 8 bits or fewer are read packed and
    dequantised on the fly (Eq. 2).

    Parameters
    ----------
    A : sparse (m, n)
        As in :func:`edge_sample`; its values and its row and column scales are applied. The sum is computed on A's device, where all other
        arrays must be too; containers on a GPU keep how many edges of each row are sampled.
    x : array (n, d) of float16, bfloat16, float32 or float64, or BitTensor (n, d)
        A BitTensor of 1, 2, 4 or 8 bits stands for its real values (with scale and offset); ``layout="rows"``, ``axis=-1`` is fastest.
    width, strategy, seed, stream
        As in :func:`edge_sample`.
    rescale : bool, default False
        Multiply each row's sum by ``row_nnz / samples``, to make up for the edges that were left out (the paper does not).
    out : array (m, d), optional
        Where to write; C-contiguous, of the result's dtype. Also returned.

    Returns
    -------
    array (m, d)
        In the family of `x` and, as for :func:`spmm`, in the common dtype of `x` and A's values. float64 is summed in float64, and
        everything else in float32 (16-bit results are rounded once at the end). The result for a BitTensor is float32.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ValueError
        Operands that do not fit, or options as in :func:`edge_sample`.

    Notes
    -----
    On the CPU, terms are added in sampling order, with one rounding per product and per sum; the bits do not depend on the number of
    threads. The error is at most ``(samples + 4) * u * sum |a x|`` with u = 2**-24, or 2**-53 for float64. A GPU splits rows of more than
    some 32 to 1024 samples into pieces, whose sums it adds in order: the bound is the same, and every run gives the same bits. A GPU sums
    codes directly, and exactly if there are no weights; scale and offset are applied to complete rows, or to the weights if they belong to
    the rows of `x`. For codes on a GPU, ``|q scale| + |offset|`` replaces ``|x|`` in the bound.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> A = csr_array(np.ones((1, 8), dtype=bool))
    >>> x = np.arange(8, dtype=np.float32)[:, None]
    >>> bs.sampled_spmm(A, x, 4, "sfs"), bs.sampled_spmm(A, x, 4, "sfs", rescale=True)
    (array([[6.]], dtype=float32), array([[12.]], dtype=float32))
    """
    function = "sampled_spmm"
    sampling = sampling_of(function, width, strategy, seed, stream)
    with sparse_operand(function, A, x, out) as operand:
        csr = single_values(function, operand)
        features, rescaled = _features(function, csr, x), _check.flag(function, "rescale", rescale)
        return SampledPlan(function, csr, features.shape[1], sampling, rescaled).run(features, out)


class SampledPlan:
    """A prepared sampled sum ``plan(x, out=None)``; made by :func:`plan_sampled_spmm`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Device of the sparse operand, on which all other arrays must be too.
    dtype : dtype
        Dtype of the result for features as planned.
    kernel : str
        "stored" if the sample is kept as a matrix, "drawn" if every call draws it; `explain` says how a stored sample is multiplied.
    stored : bool
        Whether the sample is kept; if not, every call draws it again with the same seed.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> bs.plan_sampled_spmm(csr_array(np.ones((2, 9), dtype=bool)), 8, 4)
    <SampledPlan shape=(2, 8) strategy=afs width=4>
    """

    def __init__(self, function: str, csr: CSROperand, columns: int, sampling: Sampling, rescale: bool) -> None:
        self._function, self._csr, self._sampling, self._rescale = function, csr, sampling, rescale
        self.shape, self.device = (csr.shape[0], columns), csr.device
        self.dtype, self.kernel, self.stored = np.dtype(np.float32), "drawn", False
        self._sums: DrawnSums | StoredSums | None = None
        #: On a GPU, the call that CuPy features of the planned dtype take without further checks.
        self._short: KeptCall | None = None

    def prepare(self, dtype: Any, store: bool | None, kernel: str | None) -> None:
        """Prepare the sums of features of `dtype`: on a GPU the sample, if it is to be stored, and the kernel."""
        function, csr, columns = self._function, self._csr, self.shape[1]
        wanted = _check.dtype(function, np.float32 if dtype is None else dtype, "f")
        self.dtype, acc = _dtypes(function, csr, wanted)
        self.stored = self.device != "cpu" and store is not False
        if self.device == "cpu":
            if store or kernel is not None:
                what = "store=True" if store else f"kernel={_check.shown(kernel)}"
                raise KernelError(f"{function}: {what} is for a GPU, but A is on the CPU; leave it out")
        elif not self.stored and kernel is not None:
            raise KernelError(
                f"{function}: kernel={_check.shown(kernel)} multiplies a stored sample; pass store=True or kernel=None"
            )
        elif 0 not in (*self.shape, csr.shape[1]):
            if self.stored:
                self.kernel = "stored"
                self._sums = StoredSums(function, csr, columns, self._sampling, self._rescale, kernel)
            else:
                self._sums = DrawnSums(csr, self._sampling, self._rescale)
            run = self._sums.prepare(self.dtype, acc, columns)
            if self.dtype == wanted:
                self._short = kept_product(self._sums.operand, run, wanted, (columns,), self.dtype)

    def check(self) -> None:
        """Do nothing: every call reports its errors itself."""

    @property
    def nbytes(self) -> int:
        """Bytes of the schedule by which a GPU walks the pattern; all plans of this pattern share it."""
        return self._csr.schedule_bytes

    def explain(self) -> str:
        """Say in a few lines what is summed and how."""
        (rows, cols), edges = self._csr.shape, self._csr.nnz
        width, name, *_ = self._sampling
        first = f"{rows} x {cols}, {edges} edges: sums of {self.shape[1]} columns, {name} of width {width}"
        return "\n".join((first, *(["drawn in every call"] if self._sums is None else self._sums.explain())))

    def __repr__(self) -> str:
        width, name, *_ = self._sampling
        return f"<SampledPlan shape={self.shape} strategy={name} width={width}>"

    def __call__(self, x: Any, out: Any = None) -> Any:
        """The sums of features of the planned width; see :func:`sampled_spmm`."""
        if self._short is not None and self._short.fits((x,), out):
            return self._short((x,), out)
        function, csr = self._function, self._csr
        with working_with(self.device, x, out):
            features = _features(function, csr, x)
            _check.planned(function, "x has shape", features.shape, (csr.shape[1], self.shape[1]))
            return self.run(features, out)

    def run(self, x: Features, out: Any) -> Any:
        """The sums of features, by the sums prepared on a GPU, or else with samples drawn in this call."""
        function, csr, sampling, rescale = self._function, self._csr, self._sampling, self._rescale
        target, acc = None, compute_dtype(x.dtype)
        if out is not None:
            read = x.data.words if isinstance(x.data, CodeFeatures) else x.data
            target = target_array(function, out, self.shape, x.dtype, self.device, (read,))
        if self.device == "cpu":
            scales = {
                name: None if (part := getattr(csr, name)) is None else np.ascontiguousarray(part, acc)
                for name in ("values", "col_scale", "row_scale")
            }
            gather = backends.family("cpu", "sampling.sample").gather
            with csr.checked(function):
                result = gather(csr.indptr, csr.columns, x.data, sampling, **scales, rescale=rescale)
            result = result.astype(x.dtype, copy=False)
            if target is not None:
                target[...] = result
        elif 0 in (*self.shape, x.shape[0]):
            result = zeros(interop.namespace(csr.indptr), self.shape, x.dtype, target)
        else:
            result = (self._sums or DrawnSums(csr, sampling, rescale))(x.data, acc, target)
        return out if out is not None else interop.from_array(result, x.family, function)


def plan_sampled_spmm(
    A: SparseLike,
    n: int,
    width: int,
    strategy: Strategy = DEFAULT,
    *,
    rescale: bool = False,
    seed: int | None = None,
    stream: int = 0,
    dtype: Any = None,
    store: bool | None = None,
    kernel: str | None = None,
) -> SampledPlan:
    """Prepare sums over one sample for many features of the same width, such as those of a model's layers and calls.

    Parameters
    ----------
    A : sparse (m, n)
        As in :func:`sampled_spmm`.
    n : int
        Columns of the features.
    width, strategy, rescale, seed, stream
        As in :func:`sampled_spmm`; without a `seed`, this call draws one.
    dtype : dtype, default float32
        Dtype of the features. On a GPU, the kernel for it is chosen and compiled now, and those for other dtypes at their first sum.
    store : bool, optional
        On a GPU, True or None keeps the sample as a sparse matrix and multiplies it with the kernels of :func:`spmm`; repeated edges
        may be kept as one with a weight. False draws the sample again in every call, which takes no memory for it.
    kernel : {"csr", "windows", "tiles", "short"}, optional
        With `store`, as in :func:`spmm`. ``"short"`` distributes rows by their length, for float32 features of up to 64 columns, in
        multiples of 4. By default it is used up to 32 columns, and up to 64 if the result has at most 16 MiB.

    Returns
    -------
    SampledPlan
        On a GPU ``plan(x, out=y)`` with C-contiguous `x` of the planned dtype allocates, compiles and waits for nothing from its second
        call on, so that it can be captured into a CUDA graph.

    Raises
    ------
    KernelError
        `kernel` cannot compute this, `kernel` is given without `store`, or one of them is given on a CPU.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> plan = bs.plan_sampled_spmm(csr_array(np.ones((2, 9), dtype=bool)), 3, 4, rescale=True)
    >>> plan(np.ones((9, 3), np.float32)).tolist()
    [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0]]
    """
    function = "plan_sampled_spmm"
    columns = _check.integer(function, "n", n, 0)
    if store is not None:
        _check.flag(function, "store", store)
    sampling, scaled = sampling_of(function, width, strategy, seed, stream), _check.flag(function, "rescale", rescale)
    with sparse_operand(function, A) as operand:
        plan = SampledPlan(function, single_values(function, operand), columns, sampling, scaled)
        plan.prepare(dtype, store, kernel)
        return plan


def _dtypes(function: str, csr: CSROperand, dtype: np.dtype[Any]) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype of the result and the dtype of its sums, for floating features."""
    return sum_dtypes(function, dtype, csr.values, csr.is_scaled, 0)


def _features(function: str, csr: CSROperand, x: Any) -> Features:
    """Features as float rows in the dtype of the result, or as codes with scale and offset, whose result is float32."""
    features = as_features(function, "x", x)
    if features.source is None:
        _check.numeric(function, "x", features.data, "f")
    csr.check_features(function, matrix(function, features))
    same_place(function, [("A", csr.device), ("x", features.device)])
    if features.source is None:
        dtype, acc = _dtypes(function, csr, features.dtype)
        return replace(features, data=converted(features.data, acc if csr.device == "cpu" else dtype), dtype=dtype)
    if x.bits not in CODE_BITS:
        raise DTypeError(
            f"{function}: x has {x.bits} bits, but codes of {', '.join(map(str, CODE_BITS))} bits are dequantised on the fly; "
            f"quantize to one of these, or pass x.dequantize()"
        )
    packed = x.repack(axis=-1, layout="rows")
    scale, offset = x.scale, x.offset
    if scale is not None or offset is not None:
        # kernels get both, in order to compute fl(fl(q * scale) + offset) like dequantize
        space: Any = interop.namespace(packed.words)
        scale = space.ones((), np.float32) if scale is None else scale
        offset = space.zeros((), np.float32) if offset is None else offset
    codes: Any = CodeFeatures(packed.words, x.shape[1], x.bits, x.encoding, scale, offset)
    return replace(features, data=codes, dtype=np.dtype(np.float32))
