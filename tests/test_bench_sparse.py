"""The parts of the sparse benchmarks that need no GPU: competitors' figures ("the field"), floors, cases, summaries, tables."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitsparse import bench

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent))


def test_every_cell_of_the_field_has_an_entry() -> None:
    from benchmarks.peers import field

    for graph in field.GRAPHS:
        for columns in (16, 64, 128, 256):
            for precision in ("fp32", "tf32", "fp16", "bf16"):
                entry = field.best(graph, columns, precision)
                assert entry is not None
                assert entry.op == "spmm"
                assert entry.half == (precision in ("fp16", "bf16"))
                assert not entry.pattern_only
                assert entry.error <= {"fp32": 1e-6, "tf32": 2e-3}.get(precision, 5e-2)
            assert field.best(graph, columns, "fp32", op="sddmm") is not None
            ones = field.best(graph, columns, "tf32", pattern=True)
            assert ones is not None
            assert ones.name.startswith("voltrix ones_")
            assert field.vendor_ms(graph, columns) is not None
            assert field.vendor_ms(graph, columns, op="sddmm") is not None
    assert field.best("web_notredame", 16, "fp32") is None


def test_the_best_entry_of_some_cells() -> None:
    from benchmarks.peers import field

    def name(*cell: Any, **options: Any) -> tuple[str, float]:
        entry = field.best(*cell, **options)
        assert entry is not None
        return entry.name, entry.ms

    assert name("COLLAB", 64, "fp32") == ("gespmm method2_rows4", 0.4827)
    assert name("COLLAB", 64, "tf32") == ("flashsparse tf32_8x1_map", 0.3116)
    assert name("COLLAB", 64, "fp16") == ("flashsparse fp16_8x1_map", 0.1905)
    # A float32 kernel that is faster than all TF32 kernels is also the best entry for TF32; the reverse does not hold.
    assert name("artist", 128, "tf32") == name("artist", 128, "fp32") == ("rode n128", 0.1163)
    assert name("artist", 128, "fp32", op="sddmm") == ("rode sddmm_n128", 0.0926)
    assert field.vendor_ms("COLLAB", 128) == 1.3277  # the better of two algorithms


def test_the_field_is_carried_over_by_the_vendors_time() -> None:
    from benchmarks.peers import field

    assert field.field_ms("COLLAB", 128, "fp32", 1.3277) == (pytest.approx(0.8029), "gespmm method3_rows4")
    found = field.field_ms("COLLAB", 128, "tf32", 2 * 1.3277)
    assert found == (pytest.approx(2 * 0.5642), "flashsparse tf32_8x1_map")
    assert field.field_ms("COLLAB", 128, "fp32", 1.0, pattern=True) is None  # no pattern-only kernel is that exact
    assert field.field_ms("ss_pkustk04", 128, "fp32", 1.0) is None


def test_limits_of_gathers() -> None:
    from benchmarks import ceilings

    # The rates return the measured points, and values between two points for sizes between them.
    assert ceilings.row_rate(64, 131_072) == pytest.approx(135e9)
    assert ceilings.row_rate(8, 2_449_029) == pytest.approx(154e9)
    assert ceilings.row_rate(16, 10) == pytest.approx(155e9)
    assert 64e9 < ceilings.row_rate(32, 1_000_000) < 143e9
    assert ceilings.row_rate(64, 82_168) > ceilings.row_rate(96, 82_168) > ceilings.row_rate(128, 82_168)
    # Rows of 512 bytes of artist come from the L2 cache: 839 MB at 8 to 9 TB/s. Long rows of products come from memory.
    assert 0.093 < ceilings.gather_ms(1_638_396, 512, 50_515) < 0.105
    assert 4.2e12 < 1024 * ceilings.row_rate(1024, 2_449_029) < 4.6e12
    rates = [ceilings.row_rate(b, 50_515) for b in (8, 12, 16, 32, 64, 100, 128, 256, 400, 512, 1024, 4096)]
    assert rates == sorted(rates, reverse=True)


def test_estimates_depend_on_reuse() -> None:
    from benchmarks.ceilings import gather_bounds

    limits, facts = gather_bounds(1_638_396, 512, 50_515, 60_000_000, 1.02)
    assert (facts["estimate"], facts["gathered"]) == ("gather", 1_638_396 * 512)
    assert limits.estimate_ms == facts["gather_ms"] > facts["compulsory_ms"] == pytest.approx(0.015)
    again, facts = gather_bounds(1_638_396, 512, 50_515, 60_000_000, 8.2)
    assert (facts["estimate"], again.estimate_ms) == ("bytes", facts["compulsory_ms"])
    assert again.floor_ms == limits.floor_ms  # at best, caches serve all gathers and hold all arrays
    few, facts = gather_bounds(10, 64, 50_515, 60_000_000, 1.0)
    assert (facts["estimate"], few.estimate_ms) == ("bytes", facts["compulsory_ms"])


def test_floors_are_what_the_card_is_built_for() -> None:
    from benchmarks import ceilings

    # The L2 cache may hold all of 40 MB since the call before; of 400 MB, memory must supply what exceeds the cache.
    assert ceilings.bounds(40e6).floor_ms == pytest.approx(40e6 / (2 * 64 * 132 * 1.98e9) * 1e3)
    assert ceilings.bounds(400e6).floor_ms == pytest.approx((400e6 - (60 << 20)) / 4.8e9)
    for moved in (1e3, 1e6, 40e6, 70e6, 1e9):
        for operations in (0.0, 1e9, 1e13):
            limits = ceilings.bounds(moved, byte_operations=operations)
            assert limits.floor_ms < limits.estimate_ms
    # One product of bytes equals 64 products of planes. The choice of a kernel changes the estimate but not the floor.
    both = [ceilings.product_bounds(kernel, 8192, 8192, 8192, 8, 8, 10**8) for kernel in ("planes", "digits")]
    assert both[0].floor_ms == both[1].floor_ms
    assert both[0].estimate_ms > 4 * both[1].estimate_ms


def test_the_suite_has_its_cases() -> None:
    from benchmarks.suites import spmm as suite_spmm

    names = [case.name for case in suite_spmm.cases(2)]
    assert len(set(names)) == len(names)
    graphs = ["COLLAB", "DD", "amazon_computers", "artist", "pubmed", "soc_slashdot0902"]
    made = [f"{size}-{kind}" for size in ("reddit", "products") for kind in ("power_law", "communities")]
    promised = {
        f"spmm-{p}-{g}-D{d}" for p in ("fp32", "tf32", "fp16", "bf16") for g in graphs for d in (16, 64, 128, 256)
    }
    promised |= {f"spmm-{p}-{g}-D{d}" for p in ("fp32", "tf32", "fp16") for g in made for d in (16, 64, 128, 256)}
    promised |= {
        f"{kind}-fp32-{g}-D{d}" for kind in ("sddmm", "spmm-pattern") for g in graphs for d in (16, 64, 128, 256)
    }
    promised |= {f"sddmm-tf32-{g}-D{d}" for g in graphs for d in (16, 64, 128, 256)}
    promised |= {f"gat-fp32-{g}-H4x32" for g in graphs} | {f"agnn-fp32-{g}-D128" for g in graphs}
    promised |= {f"translate-{g}" for g in graphs + made} | {f"scaled-fp32-{g}-D16" for g in graphs}
    assert promised <= set(names)
    # Cases of the same graph and width are adjacent, so that their operands are made only once.
    cells = [name.partition("COLLAB-D")[2] for name in names if "COLLAB-D" in name]
    assert cells == sorted(cells, key=int)


def test_the_suite_of_samples_has_its_cases() -> None:
    from benchmarks.cases import sampled as cases_sampled
    from benchmarks.suites import sampled as suite_sampled

    names = [case.name for case in suite_sampled.cases(2)]
    assert len(set(names)) == len(names)
    graphs = ["COLLAB", "DD", "amazon_computers", "artist", "pubmed", "soc_slashdot0902"]
    promised = {
        f"sampled-{s}-{g}-D{d}-W{w}"
        for s in ("sfs", "afs", "aes")
        for g in graphs
        for d in (16, 64, 128, 256)
        for w in (16, 64, 256)
    }
    promised |= {f"sampled-{front}aes-proteins39-power_law-D128-W64" for front in ("", "int8-", "int4-")}
    large = ["artist", "DD", "COLLAB", "reddit-power_law", "products-communities"]
    promised |= {f"codes-spmm-int{bits}-{g}-D{d}" for bits in (8, 4) for g in large for d in (128, 256)}
    promised |= {f"sddmm-int{b}-{g}-D{d}" for b in (8, 4) for g in graphs for d in (64, 128, 256)}
    assert promised <= set(names)
    assert cases_sampled.field_of("artist", 128, "sfs", 64) == 0.0812
    assert cases_sampled.field_of("artist", 128, "aes", 64) == cases_sampled.field_of("artist", 128, "afs", 64)
    assert cases_sampled.field_of("artist", 128, "uniform", 64) is None


def test_the_summary_of_samples() -> None:
    from benchmarks.suites import sampled_bars

    def record(case: str, ratio: float, **params: Any) -> dict[str, Any]:
        facts = {"bits": None, "distinct": 0.3, "drawn_ms": 2.0} | params
        times = {"ratio": ratio, "ours_ms": 1.0, "estimate_ms": 0.6}
        return {"suite": "sampled", "case": case, "params": facts} | times

    records = [
        record("sampled-aes-artist-D16-W16", 1.3, field_ms=3.0, field_ratio=1.5),
        record("sampled-sfs-DD-D16-W16", 1.0, distinct=0.9, field_ms=2.0, field_ratio=1.0),
        record("sampled-int8-aes-proteins39-power_law-D128-W64", 11.0, bits=8),
        *(
            {"suite": "sampled", "case": case, "ratio": ratio, "params": {}}
            for case, ratio in (
                ("codes-spmm-int8-artist-D128", 2.4),
                ("codes-spmm-int4-DD-D128", 3.4),
                ("codes-spmm-int8-out-artist-D128", 2.2),
                ("codes-spmm-int4-weighted-artist-D128", 1.2),
                ("sddmm-int8-artist-D128", 1.9),
                ("sddmm-int8-add-artist-D128", 1.8),
                ("rounding-f32-8bit-copy-rows-8192x8192", 0.9),
                ("rounding-f32-8bit-cupy-rows-8192x8192", 6.0),
                ("qgemm-169343x512x512-tf32off", 7.0),
                ("qgemm-169343x512x512-tf32on", 1.2),
                ("transfer-pinned-arxiv-128", 3.9),
                ("codes-spmm-int8-COLLAB-D128", None),
            )
        ),
    ]
    cells = {bar.title.strip(): list(bar.cells.values()) for bar in sampled_bars.bars(records)}
    assert cells["ES-SpMM in the field"] == [1.5, 1.0]
    assert cells["aes"] == [1.5]
    assert cells["all edges, fewer than half read"] == [1.0]
    assert cells["proteins39, 8 bits"] == [11.0]
    assert cells["drawn in every call, ES-SpMM"] == [1.5, 1.0]
    assert cells["spmm of 8 bits, our float32"] == [2.4]
    assert cells["spmm of 4 bits, our float32"] == [3.4]
    assert cells["8 and 4 bits, codes out"] == [2.2]
    assert cells["8 and 4 bits, weighted"] == [1.2]
    assert cells["sddmm of 8 bits, our float32"] == [1.9]
    assert cells["sums written per edge"] == [1.8]
    assert cells["stochastic rounding, a copy's rate"] == [0.9]
    assert cells["stochastic rounding, cupy.random"] == [6.0]
    assert cells["quantised GEMM, cuBLAS fp32"] == [7.0]
    assert cells["quantised GEMM, cuBLAS TF32"] == [1.2]
    assert cells["transfer of 8 bits, float32"] == [3.9]


def test_measuring_may_add_parameters() -> None:
    params = {"m": 1}

    def measure(protocol: bench.Protocol) -> tuple[float, float | None]:
        params["share"] = 2
        return 1.0, None

    ready = bench.Prepared(lambda: None, None, None, params, 8, measure=measure)
    machine = bench.Machine(device="cpu", threads=2, commit=None)
    (record,) = bench.run_cases("spmm", [bench.Case("case", lambda: ready)], machine, bench.Protocol.quick())
    assert (record.params, record.peer_ms, record.ratio) == ({"m": 1, "share": 2}, None, None)


# ---- the summary
def record(case: str, ours: float, peer: float | None, **params: Any) -> dict[str, Any]:
    facts = {"precision": case.split("-")[1], "pattern": False, "source": "x.npz"} | params
    ratio = None if peer is None else peer / ours
    return {
        "suite": "spmm",
        "case": case,
        "params": facts,
        "ours_ms": ours,
        "peer_ms": peer,
        "ratio": ratio,
        "floor_ms": 0.01,
        "estimate_ms": facts.get("estimated_ms", 0.1),
    }


RECORDS = [
    record("spmm-fp32-a-D16", 1.0, 4.0, field_ratio=2.0, estimate="gather", estimated_ms=0.8),
    record("spmm-fp32-b-D16", 1.0, 1.0, field_ratio=0.5, estimate="gather", estimated_ms=0.2),
    record("spmm-tf32-a-D16", 1.0, 4.0, field_ratio=3.0),
    record("spmm-pattern-tf32-a-D16", 1.0, 4.0, field_ratio=1.5, precision="tf32", pattern=True),
    record("spmm-fp16-a-D16", 1.0, None, field_ratio=1.41),
    record("spmm-bf16-a-D16", 1.0, 9.0, field_ratio=1.41, replayed=False),
    record("spmm-fp32-reddit-communities-D16", 1.0, 2.0, source="synthetic communities graph", field_ratio=None),
    record("sddmm-fp32-a-D16", 1.0, 3.0, field_ratio=1.3),
    record("sddmm-tf32-a-D16", 1.0, 3.0, field_ratio=1.7, precision="tf32"),
    record("gat-fp32-a-H4x32", 1.0, 3.5),
    record("translate-COLLAB", 5.0, 100.0),
    record("translate-reddit-communities", 50.0, None, source="synthetic"),
    record("scaled-fp32-a-D16", 1.0, 1.05),
]


def test_the_summary_takes_means_and_worst_cells() -> None:
    from benchmarks.suites import bars, spmm_bars

    found = {bar.title: bar for bar in spmm_bars.bars(RECORDS)}
    assert found["spmm fp32, field"].cells == {"spmm-fp32-a-D16": 2.0, "spmm-fp32-b-D16": 0.5}
    assert bars.row(found["spmm fp32, field"])[1:] == [
        "2",
        "1.00",
        "1.15",
        "1.50",
        "0.50",
        "0.90",
        "1.00",
        "spmm-fp32-b-D16",
        "NO",
    ]
    assert found["spmm tf32, field"].cells == {"spmm-tf32-a-D16": 1.5}  # the worse of values and patterns counts
    assert len(found["spmm fp32 and tf32, field"].cells) == 3
    assert set(found["spmm fp16 and bf16, field"].cells) == {"spmm-fp16-a-D16", "spmm-bf16-a-D16"}
    assert bars.row(found["spmm fp16 and bf16, field"])[-1] == "yes"
    assert found["spmm fp32, cuSPARSE"].cells == {"spmm-fp32-a-D16": 4.0, "spmm-fp32-b-D16": 1.0}
    assert bars.row(found["spmm fp32, cuSPARSE"])[-1] == "yes"
    assert found["spmm fp16, cuSPARSE"].cells == {}
    assert found["synthetic fp32, cuSPARSE"].cells == {"spmm-fp32-reddit-communities-D16": 2.0}
    assert found["the gather estimate over ours, fp32"].cells == {"spmm-fp32-a-D16": 0.8, "spmm-fp32-b-D16": 0.2}
    assert found["sddmm fp32, field"].cells == {"sddmm-fp32-a-D16": 1.3}
    assert found["sddmm, TF32 allowed, field"].cells == {"sddmm-tf32-a-D16": 1.7}
    assert found["translate COLLAB, 10 ms over ours"].cells == {"translate-COLLAB": 2.0}
    assert bars.row(found["translate reddit, 40 ms over ours"])[-1] == "NO"
    assert math.isclose(found["GAT, 4 heads x 32, PyTorch"].cells["gat-fp32-a-H4x32"], 3.5)


def test_the_summary_prints(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    later = record("gat-fp32-a-H4x32", 1.0, 7.0)
    other = {"suite": "host", "case": "matmul"}
    path.write_text("".join(json.dumps(one) + "\n" for one in [*RECORDS, later, other]))
    command = [sys.executable, str(BENCHMARKS / "summary.py"), str(path), "--cells"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["bar", "cells", "mean"]
    assert any(line.startswith("GAT, 4 heads x 32, PyTorch") and "7.00" in line for line in lines)
    assert lines[-1] == "not captured, and so with the host's time in them: spmm-bf16-a-D16"
    path.write_text("")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# ---- the roofline
def test_points_of_the_roofline(tmp_path: Path) -> None:
    from benchmarks import roofline

    facts = {"graph": "artist", "D": 128, "flops": 2_000_000, "gathered": 4_000_000}
    one = {"suite": "spmm", "case": "spmm-fp32-artist-D128", "params": facts, "bytes": 1_000_000, "ours_ms": 0.5}
    other = one | {"case": "spmm-pattern-fp32-artist-D128"}
    (point,) = roofline.points([one, other, {"suite": "gemm", "case": "matmul", "params": {}}], "fp32")
    assert (point.graph, point.columns, point.compulsory, point.gathered) == ("artist", 128, 2.0, 0.5)
    assert point.rate == 4e9
    records = tmp_path / "r.jsonl"
    records.write_text(json.dumps(one) + "\n")
    assert roofline.main([str(records), "--out", str(tmp_path / "none.svg"), "--precision", "tf32"]) == 1
    if roofline.main([str(records), "--out", str(tmp_path / "plot.svg")]) == 0:
        assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


def test_the_cases_of_transfers_and_rounding() -> None:
    from benchmarks.cases import rounding as cases_rounding_gpu
    from benchmarks.cases import transfer as cases_transfer_gpu

    transfers, rounding = ({case.name for case in found.cases()} for found in (cases_transfer_gpu, cases_rounding_gpu))
    sizes = ("arxiv-128", "reddit-602", "products-100")
    assert {f"transfer-{kind}-{size}" for kind in ("pageable", "pinned") for size in sizes} <= transfers
    assert {f"rounding-f32-8bit-{peer}-rows-8192x8192" for peer in ("copy", "cupy")} <= rounding
    assert all("8bit" in name and "rows" in name for name in rounding if name.startswith("rounding-"))
    grid = cases_rounding_gpu.steps(8, "rows")
    assert (grid["qmax"], grid["divisor"]) == (127, np.float32(4.0 / 127))


@pytest.mark.gpu
def test_codes_of_the_rounding_cases_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from benchmarks.cases import rounding as cases

    x = cupy.asarray(np.random.default_rng(0).normal(size=(130, 256)).astype(np.float32))
    for bits, layout in ((8, "rows"), (4, "planes")):
        out = cases.compared(x, bits, cases.steps(bits, layout))
        assert out.dtype == np.uint32
    monkeypatch.setattr(cases.host_bits, "quantize", lambda *a, **k: np.zeros(3))
    with pytest.raises(AssertionError, match="differ from the host's"):
        cases.compared(x, 8, cases.steps(8, "rows"))
