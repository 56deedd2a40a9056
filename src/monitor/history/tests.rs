//! Journals and records of runs, whole and truncated, and the histories read from them.

use serde_json::{Value, json};

use super::*;
use text::lang::Lang;
use verdict::Id;

mod goodput;

/// The history that another node sends is read as it comes. A panic would end the launcher, which has a verdict to
/// tell.
#[test]
fn remote_history_with_extreme_values_is_accepted() {
    let sent = json!({
        "node": 0, "began": 9_000, "ended": 5, "plan": { "gpus": u32::MAX },
        "phases": [
            { "name": "muster", "from": 0, "to": u64::MAX },
            { "name": "wait", "from": 0, "to": u64::MAX },
        ],
        "attempts": [{ "number": 0, "began": 1, "ended": u64::MAX }],
        "ranks": [{ "rank": 0, "attempt": 0, "began": 1, "ended": u64::MAX }],
        "findings": [
            { "kind": "hang", "at": 0, "until": u64::MAX },
            { "kind": "hang", "at": 0, "until": u64::MAX },
        ],
    });
    let node: NodeHistory = serde_json::from_value(sent).expect("a history");
    let job = JobHistory::of(vec![node.clone(), NodeHistory { node: 1, ended: u64::MAX, ..node }]);
    let ledger = job.expect("a job").ledger;
    assert_eq!((ledger.total, ledger.gpus), (0, u32::MAX));
}

#[test]
fn numbers_at_their_limit_are_read() {
    let mut reader = JournalReader::default();
    let verdict = json!({ "class": "launcher", "id": "x", "text": "x" });
    for fields in [
        json!({ "message": "planned", "run_id": "r", "attempt": u32::MAX, "plan": {} }),
        json!({ "message": "refused", "exit_code": 65, "verdict": verdict }),
    ] {
        reader.line(line("18:00:01.000", fields).as_bytes());
    }
    let lost = json!({ "dropped_file_bytes": u64::MAX, "truncated_bytes": 7 });
    let record = json!({ "attempt": u32::MAX, "logs": { "owners": { "rank 0": lost } } });
    let history = reader.finish(Some(&record), 9);
    assert_eq!(history.ranks[0].dropped, u64::MAX);
    assert_eq!(history.attempts.last().expect("an attempt").number, u32::MAX);
}

fn line(at: &str, fields: Value) -> String {
    json!({ "timestamp": format!("2026-11-23T{at}Z"), "level": "INFO", "fields": fields })
        .to_string()
}

/// Observes for 1 s, waits 9 s for the other node, and ranks 0 and 1 run from 18:00:12 on.
fn start(attempt: u32) -> Vec<String> {
    let close = |at: &str, name: &str, busy: &str| {
        json!({
            "timestamp": format!("2026-11-23T{at}Z"),
            "fields": { "message": "close", "time.busy": busy, "time.idle": "0ns" },
            "span": { "name": name },
            "spans": [],
        })
        .to_string()
    };
    let text = json!({ "en": "64 MiB of shm", "zh": "shm 为 64 MiB" });
    vec![
        close("18:00:01.000", "observe", "1s"),
        line(
            "18:00:01.100",
            json!({
                "message": "checked",
                "host": "alpha",
                "versions": { "torch": "2.9.0", "driver": "570.1" },
                "environment": { "NCCL_DEBUG": "INFO" },
                "checks": [{ "id": "shm.size", "severity": "warn", "text": text, "hint": "" }],
            }),
        ),
        close("18:00:10.000", "muster", "9s"),
        line(
            "18:00:10.100",
            json!({
                "message": "planned", "run_id": "run-1", "attempt": attempt, "node": 0,
                "members": 2, "lang": "zh",
                "plan": {
                    "engine": "torchrun", "world_size": 4, "argv": ["python", "train.py"],
                    "gpus": [{ "index": 0, "selected": true }, { "index": 1, "selected": true }],
                    "decisions": [{
                        "what": "nproc_per_node", "value": "2", "source": "solved",
                        "because": { "en": "2 GPUs", "zh": "2 个 GPU" },
                    }],
                    "env": { "NCCL_SOCKET_IFNAME": "=eth0" },
                },
            }),
        ),
        line("18:00:11.000", json!({ "began": 0, "local": 0, "pid": 70 })),
        line("18:00:12.000", json!({ "began": 1, "local": 1, "pid": 71 })),
    ]
}

