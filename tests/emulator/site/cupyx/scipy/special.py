"""Functions of ``cupyx.scipy.special``: SciPy computes them on the host, for arrays of the fake device."""

from __future__ import annotations

from typing import Any

import cupy
from scipy import special

__all__ = ["erf", "expit"]


def erf(x: Any) -> Any:
    return cupy.asarray(special.erf(x.get()))


def expit(x: Any) -> Any:
    return cupy.asarray(special.expit(x.get()))
