"""Make the tables and figures of a paper again on the machine at hand.

    python3 benchmarks/paper.py {aes,bitgnn,qgtc,tango,tcgnn} [options]

What a paper's program measures stands at the top of ``papers/NAME/program.py``; ``paper.py NAME --help`` lists its options. The figures
that are drawn come from ``papers/NAME/plot.py``, run by itself.
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
    """Hand the options to the program of the paper that comes first."""
    name, *options = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name not in PAPERS:
        print(f"paper.py: there is no paper {name!r}; the papers: {', '.join(PAPERS)}", file=sys.stderr)
        return 2
    importlib.import_module("bitsparse")
    # Only after bitsparse: the folder that is searched now holds its sources too, without the compiled part.
    sys.path.insert(0, str(HERE.parent))
    program: Any = importlib.import_module(f"benchmarks.papers.{name}.program")
    status: int = program.main(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
