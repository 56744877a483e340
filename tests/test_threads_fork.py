"""The thread count must not change a bit of any result, and a forked child must neither hang nor differ."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

import numpy as np
import pytest
from cases import floats, same

import bitsparse as bs

#: Seconds that only a child that hangs reaches, in which case the test fails.
PATIENCE = 60


def workload() -> list[np.ndarray]:
    """Return one result of every kind of function, large enough to be split among threads."""
    rng = np.random.default_rng(0)
    x = floats(rng, (300, 1300), np.dtype("float32"))
    w = floats(rng, (1300, 260), np.dtype("float32"))
    a = bs.quantize(x, 2, scheme="symmetric", rounding="stochastic", seed=5, granularity="row")
    b = bs.quantize(w, 3, scheme="symmetric", granularity="col", axis=-2)
    affine = bs.quantize(x, 5, granularity="tensor")
    columns = bs.quantize(x, 4, granularity="col", axis=-2, layout="rows")
    sparse = bs.pack_bits((rng.random((300, 1300)) < 0.001).astype(np.uint8))
    requantise = bs.Epilogue(bits=4, out_scale=9.0, rounding="stochastic", seed=1, activation="tanh", axis=-2)
    results = [a.words, np.asarray(a.scale), b.words, affine.words, np.asarray(affine.scale), columns.words]
    for kernel in ("planes", "digits", "bytes"):
        results += [
            bs.matmul(a, b, kernel=kernel),
            bs.matmul(sparse, b, kernel=kernel),
            bs.matmul(a, b, epilogue=bs.Epilogue(bias=np.arange(260.0)), kernel=kernel),
            bs.matmul(a, b, epilogue=requantise, kernel=kernel).words,
            bs.matmul(a[:1], b, kernel=kernel),
            bs.matmul(a, b[:, :1], kernel=kernel),
        ]
    results += [
        a.repack(axis=-2).words,
        columns.repack(axis=-1, layout="planes").words,
        sparse.tile_bitmap,
        a.toarray(),
        columns.dequantize(),
        bs.stochastic_round(x, seed=9),
        bs.pack_bits(x, 1).words,
        np.array([a.nnz, sparse.nnz]),
        np.array([bs.quantization_error(x, affine)]),
    ]
    return results


def digest(results: list[np.ndarray]) -> str:
    import hashlib

    joined = hashlib.sha256()
    for result in results:
        joined.update(f"{result.dtype}{result.shape}".encode() + np.ascontiguousarray(result).tobytes())
    return joined.hexdigest()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("level", ["best", "scalar"])
def test_results_do_not_depend_on_the_thread_count(threads: int, level: str, host) -> None:
    bs.set_num_threads(1)
    want = workload()
    bs.set_num_threads(threads)
    assert bs.get_num_threads() in (threads, 1)  # 1 in a build without OpenMP
    host.set_simd(None if level == "best" else level)
    got = workload()
    assert len(got) == len(want) > 20
    for one, other in zip(got, want, strict=True):
        same(one, other)


@pytest.mark.parametrize("n", [0, -1, 10**6])
def test_bad_thread_counts_are_refused(n: int, host) -> None:
    before = bs.get_num_threads()
    with pytest.raises(ValueError, match=rf"set_num_threads.*{n}"):
        bs.set_num_threads(n)
    assert bs.get_num_threads() == before


@pytest.mark.parametrize("n", [2.0, "2", True, None], ids=repr)
def test_thread_counts_are_integers(n: object, host) -> None:
    before = bs.get_num_threads()
    with pytest.raises(bs.DTypeError, match="set_num_threads"):
        bs.set_num_threads(n)
    assert bs.get_num_threads() == before


def test_python_threads_may_call_at_once(host) -> None:
    bs.set_num_threads(2)
    want = digest(workload())
    found: list[str] = []
    callers = [threading.Thread(target=lambda: found.append(digest(workload()))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [want] * 3


def test_short_calls_of_several_callers_share_one_pool(host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results must be right although calls end while other threads of the pool are about to join them."""
    monkeypatch.setattr(importlib.import_module("bitsparse.backends.host.settings"), "work_per_thread", 0)
    bs.set_num_threads(3)
    a, x = bs.TCTiledCSR(np.eye(97, k=3, dtype=np.float32)), np.random.default_rng(0).random((97, 3), np.float32)
    want, wrong = np.eye(97, k=3, dtype=np.float32) @ x, []

    def call() -> None:
        for _ in range(300):
            if not np.array_equal(bs.spmm(a, x), want):
                wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


