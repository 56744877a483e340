"""Full-graph training over ranks: gradients of one device, and of few bits on their way."""

from __future__ import annotations

import lowbit_networks
import numpy as np
import pytest

from bitsparse import distributed as D
from bitsparse.errors import DTypeError, ShapeError

pytestmark = pytest.mark.torch
SCALES = pytest.mark.parametrize("scales", ["row", "all"])


def problem(nodes=43):
    rng = np.random.default_rng(nodes)
    pattern = lowbit_networks.random_graph(nodes, rng, 0.15)
    directed = pattern.multiply(rng.random((nodes, nodes)) < 0.7).tocsr()
    directed.eliminate_zeros()
    return directed, rng.standard_normal((nodes, 6)).astype(np.float32), rng.integers(0, 3, nodes)


def network(torch, sums):
    """Two layers of a GCN around what sums over neighbours."""

    class Net(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

        def forward(self, x):
            return sums[1](self.second(torch.relu(sums[0](self.first(x)))))

    # Seeds are the whole process's, and so are threads' networks: the caller makes one after the other.
    return Net()


def one_device(torch, normalisation, steps):
    import bitsparse.torch as bst
    from bitsparse import nn

    matrix, x, labels = problem()
    graph = bst.Graph(nn.Graph(matrix, normalisation).matrix)
    net = network(torch, [lambda h: bst.spmm(graph, h)] * 2)
    return trained(torch, net, torch.tensor(x), torch.tensor(labels), 1.0 / len(labels), steps, lambda p: None)


def trained(torch, net, x, labels, factor, steps, reduce):
    optimiser = torch.optim.SGD(net.parameters(), 0.5)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels, reduction="sum") * factor
        loss.backward()
        for parameter in net.parameters():
            reduce(parameter)
        optimiser.step()
        losses.append(loss.item())
    return losses, [p.detach().numpy().copy() for p in net.parameters()]


def on_ranks(torch, size, normalisation, steps, way="auto", method="blocks", **options):
    import bitsparse.torch as bst

    matrix, x, labels = problem()
    nets = [None] * size

    def prepare(comm):
        part = D.partition(matrix, comm, method=method)
        graph = D.GraphShard(D.shard(matrix, part), normalisation, exchange=way)
        return part, [bst.ShardedSum(graph, **options) for _ in range(2)]

    group = D.local(size, timeout=60)
    prepared = group.run(prepare)
    nets = [network(torch, sums) for _, sums in prepared]

    def train(comm):
        part, sums = prepared[comm.rank]

        # The communicator of this run: the group's threads are others, the ranks the same.
        def reduce(parameter):
            total = np.ascontiguousarray(parameter.grad.numpy())
            comm.all_reduce(total)
            parameter.grad.copy_(torch.from_numpy(total / comm.size))

        mine = torch.tensor(part.take(x)), torch.tensor(part.take(labels))
        losses, weights = trained(torch, nets[comm.rank], *mine, comm.size / len(labels), steps, reduce)
        return losses, weights, [each.exchanged_bytes for each in sums], part

    made = group.run(train)
    return np.mean([losses for losses, *_ in made], axis=0), made[0][1], made


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("way", ["allgather", "halo"])
@pytest.mark.parametrize("normalisation", ["gcn", "mean", "sum"])
def test_floats_give_the_training_of_one_device(size, way, normalisation) -> None:
    import torch

    wanted, weights = one_device(torch, normalisation, 4)
    for method in ("blocks", "metis"):
        losses, mine, made = on_ranks(torch, size, normalisation, 4, way, method, bits=None)
        assert np.allclose(losses, wanted, rtol=1e-4)
        for one, other in zip(mine, weights, strict=True):
            assert np.allclose(one, other, rtol=1e-3, atol=1e-5)
        for _, others, *_ in made:
            assert all(np.array_equal(one, other) for one, other in zip(mine, others, strict=True))


