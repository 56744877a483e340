"""Products of BitTensors: any number of bits times any number of bits, exact."""

from __future__ import annotations

from typing import Any

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import derived_of, family_of, kind_of
from bitsparse.arrays.packed import Encoding
from bitsparse.interop import ArrayLike
from bitsparse.interop.kept import Slot
from bitsparse.ops.finish.epilogue import Epilogue, target_behind
from bitsparse.ops.matmul.plan import MatmulPlan
from bitsparse.ops.matmul.products import RightKind, as_bits, multiply


class KeptProduct:
    """``a @ b`` of one left operand from its second call on: what depends only on the kind of `b` is decided."""

    __slots__ = ("_as_it_is", "_family", "_product", "device")

    def __init__(self, product: Any, left: BitTensor, right: BitTensor) -> None:
        self._product, self.device = product, right.device
        self._family = interop.common_family((family_of(left), family_of(right)))
        self._as_it_is = right.axis == -2 and right.layout == "planes"

    def __call__(self, b: BitTensor, out: Any) -> Any:
        """The product with a right operand; `out` may be given on a CPU only."""
        if self.device == "cpu":
            return self._multiply(b, out)
        with interop.working_on(self.device, self._family):
            return self._multiply(b, out)

    def _multiply(self, b: BitTensor, out: Any) -> Any:
        product, words = self._product, (b if self._as_it_is else b.repack(axis=-2, layout="planes")).words
        if out is not None:
            shares = product.left_words, words
            target = target_behind("matmul", None, out, product.shape, product.dtype, self.device, shares)
            run = product.run_plain if product.is_plain and target.flags.carray else product
            run(words, target)
            return out
        result = product.run_plain(words) if product.is_plain else product(words)
        return interop.from_array(result, self._family, "matmul")


#: Slot for the products that a left operand keeps, by the kind of right operand.
_PRODUCTS: Slot[KeptProduct] = Slot("products", most=8)


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    epilogue: Epilogue | None = None,
    out: Any = None,
    kernel: str | None = None,
    skip_zero_tiles: bool | None = None,
) -> Any:
    """Matrix product of two BitTensors, exact in integers; ``a @ b``.

    A product of ``s``-bit by ``t``-bit integers is a sum of one-bit products, ``popcount(a_p & b_q)`` weighted by powers of two (QGTC
    Eqs. 3-7), or of small-integer products if that is cheaper. 8 x 128 tiles of `a` without a set bit are skipped (section 4.3).

    Parameters
    ----------
    a : BitTensor (..., m, k)
        An ordinary integer or bool array is packed first.
    b : BitTensor (..., k, n)
        Like `a`. Batch dimensions broadcast. The product is fastest if the contraction axis is packed in planes, `axis` -1 in `a` and -2
        in `b`; other operands are repacked first, which is exact and costs one pass over them.
    epilogue : Epilogue, optional
        Steps fused behind the product. Without an epilogue the stored integers are multiplied, and scales and offsets are not applied.
        With one, the operands' scales (scalars, or one per row of `a` and per column of `b`) are multiplied into its row and column
        scale; offsets need ``offset_correction=True``; scales along the contraction axis are refused.
    out : array or BitTensor, optional
        Where to write, of exactly the result's kind, shape and dtype; also returned. All checks come before the first write, except
        for NaN that an epilogue finds while it makes bits: then `out` holds no result.
    kernel : {None, "planes", "digits", "bytes", "mixed", "planes-mma", "digits-mma"}
        Force a kernel; all give the same integers. "bytes" is for CPUs and operands of at most 8 bits. The last three are for GPUs:
        "mixed", for at most 8 bits and int32 results, multiplies bytes of `a` by the packed bits of `b`; "planes-mma" and "digits-mma"
        use only the matrix instructions of single warps.
    skip_zero_tiles : bool, optional
        Look for zero tiles in `a` and skip them. The share skipped is :attr:`MatmulPlan.share_skipped`. By default True on a CPU, and on a
        GPU only if :attr:`BitTensor.tile_bitmap` is known already, since looking takes a pass over `a` and a synchronisation there.

    Returns
    -------
    array (..., m, n) of int32 or int64, float32 with an epilogue, or BitTensor if the epilogue requantises
        In the family of the operands' data. int32 if ``k * max|a| * max|b| < 2**31`` by bits and encoding, else int64.

    Raises
    ------
    ShapeError
        ``a`` and ``b`` do not fit.
    ValueError
        The result might exceed int64, or affine parameters would be dropped silently.
    DTypeError
        An operand is floating; quantise it, or multiply ``b.dequantize()``.
    KernelError
        The forced kernel does not exist, does not take such operands, or its library is not installed.

    Notes
    -----
    A BitTensor keeps what was prepared for it as left operand (for up to 8 kinds of right operand), so that ``a @ b`` is quick from the
    second time on, on a CPU also with `out`. On a GPU a kernel that multiplies bytes keeps the unpacked `a`, ``8 / bits`` times its size.
    A plan alone keeps what it prepares.

    Examples
    --------
    >>> a = bs.pack_bits([[1, 0, 1], [0, 1, 1]])
    >>> b = bs.pack_bits([[5, 0], [2, 7], [1, 1]], bits=3, axis=-2)
    >>> bs.matmul(a, b)
    array([[6, 1],
           [3, 8]], dtype=int32)
    """
    function = "matmul"
    plain = epilogue is None and kernel is None and skip_zero_tiles is None
    if plain and isinstance(a, BitTensor) and isinstance(b, BitTensor):
        kept = _PRODUCTS.get(derived_of(a).prepared, kind_of(b))
        if kept is not None and (out is None or kept.device == "cpu"):
            return kept(b, out)
    left, right = as_bits(function, "a", a, -1), as_bits(function, "b", b, -2)
    _check.matmul_shapes(function, left.shape, right.shape)
    _check.same_device(function, (left.device, right.device))
    if skip_zero_tiles is None:
        # On a GPU, looking for zero tiles takes a pass over `a`, which pays only for a plan or if it has been done before.
        skip = left.device == "cpu" or derived_of(left).bitmap is not None
    else:
        skip = _check.flag(function, "skip_zero_tiles", skip_zero_tiles)
    if not plain or left is not a or not (out is None or left.device == "cpu"):
        return multiply(function, left, right, epilogue=epilogue, out=out, kernel=kernel, skip_zero_tiles=skip)
    plan = MatmulPlan(function, left, RightKind.of(right), None, None, skip)
    _PRODUCTS.keep(derived_of(left).prepared, KeptProduct(plan.product, left, right), kind_of(right))
    return plan.run(right, out)


