"""Time the variants of a family of kernels on this GPU (family ``host``: on this CPU), and fit the figures that the library keeps.

    python3 benchmarks/fit/run.py FAMILY [--json FILE] [--only SUBSTRING ...]
    python3 benchmarks/fit/run.py FAMILY --rows FILE [FILE ...]

Families are dense, products, floats, parts, rows, laid, slices, binary, edges, attention, zeros and host.

The first form measures and, with ``--json``, writes a line for each variant; the second form reads such lines and needs no GPU. Both print
the constants, their place (for a GPU, a field of ``backends/cuda/chips.py``), the errors of the estimates, and the loss of the library's
choice among variants against the fastest. The docstring of each module says which variants a family has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_ON_GPUS = ("dense", "products", "floats", "parts", "rows", "laid", "slices", "binary", "edges", "attention", "zeros")
FAMILIES = (*_ON_GPUS, "host")
#: A choice that loses more than this factor gets a line of its own.
WORTH_A_LINE = 1.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read rows, then fit and report."""
    parser = argparse.ArgumentParser(description="Fit the figures of one chip.")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--rows", nargs="+", type=Path, metavar="FILE", help="take these rows and measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON object a line to FILE")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="SUBSTRING", help="only cells whose name contains one"
    )
    options = parser.parse_args(arguments)
    importlib.import_module("bitsparse")
    # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    family: Any = importlib.import_module(f"benchmarks.fit.{options.family}")
    rows = recorded(options.rows) if options.rows else written(family.measured(options.only), options.json)
    rows = [row for row in rows if any(part in row.cell for part in options.only)]
    if not rows:
        print("run.py: no cell was measured", file=sys.stderr)
        return 2
    print("\n".join(report(family, rows)))
    return 0


def recorded(files: Iterable[Path]) -> list[Any]:
    """Read the rows in files."""
    row: Any = importlib.import_module("benchmarks.fit.fitting").Row
    return [row(**json.loads(line)) for path in files for line in path.read_text(encoding="utf-8").splitlines()]


def written(rows: Iterable[Any], path: Path | None) -> list[Any]:
    """Return the rows; each is written to the file as soon as it is measured."""
    found = []
    out = path.open("w", encoding="utf-8") if path else None
    try:
        for row in rows:
            print(f"{row.cell} {row.variant}: {row.us:.2f} us", file=sys.stderr, flush=True)
            found.append(row)
            if out:
                out.write(json.dumps(row._asdict()) + "\n")
                out.flush()
    finally:
        if out:
            out.close()
    return found


def report(family: Any, rows: Sequence[Any]) -> Iterator[str]:
    """Report the constants, the losses of the choice, and a family's own verdict on both."""
    fitting: Any = importlib.import_module("benchmarks.fit.fitting")
    constants = []
    for fit in family.FITS:
        mine = [row for row in rows if fit.takes(row)]
        if not mine:
            continue
        values = fit.fit(mine)
        constants.append(values)
        missed = ""
        if fit.predict is not None:
            missed = ", missed by {:.2f}x, at most {:.2f}x".format(*fitting.misses(mine, fit.predict, values))
            unseen = [row for row in mine if family.held_out(row)] if hasattr(family, "held_out") else []
            if unseen:
                missed += "; of cells held out {:.2f}x, {:.2f}x".format(*fitting.misses(unseen, fit.predict, values))
        yield f"{fit.title}: {fit.place}, {len(mine)} times{missed}"
        # For rates, the inverse was fitted.
        inverse = {name: 1 / value if name.startswith("1/") and value else value for name, value in values.items()}
        yield from (f"  {name.removeprefix('1/')} = {value:.4g}" for name, value in inverse.items())
    lost = fitting.losses(rows)
    if lost:
        right = sum(loss <= WORTH_A_LINE for loss, _ in lost.values())
        yield f"choice: within {100 * (WORTH_A_LINE - 1):.0f} % of the quickest in {right} of {len(lost)} cells"
        for cell, (loss, best) in sorted(lost.items(), key=lambda item: -item[1][0]):
            if loss > WORTH_A_LINE:
                yield f"  {loss:.2f}x  {cell}: {best} is the quickest"
    if hasattr(family, "verdict") and len(constants) == len(family.FITS):
        yield from family.verdict(rows, constants)


if __name__ == "__main__":
    sys.exit(main())
