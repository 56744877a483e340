"""Planetoid's raw files (Yang et al. 2016): eight pieces of a citation graph, seven of them pickled by Python 2."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bitsparse._check import brief, shown
from bitsparse.datasets.graph_data import GraphData
from bitsparse.datasets.sources import csr_of_pairs, naming, node_limit
from bitsparse.errors import ShapeError

__all__ = ["PIECES", "read_planetoid", "safe_load"]

PIECES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_VALIDATION = 500

#: What a pickle may do: build numbers, text, tuples, lists, dicts, and the few objects that `_Unpickler` replaces.
_INSTRUCTIONS = (
    "PROTO FRAME STOP MARK POP POP_MARK GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE NONE NEWTRUE "
    "NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE "
    "BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE BUILD "
    "NEWOBJ"
)
_OPCODES = frozenset(_INSTRUCTIONS.split())


class _Array:
    """Stands for ``numpy.ndarray`` while unpickling; memory is only taken for bytes that are in the file."""

    def __init__(self) -> None:
        self.array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], _DType):
            raise ValueError("an array is not in NumPy's form")
        _, shape, dtype, fortran, raw = state
        data = raw.encode("latin-1") if isinstance(raw, str) else raw
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"an array has the shape {shown(shape)}")
        if not isinstance(data, bytes):
            raise ValueError("an array holds pickled objects, which are never loaded")
        count = 1
        for size in shape:
            count *= size
        if count * dtype.dtype.itemsize != len(data):
            raise ValueError(
                f"an array of shape {shown(shape)} needs {count * dtype.dtype.itemsize} bytes, but {len(data)} are there"
            )
        array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if fortran else "C")
        self.array = array.astype(dtype.dtype.newbyteorder("="))


class _DType:
    """Stands for ``numpy.dtype``: plain numbers only."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        text = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or len(text) != 2 or text[0] not in "biuf" or text[1] not in "1248":
            raise ValueError(f"an array has the dtype {shown(code)}, but only plain numbers are loaded")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "=", b"<", b">", b"|"):
            raise ValueError("a dtype is not in NumPy's form")
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order in "<>":
            self.dtype = self.dtype.newbyteorder(">" if order == ">" else "<")


