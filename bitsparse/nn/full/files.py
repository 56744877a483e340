"""Conversion of layers to a text and arrays, as files hold them, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bitsparse import interop
from bitsparse._records import as_dict
from bitsparse.nn.dense import Dense, LayerNorm
from bitsparse.nn.layers import Attention, Layer, Neighbours
from bitsparse.ops.finish.epilogue import BatchNorm

_PARTS: dict[str, Any] = {part.__name__: part for part in (Attention, BatchNorm, Dense, Layer, LayerNorm, Neighbours)}


def described(layers: tuple[Layer, ...]) -> tuple[str, dict[str, Any]]:
    """A JSON text that describes layers, and their arrays by their places in it.

    Examples
    --------
    >>> import numpy as np
    >>> text, arrays = described((Layer((Dense(np.ones((3, 2))),), kind="gcn"),))
    >>> list(arrays)
    ['0.updates.0.weight']
    >>> restored(text, arrays)[0].outputs
    2
    """
    arrays: dict[str, Any] = {}

    def plain(part: Any, at: str) -> Any:
        if part is None or isinstance(part, (str, bool, int, float)):
            return part
        if is_dataclass(part):
            named = {field.name: getattr(part, field.name) for field in fields(part)}
        elif isinstance(part, (BatchNorm, LayerNorm)):
            named = as_dict(part)
        elif isinstance(part, tuple):
            return [plain(one, f"{at}{i}.") for i, one in enumerate(part)]
        else:
            arrays[at[:-1]] = interop.as_host(part, "Network.save", at[:-1])
            return {"array": at[:-1]}
        return {"part": type(part).__name__} | {name: plain(value, f"{at}{name}.") for name, value in named.items()}

    return json.dumps(plain(layers, "")), arrays


def restored(text: str, arrays: Mapping[str, Any]) -> tuple[Layer, ...]:
    """The layers that :func:`described` has converted.

    Raises
    ------
    ValueError
        The text is not such a description, or an array is missing.
    """

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return tuple(map(whole, part))
        if not isinstance(part, dict):
            return part
        if "array" in part:
            return arrays[part["array"]]
        named = {name: whole(value) for name, value in part.items() if name != "part"}
        return _PARTS[part["part"]](**named)

    try:
        layers = whole(json.loads(text))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its description of layers is damaged ({type(error).__name__}: {error})") from None
    if not isinstance(layers, tuple) or not all(isinstance(layer, Layer) for layer in layers):
        raise ValueError("its description of layers is damaged: it holds something else")
    return layers
