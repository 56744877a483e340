"""Runs over batches on several ranks: the groups of each rank, and one file that all of them write."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse._communicator import Communicator, agree, gathered_parts, gathered_text, gathered_values, together
from bitsparse._files import open_end, open_plain
from bitsparse.graph.adjacency import square_pattern
from bitsparse.graph.packets import Group, Packets
from bitsparse.graph.parts import cached_partition, graph_hash
from bitsparse.nn.cluster.journal import FileSink, NotedSink

_Array = NDArray[Any]
_FUNCTION = "ClusterRunner.run"


def dealt(groups: Sequence[Group], size: int) -> list[list[Group]]:
    """Deal groups out to ranks: the largest first, each to the rank that has least so far. Each rank keeps the order of its groups.

    Examples
    --------
    >>> sizes = [(0, 5), (1, 9), (2, 4)]
    >>> made = dealt([Group(number, 1, 0, nodes, 0, 0, 0, 0, 0) for number, nodes in sizes], 2)
    >>> [[group.number for group in mine] for mine in made]
    [[1], [0, 2]]
    """
    hands: list[list[Group]] = [[] for _ in range(size)]
    held = [0] * size
    for group in sorted(groups, key=lambda group: (-(group.entries + group.nodes), group.number)):
        least = held.index(min(held))
        hands[least].append(group)
        held[least] += group.entries + group.nodes
    return [sorted(hand, key=lambda group: group.number) for hand in hands]


def parts_of(
    function: str, graph: Any, parts: int, seed: int, cache: bool | str | Path, comm: Communicator | None
) -> NDArray[Any]:
    """METIS's part of each node, kept on disk unless `cache` is False. With a communicator, the first rank cuts and sends it to all."""

    def cut() -> NDArray[Any]:
        return cached_partition(graph, parts, seed=seed, cache=cache)[0]

    if comm is None:
        return cut()
    with together(comm, function):
        nodes = square_pattern(function, graph).shape[0]
        labels: NDArray[Any] = cut() if comm.rank == 0 else np.zeros(nodes, np.int32)
    agree(comm, function, nodes=nodes)
    return gathered_values(comm, labels)[0]


class SharedSink(NotedSink):
    """One ``.npy`` file for all ranks of a machine. The first rank makes and publishes it; each rank writes the rows of its groups.

    All ranks append their finished groups to one journal.

    Parameters
    ----------
    comm : Communicator
    path : Path
    order : ndarray of int32
        The node at each place of the new order.
    shape : tuple of int
    key : str
        As in :class:`FileSink`.
    resume : bool
    """

    def __init__(
        self, comm: Communicator, path: Path, shape: tuple[int, int], order: NDArray[np.int32], key: str, resume: bool
    ) -> None:
        super().__init__(np.empty(0, np.float32), order)
        self._comm, self._path = comm, path
        self._own: FileSink | None = None
        agree(comm, _FUNCTION, resume=resume, path=path.name, run=key)
        with together(comm, _FUNCTION):
            if comm.rank == 0:
                self._own = FileSink(path, shape, order, key, resume)
                self.rows = self._own.rows
        names = gathered_text(comm, "" if self._own is None else str(self._own.rows_name.absolute()))
        try:
            with together(comm, _FUNCTION):
                if self._own is None:
                    # Map the rows that the first rank has made.
                    with open_plain(names[0], write=True) as file:
                        at = os.fstat(file.fileno()).st_size - 4 * shape[0] * shape[1]
                        self.rows = np.memmap(file, np.float32, "r+", at, shape)
        except BaseException:
            self.abandon()
            raise
        self._journal = Path(f"{path}.journal") if resume else None

    def missing(self, groups: Sequence[Group]) -> list[Group]:
        """The groups of this rank among those that no earlier run has finished."""
        todo: list[Group] = []
        with together(self._comm, _FUNCTION):
            if self._own is not None:
                todo = self._own.missing(groups)
        flags = np.zeros(len(groups), np.int64)
        flags[[i for i, group in enumerate(groups) if group in todo]] = 1
        left = [group for group, flag in zip(groups, gathered_values(self._comm, flags)[0], strict=True) if flag]
        self.resumed = len(groups) - len(left)
        if self._journal is not None:
            # Like the others, the first rank appends to the current end of the journal.
            self._notes = open_end(self._journal)
        return dealt(left, self._comm.size)[self._comm.rank]

    def finish(self) -> Any:
        """After all ranks have written, give the file its name and return it mapped for reading."""
        with together(self._comm, _FUNCTION):
            self.rows.flush()
        with together(self._comm, _FUNCTION):
            if self._own is not None:
                self._own.finish()
        self._close()
        return np.load(self._path, mmap_mode="r")

    def abandon(self) -> None:
        """End the run early; only files from which a run can resume stay."""
        self._close()
        if self._own is not None:
            self._own.abandon()

    def _close(self) -> None:
        self.rows = None
        if self._notes is not None:
            self._notes.close()
            self._notes = None


def shared(comm: Communicator, mine: NDArray[Any], logits: Any) -> None:
    """Fill in the rows of the nodes of other ranks.

    Parameters
    ----------
    comm : Communicator
    mine : ndarray of int
        The nodes of this rank.
    logits : array (n, classes)
        A NumPy or CuPy array for all nodes, which is written to.
    """
    space: Any = interop.namespace(logits)
    nodes, rows = gathered_parts(comm, mine), gathered_parts(comm, logits[space.asarray(mine)])
    for rank in range(comm.size):
        if rank != comm.rank:
            logits[space.asarray(nodes[rank])] = rows[rank]


def agree_on(function: str, comm: Communicator, graph: Any, packets: Packets, model: Any) -> None:
    """Raise if the ranks have different graphs, parts or models."""
    with together(comm, function):
        places = hashlib.blake2b(packets.order.tobytes() + packets.blocks.tobytes(), digest_size=16).hexdigest()
        name = model.fingerprint() if hasattr(model, "fingerprint") else model.name
        batches = [packets.batches.tolist(), packets.group_nodes]
        facts = {"hash of the graph": graph_hash(graph), "hash of the parts": places, "model": name, "batches": batches}
    agree(comm, function, **facts)
