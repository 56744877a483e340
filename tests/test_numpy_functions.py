"""NumPy's functions on the array types must do what they mean or be refused by name, and never make an array of objects."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import numpy as np
import pytest

import bitsparse as bs

CODES = np.arange(9).reshape(3, 3)
ARRAYS = {
    "BitTensor": bs.BitTensor(CODES, 4, axis=-2),
    "TCTiledCSR": bs.TCTiledCSR(CODES),
    "FRDC": bs.FRDC(CODES > 3),
}
#: All functions that ask their arguments first, so that these can answer.
ASKING = {
    f"{space.__name__}.{name}": getattr(space, name)
    for space in (np, np.linalg, np.fft)
    for name in dir(space)
    if hasattr(getattr(space, name), "_implementation")
}


def holds_objects(result: Any) -> bool:
    if isinstance(result, (list, tuple)):
        return any(holds_objects(each) for each in result)
    return isinstance(result, np.ndarray) and result.dtype == object


@pytest.mark.parametrize("held", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("name", sorted(ASKING))
def test_no_function_makes_an_array_of_objects(name: str, held: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for args in (
        (held,),
        (CODES, held),
        (held, CODES),
        ("file", held),
        ("ij,jk", CODES, held),
        (held, CODES, CODES),
    ):
        result = None
        with contextlib.suppress(Exception):  # most functions take other arguments than these and fail
            result = ASKING[name](*args)
        assert not holds_objects(result), args


@pytest.mark.parametrize(
    "name", ["vstack", "hstack", "concatenate", "stack", "block", "unique", "ravel", "cumsum", "array_equal", "kron"]
)
def test_the_refusal_names_the_function_and_the_type(name: str) -> None:
    for kind, held in ARRAYS.items():
        args = ([held, held],) if "stack" in name or name in ("concatenate", "block") else (held, held)
        with pytest.raises(bs.DTypeError, match=rf"numpy\.{name}: an operand is a {kind}.*toarray"):
            getattr(np, name)(*args[: 1 if name in ("unique", "ravel", "cumsum") else 2])


@pytest.mark.parametrize("kind", ARRAYS)
def test_nothing_is_saved_as_an_object(kind: str, tmp_path: Any) -> None:
    with pytest.raises(bs.DTypeError, match=r"numpy\.save: .*save_npz"):
        np.save(tmp_path / "held.npy", ARRAYS[kind])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ARRAYS)
def test_what_has_a_meaning_works(kind: str) -> None:
    held = ARRAYS[kind]
    dense = held.toarray()
    assert np.array_equal(np.dot(CODES, held), CODES @ dense)
    assert (np.shape(held), np.ndim(held), np.size(held)) == ((3, 3), 2, 9 if kind == "BitTensor" else held.nnz)
    transposed: Any = np.transpose(held)
    assert np.array_equal(transposed.toarray(), dense.T)
    assert type(np.copy(held)) is type(held)
    if kind != "BitTensor":
        assert np.array_equal(np.dot(held, CODES), dense @ CODES)
    for operation in (operator.add, operator.mul):
        total = operation(CODES, held)
        assert np.array_equal(total.toarray() if bs.issparse(total) else total, operation(CODES, dense.astype(int)))


def test_a_product_of_batches_is_not_numpys_dot() -> None:
    batch = bs.BitTensor(np.ones((2, 3, 3), int), 1, axis=-2)
    with pytest.raises(bs.DTypeError, match=r"numpy\.dot"):
        np.dot(np.ones((2, 3, 3), int), batch)
