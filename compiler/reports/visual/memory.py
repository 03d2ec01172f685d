"""The arena over time as a page: `gflow-opt --view-memory FILE.html`.

The horizontal axis is the step, the vertical axis the address. Each value in the arena is a rectangle in the colour of
the module that computes it. Lines mark the arena's size, the lower bound of this order of steps, and the first steps of
backward and optimizer.
"""

from __future__ import annotations

from html import escape

from gflow.compiler.memory.planned import PlanReading

from .page import byte_text, colour, fact, page

#: components of a module's path that share a colour
_DEPTH = 3


def memory_page(plan: PlanReading) -> str:
    """The page for one planned function."""
    groups: dict[str, int] = {}
    size_of: dict[int, int] = {}
    sources: dict[tuple[str, str], int] = {}
    values = []
    for v in plan.values:
        path = ".".join(v.source.group.split(".")[:_DEPTH]).strip(":")
        group = groups.setdefault(path, len(groups))
        size_of[group] = size_of.get(group, 0) + v.size
        module = v.source.group.strip(":")
        told = (f"module {module}" if module else "", v.source.place)
        source = sources.setdefault(told, len(sources))
        values.append([v.offset, v.size, v.start, v.end, group, v.op, v.type, source])
    data = {
        "arena": plan.arena,
        "bound": plan.lower_bound,
        "top": max(plan.arena, plan.peak, plan.lower_bound),
        "steps": [[s.op, s.live] for s in plan.steps],
        "phases": phases(plan),
        "values": values,
        "groups": [
            {"name": n, "colour": colour(i), "bytes": size_of[i]} for n, i in groups.items()
        ],
        "sources": list(sources),
    }
    over = f"{plan.arena / plan.lower_bound:.3f}" if plan.lower_bound else "-"
    header = "".join(
        [
            fact("arena", byte_text(plan.arena)),
            fact("lower bound", byte_text(plan.lower_bound)),
            fact("arena / bound", over),
            fact("steps", f"{len(plan.steps):,}"),
            fact("values", f"{len(plan.values):,}"),
            '<input id="find" type="search" placeholder="op, module, file" aria-label="find">',
            '<button id="fit">fit</button><button id="modules">modules</button>'
            '<button id="help" aria-label="keys">?</button>',
        ]
    )
    body = (
        f'<svg id="arena" role="img" tabindex="0" aria-label="{escape(plan.name)}: arena over time"></svg>'
        '<div id="labels"></div><div id="legend"></div>'
    )
    return page(f"{plan.name}: memory", "memory", header, body, data)


def phases(plan: PlanReading) -> list[tuple[str, int, int]]:
    """Runs of steps of one phase: name, first and last step. A single step within another phase (an update directly
    after its gradient) counts as that phase."""
    found: list[tuple[str, int, int]] = []
    for i, step in enumerate(plan.steps):
        name = step.source.phase
        if not name:
            continue
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], i)
        else:
            found.append((name, i, i))
    least = max(2, len(plan.steps) // 50)
    joined: list[tuple[str, int, int]] = []
    for name, first, last in found:
        if joined and (joined[-1][0] == name or last - first + 1 < least):
            joined[-1] = (joined[-1][0], joined[-1][1], last)
        elif last - first + 1 >= least:
            joined.append((name, first, last))
    return joined
