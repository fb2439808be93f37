"use strict";
(() => {
  const started = performance.now();
  const $ = (id) => document.getElementById(id);
  const model = JSON.parse($("model").textContent);
  const LIVE = 0, FREE = 2, UNMAPPED = 5;       // of model.states
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
  const last = (pairs, m) => {                  // the last of [moment, ...] at or before a moment
    let low = 0, high = pairs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[middle][0] <= m) low = middle + 1; else high = middle;
    }
    return pairs[low - 1] || [0, 0, 0];
  };

  // Text
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  function size(bytes) {
    let unit = 0, value = bytes;
    while (value >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit++; }
    return unit ? `${value.toFixed(2)} ${UNITS[unit]}` : `${bytes} B`;
  }
  const grouped = (number) => number.toLocaleString("en-GB");
  const exact = (bytes) => bytes < 1024 ? `${bytes} B` : `${size(bytes)} (${grouped(bytes)} B)`;
  const share = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "-";

  // Paint: a colour, or a texture on it.
  const TEXTURES = {
    rising: (c) => { c.moveTo(-1, 9); c.lineTo(9, -1); c.moveTo(-1, 1); c.lineTo(1, -1); c.moveTo(7, 9); c.lineTo(9, 7); },
    falling: (c) => { c.moveTo(-1, -1); c.lineTo(9, 9); c.moveTo(-1, 7); c.lineTo(1, 9); c.moveTo(7, -1); c.lineTo(9, 1); },
    upright: (c) => { c.moveTo(2.5, 0); c.lineTo(2.5, 8); c.moveTo(6.5, 0); c.lineTo(6.5, 8); },
    grid: (c) => { c.moveTo(0, 4.5); c.lineTo(8, 4.5); c.moveTo(4.5, 0); c.lineTo(4.5, 8); },
    crossed: (c) => { c.moveTo(0, 0); c.lineTo(8, 8); c.moveTo(8, 0); c.lineTo(0, 8); },
    dots: (c) => { c.moveTo(2, 2.5); c.lineTo(4, 2.5); c.moveTo(6, 6.5); c.lineTo(8, 6.5); },
  };
  function tile(paint) {
    const canvas = document.createElement("canvas"), c = canvas.getContext("2d");
    canvas.width = canvas.height = 8;
    c.fillStyle = paint.colour;
    c.fillRect(0, 0, 8, 8);
    if (TEXTURES[paint.texture]) {
      c.strokeStyle = paint.ink;
      c.lineWidth = paint.texture === "dots" ? 2 : 1.2;
      c.beginPath();
      TEXTURES[paint.texture](c);
      c.stroke();
    }
    return canvas;
  }
  function style(context, paint) {
    if (paint.texture === "plain") return paint.colour;
    paint.tile = paint.tile || tile(paint);
    return context.createPattern(paint.tile, "repeat");
  }

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
    const isFree = (extent) => extent[2] === FREE || extent[2] === 1 || extent[2] === 3;
    while (i < extents.length) {
      if (!isFree(extents[i])) { i++; continue; }
      let j = i, run = 0;
      while (j < extents.length && isFree(extents[j]) && (j === i || extents[j - 1][0] + extents[j - 1][1] === extents[j][0]))
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
    return stream === 65535 ? named + 1 : Math.min(stream, named);
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
    return runs.map(([from, to]) => [Math.max(from, shown.low), Math.min(to, shown.high)]).filter(([from, to]) => from < to);
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

  // Drawing
  const strips = $("strips"), overlay = $("overlay"), overview = $("overview");
  const LABEL = 92, PAD = 5;
  let ratio = 1, width = 0, rowHeight = 0;
  function fit(canvas, height) {
    ratio = Math.max(window.devicePixelRatio || 1, 1);
    const css = canvas.parentElement.clientWidth;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(css * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return [context, css, height];
  }

  function draw() {
    const list = paints(), n = list.length;
    rowHeight = lines.length > 30 ? 13 : lines.length > 16 ? 18 : lines.length > 8 ? 26 : 34;
    const asks = model.failure && shown.moment === model.events;
    const height = (lines.length + (asks ? 1.2 : 0)) * (rowHeight + PAD) + 2;
    const [c, css] = fit(strips, height);
    width = Math.floor(css - LABEL);
    fit(overlay, height);
    c.fillStyle = "#fff";
    c.fillRect(0, 0, css, height);
    const bytes = new Float64Array(n), columns = width;
    const cover = new Float32Array(lines.length * columns * n);
    const rects = list.map(() => []), edges = [];
    let drawn = 0, index = firstIn(shown.low);
    shown.extents.forEach((extent) => {
      const category = categoryOf(extent), block = extent[3];
      const asked = extent[2] === LIVE ? Math.min(blocks.requested[block], extent[1]) : extent[1];
      bytes[category] += asked;
      bytes[pieceIndex("rounding")] += extent[1] - asked;
    });
    for (let row = 0; row < lines.length; row++) {
      const line = lines[row], scale = width / line.perRow;
      index = firstIn(line.from);
      for (; index < shown.extents.length; index++) {
        const extent = shown.extents[index], start = positionOf(extent[0]);
        if (start >= line.to) break;
        const category = categoryOf(extent), block = extent[3];
        const asked = extent[2] === LIVE ? Math.min(blocks.requested[block], extent[1]) : extent[1];
        if (extent[2] === LIVE) drawn++;
        spread(row, category, start, start + asked, line, scale);
        spread(row, pieceIndex("rounding"), start + asked, start + extent[1], line, scale);
        if (extent[1] * scale >= 4 && start >= line.from) edges.push([row, (start - line.from) * scale]);
      }
    }
    function spread(row, category, from, to, line, scale) {
      const x0 = (Math.max(from, line.from) - line.from) * scale, x1 = (Math.min(to, line.to) - line.from) * scale;
      if (x1 <= x0) return;
      const first = Math.ceil(x0 - 1e-6), end = Math.floor(x1 + 1e-6);
      const base = row * columns * n;
      if (first > end) {                        // inside one column
        if (end < columns) cover[base + end * n + category] += x1 - x0;
        return;
      }
      if (first > x0 + 1e-6 && first - 1 < columns) cover[base + (first - 1) * n + category] += first - x0;
      if (x1 > end + 1e-6 && end < columns) cover[base + end * n + category] += x1 - end;
      if (end > first) rects[category].push([row, first, Math.min(end, columns) - first]);
    }
    const top = (row) => row * (rowHeight + PAD) + 1;
    const heights = new Float32Array(lines.length * columns);
    for (let category = 0; category < n; category++) {
      c.fillStyle = style(c, list[category]);
      for (const [row, x, w] of rects[category]) c.fillRect(LABEL + x, top(row), w, rowHeight);
      for (let at = 0; at < heights.length; at++) {
        const h = cover[at * n + category] * rowHeight;
        if (h <= 0) continue;
        const row = Math.floor(at / columns);
        c.fillRect(LABEL + at % columns, top(row) + rowHeight - heights[at] - h, 1, h);
        heights[at] += h;
      }
    }
    c.fillStyle = "rgba(0, 0, 0, .45)";
    for (const [row, x] of edges) c.fillRect(LABEL + Math.round(x), top(row), 0.7, rowHeight);
    c.strokeStyle = "#444";
    c.lineWidth = 1;
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    lines.forEach((line, row) => {
      const w = (line.to - line.from) * width / line.perRow;
      c.strokeRect(LABEL + 0.5, top(row) - 0.5, Math.max(w - 1, 1), rowHeight + 1);
      c.fillStyle = "#5f6368";
      c.fillText(`+${size(Math.round(line.from))}`, 0, top(row) + rowHeight / 2);
      breaks(c, line, top(row));
    });
    if (asks) drawRequest(c, top(lines.length) + 0.2 * rowHeight);
    drawOverview();
    drawSelection();
    legend(bytes, list);
    document.documentElement.dataset.drawn = String(drawn);
  }
  function drawRequest(c, y) {                  // what was asked for in vain, to the scale of the rows above
    const bytes = model.failure.requested, w = Math.min(bytes * width / lines[0].perRow, width);
    c.fillStyle = style(c, { colour: "#fbe3d3", texture: "rising", ink: "#d55e00" });
    c.fillRect(LABEL, y, Math.max(w, 2), rowHeight);
    c.strokeStyle = "#d55e00";
    c.lineWidth = 2;
    c.strokeRect(LABEL + 1, y, Math.max(w - 2, 1), rowHeight);
    c.fillStyle = "#b34700";
    c.font = "bold 11px system-ui, sans-serif";
    c.fillText("the request", 0, y + rowHeight / 2);
    const text = `${size(bytes)}, to scale: no free piece holds it`, room = c.measureText(text).width;
    const x = w + room + 20 < width ? LABEL + w + 10 : LABEL + 10;
    c.fillStyle = "#fffffff0";
    c.fillRect(x - 4, y + rowHeight / 2 - 8, room + 8, 16);
    c.fillStyle = "#b34700";
    c.fillText(text, x, y + rowHeight / 2);
  }
  function breaks(c, line, y) {                 // addresses without memory are left out between two parts
    c.fillStyle = "#d55e00";
    for (const part of parts) {
      if (part.isFirst || part.at <= line.from || part.at >= line.to) continue;
      c.fillRect(LABEL + (part.at - line.from) * width / line.perRow - 0.5, y - 2, 1, rowHeight + 4);
    }
  }
  const firstIn = (position) => {
    const at = search(shown.extents, (extent) => positionOf(extent[0]), position);
    return Math.max(at, 0);
  };

  function drawOverview() {
    const [c, css, height] = fit(overview, 14);
    const w = css - LABEL, scale = w / Math.max(total, 1);
    overview.hidden = shown.low === 0 && shown.high === total;
    overview.style.display = overview.hidden ? "none" : "block";
    if (overview.hidden) return;
    c.fillStyle = "#e8e8e8";
    c.fillRect(LABEL, 3, w, height - 6);
    c.fillStyle = "#0072b2";
    c.fillRect(LABEL + shown.low * scale, 0, Math.max((shown.high - shown.low) * scale, 2), height);
    c.fillStyle = "#5f6368";
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillText("in view", 0, 7);
  }

  function drawSelection() {
    const c = overlay.getContext("2d");
    c.clearRect(0, 0, overlay.width, overlay.height);
    mark(c, model.failure && largestRun(), "#d55e00", [5, 3]);
    if (shown.selected < 0 || !shown.extents[shown.selected]) return;
    const extent = shown.extents[shown.selected];
    mark(c, [extent[0], extent[1]], "#000", []);
  }
  function largestRun() {
    let best = null, run = null;
    for (const extent of shown.extents) {
      if (extent[2] !== FREE) { run = null; continue; }
      if (run && run[0] + run[1] === extent[0]) run[1] += extent[1]; else run = [extent[0], extent[1]];
      if (!best || run[1] > best[1]) best = run;
    }
    return best && shown.moment === model.events ? best : null;
  }
  function mark(c, range, colour, dash) {
    if (!range) return;
    const from = positionOf(range[0]), to = from + range[1];
    c.setLineDash(dash);
    lines.forEach((line, row) => {
      const a = Math.max(from, line.from), b = Math.min(to, line.to), scale = width / line.perRow;
      if (a >= b) return;
      const x = LABEL + (a - line.from) * scale, y = row * (rowHeight + PAD) + 1, w = Math.max((b - a) * scale, 3);
      c.strokeStyle = "#fff"; c.lineWidth = 5; c.strokeRect(x - 0.5, y - 0.5, w, rowHeight + 1);
      c.strokeStyle = colour; c.lineWidth = 2.5; c.strokeRect(x - 0.5, y - 0.5, w, rowHeight + 1);
    });
    c.setLineDash([]);
  }

  function legend(bytes, list) {
    const items = list.map((paint, at) => [paint, bytes[at]]).filter(([, sum]) => sum > 0);
    const whole = items.reduce((sum, [, each]) => sum + each, 0);
    $("legend").replaceChildren(...items.map(([paint, sum]) => {
      const item = document.createElement("li"), swatch = document.createElement("canvas");
      swatch.width = 52;
      swatch.height = 30;
      const c = swatch.getContext("2d");
      c.scale(2, 2);
      c.fillStyle = style(c, paint);
      c.fillRect(0, 0, 26, 15);
      const amount = document.createElement("span");
      amount.textContent = `${size(sum)}, ${share(sum, whole)}`;
      item.append(swatch, paint.label, amount);
      return item;
    }));
  }

  // What a block is, in words.
  function describe(extent) {
    const block = extent[3];
    const lineOf = (label, text) => `${label.padEnd(10)} ${text}`;
    const where = [lineOf("address", `0x${extent[0].toString(16)}`), lineOf("offset", `+${exact(positionOf(extent[0]))}`)];
    if (block === GAP || extent[2] !== LIVE) {
      const name = model.pieces[extent.fragment && extent[2] === FREE ? "fragment" : NAMES[extent[2]]].label;
      const owner = block !== GAP && blocks.stream[block] !== 65535 && extent[2] === 1
        ? [lineOf("for", model.streams[blocks.stream[block]])] : [];
      return [`${name}: ${exact(extent[1])}`, ...owner, ...where];
    }
    const text = [`${size(blocks.requested[block])} live`, lineOf("requested", exact(blocks.requested[block])),
                  lineOf("occupies", exact(blocks.size[block])), lineOf("tier", model.tiers[blocks.tier[block]])];
    if (blocks.stream[block] !== 65535) text.push(lineOf("stream", model.streams[blocks.stream[block]]));
    if (!model.isWhole) text.push(lineOf("block id", String(blocks.ident[block])));
    if (model.bornKnown) {
      const born = bornOf(block);
      text.push(lineOf("age", born ? `${grouped(now() - born)} events, from event ${grouped(born)} on${rowText(born)}`
        : "live before the first event"));
    }
    if (!model.isWhole && blocks.died[block] <= model.events) text.push(lineOf("freed at", `event ${grouped(blocks.died[block])}`));
    return [...text, ...where];
  }
  const rowText = (m) => rows && m > 0 ? ` (row ${grouped(rows[m - 1])})` : "";

  function select(index, isQuiet) {
    shown.selected = index;
    drawSelection();
    if (index < 0 || !shown.extents[index]) return;
    const text = describe(shown.extents[index]);
    if (!isQuiet) $("details").textContent = text.map((line) => line.replace(/ +/g, " ")).join("; ");
    return text;
  }
  function extentAt(event) {
    const box = strips.getBoundingClientRect();
    const x = event.clientX - box.left - LABEL, y = event.clientY - box.top;
    const line = lines[Math.floor((y - 1) / (rowHeight + PAD))];
    if (!line || x < 0 || (y - 1) % (rowHeight + PAD) > rowHeight) return -1;
    const position = line.from + x * line.perRow / width;
    return position < line.to ? firstIn(position) : -1;
  }
  strips.addEventListener("pointermove", (event) => {
    const at = extentAt(event), tip = $("tip");
    const text = select(at);
    tip.hidden = !text;
    if (!text) return;
    const box = $("stage").getBoundingClientRect(), extent = shown.extents[at];
    const line = lines[0], columns = extent[1] * width / line.perRow;
    tip.textContent = text.join("\n") + (columns < 1 ? `\n(${neighbours(at, line)} blocks in this column)` : "");
    const left = event.clientX - box.left + 16, right = left + tip.offsetWidth > box.width;
    tip.style.left = `${right ? Math.max(event.clientX - box.left - tip.offsetWidth - 12, 0) : left}px`;
    tip.style.top = `${event.clientY - box.top + 18}px`;
  });
  function neighbours(at, line) {
    const column = Math.floor(positionOf(shown.extents[at][0]) * width / line.perRow);
    const isNear = (other) => other && Math.floor(positionOf(other[0]) * width / line.perRow) === column;
    let from = at, to = at;
    while (isNear(shown.extents[from - 1])) from--;
    while (isNear(shown.extents[to + 1])) to++;
    return to - from + 1;
  }
  strips.addEventListener("pointerleave", () => { $("tip").hidden = true; });

  // Zoom, by the whole memory or by hand
  function view(low, high) {
    const least = Math.min(total, 4096), span = Math.min(Math.max(high - low, least), total);
    shown.low = Math.min(Math.max(low, 0), total - span);
    shown.high = shown.low + span;
    layOut();
    draw();
  }
  function zoom(factor, centre) {
    const span = (shown.high - shown.low) * factor, middle = centre ?? (shown.low + shown.high) / 2;
    view(middle - (middle - shown.low) * factor, middle - (middle - shown.low) * factor + span);
  }
  const centreOf = () => shown.selected >= 0 && shown.extents[shown.selected]
    ? positionOf(shown.extents[shown.selected][0]) : undefined;
  $("in").addEventListener("click", () => zoom(0.5, centreOf()));
  $("out").addEventListener("click", () => zoom(2, centreOf()));
  $("all").addEventListener("click", () => view(0, total));
  strips.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const at = extentAt(event);
    zoom(event.deltaY < 0 ? 0.7 : 1.4, at < 0 ? undefined : positionOf(shown.extents[at][0]));
  }, { passive: false });
  overview.addEventListener("pointerdown", (event) => {
    const box = overview.getBoundingClientRect(), half = (shown.high - shown.low) / 2;
    const at = (event.clientX - box.left - LABEL) / (box.width - LABEL) * total;
    view(at - half, at + half);
  });
  strips.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const end = { Home: 0, End: shown.extents.length - 1 }[event.key];
    if (step) choose(Math.min(Math.max(shown.selected < 0 ? firstIn(shown.low) : shown.selected + step, 0), shown.extents.length - 1));
    else if (end !== undefined) choose(end);
    else if (event.key === "+" || event.key === "=") zoom(0.5, centreOf());
    else if (event.key === "-") zoom(2, centreOf());
    else if (event.key === "0") view(0, total);
    else return;
    event.preventDefault();
  });
  function choose(index) {
    const at = positionOf(shown.extents[index][0]);
    if (at < shown.low || at >= shown.high) {
      const half = (shown.high - shown.low) / 2;
      view(at - half, at + half);
    }
    select(index);
  }

  // Figures
  function figures(fragments) {
    const m = shown.moment, reserved = last(model.reserved, m)[1];
    const liveNow = model.events ? live[m] : live[0], usedNow = model.events ? used[m] : used[0];
    const free = reserved - usedNow, sample = last(model.samples, m);
    const list = [["live", size(liveNow)], ["used", size(usedNow)], ["reserved", size(reserved)], ["free", size(free)],
                  ["largest free block", size(sample[1])], ["pending", size(sample[2])],
                  ["in pieces that are too small", size(fragments)]];
    if (!sample[2]) list.splice(5, 1);
    $("figures").replaceChildren(...list.map(([label, text]) => {
      const box = document.createElement("div"), term = document.createElement("dt"), value = document.createElement("dd");
      term.textContent = label;
      value.textContent = text;
      box.append(term, value);
      return box;
    }));
    Object.assign(document.documentElement.dataset, { moment: m, live: liveNow, used: usedNow, reserved, fragments });
    const whole = model.page ? "pages that a block shares" : `pieces smaller than ${size(model.largest)}, the largest request`;
    $("remark").textContent = `${size(fragments)} of the free bytes (${share(fragments, free)}) are in ${whole}.`
      + (model.failure && m === model.events ? " The dashed line marks the largest free piece when the request failed." : "");
  }

  // Time
  const isFilm = model.events > 0;
  function eventText(m) {
    if (m === 0) return "before the first event";
    const born = bornAt[m], died = diedAt[m];
    if (born !== GAP) return `${rowText(m).trim()} alloc ${size(blocks.requested[born])}, ${model.streams[blocks.stream[born]]}`;
    if (died !== GAP) return `${rowText(m).trim()} free ${size(blocks.requested[died])}, ${model.streams[blocks.stream[died]]}`;
    return `${rowText(m).trim()} nothing in the pool changed`;
  }
  function show(m) {
    shown.moment = Math.min(Math.max(Math.round(m) || 0, 0), model.events);
    const before = parts.length ? parts.map((part) => part.address).join() : null, isAll = shown.low === 0 && shown.high === total;
    place();
    if (isAll || before !== parts.map((part) => part.address).join()) { shown.low = 0; shown.high = total; }
    shown.extents = divide(shown.moment);
    shown.selected = -1;
    const fragments = markFragments(shown.extents);
    layOut();
    figures(fragments);
    draw();
    if (!isFilm) return;
    $("slider").value = $("moment").value = shown.moment;
    $("slider").setAttribute("aria-valuetext", `event ${shown.moment}: ${eventText(shown.moment)}, ${size(live[shown.moment])} live`);
    $("event").textContent = eventText(shown.moment);
    charts();
  }
  let wanted = null;
  function later(m) {                           // once a frame, however fast the slider moves
    if (wanted === null) requestAnimationFrame(() => { const at = wanted; wanted = null; show(at); });
    wanted = m;
  }

  // Charts
  const CHART = { left: 78, right: 14, top: 26, bottom: 24 };
  let background = {};
  function axes(canvas, most) {
    const [c, css, height] = fit(canvas, 170);
    const w = css - CHART.left - CHART.right, h = height - CHART.top - CHART.bottom;
    const x = (m) => CHART.left + m / model.events * w, y = (bytes) => CHART.top + h - bytes / most * h;
    c.fillStyle = "#fff";
    c.fillRect(0, 0, css, height);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (let at = 0, step = nice(most, 1024) ; at <= most; at += step) {
      c.fillStyle = "#e3e5e8";
      c.fillRect(CHART.left, Math.round(y(at)), w, 1);
      c.fillStyle = "#5f6368";
      c.fillText(size(at), CHART.left - 8, y(at));
    }
    c.textAlign = "center";
    const stepM = nice(model.events, 10);
    for (let at = 0; at <= model.events; at += stepM) c.fillText(grouped(at), x(at), height - 10);
    return { c, w, h, x, y };
  }
  function nice(most, base) {                   // a step that gives four or five lines
    let unit = 1;
    while (unit * base <= most / 2) unit *= base;
    const steps = base === 10 ? [0.2, 0.5, 1, 2, 5] : [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512];
    return (steps.find((step) => step * unit * 5.5 >= most) || 1024) * unit || 1;
  }
  /* The highest and lowest of a series in each column, as a line. */
  function line(g, series, colour, width, fill) {
    const c = g.c, columns = Math.max(Math.floor(g.w), 1);
    c.beginPath();
    for (let column = 0; column <= columns; column++) {
      const from = Math.floor(column / (columns + 1) * (model.events + 1));
      const to = Math.max(Math.floor((column + 1) / (columns + 1) * (model.events + 1)), from + 1);
      let low = Infinity, high = 0;
      for (let m = from; m < to; m++) { low = Math.min(low, series[m]); high = Math.max(high, series[m]); }
      const x = CHART.left + column;
      if (column === 0) c.moveTo(x, g.y(high));
      c.lineTo(x, g.y(high));
      if (!fill && high !== low) { c.lineTo(x, g.y(low)); c.moveTo(x, g.y(high)); }
    }
    if (fill) {
      c.lineTo(CHART.left + columns, g.y(0));
      c.lineTo(CHART.left, g.y(0));
      c.fillStyle = colour;
      c.fill();
      return;
    }
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.stroke();
  }
  function steps(g, pairs, key, colour, width, dash) {
    const c = g.c;
    c.beginPath();
    c.setLineDash(dash);
    pairs.forEach((pair, at) => {
      if (at === 0) c.moveTo(g.x(pair[0]), g.y(pair[key])); else c.lineTo(g.x(pair[0]), g.y(pairs[at - 1][key]));
      c.lineTo(g.x(pair[0]), g.y(pair[key]));
    });
    c.lineTo(g.x(model.events), g.y(pairs[pairs.length - 1][key]));
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.stroke();
    c.setLineDash([]);
  }
  function key(c, entries) {
    c.textAlign = "left";
    c.font = "12px system-ui, sans-serif";
    let x = CHART.left;
    for (const [label, colour, width, dash] of entries) {
      const text = c.measureText(label).width;
      c.strokeStyle = colour; c.lineWidth = width; c.setLineDash(dash || []);
      c.beginPath(); c.moveTo(x, 9); c.lineTo(x + 22, 9); c.stroke();
      c.setLineDash([]);
      c.fillStyle = "#1a1a1a";
      c.fillText(label, x + 28, 9);
      x += text + 48;
    }
  }
  let freeSeries = null;
  function drawCharts() {
    const most = Math.max(...model.reserved.map((pair) => pair[1]), model.peak) * 1.06 || 1;
    let g = axes($("bytes"), most);
    line(g, used, "#f3c46a", 1, true);
    line(g, live, "#0072b2", 1, true);
    steps(g, model.reserved, 1, "#1a1a1a", 1.6, []);
    key(g.c, [["reserved", "#1a1a1a", 1.6], ["used", "#f3c46a", 7], ["live", "#0072b2", 7]]);
    let at = 0;
    freeSeries = freeSeries || Float64Array.from(used, (bytes, m) => {
      while (at + 1 < model.reserved.length && model.reserved[at + 1][0] <= m) at++;
      return Math.max(model.reserved[at][1] - bytes, 0);
    });
    const highest = Math.max(...model.samples.map((each) => each[1]));
    g = axes($("largest"), Math.max(highest, freeSeries.reduce((high, each, m) => m <= model.events ? Math.max(high, each) : high, 0)) * 1.06 || 1);
    line(g, freeSeries, "#dfe3e8", 1, true);
    steps(g, model.samples, 1, "#d55e00", 1.6, []);
    key(g.c, [["free", "#dfe3e8", 7], ["largest free block", "#d55e00", 1.6]]);
    for (const id of ["bytes", "largest"]) {
      const copy = document.createElement("canvas");
      copy.width = $(id).width;
      copy.height = $(id).height;
      copy.getContext("2d").drawImage($(id), 0, 0);
      background[id] = copy;
    }
  }
  function charts() {
    for (const id of ["bytes", "largest"]) {
      const canvas = $(id), c = canvas.getContext("2d");
      if (!background[id] || background[id].width !== Math.round(canvas.clientWidth * ratio)) drawCharts();
      c.setTransform(1, 0, 0, 1, 0, 0);
      c.drawImage(background[id], 0, 0);
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      const w = canvas.clientWidth - CHART.left - CHART.right, x = CHART.left + shown.moment / model.events * w;
      c.fillStyle = "#1a1a1a";
      c.fillRect(x - 0.75, CHART.top - 4, 1.5, 170 - CHART.top - CHART.bottom + 8);
      c.beginPath(); c.moveTo(x - 5, CHART.top - 10); c.lineTo(x + 5, CHART.top - 10); c.lineTo(x, CHART.top - 2); c.fill();
      if (model.failure) failureMark(c, w);
    }
  }
  function failureMark(c, w) {
    const x = CHART.left + w;
    c.fillStyle = "#d55e00";
    c.fillRect(x - 1, CHART.top, 2, 170 - CHART.top - CHART.bottom);
    c.textAlign = "right";
    c.font = "bold 12px system-ui, sans-serif";
    c.strokeStyle = "#fff";
    c.lineWidth = 4;
    c.strokeText(`out of memory: ${size(model.failure.requested)}`, x - 8, CHART.top + 12);
    c.fillText(`out of memory: ${size(model.failure.requested)}`, x - 8, CHART.top + 12);
  }
  for (const id of ["bytes", "largest"]) {
    const jump = (event) => {
      const box = $(id).getBoundingClientRect();
      later((event.clientX - box.left - CHART.left) / (box.width - CHART.left - CHART.right) * model.events);
    };
    $(id).addEventListener("pointerdown", (event) => { $(id).setPointerCapture(event.pointerId); jump(event); });
    $(id).addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
  }

  // Controls
  const LABELS = { tier: "tier", state: "state", stream: "stream", age: "age" };
  $("modes").append(...Object.keys(model.modes).map((name) => {
    const label = document.createElement("label"), input = document.createElement("input");
    input.type = "radio";
    input.name = "mode";
    input.value = name;
    input.checked = name === shown.mode;
    input.addEventListener("change", () => { shown.mode = name; draw(); document.documentElement.dataset.mode = name; });
    label.append(input, LABELS[name]);
    return label;
  }));
  if (isFilm) {
    $("time").hidden = $("charts").hidden = false;
    $("slider").max = $("moment").max = model.events;
    $("slider").addEventListener("input", () => later(Number($("slider").value)));
    $("moment").addEventListener("change", () => show(Number($("moment").value)));
    $("back").addEventListener("click", () => show(shown.moment - 1));
    $("on").addEventListener("click", () => show(shown.moment + 1));
    $("peak").addEventListener("click", () => {
      let best = 0;
      for (let m = 1; m <= model.events; m++) if (live[m] > live[best]) best = m;
      show(best);
    });
    document.addEventListener("keydown", (event) => {
      if (event.target.tagName === "INPUT" && event.target.type === "number") return;
      if (event.key === ",") show(shown.moment - 1);
      if (event.key === ".") show(shown.moment + 1);
    });
  }
  /* #event=120&by=age&at=0x7f00 opens the page at a moment, with a colouring and a block chosen. */
  function follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const by = asked.get("by");
    if (Object.hasOwn(model.modes, by)) {
      shown.mode = by;
      for (const input of document.querySelectorAll("#modes input")) input.checked = input.value === by;
    }
    show(asked.has("event") ? Number(asked.get("event")) : shown.moment);
    const at = Number(asked.get("at") || NaN);
    if (at >= 0 && shown.extents.length) choose(firstIn(positionOf(at)));
  }
  window.addEventListener("hashchange", follow);
  let resizing = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => { background = {}; draw(); if (isFilm) charts(); });
  });
  document.documentElement.dataset.mode = shown.mode;
  follow();
  document.documentElement.dataset.ms = String(Math.round(performance.now() - started));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
