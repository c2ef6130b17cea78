// The timeline of owners: drag, or move the slider with the keyboard, and read who held the partition at that time.
import { timeText } from "./decorate.js";

const region = () => document.querySelector("[data-timeline]");
const slider = () => document.getElementById("timeline-at");
let held = false;

function show() {
  const svg = region()?.querySelector("svg");
  if (!svg || !slider()) return;
  const [from, to, left, width] = ["from", "to", "left", "width"].map((name) => Number(svg.dataset[name]));
  const share = Number(slider().value) / 1000;
  const at = from + (to - from) * share;
  const line = svg.querySelector("[data-line]");
  line.setAttribute("x1", left + width * share);
  line.setAttribute("x2", left + width * share);
  const rows = [...document.querySelectorAll("[data-tenure]")];
  const row = rows.find(({ dataset }) => Number(dataset.from) <= at && (dataset.to === "" || at < Number(dataset.to)));
  const time = timeText(new Date(at * 1000));
  const who = row ? `${row.querySelector("[data-owner]").textContent}, token ${row.firstElementChild.textContent}` : "no node held it";
  document.getElementById("timeline-text").textContent = `${time}: ${who}`;
  for (const tick of svg.querySelectorAll("[data-at]")) tick.textContent = timeText(new Date(tick.dataset.at * 1000)).slice(11, 16);
}

function drag(event) {
  const svg = event.target.closest?.("[data-timeline] svg");
  if (!svg || (event.type === "pointermove" && !held)) return;
  held = true;
  const frame = svg.getBoundingClientRect();
  const x = ((event.clientX - frame.left) / frame.width) * 1000;
  slider().value = Math.round(((x - Number(svg.dataset.left)) / Number(svg.dataset.width)) * 1000);
  show();
}

export function start() {
  document.addEventListener("input", (event) => event.target === slider() && show());
  document.addEventListener("pointerdown", drag);
  document.addEventListener("pointermove", drag);
  document.addEventListener("pointerup", () => (held = false));
  document.addEventListener("holdfast:zone", show);
  document.addEventListener("holdfast:region", (event) => event.detail === "timeline" && show());
  show();
}
