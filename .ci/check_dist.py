"""Check the contents of a wheel and an sdist in a git checkout: ``check_dist.py FOLDER``, where the folder holds one of each."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent


def fail(message: str) -> None:
    """Stop with a message."""
    sys.exit(f"check_dist: {message}")


def one(folder: Path, pattern: str) -> Path:
    """Return the only file that matches the pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        fail(f"{folder} holds {len(found)} of {pattern}, must be 1")
    return found[0]


def check_wheel(path: Path, tracked: set[str]) -> None:
    """Require the package, compiled modules, device code and type marker, nothing else, and the stable ABI in every name."""
    python, abi, _ = path.stem.split("-")[2:]
    here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if (python, abi) != (here, "abi3"):
        fail(f"{path.name} is tagged {python}-{abi}, must be {here}-abi3")
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        versions = [
            line.partition(": ")[2] for line in archive.read(metadata).decode().splitlines() if line[:9] == "Version: "
        ]
    if versions != [path.name.split("-")[1]]:
        fail(f"{path.name} says version {versions} inside")
    sources = {name for name in tracked if name.startswith(("bitsparse/", "_bitsparse_command.py"))}
    device = {f"bitsparse/{name}" for name in tracked if name.startswith("cuda_src/")}
    compiled = {f"bitsparse/_ext/{PurePosixPath(n).stem}.abi3.so" for n in tracked if n.endswith(".pyx")}
    if missing := (sources | device | compiled) - names:
        fail(f"{path.name} lacks {sorted(missing)}")
    if extra := names - (sources | device | compiled):
        fail(f"{path.name} should not hold {sorted(extra)}")
    print(f"{path.name}: {len(sources)} Python files, {len(device)} of device code, {len(compiled)} compiled modules")


def check_sdist(path: Path, tracked: set[str]) -> None:
    """Require every file that git tracks."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := tracked - names:
        fail(f"{path.name} lacks {sorted(missing)}")
    print(f"{path.name}: all {len(tracked)} tracked files")


if __name__ == "__main__":
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    files = set(filter(None, listing.stdout.split("\0")))
    folder = Path(sys.argv[1])
    check_wheel(one(folder, "*.whl"), files)
    check_sdist(one(folder, "*.tar.gz"), files)