@pytest.mark.parametrize("feedback", [False, True])
@SCALES
def test_eight_bits_train_nearly_as_floats_and_carry_packed_words(scales, feedback) -> None:
    import torch

    wanted, _ = one_device(torch, "gcn", 30)
    options = {"bits": 8, "scales": scales, "error_feedback": feedback}
    runs = [on_ranks(torch, 3, "gcn", 30, "halo", **options) for _ in range(2)]
    floats = on_ranks(torch, 3, "gcn", 30, "halo", bits=None)
    for losses, weights, _ in runs:
        assert abs(losses[-1] - wanted[-1]) < 0.02 * wanted[-1] and losses[-1] < 0.85 * losses[0]
        assert all(np.array_equal(one, other) for one, other in zip(weights, runs[0][1], strict=True))
    # A row of 8 or of 3 codes is one group of 16 bytes, with its scale too; a row of floats is 4 bytes a column.
    for (_, _, few, _), (_, _, many, _) in zip(runs[0][2], floats[2], strict=True):
        assert [count // 16 * 4 * columns for count, columns in zip(few, (8, 3), strict=True)] == many


@pytest.mark.parametrize(("bits", "times"), [(2, 16), (3, 8), (4, 8), (5, 4), (8, 4)])
@SCALES
def test_codes_travel_in_the_smallest_field(scales, bits, times) -> None:
    """Of 60 columns, so that a scale behind them fits into the last group of 16 bytes."""
    import torch

    import bitsparse.torch as bst

    matrix, _, _ = problem()

    def carried(comm, bits, columns):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part), "sum"), bits=bits, scales=scales)
        x = torch.ones((module.graph.nodes, columns), requires_grad=True)
        module(x).sum().backward()
        return module.exchanged_bytes

    few, many = (
        D.local(2).run(carried, *each) for each in ((bits, 64 - (32 // bits if scales == "row" else 0)), (None, 64))
    )
    assert [count * times for count in few] == many


@pytest.mark.parametrize("normalisation", ["sum", "mean", "gcn"])
@pytest.mark.parametrize("way", ["allgather", "halo"])
@SCALES
def test_bits_do_not_depend_on_the_number_of_ranks(scales, way, normalisation) -> None:
    """Neither those of sums nor those of gradients: rows are rounded by their position, and summed as a whole in one order."""
    import torch

    import bitsparse.torch as bst

    matrix, x, _ = problem()
    weights = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32)

    def step(comm, bits):
        part = D.partition(matrix, comm)
        graph = D.GraphShard(D.shard(matrix, part), normalisation, exchange=way)
        module = bst.ShardedSum(graph, bits=bits, scales=scales, seed=9)
        mine = torch.tensor(part.take(x), requires_grad=True)
        made = module(mine)
        made.backward(torch.tensor(part.take(weights)))
        return part.gather(made.detach().numpy()), part.gather(mine.grad.numpy())

    found = []
    for bits in (4, None):
        results = [D.local(size).run(step, bits)[0] for size in (1, 2, 3, 4)]
        for made in results[1:]:
            assert all(np.array_equal(one, other) for one, other in zip(made, results[0], strict=True))
        found.append(results[0])
    assert not any(np.allclose(one, other, atol=1e-3) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("way", ["allgather", "halo"])
@SCALES
def test_own_rows_are_rounded_where_those_of_the_others_come(scales, way, monkeypatch) -> None:
    """No rank's codes are written elsewhere first; 23 columns are two groups of 16 bytes, of which the last bytes are zero."""
    import bitsparse as bs
    import bitsparse.torch as bst
    from bitsparse.torch import distributed as module

    matrix, _, _ = problem()
    x = np.random.default_rng(1).standard_normal((43, 23)).astype(np.float32)
    how = {"granularity": "row" if scales == "row" else "tensor", "rounding": "stochastic", "seed": 3, "stream": 7}
    wanted = bs.quantize(x, 8, scheme="symmetric", layout="rows", **how)
    name, given = "drawn_rows" if scales == "row" else "drawn_codes", []
    drawn = getattr(module, name)

    def drawing(*arguments, out=None):
        given.append(arguments[-1] if out is None else out)
        return drawn(*arguments, **({} if out is None else {"out": out}))

    monkeypatch.setattr(module, name, drawing)

    def send(comm):
        part = D.partition(matrix, comm)
        sums = bst.ShardedSum(D.GraphShard(D.shard(matrix, part), "sum"), scales=scales, seed=3)
        exchange = sums.graph.shard.exchange(way)
        made, _ = sums.send(exchange, part.take(x), 7)
        asked = np.union1d(sums.graph.shard.columns, np.arange(43)[part.rows()])
        slots, codes = exchange.slots_of(asked), made.codes() if scales == "row" else made
        scale = (codes.scale[slots], wanted.scale[asked]) if scales == "row" else (codes.scale, wanted.scale)
        return made.words, (codes.words[slots], wanted.words[asked]), scale

    for words, codes, scale in D.local(3).run(send):
        assert np.array_equal(*codes) and np.array_equal(*scale)
        assert sum(np.shares_memory(words, out) for out in given) == 1


@pytest.mark.parametrize("way", ["allgather", "halo"])
@pytest.mark.parametrize("normalisation", ["sum", "mean", "gcn"])
@SCALES
def test_sums_and_gradients_are_those_of_the_codes(scales, way, normalisation) -> None:
    """With one scale, integers are summed exactly and scaled once: bits that no sum of dequantised values has, on any number of ranks."""
    import torch

    import bitsparse as bs
    import bitsparse.torch as bst
    from bitsparse import nn

    matrix, x, _ = problem()
    graph = nn.Graph(matrix, normalisation)
    whole = graph.matrix
    back = np.random.default_rng(4).standard_normal(x.shape).astype(np.float32)

    def coded(values, stream):
        how = {
            "granularity": "row" if scales == "row" else "tensor",
            "rounding": "stochastic",
            "seed": 5,
            "stream": stream,
        }
        return bs.quantize(values, 8, scheme="symmetric", layout="rows", **how)

    codes = coded(x, 1)
    wanted = ((whole != 0).astype(np.int64) @ codes.toarray().astype(np.int64)).astype(np.float32)
    if normalisation == "mean":
        wanted = wanted * graph.row_scale[:, None]
    wanted = wanted * codes.scale if scales == "all" else whole @ codes.dequantize()

    def sums(comm):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part), normalisation, exchange=way), scales=scales, seed=5)
        mine = torch.tensor(part.take(x), requires_grad=True)
        made = module(mine)
        made.backward(torch.tensor(part.take(back)))
        return part.gather(made.detach().numpy()), part.gather(mine.grad.numpy())

    for size in (1, 3):
        made, gradient = D.local(size).run(sums)[0]
        if scales == "row" or normalisation == "gcn":  # factors of columns are floats
            assert np.allclose(made, whole @ codes.dequantize(), rtol=1e-5, atol=1e-5)
        else:
            assert np.array_equal(made, wanted)
        assert np.allclose(gradient, whole.T @ coded(back, 1 << 31 | 1).dequantize(), rtol=1e-5, atol=1e-5)


