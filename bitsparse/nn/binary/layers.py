"""BitGNN's high-level functions (section 3.1.2), prepared as functions of features: BMM followed by BSpMM, ADD and CONCAT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._records import replace
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR
from bitsparse.arrays.inside import assembled
from bitsparse.errors import DTypeError
from bitsparse.graph.adjacency import check_square, per_node
from bitsparse.graph.operand import Graph
from bitsparse.interop import converted
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.plan import Activation, Workspace
from bitsparse.nn.binary.variants import Setting
from bitsparse.nn.features import pieces
from bitsparse.ops import BatchNorm, Epilogue, add, plan_bmm, plan_bspmm
from bitsparse.ops.binary.combine import join_bits
from bitsparse.ops.binary.signs import as_signs


class InputNorm(NamedTuple):
    """The input's batch norm, folded into a factor and an addend per feature, which are applied before the sign."""

    scale: NDArray[np.float32]
    shift: NDArray[np.float32]

    @property
    def batch_norm(self) -> BatchNorm:
        """An equal batch norm, which folds to exactly these numbers."""
        return BatchNorm(0.0, 1.0, self.scale, self.shift, 0.0)


#: What is applied before the signs are taken: nothing, the input's batch norm, or "rows", which standardises each row.
Norm = InputNorm | Literal["rows"] | None


def standardized(x: Any) -> Any:
    """Rows of mean 0 and standard deviation 1, ``(x - mean) / (std + 0.0001)``, as inductive Bi-GCN, SAGE and SAINT read features.

    Parameters
    ----------
    x : array (n, features) of float
        A NumPy array, or a CuPy array on a GPU. The deviation is that of a sample: it divides by ``features - 1``.

    Returns
    -------
    array (n, features) of float32

    Examples
    --------
    >>> from bitsparse.nn.binary.layers import standardized
    >>> standardized(np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])).round(3)
    array([[-1.,  0.,  1.],
           [ 0.,  0.,  0.]], dtype=float32)
    """
    space = interop.namespace(x)
    values = converted(x, np.dtype(np.float32))
    if x.shape[1] == 0:
        return values
    centered = values - values.mean(axis=1, keepdims=True, dtype=np.float32)
    square = (centered * centered).sum(axis=1, keepdims=True, dtype=np.float32)
    return centered / (space.sqrt(square / np.float32(max(x.shape[1] - 1, 1))) + np.float32(1e-4))


# -- the graph: 0/1 entries with and without the scales of its normalisation, on the device of the features ---------
class Neighbours(NamedTuple):
    """A pattern without scales, and the same with ``row_scale`` and ``col_scale``. Both share the data prepared for the pattern."""

    plain: Any
    scaled: Any


def neighbours_of(function: str, graph: Any, x: Activation, *, loops: bool) -> Neighbours:
    """The operands that a model aggregates over, on the device of the features `x`, which must have a row for each node.

    Parameters
    ----------
    graph : Graph, FRDC, TCTiledCSR, sparse array or a graph of :mod:`bitsparse.datasets`
        A Graph, an FRDC or a TCTiledCSR is taken as it is, with its scales. Anything else becomes the propagation of a GCN,
        ``D^-1/2 (A + I) D^-1/2``, with `loops`; without, its stored entries are taken as they are.
    """
    kept: dict[str, Neighbours] = graph.prepared if isinstance(graph, Graph) else {}
    if hasattr(graph, "binary_operands"):  # its rows lie on several ranks
        _check.same_device(function, (graph.device, x.device))
        kept[x.device] = Neighbours(*graph.binary_operands())
    if x.device not in kept:
        scaled = _scaled(function, graph, loops)
        check_square(function, scaled.shape)
        scaled = scaled.to_device(x.device)
        kept[x.device] = Neighbours(scaled.with_scales(), scaled)
    per_node(function, "x", (x.rows, x.columns), kept[x.device].plain.shape[0])
    return kept[x.device]


