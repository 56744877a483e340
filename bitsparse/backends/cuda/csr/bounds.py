"""Launch bounds of the kernels that walk edges, as tables: how many blocks of a kernel are to share a multiprocessor.

This number limits the registers of a thread. In each table the first row whose conditions the kernel's constants meet gives the number of
blocks that fit on Hopper without spilling registers. Other chips (:attr:`Chip.fewer_blocks`), 64-bit indices and lanes that hold more
reduce it. Where chips differ in other ways, conditions name the chip: "sm" is 900 on Hopper. ``bitsparse compile`` reports numbers that
are too large.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from bitsparse import jit
from bitsparse.backends.cuda.chips import RELEASED, Chip, chip_here

Conditions = Mapping[str, Container[int]]
_NO, _YES, _ANY = (0,), (1,), range(1, 1 << 11)
#: Kinds of elements, and values of BS_STEPS (steps of an epilogue) that include a hyperbolic tangent.
_INTEGERS, _HALVES, _FLOAT32, _FLOAT64, _TANH = range(4), (4, 7), (5,), (6,), range(1 << 10, 1 << 11)
_MEAN, _SUM, _HEADS, _SIGNS, _CHAIN = (1,), (0,), (2,), (2,), (2,)
_AMPERE, _HOPPER, _BLACKWELL = range(900), range(900, 1000), range(1000, 2000)


class Bounds(NamedTuple):
    """The launch bounds of one kernel.

    Attributes
    ----------
    fitting : tuple of (conditions, blocks)
        Blocks that fit on Hopper. Conditions are allowed values of the kernel's constants; a constant that is not given counts as 0.
    fewer : tuple of (conditions, blocks)
        By how many blocks to reduce this for a kernel that meets the conditions, instead of by its chip's ``fewer_blocks``.
    bounds_tuning : bool
        Whether a ``BS_BLOCKS`` among the constants is lowered to what fits. Otherwise it is kept.
    """

    fitting: tuple[tuple[Conditions, int], ...]
    fewer: tuple[tuple[Conditions, int], ...] = (({}, 0),)
    bounds_tuning: bool = False

    def blocks(self, constants: Mapping[str, int], chip: Chip) -> dict[str, int]:
        """``BS_BLOCKS`` for a kernel with these constants on a chip; nothing if the constants already fix it.

        Examples
        --------
        >>> from bitsparse.backends.cuda.chips import CHIPS
        >>> constants = {"BS_LANE": 4, "BS_FINISH": 1, "BS_WEIGHTS": 1}
        >>> [PACKED.blocks(constants, CHIPS[version]) for version in ((8, 0), (9, 0))]
        [{'BS_BLOCKS': 6}, {'BS_BLOCKS': 7}]
        """
        wish = constants.get("BS_BLOCKS")
        if wish is not None and not self.bounds_tuning:
            return {}
        known = {**constants, "sm": 100 * chip.card.major + 10 * chip.card.minor}
        fewer = next((less for conditions, less in self.fewer if _meets(known, conditions)), chip.fewer_blocks)
        fitting = next(n for conditions, n in self.fitting if _meets(known, conditions)) - fewer
        return {"BS_BLOCKS": fitting if wish is None else min(wish, fitting)}

    def kernel(self, source: str, function: str, constants: Mapping[str, int]) -> jit.Kernel:
        """The kernel with these constants and with the blocks that fit the current device's chip."""
        return jit.kernel(source, function, {**constants, **self.blocks(constants, chip_here())})

    def variants(self, source: str, function: str, each: Iterable[Mapping[str, int]]) -> list[jit.Variant]:
        """Variants with these constants and with the blocks that fit, for every chip that a release is compiled for."""
        each = list(each)
        return [
            variant
            for arch, chip in RELEASED.items()
            for variant in jit.variants_of(source, function, [{**one, **self.blocks(one, chip)} for one in each], arch)
        ]


def _meets(constants: Mapping[str, int], conditions: Conditions) -> bool:
    return all(constants.get(name, 0) in values for name, values in conditions.items())


def _with_means(*rows: tuple[Conditions, int, int]) -> tuple[tuple[Conditions, int], ...]:
    """Rows of (conditions, blocks of a sum or maximum, of a mean) as rows of (conditions, blocks)."""
    return tuple(
        row
        for conditions, blocks, of_means in rows
        for row in (({"BS_REDUCE": _MEAN, **conditions}, of_means), (conditions, blocks))
    )


