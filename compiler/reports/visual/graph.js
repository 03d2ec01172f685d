const svg = document.getElementById('graph'), main = svg.parentNode;
const find = document.getElementById('find'), hits = document.getElementById('hits');
const details = document.getElementById('details'), legend = document.getElementById('legend');
const colours = document.getElementById('colour');
const NODES = DATA.nodes, tree = makeTree(NODES, DATA.paths), root = tree.root;
const KINDS = ['kernel or BLAS', 'PyTorch (ATen)', 'other engine', 'collective', 'no data moved', 'input'];
const KIND_COLOURS = ['#4e79a7', '#e15759', '#b07aa1', '#f28e2b', '#9aa3ae', '#59a14f'];
const PHASE_COLOURS = ['#4e79a7', '#f28e2b', '#59a14f'], NONE = 'var(--panel)';
const SHARDING_COLOURS = ['#4e79a7', '#f28e2b', '#59a14f', '#b07aa1', '#e15759', '#76b7b2', '#9c755f', '#edc948'];
const READERS = NODES.map(() => []);
NODES.forEach((n, i) => n[INPUTS].forEach(j => READERS[j].push(i)));
const MOST_BOXES = 60, LEAST_SCALE = 0.8, READABLE = 0.9, LEAST_READ = 0.3;
let shapes = new Map(), lines = [], picked = null, found = new Set(), seen = null;

const mix = (colour, share) => `color-mix(in oklab, ${colour} ${(100 * share).toFixed(1)}%, var(--panel))`;
const micros = t => t >= 1e6 ? (t / 1e6).toPrecision(3) + ' s' : t >= 1e3 ? (t / 1e3).toPrecision(3) + ' ms'
  : t.toPrecision(3) + ' µs';
const ops = n => n === 1 ? '1 op' : n.toLocaleString('en') + ' ops';

// how a box is filled, and its second line, by what is to be seen
const HEAT = {time: '#e15759', bytes: '#4e79a7', again: '#b07aa1'};
let most = {time: 1, bytes: 1};
function filled(t) {
  const mode = colours.value;
  if (mode === 'time' || mode === 'bytes') return mix(HEAT[mode], 0.85 * Math.sqrt(t[mode] / most[mode]));
  if (mode === 'again') return mix(HEAT.again, t.again ? 0.2 + 0.7 * t.again / t.count : 0);
  if (mode === 'phase') { const p = phaseOf(t); return p < 0 ? NONE : mix(PHASE_COLOURS[p], 0.5); }
  if (mode === 'kind') return mix(KIND_COLOURS[kindOf(t)], 0.55);
  const s = shardingOf(t);
  return s ? mix(SHARDING_COLOURS[(s - 1) % SHARDING_COLOURS.length], 0.55) : NONE;
}
// what runs most of a module; a single op through PyTorch or in an engine shows, as that is what one looks for
const kindOf = t => t.kinds[1] ? 1 : t.kinds[2] ? 2 : t.kinds[3] && t.kinds[3] * 2 > t.kinds[0] ? 3
  : t.kinds.indexOf(Math.max(...t.kinds));
function shardingOf(t) {
  let best = 0, n = 0;
  t.shardings.forEach((count, s) => { if (count > n) { n = count; best = s; } });
  return best;
}
function second(t) {
  const mode = colours.value, all = t.op < 0 ? ops(t.count) : '';
  const more = mode === 'bytes' ? (t.bytes ? bytes(t.bytes) : '')
    : mode === 'again' ? (t.again ? `${t.op < 0 ? t.again + ' ' : ''}recomputed` : '')
    : mode === 'kind' ? (t.op >= 0 ? KINDS[kindOf(t)] : t.kinds[1] ? `${t.kinds[1]} through PyTorch` : '')
    : mode === 'sharding' ? (shardingOf(t) ? DATA.shardings[shardingOf(t)] : '') : t.time ? micros(t.time) : '';
  return [all, more].filter(s => s).join(' · ');
}

function eachShown(t, visit, x, y) {
  t.kids.forEach(k => {
    visit(k, x + k.x, y + k.y, t);
    if (k.open) eachShown(k, visit, x + k.x, y + k.y);
  });
}

function layout() { place(root, siblingEdges(tree, NODES)); }

