"""Reproduce the tables and figures of a paper on this machine.

    python3 benchmarks/paper.py {aes,bitgnn,qgtc,tango,tcgnn} [options]

The docstring of ``papers/NAME/program.py`` says what a paper's program measures; ``paper.py NAME --help`` lists its options. Run
``papers/NAME/plot.py`` separately to draw figures.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAPERS = ("aes", "bitgnn", "qgtc", "tango", "tcgnn")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program of the paper named first with the other options."""
    name, *options = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name not in PAPERS:
        print(f"paper.py: there is no paper {name!r}; the papers: {', '.join(PAPERS)}", file=sys.stderr)
        return 2
    importlib.import_module("bitsparse")
    # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
    sys.path.insert(0, str(HERE.parent))
    program: Any = importlib.import_module(f"benchmarks.papers.{name}.program")
    status: int = program.main(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
