"""Shards in files, synthetic shards, and features that are packed piece by piece while they are read."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import distributed as D
from bitsparse.datasets import synthetic_csr
from bitsparse.errors import CommunicationError, DTypeError, FileFormatError, ShapeError


def graph(nodes=30):
    rng = np.random.default_rng(3)
    return sp.csr_array((rng.random((nodes, nodes)) < 0.2) * rng.standard_normal((nodes, nodes)))


each_format = pytest.mark.parametrize("kind", ["npz", pytest.param("safetensors", marks=pytest.mark.safetensors)])


@each_format
@pytest.mark.parametrize("method", ["blocks", "metis"])
@pytest.mark.parametrize("size", [1, 3])
def test_shards_come_back_from_files(size, method, kind, tmp_path) -> None:
    rng = np.random.default_rng(0)
    matrix, x = bs.TCTiledCSR(graph(), row_scale=rng.random(30), col_scale=rng.random(30)), rng.standard_normal((30, 4))

    def write(comm):
        part = D.partition(matrix, comm, method=method)
        a = D.shard(matrix, part)
        assert D.save_shard(tmp_path / "new", a, format=kind).suffix == f".{kind}"
        return part.gather(D.spmm(a, part.take(x)))

    def read(comm):
        a = D.load_shard(tmp_path / "new", comm)
        return a.part.gather(D.spmm(a, a.part.take(x)))

    for one, other in zip(D.local(size).run(write), D.local(size).run(read), strict=True):
        assert np.array_equal(one, other)
    with pytest.raises((CommunicationError, FileNotFoundError)):
        D.local(size + 1).run(read)
    assert len(list((tmp_path / "new").iterdir())) == size


@pytest.mark.safetensors
def test_the_file_that_was_written_last_is_read(tmp_path) -> None:
    def turns(comm):
        for factor, kind in enumerate(("npz", "safetensors", "npz"), start=1):
            a = D.shard(graph() * factor, D.partition(graph(), comm))
            D.save_shard(tmp_path, a, format=kind)
            comm.barrier()
            read = D.load_shard(tmp_path, comm)
            assert np.array_equal(read.values, a.values) and read.values.flags.writeable
            comm.barrier()

    D.local(2).run(turns)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".npz", ".npz"]


@pytest.mark.safetensors
@pytest.mark.parametrize("damage", ["cut", "columns", "empty", "rank", "text", "dtype"])
def test_damaged_files_of_safetensors_are_refused(damage, tmp_path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    comm = next(iter(D.local(1)))
    path = D.save_shard(tmp_path, D.shard(graph(), D.partition(graph(), comm)), format="safetensors")
    with safe_open(path, "numpy") as held:
        about, arrays = held.metadata(), {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
    if damage in ("cut", "empty"):
        os.truncate(path, path.stat().st_size // 2 if damage == "cut" else 0)
    elif damage == "columns":
        save_file(arrays | {"columns": arrays["columns"][::-1].copy()}, path, about)
    elif damage == "dtype":
        save_file(arrays | {"columns": arrays["columns"].astype(np.float32)}, path, about)
    else:
        save_file(arrays, path, {"about": about["about"].replace('"rank": 0', '"rank": 1')} if damage == "rank" else {})
    with pytest.raises(FileFormatError, match=r"shard-0-of-1.safetensors.*write it with save_shard"):
        D.load_shard(tmp_path, comm)


def test_files_say_what_they_cannot_hold_or_lack(tmp_path, monkeypatch) -> None:
    import ml_dtypes

    comm = next(iter(D.local(1)))
    a = D.shard(graph(), D.partition(graph(), comm))
    for call, error, text in (
        (lambda: D.save_shard(tmp_path, a, format="hdf5"), ValueError, "'npz', 'safetensors'"),
        (lambda: D.save_shard(tmp_path, a.with_values(a.values.astype(ml_dtypes.bfloat16))), DTypeError, "float32"),
    ):
        with pytest.raises(error, match=text):
            call()
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'bitsparse\[safetensors\]'"):
        D.save_shard(tmp_path, a, format="safetensors")
    (tmp_path / "shard-0-of-1.safetensors").touch()
    with pytest.raises(ImportError, match="pip install"):
        D.load_shard(tmp_path, comm)


@pytest.mark.parametrize("damage", ["cut", "columns", "bounds", "rank", "order", "hash"])
def test_damaged_files_are_refused_on_every_rank(damage, tmp_path) -> None:
    def write(comm):
        D.save_shard(tmp_path, D.shard(graph(), D.partition(graph(), comm, method="metis")))

    D.local(2).run(write)
    path = tmp_path / "shard-1-of-2.npz"
    if damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        with np.load(path) as held:
            parts = dict(held)
        if damage in ("columns", "bounds", "order"):
            parts[damage] = parts[damage][::-1].copy() + (damage != "bounds")
        else:
            old, new = {"rank": ('"rank": 1', '"rank": 0'), "hash": ('"hash": "', '"hash": "0')}[damage]
            parts["about"] = np.array(str(parts["about"]).replace(old, new))
        np.savez(path, **parts)
    texts = []

    def read(comm):
        try:
            D.load_shard(tmp_path, comm)
        except (FileFormatError, CommunicationError) as error:
            texts.append(str(error))

    D.local(2).run(read)
    assert len(texts) == 2 and any("shard-1-of-2" in text or "hash of the graph" in text for text in texts)


def test_memory_maps_of_a_graph_are_cut_and_read_by_blocks(tmp_path) -> None:
    matrix = graph() != 0
    for name in ("indptr", "indices"):
        np.save(tmp_path / f"{name}.npy", getattr(matrix, name))

    def work(comm):
        maps = tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices"))
        part = D.partition(maps, comm)
        assert part.graph_hash == D.partition(matrix, comm).graph_hash
        return part.gather(D.shard(maps, part).own_rows().toarray())

    assert all(np.array_equal(made, matrix.toarray()) for made in D.local(3).run(work))


@pytest.mark.parametrize("kind", ["power_law", "communities"])
def test_a_synthetic_graph_is_dealt_out(kind) -> None:
    indptr, indices = synthetic_csr((500, 6000), kind, seed=4)
    whole = sp.csr_array((np.ones(indices.size), indices, indptr), (500, 500)).toarray()

    def work(comm):
        a = D.synthetic_shard((500, 6000), kind, comm, seed=4)
        return a.part.gather(a.own_rows().toarray())

    assert all(np.array_equal(made, whole) for made in D.local(3).run(work))


def test_a_synthetic_graph_for_each_rank_ends_on_all(monkeypatch) -> None:
    from bitsparse.distributed import files

    def work(comm):
        return D.synthetic_shard((400, 4000), "power_law", comm, scaling="weak", seed=2)

    shards = D.local(3).run(work)
    monkeypatch.setattr(files, "_PIECE", 7)
    for rank, (a, again) in enumerate(zip(shards, D.local(3).run(work), strict=True)):
        assert np.array_equal(a.columns, again.columns)
        indptr, indices = synthetic_csr((400, 4000), "power_law", seed=2 + rank)
        assert a.shape == (400, 1200) and np.array_equal(a.indptr, indptr)
        shares = np.bincount(a.columns // 400, minlength=3) / 4000
        assert np.all(np.abs(shares - 1 / 3) < 0.05)
        rows = np.repeat(np.arange(400), np.diff(indptr))
        assert np.array_equal(np.sort(rows * 400 + a.columns % 400), rows * 400 + indices)
        assert np.all(np.diff(a.columns)[np.diff(rows) == 0] > 0)


# -- features ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_pieces_give_the_bits_of_the_whole(bits, dtype, tmp_path) -> None:
    x = np.random.default_rng(bits).standard_normal((57, 19)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    source, layout = np.load(tmp_path / "x.npy", mmap_mode="r"), "rows" if bits != 3 else "planes"
    for rows in (None, slice(10, 40), slice(5, 5)):
        for piece in (1, 800, 1 << 20):
            mine = x if rows is None else x[rows]
            made = D.quantize_streamed(source, bits, rows=rows, piece_bytes=piece)
            whole = bs.quantize(mine, bits, granularity="row", layout=layout)
            assert all(
                np.array_equal(getattr(made, part), getattr(whole, part)) for part in ("words", "scale", "offset")
            )
            assert made.shape == mine.shape
    for granularity in ("tensor", "col"):
        ends = D.streamed_range(source, granularity=granularity, piece_bytes=500)
        for scheme in ("affine", "affine-pow2", "symmetric"):
            limit = np.maximum(-ends[0], ends[1]) if scheme == "symmetric" else ends
            made = D.quantize_streamed(
                source, bits, range=limit, granularity=granularity, scheme=scheme, piece_bytes=500
            )
            whole = bs.quantize(x, bits, granularity=granularity, scheme=scheme, layout=layout)
            assert made.encoding == whole.encoding and np.array_equal(made.words, whole.words)
            assert np.array_equal(made.scale, whole.scale)


def test_signs_and_magnitudes_and_ranges_of_all_ranks() -> None:
    x = np.random.default_rng(0).standard_normal((57, 130)).astype(np.float32)
    made = D.quantize_streamed(x, 1, piece_bytes=3000)
    assert np.array_equal(made.words, bs.pack_bits(x, encoding="bipolar").words)
    assert np.allclose(made.scale[:, 0], np.abs(x).mean(axis=1))

    def work(comm):
        part = D.partition(sp.eye_array(57, format="csr"), comm)
        ends = D.streamed_range(x, rows=part.rows(), comm=comm)
        return part.gather(D.quantize_streamed(x, 8, rows=part.rows(), range=ends, granularity="tensor"))

    wanted = bs.quantize(x, 8, layout="rows")
    assert all(np.array_equal(each.words, wanted.words) for each in D.local(3).run(work))


@pytest.mark.parametrize(
    ("bits", "scheme", "granularity"), [(4, "symmetric", "tensor"), (4, "affine", "row"), (1, None, "row")]
)
def test_streams_of_ranks_of_one_row_and_of_none_are_of_the_kind_of_the_others(bits, scheme, granularity) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    ends = np.abs(x).max() if granularity == "tensor" else None
    a = sp.csr_array(np.ones((2, 2), np.float32))

    def work(comm):
        part = D.partition(a, comm)
        mine = D.quantize_streamed(x, bits, rows=part.rows(), range=ends, granularity=granularity, scheme=scheme)
        return part.gather(D.spmm(D.shard(a, part), mine))

    whole = D.quantize_streamed(x, bits, range=ends, granularity=granularity, scheme=scheme)
    assert all(np.array_equal(made, bs.spmm(a, whole)) for made in D.local(3, timeout=20).run(work))


def test_ranges_of_other_columns_and_failures_are_named_on_every_rank() -> None:
    x = np.ones((6, 4), np.float32)
    for call, texts in (
        (lambda rank: (x[:, rank:], "col"), ["features is 4 on rank 0 but 3 on rank 1"] * 2),
        (lambda rank: (x, ("tensor", "col")[rank]), ["granularity is 'tensor' on rank 0 but 'col' on rank 1"] * 2),
        (lambda rank: (x[rank] if rank else x, "col"), ["failed on rank 1", "reshape it"]),
    ):
        said = {}

        def work(comm, call=call, said=said):
            source, granularity = call(comm.rank)
            with pytest.raises((CommunicationError, ShapeError)) as caught:
                D.streamed_range(source, granularity=granularity, comm=comm)
            said[comm.rank] = str(caught.value)

        D.local(2, timeout=20).run(work)
        assert all(text in said[rank] for rank, text in enumerate(texts))


def test_arguments_of_streams_are_checked() -> None:
    x = np.ones((4, 3), np.float32)
    for call, error, text in (
        (lambda: D.quantize_streamed(x.tolist(), 4), DTypeError, "memory map"),
        (lambda: D.quantize_streamed(x.astype(int), 4), DTypeError, "source"),
        (lambda: D.quantize_streamed(x[0], 4), ShapeError, "nodes, features"),
        (lambda: D.quantize_streamed(x, 4, rows=slice(0, 4, 2)), ValueError, "step 2"),
        (lambda: D.quantize_streamed(x, 4, granularity="tensor"), ValueError, "streamed_range"),
        (lambda: D.quantize_streamed(x, 1, scheme="affine"), ValueError, "one bit keeps signs"),
        (lambda: D.quantize_streamed(x, 17), ValueError, "bits"),
        (lambda: D.quantize_streamed(x * np.nan, 4), ValueError, "NaN"),
        (lambda: D.quantize_streamed(x * np.nan, 1), ValueError, "NaN"),
        (
            lambda: D.quantize_streamed(np.array([[0.5, -1e300]]), 1),
            ValueError,
            r"up to 1e\+300, add up beyond float32",
        ),
        (lambda: D.quantize_streamed(np.full((1, 2), 3e38, np.float32), 1), ValueError, r"up to 3e\+38.*clip source"),
        (lambda: D.streamed_range(x * np.nan), ValueError, "NaN"),
        (lambda: D.quantize_streamed(x, 4, piece_bytes=0), ValueError, "quantize_streamed: piece_bytes"),
        (lambda: D.streamed_range(x, piece_bytes=0), ValueError, "streamed_range: piece_bytes"),
        (lambda: D.quantize_streamed(x, 4, rows=0), DTypeError, "rows must be a slice"),
        (lambda: D.streamed_range(x, comm="all"), DTypeError, "comm must be a communicator"),
    ):
        with pytest.raises(error, match=text):
            call()
