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

#: Gradients use the streams of random numbers from this one on.
_BACKWARD = 1 << 31


class ShardedSum(nn.Module):
    """Differentiable sums over neighbours that are spread over all ranks: ``(rows, D) -> (rows, D)``, each rank with its own rows.

    The forward pass exchanges the neighbours' rows, and the backward pass returns their gradients the same way. Both travel as integers
    of `bits` bits, rounded stochastically, with one scale for all ranks. They are packed in fields of 2, 4 or 8 bits, and each row fills
    whole groups of 16 bytes. All ranks must call the module and its backward pass together.

    Parameters
    ----------
    graph : bitsparse.distributed.GraphShard
        This rank's part of the graph, with the normalisation and the exchange to use.
    bits : int or None, default 8
        Bits of the exchanged integers, 2 to 8; None exchanges float32.
    seed : int, default 0
        Seed of the rounding, the same on every rank. A feature's random bits depend on its position among the rows of all ranks.
    error_feedback : bool, default False
        Add what rounding a gradient lost to the gradient of the next step (Seide et al., Interspeech 2014); the module then belongs to one
        layer.

    Attributes
    ----------
    exchanged_bytes : int
        Bytes received from other ranks since the module was made, in both passes.
    calls : int
        Forward passes so far; each has its own stream of random bits. Set it to repeat a run from its middle.

    Notes
    -----
    Parameters are replicated, and ``DistributedDataParallel`` averages their gradients. For a loss over all nodes, each rank sums the loss
    of its own nodes and multiplies it by ``comm.size`` over the number of all nodes: the average is then the gradient of one device. With
    `bits` None the two differ only by the order of float sums. Before each exchange in few bits, the ranks agree on one number, the
    largest magnitude. It stays on the GPU; the host reads it after the exchange is enqueued, to refuse NaN and infinity.

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
        """The sizes, for ``repr``."""
        return f"{self.graph.nodes} of {self.graph.shard.nodes} rows, bits={self.bits}"

    def sums(self, method: str, x: Any, call: int) -> Any:
        """The sums of this rank's rows, by the exchange named `method`."""
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
        """Exchange rows; return the rows of all ranks in the exchange's slots, as codes or float32."""
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
        """Return the gradients of slots to their owners; yields the sum over all ranks of the gradients of this rank's rows."""
        columns = gradient.shape[1]
        self.exchanged_bytes += exchange.returned * self._row_bytes(columns)
        if self.bits is None:
            return exchange.add_back(gradient)
        if self.error_feedback and self._residual is not None:
            gradient = gradient + self._residual
        comm = self.graph.shard.comm
        # Slots have no position among the rows of all ranks, so each rank has its own range of random numbers.
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
        """Yield the largest magnitude on any rank, an array () on the device of `x`; the host checks it when the block has ended."""
        largest = magnitudes(x, False).reshape(1)
        # Communicators disagree on the maximum with NaN. Seen as integers, magnitudes keep their order, and NaN comes last.
        self.graph.shard.comm.all_reduce(largest.view(np.int32), "max")
        found = self._downloads.download(largest, np.empty(1, np.float32))
        yield largest.reshape(())
        if not np.isfinite(found.wait()[0]):
            raise ValueError(
                "ShardedSum: features or gradients hold NaN or infinity, which integers cannot; lower the learning rate"
            )


class _Sum(torch.autograd.Function):
    """The exchange of rows and their sum; the backward pass returns gradients to the rows' owners."""

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
    """The product of a matrix with rows as they were received: codes or floats."""
    if not isinstance(x, BitTensor):
        return ops.spmm(matrix, x)
    if matrix.col_scale is None:
        return sum_of_codes("ShardedSum", as_csr("ShardedSum", matrix), ScaledCodes(x), None, None, "sum", True)
    # Factors per neighbour must stay inside the sum; the common scale is applied after it.
    total = ops.spmm(matrix, x.with_affine())
    total *= x.scale
    return total


def _on_arrays(x: Tensor, work: Any) -> Tensor:
    """Call ``work(array)`` with an array over a tensor's memory, on PyTorch's stream, and return the result as a tensor."""
    array, family = interop.as_array(x.detach().contiguous(), "ShardedSum")
    with interop.working_on(interop.device_of(array), family):
        return interop.from_array(interop.contiguous(work(array)), family, "ShardedSum")
