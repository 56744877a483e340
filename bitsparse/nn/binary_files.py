"""Binary models as ``.npz`` files: packed signs, scales, biases, input norm and settings, a few ten kilobytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse.arrays import BitTensor
from bitsparse.nn.binary import BinaryGCN, BinaryModel
from bitsparse.nn.binary_linear import BinaryLinear
from bitsparse.nn.binary_own import BinarySAGE, BinarySAINT
from bitsparse.nn.binary_products import InputNorm, Norm
from bitsparse.nn.binary_variants import Setting

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
    with Path(path).open("wb") as file:
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
    ValueError
        The file holds something else.

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
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    try:
        about = json.loads(str(arrays["about"]))
        if about["version"] != _VERSION or about["model"] not in _KINDS:
            raise ValueError(f"version {about['version']}, model {about['model']}")
        linears = [_linear(arrays, i, *shape) for i, shape in enumerate(about["shapes"])]
        settings = [Setting(*each) for each in about["settings"]]
        layers = int(about["layers"])
        norm: Norm = InputNorm(arrays["norm_scale"], arrays["norm_shift"]) if "norm_scale" in arrays else None
        norm = "rows" if about.get("rows") else norm
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"load_binary: {path} is not a binary model that this version wrote ({error})") from error
    if about["model"] == "BinaryGCN":
        return BinaryGCN(linears, settings, input_norm=norm)
    pairs = [(linears[2 * i], linears[2 * i + 1]) for i in range(layers)]
    if about["model"] == "BinarySAGE":
        return BinarySAGE(pairs, settings, input_norm=norm)
    head = linears[2 * layers] if len(linears) > 2 * layers else (arrays["head_weights"], arrays["head_bias"])
    return BinarySAINT(pairs, head, settings, input_norm=norm)


def _linear(arrays: dict[str, Any], i: int, inputs: int, outputs: int) -> BinaryLinear:
    ones = np.unpackbits(arrays[f"signs_{i}"], count=inputs * outputs).reshape(inputs, outputs)
    signs = BitTensor(ones.astype(np.int8) * 2 - 1, 1, encoding="bipolar", axis=-2)
    return BinaryLinear(signs, arrays.get(f"scale_{i}"), arrays.get(f"bias_{i}"))
