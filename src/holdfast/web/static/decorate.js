// Fills what only the browser knows: times in the viewer's zone, ages, and the rates seen since the page was opened.
const SAMPLES = 60;
const MOST_SAMPLES = 900;
const series = new Map();
let skew = 0; // the server's clock minus ours, in milliseconds
let local = localStorage.getItem("holdfast.zone") === "local";

export const zoneButton = () => document.getElementById("zone");
export const samplesOf = (name) => series.get(name) ?? [];

export function setClock(at) {
  const time = Date.parse(at);
  if (!Number.isNaN(time)) skew = time - Date.now();
}

const two = (number) => String(number).padStart(2, "0");

export function timeText(date) {
  if (!local) return date.toISOString().slice(0, 19).replace("T", " ");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function ageText(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showTime(element) {
  const date = new Date(element.dateTime);
  if (Number.isNaN(date.getTime())) return;
  const absolute = timeText(date);
  element.title = `${absolute} ${local ? "local time" : "UTC"}`;
  setText(element, "ago" in element.dataset ? `${ageText((Date.now() + skew - date) / 1000)} ago` : absolute);
}

function drawSpark(svg) {
  const shown = samplesOf(svg.dataset.series).slice(-SAMPLES);
  const most = Math.max(1e-9, ...shown.map(([, value]) => value));
  const points = shown.map(([, value], at) => `${((at * 72) / (SAMPLES - 1)).toFixed(1)},${(17 - (15 * value) / most).toFixed(1)}`);
  svg.firstElementChild.setAttribute("points", points.join(" "));
}

// Notes the values that are shown, with every tick: also a rate that stays the same is drawn.
export function sample() {
  const now = Date.now() / 1000;
  for (const svg of document.querySelectorAll("svg[data-series]")) {
    const samples = samplesOf(svg.dataset.series);
    series.set(svg.dataset.series, samples);
    if (svg.dataset.value !== "") samples.push([now, Number(svg.dataset.value)]);
    if (samples.length > MOST_SAMPLES) samples.shift();
    drawSpark(svg);
  }
  document.dispatchEvent(new Event("holdfast:sample"));
}

// Buttons come disabled: one that is pressed before there is a listener would do nothing.
export function decorate(root) {
  for (const button of root.querySelectorAll("[data-action]")) button.disabled = document.body.classList.contains("stale");
  for (const element of root.querySelectorAll("time[datetime]")) showTime(element);
  for (const svg of root.querySelectorAll("svg[data-series]")) drawSpark(svg);
}

function showZone() {
  const button = zoneButton();
  if (!button) return;
  button.textContent = local ? "local" : "UTC";
  button.setAttribute("aria-label", local ? "Show times in UTC" : "Show times in local time");
}

zoneButton()?.addEventListener("click", () => {
  local = !local;
  localStorage.setItem("holdfast.zone", local ? "local" : "UTC");
  showZone();
  decorate(document);
  document.dispatchEvent(new Event("holdfast:zone"));
});
showZone();
setInterval(() => document.querySelectorAll("time[data-ago]").forEach(showTime), 1000);
