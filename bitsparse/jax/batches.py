"""`jax.vmap` of the operators: a batch becomes columns or heads of one call if that gives the same numbers, else a loop of calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

#: A batching rule: ``rule(size, batched, *arguments)`` gives the results, and which of them have the batch as their first axis.
Rule = Callable[..., tuple[Any, Any]]


def batched(function: Callable[..., Any], rule: Rule | None = None) -> Callable[..., Any]:
    """A function whose batches are computed by a rule, or in a loop if there is no rule or the rule returns None."""
    mapped: Any = jax.custom_batching.custom_vmap(function)

    def of_batches(size: int, which: Any, *arguments: Any) -> tuple[Any, Any]:
        made = None if rule is None else rule(size, which, *arguments)
        return one_by_one(mapped, size, which, *arguments) if made is None else made

    mapped.def_vmap(of_batches)
    found: Callable[..., Any] = mapped
    return found


def one_by_one(function: Callable[..., Any], size: int, which: Any, *arguments: Any) -> tuple[Any, Any]:
    """Call a function for each element of a batch, in a loop."""
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
    """Put the axes in the order nodes or edges, batch, rest."""
    if has_batch:
        return jnp.moveaxis(x, 0, 1)
    return jnp.broadcast_to(x[:, None], (x.shape[0], size, *x.shape[1:]))


def folded(x: Any, kept: int) -> Any:
    """Join the batch and all axes but the last `kept` into one axis behind nodes or edges."""
    # -1 would fail for an array without elements.
    last = x.ndim - kept
    return x.reshape(x.shape[0], math.prod(x.shape[1:last]), *x.shape[last:])


def unfolded(x: Any, size: int, inner: tuple[int, ...]) -> Any:
    """Split the joined axis again and put the batch first."""
    return jnp.moveaxis(x.reshape(x.shape[0], size, *inner), 1, 0)
