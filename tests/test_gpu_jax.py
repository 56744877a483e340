"""bitsparse.jax on a GPU: its handlers work with frames like XLA's, and JAX's own results agree with those of the CPU."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np
import pytest
import xla_frames
from scipy import sparse
from xla_frames import Frame

import bitsparse as bs
from bitsparse import jit
from bitsparse._ext import xla

pytestmark = pytest.mark.gpu
jax = pytest.importorskip("jax")
pytest.importorskip("bitsparse.jax")

from bitsparse.jax import computing, computing_codes, memory, preparing  # noqa: E402


def adjacency(nodes: int = 60) -> Any:
    A = sparse.random_array((nodes, nodes), density=0.1, rng=np.random.default_rng(0), format="csr")
    A = sparse.csr_array(((A + A.T).toarray() != 0).astype(np.float32))
    A.sort_indices()
    return A


class NotCounted:
    """A stand-in for the emulator's ``Called`` with a real driver, whose calls cannot be counted."""

    count, raised = 0, ()


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """With the emulator's driver, which is in Python, compiled code calls it through :mod:`ctypes`, which counts the calls."""
    from bitsparse.jax import launches
    from bitsparse.jit.kernel import _driver

    library = _driver()
    if not hasattr(type(library), "callbacks"):
        return NotCounted()
    from emulator.libcuda import Called

    called = Called()
    callbacks = library.callbacks(called)
    monkeypatch.setattr(
        launches,
        "_find_driver",
        lambda: xla.set_driver(*(ctypes.cast(one, ctypes.c_void_p).value for one in callbacks)),
    )
    return called


class Holder:
    """A stand-in for a JAX array."""

    def is_deleted(self) -> bool:
        return False


class Graph:
    """A pattern in GPU memory, and calls over it as XLA makes them."""

    def __init__(self, A: Any, rows: Any = None, columns: Any = None) -> None:
        import cupy

        from bitsparse.jax import calls, launches, tasks

        self.cupy, self.tasks, self.launches = cupy, tasks, launches
        self.handlers = xla.setup(calls._serve, launches.holds)
        self.shape, self.nnz = A.shape, A.nnz
        parts = {"indptr": A.indptr, "indices": A.indices, "rows": rows, "columns": columns}
        self.arrays = {name: cupy.asarray(part) for name, part in parts.items() if part is not None}
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def owned(self) -> list[Any]:
        """Register the arrays as if JAX owned them, and return the records."""
        self.holders = [Holder() for _ in self.arrays]
        addresses = [array.data.ptr for array in self.arrays.values()]
        found = {at: memory.Owned(holder, at) for holder, at in zip(self.holders, addresses, strict=True)}
        memory._OWNED.update(found)
        return list(found.values())

    def told(
        self, function: str, arrays: list[Any], outs: list[Any], known: str | None, **options: Any
    ) -> tuple[dict[str, Any], list[Any]]:
        """The description of a call, and its operands."""
        operands = [] if known else list(self.arrays.values())
        names = list(self.arrays)
        part = lambda name: None if name not in names else name if known else names.index(name)  # noqa: E731
        places = []
        for array in arrays:
            places.append(None if array is None else len(operands))
            operands += [] if array is None else [array]
        side = [part("indptr"), part("indices"), None, part("rows"), None]
        backward = [*(side[:2] if function.endswith("_vjp") else (None, None)), None, part("columns"), None]
        ways = {"shape": self.shape, "nnz": self.nnz, "known": known, "forward": side, "backward": backward}
        kinds = [[[list(one.shape), one.dtype.name] for one in group] for group in (operands, outs)]
        told = {
            "function": function,
            "ways": ways,
            "arrays": places,
            "operands": kinds[0],
            "results": kinds[1],
            "options": options,
        }
        return told, operands

    def run(
        self, handler: str, text: str, digest: str, operands: list[Any], outs: list[Any], stage: int = 3
    ) -> list[str]:
        """Run a call to its end, and return its errors."""
        self.cupy.cuda.get_current_stream().synchronize()
        addresses = [[one.data.ptr for one in group] for group in (operands, outs)]
        said = Frame(text, digest, *addresses, self.stream.ptr, stage=stage).run(self.handlers[handler])
        self.stream.synchronize()
        return said


