"""Results in a file that is whole or not there, and a journal by which an interrupted run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bitsparse.graph.packets import Group

__all__ = ["ArraySink", "FileSink", "Sink"]

_Array = NDArray[Any]


class Sink(Protocol):
    """Where the logits of groups go."""

    @property
    def rows(self) -> _Array:
        """The logits of all nodes in the nodes' order, to be written to."""

    def done(self, group: Group) -> bool:
        """Whether a run before this one has left the group's logits here."""

    def put(self, group: Group, logits: _Array | None) -> None:
        """Take the logits of a group's nodes, in their new order; None: they stand in :attr:`rows`."""

    def finish(self) -> Any:
        """All groups are there; gives the result."""

    def abandon(self) -> None:
        """The run ends early."""


class ArraySink:
    """An array in memory (or a memmap of the caller's), in node order."""

    def __init__(self, out: _Array, order: NDArray[np.int32]) -> None:
        self._out, self._order = out, order

    def done(self, group: Group) -> bool:
        """Never: an array does not tell."""
        return False

    @property
    def rows(self) -> _Array:
        """The array."""
        return self._out

    def put(self, group: Group, logits: _Array | None) -> None:
        """Rows to their nodes."""
        if logits is not None:
            self._out[self._order[group.low : group.high]] = logits

    def finish(self) -> _Array:
        """The array."""
        return self._out

    def abandon(self) -> None:
        """What was written stays in the caller's array."""


class FileSink:
    """A ``.npy`` file: written beside its name, moved there when it is whole.

    Parameters
    ----------
    path : Path
        ``PATH.partial`` holds the rows until then and, with `resume`, ``PATH.journal`` the groups that are done.
    shape : tuple of int
    order : ndarray of int32
        The node with each new number.
    key : str
        A name for the run: only the same graph, features, model and settings may go on.
    resume : bool
        Keep what is done when a run ends early, and begin where an earlier one ended.

    Raises
    ------
    ValueError
        The journal belongs to another run.
    """

    def __init__(self, path: Path, shape: tuple[int, int], order: NDArray[np.int32], key: str, resume: bool) -> None:
        self._path, self._order, self._resume = path, order, resume
        self._partial, self._journal = Path(f"{path}.partial"), Path(f"{path}.journal")
        self._done: set[int] = set()
        self._stream: Any = None
        if resume and self._journal.exists() and self._partial.exists():
            self._done = self._read(key)
        if not self._done:  # rows of zeros are about to be, which no journal of an earlier run may call done
            self._journal.unlink(missing_ok=True)
        mode: Any = "r+" if self._done else "w+"
        self._rows: Any = np.lib.format.open_memmap(self._partial, mode=mode, dtype=np.float32, shape=shape)
        if self._rows.shape != shape or self._rows.dtype != np.float32:
            raise ValueError(
                f"{self._partial} holds {self._rows.shape}, but the run writes {shape}; delete it and its journal"
            )
        if resume:
            # Anew, since the last line may have been cut off, and the next one must not stand behind it.
            self._stream = open(self._journal, "w", encoding="utf-8")  # noqa: SIM115 - closed by finish, abandon
            self._line({"run": key})
            for number in sorted(self._done):
                self._line({"group": number})

    def _read(self, key: str) -> set[int]:
        found: set[int] = set()
        lines = self._journal.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            try:
                entry = json.loads(line)
            except ValueError:  # cut off where the machine stopped
                break
            if number == 0 and entry.get("run") != key:
                raise ValueError(
                    f"{self._journal} belongs to a run with another graph, features, model or settings; repeat that one, or delete "
                    f"{self._journal} and {self._partial}"
                )
            if number:
                found.add(int(entry["group"]))
        return found

    def _line(self, entry: dict[str, Any]) -> None:
        self._stream.write(json.dumps(entry) + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def done(self, group: Group) -> bool:
        """Whether an earlier run has written the group."""
        return group.number in self._done

    @property
    def rows(self) -> _Array:
        """The file, mapped."""
        mapped: _Array = self._rows
        return mapped

    def put(self, group: Group, logits: _Array | None) -> None:
        """Rows to their nodes; noted once they are on disk."""
        if logits is not None:
            self._rows[self._order[group.low : group.high]] = logits
        if self._stream is not None:
            self._rows.flush()
            self._line({"group": group.number})

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.flush()
            self._rows = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def finish(self) -> _Array:
        """The file under its name, mapped for reading."""
        self._close()
        os.replace(self._partial, self._path)
        self._journal.unlink(missing_ok=True)
        made: _Array = np.load(self._path, mmap_mode="r")
        return made

    def abandon(self) -> None:
        """Nothing stays but what a run can go on from."""
        self._close()
        if not self._resume:
            self._partial.unlink(missing_ok=True)
