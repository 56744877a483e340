"""Options, checks and messages that several commands share."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from bitsparse import datasets, jit
from bitsparse._progress import PATIENCE, Stopwatch
from bitsparse.errors import BitsparseError, DeviceError
from bitsparse.graph.parts import partition_apart
from bitsparse.nn.labels import Judged

FEATURES = "features (x_indptr, x_indices, x_data, x_shape, or features)"
#: The largest count that an option accepts unless it says otherwise.
MOST = 1_000_000
#: The largest number of nodes or entries that an option accepts; papers100M with self loops has fewer.
MOST_ENTRIES = 2_000_000_000
#: The default graph.
DIGITS = "nearest neighbours of scikit-learn's digits"


def add_json(parser: argparse.ArgumentParser, instead_of: str = "") -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help=f"print one JSON object{instead_of}")


def add_task_options(
    parser: argparse.ArgumentParser, runs: str, *, needs: str = "features and labels", default: str = DIGITS
) -> None:
    """Declare ``--graph``, ``--generate`` (make up features and labels) and ``--device``; `runs` says what runs on the device."""
    parser.add_argument(
        "--graph",
        type=any_file,
        metavar="FILE",
        help=f"a graph with {needs}, in any form that `bitsparse inspect` reads (default: {default})",
    )
    parser.add_argument(
        "--generate", action="store_true", help="make up features and labels, for graphs that come without them"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=f"where the {runs} (default: cpu)")


def add_counts(parser: argparse.ArgumentParser, **options: tuple[int | None, int, str]) -> None:
    """Declare options that take a whole number of at least 1, each by its default, its upper limit and its help."""
    for name, (default, most, text) in options.items():
        parser.add_argument(f"--{name}", type=partial(positive, most=most), default=default, metavar="N", help=text)


def add_plot(parser: argparse.ArgumentParser, text: str, *names: str) -> None:
    """Declare ``--plot [FILE]``, with `names` as further names; without FILE the command chooses the file."""
    parser.add_argument(
        "--plot", *names, dest="plot", nargs="?", const="", type=_file_or_none, metavar="FILE", help=text
    )


def say(args: argparse.Namespace, sentence: str) -> None:
    """Print a remark on stderr, apart from the output on stdout."""
    print(f"bitsparse {args.command}: {sentence}", file=sys.stderr)


class Announced(Stopwatch):
    """A stopwatch that names a phase on the terminal if it takes long."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("starting", args.begin)
        self._say, self._timer = partial(say, args), threading.Timer(0.0, print)

    def begin(self, phase: str) -> None:
        """Begin this phase of the command. Phases that a runner enters by itself are timed but not announced."""
        if phase == self._phase:
            return
        self._timer.cancel()
        if sys.stderr.isatty():
            self._timer = threading.Timer(PATIENCE, self._say, (phase,))
            self._timer.daemon = True
            self._timer.start()
        self.enter(phase)

    def end(self) -> None:
        """End the last phase."""
        self._timer.cancel()
        self.enter(self._phase)


def emit(args: argparse.Namespace, facts: dict[str, Any], text: Callable[[], str]) -> None:
    """Print the results: as one JSON object with ``--json``, else as text."""
    print(json.dumps(facts) if args.json else text())


def positive(text: str, most: int = MOST) -> int:
    """Parse an argument that must be a whole number from 1 to `most`."""
    # No valid count has 30 digits, and Python refuses to convert strings of several thousand digits.
    if text.isascii() and text.isdigit() and int(text[:30]) > most:
        raise argparse.ArgumentTypeError(f"must be at most {most}, got {text[:30]!r}")
    return _whole(text, 1)


def seed(text: str) -> int:
    """Parse an argument that must be a whole number of at least 0."""
    return _whole(text, 0)


def _whole(text: str, low: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < low:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {low}, got {text!r}")
    return int(text)


def any_file(text: str) -> str:
    """Parse an argument that names a file."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file, got ''")
    return text


def new_file(text: str) -> str:
    """Parse the name of a file to write, and refuse it before the work begins if no such file can exist."""
    if not Path(any_file(text)).parent.is_dir():
        raise argparse.ArgumentTypeError(f"must lie in a folder that exists, got {text!r}")
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"must name a file, but {text!r} is a folder")
    return text


def _file_or_none(text: str) -> str:
    """Like :func:`new_file`, but accept an empty name, for which the command chooses the file."""
    return text and new_file(text)


#: Parse a number of bits from 1 to 16.
bit_count = partial(positive, most=16)


def accuracy(data: datasets.GraphData, logits: Any, mask: Any) -> float:
    """The share of the masked nodes, in per cent, whose true class has the largest logit."""
    return 100.0 * Judged(data.targets, mask).accuracy(logits)


def need(module: str, what: str, extra: str) -> None:
    """Raise before the work begins if a module that it needs is not installed."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ImportError(f"{what} needs {module}, which is not installed; run: pip install 'bitsparse[{extra}]'")


def save_figure(args: argparse.Namespace, axes: Any, file: str | Path) -> None:
    """Write a picture to a file and report it on stderr."""
    axes.figure.savefig(file, dpi=150)
    say(args, f"wrote {file}")


def need_gpu(device: str) -> None:
    """Raise before the work begins if the GPU asked for cannot be used, and say what is missing."""
    if device == "cpu":
        return
    try:
        jit.capability()
        jit.nvrtc_version()
    except BitsparseError as error:
        raise DeviceError(f"device {device!r} is not available: {error}; or use --device cpu") from error


def need_device_and_plot(args: argparse.Namespace) -> None:
    """Raise if the device asked for is not available, or if a picture is asked for without Matplotlib."""
    need_gpu(args.device)
    if args.plot is not None:
        need("matplotlib", "a picture", "viz")


def refuse(args: argparse.Namespace, names: Iterable[str], because: str) -> None:
    """Refuse options that were given but would have no effect, and say why; their defaults are None or False."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value is not False:
            raise ValueError(f"--{name.replace('_', '-')} {because}")


def load_graph(args: argparse.Namespace) -> datasets.GraphData:
    """The graph asked for, by default the digits. A remark on stderr says if features and labels were made up."""
    data = datasets.digits() if args.graph is None else datasets.read(args.graph)
    if args.generate:
        # METIS runs in a separate process, because Ctrl-C could not interrupt it in this one.
        data = data.with_generated(classes=8, labels=partition_apart(data.adjacency, min(8, max(data.num_nodes, 1))))
        say(args, f"features and labels of {data.name} are made up (seed 0)")
    return data


def need_part(data: datasets.GraphData, what: str, part: Any, who: str) -> None:
    """Refuse a graph that comes without features or labels."""
    if part is None:
        raise ValueError(
            f"graph {data.name!r} has no {what}, which {who}; add them to the file, or make some up with --generate"
        )


def load_task(args: argparse.Namespace) -> datasets.GraphData:
    """The graph asked for, with features, labels and a split. The device and Matplotlib are checked before it is read."""
    need_device_and_plot(args)
    data = load_graph(args)
    need_part(data, FEATURES, data.x, "training needs")
    need_part(data, "labels", data.labels, "training needs")
    if data.num_classes < 2:
        raise ValueError(f"graph {data.name!r} has labels of {data.num_classes} classes, but at least 2 are needed")
    if data.train_mask is None:
        data = data.with_split()
        say(args, f"{data.name} has no masks; split at random, 20 training nodes per class (seed 0)")
    for name, mask in (("train_mask", data.train_mask), ("test_mask", data.test_mask)):
        if mask is None or not mask.any():
            raise ValueError(f"graph {data.name!r}: {name} selects no node; select some")
    return data
