// Actions: a dialog asks for a reason, then the API is called. A refusal stays in the dialog, and changes nothing.
import { refreshAll } from "./morph.js";

const byId = (id) => document.getElementById(id);
let chosen = null;

// Not crypto.randomUUID, which browsers offer on HTTPS and localhost only.
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function toast(text, bad = false) {
  byId("toast").classList.toggle("bad", bad);
  byId("toast").textContent = text;
  setTimeout(() => byId("toast").textContent === text && (byId("toast").textContent = ""), 8000);
}

function open(button) {
  chosen = { ...button.dataset, key: newKey() };
  byId("confirm-title").textContent = chosen.ask;
  byId("confirm-effect").textContent = chosen.effect ?? "";
  byId("confirm-error").textContent = "";
  byId("confirm-go").textContent = chosen.action;
  byId("confirm-go").disabled = false;
  byId("confirm").showModal();
  byId("confirm-reason").focus();
}

export async function post(url, body, key = newKey()) {
  const response = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": document.body.dataset.csrf, "Idempotency-Key": key },
    body: JSON.stringify(body),
  });
  const found = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(found.error ?? found.detail ?? `the server refused it (${response.status})`);
  return found;
}

async function go(event) {
  event.preventDefault();
  byId("confirm-go").disabled = true;
  try {
    const found = await post(chosen.url, { ...JSON.parse(chosen.body), reason: byId("confirm-reason").value }, chosen.key);
    byId("confirm").close();
    byId("confirm-reason").value = "";
    toast(found.message || `Done: ${chosen.action}`);
    refreshAll();
  } catch (error) {
    byId("confirm-error").textContent = error.message;
    // The audit log may have an entry under the key, which would be taken for that of a request that acts.
    if (error.message.startsWith("nothing was done")) chosen.key = newKey();
    byId("confirm-go").disabled = false;
  }
}

export function startActions() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button && !button.disabled) open(button);
  });
  byId("confirm")?.querySelector("form").addEventListener("submit", go);
  byId("confirm-cancel")?.addEventListener("click", () => byId("confirm").close());
}
