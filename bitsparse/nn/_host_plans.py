"""Stand-ins for plan_bmm and plan_bspmm on the CPU; they go when those are there."""

from bitsparse.ops import bspmm


def plan_bspmm(A, n, variant=None, *, reduce="sum", epilogue=None, add=False, kernel=None, dtype=None):
    def run(x, add=None, out=None):
        return bspmm(A, x, variant, reduce=reduce, add=add, epilogue=epilogue, out=out)

    return run
