"""Results in a file that is whole or not there, and a journal by which an interrupted run goes on."""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bitsparse._files import open_new, open_plain, publish, replacing
from bitsparse.errors import FileFormatError
from bitsparse.graph.packets import Group, Packets
from bitsparse.graph.parts import graph_hash
from bitsparse.nn.cluster.lock import RunLock
from bitsparse.nn.features import pieces

_Array = NDArray[Any]
_FUNCTION = "ClusterRunner.run"
#: Lines of a journal, exactly as they are written: whose run it is, then for each finished group a checksum of its rows in the file.
_HEAD = re.compile(rb'\{"bitsparse": "journal 1", "run": "([0-9a-f]{0,64})"\}')
_ENTRY = re.compile(rb'\{"group": ([0-9]{1,10}), "rows": "([0-9a-f]{32})"\}')
_LINE_BYTES = 128


class ArraySink:
    """Where the logits of groups go, in node order: an array in memory, or a memmap of the caller's.

    Attributes
    ----------
    rows : ndarray of float32
        The logits of all nodes in the nodes' order, to be written to.
    """

    rows: Any
    #: Groups that an earlier run had finished.
    resumed = 0

    def __init__(self, out: _Array, order: NDArray[np.int32]) -> None:
        self.rows, self._order = out, order

    def missing(self, groups: Sequence[Group]) -> list[Group]:
        """The groups whose logits no run before this one has left here: all, as an array does not tell."""
        return list(groups)

    def put(self, group: Group, logits: _Array | None) -> None:
        """Take the logits of a group's nodes, in their new order; None: they stand in :attr:`rows`."""
        if logits is not None:
            self.rows[self._order[group.low : group.high]] = logits

    def finish(self) -> Any:
        """All groups are there; gives the result."""
        return self.rows

    def abandon(self) -> None:
        """The run ends early; what was written stays in the caller's array."""


class NotedSink(ArraySink):
    """Rows of a file, of which finished groups are noted in a journal, if there is one."""

    _notes: Any = None

    def put(self, group: Group, logits: _Array | None) -> None:
        """Rows to their nodes; noted once they are on disk."""
        super().put(group, logits)
        if self._notes is not None:
            self.rows.flush()
            self._notes.write(line_of(group.number, checksum(group, self.rows, self._order)))
            self._notes.flush()
            os.fsync(self._notes.fileno())


