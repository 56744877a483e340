"""``bitsparse compile`` and the GPU part of ``bitsparse info``, tested with a fake compiler and a fake GPU."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bitsparse import jit
from bitsparse.backends import cuda as backends_cuda
from bitsparse.cli import main
from bitsparse.jit import cubins as jit_cache
from bitsparse.jit.kernel import _capability

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_80'
    0 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
"""


class NVRTCError(RuntimeError):
    """The exception of the fake compiler."""


class Compiler(types.ModuleType):
    """A fake of CuPy's module nvrtc: it records its input, makes cubins of 1000 bytes and refuses unknown architectures."""

    NVRTCError = NVRTCError

    def __init__(self) -> None:
        super().__init__("cupy.cuda.nvrtc")
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.spill: Callable[[str, str], bool] = lambda name, arch: False
        self.waits: Callable[[str], bool] = lambda name: False

    def getVersion(self) -> tuple[int, int]:
        return 13, 0

    def createProgram(self, text: str, name: str, headers: list[bytes], names: list[bytes]) -> dict[str, Any]:
        assert len(headers) == len(names)
        assert all(f'"{header.decode()}"' in text + b"".join(headers).decode() for header in names)
        return {"name": name, "arch": ""}

    def compileProgram(self, program: dict[str, Any], options: tuple[str, ...]) -> None:
        program["arch"] = options[0].removeprefix("-arch=")
        if program["arch"] == "sm_999":
            raise NVRTCError("NVRTC_ERROR_INVALID_OPTION")
        self.compiled.append((program["name"], options))

    def getProgramLog(self, program: dict[str, Any]) -> str:
        spills = self.spill(program["name"], program["arch"])
        waits = "ptxas info    : (C7520) Potential Performance Loss: wgmma.mma_async instructions wait\n"
        return waits * self.waits(program["name"]) + LOG.format(stores=4 * spills, loads=8 * spills)

    def getCUBIN(self, program: dict[str, Any]) -> bytes:
        return bytes(1000)

    def destroyProgram(self, program: dict[str, Any]) -> None:
        del program["name"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path / "cubins"))
    return tmp_path / "cubins"


