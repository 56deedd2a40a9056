// The timeline: phases of each node, its ranks, and what was found meanwhile.
const STEPS = {
  settings: "phaseSettings", observe: "phaseObserve", "stale.look": "phaseStale",
  muster: "phaseMuster", wait: "phaseWait", "stale.end": "phaseEnd",
};

// Who is to blame, by attempt and rank.
const AT_FAULT = new Set(D.at_fault.map(([attempt, rank]) => `${attempt}/${rank}`));

// How a rank ended, as the meaning of a colour.
function fate(node, rank) {
  const [attempt, number, , , , ended, code, signal] = rank;
  if (AT_FAULT.has(`${attempt}/${number}`)) return "fault";
  if (ended === null || code === 0) return "live";
  const stopping = (node.attempts.find((one) => one.number === attempt) || {}).stopping;
  const late = stopping !== null && stopping !== undefined && ended >= stopping;
  return late && (signal === 15 || signal === 9 || code === 143) ? "stopped" : "failed";
}

function timeline(D, width) {
  const ranks = D.nodes.map((node) => {
    const rows = new Map();
    for (const rank of node.ranks) {
      if (!rows.has(rank[1])) rows.set(rank[1], []);
      rows.get(rank[1]).push(rank);
    }
    return [...rows.entries()].sort((a, b) => a[0] - b[0]);
  });
  const count = ranks.reduce((sum, rows) => sum + rows.length, 0);
  const row = Math.max(1, Math.min(15, Math.floor(620 / Math.max(count, 1))));
  const head = D.nodes.length <= 24 ? 19 : Math.max(0, Math.min(4, row));
  const left = width < 600 ? 62 : 92, right = 12;
  const end = Math.max(D.ended, 1);
  const x = (ms) => left + (Math.max(0, Math.min(ms, end)) / end) * (width - left - right);
  const parts = [];
  let y = 44, named = 0;
  D.nodes.forEach((node, at) => {
    const name = w("nodeN", node.node) + (node.task === null ? "" : `.${node.task}`);
    if (head === 19) {
      parts.push(s("text", { class: "strong", x: 0, y: y + 12 }, name));
      for (const [step, from, to] of node.phases.filter(([, from, to]) => to > from)) {
        const wide = Math.max(1.5, x(to) - x(from));
        parts.push(s("rect", { "data-meaning": step === "muster" || step === "wait" ? "waiting" : "preparing", x: x(from), y: y + 3, width: wide, height: 10, rx: 1.5 },
          s("title", null, `${name}: ${w(STEPS[step] || "phaseSettings")}, ${duration(to - from)}`)));
      }
      for (const one of node.attempts.length > 1 ? node.attempts : []) {
        const until = one.ended === null ? node.ended : one.ended;
        const title = `${name}: ${w("attemptN", one.number)}, ${duration(until - one.began)}${one.id ? `, ${one.cause || one.id}` : ""}`;
        parts.push(s("rect", { "data-meaning": "attempt", x: x(one.began), y: y + 7, width: Math.max(1.5, x(until) - x(one.began)), height: 2 }, s("title", null, title)));
      }
    }
    // Of many nodes those that find room.
    if (head < 19 && y - named >= 13) {
      parts.push(s("text", { x: left - 8, y: y + 9, "text-anchor": "end" }, name));
      named = y;
    }
    y += head;
    for (const [number, lives] of ranks[at]) {
      if (row >= 10) parts.push(s("text", { x: left - 8, y: y + row - 4, "text-anchor": "end" }, w("rankN", number)));
      for (const life of lives) {
        const from = life[4] === null ? (node.attempts.find((one) => one.number === life[0]) || { began: 0 }).began : life[4];
        const to = life[5] === null ? node.ended : life[5];
        const tall = row >= 4 ? row - 2 : row;
        parts.push(s("rect", { "data-meaning": fate(node, life), x: x(from), y, width: Math.max(1.5, x(to) - x(from)), height: tall, rx: row >= 8 ? 2 : 0 },
          s("title", null, `${w("rankN", number)} · ${w("attemptN", life[0])}: ${duration(to - from)}, ${howEnded(life)}`)));
      }
      y += row;
    }
    y += head === 19 ? 9 : 1;
  });
  const marks = D.findings.map((one) => {
    const from = x(one.at), to = one.until === null ? from : x(one.until);
    const kind = { class: "mark", "data-meaning": one.kind === "hang" ? "standing" : "finding" };
    const title = s("title", null, `${one.kind}: ${t(one.text)}`);
    return to - from > 5
      ? s("rect", { ...kind, x: from, y: 26, width: to - from, height: 6, rx: 3 }, title)
      : s("path", { ...kind, d: `M${from} 24l5 5-5 5-5-5z` }, title);
  });
  const stops = D.nodes[0].attempts.filter((one) => one.stopping !== null)
    .map((one) => s("line", { class: "end", "data-meaning": "end", x1: x(one.stopping), x2: x(one.stopping), y1: 20, y2: y }));
  return s("svg", { width, height: y + 4, viewBox: `0 0 ${width} ${y + 4}`, role: "img", "aria-label": w("timelineLabel", duration(end)) },
    axis(x, end, 17, y, Math.max(3, Math.floor(width / 110))), parts, stops, marks);
}

function howEnded(life) {
  if (life[5] === null) return w("running");
  if (life[7] !== null) return w("signal", life[7]);
  return life[6] === null ? w("shimLost") : w("code", life[6]);
}
