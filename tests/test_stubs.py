"""Stubs of compiled modules must declare the functions of the Cython sources, with the same parameters in the same order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUBS = sorted((ROOT / "bitsparse" / "_ext").glob("*.pyi"))


def in_stub(path: Path) -> dict[str, list[str]]:
    """Return the parameter names of each function of a stub."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        assert function.args.vararg is None, f"{path.name}: {function.name} takes *args"
    return {function.name: [argument.arg for argument in function.args.args] for function in functions}


def in_source(path: Path) -> dict[str, list[str]]:
    """Return the same for a Cython source."""
    found = {}
    for name, arguments in re.findall(
        r"^def (\w+)\((.*?)\)(?: -> \w+)?:\n", path.read_text(), re.DOTALL | re.MULTILINE
    ):
        each = [one.partition("=")[0].split() for one in re.split(r",(?![^\[]*\])", arguments) if one.strip()]
        found[name] = [words[-1] for words in each]
    return found


@pytest.mark.parametrize("stub", STUBS, ids=[path.stem for path in STUBS])
def test_parameters(stub: Path) -> None:
    assert in_stub(stub) == in_source(ROOT / "_ext" / "cython" / f"{stub.stem}.pyx")
