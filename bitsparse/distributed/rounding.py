"""Quantisation of rows on several ranks, with one range for all and stochastic rounding by an element's index in all rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from bitsparse import _check, interop, ops
from bitsparse._communicator import Communicator, agree, together
from bitsparse.arrays import BitTensor
from bitsparse.distributed.parts import Partition
from bitsparse.errors import ShapeError
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized.coded_rows import CodedRows, coded_rows
from bitsparse.ops.quantized.scaled import on_steps, step_up_to


def quantize(
    x: Any,
    bits: int,
    part: Partition,
    *,
    scheme: Literal["affine", "affine-pow2", "symmetric"] = "affine",
    rounding: Literal["floor", "nearest", "stochastic"] | None = None,
    granularity: Literal["tensor", "row", "col"] = "tensor",
    layout: Literal["planes", "rows"] = "planes",
    seed: int | None = None,
    stream: int = 0,
) -> BitTensor:
    """Quantise this rank's rows to the codes, scale and offset that :func:`bitsparse.quantize` would give for all rows at once.

    Parameters
    ----------
    x : array (rows, features)
        This rank's rows.
    bits, scheme, rounding, granularity, layout, stream
        As in :func:`bitsparse.quantize`. The range is that of the rows of all ranks, except for granularity "row".
    part : Partition
        The partition of the rows.
    seed : int, optional
        Required by stochastic rounding. The random bits of an element depend on its place in the rows of all ranks, in the order of
        ``part``.

    Returns
    -------
    BitTensor (rows, features)

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> x = np.arange(8, dtype=np.float32).reshape(4, 2)
    >>> def mine(comm):
    ...     part = distributed.partition(sp.eye_array(4, format="csr"), comm)
    ...     return distributed.quantize(part.take(x), 3, part).toarray().ravel().tolist()
    >>> distributed.local(2).run(mine)
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    function, comm = "quantize", part.comm
    with together(comm, function):
        array, family = interop.as_array(x, function)
        _check.numeric(function, "x", array)
        rows = part.rows()
        if array.ndim != 2 or array.shape[0] != rows.stop - rows.start:
            raise ShapeError(
                f"{function}: x has shape {array.shape}, but rank {comm.rank} of {comm.size} has {rows.stop - rows.start} rows; pass "
                f"(rows, features)"
            )
        _check.choice(function, "granularity", granularity, _check.GRANULARITIES)
        stochastic = _check.rounding_of(function, scheme, rounding) == "stochastic"
    how: dict[str, Any] = {
        "scheme": scheme,
        "rounding": rounding,
        "granularity": granularity,
        "seed": seed,
        "stream": stream,
    }
    agree(comm, function, columns=array.shape[1], dtype=str(array.dtype), bits=bits, **how)
    if stochastic and seed is None:
        raise ValueError(
            f"{function}: rounding='stochastic' with seed=None, but every rank has to draw by one seed; pass the same on all, as seed=0"
        )
    with interop.working_on(interop.device_of(array), family):
        ends: Any = None if granularity == "row" else _range(function, array, comm, scheme, granularity)
    return ops.quantize(x, bits, range=ends, layout=layout, first_index=rows.start * array.shape[1], **how)


def _range(function: str, array: Any, comm: Any, scheme: str, granularity: str) -> Any:
    """The range of the rows of all ranks, in the form that ``range=`` takes."""
    space: Any = interop.namespace(array)
    wide = (
        np.float64
        if array.dtype.itemsize > 4 or (array.dtype.kind in "iu" and array.dtype.itemsize == 4)
        else np.float32
    )
    values = array.astype(wide)
    axis = 0 if granularity == "col" else None
    if array.size:
        ends = space.stack([-values.min(axis=axis), values.max(axis=axis)])
    else:
        ends = space.full((2, *(array.shape[1:] if axis == 0 else ())), -np.inf, wide)
    ends = np.ascontiguousarray(interop.move(ends, "cpu"), np.float64)
    low, high = range_of_all(function, "x", ends, bool(space.isfinite(values).all()), comm)
    return np.maximum(np.abs(low), np.abs(high)) if scheme == "symmetric" else (low, high)


