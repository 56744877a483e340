"""Full-graph training over the ranks of a communicator: features and gradients travel in few bits, rounded stochastically (TANGO 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bitsparse import _check, interop, ops
from bitsparse._communicator import who
from bitsparse._records import replace
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.arrays.inside import with_words
from bitsparse.distributed.exchange import Exchange
from bitsparse.distributed.graphs import GraphShard
from bitsparse.distributed.operands import row_bytes
from bitsparse.distributed.rounding import drawn_codes, drawn_rows, field_bits
from bitsparse.distributed.shards import Shard
from bitsparse.distributed.transposed import transposed
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized.coded_rows import CodedRows, sum_of_rows, words_of_row
from bitsparse.ops.quantized.scaled import ScaledCodes, magnitudes
from bitsparse.ops.quantized.spmm import sum_of_codes
from bitsparse.torch.registration import on_gpu, once

#: Gradients use the streams of random numbers from this one on.
_BACKWARD = 1 << 31


class _Matrix(NamedTuple):
    """The matrix of a pass: a shard, and factors of this rank's rows that they have when they arrive, or None."""

    shard: Shard
    factors: Any


class ShardedSum(nn.Module):
    """Differentiable sums over neighbours that are spread over all ranks: ``(rows, D) -> (rows, D)``, each rank with its own rows.

    The forward pass exchanges the neighbours' rows of the features. The backward pass exchanges rows of the gradient in the same way and
    sums them over the transpose of the graph, of which each rank also holds its own rows. Both travel as integers of `bits` bits, rounded
    stochastically, in fields of 2, 4 or 8 bits; each row fills whole groups of 16 bytes. All ranks must call the module and its backward
    pass together.

    Parameters
    ----------
    graph : bitsparse.distributed.GraphShard
        This rank's part of the graph, with the normalisation and the exchange to use.
    bits : int or None, default 8
        Bits of the exchanged integers, 2 to 8; None exchanges float32.
    scales : {"row", "all"}
        The step of the integers: of each row, its largest magnitude over ``2**(bits - 1) - 1``, which travels with the row (4 bytes); or
        one for the rows of all ranks, as in TANGO.
    seed : int, default 0
        Seed of the rounding, the same on every rank. A feature's random bits depend on its position among the rows of all ranks.
    error_feedback : bool, default False
        Add what rounding a gradient lost to the gradient of the next step (Seide et al., Interspeech 2014); the module then belongs to one
        layer.

    Attributes
    ----------
    exchanged_bytes : int
        Bytes received from other ranks since the module was made, in both passes; replays of a captured step are not counted.
    calls : int
        Forward passes so far; each has its own stream of random bits. Set it to repeat a run from its middle. A GPU counts by itself, so
        that a captured step draws anew in every replay; reading the number then waits for the GPU.

    Notes
    -----
    Parameters are replicated, and ``DistributedDataParallel`` averages their gradients. For a loss over all nodes, each rank sums the loss
    of its own nodes and multiplies it by ``comm.size`` over the number of all nodes: the average is then the gradient of one device. With
    `bits` None the two differ only by the order of float sums.

    Rounding changes an element by less than a step, and its mean over seeds not at all; a sum changes by less than the sum of its
    neighbours' steps, each times the entry's factors. Codes and steps are the same bits on any number of ranks, on CPUs and on GPUs. Sums
    of codes with a step for each row are float32 sums in the order of the columns: the same bits on any number of ranks on CPUs; a GPU
    cuts long rows depending on the size of the matrix.

    With a step for each row, ranks agree on nothing, a GPU finds steps in the pass that rounds, and nothing waits for it: after one step, a
    training step with its exchanges can be captured in a CUDA graph (``torch.cuda.graph``), under NCCL. A row that holds NaN or infinity
    makes the sums of its neighbours NaN. With one step for all, integers are summed exactly, unless columns have factors ("gcn", and
    gradients of "mean"). The ranks first agree on the largest magnitude; it stays on the GPU, and the host reads it after the exchange is
    enqueued, to refuse NaN and infinity.

    The transpose is made in the first backward pass, in host memory. For an undirected graph it is the graph itself and takes no memory.

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

    def __init__(
        self,
        graph: GraphShard,
        *,
        bits: int | None = 8,
        scales: Literal["row", "all"] = "row",
        seed: int = 0,
        error_feedback: bool = False,
    ) -> None:
        super().__init__()
        function = "ShardedSum"
        _check.instance(function, "graph", graph, GraphShard, "a GraphShard", "pass distributed.GraphShard(shard)")
        self.bits = None if bits is None else _check.bit_count(function, bits, 2, 8)
        self.scales = _check.choice(function, "scales", scales, ("row", "all"))
        self.seed = _check.integer(function, "seed", seed, 0, (1 << 64) - 1)
        self.error_feedback = _check.flag(function, "error_feedback", error_feedback)
        self.graph, self.exchanged_bytes = graph, 0
        self._calls: Any = interop.move(np.zeros(1, np.uint32), graph.shard.device)
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
        made: Tensor = _Sum.apply(x, self)
        return made

    @property
    def calls(self) -> int:
        """Forward passes so far."""
        return int(self._calls[0])

    @calls.setter
    def calls(self, number: int) -> None:
        self._calls[...] = _check.integer("ShardedSum", "calls", number, 0, _BACKWARD - 1)

    def next_call(self) -> Any:
        """Count a forward pass; return its number, on a GPU as an array, which kernels read when they run."""
        self._calls += np.uint32(1)
        return self.calls if self.graph.device == "cpu" else self._calls.copy()

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"{self.graph.nodes} of {self.graph.shard.nodes} rows, bits={self.bits}"

    def sums(self, x: Any, call: Any) -> Any:
        """The sums of this rank's rows."""
        return self._sums_of(x, call)

    def gradient(self, gradient: Any, call: Any) -> Any:
        """The gradient of this rank's features, from that of its sums: sums over the transpose, whose rows are this rank's too."""
        return self._sums_of(gradient, call | _BACKWARD, back=True)

    def _sums_of(self, x: Any, stream: Any, back: bool = False) -> Any:
        """Exchange rows and sum them; gradients if `back`."""
        over = self._matrix(back)
        method, _ = over.shard.choose("ShardedSum", self.graph.way, self._row_bytes(x.shape[1]))
        if not (back and self.error_feedback and self.bits is not None):
            came, _ = self.send(over.shard.exchange(method), x, stream, over.factors)
            return _summed(over.shard.matrix(method), came)
        # What rounding loses is kept of what is rounded, so factors come first.
        x = x if over.factors is None else x * over.factors[:, None]
        x = x if self._residual is None else x + self._residual
        came, codes = self.send(over.shard.exchange(method), x, stream)
        lost = x - (codes.codes() if isinstance(codes, CodedRows) else codes).dequantize()
        if self._residual is None:
            self._residual = lost
        else:  # in place, for steps that are replayed
            self._residual[...] = lost
        return _summed(over.shard.matrix(method), came)

    def _matrix(self, back: bool) -> _Matrix:
        """The matrix of a pass and, if steps travel with the rows, the factors of its columns, which the rows' owners multiply in."""
        graph, by_rows = self.graph, self.bits is not None and self.scales == "row"
        key = "sharded sums", back, by_rows
        if key not in graph.prepared:
            shard = transposed(graph.shard) if back else graph.shard
            if back and shard is graph.shard:
                made = self._matrix(back=False)
            elif by_rows and shard.col_scale is not None:
                factors = interop.contiguous(shard.col_scale[shard.part.rows()])
                made = _Matrix(shard.with_scales(shard.row_scale), factors)
            else:
                made = _Matrix(shard, None)
            graph.prepared[key] = made
        return graph.prepared[key]

    def send(self, exchange: Exchange, x: Any, stream: Any, factors: Any = None) -> tuple[Any, Any]:
        """Exchange rows, rounded by the draws of a stream; return the rows of all ranks in the exchange's slots, and this rank's codes.

        `factors` of this rank's rows are multiplied into their steps.
        """
        columns = int(x.shape[1])
        self.exchanged_bytes += exchange.received * self._row_bytes(columns)
        if self.bits is None:
            return exchange(x), None
        words = exchange.buffer(interop.namespace(x), (self._row_bytes(columns) // 4,), np.uint32)
        own, first = words[exchange.own], self.graph.shard.part.rows().start * columns
        if self.scales == "row":
            rows = drawn_rows(x, self.bits, first, self.seed, stream, factors, own)
            exchange.bring(words)
            return replace(rows, words=words), rows
        with self._range(x) as largest:
            codes = drawn_codes(x, self.bits, largest, first, self.seed, stream, out=own)
            exchange.bring(words)
            return with_words(codes, words, (exchange.slots, columns), -1, codes.layout), codes

    def _row_bytes(self, columns: int) -> int:
        if self.bits is None:
            return row_bytes(columns, dtype=np.float32)
        bits = field_bits(self.bits)
        return 4 * words_of_row(columns, bits) if self.scales == "row" else row_bytes(columns, bits=bits)

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
    """The exchange of rows and their sum, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: ShardedSum) -> Tensor:
        def sums(array: Any) -> Any:
            ctx.call = module.next_call()
            return module.sums(array, ctx.call)

        ctx.module = module
        return _on_arrays(x, sums)

    @staticmethod
    @once("ShardedSum")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        made = _on_arrays(gradient, lambda array: ctx.module.gradient(array, ctx.call))
        return made, None


def _summed(matrix: TCTiledCSR, x: Any) -> Any:
    """The product of a matrix with rows as they were received: codes or floats."""
    if isinstance(x, CodedRows):
        return sum_of_rows("ShardedSum", as_csr("ShardedSum", matrix), x)
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

    def run() -> Tensor:
        array, family = interop.as_array(x.detach().contiguous(), "ShardedSum")
        with interop.working_on(interop.device_of(array), family):
            return interop.from_array(interop.contiguous(work(array)), family, "ShardedSum")

    return on_gpu(run)() if x.is_cuda else run()
