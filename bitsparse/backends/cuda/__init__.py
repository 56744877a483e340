"""CuPy arrays and our own kernels. Every module that launches kernels lists in ``VARIANTS`` what is compiled of them ahead of time."""

from __future__ import annotations

import importlib
import pkgutil

from bitsparse.jit import Variant

__all__ = ["variants"]


def variants() -> list[Variant]:
    """Every variant of a release: what the modules of this package declare. Needs neither CuPy nor a GPU."""
    modules = (importlib.import_module(found.name) for found in pkgutil.walk_packages(__path__, f"{__name__}."))
    return [variant for module in modules for variant in getattr(module, "VARIANTS", ())]
