"""Which precisions a binary network should compute in: accuracy, time and memory of every consistent choice, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse._progress import progress as progress_bar
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.binary import tuner_cache
from bitsparse.nn.binary.candidates import Candidate, pareto_set, quickest
from bitsparse.nn.binary.network import BinaryModel
from bitsparse.nn.binary.plan import BinaryPlan
from bitsparse.nn.binary.variants import Setting, consistent
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.recorded import call_milliseconds

__all__ = ["Tuned", "tune"]

#: Choices that are all measured; of deeper networks one layer at a time is varied.
_ALL = 64


class Tuned:
    """What :func:`tune` found.

    Attributes
    ----------
    candidates : list of Candidate
        All that were measured, most accurate first.
    pareto : list of Candidate
        Those that no other one beats in accuracy, time and bytes at once, most accurate first.
    reference : Candidate
        The model as it was given.
    best : Candidate
        The quickest one within the tolerance; of several that are as quick, within the noise of 3 %, the most accurate one.
    model : BinaryModel
        The weights with the settings of `best`.
    plan : BinaryPlan
        That model prepared for graph and features: ``tuned.plan(x)``.
    from_cache : bool
        Whether the figures are those of an earlier run.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        reference: Candidate,
        best: Candidate,
        model: BinaryModel,
        plan: BinaryPlan,
        device: str,
        from_cache: bool,
    ) -> None:
        self.candidates = sorted(candidates, key=lambda c: (-c.accuracy, c.milliseconds, c.nbytes))
        self.pareto = pareto_set(self.candidates)
        self.reference, self.best, self.model, self.plan = reference, best, model, plan
        self.device, self.from_cache = device, from_cache

    def table(self) -> str:
        """The Pareto set, a line each; an arrow marks the choice, a star the model as given."""
        lines = [f"{type(self.model).__name__} on {self.device}, {len(self.candidates)} choices measured"]
        for each in self.pareto if self.reference in self.pareto else [*self.pareto, self.reference]:
            mark = "->" if each == self.best else " *" if each == self.reference else "  "
            lines.append(f"{mark} {each}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<Tuned {type(self.model).__name__} {', '.join(map(str, self.best.settings))}: accuracy {self.best.accuracy:.4f}, "
            f"{self.best.milliseconds:.4g} ms, {self.best.nbytes} bytes>"
        )


def tune(
    model: BinaryModel,
    graph: Any,
    x: Any,
    labels: Any,
    mask: Any,
    *,
    tolerance: float = 0.01,
    candidates: Iterable[Any] | None = None,
    cache: bool = True,
    progress: Callable[[], object] | None = None,
) -> Tuned:
    """Try the precisions of a binary network layer by layer and pick the quickest that is accurate enough (BitGNN section 3.4).

    Every choice in which each layer reads what the one before gives is planned for the graph, run once for its accuracy and timed. Of
    networks with more than 64 such choices, layers are varied in turn, the others staying as they are best so far, from the model as
    given and from both presets.

    Parameters
    ----------
    model : BinaryGCN, BinarySAGE or BinarySAINT
        Its own settings are the reference.
    graph, x
        As in a call of the model. Packed features (``model.packed(x)``) need less memory and time than full-precision ones.
    labels : array_like (n,) of int
        Classes 0, 1, ...
    mask : array_like (n,) of bool
        Nodes to judge by: a validation set, not the test set.
    tolerance : float, default 0.01
        Accuracy that may be given up against the reference: 0.01 is one node in a hundred.
    candidates : iterable, optional
        Settings to try instead, each as `with_settings` takes them; the reference is tried besides.
    cache : bool, default True
        Keep the figures on disk, in the folder of the compiled kernels, and take them from there for the same graph, features, weights,
        labels, mask, device and version.
    progress : callable, optional
        Called once for each choice. By default a bar on stderr: on a terminal, past two seconds, if tqdm is installed.

    Returns
    -------
    Tuned

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Labels or mask do not fit the graph, the mask selects no node, or the tolerance is out of range.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> rng = np.random.default_rng(0)
    >>> layers = [nn.BinaryLinear.from_weights(rng.normal(size=s)) for s in ((6, 8), (8, 2))]
    >>> graph = nn.Graph(sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))))
    >>> x, labels = rng.normal(size=(8, 6)).astype(np.float32), np.repeat([0, 1], 4)
    >>> tuned = bs.tune(nn.BinaryGCN(layers), graph, x, labels, labels >= 0, tolerance=1.0, cache=False)
    >>> len(tuned.candidates), tuned.best in tuned.pareto, tuned.plan(x).shape
    (18, True, (8, 2))
    """
    function = "tune"
    if not isinstance(model, BinaryModel):
        raise DTypeError(f"{function}: model must be a binary model of bitsparse.nn, got {type(model).__name__}")
    if not 0 <= tolerance <= 1:
        raise ValueError(f"{function}: tolerance must be a share in 0..1, got {tolerance!r}; one point is 0.01")
    reference = model.plan(graph, x)
    own = tuple(reference.settings)
    judge = _Judge(function, labels, mask, reference.shape[0])
    letter = own[0].reads
    chosen = None if candidates is None else [_reading(model, each, letter) for each in candidates]
    key = tuner_cache.key(model, graph, x, judge.arrays, chosen, reference) if cache else None
    measured = tuner_cache.load(key)
    from_cache = measured is not None and any(each.settings == own for each in measured)
    if measured is None or not from_cache:
        measured = _measured(model, graph, x, judge, own, chosen, progress)
        tuner_cache.store(key, measured)
    as_given = next(each for each in measured if each.settings == own)
    allowed = [each for each in measured if each.accuracy >= as_given.accuracy - tolerance - 1e-12]
    best = quickest(allowed)
    picked = model.with_settings(best.settings)
    plan = reference if best.settings == own else picked.plan(graph, x)
    return Tuned(measured, as_given, best, picked, plan, plan.device, from_cache)


