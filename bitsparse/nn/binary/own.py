"""GraphSAGE and GraphSAINT on signs: a node's own features beside the aggregate of its neighbours (BitGNN Figure 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from bitsparse import interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.binary import layers as steps
from bitsparse.nn.binary import variants as variants_of
from bitsparse.nn.binary.graph import Neighbours
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.network import BinaryModel, chained, linears
from bitsparse.nn.binary.plan import Workspace
from bitsparse.nn.binary.products import Activation
from bitsparse.nn.binary.variants import Setting

__all__ = ["BinarySAGE", "BinarySAINT"]


class _WithOwn(BinaryModel):
    """Layers of two weights, for the node's own features and for its neighbours': ``X W1 + reduce_j X_j W2``."""

    variants = variants_of.ADD_VARIANTS
    _reduce: ClassVar[str]

    layers: list[tuple[BinaryLinear, BinaryLinear]]

    def __init__(self, layers: Sequence[Any], settings: Any, input_norm: Any) -> None:
        pairs = [tuple(each) for each in layers]
        if not pairs or any(len(each) != 2 for each in pairs):
            raise ValueError(f"{self._name}: layers must be pairs (own weights, neighbours' weights), at least one")
        own, near = (linears(self._name, (each[i] for each in pairs)) for i in (0, 1))
        for i, (one, other) in enumerate(zip(own, near, strict=True)):
            if one.shape != other.shape:
                raise ShapeError(
                    f"{self._name}: the weights of layer {i} have shapes {one.shape} and {other.shape}; make them equal"
                )
        chained(self._name, own)
        self.layers = list(zip(own, near, strict=True))
        super().__init__(input_norm, settings)

    @property
    def parts(self) -> list[BinaryLinear]:
        """Own and neighbours' weights, layer by layer."""
        return [part for pair in self.layers for part in pair]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def _layers(self, neighbours: Neighbours, x: Activation, room: Workspace) -> list[steps.Layer]:
        made: list[steps.Layer] = []
        for (own, near), setting, norm in zip(self.layers, self.settings, self._norms, strict=True):
            made.append(steps.chain_and_add(own, near, setting, neighbours, x, room, norm, reduce=self._reduce))
            x = made[-1].gives
        return made


class BinarySAGE(_WithOwn):
    """GraphSAGE on signs (BitGNN Figure 2): per layer ``X W1 + mean_j X_j W2``, each product as in :class:`BinaryGCN`.

    Parameters
    ----------
    layers : sequence of (BinaryLinear, BinaryLinear)
        Weights for a node's own features, and for the mean over its neighbours.
    variants : {"full", "binary"} or sequence, default "full"
        BMM+BSpMM+ADD for each layer. ``"full"``: ``"FBF+FBF+FFF"``; ``"binary"``: ``"FBB+BBF+FFB"`` first, ``"BBB+BBF+FFB"`` between,
        ``"BBF+FBF+FFF"`` last. ADD.BBF and ADD.BBB add the signs of aggregate and own features.
    input_norm : BatchNorm or tuple, or "rows", optional
        As in :class:`BinaryGCN`.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> rng = np.random.default_rng(0)
    >>> pair = lambda k, n: tuple(nn.BinaryLinear.from_weights(rng.normal(size=(k, n))) for _ in range(2))
    >>> model = nn.BinarySAGE([pair(6, 8), pair(8, 3)], "binary")
    >>> graph = sparse.csr_array(np.eye(4, k=1) + np.eye(4, k=-1))
    >>> model(graph, rng.normal(size=(4, 6)).astype(np.float32)).shape
    (4, 3)
    """

    _reduce = "mean"

    def __init__(self, layers: Sequence[Any], variants: Any = "full", *, input_norm: Any = None) -> None:
        super().__init__(layers, variants, input_norm)
        if self.settings[-1].gives != "F":
            raise ValueError("BinarySAGE: the last layer gives B, but logits are full precision; end with F")

    def with_settings(self, settings: Any) -> BinarySAGE:
        """The same weights, computed another way: a preset, or one variant or Setting per layer."""
        return BinarySAGE(self.layers, settings, input_norm=self.input_norm)

    def _preset(self, name: str) -> list[Setting]:
        if name == "full":
            return [Setting("FBF+FBF+FFF")] * self.depth
        made = [Setting("FBB+BBF+FFB"), *[Setting("BBB+BBF+FFB")] * (self.depth - 2), Setting("BBF+FBF+FFF")]
        return made if self.depth > 1 else [Setting("FBF+FBF+FFF")]

    def _build(
        self, neighbours: Neighbours, x: Activation, room: Workspace
    ) -> tuple[Callable[[Any, Any], None], tuple[int, int]]:
        made = self._layers(neighbours, x, room)
        return steps.in_turn(made, room), (made[-1].gives.rows, made[-1].gives.columns)


