"""Ctrl-C must end a command with one plain line and status 130, wherever the command is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bitsparse.cli import interrupt
from bitsparse.datasets import synthetic
from bitsparse.graph import parts

#: Timeout in seconds for a command that should end within one: machines may be slow, and the interrupted work would take hours.
_GENEROUS = 40
#: Native code that runs for hours and ignores every signal.
_ENDLESS = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="interruptions are sent as POSIX signals")


#: Restores the handler: a suite that a script starts in the background ignores interruptions, and its child processes inherit that.
_HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
_IMPORTS = "import sys\nfrom bitsparse import cli\nfrom bitsparse.cli import run\n"


def interrupted(script: str, folder: Path, imports: str = _IMPORTS) -> tuple[int, str]:
    """Interrupt a script after it has printed "ready", and return its status and stderr."""
    code = _HEARS + imports + script
    environment = os.environ | {"BITSPARSE_CACHE_DIR": str(folder / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=_GENEROUS)
            time.sleep(0.5)  # reach the middle of the work that follows
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=_GENEROUS)
        finally:
            process.kill()
    return process.returncode, said


@pytest.mark.parametrize(
    "work",
    [
        "while True: pass",
        "import time; time.sleep(3600)",
        _ENDLESS,
        "import time\n    try: time.sleep(3600)\n    finally: time.sleep(3600)",
    ],
    ids=["python", "waiting", "native", "cleaning up"],
)
def test_an_interruption_ends_a_command(tmp_path: Path, work: str) -> None:
    script = f"def work(args):\n    print('ready', flush=True)\n    {work}\nrun.run = work\nsys.exit(cli.main(['run']))"
    assert interrupted(script, tmp_path) == (130, "bitsparse run: interrupted\n")


@pytest.mark.parametrize("arguments", [[], ["info"]])
def test_an_interruption_while_the_library_is_imported(tmp_path: Path, arguments: list[str]) -> None:
    """The installed script must end even while it imports a library that never finishes and swallows the interruption."""
    script = (
        "import sys, time\n"
        "class Endless:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'bitsparse':\n"
        "            print('ready', flush=True)\n"
        "            try: time.sleep(3600)\n"
        "            except KeyboardInterrupt: time.sleep(3600)\n"
        "sys.meta_path.insert(0, Endless)\n"
        f"sys.argv = {['bitsparse', *arguments]!r}\n"
        "import _bitsparse_command\n"
        "_bitsparse_command.main()"
    )
    assert interrupted(script, tmp_path, "") == (130, " ".join(["bitsparse", *arguments]) + ": interrupted\n")


def alive(process: int) -> bool:
    """Return whether a process exists and has not ended; a zombie has ended although nobody has read its status."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize("how", [["--parts", "20"], ["--generate"]], ids=["batches", "labels that METIS makes up"])
def test_an_interruption_ends_metis(tmp_path: Path, how: list[str]) -> None:
    """METIS holds the interpreter's lock, so it works in its own process, which must not outlive the command."""
    graph = synthetic((300, 2400), "communities").with_generated(features=8, classes=3)
    np.savez(tmp_path / "g.npz", indptr=graph.indptr, indices=graph.indices, features=graph.x)
    script = (
        "import subprocess\n"
        "from bitsparse.graph import parts\n"
        f"parts._SOON_EDGES, parts._CHILD = 0, {_ENDLESS!r}\n"
        "class Popen(subprocess.Popen):\n"
        "    def communicate(self, *arguments, **options):\n"
        "        open('child', 'w').write(str(self.pid))\n"
        "        print('ready', flush=True)\n"
        "        return super().communicate(*arguments, **options)\n"
        "subprocess.Popen = Popen\n"
        f"sys.exit(cli.main(['run', '--graph', 'g.npz', '--model', 'gin', *{how!r}]))"
    )
    status, said = interrupted(script, tmp_path)
    assert (status, said.splitlines()[-1]) == (130, "bitsparse run: interrupted")
    assert not alive(int((tmp_path / "child").read_text()))


def test_a_process_of_its_own_gives_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    adjacency = synthetic((300, 2400), "communities").adjacency
    expected = parts.partition(adjacency, 7, seed=3)
    monkeypatch.setattr(parts, "partition", None)
    monkeypatch.setattr(parts, "_SOON_EDGES", 0)
    found = parts.partition_apart(adjacency, 7, seed=3)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    monkeypatch.setattr(parts, "_CHILD", "raise SystemExit('no memory left')")
    with pytest.raises(OSError, match="process of METIS ended with status 1: no memory left"):
        parts.partition_apart(adjacency, 7)
    with pytest.raises(ValueError, match="parts"):
        parts.partition_apart(adjacency, 301)


def test_the_watch_leaves_nothing_behind() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    files = len(os.listdir("/dev/fd"))
    with interrupt.ended_soon("run"):
        assert signal.set_wakeup_fd(-1) != before
    assert signal.set_wakeup_fd(before) == before
    assert len(os.listdir("/dev/fd")) == files
