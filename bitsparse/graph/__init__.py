"""Graphs as networks sum over them, and what prepares them: translation, partitions, batches, orderings, incidence, tile statistics."""

from bitsparse.graph.batches import SubgraphBatch, batch
from bitsparse.graph.incidence import Incidence, incidence
from bitsparse.graph.operand import Graph
from bitsparse.graph.partition import partition
from bitsparse.graph.reorder import permute, reorder
from bitsparse.graph.statistics import TileStatistics, tile_statistics, zero_tile_share
from bitsparse.graph.translate import translate

__all__ = [
    "Graph",
    "Incidence",
    "SubgraphBatch",
    "TileStatistics",
    "batch",
    "incidence",
    "partition",
    "permute",
    "reorder",
    "tile_statistics",
    "translate",
    "zero_tile_share",
]
