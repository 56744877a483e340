"""What a graph network on bits aggregates over: a pattern, the factors of its normalisation, and sums of codes over neighbours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR
from bitsparse.arrays.inside import family_of
from bitsparse.backends.params import PackedFeatures
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops import Epilogue, matmul, spmm
from bitsparse.ops.finish.target import target_of
from bitsparse.ops.finish.terms import operand_terms

__all__ = ["FORMS", "NORMALISATIONS", "Form", "GraphOperand", "factors", "form_for"]

Form = Literal["csr", "dense", "frdc", "tiled"]
FORMS = ("csr", "dense", "frdc", "tiled", "auto")
NORMALISATIONS = ("gcn", "mean", "sum")
#: "auto" multiplies dense bits where at least one in so many positions holds an edge, and they take no more bytes than this.
_DENSE_ABOVE, _DENSE_BYTES = 64, 1 << 26
#: Bits of codes that lie side by side; others lie in planes.
_WHOLE = (2, 4, 8, 16)

_Array = NDArray[Any]


def form_for(asked: str, nodes: int, edges: int) -> Form:
    """The form to use: what is asked for, or for ``"auto"`` dense bits where the pattern is full enough, else CSR.

    Examples
    --------
    >>> form_for("auto", 100, 900), form_for("auto", 10_000, 40_000), form_for("tiled", 100, 900)
    ('dense', 'csr', 'tiled')
    """
    _check.choice("form_for", "form", asked, FORMS)
    if asked != "auto":
        return asked  # type: ignore[return-value]
    full = edges * _DENSE_ABOVE >= nodes * nodes and nodes * -(-nodes // 8) <= _DENSE_BYTES
    return "dense" if full and nodes else "csr"


def factors(normalisation: str, degrees: _Array, columns: _Array | None) -> tuple[_Array | None, _Array | None]:
    """Factors of rows and columns, float32 from one float64 computation: ``D^-1/2`` on both sides, ``1 / D``, or none.

    Examples
    --------
    >>> factors("mean", np.array([0, 2]), None)
    (array([0. , 0.5], dtype=float32), None)
    """
    if normalisation == "sum":
        return None, None
    left = _inverse(degrees, root=normalisation == "gcn")
    return left, None if columns is None or normalisation != "gcn" else _inverse(columns, root=True)


def _inverse(degrees: _Array, *, root: bool) -> NDArray[np.float32]:
    """``1 / sqrt(d)`` or ``1 / d``; 0 where there is no edge."""
    d = np.maximum(degrees, 1).astype(np.float64)
    value = 1.0 / (np.sqrt(d) if root else d)
    return np.where(degrees > 0, value, 0.0).astype(np.float32)


class GraphOperand:
    """A graph as networks on bits aggregate over it; made by :meth:`from_csr`.

    Every form gives the same sums, which are integers, and sends them through the same epilogue: equal results, bit for bit.

    Attributes
    ----------
    nodes, edges : int
    device : str
    normalisation : {"gcn", "mean", "sum"}
    self_loops : bool
        Whether an edge from every node to itself is in the pattern.
    form : {"csr", "dense", "frdc", "tiled"}
    degrees : ndarray of int64, shape (nodes,)
        Edges of each row.
    left, right : ndarray of float32, shape (nodes,), or None
        What sums of a row, and messages of a node, are multiplied by.

    Examples
    --------
    >>> from bitsparse.nn.operand import GraphOperand
    >>> graph = GraphOperand.from_csr(np.array([0, 1, 2, 2]), np.array([1, 0]), normalisation="mean", self_loops=True)
    >>> codes = bs.pack_bits(np.array([[3, 0], [1, 2], [2, 2]]), bits=2).repack(layout="rows")
    >>> graph.aggregate(2, 2, epilogue=bs.Epilogue())(codes)
    array([[2., 1.],
           [2., 1.],
           [2., 2.]], dtype=float32)
    """

    def __init__(
        self, indptr: _Array, indices: _Array, normalisation: str, self_loops: bool, form: Form, longest: int
    ) -> None:
        self._indptr, self._indices, self._longest = indptr, indices, longest
        self.normalisation, self.self_loops, self.form = normalisation, self_loops, form
        self.nodes, self.edges, self.device = indptr.size - 1, indices.size, "cpu"
        self.degrees: NDArray[np.int64] = np.diff(indptr).astype(np.int64)
        columns = np.bincount(indices, minlength=self.nodes) if normalisation == "gcn" else None
        self.left, self.right = factors(normalisation, self.degrees, columns)

    @classmethod
    def from_csr(
        cls,
        indptr: Any,
        indices: Any,
        *,
        normalisation: Literal["gcn", "mean", "sum"] = "gcn",
        self_loops: bool = True,
        form: Literal["auto", "csr", "dense", "frdc", "tiled"] = "auto",
        device: str = "cpu",
    ) -> GraphOperand:
        """A whole graph.

        Parameters
        ----------
        indptr, indices : array_like of int
            CSR pattern on the CPU; every stored position is one edge.
        normalisation : {"gcn", "mean", "sum"}
            ``D^-1/2 A D^-1/2``, ``D^-1 A`` or ``A``, with the degrees of this very pattern.
        self_loops : bool, default True
            Put an edge from each node to itself into the pattern where there is none.
        form : {"auto", "csr", "dense", "frdc", "tiled"}
        device : str, default "cpu"

        Raises
        ------
        ShapeError, DTypeError, ValueError, DeviceError
            The arrays are no square pattern, or an option is unknown.
        """
        function = "GraphOperand.from_csr"
        _check.choice(function, "normalisation", normalisation, NORMALISATIONS)
        starts, columns = (
            interop.as_host(value, function, name) for name, value in (("indptr", indptr), ("indices", indices))
        )
        if starts.ndim != 1 or columns.ndim != 1 or not starts.size:
            raise ShapeError(
                f"{function}: indptr and indices have shapes {starts.shape} and {columns.shape}; pass vectors"
            )
        if starts.dtype.kind not in "iu" or columns.dtype.kind not in "iu":
            raise DTypeError(f"{function}: indptr and indices are {starts.dtype} and {columns.dtype}; pass integers")
        starts, columns = pattern(function, starts, columns, self_loops)
        wanted = form_for(form, starts.size - 1, columns.size)
        longest = int(np.diff(starts).max(initial=0))
        made = cls(starts, columns, normalisation, self_loops, wanted, longest)
        target = interop.parse_device(device, function)
        if target == "cpu":
            return made
        from bitsparse.nn.operand_gpu import whole_graph  # imported where there is a GPU

        return whole_graph(made, target)

    @property
    def pattern(self) -> tuple[_Array, _Array]:
        """CSR arrays of the pattern, self loops included."""
        return self._indptr, self._indices

    @property
    def longest(self) -> int:
        """Edges of the longest row."""
        return self._longest

    # -- what networks ask --------------------------------------------------------------------------------------------
    def message_form(self, bits: int) -> dict[str, Any]:
        """Packed axis and layout of codes that :meth:`aggregate` reads without converting them."""
        if self.form == "dense":
            return {"axis": -2, "layout": "planes"}
        return {"axis": -1, "layout": "rows" if bits in _WHOLE else "planes"}

    def aggregate(
        self, columns: int, bits: int, *, encoding: str = "unsigned", epilogue: Epilogue, scaled: bool = True
    ) -> Callable[..., Any]:
        """Sums of codes over neighbours, through an epilogue: ``run(x, out=None)``.

        Parameters
        ----------
        columns, bits, encoding
            Of the codes, a BitTensor (nodes, columns) in :meth:`message_form` (others are converted).
        epilogue : Epilogue
            Of the sums; with ``offset_correction`` an offset of the codes counts once per edge.
        scaled : bool, default True
            Multiply by `left`, as the scale of the left operand of a product.
        """
        function = "aggregate"
        bits = _check.bit_count(function, bits)
        code = _check.encoding(function, encoding, bits)
        acc = _check.accumulator(function, self._longest, max(map(abs, _check.limits_of(bits, code))), 1)
        shape = (self.nodes, columns)
        left = _Left(shape, self.left[:, None] if scaled and self.left is not None else None, self.degrees)

        def run(x: BitTensor, out: Any = None) -> Any:
            if (x.shape, x.bits, x.encoding) != (shape, bits, code):
                raise ShapeError(
                    f"{function}: x is (shape, bits, encoding) {(x.shape, x.bits, x.encoding)}, but planned was {(shape, bits, code)}"
                )
            _check.same_device(function, (self.device, x.device))
            terms = operand_terms(function, left, x, epilogue.offset_correction, ("the graph", "x"))
            params = epilogue.params(function, shape, terms)
            target = None if out is None else target_of(function, epilogue, out, shape, acc, self.device, (x.words,))
            result = backends.family("cpu", "matmul.matmul").epilogue(self._sums(x.with_affine(), acc), params)
            if target is None:
                return epilogue.wrap(result, shape, family_of(x), function)
            target[...] = result
            return out

        return run

    def _sums(self, codes: BitTensor, acc: np.dtype[Any]) -> _Array:
        if self.form == "dense":
            return np.asarray(matmul(self._adjacency, codes))
        if self.form != "csr":
            return np.ascontiguousarray(np.asarray(spmm(self._adjacency, codes)))
        if 0 in codes.shape:
            return np.zeros(codes.shape, acc)
        x = codes.repack(axis=-1, layout="rows") if codes.bits in (1, *_WHOLE) else None
        data = codes.toarray() if x is None else x.words[:, None, :]
        packed = None if x is None else PackedFeatures(x.bits, x.encoding, x.shape[1])
        sums: _Array = backends.family("cpu", "spmm.spmm").spmm(
            self._indptr, self._indices, (self.nodes, self.nodes), data, nnz=self.edges, acc_dtype=acc, packed=packed
        )
        return sums

    @cached_property
    def _adjacency(self) -> BitTensor | FRDC | TCTiledCSR:
        """The pattern in its form."""
        shape = (self.nodes, self.nodes)
        if self.form == "frdc":
            return FRDC.from_csr_arrays(self._indptr, self._indices, shape)
        if self.form == "tiled":
            return TCTiledCSR.from_csr_arrays(self._indptr, self._indices, shape)
        return BitTensor((np.ones(self.edges, np.bool_), self._indices, self._indptr), bits=1, shape=shape)

    def tiles(self) -> tuple[int, int]:
        """How many 8 x 128 tiles the pattern has, and how many of them hold an edge."""
        return tiles_of(self._indptr, self._indices)

    @property
    def nbytes(self) -> int:
        """Bytes of the pattern in its form and of the factors."""
        parts = sum(part.nbytes for part in (self.left, self.right) if part is not None)
        return parts + (
            self._indptr.nbytes + self._indices.nbytes if self.form == "csr" else int(self._adjacency.nbytes)
        )

    def __repr__(self) -> str:
        loops = " with loops" if self.self_loops else ""
        return f"<GraphOperand {self.nodes} nodes, {self.edges} edges{loops}, {self.normalisation}, {self.form} on {self.device}>"


class _Left:
    """The left operand of a sum, as :func:`bitsparse.ops.finish.terms.operand_terms` reads it."""

    def __init__(self, shape: tuple[int, int], scale: _Array | None, line_sums: _Array) -> None:
        self.shape: tuple[int, ...] = (shape[0], shape[0])
        self.scale, self.offset, self.line_sums = scale, None, line_sums


def pattern(function: str, starts: _Array, columns: _Array, loops: bool) -> tuple[_Array, _Array]:
    """Canonical CSR arrays of one dtype, duplicates merged, with an edge from each node to itself if asked."""
    from scipy import sparse

    nodes = starts.size - 1
    if columns.size and not 0 <= int(columns.min()) <= int(columns.max()) < nodes:
        raise ValueError(
            f"{function}: indices reach {int(columns.min())}..{int(columns.max())}, but there are {nodes} nodes; check the pattern"
        )
    ones = np.ones(columns.size, np.bool_)
    made = sparse.csr_array((ones, columns, starts), shape=(nodes, nodes))
    if loops:
        made = made + sparse.eye_array(nodes, dtype=np.bool_, format="csr")
    if not made.has_canonical_format:
        made = made.copy() if not loops else made
        made.sum_duplicates()
    wide = np.dtype(np.int64) if max(nodes, made.nnz) >= 2**31 else np.dtype(np.int32)
    return made.indptr.astype(wide, copy=False), made.indices.astype(wide, copy=False)


def tiles_of(indptr: _Array, indices: _Array) -> tuple[int, int]:
    """8 x 128 tiles of a square pattern, and those that hold an edge."""
    nodes = indptr.size - 1
    across = -(-nodes // 128)
    rows = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(indptr))
    used = np.unique((rows // 8) * across + indices // 128).size
    return -(-nodes // 8) * across, int(used)
