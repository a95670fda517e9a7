// The page: one conversation at a time, its list, its settings.

import * as api from "./api.js";
import { MessageView, make, seconds } from "./messages.js";
import { sessions, settings as chosen } from "./store.js";

const $ = (id) => document.getElementById(id);
const touch = matchMedia("(pointer: coarse)");
let settings = chosen.load();
let session = sessions.create();
let views = [];
let running = null;
let context = 0;

// ---- the server

/** Asks what the server is and has; waits while it loads. */
async function refresh() {
  try {
    const props = await api.props(settings.key);
    context = props.default_generation_settings.n_ctx;
    if (props.keeps_conversations) await keepOnServer();
    $("model").textContent = props.model_alias;
    document.title = `${session.title || "New conversation"} · ${props.model_alias}`;
    memory(props.memory);
    meter();
    notice("");
  } catch (error) {
    if (error.status === 401) return askKey();
    notice(error.status === 503 ? `${error.message} …` : error.message);
    setTimeout(refresh, 1500);
  }
}

const ON_SERVER = "on the server's disk";

/** The server keeps conversations, for every browser that asks it. */
async function keepOnServer() {
  sessions.server = api.conversations(settings.key);
  if ($("where").textContent === ON_SERVER) return;
  $("where").textContent = ON_SERVER;
  const [newest] = await sessions.list();
  const untouched = !running && !$("input").value && !(session.changed > newest?.changed && session.messages.length);
  if (newest && untouched) await open(newest.id);
  else changed();
}

