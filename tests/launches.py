"""A record of the kernels that a test launches."""

from __future__ import annotations

from typing import Any

import pytest

from bitsparse import jit


def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which every later kernel launch, prepared or not, appends the kernel's name."""
    names: list[str] = []
    prepared, once = jit.Launch.__call__, jit.Kernel.run

    def call(self: jit.Launch, *given: int) -> None:
        names.append(self.name)
        prepared(self, *given)

    def run(self: jit.Kernel, *given: Any, **how: Any) -> None:
        before = len(names)
        once(self, *given, **how)
        if len(names) == before:  # otherwise run() prepared the launch, and `call` has recorded it
            names.append(self.name)

    monkeypatch.setattr(jit.Launch, "__call__", call)
    monkeypatch.setattr(jit.Kernel, "run", run)
    return names
