"""Which compile-time variants of which kernels exist: what is built ahead of time and checked for every architecture."""

from __future__ import annotations

from itertools import product

from bitsparse.jit.variant import ARCHS, Variant
from bitsparse.jit.variants_sparse import FAMILIES

__all__ = ["ARCHS", "Variant", "variants"]


def _wgmma() -> list[Variant]:
    """The tilings of the Hopper product: row blocks, column blocks, stages that fit, bits, bytes or signed bytes, int32, int64 or epilogue.

    For int64 two row blocks are two planes of the same rows. Products of signed bytes with full unsigned ones are compiled when they are
    first asked for.
    """
    found = []
    two = ((2, 1, 1, 8), (2, 1, 2, 6), (2, 1, 3, 4), (2, 1, 4, 4), (2, 2, 1, 4), (2, 2, 2, 4))
    one = ((1, 1, 1, 8), (1, 1, 2, 8), (1, 1, 4, 5))
    int64 = ((1, 2, 1, 8), (1, 2, 2, 6))
    for groups, mb, nb, stages in (*two, *one, *int64):
        for result in ({}, {"BS_OUT64": 1}, {"BS_EPILOGUE": 1}, {"BS_EPILOGUE": 2}):
            for step in ({}, {"BS_BYTES": 1}, {"BS_BYTES": 1, "BS_SIGNED": 3}):
                if (groups, mb, nb, stages) in int64 and not result.get("BS_OUT64"):
                    continue
                constants = {"BS_GROUPS": groups, "BS_MB": mb, "BS_NB": nb, "BS_STAGES": stages} | result | step
                if result.get("BS_OUT64") and mb > 1:
                    constants["BS_PA"] = 1
                found.append(Variant("matmul/wgmma.cu", "matmul_wgmma", tuple(sorted(constants.items())), "sm_90a"))
    for nb, stages in ((1, 8), (2, 6), (3, 4), (4, 3)):  # sums that wait take the place of a stage
        constants = {"BS_GROUPS": 2, "BS_MB": 1, "BS_NB": nb, "BS_STAGES": stages}
        constants |= {"BS_EPILOGUE": 4} if nb > 2 else {"BS_EPILOGUE": 3, "BS_HELD": nb}
        found.append(Variant("matmul/wgmma.cu", "matmul_wgmma", tuple(sorted(constants.items())), "sm_90a"))
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
        found.append(Variant("matmul/mma.cu", "matmul_mma", tuple(sorted(constants.items())), only))

    for step in ((), ("BS_BYTES",)):
        for arch in ARCHS:
            if step or arch not in ("sm_100a", "sm_120a"):
                add((2, 4, 4, 8, 3 if arch in ("sm_80", "sm_90a", "sm_100a") else 2, 1), step, arch)
        for extra in ((), ("BS_OUT64",), ("BS_EPILOGUE",)):
            for tile in ((2, 4, 4, 4, 3, 1), (4, 2, 2, 4, 4, 1), (2, 2, 2, 4, 3, 2)):
                add(tile, (*step, *extra))
    return found


