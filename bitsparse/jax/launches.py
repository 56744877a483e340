"""Launches of calls on a GPU: recorded once, they are enqueued by compiled code for every later call, without Python.

If a traced function closes over the graph, launches are recorded while it is traced. Their work buffers are results of the call, in XLA's
memory, so that XLA may record such calls into its command buffers. If the graph is an argument, launches are recorded after a call with it
was computed, for the addresses of its arrays and for one stream. They are used as long as these arrays keep their contents.
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

from bitsparse import _records, interop, jit
from bitsparse._ext import xla
from bitsparse.jax import memory
from bitsparse.jax.tasks import Call, Task, prepared, task_of
from bitsparse.jax.ways import Known, graph_called

#: Errors that mean that a call cannot be recorded; CuPy's functions raise TypeError for a stand-in, which is no array.
_REFUSED = (interop.NotRecordable, MemoryError, TypeError)
#: Numbers for the sets of arrays on which launches depend.
_NUMBERS = itertools.count(1)


class Recording(NamedTuple):
    """The launches of a call on one GPU, and the objects that must live as long as they are used."""

    made: jit.Recorded
    holding: tuple[Any, ...]


def digest(text: str, of_graph: int) -> str:
    """The attribute by which a call's launches are found: a letter for how many of the first operands they depend on, and a key.

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
    """Pass the addresses of the CUDA driver's functions to compiled code."""
    xla.set_driver(*jit.driver_entries())


def _record(task: Task, call: Call) -> Recording | None:
    """Record the launches of a call on the current GPU and stream; None if it does more than launch kernels.

    All data that the launches read is complete when this returns.
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


# ---- graphs that a function closes over
def spaces_of(text: str, known: Known) -> list[int] | None:
    """Sizes in bytes of the work buffers of a call's launches; None for a call whose launches are not recorded.

    The launches are recorded on the graph's GPU; for a graph on the CPU there are none.
    """
    if known.device == "cpu":
        return None
    gpu = int(known.device[5:])
    found = _of_known(task_of(text.encode()), known, Call(b"", b"", [], [], gpu, 0))
    return None if found is None else found.made.spaces


def keep(text: str, key: str, known: Known) -> None:
    """Keep what :func:`spaces_of` recorded while the graph lives; `text` describes the same call, with its work buffers."""
    load(task_of(text.encode()), Call(b"", key.encode(), [], [], int(known.device[5:]), 0), known)


def load(task: Task, call: Call, known: Known | None = None) -> None:
    """Keep the launches of a call on its GPU; the text of the call includes its work buffers."""
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
    """The launches of a call on a GPU, recorded once.

    Recording runs on a separate thread, on a stream that is not being captured.
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
    """Run a function on another thread and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


# ---- graphs that are arguments
class _Owners:
    """The arrays of a graph for which launches were recorded."""

    def __init__(self, owned: Sequence[memory.Owned]) -> None:
        self.owned = owned

    def hold(self) -> bool:
        return all(one.holds() for one in self.owned)


_OWNERS: weakref.WeakValueDictionary[int, _Owners] = weakref.WeakValueDictionary()
#: Texts of calls that cannot be recorded.
_NEVER: set[bytes] = set()
#: The largest number of recordings that a graph keeps.
_MOST_KEPT = 64


def holds(owner: int) -> bool:
    """Whether the arrays for which launches were recorded still have their contents."""
    found = _OWNERS.get(owner)
    return found is not None and found.hold()


def learn(task: Task, call: Call) -> None:
    """Record the launches of the call that was just computed, on the current GPU and stream, for later calls with the same graph."""
    operands = call.arguments[: call.digest[0] - ord("a")]
    if not operands or call.text in _NEVER:
        return
    owned = [one for one in map(memory.owned_at, operands) if one is not None and one.holds()]
    if len(owned) < len(operands):
        return
    kept, key = owned[0].launches, (call.digest, call.gpu, call.stream, *operands)
    if key in kept and kept[key][0].hold():
        return  # these launches do not fit this call, whose arrays are not aligned
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
    """Buffers of zeros of these sizes in CuPy's memory; None if the memory does not suffice."""
    try:
        return [interop.require_cupy("bitsparse.jax").zeros(size, "uint8") for size in sizes]
    except MemoryError:
        return None


def _placed(node: jit.Node, slots: int, spaces: Sequence[Any]) -> jit.Node:
    """A launch whose work buffers are these arrays of zeros; every call leaves those zeros that the next one needs."""
    params = bytearray(node.params)
    for at, slot, beyond in node.patches:
        if slot >= slots:
            struct.pack_into("<Q", params, at, spaces[slot - slots].data.ptr + beyond)
    patches = tuple(one for one in node.patches if one[1] < slots)
    return _records.replace(node, params=bytes(params), patches=patches)
