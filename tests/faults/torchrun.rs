//! The same faults with a real torchrun, and the processes that torchrun without ranklaunch leaves
//! behind.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use harness::{Launcher, Place, Role, Running};
use nix::sys::signal::Signal;

/// A limit that only an endless wait exceeds. Tests that must not wait for the grace period use a
/// longer grace.
const SOON: Duration = harness::TIMEOUT;
/// A grace longer than [`SOON`].
const ENDLESS: &str = "10m";

fn torchrun(setup: Launcher, nproc: u32, options: &[&str], program: &[&str]) -> Running {
    let mut args = harness::run_args("torchrun", nproc);
    args.extend(options.iter().map(OsString::from));
    args.push("--".into());
    args.push(setup.misbehave().into());
    args.extend(program.iter().map(OsString::from));
    setup.program(&harness::executable(), &args)
}

fn torchrun_alone(program: &[&str]) -> Running {
    let setup = Launcher::at(Place::Subreaper);
    let mut args: Vec<OsString> =
        ["-m", "torch.distributed.run", "--nproc-per-node", "2"].map(OsString::from).into();
    args.extend(["--master-port".into(), harness::free_port().to_string().into()]);
    args.extend(["--no-python".into(), setup.misbehave().into()]);
    args.extend(program.iter().map(OsString::from));
    setup.program(&harness::python(), &args)
}

#[test]
fn nothing_survives_the_sigkill_of_any_one_process() {
    for victim in [Role::Guard, Role::Agent, Role::Engine, Role::Shim, Role::Rank] {
        let mut job = torchrun(Launcher::at(Place::Subreaper), 2, &[], &["escape"]);
        job.says("READY", 2);
        job.send(victim, Signal::SIGKILL);
        let over = job.ends_within(SOON).expect_code(137);
        assert!(over.id() == Some("engine.gone") || victim != Role::Engine, "{}", over.err);
        let _ = match victim {
            Role::Guard => over.expect_nothing_left_soon(),
            _ => over.expect_nothing_left(),
        };
    }
}

#[test]
fn nothing_survives_a_crash_with_data_loaders() {
    let job = torchrun(Launcher::at(Place::Subreaper), 2, &[], &["loader"]);
    job.ends_within(SOON).expect_code(134).expect_nothing_left();
}

/// The two checks above, without us.
#[test]
fn control_torchrun_alone_leaves_them() {
    let mut job = torchrun_alone(&["escape"]);
    job.says("READY", 2);
    let engine = job
        .processes()
        .into_iter()
        .find(|seen| seen.argv.iter().any(|word| word == "torch.distributed.run"))
        .expect("torchrun");
    harness::kill(engine.pid);
    let over = job.ends_within(harness::TIMEOUT).expect_code(137);
    assert!(over.report().contains("\nafter 4 "), "{}", over.report());

    let over = torchrun_alone(&["loader"]).ends_within(harness::TIMEOUT).expect_code(1);
    assert!(!over.report().contains("\nafter 0 "), "{}", over.report());
}

#[test]
fn a_stopped_torchrun_ends_with_the_grace() {
    let setup = Launcher::at(Place::Subreaper).env("RANKLAUNCH_GRACE", ENDLESS);
    let mut job = torchrun(setup, 2, &["--grace", "3s"], &["escape"]);
    job.says("READY", 2);
    job.send(Role::Engine, Signal::SIGSTOP);
    job.send(Role::Guard, Signal::SIGTERM);
    let over = job.ends_within(SOON).expect_code(143).expect_nothing_left();
    // The launcher itself ended torchrun, so this is no second fault.
    assert!(!over.err.contains("the engine was killed"), "{}", over.err);
}

/// A stopped torchrun cannot end the other ranks when a rank fails. The launcher does, within the
/// grace.
#[test]
fn stopped_torchrun_does_not_delay_a_failed_job() {
    let setup = Launcher::at(Place::Subreaper).env("RANKLAUNCH_GRACE", ENDLESS);
    let mut job = torchrun(setup, 2, &["--grace", "3s"], &["escape"]);
    job.says("READY", 2);
    job.send(Role::Engine, Signal::SIGSTOP);
    job.send(Role::Rank, Signal::SIGKILL);
    job.ends_within(SOON).expect_code(137).expect_nothing_left();
}

/// Node 0's ranks are done, and torchrun waits for node 1's ranks up to five minutes.
#[test]
fn term_ends_the_exit_barrier_before_the_grace() {
    let port = harness::free_port().to_string();
    let node = |rank: &str, program: &[&str]| {
        let setup = Launcher::at(Place::Plain)
            .env("WORLD_SIZE", "2")
            .env("RANK", rank)
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port);
        torchrun(setup, 1, &["--muster", "off", "--grace", ENDLESS], program)
    };
    let mut zero = node("0", &["until", "/proc/self", "0"]);
    let mut one = node("1", &["wait"]);
    zero.says("READY", 1);
    one.says("READY", 1);
    // Guard, agent and torchrun remain: the rank is done.
    zero.waits("the exit barrier", |job| job.processes().len() == 3);
    let began = Instant::now();
    zero.waits("the barrier itself", |_| began.elapsed() > Duration::from_millis(500));
    zero.send(Role::Guard, Signal::SIGTERM);
    // In that barrier torchrun handles no signal; without ranks it does not get the whole grace
    // period.
    zero.ends_within(SOON).expect_code(143).expect_nothing_left();
    one.send(Role::Guard, Signal::SIGTERM);
    one.ends_within(SOON).expect_code(143).expect_nothing_left();
}