_PLAIN = {"BS_KIND": _FLOAT32, "BS_ACC": (0,), "BS_REDUCE": _SUM}
_FINISHED = {"BS_FINISH": _ANY}
CSR = Bounds(
    _with_means(
        (_FINISHED | {"BS_WEIGHTS": _HEADS}, 5, 4),
        (_FINISHED | {"BS_KIND": _HALVES, "BS_BYTES": (16,)}, 5, 4),
        (_FINISHED | {"BS_STEPS": _TANH}, 5, 4),
        ({"BS_FINISH": _SIGNS, "BS_WEIGHTS": _NO, "BS_PADS": (0, 1)}, 8, 8),
        ({"BS_FINISH": _SIGNS, "BS_WEIGHTS": _NO}, 7, 7),
        ({"BS_FINISH": _SIGNS, "BS_PADS": (0, 1)}, 7, 7),
        ({"BS_FINISH": _SIGNS}, 6, 6),
        ({"BS_FINISH": (3,)}, 6, 5),
        (_FINISHED | {"BS_WEIGHTS": _NO}, 7, 6),
        (_FINISHED, 5, 4),
        ({"BS_V": range(2, 33)}, 4, 4),
        (_PLAIN | {"BS_WEIGHTS": _NO, "BS_FETCHED": _YES}, 7, 7),
        (_PLAIN | {"BS_WEIGHTS": _NO, "BS_RAGGED": _YES, "BS_AFTER": _YES}, 7, 7),
        ({"BS_KIND": _HALVES, "BS_WEIGHTS": _NO, "BS_RAGGED": _YES, "BS_AFTER": _YES}, 6, 5),
        ({"BS_KIND": _HALVES, "BS_WEIGHTS": (1,), "BS_RAGGED": _YES, "BS_AFTER": _YES}, 5, 4),
        (_PLAIN | {"BS_WEIGHTS": _NO, "BS_ROW_SCALE": _NO}, 8, 8),
        ({"BS_VALUE16": _YES, "BS_REDUCE": _SUM, "BS_U": range(5)}, 9, 9),
        ({"BS_KIND": _INTEGERS}, 5, 5),
        ({"BS_KIND": _FLOAT64, "BS_WEIGHTS": _NO}, 7, 5),
        ({"BS_KIND": _FLOAT64}, 5, 4),
        ({"BS_WEIGHTS": _NO}, 7, 6),
        ({"BS_VALUE16": _YES}, 7, 6),
        (_PLAIN | {"BS_WEIGHTS": (1,), "BS_AFTER": _YES}, 6, 6),
        (_PLAIN | {"BS_WEIGHTS": (1,)}, 7, 7),
        ({}, 6, 5),
    ),
    (({"BS_LARGE": _YES}, 2),),
)
#: Kernels whose lanes hold more than eight integers, or have more than eight edges in flight.
_CROWDED = (
    {"BS_LARGE": _YES},
    {"BS_U": range(9, 33)},
    {"BS_BITS": (2,), "BS_WORDS": (2, 4)},
    {"BS_BITS": (4,), "BS_WORDS": (4,)},
)
CODES = Bounds(
    (
        ({"BS_OUT": _CHAIN, "BS_BITS": (2,), "BS_WEIGHTS": _NO}, 5),
        ({"BS_OUT": _CHAIN, "BS_BITS": (2,)}, 4),
        ({"BS_OUT": _CHAIN, "BS_WEIGHTS": _NO}, 4),
        ({"BS_OUT": _CHAIN}, 3),
        ({"BS_WEIGHTS": (2,), "BS_NODES": _YES}, 4),
        ({"BS_WEIGHTS": _ANY}, 5),
        ({"BS_BITS": (8,), "BS_WORDS": (1, 2)}, 6),
        ({"BS_BITS": (8, 16)}, 5),
        ({}, 8),
    ),
    tuple(row for crowded in _CROWDED for row in ((crowded | {"BS_OUT": _CHAIN}, 1), (crowded, 2))),
)


