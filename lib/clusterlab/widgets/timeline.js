// One training step on a timeline: what clusterlab.iteration computes, and what the reader sees of it.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};
const sum = (values) => values.reduce((a, b) => a + b, 0);
const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const span = (one) => one.end - one.start;
const time = (s, digits = 3) => `${Number((s * (s < 1 ? 1e3 : 1)).toPrecision(digits))} ${s < 1 ? "ms" : "s"}`;
const percent = (x) => `${(100 * x).toFixed(1)} %`;
const KINDS = { F: "forward", L: "loss", B: "backward", W: "weights" };

// What each rank computes before its optimizer: the whole model (no program), or a stage of a pipeline.
function compute(work, program, factor) {
  const p = factor.length, { chunks, folded, split } = program || { chunks: 1 };
  const ends = {}, free = factor.map(() => work.load), found = factor.map(() => []);
  const todo = factor.map((_, rank) => (program ? program.programs[rank] : "F00 L00 B00").split(" "));
  const lasts = { F: (r) => work.forward[r] + (program ? work.loss[r] : 0), L: (r) => work.loss[r], B: (r) => work.backward[r] / (split ? 2 : 1) };
  lasts.W = lasts.B;
  for (let moved = true; moved; ) {
    moved = false;
    for (let rank = 0; rank < p; rank++) {
      while (todo[rank].length) {
        const kind = todo[rank][0][0], chunk = +todo[rank][0][1], number = +todo[rank][0].slice(2);
        const at = folded && chunk ? 2 * p - 1 - rank : chunk * p + rank;
        const needs = !program ? [] : kind === "F" ? (at ? ["F" + (at - 1)] : []) : [(kind === "B" ? "F" : "B") + at];
        if (program && kind === "B" && at < p * chunks - 1) needs.push("B" + (at + 1));
        const came = needs.map((need) => ends[`${need} ${number}`]);
        if (came.includes(undefined)) break;
        const start = Math.max(free[rank], ...came.map(([end, by]) => end + (by === rank ? 0 : work.send)));
        const end = (free[rank] = start + (lasts[kind](rank) * factor[rank]) / chunks);
        ends[`${kind}${at} ${number}`] = [end, rank];
        found[rank].push({ rank, kind: KINDS[kind], number, start, end });
        todo[rank].shift();
        moved = true;
      }
    }
  }
  return found;
}

// When a bucket starts and ends; a share of the gradients is ready when the last backward passes have brought it.
function buckets(work, members, size, bucket, overlap) {
  const each = Math.min(bucket || size, size), found = []; // size 0: none
  const passes = members.map((events) => events.filter((one) => one.kind === events.at(-1).kind && one.number === most(events.map((e) => e.number))));
  const ready = (some, place, whole = Math.max(Math.ceil(place), 1)) => some[whole - 1].start + span(some[whole - 1]) * (place - whole + 1);
  for (let number = 0, free = 0; number < Math.ceil(size / each); number++) {
    const full = Math.min((number + 1) * each, size);
    const start = Math.max(free, ...(overlap ? passes.map((some) => ready(some, (full / size) * some.length)) : members.map((one) => one.at(-1).end)));
    free = start + work.latency + work.per_byte * (full - number * each);
    found.push({ kind: "sync", number, start, end: free });
  }
  return found;
}

const lanesOf = (events, rank) => [false, true].map((sync) => events.filter((e) => e.rank === rank && (e.kind === "sync") === sync));

function summed(seconds, events, ideal) {
  const spent = [...new Set(events.map((one) => one.rank))].map((rank) => {
    const [busy, sent] = lanesOf(events, rank), load = span(busy[0]), total = sum(busy.map(span));
    const exposed = sum(sent.map((e) => span(e) - sum(busy.map((one) => Math.max(0, Math.min(e.end, one.end) - Math.max(e.start, one.start))))));
    return { load, compute: total - load, exposed, waiting: seconds - total - exposed };
  });
  return { seconds, events, spent, exposed: most(spent.map((one) => one.exposed)), bubble: sum(spent.map((one) => one.waiting)) / (spent.length * seconds), mfu: ideal / seconds };
}

