"""Measurements as a table on the terminal."""

from __future__ import annotations

from typing import Any

# Largest differences to eager's results before a row is marked: in the first step, and in those
# after it, where training has amplified rounding (see docs/benchmarks.md).
LARGEST_FIRST, LARGEST_LATER = 1e-3, 1e-2

COLUMNS = (
    "item",
    "peer",
    "step ms",
    "x eager",
    "x compile",
    "first cold s",
    "warm s",
    "peak MiB",
    "check",
)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as needed: the first two to the left, numbers to the right."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def cells(row: dict[str, Any], peer: str) -> tuple[str, ...]:
    found = row["peers"][peer]
    ratio = found.get("step_ratio_to", {})
    milliseconds = found.get("step_ms")
    return (
        row["item"],
        peer,
        number(milliseconds, 3 if milliseconds is not None and milliseconds < 10 else 1),
        number(ratio.get("eager"), 2),
        number(ratio.get("compile"), 2),
        number(found.get("first_call_cold_s"), 2),
        number(found.get("first_call_warm_s"), 2),
        number(found.get("peak_steady_mib"), 1),
        check(row, peer),
    )


def check(row: dict[str, Any], peer: str) -> str:
    """Whether the peer ran, and gave what eager gave."""
    if peer in row["errors"]:
        return "FAILED"
    differences = row["peers"][peer].get("differences_to_eager")
    if not differences:
        return ""
    first, later = differences[0], max(differences[1:], default=0.0)
    if first <= LARGEST_FIRST and later <= LARGEST_LATER:
        return f"{first:.0e}"
    return f"DIFFERS {first:.0e}, {later:.0e}"


def failed(rows: list[dict[str, Any]]) -> bool:
    return any(
        check(row, peer).startswith(("FAILED", "DIFFERS")) for row in rows for peer in row["peers"]
    )


BUSY_COLUMNS = ("item", "peer", "busy ms", "x quiet", "x eager", "quiet", "x compile", "quiet")


def busy_cells(row: dict[str, Any], peer: str) -> tuple[str, ...]:
    """Steps beside a busy neighbour, and their ratios beside those of quiet rounds."""
    found = row["peers"][peer]
    busy, quiet = found.get("busy_ratio_to", {}), found.get("step_ratio_to", {})
    cells = [row["item"], peer, number(found["busy_ms"], 1)]
    cells.append(number(found["busy_ms"] / found["step_ms"], 2))
    for other in ("eager", "compile"):
        cells += [number(busy.get(other), 2), number(quiet.get(other), 2)]
    return tuple(cells)


def render(rows: list[dict[str, Any]]) -> str:
    lines = [cells(row, peer) for row in rows for peer in row["peers"]]
    text = [table(COLUMNS, lines)]
    beside = [
        busy_cells(row, peer)
        for row in rows
        for peer in row["peers"]
        if row["peers"][peer].get("busy_ms")
    ]
    if beside:
        text += ["", "beside a process that keeps one core busy:", table(BUSY_COLUMNS, beside)]
    for row in rows:
        text += [f"{row['item']}, {peer}: {error}" for peer, error in row["errors"].items()]
    return "\n".join(text)
