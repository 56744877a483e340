"""The case of suite ``manners`` that counts members: it makes the calls of a table in the tests on our arrays and on SciPy's."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases import manners_gpu
from bitsparse.bench import Prepared, Protocol

__all__ = ["prepared"]

TABLE = Path(__file__).resolve().parents[2] / "tests" / "scipy_members.py"


def prepared() -> Prepared:
    """The case: calls of every member, on a GPU if there is one."""
    device = "cuda" if manners_gpu.present() else "cpu"
    params: dict[str, Any] = {"device": device}

    def measure(protocol: Protocol) -> tuple[Any, None]:
        found = {member.name: same(member, device) for member in table().MEMBERS if is_public(member.name)}
        differing = sorted(name for name, agrees in found.items() if not agrees)
        params.update(members=len(found), share=1 - len(differing) / len(found), differing=differing)
        return None, None

    return Prepared(lambda: None, None, None, params, 0, measure=measure)


@cache
def table() -> Any:
    """Import the module with the table."""
    spec = importlib.util.spec_from_file_location("scipy_members", TABLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def is_public(name: str) -> bool:
    """Whether a line of the table is a member and not an operator."""
    return bool(name.isidentifier()) and name != "iteration"


def same(member: Any, device: str) -> bool:
    """Whether a call returns the same elements as SciPy's; members without a call in the table do not exist here."""
    from scipy import sparse

    if member.call is None:
        return False
    theirs = sparse.random_array((7, 9), density=0.35, format="csr", rng=np.random.default_rng(0))
    theirs.data = np.where(theirs.data < 0.5, -1.0, 1.0).astype(np.float32)
    ours = bs.TCTiledCSR(theirs).to_device(device)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = member.call(theirs)
        try:
            got = member.call(ours if member.name != "dot" or device == "cpu" else _OnDevice(ours))
        except (bs.BitsparseError, AttributeError):
            return False
    got, want = plain(got), plain(want)
    if isinstance(want, (np.ndarray, np.generic)):
        return np.shape(got) == np.shape(want) and np.allclose(got, want, rtol=1e-6, atol=0, equal_nan=True)
    return bool(got == want)


class _OnDevice:
    """An array whose `dot` first moves NumPy features to the array's GPU."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def dot(self, other: Any) -> Any:
        import bitsparse.interop as interop

        return self._array.dot(interop.move(other, self._array.device))


def plain(x: Any) -> Any:
    """Convert the result of a call to a NumPy array or a scalar."""
    x = x.toarray() if hasattr(x, "toarray") else x
    return x.get() if hasattr(x, "get") and not isinstance(x, dict) else x
