"""Errors of sparse functions must name the function that was called, its own arguments, both values and a remedy that works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs

X, Y = np.ones((3, 4), np.float32), np.ones((2, 4), np.float32)
SIGNS = bs.pack_bits(X, encoding="bipolar")
CODES = bs.BitTensor(X.astype(int), 2, scale=0.5, offset=1.0)
NONE = np.zeros(3, np.float32), np.zeros(2, np.float32)


def damaged(column: int) -> sp.csr_array:
    """Return a full 2 x 3 matrix with another column index in the second row."""
    made = sp.csr_array(np.ones((2, 3), np.float32))
    made.indices = np.array([0, 1, 2, 0, column, 2], np.int32)
    return made


READ_COLUMNS: dict[str, Callable] = {
    "spmm": lambda A: bs.spmm(A, X),
    "spmm of a maximum": lambda A: bs.spmm(A, X, reduce="max"),
    "spmm of integers": lambda A: bs.spmm(A.astype(np.int8), X.astype(np.int8)),
    "spmm of codes": lambda A: bs.spmm(A, CODES),
    "spmm of counted bits": lambda A: bs.spmm(A.astype(bool), bs.pack_bits(X), epilogue=bs.Epilogue()),
    "spmm with an offset": lambda A: bs.spmm(A, CODES, epilogue=bs.Epilogue(offset_correction=True)),
    "plan_spmm": lambda A: bs.plan_spmm(A, 4)(X),
    "sddmm": lambda A: bs.sddmm(A, Y, X),
    "sddmm of sums": lambda A: bs.sddmm(A, Y, X, op="add"),
    "attention": lambda A: bs.attention(A, X, *NONE),
    "aggregate_edges": lambda A: bs.aggregate_edges(A, np.ones((6, 2)), side="cols"),
    "edge_sample": lambda A: bs.edge_sample(A, 9),
    "sampled_spmm": lambda A: bs.sampled_spmm(A, X, 9),
    "sampled_spmm of codes": lambda A: bs.sampled_spmm(A, CODES, 9),
    "plan_sampled_spmm": lambda A: bs.plan_sampled_spmm(A, 4, 9)(X),
    "bspmm": lambda A: bs.bspmm(A, X),
    "bspmm of bits": lambda A: bs.bspmm(A.astype(bool), SIGNS),
    "bspmm to bits": lambda A: bs.bspmm(A.astype(bool), SIGNS, "BBB"),
    "plan_bspmm": lambda A: bs.plan_bspmm(A, 4, "BFF")(SIGNS),
    "TCTiledCSR": bs.TCTiledCSR,
    "FRDC": bs.FRDC,
    "BitTensor": lambda A: bs.BitTensor(A.astype(int)),
}


@pytest.mark.parametrize("column", [3, 77, -1])
@pytest.mark.parametrize("call", READ_COLUMNS)
def test_a_column_outside_of_the_matrix_is_named_with_the_function_and_its_row(call: str, column: int) -> None:
    function = call.split()[0]
    with pytest.raises(
        ValueError, match=rf"^{function}: .*row 1 holds the column {column}, but there are 3 columns; \w+"
    ):
        READ_COLUMNS[call](damaged(column))


def damaged_in(form: str, column: int, dtype: Any = np.float32) -> Any:
    """Return the matrix in another format, with one index outside of it."""
    if form == "coo":
        made = sp.coo_array(np.ones((2, 3), dtype))
        made.coords = (made.coords[0], np.array([0, 1, 2, 0, column, 2], np.int32))
        return made
    if form == "bsr":
        made = sp.bsr_array(np.ones((2, 6), dtype), blocksize=(1, 2))
    else:
        made = {"csr": sp.csr_array, "csc": sp.csc_array}[form](np.ones((2, 3) if form == "csr" else (3, 2), dtype))
    made.indices = np.array([0, 1, 2, 0, column, 2], np.int32)
    return made


OPERATORS: dict[str, Callable] = {
    "add": lambda A, B: A + B,
    "subtract": lambda A, B: B - A,
    "multiply": lambda A, B: A * B,
    "divide": lambda A, B: A / B,
    "less": lambda A, B: A < B,
    "equal": lambda A, B: A == B,
    "maximum": lambda A, B: A.maximum(B),
    "matmul": lambda A, B: A @ B,
    "&": lambda A, B: (A > 0) & B,
    r"A\[\.\.\.\]": lambda A, B: A[B],
}
CONVERTING = ("TCTiledCSR", "FRDC", "spmm", "sddmm", "bspmm")


@pytest.mark.parametrize("column", [3, -1])
@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo"])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operand_of_scipys_is_looked_at_before_scipy_believes_it(name: str, form: str, column: int) -> None:
    made = damaged_in(form, column, bool if name[0] in "&A" else np.float32)
    whole = bs.TCTiledCSR(np.ones(made.shape[::-1] if name == "matmul" else made.shape, np.float32))
    with pytest.raises(ValueError, match=rf"^{name}: .*{form}_array.* damaged"):
        OPERATORS[name](whole, made)


@pytest.mark.parametrize("form", ["csc", "bsr", "coo"])
@pytest.mark.parametrize("name", CONVERTING)
def test_a_matrix_of_scipys_is_looked_at_before_scipy_converts_it(name: str, form: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: "):
        READ_COLUMNS[name](damaged_in(form, 3))
    short = damaged_in(form, 1)
    if form != "coo":
        short.indices = np.array([0, 1, 2, 0, 1, 2], np.int32)
        short.data = short.data[:4]
        with pytest.raises(bs.ShapeError, match=rf"^{name}: a {form}_array has 6 entries but data of shape \(4"):
            READ_COLUMNS[name](short)


BELIEVING: dict[str, Callable] = {
    "add": lambda A, B: A + np.ones(A.shape, np.float32),
    "multiply": lambda A, B: B * A,
    "maximum": lambda A, B: A.maximum(B),
    "&": lambda A, B: (B > 0) & A.astype(bool),
    "matmul": lambda A, B: A @ B.T,
    "sum": lambda A, B: A.sum(0),
    "mean": lambda A, B: A.mean(0),
    "max": lambda A, B: A.max(0),
    "argmax": lambda A, B: A.argmax(1),
    "setdiag": lambda A, B: A.setdiag(1),
    "toarray": lambda A, B: A.toarray(),
    "tocsr": lambda A, B: A.tocsc(),
    r"A\[\.\.\.\]": lambda A, B: A[:, [2, 0]],
    "permute": lambda A, B: bs.graph.permute(A, [2, 1, 0]),
    "reorder": lambda A, B: bs.graph.reorder(A),
}


@pytest.mark.parametrize("pattern", [False, True])
@pytest.mark.parametrize("part", ["indptr", "indices"])
@pytest.mark.parametrize("name", BELIEVING)
def test_an_array_that_was_written_into_is_looked_at_before_scipy_believes_it(
    name: str, part: str, pattern: bool
) -> None:
    A, B = (bs.TCTiledCSR(np.ones((3, 3), np.float32), pattern=pattern) for _ in range(2))
    indptr, indices, _ = A.csr_arrays()
    if part == "indptr":
        indptr[1] = 10
    else:
        indices[4] = 3
    looked_at = rf"^{name}: .*shape \(3, 3\) were written into after it was made"
    with pytest.raises(ValueError, match=rf"{looked_at}|^indptr must .* damaged" if name == "&" else looked_at):
        BELIEVING[name](A, B)


@pytest.mark.parametrize("dtypes", [(np.int64, np.int32), (np.int32, np.int64), (">i4", ">i4"), (np.int16, np.int8)])
def test_the_index_arrays_of_an_operand_may_be_of_any_integers(dtypes: tuple[Any, Any]) -> None:
    other = sp.csr_array(np.eye(3, dtype=np.float32)[[1, 2, 0]])
    other.indptr, other.indices = other.indptr.astype(dtypes[0]), other.indices.astype(dtypes[1])
    dense = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert ((bs.TCTiledCSR(dense) @ other).toarray() == dense[:, [2, 0, 1]]).all()
    assert ((other @ bs.TCTiledCSR(dense)).toarray() == dense[[1, 2, 0]]).all()


BITS = bs.Epilogue(bias=1.0, binarize=True)
NAN = X * np.float32("nan")
FULL = sp.csr_array(np.ones((2, 3), bool))


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("spmm", lambda: bs.spmm(FULL, NAN, epilogue=BITS)),
        ("plan_spmm", lambda: bs.plan_spmm(FULL, 4, epilogue=BITS)(NAN)),
        ("bspmm", lambda: bs.bspmm(FULL, NAN, "FBB")),
        ("bspmm", lambda: bs.bspmm(FULL, SIGNS, "BBB", add=NAN[:2])),
        ("add", lambda: bs.add(NAN, X, "FFB")),
        ("Epilogue", lambda: BITS(NAN)),
    ],
)
def test_nan_on_its_way_to_a_bit_is_blamed_on_the_function_that_was_called(function: str, call: Callable) -> None:
    with pytest.raises(ValueError, match=f"^{function}: the epilogue produced NaN"):
        call()


def test_an_offset_is_that_of_x() -> None:
    with pytest.raises(ValueError, match=r"^spmm: x has an offset"):
        bs.spmm(FULL, CODES, epilogue=bs.Epilogue())


# ---- advice that works
def advised(message: str) -> str:
    return message.rpartition("; pass ")[2]


@pytest.mark.parametrize("dense", [np.eye(3), [[1, 0, 0], [0, 1, 0], [0, 0, 1]]])
def test_the_advice_for_a_dense_adjacency_works(dense: object) -> None:
    with pytest.raises(bs.DTypeError, match=r"^spmm: A must be sparse") as error:
        bs.spmm(dense, X)
    A = eval(advised(str(error.value)), {"TCTiledCSR": bs.TCTiledCSR, "A": dense})
    assert np.array_equal(bs.spmm(A, X), X)


@pytest.mark.torch
@pytest.mark.parametrize("form", ["to_sparse_csr", "to_sparse", "pyg"])
def test_bits_of_a_graph_with_other_values_are_refused_with_what_works(form: str) -> None:
    import torch

    dense = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
    if form == "pyg":

        class A:  # edges from the second row to the first, as in PyTorch Geometric
            edge_index, num_nodes = dense.T.nonzero().T, 3
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that its CSR tensors are in beta
            A = getattr(dense, form)()
    if form == "pyg":
        assert np.array_equal(bs.FRDC(A).toarray(), dense.numpy() != 0)
        return
    with pytest.raises(ValueError, match=r"FRDC: bits hold only 0 and 1.*pass pattern=True"):
        bs.FRDC(A)
    assert np.array_equal(bs.FRDC(A, pattern=True).toarray(), dense.numpy() != 0)


def test_sparse_features_are_refused_with_what_works() -> None:
    A, S = bs.TCTiledCSR(np.eye(3, dtype=np.float32)), sp.eye_array(3, format="csr", dtype=np.float32)
    with pytest.raises(bs.DTypeError, match=r"call its \.toarray\(\) first"):
        bs.spmm(S, S)
    for product in (S @ A, A @ S, A @ A):
        assert isinstance(product, bs.TCTiledCSR)
        assert np.array_equal(product.toarray(), S.toarray() @ A)


# ---- arguments of other types
@pytest.mark.parametrize(
    "value", [None, "a", "0.5", True, [], np.ones(2), 1e39, -1e39, 10**400, float("nan"), float("inf")]
)
def test_factors_of_attention_are_finite_numbers_of_float32(value: object) -> None:
    square = sp.csr_array(np.ones((3, 3), bool))
    number = r"must be a finite number of float32, got" if np.ndim(value) == 0 else r"(must be a|has shape \(\d,?\))"
    with pytest.raises((bs.DTypeError, ValueError), match=rf"^cosine_attention: beta {number}"):
        bs.cosine_attention(square, X, beta=value)
    with pytest.raises(
        (bs.DTypeError, ValueError), match=r"^attention: negative_slope must be a finite number of float32, got"
    ):
        bs.attention(FULL, X, *NONE, negative_slope=value)


# ---- inputs that would silently mean something else
@pytest.mark.parametrize("made", [bs.TCTiledCSR, bs.FRDC, bs.BitTensor])
def test_assignment_operators_do_not_change_the_class(made: Callable) -> None:
    A = B = made(np.eye(2, dtype=int))
    # A TCTiledCSR stays one in sums with another, and in products with and quotients by dense arrays.
    other, operators = (np.eye(2), ("+=", "-=", "@=")) if made is bs.TCTiledCSR else (B, ("+=", "-=", "*=", "/=", "@="))
    for operator in operators:
        with pytest.raises(bs.DTypeError, match=r"not changed in place.*B = A [-+*/@] other"):
            exec(f"A {operator} B", {"A": A, "B": other})


@pytest.mark.parametrize("made", [bs.TCTiledCSR, bs.FRDC, bs.BitTensor])
def test_a_list_of_edges_is_not_taken_for_a_dense_array(made: Callable) -> None:
    pairs = [(0, 1), (1, 2), (2, 0)]
    with pytest.raises(bs.DTypeError, match="3 pairs might be edges or a dense array") as error:
        made(pairs)
    edges, array = (part.partition(" for ")[0] for part in advised(str(error.value)).split(", numpy"))
    got = eval(edges, {"TCTiledCSR": bs.TCTiledCSR, "FRDC": bs.FRDC, "pairs": pairs})
    assert np.array_equal(got.toarray(), np.roll(np.eye(3), 1, axis=1))
    assert made(eval("numpy" + array, {"numpy": np, "pairs": np.array(pairs) % 2})).shape == (3, 2)
    assert made([[0, 1], [1, 0]]).shape == (2, 2)


@pytest.mark.parametrize("kernel", [np.ones(2), np.ones(0), 3, ["csr"], sp.eye_array(2), True])
@pytest.mark.parametrize(
    "call",
    [
        lambda kernel: bs.spmm(FULL, X, kernel=kernel),
        lambda kernel: bs.plan_spmm(FULL, 4, kernel=kernel),
        lambda kernel: bs.bspmm(FULL, X, kernel=kernel),
        lambda kernel: bs.plan_bspmm(FULL, 4, kernel=kernel),
        lambda kernel: bs.matmul(bs.pack_bits(X), bs.pack_bits(X.T, axis=-2), kernel=kernel),
    ],
)
def test_kernels_are_known_by_name(call: Callable, kernel: object) -> None:
    with pytest.raises(bs.KernelError, match="there is no kernel"):
        call(kernel)


def test_ragged_lists_are_refused_by_name() -> None:
    for call, name in ((bs.add, "a"), (lambda a, b: bs.concat([a, b]), r"parts\[0\]")):
        with pytest.raises(bs.DTypeError, match=rf"^(add|concat): {name} is not a rectangular array"):
            call([[1], [1, 2]], X)


@pytest.mark.parametrize("read", ["load_npz", "load_binary", "load_lowbit", "load_network", "save_npz"])
@pytest.mark.parametrize("file", [b"a.npz", None, 3])
def test_what_is_no_file_is_named(read: str, file: Any) -> None:
    call = getattr(bs, read, None) or getattr(bs.nn, read)
    with pytest.raises(TypeError, match=rf"^{read}: file must be a path or a binary file, got {file!r}; wrap bytes in"):
        call(*(file, SIGNS)[: 2 if read == "save_npz" else 1])


@pytest.mark.parametrize("sizes", [(2**63, 2), (2, 2**70)])
@pytest.mark.parametrize("call", [bs.random, bs.eye])
def test_sizes_that_no_index_counts_are_named(call: Callable, sizes: tuple[int, int]) -> None:
    with pytest.raises(bs.ShapeError, match=rf"^{call.__name__}: shape \(\d+, \d+\) is beyond the largest size"):
        call(*sizes)


def test_more_elements_than_can_be_drawn_from_are_named() -> None:
    with pytest.raises(bs.ShapeError, match=r"^random: shape .* has more than 2\*\*63 elements"):
        bs.random(2**32, 2**31, 0.0)
