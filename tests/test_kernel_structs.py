"""Structures that kernels take must have the same layout in :mod:`ctypes` as a C++ compiler gives their declarations."""

from __future__ import annotations

import ctypes
import importlib
import pkgutil
import re
import shutil
import subprocess
from typing import Any

import pytest

import bitsparse.backends.cuda
from bitsparse import jit
from bitsparse.errors import KernelError
from bitsparse.jit import structs
from bitsparse.jit.cubins import with_headers

#: The sources' typedefs of numbers, for the compiler; BUILTIN has all names that are numbers and no structures.
TYPES = "typedef unsigned u32, bs_u32; typedef long long i64, bs_i64; typedef unsigned long long u64, bs_u64;"
TENSOR_MAP = "struct alignas(64) TensorMap { u64 opaque[16]; };"
BUILTIN = {
    "const",
    "char",
    "short",
    "int",
    "long",
    "unsigned",
    "float",
    "double",
    "void",
    "u32",
    "bs_u32",
    "i64",
    "bs_i64",
}
BUILTIN |= {"u64", "bs_u64"}


def known_structs() -> list[Any]:
    """Return every structure that a module of the CUDA backend asks for."""
    package = bitsparse.backends.cuda
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return sorted({kind for kind, _ in structs._classes.values()}, key=lambda kind: kind.declared)


STRUCTS = known_structs()


def declared_in_c(kind: Any) -> str:
    """Return for a compiler the source text of a structure, preceded by the structures that it contains."""
    header, name, optional = kind.declared
    body = re.sub(r"^#if.*", f"#if {int(optional)}", structs.body_of(header, name) or "", flags=re.MULTILINE)
    inner = [part for _, part in kind._fields_]
    inner = [part._type_ if issubclass(part, ctypes.Array) else part for part in inner]
    before = "".join(declared_in_c(part) for part in dict.fromkeys(inner) if hasattr(part, "declared"))
    pointed = {found for found in re.findall(r"(\w+) \*", body) if found not in BUILTIN}
    forward = "".join(f"struct {found};\n" for found in sorted(pointed) if f"struct {found} " not in before)
    return f"{before}{forward}struct {name} {{\n{body}}};\n"


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Return, for every structure, its size and the offsets and sizes of its fields, as g++ lays them out."""
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    constants = "constexpr int kInlinePasses = 8;\n#define BS_CLASSES 4\n"
    for line in constants.splitlines():  # the sources contain these lines
        assert any(
            line in text
            for source in ("matmul/passes.cuh", "sampling/draw.cuh")
            for text in with_headers(source).values()
        )
    parts, prints = [], []
    for number, kind in enumerate(STRUCTS):
        parts.append(f"namespace s{number} {{\n{declared_in_c(kind)}}}\n")
        whole = f"s{number}::{kind.declared[1]}"
        fields = "".join(
            f'printf(" %zu %zu", offsetof({whole}, {field}), sizeof((({whole} *)0)->{field}));'
            for field, _ in kind._fields_
        )
        prints.append(f'printf("%zu", sizeof({whole}));{fields}puts("");')
    folder = tmp_path_factory.mktemp("structs")
    program = f"#include <cstddef>\n#include <cstdio>\n{TYPES}\n{TENSOR_MAP}\n{constants}{''.join(parts)}"
    (folder / "layouts.cpp").write_text(f"{program}int main() {{\n" + "\n".join(prints) + "\n}\n")
    flags = ("-std=c++17", "-O0", "-w", "-D__align__(n)=alignas(n)")
    subprocess.run([compiler, *flags, "layouts.cpp", "-o", "layouts"], cwd=folder, check=True)
    printed = subprocess.run([folder / "layouts"], check=True, capture_output=True, text=True).stdout
    return [[int(word) for word in line.split()] for line in printed.splitlines()]


@pytest.mark.parametrize("number", range(len(STRUCTS)), ids=[kind.declared[1] for kind in STRUCTS])
def test_structures_lie_as_in_the_sources(number: int, layouts: list[list[int]]) -> None:
    kind = STRUCTS[number]
    mine = [ctypes.sizeof(kind)]
    for field, _ in kind._fields_:
        placed = getattr(kind, field)
        mine += [placed.offset, placed.size]
    assert mine == layouts[number]


def test_one_class_to_a_layout() -> None:
    whole = jit.struct("spmm/codes.cu", "CodeParams", optional=True)
    plain = jit.struct("spmm/codes.cu", "CodeParams")
    assert [name for name, _ in whole._fields_][:-1] == [name for name, _ in plain._fields_]
    assert (
        dict(plain._fields_)["streams"] is jit.struct("csr/streams.cuh", "Streams") is dict(whole._fields_)["streams"]
    )
    assert jit.struct("csr/units.cuh", "Units", optional=True) is jit.struct("csr/units.cuh", "Units")


def test_what_is_no_structure_is_refused() -> None:
    with pytest.raises(KernelError, match=r"neither bits/stats\.cu nor its headers declare a struct Nothing"):
        jit.struct("bits/stats.cu", "Nothing")
    with pytest.raises(KernelError, match="declare a struct bool"):
        jit.struct("bits/quick.cuh", "Quick")
