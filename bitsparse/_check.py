"""Argument checks and the error messages that users read when one fails.

Every message names the function, the wrong value or the two values that clash, and the remedy. Checks run before anything is written.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._text import brief as brief
from bitsparse._text import shown as shown
from bitsparse.errors import DeviceError, DTypeError, KernelError, ShapeError

__all__: list[str] = []

MAX_BITS = 32
ENCODINGS = ("unsigned", "signed", "bipolar")
LAYOUTS = ("planes", "rows")
ROW_LAYOUT_BITS = (1, 2, 4, 8, 16)
GRANULARITIES = ("tensor", "row", "col")
#: The first one of each scheme is its default. Rounding down is half a step too low on average, so only the scheme of the paper defaults
#: to it.
ROUNDINGS_OF_SCHEME = {
    "affine-pow2": ("floor",),
    "affine": ("nearest", "floor", "stochastic"),
    "symmetric": ("nearest", "stochastic"),
}


def integer(function: str, name: str, value: Any, low: int, high: int | None = None) -> int:
    """``value`` as a Python int in ``low..high``."""
    if isinstance(value, (bool, np.bool_)):
        raise DTypeError(f"{function}: {name} must be an integer, got {shown(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise DTypeError(
            f"{function}: {name} must be an integer, got {shown(value)} ({type(value).__name__})"
        ) from None
    if number < low or (high is not None and number > high):
        wanted = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{function}: {name} must be {wanted}, got {shown(number)}")
    return number


def number(function: str, name: str, value: Any) -> float:
    """``value`` as a float that is finite in float32 too."""
    wanted = f"{function}: {name} must be a finite number of float32"
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise DTypeError(f"{wanted}, got {shown(value)}")
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise DTypeError(f"{wanted}, got {type(value).__name__}") from None
    except OverflowError:
        found = float("inf")
    if not abs(found) <= float(np.finfo(np.float32).max):
        raise ValueError(f"{wanted}, got {found}; pass one of at most {np.finfo(np.float32).max:.3g}")
    return found


def bit_count(function: str, bits: Any, low: int = 1, high: int = MAX_BITS) -> int:
    return integer(function, "bits", bits, low, high)


def flag(function: str, name: str, value: Any) -> bool:
    """`value` as a bool; arrays and strings are refused, although Python would give them a truth value."""
    if not isinstance(value, (bool, np.bool_)):
        raise DTypeError(f"{function}: {name} must be True or False, got {shown(value)}")
    return bool(value)


def choice(function: str, name: str, value: Any, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{function}: {name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}")
    return value


@contextmanager
def needed(function: str, module: str, command: str, package: str = "") -> Iterator[None]:
    """A context for an import: if the package is missing, the error names the command that installs it; other errors pass through."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        raise ImportError(f"{function}: {package or module} is not installed; run: {command}") from None


def extra(function: str, module: str, package: str, group: str) -> AbstractContextManager[None]:
    """As :func:`needed`, for a package that comes with one of our extras."""
    return needed(function, module, f"pip install 'bitsparse[{group}]'", package)


def instance(function: str, name: str, value: Any, kind: Any, what: str, remedy: str = "") -> Any:
    """`value`, checked to be an instance of `kind`; messages call that type `what`, and `remedy` tells how to make one."""
    if not isinstance(value, kind):
        raise DTypeError(f"{function}: {name} must be {what}, got {type(value).__name__}{remedy and f'; {remedy}'}")
    return value


def axis(function: str, value: Any, ndim: int) -> int:
    """The packed axis as -1 or -2."""
    number = integer(function, "axis", value, -ndim, ndim - 1)
    number = number - ndim if number >= 0 else number
    if number not in (-1, -2):
        raise ShapeError(
            f"{function}: axis must name one of the last two axes (-1 or -2) of {ndim} dimensions, got {value}"
        )
    return number


