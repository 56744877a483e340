"""Compile ``common/scalar.h``, which host and device share, by itself for every architecture, without a GPU: ``compile_cuda.py [FOLDER]``.

NVRTC comes from the package ``nvidia-cuda-nvrtc``. The kernels themselves are compiled by ``bitsparse compile``, in the variants that are
used.
"""

from __future__ import annotations

import ctypes
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import files
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
FOLDER = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parent.parent / "cuda_src"


@cache
def nvrtc() -> ctypes.CDLL:
    """Return the NVRTC library from the files of the installed package."""
    found = {file.name: str(file.locate()) for file in files("nvidia-cuda-nvrtc") or []}
    for pattern in (r"libnvrtc-builtins\.so\.[\d.]+", r"libnvrtc\.so\.\d+"):
        names = [name for name in found if re.fullmatch(pattern, name)]
        if len(names) != 1:
            sys.exit(f"compile_cuda: nvidia-cuda-nvrtc holds {len(names)} files named {pattern}, must be 1")
        # The built-ins come first: the compiler opens them by name and would not search its own folder.
        library = ctypes.CDLL(found[names[0]])
    return library


def compile_source(source: str, name: str, architecture: str) -> tuple[int, str]:
    """Compile a translation unit and return the status (0: success) and the compiler's log."""
    library, program = nvrtc(), ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"-I{FOLDER}", "--ptxas-options=-v"]
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status: int = library.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


def report(source: str, name: str, architecture: str) -> tuple[bool, str]:
    """Compile and return whether that succeeded, and a line to print (followed by the compiler's log if that has something to say)."""
    status, log = compile_source(source, name, architecture)
    used = re.findall(r"Used (\d+) registers", log)
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
    detail = f", at most {max(map(int, used))} registers, {spilled} bytes spilled" if used else ""
    line = f"{name} {architecture}: {'FAILED' if status else 'compiled'}{detail}"
    return status == 0, f"{line}\n{log}" if status or "warning" in log else line


if __name__ == "__main__":
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    print(f"NVRTC {major.value}.{minor.value}, {', '.join(ARCHITECTURES)}")
    # A kernel that includes the header and does nothing: every function of the header is still parsed and checked.
    source = '#include "common/scalar.h"\nextern "C" __global__ void nothing() {}\n'
    work = [(source, "common/scalar.h by itself", architecture) for architecture in ARCHITECTURES]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda job: report(*job), work))
    print("\n".join(line for _, line in results))
    sys.exit(0 if all(good for good, _ in results) else 1)
