"""Where a product with an epilogue goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands import target

__all__ = ["target_of"]


def target_of(
    function: str,
    epilogue: Epilogue | None,
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: str,
    operands: Sequence[Any],
) -> Any:
    """The NumPy or CuPy array behind `out`, into which a product goes: through the epilogue, or as sums of `dtype`.

    Checked before anything is written: what it is, where it is, and that it shares no memory with the operands' arrays.
    """
    like = None
    if epilogue is not None:
        dtype = np.dtype(np.float32)
        if epilogue.gives_bits:
            like = epilogue.wrap(operands[0][:0], shape, interop.NUMPY, function)
    return target.target_of(function, out, shape, dtype, device, operands, like)
