use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::board::Rates;
use super::phase::Phases;
use super::*;
use crate::history::JournalReader;
use crate::steps::{Life, goodput};
use crate::watch::{InterfaceSample, ProgressLines, RankSample, Sample, Slow, SlowNews};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank, RankId};
use text::text;
use verdict::outcome::{End, Notice, Owner, StopReason, Stream};

const SECOND: Duration = Duration::from_secs(1);

fn rank(global: u32, local: u32) -> RankId {
    RankId { global: GlobalRank(global), local: LocalRank(local) }
}

/// The second node of two, with two ranks and a GPU for each.
fn board() -> StatusBoard {
    let board = StatusBoard::new("worker-1".to_owned());
    let run = RunStatus {
        run_id: Some("job-1".to_owned()),
        node: 1,
        nodes: 2,
        world_size: 4,
        engine: "torchrun".to_owned(),
        program: "train.py".to_owned(),
        ..RunStatus::default()
    };
    let gpus = (0..2).map(|local| GpuStatus {
        gpu: 4 + local,
        local_rank: Some(LocalRank(local)),
        ..GpuStatus::default()
    });
    board.enter(Phase::Launching);
    board.attempt(run, &[rank(2, 0), rank(3, 1)], gpus.collect());
    board
}

fn started(global: u32, local: u32) -> Notice {
    Notice::RankStarted {
        rank: rank(global, local),
        pid: 100 + i32::try_from(global).expect("small"),
    }
}

fn states(board: &StatusBoard) -> Vec<(u32, RankState)> {
    board.snapshot().ranks.iter().map(|rank| (rank.rank.0, rank.state)).collect()
}

#[test]
fn rank_state_goes_from_planned_to_ended() {
    use RankState::{Done, Failed, Planned, Running};
    let board = board();
    assert_eq!(states(&board), [(2, Planned), (3, Planned)]);
    assert_eq!(board.notice(&started(2, 0)), None, "one is missing");
    assert_eq!(board.notice(&started(3, 1)), Some(Phase::Running));
    assert_eq!(states(&board), [(2, Running), (3, Running)]);
    let status = board.snapshot();
    assert_eq!((status.ranks[1].pid, status.ranks[1].gpu), (Some(103), Some(5)));
    assert_eq!(status.phase, Phase::Running);
    board.notice(&Notice::RankEnded { rank: rank(3, 1), end: Some(End::Signal(9)) });
    let stopping = Notice::Stopping { reason: StopReason::RankFailed(GlobalRank(3)) };
    assert_eq!(board.notice(&stopping), Some(Phase::Stopping));
    assert_eq!(board.notice(&stopping), None, "a phase begins once");
    board.notice(&Notice::RankEnded { rank: rank(2, 0), end: Some(End::Code(0)) });
    assert_eq!(states(&board), [(2, Done), (3, Failed)]);
    let failed = board.snapshot().ranks[1].clone();
    assert_eq!((failed.pid, failed.code, failed.signal), (None, None, Some(9)));
    // The engine starts it again.
    board.notice(&started(3, 1));
    let again = board.snapshot().ranks[1].clone();
    assert_eq!((again.state, again.restarts, again.signal), (Running, 1, None));
    assert_eq!(board.snapshot().count(Running), 1);
}

#[test]
fn renumbered_rank_takes_its_planned_place() {
    let board = board();
    board.notice(&started(0, 0));
    board.notice(&started(1, 1));
    assert_eq!(states(&board), [(0, RankState::Running), (1, RankState::Running)]);
}

#[test]
fn samples_and_findings_are_shown() {
    let board = board();
    board.notice(&started(2, 0));
    let row = RankSample {
        rank: GlobalRank(2),
        pid: 102,
        cpu_percent: 97.0,
        cpu_seconds: 3.5,
        memory: 7,
    };
    let network =
        InterfaceSample { interface: "eth0".to_owned(), received: 5.0, ..Default::default() };
    let sample = Sample { ranks: vec![row], network: vec![network], ..Sample::default() };
    board.sample(&sample);
    let news = |lost| {
        SlowNews::Slow(Slow {
            rank: GlobalRank(0),
            group: "g".to_owned(),
            of: 9,
            share: 1.0,
            median_ms: 3.0,
            lost,
            reasons: None,
        })
    };
    board.slow(0, &news(0.3));
    board.stands_still(Duration::ZERO, Some(text!("rank 1", "rank 1")));
    let status = board.snapshot();
    assert_eq!((status.ranks[0].cpu_percent, status.ranks[0].memory), (Some(97.0), Some(7)));
    assert_eq!(status.interfaces[0].received, 5.0);
    assert_eq!((status.slow[0].node, status.slow[0].lost), (0, 0.3));
    assert!(status.standstill.is_some());
    board.slow(0, &SlowNews::Over(GlobalRank(0)));
    board.goes_on();
    let end = EndStatus {
        code: 1,
        id: "rank.exit".to_owned(),
        cause: None,
        rank: Some(3),
        node: Some(1),
        text: Text::same("rank 3"),
    };
    board.judged(end.clone());
    // The last attempt's verdict is announced once more.
    board.judged(end);
    let status = board.snapshot();
    assert!(status.slow.is_empty() && status.standstill.is_none());
    let found: Vec<_> = status.findings.iter().map(|(id, count)| (id.as_str(), *count)).collect();
    assert_eq!(found, [("hang", 1), ("rank.exit", 1), ("slow", 1)]);
}

