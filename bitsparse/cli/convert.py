"""``bitsparse convert``: converts graph files from one form to another. ``inspect`` reads files by :func:`load` as well."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from bitsparse import datasets
from bitsparse._archive import opened
from bitsparse._files import replacing
from bitsparse.arrays import FRDC, TCTiledCSR, load_npz, save_npz
from bitsparse.arrays.npz import holds_saved
from bitsparse.cli.common import any_file, new_file, say
from bitsparse.datasets.graph_data import arrays_of
from bitsparse.datasets.text import EDGES_HEADER

#: The forms that can be written, with a description of each.
FORMS = {
    "npz": "CSR pattern, features, labels and masks (.npz)",
    "tcgnn": "src_li, dst_li and num_nodes, as TC-GNN and QGTC read them (.tcgnn.npz)",
    "mtx": "Matrix Market (.mtx)",
    "edges": "one edge a line (.txt, .tsv, .csv, .edges, .el)",
    "frdc": "FRDC (.frdc.npz)",
    "tiled": "TCTiledCSR (.tiled.npz)",
    "bits": "dense bits, a BitTensor (.bits.npz)",
}
#: File name endings by form, in the order in which they are tried.
_ENDINGS: dict[str, tuple[str, ...]] = {
    **{form: (f".{form}.npz",) for form in ("frdc", "tiled", "bits", "tcgnn")},
    "npz": (".npz",),
    "mtx": (".mtx",),
    "edges": (".txt", ".tsv", ".csv", ".edges", ".el"),
}
_CONTAINERS: dict[str, Callable[[Any, bool], Any]] = {
    "frdc": lambda matrix, pattern: FRDC(matrix, pattern=pattern),
    "tiled": lambda matrix, pattern: TCTiledCSR(matrix, pattern=pattern),
    "bits": lambda matrix, pattern: FRDC(matrix, pattern=pattern).with_scales().to_bit_tensor(),
}

DESCRIPTION = (
    "Read a graph (npz, TC-GNN npz, Matrix Market, Planetoid's raw files, text edge lists, or arrays that bitsparse saved) "
    "and write it in another form."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = "Forms: " + "; ".join(f"{form}: {what}" for form, what in FORMS.items()) + "."
    parser.add_argument("input", type=any_file, metavar="IN")
    parser.add_argument("output", type=new_file, metavar="OUT", help="its name tells the form, unless --to does")
    parser.add_argument("--to", choices=tuple(FORMS), help="form of OUT")
    parser.add_argument("--pattern", action="store_true", help="drop the values and keep which entries there are")
    parser.add_argument("--force", action="store_true", help="overwrite OUT")
    add_input_options(parser)


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say how to read text edge lists."""
    parser.add_argument("--base", type=int, choices=(0, 1), default=0, help="first node's number in a text edge list")
    parser.add_argument("--symmetric", action="store_true", help="add the other direction of a text list's edges")


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    form = args.to or form_of(args.output)
    if os.path.lexists(args.output) and not args.force:
        raise FileExistsError(f"{args.output!r} exists already; pass --force to overwrite it")
    # Weights are kept if the file has them; in a text edge list they are the third column.
    loaded = _with_weights(args)
    with replacing(args.output) as stream:
        save(loaded, stream, form, pattern=args.pattern)
    rows, cols = loaded.matrix.shape
    size = Path(args.output).stat().st_size
    say(
        args,
        f"{loaded.name} ({loaded.form}), {rows} x {cols}, {loaded.matrix.nnz} entries -> {args.output} ({form}), {size} bytes",
    )


def _with_weights(args: argparse.Namespace) -> Any:
    options = {"base": args.base, "symmetric": args.symmetric}
    if args.pattern:
        return load(args.input, **options)
    try:
        return load(args.input, weights=True, **options)
    except ValueError as error:
        if "there are no weights to keep" not in str(error):
            raise
        return load(args.input, **options)


@dataclass(frozen=True)
class Loaded:
    """A matrix from a file, and the other parts of the graph if the file has them."""

    name: str
    form: str
    matrix: Any
    graph: datasets.GraphData | None = None


def load(path: str, *, weights: bool = False, base: int = 0, symmetric: bool = False) -> Loaded:
    """Load any file that :func:`bitsparse.datasets.read` or :func:`bitsparse.load_npz` reads."""
    if _is_container(path):
        if base or symmetric:
            raise ValueError(
                f"--base and --symmetric belong to edge lists, but {path} holds an array that bitsparse saved"
            )
        matrix = load_npz(path)
        if len(matrix.shape) != 2:
            raise ValueError(f"{path} holds an array of shape {matrix.shape}, but a graph has two dimensions")
        return Loaded(Path(path).name.partition(".")[0], type(matrix).__name__, matrix)
    graph = datasets.read(path, weights=weights, base=base, symmetric=symmetric)
    matrix = graph.weighted if weights else graph.adjacency
    return Loaded(graph.name, datasets.recognise(path), matrix, graph)


def _is_container(path: str) -> bool:
    with suppress(OSError, ValueError), opened("convert", path) as archive:
        return holds_saved(archive)
    return False


def form_of(path: str) -> str:
    """The form that the ending of a file's name stands for."""
    for form, endings in _ENDINGS.items():
        if Path(path).name.lower().endswith(endings):
            return form
    raise ValueError(
        f"{path!r} does not tell its form; name it .npz, .mtx or .txt, or pass --to {{{', '.join(FORMS)}}}"
    )


def save(loaded: Loaded, stream: IO[bytes], form: str, *, pattern: bool = False) -> None:
    """Write the matrix in a form; npz also holds the other parts of the graph."""
    if form in _CONTAINERS:
        save_npz(stream, _CONTAINERS[form](loaded.matrix, pattern))
        return
    matrix = loaded.matrix.tocsr()
    if form == "mtx":
        from scipy.io import mmwrite

        kind = "pattern" if _is_pattern(matrix, pattern) else None
        mmwrite(stream, matrix.astype(np.int8) if kind else matrix, field=kind, symmetry="general")
        return
    if form == "edges":
        coo = matrix.tocoo()
        ends, header = np.stack(coo.coords, axis=1), EDGES_HEADER.format(nodes=max(coo.shape))
        if _is_pattern(matrix, pattern):
            np.savetxt(stream, ends, fmt="%d", header=header)
        else:
            columns = np.rec.fromarrays([ends[:, 0], ends[:, 1], coo.data.astype(np.float64)])
            np.savetxt(stream, columns, fmt=("%d", "%d", "%.17g"), header=f"{header} weight")
        return
    np.savez_compressed(stream, **_arrays(loaded, matrix, form, pattern))


def _is_pattern(matrix: Any, pattern: bool) -> bool:
    return pattern or matrix.dtype.kind == "b" or bool((matrix.data == 1).all())


def _arrays(loaded: Loaded, matrix: Any, form: str, pattern: bool) -> dict[str, Any]:
    graph = loaded.graph
    if graph is None:
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a graph has as many rows as columns, but the matrix has shape {matrix.shape}")
        weights = None if _is_pattern(matrix, pattern) else matrix.data
        graph = datasets.GraphData(indptr=matrix.indptr, indices=matrix.indices, weights=weights, name=loaded.name)
    if form == "tcgnn":
        source = np.repeat(np.arange(graph.num_nodes, dtype=graph.indices.dtype), np.diff(graph.indptr))
        return {"src_li": source, "dst_li": graph.indices, "num_nodes": np.int64(graph.num_nodes)}
    kept = replace(graph, weights=None) if pattern else graph
    return {"num_nodes": np.int64(graph.num_nodes)} | arrays_of(kept)
