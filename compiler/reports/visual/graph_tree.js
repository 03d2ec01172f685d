// The tree of modules over the ops, and what flows between siblings.
const LABEL = 0, PATH = 1, TYPE = 2, PLACE = 3, INPUTS = 4, READS = 5, OUTPUTS = 6, TIME = 7, BYTES = 8, KIND = 9,
  AGAIN = 10, SHARDING = 11, IR = 12;
const ARGUMENT = 5; // of kinds
const PHASES = ['forward', 'backward', 'optimizer'];
const FEW = 60; // a module with more parts shows them in runs

function makeTree(nodes, paths) {
  const root = {name: '', path: '', parent: null, kids: [], open: true, op: -1};
  const known = new Map([['', root]]);
  const module = path => {
    let found = known.get(path);
    if (found) return found;
    const colon = path.indexOf(':'), dot = path.lastIndexOf('.');
    const above = dot > colon ? path.slice(0, dot) : colon >= 0 ? path.slice(0, colon) : '';
    const parent = module(above);
    found = {name: path.slice(Math.max(dot, colon) + 1), path, parent, kids: [], open: false, op: -1};
    parent.kids.push(found);
    known.set(path, found);
    return found;
  };
  const leaves = nodes.map((n, i) => {
    const parent = module(paths[n[PATH]]);
    const leaf = {name: n[LABEL], path: paths[n[PATH]], parent, kids: [], open: false, op: i};
    parent.kids.push(leaf);
    return leaf;
  });
  joinChains(root);
  summed(root, nodes);
  placed(root, nodes, nodes.findIndex(n => n[BYTES] && paths[n[PATH]].startsWith('backward:')));
  ancestors(root, 0);
  ordered(root, sources(leaves, nodes));
  inRuns(root);
  ancestors(root, 0);
  return {root, leaves};
}

// a module whose only part is a module is one box with it; phases stay by themselves
function joinChains(t) {
  for (const k of t.kids) joinChains(k);
  if (!t.parent || !t.parent.parent || t.kids.length !== 1 || t.kids[0].op >= 0) return;
  const only = t.kids[0];
  t.name += '.' + only.name;
  t.path = only.path;
  t.kids = only.kids;
  for (const k of t.kids) k.parent = t;
}

function summed(t, nodes) {
  t.count = 0; t.time = 0; t.bytes = 0; t.again = 0;
  t.kinds = [0, 0, 0, 0, 0, 0];
  t.shardings = new Map();
  if (t.op >= 0) {
    const n = nodes[t.op];
    t.count = 1; t.time = n[TIME]; t.bytes = n[BYTES]; t.again = n[AGAIN];
    t.kinds[n[KIND]] = 1;
    if (n[SHARDING]) t.shardings.set(n[SHARDING], 1);
  }
  for (const k of t.kids) { summed(k, nodes); added(t, k); }
}

function added(t, k) {
  t.count += k.count; t.time += k.time; t.bytes += k.bytes; t.again += k.again;
  k.kinds.forEach((n, i) => { t.kinds[i] += n; });
  k.shardings.forEach((n, s) => t.shardings.set(s, (t.shardings.get(s) || 0) + n));
}

// where a part is in the program: the op by which it has moved half of its bytes. Ops that only read arguments (transposes
// of weights) and checks of them may run early, and what comes of the forward after the backward began is recomputed: they
// count where a part has no others
function placed(t, nodes, end) {
  const all = t.op >= 0 ? [t.op] : t.kids.flatMap(k => placed(k, nodes, end)).sort((a, b) => a - b);
  const computed = all.filter(i => nodes[i][LABEL] !== 'check' && nodes[i][INPUTS].some(j => nodes[j][KIND] !== ARGUMENT));
  const early = phaseOf(t) === 0 ? computed.filter(i => i < end) : computed;
  const known = [early, computed, all].find(found => found.length);
  let left = known.reduce((sum, i) => sum + nodes[i][BYTES], 0) / 2;
  t.at = known.find(i => (left -= nodes[i][BYTES]) <= 0);
  return all;
}

// siblings that give data to each part; a check gives none
function sources(leaves, nodes) {
  const found = new Map();
  nodes.forEach((n, i) => n[INPUTS].forEach(j => {
    if (nodes[j][LABEL] === 'check') return;
    const [a, b] = siblings(leaves[j], leaves[i]);
    if (a !== b) (found.get(b) || found.set(b, new Set()).get(b)).add(a);
  }));
  return found;
}

// phases, and parts by where they are, each after the parts that only give it data
function ordered(t, from) {
  const left = new Set(t.kids.sort((a, b) => phaseOf(a) - phaseOf(b) || a.at - b.at)), list = [];
  const put = k => {
    if (!left.delete(k)) return;
    for (const a of from.get(k) || []) if (phaseOf(a) === phaseOf(k) && !(from.get(a) || new Set()).has(k)) put(a);
    list.push(k);
  };
  t.kids.forEach(put);
  t.kids = list;
  t.kids.forEach(k => ordered(k, from));
}

function siblings(a, b) {
  while (a.depth > b.depth) a = a.parent;
  while (b.depth > a.depth) b = b.parent;
  while (a.parent !== b.parent) { a = a.parent; b = b.parent; }
  return [a, b];
}

// many parts side by side cannot be read: runs of them, in this order, are boxes of their own
function inRuns(t) {
  t.kids.forEach(inRuns);
  while (t.kids.length > FEW) {
    const runs = [];
    for (let i = 0; i < t.kids.length; i += FEW) {
      const kids = t.kids.slice(i, i + FEW), last = kids[kids.length - 1];
      const ends = [(kids[0].ends || [kids[0].name])[0], (last.ends || [0, last.name])[1]];
      const run = {name: ends.join(' … '), ends, path: t.path, parent: t, kids, open: false, op: -1,
        count: 0, time: 0, bytes: 0, again: 0, kinds: [0, 0, 0, 0, 0, 0], shardings: new Map()};
      for (const k of kids) { k.parent = run; added(run, k); }
      runs.push(run);
    }
    t.kids = runs;
  }
}

function ancestors(t, depth) {
  t.depth = depth;
  t.kids.forEach(k => ancestors(k, depth + 1));
}

// edges between the parts of each open module: Map from a module to [[part, part, count]]
function siblingEdges(tree, nodes) {
  const found = new Map();
  const shownOf = leaf => {
    let shown = leaf;
    for (let t = leaf.parent; t; t = t.parent) if (!t.open) shown = t;
    return shown;
  };
  const shown = tree.leaves.map(shownOf);
  nodes.forEach((n, i) => {
    for (const j of n[INPUTS]) {
      let a = shown[j], b = shown[i];
      if (a === b) continue;
      [a, b] = siblings(a, b);
      if (a === b) continue;
      if (!found.has(a.parent)) found.set(a.parent, new Map());
      const pairs = found.get(a.parent);
      if (!pairs.has(a)) pairs.set(a, new Map());
      pairs.get(a).set(b, (pairs.get(a).get(b) || 0) + 1);
    }
  });
  return found;
}

// a number alone says little: layers.3
function titleOf(t) {
  if (t.op >= 0 || !/^\d/.test(t.name) || !t.parent || !t.parent.parent) return t.name;
  let p = t.parent;
  while (p.ends) p = p.parent; // out of runs
  return `${p.name.split('.').pop()}.${t.name}`;
}

function phaseOf(t) {
  const phase = t.path.split(':')[0];
  return PHASES.indexOf(phase);
}
