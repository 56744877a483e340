"""The packets of an epoch, kept to run more than once."""

from __future__ import annotations

import numpy as np

from bitsparse.graph.operand import tiles_of
from bitsparse.graph.packets import FeatureForm, Packet, Packets

__all__ = ["PackedEpoch"]


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
        groups = [packet.group for packet in self.packets]
        tiles = np.sum([tiles_of(*packet.pattern()) for packet in self.packets] or [(0, 0)], axis=0)
        nodes = sum(group.nodes for group in groups)
        features = nodes * self.form.row_bytes
        return {
            "nodes": nodes,
            "edges": sum(group.entries for group in groups),
            "dropped": sum(group.dropped for group in groups),
            "batches": sum(group.batches for group in groups),
            "groups": len(groups),
            "tiles": int(tiles[0]),
            "tiles_with_edges": int(tiles[1]),
            "adjacency_bytes": self.nbytes - features,
            "feature_bytes": features,
        }

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
