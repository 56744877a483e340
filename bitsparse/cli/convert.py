"""``bitsparse convert``: graph files from one form to another."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from bitsparse._files import replacing
from bitsparse.cli.files import FORMS, form_of, load, save

__all__ = ["add_input_options", "add_parser"]


def add_parser(commands: Any) -> None:
    """Declare the command."""
    convert = commands.add_parser(
        "convert",
        help="graph files from one form to another",
        description="Read a graph (npz, TC-GNN npz, Matrix Market, Planetoid's raw files, text edge lists, or arrays that bitsparse saved) "
        "and write it in another form.",
        epilog="Forms: " + "; ".join(f"{form}: {what}" for form, what in FORMS.items()) + ".",
    )
    convert.add_argument("input", metavar="IN")
    convert.add_argument("output", metavar="OUT", help="its name tells the form, unless --to does")
    convert.add_argument("--to", choices=tuple(FORMS), help="form of OUT")
    convert.add_argument("--pattern", action="store_true", help="drop the values and keep which entries there are")
    convert.add_argument("--force", action="store_true", help="overwrite OUT")
    add_input_options(convert)
    convert.set_defaults(run=_convert)


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Options of edge lists."""
    parser.add_argument("--base", type=int, choices=(0, 1), default=0, help="first node's number in a text edge list")
    parser.add_argument("--symmetric", action="store_true", help="add the other direction of a text list's edges")


def _convert(args: argparse.Namespace) -> None:
    form = args.to or form_of(args.output)
    if os.path.lexists(args.output) and not args.force:
        raise FileExistsError(f"{args.output!r} exists already; pass --force to overwrite it")
    # Weights are kept where the file has them; a text edge list says so by a third column.
    loaded = _with_weights(args)
    with replacing(args.output) as stream:
        save(loaded, stream, form, pattern=args.pattern)
    rows, cols = loaded.shape
    size = Path(args.output).stat().st_size
    print(
        f"bitsparse convert: {loaded.name} ({loaded.form}), {rows} x {cols}, {loaded.matrix.nnz} entries -> {args.output} ({form}), "
        f"{size} bytes",
        file=sys.stderr,
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