def _scaled(function: str, graph: Any, loops: bool) -> Any:
    """A graph as an FRDC or a TCTiledCSR with the scales of its normalisation."""
    if isinstance(graph, Graph):
        return graph.packed("frdc").with_scales(graph.row_scale, graph.col_scale)
    if isinstance(graph, (FRDC, TCTiledCSR)):
        if isinstance(graph, TCTiledCSR) and graph.data is not None:
            raise DTypeError(
                f"{function}: the graph has a value per edge, but one-bit adjacencies have none; pass FRDC(graph, pattern=True), with "
                f"row_scale and col_scale for weights that factorise"
            )
        return graph
    pattern = getattr(graph, "adjacency", graph)
    if not hasattr(pattern, "tocsr"):
        raise DTypeError(
            f"{function}: graph must be a Graph, FRDC, TCTiledCSR, sparse array or a graph of bitsparse.datasets, got "
            f"{type(graph).__name__}"
        )
    if loops:
        return _scaled(function, Graph(pattern.get() if hasattr(pattern, "get") else pattern), loops)
    return FRDC(pattern, pattern=True)


# -- layers ----------------------------------------------------------------------------------------------------------
def update(linear: BinaryLinear, x: Activation, gives: str, norm: InputNorm | None = None) -> tuple[Any, Activation]:
    """Plan the product ``alpha sign(x) @ (sign(W) m) + b``, and return it with the kind of its result.

    Alpha is the mean magnitude of each row of full-precision features (after `norm`), or the scale of packed features. A result with
    letter B holds the signs of the whole expression.
    """
    epilogue = Epilogue(col_scale=linear.scale, bias=linear.bias, binarize=gives == "B")
    floats: dict[str, Any] = {"dtype": x.dtype, "row_absmean": True} if x.letter == "F" else {}
    if norm is not None and x.letter == "F":
        floats["a_norm"] = norm.batch_norm
    plan = plan_bmm(linear.signs.to_device(x.device), x.rows, f"{x.letter}B{gives}", epilogue=epilogue, **floats)
    return plan, Activation(gives, x.rows, linear.shape[1], x.device)


def aggregate(
    adjacency: Any, x: Activation, gives: str, *, reduce: Any = "sum", add: bool = False
) -> tuple[Any, Activation]:
    """Plan the sum or mean over neighbours as ``run(x, add, out)``, and return it with the kind of its result.

    Counts without a float operation after them would be int32, so an epilogue without operations asks for float32.
    """
    plain = x.letter == "F" and gives == "F"
    planned = getattr(adjacency, "plan_bspmm", None) or partial(plan_bspmm, adjacency)
    plan = planned(
        x.columns,
        f"{x.letter}B{gives}",
        reduce=reduce,
        epilogue=None if plain else Epilogue(binarize=gives == "B"),
        add=add,
        dtype=None if x.letter == "B" else np.float32,
    )
    return plan, Activation(gives, adjacency.shape[0], x.columns, x.device)


#: All steps of a network, from its input to its output.
Steps = Callable[[Any, Any], None]


class Layer(NamedTuple):
    """A layer, which is called as ``run(x, out)``, and the kind of its result."""

    run: Steps
    gives: Activation


def prepared(
    weights: Sequence[BinaryLinear],
    setting: Setting,
    neighbours: Neighbours,
    x: Activation,
    room: Workspace,
    norm: Norm = None,
    *,
    reduce: str = "sum",
) -> Layer:
    """Prepare a layer with one or two weight matrices.

    One matrix makes BMM+BSpMM: its product, in bits or floats, is aggregated. Two make BMM+BSpMM+ADD: the first one multiplies a node's own
    features, and that product is added to the aggregate. In full precision BSpMM itself adds it, before it takes the sign if the result is
    one bit. ADD.BBF and ADD.BBB add signs after BSpMM.
    """
    if isinstance(norm, str):
        if x.letter == "F":
            whole = prepared(weights, setting, neighbours, replace(x, dtype=np.float32), room, reduce=reduce)
            return Layer(lambda x, out: whole.run(standardized(x), out), whole.gives)
        norm = None
    *own, near = weights
    room.recordable &= getattr(neighbours.plain, "recordable", True)
    product, message = update(near, x, setting.message, norm)
    between = room.reserve("messages", message)
    if not own:
        total, gives = aggregate(neighbours.scaled if setting.scaled else neighbours.plain, message, setting.gives)
        room.products += [product, total]

        def run(x: Any, out: Any) -> None:
            messages = between()
            product(x, out=messages)
            total(messages, out=out)

        return Layer(run, gives)
    fused = setting.aggregate == "F"
    beside, mine = update(own[0], x, setting.aggregate, norm)
    gives = Activation(setting.gives, x.rows, mine.columns, x.device)
    total, _ = aggregate(neighbours.plain, message, setting.gives if fused else "B", reduce=reduce, add=fused)
    kept = room.reserve("own", mine)
    signs = None if fused else room.reserve("signs", mine)
    room.products += [product, beside, total]

    def run_and_add(x: Any, out: Any) -> None:
        messages, own_part = between(), kept()
        product(x, out=messages)
        beside(x, out=own_part)
        if signs is None:
            total(messages, add=own_part, out=out)
            return
        aggregated = signs()
        total(messages, out=aggregated)
        add_signs(aggregated, own_part, out)

    return Layer(run_and_add, gives)


