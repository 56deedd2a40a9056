//! Random faults against random jobs, and the invariants of every end: no process is left, the
//! exit code fits the fault, no byte of a rank is lost uncounted, and the verdict names the
//! fault.
//!
//! `make hunt` runs for HUNT_SECONDS (600) with all engines, on up to four nodes; HUNT_SEED
//! repeats a run, HUNT_ROUND one of its rounds. A short form with the engine `direct` is an
//! ordinary test. DeepSpeed is a fake. No duration is judged, so a busy machine gives no false
//! findings.

mod deaths;
mod immortal;
mod invariants;
mod proxy;
mod round;
mod soak;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use harness::Role;
use harness::chance::Chance;
use invariants::Expected;
use round::{Node, Round};
use serde_json::json;
use spec::{Fault, Kind, Spec};

/// Number of failed rounds after which the hunt ends; each is reported with its seed and number.
const ENOUGH: usize = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs jobs with one fault each until the time is over.
fn hunt(seconds: u64, all: bool) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("1970");
    let seed = number("HUNT_SEED").unwrap_or(u64::from(now.subsec_nanos()) << 16);
    println!("hunt: HUNT_SEED={seed}, {seconds} s");
    let only = number("HUNT_ROUND");
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut found = Vec::new();
    for number in only.unwrap_or(0)..only.map_or(u64::MAX, |only| only + 1) {
        if Instant::now() >= end || found.len() >= ENOUGH {
            break;
        }
        let spec = Spec::draw(&mut Chance::new(seed, number), all);
        let name = format!("{} on {} nodes, {}", spec.fault.name(), spec.nodes, spec.engine);
        if only.is_some() {
            println!("round {number}: {spec:#?}");
        }
        // A round that does not end panics, and its processes are killed.
        let (complaints, what) = match catch_unwind(AssertUnwindSafe(|| Round::run(&spec))) {
            Ok(round) => (round.complaints(), round.what()),
            Err(_) => (vec!["no end: see the panic above".to_owned()], ""),
        };
        *seen.entry(format!("{name}{what}")).or_default() += 1;
        if !complaints.is_empty() {
            let all = complaints.join("\n  ");
            let text = format!("HUNT_SEED={seed} HUNT_ROUND={number} {spec:?}\n  {all}");
            println!("FOUND {text}");
            found.push(text);
        }
    }
    let rounds: u32 = seen.values().sum();
    println!("{rounds} rounds: {seen:#?}");
    assert!(found.is_empty(), "{} of {rounds} rounds:\n{}", found.len(), found.join("\n\n"));
    // Without this check, a hunt without any fault would pass.
    if only.is_none() {
        assert!(rounds >= 5, "only {rounds} rounds in {seconds} s");
    }
}

#[test]
fn a_short_hunt_on_one_machine() {
    hunt(number("HUNT_SHORT_SECONDS").unwrap_or(20), false);
}

/// `make hunt`
#[test]
#[ignore = "ten minutes: make hunt"]
fn a_long_hunt() {
    hunt(number("HUNT_SECONDS").unwrap_or(600), true);
}

#[test]
fn all_combinations_of_fault_engine_nodes_are_drawn() {
    let mut seen = BTreeSet::new();
    for round in 0..20_000 {
        let spec = Spec::draw(&mut Chance::new(7, round), true);
        seen.insert((spec.fault.kind(), spec.engine, spec.nodes));
    }
    let kinds = [
        Kind::None,
        Kind::Kill,
        Kind::Stop,
        Kind::Term,
        Kind::DiskFull,
        Kind::MuteConsole,
        Kind::FolderDeleted,
        Kind::ClockStep,
        Kind::Cut,
        Kind::Freeze,
        Kind::Reset,
    ];
    for kind in kinds {
        for engine in ["direct", "command", "deepspeed", "torchrun", "accelerate"] {
            let most = if matches!(engine, "torchrun" | "accelerate") { 2 } else { 4 };
            let least = if kind.needs_nodes() { 2 } else { 1 };
            for nodes in least..=most {
                assert!(seen.contains(&(kind, engine, nodes)), "{kind:?} {engine} {nodes}");
            }
        }
    }
}

