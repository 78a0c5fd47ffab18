// The page of one run. It keeps what the events bring and draws all of it once a second.

import { byId, clock, digits, events, fill, heads, make, ms, percent, post, request, show, sleep, text } from "./page.js";
import { HeatMap, Lines } from "./charts.js";

const POINTS_MAX = 7200;
const LOG_MAX = 1000;
const GENERATOR = "iteration";

const run = { head: null, points: [], now: null, log: [], mayControl: false, key: "", over: false, paused: false };
const view = { workflow: "", row: "" };
let earlier = null;
let charts = null;
let asked = false;

// Events.

const on = {
  hello(head) {
    Object.assign(run, { points: [], now: null, log: [], mayControl: head.mayControl, key: head.key });
    on.start(head);
  },
  start(head) { run.head = head; drawHead(); },
  history(points) { run.points.push(...points); },
  now(snapshot) { run.now = snapshot; draw(); },
  second({ point, now }) {
    run.points.push(point);
    run.now = now;
    if (run.points.length > POINTS_MAX) {
      const half = run.points.length >> 1;
      run.points = run.points.filter((_, index) => index >= half || index % 2 === 0);
    }
    draw();
  },
  log(lines) {
    run.log.push(...lines);
    run.log.splice(0, run.log.length - LOG_MAX);
    const box = byId("log"), below = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    text("log", run.log.join("\n"));
    if (below) box.scrollTop = box.scrollHeight;
  },
  notice(words) { run.head.notice = words; drawHead(); },
  end({ report, reason }) {
    run.over = true;
    if (run.head) Object.assign(run.head, { notice: reason, controls: { load: false, stop: false } });
    drawHead();
    run.closing = report ? loadReport() : Promise.resolve();
  },
};

async function follow() {
  for (;;) {
    const stopping = new AbortController();
    try {
      await events("api/events", (name, data) => {
        setLink("live", "good");
        if (on[name]) on[name](data);
        // The command waits until the report is here; then it may end.
        if (name === "end") run.closing.finally(() => stopping.abort());
      }, stopping.signal);
    } catch (error) {
      if (error.isFinal) { setLink(error.message, "bad"); return; }
    }
    if (run.over) { setLink("over", "dim"); return; }
    setLink("no connection, trying again", "bad");
    await sleep(1000);
  }
}

async function loadReport() {
  const key = run.key ? `?key=${encodeURIComponent(run.key)}` : "";
  try {
    // Everything is fetched now, because the command ends soon.
    const results = await (await request("results.json")).blob();
    const html = await (await request("report.html")).blob();
    byId("results").href = URL.createObjectURL(results);
    byId("html").href = URL.createObjectURL(html);
    const frame = byId("report");
    const loaded = new Promise((done) => { frame.onload = done; });
    show("report-box", true);
    frame.src = `report.html${key}`;
    await loaded;
    frame.dataset.loaded = "true";
    if (earlier) await judge();
  } catch (error) {
    run.head.notice = `the report could not be loaded: ${error.message}`;
    drawHead();
  }
}

// Head and controls.

function setLink(words, kind) {
  const link = byId("link");
  if (link.textContent === words) return;
  link.textContent = words;
  link.className = `badge ${kind}`;
}

function planned() { return run.head && run.head.manifest ? run.head.manifest.workflows : []; }

function chosen() { return planned().find((each) => each.name === view.workflow); }

function drawHead() {
  const head = run.head, manifest = head.manifest;
  document.title = `${head.name} - Squall`;
  text("title", head.name);
  text("notice", head.notice || "");
  show("notice", Boolean(head.notice));
  show("controls", run.mayControl && head.controls.load);
  show("stop", head.controls.stop);
  show("read-only", !run.mayControl && !run.over);
  if (!manifest) return;
  if (!chosen()) view.workflow = (planned().find((each) => each.isTest) || planned()[0] || { name: "" }).name;
  const buttons = planned().map((each) => {
    const button = make("button", each.name);
    button.setAttribute("aria-pressed", String(each.name === view.workflow));
    button.onclick = () => { view.workflow = each.name; view.row = ""; drawHead(); draw(); };
    return button;
  });
  show("workflows", buttons.length > 1);
  byId("workflows").replaceChildren(...buttons);
  const one = chosen();
  text("load", one ? `${one.name}: ${one.load}` : "");
  text("level-name", one && one.isOpen ? "rate/s" : "users");
}

function control(id, action) {
  byId(id).onclick = async () => {
    text("answer", "");
    try { await action(); } catch (error) { text("answer", error.message); }
  };
}

function change(body) { return post("api/change", body); }

