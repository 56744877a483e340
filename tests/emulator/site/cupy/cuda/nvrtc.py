"""A stand-in for NVRTC that compiles for the CPU."""

from __future__ import annotations

import itertools
from typing import Any

from emulator.builds import EmulationError, compile_source


class NVRTCError(RuntimeError):
    def __init__(self, status: int = 6) -> None:
        self.status = status
        super().__init__("NVRTC_ERROR_COMPILATION (6)")


_programs: dict[int, dict[str, Any]] = {}
_HANDLES = itertools.count(1)


def getVersion() -> tuple[int, int]:
    return (13, 0)


def _text(x: Any) -> str:
    return x.decode() if isinstance(x, bytes) else x


def createProgram(source: Any, name: Any, headers: Any, names: Any) -> int:
    handle = next(_HANDLES)  # never the handle of another thread's program
    _programs[handle] = {
        "source": _text(source),
        "name": _text(name),
        "headers": dict(zip(map(_text, names), map(_text, headers), strict=True)),
    }
    return handle


def compileProgram(program: int, options: Any) -> None:
    p = _programs[program]
    arch, defines = "sm_90a", []
    for o in map(_text, options):
        if o.startswith(("-arch=", "--gpu-architecture=")):
            arch = o.partition("=")[2].replace("compute_", "sm_")
        elif o.startswith("-D"):
            defines.append(o)
    try:
        p["cubin"] = compile_source(p["source"], p["name"], p["headers"], defines, arch)
        p["log"] = "emulated: Used 32 registers, 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    except EmulationError as error:
        p["log"] = str(error)
        raise NVRTCError() from error


def getProgramLog(program: int) -> str:
    return str(_programs[program].get("log", ""))


def getCUBIN(program: int) -> bytes:
    return bytes(_programs[program]["cubin"])


def getPTX(program: int) -> bytes:
    raise NotImplementedError("emulator: nvrtc.getPTX")


def destroyProgram(program: int) -> None:
    _programs.pop(program, None)


def getSupportedArchs() -> list[int]:
    return [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121]
