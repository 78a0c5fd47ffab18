// Draws plots: elements, scales, paths, and one plot over time.

// Margins in pixels, equal in all plots, so that they share one x axis.
const LEFT = 50;
const RIGHT = 10;

// Elements. Texts become text nodes only, so text of the document is never parsed as HTML.
const make = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes))
    if (value !== null) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
};
const el = (name, attributes = {}, ...children) =>
  make(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const text = (x, y, anchor, content) => svg("text", { x, y, "text-anchor": anchor }, content);
const gridLine = (width, y, label) => [
  svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
  text(LEFT - 8, y + 4, "end", label),
];
const rounded = (pixels) => Number(pixels.toFixed(2));

// Scales and ticks.
const niceStep = (span, wanted) => {
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 2.5, 5].find((n) => n * power >= rough) || 10);
};
const timeTicks = (from, to, width) => {
  const step =
    [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].find(
      (s) => ((to - from) / s) * 70 <= width,
    ) || 86400 * Math.ceil((to - from) / 86400 / 8);
  const ticks = [];
  for (let t = Math.ceil(from / step) * step; t <= to + 1e-9; t += step) ticks.push(t);
  return ticks;
};
const logTicks = (low, high) => {
  const range = high / low;
  const firsts = range > 300 ? [1] : range > 12 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    ticks.push(...firsts.map((n) => n * 10 ** power));
  }
  return ticks.filter((v) => v >= low && v <= high);
};
const verticals = (values, height, log, ceiling, wanted) => {
  const positive = values.filter((v) => v > 0);
  if (log && positive.length) {
    const low = Math.min(...positive) * 0.8;
    const high = Math.max(...positive) * 1.25;
    const k = height / Math.log(high / low);
    return {
      y: (v) => height - Math.max(0, Math.log(Math.max(v, low) / low)) * k,
      ticks: logTicks(low, high),
    };
  }
  const high = ceiling || most(values) * 1.08 || 1;
  const step = niceStep(high, wanted);
  const ticks = [];
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
  let path = "";
  let open = false;
  for (const p of points) {
    if (p[key] === null) {
      open = false;
      continue;
    }
    const at = `${x((p.t + p.end) / 2)} ${y(p[key])}`;
    path += open ? `L${at}` : `M${at}h.01`; // the dot shows a point between two gaps
    open = true;
  }
  return path;
};

const plot = (spec, from, to, width) => {
  const inner = width - LEFT - RIGHT;
  const { height, points, marks } = spec;
  const bottom = spec.axis ? 20 : 4;
  const x = (t) => rounded(LEFT + ((t - from) / (to - from || 1)) * inner);
  const values = marks.flatMap((mark) => points.map((p) => p[mark.key])).filter((v) => v !== null);
  const scale = verticals(values, height, spec.log, spec.ceiling, spec.wanted || 4);
  const y = (v) => rounded(scale.y(v) + 8);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height + 8 + bottom}`,
    role: "img",
    "data-plot": spec.name,
    "data-points": points.filter((p) => p[marks[0].key] !== null).length,
    "data-gaps": points.filter((p) => p[marks[0].key] === null).length,
    "data-until": points.length ? points.at(-1).end : 0,
    "data-offences": points.filter((p) => p[spec.bad]).length,
    "aria-label": `${spec.title}: ${marks.map((m) => `${m.label} ${m.whole}`).join(", ")}`,
  });
  for (const v of scale.ticks) root.append(...gridLine(width, y(v), short(v)));
  for (const p of points.filter((each) => each[spec.bad])) {
    const place = { x: x(p.t), y: 8, width: Math.max(x(p.end) - x(p.t), 1), height };
    root.append(svg("rect", { class: "offence", ...place }));
  }
  for (const mark of marks) {
    const d =
      mark.kind === "line"
        ? linePath(points, mark.key, x, y)
        : stepPath(points, mark.key, x, y, mark.kind === "area");
    root.append(svg("path", { class: `${mark.kind} ${mark.key}`, d }));
  }
  if (spec.axis) {
    for (const t of timeTicks(from, to, inner))
      root.append(text(x(t), height + 24, "middle", clock(t)));
  }
  if (!values.length) {
    root.append(text(LEFT + inner / 2, height / 2 + 12, "middle", spec.empty || "no samples"));
  }
  root.append(svg("line", { class: "cursor", y1: 8, y2: height + 8, visibility: "hidden" }));
  return root;
};
