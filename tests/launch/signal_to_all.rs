//! A signal to every process of a job, as Slurm sends it (`scancel --signal=USR1`): each rank gets
//! it once, and it ends neither an engine nor a process of the launcher.

use std::ffi::OsString;

use harness::{Launcher, program, run_args, send};
use nix::sys::signal::Signal;

/// Prints each USR1, and ends at USR2.
const RANK: &str = "\
import os, signal, sys
say = lambda what: print(what, os.environ['RANK'], flush=True)
signal.signal(signal.SIGUSR1, lambda *_: say('GOT'))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
say('READY')
while True: signal.pause()
";

fn ranks(engine: &str) -> Launcher {
    let mut args: Vec<OsString> = run_args(engine, 2);
    if engine != "direct" {
        let python = args.iter().position(|word| word == "--python").expect("it is named");
        args[python + 1] = program("engine.sh").into();
    }
    Launcher::new(args).args(["--", "python3", "-c", RANK]).env("BEGIN", "0:0:2 1:1:2")
}

/// True if USR1 is pending for this process or its first thread.
fn has_pending(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let masks =
        status.lines().filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"));
    masks
        .filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok())
        .any(|mask| mask >> (Signal::SIGUSR1 as i32 - 1) & 1 == 1)
}

#[test]
fn rank_gets_signal_once_and_engine_survives() {
    for engine in ["direct", "torchrun", "accelerate", "deepspeed"] {
        let mut running = ranks(engine).start();
        running.says("READY", 2);
        for round in 1..=2 {
            for process in running.processes() {
                send(process.pid, Signal::SIGUSR1);
            }
            running.says("GOT", 2 * round);
            // A shim that has not taken the first signal would get both as one.
            harness::wait_until("the shims have taken the signal", || {
                let all = running.processes();
                let mut shims =
                    all.iter().filter(|one| one.argv.get(1).is_some_and(|word| word == "rank"));
                shims.all(|shim| !has_pending(shim.pid)).then_some(())
            });
        }
        // The signal goes only to the launcher, which passes it on after all earlier ones.
        running.signal(Signal::SIGUSR2);
        let ended = running.wait().expect_code(0).expect_nothing_left();
        assert_eq!(ended.out.matches("GOT").count(), 4, "{engine}\n{}", ended.out);
    }
}
