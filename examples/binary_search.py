"""Search float embeddings by their signs, then order the candidates by the floats, and measure the recall.

    python3 examples/binary_search.py [EMBEDDINGS.npy]

Without a file, the example generates embeddings: 20 000 points around 200 centres.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

import bitsparse as bs


def embeddings(arguments: Sequence[str]) -> np.ndarray:
    """Unit vectors, read from a file or generated."""
    if arguments:
        x = np.load(arguments[0]).astype(np.float32)
    else:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((200, 384))
        x = (centres[rng.integers(0, 200, 20_000)] + rng.standard_normal((20_000, 384))).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def recall(found: np.ndarray, right: np.ndarray) -> float:
    """The share of right answers that were found."""
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, right, strict=True)]))


def main(arguments: Sequence[str] = ()) -> dict[int, float]:
    """Compare three searches; return their recall by the number of candidates per answer."""
    x = embeddings(arguments)
    queries, k = x[:100], 10
    right = np.argsort(-(queries @ x.T), axis=1, kind="stable")[:, :k]
    codes = bs.pack_bits(x, encoding="bipolar")
    asked = bs.pack_bits(queries, encoding="bipolar")
    print(f"{x.shape[0]} vectors of {x.shape[1]}: {x.nbytes} bytes as floats, {codes.nbytes} as signs")
    plain = bs.nearest(asked, codes, k)[1]
    print(f"by signs alone, recall at {k}: {recall(plain, right):.3f}")
    found = {1: recall(plain, right)}
    for times in (4, 16):
        candidates = bs.nearest(asked, codes, times * k)[1]
        scores = np.einsum("qd,qcd->qc", queries, x[candidates])
        best = np.take_along_axis(candidates, np.argsort(-scores, axis=1)[:, :k], axis=1)
        found[times] = recall(best, right)
        print(f"{times} times as many candidates, ordered by the floats: {found[times]:.3f}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
