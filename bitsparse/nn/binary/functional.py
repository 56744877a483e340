"""BitGNN's high-level functions BMM+BSpMM and BMM+BSpMM+ADD (section 3.1.2), each as one call."""

from __future__ import annotations

from typing import Any, Literal

from bitsparse import interop
from bitsparse._check import shown
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled, family_of
from bitsparse.errors import DTypeError
from bitsparse.nn.binary.layers import neighbours_of, prepared
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.plan import Workspace, checked_features
from bitsparse.nn.binary.variants import ADD_VARIANTS, CHAIN_VARIANTS, Setting, parse
from bitsparse.nn.checks import agree
from bitsparse.ops.operands.places import working_with


def bmm_bspmm(graph: Any, x: Any, linear: BinaryLinear, variant: str = "FBB+BBB") -> Any:
    """``A (alpha sign(x) @ (sign(W) m) + b)``: a product with binary weights, followed by the sum over neighbours.

    Parameters
    ----------
    graph : FRDC, TCTiledCSR, Graph, sparse array or a graph of :mod:`bitsparse.datasets` (n, n)
        Entries count as 1. Its scales are applied only if the messages are in full precision.
    x : array (n, k) or one-bit BitTensor (n, k)
    linear : BinaryLinear (k, d)
    variant : str
        The letters of activation, weight and output of BMM, then of activation, adjacency and output of BSpMM, as in ``"FBF+FBF"``. F is
        full precision, B is one bit. The output of BMM is the activation of BSpMM.

    Returns
    -------
    array (n, d) of float32, or one-bit BitTensor (n, d)

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands that do not fit each other or the letters.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = sparse.csr_array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    >>> linear = nn.BinaryLinear.from_weights([[1.0, -1.0], [1.0, 1.0]])
    >>> x = np.array([[2.0, 1.0], [-1.0, -1.0], [-1.0, -3.0]], np.float32)
    >>> nn.bmm_bspmm(graph, x, linear).toarray()
    array([[-1,  1],
           [ 1,  1],
           [ 1,  1]], dtype=int8)
    """
    function = "bmm_bspmm"
    (setting,) = parse(function, CHAIN_VARIANTS, [variant], 1, True)
    return _run(function, graph, x, (linear,), setting)


def bmm_bspmm_add(
    graph: Any,
    x: Any,
    own: BinaryLinear,
    near: BinaryLinear,
    variant: str = "FBB+BBF+FFF",
    *,
    reduce: Literal["sum", "mean"] = "mean",
) -> Any:
    """``x W1 + reduce_j x_j W2`` with binary weights: a product of a node's own features plus one of its neighbours' features.

    Parameters
    ----------
    graph, x
        As in :func:`bmm_bspmm`; scales of the graph are ignored.
    own, near : BinaryLinear (k, d)
        Weights for the node itself and for its neighbours.
    variant : str
        As in :func:`bmm_bspmm`, followed by the letters of aggregate, own product and result of ADD, as in ``"FBB+BBF+FFB"``.
    reduce : {"sum", "mean"}
        A node without neighbours aggregates to 0.

    Returns
    -------
    array (n, d) of float32, or one-bit BitTensor (n, d)

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands that do not fit each other or the letters.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = sparse.csr_array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    >>> linear = nn.BinaryLinear.from_weights([[1.0, -1.0], [1.0, 1.0]])
    >>> x = np.array([[2.0, 1.0], [-1.0, -1.0], [-1.0, -3.0]], np.float32)
    >>> nn.bmm_bspmm_add(graph, x, linear, linear)
    array([[ 2.,  1.],
           [-1.,  1.],
           [-3.,  1.]], dtype=float32)
    """
    function = "bmm_bspmm_add"
    (setting,) = parse(function, ADD_VARIANTS, [variant], 1, False)
    agree(function, "own has shape", own.shape, "near", near.shape)
    return _run(function, graph, x, (own, near), setting, reduce)


def _run(
    function: str, graph: Any, x: Any, weights: tuple[BinaryLinear, ...], setting: Setting, reduce: str = "sum"
) -> Any:
    """Prepare one layer and run it once."""
    kind = checked_features(function, x, weights[0].shape[0])
    if kind.letter != setting.reads:
        what = "a BitTensor" if kind.letter == "B" else "an array"
        raise DTypeError(
            f"{function}: variant {shown(setting.variant)} reads {setting.reads}, but x is {what}; change either"
        )
    neighbours = neighbours_of(function, graph, kind, loops=False)
    room, family = Workspace(), family_of(x) if isinstance(x, BitTensor) else interop.as_array(x, function, "x")[1]
    with working_with(kind.device, x):
        layer = prepared(weights, setting, neighbours, kind, room, reduce=reduce)
        result = room.reserve("result", layer.gives)
        room.allocate(kind.device)
        layer.run(x, result())
        for product in room.products:
            product.check()
        if layer.gives.letter == "F":
            return interop.from_array(result(), family, function)
        bits: BitTensor = result()
        return assembled(BitTensor, bits.words, bits.shape, 1, -1, "planes", "bipolar", family)
