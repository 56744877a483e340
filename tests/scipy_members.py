"""Public members of :class:`scipy.sparse.csr_array`: a call of each, and what our arrays do; docs/scipy-members.md is made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scipy-members.md"
SAME, REFUSED, ABSENT = "same", "refused", "not there"


@dataclass(frozen=True)
class Member:
    """One member: a call to make on SciPy's array and on ours, and its outcome for ours on either device."""

    name: str
    call: Callable[[Any], Any] | None
    cpu: str = SAME
    gpu: str = SAME
    note: str = ""


def after(name: str, *arguments: Any) -> Callable[[Any], Any]:
    """A call that applies an in-place method to a copy and returns the copy."""

    def call(a: Any) -> Any:
        a = a.copy()
        getattr(a, name)(*arguments)
        return a

    return call


def method(name: str, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda a: getattr(a, name)(*arguments, **options)


def attribute(name: str) -> Callable[[Any], Any]:
    return lambda a: getattr(a, name)


UNARY = (
    *(
        "arcsin",
        "arcsinh",
        "arctan",
        "arctanh",
        "ceil",
        "deg2rad",
        "expm1",
        "floor",
        "log1p",
        "rad2deg",
        "rint",
        "sign",
        "sin",
    ),
    *("sinh", "sqrt", "tan", "tanh", "trunc"),
)
ON_CPU = "on a GPU use `A.get()` first"
MEMBERS = [
    *(Member(name, method(name)) for name in UNARY),
    Member("T", attribute("T"), note="derived once and kept"),
    Member("argmax", method("argmax")),
    Member("argmin", method("argmin", axis=1)),
    Member("asformat", method("asformat", "csc")),
    Member("astype", method("astype", np.float64)),
    Member("check_format", method("check_format")),
    Member("conj", method("conj")),
    Member("conjugate", method("conjugate")),
    Member("copy", method("copy")),
    Member("count_nonzero", method("count_nonzero", axis=0)),
    Member("data", attribute("data"), note="None of a pattern; an FRDC has `tiles` instead"),
    Member("diagonal", method("diagonal", 1)),
    Member("dot", method("dot", np.ones((9, 2), np.float32)), note="of two sparse arrays as `@`"),
    Member("dtype", attribute("dtype"), note="uint8 of a pattern, whose ones are counted in int32 and int64"),
    Member("eliminate_zeros", after("eliminate_zeros"), note="other arrays that share the pattern keep it"),
    Member("format", attribute("format"), note='"frdc" of an FRDC'),
    Member("has_canonical_format", attribute("has_canonical_format"), note="always"),
    Member("has_sorted_indices", attribute("has_sorted_indices"), note="always"),
    Member("imag", attribute("imag")),
    Member("indices", attribute("indices"), note="of an FRDC columns of blocks"),
    Member("indptr", attribute("indptr"), note="of an FRDC rows of blocks"),
    Member(
        "max", method("max"), note="along an axis SciPy's array of one dimension; on a GPU pass `keepdims=True` there"
    ),
    Member("maximum", lambda a: a.maximum(a * 2)),
    Member("maxprint", None, ABSENT, ABSENT, "the text of an array is one line"),
    Member("mean", method("mean", axis=1)),
    Member("min", method("min"), note="as `max`"),
    Member("minimum", lambda a: a.minimum(a * 2)),
    Member("multiply", lambda a: a.multiply(a)),
    Member("nanmax", method("nanmax"), note="as `max`; on a GPU of all elements"),
    Member("nanmin", method("nanmin"), note="as `nanmax`"),
    Member("ndim", attribute("ndim")),
    Member("nnz", attribute("nnz")),
    Member("nonzero", lambda a: np.stack([getattr(part, "get", lambda part=part: part)() for part in a.nonzero()])),
    Member("power", method("power", 2)),
    Member("prune", after("prune"), note="there is no room behind the entries"),
    Member("real", attribute("real")),
    Member("reshape", method("reshape", (9, 7)), note="two dimensions only"),
    Member("resize", after("resize", 5, 12), note="without scales"),
    Member("setdiag", after("setdiag", 3), note="without scales"),
    Member("shape", attribute("shape")),
    Member("size", attribute("size"), note="stored entries"),
    Member("sort_indices", after("sort_indices"), note="they are"),
    Member("sorted_indices", method("sorted_indices")),
    Member("sum", method("sum", axis=0)),
    Member("sum_duplicates", after("sum_duplicates"), note="there are none"),
    Member("toarray", method("toarray"), note="also `dtype=`, the first argument; `out` of any strides"),
    Member("tobsr", method("tobsr"), gpu=REFUSED, note=ON_CPU),
    Member("tocoo", method("tocoo"), note="on a GPU CuPy's matrices, which hold floats and booleans only"),
    Member("tocsc", method("tocsc"), note="as `tocoo`"),
    Member("tocsr", method("tocsr"), note="as `tocoo`"),
    Member("todense", method("todense")),
    Member("todia", method("todia"), gpu=REFUSED, note=ON_CPU),
    Member("todok", method("todok"), gpu=REFUSED, note=ON_CPU),
    Member("tolil", method("tolil"), gpu=REFUSED, note=ON_CPU),
    Member("trace", method("trace")),
    Member("transpose", method("transpose")),
    # Operators have no member name.
    Member("A[2:5]", lambda a: a[2:5], note="of an FRDC from block to block a view"),
    Member("A[i]", lambda a: a[1], gpu=REFUSED, note="SciPy's array of one dimension; on a GPU write `A[i:i + 1]`"),
    Member("A[:, j]", lambda a: a[:, 2], gpu=REFUSED, note="as `A[i]`"),
    Member("A[i, j]", lambda a: a[1, 2]),
    Member("A[rows][:, cols]", lambda a: a[[3, 0, 3]][:, [1, 0]]),
    Member("A[rows, cols]", lambda a: a[[3, 0], [1, 0]]),
    Member("A[A > 0]", lambda a: a[a > 0]),
    Member("A[i, j] = v", None, REFUSED, REFUSED, "others may share the pattern; `A.data`, `setdiag` or `A.tolil()`"),
    Member("iteration", None, REFUSED, REFUSED, "slice instead, as in `A[i:j]`"),
    Member("A + B", lambda a: a + a[::-1]),
    Member("A - B", lambda a: a - a[::-1]),
    Member("A * B", lambda a: a * a[::-1]),
    Member("A * 2", lambda a: a * 2),
    Member("A / 2", lambda a: a / 2),
    Member("A / B", lambda a: a / a, gpu=REFUSED, note="dense; " + ON_CPU),
    Member("A ** 2", lambda a: a**2),
    Member("-A", lambda a: -a),
    Member("abs(A)", abs),
    Member("A > 1", lambda a: a > 1, note="on a GPU only where elements that are not stored stay False"),
    Member("A != B", lambda a: a != a[::-1]),
    Member(
        "A @ B",
        lambda a: a @ a.T,
        note="two sparse arrays; integer sums are exact, int32 or int64; on a GPU floats by cuSPARSE",
    ),
    Member("A @ x", lambda a: a @ np.ones((9, 2), np.float32), note="`spmm`"),
]
#: Members of cupyx.scipy.sparse.csr_matrix that SciPy's sparse arrays never had or no longer have.
OF_CUPY = [
    Member("A", None, ABSENT, ABSENT, "`toarray()`"),
    Member("H", lambda a: a.T, note="`T`, as values are real"),
    Member("asfptype", None, ABSENT, ABSENT, "`astype`"),
    Member("device", None, note='"cpu" or "cuda:0"'),
    Member("get", None),
    Member("getH", None, ABSENT, ABSENT, "`T`"),
    Member("get_shape", None, ABSENT, ABSENT, "`shape`"),
    Member("getcol", None, ABSENT, ABSENT, "`A[:, j:j + 1]`"),
    Member("getformat", None, ABSENT, ABSENT, "`format`"),
    Member("getmaxprint", None, ABSENT, ABSENT, "the text of an array is one line"),
    Member("getnnz", None),
    Member("getrow", None, ABSENT, ABSENT, "`A[i:i + 1]`"),
    Member("mT", lambda a: a.T, note="`T`"),
    Member("set_shape", None, ABSENT, ABSENT, "`resize`"),
]


def page() -> str:
    """The text of docs/scipy-members.md."""
    members = [member for member in MEMBERS if member.name.isidentifier() and member.name != "iteration"]
    there = {device: sum(getattr(member, device) == SAME for member in members) for device in ("cpu", "gpu")}
    lines = [
        "# Members of SciPy's sparse arrays",
        "",
        "What `scipy.sparse.csr_array` can do, and whether `TCTiledCSR` and `FRDC` do the same. Made of the table in",
        "`tests/scipy_members.py`, whose calls are compared with SciPy's in the tests; do not edit it here.",
        "",
        f"Of {len(members)} public members {there['cpu']} give the same result on the CPU and {there['gpu']} on a GPU.",
        "*Refused* is an error that names the way that works. Results that are sparse are arrays of this library: booleans of an",
        "`FRDC` are an `FRDC`, everything else is a `TCTiledCSR`. Scales of rows and columns stay where rows and columns are picked,",
        "and are multiplied in where values are computed.",
        "",
        "`scipy.sparse.csr_array(A)` does not take them, nor does `scipy.sparse.issparse`, since SciPy asks for its own classes:",
        "`A.tocsr()` is the way there. `scipy.sparse.linalg.aslinearoperator(A)`, and so `eigsh`, `svds`, `cg` and `lobpcg`, take",
        "them as they are.",
        "",
    ]
    for heading, table in (
        ("Members", members),
        ("Operators", [member for member in MEMBERS if member not in members]),
        ("Members of CuPy's matrices beyond these", OF_CUPY),
    ):
        lines += [f"## {heading}", "", "| name | CPU | GPU | |", "|---|---|---|---|"]
        lines += [
            f"| `{one.name}` | {one.cpu} | {one.gpu} | {one.note} |"
            for one in sorted(table, key=lambda one: one.name.lower())
        ]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
