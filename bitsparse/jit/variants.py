"""Which compile-time variants of which kernels exist: what is built ahead of time and checked for every architecture."""

from __future__ import annotations

from itertools import product
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


def _build() -> list[Variant]:
    """The builders of sparse formats, for int32 and int64 indices."""
    table = (
        ("build_check.cu", "check_csr"),
        ("build_windows.cu", "order_windows"),
        ("build_inverse.cu", "count_edges"),
        ("build_words.cu", "list_bits"),
    )
    both = [Variant(*name, index) for name in table for index in ((), (("BS_LARGE", 1),))]
    return [*both, Variant("build_runs.cu", "sum_runs")]


def _edges() -> list[Variant]:
    """Dot products and other products per edge, softmax over rows, attention: elements, lanes to a row, heads, 64-bit indices.

    Rows of 16 to 256 float32 and of 32 to 256 16-bit elements, heads of 8 to 64; the rest is compiled when it is first asked for.
    """
    table: list[tuple[str, str, dict[str, int]]] = []
    heads, large = {"BS_HEADS": 1}, {"BS_LARGE": 1}
    dots: list[tuple[int, int, dict[str, int]]] = [(0, lanes, {}) for lanes in (8, 16, 32)]
    dots += [(kind, lanes, {}) for kind in (1, 2) for lanes in (8, 16, 32)]
    dots += [(0, 4, {"BS_BLOCKS": 12}), (0, 8, heads), (0, 16, heads), (0, 32, large)]
    dots += [
        (0, 32, {"BS_ROUNDS": 2, "BS_BLOCKS": 6}),
        (0, 32, {"BS_ROUNDS": 0}),
        (3, 32, {"BS_ROUNDS": 2, "BS_BLOCKS": 4}),
    ]

    def full(more: dict[str, int]) -> dict[str, int]:
        return {"BS_FULL": 1} if more.get("BS_ROUNDS", 1) else {}

    usual = {"BS_ROUNDS": 1, "BS_STEPS": 4, "BS_BLOCKS": 8}
    table += [
        ("sddmm_edges.cu", "sddmm_edges", usual | {"BS_TYPE": kind, "BS_LANES": lanes} | more | full(more))
        for kind, lanes, more in dots
    ]
    rows: list[tuple[int, int, dict[str, int]]] = [(0, 1, {}), (0, 2, {}), (0, 32, {}), (1, 16, {}), (0, 32, large)]
    steps = {1: 1} | dict.fromkeys((2, 16, 32), 2)
    table += [
        (
            "sddmm_combine.cu",
            "sddmm_combine",
            {"BS_TYPE": kind, "BS_LANES": n, "BS_STEPS": steps[n]} | more,
        )
        for kind, n, more in rows
    ]
    attend: list[tuple[int, int, int, dict[str, int]]] = [
        *((0, lanes, together, {}) for lanes, together in ((32, 32), (32, 8), (32, 4), (32, 2), (16, 16), (16, 2))),
        *((kind, 16, together, {}) for kind in (1, 2) for together in (16, 4)),
        (3, 32, 32, {}),
        (0, 32, 8, large),
    ]
    attend += [(0, lanes, lanes, {"BS_COSINE": 1, "BS_STEPS": 4, "BS_BLOCKS": 4}) for lanes in (4, 8, 16, 32)]
    attend += [(kind, 16, 16, {"BS_COSINE": 1, "BS_STEPS": 4}) for kind in (1, 2)]
    attend += [(0, 32, 32, {"BS_COSINE": 1, "BS_PARTS": 2, "BS_STEPS": 4})]
    whole = {"BS_PARTS": 1, "BS_STEPS": 8, "BS_THREADS": 256}
    table += [
        ("attention_csr.cu", "attention", whole | {"BS_TYPE": kind, "BS_LANES": lanes, "BS_TOGETHER": together} | more)
        for kind, lanes, together, more in attend
    ]
    table = [(source, name, {"BS_VECTOR": 16} | constants) for source, name, constants in table]
    sizes: list[tuple[int, int, dict[str, int]]] = [
        (0, 4, {}),
        (1, 2, {}),
        (2, 2, {}),
        (3, 8, {}),
        (0, 4, {"BS_LARGE": 1}),
    ]
    for kind, size, more in sizes:
        one = {"BS_TYPE": kind, "BS_VECTOR": size}
        keep = {"BS_VECTOR": 16, "BS_KEEP": 4 if size == 8 else 8}
        table += [("edge_softmax.cu", "edge_softmax", one | keep | more)]
        table += [("attention_rows.cu", "join_pieces", one | {"BS_LANES": 1} | more)]
    return [Variant(source, name, tuple(sorted(constants.items()))) for source, name, constants in table]