class _Judge:
    """Accuracy of logits on the masked nodes."""

    def __init__(self, function: str, labels: Any, mask: Any, nodes: int) -> None:
        target, chosen = interop.as_host(labels, function, "labels"), interop.as_host(mask, function, "mask")
        for name, array, kinds, kind in (("labels", target, "iu", "integers"), ("mask", chosen, "b", "bool")):
            if array.shape != (nodes,):
                raise ShapeError(
                    f"{function}: {name} has shape {array.shape}, but the graph has {nodes} nodes; pass one value per node"
                )
            if array.dtype.kind not in kinds:
                raise DTypeError(f"{function}: {name} has dtype {array.dtype}, but {kind} is needed; use astype")
        if not chosen.any():
            raise ValueError(f"{function}: mask selects no node; select the nodes to judge by")
        self.arrays = (np.ascontiguousarray(target, np.int64), np.ascontiguousarray(chosen))

    def __call__(self, logits: Any) -> float:
        target, chosen = self.arrays
        host: NDArray[Any] = interop.as_host(logits, "tune", "logits")
        return float((host[chosen].argmax(axis=1) == target[chosen]).mean())


def _measured(
    model: BinaryModel,
    graph: Any,
    x: Any,
    judge: _Judge,
    own: tuple[Setting, ...],
    chosen: list[tuple[Setting, ...]] | None,
    progress: Callable[[], object] | None,
) -> list[Candidate]:
    done: dict[tuple[Setting, ...], Candidate] = {}

    def measure(settings: tuple[Setting, ...]) -> Candidate:
        if settings not in done:
            plan = model.with_settings(settings).plan(graph, x)
            accuracy = judge(plan(x))
            done[settings] = Candidate(settings, accuracy, milliseconds(plan, x), plan.peak_nbytes)
            advance()
        return done[settings]

    every = _all_of(model, own) if chosen is None else chosen
    starts = list(dict.fromkeys([own, *(_reading(model, name, own[0].reads) for name in ("full", "binary"))]))
    total = len(dict.fromkeys([own, *every])) if every is not None else sum(_turns(model, each) for each in starts)
    bar = progress_bar(total, "choice") if progress is None else nullcontext(progress)
    with bar as advance:
        measure(own)
        if every is not None:
            for each in every:
                measure(each)
        else:
            for each in starts:
                _in_turn(model, each, measure)
    return list(done.values())


def milliseconds(plan: BinaryPlan, x: Any) -> float:
    """Median milliseconds of ``plan(x, out)``, after a first call; see :func:`bitsparse.ops.recorded.call_milliseconds`."""
    with working_with(plan.device, x):
        return call_milliseconds(partial(plan, x, plan(x)), plan.device)


def _all_of(model: BinaryModel, own: tuple[Setting, ...]) -> list[tuple[Setting, ...]] | None:
    """All choices that read what the model as given reads, or None if they are too many."""
    choices = [tuple(each) for each in model.with_settings(own).candidates()]
    return choices if len(choices) <= _ALL else None


def _reading(model: BinaryModel, settings: Any, letter: str) -> tuple[Setting, ...]:
    """Settings by any of their names, for an input of that letter."""
    first, *others = model.with_settings(settings).settings
    return (first.reading(letter), *others)


def _swaps(model: BinaryModel, settings: tuple[Setting, ...], layer: int) -> list[tuple[Setting, ...]]:
    """Other choices for one layer; the layers behind it read what it gives."""
    others = []
    for choice in model.choices:
        if not layer and choice.reads != settings[0].reads:
            continue
        changed = tuple(consistent([*settings[:layer], choice, *settings[layer + 1 :]]))
        try:
            model.with_settings(changed)
        except ValueError:  # the last layer's letter, or the head's
            continue
        others.append(changed)
    return list(dict.fromkeys(others))


def _turns(model: BinaryModel, start: tuple[Setting, ...]) -> int:
    return 1 + sum(len(_swaps(model, start, layer)) - 1 for layer in range(model.depth))


def _in_turn(
    model: BinaryModel, start: tuple[Setting, ...], measure: Callable[[tuple[Setting, ...]], Candidate]
) -> None:
    """Vary one layer at a time, from the first on, keeping the most accurate choice so far."""
    best = start
    for layer in range(model.depth):
        tried = [measure(each) for each in _swaps(model, best, layer)]
        best = max([measure(best), *tried], key=lambda each: (each.accuracy, -each.milliseconds)).settings
