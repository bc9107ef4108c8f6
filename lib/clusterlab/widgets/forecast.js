// A question answered by a number with a unit: a forecast, committed once, or a numeric question with other numbers.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const show = (x) => (Math.abs(x) >= 1e15 || (x && Math.abs(x) < 1e-4)
  ? x.toPrecision(4) : x.toLocaleString("en-US", { maximumSignificantDigits: 12 }));
let serial = 0;

// "1,090 ms", "1.09 s", "1,09 s", "8 × 10^9 B", "2^30", "1e9" -> { value (SI), read } or { error }
function parse(text, units, unit) {
  const accepted = Object.keys(units).join(", ");
  const plain = text.trim().replace(/[−–]/g, "-").replace(/[\u00a0\u2009\u202f]/g, " ")
    .replace(/⁻?[⁰¹²³⁴-⁹]+/g, (run) => "^" + [...run].map((c) => (c === "⁻" ? "-" : SUPERSCRIPTS.indexOf(c))).join(""));
  const found = plain.match(/^([-+]?(?:\d[\d ,_]*(?:\.\d*)?|\.\d+))(?:\^(-?\d+))?(?:\s*(?:[x×·*]\s*10\s*\^\s*|e)([-+]?\d+))?\s*(.*)$/i);
  if (!found) return { error: `Write a number and a unit: ${accepted}.` };
  let digits = found[1].trim();
  if (/^[-+]?\d{1,3}([ ,_]\d{3})+(\.\d*)?$/.test(digits)) digits = digits.replace(/[ ,_]/g, "");
  else if (/^[-+]?\d+,\d+$/.test(digits)) digits = digits.replace(",", ".");
  let number = Number(digits);
  if (found[2]) number **= Number(found[2]);
  if (found[3]) number *= 10 ** Number(found[3]);
  if (!Number.isFinite(number)) return { error: `“${found[1].trim()}” cannot be read as one number.` };
  const word = found[4].replace(/\.$/, "").trim();
  const near = Object.keys(units).filter((name) => name.toLowerCase() === word.toLowerCase());
  const name = word === "" ? unit : word in units ? word : new Set(near.map((n) => units[n])).size === 1 ? near[0] : null;
  if (name === null) return { error: near.length ? `“${word}” could be ${near.join(" or ")}: write which.` : `“${word}” is not a unit here: ${accepted}.` };
  return { value: number * units[name], read: `${show(number)} ${name}` };
}

// How far a number lies from the right one, in words.
function distance(value, right, tolerance) {
  const ratio = value / right;
  if (!(ratio > 0)) return "not a positive amount";
  const off = Math.abs(ratio - 1) * 100;
  const way = ratio > 1 ? "high" : "low";
  const few = (x) => x.toLocaleString("en-US", { maximumSignificantDigits: x < 100 ? 2 : 3 });
  if (off < 0.5) return "on the spot";
  if (ratio < 2 && ratio > 0.5) return `${few(off)} % too ${way}${off <= tolerance * 100 ? ": close" : ""}`;
  return ratio > 1 ? `${few(ratio)} times too much` : `${few(1 / ratio)} times too little`;
}

function mistakeOf(value, question, tolerance) {
  const band = Math.max(tolerance, 1e-9);
  const off = (m) => Math.abs(value / m.value - 1);
  return question.mistakes.filter((m) => m.value && off(m) <= band).sort((a, b) => off(a) - off(b))[0];
}

