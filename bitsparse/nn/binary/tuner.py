"""Tuning of a binary network's precisions: accuracy, time and memory of every consistent choice are measured and kept on disk."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, interop, jit
from bitsparse._files import keep, open_plain
from bitsparse._progress import progress as progress_bar
from bitsparse._records import as_dict
from bitsparse.arrays import BitTensor
from bitsparse.nn.binary.network import BinaryModel
from bitsparse.nn.binary.plan import BinaryPlan
from bitsparse.nn.binary.variants import Setting, consistent
from bitsparse.nn.labels import Judged, check_tolerance, labels_and_mask
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.recorded import call_milliseconds, machine

#: How each layer computes.
Settings = tuple[Setting, ...]
#: The most choices that are all measured; with more, one layer at a time is varied.
_ALL = 64
#: The most bytes read from a file of results, which is far shorter.
_MOST_BYTES = 1 << 24
#: Times that differ by less than this share count as equal, because they differ that much from run to run.
_NOISE = 0.03


class Candidate(NamedTuple):
    """One choice of precisions and its measured results.

    Attributes
    ----------
    settings : tuple of Setting
        How each layer computes.
    accuracy : float
        Share of the masked nodes that are classified correctly.
    milliseconds : float
        Median time of a call of its plan.
    nbytes : int
        Bytes of graph, weights, buffers, features and logits.
    """

    settings: Settings
    accuracy: float
    milliseconds: float
    nbytes: int

    def __str__(self) -> str:
        named = ", ".join(map(str, self.settings))
        return f"{100 * self.accuracy:6.2f} %  {self.milliseconds:9.4f} ms  {self.nbytes / 1e6:9.3f} MB  {named}"

    def record(self) -> dict[str, Any]:
        """All fields in a form that JSON can hold."""
        return as_dict(self)

    def dominates(self, other: Candidate) -> bool:
        """Whether it is at least as good in all three respects and better in one. Times within the noise count as equal.

        >>> a, b = Candidate((), 0.8, 1.0, 5), Candidate((), 0.8, 2.0, 5)
        >>> a.dominates(b), b.dominates(a), a.dominates(a)
        (True, False, False)
        >>> Candidate((), 0.9, 1.01, 5).dominates(a), a.dominates(Candidate((), 0.8, 1.01, 5))
        (True, False)
        """
        if self.accuracy < other.accuracy or self.nbytes > other.nbytes:
            return False
        if self.milliseconds > other.milliseconds * (1 + _NOISE):
            return False
        better = self.accuracy > other.accuracy or self.nbytes < other.nbytes
        return better or self.milliseconds * (1 + _NOISE) < other.milliseconds


def pareto_set(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that no other one dominates, in their order.

    Examples
    --------
    >>> from bitsparse.nn.binary.tuner import Candidate, pareto_set
    >>> three = [Candidate((), 0.9, 3.0, 9), Candidate((), 0.8, 1.0, 9), Candidate((), 0.7, 2.0, 9)]
    >>> [each.accuracy for each in pareto_set(three)]
    [0.9, 0.8]
    """
    every = list(candidates)
    return [each for each in every if not any(other.dominates(each) for other in every)]


def quickest(candidates: Sequence[Candidate]) -> Candidate:
    """The most accurate of the candidates that are quickest within the noise. Ties go to the smallest, then to the quickest."""
    least = min(each.milliseconds for each in candidates)
    near = [each for each in candidates if each.milliseconds <= least * (1 + _NOISE)]
    return min(near, key=lambda each: (-each.accuracy, each.nbytes, each.milliseconds))