#[test]
fn logs_are_read_only_on_request() {
    let board = board();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let line = |owner, bytes| OwnerLog {
        owner,
        bytes,
        lines: 2,
        dropped_bytes: 1,
        dropped_lines: 0,
        last_line: Some("step 7".to_owned()),
        last_at: Some(Instant::now()),
    };
    board.logs_from(Box::new(move || match count.fetch_add(1, Ordering::Relaxed) {
        0 => vec![line(Owner::Rank(GlobalRank(3)), 30), line(Owner::Engine, 12)],
        _ => Vec::new(),
    }));
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    for time in ["while the attempt runs", "after its logs are closed"] {
        let status = board.snapshot();
        assert_eq!((status.logs.bytes, status.logs.dropped_bytes), (42, 2), "{time}");
        assert_eq!(status.ranks[1].last_line.as_deref(), Some("step 7"), "{time}");
        assert!(status.ranks[1].last_line_age_ms < Some(60_000), "{time}");
        assert_eq!(status.ranks[0].last_line, None, "{time}");
    }
}

#[test]
fn log_rate_is_independent_of_request_frequency() {
    let (mut often, mut seldom) = (Rates::default(), Rates::default());
    let begin = Instant::now();
    let at = |tenths: u32| begin + SECOND * tenths / 10;
    let bytes = |tenths: u32| u64::from(tenths) * 100;
    let note = |rates: &mut Rates, tenths| rates.note(Owner::Engine, bytes(tenths), at(tenths));
    assert_eq!(note(&mut seldom, 0), 0.0);
    assert_eq!(note(&mut seldom, 100).round(), 1000.0);
    let all: Vec<f64> = (0..=100).map(|tenths| note(&mut often, tenths)).collect();
    assert!(all[20..].iter().all(|rate| rate.round() == 1000.0), "{all:?}");
}

#[test]
fn ledger_accounts_time_by_phase() {
    let begin = Instant::now();
    let at = |seconds: u32| begin + SECOND * seconds;
    let mut phases = Phases::new(begin);
    for (phase, attempt, seconds) in [
        (Phase::Agreeing, 0, 1),
        (Phase::Launching, 0, 11),
        (Phase::Running, 0, 13),
        (Phase::Judging, 0, 113),
        (Phase::Pausing, 0, 114),
        (Phase::Launching, 1, 119),
        (Phase::Running, 1, 120),
    ] {
        assert!(phases.enter(phase, attempt, at(seconds)), "{phase:?}");
        assert!(!phases.enter(phase, attempt, at(seconds)), "{phase:?} has begun");
    }
    assert_eq!(phases.ledger(at(158)).running_ms, 138_000);
    phases.stands_still(at(150), at(158));
    let stands = phases.ledger(at(160));
    assert_eq!((stands.running_ms, stands.stalled_ms), (130_000, 10_000));
    assert_eq!(stands.most_running_ms, 138_000, "as a counter it does not fall");
    phases.goes_on(at(170));
    assert_eq!(phases.ledger(at(171)).most_running_ms, 138_000);
    let ledger = phases.ledger(at(220));
    let expected = Ledger {
        running_ms: 180_000,
        stalled_ms: 20_000,
        waiting_ms: 10_000,
        starting_ms: 4_000,
        stopping_ms: 1_000,
        pausing_ms: 5_000,
        failed_attempts_ms: 100_000,
        goodput_ms: None,
        most_running_ms: 180_000,
    };
    assert_eq!(ledger, expected);
    assert_eq!(ledger.goodput(), None, "no step is known");
    let share = |goodput_ms| Ledger { goodput_ms: Some(goodput_ms), ..ledger }.goodput();
    assert_eq!(share(110_000), Some(0.5));
    assert!(share(1_000_000) < Some(0.82), "no more than all ranks lived");
    // A hang that is judged while the job is already being stopped.
    phases.enter(Phase::Stopping, 1, at(220));
    phases.stands_still(at(210), at(221));
    let stopped = phases.ledger(at(225));
    assert_eq!((stopped.running_ms, stopped.stalled_ms), (180_000, 20_000));
    assert_eq!(stopped.stopping_ms, 6_000);
    phases.enter(Phase::Ended, 1, at(230));
    assert!(!phases.enter(Phase::Launching, 2, at(231)), "nothing follows");
}

