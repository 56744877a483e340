"""Graphs for sums over neighbours, and their preparation: translation, partitions, batches, orderings, incidence, tile statistics."""

from bitsparse.graph.batches import SubgraphBatch, batch
from bitsparse.graph.incidence import Incidence, incidence
from bitsparse.graph.operand import Graph
from bitsparse.graph.parts import partition
from bitsparse.graph.reorder import permute, reorder
from bitsparse.graph.samplers import (
    BatchSampler,
    Block,
    NeighborSampler,
    SampledBatch,
    ahead,
)
from bitsparse.graph.subgraphs import ClusterSampler, SaintSampler
from bitsparse.graph.translation import TileStatistics, tile_statistics, translate, zero_tile_share

__all__ = [
    "BatchSampler",
    "Block",
    "ClusterSampler",
    "Graph",
    "Incidence",
    "NeighborSampler",
    "SaintSampler",
    "SampledBatch",
    "SubgraphBatch",
    "TileStatistics",
    "ahead",
    "batch",
    "incidence",
    "partition",
    "permute",
    "reorder",
    "tile_statistics",
    "translate",
    "zero_tile_share",
]
