"""What the GPU check found, as a table for people and against the bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import exp, log
from typing import Any

from benchmarks.harness.report import number, table

Found = dict[str, Any]

#: the bars on an H100 or H200
OF_COPY, OF_CUBLAS, OF_SDPA, OF_COMPILE, LEAST, MEMORY = 0.85, 0.90, 0.85, 1.15, 0.95, 0.9
OF_CUBLAS_ALONE = 0.85


def text(found: Found) -> str:
    """All sections as tables, then the bars."""
    device = found["device"]
    parts = [
        f"{device['name']}, {found['machine']['date']}, {found['machine']['versions']}; "
        f"call {found.get('call')}, {found.get('budget_s', 0):.0f} s; came along: {found.get('carried')}"
    ]
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
    wrong = [r["name"] for r in numerics if r["ok"] is False]
    good = f"{len(numerics) - len(wrong)} of {len(numerics)}" + (
        f"; not {', '.join(wrong[:8])}" if wrong else ""
    )
    out: list[tuple[str, bool | None, str]] = [
        ("numerics within twice eager's own error", not wrong if numerics else None, good)
    ]
    timed = [
        r for n in ("contractions", "bandwidth", "steps") for r in sections.get(n, []) if "ms" in r
    ]
    off = [r["name"] for r in timed if r["ok"] is False]
    reading = f"{len(timed) - len(off)} of {len(timed)}" + (
        f"; not {', '.join(off[:8])}" if off else ""
    )
    out.append(
        ("what was timed within twice eager's own error", not off if timed else None, reading)
    )
    contractions = sections.get("contractions", [])

    def worst(bar: str, least: float, rows: list[Found], key: str) -> None:
        failed = [r["name"] for r in rows if r["ok"] is False]
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
    worst("matmul by our own kernels ≥ 0.85 of cuBLAS", OF_CUBLAS_ALONE,
          [r for r in contractions if r["name"].startswith("matmul")], "own_ratio")  # fmt: skip
    worst("attention ≥ 0.85 of the fastest SDPA", OF_SDPA,
          [r for r in contractions if r["name"].startswith("attention")], "ratio")  # fmt: skip
    steps = [r for r in sections.get("steps", []) if r["name"].endswith("training")]
    ratios = [
        r["ratio_to_max_autotune"] for r in steps if r["ok"] and r.get("ratio_to_max_autotune")
    ]
    met = None
    if ratios:
        met = len(ratios) == len(steps) and geomean(ratios) >= OF_COMPILE and min(ratios) >= LEAST
    reading = f"geomean {geomean(ratios):.2f}, least {min(ratios):.2f}" if ratios else "-"
    out.append(("training steps: geomean ≥ 1.15 of max-autotune, none below 0.95", met, reading))
    shares = [share for r in steps if (share := _memory_share(r)) is not None]
    out.append(("peak reserved memory ≤ 0.9 of max-autotune's", max(shares) <= MEMORY if shares else None,
                f"at most {max(shares):.2f}" if shares else "-"))  # fmt: skip
    return out


def _memory_share(row: Found) -> float | None:
    peaks = row.get("peak_reserved_mib", {})
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
    head = ("kernel", "", "GB/s", "of copy", "eager's of copy", "error", "eager's")
    return table(head, [
        (r["name"], r.get("error", _state(r)), number(r.get("gb_per_s"), 0), number(r.get("of_copy"), 2),
         number(r.get("of_copy_eager"), 2), _short(r.get("error_gflow")), _short(r.get("error_eager")))
        for r in rows
    ])  # fmt: skip


def _contractions(rows: list[Found]) -> str:
    head = (
        "work",
        "",
        "error",
        "eager's",
        "gflow ms",
        "TFLOP/s",
        "own ms",
        "beside",
        "ratio",
        "own ratio",
        "ran",
    )
    lines: list[tuple[str, ...]] = []
    for r in rows:
        ms = dict(r.get("ms", {}))
        mine, own = ms.pop("gflow", None), ms.pop("own kernels", None)
        peers = " ".join(f"{n} {t:.3f}" for n, t in ms.items())
        lines.append((
            r["name"], r.get("error", _state(r))[:80], _short(r.get("error_gflow")), _short(r.get("error_eager")),
            number(mine, 3), number(r.get("tflop_per_s"), 1), number(own, 3), peers, number(r.get("ratio"), 2),
            number(r.get("own_ratio"), 2), _ran(r.get("ran")),
        ))  # fmt: skip
    return table(head, lines)


def _ran(ran: Found | None) -> str:
    """What was timed as gflow: launches of our own kernels, and calls of libraries."""
    if ran is None or "library" not in ran:
        return ""
    calls: Counter[str] = Counter(ran["library"])
    parts = [f"{ran['kernels']} kernels"] if ran["kernels"] else []
    return ", ".join([*parts, *(f"{n} × {name}" for name, n in calls.items())])


def _steps(rows: list[Found]) -> str:
    head = (
        "step",
        "",
        "peer",
        "ms",
        "error",
        "first call s",
        "peak reserved MiB",
        "x gflow",
        "ran",
    )
    lines: list[tuple[str, ...]] = []
    for r in rows:
        if "ms" not in r:
            lines.append((r["name"], r.get("error", "FAILED"), *[""] * 7))
            continue
        mine = r["ms"].get("gflow")
        for peer, ms in r["ms"].items():
            ran = r["ran"].get(peer, {})
            lines.append((
                r["name"], r.get("error", _state(r))[:80] if peer == "gflow" else "", peer, number(ms, 2),
                _short(r.get("errors", {}).get(peer)), number(r["first_call_s"].get(peer), 1),
                number(r["peak_reserved_mib"].get(peer), 0), number(ms / mine if mine else None, 2),
                _ran(ran) or ", ".join(f"{k} {v}" for k, v in ran.items() if k != "races"),
            ))  # fmt: skip
        lines += [(r["name"], "", peer, why[:80], *[""] * 5) for peer, why in r["failed"].items()]
    return table(head, lines)


_TABLES: dict[str, Callable[[list[Found]], str]] = {
    "numerics": _numerics,
    "models": _numerics,
    "bandwidth": _bandwidth,
    "contractions": _contractions,
    "steps": _steps,
}