/// Rank 1 fails after 60 s, the last 20 of them at a standstill; the end takes 8 s.
fn end() -> Vec<String> {
    let gpu = |watts: f64| json!([{ "gpu": 0, "utilization": 80, "power": watts }]);
    let hang = json!({
        "at": "2026-11-23T18:01:02Z", "after_s": 10, "confidence": "likely",
        "culprits": [{ "rank": 1, "text": "rank 1 never entered", "hint": "look at it" }],
    });
    vec![
        line(
            "18:00:14.000",
            json!({ "message": "sampled", "gpus": gpu(100.0),
            "memory": { "used": 1_048_576, "available": 1_048_576 }, "network": [],
            "ranks": [{ "rank": 0, "cpu_percent": 50.0, "memory": 2_097_152 }] }),
        ),
        line(
            "18:00:50.000",
            json!({ "message": "sampled", "gpus": gpu(300.0),
            "memory": { "used": 2_097_152, "available": 0 },
            "network": [{ "interface": "eth0", "received": 2048.0, "sent": 1024.0 }],
            "ranks": [{ "rank": 0, "cpu_percent": 150.0, "memory": 4_194_304 }] }),
        ),
        line("18:01:02.000", json!({ "message": "hang", "hang": hang })),
        line("18:01:12.000", json!({ "stopping": true })),
        line("18:01:12.100", json!({ "ended": 1, "code": 1, "signal": null })),
        line("18:01:13.000", json!({ "ended": 0, "signal": 15 })),
        line("18:01:20.000", json!({ "message": "ended", "record": record() })),
    ]
}

fn record() -> Value {
    json!({
        "run_id": "run-1", "attempt": 0, "started": "2026-11-23T18:00:10Z",
        "ended": "2026-11-23T18:01:20Z", "exit_code": 1,
        "verdict": { "class": "script", "id": "rank.exit", "node": 0, "rank": 1,
            "text": { "en": "rank 1 exited", "zh": "rank 1 退出" }, "hint": "" },
        "cause": { "id": "cuda_oom", "rank": 1, "node": 0, "confidence": "certain",
            "text": "no memory", "remedy": "use less", "log": "rank-00001.err", "line": 4,
            "evidence": "OutOfMemoryError", "frame": "train.py:7",
            "victims": [{ "ranks": [0, 2], "id": "peer", "text": "closed" }] },
        "outcome": { "ranks": [{ "rank": 1, "local_rank": 1, "pid": 71, "end": { "code": 1 },
            "at": "2026-11-23T18:01:12.1Z" }] },
        "last_lines": ["one", "two"],
    })
}

fn read(lines: &[String], record: Option<&Value>) -> NodeHistory {
    let mut journal = JournalReader::default();
    for line in lines {
        journal.line(line.as_bytes());
    }
    journal.finish(record, 100)
}

fn whole() -> NodeHistory {
    read(&[start(0), end()].concat(), None)
}

#[test]
fn journal_yields_the_whole_run() {
    let run = whole();
    assert_eq!((run.run_id.as_str(), run.node, run.members, run.lang), ("run-1", 0, 2, Lang::Zh));
    assert_eq!((run.host.as_str(), run.exit_code, run.cut_off), ("alpha", Some(1), false));
    assert_eq!(run.versions["torch"], "2.9.0");
    assert_eq!(run.checks[0].text.get(Lang::Zh), "shm 为 64 MiB");
    assert_eq!(run.plan.decisions[0].because.get(Lang::En), "2 GPUs");
    assert_eq!(run.plan.gpus, 2);
    let phases: Vec<_> =
        run.phases.iter().map(|one| (one.name.as_str(), one.to - one.from)).collect();
    assert_eq!(phases, [("observe", 1000), ("muster", 9000)]);
    let attempt = run.last_attempt().expect("one");
    let cause = attempt.cause.as_ref().expect("a cause");
    assert_eq!((cause.id.as_str(), cause.line), ("cuda_oom", 4));
    assert_eq!(cause.others[0].get(Lang::En), "ranks 0, 2 failed as a consequence: closed");
    assert_eq!(attempt.last_lines, ["one", "two"]);
    let ranks: Vec<_> =
        run.ranks.iter().map(|one| (one.rank, one.pid, one.code, one.signal)).collect();
    assert_eq!(ranks, [(0, Some(70), None, Some(15)), (1, Some(71), Some(1), None)]);
    let hang = run.findings.iter().find(|one| one.kind == "hang").expect("it stood still");
    assert_eq!(hang.until.map(|until| until - hang.at), Some(20_000), "until the stop");
    let track = |of: &str, what: &str| {
        let found = run.samples.tracks.iter().find(|one| one.of == of && one.what == what);
        found.map(|one| (one.mean, one.most)).expect("a track")
    };
    assert_eq!(track("rank", "cpu"), (100, 150));
    assert_eq!(track("rank", "memory"), (3, 4));
    assert_eq!(track("node", "limit"), (2, 2));
    assert_eq!(track("node", "received"), (1, 2));
    assert_eq!((run.energy_joules, run.energy_estimated_joules), (Some(7200.0), 7200.0));
}

