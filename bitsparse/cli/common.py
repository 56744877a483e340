"""What several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitsparse import jit
from bitsparse.errors import BitsparseError, DeviceError

if TYPE_CHECKING:
    from bitsparse.datasets import GraphData

__all__ = ["bit_count", "load_task", "need", "need_gpu", "positive", "save_spy"]


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def bit_count(text: str) -> int:
    """A number of bits that networks run on, 1 to 16, from the command line."""
    bits = positive(text)
    if bits > 16:
        raise argparse.ArgumentTypeError(f"must lie in 1..16, got {text!r}")
    return bits


def need(module: str, option: str, extra: str) -> None:
    """Refuse before the work begins, not after it."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ImportError(f"{option} needs {module}, which is not installed; run: pip install 'bitsparse[{extra}]'")


def save_spy(matrix: Any, name: str, path: str) -> Path:
    """Draw the 8 x 128 tiles of a matrix into a file, by default ``NAME-tiles.png``."""
    from bitsparse import viz

    file = Path(path or f"{name}-tiles.png")
    axes = viz.spy(matrix)
    axes.set_title(f"{name}: {axes.get_title()}", fontsize="medium")
    axes.figure.savefig(file, dpi=150)
    return file


def need_gpu(device: str) -> None:
    """Refuse before the training, and say what is missing."""
    try:
        jit.capability()
        jit.nvrtc_version()
    except BitsparseError as error:
        raise DeviceError(f"device {device!r} is not available: {error}; or use --device cpu") from error


def load_task(command: str, path: str | None, *, generate: bool) -> GraphData:
    """The graph asked for, with features, labels and a split; what had to be made up is said on stderr."""
    from bitsparse import datasets

    data = datasets.digits() if path is None else datasets.read(path)
    if generate:
        data = data.with_generated()
        print(f"bitsparse {command}: features and labels of {data.name} are made up (seed 0)", file=sys.stderr)
    for name, part in (
        ("features (x_indptr, x_indices, x_data, x_shape, or features)", data.x),
        ("labels", data.labels),
    ):
        if part is None:
            raise ValueError(
                f"graph {data.name!r} has no {name}, which training needs; add them to the file, or make some up with --generate"
            )
    if data.num_classes < 2:
        raise ValueError(f"graph {data.name!r} has labels of {data.num_classes} classes, but at least 2 are needed")
    if data.train_mask is None:
        data = data.with_split()
        print(
            f"bitsparse {command}: {data.name} has no masks; split at random, 20 training nodes per class (seed 0)",
            file=sys.stderr,
        )
    for name, mask in (("train_mask", data.train_mask), ("test_mask", data.test_mask)):
        if mask is None or not mask.any():
            raise ValueError(f"graph {data.name!r}: {name} selects no node; select some")
    return data