def _spmm() -> list[Variant]:
    """Sums of gathered rows: float32, float16, bfloat16 without and with weights and scales of rows, then what else is usual."""
    usual = {"BS_KIND": 5, "BS_ACC": 0, "BS_BYTES": 16, "BS_WEIGHTS": 0, "BS_REDUCE": 0, "BS_ROW_SCALE": 0}
    usual |= {"BS_U": 8, "BS_V": 1}
    hot = [
        {"BS_KIND": kind, "BS_WEIGHTS": weights, "BS_ROW_SCALE": scaled}
        for kind in (5, 4, 7)
        for weights in (0, 1)
        for scaled in (0, 1)
    ]
    hot += [{"BS_WEIGHTS": 1, "BS_U": 4}]
    few: tuple[dict[str, int], ...] = ({}, {"BS_U": 4}, {"BS_BYTES": 8, "BS_U": 4})
    hot += [{"BS_KIND": kind, "BS_WEIGHTS": 1, "BS_VALUE16": 1, **more} for kind in (4, 7) for more in few]
    others = [{"BS_KIND": kind, **more} for kind in (5, 4, 7) for more in ({"BS_WEIGHTS": 2}, {"BS_REDUCE": 1})]
    others += [{"BS_REDUCE": 2}, {"BS_BYTES": 8}, {"BS_BYTES": 4}, {"BS_DIRECT": 1}]
    others += [{"BS_KIND": kind, "BS_BYTES": 8} for kind in (4, 7)]
    others += [{"BS_LARGE": 1, "BS_WEIGHTS": weights} for weights in (0, 1)]
    others += [{"BS_KIND": 6, "BS_ACC": 1}, {"BS_KIND": 0, "BS_ACC": 2, "BS_BYTES": 8}]
    found = [Variant("spmm_csr.cu", "spmm_csr", tuple(sorted((usual | more).items()))) for more in (*hot, *others)]
    schedules = [Variant("csr_schedule.cu", "stream_starts", tuple(index.items())) for index in ({}, {"BS_LARGE": 1})]
    return [*found, *schedules]


def _tiles() -> list[Variant]:
    """Products over condensed windows: float32 as TF32, float16, bfloat16; windows of 16 and 32 rows, 64 columns a warp; and 16 columns.

    Stages and blocks are what ``backends.cuda.tiles.constants`` chooses for them.
    """
    found = []

    def add(kind: int, windows: int, width: int, weights: int, stages: int, blocks: int) -> None:
        constants = {"BS_TYPE": kind, "BS_M": windows, "BS_WIDTH": width, "BS_VEC": min(width, 8 if kind else 4)}
        constants |= {"BS_WEIGHTS": weights, "BS_STAGES": stages, "BS_BLOCKS": blocks}
        constants |= {"BS_SCALED": 0, "BS_SPLIT": 0, "BS_ROUND": int(kind == 0), "BS_NARROW": 0}
        found.append(Variant("spmm_tiles.cu", "spmm_tiles", tuple(sorted(constants.items()))))

    for kind in range(3):
        for weights, wide, tall in ((0, (3, 4), (2, 3)), (2, (3, 3), (2, 2)), (3, (3, 3), (2, 2))):
            add(kind, 1, 8, weights, *wide)
            add(kind, 2, 8, weights, *tall)
        add(kind, 1, 2, 0, 4, 6 if kind else 7)
        add(kind, 1, 2, 2, 3, 4 if kind else 5)
    for windows in (1, 2, 4):
        for k16 in (0, 1):
            build = (("BS_M", windows), ("BS_TYPE", k16))
            found.append(Variant("spmm_tiles_build.cu", "place_tiles", build))
    return found