control("pause", () => change({ paused: !run.paused }));
control("more", () => change({ workflow: view.workflow, factor: 1.1 }));
control("less", () => change({ workflow: view.workflow, factor: 1 / 1.1 }));
control("set", () => {
  const value = Number(byId("level").value);
  if (byId("level").value.trim() === "" || !(value >= 0)) throw new Error("write a number");
  return change(chosen().isOpen ? { workflow: view.workflow, rate_per_s: value } : { workflow: view.workflow, vus: Math.round(value) });
});
control("stop", async () => {
  await post("api/stop", { now: asked });
  asked = true;
  text("stop", "Stop now");
});
byId("level").onkeydown = (event) => { if (event.key === "Enter") byId("set").click(); };

// Charts.

function part(point) {
  const workflow = point.w[view.workflow];
  if (!workflow || !view.row) return workflow;
  const row = workflow.rows[view.row];
  return row && { ...row, g: null, u: workflow.u };
}

// The latencies of a workflow: those of its steps, or of the iteration where it has none.
function bands(point) {
  const workflow = point.w[view.workflow];
  if (!workflow) return [];
  if (view.row) return (workflow.rows[view.row] || { b: [] }).b;
  const steps = Object.entries(workflow.rows).filter(([name]) => name !== GENERATOR);
  const rows = steps.length ? steps.map(([, row]) => row) : Object.values(workflow.rows);
  return rows.flatMap((row) => row.b);
}

function makeCharts() {
  charts = {
    rate: new Lines("rate", [["planned", "plan", true], ["made", "one"], ["failed", "bad"], ["earlier", "dim", true]]),
    latency: new Lines("latency", [["p50", "one"], ["p95", "two"], ["p99", "three"], ["earlier p95", "dim", true]]),
    heat: new HeatMap("heat"),
    users: new Lines("users", [["users", "one"]]),
    generator: new Lines("generator", [["CPU %", "one"], ["lag ms", "three", false, "lag"]]),
  };
}

function drawCharts() {
  if (!charts) makeCharts();
  const points = run.points, times = points.map((point) => point.t), parts = points.map(part);
  const pick = (take) => parts.map((each) => (each ? take(each) : null));
  const quantile = (index) => pick((each) => (each.q ? each.q[index] : null));
  const before = earlierCurves(times);
  charts.rate.set([times, pick((each) => each.g ?? null), pick((each) => each.r), pick((each) => each.f), before.rate]);
  charts.latency.set([times, quantile(0), quantile(1), quantile(2), before.p95]);
  charts.heat.set(points.map((point) => [point.t, bands(point)]));
  charts.users.set([times, pick((each) => each.u)]);
  charts.generator.set([times, points.map((point) => point.cpu * 100), points.map((point) => point.lag)]);
  text("rate-name", view.row ? `${view.workflow}.${view.row}` : view.workflow);
}

byId("log-scale").onchange = (event) => charts && charts.latency.useLog(event.target.checked);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (charts) { for (const name of ["rate", "latency", "users", "generator"]) charts[name].build(); charts.heat.draw(); }
});

// Tables.

const n = (value) => [value, "n"];

function draw() {
  const now = run.now;
  if (!now || !run.head || !run.head.manifest) return;
  const workflow = now.workflows.find((each) => each.name === view.workflow);
  const plan = chosen();
  drawCharts();
  text("clock", plan && plan.duration ? `${clock(now.elapsed_s)} / ${clock(plan.duration)}` : clock(now.elapsed_s));
  const verdict = byId("verdict");
  verdict.textContent = now.headline ? `${now.verdict}: ${now.headline}` : now.verdict;
  verdict.className = `badge ${{ VALID: "good", DEGRADED: "warn" }[now.verdict] || "bad"}`;
  text("reasons", now.reasons.join("; "));
  show("reasons", now.reasons.length > 0);
  text("where", now.where);
  run.paused = now.workflows.some((each) => each.paused);
  text("pause", run.paused ? "Resume" : "Pause");
  show("paused", run.paused);
  document.documentElement.dataset.paused = String(run.paused);
  if (workflow) drawWorkflow(workflow);
  drawThresholds(now);
  drawCluster(now);
}

