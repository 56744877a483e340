"""Pytest plugin: only a share of the tests runs, drawn by a seed: ``CI_SHARE=8 CI_SEED=7`` runs every eighth.

A test's name decides which share it belongs to, and successive seeds take one share after another, so that every test runs in time. Tests
with one of the marks in CI_MARKS ("torch jax") have a share of their own: with ``CI_MARKS_SHARE=3``, every third of them runs.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest
from nothing_skipped import DRAWN_OUT

PARTS, SEED = int(os.environ["CI_SHARE"]), int(os.environ["CI_SEED"])
MARKS, MARKS_PARTS = os.environ.get("CI_MARKS", "").split(), int(os.environ.get("CI_MARKS_SHARE", PARTS))


def is_drawn(item: pytest.Item) -> bool:
    """Return whether a test runs with this seed."""
    parts = MARKS_PARTS if any(item.get_closest_marker(mark) for mark in MARKS) else PARTS
    return crc32(item.nodeid.encode()) % parts == SEED % parts


def pytest_report_header() -> str:
    """Return the header line that says which share is drawn."""
    return f"share: one of {PARTS} parts of the tests, seed {SEED}" + (
        f"; one of {MARKS_PARTS} of those of {', '.join(MARKS)}" if MARKS else ""
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the other shares."""
    kept, others = [], []
    for item in items:
        (kept if is_drawn(item) else others).append(item)
    for item in others:
        item.stash[DRAWN_OUT] = True
    config.hook.pytest_deselected(items=others)
    items[:] = kept