class FileSink(NotedSink):
    """A ``.npy`` file: written under another name beside its own, moved there when it is whole.

    One run at a time writes to a path (:class:`RunLock`). Without `resume` the rows have a name that nobody can guess. With it they are
    ``PATH.partial``, and ``PATH.journal`` holds the name of the run and a checksum of the rows of each finished group, written once the
    rows are on the disk. Neither is ever written through a link.

    Parameters
    ----------
    path : Path
    shape : tuple of int
    order : ndarray of int32
        The node with each new number.
    key : str
        A name for the run: only the same graph, features, model and settings may go on.
    resume : bool
        Keep what is done when a run ends early, and begin where an earlier one ended. Otherwise what such a run has left is deleted.

    Raises
    ------
    LockError
        Another run is writing to the path.
    FileFormatError
        The journal is damaged or another program's, or the rows beside it are not those that it notes.
    ValueError
        The journal belongs to another run.
    OSError
        The files cannot be made: no such folder, no room, a link or a folder in their place.
    """

    def __init__(self, path: Path, shape: tuple[int, int], order: NDArray[np.int32], key: str, resume: bool) -> None:
        super().__init__(np.empty(0, np.float32), order)
        self._path, self._key, self._resume = path, key, resume
        if path.is_dir():
            raise IsADirectoryError(f"{_FUNCTION}: {str(path)!r} is a folder; name a file")
        self._lock = RunLock(_FUNCTION, path)
        self._file: Any = None
        try:
            self._begin(shape)
        except BaseException:
            self.abandon()
            raise

    def _begin(self, shape: tuple[int, int]) -> None:
        partial, self._journal = Path(f"{self._path}.partial"), Path(f"{self._path}.journal")
        self._done = self._left_over(partial)
        header = _npy_header(shape)
        if not self._resume:
            self.rows_name = self._path.with_name(f".{self._path.name[:100]}.{secrets.token_hex(8)}")
            self._map(open_new(self.rows_name), header, shape)
            return
        self.rows_name = partial
        if self._done:
            file = open_plain(partial, write=True)
            start = os.fstat(file.fileno()).st_size, file.read(len(header))
            wanted = len(header) + 4 * shape[0] * shape[1], header
            if start != wanted:
                file.close()
                raise FileFormatError(
                    f"{_FUNCTION}: {str(partial)!r} has {start[0]} bytes, but those that {self._journal.name!r} notes are an array of "
                    f"shape {shape} in {wanted[0]} bytes; delete both files to start again"
                )
            self._map(file, header, shape, new=False)
            return  # the journal stays as it is until its rows have been looked at
        self._write_journal()
        try:
            self._map(open_new(partial), header, shape)
        except FileExistsError:
            self._journal.unlink()
            raise FileExistsError(
                f"{_FUNCTION}: {str(partial)!r} is there without a journal that says what it holds; move it away"
            ) from None

    def _write_journal(self) -> None:
        """The journal of what is done, whole, so that a cut-off line of the last run is gone; groups are noted behind it."""
        with replacing(self._journal) as stream:
            stream.write(b'{"bitsparse": "journal 1", "run": "%s"}\n' % self._key.encode())
            stream.writelines(line_of(number, rows) for number, rows in self._done.items())
        self._notes = open_plain(self._journal, write=True)
        self._notes.seek(0, os.SEEK_END)

    def _left_over(self, partial: Path) -> dict[int, str]:
        """Groups that an earlier run has finished, with checksums; what is of no use of that run's files is deleted."""
        most = _LINE_BYTES * (self._order.size + 2)
        try:
            with open_plain(self._journal) as stream:
                data = stream.read(most + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            if not self._resume:
                return {}
            raise OSError(f"{_FUNCTION}: {str(self._journal)!r} cannot be opened ({error}); move it away") from None
        head, _, rest = data.partition(b"\n")
        match = _HEAD.fullmatch(head)
        if match is None:
            if not self._resume:  # another program's, which does not matter here
                return {}
            raise self._damaged("its first line names no run")
        if self._resume and len(data) > most:
            raise self._damaged(f"it has more than the {most} bytes of {self._order.size} groups")
        there = os.path.lexists(partial)
        if self._resume and there and match[1].decode() != self._key:
            raise ValueError(
                f"{_FUNCTION}: {self._journal} belongs to a run with another graph, features, model or settings; repeat that one, or "
                f"delete {self._journal} and {partial}"
            )
        done = self._entries(rest) if self._resume and there else {}
        if not done:
            if there:
                partial.unlink()
            self._journal.unlink()
        return done

    def _entries(self, text: bytes) -> dict[int, str]:
        lines = text.split(b"\n")[:-1]  # a last line without its end was cut off where the machine stopped
        done: dict[int, str] = {}
        for number, line in enumerate(lines, 2):
            match = _ENTRY.fullmatch(line)
            if match is None or int(match[1]) in done:
                raise self._damaged(f"line {number} is no entry of a group")
            done[int(match[1])] = match[2].decode()
        return done

    def _damaged(self, why: str) -> FileFormatError:
        return FileFormatError(
            f"{_FUNCTION}: {str(self._journal)!r} is not a whole journal of bitsparse: {why}; delete it and "
            f"{self._path.name + '.partial'!r} to start again"
        )

    def _map(self, file: BinaryIO, header: bytes, shape: tuple[int, int], new: bool = True) -> None:
        self._file = file
        if new:
            file.write(header)
            file.flush()
            # Room on the disk is taken now: a mapped file that finds none later ends the process.
            _reserve(file.fileno(), len(header) + 4 * shape[0] * shape[1])
        self.rows = np.memmap(file, np.float32, "r+", len(header), shape)

    def missing(self, groups: Sequence[Group]) -> list[Group]:
        """The groups that no earlier run has finished.

        Raises
        ------
        FileFormatError
            The rows of a group are not those that the journal notes.
        """
        numbers = {group.number for group in groups}
        if not numbers.issuperset(self._done):
            raise self._damaged(f"it notes group {max(self._done)} of {len(groups)}")
        for group in groups:
            if group.number in self._done and checksum(group, self.rows, self._order) != self._done[group.number]:
                raise FileFormatError(
                    f"{_FUNCTION}: rows of group {group.number} in {str(self.rows_name)!r} are not those that {self._journal.name!r} "
                    f"notes; delete both files to start again"
                )
        if self._resume and self._notes is None:
            self._write_journal()
        self.resumed = len(self._done)
        return [group for group in groups if group.number not in self._done]

    def finish(self) -> _Array:
        """The file under its name, mapped for reading."""
        self.rows.flush()
        self.rows = None
        publish(self._file, self.rows_name, self._path)
        if self._resume:
            self._journal.unlink(missing_ok=True)
        made: _Array = np.load(self._path, mmap_mode="r")
        self._close()
        return made

    def abandon(self) -> None:
        """Nothing stays but what a run can go on from."""
        if self._file is not None and not self._resume:
            self.rows_name.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        self.rows = None
        for stream in (self._file, self._notes):
            if stream is not None:
                stream.close()
        self._lock.release()


def run_key(graph: Any, packets: Packets, model: Any, features: Any) -> str:
    """A name for a run: graph, parts, settings, model, and every row of the features."""
    digest = hashlib.blake2b(graph_hash(graph).encode(), digest_size=16)
    digest.update(packets.order.tobytes())
    digest.update(packets.blocks.tobytes())
    digest.update(repr((packets.batches.tolist(), packets.group_nodes, model.fingerprint())).encode())
    digest.update(repr((features.shape, str(features.dtype))).encode())
    for part in pieces(packets.nodes, features.shape[1], features.dtype.itemsize):
        rows = features[part]
        digest.update((rows if isinstance(rows, np.ndarray) else rows.toarray()).tobytes())
    return digest.hexdigest()


def _npy_header(shape: tuple[int, int]) -> bytes:
    """What stands before the values of a float32 array in a ``.npy`` file."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def checksum(group: Group, rows: _Array, order: NDArray[np.int32]) -> str:
    """Of the rows of a group's nodes."""
    held: Any = np.ascontiguousarray(rows[order[group.low : group.high]])
    return hashlib.blake2b(held, digest_size=16).hexdigest()


def line_of(group: int, rows: str) -> bytes:
    """What a journal says of a group whose rows have this checksum."""
    return b'{"group": %d, "rows": "%s"}\n' % (group, rows.encode())


def _reserve(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)
