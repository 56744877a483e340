"""The steps that may follow float sums over neighbours in the same launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class AfterSums(NamedTuple):
    """Steps on sums in float32 before they are stored: ``relu(sum + own_scale * own + bias)``, without those parts that are not given.

    Each operation is rounded to float32 on its own, so that the bits are those of separate steps for float32 features. For features of 16
    bits the sum is not rounded to 16 bits before the steps, only what is stored is: that is more exact than separate steps, which round to
    16 bits every time, and has other bits. Arrays lie where the sums do.

    Attributes
    ----------
    bias : float32 array of the sums' columns or None
    own : array of the sums' shape or None, with the dtype of the features: float32, float16 or bfloat16
        Its rows may be further apart than they are long; elements of a row are neighbours.
    own_scale : float32 array of one element or None
        Factor of `own`, which kernels read when they run; None for 1.
    relu : bool
        Whether numbers up to 0 become 0; NaN stays NaN.
    """

    bias: Any = None
    own: Any = None
    own_scale: Any = None
    relu: bool = False

    def take(self, sums: Any) -> None:
        """Take these steps one after the other on sums of float32, in place.

        Examples
        --------
        >>> import numpy as np
        >>> sums = np.array([[1, -3]], np.float32)
        >>> AfterSums(bias=np.array([2, 2], np.float32), relu=True).take(sums)
        >>> sums
        array([[3., 0.]], dtype=float32)
        """
        if self.own is not None:
            sums += self.own if self.own_scale is None else self.own * self.own_scale
        if self.bias is not None:
            sums += self.bias
        if self.relu:
            np.maximum(sums, 0, out=sums)  # an assignment to a mask would wait for a GPU, which cannot be captured
