// Starts a page: what refreshes it, the header's switches, the keyboard, and what only some pages have.
import { decorate, zoneButton } from "./decorate.js";
import { pauseButton, startLive, togglePause } from "./live.js";
import { startActions } from "./actions.js";

const byId = (id) => document.getElementById(id);

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("holdfast.theme", root.dataset.theme);
  document.dispatchEvent(new Event("holdfast:theme"));
}

const PAGES = { o: "/", n: "/nodes", r: "/runs", l: "/letters", a: "/audit" };
let going = false;

function onKey(event) {
  const typing = event.target.matches("input, textarea, select") || document.querySelector("dialog[open]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (going && PAGES[event.key]) location.assign(document.body.dataset.base + PAGES[event.key]);
  going = event.key === "g";
  const filter = document.querySelector("[data-filter]");
  if (event.key === "p") togglePause();
  else if (event.key === "u") zoneButton().click();
  else if (event.key === "d") switchTheme();
  else if (event.key === "?") byId("keys").showModal();
  else if (event.key === "/" && filter) filter.focus();
  else return;
  event.preventDefault();
}

decorate(document);
byId("theme")?.addEventListener("click", switchTheme);
byId("help")?.addEventListener("click", () => byId("keys").showModal());
document.addEventListener("keydown", onKey);
startActions();
if (pauseButton()) startLive();
// Only pages that have a map, a timeline, an editor or a chart load what it needs, once the page has been painted.
const PARTS = { map: "heatmap", timeline: "timeline", configuration: "configuration", chart: "chart" };
function startParts() {
  for (const [part, name] of Object.entries(PARTS)) {
    if (document.querySelector(`[data-${part}]`)) import(`./${name}.js`).then((module) => module.start());
  }
}
requestAnimationFrame(() => setTimeout(startParts));
