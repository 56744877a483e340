"""Sharded graphs in files, one for each rank, and large synthetic graphs whose shards each rank makes by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bitsparse import _check, interop
from bitsparse._archive import opened, reading
from bitsparse._communicator import Communicator, agree, is_communicator, together
from bitsparse._files import replacing
from bitsparse.datasets.synthetic import synthetic_csr
from bitsparse.distributed import safe_files
from bitsparse.distributed.parts import Partition, balanced_bounds, streamed_hash
from bitsparse.distributed.shards import Shard
from bitsparse.errors import DTypeError

Format = Literal["npz", "safetensors"]
FORMATS = ("npz", "safetensors")
_FORMAT = "bitsparse shard 1"
_ARRAYS = ("indptr", "columns", "values", "row_scale", "col_scale")
#: Entries whose far ends are computed at a time.
_PIECE = 1 << 24


def path_of(folder: str | Path, rank: int, size: int, format: str = "npz") -> Path:
    """The path of a rank's file.

    Examples
    --------
    >>> path_of("graph", 0, 4).as_posix()
    'graph/shard-0-of-4.npz'
    """
    return Path(folder) / f"shard-{rank}-of-{size}.{format}"


def save_shard(folder: str | Path, a: Shard, *, format: Format = "npz") -> Path:
    """Write this rank's rows to its own file, ``shard-RANK-of-SIZE.npz``; :func:`load_shard` reads it on the same number of ranks.

    Parameters
    ----------
    folder : str or Path
        Created if it does not exist.
    a : Shard
    format : {"npz", "safetensors"}
        "safetensors" needs the package of that name. This rank's file in the other format is removed, if there is one.

    Raises
    ------
    ImportError
        safetensors is not installed.
    DTypeError
        Values are bfloat16, which the files cannot hold.

    Examples
    --------
    One process writes the files of four ranks::

        distributed.local(4).run(lambda comm: save_shard("graph", distributed.shard(A, distributed.partition(A, comm))))
    """
    function, comm, part = "save_shard", a.comm, a.part
    _check.choice(function, "format", format, FORMATS)
    path, *others = (
        path_of(folder, comm.rank, comm.size, each) for each in sorted(FORMATS, key=lambda each: each != format)
    )
    about = {"format": _FORMAT, "rank": comm.rank, "size": comm.size, "hash": part.graph_hash, "method": part.method}
    arrays = {name: interop.move(getattr(a, name), "cpu") for name in _ARRAYS}
    arrays |= {"bounds": part.bounds, "order": part.order}
    with together(comm, function):
        if a.values is not None and a.values.dtype.name == "bfloat16":
            raise DTypeError(f"{function}: values are bfloat16, which files do not hold; pass a.with_values of float32")
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: array for name, array in arrays.items() if array is not None}
        with replacing(path) as stream:
            if format == "npz":
                np.savez(stream, about=np.array(json.dumps(about)), **kept)
            else:
                safe_files.write(function, stream, kept, {"about": json.dumps(about)})
        for other in others:
            other.unlink(missing_ok=True)
    return path


def load_shard(folder: str | Path, comm: Communicator, *, device: str = "cpu") -> Shard:
    """Read this rank's rows, which :func:`save_shard` wrote in either format; each rank reads its own file only.

    Raises
    ------
    FileFormatError
        The file is damaged, or its parts contradict each other.
    CommunicationError
        Loading failed on another rank, or the files belong to different graphs.
    ImportError
        The file has the format safetensors, but that package is not installed.
    OSError
        The file of this rank cannot be read, for example because the graph was saved for another number of ranks.

    Examples
    --------
    >>> import tempfile
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(6, dtype=int), 1, axis=1))
    >>> def mine(comm, folder):
    ...     distributed.save_shard(folder, distributed.shard(ring, distributed.partition(ring, comm)))
    ...     return distributed.load_shard(folder, comm).columns.tolist()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     distributed.local(2).run(mine, folder)
    [[1, 2, 3], [4, 5, 0]]
    """
    function = "load_shard"
    is_communicator(function, comm)
    with together(comm, function):
        target = interop.parse_device(device, function)
        safe = path_of(folder, comm.rank, comm.size, "safetensors")
        path = safe if safe.exists() else path_of(folder, comm.rank, comm.size)
        archives: Any = safe_files.opened(function, path) if path == safe else opened(function, path)
        with reading(function, path, "; write it with save_shard"), archives as archive:
            about = _about(archive.text("about"))
            parts = {name: archive.find(name) for name in (*_ARRAYS, "bounds", "order")}
            made = _checked(about, parts, comm)
        made = made.to_device(target)
    agree(comm, function, **{"hash of the graph": about["hash"]}, bounds=made.part.bounds.tolist())
    return made


def _about(text: str) -> Any:
    """Parse the description that a file holds of itself."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"what it says of itself is not JSON ({_check.brief(error)})") from None