#[test]
fn hang_culprits_are_read_in_both_text_formats() {
    let said = |words: Value| {
        let culprits = json!([{ "text": words.clone() }, { "text": words }]);
        let one = json!({ "at": "2026-11-23T18:01:02Z", "after_s": 9, "culprits": culprits });
        let line = line("18:01:02.000", json!({ "message": "hang", "hang": one }));
        let run = read(&[start(0), vec![line]].concat(), None);
        let hang = run.findings.into_iter().find(|one| one.kind == "hang").expect("a hang").text;
        [hang.get(Lang::En).to_owned(), hang.get(Lang::Zh).to_owned()]
    };
    let both = said(json!({ "en": "rank 1 stands still", "zh": "rank 1 没有进展" }));
    assert_eq!(both[0], "no progress for 9 s: rank 1 stands still; rank 1 stands still");
    assert_eq!(both[1], "9 秒没有进展：rank 1 没有进展；rank 1 没有进展");
    let old = said(json!("rank 1 没有进展"));
    assert_eq!(old[0], "no progress for 9 s: rank 1 没有进展; rank 1 没有进展");
}

#[test]
fn held_up_job_is_recorded_as_slow() {
    let held = |at: &str, after: u64| {
        let culprits = json!([{ "rank": 2, "kind": "slow", "text": "rank 2 computes" }]);
        let one =
            json!({ "at": format!("2026-11-23T{at}Z"), "after_s": after, "culprits": culprits });
        line(&format!("{at}.000"), json!({ "message": "held_up", "held_up": one }))
    };
    let over = line("18:01:30.000", json!({ "message": "held_up_over", "node": 0, "rank": 2 }));
    let run =
        read(&[start(0), vec![held("18:01:00", 5), held("18:01:05", 10), over]].concat(), None);
    let found: Vec<_> = run.findings.iter().filter(|one| one.kind == "slow").collect();
    let [first, again] = found[..] else { panic!("{found:?}") };
    assert!(!first.is_grave && first.rank == Some(2), "{first:?}");
    assert_eq!(again.text.get(Lang::En), "others have waited 10 s: rank 2 computes");
    assert_eq!(again.until.map(|until| until - again.at), Some(35_000));
    assert!(run.findings.iter().all(|one| one.kind != "hang"));
}

#[test]
fn ledger_accounts_for_all_run_time() {
    let job = JobHistory::of(vec![whole()]).expect("one");
    let ledger = &job.ledger;
    assert_eq!(ledger.total, 80_000);
    assert_eq!((ledger.preparing, ledger.waiting), (3000, 9000));
    assert_eq!((ledger.computing, ledger.standing, ledger.lost), (40_000, 20_000, 0));
    assert_eq!((ledger.restarting, ledger.ending), (0, 8000));
    let hours = |seconds: f64| 2.0 * seconds / 3600.0;
    assert_eq!((ledger.gpu_hours, ledger.gpu_hours_computing), (hours(80.0), hours(40.0)));
    assert_eq!((ledger.energy_wh, ledger.energy_estimated_wh), (Some(2.0), 2.0));
    assert_eq!(job.missing(), 1);
}

#[test]
fn longer_history_of_a_launcher_wins() {
    let half = read(&start(0), None);
    let other = NodeHistory { node: 1, ..half.clone() };
    for nodes in [vec![half.clone(), whole(), other.clone()], vec![other, whole(), half]] {
        let job = JobHistory::of(nodes).expect("a job");
        let numbers: Vec<u32> = job.nodes().iter().map(|one| one.node).collect();
        assert_eq!((numbers.as_slice(), job.missing()), (&[0, 1][..], 0));
        assert_eq!((job.lead().exit_code, job.ledger.ending), (Some(1), 8000));
    }
    let task = |number| NodeHistory { task: Some(number), ..whole() };
    let job = JobHistory::of(vec![task(1), task(0)]).expect("a job");
    let tasks: Vec<Option<u32>> = job.nodes().iter().map(|one| one.task).collect();
    assert_eq!(tasks, [Some(0), Some(1)], "a node may have several launchers");
}

