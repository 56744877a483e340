"""A damaged or hostile file gives one named error, before memory is allocated for sizes that the file merely claims."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse import _archive, nn
from bitsparse.cli import main
from bitsparse.datasets import read, read_npz
from bitsparse.graph import parts as parts_module
from bitsparse.graph.parts import cached_partition


def npy(header: str, payload: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1")
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text + payload


def described(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


def whole(name: str) -> dict[str, bytes]:
    """The members of a valid file for the named loader."""
    stream = io.BytesIO()
    if name == "load_npz":
        bs.save_npz(stream, bs.TCTiledCSR(np.eye(5, dtype=np.float32)))
    elif name == "read_npz":
        np.savez(stream, indptr=[0, 1, 2], indices=[1, 0], features=np.ones((2, 3), np.float32))
    else:
        folder = Path(os.environ["DAMAGED_FILES"])
        made: Any = nn.random_network("gcn", [4, 3, 2])
        if name == "load_binary":
            made = nn.BinaryGCN([nn.BinaryLinear.from_weights(np.ones((4, 3)))])
        elif name == "load_lowbit":
            made = nn.quantize_network(made, bs.FRDC(np.eye(5)), np.arange(20.0).reshape(5, 4), 4)
        made.save(folder / "made.npz")
        stream.write((folder / "made.npz").read_bytes())
    with zipfile.ZipFile(stream) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


FUNCTIONS = {
    "load_npz": bs.load_npz,
    "load_network": nn.load_network,
    "load_binary": nn.load_binary,
    "load_lowbit": nn.load_lowbit,
    "read_npz": read_npz,
}
#: For each loader, a member that is an array of numbers.
ARRAY = {
    "load_npz": "data.npy",
    "load_network": "convs.0.lin.weight.npy",
    "load_binary": "layers.0.scale.npy",
    "load_lowbit": "0.col_scale.npy",
    "read_npz": "features.npy",
}


@pytest.fixture(params=FUNCTIONS)
def loader(request, tmp_path, monkeypatch):
    monkeypatch.setenv("DAMAGED_FILES", str(tmp_path))
    return request.param


@pytest.fixture
def refused(loader, tmp_path):
    """A function that writes a damaged file and expects the named error."""

    def check(members: dict[str, bytes] | bytes, message: str, method: int = zipfile.ZIP_DEFLATED) -> None:
        path = tmp_path / "damaged.npz"
        if isinstance(members, bytes):
            path.write_bytes(members)
        else:
            with zipfile.ZipFile(path, "w", method) as archive:
                for name, content in members.items():
                    archive.writestr(name, content)
        tracemalloc.start()
        try:
            with pytest.raises(bs.FileFormatError, match=rf"^{loader}: .*{message}") as raised:
                FUNCTIONS[loader](path)
            assert tracemalloc.get_traced_memory()[1] < 1 << 24
        finally:
            tracemalloc.stop()
        assert len(str(raised.value)) < 800

    return check


HEADERS = {
    "not a dict": ("[1, 2]", "plain array"),
    "code": ("__import__('os').abort()", "plain array"),
    "an unfinished string": ("{'descr': '<f4", "plain array"),
    "an unfinished bracket": ("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4", "plain array"),
    "deep": ("(" * 9000, "plain array"),
    "a field missing": ("{'descr': '<f4', 'fortran_order': False, }", "plain array"),
    "objects": (described("(3,)", "'|O'"), "pickled Python objects"),
    "a structure": (described("(3,)", "[('a', '<f4')]"), "plain array"),
    "an unknown dtype": (described("(3,)", "'<f3'"), "plain array"),
    "a terabyte": (described("(274877906944,)"), "announces 1099511627776 bytes, but the file holds 0|has shape .274877906944,.,"),
    "more than there is": (described("(1" + "0" * 400 + ",)"), "plain array"),
    "a negative shape": (described("(-3,)"), "plain array"),
    "nothing times infinity": (described("(0, 9223372036854775807, 4)"), "plain array"),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00"], ids=["1.0", "2.0"])
def test_headers_are_matched_and_never_evaluated(loader, refused, what, version):
    header, message = HEADERS[what]
    refused(whole(loader) | {ARRAY[loader]: npy(header, version=version)}, message)


def test_files_of_another_kind(loader, refused):
    members = whole(loader)
    refused(b"", "not a readable .npz file|no .npz of arrays|not a binary model")
    refused(b"PK\x05\x06" + bytes(18), "missing|no names")
    refused({"other.npy": npy(described("(0,)"))}, "missing|none of other|not a binary model")
    refused(members, "compressed in another way", zipfile.ZIP_LZMA)
    refused(members, "compressed in another way", zipfile.ZIP_BZIP2)
    refused(members | {ARRAY[loader]: b"\x93NUMPY\x07\x00" + bytes(60)}, "plain array")
    refused(members | {ARRAY[loader]: npy(described("(3,)"), bytes(8))}, "announces 12 bytes, but the file holds 8")
    refused(members | {ARRAY[loader]: npy("x" * 12_000)}, "its header has 12000 bytes")


def test_a_size_that_the_compressed_bytes_cannot_hold_is_refused_before_it_is_read(loader, refused):
    """An array must be refused if the zip directory and its header claim 2 GiB, but the compressed bytes are too few."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (whole(loader) | {ARRAY[loader]: npy(described("(536870912,)"))}).items():
            archive.writestr(name, content)
        info = archive.getinfo(ARRAY[loader])
        header = info.file_size
        info.file_size = header + (1 << 31)
    refused(stream.getvalue(), "announces 2147483.* bytes, but the file holds")


