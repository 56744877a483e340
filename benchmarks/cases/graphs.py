"""Graphs for benchmarks: real ones if their files exist, else seeded synthetic ones of the same size; the caller is told which.

Files are ``NAME.npz`` in the folder named by ``BITSPARSE_DATA``, else in ``../shared/data`` next to the checkout.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal

from bitsparse.datasets import GraphData, read_npz, synthetic

__all__ = ["SIZES", "file_of", "graph", "stands_in"]

#: Nodes, stored entries (an even number, as the papers that use the graph count them) and the kind of synthetic graph that stands in.
SIZES: dict[str, tuple[int, int, Literal["power_law", "communities"]]] = {
    "cora": (2_708, 10_556, "communities"),
    "citeseer": (3_327, 9_228, "communities"),
    "pubmed": (19_717, 88_652, "communities"),
    "artist": (50_515, 1_638_396, "power_law"),
    "amazon_computers": (13_752, 491_722, "power_law"),
    "soc_slashdot0902": (82_168, 948_464, "power_law"),
    "web_notredame": (325_729, 1_497_134, "power_law"),
    "ss_pkustk04": (55_590, 4_218_660, "communities"),
    "PROTEINS_full": (43_471, 162_088, "communities"),
    "DD": (334_925, 1_686_092, "communities"),
    "COLLAB": (372_474, 24_574_996, "communities"),
    "ppi": (56_944, 1_637_432, "communities"),
    "OVCAR-8H": (1_890_931, 3_946_402, "communities"),
    "Yeast": (1_714_644, 3_636_546, "communities"),
    "YeastH": (3_139_988, 6_487_230, "communities"),
    "amazon0505": (410_236, 4_878_876, "power_law"),
    "com-amazon": (334_863, 1_851_744, "power_law"),
    "soc-BlogCatalog": (88_784, 4_186_390, "power_law"),
    "amazon0601": (403_394, 3_387_388, "power_law"),
}


def file_of(name: str) -> Path | None:
    """The graph's file if it exists, else None."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("BITSPARSE_DATA") or beside) / f"{name}.npz"
    return path if path.is_file() else None


def stands_in(name: str) -> str:
    """The description of the synthetic graph that stands in."""
    return f"synthetic {SIZES[name][2]} graph of the size of {name}, seed 0"


@cache
def graph(name: str) -> tuple[GraphData, str]:
    """The graph, and the name of its file or the description of the one that stands in."""
    path = file_of(name)
    if path is not None:
        return read_npz(path), path.name
    nodes, entries, kind = SIZES[name]
    return synthetic((nodes, entries), kind), stands_in(name)
