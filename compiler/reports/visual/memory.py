"""The arena over time as a page: `gflow-opt --view-memory FILE.html`.

Steps run from left to right, addresses upward; each value in the arena is a rectangle in the colour
of the module that made it. Lines mark the arena's size and the least that this order of steps needs.
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
            '<button id="fit">fit</button><button id="modules">modules</button>',
            '<span class="soft">wheel: zoom, drag: move</span>',
        ]
    )
    body = (
        f'<svg id="arena" role="img" aria-label="{escape(plan.name)}: arena over time"></svg>'
        '<div id="labels"></div><div id="legend"></div>'
    )
    return page(f"{plan.name}: memory", "memory", header, body, data)
