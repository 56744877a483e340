"""Adds to the array class its operators, and the methods that are NumPy functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._array import apply_ufunc, bare, effect, ndarray, run

_PLAIN = ("ndim", "shape", "size", "strides", "dtype", "nbytes", "itemsize")
_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide, "mod": np.remainder,
    "divmod": np.divmod, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "lshift": np.left_shift,
    "rshift": np.right_shift, "matmul": np.matmul,
}  # fmt: skip


def _operators() -> None:
    def usable(x: Any) -> bool:
        if isinstance(x, np.ndarray) and x.ndim:
            raise TypeError(f"Unsupported type {type(x)}")
        return isinstance(x, (ndarray, np.ndarray, np.generic, int, float, complex, bool))

    def binary(f: Any) -> Any:
        def forward(self: ndarray, other: Any) -> Any:
            return apply_ufunc(f, "__call__", (self, other), {}) if usable(other) else NotImplemented

        def backward(self: ndarray, other: Any) -> Any:
            return apply_ufunc(f, "__call__", (other, self), {}) if usable(other) else NotImplemented

        def inplace(self: ndarray, other: Any) -> Any:
            return apply_ufunc(f, "__call__", (self, other), {"out": self}) if usable(other) else NotImplemented

        return forward, backward, inplace

    for name, f in _BINARY.items():
        forward, backward, inplace = binary(f)
        setattr(ndarray, f"__{name}__", forward)
        setattr(ndarray, f"__r{name}__", backward)
        if name != "divmod":
            setattr(ndarray, f"__i{name}__", inplace)
    for name, f in {
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    }.items():
        setattr(ndarray, f"__{name}__", binary(f)[0])
    for name, f in {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}.items():
        setattr(ndarray, f"__{name}__", lambda self, f=f: apply_ufunc(f, "__call__", (self,), {}))

    def method(name: str) -> Any:
        def call(self: ndarray, *args: Any, **kwargs: Any) -> Any:
            out = kwargs.pop("out", None)
            values, named = bare(args, name), bare(kwargs, name)
            if out is not None:
                if not isinstance(out, ndarray):
                    raise TypeError("out must be a cupy.ndarray")
                effect(lambda: getattr(self._a, name)(*values, out=out._a, **named))
                return out
            with np.errstate(all="ignore"):
                return run(lambda: getattr(self._a, name)(*values, **named))

        call.__name__ = name
        return call

    names = (
        "sum prod max min any all argmax argmin argsort cumsum cumprod mean std var clip round dot nonzero repeat take"
    )
    for name in [*names.split(), "trace", "conj", "choose", "compress"]:
        setattr(ndarray, name, method(name))
    for name in _PLAIN:
        setattr(ndarray, name, property(lambda self, name=name: getattr(self._a, name)))


_operators()
