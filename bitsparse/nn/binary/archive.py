"""What a binary model consists of, as the arrays of an ``.npz`` file: packed signs, scales, biases, input norm and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse._files import replacing
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.products import InputNorm

if TYPE_CHECKING:
    from bitsparse.nn.binary.network import BinaryModel

__all__ = ["VERSION", "parts_of", "save"]

#: Of the file's layout, should it ever change.
VERSION = 1


def parts_of(model: BinaryModel) -> dict[str, Any]:
    """Every array of a model by name, on the CPU, and what else it is made from as JSON."""
    linears = dict(enumerate(model.parts))
    arrays: dict[str, Any] = {}
    if isinstance(model.head, BinaryLinear):
        linears[len(linears)] = model.head
    elif model.head is not None:
        arrays["head_weights"], arrays["head_bias"] = model.head
    shapes = []
    for i, linear in linears.items():
        signs: Any = linear.signs.to_device("cpu")
        arrays[f"signs_{i}"] = np.packbits(signs.toarray() > 0, axis=None)
        shapes.append(linear.shape)
        for name in ("scale", "bias"):
            part = getattr(linear, name)
            if part is not None:
                arrays[f"{name}_{i}"] = part
    if isinstance(model.input_norm, InputNorm):
        arrays["norm_scale"], arrays["norm_shift"] = model.input_norm
    about = {
        "version": VERSION,
        "model": type(model).__name__,
        "settings": [list(each) for each in model.settings],
        "shapes": shapes,
        "layers": model.depth,
        "rows": model.input_norm == "rows",
    }
    return {"about": np.array(json.dumps(about)), **arrays}


def save(model: BinaryModel, path: str | Path) -> None:
    """Write a model; see :meth:`BinaryModel.save`."""
    with replacing(path) as file:
        np.savez_compressed(file, **parts_of(model))
