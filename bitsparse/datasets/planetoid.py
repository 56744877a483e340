"""Reader of Planetoid's raw files (Yang et al. 2016): eight pieces of a citation graph, seven of them pickled by Python 2."""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bitsparse._check import brief, shown
from bitsparse.datasets.graph_data import MASKS, GraphData, check_csr
from bitsparse.datasets.sources import csr_of_pairs, naming, node_limit
from bitsparse.errors import ShapeError

PIECES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_VALIDATION = 500

#: Instructions allowed in a pickle: they build numbers, text, tuples, lists, dicts, and the few objects that `_Unpickler` replaces.
_INSTRUCTIONS = (
    "PROTO FRAME STOP MARK POP POP_MARK GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE NONE NEWTRUE "
    "NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE "
    "BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE BUILD "
    "NEWOBJ"
)
_OPCODES = frozenset(_INSTRUCTIONS.split())


class _Array:
    """Stands in for ``numpy.ndarray`` while unpickling; it allocates memory only for bytes that are in the file."""

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
        needed = math.prod(shape) * dtype.dtype.itemsize
        if needed != len(data):
            raise ValueError(f"an array of shape {shown(shape)} needs {needed} bytes, but {len(data)} are there")
        array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if fortran else "C")
        self.array = array.astype(dtype.dtype.newbyteorder("="))


class _DType:
    """Stands in for ``numpy.dtype``; only plain numbers are allowed."""

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
    """Stands in for SciPy's ``csr_matrix``."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError("a sparse matrix is not in SciPy's form")
        self.state = state

    def matrix(self) -> Any:
        from scipy import sparse

        state = getattr(self, "state", {})
        shape = state.get("_shape")
        data, indices, indptr = parts = [state.get(key) for key in ("data", "indices", "indptr")]
        if not all(isinstance(part, np.ndarray) for part in parts):
            raise ValueError("a sparse matrix lacks data, indices or indptr")
        if not isinstance(shape, tuple) or len(shape) != 2 or not all(type(s) is int and s >= 0 for s in shape):
            raise ValueError(f"a sparse matrix has the shape {shown(shape)}")
        check_csr("in a sparse matrix ", "", indptr, indices, shape, data)
        return sparse.csr_array((data, indices, indptr), shape=shape)


def _reconstructor(kind: Any, *_: Any) -> Any:
    if kind is not _Csr:
        raise ValueError("a pickle makes an object of a class that such files do not need")
    return _Csr()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("a pickle encodes something else than bytes")
    return text.encode("latin-1")


def _empty(kind: Callable[[], Any], *arguments: Any) -> Any:
    if arguments:
        raise ValueError(f"a pickle makes a {kind.__name__} from something else than its elements")
    return kind()


#: Bytes that the objects of a pickle may take per byte of the file, and bytes that are always allowed.
_GROWTH, _FREE_BYTES = 16, 1 << 20


def _with_plain_keys(instruction: int, unpickler: _Unpickler) -> None:
    """Set elements of a dict, from the items since the last mark or the last key and value on the stack, if all keys are plain."""
    keys = unpickler.stack[-2:-1] if instruction == pickle.SETITEM[0] else unpickler.stack[::2]
    if not all(isinstance(key, (int, float, str, bytes, type(None))) for key in keys):
        raise ValueError("a dict has keys that are neither numbers nor text")
    unpickler.PLAIN[instruction](unpickler)


#: Python's unpickler written in Python, whose methods can be replaced.
_Python = pickle._Unpickler


class _Unpickler(_Python):
    """Python's unpickler written in Python, limited to stand-ins for the few classes that the files name; its memo is a dict.

    Without these limits, a few bytes that repeat a memo entry could copy it a million times, hash a tuple that contains itself a billion
    times, or set attributes of our own functions.
    """

    PLAIN: ClassVar[dict[int, Any]] = dict(_Python.dispatch)
    dispatch: ClassVar[dict[int, Any]] = dict(PLAIN)
    stack: list[Any]

    ALLOWED: ClassVar[dict[str, Any]] = {
        "numpy.ndarray": _Array,
        "numpy.dtype": _DType,
        "copyreg._reconstructor": _reconstructor,
        "builtins.object": object,
        "builtins.bytes": partial(_empty, bytes),
        "builtins.list": partial(_empty, list),
        "collections.defaultdict": lambda *_: {},
        "_codecs.encode": _encode,
        **{f"{name}.multiarray._reconstruct": lambda *_: _Array() for name in ("numpy.core", "numpy._core")},
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
        """Call a stand-in, and count the bytes that it makes."""
        self.PLAIN[pickle.REDUCE[0]](self)
        value = self.stack[-1]
        self._take(len(value) if isinstance(value, bytes) else 0)

    def load_build(self) -> None:
        """Give a stand-in its state; refuse functions and plain objects, which have none."""
        state, inst = self.stack[-1], self.stack[-2]
        if not isinstance(inst, (_Array, _DType, _Csr)):
            raise ValueError("a pickle sets attributes of something else than an array")
        if isinstance(inst, _Array) and isinstance(state, tuple) and state:
            self._take(len(state[-1]) if isinstance(state[-1], (bytes, str)) else 0)
        self.PLAIN[pickle.BUILD[0]](self)

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    for instruction in (pickle.SETITEM, pickle.SETITEMS, pickle.DICT):
        dispatch[instruction[0]] = partial(_with_plain_keys, instruction[0])

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a class; raises ValueError for any other class."""
        modern = {"copy_reg": "copyreg", "__builtin__": "builtins"}.get(module, module)
        stand_in = self.ALLOWED.get(f"{modern}.{name}")
        if stand_in is None:
            raise ValueError(
                f"it names {shown(f'{module}.{name}')[1:-1]}, which such files do not need and which is not loaded"
            )
        return stand_in