#: A function that measures a choice.
Trial = Callable[[Settings], Candidate]


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """The result of :func:`tune`.

    Attributes
    ----------
    candidates : list of Candidate
        All measured choices, most accurate first.
    reference : Candidate
        The model as it was given.
    best : Candidate
        The quickest choice within the tolerance; among those equally quick within the noise of 3 %, the most accurate one.
    model : BinaryModel
        The weights with the settings of `best`.
    plan : BinaryPlan
        That model prepared for graph and features: ``tuned.plan(x)``.
    from_cache : bool
        Whether the results come from an earlier run.
    """

    candidates: list[Candidate]
    reference: Candidate
    best: Candidate
    model: BinaryModel
    plan: BinaryPlan
    from_cache: bool

    @property
    def pareto(self) -> list[Candidate]:
        """The choices that no other one beats in accuracy, time and bytes at once, most accurate first."""
        return pareto_set(self.candidates)

    @property
    def device(self) -> str:
        """The device of the measurements."""
        return self.plan.device

    def table(self) -> str:
        """The Pareto set, one line for each choice. An arrow marks the best one, a star the model as given."""
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
    """Try precisions for each layer of a binary network and pick the quickest choice that is accurate enough (BitGNN section 3.4).

    Every choice in which each layer reads what the one before gives is planned for the graph, run once for its accuracy, and timed. If
    there are more than 64 such choices, one layer after the other is varied, while the other layers keep the best choice so far. That
    starts from the model as given and from both presets.

    Parameters
    ----------
    model : BinaryGCN, BinarySAGE or BinarySAINT
        The model; its own settings are the reference.
    graph, x
        As in a call of the model. Packed features (``model.packed(x)``) need less memory and time than full-precision ones.
    labels : array_like (n,) of int
        Classes 0, 1, ...
    mask : array_like (n,) of bool
        Nodes to judge by: a validation set, not the test set.
    tolerance : float, default 0.01
        The largest loss of accuracy against the reference: 0.01 is one node in a hundred.
    candidates : iterable, optional
        Settings to try instead, each in a form that `with_settings` takes. The reference is tried as well.
    cache : bool, default True
        Keep the results on disk, in the folder of the compiled kernels, and use them again for the same graph, features, weights, labels,
        mask, device and version.
    progress : callable, optional
        Called once for each choice. By default a terminal shows a bar on stderr (a count without tqdm) after two seconds.

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
    _check.instance(function, "model", model, BinaryModel, "a binary model of bitsparse.nn")
    check_tolerance(function, tolerance)
    _check.flag(function, "cache", cache)
    reference = model.plan(graph, x)
    own = tuple(reference.settings)
    judged = labels_and_mask(function, reference.shape[0], labels, mask, "mask", "the nodes to judge by")
    letter = own[0].reads

    def trial(settings: Settings) -> Candidate:
        plan = model.with_settings(settings).plan(graph, x)
        return Candidate(settings, judged.accuracy(plan(x)), milliseconds(plan, x), plan.peak_nbytes)

    chosen = None if candidates is None else [_reading(model, each, letter) for each in candidates]
    file = file_of_run(model, x, judged, chosen, reference) if cache else None
    measured = None if file is None else load_run(file)
    from_cache = measured is not None and any(each.settings == own for each in measured)
    if measured is None or not from_cache:
        measured = _measured(model, own, chosen, trial, progress)
        if file is not None:
            store_run(file, measured)
    as_given = next(each for each in measured if each.settings == own)
    # A loss of exactly the tolerance is allowed. Accuracies are rounded quotients, hence the small margin.
    allowed = [each for each in measured if each.accuracy >= as_given.accuracy - tolerance - 1e-12]
    best = quickest(allowed)
    picked = model.with_settings(best.settings)
    plan = reference if best.settings == own else picked.plan(graph, x)
    measured.sort(key=lambda each: (-each.accuracy, each.milliseconds, each.nbytes))
    return Tuned(measured, as_given, best, picked, plan, from_cache)


def _measured(
    model: BinaryModel, own: Settings, chosen: list[Settings] | None, trial: Trial, progress: Any
) -> list[Candidate]:
    """Measure each choice once: those asked for, or all, or layer by layer if there are too many."""
    done: dict[Settings, Candidate] = {}

    def measure(settings: Settings) -> Candidate:
        if settings not in done:
            done[settings] = trial(settings)
            advance()
        return done[settings]

    every = [tuple(each) for each in model.with_settings(own).candidates()] if chosen is None else chosen
    in_turn = chosen is None and len(every) > _ALL
    if in_turn:
        presets = (_reading(model, name, own[0].reads) for name in ("full", "binary"))
        starts = list(dict.fromkeys([own, *presets]))
        total = sum(_turns(model, start) for start in starts)
    else:
        starts, total = [], len({own, *every})
    bar = progress_bar(total, "choice") if progress is None else nullcontext(progress)
    with bar as advance:
        measure(own)
        for settings in () if in_turn else every:
            measure(settings)
        for start in starts:
            _in_turn(model, start, measure)
    return list(done.values())


def milliseconds(plan: BinaryPlan, x: Any) -> float:
    """Median milliseconds of ``plan(x, out)``, after a first call; see :func:`bitsparse.ops.recorded.call_milliseconds`."""
    with working_with(plan.device, x):
        return call_milliseconds(partial(plan, x, plan(x)), plan.device)


def _reading(model: BinaryModel, settings: Any, letter: str) -> Settings:
    """Settings in any form that the model takes, adapted to an input with this letter."""
    first, *others = model.with_settings(settings).settings
    return (first.reading(letter), *others)


def _swaps(model: BinaryModel, settings: Settings, layer: int) -> list[Settings]:
    """Settings with other choices for one layer; the layers after it are adapted to its output."""
    others = []
    for choice in model.choices:
        if not layer and choice.reads != settings[0].reads:
            continue
        changed = tuple(consistent([*settings[:layer], choice, *settings[layer + 1 :]]))
        try:
            model.with_settings(changed)
        except ValueError:  # the last layer or the head does not allow that letter
            continue
        others.append(changed)
    return list(dict.fromkeys(others))


def _turns(model: BinaryModel, start: Settings) -> int:
    """The number of choices that :func:`_in_turn` measures if the start remains the best."""
    return 1 + sum(len(_swaps(model, start, layer)) - 1 for layer in range(model.depth))


def _in_turn(model: BinaryModel, start: Settings, measure: Trial) -> None:
    """Vary one layer at a time, beginning with the first, and keep the most accurate choice so far."""
    best = start
    for layer in range(model.depth):
        tried = [measure(each) for each in _swaps(model, best, layer)]
        best = max([measure(best), *tried], key=lambda each: (each.accuracy, -each.milliseconds)).settings


# -- results on disk --------------------------------------------------------------------------------------------------
def file_of_run(model: BinaryModel, x: Any, judged: Judged, chosen: list[Settings] | None, plan: BinaryPlan) -> Path:
    """The file of a run, named by a hash of everything it depends on: weights, graph, features, labels, mask, choices, device, version."""
    if isinstance(x, BitTensor):
        features = [("words", x.repack(axis=-1, layout="planes").words), ("scale", x.scale)]
    else:
        features = [("x", interop.as_array(x, "tune", "x")[0])]
    judges = (("judged", array) for array in judged)
    digest = hashlib.blake2b(digest_size=16)
    for name, array in (*sorted(model.arrays().items()), *plan.graph_arrays().items(), *features, *judges):
        if array is None:
            digest.update(f"{name}: none".encode())
            continue
        host = np.ascontiguousarray(interop.as_host(array, "tune", name))
        digest.update(f"{name} {host.dtype} {host.shape} ".encode())
        content: Any = host.reshape(-1).view(np.uint8) if host.dtype.kind != "U" else host.tobytes()
        digest.update(content)
    digest.update(json.dumps([chosen, plan.shape, machine(plan.device), version("bitsparse")]).encode())
    return jit.cache_dir() / "tune" / f"{digest.hexdigest()}.json"


def load_run(file: Path) -> list[Candidate] | None:
    """The results of a run, or None if there is no readable file."""
    try:
        with open_plain(file) as stream:
            records = json.loads(stream.read(_MOST_BYTES))
        return [_candidate(each) for each in records]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _candidate(record: dict[str, Any]) -> Candidate:
    settings = tuple(Setting(str(variant), bool(scaled)) for variant, scaled in record["settings"])
    accuracy, milliseconds, nbytes = float(record["accuracy"]), float(record["milliseconds"]), int(record["nbytes"])
    if not (0 <= accuracy <= 1 and 0 < milliseconds < math.inf and nbytes >= 0):
        raise ValueError("figures that no run gives")
    return Candidate(settings, accuracy, milliseconds, nbytes)


def store_run(file: Path, candidates: list[Candidate]) -> None:
    """Write the results as a whole file or not at all. If the folder is not writable, the next run just has to measure again."""
    records = [each.record() for each in candidates]
    keep(file, lambda stream: stream.write(json.dumps(records).encode()))