def _finished() -> list[Variant]:
    """Float sums with a chain or signs behind them in the same kernel, and sums of packed features, which always have one."""
    csr = {"BS_KIND": 5, "BS_ACC": 0, "BS_BYTES": 16, "BS_REDUCE": 0, "BS_ROW_SCALE": 0, "BS_U": 8, "BS_V": 1}
    added, bias, norm, relu, tanh = 4, 64, 128, 256, 1024  # enum FinishStep
    found = [
        ("spmm_csr.cu", csr | {"BS_FINISH": finish, "BS_WEIGHTS": weights} | more)
        for finish, weights, more in (
            *((finish, weights, {}) for finish in (2, 3) for weights in (0, 1)),
            *((1, weights, {"BS_STEPS": bias | relu}) for weights in (0, 1)),
            (1, 0, {"BS_STEPS": bias | relu, "BS_REDUCE": 1}),
            (3, 0, {"BS_STEPS": added}),
            (1, 0, {"BS_STEPS": bias | norm | tanh}),
            (2, 0, {"BS_KIND": 4, "BS_BYTES": 8}),
            (2, 0, {"BS_LARGE": 1}),
        )
    ]
    found += [("spmm_windows.cu", {"BS_FINISH": finish, "BS_WEIGHTS": 0}) for finish in (2, 3)]
    found += [("spmm_windows.cu", {"BS_FINISH": 1, "BS_WEIGHTS": 0, "BS_STEPS": bias | relu})]
    found += [
        (
            "spmm_packed.cu",
            {"BS_BITS": bits, "BS_LANE": lane, "BS_U": 8, "BS_FINISH": finish, "BS_WEIGHTS": weights} | more,
        )
        for bits, lane, finish, weights, more in (
            *((1, lane, finish, 1, {"BS_BIPOLAR": 1}) for lane in (4, 8) for finish in (1, 2)),
            *((1, 4, finish, 0, {"BS_BIPOLAR": 1}) for finish in (1, 3)),
            (1, 4, 1, 2, {"BS_BIPOLAR": 1}),
            *((bits, 4, 1, 1, {}) for bits in (2, 4, 8)),
            (1, 4, 1, 1, {"BS_BIPOLAR": 1, "BS_LARGE": 1}),
        )
    ]
    return [Variant(source, source[:-3], tuple(sorted(constants.items()))) for source, constants in found]


def _windows() -> list[Variant]:
    """Float32 sums over windows of eight rows without weights, with one to a column, with one to an edge; dot products of them."""
    sums = [Variant("spmm_windows.cu", "spmm_windows", (("BS_WEIGHTS", kind),)) for kind in range(3)]
    for lanes, full in ((8, True), (4, True), (8, False)):
        constants = (*((("BS_FULL", 1),) if full else ()), ("BS_LANES", lanes))
        sums.append(Variant("sddmm_windows.cu", "sddmm_windows", constants))
    return [*sums, *(Variant("windows_fill.cu", "fill_windows", large) for large in ((), (("BS_LARGE", 1),)))]


def _bspmm() -> list[Variant]:
    """Sums of one-bit features: int32, bits by one threshold or many, chain; words of a lane; 64-bit indices; teams for short, middling
    and long rows; tiles; and the two other ways to compute them.
    """
    narrow = {"BS_TEAM": 2, "BS_PIECE_TEAM": 16, "BS_U": 8, "BS_PLANES": 7, "BS_FEW": 4, "BS_BLOCKS": 5}
    alone, middling = narrow | {"BS_TEAM": 1}, narrow | {"BS_TEAM": 4}
    wide = middling | {"BS_TEAM": 16, "BS_PLANES": 6}
    outputs = [{"BS_OUT": 0, "BS_LIMITS": 0}, {"BS_OUT": 1, "BS_LIMITS": 0}, {"BS_OUT": 1, "BS_LIMITS": 1}]
    chain = {"BS_OUT": 2, "BS_LIMITS": 0, "BS_BLOCKS": 4}
    short = [outputs[0] | {"BS_BLOCKS": 4}, outputs[1]]
    table = [narrow | out | {"BS_WORDS": words} for out in short for words in (4, 2, 1)]
    table += [narrow | out | {"BS_WORDS": 4, "BS_LARGE": 1} for out in short]
    table += [narrow | out | {"BS_WORDS": 4} for out in (outputs[2], chain)]
    table += [team | out | {"BS_WORDS": 4} for team in (alone, middling, wide) for out in outputs[:2]]
    found = [Variant("bspmm_count.cu", "bspmm_count", tuple(sorted(one.items()))) for one in table]
    tiles = {"BS_TEAM": 4, "BS_WORDS": 2, "BS_U": 4, "BS_PLANES": 7, "BS_WIDTH": 4, "BS_BLOCKS": 3}
    for out in outputs:
        found.append(Variant("bspmm_tiles.cu", "bspmm_tiles", tuple(sorted((tiles | out).items()))))
    methods = [{"BS_METHOD": method, "BS_OUT": out} for method, out in ((1, 0), (2, 1), (2, 2))]
    return [*found, *(Variant("bspmm_methods.cu", "bspmm_methods", tuple(one.items())) for one in methods)]


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
        found.append(Variant("bmm_rows.cu", "bmm_rows", tuple(sorted(constants.items())), arch))
    return found


