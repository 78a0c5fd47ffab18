// The data of the plots: the document's numbers as texts and as points over time.

const LEAST_SAMPLES = 20; // a quantile of fewer samples is noise: the line has a gap there
const MOST_POINTS = 400; // more than a plot has pixels for
const WIDTHS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600]; // windows that make one point
const QUANTILES = [
  ["p50", 0.5],
  ["p95", 0.95],
  ["p99", 0.99],
];
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const doc = read("document");
const { limits, offended } = read("judgement");

// Numbers: three significant digits, as in the tables.
const digits = (value) => {
  if (!value) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3)))));
  return value.toFixed(Math.max(0, Math.min(2 - exponent, 6)));
};
const short = (value) => String(Number(value.toPrecision(3)));
const time = (ms) =>
  (ms ?? null) === null ? "-" : ms >= 999.5 ? `${digits(ms / 1e3)} s` : `${digits(ms)} ms`;
const clock = (s) => {
  const two = (n) => String(n).padStart(2, "0");
  const whole = Math.floor(s + 1e-6);
  const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return whole >= 3600 ? `${Math.floor(whole / 3600)}:${rest}` : rest;
};
const sum = (list) => list.reduce((total, each) => total + each, 0);
const most = (list) => list.reduce((best, each) => Math.max(best, each), 0);

// The histogram "log2-64": 64 buckets for each power of two of a microsecond.
const edgeMs = (index) => (2 ** Math.floor(index / 64) * (1 + (index % 64) / 64)) / 1e3;
const quantile = (buckets, count, q) => {
  let seen = 0;
  for (const [index, n] of buckets) {
    seen += n;
    if (seen >= q * count * (1 - 1e-12)) return (edgeMs(index) + edgeMs(index + 1)) / 2;
  }
  return null;
};
const merged = (parts) => {
  const all = new Map();
  for (const [index, n] of parts.flat()) all.set(index, (all.get(index) || 0) + n);
  return [...all].sort((a, b) => a[0] - b[0]);
};

