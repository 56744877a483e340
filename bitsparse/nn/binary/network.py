"""Binary graph networks run from given weights, in any mixture of precisions (BitGNN section 3.1.2): what they share, and the GCN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from bitsparse._check import shown
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.binary import layers as steps
from bitsparse.nn.binary import variants as variants_of
from bitsparse.nn.binary.graph import Neighbours, neighbours_of
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.plan import BinaryPlan, Workspace
from bitsparse.nn.binary.products import Activation, InputNorm, Norm, checked_features
from bitsparse.nn.binary.variants import Setting
from bitsparse.ops import Epilogue

__all__ = ["BinaryGCN", "BinaryModel"]

_PRESETS = ("full", "binary")


class BinaryModel(ABC):
    """What the binary models share; see :class:`BinaryGCN`."""

    #: The variants of a layer.
    variants: ClassVar[tuple[str, ...]]
    #: Whether the graph is normalised on both sides, so that a layer may be scaled.
    _scales: ClassVar[bool] = False
    #: Whether a bare adjacency gets self loops.
    _loops: ClassVar[bool] = False

    settings: list[Setting]
    input_norm: Norm

    def __init__(self, input_norm: Any, settings: Any) -> None:
        self.input_norm = self._folded(input_norm)
        self.settings = self._settings_of(settings)
        self._kept: tuple[Any, BinaryPlan] | None = None

    # -- what the models say
    @property
    @abstractmethod
    def parts(self) -> list[BinaryLinear]:
        """All binary weights, in the order in which they are used."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """Layers that aggregate."""

    @abstractmethod
    def _preset(self, name: str) -> list[Setting]:
        """The settings behind "full" and "binary"."""

    @abstractmethod
    def _build(
        self, neighbours: Neighbours, x: Activation, room: Workspace
    ) -> tuple[Callable[[Any, Any], None], tuple[int, int]]:
        """All steps as one function of input and output, and the shape of the result."""

    @abstractmethod
    def with_settings(self, settings: Any) -> Self:
        """The same weights, computed another way: a preset, or one variant or Setting per layer."""

    # -- what they share
    @property
    def _output_letter(self) -> str:
        """What the last layer that aggregates hands on."""
        return "F"

    @property
    def inputs(self) -> int:
        """Features of a node."""
        return self.parts[0].shape[0]

    @property
    def outputs(self) -> int:
        """Logits of a node."""
        return self.parts[-1].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, with scales, biases and input norm."""
        norm = self.input_norm if isinstance(self.input_norm, InputNorm) else ()
        return sum(part.nbytes for part in self.parts) + sum(part.nbytes for part in norm)

    def candidates(self) -> list[list[Setting]]:
        """Every consistent choice of settings, from which :func:`bitsparse.tune` picks."""
        first = self.settings[0].reads
        return list(variants_of.sequences(self.variants, self.depth, first, self._output_letter, self._scales))

    def plan(self, graph: Any, x: Any) -> BinaryPlan:
        """Prepare the model for a graph and features like `x`, of its shape, dtype and device.

        Parameters
        ----------
        graph
            As in a call.
        x : array (n, features) or BitTensor
            An example. Only its kind counts.

        Returns
        -------
        BinaryPlan
            ``plan(x, out=None)``; on a GPU it replays one CUDA graph and allocates nothing with `out`.
        """
        kind = checked_features(self._name, x, self.inputs)
        neighbours = neighbours_of(self._name, graph, kind.device, loops=self._loops)
        neighbours.fit(self._name, kind.rows)
        settings = list(self.settings)
        if kind.letter != settings[0].reads:
            settings[0] = settings[0].reading(kind.letter)
        model = self if settings == self.settings else self.with_settings(settings)
        return BinaryPlan(
            self._name,
            kind,
            settings,
            lambda x, room: model._build(neighbours, x, room),
            neighbours,
            self.nbytes,
        )

    def __call__(self, graph: Any, x: Any) -> Any:
        """Logits of every node, ``(n, classes)`` float32, on the device and in the family of `x`.

        The plan of the last call is kept and used again for the same graph and features of the same kind.

        Parameters
        ----------
        graph : Graph, FRDC, TCTiledCSR, sparse array or a graph of :mod:`bitsparse.datasets`
            A Graph, FRDC or TCTiledCSR is taken as it is, with its scales; from another one a GCN makes
            ``D^-1/2 (A + I) D^-1/2``, the other models take the entries as they are.
        x : array (n, features) of float, or BitTensor (n, features)
            Packed features, as :meth:`packed` makes them, are read instead of full-precision ones; the letters of the first layer follow.
        """
        if self._kept is None or self._kept[0] is not graph or not self._kept[1].fits(x):
            self._kept = graph, self.plan(graph, x)
        plan = self._kept[1]
        logits = plan(x)
        plan.check()
        return logits

    def packed(self, x: Any) -> Any:
        """Features as the first layer reads them: signs after the input norm, and each row's mean magnitude as its scale.

        Examples
        --------
        >>> from bitsparse import nn
        >>> model = nn.BinaryGCN([nn.BinaryLinear.from_weights(np.ones((2, 3)))])
        >>> packed = model.packed(np.array([[1.0, -3.0]], np.float32))
        >>> packed.toarray(), packed.scale
        (array([[ 1, -1]], dtype=int8), array([[2.]], dtype=float32))
        """
        return steps.packed(self._name, x, self.input_norm)

    def __repr__(self) -> str:
        return f"<{self._name} {self.inputs} -> {self.outputs}, {', '.join(map(str, self.settings))}>"

    def save(self, path: str | Path) -> None:
        """Write weights, biases, norm and settings to an ``.npz`` file, packed; :func:`load_binary` reads it."""
        from bitsparse.nn.binary.files import save

        save(self, path)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _settings_of(self, wanted: Any) -> list[Setting]:
        if isinstance(wanted, str):
            if wanted not in _PRESETS:
                raise ValueError(
                    f"{self._name}: variants must be 'full', 'binary' or one variant per layer, got {shown(wanted)}"
                )
            return self._preset(wanted)
        return variants_of.parse(self._name, self.variants, wanted, self.depth, self._scales)

    @property
    def _norms(self) -> list[Norm]:
        """What stands in front of the signs of each layer: a batch norm in front of the first ones, rows are standardised everywhere."""
        later: Norm = "rows" if self.input_norm == "rows" else None
        return [self.input_norm, *[later] * (self.depth - 1)]

    def _folded(self, norm: Any) -> Norm:
        if isinstance(norm, str):
            if norm != "rows":
                raise ValueError(f"{self._name}: input_norm must be a BatchNorm or 'rows', got {shown(norm)}")
            return "rows"
        if norm is None or isinstance(norm, InputNorm):
            return norm
        fixed = Epilogue(batch_norm=norm)._fixed
        scale, shift = (
            np.broadcast_to(np.asarray(part, np.float32), (self.inputs,)) for part in (fixed.bn_scale, fixed.bn_shift)
        )
        return InputNorm(np.ascontiguousarray(scale), np.ascontiguousarray(shift))