#[test]
fn job_end_comes_from_the_node_at_fault() {
    let of = |node: u32, cause: Option<u32>, number: u32| {
        let mut history = NodeHistory { node, ..whole() };
        let attempt = history.last_attempt_mut().expect("an attempt");
        attempt.number = number;
        match cause {
            Some(on) => attempt.cause.as_mut().expect("a cause").node = Some(on),
            None => {
                attempt.cause = None;
                let verdict = attempt.verdict.as_mut().expect("a verdict");
                (verdict.id, verdict.node) = (Id::NodeOther.as_str().to_owned(), None);
            }
        }
        history
    };
    for (nodes, expected) in [
        // A node that was stopped because of another one knows less.
        ([of(0, None, 0), of(1, Some(1), 0)], 1),
        // Node 0 tells the others the cause.
        ([of(0, Some(1), 0), of(1, Some(1), 0)], 1),
        ([of(0, Some(0), 0), of(1, Some(0), 0)], 0),
        // The cause of an earlier attempt is not that of the end.
        ([of(0, Some(0), 0), of(1, None, 1)], 1),
    ] {
        let job = JobHistory::of(nodes.into()).expect("a job");
        assert_eq!(job.end().map(|(node, _)| node.node), Some(expected));
    }
}

#[test]
fn failed_attempt_computing_time_counts_as_lost() {
    let first = read(&[start(0), end()].concat(), None);
    let again: Vec<String> = [
        (
            "18:01:25.000",
            json!({ "message": "planned", "run_id": "run-1", "attempt": 1, "members": 2 }),
        ),
        ("18:01:30.000", json!({ "began": 0, "local": 0, "pid": 80 })),
        ("18:01:30.000", json!({ "began": 1, "local": 1, "pid": 81 })),
        ("18:02:00.000", json!({ "ended": 0, "code": 0 })),
        ("18:02:00.000", json!({ "ended": 1, "code": 0 })),
        (
            "18:02:01.000",
            json!({ "message": "ended", "record": {
            "attempt": 1, "ended": "2026-11-23T18:02:01Z", "exit_code": 0,
            "verdict": { "class": "done", "id": "done", "text": "done" } } }),
        ),
    ]
    .into_iter()
    .map(|(at, fields)| line(at, fields))
    .collect();
    let both = read(&[start(0), end(), again].concat(), None);
    assert_eq!(both.attempts.len(), first.attempts.len() + 1);
    let job = JobHistory::of(vec![both]).expect("one");
    let ledger = &job.ledger;
    assert_eq!((ledger.lost, ledger.standing), (40_000, 20_000));
    assert_eq!((ledger.restarting, ledger.computing, ledger.ending), (18_000, 30_000, 1000));
    let parts = ledger.preparing
        + ledger.waiting
        + ledger.computing
        + ledger.lost
        + ledger.standing
        + ledger.restarting
        + ledger.ending;
    assert_eq!(parts, ledger.total);
    let (_, end) = job.end().expect("an end");
    assert_eq!(end.number, 1);
}

#[test]
fn truncated_journal_yields_the_run_so_far() {
    let mut lines = [start(0), end()].concat();
    lines.truncate(8);
    let half = lines.pop().expect("a line");
    lines.push(half[..half.len() / 2].to_owned());
    let run = read(&lines, None);
    assert!(run.cut_off);
    assert_eq!(run.exit_code, None);
    assert!(run.ranks.iter().all(|rank| rank.ended.is_none()));
    assert_eq!(run.notes.len(), 1, "the half line is noted: {:?}", run.notes);
    let job = JobHistory::of(vec![run]).expect("one");
    assert_eq!((job.ledger.computing, job.ledger.ending), (2000, 0), "until the last line");
    assert!(job.end().is_none());
}

#[test]
fn run_without_journal_is_read_from_its_record() {
    let mut record = record();
    record["plan"] = json!({ "engine": "torchrun", "membership": { "nnodes": 2, "node_rank": 1 } });
    record["logs"] = json!({ "owners": { "rank 1": { "lines": 9, "bytes": 99 }, "engine": {} } });
    let run = read(&[], Some(&record));
    assert_eq!((run.node, run.members, run.cut_off), (1, 2, false));
    assert_eq!((run.began, run.ended - run.began), (1_795_456_810_000, 70_000));
    assert_eq!(run.ranks[0].lines, Some(9));
    assert_eq!(run.last_attempt().and_then(|one| one.exit_code), Some(1));
}

