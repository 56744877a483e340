"""Training on sampled edges: a graph that sums over a sample of its edges without bias, and a measure of the error of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bitsparse import _check, interop
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.ops import edge_sample
from bitsparse.torch.edges import Edges, on_stream_of, tensor
from bitsparse.torch.graph import Graph, checked, for_training
from bitsparse.torch.pattern import array_over

_NAME = "SampledGraph"


class SampledGraph(Graph):
    """A sample of another graph's edges, drawn anew for every step, whose sums and means are on average those over all edges.

    The edges of each target are divided into `width` equal stretches. One edge is drawn from each stretch (:func:`bitsparse.edge_sample`,
    "uniform") and weighted by the stretch's length. Degrees, by which means and :class:`GCNConv` divide, are those of the whole graph. The
    same seed and step draw the same edges on the CPU and on GPUs.

    Parameters
    ----------
    graph : Graph
        The graph to sample, on the device of its buffers. Graphs that layers derive from it, such as normalised ones, are sampled too.
    width : int
        The largest number of edges per target.
    seed : int
    step : int
        The number of the training step; each step draws other edges.

    Notes
    -----
    Sums are linear in the edges, so the sums of one layer and the gradients through it are unbiased. After an activation they no longer
    are; :func:`sampled_gradient` measures bias and spread. Attention, maxima and minima are not linear, and refuse a sampled graph.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> full = bst.Graph(torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]]))
    >>> x = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    >>> [bst.spmm(bst.SampledGraph(full, 2, seed=0, step=step), x)[0].item() for step in range(4)]
    [10.0, 16.0, 10.0, 14.0]
    """

    _whole: Graph

    def __init__(self, graph: Graph, width: int, *, seed: int = 0, step: int = 0) -> None:
        torch.nn.Module.__init__(self)
        width = _check.integer(_NAME, "width", width, 1)
        seed, step = (
            _check.integer(_NAME, name, given, 0, (1 << 63) - 1) for name, given in (("seed", seed), ("step", step))
        )
        self.derived = False
        # Set in __dict__, the whole graph does not become a submodule: its owner saves it, and it outlives this module.
        self.__dict__["_whole"], self.width, self.seed, self.step = graph, width, seed, step
        with for_training(), on_stream_of(checked(_NAME, graph).indptr):
            self._keep(_drawn(graph, width, seed, step))
            self.scale = None if graph.scale is None else graph.scale.clone()

    def inverse_of_degrees(self) -> Tensor:
        """1 / the degrees in the whole graph."""
        return self._whole.inverse_of_degrees()

    def root_scale(self) -> Tensor:
        """1 / sqrt of the sums of weights in the whole graph."""
        return self._whole.root_scale()

    def _sampled(self, graph: Graph) -> SampledGraph:
        return SampledGraph(graph, self.width, seed=self.seed, step=self.step)

    def normalized(self, self_loops: bool = True, loop_weight: float = 1.0) -> Graph:
        """A sample of the whole graph's normalisation."""
        return self._sampled(self._whole.normalized(self_loops, loop_weight))

    def unweighted(self) -> Graph:
        """A sample of the whole graph without its weights; each edge weighs only as much as its stretch is long."""
        plain = self._whole.unweighted()
        return self if plain is self._whole else self._sampled(plain)

    def with_self_loops(self) -> Graph:
        """Raise an error: this is for attention, which needs all edges."""
        return self.with_all_edges("attention weighs edges against each other")

    def with_all_edges(self, why: str) -> Graph:
        """Raise an error: a sample does not have all edges."""
        raise ValueError(
            f"{_NAME}: {why}, so that no sample of them is right on average; pass the whole graph, or batches of "
            f"bitsparse.graph.NeighborSampler"
        )

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"{super().extra_repr()} of {self._whole.num_edges}, width={self.width}, step={self.step}"


