"""Print the size of the package: ``python3 .ci/house.py [ROOT]`` lists code lines by package, foreign private names, and what is too large.

A code line is a line with anything but comments and docstrings. "As of the bar" leaves out what did not exist when the bar of 23 500 lines
was set (26 914 lines then): whole modules that came with later features, which are listed below. Code that later features added to modules
from before the bar is still counted.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

#: Modules that came after the bar was set, by the feature that they came with.
LATER = {
    "PyTorch": ("torch/*", "cli/accuracy.py", "interop/tensors.py", "interop/memory.py", "interop/addresses.py"),
    "JAX": ("jax/*", "jit/recording.py", "interop/stand_ins.py", "ops/edges/prepared.py"),
    "several devices": ("distributed/*", "_communicator.py", "nn/cluster/ranks.py"),
    "batches for training": ("graph/samplers.py", "graph/subgraphs.py", "backends/*/sampling/subgraphs.py"),
    "gradients": ("*vjp.py", "ops/operands/both_ways.py", "backends/cuda/edges/head_scores.py"),
    "attention of the second kind": ("*/gatv2.py",),
    "sums and attention of integers": (
        *(f"ops/quantized/{name}.py" for name in ("attention", "product", "scaled", "spmm")),
        "backends/cuda/quantized/steps.py",
        "backends/cuda/edges/attention_codes.py",
    ),
    "sparse features in few bits": ("nn/lowbit/inputs.py",),
    "dot products of edges on matrix units": ("backends/cuda/edges/sddmm_tiles.py",),
    "costs of products on a CPU": ("backends/host/matmul/costs.py",),
    "small products in one launch": tuple(
        f"backends/cuda/matmul/{name}.py" for name in ("mixed", "one_launch", "resident")
    ),
    "products of bytes as they lie": ("backends/cuda/matmul/bytes.py", "ops/quantized/bytewise.py"),
    "searches": ("*/search/*", "ops/bits/packed_bytes.py"),
    "rows laid out": ("backends/cuda/csr/rows.py",),
    "sums by panels": ("backends/cuda/spmm/panels.py", "backends/cuda/spmm/panels_build.py"),
    "members of SciPy": (
        *("arrays/manners/*", "arrays/assemble.py", "arrays/exact.py", "arrays/word_reductions.py"),
        *("backends/*/sparse/products.py", "backends/*/sparse/entries.py", "backends/cuda/sparse/merge.py"),
    ),
    "other libraries' graphs": ("arrays/exchange.py", "interop/graphs.py", "graph/edge_lists.py", "nn/neighbours.py"),
    "networks of PyTorch Geometric": ("nn/pyg/modules.py", "nn/pyg/trace.py", "nn/pyg/models.py"),
    "files of low-bit networks": ("nn/lowbit/files.py",),
    "comparisons from the wheel": ("cli/demo/[lrs]*.py", "cli/bench.py", "bench/peers.py", "cli/run/whole.py"),
    "interruptions": ("cli/interrupt.py",),
    "training on signs in integers": ("backends/*/binary/signs.py", "backends/signs.py"),
    "activations kept in few bits": ("backends/*/bits/look_up.py",),
    "rows with a step each": ("backends/cuda/bits/rows.py", "ops/quantized/coded_rows.py"),
    "forks": ("_fork.py",),
}
MOST_LINES, MOST_PARAMETERS = 400, 10
#: Names with an underscore that belong to the public interface of their owners.
_PUBLIC = ("_replace", "_asdict", "_fields", "_exit")


def documented(tree: ast.AST) -> set[int]:
    """Return the lines of all docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            found.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def code_lines(text: str, tree: ast.AST) -> int:
    """Return the number of lines with code."""
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented(tree))


def foreign(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield private names of other objects; those of ``self``, ``cls`` and ``super()`` are a class's own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        owner = ast.unparse(node.value)
        if owner not in ("self", "cls", "super()", "_check", "_ext", "_compiled") and node.attr not in _PUBLIC:
            yield node


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of a function's parameters, without ``self``."""
    return len([one for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if one.arg != "self"])


def later(name: str) -> str | None:
    """Return the later feature that a module belongs to, or None."""
    return next((feature for feature, globs in LATER.items() if any(fnmatch(name, glob) for glob in globs)), None)


def main(root: Path) -> None:
    """Count and print."""
    packages: Counter[str] = Counter()
    features: Counter[str] = Counter()
    private, large, wide = [], [], []
    for path in sorted((root / "bitsparse").rglob("*.py")):
        text, name = path.read_text(), path.relative_to(root / "bitsparse").as_posix()
        tree = ast.parse(text)
        lines = code_lines(text, tree)
        packages["/".join(name.split("/")[:2]) if name.startswith("backends/") else name.split("/")[0]] += lines
        features[later(name) or ""] += lines
        private += [f"{name}:{node.lineno} {ast.unparse(node)}" for node in foreign(tree)]
        if text.count("\n") > MOST_LINES:
            large.append(f"{name} {text.count(chr(10))}")
        functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        wide += [
            f"{name}:{node.lineno} {node.name} {parameters(node)}"
            for node in functions
            if parameters(node) > MOST_PARAMETERS
        ]
    total, then = sum(packages.values()), features.pop("")
    for package, lines in packages.most_common():
        print(f"{lines:6d} {package}")
    print(f"{total:6d} in all; as of the bar {then}, and with later features:")
    print("      ", "; ".join(f"{feature} {lines}" for feature, lines in features.most_common()))
    for what, found in (("foreign private names", private), (f"modules over {MOST_LINES} lines", large)):
        print(f"{len(found)} {what}: {'; '.join(found)}")
    print(f"{len(wide)} functions of more than {MOST_PARAMETERS} parameters: {'; '.join(wide)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
