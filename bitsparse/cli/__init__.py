"""The command line: ``bitsparse demo``, ``quality``, ``inspect``, ``convert``, ``run``, ``compile`` and ``info``, one module each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bitsparse.cli import compile, convert, demo, info, inspect, quality, run
from bitsparse.errors import BitsparseError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for what the user can mend (one line on stderr), or what the command says.

    Parameters
    ----------
    argv : sequence of str, optional
        By default the process's arguments.

    Examples
    --------
    >>> from bitsparse.cli import main
    >>> main(["demo", "--graph", "no-such-file.npz"])
    2
    """
    args = _parser().parse_args(argv)
    try:
        status: int | None = args.run(args)
    except (BitsparseError, ImportError, MemoryError, OSError, ValueError) as error:
        print(f"bitsparse {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bitsparse {args.command}: interrupted", file=sys.stderr)
        return 130
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bitsparse", description="Low-bit and sparse graph arrays.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (demo, quality, inspect, convert, run, compile, info):
        name = command.__name__.rpartition(".")[2]
        options = commands.add_parser(name, help=command.HELP, description=command.DESCRIPTION)
        command.add_options(options)
        options.set_defaults(run=command.run)
    return parser
