"""The distribution of every suite's ratios, from its records: python3 benchmarks/distribution.py [FOLDER] > docs/distributions.md

Other tables show chosen rows; this page covers every cell of a suite. For each peer it has the number of cells, and of the ratios peer over
ours the worst, the lower quartile, the median, the best and the geometric mean. Records without a ratio (rates, sizes) are no cells.
Needs only Python. ``tests/test_bench_records.py`` checks that the page matches the records.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "distributions.md"
#: Suites of the library; figures and tables of papers have pages of their own.
SUITES = (
    "gemm",
    "spmm",
    "binary",
    "sampled",
    "cluster",
    "training",
    "minibatch",
    "host",
    "manners",
    "nearest",
    "scale",
)
#: Machines whose records come from runs with ``--quick``, which has fewer repetitions.
QUICK = ("h100", "h100-x2", "h100-x4")
_HEAD = """# All cells of every suite

Peer's time over ours, for every record of the suites; above 1 ours is the faster one. Made by
`python3 benchmarks/distribution.py` of the records under `benchmarks/results/`; do not edit it here.
Where the peer is the library itself, the row says so: what is compared then is one way of ours with another.
In suite scale the peer may be one device: the ratio is then what more devices bring.
"""
#: The precision of features, or of features, adjacency and result; or a network of suite cluster.
_PRECISION = re.compile(r"fp\d+|bf16|tf32|f32|[bf]{3}|int\d|gcn|gin")
_COLUMNS = ("cases", "against", "cells", "worst", "quarter", "median", "best", "mean", "worst cell")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    print(page(Path(given[0]) if given else RESULTS), end="")
    return 0


def page(folder: Path) -> str:
    """The text of the page from the records in a folder, ``MACHINE/SUITE.jsonl``."""
    parts = [_HEAD]
    for suite in SUITES:
        for path in sorted(folder.glob(f"*/{suite}.jsonl")):
            rows = list(_rows(map(json.loads, path.read_text(encoding="utf-8").splitlines())))
            if rows:
                lines = (_COLUMNS, ("---", "---", *["---:"] * 6, "---"), *rows)
                table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
                machine = path.parent.name
                protocol = ", quick protocol" if machine in QUICK else ""
                parts.append(f"## Suite {suite}, {machine}{protocol}\n\n{table}")
    return "\n".join(parts)


def _rows(records: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    cells: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for record in records:
        if record["ratio"] is not None:
            cells[_kind(record["case"]), _library(record["peer"])][record["case"]] = record["ratio"]
    for (kind, peer), of_kind in sorted(cells.items()):
        ratios = sorted(of_kind.values())
        lower, median, _ = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        numbers = (ratios[0], lower, median, ratios[-1], geometric_mean(ratios))
        worst = min(of_kind, key=lambda case: of_kind[case])
        yield f"`{kind}`", peer, str(len(ratios)), *(f"{number:.2f}" for number in numbers), f"`{worst}`"


def _kind(case: str) -> str:
    """The kind of a case: its name up to its precision if that is among the first words, else its first word."""
    words = case.split("-")
    precise = [number for number, word in enumerate(words[:3]) if _PRECISION.fullmatch(word)]
    return "-".join(words[: precise[0] + 1]) if precise else words[0]


def _library(peer: str) -> str:
    """The name of a peer without the parts that differ between its cells: versions and the fastest algorithm."""
    return re.sub(r", sparse\d*$| ALG\d+|(?<=torch) [\d.]+\+cu\d+| \d+\.\d+\.\d+(\.post\d+)?", "", peer)


if __name__ == "__main__":
    sys.exit(main())
