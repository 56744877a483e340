"""Error messages are bounded in length and time, even for a tuple nested forty deep whose repr has 2**40 items."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import datasets, graph, nn


def doubled() -> Any:
    made: Any = ("x",)
    for _ in range(40):
        made = (made, made)
    return made


HOSTILE = {"doubled tuple": doubled(), "long text": "x" * 100_000, "large number": 10**5000}
X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
A = sp.csr_array(np.eye(6, dtype=np.float32))
Q = bs.quantize(X, 4, granularity="tensor").with_affine()
LINEAR = nn.BinaryLinear.from_weights(np.ones((8, 3)))

#: Functions to call with hostile options, and their valid arguments.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "quantize": (bs.quantize, (X, 4)),
    "pack_bits": (bs.pack_bits, (X,)),
    "stochastic_round": (bs.stochastic_round, (X,)),
    "choose_bits": (bs.choose_bits, (X,)),
    "BitTensor": (bs.BitTensor, (np.ones((2, 3), int),)),
    "TCTiledCSR": (bs.TCTiledCSR, (A,)),
    "FRDC": (bs.FRDC, (A,)),
    "Epilogue": (bs.Epilogue, ()),
    "matmul": (bs.matmul, (Q, np.ones((8, 2), np.uint8))),
    "plan_matmul": (bs.plan_matmul, (Q, 2)),
    "quantized_matmul": (bs.quantized_matmul, (X, X.T.copy())),
    "spmm": (bs.spmm, (A, X)),
    "plan_spmm": (bs.plan_spmm, (A, 8)),
    "sddmm": (bs.sddmm, (A, X)),
    "edge_softmax": (bs.edge_softmax, (A, np.ones(6, np.float32))),
    "attention": (bs.attention, (A, X)),
    "cosine_attention": (bs.cosine_attention, (A, X)),
    "aggregate_edges": (bs.aggregate_edges, (A, np.ones((6, 2), np.float32))),
    "edge_sample": (bs.edge_sample, (A, 2)),
    "sampled_spmm": (bs.sampled_spmm, (A, X, 2)),
    "bmm": (bs.bmm, (bs.pack_bits(X, encoding="bipolar"), bs.pack_bits(X.T, encoding="bipolar", axis=-2))),
    "bspmm": (bs.bspmm, (A, bs.pack_bits(X, encoding="bipolar"))),
    "partition": (graph.partition, (A, 2)),
    "reorder": (graph.reorder, (A,)),
    "synthetic": (datasets.synthetic, ((6, 10),)),
    "BinaryGCN": (nn.BinaryGCN, ([LINEAR],)),
    "Dense": (nn.Dense, (np.ones((2, 2)),)),
    "Layer": (nn.Layer, ([nn.Dense(np.ones((2, 2)))],)),
    "load_state_dict": (nn.load_state_dict, ({},)),
    "random_network": (nn.random_network, ("gcn", [8, 4, 2])),
}


def options() -> Iterator[tuple[str, str]]:
    for name, (function, given) in CALLS.items():
        parameters = list(inspect.signature(function).parameters.values())
        for parameter in parameters[len(given) :]:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                yield name, parameter.name


# Raises TimeoutError in the block when `most` seconds have passed.
@contextmanager
def seconds(most: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {most} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(most)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize(("name", "option"), [*options()])
def test_messages_about_options_end(name: str, option: str, kind: str) -> None:
    function, given = CALLS[name]
    said = ""
    with seconds(10):
        try:
            function(*given, **{option: HOSTILE[kind]})
        except (bs.BitsparseError, TypeError, ValueError) as error:
            said = str(error)
    assert len(said) < 3000