export function unfold(work, program, { bucket, overlap, slow }) {
  const factor = work.forward.map((_, rank) => slow[rank] || 1), computed = compute(work, program, factor), ranks = factor.map((_, rank) => rank);
  const events = (program ? ranks.map((rank) => [rank]) : [ranks]).flatMap((group) => {
    const sent = buckets(work, group.map((rank) => computed[rank]), work.gradients[group[0]], bucket, overlap);
    return group.flatMap((rank) => {
      const start = Math.max(computed[rank].at(-1).end, ...sent.slice(-1).map((one) => one.end));
      return [{ rank, kind: "load", number: 0, start: 0, end: work.load }, ...computed[rank], ...sent.map((one) => ({ rank, ...one })),
        { rank, kind: "optimizer", number: 0, start, end: start + work.optimizer[rank] * factor[rank] }];
    });
  });
  return summed(most(events.map((one) => one.end)), events, work.ideal);
}

// Buckets that the eye cannot tell apart become one block.
function blocks(events, gap) {
  const found = [];
  for (const one of events) {
    const before = found.at(-1);
    if (before && one.kind === "sync" && one.start - before.end <= gap) Object.assign(before, { end: one.end, count: before.count + 1 });
    else found.push({ ...one, count: 1 });
  }
  return found;
}

