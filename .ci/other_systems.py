"""Build the compiled part for systems other than this one: ``other_systems.py FOLDER``.

Runs in an environment with ziglang, meson, ninja and Cython: Zig's C compiler is Clang with the C libraries of other systems. For macOS,
Meson compiles and links the modules, with little optimisation. For Windows, the C files are compiled once more with the options of a
release; they may need nothing from the compiler's run-time library, which Clang does not link by default (128-bit division and
``__builtin_cpu_supports`` would need it). Nothing is run.
"""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MACOS, WINDOWS = "x86_64-macos.11.0", "x86_64-windows-gnu"
CROSS = """[binaries]
c = [{python!r}, '-m', 'ziglang', 'cc', '-target', {target!r}]
ar = [{python!r}, '-m', 'ziglang', 'ar']
strip = ['true']
[host_machine]
system = 'darwin'
cpu_family = 'x86_64'
cpu = 'x86_64'
endian = 'little'
"""
#: Names that the C files may need on Windows: its C library, its locks and the stack check, which all linkers include by default.
LIBRARY = {
    *("calloc", "malloc", "realloc", "free", "memcpy", "memset", "memmove", "memcmp", "qsort", "snprintf"),
    *("AcquireSRWLockExclusive", "ReleaseSRWLockExclusive", "__imp_Sleep"),
    *("exp", "log", "expf", "floor", "floorf", "fmaf", "sqrt", "rint", "rintf"),
    *("__imp__aligned_malloc", "__imp__aligned_free", "___chkstk_ms"),
}


def meson(folder: Path, *arguments: str | Path) -> None:
    """Run Meson in ``folder`` (where Zig leaves an empty ``a.o`` when Meson identifies it), and show the output if it fails."""
    command = [sys.executable, "-m", "mesonbuild.mesonmain", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        sys.exit(f"other_systems: meson {arguments[0]} failed\n{done.stdout[-6000:]}{done.stderr[-2000:]}")


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """Return the external names that a Windows object file (COFF) defines, and those that it needs."""
    data = path.read_bytes()
    at, count = struct.unpack_from("<II", data, 8)
    names = at + 18 * count
    defined: set[str] = set()
    asked: set[str] = set()
    i = 0
    while i < count:
        name, value, section, _, storage, extra = struct.unpack_from("<8sIhHBB", data, at + 18 * i)
        if name[:4] == bytes(4):
            start = names + struct.unpack_from("<I", name, 4)[0]
            name = data[start : data.index(b"\0", start)]
        if storage == 2:  # external; a name without a section and a size is defined elsewhere
            (defined if section or value else asked).add(name.rstrip(b"\0").decode())
        i += 1 + extra
    return defined, asked


def compiled(command: list[str], folder: str, target: Path) -> tuple[set[str], set[str]]:
    """Run a compiler, and return the names that its object file defines, and those that it needs."""
    subprocess.run(command, cwd=folder, check=True)
    return symbols(target)


def main(folder: Path) -> None:
    """Build for macOS and compile for Windows."""
    folder.mkdir(parents=True, exist_ok=True)
    cross, build = folder / "macos.ini", folder / "macos"
    cross.write_text(CROSS.format(python=sys.executable, target=MACOS), encoding="utf-8")
    meson(folder, "setup", build, ROOT, "--cross-file", cross, "-Dopenmp=disabled", "-Doptimization=1")
    meson(folder, "compile", "-C", build)
    modules = sorted(path.name for path in build.glob("_ext/*.so"))
    print(f"{MACOS}: {len(modules)} modules built")

    defined: set[str] = set()
    asked: set[str] = set()
    jobs: list[tuple[list[str], str, Path]] = []
    for one in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        if not Path(one["directory"], one["file"]).resolve().is_relative_to(ROOT / "_ext"):
            continue  # made by Cython
        target = folder / f"{len(jobs)}.obj"
        command = shlex.split(one["command"])
        command[command.index(MACOS)] = WINDOWS
        command[command.index("-o") + 1] = str(target)
        command[command.index("-O1")] = "-O3"
        jobs.append((command, one["directory"], target))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for found in pool.map(lambda job: compiled(*job), jobs):
            defined, asked = defined | found[0], asked | found[1]
    files = len(jobs)
    if not modules or not files:
        sys.exit("other_systems: nothing was built")
    if unknown := asked - defined - LIBRARY:
        sys.exit(f"other_systems: {WINDOWS} would have to bring {sorted(unknown)}")
    print(f"{WINDOWS}: {files} files compiled, {len(asked - defined)} names of the C library needed")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