def _drawn(graph: Graph, width: int, seed: int, step: int) -> Edges:
    """Draw the edges of a step; the weight of each is the length of its stretch times its own weight."""
    pattern = graph.pattern()
    array = array_over(pattern)
    drawn = edge_sample(array, width, "uniform", seed=(seed + (step >> 32)) % (1 << 64), stream=step % (1 << 32))
    space = interop.namespace(drawn.edges)
    starts, all_starts = drawn.indptr, drawn.all_indptr.astype(np.int64)
    samples = starts[1:] - starts[:-1]
    row = space.repeat(space.arange(samples.size), samples)
    # The number of the stretch of its row from which each sample is drawn, and the length of that stretch.
    count, edges = samples[row], (all_starts[1:] - all_starts[:-1])[row]
    number = space.arange(row.size) - starts[:-1][row]
    each, part = edges // count, edges % count
    length = each + ((number + 1) * part // count - number * part // count)
    weight = length.astype(np.float32)
    given = graph.multiplicity if graph.weight is None else graph.weight
    if given is not None:
        weight = weight * interop.as_array(given.detach(), _NAME)[0][drawn.edges]
    indptr, indices = (part.astype(array.csr_arrays()[1].dtype) for part in (starts, drawn.indices))
    adjacency = TCTiledCSR.from_arrays(indptr, indices, array.shape)
    return Edges(adjacency, tensor(weight), None)


class SampledGradient(NamedTuple):
    """How gradients of sampled steps compare to the exact one; made by :func:`sampled_gradient`.

    Attributes
    ----------
    exact : float
        Length (norm) of the gradient by all parameters over all edges.
    bias : float
        Distance of the mean of the sampled gradients from the exact one, divided by the length of the exact one.
    bias_error : float
        Standard error of that mean, divided by the same length: a bias of about this size means nothing.
    deviation : float
        Standard deviation of a sampled gradient, divided by the same length: the root of the mean squared distance from their mean.
    steps : int
        The number of samples.
    """

    exact: float
    bias: float
    bias_error: float
    deviation: float
    steps: int


def sampled_gradient(
    loss: Callable[[Graph], Tensor],
    parameters: Iterable[Tensor],
    graph: Graph,
    width: int,
    *,
    steps: int = 16,
    seed: int = 0,
) -> SampledGradient:
    """Compare the gradients of sampled steps with the exact gradient.

    Parameters
    ----------
    loss : callable
        The loss over a graph, without randomness of its own (dropout): ``lambda graph: cross_entropy(net(x, graph), labels)``.
    parameters : iterable of Tensor
        The tensors by which gradients are taken; their ``grad`` is not touched.
    graph : Graph
    width, seed
        As in :class:`SampledGraph`.
    steps : int
        The number of samples, at least 2.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> full = bst.Graph(torch.ones(20, 20).to_sparse_csr())
    >>> x, w = torch.rand(20, 3), torch.rand(3, 1, requires_grad=True)
    >>> found = bst.sampled_gradient(lambda graph: bst.spmm(graph, x @ w).mean(), [w], full, 4, steps=64)
    >>> found.bias < 4 * found.bias_error, found.steps
    (True, 64)
    """
    steps = _check.integer("sampled_gradient", "steps", steps, 2, 1 << 30)
    over = list(parameters)

    def gradient(of: Graph) -> Tensor:
        parts = torch.autograd.grad(loss(of), over, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(p).flatten() if part is None else part.flatten()
                for p, part in zip(over, parts, strict=True)
            ]
        ).double()

    exact = gradient(graph)
    total, squares = torch.zeros_like(exact), 0.0
    for step in range(steps):
        found = gradient(SampledGraph(graph, width, seed=seed, step=step)) - exact
        total += found
        squares += float(found @ found)
    mean, size = total / steps, max(float(exact.norm()), torch.finfo(torch.float64).tiny)
    variance = max(squares - steps * float(mean @ mean), 0.0) / (steps - 1)
    return SampledGradient(
        float(exact.norm()), float(mean.norm()) / size, (variance / steps) ** 0.5 / size, variance**0.5 / size, steps
    )
