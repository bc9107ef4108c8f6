// A fabric, a job, an order of servers and a routing: which kind of cable is the busiest. All loads were computed before.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};

function render({ model, el }) {
  const { title, jobs, kinds, loads } = model.get("data");
  const id = `clw-${Math.random().toString(36).slice(2)}`;
  const choose = (label, options) => {
    const select = h("select", { id: `${id}-${label}`, onchange: draw }, ...options.map(([value, text]) => h("option", { value }, text)));
    box.append(h("div", { className: "clw-field" }, h("label", { htmlFor: select.id }, label), select));
    return select;
  };
  const box = h("div", { className: "clw-choices" });
  const fabric = choose("Fabric", Object.keys(loads).map((name) => [name, name]));
  const job = choose("Job", Object.entries(jobs).map(([name, words]) => [name, `${name}: ${words}`]));
  const order = choose("Servers", [["0", "in order"], ["2", "shuffled"]]);
  const routing = choose("Routing", [["0", "spread over all shortest paths"], ["1", "each flow hashed to one path"]]);
  job.value = "DP";
  const say = h("p", { className: "clw-say", role: "status" });
  const body = h("tbody");
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...["cables", "busiest of them"].map((text) => h("th", { scope: "col" }, text)))), body);
  const heading = h("p", { className: "clw-prompt" }, h("span", { className: "clw-label" }, "Explore"), title);
  const note = h("p", { className: "clw-quiet" }, "1 is what one rank sends in all, which its own port must carry anyway. "
    + "A chip of the torus has six cables, a GPU on a switch one.");

  function draw() {
    const now = loads[fabric.value][job.value][Number(order.value) + Number(routing.value)];
    const names = kinds[fabric.value];
    const most = Math.max(...now);
    const which = names[now.indexOf(most)];
    say.textContent = most === 0 ? "Nothing leaves a server: NVLink carries all of it."
      : most <= 1 ? `No cable carries more than ${most.toFixed(2)}: the ranks' own ports are the limit.`
        : `The slowest cable is one of “${which}”. It carries ${most.toFixed(2)}: the job takes that many times as long as its own ports would allow.`;
    const scale = Math.max(4, most);
    body.replaceChildren(...names.map((name, i) => h("tr", {}, h("th", { scope: "row" }, name),
      h("td", {}, h("div", { className: "clw-bar" + (now[i] === most && most > 1 ? " clw-worst" : ""), "aria-hidden": "true", style: `width:${(60 * now[i]) / scale}%` }),
        h("span", {}, now[i].toFixed(2))))));
  }
  draw();
  el.append(h("div", { className: "clw clw-slowest", role: "group", "aria-label": title }, heading, box, say, table, note));
}

export default { render };
