"""bitsparse.torch on a GPU: the CPU's gradients, the same bits in every run, and whole training steps as CUDA graphs."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
NODES = 300


def edges() -> Any:
    import torch

    return torch.from_numpy(np.random.default_rng(0).integers(0, NODES, (2, 2000))).unique(dim=1)


def network(seed: int = 0) -> Any:
    import torch

    import bitsparse.torch as bst

    torch.manual_seed(seed)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.widening, self.first, self.second = bst.GCNConv(20, 24), bst.GCNConv(24, 12), bst.SAGEConv(12, 16)
            self.third, self.fourth = bst.GATConv(16, 4, heads=4), bst.GINConv(torch.nn.Linear(16, 7))

        def forward(self, x: Any, g: Any) -> Any:
            x = self.second(self.first(self.widening(x, g).relu(), g).relu(), g).relu()
            return self.fourth(self.third(x, g).relu(), g)

    return Net()


def attending() -> Any:
    """Attention in every layer, with elu between them, as in suite ``training``; the last layer's 7 columns are not a power of 2."""
    import torch

    import bitsparse.torch as bst

    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = bst.GATConv(20, 4, heads=4), bst.GATConv(16, 7)

        def forward(self, x: Any, g: Any) -> Any:
            return self.second(torch.nn.functional.elu(self.first(x, g)), g)

    return Net()


def warm_up(step: Any, times: int = 1) -> None:
    """Run a step on a stream of its own, before it is captured, and wait until it is over.

    PyTorch's threads may let go of a step's graph a little after the call: a capture that meets it would use that stream.
    """
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    gc.collect()


def gradients(net: Any, x: Any, g: Any, y: Any) -> list[Any]:
    import torch

    net.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(net(x, g).float(), y).backward()
    return [parameter.grad.detach().clone() for parameter in net.parameters()]


def data() -> tuple[Any, Any]:
    import torch

    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.standard_normal((NODES, 20)).astype(np.float32)), torch.from_numpy(
        rng.integers(0, 7, NODES)
    )


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_sums_and_gradients_are_those_of_the_cpu(reduce: str, dtype: str) -> None:
    import torch

    import bitsparse.torch as bst

    kind = getattr(torch, dtype)
    bound = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    rng = np.random.default_rng(2)
    x = torch.from_numpy(rng.standard_normal((NODES, 9))).to(kind)
    g = bst.Graph(edges(), NODES)
    values = torch.from_numpy(rng.random(g.num_edges)).to(kind)
    results = []
    for device in ("cpu", "cuda", "cuda"):
        wide = device == "cpu" and dtype in ("float16", "bfloat16")
        graph = g.to(device)
        one, two = (
            a.to(device, torch.float64 if wide else kind).detach().clone().requires_grad_() for a in (x, values)
        )
        made = bst.spmm(graph, one, two, reduce=reduce)
        made.square().sum().backward()
        results.append([part.detach().double().cpu() for part in (made, one.grad, two.grad)])
    for want, got, again in zip(*results, strict=True):
        assert torch.equal(got, again)
        assert (got - want).abs().max() <= 4 * bound * want.abs().max()


def test_training_is_that_of_the_cpu_and_repeats_itself() -> None:
    import torch

    import bitsparse.torch as bst

    x, y = data()
    want = gradients(network(), x, bst.Graph(edges(), NODES), y)
    net, g = network().cuda(), bst.Graph(edges(), NODES).cuda()
    first = gradients(net, x.cuda(), g, y.cuda())
    for _ in range(10):
        for one, other in zip(first, gradients(net, x.cuda(), g, y.cuda()), strict=True):
            assert torch.equal(one, other)
    for one, other in zip(first, want, strict=True):
        assert (one.cpu() - other).abs().max() <= 1e-4 * other.abs().max()


