"""Every docstring example of the installed package runs and prints the output that it shows."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import bitsparse

MODULES = ["bitsparse"] + sorted(
    info.name
    for info in pkgutil.walk_packages(bitsparse.__path__, "bitsparse.")
    if not info.name.startswith("bitsparse._ext.") and not info.name.endswith("__main__")
)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return [test for test in found if test.examples]


#: Modules for a framework, which are imported only if it is installed.
HOMES = {"bitsparse.jax": "jax", "bitsparse.torch": "torch"}
OF_FRAMEWORKS = [module for module in MODULES if module.startswith(tuple(HOMES))]
WITH_EXAMPLES = [module for module in MODULES if module not in OF_FRAMEWORKS and examples(module)]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples(module: str, host) -> None:
    run(module)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")  # PyTorch warns once per process
def test_examples_in_pytorch(host) -> None:
    run_home("bitsparse.torch")


@pytest.mark.jax
def test_examples_in_jax(host) -> None:
    run_home("bitsparse.jax")


@pytest.mark.flax
def test_examples_in_flax_and_equinox(host) -> None:
    for module in LAYERS_OF_JAX:
        run(module)


#: Modules of bitsparse.jax that need another framework besides JAX.
LAYERS_OF_JAX = ("bitsparse.jax.equinox", "bitsparse.jax.flax")


def run_home(home: str) -> None:
    for module in OF_FRAMEWORKS:
        if module.startswith(home) and module not in LAYERS_OF_JAX and examples(module):
            run(module)


def run(module: str) -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    report: list[str] = []
    for test in examples(module):
        test.globs.setdefault("np", np)
        test.globs.setdefault("bs", bitsparse)
        runner.run(test, out=report.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(report)


def test_every_public_function_has_an_example() -> None:
    assert sum(len(test.examples) for module in WITH_EXAMPLES for test in examples(module)) >= 60
    named = {test.name for module in WITH_EXAMPLES for test in examples(module)}
    for name in bitsparse.__all__:
        thing = getattr(bitsparse, name)
        if callable(thing) and not (isinstance(thing, type) and issubclass(thing, Exception)) and name != "MatmulPlan":
            assert f"{thing.__module__}.{thing.__qualname__}" in named, f"{name} has no example"