def launched(driver: Any, run: Any) -> int:
    """How many launches compiled code made in a call, or 0 if they are not counted."""
    before = driver.count
    assert run() == []
    assert not driver.raised
    return int(driver.count - before)


def uneven(nodes: int = 300) -> Any:
    """A pattern with empty, short and long rows, as float32 ones."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 12, nodes)
    lengths[:2] = 0, nodes
    rows = [np.sort(rng.permutation(nodes)[:length]) for length in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return sparse.csr_array(
        (np.ones(indptr[-1], np.float32), np.concatenate(rows).astype(np.int32), indptr), shape=(nodes, nodes)
    )


#: Sums over graphs: heads, columns, dtype, and further properties.
SUMS = [
    (None, 16, "float32", ""),
    (None, 41, "float32", ""),
    (None, 64, "float32", "factors"),
    (2, 8, "float32", "values"),
    (None, 12, "float16", "values"),
    (None, 32, "float64", "values"),
    (None, 24, "bfloat16", ""),
    (None, 16, "float32", "mean"),
    (None, 16, "float32", "max"),
    (None, 41, "float32", "sum laid"),
    (None, 41, "float32", "factors laid"),
    (None, 41, "float32", "sum nonzero"),
    (None, 41, "float32", "factors nonzero"),
    *((None, 16, "float32", f"{what} windows") for what in ("sum", "values", "factors", "mean")),
    *((None, 16, "float16", f"{what} tiles") for what in ("sum", "factors", "mean")),
]


def sums(heads: int | None, columns: int, dtype: str, what: str, A: Any) -> tuple[Any, list[Any], Any, dict[str, Any]]:
    """A graph, the arrays of a sum over it, the library's result on the GPU, and options."""
    import cupy

    what, _, kernel = what.partition(" ")
    rng, reduce = np.random.default_rng(5), what if what in ("mean", "max") else "sum"
    factors = rng.uniform(0.5, 2, (2, A.shape[0])).astype(np.float32) if what == "factors" else (None, None)
    graph = Graph(A, *factors)
    shape = (A.shape[1], columns) if heads is None else (A.shape[1], heads, columns)
    plain = rng.integers(-9, 9, shape).astype(np.float32)
    if kernel == "nonzero":
        plain[rng.random(A.shape[1]) < 0.6] = 0
    given = plain.astype(jax.numpy.dtype(dtype))
    x = cupy.asarray(given.view(np.uint8)).view(given.dtype)
    values = None
    if what == "values":
        values = cupy.asarray(rng.integers(-3, 3, (A.nnz,) if heads is None else (A.nnz, heads)).astype(dtype))
    pattern = bs.TCTiledCSR.from_arrays(graph.arrays["indptr"], graph.arrays["indices"], A.shape)
    if factors[0] is not None:
        pattern = pattern.with_scales(graph.arrays["rows"], graph.arrays["columns"])
    forced = kernel if kernel in ("windows", "tiles", "nonzero") else None
    options = {"reduce": reduce} | ({"is_gradient": True} if kernel == "nonzero" else {})
    return graph, [values, x], bs.spmm(pattern, x, values=values, reduce=reduce, kernel=forced), options


