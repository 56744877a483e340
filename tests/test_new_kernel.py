"""A kernel has five places and one name; the exercise that explains this must work, run with its own code in a copy of the package."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
from cases import CASES, functions_of

import bitsparse
from bitsparse import backends, jit
from bitsparse.backends import cuda, host, reference

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(bitsparse.__file__).parent
EXERCISE = ROOT / "docs" / "exercise-new-kernel.md"

#: Families of `bitsparse.ops`, and the folders that only serve them.
FAMILIES = {"binary", "bits", "edges", "matmul", "quantized", "sampling", "search", "sparse", "spmm"}
#: Families whose host and reference use functions of other families: a quantised product quantises, then multiplies.
COMPOSED = {"quantized"}
#: Families whose functions are constructors and conversions of the array types.
IN_ARRAYS = {"sparse"}
#: Modules of both backends that are not in the shared table, with the test that compares them instead.
COMPARED_IN = {
    "binary.bspmm": "test_bspmm.py",
    "edges.attention": "test_spmm_backends.py",
    "edges.gatv2": "test_spmm_backends.py",
    "edges.sddmm": "test_spmm_backends.py",
    "packets": "test_cluster.py",
    "sampling.sample": "test_sample.py",
    "sampling.subgraphs": "test_samplers.py",
    "spmm.spmm": "test_spmm_backends.py",
}


def modules(package: ModuleType) -> dict[str, ModuleType]:
    """Return the modules below a package by their names within it."""
    prefix = f"{package.__name__}."
    names = [found.name for found in pkgutil.walk_packages(package.__path__, prefix) if not found.ispkg]
    return {name.removeprefix(prefix): importlib.import_module(name) for name in names}


# ---- the rule
def test_every_kernel_is_declared_where_it_is_launched() -> None:
    """Each CUDA file must belong to one family, each variant must be declared once, and each launching module must declare its sources."""
    families, declared = defaultdict(set), []
    for name, module in modules(cuda).items():
        sources = {variant.source for variant in getattr(module, "VARIANTS", ())}
        declared += list(getattr(module, "VARIANTS", ()))
        for source in sources:
            families[source].add(name.split(".")[0])
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        assert set(re.findall(r"jit\.kernel\(\s*\"([^\"]+\.cu)\"", text)) <= sources, name
    folder = jit.source_dir()
    assert set(families) == {path.relative_to(folder).as_posix() for path in folder.rglob("*.cu")}
    assert {source: names for source, names in families.items() if len(names) > 1} == {}
    assert sorted(declared) == sorted(set(declared))


def test_every_family_has_the_same_folders() -> None:
    def folders(of: Path) -> set[str]:
        return {path.name for path in of.iterdir() if path.is_dir() and any(path.iterdir())} & FAMILIES

    assert folders(PACKAGE / "ops") | IN_ARRAYS == FAMILIES
    assert folders(PACKAGE / "backends" / "cuda") == folders(jit.source_dir()) == FAMILIES
    for backend in (host, reference):
        assert folders(Path(str(backend.__file__)).parent) | COMPOSED == FAMILIES


def test_host_and_reference_have_the_same_functions() -> None:
    ours, oracle = modules(host), modules(reference)
    shared = set(ours) & set(oracle)
    assert {name.split(".")[0] for name in shared} >= FAMILIES - COMPOSED
    for name in shared:
        assert functions_of(oracle[name]) & functions_of(ours[name]), name
    assert shared == {case.module for case in CASES} | set(COMPARED_IN)
    for test in COMPARED_IN.values():
        assert "bitsparse.backends.reference" in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_a_device_without_a_module_is_refused_by_name() -> None:
    for name in ("bits.parity", "astrology.signs"):
        with pytest.raises(bitsparse.DeviceError, match=rf"there are no {re.escape(name)} kernels for cuda:0"):
            backends.family("cuda:0", name)


# ---- the exercise
def blocks() -> dict[str, str]:
    """Return the exercise's code by the name in the first line of each block."""
    text = EXERCISE.read_text(encoding="utf-8")
    found = re.findall(r"^```(?:python|cuda)\n(?:#|//) ([^\n]+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return dict(found)


def export(file: Path, line: str) -> None:
    text = file.read_text()
    first = re.search(r"^from bitsparse\.", text, re.MULTILINE)
    assert first is not None
    text = text[: first.start()] + line + "\n" + text[first.start() :]
    file.write_text(text.replace("__all__ = [\n", '__all__ = [\n    "parity",\n', 1))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package with compiled modules, CUDA sources and the table of cases, in which the exercise is done."""
    folder = tmp_path_factory.mktemp("exercise")
    shutil.copytree(PACKAGE, folder / "bitsparse", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(jit.source_dir(), folder / "bitsparse" / "cuda_src", dirs_exist_ok=True)
    # In an editable installation, the compiled modules stay in its build folder.
    compiled = importlib.util.find_spec("bitsparse._ext.bits")
    assert compiled is not None
    assert compiled.origin is not None
    for file in Path(compiled.origin).parent.glob("*.so"):
        shutil.copy(file, folder / "bitsparse" / "_ext")
    for name in ("cases.py", "cases_sparse.py"):
        shutil.copy(ROOT / "tests" / name, folder)
    for name, text in blocks().items():
        if name == "tests/cases.py":
            table = (folder / "cases.py").read_text()
            table = table.replace("_ALL = [\n", f"{text}\n\n_ALL = [\n    *_parity_cases(),\n", 1)
            (folder / "cases.py").write_text(table)
        elif "/" in name:
            file = folder / (name if name.startswith("bitsparse/") else f"bitsparse/{name}")
            assert file.parent.is_dir(), f"the exercise writes {name}, but there is no such folder"
            file.write_text(text)
    export(folder / "bitsparse/ops/__init__.py", "from bitsparse.ops.bits.parity import parity")
    return folder


def run(folder: Path, code: str) -> None:
    """Run code with the copy, wherever the package itself was imported from."""
    start = f"import sys\nsys.path.insert(0, {str(folder)!r})\n"
    start += "sys.meta_path[:] = [each for each in sys.meta_path if 'Mesonpy' not in type(each).__name__]\n"
    start += f"import bitsparse as bs, numpy as np\nassert bs.__file__.startswith({str(folder)!r})\n"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_exercise_gives_a_tested_function(copy: Path) -> None:
    run(
        copy,
        """
import doctest
from cases import CASES, same
from bitsparse.backends.host.bits import parity as host
from bitsparse.backends.reference.bits import parity as reference
from bitsparse.backends import cuda
rows = [case for case in CASES if case.module == "bits.parity"]
assert len(rows) >= 30
for case in rows:
    args, kwargs = case.make()
    same(host.parity(*args, **kwargs), reference.parity(*args, **kwargs))
from bitsparse.ops.bits import parity as public
ran = doctest.testmod(public, extraglobs={"bs": bs})
assert (ran.attempted, ran.failed) == (1, 0)
assert [one.function for one in cuda.variants() if one.source == "bits/parity.cu"] == ["parity"]
""",
    )


def test_the_exercise_gives_a_chip(copy: Path) -> None:
    run(copy, blocks()["a chip"])


@pytest.mark.gpu
def test_the_exercise_gives_a_kernel(copy: Path) -> None:
    import cupy

    install = f"sys.path.insert(1, {str(ROOT / 'tests')!r}); import emulator; emulator.install()\n"
    run(
        copy,
        (install if hasattr(cupy, "_is_emulated") else "")
        + """
import cupy
bits = np.random.default_rng(0).integers(0, 2, (300, 77))
there = bs.parity(bs.pack_bits(bits).to_device("cuda"))
assert isinstance(there, cupy.ndarray)
assert np.array_equal(there.get(), bits.sum(axis=1) % 2)
assert np.array_equal(bs.parity(bs.pack_bits(bits)), there.get())
""",
    )
