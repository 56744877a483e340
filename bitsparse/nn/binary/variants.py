"""BitGNN's letters for layers, as in "FBB+BBB": the precisions of each product's input, weights and output (section 3.1.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from bitsparse._check import shown
from bitsparse._records import replace

#: BMM+BSpMM, as in a GCN: activation, weight and output of BMM, then activation, adjacency and output of BSpMM.
CHAIN_VARIANTS = tuple(f"{x}B{p}+{p}B{q}" for x, p, q in product("FB", repeat=3))
#: BMM+BSpMM+ADD, as in GraphSAGE: ADD takes aggregate and own features in the same precision.
ADD_VARIANTS = tuple(f"{x}B{p}+{p}B{q}+{q}{q}{r}" for x, p, q, r in product("FB", repeat=4))


class Setting(NamedTuple):
    """How one layer computes.

    ``variant`` is one of CHAIN_VARIANTS or ADD_VARIANTS. ``scaled`` says whether the adjacency's scales (``D^-1/2`` on both sides) are
    applied. Only full-precision messages allow that, because signs are counted over the plain pattern.
    """

    variant: str
    scaled: bool = False

    @property
    def reads(self) -> str:
        """The letter of the layer's input."""
        return self.variant[0]

    @property
    def message(self) -> str:
        """The letter of the messages, which are aggregated."""
        return self.variant[2]

    @property
    def aggregate(self) -> str:
        """The letter of the aggregate."""
        return self.variant[6]

    @property
    def gives(self) -> str:
        """The letter of the layer's output."""
        return self.variant[-1]

    def reading(self, letter: str) -> Setting:
        """The same setting for an input with this letter."""
        return replace(self, variant=letter + self.variant[1:])

    def __str__(self) -> str:
        return self.variant + (" scaled" if self.scaled else "")


def parse(function: str, known: Sequence[str], wanted: Sequence[object], layers: int, scales: bool) -> list[Setting]:
    """Make settings from variants or settings, after checking that they are known and that each layer reads what the one before gives.

    A bare variant is scaled if the model has `scales` and its messages are in full precision.

    >>> parse("BinaryGCN", CHAIN_VARIANTS, ["FBB+BBB", "BBF+FBF"], 2, True)
    [Setting(variant='FBB+BBB', scaled=False), Setting(variant='BBF+FBF', scaled=True)]
    """
    if isinstance(wanted, str) or len(wanted) != layers:
        raise ValueError(
            f"{function}: variants must be 'full', 'binary' or one variant for each of the {layers} layers, got {shown(wanted)}; pass for "
            f"example {[known[0]] * layers}"
        )
    settings = []
    for i, each in enumerate(wanted):
        variant, scaled = each if isinstance(each, tuple) else (each, None)
        if variant not in known:
            raise ValueError(f"{function}: variants[{i}] must be one of {', '.join(known)}, got {shown(variant)}")
        setting = Setting(variant, False)
        allowed = scales and setting.message == "F"
        if scaled and not allowed:
            why = "its messages are one bit" if scales else "it has no scales"
            raise ValueError(
                f"{function}: variants[{i}] {shown(variant)} cannot be scaled, as {why}; pass scaled=False"
            )
        settings.append(Setting(variant, allowed if scaled is None else bool(scaled)))
    for i in range(1, layers):
        if settings[i].reads != settings[i - 1].gives:
            raise ValueError(
                f"{function}: layer {i - 1} ({settings[i - 1].variant}) gives {settings[i - 1].gives}, but layer {i} "
                f"({settings[i].variant}) reads {settings[i].reads}; make the letters equal"
            )
    return settings


def consistent(settings: Sequence[Setting]) -> list[Setting]:
    """The same settings, with the first letters changed so that every layer reads what the one before gives.

    >>> [str(s) for s in consistent([Setting("FBB+BBB"), Setting("FBF+FBF", True)])]
    ['FBB+BBB', 'BBF+FBF scaled']
    """
    chain = list(settings)
    for i in range(1, len(chain)):
        chain[i] = chain[i].reading(chain[i - 1].gives)
    return chain


def choices(known: Sequence[str], scales: bool) -> list[Setting]:
    """Every setting of one layer. With `scales`, those with full-precision messages come scaled and not scaled.

    >>> [str(s) for s in choices(["FBF+FBF", "FBB+BBF"], True)]
    ['FBF+FBF scaled', 'FBF+FBF', 'FBB+BBF']
    """
    return [
        Setting(variant, scaled)
        for variant in known
        for scaled in ((True, False) if scales and variant[2] == "F" else (False,))
    ]


def sequences(settings: Sequence[Setting], layers: int, first: str, last: str) -> Iterator[list[Setting]]:
    """Every consistent choice among `settings` for all layers whose input has the letter `first` and whose output has `last`.

    >>> sum(1 for _ in sequences(choices(CHAIN_VARIANTS, False), 2, "F", "F"))
    8
    """
    for between in product("FB", repeat=layers - 1):
        letters = pairwise((first, *between, last))
        ways = [[each for each in settings if (each.reads, each.gives) == ends] for ends in letters]
        yield from map(list, product(*ways))
