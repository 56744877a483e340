"""Graphs whose float32 sums take panels: the choice stays with the graph, and changes nothing where panels cannot be taken."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse.torch as bst  # noqa: E402
from bitsparse.arrays.inside import store_of  # noqa: E402
from bitsparse.ops.spmm.patterns import PANELS  # noqa: E402
from bitsparse.torch.pattern import _BY_PANELS, array_over, sums_kernel  # noqa: E402

NODES = 300


def edges(many: int = 6000) -> Any:
    return torch.randint(NODES, (2, many), generator=torch.Generator().manual_seed(0)).unique(dim=1)


def takes_panels(graph: Any) -> bool:
    pattern = graph.pattern()
    return graph.sums == "panels" and all(part.indptr in _BY_PANELS for part in (pattern, pattern.turned))


def saved(graph: Any) -> Any:
    room = io.BytesIO()
    torch.save(graph, room)
    room.seek(0)
    return torch.load(room, weights_only=False)


def test_the_choice_stays_with_the_graph() -> None:
    graph = bst.Graph(edges(), NODES, sums="panels")
    derived = graph.normalized()
    weighted = bst.Graph(edges(), NODES, edge_weight=torch.ones(edges().shape[1]) * 2, sums="panels")
    others = (derived, graph.with_self_loops(), weighted.unweighted(), graph.half(), saved(graph), copy.deepcopy(graph))
    for other in (graph, *others):
        assert takes_panels(other)
    assert "sums='panels'" in repr(graph)
    graph.to_empty(device="meta")
    assert graph.sums == derived.sums == "panels"
    plain = bst.Graph(edges(), NODES)
    assert plain.sums is None
    assert not takes_panels(plain)
    assert "sums" not in repr(plain)


def test_a_loaded_state_is_of_the_edges_alone() -> None:
    graph, plain = bst.Graph(edges(), NODES, sums="panels"), bst.Graph(edges(), NODES)
    assert list(graph.state_dict()) == list(plain.state_dict())
    other = bst.Graph(torch.stack([edges()[1], edges()[0]]), NODES)
    for assign in (False, True):
        graph.load_state_dict((other if assign else plain).state_dict(), assign=assign)
        assert takes_panels(graph)


def test_on_a_cpu_sums_are_as_before() -> None:
    """Every layer computes what it computes on a graph without the choice, and there are no panels."""
    layers = [bst.GCNConv(8, 4), bst.SAGEConv(8, 4), bst.GATConv(8, 4), bst.GINConv(torch.nn.Linear(8, 4))]
    x = torch.randn((NODES, 8), generator=torch.Generator().manual_seed(1))
    graph, plain = (bst.Graph(edges(), NODES, sums=sums) for sums in ("panels", None))
    for layer in layers:
        assert torch.equal(layer(x, graph), layer(x, plain))
    assert sums_kernel(graph.pattern(), x) is None
    assert torch.equal(bst.spmm(graph, x.double(), reduce="max"), bst.spmm(plain, x.double(), reduce="max"))


def test_other_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="Graph: sums must be None or 'panels', got 'csr'"):
        bst.Graph(edges(), NODES, sums="csr")


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_training_takes_panels(kind: str) -> None:
    """Losses and gradients are close to those of a graph without the choice, of both widths, whether products are laid or not."""
    found = []
    for sums in ("panels", None):
        torch.manual_seed(0)
        layer = {"gcn": bst.GCNConv, "sage": bst.SAGEConv}[kind]
        net = torch.nn.ModuleList([layer(20, 16), layer(16, 7)]).cuda()
        graph = bst.Graph(edges(), NODES, sums=sums).cuda()
        x = torch.randn((NODES, 20), generator=torch.Generator().manual_seed(1)).cuda().requires_grad_()
        made = net[1](net[0](x, graph).relu(), graph)
        made.square().sum().backward()
        found.append([made.detach(), x.grad, *(part.grad for part in net.parameters())])
        used = graph.normalized() if kind == "gcn" else graph
        for pattern in (used.pattern(), used.pattern().turned):
            assert bool(tuple(PANELS.all(store_of(array_over(pattern))))) == (sums == "panels")
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@pytest.mark.gpu
@pytest.mark.hopper
def test_what_panels_cannot_compute_is_as_before() -> None:
    x = torch.randn((NODES, 8), generator=torch.Generator().manual_seed(1)).cuda()
    graph, plain = (bst.Graph(edges(), NODES, sums=sums).cuda() for sums in ("panels", None))
    values = torch.rand(graph.num_edges, device="cuda")
    for given in ({"reduce": "max"}, {"values": values}):
        assert torch.equal(bst.spmm(graph, x, **given), bst.spmm(plain, x, **given))
    for dtype in (torch.float16, torch.float64):
        assert torch.equal(bst.spmm(graph, x.to(dtype)), bst.spmm(plain, x.to(dtype)))
    layer = bst.GATConv(8, 4).cuda()
    assert torch.equal(layer(x, graph), layer(x, plain))
    assert not torch.equal(bst.spmm(graph, x), bst.spmm(plain, x)) or sums_kernel(graph.pattern(), x) == "panels"
