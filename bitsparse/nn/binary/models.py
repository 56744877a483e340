"""The binary networks of BitGNN (Figures 1 and 2): GCN, GraphSAGE and GraphSAINT on signs, from weights or ``.npz`` files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse._archive import opened, reading
from bitsparse._records import replace
from bitsparse.errors import DTypeError
from bitsparse.nn.binary.layers import InputNorm
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.network import BinaryModel, Kind
from bitsparse.nn.binary.variants import ADD_VARIANTS, CHAIN_VARIANTS, Setting
from bitsparse.nn.checks import agree, floats, vector
from bitsparse.nn.description import restored


class BinaryGCN(BinaryModel):
    """Graph convolutional network on signs (Bi-GCN; BitGNN Figure 1): per layer ``P (alpha sign(x) @ (sign(W) m) + b)``.

    P is ``D^-1/2 (A + I) D^-1/2``, or the plain ``A + I`` if the layer is not scaled. Alpha is the mean magnitude of a node's features.
    There is no other activation, because the sign of the next layer is one.

    Parameters
    ----------
    layers : sequence of BinaryLinear
    variants : {"full", "binary"} or sequence, default "full"
        How the layers compute. ``"full"`` is the full-precision aggregation of Bi-GCN in every layer (``"FBF+FBF"``, scaled). ``"binary"``
        is BitGNN's binary aggregation over the plain pattern: ``"FBB+BBB"`` in the first layer, ``"BBB+BBB"`` between, ``"BBF+FBF"`` in the
        last one. A sequence holds for each layer a BMM+BSpMM variant, which is scaled if its messages are in full precision, or a pair
        ``(variant, scaled)``.
    input_norm : BatchNorm or tuple, or "rows", optional
        Batch norm of the features, applied before the first sign. With "rows" every row of full-precision numbers that a layer reads is
        standardised to mean 0 and deviation 1, as in the inductive networks.

    Attributes
    ----------
    settings : list of Setting
    input_norm : InputNorm, "rows" or None

    Raises
    ------
    ShapeError, DTypeError, ValueError
        The sizes of layers do not match, or variants are unknown or do not fit each other.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> rng = np.random.default_rng(0)
    >>> layers = [nn.BinaryLinear.from_weights(rng.normal(size=s)) for s in ((6, 8), (8, 3))]
    >>> model = nn.BinaryGCN(layers, "binary")
    >>> model
    <BinaryGCN 6 -> 3, FBB+BBB, BBF+FBF>
    >>> graph = sparse.csr_array(np.eye(4, k=1) + np.eye(4, k=-1))
    >>> model(graph, rng.normal(size=(4, 6)).astype(np.float32)).shape
    (4, 3)
    """

    kind = Kind(
        CHAIN_VARIANTS, "sum", Setting("FBF+FBF", True), ("FBB+BBB", "BBB+BBB", "BBF+FBF", "FBF+FBF"), loops=True
    )


class BinarySAGE(BinaryModel):
    """GraphSAGE on signs (BitGNN Figure 2): per layer ``X W1 + mean_j X_j W2``, each product as in :class:`BinaryGCN`.

    Parameters
    ----------
    layers : sequence of (BinaryLinear, BinaryLinear)
        Weights for a node's own features, and for the mean over its neighbours.
    variants : {"full", "binary"} or sequence, default "full"
        A BMM+BSpMM+ADD variant for each layer. ``"full"`` is ``"FBF+FBF+FFF"``. ``"binary"`` is ``"FBB+BBF+FFB"`` in the first layer,
        ``"BBB+BBF+FFB"`` between, ``"BBF+FBF+FFF"`` in the last one. ADD.BBF and ADD.BBB add the signs of aggregate and own features.
    input_norm : BatchNorm or tuple, or "rows", optional
        As in :class:`BinaryGCN`.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> rng = np.random.default_rng(0)
    >>> pair = lambda k, n: tuple(nn.BinaryLinear.from_weights(rng.normal(size=(k, n))) for _ in range(2))
    >>> model = nn.BinarySAGE([pair(6, 8), pair(8, 3)], "binary")
    >>> graph = sparse.csr_array(np.eye(4, k=1) + np.eye(4, k=-1))
    >>> model(graph, rng.normal(size=(4, 6)).astype(np.float32)).shape
    (4, 3)
    """

    kind = Kind(
        ADD_VARIANTS, "mean", Setting("FBF+FBF+FFF"), ("FBB+BBF+FFB", "BBB+BBF+FFB", "BBF+FBF+FFF", "FBF+FBF+FFF")
    )


class BinarySAINT(BinaryModel):
    """GraphSAINT's network on signs: layers ``X W1 + sum_j X_j W2``, and a linear head on the outputs of all layers side by side.

    Parameters
    ----------
    layers : sequence of (BinaryLinear, BinaryLinear)
        As in :class:`BinarySAGE`.
    head : BinaryLinear, or tuple of arrays (weights, bias)
        Maps the outputs of all layers to classes. Arrays are multiplied in full precision and need layers whose result is F.
    variants : {"full", "binary"} or sequence, default "full"
        A BMM+BSpMM+ADD variant for each layer; all results have the same letter. ``"full"`` is ``"FBF+FBF+FFF"``. ``"binary"`` is
        ``"FBB+BBF+FFB"`` first, then ``"BBB+BBF+FFB"``; with a full-precision head every layer is ``"FBB+BBF+FFF"``, since such a head
        reads full precision.
    input_norm : BatchNorm or tuple, or "rows", optional
        As in :class:`BinaryGCN`.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> rng = np.random.default_rng(0)
    >>> linear = lambda k, n: nn.BinaryLinear.from_weights(rng.normal(size=(k, n)))
    >>> model = nn.BinarySAINT([(linear(6, 8), linear(6, 8)), (linear(8, 8), linear(8, 8))], linear(16, 3))
    >>> graph = sparse.csr_array(np.eye(4, k=1) + np.eye(4, k=-1))
    >>> model(graph, rng.normal(size=(4, 6)).astype(np.float32)).shape
    (4, 3)
    """

    kind = Kind(
        ADD_VARIANTS, "sum", Setting("FBF+FBF+FFF"), ("FBB+BBF+FFB", "BBB+BBF+FFB", "BBB+BBF+FFB", "FBB+BBF+FFB")
    )

    def __init__(self, layers: Sequence[Any], head: Any, variants: Any = "full", *, input_norm: Any = None) -> None:
        self.head = head if isinstance(head, BinaryLinear) else _dense(head)
        if self.head is not head:
            self.kind = replace(self.kind, binary=("FBB+BBF+FFF",) * 4)
        super().__init__(layers, variants, input_norm=input_norm)
        width = sum(own.shape[1] for own, _ in self.layers)
        agree("BinarySAINT", "the outputs of all layers together are", width, "the head takes", self.head_shape[0])

    @property
    def head_shape(self) -> tuple[int, int]:
        """The numbers (inputs, outputs) of the head."""
        shape = self.head.shape if isinstance(self.head, BinaryLinear) else self.head[0].shape
        return (int(shape[0]), int(shape[1]))

    @property
    def outputs(self) -> int:
        """Number of logits of a node."""
        return self.head_shape[1]

    def _check_outputs(self) -> None:
        letters = {each.gives for each in self.settings}
        if len(letters) != 1 or ("B" in letters and not isinstance(self.head, BinaryLinear)):
            raise ValueError(
                f"BinarySAINT: the layers give {', '.join(each.gives for each in self.settings)}, but the head reads one letter from all"
                f"{'' if isinstance(self.head, BinaryLinear) else ', F with full-precision weights'}; change the variants"
            )


def _dense(head: Any) -> tuple[Any, Any]:
    """Weights and bias of a full-precision head."""
    if not isinstance(head, (tuple, list)) or len(head) != 2:
        raise DTypeError(f"BinarySAINT: head must be a BinaryLinear or (weights, bias), got {type(head).__name__}")
    weights = floats("BinarySAINT", "head weights", head[0], 2)
    bias = np.zeros(weights.shape[1]) if head[1] is None else head[1]
    return weights, vector("BinarySAINT", "head bias", bias, weights.shape[1])


# -- files -----------------------------------------------------------------------------------------------------------
def load_binary(path: str | Path) -> Any:
    """Read a binary model that ``model.save(path)`` wrote.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    BinaryGCN, BinarySAGE or BinarySAINT

    Raises
    ------
    FileFormatError
        The file is damaged or holds something else.

    Examples
    --------
    >>> import tempfile
    >>> from bitsparse import nn
    >>> model = nn.BinaryGCN([nn.BinaryLinear.from_weights(np.ones((2, 3)))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder + "/model.npz")
    ...     nn.load_binary(folder + "/model.npz")
    <BinaryGCN 2 -> 3, FBF+FBF scaled>
    """
    what = f"{path} is not a binary model that this version wrote"
    with reading("load_binary", what), opened("load_binary", path) as archive:
        kinds = BinaryGCN, BinarySAGE, BinarySAINT, BinaryLinear, InputNorm, Setting
        model = restored(archive.text("about"), archive, kinds)
        if not isinstance(model, BinaryModel):
            raise ValueError("it holds something else")
        return model