def range_of_all(function: str, name: str, ends: Any, finite: bool, comm: Communicator | None) -> tuple[Any, Any]:
    """The lowest and highest value on any rank, 0 if there are no rows. `ends` holds this rank's negated lowest and its highest value.

    They have the shape that ``range=`` takes. With `comm` all ranks call it together, and all raise if a value of one is not finite.

    Examples
    --------
    >>> low, high = range_of_all("example", "x", np.array([1.0, 2.5]), True, None)
    >>> float(low), float(high)
    (-1.0, 2.5)
    """
    if comm is not None:
        bad = np.array([not finite], np.int64)
        comm.all_reduce(bad, "max")
        finite = not bad[0]
    _check.finite(function, name, finite)
    if comm is not None:
        comm.all_reduce(ends, "max")
    low, high = (np.where(np.isfinite(end), end, 0.0) for end in (-ends[0], ends[1]))
    return (low[None, :], high[None, :]) if ends.ndim == 2 else (low, high)


def drawn_codes(
    x: Any, bits: int, largest: Any, first_index: int, seed: int, stream: int = 0, out: Any = None
) -> BitTensor:
    """Quantise rows of floats for an exchange: symmetric codes of 2 to 8 bits (TANGO section 3.1) in fields of 2, 4 or 8 bits.

    `largest`, the largest magnitude on all ranks, is a float32 () on the device of the rows, so that the host does not wait for it. If it
    is not finite, the codes are meaningless. The random bits of an element depend on its C-order index, which is `first_index` for the
    first element of these rows. The words are written into `out`, if it is given.

    Examples
    --------
    >>> x = np.array([[0.3, -1.0]], np.float32)
    >>> codes = drawn_codes(x, 7, np.array(1.0, np.float32), 0, seed=3)
    >>> q = bs.quantize(x, 7, scheme="symmetric", rounding="stochastic", seed=3)
    >>> bool((codes.toarray() == q.toarray()).all()), bool(codes.scale == q.scale), codes.bits
    (True, True, 8)
    """
    array, family = interop.as_array(x, "drawn_codes")
    step = step_up_to(largest, bits)
    coding = Coding(field_bits(bits), "stochastic", seed, stream, -1, "rows", first_index)
    return on_steps(array, family, step, step, coding, (1 << (bits - 1)) - 1, out=out)


def drawn_rows(
    x: Any, bits: int, first_index: int, seed: int, stream: int = 0, factors: Any = None, out: Any = None
) -> CodedRows:
    """Like :func:`drawn_codes`, but each row has a scale of its own, which ranks need not agree on and which travels with its codes.

    Scales are multiplied by the rows' `factors`, if there are any; a row that is not finite has the scale NaN.

    Examples
    --------
    >>> x = np.array([[0.3, -1.0], [20.0, 4.0]], np.float32)
    >>> codes = drawn_rows(x, 8, 0, seed=3).codes()
    >>> q = bs.quantize(x, 8, scheme="symmetric", rounding="stochastic", granularity="row", seed=3)
    >>> bool((codes.toarray() == q.toarray()).all()), bool((codes.scale == q.scale).all())
    (True, True)
    """
    array = interop.contiguous(interop.as_array(x, "drawn_rows")[0])
    coding = Coding(field_bits(bits), "stochastic", seed, stream, -1, "rows", first_index)
    return coded_rows(array, bits, coding, factors, out)


def field_bits(bits: int) -> int:
    """Bits of the field in which a code travels.

    Examples
    --------
    >>> [field_bits(bits) for bits in (2, 3, 4, 5, 8)]
    [2, 4, 4, 8, 8]
    """
    return next(field for field in (2, 4, 8) if bits <= field)
