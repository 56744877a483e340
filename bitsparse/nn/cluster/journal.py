"""Where a run writes its results: an array, or a file that appears only when complete, with a journal from which a run can resume."""

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
#: The lines of a journal, exactly as they are written: first the key of the run, then a checksum of the rows of each finished group.
_HEAD = re.compile(rb'\{"bitsparse": "journal 1", "run": "([0-9a-f]{0,64})"\}')
_ENTRY = re.compile(rb'\{"group": ([0-9]{1,10}), "rows": "([0-9a-f]{32})"\}')
_LINE_BYTES = 128


class ArraySink:
    """An array in memory or a memmap of the caller's that receives the logits of groups, in node order.

    Attributes
    ----------
    rows : ndarray of float32
        The logits of all nodes, in the order of the nodes.
    """

    rows: Any
    #: Number of groups that an earlier run had finished.
    resumed = 0

    def __init__(self, out: _Array, order: NDArray[np.int32]) -> None:
        self.rows, self._order = out, order

    def missing(self, groups: Sequence[Group]) -> list[Group]:
        """The groups whose logits are still to be computed: all, since an array does not tell which rows an earlier run wrote."""
        return list(groups)

    def put(self, group: Group, logits: _Array | None) -> None:
        """Store the logits of a group's nodes, given in the new order of the nodes; None if they are in :attr:`rows` already."""
        if logits is not None:
            self.rows[self._order[group.low : group.high]] = logits

    def finish(self) -> Any:
        """Return the result, after all groups have been put."""
        return self.rows

    def abandon(self) -> None:
        """End the run early; what was written stays in the caller's array."""


class NotedSink(ArraySink):
    """A sink for rows of a file, which notes each finished group in a journal, if there is one."""

    _notes: Any = None

    def put(self, group: Group, logits: _Array | None) -> None:
        """Store the logits of a group's nodes, and note the group once they are on the disk."""
        super().put(group, logits)
        if self._notes is not None:
            self.rows.flush()
            self._notes.write(line_of(group.number, checksum(group, self.rows, self._order)))
            self._notes.flush()
            os.fsync(self._notes.fileno())


class FileSink(NotedSink):
    """A sink that writes a ``.npy`` file under a temporary name in the same folder, and renames it when it is complete.

    Only one run at a time writes to a path (:class:`RunLock`). Without `resume`, the temporary name cannot be guessed. With it, the name is
    ``PATH.partial``, and ``PATH.journal`` holds the key of the run and a checksum of the rows of each finished group, written once the
    rows are on the disk. Neither file is ever written through a link.

    Parameters
    ----------
    path : Path
    shape : tuple of int
    order : ndarray of int32
        The node at each place of the new order.
    key : str
        Identifies the run, so that it is resumed only with the same graph, features, model and settings.
    resume : bool
        Keep finished groups if this run ends early, and start from those that an earlier run finished. Otherwise the files that an earlier
        run left are deleted.

    Raises
    ------
    LockError
        Another run is writing to the path.
    FileFormatError
        The journal is damaged or written by another program, or its checksums do not match the rows.
    ValueError
        The journal belongs to another run.
    OSError
        The files cannot be made: the folder does not exist, the disk is full, or a link or a folder has their name.
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
            found = os.fstat(file.fileno()).st_size, file.read(len(header))
            wanted = len(header) + 4 * shape[0] * shape[1], header
            if found != wanted:
                file.close()
                raise FileFormatError(
                    f"{_FUNCTION}: {str(partial)!r} has {found[0]} bytes, but {self._journal.name!r} belongs to an array of shape {shape} "
                    f"in {wanted[0]} bytes; delete both files to start again"
                )
            self._map(file, header, shape, new=False)
            return  # the journal is rewritten only after its checksums have been compared with the rows
        self._write_journal()
        try:
            self._map(open_new(partial), header, shape)
        except FileExistsError:
            self._journal.unlink()
            raise FileExistsError(
                f"{_FUNCTION}: {str(partial)!r} exists, but no journal says what it holds; move it away"
            ) from None

    def _write_journal(self) -> None:
        """Rewrite the whole journal of finished groups, which removes a line that an interrupted run cut off, and open it to append."""
        with replacing(self._journal) as stream:
            stream.write(b'{"bitsparse": "journal 1", "run": "%s"}\n' % self._key.encode())
            stream.writelines(line_of(number, rows) for number, rows in self._done.items())
        self._notes = open_plain(self._journal, write=True)
        self._notes.seek(0, os.SEEK_END)

    def _left_over(self, partial: Path) -> dict[int, str]:
        """The groups that an earlier run finished, with their checksums; files of that run that are of no use are deleted."""
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
            if not self._resume:  # another program wrote it, which does not matter if nothing is resumed
                return {}
            raise self._damaged("its first line names no run")
        if self._resume and len(data) > most:
            raise self._damaged(f"it has more than {most} bytes, the most that {self._order.size} groups need")
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
        lines = text.split(b"\n")[:-1]  # a last line without a newline was cut off when the machine stopped
        done: dict[int, str] = {}
        for number, line in enumerate(lines, 2):
            match = _ENTRY.fullmatch(line)
            if match is None or int(match[1]) in done:
                raise self._damaged(f"line {number} is not the entry of a group, or repeats one")
            done[int(match[1])] = match[2].decode()
        return done

    def _damaged(self, why: str) -> FileFormatError:
        return FileFormatError(
            f"{_FUNCTION}: {str(self._journal)!r} is not a complete journal of bitsparse: {why}; delete it and "
            f"{self._path.name + '.partial'!r} to start again"
        )

    def _map(self, file: BinaryIO, header: bytes, shape: tuple[int, int], new: bool = True) -> None:
        self._file = file
        if new:
            file.write(header)
            file.flush()
            # Space on the disk is allocated now: if it ran out later, writing to the mapped file would kill the process.
            _reserve(file.fileno(), len(header) + 4 * shape[0] * shape[1])
        self.rows = np.memmap(file, np.float32, "r+", len(header), shape)

    def missing(self, groups: Sequence[Group]) -> list[Group]:
        """The groups that no earlier run has finished.

        Raises
        ------
        FileFormatError
            The checksum of a group's rows is not the one in the journal.
        """
        numbers = {group.number for group in groups}
        if not numbers.issuperset(self._done):
            raise self._damaged(f"it notes group {max(self._done)}, but there are {len(groups)}, counted from 0")
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
        """Give the file its name, and return it mapped for reading."""
        self.rows.flush()
        self.rows = None
        publish(self._file, self.rows_name, self._path)
        if self._resume:
            self._journal.unlink(missing_ok=True)
        made: _Array = np.load(self._path, mmap_mode="r")
        self._close()
        return made

    def abandon(self) -> None:
        """End the run early; only files from which a run can resume stay."""
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
    """A key that identifies a run: a hash of the graph, parts, settings, model, and all rows of the features."""
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
    """The bytes that precede the values of a float32 array in a ``.npy`` file."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def checksum(group: Group, rows: _Array, order: NDArray[np.int32]) -> str:
    """The checksum of the rows of a group's nodes."""
    held: Any = np.ascontiguousarray(rows[order[group.low : group.high]])
    return hashlib.blake2b(held, digest_size=16).hexdigest()


def line_of(group: int, rows: str) -> bytes:
    """The line of a journal for a group whose rows have this checksum."""
    return b'{"group": %d, "rows": "%s"}\n' % (group, rows.encode())


def _reserve(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)
