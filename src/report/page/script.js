// The sections of the page.
const root = document.documentElement;
const when = (ms) => stamp(D.began + ms);
// The time of day, with the day where the run saw more than one.
const clock = (ms) => when(ms).slice(when(0).slice(0, 10) === when(D.ended).slice(0, 10) ? 11 : 5);
const nodeName = (number) => w("nodeN", number);

// done, failed, stopped, or cut off: a word and a colour.
function state() {
  const verdict = D.end && D.end.verdict;
  if (!verdict || D.nodes[0].cut_off) return verdict ? ["failed", "fail"] : ["cutOff", "warn"];
  if (verdict.class === "done") return ["done", "ok"];
  return verdict.class === "stopped" ? ["stopped", "warn"] : ["failed", "fail"];
}

function section(id, title, ...content) {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), content);
}

function log(lines, first, shown) {
  return h("pre", { class: "log", tabindex: "0" }, lines.map((line, at) =>
    h("span", { class: first + at === shown ? "at" : null }, first ? h("i", { "aria-hidden": "true" }, first + at) : null, line || " ")));
}

function verdict() {
  const [word, colour] = state();
  const end = D.end;
  const cause = end && end.cause;
  const said = end && end.verdict;
  const title = cause ? t(cause.text) : said ? t(said.text) : w("cutOffText");
  const rows = [];
  const add = (name, value) => { if (value && value.length !== 0) rows.push(h("dt", null, name), h("dd", null, value)); };
  if (said && cause) add(w("happened"), t(said.text));
  const place = (rank, node, frame) => {
    const host = (D.nodes.find((one) => one.node === node) || {}).host;
    const name = rank === null ? w("placeNode", node) : w("place", rank, node);
    add(w("where"), [name, host ? w("atHost", host) : "", frame ? [w("comma"), h("code", null, frame)] : ""]);
  };
  if (cause) {
    place(cause.rank === null ? said.rank : cause.rank, cause.node === null ? end.node : cause.node, cause.frame);
    add(w("cause"), w("confidence", cause.id, ["certain", "likely"].includes(cause.confidence) ? w(cause.confidence) : w("unknown")));
    add(w("evidence"), cause.evidence ? h("code", null, cause.evidence) : "");
    add(w("others"), cause.others.map((one) => h("div", null, t(one))));
  }
  const known = said && (D.nodes.length === 1 ? end.node : said.node);
  if (said && !cause && said.rank !== null && known !== null) place(said.rank, known);
  if (said && !cause && said.class !== "done") add(w("cause"), said.id);
  if (said && t(said.hint) && !(cause && end.excerpt)) add(w("hint"), t(said.hint));
  const codes = D.nodes.filter((one) => one.exit_code !== null);
  const all = [...new Set(codes.map((one) => one.exit_code))];
  const endedWith = (code) => codes.filter((one) => one.exit_code === code).map((one) => one.node);
  add(w("exitCode"), all.length === 1 ? String(all[0]) : all.map((code) =>
    h("div", null, `${code}: ${w(endedWith(code).length > 1 ? "nodesN" : "nodeN", ranges(endedWith(code)))}`)));
  const excerpt = end && end.excerpt;
  const last = end && end.last_lines.length ? end.last_lines : null;
  return h("section", { id: "verdict", class: colour, "aria-labelledby": "verdict-title" },
    h("h2", { id: "verdict-title" }, h("span", { class: `pill ${colour}` }, w(word)), title),
    cause && t(cause.remedy) ? h("div", { class: "remedy" }, h("b", null, w("remedy")), t(cause.remedy)) : null,
    h("dl", null, rows),
    excerpt ? h("figure", null, h("figcaption", null, w("excerpt", excerpt.log, excerpt.shown)), log(excerpt.lines, excerpt.first, excerpt.shown)) : null,
    last ? (excerpt
      ? h("details", null, h("summary", null, w("lastLines")), log(last, 0, -1))
      : h("figure", null, h("figcaption", null, w("lastLines")), log(last, 0, -1))) : null);
}

