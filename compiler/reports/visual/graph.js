const svg = document.getElementById('graph');
const find = document.getElementById('find'), hits = document.getElementById('hits');
const BOX = 30, CUT = 34;
let boxes = [], edges = [], level = null, seen = null, kept = -1;

function draw(n) {
  level = DATA.levels[n];
  svg.textContent = '';
  kept = -1;
  const lines = el('g', {}, svg), shapes = el('g', {id: 'boxes'}, svg);
  edges = level.edges.map(([d, faint]) => el('path', {d, class: faint ? 'edge faint' : 'edge'}, lines));
  boxes = level.boxes.map(([title, x, y, width, fill], i) => {
    const g = el('g', {class: 'box', transform: `translate(${x} ${y})`, 'data-i': i}, shapes);
    el('rect', {x: -width / 2, y: -BOX / 2, width, height: BOX, rx: 5, fill}, g);
    const text = title.length > CUT ? title.slice(0, CUT - 1) + '…' : title;
    el('text', {'text-anchor': 'middle', dy: 4}, g, text);
    return g;
  });
  // as much as can be read, from the top on
  const [w, h] = level.size, wide = Math.min(Math.max(w + 40, 700), 1700);
  const middle = wide > w ? w / 2 : level.boxes.reduce((sum, b) => sum + b[1], 0) / level.boxes.length;
  const home = [middle - wide / 2, -20, wide, Math.min(h + 40, wide * 0.62)];
  if (seen) seen.reset(home); else seen = view(svg, home);
  filter();
}

function mark(i) {
  const near = new Set();
  level.pairs.forEach(([a, b], n) => {
    const on = i >= 0 && (a === i || b === i);
    edges[n].classList.toggle('on', on);
    if (on) { near.add(a); near.add(b); }
  });
  boxes.forEach((g, n) => g.classList.toggle('on', near.has(n)));
}

function under(e) {
  const g = e.target.closest && e.target.closest('.box');
  return g ? Number(g.getAttribute('data-i')) : -1;
}

svg.addEventListener('pointermove', e => {
  const i = under(e);
  if (i < 0) { tip(e, ''); if (kept < 0) mark(-1); return; }
  tip(e, level.boxes[i][0], level.boxes[i][5]);
  if (kept < 0) mark(i);
});
svg.addEventListener('pointerleave', e => { tip(e, ''); if (kept < 0) mark(-1); });
// pointer capture sends the click to the picture itself, so what counts is where the press was
let pressed = -1, moved = 0;
svg.addEventListener('pointerdown', e => { pressed = under(e); moved = 0; }, true);
svg.addEventListener('pointermove', e => { moved += Math.abs(e.movementX) + Math.abs(e.movementY); });
svg.addEventListener('click', () => {
  if (moved > 4) return;
  kept = pressed === kept ? -1 : pressed;
  mark(kept);
});

function filter() {
  const wanted = find.value.toLowerCase();
  let count = 0;
  boxes.forEach((g, i) => {
    const [title, , , , , facts] = level.boxes[i];
    const hit = wanted === '' || (title + '\n' + facts.join('\n')).toLowerCase().includes(wanted);
    g.classList.toggle('dim', !hit);
    count += hit && wanted !== '';
  });
  edges.forEach(e => e.classList.toggle('dim', wanted !== ''));
  hits.textContent = wanted === '' ? '' : `${count} found`;
}

find.oninput = filter;
find.onkeydown = e => {
  if (e.key !== 'Enter') return;
  const i = boxes.findIndex(g => !g.classList.contains('dim'));
  if (i < 0) return;
  const [, x, y] = level.boxes[i], box = seen.box();
  seen.set([x - box[2] / 2, y - box[3] / 2, box[2], box[3]]);
};
document.getElementById('level').onchange = e => draw(Number(e.target.value));
document.getElementById('fit').onclick = () => {
  const [w, h] = level.size;
  seen.set([-20, -20, w + 40, h + 40]);
};
draw(Number(document.getElementById('level').value));