AFFINITY = """
import os, time
import numpy as np
import bitsparse as bs

threads = lambda: {int(name) for name in os.listdir("/proc/self/task")}
bs.set_num_threads(2)
before, cpus = threads(), os.sched_getaffinity(0)
a = bs.pack_bits(np.ones((512, 512), np.uint8))
(worker,) = threads() - before

def call():
    # With a worker that sleeps: one that still looks for work is not woken.
    until = time.monotonic() + 60
    while open(f"/proc/self/task/{worker}/stat").read().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < until, "the worker never sleeps"
        time.sleep(0.001)
    bs.matmul(a, a)

def comes_to(wanted):
    for _ in range(1000):
        call()
        if os.sched_getaffinity(worker) == wanted:
            return True
    return False

one, other = sorted(cpus)[:2]
for cpu in (one, other, one):
    os.sched_setaffinity(0, {cpu})
    assert comes_to(cpus - {cpu}), (cpu, os.sched_getaffinity(worker))
os.sched_setaffinity(worker, {one})
for cpu in (other, one):
    os.sched_setaffinity(0, {cpu})
    for _ in range(10):
        call()
    assert os.sched_getaffinity(worker) == {one}, (cpu, os.sched_getaffinity(worker))
os.sched_setaffinity(worker, cpus)
os.sched_setaffinity(0, {other})
assert comes_to(cpus - {other})
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_threads_are_woken_on_other_cpus_than_the_caller_s(host) -> None:
    """A worker must leave the caller's CPU, but only for CPUs that it is allowed, even if someone else changes those in between."""
    bs.set_num_threads(2)
    if bs.get_num_threads() == 1:
        pytest.skip("a build without OpenMP")
    done = child(AFFINITY)
    assert done.returncode == 0, done.stderr


# ---- fork
def in_forked_child(task: Callable[[], str]) -> str:
    """Return the result of ``task`` in a forked child; fail if the child dies or hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # no pytest machinery past this point
        code = 1
        try:
            signal.alarm(PATIENCE)  # ends a child that hangs in native code
            os.write(write, task().encode())
            code = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), f"the child was ended by signal {os.WTERMSIG(status)}; 14 means that it hung"
    assert os.WEXITSTATUS(status) == 0, said
    return said


pytestmark = [
    # Python 3.12+ warns about every fork of a process with threads, which is what these tests do.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),  # from JAX, if it was imported before
]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_forked_child_computes_the_same(threads: int, host) -> None:
    bs.set_num_threads(threads)
    want = digest(workload())  # the thread pool is running when the process forks
    assert in_forked_child(lambda: digest(workload())) == want
    assert digest(workload()) == want, "the parent still works"


def test_a_forked_child_may_ask_for_threads(host) -> None:
    """set_num_threads in a child must not wake a pool that did not survive the fork."""
    bs.set_num_threads(2)
    want = digest(workload())

    def task() -> str:
        bs.set_num_threads(2)
        return digest(workload())

    assert in_forked_child(task) == want


def test_a_grandchild_computes_the_same(host) -> None:
    bs.set_num_threads(2)
    want = digest(workload())
    assert in_forked_child(lambda: in_forked_child(lambda: digest(workload()))) == want


def _digest_in_pool(_: int) -> str:
    return digest(workload())


def test_multiprocessing_with_fork(host) -> None:
    bs.set_num_threads(2)
    want = digest(workload())
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_digest_in_pool, range(4)).get(timeout=PATIENCE) == [want] * 4


# ---- environment variables
def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith("BITSPARSE_") and k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=base | environment, cwd=os.sep, check=False
    )


SHOW = "import bitsparse as bs, bitsparse.backends.host as h; print(bs.get_num_threads(), h.simd_level())"


def test_environment_variables_choose_threads_and_instruction_set(host) -> None:
    done = child(SHOW, BITSPARSE_NUM_THREADS="3", BITSPARSE_SIMD="scalar")
    assert done.returncode == 0, done.stderr
    threads, level = done.stdout.split()
    assert threads in ("3", "1")
    assert level == "scalar"
    assert child(SHOW).stdout.split()[1] == host.simd_levels()[-1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("BITSPARSE_NUM_THREADS", "0"), ("BITSPARSE_NUM_THREADS", "many"), ("BITSPARSE_SIMD", "sse9")],
)
def test_unusable_environment_variables_are_named(name: str, value: str) -> None:
    done = child(SHOW, **{name: value})
    assert done.returncode != 0
    assert name in done.stderr
    assert value in done.stderr.splitlines()[-1]
