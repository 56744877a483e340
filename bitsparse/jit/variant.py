"""One compilation of a kernel for one choice of constants, and the architectures that there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["ARCHS", "Variant", "variants_of"]

#: Every architecture that a release is checked against.
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


class Variant(NamedTuple):
    """One compilation: a file, the function in it, and its constants; ``only`` names the one architecture that has the instructions."""

    source: str
    function: str
    defines: tuple[tuple[str, int], ...] = ()
    only: str | None = None

    def runs_on(self, arch: str) -> bool:
        """Whether ``arch`` can run it.

        Examples
        --------
        >>> Variant("matmul/wgmma.cu", "matmul_wgmma", only="sm_90a").runs_on("sm_80")
        False
        """
        return self.only is None or self.only == arch


def variants_of(
    source: str, function: str, constants: Iterable[Mapping[str, int]] = ({},), only: str | None = None
) -> list[Variant]:
    """Variants of one function, each once: what a module that launches it lists in its ``VARIANTS``.

    Examples
    --------
    >>> [variant.defines for variant in variants_of("bits/range.cu", "range_rows", [{"BS_KIND": 0}, {"BS_KIND": 5}])]
    [(('BS_KIND', 0),), (('BS_KIND', 5),)]
    """
    each = dict.fromkeys(tuple(sorted(one.items())) for one in constants)
    return [Variant(source, function, defines, only) for defines in each]