class BinarySAINT(_WithOwn):
    """GraphSAINT's network on signs: layers ``X W1 + sum_j X_j W2``, the outputs of all layers side by side, and a linear head.

    Parameters
    ----------
    layers : sequence of (BinaryLinear, BinaryLinear)
        As in :class:`BinarySAGE`.
    head : BinaryLinear, or tuple of arrays (weights, bias)
        From all layers' outputs to classes. Arrays are multiplied in full precision, which takes layers that give F.
    variants : {"full", "binary"} or sequence, default "full"
        BMM+BSpMM+ADD for each layer; all give the same letter. ``"full"``: ``"FBF+FBF+FFF"``; ``"binary"``: ``"FBB+BBF+FFB"`` first, then
        ``"BBB+BBF+FFB"`` (with a full-precision head FFF at the end of both, which keeps what the head reads in full precision).
    input_norm : BatchNorm or tuple, or "rows", optional
        As in :class:`BinaryGCN`.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> rng = np.random.default_rng(0)
    >>> linear = lambda k, n: nn.BinaryLinear.from_weights(rng.normal(size=(k, n)))
    >>> model = nn.BinarySAINT([(linear(6, 8), linear(6, 8)), (linear(8, 8), linear(8, 8))], linear(16, 3))
    >>> graph = sparse.csr_array(np.eye(4, k=1) + np.eye(4, k=-1))
    >>> model(graph, rng.normal(size=(4, 6)).astype(np.float32)).shape
    (4, 3)
    """

    _reduce = "sum"

    def __init__(self, layers: Sequence[Any], head: Any, variants: Any = "full", *, input_norm: Any = None) -> None:
        self.head: Any = head if isinstance(head, BinaryLinear) else _dense(head)
        super().__init__(layers, variants, input_norm)
        width = sum(own.shape[1] for own, _ in self.layers)
        if self.head_shape[0] != width:
            raise ShapeError(
                f"BinarySAINT: the layers have {width} outputs together, but the head takes {self.head_shape[0]} inputs; make them equal"
            )
        letters = {each.gives for each in self.settings}
        if len(letters) != 1 or ("B" in letters and not isinstance(head, BinaryLinear)):
            raise ValueError(
                f"BinarySAINT: the layers give {', '.join(each.gives for each in self.settings)}, but the head reads one letter from all"
                f"{'' if isinstance(head, BinaryLinear) else ', F with full-precision weights'}; change the variants"
            )

    @property
    def head_shape(self) -> tuple[int, int]:
        """(inputs, outputs) of the head."""
        shape = self.head.shape if isinstance(self.head, BinaryLinear) else self.head[0].shape
        return (int(shape[0]), int(shape[1]))

    @property
    def outputs(self) -> int:
        """Logits of a node."""
        return self.head_shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, with scales, biases, head and input norm."""
        head = self.head.nbytes if isinstance(self.head, BinaryLinear) else sum(part.nbytes for part in self.head)
        return super().nbytes + int(head)

    def candidates(self) -> list[list[Setting]]:
        """Every consistent choice of settings: all layers give what the head reads."""
        first, letters = self.settings[0].reads, "FB" if isinstance(self.head, BinaryLinear) else "F"
        found = []
        for last in letters:
            every = variants_of.sequences(self.variants, self.depth, first, last, self._scales)
            found += [each for each in every if all(one.gives == last for one in each)]
        return found

    def with_settings(self, settings: Any) -> BinarySAINT:
        """The same weights, computed another way: a preset, or one variant or Setting per layer."""
        return BinarySAINT(self.layers, self.head, settings, input_norm=self.input_norm)

    def _preset(self, name: str) -> list[Setting]:
        if name == "full":
            return [Setting("FBF+FBF+FFF")] * self.depth
        if isinstance(self.head, BinaryLinear):
            return [Setting("FBB+BBF+FFB"), *[Setting("BBB+BBF+FFB")] * (self.depth - 1)]
        return [Setting("FBB+BBF+FFF")] * self.depth

    def _build(
        self, neighbours: Neighbours, x: Activation, room: Workspace
    ) -> tuple[Callable[[Any, Any], None], tuple[int, int]]:
        made = self._layers(neighbours, x, room)
        return steps.joined(made, self.head, room), (x.rows, self.outputs)


def _dense(head: Any) -> tuple[Any, Any]:
    """Weights and bias of a full-precision head."""
    if not isinstance(head, (tuple, list)) or len(head) != 2:
        raise DTypeError(f"BinarySAINT: head must be a BinaryLinear or (weights, bias), got {type(head).__name__}")
    weights = np.ascontiguousarray(interop.as_host(head[0], "BinarySAINT", "head weights"), np.float32)
    if weights.ndim != 2:
        raise ShapeError(
            f"BinarySAINT: the head's weights have shape {weights.shape}, but weights are (inputs, outputs)"
        )
    bias = np.zeros(weights.shape[1], np.float32) if head[1] is None else head[1]
    bias = np.ascontiguousarray(interop.as_host(bias, "BinarySAINT", "head bias"), np.float32)
    if bias.shape != weights.shape[1:]:
        raise ShapeError(f"BinarySAINT: the head has {weights.shape[1]} outputs but a bias of shape {bias.shape}")
    return weights, bias
