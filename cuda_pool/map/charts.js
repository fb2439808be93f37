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
  const steps = base === 10 ? [0.2, 0.5, 1, 2, 5] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
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
/* A value at every moment, of those at which it changed. */
function spread(length, moment, value) {
  const series = new Float64Array(model.events + 1);
  for (let m = 0, at = -1; m <= model.events; m++) {
    while (at + 1 < length && moment(at + 1) <= m) at++;
    series[m] = at < 0 ? 0 : value(at);
  }
  return series;
}
const highestOf = (series) => series.reduce((high, each) => Math.max(high, each), 0);
let freeSeries = null, largestSeries = null;
function drawCharts() {
  const most = model.peak * 1.06 || 1;
  let g = axes($("bytes"), most);
  line(g, used, "#f3c46a", 1, true);
  line(g, live, "#0072b2", 1, true);
  steps(g, model.reserved, 1, "#1a1a1a", 1.6, []);
  key(g.c, [["reserved", "#1a1a1a", 1.6], ["used", "#f3c46a", 7], ["live", "#0072b2", 7]]);
  freeSeries = freeSeries || spread(model.reserved.length, (at) => model.reserved[at][0], (at) => model.reserved[at][1])
    .map((reserved, m) => Math.max(reserved - used[m], 0));
  largestSeries = largestSeries || spread(looks.moment.length, (at) => looks.moment[at], (at) => looks.largest[at]);
  g = axes($("largest"), Math.max(highestOf(freeSeries), highestOf(largestSeries)) * 1.06 || 1);
  line(g, freeSeries, "#dfe3e8", 1, true);
  line(g, largestSeries, "#d55e00", 1.6, false);
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
    c.fill(new Path2D(`M${x - 5} ${CHART.top - 10}H${x + 5}L${x} ${CHART.top - 2}Z`));
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
