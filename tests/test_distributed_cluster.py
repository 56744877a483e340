"""Ranks that share a run over batches give the logits of one runner, in arrays and in one file, also when they continue a run."""

from __future__ import annotations

from pathlib import Path

import lowbit_networks
import numpy as np
import pytest

from bitsparse import distributed as D
from bitsparse import nn
from bitsparse.errors import CommunicationError


def problem():
    rng = np.random.default_rng(11)
    pattern, x = lowbit_networks.random_graph(90, rng), rng.standard_normal((90, 10)).astype(np.float32)
    model = nn.quantize_network(nn.random_network("gcn", [10, 8, 3]), pattern, x, 8)
    return pattern, model, x, rng.integers(0, 13, 90)


def runner(comm, **options):
    pattern, model, _, labels = problem()
    given = {"labels": labels, "parts_per_batch": 1, "group_nodes": 12} | options
    return nn.ClusterRunner(pattern, model, comm=comm, **given)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_runs_its_batches(size) -> None:
    x = problem()[2]
    wanted = runner(None).run(x)

    def work(comm):
        mine = runner(comm)
        made = mine.run(x)
        assert np.array_equal(made[mine.mine], wanted[mine.mine])
        others = np.setdiff1d(np.arange(90), mine.mine)
        assert not made[others].any()
        packed = mine.pack(x)
        again = mine.run_packed(mine.pack(x, into=packed))
        assert np.array_equal(again, made)
        assert np.array_equal(mine.share(made), wanted)
        return mine.mine

    nodes = D.local(size).run(work)
    assert np.array_equal(np.sort(np.concatenate(nodes)), np.arange(90))
    assert max(map(len, nodes)) < 90 / size + 24


@pytest.mark.parametrize("resume", [False, True])
def test_all_ranks_write_one_file(resume, tmp_path) -> None:
    x = problem()[2]
    wanted, path = runner(None).run(x), tmp_path / "out.npy"
    for made in D.local(3).run(lambda comm: runner(comm).run(x, path, resume=resume)):
        assert np.array_equal(made, wanted)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.npy"] or not [
        file for file in tmp_path.iterdir() if not file.name.endswith((".npy", ".lock"))
    ]


@pytest.mark.parametrize("later", [1, 2, 4])
def test_a_run_goes_on_where_ranks_ended(later, tmp_path) -> None:
    x = problem()[2]
    wanted, path = runner(None).run(x), tmp_path / "out.npy"

    class Ended(Exception):
        pass

    def end(comm):
        def stop(done, groups):
            if done == 2:
                raise Ended

        runner(comm, progress=stop).run(x, path, resume=True)

    with pytest.raises(Ended):
        D.local(3).run(end)
    assert not path.exists()
    noted = Path(f"{path}.journal").read_text("utf-8").splitlines()
    assert 2 <= len(noted) - 1 <= 6

    def go_on(comm):
        mine = runner(comm)
        made = mine.run(x, path, resume=True)
        return mine.report.resumed, np.array(made)

    for resumed, made in D.local(later).run(go_on):
        assert resumed == len(noted) - 1 and np.array_equal(made, wanted)


def test_parts_are_cut_once_and_runners_agree(tmp_path) -> None:
    x = problem()[2]

    def work(comm):
        mine = runner(comm, labels=None, parts=9, cache=comm.rank == 0 and tmp_path)
        return mine.share(mine.run(x))

    wanted = runner(None, labels=None, parts=9, cache=False).run(x)
    assert all(np.array_equal(made, wanted) for made in D.local(3).run(work))
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(CommunicationError, match="hash of the parts"):
        D.local(2).run(lambda comm: runner(comm, labels=np.arange(90) // (10 + comm.rank)))
    with pytest.raises(CommunicationError, match="resume is"):
        D.local(2).run(lambda comm: runner(comm).run(x, tmp_path / "x.npy", resume=comm.rank == 0))
