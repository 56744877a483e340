"""Pytest plugin that runs tests marked ``gpu`` on the emulator; pass ``-p emulator.plugin``, with ``tests`` on PYTHONPATH."""

from __future__ import annotations

import emulator

emulator.install()

import pytest  # noqa: E402

from emulator import settings  # noqa: E402
from emulator.draw import PARTS, is_drawn  # noqa: E402

#: Tests that need more than the emulator has: the memory of a real card, kernels for PyTorch's and JAX's own arrays.
NOT_EMULATED = (
    *("test_out_of_memory_leaves_the_library_usable", "test_more_than_two_to_the_31_elements"),
    # computed by cuSPARSE
    *(f"test_the_same_on_a_gpu[A @ B-{dtype}]" for dtype in ("float32", "float64")),
    "test_products_of_floats_are_cusparses",
    "test_calls_of_a_gpu_agree_with_the_peer",
)
NEEDS_CUDA = ("torch", "jax")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one option, which CI uses."""
    parser.addoption(
        "--emulator-draw",
        type=int,
        metavar="SEED",
        help=f"run one of {PARTS} parts of the tests marked gpu, and no others; seeds 0 to {PARTS - 1} together run them all",
    )


def pytest_report_header() -> list[str]:
    """Say what is emulated, and how."""
    return [
        f"emulator: {settings.CHIP.name} ({settings.ARCH}), {settings.MULTIPROCESSORS} multiprocessors, "
        f"order of warps {settings.ORDER}, cache {settings.CACHE}"
    ]


def is_emulated(item: pytest.Item) -> bool:
    """Whether a test can run here; a test that needs no GPU can."""
    if item.get_closest_marker("gpu") is None:
        return True
    return item.name not in NOT_EMULATED and not any(item.get_closest_marker(name) for name in NEEDS_CUDA)


def chosen(items: list[pytest.Item], seed: int | None) -> list[pytest.Item]:
    """The tests that can be emulated; with a seed, only those of them that need a GPU and are in its draw."""
    kept = [item for item in items if is_emulated(item)]
    if seed is None:
        return kept
    return [item for item in kept if item.get_closest_marker("gpu") and is_drawn(item.nodeid, seed)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are not chosen."""
    kept = chosen(items, config.getoption("--emulator-draw"))
    if len(kept) < len(items):
        among = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in among])
        items[:] = kept