#[test]
fn malformed_journal_lines_never_panic() {
    for bad in [
        "",
        "{",
        "null",
        "[]",
        "\u{0}",
        r#"{"timestamp":1}"#,
        r#"{"timestamp":"2026-99-99T99:99:99Z"}"#,
        r#"{"timestamp":"9999999-01-01T00:00:00Z"}"#,
        r#"{"timestamp":"2026-11-23T18:00:00.Z"}"#,
        r#"{"timestamp":"2026-11-23T18:00:00.µZ","fields":{}}"#,
    ] {
        let run = read(&[bad.to_owned()], Some(&json!([bad])));
        assert!(run.cut_off || run.attempts.is_empty() || run.exit_code.is_none(), "{bad}");
    }
    // Any value in the place of another one.
    let odd = [json!(null), json!(-1), json!("x"), json!([[]]), json!({ "en": 1 }), json!(1e300)];
    for (at, value) in
        start(0).iter().chain(&end()).flat_map(|line| odd.iter().map(move |odd| (line, odd)))
    {
        let mut document: Value = serde_json::from_str(at).expect("JSON");
        let names: Vec<String> = document["fields"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        for name in names.iter().filter(|name| *name != "message") {
            document["fields"][name] = value.clone();
        }
        let lines = [start(0), vec![document.to_string()], end()].concat();
        let _ = JobHistory::of(vec![read(&lines, Some(value))]);
    }
}

#[test]
fn sample_tracks_stay_bounded_over_long_runs() {
    let mut lines = start(0);
    for step in 0..20_000_u64 {
        let at = 1_764_000_000 + step * 60;
        let stamp = time::OffsetDateTime::from_unix_timestamp(i64::try_from(at).expect("small"));
        let stamp = stamp.expect("a time").format(&time::format_description::well_known::Rfc3339);
        lines.push(
            json!({ "timestamp": stamp.expect("text"), "fields": { "message": "sampled",
                "ranks": [{ "rank": 0, "cpu_percent": step % 101, "memory": 1_048_576 }] } })
            .to_string(),
        );
    }
    let run = read(&lines, None);
    let longest = run.samples.tracks.iter().map(|track| track.values.len()).max();
    assert!(longest.is_some_and(|longest| (50..=100).contains(&longest)), "{longest:?}");
    let cpu = run.samples.tracks.iter().find(|track| track.what == "cpu").expect("a track");
    assert!((45..=55).contains(&cpu.mean), "{}", cpu.mean);
    let mut thin = run.samples.clone();
    thin.thin(8);
    assert!(thin.tracks.iter().all(|track| track.values.len() <= 8));
    thin.thin(0);
    assert!(thin.tracks.iter().all(|track| track.values.is_empty()));
    assert!(thin.tracks.iter().any(|track| track.most == 100), "the numbers stay");
}

#[test]
fn comparison_lists_only_differences() {
    let first = JobHistory::of(vec![whole()]).expect("one");
    assert_eq!(differences(&first, &first, Lang::En), []);
    let mut lines = [start(0), end()].concat();
    for (from, to) in [
        ("2.9.0", "2.10.0"),
        ("\"value\":\"2\"", "\"value\":\"4\""),
        ("=eth0", "=ib0"),
        ("\"NCCL_DEBUG\":\"INFO\"", "\"NCCL_IB_DISABLE\":\"1\""),
        ("cuda_oom", "nccl_timeout"),
        ("18:01:12", "18:02:12"),
        ("18:01:13", "18:02:13"),
        ("18:01:20", "18:02:20"),
        ("\"utilization\":80", "\"utilization\":40"),
    ] {
        assert!(lines.iter().any(|line| line.contains(from)), "{from}");
        lines.iter_mut().for_each(|line| *line = line.replace(from, to));
    }
    let second = JobHistory::of(vec![read(&lines, None)]).expect("one");
    let found = differences(&first, &second, Lang::En);
    let found: Vec<_> = found
        .iter()
        .map(|one| (one.part, one.what.as_str(), one.first.as_deref(), one.second.as_deref()))
        .collect();
    assert_eq!(
        found,
        [
            (Part::Outcome, "cause", Some("cuda_oom"), Some("nccl_timeout")),
            (Part::Versions, "torch", Some("2.9.0"), Some("2.10.0")),
            (Part::Plan, "nproc_per_node", Some("2"), Some("4")),
            (Part::Settings, "NCCL_DEBUG", Some("INFO"), None),
            (Part::Settings, "NCCL_IB_DISABLE", None, Some("1")),
            (Part::Settings, "NCCL_SOCKET_IFNAME", Some("=eth0"), Some("=ib0")),
            (Part::Timings, "standing", Some("20000"), Some("80000")),
            (Part::Timings, "total", Some("80000"), Some("140000")),
            (Part::Use, "gpu_utilisation (%)", Some("80"), Some("40")),
        ]
    );
}
