"""Logits of a ClusterRunner in a file: one run at a time, runs killed at any line, damaged and foreign files, and symbolic links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import bitsparse as bs
from bitsparse import nn
from bitsparse.errors import FileFormatError, LockError
from bitsparse.nn.cluster.journal import run_key
from bitsparse.nn.cluster.lock import RunLock

NODES = 40


@cache
def parts() -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """A graph, a network, features, and the network's logits in batches."""
    rng = np.random.default_rng(0)
    a = sparse.csr_array(rng.random((NODES, NODES)) < 0.2)
    x = rng.normal(size=(NODES, 6)).astype(np.float32)
    model = nn.quantize_network(nn.random_network("gcn", [6, 4, 3], seed=1), a, x, 4)
    return a, model, x, runner(a, model).run(x)


def runner(a: Any = None, model: Any = None, **options: Any) -> nn.ClusterRunner:
    """A runner with ten groups of four nodes each."""
    if a is None:
        a, model, _, _ = parts()
    return nn.ClusterRunner(
        a, model, **{"labels": np.arange(NODES) % 10, "parts_per_batch": 1, "group_nodes": 1, **options}
    )


class StopError(Exception):
    """Raised to end a run early."""


def stopped(path: Path, groups: int = 4) -> None:
    """Leave the files of a run that ends after ``groups`` groups."""

    def stop(done: int, _: int) -> None:
        if done == groups:
            raise StopError

    with pytest.raises(StopError):
        runner(progress=stop).run(parts()[2], path, resume=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# -- one run at a time ------------------------------------------------------------------------------------------------
CHILD = """
import sys
sys.path.insert(0, {tests!r})
import test_cluster_files as t

def wait(done, groups):
    if done == 1:
        print("running", flush=True)
        sys.stdin.readline()

t.runner(progress=wait).run(t.parts()[2], {path!r}, resume={resume})
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    """``other(path, resume)`` starts another process, which begins to write to a path and then waits for a line of input."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, resume: bool) -> subprocess.Popen[str]:
        text = CHILD.format(tests=str(Path(__file__).parent), path=str(path), resume=resume)
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout is not None and child.stdout.readline() == "running\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_process_is_told_who_writes_to_the_path(tmp_path: Path, other: Any, resume: bool) -> None:
    x, expected = parts()[2:]
    path = tmp_path / "y.npy"
    child = other(path, resume)
    before = contents(tmp_path)
    for again in (False, True):
        with pytest.raises(LockError, match=rf"is being written by process {child.pid} on '.*', since .*; wait until"):
            runner().run(x, path, resume=again)
    assert contents(tmp_path) == before
    child.communicate("go on\n")
    assert child.returncode == 0 and [file.name for file in tmp_path.iterdir()] == ["y.npy"]
    assert np.array_equal(np.load(path), expected)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, other: Any) -> None:
    x, expected = parts()[2:]
    path = tmp_path / "y.npy"
    child = other(path, True)
    child.kill()
    child.wait()
    assert (tmp_path / "y.npy.lock").exists()
    ours = runner()
    assert np.array_equal(ours.run(x, path, resume=True), expected) and ours.report.resumed == 1
    assert [file.name for file in tmp_path.iterdir()] == ["y.npy"]


def test_a_second_run_of_one_process_is_refused(tmp_path: Path) -> None:
    x, expected = parts()[2:]
    path, told = tmp_path / "y.npy", []

    def second(done: int, _: int) -> None:
        if done == 2:
            with pytest.raises(LockError, match=f"process {os.getpid()} on"):
                runner().run(x, path)
            told.append(done)

    assert np.array_equal(runner(progress=second).run(x, path), expected) and told == [2]


def test_a_system_without_such_locks_is_told_before_a_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(LockError, match=r"^run: this system has no file locks"):
        RunLock("run", tmp_path / "y")
    assert not list(tmp_path.iterdir())


