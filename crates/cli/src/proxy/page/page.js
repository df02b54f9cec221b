// The operators' page of a proxy.
//
// Owns: fetching /status.json every two seconds, what the page shows of it, and the form that purges.
//
// Promises: whatever comes from the network becomes text of the page, never markup and never an attribute that leads
// somewhere. Clients choose URLs, so a URL may be an attack on whoever looks at this page; here it is only shown, by
// `textContent`. The page's Content-Security-Policy forbids scripts from elsewhere, scripts in the page, and making
// markup from text (`require-trusted-types-for`), should this file ever be wrong.
//
// The token, if the proxy wants one, is in the storage of this tab alone, and goes only to the address of this page.
"use strict";

/** The time from one fetch to the next, and the longest time of one. Units: milliseconds. */
const POLL_MS = 2000;
const FETCH_MS_MAX = 10000;
/** The time that the charts and "now" cover. */
const MINUTE_MS = 60000;
/** The width and the height of a chart, as its viewBox says. */
const CHART = { width: 240, height: 48 };
const TOKEN_NAME = "nectary-token";

/** What a request of a client ends with; the proxy's own answers (among them this page) are none. */
const OUTCOMES = ["hits", "revalidated", "stale", "misses", "collapsed", "passed", "origin_failures"];

const byId = (id) => document.getElementById(id);

// Showing.

function show(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Shows rows of cells in the body of a table. A cell is a text, or a text with a class, a badge or a mark. */
function showRows(body, none, rows) {
  none.hidden = rows.length > 0;
  body.parentElement.hidden = rows.length === 0;
  while (body.rows.length > rows.length) {
    body.deleteRow(-1);
  }
  rows.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((given, column) => {
      const cell = typeof given === "string" ? { text: given } : given;
      const place = row.cells[column] ?? row.appendChild(document.createElement(column === 0 ? "th" : "td"));
      if (column === 0) {
        place.scope = "row";
      }
      place.className = cell.kind ?? "";
      if (cell.badge === undefined) {
        show(place, cell.text);
        return;
      }
      const badge = place.firstElementChild ?? place.appendChild(document.createElement("span"));
      badge.className = "badge";
      badge.dataset.state = cell.badge;
      show(badge, cell.badge);
      const why = place.children[1] ?? place.appendChild(document.createElement("div"));
      why.className = "note";
      show(why, cell.text);
    });
  });
}

const number = (text) => ({ text, kind: "number" });
const url = (text) => ({ text, kind: "url" });

function count(value) {
  return Number(value ?? 0).toLocaleString("en", { maximumFractionDigits: 0 });
}

function rate(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let [left, unit] = [Number(value ?? 0), 0];
  while (left >= 1024 && unit < units.length - 1) {
    [left, unit] = [left / 1024, unit + 1];
  }
  return `${left.toLocaleString("en", { maximumFractionDigits: unit > 0 && left < 100 ? 1 : 0 })} ${units[unit]}`;
}

