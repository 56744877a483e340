"""A fake CuPy over the CPU emulator: it has the names of CuPy, and refuses what CuPy refuses."""

from __future__ import annotations

import os as _os
from pathlib import Path as _Path
from typing import Any as _Any

import numpy as _np
from emulator import builds as _builds
from emulator import libcuda as _libcuda

_is_emulated = True
_libcuda.install()
_os.environ["BITSPARSE_CACHE_DIR"] = str(_builds.kernel_cache())  # keeps real cubins apart
__version__ = "14.2.0"

from cupy import _array as _arrays  # noqa: E402
from cupy import cuda, random  # noqa: E402, F401
from cupy._array import ndarray  # noqa: E402
from cupy._creation import *  # noqa: E402, F403
from cupy._modules import *  # noqa: E402, F403

_NAMES = frozenset((_Path(__file__).parent / "names.txt").read_text().split())
#: Names that are taken from NumPy as they are, because they return no arrays.
_PLAIN = frozenset((_Path(__file__).parent / "plain.txt").read_text().split())


def is_available() -> bool:
    return True


def get_default_memory_pool() -> _Any:
    return cuda.MemoryPool()


get_default_pinned_memory_pool = get_default_memory_pool


def show_config(*args: _Any, **kwargs: _Any) -> None:
    print("emulated CuPy")


class _Function:
    """A NumPy function on device arrays."""

    def __init__(self, name: str, f: _Any) -> None:
        self.__name__, self._f = name, f
        if isinstance(f, _np.ufunc):
            self.nin, self.nout = f.nin, f.nout

    def __call__(self, *args: _Any, **kwargs: _Any) -> _Any:
        name, f = self.__name__, self._f
        out = kwargs.pop("out", None)
        if isinstance(f, _np.ufunc) and len(args) > f.nin:
            out, args = args[f.nin] if f.nout == 1 else args[f.nin :], args[: f.nin]
        if isinstance(f, _np.ufunc) and any(isinstance(a, (list, tuple)) for a in args):
            raise TypeError(f"Unsupported type {next(type(a) for a in args if isinstance(a, (list, tuple)))}")
        values, named = _arrays.bare(args, name), _arrays.bare(kwargs, name)
        if out is not None:
            outs = out if isinstance(out, tuple) else (out,)
            if any(not isinstance(o, ndarray) for o in outs):
                raise TypeError(f"cupy.{name}: out must be a cupy.ndarray")
            target = outs[0]._a if len(outs) == 1 else tuple(o._a for o in outs)
            _arrays.effect(lambda: f(*values, out=target, **named))
            return out
        if name in _VIEWS and args and isinstance(args[0], ndarray):
            r = f(*values, **named)
            return args[0]._maybe_view(r) if isinstance(r, _np.ndarray) else [args[0]._maybe_view(v) for v in r]
        with _np.errstate(all="ignore"):
            return _arrays.run(lambda: _as_arrays(f(*values, **named)))

    def __getattr__(self, name: str) -> _Any:
        if name in ("reduce", "accumulate", "at", "outer", "reduceat") and isinstance(self._f, _np.ufunc):
            return _Function(f"{self.__name__}.{name}", getattr(self._f, name))
        raise AttributeError(name)


#: Functions whose results are views of their first argument.
_VIEWS = frozenset(
    [
        "broadcast_to",
        "expand_dims",
        "squeeze",
        "transpose",
        "swapaxes",
        "moveaxis",
        "rollaxis",
        "reshape",
        "ravel",
        "flip",
        "fliplr",
        "flipud",
        "rot90",
        "diagonal",
        "permute_dims",
        "matrix_transpose",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "split",
        "array_split",
        "hsplit",
        "vsplit",
        "dsplit",
        "real",
        "imag",
    ]
)


def _as_arrays(r: _Any) -> _Any:
    """Turn Python scalars, which NumPy functions return, into the 0-d arrays that CuPy returns."""
    if isinstance(r, (bool, int, float, complex)) and not isinstance(r, _np.generic):
        return _np.asarray(r)
    return r


class _Linalg:
    def __getattr__(self, name: str) -> _Any:
        return _Function(f"linalg.{name}", getattr(_np.linalg, name))


linalg = _Linalg()


class _Testing:
    def __getattr__(self, name: str) -> _Any:
        f = getattr(_np.testing, name)
        return lambda *args, **kwargs: f(*(a.get() if isinstance(a, ndarray) else a for a in args), **kwargs)


testing = _Testing()
_cache: dict[str, _Any] = {}


def __getattr__(name: str) -> _Any:
    if name in _cache:
        return _cache[name]
    if name in _PLAIN and hasattr(_np, name):
        f = getattr(_np, name)
        if name in ("result_type", "can_cast", "promote_types", "ndim", "shape", "size"):
            plain = f

            def f(*args: _Any, **kwargs: _Any) -> _Any:
                return plain(*(_arrays.bare(a) for a in args), **kwargs)

        _cache[name] = f
        return f
    if name == "fft" or name == "polynomial":
        raise NotImplementedError(f"emulator: cupy.{name}")
    if name.startswith("_") or name not in _NAMES or not hasattr(_np, name):
        raise AttributeError(
            f"module 'cupy' has no attribute {name!r}" + (" in the emulator" if name in _NAMES else "")
        )
    f = getattr(_np, name)
    if not callable(f) or isinstance(f, type):
        return f
    _cache[name] = _Function(name, f)
    return _cache[name]