def _bmm() -> list[Variant]:
    """Products of signs: float32, at other alignments, 16-bit floats, bits; the ways out; small results, batch norm, parts.

    How many blocks share a multiprocessor is what ``backends.cuda.bmm.choose_tuning`` says: two where bits take more registers.
    """
    usual = {
        "BS_KIND": 5,
        "BS_VECTOR": 16,
        "BS_ROWS": 64,
        "BS_WARPS": 8,
        "BS_AHEAD": 1,
        "BS_STAGED": 1,
        "BS_NEAR": 1,
    }
    kinds: list[dict[str, int]] = [{"BS_FINISH": way} for way in range(4)]
    kinds += [{"BS_VECTOR": 8, "BS_FINISH": way} for way in (2, 3)]
    kinds += [
        {"BS_KIND": 4, "BS_VECTOR": 8, "BS_AHEAD": 2, "BS_FINISH": way, **more}
        for way, more in ((2, {}), (3, {"BS_BFLOAT": 1}))
    ]
    kinds += [{"BS_KIND": 7, "BS_FINISH": way} for way in (0, 2, 3)]
    kinds += [
        {"BS_ROWS": 16, "BS_AHEAD": 2, "BS_FINISH": 3, "BS_BLOCKS": 2, "BS_STAGED": 0, **more}
        for more in ({}, {"BS_NORM": 1, "BS_MEANS": 1})
    ]
    kinds += [{"BS_ROWS": 16, "BS_FINISH": 3, "BS_BLOCKS": 1, "BS_PARTS": 1, "BS_STAGED": 0}]
    found = []
    for arch, kind in product(ARCHS, kinds):
        constants = usual | {"BS_BLOCKS": 2 if kind["BS_FINISH"] == 1 else 3} | kind
        if arch in ("sm_100a", "sm_120a"):
            constants["BS_BLOCKS"] = min(2, constants["BS_BLOCKS"])
        if not constants["BS_STAGED"]:
            del constants["BS_STAGED"]
        found.append(Variant("binary/bmm_rows.cu", "bmm_rows", tuple(sorted(constants.items())), arch))
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
    table = [("bits/encode.cu", "encode_rows", found) for found in (*encode, *large)]
    table += [
        ("bits/quick.cu", "quick_rows", {"BS_KIND": kind, **index})
        for kind in (4, 5)
        for index in ({}, {"BS_LARGE": 1})
    ]
    table += [
        ("bits/octets.cu", "octet_rows", {"BS_DRAWN": drawn} | found)
        for found in ({"BS_KIND": 4}, {"BS_KIND": 5}, {"BS_KIND": 5, "BS_LARGE": 1})
        for drawn in (0, 1)
    ]
    table += [
        ("bits/decode.cu", "decode_rows", found) for found in (*decode, *({"BS_LARGE": 1} | decode[k] for k in (0, 5)))
    ]
    table += [("bits/range.cu", "range_rows", {"BS_KIND": kind}) for kind in (0, 3, *floats)]
    table += [("bits/round.cu", "round_stochastically", {"BS_KIND": kind}) for kind in floats]
    found = [Variant(source, name, tuple(sorted(constants.items()))) for source, name, constants in table]
    return [
        *found,
        Variant("bits/words.cu", "turn_planes"),
        Variant("bits/error.cu", "relative_error"),
        Variant("bits/content.cu", "content_sum"),
    ]


def _build() -> list[Variant]:
    """The builders of sparse formats, for int32 and int64 indices."""
    table = (
        ("sparse/check.cu", "check_csr"),
        ("sparse/windows.cu", "order_windows"),
        ("sparse/inverse.cu", "count_edges"),
        ("sparse/words.cu", "list_bits"),
    )
    both = [Variant(*name, index) for name in table for index in ((), (("BS_LARGE", 1),))]
    return [*both, Variant("sparse/runs.cu", "sum_runs")]


def _quantized() -> list[Variant]:
    """Products of floats that are quantised while they are loaded: float32 that stays in the L2 or not, at other alignments, with
    stochastic rounding, 16-bit floats; two blocks share a multiprocessor where there is shared memory enough.
    """
    whole, eight = {"BS_KIND": 5, "BS_VECTOR": 16, "BS_WHOLE": 1}, {"BS_KIND": 4, "BS_VECTOR": 8, "BS_WHOLE": 1}
    kinds: list[dict[str, int]] = [whole, {"BS_KIND": 5, "BS_VECTOR": 8}, whole | {"BS_RANDOM": 1}, eight]
    hopper = [*kinds, whole | {"BS_STREAM": 1}, eight | {"BS_BFLOAT": 1}]
    table: list[tuple[str, dict[str, int], str | None]] = [
        ("wgmma", kind | {"BS_AHEAD": 16 if kind["BS_KIND"] == 4 else 8}, "sm_90a") for kind in hopper
    ]
    roomy = ("sm_80", "sm_90a", "sm_100a")
    for arch, kind in product(ARCHS, kinds):
        table.append(("mma", kind | {"BS_BLOCKS": 2 if arch in roomy and "BS_RANDOM" not in kind else 1}, arch))
    table += [("absmax", {"BS_KIND": kind}, None) for kind in (4, 5)]
    return [
        Variant(f"quantized/{name}.cu", f"quantized_{name}", tuple(sorted(constants.items())), only)
        for name, constants, only in table
    ]


def variants() -> list[Variant]:
    """Every variant of a release."""
    rates = [
        Variant("limits/instructions.cu", "matrix_rate", (*kind, ("BS_NB", nb), *group), only)
        for kind in ((), (("BS_BYTES", 1),))
        for nb, group, only in ((1, (), None), *((nb, (("BS_WARPGROUP", 1),), "sm_90a") for nb in (1, 2, 4)))
    ]
    others = [("bits/stats.cu", "code_sums"), ("finish/sums.cu", "epilogue_int32"), ("limits/memory.cu", "read_all")]
    others += [("packets/open.cu", "packet_rows"), ("packets/sums.cu", "packet_sums")]
    families = (_wgmma, _mma, _bmm, _bits, _build, _quantized, *FAMILIES)
    found = [variant for family in families for variant in family()]
    return [*found, *(Variant(*other) for other in others), *rates]
