"""BitGNN's high-level functions (section 3.1.2): BMM and BSpMM behind each other, ADD and CONCAT, prepared as functions of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.nn.binary.graph import Neighbours
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.plan import Workspace
from bitsparse.nn.binary.products import Activation, InputNorm, Norm, aggregate, standardized, update
from bitsparse.nn.binary.variants import Setting
from bitsparse.ops import add
from bitsparse.ops.binary.signs import as_signs

__all__ = ["Layer", "in_turn", "joined", "packed", "prepared"]

#: All steps of a network, from its input to its output.
Steps = Callable[[Any, Any], None]


class Layer(NamedTuple):
    """A layer that runs as ``run(x, out)``, and the kind of what it gives."""

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
    """A layer of one weight or of two.

    One weight is BMM+BSpMM: its product, bits or floats, is aggregated. With weights for a node's own features in front it is
    BMM+BSpMM+ADD: their product is added to the aggregate. In full precision that happens inside of BSpMM, in front of its sign if the
    result is one bit. ADD.BBF and ADD.BBB are additions of signs and follow it.
    """
    *own, near = weights
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
    """ADD.BBB, which is the or of the bits, or ADD.BBF."""
    if isinstance(out, BitTensor):
        space = interop.namespace(out.words)
        space.bitwise_or(a.words, b.words, out=out.words)
        return
    out[...] = interop.as_array(add(a, b, "BBF"), "add")[0]


def in_turn(layers: Sequence[Layer], room: Workspace) -> Steps:
    """Layers one after another. A layer's input is no longer needed when its result is written, so that one buffer holds them all."""
    between = [room.reserve("results", each.gives) for each in layers[:-1]]

    def run(x: Any, out: Any) -> None:
        for layer, place in zip(layers[:-1], between, strict=True):
            result = place()
            layer.run(x, result)
            x = result
        layers[-1].run(x, out)

    return run


def joined(layers: Sequence[Layer], head: Any, room: Workspace) -> Steps:
    """Layers one after another, their results side by side (CONCAT) through a head, binary or in full precision."""
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
    """CONCAT along the features, written in place: arrays, or bits packed along the features."""
    at = 0
    if not isinstance(out, BitTensor):
        for part in parts:
            out[:, at : at + part.shape[1]] = part
            at += part.shape[1]
        return
    words = out.words
    words.fill(0)
    for part in parts:
        used, shift = -(-part.shape[1] // 32), at % 32
        word, source = at // 32, part.words[..., : -(-part.shape[1] // 32)]
        words[..., word : word + used] |= source << np.uint32(shift)
        spill = min(used, words.shape[-1] - word - 1)
        if shift and spill > 0:
            words[..., word + 1 : word + 1 + spill] |= source[..., :spill] >> np.uint32(32 - shift)
        at += part.shape[1]


def packed(function: str, x: Any, norm: Norm) -> BitTensor:
    """Signs of features behind their norm, with each row's mean magnitude as scale; a few rows at a time."""
    array, family = interop.as_array(x, function, "x")
    space: Any = interop.namespace(array)
    rows, columns = array.shape
    step = max(1, (1 << 24) // max(4 * columns, 1))
    words, scales = [], []
    with interop.working_on(interop.device_of(array), family):
        for start in range(0, max(rows, 1), step):
            part = array[start : start + step]
            part = standardized(part) if norm == "rows" else part
            bits, means = as_signs(function, "x", part, -1, norm if isinstance(norm, InputNorm) else None, absmean=True)
            words.append(bits.words)
            scales.append(means)
        return assembled(
            BitTensor,
            space.concatenate(words),
            (rows, columns),
            1,
            -1,
            "planes",
            "bipolar",
            family,
            space.concatenate(scales)[:, None],
        )
