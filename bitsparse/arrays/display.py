"""Text and HTML that describe an array, for ``repr`` and notebooks."""

from __future__ import annotations

from typing import Any


def human_bytes(count: int) -> str:
    """A byte count in a readable unit.

    >>> human_bytes(512), human_bytes(1_500_000)
    ('512 B', '1.4 MiB')
    """
    value, units = float(count), ["KiB", "MiB", "GiB", "TiB"]
    if value < 1024:
        return f"{count} B"
    while value >= 1024 and len(units) > 1:
        value, unit = value / 1024, units.pop(0)
    return f"{value:.1f} {unit}"


def _scales(x: Any) -> str:
    return " ".join(name for name in x.scale_names if getattr(x, name) is not None)


def _ratios(x: Any, others: dict[str, int]) -> dict[str, str]:
    """The bytes of an array divided by those of each other form."""
    ratios = {name: x.nbytes / size for name, size in others.items() if size}
    return {name: f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}" for name, ratio in ratios.items()}


def line(x: Any, details: str, others: dict[str, int]) -> str:
    """One line: type, shape, format, scales, device, bytes and their ratios to the bytes of other forms."""
    ratios = ", ".join(f"{ratio} of {name}" for name, ratio in _ratios(x, others).items())
    return (
        f"<{type(x).__name__} shape={x.shape} {' '.join(filter(None, (details, _scales(x))))} device={x.device}, "
        f"{human_bytes(x.nbytes)}{ratios and f' ({ratios})'}>"
    )


def table(x: Any, rows: dict[str, object], others: dict[str, int]) -> str:
    """Return a small table for notebooks."""
    rows = {
        "shape": x.shape,
        **rows,
        "scales": _scales(x) or "none",
        "device": x.device,
        "bytes": human_bytes(x.nbytes),
        **{f"ratio to {name}": ratio for name, ratio in _ratios(x, others).items()},
    }
    cells = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{type(x).__name__}</caption>{cells}</table>"
