// Where you stand: objectives with results in words, forecasts, the hunch again; in the page also the progress code.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};
const html = (tag, text, className = "") => h(tag, { innerHTML: text, className });

// Of n questions: how many right, how, and what is open.
function result(questions, states) {
  const of = questions.map((q) => states[q.key] || {});
  const right = of.filter((s) => s.right).length;
  const later = of.filter((s) => s.right && !s.first).length;
  const wrong = of.filter((s) => s.tries && !s.right).length;
  const open = of.length - right - wrong;
  if (!of.length) return "no question";
  if (open === of.length) return "not answered yet";
  const parts = [`${right} of ${of.length} right${later ? `, ${later} of them not at the first try` : ""}`];
  if (wrong) parts.push(`${wrong} not right yet`);
  if (open) parts.push(`${open} not answered`);
  return parts.join("; ");
}

const missed = (questions, states) => [...new Set(questions
  .filter((q) => { const s = states[q.key] || {}; return s.tries && !s.first; }).map((q) => q.see).filter(Boolean))];

function render({ model, el, page }) {
  const data = model.get("data");
  const body = h("div");
  const box = h("div", { className: "clw clw-standing", role: "group", "aria-label": "Where you stand" }, body);
  box.dataset.lmSuppressShortcuts = "true";

  function draw() {
    const states = model.get("others") || {};
    const list = h("ul");
    for (const o of data.objectives) {
      const item = h("li", {}, html("span", `${o.letter ? `<strong>${o.letter}.</strong> ` : ""}${o.says}: `),
        h("strong", {}, result(o.questions, states)));
      const links = missed(o.questions, states);
      if (links.length) item.append(html("span", `. Read again: ${links.join(", ")}`));
      list.append(item);
    }
    const parts = [h("span", { className: "clw-label" }, "Where you stand"), list];
    if (data.forecasts.length) {
      const told = data.forecasts.map((f) => {
        const s = states[f.key] || {};
        return html("li", `${f.title}: <strong>${s.words || "no forecast yet"}</strong>`);
      });
      parts.push(h("p", { className: "clw-head" }, "Your forecasts"), h("ul", {}, ...told));
    }
    for (const one of data.hunches) {
      const { answer } = states[one.key] || {};
      const chosen = one.choices[answer];
      parts.push(html("p", "Your hunch at the start", "clw-head"), html("p", one.prompt));
      if (!chosen) parts.push(h("p", { className: "clw-quiet" }, "You gave none. Go back and choose before you read what came of it."));
      else parts.push(html("p", `You chose: “${chosen.text}”.${chosen.why ? ` ${chosen.why}` : ""}`), html("p", `What came of it: ${one.answer}`));
    }
    body.replaceChildren(...parts);
  }
  model.on("change:others", draw);
  draw();
  if (page) box.append(progress(page.progress));
  el.append(box);
  return () => model.off("change:others", draw);
}

// The whole book's answers as a code to carry to another browser, where a page keeps its own.
function progress({ code, load, forget }) {
  const text = h("textarea", { rows: 3, "aria-label": "Progress code", spellcheck: false });
  const say = h("p", { className: "clw-quiet", role: "status" });
  const button = (label, act) => h("button", { type: "button", onclick: act }, label);
  const fill = () => {
    text.value = code();
    text.select();
    navigator.clipboard?.writeText(text.value).then(() => { say.textContent = "Copied."; }, () => { say.textContent = "Select the code and copy it."; });
  };
  const take = () => { try { load(text.value); } catch { say.textContent = "This is no progress code of this book."; } };
  let sure = false;
  const clear = (event) => {
    if (sure) forget();
    else { sure = true; event.target.textContent = "Really forget this page's answers"; }
  };
  return h("details", {}, h("summary", { className: "clw-quiet" }, "Carry your progress to another browser"),
    h("p", { className: "clw-quiet" }, "Answers stay in this browser. The code holds all pages read here."),
    text, h("div", { className: "clw-row" }, button("Copy my code", fill), button("Use this code", take), button("Forget this page's answers", clear)), say);
}

export default { render };
