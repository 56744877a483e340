"""Which kernels a test launches."""

from __future__ import annotations

from typing import Any

import pytest

from bitsparse import jit


def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all kernels that are launched from now on, prepared ones and others, in a list that grows."""
    names: list[str] = []
    prepared, once = jit.Launch.__call__, jit.Kernel.run

    def call(self: jit.Launch, *given: int) -> None:
        names.append(self.name)
        prepared(self, *given)

    def run(self: jit.Kernel, *given: Any, **how: Any) -> None:
        before = len(names)
        once(self, *given, **how)
        if len(names) == before:  # else it was prepared after all, as for a driver in Python
            names.append(self.name)

    monkeypatch.setattr(jit.Launch, "__call__", call)
    monkeypatch.setattr(jit.Kernel, "run", run)
    return names
