// What the memory is divided into at a moment.
const shown = { moment: model.moment, mode: model.mode, extents: [], low: 0, high: 0, selected: -1 };
const pieceNames = Object.keys(model.pieces);
const paints = () => [...model.modes[shown.mode], ...pieceNames.map((name) => model.pieces[name])];
const pieceIndex = (name) => model.modes[shown.mode].length + pieceNames.indexOf(name);
const stripsAt = (m) => model.strips.filter((strip) => strip.born <= m && m < strip.died);

function mappedAt(m) {
  if (!model.pages.length) return null;
  const there = new Set();
  for (const [at, address, isThere] of model.pages) {
    if (at > m) break;
    if (isThere) there.add(address); else there.delete(address);
  }
  return there;
}

/* Fill extents: [address, size, state, block], ascending, over every part of every strip. */
function divide(m) {
  const extents = [], there = mappedAt(m);
  let block = 0;
  const gap = (from, to) => {
    while (from < to) {
      const end = there ? Math.min(to, (Math.floor(from / model.page) + 1) * model.page) : to;
      const state = there && !there.has(from - from % model.page) ? UNMAPPED : FREE;
      const before = extents[extents.length - 1];
      if (there && before && before[3] === GAP && before[2] === state && before[0] + before[1] === from)
        before[1] += end - from;
      else extents.push([from, end - from, state, GAP]);
      from = end;
    }
  };
  for (const strip of stripsAt(m)) {
    for (const [start, length] of strip.parts) {
      let at = start;
      const end = start + length;
      while (block < count && blocks.address[block] + blocks.size[block] <= start) block++;
      for (; block < count && blocks.address[block] < end; block++) {
        if (blocks.born[block] > m || blocks.died[block] <= m) continue;
        const from = Math.max(blocks.address[block], start);
        const to = Math.min(blocks.address[block] + blocks.size[block], end);
        if (to <= from) continue;
        if (from > at) gap(at, from);
        extents.push([from, to - from, blocks.state[block], block]);
        at = to;
      }
      if (at < end) gap(at, end);
    }
  }
  return extents;
}

/* Mark the free bytes that a request of the largest size cannot have: short runs, or parts of pages in use. */
function markFragments(extents) {
  let i = 0, bytes = 0;
  const isFree = (extent) => extent[2] === FREE || extent[2] === PENDING || extent[2] === READY;
  const touch = (one, other) => one[0] + one[1] === other[0];
  while (i < extents.length) {
    if (!isFree(extents[i])) { i++; continue; }
    let j = i, run = 0;
    while (j < extents.length && isFree(extents[j]) && (j === i || touch(extents[j - 1], extents[j])))
      run += extents[j++][1];
    const start = extents[i][0], end = start + run;
    const whole = model.page
      ? Math.max(0, Math.floor(end / model.page) - Math.ceil(start / model.page)) * model.page
      : run >= model.largest ? run : 0;
    for (let k = i; k < j; k++) extents[k].fragment = whole === 0;
    bytes += run - whole;
    i = j;
  }
  return bytes;
}

const AGES = [10, 100, 1000, 10000, 100000];
function ageClass(block) {
  if (!model.bornKnown) return model.modes.age.length - 1;
  const age = now() - bornOf(block);
  let at = 0;
  while (at < AGES.length && age > AGES[at]) at++;
  return at;
}
const now = () => model.isWhole ? model.now : shown.moment;
const bornOf = (block) => model.isWhole ? Math.floor(blocks.ident[block] / 2) : blocks.born[block];
const NAMES = ["live", "pending", "free", "ready", "rounding", "unmapped", "busy"];

function categoryOf(extent) {
  const block = extent[3];
  if (block === GAP || extent[2] !== LIVE) {
    const name = extent.fragment && extent[2] === FREE ? "fragment" : NAMES[extent[2]];
    return pieceIndex(name);
  }
  if (shown.mode === "tier") return blocks.tier[block];
  if (shown.mode === "state") return model.isWhole && blocks.ident[block] % 2 ? 1 : 0;
  if (shown.mode === "age") return ageClass(block);
  const named = model.modes.stream.length - 2, stream = blocks.stream[block];
  return stream === NO_STREAM ? named + 1 : Math.min(stream, named);
}

// Where an address is drawn. Positions run over the parts of all strips; a strip begins a row.
let parts = [], total = 0, lines = [];
function place() {
  parts = [];
  total = 0;
  for (const strip of stripsAt(shown.moment)) {
    strip.parts.forEach(([address, length], number) => {
      parts.push({ address, length, at: total, strip, isFirst: number === 0 });
      total += length;
    });
  }
}
function search(list, key, value) {           // the last of a list whose key is at most a value
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}
function positionOf(address) {
  const at = search(parts, (part) => part.address, address);
  const part = parts[Math.max(at, 0)];
  return part ? part.at + Math.min(Math.max(address - part.address, 0), part.length) : 0;
}
function addressAt(position) {
  const part = parts[Math.max(search(parts, (each) => each.at, position), 0)];
  return part ? part.address + Math.min(position - part.at, part.length - 1) : 0;
}
function runsOfStrips() {                     // [from, to) of each strip, cut to what is in view
  const runs = [];
  for (const part of parts) {
    if (part.isFirst) runs.push([part.at, part.at + part.length]);
    else runs[runs.length - 1][1] = part.at + part.length;
  }
  return runs.map(([from, to]) => [Math.max(from, shown.low), Math.min(to, shown.high)])
    .filter(([from, to]) => from < to);
}
const ROWS = 12;
function layOut() {
  const runs = runsOfStrips();
  const sum = runs.reduce((bytes, [from, to]) => bytes + to - from, 0);
  const most = Math.max(ROWS, runs.length);
  let perRow = Math.max(sum / most, 1);
  const needed = () => runs.reduce((n, [from, to]) => n + Math.ceil((to - from) / perRow), 0);
  while (needed() > most) perRow *= 1.02;
  lines = [];
  for (const [from, to] of runs) {
    const each = (to - from) / Math.ceil((to - from) / perRow);
    for (let at = from; at < to - 0.5; at += each) lines.push({ from: at, to: Math.min(at + each, to) });
  }
  for (const line of lines) line.perRow = perRow;
}
