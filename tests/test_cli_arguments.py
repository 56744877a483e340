"""Wrong command-line arguments give one line that says what to fix and status 2, before any work is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitsparse.cli import main, memory

WRONG = {
    "nope": "invalid choice: 'nope'",
    "info extra": "bitsparse info: unrecognised arguments: extra; see bitsparse info --help",
    "inspect": "the following arguments are required: FILE",
    "run --parts 0": "argument --parts: must be a whole number of at least 1, got '0'",
    "run --seed -1": "argument --seed: must be a whole number of at least 0, got '-1'",
    "run --seed 1.5": "argument --seed: must be a whole number of at least 0, got '1.5'",
    "accuracy --first-seed -5": "argument --first-seed: must be a whole number of at least 0, got '-5'",
    "run --bits 17": "argument --bits: must be at most 16, got '17'",
    "run --out=": "argument --out: must name a file, got ''",
    "run --out no/folder.npy": "argument --out: must lie in a folder that exists, got 'no/folder.npy'",
    "run --out .": "argument --out: must name a file, but '.' is a folder",
    "convert x.txt ..": "argument OUT: must name a file, but '..' is a folder",
    "run --report=": "argument --report: must name a file, got ''",
    "run --report no/folder.html": "argument --report: must lie in a folder that exists, got 'no/folder.html'",
    "demo --plot no/folder.png": "argument --plot/--save: must lie in a folder that exists, got 'no/folder.png'",
    "quality --plot no/folder.png": "argument --plot: must lie in a folder that exists, got 'no/folder.png'",
    "inspect x.txt --plot=": "argument --plot: must name a file, got ''",
    "inspect x.txt --parts -1": "argument --parts: must be a whole number of at least 1, got '-1'",
    "run --graph=": "argument --graph: must name a file, got ''",
    "bench --graph=": "argument --graph: must name a file, got ''",
    "accuracy --table tango --graphs=": "argument --graphs: must name a file, got ''",
    "run --layers 999999999": "argument --layers: must be at most 1000, got '999999999'",
    "run --layers " + 5000 * "9": f"argument --layers: must be at most 1000, got '{30 * '9'}'",
    "quality --seeds 999999999": "argument --seeds: must be at most 10000, got '999999999'",
    "compile --jobs 999999999": "argument --jobs: must be at most 1024, got '999999999'",
    "bench --nodes 2000000001": "argument --nodes: must be at most 2000000000, got '2000000001'",
    "demo --large 3": "argument --large: must be nodes and edges with a comma between them, got '3'",
}


#: Options that would have no effect together with the others, some only because of their values, and the message about them.
IDLE = {
    "bench --graph x.npz --nodes 5": "--nodes is of the synthetic graph, not of --graph; leave one of them out",
    "bench --graph x.npz --entries 100": "--entries is of the synthetic graph",
    "bench --suite matmul --columns 5": "--columns goes with suite spmm or bspmm or sddmm or sampled; add one",
    "bench --suite matmul --graph x.npz": "--graph goes with suite spmm",
    "bench --suite bspmm sddmm --bits 5": "--bits goes with suite spmm or matmul",
    "bench --suite spmm sampled --size 2048": "--size goes with suite matmul",
    "bench --suite spmm matmul --width 16": "--width goes with suite sampled",
    "demo --only large --seeds 1": "--seeds belongs to the part accuracy, which --only large leaves out; drop one",
    "demo --only large --generate": "--generate belongs to the part accuracy",
    "demo --only accuracy --large 400000,10000000": "--large belongs to the part large, which --only accuracy leaves",
    "demo --only accuracy --adjacency csr": "--adjacency belongs to the part large",
    "accuracy --table aes --graphs x.npz --precisions int8": "--precisions has no effect on --table aes; leave it out",
    "accuracy --table bitgnn --graphs x.npz --networks gcn": "--networks has no effect on --table bitgnn",
    "accuracy --table bitgnn --graphs x.npz --dropout 0": "--dropout has no effect on --table bitgnn",
    "accuracy --table qgtc --graphs x.npz --device cuda": "--table qgtc trains on the CPU; leave --device cuda out",
    "accuracy --table tango --graphs x.npz --dropout nan": "--dropout must be at least 0 and below 1, got nan",
    "run --no-cache": "--no-cache goes with --parts, which asks for batches; add --parts 1500, for example",
}


@pytest.mark.parametrize("arguments", IDLE)
def test_an_option_without_an_effect_is_refused(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    written = capsys.readouterr()
    assert written.out == "" and IDLE[arguments] in written.err and written.err.count("\n") == 1


#: Sizes that make sense but do not fit here, and the message, which says how much memory they would take.
TOO_LARGE = {
    "bench --suite spmm --entries 2000000000": "--nodes 100000 --entries 2000000000 --columns 128 takes at least 16.1 GB",
    "bench --suite matmul --size 60000": "--size 60000 takes at least 21.6 GB",
    "demo --only large --large 100000000,8": "--large 100000000,8 takes at least 51.2 GB",
    "run --model gin --layers 3 --hidden 60000": "--layers 3 --hidden 60000 takes at least 14.4 GB",
}


@pytest.mark.parametrize("arguments", TOO_LARGE)
def test_what_does_not_fit_is_refused_before_it_is_made(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments.startswith("run"):
        pytest.importorskip("sklearn")
    monkeypatch.setattr(memory, "available", lambda device: 10**9)
    assert main(arguments.split()) == 2
    written = capsys.readouterr()
    assert written.out == "" and f"{TOO_LARGE[arguments]} of memory, but 1 GB are left; ask for less" in written.err


@pytest.mark.parametrize("arguments", WRONG)
def test_one_line_says_what_to_mend(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments.split())
    written = capsys.readouterr()
    assert end.value.code == 2 and written.out == ""
    assert WRONG[arguments] in written.err and written.err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["-c", "import sys, _bitsparse_command as c; sys.argv[1:] = ['info']; sys.exit(c.main())"],
        ["-m", "bitsparse", "info"],
    ],
)
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "BITSPARSE_NUM_THREADS",
            "x",
            "BITSPARSE_NUM_THREADS is 'x' but must be a whole number; unset it or set it to",
        ),
        ("BITSPARSE_NUM_THREADS", "0", "BITSPARSE_NUM_THREADS: the number of threads must be in 1..1024, got 0"),
        ("BITSPARSE_SIMD", "sse9", "BITSPARSE_SIMD: level 'sse9' is not available here; choose one of scalar"),
    ],
)
def test_an_environment_variable_that_cannot_be_read_is_one_line(
    command: list[str], variable: str, value: str, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", *command], env=os.environ | {variable: value}, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"bitsparse info: {said}") and done.stderr.count("\n") == 1


def test_a_file_in_the_working_folder_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("0 1\n1 2\n")
    assert main(["inspect", "x.txt", "--plot", "x.png"]) == 0
    assert Path("x.png").stat().st_size
