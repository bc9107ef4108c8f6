// A collective step by step: a grid of ranks and chunks, in each cell one square for each rank whose part is in it.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};
const listed = (items) => items.join(", ");

function render({ model, el }) {
  const { title, ranks, chunks, frames } = model.get("data");
  const last = frames.length - 1;
  const full = 2 ** ranks - 1;
  let at = 0;
  let timer = null;

  const say = h("p", { role: "status" });
  const moves = h("ul", { className: "clw-moves" });
  const cells = [];
  const body = h("tbody");
  for (let rank = 0; rank < ranks; rank++) {
    const row = h("tr", {}, h("th", { scope: "row" }, `rank ${rank}`));
    cells.push(Array.from({ length: chunks }, () => row.appendChild(h("td"))));
    body.append(row);
  }
  const heads = Array.from({ length: chunks }, (_, c) => h("th", { scope: "col" }, h("span", { className: "clw-unseen" }, "chunk "), String(c)));
  const grid = h("table", { className: "clw-grid" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "chunk"), ...heads)), body);
  const scroll = h("div", { className: "clw-scroll", tabIndex: 0, role: "group", "aria-label": "Ranks and chunks; arrow keys step" }, grid);
  const button = (label, act) => h("button", { type: "button", onclick: act }, label);
  const back = button("← Previous", () => go(at - 1, true));
  const next = button("Next →", () => go(at + 1, true));
  const play = button("Play", () => (timer ? stop() : start()));
  next.className = "clw-main";
  const heading = h("p", { className: "clw-prompt" }, h("span", { className: "clw-label" }, "Step by step"));
  heading.insertAdjacentHTML("beforeend", title);
  const key = h("p", { className: "clw-quiet" }, `In each cell ${ranks} small squares, one a rank: filled means that rank's part is in the sum. `
    + "“+” was just added, “=” was just copied, “✓” is the complete sum.");
  const box = h("div", { className: "clw clw-stepper", role: "group" }, heading,
    h("div", { className: "clw-row" }, back, next, play), say, scroll, moves, key);
  box.setAttribute("aria-label", heading.textContent);
  box.dataset.lmSuppressShortcuts = "true";
  box.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    go(to, true);
  });

  function draw() {
    const frame = frames[at];
    say.innerHTML = `<strong>${at ? `Step ${at} of ${last}.` : `${last} steps.`}</strong> ${frame.say}`;
    moves.replaceChildren(...(at ? [h("li", {}, "Sent, rank → rank:")] : []), ...frame.moves.map(([src, dst, some]) =>
      h("li", {}, `${src} → ${dst}: ${some.length === chunks && chunks > 1 ? "all chunks" : `chunk${some.length > 1 ? "s" : ""} ${listed(some)}`}`)));
    cells.forEach((row, rank) => row.forEach((cell, chunk) => {
      const mask = frame.held[rank][chunk];
      const came = frame.moves.find(([, dst, some]) => dst === rank && some.includes(chunk));
      const holds = Array.from({ length: ranks }, (_, r) => r).filter((r) => mask & (1 << r));
      const dots = h("div", { className: "clw-dots", "aria-hidden": "true" },
        ...Array.from({ length: ranks }, (_, r) => h("i", { className: mask & (1 << r) ? "clw-on" : "" })));
      dots.style.setProperty("--clw-columns", Math.min(4, ranks));
      const mark = (came ? (came[3] === "add" ? "+" : "=") : "") + (mask === full ? "✓" : "");
      const words = mask === full ? "complete sum" : `part${holds.length > 1 ? "s" : ""} of rank ${listed(holds)}`;
      cell.className = `${came ? "clw-came" : ""} ${mask === full ? "clw-full" : ""}`;
      cell.replaceChildren(h("div", {}, dots, h("span", { className: "clw-mark", "aria-hidden": "true" }, mark),
        h("span", { className: "clw-unseen" }, `${words}${came ? `, just ${came[3] === "add" ? "added" : "copied"} from rank ${came[0]}` : ""}`)));
    }));
    back.setAttribute("aria-disabled", String(at === 0));
    next.setAttribute("aria-disabled", String(at === last));
  }
  function go(to, byHand) {
    if (byHand) stop();
    at = Math.max(0, Math.min(last, to));
    draw();
    if (at === last) stop();
  }
  function start() {
    if (at === last) go(0);
    timer = setInterval(() => go(at + 1), 1500);
    play.textContent = "Pause";
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  draw();
  el.append(box);
  return stop;
}

export default { render };
