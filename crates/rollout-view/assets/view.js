// What pages do beside showing: search, keys, the theme, and changes of a running job. Without it, all pages work.
"use strict";

const one = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

// The theme: that of the system, or the one that was chosen.
const theme = {
  read() { try { return localStorage.getItem("rollout-theme"); } catch { return null; } },
  apply(name) { if (name) document.documentElement.dataset.theme = name; },
  toggle() {
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (isDark ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    theme.apply(next);
    try { localStorage.setItem("rollout-theme", next); } catch { /* Private windows may have no storage. */ }
  },
};
theme.apply(theme.read());

// The parts of the page as the server sent them, to see which of them change.
const isServed = "served" in document.body.dataset;
const seen = new Map(all("[data-live]").map((part) => [part.dataset.live, isServed ? part.innerHTML : ""]));

// Search and chips over the rows of a table. Both are kept in the address, so that a link has them too.
const filters = all("[data-filters]").map((bar) => ({
  bar, table: bar.dataset.filters, search: one("[data-search]", bar), chips: all("[data-chip]", bar),
}));
function filter() {
  for (const { table, search, chips } of filters) {
    const words = (search ? search.value : "").toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.chip);
    for (const row of all(`#${table} tbody tr`)) {
      const text = row.textContent.toLowerCase();
      const has = (row.dataset.chips || "").split(" ");
      row.hidden = !(words.every((word) => text.includes(word)) && (!chosen.length || chosen.some((chip) => has.includes(chip))));
    }
  }
}
function remember() {
  const state = new URLSearchParams();
  for (const { table, search, chips } of filters) {
    if (search && search.value) state.set(`${table}.text`, search.value);
    for (const chip of chips) if (chip.getAttribute("aria-pressed") === "true") state.append(`${table}.status`, chip.dataset.chip);
  }
  history.replaceState(null, "", `#${state}`);
}
function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const { bar, table, search, chips } of filters) {
    bar.hidden = false;
    if (search) search.value = state.get(`${table}.text`) || "";
    const chosen = state.getAll(`${table}.status`);
    for (const chip of chips) chip.setAttribute("aria-pressed", String(chosen.includes(chip.dataset.chip)));
    if (search) search.addEventListener("input", () => { filter(); remember(); });
    for (const chip of chips) {
      chip.addEventListener("click", () => {
        chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
        filter();
        remember();
      });
    }
  }
  filter();
}
recall();

// Folds.
function unfold() {
  const folds = all(".conversation details");
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
  const button = one("[data-unfold]");
  if (button) button.textContent = open ? "Fold all" : "Unfold all";
}
function showUnfold() {
  const button = one("[data-unfold]");
  if (!button || !button.hidden) return;
  button.hidden = false;
  button.addEventListener("click", unfold);
}
showUnfold();

