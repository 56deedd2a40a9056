//! Random faults against random jobs, and what must hold of every end: no process is
//! left, the exit code is right for what was done, no byte of a rank is lost
//! uncounted, and the verdict names what was done.
//!
//! `make hunt` runs for HUNT_SECONDS (600) with all engines, on up to four nodes;
//! HUNT_SEED repeats a run, HUNT_ROUND one of its rounds. A short form on the engine
//! `direct` is a test like any other. Not among the faults: a step of the clock, which
//! no namespace can give to one job, and which would hit everything on the machine.

#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;

mod chance;
mod invariants;
mod round;

#[path = "../muster_nodes/cluster.rs"]
#[expect(dead_code, reason = "only cables are cut here")]
mod cluster;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chance::Chance;
use round::{Fault, Round, Spec};

/// Rounds that may fail before the hunt ends: each is said with its seed and number.
const ENOUGH: usize = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Jobs with one fault each until the time is over.
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
        let name = format!("{} on {} nodes, {}", spec.fault.kind(), spec.nodes, spec.engine);
        if only.is_some() {
            println!("round {number}: {spec:#?}");
        }
        let round = Round::run(&spec);
        let complaints = round.complaints();
        // What could not be done must not look like a fault that the job survived.
        let missed = if round.missed { " (missed: it had ended)" } else { "" };
        let skipped = if round.skipped { " (not possible here)" } else { "" };
        *seen.entry(format!("{name}{missed}{skipped}")).or_default() += 1;
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
    // A hunt that met nothing would be green as well.
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

/// Each invariant, broken on purpose: the hunt must see it.
#[test]
fn what_is_broken_on_purpose_is_found() {
    let spec = Spec { fault: Fault::None, ..Spec::plain() };
    assert_eq!(Round::run(&spec).complaints(), Vec::<String>::new(), "the control");

    let complains = |round: Round, word: &str| {
        let complaints = round.complaints();
        let found = complaints.iter().any(|complaint| complaint.contains(word));
        assert!(found, "{word}: {complaints:#?}");
    };
    // A process of the job that lives on.
    let mut round = Round::run(&spec);
    let mut left = round.plant_a_leftover();
    round.look_again();
    complains(round, "left: ");
    left.kill().expect("it is killed");
    left.wait().expect("it is reaped");
    // A line that is in no file and in no count.
    let round = Round::run(&spec);
    round.cut_a_line_out();
    complains(round, "lost uncounted");
    // Another code, and another cause, than what was done.
    let mut round = Round::run(&spec);
    round.spec.fault = Fault::Term { node: 0 };
    complains(round, "exit code 0");
    let mut round = Round::run(&Spec { fault: Fault::Term { node: 0 }, ..Spec::plain() });
    round.spec.fault = Fault::Kill { node: 0, role: common::faults::Role::Rank };
    complains(round, "the verdict");
}
