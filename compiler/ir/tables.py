"""Numbers and tables as text for reports."""

from __future__ import annotations

from collections.abc import Sequence


def ratio(a: float, b: float) -> str:
    """A share in percent."""
    return f"{100 * a / b:.1f} %" if b else ""


def count_text(n: int) -> str:
    """A large number with a unit prefix (k, M, G)."""
    value = float(n)
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000 or unit == "T":
            break
        value /= 1000
    return f"{n}" if not unit else f"{value:.2f} {unit}"


def time_text(seconds: float) -> str:
    """A time with the unit that fits (s, ms, µs)."""
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows as aligned columns. align: one < or > for each column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    return "\n".join(
        "  " + "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths)).rstrip()
        for row in rows
    )
