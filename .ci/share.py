"""Pytest plugin: only a share of the tests runs, drawn by a seed: ``CI_SHARE=2 CI_SEED=7`` runs every second one.

A test belongs to one share by its name, and successive seeds take one share after the other: none is lost for good.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest

PARTS, SEED = int(os.environ["CI_SHARE"]), int(os.environ["CI_SEED"])


def pytest_report_header() -> str:
    """What is drawn."""
    return f"share: one of {PARTS} parts of the tests, seed {SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the other shares."""
    kept = [item for item in items if crc32(item.nodeid.encode()) % PARTS == SEED % PARTS]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
