// The editor of the configuration file: checked while a person types, and saved as a whole for the text it began with.
import { post } from "./actions.js";

const PAUSE = 400; // milliseconds without a key after which the text is checked
const byId = (id) => document.getElementById(id);
let waiting = null;
let checks = 0;
let changes = Promise.resolve();

function remember() {
  const editor = byId("editor");
  const save = editor.querySelector("[data-action]");
  if (save) save.dataset.body = JSON.stringify({ text: byId("editor-text").value, expect: editor.dataset.digest });
}

function goTo(line) {
  const area = byId("editor-text");
  const lines = area.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
  area.focus();
  area.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  area.scrollTop = (area.scrollHeight * (line - 1)) / lines.length - area.clientHeight / 2;
}

function item(problem) {
  const entry = document.createElement("li");
  if (problem.line) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `line ${problem.line}`;
    button.addEventListener("click", () => goTo(problem.line));
    entry.append(button, " ");
  }
  entry.append(problem.message);
  return entry;
}

function show(problems) {
  byId("editor-problems").replaceChildren(...problems.map(item));
  byId("editor-text").setAttribute("aria-invalid", String(problems.length > 0));
}

async function check() {
  const number = ++checks;
  const found = await post(byId("editor").dataset.check, { text: byId("editor-text").value }).catch((error) => ({
    problems: [{ line: null, message: error.message }],
  }));
  // A result that a later one has overtaken is about another text.
  if (number === checks) show(found.problems);
}

function changed() {
  remember();
  clearTimeout(waiting);
  waiting = setTimeout(check, PAUSE);
}

// One after the other: each is made in the text that the one before has left.
function changeTrigger(event) {
  const fields = event.target.closest("[data-pipeline]");
  if (fields) changes = changes.then(() => applyTrigger(fields.dataset.pipeline, event.target.name, event.target.value));
}

async function applyTrigger(pipeline, name, value) {
  const area = byId("editor-text");
  try {
    let before, after;
    // What was typed meanwhile stays, and gets the change, too.
    do {
      before = area.value;
      after = (await post(byId("editor").dataset.trigger, { text: before, pipeline, values: { [name]: value } })).text;
    } while (area.value !== before);
    area.value = after;
    changed();
  } catch (error) {
    show([{ line: null, message: error.message }]);
  }
}

// After the file has changed on disk: by this page, or by somebody else.
async function compare(event) {
  const editor = byId("editor");
  if (event.detail !== "file" || !editor || byId("region-file").dataset.digest === editor.dataset.digest) return;
  const url = new URL(location.href);
  url.searchParams.set("format", "json");
  const { file } = await (await fetch(url, { cache: "no-store" })).json();
  const same = file.text === byId("editor-text").value;
  if (same) editor.dataset.digest = file.digest;
  byId("editor-changed").hidden = same;
  remember();
}

export function start() {
  remember();
  byId("editor-text").addEventListener("input", changed);
  byId("editor").addEventListener("change", changeTrigger);
  document.addEventListener("holdfast:region", compare);
  // Only now: what is typed before somebody listens would be lost.
  byId("editor-text").readOnly = false;
  for (const fields of byId("editor").querySelectorAll("fieldset")) fields.disabled = false;
}
