// The page's side of the widgets: a stand-in for anywidget's model, mounting, seals, and progress.
// `modules` ({ name: source of the module }) stands before this text in the built widgets.js.
const PREFIX = "clusterlab:";
const SEALS = "details:is(.below-input, .above-output, .sealed)"; // hide-output cells, and {dropdown}s of class sealed
const STOPS = "h1, h2, .clusterlab-widget[data-kind=forecast], .clusterlab-widget[data-kind=verdict]";
const models = new Map();

const kept = {
  get(key) { try { return JSON.parse(localStorage.getItem(PREFIX + key)); } catch { return null; } },
  set(key, value) { try { localStorage.setItem(PREFIX + key, JSON.stringify(value)); } catch { /* private mode */ } },
  remove(key) { try { localStorage.removeItem(PREFIX + key); } catch { /* private mode */ } },
  keys() { try { return Object.keys(localStorage).filter((k) => k.startsWith(PREFIX)).map((k) => k.slice(PREFIX.length)).sort(); } catch { return []; } },
};

// An answer belongs to the question as it was worded: another wording starts afresh.
const print = (text) => { let n = 5381; for (const c of text) n = (n * 33 + c.codePointAt(0)) >>> 0; return n.toString(36); };

class Model {
  constructor(data) {
    this.handlers = {};
    this.of = print(JSON.stringify(data));
    const stored = kept.get(data.key);
    this.values = { data, state: stored?.of === this.of && stored.state ? stored.state : {}, others: {} };
  }
  get(name) { return this.values[name]; }
  set(name, value) {
    this.values[name] = value;
    for (const f of [...(this.handlers[`change:${name}`] || [])]) f(this, value);
  }
  on(event, f) { (this.handlers[event] ||= []).push(f); }
  off(event, f) { this.handlers[event] = (this.handlers[event] || []).filter((g) => g !== f); }
  save_changes() {
    kept.set(this.values.data.key, { of: this.of, state: this.values.state });
    publish();
  }
}

// Every widget that watches others sees their states.
function publish() {
  for (const model of models.values()) {
    const { watch } = model.get("data");
    if (watch) model.set("others", Object.fromEntries(watch.map((key) => [key, models.get(key)?.get("state") || {}])));
  }
}

// What a forecast or a claim seals: everything sealable after it, up to the next of its kind or the next heading.
function sealsOf(box) {
  const all = [...document.querySelectorAll(`${STOPS}, ${SEALS}`)];
  const after = all.slice(all.indexOf(box) + 1);
  const end = after.findIndex((el) => el.matches(STOPS));
  return after.slice(0, end < 0 ? undefined : end);
}
function unseal(box) {
  for (const seal of sealsOf(box)) seal.open = true;
}

const progress = {
  code() { return btoa(Array.from(new TextEncoder().encode(JSON.stringify(Object.fromEntries(kept.keys().map((k) => [k, kept.get(k)])))), (b) => String.fromCharCode(b)).join("")); },
  load(code) { // throws on what is no code of ours
    const all = JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(code.trim()), (c) => c.charCodeAt(0))));
    const good = Object.entries(all).filter(([key, value]) => /^[\w/.-]+$/.test(key) && value?.of && typeof value.state === "object");
    if (!good.length) throw new Error("empty");
    for (const [key, value] of good) kept.set(key, value);
    location.reload();
  },
  forget() {
    for (const key of models.keys()) kept.remove(key);
    location.reload();
  },
};

const loaded = {};
const load = (name) => (loaded[name] ||= import(URL.createObjectURL(new Blob([modules[name]], { type: "text/javascript" }))));

async function mount(box) {
  const data = JSON.parse(box.querySelector('script[type="application/json"]').textContent);
  box.dataset.key = data.key;
  if (data.kind) box.dataset.kind = data.kind; // for STOPS
  const { default: widget } = await load(box.dataset.widget);
  const model = new Model(data);
  const el = document.createElement("div");
  const page = { progress, opens: () => sealsOf(box).length > 0 };
  const open = () => model.get("state").open && unseal(box);
  try {
    await widget.render({ model, el, page });
  } catch (error) { // an answer this version cannot show is dropped, the question is not
    if (!Object.keys(model.get("state")).length) throw error;
    model.values.state = {};
    el.replaceChildren();
    await widget.render({ model, el, page });
  }
  model.on("change:state", open);
  open(); // what was committed before stays open
  models.set(data.key, model);
  box.replaceChildren(el); // only after render worked
  box.dataset.ready = "";
}

function start() {
  const boxes = [...document.querySelectorAll(".clusterlab-widget")];
  const mounting = boxes.map((box) => mount(box).catch((error) => console.warn("widget left as text:", error)));
  Promise.all(mounting).then(publish);
}
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
