// A job on a machine: its best plans, computed before; the whole run is linear in tokens and price, and computed here.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};

// What a whole run takes: clusterlab.planning.Outcome.run. `at` holds indices of the grid, tokens and dollars a GPU-hour.
export function calculate(at, data) {
  const cell = data.cells[at.model][at.node][at.devices][at.batch];
  const chosen = cell?.plans[at.plan || 0];
  if (!chosen) return null;
  const devices = data.devices[at.devices];
  const { power } = data.nodes[at.node];
  const rate = data.batches[at.batch] / chosen.step;
  const seconds = at.tokens / rate / cell.goodput;
  const hours = (seconds * devices) / 3600;
  return { rate, seconds, device_hours: hours, interruptions: seconds / cell.mtbf, cost: hours * at.price,
    energy: power === null ? null : seconds * power * devices * data.pue };
}

const short = (x, digits = 3) => x.toLocaleString("en", { maximumSignificantDigits: digits });
const TIMES = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"]];
const time = (s) => { // from two minutes, hours, days on in them
  const [size, unit] = TIMES.find(([size]) => s >= (size > 1 ? 2 * size : size)) ?? TIMES.at(-1);
  return `${short(s / size)} ${unit}`;
};
const many = (x) => (x >= 1e12 ? `${short(x / 1e12)} trillion` : x >= 1e9 ? `${short(x / 1e9)} billion` : x >= 1e6 ? `${short(x / 1e6)} million` : short(x));

