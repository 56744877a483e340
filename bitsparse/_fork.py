"""What objects need anew in a child of ``fork()``: it has only the thread that forked, and nobody releases what another one had locked."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_parts: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def fresh_in_children(owner: Any, **parts: Callable[[], Any]) -> None:
    """Set attributes of `owner` to what `parts` make, now and in every forked child.

    For locks, and what is half done while they are held. A block that was under way in the forking thread still releases the old lock.
    """
    _parts[owner] = parts
    for name, make in parts.items():
        setattr(owner, name, make())


def _renew() -> None:
    for owner, parts in list(_parts.items()):
        fresh_in_children(owner, **parts)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
