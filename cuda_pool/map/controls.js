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