function render({ model, el }) {
  const { title, cases, schedules, sizes, slows, phases } = model.get("data"), id = Math.random().toString(36).slice(2);
  let at = -1, timer, shown;
  const fields = h("div", { className: "clw-choices" });
  const field = (label, input) => {
    Object.assign(input, { id: `clw-${id}-${label[0]}`, onchange: draw });
    fields.append(h("div", { className: "clw-field" }, h("label", { htmlFor: input.id }, label), input));
    return input;
  };
  const choose = (label, all) => field(label, h("select", {}, ...all.map((one, value) => h("option", { value }, one.says))));
  const which = choose("Model and cluster", cases), schedule = choose("Schedule", schedules), bucket = choose("Bucket", sizes), slow = choose("Rank 1", slows);
  const overlap = field("Overlap", h("input", { type: "checkbox", checked: true }));
  bucket.value = 2;
  const status = (className) => h("p", { className, role: "status" }), say = status("clw-say"), told = status("clw-phase");
  const scroll = (name) => h("div", { className: "clw-scroll", tabIndex: 0, role: "group", "aria-label": name });
  const key = h("p", { className: "clw-key" }, ...phases.map(({ kind, mark }) => h("span", {}, h("i", { className: "clw-k-" + kind }, mark), kind)));
  const lanes = h("div", { "aria-hidden": "true" }), totals = scroll("Where each rank's step goes"), list = scroll("All events");
  const button = (text, onclick) => h("button", { type: "button", onclick }, text);
  const back = button("← Previous phase", () => go(at - 1)), next = button("Next phase →", () => go(at + 1)), play = button("Play", () => (timer ? stop() : start()));
  next.className = "clw-main";
  const table = (heads, rows) => h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), ...cells.map((text) => h("td", {}, text))))));
  const present = () => phases.filter((phase) => shown.events.some((e) => e.kind === phase.kind));
  const of = (result, rank, width) => lanesOf(result.events, rank).map((lane) => blocks(lane, width / 400));
  const rows = (result, width) => result.spent.map((_, rank) => h("div", { className: "clw-rank" }, h("span", {}, `rank ${rank}`),
    ...of(result, rank, width).map((lane) => h("div", { className: "clw-lane" }, ...lane.map((e) => {
      const mark = h("i", { className: "clw-k-" + e.kind, style: `left:${(100 * e.start) / width}%;width:${(100 * span(e)) / width}%` });
      mark.textContent = span(e) > width / 30 ? phases.find((phase) => phase.kind === e.kind).mark : "";
      return mark;
    })))));

  function draw() {
    stop();
    const { rows: records, recorded, data, pipeline } = cases[which.value], size = sizes[bucket.value].bytes, { factor } = slows[slow.value];
    for (const option of schedule.options) option.disabled = records && option.value > 0;
    if (records) schedule.value = 0;
    const { program } = schedules[schedule.value];
    shown = unfold(program ? pipeline : data, program, { bucket: size, overlap: overlap.checked, slow: { 1: factor } });
    const row = records?.find((r) => r.overlap === overlap.checked && r.slow === factor && r.bucket === (size < data.gradients[0] ? size : null));
    const seen = row && summed(row.seconds, row.events.map(([rank, kind, number, start, end]) => ({ rank, kind, number, start, end })), 0);
    const { seconds, exposed, bubble, mfu } = shown, sent = lanesOf(shown.events, 0)[1], width = Math.max(seconds, seen?.seconds || 0), ratio = seen ? seconds / seen.seconds : 0;
    Object.assign(box.dataset, { seconds, exposed, bubble, mfu, ratio });
    say.textContent = `Step ${time(seconds, 4)}${mfu ? `, MFU ${percent(mfu)}` : ""}. The sum takes ${time(sum(sent.map(span)))} in ${sent.length} bucket${sent.length > 1 ? "s" : ""}; exposed ${time(exposed)}. Waiting for other ranks: ${percent(bubble)}.`
      + (seen ? ` Recorded ${time(seen.seconds)}, exposed ${time(seen.exposed)}. Predicted over recorded: ${ratio.toFixed(2)}.` : records ? " Not recorded with this choice." : "");
    lanes.replaceChildren(...rows(shown, width), ...(seen ? [h("p", {}, `Recorded: ${recorded}`), ...rows(seen, width)] : []), h("div", { className: "clw-axis" }, h("span", {}, "0"), h("span", {}, time(width))));
    totals.replaceChildren(table(["rank", "load", "compute", "exposed", "waiting"], shown.spent.map((s, rank) => [rank, ...Object.values(s).map((x) => time(Math.max(0, x)))])));
    list.replaceChildren(table(["rank", "what", "from", "to"], shown.spent.flatMap((_, rank) => of(shown, rank, width).flat().map((e) => [rank, e.count > 1 ? `sync, ${e.count} buckets` : `${e.kind} ${e.number}`, time(e.start), time(e.end)]))));
    mark();
  }
  function mark() {
    const all = present(), last = all.length - 1, phase = all[(at = Math.max(-1, Math.min(at, last)))], mine = phase && shown.events.filter((e) => e.kind === phase.kind);
    lanes.querySelectorAll("i").forEach((i) => i.classList.toggle("clw-dim", Boolean(phase) && !i.classList.contains("clw-k-" + phase.kind)));
    told.textContent = phase ? `${at + 1} of ${all.length}: ${phase.says} From ${time(Math.min(...mine.map((e) => e.start)))} to ${time(most(mine.map((e) => e.end)))}.` : "All phases.";
    back.setAttribute("aria-disabled", String(at < 0));
    next.setAttribute("aria-disabled", String(at === last));
    return at === last;
  }
  function go(to, on) {
    at = to;
    if (mark() || !on) stop();
  }
  function start() {
    timer = setInterval(() => go(at + 1, true), 2500);
    play.textContent = "Pause";
    go(mark() ? 0 : at + 1, true);
  }
  function stop() {
    timer = clearInterval(timer);
    play.textContent = "Play";
  }
  const box = h("div", { className: "clw clw-timeline", role: "group", "aria-label": title }, h("p", { className: "clw-prompt" }, h("span", { className: "clw-label" }, "Explore"), title),
    fields, say, key, lanes, h("div", { className: "clw-row" }, back, next, play), told, totals, h("details", {}, h("summary", {}, "All events as a table"), list));
  box.dataset.lmSuppressShortcuts = "true";
  box.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: -1, End: phases.length }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, input, .clw-scroll")) return;
    event.preventDefault();
    go(to);
  });
  draw();
  el.append(box);
  return stop;
}

export default { render };