function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toLocaleString("en", { maximumFractionDigits: 1 })} %` : "–";
}

function duration(us) {
  const digits = (value) => value.toLocaleString("en", { maximumSignificantDigits: 2 });
  if (us < 1000) {
    return `${digits(us)} µs`;
  }
  return us < 1e6 ? `${digits(us / 1000)} ms` : `${digits(us / 1e6)} s`;
}

function fill(bar, part, whole) {
  bar.style.width = `${whole > 0 ? Math.min(100, (100 * part) / whole) : 0}%`;
}

// What changed lately.

/** What was read lately, oldest first: the last minute and what came before it. */
let samples = [];

function sampleOf(status) {
  const requests = status.detail.requests ?? {};
  const servers = new Map((status.detail.servers ?? []).map((server) => [serverName(server), server.requests]));
  return {
    at: status.at_ms,
    pid: status.pid,
    hits: requests.hits ?? 0,
    all: OUTCOMES.reduce((sum, name) => sum + (requests[name] ?? 0), 0),
    bytes: requests.body_bytes_sent ?? 0,
    asked: requests.origin_requests ?? 0,
    latencies: status.detail.latencies ?? [],
    servers,
  };
}

const serverName = (server) => `${server.origin} ${server.url}`;

function remember(sample) {
  const last = samples[samples.length - 1];
  // Another process, or a clock that was set, begins again.
  if (last && (last.pid !== sample.pid || last.all > sample.all || last.at >= sample.at)) {
    samples = [];
  }
  samples.push(sample);
  while (samples.length > 2 && samples[1].at <= sample.at - MINUTE_MS) {
    samples.shift();
  }
}

/** What grew in a second, from the sample before the last to the last. */
function perSecond(of) {
  const [former, last] = samples.slice(-2);
  return last ? (1000 * (of(last) - of(former))) / (last.at - former.at) : null;
}

/** Draws the values between the samples, from 0 to `max`; where there is no value, the line has a gap. */
function draw(line, area, valueOf, max) {
  const last = samples[samples.length - 1];
  const points = samples.slice(1).map((sample, index) => {
    const value = valueOf(samples[index], sample);
    const x = CHART.width * (1 - (last.at - sample.at) / MINUTE_MS);
    return value === null ? null : [x, CHART.height - 2 - (CHART.height - 4) * Math.min(1, max > 0 ? value / max : 0)];
  });
  let [stroke, filled, part] = ["", "", []];
  const end = () => {
    if (part.length > 0) {
      const text = part.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
      const [left, right] = [part[0][0].toFixed(1), part[part.length - 1][0].toFixed(1)];
      stroke += `M${text}`;
      filled += `M${left} ${CHART.height}L${text}L${right} ${CHART.height}Z`;
    }
    part = [];
  };
  points.forEach((point) => (point === null ? end() : part.push(point)));
  end();
  line.setAttribute("d", stroke);
  area.setAttribute("d", filled);
}

// The parts of the page.

function showHead(status) {
  show(byId("name"), `${status.component} ${status.name}`);
  const state = byId("state");
  state.dataset.state = status.state;
  show(state, status.state);
  document.title = `${status.state === "healthy" ? "" : `${status.state}: `}${status.name} – Nectary`;
  show(byId("updated"), `read at ${new Date(status.at_ms).toLocaleTimeString()}`);
  const { addresses, configuration, process } = status.detail;
  const reloads = count(configuration?.reloads);
  const file = configuration ? `; configuration ${configuration.file}, read again ${reloads} times` : "";
  const where = (addresses ?? []).join(", ");
  show(byId("process"), `Release ${status.release}, process ${status.pid}, listens on ${where}${file}`);
  show(byId("resident"), bytes(process?.resident_bytes));
}

function showProblems(problems) {
  byId("problems").hidden = problems.length === 0;
  const list = byId("problem-list");
  const text = JSON.stringify(problems);
  // The list is announced when it changes, so it is not made again while it does not.
  if (list.dataset.shown === text) {
    return;
  }
  list.dataset.shown = text;
  const items = problems.map((problem) => {
    const item = document.createElement("li");
    const [what, remedy] = [document.createElement("p"), document.createElement("p")];
    what.textContent = problem.what;
    remedy.textContent = `What to do: ${problem.do}`;
    remedy.className = "remedy";
    item.append(what, remedy);
    return item;
  });
  list.replaceChildren(...items);
}

function showNow(status) {
  const [first, last] = [samples[0], samples[samples.length - 1]];
  const between = (of) => (former, sample) => (1000 * (of(sample) - of(former))) / (sample.at - former.at);
  const greatest = (of) => Math.max(0, ...samples.slice(1).map((sample, index) => between(of)(samples[index], sample)));
  const ratio = (former, sample) =>
    sample.all > former.all ? (sample.hits - former.hits) / (sample.all - former.all) : null;

  show(byId("hit-ratio"), percent(last.hits, last.all));
  show(byId("hit-note"), `last minute ${percent(last.hits - first.hits, last.all - first.all)}`);
  draw(byId("hit-line"), byId("hit-area"), ratio, 1);

  const requests = perSecond((sample) => sample.all);
  show(byId("request-rate"), requests === null ? "–" : rate(requests));
  const asked = perSecond((sample) => sample.asked);
  show(byId("request-note"), `${asked === null ? "–" : rate(asked)} to origins; ${count(last.all)} since the start`);
  draw(byId("request-line"), byId("request-area"), between((sample) => sample.all), greatest((sample) => sample.all));

  const sent = perSecond((sample) => sample.bytes);
  show(byId("byte-rate"), sent === null ? "–" : bytes(sent));
  show(byId("byte-note"), `${bytes(last.bytes)} since the start`);
  draw(byId("byte-line"), byId("byte-area"), between((sample) => sample.bytes), greatest((sample) => sample.bytes));

  const { requests: counters, connections } = status.detail;
  const open = counters?.connections_open ?? 0;
  show(byId("connections"), count(open));
  fill(byId("connections-bar"), open, connections?.clients_max ?? 0);
  const refused = (counters?.excess_connections ?? 0) + (counters?.limited_connections ?? 0);
  show(byId("connections-note"), `at most ${count(connections?.clients_max)} of clients; ${count(refused)} refused`);
}

/** The latency below which this share of the requests is, within a bucket as if they were spread evenly. */
function quantile(buckets, bounds, share) {
  const target = share * buckets.reduce((sum, bucket) => sum + bucket, 0);
  let below = 0;
  for (const [index, bucket] of buckets.entries()) {
    if (bucket > 0 && below + bucket >= target) {
      const from = index > 0 ? bounds[index - 1] : 0;
      const to = bounds[index];
      return to === undefined ? `> ${duration(from)}` : duration(from + ((to - from) * (target - below)) / bucket);
    }
    below += bucket;
  }
  return "–";
}

function showLatencies(status) {
  const former = byId("latency-all").checked ? [] : samples[0].latencies;
  const rows = (status.detail.latencies ?? [])
    // The proxy's own answers are mostly this page.
    .filter((latency) => latency.result !== "own")
    .map((latency) => {
      const before = former.find((other) => other.result === latency.result)?.buckets ?? [];
      const buckets = latency.buckets.map((bucket, index) => bucket - (before[index] ?? 0));
      return [latency.result, buckets, buckets.reduce((sum, bucket) => sum + bucket, 0)];
    })
    .filter(([, , all]) => all > 0)
    .map(([result, buckets, all]) => {
      const quantiles = [0.5, 0.95, 0.99].map((share) => number(quantile(buckets, status.latency_bounds_us, share)));
      return [result, number(count(all)), ...quantiles];
    });
  showRows(byId("latency-rows"), byId("latency-none"), rows);
}

function showServers(servers) {
  const former = samples.length > 1 ? samples[samples.length - 2] : null;
  const last = samples[samples.length - 1];
  const rows = servers.map((server) => {
    const before = former?.servers.get(serverName(server));
    const grown = before === undefined ? null : (1000 * (server.requests - before)) / (last.at - former.at);
    return [
      url(server.url),
      server.origin || "–",
      { badge: server.failure === null ? "up" : "failing", text: server.failure ?? "" },
      number(server.priority === null ? count(server.weight) : `${count(server.weight)} (priority ${server.priority})`),
      number(count(server.requests)),
      number(grown === null ? "–" : rate(grown)),
      number(count(server.requests_under_way)),
    ];
  });
  showRows(byId("server-rows"), byId("server-none"), rows);
}

function showStore(store) {
  show(byId("disk-used"), `${bytes(store.entries_bytes)} of ${bytes(store.span_bytes)}`);
  fill(byId("disk-bar"), store.entries_bytes, store.span_bytes);
  const memory = store.memory_used_bytes + store.memory_unwritten_bytes;
  show(byId("memory-used"), `${bytes(memory)} of ${bytes(store.memory_capacity_bytes)}`);
  fill(byId("memory-bar"), memory, store.memory_capacity_bytes);
  show(byId("objects"), count(store.entries));
  show(byId("memory-objects"), count(store.memory_entries));
  show(byId("evictions"), count(store.counts.entries_reclaimed + store.index_evictions));
  show(byId("purges"), `${count(store.counts.purges)}, ${count(store.purges_waiting)} wait`);
  show(byId("index"), `${bytes(store.index_bytes)}${store.index_loading ? ", being read" : ""}`);
  const spans = store.spans?.length > 0 ? store.spans : [{ spec: store.device, lost: null, stat: store }];
  const rows = spans.map(({ spec, lost, stat }) => {
    const [stopped, trouble] = [lost ?? stat?.stopped, stat?.trouble];
    const state = stopped ? "broken" : trouble ? "degraded" : "healthy";
    const errors = (value) => ({ text: count(value), kind: value > 0 ? "number bad" : "number" });
    const late = (stat?.counts.reads_late ?? 0) + (stat?.counts.writes_late ?? 0);
    return [
      url(spec),
      { badge: state, text: stopped ?? trouble ?? "" },
      number(stat ? bytes(stat.span_bytes) : "–"),
      errors(stat?.counts.device_read_errors ?? 0),
      errors(stat?.counts.damaged ?? 0),
      errors(late),
    ];
  });
  showRows(byId("disk-rows"), document.createElement("p"), rows);
}

function showTop(traffic) {
  const covered = traffic && traffic.seconds > 0 ? `The last ${count(Math.max(1, traffic.seconds / 60))} min. ` : "";
  const note = `${covered}Rare URLs are not counted exactly.`;
  show(byId("miss-note"), note);
  show(byId("weight-note"), note);
  const certain = (row, text) => (row.error_max > 0 ? `≥ ${text}` : text);
  const byRequests = (row) => [url(row.name), number(certain(row, count(row.requests))), number(bytes(row.bytes))];
  const byBytes = (row) => [url(row.name), number(certain(row, bytes(row.bytes))), number(count(row.requests))];
  showRows(byId("miss-rows"), byId("miss-none"), (traffic?.urls_by_requests ?? []).map(byRequests));
  showRows(byId("weight-rows"), byId("weight-none"), (traffic?.urls_by_bytes ?? []).map(byBytes));
  showRows(byId("origin-rows"), byId("origin-none"), (traffic?.origins ?? []).map(byRequests));
}

function showCertificates(certificates, nowMs) {
  const rows = certificates.map((certificate) => {
    const days = Math.floor((certificate.not_after_s * 1000 - nowMs) / 86400000);
    const left = { text: count(days), kind: days < 7 ? "number bad" : "number" };
    return [url(certificate.names.join(", ") || "–"), url(certificate.path), left];
  });
  showRows(byId("certificate-rows"), byId("certificate-none"), rows);
}

function showAll(status) {
  remember(sampleOf(status));
  showHead(status);
  showProblems(status.problems);
  showNow(status);
  showLatencies(status);
  showServers(status.detail.servers ?? []);
  showStore(status.detail.store);
  showTop(status.origin_traffic);
  showCertificates(status.detail.certificates ?? [], status.at_ms);
  byId("content").hidden = false;
}

// Asking the proxy.

function storage() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}

let token = storage()?.getItem(TOKEN_NAME) ?? null;

function useToken(text) {
  token = text;
  if (text === null) {
    storage()?.removeItem(TOKEN_NAME);
  } else {
    storage()?.setItem(TOKEN_NAME, text);
  }
  byId("forget").hidden = text === null;
}

function ask(path, options) {
  const headers = { Accept: "application/json", ...options?.headers };
  if (token !== null) {
    headers.Authorization = `Bearer ${token}`;
  }
  const signal = AbortSignal.timeout(FETCH_MS_MAX);
  return fetch(path, { cache: "no-store", redirect: "error", signal, ...options, headers });
}

function complain(text) {
  const banner = byId("banner");
  banner.hidden = text === null;
  show(banner, text ?? "");
  byId("content").classList.toggle("is-old", text !== null);
}

function wantToken() {
  if (token !== null) {
    show(byId("token-note"), "The proxy does not accept this token.");
    useToken(null);
  }
  byId("content").hidden = true;
  if (byId("token-form").hidden) {
    byId("token-form").hidden = false;
    byId("token").focus();
  }
}

async function read() {
  let response;
  try {
    response = await ask("/status.json");
    if (response.status === 401) {
      complain(null);
      wantToken();
      return;
    }
    if (!response.ok) {
      complain(`The proxy answers ${response.status}: ${(await response.text()).trim()}`);
      return;
    }
    const status = await response.json();
    byId("token-form").hidden = true;
    complain(null);
    showAll(status);
    document.documentElement.dataset.updates = String(Number(document.documentElement.dataset.updates ?? 0) + 1);
  } catch (error) {
    complain(`The proxy does not answer: ${error.message}. What is below is old.`);
  }
}

let timer = null;
let isReading = false;

async function poll() {
  window.clearTimeout(timer);
  // Nobody looks at a hidden page.
  if (document.hidden || isReading) {
    return;
  }
  isReading = true;
  await read();
  isReading = false;
  timer = window.setTimeout(poll, POLL_MS);
}

// Purging.

function subject() {
  const value = byId("purge-value").value.trim();
  if (byId("purge-all").checked) {
    return [{ all: true }, "Everything that is stored"];
  }
  if (byId("purge-tags").checked) {
    const tags = value.split(/[\s,]+/).filter((tag) => tag !== "");
    return [{ tags }, "Every response that has one of these tags"];
  }
  if (byId("purge-prefix").checked) {
    return [{ prefix: value }, "Every URL that begins so, with all its variants,"];
  }
  return [{ url: value }, "This URL, with all its variants,"];
}

function wanted() {
  const [body, what] = subject();
  if (byId("purge-soft").checked) {
    const effect = `${what} is stale from now on: it is validated by its origin, and may be served meanwhile.`;
    return [{ ...body, soft: true }, effect];
  }
  return [body, `${what} is purged, and requested from its origin again.`];
}

/** The purge that was reviewed; it is sent as it was shown. */
let reviewed = null;

function review(event) {
  event.preventDefault();
  const [body, effect] = wanted();
  reviewed = JSON.stringify(body);
  show(byId("purge-effect"), `${effect} The proxy is sent:`);
  show(byId("purge-json"), reviewed);
  byId("purge-answer").hidden = true;
  byId("purge-confirm").hidden = false;
  // Whoever presses Enter twice has purged nothing.
  byId("purge-cancel").focus();
}

function dropReview() {
  reviewed = null;
  byId("purge-confirm").hidden = true;
}

function choose() {
  dropReview();
  const input = byId("purge-value");
  input.disabled = byId("purge-all").checked;
  show(byId("purge-label"), byId("purge-tags").checked ? "Tags, with blanks between them" : "URL");
}

async function purge() {
  if (reviewed === null) {
    return;
  }
  const [body, answer] = [reviewed, byId("purge-answer")];
  dropReview();
  byId("purge-review").disabled = true;
  try {
    const response = await ask("/purge", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    answer.dataset.good = response.ok ? "yes" : "no";
    show(answer, `${response.status}: ${(await response.text()).trim()}`);
  } catch (error) {
    answer.dataset.good = "no";
    show(answer, `The proxy does not answer: ${error.message}. Send the purge again; it may be repeated.`);
  }
  answer.hidden = false;
  byId("purge-review").disabled = false;
}

// Beginning.

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  byId("token").value = "";
  poll();
});
byId("forget").addEventListener("click", () => {
  useToken(null);
  poll();
});
byId("purge-form").addEventListener("submit", review);
byId("purge-form").addEventListener("input", choose);
byId("purge-send").addEventListener("click", purge);
byId("purge-cancel").addEventListener("click", dropReview);
document.addEventListener("visibilitychange", poll);
byId("forget").hidden = token === null;
choose();
poll();
