// The live channel: one socket per page, which names the regions that have changed, and the state in the header.
import { ageText, sample, setClock } from "./decorate.js";
import { refresh, seen } from "./morph.js";

const QUIET = 10; // seconds without a sign of the server after which data count as stale
const RETRY = [500, 1000, 2000, 5000];
const body = document.body;
let socket = null;
let retry = null;
let tries = 0;
let paused = false;
let fault = body.dataset.fault || "";
let readAt = Date.now() - 1000 * Number(body.dataset.age || 0);
let heardAt = Date.now();
let connecting = true;
const listeners = [];

export const pauseButton = () => document.getElementById("pause");
export const isPaused = () => paused;
export const onMessage = (listener) => listeners.push(listener);

function stateNow() {
  if (paused) return ["paused", "paused"];
  const age = (Date.now() - readAt) / 1000;
  if (fault) return ["stale", `stale ${ageText(age)}: ${fault}`];
  if ((Date.now() - heardAt) / 1000 > QUIET) return ["stale", `stale ${ageText(age)}: server unreachable`];
  if (connecting) return ["connecting", "connecting"];
  return ["live", `live ${age < 10 ? age.toFixed(1) : Math.round(age)} s`];
}

function showState() {
  const [state, text] = stateNow();
  const sign = document.getElementById("live");
  const was = sign.dataset.state;
  // That a page has loaded is not news.
  const loaded = was === "connecting" && state === "live";
  if (was !== state && !loaded) document.getElementById("announcer").textContent = text;
  sign.dataset.state = state;
  document.getElementById("live-text").textContent = text;
  body.classList.toggle("stale", state === "stale");
  // What a page shows that is not live may be over, and so may be what an open dialog asks.
  const off = state === "stale" || state === "paused";
  for (const button of document.querySelectorAll("[data-action]")) button.disabled = off;
  if (off) document.getElementById("confirm")?.close();
}

function hear(message) {
  heardAt = Date.now();
  connecting = false;
  if ("store" in message) {
    fault = message.store === "ok" ? "" : message.store;
    if (message.age !== null) readAt = Date.now() - 1000 * message.age;
    setClock(message.at);
    if (!fault) sample();
    for (const region of message.regions ?? []) refresh(region);
  }
  for (const listener of listeners) listener(message);
  showState();
}

// The page, and the map if it has one.
function topics() {
  const page = location.pathname.slice(body.dataset.base.length) + location.search;
  const map = document.querySelector("[data-map]")?.dataset;
  if (!map) return [page];
  return [page, `map:${map.pipeline}${map.run ? `?run=${encodeURIComponent(map.run)}` : ""}`];
}

function connect() {
  clearTimeout(retry);
  const url = new URL(`${body.dataset.base}/api/v1/live`, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const mine = (socket = new WebSocket(url));
  socket.onopen = () => {
    send({ subscribe: topics(), seen });
    tries = 0;
  };
  socket.onmessage = (event) => hear(JSON.parse(event.data));
  socket.onclose = () => {
    if (socket !== mine) return;
    socket = null;
    if (!paused) retry = setTimeout(connect, RETRY[Math.min(tries++, RETRY.length - 1)]);
  };
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

export function togglePause() {
  paused = !paused;
  pauseButton().setAttribute("aria-pressed", String(paused));
  pauseButton().setAttribute("aria-label", paused ? "Continue updates" : "Pause updates");
  if (paused) {
    clearTimeout(retry);
    socket?.close();
    socket = null;
  } else {
    heardAt = Date.now();
    connect();
  }
  showState();
}

export function startLive() {
  pauseButton().addEventListener("click", togglePause);
  connect();
  showState();
  setInterval(showState, 500);
}
