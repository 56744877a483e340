"""Conversion of low-bit networks to a text and arrays, as files hold them, and back, with checks that all parts agree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bitsparse import _check
from bitsparse._archive import Archive
from bitsparse._check import brief, shown
from bitsparse.arrays import BitTensor
from bitsparse.graph.operand import NORMALISATIONS
from bitsparse.nn.dense import FUSED
from bitsparse.nn.lowbit.steps import Aggregate, Chain, Grid, Update
from bitsparse.ops.steps import GROUP_BITS

#: The attributes of a network that its file describes, beside its steps.
ABOUT = ("kind", "normalisation", "self_loops", "bits", "widths")
_TEXT = "network"
_LONGEST_TEXT, _MOST_BITS = 1 << 20, 16
_KINDS = ("gcn", "sage", "gin")


def described(about: dict[str, Any], grid: Grid | None, steps: Sequence[Update | Aggregate]) -> dict[str, Any]:
    """The arrays of a network's file by name; one of them is a JSON text about the others."""
    arrays: dict[str, Any] = {} if grid is None else {"input.step": grid.step, "input.low": grid.low}
    told = []
    for number, step in enumerate(steps):
        chain, at = step.chain, f"{number}."
        vectors: dict[str, Any] = {"col_scale": chain.col_scale, "bias": chain.bias}
        if chain.grid is not None:
            vectors |= {"grid.step": chain.grid.step, "grid.low": chain.grid.low}
        one: dict[str, Any] = {"activation": chain.activation, "gives": chain.bits}
        if isinstance(step, Update):
            one |= {"weights": [*step.weights.shape, step.weights.bits], "scaled": step.scaled}
            vectors |= {"words": step.weights.words, "constant": step.constant}
        else:
            one |= {"sums": [step.columns, step.bits], "own": step.own}
            vectors |= {"offset": step.offset}
        told.append(one)
        arrays |= {at + name: vector for name, vector in vectors.items() if vector is not None}
    return arrays | {_TEXT: np.array(json.dumps(about | {"steps": told}))}


def restored(archive: Archive) -> dict[str, Any]:
    """The attributes of the network in a file.

    Raises
    ------
    ValueError, DTypeError
        A part is missing, or parts contradict each other.
    """
    try:
        told = json.loads(archive.text(_TEXT, _LONGEST_TEXT))
        about = {name: told[name] for name in ABOUT}
        steps = list(told["steps"])
        bits, widths = ([int(number) for number in about[name]] for name in ("bits", "widths"))
        _check.choice("load_lowbit", "kind", about["kind"], _KINDS)
        _check.choice("load_lowbit", "normalisation", about["normalisation"], NORMALISATIONS)
        if not bits or len(widths) != len(bits) + 1 or min(bits) < 1 or max(bits) > _MOST_BITS or min(widths) < 0:
            raise ValueError(f"bits are {shown(bits)} and widths {shown(widths)}")
        grid = _grid(archive, "input.", widths[0])
        made = tuple(_steps(archive, steps, widths, bits[0]))
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise ValueError(f"its description is damaged ({type(error).__name__}: {brief(error)})") from None
    about |= {"bits": tuple(bits), "widths": tuple(widths), "self_loops": bool(about["self_loops"])}
    return about | {"input_grid": grid, "steps": made}


def _steps(archive: Archive, told: list[dict[str, Any]], widths: list[int], bits: int) -> Iterator[Update | Aggregate]:
    """Read the steps, and check that each takes the columns and bits that the one before gives."""
    columns = widths[0]
    for number, one in enumerate(told):
        at, gives = f"{number}.", one["gives"]
        if (gives is None) != (number + 1 == len(told)) or (gives is not None and not 1 <= int(gives) <= _MOST_BITS):
            raise ValueError(f"step {number} gives {shown(gives)} bits")
        if one["activation"] not in FUSED:
            raise ValueError(f"step {number} has the activation {shown(one['activation'])}")
        rows, outputs, width = one["weights"] if "weights" in one else (one["sums"][0], *one["sums"])
        if rows != columns:
            raise ValueError(f"step {number} reads {shown(rows)} columns, but {columns} are there")
        chain = Chain(
            _vector(archive, at + "col_scale", outputs),
            _vector(archive, at + "bias", outputs),
            one["activation"],
            gives,
            _grid(archive, at + "grid.", outputs),
        )
        if "weights" in one:
            words = archive.read(at + "words", np.uint32)
            weights = BitTensor.from_words(words, (rows, outputs), width, encoding="signed", axis=-2)
            constant = _vector(archive, at + "constant", outputs) if at + "constant" in archive else None
            yield Update(weights, chain, bool(one["scaled"]), constant)
            columns = outputs
        else:
            if width != bits:
                raise ValueError(f"step {number} sums codes of {shown(width)} bits, but they have {bits}")
            offset = _vector(archive, at + "offset", outputs) if at + "offset" in archive else None
            own = bool(one["own"])
            if own and gives != bits:
                raise ValueError(f"step {number} puts sums of {gives} bits beside codes of {bits}")
            yield Aggregate(columns, bits, chain, offset, own)
            columns = columns + (-columns % GROUP_BITS) + columns if own else columns
        bits = bits if gives is None else gives
    if not told or columns != widths[-1]:
        raise ValueError(f"{len(told)} steps give {columns} columns, but the logits have {widths[-1]}")


def _vector(archive: Archive, name: str, size: int) -> Any:
    vector = archive.read(name, np.float32, (size,))
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return vector


def _grid(archive: Archive, at: str, size: int) -> Grid | None:
    if at + "step" not in archive:
        return None
    grid = Grid(_vector(archive, at + "step", size), _vector(archive, at + "low", size))
    if not (grid.step > 0).all():
        raise ValueError(f"{at}step holds {grid.step.min()}, but steps are above 0")
    return grid
