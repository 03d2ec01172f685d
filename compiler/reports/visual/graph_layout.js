// Places the parts of open modules in layers (Sugiyama), outermost from left to right, inside from top to bottom.
// Short edges pass between boxes of the layers that they cross; long ones, and those back, run along the side.
const GAP = 16, BETWEEN = 26, PAD = 14, HEAD = 26, LANE = 5, LANES = 16, SHORT = 4, BOX = 40, THIN = 10;
const pen = document.createElement('canvas').getContext('2d');
function textWidth(text, size) { pen.font = `${size || 12}px system-ui, sans-serif`; return pen.measureText(text).width; }

// gives t.w, t.h, and for its parts x, y (left, top) within it; t.lines: [[a, b, count, path]]
function place(t, edges) {
  if (!t.open) {
    const text = Math.max(textWidth(titleOf(t)), textWidth(second(t), 10.5));
    t.w = Math.max(56, Math.ceil(text) + (t.kids.length ? 36 : 20));
    t.h = BOX;
    t.lines = [];
    return;
  }
  t.kids.forEach(k => place(k, edges));
  const pairs = [];
  const of = edges.get(t) || new Map();
  of.forEach((to, a) => to.forEach((count, b) => pairs.push([a, b, count])));
  const flat = !t.parent;
  const size = k => flat ? [k.h, k.w] : [k.w, k.h];
  const drawn = layers(t.kids, pairs, size);
  const left = flat ? 0 : PAD, top = flat ? 0 : HEAD + 4;
  const at = (x, y) => flat ? [y + left, x + top] : [x + left, y + top];
  t.kids.forEach((k, i) => { [k.x, k.y] = at(drawn.x[i], drawn.y[i]); });
  t.lines = drawn.lines.map(([a, b, count, points]) => [a, b, count, pathOf(points, at)]);
  const [w, h] = flat ? [drawn.height, drawn.width] : [drawn.width, drawn.height];
  t.w = Math.max(w + 2 * left, flat ? 0 : textWidth(titleOf(t), 12.8) + textWidth(second(t), 10.5) + 50);
  t.h = h + top + (flat ? 0 : PAD);
}

// points: ['M'|'L'|'C', x, y]; a C bends from the point before, upright at both ends
function pathOf(points, at) {
  let d = '', before = null;
  for (const [kind, x, y] of points) {
    const [px, py] = at(x, y);
    if (kind === 'C') {
      const middle = (before[1] + y) / 2;
      const [ax, ay] = at(before[0], middle), [bx, by] = at(x, middle);
      d += `C${ax.toFixed(1)} ${ay.toFixed(1)} ${bx.toFixed(1)} ${by.toFixed(1)} ${px.toFixed(1)} ${py.toFixed(1)}`;
    } else d += `${kind}${px.toFixed(1)} ${py.toFixed(1)}`;
    before = [x, y];
  }
  return d;
}

