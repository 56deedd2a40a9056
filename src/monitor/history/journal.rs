//! Reads agent.jsonl, line by line.

use serde_json::Value;

use super::record::{
    self, code, items, moment, number, own_gpus, pairs, plan, row, span, text, words,
};
use super::tracks::{Energy, Millis, Tracks};
use super::{Finding, NodeHistory, Step, Words};
use crate::steps::{Report, Steps};
use text::lang::Lang;
use text::order::Ordered;
use text::text;

/// The steps before the ranks run, by the names of their spans.
const STEPS: [&str; 6] = ["settings", "observe", "stale.look", "muster", "wait", "stale.end"];
/// Maximum number of findings, so that a rule that breaks each second fills no page.
const MOST_FINDINGS: usize = 400;
/// An abnormality in two samples counts as one finding if they are at most this far apart.
const SAME: Millis = 90_000;
/// Maximum bytes of a line that this program writes.
const LONGEST: usize = 4 << 20;

/// The journal so far.
#[derive(Debug, Default)]
pub struct JournalReader {
    history: NodeHistory,
    tracks: Tracks,
    /// Attempt of the lines that follow.
    attempt: u32,
    unread: u64,
    energy: Energy,
}

impl JournalReader {
    /// Adds one line, without its end.
    pub fn line(&mut self, line: &[u8]) {
        if line.is_empty() {
            return;
        }
        let read = (line.len() <= LONGEST).then(|| serde_json::from_slice::<Value>(line).ok());
        let Some(line) = read.flatten() else {
            self.unread += 1;
            return;
        };
        let Some(at) = line["timestamp"].as_str().and_then(moment) else { return };
        let history = &mut self.history;
        if history.began == 0 {
            history.began = at;
        }
        history.ended = at.max(history.ended);
        if let Some(attempt) = items(&line["spans"]).iter().find_map(|one| number(&one["attempt"]))
        {
            self.attempt = attempt;
        }
        let fields = &line["fields"];
        match fields["message"].as_str() {
            Some("close") => self.close(at, &line["span"], fields),
            Some("checked") => self.checked(at, fields),
            Some("planned") => self.planned(at, fields),
            Some("ended") => record::add(&mut self.history, &fields["record"]),
            Some("refused") => self.refused(at, fields),
            Some("sampled") => {
                self.sampled(at, fields);
                self.progressed(at, &fields["progress"]);
            }
            Some("progress") => self.progressed(at, &fields["progress"]),
            Some("hang") => self.find(record::hang(&fields["hang"])),
            Some("the job goes on after a hang") => self.over("hang", None, at),
            Some("slow") => self.slow(at, fields),
            Some("held_up") => {
                let finding = record::held_up(&fields["held_up"]);
                // The same wait was reported again.
                self.over("slow", finding.as_ref().and_then(|one| one.rank), at);
                self.find(finding);
            }
            Some("slow_over" | "held_up_over") => self.over("slow", number(&fields["rank"]), at),
            Some("rule") => self.rule(at, &fields["rule"]),
            Some("Xid") => self.xid(at, fields),
            Some("the kernel logged") => {
                self.find(Finding::new("kernel", at, Words::One(text(&fields["line"]))))
            }
            _ => self.noticed(at, fields),
        }
    }

    /// Whether nothing of a journal was read.
    pub fn is_empty(&self) -> bool {
        self.history.began == 0
    }

    /// The history, completed from run.json, with at most `points` values of each quantity over
    /// time.
    pub fn finish(self, run: Option<&Value>, points: usize) -> NodeHistory {
        let JournalReader { mut history, tracks, unread, energy, .. } = self;
        history.samples = tracks.finish(points);
        if let Some(joules) = energy.joules() {
            history.energy_joules = Some(joules.measured + joules.estimated);
            history.energy_estimated_joules = joules.estimated;
        }
        if unread > 0 {
            history.notes.push(text!(
                "{unread} lines of agent.jsonl are cut or no JSON",
                "agent.jsonl 中有 {unread} 行不完整或不是 JSON"
            ));
        }
        if let Some(run) = run {
            record::add(&mut history, run);
        }
        history.attempts.order_by_key(|attempt| attempt.number);
        history.steps.order_by_key(|steps| steps.attempt);
        history.ranks.order_by_key(|rank| (rank.attempt, rank.rank));
        history.findings.order_by_key(|one| one.at);
        let last = history.attempts.last();
        history.cut_off = last.is_none_or(|last| last.verdict.is_none());
        if history.began == 0 {
            history.began = history.attempts.first().map_or(0, |first| first.began);
        }
        history.ended = history.ended.max(history.began);
        // The stop or end of the attempt, else the end of the run, also ends hangs and slow ranks
        // that are still open.
        for one in history.findings.iter_mut().filter(|one| one.until.is_none()) {
            if ["hang", "slow"].contains(&one.kind.as_str()) {
                let at = one.at;
                let stopped = history.attempts.iter().filter_map(|one| one.stopping.or(one.ended));
                one.until = stopped.filter(|end| *end > at).min().or(Some(history.ended));
            }
        }
        history
    }