def _sampled() -> list[Variant]:
    """Sums over sampled edges: float32 and 16-bit floats, codes of 8 and 4 bits; without and with weights; drawn by rule or at random."""
    usual = {
        "BS_KIND": 5,
        "BS_ACC": 0,
        "BS_BYTES": 16,
        "BS_LANES": 32,
        "BS_U": 8,
        "BS_WEIGHTS": 0,
        "BS_THREADS": 128,
        "BS_RANDOM": 0,
    }
    codes = {"BS_KIND": 0, "BS_ACC": 2, "BS_BYTES": 8, "BS_CODES": 8, "BS_LANES": 16}
    table: list[dict[str, int]] = [
        {"BS_LANES": lanes, "BS_WEIGHTS": weights} for lanes in (4, 32) for weights in (0, 1)
    ]
    table += [
        {"BS_RANDOM": 1},
        {"BS_LARGE": 1},
        {"BS_LARGE": 1, "BS_WEIGHTS": 1, "BS_RANDOM": 1},
        {"BS_KIND": 6, "BS_ACC": 1, "BS_WEIGHTS": 1},
    ]
    table += [{"BS_KIND": kind, "BS_BYTES": 8, "BS_WEIGHTS": 1} for kind in (4, 7)]
    table += [codes, codes | {"BS_CODES": 4, "BS_BYTES": 4}, codes | {"BS_ACC": 0, "BS_WEIGHTS": 2}]
    found = [Variant("sample_spmm.cu", "sample_spmm", tuple(sorted((usual | more).items()))) for more in table]
    edges = [Variant("sample_edges.cu", "sample_edges", tuple(index.items())) for index in ({}, {"BS_LARGE": 1})]
    return [*found, *edges]


def _quantized() -> list[Variant]:
    """Products of floats that are quantised while they are loaded: float32 that stays in the L2 or not, at other alignments, with
    stochastic rounding, 16-bit floats; two blocks share a multiprocessor where there is shared memory enough.
    """
    whole, eight = {"BS_KIND": 5, "BS_VECTOR": 16, "BS_WHOLE": 1}, {"BS_KIND": 4, "BS_VECTOR": 8, "BS_WHOLE": 1}
    kinds: list[dict[str, int]] = [whole, {"BS_KIND": 5, "BS_VECTOR": 8}, whole | {"BS_RANDOM": 1}, eight]
    hopper = [*kinds, whole | {"BS_STREAM": 1}, eight | {"BS_BFLOAT": 1}]
    table: list[tuple[str, dict[str, int], str | None]] = [
        ("quantized_wgmma", kind | {"BS_AHEAD": 16 if kind["BS_KIND"] == 4 else 8}, "sm_90a") for kind in hopper
    ]
    roomy = ("sm_80", "sm_90a", "sm_100a")
    for arch, kind in product(ARCHS, kinds):
        table.append(
            ("quantized_mma", kind | {"BS_BLOCKS": 2 if arch in roomy and "BS_RANDOM" not in kind else 1}, arch)
        )
    table += [("quantized_absmax", {"BS_KIND": kind}, None) for kind in (4, 5)]
    return [Variant(f"{name}.cu", name, tuple(sorted(constants.items())), only) for name, constants, only in table]


def variants() -> list[Variant]:
    """Every variant of a release."""
    rates = [
        Variant("limits.cu", "matrix_rate", (*kind, ("BS_NB", nb), *group), only)
        for kind in ((), (("BS_BYTES", 1),))
        for nb, group, only in ((1, (), None), *((nb, (("BS_WARPGROUP", 1),), "sm_90a") for nb in (1, 2, 4)))
    ]
    others = [("bits_stats.cu", "code_sums"), ("epilogue.cu", "epilogue_int32"), ("limits_memory.cu", "read_all")]
    families = (
        _wgmma,
        _mma,
        _bmm,
        _bits,
        _build,
        _edges,
        _spmm,
        _finished,
        _tiles,
        _windows,
        _bspmm,
        _sampled,
        _quantized,
    )
    found = [variant for family in families for variant in family()]
    return [*found, *(Variant(*other) for other in others), *rates]