def test_a_lock_outlives_its_copies_in_forked_children(tmp_path: Path) -> None:
    text = """
        import os, sys, warnings
        from pathlib import Path
        from bitsparse.errors import LockError
        from bitsparse.nn.cluster.lock import RunLock

        warnings.simplefilter("ignore")
        path = Path(sys.argv[1])
        lock = RunLock("first", path)
        if not (child := os.fork()):
            lock.release()
            os._exit(0)
        os.waitpid(child, 0)
        try:
            RunLock("second", path)
        except LockError:
            print("held")
        pipe, told = os.pipe()
        if not (child := os.fork()):  # it keeps its copy open
            os.read(pipe, 1)
            os._exit(0)
        lock.release()
        RunLock("third", path).release()
        os.write(told, b".")
        os.waitpid(child, 0)
        print("free")
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(text), str(tmp_path / "y")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "held\nfree\n" and not list(tmp_path.iterdir())


def test_locks_of_others_are_left_alone(tmp_path: Path) -> None:
    name, target = tmp_path / "y.lock", tmp_path / "precious"
    for text in (b"not ours", b'{"bitsparse": 1}', b"[" * 3000, b'{"bitsparse": "run"}'):
        name.write_bytes(text)
        with pytest.raises(LockError, match=r"is no lock of bitsparse's; move it away"):
            RunLock("f", tmp_path / "y")
        assert name.read_bytes() == text
    name.unlink()
    target.write_bytes(b"precious")
    name.symlink_to(target)
    with pytest.raises(LockError, match="is not a plain file"):
        RunLock("f", tmp_path / "y")
    name.unlink()
    name.mkdir()
    with pytest.raises(LockError, match="is not a plain file"):
        RunLock("f", tmp_path / "y")
    name.rmdir()
    os.mkfifo(name)
    with pytest.raises(LockError, match="is not a plain file"):
        RunLock("f", tmp_path / "y")
    assert target.read_bytes() == b"precious"


# -- killed at any moment ---------------------------------------------------------------------------------------------
KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import numpy as np
import bitsparse as bs
import test_cluster_files as t

bs.set_num_threads(1)
expected, x, folder = t.parts()[3], t.parts()[2], Path(sys.argv[1])
FILES = ("cluster/journal.py", "cluster/lock.py", "_files.py")

def forked(work):
    if not (child := os.fork()):
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]

def killed_at(count, path, resume):
    def work():
        left = count
        def step(frame, event, argument):
            nonlocal left
            if not frame.f_code.co_filename.endswith(FILES):
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return step
        sys.settrace(step)
        t.runner().run(x, path, resume=resume)
    return forked(work)

def whole(path):
    def work():
        assert np.array_equal(t.runner().run(x, path, resume=True), expected)
    assert forked(work) == 0

points = 0
for resume in (True, False):
    count, ended = 1, signal.SIGKILL
    while ended:
        path = folder / f"{{resume}}{{count}}.npy"
        ended = killed_at(count, path, resume)
        if path.exists():
            assert np.array_equal(np.load(path), expected), count
        killed_at(count // 3, path, True)  # and once more on the way
        whole(path)
        points, count = points + 1, count + {step}
        for file in folder.iterdir():
            if resume:  # but for a journal that was being written: a few bytes under a name of its own
                assert file == path or (file.name.startswith(".") and ".journal." in file.name), file
            file.unlink()
print(points)
"""


