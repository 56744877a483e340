"""The steps after float sums, as the argument of ``spmm_csr`` holds them."""

from __future__ import annotations

from typing import Any

from bitsparse import interop, jit
from bitsparse.backends.after_sums import AfterSums


def set_after(params: Any, after: AfterSums | None, alignment: int) -> Any:
    """Set the steps of one call in a kernel's argument; returns an array to hold until the launch is enqueued.

    Own features whose rows do not start at multiples of `alignment` bytes are copied.
    """
    bias, own, scale, relu = after or AfterSums()
    if own is not None:
        if (own.data.ptr | own.strides[0]) % alignment:
            own = interop.aligned(interop.as_bits(own))
        params.own_bytes = own.strides[0]
    jit.filled(params, bias=bias, own=own, own_scale=scale, relu=int(relu))
    return own
