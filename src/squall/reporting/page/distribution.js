// The distribution of the chosen step: bars on a log axis, the service time drawn over them.

const BARS_HEIGHT = 170;
const BARS_TOP = 52; // room for one label under the other

// Joins buckets into bars of equal width on the histogram's own scale.
const binned = (row, width) => {
  const sets = [row.histogram, row.service_histogram].filter((each) => each && each.count);
  const ends = sets.flatMap(({ buckets }) => [buckets[0][0], buckets.at(-1)[0]]);
  const first = Math.min(...ends);
  const last = Math.max(...ends);
  // Few samples in many bars look like a comb; the cube root of the count is the usual number.
  const mostBars = Math.min((width - LEFT) / 7, 4 * Math.cbrt(row.histogram.count) + 4);
  const fold = [2, 4, 8, 16, 32].find((n) => (last - first) / n <= mostBars) || 64;
  const start = (index) => Math.floor(index / fold) * fold;
  const bars = sets.map((set) => {
    const counts = new Map();
    for (const [index, n] of set.buckets) {
      counts.set(start(index), (counts.get(start(index)) || 0) + n);
    }
    const list = [];
    for (let at = start(first); at <= start(last); at += fold) {
      const n = counts.get(at) || 0;
      list.push({ t: edgeMs(at), end: edgeMs(at + fold), n, share: (100 * n) / set.count });
    }
    return list;
  });
  return { low: edgeMs(start(first)), high: edgeMs(start(last) + fold), bars };
};

const distribution = (row, name, bins, width) => {
  const { low, high, bars } = bins;
  const [response, service] = bars;
  const bottom = BARS_TOP + BARS_HEIGHT;
  const perLog = (width - LEFT - RIGHT) / Math.log(high / low);
  const x = (ms) => rounded(LEFT + Math.log(Math.max(ms, low) / low) * perLog);
  const shares = bars.flat().map((bar) => bar.share);
  const scale = verticals(shares, BARS_HEIGHT, state.counts, 0, 4);
  const y = (share) => rounded(scale.y(share) + BARS_TOP);
  const told = QUANTILES.map(([q]) => `${q} ${time(row.latency_ms[q])}`);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${bottom + 22}`,
    role: "img",
    "data-plot": "distribution",
    "data-step": name,
    "data-points": response.filter((bar) => bar.n).length,
    "aria-label": `Distribution of ${name}: ${told.join(", ")}`,
  });
  for (const v of scale.ticks) root.append(...gridLine(width, y(v), `${short(v)} %`));
  for (const bar of response.filter((each) => each.n)) {
    const place = {
      x: x(bar.t) + 0.5,
      y: y(bar.share),
      width: Math.max(x(bar.end) - x(bar.t) - 1, 0.5),
      height: Math.max(bottom - y(bar.share), 0.5),
    };
    const range = `${time(bar.t)} to ${time(bar.end)}: ${bar.n} (${digits(bar.share)} %)`;
    root.append(svg("rect", { class: "response", ...place }, svg("title", {}, range)));
  }
  if (service) {
    root.append(svg("path", { class: "service", d: stepPath(service, "share", x, y, false) }));
  }
  for (const v of logTicks(low, high)) {
    root.append(
      text(x(v), bottom + 18, "middle", v < 1000 ? `${short(v)} ms` : `${short(v / 1e3)} s`),
    );
  }
  const labels = QUANTILES.map(([q], place) => {
    const at = x(row.latency_ms[q]);
    const isLeft = at > width - 120;
    root.append(
      svg("line", { class: "quantile", x1: at, x2: at, y1: 10 + place * 13, y2: bottom }),
    );
    const label = text(
      at + (isLeft ? -5 : 5),
      19 + place * 13,
      isLeft ? "end" : "start",
      told[place],
    );
    return make(label, { class: "label" }, []);
  });
  root.append(...labels); // above all three lines
  return root;
};

const drawDistribution = (section, flow, width) => {
  const box = section.querySelector(".distribution");
  const name = chosen(flow);
  const row = rowOf(flow, name);
  box.hidden = !row.latency_ms;
  if (box.hidden) return;
  const bins = binned(row, width);
  const both = bins.bars.length > 1;
  const response = both ? "response time, from the planned start" : "response time";
  const caption = el(
    "figcaption",
    {},
    el("strong", {}, `Distribution of ${name}`),
    el("small", {}, "share of samples, log time"),
    el("span", { class: "key response" }, response),
    both ? el("span", { class: "key service" }, "service time, from the real send") : null,
    switchOf(box, "counts", "log share"),
  );
  const drawn = distribution(row, name, bins, width);
  box.replaceChildren(el("figure", { class: "plot" }, caption, drawn));
};
