"""What the GPU check found, as a table for people and against the bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, log
from typing import Any

from benchmarks.report import number, table

Found = dict[str, Any]

#: the bars on an H100 or H200
OF_COPY, OF_CUBLAS, OF_SDPA, OF_COMPILE, LEAST, MEMORY = 0.85, 0.90, 0.85, 1.15, 0.95, 0.9


def text(found: Found) -> str:
    """All sections as tables, then the bars."""
    device = found["device"]
    parts = [f"{device['name']}, {found['machine']['date']}, {found['machine']['versions']}"]
    for name, rows in found["sections"].items():
        if rows:
            parts.append(f"## {name}\n\n{_TABLES.get(name, _generic)(rows)}")
    if found["left_out"]:
        parts.append("Not run, out of time: " + ", ".join(found["left_out"]))
    parts.append("## Bars\n\n" + "\n".join(_lines(bars(found))))
    return "\n\n".join(parts) + "\n"


def _lines(found: list[tuple[str, bool | None, str]]) -> Iterator[str]:
    for bar, met, reading in found:
        yield f"{'not measured' if met is None else 'met' if met else 'MISSED':<13} {bar}: {reading}"


def bars(found: Found) -> list[tuple[str, bool | None, str]]:
    """Each bar, whether it is met (None: nothing was measured), and the reading."""
    sections = found["sections"]
    numerics = [r for n in ("numerics", "models") for r in sections.get(n, [])]
    wrong = [r["name"] for r in numerics if not r["ok"]]
    good = f"{len(numerics) - len(wrong)} of {len(numerics)}" + (
        f"; not {', '.join(wrong[:8])}" if wrong else ""
    )
    out = [("numerics within twice eager's own error", not wrong if numerics else None, good)]
    contractions = sections.get("contractions", [])

    def worst(bar: str, least: float, rows: list[Found], key: str) -> None:
        failed = [r["name"] for r in rows if not r["ok"]]
        values = [(r[key], r["name"]) for r in rows if r["ok"] and r.get(key) is not None]
        if not values and not failed:
            out.append((bar, None, "-"))
            return
        low, name = min(values, default=(0.0, ""))
        reading = f"{low:.2f} ({name}), geomean {geomean([v for v, _ in values]):.2f}"
        if failed:
            reading += f"; failed: {', '.join(failed[:4])}"
        out.append((bar, low >= least and not failed, reading))

    kernels = [r for r in sections.get("bandwidth", []) if r["name"] != "copy"]
    worst("memory-bound kernels ≥ 0.85 of copy bandwidth", OF_COPY, kernels, "of_copy")
    worst(
        "matmul ≥ 0.90 of cuBLAS",
        OF_CUBLAS,
        [r for r in contractions if r["name"].startswith("matmul")],
        "ratio",
    )
    worst("attention ≥ 0.85 of the fastest SDPA", OF_SDPA,
          [r for r in contractions if r["name"].startswith("attention")], "ratio")  # fmt: skip
    steps = [r for r in sections.get("steps", []) if r["name"].endswith("training")]
    ratios = [
        r["ratio_to_max_autotune"] for r in steps if r["ok"] and r.get("ratio_to_max_autotune")
    ]
    met = None
    if steps:
        met = len(ratios) == len(steps) and geomean(ratios) >= OF_COMPILE and min(ratios) >= LEAST
    reading = f"geomean {geomean(ratios):.2f}, least {min(ratios):.2f}" if ratios else "-"
    out.append(("training steps: geomean ≥ 1.15 of max-autotune, none below 0.95", met, reading))
    shares = [share for r in steps if (share := _memory_share(r)) is not None]
    out.append(("peak memory ≤ 0.9 of max-autotune's", max(shares) <= MEMORY if shares else None,
                f"at most {max(shares):.2f}" if shares else "-"))  # fmt: skip
    return out


def _memory_share(row: Found) -> float | None:
    peaks = row.get("peak_mib", {})
    mine, other = peaks.get("gflow"), peaks.get("max-autotune")
    return mine / other if mine and other else None


def geomean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def _state(row: Found) -> str:
    return "-" if row["ok"] is None else "ok" if row["ok"] else "FAILED"


def _generic(rows: list[Found]) -> str:
    return table(("name", "", "note"), [(r["name"], _state(r), r.get("error", "")) for r in rows])


def _numerics(rows: list[Found]) -> str:
    head = ("family", "", "error", "eager's", "through ATen")
    return table(head, [
        (r["name"], _state(r), _short(r.get("error_gflow")), _short(r.get("error_eager")),
         r.get("error", "")[:120] or " ".join(r.get("aten", [])))
        for r in rows
    ])  # fmt: skip


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _bandwidth(rows: list[Found]) -> str:
    head = ("kernel", "", "GB/s", "of copy", "eager's of copy")
    return table(head, [
        (r["name"], r.get("error", _state(r)), number(r.get("gb_per_s"), 0), number(r.get("of_copy"), 2),
         number(r.get("of_copy_eager"), 2))
        for r in rows
    ])  # fmt: skip


def _contractions(rows: list[Found]) -> str:
    head = ("work", "", "gflow ms", "TFLOP/s", "beside the best of", "ratio")
    lines: list[tuple[str, ...]] = []
    for r in rows:
        peers = " ".join(f"{n} {ms:.3f}" for n, ms in r.get("ms", {}).items() if n != "gflow")
        mine = r.get("ms", {}).get("gflow")
        lines.append((r["name"], r.get("error", _state(r)), number(mine, 3), number(r.get("tflop_per_s"), 1),
                      peers, number(r.get("ratio"), 2)))  # fmt: skip
    return table(head, lines)


def _steps(rows: list[Found]) -> str:
    head = ("step", "", "peer", "ms", "first call s", "peak MiB", "x gflow")
    lines: list[tuple[str, ...]] = []
    for r in rows:
        if "ms" not in r:
            lines.append((r["name"], r.get("error", "FAILED"), "", "", "", "", ""))
            continue
        for peer, ms in r["ms"].items():
            first = r["first_call_s"].get(peer)
            lines.append((
                r["name"], _state(r), peer, number(ms, 2),
                first if isinstance(first, str) else number(first, 1),
                number(r["peak_mib"].get(peer), 0), number(ms / r["ms"]["gflow"], 2),
            ))  # fmt: skip
        lines += [
            (r["name"], "", peer, reason[:60], "", "", "") for peer, reason in r["failed"].items()
        ]
    return table(head, lines)


_TABLES: dict[str, Callable[[list[Found]], str]] = {
    "numerics": _numerics,
    "models": _numerics,
    "bandwidth": _bandwidth,
    "contractions": _contractions,
    "steps": _steps,
}
