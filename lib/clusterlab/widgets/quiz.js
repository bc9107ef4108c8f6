// A question answered by choosing or ordering: single, multiple, order, hunch, verdict.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};
const LABEL = {
  single: "Question", multiple: "Question: choose all that apply", order: "Question: put in order",
  hunch: "Hunch: choose before you read on", verdict: "Check the claim: your verdict first",
};
let serial = 0;

function render({ model, el, page }) {
  const data = model.get("data");
  const { kind, choices } = data;
  const name = `clq-${++serial}`;
  const list = h("div");
  const say = h("div", { className: "clw-say", role: "status" });
  const check = h("button", { className: "clw-main", type: "submit" },
    kind === "hunch" ? "Keep my hunch" : kind === "verdict" ? "Give my verdict" : "Check");
  const legend = h("legend", {}, h("span", { className: "clw-label" }, LABEL[kind]), " ");
  legend.insertAdjacentHTML("beforeend", data.prompt);
  const form = h("form", { className: "clw", noValidate: true }, h("fieldset", {}, legend, list), h("div", { className: "clw-row" }, check), say);
  form.dataset.kind = kind;
  form.dataset.lmSuppressShortcuts = "true"; // JupyterLab's single-key commands stay out of the form

  const entry = kind === "order" ? ordering() : choosing();
  form.addEventListener("keydown", (event) => { // JupyterLab takes Enter's own submitting away
    if (event.key === "Enter" && event.target.matches("input")) { event.preventDefault(); form.requestSubmit(); }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const answer = entry.read();
    if (answer === null) { show("", "Choose an answer first."); return; }
    const state = model.get("state") || {};
    const next = { ...state, answer };
    if (kind !== "hunch") {
      const right = isRight(answer);
      next.right = Boolean(state.right || right);
      next.first = state.first ?? right;
      next.tries = (state.tries || 0) + 1;
    }
    if (kind === "verdict") next.open = true;
    model.set("state", next);
    model.save_changes();
    draw();
  });
  const draw = () => {
    const { answer } = model.get("state") || {};
    if (answer === undefined) return;
    entry.write(answer);
    feedback(answer);
  };
  model.on("change:state", draw);
  draw();
  el.append(form);
  return () => model.off("change:state", draw);

  function isRight(answer) {
    if (kind === "order") return answer.every((item, i) => item === i);
    if (kind === "multiple") return choices.every((c, i) => c.right === answer.includes(i));
    return choices[answer].right;
  }

  function show(verdict, ...lines) {
    say.dataset.verdict = verdict;
    say.replaceChildren(...lines.map((line) => { const p = h("p"); p.innerHTML = line; return p; }));
  }

  function feedback(answer) {
    const right = kind !== "hunch" && isRight(answer);
    const word = (text) => `<span class="clw-verdict">${text}</span> `;
    const see = !right && data.see ? [`Look again at ${data.see}.`] : [];
    if (kind === "hunch") show("", `Kept: “${choices[answer].text}”. The end of the lesson returns to it.`);
    else if (kind === "verdict") {
      const ours = choices.find((c) => c.right).text;
      show(right ? "right" : "wrong", word(right ? `We agree: it ${ours}.` : `We say: it ${ours}.`) + data.why,
        ...(page?.opens(el) ? ["What was sealed below is open now."] : []));
    } else if (kind === "order") {
      const bad = answer.findIndex((item, i) => item !== i);
      if (right) show("right", word("Right."), ...choices.map((c, i) => `${i + 1}. ${c.text}: ${c.why}`));
      else show("wrong", word("Not yet.") + (bad ? `The first ${bad > 1 ? `${bad} stand` : "stands"} right. ` : "")
        + `Place ${bad + 1} is not for “${choices[answer[bad]].text}”: ${choices[answer[bad]].why}`, ...see);
    } else if (kind === "multiple") {
      const missing = choices.filter((c, i) => c.right && !answer.includes(i)).length;
      const lines = choices.filter((c, i) => right || answer.includes(i))
        .map((c) => `${c.right ? "✓ belongs" : right ? "– does not belong" : "✗ does not belong"}: “${c.text}”. ${c.why}`);
      show(right ? "right" : "wrong", word(right ? "Right, all of them." : "Not yet."), ...lines,
        ...(missing ? [`${missing} more ${missing > 1 ? "belong" : "belongs"} here.`] : []), ...see);
    } else show(right ? "right" : "wrong", word(right ? "Right." : "Not so.") + choices[answer].why, ...see);
  }

  function choosing() {
    const many = kind === "multiple";
    const inputs = choices.map((choice) => {
      const input = h("input", { type: many ? "checkbox" : "radio", name });
      const text = h("span");
      text.innerHTML = choice.text;
      list.append(h("label", { className: "clw-choice" }, input, text));
      return input;
    });
    const chosen = () => inputs.flatMap((input, i) => (input.checked ? [i] : []));
    return {
      read: () => (chosen().length ? (many ? chosen() : chosen()[0]) : null),
      write: (answer) => inputs.forEach((input, i) => { input.checked = many ? answer.includes(i) : answer === i; }),
    };
  }

  function ordering() {
    let order = [...data.shown];
    const items = h("ol", { className: "clw-order" });
    const moved = h("p", { className: "clw-unseen", role: "status" });
    list.append(items, moved);
    const rows = choices.map((choice, i) => {
      const text = h("span", { className: "clw-item" });
      text.innerHTML = choice.text;
      const plain = text.textContent;
      const button = (sign, by, word) => h("button", { type: "button", "aria-label": `Move ${word}: ${plain}`, onclick: () => move(i, by) }, sign);
      const [up, down] = [button("↑", -1, "up"), button("↓", 1, "down")];
      const place = h("span", { className: "clw-quiet" });
      return { row: h("li", {}, text, place, up, down), up, down, plain, place };
    });
    const arrange = () => {
      const focused = document.activeElement;
      items.append(...order.map((i) => rows[i].row));
      order.forEach((i, at) => {
        rows[i].place.textContent = `${at + 1}.`;
        rows[i].row.prepend(rows[i].place);
        rows[i].up.setAttribute("aria-disabled", String(at === 0));
        rows[i].down.setAttribute("aria-disabled", String(at === order.length - 1));
      });
      if (items.contains(focused)) focused.focus(); // moving a node drops its focus
    };
    const move = (i, by) => {
      const at = order.indexOf(i);
      const to = at + by;
      if (to >= 0 && to < order.length) { [order[at], order[to]] = [order[to], order[at]]; arrange(); }
      moved.textContent = `${rows[i].plain}: place ${order.indexOf(i) + 1} of ${order.length}`;
    };
    arrange();
    return { read: () => [...order], write: (answer) => { order = [...answer]; arrange(); } };
  }
}

export default { render };
