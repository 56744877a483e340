"""How arrays show themselves."""

from __future__ import annotations

from typing import Any

__all__ = ["html", "human_bytes", "table", "text"]


def human_bytes(count: int) -> str:
    """Return a byte count for people.

    >>> human_bytes(512), human_bytes(1_500_000)
    ('512 B', '1.4 MiB')
    """
    value, units = float(count), ["KiB", "MiB", "GiB", "TiB"]
    if value < 1024:
        return f"{count} B"
    while value >= 1024 and len(units) > 1:
        value, unit = value / 1024, units.pop(0)
    return f"{value:.1f} {unit}"


def _affine_names(x: Any) -> list[str]:
    return [name for name in ("scale", "offset") if getattr(x, name) is not None]


def text(x: Any) -> str:
    """One line: shape, kind, device, bytes and the ratio to float32."""
    dense = 4 * x.size
    ratio = f" ({x.nbytes / dense:.2f} of float32)" if dense else ""
    affine = "".join(f" {name}" for name in _affine_names(x))
    return (
        f"<BitTensor shape={x.shape} bits={x.bits} {x.encoding} axis={x.axis} layout={x.layout}"
        f"{affine} device={x.device}, {human_bytes(x.nbytes)}{ratio}>"
    )


def html(x: Any) -> str:
    """Return a small table for notebooks."""
    dense = 4 * x.size
    rows: dict[str, object] = {
        "shape": x.shape,
        "bits": f"{x.bits} ({x.encoding})",
        "packed axis, layout": f"{x.axis}, {x.layout}",
        "affine": ", ".join(_affine_names(x)) or "none",
        "device": x.device,
        "density": f"{x.density:.4f}",
        "bytes": human_bytes(x.nbytes),
        "ratio to float32": f"{x.nbytes / dense:.3f}" if dense else "-",
    }
    return table("BitTensor", rows)


def table(caption: str, rows: dict[str, object]) -> str:
    """Names and values as an HTML table."""
    cells = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{caption}</caption>{cells}</table>"