def test_what_unpacks_to_more_than_the_limit_is_refused(loader, refused, monkeypatch, tmp_path):
    members = whole(loader) | {ARRAY[loader]: npy(described("(25000000,)"), bytes(100_000_000))}
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    del members
    refused(
        path.read_bytes(), "unpacks to more than 9[0-9]* bytes; .* set the environment variable BITSPARSE_MAX_BYTES"
    )
    monkeypatch.setenv("BITSPARSE_MAX_BYTES", "many")
    with pytest.raises(ValueError, match="BITSPARSE_MAX_BYTES is 'many' but must be a whole number"):
        FUNCTIONS[loader](path)


def test_a_gzipped_text_that_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch):
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"0 1\n" + b"\n" * (3 << 20), 1))
    assert read(tmp_path / "e.txt.gz").num_edges == 1
    monkeypatch.setenv("BITSPARSE_MAX_BYTES", str(2 << 20))
    with pytest.raises(bs.FileFormatError, match=r"unpacks to more than 2097152 bytes; .*BITSPARSE_MAX_BYTES"):
        read(tmp_path / "e.txt.gz")


def test_the_limit_grows_with_the_file_and_can_be_set(monkeypatch):
    assert _archive.most_bytes(0) == 64 << 20
    assert _archive.most_bytes(1000) == (64 << 20) + 256_000
    monkeypatch.setenv("BITSPARSE_MAX_BYTES", "5")
    assert _archive.most_bytes(1000) == 5


