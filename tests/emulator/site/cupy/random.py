"""Random numbers: NumPy draws them, and they are copied to the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._array import wrap


class Generator:
    def __init__(self, seed: Any = None) -> None:
        self._g = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        f = getattr(self._g, name)
        if name not in (
            "integers",
            "random",
            "standard_normal",
            "uniform",
            "normal",
            "exponential",
            "standard_exponential",
            "binomial",
            "poisson",
        ):
            raise NotImplementedError(f"emulator: cupy.random.Generator.{name}")
        return lambda *args, **kwargs: wrap(np.asarray(f(*args, **kwargs)))


def default_rng(seed: Any = None) -> Generator:
    return Generator(seed)


_state = np.random.RandomState()


def seed(value: Any = None) -> None:
    _state.seed(value)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    f = getattr(_state, name)

    def call(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        r = np.asarray(f(*args, **kwargs))
        return wrap(r if dtype is None else r.astype(dtype))

    return call