// Windows as points {t, end, ...} on the run's clock, neighbours joined where needed.
const joined = (length, every, from, to, width, point) => {
  const points = [];
  for (let i = 0; i < length; i += width) {
    const t = from + i * every;
    const end = Math.min(t + width * every, Math.max(to, t));
    points.push({ t, end, span: end - t, ...point(i, Math.min(i + width, length)) });
  }
  return points;
};
const latencyWidth = (count) => {
  const enough = (width) => {
    let good = 0;
    let used = 0;
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

const known = new Map(); // cache: merging the buckets of a long run is slow
const latencyPoints = (row, flow) => {
  if (!known.has(row)) known.set(row, quantilePoints(row, flow));
  return known.get(row);
};
const quantilePoints = (row, flow) => {
  const w = row.windows;
  const width = latencyWidth(w.count);
  const to = flow.started_at_s + flow.elapsed_s;
  const points = joined(w.count.length, w.every_s, flow.started_at_s, to, width, (a, b) => {
    const count = sum(w.count.slice(a, b));
    if (count < LEAST_SAMPLES) return { p50: null, p95: null, p99: null };
    if (width === 1) return { p50: w.p50[a], p95: w.p95[a], p99: w.p99[a] };
    const buckets = merged(w.buckets.slice(a, b));
    return Object.fromEntries(QUANTILES.map(([name, q]) => [name, quantile(buckets, count, q)]));
  });
  return { points, every: width * w.every_s };
};
// The last window of a run is partial. Less than half a window is added to the one before it, so
// that every plot ends with the run.
const whole = (points, every, add) => {
  const last = points.at(-1);
  const before = points.at(-2);
  if (!before || last.span >= 0.5 * every) return points;
  const end = { end: last.end, span: before.span + last.span };
  return [...points.slice(0, -2), { ...before, ...add(before, last), ...end }];
};
const ratePoints = (row, flow) => {
  const w = row.windows;
  const load = flow.windows;
  const to = flow.started_at_s + flow.elapsed_s;
  const finer = w.every_s / load.every_s; // each is halved separately when a run gets long
  const planned = (a, b) => {
    const low = Math.floor(a * finer);
    const high = Math.max(low + 1, Math.round(b * finer));
    return (sum(load.planned.slice(low, high)) * (b - a) * finer) / (high - low);
  };
  const points = joined(
    w.count.length,
    w.every_s,
    flow.started_at_s,
    to,
    coarse(w.count.length),
    (a, b) => ({
      count: sum(w.count.slice(a, b)),
      failed: sum(w.failed.slice(a, b)),
      planned: planned(a, b),
    }),
  );
  const added = (a, b) => ({
    count: a.count + b.count,
    failed: a.failed + b.failed,
    planned: a.planned + b.planned,
  });
  return whole(points, w.every_s, added).map((p) => ({
    ...p,
    achieved: p.count / p.span,
    failed: p.failed / p.span,
    planned: p.planned / p.span,
  }));
};
// One series for each datacenter, on the workflow's clock of each: keys dc0, dc1 ...
const datacenterRows = (flow, name) =>
  (doc.datacenters || []).map((each) =>
    each.steps.find((step) => step.workflow === flow.name && step.name === name),
  );
const datacenterPoints = (rows, flow, width, value) => {
  const every = most(rows.map((row) => (row ? row.windows.every_s : 0))) || 1;
  const length = most(
    rows.map((row) => (row ? Math.ceil((row.windows.count.length * row.windows.every_s) / every) : 0)),
  );
  const to = flow.started_at_s + flow.elapsed_s;
  return joined(length, every, flow.started_at_s, to, width, (a, b) =>
    Object.fromEntries(
      rows.map((row, place) => {
        if (!row) return [`dc${place}`, null];
        const finer = every / row.windows.every_s;
        return [`dc${place}`, value(row, a * finer, b * finer, (b - a) * every)];
      }),
    ),
  );
};
const datacenterRates = (rows, flow) => {
  const length = most(rows.map((row) => (row ? row.windows.count.length : 0)));
  return datacenterPoints(rows, flow, coarse(length), (row, a, b, span) =>
    a < row.windows.count.length ? sum(row.windows.count.slice(a, b)) / span : null,
  );
};
const datacenterLatencies = (rows, flow) => {
  const width = most(rows.map((row) => (row ? latencyWidth(row.windows.count) : 1)));
  return datacenterPoints(rows, flow, width, (row, a, b) => {
    const count = sum(row.windows.count.slice(a, b));
    return count < LEAST_SAMPLES
      ? null
      : quantile(merged(row.windows.buckets.slice(a, b)), count, 0.95);
  });
};
const loadPoints = (flow) => {
  const w = flow.windows;
  const to = flow.started_at_s + flow.elapsed_s;
  const points = joined(
    w.users.length,
    w.every_s,
    flow.started_at_s,
    to,
    coarse(w.users.length),
    (a, b) => {
      const planned = sum(w.planned.slice(a, b));
      const late = sum(w.late.slice(a, b));
      const lost =
        flow.profile.model.startsWith("open") &&
        (sum(w.dropped.slice(a, b)) > 0 || late > limits.late_share * planned);
      return {
        users: most(w.users.slice(a, b)),
        busy: most(w.busy.slice(a, b)),
        bad: offended.starts && lost,
      };
    },
  );
  return whole(points, w.every_s, (a, b) => ({
    users: Math.max(a.users, b.users),
    busy: Math.max(a.busy, b.busy),
    bad: a.bad || b.bad,
  }));
};
const healthPoints = (flow) => {
  const w = doc.generator.windows;
  const from = flow.started_at_s;
  const to = from + flow.elapsed_s;
  const points = joined(w.cpu.length, w.every_s, 0, Infinity, coarse(w.cpu.length), (a, b) => {
    const cpu = most(w.cpu_max.slice(a, b)) * 100;
    const lag = most(w.loop_lag_p99_ms.slice(a, b));
    return {
      cpu,
      lag,
      full: offended.cpu && cpu >= limits.cpu * 100 && lag >= limits.saturated_lag_ms,
      slow: offended.lag && lag > limits.lag_ms,
    };
  });
  return points
    .filter((p) => p.t < to && p.end > from)
    .map((p, place, all) => ({
      ...p,
      t: Math.max(p.t, from),
      // The health of a last, partial second is in the window before.
      end: place === all.length - 1 && to - p.end < w.every_s ? to : Math.min(p.end, to),
    }));
};
