"""How the kernel of a sparse product finishes its float32 sums: an addend, then the epilogue's chain, then floats or signs as output."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.finish.epilogue import Upload
from bitsparse.backends.cuda.finish.flag import Flag
from bitsparse.backends.host.matmul import matmul as host_matmul
from bitsparse.backends.params import EpilogueParams, packed_words

# The bits of enum FinishStep.
_OWN_ROW, _THEIR_ROW, ADDED, _BITS, _OWN_COLUMN, _THEIR_COLUMN, BIAS, NORM, RELU, _LEAKY, TANH = (
    1 << i for i in range(11)
)
_ACTIVATIONS = {None: 0, "relu": RELU, "leaky_relu": _LEAKY, "tanh": TANH}
#: Candidates for the largest sum for which limits are searched: the first up to which the chain stays finite is used.
_MOST = (3e38, 1e30, 1e18, 1e9, 1.0)
#: Vectors over the columns are padded to multiples of this, so that kernels may read past their ends.
_BLOCK = 64


FinishStruct = jit.struct("finish/floats.cuh", "Finish")


class Behind(NamedTuple):
    """What one call contributes to its finish.

    Attributes
    ----------
    addend : cupy.ndarray or None
        float32 (rows, columns), or uint32 words of one bit (rows, words), C-contiguous.
    encoding : str or None
        Encoding of the addend's bits.
    col_scale : cupy.ndarray or None
        Float32 factors of the sums' columns, with :func:`padded_columns` elements.
    """

    addend: Any = None
    encoding: str | None = None
    col_scale: Any = None


def padded_columns(columns: int) -> int:
    """The number of elements that an array with one factor per column must have.

    Examples
    --------
    >>> padded_columns(1), padded_columns(64), padded_columns(65)
    (64, 64, 128)
    """
    return max(1, -(-columns // _BLOCK)) * _BLOCK


def finish_constants(mode: int, steps: int = 0, pads: int | None = None) -> dict[str, int]:
    """Compile-time constants of a kernel with a finish. See :class:`Finish` for modes and pads, ``finish/floats.cuh`` for steps."""
    found = {"BS_FINISH": mode} | ({"BS_STEPS": steps} if steps else {})
    return found if pads is None else found | {"BS_PADS": pads}


class Finish:
    """The finish of products of one shape, prepared on the current device.

    Parameters
    ----------
    params : EpilogueParams
        The epilogue, with vectors on the host. ``out`` is "float", or "bits" with ``binarize``, packed along the columns.
    shape : tuple of int
        (rows, columns) of the product.
    row_scale : cupy.ndarray of float32 (rows,), optional
        The operand's row factors, applied before an addend.
    added : {None, "floats", "bits"}
        The kind of addend that calls pass.
    scaled : bool
        Whether calls pass factors of the columns.

    Attributes
    ----------
    mode : int
        BS_FINISH of the kernels: 1, the chain and floats; 2, signs of the unchanged sums; 3, signs after any steps.
    out_shape, out_dtype
        Shape and dtype of the result: float32 (rows, columns), or uint32 words (rows, 1, words).
    """

    def __init__(
        self,
        params: EpilogueParams,
        shape: tuple[int, int],
        *,
        row_scale: Any = None,
        added: str | None = None,
        scaled: bool = False,
    ) -> None:
        rows, columns = shape
        signs = params.out == "bits"
        raw = self.struct = FinishStruct(columns=columns, slope=params.negative_slope)
        names = ("bias", "bn_scale", "bn_shift", "col_scale")
        vectors = {name: getattr(params, name) for name in names if getattr(params, name) is not None}
        chained = bool(vectors) or params.activation is not None
        steps = ADDED * (added == "floats") | _BITS * (added == "bits") | _THEIR_COLUMN * scaled
        steps |= _OWN_ROW * (params.row_scale is not None) | _THEIR_ROW * (row_scale is not None)
        self.mode = 1 if not signs else 3 if steps or chained else 2
        if self.mode == 3:
            vectors = dict(zip(("limits", "flips"), _limits(params, columns), strict=True))
        else:
            steps |= (
                _OWN_COLUMN * ("col_scale" in vectors) | BIAS * ("bias" in vectors) | NORM * ("bn_scale" in vectors)
            )
            steps |= _ACTIVATIONS[params.activation]
        #: Compile-time constants of the kernels.
        self.defines = finish_constants(self.mode, steps)
        upload = Upload()
        for name, vector in vectors.items():
            spread = vector if np.ndim(vector) else np.full(columns, vector, np.float32)
            if name == "col_scale":
                upload.add(raw.col_scale, 0, spread)
            else:
                upload.add(raw, name, spread)
        if params.row_scale is not None:
            upload.add(raw.row_scale, 0, np.broadcast_to(np.asarray(params.row_scale, np.float32), (rows,)))
        #: Keeps the vectors alive that the structure points to.
        self._kept = (upload.finish(), row_scale)
        if row_scale is not None:
            raw.row_scale[1] = row_scale.data.ptr
        words = packed_words(columns, 1, "planes")
        self.out_shape: tuple[int, ...] = (rows, 1, words) if signs else shape
        self.out_dtype = np.dtype(np.uint32 if signs else np.float32)
        raw.row_bytes = 4 * (words if signs else columns)
        self._flag = Flag() if signs else None
        raw.nan = None if self._flag is None else self._flag.address

    def pads(self, lanes: int, runs: int, each: int) -> dict[str, int]:
        """BS_PADS for groups of `lanes` lanes with `each` columns per lane, which take `runs` passes over a row."""
        if self.mode == 1:
            return {}
        covered, last = -(-runs * lanes * each // 8), (runs - 1) * lanes * each // 8
        row = self.struct.row_bytes
        return {"BS_PADS": 0 if covered >= row else 1 if last + lanes >= row else 2}

    def nan_seen(self) -> bool:
        """Whether NaN should have become a sign since the previous call; waits for the current stream."""
        return self._flag is not None and self._flag.seen()

    def aim(self, struct: ctypes.Structure, behind: Behind | None) -> None:
        """Store what one call contributes in a kernel's argument."""
        if behind is None:
            return
        struct.col_scale[1] = None if behind.col_scale is None else behind.col_scale.data.ptr
        addend = behind.addend
        if addend is not None:
            struct.addend, struct.addend_bytes = addend.data.ptr, addend.strides[0]
            struct.bipolar = int(behind.encoding == "bipolar")


