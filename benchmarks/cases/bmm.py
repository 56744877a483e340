"""Cases of suite ``binary`` with dense products: floats, binarised while they are loaded, times one-bit weights.

``bmm-{letters}-{m}x{k}x{n}`` is ``plan(x, out=y)`` of ``bitsparse.plan_bmm`` with packed weights and float32 activations. The peer is
``torch.mm`` of the same float32 activations and float32 weights with TF32 allowed; it does not binarise its operands. If the result is
bits, our sign-and-pack follows. ``estimate_ms`` is the time of the bytes of activations, weights and result at the memory's read rate;
``params.fp32_ms`` is the peer without TF32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.binary_gpu import check_bits, explained, function, poison, torch_product
from benchmarks.cases.sparse_gpu import Timed, in_turns
from benchmarks.ceilings import READ_RATE, bounds
from benchmarks.gpu_timing import torch_graph, torch_module
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

#: Rows, contraction and columns: those of Reddit's features (BitGNN's Table 2), of Planetoid's graphs and of Flickr.
SHAPES = ((232_965, 602, 128), (2_708, 1_433, 64), (3_327, 3_703, 64), (19_717, 500, 64), (89_250, 500, 256))
LETTERS = ("FBB", "FBF")


def cases() -> list[Case]:
    """The cases of this file."""
    return [
        Case(f"bmm-{letters.lower()}-{m}x{k}x{n}", partial(product, letters, m, k, n))
        for m, k, n in SHAPES
        for letters in LETTERS
    ]


def product(letters: str, m: int, k: int, n: int) -> Prepared:
    """Float activations times one-bit weights."""
    cupy, torch = jit.require_cupy("suite binary"), torch_module()
    plan_of, case = function("plan_bmm"), f"bmm-{letters.lower()}-{m}x{k}x{n}"
    random = cupy.random.default_rng(0)
    x, w = (random.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
    packed = bs.pack_bits(w, encoding="bipolar", axis=-2)
    plan = plan_of(packed, m, letters, dtype=x.dtype)
    out = plan(x)
    poison(out)
    plan(x, out=out)
    # Whole numbers below 2^24 are exact in float32; half precision holds -1 and +1.
    left, right = (torch.from_dlpack(cupy.where(a >= 0, 1, -1).astype(np.float16)).float() for a in (x, w))
    exact = cupy.from_dlpack(left.double() @ right.double()).astype(np.int32)
    if letters[2] == "B":
        check_bits(case, out.words, exact)
    elif not bool((out == exact).all()):
        raise AssertionError(f"{case}: the result is wrong")
    del left, right, exact
    sides = [Timed(partial(plan, x, out=out), case)]
    for tf32 in (True, False):
        call = torch_product(x, w, pack=letters[2] == "B", tf32=tf32)
        sides.append(Timed(call, f"torch {torch.__version__} mm", torch_graph))
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "letters": letters, "x_bytes": int(x.nbytes)}
    params |= {"replayed": sides[0].replayed, "peer_replayed": sides[1].replayed} | explained(plan)

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, peer_ms, params["fp32_ms"] = in_turns(sides, protocol.repetitions)
        return ms, peer_ms

    moved = int(x.nbytes + packed.nbytes + out.nbytes)
    name = f"torch {torch.__version__} mm, TF32" + (", then sign and pack" if letters[2] == "B" else "")
    return Prepared(lambda: None, None, name, params, moved, *bounds(moved, rate=READ_RATE), measure=measure)
