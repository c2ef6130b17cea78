// Fetches regions and morphs them into the page: focus, caret, selection and scroll stay where they are.
import { decorate } from "./decorate.js";
import { isPaused } from "./live.js";

// The only place where text becomes HTML: pages of this server, whose templates escape every value.
const policy = globalThis.trustedTypes
  ? trustedTypes.createPolicy("holdfast", { createHTML: (text) => text })
  : { createHTML: (text) => text };
const WAITING = new Map();
const RETRY = 2000;

// The digests of the data that are shown, by region; the server names the regions whose data are different.
export const seen = JSON.parse(document.body.dataset.digests || "{}");

function address(region) {
  const url = new URL(location.href);
  url.searchParams.set("region", region);
  url.hash = "";
  return url;
}

// What a person has open or has typed is theirs: details stay open, fields keep what is in them.
function keep(old, fresh) {
  if (old.dataset?.keep !== undefined) return false;
  if (old.tagName === "DETAILS" && fresh.tagName === "DETAILS") fresh.open = old.open;
  return true;
}

const shown = (region) => document.querySelector(`[data-region="${CSS.escape(region)}"]`);

function put(region, html) {
  const old = shown(region);
  const page = new DOMParser().parseFromString(policy.createHTML(html), "text/html");
  const fresh = page.body.firstElementChild;
  if (!old || !fresh) return;
  decorate(fresh);
  const said = fresh.dataset.announce;
  if (said !== undefined && said !== old.dataset.announce) document.getElementById("announcer").textContent = said;
  // Only of a field: the text of a button that has the focus must change with what it does.
  const ignoreActiveValue = document.activeElement.matches("input, textarea, select");
  Idiomorph.morph(old, fresh, { ignoreActiveValue, callbacks: { beforeNodeMorphed: keep } });
  document.dispatchEvent(new CustomEvent("holdfast:region", { detail: region }));
}

async function load(region) {
  const response = await fetch(address(region), { headers: { Accept: "text/html" }, cache: "no-store" });
  if (response.redirected || response.status === 401) return location.reload();
  if (response.status === 429 || response.status >= 500) throw new Error(response.statusText);
  if (!response.ok) return;
  put(region, await response.text());
  seen[region] = response.headers.get("X-Region-Digest");
}

// One request per region at a time; a second tick while one is under way asks once more after it.
export function refresh(region) {
  if (!shown(region)) return undefined; // data without a display
  const under = WAITING.get(region);
  if (under) {
    under.next = true;
    return under.done;
  }
  const state = { next: false };
  const retry = (done) => setTimeout(() => done((state.next = !isPaused())), RETRY);
  state.done = load(region)
    // The server names a change once. Data that are shown stay until it can be fetched; the header says how old they are.
    .catch(() => new Promise(retry))
    .finally(() => {
      WAITING.delete(region);
      if (state.next) refresh(region);
    });
  WAITING.set(region, state);
  return state.done;
}

export function refreshAll() {
  for (const element of document.querySelectorAll("[data-region]")) refresh(element.dataset.region);
}
