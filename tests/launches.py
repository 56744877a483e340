"""Which kernels a test launches."""

from __future__ import annotations

import pytest

from bitsparse import jit


def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all kernels that are launched from now on, prepared ones and others, in a list that grows."""
    names: list[str] = []
    prepared, once = jit.Launch.__call__, jit.Kernel.run
    monkeypatch.setattr(
        jit.Launch, "__call__", lambda self, *given: (names.append(self.name), prepared(self, *given))[1]
    )
    monkeypatch.setattr(jit.Kernel, "run", lambda self, *given: (names.append(self.name), once(self, *given))[1])
    return names
