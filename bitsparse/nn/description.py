"""Conversion of networks and their parts to a text and arrays, as files hold them, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from bitsparse import interop
from bitsparse._check import brief
from bitsparse._records import as_dict
from bitsparse.arrays import BitTensor


def described(value: Any, function: str) -> tuple[str, dict[str, Any]]:
    """A JSON text that describes a value, and its arrays by their places in it.

    The value is made of dataclasses, named tuples, tuples, arrays, bits, numbers and texts. A dictionary stands for a call: ``part`` is the
    name of a class, and the other items are its arguments.

    Examples
    --------
    >>> from bitsparse.nn import Dense
    >>> text, arrays = described((Dense(np.ones((3, 2))),), "example")
    >>> list(arrays)
    ['0.weight']
    >>> restored(text, arrays, (Dense,))[0].outputs
    2
    """
    arrays: dict[str, Any] = {}

    def plain(part: Any, at: str) -> Any:
        kind = type(part).__name__
        if part is None or isinstance(part, (str, bool, int, float)):
            return part
        if isinstance(part, BitTensor):
            form = {"bits": part.bits, "encoding": part.encoding, "axis": part.axis, "layout": part.layout}
            named = {"words": part.to_device("cpu").words, "shape": part.shape} | form
        elif is_dataclass(part):
            named = {field.name: getattr(part, field.name) for field in fields(part)}
        elif isinstance(part, dict):
            kind, named = part["part"], {name: value for name, value in part.items() if name != "part"}
        elif hasattr(part, "_fields"):
            named = as_dict(part)
        elif isinstance(part, tuple):
            return [plain(one, f"{at}{i}.") for i, one in enumerate(part)]
        else:
            arrays[at[:-1]] = interop.as_host(part, function, at[:-1])
            return {"array": at[:-1]}
        return {"part": kind} | {name: plain(value, f"{at}{name}.") for name, value in named.items()}

    return json.dumps(plain(value, "")), arrays


def restored(text: str, arrays: Any, kinds: Iterable[Any]) -> Any:
    """The value that :func:`described` has converted; only the given classes and bits are made.

    Raises
    ------
    ValueError, DTypeError
        The text is not such a description, an array is missing, or a class refuses its arguments.
    """
    parts: dict[str, Any] = {kind.__name__: kind for kind in kinds} | {"BitTensor": BitTensor.from_words}

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return tuple(map(whole, part))
        if not isinstance(part, dict):
            return part
        if "array" in part:
            return arrays[part["array"]]
        named = {name: whole(value) for name, value in part.items() if name != "part"}
        return parts[part["part"]](**named)

    try:
        return whole(json.loads(text))
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"its description is damaged ({type(error).__name__}: {brief(error)})") from None