def _limits(params: EpilogueParams, columns: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where the sign of a chain changes: the limit of the sum for each column, and packed bits (as float32), set if sums below it give 1.

    The chain without its row factors is monotone in the sum, so bisecting the range of floats finds the limit exactly.
    """
    chain = replace(params, out="float", binarize=False, row_scale=None)

    def is_one(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        sums = np.abs(keys).astype(np.int32).view(np.float32)
        sums = np.where(keys < 0, -sums, sums)[None, :]
        return host_matmul.epilogue(sums, chain)[0] >= 0

    with np.errstate(all="ignore"):
        end = np.zeros(columns, np.int64)
        for most in _MOST:  # an overflow in the chain beyond `end` would hide its sign
            ends = np.array([most, -most], np.float32)[:, None] * np.ones(columns, np.float32)
            stays = np.isfinite(host_matmul.epilogue(ends, chain)).all(axis=0)
            end = np.where((end == 0) & stays, np.array(most, np.float32).view(np.int32), end)
        low, high = -end, end
        first, last = is_one(low), is_one(high)
        flips = first & ~last
        while (high - low > 1).any():
            middle = (low + high) >> 1
            reached = (is_one(middle) ^ flips) & (high - low > 1)
            low, high = np.where(reached | (high - low <= 1), low, middle), np.where(reached, middle, high)
    limits = np.abs(high).astype(np.int32).view(np.float32)
    limits = np.where(high < 0, -limits, limits)
    limits = np.where(first == last, np.where(first, -np.inf, np.nan), limits).astype(np.float32)
    words = np.zeros(padded_columns(columns) // 32, np.uint32)
    bits = np.packbits(flips, bitorder="little")
    words.view(np.uint8)[: bits.size] = bits
    return limits, words.view(np.float32)
