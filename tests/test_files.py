"""Files are written completely or not at all, and never through links."""

from __future__ import annotations

import os
import stat
import zipfile

import numpy as np
import pytest

import bitsparse as bs
from bitsparse import _files, nn
from bitsparse.datasets import GraphData


def test_a_block_that_raises_leaves_the_target_and_nothing_else(tmp_path):
    target = tmp_path / "kept"
    target.write_bytes(b"old")

    def interrupted():
        with _files.replacing(target) as stream:
            stream.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]


def test_a_link_is_replaced_and_its_target_kept(tmp_path):
    other, link = tmp_path / "other", tmp_path / "link"
    other.write_bytes(b"other")
    link.symlink_to(other)
    with _files.replacing(link) as stream:
        stream.write(b"mine")
    assert other.read_bytes() == b"other"
    assert not link.is_symlink()
    assert link.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["fifo", "folder", "link to a fifo"])
def test_what_is_no_plain_file_is_not_replaced(tmp_path, kind):
    target = tmp_path / "it"
    if kind == "folder":
        target.mkdir()
    else:
        os.mkfifo(target)
    if "link" in kind:
        link = tmp_path / "link"
        link.symlink_to(target)
        target = link
    with pytest.raises(OSError, match="not a plain file"), _files.replacing(target):
        pytest.fail("the block ran")
    with pytest.raises(OSError, match=r"plain|folder|link|directory|levels"):
        _files.open_plain(target)


def test_what_cannot_be_made_is_told_by_its_own_name(tmp_path):
    (tmp_path / "file").touch()
    for target in (tmp_path / "missing" / "answer.npz", tmp_path / "file" / "answer.npz"):
        with pytest.raises(OSError, match=r"answer\.npz'$"), _files.replacing(target):
            pass


def test_new_files_are_never_opened_through_links(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        _files.open_new(link)
    with pytest.raises(OSError, match="link"):
        _files.open_plain(link)
    assert os.listdir(tmp_path) == ["link"]


def test_permissions_follow_the_umask_and_the_file_that_is_replaced(tmp_path):
    target = tmp_path / "it"
    before = os.umask(0o027)
    try:
        for mode in (0o640, 0o600):
            with _files.replacing(target) as stream:
                stream.write(b"x")
            assert stat.S_IMODE(target.stat().st_mode) == mode
            target.chmod(0o600)
    finally:
        os.umask(before)


def test_an_open_plain_file_can_be_changed_and_published(tmp_path):
    name, target = tmp_path / "unfinished", tmp_path / "target"
    with _files.open_new(name) as stream:
        stream.write(b"abc")
    stream = _files.open_plain(name, write=True)
    stream.seek(1)
    stream.write(b"X")
    _files.publish(stream, name, target)
    assert target.read_bytes() == b"aXc"
    assert os.listdir(tmp_path) == ["target"]


# NumPy 2.0 leaves the archive open when numpy.savez is interrupted, and Python complains once the archive is collected.
@pytest.mark.filterwarnings("ignore:.*ZipFile.__del__:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ["array", "graph", "network", "low-bit network", "binary network"])
def test_an_interruption_while_something_is_saved_keeps_the_file_that_was_there(tmp_path, monkeypatch, what):
    graph, x = np.eye(4), np.arange(12.0).reshape(4, 3)
    network = nn.random_network("gcn", [3, 2])
    save = {
        "array": lambda path: bs.save_npz(path, bs.TCTiledCSR(graph)),
        "graph": GraphData(indptr=np.arange(5), indices=np.arange(4), x=x).save,
        "network": network.save,
        "low-bit network": nn.quantize_network(network, bs.FRDC(graph), x, 4).save,
        "binary network": nn.BinaryGCN([nn.BinaryLinear.from_weights(np.ones((2, 3)))]).save,
    }[what]
    path = tmp_path / "kept.npz"
    save(path)
    before, opened, written = path.read_bytes(), zipfile.ZipFile.open, []

    def interrupted(self, name, mode="r", **options):
        written.append(name)
        if len(written) > 1:
            raise KeyboardInterrupt
        return opened(self, name, mode, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["kept.npz"]


@pytest.mark.parametrize("name", ["made", "made.npz", "made.other"])
def test_arrays_are_saved_under_numpy_s_names(tmp_path, name):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    bs.save_npz(ours / name, bs.TCTiledCSR(np.eye(2)))
    np.savez(theirs / name, x=np.ones(1))
    assert os.listdir(ours) == os.listdir(theirs)
