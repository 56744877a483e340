"""The order of layers, and which batch norm follows which layer, as read from the names in a state dict."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bitsparse._check import shown

_DIGITS = re.compile(r"\d+")


def in_order(function: str, places: Sequence[str], what: str = "layers") -> list[str]:
    """Sort names (`places`) by the one number in which they differ; refuse them if they differ otherwise.

    Examples
    --------
    >>> in_order("load_state_dict", ["convs.10", "convs.9", "convs.0"])
    ['convs.0', 'convs.9', 'convs.10']
    >>> in_order("load_state_dict", ["conv_last", "convs.0"])
    Traceback (most recent call last):
    ValueError: load_state_dict: the names of the layers, 'conv_last', 'convs.0', do not differ in exactly one number, ...
    """
    shapes = {_DIGITS.sub("#", place) for place in places}
    differ = [] if len(shapes) > 1 else _differing(places)
    if len(places) > 1 and (len(differ) != 1 or len({_numbers(place)[differ[0]] for place in places}) != len(places)):
        raise ValueError(
            f"{function}: the names of the {what}, {', '.join(map(repr, places[:4]))}, do not differ in exactly one number, so their "
            "order is unknown; pass the model itself to nn.from_pyg, or rename them"
        )
    return sorted(places, key=_numbers)


def norms_behind(function: str, layers: Sequence[str], norms: Sequence[str]) -> dict[str, str]:
    """The norm that follows each layer that has one.

    If layers and norms are numbered separately, a norm belongs to the layer with the same number; if all are steps of one sequence, it
    belongs to the layer before it.

    Examples
    --------
    >>> norms_behind("load_state_dict", ["convs.0", "convs.1"], ["norms.0.module"])
    {'convs.0': 'norms.0.module'}
    >>> norms_behind("load_state_dict", ["nn.0", "nn.3"], ["nn.1"])
    {'nn.0': 'nn.1'}
    >>> norms_behind("load_state_dict", ["blocks.4.conv1", "blocks.5.conv1"], ["blocks.5.norm1", "blocks.4.norm1"])
    {'blocks.4.conv1': 'blocks.4.norm1', 'blocks.5.conv1': 'blocks.5.norm1'}
    >>> norms_behind("load_state_dict", ["blocks.0.conv1", "blocks.1.conv1"], ["blocks.0.norm1"])
    {'blocks.0.conv1': 'blocks.0.norm1'}
    """
    if len(norms) > len(layers):
        raise ValueError(
            f"{function}: there are {len(norms)} batch norms outside of {len(layers)} layers; remove those that do not belong to a layer"
        )
    ordered = in_order(function, norms, "batch norms")
    if len(layers) == len(norms) == 1:
        return {layers[0]: norms[0]}
    together = {_DIGITS.sub("#", place) for place in (*layers, *norms)}
    found: dict[str, str] = {}
    for norm in ordered:
        if len(together) == 1:
            before = [layer for layer in layers if _numbers(layer) < _numbers(norm)]
            layer = before[-1] if before else None
        else:
            number = _count(norms if len(norms) > 1 else layers, norm)
            layer = next((one for one in layers if number is not None and number == _count(layers, one)), None)
        if layer is None or layer in found:
            raise ValueError(
                f"{function}: the batch norm {shown(norm)} cannot be assigned to one of the layers {', '.join(map(repr, layers[:4]))} by "
                f"its number; pass the model itself to nn.from_pyg, or rename it"
            )
        found[layer] = norm
    return found


def _numbers(place: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in _DIGITS.findall(place))


def _differing(places: Sequence[str]) -> list[int]:
    """The positions of the numbers that differ among names that are equal otherwise."""
    columns = zip(*map(_numbers, places), strict=True)
    return [i for i, column in enumerate(columns) if len(set(column)) > 1]


def _count(places: Sequence[str], place: str) -> int | None:
    """The number by which a name is ordered: the one that differs among `places`, or the last one; None if it has no number."""
    numbers, at = _numbers(place), next(iter(_differing(places)), -1)
    return numbers[min(at, len(numbers) - 1)] if numbers else None
