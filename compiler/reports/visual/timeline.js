const svg = document.getElementById('line');
svg.setAttribute('preserveAspectRatio', 'none');
const W = 1000, ROW = 30, H = Math.max(DATA.rows.length, 1) * ROW;
const sx = W / Math.max(DATA.seconds, 1e-12);
const KINDS = ['work', 'wait', 'move'], WORDS = ['computation', 'waiting for', 'collective'];
DATA.rows.forEach((r, i) => el('rect', {x: 0, y: i * ROW + 2, width: W, height: ROW - 4, class: 'row'}, svg));
const ticks = el('g', {}, svg), spans = el('g', {}, svg);
DATA.spans.forEach(([row, begin, length, , kind], i) => el('rect', {
  x: begin * sx, y: row * ROW + 4, width: Math.max(length * sx, 0.02), height: ROW - 8,
  class: 'span ' + KINDS[kind], 'data-i': i}, spans));
const time = s => s === 0 ? '0' : s >= 1 ? s.toPrecision(4) + ' s' : s >= 1e-3 ? (s * 1e3).toPrecision(4) + ' ms'
  : (s * 1e6).toPrecision(4) + ' µs';
const names = document.getElementById('names');
const rows = DATA.rows.map(([name, stream], i) => {
  const s = document.createElement('span');
  s.textContent = `${name}: ${stream}`;
  s.style.left = '6px';
  names.append(s);
  return s;
});
let times = [];
// ticks at 1, 2 or 5 times a power of ten, about eight on the screen
function moved(box) {
  rows.forEach((s, i) => {
    const y = ((i + .5) * ROW - box[1]) / box[3];
    s.style.top = (y * 100) + '%';
    s.style.display = y < 0 || y > 1 ? 'none' : '';
  });
  const span = box[2] / sx / 8, power = Math.pow(10, Math.floor(Math.log10(span)));
  const step = [1, 2, 5, 10].map(f => f * power).find(f => f >= span);
  times.forEach(t => t.remove());
  ticks.textContent = '';
  times = [];
  for (let t = Math.max(0, Math.ceil(box[0] / sx / step) * step); t <= DATA.seconds && times.length < 40; t += step) {
    const x = (t * sx - box[0]) / box[2];
    if (x > 1) break;
    el('path', {d: `M${t * sx} 0V${H}`, class: 'tick'}, ticks);
    const s = document.createElement('span');
    s.className = 'time';
    s.textContent = time(t);
    s.style.left = (x * 100) + '%';
    s.style.bottom = '2px';
    names.append(s);
    times.push(s);
  }
}
const seen = view(svg, [-W * .14, -ROW * .3, W * 1.15, H + ROW * 1.2], moved);
document.getElementById('fit').onclick = () => seen.reset();
svg.addEventListener('pointermove', e => {
  const i = e.target.getAttribute && e.target.getAttribute('data-i');
  if (i === null || i === undefined) { tip(e, ''); return; }
  const [row, begin, length, label, kind] = DATA.spans[i];
  tip(e, DATA.labels[label], [`${WORDS[kind]}, ${DATA.rows[row][0]}`,
    `${time(length)} from ${time(begin)} to ${time(begin + length)}`]);
});
svg.addEventListener('pointerleave', e => tip(e, ''));
const find = document.getElementById('find');
find.oninput = () => {
  const wanted = find.value.toLowerCase();
  for (const r of spans.children) {
    const text = DATA.labels[DATA.spans[r.getAttribute('data-i')][3]].toLowerCase();
    r.classList.toggle('dim', wanted !== '' && !text.includes(wanted));
  }
};
