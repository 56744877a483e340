"""Samplers on a GPU: the batches of the host, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_samplers import place, random_csr

import bitsparse as bs
from bitsparse import graph
from bitsparse.backends.host.sampling import subgraphs as host
from bitsparse.errors import DeviceError, KernelError

pytestmark = pytest.mark.gpu


def cp() -> Any:
    import cupy

    return cupy


def kernels() -> Any:
    from bitsparse.backends.cuda.sampling import subgraphs

    return subgraphs


def same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.get(), other)


def on_gpu(*arrays: Any) -> list[Any]:
    return [cp().asarray(part) for part in arrays]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("width", [-1, 0, 1, 3, 33, 300])
@pytest.mark.parametrize("shape", [(40, 40), (40, 700), (30, 7), (1, 1)])
def test_a_hop_has_the_bits_of_the_host(shape: tuple[int, int], width: int, dtype: Any) -> None:
    pattern = random_csr(*shape, dtype=dtype)
    own = shape[0] == shape[1]
    scratch = cp().full(shape[1], -1, np.int32)
    for count, stream in ((0, 0), (1, 5), (shape[0], 2**32 - 1)):
        targets = np.random.default_rng(1).permutation(shape[0])[:count].astype(np.int64)
        given = {"width": width, "own": own, "seed": 2**63 + 7, "stream": stream}
        wanted = host.hop(*pattern, shape[1], targets, place=place(shape[1]), **given)
        found = kernels().hop(*on_gpu(*pattern), shape[1], *on_gpu(targets), place=scratch, **given)
        same(found, wanted)
        assert (scratch == -1).all()


def test_a_hop_that_is_too_large_is_refused_and_leaves_no_places(monkeypatch: Any) -> None:
    monkeypatch.setattr(kernels(), "_MOST_PLACES", 50)
    indptr, indices = on_gpu(*random_csr(40, 40))
    scratch = cp().full(40, -1, np.int32)
    options = {"width": -1, "own": True, "seed": 0, "stream": 0, "place": scratch}
    with pytest.raises(KernelError, match="make batches smaller"):
        kernels().hop(indptr, indices, 40, cp().arange(40), **options)
    assert (scratch == -1).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_induced_walks_and_numbers_have_the_bits_of_the_host(dtype: Any) -> None:
    pattern = random_csr(40, 40, dtype=dtype)
    there, scratch = on_gpu(*pattern), cp().full(40, -1, np.int32)
    for nodes in (np.arange(0), np.arange(40), np.arange(1, 40, 3)):
        found = kernels().induced(*there, 40, cp().asarray(nodes), place=scratch)
        same(found, host.induced(*pattern, 40, nodes, place=place(40)))
        assert (scratch == -1).all()
        for length in (0, 5):
            draws = {"seed": 2**64 - 1, "stream": 9}
            walked = kernels().walks(*there, 40, cp().asarray(nodes), length, **draws)
            np.testing.assert_array_equal(walked.get(), host.walks(*pattern, 40, nodes, length, **draws))
    for limit, count in ((1, 3), (1 << 62, 101), (10, 0)):
        draws = {"seed": 3, "stream": 2**32 - 1}
        np.testing.assert_array_equal(kernels().below(limit, count, **draws).get(), host.below(limit, count, **draws))


SAMPLERS: dict[str, Any] = {
    "neighbours": lambda made: graph.NeighborSampler(made, [3, 2], batch_size=16, seed=5),
    "all neighbours": lambda made: graph.NeighborSampler(made, [-1], np.arange(0, 40, 2), batch_size=7, shuffle=False),
    "nodes": lambda made: graph.SaintSampler(made, "node", 12, seed=1),
    "edges": lambda made: graph.SaintSampler(made, "edge", 12, seed=1),
    "walks": lambda made: graph.SaintSampler(made, "walk", 6, length=3, counted=8, seed=1),
    "clusters": lambda made: graph.ClusterSampler(made, np.arange(40) % 5, 2, seed=2),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_batches_are_those_of_the_host(kind: str) -> None:
    matrix = bs.TCTiledCSR.from_arrays(*random_csr(40, 40), (40, 40))
    ours, wanted = SAMPLERS[kind](matrix.to_device("cuda")), SAMPLERS[kind](matrix)
    assert ours.device == "cuda:0"
    assert wanted.device == "cpu"
    for epoch in (0, 3):
        for number in range(len(wanted)):
            one, other = ours.batch(epoch, number), wanted.batch(epoch, number)
            same((one.nodes, one.targets), (other.nodes, other.targets))
            assert (one.weight is None) == (other.weight is None)
            if one.weight is not None:
                same([one.weight], [other.weight])
            for block, expected in zip(one.blocks, other.blocks, strict=True):
                assert block.shape == expected.shape
                same((block.indptr, block.indices, block.edges), (expected.indptr, expected.indices, expected.edges))
                assert (block.tocsr() != expected.tocsr()).nnz == 0
    assert [batch.nodes.size for batch in graph.ahead(ours, threads=2)] == [batch.nodes.size for batch in wanted]


@pytest.mark.torch
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("features", ["cpu", "cuda"])
def test_a_loader_takes_batches_and_features_where_they_are(packed: bool, features: str) -> None:
    torch = pytest.importorskip("torch")
    import bitsparse.torch as bst

    matrix = bs.TCTiledCSR.from_arrays(*random_csr(40, 40), (40, 40))
    x = torch.rand(40, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40)
    x = bs.quantize(x, 8, granularity="row", layout="rows") if packed else x
    there = x.to_device("cuda") if packed and features == "cuda" else x.to(features) if not packed else x
    ours = bst.BatchLoader(SAMPLERS["neighbours"](matrix.to_device("cuda")), there, labels.to(features))
    wanted = bst.BatchLoader(SAMPLERS["neighbours"](matrix), x, labels)
    assert ours.device.type == "cuda"
    for _ in range(2):
        for one, other in zip(ours, wanted, strict=True):
            for name in ("x", "labels", "nodes", "targets"):
                assert torch.equal(getattr(one, name).cpu(), getattr(other, name))
                assert getattr(one, name).is_cuda
            for block, expected in zip(one.graphs, other.graphs, strict=True):
                ones = torch.eye(block.num_sources)
                assert torch.equal(bst.spmm(block, ones.cuda()).cpu(), bst.spmm(expected, ones))
    with pytest.raises(DeviceError, match="but must be in host memory"):
        bst.BatchLoader(SAMPLERS["neighbours"](matrix), torch.zeros(40, 3, device="cuda"))
