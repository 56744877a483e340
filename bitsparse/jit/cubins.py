"""Compilation of sources to cubins, on demand or ahead of time: NVRTC, variants of kernels, and a cache keyed by all inputs."""

from __future__ import annotations

import hashlib
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bitsparse._check import brief
from bitsparse._files import distrust, open_plain, replacing
from bitsparse.errors import KernelError
from bitsparse.interop.devices import require_cupy

#: Every architecture that a release is checked against.
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
#: Version of the file format of the cache. It is part of file names, so that files of other versions are not read.
_LAYOUT = "4"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_RESOURCES = re.compile(r"bytes stack frame|registers|spill|wgmma\.mma_async")


class Variant(NamedTuple):
    """One compilation: a source file, a function in it, and constants; ``only`` names the architecture if it needs a certain one."""

    source: str
    function: str
    defines: tuple[tuple[str, int], ...] = ()
    only: str | None = None

    def runs_on(self, arch: str) -> bool:
        """Whether ``arch`` can run it.

        Examples
        --------
        >>> Variant("matmul/wgmma.cu", "matmul_wgmma", only="sm_90a").runs_on("sm_80")
        False
        """
        return self.only is None or self.only == arch


def variants_of(
    source: str, function: str, constants: Iterable[Mapping[str, int]] = ({},), only: str | None = None
) -> list[Variant]:
    """The distinct variants of one function, which the module that launches it lists in its ``VARIANTS``.

    Examples
    --------
    >>> [variant.defines for variant in variants_of("bits/range.cu", "range_rows", [{"BS_KIND": 0}, {"BS_KIND": 5}])]
    [(('BS_KIND', 0),), (('BS_KIND', 5),)]
    """
    each = dict.fromkeys(tuple(sorted(one.items())) for one in constants)
    return [Variant(source, function, defines, only) for defines in each]


def flags(**wanted: int) -> dict[str, int]:
    """Constants ``BS_NAME`` for the arguments that are not 0; sources test whether a constant is defined.

    Examples
    --------
    >>> flags(mean=True, signed=False, epilogue=2)
    {'BS_MEAN': 1, 'BS_EPILOGUE': 2}
    """
    return {f"BS_{name.upper()}": int(value) for name, value in wanted.items() if value}


