"""Seeded synthetic graphs: exact counts, symmetry, degree bounds, communities, and the same arrays for the same seed."""

from __future__ import annotations

import hashlib
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bitsparse.datasets import SIZES, synthetic, synthetic_csr
from bitsparse.errors import DeviceError, DTypeError, ShapeError

KINDS = ("power_law", "communities")


def check(graph, nodes, entries):
    assert (graph.num_nodes, graph.num_edges) == (nodes, entries)
    pattern = graph.adjacency.astype(np.int8)
    assert pattern.has_canonical_format
    assert (pattern != pattern.T).nnz == 0
    assert not pattern.diagonal().any()
    assert graph.indptr.dtype == graph.indices.dtype == np.int32
    assert np.diff(graph.indptr).max(initial=0) <= max(1, min(nodes // 8, 30_000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(0, 0), (5, 0), (16, 16), (64, 200), (1000, 8000), (1000, 60_000), (4000, 30_000)])
def test_counts_are_exact(kind, size):
    check(synthetic(size, kind), *size)


@given(st.integers(16, 600), st.floats(0, 0.6), st.integers(0, 2**64 - 1), st.sampled_from(KINDS))
@settings(max_examples=30)
def test_any_size_and_seed(nodes, share, seed, kind):
    entries = int(share * nodes * (nodes // 8) / 2) // 2 * 2
    check(synthetic((nodes, entries), kind, seed=seed), nodes, entries)


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_size(kind):
    graph = synthetic("ppi", kind)
    check(graph, *SIZES["ppi"])
    assert graph.name == f"{kind}-ppi"


def test_sizes_are_those_of_the_design():
    assert SIZES["arxiv"] == (169_343, 2_332_486)
    assert SIZES["papers"] == (111_059_956, 1_615_685_872)
    assert len(SIZES) == 7
    assert all(entries % 2 == 0 for _, entries in SIZES.values())


DIGESTS = {
    "power_law": "43e18f26924475a9",
    "communities": "18e446d356c90ace",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_arrays_everywhere(kind):
    one, same, other = (synthetic((3000, 24_000), kind, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.indices, same.indices)
    assert not np.array_equal(one.indices, other.indices)
    arrays = one.indptr.astype("<i4").tobytes() + one.indices.astype("<i4").tobytes()
    assert hashlib.sha256(arrays).hexdigest()[:16] == DIGESTS[kind]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(0, 0), (5, 0), (64, 256), (1000, 8000), (1000, 60_000), (3000, 24_000)])
def test_a_gpu_makes_the_same_arrays(kind, size):
    cupy = pytest.importorskip("cupy")
    here = synthetic(size, kind, seed=5)
    indptr, indices = synthetic_csr(size, kind, seed=5, device="cuda")
    assert isinstance(indptr, cupy.ndarray)
    assert (indptr.dtype, indices.dtype) == (here.indptr.dtype, here.indices.dtype)
    np.testing.assert_array_equal(indptr.get(), here.indptr)
    np.testing.assert_array_equal(indices.get(), here.indices)


@pytest.mark.gpu
def test_a_gpu_makes_the_same_large_graph():
    here = synthetic("ppi", "communities")
    indptr, indices = synthetic_csr("ppi", "communities", device="cuda:0")
    np.testing.assert_array_equal(indptr.get(), here.indptr)
    np.testing.assert_array_equal(indices.get(), here.indices)


def test_degrees_follow_a_power_law():
    degrees = np.sort(np.diff(synthetic((40_000, 400_000)).indptr))[::-1]
    assert degrees[0] > 1500
    # With a power law of exponent 2.1, the number of nodes above a degree falls with the degree to the power of 1.1.
    above = [np.count_nonzero(degrees > limit) for limit in (20, 200)]
    assert 8 < above[0] / above[1] < 25


def test_communities_hold_most_edges():
    graph = synthetic((20_000, 200_000), "communities")
    rows = np.repeat(np.arange(20_000), np.diff(graph.indptr))
    distance = np.abs(rows - graph.indices)
    assert 0.6 < np.mean(distance < 750) < 0.9
    bare = synthetic((20_000, 200_000))
    assert np.mean(np.abs(np.repeat(np.arange(20_000), np.diff(bare.indptr)) - bare.indices) < 750) < 0.15


def test_memory_stays_within_a_few_times_the_output():
    synthetic((1000, 8000))  # imports what the measured call needs
    tracemalloc.start()
    graph = synthetic((200_000, 6_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    chunks = 1 << 28  # the generator's working space, which does not grow
    assert peak < 5 * (graph.indices.nbytes + graph.indptr.nbytes) + chunks


@pytest.mark.parametrize(
    ("size", "kind", "seed", "error", "message"),
    [
        ("cora", "power_law", 0, ValueError, "size 'cora' is not known"),
        ((10, 3), "power_law", 0, ValueError, "even number"),
        ((-1, 0), "power_law", 0, ValueError, "nodes lie in"),
        ((1 << 31, 0), "power_law", 0, ValueError, "nodes lie in"),
        ((100, 5000), "power_law", 0, ValueError, "are too many"),
        ((10, 90), "power_law", 0, ValueError, "too many; 4 fit"),
        ((10, 2.0), "power_law", 0, DTypeError, "tuple"),
        (7, "power_law", 0, DTypeError, "tuple"),
        ((100, 200), "ring", 0, ValueError, "kind must be one of"),
        ((100, 200), "power_law", -1, ValueError, "seed must be"),
        ((100, 200), "power_law", 1 << 64, ValueError, "seed must be"),
    ],
)
def test_impossible_requests_are_refused(size, kind, seed, error, message):
    with pytest.raises(error, match=message):
        synthetic(size, kind, seed=seed)


def test_arrays_alone_are_those_of_the_graph():
    graph = synthetic((300, 2000), "communities", seed=7)
    indptr, indices = synthetic_csr((300, 2000), "communities", seed=7)
    np.testing.assert_array_equal(indptr, graph.indptr)
    np.testing.assert_array_equal(indices, graph.indices)
    with pytest.raises(DeviceError, match="no backend for device 'tpu'"):
        synthetic_csr((300, 2000), device="tpu")


def test_draws_are_those_of_the_reference_generator():
    from bitsparse.backends.reference.scalar import philox4x32_10
    from bitsparse.datasets.synthetic import _words

    first, seed = (1 << 32) - 2, 0x123456789ABCDEF0
    draw = np.arange(first, first + 5, dtype=np.uint64)
    counter = (draw & np.uint64(0xFFFFFFFF), draw >> np.uint64(32), 3, 0)
    wanted = philox4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32))
    np.testing.assert_array_equal(_words(np, first, 5, 3, seed), wanted)


def test_a_graph_that_is_nearly_full():
    check(synthetic((64, 256), seed=3), 64, 256)


def test_generated_features_and_labels():
    bare = synthetic((400, 4000), "communities")
    graph = bare.with_generated(features=32, classes=4, seed=2)
    assert (graph.num_classes, graph.x.shape, graph.x.dtype) == (4, (400, 32), np.float32)
    assert set(np.unique(graph.x)) == {0, 1}
    np.testing.assert_array_equal(graph.x, bare.with_generated(features=32, classes=4, seed=2).x)
    own = np.arange(32) % 4 == graph.labels[:, None]
    assert graph.x[own].mean() > 3 * graph.x[~own].mean()
    with pytest.raises(ValueError, match="classes must be at least 1"):
        bare.with_generated(classes=0)


def test_generated_features_of_labels_that_are_there():
    bare = synthetic((400, 4000), "communities")
    parts = bare.with_generated(classes=4, seed=2)
    np.testing.assert_array_equal(bare.with_generated(classes=4, seed=2, labels=parts.labels).x, parts.x)
    some = np.arange(400) % 4 - 1
    graph = bare.with_generated(features=30, classes=3, labels=some)
    np.testing.assert_array_equal(graph.labels, some)
    own = np.arange(30) % 3 == some[:, None]
    assert graph.x[own].mean() > 3 * graph.x[~own].mean()
    with pytest.raises(ValueError, match=r"labels lie in -1\.\.2, but must in -1\.\.1; pass classes="):
        bare.with_generated(classes=2, labels=some)
    with pytest.raises(ShapeError, match="labels"):
        bare.with_generated(labels=some[:7])
