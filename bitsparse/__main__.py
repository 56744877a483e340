"""Runs the command line program for ``python -m bitsparse``."""

import sys

from bitsparse.cli import main

if __name__ == "__main__":
    sys.exit(main())