function draw() {
  layout();
  svg.textContent = '';
  shapes = new Map(); lines = [];
  most = {time: 1e-9, bytes: 1};
  eachShown(root, k => { if (!k.open) { most.time = Math.max(most.time, k.time); most.bytes = Math.max(most.bytes, k.bytes); } }, 0, 0);
  const drawLines = (t, x, y, parent) => {
    for (const [a, b, count, d] of t.lines) {
      const path = el('path', {d, class: 'edge', transform: `translate(${x} ${y})`,
        'stroke-width': Math.min(3, 1 + Math.log10(count))}, parent);
      lines.push([a, b, path]);
    }
  };
  const drawKids = (t, x, y, parent) => {
    const g = el('g', {}, parent);
    drawLines(t, x, y, g);
    for (const k of t.kids) {
      const part = el('g', {class: 'part' + (k.kids.length ? ' module' : '') + (k.open ? ' open' : '')}, g);
      el('rect', {x: x + k.x, y: y + k.y, width: k.w, height: k.h, rx: k.kids.length ? 7 : 3,
        ...(k.open ? {} : {fill: filled(k)})}, part);
      const title = k.open ? [x + k.x + 24, y + k.y + 17] : [x + k.x + (k.kids.length ? 24 : 10), y + k.y + 17];
      el('text', {x: title[0], y: title[1]}, part, titleOf(k));
      if (k.open) {
        el('text', {x: x + k.x + 34 + textWidth(titleOf(k), 12.8), y: title[1], class: 'second'}, part, second(k));
        el('path', {d: `M${x + k.x + 9} ${y + k.y + 9}l9 0l-4.5 7z`, class: 'fold'}, part);
      } else {
        el('text', {x: title[0], y: y + k.y + 32, class: 'second'}, part, second(k));
        if (k.kids.length) el('path', {d: `M${x + k.x + 9} ${y + k.y + 8}l7 4.5l-7 4.5z`, class: 'fold'}, part);
      }
      part.tree = k;
      shapes.set(k, part);
      if (k.open) drawKids(k, x + k.x, y + k.y, part);
    }
  };
  drawKids(root, 0, 0, svg);
  mark(picked);
  showHits();
  showLegend();
}

function showLegend() {
  legend.textContent = '';
  const key = (colour, text) => {
    const s = document.createElement('span'), i = document.createElement('i');
    i.style.background = colour;
    s.append(i, text);
    legend.append(s);
  };
  const scale = (colour, from, to) => {
    const i = document.createElement('span');
    i.className = 'scale';
    i.style.background = `linear-gradient(90deg, var(--panel), ${mix(colour, 0.85)})`;
    legend.append(from, i, to);
  };
  const mode = colours.value;
  if (mode === 'time') scale(HEAT.time, `${DATA.measured ? 'measured' : 'least'} time 0`, micros(most.time));
  else if (mode === 'bytes') scale(HEAT.bytes, 'bytes moved 0', bytes(most.bytes));
  else if (mode === 'again') {
    if (root.again) scale(HEAT.again, 'recomputed: none', 'all');
    else legend.append('nothing is recomputed');
  } else if (mode === 'phase') PHASES.forEach((p, i) => key(mix(PHASE_COLOURS[i], 0.5), p));
  else if (mode === 'kind') KINDS.forEach((k, i) => { if (root.kinds[i]) key(mix(KIND_COLOURS[i], 0.55), `${k} (${root.kinds[i].toLocaleString('en')})`); });
  else if (!root.shardings.size) legend.append('no op has a sharding');
  else root.shardings.forEach((n, s) => key(mix(SHARDING_COLOURS[(s - 1) % SHARDING_COLOURS.length], 0.55), `${DATA.shardings[s]} (${n})`));
}

// what one looks at

function mark(t) {
  lines.forEach(([a, b, path]) => path.classList.toggle('on', t !== null && (a === t || b === t)));
  const near = new Set();
  if (t) lines.forEach(([a, b]) => { if (a === t) near.add(b); if (b === t) near.add(a); });
  shapes.forEach((part, k) => {
    part.classList.toggle('on', near.has(k));
    part.classList.toggle('picked', k === picked);
  });
}

function visible(t) {
  let shown = t;
  for (let p = t.parent; p; p = p.parent) if (!p.open) shown = p;
  return shown;
}

function whereIs(t) {
  let x = 0, y = 0;
  for (let k = t; k !== root; k = k.parent) { x += k.x; y += k.y; }
  return [x, y];
}

function reveal(t) {
  for (let p = t.parent; p; p = p.parent) p.open = true;
  draw();
  pick(t);
  show(t, true);
}

