"""The examples run, and compute what they say."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
WITHOUT_TORCH = [path for path in EXAMPLES if path.stem != "train_bigcn"]


def load(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_examples():
    assert [path.stem for path in EXAMPLES] == ["quantized_layer", "train_bigcn"]


@pytest.mark.parametrize("path", WITHOUT_TORCH, ids=lambda path: path.stem)
def test_error_against_float32_is_small(path, capsys):
    error = load(path).main()
    assert 0 < error < 0.02
    assert "relative error" in capsys.readouterr().out


@pytest.mark.torch
def test_bigcn_learns_and_runs_on_bits(tmp_path, capsys):
    from bitsparse import nn

    n, rng = 120, np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], n // 3)
    near = (labels[:, None] == labels) & (rng.random((n, n)) < 0.2)
    rows, cols = np.nonzero(near | near.T)
    x = rng.random((n, 30)) < np.where(np.arange(30) % 3 == labels[:, None], 0.5, 0.2)
    split = np.arange(n) % 4
    masks = {"train_mask": split == 0, "val_mask": split == 1, "test_mask": split >= 2}
    np.savez(
        tmp_path / "three.npz",
        indptr=np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]),
        indices=cols,
        num_nodes=n,
        features=x.astype(np.float32),
        labels=labels,
        **masks,
    )
    example = load(next(path for path in EXAMPLES if path.stem == "train_bigcn"))
    found = example.main([str(tmp_path / "three.npz"), "--epochs", "200", "--save", str(tmp_path)])
    assert found["full, bits"] == found["full, PyTorch"]
    assert found["binary, bits"] == found["binary, PyTorch"]
    assert found["full, bits"][0] > 85
    assert "seed 0" in capsys.readouterr().out
    assert nn.load_binary(tmp_path / "bigcn-three-0.npz").inputs == 30
