"""A low-bit network must give the same logits for features in either layout."""

from __future__ import annotations

import lowbit_networks as plain
import numpy as np
import pytest

from bitsparse import nn


@pytest.mark.parametrize("form", ["csr", "dense", "tiled"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", plain.KINDS)
def test_logits_do_not_depend_on_the_layout_of_the_features(kind: str, bits: int, form: str) -> None:
    rng = np.random.default_rng(bits)
    graph, x = plain.random_graph(40, rng), rng.standard_normal((40, 9)).astype(np.float32)
    low = nn.quantize_network(plain.network(kind, (9, 6, 3), rng), graph, x, bits)
    operand = plain.operand(graph, low, form)
    planes, rows = (low(operand, low.quantize(x, layout=layout)) for layout in ("planes", "rows"))
    assert np.array_equal(planes, rows)
    assert np.array_equal(planes, plain.logits(low, graph, x))
