"""Check on import that the compiled part is installed, and explain what is wrong if it is not."""

from __future__ import annotations

import importlib
from pathlib import Path

__all__: list[str] = []

try:
    importlib.import_module("bitsparse._ext.bits")
except ModuleNotFoundError as error:
    if error.name not in ("bitsparse._ext", "bitsparse._ext.bits"):
        raise
    raise ImportError(
        f"bitsparse: the compiled part is missing. If {Path(__file__).parent} is the source tree, it shadows the installed package: run "
        f"from another folder, or use the `pytest` and `bitsparse` commands. Otherwise install it with `pip install .`"
    ) from None