function layers(kids, pairs, size) {
  const number = new Map(kids.map((k, i) => [k, i]));
  const links = pairs.map(([a, b, count]) => [number.get(a), number.get(b), count]);
  const above = kids.map(() => []), below = kids.map(() => []);
  for (const [a, b] of links) if (a < b) { above[b].push(a); below[a].push(b); }
  const layer = kids.map(() => 0);
  kids.forEach((_, i) => { for (const j of above[i]) layer[i] = Math.max(layer[i], layer[j] + 1); });
  for (let i = kids.length - 1; i >= 0; i--)
    if (!above[i].length && below[i].length) layer[i] = Math.max(0, Math.min(...below[i].map(j => layer[j])) - 1);
  const alone = i => !above[i].length && !below[i].length;
  // items: boxes first, then places where short edges cross a layer
  const width = kids.map(k => size(k)[0]), high = kids.map(k => size(k)[1]);
  const up = above.map(a => a.filter(j => true)), down = below.map(b => b.slice());
  let rows = [];
  const put = (i, n) => { (rows[n] = rows[n] || []).push(i); };
  kids.forEach((_, i) => { if (!alone(i)) put(i, layer[i]); });
  const through = new Map();
  links.forEach(([a, b], e) => {
    const span = layer[b] - layer[a];
    if (a > b || span < 2 || span > SHORT) return;
    const cells = [];
    let before = a;
    up[b].splice(up[b].indexOf(a), 1);
    down[a].splice(down[a].indexOf(b), 1);
    for (let n = layer[a] + 1; n < layer[b]; n++) {
      const cell = width.length;
      width.push(THIN); high.push(0); up.push([before]); down.push([]); down[before].push(cell);
      put(cell, n);
      cells.push(cell);
      before = cell;
    }
    up[b].push(before); down[before].push(b);
    through.set(e, cells);
  });
  // long edges do not pull
  links.forEach(([a, b]) => {
    if (a < b && layer[b] - layer[a] > SHORT) {
      up[b] = up[b].filter(j => j !== a); down[a] = down[a].filter(j => j !== b);
    }
  });
  rows = rows.filter(r => r);
  const widest = Math.max(600, ...rows.map(r => r.reduce((s, i) => s + width[i] + GAP, 0)));
  let last = null, room = 0;
  kids.forEach((_, i) => {
    if (!alone(i)) return;
    if (!last || room + width[i] + GAP > widest) { last = []; rows.push(last); room = 0; }
    last.push(i); room += width[i] + GAP;
  });
  rows.forEach((r, n) => r.forEach(i => { if (i < kids.length) layer[i] = n; }));
  const x = width.map(() => 0);
  rows.forEach(r => spread(r, width, x, r.map(() => 0)));
  for (let sweep = 0; sweep < 8; sweep++) {
    const near = sweep % 2 ? down : up;
    for (const r of sweep % 2 ? rows.slice().reverse() : rows) {
      const wish = new Map(r.map(i => [i, near[i].length ? near[i].reduce((s, j) => s + x[j], 0) / near[i].length : x[i]]));
      const old = new Map(r.map((i, n) => [i, n]));
      r.sort((a, b) => wish.get(a) - wish.get(b) || old.get(a) - old.get(b));
      spread(r, width, x, r.map(i => wish.get(i)));
    }
  }
  const left = Math.min(0, ...x.map((v, i) => v - width[i] / 2));
  x.forEach((v, i) => { x[i] = v - left; });
  let right = Math.max(0, ...x.map((v, i) => v + width[i] / 2));
  const tops = [], bottoms = [];
  let y = 0;
  for (const r of rows) {
    tops.push(y);
    y += Math.max(0, ...r.map(i => high[i]));
    bottoms.push(y);
    y += BETWEEN;
  }
  const height = Math.max(0, y - BETWEEN);
  const lines = [], long = [];
  links.forEach(([a, b, count], e) => {
    const la = layer[a], lb = layer[b];
    const cells = through.get(e) || [];
    if (a > b || (lb - la > 1 && !cells.length) || lb <= la) { long.push([a, b, count]); return; }
    const points = [['M', x[a], tops[la] + high[a]], ['L', x[a], bottoms[la]]];
    cells.forEach((c, n) => {
      points.push(['C', x[c], tops[la + 1 + n]], ['L', x[c], bottoms[la + 1 + n]]);
    });
    points.push(['C', x[b], tops[lb]]);
    lines.push([kids[a], kids[b], count, points]);
  });
  // along the side: edges of one source share a lane
  const busy = [];
  const lanes = new Map();
  const reach = new Map();
  for (const [a, b] of long) {
    const ys = [bottoms[layer[a]], tops[layer[b]]];
    const old = reach.get(a) || [Infinity, -Infinity];
    reach.set(a, [Math.min(old[0], ...ys), Math.max(old[1], ...ys)]);
  }
  [...reach].sort((p, q) => p[1][0] - q[1][0]).forEach(([a, [from, to]]) => {
    let n = busy.findIndex(end => end < from);
    if (n < 0) n = busy.length < LANES ? busy.length : busy.indexOf(Math.min(...busy));
    busy[n] = to;
    lanes.set(a, n);
  });
  for (const [a, b, count] of long) {
    const lane = right + GAP + lanes.get(a) * LANE, out = bottoms[layer[a]] + 5 + lanes.get(a) % 4, into = tops[layer[b]] - 6;
    lines.push([kids[a], kids[b], count, [['M', x[a], tops[layer[a]] + high[a]], ['L', x[a], out], ['L', lane, out],
      ['L', lane, into], ['L', x[b] + 3, into], ['L', x[b] + 3, tops[layer[b]]]]]);
  }
  if (long.length) right += 2 * GAP + Math.min(LANES, busy.length) * LANE;
  return {
    x: kids.map((_, i) => x[i] - width[i] / 2), y: kids.map((_, i) => tops[layer[i]]), lines,
    width: right, height,
  };
}

// in their order, as near to their wishes as fits: those that would overlap move together to the mean of their wishes
function spread(row, width, x, wished) {
  const blocks = [];
  row.forEach((i, n) => {
    let block = {left: wished[n] - width[i] / 2, width: width[i] + GAP, items: [i]};
    while (blocks.length && blocks[blocks.length - 1].left + blocks[blocks.length - 1].width > block.left) {
      const other = blocks.pop(), all = other.items.length + block.items.length;
      block = {
        left: (other.left * other.items.length + (block.left - other.width) * block.items.length) / all,
        width: other.width + block.width, items: other.items.concat(block.items),
      };
    }
    blocks.push(block);
  });
  for (const block of blocks) {
    let at = block.left;
    for (const i of block.items) { x[i] = at + width[i] / 2; at += width[i] + GAP; }
  }
}
