"""Products of -1/+1 matrices with full-precision operands binarised while loading (BitGNN's BMM)."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops import letters
from bitsparse.ops.epilogue import Epilogue
from bitsparse.ops.matmul import matmul

__all__ = ["bmm"]


def bmm(
    a: Any,
    w: Any,
    variant: str | None = None,
    *,
    epilogue: Epilogue | None = None,
    kernel: str | None = None,
    out: Any = None,
) -> Any:
    """Product of the signs of two matrices, ``sign(a) @ sign(w)``, exact (BitGNN sections 2.2 and 3.1.2).

    The letters of `variant` are the precisions of the activation `a`, of the weight `w` and of the output: F is full precision, B is one
    bit. Full-precision operands are binarised while loading, ``v >= 0``. FFF, which has nothing binary, does not exist.

    Parameters
    ----------
    a : BitTensor of one bipolar bit, or array (..., m, k)
        Letter B or F.
    w : BitTensor of one bipolar bit, or array (..., k, n)
        Letter B or F. Batch dimensions broadcast.
    variant : str, optional
        ``"BBB"``, ``"BBF"``, ``"BFB"``, ``"BFF"``, ``"FBB"``, ``"FBF"`` or ``"FFB"``. By default the letters of the operands, and B out if
        the epilogue binarises.
    epilogue : Epilogue, optional
        Scales (as Bi-GCN's mean magnitudes), bias, batch norm, activation; binarised for B out, at exactly the sign of that float32 chain.
        Scales of BitTensors are multiplied in, as by :func:`matmul`.
    kernel, out
        As in :func:`matmul`.

    Returns
    -------
    array (..., m, n) or BitTensor (..., m, n)
        Int32 sums of -1/+1 products; float32 with an epilogue; a bipolar BitTensor for B out.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands that do not fit each other or the letters; NaN, which has no sign.

    Examples
    --------
    >>> a = np.array([[0.5, -2.0, 0.0]])
    >>> w = bs.pack_bits(np.array([[1.0], [3.0], [-1.0]]), encoding="bipolar", axis=-2)
    >>> bs.bmm(a, w), bs.bmm(a, w, "FBB").toarray()
    (array([[-1]], dtype=int32), array([[-1]], dtype=int8))
    """
    function = "bmm"
    found = "".join(letters.activation_letter(function, name, x) for name, x in (("a", a), ("w", w)))
    chosen = letters.checked(function, variant, found, epilogue)
    if chosen == "FFF":
        raise ValueError(
            f"{function}: FFF is an ordinary product; use a @ w, or binarise something: variant 'FFB', or pack_bits(w, encoding='bipolar')"
        )
    if chosen[:2] != found:
        raise DTypeError(
            f"{function}: variant {chosen!r} does not fit operands {found!r} (B is a one-bit BitTensor, F an array); pass "
            f"{found + chosen[2]!r}, or pack or unpack an operand"
        )
    finish = letters.with_output(function, chosen[2], epilogue)
    left, right = _signs(function, "a", a, -1), _signs(function, "w", w, -2)
    _check.matmul_shapes(function, left.shape, right.shape)
    # A tile of -1 is not a tile of zeros that could be skipped: all bits count.
    return matmul(left, right, epilogue=finish, out=out, kernel=kernel, skip_zero_tiles=False)


def _signs(function: str, name: str, x: Any, axis: int) -> BitTensor:
    """A bipolar BitTensor as it is; the signs of an array, packed along the contraction axis."""
    if isinstance(x, BitTensor):
        _check.on_cpu(function, name, x.device)
        if x.encoding != "bipolar":
            raise DTypeError(
                f"{function}: {name} holds {x.encoding} bits, but binary operands are bipolar (-1/+1); pass "
                f"BitTensor.from_words({name}.words, {name}.shape, 1, encoding='bipolar', axis={name}.axis, layout={name}.layout)"
            )
        return x
    array, family = interop.as_numpy(x, function, name)
    _check.numeric(function, name, array)
    if array.ndim < 2:
        raise ShapeError(
            f"{function}: {name} has shape {array.shape}, but a product takes at least 2 dimensions; pass {name}[None, :]"
        )
    if array.dtype.kind in "biu":
        array = (array >= 0).astype(np.float32) - np.float32(0.5)
    packed = BitTensor(array, 1, encoding="bipolar", axis=axis)
    packed._family = family
    return packed