@SCALES
def test_training_in_codes_makes_no_floats_of_the_rows_that_come(scales, monkeypatch) -> None:
    import torch

    import bitsparse as bs
    import bitsparse.torch as bst

    matrix, x, _ = problem()

    def no(*arguments):
        raise AssertionError("codes became floats")

    monkeypatch.setattr(bs.BitTensor, "dequantize", no)
    monkeypatch.setattr(bs.BitTensor, "toarray", no)

    def step(comm, normalisation):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part), normalisation), scales=scales)
        mine = torch.tensor(part.take(x), requires_grad=True)
        module(mine).sum().backward()
        return bool(torch.isfinite(mine.grad).all())

    assert all(all(D.local(2).run(step, each)) for each in ("gcn", "mean", "sum"))


def test_numbers_that_are_not_finite_are_named_on_every_rank() -> None:
    import torch

    import bitsparse.torch as bst

    matrix, x, _ = problem()
    raised = []

    def step(comm, value, backward):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part)), scales="all")
        mine = torch.tensor(part.take(x))
        bad = torch.zeros_like(mine)
        if comm.rank == 1:
            bad[-1, -1] = value
        try:
            if backward:
                module(mine.requires_grad_()).backward(bad)
            else:
                module(mine + bad)
        except ValueError as error:
            raised.append(str(error))

    for value in (float("nan"), float("inf"), -float("inf")):
        for backward in (False, True):
            raised.clear()
            D.local(3).run(step, value, backward)
            assert len(raised) == 3 and all("NaN or infinity" in text for text in raised)


