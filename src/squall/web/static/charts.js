// The charts of a run: lines by uPlot, the heat map on a canvas of its own.

import { byId, clock } from "./page.js";

const BANDS_PER_OCTAVE = 2;

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

// Lower edge of a band in milliseconds, as in `Histogram.bands`.
export function edge(band) {
  const octave = Math.floor(band / BANDS_PER_OCTAVE);
  return (2 ** octave) * (band % BANDS_PER_OCTAVE ? 1.5 : 1) / 1000;
}

// One chart of lines over time. `series` is [label, colour, dashed, scale].
export class Lines {
  // `dated`: times are those of the wall clock, and every point is a dot.
  constructor(id, series, dated = false) {
    this.holder = byId(id);
    this.series = series;
    this.dated = dated;
    this.log = false;
    this.data = [[], ...series.map(() => [])];
    new ResizeObserver(() => this.resize()).observe(this.holder);
    this.build();
  }

  size() { return { width: Math.max(this.holder.clientWidth, 80), height: innerWidth < 520 ? 150 : 185 }; }

  build() {
    if (this.plot) this.plot.destroy();
    const ink = colour("dim"), line = colour("line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const scales = { x: { time: this.dated } };
    for (const [, , , scale = "y"] of this.series) {
      scales[scale] = this.log ? { distr: 3 } : { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] };
    }
    const second = this.series.find(([, , , scale]) => scale);
    const axes = [
      this.dated ? axis : { ...axis, values: (_, ticks) => ticks.map(clock), space: 60 },
      { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : String(Number(tick.toPrecision(3))))) },
    ];
    if (second) axes.push({ ...axis, scale: second[3], side: 1, size: 46, grid: { show: false } });
    this.plot = new uPlot({
      ...this.size(), scales, axes, pxAlign: false, legend: { live: true }, cursor: { sync: { key: "run" } },
      series: [this.dated ? {} : { label: "time", value: (_, at) => (at === null ? "-" : clock(at)) }, ...this.series.map(([label, name, dashed, scale]) => ({
        label, stroke: colour(name), width: 1.5, scale: scale || "y", spanGaps: false,
        dash: dashed ? [6, 4] : undefined, points: { show: this.dated },
        value: (_, found) => (found === null || found === undefined ? "-" : String(Number(found.toPrecision(3)))),
      }))],
    }, this.shown(), this.holder);
    this.holder.dataset.points = this.data[0].length;
  }

  // A logarithmic scale has no zero.
  shown() { return this.log ? [this.data[0], ...this.data.slice(1).map((values) => values.map((value) => (value > 0 ? value : null)))] : this.data; }

  set(data) {
    this.data = data;
    this.plot.setData(this.shown());
    this.holder.dataset.points = data[0].length;
  }

  resize() {
    const size = this.size();
    if (size.width !== this.plot.width || size.height !== this.plot.height) this.plot.setSize(size);
  }

  useLog(log) { this.log = log; this.build(); }
}

// Time from left to right, latency upwards, the darker the more.
export class HeatMap {
  constructor(id) {
    this.canvas = byId(id);
    this.columns = [];
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // `columns`: [second, [band, count, ...]] in order of time.
  set(columns) { this.columns = columns; this.draw(); }

  draw() {
    const canvas = this.canvas, scale = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const brush = canvas.getContext("2d");
    brush.scale(scale, scale);
    const left = 50, bottom = 20, room = width - left - 6, tall = height - bottom - 6;
    const filled = this.columns.filter(([, bands]) => bands.length);
    canvas.dataset.cells = 0;
    if (!filled.length) return;
    const first = this.columns[0][0], last = this.columns[this.columns.length - 1][0];
    const slots = Math.max(1, Math.min(this.columns.length, Math.floor(room / 2)));
    const cells = new Map();
    let low = Infinity, high = -Infinity, most = 0;
    for (const [at, bands] of filled) {
      const slot = last > first ? Math.min(slots - 1, Math.floor((at - first) / (last - first) * slots)) : 0;
      for (let i = 0; i < bands.length; i += 2) {
        const key = slot * 64 + bands[i], count = (cells.get(key) || 0) + bands[i + 1];
        cells.set(key, count);
        low = Math.min(low, bands[i]);
        high = Math.max(high, bands[i]);
        most = Math.max(most, count);
      }
    }
    const rows = high - low + 1, cellWidth = room / slots, cellHeight = tall / rows, ink = colour("heat");
    for (const [key, count] of cells) {
      const band = key % 64, slot = (key - band) / 64;
      brush.fillStyle = `rgba(${ink}, ${0.12 + 0.88 * Math.log1p(count) / Math.log1p(most)})`;
      brush.fillRect(left + slot * cellWidth, 4 + (high - band) * cellHeight, Math.ceil(cellWidth), Math.ceil(cellHeight));
    }
    canvas.dataset.cells = cells.size;
    brush.fillStyle = colour("dim");
    brush.font = "11px system-ui, sans-serif";
    brush.textBaseline = "middle";
    brush.textAlign = "right";
    const every = Math.max(1, Math.ceil(rows * 16 / tall));
    for (let band = low; band <= high; band += every) {
      brush.fillText(String(Number(edge(band).toPrecision(2))), left - 5, 4 + (high - band + 1) * cellHeight - 1);
    }
    brush.textBaseline = "alphabetic";
    brush.textAlign = "left";
    brush.fillText(clock(first), left, height - 5);
    brush.textAlign = "right";
    brush.fillText(clock(last), width - 6, height - 5);
  }
}
