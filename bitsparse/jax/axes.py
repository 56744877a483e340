"""Within ``shard_map``: along which axes of the mesh arrays vary, which foreign calls do not say by themselves."""

from __future__ import annotations

from typing import Any

import jax


def varying(part: Any) -> frozenset[Any]:
    """Axes of the mesh along which shards of an array differ; none outside ``shard_map``, and without its ``check_vma``."""
    kind: Any = jax.typeof(part)
    in_parts = hasattr(kind, "manual_axis_type")  # as newer releases of JAX have it
    found: frozenset[Any] = kind.manual_axis_type.varying if in_parts else kind.vma
    return found


def varying_along(part: Any, axes: frozenset[Any]) -> Any:
    """The same array, which counts as varying along these axes too. Its gradient is the sum over them."""
    missing = tuple(axes - varying(part))
    if not missing:
        return part
    lax: Any = jax.lax
    return lax.pcast(part, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(part, missing)


def alike(parts: Any) -> Any:
    """A pytree whose arrays all vary along the axes that any of them varies along, as operands of foreign calls have to."""
    leaves = jax.tree.leaves(parts)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):  # as outside of all functions that are traced
        return parts
    axes: frozenset[Any] = frozenset().union(*map(varying, leaves))
    return jax.tree.map(lambda part: varying_along(part, axes), parts) if axes else parts
