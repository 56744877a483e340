"""Reads single modules of PyTorch and PyTorch Geometric from their attributes, without importing these frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bitsparse._check import shown
from bitsparse.nn.dense import Dense, LayerNorm, Step
from bitsparse.nn.layers import Attention, Kind, Neighbours
from bitsparse.ops.finish.epilogue import BatchNorm

#: The graph layers that can be read.
CONVS = ("GCNConv", "SAGEConv", "GINConv", "GATConv", "GATv2Conv", "AGNNConv")
#: Modules with the containers of PyTorch Geometric that a trace enters; its other classes are read as a whole, or refused.
_TRANSPARENT = ("torch_geometric.nn.models.basic_gnn", "torch_geometric.nn.models.mlp", "torch_geometric.nn.sequential")
#: Activations by the name of their function, with the values that their parameters may have; `inplace` makes no difference.
FUNCTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "relu": {},
    "leaky_relu": {"negative_slope": (0.01,)},
    "elu": {"alpha": (1.0,)},
    "tanh": {},
    "sigmoid": {},
    "gelu": {"approximate": ("none",)},
    "silu": {},
    "log_softmax": {"dim": (1, -1)},
    "normalize": {"p": (2.0,), "dim": (1, -1), "eps": (1e-12,)},
}
#: The same activations by the lower-case name of their module.
_MODULES = {name.replace("_", ""): name for name in FUNCTIONS}
_IDENTITIES = ("Identity", "Dropout", "Dropout1d", "AlphaDropout")
_READ = f"{', '.join(CONVS)}, Linear, BatchNorm, LayerNorm, Dropout and activations"


class Refused(ValueError):
    """The reason why a model is refused; :func:`bitsparse.nn.from_pyg` adds its own name and raises it."""


@dataclass
class Conv:
    """A layer that is being read: its kind, products and further fields, the module with the products, and the steps after them."""

    kind: Kind
    updates: list[Dense] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    inner: Any = None
    steps: list[Step] = field(default_factory=list)


def is_leaf(module: Any) -> bool:
    """Whether a module is read as a whole: those of PyTorch and PyTorch Geometric except containers, and all that pass messages."""
    home = type(module).__module__
    if home.startswith("torch.nn"):
        return type(module).__name__ != "Sequential"
    if home.startswith("torch_geometric."):
        return not home.startswith(_TRANSPARENT)
    # The generated class of a PyTorch Geometric Sequential is traced. Message passing cannot be traced, so it is read as a whole.
    return any(base.__name__ == "MessagePassing" for base in type(module).__mro__)


def array(tensor: Any) -> Any:
    """Convert a parameter to a float32 ndarray; None stays None."""
    if tensor is None:
        return None
    if type(tensor).__name__.startswith("Uninitialized"):
        raise Refused("has parameters without a size; call the model once, which gives lazy layers their widths")
    return tensor.detach().cpu().float().numpy()


def module_steps(module: Any) -> Dense | list[Step]:
    """Read a module with one input as a product with weights, or as a list of steps, which is empty for dropout."""
    name, home = type(module).__name__, type(module).__module__
    if not home.startswith(("torch.nn.modules", "torch_geometric.nn.")):
        raise Refused(f"is a {name}, a class of its own that cannot be looked into; from_pyg reads {_READ}")
    if name in ("Linear", "NonDynamicallyQuantizableLinear"):
        return Dense(array(module.weight).T, array(module.bias))
    if name in _IDENTITIES:
        return []
    function = _MODULES.get(name.lower())
    if function is not None:
        return [_told(function, name, {key: getattr(module, key, None) for key in FUNCTIONS[function]})]
    if name in ("BatchNorm1d", "BatchNorm"):
        return [_batch_norm(getattr(module, "module", module))]
    if name == "LayerNorm":
        return [_layer_norm(module, home)]
    raise Refused(f"is a {name}, which is not there yet; from_pyg reads {_READ}")


def function_step(name: str, rest: tuple[Any, ...], told: Mapping[str, Any]) -> list[Step]:
    """The steps of a function or method of a tensor; `rest` and `told` are its other arguments."""
    plain = name.removesuffix("_")
    if plain == "dropout":
        told = dict(zip(("p", "training"), rest, strict=False)) | dict(told)
        if told.get("training", True) and told.get("p", 0.5):
            raise Refused(
                "calls dropout that stays active in inference; pass training=self.training, or use a torch.nn.Dropout"
            )
        return []
    if plain not in FUNCTIONS:
        raise Refused(f"calls {name}, which is not there yet; from_pyg reads {_READ}")
    return [_told(plain, name, dict(zip(FUNCTIONS[plain], rest, strict=False)) | dict(told))]


def _told(function: str, name: str, told: Mapping[str, Any]) -> str:
    """The name of a function's activation, after a check of its parameters."""
    allowed = FUNCTIONS[function]
    for key, value in told.items():
        if key in allowed and value not in allowed[key]:
            raise Refused(
                f"has {name} with {key}={value}, but only {key}={allowed[key][-1]} is there; fold it into the weights"
            )
        if key not in allowed and key not in ("inplace", "dtype", "_stacklevel", "out") and value is not None:
            raise Refused(f"has {name} with {key}={value}, which is not there yet")
    if function == "log_softmax" and told.get("dim") is None:
        raise Refused(f"has {name} without dim; pass dim=-1")
    return "l2_normalize" if function == "normalize" else function


