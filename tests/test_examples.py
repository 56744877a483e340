"""The programs in ``examples/`` run, and their results are those that they state."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
WEIGHTS = Path(__file__).resolve().parent / "data" / "gcn-communities.npz"


def load(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(name):
    return load(next(path for path in EXAMPLES if path.stem == name))


def test_there_are_examples():
    tested = [
        "batched_gin",
        "binary_search",
        "cluster_gcn",
        "distributed_jax",
        "from_pyg",
        "quantized_layer",
        "tanimoto",
    ]
    tested += ["train_batches", "train_bigcn", "train_distributed", "train_jax", "train_quantized", "train_torch"]
    assert [path.stem for path in EXAMPLES] == tested


def test_error_against_float32_is_small(capsys):
    error = example("quantized_layer").main()
    assert 0 < error < 0.02
    assert "relative error" in capsys.readouterr().out


def test_ordering_candidates_by_the_floats_finds_more(capsys, tmp_path):
    found = example("binary_search").main()
    assert list(found.values()) == sorted(found.values())
    assert found[16] > 0.98
    np.save(tmp_path / "x.npy", np.eye(200))
    assert example("binary_search").main([tmp_path / "x.npy"])[16] > 0
    assert "as signs" in capsys.readouterr().out


def test_fewer_molecules_are_more_alike(capsys):
    counts = example("tanimoto").main()
    assert list(counts.values()) == sorted(counts.values())
    assert counts[0.3] > 0
    assert "fingerprints of 2048 bits" in capsys.readouterr().out


def test_cluster_gcn_is_about_as_good_as_the_whole_graph(capsys):
    full, batches = example("cluster_gcn").main([]).values()
    assert full > 80
    assert batches > full - 8
    assert "lead out of their batch" in capsys.readouterr().out


def test_batched_gin_follows_full_precision(capsys):
    errors = example("batched_gin").main()
    assert list(errors.values()) == sorted(errors.values())
    assert errors[8] < 0.03
    assert "fewer bytes" in capsys.readouterr().out


def test_stored_weights_of_pytorch_geometric(capsys):
    full, eight, four = example("from_pyg").main(["--weights", str(WEIGHTS)]).values()
    assert full > 88
    assert eight > full - 0.5
    assert four > full - 2
    assert "gcn 48 -> 16 -> 6" in capsys.readouterr().out


@pytest.mark.pyg
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric", "ignore:.*torch.jit:DeprecationWarning")
def test_a_model_of_pytorch_geometric_is_trained_read_and_quantised(tmp_path, capsys):
    path = tmp_path / "gcn.pt"
    full, eight, four = example("from_pyg").main(["--epochs", "30", "--save", str(path)]).values()
    assert full > 85
    assert eight > full - 1
    assert four > full - 4
    assert "gcn 48 -> 16 -> 6" in capsys.readouterr().out
    again = example("from_pyg").main(["--weights", str(path), "--bits", "8"])
    assert list(again.values()) == [full, eight]


def test_without_a_framework_it_says_what_to_install(monkeypatch):
    for name, needed, said in (
        ("from_pyg", "torch_geometric", "pip install torch torch_geometric"),
        ("train_jax", "jax", "pip install .bitsparse.jax.."),
        ("train_quantized", "torch", "pip install torch"),
    ):
        for loaded in [needed, *(name for name in sys.modules if name.startswith(f"{needed}."))]:
            monkeypatch.setitem(sys.modules, loaded, None)  # as if it were not installed
        with pytest.raises(SystemExit, match=said):
            example(name).main(*([] if name == "train_quantized" else [[]]))


@pytest.mark.flax
@pytest.mark.parametrize(
    ("layer", "bits"), [("gcn", []), ("sage", []), ("gat", []), ("gcn", ["--bits", "8"]), ("gat", ["--bits", "4"])]
)
def test_networks_are_trained_in_jax(layer, bits, tmp_path, capsys):
    given = [str(three_classes(tmp_path)), "--layer", layer, "--epochs", "60", *bits]
    assert min(example("train_jax").main(given).values()) > 85
    assert "test accuracy" in capsys.readouterr().out


def three_classes(folder):
    """The file of a small graph with features, labels and a split."""
    n, rng = 120, np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], n // 3)
    near = (labels[:, None] == labels) & (rng.random((n, n)) < 0.2)
    rows, cols = np.nonzero(near | near.T)
    x = rng.random((n, 30)) < np.where(np.arange(30) % 3 == labels[:, None], 0.5, 0.2)
    split = np.arange(n) % 4
    masks = {"train_mask": split == 0, "val_mask": split == 1, "test_mask": split >= 2}
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
    path = folder / "three.npz"
    np.savez(path, indptr=indptr, indices=cols, num_nodes=n, features=x.astype(np.float32), labels=labels, **masks)
    return path


@pytest.mark.torch
@pytest.mark.parametrize("bits", ["8", "32"])
def test_networks_are_trained_on_batches(bits, tmp_path, capsys):
    given = [str(three_classes(tmp_path)), "--epochs", "15", "--batch", "16", "--fanout", "4", "--device", "cpu"]
    assert example("train_batches").main([*given, "--bits", bits])[0] > 85
    assert "seed 0" in capsys.readouterr().out


@pytest.mark.torch
def test_bigcn_learns_and_runs_on_bits(tmp_path, capsys):
    from bitsparse import nn

    found = example("train_bigcn").main([str(three_classes(tmp_path)), "--epochs", "200", "--save", str(tmp_path)])
    assert found["full, bits"] == found["full, PyTorch"]
    assert found["binary, bits"] == found["binary, PyTorch"]
    assert found["full, bits"][0] > 85
    assert "seed 0" in capsys.readouterr().out
    assert nn.load_binary(tmp_path / "bigcn-three-0.npz").inputs == 30


@pytest.mark.torch
@pytest.mark.parametrize("layer", ["gcn", "sage", "gat", "gin"])
def test_networks_are_trained_in_pytorch(layer, tmp_path, capsys):
    given = [str(three_classes(tmp_path)), "--layer", layer, "--epochs", "60", "--device", "cpu"]
    assert example("train_torch").main(given)[0] > 85
    assert "seed 0" in capsys.readouterr().out


@pytest.mark.torch
def test_networks_are_trained_and_quantised(tmp_path, capsys):
    from bitsparse import nn

    three_classes(tmp_path)
    given = ["--data", str(tmp_path), "--graphs", "three", "--save", str(tmp_path), "--seeds", "1"]
    module = example("train_quantized")
    for found in module.main([*given, "--epochs", "2"]):
        assert found["accuracies"][0].keys() == {32, 8, 4}
        network = nn.load_network(tmp_path / f"three-{found['network']}-0.npz")
        assert network.kind == found["network"].partition("-")[0]
    assert "| three | gin-3x64 |" in capsys.readouterr().out
    learned = module.main([*given, "--networks", "gcn-2x16", "--bits", "8", "--epochs", "60", "--json"])
    assert learned[0]["accuracies"][0][32] > 85
    assert abs(learned[0]["accuracies"][0][8] - learned[0]["accuracies"][0][32]) < 4
    assert '"graph": "three"' in capsys.readouterr().out


def by_torchrun(folder, name, *arguments):
    """The output of an example on two ranks."""
    path = next(path for path in EXAMPLES if path.stem == name)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(path), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "JAX_PLATFORMS": "cpu"},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.torch
def test_a_network_is_trained_by_two_ranks_and_runs_in_few_bits(tmp_path):
    for bits in ("8", "32"):
        said = by_torchrun(tmp_path, "train_distributed", "--nodes", "2000", "--bits", bits).splitlines()
        assert min(float(part.split(" %")[0].split(": ")[-1]) for part in said[-1].split(", ")) > 80


@pytest.mark.jax
@pytest.mark.torch
def test_two_processes_of_jax_hand_their_shards_over(tmp_path):
    said = by_torchrun(tmp_path, "distributed_jax")
    assert "2 processes, 2 devices" in said
    assert "the sums of one device, bit for bit: True" in said
