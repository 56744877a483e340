"""Options that are True or False take nothing else: as Python counts any text as true, "no" would mean yes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse import datasets, graph, nn
from bitsparse.errors import DTypeError

A = np.array([[0, 1], [1, 1]], np.float32)
X = np.ones((2, 4), np.float32)
BITS = bs.BitTensor(A, bits=1)
SPARSE = bs.TCTiledCSR(A)


@pytest.mark.parametrize("value", ["no", 1, np.array([True, False]), None], ids=["word", "number", "array", "none"])
@pytest.mark.parametrize(
    ("function", "arguments", "option"),
    [
        (bs.TCTiledCSR, (A,), "pattern"),
        (bs.FRDC, (A,), "pattern"),
        (bs.TCTiledCSR.from_edges, ([0], [1]), "symmetric"),
        (bs.plan_matmul, (BITS, 2), "skip_zero_tiles"),
        (bs.bmm, (X, np.ones((4, 2), np.float32)), "row_absmean"),
        (bs.plan_bmm, (bs.pack_bits(np.ones((4, 2)), encoding="bipolar", axis=0), 2, "FBF"), "row_absmean"),
        (bs.attention, (SPARSE, X, np.ones(2, np.float32), np.ones(2, np.float32)), "return_lse"),
        (bs.attention, (SPARSE, X, np.ones(2, np.float32), np.ones(2, np.float32)), "return_state"),
        (bs.cosine_attention, (SPARSE, X), "return_lse"),
        (bs.quantized_matmul, (X, np.ones((4, 2), np.float32), 8), "return_operands"),
        (bs.sampled_spmm, (SPARSE, X, 1), "rescale"),
        (bs.plan_sampled_spmm, (SPARSE, 4, 1), "rescale"),
        (bs.sampled_spmm_vjp, (SPARSE, X, X, 1), "rescale"),
        (graph.ClusterSampler, (SPARSE, np.array([0, 1])), "shuffle"),
        (graph.NeighborSampler, (SPARSE, [1]), "shuffle"),
        (graph.batch, (SPARSE, np.array([0, 1])), "between"),
        (graph.batch, (SPARSE, np.array([0, 1])), "self_loops"),
        (nn.random_network, ("gcn", [4, 2]), "bias"),
        (nn.random_network, ("gcn", [4, 2]), "batch_norm"),
    ],
    ids=lambda part: getattr(part, "__qualname__", part if isinstance(part, str) else ""),
)
def test_words_and_arrays_are_no_truth_values(
    function: Any, arguments: tuple[Any, ...], option: str, value: Any
) -> None:
    with pytest.raises(DTypeError, match=f"{option} must be True or False, got"):
        function(*arguments, **{option: value})


@pytest.mark.parametrize(
    ("function", "option"),
    [
        (lambda **options: bs.matmul(BITS, BITS, **options), "skip_zero_tiles"),
        (lambda **options: bs.plan_sampled_spmm(SPARSE, 4, 1, **options), "store"),
        (lambda **options: nn.Graph(SPARSE, **options), "self_loops"),
        (lambda **options: graph.partition(SPARSE, 2, **options), "recursive"),
        (lambda **options: nn.load_state_dict({"0.weight": X}, kind="gcn", **options), "self_loops"),
    ],
)
def test_where_none_leaves_the_choice_to_the_library_words_are_none_either(function: Any, option: str) -> None:
    with pytest.raises(DTypeError, match=f"{option} must be True or False, got 'no'"):
        function(**{option: "no"})


@pytest.mark.parametrize(
    ("read", "option"),
    [
        (datasets.read, "weights"),
        (datasets.read, "symmetric"),
        (datasets.read_edges, "weights"),
        (datasets.read_edges, "symmetric"),
        (datasets.read_mtx, "weights"),
    ],
)
def test_readers(read: Any, option: str, tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match=f"{option} must be True or False"):
        read(tmp_path / "there_is_no_such_file.txt", **{option: "no"})


def test_nothing_is_saved_with_a_word_for_compressed(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="compressed must be True or False"):
        bs.save_npz(tmp_path / "x.npz", BITS, compressed="no")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_numpy_has_truth_values_of_its_own() -> None:
    assert bs.TCTiledCSR(A, pattern=np.bool_(True)).csr_arrays()[2] is None  # type: ignore[arg-type]
