"""The estimates choose the right kernel for each chip; no GPU is needed."""

from __future__ import annotations

import math

import pytest

from bitsparse import jit
from bitsparse.backends.cuda import variants
from bitsparse.backends.cuda.matmul import mma as gemm_mma
from bitsparse.backends.cuda.matmul import wgmma as gemm
from bitsparse.backends.cuda.matmul.matmul import KERNELS, cost
from bitsparse.backends.cuda.matmul.passes import Sizes, runs_of, wide_passes_of

A100 = jit.Capability("A100", 8, 0, 108, 166912, 41943040)
ADA = jit.Capability("L40S", 8, 9, 142, 101376, 100663296)
H200 = jit.Capability("H200", 9, 0, 132, 232448, 62914560)
B200 = jit.Capability("B200", 10, 0, 148, 232448, 132120576)
LATER = jit.Capability("later", 13, 0, 100, 232448, 62914560)


def choice(monkeypatch: pytest.MonkeyPatch, chip: jit.Capability, *product: int) -> str:
    monkeypatch.setattr(jit, "capability", lambda: chip)
    return min(KERNELS[:2], key=lambda kernel: cost(kernel, *product))


@pytest.mark.parametrize("chip", [A100, ADA, H200], ids=lambda c: c.name)
def test_bits_where_they_are_fast(monkeypatch: pytest.MonkeyPatch, chip: jit.Capability) -> None:
    for shape in ((8192, 8192, 8192), (8192, 64, 8192), (256, 256, 256)):
        assert choice(monkeypatch, chip, *shape, 1, 1) == "planes"
    assert choice(monkeypatch, chip, 8192, 8192, 8192, 8, 8) == "digits"
    assert choice(monkeypatch, chip, 8192, 8192, 8192, 4, 4) == "digits"
    assert choice(monkeypatch, chip, 8192, 8192, 8192, 2, 2) == "planes"


@pytest.mark.parametrize("chip", [B200, LATER], ids=lambda c: c.name)
def test_bytes_where_bits_are_emulated_or_unknown(monkeypatch: pytest.MonkeyPatch, chip: jit.Capability) -> None:
    for shape in ((8192, 8192, 8192), (32768, 64, 32768), (1, 1, 1)):
        assert choice(monkeypatch, chip, *shape, 1, 1) == "digits"
    assert math.isinf(cost("planes-mma", 64, 64, 64, 1, 1))


@pytest.mark.parametrize("chip", [A100, H200, B200], ids=lambda c: c.name)
def test_costs_are_finite_and_grow(monkeypatch: pytest.MonkeyPatch, chip: jit.Capability) -> None:
    monkeypatch.setattr(jit, "capability", lambda: chip)
    small, large = cost("digits-mma", 64, 64, 64, 3, 3), cost("digits-mma", 8192, 8192, 8192, 3, 3)
    assert 0 < small < large < math.inf
    if chip is H200:
        assert cost("planes", 8192, 8192, 8192, 1, 1) < cost("planes-mma", 8192, 8192, 8192, 1, 1)
    if chip is not B200:
        assert cost("planes-mma", 8192, 64, 65536, 1, 1, 0.05) < cost("planes-mma", 8192, 64, 65536, 1, 1)


def test_small_results_are_split() -> None:
    tiling = gemm_mma.choose_tiling(Sizes(64, 64, 64, 1, 1, 1), 1, False, False, A100)
    assert tiling.rk > 1
    assert gemm_mma.choose_tiling(Sizes(8192, 8192, 8, 1, 1, 1), 1, False, False, A100)[:4] == (2, 4, 4, 8)
    assert gemm_mma.choose_tiling(Sizes(8192, 64, 8, 1, 4, 1), 1, False, False, A100).qb == 4


def test_digits_of_both_operands_side_by_side() -> None:
    """The tiling chosen for an int64 result must read each operand once and write the result once."""
    for shape in ((8192, 64, 64), (4096, 4096, 32)):
        tiling = gemm.choose_tiling(Sizes(*shape, 2, 2, 1), False, True, 8)
        assert (tiling.pa, tiling.qb) == (2, 2)
    assert gemm.choose_tiling(Sizes(8192, 64, 64, 4, 1, 1), False, True, 8).pa == 2


