"""Full-graph training over the ranks of a communicator: features and gradients travel in few bits, rounded stochastically (TANGO 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bitsparse import _check, interop, ops
from bitsparse._communicator import who
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.arrays.inside import with_words
from bitsparse.distributed.exchange import Exchange
from bitsparse.distributed.graphs import GraphShard
from bitsparse.distributed.operands import row_bytes
from bitsparse.distributed.rounding import drawn_codes, field_bits
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized.scaled import ScaledCodes, magnitudes
from bitsparse.ops.quantized.spmm import sum_of_codes
from bitsparse.torch.registration import once

#: Streams of random numbers: gradients have those from here on.
_BACKWARD = 1 << 31


class ShardedSum(nn.Module):
    """Sums over neighbours whose rows lie on all ranks, with gradients: ``(rows, D) -> (rows, D)``, every rank with its own rows.

    What neighbours send is exchanged in the forward pass, and the gradients go back the same way in the backward pass, each as integers of
    `bits` bits with one scale for all ranks, rounded stochastically, in packed words: fields of 2, 4 or 8 bits, whole groups of 16 bytes to
    a row. All ranks call it together, and backward as well.

    Parameters
    ----------
    graph : bitsparse.distributed.GraphShard
        Its normalisation and exchange are used.
    bits : int or None, default 8
        2 to 8; None exchanges float32.
    seed : int, default 0
        Of the rounding, the same on every rank. The random bits of a feature are those of its place among all ranks' rows.
    error_feedback : bool, default False
        Add what rounding a gradient lost to the gradient of the next step (Seide et al., Interspeech 2014); the module then belongs to one
        layer.

    Attributes
    ----------
    exchanged_bytes : int
        What came from other ranks since the module was made, both ways.
    calls : int
        Forward passes so far, which number the streams of random bits; set it for repeating a run from its middle.

    Notes
    -----
    Parameters are replicated, so that ``DistributedDataParallel`` averages their gradients. Of a loss over all nodes a rank computes the
    sum of its own nodes, times ``comm.size`` over the number of all: the average then is the gradient on one device. With `bits` None it
    differs from that by the order of float sums alone. One number, the largest magnitude, is agreed on before each exchange in few bits. On
    a GPU it stays there; the host waits for it once the exchange is enqueued, to refuse what is not finite.

    Examples
    --------
    >>> import scipy.sparse as sp, torch
    >>> import bitsparse.torch as bst
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(4), 1, axis=1))
    >>> def mine(comm):
    ...     part = distributed.partition(ring, comm)
    ...     sums = bst.ShardedSum(distributed.GraphShard(distributed.shard(ring, part), "sum"), bits=None)
    ...     x = torch.full((2, 1), float(comm.rank), requires_grad=True)
    ...     (sums(x) * (1 + comm.rank)).sum().backward()
    ...     return x.grad.flatten().tolist()
    >>> distributed.local(2).run(mine)
    [[2.0, 1.0], [1.0, 2.0]]
    """

    def __init__(self, graph: GraphShard, *, bits: int | None = 8, seed: int = 0, error_feedback: bool = False) -> None:
        super().__init__()
        function = "ShardedSum"
        _check.instance(function, "graph", graph, GraphShard, "a GraphShard", "pass distributed.GraphShard(shard)")
        self.bits = None if bits is None else _check.bit_count(function, bits, 2, 8)
        self.seed = _check.integer(function, "seed", seed, 0, (1 << 64) - 1)
        self.error_feedback = _check.flag(function, "error_feedback", error_feedback)
        self.graph, self.calls, self.exchanged_bytes = graph, 0, 0
        self._residual: Any = None
        self._downloads = interop.Downloader(graph.shard.device)

    def forward(self, x: Tensor) -> Tensor:
        """The sums of this rank's rows."""
        shard = self.graph.shard
        if x.ndim != 2 or x.shape[0] != self.graph.nodes:
            raise ShapeError(
                f"ShardedSum: x has shape {tuple(x.shape)}, but {who(shard.comm)} has {self.graph.nodes} rows; pass "
                f"(rows, D)"
            )
        if x.dtype != torch.float32:
            raise DTypeError(f"ShardedSum: x is {x.dtype}, but float32 is exchanged; pass x.float()")
        method, _ = shard.choose("ShardedSum", self.graph.way, self._row_bytes(x.shape[1]), back=True)
        self.calls += 1
        made: Tensor = _Sum.apply(x, self, method, self.calls)
        return made

    def extra_repr(self) -> str:
        """Sizes, for ``repr``."""
        return f"{self.graph.nodes} of {self.graph.shard.nodes} rows, bits={self.bits}"

    def sums(self, method: str, x: Any, call: int) -> Any:
        """The sums of this rank's rows, by one of the exchanges."""
        shard = self.graph.shard
        return _summed(shard.matrix(method), self.send(shard.exchange(method), x, call))

    def gradient(self, method: str, gradient: Any, call: int) -> Any:
        """The gradient of this rank's features, from that of its sums."""
        shard, prepared = self.graph.shard, self.graph.prepared
        key = "transpose", method
        if key not in prepared:
            prepared[key] = shard.matrix(method).T
        return self.send_back(shard.exchange(method), ops.spmm(prepared[key], gradient), call)

    def send(self, exchange: Exchange, x: Any, call: int) -> Any:
        """Rows of all ranks in the slots of an exchange: codes, or float32."""
        self.exchanged_bytes += exchange.received * self._row_bytes(x.shape[1])
        if self.bits is None:
            return exchange(x)
        columns = x.shape[1]
        first = self.graph.shard.part.rows().start * columns
        words = exchange.buffer(interop.namespace(x), (self._row_bytes(columns) // 4,), np.uint32)
        with self._range(x) as largest:
            own = words[exchange.own]
            codes = drawn_codes(x, self.bits, largest, first, self.seed, call % _BACKWARD, out=own)
            exchange.bring(words)
            return with_words(codes, words, (exchange.slots, columns), -1, codes.layout)

    def send_back(self, exchange: Exchange, gradient: Any, call: int) -> Any:
        """The sums of all ranks' gradients of this rank's rows, from those of the slots."""
        columns = gradient.shape[1]
        self.exchanged_bytes += exchange.returned * self._row_bytes(columns)
        if self.bits is None:
            return exchange.add_back(gradient)
        if self.error_feedback and self._residual is not None:
            gradient = gradient + self._residual
        comm = self.graph.shard.comm
        # Slots have no place among all rows; every rank has numbers of its own.
        first = comm.rank * comm.size * self.graph.shard.nodes * columns
        stream = _BACKWARD + call % _BACKWARD
        with self._range(gradient) as largest:
            codes = drawn_codes(gradient, self.bits, largest, first, self.seed, stream)
            made = exchange.add_back(codes)
        if self.error_feedback:
            self._residual = gradient - codes.dequantize()
        return made

    def _row_bytes(self, columns: int) -> int:
        if self.bits is None:
            return row_bytes(columns, dtype=np.float32)
        return row_bytes(columns, bits=field_bits(self.bits))

    @contextmanager
    def _range(self, x: Any) -> Iterator[Any]:
        """The largest magnitude on any rank, () where `x` lies. The host looks at it once all that is made of it is enqueued."""
        largest = magnitudes(x, False).reshape(1)
        # Engines differ in what the maximum of NaN is. As integers magnitudes have the same order, and NaN comes last.
        self.graph.shard.comm.all_reduce(largest.view(np.int32), "max")
        found = self._downloads.download(largest, np.empty(1, np.float32))
        yield largest.reshape(())
        if not np.isfinite(found.wait()[0]):
            raise ValueError(
                "ShardedSum: features or gradients hold NaN or infinity, which integers cannot; lower the learning rate"
            )


class _Sum(torch.autograd.Function):
    """The exchange of rows and their sums, whose gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: ShardedSum, method: str, call: int) -> Tensor:
        ctx.module, ctx.method, ctx.call = module, method, call
        return _on_arrays(x, lambda array: module.sums(method, array, call))

    @staticmethod
    @once("ShardedSum")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        made = _on_arrays(gradient, lambda array: ctx.module.gradient(ctx.method, array, ctx.call))
        return made, None, None, None


def _summed(matrix: TCTiledCSR, x: Any) -> Any:
    """The product with rows as they came."""
    if not isinstance(x, BitTensor):
        return ops.spmm(matrix, x)
    if matrix.col_scale is None:
        return sum_of_codes("ShardedSum", as_csr("ShardedSum", matrix), ScaledCodes(x), None, None, "sum", True)
    # Factors that differ by neighbour stay in the sum; the scale is taken out of it.
    total = ops.spmm(matrix, x.with_affine())
    total *= x.scale
    return total


def _on_arrays(x: Tensor, work: Any) -> Tensor:
    """``work(array)`` of the memory of a tensor, on PyTorch's stream, as a tensor."""
    array, family = interop.as_array(x.detach().contiguous(), "ShardedSum")
    with interop.working_on(interop.device_of(array), family):
        return interop.from_array(interop.contiguous(work(array)), family, "ShardedSum")
