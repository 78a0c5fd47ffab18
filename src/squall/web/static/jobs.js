// The page of a cluster: its queue, its past jobs with their trend, and files to submit.

import { byId, clock, digits, fill, heads, make, percent, post, request, show, sleep, text } from "./page.js";
import { Lines } from "./charts.js";

const POLL_MS = 2000;
const KINDS = { VALID: "good", DEGRADED: "warn", INVALID: "bad" };
let trend = null;
let jobs = [];

heads("live", [["job"], ["state"], ["file"], ["by"], ["runs for", "n"], [""]]);
heads("past", [["job"], ["state"], ["file"], ["by"], ["started"], ["took", "n"], ["p95 ms", "n"], ["rate/s", "n"], ["failed", "n"], ["thresholds"], ["verdict"], [""]]);

function link(row, job) {
  const anchor = make("a", job);
  anchor.href = `jobs/${encodeURIComponent(job)}/`;
  row.cells[0].replaceChildren(anchor);
}

function options(id, names, first) {
  const select = byId(id), before = select.value;
  const now = [...select.options].map((each) => each.value);
  if (now.length === names.length && now.every((name, index) => name === names[index])) return;
  select.replaceChildren(...names.map((name) => {
    const option = make("option", name);
    option.value = name;
    return option;
  }));
  select.value = names.includes(before) ? before : first;
}

function draw(found) {
  jobs = found.jobs;
  text("where", found.where);
  const live = jobs.filter((each) => !each.over), past = jobs.filter((each) => each.over);
  fill("live", live.map((each) => [[each.job], [each.state], [each.file], [each.by], [clock(each.elapsed_s), "n"], [each.remark, "text"]]),
    (row, index) => link(row, live[index].job));
  fill("past", past.map((each) => {
    const result = each.result || {};
    return [
      [each.job], [each.state], [each.file], [each.by],
      [result.started_at ? new Date(result.started_at * 1000).toLocaleString() : ""],
      [clock(each.elapsed_s), "n"], [digits(result.p95_ms), "n"], [digits(result.rate), "n"],
      [result.failed === null || result.failed === undefined ? "-" : percent(result.failed), "n"],
      [result.verdict ? (result.passed ? "✓" : "✗") : "", result.passed ? "good" : "bad"],
      [result.verdict || "", KINDS[result.verdict]], [result.error || each.remark, "text"],
    ];
  }), (row, index) => link(row, past[index].job));
  show("submit-box", found.mayControl && found.files.length > 0);
  options("file", found.files, found.files[0]);
  const files = [...new Set(past.map((each) => each.file))];
  options("trend-of", files, files[0]);
  drawTrend();
}

function drawTrend() {
  const file = byId("trend-of").value;
  const points = jobs.filter((each) => each.file === file && each.result && each.result.p95_ms !== null && each.result.p95_ms !== undefined)
    .map((each) => [each.result.started_at, each.result.p95_ms]).sort((one, two) => one[0] - two[0]);
  if (!trend) trend = new Lines("trend", [["p95 ms", "two"]], true);
  trend.set([points.map(([at]) => at), points.map(([, value]) => value)]);
}

byId("trend-of").onchange = drawTrend;
byId("submit").onclick = async () => {
  text("answer", "is being submitted");
  byId("submit").disabled = true;
  try {
    const { job } = await post("api/submit", { file: byId("file").value });
    text("answer", `job ${job}`);
  } catch (error) {
    text("answer", error.message);
  }
  byId("submit").disabled = false;
};

async function poll() {
  for (;;) {
    const badge = byId("link");
    try {
      const answer = await request("api/jobs");
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error);
      draw(found);
      badge.textContent = "live";
      badge.className = "badge good";
      document.documentElement.dataset.ready = "true";
    } catch (error) {
      badge.textContent = error.message;
      badge.className = "badge bad";
    }
    await sleep(POLL_MS);
  }
}

poll();