function render({ model, el }) {
  const data = model.get("data");
  const names = data.fields.map((field) => field.replace("_", "-").replace("zero-stage", "ZeRO stage"));
  const id = `clw-${Math.random().toString(36).slice(2)}`;
  const box = h("div", { className: "clw-choices" });
  const field = (name, label, input) => {
    input.id = `${id}-${name}`;
    box.append(h("div", { className: "clw-field" }, h("label", { htmlFor: input.id }, label), input));
    return input;
  };
  const choose = (name, label, options, at) => {
    const select = field(name, label, h("select", { onchange: draw }, ...options.map((text, i) => h("option", { value: String(i) }, text))));
    select.value = String(at);
    return select;
  };
  const inputs = {
    model: choose("model", "Model", data.models.map(({ name, seq }) => `${name}, sequences of ${seq.toLocaleString("en")}`), 1),
    node: choose("node", "Machine", data.nodes.map((one) => `${one.name}: ${one.accelerator}${one.used > 8 ? `, ${one.used} GPUs of a rack used` : ""}`), 1),
    devices: choose("devices", "GPUs", data.devices.map((n) => n.toLocaleString("en")), 2),
    batch: choose("batch", "Tokens a step", data.batches.map((n) => `${n / 2 ** 20} Mi`), 0),
  };
  const free = (name, label, value) => field(name, label, h("input", { type: "text", inputMode: "decimal", value, oninput: draw, size: 8 }));
  const tokens = free("tokens", "Tokens in all, billions", "1000");
  const price = free("price", "Dollars a GPU-hour", "2.50");
  const say = h("p", { className: "clw-say", role: "status" });
  const head = h("tr");
  const body = h("tbody");
  const table = h("div", { className: "clw-scroll", tabIndex: 0, role: "group", "aria-label": "The best plans beside each other" },
    h("table", {}, h("thead", {}, head), body));
  const bars = h("tbody");
  const where = h("table", { className: "clw-where" }, h("caption", {}, "Where a step of the best plan goes"), bars);
  const call = h("pre", { tabIndex: 0 });
  const call_box = h("details", {}, h("summary", {}, "The same in Python"), call);

  function number(input, least, what) {
    const value = Number(input.value.replace(/[,_\s]/g, ""));
    const good = input.value.trim() !== "" && Number.isFinite(value) && (least === 0 ? value >= 0 : value > 0);
    input.setAttribute("aria-invalid", String(!good));
    return good ? value : `${what}: “${input.value}” is no number ${least === 0 ? "from 0" : "above 0"}.`;
  }

  function draw() {
    const at = Object.fromEntries(Object.entries(inputs).map(([name, select]) => [name, Number(select.value)]));
    const machine = data.nodes[at.node];
    const cell = data.cells[at.model][at.node][at.devices][at.batch];
    const billions = number(tokens, 1, "Tokens");
    const dollars = number(price, 0, "Price");
    const wrong = [billions, dollars].filter((value) => typeof value === "string");
    const shown = cell?.plans.length && !wrong.length;
    for (const part of [table, where, call_box]) part.hidden = !shown;
    if (!shown) {
      say.textContent = wrong.length ? wrong.join(" ") : cell ? `No plan fits. ${cell.why}`
        : `A job on ${machine.name} uses its ${machine.used} GPUs together; choose more.`;
      return;
    }
    const runs = cell.plans.map((_, plan) => calculate({ ...at, plan, tokens: billions * 1e9, price: dollars }, data));
    const [first, run] = [cell.plans[0], runs[0]];
    const rows = [
      ...names.map((name, i) => [name, (plan) => String(plan.plan[i])]),
      ["memory, GiB", (plan) => short(plan.memory / 2 ** 30)],
      ["step", (plan) => time(plan.step)],
      ["MFU", (plan) => `${(100 * plan.mfu).toFixed(1)} %`],
      ["tokens a second", (_, one) => many(one.rate)],
      ["the run takes", (_, one) => time(one.seconds)],
      ["GPU-hours", (_, one) => many(one.device_hours)],
      ["dollars", (_, one) => many(one.cost)],
      ["energy", (_, one) => (one.energy === null ? "power not published" : `${short(one.energy / 3.6e9)} MWh`)],
      ["interruptions", (_, one) => short(one.interruptions, 2)],
    ];
    head.replaceChildren(h("th", { scope: "col" }, `of ${(cell.legal - cell.too_large).toLocaleString("en")} that fit`),
      ...cell.plans.map((_, i) => h("th", { scope: "col" }, ["best", "second", "third"][i] || String(i + 1))));
    body.replaceChildren(...rows.map(([label, show]) => h("tr", {}, h("th", { scope: "row" }, label),
      ...cell.plans.map((plan, i) => h("td", {}, show(plan, runs[i]))))));
    bars.replaceChildren(...data.groups.map((group, i) => [group, first.shares[i]]).filter(([, share]) => share > 0).map(([group, share]) =>
      h("tr", {}, h("th", { scope: "row" }, group), h("td", {},
        h("div", { className: "clw-bar", "aria-hidden": "true", style: `width:${(60 * share) / 100}%` }), h("span", {}, `${share} %`)))));
    const { wanted, binds } = cell, gib = (bytes) => short(bytes / 2 ** 30);
    const other = wanted && names.filter((_, i) => wanted.plan[i] !== first.plan[i]).map((name) => `${name} ${wanted.plan[names.indexOf(name)]}`);
    const why = binds === "memory" ? `a plan with ${other.join(", ")} would step in ${time(wanted.step)}, but fill ${gib(wanted.memory)} GiB`
      : `it takes ${first.shares[data.groups.indexOf(binds)]} % of the step`;
    say.textContent = `The best plan steps in ${time(first.step)} at an MFU of ${(100 * first.mfu).toFixed(0)} % and fills ${gib(first.memory)} of `
      + `${gib(machine.memory)} GiB. ${binds[0].toUpperCase()}${binds.slice(1)} binds: ${why}. The run takes ${time(run.seconds)} and ${many(run.cost)} dollars. `
      + `About ${short(run.interruptions, 2)} interruptions and a checkpoint every ${time(cell.interval)} leave ${(100 * cell.goodput).toFixed(1)} % of its time for work that lasts.`;
    const nodes = data.devices[at.devices] / machine.used;
    const { name: work, seq } = data.models[at.model];
    call.textContent = "from clusterlab.hardware import Cluster\nfrom clusterlab.planning import RESERVE, best, rack\nfrom clusterlab.transformer import model\n"
      + `found = best(model("${work}"), Cluster(rack("${machine.name}", ${machine.used}), ${nodes}),\n             global_batch=${data.batches[at.batch] / seq}, seq=${seq}, reserve=RESERVE)\n`
      + `print(found.plans[0].plan, found.binds())\nprint(found.run(tokens=${billions}e9, price=${dollars}))`;
  }
  draw();
  el.append(h("div", { className: "clw clw-planner", role: "group", "aria-label": data.title },
    h("p", { className: "clw-prompt" }, h("span", { className: "clw-label" }, "Plan"), data.title), box, say, table, where, call_box));
}

export default { render };
