"""What a run over batches did: sizes, bytes moved, and time of each stage."""

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
        Nodes; edges inside blocks (self loops that were put in are counted); edges that lead out of them.
    parts, batches, groups : int
        Groups are batches that travel and are computed together.
    forms : dict
        How many groups were aggregated in which form.
    bytes_moved, adjacency_bytes, feature_bytes : int
        Host to device in one epoch.
    float_bytes : int
        What the same batches take as an int64 edge list without self loops and float32 features.
    tiles, tiles_used : int
        8 x 128 tiles of the groups' dense adjacency, and those that hold an edge; 0 if not asked for.
    seconds, pack_seconds, gather_seconds : float
        Of the whole run; of packing (beside the rest where a GPU computes); of results on their way to node order.
    copy_ms, compute_ms, idle_share : float or None
        By events on a GPU (``timed=True``): copies; kernels; the share of the time between the first kernel and the last in which
        neither a copy nor a kernel was under way. On a CPU `compute_ms` is the time of the network.
    resumed : int
        Groups that an earlier run had finished.
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
        """Share of the tiles that hold no edge."""
        return 1.0 - self.tiles_used / self.tiles if self.tiles else 0.0

    @property
    def title(self) -> str:
        """What ran over how much, for a picture."""
        return f"{self.model} on {self.device}, {self.nodes} nodes, {size(self.bytes_moved)} moved"

    def stages(self) -> list[tuple[str, float]]:
        """Names and seconds of what took time.

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
        """Everything as one JSON object."""
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
