"""The common part of binary graph networks: weights, the precisions of each layer (BitGNN section 3.1.2), plans, and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from bitsparse._check import shown
from bitsparse._files import replacing
from bitsparse.errors import DTypeError
from bitsparse.nn.binary import layers as steps
from bitsparse.nn.binary import variants as variants_of
from bitsparse.nn.binary.layers import InputNorm, Neighbours, Norm, neighbours_of
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.plan import Activation, BinaryPlan, Workspace, checked_features
from bitsparse.nn.binary.variants import Setting
from bitsparse.nn.checks import agree, chained, vector
from bitsparse.nn.description import described
from bitsparse.ops.finish.epilogue import folded


class Kind(NamedTuple):
    """How one kind of binary network differs from the others.

    Attributes
    ----------
    variants : tuple of str
        The variants that a layer can have: CHAIN_VARIANTS for one weight matrix, ADD_VARIANTS if a second one multiplies the node's own
        features.
    reduce : {"sum", "mean"}
        The reduction over neighbours.
    full : Setting
        The setting of every layer in the preset "full".
    binary : tuple of four str
        The variants in the preset "binary": of the first layer, of those in between, of the last, and of a single layer.
    loops : bool
        Whether self loops are added to an adjacency that is not prepared.
    """

    variants: tuple[str, ...]
    reduce: Literal["sum", "mean"]
    full: Setting
    binary: tuple[str, str, str, str]
    loops: bool = False

    @property
    def weights_per_layer(self) -> int:
        """Number of weight matrices in a layer."""
        return 1 if self.variants is variants_of.CHAIN_VARIANTS else 2


class BinaryModel:
    """Base class of the binary models; see :class:`BinaryGCN`."""

    kind: Kind

    layers: list[Any]
    #: What turns the outputs of all layers into logits: a BinaryLinear, or weights and bias in full precision; None if the last layer does.
    head: Any = None
    settings: list[Setting]
    input_norm: Norm

    def __init__(self, layers: Sequence[Any], variants: Any = "full", *, input_norm: Any = None) -> None:
        self.layers = self._checked(layers)
        self.input_norm = self._folded(input_norm)
        self.settings = self._settings_of(variants)
        self._kept: tuple[Any, BinaryPlan] | None = None
        self._check_outputs()

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickles and copies, without the plan of the last call, which can be made again."""
        return {**self.__dict__, "_kept": None}

    @property
    def weights(self) -> list[tuple[BinaryLinear, ...]]:
        """The binary weights of each layer: those for the neighbours, preceded by those for the node's own features if it has any."""
        return [each if isinstance(each, tuple) else (each,) for each in self.layers]

    def _checked(self, layers: Sequence[Any]) -> list[Any]:
        """The layers' weights, after checking that each layer takes what the one before gives; pairs if a layer has two."""
        count = self.kind.weights_per_layer
        groups = [(each,) if count == 1 else tuple(each) for each in layers]
        if count == 2 and (not groups or any(len(group) != 2 for group in groups)):
            raise ValueError(f"{self._name}: layers must be pairs (own weights, neighbours' weights), at least one")
        if not groups or not all(isinstance(each, BinaryLinear) for group in groups for each in group):
            raise DTypeError(
                f"{self._name}: layers must be BinaryLinear, at least one; make them with BinaryLinear.from_weights"
            )
        for i, group in enumerate(groups):
            own, near = group[0].shape, group[-1].shape
            agree(self._name, f"own weights of layer {i} have shape", own, "those of the neighbours", near)
        chained(self._name, "layer", [group[0].shape for group in groups])
        return groups if count == 2 else [linear for (linear,) in groups]

    @property
    def parts(self) -> list[BinaryLinear]:
        """The binary weights of all layers, in the order in which they are used."""
        return [part for weights in self.weights for part in weights]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def inputs(self) -> int:
        """Number of features of a node."""
        return self.parts[0].shape[0]

    @property
    def outputs(self) -> int:
        """Number of logits of a node."""
        return self.parts[-1].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, including scales, biases, head and input norm."""
        norm = self.input_norm if isinstance(self.input_norm, InputNorm) else ()
        head = () if self.head is None else (self.head,) if isinstance(self.head, BinaryLinear) else self.head
        return sum(int(part.nbytes) for part in (*self.parts, *norm, *head))

    @property
    def choices(self) -> list[Setting]:
        """Every setting with which one layer can be computed."""
        return variants_of.choices(self.kind.variants, self.kind.full.scaled)

    def candidates(self) -> list[list[Setting]]:
        """Every consistent list of settings, from which :func:`bitsparse.tune` picks. Before a head, all layers give the same precision."""
        first, letters = self.settings[0].reads, "FB" if isinstance(self.head, BinaryLinear) else "F"
        return [
            each
            for last in letters
            for each in variants_of.sequences(self.choices, self.depth, first, last)
            if self.head is None or all(one.gives == last for one in each)
        ]

    def with_settings(self, settings: Any) -> Self:
        """The same weights with other settings: a preset, or one variant or Setting for each layer."""
        model: Any = type(self)
        weights = (self.layers,) if self.head is None else (self.layers, self.head)
        return model(*weights, settings, input_norm=self.input_norm)

    def plan(self, graph: Any, x: Any) -> BinaryPlan:
        """Prepare the model for a graph and for features with the shape, dtype and device of `x`.

        Parameters
        ----------
        graph : Graph, FRDC, TCTiledCSR, sparse array or a graph of :mod:`bitsparse.datasets`
            As in a call of the model.
        x : array (n, features) or BitTensor
            An example; its values are not used.

        Returns
        -------
        BinaryPlan
            Called as ``plan(x, out=None)``; on a GPU it replays one CUDA graph, and allocates nothing if `out` is given.
        """
        kind = checked_features(self._name, x, self.inputs)
        first, *others = self.settings
        if kind.letter != first.reads:
            return self.with_settings([first.reading(kind.letter), *others]).plan(graph, x)
        neighbours = neighbours_of(self._name, graph, kind, loops=self.kind.loops)
        build = partial(self._build, neighbours)
        return BinaryPlan(self._name, kind, list(self.settings), build, neighbours, self.nbytes)

    def _build(
        self, neighbours: Neighbours, x: Activation, room: Workspace
    ) -> tuple[Callable[[Any, Any], None], tuple[int, int]]:
        """All layers as one function of input and output, and the shape of the result."""
        layers: list[steps.Layer] = []
        for weights, setting, norm in zip(self.weights, self.settings, self._norms, strict=True):
            layers.append(steps.prepared(weights, setting, neighbours, x, room, norm, reduce=self.kind.reduce))
            x = layers[-1].gives
        run = steps.in_turn(layers, room) if self.head is None else steps.joined(layers, self.head, room)
        return run, (x.rows, self.outputs)

    def __call__(self, graph: Any, x: Any) -> Any:
        """Logits of every node, ``(n, classes)`` float32, on the device and in the family of `x`.

        The plan of the last call is kept, and used again for the same graph and for features of the same shape, dtype and device.

        Parameters
        ----------
        graph : Graph, FRDC, TCTiledCSR, sparse array or a graph of :mod:`bitsparse.datasets`
            A Graph, FRDC or TCTiledCSR is taken as it is, with its scales. From any other graph a GCN makes
            ``D^-1/2 (A + I) D^-1/2``, while the other models take its entries as they are.
        x : array (n, features) of float, or BitTensor (n, features)
            Features in full precision, or packed as :meth:`packed` makes them; the setting of the first layer is adapted to either.
        """
        kept = self._kept  # looked at once: another thread may keep another plan meanwhile
        if kept is None or kept[0] is not graph or not kept[1].fits(x):
            self._kept = kept = graph, self.plan(graph, x)
        plan = kept[1]
        logits = plan(x)
        plan.check()
        return logits

    def packed(self, x: Any) -> Any:
        """Pack features as the first layer reads them: the signs after the input norm, and each row's mean magnitude as its scale.

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

    def arrays(self) -> dict[str, Any]:
        """The content of the model's file: its arrays by name, on the CPU, and the description of everything else in ``about``."""
        about = {"part": self._name, "layers": tuple(self.layers), "variants": tuple(self.settings)}
        head = {} if self.head is None else {"head": self.head}
        text, arrays = described(about | head | {"input_norm": self.input_norm}, f"{self._name}.save")
        return {"about": np.array(text), **arrays}

    def save(self, path: str | Path) -> None:
        """Write packed weights, biases, norm and settings to an ``.npz`` file, which :func:`load_binary` reads."""
        with replacing(path) as file:
            np.savez_compressed(file, **self.arrays())

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _settings_of(self, wanted: Any) -> list[Setting]:
        if wanted == "full":
            return [self.kind.full] * self.depth
        if wanted == "binary":
            first, between, last, only = map(Setting, self.kind.binary)
            return [first, *[between] * (self.depth - 2), last] if self.depth > 1 else [only]
        return variants_of.parse(self._name, self.kind.variants, wanted, self.depth, self.kind.full.scaled)

    def _check_outputs(self) -> None:
        """Refuse settings whose last layer does not give full precision, which logits need."""
        gives = self.settings[-1].gives
        if gives != "F":
            raise ValueError(
                f"{self._name}: the last layer gives {gives!r}, but logits need full precision, 'F'; choose a variant that ends with F"
            )

    @property
    def _norms(self) -> list[Norm]:
        """What is applied before the signs of each layer are taken: a batch norm in the first one only, standardised rows in all."""
        later: Norm = "rows" if self.input_norm == "rows" else None
        return [self.input_norm, *[later] * (self.depth - 1)]

    def _folded(self, norm: Any) -> Norm:
        if isinstance(norm, str):
            if norm != "rows":
                raise ValueError(f"{self._name}: input_norm must be a BatchNorm or 'rows', got {shown(norm)}")
            return "rows"
        if norm is None:
            return None
        if isinstance(norm, InputNorm):
            return InputNorm(*(vector(self._name, "input_norm", part, self.inputs) for part in norm))
        scale, shift = (np.broadcast_to(np.asarray(part, np.float32), (self.inputs,)) for part in folded(norm))
        return InputNorm(np.ascontiguousarray(scale), np.ascontiguousarray(shift))
