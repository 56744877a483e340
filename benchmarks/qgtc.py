"""QGTC's own tables again (PPoPP'22: Table 3, Figures 7c, 8, 9 and 10), on the same axes: ours, int8's, the paper's.

    python3 benchmarks/qgtc.py [--only table-3 figure-9 ...] [--records FILE] [--out FILE] [--repetitions N]

Everything but Figure 8 is measured on the GPU at hand; Figure 8 counts tiles of graphs on the CPU (minutes, for METIS) and runs only when
named. After each part its records, one JSON object a line, take the place of the old ones in ``--records``, and ``--out`` (by default
docs/qgtc-tables.md) is written anew from all of them.

All products are N x N x D: a 1-bit adjacency by features of some bits, random and without zero tiles. Ours goes into a preallocated int32
result through a prepared product of the CUDA backend, with the kernel that the library chooses. The peer is ``torch._int_mm`` of the same
integers as int8 (16 bits: of their two digits, added up by one more pass), whose result is compared with ours before either is timed. Both
sides replay CUDA graphs of 20 calls in turns, with operands in the L2 where they fit; a time is the median of 15 replays. ``tflops`` counts
2 N N D operations, whatever the number of bits, as the paper does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import qgtc_tables
from gpu_timing import (
    Int8Product,
    accumulator,
    estimates_us,
    floor_ms,
    machine,
    ours_graph,
    random_words,
    replay,
    torch_graph,
    torch_module,
)
from graphs import graph

from bitsparse import jit
from bitsparse.backends.cuda import gemm
from bitsparse.backends.cuda.matmul import Product
from bitsparse.bench import Machine, Record, Unavailable, git_commit
from bitsparse.datasets import synthetic
from bitsparse.graph import batch, partition

HERE = Path(__file__).resolve().parent
#: Calls in a graph.
CALLS = 20
#: Figure 8: METIS parts and parts of a batch, both the paper's; sizes of graphs of the paper whose files are not public or not small;
#: real graphs, the paper's two first.
PARTS, PARTS_PER_BATCH = 1500, 20
STAND_INS = ("blogcatalog", "ppi", "arxiv")
GRAPHS = (
    "PROTEINS_full",
    "artist",
    "pubmed",
    "coauthor_cs",
    "amazon_computers",
    "soc_slashdot0902",
    "DD",
    "web_notredame",
)


def table_3(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """1 to 4 bits against int8, where the paper has CUTLASS int4."""
    for d in (32, 64):
        for n in (2048, 4096, 8192):
            yield from products("table-3", n, d, (1, 2, 3, 4), where, repetitions)


def figure_7c(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """2 to 7 bits against int8."""
    for d in (16, 32, 64):
        for n in (1024, 2048, 4096):
            yield from products("figure-7c", n, d, (2, 3, 4, 5, 6, 7), where, repetitions)


def figure_9(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """1 bit, over the sizes of adjacency and features."""
    for n in (1 << e for e in range(7, 16)):
        for d in (16, 32, 64, 128, 256, 512, 1024):
            yield from products("figure-9", n, d, (1,), where, repetitions)


def figure_10(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """Tiles of A loaded once for several planes of X, against once for every plane; D is 1024."""
    if not jit.capability().has_wgmma:
        raise Unavailable(f"{where.gpu} has no warpgroup products, whose planes of X lie side by side")
    for bits in (4, 8, 16):
        for n in (1024, 2048, 4096, 8192):
            yield from products("figure-10", n, 1024, (bits,), where, repetitions, reuse=True)


def products(
    part: str, n: int, d: int, widths: Sequence[int], where: Machine, repetitions: int, *, reuse: bool = False
) -> Iterator[dict[str, Any]]:
    """Records of one size at several widths, all timed in turns with one peer."""
    cupy, torch = jit.require_cupy("qgtc"), torch_module()
    a = adjacency(n)
    calls: list[Callable[[], object]] = []
    facts: list[dict[str, Any]] = []
    peer: Int8Product | None = None
    for bits in widths:
        b = random_words(d, bits, n)
        int8 = Int8Product(a, b, n, 1, bits)
        int8()
        peer = peer or int8
        estimates = estimates_us(n, n, d, 1, bits)
        kind: dict[str, Any] = {"k": n, "n": d, "a_bits": 1, "b_bits": bits, "a_encoding": "unsigned"}
        kind |= {"b_encoding": "signed" if bits == 8 else "unsigned", "acc_dtype": accumulator(n, 1, bits)}
        variants: dict[str, dict[str, Any]] = {"": {"kernel": min(estimates, key=estimates.__getitem__)}}
        if reuse:
            variants |= {name: {"kernel": "planes", "tiling": tiling} for name, tiling in tilings(n, d, bits).items()}
        for name, chosen in variants.items():
            prepared, out = Product(a, **kind, **chosen), cupy.empty((n, d), kind["acc_dtype"])
            prepared(b, out)
            cupy.cuda.runtime.deviceSynchronize()
            if not torch.equal(torch.from_dlpack(out), int8.out):
                raise AssertionError(f"{part} {n} x {n} x {d}, {bits} bits, {chosen}: the results differ")
            calls.append(partial(prepared, b, out))
            params = {"part": part, "n": n, "d": d, "bits": bits, "variant": name, "kernel": chosen["kernel"]}
            params["tiling"] = None if prepared.tiling is None else prepared.tiling._asdict()
            facts.append({"params": params, "bytes": int(a.nbytes + b.nbytes + out.nbytes)})
    assert peer is not None
    graphs = [ours_graph([call] * CALLS) for call in calls]
    times = [ms / CALLS for ms in replay([*graphs, torch_graph([peer] * CALLS)], repetitions)]
    peer_name = f"torch {torch.__version__} _int_mm"
    for ms, fact in zip(times, facts, strict=False):
        params = fact["params"]
        params |= {"tflops": 2e-9 * n * n * d / ms, "peer_tflops": 2e-9 * n * n * d / times[-1]}
        case = " ".join(f"{part} {n}x{n}x{d} {params['bits']} {params['variant']}".split())
        floor = floor_ms(params["kernel"], n, n, d, 1, params["bits"], fact["bytes"])
        record = Record.measured("qgtc", case, params, ms, peer_name, times[-1], floor, fact["bytes"], where)
        yield json.loads(record.to_json())


@cache
def adjacency(n: int) -> Any:
    """Random bits; no tile is zero."""
    return random_words(n, 1, n)


def tilings(n: int, d: int, bits: int) -> dict[str, gemm.Tiling]:
    """The best tilings that load a tile of A for several planes of X, and for each plane again."""
    blocks = -(-n // 1024)
    found = gemm.tilings(d, bits, masked=False, wide=False)

    def best(side_by_side: bool) -> gemm.Tiling:
        return min(
            (t for t in found if (t.qb > 1) == side_by_side),
            key=lambda t: gemm.estimate_us(t, n, d, blocks, 1, bits, 1),
        )

    return {"reuse": best(True), "no-reuse": best(False)}


def figure_8(commit: str | None) -> Iterator[dict[str, Any]]:
    """Tiles with and without edges of block-diagonal batches: 1500 METIS parts, 20 to a batch."""
    for name in (*GRAPHS, *STAND_INS):
        if name in STAND_INS:
            data, source = synthetic(name, "communities"), f"synthetic, size of {name}"
        else:
            data, source = graph(name)
        labels = partition(data.adjacency, PARTS, seed=0)
        total = processed = between = 0
        for one in batch(data.adjacency, labels, parts_per_batch=PARTS_PER_BATCH):
            rows, cols = -(-one.nodes.size // 8), -(-one.nodes.size // 128)
            possible = np.zeros((rows, cols), bool)
            for start, end in zip(one.starts[:-1], one.starts[1:], strict=True):
                possible[start // 8 : -(-end // 8), start // 128 : -(-end // 128)] = True
            total += possible.size
            between += possible.size - int(possible.sum())
            processed += int(np.bitwise_count(one.tile_bitmap).sum(dtype=np.int64))
        params = {"part": "figure-8", "graph": name, "source": source, "nodes": data.num_nodes}
        params |= {"parts": int(np.unique(labels).size), "entries": int(data.adjacency.nnz)}
        params |= {"tiles": total, "processed": processed, "zero_between": between}
        yield {"suite": "qgtc", "case": f"figure-8 {name}", "params": params, "device": "cpu", "commit": commit}


MEASURED: dict[str, Callable[[Machine, int], Iterator[dict[str, Any]]]] = {
    "table-3": table_3,
    "figure-7c": figure_7c,
    "figure-9": figure_9,
    "figure-10": figure_10,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    parser = argparse.ArgumentParser(description="Make QGTC's tables again.")
    parts = [*MEASURED, "figure-8"]
    parser.add_argument(
        "--only", nargs="+", choices=parts, default=list(MEASURED), metavar="PART", help=" ".join(parts)
    )
    parser.add_argument("--records", type=Path, default=HERE / "results" / "h200" / "qgtc.jsonl", metavar="FILE")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "qgtc-tables.md", metavar="FILE")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="replays of each graph (default: 15)")
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}, must be at least 1")
    commit = git_commit(HERE)
    records = []
    if options.records.is_file():
        records = [json.loads(line) for line in options.records.read_text(encoding="utf-8").splitlines()]
    status = 0
    for part in options.only:
        start = time.perf_counter()
        made: list[dict[str, Any]] = []
        try:
            for record in (
                figure_8(commit) if part == "figure-8" else MEASURED[part](machine(1, commit), options.repetitions)
            ):
                made.append(record)
                print(line_of(record), flush=True)
        except Unavailable as reason:
            print(f"{part}: not measured, {reason}", file=sys.stderr)
            status = 1
        except Exception:
            print(f"{part}: failed after {len(made)} records", file=sys.stderr)
            traceback.print_exc()
            status = 1
        if not made:
            continue
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        records = [record for record in records if record["params"]["part"] != part] + made
        write(options.records, "".join(json.dumps(record) + "\n" for record in records))
        write(options.out, qgtc_tables.document(records))
    return status


def line_of(record: dict[str, Any]) -> str:
    """One line for the terminal."""
    params = record["params"]
    if "tiles" in params:
        return f"{record['case']:<32} {params['processed']} of {params['tiles']} tiles processed"
    return (
        f"{record['case']:<32} {1e3 * record['ours_ms']:9.2f} us {params['tflops']:9.1f} TFLOPs, "
        f"int8 {1e3 * record['peer_ms']:9.2f} us, {record['ratio']:.2f}x, {params['kernel']}"
    )


def write(path: Path, text: str) -> None:
    """A whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
