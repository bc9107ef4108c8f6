// A table whose heads are buttons: each sorts by its column, the second time the other way round.
const h = (tag, props = {}, ...children) => {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) name in el ? (el[name] = value) : el.setAttribute(name, value);
  el.append(...children);
  return el;
};
const MISSING = "–"; // not published: always last
const number = (text) => (/^-?[\d,]+(\.\d+)?$/.test(text) ? Number(text.replaceAll(",", "")) : null);

function render({ model, el }) {
  const { name, heads, rows, anchors } = model.get("data");
  const body = h("tbody");
  const say = h("p", { className: "clw-quiet", role: "status" }, "Choose a head to sort by it.");
  const lines = rows.map((cells, i) => {
    const label = anchors[i] ? h("a", { href: `#${anchors[i]}` }, cells[0]) : cells[0];
    return { cells, line: h("tr", {}, h("th", { scope: "row" }, label), ...cells.slice(1).map((text) => h("td", {}, text))) };
  });
  body.append(...lines.map(({ line }) => line));
  let last = null;
  const columns = heads.map((head, column) => {
    const numeric = rows.every((cells) => cells[column] === MISSING || number(cells[column]) !== null);
    const button = h("button", { type: "button", onclick: () => sort(column, numeric) }, head);
    return h("th", { scope: "col" }, button);
  });

  function sort(column, numeric) {
    const down = last?.column === column ? !last.down : numeric; // numbers begin with the largest, names with A
    last = { column, down };
    const compare = (a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      if ((x === MISSING) !== (y === MISSING)) return x === MISSING ? 1 : -1;
      const order = numeric ? number(x) - number(y) : x.localeCompare(y, "en", { numeric: true });
      return down ? -order : order;
    };
    body.append(...[...lines].sort(compare).map(({ line }) => line));
    columns.forEach((th, i) => (i === column ? th.setAttribute("aria-sort", down ? "descending" : "ascending") : th.removeAttribute("aria-sort")));
    say.textContent = `Sorted by ${heads[column]}, ${numeric ? (down ? "largest" : "smallest") : (down ? "Z" : "A")} first.`;
  }

  const table = h("table", {}, h("thead", {}, h("tr", {}, ...columns)), body);
  el.append(h("div", { className: "clw clw-catalogue" }, say,
    h("div", { className: "clw-scroll", tabIndex: 0, role: "region", "aria-label": `Table: ${name}` }, table)));
}

export default { render };
