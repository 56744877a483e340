"""One compilation of a kernel for one choice of constants, and the architectures that there are."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ARCHS", "Variant"]

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
