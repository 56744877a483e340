"""Wrong arguments of the command line: one line that says what to mend, status 2, and nothing done before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitsparse.cli import main

WRONG = {
    "nope": "invalid choice: 'nope'",
    "info extra": "bitsparse info: unrecognised arguments: extra; see bitsparse info --help",
    "inspect": "the following arguments are required: FILE",
    "run --parts 0": "argument --parts: must be a whole number of at least 1, got '0'",
    "run --seed -1": "argument --seed: must be a whole number of at least 0, got '-1'",
    "run --seed 1.5": "argument --seed: must be a whole number of at least 0, got '1.5'",
    "accuracy --first-seed -5": "argument --first-seed: must be a whole number of at least 0, got '-5'",
    "run --bits 17": "argument --bits: must lie in 1..16, got '17'",
    "run --out=": "argument --out: must name a file, got ''",
    "run --out no/folder.npy": "argument --out: must lie in a folder that exists, got 'no/folder.npy'",
    "run --report=": "argument --report: must name a file, got ''",
    "run --report no/folder.html": "argument --report: must lie in a folder that exists, got 'no/folder.html'",
    "demo --plot no/folder.png": "argument --plot/--save: must lie in a folder that exists, got 'no/folder.png'",
    "quality --plot no/folder.png": "argument --plot: must lie in a folder that exists, got 'no/folder.png'",
    "inspect x.txt --plot=": "argument --plot: must name a file, got ''",
    "inspect x.txt --parts -1": "argument --parts: must be a whole number of at least 1, got '-1'",
    "demo --large 3": "argument --large: must be nodes and edges with a comma between them, got '3'",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_one_line_says_what_to_mend(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments.split())
    written = capsys.readouterr()
    assert end.value.code == 2 and written.out == ""
    assert WRONG[arguments] in written.err and written.err.count("\n") == 1


def test_an_environment_variable_that_cannot_be_read_is_one_line() -> None:
    command = [
        sys.executable,
        "-P",
        "-c",
        "import sys, _bitsparse_command as c; sys.argv[1:] = ['info']; sys.exit(c.main())",
    ]
    done = subprocess.run(command, env=os.environ | {"BITSPARSE_NUM_THREADS": "x"}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("bitsparse info: BITSPARSE_NUM_THREADS is 'x'") and done.stderr.count("\n") == 1


def test_a_file_in_the_working_folder_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("0 1\n1 2\n")
    assert main(["inspect", "x.txt", "--plot", "x.png"]) == 0
    assert Path("x.png").stat().st_size
