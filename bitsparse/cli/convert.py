"""``bitsparse convert``: graph files from one form to another."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from bitsparse._files import replacing
from bitsparse.cli.common import say
from bitsparse.cli.files import FORMS, form_of, load, save

__all__ = ["DESCRIPTION", "HELP", "add_input_options", "add_options", "run"]


HELP = "graph files from one form to another"
DESCRIPTION = (
    "Read a graph (npz, TC-GNN npz, Matrix Market, Planetoid's raw files, text edge lists, or arrays that bitsparse saved) "
    "and write it in another form."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = "Forms: " + "; ".join(f"{form}: {what}" for form, what in FORMS.items()) + "."
    parser.add_argument("input", metavar="IN")
    parser.add_argument("output", metavar="OUT", help="its name tells the form, unless --to does")
    parser.add_argument("--to", choices=tuple(FORMS), help="form of OUT")
    parser.add_argument("--pattern", action="store_true", help="drop the values and keep which entries there are")
    parser.add_argument("--force", action="store_true", help="overwrite OUT")
    add_input_options(parser)


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Options of edge lists."""
    parser.add_argument("--base", type=int, choices=(0, 1), default=0, help="first node's number in a text edge list")
    parser.add_argument("--symmetric", action="store_true", help="add the other direction of a text list's edges")


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    form = args.to or form_of(args.output)
    if os.path.lexists(args.output) and not args.force:
        raise FileExistsError(f"{args.output!r} exists already; pass --force to overwrite it")
    # Weights are kept where the file has them; a text edge list says so by a third column.
    loaded = _with_weights(args)
    with replacing(args.output) as stream:
        save(loaded, stream, form, pattern=args.pattern)
    rows, cols = loaded.shape
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
