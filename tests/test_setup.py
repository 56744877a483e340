"""The suite's own set-up: tests that cannot run here are deselected and counted, and a wrong data folder is reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MARKERS = [
    "gpu",
    "hopper",
    "cora",
    "pubmed",
    "torch",
    "jax",
    "mpi",
    "flax",
    "pyg",
    "tensorflow",
    "paddle",
    "safetensors",
]


def run_pytest(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text((HERE / "conftest.py").read_text("utf-8"), "utf-8")
    options = ["-p", "no:cacheprovider", "-q", "-rs", *(f"-omarkers={name}" for name in ["\n".join(MARKERS)])]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BITSPARSE_DATA")} | environment,
        check=False,
    )


def test_what_cannot_run_is_deselected_and_counted(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    conftest = sys.modules[request.config.pluginmanager.get_plugin(str(HERE / "conftest.py")).__name__]
    available = conftest.AVAILABLE
    assert sorted(available) == sorted(MARKERS)
    tests = "".join(f"@pytest.mark.{name}\ndef test_{name}():\n    assert True\n\n\n" for name in MARKERS)
    (tmp_path / "test_it.py").write_text(f"import pytest\n\n\n{tests}def test_always():\n    assert True\n", "utf-8")
    done = run_pytest(tmp_path, **({} if conftest.DATA is None else {"BITSPARSE_DATA": str(conftest.DATA)}))
    assert done.returncode == 0, done.stdout + done.stderr
    passed, deselected = 1 + sum(available.values()), len(MARKERS) - sum(available.values())
    assert re.search(rf"\b{passed} passed\b", done.stdout), done.stdout
    assert (f"{deselected} deselected" in done.stdout) == (deselected > 0)
    assert "skipped" not in done.stdout


def test_a_wrong_data_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert True\n", "utf-8")
    done = run_pytest(tmp_path, BITSPARSE_DATA=str(tmp_path / "nowhere"))
    assert done.returncode != 0
    assert "BITSPARSE_DATA" in done.stdout + done.stderr
    assert "nowhere" in done.stdout + done.stderr


def test_the_tested_package_is_the_installed_one(pytestconfig: pytest.Config) -> None:
    """The source tree must not shadow the installed package, unless that was built in place or installed as editable."""
    import bitsparse
    from bitsparse._ext import bits, matmul

    package = Path(bitsparse.__file__).parent
    installed = json.loads(distribution("bitsparse").read_text("direct_url.json") or "{}")
    editable = installed.get("dir_info", {}).get("editable", False)
    in_place = Path(bits.__file__).parent == package / "_ext"
    assert Path(matmul.__file__).parent == Path(bits.__file__).parent
    assert in_place or editable, f"{package} is no installed package, and its compiled part is {bits.__file__}"
    if editable:
        assert package == HERE.parent / "bitsparse"
    elif package.parent == HERE.parent:
        assert list((package / "_ext").glob("*.abi3.so")), "the source tree shadows the installed package"


def test_where_the_graph_comes_from_is_said(cora) -> None:
    graph, source = cora
    assert source == "synthetic" or Path(source).is_file()
    assert graph.shape == (2708, 2708)
    assert 8000 < graph.nnz < 11000
    assert abs(graph - graph.T).nnz == 0
