"""The command ``bitsparse`` until the library is imported: Ctrl-C ends it with one line from the start, as it does afterwards.

A file of its own beside the package, as importing anything from the package imports all of NumPy and SciPy first.
"""

import os
import signal
import sys


def main() -> int:
    """Import the library and run the command line."""
    before = signal.signal(signal.SIGINT, _end)
    try:
        from bitsparse.cli import main as run
    except ValueError as error:  # an environment variable of ours that cannot be read
        print(f"{_command()}: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, before)
    return run()


def _end(*_: object) -> None:
    os.write(2, f"{_command()}: interrupted\n".encode())
    os._exit(130)


def _command() -> str:
    return " ".join(["bitsparse", *sys.argv[1:2]])
