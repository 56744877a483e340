"""Attention over codes on the matrix units of a GPU, one implementation of :mod:`bitsparse.backends.cuda.edges.attention`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.bounds import ATTENTION_CODES
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.attention_rows import join_behind, joining
from bitsparse.backends.params import Dropout

#: Vectors of a node, possible bytes of a vector, and the most heads, since a lane holds the scores of all heads.
_VECTORS, _BYTES, _MOST_HEADS = 8, (4, 8, 16), 4
_THREADS, _LANES, _LAY_THREADS = 64, 32, 256
_SOURCE = "edges/attention_codes.cu"

AttentionCodesParams = jit.struct(_SOURCE, "AttentionCodesParams")
LayCodesParams = jit.struct(_SOURCE, "LayCodesParams")


class Codes(NamedTuple):
    """Features as signed 8-bit integers; heads are adjacent, and each is padded with zeros to a multiple of 16 bytes.

    Attributes
    ----------
    words : cupy.ndarray
        C-contiguous and aligned to 16 bytes.
    scale : cupy.ndarray () of float32
        The real value of the code 1.
    columns : int
        Columns of all heads together, without padding.
    """

    words: Any
    scale: Any
    columns: int


def tiles(heads: int, width: int) -> int | None:
    """The number of tiles of 16 features for a head; None if a node's heads do not fit in eight vectors.

    Examples
    --------
    >>> tiles(4, 32), tiles(1, 41), tiles(3, 5), tiles(8, 8), tiles(1, 1000)
    (2, 4, None, None, None)
    """
    each = edges.power_of_two(-(-width // (2 * _VECTORS)))
    return each if heads <= _MOST_HEADS and 2 * heads * each in _BYTES else None


def defines_of(heads: int, each: int, modes: dict[str, int]) -> dict[str, int]:
    """Constants of the kernel for heads of `each` tiles; `modes` are those of :mod:`bitsparse.backends.cuda.edges.attention`."""
    vector = {"BS_TYPE": 0, "BS_VECTOR": 2 * heads * each, "BS_INT8": 1, "BS_HEADS": heads, "BS_TILES": each}
    made = vector | {"BS_THREADS": _THREADS} | modes
    return made | ATTENTION_CODES.blocks(made, chip_here())


class CodesAttention:
    """Attention over 8-bit codes with one scale, including the second sums that its gradient needs, or that gradient itself.

    It is prepared for one pattern and called like :class:`bitsparse.backends.cuda.edges.attention.AttentionProduct`.

    Parameters
    ----------
    schedule : Schedule
        Schedule of a pattern with edges.
    heads, width : int
        Sizes for which :func:`tiles` is not None.
    slope : float
        Slope of the leaky ReLU.
    dropout : Dropout or None
    turned : bool
        Whether to compute the gradient, over the transpose.
    span, longest : int, optional
        How the rows are cut up; see :meth:`Schedule.cut`.
    """

    def __init__(
        self,
        schedule: Schedule,
        heads: int,
        width: int,
        slope: float,
        dropout: Dropout | None,
        turned: bool,
        *,
        span: int | None = None,
        longest: int | None = None,
    ) -> None:
        self._schedule = schedule = schedule.indexed()
        each = tiles(heads, width)
        assert each is not None
        modes = schedule.defines | jit.flags(above=True, turned=turned)
        defines = defines_of(heads, each, modes | jit.flags(dropout=dropout is not None))
        cut = schedule.cut(_LANES, span=span, longest=longest)
        streams = schedule.params(cut, _LANES)
        params = self._params = AttentionCodesParams(streams, slope=slope, width=width)
        if dropout is not None:
            params.threshold, params.kept_scale = dropout.threshold, dropout.scale
            self._seed = dropout.seed  # kept alive, since the kernel may read it
            if hasattr(self._seed, "data"):
                params.seed_at = self._seed.data.ptr
            else:
                params.seed = self._seed
        threads = defines["BS_THREADS"]
        blocks = -(-cut.units * _LANES // threads)
        self._launch = jit.kernel(_SOURCE, "attention_codes", defines).launch(blocks, threads, params)
        self._shape = schedule.shape[1], _VECTORS, defines["BS_VECTOR"]
        head_bytes = -(-width // 16) * 16
        self._lay_params = LayCodesParams(items=schedule.shape[1] * _VECTORS, bytes=head_bytes)
        lay = {key: defines[key] for key in ("BS_TYPE", "BS_VECTOR", "BS_INT8", "BS_HEADS", "BS_TILES")}
        blocks = -(-schedule.shape[1] * _VECTORS // _LAY_THREADS)
        self._lay = jit.kernel(_SOURCE, "lay_codes", lay).launch(blocks, _LAY_THREADS, self._lay_params)
        self._partial = (cut.pieces, 2 * heads * (2 + width))
        self._join = joining(streams, np.float32, heads, width, width, modes) if cut.pieces else None

    def __call__(self, x: Any, source: Any, target: Any, out: Any, lse: Any, share: Any, above: Any, scale: Any) -> Any:
        """Write the weighted sums to `out` and the second sums to `share` and `above`."""
        with self._schedule.order:  # the launches' arguments are shared
            laid = self._schedule.workspace("laid codes", self._shape, np.uint8)
            self._lay_params.x, self._lay_params.out = x.data.ptr, laid.data.ptr
            self._lay()
            partial = None if self._join is None else self._schedule.workspace("attention", self._partial, np.float32)
            params = self._params
            params.x, params.out, params.lse = laid.data.ptr, out.data.ptr, None if lse is None else lse.data.ptr
            params.source, params.target, params.scale = source.data.ptr, target.data.ptr, scale.data.ptr
            params.share, params.above = share.data.ptr, above.data.ptr
            params.partial = None if partial is None else partial.data.ptr
            self._launch()
            join_behind(self._join, params)
        return out


def _variants() -> list[jit.Variant]:
    """Variants for the heads and widths of the usual networks, forward and backward, with and without dropout."""
    made = [(4, 2), (1, 4), (1, 8)]
    kind = {"BS_TYPE": 0, "BS_INT8": 1}
    shapes = [kind | {"BS_VECTOR": 2 * heads * each, "BS_HEADS": heads, "BS_TILES": each} for heads, each in made]
    modes = [jit.flags(above=True, turned=turned, dropout=drop) for turned in (False, True) for drop in (False, True)]
    rows = [shape | {"BS_THREADS": _THREADS} | mode for shape in shapes for mode in modes]
    rows += [one | {"BS_LARGE": 1} for one in rows[:4]]
    return [
        *jit.variants_of(_SOURCE, "lay_codes", shapes),
        *ATTENTION_CODES.variants(_SOURCE, "attention_codes", rows),
    ]


VARIANTS = _variants()
