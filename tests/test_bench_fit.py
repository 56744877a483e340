"""The programs that fit a chip's figures recover the figures from which made-up timings were computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Patterns: rows, edges, columns in windows of 8 rows, and for windows of 16 and 32 rows the numbers of groups of 8 and 16 columns.
PATTERNS = [
    (50_515, 1_638_396, 1_600_000, {16: (190_000, 110_000), 32: (170_000, 95_000)}),
    (372_474, 24_574_995, 5_280_977, {16: (384_335, 210_000), 32: (220_830, 120_000)}),
    (334_925, 1_686_092, 300_000, {16: (60_000, 45_000), 32: (40_000, 30_000)}),
    (55_000, 14_000_000, 2_000_000, {16: (150_000, 80_000), 32: (90_000, 50_000)}),
]


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.fit import fitting

    return fitting


def test_dense_figures_come_out_again(fit: Any) -> None:
    from benchmarks.fit import dense
    from bitsparse.backends.cuda.matmul import wgmma

    # Both rates must bound some product. With many more bytes a clock, none would wait for them, as shared memory is slower.
    wanted = {"fill_clocks": 1500.0, "arrive_bytes": 40.0, "store_bytes": 15.0, "overhead": 1.1}
    rows = []
    for m, n, planes in ((1024, 64, 1), (4096, 64, 4), (8192, 64, 1), (4096, 4096, 2), (8192, 1024, 1), (16384, 64, 2)):
        for tiling in wgmma.tilings(n, planes, masked=False, wide=False):
            facts = {"m": m, "n": n, "blocks": m // 1024, "a_planes": 1, "b_planes": planes, "wide": False, "step": 1}
            facts["tiling"] = list(tiling)
            us = dense.predict(wanted, facts)
            if np.isfinite(us):
                rows.append(fit.Row(f"{m}x{n}", "-".join(map(str, tiling)), facts, us))
    found = fit.search(rows, dense.predict, {name: getattr(wgmma.RATES, name) for name in wanted})
    assert found == pytest.approx(wanted, rel=1e-2)
    assert fit.misses(rows, dense.predict, found)[1] < 1.01


def test_random_products_are_judged_on_shapes_held_out(fit: Any) -> None:
    """The fit must recover the figures behind made-up times, and these must choose the quickest variant of shapes not fitted."""
    from benchmarks.cases.random_products import shapes
    from benchmarks.fit import products
    from bitsparse.backends.cuda.matmul import wgmma

    wanted = {"fill_clocks": 1500.0, "arrive_bytes": 60.0}
    rows = []
    for shape in shapes(24, 5, 1e10):
        for kernel in ("planes", "digits"):
            facts = products.facts_of(shape, kernel)
            blocks = wgmma.tilings(shape.n, facts["b_planes"], masked=False, wide=False)
            for t in (*blocks[:9], *wgmma.fitted_tilings(products.sizes_of(facts), 132)[:40:9]):
                us = products.predict(wanted, facts | {"tiling": list(t)})
                if np.isfinite(us):
                    row = fit.Row(shape.name, f"{kernel}-{t}", facts | {"tiling": list(t)}, us, t.nb * t.qb == 1)
                    rows.append(row)
        rows.append(fit.Row(shape.name, products.PEER, products.facts_of(shape, products.PEER), 5.0))
    unseen = {row.cell for row in rows if products.held_out(row)}
    assert 0 < len(unseen) < 24
    of, *_ = products.FITS
    start = {name: getattr(wgmma.RATES, name) for name in wanted}
    found = fit.search([row for row in rows if of.takes(row)], of.predict, start)
    assert found == pytest.approx(wanted, rel=1e-2)
    lines = list(products.verdict(rows, [found, {}, {}, found]))
    assert lines[1].split(": ")[1] == lines[3].split(": ")[1]
    assert f"{len(unseen)} shapes" in lines[0]


def product_rows(fit: Any, kernels: tuple[str, ...]) -> list[Any]:
    """Rows whose times are the library's own estimates."""
    from benchmarks.fit import rows as fit_rows
    from bitsparse.backends.cuda.spmm import choice

    found = []
    for size, nnz, entries, groups in PATTERNS:
        shared = {8: choice.Shared(entries, {})}
        shared |= {h: choice.Shared(0, {8: by8, 16: by16}) for h, (by8, by16) in groups.items()}
        for columns in (16, 32, 64, 128, 256):
            for dtype, precision in ((np.float32, "tf32"), (np.float32, "fp32"), (np.float16, "fp32")):
                for values in (None, dtype):
                    kind = choice.Kind(
                        np.dtype(dtype), columns, precision=precision, values=values, fixed=True, frozen=True
                    )
                    for guess in choice.estimates(kind, (size, size), nnz, shared):
                        if guess.kernel in kernels:
                            facts = fit_rows.facts_of(guess.kernel, guess.height, kind, (size, size), nnz, shared)
                            found.append(fit.Row(f"{nnz}-D{columns}", guess.kernel, facts, guess.cost))
    return found