def test_many_members_share_one_limit(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", indptr=[0, 1, 2], indices=[1, 0], features=np.ones((2, 300)))
    monkeypatch.setenv("BITSPARSE_MAX_BYTES", "5000")
    with pytest.raises(bs.FileFormatError, match="unpacks to more than 5000 bytes"):
        read_npz(tmp_path / "a.npz")
    monkeypatch.setenv("BITSPARSE_MAX_BYTES", "6000")
    assert read_npz(tmp_path / "a.npz").num_edges == 2


@pytest.mark.parametrize("length", [65_536, 65_537])
def test_the_header_of_an_array_has_a_longest_length(length):
    """A header of 64 KiB must be read, and a longer one refused, as save_npz never writes such a header."""
    members = whole("load_npz")
    header = str(np.load(io.BytesIO(members["header.npy"])))
    stream, text = io.BytesIO(), io.BytesIO()
    np.save(text, np.array(header.ljust(length // 4 + (length % 4 > 0))))
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (members | {"header.npy": text.getvalue()}).items():
            archive.writestr(name, content)
    if length == 65_536:
        assert bs.load_npz(stream).nnz == 5
    else:
        with pytest.raises(bs.FileFormatError, match="at most 65536 make sense"):
            bs.load_npz(stream)


# ---- the descriptions of binary models
LINEAR = {"part": "BinaryLinear", "signs": {"array": "layers.0.scale"}, "scale": None, "bias": None}
ABOUT = [
    ("part", "Other"), ("part", ["BinaryGCN"]), ("part", "Setting"), ("variants", None), ("variants", [[]]), ("variants", 1),
    ("variants", []), ("variants", [{"part": "Setting", "variant": "XXX+XXX"}]), ("layers", []), ("layers", 5),
    ("layers", [LINEAR]), ("layers", [[LINEAR]]),
    ("head", 3), ("input_norm", 1), ("input_norm", "columns"), ("input_norm", {"part": "InputNorm", "scale": [1], "shift": [1]}),
    ("more", 1),
    ("input_norm", {"part": "InputNorm", "scale": {"array": "nothing"}, "shift": None}), ("shape", [4]), ("shape", [4, 10**12]),
    ("shape", [0, 3]), ("shape", [4, 3, 1]), ("shape", [4.0, 3]), ("words", {"array": "layers.0.scale"}), ("bits", 2), ("axis", -1),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), ABOUT)
def test_binary_models_of_other_settings_are_refused(tmp_path, key, value):
    nn.BinaryGCN([nn.BinaryLinear.from_weights(np.ones((4, 3)))]).save(tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(str(arrays["about"]))
    signs = about["layers"][0]["signs"]
    (signs if key in signs and key != "part" else about)[key] = value
    np.savez(tmp_path / "m.npz", **(arrays | {"about": np.array(json.dumps(about))}))
    with pytest.raises(
        bs.FileFormatError, match=r"load_binary: .*m\.npz is not a binary model that this version wrote: ."
    ):
        nn.load_binary(tmp_path / "m.npz")


# ---- partitions kept on disk
def graphs():
    """Two patterns with the same row lengths."""
    ring = np.roll(np.eye(12, dtype=int), 1, axis=1)
    return ring, np.roll(np.eye(12, dtype=int), 5, axis=1)


def test_patterns_that_differ_in_columns_alone_have_other_names(tmp_path):
    one, other = graphs()
    assert parts_module.graph_hash(one) != parts_module.graph_hash(other)
    cached_partition(one, 3, cache=tmp_path)
    assert not cached_partition(other, 3, cache=tmp_path)[1]
    assert cached_partition(one, 3, cache=tmp_path)[1]


def test_the_seed_of_a_partition_reaches_metis_and_its_name(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        parts_module, "partition", lambda graph, parts, seed: seen.append(seed) or np.zeros(12, np.int32)
    )
    for seed in (0, 7, 7):
        cached_partition(graphs()[0], 3, seed=seed, cache=tmp_path)
    assert seen == [0, 7]
    assert len(list(tmp_path.iterdir())) == 2


def test_seeds_change_partitions():
    """On a graph without structure, equal seeds must give equal partitions, and different seeds different ones."""
    from bitsparse.graph import partition

    pattern = np.random.default_rng(0).random((400, 400)) < 0.02
    one, same, other = (partition(pattern, 9, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content[:-4] + np.int32(3).tobytes(),
        lambda content: content[:-4] + np.int32(-1).tobytes(),
        lambda content: content[:-4],
        lambda content: content + bytes(4),
        lambda content: b"",
        lambda content: npy(described("(12,)", "'|O'")),
        lambda content: npy(described("(274877906944,)", "'<i4'")),
        lambda content: npy(described("(12,)", "'<i8'"), bytes(96)),
        lambda content: npy(described("(6, 2)", "'<i4'"), bytes(48)),
    ],
    ids=[
        "above the parts",
        "negative",
        "cut off",
        "longer",
        "empty",
        "objects",
        "a terabyte",
        "wide",
        "of two dimensions",
    ],
)
def test_damaged_partitions_are_made_anew(tmp_path, harm):
    ring, _ = graphs()
    labels, _ = cached_partition(ring, 3, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(harm(file.read_bytes()))
    again, found = cached_partition(ring, 3, cache=tmp_path)
    assert not found
    assert np.array_equal(labels, again)
    assert cached_partition(ring, 3, cache=tmp_path)[1]


# ---- files that are written
@pytest.mark.parametrize("form", ["frdc.npz", "mtx", "txt", "npz"])
def test_convert_follows_no_link_and_leaves_other_files_alone(tmp_path, form):
    (tmp_path / "in.txt").write_text("0 1\n1 2\n")
    target, other = tmp_path / f"out.{form}", tmp_path / "other"
    other.write_text("precious")
    for name in (f"out.{form}.part", f"out.{form}.partial"):
        (tmp_path / name).symlink_to(other)
    (tmp_path / "keep.npz.part").write_text("precious")
    before = sorted(os.listdir(tmp_path))
    command = ["convert", str(tmp_path / "in.txt"), str(target)]
    assert main(command) == 0
    assert sorted(os.listdir(tmp_path)) == sorted([*before, target.name])
    target.unlink()
    target.symlink_to(tmp_path / "nowhere")
    assert main(command) == 2
    assert main([*command, "--force"]) == 0
    assert not target.is_symlink()
    assert other.read_text() == (tmp_path / "keep.npz.part").read_text() == "precious"
