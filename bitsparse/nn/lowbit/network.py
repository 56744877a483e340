"""GCN, GraphSAGE and GIN of any depth on low-bit integers: exact sums and products with epilogues (QGTC sections 3 and 4.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, overload

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._archive import opened, reading
from bitsparse._files import replacing
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.arrays.packed import Layout
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.graph.adjacency import refuse_weights, square_sparse
from bitsparse.graph.operand import Graph, Normalisation
from bitsparse.nn.features import Features, pieces
from bitsparse.nn.lowbit.files import ABOUT, described, restored
from bitsparse.nn.lowbit.inputs import sparse_codes, stays_sparse
from bitsparse.nn.lowbit.plan import LowBitPlan
from bitsparse.nn.lowbit.steps import Aggregate, Grid, Update
from bitsparse.ops import quantize

_Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class LowBitNetwork:
    """A graph network on low-bit integers, made by :func:`quantize_network`. ``network(adjacency, x)`` gives the logits.

    ========  =========================================================================================
    kind      products of a layer, in their order
    ========  =========================================================================================
    "gcn"     codes times weights, requantised; sums over neighbours, bias, activation, requantised
    "sage"    means over neighbours, requantised, beside own codes; times weights, bias, activation, requantised
    "gin"     sums over neighbours, requantised; times weights, bias, norm, activation, requantised, and so on; or
              times weights, requantised; sums over neighbours, bias, norm, activation, requantised, and so on
    ========  =========================================================================================

    All sums are exact integers, and each step after them is one float32 operation (:class:`bitsparse.Epilogue`). So the logits are equal,
    bit for bit, on every device and for every form of the adjacency. Only the last product gives floats. Every layer of a GCN multiplies
    before it aggregates: the right-hand ``D^-1/2`` is then a factor of the product's rows, and the sums over neighbours stay integers. A
    GIN with ``eps=0`` does the same if a layer's first product is no wider than its input; by linearity the result is the same, and fewer
    columns are summed.

    Attributes
    ----------
    kind, name : str
    bits : tuple of int
        The bits of each layer: of its input, its weights and its intermediate results.
    widths : tuple of int
        The columns of the input and of each layer's result.
    input_grid : Grid or None
        The grid of the features; None if each row has its own, as in :class:`Features`.
    steps : tuple of Update and Aggregate
        The products.

    Notes
    -----
    Weights of b bits are signed, -2^(b-1) to 2^(b-1) - 1, with one scale per output. Weights of one bit are -1 and +1, 0 and +1, or -1 and
    0 for each output, stored in two planes. In a GraphSAGE, and in a GIN with `eps`, the weights for own features are stacked below those
    for neighbours, so that both make one product.
    """

    kind: str
    normalisation: Normalisation
    self_loops: bool
    bits: tuple[int, ...]
    widths: tuple[int, ...]
    input_grid: Grid | None
    steps: tuple[Update | Aggregate, ...]
    #: Encoding of the features.
    input_encoding: ClassVar[str] = "unsigned"
    #: Weights and vectors by device, and laid out for the CPU.
    _placed: dict[tuple[str, int], Any] = field(default_factory=dict, init=False)

    @property
    def name(self) -> str:
        """A short name made of kind, widths and bits."""
        bits = str(self.bits[0]) if len(set(self.bits)) == 1 else "-".join(map(str, self.bits))
        return f"{self.kind}-{'-'.join(map(str, self.widths))}-b{bits}"

    def __repr__(self) -> str:
        return f"<LowBitNetwork {self.kind} {' -> '.join(map(str, self.widths))}, bits {', '.join(map(str, self.bits))}, {self.nbytes} B>"

    @property
    def features(self) -> int:
        """Number of features that it takes."""
        return self.widths[0]

    @property
    def classes(self) -> int:
        """Number of columns of the logits."""
        return self.widths[-1]

    @property
    def input_bits(self) -> int:
        """Bits of the features."""
        return self.bits[0]

    @property
    def input_layout(self) -> Layout:
        """Layout of the features, packed along axis -1, in which the first step reads them."""
        return "planes" if isinstance(self.steps[0], Update) or self.input_bits not in (2, 4, 8, 16) else "rows"

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights and of all vectors."""
        weights = sum(step.weights.nbytes for step in self.steps if isinstance(step, Update))
        return weights + sum(part.nbytes for part in self._vectors())

    def _vectors(self) -> Iterator[_Array]:
        yield from self.input_grid or ()
        for step in self.steps:
            extra = step.constant if isinstance(step, Update) else step.offset
            yield from (step.chain.col_scale, step.chain.bias, *(step.chain.grid or ()))
            yield from () if extra is None else (extra,)

    def fingerprint(self) -> str:
        """A hash of everything that the logits depend on, except graph and features."""
        found = hashlib.sha256(repr((self.kind, self.normalisation, self.self_loops, self.bits, self.widths)).encode())
        for step in self.steps:
            found.update(f"{type(step).__name__} {step.chain.bits} {step.chain.activation}".encode())
            if isinstance(step, Update):
                found.update(np.ascontiguousarray(step.weights.words).tobytes())
        for vector in self._vectors():
            found.update(np.ascontiguousarray(vector).tobytes())
        return found.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the network to an ``.npz`` file, which :func:`load_lowbit` reads without any change.

        Examples
        --------
        >>> import tempfile
        >>> from bitsparse import nn
        >>> graph, x = np.eye(4), np.arange(12.0).reshape(4, 3)
        >>> low = nn.quantize_network(nn.random_network("gcn", [3, 2]), bs.FRDC(graph), x, 4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     low.save(folder + "/low.npz")
        ...     nn.load_lowbit(folder + "/low.npz").fingerprint() == low.fingerprint()
        True
        """
        about = {name: getattr(self, name) for name in ABOUT}
        with replacing(path) as file:
            np.savez_compressed(file, **described(about, self.input_grid, self.steps))

    @overload
    def quantize(self, rows: Any, *, layout: Layout | None = None) -> BitTensor: ...

    @overload
    def quantize(self, rows: Any, *, layout: Literal["csr"]) -> TCTiledCSR: ...

    def quantize(self, rows: Any, *, layout: Layout | Literal["csr"] | None = None) -> BitTensor | TCTiledCSR:
        """Quantise feature rows on the calibrated grid. The codes of a row do not depend on the other rows.

        Parameters
        ----------
        rows : array_like (n, features), SciPy sparse array or Features
            An array of any library, on any device. Sparse arrays are made dense in pieces of 64 MB. If :attr:`input_grid` is None, only
            Features are accepted.
        layout : {"planes", "rows", "csr"}, optional
            By default :attr:`input_layout`. "csr" gives the nonzero codes as a TCTiledCSR, for features that are mostly zeros, such as bags
            of words. A network that multiplies first computes the same logits from them without making them dense.

        Returns
        -------
        BitTensor (n, features)
            Unsigned codes, packed along the features, without scale and offset, because the grid is part of the first product. Codes of
            Features with a grid for each row have a scale, and as many bits as they need. In layout "csr" the result is a TCTiledCSR
            (n, features) of uint8 (beyond 8 bits uint16), with those scales as its `row_scale`.

        Raises
        ------
        DTypeError, ShapeError
            Rows are not numbers, are codes already, or have another number of columns.
        ValueError
            Layout "csr" is asked for Features with negative values, whose zeros do not have the code 0.
        """
        from scipy import sparse

        function, family = "LowBitNetwork.quantize", interop.NUMPY
        if isinstance(rows, BitTensor):
            raise DTypeError(f"{function}: rows are a BitTensor, but values are needed; pass rows.dequantize()")
        of_rows = rows if isinstance(rows, Features) else None
        if self.input_grid is None and of_rows is None:
            raise DTypeError(
                f"{function}: the network was calibrated on nn.Features, whose rows have scales of their own, but rows are "
                f"{type(rows).__name__}; pass nn.Features(x)"
            )
        if of_rows is not None:
            rows = of_rows.csr
        elif not sparse.issparse(rows):
            rows, family = interop.as_array(rows, function, "rows")
        _check.numeric(function, "rows", rows)
        if len(rows.shape) != 2 or rows.shape[1] != self.features:
            raise ShapeError(
                f"{function}: rows have shape {tuple(rows.shape)}, but the network reads (n, {self.features})"
            )
        if of_rows is not None and self.input_grid is None:
            return of_rows.quantized_entries(self.input_bits) if layout == "csr" else of_rows.quantized(self.input_bits)
        if layout == "csr":
            return sparse_codes(self, _as_csr(function, rows))
        layout = layout or self.input_layout
        if not sparse.issparse(rows):
            with interop.working_on(interop.device_of(rows), family):
                return self._quantized(rows, layout)
        rows = rows.tocsr()
        parts = (self._quantized(rows[part].toarray(), layout) for part in pieces(*rows.shape))
        words = np.concatenate([part.words for part in parts])
        return BitTensor.from_words(words, rows.shape, self.input_bits, layout=layout, check=False)

    def _quantized(self, rows: Any, layout: Layout) -> BitTensor:
        step, low = (part.astype(np.float64)[None, :] for part in self.input_grid or ())
        top = float(2**self.input_bits - 1)
        codes = quantize(
            rows.astype(np.float32) if rows.dtype != np.float32 else rows,
            self.input_bits,
            rounding="nearest",
            granularity="col",
            range=(low, low + step * top),
            layout=layout,
        )
        return codes.with_affine()

    def plan(self, operand: Any, x: BitTensor | TCTiledCSR) -> LowBitPlan:
        """Prepare the network for a graph and an array of features; ``plan(out=None)`` gives the logits.

        Parameters
        ----------
        operand : Graph
            The graph, with this network's `normalisation` and `self_loops`.
        x : BitTensor or TCTiledCSR (nodes, features)
            From :meth:`quantize`, on the operand's device. Sparse codes are only for CPUs and for networks that multiply first: a GCN, and
            a GIN with ``eps=0`` whose first product is no wider than its input.

        Returns
        -------
        LowBitPlan
            Every call reads the words of `x` and the arrays of the operand again, so they may be overwritten in place.
        """
        return LowBitPlan(self, operand, x)

    def __call__(self, adjacency: Any, x: Any) -> Any:
        """Logits of every node.

        Parameters
        ----------
        adjacency : sparse array (n, n) of SciPy or bitsparse, GraphData or Graph
            An array is normalised for this network at every call; a :class:`Graph` is normalised once, on any device.
        x : array_like (n, features), sparse array, Features, BitTensor or TCTiledCSR
            :meth:`quantize` quantises it, unless it is a BitTensor or a TCTiledCSR, which are taken as codes. If the network multiplies
            first, sparse features stay sparse if at most an eighth of them is not zero; the logits have the same bits.

        Returns
        -------
        array (n, classes) of float32, of the library of `x`, on its device

        Raises
        ------
        DTypeError, ShapeError, ValueError, DeviceError
            An array has edge weights, which low-bit networks cannot use, or :meth:`quantize` or :meth:`plan` raises.
        """
        if isinstance(x, BitTensor | TCTiledCSR):
            codes: Any = x
        else:
            codes = self.quantize(x, layout="csr") if stays_sparse(self, x) else self.quantize(x)
        if not hasattr(adjacency, "aggregate"):
            function = "LowBitNetwork"
            pattern = square_sparse(function, getattr(adjacency, "adjacency", adjacency))
            refuse_weights(function, adjacency)
            adjacency = Graph(pattern, self.normalisation, self_loops=self.self_loops, device=codes.device)
        return self.plan(adjacency, codes)()

    def laid(self, number: int, lay: Callable[[NDArray[np.int8]], NDArray[Any]]) -> NDArray[Any]:
        """Weights of up to 8 bits in the layout that `lay` makes for products on a CPU; they are kept."""
        key = (lay.__name__, number)
        if key not in self._placed:
            step: Any = self.steps[number]
            self._placed[key] = lay(np.asarray(step.weights.toarray()).astype(np.int8))
        return self._placed[key]

    def placed(self, device: str, number: int) -> tuple[Any, Any]:
        """The weights of a step (None for sums) and its constant or offset on a device, where they are kept."""
        key = (device, number)
        found: tuple[Any, Any] | None = self._placed.get(key)
        if found is None:
            step = self.steps[number]
            weights: Any = step.weights.to_device(device) if isinstance(step, Update) else None
            extra = step.constant if isinstance(step, Update) else step.offset
            if extra is not None and isinstance(step, Aggregate):
                extra = extra[None, :]
            # Threads that ask at the same time all get the objects of the first one, because plans compare them by identity.
            found = self._placed.setdefault(key, (weights, interop.move(extra, device)))
        return found


def _as_csr(function: str, rows: Any) -> Any:
    """Convert values to a canonical csr_array."""
    from scipy import sparse

    if not sparse.issparse(rows):
        rows = interop.as_host(rows, function, "rows")
    csr = sparse.csr_array(rows)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def load_lowbit(path: str | Path) -> LowBitNetwork:
    """Read a network that :meth:`LowBitNetwork.save` wrote. Nothing is unpickled.

    Raises
    ------
    FileFormatError
        The file holds no such network, is damaged, or its parts contradict each other.
    OSError
        The file cannot be read.
    """
    with reading("load_lowbit", path, "; write it with LowBitNetwork.save"), opened("load_lowbit", path) as archive:
        return LowBitNetwork(**restored(archive))