def add_signs(a: BitTensor, b: BitTensor, out: Any) -> None:
    """Add signs into `out`: ADD.BBB, which is the OR of the bits, if it is a BitTensor, else ADD.BBF."""
    if isinstance(out, BitTensor):
        space = interop.namespace(out.words)
        space.bitwise_or(a.words, b.words, out=out.words)
        return
    out[...] = interop.as_array(add(a, b, "BBF"), "add")[0]


def in_turn(layers: Sequence[Layer], room: Workspace) -> Steps:
    """Chain layers. A layer's input is no longer needed when its result is written, so one buffer holds all results between layers."""
    between = [room.reserve("results", each.gives) for each in layers[:-1]]

    def run(x: Any, out: Any) -> None:
        for layer, place in zip(layers[:-1], between, strict=True):
            result = place()
            layer.run(x, result)
            x = result
        layers[-1].run(x, out)

    return run


def joined(layers: Sequence[Layer], head: Any, room: Workspace) -> Steps:
    """Chain layers, put the results of all of them side by side (CONCAT), and apply a head, which is binary or in full precision."""
    places = [room.reserve(f"result {i}", each.gives) for i, each in enumerate(layers)]
    first = layers[0].gives
    columns = sum(each.gives.columns for each in layers)
    together = Activation(first.letter, first.rows, columns, first.device)
    whole = room.reserve("concatenated", together)
    finish = _headed(head, together, room)

    def run(x: Any, out: Any) -> None:
        results = []
        for layer, place in zip(layers, places, strict=True):
            results.append(place())
            layer.run(x, results[-1])
            x = results[-1]
        side_by_side = whole()
        concat_into(side_by_side, results)
        finish(side_by_side, out)

    return run


def _headed(head: Any, x: Activation, room: Workspace) -> Steps:
    if isinstance(head, BinaryLinear):
        product, _ = update(head, x, "F")
        room.products.append(product)
        return lambda x, out: product(x, out=out)
    weights, bias = (interop.move(part, x.device) for part in head)
    room.recordable = False

    def dense(x: Any, out: Any) -> None:
        interop.namespace(out).matmul(x, weights, out=out)
        out += bias

    return dense


def concat_into(out: Any, parts: Sequence[Any]) -> None:
    """Write arrays, or bits packed along the features, side by side into `out` (CONCAT)."""
    if isinstance(out, BitTensor):
        out.words.fill(0)
        join_bits(out.words, [(part.words, part.shape[1]) for part in parts])
        return
    at = 0
    for part in parts:
        out[:, at : at + part.shape[1]] = part
        at += part.shape[1]


def packed(function: str, x: Any, norm: Norm) -> BitTensor:
    """Pack the signs of normalised features, with each row's mean magnitude as its scale, in pieces of rows."""
    array, family = interop.as_array(x, function, "x")
    space: Any = interop.namespace(array)
    rows, columns = array.shape
    words, scales = [], []
    with interop.working_on(interop.device_of(array), family):
        for piece in pieces(rows, columns):
            part = standardized(array[piece]) if norm == "rows" else array[piece]
            bits, means = as_signs(function, "x", part, -1, norm if isinstance(norm, InputNorm) else None, absmean=True)
            words.append(bits.words)
            scales.append(means)
        joined = space.concatenate(words), (rows, columns), 1, -1, "planes", "bipolar", family
        return assembled(BitTensor, *joined, space.concatenate(scales)[:, None])
