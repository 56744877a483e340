"""Binary models read from ``.npz`` files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse._archive import Archive, opened, reading
from bitsparse._check import brief, shown
from bitsparse.arrays import BitTensor
from bitsparse.nn.binary.archive import VERSION
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.models import BinaryGCN, BinarySAGE, BinarySAINT
from bitsparse.nn.binary.network import BinaryModel
from bitsparse.nn.binary.products import InputNorm, Norm
from bitsparse.nn.binary.variants import Setting

__all__ = ["load_binary"]

_MODELS: dict[str, type[BinaryModel]] = {each.__name__: each for each in (BinaryGCN, BinarySAGE, BinarySAINT)}


def load_binary(path: str | Path) -> Any:
    """Read a binary model that ``model.save(path)`` wrote.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    BinaryGCN, BinarySAGE or BinarySAINT

    Raises
    ------
    FileFormatError
        The file is damaged or holds something else.

    Examples
    --------
    >>> import tempfile
    >>> from bitsparse import nn
    >>> model = nn.BinaryGCN([nn.BinaryLinear.from_weights(np.ones((2, 3)))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder + "/model.npz")
    ...     nn.load_binary(folder + "/model.npz")
    <BinaryGCN 2 -> 3, FBF+FBF scaled>
    """
    what = f"{path} is not a binary model that this version wrote"
    with reading("load_binary", what), opened(path) as archive:
        about = _about(archive)
        linears = [_linear(archive, i, *shape) for i, shape in enumerate(about["shapes"])]
        settings = [Setting(*each) for each in about["settings"]]
        norm: Norm = None
        if about["rows"]:
            norm = "rows"
        elif "norm_scale" in archive:
            norm = InputNorm(
                *(archive.read(f"norm_{part}", np.float32, (linears[0].shape[0],)) for part in ("scale", "shift"))
            )
        model: Any = _MODELS[about["model"]]
        size = model.kind.weights
        layers: list[Any] = linears[: size * about["layers"]]
        if size > 1:
            layers = list(zip(layers[::2], layers[1::2], strict=True))
        head: Any = ()
        if model is BinarySAINT:
            head = (linears[-1] if len(linears) % 2 else (archive["head_weights"], archive["head_bias"]),)
        return model(layers, *head, settings, input_norm=norm)


#: What `about` holds, and of which type; models of before rows could be normalised say nothing of them.
_ABOUT = {"version": int, "model": str, "settings": list, "shapes": list, "layers": int, "rows": bool}


def _about(archive: Archive) -> dict[str, Any]:
    """What a model is made from besides arrays, each part of it checked."""
    try:
        about = json.loads(archive.text("about"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"about is not JSON ({brief(error)})") from None
    if isinstance(about, dict):
        about.setdefault("rows", False)
    if not isinstance(about, dict) or any(type(about.get(name)) is not kind for name, kind in _ABOUT.items()):
        raise ValueError(f"about must hold {', '.join(_ABOUT)}, got {shown(about)}")
    if about["version"] != VERSION or about["model"] not in _MODELS:
        raise ValueError(f"version {shown(about['version'])}, model {shown(about['model'])}")
    for each in about["settings"]:
        if not (isinstance(each, list) and [type(part) for part in each] == [str, bool]):
            raise ValueError(f"a setting is {shown(each)}")
    for each in about["shapes"]:
        if not (isinstance(each, list) and len(each) == 2 and all(type(size) is int and size > 0 for size in each)):
            raise ValueError(f"a linear layer has the shape {shown(each)}")
    count = len(about["shapes"])
    heads = count - _MODELS[about["model"]].kind.weights * about["layers"]
    if about["layers"] < 1 or heads not in ((0, 1) if about["model"] == "BinarySAINT" else (0,)):
        raise ValueError(f"{shown(about['layers'])} layers of {count} linear ones")
    return about


def _linear(archive: Archive, i: int, inputs: int, outputs: int) -> BinaryLinear:
    packed = archive.read(f"signs_{i}", np.uint8, (-(-inputs * outputs // 8),))
    ones = np.unpackbits(packed, count=inputs * outputs).reshape(inputs, outputs)
    signs = BitTensor(ones.astype(np.int8) * 2 - 1, 1, encoding="bipolar", axis=-2)
    return BinaryLinear(signs, archive.find(f"scale_{i}"), archive.find(f"bias_{i}"))
