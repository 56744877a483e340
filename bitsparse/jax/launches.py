"""Launches of calls on a GPU, recorded once, which compiled code enqueues for every later call without Python.

Of a graph that a traced function closed over they are recorded while it is traced: what they work in are results of the call, XLA's
memory, so that XLA may record such calls into its command buffers. Of a graph that is an argument they are recorded when a call with it has
been computed, for the addresses of its arrays and for one stream, and are used while these arrays hold what they held.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import operator
import struct
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

from bitsparse import interop, jit
from bitsparse._ext import xla
from bitsparse.jax import memory
from bitsparse.jax.tasks import Call, Task, prepared, task_of
from bitsparse.jax.ways import Known, graph_called

#: What says that a call cannot be recorded; functions of CuPy's say of a stand-in that it is no array.
_REFUSED = (interop.NotRecordable, MemoryError, TypeError)
#: Numbers of what launches depend on.
_NUMBERS = itertools.count(1)


class Recording(NamedTuple):
    """What a call launches on one GPU, and what lives as long as this is used."""

    made: jit.Recorded
    holding: tuple[Any, ...]


def digest(text: str, of_graph: int) -> str:
    """The attribute by which launches for a call are found: how many of its first operands they depend on, and a key.

    Examples
    --------
    >>> digest("a text", 2)[0], len(digest("a text", 2))
    ('c', 17)
    """
    if of_graph > xla.KEPT_OPERANDS:
        raise ValueError(f"bitsparse.jax: a graph has {of_graph} arrays, but at most {xla.KEPT_OPERANDS} are looked at")
    key = hashlib.blake2b(text.encode(), digest_size=xla.KEY_BYTES * 3 // 4).digest()
    return chr(ord("a") + of_graph) + base64.b64encode(key).decode()


@cache
def _find_driver() -> None:
    """Tell compiled code where the CUDA driver is."""
    xla.set_driver(*jit.driver_entries())


def _record(task: Task, call: Call) -> Recording | None:
    """What a call launches, on the current GPU and stream; None where it does more than launch kernels.

    Everything that launches read is there when this returns.
    """
    count = len(task.operands)
    given, made = (
        [interop.StandIn(first + i, kind.shape, kind.dtype) for i, kind in enumerate(kinds)]
        for first, kinds in ((0, task.operands), (count, task.results))
    )
    arrays = [None if number is None else given[number] for number in task.arrays]
    try:
        run = prepared(task, call, arrays, made)
        if run is None:
            return None
        found = Recording(jit.record(run, count + len(made)), (run,))
    except _REFUSED:
        return None
    interop.require_cupy("bitsparse.jax").cuda.get_current_stream().synchronize()
    _find_driver()
    return found


# ---- of a graph that was closed over
def spaces_of(text: str, known: Known) -> list[int] | None:
    """Bytes of the buffers in which the launches of a call work; None for a call whose launches are not recorded.

    They are prepared and recorded on the GPU where the graph is; if that is the CPU, nothing is.
    """
    if known.device == "cpu":
        return None
    gpu = int(known.device[5:])
    found = _of_known(task_of(text.encode()), known, Call(b"", b"", [], [], gpu, 0))
    return None if found is None else found.made.spaces


def keep(text: str, key: str, known: Known) -> None:
    """Keep what :func:`spaces_of` recorded, for the call of a text that has the spaces, while the graph lives."""
    load(task_of(text.encode()), Call(b"", key.encode(), [], [], int(known.device[5:]), 0), known)


def load(task: Task, call: Call, known: Known | None = None) -> None:
    """Keep the launches of a call whose text has the spaces, on the GPU where it computes."""
    known = graph_called(task.ways["known"]) if known is None else known
    if (call.digest, call.gpu) in known.kept:
        return
    found = _of_known(task, known, call)
    spaces, room = [] if found is None else found.made.spaces, task.spaces or []
    if found is None or len(spaces) != len(room) or any(map(operator.gt, spaces, room)):
        return
    slots = len(task.operands) + len(task.results) + len(spaces)
    launches = xla.Launches(call.digest, call.gpu, 0, (), 0, slots, found.made.nodes)
    known.kept[call.digest, call.gpu] = launches
    launches.keep()


def _of_known(task: Task, known: Known, call: Call) -> Recording | None:
    """What a call launches on a GPU; recorded once.

    On a thread of its own, whose stream nobody captures.
    """
    key = task.plain, call.gpu
    if key not in known.kept:
        known.kept[key] = _apart(partial(_record_on, task, call))
    found: Recording | None = known.kept[key]
    return found


def _record_on(task: Task, call: Call) -> Recording | None:
    cupy = interop.require_cupy("bitsparse.jax")
    with cupy.cuda.Device(call.gpu) as device, cupy.cuda.Stream(non_blocking=True):
        device.synchronize()  # the arrays of the graph may just have been computed, on any stream
        return _record(task, call)


def _apart(work: Callable[[], Any]) -> Any:
    """What a function gives on another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


# ---- of a graph that is an argument
class _Owners:
    """The arrays of a graph that launches were recorded for."""

    def __init__(self, owned: Sequence[memory.Owned]) -> None:
        self.owned = owned

    def hold(self) -> bool:
        return all(one.holds() for one in self.owned)


_OWNERS: weakref.WeakValueDictionary[int, _Owners] = weakref.WeakValueDictionary()
#: Texts of calls that cannot be recorded.
_NEVER: set[bytes] = set()
#: Recordings that a graph keeps.
_MOST_KEPT = 64


def holds(owner: int) -> bool:
    """Whether the arrays that launches were recorded for hold what they held."""
    found = _OWNERS.get(owner)
    return found is not None and found.hold()


def learn(task: Task, call: Call) -> None:
    """Record the launches of a call that was just computed, on the current GPU and stream, for later ones with the same graph."""
    operands = call.arguments[: call.digest[0] - ord("a")]
    if not operands or call.text in _NEVER:
        return
    owned = [one for one in map(memory.owned_at, operands) if one is not None and one.holds()]
    if len(owned) < len(operands):
        return
    kept, key = owned[0].launches, (call.digest, call.gpu, call.stream, *operands)
    if key in kept and kept[key][0].hold():
        return  # they do not fit this call, whose arrays are not aligned
    found = _record(task, call)
    spaces = None if found is None else _zeros(found.made.spaces)
    if found is None or spaces is None:
        _NEVER.add(call.text)
        return
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    number, owners = next(_NUMBERS), _Owners(owned)
    _OWNERS[number] = owners
    slots = len(task.operands) + len(task.results)
    nodes = [_placed(node, slots, spaces) for node in found.made.nodes if node.function]
    launches = xla.Launches(call.digest, call.gpu, call.stream, operands, number, slots, nodes)
    kept[key] = owners, launches, found, spaces
    launches.keep()


def _zeros(sizes: Sequence[int]) -> list[Any] | None:
    """So many bytes each of CuPy's memory; None if it has not as many."""
    try:
        return [interop.require_cupy("bitsparse.jax").zeros(size, "uint8") for size in sizes]
    except MemoryError:
        return None


def _placed(node: jit.Node, slots: int, spaces: Sequence[Any]) -> jit.Node:
    """A launch whose further buffers are these arrays; what was zero before the first call is so after every one."""
    params = bytearray(node.params)
    for at, slot, beyond in node.patches:
        if slot >= slots:
            struct.pack_into("<Q", params, at, spaces[slot - slots].data.ptr + beyond)
    patches = tuple(one for one in node.patches if one[1] < slots)
    return node._replace(params=bytes(params), patches=patches)
