"""CuPy's classes for loaded modules and kernels."""

from __future__ import annotations

import types
from typing import Any

from emulator import runtime, settings

from cupy import cuda

__all__ = ["ElementwiseKernel", "RawKernel", "RawModule", "ReductionKernel"]


class RawModule:
    """A module loaded from the file that the emulator's NVRTC made."""

    def __init__(
        self, *, code: Any = None, path: Any = None, options: Any = (), backend: str = "nvrtc", **others: Any
    ) -> None:
        if path is None:
            raise NotImplementedError("emulator: cupy.RawModule(code=...); only path= is there")
        self._path = str(path)

    def get_function(self, name: str) -> RawKernel:
        return RawKernel._from(self._path, name)

    def get_global(self, name: str) -> Any:
        raise NotImplementedError("emulator: cupy.RawModule.get_global")


class RawKernel:
    """A kernel of a loaded module."""

    def __init__(self, code: str, name: str, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("emulator: cupy.RawKernel(code, name)")

    @classmethod
    def _from(cls, path: str, name: str) -> RawKernel:
        self = object.__new__(cls)
        self._function = runtime.Function(path, name)
        self.name = name
        self.kernel = types.SimpleNamespace(ptr=self._function.handle)
        return self

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return int(self._function.max_dynamic)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        if value + self._function.static_bytes > settings.CHIP.shared_bytes:
            raise cuda.runtime.CUDARuntimeError(1, "cudaErrorInvalidValue: more shared memory than the chip has")
        self._function.max_dynamic = int(value)

    num_regs, local_size_bytes, shared_size_bytes, max_threads_per_block = 32, 0, 0, 1024

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("emulator: calling a RawKernel; launches go through cuLaunchKernelEx")


def ElementwiseKernel(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("emulator: cupy.ElementwiseKernel")


def ReductionKernel(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("emulator: cupy.ReductionKernel")