def force(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sums use the kernel that a case names."""
    kernel = what.partition(" ")[2]
    if kernel == "laid":
        monkeypatch.setattr("bitsparse.backends.cuda.spmm.spmm.worth_laying", lambda *_: True)
    elif kernel == "nonzero":
        monkeypatch.setattr("bitsparse.backends.cuda.spmm.choice.nonzero_pays", lambda *_: True)
    elif kernel:
        for module in (preparing, computing.ops):
            function = "call_of" if module is preparing else "spmm"
            plain = getattr(module, function)
            monkeypatch.setattr(module, function, lambda *a, plain=plain, **how: plain(*a, **how | {"kernel": kernel}))


def same_bits(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one.reshape(-1).view(np.uint8).get(), other.reshape(-1).view(np.uint8).get()))


@pytest.mark.parametrize(("heads", "columns", "dtype", "what"), SUMS)
def test_launches_for_a_graph_that_is_an_argument(
    heads: Any, columns: int, dtype: str, what: str, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call must compute in Python, later ones must enqueue its launches, and both must have the library's bits."""
    force(what, monkeypatch)
    graph, arrays, wanted, options = sums(heads, columns, dtype, what, uneven())
    owners = graph.owned()
    told, operands = graph.told("spmm", arrays, [wanted], None, **options)
    text = json.dumps(told)
    digest = graph.launches.digest(text, len(graph.arrays))
    counts = []
    for fill in range(4):
        out = graph.cupy.full(wanted.view(np.uint8).shape, fill, np.uint8).view(wanted.dtype)
        counts.append(launched(driver, lambda out=out: graph.run("gpu", text, digest, operands, [out])))
        assert same_bits(out, wanted)
    if not isinstance(driver, NotCounted):
        assert counts[0] == 0
        assert min(counts[1:]) >= 1
    (recording,) = owners[0].launches.values()
    out = wanted * 0
    assert (
        graph.run("gpu", text, "a" * 17, operands, [out]) == []
    )  # with an unknown digest, Python computes, and uses what was prepared for the recording
    assert same_bits(out, wanted)
    apart = graph.cupy.empty(wanted.nbytes + 16, np.uint8)[8 : 8 + wanted.nbytes].view(wanted.dtype)
    assert launched(driver, lambda: graph.run("gpu", text, digest, operands, [apart])) == 0  # not aligned
    assert list(owners[0].launches.values()) == [recording]  # nothing is recorded again
    monkeypatch.setattr(Holder, "is_deleted", lambda _: True)  # the arrays were donated
    out = wanted * 0
    assert launched(driver, lambda: graph.run("gpu", text, digest, operands, [out])) == 0
    assert same_bits(out, wanted)


@pytest.mark.parametrize(("heads", "columns", "dtype", "what"), SUMS)
def test_launches_for_a_graph_that_was_closed_over(
    heads: Any, columns: int, dtype: str, what: str, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call must compute in Python; launches work in memory of the call, whose previous content must not matter."""
    from bitsparse.jax.ways import _KNOWN, Known

    force(what, monkeypatch)
    graph, arrays, wanted, options = sums(heads, columns, dtype, what, uneven())
    name = f"test {heads} {columns} {dtype} {what}"
    known = _KNOWN[name] = Known(graph.arrays)
    told, operands = graph.told("spmm", arrays, [wanted], name, **options)
    spaces = graph.launches.spaces_of(json.dumps(told), known)
    assert spaces is not None
    assert spaces or "tiles" in what  # some rows are summed in pieces, which needs memory
    text = json.dumps(told | {"spaces": spaces})
    digest = graph.launches.digest(text, 0)
    graph.launches.keep(text, digest, known)
    for fill in (0, 255, 7):
        out, *rooms = (graph.cupy.full(size, fill, np.uint8) for size in (wanted.nbytes, *spaces))
        out = out.view(wanted.dtype).reshape(wanted.shape)
        assert graph.run("recorded", text, digest, operands, [out, *rooms], stage=2) == []
        count = launched(
            driver, lambda out=out, rooms=rooms: graph.run("recorded", text, digest, operands, [out, *rooms])
        )
        assert same_bits(out, wanted)
        assert count >= 1 or isinstance(driver, NotCounted)
    apart = graph.cupy.empty(wanted.nbytes + 16, np.uint8)[8 : 8 + wanted.nbytes].view(wanted.dtype)
    assert launched(driver, lambda: graph.run("recorded", text, digest, operands, [apart, *rooms])) == 0  # not aligned
    found, expected = (one.reshape(-1).get().astype(np.float64) for one in (apart, wanted))
    tolerance = (1e-2 if wanted.dtype.itemsize == 2 else 1e-6) * abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=tolerance)  # long rows may be cut into other pieces
    del known
    assert "is gone" in graph.run("recorded", text, digest, operands, [out, *rooms])[0]


#: Calls over edges: function, heads, dtype, options.
EDGES = [
    ("sddmm", None, "float32", {"op": "dot"}),
    ("sddmm", 3, "float16", {"op": "dot"}),
    ("sddmm", None, "float32", {"op": "add"}),
    ("edge_softmax", 4, "float32", {}),
    ("edge_softmax", 1, "float64", {}),
    ("attention", 4, "float32", {"slope": 0.2, "dropout": 0.0}),
    ("attention", None, "float16", {"slope": 0.1, "dropout": 0.0}),
    ("attention state", 2, "float32", {"slope": 0.2, "dropout": 0.0}),
    ("attention state", 3, "bfloat16", {"slope": 0.2, "dropout": 0.0}),
    ("attention state", 2, "float32", {"slope": 0.2, "dropout": 0.4}),
]


@pytest.mark.parametrize(("what", "heads", "dtype", "options"), EDGES)
def test_launches_over_edges(what: str, heads: Any, dtype: str, options: dict[str, Any], driver: Any) -> None:
    """The launches that compiled code enqueues must have the bits that Python computes, forward and backward."""
    import cupy

    A, rng = uneven(), np.random.default_rng(9)
    A = sparse.csr_array(((A + A.T).toarray() != 0).astype(np.float32))
    A.sort_indices()
    function, _, state = what.partition(" ")
    graph, nodes = Graph(A), A.shape[0]
    inner = () if heads is None else (heads,)
    sums = np.float64 if dtype == "float64" else np.float32

    def array(shape: tuple[int, ...], of: Any) -> Any:
        drawn = rng.normal(size=shape).astype(np.float32).astype(jax.numpy.dtype(of))
        return cupy.asarray(drawn.view(np.uint8)).view(drawn.dtype)

    x = array((nodes, *inner, 12), dtype)
    if function == "sddmm":
        y = array(x.shape, dtype)
        shapes = [((A.nnz, *(inner if options["op"] == "dot" else x.shape[1:])), dtype)]
        agree(graph, function, [x, y], shapes, options, driver)
    elif function == "edge_softmax":
        scores = array((A.nnz, heads), dtype)
        agree(graph, function, [scores], [(scores.shape, dtype)], options, driver)
    else:
        scores = [array((nodes, *inner), sums) for _ in range(2)]
        rows, wide = (scores[0].shape, sums), (x.shape, dtype)
        seed = cupy.asarray(np.array([0x9E3779B9, 0], np.uint32)) if options["dropout"] else None
        kept = [rows, rows, wide] if state else []
        made = agree(graph, function, [x, *scores, seed], [wide, *kept], options, driver)
        if state:
            gradient = array(x.shape, dtype)
            agree(graph, "attention_vjp", [x, *scores, seed, *made, gradient], [wide, rows, rows], options, driver)


def agree(
    graph: Any, function: str, arrays: list[Any], kinds: list[Any], options: dict[str, Any], driver: Any
) -> list[Any]:
    """The results that Python computes, after asserting that launches recorded ahead of the call give the same."""
    from bitsparse.jax.ways import _KNOWN, Known

    def empty(fill: int) -> list[Any]:
        found = []
        for shape, dtype in kinds:
            of = jax.numpy.dtype(dtype)
            found.append(graph.cupy.full(int(np.prod(shape)) * of.itemsize, fill, np.uint8).view(of).reshape(shape))
        return found

    wanted = empty(1)
    graph.owned()
    told, operands = graph.told(function, arrays, wanted, None, **options)
    text, seen, enqueue = json.dumps(told), [0], jit.Launch.__call__

    def counting(*given: Any) -> None:
        seen[0] += 1
        enqueue(*given)

    def run(kernel: Any, blocks: int, threads: int, params: Any, shared: int = 0) -> None:
        kernel.launch(blocks, threads, params, shared=shared)()  # count a one-step launch, too

    for _ in range(2):  # launches are counted in the second call, as the first one also prepares
        seen[0] = 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(jit.Launch, "__call__", counting)
            patched.setattr(jit.Kernel, "run", run)
            assert graph.run("gpu", text, "a" * 17, operands, wanted) == []
    name = f"{function} {kinds} {options}"
    known = _KNOWN[name] = Known(graph.arrays)
    told, operands = graph.told(function, arrays, wanted, name, **options)
    spaces = graph.launches.spaces_of(json.dumps(told), known)
    assert spaces is not None
    assert spaces or "attention" not in function  # some rows are summed in pieces, which needs memory
    (recording,) = (one for one in known.kept.values() if isinstance(one, graph.launches.Recording))
    assert len([node for node in recording.made.nodes if node.function]) == seen[0]
    text = json.dumps(told | {"spaces": spaces})
    digest = graph.launches.digest(text, 0)
    graph.launches.keep(text, digest, known)
    for fill in (0, 255):
        outs, rooms = empty(fill), [graph.cupy.full(size, fill, np.uint8) for size in spaces]
        count = launched(
            driver, lambda outs=outs, rooms=rooms: graph.run("recorded", text, digest, operands, [*outs, *rooms])
        )
        assert count >= 1 or isinstance(driver, NotCounted)
        for one, other in zip(outs, wanted, strict=True):
            assert same_bits(one, other)
    return wanted


def test_attention_in_the_memory_and_on_the_stream_of_a_call(driver: Any) -> None:
    A, rng = adjacency(), np.random.default_rng(1)
    given = [rng.normal(size=shape).astype(np.float32) for shape in ((60, 2, 8), (60, 2), (60, 2))]
    wanted = bs.attention(A, *given)
    graph = Graph(A)
    arrays, out = [*map(graph.cupy.asarray, given), None], graph.cupy.zeros(wanted.shape, np.float32)
    told, operands = graph.told("attention", arrays, [out], None, slope=0.2, dropout=0.0)
    text = json.dumps(told)
    for _ in range(2):
        out.fill(0)
        assert graph.run("gpu", text, graph.launches.digest(text, 2), operands, [out]) == []
        np.testing.assert_allclose(out.get(), wanted, rtol=1e-5, atol=1e-5)
    text = json.dumps(told | {"options": {"nonsense": 1}})
    assert "nonsense" in graph.run("gpu", text, graph.launches.digest(text, 2), operands, [out])[0]


def test_scales_of_codes_stay_on_the_gpu() -> None:
    """The host must read no scale in products of codes, as a capture would refuse this, and replays must use the current scales."""
    from bitsparse.ops.recorded import Recorded

    cupy, rng = jit.require_cupy("tests"), np.random.default_rng(4)
    x, w, made = cupy.asarray(rng.random((40, 32), np.float32)), cupy.asarray(rng.random((24, 32), np.float32)), {}
    rows = cupy.asarray(rng.random((40, 24), np.float32))

    def told(part: Any) -> dict[str, Any]:
        return {"shape": list(part.shape), "bits": 8, "axis": -1, "layout": "rows", "encoding": "signed"}

    def calls() -> None:
        a, b, g = (
            computing_codes.scaled(None, [None] * 2, None, part, bits=8, granularity="tensor", seed=0)
            for part in (x, w, rows)
        )
        kinds = {"left": told(x), "right": told(w)}
        made["product"] = computing_codes.product_codes(None, [None], *a, *b, **kinds, turned=True)
        made["rows"] = computing_codes.product_rows(None, [None], *a, *g, left=told(x), right=told(rows))
        made["real"] = computing_codes.dequantized(None, [None], *a, None, told=told(x))

    recorded = Recorded(calls)
    replayed = dict(made)
    for factor in (1, 3):
        x *= factor
        recorded()
        calls()
        for name, part in made.items():
            assert cupy.array_equal(part, replayed[name]), name


def test_a_question_about_a_handler_is_answered() -> None:
    from bitsparse.jax import calls, launches

    handlers = xla.setup(calls._serve, launches.holds)
    for name, traits in (("host", 0), ("gpu", 0), ("recorded", 1)):
        about = xla_frames.Metadata()
        question = xla_frames.Question(xla_frames.Extension(kind=1), ctypes.pointer(about))
        frame = xla_frames.RawFrame(extension=ctypes.cast(ctypes.byref(question), ctypes.c_void_p))
        call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handlers[name])
        assert call(ctypes.addressof(frame)) is None
        assert (about.version.major, about.version.minor, about.traits) == (0, 1, traits)
        assert call(ctypes.addressof(xla_frames.RawFrame(stage=0))) is None  # nothing is computed in other stages


# ---- JAX on the GPU
def both() -> list[Any]:
    """The CPU and the GPU, or nothing to compare if JAX has no GPU."""
    return [jax.devices("cpu")[0], jax.devices("gpu")[0]] if jax.default_backend() == "gpu" else []


def compare(function: Any, *arrays: Any, tolerance: float = 1e-4) -> None:
    """Compare values and gradients of a jitted function on CPU and GPU, with the graph closed over and as an argument."""
    import bitsparse.jax as bsj

    found = []
    for device in both():
        with jax.default_device(device):
            g = bsj.graph(adjacency(), self_loops=True)
            given = [jax.device_put(array, device) for array in arrays]
            where = tuple(range(1, len(given) + 1))

            def loss(g: Any, *given: Any) -> Any:
                return (function(g, *given).astype("float32") ** 2).sum()

            run = jax.jit(jax.value_and_grad(loss, where))
            closed = jax.jit(lambda *given, g=g, where=where: jax.value_and_grad(loss, where)(g, *given))
            for made in (run(g, *given), run(g, *given), closed(*given), closed(*given)):
                found.append(jax.tree.leaves(made))
                assert {next(iter(part.devices())) for part in found[-1]} == {device}
    for made in found[1:]:
        for one, other in zip(made, found[0], strict=True):
            wanted = np.asarray(other, np.float64)
            size = max(1.0, float(abs(wanted).max()))
            np.testing.assert_allclose(np.asarray(one, np.float64) / size, wanted / size, atol=tolerance)


@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums(dtype: str) -> None:
    import bitsparse.jax as bsj

    x = np.random.default_rng(0).normal(size=(60, 16))
    x = jax.numpy.asarray(x, dtype)
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    compare(lambda g, x: bsj.spmm(g, x, norm="gcn"), x, tolerance=tolerance)
    compare(lambda g, x: bsj.spmm(g, x, reduce="mean"), x, tolerance=tolerance)
    if dtype == "float32":
        compare(lambda g, x: bsj.spmm(g, x, reduce="max"), x)


@pytest.mark.jax
def test_edges_and_attention() -> None:
    import bitsparse.jax as bsj

    rng = np.random.default_rng(0)
    x, s, t = (rng.normal(size=size).astype(np.float32) for size in ((60, 2, 8), (60, 2), (60, 2)))
    compare(bsj.attention, x, s, t)
    compare(lambda g, x: bsj.cosine_attention(g, x), x[:, 0])
    compare(lambda g, x, s, t: bsj.spmm(g, x, bsj.edge_softmax(g, bsj.sddmm(g, t, s, op="add"))), x, s, t)
    compare(lambda g, x: bsj.aggregate_edges(g, bsj.sddmm(g, x), reduce="mean"), x)
    compare(lambda g, x: bsj.sampled_spmm(g, x, 4), x[:, 0])
    compare(lambda g, x: jax.vmap(lambda x: bsj.spmm(g, x))(jax.numpy.stack([x, 2 * x])), x[:, 0])
    compare(
        lambda g, x: jax.lax.scan(lambda x, _: (jax.numpy.tanh(bsj.spmm(g, x)), None), x, None, length=3)[0], x[:, 0]
    )


@pytest.mark.jax
def test_a_step_of_many_layers_on_one_stream_is_right_again_and_again() -> None:
    import bitsparse.jax as bsj

    for device in both()[1:]:
        with jax.default_device(device):
            g, x = bsj.graph(adjacency(), self_loops=True), jax.numpy.ones((60, 16)) / 8

            @jax.jit
            def step(g: Any, x: Any) -> Any:
                for _ in range(10):
                    x = jax.numpy.tanh(bsj.spmm(g, x, norm="gcn") + 0.1)
                return x

            first = np.asarray(step(g, x))
            assert all(np.array_equal(first, step(g, x)) for _ in range(50))
