"""Calls of this library's functions within XLA's computations: how they are traced, and what runs when XLA executes one."""

from __future__ import annotations

import atexit
import json
import operator
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bitsparse import interop
from bitsparse._ext import xla
from bitsparse.jax import axes, launches
from bitsparse.jax.tasks import HOST, Call, gpu_device, task_of
from bitsparse.jax.ways import Name, Side, Ways

#: The names under which XLA knows our handlers: one for all calls, one for calls that enqueue the same launches every time.
_TARGET, _RECORDED = "bitsparse", "bitsparse_recorded"
#: The shape and dtype of an array.
Kind: Any = jax.ShapeDtypeStruct


class Text(str):
    """The description of a call that XLA stores; it holds a reference to the graph that it names, which must live as long."""

    __slots__ = ("known",)

    known: Name | None


# ---- while tracing
def call(function: str, ways: Ways | None, arrays: Sequence[Any], results: Sequence[Any], **options: Any) -> list[Any]:
    """Call one of the registered functions through XLA's foreign function interface.

    Parameters
    ----------
    ways : Ways or None
    arrays : sequence of arrays of JAX or None
    options : numbers, strings and None
    """
    operands: list[Any] = []

    def place(part: Any) -> Any:
        """Where a call finds an array: its number among the operands, or its name in a graph."""
        if part is None or isinstance(part, str):
            return part
        operands.append(part)
        return len(operands) - 1

    sides = None
    if ways is not None:
        forward = Side(*map(place, ways.forward))
        shared = ways.backward.indptr is None
        backward = Side(*(forward[:2] if shared else map(place, ways.backward[:2])), *map(place, ways.backward[2:]))
        sides = {"shape": ways.shape, "nnz": ways.nnz, "known": ways.known, "forward": forward, "backward": backward}
    of_graph = len(operands)
    given = [place(part) for part in arrays]
    told = {
        "function": function,
        "ways": sides,
        "arrays": given,
        "operands": [_kind(part) for part in operands],
        "results": [_kind(part) for part in results],
        "options": options,
    }
    known = None if ways is None else ways.known

    def plain(*operands: Any) -> list[Any]:
        text = _text(told, known)
        return list(
            jax.ffi.ffi_call(_TARGET, list(results))(*operands, call=text, digest=launches.digest(text, of_graph))
        )

    operands = axes.alike(operands)

    def along(made: Sequence[Any]) -> list[Any]:
        """Mark results as varying along the mesh axes along which the operands vary."""
        return [axes.varying_along(part, axes.varying(operands[0])) for part in made] if operands else list(made)

    spaces = None if known is None else launches.spaces_of(_text(told, known), known.graph)
    if known is None or spaces is None:
        return along(plain(*operands))

    def recorded(*operands: Any) -> list[Any]:
        text = _text(told | {"spaces": spaces}, known)
        key, kinds = launches.digest(text, 0), [*results, *(Kind((size,), np.uint8) for size in spaces)]
        launches.keep(text, key, known.graph)
        return list(jax.ffi.ffi_call(_RECORDED, kinds)(*operands, call=text, digest=key)[: len(results)])

    return along(jax.lax.platform_dependent(*operands, cuda=recorded, default=plain))


def _text(told: dict[str, Any], known: Name | None) -> Text:
    text = Text(json.dumps(told, default=operator.index))  # an option may be an integer of NumPy's
    text.known = known
    return text


def _kind(part: Any) -> tuple[tuple[int, ...], str]:
    return tuple(part.shape), np.dtype(part.dtype).name


# ---- when XLA executes a call
def _serve(
    executes: bool, text: bytes, digest: bytes, arguments: list[int], results: list[int], gpu: int, stream: int
) -> None:
    """Compute a call for which no launches are recorded; if every call enqueues the same launches, record them first."""
    call, task = Call(text, digest, arguments, results, gpu, stream), task_of(text)
    if gpu < 0:
        task.run(call, HOST)
    elif not executes:
        launches.load(task, call)
    else:
        with interop.on_stream(gpu, stream):
            if task.spaces is not None:
                launches.load(task, call)
            task.run(call, gpu_device(gpu))
            launches.learn(task, call)


#: The handlers: compiled code, which lives as long as the process.
_HANDLERS = {name: jax.ffi.pycapsule(address) for name, address in xla.setup(_serve, launches.holds).items()}
# A script may end before XLA has finished its pending computations.
atexit.register(xla.end)
if hasattr(os, "register_at_fork"):  # a forked process lacks XLA's threads and would wait for them
    os.register_at_fork(after_in_child=lambda: atexit.unregister(xla.end))
jax.ffi.register_ffi_target(_TARGET, _HANDLERS["host"], platform="cpu")
jax.ffi.register_ffi_target(_TARGET, _HANDLERS["gpu"], platform="CUDA")
jax.ffi.register_ffi_target(_RECORDED, dict.fromkeys(("initialize", "execute"), _HANDLERS["recorded"]), platform="CUDA")
