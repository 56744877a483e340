"""Edge sampling and sums over sampled edges on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.sampling.drawing import STRATEGIES, Drawing
from bitsparse.backends.cuda.sampling.sums import Codes, SampledSum, Tuning, tuning_of
from bitsparse.backends.params import CodeFeatures

__all__ = ["STRATEGIES", "Codes", "Drawing", "SampledSum", "Tuning", "gather", "sample_edges", "tuning_of"]


def sample_edges(
    indptr: Any, *, width: int, strategy: str, seed: int = 0, stream: int = 0, nnz: int | None = None
) -> tuple[Any, Any]:
    """Which edges of each row are sampled; see the host's function of the same name. `nnz` saves a look at `indptr`."""
    count = int(indptr[-1]) if nnz is None else nnz
    drawing = Drawing(indptr, (int(indptr.size) - 1, 0), count, width=width, strategy=strategy)
    return drawing.starts.astype(np.int64), drawing.edges(seed, stream, columns=False)[0]


def gather(
    indptr: Any,
    indices: Any,
    x: Any,
    *,
    width: int,
    strategy: str,
    seed: int = 0,
    stream: int = 0,
    values: Any = None,
    col_scale: Any = None,
    row_scale: Any = None,
    rescale: bool = False,
    tuning: Tuning | None = None,
    out: Any = None,
) -> Any:
    """Weighted sums of the sampled neighbours' features; see the host's function of the same name.

    Samples of a row are summed one after another; those of rows with more than a piece of the schedule in such pieces, added in order.
    """
    codes, alignment = isinstance(x, CodeFeatures), 16
    if not codes:
        x = geometry.contiguous(x)
        while x.data.ptr % alignment or (out is not None and out.data.ptr % alignment):
            alignment //= 2
    (cols, _), columns = (x.words.shape, x.features) if codes else (x.shape, x.shape[1])
    drawing = Drawing(indptr, (int(indptr.size) - 1, cols), int(indptr[-1]), width=width, strategy=strategy)
    product = SampledSum(
        drawing,
        indices,
        columns=columns,
        x_dtype=Codes.of(x) if codes else x.dtype,
        values=values,
        col_scale=col_scale,
        row_scale=row_scale,
        rescale=rescale,
        alignment=alignment,
        tuning=tuning,
    )
    return product(x, out, seed=seed, stream=stream)
