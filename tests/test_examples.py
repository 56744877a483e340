"""The examples run, and compute what they say."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


def load(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_examples():
    assert [path.stem for path in EXAMPLES] == ["quantized_layer"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_error_against_float32_is_small(path, capsys):
    error = load(path).main()
    assert 0 < error < 0.02
    assert "relative error" in capsys.readouterr().out
