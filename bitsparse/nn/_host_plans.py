"""Stand-ins for plan_bmm and plan_bspmm on the CPU; they go when those are there."""

import dataclasses

import numpy as np

from bitsparse import interop
from bitsparse.arrays import BitTensor
from bitsparse.ops import bmm, bspmm


def plan_bmm(
    w, m, variant=None, *, epilogue=None, dtype=None, kernel=None, row_absmean=False, a_scale=None, a_shift=None
):
    def run(a, out=None):
        e = epilogue
        if not isinstance(a, BitTensor):
            x = interop.as_numpy(a, "bmm", "a")[0].astype(np.float32)
            if a_scale is not None:
                x = x * a_scale
            if a_shift is not None:
                x = x + a_shift
            if row_absmean:
                e = dataclasses.replace(e, row_scale=np.abs(x).mean(axis=1, dtype=np.float32))
            a = x
        return bmm(a, w, variant, epilogue=e, out=out)

    return run


def plan_bspmm(A, n, variant=None, *, reduce="sum", epilogue=None, add=False, kernel=None, dtype=None):
    def run(x, add=None, out=None):
        return bspmm(A, x, variant, reduce=reduce, add=add, epilogue=epilogue, out=out)

    return run