def test_tiles_of_their_own_width_are_for_plain_products() -> None:
    """They must be taken where tiles of whole blocks leave multiprocessors idle, but not for epilogues, zero tiles or int64 results."""
    sizes = Sizes(368, 3600, 69, 1, 1, 1)
    assert gemm.choose_tiling(sizes, False, False, 8).width
    others = [gemm.choose_tiling(sizes, True, False, 8), gemm.choose_tiling(sizes, False, True, 8)]
    others.append(gemm.choose_tiling(sizes, False, False, 8, True))
    assert not any(tiling.width for tiling in others)


@pytest.mark.parametrize("step", [1, 8])
@pytest.mark.parametrize("planes", [(2, 2), (4, 1), (3, 4), (1, 3), (4, 4), (32, 17)], ids=str)
def test_passes_of_an_int64_result(planes: tuple[int, int], step: int) -> None:
    """In a simulation with the largest sums, accumulators must fit 31 bits, moved bits 32, and every product must count once."""
    if step == 8 and max(planes) > 4:
        return
    negative = step == 1
    weights = [[(-1 if negative and p == count - 1 else 1) << step * p for p in range(count)] for count in planes]
    largest = ((1 << step) - 1) ** 2 * 1024 // step  # the largest sum of a block
    for pa, qb, carries in ((1, 1, True), (2, 1, True), (1, 2, True), (2, 2, False), (1, 3, False), (1, 4, False)):
        for blocks in (1, 40, 3000):
            table = wide_passes_of(*planes, pa, qb, blocks, step, (negative, negative, 2), carries).tolist()
            want = sum(weights[0]) * sum(weights[1]) * 2 * blocks * largest
            result, acc, low = 0, {}, {}
            for p, q, k0, k1, opens, closes, drop, done, before, signs, shift, span, *_ in table:
                if opens:
                    acc, low = dict.fromkeys(((i, j) for i in range(pa) for j in range(qb)), 0), {}
                for i, j in acc:
                    bit = 1 << (4 * i + j)
                    if not opens:
                        value = -acc[i, j] if before & bit else acc[i, j]
                        low[i, j] = low.get((i, j), 0) | (value & ((1 << drop) - 1)) << done
                        assert drop == 0 or done + drop <= 32
                        acc[i, j] = -(value >> drop) if signs & bit else value >> drop
                    if p + i < planes[0] and q + j < planes[1]:
                        acc[i, j] += (k1 - k0) * largest
                    assert abs(acc[i, j]) < 1 << 31
                    if closes:
                        value = -acc[i, j] if signs & bit else acc[i, j]
                        result += ((value << span) + low.get((i, j), 0)) << (step * (i + j) + shift)
                assert carries or (opens and closes)
            assert result == want
            assert sum(row[5] for row in table) == runs_of(*planes, pa, qb, blocks, step, carries)


@pytest.mark.parametrize("arch", jit.ARCHS)
def test_every_tiling_fits_every_chip(arch: str) -> None:
    """All blocks of a multiprocessor must fit its shared memory (100 KB on 8.6, 8.9, 12.0); each takes 1 KB beyond its own."""
    room = {"sm_80": 166912, "sm_90a": 232448, "sm_100a": 232448}.get(arch, 101376)
    built = {variant.defines for variant in variants() if variant.source == "matmul/mma.cu" and variant.runs_on(arch)}
    for tile in gemm_mma.tiles_of(room):
        needs = tile.stages * tile.stage_bytes + 128
        assert needs <= room
        assert tile.blocks * (needs + 1024) <= room + 1024
        for step in (1, 8):
            emulated = step == 1 and arch in ("sm_100a", "sm_120a")
            for wide in (False, True):
                if gemm_mma.allows(tile, wide=wide, fused=False, emulated=emulated):
                    assert tuple(sorted(tile.defines(step, wide).items())) in built
