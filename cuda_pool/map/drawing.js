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