def test_graphs_made_on_the_gpu() -> None:
    import torch

    import bitsparse.torch as bst

    x = data()[0]
    want = bst.spmm(bst.Graph(edges(), NODES).normalized(), x)
    got = bst.spmm(bst.Graph(edges().cuda(), NODES).normalized(), x.cuda())
    torch.testing.assert_close(got.cpu(), want)


def test_a_whole_step_as_a_cuda_graph() -> None:
    import torch

    import bitsparse.torch as bst

    x, y = (part.cuda() for part in data())
    g = bst.Graph(edges(), NODES).cuda()
    eager, captured = network().cuda(), network().cuda()
    steps = []
    for net in (eager, captured):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, capturable=True)

        def step(net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(net(x, g), y)
            loss.backward()
            optimizer.step()
            return loss

        steps.append(step)
    warm_up(steps[1], 3)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        loss = steps[1]()
    for _ in range(3):
        steps[0]()
    for _ in range(5):
        want = steps[0]()
        recorded.replay()
        assert torch.equal(loss, want)
    for one, other in zip(eager.parameters(), captured.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("activations", [None, 8, 4])
@pytest.mark.parametrize("last", ["float32", "quantized"])
@pytest.mark.parametrize("kind", ["mixed", "attention"])
def test_a_captured_quantised_step_draws_anew(kind: str, last: Any, activations: int | None) -> None:
    """Replays must give the bits of steps that are not captured, read the current input, and continue each other's draws."""
    import torch

    import bitsparse.torch as bst

    x, y = (part.cuda() for part in data())
    g = bst.Graph(edges(), NODES).cuda()
    sides, steps = [], []
    for _ in range(2):
        made = network() if kind == "mixed" else attending()
        net = bst.quantize_(made.cuda(), bst.Tango(last=last, activations=activations))
        optimizer, held = torch.optim.Adam(net.parameters(), lr=0.01, capturable=True), x.clone()

        def step(net: Any = net, optimizer: Any = optimizer, held: Any = held) -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(net(held, g), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps.append(step)
        sides.append((net, held))
    warm_up(steps[1])
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        loss = steps[1]()
    steps[0]()
    for i in range(4):
        for _, held in sides:
            held.copy_(x * (1 + i))
        want = steps[0]()
        recorded.replay()
        assert torch.equal(loss, want)
    assert torch.equal(steps[0](), steps[1]())  # both sides step without a graph again
    assert sides[0][0].quantization.draws == sides[1][0].quantization.draws > 20
    for one, other in zip(*(net.parameters() for net, _ in sides), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["mixed", "attention"])
def test_fixed_features_are_constants_of_a_captured_step(kind: str) -> None:
    """Replays give the bits of uncaptured steps whose features are not fixed, though they make no codes of the features."""
    import torch

    import bitsparse.torch as bst

    x, y = (part.cuda() for part in data())
    g = bst.Graph(edges(), NODES).cuda()
    nets = [bst.quantize_((network() if kind == "mixed" else attending()).cuda(), bst.Tango()) for _ in range(2)]
    nets[1].quantization.fix(x)
    adams = [torch.optim.Adam(net.parameters(), lr=0.01, capturable=True) for net in nets]

    def step(which: int) -> Any:
        adams[which].zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(nets[which](x, g), y)
        loss.backward()
        adams[which].step()
        return loss.detach()

    warm_up(lambda: step(1))
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        loss = step(1)
    step(0)
    for _ in range(4):
        want = step(0)
        recorded.replay()
        assert torch.equal(loss, want)
    (fixed,) = nets[1].quantization._fixed.values()
    assert fixed.made


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("kind", ["signed", "relu", "elu"])
def test_what_is_kept_in_few_bits_has_the_bits_of_the_cpu(kind: str, bits: int) -> None:
    """Codes, what they stand for, and gradients times slopes; rows that begin and end within an octet, and in several pieces on the CPU."""
    import torch

    import bitsparse.torch as bst
    from bitsparse.torch import kept_codes
    from bitsparse.torch.code_source import CodeSource
    from bitsparse.torch.quantization import Quantization

    map_of = getattr(kept_codes, f"{kind}_map")
    x = torch.randn((30_001, 47), generator=torch.Generator().manual_seed(0))
    x = {"signed": x, "relu": x.relu(), "elu": torch.nn.functional.elu(x)}[kind]
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    made = []
    for device in ("cpu", "cuda"):
        source: Any = CodeSource(Quantization(bst.Tango()), False)
        kept = kept_codes.KeptCodes(x.to(device), bits, source, map_of)
        slopes = kept.slopes_of_elu() if kind == "elu" else kept.slopes_of_relu()
        values = torch.cat([part for _, part in kept])
        made.append(
            [
                kept.packed.words,
                values,
                kept.packed.times(gradient.to(device), slopes),
                kept_codes.KeptRelu(x.to(device)).packed.words,
            ]
        )
    assert len(list(kept.packed.rows)) > 1
    size = x.numel() * bits // 32
    for i, (one, other) in enumerate(zip(*made, strict=True)):
        same = slice(0, size) if i == 0 else slice(0, x.numel() // 32) if i == 3 else slice(None)
        assert torch.equal(one[same], other[same].cpu()), i


def test_a_graph_waits_for_the_edges_that_another_stream_computes() -> None:
    import torch

    import bitsparse.torch as bst

    held, want = edges().cuda(), bst.Graph(edges(), NODES)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)  # clock cycles: a tenth of a second
        g = bst.Graph(held.clone(), NODES)
        assert torch.equal(g.indices.cpu(), want.indices)
        torch.cuda._sleep(200_000_000)
        looped = bst.Graph(held + 0, NODES).with_self_loops()
        assert torch.equal(looped.indices.cpu(), want.with_self_loops().indices)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # PyTorch warns about checks and its layout
def test_what_follows_from_a_graph_is_made_on_the_stream_of_its_edges() -> None:
    """The transpose, a sparse tensor's weights and samples must be right although another stream still computes the edges and weights."""
    import torch

    import bitsparse.torch as bst

    weights = torch.rand(edges().shape[1])
    sparse = torch.sparse_coo_tensor(edges().flip(0), weights, (NODES, NODES), check_invariants=True)
    wanted = [bst.Graph(edges(), NODES, edge_weight=weights), bst.Graph(sparse)]
    held, there, sparse = edges().cuda(), weights.cuda(), sparse.cuda()
    drawn, x = [bst.SampledGraph(g, 3, seed=1) for g in wanted], data()[0]
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(200_000_000)
            made = [bst.Graph(held.clone(), NODES, edge_weight=there.clone())]
            torch.cuda._sleep(200_000_000)
            made.append(bst.Graph(sparse * 1))
            samples = []
            for g in made:
                torch.cuda._sleep(200_000_000)
                g.weight.mul_(1)
                samples.append(bst.SampledGraph(g, 3, seed=1))
            for found, want in zip((*made, *samples), (*wanted, *drawn), strict=True):
                for name in ("indptr", "indices", "weight", "t_indptr", "t_indices", "order"):
                    assert torch.equal(getattr(found, name).cpu(), getattr(want, name)), name
                assert torch.allclose(bst.spmm(found, x.cuda()).cpu(), bst.spmm(want, x), atol=1e-4)


def test_replays_go_on_behind_the_draws_of_a_state_that_is_loaded() -> None:
    """Loading a state must leave the draw counter where captured steps count, so that replays continue from the loaded draws."""
    import torch

    import bitsparse.torch as bst
    from bitsparse.torch.accuracy import replayed

    x, y = (part.cuda() for part in data())
    g = bst.Graph(edges(), NODES).cuda()
    sides = []
    for _ in range(2):
        net = bst.quantize_(network().cuda(), bst.Tango())

        def step(net: Any = net) -> Any:
            net.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x, g), y)
            loss.backward()
            return loss.detach()

        sides.append((step, net))
    recorded = replayed(sides[1][0], x.device)
    state = {name: part.clone() if hasattr(part, "clone") else part for name, part in sides[0][1].state_dict().items()}
    for _ in range(12):
        recorded()
    for _, net in sides:
        net.load_state_dict(state)
    others = [torch.full((1,), 7, dtype=torch.int32, device="cuda") for _ in range(64)]
    for _ in range(4):
        assert torch.equal(recorded(), sides[0][0]())
    assert sides[0][1].quantization.draws == sides[1][1].quantization.draws > 0
    assert all(int(one) == 7 for one in others)


@pytest.mark.parametrize(
    ("kind", "precision"), [("gcn", "float32"), ("gcn", "int8-all"), ("sage", "int8"), ("gat", "int4")]
)
@pytest.mark.parametrize("nodes", [NODES, 5000])
def test_training_that_is_recorded_gives_the_same_accuracies(
    kind: str, precision: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded training must give the same accuracies: validation is recorded later than steps, and must see the replays' weights."""
    import torch

    import bitsparse.torch as bst
    from bitsparse.torch import accuracy

    rng = np.random.default_rng(2)
    x = torch.from_numpy(rng.standard_normal((nodes, 20)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 7, nodes))
    masks = [torch.arange(nodes) % 3 == i for i in range(3)]
    edges = torch.from_numpy(
        rng.integers(0, nodes, (2, 7 * nodes))
    )  # some edges occur twice, which attention does not accept
    graph = bst.Graph(edges.unique(dim=1) if kind == "gat" else edges, nodes)
    task = accuracy.Task(graph.cuda(), *(part.cuda() for part in (x, y, *masks)))
    found = [accuracy.trained(task, kind, precision, 1, epochs=33)]
    for part in [torch.full((1 << i,), 1 << 20, dtype=torch.int32) for i in range(12)]:
        part.cuda()  # overwrites what page-locked memory held
    monkeypatch.setattr(accuracy, "_WARM", 1000)
    found.append(accuracy.trained(task, kind, precision, 1, epochs=33))
    assert found[0] == found[1]


@pytest.mark.parametrize(("integers", "aggregation"), [(False, "full"), (True, "full"), (True, "binary")])
def test_a_captured_step_on_signs_is_the_step(integers: bool, aggregation: Any) -> None:
    """Products of bits and their gradients must use the weights of each replay, in memory that belongs to the graph.

    In integers, each replay drops other signs.
    """
    import torch

    import bitsparse.torch as bst
    from bitsparse.torch.accuracy import replayed

    x, y = (part.cuda() for part in data())
    g = bst.Graph(edges(), NODES).cuda()
    sides = []
    for _ in range(2):
        torch.manual_seed(0)
        net = bst.BinaryGCN((20, 64, 7), dropout=0.4 if integers else 0.0, aggregation=aggregation).cuda()
        if integers:
            bst.quantize_(net, bst.Tango(last="quantized"))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, capturable=True)

        def step(net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x, g), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        sides.append((step, net))
    recorded = replayed(sides[1][0], x.device)
    for _ in range(12):
        want = sides[0][0]()
        assert torch.equal(recorded(), want)
        bst.spmm(g, x.double())  # other work between replays
    for one, other in zip(*(net.parameters() for _, net in sides), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["BinaryGCN", "BinarySAGE", "BinarySAINT"])
def test_networks_on_signs_compute_the_integers_of_the_cpu(kind: str) -> None:
    """The same signs are dropped, and products with the features' signs are equal to the bit; gradients are those of the CPU, rounded."""
    import torch

    import bitsparse.torch as bst

    x, y = data()
    g, found = bst.Graph(edges(), NODES), []
    widths = (20, 64, 64, 7) if kind == "BinarySAINT" else (20, 64, 7)
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        net = bst.quantize_(getattr(bst, kind)(widths, dropout=0.4, norm=None), bst.Tango(last="quantized", seed=2))
        first = next(part for part in net.modules() if isinstance(part, bst.SignLinear))
        net, made = net.to(device), []
        first.register_forward_hook(lambda layer, given, out, made=made: made.append(out.detach().cpu()))
        torch.nn.functional.cross_entropy(net(x.to(device), g.to(device)), y.to(device)).backward()
        found.append((made[0], torch.cat([part.grad.flatten().cpu() for part in net.parameters()])))
        net.cpu()
        g.cpu()
    assert (found[0][0] - found[1][0]).abs().max() <= 1e-6 * found[0][0].abs().max()
    assert (found[0][1] - found[1][1]).norm() <= 0.05 * found[0][1].norm()


def test_draws_go_on_where_they_were_on_another_device() -> None:
    import torch

    import bitsparse.torch as bst

    x, y = data()
    g = bst.Graph(edges(), NODES)
    net = bst.quantize_(network(), bst.Tango())
    torch.nn.functional.cross_entropy(net(x, g), y).backward()
    each = net.quantization.draws
    assert each > 0
    for begun in (each, 2**32 - 3):
        net.quantization.set_extra_state({"bits": 8, "draws": begun})
        net.cuda()
        torch.nn.functional.cross_entropy(net(x.cuda(), g.cuda()), y.cuda()).backward()
        assert net.quantization.draws == (begun + each) % 2**32
        net.cpu()
        torch.nn.functional.cross_entropy(net(x, g.cpu()), y).backward()
        assert net.quantization.draws == (begun + 2 * each) % 2**32


def test_graphs_move_with_what_was_derived_of_them() -> None:
    import torch

    import bitsparse.torch as bst

    g = bst.Graph(edges(), NODES, edge_weight=torch.rand(edges().shape[1]))
    x = data()[0].double()
    want = [bst.spmm(made, x, reduce="mean") for made in (g, g.unweighted(), g.normalized(), g.with_self_loops())]
    g.cuda()
    plain = g.unweighted()
    assert plain.indices.data_ptr() == g.indices.data_ptr()
    for made, one in zip((g, plain, g.normalized(), g.with_self_loops()), want, strict=True):
        assert (bst.spmm(made, x.cuda(), reduce="mean").cpu() - one).abs().max() <= 1e-12
    state = {name: part.cpu() for name, part in g.state_dict().items()}
    other = bst.Graph(edges(), NODES).cuda()
    other.load_state_dict(state)
    assert torch.equal(other.weight, g.weight)


def test_values_of_edge_lists_and_promotion() -> None:
    import torch

    import bitsparse.torch as bst

    g = bst.Graph(edges(), NODES).cuda()
    values = torch.rand(edges().shape[1], dtype=torch.float64)
    x = data()[0]
    want = bst.spmm(g.cpu(), x, g.cpu().edge_values(edges(), values))
    g.cuda()
    made = bst.spmm(g, x.cuda(), g.edge_values(edges().cuda(), values.cuda()))
    assert made.dtype == torch.float64
    torch.testing.assert_close(made.cpu(), want)


def test_tf32_is_used_where_pytorch_may_use_it() -> None:
    """TF32 must be used only if PyTorch allows it: here windows share all their neighbours, so tensor cores can multiply them."""
    import torch

    import bitsparse.torch as bst

    dense = torch.ones(512, 512)
    g, x = bst.Graph(dense.to_sparse()).cuda(), torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    want, given, before = dense.double() @ x.double(), x.cuda(), torch.backends.cuda.matmul.fp32_precision
    errors = []
    try:
        for precision in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = precision
            errors.append(float((bst.spmm(g, given).cpu().double() - want).abs().max() / x.abs().sum(0).max()))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert errors[0] < 1e-6 < errors[1] < 2e-3


def test_arrays_as_buffers_move() -> None:
    import torch

    import bitsparse as bs
    import bitsparse.torch as bst

    codes = np.random.default_rng(3).integers(0, 8, (64, 200))
    for array in (bs.BitTensor(codes, 3, scale=0.5), bs.TCTiledCSR(codes % 3 * 1.5), bs.FRDC(codes % 2)):
        buffer = bst.Buffer(array).cuda()
        assert buffer.array.device == "cuda:0"
        assert np.array_equal(buffer.array.get().toarray(), array.toarray())
        assert isinstance(buffer.array.toarray(), torch.Tensor)
        back = bst.Buffer(array)
        back.load_state_dict(buffer.state_dict())
        assert np.array_equal(np.asarray(back.cpu().array.toarray()), array.toarray())


def _losses(kind: str, activations: int | None, steps: int = 3) -> list[Any]:
    """Losses and last gradients of a small network's steps."""
    import torch

    import bitsparse.torch as bst

    x, y = (part.cuda() for part in data())
    g, net = bst.Graph(edges(), NODES).cuda(), (network() if kind == "mixed" else attending()).cuda()
    if activations is not None:
        bst.quantize_(net, bst.Tango(activations=activations))
    optimizer, found = torch.optim.Adam(net.parameters(), lr=0.01, capturable=True), []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(net(x, g), y)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*found, *(part.grad for part in net.parameters())]


