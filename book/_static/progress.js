// The landing page's column "you": how many of a page's questions this browser has seen answered right.
(() => {
  const state = (key) => { try { return JSON.parse(localStorage.getItem(`clusterlab:${key}`))?.state || {}; } catch { return {}; } };
  const words = (keys) => {
    const states = keys.map(state);
    const right = states.filter((s) => s.right).length;
    if (!states.some((s) => s.tries)) return "not begun";
    return right === keys.length ? `all ${right} right` : `${right} of ${keys.length} right`;
  };
  const fill = () => {
    for (const cell of document.querySelectorAll("td[data-questions]")) {
      const keys = cell.dataset.questions.split(" ").filter(Boolean);
      cell.textContent = keys.length ? words(keys) : "–";
    }
    document.querySelector("table.study")?.classList.add("ready");
  };
  addEventListener("pageshow", fill); // also when one comes back
  fill();
})();
