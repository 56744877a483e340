"""Compile-time variants of the kernels over sparse patterns; :func:`bitsparse.jit.variants` lists those of all kernels."""

from __future__ import annotations

from bitsparse.jit.variant import Variant

__all__ = ["FAMILIES"]


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
        ("edges/sddmm_dot.cu", "sddmm_edges", usual | {"BS_TYPE": kind, "BS_LANES": lanes} | more | full(more))
        for kind, lanes, more in dots
    ]
    rows: list[tuple[int, int, dict[str, int]]] = [(0, 1, {}), (0, 2, {}), (0, 32, {}), (1, 16, {}), (0, 32, large)]
    steps = {1: 1} | dict.fromkeys((2, 16, 32), 2)
    table += [
        (
            "edges/sddmm_combine.cu",
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
        (
            "edges/attention.cu",
            "attention",
            whole | {"BS_TYPE": kind, "BS_LANES": lanes, "BS_TOGETHER": together} | more,
        )
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
        table += [("edges/softmax.cu", "edge_softmax", one | keep | more)]
        table += [("edges/attention_rows.cu", "join_pieces", one | {"BS_LANES": 1} | more)]
    return [
        *(Variant(source, name, tuple(sorted(constants.items()))) for source, name, constants in table),
        *_edge_codes(),
    ]


def _edge_codes() -> list[Variant]:
    """Products per edge of packed integers: dot products of 128 and 256 of them, sums and products of rows, integers and real values."""
    words, real, mixed = {"BS_TYPE": 4, "BS_VECTOR": 16}, {"BS_REAL": 1}, {"BS_LEFT": 0, "BS_RIGHT": 1}
    dots: list[tuple[int, int, int, dict[str, int]]] = [
        (8, 8, 4, real),
        (8, 16, 4, real),
        (4, 4, 4, real),
        (2, 2, 2, {}),
        (1, 1, 1, {"BS_LEFT": 2, "BS_RIGHT": 2}),
        (8, 8, 4, real | mixed | {"BS_OFFSETS": 1}),
        (4, 8, 4, real | mixed | {"BS_OFFSETS": 1, "BS_HEADS": 1}),
        (8, 32, 4, real | {"BS_ROUNDS": 0, "BS_LARGE": 1}),
    ]
    table: list[tuple[str, str, dict[str, int]]] = []
    for bits, lanes, steps, more in dots:
        constants = words | {"BS_CODES": bits, "BS_LANES": lanes, "BS_STEPS": steps, "BS_ROUNDS": 1, "BS_BLOCKS": 8}
        constants |= {"BS_LEFT": 1, "BS_RIGHT": 1} | more | ({"BS_FULL": 1} if more.get("BS_ROUNDS", 1) else {})
        table.append(("edges/sddmm_dot.cu", "sddmm_edges", constants))
    rows = words | {"BS_CODES": 8, "BS_LANES": 32, "BS_STEPS": 2}
    for extra in ({}, real, real | {"BS_COLUMNS": 1}, real | {"BS_HEADS": 1, "BS_LARGE": 1}):
        table.append(("edges/sddmm_codes.cu", "sddmm_codes", rows | extra))
    return [Variant(source, name, tuple(sorted(constants.items()))) for source, name, constants in table]


def _codes() -> list[Variant]:
    """Sums of packed integers: int32, means, the chain of an epilogue; 64-bit indices, integers and floats as values of edges."""
    words = {2: 1, 4: 2, 8: 4, 16: 4}
    table: list[tuple[int, dict[str, int]]] = [(bits, {"BS_OUT": 0}) for bits in words]
    table += [(bits, {"BS_OUT": 2}) for bits in (2, 4, 8)]
    table += [(8, more) for more in ({"BS_OUT": 1}, {"BS_OUT": 2, "BS_MEAN": 1}, {"BS_OUT": 0, "BS_WEIGHTS": 1})]
    table += [(8, {"BS_OUT": 0, "BS_SIGNED": 1}), *((bits, {"BS_OUT": 1, "BS_WEIGHTS": 2}) for bits in (4, 8))]
    table += [(8, {"BS_OUT": 0, "BS_LARGE": 1}), (4, {"BS_OUT": 2, "BS_LARGE": 1})]
    usual = [{"BS_BITS": bits, "BS_WORDS": words[bits], "BS_U": 8} | more for bits, more in table]
    return [Variant("spmm/codes.cu", "spmm_codes", tuple(sorted(constants.items()))) for constants in usual]


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
    found = [Variant("spmm/csr.cu", "spmm_csr", tuple(sorted((usual | more).items()))) for more in (*hot, *others)]
    schedules = [Variant("csr/schedule.cu", "stream_starts", tuple(index.items())) for index in ({}, {"BS_LARGE": 1})]
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
        found.append(Variant("spmm/tiles.cu", "spmm_tiles", tuple(sorted(constants.items()))))

    for kind in range(3):
        for weights, wide, tall in ((0, (3, 4), (2, 3)), (2, (3, 3), (2, 2)), (3, (3, 3), (2, 2))):
            add(kind, 1, 8, weights, *wide)
            add(kind, 2, 8, weights, *tall)
        add(kind, 1, 2, 0, 4, 6 if kind else 7)
        add(kind, 1, 2, 2, 3, 4 if kind else 5)
    for windows in (1, 2, 4):
        for k16 in (0, 1):
            build = (("BS_M", windows), ("BS_TYPE", k16))
            found.append(Variant("spmm/tiles_build.cu", "place_tiles", build))
    return found


def _finished() -> list[Variant]:
    """Float sums with a chain or signs behind them in the same kernel, and sums of one-bit features, which always have one."""
    csr = {"BS_KIND": 5, "BS_ACC": 0, "BS_BYTES": 16, "BS_REDUCE": 0, "BS_ROW_SCALE": 0, "BS_U": 8, "BS_V": 1}
    added, bias, norm, relu, tanh = 4, 64, 128, 256, 1024  # enum FinishStep
    found = [
        ("csr", csr | {"BS_FINISH": finish, "BS_WEIGHTS": weights} | more)
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
    found += [("windows", {"BS_FINISH": finish, "BS_WEIGHTS": 0}) for finish in (2, 3)]
    found += [("windows", {"BS_FINISH": 1, "BS_WEIGHTS": 0, "BS_STEPS": bias | relu})]
    found += [
        (
            "packed",
            {"BS_BIPOLAR": 1, "BS_LANE": lane, "BS_U": 8, "BS_FINISH": finish, "BS_WEIGHTS": weights} | more,
        )
        for lane, finish, weights, more in (
            *((lane, finish, 1, {}) for lane in (4, 8) for finish in (1, 2)),
            *((4, finish, 0, {}) for finish in (1, 3)),
            (4, 1, 2, {}),
            (4, 1, 1, {"BS_LARGE": 1}),
        )
    ]
    return [Variant(f"spmm/{name}.cu", f"spmm_{name}", tuple(sorted(constants.items()))) for name, constants in found]


def _windows() -> list[Variant]:
    """Float32 sums over windows of eight rows without weights, with one to a column, with one to an edge; dot products of them."""
    sums = [Variant("spmm/windows.cu", "spmm_windows", (("BS_WEIGHTS", kind),)) for kind in range(3)]
    for lanes, full in ((8, True), (4, True), (8, False)):
        constants = (*((("BS_FULL", 1),) if full else ()), ("BS_LANES", lanes))
        sums.append(Variant("edges/sddmm_windows.cu", "sddmm_windows", constants))
    return [*sums, *(Variant("spmm/windows_fill.cu", "fill_windows", large) for large in ((), (("BS_LARGE", 1),)))]


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
    found = [Variant("binary/bspmm_count.cu", "bspmm_count", tuple(sorted(one.items()))) for one in table]
    tiles = {"BS_TEAM": 4, "BS_WORDS": 2, "BS_U": 4, "BS_PLANES": 7, "BS_WIDTH": 4, "BS_BLOCKS": 3}
    for out in outputs:
        found.append(Variant("binary/bspmm_tiles.cu", "bspmm_tiles", tuple(sorted((tiles | out).items()))))
    methods = [{"BS_METHOD": method, "BS_OUT": out} for method, out in ((1, 0), (2, 1), (2, 2))]
    return [*found, *(Variant("binary/bspmm_methods.cu", "bspmm_methods", tuple(one.items())) for one in methods)]


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
    found = [Variant("sampling/spmm.cu", "sample_spmm", tuple(sorted((usual | more).items()))) for more in table]
    edges = [Variant("sampling/edges.cu", "sample_edges", tuple(index.items())) for index in ({}, {"BS_LARGE": 1})]
    for lanes, weights in ((4, 0), (16, 1)):
        constants = {"BS_LANES": lanes, "BS_U": 4, "BS_WEIGHTS": weights, "BS_THREADS": 128}
        edges.append(Variant("spmm/short.cu", "spmm_short", tuple(sorted(constants.items()))))
    return [*found, *edges]


FAMILIES = (
    _edges,
    _codes,
    _spmm,
    _tiles,
    _finished,
    _windows,
    _bspmm,
    _sampled,
)
