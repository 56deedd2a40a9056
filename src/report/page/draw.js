// Elements, numbers and drawings. Whatever comes from a log becomes a text node.
const D = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child !== null && child !== undefined && child !== "") node.append(child);
  }
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

let lang = "en";
// A label of this page.
const w = (key, ...values) =>
  WORDS[key][lang === "zh" ? 1 : 0].replace(/\{(\d)\}/g, (_, at) => String(values[at]));
// A sentence of the run: in both languages, or as it was written.
const t = (words) => (words === null || words === undefined ? "" : typeof words === "string" ? words : words[lang] || words.en || "");

function duration(ms) {
  const seconds = ms / 1000;
  if (seconds < 60) return w("second", seconds < 10 ? seconds.toFixed(seconds < 1 ? 2 : 1) : Math.round(seconds));
  const whole = Math.round(seconds);
  if (whole < 3600) return w("minute", Math.floor(whole / 60), whole % 60);
  if (whole < 86400) return w("hour", Math.floor(whole / 3600), Math.floor((whole % 3600) / 60));
  return w("day", Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600));
}
function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${count >= 100 || at === 0 ? Math.round(count) : count.toFixed(1)} ${units[at]}`;
}
const stamp = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19);

// "0–3, 7"
function ranges(numbers) {
  const out = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = out[out.length - 1];
    if (last && last[1] + 1 === number) last[1] = number;
    else out.push([number, number]);
  }
  return out.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

// Columns: [title, class]. Rows: cells, each text or an element; the first is the row's header. On a narrow screen a row
// is a block of named values, which would cost a table its roles if they were not said.
function table(columns, rows, caption) {
  const cell = (content, at) => h(at === 0 ? "th" : "td",
    { scope: at === 0 ? "row" : null, role: at === 0 ? "rowheader" : "cell", class: columns[at][1] || "text", "data-name": at === 0 ? null : columns[at][0] }, content);
  const title = ([name, kind]) => h("th", { scope: "col", role: "columnheader", class: kind || "text" }, name);
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption || columns[0][0] },
    h("table", { role: "table" },
      caption ? h("caption", null, caption) : null,
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(title))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map(cell))))));
}

function ticks(most, count) {
  const raw = most / count;
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800].map((x) => x * 1000);
  const fine = [100, 200, 500].concat(steps);
  const step = fine.find((x) => x >= raw) || Math.ceil(raw / 604800000) * 604800000;
  const out = [];
  for (let at = 0; at <= most; at += step) out.push(at);
  return out;
}
// Seconds of a run below a minute, else minutes and seconds, or hours and minutes.
function tick(ms, end) {
  const whole = Math.floor(ms / 1000);
  const two = (x) => String(x).padStart(2, "0");
  if (end < 60000) return `${ms % 1000 ? (ms / 1000).toFixed(1) : whole} s`;
  if (end < 3600000) return `${Math.floor(whole / 60)}:${two(whole % 60)}`;
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)} h`;
}
const anchor = (at, end) => (at === 0 ? "start" : at > 0.94 * end ? "end" : "middle");
function axis(x, end, top, bottom, count) {
  return ticks(end, count).map((at) => [
    s("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: bottom }),
    s("text", { x: x(at), y: top - 5, "text-anchor": anchor(at, end) }, tick(at, end)),
  ]);
}

// The next round number, of units of 1000 or 1024.
function nice(value, base) {
  const unit = base ** Math.max(0, Math.floor(Math.log(Math.max(value, 1)) / Math.log(base)));
  const power = 10 ** Math.floor(Math.log10(Math.max(value / unit, 1)));
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((one) => one * power * unit >= value) || 10;
  return step * power * unit;
}

// Series: {values, began, every}. One line each, or the mean within the range of all.
function chart({ series, end, top, label, limit, show }) {
  const width = 340, height = 120, left = 64, bottom = 102, up = 18;
  const x = (ms) => left + (Math.min(ms, end) / Math.max(end, 1)) * (width - left - 6);
  const y = (value) => bottom - (Math.min(value, top) / Math.max(top, 1)) * (bottom - up);
  const points = (values, one) => values
    .map((value, at) => (value === null ? null : [x(one.began + (at + 0.5) * one.every), y(value)]))
    .filter(Boolean);
  const line = (list) => list.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
  // Few values are seen as what they are.
  const curve = (list, kind) => [s("polyline", { class: `curve ${kind}`, points: line(list) }),
    list.length <= 8 ? list.map(([cx, cy]) => s("circle", { class: "cell", cx, cy, r: 2.5 })) : null];
  let drawn;
  if (series.length <= 6) {
    drawn = series.map((one) => curve(points(one.values, one), series.length > 1 ? "many" : ""));
  } else {
    // Nodes have buckets of their own; the first one's are those of the picture.
    const first = series[0];
    const sums = Array.from({ length: 60 }, () => [0, 0, Infinity, 0]);
    for (const one of series) {
      one.values.forEach((value, at) => {
        if (value === null) return;
        const bucket = sums[Math.min(59, Math.floor(((one.began + (at + 0.5) * one.every) / Math.max(end, 1)) * 60))];
        bucket[0] += value; bucket[1] += 1;
        bucket[2] = Math.min(bucket[2], value); bucket[3] = Math.max(bucket[3], value);
      });
    }
    const known = sums.map((sum, at) => [x(((at + 0.5) / 60) * end), ...sum]).filter((one) => one[2] > 0);
    const band = known.map(([a, , , , most]) => [a, y(most)]).concat(known.slice().reverse().map(([a, , , least]) => [a, y(least)]));
    drawn = [first ? s("polygon", { class: "band", points: line(band) }) : null, curve(known.map(([a, sum, count]) => [a, y(sum / count)]), "")];
  }
  const marks = [0, 0.5, 1].map((part) => [
    s("line", { class: "grid", x1: left, x2: width, y1: y(top * part), y2: y(top * part) }),
    s("text", { x: left - 5, y: y(top * part) + 4, "text-anchor": "end" }, show(top * part)),
  ]);
  const times = ticks(end, 4).map((at) => s("text", { x: x(at), y: height - 3, "text-anchor": anchor(at, end) }, tick(at, end)));
  return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    marks, times, drawn,
    limit ? s("line", { class: "limit", x1: left, x2: width, y1: y(limit), y2: y(limit) }) : null);
}