@pytest.mark.parametrize("activations", [None, 8, 4])
@pytest.mark.parametrize("kind", ["mixed", "attention"])
def test_steps_take_their_memory_from_pytorch_and_give_it_back(
    kind: str, activations: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large workspaces have the bits of kept ones, and after the first steps the same memory is held after each."""
    import cupy
    import torch

    from bitsparse.backends.cuda.csr import schedule

    want, pool = _losses(kind, activations), cupy.get_default_memory_pool()
    monkeypatch.setattr(schedule, "LENT_FROM", 1)
    pool.free_all_blocks()
    before, held = pool.used_bytes(), []
    for _ in range(3):
        for one, other in zip(_losses(kind, activations), want, strict=True):
            assert torch.equal(one, other)
        torch.cuda.synchronize()
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    assert pool.used_bytes() - before < 1 << 16  # flags and the like
    assert held[1] == held[2]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("activations", [None, 4])
@pytest.mark.parametrize("layer", ["gcn", "sage"])
def test_products_are_written_as_the_rows_that_sums_gather(
    layer: str, activations: int | None, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last layer's 7 columns lie in rows of 8: losses and gradients are those of two steps, up to the rounding of products."""
    import torch

    import bitsparse.torch as bst
    from bitsparse.backends.cuda.csr import schedule
    from bitsparse.backends.cuda.spmm import spmm as kernel
    from bitsparse.torch import product_sums, quantizer

    x, y = (part.cuda() for part in data())
    monkeypatch.setattr(kernel, "laying_pays", lambda *_: True)
    monkeypatch.setattr(schedule, "LENT_FROM", 1)
    calls: list[bool] = []

    def counted(together: Any) -> Any:
        def call(*given: Any) -> Any:
            made = together(*given)
            calls.append(made is not None)
            return made

        return call

    def steps(fewest: int) -> list[Any]:
        monkeypatch.setattr(product_sums, "_FEWEST", fewest)
        torch.manual_seed(0)
        kind = {"gcn": bst.GCNConv, "sage": bst.SAGEConv}[layer]

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = kind(20, 24), kind(24, 7)

            def forward(self, x: Any, g: Any) -> Any:
                return self.second(torch.relu(self.first(x, g)), g)

        net, g = Net().cuda(), bst.Graph(edges(), NODES).cuda()
        if activations is not None:
            bst.quantize_(net, bst.Tango(activations=activations))

        def step() -> Any:
            net.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(net(x, g), y)
            loss.backward()
            return loss.detach()

        warm_up(step)
        if captured and fewest == 1:
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                loss = step()
            recorded.replay()
        else:
            loss = step()
        return [loss, *(part.grad for part in net.parameters())]

    for name in ("product_sums", "product_sums_and_own"):
        monkeypatch.setattr(quantizer, name, counted(getattr(product_sums, name)))
    want, found = steps(1 << 40), steps(1)
    assert any(calls)
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
