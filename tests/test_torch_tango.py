"""Training in integers of a few bits: unbiased gradients, same seed same bits, resumed to the bit, one quantised copy of a tensor."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import bitsparse as bs  # noqa: E402
import bitsparse.torch as bst  # noqa: E402
from bitsparse.torch.code_source import CodeSource  # noqa: E402
from bitsparse.torch.coded import Grid  # noqa: E402
from bitsparse.torch.coded import spmm as spmm_of_codes  # noqa: E402
from bitsparse.torch.layer_quantizer import LayerQuantizer  # noqa: E402
from bitsparse.torch.quantization import Quantization  # noqa: E402

NODES, INPUTS, CLASSES = 40, 12, 3
LAYERS: dict[str, Any] = {
    "gcn": (lambda: bst.GCNConv(INPUTS, 8), lambda: bst.GCNConv(8, CLASSES)),
    "wide gcn": (lambda: bst.GCNConv(INPUTS, 20), lambda: bst.GCNConv(20, CLASSES)),
    "sage": (lambda: bst.SAGEConv(INPUTS, 8), lambda: bst.SAGEConv(8, CLASSES)),
    "gin": (
        lambda: bst.GINConv(torch.nn.Sequential(torch.nn.Linear(INPUTS, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))),
        lambda: bst.GINConv(torch.nn.Linear(8, CLASSES)),
    ),
    "gat": (lambda: bst.GATConv(INPUTS, 4, 4), lambda: bst.GATConv(16, CLASSES, 1)),
    "agnn": (lambda: torch.nn.Linear(INPUTS, 8), lambda: AGNN()),
}


class AGNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum, self.out = bst.AGNNConv(), torch.nn.Linear(8, CLASSES)

    def forward(self, x: Any, graph: Any) -> Any:
        return self.out(self.sum(x, graph))


class Net(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second = (make() for make in LAYERS[kind])

    def forward(self, x: Any, graph: Any) -> Any:
        x = self.first(x) if isinstance(self.first, torch.nn.Linear) else self.first(x, graph)
        return self.second(torch.nn.functional.elu(x), graph)


def data(weighted: bool = False) -> tuple[Any, Any, Any]:
    random = torch.Generator().manual_seed(1)
    edges = torch.randint(NODES, (2, 160), generator=random)
    edges = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
    weight = torch.rand(edges.shape[1], generator=random) if weighted else None
    x = torch.randn(NODES, INPUTS, generator=random)
    return bst.Graph(edges, NODES, edge_weight=weight), x, torch.randint(CLASSES, (NODES,), generator=random)


def net_of(kind: str, config: Any = None, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    made = Net(kind)
    return made if config is None else bst.quantize_(made, config)


def step(net: Any, optimiser: Any, graph: Any, x: Any, labels: Any) -> float:
    optimiser.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x, graph), labels)
    loss.backward()
    optimiser.step()
    return float(loss.detach())


@pytest.mark.parametrize("last", ["float32", "sums", "quantized"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", LAYERS)
def test_near_the_network_in_floats(kind: str, bits: int, last: Any) -> None:
    graph, x, labels = data(weighted=kind == "gcn")
    plain, low = net_of(kind), net_of(kind, bst.Tango(bits=bits, rounding="nearest", last=last))
    want, got = plain(x, graph), low(x, graph)
    assert not torch.equal(want, got)
    allowed = 0.05 if bits == 8 else 0.4
    assert (want - got).abs().max() <= allowed * want.abs().max()
    for net in (plain, low):
        torch.nn.functional.cross_entropy(net(x, graph), labels).backward()
    whole = torch.cat([p.grad.flatten() for p in plain.parameters()]).norm()
    for (name, one), other in zip(plain.named_parameters(), low.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= allowed * (2 * one.grad.norm() + 0.2 * whole), name


def test_gradients_are_unbiased() -> None:
    """Of a network whose loss is linear in what is rounded; the mean over 250 steps within four and a half standard errors."""
    graph, x, _ = data()

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = bst.GCNConv(INPUTS, 4), torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.lin(self.conv(x, graph))

    torch.manual_seed(0)
    net, x = Linear(), x.requires_grad_()  # what needs no gradient would be rounded to nearest
    weights = torch.randn(NODES, 2)
    (net(x) * weights).sum().backward()
    want = [p.grad.clone() for p in net.parameters()]
    for bits in (8, 4):
        bst.quantize_(net, bst.Tango(bits=bits, seed=3))
        draws: list[list[Any]] = [[] for _ in want]
        for _ in range(250):
            net.zero_grad()
            (net(x) * weights).sum().backward()
            for kept, p in zip(draws, net.parameters(), strict=True):
                kept.append(p.grad.clone())
        coarse = (
            torch.round(x / x.abs().max() * 127).abs().max()
        )  # features are rounded to nearest, once: a fixed part of all gradients
        assert coarse == 127
        for made, exact, (name, _) in zip(draws, want, net.named_parameters(), strict=True):
            off = torch.stack(made) - exact
            error = off.std(dim=0) / len(made) ** 0.5
            assert (off.mean(dim=0).abs() <= 4.5 * error + 1e-5 * exact.abs().max()).all(), (bits, name)


@pytest.mark.parametrize(("activations", "before"), [(None, 3), (4, 1), (4, 3)])
@pytest.mark.parametrize("kind", LAYERS)
def test_same_seed_same_bits_and_resumed_to_the_bit(kind: str, activations: Any, before: int) -> None:
    graph, x, labels = data()
    runs = []
    for seed in (0, 0, 1):
        net = net_of(kind, bst.Tango(seed=seed, activations=activations))
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        losses = [step(net, optimiser, graph, x, labels) for _ in range(before)]
        if not runs:
            file = io.BytesIO()
            torch.save({"net": net.state_dict(), "optimiser": optimiser.state_dict()}, file)
        runs.append([*losses, *(step(net, optimiser, graph, x, labels) for _ in range(3))])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    file.seek(0)
    state = torch.load(file, weights_only=True)
    net = net_of(kind, bst.Tango(activations=activations), seed=5)
    net.load_state_dict(state["net"])
    for again in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        optimiser = torch.optim.Adam(again.parameters(), lr=0.01)
        optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        assert [step(again, optimiser, graph, x, labels) for _ in range(3)] == runs[0][before:]


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("before", [1, 2])
def test_batches_are_resumed_to_the_bit(before: int, rounding: Any) -> None:
    """Also behind the first step, whose batch is still there when the state is saved: the next batch is another one."""
    random = np.random.default_rng(0)
    sampler = bs.graph.ClusterSampler(random.random((NODES, NODES)) < 0.1, np.arange(NODES) % 4, seed=0)
    x, labels = torch.from_numpy(random.standard_normal((NODES, INPUTS))).float(), torch.arange(NODES) % CLASSES
    net, states = net_of("gcn", bst.Tango(rounding=rounding, activations=4)), []
    optimiser, losses = torch.optim.Adam(net.parameters(), lr=0.01), []
    for batch in bst.BatchLoader(sampler, x, labels):
        losses.append(step(net, optimiser, batch.graph(0), batch.x, batch.labels))
        states.append(copy.deepcopy((net.state_dict(), optimiser.state_dict())))
    again = net_of("gcn", bst.Tango(rounding=rounding, activations=4), seed=5)
    again.load_state_dict(states[before - 1][0])
    optimiser = torch.optim.Adam(again.parameters(), lr=0.01)
    optimiser.load_state_dict(states[before - 1][1])
    rest = list(bst.BatchLoader(sampler, x, labels))[before:]
    assert [step(again, optimiser, each.graph(0), each.x, each.labels) for each in rest] == losses[before:]
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_step_captured_behind_a_loaded_state_knows_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer read before needs no look at the tensor, which a capture would not allow."""
    state = bst.quantize_(torch.nn.Linear(2, 2)).quantization.train()
    state.set_extra_state({"bits": 8, "draws": 0, "read": {0: True, 1: False}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    state.begin()
    assert [state.is_data(torch.ones(3, 2), layer) for layer in (0, 1)] == [True, False]


def test_one_quantised_copy_of_a_tensor() -> None:
    """GraphSAGE reads its input and its gradient twice, by a product and by a sum; the features of the data are quantised once."""
    graph, x, _ = data()
    torch.manual_seed(0)
    net = bst.quantize_(torch.nn.ModuleList([bst.SAGEConv(INPUTS, INPUTS)]), bst.Tango(last="quantized"))
    state = net.quantization
    wide = x.clone().requires_grad_()
    y = net[0](wide, graph)
    # Both weights, the features once for two readers, and means of them, which the second product reads.
    assert (state.misses, state.hits, state.draws) == (4, 1, 4)
    y.sum().backward()
    # The gradient of the result, read by both products; that of the means goes back over the edges.
    assert (state.misses, state.hits, state.draws) == (6, 2, 6)
    net[0](x, graph)
    before = state.misses
    net[0](x, graph)
    assert state.misses == before + 1  # the means alone: weights and features are as they were
    with torch.no_grad():
        x[0, 0] += 1
    net[0](x, graph)
    assert state.misses == before + 3


def test_evaluation_rounds_to_nearest_and_draws_nothing() -> None:
    graph, x, _ = data()
    net = net_of("gcn", bst.Tango(last="quantized"))
    net(x, graph)
    assert net.quantization.draws > 0
    net.eval()
    before = net.quantization.draws
    with torch.no_grad():
        assert torch.equal(net(x, graph), net(x, graph))
    assert net.quantization.draws == before


def test_bits_are_chosen_in_the_first_epoch() -> None:
    graph, x, labels = data()
    net = net_of("gcn", bst.Tango(bits="auto"))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    assert net.quantization.bits is None
    out = []
    net.first.register_forward_hook(lambda layer, given, made: out.append(made.detach().numpy().copy()))
    step(net, optimiser, graph, x, labels)
    assert net.quantization.bits == bs.choose_bits(out[0], bits=(4, 8), granularity="row")
    strict = net_of("gcn", bst.Tango(bits="auto", threshold=0.0))
    step(strict, torch.optim.SGD(strict.parameters(), lr=0.1), graph, x, labels)
    assert strict.quantization.bits == 8
    assert "bits=8" in repr(strict.quantization)


@pytest.mark.parametrize("saved", ["auto", 4])
def test_a_state_brings_bits_only_to_who_leaves_them_open(saved: Any) -> None:
    state = net_of("gcn", bst.Tango(bits=saved)).state_dict()
    for bits, want in ((8, 8), ("auto", None if saved == "auto" else saved)):
        net = net_of("gcn", bst.Tango(bits=bits))
        net.load_state_dict(state)
        assert net.quantization.bits == want


def test_layers_left_in_floats() -> None:
    graph, x, _ = data()
    plain, low = net_of("gcn"), net_of("gcn", bst.Tango(exact=("first",)))
    assert torch.equal(plain(x, graph), low(x, graph))
    undone = bst.unquantize_(net_of("gcn", bst.Tango()))
    assert torch.equal(plain(x, graph), undone(x, graph))
    assert list(undone.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_networks_of_half_precision(kind: str, dtype: str) -> None:
    graph, x, _ = data()
    net = bst.quantize_(Dropped(kind), bst.Tango(rounding="nearest", activations=8))
    found = []
    for each in (torch.float32, getattr(torch, dtype)):
        made = copy.deepcopy(net).to(each)
        y = made(x.to(each), graph, 0.0)
        assert y.dtype == each
        y.sum().backward()
        found.append(torch.cat([y.float().flatten().detach(), *(p.grad.float().flatten() for p in made.parameters())]))
    assert (found[0] - found[1]).norm() <= 0.03 * found[0].norm()


@pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning", r"ignore:The \.grad attribute:UserWarning")
def test_a_compiled_network_keeps_few_bits_as_well() -> None:
    graph, x, _ = data()
    torch.manual_seed(0)
    net = bst.quantize_(Dropped("gat"), bst.Tango(activations=8))
    twin = copy.deepcopy(net)
    assert torch.equal(torch.compile(twin, backend="eager")(x, graph, 0.0), net(x, graph, 0.0))


def test_copies_are_apart() -> None:
    graph, x, labels = data()
    net = net_of("sage", bst.Tango())
    twin = copy.deepcopy(net)
    losses = [step(each, torch.optim.SGD(each.parameters(), lr=0.1), graph, x, labels) for each in (net, twin)]
    assert losses[0] == losses[1]
    assert twin.quantization is not net.quantization
    assert twin.quantization.draws == net.quantization.draws


def test_refusals() -> None:
    net = net_of("gcn")
    with pytest.raises(bs.errors.DTypeError, match=r"pass bst\.Tango"):
        bst.quantize_(net, 8)
    with pytest.raises(ValueError, match="no module 'third'"):
        bst.quantize_(net, bst.Tango(exact=("third",)))
    with pytest.raises(ValueError, match="nothing to quantise"):
        bst.quantize_(torch.nn.ReLU())
    with pytest.raises(ValueError, match="bits must be 8, 4, 2 or 'auto'"):
        bst.Tango(bits=3)
    with pytest.raises(bs.errors.DTypeError, match=r"exact is the word 'first'.*exact=\('first',\)"):
        bst.Tango(exact="first")
    for wrong, error in (("x", bs.errors.DTypeError), (float("nan"), ValueError)):
        with pytest.raises(error, match="threshold must be a finite number"):
            bst.Tango(threshold=wrong)
    graph, x, _ = data()
    with pytest.raises(bs.errors.DTypeError, match="float64"):
        bst.quantize_(net.double(), bst.Tango(last="quantized"))(x.double(), graph)


@pytest.mark.parametrize("own", [torch.nn.Linear(3, 3), None, 8])
def test_what_a_network_calls_quantization_itself_is_left_alone(own: Any) -> None:
    net = net_of("gcn")
    net.quantization = own
    before = dict(vars(net.first.lin))
    with pytest.raises(
        ValueError, match=f"a {type(own).__name__} of its own under the name 'quantization'.*another name"
    ):
        bst.quantize_(net)
    assert net.quantization is own
    assert vars(net.first.lin) == before
    assert not net._forward_pre_hooks
    bst.quantize_(net.first)  # a layer alone has nothing of that name
    bst.quantize_(net.first, bst.Tango(bits=4))
    assert net.first.quantization.bits == 4


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_layers_of_pytorch_geometric(kind: str) -> None:
    """Accelerated layers compute what ours do, to the bit, from equal weights."""
    theirs = pytest.importorskip("torch_geometric.nn")
    graph, x, _ = data()
    makers: dict[str, Any] = {
        "gcn": lambda home, a, b: home.GCNConv(a, b),
        "sage": lambda home, a, b: home.SAGEConv(b, b),
        "gin": lambda home, a, b: home.GINConv(torch.nn.Linear(b, b)),
        "gat": lambda home, a, b: home.GATConv(a, b, heads=4),
    }
    found = []
    for home in (theirs, bst):
        torch.manual_seed(0)
        net = torch.nn.ModuleList([makers[kind](home, INPUTS, INPUTS if kind != "gat" else 4)])
        torch.manual_seed(1)
        for p in net.parameters():
            torch.nn.init.normal_(p, std=0.3)
        bst.quantize_(bst.accelerate(net), bst.Tango(rounding="nearest", last="quantized"))
        found.append(net[0](x, graph))
    np.testing.assert_allclose(found[0].detach(), found[1].detach(), atol=0 if kind != "gat" else 2e-5)


class Dropped(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Layers with an activation and dropout between them."""

    def __init__(self, kind: str, width: int = 64) -> None:
        super().__init__()
        layer: Any = {"gcn": lambda a, b: bst.GCNConv(a, b), "gat": lambda a, b: bst.GATConv(a, b // 4, 4)}[kind]
        self.first, self.second, self.out = layer(INPUTS, width), layer(width, width), torch.nn.Linear(width, CLASSES)
        self.kind = kind

    def forward(self, x: Any, graph: Any, rate: float = 0.5) -> Any:
        f = torch.nn.functional
        x = f.dropout(
            f.elu(self.first(x, graph)) if self.kind == "gat" else self.first(x, graph).relu(), rate, self.training
        )
        return self.out(f.relu(self.second(x, graph)))


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_what_activations_keep(kind: str) -> None:
    """A quarter or an eighth of the bytes; gradients of the same step are near, and right on average."""
    from bitsparse.torch.kept import kept_bytes

    graph, x, _ = data()
    torch.manual_seed(0)
    net = Dropped(kind)
    plain = kept_bytes(net(x, graph))
    found = {}
    for bits in (8, 4, 2):
        low = bst.quantize_(copy.deepcopy(net), bst.Tango(activations=bits))
        y = low(x, graph)
        found[bits] = kept_bytes(y) / plain
        y.sum().backward()
        assert all(p.grad is not None for p in low.parameters())
    assert found[8] > found[4] > found[2]
    assert found[8] < (0.22 if kind == "gcn" else 0.3)  # of what little sums of floats keep
    low = bst.quantize_(copy.deepcopy(net), bst.Tango(bits=8, exact=("first", "second"), activations=4))
    weights = torch.randn(NODES, CLASSES)
    (net(x, graph, 0.0) * weights).sum().backward()
    want = net.out.weight.grad
    draws = []
    for _ in range(300):
        low.zero_grad()
        (low(x, graph, 0.0) * weights).sum().backward()
        draws.append(low.out.weight.grad.clone())
    off = torch.stack(draws) - want
    error = off.std(dim=0) / len(draws) ** 0.5
    # Where a draw seldom rounds up the mean of 300 is no normal number yet.
    assert (off.mean(dim=0).abs() <= 6 * error + 1e-4 * want.abs().max()).all()
    assert float(error.max()) > 0
    low.eval()
    assert torch.equal(low(x, graph), low(x, graph))
    assert "forward" not in vars(bst.unquantize_(low))
    for bits in (3, 8.0, "8"):
        with pytest.raises(ValueError, match="activations must be 8, 4, 2 or None"):
            bst.Tango(activations=bits)
        with pytest.raises(ValueError, match="bits must be 8, 4, 2 or 'auto'"):
            bst.Tango(bits=bits)
    assert bst.Tango(bits=np.int64(4)).bits == 4


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_computed_again(reentrant: bool) -> None:
    """A checkpoint drops on the way back what it dropped before, also where activations keep few bits; other draws are refused."""
    from torch.utils.checkpoint import checkpoint

    class Again(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = bst.GCNConv(INPUTS, 16), bst.SAGEConv(16, 16, aggr="max")
            self.out, self.checkpointed = bst.GCNConv(16, CLASSES), True

        def behind(self, x: Any) -> Any:
            return self.second(torch.nn.functional.dropout(x.relu(), 0.5, self.training), graph)

        def forward(self, x: Any) -> Any:
            h = self.first(x, graph)
            h = checkpoint(self.behind, h, use_reentrant=reentrant) if self.checkpointed else self.behind(h)
            return self.out(h, graph)

    graph, x, _ = data()
    torch.manual_seed(0)
    net, found = Again(), []
    for activations in (None, 8):
        low = bst.quantize_(copy.deepcopy(net), bst.Tango(rounding="nearest", activations=activations))
        low.checkpointed = activations is not None
        torch.manual_seed(1)
        y = low(x)
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad for p in low.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 0.03 * one.norm()
    low = bst.quantize_(
        torch.nn.Sequential(torch.nn.Linear(INPUTS, 4), torch.nn.Sigmoid()), bst.Tango(last="quantized")
    )
    with pytest.raises(RuntimeError, match=r"checkpoint does, .*rounding='nearest'"):
        checkpoint(low, x.requires_grad_(), use_reentrant=reentrant).sum().backward()


def test_a_layer_that_narrows_sums_its_products() -> None:
    """GIN's sums are of as many columns in integers as in floats; a way forward that a user gave its linear map is taken."""
    graph = data()[0]
    wide = torch.randn(NODES, 20)
    for begins in (
        lambda: torch.nn.Linear(20, 4),
        lambda: torch.nn.Sequential(torch.nn.Linear(20, 4), torch.nn.ReLU()),
    ):
        net = bst.quantize_(
            torch.nn.Sequential(bst.GINConv(begins()), torch.nn.Linear(4, 2)), bst.Tango("auto", "nearest")
        )
        net.quantization.bits = 8
        layer, seen = net[0], []
        quantizer = vars(layer)["_quantizer"]
        taken = quantizer.spmm_and_own
        quantizer.spmm_and_own = lambda graph, x, *others, seen=seen, taken=taken: (
            seen.append(x.shape[1]) or taken(graph, x, *others)
        )
        layer(wide, graph)
        linear = layer.nn if isinstance(layer.nn, torch.nn.Linear) else layer.nn[0]
        linear.forward = lambda x: torch.zeros(x.shape[0], 4)
        assert not layer(wide, graph).any()
        assert seen == [4, 20]


def test_draws_begin_again_behind_the_last_stream() -> None:
    graph, x, labels = data()
    net = net_of("gcn", bst.Tango())
    torch.nn.functional.cross_entropy(net(x, graph), labels).backward()
    each = net.quantization.draws
    net.quantization.set_extra_state({"bits": 8, "draws": 2**32 - 1})
    torch.nn.functional.cross_entropy(net(x, graph), labels).backward()
    assert net.quantization.draws == each - 1


def test_a_captured_step_needs_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of("gcn", bst.Tango())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="run one step before"):
        net.quantization.coding(torch.device("cuda"), 8)


def test_a_loaded_state_is_that_of_replays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured step counts and writes stays where it is: its replays go on behind the draws loaded, and write weights unseen."""
    from bitsparse.torch.quantization import _Counter

    graph, x, _ = data()
    net = net_of("gcn", bst.Tango()).eval()
    counter = net.quantization._counter = _Counter(torch.full((1,), 4, dtype=torch.int32), None)
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_available", lambda: True)
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        net(x, graph)
    for draws, number in ((7, 6), (0, -1), (2**31, 2**31 - 1), (2**31 + 1, -(2**31)), (2**32 - 1, -2)):
        net.quantization.set_extra_state({"bits": 8, "draws": draws})
        assert net.quantization._counter is counter
        assert counter.number.item() == number
        assert net.quantization.draws == draws
    net(x, graph)
    for part in net.parameters():
        part.data.mul_(2)  # which PyTorch's counter of writes does not see either
    other = net_of("gcn", bst.Tango()).eval()
    other.load_state_dict(net.state_dict())
    assert torch.equal(net(x, graph), other(x, graph))


@pytest.mark.parametrize("scaled", [False, True])
def test_addends_of_sums_are_those_of_steps_of_their_own(scaled: bool) -> None:
    """A multiple of the features and a bias, forward and backward, to the bit."""
    graph = data()[0]
    factors = (torch.rand(NODES) + 0.5, torch.rand(NODES) + 0.5) if scaled else (None, None)
    state = Quantization(bst.Tango(rounding="nearest"))
    grid = Grid(8, "tensor", CodeSource(state, False))
    factor, gradient, made = torch.tensor([1.3]), torch.randn(NODES, 5), []
    values = torch.randn(NODES, 5), torch.randn(5)
    for at_once in (True, False):
        x, bias = (part.clone().requires_grad_() for part in values)
        if at_once:
            y = spmm_of_codes(x, graph.pattern(), factors, grid, None, factor, bias)
        else:
            y = spmm_of_codes(x, graph.pattern(), factors, grid, None) + factor * x + bias
        made.append([y, *torch.autograd.grad(y, (x, bias), gradient)])
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


@pytest.mark.parametrize("trained", ["all", "bias"])
def test_biases_of_products_are_those_of_steps_of_their_own(trained: str) -> None:
    """Forward and backward, to the bit, with as many draws."""
    values, gradient, made = (torch.randn(NODES, 5), torch.randn(4, 5), torch.randn(4)), torch.randn(NODES, 4), []
    for at_once in (True, False):
        state = Quantization(bst.Tango())
        quantizer = LayerQuantizer(state, True, True)
        x, weight, bias = (part.clone().requires_grad_(trained == "all" or part.ndim == 1) for part in values)
        y = quantizer.linear(x, weight, bias) if at_once else quantizer.linear(x, weight) + bias
        parts = [part for part in (x, weight, bias) if part.requires_grad]
        made.append([y, *torch.autograd.grad(y, parts, gradient), torch.tensor(state.draws)])
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_biases_that_no_kernel_takes() -> None:
    """Of another dtype, or one for all columns: a step of its own."""
    quantizer = LayerQuantizer(Quantization(bst.Tango(rounding="nearest")), True, True)
    x, weight = torch.randn(NODES, 5), torch.randn(4, 5)
    plain = quantizer.linear(x, weight)
    for bias in (torch.randn(4).double(), torch.randn(1), torch.randn(4)):
        assert torch.equal(quantizer.linear(x, weight, bias), plain + bias)
    with pytest.raises(RuntimeError, match="must match"):
        quantizer.linear(x, weight, torch.randn(3))


@pytest.mark.parametrize("outputs", [INPUTS, 5])
def test_a_product_joins_what_is_there_already(outputs: int) -> None:
    """GraphSAGE's second product, forward and backward, to the bit; behind a hook it is a step of its own, and the hook sees it."""
    graph, x, _ = data()
    made, seen = [], []
    for watched in (False, True):
        torch.manual_seed(0)
        net = bst.quantize_(torch.nn.ModuleList([bst.SAGEConv(INPUTS, outputs)]), bst.Tango(last="quantized"))
        if watched:
            net[0].lin_r.register_forward_hook(lambda module, given, result: seen.append(result.detach()))
        wide = x.clone().requires_grad_()
        y = net[0](wide, graph)
        assert type(y.grad_fn).__name__ == ("AddBackward0" if watched else "_LinearBackward")
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        draws = torch.tensor(net.quantization.draws)
        made.append([y, wide.grad, *(part.grad for part in net.parameters()), draws])
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))
    assert len(seen) == 1


def test_results_that_no_product_joins() -> None:
    """Of another dtype, to be spread over the nodes, or with gaps: a step of its own, which leaves them as they were."""
    state = Quantization(bst.Tango(rounding="nearest"))
    x, weight = torch.randn(NODES, 5), torch.randn(4, 5)
    for products in (True, False):
        quantizer = LayerQuantizer(state, products, True)
        plain = quantizer.linear(x, weight)
        for out in (
            torch.randn(NODES, 4).double(),
            torch.randn(1, 4),
            torch.randn(NODES, 8)[:, ::2],
            torch.randn(NODES, 4),
        ):
            before = out.clone()
            assert torch.equal(quantizer.added(out, x, weight), before + plain)
            assert torch.equal(out, before) or out.is_contiguous()
        with pytest.raises(RuntimeError, match="must match"):
            quantizer.added(torch.randn(NODES, 3), x, weight)


def test_largest_magnitudes_that_are_known() -> None:
    """They make the step of the codes, until the tensor is written to or a pass begins."""
    state = Quantization(bst.Tango(rounding="nearest"))
    source = CodeSource(state, False)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    for change, step in ((None, 2.0), (lambda: x.add_(1), 2.0), (state.begin, 2.0)):
        source.keep_largest(x, np.array([254], np.float32))
        if change is not None:
            change()
            step = float(x.abs().max()) / 127
        assert source.largest(x) is None or change is None
        assert float(source.codes(x, 8).codes.scale) == np.float32(step)
        state.begin()


def captured(net: Any, x: Any, graph: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pass that the network takes for a captured one."""
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_available", lambda: True)
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        return net(x, graph)


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("kind", LAYERS)
def test_fixed_features_are_quantised_once(kind: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bits of features that are not fixed, and for good: also in captured passes, and in those behind them."""
    graph, x, labels = data()
    runs, missed = [], []
    for fixed in (False, True):
        net = net_of(kind, bst.Tango())
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        if fixed and when == "before":
            net.quantization.fix(x)
        losses = [step(net, optimiser, graph, x, labels) for _ in range(2)]
        if fixed and when == "between":
            net.quantization.fix(x)
        net.quantization.fix(torch.ones(1))  # another tensor changes nothing
        before = net.quantization.misses
        captured(net, x, graph, monkeypatch)
        missed.append(net.quantization.misses - before)
        losses += [step(net, optimiser, graph, x, labels) for _ in range(2)]
        runs.append(losses)
    assert runs[0] == runs[1]
    # Codes of features times factors of the graph are kept from the first uncaptured pass on.
    assert missed[0] - missed[1] == (kind != "wide gcn" or when == "before")


def test_fixed_features_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x, _ = data()
    net = net_of("gcn", bst.Tango(rounding="nearest"))
    net.quantization.fix(x)
    before = net(x, graph)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match=r"shape \(40, 12\) was fixed, but has been written to"):
        net(x, graph)
    net.quantization.fix(x)
    after = net(x, graph)
    assert torch.equal(after, net_of("gcn", bst.Tango(rounding="nearest"))(x, graph))
    assert not torch.equal(before, after)
    (earlier,) = net.quantization._fixed_before  # what captured steps may read
    assert earlier.made
    assert torch.equal(net(x.clone(), graph), after)  # a copy is another tensor
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert not other.quantization._fixed
        assert torch.equal(other(x, graph), after)
    with pytest.raises(ValueError, match=r"x needs a gradient.*pass x.detach"):
        net.quantization.fix(x.clone().requires_grad_())


def test_codes_of_a_captured_pass_are_not_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there only after a replay."""
    graph, x, _ = data()
    net = net_of("gcn", bst.Tango(rounding="nearest"))
    captured(net, x, graph, monkeypatch)
    net.quantization.fix(x)
    captured(net, x, graph, monkeypatch)
    before = net.quantization.misses
    net(x, graph)
    of_all = net.quantization.misses - before
    net(x, graph)
    assert net.quantization.misses - before == 2 * of_all - 1


@pytest.mark.parametrize("train", [False, True])
def test_weights_that_are_written_unseen(train: bool) -> None:
    """PyTorch counts no writes through `data`, by which averages of weights and plain steps are written: codes follow all the same."""
    graph, x, _ = data()
    net = net_of("gcn", bst.Tango(rounding="nearest")).train(train)
    before = net(x, graph)
    for part in net.parameters():
        part.data.mul_(2)
    after = net(x, graph)
    assert torch.equal(after, copy.deepcopy(net)(x, graph))
    assert not torch.equal(before, after)


def test_what_chooses_bits_goes_with_them() -> None:
    net = net_of("gcn", bst.Tango("auto"))
    assert net.first._forward_hooks
    bst.unquantize_(net)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bits", [8, 4, "auto"])
def test_graphs_without_nodes(kind: str, bits: Any) -> None:
    """There is nothing to sum, and no bits are chosen by it."""
    graph, x = bst.Graph(torch.zeros(2, 0, dtype=torch.long), 0), torch.zeros(0, INPUTS, requires_grad=True)
    net = net_of(kind, bst.Tango(bits=bits, last="quantized", activations=8))
    y = net(x, graph)
    y.sum().backward()
    assert y.shape == (0, CLASSES)
    assert x.grad.shape == x.shape
    assert net.quantization.bits == (None if bits == "auto" else bits)


def test_no_rows_of_a_linear_layer() -> None:
    net = bst.quantize_(torch.nn.Sequential(torch.nn.Linear(4, 3)), bst.Tango(last="quantized"))
    assert net(torch.zeros(0, 5, 4)).shape == (0, 5, 3)


def test_a_layer_in_floats_keeps_codes_under_autocast() -> None:
    graph, x, _ = data()
    net = net_of("gcn", bst.Tango(activations=8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x, graph)
    y.float().sum().backward()
    want = net_of("gcn")
    want(x, graph).sum().backward()
    for one, other in zip(net.parameters(), want.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= 0.1 * other.grad.norm()


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("sizes", [(INPUTS, 4), (4, INPUTS)])
def test_who_watches_the_products_of_sums_sees_them(sizes: tuple[int, int], quantised: bool) -> None:
    """Hooks on GraphSAGE's first linear map are called, also where its product comes first, and what they keep stays as it was."""
    from torch.nn.utils import prune

    graph, x = data()[0], torch.randn(NODES, sizes[0])
    conv, seen = bst.SAGEConv(*sizes), []
    net = torch.nn.ModuleList([conv])
    if quantised:
        bst.quantize_(net, bst.Tango(rounding="nearest", last="quantized"))
    plain = conv(x, graph)
    hook = conv.lin_l.register_forward_hook(lambda module, given, made: seen.append((made, made.detach().clone())))
    assert (conv(x, graph) - plain).abs().max() <= 0.1 * plain.abs().max()
    ((made, then),) = seen
    assert torch.equal(made, then)
    hook.remove()
    prune.random_unstructured(conv.lin_l, "weight", 0.5)  # whose hook makes the weights in every pass
    for _ in range(2):
        conv(x, graph).sum().backward()
