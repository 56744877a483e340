"""What several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["need", "save_spy"]


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
