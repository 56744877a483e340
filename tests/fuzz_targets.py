"""The targets of fuzzing: intact files to start from, how each kind is read, and what a right result is."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import re
import zipfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from fuzz_mutations import damaged, damaged_archive

import bitsparse as bs
from bitsparse import distributed, nn
from bitsparse.datasets import planetoid, read, read_edges, read_mtx, read_npz
from bitsparse.graph import parts as parts_module
from bitsparse.graph.packets import Group
from bitsparse.jit import cubins as kernel_cache
from bitsparse.nn.binary import tuner
from bitsparse.nn.cluster.journal import FileSink


class Target(NamedTuple):
    """A reader under test: ``draw(rng)`` makes a file, ``check(content, folder)`` reads it and fails on a wrong result."""

    draw: Callable[[random.Random], bytes]
    check: Callable[[bytes, Path], None]
    share: int


def _bytes_target(
    seeds: Sequence[bytes], words: Sequence[bytes], check: Callable[[bytes, Path], None], share: int
) -> Target:
    return Target(lambda rng: damaged(rng, seeds, words), check, share)


def _archive_target(
    files: Sequence[bytes], words: Sequence[bytes], check: Callable[[bytes, Path], None], share: int
) -> Target:
    archives = []
    for file in files:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            archives.append([(name, archive.read(name)) for name in archive.namelist()])
    return Target(lambda rng: damaged_archive(rng, archives, words), check, share)


def _written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# ---- arrays
def _arrays() -> Target:
    rng = np.random.default_rng(0)
    dense = (rng.random((9, 40)) < 0.2).astype(np.float32)
    made: list[Any] = [
        bs.quantize(rng.normal(size=(3, 40)).astype(np.float32), 3, granularity="row"),
        bs.pack_bits(rng.integers(0, 2, (2, 3, 5)), axis=-2),
        bs.BitTensor([[5, 0, 2]], scale=0.5),
        bs.TCTiledCSR(dense, row_scale=np.ones(9)),
        bs.TCTiledCSR(dense != 0),
        bs.FRDC(dense != 0, col_scale=np.ones(40)),
    ]
    files = []
    for each in made:
        bs.save_npz(stream := io.BytesIO(), each)
        files.append(stream.getvalue())
    words = re.findall(rb'"[\w-]+"|[{}\[\],:]', b'{"format": "bitsparse-1", "type": "BitTensor", "shape": [2, 3], "bits": 1, "axis": -1,'
        b'"layout": "planes" "rows", "encoding": "unsigned" "signed" "bipolar", "TCTiledCSR" "FRDC" "window" "had_duplicates"')  # fmt: skip
    return _archive_target(files, [*words, b"true", b"null", b"1e5", b"16"], _check_array, 6)


def _check_array(content: bytes, folder: Path) -> None:
    found = bs.load_npz(io.BytesIO(content))
    assert found.nbytes <= 16 * len(content) + (1 << 20), f"{found.nbytes} bytes from {len(content)}"
    bs.save_npz(stream := io.BytesIO(), found, compressed=False)
    again = bs.load_npz(stream)
    assert repr(again) == repr(found)
    parts = (
        ("words", "scale", "offset")
        if isinstance(found, bs.BitTensor)
        else (*type(found).component_names, "row_scale", "col_scale")
    )
    for part in parts:
        np.testing.assert_array_equal(getattr(again, part), getattr(found, part))


# ---- networks
def _saved(folder: Path, models: Sequence[Any]) -> list[bytes]:
    files = []
    for model in models:
        model.save(folder / "seed.npz")
        files.append((folder / "seed.npz").read_bytes())
    return files


def _plain(folder: Path, arrays: dict[str, Any]) -> bytes:
    np.savez(folder / "seed.npz", **arrays)
    return (folder / "seed.npz").read_bytes()


def _networks(folder: Path) -> Target:
    heads = nn.Attention(np.ones((2, 2)), np.ones((2, 2)))
    gat = nn.Network("gat", [nn.Layer([nn.Dense(np.ones((3, 4)), average=2)], attention=heads)])
    files = _saved(folder, [*(nn.random_network(kind, [3, 4, 2], seed=1) for kind in ("gcn", "sage", "gin")), gat])
    files.append(_plain(folder, gat.state_dict()))
    words = b"gcn sage gin gat relu tanh sum softmax part array average null".split()

    def check(content: bytes, folder: Path) -> None:
        network = nn.load_network(_written(folder, "n.npz", content))
        assert len(network.widths) == len(network.layers) + 1

    return _archive_target(files, words, check, 3)


def _lowbit_networks(folder: Path) -> Target:
    rng = np.random.default_rng(0)
    graph, x = sp.csr_array(rng.random((6, 6)) < 0.4), rng.normal(size=(6, 3))
    made = [
        (nn.random_network(kind, [3, 4, 2], seed=1), bits) for kind in ("gcn", "sage", "gin") for bits in (1, [8, 4])
    ]
    networks = [nn.quantize_network(network, graph, x, bits) for network, bits in made]
    words = b"gcn sage gin mean sum relu tanh null true false 0 1 2 4 8 16 weights sums gives own scaled bits widths".split()

    def check(content: bytes, folder: Path) -> None:
        network = nn.load_lowbit(_written(folder, "l.npz", content))
        if network.features == 3:
            with contextlib.suppress(ValueError):  # large factors can give results that no code represents
                assert network(graph, x).shape == (6, network.classes)

    return _archive_target(_saved(folder, networks), words, check, 4)


def _shards(folder: Path) -> Target:
    """Shard files of a single rank; those of several ranks are read in the same way."""
    rng = np.random.default_rng(0)
    comm = next(iter(distributed.local(1)))
    matrix = sp.csr_array((rng.random((9, 9)) < 0.4) * rng.random((9, 9)))
    scaled = bs.TCTiledCSR(matrix != 0, row_scale=rng.random(9), col_scale=rng.random(9))
    files = []
    for each in (matrix, scaled):
        for method in ("blocks", "metis"):
            part = distributed.partition(each, comm, method=method)
            files.append(distributed.save_shard(folder, distributed.shard(each, part)).read_bytes())
    words = (
        b'{ } "format" "rank" "size" "hash" "method" "blocks" "metis" 0 1 2 null bounds order indptr columns'.split()
    )

    def check(content: bytes, folder: Path) -> None:
        _written(folder, "shard-0-of-1.npz", content)
        a = distributed.load_shard(folder, comm)
        assert a.nbytes <= 16 * len(content) + (1 << 20)
        if a.values is None or a.values.ndim == 1:
            x = np.ones((a.shape[0], 2), np.float32)
            assert distributed.spmm(a, x, exchange="halo").shape == x.shape

    return _archive_target(files, words, check, 3)


def _safe_shards(folder: Path) -> Target:
    """Shard files in the safetensors format."""
    comm = next(iter(distributed.local(1)))
    matrix = sp.csr_array(np.eye(9, k=1) + np.eye(9, k=-3))
    part = distributed.partition(matrix, comm)
    content = distributed.save_shard(
        folder / "safe", distributed.shard(matrix, part), format="safetensors"
    ).read_bytes()
    words = (
        b'{ } "dtype" "shape" "data_offsets" [0, 1] I32 I64 F64 BF16 BOOL "bounds" "order" __metadata__ 9 10'.split()
    )

    def check(content: bytes, folder: Path) -> None:
        (folder / "safe").mkdir(exist_ok=True)  # a folder of its own, without files of the other format
        _written(folder / "safe", "shard-0-of-1.safetensors", content)
        a = distributed.load_shard(folder / "safe", comm)
        assert a.nbytes <= 16 * len(content) + (1 << 20)
        a.own_rows()

    return _bytes_target([content], words, check, 12)


def _binary_models(folder: Path) -> Target:
    rng = np.random.default_rng(0)

    def linear(inputs: int, outputs: int) -> nn.BinaryLinear:
        return nn.BinaryLinear.from_weights(rng.normal(size=(inputs, outputs)))

    models = [
        nn.BinaryGCN([linear(6, 8), linear(8, 3)], "binary"),
        nn.BinaryGCN([linear(6, 3)], input_norm="rows"),
        nn.BinarySAGE([(linear(6, 3), linear(6, 3))]),
    ]
    words = re.findall(
        rb'"\w+"|[{}\[\],:]',
        b'{"part": "BinaryGCN", "BinarySAGE" "BinarySAINT" "Setting" "InputNorm" "BitTensor" '
        b'"variants": "shape" "layers" "rows" "array" "head"',
    )
    words += [b"true", b"false", b"null", b'"FBB+BBB"', b'"FBF+FBF"']

    def check(content: bytes, folder: Path) -> None:
        model = nn.load_binary(_written(folder, "b.npz", content))
        assert all(min(part.shape) > 0 for part in model.parts)

    return _archive_target(_saved(folder, models), words, check, 4)


# ---- graphs
def _graph_archives() -> Target:
    files = []
    x = sp.random_array((6, 4), density=0.4, format="csr", rng=np.random.default_rng(0))
    common = {"indptr": np.arange(7), "indices": np.arange(6)[::-1].copy(), "num_nodes": 6}
    sparse = {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data, "x_shape": np.array(x.shape)}
    masks = {name: np.arange(6) % 3 == i for i, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    for arrays in (
        common | sparse | {"labels": np.arange(6) % 2, **masks},
        common | {"features": np.ones((6, 2), np.float32), "weights": np.ones(6)},
        {"src_li": np.array([2, 0, 0]), "dst_li": np.array([1, 2, 1]), "num_nodes": 4},
    ):
        np.savez(stream := io.BytesIO(), **arrays)
        files.append(stream.getvalue())

    def check(content: bytes, folder: Path) -> None:
        graph = read_npz(_written(folder, "g.npz", content))
        _check_graph(graph, content)

    return _archive_target(files, [], check, 6)


def _check_graph(graph: Any, content: bytes) -> None:
    assert graph.num_nodes <= (1 << 24) + 16 * len(content)
    assert graph.indptr[0] == 0
    assert graph.indptr[-1] == graph.indices.size
    if graph.indices.size:
        assert 0 <= graph.indices.min() <= graph.indices.max() < graph.num_nodes


def _entries(graph: Any, weights: bool) -> dict[tuple[int, int], float]:
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    values = graph.weights if weights else np.ones(rows.size)
    return {(int(row), int(col)): float(value) for row, col, value in zip(rows, graph.indices, values, strict=True)}


EDGES = (
    b"0 1\n1 2\n2 0\n",
    b"# head\n0\t1\t0.5\n\n% more\n1\t2\t3",
    b"source,target\n0,1\n1,2\n",
    b'\xef\xbb\xbf"0";"1"\n"1";"2"\n',
    b"0.0 1.0\r\n1 2 8\r\n",
)
EDGE_WORDS = b"0 1 2 17 0.5 1.0 x source target # // % , ; \" ' - + nan".split() + [
    b" ",
    b" ",
    b"\t",
    b"\n",
    b"\n",
    b"\n",
    b"\r\n",
]


def _check_edges(content: bytes, folder: Path) -> None:
    """Compare with a reader in plain Python that goes line by line."""
    weights = len(content) % 2 == 1
    path = _written(folder, "e.txt", content)
    graph = read_edges(path, weights=weights)
    _check_graph(graph, content)
    wanted: dict[tuple[int, int], float] = {}
    lines = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = True
    for line in lines:
        words = [word for word in re.split("[ \t\v\f,;\"']", line) if word]
        if not words or words[0].startswith(("#", "%", "//")):
            continue
        if first and not any(_is_number(word) for word in words[:2]):
            first = False
            continue
        first = False
        source, target = (int(float(word)) for word in words[:2])
        wanted[source, target] = wanted.get((source, target), 0.0) + (float(words[2]) if weights else 1.0)
    if not weights:
        wanted = dict.fromkeys(wanted, 1.0)
    got = _entries(graph, weights)
    assert got.keys() == wanted.keys(), f"{content!r}: {got} instead of {wanted}"
    np.testing.assert_allclose(list(got.values()), [wanted[key] for key in got], rtol=1e-12)


def _is_number(word: str) -> bool:
    with contextlib.suppress(ValueError):
        float(word.encode())
        return "_" not in word
    return False


MTX_WORDS = b"%%MatrixMarket matrix coordinate array pattern real integer general symmetric skew-symmetric 0 1 2 3 0.5 -1 % x".split()


def _mtx_seeds() -> list[bytes]:
    def made(head: str, *lines: str) -> bytes:
        return "\n".join((f"%%MatrixMarket matrix {head}", *lines, "")).encode()

    return [
        made("coordinate pattern general", "% a comment", "3 3 2", "1 2", "3 1"),
        made("coordinate real symmetric", "3 3 3", "2 1 0.5", "3 3 2", "3 1 1e-3"),
        made("coordinate integer skew-symmetric", "3 3 1", "3 1 -4"),
        made("array real general", "2 2", "0", "1", "2", "0"),
        made("array integer symmetric", "2 2", "1", "2", "3"),
        made("coordinate pattern general", "0 0 0"),
    ]


def _check_mtx(content: bytes, folder: Path) -> None:
    """Compare with a reader in plain Python."""
    graph = read_mtx(_written(folder, "m.mtx", content), weights=True)
    _check_graph(graph, content)
    lines = content.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    form, field, symmetry = lines[0].lower().split()[2:]
    body = [words for line in lines[1:] if (words := [word for word in re.split("[ \t]", line) if word]) and True]
    while body and body[0][0].startswith("%"):
        del body[0]
    n = int(body[0][0])
    wanted: dict[tuple[int, int], float] = {}
    entries: list[tuple[int, int, float]] = []
    if form == "coordinate":
        entries = [(int(w[0]) - 1, int(w[1]) - 1, float(w[2]) if field != "pattern" else 1.0) for w in body[1:]]
    else:
        places = [
            (r, c)
            for c in range(n)
            for r in range(n)
            if symmetry == "general" or r > c or (r == c and symmetry == "symmetric")
        ]
        entries = [(r, c, float(w[0])) for (r, c), w in zip(places, body[1:], strict=True) if float(w[0])]
    for row, col, value in entries:
        wanted[row, col] = wanted.get((row, col), 0.0) + value
        if symmetry != "general" and row != col:
            mirrored = -value if symmetry == "skew-symmetric" else value
            wanted[col, row] = wanted.get((col, row), 0.0) + mirrored
    got = _entries(graph, field != "pattern")
    assert got.keys() == wanted.keys(), f"{content!r}: {got} instead of {wanted}"
    if field != "pattern":
        np.testing.assert_allclose(list(got.values()), [wanted[key] for key in got], rtol=1e-9, atol=1e-300)


def _check_any(content: bytes, folder: Path) -> None:
    """Read the bytes under a file name that need not fit them."""
    name = ("any.npz", "any.mtx", "any.txt", "any.txt.gz", "any")[len(content) % 5]
    _check_graph(read(_written(folder, name, content), weights=False), content * 1000)


# ---- pickles
def _pickles() -> Target:
    matrix = sp.csr_matrix(np.eye(3, 4, dtype=np.float32))
    values = ({0: [1, 2], 1: [0]}, np.arange(6.0).reshape(2, 3), matrix, [2**70, "text", None])
    seeds = [pickle.dumps(value, protocol=protocol) for value in values for protocol in (0, 2, 4)]
    words = [bytes([code]) for code in range(256)] + [
        b"cnumpy\nndarray\n",
        b"c__builtin__\nlist\n",
        b"(K\x01t",
        b"q\x00",
        b"h\x00",
        b"\x86",
        b"R",
        b"b",
    ]

    def check(content: bytes, folder: Path) -> None:
        found: Any = None
        with contextlib.suppress(ValueError):  # read_planetoid turns it into a named error
            found = planetoid.safe_load(content)
        module = type(found).__module__
        assert module in ("builtins", "numpy", planetoid.__name__) or isinstance(found, sp.csr_array), module

    return _bytes_target(seeds, words, check, 10)


# ---- caches
def _partitions(folder: Path) -> Target:
    ring = sp.csr_array(np.roll(np.eye(12, dtype=int), 1, axis=1))
    own = folder / "parts"
    labels, _ = parts_module.cached_partition(ring, 3, cache=own)
    (file,) = own.iterdir()

    def check(content: bytes, folder: Path) -> None:
        found = parts_module._load(_written(folder, "p.npy", content), 12, 3)
        assert found is None or (
            found.shape == (12,) and found.dtype == np.int32 and 0 <= found.min() <= found.max() < 3
        )

    np.testing.assert_array_equal(parts_module._load(file, 12, 3), labels)
    return _bytes_target([file.read_bytes()], [b"'|O'", b"'<i4'", b"(12,)", b"(99999999999,)", b"True"], check, 10)


def _figures() -> Target:
    record = {
        "settings": [["FBB+BBB", False], ["BBF+FBF", True]],
        "accuracy": 0.75,
        "milliseconds": 0.5,
        "nbytes": 1000,
    }
    words = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"settings"',
        b'"accuracy"',
        b"NaN",
        b"Infinity",
        b"null",
        b"true",
        b"1e999",
    ]

    def check(content: bytes, folder: Path) -> None:
        path = folder / "fuzzed.json"
        path.write_bytes(content)
        for each in tuner.load_run(path) or ():
            assert 0 <= each.accuracy <= 1
            assert 0 < each.milliseconds < float("inf")
            assert each.nbytes >= 0

    return _bytes_target([json.dumps([record, record]).encode(), b"[]"], words, check, 12)


def _kernels(folder: Path) -> Target:
    cubin, log = bytes(range(256)), b"Used 40 registers"
    path = folder / "k.cubin"
    beside = kernel_cache._log_of(path, cubin)

    def check(content: bytes, folder: Path) -> None:
        """Split the content into a cubin and its log, which is the last bytes."""
        for each, part in ((path, content[: -len(log)]), (beside, content[-len(log) :])):
            each.write_bytes(part)
            each.chmod(0o600)
        found = kernel_cache._kept(path)
        assert found is None or content[: -len(log)] == cubin

    return _bytes_target([cubin + log], [], check, 6)


# ---- files that an interrupted run of batches leaves
def _journals(folder: Path) -> Target:
    """The content is a journal and its rows, with a mark between them."""
    mark, shape = b"\0rows\0", (9, 2)
    order = np.arange(9, dtype=np.int32)[::-1].copy()
    groups = [Group(number, 1, 3 * number, 3 * number + 3, 0, 0, 0, 0, 0) for number in range(3)]
    path = folder / "out.npy"
    journal, rows = Path(f"{path}.journal"), Path(f"{path}.partial")
    values = np.arange(18, dtype=np.float32).reshape(shape) - 3
    seeds = []
    for done in (groups[:2], groups[2:], groups):
        sink = FileSink(path, shape, order, "a" * 32, True)
        for group in done:
            sink.put(group, values[order[group.low : group.high]])
        sink.abandon()
        seeds.append(journal.read_bytes() + mark + rows.read_bytes())
        journal.unlink()
        rows.unlink()

    def check(content: bytes, folder: Path) -> None:
        said, _, kept = content.partition(mark)
        journal.write_bytes(said)
        rows.write_bytes(kept)
        try:
            sink = FileSink(path, shape, order, "a" * 32, True)
        except ValueError as error:
            if type(error) is ValueError and "belongs to a run with another" in str(error):
                return  # the damage made it the journal of another run, and the error says so
            raise
        try:
            missing = sink.missing(groups)
            for group in groups:
                if group not in missing:
                    at = order[group.low : group.high]
                    np.testing.assert_array_equal(sink.rows[at], values[at])
        finally:
            sink.abandon()
            for file in (journal, rows):
                file.unlink(missing_ok=True)

    return _bytes_target(seeds, [b'{"group": 1, "rows": "', b'{"group": 2', b'"}\n', b"\n", mark], check, 6)


def all_targets(folder: Path) -> dict[str, Target]:
    """Every target by name."""
    edges = _bytes_target(EDGES, EDGE_WORDS, _check_edges, 12)
    mtx = _mtx_seeds()
    mixed = [*EDGES, *mtx, gzip.compress(EDGES[0]), gzip.compress(mtx[0])]
    return {
        "load_npz": _arrays(),
        "load_network": _networks(folder),
        "load_lowbit": _lowbit_networks(folder),
        "load_binary": _binary_models(folder),
        "load_shard": _shards(folder),
        **({"load_shard of safetensors": _safe_shards(folder)} if find_spec("safetensors") else {}),
        "read_npz": _graph_archives(),
        "read_edges": edges,
        "read_mtx": _bytes_target(mtx, [*(w + b" " for w in MTX_WORDS), b"\n", b"\n"], _check_mtx, 12),
        "read": _bytes_target(mixed, EDGE_WORDS, _check_any, 8),
        "pickle": _pickles(),
        "partition cache": _partitions(folder),
        "tuner cache": _figures(),
        "kernel cache": _kernels(folder),
        "cluster journal": _journals(folder),
    }
