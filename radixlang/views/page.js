const root = document.body, one = id => document.getElementById(id);
const all = selector => [...document.querySelectorAll(selector)];

// ---- folds, theme, template text

for (const button of all("[data-open]"))
  button.onclick = () => all("details.lane").forEach(lane => { lane.open = !!button.dataset.open; });
one("theme").onclick = () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
};
one("markup").onchange = event => root.classList.toggle("markup", event.target.checked);
const reveal = node => {
  for (let up = node.parentElement; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
};

// ---- find: every place of the words is marked, Enter goes to the next

const highlights = "highlights" in CSS ? CSS.highlights : null;
let blocks = null, places = [], at = -1;
const indexed = () => all(".words, .option .name, .failure, .typed, .head b").map(element => {
  const nodes = [], walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let text = "";
  for (let node; (node = walker.nextNode());) {
    if (node.parentElement.tagName === "SUMMARY") continue;
    nodes.push([text.length, node]);
    text += node.data;
  }
  return { element, nodes, text };
});
const placeOf = (block, offset) => {
  let low = 0, high = block.nodes.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (block.nodes[middle][0] <= offset) low = middle; else high = middle - 1;
  }
  return [block.nodes[low][1], offset - block.nodes[low][0]];
};
const rangeOf = (block, from, to) => {
  const range = new Range(), [last, left] = placeOf(block, to - 1);
  range.setStart(...placeOf(block, from));
  range.setEnd(last, left + 1);
  return range;
};
const search = wanted => {
  places = []; at = -1;
  if (wanted.length > 1) {
    blocks ??= indexed();
    const escaped = wanted.replace(/[\\^.*+?()[\]{}|$/]/g, "\\$&").replace(/\s+/g, "\\s+");
    const pattern = new RegExp(escaped, "giu"), shown = root.classList.contains("markup");
    for (const block of blocks) {
      if (!shown && block.element.classList.contains("raw")) continue;
      for (const found of block.text.matchAll(pattern))
        places.push(rangeOf(block, found.index, found.index + found[0].length));
    }
  }
  mark(wanted);
};
const mark = wanted => {
  all(".lane.hit").forEach(lane => lane.classList.remove("hit"));
  for (const place of places)
    for (let up = place.startContainer.parentElement; up; up = up.parentElement)
      if (up.classList.contains("lane")) { if (up.classList.contains("hit")) break; up.classList.add("hit"); }
  if (highlights) {
    const found = new Highlight();
    places.forEach(place => found.add(place));
    highlights.set("found", found);
    highlights.delete("now");
  }
  one("count").value = wanted.length < 2 ? "" : places.length.toLocaleString("en") + " found";
};
const step = by => {
  if (!places.length) return;
  at = (at + by + places.length) % places.length;
  const place = places[at];
  reveal(place.startContainer);
  place.startContainer.parentElement.scrollIntoView({ block: "center" });
  if (highlights) {
    const now = new Highlight(place);
    now.priority = 1;
    highlights.set("now", now);
  }
  one("count").value = at + 1 + " of " + places.length.toLocaleString("en");
};
let typing = 0;
one("find").oninput = event => { clearTimeout(typing); typing = setTimeout(search, 80, event.target.value.trim()); };
one("find").onkeydown = event => {
  if (event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); }
};
addEventListener("keydown", event => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && event.target.tagName !== "INPUT") {
    event.preventDefault();
    one("find").focus();
  }
});

// ---- the timeline leads to values; arrows go along it

const bars = all(".bar");
const goTo = id => {
  const value = one(id);
  if (!value) return;
  reveal(value);
  all(".seen").forEach(each => each.classList.remove("seen"));
  value.classList.add("seen");
  value.tabIndex = -1;
  value.focus({ preventScroll: true });
  value.scrollIntoView({ block: "center" });
};
for (const button of all("[data-to]")) button.onclick = () => goTo(button.dataset.to);
if (bars.length) bars[0].tabIndex = 0;
document.querySelector(".rows")?.addEventListener("keydown", event => {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const next = by && bars[bars.indexOf(event.target) + by];
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

// ---- probabilities of tokens: on hover and tap, and by arrows in a text that has the focus

const tip = one("tip");
const show = token => {
  all("[data-p].now").forEach(each => each.classList.remove("now"));
  tip.style.display = token ? "block" : "none";
  if (!token) return;
  token.classList.add("now");
  tip.textContent = token.dataset.p;
  const box = token.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (box.bottom + tip.offsetHeight + 8 < innerHeight
    ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + "px";
};
for (const kind of ["mouseover", "click"]) addEventListener(kind, event => show(event.target.closest?.("[data-p]")));
for (const text of all(".made:has([data-p])")) {
  text.tabIndex = 0;
  text.onblur = () => show(null);
  text.onkeydown = event => {
    const tokens = [...text.querySelectorAll("[data-p]")], now = tokens.findIndex(each => each.classList.contains("now"));
    if (event.key === "Escape") show(null);
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    const next = now < 0 ? 0 : now + (event.key === "ArrowRight" ? 1 : -1);
    show(tokens[Math.max(0, Math.min(tokens.length - 1, next))]);
  };
}

// ---- a page of a run that goes on reads itself again, and keeps what was opened and typed

if (Number(root.dataset.live)) {
  const kept = JSON.parse(sessionStorage.getItem("rl-open") || "{}");
  for (const [id, open] of Object.entries(kept)) if (one(id)) one(id).open = open;
  addEventListener("toggle", event => {
    if (!event.target.id) return;
    kept[event.target.id] = event.target.open;
    sessionStorage.setItem("rl-open", JSON.stringify(kept));
  }, true);
  setInterval(() => { if (!one("find").value && !document.hidden) location.reload(); }, Number(root.dataset.live));
}
