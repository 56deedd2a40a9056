//! Kills any process of a job at any moment, many times: the launcher ends in time, nothing is
//! left, and the exit code fits.
//!
//! `SOAK_ROUNDS` and `SOAK_TORCHRUN_ROUNDS` set the number of rounds, and `SOAK_SEED` repeats a
//! run: every round depends only on the seed and its number.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use harness::chance::Chance;
use harness::{Launcher, Place, Role, Running};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// No process here ignores TERM for longer than the grace of 2 s; the rest is for a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

const PROGRAMS: &[&[&str]] = &[
    &["escape"],
    &["escape-and-exit", "0"],
    &["escape-and-exit", "9"],
    &["loader"],
    &["hold-stdout", "5"],
    &["hydra"],
    &["wait"],
];

/// The job's exit code without a fault; None if it does not end.
fn own_code(program: &[&str]) -> Option<i32> {
    match program {
        ["escape-and-exit" | "hold-stdout", code] => code.parse().ok(),
        ["loader"] => Some(134),
        _ => None,
    }
}

fn start(engine: &str, nproc: u32, program: &[&str]) -> Running {
    let setup = Launcher::at(Place::Subreaper);
    let mut args = harness::run_args(engine, nproc);
    args.extend(["--grace", "2s", "--"].map(OsString::from));
    args.push(setup.misbehave().into());
    args.extend(program.iter().map(OsString::from));
    setup.program(&harness::executable(), &args)
}

/// Runs one round. Gives the role that was hit.
fn round(engine: &str, seed: u64, round: u64) -> Option<Role> {
    let mut chance = Chance::new(seed, round);
    let program = chance.of(PROGRAMS);
    let nproc = 2 + chance.below(2);
    // The moment is an event or a time: a direct job with these programs lives some 30 ms, and
    // torchrun starts in 2 s.
    let ready = chance.below(2) == 0;
    let span = if engine == "direct" { 120 } else { 4_000 };
    let delay = Duration::from_millis(if ready { 10_000 } else { chance.below(span) });
    let pick = chance.number();
    let what = format!(
        "seed {seed} round {round}: {engine} {nproc} x {program:?}, {}{delay:?}, pick {pick}",
        if ready { "at READY, at the latest after " } else { "" }
    );

    let mut job = start(engine, nproc, program);
    let started = Instant::now();
    while started.elapsed() < delay && !job.is_over() {
        if ready && job.out().contains("READY") {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let victims = job.roles();
    let victim = (!victims.is_empty() && !job.is_over())
        .then(|| victims[usize::try_from(pick % victims.len() as u64).expect("an index")].clone());
    let hit = victim.as_ref().and_then(|(role, seen)| {
        kill(Pid::from_raw(seen.pid), Signal::SIGKILL).is_ok().then_some(*role)
    });
    let goes_on = matches!(hit, None | Some(Role::Grandchild)) && own_code(program).is_none();
    if goes_on {
        // No essential process was hit, so the job has to be stopped.
        if let Some(guard) = job.guard_now() {
            let _ = kill(Pid::from_raw(guard), Signal::SIGTERM);
        }
    }
    let over = job.ends_by(DEADLINE, &what);
    let what = format!("{what}, hit {victim:?}, code {}", over.code);
    // The loss of the guard is seen before the agent has swept.
    let over = match hit {
        Some(Role::Guard) => over.expect_nothing_left_soon_in(&what),
        _ => over.expect_nothing_left_in(&what),
    };
    let own = own_code(program);
    let plausible = (hit.is_some() && over.code == 137)
        || (goes_on && over.code == 143)
        || own == Some(over.code)
        // A kill of the engine or of a grandchild may be seen as a failure of the launch.
        || (hit == Some(Role::Grandchild) && [0, 1, 143].contains(&over.code))
        || (hit == Some(Role::Engine) && [1, 68].contains(&over.code))
        // The shim's rank had ended well and been reported; only torchrun takes the loss for a
        // failed worker.
        || (hit == Some(Role::Shim) && engine == "torchrun" && (own, over.code) == (Some(0), 1));
    assert!(plausible, "{what}\n{}\n{}", over.out, over.err);
    hit
}

fn soak(engine: &str, rounds: u64) {
    let seed = number("SOAK_SEED", u64::from(std::process::id()) ^ nanos());
    println!("soak of {engine}: SOAK_SEED={seed}, {rounds} rounds");
    let mut hits: BTreeMap<String, u32> = BTreeMap::new();
    let started = Instant::now();
    let mut longest = Duration::ZERO;
    for number in 0..rounds {
        let began = Instant::now();
        let hit = round(engine, seed, number);
        longest = longest.max(began.elapsed());
        *hits.entry(hit.map_or("nobody".to_owned(), |role| format!("{role:?}"))).or_default() += 1;
    }
    let total = started.elapsed();
    println!("{rounds} rounds in {total:?}, longest {longest:?}; killed: {hits:?}");
    // Without this check, a soak without a hit would pass.
    let missed = u64::from(hits.get("nobody").copied().unwrap_or_default());
    assert!(rounds < 10 || missed * 4 < rounds * 3, "of {rounds} rounds {missed} hit nobody");
}

fn nanos() -> u64 {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    u64::from(now.subsec_nanos()) << 20
}

#[test]
fn direct() {
    soak("direct", number("SOAK_ROUNDS", 40));
}

#[test]
fn torchrun() {
    soak("torchrun", number("SOAK_TORCHRUN_ROUNDS", 2));
}
