// What a block is, in words.
function describe(extent) {
  const block = extent[3];
  const lineOf = (label, text) => `${label.padEnd(10)} ${text}`;
  const where = [lineOf("address", `0x${extent[0].toString(16)}`),
                 lineOf("offset", `+${exact(positionOf(extent[0]))}`)];
  if (block === GAP || extent[2] !== LIVE) {
    const name = model.pieces[extent.fragment && extent[2] === FREE ? "fragment" : NAMES[extent[2]]].label;
    const owner = block !== GAP && blocks.stream[block] !== NO_STREAM && extent[2] === PENDING
      ? [lineOf("for", model.streams[blocks.stream[block]])] : [];
    return [`${name}: ${exact(extent[1])}`, ...owner, ...where];
  }
  const text = [`${size(blocks.requested[block])} live`, lineOf("requested", exact(blocks.requested[block])),
                lineOf("occupies", exact(blocks.size[block])), lineOf("tier", model.tiers[blocks.tier[block]])];
  if (blocks.stream[block] !== NO_STREAM) text.push(lineOf("stream", model.streams[blocks.stream[block]]));
  if (!model.isWhole) text.push(lineOf("block id", String(blocks.ident[block])));
  if (model.bornKnown) {
    const born = bornOf(block);
    text.push(lineOf("age", born ? `${counted(now() - born, "event")}, from event ${grouped(born)} on${rowText(born)}`
      : "live before the first event"));
  }
  const died = blocks.died[block];
  if (!model.isWhole && died <= model.events) text.push(lineOf("freed at", `event ${grouped(died)}`));
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
  const next = shown.selected < 0 ? firstIn(shown.low) : shown.selected + step;
  if (step) choose(Math.min(Math.max(next, 0), shown.extents.length - 1));
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
  const m = shown.moment, reserved = reservedAt(m);
  const liveNow = model.events ? live[m] : live[0], usedNow = model.events ? used[m] : used[0];
  const free = reserved - usedNow, look = lookAt(m);
  const list = [["live", size(liveNow)], ["used", size(usedNow)], ["reserved", size(reserved)], ["free", size(free)],
                ["largest free block", size(look.largest)], ["pending", size(look.pending)],
                ["in pieces that are too small", size(fragments)]];
  if (!look.pending) list.splice(5, 1);
  $("figures").replaceChildren(...list.map(([label, text]) => {
    const [box, term, value] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = label;
    value.textContent = text;
    box.append(term, value);
    return box;
  }));
  Object.assign(document.documentElement.dataset,
    { moment: m, live: liveNow, used: usedNow, reserved, fragments, largest: look.largest, pending: look.pending });
  const where = model.page ? "pages that a block shares"
    : `pieces smaller than ${size(model.largest)}, the largest request`;
  const dashed = model.failure && m === model.events
    ? " The dashed line marks the largest free piece when the request failed." : "";
  const part = share(fragments, free);
  $("remark").textContent = `${size(fragments)} of the free bytes (${part}) are in ${where}.${dashed}`;
}

// Time
const isFilm = model.events > 0;
function eventText(m) {
  if (m === 0) return "before the first event";
  const born = bornAt[m], died = diedAt[m];
  const what = (block) => `${size(blocks.requested[block])}, ${model.streams[blocks.stream[block]]}`;
  if (born !== GAP) return `${rowText(m).trim()} alloc ${what(born)}`;
  if (died !== GAP) return `${rowText(m).trim()} free ${what(died)}`;
  return `${rowText(m).trim()} nothing in the pool changed`;
}
function show(m) {
  shown.moment = Math.min(Math.max(Math.round(m) || 0, 0), model.events);
  const addresses = () => parts.map((part) => part.address).join();
  const before = addresses(), isAll = shown.low === 0 && shown.high === total;
  place();
  if (isAll || before !== addresses()) { shown.low = 0; shown.high = total; }
  shown.extents = divide(shown.moment);
  shown.selected = -1;
  const fragments = markFragments(shown.extents);
  layOut();
  figures(fragments);
  draw();
  if (!isFilm) return;
  $("slider").value = $("moment").value = shown.moment;
  $("slider").setAttribute("aria-valuetext",
    `event ${shown.moment}: ${eventText(shown.moment)}, ${size(live[shown.moment])} live`);
  $("event").textContent = eventText(shown.moment);
  charts();
}
let wanted = null;
function later(m) {                           // once a frame, however fast the slider moves
  if (wanted === null) requestAnimationFrame(() => { const at = wanted; wanted = null; show(at); });
  wanted = m;
}