/// Judges reports of a node: each line correct, and then wrong in one way.
#[test]
fn wrong_verdict_is_found() {
    let four = |fault| Spec { nodes: 4, nproc: 2, fault, ..Spec::plain() };
    let fails = Spec { ends: (Some(5), 3), ..four(Fault::None) };
    let killed = four(Fault::Kill { node: 2, role: Role::Rank });
    let command = Spec { engine: "command", ..killed.clone() };
    let silent = "nothing was heard from node 2 (h) for 15 s";
    let cut = |node| four(Fault::Cut { node });
    let term = four(Fault::Term { node: 1 });
    // The spec and the node, then the exit code, cause, node, rank and text that are correct there.
    let right = [
        (&cut(2), 0, (143, "node.silent", 2, None, silent)),
        (&cut(2), 2, (143, "node.silent", 0, None, "nothing was heard from node 0 (h) for 15 s")),
        (&cut(0), 0, (143, "node.silent", 3, None, "nothing was heard from node 3 (h) for 15 s")),
        (&cut(0), 3, (143, "node.silent", 0, None, "nothing was heard from node 0 (h) for 15 s")),
        (&killed, 2, (137, "rank.signal", 2, Some(5), "rank 5 was killed by SIGKILL")),
        (
            &killed,
            1,
            (143, "rank.signal", 2, Some(5), "rank 5 on node 2 (h) was killed by SIGKILL"),
        ),
        (&command, 2, (137, "rank.signal", 2, None, "the command on node 2 was killed by SIGKILL")),
        (&term, 3, (143, "stopped.signal", 1, None, "stopped from outside by SIGTERM on node 1")),
        (&fails, 2, (3, "rank.exit", 2, Some(5), "rank 5 exited with code 3")),
        (&fails, 0, (143, "rank.exit", 2, Some(5), "rank 5 on node 2 (h) exited with code 3")),
        (&four(Fault::MuteConsole), 1, (0, "done", 1, None, "all ranks ended with code 0")),
    ];
    type Said<'a> = (i32, &'a str, u32, Option<u32>, &'a str);
    let complaints = |spec: &Spec, number: u32, said: Said, in_run: bool| {
        let (code, cause, node, rank, text) = said;
        let record =
            |id: &str| json!({id: cause, "code": code, "node": node, "rank": rank, "text": text});
        let run = in_run.then(|| json!({"verdict": record("id")}));
        let node = Node { code, message: Some(record("verdict")), run, ..Node::default() };
        Expected::of(spec, number, Some(5)).complaints(number, &node).join("\n")
    };
    for (spec, number, said) in right {
        for in_run in [true, false] {
            assert_eq!(complaints(spec, number, said, in_run), "", "{spec:?} {number}");
        }
        let (code, cause, node, rank, text) = said;
        let mut wrong = vec![
            ("exit code", (code + 1, cause, node, rank, text)),
            ("another code", (code + 1, cause, node, rank, text)),
            ("another cause", (code, "engine.gone", node, rank, text)),
            ("another cause", (code, cause, node, rank, "it was killed by SIGSEGV")),
        ];
        // An isolated node 0 may name any node except itself.
        wrong.push(("another node", (code, cause, if node == 3 { 0 } else { 3 }, rank, text)));
        if rank.is_some() {
            wrong.push(("another rank", (code, cause, node, Some(4), text)));
            wrong.push(("another rank", (code, cause, node, None, text)));
        }
        for (words, said) in wrong {
            let found = complaints(spec, number, said, false);
            assert!(found.contains(words), "{words} of {said:?}: {found}");
        }
    }
    // A node without its own report is a violation.
    let mute = Expected::of(&fails, 0, None).complaints(0, &Node { code: 92, ..Node::default() });
    assert!(mute.concat().contains("no termination message"), "{mute:?}");
}

/// Each invariant is broken on purpose on real ends, and the hunt must find it.
#[test]
fn planted_violations_are_found() {
    let spec = Spec { fault: Fault::None, ..Spec::plain() };
    assert_eq!(Round::run(&spec).complaints(), Vec::<String>::new(), "the control");

    let complains = |round: &Round, word: &str| {
        let complaints = round.complaints();
        let found = complaints.iter().any(|complaint| complaint.contains(word));
        assert!(found, "{word}: {complaints:#?}");
    };
    // A process of the job lives on.
    let mut round = Round::run(&spec);
    let mut left = round.plant_a_leftover();
    round.look_again();
    complains(&round, "left: ");
    left.kill().expect("it is killed");
    left.wait().expect("it is reaped");
    // One line is missing in every file and count, and one line is missing on the console.
    let mut round = Round::run(&spec);
    round.cut_a_line_out();
    complains(&round, "lost uncounted");
    let out = round.nodes[0].out.take().expect("it was read");
    for (line, words) in
        [("rank 1 line 7 ", "line 8 in place of 7"), ("rank 1 line 199 ", "199 of 200")]
    {
        let without = |out: &str| -> String {
            out.split_inclusive('\n').filter(|one| !one.contains(line)).collect()
        };
        round.nodes[0].out = Some(without(&out));
        complains(&round, words);
    }
    // A gap that is reported is no violation.
    let gap = out.replace("[r1] rank 1 line 7 .", "[r1] 1 lines (1 B) dropped\n.");
    round.nodes[0].out = Some(gap);
    assert!(!round.complaints().concat().contains("the console"), "{:#?}", round.complaints());
    // The account is missing.
    round.nodes[0].run = None;
    complains(&round, "no run.json");
    // A duration jumps with the clock, and then the clock does not jump although it was to.
    let step = Fault::ClockStep { node: 0, seconds: 3_600 };
    let mut round = Round::run(&Spec { fault: step, ..spec.clone() });
    assert_eq!(round.complaints(), Vec::<String>::new(), "the clock jumps");
    round.nodes[0].console = "── ranklaunch: done: x (world size 2, node 0, 3600.3 s)\n".to_owned();
    complains(&round, "the time that the job took");
    let run = round.nodes[0].run.as_mut().expect("it is there");
    run["ended"] = run["started"].clone();
    complains(&round, "no jump of the clock");
    // A stop lost data that a rank would have saved.
    let term = Spec { fault: Fault::Term { node: 0 }, helpers: 2, ..spec.clone() };
    let round = Round::run(&term);
    assert_eq!(round.complaints(), Vec::<String>::new(), "the stop");
    std::fs::remove_file(round.nodes[0].folder.join("saved-1")).expect("it was saved");
    complains(&round, "rank 1 has not saved");
    // On a full disk, gaps of the files are reported if they cannot be counted.
    let full = Spec { fault: Fault::DiskFull { kib: 64 }, lines: 9_000, pause: 0, ..spec };
    let mut round = Round::run(&full);
    if round.what().is_empty() {
        assert_eq!(round.complaints(), Vec::<String>::new(), "the disk is full");
        let node = &mut round.nodes[0];
        node.run = None;
        node.console.clear();
        complains(&round, "no run.json");
        round.nodes[0].console = "cannot write run.json in x: no space\n".to_owned();
        complains(&round, "in the file");
    }
}
