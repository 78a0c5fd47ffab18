// The plots of one workflow over time, with their controls and the line through all of them.

const rowOf = (flow, name) => flow.steps.find((step) => step.name === name) || flow.iteration;
const chosen = (flow) =>
  flow.steps.some((step) => step.name === state.step[flow.name])
    ? state.step[flow.name]
    : "iteration";

// A line for each datacenter: its rate, and its p95.
const datacenterSpecs = (flow, name) => {
  const rows = datacenterRows(flow, name);
  if (!rows.some((row) => row)) return [];
  const marks = (show, whole) =>
    rows.map((row, place) => ({
      kind: "line",
      key: `dc${place}`,
      label: doc.datacenters[place].name,
      show: (v) => (v === null ? "-" : show(v)),
      whole: row ? whole(row) : "-",
    }));
  return [
    {
      name: "rates",
      title: `Rate of ${name} by datacenter`,
      note: "per second",
      height: 90,
      points: datacenterRates(rows, flow),
      marks: marks(
        (v) => `${digits(v)}/s`,
        (row) => `${digits(row.rps)}/s`,
      ),
    },
    {
      name: "latencies",
      title: `p95 of ${name} by datacenter`,
      note: "ms",
      height: 120,
      points: datacenterLatencies(rows, flow),
      log: state.log,
      empty: `no window has ${LEAST_SAMPLES} samples`,
      marks: marks(time, (row) => time((row.latency_ms || {}).p95)),
    },
  ];
};

const specs = (flow, row) => {
  const whole = row.latency_ms || {};
  const latency = latencyPoints(row, flow);
  const rates = ratePoints(row, flow);
  const load = loadPoints(flow);
  const health = healthPoints(flow);
  const name = chosen(flow);
  // Only iterations have a planned rate: not every iteration starts each step of a mix.
  const planned = flow.profile.model.startsWith("open") && row === flow.iteration;
  // As the tables: a run shorter than a second has no rate of its own.
  const rated = Math.max(flow.measured_s, Math.min(1, flow.profile.duration_s));
  const perS = (count) => `${digits(count / rated)}/s`;
  const mark = (kind, key, label, show, all) => ({ kind, key, label, show, whole: all });
  const each = (v) => `${digits(v)}/s`;
  const count = (v) => String(v);
  const part = (v) => `${v.toFixed(0)} %`;
  return [
    {
      name: "rate",
      title: `Rate of ${name}`,
      note: "per second",
      height: 120,
      points: rates,
      marks: [
        mark("area", "achieved", "achieved", each, perS(row.count)),
        mark("area", "failed", "failed", each, perS(row.failed)),
        ...(planned ? [mark("step", "planned", "planned", each, perS(flow.starts.planned))] : []),
      ],
    },
    {
      name: "latency",
      title: `Latency of ${name}`,
      note: `ms, windows of ${latency.every} s`,
      height: 170,
      points: latency.points,
      log: state.log,
      empty: `no window has ${LEAST_SAMPLES} samples`,
      marks: QUANTILES.map(([q]) => mark("line", q, q, time, time(whole[q]))),
    },
    ...datacenterSpecs(flow, name),
    {
      name: "users",
      title: "Users",
      note: "",
      height: 44,
      points: load,
      wanted: 2,
      bad: "bad",
      marks: [
        mark("step", "users", "users", count, count(flow.vus)),
        mark("area", "busy", "busy", count, count(flow.busy_max)),
      ],
    },
    {
      name: "cpu",
      title: "Generator CPU",
      note: "% of a core, fullest process",
      height: 44,
      points: health,
      wanted: 2,
      bad: "full",
      ceiling: Math.max(100, most(health.map((p) => p.cpu))),
      marks: [mark("step", "cpu", "cpu", part, `at most ${part(most(health.map((p) => p.cpu)))}`)],
    },
    {
      name: "lag",
      title: "Loop lag",
      note: "p99, ms",
      height: 44,
      points: health,
      wanted: 2,
      bad: "slow",
      axis: true,
      marks: [mark("step", "lag", "lag", time, `at most ${time(most(health.map((p) => p.lag)))}`)],
    },
  ];
};

