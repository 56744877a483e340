"""Cubins are loaded only from folders where nobody else can have put them, and only unchanged since their compilation."""

from __future__ import annotations

import os
import stat
import warnings
from types import SimpleNamespace

import pytest

from bitsparse import _files
from bitsparse.errors import KernelError
from bitsparse.jit import cubins as cache

ROOT = pytest.mark.skipif(os.name != "posix", reason="folders have owners and modes on POSIX systems alone")
pytestmark = ROOT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a cache in a fresh folder, with a compiler that records its calls."""
    calls = []

    def run(nvrtc, source, texts, options):
        calls.append(source)
        return b"cubin %d" % len(calls), "log"

    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_nvrtc", lambda: (None, (13, 0)))
    monkeypatch.setattr(cache, "_run_nvrtc", run)
    return SimpleNamespace(path=tmp_path / "cache", calls=calls)


def compiled(arch: str = "sm_80"):
    return cache.compile_kernel("bits/stats.cu", {}, arch)


def test_a_kernel_is_compiled_once_and_its_folder_is_ours_alone(folder):
    path, log = compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled() == (path, log) == (path, "log")
    assert folder.calls == ["bits/stats.cu"]
    for each, mode in ((path, 0o600), (path.parent, 0o700), (folder.path, 0o700)):
        assert stat.S_IMODE(each.stat().st_mode) == mode


def log_of(path):
    (found,) = path.parent.glob(f"{path.stem}.*.log")
    return found


def changed(path):
    path.write_bytes(b"something else")


def exchanged(path):
    """Replace a cubin and its log by those of another kernel of ours."""
    other, _ = cache.compile_kernel("bits/stats.cu", {"X": 1}, "sm_80")
    os.replace(log_of(other), path.with_suffix(log_of(other).suffixes[-2] + ".log"))
    os.replace(other, path)


def linked(path):
    path.rename(path.with_name("aside"))
    path.symlink_to(path.with_name("aside"))


def writable(path):
    path.chmod(0o622)


def writable_log(path):
    log_of(path).chmod(0o662)


def without_log(path):
    log_of(path).unlink()


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)
    path.chmod(0o600)


@pytest.mark.parametrize("harm", [changed, exchanged, linked, writable, writable_log, without_log])
def test_what_is_not_as_it_was_compiled_is_compiled_anew(folder, harm):
    path, _ = compiled()
    harm(path)
    before = len(folder.calls)
    with pytest.warns(RuntimeWarning, match=r"bitsparse\.jit: the kernel .* is compiled anew: "):
        again, log = compiled()
    assert (again, log, len(folder.calls)) == (path, "log", before + 1)
    assert path.read_bytes() == b"cubin %d" % len(folder.calls)
    assert not path.is_symlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled()
    assert len(folder.calls) == before + 1


def test_two_compilers_at_once_cannot_mix_their_files(folder, monkeypatch):
    """Each has made another cubin, and they write in turns: the last cubin has its own log."""
    write = cache._write

    def written(path, content):
        write(path, content)
        monkeypatch.setattr(cache, "_write", write)
        compiled()

    monkeypatch.setattr(cache, "_write", written)
    path, _ = compiled()
    assert len(folder.calls) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled() == (path, "log")
    assert len(folder.calls) == 2


def test_a_pipe_in_place_of_a_kernel_is_refused(folder):
    path, _ = compiled()
    a_pipe(path)
    with pytest.warns(RuntimeWarning, match="not a plain file"), pytest.raises(KernelError, match="cannot write"):
        compiled()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o2775])
@pytest.mark.parametrize("inner", [False, True])
def test_folders_that_others_may_write_to_are_refused(folder, mode, inner):
    path, _ = compiled()
    (path.parent if inner else folder.path).chmod(mode)
    with pytest.raises(
        KernelError, match=r"not loaded from .* others may write to it .* chmod go-w .* set BITSPARSE_CACHE_DIR"
    ):
        compiled()


def test_a_sticky_folder_may_hold_folders_of_ours(folder):
    folder.path.mkdir()
    folder.path.chmod(0o1777)
    path, _ = compiled()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def status(uid: int, mode: int):
    return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("ours", [0, 1000])
def test_only_the_user_and_root_are_trusted(monkeypatch, ours):
    """Root in a container must not trust folders of the host's users; a user must trust what root put into the image."""
    monkeypatch.setattr(os, "geteuid", lambda: ours)
    assert _files.distrust(status(ours, stat.S_IFDIR | 0o755)) is None
    assert _files.distrust(status(0, stat.S_IFREG | 0o644)) is None
    assert "belongs to the user with number 1001" in (_files.distrust(status(1001, stat.S_IFDIR | 0o700)) or "")
    assert (_files.distrust(status(1000, stat.S_IFREG | 0o600)) is None) == (ours == 1000)
    assert "others may write" in (_files.distrust(status(ours, stat.S_IFREG | stat.S_ISVTX | 0o666)) or "")
    assert _files.distrust(status(0, stat.S_IFDIR | stat.S_ISVTX | 0o777)) is None


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    compiled()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    if os.getuid():
        with pytest.raises(KernelError, match="belongs to the user with number"):
            compiled()
    else:  # everybody trusts what root made
        compiled()
