"""The mesh axes along which arrays vary inside ``shard_map``; JAX cannot work them out for foreign calls."""

from __future__ import annotations

from typing import Any

import jax


def varying(part: Any) -> frozenset[Any]:
    """Axes of the mesh along which the shards of an array differ; none outside ``shard_map``, or with ``check_vma=False``."""
    kind: Any = jax.typeof(part)
    is_newer = hasattr(kind, "manual_axis_type")  # newer releases of JAX keep the axes here
    found: frozenset[Any] = kind.manual_axis_type.varying if is_newer else kind.vma
    return found


def varying_along(part: Any, axes: frozenset[Any]) -> Any:
    """The same array, marked as varying along these axes too. Its gradient is summed over them."""
    missing = tuple(axes - varying(part))
    if not missing:
        return part
    lax: Any = jax.lax
    return lax.pcast(part, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(part, missing)


def alike(parts: Any) -> Any:
    """Mark all arrays of a pytree as varying along every axis along which any of them varies, which foreign calls require."""
    leaves = jax.tree.leaves(parts)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):  # nothing is being traced
        return parts
    axes: frozenset[Any] = frozenset().union(*map(varying, leaves))
    return jax.tree.map(lambda part: varying_along(part, axes), parts) if axes else parts