def plan_matmul(
    a: Any,
    n: int,
    *,
    bits: int = 1,
    encoding: Encoding = "unsigned",
    batch: tuple[int, ...] = (),
    epilogue: Epilogue | None = None,
    kernel: str | None = None,
    skip_zero_tiles: bool = True,
) -> MatmulPlan:
    """Prepare products of one left operand with many right operands of the same kind.

    Parameters
    ----------
    a : BitTensor (..., m, k)
    n : int
        Columns of the right operands.
    bits, encoding, batch
        Bits, encoding and batch dimensions of the right operands.
    epilogue, kernel
        As in :func:`matmul`.
    skip_zero_tiles : bool, default True
        Look for zero tiles in `a` and skip them; the plan looks again after `a` was written to through ``out=``. A captured graph keeps
        skipping the tiles that were zero at its capture: pass False for an `a` that the graph itself writes to.

    Returns
    -------
    MatmulPlan
        On a GPU the kernel is compiled here. If `b` is packed in planes along axis -2, ``plan(b, out=y)`` allocates and waits for nothing
        from its second call on, so that it can be captured into a CUDA graph.

    Examples
    --------
    >>> plan = bs.plan_matmul(bs.pack_bits(np.eye(256, dtype=int)), 4, bits=2)
    >>> plan(bs.BitTensor(np.full((256, 4), 3), 2, axis=-2)).sum()
    np.int64(3072)
    >>> plan.share_skipped
    0.5
    """
    function = "plan_matmul"
    bits = _check.bit_count(function, bits)
    _check.instance(function, "batch", batch, (tuple, list), "a tuple of integers", "pass one, as (3,)")
    right = RightKind(
        _check.integer(function, "n", n, 0),
        bits,
        _check.encoding(function, encoding, bits),
        tuple(_check.integer(function, "each size of batch", size, 0) for size in batch),
    )
    skip = _check.flag(function, "skip_zero_tiles", skip_zero_tiles)
    return MatmulPlan(function, as_bits(function, "a", a, -1), right, epilogue, kernel, skip)
