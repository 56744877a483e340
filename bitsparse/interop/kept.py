"""Caches that live between calls, next to the array or pattern that they were prepared for: typed slots in a store."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from bitsparse.interop.streams import Ready

T = TypeVar("T")
#: The cache of one pattern or operand. Only slots read and write it.
Store = dict[Any, Any]


class Slot(Generic[T]):
    """A place in every store for things of one type, distinguished by keys.

    The module that prepares something creates the slot for it once. Other modules that need the same thing import the slot, so that no two
    modules write to one place by accident. A slot holds a bounded number of things; when it is full, it is emptied.

    Parameters
    ----------
    name : str
        Name of the slot, for people who inspect a store.
    most : int
        Most things that a store keeps in this slot.

    Examples
    --------
    >>> squares = Slot("squares", most=2)
    >>> store = {}
    >>> squares.of(store, lambda: 3 * 3, 3), squares.get(store, 3), squares.get(store, 4)
    (9, 9, None)
    """

    __slots__ = ("most", "name")

    def __init__(self, name: str, most: int = 16) -> None:
        self.name, self.most = name, most

    def __repr__(self) -> str:
        return f"Slot({self.name!r})"

    def get(self, store: Store, key: Hashable = None) -> T | None:
        """The thing under a key, or None."""
        things = store.get(self)
        return None if things is None else things.get(key)

    def keep(self, store: Store, thing: T, key: Hashable = None) -> T:
        """Store a thing under a key, and return it."""
        things = store.setdefault(self, {})
        if len(things) >= self.most and key not in things:
            things.clear()
        things[key] = thing
        return thing

    def of(self, store: Store, make: Callable[[], T], key: Hashable = None) -> T:
        """The thing under a key, which is made and stored if there is none yet."""
        thing = self.get(store, key)
        return self.keep(store, make(), key) if thing is None else thing

    def all(self, store: Store) -> Iterable[T]:
        """Everything in this slot of a store."""
        return tuple(store.get(self, {}).values())


#: The event after which other streams of the GPU may read what a store holds.
READY: Slot[Ready] = Slot("ready")