def _batch_norm(module: Any) -> BatchNorm:
    if module.running_mean is None:
        raise Refused(
            "is a BatchNorm without running statistics, which looks at the whole graph; train it with track_running_stats"
        )
    return BatchNorm(
        array(module.running_mean), array(module.running_var), array(module.weight), array(module.bias), module.eps
    )


def _layer_norm(module: Any, home: str) -> LayerNorm:
    if home.startswith("torch_geometric."):
        over = {"graph": "graph", "node": "row"}[module.mode]
    elif len(module.normalized_shape) == 1:
        over = "row"
    else:
        raise Refused(f"is a LayerNorm over {tuple(module.normalized_shape)}; only one over the features is there")
    return LayerNorm(array(module.weight), array(module.bias), float(module.eps), over)  # type: ignore[arg-type]


def check_conv(module: Any) -> None:
    """Raise if a graph layer cannot be read."""
    name = type(module).__name__
    if name not in CONVS or not type(module).__module__.startswith("torch_geometric."):
        kin = next((base.__name__ for base in type(module).__mro__[1:] if base.__name__ in CONVS), None)
        own = f" of its own, made from {kin}" if kin else ""
        raise Refused(f"is a {name}{own}, which is not there yet; from_pyg reads {', '.join(CONVS)}")
    if module.flow != "source_to_target":
        raise Refused(f"has flow={shown(module.flow)}; only 'source_to_target' is there: turn the edges round")
    usual = 0 if name.startswith("GAT") else -2
    if module.node_dim != usual or getattr(module, "decomposed_layers", 1) != 1:
        raise Refused(
            f"has node_dim={module.node_dim} and decomposed_layers={module.decomposed_layers}; only {usual} and 1 are there"
        )


def read_conv(module: Any, weighted: bool) -> Conv:
    """Read a graph layer; ``weighted`` says whether the model passes edge weights to it."""
    return _READERS[type(module).__name__](module, weighted)


def _reduce(module: Any) -> Any:
    aggr = {"add": "sum"}.get(module.aggr, module.aggr) if isinstance(module.aggr, str) else module.aggr
    if aggr not in ("sum", "mean", "max"):
        raise Refused(f"has aggr={shown(module.aggr)}, which is not there yet; 'sum', 'mean' and 'max' are")
    return aggr


def _sums(module: Any) -> None:
    if _reduce(module) != "sum":
        raise Refused(f"is a {type(module).__name__} with aggr={shown(module.aggr)}; only 'add' is there")


def _gcn(module: Any, weighted: bool) -> Conv:
    _sums(module)
    loop = None
    if module.normalize and module.add_self_loops:
        # PyTorch Geometric adds loops of weight 2 only if edge weights are given.
        loop = 2.0 if module.improved and weighted else 1.0
    how = Neighbours("sum", gcn_norm=bool(module.normalize), self_loop=loop, weighted=weighted)
    return Conv("gcn", [Dense(array(module.lin.weight).T, array(module.bias))], {"neighbours": how})


def _sage(module: Any, weighted: bool) -> Conv:
    project = Dense(array(module.lin.weight).T, array(module.lin.bias), activation="relu") if module.project else None
    own = array(module.lin_r.weight).T if module.root_weight else None
    first = Dense(array(module.lin_l.weight).T, array(module.lin_l.bias))
    told = {"neighbours": Neighbours(_reduce(module)), "own": own, "project": project}
    return Conv("sage", [first], told, steps=["l2_normalize"] if module.normalize else [])


def _gin(module: Any, weighted: bool) -> Conv:
    told = {"neighbours": Neighbours(_reduce(module)), "eps": float(module.eps.detach())}
    return Conv("gin", fields=told, inner=module.nn)


def _loops(module: Any) -> Neighbours:
    """How an attention layer gathers from neighbours."""
    return Neighbours("softmax", self_loop=1.0 if module.add_self_loops else None)


def _gat(module: Any, weighted: bool) -> Conv:
    _sums(module)
    if module.edge_dim is not None:
        raise Refused(f"has edge_dim={module.edge_dim}; attention to features of edges is not there yet")
    if not isinstance(module.in_channels, int):
        raise Refused(f"has in_channels={module.in_channels}, for two sets of nodes; only one number is there")
    slope, kind, linear = module.negative_slope, "gat", getattr(module, "lin", None)
    if linear is not None:
        weights = Attention(array(module.att_src)[0], array(module.att_dst)[0], negative_slope=slope)
    else:
        kind, linear, receive = "gatv2", module.lin_l, Dense(array(module.lin_r.weight).T, array(module.lin_r.bias))
        weights = Attention(array(module.att)[0], None, receive, array(linear.bias), slope)
    own = None if module.res is None else array(module.res.weight).T
    first = Dense(array(linear.weight).T, array(module.bias), average=1 if module.concat else module.heads)
    return Conv(kind, [first], {"neighbours": _loops(module), "own": own, "attention": weights})  # type: ignore[arg-type]


def _agnn(module: Any, weighted: bool) -> Conv:
    _sums(module)
    return Conv("agnn", fields={"neighbours": _loops(module), "beta": float(module.beta.detach())})


_READERS: dict[str, Callable[[Any, bool], Conv]] = {
    "GCNConv": _gcn,
    "SAGEConv": _sage,
    "GINConv": _gin,
    "GATConv": _gat,
    "GATv2Conv": _gat,
    "AGNNConv": _agnn,
}