def safe_load(content: bytes) -> Any:
    """Load a pickle of numbers, arrays, CSR matrices, lists and dicts; nothing else in it is built, imported or called.

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
    except ValueError as error:  # shortened, because pickletools quotes whole lines
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
    else, so that no code in them ever runs. Nodes in gaps of the test numbers (citeseer has 15) get no features and the label -1.

    Parameters
    ----------
    path : path
        Any one of the eight files, or a folder that holds the files of one graph.

    Returns
    -------
    GraphData
        Symmetric and without repeated edges, with the standard split: the nodes of `y`, the next 500, and those in ``test.index``.

    Raises
    ------
    FileNotFoundError, OSError
        A file is missing or cannot be read.
    FileFormatError, ShapeError
        A file is damaged or holds something else, or the files do not fit together; the message names the file.

    Examples
    --------
    >>> from bitsparse.datasets import read_planetoid
    >>> read_planetoid("no-such-folder/ind.cora.graph")
    Traceback (most recent call last):
    FileNotFoundError: read_planetoid: there is no file 'no-such-folder/ind.cora.x'; a graph needs all eight
    """
    folder, name = _pieces(Path(path))
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


def names_of(path: Path) -> list[str]:
    """Names of the graphs whose pieces are in a folder, or of the one graph that a file is a piece of."""
    if path.is_dir():
        return sorted(file.name[4:-6] for file in path.glob("ind.*.graph"))
    name = re.fullmatch(rf"ind\.(.*)\.({'|'.join(map(re.escape, PIECES))})", path.name)
    return [name[1]] if name else []


def _pieces(path: Path) -> tuple[Path, str]:
    """The folder and the name of the graph that a path stands for."""
    names = names_of(path)
    if path.is_dir() and len(names) != 1:
        held = ", ".join(names) or "none"
        raise ValueError(f"read_planetoid: {str(path)!r} must hold the files of one graph, found {held}; name a file")
    if not names:
        raise ValueError(f"read_planetoid: {path.name!r} is not one of ind.NAME.{{{', '.join(PIECES)}}}")
    return (path if path.is_dir() else path.parent), names[0]


def _numbers(content: bytes) -> NDArray[np.int64]:
    words = content.split()
    if not all(word.isdigit() and len(word) < 19 for word in words):
        raise ValueError("it must hold one whole number a line")
    return np.array(words, dtype="S18").astype(np.int64) if words else np.empty(0, np.int64)


def _expect(piece: str, part: Any, size: int) -> None:
    if piece == "graph":
        if not (isinstance(part, dict) and all(type(k) is int and isinstance(v, list) for k, v in part.items())):
            raise ValueError("it must hold a dict from node to list of nodes")
        total = sum(map(len, part.values()))
        if total > size:  # a damaged file may repeat one list under many keys
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
    nodes = max(known, int(tests.max(initial=-1)) + 1, len(parts["graph"]))
    node_limit(nodes, sum(map(len, parts["graph"].values())) + known + tests.size, "the number of nodes")

    place = np.concatenate([np.arange(known), tests])
    stacked = sparse.vstack([parts["allx"], parts["tx"]], format="coo")
    x = sparse.csr_array((stacked.data, (place[stacked.coords[0]], stacked.coords[1])), shape=(nodes, stacked.shape[1]))
    one_hot = np.concatenate([parts["ally"], parts["ty"]])
    labels = np.full(nodes, -1, np.int32)
    if one_hot.shape[1]:
        labels[place] = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    source = np.array([node for node, value in parts["graph"].items() for _ in value], np.int64)
    target = np.array([node for value in parts["graph"].values() for node in value], np.int64)
    both = np.concatenate([source, target])
    if both.size and not 0 <= int(both.min()) <= int(both.max()) < nodes:
        raise ValueError(f"graph names nodes {int(both.min())}..{int(both.max())}, but there are {nodes}")
    indptr, indices, _ = csr_of_pairs(both, np.concatenate([target, source]), nodes)
    masks = np.zeros((3, nodes), np.bool_)
    train = parts["x"].shape[0]
    masks[0, :train] = masks[1, train : min(train + _VALIDATION, known)] = masks[2, tests] = True
    split = dict(zip(MASKS, masks & (labels >= 0), strict=True))
    return GraphData(indptr=indptr, indices=indices, x=x, labels=labels, name=name, **split)
