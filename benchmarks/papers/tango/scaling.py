"""Reproduce TANGO's Figure 9 (SC'23): training on several GPUs, exchanging integers or float32, by the number of GPUs.

    python3 benchmarks/papers/tango/scaling.py [--ranks 1 2 4] [--measured FILE ...] [--records FILE] [--out FILE] [--quick]

For each number of ranks, ``torchrun`` runs the training, exchange and link cases of suite ``scale``: one GPU per rank, or the CPU and a
small graph if there is no GPU. The records, one JSON object per line, are written to ``--records``, and the table is written to ``--out``
(by default printed). With ``--measured`` nothing is run: the table is made from existing records of that suite.

The paper's GPUs train on batches of sampled subgraphs, whose features are copied from host memory over PCIe. Here the graph is split over
the GPUs' memory, and features and gradients are exchanged between the GPUs. What can be compared is what the paper's figure shows: the
speed of an epoch that exchanges 8 bits relative to one that exchanges float32, on the same number of GPUs. The paper's GAT is left out:
attention is not trained over shards.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
BENCHMARKS = HERE.parents[2]
CASES = ("link-allgather-16MB", "link-pairs-16MB", "link-pairs-128MB", "exchange-products", "training-products")
#: Speed of TANGO's GCN relative to full precision, by number of GPUs: the first and last points, which the text prints.
PAPER = {2: 1.1, 6: 1.5}


def measured(ranks: int, quick: bool) -> list[dict[str, Any]]:
    """Run this many ranks and return their records."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "scale.jsonl"
        command = [sys.executable, *launcher, str(BENCHMARKS / "run.py"), "--suite", "scale", "--json", str(out)]
        subprocess.run([*command, "--only", *CASES, *(["--quick"] if quick else [])], check=True)
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def document(runs: dict[Any, dict[str, dict[str, Any]]]) -> str:
    """Return the table, from records by run and case."""
    papers: Any = importlib.import_module("benchmarks.papers.tables")
    scale: Any = importlib.import_module("benchmarks.scale_table")
    rows = []
    for (ranks, engine), cases in runs.items():
        epoch, exchange = (cases.get(f"scale-{name}-products") for name in ("training", "exchange"))
        if epoch is None:
            continue
        alone = exchange is None or not exchange["params"]["received"]
        rows.append(
            [
                str(ranks),
                f"{epoch['ours_ms']:.2f}",
                f"{epoch['peer_ms']:.2f}",
                f"{epoch['ratio']:.2f}x",
                f"{PAPER[ranks]:.1f}x" if ranks in PAPER else "-",
                "-" if exchange is None or alone else f"{exchange['ratio']:.2f}x",
                f"{epoch['params']['received'] / 1e6:.1f}",
                f"{epoch['params']['received_float32'] / 1e6:.1f}",
                f"{engine}: {scale.rates(cases)}",
            ]
        )
    headings = [
        "ranks",
        "8 bits, ms",
        "float32, ms",
        "speed",
        "paper",
        "exchange alone",
        "MB received",
        "of float32",
        "links",
    ]
    return str(papers.table(headings, rows, 0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the records and the table."""
    parser = argparse.ArgumentParser(description="Make TANGO's Figure 9 again.")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    parser.add_argument("--measured", nargs="+", type=Path, metavar="FILE", help="records to make the table of")
    parser.add_argument("--records", type=Path, metavar="FILE", help="where records go")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the table goes; printed by default")
    parser.add_argument("--quick", action="store_true", help="a first impression")
    options = parser.parse_args(arguments)
    importlib.import_module("bitsparse")
    # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
    sys.path.insert(0, str(BENCHMARKS.parent))
    scale: Any = importlib.import_module("benchmarks.scale_table")
    with tempfile.TemporaryDirectory() as folder:
        path = options.records or Path(folder) / "scale.jsonl"
        if options.measured is None:
            found = [record for ranks in options.ranks for record in measured(ranks, options.quick)]
            path.write_text("".join(json.dumps(record) + "\n" for record in found), encoding="utf-8")
        text = document(scale.read(options.measured or [path]))
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
