"""How products may be cut up for the matrix units of warpgroups (``matmul/wgmma.cu``): the table of tiles, and the tilings made of them."""

from __future__ import annotations

from typing import NamedTuple

from bitsparse._records import replace
from bitsparse.backends.cuda.matmul.passes import BLOCK_BYTES, Sizes

#: The most blocks of a cluster.
_CLUSTER = 8
#: The fewest stages for which sums of parts have memory of their own, so that they are sent without waiting for other blocks.
_STAGES_BESIDE_SUMS = 4


class Tiling(NamedTuple):
    """How a product is cut up; the names are those of ``matmul/wgmma.cu``."""

    mb: int  # 64-row blocks of a consumer warpgroup: a block multiplies 64 * groups * mb rows
    nb: int  # blocks of 64 columns of a tile; 0: it has `width` columns
    qb: int  # planes of the right operand per tile
    mc: int = 1  # row tiles that share the loads of the right operand
    rk: int = 1  # parts of the contraction axis
    rp: int = 1  # parts of the passes
    groups: int = 2  # consumer warpgroups of a block
    pa: int = 1  # planes of the left operand per tile: 1, or mb for an int64 result
    width: int = 0  # columns of a tile with a kernel of its own for them and for `qb`; 0: blocks of 64

    @property
    def rows(self) -> int:
        """Rows of a tile of the result."""
        return self.left_rows // self.pa

    @property
    def columns(self) -> int:
        """Columns of a tile of the result."""
        return self.width or 64 * self.nb

    @property
    def left_rows(self) -> int:
        """Rows of a tile of the left operand, counting every plane."""
        return 64 * self.groups * self.mb

    @property
    def right_rows(self) -> int:
        """Columns of a tile of the right operand, counting every plane."""
        return self.columns * self.qb

    @property
    def carries(self) -> bool:
        """Whether the kernel of an int64 result has registers for the final bits of lighter passes (``matmul/wide.cuh``)."""
        return self.mb * self.nb * self.qb <= 2

    @property
    def threads(self) -> int:
        """Threads of a block, including the producer's warpgroup."""
        return 128 * (self.groups + 1)

    @property
    def parts(self) -> int:
        """Blocks whose sums of a tile are added up."""
        return self.rk * self.rp

    @property
    def may_split(self) -> bool:
        """Whether the sums of an int32 tile may be those of several parts."""
        return self.mb == 1 and (self.groups < 3 if self.width else self.nb == 1)

    @property
    def may_copy(self) -> bool:
        """Whether the copy engine may store the results of a tile, 32 columns at a time."""
        return self.columns % 32 == 0 and self.groups < 3

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.mc * self.parts

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage."""
        return BLOCK_BYTES * (self.left_rows + self.right_rows)

    @property
    def part_bytes(self) -> int:
        """Shared memory for the sums that a block gets from the other parts of its tile."""
        return 4 * self.rows * self.columns // self.parts * (self.parts - 1)

    def over_ring(self, room: int) -> bool:
        """Whether sums of parts take the place of the stages, as `room` bytes would have too few stages beside them."""
        return self.width > 0 and self.parts > 1 and (room - self.part_bytes) // self.stage_bytes < _STAGES_BESIDE_SUMS

    def staging_bytes(self, room: int, held: int = 2) -> int:
        """Shared memory after the stages, through which results are stored, or `held` blocks of 64 columns wait.

        All `room` bytes are for stages if three groups store from their registers, or if sums of parts lie in the place of the stages.
        """
        if self.groups > 2 or self.over_ring(room):
            return 0
        return max(self.part_bytes if self.width else 0, 8192 * self.groups * held)


#: Consumer warpgroups, row blocks of each, planes of the right operand, and the possible widths of tiles that have kernels of their own.
#: A tile has at most 256 columns of all planes (128 with two row blocks; 192 with three groups, for lack of registers).
WIDTHS: tuple[tuple[int, int, int, tuple[int, ...]], ...] = (
    (1, 1, 1, (16, 32, 48)),
    (2, 1, 1, (32, 48, 80, 96, 112, 144, 160, 176, 208, 224, 240)),
    (3, 1, 1, (64, 96, 112, 128, 144, 160, 176, 192)),
    (1, 1, 2, (16, 32)),
    (2, 1, 2, (16, 32, 48, 80, 96, 112)),
    (3, 1, 2, (48, 64, 80)),
    (2, 1, 3, (16, 32, 48, 80)),
    (3, 1, 3, (32, 48)),
    (1, 1, 4, (16, 32)),
    (2, 1, 4, (16, 32, 48)),
    (2, 2, 4, (32,)),
    (3, 1, 4, (32, 40)),
    (2, 1, 8, (16, 24, 32)),
    (3, 1, 8, (16, 24)),
)


def tilings(columns: int, b_planes: int, *, masked: bool, wide: bool, a_planes: int = 1) -> list[Tiling]:
    """The tilings worth considering for a result of ``columns`` columns; only an int64 result depends on ``a_planes``."""
    found = []
    blocks = ((2, 1, 1), (2, 2, 2), (1, 1, 1), (1, 2, 2)) if wide else ((2, 1, 1), (2, 2, 1), (1, 1, 1))
    for nb, qb in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 3), (1, 4), (3, 1)):
        if qb > b_planes or 64 * (nb - 1) >= max(1, columns):
            continue
        for groups, mb, pa in blocks:
            if mb * nb * qb > 4 or (mb == 2 and nb * qb == 3) or (groups == 1 and (nb > 1 or qb == 3)) or pa > a_planes:
                continue
            split = not wide and mb * nb == 1
            found += [
                Tiling(mb, nb, qb, mc, rk, rp, groups, pa)
                for mc in ((1,) if masked else (1, 2, 4))
                for rk in ((1, 2, 4, 8) if split else (1,))
                for rp in ((1, 2, 4) if split else (1,))
                if mc * rk * rp <= _CLUSTER and rk * rp <= 4 * groups
            ]
    return found


#: Results of so many columns have tiles of their whole width, so that the left operand is read once.
_ONCE = 64


def fitted_tilings(sizes: Sizes, multiprocessors: int) -> list[Tiling]:
    """The tilings of :data:`WIDTHS` worth considering for an int32 result without an epilogue, whose left operand has no zero tiles.

    Tiles of more than four planes take all planes at once. A tile is divided among parts only if a multiprocessor is left for each part,
    and then among as many as there can be. Results of up to 64 columns have no narrower tiles: reading the left operand twice took
    longer than estimated.

    Examples
    --------
    >>> sorted({tiling.width for tiling in fitted_tilings(Sizes(300, 40, 4, 1, 8, 1), 132)})
    [40, 48]
    """
    found = []
    for groups, mb, qb, widths in WIDTHS:
        if qb > sizes.b_planes or (qb > 4 and qb < sizes.b_planes):
            continue
        strips = -(-sizes.m // (64 * groups * mb))
        passes = sizes.a_planes * -(-sizes.b_planes // qb)
        for width in widths:
            if width - 16 >= sizes.n or width < sizes.n <= _ONCE:
                continue
            tile = Tiling(mb, 0, qb, groups=groups, width=width)
            tiles = max(1, sizes.batches * strips * -(-sizes.n // width))
            most = multiprocessors // tiles if tile.may_split else 1
            for mc in (1, 2) if strips > 1 and tile.right_rows % 16 == 0 else (1,):
                found.append(replace(tile, mc=mc))
                limit = min(most, _CLUSTER // mc, 4 * groups)
                if limit > 1:
                    parts = 1 << limit.bit_length() - 1
                    found += [
                        replace(tile, mc=mc, rk=parts // rp, rp=rp) for rp in (1, 2, 4) if rp <= min(parts, passes)
                    ]
    return found