const mib = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`);

function memory({ device, host }) {
  const rows = [
    ["Keys and values on the device", device.kv],
    ["Keys and values in host memory", host.kv],
    ["Recurrent state and checkpoints", device.state],
    ["Weights", device.weights + host.weights],
  ];
  const list = make("dl");
  for (const [name, bytes] of rows) list.append(make("dt", { textContent: name }), make("dd", { textContent: mib(bytes) }));
  $("memory").replaceChildren(list);
}

/** How much of the context the conversation takes. */
function meter(used = session.used ?? 0) {
  const share = context ? Math.min(used / context, 1) : 0;
  const bar = $("meter").querySelector(".bar");
  bar.firstElementChild.style.width = `${share * 100}%`;
  bar.classList.toggle("full", share > 0.9);
  $("meter").querySelector(".label").textContent = `${used.toLocaleString()} / ${context.toLocaleString()} tokens`;
}

// ---- the conversation

function show(next) {
  stop();
  session = next;
  views = session.messages.map((message) => new MessageView(message, act));
  $("messages").replaceChildren(...views.map((view) => view.root));
  changed();
  meter();
  $("log").scrollTop = $("log").scrollHeight;
}

/** Shows conversation `id`. */
async function open(id) {
  try {
    const next = await sessions.load(id);
    if (next) show(next);
  } catch (error) {
    notice(error.message);
  }
  drawer(false);
}

function changed() {
  $("empty").hidden = session.messages.length > 0;
  views.forEach((view, i) => view.root.classList.toggle("last", i === views.length - 1));
  list();
}

let listed = 0;
async function list() {
  const own = (listed += 1);
  let all;
  try {
    all = await sessions.list();
  } catch (error) {
    return notice(error.message);
  }
  if (own !== listed) return;
  const entries = all.map((entry) => {
    const title = make("button", { className: "title", type: "button", textContent: entry.title || "Untitled", title: entry.title ?? "", onclick: () => open(entry.id) });
    const drop = make("button", { className: "drop", type: "button", textContent: "✕", title: "Delete", ariaLabel: `Delete ${entry.title}`, onclick: () => remove(entry) });
    const row = make("div", { className: `session${entry.id === session.id ? " open" : ""}` }, title, drop);
    if (entry.id === session.id) title.ariaCurrent = "true";
    return row;
  });
  $("sessions").replaceChildren(...entries);
}

async function remove(entry) {
  if (!confirm(`Delete “${entry.title || "Untitled"}”?`)) return;
  if (entry.id === session.id) stop();
  await erase(entry.id);
  if (entry.id === session.id) show(sessions.create());
  else changed();
}

/** Does `work` after what was begun before: the last state of a conversation is the one to stay. */
let stored = Promise.resolve();
function store(work) {
  stored = stored.then(work).catch((error) => notice(error.status === undefined ? "The browser has no room left: delete old conversations to keep this one." : error.message));
  return stored;
}

async function save(of = session) {
  await store(() => of.messages.length && !dropped.has(of.id) && sessions.save(of));
  changed();
}

/** Deleted conversations: an answer that ends later does not bring them back. */
const dropped = new Set();
function erase(id) {
  dropped.add(id);
  return store(() => sessions.remove(id));
}

function add(message) {
  session.messages.push(message);
  const view = new MessageView(message, act);
  views.push(view);
  $("messages").append(view.root);
  return view;
}

/** Cuts the conversation before message `index`. */
function cut(index) {
  session.messages.length = index;
  views.splice(index).forEach((view) => view.root.remove());
}

function act(what, view) {
  const index = views.indexOf(view);
  if (running || index < 0) return;
  if (what === "edit") {
    $("input").value = view.message.content;
    cut(index);
    grow();
    $("input").focus();
    save();
  } else if (what === "again") {
    cut(index);
    answer();
  }
}

function request() {
  const messages = session.messages.map(({ role, content, reasoning }) => ({ role, content, ...(reasoning && { reasoning_content: reasoning }) }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { messages };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if (settings[name] !== undefined) body[name] = settings[name];
  }
  if (sessions.server) body.session = session.id;
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

/** Has the last message answered, whatever conversation is shown when that is done. */
async function answer() {
  const own = session;
  const body = request();
  const message = { role: "assistant", content: "" };
  const view = add(message);
  const control = (running = new AbortController());
  const started = performance.now();
  let tokens = 0, first = 0, drawn = 0, cost = 0, timings;
  busy(true);
  save();
  const follow = () => {
    const log = $("log");
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) requestAnimationFrame(() => (log.scrollTop = log.scrollHeight));
  };
  // Long answers take a while to draw: never more than a quarter of the time.
  const draw = () => {
    const now = performance.now();
    if (now - drawn < Math.max(30, cost * 3)) return;
    view.draw(true);
    drawn = performance.now();
    cost = drawn - now;
    follow();
  };
  try {
    view.draw(true);
    $("log").scrollTop = $("log").scrollHeight;
    await api.chat(body, settings.key, control.signal, (chunk) => {
      const progress = chunk.prompt_progress;
      if (progress && progress.total - progress.cache > 256) {
        status(`Reading: ${progress.processed.toLocaleString()} of ${progress.total.toLocaleString()} tokens`);
      }
      timings = chunk.timings ?? timings;
      const delta = chunk.choices[0]?.delta;
      if (!delta?.content && !delta?.reasoning_content) return;
      tokens += 1;
      first ||= performance.now();
      message.reasoning = (message.reasoning ?? "") + (delta.reasoning_content ?? "") || undefined;
      if (delta.content && message.reasoning) message.thoughtFor ??= (performance.now() - started) / 1000;
      message.content += delta.content ?? "";
      const elapsed = (performance.now() - first) / 1000;
      if (tokens > 4) status(`${((tokens - 1) / elapsed).toFixed(1)} tokens/s`);
      draw();
    });
    if (timings) {
      own.used = timings.cache_n + timings.prompt_n + timings.predicted_n;
      message.facts = `${timings.predicted_n} tokens · ${timings.predicted_per_second.toFixed(1)} tokens/s · first after ${seconds(timings.prompt_ms / 1000)}`;
      if (timings.cache_n) message.facts += ` · ${timings.cache_n.toLocaleString()} of ${(timings.cache_n + timings.prompt_n).toLocaleString()} read before`;
    }
  } catch (error) {
    if (error.name === "AbortError") message.facts = "stopped";
    else message.error = error.message;
    if (error.status === 401) askKey();
  }
  view.draw();
  follow();
  save(own);
  if (running === control) {
    running = null;
    busy(false);
    meter();
    refresh();
  }
}

function stop() {
  running?.abort();
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  status("");
}

const status = (text) => ($("status").textContent = text);

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// ---- input

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  $("send").disabled = !input.value.trim();
}

$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  // On a phone's keyboard Enter is the only way to a new line.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch.matches) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value.trim();
  if (!text || running) return;
  add({ role: "user", content: text });
  session.title ||= text.replace(/\s+/g, " ").slice(0, 60);
  $("input").value = "";
  grow();
  answer();
});
$("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (document.body.classList.contains("drawer")) drawer(false);
  else if (!document.querySelector("dialog[open]")) stop();
});

function drawer(open) {
  document.body.classList.toggle("drawer", open);
  $("menu").ariaExpanded = String(open);
}
$("menu").addEventListener("click", () => drawer(true));
$("shade").addEventListener("click", () => drawer(false));
$("new").addEventListener("click", () => {
  show(sessions.create());
  drawer(false);
  $("input").focus();
});
$("meter").addEventListener("click", () => {
  $("memory").hidden = !$("memory").hidden;
  $("meter").ariaExpanded = String(!$("memory").hidden);
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("#meter, #memory")) $("memory").hidden = true;
});

// ---- settings

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

function theme() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
  else delete document.documentElement.dataset.theme;
}

function keep(values) {
  settings = values;
  chosen.save(settings);
  theme();
}

$("settings-open").addEventListener("click", () => {
  const form = $("settings").querySelector("form");
  for (const field of form.elements) if (field.name) field.value = settings[field.name] ?? "";
  drawer(false);
  $("settings").showModal();
});
$("settings").addEventListener("close", () => {
  const values = {};
  for (const { name, value } of $("settings").querySelector("form").elements) {
    if (name && value.trim()) values[name] = NUMBERS.includes(name) ? Number(value) : value;
  }
  keep(values);
  refresh();
});
$("forget").addEventListener("click", async () => {
  if (!confirm(`Delete all conversations ${$("where").textContent}?`)) return;
  stop();
  for (const entry of await sessions.list()) await erase(entry.id);
  show(sessions.create());
});

function askKey() {
  if (!$("key").open) $("key").showModal();
}
$("key").addEventListener("close", () => {
  const key = $("key").querySelector("input").value.trim();
  if (key) keep({ ...settings, key });
  refresh();
});

// Another tab has changed the list.
addEventListener("storage", changed);

theme();
const [newest] = await sessions.list();
if (newest) await open(newest.id);
else show(session);
grow();
refresh();
