"""Drawings of memory and graphs: what is in the files, and what a browser makes of them."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from browser import needs_browser, run

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import DEFAULT_PIPELINES
from gflow.compiler.ir.ssa import read_body
from gflow.compiler.memory.planned import NotPlanned, read_plan
from gflow.compiler.reports.visual.dataflow import nodes_of
from gflow.compiler.reports.visual.dot import dot
from gflow.compiler.reports.visual.graph import graph_page, ops_as_text
from gflow.compiler.reports.visual.layered import layered
from gflow.compiler.reports.visual.memory import memory_page
from gflow.compiler.reports.visual.picture import graph_picture, levels
from gflow.compiler.reports.visual.timeline import Span, spans_page
from gflow.compiler.tools.opt import main
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import processor

SIZE = "tensor<64x64xf32>"


def program(blocks: int) -> str:
    """A training step in the small: `blocks` products and tanhs forward, and the way back."""
    lines = [
        f'func.func @step(%x: {SIZE} {{gflow.name = "x", gflow.role = "input"}}, '
        f'%w: {SIZE} {{gflow.name = "model.w", gflow.role = "parameter"}}) '
        f'-> ({SIZE} {{gflow.name = "<loss> & co"}}) {{'
    ]
    last, kept = "%x", []
    place = '("<net> & \\22co\\22.py":{}:0)'

    def add(name: str, op: str, operands: str, count: int, where: str, line: int) -> None:
        types = ", ".join([SIZE] * count)
        loc = f'loc("{where}"{place.format(line)})'
        lines.append(f'  {name} = "gflow.{op}"({operands}) : ({types}) -> {SIZE} {loc}')

    for i in range(blocks):
        where = f"forward:model.layers.{i}.mlp"
        add(f"%m{i}", "matmul", f"{last}, %w", 2, where, 10)
        add(f"%t{i}", "tanh", f"%m{i}", 1, where, 11)
        last = f"%t{i}"
        kept.append(last)
    for i in reversed(range(blocks)):
        where = f"backward:model.layers.{i}.mlp"
        add(f"%g{i}", "mul", f"{last}, {kept[i]}", 2, where, 11)
        add(f"%b{i}", "matmul", f"%g{i}, %w", 2, where, 10)
        last = f"%b{i}"
    return "\n".join([*lines, f"  return {last} : {SIZE}", "}", ""])


def function(blocks: int, planned: bool = True):  # type: ignore[no-untyped-def]
    module = ir.Module.parse(program(blocks), make_context())
    if planned:
        run_pipeline(module, DEFAULT_PIPELINES["cpu"])
    _alive.append(module)
    return module.body.operations[0]


#: modules of functions in use: a function does not keep its module
_alive: list[ir.Module] = []


def test_reading_a_plan() -> None:
    plan = read_plan(function(5))
    assert plan.arena == plan.peak >= plan.lower_bound > 0  # scratch counts, where it is planned
    assert max(s.live for s in plan.steps) <= plan.arena
    places = [p for s in plan.steps for p in s.places]
    values = [v for v in plan.values if v.type != "bytes"]
    assert len(values) == sum(p.startswith("arena:") for p in places) > 0
    for a in plan.values:
        assert a.type != "bytes" or a.op.startswith("scratch of ")
        assert 0 <= a.start <= a.end < len(plan.steps)
        for b in plan.values:
            if a is b or a.end < b.start or b.end < a.start:
                continue
            apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
            assert apart or b.start == a.end or a.start == b.end  # taken over in place
    with pytest.raises(NotPlanned, match="run --pipeline-for=cpu"):
        read_plan(function(1, planned=False))


def test_texts_of_ops() -> None:
    """Each op has its own text, in program order."""
    for planned in (False, True):
        f = function(3, planned)
        ops, texts = read_body(f).ops, ops_as_text(f)
        assert list(texts) == [o.index for o in ops]
        for o in ops:
            assert texts[o.index].startswith(f"%{o.index} = gflow.{o.name}")
        assert all("return" not in text and text[-1] != "{" for text in texts.values())


def test_layers_and_order() -> None:
    rng = random.Random(1)
    for _ in range(30):
        count = rng.randrange(1, 60)
        edges = [(rng.randrange(b), b) for b in range(1, count) for _ in range(rng.randrange(3))]
        widths = [rng.uniform(20, 200) for _ in range(count)]
        drawn = layered(widths, edges)
        for a, b in edges:
            assert drawn.y[a] < drawn.y[b]
        for i in range(count):
            assert drawn.x[i] - widths[i] / 2 + 1e-6 >= 0
            assert drawn.x[i] + widths[i] / 2 <= drawn.width + 1e-6
            for j in range(i):
                if drawn.y[i] == drawn.y[j]:
                    assert abs(drawn.x[i] - drawn.x[j]) >= (widths[i] + widths[j]) / 2
    empty = layered([], [])
    assert (empty.width, empty.height) == (0, 0)


def test_levels_group_by_module() -> None:
    nodes = nodes_of(function(5, planned=False))
    found = levels(nodes)
    assert [len(v.boxes) for v in found] == sorted({len(v.boxes) for v in found})
    assert found[0].name == "modules, depth 1"
    assert {b.title for b in found[0].boxes} == {"x", "forward:model", "backward:model"}
    assert found[-1].name == "ops"
    assert len(found[-1].boxes) == len(nodes) == 21  # 20 ops and an input; the weight is none
    for level in found:
        assert sum(b.count for b in level.boxes) == len(nodes)
    assert any("reads model.w" in f for n in nodes for f in n.facts())
    assert nodes[-1].outputs == ["<loss> & co"]


def test_pictures_are_well_formed() -> None:
    f = function(3)
    root = ET.fromstring(graph_picture(f))
    boxes = [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("class") == "box"]
    assert len(boxes) == len(levels(nodes_of(f))[-1].boxes)
    text = dot(f)
    assert text.count("{") == text.count("}")
    assert '"forward:model.layers.0.mlp"' in text


@pytest.mark.parametrize("make", [lambda f: memory_page(read_plan(f)), graph_page])
def test_pages_stand_alone(make) -> None:  # type: ignore[no-untyped-def]
    text = make(function(3))
    assert not re.search(
        r"(src|href)\s*=|@import|url\(|fetch\(|https?://(?!www\.w3\.org/2000/svg)", text
    )
    assert "<net>" not in text  # the author's names are data, not markup


def test_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(program(2))
    memory, graph, picture = (tmp_path / n for n in ("m.html", "g.html", "g.svg"))
    flags = ["--pipeline-for=cpu", f"--view-memory={memory}", f"--view-graph={graph}"]
    assert main([str(source), *flags, "-o", str(tmp_path / "out.mlir")]) == 0
    assert main([str(source), f"--view-graph={picture}"]) == 0
    timeline = tmp_path / "t.html"
    assert main([str(source), f"--view-timeline={timeline}", "--network=h100"]) == 0
    assert timeline.read_text().startswith("<!doctype html>")
    assert memory.read_text().startswith("<!doctype html>")
    assert graph.read_text().startswith("<!doctype html>")
    assert picture.read_text().startswith("<svg")
    capsys.readouterr()
    for flag, message in (
        (f"--view-memory={memory}", "'@step' has no memory plan; run --pipeline-for=cpu"),
        ("--view-memory=x.txt", "'x.txt' must end in .html"),
        ("--view-timeline=x.svg", "'x.svg' must end in .html"),
        ("--view-graph=x.png", "'x.png' must end in .html or .svg"),
        ("--view-graph=/nowhere/x.svg", "cannot open output file '/nowhere/x.svg'"),
    ):
        assert main([str(source), flag]) == 1
        assert message in capsys.readouterr().err
    assert main([str(source), "--split-input-file", f"--view-graph={graph}"]) == 1
    assert "draw one module" in capsys.readouterr().err


@needs_browser
def test_memory_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if processor.amx():  # its scratch makes the arena larger, and the axis coarser
        monkeypatch.setenv(processor.ISA, "x86-64-v4")
    plan = read_plan(function(6))
    seen = run(
        memory_page(plan),
        """
        const rects = [...document.querySelectorAll('.value')];
        const texts = rects.map(r => point(r) === r ? tipText() : '');
        const before = document.getElementById('arena').getAttribute('viewBox');
        point(document.querySelector('.frame'), 'wheel');
        const zoomed = document.getElementById('arena').getAttribute('viewBox');
        document.getElementById('fit').click();
        const after = document.getElementById('arena').getAttribute('viewBox');
        const finger = (pointerId, type, clientX) => document.getElementById('arena').dispatchEvent(
          new PointerEvent(type, {pointerId, clientX, clientY: 300, bubbles: true}));
        finger(1, 'pointerdown', 500); finger(2, 'pointerdown', 600); finger(2, 'pointermove', 700);
        finger(1, 'pointerup', 500); finger(2, 'pointerup', 700);
        const pinched = document.getElementById('arena').getAttribute('viewBox');
        document.getElementById('fit').click();
        const find = document.getElementById('find');
        find.value = 'layers.0.'; find.oninput();
        const dim = rects.filter(r => r.classList.contains('dim')).length;
        find.value = ''; find.oninput();
        document.querySelector('#legend button').click();
        const legend = document.getElementById('legend'), open = !legend.hidden;
        document.getElementById('modules').click();
        return {count: rects.length, texts, dim, off: document.querySelectorAll('.value.dim').length,
          limits: document.querySelectorAll('.limit').length,
          labels: [...document.querySelectorAll('#labels .limits')].map(s => s.textContent),
          steps: [...document.querySelectorAll('#labels .step')].map(s => s.textContent),
          sizes: [...document.querySelectorAll('#labels .size')].map(s => s.textContent),
          phases: [...document.querySelectorAll('#labels .phases')].map(s => s.textContent),
          legend: document.querySelectorAll('#legend button').length,
          pinch: pinched.split(' ')[2] / after.split(' ')[2],
          moved: before !== zoomed && before === after, folds: open && legend.hidden};
        """,
        tmp_path,
    )
    assert seen["count"] == len(plan.values)
    assert seen["limits"] == 2
    assert seen["labels"][0].startswith("arena ")
    assert seen["labels"][1].startswith("lower bound ")
    assert seen["steps"][:2] == ["0", "1"]
    assert seen["sizes"][0] == "0 B"
    assert "16.0 KiB" in seen["sizes"]
    assert seen["phases"] == ["forward", "backward"]
    assert seen["legend"] == len({".".join(v.source.group.split(".")[:3]) for v in plan.values})
    assert 0 < seen["dim"] < seen["count"]
    assert seen["off"] > 0
    assert seen["moved"]
    assert seen["pinch"] == pytest.approx(0.5)
    assert seen["folds"]
    hit = [t for t in seen["texts"] if t]
    # the last step of a value may be covered by what takes its place
    assert len(hit) >= len(plan.values) - 2
    hit = [t for t in hit if not t.startswith("scratch of ")]
    assert any("matmul" in t for t in hit)
    assert all("tensor<64x64xf32>" in t and "16.0 KiB (16,384 bytes) at" in t for t in hit)
    assert all('<net> & "co".py:1' in t and "layers." in t and "steps " in t for t in hit)


@needs_browser
def test_graph_page_in_a_browser(tmp_path: Path) -> None:
    """Opens on what fits; modules open and close; a click tells all of an op; search opens what hides a hit."""
    f = function(6, planned=False)
    seen = run(
        graph_page(f, {0: 3e-3}),
        """
        const parts = () => [...document.querySelectorAll('.part')];
        const names = () => parts().map(p => p.querySelector('text').textContent);
        const press = (key, target) =>
          (target || document.body).dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
        const picture = document.getElementById('graph').getBoundingClientRect();
        const inside = parts().every(p => {
          const r = p.firstChild.getBoundingClientRect();
          return r.left >= picture.left && r.right <= picture.right
            && r.top >= picture.top && r.bottom <= picture.bottom;
        });
        const opening = names();
        document.getElementById('less').click();
        const closed = names();
        const forward = parts().find(p => p.querySelector('text').textContent === 'forward');
        point(forward, 'dblclick');
        const opened = names();
        document.getElementById('more').click();
        const all = names();
        const whole = parts().every(p => [...p.querySelectorAll(':scope > text')].every(t =>
          t.getBoundingClientRect().right <= p.firstChild.getBoundingClientRect().right + 1));
        // lines pass beside boxes
        let through = 0;
        for (const e of document.querySelectorAll('.edge')) {
          const m = e.getScreenCTM(), ends = lines.find(l => l[2] === e).slice(0, 2).map(t => shapes.get(t));
          for (let i = 1; i < 40; i++) {
            const q = e.getPointAtLength(e.getTotalLength() * i / 40), p = new DOMPoint(q.x, q.y).matrixTransform(m);
            through += parts().some(b => {
              const r = b.firstChild.getBoundingClientRect();
              return !ends.some(k => k.contains(b)) && !b.contains(ends[0]) && !b.contains(ends[1])
                && p.x > r.left + 1 && p.x < r.right - 1 && p.y > r.top + 1 && p.y < r.bottom - 1;
            });
          }
        }
        const box = parts().find(p => p.tree.op === 1);
        point(box);
        const text = tipText(), marked = document.querySelectorAll('.edge.on').length;
        point(box, 'click');
        const details = document.getElementById('details').textContent;
        press('Escape');
        const away = document.getElementById('details').hidden;
        document.getElementById('less').click();
        const find = document.getElementById('find');
        find.value = 'tanh'; find.oninput();
        const hits = document.getElementById('hits').textContent, hit = document.querySelectorAll('.part.hit').length;
        press('Enter', find);
        const shown = document.querySelector('.picked text').textContent;
        const legends = [...document.getElementById('colour').options].map(o => {
          const select = document.getElementById('colour');
          select.value = o.value; select.onchange();
          return document.getElementById('legend').textContent;
        });
        press('?');
        return {opening, inside, closed, opened, all, whole, through, text, marked, details, away, hits, hit, shown,
          legends, keys: document.getElementById('keys').textContent};
        """,
        tmp_path,
    )
    assert seen["inside"]
    assert len(seen["opening"]) > 3
    assert seen["closed"] == ["x", "forward", "backward"]
    assert seen["opened"] == ["x", "forward", "model.layers", "backward"]
    assert len([n for n in seen["all"] if n in ("matmul", "tanh", "mul")]) == 24
    assert seen["whole"]
    assert seen["through"] == 0
    assert seen["text"].startswith("matmul")
    assert seen["marked"] == 1  # the other ends at the frame of its module
    for told in ('<net> & "co".py:10', "reads", "model.w", "forward:model.layers.0.mlp", "3.00 ms (100.0 %)",
                 "%0 = gflow.matmul %arg0, %arg1 : 64x64xf32", "read bytanh"):  # fmt: skip
        assert told in seen["details"], seen["details"]
    assert seen["away"]
    assert seen["hits"] == "6 found, Enter: next"
    assert seen["hit"] == 1
    assert seen["shown"] == "tanh"
    assert seen["legends"] == [
        "measured time 03.00 ms", seen["legends"][1], "forwardbackwardoptimizer", "kernel or BLAS (24)input (1)",
        "nothing is recomputed", "no op has a sharding",
    ]  # fmt: skip
    assert seen["legends"][1].startswith("bytes moved 0")
    assert "open or close the module" in seen["keys"]


@needs_browser
def test_order_of_boxes(tmp_path: Path) -> None:
    """By data and phase, though parts of later boxes run first (a transpose, an update's decay)."""
    steps = (
        ("%d", "mul", "%w, %w", "optimizer:model.b.w"),
        ("%c", "neg", "%w", "forward:model.b"),
        ("%a", "matmul", "%x, %w", "forward:model.a"),
        ("%b", "matmul", "%a, %c", "forward:model.b"),
        ("%g", "matmul", "%b, %d", "backward:model.b"),
        ("%u", "sub", "%d, %g", "optimizer:model.b.w"),
    )
    lines = [
        f'{name} = "gflow.{op}"({operands}) : ({", ".join([SIZE] * (1 + operands.count(",")))}) -> {SIZE} '
        f'loc("{where}"("net.py":1:0))'
        for name, op, operands, where in steps
    ]
    arguments = ", ".join(f"{name}: {SIZE}" for name in ("%x", "%w"))
    text = "\n".join(lines)
    module = ir.Module.parse(
        f"func.func @step({arguments}) -> {SIZE} {{\n{text}\nreturn %u : {SIZE}\n}}", make_context()
    )
    seen = run(
        graph_page(module.body.operations[0]),
        """
        const names = t => t.kids.map(k => k.name);
        const phases = root.kids.filter(k => k.op < 0);
        return {phases: phases.map(k => k.name), forward: names(phases[0].kids[0])};
        """,
        tmp_path,
    )
    assert seen == {"phases": ["forward", "backward", "optimizer"], "forward": ["a", "b"]}


@needs_browser
def test_timeline_page_in_a_browser(tmp_path: Path) -> None:
    spans = [
        Span("host", 0.0, 1e-3, "<run>", "host"),
        Span("steps", 2e-4, 3e-4, "matmul", "forward", ("module a.b",)),
    ]
    spans.append(Span("steps", 5e-4, 4e-4, "tanh", "backward"))
    seen = run(
        spans_page("a call", 1e-3, {"call": "1 ms"}, ["forward", "backward", "host"], spans),
        """
        const all = [...document.querySelectorAll('.span')];
        const at = all.map(r => r.getBoundingClientRect());
        const scale = [...document.querySelectorAll('#names .time')].map(s => s.textContent);
        const texts = all.map(r => point(r) === r ? tipText() : '');
        const find = document.getElementById('find');
        find.value = 'a.b'; find.oninput();
        const hits = document.getElementById('hits').textContent, dim = document.querySelectorAll('.span.dim').length;
        find.value = ''; find.oninput();
        const press = key => document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
        press('n'); press('n');
        const second = tipText();
        const before = document.getElementById('line').getAttribute('viewBox');
        press('+'); press('ArrowRight');
        const after = document.getElementById('line').getAttribute('viewBox');
        press('0');
        const sums = [...document.querySelectorAll('#sums tbody tr')].map(r => [...r.cells].map(c => c.textContent));
        const room = document.getElementById('sums').getBoundingClientRect();
        document.querySelectorAll('#sums button')[1].click();
        const found = document.getElementById('hits').textContent;
        return {scale, sums, found, below: room.height > 300 && room.bottom <= innerHeight + 1,
          texts, hits, dim, second, moved: before !== after,
          back: before === document.getElementById('line').getAttribute('viewBox'),
          shares: at.map(r => Math.round(1000 * r.width / at[0].width)),
          rows: [...document.querySelectorAll('#names .row')].map(s => s.textContent),
          inside: [...document.querySelectorAll('#names .inside')].map(s => s.textContent)};
        """,
        tmp_path,
    )
    assert seen["rows"] == ["host", "steps"]
    assert seen["inside"] == ["<run>", "matmul", "tanh"]
    assert seen["shares"] == [1000, 300, 400]
    assert seen["scale"][:3] == ["0", "200 µs", "400 µs"]
    assert all(seen["texts"])
    assert "forward, steps300.0 µs from 200.0 µs to 500.0 µs (30.0 %)module a.b" in seen["texts"][
        1
    ].replace("\n", "")
    assert seen["hits"] == "1 found, 300.0 µs"
    assert seen["dim"] == 2
    assert seen["sums"][0] == ["<run>", "host", "1", "1.000 ms", "100.0 %"]
    assert [row[0] for row in seen["sums"]] == ["<run>", "tanh", "matmul"]
    assert seen["found"] == "1 found, 400.0 µs"
    assert seen["below"]  # the table has the rest of the window
    assert seen["second"].startswith("matmul")
    assert seen["moved"]
    assert seen["back"]


@needs_browser
def test_pages_of_a_thousand_ops(tmp_path: Path) -> None:
    f = function(250)
    graph, memory = graph_page(f), memory_page(read_plan(f))
    script = "return document.querySelectorAll('.part, .value').length;"
    boxes = run(graph, script, tmp_path)
    values = run(memory, script, tmp_path)
    assert 3 < boxes <= 100
    assert values == len(read_plan(f).values)
    assert max(len(graph), len(memory)) < 2_000_000
