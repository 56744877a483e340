"""Measures what edge sampling and features of few bits cost a trained network in accuracy, and what they save in time and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from bitsparse import _check, interop
from bitsparse._records import as_dict
from bitsparse.errors import ShapeError
from bitsparse.graph.operand import Graph
from bitsparse.nn.features import Features
from bitsparse.nn.full.network import Network
from bitsparse.nn.labels import labels_and_mask
from bitsparse.nn.sampled.network import FULL, Layers, operand_of, plans_of
from bitsparse.ops import choose_bits, edge_sample, quantization_error, quantize
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.recorded import call_milliseconds
from bitsparse.ops.sampling.sample import DEFAULT, STRATEGIES, Strategy

#: The widths that AES-SpMM measures (section 4.2), and the bits of features.
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
BITS = (FULL, 8, 4, 2)
#: Points of accuracy that sampling may cost, and that features of few bits may cost in addition (AES-SpMM's abstract).
LOSS, MORE_LOSS = 1.0, 0.3
#: Number of steps in the distribution of sampling rates.
_STEPS = 20


class QualityCell(NamedTuple):
    """One setting of a network and its measured results.

    Attributes
    ----------
    strategy, width
        The strategy and width of the sample; None for all edges.
    bits : int
        Bits of features, 32 for float32.
    accuracy, accuracy_std : float
        The accuracy in per cent of the masked nodes: mean and (population) deviation over the models.
    loss : float
        Mean loss in points against the networks in full precision over all edges.
    ms : float or None
        Milliseconds of the aggregations of all layers of the first model.
    speedup : float or None
        The time of these aggregations over all edges in float32, divided by `ms`.
    gathered : int
        Bytes of features that the aggregations read.
    """

    strategy: str | None
    width: int | None
    bits: int
    accuracy: float
    accuracy_std: float
    loss: float
    ms: float | None
    speedup: float | None
    gathered: int


@dataclass(frozen=True)
class SamplingRate:
    """How much of a graph a sample keeps; made by :func:`sampling_rate`.

    Attributes
    ----------
    strategy, width
        The strategy and width of the sample.
    kept, distinct : float
        The share of the edges that are sampled, with repeated edges counted each time, or once.
    cdf : tuple of float
        Of the nodes with edges, the share whose own sampling rate is at most 0, 0.05, ..., 1 (AES-SpMM Figure 5).
    """

    strategy: str
    width: int
    kept: float
    distinct: float
    cdf: tuple[float, ...]


@dataclass(frozen=True)
class Quality:
    """The result of :func:`sampling_quality`.

    Attributes
    ----------
    model : str
        The kind of the networks: "GCN" or "SAGE".
    device : str
    cells : tuple of QualityCell
        All settings; the first is full precision over all edges.
    rates : tuple of SamplingRate
        The sampling rate of every strategy and width.
    errors : dict
        :func:`quantization_error` of the first layer's aggregate for 2 to 8 bits, averaged over the models.
    chosen_bits : int or None
        The bits that :func:`choose_bits` takes for it (TANGO section 3.1), the most over the models; None if 8 bits do not suffice.
    """

    model: str
    device: str
    cells: tuple[QualityCell, ...]
    rates: tuple[SamplingRate, ...]
    errors: dict[int, float]
    chosen_bits: int | None

    @property
    def full(self) -> QualityCell:
        """The cell of full precision over all edges."""
        return self.cells[0]

    def cell(self, strategy: str | None, width: int | None, bits: int = FULL) -> QualityCell:
        """The cell of a setting.

        Raises
        ------
        KeyError
            The setting was not measured.
        """
        for one in self.cells:
            if (one.strategy, one.width, one.bits) == (strategy, width, bits):
                return one
        raise KeyError(
            f"strategy={_check.shown(strategy)}, width={_check.shown(width)}, bits={_check.shown(bits)} was not measured"
        )

    def least_width(self, strategy: str = DEFAULT, loss: float = LOSS) -> int | None:
        """The smallest width from which on sampling alone costs less than `loss` points; None if there is none."""
        found = None
        alone = [one for one in self.cells if (one.strategy, one.bits) == (strategy, FULL)]
        for one in sorted(alone, key=lambda cell: cell.width or 0, reverse=True):
            if one.loss >= loss:
                break
            found = one.width
        return found

    def least_bits(
        self, strategy: str | None = DEFAULT, width: int | None = None, more: float = MORE_LOSS
    ) -> int | None:
        """The fewest bits of features that cost less than `more` points in addition to the sample; None if only 32 do."""
        base = self.cell(strategy, width).loss
        found = [c for c in self.cells if (c.strategy, c.width) == (strategy, width) and c.bits < FULL]
        return min((c.bits for c in found if c.loss - base < more), default=None)

    def record(self) -> dict[str, Any]:
        """All results in a form that JSON can hold."""
        return {
            "model": self.model,
            "device": self.device,
            "cells": [_rounded(as_dict(one)) for one in self.cells],
            "rates": [_rounded(asdict(one)) for one in self.rates],
            "errors": {str(bits): round(error, 6) for bits, error in self.errors.items()},
            "chosen_bits": self.chosen_bits,
            "least_width": self.least_width(),
        }


def sampling_quality(
    models: Network | Sequence[Network],
    graph: Graph,
    features: Features,
    labels: Any,
    mask: Any,
    *,
    widths: Iterable[int] = WIDTHS,
    strategies: Iterable[Strategy] = ("aes", "afs", "sfs", "uniform"),
    bits: Iterable[int] = BITS,
    rescale: bool = False,
    seed: int = 0,
    device: str = "cpu",
    timed: bool = True,
    progress: Callable[[], object] | None = None,
) -> Quality:
    """Measure what sampled edges and features of few bits cost trained networks, and what they save (AES-SpMM Figures 5 to 7).

    Parameters
    ----------
    models : Network, or a sequence of networks of one kind
        Networks trained with different seeds; accuracies are means over them.
    graph : Graph
        A graph with the networks' normalisation.
    features : Features
    labels : array_like (n,) of int
    mask : array_like (n,) of bool
        The nodes whose accuracy counts.
    widths, strategies
        The widths and strategies of the samples, as in :func:`edge_sample`.
    bits : iterable of {32, 8, 4, 2, 1}
        Bits of features; see :class:`SampledNetwork`.
    rescale : bool, default False
        As in :func:`sampled_spmm`; the paper does not rescale.
    seed : int, default 0
        The seed of the strategy "uniform".
    device : str, default "cpu"
    timed : bool, default True
        Whether to measure times.
    progress : callable, optional
        Called after each setting.

    Returns
    -------
    Quality

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Labels or mask do not fit the graph, or options are refused as in :class:`SampledNetwork`.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = nn.Graph(sparse.csr_array(np.kron(np.eye(2), np.ones((40, 40)))))
    >>> x, labels, train = nn.Features(np.eye(80)), np.repeat([0, 1], 40), np.arange(80) % 2 == 0
    >>> model = nn.train(graph, x, labels, train, epochs=50)
    >>> found = nn.sampling_quality(model, graph, x, labels, ~train, widths=[8, 64], bits=[32, 8], timed=False)
    >>> found.full.accuracy, found.cell("aes", 64, bits=8).loss, found.least_width()
    (100.0, 0.0, 8)
    >>> found.rates[0].kept
    0.2
    """
    function = "sampling_quality"
    _check.flag(function, "timed", timed)
    trained = list(models) if isinstance(models, Sequence) else [models]
    if not trained:
        raise ValueError(f"{function}: models holds none; pass at least one trained network")
    remedy = "pass nn.Graph(adjacency), with normalisation 'mean' for a GraphSAGE"
    _check.instance(function, "graph", graph, Graph, "an nn.Graph", remedy)
    kinds = {repr(model) for model in trained}
    if len(kinds) > 1:
        raise ShapeError(f"{function}: models are {' and '.join(sorted(kinds))}; compare networks of one kind and size")
    judged = labels_and_mask(function, graph.nodes, labels, mask, "mask", "those to test")
    names: list[Any] = [_check.choice(function, "strategy", one, STRATEGIES) for one in dict.fromkeys(strategies)]
    sizes = sorted({_check.integer(function, "width", one, 1) for one in widths})
    narrow = [FULL, *(one for one in dict.fromkeys(bits) if one != FULL)]
    device = interop.parse_device(device, function)
    operand = operand_of(graph, device)
    columns = trained[0].widths[1:]
    rates = [sampling_rate(graph.pattern, width, name, seed=seed) for name in names for width in sizes]
    settings: list[tuple[str | None, int | None, float]] = [(None, None, 1.0)]
    settings += [(one.strategy, one.width, one.kept) for one in rates]
    cells: list[QualityCell] = []
    right: list[float] = []
    layers = {
        count: [Layers(function, model, graph, features, count, device) for model in trained] for count in narrow
    }  # shared by all widths
    for name, width, kept in settings:
        sample: dict[str, Any] = {"rescale": rescale, "seed": seed if name == "uniform" else None}
        plans = plans_of(function, trained[0], operand, width, cast(Strategy, name), **sample)
        for count in narrow:
            ms = _milliseconds(layers[count][0], plans) if timed else None
            found = [100 * judged.accuracy(one.logits(plans)) for one in layers[count]]
            right = right or found
            loss = float(np.mean(np.subtract(right, found)))
            whole = cells[0].ms if cells else ms
            speedup = whole / ms if whole is not None and ms is not None else None
            gathered = sum(round(kept * graph.edges) * _row_bytes(wide, count) for wide in columns)
            cells.append(
                QualityCell(
                    name, width, count, float(np.mean(found)), float(np.std(found)), loss, ms, speedup, gathered
                )
            )
            if progress is not None:
                progress()
    errors, least = _narrowing(trained, graph, features, device)
    return Quality(trained[0].kind.upper(), device, tuple(cells), tuple(rates), errors, least)


def sampling_rate(A: Any, width: int, strategy: Strategy = DEFAULT, *, seed: int = 0) -> SamplingRate:
    """Measure how much of a sparse matrix a sample keeps, and how that is distributed over its rows.

    Parameters
    ----------
    A, width, strategy
        As in :func:`edge_sample`.
    seed : int, default 0
        The seed of the strategy "uniform".

    Returns
    -------
    SamplingRate

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> from bitsparse import nn
    >>> rate = nn.sampling_rate(csr_array([[1, 1, 1, 1], [0, 1, 0, 0]]), 2, "sfs")
    >>> rate.kept, rate.cdf[9], rate.cdf[10], rate.cdf[20]
    (0.6, 0.0, 0.5, 1.0)
    """
    sample = edge_sample(A, width, strategy, **({"seed": seed} if strategy == "uniform" else {}))
    space = interop.namespace(sample.indptr)
    counts, lengths = space.diff(sample.indptr), space.diff(sample.all_indptr)
    filled = lengths > 0
    # The steps are whole numbers, so that a rate of exactly 0.05 counts as at most 0.05.
    steps = space.ceil(counts[filled] * _STEPS / lengths[filled]).astype(np.int64)
    spread = interop.move(space.bincount(steps, minlength=_STEPS + 1), "cpu").cumsum()
    cdf = tuple(float(share) for share in spread / max(1, int(spread[-1])))
    distinct = sample.distinct / edges if (edges := int(lengths.sum())) else 1.0
    return SamplingRate(sample.strategy, sample.width, sample.rate, distinct, cdf)


# ---- pieces
def _milliseconds(layers: Layers, plans: Sequence[Any]) -> float:
    calls = layers.aggregations(plans)
    with working_with(layers.device):
        return call_milliseconds(lambda: [call() for call in calls], layers.device)


def _narrowing(
    models: Sequence[Network], graph: Graph, features: Features, device: str
) -> tuple[dict[int, float], int | None]:
    """The errors of quantising the first layer's aggregate, and the bits that keep the accuracy by TANGO's rule."""
    errors: dict[int, list[float]] = {}
    least: list[int | None] = []
    for model in models:
        _, weights, bias = model.products("sampling_quality")[0]
        aggregate = interop.move(np.asarray(graph.matrix @ (features.normalized @ weights) + bias, np.float32), device)
        for count in range(2, 9):
            codes = quantize(aggregate, count, scheme="symmetric")
            errors.setdefault(count, []).append(quantization_error(aggregate, codes))
        try:
            least.append(choose_bits(aggregate))
        except ValueError:
            least.append(None)
    means = {count: float(np.mean(found)) for count, found in errors.items()}
    return means, None if None in least else max(one for one in least if one is not None)


def _row_bytes(columns: int, bits: int) -> int:
    return 4 * columns if bits == FULL else -(-columns * bits // 128) * 16


def _rounded(facts: Any) -> Any:
    """Convert facts to a form that JSON can hold, with rounded numbers."""
    if isinstance(facts, dict):
        return {name: _rounded(value) for name, value in facts.items()}
    if isinstance(facts, tuple):
        return [_rounded(value) for value in facts]
    return round(facts, 4) if isinstance(facts, float) else facts
