"""A pattern and its transpose in the form that operators take: arrays that enter a computation, or a graph that it closes over."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from bitsparse import interop
from bitsparse._records import replace
from bitsparse.arrays.inside import with_fields
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR


class Side(NamedTuple):
    """One direction of a pattern: JAX arrays, or their names in a graph that is closed over; None for missing parts.

    Attributes
    ----------
    indptr, indices : array
        Canonical CSR arrays.
    weights : array (nnz,)
        Weights of the edges, through which no gradient passes.
    rows : array (rows,) of float32
        Factors of the rows.
    order : array (nnz,)
        For each edge, its number in the other direction.
    """

    indptr: Any
    indices: Any
    weights: Any = None
    rows: Any = None
    order: Any = None


@jax.tree_util.register_pytree_node_class
class Ways:
    """Both directions of a pattern: a pytree of the arrays that must enter a computation.

    Attributes
    ----------
    forward, backward : Side
        The pattern and its transpose. For a symmetric pattern, `backward` has no `indptr` and `indices`.
    shape : (rows, columns)
    nnz : int
    known : Name or None
        The graph that holds the arrays, if a traced function closes over it: then the sides hold names.
    """

    def __init__(
        self, forward: Side, backward: Side, shape: tuple[int, int], nnz: int, known: Name | None = None
    ) -> None:
        self.forward, self.backward, self.shape, self.nnz, self.known = forward, backward, shape, nnz, known

    def tree_flatten(self) -> tuple[Any, Any]:
        """Split into arrays, and what is not traced."""
        if self.known is not None:
            return (), (self.known, self.forward, self.backward, self.shape, self.nnz)
        return (self.forward, self.backward), (None, None, None, self.shape, self.nnz)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Ways:
        """Build ways from other arrays."""
        known, forward, backward, shape, nnz = aux
        if known is None:
            forward, backward = children
        return cls(forward, backward, shape, nnz, known)

    @property
    def turned(self) -> Ways:
        """The transpose."""
        one, other = self.backward, self.forward
        if one.indptr is None:
            one, other = (
                replace(one, indptr=other.indptr, indices=other.indices),
                replace(other, indptr=None, indices=None),
            )
        return Ways(one, other, self.shape[::-1], self.nnz, self.known)

    def without_weights(self) -> Ways:
        """The same pattern with its factors but without weights."""
        forward, backward = (replace(side, weights=None) for side in (self.forward, self.backward))
        return Ways(forward, backward, *self.rest())

    def only(self, what: Literal["forward", "backward", "both", "order"]) -> Ways:
        """Only the part that a call reads: one direction with factors, both directions, or the order of the transpose's edges."""
        ways = self
        if what == "backward" and ways.backward.indptr is None:
            shared = ways.forward
            ways = Ways(shared, replace(ways.backward, indptr=shared.indptr, indices=shared.indices), *ways.rest())
        forward, backward = ways.forward, ways.backward
        if what == "order":
            forward, backward = Side(None, None), Side(None, None, order=backward.order)
        else:
            forward = replace(forward, order=None) if what != "backward" else Side(None, None, rows=forward.rows)
            backward = (
                replace(backward, order=None, weights=None)
                if what != "forward"
                else Side(None, None, rows=backward.rows)
            )
        return Ways(forward, backward, *ways.rest())

    def rest(self) -> tuple[Any, ...]:
        """All fields but the two sides."""
        return self.shape, self.nnz, self.known


class Name(str):
    """The name of a graph, a hash of its contents; it holds a reference to the graph, which must live as long."""

    __slots__ = ("graph",)

    graph: Known


class Known:
    """The arrays of a graph that traced functions close over; calls on each device find them here.

    Parameters
    ----------
    arrays : dict
        JAX arrays by name.
    """

    def __init__(self, arrays: dict[str, Any]) -> None:
        # Converted here and not within a call, which must not wait for JAX.
        self._arrays = {name: interop.as_array(part, "bitsparse.jax")[0] for name, part in arrays.items()}
        self._made: dict[Any, Any] = {}
        #: The device of the arrays.
        self.device = interop.device_of(next(iter(self._arrays.values())))
        #: Recorded launches over this graph, by call and GPU.
        self.kept: dict[Any, Any] = {}

    def array(self, name: str | None, device: str) -> Any:
        """One of the arrays on a device, as a NumPy or CuPy array."""
        if name is None:
            return None
        key = name, device
        if key not in self._made:
            self._made[key] = interop.move(self._arrays[name], device)
        return self._made[key]

    def pattern(self, side: Side, shape: tuple[int, int], columns: str | None, device: str) -> TCTiledCSR:
        """One direction on a device, with the factors of its rows and columns; built once and cached."""
        key = side, columns, device
        if key not in self._made:
            if side.rows is None is columns:
                indptr, indices = (self.array(name, device) for name in (side.indptr, side.indices))
                self._made[key] = TCTiledCSR.from_arrays(indptr, indices, shape)
            else:
                plain = self.pattern(replace(side, rows=None), shape, None, device)
                factors = {"row_scale": self.array(side.rows, device), "col_scale": self.array(columns, device)}
                self._made[key] = with_fields(plain, **factors)
        found: TCTiledCSR = self._made[key]
        return found


#: Graphs that are closed over, by name.
_KNOWN: weakref.WeakValueDictionary[str, Known] = weakref.WeakValueDictionary()


def name_of(arrays: dict[str, Any], shape: tuple[int, int]) -> Name:
    """Name a graph by a hash of its arrays; calls find it under this name while the name lives."""
    text = hashlib.blake2b(repr(shape).encode(), digest_size=16)
    for name, part in sorted(arrays.items()):
        host: Any = np.ascontiguousarray(part)
        text.update(f"{name}:{host.dtype}:{host.shape}".encode())
        text.update(host.view(np.uint8))
    plain = text.hexdigest()
    graph = _KNOWN.get(plain)
    if graph is None:
        graph = _KNOWN[plain] = Known(arrays)
    made = Name(plain)
    made.graph = graph
    return made


def graph_called(name: str) -> Known:
    """The graph with this name, which a computation closes over."""
    graph = _KNOWN.get(name)
    if graph is None:
        raise RuntimeError(
            "bitsparse.jax: the graph that this computation closed over is gone; keep it while the computation is used, or make it an "
            "argument"
        )
    return graph