// A checkbox that is part of the state; redrawing must keep the focus.
const switchOf = (box, key, label) => {
  const input = el("input", { type: "checkbox" });
  input.checked = state[key];
  input.onchange = () => {
    change(() => (state[key] = input.checked));
    box.querySelector("input").focus();
  };
  return el("label", {}, input, ` ${label}`);
};

const picker = (box, flow) => {
  const names = ["iteration", ...flow.steps.map((step) => step.name)];
  const select = el("select", {}, ...names.map((name) => el("option", { value: name }, name)));
  select.value = chosen(flow);
  select.onchange = () => {
    change(() => (state.step[flow.name] = select.value));
    box.querySelector("select").focus();
  };
  return el("label", {}, "Show ", select);
};

// A plot below its legend, which shows the values at the cursor line.
const figureOf = (spec, from, to, width) => {
  const keys = spec.marks.map((mark) => ({ mark, value: el("b", {}, mark.whole) }));
  const legend = keys.map(({ mark, value }) =>
    el("span", { class: `key ${mark.key}` }, `${mark.label} `, value),
  );
  const drawn = plot(spec, from, to, width);
  const caption = [el("strong", {}, spec.title), el("small", {}, spec.note), ...legend];
  const figure = el(
    "figure",
    { class: `${spec.name} plot` },
    el("figcaption", {}, ...caption),
    drawn,
  );
  return { spec, keys, drawn, figure };
};

const drawPlots = (section, flow, width) => {
  const box = section.querySelector(".plots");
  const from = flow.started_at_s;
  const to = from + flow.elapsed_s;
  const inner = width - LEFT - RIGHT;
  const at = el("output", { class: "at" });
  const shown = specs(flow, rowOf(flow, chosen(flow))).map((spec) =>
    figureOf(spec, from, to, width),
  );
  const frame = el(
    "div",
    { class: "frame", tabindex: 0, role: "group", "aria-label": "Plots; arrow keys move the line" },
    ...shown.map((each) => each.figure),
  );
  let cursor = null;
  const hide = () => {
    cursor = null;
    at.value = "";
    for (const { keys, drawn } of shown) {
      drawn.querySelector(".cursor").setAttribute("visibility", "hidden");
      for (const { mark, value } of keys) value.textContent = mark.whole;
    }
  };
  const show = (t) => {
    cursor = Math.min(Math.max(t, from), to);
    at.value = clock(cursor);
    const x = LEFT + ((cursor - from) / (to - from || 1)) * inner;
    for (const { spec, keys, drawn } of shown) {
      make(drawn.querySelector(".cursor"), { x1: x, x2: x, visibility: "visible" }, []);
      const found = spec.points.find((each) => cursor >= each.t && cursor < each.end) || {};
      for (const { mark, value } of keys) {
        const v = found[mark.key] ?? null;
        value.textContent = v === null ? "-" : mark.show(v);
      }
    }
  };
  frame.onpointermove = (event) => {
    const area = shown[0].drawn.getBoundingClientRect();
    const x = ((event.clientX - area.left) / area.width) * width;
    show(from + ((x - LEFT) / inner) * (to - from));
  };
  frame.onpointerleave = frame.onblur = hide;
  frame.onkeydown = (event) => {
    if (event.key === "Escape") hide();
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const every = Math.max(flow.windows.every_s, (to - from) / MOST_POINTS);
    show(cursor === null ? from + every / 2 : cursor + way * every);
  };
  const bar = [picker(box, flow), switchOf(box, "log", "log latency"), at];
  box.replaceChildren(el("div", { class: "bar" }, ...bar), frame);
  box.hidden = false;
};

const spark = (row, flow) => {
  const { points } = latencyPoints(row, flow);
  const values = points.map((p) => p.p99).filter((v) => v !== null);
  const high = most(values) || 1;
  const end = flow.started_at_s + flow.elapsed_s;
  const x = (t) => +(((t - flow.started_at_s) / (end - flow.started_at_s || 1)) * 60).toFixed(1);
  return svg(
    "svg",
    {
      class: "spark",
      viewBox: "0 0 60 18",
      width: 60,
      height: 18,
      "data-points": values.length,
      "aria-hidden": "true",
    },
    svg("path", {
      class: "line p99",
      d: linePath(points, "p99", x, (v) => +(17 - (v / high) * 16).toFixed(1)),
    }),
  );
};
