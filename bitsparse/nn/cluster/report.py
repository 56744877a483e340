"""The report of a run over batches: sizes, bytes moved, and the time of each stage."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bitsparse._text import duration, size


@dataclass
class ClusterReport:
    """Facts and times of one run of a :class:`ClusterRunner`.

    Attributes
    ----------
    device, model : str
    nodes, edges, dropped : int
        The nodes, the edges inside blocks (including added self loops), and the edges that leave their block.
    parts, batches, groups : int
        A group consists of batches that are copied and computed together.
    forms : dict
        The number of groups that were aggregated in each form.
    bytes_moved, adjacency_bytes, feature_bytes : int
        Bytes copied from host to device in one epoch: all, those of the adjacency, and those of the features.
    float_bytes : int
        Bytes of the same batches as an int64 edge list without self loops and float32 features.
    tiles, tiles_used : int
        The 8 x 128 tiles of the groups' dense adjacency, and those that hold an edge; 0 if not counted.
    seconds, pack_seconds, gather_seconds : float
        Times of the whole run, of packing (which overlaps with the rest if a GPU computes), and of putting results into node order.
    copy_ms, compute_ms, idle_share : float or None
        Measured by events on a GPU (``timed=True``): the times of copies and of kernels, and the share of the time between the first and
        the last kernel in which neither a copy nor a kernel ran. On a CPU `compute_ms` is the time of the network.
    resumed : int
        The number of groups that an earlier run had finished.
    """

    device: str
    model: str
    nodes: int = 0
    edges: int = 0
    dropped: int = 0
    parts: int = 0
    batches: int = 0
    groups: int = 0
    forms: dict[str, int] = field(default_factory=dict)
    bytes_moved: int = 0
    adjacency_bytes: int = 0
    feature_bytes: int = 0
    float_bytes: int = 0
    tiles: int = 0
    tiles_used: int = 0
    seconds: float = 0.0
    pack_seconds: float = 0.0
    gather_seconds: float = 0.0
    copy_ms: float | None = None
    compute_ms: float | None = None
    idle_share: float | None = None
    resumed: int = 0

    @property
    def tiles_skipped(self) -> float:
        """The share of the tiles that hold no edge."""
        return 1.0 - self.tiles_used / self.tiles if self.tiles else 0.0

    @property
    def title(self) -> str:
        """A title for a picture: the network, the device, the nodes and the bytes moved."""
        return f"{self.model} on {self.device}, {self.nodes} nodes, {size(self.bytes_moved)} moved"

    def stages(self) -> list[tuple[str, float]]:
        """The names of the stages and their seconds.

        Examples
        --------
        >>> ClusterReport("cpu", "gcn", pack_seconds=0.5).stages()
        [('packing', 0.5), ('results', 0.0)]
        """
        stages = [("packing", self.pack_seconds)]
        for name, value in (("copies", self.copy_ms), ("network", self.compute_ms)):
            stages += [] if value is None else [(name, value / 1000)]
        return [*stages, ("results", self.gather_seconds)]

    def record(self) -> dict[str, Any]:
        """All fields as one JSON object."""
        return asdict(self) | {"tiles_skipped": round(self.tiles_skipped, 6)}

    def __str__(self) -> str:
        share = self.float_bytes / self.bytes_moved if self.bytes_moved else 0.0
        forms = ", ".join(f"{count} {name}" for name, count in self.forms.items()) or "none"
        lines = [
            f"{self.model} on {self.device}: {self.nodes} nodes, {self.edges} edges kept, {self.dropped} between parts left out",
            f"{self.parts} parts, {self.batches} batches in {self.groups} group{'' if self.groups == 1 else 's'} ({forms})"
            + (f", {self.resumed} done before" if self.resumed else ""),
            f"{size(self.bytes_moved)} moved ({size(self.adjacency_bytes)} adjacency, {size(self.feature_bytes)} features), "
            f"{share:.1f} times less than edge lists and float32",
        ]
        if self.tiles:
            lines.append(f"{100 * self.tiles_skipped:.1f} % of {self.tiles} tiles of 8 x 128 are empty")
        times = [f"{name} {duration(seconds)}" for name, seconds in self.stages()]
        times += [f"idle {100 * self.idle_share:.1f} %"] if self.idle_share is not None else []
        return "\n".join([*lines, f"{duration(self.seconds)}: " + ", ".join(times)])
