"""Ranks that are processes, connected by gloo of torch.distributed or by MPI. Each of them runs distributed_ranks.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("distributed_ranks.py")


def environment(**more):
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    return kept | {"BITSPARSE_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | more


def gloo(size, what, folder, timeout=60.0):
    """Exit status and output of every rank."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "gloo", what],
            env=environment(
                RANK=str(rank), WORLD_SIZE=str(size), RANKS_STORE=str(folder / "store"), RANKS_TIMEOUT=str(timeout)
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )
        for rank in range(size)
    ]
    try:
        return [(rank.communicate(timeout=240)[0], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.torch
@pytest.mark.parametrize(("size", "what"), [(2, "products"), (3, "products"), (3, "mismatch")])
def test_ranks_on_gloo(size, what, tmp_path) -> None:
    for rank, (said, status) in enumerate(gloo(size, what, tmp_path)):
        assert status == 0, said
        assert f"rank {rank} of {size}: {what} holds" in said


@pytest.mark.torch
def test_a_killed_rank_is_heard_of_on_gloo(tmp_path) -> None:
    *others, (_, killed) = gloo(3, "lost", tmp_path, timeout=20.0)
    assert killed == -9
    for said, status in others:
        assert status == 0, said
        assert "told:" in said and "lost the others (gloo" in said


@pytest.mark.torch
def test_nobody_waits_longer_than_the_group_says_on_gloo(tmp_path) -> None:
    for said, status in gloo(2, "late", tmp_path, timeout=4.0):
        assert status == 0, said


@pytest.mark.torch
def test_a_group_that_does_not_fit_is_refused() -> None:
    from bitsparse import distributed

    with pytest.raises(RuntimeError, match="no process group"):
        distributed.from_torch()


def mpi(size, what, folder, timeout=60.0):
    command = [str(shutil.which("mpiexec")), "-n", str(size), sys.executable, str(SCRIPT), "mpi", what]
    return subprocess.run(
        command,
        env=environment(RANKS_TIMEOUT=str(timeout)),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=240,
        check=False,
    )


@pytest.mark.mpi
@pytest.mark.parametrize(("size", "what"), [(1, "products"), (3, "products"), (3, "mismatch")])
def test_ranks_on_mpi(size, what, tmp_path) -> None:
    done = mpi(size, what, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"of {size}: {what} holds") == size


@pytest.mark.mpi
def test_nobody_waits_longer_than_asked_for_on_mpi(tmp_path) -> None:
    done = mpi(2, "late", tmp_path, timeout=3.0)
    assert "told: all_gather: rank 0 of 2 has waited 3 s" in done.stdout, done.stdout + done.stderr


@pytest.mark.mpi
def test_a_killed_rank_ends_the_job_on_mpi(tmp_path) -> None:
    """After a rank was killed, either MPI must end all others, or the others must raise an error before."""
    done = mpi(3, "lost", tmp_path, timeout=10.0)
    assert done.returncode != 0 or "told:" in done.stdout
    assert "DID NOT RAISE" not in done.stdout + done.stderr
