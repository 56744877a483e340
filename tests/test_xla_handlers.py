"""The compiled handlers of XLA's calls, without a GPU: on XLA's CPU, with a driver whose launches compute in host memory."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytestmark = pytest.mark.jax
jax = pytest.importorskip("jax")
jnp = jax.numpy
pytest.importorskip("bitsparse.jax")

from xla_frames import Frame  # noqa: E402

from bitsparse._ext import xla  # noqa: E402
from bitsparse.jax import calls, launches  # noqa: E402

HERE = Path(__file__).parent
EXT = HERE.parent / "_ext"
DOUBLE, ADD, COUNT, WAIT, FAILING = 1, 2, 3, 4, 700
KEY = itertools.count()
STREAM, DEVICE = 0x5000, 3


class Written(ctypes.Structure):
    """A launch as the driver records it."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("function", "stream", "bytes")),
        *((name, ctypes.c_uint * 3) for name in ("grid", "block")),
        *((name, ctypes.c_uint) for name in ("shared", "attribute_count", "first_attribute", "pad")),
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield the driver, after registering for XLA's CPU the handler that gives calls a stream."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not EXT.exists():
        pytest.skip("needs a C compiler and the sources")
    path = tmp_path_factory.mktemp("double") / "double.so"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{EXT}",
        HERE / "xla_double.c",
        "-o",
        path,
    ]
    subprocess.run(list(map(str, command)), check=True)
    library = ctypes.CDLL(str(path))
    address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value  # noqa: E731
    xla.set_driver(address("launch"), address("set"), address("name"))
    handlers = xla.setup(calls._serve, launches.holds)
    library.place.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
    library.place(handlers["recorded"], DEVICE, STREAM)
    jax.ffi.register_ffi_target("double", jax.ffi.pycapsule(address("handler")), platform="cpu")
    yield library
    found = launches._find_driver.cache_info().currsize
    launches._find_driver.cache_clear()
    if found:  # launches on a GPU were recorded earlier
        launches._find_driver()


@pytest.fixture(autouse=True)
def _empty(driver: Any) -> Iterator[None]:
    taken(driver)
    yield
    xla.setup(calls._serve, launches.holds)


def taken(driver: Any) -> list[Written]:
    """Return the launches since the last call."""
    book = (Written * 256)()
    return list(book[: driver.take(book)])


class Served(NamedTuple):
    executes: bool
    text: bytes
    digest: bytes
    arguments: list[int]
    results: list[int]
    device: int
    stream: int


def key(operands: int = 0) -> str:
    return chr(ord("a") + operands) + f"{next(KEY):016d}"


def node(
    function: int, count: int, *, a: int, out: int, b: int | None = None, counter: int | None = None, **how: Any
) -> Any:
    """Return one launch over the buffers with these numbers."""
    places = ((0, a), (8, b), (16, out), (32, counter))
    patches = [(at, number, 0) for at, number in places if number is not None]
    params = struct.pack("<QQQqQ", 0, 0, 0, count, 0)
    grid, shared, attributes = how.get("grid", (1, 1, 1)), how.get("shared", 0), how.get("attributes", b"")
    return f"kernel {function}".encode(), function, grid, 128, shared, attributes, params, patches


def zeros(number: int, nbytes: int, beyond: int = 0) -> Any:
    return b"zeros", 0, (1, 1, 1), 1, nbytes, b"", b"", [(0, number, beyond)]


def kept(
    digest: str, slots: int, nodes: list[Any], operands: tuple[int, ...] = (), owner: int = 0, stream: int = STREAM
) -> xla.Launches:
    found = xla.Launches(digest.encode(), DEVICE, stream, operands, owner, slots, nodes)
    found.keep()
    return found


def called(digest: str, *results: int, text: str = "text") -> Callable[..., Any]:
    """Return a jitted call whose results have these numbers of floats."""
    kinds = [jax.ShapeDtypeStruct((size,), jnp.float32) for size in results]
    return jax.jit(lambda *operands: jax.ffi.ffi_call("double", kinds)(*operands, call=text, digest=digest))


