"""Builds what g++ compiles, each thing once: the runtime library, the prelude of kernels, and kernels."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from emulator import settings
from emulator.source_text import Untranslatable
from emulator.translate import translate

HERE = Path(__file__).resolve().parent
RUNTIME, PRELUDE = HERE / "device" / "runtime", HERE / "device" / "kernel"

# Features are named, instead of -march=native, as machines may share the cache. Fused multiply-adds are part of what is emulated.
_CPU = ("-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt")
_RUNTIME_FLAGS = ("-std=c++17", "-O3", "-g1", *_CPU, "-fPIC", "-shared", "-fno-strict-aliasing")
_COMMON_FLAGS = (
    *(
        "-std=c++17",
        settings.OPTIMISE,
        "-g1",
        *_CPU,
        "-fPIC",
        "-fwrapv",
        "-fno-strict-aliasing",
        "-fno-weak",
        "-fno-exceptions",
    ),
    *("-ffp-contract=fast", "-Wno-attributes", "-Wno-unknown-pragmas"),
    *(["-fsanitize=alignment,shift-exponent,bounds"] if settings.SANITIZE else []),
)
_KERNEL_FLAGS = (*_COMMON_FLAGS, "-shared", "-Wl,-Bsymbolic")
_ARCH_MACROS = {"sm_80": 800, "sm_86": 860, "sm_89": 890, "sm_90a": 900, "sm_100a": 1000, "sm_120a": 1200}


class EmulationError(RuntimeError):
    """A kernel did something that a GPU forbids, or that the emulator does not know."""


def hash_of(*texts: bytes) -> str:
    """A short name for some contents: their hash."""
    h = hashlib.sha256()
    for text in texts:
        h.update(text + b"\0")
    return h.hexdigest()[:20]


def install_file(path: Path, content: bytes) -> None:
    """Write a file in one step, so that others see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".w-")
    with os.fdopen(handle, "wb") as f:
        f.write(content)
    os.replace(name, path)


def _build(command: list[str], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=".w-", suffix=out.suffix)
    os.close(handle)
    try:
        _run([*command, "-o", name])
        os.replace(name, out)
    except BaseException:
        os.unlink(name)
        raise


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise EmulationError(f"emulator: {command[0]} is needed to compile kernels for the CPU") from error
    if done.returncode:
        raise EmulationError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


@cache
def _compiler() -> bytes:
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise EmulationError("emulator: fibers are written for Linux on x86-64 only")
    return _run(["g++", "--version"]).encode()


def _sources(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.*"))}


def runtime_library() -> Path:
    """The file of the library that holds device memory and runs threads."""
    key = hash_of(_compiler(), *_sources(RUNTIME).values(), " ".join(_RUNTIME_FLAGS).encode())
    path = settings.CACHE / f"runtime-{key}.so"
    if not path.is_file():
        _build(["g++", *_RUNTIME_FLAGS, str(RUNTIME / "runtime.cpp")], path)
    return path


@cache
def _prelude() -> Path:
    """The file of the prelude; its precompiled form lies in the same folder."""
    texts = _sources(PRELUDE)
    folder = settings.CACHE / f"prelude-{hash_of(_compiler(), *texts.values(), ' '.join(_COMMON_FLAGS).encode())}"
    header = folder / "prelude.h"
    if not (folder / "prelude.h.gch").is_file():
        for name, text in texts.items():
            install_file(folder / name, text)
        _build(["g++", *_COMMON_FLAGS, "-x", "c++-header", str(header)], folder / "prelude.h.gch")
    return header


def kernel_cache() -> Path:
    """A folder for compiled kernels, without real ones and without those of another version of the emulator."""
    ours = [*sorted(HERE.glob("ptx_*.py")), HERE / "source_text.py", HERE / "translate.py", HERE / "builds.py"]
    texts = [*_sources(PRELUDE).values(), *(path.read_bytes() for path in ours)]
    return settings.CACHE / f"kernels-{hash_of(_compiler(), *texts, ' '.join(_KERNEL_FLAGS).encode())}"


def compile_source(source: str, name: str, headers: dict[str, str], defines: list[str], arch: str) -> bytes:
    """Compile a CUDA file, whose text is ``source``, to a shared object."""
    prelude = _prelude()
    if arch not in _ARCH_MACROS:
        raise EmulationError(f"emulator: unknown architecture {arch}")
    with tempfile.TemporaryDirectory(prefix="bitsparse-emulator-") as folder:
        for header, text in headers.items():
            to = Path(folder) / header
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text)
        file, translated, out = Path(folder) / name, Path(folder) / "translated.cpp", Path(folder) / "kernel.so"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        macros = [f"-D__CUDA_ARCH__={_ARCH_MACROS[arch]}", *defines]
        if arch.endswith("a"):
            macros += [f"-D__CUDA_ARCH_FEAT_SM{arch[3:-1]}_ALL=1", f"-D__CUDA_ARCH_SPECIFIC__={_ARCH_MACROS[arch]}"]
        options = ["-x", "c++", "-std=c++17", "-w", "-imacros", str(prelude), *macros, "-I", folder]
        preprocessed = _run(["g++", "-E", *options, str(file)])
        try:
            translated.write_text(translate(preprocessed.replace(folder + "/", "")))
        except Untranslatable as error:
            raise EmulationError(f"emulator: {name}: {error}") from error
        if settings.KEEP:
            shutil.copy(translated, settings.KEEP)
        _build(["g++", *_KERNEL_FLAGS, "-include", str(prelude), "-x", "c++", str(translated)], out)
        return out.read_bytes()