def _packed_rows() -> tuple[tuple[Conditions, int], ...]:
    """Seven blocks, and one fewer for each feature that needs registers besides those for the sums."""
    rows: list[tuple[Conditions, int]] = [({}, 7)]
    wide: Conditions = {"BS_LANE": range(5, 33), "BS_FINISH": (1, 3)}
    for more in ({"BS_MEAN": _YES}, {"BS_STEPS": _TANH}, wide, {"BS_WEIGHTS": (2,)}):
        rows = [*(({**conditions, **more}, blocks - 1) for conditions, blocks in rows), *rows]
    return tuple(rows)


PACKED = Bounds(_packed_rows(), (({"BS_LARGE": _YES}, 1),))
#: Sums over sampled edges.
SAMPLED = Bounds(
    (
        ({"BS_LARGE": _YES}, 4),
        ({"BS_KIND": _FLOAT64}, 4),
        ({"BS_CODES": _ANY, "BS_WEIGHTS": _ANY, "sm": _BLACKWELL}, 3),
        ({"BS_CODES": _ANY, "BS_WEIGHTS": _ANY}, 4),
        ({"BS_CODES": _ANY, "sm": _HOPPER}, 7),
        ({"BS_CODES": _ANY}, 5),
        ({"sm": _HOPPER}, 6),
        ({}, 4),
    )
)
#: Products, sums and quotients of two rows for each edge: of packed integers, and of other elements.
PAIRED_CODES = Bounds((({"BS_LARGE": _YES}, 3), ({"BS_COLUMNS": _YES}, 3), ({}, 4)))
PAIRED = Bounds((({"BS_LARGE": _YES}, 2), ({"BS_TYPE": (1, 2)}, 3), ({}, 4)))
#: Constants of attention kernels of which only two blocks fit on a multiprocessor.
_ATTENTION_OF_TWO: tuple[Conditions, ...] = (
    {"BS_TYPE": (3,)},
    {"BS_PARTS": range(2, 33)},
    {"BS_LARGE": _YES},
    {"BS_ABOVE": _YES},
    {"BS_TURNED": _YES},
    {"BS_JOINED": _YES},
    {"sm": _AMPERE},
)
#: Attention; on Hopper the bounds depend on the threads of a block, 64 or 128 (``edges/attention_layout.py``).
ATTENTION = Bounds(
    (
        ({"sm": _HOPPER, "BS_THREADS": (64,), "BS_JOINED": _YES}, 8),
        ({"sm": _HOPPER, "BS_THREADS": (64,), "BS_DROPOUT": _YES}, 8),
        ({"sm": _HOPPER, "BS_THREADS": (64,), "BS_ABOVE": _YES, "BS_TOGETHER": (1, 2)}, 8),
        ({"sm": _HOPPER, "BS_THREADS": (64,)}, 10),
        ({"sm": _HOPPER, "BS_THREADS": (128,), "BS_JOINED": _YES}, 5),
        ({"sm": _HOPPER, "BS_THREADS": (128,), "BS_DROPOUT": _YES}, 5),
        ({"sm": _HOPPER, "BS_THREADS": (128,), "BS_COMPLETED": _YES, "BS_TOGETHER": (1, 2)}, 5),
        ({"sm": _HOPPER, "BS_THREADS": (128,)}, 6),
        *((conditions, 2) for conditions in _ATTENTION_OF_TWO),
        ({}, 3),
    )
)
#: Attention over codes on the matrix units, in blocks of 64 threads.
ATTENTION_CODES = Bounds(
    (({"BS_VECTOR": (16,)}, 8), ({}, 10)),
    (({"BS_LARGE": _YES}, 2), ({"BS_VECTOR": (16,), "sm": _BLACKWELL}, 1), ({}, 0)),
)
#: Sums of signs over neighbours, edge by edge (COUNTS) and by tiles (TILES).
COUNTS = Bounds(
    (
        ({"BS_OUT": _CHAIN}, 4),
        ({"BS_OUT": (0,), "BS_TEAM": (2,)}, 4),
        ({"BS_LARGE": _YES}, 4),
        ({"BS_MOST": _ANY}, 4),
        ({"sm": _HOPPER}, 32),
        ({}, 4),
    ),
    bounds_tuning=True,
)
TILES = Bounds((({"BS_OUT": _CHAIN}, 2), ({"BS_MOST": _ANY}, 2), ({"sm": _HOPPER}, 3), ({}, 2)), bounds_tuning=True)
