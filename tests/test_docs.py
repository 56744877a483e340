"""Files that the documentation names exist, and its reference has every public name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import bitsparse

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "bitsparse|cuda_src|_ext|tests|benchmarks|examples|docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_are_where_a_page_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text)
    missing += [path for path in paths if "FAMILY" not in path and not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sections_are_where_a_link_says(page: Path) -> None:
    for file, section in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        target = (page.parent / file).read_text(encoding="utf-8") if file else page.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", target, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert section in anchors


def test_a_release_has_links_that_work_on_a_package_index() -> None:
    spec = importlib.util.spec_from_file_location("links", ROOT / ".ci" / "links.py")
    assert spec is not None and spec.loader is not None
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    here = "https://example.org/who/bitsparse"
    shown = links.absolute(readme + "[a](#measured) [b](https://example.org/c)", here, "v1")
    assert set(re.findall(r"\]\((?!https:)([^)]*)\)", shown)) == {"#measured"}
    files = re.findall(rf"\]\({here}/blob/v1/([^)#]+)", shown)
    assert files and all((ROOT / file).is_file() for file in files)
    assert "(https://example.org/c)" in shown
    project = tomllib.loads(links.with_urls((ROOT / "pyproject.toml").read_text(encoding="utf-8"), here, "v1"))[
        "project"
    ]
    assert project["urls"]["Changelog"] == f"{here}/blob/v1/CHANGELOG.md"
    assert project["scripts"] == {"bitsparse": "_bitsparse_command:main"}


# ---- the reference
#: Modules whose ``__all__`` is for users; public names of other modules are in bitsparse itself.
HOMES = ["bench", "cli", "datasets", "distributed", "graph", "interop", "jax", "jit", "nn", "torch", "viz"]
#: Modules for frameworks that need not be installed.
OF_FRAMEWORKS = {"bitsparse.jax", "bitsparse.torch"}
PUBLIC = ["bitsparse", *(f"bitsparse.{name}" for name in HOMES)]


def listed() -> dict[str, set[str]]:
    """The names that the pages of the reference list by ``autosummary`` and ``py:data``, for each module."""
    found: dict[str, set[str]] = {}
    for page in sorted((ROOT / "docs" / "api").iterdir()):
        module = ""
        for line in page.read_text(encoding="utf-8").splitlines() if page.is_file() else []:
            if named := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = named[1]
            elif module and (name := re.match(r"(?:   |\.\. py:data:: )(\w+)$", line)):
                found.setdefault(module, set()).add(name[1])
    return found


def public(module: str) -> list[str]:
    """The module's ``__all__``; for frameworks it is read from the source, as the framework need not be installed."""
    if module not in OF_FRAMEWORKS:
        return list(importlib.import_module(module).__all__)
    tree = ast.parse(
        (Path(bitsparse.__file__).parent / module.split(".")[1] / "__init__.py").read_text(encoding="utf-8")
    )
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return list(ast.literal_eval(assigned[-1].value))


def needs_a_framework(module: str) -> bool:
    """Whether a module is ``bitsparse.torch``, ``bitsparse.jax``, or inside them, such as ``bitsparse.jax.flax``."""
    return ".".join(module.split(".")[:2]) in OF_FRAMEWORKS


def object_of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_a_page_of_the_reference(module: str) -> None:
    pages = listed()
    missing = set(public(module)) - pages[module]
    if missing:  # an object that is public in two modules is on one page only
        elsewhere = [object_of(at, name) for at in pages if not needs_a_framework(at) for name in pages[at]]
        missing = {name for name in missing if not any(object_of(module, name) is one for one in elsewhere)}
    assert missing == set()
    assert pages[module] - set(public(module)) == set()


@pytest.mark.parametrize(
    "module",
    [pytest.param(one, marks=getattr(pytest.mark, one[10:])) if one in OF_FRAMEWORKS else one for one in PUBLIC],
)
def test_every_public_name_has_a_docstring(module: str) -> None:
    """Every public function and class must have a docstring, and every other public name a sentence on its page."""
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.rst"))
    named = {name: object_of(module, name) for name in public(module) if f".. py:data:: {name}\n\n   " not in text}
    assert [name for name, one in named.items() if not callable(one) or not one.__doc__] == []


def test_every_module_whose_names_are_public_is_known() -> None:
    package = Path(bitsparse.__file__).parent
    there = {path.stem if path.suffix else path.name for path in package.iterdir() if path.name[0] != "_"}
    inner = {"arrays", "backends", "errors", "ops", "py", "cuda_src"}
    assert {f"bitsparse.{name}" for name in there - inner} | {"bitsparse"} == set(PUBLIC)
