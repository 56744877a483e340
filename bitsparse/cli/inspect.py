"""``bitsparse inspect``: what a graph looks like to tensor cores.

``bitsparse inspect FILE --json`` prints one object::

    {"name", "form", "shape", "entries", "density", "symmetric", "self_loops",
     "degrees": {"mean", "median", "p99", "max", "empty"},
     "tiles": [{"window", "width", "total", "before", "after", "reduction", "fill_before", "fill_after", "sharing"}, ...],
     "frdc": {"tiles", "entries_per_tile"},
     "bytes": {"csr", "csr-float32", "frdc", "tiled", "bits"},
     "batches": {"parts", "parts_per_batch", "zero_tile_share", "dropped_share"} or null}

Tiles are counted before and after the columns of each window are condensed (TC-GNN section 4.1). TC-GNN's SpMM and SDDMM have tiles of
16 x 8 and 16 x 16; 1-bit products have tiles of 8 x 128 and visit those counted by ``before``. ``bytes`` are sizes in memory; ``csr`` is
without values. ``batches`` is null without ``--parts``, which partitions the nodes (METIS) and joins 20 parts into each block-diagonal
batch (QGTC section 4.1).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from bitsparse import viz
from bitsparse.arrays import FRDC
from bitsparse.cli.common import add_json, any_file, emit, need, new_file, positive, save_figure
from bitsparse.cli.convert import Loaded, add_input_options, load
from bitsparse.graph import batch, tile_statistics, translate, zero_tile_share
from bitsparse.graph.adjacency import pattern_of, scipy_pattern
from bitsparse.graph.parts import partition_apart

_TILES = ((16, 8), (16, 16), (8, 128))
_TILE_FACTS = ("window", "width", "total", "before", "after", "reduction", "fill_before", "fill_after", "sharing")
_PARTS_PER_BATCH = 20


DESCRIPTION = "Degrees, tile counts before and after translation, FRDC blocks, and the bytes of every form against CSR."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", type=any_file, metavar="FILE")
    add_json(parser)
    parser.add_argument("--plot", type=new_file, metavar="FILE", help="draw the 8 x 128 tiles, shaded by fill")
    parser.add_argument(
        "--parts",
        type=positive,
        metavar="P",
        help="also partition the nodes into P parts and count zero tiles of batches of 20",
    )
    add_input_options(parser)


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    if args.plot is not None:
        need("matplotlib", "a picture", "viz")
    loaded = load(args.file, base=args.base, symmetric=args.symmetric)
    facts = statistics(loaded, args.parts)
    if args.plot is not None:
        save_figure(args, viz.spy(loaded.matrix, name=loaded.name), args.plot)
    emit(args, facts, lambda: _report(facts))


def statistics(loaded: Loaded, parts: int | None = None) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    pattern = pattern_of("inspect", loaded.matrix)
    rows, cols = pattern.shape
    entries = int(pattern.indices.size)
    csr = scipy_pattern("inspect", pattern)
    degrees = np.diff(pattern.indptr).astype(np.int64)
    tiles = [tile_statistics(csr, window=window, width=width) for window, width in _TILES]
    frdc = FRDC(csr, pattern=True)
    blocks, frdc_bytes = int(frdc.tiles.size), frdc.nbytes
    del frdc
    square = rows == cols
    index_bytes = pattern.indptr.nbytes + pattern.indices.nbytes
    return {
        "name": loaded.name,
        "form": loaded.form,
        "shape": [rows, cols],
        "entries": entries,
        "density": entries / (rows * cols) if rows * cols else 0.0,
        "symmetric": bool((csr != csr.T).nnz == 0) if square else False,
        "self_loops": int(np.count_nonzero(csr.diagonal())) if square else 0,
        "degrees": {
            "mean": round(float(degrees.mean()), 4) if rows else 0.0,
            "median": float(np.median(degrees)) if rows else 0.0,
            "p99": float(np.percentile(degrees, 99)) if rows else 0.0,
            "max": int(degrees.max(initial=0)),
            "empty": int(np.count_nonzero(degrees == 0)),
        },
        "tiles": [{key: round(getattr(counted, key), 6) for key in _TILE_FACTS} for counted in tiles],
        "frdc": {"tiles": blocks, "entries_per_tile": round(entries / blocks, 4) if blocks else 0.0},
        "bytes": {
            "csr": index_bytes,
            "csr-float32": index_bytes + 4 * entries,
            "frdc": frdc_bytes,
            "tiled": translate(csr, pattern=True).nbytes,
            "bits": rows * -(-cols // 128) * 16,
        },
        "batches": _batches(csr, parts) if parts is not None else None,
    }


def _batches(csr: Any, parts: int) -> dict[str, Any]:
    dropped = 0

    def counted() -> Any:
        nonlocal dropped
        for one in batch(csr, partition_apart(csr, parts), parts_per_batch=_PARTS_PER_BATCH):
            dropped += one.dropped
            yield one

    share = zero_tile_share(counted())
    return {
        "parts": parts,
        "parts_per_batch": _PARTS_PER_BATCH,
        "zero_tile_share": round(share, 6),
        "dropped_share": round(dropped / csr.nnz, 6) if csr.nnz else 0.0,
    }


def _report(facts: dict[str, Any]) -> str:
    rows, cols = facts["shape"]
    degrees, sizes = facts["degrees"], facts["bytes"]
    kind = "symmetric" if facts["symmetric"] else "directed"
    lines = [
        f"{facts['name']} ({facts['form']}): {rows} x {cols}, {facts['entries']} entries, {kind}, {facts['self_loops']} self loops",
        f"degrees: mean {degrees['mean']:.2f}, median {degrees['median']:.0f}, 99 % {degrees['p99']:.0f}, max {degrees['max']}, "
        f"{degrees['empty']} empty rows",
        "",
        f"{'tile':>9}  {'of':>13}  {'set':>11}  {'condensed':>11}  {'saved %':>7}  {'fill %':>7}  {'condensed %':>11}",
    ]
    for tile in facts["tiles"]:
        shape = f"{tile['window']} x {tile['width']}"
        shares = (100 * tile[key] for key in ("reduction", "fill_before", "fill_after"))
        saved, before, after = (f"{share:.2f}" for share in shares)
        counts = f"{tile['total']:>13}  {tile['before']:>11}  {tile['after']:>11}"
        lines.append(f"{shape:>9}  {counts}  {saved:>7}  {before:>7}  {after:>11}")
    frdc = facts["frdc"]
    lines += [
        "",
        f"FRDC: {frdc['tiles']} blocks of 4 x 4, {frdc['entries_per_tile']:.2f} entries each",
        "bytes: " + ", ".join(f"{form} {size} ({size / max(sizes['csr'], 1):.2f})" for form, size in sizes.items()),
    ]
    if facts["batches"] is not None:
        batches = facts["batches"]
        lines.append(
            f"batches of {batches['parts_per_batch']} of {batches['parts']} parts: {100 * batches['zero_tile_share']:.2f} % of the 8 x 128 "
            f"tiles are zero, {100 * batches['dropped_share']:.2f} % of the entries lie between parts"
        )
    return "\n".join(lines)