    fn close(&mut self, at: Millis, of: &Value, fields: &Value) {
        let name = text(&of["name"]);
        if !STEPS.contains(&name.as_str()) {
            return;
        }
        let took = |field: &str| fields[field].as_str().and_then(span).unwrap_or(0.0);
        #[expect(clippy::cast_sign_loss, reason = "durations are not negative")]
        let took = (took("time.busy") + took("time.idle")) as u64;
        let from = at.saturating_sub(took);
        // The first line of a journal is the end of its first step.
        self.history.began = self.history.began.min(from);
        self.history.phases.push(Step { name, from, to: at });
    }

    fn checked(&mut self, at: Millis, fields: &Value) {
        let history = &mut self.history;
        history.host = text(&fields["host"]);
        history.versions.extend(pairs(&fields["versions"]));
        history.environment.extend(pairs(&fields["environment"]));
        history.checks = items(&fields["checks"]).iter().map(|one| row(one, "ok")).collect();
        history.ended = at.max(history.ended);
    }

    fn planned(&mut self, at: Millis, fields: &Value) {
        let history = &mut self.history;
        history.run_id = text(&fields["run_id"]);
        history.node = number(&fields["node"]).unwrap_or_default();
        history.task = number(&fields["task"]);
        history.program = text(&fields["program"]);
        history.profile = text(&fields["profile"]);
        history.members = number(&fields["members"]).unwrap_or_default();
        history.lang = if fields["lang"] == "zh" { Lang::Zh } else { Lang::En };
        history.plan = plan(&fields["plan"]);
        self.energy.of_job(own_gpus(&fields["plan"], history.task));
        self.attempt = number(&fields["attempt"]).unwrap_or(self.attempt);
        record::attempt_of(history, self.attempt).began = at;
    }

    /// The launch ended between two attempts, or before the first.
    fn refused(&mut self, at: Millis, fields: &Value) {
        let history = &mut self.history;
        let last = history.attempts.iter().map(|attempt| attempt.number).max();
        let next = last.map_or(0, |last| last.saturating_add(1));
        let attempt = record::attempt_of(history, next);
        (attempt.began, attempt.ended) = (at, Some(at));
        attempt.exit_code = code(&fields["exit_code"]);
        attempt.verdict = Some(record::verdict(&fields["verdict"]));
        history.exit_code = attempt.exit_code;
    }

    fn noticed(&mut self, at: Millis, fields: &Value) {
        let history = &mut self.history;
        if let Some(rank) = number(&fields["began"]) {
            let life = record::life_of(history, self.attempt, rank);
            life.began = life.began.or(Some(at));
            life.local = number(&fields["local"]);
            life.pid = number(&fields["pid"]);
        } else if let Some(rank) = number(&fields["ended"]) {
            let life = record::life_of(history, self.attempt, rank);
            life.ended = Some(at);
            life.code = code(&fields["code"]);
            life.signal = code(&fields["signal"]);
        } else if fields["stopping"] == true {
            let attempt = record::attempt_of(history, self.attempt);
            attempt.stopping = attempt.stopping.or(Some(at));
        }
    }

    fn sampled(&mut self, at: Millis, fields: &Value) {
        const MIB: f64 = 1_048_576.0;
        self.tracks.begin(at);
        let tracks = &mut self.tracks;
        let mut add = |key, value: &Value, scale: f64| {
            if let Some(value) = value.as_f64() {
                tracks.add(at, key, value / scale);
            }
        };
        let memory = &fields["memory"];
        // In a container, the group's use and limit count.
        let (used, limit) = match memory["group_limit"].as_f64() {
            Some(limit) => (&memory["group_used"], Some(limit)),
            None => {
                let free = memory["available"].as_f64();
                (&memory["used"], free.zip(memory["used"].as_f64()).map(|(a, b)| a + b))
            }
        };
        add(("node", 0, "memory"), used, MIB);
        if let Some(limit) = limit {
            add(("node", 0, "limit"), &limit.into(), MIB);
        }
        let links = || items(&fields["network"]).iter().chain(items(&fields["hcas"]));
        for name in ["received", "sent"] {
            let sum: f64 = links().filter_map(|one| one[name].as_f64()).sum();
            add(("node", 0, name), &sum.into(), 1024.0);
        }
        for one in items(&fields["ranks"]) {
            let Some(rank) = number(&one["rank"]) else { continue };
            add(("rank", rank, "cpu"), &one["cpu_percent"], 1.0);
            add(("rank", rank, "memory"), &one["memory"], MIB);
        }
        for one in items(&fields["gpus"]) {
            let Some(gpu) = number(&one["gpu"]) else { continue };
            add(("gpu", gpu, "utilisation"), &one["utilization"], 1.0);
            add(("gpu", gpu, "memory"), &one["memory_used"], MIB);
            add(("gpu", gpu, "power"), &one["power"], 1.0);
            add(("gpu", gpu, "temperature"), &one["temperature"], 1.0);
            let (counter, watts) = (one["energy"].as_f64(), one["power"].as_f64());
            self.energy.add(gpu, at, counter, watts);
        }
        for one in items(&fields["abnormal"]) {
            self.abnormal(at, one);
        }
    }