def test_our_declarations_are_xlas(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None or not EXT.exists():
        pytest.skip("needs a C++ compiler and the sources")
    command = [
        compiler,
        "-std=c++17",
        "-fsyntax-only",
        "-Wall",
        "-Werror",
        f"-I{jax.ffi.include_dir()}",
        f"-I{EXT}",
        str(HERE / "xla_offsets.cpp"),
    ]
    subprocess.run(command, check=True, cwd=tmp_path)


def test_a_call_enqueues_its_launches_in_order_over_its_buffers(driver: Any) -> None:
    digest = key()
    attribute = struct.pack("<II", 6, 0) + bytes(64)
    nodes = [
        zeros(3, 4),
        node(DOUBLE, 5, a=0, out=2, grid=(7, 2, 3), shared=1234, attributes=attribute),
        node(COUNT, 5, a=2, out=1, counter=3),
    ]
    launches = kept(digest, 4, nodes)
    x = jnp.arange(5.0)
    run = called(digest, 5, 5, 4)
    for _ in range(3):  # the counter must begin at zero every time
        out, between, _ = run(x)
        np.testing.assert_array_equal(between, 2 * x)
        np.testing.assert_array_equal(out, 2 * x + np.arange(5))
        first, second, third = taken(driver)
        assert (first.function, first.bytes, first.stream) == (0, 4, STREAM)
        assert (second.function, second.stream, tuple(second.grid), tuple(second.block)) == (
            DOUBLE,
            STREAM,
            (7, 2, 3),
            (128, 1, 1),
        )
        assert (second.shared, second.attribute_count, second.first_attribute) == (1234, 1, 6)
        assert (third.function, third.attribute_count) == (COUNT, 0)
    del launches


def test_ten_layers_in_one_step(driver: Any) -> None:
    digest = key()
    launches = kept(digest, 3, [node(ADD, 6, a=0, b=1, out=2)])

    @jax.jit
    def step(x: Any, y: Any) -> Any:
        for _ in range(10):
            (x,) = jax.ffi.ffi_call("double", [jax.ShapeDtypeStruct((6,), jnp.float32)])(x, y, call="", digest=digest)
            x = jnp.tanh(x)
        return x

    x, y = jnp.linspace(-1, 1, 6), jnp.linspace(0, 1, 6)
    wanted = np.asarray(x)
    for _ in range(10):
        wanted = np.tanh(wanted + np.asarray(y))
    np.testing.assert_allclose(step(x, y), wanted, rtol=1e-5)
    assert len(taken(driver)) == 10
    found = jax.lax.scan(lambda x, _: (step(x, y), None), x, None, length=3)[0]
    assert np.isfinite(np.asarray(found)).all()
    assert len(taken(driver)) == 30
    del launches


def test_a_launch_that_fails_is_an_error_of_xlas(driver: Any) -> None:
    digest = key()
    launches = kept(digest, 2, [node(DOUBLE, 2, a=0, out=1), node(FAILING, 2, a=0, out=1), node(DOUBLE, 2, a=0, out=1)])
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"launching kernel 700 failed: CUDA_ERROR_ILLEGAL_ADDRESS \(CUresult 700\)"
    ):
        jax.block_until_ready(called(digest, 2)(jnp.ones(2)))
    assert len(taken(driver)) == 2  # nothing is launched after the failure
    del launches


def test_what_is_not_kept_goes_to_python(driver: Any) -> None:
    served: list[Served] = []

    def serve(*given: Any) -> None:
        served.append(Served(*given))
        at = lambda address: (ctypes.c_float * 3).from_address(address)  # noqa: E731
        at(served[-1].results[0])[:] = [2 * x for x in at(served[-1].arguments[0])]

    xla.setup(serve, launches.holds)
    digest, x = key(), jnp.arange(3.0)
    run = called(digest, 3, text="what to do")
    np.testing.assert_array_equal(run(x)[0], 2 * x)
    assert served[0][:3] == (True, b"what to do", digest.encode())
    assert (served[0].device, served[0].stream, taken(driver)) == (DEVICE, STREAM, [])

    found = kept(digest, 2, [node(DOUBLE, 3, a=0, out=1)])
    run(x)
    assert (len(served), len(taken(driver))) == (1, 1)
    del found  # its launches end with it
    run(x)
    assert (len(served), len(taken(driver))) == (2, 0)
    others = kept(digest, 3, [node(DOUBLE, 3, a=0, out=1)])  # recorded for another number of buffers
    run(x)
    assert (len(served), len(taken(driver))) == (3, 0)
    del others


