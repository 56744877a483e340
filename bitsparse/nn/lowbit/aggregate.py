"""The 1-bit adjacency of a quantised network in three forms, all giving the same exact sums: dense bits, FRDC, TCTiledCSR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from bitsparse._check import shown
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR
from bitsparse.ops import Epilogue, matmul, plan_matmul, plan_spmm, spmm

__all__ = ["ADJACENCIES", "Aggregation", "chosen_adjacency"]

ADJACENCIES = ("dense", "frdc", "tiled", "auto")
#: Dense bits above this many bytes are never made unasked.
_DENSE_BYTES = 1 << 26
#: "auto" aggregates edge by edge on a CPU where fewer than one in so many positions holds one.
_SPARSE_BELOW = 64
#: On a GPU by the estimated microseconds of both: of a call, for each byte of dense bits, for each edge (the rates of an H200's memory and
#: of gathered rows).
_DENSE_US, _BYTE_US, _SPARSE_US, _EDGE_US = 5.0, 1 / 4.0e6, 8.0, 1 / 1.1e5


def chosen_adjacency(asked: str, nodes: int, edges: int, device: str = "cpu") -> Literal["dense", "frdc", "tiled"]:
    """The form to use: what is asked for, or for ``"auto"`` the sparse one where dense bits are large or slower.

    Raises
    ------
    ValueError
        There is no such form.

    Examples
    --------
    >>> chosen_adjacency("auto", 500_000, 10**6), chosen_adjacency("auto", 100, 900), chosen_adjacency("tiled", 100, 900)
    ('frdc', 'dense', 'tiled')
    >>> chosen_adjacency("auto", 2708, 10**4), chosen_adjacency("auto", 2708, 10**4, "cuda")
    ('frdc', 'dense')
    """
    if asked not in ADJACENCIES:
        raise ValueError(f"adjacency must be one of {', '.join(ADJACENCIES)}, got {shown(asked)}")
    if asked != "auto":
        return asked  # type: ignore[return-value]
    size = nodes * -(-nodes // 8)
    if size > _DENSE_BYTES:
        return "frdc"
    if device != "cpu":
        return "frdc" if _SPARSE_US + edges * _EDGE_US < _DENSE_US + size * _BYTE_US else "dense"
    return "frdc" if edges * _SPARSE_BELOW < nodes * nodes else "dense"


class Aggregation:
    """``A @ messages`` with an epilogue, for a 1-bit A in any of its forms.

    The sparse forms add up the messages' codes edge by edge, in integers (:func:`spmm`), and send the sums through the same epilogue as the
    dense product with the same corrections for offsets: equal sums, equal steps, equal results, on a CPU and on a GPU.

    Parameters
    ----------
    adjacency : BitTensor of one bit, FRDC or TCTiledCSR
        Without scales and values.

    Examples
    --------
    >>> from bitsparse.nn.lowbit.aggregate import Aggregation
    >>> pattern = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 1]], dtype=bool)
    >>> messages = bs.quantize(np.array([[0.0], [1.0], [3.0]]), 2)
    >>> plain = bs.Epilogue(offset_correction=True)
    >>> [Aggregation(form(pattern))(messages, plain).ravel().tolist() for form in (bs.BitTensor, bs.FRDC, bs.TCTiledCSR)]
    [[1.0, 1.0, 4.0], [1.0, 1.0, 4.0], [1.0, 1.0, 4.0]]
    """

    def __init__(self, adjacency: BitTensor | FRDC | TCTiledCSR) -> None:
        self.adjacency = adjacency
        self.shape: tuple[int, ...] = adjacency.shape

    def to_device(self, device: str) -> Aggregation:
        """The same on ``device``; itself if it is there already."""
        if device == self.adjacency.device:
            return self
        moved: Any = self.adjacency.to_device(device)
        return Aggregation(moved)

    @property
    def nbytes(self) -> int:
        """Bytes of the form as stored."""
        return int(self.adjacency.nbytes)

    def message_form(self, bits: int) -> dict[str, Any]:
        """Packed axis and layout in which this adjacency reads messages without converting them."""
        if isinstance(self.adjacency, BitTensor):
            return {"axis": -2, "layout": "planes"}
        return {"axis": -1, "layout": "rows" if bits in (2, 4, 8, 16) else "planes"}

    def plan(self, columns: int, bits: int, epilogue: Epilogue) -> Callable[[BitTensor], Any]:
        """The same as a function of messages of ``columns`` unsigned integers of ``bits`` bits, with what does not change prepared."""
        if isinstance(self.adjacency, BitTensor):
            return plan_matmul(self.adjacency, columns, bits=bits, epilogue=epilogue)
        return plan_spmm(self.adjacency, columns, bits=bits, epilogue=epilogue)

    def __call__(self, messages: BitTensor, epilogue: Epilogue) -> Any:
        """The sums through the epilogue: float32, or a BitTensor if it requantises."""
        if isinstance(self.adjacency, BitTensor):
            return matmul(self.adjacency, messages, epilogue=epilogue)
        return spmm(self.adjacency, messages, epilogue=epilogue)
