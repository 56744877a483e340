"""The layers of full-precision networks: how they gather from neighbours, and their products with weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from bitsparse import _check
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.checks import agree, chained, floats, vector
from bitsparse.nn.dense import FUSED, Dense

GraphKind = Literal["gcn", "sage", "gin", "gat", "gatv2", "agnn"]
Kind = GraphKind | Literal["dense"]
#: The kinds whose layers sum over neighbours, those among them that weigh neighbours by their features, and all kinds.
GRAPH_KINDS = ("gcn", "sage", "gin", "gat", "gatv2", "agnn")
ATTENTION_KINDS = ("gat", "gatv2", "agnn")
KINDS = (*GRAPH_KINDS, "dense")


@dataclass(frozen=True)
class Neighbours:
    """How a layer gathers the features of neighbours.

    Parameters
    ----------
    reduce : {"sum", "mean", "max", "softmax"}
        The result is 0 for a node without neighbours. "softmax" is for attention: a mean with weights that depend on features.
    gcn_norm : bool, default False
        Divide each edge's weight by the square roots of the degrees of both ends. A degree is the sum of the weights of *arriving* edges,
        also in directed graphs, as in PyTorch Geometric's ``gcn_norm``.
    self_loop : float, optional
        Weight of the self loop that is added to each node without one; by default none is added.
    weighted : bool, default False
        The values of the adjacency are edge weights; otherwise all must be 1.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.Neighbours("max")
    Neighbours(reduce='max', gcn_norm=False, self_loop=None, weighted=False)
    """

    reduce: Literal["sum", "mean", "max", "softmax"] = "sum"
    gcn_norm: bool = False
    self_loop: float | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.self_loop is not None:
            object.__setattr__(self, "self_loop", _check.number("Neighbours", "self_loop", self.self_loop))
        _check.choice("Neighbours", "reduce", self.reduce, ("sum", "mean", "max", "softmax"))
        if self.reduce != "sum" and (self.gcn_norm or self.weighted):
            raise ValueError(
                f"Neighbours: gcn_norm={self.gcn_norm} and weighted={self.weighted} go with reduce='sum', got {self.reduce!r}; drop them"
            )


#: How each kind gathers unless a layer says otherwise.
USUAL = {
    "gcn": Neighbours("sum", gcn_norm=True, self_loop=1.0, weighted=True),
    "sage": Neighbours("mean"),
    "gin": Neighbours("sum"),
    "gat": Neighbours("softmax", self_loop=1.0),
    "gatv2": Neighbours("softmax", self_loop=1.0),
    "agnn": Neighbours("softmax", self_loop=1.0),
    "dense": None,
}


@dataclass(frozen=True, eq=False)
class Attention:
    """How a layer of kind "gat" or "gatv2" weighs neighbours: by a softmax over a node's edges, one for each head.

    Let ``h = x @ weight`` be the layer's first product, with the columns of the heads side by side. An edge from j to i has the score
    ``leaky_relu(<source, h[j]> + <target, h[i]>)`` in a GAT (Velickovic et al., ICLR 2018, Eq. 3), and
    ``<source, leaky_relu(h[j] + receive(x)[i])>`` in a GATv2 (Brody et al., ICLR 2022, Eq. 7), whose `bias` belongs to h.

    Parameters
    ----------
    source : array_like (heads, channels)
    target : array_like (heads, channels), optional
        For a GAT.
    receive : Dense, optional
        For a GATv2: the product of the receiving node's features. It gives as many columns as h has.
    bias : array_like (heads * channels,), optional
        For a GATv2: the bias of the neighbours' h.
    negative_slope : float, default 0.2
        The slope of the leaky relu.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.Attention(np.ones((8, 4)), np.ones((8, 4))).heads
    8
    """

    source: Any
    target: Any = None
    receive: Dense | None = None
    bias: Any = None
    negative_slope: float = 0.2

    def __post_init__(self) -> None:
        function = "Attention"
        object.__setattr__(self, "source", floats(function, "source", self.source, 2))
        if (self.target is None) == (self.receive is None):
            raise ValueError(f"{function}: pass either target, for a GAT, or receive, for a GATv2")
        if self.target is not None:
            object.__setattr__(self, "target", floats(function, "target", self.target, 2))
            both = "both are (heads, channels)"
            agree(function, "source has shape", self.source.shape, "target", self.target.shape, both)
            if self.bias is not None:
                raise ValueError(
                    f"{function}: bias goes with receive, for a GATv2; the layer's own stands in its Dense"
                )
        else:
            how = "pass nn.Dense(weight, bias)"
            gives = _check.instance(function, "receive", self.receive, Dense, "a Dense", how).outputs
            agree(function, "heads times channels of source are", self.source.size, "receive gives", gives)
        if self.bias is not None:
            object.__setattr__(self, "bias", vector(function, "bias", self.bias, self.source.size))
        object.__setattr__(self, "negative_slope", _check.number(function, "negative_slope", self.negative_slope))

    @property
    def heads(self) -> int:
        """Number of heads, which is the number of softmaxes for each node."""
        return int(self.source.shape[0])


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a network: how it transforms the features of neighbours and of the node itself.

    Parameters
    ----------
    updates : sequence of Dense
        The products, one after the other. The first one of a GCN is ``P (x @ weight) + bias``: its bias, batch norm and activation follow
        the sums over neighbours. The same holds for a GAT and a GATv2. Further products are the perceptron of a GIN, or plain linear
        layers. In an AGNN all products follow the sums.
    own : array_like (inputs, outputs), optional
        GraphSAGE: weights of a node's own features, whose product is added to that of the neighbours. GAT, GATv2: weights of the residual
        connection.
    eps : float, default 0.0
        GIN: own features count ``1 + eps`` times.
    kind : {"gcn", "sage", "gin", "gat", "gatv2", "agnn", "dense"}, optional
        By default that of the network; "dense" has no neighbours.
    neighbours : Neighbours, optional
        By default the usual way of the kind: normalised sums, means, sums, or attention with self loops.
    project : Dense, optional
        GraphSAGE: the product that is applied to the features of neighbours before they are gathered.
    attention : Attention, optional
        GAT and GATv2 need it: how neighbours are weighed. To average the heads, the first product has ``average=heads``.
    beta : float, default 1.0
        AGNN: the factor of the cosines between the features of a node and its neighbours; their softmax weighs the neighbours.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.Layer([nn.Dense(np.ones((4, 2)))], own=np.ones((4, 2))).inputs
    4
    """

    updates: tuple[Dense, ...]
    own: Any = None
    eps: float = 0.0
    kind: Kind | None = None
    neighbours: Neighbours | None = None
    project: Dense | None = None
    attention: Attention | None = None
    beta: float = 1.0

    def __post_init__(self) -> None:
        updates = tuple(self.updates)
        if not updates or not all(isinstance(update, Dense) for update in updates):
            raise DTypeError("Layer: updates must be one or more nn.Dense")
        chained("Layer", "update", [(update.weight.shape[0], update.outputs) for update in updates])
        object.__setattr__(self, "updates", updates)
        first = updates[0].weight.shape[0], updates[0].outputs
        if self.own is not None:
            own = floats("Layer", "own", self.own, 2)
            agree("Layer", "own has shape", own.shape, "the neighbours' weights have", first)
            object.__setattr__(self, "own", own)
        if self.attention is not None:
            self._check_attention(self.attention, updates[0])
        if self.project is not None:
            _check.instance("Layer", "project", self.project, Dense, "a Dense", "pass nn.Dense(weight)")
            square = (first[0], first[0])
            agree("Layer", "project has shape", self.project.weight.shape, "neighbours send", square)
        for name in ("eps", "beta"):
            object.__setattr__(self, name, _check.number("Layer", name, getattr(self, name)))
        if self.kind is not None:
            self._check_kind(_check.choice("Layer", "kind", self.kind, KINDS))

    def _check_attention(self, attention: Attention, first: Dense) -> None:
        how = "pass nn.Attention(source, target)"
        _check.instance("Layer", "attention", attention, Attention, "an Attention", how)
        inputs, columns = first.weight.shape
        agree("Layer", "heads times channels are", attention.source.size, "the weights' columns", columns)
        if attention.receive is not None:
            takes = attention.receive.weight.shape[0]
            agree("Layer", "attention.receive takes", takes, "the weights take", inputs)
        if first.average not in (1, attention.heads):
            raise ShapeError(
                f"Layer: attention has {attention.heads} heads but the weights have average={first.average}; pass 1 or as many as heads"
            )

    def _check_kind(self, kind: str) -> None:
        for name, there, wanted in (
            ("own", self.own is not None, ("sage", "gat", "gatv2")),
            ("project", self.project is not None, ("sage",)),
            ("eps", bool(self.eps), ("gin",)),
            ("beta", self.beta != 1, ("agnn",)),
            ("attention", self.attention is not None, ("gat", "gatv2")),
        ):
            if there and kind not in wanted:
                raise ValueError(
                    f"Layer: {name} goes with kind {' or '.join(map(_check.shown, wanted))} only, got kind {_check.shown(kind)}"
                )
        if kind in ("gat", "gatv2") and (self.attention is None or (self.attention.receive is None) != (kind == "gat")):
            raise ValueError(
                f"Layer: kind {_check.shown(kind)} needs an attention with {'target' if kind == 'gat' else 'receive'}; pass nn.Attention"
            )
        if kind == "dense" and self.neighbours is not None:
            raise ValueError("Layer: neighbours go with a kind that has them, got kind 'dense'")
        if self.neighbours is None:
            object.__setattr__(self, "neighbours", USUAL[kind])
            return
        how = "pass nn.Neighbours(reduce)"
        _check.instance("Layer", "neighbours", self.neighbours, Neighbours, "Neighbours", how)
        if (self.neighbours.reduce == "softmax") != (kind in ATTENTION_KINDS):
            raise ValueError(
                f"Layer: {self.neighbours} does not go with kind {_check.shown(kind)}: reduce='softmax' goes with attention"
            )

    @property
    def inputs(self) -> int:
        """Number of features that it takes."""
        return int(self.updates[0].weight.shape[0])

    @property
    def outputs(self) -> int:
        """Number of features that it gives."""
        return self.updates[-1].outputs

    def unusual(self) -> str | None:
        """Say the first thing in it that the usual layer of its kind does not have; None if low-bit networks can represent it."""
        if self.kind == "dense":
            return "is a linear layer without neighbours"
        if self.kind in ATTENTION_KINDS:
            return f"is an attention layer, {_check.shown(self.kind)}"
        usual = USUAL[str(self.kind)]
        if self.neighbours not in (usual, None if usual is None else replace(usual, weighted=False)):
            return f"gathers with {self.neighbours}"
        if self.project is not None:
            return "projects what neighbours send"
        if self.kind == "sage" and self.own is None:
            return "has no weights for own features"
        if self.kind != "gin" and len(self.updates) > 1:
            return f"is followed by {len(self.updates) - 1} linear layer(s)"
        for update in self.updates:
            if update.average > 1:
                return f"averages {update.average} groups of columns"
            if update.activation not in FUSED:
                return f"ends in {update.activation}"
            if update.then:
                step = update.then[0]
                return f"has {step if isinstance(step, str) else type(step).__name__} behind its activation"
        return None