def test_what_python_raises_is_an_error_of_xlas() -> None:
    raised: list[BaseException] = []

    def serve(*_: Any) -> None:
        raise raised[-1]

    xla.setup(serve, launches.holds)
    run = called(key(), 1)
    cases: list[tuple[BaseException, str]] = [
        (ValueError("x is wrong; pass another"), "INVALID_ARGUMENT: x is wrong; pass another"),
        (MemoryError("8 bytes are too many"), "INTERNAL: 8 bytes are too many"),
        (KeyError("k"), "INTERNAL: KeyError: 'k'"),
        (RuntimeError("x" * 10_000), "INTERNAL: xxx"),
    ]
    for error, said in cases:
        raised.append(error)
        with pytest.raises(jax.errors.JaxRuntimeError, match=said):
            jax.block_until_ready(run(jnp.ones(1)))


def test_launches_for_a_graph_are_used_at_its_addresses_while_it_holds(driver: Any) -> None:
    served: list[Served] = []
    held = {7: True}

    def serve(*given: Any) -> None:
        served.append(Served(*given))

    xla.setup(serve, lambda owner: held[owner])
    digest = key(1)
    graph, other, x = jnp.ones(4), jnp.ones(4), jnp.arange(2.0)
    run = called(digest, 2)
    run(graph, x)
    assert len(served) == 1
    assert served[0].arguments[0] == graph.unsafe_buffer_pointer()
    found = kept(digest, 3, [node(DOUBLE, 2, a=1, out=2)], (graph.unsafe_buffer_pointer(),), 7)
    np.testing.assert_array_equal(run(graph, x)[0], 2 * x)
    assert (len(served), len(taken(driver))) == (1, 1)
    run(other, x)
    assert (len(served), len(taken(driver))) == (2, 0)
    held[7] = False
    run(graph, x)
    assert (len(served), len(taken(driver))) == (3, 0)
    held[7] = True
    elsewhere = kept(digest, 3, [node(FAILING, 2, a=1, out=2)], (graph.unsafe_buffer_pointer(),), 7, STREAM + 1)
    run(graph, x)  # uses the launches of this stream
    assert (len(served), len(taken(driver))) == (3, 1)
    del held[7]  # a check that raises counts as no
    run(graph, x)
    assert len(served) == 4
    del found, elsewhere


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"nodes": [zeros(2, 4)]}, "buffer 2 of 2"),
        ({"nodes": [(b"k", 1, (1, 1, 1), 1, 0, b"", bytes(12), [(8, 0, 0)])]}, "at byte 8 of 12"),
        ({"nodes": [(b"k", 1, (1, 1, 1), 1, 0, b"", bytes(5000), [])]}, "5000 bytes"),
        ({"nodes": [(b"k", 1, (1, 1, 1), 1, 0, bytes(71), b"", [])]}, "71 of attributes"),
        ({"nodes": [(b"k", 0, (1, 1, 1), 1, 8, b"", b"", [])]}, "one buffer"),
        ({"digest": b"b" + bytes(16)}, "0 operands"),
        ({"digest": b"a"}, "0 operands"),
        ({"digest": b"z" + bytes(16), "operands": range(25)}, "25 operands"),
    ],
)
def test_launches_that_would_reach_outside_are_refused(told: dict[str, Any], said: str) -> None:
    given = {"digest": b"a" + bytes(16), "operands": (), "nodes": []} | told
    with pytest.raises(ValueError, match=said):
        xla.Launches(given["digest"], 0, 0, given["operands"], 0, 2, given["nodes"])
    with pytest.raises(ValueError, match="address is null"):
        xla.set_driver(0, 0, 0)


