"""Calls under memory that another library lends: large workspaces last for one call, and nothing else changes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import interop
from bitsparse.backends.cuda.csr import schedule as schedules

pytestmark = pytest.mark.gpu
NODES = 700


class Lender:
    """A library that lends memory and remembers what it lent; as the pool of a captured graph, it may also keep all of it."""

    def __init__(self, keeps: bool = False) -> None:
        self.kept, self.lent = self, 0
        self._keeps: list[Any] | None = [] if keeps else None
        self._there: list[tuple[Any, int]] = []

    def append(self, memory: Any) -> None:
        """Note a piece of memory; the emulator calls this itself."""
        self._there.append((weakref.ref(memory), memory.size))
        self.lent += memory.size
        if self._keeps is not None:
            self._keeps.append(memory)

    def malloc(self, size: int) -> Any:
        """Lend memory of a real GPU."""
        import cupy

        class Memory(cupy.cuda.Memory):
            """Memory to which there may be weak references."""

        memory = Memory(size)
        self.append(memory)
        return cupy.cuda.MemoryPointer(memory, 0)

    @property
    def held(self) -> int:
        """Bytes that have not come back."""
        return sum(size for memory, size in self._there if memory() is not None)


def graph() -> Any:
    """A symmetric pattern with rows so long that they are cut into pieces."""
    rng = np.random.default_rng(0)
    made = sp.random_array((NODES, NODES), density=0.02, rng=rng, format="lil")
    made[:5] = 1
    made[:, :5] = 1
    return sp.csr_array(made.tocsr() + made.tocsr().T != 0)


def calls() -> dict[str, Callable[[Any], list[Any]]]:
    """Calls that need workspaces, as functions of the adjacency that return arrays."""
    import cupy

    rng = np.random.default_rng(1)
    x, ends, gradient = (
        cupy.asarray(rng.standard_normal(size).astype(np.float32)) for size in ((NODES, 32), (NODES, 2), (NODES, 32))
    )
    narrow, heads = x[:, :7].copy(), x.reshape(NODES, 2, 16)

    def attention(A: Any) -> list[Any]:
        result, state = bs.attention(A, heads, ends, ends, return_state=True)
        return [result, *bs.attention_vjp(A, heads, ends, ends, gradient.reshape(heads.shape), state=state)]

    return {
        "csr": lambda A: [bs.spmm(A, x, kernel="csr"), bs.spmm(A, narrow, kernel="csr")],
        "windows": lambda A: [bs.spmm(A, x, kernel="windows")],
        "tiles": lambda A: [bs.spmm(A, x, kernel="tiles", precision="tf32")],
        "nonzero": lambda A: [bs.spmm(A, x * (cupy.arange(NODES) % 3 == 0)[:, None], kernel="nonzero")],
        "attention": attention,
        "cosine": lambda A: [bs.cosine_attention(A, x), *bs.cosine_attention_vjp(A, x, gradient, wrt=("x", "beta"))],
        "softmax": lambda A: [bs.edge_softmax(A, bs.sddmm(A, x, x))],
        "codes": lambda A: [bs.quantized_spmm(A, x, 8), bs.quantized_spmm(A, narrow, 4)],
    }


NAMES = ("csr", "windows", "tiles", "nonzero", "attention", "cosine", "softmax", "codes")


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every workspace count as large."""
    monkeypatch.setattr(schedules, "LENT_FROM", 1)


def adjacency() -> Any:
    return bs.TCTiledCSR(graph()).to_device("cuda")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_gives_back_what_it_was_lent(name: str, all_large: None) -> None:
    import cupy

    call, A = calls()[name], adjacency()
    want = [part.get() for part in call(adjacency())]
    lender = Lender()
    with interop.lent_memory(lender.malloc):
        call(A)  # prepares
        prepared = lender.held
        for _ in range(2):
            before, found = lender.lent, call(A)
            assert lender.lent - before > sum(part.nbytes for part in found)
            for part, wanted in zip(found, want, strict=True):
                np.testing.assert_array_equal(part.get(), wanted)
            del found, part
            cupy.cuda.get_current_stream().synchronize()
            assert lender.held == prepared


def test_small_workspaces_stay_so_that_calls_allocate_no_more_than_results() -> None:
    import cupy

    A, x = adjacency(), cupy.ones((NODES, 32), np.float32)
    lender = Lender()
    with interop.lent_memory(lender.malloc):
        out = bs.spmm(A, x, kernel="csr")
        before = lender.lent
        for _ in range(3):
            bs.spmm(A, x, kernel="csr", out=out)
    assert lender.lent == before


def test_own_and_lent_workspaces_take_turns(all_large: None) -> None:
    """A stream's kept workspace, its counters and lent ones do not disturb each other."""
    import cupy

    A, lender = adjacency(), Lender()
    x = cupy.asarray(np.random.default_rng(2).integers(-9, 9, (NODES, 8)).astype(np.float32))
    plan, want = bs.plan_spmm(A, 8), bs.spmm(adjacency(), x).get()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.get_current_stream().synchronize()
    for turn in range(6):
        out = cupy.full(want.shape, np.nan, np.float32)
        cupy.cuda.get_current_stream().synchronize()
        with streams[turn % 2]:
            if turn % 3:
                with interop.lent_memory(lender.malloc):
                    plan(x, out=out)
            else:
                plan(x, out=out)
        streams[turn % 2].synchronize()
        np.testing.assert_array_equal(out.get(), want)


def test_a_captured_call_keeps_its_memory_in_the_graph_s_pool(all_large: None) -> None:
    import cupy

    A, pool = adjacency(), Lender(keeps=True)
    x = cupy.asarray(np.random.default_rng(3).integers(-9, 9, (NODES, 8)).astype(np.float32))
    out, want = cupy.full((NODES, 8), np.nan, np.float32), bs.spmm(adjacency(), x).get()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream, interop.lent_memory(pool.malloc):
        bs.spmm(A, x, out=out)
        stream.synchronize()
        stream.begin_capture()
        bs.spmm(A, x, out=out)
        captured = stream.end_capture()
        for _ in range(2):
            bs.spmm(A, x)
            out.fill(np.nan)
            captured.launch(stream)
            stream.synchronize()
            np.testing.assert_array_equal(out.get(), want)


def test_threads_on_one_stream(all_large: None) -> None:
    import cupy

    A, x = adjacency(), cupy.asarray(np.random.default_rng(4).integers(-9, 9, (NODES, 8)).astype(np.float32))
    want, found = bs.spmm(A, x).get(), []

    def work() -> None:
        with interop.lent_memory(Lender().malloc):
            found.extend(bs.spmm(A, x).get() for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 9
    for part in found:
        np.testing.assert_array_equal(part, want)