    /// The first and the last step of an attempt so far.
    fn progressed(&mut self, at: Millis, progress: &Value) {
        let Some(attempt) = number(&progress["attempt"]) else { return };
        let all = &mut self.history.steps;
        let known = all.iter().position(|steps| steps.attempt == attempt);
        let place = known.unwrap_or_else(|| {
            all.push(Steps::of(attempt));
            all.len() - 1
        });
        let Some(steps) = all.get_mut(place) else { return };
        let total = progress["total"].as_f64();
        for name in ["first", "last"] {
            let told = &progress[name];
            let Some(age) = told["age_ms"].as_u64() else { continue };
            let at = at.saturating_sub(age);
            // Each event repeats the first step of the followed counter.
            if name == "last" || steps.first().is_none() || total > steps.total {
                steps.note(total, Report { at, done: told["done"].as_f64() });
            }
        }
        if let Some(age) = progress["since_ms"].as_u64() {
            steps.begin(at.saturating_sub(age));
        }
        steps.starts_over |= progress["starts_over"] == true;
    }

    fn abnormal(&mut self, at: Millis, one: &Value) {
        let kind = text(&one["kind"]);
        let of = |known: &&mut Finding| {
            known.kind == kind && known.until.is_some_and(|until| at.saturating_sub(until) <= SAME)
        };
        match self.history.findings.iter_mut().rev().find(of) {
            Some(known) => known.until = Some(at),
            None => self
                .find(Finding { until: Some(at), ..Finding::new(&kind, at, words(&one["text"])) }),
        }
    }

    fn slow(&mut self, at: Millis, fields: &Value) {
        let (rank, group) = (text(&fields["rank"]), text(&fields["group"]));
        let lost = fields["lost"].as_f64().unwrap_or_default() * 100.0;
        let said = text!(
            "rank {rank} holds the others of group {group} back: they lose {lost:.0} % of the time",
            "rank {rank} 拖慢了组 {group} 的其他 rank：损失 {lost:.0} % 的时间"
        );
        let reason = items(&fields["reasons"]).first();
        self.find(Finding {
            rank: number(&fields["rank"]),
            hint: reason.map(|one| words(&one["text"])).unwrap_or_default(),
            ..Finding::new("slow", at, Words::Both(said))
        });
    }

    fn rule(&mut self, at: Millis, rule: &Value) {
        let after = rule["after_s"].as_u64().unwrap_or_default();
        let since = at.saturating_sub(after.saturating_mul(1000));
        self.find(Finding {
            until: Some(at),
            rank: number(&rule["rank"]),
            is_grave: rule["on"] == "end",
            hint: words(&rule["hint"]),
            ..Finding::new("rule", since, words(&rule["text"]))
        });
    }

    fn xid(&mut self, at: Millis, fields: &Value) {
        let (gpu, number) = (text(&fields["gpu"]), text(&fields["number"]));
        let said = text!("Xid {number} of GPU {gpu}", "GPU {gpu} 的 Xid {number}");
        self.find(Finding { is_grave: true, ..Finding::new("xid", at, Words::Both(said)) });
    }

    fn find(&mut self, finding: impl Into<Option<Finding>>) {
        let is_room = self.history.findings.len() < MOST_FINDINGS;
        if let Some(finding) = finding.into().filter(|one| is_room || one.is_grave) {
            self.history.findings.push(finding);
        }
    }

    /// The last finding of this kind ends.
    fn over(&mut self, kind: &str, rank: Option<u32>, at: Millis) {
        let is_it = |one: &&mut Finding| {
            one.kind == kind && one.until.is_none() && (rank.is_none() || one.rank == rank)
        };
        if let Some(one) = self.history.findings.iter_mut().rev().find(is_it) {
            one.until = Some(at);
        }
    }
}
