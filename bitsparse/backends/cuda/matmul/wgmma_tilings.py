"""How products may be cut up for the matrix units of warpgroups (``matmul/wgmma.cu``): the table of tiles, and the tilings made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bitsparse.backends.cuda.matmul.passes import BLOCK_BYTES

#: The most blocks of a cluster.
_CLUSTER = 8


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
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.mc * self.parts

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage."""
        return BLOCK_BYTES * (self.left_rows + self.right_rows)

    def staging_bytes(self, held: int = 2) -> int:
        """Shared memory after the stages, through which results are stored, or `held` blocks of 64 columns wait.

        Of split tiles the sums of all other parts must fit.
        """
        others = 4 * self.rows * self.columns * 7 // 8 if self.width and self.parts > 1 else 0
        return max(others, 8192 * self.groups * held)


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
            tile = Tiling(mb, nb, qb, groups=groups, pa=pa)
            found += list(_clustered(tile, shared=not masked, split=tile.may_split and not wide))
    return found


def fitted_tilings(columns: int, b_planes: int) -> list[Tiling]:
    """The tilings of :data:`WIDTHS` worth considering for an int32 result without an epilogue, whose left operand has no zero tiles.

    Those of more than four planes take all planes at once.

    Examples
    --------
    >>> {tiling.width for tiling in fitted_tilings(40, 8)}
    {48, 16, 32, 24}
    """
    found = []
    for groups, mb, qb, widths in WIDTHS:
        if qb > b_planes or (qb > 4 and qb < b_planes):
            continue
        for width in widths:
            if width - 16 < columns:
                tile = Tiling(mb, 0, qb, groups=groups, width=width)
                found += list(_clustered(tile, shared=True, split=tile.may_split))
    return found


def _clustered(tile: Tiling, *, shared: bool, split: bool) -> Iterator[Tiling]:
    """The clusters of a tile: blocks that share loads of the right operand, times parts of the contraction axis and of the passes."""
    for mc in (1, 2, 4) if shared else (1,):
        if tile.right_rows % (8 * mc):  # rows are swizzled in groups of eight
            continue
        for rk in (1, 2, 4, 8) if split else (1,):
            for rp in (1, 2, 4) if split else (1,):
                if mc * rk * rp <= _CLUSTER and rk * rp <= 4 * tile.groups:
                    yield tile._replace(mc=mc, rk=rk, rp=rp)
