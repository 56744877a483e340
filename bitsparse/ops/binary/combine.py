"""ADD and CONCAT, small operations around aggregation (BitGNN section 3.1.2, third group)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled, family_of
from bitsparse.backends.params import Array, packed_words
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import converted
from bitsparse.ops.binary import letters
from bitsparse.ops.binary.signs import bipolar
from bitsparse.ops.finish.epilogue import Epilogue

#: CuPy joins up to this many arrays with one copy each. For more it uploads their addresses, and a graph's replay would then read whatever
#: that memory holds.
_COPIED = 8


def add(a: Any, b: Any, variant: str | None = None, *, epilogue: Epilogue | None = None) -> Any:
    """Sum of two activations of one precision: BitGNN's ADD, for example of a node's own features and those of its neighbours.

    Parameters
    ----------
    a, b : two arrays or two one-bit bipolar BitTensors, of equal shape (..., m, n)
        Mixed precisions are refused, as in the paper.
    variant : {"FFF", "FFB", "BBF", "BBB"}, optional
        Letters of `a`, `b` and the result; by default those of the operands, with output B if the epilogue binarises, else F.
    epilogue : Epilogue, optional
        Applied to the sum (int32 for bits, else float32).

    Returns
    -------
    array or BitTensor (..., m, n)
        BBF without an epilogue: the sum of the stored integers, int32 in {-2, 0, 2}. BBB: the sign of the sum with sign(0) = +1, which is
        the bitwise or of bits without scales and offsets. FFF without an epilogue: floats are added as in NumPy, and integers and bools
        exactly, in int32 or int64. Otherwise float32, or a BitTensor for output B; scales and offsets of the bits are applied first.

    Raises
    ------
    ShapeError, DTypeError
        Shapes or precisions differ.

    Examples
    --------
    >>> a = bs.pack_bits(np.array([[1.0, -1.0, -1.0]]), encoding="bipolar")
    >>> b = bs.pack_bits(np.array([[1.0, 1.0, -1.0]]), encoding="bipolar")
    >>> bs.add(a, b), bs.add(a, b, "BBB").toarray()
    (array([[ 2,  0, -2]], dtype=int32), array([[ 1,  1, -1]], dtype=int8))
    """
    function = "add"
    found = "".join(letters.activation_letter(function, name, x) for name, x in (("a", a), ("b", b)))
    if found not in ("FF", "BB"):
        raise DTypeError(
            f"{function}: a is {'bits' if found[0] == 'B' else 'an array'} and b is {'bits' if found[1] == 'B' else 'an array'}, but both "
            f"have one precision; pass both as BitTensors, or both as arrays (x.toarray())"
        )
    chosen = letters.fitting(function, variant, found, epilogue)
    finish = letters.with_output(function, chosen[2], epilogue)
    shapes = [_shape_of(function, name, x) for name, x in (("a", a), ("b", b))]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{function}: a has shape {shapes[0]} but b has {shapes[1]}; make them equal")
    if found == "BB":
        for name, x in (("a", a), ("b", b)):
            bipolar(function, name, x)
        return _add_bits(a, b, chosen, epilogue, finish)
    (left, one), (right, two) = (interop.as_array(x, function, name) for name, x in (("a", a), ("b", b)))
    for name, x in (("a", left), ("b", right)):
        _check.numeric(function, name, x)
    device = _check.same_device(function, (interop.device_of(left), interop.device_of(right)))
    family = interop.common_family([one, two])
    with interop.working_on(device, family):
        if finish is None:
            return interop.from_array(_sum(function, left, right), family, function)
        total = converted(left, np.float32) + converted(right, np.float32)
        return finish.applied("add", interop.from_array(total, family, function))


def _add_bits(a: BitTensor, b: BitTensor, chosen: str, epilogue: Epilogue | None, finish: Epilogue | None) -> Any:
    """ADD of signs. Without scales and offsets, the or of the bits is the sign of their sum, as sign(0) = +1."""
    device = _check.same_device("add", (a.device, b.device))
    family = interop.common_family([family_of(a), family_of(b)])
    with interop.working_on(device, family):
        real = any(part is not None for x in (a, b) for part in (x.scale, x.offset))
        if chosen == "BBB" and epilogue is None and not real:
            other = b.repack(axis=a.axis, layout=a.layout)  # type: ignore[arg-type]
            return assembled(BitTensor, a.words | other.words, a.shape, 1, a.axis, a.layout, "bipolar", family)
        # Without a float step the stored integers are added without scales, as in matmul.
        values = (x.dequantize() if real and finish is not None else x.toarray(np.int32) for x in (a, b))
        total = sum(interop.as_array(value, "add")[0] for value in values)
        result = interop.from_array(total, family, "add")
        return result if finish is None else finish.applied("add", result)


def _sum(function: str, left: Array, right: Array) -> Array:
    """The sum: floats as in NumPy, integers in a type that cannot wrap (NumPy lets integers wrap, and adds bools by a logical or)."""
    if left.dtype.kind not in "biu" or right.dtype.kind not in "biu":
        if interop.namespace(left) is not np and "bfloat16" in (left.dtype.name, right.dtype.name):
            # CuPy cannot compute with bfloat16; like NumPy, this rounds a float32 sum.
            result = (np.empty(0, left.dtype) + np.empty(0, right.dtype)).dtype
            wide = np.promote_types(result, np.float32)
            return converted(converted(left, wide) + converted(right, wide), result)
        return left + right
    if max(left.dtype.itemsize, right.dtype.itemsize) < 4:
        return left.astype(np.int32) + right.astype(np.int32)
    for name, x in (("a", left), ("b", right)):
        if x.size and not (int(x.min()) >= -(1 << 62) and int(x.max()) < 1 << 62):
            raise ValueError(
                f"{function}: {name} reaches {int(x.min())}..{int(x.max())}, and a sum beyond 2**62 may not fit int64; use floats"
            )
    return left.astype(np.int64) + right.astype(np.int64)


def concat(parts: Any, axis: int = -1) -> Any:
    """Join activations of one precision along an axis: BitGNN's CONCAT (of a node's own features and those of its neighbours).

    Bits are joined in packed form: whole words if lengths allow it, else shifted words.

    Parameters
    ----------
    parts : sequence of arrays, or of BitTensors of equal bits and encoding
        Parts of equal shape except along `axis`. Scales and offsets are refused: two tensors need not share a grid.
    axis : int, default -1

    Returns
    -------
    array or BitTensor
        A BitTensor in the packed axis and layout of the first part.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Nothing to join, or parts that do not fit.

    Examples
    --------
    >>> a = bs.pack_bits(np.array([[1, 0, 1]]), axis=-1)
    >>> bs.concat([a, a, a]).toarray()
    array([[1, 0, 1, 1, 0, 1, 1, 0, 1]], dtype=uint8)
    """
    function = "concat"
    if isinstance(parts, (BitTensor, np.ndarray)) or not isinstance(parts, Sequence) or not parts:
        raise ShapeError(
            f"{function}: parts must be a sequence of at least one array or BitTensor, got {type(parts).__name__}"
        )
    packed = [part for part in parts if isinstance(part, BitTensor)]
    if len(packed) not in (0, len(parts)):
        raise DTypeError(
            f"{function}: {len(packed)} of {len(parts)} parts are BitTensors, but all have one precision; pack or unpack the others"
        )
    shapes = [_shape_of(function, f"parts[{i}]", part) for i, part in enumerate(parts)]
    ndim = len(shapes[0])
    place = _check.integer(function, "axis", axis, -ndim, ndim - 1) % ndim
    for shape in shapes[1:]:
        if len(shape) != ndim or any(
            i != place and s != t for i, (s, t) in enumerate(zip(shape, shapes[0], strict=True))
        ):
            raise ShapeError(
                f"{function}: shapes {shapes[0]} and {shape} differ beside axis {axis}; make them equal there"
            )
    if packed:
        return _concat_bits(packed, place - ndim)
    arrays = [interop.as_array(part, function, f"parts[{i}]") for i, part in enumerate(parts)]
    device = _check.same_device(function, [interop.device_of(array) for array, _ in arrays])
    family = interop.common_family([each for _, each in arrays])
    with interop.working_on(device, family):
        joined = _joined([array for array, _ in arrays], place)
        return interop.from_array(joined, family, function)


def _joined(arrays: list[Any], axis: int) -> Any:
    """The arrays joined along an axis; while a stream is capturing, each of many arrays is copied by itself (see `_COPIED`)."""
    space: Any = interop.namespace(arrays[0])
    if len(arrays) <= _COPIED or not interop.is_capturing(interop.device_of(arrays[0])):
        return space.concatenate(arrays, axis=axis)
    ends = np.cumsum([0, *(array.shape[axis] for array in arrays)])
    shape, before = arrays[0].shape, (slice(None),) * axis
    dtype = np.result_type(*(array.dtype for array in arrays))
    made = space.empty((*shape[:axis], int(ends[-1]), *shape[axis + 1 :]), dtype)
    for array, start, stop in zip(arrays, ends[:-1], ends[1:], strict=True):
        made[(*before, slice(int(start), int(stop)))] = array
    return made


def _concat_bits(parts: list[BitTensor], axis: int) -> BitTensor:
    function, first = "concat", parts[0]
    for part in parts:
        if (part.bits, part.encoding) != (first.bits, first.encoding):
            raise DTypeError(
                f"{function}: parts have {first.bits} {first.encoding} and {part.bits} {part.encoding} bits; convert one with "
                f"BitTensor(x, bits, encoding=...)"
            )
        if part.scale is not None or part.offset is not None:
            raise ValueError(
                f"{function}: a part has a scale or an offset, which the parts need not share; pass part.with_affine() and keep them apart"
            )
    family = interop.common_family([family_of(part) for part in parts])
    with interop.working_on(_check.same_device(function, [part.device for part in parts]), family):
        same = [part.repack(axis=first.axis, layout=first.layout) for part in parts]  # type: ignore[arg-type]
        shape = (*first.shape[: len(first.shape) + axis], sum(part.shape[axis] for part in same))
        shape = (*shape, *first.shape[len(first.shape) + axis + 1 :])
        if axis != first.axis:
            # In the words, batch dimensions are in the same place as in the logical shape, directly followed by the outer axis.
            words_axis = len(shape) + axis if axis < -2 else len(shape) - 2
            words = _joined([part.words for part in same], words_axis)
        else:
            fields = first.bits if first.layout == "rows" else 1
            width = packed_words(shape[axis], first.bits, first.layout)
            words = interop.namespace(first.words).zeros((*same[0].words.shape[:-1], width), np.uint32)
            join_bits(words, [(part.words, part.shape[axis] * fields) for part in same])
        return assembled(BitTensor, words, shape, first.bits, first.axis, first.layout, first.encoding, family)


def join_bits(out: NDArray[np.uint32], parts: Sequence[tuple[NDArray[np.uint32], int]]) -> None:
    """Write runs of bits one behind the other into `out`, which must be zero; a part is its words, with zero padding, and its length."""
    at = 0
    for words, used in parts:
        n, word, shift = -(-used // 32), at // 32, np.uint32(at % 32)
        out[..., word : word + n] |= words[..., :n] << shift
        if shift and n:
            spill = min(n, out.shape[-1] - word - 1)
            out[..., word + 1 : word + 1 + spill] |= words[..., :spill] >> (np.uint32(32) - shift)
        at += used


def _shape_of(function: str, name: str, x: Any) -> tuple[int, ...]:
    """The shape of an array, BitTensor or nested list."""
    return tuple(x.shape) if hasattr(x, "shape") else interop.as_array(x, function, name)[0].shape
