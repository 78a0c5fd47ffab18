// What both pages share: the token, requests, small DOM helpers. Text of others is only ever set as
// text, never as markup.

const kept = `squall-token ${location.host}`;

function readToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(kept, given);
    // The token leaves the address bar, where others may read it.
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(kept) || "";
}

export const token = readToken();

export function byId(id) { return document.getElementById(id); }

export function show(id, visible) { byId(id).hidden = !visible; }

export function text(id, value) {
  const element = byId(id);
  if (element.textContent !== value) element.textContent = value;
}

export function make(name, content = "", className = "") {
  const element = document.createElement(name);
  if (content !== "") element.textContent = content;
  if (className) element.className = className;
  return element;
}

// Fills a table body; each cell is [text, class].
export function fill(id, rows, decorate = () => {}) {
  const body = byId(id).tBodies[0];
  const made = rows.map((cells, index) => {
    const row = make("tr");
    for (const [content, className] of cells) row.append(make("td", content, className || ""));
    decorate(row, index);
    return row;
  });
  body.replaceChildren(...made);
}

export function heads(id, names) {
  const row = make("tr");
  for (const [name, className] of names) row.append(make("th", name, className || ""));
  byId(id).tHead.replaceChildren(row);
}

export function request(path, options = {}) {
  const headers = { "X-Squall-Token": token, ...(options.headers || {}) };
  return fetch(path, { ...options, headers, cache: "no-store" });
}

export async function post(path, body, type = "application/json") {
  const content = typeof body === "string" ? body : JSON.stringify(body);
  const answer = await request(path, { method: "POST", headers: { "Content-Type": type }, body: content });
  const found = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error || `status ${answer.status}`);
  return found;
}

// Server-sent events over fetch, because an EventSource cannot send a header.
export async function events(path, onEvent, signal) {
  const answer = await request(path, { signal });
  if (!answer.ok) {
    const found = await answer.json().catch(() => ({}));
    const error = new Error(found.error || `status ${answer.status}`);
    error.isFinal = answer.status === 401 || answer.status === 403 || answer.status === 404;
    throw error;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const found = /^event: (.*)\ndata: ([^]*)$/.exec(part);
      if (found) onEvent(found[1], JSON.parse(found[2]));
    }
  }
}

export function digits(value) {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return String(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

export function ms(seconds) { return seconds ? digits(seconds * 1000) : "-"; }

export function percent(share) { return share ? `${digits(share * 100)} %` : "0"; }

export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const pair = (value) => String(value).padStart(2, "0");
  const minutes = `${pair(Math.floor(whole / 60) % 60)}:${pair(whole % 60)}`;
  return whole < 3600 ? minutes : `${Math.floor(whole / 3600)}:${minutes}`;
}

export function sleep(milliseconds) { return new Promise((done) => setTimeout(done, milliseconds)); }
