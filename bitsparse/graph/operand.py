"""The graph of a network: a pattern, the scaling factors of its normalisation, and sums of codes over neighbours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._records import replace
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR, sparse_forms
from bitsparse.errors import ShapeError
from bitsparse.graph.adjacency import pattern_of, scipy_pattern, square_sparse, tiles_of
from bitsparse.graph.sums import device_sums, host_sums, message_form
from bitsparse.ops import Epilogue

Form = Literal["csr", "dense", "frdc", "tiled"]
FORMS = ("csr", "dense", "frdc", "tiled", "auto")
Normalisation = Literal["gcn", "mean", "sum"]
NORMALISATIONS = ("gcn", "mean", "sum")
#: "auto" chooses dense bits only if they take at most this many bytes,
_DENSE_BYTES = 1 << 26
#: and if at least one in this many positions holds an edge.
_DENSE_ABOVE = 64

_Array = NDArray[Any]


def form_for(asked: str, nodes: int, edges: int) -> Form:
    """The form to use: the one asked for, or for ``"auto"`` dense bits if they are small and faster, else CSR.

    Examples
    --------
    >>> form_for("auto", 100, 900), form_for("auto", 10_000, 40_000), form_for("tiled", 100, 900)
    ('dense', 'csr', 'tiled')
    """
    _check.choice("form_for", "form", asked, FORMS)
    if asked != "auto":
        return cast(Form, asked)
    size = nodes * -(-nodes // 8)
    small = 0 < size <= _DENSE_BYTES
    return "dense" if small and edges * _DENSE_ABOVE >= nodes * nodes else "csr"


def factors(normalisation: str, degrees: _Array) -> tuple[_Array | None, _Array | None]:
    """Factors of rows and columns from the entries of each row: ``D^-1/2`` for both, ``1 / D`` for rows, or none; 0 without entries.

    They are computed in float64 and rounded to float32.

    Examples
    --------
    >>> factors("mean", np.array([0, 2]))
    (array([0. , 0.5], dtype=float32), None)
    """
    if normalisation == "sum":
        return None, None
    root = normalisation == "gcn"
    d = np.maximum(degrees, 1).astype(np.float64)
    value = 1.0 / (np.sqrt(d) if root else d)
    rows = np.where(degrees > 0, value, 0.0).astype(np.float32)
    return rows, rows if root else None


class _Arrays(NamedTuple):
    """The arrays of a graph, with the names in :class:`bitsparse.backends.cuda.packets.PacketArrays`."""

    indptr: Any
    indices: Any
    degrees: Any
    left: Any
    right: Any
    term: Any = None


def _host_arrays(indptr: _Array, indices: _Array, normalisation: str) -> _Arrays:
    degrees = np.diff(indptr).astype(np.int64)
    return _Arrays(indptr, indices, degrees, *factors(normalisation, degrees))


def _placed(parts: _Arrays, device: str) -> _Arrays:
    """The arrays moved to a device, with `term` and 32-bit degrees if it is a GPU."""
    if device == "cpu" == interop.device_of(parts.indptr):
        return parts
    if parts.indices.dtype != np.int32:
        raise ValueError(
            f"Graph: {parts.indices.size} edges need 64-bit indices, which sums on a GPU do not take; run it in batches (ClusterRunner)"
        )
    if parts.term is None:
        factor = np.ones(parts.degrees.size) if parts.left is None else parts.left.astype(np.float64)
        term = (parts.degrees * factor).astype(np.float32)
        parts = replace(parts, degrees=parts.degrees.astype(np.int32), term=term)
    return _Arrays(*(interop.move(part, device) for part in parts))


class Graph:
    """The graph that a network sums over: a pattern and the factors of its normalisation, in one of several forms, on one device.

    Every stored position is one edge, whatever its value. Every form gives the same integer sums of codes and sends them through the same
    epilogue, so results are equal bit for bit.

    Parameters
    ----------
    adjacency : sparse array (n, n)
        Any scipy.sparse format, TCTiledCSR or FRDC; node i receives from node j if ``A[i, j]`` is stored. :meth:`from_csr` takes plain
        arrays.
    normalisation : {"gcn", "mean", "sum"}
        ``D^-1/2 A D^-1/2`` (Kipf and Welling 2017, Eq. 2), ``D^-1 A`` or ``A``, where D holds the entries of each row, self loops
        included: the edges that arrive at a node, on both sides, also in directed graphs, as in PyTorch Geometric's ``gcn_norm``.
    self_loops : bool, optional
        Add an edge from each node to itself if it has none; by default only for ``"gcn"``.
    form : {"auto", "csr", "dense", "frdc", "tiled"}
        How sums of codes read the pattern: as CSR, dense bits, :class:`bitsparse.FRDC` or :class:`bitsparse.TCTiledCSR`; ``"auto"``
        chooses dense bits if they are small and faster, else CSR.
    device : str, default "cpu"

    Attributes
    ----------
    nodes, edges : int
    device : str
    normalisation : {"gcn", "mean", "sum"}
    self_loops : bool
        Whether the pattern was given an edge from every node to itself.
    form : {"csr", "dense", "frdc", "tiled"}
    indptr, indices : ndarray
        CSR arrays of the pattern, self loops included, on the device.
    degrees : ndarray of int64 (int32 on a GPU), shape (nodes,)
        Number of edges in each row.
    row_scale, col_scale : ndarray of float32, shape (nodes,), or None
        Factors by which the sum of each row, and the messages of each node, are multiplied.
    longest : int
        Upper bound of the number of edges in a row.

    Raises
    ------
    ShapeError, DTypeError, ValueError, DeviceError
        The adjacency is not a square sparse array, or an option is unknown.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = nn.Graph(sparse.csr_array([[0, 1], [1, 0]]))
    >>> graph.matrix.toarray().round(3)
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    >>> nn.Graph(sparse.csr_array([[0, 1, 1], [1, 0, 0], [0, 0, 0]]), "mean").matrix.toarray()
    array([[0. , 0.5, 0.5],
           [1. , 0. , 0. ],
           [0. , 0. , 0. ]], dtype=float32)
    """

    def __init__(
        self,
        adjacency: Any,
        normalisation: Normalisation = "gcn",
        *,
        self_loops: bool | None = None,
        form: Literal["auto", "csr", "dense", "frdc", "tiled"] = "auto",
        device: str = "cpu",
    ) -> None:
        adjacency = square_sparse("Graph", adjacency)
        _check.choice("Graph", "normalisation", normalisation, NORMALISATIONS)
        loops = normalisation == "gcn" if self_loops is None else _check.flag("Graph", "self_loops", self_loops)
        target = interop.parse_device(device, "Graph")
        pattern = scipy_pattern("Graph", pattern_of("Graph", adjacency))
        if loops:
            from scipy import sparse

            pattern = pattern + sparse.eye_array(*pattern.shape, dtype=np.int8, format="csr")
        parts = _host_arrays(pattern.indptr, pattern.indices, normalisation)
        chosen = form_for(form, pattern.shape[0], pattern.nnz)
        self._set(_placed(parts, target), normalisation, loops, chosen, int(parts.degrees.max(initial=0)), True)

    @classmethod
    def from_csr(
        cls,
        indptr: Any,
        indices: Any,
        *,
        normalisation: Normalisation = "gcn",
        self_loops: bool | None = None,
        form: Literal["auto", "csr", "dense", "frdc", "tiled"] = "auto",
        device: str = "cpu",
    ) -> Graph:
        """A graph from the arrays of a CSR pattern on the CPU; the options are those of the class.

        Raises
        ------
        ShapeError, DTypeError, ValueError, DeviceError
            The arrays are not a square pattern, or an option is unknown.

        Examples
        --------
        >>> from bitsparse import nn
        >>> graph = nn.Graph.from_csr(np.array([0, 1, 2, 2]), np.array([1, 0]), normalisation="mean", self_loops=True)
        >>> codes = bs.pack_bits(np.array([[3, 0], [1, 2], [2, 2]]), bits=2).repack(layout="rows")
        >>> graph.aggregate(2, 2, epilogue=bs.Epilogue())(codes)
        array([[2., 1.],
               [2., 1.],
               [2., 2.]], dtype=float32)
        """
        function = "Graph.from_csr"
        starts, columns = interop.as_host(indptr, function, "indptr"), interop.as_host(indices, function, "indices")
        pattern = sparse_forms.from_csr(function, starts, columns, (starts.size - 1, starts.size - 1))
        return cls(scipy_pattern(function, pattern), normalisation, self_loops=self_loops, form=form, device=device)

    @classmethod
    def of_pattern(cls, indptr: _Array, indices: _Array, normalisation: str, self_loops: bool, form: Form) -> Graph:
        """A graph on the CPU from an unchecked pattern, which stays as it is; `self_loops` says whether it has self loops."""
        parts = _host_arrays(indptr, indices, normalisation)
        return cls.of_arrays(parts, normalisation, self_loops, form, int(parts.degrees.max(initial=0)), fixed=True)

    @classmethod
    def of_arrays(
        cls, arrays: Any, normalisation: str, self_loops: bool, form: Form, longest: int, *, fixed: bool = False
    ) -> Graph:
        """A graph over existing arrays on any device, without checks.

        Parameters
        ----------
        arrays
            An object with `indptr`, `indices`, `degrees`, `left`, `right` and, on a GPU, `term` (degrees times `left`), as in
            :class:`bitsparse.backends.cuda.packets.PacketArrays`. There may be fewer rows than nodes; the other rows are empty.
        normalisation, self_loops, form, longest
            As the attributes. All forms but CSR copy the pattern when it is first summed over.
        fixed : bool
            Whether the pattern never changes, so that long rows can be split among threads; else it may be overwritten between calls.
        """
        self = cls.__new__(cls)
        self._set(arrays, normalisation, self_loops, form, longest, fixed)
        return self

    def _set(self, arrays: Any, normalisation: str, self_loops: bool, form: Form, longest: int, fixed: bool) -> None:
        self.indptr, self.indices, self.degrees = arrays.indptr, arrays.indices, arrays.degrees
        self.row_scale, self.col_scale, self.term = arrays.left, arrays.right, arrays.term
        self.normalisation, self.self_loops, self.form = normalisation, self_loops, form
        self.nodes, self.edges, self.longest = int(arrays.indptr.size) - 1, int(arrays.indices.size), longest
        self.device, self.fixed = interop.device_of(arrays.indptr), fixed
        self._packed: dict[Form, Any] = {}
        #: Cache of what networks prepared for this graph, by device.
        self.prepared: dict[str, Any] = {}

    def to_device(self, device: str) -> Graph:
        """The same graph on a device; itself if it is there already.

        Raises
        ------
        DeviceError, ValueError
            There is no such device, or it is a GPU and the graph has 64-bit indices.
        """
        target = interop.parse_device(device, "Graph.to_device")
        if target == self.device:
            return self
        parts = _Arrays(self.indptr, self.indices, self.degrees, self.row_scale, self.col_scale, self.term)
        moved = _placed(parts, target)
        return Graph.of_arrays(moved, self.normalisation, self.self_loops, self.form, self.longest, fixed=True)

    # -- in full precision --------------------------------------------------------------------------------------------
    @cached_property
    def pattern(self) -> Any:
        """The pattern on the CPU, a csr_array of float32 ones."""
        from scipy import sparse

        indptr, indices = (interop.move(part, "cpu") for part in (self.indptr, self.indices))
        return sparse.csr_array((np.ones(indices.size, np.float32), indices, indptr), shape=(self.nodes, self.nodes))

    @cached_property
    def matrix(self) -> Any:
        """The pattern with its factors multiplied in, a csr_array of float32 on the CPU."""
        scaled = self.pattern.copy()
        if self.row_scale is not None:
            scaled.data = np.repeat(interop.move(self.row_scale, "cpu"), np.diff(scaled.indptr))
        if self.col_scale is not None:
            scaled.data *= interop.move(self.col_scale, "cpu")[scaled.indices]
        return scaled

    # -- on codes -----------------------------------------------------------------------------------------------------
    def message_form(self, bits: int) -> dict[str, Any]:
        """Packed axis and layout of codes that :meth:`aggregate` reads without a conversion."""
        return message_form(self.form, bits)

    def aggregate(
        self, columns: int, bits: int, *, encoding: str = "unsigned", epilogue: Epilogue
    ) -> Callable[..., Any]:
        """A function ``run(x, out=None)`` that sums codes over neighbours and applies an epilogue.

        On a GPU, calls with `out` allocate nothing and never make the host wait, from the second call on.

        Parameters
        ----------
        columns, bits, encoding
            Form of the codes, a BitTensor (nodes, columns); it is converted to :meth:`message_form` if need be.
        epilogue : Epilogue
            Applied to the sums after the graph's `row_scale`, which counts as the scale of a product's left operand. With
            ``offset_correction`` an offset of the codes counts once per edge. On a GPU it must have no `row_scale` of its own.
        """
        function, shape = "aggregate", (self.nodes, columns)
        bits = _check.bit_count(function, bits)
        code = _check.encoding(function, encoding, bits)
        acc = _check.accumulator(function, self.longest, _check.largest_code(bits, code), 1)
        if self.device == "cpu":
            sums = host_sums(self, columns, bits, code, epilogue)
        else:
            sums = device_sums(self, columns, bits, code, acc, epilogue)

        def run(x: BitTensor, out: Any = None) -> Any:
            kind, wanted = (x.shape, x.bits, x.encoding), (shape, bits, code)
            if kind != wanted:
                raise ShapeError(f"{function}: x is (shape, bits, encoding) {kind}, but planned was {wanted}")
            _check.same_device(function, (self.device, x.device))
            return sums(x, out)

        return run

    def packed(self, form: Form | None = None) -> Any:
        """The pattern without factors as a BitTensor, FRDC or TCTiledCSR (also for ``"csr"``), by default in its own form; cached."""
        form = form or self.form
        if form not in self._packed:
            self._packed[form] = self._pack(form)
        return self._packed[form]

    def _pack(self, form: Form) -> BitTensor | FRDC | TCTiledCSR:
        # On a GPU the arrays may have spare room after the edges.
        indptr, indices = self.indptr, self.indices[: int(self.indptr[-1])]
        packed = (FRDC if form == "frdc" else TCTiledCSR).from_csr_arrays(indptr, indices, (self.nodes, self.nodes))
        return packed.to_bit_tensor() if form == "dense" else packed

    def tiles(self) -> tuple[int, int]:
        """How many 8 x 128 tiles the pattern has, and how many of them hold an edge."""
        return tiles_of(*(interop.move(part, "cpu") for part in (self.indptr, self.indices)))

    @property
    def nbytes(self) -> int:
        """Bytes of the pattern in its form and of the factors."""
        stored = (self.indptr, self.indices) if self.form == "csr" else (self.packed(),)
        return sum(int(part.nbytes) for part in (*stored, self.row_scale, self.col_scale) if part is not None)

    def __repr__(self) -> str:
        loops = " with loops" if self.self_loops else ""
        return (
            f"<Graph {self.nodes} nodes, {self.edges} edges{loops}, {self.normalisation}, {self.form} on {self.device}>"
        )