def test_launches_that_go_during_a_call_stay_until_its_end(driver: Any) -> None:
    xla.setup(lambda *_: None, launches.holds)
    digest, done = key(), list[Any]()
    run, x = called(digest, 64), jnp.ones(64)
    jax.block_until_ready(run(x))
    found = kept(digest, 2, [(b"wait", WAIT, (1, 1, 1), 1, 0, b"", b"", []), node(DOUBLE, 64, a=0, out=1)])
    driver.go(0)
    thread = threading.Thread(target=lambda: done.append(np.asarray(run(x)[0])))
    thread.start()
    while not driver.waits():
        time.sleep(1e-3)
    del found
    others = [kept(key(), 2, [node(FAILING, 64, a=0, out=1)] * 2) for _ in range(20)]  # in memory that was freed
    driver.go(1)
    thread.join()
    np.testing.assert_array_equal(done[0], 2 * x)
    del others


def test_launches_come_and_go_while_others_call(driver: Any) -> None:
    xla.setup(lambda *_: None, launches.holds)
    digest, stop = key(), threading.Event()
    run, x = called(digest, 64), jnp.ones(64)

    def come_and_go() -> None:
        while not stop.is_set():
            kept(digest, 2, [node(DOUBLE, 64, a=0, out=1)] * 20)

    def call() -> None:
        for _ in range(300):
            jax.block_until_ready(run(x))

    coming, callers = threading.Thread(target=come_and_go), [threading.Thread(target=call) for _ in range(3)]
    for thread in (coming, *callers):
        thread.start()
    for thread in callers:
        thread.join()
    stop.set()
    coming.join()


def test_places_within_buffers_and_buffers_that_are_not_aligned(driver: Any) -> None:
    served: list[Served] = []
    handlers = xla.setup(lambda *given: served.append(Served(*given)), launches.holds)
    digest = key()
    params = struct.pack("<QQQqQ", 0, 0, 0, 3, 0)
    shifted = (b"kernel", DOUBLE, (1, 1, 1), 1, 0, b"", params, [(0, 0, 8), (16, 1, 4)])
    found = kept(digest, 2, [zeros(1, 4, beyond=20), shifted], stream=0)
    x, y = (jnp.arange(32.0) + 1, np.full(32, 7, np.float32))
    memory = np.zeros(64, np.float32)
    start = -memory.ctypes.data // 4 % 4 + 4  # aligned to 16 bytes
    memory[start : start + 8] = x[:8]
    memory[start + 32 : start + 40] = y[:8]
    at = lambda index: memory.ctypes.data + 4 * index  # noqa: E731
    frame = lambda one, other, **how: Frame("", digest, [at(one)], [at(other)], STREAM, DEVICE, **how)  # noqa: E731
    assert frame(start, start + 32).run(handlers["gpu"]) == []
    np.testing.assert_array_equal(memory[start + 32 : start + 40], [7, 6, 8, 10, 7, 0, 7, 7])
    assert (len(served), len(taken(driver))) == (0, 2)
    for one, other in ((start + 1, start + 32), (start, start + 33)):
        assert frame(one, other).run(handlers["gpu"]) == []
    assert (len(served), len(taken(driver))) == (2, 0)
    assert (
        frame(start, start + 32, stage=2).run(handlers["recorded"]) == []
    )  # the launches are kept already, so nothing has to be prepared
    assert frame(start, start + 32, stage=1).run(handlers["recorded"]) == []
    assert (len(served), len(taken(driver))) == (2, 0)
    del found
    assert frame(start, start + 32, stage=2).run(handlers["recorded"]) == []
    assert served[2][:3] == (False, b"", digest.encode())
    lost = Frame("", digest, [at(start)], [at(start)], STREAM, -1).run(handlers["gpu"])
    assert lost == ["bitsparse.jax: XLA does not tell on which GPU a call runs"]
    old = Frame("", digest, [at(start)], [at(start)], STREAM, DEVICE)
    old.api.size -= 8
    assert "install a newer jaxlib" in old.run(handlers["gpu"])[0]
