"""Data sets: readers of graph files, seeded synthetic graphs, and a real graph that needs no download."""

from bitsparse.datasets.digits import digits
from bitsparse.datasets.graph_data import GraphData
from bitsparse.datasets.planetoid import read_planetoid
from bitsparse.datasets.readers import read, read_npz, recognise
from bitsparse.datasets.synthetic import SIZES, synthetic, synthetic_csr
from bitsparse.datasets.text import read_edges, read_mtx

__all__ = [
    "SIZES",
    "GraphData",
    "digits",
    "read",
    "read_edges",
    "read_mtx",
    "read_npz",
    "read_planetoid",
    "recognise",
    "synthetic",
    "synthetic_csr",
]