def test_a_run_killed_at_any_line_goes_on_to_the_right_logits(tmp_path: Path) -> None:
    text = KILLED.format(tests=str(Path(__file__).parent), step=7)
    command = [sys.executable, "-P", "-W", "ignore", "-c", text, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60


# -- damaged and foreign files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", ["half", "a byte", "empty"])
def test_rows_that_were_cut_off_are_noticed(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "y.npy"
    stopped(path)
    rows = tmp_path / "y.npy.partial"
    size = rows.stat().st_size
    os.truncate(rows, {"half": size // 2, "a byte": size - 1, "empty": 0}[cut])
    before = contents(tmp_path)
    with pytest.raises(
        FileFormatError, match=rf"{len(before['y.npy.partial'])} bytes, .* in {size} bytes; delete both"
    ):
        runner().run(parts()[2], path, resume=True)
    assert contents(tmp_path) == before


def test_rows_of_another_run_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    stopped(path)
    rows = np.lib.format.open_memmap(tmp_path / "y.npy.partial", "r+")
    rows[parts()[0].shape[0] - 10] += 1  # a row of the first group
    rows.flush()
    before = contents(tmp_path)
    with pytest.raises(FileFormatError, match=r"rows of group 0 in .* are not those that 'y\.npy\.journal' notes"):
        runner().run(parts()[2], path, resume=True)
    assert contents(tmp_path) == before


@cache
def interrupted() -> tuple[bytes, bytes]:
    """Journal and rows of a run that ended early."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        stopped(Path(folder, "y.npy"))
        found = contents(Path(folder))
        return found["y.npy.journal"], found["y.npy.partial"]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some replaced, removed or inserted."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(made) - 1, 0)))
        how = draw(st.sampled_from(["flip", "cut", "leave out", "put in", "digit"]))
        if how == "flip" and made:
            made[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "digit" and made:
            made[at] = ord(draw(st.sampled_from("0123456789abcdef")))
        elif how == "cut":
            del made[at:]
        elif how == "leave out":
            del made[at : at + draw(st.integers(1, 80))]
        else:
            made[at:at] = draw(st.binary(max_size=40) | st.just(bytes(made[:60])))
    return bytes(made)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["journal", "partial", "both"]))
def test_damage_is_named_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, which: str) -> None:
    journal, rows = interrupted()
    folder = tmp_path_factory.mktemp("damage")
    path, x, expected = folder / "y.npy", *parts()[2:]
    if which != "partial":
        journal = data.draw(damaged(journal))
    if which != "journal":
        rows = data.draw(damaged(rows))
    (folder / "y.npy.journal").write_bytes(journal)
    (folder / "y.npy.partial").write_bytes(rows)
    found, error = None, ""
    try:
        found = runner().run(x, path, resume=True)
    except (FileFormatError, ValueError) as refusal:
        error = str(refusal)
    if found is None:
        assert "delete" in error and "y.npy.journal" in error
        assert contents(folder) == {"y.npy.journal": journal, "y.npy.partial": rows}
    else:
        assert np.array_equal(found, expected) and [file.name for file in folder.iterdir()] == ["y.npy"]


def test_a_journal_without_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    stopped(path)
    with open(tmp_path / "y.npy.journal", "ab") as stream:
        stream.truncate(1 << 40)  # a sparse file, which takes no space on the disk
    with pytest.raises(FileFormatError, match="it has more than "):
        runner().run(parts()[2], path, resume=True)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    x, expected = parts()[2:]
    path, target = tmp_path / "y.npy", tmp_path / "precious"
    target.write_bytes(b"precious")
    for name, error in (("y.npy.partial", FileExistsError), ("y.npy.journal", OSError)):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(error, match="move it away"):
            runner().run(x, path, resume=True)
        assert np.array_equal(runner().run(x, path), expected)  # without resume=True, a run does not use these names
        assert (tmp_path / name).is_symlink()
        (tmp_path / name).unlink()
        path.unlink()
    for name, wrong in (("y.npy.partial", FileExistsError), ("y.npy.journal", FileFormatError)):
        (tmp_path / name).write_bytes(b"mine")
        with pytest.raises(wrong, match=r"move it away|names no run"):
            runner().run(x, path, resume=True)
        runner().run(x, path)
        assert (tmp_path / name).read_bytes() == b"mine"
        (tmp_path / name).unlink()
        path.unlink()
    path.symlink_to(target)  # the result replaces the link, not its target
    assert np.array_equal(runner().run(x, path), expected) and not path.is_symlink()
    assert target.read_bytes() == b"precious"
    assert sorted(contents(tmp_path)) == ["precious", "y.npy"]


def test_what_a_run_that_goes_on_has_left_is_deleted_by_one_that_does_not(tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    stopped(path)
    assert np.array_equal(runner().run(parts()[2], path), parts()[3])
    assert list(contents(tmp_path)) == ["y.npy"]


def test_a_full_disk_is_an_error_before_rows_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for resume in (False, True):
        with pytest.raises(OSError, match="No space left"):
            runner().run(parts()[2], tmp_path / "y.npy", resume=resume)
    monkeypatch.undo()
    assert np.array_equal(runner().run(parts()[2], tmp_path / "y.npy", resume=True), parts()[3])
    assert list(contents(tmp_path)) == ["y.npy"]


def test_no_nodes(tmp_path: Path) -> None:
    _, model, x, _ = parts()
    empty = nn.ClusterRunner(sparse.csr_array((0, 0), dtype=bool), model, labels=np.zeros(0, int))
    for resume in (False, True):
        assert empty.run(x[:0], tmp_path / "y.npy", resume=resume).shape == (0, 3)
    assert np.load(tmp_path / "y.npy").shape == (0, 3)


# -- whose journal it is ----------------------------------------------------------------------------------------------
def key_of(one: Any, x: Any) -> str:
    return run_key(one._graph, one.packets, one.model, x)


def test_the_order_of_the_nodes_counts_for_a_journal() -> None:
    """If parts of the same sizes hold other nodes, the key of a run must differ."""
    _, _, x, _ = parts()
    one, two = runner(), runner(labels=np.arange(NODES) // 4)
    assert np.array_equal(one.packets.blocks, two.packets.blocks)
    assert key_of(one, x) != key_of(two, x)
    assert key_of(one, x) == key_of(runner(), x)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_every_array_and_setting_of_a_network_counts_for_its_fingerprint(kind: Any) -> None:
    rng = np.random.default_rng(1)
    a, x = sparse.csr_array(rng.random((30, 30)) < 0.2), rng.normal(size=(30, 5)).astype(np.float32)
    model = nn.quantize_network(nn.random_network(kind, [5, 4, 3], seed=2, batch_norm=True), a, x, 4)
    assert (
        model.fingerprint()
        == nn.quantize_network(nn.random_network(kind, [5, 4, 3], seed=2, batch_norm=True), a, x, 4).fingerprint()
    )
    seen = {model.fingerprint()}
    arrays = [step.weights.words for step in model.steps if hasattr(step, "weights")]
    arrays += list(model._vectors())
    for array in arrays:
        view = array.view(np.uint32).reshape(-1)
        view[0] ^= 1
        seen.add(model.fingerprint())
        view[0] ^= 1
    assert len(seen) == 1 + len(arrays)


def test_journals_are_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    stopped(path)
    lines = [json.loads(line) for line in (tmp_path / "y.npy.journal").read_text().splitlines()]
    assert lines[0]["bitsparse"] == "journal 1" and [line["group"] for line in lines[1:]] == [0, 1, 2, 3]
    assert bs.LockError is LockError


def test_a_refused_journal_keeps_its_cut_off_line(tmp_path: Path) -> None:
    journal, rows = interrupted()
    first, second, third = journal.splitlines(keepends=True)[:3]
    damaged_journal = first + second.replace(b'"rows": "', b'"rows": "0', 1)[:-4] + b'"}\n' + third + b'{"gro'
    (tmp_path / "y.npy.journal").write_bytes(damaged_journal)
    (tmp_path / "y.npy.partial").write_bytes(rows)
    with pytest.raises(FileFormatError, match=r"y\.npy\.journal"):
        runner().run(parts()[2], tmp_path / "y.npy", resume=True)
    assert contents(tmp_path) == {"y.npy.journal": damaged_journal, "y.npy.partial": rows}
