"""The GPU backend: CuPy arrays and our own kernels. Modules list the kernel variants compiled ahead of time in ``VARIANTS``."""

from __future__ import annotations

import importlib
import pkgutil

from bitsparse.jit import Variant

__all__ = ["variants"]


def variants() -> list[Variant]:
    """All variants of a release, as the modules of this package declare them. This needs neither CuPy nor a GPU."""
    modules = (importlib.import_module(found.name) for found in pkgutil.walk_packages(__path__, f"{__name__}."))
    return [variant for module in modules for variant in getattr(module, "VARIANTS", ())]
