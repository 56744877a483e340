"""What several commands share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["need", "positive", "progress", "save_spy"]


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


@contextlib.contextmanager
def progress(total: int, unit: str) -> Iterator[Callable[[], object]]:
    """A bar on stderr: only on a terminal, only past two seconds, only if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield lambda: None
        return
    with tqdm(total=total, disable=None, delay=2, leave=False, unit=unit, file=sys.stderr) as bar:
        yield bar.update


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
