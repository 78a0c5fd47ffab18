// The page: its state, which is in the address, sorting, tabs, print and download. Deep
// links: #workflow=Shop&step=pay&sort=p99:desc&log=1 (any of them, in any order).

const state = { workflow: "", step: {}, sort: "", log: false, counts: false };
let printing = false;

// Adds buttons and sparklines to a step table; returns the function that sorts and marks it.
const prepareTable = (section, flow) => {
  const table = section.querySelector("table.steps");
  const heads = [...table.querySelectorAll("thead th")];
  for (const head of heads) {
    const key = head.dataset.key;
    const button = el("button", { type: "button" }, head.textContent);
    const order = key === "name" ? ["asc", "desc", ""] : ["desc", "asc", ""];
    button.onclick = () =>
      change(() => {
        const [now, way] = state.sort.split(":");
        const next = order[(now === key ? order.indexOf(way) : -1) + 1];
        state.sort = next ? `${key}:${next}` : "";
      });
    head.replaceChildren(button);
  }
  heads[0].parentNode.append(el("th", { scope: "col", class: "trend" }, "p99 over time"));
  for (const line of table.querySelectorAll("tbody tr, tfoot tr")) {
    const name = line.dataset.row;
    const head = line.querySelector("th");
    const button = el("button", { type: "button" }, name);
    head.replaceChildren(button);
    const row = line.closest("tfoot") ? flow.iteration : rowOf(flow, name);
    line.append(el("td", { class: "trend" }, spark(row, flow)));
    line.onclick = () => change(() => (state.step[flow.name] = name));
  }
  const body = table.querySelector("tbody");
  const original = [...body.rows];
  return () => {
    const [key, way] = state.sort.split(":");
    const place = heads.findIndex((head) => head.dataset.key === key);
    const sign = way === "asc" ? 1 : -1;
    const value = (line) => {
      const given = line.cells[place].dataset.value;
      return key === "name" ? given : Number(given);
    };
    const compare = (a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0);
    const lines = place < 0 ? original : [...original].sort(compare);
    if (lines.some((line, at) => body.rows[at] !== line)) body.append(...lines);
    heads.forEach((head, at) => {
      if (at === place) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    for (const line of table.querySelectorAll("tr[data-row]")) {
      line.querySelector("button").setAttribute("aria-pressed", line.dataset.row === chosen(flow));
    }
  };
};

// One section for each workflow; with several of them, tabs.
const sections = [...document.querySelectorAll("section.workflow")].map((section) => {
  const flow = doc.workflows.find((each) => each.name === section.dataset.workflow);
  return { section, flow, sort: prepareTable(section, flow), tab: null };
});
const makeTabs = () => {
  const bar = el("div", { role: "tablist", "aria-label": "Workflows" });
  for (const each of sections) {
    const { id } = each.section;
    const role = { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": id };
    each.tab = el("button", role, each.flow.name);
    each.tab.onclick = () => change(() => (state.workflow = each.flow.name));
    each.section.setAttribute("role", "tabpanel");
    each.section.setAttribute("aria-labelledby", each.tab.id);
    bar.append(each.tab);
  }
  bar.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const at = sections.findIndex((each) => each.flow.name === state.workflow);
    if (!step) return;
    const next = sections[(at + step + sections.length) % sections.length];
    change(() => (state.workflow = next.flow.name));
    next.tab.focus();
  };
  document.getElementById("workflows").before(bar);
};
const render = () => {
  const width = printing ? 680 : Math.max(document.getElementById("workflows").clientWidth, 280);
  for (const { section, flow, sort, tab } of sections) {
    const current = flow.name === state.workflow;
    if (tab) {
      section.hidden = !current && !printing;
      tab.setAttribute("aria-selected", current);
      tab.tabIndex = current ? 0 : -1;
    }
    sort();
    if (section.hidden) continue;
    drawPlots(section, flow, width);
    drawDistribution(section, flow, width);
  }
};

// The state is in the address, so that a view can be shared.
const fromAddress = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  const named = sections.find((each) => each.flow.name === given.get("workflow"));
  state.workflow = (named || sections[0] || { flow: { name: "" } }).flow.name;
  state.sort = given.get("sort") || "";
  state.log = given.get("log") === "1";
  state.step[state.workflow] = given.get("step") || "iteration";
};
const toAddress = () => {
  const step = state.step[state.workflow];
  const parts = new URLSearchParams();
  if (sections.length > 1) parts.set("workflow", state.workflow);
  if (step && step !== "iteration") parts.set("step", step);
  if (state.sort) parts.set("sort", state.sort);
  if (state.log) parts.set("log", "1");
  try {
    history.replaceState(null, "", `#${parts}`);
  } catch {
    /* a frame without an address */
  }
};
const change = (how) => {
  how();
  toAddress();
  render();
};

let opened = [];
const forPrint = (on) => {
  if (on) opened = [...document.querySelectorAll("details:not([open])")];
  for (const each of opened) each.open = on;
  printing = on;
  render();
};
const button = document.getElementById("download");
button.hidden = false;
button.onclick = () => {
  const blob = new Blob([document.getElementById("document").textContent], {
    type: "application/json",
  });
  const link = el("a", { href: URL.createObjectURL(blob), download: `squall-${doc.run.id}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
};
if (sections.length > 1) makeTabs();
fromAddress();
render();
addEventListener("hashchange", () => {
  fromAddress();
  render();
});
addEventListener("beforeprint", () => forPrint(true));
addEventListener("afterprint", () => forPrint(false));
let seen = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== seen && !printing) {
    seen = innerWidth;
    render();
  }
});
document.documentElement.dataset.ready = "true";
