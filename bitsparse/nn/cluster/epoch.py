"""The packets of an epoch, kept to run more than once."""

from __future__ import annotations

from collections.abc import Iterable

from bitsparse.graph.operand import tiles_of
from bitsparse.graph.packets import FeatureForm, Packet, Packets

__all__ = ["PackedEpoch", "tiles_in"]


def tiles_in(packets: Iterable[Packet]) -> tuple[int, int]:
    """8 x 128 tiles of the packets' dense adjacency, and those that hold an edge: a pass over the edges."""
    counts = [tiles_of(*packet.pattern()) for packet in packets]
    return sum(every for every, _ in counts), sum(used for _, used in counts)


class PackedEpoch:
    """All packets of one epoch, ready to travel; made by :meth:`ClusterRunner.pack`.

    Attributes
    ----------
    packets : tuple of Packet
        In page-locked memory where the runner's device is a GPU.
    nbytes : int
        Bytes that one epoch moves from host to device.
    seconds : float
        Time it took to pack.
    owner : Packets
        Of the runner that packed it, the only one that may run it.
    """

    def __init__(self, packets: tuple[Packet, ...], form: FeatureForm, seconds: float, owner: Packets) -> None:
        self.packets, self.form, self.seconds, self.owner = packets, form, seconds, owner
        self.nbytes = sum(packet.nbytes for packet in packets)

    def facts(self) -> dict[str, int]:
        """Nodes, edges, groups and bytes, with the 8 x 128 tiles of the dense adjacency, which takes a pass over the edges."""
        tiles, used = tiles_in(self.packets)
        return self.owner.facts(self.form.row_bytes) | {"tiles": tiles, "tiles_with_edges": used}

    def check_owner(self, function: str, packets: Packets) -> None:
        """Another runner's packets hold other nodes in another order.

        Raises
        ------
        ValueError
            It was packed by another runner than the one of `packets`.
        """
        if self.owner is not packets:
            raise ValueError(
                f"{function}: the epoch of {self.owner.nodes} nodes in {len(self.packets)} groups was packed by another runner than "
                f"this one of {packets.nodes} nodes in {len(packets.groups)} groups; pack it with this runner's pack()"
            )