def forget() -> None:
    jit_cache._nvrtc.cache_clear()
    _capability.cache_clear()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A fake CuPy that has a fake compiler and no GPU."""
    module, cuda, compiler = types.ModuleType("cupy"), types.ModuleType("cupy.cuda"), Compiler()
    module.__version__, module.cuda, cuda.nvrtc = "14.0.0", cuda, compiler  # type: ignore[attr-defined]
    cuda.is_available = lambda: False  # type: ignore[attr-defined]
    for name, part in (("cupy", module), ("cupy.cuda", cuda), ("cupy.cuda.nvrtc", compiler)):
        monkeypatch.setitem(sys.modules, name, part)
    forget()
    yield module
    forget()


@pytest.fixture
def compiler(cupy: Any) -> Compiler:
    return cupy.cuda.nvrtc


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "cupy", None)
    forget()
    yield
    forget()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


# ---- compile
def test_every_variant_of_an_architecture_becomes_a_row(compiler, capsys, folder):
    code, out, err = run(capsys, "compile", "--arch", "sm_90a", "--jobs", "1")
    assert (code, err) == (0, "")
    chosen = [variant for variant in backends_cuda.variants() if variant.runs_on("sm_90a")]
    head, blank, headings, *rows, end, summary = out.splitlines()
    assert head == f"NVRTC 13.0, {len(chosen)} variants for sm_90a, into {folder}"
    assert headings.split() == ["arch", "source", "registers", "spilled", "bytes", "s", "constants"]
    assert (blank, end) == ("", "")
    assert [row.split()[:5] for row in rows] == [["sm_90a", v.source, "168", "0", "1000"] for v in chosen]
    assert [row.split()[6:] for row in rows] == [[f"{name}={value}" for name, value in v.defines] for v in chosen]
    assert summary.startswith(f"{len(chosen)} variants, none spills registers; ")
    assert len(list(folder.glob("sm_90a/*.cubin"))) == len(compiler.compiled) == len(set(compiler.compiled))


def test_all_architectures_by_default_and_only_what_each_can_run(compiler, capsys):
    code, out, err = run(capsys, "compile", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["nvrtc", "cache", "seconds", "spilling", "waiting", "kernels"]
    kernels = found["kernels"]
    wanted = [
        (arch, v.source, dict(v.defines)) for arch in jit.ARCHS for v in backends_cuda.variants() if v.runs_on(arch)
    ]
    assert [(kernel["arch"], kernel["source"], kernel["constants"]) for kernel in kernels] == wanted
    names = ["arch", "source", "function", "constants", "registers", "spilled_bytes", "waiting", "cubin_bytes"]
    names.append("seconds")
    assert all(list(kernel) == names for kernel in kernels)
    assert {kernel["arch"] for kernel in kernels if kernel["source"] == "matmul/wgmma.cu"} == {"sm_90a"}


def test_the_second_time_nothing_is_compiled(compiler, capsys):
    assert run(capsys, "compile", "--arch", "sm_80", "--jobs", "2")[0] == 0
    compiler.compiled.clear()
    assert run(capsys, "compile", "--arch", "sm_80", "sm_80")[0] == 0
    assert compiler.compiled == []


def test_spills_are_counted_and_fail(compiler, capsys):
    compiler.spill = lambda name, arch: name == "bits/stats.cu" and arch == "sm_86"
    code, out, _ = run(capsys, "compile", "--arch", "sm_80", "sm_86", "--json")
    found = json.loads(out)
    assert code == 1
    spilling = [(k["arch"], k["source"], k["spilled_bytes"]) for k in found["kernels"] if k["spilled_bytes"]]
    assert spilling == [("sm_86", "bits/stats.cu", 12)]
    assert found["spilling"] == 1
    code, out, _ = run(capsys, "compile", "--arch", "sm_86")
    assert code == 1
    assert "1 of them SPILL registers" in out.splitlines()[-1]


def test_products_that_wait_for_each_other_are_counted_and_fail(compiler, capsys):
    compiler.waits = lambda name: name == "search/wgmma.cu"
    code, out, _ = run(capsys, "compile", "--arch", "sm_90a", "--json")
    found = json.loads(out)
    waiting = [k["source"] for k in found["kernels"] if k["waiting"]]
    assert code == 1 and set(waiting) == {"search/wgmma.cu"} and found["waiting"] == len(waiting)
    code, out, _ = run(capsys, "compile", "--arch", "sm_90a")
    assert code == 1 and f"{len(waiting)} have products that WAIT for each other" in out.splitlines()[-1]


@pytest.mark.parametrize("arch", ["sm_75", "sm_9", "compute_80", "hopper"])
def test_architectures_that_cannot_be(arch, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["compile", "--arch", arch])
    assert raised.value.code == 2
    assert repr(arch) in capsys.readouterr().err


def test_an_architecture_that_nvrtc_does_not_know(compiler, capsys, folder):
    code, _, err = run(capsys, "compile", "--arch", "sm_999")
    assert code == 2
    assert "-arch=sm_999" in err
    assert "NVRTC_ERROR_INVALID_OPTION" in err
    assert err.count("\n") == 1
    assert not list(folder.glob("*/*"))


def test_the_architecture_at_hand_needs_a_gpu(compiler, capsys):
    code, out, err = run(capsys, "compile", "--arch", "native")
    assert (code, out) == (2, "")
    assert "finds no CUDA device" in err


def test_missing_cupy_is_named(no_cupy, capsys):
    code, out, err = run(capsys, "compile")
    assert (code, out) == (2, "")
    assert "install bitsparse[cuda13]" in err
    assert err.count("\n") == 1


def test_missing_nvrtc_is_named(compiler, capsys, monkeypatch):
    def missing() -> tuple[int, int]:
        raise OSError("libnvrtc.so.13: cannot open shared object file\nno such file")

    monkeypatch.setattr(compiler, "getVersion", missing)
    code, out, err = run(capsys, "compile", "--json")
    assert (code, out) == (2, "")
    assert "libnvrtc.so.13" in err
    assert '"nvidia-cuda-nvrtc==13.0.*"' in err
    assert err.count("\n") == 1


def test_a_cache_that_cannot_be_written_is_named(compiler, capsys, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(file))
    code, _, err = run(capsys, "compile", "--arch", "sm_80")
    assert code == 2
    assert "set BITSPARSE_CACHE_DIR" in err


# ---- info
def test_info_without_cupy(no_cupy, capsys):
    facts = json.loads(run(capsys, "info", "--json")[1])
    assert facts["devices"] == ["cpu"]
    assert (facts["gpu"]["devices"], facts["gpu"]["cupy"], facts["gpu"]["cubins"]) == ([], None, 0)
    (reason,) = facts["gpu"]["missing"]
    assert "bitsparse[cuda13]" in reason
    assert f"gpu           missing: {reason}" in run(capsys, "info")[1].splitlines()


def test_info_without_a_gpu(compiler, capsys, folder):
    run(capsys, "compile", "--arch", "sm_80", "--json")
    facts = json.loads(run(capsys, "info", "--json")[1])
    gpu = facts["gpu"]
    assert (facts["devices"], gpu["cupy"], gpu["nvrtc"], gpu["cuda"]) == (["cpu"], "14.0.0", "13.0", None)
    # Kernels with the same source and constants share a cubin.
    chosen = {(one.source, one.defines) for one in backends_cuda.variants() if one.runs_on("sm_80")}
    assert gpu["cubins"] == len(chosen)
    assert gpu["cache"] == str(folder)
    assert "finds no CUDA device" in gpu["missing"][0]


def test_info_with_a_gpu(cupy, capsys, monkeypatch):
    properties = {
        "name": b"NVIDIA H200",
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "sharedMemPerBlockOptin": 232448,
        "l2CacheSize": 62914560,
        "totalGlobalMem": 150 << 30,
    }
    cupy.cuda.is_available = lambda: True
    cupy.cuda.runtime = types.SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda number: properties,
        driverGetVersion=lambda: 13000,
    )
    facts = json.loads(run(capsys, "info", "--json")[1])
    assert facts["devices"] == ["cpu", "cuda:0", "cuda:1"]
    gpu = facts["gpu"]
    assert (gpu["missing"], gpu["cuda"]) == ([], "13.0")
    assert gpu["devices"][1] == {
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "arch": "sm_90a",
        "multiprocessors": 132,
        "memory_bytes": 150 << 30,
    }
    lines = run(capsys, "info")[1].splitlines()
    assert lines.count("gpu           NVIDIA H200, compute capability 9.0, 150 GiB") == 2
    assert any(line.startswith("cuda          CuPy 14.0.0, NVRTC 13.0, driver ") for line in lines)


def test_a_launch_of_nothing_is_refused() -> None:
    from bitsparse._ext import launch

    with pytest.raises(ValueError, match="an address is null"):
        launch.launch(0, 1, 1, 1)


def test_a_quick_launch_hands_over_copies() -> None:
    """A quick launch must pass copies in which only the stream and the result change; a Python function is the driver here."""
    import ctypes

    from bitsparse._ext import launch

    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def driver(config: int, function: int, arguments: int, extra: int | None) -> int:
        params = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))[0]
        words = [list((ctypes.c_uint64 * 3).from_address(address)) for address in (config, params)]
        seen.append((*words, function, extra))
        return 7 if words[0][1] == 99 else 0

    entry = ctypes.cast(driver, ctypes.c_void_p).value
    config, params = (ctypes.c_uint64 * 3)(1, 2, 3), (ctypes.c_uint64 * 3)(4, 5, 6)
    places = (ctypes.addressof(config), 24, 8, 77, ctypes.addressof(params), 24)
    quick = launch.Quick(entry, *places, 16)
    assert quick.launch(8, 1000, 9) == -1
    assert not seen
    quick.operand = 1000
    assert quick.launch(8, 1000, 9) == 0
    params[0] = 40
    assert quick.launch(99, 1000, 10) == 7
    assert quick.launch(8, 1001, 9) == -1
    assert seen == [([1, 8, 3], [4, 5, 9], 77, None), ([1, 99, 3], [40, 5, 10], 77, None)]
    assert (list(config), list(params)) == ([1, 2, 3], [40, 5, 6])
    with pytest.raises(ValueError, match="lies outside"):
        launch.Quick(entry, *places, 17)
    with pytest.raises(ValueError, match="too many"):
        launch.Quick(entry, *places[:-1], 5000, 16)
    with pytest.raises(ValueError, match="an address is null"):
        launch.Quick(0, *places, 16)
