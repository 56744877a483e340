"""What is kept between calls, beside the memory that it was prepared for: typed slots in a store."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from bitsparse.interop.streams import Ready

T = TypeVar("T")
#: What one pattern or operand keeps. Only slots read and write it.
Store = dict[Any, Any]


class Slot(Generic[T]):
    """A place in every store for things of one type, told apart by keys.

    The module that prepares something makes the slot for it once. Another module that wants the same thing imports the slot, so that no
    two of them write to one place by accident. A slot holds a bounded number of things; one more, and it begins anew.

    Parameters
    ----------
    name : str
        For the reader of a store.
    most : int
        How many things a store keeps here.

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
        """What is kept under a key, or None."""
        things = store.get(self)
        return None if things is None else things.get(key)

    def keep(self, store: Store, thing: T, key: Hashable = None) -> T:
        """Keep a thing, and return it."""
        things = store.setdefault(self, {})
        if len(things) >= self.most and key not in things:
            things.clear()
        things[key] = thing
        return thing

    def of(self, store: Store, make: Callable[[], T], key: Hashable = None) -> T:
        """What is kept under a key; made and kept if there is nothing yet."""
        thing = self.get(store, key)
        return self.keep(store, make(), key) if thing is None else thing

    def all(self, store: Store) -> Iterable[T]:
        """Everything that is kept here."""
        return tuple(store.get(self, {}).values())


#: When what a store keeps may be read on another stream of its GPU.
READY: Slot[Ready] = Slot("ready")