function drawWorkflow(workflow) {
  heads("steps", [["step"], ["count", "n"], ["rate/s", "n"], ["failed", "n"], ["p50 ms", "n"], ["p95 ms", "n"], ["p99 ms", "n"], ["p99.9 ms", "n"], ["max ms", "n"]]);
  fill("steps", workflow.rows.map((row) => [
    [row.name], n(String(row.count)), n(digits(row.rate_now_per_s)),
    [row.count ? percent(row.failed / row.count) : "-", row.failed ? "n bad" : "n"],
    n(ms(row.p50_s)), n(ms(row.p95_s)), n(ms(row.p99_s)), n(ms(row.p999_s)), n(ms(row.max_s)),
  ]), (element, index) => {
    const name = workflow.rows[index].name;
    element.dataset.row = name;
    element.tabIndex = 0;
    element.setAttribute("aria-selected", String(view.row === name));
    element.onclick = () => { view.row = view.row === name ? "" : name; draw(); };
    element.onkeydown = (event) => { if (event.key === "Enter") element.click(); };
  });
  fill("errors", workflow.errors.length ? workflow.errors.map((each) => [n(String(each.count)), [each.row], [each.reason, "text"]]) : [[["none", "dim"]]]);
  fill("facts", [
    [["CPU of a core, mean of processes"], n(`${percent(run.now.cpu)} of ${run.now.processes}`)],
    [["loop lag p99 ms"], n(ms(run.now.lag_p99_s))],
    [["users now, busy, most"], n(`${workflow.users}, ${workflow.busy}, ${workflow.users_max}`)],
    [["starts planned, made"], n(`${workflow.planned}, ${workflow.made}`)],
    [["late, dropped"], n(`${workflow.late}, ${workflow.dropped}`)],
    [["checks passed, failed"], n(`${workflow.checks_passed}, ${workflow.checks_failed}`)],
    [["sent, received MB"], n(`${digits(workflow.bytes_sent / 1e6)}, ${digits(workflow.bytes_received / 1e6)}`)],
  ]);
}

function drawThresholds(now) {
  const signs = { passing: ["✓", "good"], failing: ["✗", "bad"], pending: ["…", "dim"] };
  show("thresholds-box", now.thresholds.length > 0);
  fill("thresholds", now.thresholds.map((each) => [
    signs[each.condition], [each.expression, "text"],
    n(each.value === null ? "" : `${digits(each.value)} ${each.unit}`),
  ]));
}

function drawCluster(now) {
  const places = now.datacenters || [];
  show("datacenters-box", places.length > 0);
  if (places.length) {
    heads("datacenters", [["datacenter"], ["part", "n"], ["state"], ["workers", "n"], ["rate/s", "n"], ["failed", "n"], ["p95 ms", "n"], [""]]);
    fill("datacenters", places.map((each) => [
      [each.name], n(percent(each.part)), [each.state || "", each.state === "lost" ? "bad" : ""], n(String(each.workers || 0)),
      n(digits(each.iterations_now_per_s || 0)), n(percent(each.failed_now_share || 0)), n(ms(each.p95_now_s || 0)),
      [each.silent_s ? `silent for ${digits(each.silent_s)} s` : each.note || "", "text bad"],
    ]));
  }
  show("losses-box", now.losses.length > 0);
  byId("losses").replaceChildren(...now.losses.map((line) => make("li", line, "bad")));
}

// An earlier run.

function earlierCurves(times) {
  const nothing = times.map(() => null);
  const workflow = earlier && earlier.workflows.find((each) => each.name === view.workflow);
  if (!workflow) return { rate: nothing, p95: nothing };
  const row = view.row && view.row !== GENERATOR ? workflow.steps.find((each) => each.name === view.row) : workflow.iteration;
  const windows = row && row.windows;
  if (!windows) return { rate: nothing, p95: nothing };
  const at = (values, time, scale) => {
    const value = values[Math.floor((time - 1 - windows.start_s) / windows.every_s)];
    return value === undefined || value === null ? null : value / scale;
  };
  return { rate: times.map((time) => at(windows.count, time, windows.every_s)), p95: times.map((time) => at(windows.p95, time, 1)) };
}

async function judge() {
  show("comparison", true);
  try {
    text("comparison", (await post("api/compare", JSON.stringify(earlier))).text);
  } catch (error) {
    text("comparison", error.message);
  }
}

byId("earlier").onchange = async (event) => {
  const [file] = event.target.files;
  try {
    const found = file ? JSON.parse(await file.text()) : null;
    if (found && !(String(found.schema).startsWith("squall.results/") && Array.isArray(found.workflows))) throw new Error("no results document");
    earlier = found;
    show("comparison", Boolean(found));
    text("comparison", found ? "The judgement follows at the end of the run." : "");
    draw();
  } catch (error) {
    earlier = null;
    show("comparison", true);
    text("comparison", `${file.name}: ${error.message}`);
  }
};

document.documentElement.dataset.ready = "true";
follow();
