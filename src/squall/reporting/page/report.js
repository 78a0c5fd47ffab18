"use strict";
// Draws the plots of the report from the document in the page. Deep links:
// #workflow=Shop&step=pay&sort=p99:desc&log=1 (any of them, in any order).
(() => {
  const LEAST_SAMPLES = 20; // a quantile of fewer is noise: the line has a gap there
  const MOST_POINTS = 400; // more than a plot has pixels for
  const WIDTHS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600]; // windows that make one point
  const LEFT = 50, RIGHT = 10; // margins in pixels, equal in all plots: one x axis for all
  const QUANTILES = [["p50", 0.5], ["p95", 0.95], ["p99", 0.99]];
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const doc = read("document"), { limits, offended } = read("judgement");
  const state = { workflow: "", step: {}, sort: "", log: false, counts: false };
  let printing = false;

  // Elements: texts only ever become text nodes, so nothing of the document is parsed.
  const make = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const el = (name, attributes = {}, ...children) => make(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) =>
    make(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

  // Numbers: three significant digits, as in the tables.
  const digits = (value) => {
    if (!value) return "0";
    const exponent = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3)))));
    return value.toFixed(Math.max(0, Math.min(2 - exponent, 6)));
  };
  const short = (value) => String(Number(value.toPrecision(3)));
  const time = (ms) => (ms === null || ms === undefined ? "-" : ms >= 999.5 ? `${digits(ms / 1e3)} s` : `${digits(ms)} ms`);
  const clock = (s) => {
    const two = (n) => String(n).padStart(2, "0"), whole = Math.floor(s + 1e-6);
    const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
    return whole >= 3600 ? `${Math.floor(whole / 3600)}:${rest}` : rest;
  };
  const sum = (list) => list.reduce((total, each) => total + each, 0);
  const most = (list) => list.reduce((best, each) => Math.max(best, each), 0);

  // The histogram "log2-64": 64 buckets for each power of two of a microsecond.
  const edgeMs = (index) => (2 ** Math.floor(index / 64) * (1 + (index % 64) / 64)) / 1e3;
  const quantile = (buckets, count, q) => {
    let seen = 0;
    for (const [index, n] of buckets) if ((seen += n) >= q * count * (1 - 1e-12)) return (edgeMs(index) + edgeMs(index + 1)) / 2;
    return null;
  };
  const merged = (parts) => {
    const all = new Map();
    for (const part of parts) for (const [index, n] of part) all.set(index, (all.get(index) || 0) + n);
    return [...all].sort((a, b) => a[0] - b[0]);
  };

  // Windows as points {t, end, ...} on the run's clock, neighbours joined where need be.
  const joined = (length, every, from, to, width, point) => {
    const points = [];
    for (let i = 0; i < length; i += width) {
      const t = from + i * every, end = Math.min(t + width * every, Math.max(to, t));
      points.push({ t, end, span: end - t, ...point(i, Math.min(i + width, length)) });
    }
    return points;
  };
  const latencyWidth = (count) => {
    const enough = (width) => {
      let good = 0, used = 0;
      for (let i = 0; i < count.length; i += width) {
        const samples = sum(count.slice(i, i + width));
        used += samples > 0;
        good += samples >= LEAST_SAMPLES;
      }
      return good * 2 >= used;
    };
    const fits = WIDTHS.filter((width) => count.length / width <= MOST_POINTS);
    return fits.find((width) => enough(width) || count.length / width <= 12) || WIDTHS.at(-1);
  };
  const coarse = (length) => WIDTHS.find((width) => length / width <= MOST_POINTS) || WIDTHS.at(-1);

  const known = new Map(); // merging the buckets of a long run is worth doing once
  const latencyPoints = (row, flow) => {
    if (!known.has(row)) known.set(row, quantilePoints(row, flow));
    return known.get(row);
  };
  const quantilePoints = (row, flow) => {
    const w = row.windows, width = latencyWidth(w.count), to = flow.started_at_s + flow.elapsed_s;
    const points = joined(w.count.length, w.every_s, flow.started_at_s, to, width, (a, b) => {
      const count = sum(w.count.slice(a, b));
      if (count < LEAST_SAMPLES) return { p50: null, p95: null, p99: null };
      if (width === 1) return { p50: w.p50[a], p95: w.p95[a], p99: w.p99[a] };
      const buckets = merged(w.buckets.slice(a, b));
      return Object.fromEntries(QUANTILES.map(([name, q]) => [name, quantile(buckets, count, q)]));
    });
    return { points, every: width * w.every_s };
  };
  // The end of a run leaves a piece of a window: under half of one it says nothing.
  const long = (windows) => (p, place) => !place || p.span >= 0.5 * windows.every_s;
  const ratePoints = (row, flow) => {
    const w = row.windows, load = flow.windows, to = flow.started_at_s + flow.elapsed_s;
    const finer = w.every_s / load.every_s; // both are halved on their own when a run gets long
    const planned = (a, b) => {
      const low = Math.floor(a * finer), high = Math.max(low + 1, Math.round(b * finer));
      return (sum(load.planned.slice(low, high)) * (b - a) * finer) / (high - low);
    };
    const points = joined(w.count.length, w.every_s, flow.started_at_s, to, coarse(w.count.length), (a, b) => ({
      count: sum(w.count.slice(a, b)), failed: sum(w.failed.slice(a, b)), planned: planned(a, b),
    }));
    return points.filter(long(w)).map((p) => ({
      ...p, achieved: p.count / p.span, failed: p.failed / p.span, planned: p.planned / p.span,
    }));
  };
  const loadPoints = (flow) => {
    const w = flow.windows, to = flow.started_at_s + flow.elapsed_s;
    return joined(w.users.length, w.every_s, flow.started_at_s, to, coarse(w.users.length), (a, b) => {
      const planned = sum(w.planned.slice(a, b)), late = sum(w.late.slice(a, b));
      const lost = flow.profile.model.startsWith("open") && (sum(w.dropped.slice(a, b)) > 0 || late > limits.late_share * planned);
      return { users: most(w.users.slice(a, b)), busy: most(w.busy.slice(a, b)), bad: offended.starts && lost };
    }).filter(long(w));
  };
  const healthPoints = (flow) => {
    const w = doc.generator.windows, from = flow.started_at_s, to = from + flow.elapsed_s;
    const points = joined(w.cpu.length, w.every_s, 0, Infinity, coarse(w.cpu.length), (a, b) => {
      const cpu = most(w.cpu_max.slice(a, b)) * 100, lag = most(w.loop_lag_p99_ms.slice(a, b));
      return { cpu, lag, full: offended.cpu && cpu >= limits.cpu * 100 && lag >= limits.saturated_lag_ms, slow: offended.lag && lag > limits.lag_ms };
    });
    return points.filter((p) => p.t < to && p.end > from).map((p) => ({ ...p, t: Math.max(p.t, from), end: Math.min(p.end, to) }));
  };

  // Scales and ticks.
  const niceStep = (span, wanted) => {
    const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
    return power * ([1, 2, 2.5, 5].find((n) => n * power >= rough) || 10);
  };
  const timeTicks = (from, to, width) => {
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400]
      .find((s) => ((to - from) / s) * 70 <= width) || 86400 * Math.ceil((to - from) / 86400 / 8);
    const ticks = [];
    for (let t = Math.ceil(from / step) * step; t <= to + 1e-9; t += step) ticks.push(t);
    return ticks;
  };
  const logTicks = (low, high) => {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const n of high / low > 300 ? [1] : high / low > 12 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]) if (n * 10 ** power >= low && n * 10 ** power <= high) ticks.push(n * 10 ** power);
    }
    return ticks;
  };
  const verticals = (values, height, log, ceiling, wanted) => {
    const positive = values.filter((v) => v > 0);
    if (log && positive.length) {
      const low = Math.min(...positive) * 0.8, high = Math.max(...positive) * 1.25, k = height / Math.log(high / low);
      return { y: (v) => height - Math.max(0, Math.log(Math.max(v, low) / low)) * k, ticks: logTicks(low, high) };
    }
    const high = ceiling || most(values) * 1.08 || 1, step = niceStep(high, wanted), ticks = [];
    for (let v = 0; v <= high * 1.0001; v += step) ticks.push(v);
    return { y: (v) => height - (v / high) * height, ticks };
  };

  // Paths. A step keeps the value of its window; a line runs through the middles.
  const stepPath = (points, key, x, y, close) => {
    if (!points.length) return "";
    const path = points.map((p) => `L${x(p.t)} ${y(p[key])}H${x(p.end)}`).join("");
    return close ? `M${x(points[0].t)} ${y(0)}${path}V${y(0)}Z` : `M${path.slice(1)}`;
  };
  const linePath = (points, key, x, y) => {
    let path = "", open = false;
    for (const p of points) {
      if (p[key] === null) { open = false; continue; }
      const at = `${x((p.t + p.end) / 2)} ${y(p[key])}`;
      path += open ? `L${at}` : `M${at}h.01`; // the dot shows a point between two gaps
      open = true;
    }
    return path;
  };

  const plot = (spec, from, to, width) => {
    const inner = width - LEFT - RIGHT, { height, points, marks } = spec, bottom = spec.axis ? 20 : 4;
    const x = (t) => +(LEFT + ((t - from) / (to - from || 1)) * inner).toFixed(2);
    const values = marks.flatMap((mark) => points.map((p) => p[mark.key])).filter((v) => v !== null);
    const scale = verticals(values, height, spec.log, spec.ceiling, spec.wanted || 4), y = (v) => +(scale.y(v) + 8).toFixed(2);
    const root = svg("svg", {
      viewBox: `0 0 ${width} ${height + 8 + bottom}`, role: "img", "data-plot": spec.name,
      "data-points": points.filter((p) => p[marks[0].key] !== null).length,
      "data-gaps": points.filter((p) => p[marks[0].key] === null).length,
      "data-offences": points.filter((p) => p[spec.bad]).length,
      "aria-label": `${spec.title}: ${marks.map((m) => `${m.label} ${m.whole}`).join(", ")}`,
    });
    for (const v of scale.ticks) {
      root.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
        svg("text", { x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, short(v)));
    }
    for (const p of points.filter((each) => each[spec.bad]))
      root.append(svg("rect", { class: "offence", x: x(p.t), width: Math.max(x(p.end) - x(p.t), 1), y: 8, height }));
    for (const mark of marks) {
      const d = mark.kind === "line" ? linePath(points, mark.key, x, y) : stepPath(points, mark.key, x, y, mark.kind === "area");
      root.append(svg("path", { class: `${mark.kind} ${mark.key}`, d }));
    }
    if (spec.axis) for (const t of timeTicks(from, to, inner))
      root.append(svg("text", { x: x(t), y: height + 24, "text-anchor": "middle" }, clock(t)));
    if (!values.length) root.append(svg("text", { x: LEFT + inner / 2, y: height / 2 + 12, "text-anchor": "middle" }, spec.empty || "no samples"));
    root.append(svg("line", { class: "cursor", y1: 8, y2: height + 8, visibility: "hidden" }));
    return root;
  };

  const rowOf = (flow, name) => flow.steps.find((step) => step.name === name) || flow.iteration;
  const chosen = (flow) => (flow.steps.some((step) => step.name === state.step[flow.name]) ? state.step[flow.name] : "iteration");

  const specs = (flow, row) => {
    const whole = row.latency_ms || {}, latency = latencyPoints(row, flow), rates = ratePoints(row, flow);
    const load = loadPoints(flow), health = healthPoints(flow), name = chosen(flow);
    // Only iterations are planned: a step of a mix is not started by each of them.
    const planned = flow.profile.model.startsWith("open") && row === flow.iteration;
    const perS = (count) => `${digits(flow.measured_s ? count / flow.measured_s : 0)}/s`;
    const mark = (kind, key, label, show, all) => ({ kind, key, label, show, whole: all });
    const each = (v) => `${digits(v)}/s`, count = (v) => String(v), part = (v) => `${v.toFixed(0)} %`;
    return [
      { name: "rate", title: `Rate of ${name}`, note: "per second", height: 120, points: rates, marks: [
        mark("area", "achieved", "achieved", each, perS(row.count)), mark("area", "failed", "failed", each, perS(row.failed)),
        ...(planned ? [mark("step", "planned", "planned", each, perS(flow.starts.planned))] : [])] },
      { name: "latency", title: `Latency of ${name}`, note: `ms, windows of ${latency.every} s`, height: 170, points: latency.points, log: state.log,
        empty: `no window has ${LEAST_SAMPLES} samples`, marks: QUANTILES.map(([q]) => mark("line", q, q, time, time(whole[q]))) },
      { name: "users", title: "Users", note: "", height: 44, points: load, wanted: 2, bad: "bad", marks: [
        mark("step", "users", "users", count, count(flow.vus)), mark("area", "busy", "busy", count, count(flow.busy_max))] },
      { name: "cpu", title: "Generator CPU", note: "% of a core, fullest process", height: 44, points: health, wanted: 2, bad: "full",
        ceiling: Math.max(100, most(health.map((p) => p.cpu))), marks: [mark("step", "cpu", "cpu", part, `at most ${part(most(health.map((p) => p.cpu)))}`)] },
      { name: "lag", title: "Loop lag", note: "p99, ms", height: 44, points: health, wanted: 2, bad: "slow", axis: true,
        marks: [mark("step", "lag", "lag", time, `at most ${time(most(health.map((p) => p.lag)))}`)] },
    ];
  };

  const drawPlots = (section, flow, width) => {
    const box = section.querySelector(".plots"), from = flow.started_at_s, to = from + flow.elapsed_s;
    const options = ["iteration", ...flow.steps.map((step) => step.name)].map((name) => {
      const option = el("option", { value: name }, name);
      option.selected = name === chosen(flow);
      return option;
    });
    const picker = el("select", {}, ...options), log = el("input", { type: "checkbox" }), at = el("output", { class: "at" });
    log.checked = state.log;
    picker.onchange = () => change(() => { state.step[flow.name] = picker.value; }, box.querySelector.bind(box, "select"));
    log.onchange = () => change(() => { state.log = log.checked; }, box.querySelector.bind(box, "input"));
    const bar = el("div", { class: "bar" }, el("label", {}, "Show ", picker), el("label", {}, log, " log latency"), at);
    const shown = specs(flow, rowOf(flow, chosen(flow))).map((spec) => {
      const keys = spec.marks.map((mark) => {
        const value = el("b", {}, mark.whole);
        return { mark, value, node: el("span", { class: `key ${mark.key}` }, `${mark.label} `, value) };
      });
      const drawn = plot(spec, from, to, width);
      const figure = el("figure", { class: `${spec.name} plot` },
        el("figcaption", {}, el("strong", {}, spec.title), el("small", {}, spec.note), ...keys.map((key) => key.node)), drawn);
      return { spec, keys, drawn, figure };
    });
    const frame = el("div", { class: "frame", tabindex: 0, role: "group", "aria-label": "Plots over time; arrow keys move the line" }, ...shown.map((each) => each.figure));
    let cursor = null;
    const point = (t) => {
      cursor = t === null ? null : Math.min(Math.max(t, from), to);
      at.value = cursor === null ? "" : clock(cursor);
      for (const { spec, keys, drawn } of shown) {
        const line = drawn.querySelector(".cursor"), x = LEFT + ((cursor - from) / (to - from || 1)) * (width - LEFT - RIGHT);
        make(line, { x1: x, x2: x, visibility: cursor === null ? "hidden" : "visible" }, []);
        const p = cursor === null ? null : spec.points.find((each) => cursor >= each.t && cursor < each.end);
        for (const { mark, value } of keys) value.textContent = cursor === null ? mark.whole : !p || p[mark.key] === null ? "-" : mark.show(p[mark.key]);
      }
    };
    frame.onpointermove = (event) => {
      const area = shown[0].drawn.getBoundingClientRect(), x = ((event.clientX - area.left) / area.width) * width;
      point(from + ((x - LEFT) / (width - LEFT - RIGHT)) * (to - from));
    };
    frame.onpointerleave = frame.onblur = () => point(null);
    frame.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") point(null);
      if (!step) return;
      event.preventDefault();
      const every = flow.windows.every_s;
      point(cursor === null ? from + every / 2 : cursor + step * Math.max(every, (to - from) / MOST_POINTS));
    };
    box.replaceChildren(bar, frame);
    box.hidden = false;
  };

  const drawDistribution = (section, flow, width) => {
    const box = section.querySelector(".distribution"), name = chosen(flow), row = rowOf(flow, name);
    box.hidden = !row.latency_ms;
    if (box.hidden) return;
    const sets = [["response", row.histogram], ...(row.service_histogram ? [["service", row.service_histogram]] : [])];
    const ends = sets.flatMap(([, h]) => [h.buckets[0][0], h.buckets.at(-1)[0]]), first = Math.min(...ends), last = Math.max(...ends);
    // Few samples in many bars would be a comb; the cube root is the usual measure.
    const mostBars = Math.min((width - LEFT) / 7, 4 * Math.cbrt(row.histogram.count) + 4);
    const fold = [2, 4, 8, 16, 32].find((n) => (last - first) / n <= mostBars) || 64;
    const lowest = Math.floor(first / fold) * fold, highest = (Math.floor(last / fold) + 1) * fold, height = 170, top = 52;
    const x = (ms) => +(LEFT + (Math.log(Math.max(ms, edgeMs(lowest)) / edgeMs(lowest)) / Math.log(edgeMs(highest) / edgeMs(lowest))) * (width - LEFT - RIGHT)).toFixed(2);
    const bars = sets.map(([kind, h]) => {
      const counts = new Map();
      for (const [index, n] of h.buckets) { const at = Math.floor(index / fold) * fold; counts.set(at, (counts.get(at) || 0) + n); }
      const list = [];
      for (let at = lowest; at < highest; at += fold) list.push({ t: edgeMs(at), end: edgeMs(at + fold), n: counts.get(at) || 0, share: (100 * (counts.get(at) || 0)) / h.count });
      return [kind, list];
    });
    const scale = verticals(bars.flatMap(([, list]) => list.map((bar) => bar.share)), height, state.counts, 0, 4), y = (v) => +(scale.y(v) + top).toFixed(2);
    const root = svg("svg", { viewBox: `0 0 ${width} ${top + height + 22}`, role: "img", "data-plot": "distribution", "data-step": name,
      "data-points": bars[0][1].filter((bar) => bar.n).length, "aria-label": `Distribution of ${name}: ${QUANTILES.map(([q]) => `${q} ${time(row.latency_ms[q])}`).join(", ")}` });
    for (const v of scale.ticks) root.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
      svg("text", { x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, `${short(v)} %`));
    for (const bar of bars[0][1].filter((each) => each.n)) root.append(svg("rect", { class: "response", x: x(bar.t) + 0.5, y: y(bar.share), width: Math.max(x(bar.end) - x(bar.t) - 1, 0.5), height: Math.max(top + height - y(bar.share), 0.5) },
      svg("title", {}, `${time(bar.t)} to ${time(bar.end)}: ${bar.n} (${digits(bar.share)} %)`)));
    if (bars[1]) root.append(svg("path", { class: "service", d: stepPath(bars[1][1], "share", x, y, false) }));
    for (const v of logTicks(edgeMs(lowest), edgeMs(highest))) root.append(svg("text", { x: x(v), y: top + height + 18, "text-anchor": "middle" }, v >= 1000 ? `${short(v / 1e3)} s` : `${short(v)} ms`));
    const labels = QUANTILES.map(([q], place) => {
      const at = x(row.latency_ms[q]), left = at > width - 120;
      root.append(svg("line", { class: "quantile", x1: at, x2: at, y1: 10 + place * 13, y2: top + height }));
      return svg("text", { class: "label", x: left ? at - 5 : at + 5, y: 19 + place * 13, "text-anchor": left ? "end" : "start" }, `${q} ${time(row.latency_ms[q])}`);
    });
    root.append(...labels); // above all three lines
    const log = el("input", { type: "checkbox" });
    log.checked = state.counts;
    log.onchange = () => change(() => { state.counts = log.checked; }, box.querySelector.bind(box, "input"));
    const caption = el("figcaption", {}, el("strong", {}, `Distribution of ${name}`), el("small", {}, "share of samples, log time"),
      el("span", { class: "key response" }, bars[1] ? "response time, from the planned start" : "response time"), bars[1] ? el("span", { class: "key service" }, "service time, from the real send") : null, el("label", {}, log, " log share"));
    box.replaceChildren(el("figure", { class: "plot" }, caption, root));
  };

  const spark = (row, flow) => {
    const { points } = latencyPoints(row, flow), values = points.map((p) => p.p99).filter((v) => v !== null), high = most(values) || 1;
    const end = flow.started_at_s + flow.elapsed_s, x = (t) => +(((t - flow.started_at_s) / (end - flow.started_at_s || 1)) * 60).toFixed(1);
    return svg("svg", { class: "spark", viewBox: "0 0 60 18", width: 60, height: 18, "data-points": values.length, "aria-hidden": "true" },
      svg("path", { class: "line p99", d: linePath(points, "p99", x, (v) => +(17 - (v / high) * 16).toFixed(1)) }));
  };

  const prepareTable = (section, flow) => {
    const table = section.querySelector("table.steps"), heads = [...table.querySelectorAll("thead th")];
    for (const head of heads) {
      const key = head.dataset.key, button = el("button", { type: "button" }, head.textContent);
      const order = key === "name" ? ["asc", "desc", ""] : ["desc", "asc", ""];
      button.onclick = () => change(() => {
        const [now, way] = state.sort.split(":"), next = order[(now === key ? order.indexOf(way) : -1) + 1];
        state.sort = next ? `${key}:${next}` : "";
      });
      head.replaceChildren(button);
    }
    heads[0].parentNode.append(el("th", { scope: "col", class: "trend" }, "p99 over time"));
    for (const line of table.querySelectorAll("tbody tr, tfoot tr")) {
      const name = line.dataset.row, head = line.querySelector("th"), button = el("button", { type: "button" }, name);
      head.replaceChildren(button);
      line.append(el("td", { class: "trend" }, spark(line.closest("tfoot") ? flow.iteration : rowOf(flow, name), flow)));
      line.onclick = () => change(() => { state.step[flow.name] = name; });
    }
    const body = table.querySelector("tbody"), original = [...body.rows];
    return () => {
      const [key, way] = state.sort.split(":"), place = heads.findIndex((head) => head.dataset.key === key);
      const value = (line) => (place ? Number(line.cells[place].dataset.value) : line.cells[place].dataset.value);
      const lines = place < 0 ? original : [...original].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (way === "asc" ? 1 : -1));
      if (lines.some((line, at) => body.rows[at] !== line)) body.append(...lines);
      heads.forEach((head, at) => (at === place ? head.setAttribute("aria-sort", way === "asc" ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
      for (const line of table.querySelectorAll("tr[data-row]")) line.querySelector("button").setAttribute("aria-pressed", line.dataset.row === chosen(flow));
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
      each.tab = el("button", { type: "button", role: "tab", id: `tab-${each.section.id}`, "aria-controls": each.section.id }, each.flow.name);
      each.tab.onclick = () => change(() => { state.workflow = each.flow.name; });
      each.section.setAttribute("role", "tabpanel");
      each.section.setAttribute("aria-labelledby", each.tab.id);
      bar.append(each.tab);
    }
    bar.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], at = sections.findIndex((each) => each.flow.name === state.workflow);
      if (!step) return;
      const next = sections[(at + step + sections.length) % sections.length];
      change(() => { state.workflow = next.flow.name; });
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

  // The state lives in the address, so that a view can be handed on.
  const fromAddress = () => {
    const given = new URLSearchParams(location.hash.slice(1)), named = sections.find((each) => each.flow.name === given.get("workflow"));
    state.workflow = (named || sections[0] || { flow: { name: "" } }).flow.name;
    state.sort = given.get("sort") || "";
    state.log = given.get("log") === "1";
    state.step[state.workflow] = given.get("step") || "iteration";
  };
  const toAddress = () => {
    const step = state.step[state.workflow], parts = new URLSearchParams();
    if (sections.length > 1) parts.set("workflow", state.workflow);
    if (step && step !== "iteration") parts.set("step", step);
    if (state.sort) parts.set("sort", state.sort);
    if (state.log) parts.set("log", "1");
    try { history.replaceState(null, "", `#${parts}`); } catch { /* a frame without an address */ }
  };
  const change = (how, focus) => { how(); toAddress(); render(); if (focus) focus().focus(); };

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
    const blob = new Blob([document.getElementById("document").textContent], { type: "application/json" });
    const link = el("a", { href: URL.createObjectURL(blob), download: `squall-${doc.run.id}.json` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
  if (sections.length > 1) makeTabs();
  fromAddress();
  render();
  addEventListener("hashchange", () => { fromAddress(); render(); });
  addEventListener("beforeprint", () => forPrint(true));
  addEventListener("afterprint", () => forPrint(false));
  let seen = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== seen && !printing) { seen = innerWidth; render(); } });
  document.documentElement.dataset.ready = "true";
})();
