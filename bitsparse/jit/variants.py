"""Which compile-time variants of which kernels exist: what is built ahead of time and checked for every architecture."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ARCHS", "Variant", "variants"]

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
        >>> Variant("matmul_wgmma.cu", "matmul_wgmma", only="sm_90a").runs_on("sm_80")
        False
        """
        return self.only is None or self.only == arch


def _wgmma() -> list[Variant]:
    """The tilings of the Hopper product: row blocks, column blocks, stages that fit, bits or bytes, int32, int64 or epilogue.

    For int64 two row blocks are two planes of the same rows.
    """
    found = []
    two = ((2, 1, 1, 8), (2, 1, 2, 6), (2, 1, 3, 4), (2, 1, 4, 4), (2, 2, 1, 4), (2, 2, 2, 4))
    one = ((1, 1, 1, 8), (1, 1, 2, 8), (1, 1, 4, 5))
    int64 = ((1, 2, 1, 8), (1, 2, 2, 6))
    for groups, mb, nb, stages in (*two, *one, *int64):
        for result in ({}, {"BS_OUT64": 1}, {"BS_EPILOGUE": 1}, {"BS_EPILOGUE": 2}):
            for step in ({}, {"BS_BYTES": 1}):
                if (groups, mb, nb, stages) in int64 and not result.get("BS_OUT64"):
                    continue
                constants = {"BS_GROUPS": groups, "BS_MB": mb, "BS_NB": nb, "BS_STAGES": stages} | result | step
                if result.get("BS_OUT64") and mb > 1:
                    constants["BS_PA"] = 1
                found.append(Variant("matmul_wgmma.cu", "matmul_wgmma", tuple(sorted(constants.items())), "sm_90a"))
    for nb, stages in ((1, 8), (2, 6), (3, 4), (4, 3)):  # sums that wait take the place of a stage
        constants = {"BS_GROUPS": 2, "BS_MB": 1, "BS_NB": nb, "BS_STAGES": stages}
        constants |= {"BS_EPILOGUE": 4} if nb > 2 else {"BS_EPILOGUE": 3, "BS_HELD": nb}
        found.append(Variant("matmul_wgmma.cu", "matmul_wgmma", tuple(sorted(constants.items())), "sm_90a"))
    return found


def _mma() -> list[Variant]:
    """The tilings of the product by warps: bits or bytes, int32 or int64, an epilogue or none.

    The largest, 128 x 256, is too large for anything but the plain product, and for bits where they are emulated; how many stages it
    has depends on the shared memory. The others are 128 x 128, 128 x 64 and 64 x 64.
    """
    found = []

    def add(tile: tuple[int, ...], names: tuple[str, ...], only: str | None = None) -> None:
        constants = dict(zip(("BS_WM", "BS_WN", "BS_MI", "BS_NJ", "BS_STAGES", "BS_BLOCKS"), tile, strict=True))
        constants |= dict.fromkeys(names, 1)
        found.append(Variant("matmul_mma.cu", "matmul_mma", tuple(sorted(constants.items())), only))

    for step in ((), ("BS_BYTES",)):
        for arch in ARCHS:
            if step or arch not in ("sm_100a", "sm_120a"):
                add((2, 4, 4, 8, 3 if arch in ("sm_80", "sm_90a", "sm_100a") else 2, 1), step, arch)
        for extra in ((), ("BS_OUT64",), ("BS_EPILOGUE",)):
            for tile in ((2, 4, 4, 4, 3, 1), (4, 2, 2, 4, 4, 1), (2, 2, 2, 4, 3, 2)):
                add(tile, (*step, *extra))
    return found


def _bits() -> list[Variant]:
    """The packing family: kinds of elements (integers of 1 to 8 bytes, 16-bit floats, float32, float64), steps, 64-bit indices.

    A file is one compilation, whatever function of it is asked for.
    """
    kinds, floats = range(7), (4, 5, 6)
    encode = [{"BS_KIND": kind} for kind in kinds]
    encode += [{"BS_KIND": kind, "BS_STEPS": steps} for kind in (4, 5) for steps in (0, 1, 2)]
    encode += [{"BS_KIND": 6, "BS_STEPS": 2}]
    decode = [{"BS_KIND": kind} for kind in kinds]
    large = [{"BS_LARGE": 1} | found for found in (encode[0], encode[5], {"BS_KIND": 5, "BS_STEPS": 0}, encode[-1])]
    table = [("bits_encode.cu", "encode_rows", found) for found in (*encode, *large)]
    table += [
        ("bits_quick.cu", "quick_rows", {"BS_KIND": kind, **index})
        for kind in (4, 5)
        for index in ({}, {"BS_LARGE": 1})
    ]
    table += [
        ("bits_decode.cu", "decode_rows", found) for found in (*decode, *({"BS_LARGE": 1} | decode[k] for k in (0, 5)))
    ]
    table += [("bits_range.cu", "range_rows", {"BS_KIND": kind}) for kind in (0, 3, *floats)]
    table += [("bits_round.cu", "round_stochastically", {"BS_KIND": kind}) for kind in floats]
    found = [Variant(source, name, tuple(sorted(constants.items()))) for source, name, constants in table]
    return [*found, Variant("bits_words.cu", "turn_planes"), Variant("bits_error.cu", "relative_error")]


def variants() -> list[Variant]:
    """Every variant of a release."""
    rates = [
        Variant("limits.cu", "matrix_rate", (*kind, ("BS_NB", nb), *group), only)
        for kind in ((), (("BS_BYTES", 1),))
        for nb, group, only in ((1, (), None), *((nb, (("BS_WARPGROUP", 1),), "sm_90a") for nb in (1, 2, 4)))
    ]
    others = [("bits_stats.cu", "code_sums"), ("epilogue.cu", "epilogue_int32"), ("limits_memory.cu", "read_all")]
    return [*_wgmma(), *_mma(), *_bits(), *(Variant(*other) for other in others), *rates]
