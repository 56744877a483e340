"""Print, as constraints for pip, the lowest versions that pyproject.toml allows for the core and some extras: ``lowest.py EXTRA...``.

With ``--as-declared`` as the first argument, print the requirements themselves.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest(requirement: str) -> str:
    """Turn ``numpy>=2.0,<3`` into ``numpy==2.0``; the condition after a semicolon is dropped."""
    found = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,.*)?", requirement.partition(";")[0].replace(" ", ""))
    if found is None:
        sys.exit(f"lowest: {requirement!r} has no lower bound of the form NAME>=VERSION")
    return f"{found[1]}=={found[2]}"


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Return the dependencies of the core and of the extras, which may name further extras of the project."""
    todo, lines = list(project["dependencies"]), []
    for extra in extras:
        todo += project["optional-dependencies"][extra]
    while todo:
        requirement = todo.pop(0)
        own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
        if own:
            todo += [inner for extra in own[1].split(",") for inner in project["optional-dependencies"][extra]]
        else:
            lines.append(requirement)
    return lines


if __name__ == "__main__":
    table = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    as_declared = sys.argv[1:2] == ["--as-declared"]
    found = requirements(table, sys.argv[1 + as_declared :])
    print("\n".join(found if as_declared else map(lowest, found)))
