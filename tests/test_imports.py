"""Which module may import which, what an import costs, and that each module can be imported alone."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bitsparse

PACKAGE = Path(bitsparse.__file__).parent

#: Layers from the bottom up: a module imports only from its own layer and those below.
LAYERS = [
    ["_archive", "_check", "_communicator", "_files", "_fork", "_progress", "_records", "_text", "interop", "errors"],
    ["jit", "_ext", "_compiled"],
    ["backends"],
    ["arrays"],
    ["ops"],
    ["datasets", "graph"],
    ["nn"],
    ["bench", "distributed", "jax", "torch", "viz"],
    ["cli"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
#: Never imported by `import bitsparse`.
HEAVY = ["scipy", "matplotlib", "torch", "jax", "cupy", "sklearn", "pymetis", "pandas", "tqdm", "ml_dtypes"]


def modules() -> list[str]:
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    # In an editable installation, the compiled modules stay in its build folder.
    compiled = importlib.util.find_spec("bitsparse._ext.bits")
    assert compiled is not None
    assert compiled.origin is not None
    for path in sorted(Path(compiled.origin).parent.glob("*.so")):
        names.append(f"bitsparse._ext.{path.name.partition('.')[0]}")
    return names


MODULES = modules()


def layer(module: str) -> str | None:
    """Return the layer of a module of ours: ``bitsparse.ops.bits.pack`` -> ``ops``; None for the top package and `__main__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else None


def imports_of(module: str) -> list[tuple[str, bool]]:
    """Return (imported module, whether inside a function) for every import statement that is executed."""
    tree = ast.parse(source_of(module).read_text("utf-8"))
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package_of(module))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.append((inner if inner in MODULES else base, inside))
        for child in ast.iter_child_nodes(node):
            visit(child, inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    visit(tree, False)
    return found


def source_of(module: str) -> Path:
    """Return a Python module's file without importing its package, which may need a framework that is not installed."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def package_of(module: str) -> str:
    return module if source_of(module).name == "__init__.py" else module.rpartition(".")[0]


PYTHON_MODULES = [name for name in MODULES if not name.startswith("bitsparse._ext.")]


def test_the_package_has_the_layers_of_the_design() -> None:
    known = {layer(name) for name in MODULES}
    assert {"_check", "interop", "errors", "_ext", "backends", "arrays", "ops"} <= known
    homeless = [n for n in MODULES if layer(n) is None and n not in ("bitsparse", "bitsparse.__main__")]
    assert not homeless, f"these modules belong to no layer of the design: {homeless}"


@pytest.mark.parametrize("module", PYTHON_MODULES)
def test_imports_go_one_way(module: str) -> None:
    mine = layer(module)
    checked = wrong = 0
    for imported, _ in imports_of(module):
        if imported.split(".")[0] != "bitsparse":
            continue
        checked += 1
        theirs = layer(imported)
        if mine is None:
            continue  # the top package and __main__ may import any module of ours
        if theirs is None:
            if mine in LAYERS[-1]:
                continue  # above the package itself, which does not import these layers
            pytest.fail(f"{module} imports {imported}, the whole package; import the module it needs")
        if RANK[theirs] <= RANK[mine]:
            continue
        wrong += 1
        pytest.fail(f"{module} ({mine}) imports {imported} ({theirs}), which is a layer above")
    assert wrong == 0
    assert checked == sum(name.split(".")[0] == "bitsparse" for name, _ in imports_of(module))


def test_the_walk_sees_real_imports() -> None:
    """The walk must find known imports, also inside functions, so that the check above is not vacuous."""
    assert ("bitsparse.errors", False) in imports_of("bitsparse._check")
    assert any(inside for module in PYTHON_MODULES for _, inside in imports_of(module))
    total = sum(name.startswith("bitsparse") for module in PYTHON_MODULES for name, _ in imports_of(module))
    assert total > 40


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of two or more modules that all reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            fresh = graph[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return [set(group) for group in groups if group]


def test_no_circle_between_files() -> None:
    """No imports may form a circle, not even inside functions: whoever needs one there has put something into the wrong file."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]
    graph = {
        module: {name for name, _ in imports_of(module) if name in PYTHON_MODULES} - {module, "bitsparse"}
        for module in PYTHON_MODULES
    }
    assert not [sorted(circle) for circle in circles(graph)]


def test_the_operators_have_one_hook(tmp_path: Path) -> None:
    """The array types must call the functions that ``bitsparse.ops`` attaches to them, even if only their own module is imported."""
    done = run(
        "import bitsparse.arrays as a, numpy as n; print((a.TCTiledCSR(n.eye(2)) @ n.ones((2, 1))).sum())", tmp_path
    )
    assert done.stdout.strip() == "2.0", done.stderr


@pytest.mark.parametrize("module", PYTHON_MODULES)
def test_gpu_and_framework_imports_stay_in_their_place(module: str) -> None:
    """Only backends.cuda, jit and interop may import CuPy (in functions), only their homes PyTorch and JAX; reference no compiled code."""
    names = {name for name, _ in imports_of(module)}
    tops = {name.split(".")[0] for name in names}
    engine = {"bitsparse.distributed.torch_engine": {"torch"}, "bitsparse.distributed.mpi_engine": {"mpi4py"}}
    homes = {layer(module), *engine.get(module, ())}
    assert not tops & ({"torch", "jax", "jaxlib", "mpi4py"} - homes)
    if module in engine:
        assert not {name for name, inside in imports_of(module) if not inside} & {
            "torch",
            "torch.distributed",
            "mpi4py",
        }
    if not module.startswith(("bitsparse.backends.cuda", "bitsparse.jit", "bitsparse.interop")):
        assert "cupy" not in tops
    eager = {name for name, inside in imports_of(module) if not inside and name.split(".")[0] == "cupy"}
    assert not eager, f"{module} imports {eager} when it is imported: it must come without CuPy"
    if module.startswith("bitsparse.backends.reference"):
        assert not any(name.startswith("bitsparse._ext") or "host" in name for name in names)


def run(code: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *options, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )


def home(module: str) -> Any:
    """Return a parameter for a module; it is deselected if the module is the home of a framework that is not installed."""
    needs = {"bitsparse.jax.equinox": "flax", "bitsparse.jax.flax": "flax"}.get(module, layer(module))
    return pytest.param(module, marks=[getattr(pytest.mark, needs)] if needs in ("flax", "jax", "torch") else [])


#: Imports each module in a copy of a process that has imported the package, which every import of a part of it does first.
IMPORTER = """
import json, os, sys, warnings
import bitsparse
for line in sys.stdin:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer interpreters warn of threads, which libraries may have
        child = os.fork()
    if child == 0:
        os.dup2(write, 1), os.dup2(write, 2), os.close(read)
        try:
            __import__(line.strip())
            print(sys.modules[line.strip()].__name__, flush=True)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    print(json.dumps([os.waitpid(child, 0)[1], said.strip()]), flush=True)
"""


@pytest.fixture(scope="module")
def importer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[int, str]]]:
    """A function that imports a module where only the package has been imported, and returns the exit status and all that was printed."""
    folder = tmp_path_factory.mktemp("imports")
    if not hasattr(os, "fork"):  # a process for each module takes longer

        def imported_alone(module: str) -> tuple[int, str]:
            done = run(f"import {module}, sys; print(sys.modules[{module!r}].__name__)", folder)
            return done.returncode, (done.stdout + done.stderr).strip()

        yield imported_alone
        return
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", IMPORTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout

        def imported(module: str) -> tuple[int, str]:
            print(module, file=to, flush=True)
            status, said = json.loads(back.readline())
            return status, said

        yield imported
        to.close()


@pytest.mark.parametrize("module", [m for m in MODULES if m != "bitsparse.__main__" and not home(m).marks])
def test_each_module_imports_alone(module: str, importer: Callable[[str], tuple[int, str]]) -> None:
    assert importer(module) == (0, module)


def test_a_failing_import_is_noticed(importer: Callable[[str], tuple[int, str]]) -> None:
    status, said = importer("bitsparse.nowhere")
    assert status != 0
    assert "ModuleNotFoundError" in said


@pytest.mark.parametrize("module", [home(m) for m in MODULES if home(m).marks])
def test_each_home_of_a_framework_imports_alone(module: str, tmp_path: Path) -> None:
    done = run(f"import {module}, sys; print(sys.modules[{module!r}].__name__)", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == module
    assert done.stderr == ""


def test_import_is_cheap(tmp_path: Path) -> None:
    done = run(
        f"import bitsparse, sys; print(*[m for m in {HEAVY!r} if m in sys.modules], 'numpy' in sys.modules)", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"], f"import bitsparse also imports {done.stdout.split()[:-1]}"


def test_using_the_library_imports_no_framework(tmp_path: Path) -> None:
    code = (
        "import bitsparse as bs, numpy as np, sys\n"
        "x = np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)\n"
        "a = bs.quantize(x, 4); b = bs.pack_bits(np.ones((30, 3), int), axis=-2)\n"
        "y = bs.matmul(a, b, epilogue=bs.Epilogue(offset_correction=True)); bs.dequantize(a); bs.choose_bits(x); repr(a)\n"
        f"print(*[m for m in {HEAVY!r} if m in sys.modules], y.shape)"
    )
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(20, 3)"


def test_public_names_are_there_and_documented() -> None:
    assert len(bitsparse.__all__) == len(set(bitsparse.__all__)) > 15
    for name in bitsparse.__all__:
        thing = getattr(bitsparse, name)
        if name != "__version__":
            assert thing.__doc__, name
    assert bitsparse.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = bitsparse.no_such_name


def test_the_source_tree_says_what_is_missing(tmp_path: Path) -> None:
    """A copy of the package without its compiled part must explain itself instead of failing somewhere inside.

    The copy is run without site-packages (-S), where an editable installation leaves a finder that comes before the current folder.
    """
    import shutil

    shutil.copytree(PACKAGE, tmp_path / "bitsparse", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    done = run("import bitsparse", tmp_path, "-S")
    assert done.returncode != 0
    assert "ImportError: bitsparse: the compiled part is missing" in done.stderr
    assert "pip install" in done.stderr


def test_the_names_that_are_listed_are_public_and_there() -> None:
    names = dir(bitsparse)
    assert set(bitsparse.__all__) <= set(names) and {"nn", "datasets", "graph", "viz"} <= set(names)
    assert not {"Any", "annotations", "arrays", "ops", "TYPE_CHECKING"} & set(names)
    assert all(getattr(bitsparse, name) is not None for name in names)
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
