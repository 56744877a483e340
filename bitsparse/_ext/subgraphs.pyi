import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: Seed and stream.
Draws = tuple[int, int]

def hop(
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    rows: int,
    cols: int,
    targets: Bytes,
    width: int,
    own: bool,
    draws: Draws,
    place: Bytes,
    starts: Bytes,
    sources: Bytes,
    columns: Bytes,
    edges: Bytes,
) -> int: ...
def induced(
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    rows: int,
    cols: int,
    nodes: Bytes,
    place: Bytes,
    starts: Bytes,
    columns: Bytes,
    edges: Bytes,
    count: bool,
) -> None: ...
def walks(
    indptr: Bytes, indices: Bytes, wide: bool, rows: int, cols: int, roots: Bytes, length: int, draws: Draws, out: Bytes
) -> None: ...
def below(limit: int, draws: Draws, out: Bytes) -> None: ...