/// The goodput, in seconds, of attempts whose lines come one second apart: of the board, and of its journal.
fn goodput_of(attempts: &[Vec<String>]) -> [Option<u64>; 2] {
    let board = board();
    let mut at = Instant::now().checked_sub(SECOND * 10_000).expect("a moment");
    let mut journal = JournalReader::default();
    for (attempt, lines) in (0..).zip(attempts) {
        board.set_attempt(attempt);
        let mut read = ProgressLines::new(None);
        board.steps_from(read.reports());
        at += SECOND * 100;
        for line in lines {
            at += SECOND;
            read.feed(Stream::Out, at, false, line.as_bytes());
            let stamp = time::OffsetDateTime::from(std::time::SystemTime::now());
            let stamp = stamp.format(&time::format_description::well_known::Rfc3339);
            let fields = serde_json::json!({
                "message": "progress", "progress": board.steps_event().expect("a step"),
            });
            let line = serde_json::json!({ "timestamp": stamp.expect("a time"), "fields": fields });
            journal.line(line.to_string().as_bytes());
        }
    }
    let history = journal.finish(None, 8);
    let life = |steps| Life { from: 0, to: u64::MAX, steps };
    let told = goodput(&history.steps.iter().map(life).collect::<Vec<_>>(), &[]);
    [board.snapshot().ledger.goodput_ms, told].map(|ms| Some((ms? + 500) / 1000))
}

#[test]
fn goodput_survives_epochs_and_shorter_counters() {
    let epoch = || (1..=10).map(|step| format!("step {step}/10\n"));
    let epochs = |number| std::iter::repeat_with(epoch).take(number).flatten().collect::<Vec<_>>();
    assert_eq!(goodput_of(&[epochs(3), epochs(1)]), [Some(29 + 9); 2], "nothing was done again");
    assert_eq!(goodput_of(&[epochs(1), epochs(2)]), [Some(9 + 19); 2], "nothing was done again");
    let job = |from: u32, to: u32| {
        let short = ["step 1/2\n".to_owned(), "step 2/2\n".to_owned()];
        short.into_iter().chain((from..=to).map(|step| format!("step {step}/100\n"))).collect()
    };
    assert_eq!(goodput_of(&[job(1, 20)]), [Some(21); 2]);
    assert_eq!(goodput_of(&[job(1, 20), job(21, 30)]), [Some(21 + 11); 2]);
    assert_eq!(goodput_of(&[job(1, 20), job(11, 30)]), [Some(12 + 21); 2], "10 steps again");
    assert_eq!(goodput_of(&[vec!["step 1/100\n".to_owned()]]), [None; 2], "one report has no time");
}

#[test]
fn first_look_wakes_the_sampler_once() {
    let board = board();
    let woken = Arc::new(Mutex::new(0));
    let count = Arc::clone(&woken);
    board.wakes(move || *count.lock().expect("no panic") += 1);
    assert!(!board.is_watched());
    board.look();
    board.look();
    assert!(board.is_watched());
    assert_eq!(*woken.lock().expect("no panic"), 1);
}

#[test]
fn remote_status_is_sanitized_and_truncated() {
    let board = board();
    let mut status = board.snapshot();
    assert_eq!(NodeStatus::read(&serde_json::to_vec(&status).expect("JSON")), Some(status.clone()));
    status.host = "\u{1b}]0;x\u{7}".to_owned();
    status.ranks[0].last_line = Some("é".repeat(4000));
    status.findings.insert("a\nb".to_owned(), 1);
    status.standstill = Some(StandstillStatus { since_ms: 1, text: Some(Text::same("a\rb")) });
    let read = NodeStatus::read(&serde_json::to_vec(&status).expect("JSON")).expect("a status");
    assert_eq!(read.host, " ]0;x ");
    assert_eq!(read.ranks[0].last_line.as_ref().map(String::len), Some(1024));
    assert_eq!(read.findings.keys().collect::<Vec<_>>(), ["a b"]);
    assert_eq!(read.standstill.and_then(|one| one.text).map(|text| text.zh), Some("a b".into()));
    // The status of another version.
    let other = br#"{"phase":"running","ranks":[{"rank":3,"new":1}],"newer":true}"#;
    assert_eq!(NodeStatus::read(other).map(|status| status.phase), Some(Phase::Running));
    for bytes in [&b""[..], b"[]", b"null", br#"{"ranks":{}}"#, b"\xff"] {
        assert!(NodeStatus::read(bytes).is_none() || bytes == b"[]");
    }
}
