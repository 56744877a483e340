"""Sums over neighbours on several ranks: spmm, bspmm and sampled_spmm over shards."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bitsparse import _check, ops
from bitsparse.arrays.packed import Encoding
from bitsparse.backends.reductions import Reduce
from bitsparse.distributed.operands import is_shard, row_bytes
from bitsparse.distributed.plans import ShardPlan, Way, Width, planned, summed
from bitsparse.distributed.shards import Shard
from bitsparse.ops.sampling.sample import DEFAULT, Strategy


def plan_spmm(
    A: Shard,
    n: int,
    *,
    heads: int | None = None,
    reduce: Reduce = "sum",
    dtype: Any = None,
    bits: int | None = None,
    encoding: Encoding = "unsigned",
    exchange: Way = "auto",
    overlap: bool | None = None,
    **options: Any,
) -> ShardPlan:
    """Prepare products of a sharded matrix with features whose rows are spread over the ranks; see :func:`bitsparse.plan_spmm`.

    Parameters
    ----------
    A : Shard
    n, heads, reduce, dtype, bits, encoding
        As in :func:`bitsparse.plan_spmm`; the features of every call have exactly this kind on every rank.
    exchange : {"auto", "allgather", "halo"}
        Gather the rows of all ranks, or only those that this rank's entries ask for. By default the way that takes less time, estimated
        from the bytes and the rates in :data:`bitsparse.distributed.LINKS`.
    overlap : bool, optional
        Sum the rows whose neighbours are all on this rank during the exchange. By default each rank estimates whether that pays: the
        shorter of these sums and the exchange must take longer than writing the other rows twice; ``plan.explain()`` shows the estimate.
        True and False decide it. Results have the same bits either way, because every row is summed as a whole, in one order. Overlapping
        copies values while planning, so a matrix with values overlaps only with ``overlap=True`` or ``frozen=True``.
    **options
        ``epilogue``, ``precision``, ``kernel``, ``frozen``. Vectors over rows in an epilogue cover this rank's rows.

    Returns
    -------
    ShardPlan

    Raises
    ------
    CommunicationError
        Ranks pass different arguments, or planning failed on another rank.
    ValueError
        ``overlap=True`` with an epilogue that packs along rows, or with an MPI that was started for one thread.

    Notes
    -----
    Sums of integers have the same bits as on one device. Sums of floats add columns in ascending order, as one CPU does, and so have the
    same bits too if the nodes keep their numbers ("blocks"). A GPU may split long rows at other places, and METIS changes the order.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(4, dtype=np.float32), 1, axis=1))
    >>> x = np.arange(4, dtype=np.float32)[:, None]
    >>> def mine(comm):
    ...     part = distributed.partition(ring, comm)
    ...     plan = distributed.plan_spmm(distributed.shard(ring, part), 1)
    ...     return plan(part.take(x)).ravel().tolist()
    >>> distributed.local(2).run(mine)
    [[1.0, 2.0], [3.0, 0.0]]
    """
    function = "plan_spmm"
    _no_stochastic(function, options.get("epilogue"))
    inner = (n,) if heads is None else (heads, n)
    columns = int(np.prod(inner))
    facts: dict[str, Any] = {"n": n, "heads": heads, "reduce": reduce, "bits": bits, "encoding": encoding}
    facts["frozen"] = bool(options.get("frozen"))
    accepts: list[tuple[Any, ...]]
    if bits is None:
        kind = np.dtype(np.float32) if dtype is None else _check.dtype(function, dtype)
        size, accepts = row_bytes(columns, dtype=kind), [(str(kind), inner)]
        facts["dtype"] = str(kind)
    else:
        size, accepts = row_bytes(columns, bits=bits), [(bits, encoding, inner)]
    if bits is None and heads is None and n == 1:
        accepts.append((accepts[0][0], ()))

    epilogue = options.pop("epilogue", None)
    make = partial(ops.plan_spmm, n=n, heads=heads, reduce=reduce, dtype=dtype, bits=bits, encoding=encoding, **options)
    return planned(function, A, exchange, Width(size, 4 * columns), make, accepts, overlap, epilogue, **facts)


def spmm(A: Shard, x: Any, *, values: Any = None, exchange: Way = "auto", out: Any = None, **options: Any) -> Any:
    """Product of a sharded matrix with features whose rows are spread over the ranks; see :func:`bitsparse.spmm`.

    Parameters
    ----------
    A : Shard
    x : array (rows,), (rows, D) or (rows, H, D), or BitTensor (rows, D)
        This rank's rows, of the same kind on every rank.
    values : array (nnz,) or (nnz, H), optional
        Weights of this rank's entries, in the order of ``A.columns``.
    exchange
        As in :func:`plan_spmm`.
    out : optional
    **options
        ``reduce``, ``precision``, ``kernel``, ``epilogue``.

    Returns
    -------
    array or BitTensor
        This rank's rows of the result.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(4, dtype=int), 1, axis=1))
    >>> def mine(comm):
    ...     part = distributed.partition(ring, comm)
    ...     return distributed.spmm(distributed.shard(ring, part), part.take(np.arange(4)), exchange="halo").tolist()
    >>> distributed.local(2).run(mine)
    [[1, 2], [3, 0]]
    """
    function = "spmm"
    _no_stochastic(function, options.get("epilogue"))

    def multiply(matrix: Any, rows: Any) -> Any:
        return ops.spmm(matrix, rows, values=values, **options)

    return summed(function, A, x, exchange, multiply, out, reduce=options.get("reduce", "sum"))


def plan_bspmm(
    A: Shard,
    n: int,
    variant: str | None = None,
    *,
    add: bool = False,
    dtype: Any = None,
    exchange: Way = "auto",
    overlap: bool | None = None,
    **options: Any,
) -> ShardPlan:
    """Prepare aggregation of bits over shards (BitGNN's BSpMM), which exchanges packed words; see :func:`bitsparse.plan_bspmm`.

    Parameters
    ----------
    A : Shard
    n, variant, add, dtype
        As in :func:`bitsparse.plan_bspmm`. `dtype` is that of full-precision features, float32 by default.
    exchange, overlap
        As in :func:`plan_spmm`; a plan with ``add=True`` does not overlap.
    **options
        ``reduce``, ``epilogue``, ``kernel``.

    Returns
    -------
    ShardPlan
        It takes bipolar and unsigned bits. Counts and their signs are the same as on one device.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(4, dtype=bool), 1, axis=1))
    >>> x = bs.pack_bits(np.array([[1.0], [-1.0], [1.0], [1.0]]), encoding="bipolar")
    >>> def mine(comm):
    ...     part = distributed.partition(ring, comm)
    ...     plan = distributed.plan_bspmm(distributed.shard(ring, part), 1, "BBF", exchange="allgather")
    ...     return plan(part.take(x)).ravel().tolist()
    >>> distributed.local(2).run(mine)
    [[-1, 1], [1, 1]]
    """
    function = "plan_bspmm"
    shard = is_shard(function, A)
    if variant is None:
        variant = "BB" + ("F" if options.get("epilogue") is None else "B" if options["epilogue"].binarize else "F")
    packed = variant[:1] == "B"
    kind = np.dtype(np.float32) if dtype is None else np.dtype(dtype)
    size = row_bytes(n, bits=1) if packed else row_bytes(n, dtype=kind)
    accepts: list[tuple[Any, ...]] = (
        [(1, code, (n,)) for code in ("bipolar", "unsigned")] if packed else [(str(kind), (n,))]
    )
    facts = {"n": n, "variant": variant, "add": add, "reduce": options.get("reduce", "sum"), "dtype": str(kind)}

    epilogue = options.pop("epilogue", None)
    make = partial(ops.plan_bspmm, n=n, variant=variant, add=add, dtype=dtype, **options)
    written = Width(size, row_bytes(n, bits=1) if variant[-1:] == "B" else 4 * n)
    return planned(function, shard, exchange, written, make, accepts, overlap, epilogue, **facts)


def bspmm(
    A: Shard,
    x: Any,
    variant: str | None = None,
    *,
    add: Any = None,
    exchange: Way = "auto",
    out: Any = None,
    **options: Any,
) -> Any:
    """Aggregation of bits over shards; see :func:`bitsparse.bspmm`, and :func:`spmm` for what each rank passes.

    Parameters
    ----------
    A : Shard
    x : BitTensor (rows, d) of one bit, or float array (rows, d)
    variant, add, out
        As in :func:`bitsparse.bspmm`, for this rank's rows.
    exchange
        As in :func:`plan_spmm`.
    **options
        ``reduce``, ``epilogue``, ``kernel``.
    """
    function = "bspmm"

    def multiply(matrix: Any, rows: Any) -> Any:
        return ops.bspmm(matrix, rows, variant, add=add, **options)

    return summed(function, A, x, exchange, multiply, out, variant=variant, reduce=options.get("reduce", "sum"))


def sampled_spmm(
    A: Shard,
    x: Any,
    width: int,
    strategy: Strategy = DEFAULT,
    *,
    exchange: Way = "auto",
    out: Any = None,
    **options: Any,
) -> Any:
    """Sums over a sample of each row's entries, over shards; see :func:`bitsparse.sampled_spmm`, and :func:`spmm` for the arguments.

    Parameters
    ----------
    A : Shard
    x : array (rows, D) or BitTensor (rows, D)
    width, strategy
        As in :func:`bitsparse.sampled_spmm`, but without "uniform", which draws by the row number on one device. The other strategies
        choose entries by their places in a row. If METIS renumbered the nodes, the sample is that of ``A[order][:, order]`` with the
        partition's ``order``.
    exchange
        As in :func:`plan_spmm`.
    **options
        ``rescale``.
    """
    function = "sampled_spmm"
    if strategy == "uniform":
        raise ValueError(
            f"{function}: strategy 'uniform' draws by the number of the row, which a shard does not begin with; take 'afs', 'sfs' or 'aes'"
        )

    def multiply(matrix: Any, rows: Any) -> Any:
        return ops.sampled_spmm(matrix, rows, width, strategy, **options)

    facts = {"width": width, "strategy": strategy, "rescale": options.get("rescale", False)}
    return summed(function, A, x, exchange, multiply, out, **facts)


def _no_stochastic(function: str, epilogue: Any) -> None:
    """Refuse stochastic rounding in epilogues: it draws by the index of an element, which would restart at the first row of every rank."""
    if epilogue is not None and getattr(epilogue, "rounding", None) == "stochastic":
        raise ValueError(
            f"{function}: the epilogue rounds stochastically, by the index on one device; take the sums without it, and "
            f"distributed.quantize(..., rounding='stochastic'), which counts over all ranks"
        )