class _Csr:
    """Stands for SciPy's ``csr_matrix``."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError("a sparse matrix is not in SciPy's form")
        self.state = state

    def matrix(self) -> Any:
        from scipy import sparse

        state = getattr(self, "state", {})
        shape = state.get("_shape")
        parts: list[NDArray[Any]] = [
            part
            for key in ("data", "indices", "indptr")
            if isinstance(part := state.get(key), np.ndarray) and part.ndim == 1
        ]
        if len(parts) != 3:
            raise ValueError("a sparse matrix lacks data, indices or indptr")
        data, indices, indptr = parts
        if not isinstance(shape, tuple) or len(shape) != 2 or not all(type(s) is int and s >= 0 for s in shape):
            raise ValueError(f"a sparse matrix has the shape {shown(shape)}")
        if indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu" or indptr.size != shape[0] + 1:
            raise ValueError(f"a sparse matrix of shape {shown(shape)} has {indptr.size} row starts")
        steps = indptr.astype(np.int64)
        bad = steps[0] != 0 or steps[-1] != indices.size or (np.diff(steps) < 0).any() or data.size != indices.size
        if bad or (indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < shape[1]):
            raise ValueError(f"the arrays of a sparse matrix of shape {shown(shape)} contradict each other")
        return sparse.csr_array((data, indices, indptr), shape=shape)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _reconstructor(kind: Any, *_: Any) -> Any:
    if kind is not _Csr:
        raise ValueError("a pickle makes an object of a class that such files do not need")
    return _Csr()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("a pickle encodes something else than bytes")
    return text.encode("latin-1")


def _no_bytes(*arguments: Any) -> bytes:
    if arguments:
        raise ValueError("a pickle makes bytes from something else than text")
    return b""


def _mapping(*_: Any) -> dict[Any, Any]:
    return {}


def _empty_list(*arguments: Any) -> list[Any]:
    if arguments:
        raise ValueError("a pickle makes a list from something else than its elements")
    return []


#: Bytes that the objects of a pickle may take for each of the file, and how many any file may.
_GROWTH, _FREE_BYTES = 16, 1 << 20


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler in Python (its memo is a dict), with stand-ins for the classes that the files name and no others.

    A few bytes that repeat a memo entry could otherwise copy it a million times, hash a tuple that holds itself a billion times over, or
    write attributes of our own functions.
    """

    PLAIN: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    dispatch: ClassVar[dict[int, Any]] = dict(PLAIN)
    stack: list[Any]

    ALLOWED: ClassVar[dict[str, Any]] = {
        "numpy.ndarray": _Array,
        "numpy.dtype": _DType,
        "copyreg._reconstructor": _reconstructor,
        "builtins.object": object,
        "builtins.bytes": _no_bytes,
        "builtins.list": _empty_list,
        "collections.defaultdict": _mapping,
        "_codecs.encode": _encode,
        **{f"{name}.multiarray._reconstruct": _reconstruct for name in ("numpy.core", "numpy._core")},
        **{f"scipy.sparse.{name}.csr_matrix": _Csr for name in ("csr", "_csr")},
    }

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")
        self._room = _FREE_BYTES + _GROWTH * len(content)

    def _take(self, nbytes: int) -> None:
        self._room -= nbytes
        if self._room < 0:
            raise ValueError("its objects take far more memory than the file has bytes")

    def load_reduce(self) -> None:
        """Call a stand-in."""
        self.PLAIN[pickle.REDUCE[0]](self)
        value = self.stack[-1]
        self._take(len(value) if isinstance(value, bytes) else 0)

    def load_build(self) -> None:
        """Give a stand-in its state; functions and plain objects take none."""
        state, inst = self.stack[-1], self.stack[-2]
        if not isinstance(inst, (_Array, _DType, _Csr)):
            raise ValueError("a pickle sets attributes of something else than an array")
        if isinstance(inst, _Array) and isinstance(state, tuple) and state:
            self._take(len(state[-1]) if isinstance(state[-1], (bytes, str)) else 0)
        self.PLAIN[pickle.BUILD[0]](self)

    def _check_keys(self, items: list[Any]) -> None:
        if not all(isinstance(key, (int, float, str, bytes, type(None))) for key in items[::2]):
            raise ValueError("a dict has keys that are neither numbers nor text")

    def load_setitem(self) -> None:
        """Set one element of a dict."""
        self._check_keys(self.stack[-2:])
        self.PLAIN[pickle.SETITEM[0]](self)

    def load_setitems(self) -> None:
        """Set elements of a dict."""
        self._check_keys(self.stack)  # those since the last mark
        self.PLAIN[pickle.SETITEMS[0]](self)

    def load_dict(self) -> None:
        """Make a dict of elements."""
        self._check_keys(self.stack)
        self.PLAIN[pickle.DICT[0]](self)

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a class, or an error."""
        modern = {"copy_reg": "copyreg", "__builtin__": "builtins"}.get(module, module)
        stand_in = self.ALLOWED.get(f"{modern}.{name}")
        if stand_in is None:
            raise ValueError(
                f"it names {shown(f'{module}.{name}')[1:-1]}, which such files do not need and which is not loaded"
            )
        return stand_in


def safe_load(content: bytes) -> Any:
    """What a pickle of numbers, arrays, CSR matrices, lists and dicts holds; nothing else in it is built, imported or called.

    Raises
    ------
    ValueError
        The pickle is damaged or holds anything else.

    Examples
    --------
    >>> import pickle
    >>> safe_load(pickle.dumps({1: [2, 3]}, protocol=2))
    {1: [2, 3]}
    >>> safe_load(pickle.dumps(print, protocol=2))
    Traceback (most recent call last):
    ValueError: it names __builtin__.print, which such files do not need and which is not loaded
    """
    try:
        for opcode, _, _ in pickletools.genops(content):
            if opcode.name not in _OPCODES:
                raise ValueError(f"it uses the pickle instruction {opcode.name}, which such files do not need")
        value = _Unpickler(content).load()
    except (ArithmeticError, LookupError, TypeError, AttributeError, EOFError, RecursionError, AssertionError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {brief(error)})") from None
    except pickle.UnpicklingError as error:
        raise ValueError(f"it is damaged ({brief(error)})") from None
    except ValueError as error:  # pickletools quotes whole lines
        raise ValueError(brief(error)) from None
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, _Csr):
        state = getattr(value, "state", {})
        value.state = {key: part.array if isinstance(part, _Array) else part for key, part in state.items()}
        return value.matrix()
    return value


def read_planetoid(path: str | os.PathLike[str]) -> GraphData:
    """Read a Planetoid graph from its raw files ``ind.NAME.{x, tx, allx, y, ty, ally, graph, test.index}``.

    The files are pickles. They are read with an unpickler that builds numbers, arrays, CSR matrices, lists and dicts and refuses everything
    else, so that nothing in them is ever run. Nodes of a gap in the test numbers (citeseer has 15) get no features and the label -1.

    Parameters
    ----------
    path : path
        Any one of the eight files, or a folder that holds those of one graph.

    Returns
    -------
    GraphData
        Symmetric and without repeated edges, with the standard split: `y`'s nodes, the next 500, and those of ``test.index``.

    Raises
    ------
    FileNotFoundError, OSError
        A file is missing or cannot be read.
    FileFormatError, ShapeError
        A file is damaged, holds something else, or they do not fit together; the message names the file.

    Examples
    --------
    >>> from bitsparse.datasets import read_planetoid
    >>> read_planetoid("no-such-folder/ind.cora.graph")
    Traceback (most recent call last):
    FileNotFoundError: read_planetoid: there is no file 'no-such-folder/ind.cora.x'; a graph needs all eight
    """
    folder, name = _found(Path(path))
    parts: dict[str, Any] = {}
    for piece in PIECES:
        file = folder / f"ind.{name}.{piece}"
        if not file.is_file():
            raise FileNotFoundError(f"read_planetoid: there is no file {str(file)!r}; a graph needs all eight")
        content = file.read_bytes()
        with naming("read_planetoid", file):
            parts[piece] = _numbers(content) if piece == "test.index" else safe_load(content)
            _expect(piece, parts[piece], len(content))
    with naming("read_planetoid", name):
        return _assembled(parts, name)


def _found(path: Path) -> tuple[Path, str]:
    if path.is_dir():
        names = sorted({file.name[4:-6] for file in path.glob("ind.*.graph")})
        if len(names) != 1:
            found = ", ".join(names) or "none"
            raise ValueError(
                f"read_planetoid: {str(path)!r} must hold the files of one graph, found {found}; name a file"
            )
        return path, names[0]
    for piece in PIECES:
        if path.name.startswith("ind.") and path.name.endswith(f".{piece}"):
            return path.parent, path.name[4 : -len(piece) - 1]
    raise ValueError(f"read_planetoid: {path.name!r} is not one of ind.NAME.{{{', '.join(PIECES)}}}")


def _numbers(content: bytes) -> NDArray[np.int64]:
    words = content.split()
    if not all(word.isdigit() and len(word) < 19 for word in words):
        raise ValueError("it must hold one whole number a line")
    return np.array(words, dtype="S18").astype(np.int64) if words else np.empty(0, np.int64)


def _expect(piece: str, part: Any, size: int) -> None:
    if piece == "graph":
        whole = isinstance(part, dict) and all(type(k) is int and isinstance(v, list) for k, v in part.items())
        if not whole:
            raise ValueError("it must hold a dict from node to list of nodes")
        total = sum(len(value) for value in part.values())
        if total > size:  # one list under many keys
            raise ValueError(f"it spreads {size} bytes over {total} edges")
        if not all(type(node) is int and 0 <= node < 1 << 62 for value in part.values() for node in value):
            raise ValueError("its lists must hold node numbers")
    elif piece in ("x", "tx", "allx"):
        if not hasattr(part, "tocsr"):
            raise ValueError(f"it must hold a csr_matrix, got {type(part).__name__}")
    elif piece != "test.index" and not (isinstance(part, np.ndarray) and part.ndim == 2):
        raise ValueError("it must hold a two-dimensional array, one row per node and one column per class")


def _assembled(parts: dict[str, Any], name: str) -> GraphData:
    from scipy import sparse

    tests, known = parts["test.index"], parts["allx"].shape[0]
    for one, other in (("x", "y"), ("tx", "ty"), ("allx", "ally")):
        if parts[one].shape[0] != parts[other].shape[0]:
            raise ShapeError(f"{one} has {parts[one].shape[0]} rows, but {other} has {parts[other].shape[0]}")
    if parts["allx"].shape[1] != parts["tx"].shape[1] or parts["ally"].shape[1] != parts["ty"].shape[1]:
        raise ShapeError("allx and tx (or ally and ty) have different numbers of columns")
    if tests.size != parts["tx"].shape[0] or np.unique(tests).size != tests.size:
        raise ShapeError(
            f"test.index names {tests.size} nodes, but tx has {parts['tx'].shape[0]} rows; one each is needed"
        )
    if parts["x"].shape[0] > known or (tests.size and int(tests.min()) < known):
        raise ValueError(f"allx has {known} rows, which must hold all of x and none of test.index")
    edges = sum(len(value) for value in parts["graph"].values())
    nodes = max(known, int(tests.max(initial=-1)) + 1, len(parts["graph"]))
    node_limit(nodes, edges + known + tests.size, "the number of nodes")

    place = np.concatenate([np.arange(known), tests])
    stacked = sparse.vstack([parts["allx"], parts["tx"]], format="coo")
    x = sparse.csr_array((stacked.data, (place[stacked.coords[0]], stacked.coords[1])), shape=(nodes, stacked.shape[1]))
    one_hot = np.concatenate([parts["ally"], parts["ty"]])
    labels = np.full(nodes, -1, np.int32)
    if one_hot.shape[1]:
        labels[place] = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    lengths = np.array([len(value) for value in parts["graph"].values()], np.int64)
    source = np.repeat(np.array(list(parts["graph"]), np.int64), lengths)
    target = np.array([node for value in parts["graph"].values() for node in value], np.int64)
    both = np.concatenate([source, target])
    if both.size and not 0 <= int(both.min()) <= int(both.max()) < nodes:
        raise ValueError(f"graph names nodes {int(both.min())}..{int(both.max())}, but there are {nodes}")
    indptr, indices, _ = csr_of_pairs(both, np.concatenate([target, source]), nodes)
    masks = [np.zeros(nodes, np.bool_) for _ in range(3)]
    train = parts["x"].shape[0]
    masks[0][:train] = masks[1][train : min(train + _VALIDATION, known)] = masks[2][tests] = True
    train_mask, val_mask, test_mask = (mask & (labels >= 0) for mask in masks)
    return GraphData(
        indptr=indptr, indices=indices, x=x, labels=labels, train_mask=train_mask, val_mask=val_mask, test_mask=test_mask,
        name=name,
    )  # fmt: skip
