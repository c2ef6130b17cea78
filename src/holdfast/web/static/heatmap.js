// The map of all partitions: one cell each, in the order of their keys. Only cells that have changed are drawn.
import { isPaused, onMessage } from "./live.js";

// The byte of a cell, as the API sends it.
const STATES = ["UNASSIGNED", "ASSIGNED", "CLOSED", "COMPLETED", "FAILED", "silent"];
const SIGNS = ["U", "A", "C", "✓", "✕", "!"];
const FAILED = 4;
const SILENT = 5;
const LARGEST = 22;
const SMALLEST = 3;

let box, canvas, pen, output;
let cells = new Uint8Array(0);
let snapshot = null;
let size = LARGEST;
let columns = 1;
let ratio = 1;
let chosen = 0;
let colours = [];
let loading = false;
let newest = 0; // the latest number that a message has named
const changed = new Set();

function readColours() {
  const probe = document.createElement("span");
  canvas.after(probe);
  colours = STATES.map((state) => {
    probe.className = `probe-${state}`;
    const style = getComputedStyle(probe);
    return [style.backgroundColor, style.color];
  });
  probe.remove();
}

function layOut() {
  ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = 160;
  size = LARGEST;
  while (size > SMALLEST && Math.ceil(cells.length / Math.max(1, Math.floor(width / size))) * size > height) size -= 1;
  columns = Math.max(1, Math.floor(width / size));
  const rows = Math.max(1, Math.ceil(cells.length / columns));
  canvas.style.height = `${Math.max(height, rows * size)}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(Math.max(height, rows * size) * ratio);
  pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  drawAll();
}

function drawCell(at) {
  const x = (at % columns) * size;
  const y = Math.floor(at / columns) * size;
  const inner = size - (size > 4 ? 1 : 0);
  const [back, front] = colours[cells[at]] ?? colours[0];
  pen.clearRect(x, y, size, size);
  pen.fillStyle = back;
  pen.fillRect(x, y, inner, inner);
  if (size >= 8 && (cells[at] === FAILED || cells[at] === SILENT)) drawSign(x, y, inner, front, cells[at]);
  if (at === chosen && document.activeElement === canvas) {
    pen.strokeStyle = getComputedStyle(canvas).outlineColor;
    pen.lineWidth = 2;
    pen.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
  }
}

function drawSign(x, y, inner, colour, state) {
  const edge = inner * 0.28;
  pen.strokeStyle = colour;
  pen.lineWidth = Math.max(1.2, inner / 9);
  pen.beginPath();
  if (state === FAILED) {
    pen.moveTo(x + edge, y + edge);
    pen.lineTo(x + inner - edge, y + inner - edge);
    pen.moveTo(x + inner - edge, y + edge);
    pen.lineTo(x + edge, y + inner - edge);
  } else {
    pen.moveTo(x + inner / 2, y + edge);
    pen.lineTo(x + inner / 2, y + inner - edge);
  }
  pen.stroke();
}

function drawAll() {
  changed.clear();
  pen.clearRect(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < cells.length; at += 1) drawCell(at);
}

function drawChanged() {
  for (const at of changed) drawCell(at);
  changed.clear();
}

// All changes of a frame are drawn at once.
function touch(at) {
  if (!changed.size) requestAnimationFrame(drawChanged);
  changed.add(at);
}

async function load() {
  if (loading) return;
  loading = true;
  try {
    const response = await fetch(box.dataset.map, { cache: "no-store" });
    if (!response.ok) return;
    const fresh = new Uint8Array(await response.arrayBuffer());
    snapshot = Number(response.headers.get("X-Holdfast-Snapshot"));
    if (fresh.length !== cells.length) {
      cells = fresh;
      layOut();
    } else {
      fresh.forEach((state, at) => state !== cells[at] && touch(at));
      cells = fresh;
    }
    tell();
    tellSilent();
  } finally {
    loading = false;
  }
  // Something has changed while the map was on its way.
  if (snapshot < newest) load();
}

// Changes follow each other; after a gap all cells are fetched.
function hear(message) {
  if (message.map !== box.dataset.pipeline || (message.run ?? "") !== box.dataset.run) return;
  newest = message.to;
  if (message.from !== snapshot) {
    // Before the first map is there, messages have nothing to continue.
    if (snapshot !== null) load();
    return;
  }
  snapshot = message.to;
  for (const [at, state] of message.changes) {
    if (at < cells.length && cells[at] !== state) {
      cells[at] = state;
      touch(at);
    }
  }
  tellSilent();
}

function tell(text = "") {
  if (!cells.length) output.textContent = "no partitions yet";
  else output.textContent = text || `${(chosen + 1).toLocaleString("en")} of ${cells.length.toLocaleString("en")}: ${SIGNS[cells[chosen]]} ${STATES[cells[chosen]]}`;
}

function tellSilent() {
  const silent = cells.reduce((number, state) => number + (state === SILENT), 0);
  box.querySelector("[data-silent]").textContent = silent ? `! ${silent.toLocaleString("en")} held by silent nodes` : "";
}

function choose(at) {
  if (at < 0 || at >= cells.length) return;
  const before = chosen;
  chosen = at;
  touch(before);
  touch(at);
  tell();
}

function nextFailed() {
  for (let step = 1; step <= cells.length; step += 1) {
    const at = (chosen + step) % cells.length;
    if (cells[at] === FAILED) return choose(at);
  }
  return tell("no partition has failed");
}

async function open() {
  const response = await fetch(`${box.dataset.cell}&index=${chosen}`, { cache: "no-store" });
  if (!response.ok) {
    tell("this partition is gone; the map is read again");
    load();
    return;
  }
  const page = new URL(box.dataset.open, location.href);
  page.searchParams.set("key", (await response.json()).cell.key);
  if (box.dataset.run) page.searchParams.set("run", box.dataset.run);
  location.assign(page);
}

const MOVES = {
  ArrowLeft: () => choose(chosen - 1),
  ArrowRight: () => choose(chosen + 1),
  ArrowUp: () => choose(chosen - columns),
  ArrowDown: () => choose(chosen + columns),
  Home: () => choose(0),
  End: () => choose(cells.length - 1),
  n: nextFailed,
  Enter: open,
};

function cellAt(event) {
  const frame = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - frame.left) / size);
  return column < columns ? Math.floor((event.clientY - frame.top) / size) * columns + column : -1;
}

function listen() {
  canvas.addEventListener("keydown", (event) => {
    if (!MOVES[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    MOVES[event.key]();
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = cellAt(event);
    if (at >= 0 && at !== chosen) choose(at);
  });
  canvas.addEventListener("click", (event) => cellAt(event) >= 0 && cellAt(event) < cells.length && open());
  for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => cells.length && touch(chosen));
  new ResizeObserver(() => cells.length && layOut()).observe(box);
  document.addEventListener("holdfast:theme", recolour);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  // Also without changes over the socket the map follows the sums.
  document.addEventListener("holdfast:region", (event) => event.detail === "counts" && !isPaused() && load());
}

function recolour() {
  readColours();
  if (cells.length) drawAll();
}

export function start() {
  box = document.querySelector("[data-map]");
  canvas = box.querySelector("canvas");
  output = box.querySelector("output");
  pen = canvas.getContext("2d");
  readColours();
  listen();
  onMessage(hear);
  load();
}
