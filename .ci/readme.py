"""Extract from README.md what CI runs: ``commands`` prints the two commands, ``run`` executes the Python examples."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of one language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return the two lines of the only bash block under the heading ``Two commands``."""
    section = re.search(r"^## Two commands\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None:
        sys.exit("README.md has no section '## Two commands'")
    found = blocks(section[1], "bash")
    lines = [line for block in found for line in block.splitlines() if line.strip()]
    if len(found) != 1 or len(lines) != 2:
        sys.exit(f"README.md, Two commands: {len(found)} bash blocks with {len(lines)} lines, must be one block of two")
    return lines


def run(text: str) -> None:
    """Execute each Python block by itself; the output of a block with prompts is compared with the output it shows."""
    found = blocks(text, "python")
    for number, block in enumerate(found, 1):
        if ">>> " in block:
            test = doctest.DocTestParser().get_doctest(block, {}, f"block {number}", str(README), 0)
            if doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed:
                sys.exit(f"README.md, Python block {number} prints something else")
        else:
            exec(compile(block, f"README.md, Python block {number}", "exec"), {"__name__": "__main__"})
    print(f"README.md: {len(found)} Python blocks run")


if __name__ == "__main__":
    content = README.read_text(encoding="utf-8")
    if sys.argv[1:] == ["commands"]:
        print("\n".join(commands(content)))
    elif sys.argv[1:] == ["run"]:
        run(content)
    else:
        sys.exit("usage: readme.py commands|run")
