// Levels of machines side by side, and what binds on a path; the page's address keeps the choice.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};

// Tier.seconds
export const seconds = (tier, size) => (tier.bandwidth === null ? null : (tier.latency || 0) + size / tier.bandwidth);

// levels.carry, null where a level is missing
export function carry({ tiers }, path, size, whole, requests, caches) {
  const steps = path.filter((slot) => tiers[slot] || !caches.includes(slot));
  if (!steps.every((slot) => tiers[slot])) return null;
  const rates = steps.map((slot) => (tiers[slot].pair || tiers[slot].bandwidth) * (slot === "store" ? requests : 1));
  const least = rates.indexOf(Math.min(...rates.filter(Boolean)));
  const times = rates.map((rate, i) => (rate && (whole || i === least) ? size / rate : 0));
  const waits = steps.map((slot) => tiers[slot].latency || 0);
  const [slow, late] = [times, waits].map((all) => all.indexOf(Math.max(...all)));
  const by = times[slow] >= waits[late] ? "bytes" : "latency";
  const at = by === "bytes" ? slow : late;
  const goal = tiers[path.at(-1)];
  return { seconds: [...waits, ...times].reduce((a, b) => a + b), binds: steps[at], by, rate: rates[at],
    unknown: steps.filter((_, i) => !rates[i]), goal: goal.name, fills: Math.ceil(size / (goal.capacity || size)) };
}

