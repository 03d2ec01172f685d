const svg = document.getElementById('arena');
const W = 1000, H = 600;
const sx = W / Math.max(DATA.steps.length, 1), sy = H / Math.max(DATA.top, 1);
el('rect', {x: 0, y: 0, width: W, height: H, class: 'frame'}, svg);
const marks = el('g', {}, svg), values = el('g', {id: 'values'}, svg);
DATA.values.forEach((v, i) => {
  const [offset, size, start, end, group] = v;
  el('rect', {x: start * sx, y: H - (offset + size) * sy, width: (end - start + 1) * sx,
    height: Math.max(size * sy, 0.05), class: 'value', fill: DATA.groups[group].colour, 'data-i': i}, values);
});
let path = '';
DATA.steps.forEach((s, i) => {
  const y = H - s[1] * sy;
  path += `${i ? 'L' : 'M'}${i * sx} ${y}H${(i + 1) * sx}`;
});
el('path', {d: path, class: 'live'}, svg);
const limits = [
  [`arena ${bytes(DATA.arena)}`, DATA.arena, ''],
  [`lower bound ${bytes(DATA.bound)}`, DATA.bound, ' bound'],
];
for (const [, size, kind] of limits)
  el('path', {d: `M0 ${H - size * sy}H${W}`, class: 'limit' + kind}, svg);
// where a phase begins
for (const [, first] of DATA.phases)
  if (first) el('path', {d: `M${first * sx} 0V${H}`, class: 'phase'}, svg);
const names = labels(document.getElementById('labels'));
svg.setAttribute('preserveAspectRatio', 'none');
function moved(box) {
  names.clear();
  marks.textContent = '';
  outline(svg.clientHeight / box[3]);
  const ax = x => (x - box[0]) / box[2], ay = y => (y - box[1]) / box[3];
  for (const n of ticks(Math.max(0, box[0] / sx), Math.min(DATA.steps.length, (box[0] + box[2]) / sx), svg.clientWidth / 110)) {
    if (n % 1) continue;
    el('path', {d: `M${n * sx} ${H}v6`, class: 'tick'}, marks);
    names.put(n.toLocaleString('en'), ax(n * sx), null, 'step');
  }
  for (const size of ticks(Math.max(0, (H - box[1] - box[3]) / sy), Math.min(DATA.top, (H - box[1]) / sy), svg.clientHeight / 70, true)) {
    const y = H - size * sy;
    el('path', {d: `M0 ${y}H${W}`, class: 'tick'}, marks);
    names.put(bytes(size), null, ay(y), 'size');
  }
  DATA.phases.forEach(([name, first, last]) => {
    const from = Math.max(0, ax(first * sx)), to = Math.min(1, ax((last + 1) * sx));
    if ((to - from) * svg.clientWidth > name.length * 8) names.put(name, (from + to) / 2, null, 'phases');
  });
  // two limits may be at one height: one's label is at the left, the other's at the right
  limits.forEach(([text, size], i) => {
    const y = ay(H - size * sy);
    if (y >= 0 && y <= 1) names.put(text, i ? null : Math.max(.08, 76 / svg.clientWidth), y, i ? 'limits right' : 'limits');
  });
  // the line of live bytes has its name at its highest step
  const top = DATA.steps.reduce((best, s, i) => s[1] > DATA.steps[best][1] ? i : best, 0);
  const lx = ax((top + 1) * sx), ly = ay(H - DATA.steps[top][1] * sy);
  if (lx >= 0 && lx <= .9 && ly >= 0 && ly <= .95) names.put('live bytes', lx, ly + .025, 'live-name');
  names.put('step of the program', null, null, 'axis x');
  names.put('address', null, null, 'axis y');
}
// a line around a value of less than three pixels would hide its colour
let drawn = 0;
function outline(pixels) {
  if (pixels === drawn) return;
  drawn = pixels;
  for (const r of values.children) r.classList.toggle('thin', DATA.values[r.getAttribute('data-i')][1] * sy * pixels < 3);
}
const seen = view(svg, [-W * .075, -H * .06, W * 1.085, H * 1.13], moved);
document.getElementById('fit').onclick = () => seen.reset();
document.getElementById('help').onclick = () => help();

function told(i) {
  const [offset, size, start, end, , op, type, source] = DATA.values[i];
  const steps = end - start + 1;
  return [op, [type, `${bytes(size)} (${size.toLocaleString('en')} bytes) at ${offset.toLocaleString('en')}`,
    `lives ${steps} of ${DATA.steps.length} steps: steps ${start} to ${end}, to ${DATA.steps[end][0]}`,
    ...DATA.sources[source]]];
}
function shown(e) {
  const i = e.target.getAttribute && e.target.getAttribute('data-i');
  if (i === null || i === undefined) {
    tip(e, '');
    return;
  }
  tip(e, ...told(i));
}
svg.addEventListener('pointermove', shown);
svg.addEventListener('pointerleave', e => tip(e, ''));

const off = new Set();
const find = document.getElementById('find');
function filter() {
  const wanted = find.value.toLowerCase();
  for (const r of values.children) {
    const v = DATA.values[r.getAttribute('data-i')];
    const text = (v[5] + ' ' + v[6] + ' ' + DATA.sources[v[7]].join(' ')).toLowerCase();
    r.classList.toggle('dim', off.has(v[4]) || (wanted !== '' && !text.includes(wanted)));
  }
}
find.oninput = filter;
const legend = document.getElementById('legend');
DATA.groups.forEach((g, i) => {
  const d = document.createElement('button'), c = document.createElement('i');
  d.setAttribute('aria-pressed', 'true');
  c.style.background = g.colour;
  d.append(c, (g.name || '(no module)') + '  ' + bytes(g.bytes));
  d.onclick = () => { off.has(i) ? off.delete(i) : off.add(i); d.setAttribute('aria-pressed', String(!off.has(i))); filter(); };
  legend.append(d);
});
// many modules would hide much of the drawing
legend.hidden = DATA.groups.length > 16;
document.getElementById('modules').onclick = () => { legend.hidden = !legend.hidden; };

// keys: from one value to the next, with what it is
let picked = -1;
function step(by) {
  const all = [...values.children].filter(r => !r.classList.contains('dim'));
  if (!all.length) return;
  const now = all.findIndex(r => Number(r.getAttribute('data-i')) === picked);
  const r = all[now < 0 ? 0 : (now + by + all.length) % all.length];
  picked = Number(r.getAttribute('data-i'));
  for (const s of values.children) s.classList.toggle('picked', s === r);
  const place = r.getBoundingClientRect();
  tip({clientX: place.left + place.width / 2, clientY: place.bottom}, ...told(picked));
}
keys({
  n: ['the next value', () => step(1)], p: ['the value before', () => step(-1)],
  m: ['modules', () => document.getElementById('modules').click()],
});