// Changes: the server announces them, and the parts of the page that differ are replaced.
function replace(next) {
  const place = chosen && { at: rows().indexOf(chosen), href: hrefOf(chosen) };
  for (const part of all("[data-live]")) {
    const other = one(`[data-live="${CSS.escape(part.dataset.live)}"]`, next);
    if (!other || other.innerHTML === seen.get(part.dataset.live)) continue;
    seen.set(part.dataset.live, other.innerHTML);
    const open = new Map(all("details[id]", part).map((fold) => [fold.id, fold.open]));
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const logs = new Map(all("pre.log", part).map((log, at) => [at, log.scrollTop + log.clientHeight >= log.scrollHeight - 4]));
    const top = part.scrollTop;
    part.replaceChildren(...document.importNode(other, true).childNodes);
    for (const fold of all("details[id]", part)) if (open.has(fold.id)) fold.open = open.get(fold.id);
    all("pre.log", part).forEach((log, at) => { if (logs.get(at) !== false) log.scrollTop = log.scrollHeight; });
    if (focused) { const link = all("a", part).find((a) => a.getAttribute("href") === focused); if (link) link.focus({ preventScroll: true }); }
    part.scrollTop = top;
  }
  filter();
  showUnfold();
  if (!place || chosen.isConnected) return;
  const list = rows();
  chosen = list.find((row) => hrefOf(row) === place.href) || list[Math.min(place.at, list.length - 1)] || null;
  if (chosen) chosen.classList.add("chosen");
}
// A page that is hidden, or of a job that has ended, holds no connection: browsers have only six for each server.
const live = one("#live");
let source = null, isLoading = false, isStale = false;
async function reload() {
  if (document.hidden) return;
  if (isLoading) { isStale = true; return; }
  isLoading = true;
  try {
    const response = await fetch(location.pathname + location.search);
    if (response.ok) {
      const next = new DOMParser().parseFromString(await response.text(), "text/html");
      replace(next);
      const { events } = next.body.dataset;
      if (events) document.body.dataset.events = events; else delete document.body.dataset.events;
      follow();
    }
  } catch { /* The server has stopped; the page stays as it is. */ }
  // At most one request a second, however fast trials end.
  setTimeout(() => { isLoading = false; if (isStale) { isStale = false; reload(); } }, 1000);
}
function follow() {
  const { events } = document.body.dataset;
  if (source && (document.hidden || !events)) { source.close(); source = null; live.hidden = true; }
  if (source || document.hidden || !events) return;
  source = new EventSource(events);
  source.addEventListener("connected", () => { live.hidden = false; reload(); });
  source.addEventListener("changed", reload);
  source.onerror = () => { live.hidden = true; };
}
if (isServed) {
  follow();
  document.addEventListener("visibilitychange", () => { follow(); if (!document.hidden && !source) reload(); });
}
for (const log of all("pre.log:not(.whole)")) log.scrollTop = log.scrollHeight;

// Keys.
let chosen = null;
const rows = () => all("[data-row]").filter((row) => row.offsetParent !== null);
const linkOf = (row) => row.matches("a") ? row : one("a.open, a", row);
const hrefOf = (row) => { const link = linkOf(row); return link && link.getAttribute("href"); };
function choose(step) {
  const list = rows();
  if (!list.length) return;
  const at = list.indexOf(chosen);
  const next = at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(Math.max(at + step, 0), list.length - 1);
  if (chosen) chosen.classList.remove("chosen");
  chosen = list[next];
  chosen.classList.add("chosen");
  const link = linkOf(chosen);
  if (link) link.focus();
  chosen.scrollIntoView({ block: "nearest" });
}
function move(cell, key) {
  const row = cell.closest("tr");
  const cells = all("a.cell", row);
  const at = cells.indexOf(cell);
  let target = null;
  if (key === "ArrowLeft") target = cells[at - 1];
  if (key === "ArrowRight") target = cells[at + 1];
  if (key === "ArrowUp" || key === "ArrowDown") {
    let next = row;
    do { next = key === "ArrowUp" ? next.previousElementSibling : next.nextElementSibling; } while (next && next.hidden);
    if (next) { const others = all("a.cell", next); target = others[Math.min(at, others.length - 1)]; }
  }
  if (target) target.focus();
  return Boolean(target);
}
function note() {
  const fold = one("#add-note");
  if (fold) { fold.open = true; one("textarea", fold).focus(); }
}
const go = (link) => { if (link) link.click(); };
const keys = one("#keys");
document.addEventListener("keydown", (event) => {
  const inField = event.target.matches("input, select, textarea");
  if (inField && event.key === "Escape") { event.target.blur(); return; }
  if (inField || event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (event.key.startsWith("Arrow")) {
    if (event.target.matches("a.cell") && move(event.target, event.key)) event.preventDefault();
    return;
  }
  const actions = {
    j: () => choose(1), k: () => choose(-1), t: theme.toggle, e: unfold, "?": () => keys.showModal(),
    "/": () => { const search = one("input[type=search]:not([hidden])"); if (search) search.focus(); },
    n: () => go(one('[data-key="n"]') || one('[rel="next"]')), p: () => go(one('[data-key="p"]') || one('[rel="prev"]')),
    f: () => go(one('[data-key="f"]')), c: note, u: () => go(one('[data-key="u"]') || one(".brand")),
  };
  const action = actions[event.key];
  if (action) { event.preventDefault(); action(); }
});
for (const [id, action] of [["#theme", theme.toggle], ["#help", () => keys.showModal()]]) {
  const button = one(id);
  button.hidden = false;
  button.addEventListener("click", action);
}
