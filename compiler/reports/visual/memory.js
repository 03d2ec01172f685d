const svg = document.getElementById('arena');
const W = 1000, H = 600;
const sx = W / Math.max(DATA.steps.length, 1), sy = H / Math.max(DATA.top, 1);
el('rect', {x: 0, y: 0, width: W, height: H, class: 'frame'}, svg);
const values = el('g', {id: 'values'}, svg);
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
  ['arena ' + bytes(DATA.arena), DATA.arena, ''],
  ['lower bound ' + bytes(DATA.bound), DATA.bound, ' bound'],
];
for (const [, size, kind] of limits)
  el('path', {d: `M0 ${H - size * sy}H${W}`, class: 'limit' + kind}, svg);
const labels = document.getElementById('labels');
const spans = limits.map(([text], i) => {
  const s = document.createElement('span');
  s.textContent = text;
  s.style.left = (8 + i * 150) + 'px';
  labels.append(s);
  return s;
});
svg.setAttribute('preserveAspectRatio', 'none');
const moved = box => spans.forEach((s, i) => {
  const y = (H - limits[i][1] * sy - box[1]) / box[3];
  s.style.top = (y * 100) + '%';
  s.style.display = y < 0 || y > 1 ? 'none' : '';
});
const seen = view(svg, [-W * .01, -H * .05, W * 1.02, H * 1.08], moved);
document.getElementById('fit').onclick = () => seen.reset();

function shown(e) {
  const i = e.target.getAttribute && e.target.getAttribute('data-i');
  if (i === null || i === undefined) {
    tip(e, '');
    return;
  }
  const [offset, size, start, end, , op, type, source] = DATA.values[i];
  tip(e, op, [type, `${bytes(size)} (${size.toLocaleString('en')} bytes) at ${offset.toLocaleString('en')}`,
    `steps ${start} to ${end} of ${DATA.steps.length}`,
    ...DATA.sources[source]]);
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
  const d = document.createElement('div'), c = document.createElement('i');
  c.style.background = g.colour;
  d.append(c, (g.name || '(no module)') + '  ' + bytes(g.bytes));
  d.onclick = () => { off.has(i) ? off.delete(i) : off.add(i); d.classList.toggle('off'); filter(); };
  legend.append(d);
});
// many modules would hide much of the drawing
legend.hidden = DATA.groups.length > 16;
document.getElementById('modules').onclick = () => { legend.hidden = !legend.hidden; };
