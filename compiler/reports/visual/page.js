'use strict';
const SVG = 'http://www.w3.org/2000/svg';
function el(name, attributes, parent, text) {
  const e = document.createElementNS(SVG, name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.appendChild(e);
  return e;
}
// keys that a page takes: name → [what it does, function]; those of a text field stay its own
const KEYS = {};
function keys(more) { Object.assign(KEYS, more); }
document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
  if (e.key === 'Enter' && e.target.tagName === 'BUTTON') return;
  const known = KEYS[e.key];
  if (known) { e.preventDefault(); known[1](); }
  if (e.key === 'Escape') help(false);
});
function help(show) {
  const box = document.getElementById('keys');
  box.hidden = show === false || !box.hidden;
  if (box.hidden) return;
  const more = Object.entries(KEYS).filter(([, [text]]) => text).map(([key, [text]]) => `${key}  ${text}`);
  box.textContent = ['arrows  move', '+ −  zoom (wheel)', '0  fit (double click)', '/  find', ...more, '?  this list'].join('\n');
}
// round values between two, about `count` of them: 1, 2 or 5 times a power of ten, or of two for bytes
function ticks(from, to, count, binary) {
  const least = (to - from) / count;
  if (!(least > 0)) return [];
  const power = binary ? Math.pow(2, Math.ceil(Math.log2(least))) : Math.pow(10, Math.floor(Math.log10(least)));
  const step = binary ? power : [1, 2, 5, 10].map(f => f * power).find(f => f >= least);
  const found = [];
  for (let n = Math.ceil(from / step); n * step <= to && found.length < 60; n++) found.push(n * step);
  return found;
}
// labels over a drawing, placed in shares of it: put(text, left or null, top or null, class)
function labels(parent) {
  let now = [];
  return {
    clear: () => { now.forEach(s => s.remove()); now = []; },
    put: (text, left, top, kind) => {
      const s = document.createElement('span');
      s.textContent = text;
      s.className = kind;
      if (left !== null) s.style.left = `${100 * left}%`;
      if (top !== null) s.style.top = `${100 * top}%`;
      parent.append(s);
      now.push(s);
    },
  };
}
// flat: the wheel stretches the drawing from left to right alone
function view(svg, home, change, flat) {
  let box = home.slice();
  const set = b => { box = b; svg.setAttribute('viewBox', b.join(' ')); if (change) change(b); };
  const at = e => {
    const m = svg.getScreenCTM();
    return m ? new DOMPoint(e.clientX, e.clientY).matrixTransform(m.inverse()) : {x: 0, y: 0};
  };
  const zoom = (f, p) => set(flat ? [p.x - (p.x - box[0]) * f, box[1], box[2] * f, box[3]]
    : [p.x - (p.x - box[0]) * f, p.y - (p.y - box[1]) * f, box[2] * f, box[3] * f]);
  svg.addEventListener('wheel', e => {
    e.preventDefault();
    if (e.shiftKey) set([box[0] + e.deltaY * box[2] / 1500, box[1], box[2], box[3]]);
    else zoom(Math.exp(e.deltaY * 0.0015), at(e));
  }, {passive: false});
  let from = null;
  const fingers = new Map(), apart = () => {
    const [a, b] = fingers.values();
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
  };
  svg.addEventListener('pointerdown', e => {
    from = at(e);
    fingers.set(e.pointerId, e);
    try { svg.setPointerCapture(e.pointerId); } catch { /* a pointer that is not there */ }
  });
  for (const end of ['pointerup', 'pointercancel'])
    svg.addEventListener(end, e => { from = null; fingers.delete(e.pointerId); });
  svg.addEventListener('pointermove', e => {
    if (fingers.size === 2 && fingers.has(e.pointerId)) { // two fingers zoom
      const before = apart();
      fingers.set(e.pointerId, e);
      const [a, b] = fingers.values();
      zoom(before / apart(), at({clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2}));
      from = null;
      return;
    }
    if (!from) return;
    const p = at(e);
    set([box[0] + from.x - p.x, box[1] + from.y - p.y, box[2], box[3]]);
  });
  svg.addEventListener('dblclick', () => fitted());
  set(home.slice());
  const fitted = () => { const b = document.getElementById('fit'); if (b) b.click(); else set(home.slice()); };
  const pan = (x, y) => set([box[0] + x * box[2] / 10, box[1] + y * box[3] / 10, box[2], box[3]]);
  const middle = () => ({x: box[0] + box[2] / 2, y: box[1] + box[3] / 2});
  keys({
    ArrowLeft: ['', () => pan(-1, 0)], ArrowRight: ['', () => pan(1, 0)],
    ArrowUp: ['', () => pan(0, -1)], ArrowDown: ['', () => pan(0, 1)],
    '+': ['', () => zoom(0.8, middle())], '-': ['', () => zoom(1.25, middle())],
    0: ['', fitted],
    '/': ['', () => document.getElementById('find').focus()],
    '?': ['', help],
  });
  return {
    box: () => box, set,
    reset: (to) => { if (Array.isArray(to)) home = to; set(home.slice()); },
    zoom: f => zoom(f, {x: box[0] + box[2] / 2, y: box[1] + box[3] / 2}),
  };
}
function tip(e, title, lines) {
  const t = document.getElementById('tip');
  t.textContent = '';
  if (!title) { t.hidden = true; return; }
  const b = document.createElement('b');
  b.textContent = title;
  t.append(b, lines.filter(s => s).join('\n'));
  t.hidden = false;
  const w = t.offsetWidth, h = t.offsetHeight;
  t.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - w - 8)) + 'px';
  t.style.top = Math.max(4, Math.min(e.clientY + 14, innerHeight - h - 8)) + 'px';
}
function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0, v = n;
  while (v >= 1024 && i < 4) { v /= 1024; i++; }
  return i ? v.toFixed(v < 10 ? 2 : 1) + ' ' + units[i] : n + ' B';
}
