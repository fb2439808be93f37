// What the page brings with it, and how it is written and painted.
const started = performance.now();
const $ = (id) => document.getElementById(id);
const model = JSON.parse($("model").textContent);
const LIVE = 0, PENDING = 1, FREE = 2, READY = 3, UNMAPPED = 5;       // places in cuda_pool.snapshot.STATES
const NO_STREAM = 65535;                        // of a block that is nobody's
const GAP = -1;                               // in place of a block's index: free memory between blocks

// Columns come as little-endian numbers in base64; a value is number * scale + base.
function decode(column) {
  const text = atob(column.data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const kinds = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };
  const raw = new kinds[column.kind](bytes.buffer), values = new Float64Array(raw.length);
  for (let i = 0, sum = column.base; i < raw.length; i++) {
    if (column.delta) values[i] = sum += raw[i] * column.scale;
    else values[i] = raw[i] * column.scale + column.base;
  }
  return values;
}
const blocks = {};
for (const name in model.columns) blocks[name] = decode(model.columns[name]);
const count = blocks.address.length;
const rows = model.rows ? decode(model.rows) : null;
const looks = {};                             // at the pool's statistics, where they changed
for (const name in model.looks) looks[name] = decode(model.looks[name]);

// The bytes in use at every moment, and which block each event is about.
const live = new Float64Array(model.events + 2), used = new Float64Array(model.events + 2);
const bornAt = new Int32Array(model.events + 1).fill(GAP), diedAt = new Int32Array(model.events + 1).fill(GAP);
for (let i = 0; i < count; i++) {
  if (blocks.state[i] !== LIVE) continue;
  live[blocks.born[i]] += blocks.requested[i];
  used[blocks.born[i]] += blocks.size[i];
  if (blocks.born[i] > 0) bornAt[blocks.born[i]] = i;
  if (blocks.died[i] > model.events) continue;
  live[blocks.died[i]] -= blocks.requested[i];
  used[blocks.died[i]] -= blocks.size[i];
  diedAt[blocks.died[i]] = i;
}
for (let m = 1; m <= model.events; m++) { live[m] += live[m - 1]; used[m] += used[m - 1]; }
const last = (length, moment, m) => {         // the last of a list at or before a moment
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (moment(middle) <= m) low = middle + 1; else high = middle;
  }
  return low - 1;
};
const reservedAt = (m) => (model.reserved[last(model.reserved.length, (at) => model.reserved[at][0], m)] || [0, 0])[1];
const lookAt = (m) => {
  const at = last(looks.moment.length, (each) => looks.moment[each], m);
  return at < 0 ? { largest: 0, pending: 0 } : { largest: looks.largest[at], pending: looks.pending[at] };
};

// Text
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
function size(bytes) {
  let unit = 0, value = bytes;
  while (value >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit++; }
  return unit ? `${value.toFixed(2)} ${UNITS[unit]}` : `${bytes} B`;
}
const grouped = (number) => number.toLocaleString("en-GB");
const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
const exact = (bytes) => bytes < 1024 ? `${bytes} B` : `${size(bytes)} (${grouped(bytes)} B)`;
const share = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "-";

// Paint: a colour, or a texture on it.
function tile(paint) {
  const canvas = document.createElement("canvas"), c = canvas.getContext("2d");
  canvas.width = canvas.height = 8;
  c.fillStyle = paint.colour;
  c.fillRect(0, 0, 8, 8);
  if (model.textures[paint.texture]) {
    c.strokeStyle = paint.ink;
    c.lineWidth = paint.texture === "dots" ? 2 : 1.2;
    c.stroke(new Path2D(model.textures[paint.texture]));
  }
  return canvas;
}
function style(context, paint) {
  if (paint.texture === "plain") return paint.colour;
  paint.tile = paint.tile || tile(paint);
  return context.createPattern(paint.tile, "repeat");
}
