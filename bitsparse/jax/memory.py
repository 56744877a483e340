"""The patterns that lie at the addresses which XLA passes to a call, and what was prepared for them.

XLA gives a foreign function addresses, not arrays. JAX arrays do not change, so an address whose array is known and alive has that array's
contents; graphs register their arrays whenever they enter a computation. A graph that a traced function closes over is known by its
contents, and its arrays are not passed at all. Any other pattern (slices of stacked graphs, graphs that a computation made) is compared
with recent ones, which takes a pass over it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _records, interop
from bitsparse.arrays.inside import with_fields
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR

View = Callable[[interop.ArraysAt, int], Any]


class Owned:
    """The memory of a JAX array; its contents are valid while the array lives and was not donated or deleted.

    Attributes
    ----------
    patterns : dict
        This library's arrays whose row starts lie in this memory.
    launches : dict
        Recorded launches over such patterns.
    """

    __slots__ = ("_array", "launches", "patterns")

    def __init__(self, array: Any, address: int) -> None:
        self._array = weakref.ref(array, lambda _: _forget(address, self))
        self.patterns: dict[Hashable, TCTiledCSR] = {}
        self.launches: dict[Hashable, Any] = {}

    def is_of(self, array: Any) -> bool:
        """Whether this is the memory of exactly this array object."""
        return self._array() is array

    def holds(self) -> bool:
        """Whether the memory still has the contents of the array."""
        array = self._array()
        return array is not None and not array.is_deleted()


_OWNED: dict[int, Owned] = {}
#: The most recent patterns on the CPU without a known array, how many of them are kept, and how many patterns an array keeps.
_SEEN: list[TCTiledCSR] = []
_MOST_SEEN, _MOST_KEPT = 4, 8
_LOCK = threading.Lock()


def owned_at(address: int) -> Owned | None:
    """The memory of the registered JAX array that begins at an address, or None."""
    return _OWNED.get(address)


def _forget(address: int, owned: Owned) -> None:
    if _OWNED.get(address) is owned:
        _OWNED.pop(address, None)


def watch(array: Any) -> None:
    """Register the memory of a JAX array by its address, on each of its devices."""
    for shard in array.addressable_shards:
        part = shard.data
        if part.size:
            address = part.unsafe_buffer_pointer()
            owned = _OWNED.get(address)
            if owned is None or not owned.is_of(array):
                _OWNED[address] = Owned(array, address)


class Placed(NamedTuple):
    """The arrays of a pattern in a call: canonical CSR arrays and factors, with their addresses."""

    shape: tuple[int, int]
    kinds: tuple[interop.ArraysAt | None, ...]  # of row starts, columns, factors of rows and of columns
    addresses: tuple[int, ...]  # 0 for missing factors


def pattern_at(placed: Placed, view: View, on_host: bool) -> TCTiledCSR:
    """A TCTiledCSR over a pattern in a call's memory; the same object again while the arrays that own the memory live.

    Parameters
    ----------
    view : callable
        ``view(kind, address)`` returns the array at an address.
    """
    owners = [_OWNED.get(address) if address else None for address in placed.addresses]
    owned = owners[0]
    if owned is None or not all(one is not None and one.holds() for one in owners[:2]):
        bare = _seen(placed, view) if on_host else _over(placed, view)
        return _scaled(bare, placed, view)
    kept, others = owned.patterns, owners[1:]  # themselves, as their numbers may be given away again
    key = (placed.shape, *placed.addresses, *others)
    if key in kept:
        return kept[key]
    plain = _records.replace(placed, addresses=(*placed.addresses[:2], 0, 0))
    plain_key = (placed.shape, *plain.addresses, others[0], None, None)
    bare = kept[plain_key] if plain_key in kept else _over(placed, view)
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[plain_key] = bare
    if all(one is not None and one.holds() for one, address in zip(owners, placed.addresses, strict=True) if address):
        made = kept[key] = _scaled(bare, placed, view)
        return made
    return _scaled(bare, placed, view)


def _over(placed: Placed, view: View) -> TCTiledCSR:
    """Build and check the pattern in this memory."""
    indptr, indices = (view(kind, address) for kind, address in _parts(placed, slice(0, 2)))
    return TCTiledCSR.from_arrays(indptr, indices, placed.shape)


def _scaled(pattern: TCTiledCSR, placed: Placed, view: View) -> TCTiledCSR:
    """The pattern with the factors in this memory, which are not copied."""
    rows, columns = (view(kind, address) if address else None for kind, address in _parts(placed, slice(2, 4)))
    return pattern if rows is None is columns else with_fields(pattern, row_scale=rows, col_scale=columns)


def _parts(placed: Placed, which: slice) -> Iterable[tuple[Any, int]]:
    return zip(placed.kinds[which], placed.addresses[which], strict=True)


def _seen(placed: Placed, view: View) -> TCTiledCSR:
    """A pattern equal to the one in this memory: a recent one, or a new copy."""
    indptr, indices = (view(kind, address) for kind, address in _parts(placed, slice(0, 2)))
    with _LOCK:
        earlier = list(_SEEN)
    for pattern in earlier:
        alike = pattern.shape == placed.shape and pattern.indices.dtype == indices.dtype
        if alike and np.array_equal(pattern.indptr, indptr) and np.array_equal(pattern.indices, indices):
            return pattern
    made = TCTiledCSR.from_arrays(indptr.copy(), indices.copy(), placed.shape)
    with _LOCK:
        _SEEN.insert(0, made)
        del _SEEN[_MOST_SEEN:]
    return made