// moves so that a box is in the middle of what the details leave free, large enough to be read
function show(t, read) {
  const [x, y] = whereIs(t), box = seen.box();
  const s = Math.max(svg.clientWidth / box[2], read ? READABLE : 0), w = svg.clientWidth / s, h = svg.clientHeight / s;
  const free = w - (details.hidden ? 0 : details.offsetWidth / s);
  seen.set([x + t.w / 2 - free / 2, y + Math.min(t.h, h) / 2 - h / 2, w, h]);
}

function toggle(t, to) {
  if (!t.kids.length) return;
  // what was clicked stays where it is on the screen
  const before = whereIs(t);
  t.open = to === undefined ? !t.open : to;
  draw();
  const after = whereIs(t), box = seen.box();
  seen.set([box[0] + after[0] - before[0], box[1] + after[1] - before[1], box[2], box[3]]);
  if (t.open && (t.w > box[2] || t.h > box[3])) {
    const f = Math.min(4, Math.max(t.w / box[2], t.h / box[3]) * 1.1);
    const w = box[2] * f, h = box[3] * f;
    seen.set([after[0] + t.w / 2 - w / 2, after[1] + t.h / 2 - h / 2, w, h]);
  }
}

function pick(t) {
  picked = t;
  mark(t);
  details.hidden = !t;
  details.textContent = '';
  if (!t) return;
  const add = (name, text, parent) => { const e = document.createElement(name); e.textContent = text; (parent || details).append(e); return e; };
  const close = add('button', '×');
  close.className = 'close'; close.setAttribute('aria-label', 'close'); close.onclick = () => pick(null);
  add('h2', titleOf(t));
  const list = add('dl', '');
  const row = (name, text) => { if (text) { add('dt', name, list); add('dd', text, list); } };
  row('module', t.path);
  const share = root.time ? ` (${(100 * t.time / root.time).toFixed(1)} %)` : '';
  if (t.op < 0) {
    row('ops', t.count.toLocaleString('en'));
    KINDS.forEach((k, i) => { if (i && t.kinds[i]) row(k, t.kinds[i].toLocaleString('en')); });
  } else {
    const n = NODES[t.op];
    row('line', DATA.places[n[PLACE]]);
    row('type', n[TYPE]);
    row('run by', KINDS[n[KIND]]);
    row('sharding', DATA.shardings[n[SHARDING]]);
    row('reads', n[READS].join(', '));
    row('gives', n[OUTPUTS].join(', '));
  }
  row(DATA.measured ? 'measured' : 'least time', micros(t.time) + share);
  row('bytes moved', bytes(t.bytes));
  row('recomputed', t.again ? (t.op < 0 ? `${t.again} ops` : 'yes') : '');
  if (t.kids.length) {
    const b = add('button', t.open ? 'close the module' : 'open the module');
    b.onclick = () => { toggle(t); pick(t); };
    const kids = t.kids.slice().sort((a, b) => b.time - a.time).slice(0, 12);
    add('h2', 'longest parts');
    kids.forEach(k => { add('button', `${titleOf(k)}: ${micros(k.time)}`).onclick = () => reveal(k); });
    return;
  }
  const n = NODES[t.op];
  if (n[IR]) add('pre', n[IR]);
  for (const [title, others] of [['inputs', n[INPUTS]], ['read by', READERS[t.op]]]) {
    if (!others.length) continue;
    add('h2', title);
    others.slice(0, 30).forEach(i => { add('button', `${NODES[i][LABEL]}  ${NODES[i][TYPE]}`).onclick = () => reveal(tree.leaves[i]); });
    if (others.length > 30) add('span', `and ${others.length - 30} more`);
  }
}

// pointer

function under(e) {
  const top = document.elementFromPoint(e.clientX, e.clientY), part = top && top.closest && top.closest('.part');
  return part ? part.tree : null;
}
svg.addEventListener('pointermove', e => {
  const t = e.buttons ? null : under(e);
  if (!t) { tip(e, ''); return; }
  tip(e, titleOf(t), t.op < 0 ? [t.path, ops(t.count), micros(t.time), bytes(t.bytes)]
    : [NODES[t.op][TYPE], t.path, DATA.places[NODES[t.op][PLACE]], micros(t.time)]);
  if (!picked) mark(t);
});
svg.addEventListener('pointerleave', e => { tip(e, ''); mark(picked); });
let moved = 0;
svg.addEventListener('pointerdown', () => { moved = 0; });
svg.addEventListener('pointermove', e => { moved += Math.abs(e.movementX) + Math.abs(e.movementY); });
svg.addEventListener('click', e => {
  if (moved > 4) return;
  const t = under(e);
  tip(e, '');
  const m = svg.getScreenCTM();
  if (t && t.kids.length && m) {
    const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(m.inverse()), [x, y] = whereIs(t);
    if (p.x - x < 22 && p.y - y < 22) { toggle(t); return; } // the triangle
  }
  pick(t);
});
svg.addEventListener('dblclick', e => { const t = under(e); if (t) { e.stopImmediatePropagation(); toggle(t); } }, true);

