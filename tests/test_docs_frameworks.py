"""Examples in README and other pages that use names which the reader must define run on a CPU, changed only in the device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs
from bitsparse import nn

ROOT = Path(__file__).resolve().parent.parent
_QUIET = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:torch_geometric", "ignore:.*torch.jit:DeprecationWarning"
)
NODES, COLUMNS, CLASSES = 60, 602, 4


def example(page: str, start: str) -> str:
    """The page's only Python example that contains the text ``start``, changed to run on a CPU."""
    text = (ROOT / page).read_text("utf-8")
    found = [block for block in re.findall(r"^```(?:py|python)\n(.*?)^```$", text, re.S | re.M) if start in block]
    assert len(found) == 1
    return found[0].replace(".cuda()", "").replace('device="cuda"', 'device="cpu"')


@pytest.fixture
def names() -> dict[str, Any]:
    """The names that the examples expect, as NumPy and SciPy objects."""
    rng = np.random.default_rng(0)
    dense = rng.random((NODES, NODES)) < 0.1
    adjacency = sparse.csr_array((dense | dense.T).astype(np.float32))
    x, y = rng.random((NODES, COLUMNS), np.float32), rng.integers(0, CLASSES, NODES)
    return {"np": np, "bs": bs, "adjacency": adjacency, "x": x, "y": y, "val_mask": y >= 0}


@_QUIET
@pytest.mark.torch
@pytest.mark.pyg
def test_readme_trains_a_network_of_pytorch_geometric(names: dict[str, Any]) -> None:
    import torch
    import torch_geometric

    rows, columns = names["adjacency"].nonzero()
    names |= {"edge_index": torch.tensor(np.stack([columns, rows])), "n": NODES, "train": slice(0, 20)}
    names |= {"x": torch.from_numpy(names["x"]), "y": torch.from_numpy(names["y"]), "values": torch.rand(rows.size)}
    model = torch_geometric.nn.GAT(COLUMNS, 32, 2, CLASSES, heads=4)
    names |= {"torch_geometric_model": model, "weights": np.ones((3, 4), np.float32)}
    exec(example("README.md", "bst.accelerate"), names)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert names["h"].shape == (NODES, COLUMNS)
    assert "table" in dict(names["net"].named_children())


@_QUIET
@pytest.mark.torch
@pytest.mark.pyg
@pytest.mark.parametrize(
    ("page", "start"), [("README.md", "nn.quantize_network"), ("docs/howto/pyg-to-bits.md", "nn.quantize_network")]
)
def test_pages_bring_a_network_to_bits(page: str, start: str, names: dict[str, Any], monkeypatch: Any) -> None:
    import torch
    import torch_geometric

    class GCN(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = torch_geometric.nn.GCNConv(COLUMNS, 16)
            self.conv2 = torch_geometric.nn.GCNConv(16, CLASSES)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    graph, x = names["adjacency"], names["x"]
    data = bs.datasets.GraphData(indptr=graph.indptr, indices=graph.indices, x=x, labels=names["y"], name="made")
    monkeypatch.setattr(bs.datasets, "read", lambda name: data)
    binary = nn.BinaryGCN([nn.BinaryLinear.from_weights(np.ones(size)) for size in ((COLUMNS, 16), (16, CLASSES))])
    names |= {"model": GCN(), "graph": nn.Graph(graph), "binary_model": binary}
    exec(example(page, start), names)
    assert names["logits"].shape == (NODES, CLASSES)


def test_the_page_of_search_finds_what_is_near(names: dict[str, Any]) -> None:
    exec(example("docs/guide/search.md", "bs.plan_nearest"), names)
    assert names["indices"][:, 0].tolist() == [0, 1]
    assert (names["similarity"] >= 0.45).all()