function render({ model, el, page }) {
  const data = model.get("data");
  const once = data.kind === "forecast";
  const question = () => (once ? data : data.sets[(model.get("state") || {}).set || 0]);
  const id = `clf-${++serial}`;
  const prompt = h("label", { className: "clw-prompt", htmlFor: id });
  const input = h("input", { type: "text", id, size: 14, autocomplete: "off", spellcheck: false });
  input.setAttribute("aria-describedby", `${id}-hint`);
  const names = Object.keys(data.units);
  const hint = h("span", { className: "clw-quiet", id: `${id}-hint` },
    names.length > 2 ? `in ${data.unit}, or with another unit` : data.unit);
  const check = h("button", { className: "clw-main", type: "submit" }, once ? "Commit" : "Check");
  const row = h("div", { className: "clw-row" }, input, hint, check);
  const say = h("div", { className: "clw-say", role: "status" });
  const way = h("details", { hidden: true }, h("summary", {}, "The way to the answer"));
  const wayText = h("p");
  way.append(wayText);
  const form = h("form", { className: "clw", noValidate: true },
    h("span", { className: "clw-label" }, once ? "Forecast: commit before you run" : "Question: a number"), prompt, row, say, way);
  form.dataset.kind = data.kind;
  form.dataset.lmSuppressShortcuts = "true";
  if (!once && data.sets.length > 1)
    row.append(h("button", { type: "button", onclick: other }, "Other numbers"));

  form.addEventListener("keydown", (event) => { // JupyterLab takes Enter's own submitting away
    if (event.key === "Enter" && event.target.matches("input")) { event.preventDefault(); form.requestSubmit(); }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const state = model.get("state") || {};
    const parsed = parse(input.value, data.units, data.unit);
    if (parsed.error) { tell("", safe(parsed.error)); input.focus(); return; }
    const right = Math.abs(parsed.value / question().value - 1) <= Math.max(data.tolerance, 1e-9);
    save(once
      ? { text: input.value, open: true, close: right, read: parsed.read, words: distance(parsed.value, data.value, data.tolerance) }
      : { ...state, text: input.value, right: Boolean(state.right || right), first: state.first ?? right, tries: (state.tries || 0) + 1 });
  });
  function other() {
    const state = model.get("state") || {};
    save({ ...state, set: ((state.set || 0) + 1) % data.sets.length, text: "" });
    input.focus();
  }
  function save(state) { model.set("state", state); model.save_changes(); draw(); }
  function tell(verdict, ...lines) { // lines of HTML
    say.dataset.verdict = verdict;
    say.replaceChildren(...lines.map((line) => { const p = h("p"); p.innerHTML = line; return p; }));
  }
  const safe = (text) => { const p = h("p"); p.textContent = text; return p.innerHTML; };
  const word = (text) => `<span class="clw-verdict">${text}</span> `;

  let drawn;
  function draw() {
    const state = model.get("state") || {};
    const now = JSON.stringify(state);
    if (now === drawn) return; // our own change comes back as an event
    drawn = now;
    prompt.innerHTML = question().prompt;
    wayText.innerHTML = `<strong>${question().answer}.</strong> ${question().why}`;
    input.value = state.text || "";
    way.hidden = true;
    tell(""); // empties it: an empty status is not shown
    const parsed = state.text && parse(state.text, data.units, data.unit);
    if (!parsed || parsed.error) return;
    const slip = mistakeOf(parsed.value, question(), data.tolerance);
    const right = Math.abs(parsed.value / question().value - 1) <= Math.max(data.tolerance, 1e-9);
    if (once) {
      input.readOnly = true;
      check.setAttribute("aria-disabled", "true");
      check.textContent = "Committed";
      tell(right ? "right" : "", `You said ${safe(parsed.read)}. ${data.reveal} ${word(`That is ${distance(parsed.value, data.value, data.tolerance)}.`)}`,
        ...(!right && slip ? [slip.why] : []), ...(data.why ? [data.why] : []),
        page?.opens(el) ? "What was sealed below is open now." : page ? "Read on." : "Now run the next cell, or open its hidden output.");
    } else if (right) {
      tell("right", `${word("Right.")}Read as ${safe(parsed.read)}. ${question().why}`);
    } else {
      const size = parsed.value / question().value > 1 ? "Too much." : "Too little.";
      tell("wrong", `${word("Not so.")}Read as ${safe(parsed.read)}. ${slip ? slip.why : size}`,
        ...(data.see ? [`Look again at ${data.see}.`] : []));
      way.hidden = false;
    }
  }
  model.on("change:state", draw);
  draw();
  el.append(form);
  return () => model.off("change:state", draw);
}

export default { render };