// The parts of the time, and the meanings of their colours.
const SHARES = [["preparing", "preparing"], ["waiting", "waiting"], ["computing", "live"], ["lost", "lost"], ["standing", "standing"], ["restarting", "restarting"], ["ending", "ending"]];
function ledger() {
  const L = D.ledger;
  const percent = (ms) => (L.total ? `${((100 * ms) / L.total).toFixed(1)} %` : "–");
  let at = 0;
  const bars = SHARES.map(([name, colour]) => {
    const wide = L.total ? (1000 * L[name]) / L.total : 0;
    const bar = wide > 0 ? s("rect", { "data-meaning": colour, x: at, y: 0, width: wide, height: 22 }, s("title", null, `${w(name)}: ${duration(L[name])}`)) : null;
    at += wide;
    return bar;
  });
  const tile = (value, name) => h("div", { class: "tile" }, h("b", null, value), h("span", null, name));
  const shown = SHARES.filter(([name]) => L[name] > 0 || name === "computing");
  return section("ledger", w("ledger"),
    h("div", { class: "tiles" }, tile(duration(L.total), w("ran")), L.goodput === null ? tile(percent(L.computing), w("ranksLive")) : tile(percent(L.goodput), w("goodput")),
      L.gpus ? tile(L.gpu_hours.toFixed(2), w("gpuHours")) : null,
      L.gpus ? tile(L.gpu_hours_computing.toFixed(2), w("gpuHoursComputing")) : null,
      L.energy_wh === null ? null : tile(L.energy_wh < 1000 ? `${L.energy_wh.toFixed(1)} Wh` : `${(L.energy_wh / 1000).toFixed(2)} kWh`, w(L.energy_estimated_wh === 0 ? "energyMeasured" : L.energy_estimated_wh < L.energy_wh ? "energyMixed" : "energyEstimated"))),
    s("svg", { class: "bar", viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img", "aria-label": shown.map(([name]) => `${w(name)}: ${percent(L[name])}`).join("; ") }, bars),
    table([[w("what")], [w("time"), "n"], [w("share"), "n"]],
      shown.map(([name, colour]) => [[h("span", { class: "key", "data-meaning": colour }), w(name)], duration(L[name]), percent(L[name])])
        .concat([[w("total"), duration(L.total), ""]]), w("ledger")));
}

const KEYS = [["preparing", "keyPhase"], ["waiting", "waiting"], ["live", "keyLive"], ["fault", "keyFault"], ["failed", "keyFailed"], ["stopped", "keyStopped"],
  ["standing", "standing"], ["finding", "keyFinding"], ["attempt", "attempt"], ["end", "keyEnd"]];
function times() {
  const rows = D.nodes[0].attempts.map((one) => [w("attemptN", one.number), when(one.began),
    one.ended === null ? "–" : duration(one.ended - one.began), one.exit_code === null ? "–" : String(one.exit_code),
    one.cause || one.id || "–", t(one.text)]);
  const box = h("div", { class: "scroll", id: "timeline-box", tabindex: "0", role: "group", "aria-label": w("timeline") });
  return section("timeline", w("timeline"),
    h("ul", { class: "keys", id: "timeline-keys" }), box,
    rows.length > 1 ? table([[w("attempt")], [w("began"), "k"], [w("lasted"), "n"], [w("exitCode"), "n"], [w("cause"), "k"], [w("what")]], rows, w("attempts")) : null);
}
function drawTimeline() {
  const box = document.getElementById("timeline-box");
  if (!box) return;
  box.replaceChildren(timeline(D, Math.max(300, box.clientWidth)));
  // The legend names what is in the picture.
  document.getElementById("timeline-keys").replaceChildren(...KEYS.filter(([meaning]) => box.querySelector(`[data-meaning="${meaning}"]`))
    .map(([meaning, name]) => h("li", null, h("span", { class: "key", "data-meaning": meaning }), w(name))));
}

function findings() {
  const rows = D.findings.map((one) => [clock(one.at), one.until === null || one.until <= one.at ? "–" : duration(one.until - one.at),
    h("span", { class: one.grave ? "fail-text" : "info-text" }, one.kind),
    one.rank === null ? nodeName(one.node) : w("onNode", w("rankN", one.rank), one.node),
    [t(one.text), t(one.hint) ? h("small", { class: "hint" }, t(one.hint)) : ""]]);
  return section("findings", w("findings"), rows.length
    ? table([[w("at"), "k"], [w("lasted"), "k"], [w("kind"), "k"], [w("who"), "k"], [w("what")]], rows, w("findings"))
    : h("p", { class: "empty" }, w("noFindings")));
}

// Half of a small axis is no whole number.
const rounded = (value) => (value < 10 && value % 1 ? value.toFixed(1) : `${Math.round(value)}`);
const percentage = (value) => `${rounded(value)} %`;
const mebi = (value) => bytes(value * 1048576);
const rate = (value) => `${bytes(value * 1024)}/s`;
const KINDS = [
  ["gpu", "utilisation", "gpuUtilisation", percentage, 100], ["gpu", "memory", "gpuMemory", mebi], ["gpu", "power", "gpuPower", (value) => `${rounded(value)} W`],
  ["gpu", "temperature", "gpuTemperature", (value) => `${rounded(value)} °C`],
  ["rank", "cpu", "rankCpu", percentage], ["rank", "memory", "rankMemory", mebi], ["node", "memory", "nodeMemory", mebi],
  ["node", "received", "nodeReceived", rate], ["node", "sent", "nodeSent", rate],
];
function use() {
  const tracks = D.nodes.flatMap((node) => node.samples.tracks.map(([of, number, what, mean, most, values]) =>
    ({ node: node.node, of, number, what, mean, most, values, began: node.samples.began, every: node.samples.every })));
  const name = (one) => one.of === "node" ? nodeName(one.node) : w("onNode", w(one.of === "gpu" ? "gpuN" : "rankN", one.number), one.node);
  const rows = [];
  const charts = KINDS.map(([of, what, label, show, least]) => {
    const series = tracks.filter((one) => one.of === of && one.what === what);
    const most = series.reduce((sum, one) => Math.max(sum, one.most), 0);
    if (!series.length || (most === 0 && of === "node")) return null;
    const mean = series.reduce((sum, one) => sum + one.mean, 0) / series.length;
    series.forEach((one) => rows.push([name(one), w(label), show(one.mean), show(one.most)]));
    const limits = of === "node" && what === "memory" ? tracks.filter((one) => one.what === "limit").map((one) => one.most) : [];
    const limit = limits.length ? Math.min(...limits) : 0;
    const count = Math.max(...series.map((one) => one.values.filter((value) => value !== null).length));
    if (count < 2) return null;
    const numbers = w("meanMost", show(mean), show(most));
    return h("div", { class: "chart" }, h("h3", null, w(label)),
      h("p", null, numbers, series.length > 1 ? ` · ${series.length > 6 ? w("band", series.length) : w("each")}` : ""),
      chart({ series, end: D.ended, top: Math.max(least || 0, nice(Math.max(most, limit > most * 4 ? 0 : limit), show === mebi || show === rate ? 1024 : 1000)), limit: limit > most * 4 ? 0 : limit, label: `${w(label)}: ${numbers}`, show }));
  }).filter(Boolean);
  const without = charts.length ? null : h("p", { class: "empty" }, w(rows.length ? "oneSample" : "noSamples"));
  return section("use", w("use"), charts.length ? h("div", { class: "charts" }, charts) : without,
    rows.length ? h("details", { open: !charts.length }, h("summary", null, w("inNumbers")),
      table([[w("of")], [w("what")], [w("mean"), "n"], [w("most"), "n"]], rows, w("inNumbers"))) : null);
}

const warning = (one) => [h("code", null, one.id), [t(one.text), t(one.hint) ? h("small", { class: "hint" }, t(one.hint)) : ""]];
function variables(title, of) {
  const rows = Object.entries(of).map(([name, value]) => [h("code", null, name), h("code", null, value)]);
  return rows.length ? h("details", null, h("summary", null, `${title} (${rows.length})`), table([[w("name")], [w("value")]], rows, title)) : null;
}
function plan() {
  const row = (at) => { const one = D.decisions[at]; return [h("code", null, one.what), h("code", null, one.value), t(one.because), h("code", null, one.source)]; };
  const columns = [[w("what")], [w("value"), "v"], [w("because")], [w("source"), "v"]];
  const other = new Map();
  for (const node of D.nodes) for (const at of node.decisions) {
    if (!other.has(at)) other.set(at, []);
    other.get(at).push(node.node);
  }
  const others = [...other].map(([at, nodes]) => [ranges(nodes), ...row(at).slice(0, 3)]);
  return section("plan", w("plan"), D.plan.length ? table(columns, D.plan.map(row), w("plan")) : h("p", { class: "empty" }, w("none")),
    others.length ? h("details", null, h("summary", null, `${w("differing")} (${others.length})`), table([[w("node"), "k"], ...columns.slice(0, 3)], others, w("differing"))) : null,
    D.warnings.length ? [h("h3", null, w("warnings")), table([[w("name")], [w("what")]], D.warnings.map(warning), w("warnings"))] : null,
    D.argv.length ? [h("h3", null, w("command")), h("pre", { class: "log", tabindex: "0" }, h("span", null, D.argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`)).join(" ")))] : null,
    variables(w("variables"), D.env), variables(w("environment"), D.environment));
}

function checks() {
  const order = ["fail", "warn", "info", "ok"];
  const nodes = D.checks.map((_, at) => D.nodes.filter((node) => node.checks.includes(at)).map((node) => node.node));
  const rows = D.checks.map((one, at) => [one, nodes[at]]).filter(([, of]) => of.length)
    .sort((a, b) => order.indexOf(a[0].severity) - order.indexOf(b[0].severity));
  if (!rows.length) return section("checks", w("checks"), h("p", { class: "empty" }, w("noChecks")));
  const count = (severity) => rows.filter(([one]) => one.severity === severity).reduce((sum, [, of]) => sum + of.length, 0);
  const rest = D.nodes.reduce((sum, node) => sum + node.passed, 0) + count("ok") + count("info");
  const columns = [[w("check")], [w("result"), "k"], [w("node"), "k"], [w("what")]];
  const shown = ([one, of]) => [h("code", null, one.id), h("span", { class: `${one.severity}-text` }, w(order.includes(one.severity) ? one.severity : "info")),
    of.length === D.nodes.length && of.length > 1 ? w("allNodes") : ranges(of), warning(one)[1]];
  const bad = rows.filter(([one]) => one.severity === "fail" || one.severity === "warn");
  const good = rows.filter(([one]) => one.severity !== "fail" && one.severity !== "warn");
  return section("checks", w("checks"), h("p", { class: "muted" }, w("checksText", count("fail"), count("warn"), rest)),
    bad.length ? table(columns, bad.map(shown), w("checks")) : null,
    good.length ? h("details", null, h("summary", null, w("passed", good.length)), table(columns, good.map(shown), w("passed", good.length))) : null);
}

function members() {
  const nodes = D.nodes.map((node) => [nodeName(node.node) + (node.task === null ? "" : `.${node.task}`), node.host || "–", when(node.began), when(node.ended),
    node.exit_code === null ? "–" : String(node.exit_code), Object.entries(node.versions).filter(([name]) => name !== "script").map(([name, version]) => `${name} ${version}`).join(", ")]);
  const ranks = D.nodes.flatMap((node) => node.ranks.map((one) => {
    const bad = ["fault", "failed"].includes(fate(node, one));
    return [String(one[1]), String(node.node), one[2] === null ? "–" : String(one[2]), w("attemptN", one[0]), one[3] === null ? "–" : String(one[3]),
      one[4] === null ? "–" : clock(one[4]), one[5] === null ? "–" : clock(one[5]), h("span", { class: bad ? "fail-text" : null }, howEnded(one)),
      one[8] === null ? "–" : String(one[8]), one[9] === null ? "–" : bytes(one[9]), one[10] ? bytes(one[10]) : "–"];
  })).sort((a, b) => Number(a[0]) - Number(b[0]));
  const columns = [[w("rank"), "n"], [w("node"), "n"], [w("local"), "n"], [w("attempt"), "k"], [w("pid"), "n"], [w("began"), "k"], [w("ended"), "k"], [w("how"), "k"], [w("lines"), "n"], [w("output"), "n"], [w("dropped"), "n"]];
  const notes = D.nodes.flatMap((node) => node.notes.map((one) => [nodeName(node.node), t(one)]));
  return section("members", w("members"),
    table([[w("node"), "k"], [w("host"), "v"], [w("began"), "k"], [w("ended"), "k"], [w("exitCode"), "n"], [w("versions")]], nodes, w("nodes", D.nodes.length)),
    ranks.length ? h("details", { open: ranks.length <= 16 }, h("summary", null, w("rankTable", ranks.length)), table(columns, ranks, w("rankTable", ranks.length))) : null,
    notes.length ? [h("h3", null, w("notes")), table([[w("node")], [w("what")]], notes, w("notes"))] : null);
}

// auto → light → dark
const THEMES = ["auto", "light", "dark"];
let theme = "auto";
function setTheme(value) {
  theme = value;
  if (theme === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", theme);
}
const themeName = () => w(`theme${theme[0].toUpperCase()}${theme.slice(1)}`);

const PARTS = [["verdict", verdict, "verdict"], ["ledger", ledger, "navTime"], ["timeline", times, "timeline"], ["findings", findings, "navFindings"],
  ["use", use, "navUse"], ["plan", plan, "navPlan"], ["checks", checks, "navChecks"], ["members", members, "navMembers"]];
function show() {
  root.lang = lang === "zh" ? "zh-CN" : "en";
  const focused = document.activeElement && document.activeElement.id;
  const open = [...document.querySelectorAll("details")].map((one) => one.open);
  const count = (one, many, number) => (number === 1 ? w(one) : w(many, number));
  const facts = [D.whole ? w("job") : w("nodeReport", D.nodes[0].node), count("oneNode", "nodes", D.members || D.nodes.length), D.missing ? w("missing", D.missing) : "", D.world_size ? count("oneRank", "ranks", D.world_size) : "", D.engine, `${when(0)} – ${when(D.ended).slice(11)} UTC`].filter(Boolean).join(" · ");
  const [word] = state();
  const headline = [D.program || D.run_id, D.profile].filter(Boolean).join(" · ");
  document.title = `${w(word)}: ${headline} – ranklaunch`;
  const page = document.getElementById("page");
  page.replaceChildren(
    h("a", { class: "skip", href: "#verdict" }, w("skip")),
    h("header", { class: "top" }, h("div", { class: "inner" },
      h("div", { class: "what" }, h("h1", null, headline), h("p", { class: "facts" }, facts), D.program ? h("p", { class: "facts id" }, w("run", D.run_id)) : null),
      h("div", { class: "tools" },
        h("button", { id: "language", type: "button", lang: lang === "zh" ? "en" : "zh-CN", title: w("toLanguage"), onclick: () => { lang = lang === "zh" ? "en" : "zh"; show(); } }, w("language")),
        h("button", { id: "theme", type: "button", onclick: (event) => { setTheme(THEMES[(THEMES.indexOf(theme) + 1) % 3]); event.target.textContent = themeName(); } }, themeName())))),
    h("nav", { "aria-label": w("sections") }, h("ul", null, PARTS.map(([id, , name]) => h("li", null, h("a", { href: `#${id}` }, w(name)))))),
    h("main", { id: "main" }, PARTS.map(([, part]) => part())),
    h("footer", null, w("made", D.nodes[0].versions.ranklaunch || "")));
  document.querySelectorAll("details").forEach((one, at) => { if (open.length) one.open = open[at]; });
  drawTimeline();
  const again = focused && document.getElementById(focused);
  if (again) again.focus();
}

lang = D.lang === "zh" ? "zh" : "en";
show();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawTimeline(); } });
