"""A child of fork() does not wait for locks that threads of its parent held, as it has none of these threads."""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import graph, nn
from bitsparse.interop import identity
from bitsparse.ops.quantized import cache as quant_cache

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system"),
    # A process with threads forks, which is what is tested; Python warns of it, and so does JAX if another test has imported it.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning"),
]

X = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def forked(work: Callable[[], Any]) -> int:
    """The status of a child that does `work`; one that waits is killed."""
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


@contextmanager
def under_way(work: Callable[[threading.Event, threading.Event], Any]) -> Iterator[None]:
    """Another thread is in the middle of `work(begun, may_end)`."""
    begun, may_end = threading.Event(), threading.Event()
    thread = threading.Thread(target=work, args=(begun, may_end))
    thread.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        may_end.set()
        thread.join()


def sampler() -> tuple[Any, str, Callable[[], Any]]:
    made = graph.SaintSampler(np.ones((8, 8)), "walk", 2, seed=0)
    return made, "_lock", lambda: made.batch(0, 0)


def copied_sampler() -> tuple[Any, str, Callable[[], Any]]:
    made = copy.copy(sampler()[0])
    return made, "_lock", lambda: made.batch(0, 0)


def binary_plan() -> tuple[Any, str, Callable[[], Any]]:
    model = nn.BinaryGCN([nn.BinaryLinear(bs.pack_bits(X, encoding="bipolar", axis=-2))])
    made = model.plan(nn.Graph(sp.csr_array(np.ones((8, 8)))), X)
    return made, "_turn", lambda: made(X)


def cache() -> tuple[Any, str, Callable[[], Any]]:
    made = bs.QuantCache()
    return made, "_lock", lambda: made.quantize(X, 4)


def contents() -> tuple[Any, str, Callable[[], Any]]:
    return identity, "_contents_lock", lambda: identity.contents_of(X.copy())


def seen() -> tuple[Any, str, Callable[[], Any]]:
    of = identity.contents_of(X)
    made = identity.Seen(of)
    of.changed()
    return made, "_lock", lambda: made.keep_up(lambda: None)


class Hold:
    """The right to run on a runner, held within a block."""

    def __init__(self, made: nn.ClusterRunner) -> None:
        self.turn = made._turn.taken("held")


def runner() -> tuple[Any, str, Callable[[], Any]]:
    pattern = sp.csr_array(np.ones((8, 8)))
    model = nn.quantize_network(nn.random_network("gcn", [8, 2]), pattern, X, 8)
    made = nn.ClusterRunner(pattern, model, labels=np.zeros(8, int))
    return Hold(made), "turn", lambda: made.run(X)


@pytest.mark.parametrize("make", [sampler, copied_sampler, binary_plan, cache, contents, seen, runner])
def test_locks(make: Callable[[], tuple[Any, str, Callable[[], Any]]]) -> None:
    owner, name, work = make()

    def hold(begun: threading.Event, may_end: threading.Event) -> None:
        with getattr(owner, name):
            begun.set()
            may_end.wait(30)

    with under_way(hold):
        assert forked(work) == 0
    work()


def test_what_another_thread_was_about_to_quantise(monkeypatch: pytest.MonkeyPatch) -> None:
    held, parent = bs.QuantCache(), threading.current_thread()

    def in_thread(begun: threading.Event, may_end: threading.Event) -> None:
        def slow(*given: Any, **options: Any) -> Any:
            if threading.current_thread() is not parent:
                begun.set()
                may_end.wait(30)
            return bs.quantize(*given, **options)

        monkeypatch.setattr(quant_cache, "quantize", slow)
        held.quantize(X, 4)

    with under_way(in_thread):
        assert forked(lambda: held.quantize(X, 4)) == 0
    assert held.info().misses == 1
