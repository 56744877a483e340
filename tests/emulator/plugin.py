"""Pytest plugin, given with ``-p emulator.plugin`` and ``tests`` on PYTHONPATH: the tests marked ``gpu`` run on the emulator."""

from __future__ import annotations

from pathlib import Path

import emulator

emulator.install()

import pytest  # noqa: E402

from emulator import settings  # noqa: E402

#: Tests that need more than the emulator has: the memory of a real card, kernels for PyTorch's and JAX's own arrays.
NOT_EMULATED = ("test_out_of_memory_leaves_the_library_usable", "test_more_than_two_to_the_31_elements")
NEEDS_CUDA = ("torch", "jax")

CHOICE = Path(__file__).resolve().parent / "choice.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option, for CI."""
    parser.addoption(
        "--emulator-choice", action="store_true", help="run only the tests that choice.txt names for the emulated chip"
    )


def pytest_report_header() -> list[str]:
    """Which chip."""
    return [
        f"emulator: {settings.CHIP.name} ({settings.ARCH}), {settings.MULTIPROCESSORS} multiprocessors, "
        f"order of warps {settings.ORDER}, cache {settings.CACHE}"
    ]


def chosen(text: str, arch: str) -> list[str]:
    """The beginnings of node ids that ``choice.txt`` names for an architecture."""
    found, named = [], False
    for line in text.splitlines():
        if line.startswith("["):
            named = arch in line.strip("[]").split()
        elif named and line.strip() and not line.startswith("#"):
            found.append(line.strip())
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what cannot be emulated and, if asked to, what is not chosen; a choice that names no test is an error."""

    def emulated(item: pytest.Item) -> bool:
        if item.get_closest_marker("gpu") is None:
            return True
        return item.name not in NOT_EMULATED and not any(item.get_closest_marker(name) for name in NEEDS_CUDA)

    kept = [item for item in items if emulated(item)]
    if config.getoption("--emulator-choice"):
        wanted = chosen(CHOICE.read_text(), settings.ARCH)
        if not wanted:
            raise pytest.UsageError(f"{CHOICE.name} has no tests for {settings.ARCH}")
        nowhere = [w for w in wanted if not any(item.nodeid.removeprefix("tests/").startswith(w) for item in kept)]
        if nowhere:
            raise pytest.UsageError(f"{CHOICE.name} names tests that do not exist: {', '.join(nowhere)}")
        kept = [item for item in kept if item.nodeid.removeprefix("tests/").startswith(tuple(wanted))]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
