"""The accuracy that few bits cost a trained network: the runs behind the tables of docs/accuracy.md, as records.

    python3 benchmarks/accuracy_bits.py --data FOLDER --records FILE [--seeds 3] [--only NAME ...] [--runs FOLDER] [--device cuda]

FOLDER holds cora.npz, citeseer.npz and pubmed.npz. Each row of the tables is one run of a public command, and one record of its output:
`bitsparse demo` on four graphs (``demo-...``), eight networks by ``examples/train_quantized.py``, which needs PyTorch, and
`bitsparse accuracy`: ``--table qgtc`` on three graphs (``trained-...``), ``--table tango`` on these and amazon_computers.npz and
coauthor_cs.npz (``integers-...``), ``--table bitgnn`` on three (``binary-...``), ``--table links`` (``links-...``) and ``--table aes``
(``sampled-...``). Networks in integers or on signs train on the device given by ``--device``. FILE has the name of its suite:
accuracy-KIND.jsonl for each of these last kinds, and accuracy-bits.jsonl for all others. Runs that the file already holds are not repeated;
`bitsparse accuracy` keeps each seed in the folder of ``--runs`` and continues from there. The seeds of ``trained-`` begin at 10, because
the recipe was chosen with the earlier ones. ``accuracy_page.py`` makes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bitsparse import bench

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # last, so that the installed package precedes the sources
from benchmarks import gpu_timing  # noqa: E402

GRAPHS = ("cora", "citeseer", "pubmed", "digits")
CLI = "from bitsparse.cli import main; raise SystemExit(main())"
#: The first seed of networks trained further in few bits; earlier seeds were used to choose their recipe.
FIRST_SEED = 10
#: Graphs and networks that train in integers.
INTEGERS = tuple(product((*GRAPHS[:3], "amazon_computers", "coauthor_cs"), ("gcn", "sage", "gat")))
#: Precisions that are not in the main table, for one network.
OTHERS = ("int8", "int8-sums", "int8-all", "int8-nearest", "int4", "int4-sums")
#: The facts that are kept from a run of `bitsparse accuracy`, by kind.
_FACTS = {
    "trained": ("precision", "accuracy"),
    "integers": ("precision", "accuracy"),
    "links": ("precision", "accuracy"),
    "binary": ("aggregation", "accuracy"),
    "sampled": ("strategy", "width", "bits", "accuracy"),
}
NETWORKS = ("gcn-2x16", "gcn-3x16", "sage-2x16", "gin-3x64")


def commands(data: Path, seeds: int, runs: Path | None = None, device: str = "cpu") -> Iterator[tuple[str, list[str]]]:
    """The name and the command of every run; commands keep single seeds in the folder `runs`."""

    def trains(name: str, graph: str, table: str, *options: str) -> tuple[str, list[str]]:
        of = ["--table", table, "--graphs", str(data / f"{graph}.npz"), "--seeds", str(seeds), "--json", *options]
        kept = [] if runs is None else ["--records", str(runs / f"{name}.jsonl")]
        return name, ["-c", CLI, "accuracy", *of, *kept]

    for graph in GRAPHS:
        file = [] if graph == "digits" else ["--graph", str(data / f"{graph}.npz")]
        demo = ["-c", CLI, "demo", "--only", "accuracy", "--seeds", str(seeds), "--json", *file]
        yield f"demo-{graph}", demo
    for graph in ("cora", "pubmed"):
        for network in NETWORKS:
            of = ["--graphs", graph, "--networks", network, "--bits", "8", "4", "2", "--seeds", str(seeds), "--json"]
            yield f"{graph}-{network}", [str(ROOT / "examples" / "train_quantized.py"), "--data", str(data), *of]
    for network, graph in product(("gcn", "sage"), GRAPHS[:3]):
        yield trains(
            f"trained-{graph}-{network}", graph, "qgtc", "--networks", network, "--first-seed", str(FIRST_SEED)
        )
    for graph, network in INTEGERS:
        options = "--networks", network, "--dropout", "0", "--device", device
        yield trains(f"integers-{graph}-{network}", graph, "tango", *options)
    others = "--networks", "gcn", "--dropout", "0", "--device", device, "--precisions", *OTHERS
    yield trains("integers-cora-gcn-others", "cora", "tango", *others)
    for graph in GRAPHS[:3]:
        yield trains(f"binary-{graph}", graph, "bitgnn", "--device", device)
        yield trains(f"links-{graph}", graph, "links", "--networks", "gcn", "--device", device)
        yield trains(f"sampled-{graph}", graph, "aes")


def found(name: str, printed: str) -> dict[str, Any]:
    """The parameters of a record, from the output of its run."""
    said = json.loads(printed)
    facts = _FACTS.get(name.partition("-")[0])
    if facts is not None:
        runs = [{fact: one[fact] for fact in ("graph", "network", "seed", *facts)} for one in said["runs"]]
        return {"runs": [{fact: round(v, 2) if isinstance(v, float) else v for fact, v in run.items()} for run in runs]}
    if not name.startswith("demo-"):
        return {"graph": said["graph"], "network": said["network"], "accuracies": said["accuracies"]}
    said = said["accuracy"]
    return {"graph": name.removeprefix("demo-"), "seeds": said["seeds"], "results": said["results"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all missing runs, and add a record for each."""
    parser = argparse.ArgumentParser(description="Record accuracies of networks in few bits.")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="of the graphs")
    parser.add_argument("--records", type=Path, required=True, metavar="FILE", help="JSON lines, added to")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these runs, by name")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="keep single seeds of the longest runs there")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where integers- and binary- train")
    options = parser.parse_args(arguments)
    lines = options.records.read_text(encoding="utf-8").splitlines() if options.records.is_file() else []
    done = {json.loads(line)["case"] for line in lines}
    commit = bench.program_commit(ROOT)
    machine = bench.Machine.of_cpu(1, commit) if options.device == "cpu" else gpu_timing.machine(1, commit)
    for name, command in commands(options.data, options.seeds, options.runs, options.device):
        if name in done or (options.only and name not in options.only):
            continue
        run = subprocess.run([sys.executable, "-P", *command], stdout=subprocess.PIPE, text=True, check=True)
        record = bench.Record.counted(options.records.stem, name, found(name, run.stdout), machine)
        with options.records.open("a", encoding="utf-8") as file:
            file.write(record.to_json() + "\n")
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