def layout(function: str, value: Any, bits: int) -> str:
    name = choice(function, "layout", value, LAYOUTS)
    if name == "rows" and bits not in ROW_LAYOUT_BITS:
        allowed = ", ".join(map(str, ROW_LAYOUT_BITS))
        raise ValueError(
            f"{function}: layout='rows' stores integers of {allowed} bits, got bits={bits}; use layout='planes'"
        )
    return name


def encoding(function: str, value: Any, bits: int) -> str:
    name = choice(function, "encoding", value, ENCODINGS)
    if name == "bipolar" and bits != 1:
        raise ValueError(
            f"{function}: encoding='bipolar' means one bit for -1 or +1, got bits={bits}; use encoding='signed'"
        )
    return name


def at_least_2d(function: str, name: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2:
        remedy = f"{name}[None, :] or {name}[:, None]" if len(shape) == 1 else f"{name}.reshape(1, 1)"
        raise ShapeError(
            f"{function}: {name} has shape {shape}, but bit arrays have at least 2 dimensions; pass {remedy}"
        )


def shape(function: str, value: Any) -> tuple[int, ...]:
    """A shape of at least two non-negative sizes."""
    if not isinstance(value, (tuple, list)):
        raise DTypeError(f"{function}: shape must be a tuple of integers, got {shown(value)}")
    sizes = tuple(integer(function, "each size of shape", size, 0) for size in value)
    if len(sizes) < 2:
        raise ShapeError(
            f"{function}: shape {shown(sizes)} has {len(sizes)} dimensions, but bit arrays have at least 2; pass (1, *shape)"
        )
    return sizes


def sparse_remedy(A: Any) -> str:
    """The remedy for an argument `A` that a sparse function cannot read."""
    dense = hasattr(A, "ndim") or isinstance(A, (list, tuple))
    return "pass TCTiledCSR(A)" if dense else "pass one of these"


def not_edges(function: str, rows: Any) -> None:
    """Refuse a list of pairs, which looks like edges but would be read as a dense array of two columns."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, tuple) and len(row) == 2 for row in rows):
        return
    kind = function if function == "FRDC" else "TCTiledCSR"
    raise DTypeError(
        f"{function}: a list of {len(rows)} pairs might be edges or a dense array of 2 columns; pass "
        f"{kind}.from_edges(*zip(*pairs)) for edges, numpy.array(pairs) for an array"
    )


def numeric(function: str, name: str, array: NDArray[Any], kinds: str = "biuf") -> None:
    """Refuse arrays of dtypes that are not plain numbers; bfloat16 from ml_dtypes counts as floating."""
    numeric_dtype(function, name, array.dtype, kinds)


def numeric_dtype(function: str, name: str, dtype: np.dtype[Any], kinds: str = "biuf") -> None:
    """As :func:`numeric`, but takes the dtype itself."""
    wanted_kind = dtype.kind in kinds or ("f" in kinds and dtype.name == "bfloat16")
    if wanted_kind and (dtype.kind != "f" or dtype.itemsize <= 8):
        return
    words = {"b": "bool", "i": "signed integer", "u": "unsigned integer", "f": "float16, bfloat16, float32 or float64"}
    wanted = ", ".join(words[kind] for kind in kinds)
    raise DTypeError(f"{function}: {name} has dtype {dtype}, but {function} takes {wanted}; convert it with astype")


def dtype(function: str, value: Any, kinds: str = "biuf", name: str = "dtype") -> np.dtype[Any]:
    """A dtype that a caller asks for: it must be of plain numbers and, like all results, in the byte order of this machine."""
    try:
        wanted: np.dtype[Any] = np.dtype(value)
    except TypeError:
        raise DTypeError(
            f"{function}: {name} must be a NumPy dtype, such as 'float32' or numpy.float32, got {shown(value)}"
        ) from None
    if not wanted.isnative:
        native = wanted.newbyteorder("=").name
        raise DTypeError(
            f"{function}: {name} is {wanted}, in the byte order of another machine, but results are in that of this one; pass {native!r}, "
            f"and change the order of what comes out with numpy.astype({wanted.str!r})"
        )
    numeric_dtype(function, name, wanted, kinds)
    return wanted


def finite(function: str, name: str, is_finite: bool) -> None:
    if not is_finite:
        raise ValueError(
            f"{function}: {name} holds NaN or infinity, but must be finite; replace them, as with numpy.nan_to_num"
        )


def no_nan(function: str, name: str, has_nan: bool) -> None:
    if has_nan:
        raise ValueError(f"{function}: {name} holds NaN, which has no sign; replace it, as with numpy.nan_to_num")


def no_nan_in_epilogue(function: str, has_nan: bool) -> None:
    if has_nan:
        raise ValueError(
            f"{function}: the epilogue produced NaN, which has no code; "
            "check row_scale, col_scale, bias and batch_norm for NaN and infinity"
        )


def limits_of(bits: int, encoding_name: str) -> tuple[int, int]:
    """Smallest and largest integer that ``bits`` hold under an encoding.

    >>> limits_of(4, "unsigned"), limits_of(4, "signed"), limits_of(1, "bipolar")
    ((0, 15), (-8, 7), (-1, 1))
    """
    if encoding_name == "bipolar":
        return -1, 1
    if encoding_name == "signed":
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1


def largest_code(bits: int, encoding_name: str) -> int:
    """Largest magnitude of an integer of `bits` bits under an encoding.

    >>> largest_code(4, "unsigned"), largest_code(4, "signed"), largest_code(1, "bipolar")
    (15, 8, 1)
    """
    return max(abs(limit) for limit in limits_of(bits, encoding_name))


def values_fit(function: str, low: int, high: int, bits: int, encoding_name: str) -> None:
    """Refuse data whose extreme values ``low..high`` do not fit the bits and encoding."""
    smallest, largest = limits_of(bits, encoding_name)
    if low < smallest or high > largest:
        remedy = (
            "pass encoding='signed' and enough bits" if low < 0 and encoding_name == "unsigned" else "pass more bits"
        )
        raise ValueError(
            f"{function}: values reach {low}..{high}, but {bits} bits with encoding={encoding_name!r} hold {smallest}..{largest}; "
            f"{remedy}, or quantize"
        )


def bipolar_values(function: str, ok: bool) -> None:
    if not ok:
        raise ValueError(
            f"{function}: encoding='bipolar' holds only -1 and +1, but x has other values; pass floats to take their sign"
        )


def rounding_of(function: str, scheme: str, rounding: Any) -> str:
    allowed = ROUNDINGS_OF_SCHEME[scheme]
    if rounding is None:
        return allowed[0]
    if rounding not in allowed:
        names = " or ".join(map(repr, allowed))
        raise ValueError(f"{function}: scheme={scheme!r} rounds by {names}, got rounding={shown(rounding)}")
    return str(rounding)


def matmul_shapes(function: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if a[-1] != b[-2]:
        raise ShapeError(
            f"{function}: a has {a[-1]} columns but b has {b[-2]} rows (shapes {a} and {b}); "
            f"transpose one of them with .mT, or check which operand comes first"
        )


def batches(function: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return a if a == b else np.broadcast_shapes(a, b)
    except ValueError:
        raise ShapeError(f"{function}: batch dimensions {a} and {b} do not broadcast; make them equal or 1") from None


def same_device(function: str, devices: Sequence[str]) -> str:
    if len(set(devices)) > 1:
        raise DeviceError(
            f"{function}: operands are on {' and '.join(dict.fromkeys(devices))}; move one with .to_device(...)"
        )
    return devices[0]


def on_cpu(function: str, name: str, device: str) -> None:
    """Refuse an array on a GPU, for functions that run on the CPU only."""
    if device != "cpu":
        raise DeviceError(
            f"{function}: {name} is on {device}, but this function runs on the CPU in this release; pass it with .get()"
        )


def accumulator(function: str, k: int, a_max: int, b_max: int) -> np.dtype[Any]:
    """int32 if ``k * a_max * b_max`` stays below 2**31, else int64 below 2**63, else an error (DESIGN: it never wraps)."""
    bound = k * a_max * b_max
    if bound < 1 << 31:
        return np.dtype(np.int32)
    if bound < 1 << 63:
        return np.dtype(np.int64)
    raise ValueError(
        f"{function}: {k} products of values up to {a_max} and {b_max} may reach {bound}, beyond int64 ({(1 << 63) - 1}); "
        f"use fewer bits or split the contraction axis"
    )


def out_like(
    function: str, out: NDArray[Any], wanted_shape: tuple[int, ...], dtype: np.dtype[Any], name: str = "out"
) -> None:
    """Refuse an output of another shape or dtype, and one that cannot be written to; `name` is that of the argument."""
    if out.shape != wanted_shape:
        raise ShapeError(
            f"{function}: {name} has shape {out.shape}, but the result has shape {wanted_shape}; pass {name}=None or a fitting array"
        )
    if out.dtype != dtype:
        raise DTypeError(
            f"{function}: {name} has dtype {out.dtype}, but the result is {dtype}; pass {name}=None or an array of that dtype"
        )
    writable(function, out, name)


def writable(function: str, out: NDArray[Any], name: str = "out") -> None:
    """Refuse an output that cannot be written to; CuPy's arrays are always writable."""
    if not getattr(out.flags, "writeable", True):
        raise ValueError(f"{function}: {name} is read-only, but results are written in place; pass a writable array")


def out_array(
    function: str, out: NDArray[Any], wanted_shape: tuple[int, ...], dtype: np.dtype[Any], name: str = "out"
) -> None:
    """As :func:`out_like`, and refuse an output that is not aligned or not C-contiguous."""
    out_like(function, out, wanted_shape, dtype, name)
    flags, aligned = out.flags, getattr(out.flags, "aligned", True)  # CuPy's always are
    if not (flags.c_contiguous and aligned):
        state = "not C-contiguous" if aligned else "not aligned to its dtype"
        raise ValueError(
            f"{function}: {name} is {state}, but results are written in place; pass an aligned, C-contiguous array"
        )


def planned(function: str, what: str, found: Any, wanted: Any, error: type[Exception] = ShapeError) -> None:
    """Refuse an operand that a plan was not made for; `what` names the operand and the property that differs, as in "x has shape"."""
    if found != wanted:
        raise error(f"{function}: {what} {found}, but the plan is for {wanted}; make another plan")


def no_overlap(function: str, out: NDArray[Any], *operands: NDArray[Any], name: str = "out") -> None:
    if any(np.may_share_memory(out, operand) for operand in operands):
        raise ValueError(
            f"{function}: {name} shares memory with an operand or result, which would be overwritten while it is read; pass another array"
        )


def kernel(function: str, name: Any, kernels: Sequence[str]) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or name not in kernels:
        raise KernelError(
            f"{function}: there is no kernel {shown(name)}; choose one of {', '.join(map(repr, kernels))}, or None"
        )
    return str(name)


def vector(function: str, name: str, value: Any, length: int, batch: tuple[int, ...]) -> None:
    """Check the shape of a per-row or per-column vector: scalar, ``(length,)`` or ``(*batch, length)``."""
    if value.shape not in ((), (length,), (*batch, length)):
        also = f" or {(*batch, length)}" if batch else ""
        raise ShapeError(
            f"{function}: {name} has shape {value.shape}, but the result needs a scalar, {(length,)}{also}"
        )


def affine_shape(function: str, name: str, value: NDArray[Any], shape_: tuple[int, ...]) -> None:
    """Check a scale or offset of an array of ``shape_``: scalar, one per row ``(..., M, 1)`` or one per column ``(..., 1, N)``."""
    if value.shape == ():
        return
    rows, cols = shape_[-2:]
    fits = value.ndim == len(shape_) and value.shape[-2:] in ((rows, 1), (1, cols), (1, 1))
    if not fits or any(size not in (1, whole) for size, whole in zip(value.shape[:-2], shape_[:-2], strict=True)):
        raise ShapeError(
            f"{function}: {name} has shape {value.shape}, but an array of shape {shape_} takes a scalar, one value per row "
            f"{(*shape_[:-2], rows, 1)} or one per column {(*shape_[:-2], 1, cols)}"
        )