def chained(name: str, parts: Sequence[BinaryLinear]) -> None:
    """Weights whose outputs are the inputs of the next."""
    for i in range(1, len(parts)):
        if parts[i].shape[0] != parts[i - 1].shape[1]:
            raise ShapeError(
                f"{name}: layer {i - 1} has {parts[i - 1].shape[1]} outputs but layer {i} takes {parts[i].shape[0]} inputs"
            )


def linears(name: str, parts: Any) -> list[BinaryLinear]:
    made = list(parts)
    if not made or not all(isinstance(each, BinaryLinear) for each in made):
        raise DTypeError(f"{name}: layers must be BinaryLinear, at least one; make them with BinaryLinear.from_weights")
    return made


class BinaryGCN(BinaryModel):
    """Graph convolutional network on signs (Bi-GCN; BitGNN Figure 1): per layer ``P (alpha sign(x) @ (sign(W) m) + b)``.

    P is ``D^-1/2 (A + I) D^-1/2``, or the plain ``A + I`` where a layer is not scaled; alpha the mean magnitude of a node's features; no
    activation follows, as the next sign is one.

    Parameters
    ----------
    layers : sequence of BinaryLinear
    variants : {"full", "binary"} or sequence, default "full"
        How the layers compute. ``"full"``: full-precision aggregation throughout, Bi-GCN's own way (``"FBF+FBF"`` each, scaled).
        ``"binary"``: BitGNN's binary aggregation, ``"FBB+BBB"`` first, ``"BBB+BBB"`` between, ``"BBF+FBF"`` last, over the plain pattern.
        Or for each layer a variant (BMM+BSpMM; scaled where its messages are full precision), or a ``(variant, scaled)`` pair.
    input_norm : BatchNorm or tuple, or "rows", optional
        Batch norm of the features, in front of the first sign. With "rows" every row of full-precision numbers that a layer reads gets
        mean 0 and deviation 1, as in the inductive networks.

    Attributes
    ----------
    settings : list of Setting
    input_norm : InputNorm, "rows" or None

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Layers that do not follow each other, unknown variants, or letters that do not meet.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> rng = np.random.default_rng(0)
    >>> layers = [nn.BinaryLinear.from_weights(rng.normal(size=s)) for s in ((6, 8), (8, 3))]
    >>> model = nn.BinaryGCN(layers, "binary")
    >>> model
    <BinaryGCN 6 -> 3, FBB+BBB, BBF+FBF>
    >>> graph = sparse.csr_array(np.eye(4, k=1) + np.eye(4, k=-1))
    >>> model(graph, rng.normal(size=(4, 6)).astype(np.float32)).shape
    (4, 3)
    """

    variants = variants_of.CHAIN_VARIANTS
    _scales = True
    _loops = True

    def __init__(self, layers: Sequence[BinaryLinear], variants: Any = "full", *, input_norm: Any = None) -> None:
        self.layers = linears("BinaryGCN", layers)
        chained("BinaryGCN", self.layers)
        super().__init__(input_norm, variants)
        layers_end = self.settings[-1].gives
        if layers_end != "F":
            raise ValueError(f"BinaryGCN: the last layer gives {layers_end}, but logits are full precision; end with F")

    @property
    def parts(self) -> list[BinaryLinear]:
        """The layers."""
        return self.layers

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def with_settings(self, settings: Any) -> BinaryGCN:
        """The same weights, computed another way: a preset, or one variant or Setting per layer."""
        return BinaryGCN(self.layers, settings, input_norm=self.input_norm)

    def _preset(self, name: str) -> list[Setting]:
        depth = self.depth
        if name == "full":
            return [Setting("FBF+FBF", True)] * depth
        made = [Setting("FBB+BBB"), *[Setting("BBB+BBB")] * (depth - 2), Setting("BBF+FBF")]
        return made if depth > 1 else [Setting("FBF+FBF")]

    def _build(
        self, neighbours: Neighbours, x: Activation, room: Workspace
    ) -> tuple[Callable[[Any, Any], None], tuple[int, int]]:
        made: list[steps.Layer] = []
        for linear, setting, norm in zip(self.layers, self.settings, self._norms, strict=True):
            made.append(steps.chain(linear, setting, neighbours, x, room, norm))
            x = made[-1].gives
        return steps.in_turn(made, room), (x.rows, x.columns)
