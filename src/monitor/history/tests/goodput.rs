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

/// The run as its launcher writes it, and the time of the steps that count. `epoch`: the number of steps after which
/// the counter starts over, so no step is known to be done again.
fn run(trials: &[Trial], epoch: Option<usize>) -> (JobHistory, Option<u64>) {
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
        if trial.steps > 0 && epoch.is_none() {
            // The first report of an attempt ends its start-up: the step counts only if it was done before.
            counts.truncate(resumes + 1);
            counts.resize(resumes + 1, 0);
        }
        let (mut first, mut before, mut starts_over) = (None, 0.0, false);
        for report in 0..trial.steps {
            if report > 0 {
                at += trial.step;
                counts.push(trial.step);
            }
            let total = epoch.map_or(TOTAL, |steps| steps as f64);
            let done = ((resumes + report) % epoch.unwrap_or(usize::MAX) + 1) as f64 / total;
            let (began, had) = *first.get_or_insert((at, done));
            starts_over |= done < before;
            before = done;
            let progress = json!({
                "attempt": number, "total": total, "starts_over": starts_over,
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
    let known = trials.iter().any(|trial| trial.steps > 1);
    (job, known.then(|| counts.iter().sum()))
}

proptest! {
    #[test]
    fn only_steps_that_count_are_goodput(trials in prop::collection::vec(trial(), 1..6)) {
        let (job, counts) = run(&trials, None);
        let ledger = &job.ledger;
        prop_assert_eq!(ledger.goodput, counts);
        let live = ledger.computing + ledger.lost;
        prop_assert!(ledger.goodput.unwrap_or(0) <= live && live <= ledger.total, "{:?}", ledger);
    }

    /// An attempt that ends within its first epoch learns by the others that the counter starts over.
    #[test]
    fn epoch_counters_lose_no_step(
        trials in prop::collection::vec(trial(), 0..6), place in any::<prop::sample::Index>(),
        long in trial(), epoch in 2..10_usize,
    ) {
        let mut trials = trials;
        trials.insert(place.index(trials.len() + 1), Trial { steps: epoch + 1, ..long });
        let (job, counts) = run(&trials, Some(epoch));
        prop_assert_eq!(job.ledger.goodput, counts);
    }

    /// A failure loses exactly the time since the last report; start-up, pauses and standstills never count.
    #[test]
    fn time_without_steps_is_never_goodput(
        trials in prop::collection::vec(trial(), 1..6), place in any::<prop::sample::Index>(),
        seconds in 1..1000_u64, which in 0..4_usize,
    ) {
        let (before, _) = run(&trials, None);
        let mut longer = trials.clone();
        let trial = &mut longer[place.index(trials.len())];
        match (which, &mut trial.stands) {
            (0, _) => trial.start += seconds * 1000,
            (1, _) => trial.after += seconds * 1000,
            (2, Some((_, stands))) => *stands += seconds,
            _ => trial.pause += seconds * 1000,
        }
        let (after, _) = run(&longer, None);
        prop_assert_eq!(before.ledger.goodput, after.ledger.goodput);
    }
}
