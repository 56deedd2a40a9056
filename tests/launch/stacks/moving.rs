//! Ranks that run on, that end, or that must not notice the reading of their stacks.

use harness::{send, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{document, line, list, of_script, stacks, text};

/// Each function `f_N` begins at line N, is five lines long and calls only functions with higher
/// numbers; threads come and go, and code objects are made and freed all the time.
const BUSY: &str = "\
import random, threading, gc
source, space = '', {'random': random}
for at in range(1, 200, 5):
    later = [n for n in range(at + 5, 201, 5)] or None
    call = 'random.choice((%s,))()' % ','.join('f_%d' % n for n in later[:6]) if later else '0'
    source += 'def f_%d():\\n x = [1]\\n if random.random() < .9:\\n  x.append(%s)\\n return x\\n' % (at, call)
source += 'def f_201():\\n return 1\\n'
exec(compile(source, 'busy.py', 'exec'), space)
def again():
    while True:
        fresh = {'random': random}
        exec(compile(source, 'busy.py', 'exec'), fresh)
        for _ in range(20): fresh['f_1']()
def brief():
    while True:
        thread = threading.Thread(target=lambda: [space['f_1']() for _ in range(50)])
        thread.start()
        thread.join()
for work in (again, brief):
    threading.Thread(target=work, daemon=True).start()
print('READY', flush=True)
while True: space['f_1']()
";

/// The numbers of the program's functions in a stack, innermost first; every frame is possible.
fn numbers(thread: &Value) -> Vec<u64> {
    let mut numbers = Vec::new();
    for frame in list(&thread["python"]["frames"]) {
        let (function, file, at) = line(frame);
        if file == "busy.py" && function != "<module>" {
            let number = function.strip_prefix("f_").and_then(|number| number.parse().ok());
            let number: u64 = number.unwrap_or_else(|| panic!("{frame:#}"));
            assert!((number..number + 5).contains(&at), "{frame:#}");
            assert_eq!(frame["first_line"], number, "{frame:#}");
            numbers.push(number);
        }
    }
    numbers
}

#[test]
fn running_program_is_never_shown_wrongly() {
    let mut job = of_script(2, BUSY);
    job.says("READY", 2);
    let (mut whole, mut seen_numbers) = (0, Vec::new());
    for _ in 0..40 {
        let seen = document(&job);
        for rank in list(&seen["ranks"]) {
            assert!(rank["process"]["unread"].is_null(), "{rank:#}");
            for thread in list(&rank["process"]["threads"]) {
                let numbers = numbers(thread);
                if thread["python"]["moving"] != true {
                    // Each function was called by the one behind it.
                    assert!(numbers.is_sorted_by(|inner, outer| inner > outer), "{thread:#}");
                    whole += usize::from(numbers.len() > 2);
                }
                seen_numbers.extend(numbers);
            }
        }
    }
    // The control: the program ran, at many places, and most of it was read as a whole.
    seen_numbers.sort_unstable();
    seen_numbers.dedup();
    assert!(whole > 20 && seen_numbers.len() > 10, "{whole} {seen_numbers:?}");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn processes_ending_during_the_read_leave_no_trace() {
    let script = "\
import subprocess, sys, time
print('READY', flush=True)
while True:
    subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(.01)'])
";
    let mut job = of_script(4, script);
    job.says("READY", 4);
    let mut children = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let seen = document(&job);
        for rank in list(&seen["ranks"]) {
            assert!(rank["process"]["unread"].is_null(), "{rank:#}");
            for child in list(&rank["children"]) {
                children.insert(child["pid"].as_i64());
                let why = text(&child["unread"]["why"]);
                // Before exec(2) the process is a copy of its parent; then it is an interpreter
                // that begins.
                let known = ["", "gone", "not_started", "changed", "not_python"];
                assert!(known.contains(&why), "{child:#}");
            }
        }
    }
    assert!(children.len() > 10, "{children:?}");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}

/// epoll_wait(2) fails with EINTR after the process was stopped and continued, even without a
/// handler (signal(7)), and ptrace(2) stops a process.
const WAITS: &str = "\
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
poll = libc.epoll_create1(0)
events = ctypes.create_string_buffer(64)
def wait():
    began = time.monotonic()
    done = libc.epoll_wait(poll, events, 1, 3000)
    print('WAITED', os.environ['RANK'], done, ctypes.get_errno(), time.monotonic() - began >= 3, flush=True)
print('READY', flush=True)
wait()
time.sleep(600)
";

#[test]
fn reading_stacks_does_not_disturb_a_rank() {
    let mut job = of_script(2, WAITS);
    job.says("READY", 2);
    // The stacks are read before the rank's wait is over.
    let mut asked = 0;
    let mut pid = 0;
    while !job.out().contains("WAITED 0") {
        let seen = document(&job);
        let ranks = list(&seen["ranks"]);
        let frames = |rank: &Value| list(&rank["process"]["threads"][0]["python"]["frames"]).len();
        let found: Vec<usize> = ranks.iter().map(frames).collect();
        assert!(found.len() == 2 && !found.contains(&0), "{seen:#}");
        asked += 1;
        if pid == 0 {
            pid = ranks[1]["process"]["pid"]
                .as_i64()
                .and_then(|pid| pid.try_into().ok())
                .expect("pid");
            send(pid, Signal::SIGSTOP);
            wait_until("it is stopped", || {
                let seen = document(&job);
                (seen["ranks"][1]["process"]["threads"][0]["kernel"]["state"] == "T").then_some(())
            });
            send(pid, Signal::SIGCONT);
        }
    }
    assert!(asked > 3, "asked {asked} times");
    job.says("WAITED 1", 1);
    let out = job.out();
    assert!(out.contains("WAITED 0 0 0 True"), "{out}");
    // The control: a rank notices a stop. EINTR is 4.
    assert!(out.contains("WAITED 1 -1 4 "), "{out}");
    let _ = stacks(&job, &[]).expect_code(0);
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}
