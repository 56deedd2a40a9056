//! The goodput of generated runs: attempts that begin, go on from some step, stand still, and fail.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::history::{JobHistory, JournalReader};

/// One attempt; times are milliseconds.
#[derive(Debug, Clone)]
struct Trial {
    /// From the start of the ranks to the first report.
    start: u64,
    step: u64,
    /// Reports; none: the attempt never came so far.
    steps: usize,
    /// The seconds for which it stands still after so many reports.
    stands: Option<(usize, u64)>,
    /// From the last report to the failure.
    after: u64,
    /// From the failure to the next start of the ranks.
    pause: u64,
    /// Steps of earlier attempts that are done again.
    again: usize,
}

fn trial() -> impl Strategy<Value = Trial> {
    let times = (0..60_000_u64, 1..5000_u64, 0..60_000_u64, 0..60_000_u64);
    let stands = proptest::option::of((1..20_usize, 1..300_u64));
    (times, 0..20_usize, stands, 0..25_usize).prop_map(
        |((start, step, after, pause), steps, stands, again)| {
            // What follows the last report is not between two steps.
            let stands = stands.filter(|(at, _)| *at < steps);
            Trial { start, step, steps, stands, after, pause, again }
        },
    )
}

const TOTAL: f64 = 1000.0;

fn stamp(at: u64) -> String {
    let nanos = i128::from(at) * 1_000_000;
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(nanos).expect("a time");
    at.format(&time::format_description::well_known::Rfc3339).expect("a text")
}

/// The run as its launcher writes it, and the time of the steps that count.
fn run(trials: &[Trial]) -> (JobHistory, Option<u64>) {
    let mut journal = JournalReader::default();
    let mut write = |at: u64, fields: Value| {
        let line = json!({ "timestamp": stamp(at), "fields": fields });
        journal.line(line.to_string().as_bytes());
    };
    let mut at = 1_795_000_000_000_u64;
    let mut counts: Vec<u64> = Vec::new();
    for (number, trial) in trials.iter().enumerate() {
        let plan = json!({ "message": "planned", "run_id": "r", "attempt": number, "plan": {} });
        write(at, plan);
        write(at, json!({ "began": 0, "local": 0, "pid": 1 }));
        at += trial.start;
        let resumes = counts.len().saturating_sub(trial.again);
        if trial.steps > 0 {
            // The first report of an attempt ends its start-up: the step counts only if it was done before.
            counts.truncate(resumes + 1);
            counts.resize(resumes + 1, 0);
        }
        let mut first = None;
        for report in 0..trial.steps {
            if report > 0 {
                at += trial.step;
                counts.push(trial.step);
            }
            let done = (resumes + report + 1) as f64 / TOTAL;
            let (began, had) = *first.get_or_insert((at, done));
            let progress = json!({
                "attempt": number, "total": TOTAL,
                "first": { "age_ms": at - began, "done": had },
                "last": { "age_ms": 0, "done": done },
            });
            write(at, json!({ "message": "sampled", "progress": progress }));
            if let Some((_, seconds)) = trial.stands.filter(|(after, _)| *after == report + 1) {
                at += seconds * 1000;
                let hang = json!({ "at": stamp(at), "after_s": seconds, "culprits": [] });
                write(at, json!({ "message": "hang", "hang": hang }));
                write(at, json!({ "message": "the job goes on after a hang" }));
            }
        }
        at += trial.after;
        write(at, json!({ "stopping": true }));
        write(at, json!({ "ended": 0, "code": 1 }));
        let verdict = json!({ "class": "script", "id": "rank.exit", "text": "failed" });
        let record = json!({ "attempt": number, "ended": stamp(at), "verdict": verdict });
        write(at, json!({ "message": "ended", "record": record }));
        at += trial.pause;
    }
    let job = JobHistory::of(vec![journal.finish(None, 8)]).expect("a job");
    let known = trials.iter().any(|trial| trial.steps > 0);
    (job, known.then(|| counts.iter().sum()))
}

proptest! {
    #[test]
    fn only_steps_that_count_are_goodput(trials in prop::collection::vec(trial(), 1..6)) {
        let (job, counts) = run(&trials);
        let ledger = &job.ledger;
        prop_assert_eq!(ledger.goodput, counts);
        let live = ledger.computing + ledger.lost;
        prop_assert!(ledger.goodput.unwrap_or(0) <= live && live <= ledger.total, "{:?}", ledger);
    }

    /// A failure loses exactly the time since the last report; start-up, pauses and standstills never count.
    #[test]
    fn time_without_steps_is_never_goodput(
        trials in prop::collection::vec(trial(), 1..6), place in any::<prop::sample::Index>(),
        seconds in 1..1000_u64, which in 0..4_usize,
    ) {
        let (before, _) = run(&trials);
        let mut longer = trials.clone();
        let trial = &mut longer[place.index(trials.len())];
        match (which, &mut trial.stands) {
            (0, _) => trial.start += seconds * 1000,
            (1, _) => trial.after += seconds * 1000,
            (2, Some((_, stands))) => *stands += seconds,
            _ => trial.pause += seconds * 1000,
        }
        let (after, _) = run(&longer);
        prop_assert_eq!(before.ledger.goodput, after.ledger.goodput);
    }
}
