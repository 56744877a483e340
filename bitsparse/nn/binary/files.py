"""Binary models as ``.npz`` files: packed signs, scales, biases, input norm and settings, a few ten kilobytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse._archive import Archive, opened, reading
from bitsparse._check import brief, shown
from bitsparse._files import replacing
from bitsparse.arrays import BitTensor
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.network import BinaryGCN, BinaryModel
from bitsparse.nn.binary.own import BinarySAGE, BinarySAINT
from bitsparse.nn.binary.products import InputNorm, Norm
from bitsparse.nn.binary.variants import Setting

__all__ = ["load_binary", "parts_of", "save"]

_KINDS = {each.__name__: each for each in (BinaryGCN, BinarySAGE, BinarySAINT)}
#: Of the file's layout, should it ever change.
_VERSION = 1


def parts_of(model: BinaryModel) -> dict[str, Any]:
    """Every array of a model by name, on the CPU, and what else it is made from as JSON."""
    linears = dict(enumerate(model.parts))
    head = getattr(model, "head", None)
    arrays: dict[str, Any] = {}
    if isinstance(head, BinaryLinear):
        linears[len(linears)] = head
    elif head is not None:
        arrays["head_weights"], arrays["head_bias"] = head
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
        "version": _VERSION,
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
        if about["model"] == "BinaryGCN":
            return BinaryGCN(linears, settings, input_norm=norm)
        pairs = list(zip(linears[: 2 * about["layers"] : 2], linears[1 : 2 * about["layers"] : 2], strict=True))
        if about["model"] == "BinarySAGE":
            return BinarySAGE(pairs, settings, input_norm=norm)
        head: Any = linears[-1] if len(linears) % 2 else (archive["head_weights"], archive["head_bias"])
        return BinarySAINT(pairs, head, settings, input_norm=norm)


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
    if about["version"] != _VERSION or about["model"] not in _KINDS:
        raise ValueError(f"version {shown(about['version'])}, model {shown(about['model'])}")
    for each in about["settings"]:
        if not (isinstance(each, list) and [type(part) for part in each] == [str, bool]):
            raise ValueError(f"a setting is {shown(each)}")
    for each in about["shapes"]:
        if not (isinstance(each, list) and len(each) == 2 and all(type(size) is int and size > 0 for size in each)):
            raise ValueError(f"a linear layer has the shape {shown(each)}")
    count, each_layer = len(about["shapes"]), 1 if about["model"] == "BinaryGCN" else 2
    heads = count - each_layer * about["layers"]
    if about["layers"] < 1 or heads not in ((0, 1) if about["model"] == "BinarySAINT" else (0,)):
        raise ValueError(f"{shown(about['layers'])} layers of {count} linear ones")
    return about


def _linear(archive: Archive, i: int, inputs: int, outputs: int) -> BinaryLinear:
    packed = archive.read(f"signs_{i}", np.uint8, (-(-inputs * outputs // 8),))
    ones = np.unpackbits(packed, count=inputs * outputs).reshape(inputs, outputs)
    signs = BitTensor(ones.astype(np.int8) * 2 - 1, 1, encoding="bipolar", axis=-2)
    return BinaryLinear(signs, archive.find(f"scale_{i}"), archive.find(f"bias_{i}"))