def test_a_row_that_is_not_finite_makes_the_sums_of_its_neighbours_nan() -> None:
    import torch

    import bitsparse.torch as bst

    matrix, x, _ = problem()
    x[40, 2], other = np.inf, x.copy()

    def step(comm):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part), "sum"))
        mine = torch.tensor(part.take(other), requires_grad=True)
        made = module(mine)
        made.backward(torch.tensor(part.take(x)))
        return part.gather(made.detach().numpy()), part.gather(mine.grad.numpy())

    for made, gradient in D.local(3).run(step):
        assert np.array_equal(np.isnan(made).any(axis=1), matrix.toarray()[:, 40] != 0)
        assert np.array_equal(np.isnan(gradient).any(axis=1), matrix.toarray()[40] != 0)


def test_calls_are_counted_and_can_be_set() -> None:
    """A run that is repeated from its middle draws the same bits."""
    import torch

    import bitsparse.torch as bst

    matrix, x, _ = problem()

    def run(comm):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part)), bits=4)
        made = [module(torch.tensor(part.take(x))) for _ in range(3)]
        assert module.calls == 3 and not torch.equal(made[1], made[2])
        module.calls = 1
        assert torch.equal(module(torch.tensor(part.take(x))), made[1]) and module.calls == 2
        with pytest.raises(ValueError, match="calls"):
            module.calls = -1
        return True

    assert all(D.local(2).run(run))


def test_the_host_looks_at_the_range_once_the_exchange_is_enqueued(monkeypatch) -> None:
    import bitsparse.torch as bst
    from bitsparse.interop.transfers import Download

    matrix, x, _ = problem()
    wait = Download.wait

    def calls(comm):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part), "sum", exchange="halo"), scales="all")
        mine, carry, done = part.take(x), comm.all_to_all_v, []
        module.sums(mine, 1)  # what is made once
        module.gradient(mine, 1)

        def carried(*arguments, **options):
            done.append("exchange")
            carry(*arguments, **options)

        comm.all_to_all_v = carried
        monkeypatch.setattr(Download, "wait", lambda self: (done.append("look"), wait(self))[1])
        module.sums(mine, 2)
        module.gradient(mine, 2)
        return done

    assert D.local(1).run(calls) == [["exchange", "look", "exchange", "look"]]


@pytest.mark.parametrize("normalisation", ["sum", "gcn"])
@SCALES
def test_error_feedback_returns_what_rounding_lost(scales, normalisation) -> None:
    import torch

    import bitsparse.torch as bst
    from bitsparse import nn

    matrix, x, _ = problem()

    def totals(comm, feedback):
        part = D.partition(matrix, comm)
        graph = D.GraphShard(D.shard(matrix, part), normalisation)
        module = bst.ShardedSum(graph, bits=2, scales=scales, seed=1, error_feedback=feedback)
        mine = torch.zeros((part.take(x).shape[0], 6), requires_grad=True)
        sent = torch.tensor(part.take(x))
        for _ in range(120):
            (module(mine) * sent).sum().backward()
        return part.gather(mine.grad.numpy() / 120)

    exact = nn.Graph(matrix, normalisation).matrix.T @ x
    kept, lost = (np.abs(D.local(2).run(totals, feedback)[0] - exact).mean() for feedback in (True, False))
    assert kept < 0.6 * lost


def test_arguments_and_numbers_are_checked() -> None:
    import torch

    import bitsparse.torch as bst

    matrix, x, _ = problem()

    def call(comm, work):
        part = D.partition(matrix, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(matrix, part)))
        assert repr(module).startswith("ShardedSum(")
        return work(module, torch.tensor(part.take(x)))

    for work, error, text in (
        (lambda m, x: m(x[:-1]), ShapeError, "pass \\(rows, D\\)"),
        (lambda m, x: m(x.double()), DTypeError, "x.float"),
        (lambda m, x: bst.ShardedSum(m.graph, scales="column"), ValueError, "scales"),
        (lambda m, x: bst.ShardedSum(m), DTypeError, "GraphShard"),
        (lambda m, x: bst.ShardedSum(m.graph, bits=1), ValueError, "bits"),
    ):
        with pytest.raises(error, match=text):
            D.local(2).run(call, work)