// search

let wanted = '', order = [], at = -1;
function search() {
  wanted = find.value.trim().toLowerCase();
  found = new Set();
  order = [];
  at = -1;
  if (wanted) tree.leaves.forEach((leaf, i) => {
    const n = NODES[i];
    if (`${n[LABEL]}\n${leaf.path}\n${DATA.places[n[PLACE]]}\n${n[TYPE]}\n${n[READS]}\n${n[OUTPUTS]}`.toLowerCase().includes(wanted)) order.push(leaf);
  });
  showHits();
}
function showHits() {
  const inside = new Map();
  order.forEach(leaf => { const t = visible(leaf); inside.set(t, (inside.get(t) || 0) + 1); });
  svg.classList.toggle('searching', wanted !== '');
  shapes.forEach((part, t) => part.classList.toggle('hit', inside.has(t)));
  hits.textContent = wanted === '' ? '' : `${order.length} found` + (at >= 0 ? `, number ${at + 1}` : order.length ? ', Enter: next' : '');
}
find.oninput = search;
find.onkeydown = e => {
  if (e.key === 'Escape') { find.value = ''; search(); svg.focus(); }
  if (e.key !== 'Enter' || !order.length) return;
  at = (at + (e.shiftKey ? order.length - 1 : 1)) % order.length;
  reveal(order[at]);
};

// keys: those of moving around are page.js's

keys({
  click: ['details', () => {}],
  Enter: ['open or close the module (double click)', () => picked && toggle(picked)],
  Escape: ['put it away', () => pick(null)],
  n: ['the next box', () => step(1)],
  p: ['the box before', () => step(-1)],
  o: ['out to the module around', () => picked && picked.parent !== root && picked.parent && pick(picked.parent)],
});
function step(by) {
  const list = [...shapes.keys()]; // each module before its parts
  const i = list.indexOf(picked);
  const t = list[i < 0 ? 0 : (i + by + list.length) % list.length];
  pick(t);
  const [x, y] = whereIs(t), box = seen.box();
  if (x < box[0] || y < box[1] || x + t.w > box[0] + box[2] || y + t.h > box[1] + box[3])
    show(t, false);
}

// an overview: modules open, the largest first, as long as all can be read in the window

function scale() {
  return Math.min(svg.clientWidth / (root.w + 60), (svg.clientHeight - 40) / (root.h + 60), 1.4);
}
function overview() {
  const closed = new Set();
  for (let tries = 0; tries < 40; tries++) {
    let next = null, count = 0;
    const visit = t => t.kids.forEach(k => {
      count += 1;
      if (k.open) visit(k);
      else if (k.kids.length && !closed.has(k) && (!next || k.count > next.count)) next = k;
    });
    visit(root);
    if (!next) break;
    next.open = true;
    if (count + next.kids.length <= MOST_BOXES) { layout(); if (scale() >= LEAST_SCALE) continue; }
    next.open = false;
    closed.add(next);
  }
}
function fit() {
  const s = scale() || 1, w = svg.clientWidth / s, h = svg.clientHeight / s;
  seen.set([root.w / 2 - w / 2, root.h / 2 - h / 2 - 10 / s, w, h]);
}
// the top of the first module, large enough to be read
function begin() {
  const t = root.kids.find(k => k.open);
  if (!t) return;
  const [x, y] = whereIs(t), w = svg.clientWidth / READABLE, h = svg.clientHeight / READABLE;
  seen.set([x + t.w / 2 - w / 2, y - 20, w, h]);
}
function setAll(open) {
  const visit = t => t.kids.forEach(k => { if (k.kids.length) { visit(k); k.open = open; } });
  visit(root);
}
document.getElementById('fit').onclick = fit;
document.getElementById('more').onclick = () => {
  // a level at a time where all at once is too much to look at
  if (NODES.length <= 3000) setAll(true);
  else [...shapes.keys()].forEach(t => { if (t.kids.length && shapes.size < 3000) t.open = true; });
  draw(); fit();
  if (scale() < LEAST_READ) begin();
};
document.getElementById('help').onclick = () => help();
document.getElementById('less').onclick = () => { setAll(false); pick(null); draw(); fit(); };
colours.onchange = draw;
overview();
layout();
seen = view(svg, [0, 0, root.w, root.h]);
draw();
fit();
