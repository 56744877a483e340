"""The command line: ``bitsparse COMMAND``, each command a module."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import bitsparse
from bitsparse.errors import BitsparseError

__all__ = ["main"]

#: The commands, each a module of this package, and what they do.
COMMANDS = {
    "demo": "accuracy, time and memory of a GCN in float32 and on few bits",
    "quality": "accuracy, sampling rate and speed of sampled edges and features of few bits",
    "bench": "kernels against the other libraries that are installed, on this machine",
    "inspect": "degrees, tiles and bytes of a graph file",
    "convert": "graph files from one form to another",
    "run": "a low-bit network over a graph in batches of parts",
    "compile": "compile the GPU kernels ahead of time",
    "info": "versions, instruction sets, threads, devices",
}


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
    args = _parsed(sys.argv[1:] if argv is None else argv)
    try:
        status: int | None = args.run(args)
    except (BitsparseError, ImportError, MemoryError, OSError, ValueError) as error:
        print(f"bitsparse {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bitsparse {args.command}: interrupted", file=sys.stderr)
        return 130
    return status or 0


class _Version(argparse.Action):
    """Print the version, which is looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"bitsparse {bitsparse.__version__}")
        parser.exit()


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with what runs them; of all commands only the chosen one is imported."""
    parser = argparse.ArgumentParser(prog="bitsparse", description="Low-bit and sparse graph arrays.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        options = commands.add_parser(name, help=text)
        if name in argv[:1]:
            command = importlib.import_module(f"bitsparse.cli.{name}")
            options.description = command.DESCRIPTION
            command.add_options(options)
            options.set_defaults(run=command.run)
    return parser.parse_args(argv)
