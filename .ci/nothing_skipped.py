"""Pytest plugin: a run fails if a test was skipped or deselected, unless it runs elsewhere or a draw left it out (``share.py``)."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

#: Marks of tests that run elsewhere: on a GPU, or with a framework that has its own environment.
ELSEWHERE = ("gpu", "tensorflow", "paddle")
#: Set on a test that belongs to another draw.
DRAWN_OUT = pytest.StashKey[bool]()
lost: dict[str, str] = {}


def _elsewhere(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ELSEWHERE)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note the tests that a marker expression, a hook or an option deselected."""
    wanted = (item for item in items if not _elsewhere(item) and DRAWN_OUT not in item.stash)
    lost.update({item.nodeid: "deselected" for item in wanted})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note modules that skip themselves while they are imported."""
    if report.skipped:
        lost[report.nodeid] = f"skipped: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note skipped tests; a test that is expected to fail did run."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not _elsewhere(item):
        lost[item.nodeid] = f"skipped: {report.longrepr}"
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a passing run fail if tests are missing."""
    if lost and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the missing tests."""
    if lost:
        terminalreporter.section("tests that should have run", red=True)
        for name, reason in lost.items():
            terminalreporter.write_line(f"{name}: {reason}")
