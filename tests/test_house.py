"""The house script must count code lines, report private names of other modules, and notice renamed modules of later features."""

from __future__ import annotations

import ast
import runpy
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def house() -> dict[str, Any]:
    script = ROOT / ".ci" / "house.py"
    if not script.is_file():
        pytest.skip("the script belongs to the source tree")
    return runpy.run_path(str(script))


def test_code_lines_are_those_with_code(house: dict[str, Any]) -> None:
    text = '"""A docstring\nof two lines."""\n\n# a comment\nx = [\n    1,  # one\n]\n\n\ndef f():\n    """Another."""\n    return "text"\n'
    assert house["code_lines"](text, ast.parse(text)) == 5


def test_private_names_of_others_are_foreign(house: dict[str, Any]) -> None:
    text = "self._mine, cls._ours, super()._theirs, other._private, other.__dict__, record._replace, _check._x"
    assert [node.attr for node in house["foreign"](ast.parse(text))] == ["_private"]


def test_modules_of_later_features_are_there(house: dict[str, Any]) -> None:
    names = [path.relative_to(ROOT / "bitsparse").as_posix() for path in (ROOT / "bitsparse").rglob("*.py")]
    globs = [glob for feature in house["LATER"].values() for glob in feature]
    gone = {glob for glob in globs if not any(fnmatch(name, glob) for name in names)}
    assert gone <= {"distributed/*"}
    assert house["later"]("torch/graph.py") == "PyTorch"
    assert house["later"]("ops/spmm/spmm.py") is None