@pytest.mark.parametrize(("kernel", "sure"), [("csr", 0.0), ("windows", 4.5), ("tiles", 2.5)])
def test_the_models_of_sums_are_the_library_s(fit: Any, kernel: str, sure: float) -> None:
    from benchmarks.fit import rows as fit_rows

    (one,) = (one for one in fit_rows.FITS if {"csr": "edge by edge"}.get(kernel, kernel) in one.title)
    # If rows share few columns, the library multiplies its estimates for windows and tiles by a margin: such patterns are left out.
    rows = [row for row in product_rows(fit, (kernel,)) if row.facts["sharing"] >= sure and one.takes(row)]
    assert len(rows) > 20
    values = one.fit(rows)
    assert fit.misses(rows, one.predict, values)[1] < 1.02


def test_the_sharing_from_which_windows_pay(fit: Any) -> None:
    from benchmarks.fit import edges

    rows = []
    for sharing, by_edges, by_windows in ((1.0, 10.0, 30.0), (2.0, 10.0, 12.0), (3.0, 10.0, 9.0), (5.0, 10.0, 5.0)):
        for variant, us in (("edges", by_edges), ("windows", by_windows)):
            rows.append(fit.Row(f"graph-{sharing}", variant, {"sharing": sharing}, us))
    assert edges.threshold(rows) == {"windows_sharing": 3.0}
    only_edges = [row._replace(us=1.0) if row.variant == "edges" else row for row in rows]
    assert edges.threshold(only_edges) == {"windows_sharing": 1e9}


def test_recorded_rows_are_reported(fit: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.fit import run

    path = tmp_path / "rows.jsonl"
    rows = [
        fit.Row("sampled-a", "unroll 8", {}, 12.0, True),
        fit.Row("sampled-a", "unroll 4", {}, 10.0),
        fit.Row("dots-b", "edges", {"sharing": 1.0}, 10.0, True),
        fit.Row("dots-b", "windows", {"sharing": 1.0}, 20.0),
    ]
    assert run.written(rows, path) == rows
    assert [json.loads(line)["us"] for line in path.read_text().splitlines()] == [12.0, 10.0, 10.0, 20.0]
    assert run.main(["edges", "--rows", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dot products in windows: dots_share of RowRates, backends/cuda/chips.py, 2 times"
    assert lines[2:] == [
        "choice: within 5 % of the quickest in 1 of 2 cells",
        "  1.20x  sampled-a: unroll 4 is the quickest",
    ]
    assert run.main(["edges", "--rows", str(path), "--only", "nothing"]) == 2


def test_limits_of_float_products_come_out_again(fit: Any) -> None:
    """Made-up times in which our kernels are quicker within the limits, and slower elsewhere."""
    from benchmarks.fit import floats as family

    wanted, rows = family.FloatProducts(1 << 14, 1 << 27, 32, 128, 32), []
    for number, depth, columns in family.SIZES:
        for over_rows in (False, True):
            facts = {"rows": number, "depth": depth, "columns": columns, "over_rows": over_rows}
            best = family.choice(wanted, facts)
            for way in (family.PEER, family.GIVEN, family.EXCHANGED)[: 3 if over_rows else 2]:
                rows.append(fit.Row(f"{number}x{depth}-{columns}-{over_rows}", way, facts, 1.0 if way == best else 2.0))
    found = family.FloatProducts(**{name: int(value) for name, value in family.limits_of(rows).items()})
    assert {family.choice(found, row.facts) for row in rows} == {family.PEER, family.GIVEN, family.EXCHANGED}
    assert all(family.choice(found, row.facts) == row.variant for row in rows if row.us == 1.0)
