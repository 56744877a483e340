"""Cases of the suite ``host`` for one-bit aggregation and sampled products, on the artist graph.

- ``bspmm-XYZ-artist-DN``: :func:`bitsparse.bspmm` of that variant with N features per node, against ``scipy.sparse`` float32 CSR ``@`` on
  the dense -1/+1 features. The adjacency is the bool pattern; the features are packed beforehand, as the previous layer leaves them.
- ``sampled-...-artist-DN-WM``: :func:`bitsparse.sampled_spmm` (AES) of at most M edges per row, against the product of all edges in SciPy;
  the quantised case reads 8-bit codes.

If the graph's file is missing, a seeded synthetic graph of the same size stands in, and the record says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases import graphs
from bitsparse.bench import Case, Prepared

__all__ = ["cases"]


def cases() -> list[Case]:
    """All cases."""
    table: list[tuple[str, Callable[[], Prepared]]] = [
        ("bspmm-bbb-artist-D128", partial(aggregate, "BBB", 128)),
        ("bspmm-bbb-artist-D512", partial(aggregate, "BBB", 512)),
        ("bspmm-bbb-bias-artist-D128", partial(aggregate, "BBB", 128, bias=True)),
        ("bspmm-bbf-artist-D128", partial(aggregate, "BBF", 128)),
        ("bspmm-fbb-artist-D128", partial(aggregate, "FBB", 128)),
        ("sampled-f32-artist-D64-W16", partial(sampled, 64, 16)),
        ("sampled-8bit-artist-D64-W16", partial(sampled, 64, 16, bits=8)),
    ]
    return [Case(name, prepare) for name, prepare in table]


@cache
def artist() -> tuple[Any, str]:
    """The graph as a bool CSR array, and its source."""
    data, source = graphs.graph("artist")
    return data.adjacency, source


def aggregate(variant: str, features: int, *, bias: bool = False) -> Prepared:
    """A variant of bspmm against SciPy's float32 product."""
    graph, source = artist()
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((graph.shape[1], features)).astype(np.float32)
    x: Any = bs.pack_bits(raw, encoding="bipolar") if variant[0] == "B" else raw
    dense = np.where(raw >= 0, np.float32(1), np.float32(-1)) if variant[0] == "B" else raw
    weights = graph.astype(np.float32)
    epilogue = bs.Epilogue(bias=rng.standard_normal(features), binarize=True) if bias else None

    def ours() -> Any:
        return bs.bspmm(graph, x, variant, epilogue=epilogue)

    def peer() -> Any:
        return weights @ dense

    result = ours()
    moved = sum(_bytes(part) for part in (graph.indices, graph.indptr, x, result))
    return Prepared(ours, peer, _peer_name(), {"graph": source, "nnz": int(graph.nnz), "features": features}, moved)


def sampled(features: int, width: int, *, bits: int | None = None) -> Prepared:
    """AES sampling and summing in one pass, against SciPy's product of all edges."""
    graph, source = artist()
    raw = np.random.default_rng(0).standard_normal((graph.shape[1], features)).astype(np.float32)
    x: Any = raw if bits is None else bs.quantize(raw, bits, layout="rows")
    weights = graph.astype(np.float32)
    sample = bs.edge_sample(graph, width)

    def ours() -> Any:
        return bs.sampled_spmm(graph, x, width)

    def peer() -> Any:
        return weights @ raw

    params = {"graph": source, "sampled": sample.nnz, "features": features, "width": width}
    return Prepared(
        ours, peer, _peer_name(), params, sum(_bytes(part) for part in (graph.indptr, sample.indices, x, ours()))
    )


def _bytes(part: Any) -> int:
    return int(part.nbytes)


def _peer_name() -> str:
    import scipy

    return f"scipy {scipy.__version__} float32 CSR @"
