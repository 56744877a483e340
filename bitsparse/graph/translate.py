"""Sparse graph translation, under the name that the literature gives it."""

from __future__ import annotations

from typing import Any

from bitsparse.arrays import TCTiledCSR

__all__ = ["translate"]


def translate(
    graph: Any, *, window: int = 16, pattern: bool = False, row_scale: Any = None, col_scale: Any = None
) -> TCTiledCSR:
    """A CSR array with the columns of every window of rows condensed now (TC-GNN section 4.1, Algorithm 1), not at first use.

    Parameters
    ----------
    graph : sparse array, tuple, array_like, BitTensor, FRDC
        In any form that :class:`bitsparse.TCTiledCSR` takes.
    window : int, default 16
        Rows per window, 1..16.
    pattern : bool, default False
        Drop the values.
    row_scale, col_scale : array_like of float, optional
        float32 factors of shapes (m,) and (n,).

    Returns
    -------
    TCTiledCSR

    Examples
    --------
    >>> from bitsparse import graph
    >>> a = graph.translate((None, ([0, 1, 1], [7, 7, 900])))
    >>> a.shape, a.cols, a.tile_count(8)
    ((2, 901), array([  7, 900], dtype=int32), 1)
    """
    translated = TCTiledCSR(graph, window=window, pattern=pattern, row_scale=row_scale, col_scale=col_scale)
    _ = translated.translation  # built, and kept
    return translated
