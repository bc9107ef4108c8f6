// The calculator: the library's formulas for one plan, in numbers (tests/test_explore_calculator.py compares them), and a form.
const SHAPE = ["layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "tied", "experts", "experts_per_token"];
const COUNTS = ["tensor", "pipeline", "data", "context", "expert", "micro_batch", "global_batch", "seq", "virtual"];
const PLAN = [...COUNTS, "sequence_parallel", "recompute", "zero_stage"];
const { ceil, floor, max, min } = Math;
class Problem extends Error {}
const fail = (message) => { throw new Problem(message); };
const from = (object, names) => Object.fromEntries(names.map((name) => [name, object[name]]));
const sum = (list) => list.reduce((a, b) => a + b, 0);

// transformer.Transformer: the shape with its defaults and its weights, each [kind of matrix, numbers, pieces, experts]
function transformer(given) {
  const m = { kv_heads: null, head_dim: null, ffn: null, gated: false, tied: false, bias: false, norm: "rms", positions: 0, experts: 1,
    experts_per_token: 1, qk_norm: false, embedding_norm: false, ...given };
  if (m.gated && m.ffn === null) fail("gated=True needs ffn: the default 4·hidden is that of an MLP with two matrices, "
    + "a gated one has three (Llama 2 7B: hidden 4096, ffn 11008)");
  if (m.head_dim === null && m.heads && m.hidden % m.heads) fail(`hidden=${m.hidden} is not divisible by heads=${m.heads}: give head_dim`);
  m.kv_heads ??= m.heads;
  m.head_dim ??= floor(m.hidden / (m.heads || 1));
  m.ffn ??= 4 * m.hidden;
  for (const name of ["layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "ffn", "experts", "experts_per_token"])
    if (!Number.isInteger(m[name]) || m[name] < 1) fail(`${name}=${m[name]}: an integer of at least 1`);
  if (m.heads % m.kv_heads) fail(`heads=${m.heads} is not divisible by kv_heads=${m.kv_heads}`);
  if (m.experts_per_token > m.experts) fail(`experts_per_token=${m.experts_per_token} exceeds experts=${m.experts}`);
  const { hidden: h, ffn: f, heads, kv_heads: kv, head_dim: d } = m;
  const norm = (width) => ["", width * (m.norm === "layer" ? 2 : 1), 1, 1];
  const linear = (size, pieces, width, alone = "") => [["linear", size, pieces, 1],
    ...(m.bias === true || m.bias === alone ? [["", width, alone ? pieces : 1, 1]] : [])];
  const mlp = (width, pieces) => [["mlp", h * f, f, m.experts], ...(m.bias === true ? [["", width, pieces, m.experts]] : [])];
  const keys = () => linear(h * kv * d, kv, kv * d, "qkv");
  m.layer = [norm(h), ...linear(h * heads * d, heads, heads * d, "qkv"), ...keys(), ...keys(),
    ...(m.qk_norm ? [norm(d), norm(d)] : []), ...linear(heads * d * h, heads, h), norm(h),
    ...(m.experts > 1 ? [["linear", h * m.experts, 1, 1]] : []), ...(m.gated ? mlp(f, f) : []), ...mlp(f, f), ...mlp(h, 1)];
  m.before = [["", m.vocab * h, m.vocab, 1], ...(m.positions ? [["", m.positions * h, 1, 1]] : []), ...(m.embedding_norm ? [norm(h)] : [])];
  m.after = [norm(h), ...(m.tied ? [] : [["linear", m.vocab * h, m.vocab, 1]])];
  const count = (copies) => m.layers * sum(m.layer.map(([, size, , experts]) => size * (experts > 1 ? copies : 1)))
    + sum([...m.before, ...m.after].map(([, size]) => size));
  return { ...m, parameters: count(m.experts), active: count(m.experts_per_token) };
}

// plan.Plan, checked alone or with a model
function check(p, m) {
  for (const name of COUNTS) if (!Number.isInteger(p[name]) || p[name] < 1) fail(`${name}=${p[name]}: a positive integer`);
  const micro = floor(p.global_batch / (p.data * p.micro_batch));
  const rules = {
    "global_batch not divisible by data × micro_batch": p.global_batch % (p.data * p.micro_batch),
    "data × context not divisible by expert": (p.data * p.context) % p.expert,
    "seq not divisible by context × tensor": p.seq % (p.context * (p.sequence_parallel ? p.tensor : 1)),
    "virtual > 1 without a pipeline": p.virtual > 1 && p.pipeline === 1,
    "micro-batches not divisible by pipeline, interleaved": p.virtual > 1 && micro % p.pipeline,
    ...(m && {
      "layers not divisible by pipeline × virtual": m.layers % (p.pipeline * p.virtual),
      "heads not divisible by tensor": m.heads % p.tensor,
      "kv_heads and tensor do not divide": m.kv_heads % p.tensor && p.tensor % m.kv_heads,
      "ffn not divisible by tensor": m.ffn % p.tensor,
      "experts not divisible by expert": m.experts % p.expert,
    }),
  };
  for (const [rule, broken] of Object.entries(rules)) {
    if (!broken) continue;
    const named = COUNTS.filter((n) => rule.includes(n) || rule.includes(n.replace("_", "-"))).map((n) => `${n}=${p[n]}`);
    const shape = ["layers", "heads", "kv_heads", "ffn", "experts"].filter((n) => m && rule.split(" ").includes(n)).map((n) => `${n}=${m[n]}`);
    fail(`${rule}: ${[...named, ...shape].join(", ")}`);
  }
}

// activations.activation_bytes_per_layer
function stored(m, p, how, recompute) {
  const share = p.sequence_parallel ? p.tensor : 1, masks = how.dropout ? 1 : 0, visits = m.experts_per_token;
  const cut = (pieces) => ceil(pieces / p.tensor);
  const query = 2 * m.head_dim * cut(m.heads), key = 2 * m.head_dim * cut(m.kv_heads);
  const rows = m.hidden * (8 + 2 * masks + (m.experts > 1 ? 4 * visits : 0)) / share;
  const always = rows + 2 * query + 2 * key + (m.qk_norm ? query + key : 0) + 2 * m.ffn * visits * (m.gated ? 4 : 2) / p.tensor;
  const core = how.attention === "eager" ? (2 + 3 * masks) * p.seq * cut(m.heads) : 0;
  return p.micro_batch * p.seq / p.context * (recompute === "full" ? 2 * m.hidden / share : always + (recompute === "none" ? core : 0));
}

// memory.device_memory of one stage
function stageMemory(m, p, recipe, how, stage) {
  const { tensor: t, pipeline, zero_stage: zero, virtual: v } = p, last = stage === pipeline - 1;
  const held = (weights, expert = 1) => {
    const both = [0, 0];
    for (const [, size, pieces, experts] of weights)
      both[experts > 1 ? 1 : 0] += size * ceil(pieces / t) / pieces * (experts > 1 ? ceil(experts / expert) : 1);
    return both;
  };
  const layers = floor(m.layers / pipeline), [dense, routed] = held(m.layer, p.expert), layer = dense + routed;
  const table = held(m.before.slice(0, 1))[0], after = held(m.after)[0], copy = m.tied ? table : 0;
  const outer = (stage ? 0 : held(m.before)[0]) + (last ? after + (pipeline > 1 ? copy : 0) : 0);
  const states = (n, ranks) => [recipe.weight, recipe.gradient, recipe.master + recipe.moments]
    .map((bytes, i) => bytes * (zero >= 3 - i ? ceil(n / ranks) : n));
  const one = states(layers * dense + outer, p.data * p.context), two = states(layers * routed, p.data * p.context / p.expert);
  const tokens = p.micro_batch * p.seq / p.context, stream = tokens * m.hidden, row = stream / (p.sequence_parallel ? t : 1);
  const kept = stored(m, p, how, p.recompute), whole = stored(m, p, how, "none");
  const chunks = v > 1 ? 2 * (pipeline - stage - 1) + (v - 1) * pipeline + 1 : pipeline - stage;
  const flight = min(chunks, floor(p.global_batch / (p.data * p.micro_batch)) * v) / v;
  const activations = flight * (layers * kept + (stage || !how.dropout ? 0 : row)), head = last ? 4 * row : 0;
  const logits = last ? how.logit_bytes * tokens * ceil(m.vocab / t) : 0;
  // what a running layer needs beyond that: MLP, attention, or its gradients alone
  const waiting = zero >= 2 ? 2 : 0, late = zero >= 2 ? recipe.gradient : 0;
  const inMlp = sum(held(m.layer.filter((w) => w[0] === "mlp"), p.expert)) / layer;
  const largest = 2 * max(...m.layer.map(([, size, pieces]) => size * ceil(pieces / t) / pieces));
  const matrices = 2 * tokens * m.ffn * m.experts_per_token / t * (m.gated ? 2 : 1);
  const scores = how.attention === "eager" ? 2 * tokens * m.heads * p.seq / t * (how.dropout ? 1 : 2) : 0;
  const mlp = (p.recompute === "full" ? whole - kept : 0) + max(matrices + largest, waiting * layer * inMlp - matrices);
  const core = whole - kept + scores - 2 * matrices - 4 * row + waiting * layer * inMlp;
  const running = 2 * stream + max(mlp, core, waiting * layer - kept) + max(late * layer - kept, 0) + (zero >= 3 ? 4 * layer : 0);
  const gathered = zero >= 3 ? 2 * outer : 0;
  const buffers = max(gathered, gathered + running + (last ? waiting * (after + copy) : 0) - head - logits,
    (waiting + late) * outer - activations - head - logits);
  const parts = { weights: one[0] + two[0], gradients: one[1] + two[1], optimizer: one[2] + two[2], activations: activations + head, logits, buffers };
  return { ...parts, total: sum(Object.values(parts)), stage };
}
function deviceMemory(m, p, recipe, how) {
  const last = p.pipeline - 1;
  return [0, min(1, last), last].map((stage) => stageMemory(m, p, recipe, how, stage)).reduce((a, b) => (b.total > a.total ? b : a));
}

// fitting.changes
function* candidates(p, how) {
  const ranks = p.data * p.context;
  if (how.attention === "eager") yield ["attention", { attention: "flash" }];
  if (p.tensor > 1 && !p.sequence_parallel) yield ["sequence_parallel", { sequence_parallel: true }];
  if (p.recompute === "none") yield ["selective", { recompute: "selective" }];
  for (const stage of [1, 2]) if (ranks > 1 && stage > p.zero_stage) yield [`zero-${stage}`, { zero_stage: stage }];
  for (let n = p.micro_batch; n > 1;) yield ["micro_batch", { micro_batch: (n = n % 2 ? 1 : n / 2) }];
  if (ranks > 1 && p.zero_stage < 3) yield ["zero-3", { zero_stage: 3 }];
  if (p.recompute !== "full") yield ["full", { recompute: "full" }];
  for (const degree of ["tensor", "pipeline", "context"])
    for (const times of [2, 4, 8]) yield [degree, { [degree]: p[degree] * times, ...(p.data % times ? {} : { data: p.data / times }) }];
  if (p.zero_stage) for (const times of [2, 4, 8]) yield ["data", { data: p.data * times }];
}
function tries(m, p, recipe, how, memory) {
  const found = [];
  for (const [kind, change] of candidates(p, how)) {
    const after = { ...p, ...change };
    try { check(after, m); } catch { continue; }
    const word = (value) => ({ true: "on", false: "off" })[value] ?? value;
    const says = Object.entries(change).map(([name, value]) => `${name} ${word({ ...p, ...how }[name])} → ${word(value)}`).join(", ");
    found.push({ kind, change, says, total: deviceMemory(m, after, recipe, { ...how, ...change }).total });
    if (found.at(-1).total <= memory) break;
  }
  return found;
}

// hardware.link, kernels.group_link of a group whose ranks are `stride` devices apart
function linkOf({ over }, data, part, stride, size) {
  if (over === "own") return part.link ?? fail(`${part.name}: scale_up is not published`);
  if (over in data.links) return data.links[over];
  const [devices, mesh, up, upLatency, nics, network, latency] = data.nodes[over];
  const local = min(max(floor(devices / stride), 1), size);
  const inside = up * (mesh ? max(local - 1, 1) / max(devices - 1, 1) : 1);
  if (local >= size) return [inside * data.share, upLatency];
  if (!nics) fail(`${over} has no network, and a group of ${size} ranks does not fit a node`);
  const out = local * network / devices;
  return [data.share * (local > 1 ? min(out, inside) : out), latency];
}
// collectives.all_reduce_seconds: steps · latency + critical bytes ÷ bandwidth
function allReduce(size, n, [bandwidth, latency], algorithm, c) {
  if (!Number.isInteger(c) || c < 1) fail(`chunks=${c}: whole numbers from 1 are allowed`);
  let low = 0;
  while (2 ** (low + 1) <= n) low++;
  const folded = 2 ** low === n ? 0 : 2, up = low + (folded ? 1 : 0), share = 2 * (n - 1) / n;
  const [steps, bytes] = {
    "ring": [2 * (n - 1), share], "recursive-doubling": [low + folded, low + folded],
    "halving-doubling": [2 * low + folded, 2 * (1 - 2 ** -low) + folded], "tree": [2 * up, 2 * up],
    "double-tree": [2 * up + c, 2 + 2 * (up - 1) / c], "parameter-server": [2, 2 * (n - 1)],
    "parameter-server-sharded": [2, share], "sharp": [2, 1], "nvls": [2, (n + 1) / n],
  }[algorithm];
  return n > 1 ? steps * latency + size * bytes / bandwidth : 0;
}
// cost.device_seconds, run_energy and run_cost, with the FLOP a token of compute.training_flops
function bill(m, i, devices, part) {
  const peaks = new Map(part.peaks), share = i.mfu;
  const peak = peaks.get(i.dtype) ?? fail(`${part.name} has no published dense peak for '${i.dtype}', only for ${[...peaks.keys()].join(", ")}`);
  if (!(share > 0)) fail(`mfu=${share}: must be > 0`);
  if (share > 1) fail(`mfu=${share}: a share, at most 1`);
  if (!(i.tokens > 0)) fail(`tokens=${i.tokens}: must be positive`);
  const power = i.power ?? part.power ?? fail(`${part.name}: power is not published`);
  if (!(power > 0)) fail(`power=${power}: must be > 0`);
  if (i.pue < 1) fail(`pue=${i.pue}: energy of the building over energy of its computers, at least 1`);
  if (i.price_per_hour < 0) fail(`price_per_hour=${i.price_per_hour}: must be >= 0`);
  const matrices = m.layers * sum(m.layer.map(([kind, size, , experts]) => (kind ? size * (experts > 1 ? m.experts_per_token : 1) : 0)));
  const core = 2 * m.layers * m.heads * m.head_dim * i.seq / (i.causal ? 2 : 1);
  const flops = 6 * (i.flops === "six" ? m.active : matrices + core + m.hidden * m.vocab);
  const busy = flops * i.tokens / (share * peak), seconds = busy / devices, rate = i.tokens / seconds;
  return { tokens_per_second: rate, step_seconds: i.global_batch * i.seq / rate, seconds, device_hours: busy / 3600,
    energy: busy * power * i.pue, cost: busy / 3600 * i.price_per_hour };
}

// Everything at once: what can be computed, and `problems` in the library's words for what cannot.
export function calculate(i, data) {
  const out = { problems: [] };
  const attempt = (work) => {
    try { return work(); } catch (error) { if (!(error instanceof Problem)) throw error; out.problems.push(error.message); }
  };
  const part = { name: i.part, ...data.parts[i.part] }, how = from(i, ["attention", "dropout", "logit_bytes"]), p = from(i, PLAN);
  const recipe = i.recipe === "own" ? from(i, ["weight", "gradient", "master", "moments"]) : data.recipes[i.recipe];
  attempt(() => Object.entries(recipe).forEach(([name, value]) => value >= 0 || fail(`${name}=${value}: bytes a parameter, not negative`)));
  const m = attempt(() => transformer(i.model === "own" ? from(i, SHAPE) : data.models[i.model]));
  attempt(() => check(p, m));
  if (out.problems.length) return out;
  const devices = p.tensor * p.pipeline * p.data * p.context, ranks = p.data * p.context;
  const memory = deviceMemory(m, p, recipe, how), fits = memory.total <= part.memory;
  const tried = fits ? [] : tries(m, p, recipe, how, part.memory);
  const share = m.parameters / (p.tensor * p.pipeline), gradient_bytes = recipe.gradient * share;
  Object.assign(out, { devices, ranks, parameters: m.parameters, memory, capacity: part.memory, fits, tried,
    change: tried.find((one) => one.total <= part.memory) ?? null, load_seconds: recipe.weight * share / part.bandwidth, gradient_bytes });
  attempt(() => { out.all_reduce_seconds = allReduce(gradient_bytes, ranks, linkOf(i, data, part, p.tensor, ranks), i.algorithm, i.chunks); });
  attempt(() => Object.assign(out, bill(m, i, devices, part)));
  return out;
}

// --- the form ----------------------------------------------------------------------------------------------------
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};
const scale = (base, names) => names.map((name, i) => [base ** (names.length - 1 - i), name]);
const SIZES = { GB: scale(1e3, ["TB", "GB", "MB", "kB", "B"]), GiB: scale(1024, ["TiB", "GiB", "MiB", "KiB", "B"]) };
const TIMES = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const ENERGIES = [[3.6e12, "GWh"], [3.6e9, "MWh"], [3.6e6, "kWh"]];
const PARTS = ["weights", "gradients", "optimizer", "activations", "logits", "buffers"];
const few = (x) => (x >= 1000 ? Math.round(x).toLocaleString("en-US") : String(Number(x.toPrecision(3))));
const scaled = (x, units) => {
  const [size, name] = x ? units.find(([size]) => x >= size) ?? units.at(-1) : units.find(([size]) => size === 1) ?? units.at(-1);
  return `${few(x / size)} ${name}`;
};

// What a result says in words.
function verdictOf({ memory: m, capacity, fits, tried, change, problems }, part, costs, size) {
  const also = problems.map((message) => ` ${message}.`).join("");
  if (!m) return `Not computed.${also}`;
  if (fits) {
    const left = capacity - m.total;
    return `Fits. ${size(m.total)} of the ${size(capacity)} that the driver of ${part} reports; ${size(left)} are left for what nobody `
      + `computes: the framework's context, collectives' buffers, gaps.${left < 5e9 ? " Too little to promise anything." : ""}${also}`;
  }
  const states = m.weights + m.gradients + m.optimizer;
  const nearest = tried.reduce((a, b) => (a && a.total <= b.total ? a : b), null);
  return `Does not fit: ${size(m.total)} on the fullest device, and ${part} has ${size(capacity)}. `
    + (states > capacity ? `The states alone, ${size(states)}, are more. `
      : `The states, ${size(states)}, fit; what the batch needs, ${size(m.total - states)}, does not fit beside them. `)
    + (change ? `The smallest change that fits: ${change.says}, then ${size(change.total)}. It costs ${costs[change.kind]}.`
      : nearest ? `No single change fits; ${nearest.says} comes nearest, ${size(nearest.total)}.` : "No single change is legal.") + also;
}

// The calls that give the same numbers in Python.
function python(i, data) {
  const value = (v) => (typeof v === "string" ? `"${v}"` : ({ true: "True", false: "False", null: "None" })[v] ?? v);
  const call = (names) => names.map((name) => `${name}=${value(i[name])}`).join(", ");
  const shape = i.model === "own" ? `Transformer(${call(SHAPE.slice(0, 6))},\n                    ${call(SHAPE.slice(6))})` : `model("${i.model}")`;
  const recipe = i.recipe === "own" ? `Recipe(${call(["weight", "gradient", "master", "moments"])})` : i.recipe;
  const link = i.over === "own" ? 'hardware.published(part, "scale_up")' : i.over in data.nodes
    ? `kernels.group_link(hardware.Cluster(hardware.node("${i.over}"), 1), plan.tensor, ranks)` : `hardware.link("${i.over}")`;
  const flops = i.flops === "six" ? "6 * shape.active_parameters()"
    : `compute.training_flops(shape, batch=1, seq=plan.seq, ${call(["causal"])}) / plan.seq`;
  return `from clusterlab import collectives, compute, cost, fitting, hardware, kernels, memory
from clusterlab.plan import Plan
from clusterlab.transformer import Transformer, model

shape = ${shape}
plan = Plan(${call(COUNTS.slice(0, 5))},
            ${call(COUNTS.slice(5))},
            ${call(PLAN.slice(9))})
part, recipe = hardware.accelerator("${i.part}"), memory.${recipe}
how = dict(recipe=recipe, ${call(["attention", "dropout", "logit_bytes"])})
held = memory.device_memory(shape, plan, **how)
change = fitting.smallest_change(shape, plan, part, **how)
print(held, held.total, held.total <= part.memory, change, sep="\\n")

ranks = plan.data * plan.context
share = memory.model_state_bytes(shape.parameters(), recipe=recipe,
                                 tensor_parallel=plan.tensor, pipeline_parallel=plan.pipeline)
load = share.weights / part.memory_bandwidth
link = ${link}
reduce = collectives.all_reduce_seconds(share.gradients, ranks, link, ${call(["algorithm", "chunks"])})
flops = ${flops}
active = shape.active_parameters()
busy = cost.device_seconds(active, ${i.tokens}, mfu=${i.mfu}, peak_flops=part.dense_flops["${i.dtype}"], factor=flops / active)
energy = cost.run_energy(1, busy, power=${i.power ?? "cost.device_power(part)"}, pue=${i.pue})
dollars = cost.run_cost(1, busy, price_per_hour=${i.price_per_hour})
print(load, reduce, ${i.tokens} * plan.devices / busy, busy / 3600, energy, dollars)`;
}

function render({ model, el, page }) {
  const data = model.get("data"), id = `clw-${Math.random().toString(36).slice(2)}`, mark = `#${data.key}?`;
  const fields = Object.create(null), controls = {}, notes = {}, boxes = {};
  let last;

  // the inputs as texts, by key
  const text = (key) => (fields[key].kind === "flag" ? (controls[key].checked ? "on" : "off") : controls[key].value.trim());
  const changed = () => Object.fromEntries(Object.keys(fields).filter((key) => text(key) !== data.defaults[key]).map((key) => [key, text(key)]));
  const visible = (key) => Object.entries(fields[key].only ?? {}).every(([other, value]) => text(other) === value);
  function set(values) { // what is unknown or no choice is passed over
    for (const [key, value] of Object.entries(values ?? {})) {
      const field = fields[key], input = controls[key];
      if (!field || typeof value !== "string") continue;
      if (field.kind === "flag") input.checked = value === "on";
      else if (field.kind === "number" || field.options.some(([one]) => one === value)) input.value = value.slice(0, 24);
    }
  }
  function read() { // the same as values, and what is no number
    const values = {}, wrong = {};
    for (const [key, { kind, whole, optional, most }] of Object.entries(fields)) {
      const said = text(key), number = Number(said.replace(/[,_\s]/g, ""));
      values[key] = kind === "flag" ? said === "on" : kind === "choice" && !whole ? said : said === "" && optional ? null : number;
      if (kind !== "number" || values[key] === null || !visible(key)) continue;
      if (said === "" || !Number.isFinite(number)) wrong[key] = `${key}: a number is needed${said && `, not “${said}”`}`;
      else if (number > most) wrong[key] = `${key}=${said}: at most ${most.toLocaleString("en-US")}`;
    }
    return { values, wrong };
  }

  // the parts of the page
  function control(field) {
    const { key, kind, options } = (fields[field.key] = field);
    const props = { id: `${id}-${key}`, oninput: () => draw(true) };
    controls[key] = kind === "choice" ? h("select", props, ...options.map(([value, label]) => h("option", { value }, label)))
      : h("input", kind === "flag" ? { ...props, type: "checkbox" } : { ...props, type: "text", inputMode: "decimal", autocomplete: "off", size: 9 });
    notes[key] = h("span", { id: `${id}-${key}-note`, className: "clw-note" });
    const label = h("label", { htmlFor: props.id }, field.label), pair = kind === "flag" ? [controls[key], label] : [label, controls[key]];
    return (boxes[key] = h("div", { className: `clw-field clw-${kind}` }, ...pair, notes[key]));
  }
  const form = data.groups.map(({ legend, more, fields: some }) => {
    const box = h("fieldset", {}, h("legend", { className: more ? "clw-unseen" : "" }, legend), h("div", { className: "clw-fields" }, ...some.map(control)));
    return more ? h("details", {}, h("summary", {}, legend), box) : box;
  });
  const button = (label, onclick, className = "") => h("button", { type: "button", onclick, className }, label);
  const row = (label, ...cells) => h("tr", {}, h("th", { scope: "row" }, label), ...cells.map((cell) => h("td", {}, cell)));
  function table(caption) {
    const body = h("tbody");
    return [body, h("div", { className: "clw-scroll", tabIndex: 0, role: "group", "aria-label": caption }, h("table", {}, h("caption", {}, caption), body))];
  }
  const verdict = h("div", { className: "clw-say", role: "status" });
  const [held, heldBox] = table("Bytes on the fullest device");
  const [takes, takesBox] = table("What it takes");
  const [list, listBox] = table("Single changes, in the order tried");
  const more = h("details", {}, h("summary", {}, "What was tried"), listBox);

  // what one takes away: a link, or Python
  const given = h("textarea", { readOnly: true, rows: 6, id: `${id}-text`, spellcheck: false }), name = h("label", { htmlFor: given.id });
  const handed = h("p", { className: "clw-quiet", role: "status" }), out = h("div", { hidden: true }, name, given, handed);
  function hand(what, value) {
    const say = (words) => (handed.textContent = words), selected = () => say("Selected: copy it.");
    out.hidden = false;
    name.textContent = what;
    given.value = value;
    given.focus();
    given.select();
    given.scrollTop = given.scrollLeft = 0;
    navigator.clipboard ? navigator.clipboard.writeText(value).then(() => say("Copied."), selected) : selected();
  }
  const link = () => `${location.href.split("#")[0]}${mark}${new URLSearchParams(changed())}`;
  const address = () => { try { history.replaceState(null, "", link()); } catch { /* a page that may not */ } };
  const apply = button("Make this change", () => {
    if (!last.change) return;
    set(Object.fromEntries(Object.entries(last.change.change).map(([key, value]) => [key, value === true ? "on" : String(value)])));
    draw(true);
  }, "clw-main");
  const buttons = [apply, ...(page ? [button("Link to this", () => { address(); hand("Link to these inputs", link()); })] : []),
    button("Python", () => hand("The same in Python", python(read().values, data))), button("Start again", () => { set(data.defaults); draw(true); })];

  function mistakes(wrong) { // each message beside the input it names
    for (const message of last.problems) {
      const named = message.match(/[a-z_]+/g).find((word) => word in fields && visible(word));
      const key = named ?? (/scale_up|network/.test(message) ? "over" : /peak/.test(message) ? "dtype" : "power");
      wrong[key] ??= message;
    }
    for (const key of Object.keys(fields)) {
      boxes[key].hidden = !visible(key);
      notes[key].textContent = wrong[key] ?? "";
      controls[key].setAttribute("aria-invalid", key in wrong);
      if (key in wrong) controls[key].setAttribute("aria-describedby", notes[key].id);
      else controls[key].removeAttribute("aria-describedby");
    }
  }
  function draw(save) {
    const { values, wrong } = read(), unread = Object.values(wrong), size = (bytes) => scaled(bytes, SIZES[values.show]);
    last = unread.length ? { problems: unread } : calculate(values, data);
    mistakes(wrong);
    const { memory: m, capacity, change, tried = [] } = last, words = verdictOf(last, values.part, data.costs, size);
    if (verdict.textContent !== words) verdict.textContent = words;
    verdict.dataset.verdict = m ? (last.fits ? "right" : "wrong") : "";
    apply.setAttribute("aria-disabled", !change);
    heldBox.hidden = takesBox.hidden = !m;
    more.hidden = !tried.length;
    list.replaceChildren(...tried.map((one) => row(one.says, size(one.total), one === change ? "fits" : "")));
    if (m) {
      const bar = (bytes) => h("div", { className: "clw-bar", "aria-hidden": "true", style: `width:${100 * bytes / max(m.total, capacity)}%` });
      const lines = [...PARTS.map((part) => [part, m[part]]), [`sum, stage ${m.stage}`, m.total], ["the device has", capacity]];
      held.replaceChildren(...lines.map(([label, bytes]) => row(label, size(bytes), bar(bytes))));
      const time = (seconds) => scaled(seconds, TIMES);
      takes.replaceChildren(...[
        ["devices", last.devices, (n) => `${few(n)} × ${values.part}`], ["parameters", last.parameters, few],
        ["read a device's weights once", last.load_seconds, time],
        [`all-reduce ${size(last.gradient_bytes)} of gradients, ${few(last.ranks)} ranks`, last.all_reduce_seconds, time],
        ["one step at this MFU", last.step_seconds, time], ["tokens a second", last.tokens_per_second, few], ["the whole run", last.seconds, time],
        ["device-hours", last.device_hours, few], ["energy", last.energy, (joule) => scaled(joule, ENERGIES)], ["cost, dollars", last.cost, few],
      ].filter(([, value]) => value !== undefined).map(([label, value, write]) => row(label, write(value))));
    }
    if (!save) return;
    out.hidden = true; // it would say what was
    model.set("state", { inputs: changed() });
    model.save_changes();
    if (page && location.hash.startsWith(mark)) address();
  }
  function opened() { // a link with inputs
    if (!location.hash.startsWith(mark)) return;
    set(data.defaults);
    set(Object.fromEntries(new URLSearchParams(location.hash.slice(mark.length))));
    draw(false);
  }
  el.append(h("div", { className: "clw clw-calculator", role: "group", "aria-label": data.title },
    h("p", { className: "clw-prompt" }, h("span", { className: "clw-label" }, "Calculator"), data.title),
    ...form, verdict, h("div", { className: "clw-row" }, ...buttons), heldBox, more, takesBox, out));
  el.firstChild.dataset.lmSuppressShortcuts = "true";
  set(data.defaults);
  set(model.get("state")?.inputs);
  draw(false);
  if (!page) return;
  opened();
  addEventListener("hashchange", opened);
}

export default { render };