const powers = (base, names) => names.split(" ").map((name, i) => [base ** i, name]);
const TIME = [[1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"]];
const BYTES = powers(1000, "B kB MB GB TB PB");
const BINARY = powers(1024, "B KiB MiB GiB");
function show(value, scale) {
  let i = scale.length;
  while (--i > 0 && +value.toPrecision(3) < scale[i][0]);
  return `${+(value / scale[i][0]).toPrecision(3)} ${scale[i][1]}`;
}

function render({ model, el, page }) {
  const { title, machines, slots, onChip, caches, paths, units, presets, start } = model.get("data");
  const id = "clw-" + Math.random();
  const linked = page && location.hash.startsWith("#levels:") ? location.hash.slice(8).split(",").map(Number) : [];
  const first = linked.length === start.length && linked.every(Number.isFinite) ? linked : start;
  const last = slots.length - 1;
  let at = slots[first[8]] ? first[8] : 0;

  const field = (box, label, options, onchange = draw) => {
    const input = options ? h("select", { onchange }, ...options.map(([text], i) => h("option", { value: i }, text)))
      : h("input", { type: "text", inputMode: "decimal", size: 8, oninput: draw });
    input.id = id + label;
    box.append(h("div", { className: "clw-field" }, h("label", { htmlFor: input.id }, label), input));
    return input;
  };
  const [who, what, way] = [0, 0, 0].map(() => h("div", { className: "clw-choices" }));
  const names = [...machines.map((one) => [one.name]), ["none"]];
  const preset = field(what, "Tensor", [["as entered"], ...presets], () => {
    if (+preset.value) [, number.value, unit.value] = presets[preset.value - 1];
    draw();
  });
  const number = field(what, "Size");
  const unit = field(what, "Unit", units);
  const path = field(way, "Path", paths);
  const requests = field(way, "Requests at once");
  const whole = field(way, "The tensor", [["streams through"], ["waits whole at each level"]]);
  const inputs = [...[1, 2, 3].map((n) => field(who, `Machine ${n}`, names)), number, unit, path, requests, whole];
  inputs.forEach((input, i) => {
    input.value = first[i];
    input.value ||= start[i];
  });

  const [say, result] = ["p", "div"].map((tag) => h(tag, { role: "status" }));
  const [head, body, cards] = [h("tr"), h("tbody"), h("div", { className: "clw-cards" })];
  const [back, next] = [["← Nearer", -1], ["Farther →", 1]].map(([label, to]) => h("button", { type: "button", onclick: () => go(at + to) }, label));
  const box = h("div", { className: "clw clw-architecture", role: "group", "aria-label": title },
    h("p", { className: "clw-prompt" }, h("span", { className: "clw-label" }, "Explore"), title), who, what,
    h("div", { className: "clw-row" }, back, next), say, cards,
    h("div", { className: "clw-scroll", tabIndex: 0, role: "group", "aria-label": "All levels, by arrow keys" }, h("table", {}, h("thead", {}, head), body)),
    h("p", { className: "clw-head" }, "What binds"), way, result);
  box.dataset.lmSuppressShortcuts = "true";
  box.addEventListener("keydown", (e) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[e.key];
    if (to === undefined || e.altKey || e.ctrlKey || e.metaKey || e.target.matches("input, select")) return;
    go(to);
    e.preventDefault();
  });

  function go(to) {
    at = Math.max(0, Math.min(last, to));
    draw();
  }
  const time = ({ tiers, unknown }, slot, size) => (tiers[slot]?.bandwidth ? show(seconds(tiers[slot], size), TIME) : tiers[slot] ? unknown : "–");
  function card(one) {
    const [label, slot] = slots[at];
    const tier = one.tiers[slot];
    const name = h("p", { className: "clw-head" }, one.name);
    if (!tier) return h("div", {}, name, `${label}: none, or ${one.unknown}`);
    return h("div", {}, name, tier.name, h("dl", {}, ...[
      ["holds", tier.capacity ? show(tier.capacity, onChip.includes(slot) ? BINARY : BYTES) : tier.holds || one.unknown],
      ["bandwidth", tier.bandwidth ? `${show(tier.bandwidth, BYTES)}/s, ${tier.counts}` : one.unknown],
      tier.pair && ["to one neighbour", `${show(tier.pair, BYTES)}/s`],
      ["latency", tier.latency ? show(tier.latency, TIME) : one.unknown],
    ].filter(Boolean).flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)])), h("p", { className: "clw-quiet", innerHTML: tier.told }));
  }
  function told(one, size, many) {
    const found = carry(one, paths[path.value][1], size, +whole.value, many, caches);
    if (!found) return `${one.name}: no such path, or ${one.unknown}`;
    const tier = one.tiers[found.binds];
    return `${one.name}: ${found.unknown.length ? "at least " : ""}${show(found.seconds, TIME)}; binding: ${tier.name}, `
      + (found.by === "bytes" ? `${show(found.rate, BYTES)}/s.` : `${show(tier.latency, TIME)} of latency.`)
      + found.unknown.map((slot) => ` Rate of ${one.tiers[slot].name}: ${one.unknown}.`).join("")
      + (found.fills > 1 ? ` It fills ${found.fills} × ${found.goal}.` : "");
  }
  function draw() {
    const values = inputs.map((input) => +(input.value.replace(/[,\s]/g, "") || NaN));
    const size = values[3] * units[values[4]][1];
    const wrong = !(size >= 0 && size < 1e18) ? number : values[6] >= 1 && values[6] < 1e9 ? null : requests;
    for (const input of [number, requests]) input.setAttribute("aria-invalid", input === wrong);
    const chosen = [...new Set(values.slice(0, 3))].map((i) => machines[i]).filter(Boolean);
    back.setAttribute("aria-disabled", !at);
    next.setAttribute("aria-disabled", at === last);
    cards.replaceChildren(...chosen.map(card));
    if (wrong) {
      say.textContent = `“${wrong.value}” is ${wrong.value > 1 ? "too large" : `no number from ${+(wrong !== number)}`}.`;
      head.innerHTML = body.innerHTML = result.innerHTML = "";
      return;
    }
    const [label, now] = slots[at];
    const tensor = show(size, BYTES);
    say.textContent = `Level ${at + 1} of ${slots.length}: ${label}. ${tensor}: ${chosen.map((one) => `${one.name} ${time(one, now, size)}`).join(", ")}.`;
    head.replaceChildren(...[`${tensor} takes`, ...chosen.map((one) => one.name)].map((text) => h("th", { scope: "col" }, text)));
    body.replaceChildren(...slots.map(([label, slot]) => h("tr", slot === now ? { "aria-current": true } : {}, h("th", { scope: "row" }, label),
      ...chosen.map((one) => h("td", {}, time(one, slot, size))))));
    result.replaceChildren(...chosen.map((one) => h("p", {}, told(one, size, values[6]))));
    if (page && el.firstChild) history.replaceState(null, "", `#levels:${[...values, at]}`);
  }
  draw();
  el.append(box);
}

export default { render };
