"""The command ``bitsparse`` until the library is imported: Ctrl-C ends it with one line from the start, as it does afterwards.

A file of its own beside the package, as importing anything from the package imports all of NumPy and SciPy first.
"""

import os
import signal
import sys


def main() -> int:
    """Import the library and run the command line."""
    before = signal.signal(signal.SIGINT, _end)
    from bitsparse.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _end(*_: object) -> None:
    os.write(2, f"{_command()}: interrupted\n".encode())
    os._exit(130)


def _command() -> str:
    return " ".join(["bitsparse", *sys.argv[1:2]])
