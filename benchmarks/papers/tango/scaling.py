"""TANGO's Figure 9 again (SC'23): training on several GPUs, integers exchanged against float32, by the number of GPUs.

    python3 benchmarks/papers/tango/scaling.py [--ranks 1 2 4] [--measured FILE ...] [--records FILE] [--out FILE] [--quick]

For each number of ranks ``torchrun`` runs the training, its exchange and the links of suite ``scale`` (a GPU to each rank, or a CPU without
one, over a small graph); records, one JSON object a line, are written to ``--records`` and the table to ``--out``, by default printed.
With ``--measured`` nothing is run: the table is made of records of that suite.

The paper's GPUs train on batches of sampled subgraphs, whose features travel from host memory over PCIe; the graph here lies in the
GPUs' memory, dealt out, and features and gradients travel between them. What compares is what the paper's figure shows: the speed of an
epoch with 8 bits on their way over that with float32, on as many GPUs. Its GAT is not here: attention is not trained over shards.
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
#: Speed of TANGO's GCN over full precision, by GPUs: the ends of the line that the text prints.
PAPER = {2: 1.1, 6: 1.5}


def measured(ranks: int, quick: bool) -> list[dict[str, Any]]:
    """The records of so many ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "scale.jsonl"
        command = [sys.executable, *launcher, str(BENCHMARKS / "run.py"), "--suite", "scale", "--json", str(out)]
        subprocess.run([*command, "--only", *CASES, *(["--quick"] if quick else [])], check=True)
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def document(runs: dict[Any, dict[str, dict[str, Any]]]) -> str:
    """The table, of records by run and case."""
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
    """Measure, and write records and the table."""
    parser = argparse.ArgumentParser(description="Make TANGO's Figure 9 again.")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    parser.add_argument("--measured", nargs="+", type=Path, metavar="FILE", help="records to make the table of")
    parser.add_argument("--records", type=Path, metavar="FILE", help="where records go")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the table goes; printed by default")
    parser.add_argument("--quick", action="store_true", help="a first impression")
    options = parser.parse_args(arguments)
    importlib.import_module("bitsparse")
    # Only after bitsparse: the folder that is searched now holds its sources too, without the compiled part.
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
