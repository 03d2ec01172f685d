const svg = document.getElementById('line');
svg.setAttribute('preserveAspectRatio', 'none');
const W = 1000, ROW = 34, H = Math.max(DATA.rows.length, 1) * ROW;
const sx = W / Math.max(DATA.seconds, 1e-12);
const time = s => s === 0 ? '0' : s >= 1 ? s.toPrecision(4) + ' s' : s >= 1e-3 ? (s * 1e3).toPrecision(4) + ' ms'
  : (s * 1e6).toPrecision(4) + ' µs';
// without the zeros at the end that a row of ticks does not need
const short = s => time(s).replace(/(\.\d*?)0+ /, '$1 ').replace('. ', ' ');
DATA.rows.forEach((r, i) => el('rect', {x: 0, y: i * ROW + 2, width: W, height: ROW - 4, class: 'row'}, svg));
const marks = el('g', {}, svg), spans = el('g', {}, svg);
DATA.spans.forEach(([row, begin, length, , kind], i) => el('rect', {
  x: begin * sx, y: row * ROW + 5, width: Math.max(length * sx, 0.02), height: ROW - 10,
  class: i % 2 ? 'span odd' : 'span', fill: DATA.kinds[kind][1], 'data-i': i}, spans));
const key = document.getElementById('key');
DATA.kinds.forEach(([name, colour]) => {
  const i = document.createElement('i');
  i.style.background = colour;
  key.append(i, name);
});
const names = labels(document.getElementById('names'));
const MOST_INSIDE = 200, LEAST_INSIDE = 60; // labels in spans, and pixels for one
function moved(box) {
  names.clear();
  marks.textContent = '';
  const at = x => (x - box[0]) / box[2], pixels = svg.clientWidth / box[2];
  let count = 0;
  DATA.spans.forEach(([row, begin, length, label]) => {
    const left = Math.max(at(begin * sx), 0), right = Math.min(at((begin + length) * sx), 1);
    const wide = (right - left) * svg.clientWidth, y = ((row + .5) * ROW - box[1]) / box[3];
    if (wide < LEAST_INSIDE || y < 0 || y > 1 || ++count > MOST_INSIDE) return;
    names.put(DATA.labels[label][0], left, y, 'inside');
    document.getElementById('names').lastChild.style.maxWidth = `${wide}px`;
  });
  DATA.rows.forEach((name, i) => {
    const y = ((i + .5) * ROW - box[1]) / box[3];
    if (y >= 0 && y <= 1) names.put(name, null, y, 'row');
  });
  const from = Math.max(box[0] / sx, 0), to = Math.min((box[0] + box[2]) / sx, DATA.seconds);
  for (const t of ticks(from, to, Math.max(2, svg.clientWidth / 150))) {
    el('path', {d: `M${t * sx} 0V${H}`, class: 'tick'}, marks);
    names.put(short(t), at(t * sx), Math.min(1 - 22 / svg.clientHeight, (H + 4 - box[1]) / box[3]), 'time');
  }
}
const widest = Math.max(...DATA.rows.map(r => r.length), 1) * 7.2 + 20;
const margin = Math.min(0.3, widest / Math.max(svg.clientWidth, 1)) * W / 0.7;
// the table below has what a few rows leave of the window; many rows share two thirds of it
const home = () => [-margin, -ROW * .5, W + margin + 12, H + ROW * 1.6];
document.getElementById('chart').style.height = `min(65%, ${H * 1.2 + ROW * 1.9}px)`;
const seen = view(svg, home(), moved, true);
document.getElementById('fit').onclick = () => seen.reset(home());
document.getElementById('help').onclick = () => help();
function told(i) {
  const [row, begin, length, label, kind] = DATA.spans[i], [title, ...details] = DATA.labels[label];
  return [title, [`${DATA.kinds[kind][0]}, ${DATA.rows[row]}`,
    `${time(length)} from ${time(begin)} to ${time(begin + length)} (${(100 * length / DATA.seconds).toFixed(1)} %)`, ...details]];
}
svg.addEventListener('pointermove', e => {
  const i = e.target.getAttribute && e.target.getAttribute('data-i');
  if (i === null || i === undefined) { tip(e, ''); return; }
  tip(e, ...told(i));
});
svg.addEventListener('pointerleave', e => tip(e, ''));
const find = document.getElementById('find'), hits = document.getElementById('hits');
const texts = DATA.labels.map(l => l.join('\n').toLowerCase());
find.oninput = () => {
  const wanted = find.value.toLowerCase();
  let count = 0, sum = 0;
  for (const r of spans.children) {
    const s = DATA.spans[r.getAttribute('data-i')], hit = wanted === '' || texts[s[3]].includes(wanted);
    r.classList.toggle('dim', !hit);
    if (hit) { count++; sum += s[2]; }
  }
  hits.textContent = wanted === '' ? '' : `${count} found, ${time(sum)}`;
};
// the sums of spans of one name, the longest first; a click finds them
const sums = new Map();
DATA.spans.forEach(([, , length, label, kind]) => {
  const name = DATA.labels[label][0], key = `${kind} ${name}`;
  const sum = sums.get(key) || {name, kind, count: 0, seconds: 0};
  sum.count += 1; sum.seconds += length;
  sums.set(key, sum);
});
const MOST_SUMS = 200, table = document.createElement('table'), head = table.createTHead().insertRow();
for (const title of ['name', 'kind', 'times', 'sum', 'of the timeline']) {
  const th = document.createElement('th');
  th.textContent = title;
  head.append(th);
}
const lines = table.createTBody();
[...sums.values()].sort((a, b) => b.seconds - a.seconds).slice(0, MOST_SUMS).forEach(sum => {
  const row = lines.insertRow(), [name, colour] = DATA.kinds[sum.kind];
  const button = document.createElement('button'), dot = document.createElement('i');
  button.textContent = sum.name;
  button.onclick = () => { find.value = find.value === sum.name ? '' : sum.name; find.oninput(); };
  dot.style.background = colour;
  row.insertCell().append(button);
  row.insertCell().append(dot, name);
  for (const text of [sum.count.toLocaleString('en'), time(sum.seconds), `${(100 * sum.seconds / DATA.seconds).toFixed(1)} %`])
    row.insertCell().textContent = text;
});
document.getElementById('sums').append(table);
// keys: from one span to the next, with what it is
let picked = -1;
function step(by) {
  const all = [...spans.children].filter(r => !r.classList.contains('dim'));
  if (!all.length) return;
  const now = all.findIndex(r => Number(r.getAttribute('data-i')) === picked);
  const r = all[now < 0 ? 0 : (now + by + all.length) % all.length];
  picked = Number(r.getAttribute('data-i'));
  for (const s of spans.children) s.classList.toggle('picked', s === r);
  const [, begin, length] = DATA.spans[picked], box = seen.box(), x = (begin + length / 2) * sx;
  if (x < box[0] || x > box[0] + box[2]) seen.set([x - box[2] / 2, box[1], box[2], box[3]]);
  const place = r.getBoundingClientRect();
  tip({clientX: place.left + place.width / 2, clientY: place.bottom}, ...told(picked));
}
keys({n: ['the next span', () => step(1)], p: ['the span before', () => step(-1)]});
