"""The 1-bit adjacency of a quantised network in three forms, all giving the same exact sums: dense bits, FRDC, TCTiledCSR."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR
from bitsparse.errors import DeviceError
from bitsparse.ops import Epilogue, bspmm, matmul, plan_matmul, spmm
from bitsparse.ops.terms import operand_terms

__all__ = ["ADJACENCIES", "Aggregation", "chosen_adjacency"]

ADJACENCIES = ("dense", "frdc", "tiled", "auto")
#: Dense bits above this many bytes are never made unasked.
_DENSE_BYTES = 1 << 26
#: "auto" aggregates edge by edge where fewer than one in so many positions holds one.
_SPARSE_BELOW = 64


def chosen_adjacency(asked: str, nodes: int, edges: int, device: str = "cpu") -> Literal["dense", "frdc", "tiled"]:
    """The form to use: what is asked for, or for ``"auto"`` the sparse one where dense bits are large or slower.

    On a GPU there are kernels for dense bits only, so ``"auto"`` takes them as long as they are not large.

    Raises
    ------
    ValueError
        There is no such form.
    DeviceError
        The form has no kernels on `device`, or ``"auto"`` would have to make large dense bits there.

    Examples
    --------
    >>> chosen_adjacency("auto", 500_000, 10**6), chosen_adjacency("auto", 100, 900), chosen_adjacency("tiled", 100, 900)
    ('frdc', 'dense', 'tiled')
    >>> chosen_adjacency("auto", 2708, 10**4), chosen_adjacency("auto", 2708, 10**4, "cuda")
    ('frdc', 'dense')
    """
    if asked not in ADJACENCIES:
        raise ValueError(f"adjacency must be one of {', '.join(ADJACENCIES)}, got {asked!r}")
    size = nodes * -(-nodes // 8)
    if device != "cpu":
        if asked not in ("dense", "auto"):
            raise DeviceError(
                f"adjacency {asked!r} has no kernels on {device!r} in this release; take 'dense' (--adjacency dense), or the CPU"
            )
        if asked == "auto" and size > _DENSE_BYTES:
            raise DeviceError(
                f"on {device!r} this release aggregates with dense bits only, {size / 1e6:.0f} MB for {nodes} nodes; ask for them "
                "with 'dense' (--adjacency dense), or take the CPU"
            )
        return "dense"
    if asked != "auto":
        return asked  # type: ignore[return-value]
    return "frdc" if size > _DENSE_BYTES or edges * _SPARSE_BELOW < nodes * nodes else "dense"


class Aggregation:
    """``A @ messages`` with an epilogue, for a 1-bit A in any of its forms.

    The sparse forms add up the messages' codes edge by edge, in integers, and send the sums through the same epilogue as the dense product
    with the same corrections for offsets: equal sums, equal steps, equal results.

    Parameters
    ----------
    adjacency : BitTensor of one bit, FRDC or TCTiledCSR
        Without scales and values.

    Examples
    --------
    >>> from bitsparse.nn.aggregate import Aggregation
    >>> pattern = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 1]], dtype=bool)
    >>> messages = bs.quantize(np.array([[0.0], [1.0], [3.0]]), 2)
    >>> plain = bs.Epilogue(offset_correction=True)
    >>> [Aggregation(form(pattern))(messages, plain).ravel().tolist() for form in (bs.BitTensor, bs.FRDC, bs.TCTiledCSR)]
    [[1.0, 1.0, 4.0], [1.0, 1.0, 4.0], [1.0, 1.0, 4.0]]
    """

    def __init__(self, adjacency: BitTensor | FRDC | TCTiledCSR) -> None:
        self.adjacency = adjacency
        self.shape: tuple[int, ...] = adjacency.shape
        #: As :func:`bitsparse.ops.terms.operand_terms` reads them; the sparse forms hold no scale or offset.
        self.scale: NDArray[np.float32] | None = None
        self.offset: NDArray[np.float32] | None = None
        self.line_sums: NDArray[np.int64] = np.empty(0, np.int64)
        if not isinstance(adjacency, BitTensor):
            _check.on_cpu("Aggregation", "the adjacency", adjacency.device)
            self.line_sums = np.diff(adjacency.csr_arrays()[0]).astype(np.int64)

    def to_device(self, device: str) -> Aggregation:
        """The same on ``device``; itself if it is there already.

        Raises
        ------
        DeviceError
            A sparse form has no kernels on ``device``.
        """
        if device == self.adjacency.device:
            return self
        if not isinstance(self.adjacency, BitTensor):
            raise DeviceError(
                f"to_device: a {type(self.adjacency).__name__} has no kernels on {device!r} in this release; aggregate with "
                "adjacency='dense' (--adjacency dense), or on the CPU"
            )
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
        return partial(self, epilogue=epilogue)

    def __call__(self, messages: BitTensor, epilogue: Epilogue) -> Any:
        """The sums through the epilogue: float32, or a BitTensor if it requantises."""
        if isinstance(self.adjacency, BitTensor):
            return matmul(self.adjacency, messages, epilogue=epilogue)
        function = "aggregate"
        codes = messages.with_affine()
        sums = bspmm(self.adjacency, codes, "BBF") if messages.bits == 1 else spmm(self.adjacency, codes)
        operands = operand_terms(function, self, messages, epilogue.offset_correction)
        params = epilogue.params(function, sums.shape, operands)
        result = backends.family("cpu", "matmul").epilogue(np.ascontiguousarray(sums), params)
        return epilogue.wrap(result, sums.shape, messages._family, function)
