"""Cases of suite ``sampled`` with quantised products of real matrices.

``qgemm-{m}x{k}x{n}-...`` is ``plan(x, out=y)`` of :func:`bitsparse.plan_quantized_matmul` to 8 bits, of standard normal matrices, with
weights quantised beforehand, as in every call but the first. Results are compared, number for number, with the same scaling after a float64
product of the codes, which is exact. The peer is ``torch.mm`` into a preallocated result. The endings of names mean:

- ``tf32off``, ``tf32on``: float32 activations with a given scale; the peer in float32 without and with TF32.
- ``found``: every call finds the scale by a pass over the activations; ``stochastic``: stochastic rounding; ``operands``: the codes are
  stored too (through the CUDA backend, into preallocated memory); ``int4``: 4 bits with a given scale. The peer uses TF32.
- ``given``: like ``tf32on``, for shapes that have no bar.
- ``bfloat16``: activations and the peer's weights are bfloat16.
- ``composed``: float32 with a given scale, ours in two steps, :func:`bitsparse.quantize` and :func:`bitsparse.matmul`; the peer is our
  kernel that quantises while it loads.

``estimate_ms`` is the larger of two times: the bytes of activations, weights and result at the rate of a copy (4.0 TB/s), and the
operations at the rate of the byte matrix unit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.binary_gpu import explained, poison, torch_product
from benchmarks.cases.sparse_gpu import Timed, in_turns
from benchmarks.ceilings import Bounds, bounds
from benchmarks.gpu_timing import torch_graph, torch_module
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["FORMS", "SHAPES", "cases"]

#: The shape with a bar, and shapes of Reddit's and Planetoid's features.
TARGET = (169_343, 512, 512)
SHAPES = ((232_965, 602, 128), (2_708, 1_433, 64), (19_717, 500, 64))
FORMS = ("tf32off", "tf32on", "found", "stochastic", "operands", "int4", "bfloat16", "composed")


def cases() -> list[Case]:
    """The cases of this file."""
    table = [(TARGET, form) for form in FORMS] + [(shape, form) for shape in SHAPES for form in ("given", "found")]
    return [Case(name_of(shape, form), partial(product, shape, form)) for shape, form in table]


def name_of(shape: tuple[int, int, int], form: str) -> str:
    """The name of a case."""
    return f"qgemm-{'x'.join(map(str, shape))}-{form}"


def product(shape: tuple[int, int, int], form: str) -> Prepared:
    """A quantised product against PyTorch's."""
    cupy, torch, case = jit.require_cupy("suite sampled"), torch_module(), name_of(shape, form)
    m, k, n = shape
    random = cupy.random.default_rng(0)
    x, w = (random.standard_normal(size, dtype=np.float32) for size in ((m, k), (k, n)))
    if form == "bfloat16":
        half = torch.from_dlpack(x).to(torch.bfloat16)
        x = cupy.from_dlpack(half.view(torch.int16)).view(_bfloat16())
    bits = 4 if form == "int4" else 8
    rounding: dict[str, Any] = {"rounding": "stochastic", "seed": 0} if form == "stochastic" else {}
    top = float(cupy.abs(x if form != "bfloat16" else cupy.from_dlpack(half.float())).max())
    given: dict[str, Any] = {} if form == "found" else {"range": top}
    weights = bs.quantize(w, bits, scheme="symmetric", axis=-2, layout="rows")
    plan = bs.plan_quantized_matmul(weights, m, bits, dtype=x.dtype, **rounding)
    whole = plan(x, return_operands=True, **given)
    expected = exact(whole.x, weights)
    out = cupy.empty((m, n), np.float32)
    call = partial(plan, x, out, **given)
    if form == "operands":
        codes = cupy.empty_like(whole.x.words)
        call = partial(plan._product, x, out, scale=float(whole.x.scale), codes=codes)
    poison(out)
    call()
    if form == "operands" and not bool((codes == whole.x.words).all()):
        raise AssertionError(f"{case}: the codes are wrong")
    if not bool((out == expected).all()) or not bool((whole.out == expected).all()):
        raise AssertionError(f"{case}: the result is wrong")
    del whole, expected
    ours = Timed(call, case)
    name = f"torch {torch.__version__} mm"
    if form == "composed":
        name, peer = "the same in one kernel", ours
        second = bs.plan_quantized_matmul(weights, m, bits, kernel="composed")
        ours = Timed(partial(second, x, out, **given), case, None)
    elif form == "bfloat16":
        right = torch.from_dlpack(w).to(torch.bfloat16)
        peer = Timed(
            partial(torch.mm, half, right, out=torch.empty((m, n), dtype=half.dtype, device="cuda")), name, torch_graph
        )
    else:
        peer = Timed(torch_product(x, w, pack=False, tf32=form != "tf32off"), name, torch_graph)
        name += ", float32" if form == "tf32off" else ", TF32"
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "bits": bits, "form": form, "x_bytes": int(x.nbytes)}
    params |= {"replayed": ours.replayed, "peer_replayed": peer.replayed} | explained(plan)
    moved = int(x.nbytes + weights.nbytes + out.nbytes) + (m * k * bits // 8 if form == "operands" else 0)
    read = int(x.nbytes) if form == "found" else 0
    limits = bounds(moved, byte_operations=2.0 * m * n * k)
    again = bounds(moved + read, byte_operations=2.0 * m * n * k)  # finding the range takes a separate pass
    limits = Bounds(limits.floor_ms, again.estimate_ms)

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, peer_ms = in_turns([ours, peer], protocol.repetitions)
        return ms, peer_ms

    return Prepared(lambda: None, None, name, params, moved, *limits, measure=measure)


def exact(x: bs.BitTensor, w: bs.BitTensor) -> Any:
    """Scale a product of codes that float64 computes exactly."""
    cupy, torch = jit.require_cupy("suite sampled"), torch_module()
    left, right = (torch.from_dlpack(side.toarray(np.int8)).double() for side in (x, w))
    sums = cupy.from_dlpack(left @ right).astype(np.float32)
    sums *= x.scale
    sums *= w.scale
    return sums


def _bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