def source_dir() -> Path:
    """The folder of the CUDA sources: inside the installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "cuda_src", package.parent / "cuda_src"):
        if (folder / "common" / "ptx.cuh").is_file():
            return folder
    raise KernelError(
        f"bitsparse.jit: the CUDA sources are missing from {package / 'cuda_src'}; install bitsparse again"
    )


def cache_dir() -> Path:
    """The folder of the cache: ``BITSPARSE_CACHE_DIR``, else ``bitsparse`` in the user's cache folder."""
    named = os.environ.get("BITSPARSE_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitsparse"


@cache
def with_headers(name: str) -> dict[str, str]:
    """The text of ``name`` and of every header it includes, directly or not, by name."""
    folder, texts, todo = source_dir(), {}, [name]
    while todo:
        current = todo.pop()
        if current not in texts:
            texts[current] = (folder / current).read_text(encoding="utf-8")
            todo += _INCLUDE.findall(texts[current])
    return texts


@cache
def _nvrtc() -> tuple[Any, tuple[int, int]]:
    require_cupy("bitsparse.jit")
    try:
        from cupy.cuda import nvrtc

        return nvrtc, nvrtc.getVersion()
    except Exception as error:
        raise KernelError(
            f"bitsparse.jit: NVRTC, CUDA's run-time compiler, cannot be loaded ({error}); "
            'install "nvidia-cuda-nvrtc==13.0.*" and "nvidia-cuda-runtime==13.0.*", or bitsparse[cuda12]'
        ) from error


def nvrtc_version() -> tuple[int, int]:
    """Version of the compiler.

    Raises
    ------
    DeviceError, KernelError
        CuPy or NVRTC is missing; the message names the package to install.
    """
    return _nvrtc()[1]


def _options(defines: Mapping[str, int], arch: str) -> tuple[str, ...]:
    named = (f"-D{name}={value}" for name, value in sorted(defines.items()))
    return (f"-arch={arch}", "-std=c++17", "-default-device", "--ptxas-options=-v", *named)


def compile_kernel(source: str, defines: Mapping[str, int], arch: str) -> tuple[Path, str]:
    """Compile one file of ``cuda_src``, or find its cubin in the cache.

    Parameters
    ----------
    source : str
        Name of the file.
    defines : mapping
        Preprocessor constants.
    arch : str
        For example ``"sm_90a"``.

    Returns
    -------
    path, log : Path, str
        The cubin, and the assembler's messages about registers and spills.

    Raises
    ------
    KernelError
        NVRTC is missing, does not know ``arch``, or refuses the source; or the folder of the cache is not writable, belongs to another
        user, or is writable by another user.
    """
    nvrtc, version = _nvrtc()
    texts, options = with_headers(source), _options(defines, arch)
    parts = [
        _LAYOUT,
        repr(version),
        repr(options),
        source,
        *(f"{name}\0{text}" for name, text in sorted(texts.items())),
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = cache_dir() / arch / f"{source.removesuffix('.cu').replace('/', '.')}-{key}.cubin"
    _own_folder(path.parent)
    known = _kept(path)
    if known is not None:
        return path, known
    cubin, log = _run_nvrtc(nvrtc, source, texts, options)
    _write(_log_of(path, cubin), log.encode())
    _write(path, cubin)
    return path, log


def _log_of(path: Path, cubin: bytes) -> Path:
    """The file of a cubin's log. The hash in its name is of the cubin, so that two compilers at once cannot mix their files, and of the
    cubin's name, so that no cubin can stand in for another.
    """
    known = hashlib.sha256(path.name.encode() + b"\0" + cubin).hexdigest()
    return path.with_suffix(f".{known}.log")


def _own_folder(folder: Path) -> None:
    """Make the folder of an architecture; refuse it, or the cache folder around it, if another user could put cubins into it."""
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            why = distrust(each.stat())
            if why is not None:
                raise KernelError(
                    f"bitsparse.jit: kernels are not loaded from {each}, as {why}; or set BITSPARSE_CACHE_DIR to a folder of your own"
                )
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _kept(path: Path) -> str | None:
    """The log of a cubin that is in the cache, complete and ours; else None, with a warning if a wrong file has its name."""
    try:
        return _trusted(_log_of(path, _trusted(path))).decode("utf-8", "replace")
    except FileNotFoundError as error:
        if error.filename != str(path):
            _ignored(path, "it is not what was compiled under this name")
    except OSError as error:
        _ignored(path, brief(error))
    return None


def _trusted(path: Path) -> bytes:
    """The content of a file that no other user can have written."""
    with open_plain(path) as stream:
        why = distrust(os.fstat(stream.fileno()))
        if why is not None:
            raise PermissionError(f"{path.name} is not trusted, as {why}")
        return stream.read()


def _ignored(path: Path, why: str) -> None:
    warnings.warn(f"bitsparse.jit: the kernel {path} is compiled anew: {why}", RuntimeWarning, stacklevel=4)


def _run_nvrtc(nvrtc: Any, source: str, texts: Mapping[str, str], options: tuple[str, ...]) -> tuple[bytes, str]:
    headers = [name for name in texts if name != source]
    program = nvrtc.createProgram(
        texts[source], source, [texts[name].encode() for name in headers], [name.encode() for name in headers]
    )
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).strip()
            raise KernelError(
                f"bitsparse.jit: NVRTC cannot compile {source} with {' '.join(options)}: {error}\n{log}"
            ) from error
        lines = nvrtc.getProgramLog(program).splitlines()
        return bytes(nvrtc.getCUBIN(program)), "\n".join(line.strip() for line in lines if _RESOURCES.search(line))
    finally:
        nvrtc.destroyProgram(program)


def _write(path: Path, content: bytes) -> None:
    """Write a file so that other processes see either all of it or none."""
    try:
        with replacing(path, mode=0o600) as stream:
            stream.write(content)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> KernelError:
    return KernelError(
        f"bitsparse.jit: cannot write the compiled kernel {path} ({error}); "
        "set BITSPARSE_CACHE_DIR to a folder that can be written"
    )


class Compiled(NamedTuple):
    """One variant compiled for one architecture.

    Attributes
    ----------
    arch : str
    variant : Variant
    path : Path
        The cubin in the cache.
    log : str
        The assembler's messages about registers, spills and products that it serialised.
    seconds : float
        Time of the compilation; almost zero for a cubin from the cache.
    """

    arch: str
    variant: Variant
    path: Path
    log: str
    seconds: float

    @property
    def registers(self) -> int:
        """Registers per thread of the function in the file that needs the most.

        Examples
        --------
        >>> from bitsparse.jit import Compiled, Variant
        >>> log = "4 bytes spill stores, 8 bytes spill loads; Used 40 registers; Used 32 registers"
        >>> one = Compiled("sm_80", Variant("bits/stats.cu", "code_sums"), Path(), log, 0.5)
        >>> one.registers, one.spilled
        (40, 12)
        """
        return max((int(n) for n in re.findall(r"Used (\d+) registers", self.log)), default=0)

    @property
    def spilled(self) -> int:
        """Bytes of spill stores and loads, over all functions of the file."""
        return sum(int(n) for n in re.findall(r"(\d+) bytes spill", self.log))

    @property
    def waits(self) -> bool:
        """Whether the assembler serialised products of Hopper's warpgroups, which it does for a product after a branch."""
        return "wgmma.mma_async" in self.log


def compile_all(archs: Iterable[str], chosen: Iterable[Variant], jobs: int = 1) -> Iterator[Compiled]:
    """Compile kernels ahead of time; needs NVRTC but no GPU.

    Parameters
    ----------
    archs : iterable of str
    chosen : iterable of Variant
    jobs : int, default 1
        Number of parallel compilations.

    Yields
    ------
    Compiled
        One for each variant that an architecture can run, architecture after architecture, as soon as it is compiled.

    Raises
    ------
    DeviceError, KernelError
        NVRTC is missing (raised before anything is compiled), or refuses a source or an architecture.
    """
    nvrtc_version()
    wanted = list(chosen)
    work = [(arch, variant) for arch in archs for variant in wanted if variant.runs_on(arch)]
    # The compiler releases Python's lock (GIL), so threads are enough.
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        compilations = [pool.submit(_compile, arch, variant) for arch, variant in work]
        try:
            for future in compilations:
                yield future.result()
        finally:
            for future in compilations:
                future.cancel()


def _compile(arch: str, variant: Variant) -> Compiled:
    start = time.perf_counter()
    path, log = compile_kernel(variant.source, dict(variant.defines), arch)
    return Compiled(arch, variant, path, log, time.perf_counter() - start)