def _checked(about: Any, parts: dict[str, Any], comm: Communicator) -> Shard:
    """Make the shard of a file, after checking that its parts agree with each other."""
    wanted = {"format": _FORMAT, "rank": comm.rank, "size": comm.size}
    found = {name: about.get(name) for name in wanted} if isinstance(about, dict) else about
    if found != wanted or not isinstance(about.get("hash"), str) or about.get("method") not in ("blocks", "metis"):
        raise ValueError(f"it says {_check.shown(found)}, but this is {wanted}")
    bounds, order, indptr, columns = (parts[name] for name in ("bounds", "order", "indptr", "columns"))
    if bounds is None or indptr is None or columns is None:
        raise ValueError("it lacks bounds, indptr or columns")
    if bounds.shape != (comm.size + 1,) or bounds.dtype != np.int64 or bounds[0] != 0 or (np.diff(bounds) < 0).any():
        raise ValueError("the bounds do not ascend from 0")
    rows, nodes = int(bounds[comm.rank + 1] - bounds[comm.rank]), int(bounds[-1])
    for name, array, size in (("indptr", indptr, rows + 1), ("columns", columns, None), ("order", order, nodes)):
        if array is not None and (
            array.dtype not in (np.int32, np.int64)
            or array.ndim != 1
            or array.size != (array.size if size is None else size)
        ):
            raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}")
    if indptr.dtype != columns.dtype:
        raise ValueError(f"indptr is {indptr.dtype} but columns are {columns.dtype}")
    if order is not None and not np.array_equal(np.sort(order), np.arange(nodes)):
        raise ValueError("the order is no permutation of the nodes")
    scales = (("row_scale", rows), ("col_scale", nodes), ("values", columns.size))
    for name, size in scales:
        array = parts[name]
        if array is None:
            continue
        if array.shape[:1] != (size,) or array.ndim > (2 if name == "values" else 1):
            raise ValueError(f"{name} has shape {array.shape}, but belongs to {size} rows or entries")
        _check.numeric("load_shard", name, array)
        if name != "values" and array.dtype != np.float32:
            raise ValueError(f"{name} is {array.dtype}, but factors are float32")
    part = Partition(comm, bounds, order, about["hash"], about["method"])
    made = Shard(part, indptr, columns, *(parts[name] for name in _ARRAYS[2:]))
    made.own_rows()  # this checks every row and column
    return made


def synthetic_shard(
    size: str | tuple[int, int],
    kind: Literal["power_law", "communities"],
    comm: Communicator,
    *,
    scaling: Literal["strong", "weak"] = "strong",
    seed: int = 0,
    device: str = "cpu",
) -> Shard:
    """The rows of this rank of a seeded synthetic graph, made on its own device without exchanging edges.

    Parameters
    ----------
    size, kind, seed
        As in :func:`bitsparse.datasets.synthetic`.
    comm : Communicator
    scaling : {"strong", "weak"}
        "strong": one graph of this size is dealt out in blocks; each rank makes all of it and keeps its own rows. "weak": each rank makes a
        graph of this size and spreads the ends of its edges over all ranks: if entry e of rank r ended at node j of its own graph, it ends
        at node j of rank ``(e * 2654435761 + r) mod 2**32 * size // 2**32`` instead. Such a pattern is not symmetric.
    device : str, default "cpu"

    Returns
    -------
    Shard

    Examples
    --------
    >>> from bitsparse import distributed
    >>> def mine(comm):
    ...     return distributed.synthetic_shard((1000, 8000), "power_law", comm, scaling="weak").shape
    >>> distributed.local(2).run(mine)
    [(1000, 2000), (1000, 2000)]
    """
    function = "synthetic_shard"
    is_communicator(function, comm)
    _check.choice(function, "scaling", scaling, ("strong", "weak"))
    agree(comm, function, size=size, kind=kind, scaling=scaling, seed=seed)
    with together(comm, function):
        own = seed if scaling == "strong" else seed + comm.rank
        indptr, indices = synthetic_csr(size, kind, seed=own, device=device)
        with interop.working_on(interop.device_of(indptr), interop.CUPY):
            made = (
                _block(indptr, indices, comm)
                if scaling == "strong"
                else _spread(indptr, indices, comm, f"{size} {kind} {seed}")
            )
    return made


def _block(indptr: Any, indices: Any, comm: Communicator) -> Shard:
    """A copy of a rank's block of rows, so that the rest of the graph can be freed."""
    whole = interop.move(indptr, "cpu")
    part = Partition(comm, balanced_bounds(whole, comm.size), None, streamed_hash(whole, whole[:0]), "blocks")
    rows = part.rows()
    low, high = int(whole[rows.start]), int(whole[rows.stop])
    return Shard(part, indptr[rows.start : rows.stop + 1] - low, indices[low:high].copy())


def _spread(indptr: Any, indices: Any, comm: Communicator, name: str) -> Shard:
    """Spread the far ends of one rank's graph over all ranks, with ascending columns in every row."""
    space: Any = interop.namespace(indptr)
    nodes, entries = int(indptr.size) - 1, int(indices.size)
    wide = np.int64 if max(nodes * comm.size, entries) >= 1 << 31 else np.int32
    columns = space.empty(entries, wide)
    host = interop.move(indptr, "cpu")
    row = 0
    while row < nodes:  # whole rows at a time, so that sorting needs little memory
        stop = max(row + 1, int(np.searchsorted(host, int(host[row]) + _PIECE, side="right")) - 1)
        low, high = int(host[row]), int(host[stop])
        edge = space.arange(low, high, dtype=np.uint64)
        drawn = (edge * np.uint64(2654435761) + np.uint64(comm.rank)) & np.uint64(0xFFFFFFFF)
        owner = ((drawn * np.uint64(comm.size)) >> np.uint64(32)).astype(np.int64)
        ends = owner * nodes + indices[low:high].astype(np.int64)
        rows = space.searchsorted(indptr[row + 1 : stop + 1], space.arange(low, high, dtype=indptr.dtype), side="right")
        keys = rows.astype(np.int64) * (nodes * comm.size) + ends
        keys.sort()
        columns[low:high] = keys % (nodes * comm.size)
        row = stop
    bounds = np.arange(comm.size + 1, dtype=np.int64) * nodes
    return Shard(Partition(comm, bounds, None, name, "blocks"), indptr.astype(wide, copy=False), columns)
