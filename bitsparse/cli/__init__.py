"""The command line ``bitsparse COMMAND``; each command is a module of this package."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import bitsparse
from bitsparse import get_num_threads
from bitsparse.cli import interrupt
from bitsparse.errors import BitsparseError

__all__ = ["main"]

#: The commands, and what each of them does.
COMMANDS = {
    "demo": "accuracy, time and memory of a GCN in float32 and on few bits",
    "quality": "accuracy, sampling rate and speed of sampled edges and features of few bits",
    "accuracy": "networks that train in few bits against the same in float32",
    "bench": "kernels against the other libraries that are installed, on this machine",
    "inspect": "degrees, tiles and bytes of a graph file",
    "convert": "graph files from one form to another",
    "run": "a low-bit network over a graph in batches of parts",
    "compile": "compile the GPU kernels ahead of time",
    "info": "versions, instruction sets, threads, devices",
}


#: The exit code that a shell shows for a process ended by SIGPIPE.
_UNREAD = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for an error that the user can mend, or the code that the command returns.

    Such an error is one line on stderr. Ctrl-C ends a command within a second, with status 130. If the reader of stdout stops reading
    (``| head``), the command ends with 141.

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
    begin = time.perf_counter_ns() - (_age() if argv is None else 0)
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv else ""
    try:
        with interrupt.ended_soon(command):
            try:
                args = _parsed(argv)
                args.begin = begin
                get_num_threads()  # environment variables of ours that cannot be read are an error of every command
                status: int | None = args.run(args)
            finally:
                _written()
    except BrokenPipeError:
        return _UNREAD
    except (BitsparseError, ImportError, MemoryError, OSError, ValueError) as error:
        print(f"bitsparse {command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupt.message(command), file=sys.stderr)
        return interrupt.STATUS
    return status or 0


def _written() -> None:
    """Flush stdout. If that fails, redirect it to the null device, so that Python does not try again when it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _age() -> int:
    """Nanoseconds since this process began, to a hundredth of a second; 0 on a system other than Linux."""
    with suppress(AttributeError, OSError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong arguments in one line, as every other error; argparse itself prints all options before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Print the version, which is looked up only for this option."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"bitsparse {bitsparse.__version__}")
        parser.exit()


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments, with the function that runs them as ``run``. Only the module of the chosen command is imported."""
    parser = _Parser(prog="bitsparse", description="Low-bit and sparse graph arrays.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        options = commands.add_parser(name, help=text)
        if name in argv[:1]:
            command = importlib.import_module(f"bitsparse.cli.{name}")
            options.description = command.DESCRIPTION
            command.add_options(options)
            options.set_defaults(run=command.run)
    if not argv:
        parser.print_help(sys.stderr)
        parser.exit(2)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        commands.choices[args.command].error(f"unrecognised arguments: {' '.join(unknown)}")
    return args
