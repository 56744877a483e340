"""What `jax.vmap` makes of the operators: columns or heads of one call where that gives the same numbers, else one after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

#: A rule of batches: ``rule(size, batched, *arguments)``, and which results have the batch as their first axis.
Rule = Callable[..., tuple[Any, Any]]


def batched(function: Callable[..., Any], rule: Rule | None = None) -> Callable[..., Any]:
    """A function whose batches a rule computes; without one, or where it gives None, one after another."""
    mapped: Any = jax.custom_batching.custom_vmap(function)

    def of_batches(size: int, which: Any, *arguments: Any) -> tuple[Any, Any]:
        made = None if rule is None else rule(size, which, *arguments)
        return one_by_one(mapped, size, which, *arguments) if made is None else made

    mapped.def_vmap(of_batches)
    found: Callable[..., Any] = mapped
    return found


def one_by_one(function: Callable[..., Any], size: int, which: Any, *arguments: Any) -> tuple[Any, Any]:
    """Calls for each element of a batch, in a loop."""
    leaves, tree = jax.tree.flatten(arguments)
    flags = jax.tree.leaves(which)
    moving = [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag]

    def one(parts: list[Any]) -> Any:
        rest = iter(parts)
        every = [next(rest) if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
        return function(*jax.tree.unflatten(tree, every))

    made = jax.lax.map(one, moving)
    return made, jax.tree.map(lambda _: True, made)


def any_of(which: Any) -> bool:
    """Whether any array of a pytree has a batch."""
    return any(jax.tree.leaves(which))


def second(x: Any, has_batch: bool, size: int) -> Any:
    """Nodes or edges first, then the batch, then the rest."""
    if has_batch:
        return jnp.moveaxis(x, 0, 1)
    return jnp.broadcast_to(x[:, None], (x.shape[0], size, *x.shape[1:]))


def folded(x: Any, kept: int) -> Any:
    """The batch, and the axes up to the last `kept`, as one axis behind nodes or edges."""
    # Of an array without elements -1 would tell nothing.
    last = x.ndim - kept
    return x.reshape(x.shape[0], math.prod(x.shape[1:last]), *x.shape[last:])


def unfolded(x: Any, size: int, inner: tuple[int, ...]) -> Any:
    """The batch first again."""
    return jnp.moveaxis(x.reshape(x.shape[0], size, *inner), 1, 0)
