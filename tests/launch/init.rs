//! `ranklaunch init`: what people expect of a container's init, and that nothing
//! is left behind. What tini does too is also asked of tini, where it is installed.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::alive::{stat, zombies_of};
use harness::pty::{CTRL_C, CTRL_D, CTRL_Z, Terminal};
use harness::{Launcher, executable, kill, processes_of, wait_until};
use nix::sys::signal::Signal;
use ranklaunch::sys::{self, Dispositions, SignalSet};

fn ours<I: AsRef<OsStr>>(options: &[&str], command: impl IntoIterator<Item = I>) -> Launcher {
    let mut words: Vec<_> = ["init"].iter().chain(options).map(|&word| word.into()).collect();
    words.push(std::ffi::OsString::from("--"));
    words.extend(command.into_iter().map(|word| word.as_ref().to_owned()));
    Launcher::new(words)
}

fn shell(script: &str) -> Launcher {
    ours(&["--grace", "10s"], ["sh", "-c", script])
}

/// tini as a subreaper; None, and a word about it, where it is not installed.
fn tini() -> Option<Command> {
    let found = Command::new("tini").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        harness::skipped("tini is not installed: only ranklaunch init is tested");
    }
    found.then(|| {
        let mut tini = Command::new("tini");
        tini.args(["-s", "--"]);
        tini
    })
}

/// The same command below ours and below tini.
fn both(command: &[&str]) -> Vec<Launcher> {
    let reference = tini().map(|tini| Launcher::of(tini, command));
    std::iter::once(ours(&[], command)).chain(reference).collect()
}

#[test]
fn every_exit_code_passes_through() {
    for code in 0..=255 {
        for launcher in both(&["sh", "-c", &format!("exit {code}")]) {
            launcher.run().expect_code(code);
        }
    }
}

#[test]
fn a_command_that_cannot_be_executed_gives_the_codes_of_a_shell() {
    for (command, code) in
        [("/no/such/command", 127), ("no-such-command-at-all", 127), ("/etc/passwd", 126)]
    {
        for launcher in both(&[command]) {
            let ended = launcher.run().expect_code(code);
            assert!(ended.err.contains(command), "{}", ended.err);
        }
    }
}

#[test]
fn a_line_without_a_command_is_refused() {
    for words in [vec!["init"], vec!["init", "--"], vec!["init", "true"]] {
        Launcher::new(words).run().expect_code(64);
    }
    let ended = ours(&["--grace", "soon"], ["true"]).run().expect_code(64);
    assert!(ended.err.contains("--grace"), "{}", ended.err);
}

#[test]
fn every_signal_is_passed_on() {
    // tini keeps those that a fault of its own would raise.
    const KEPT_BY_TINI: [i32; 6] = [4, 5, 6, 7, 8, 11];
    for signal in (1..=15).filter(|&signal| signal != Signal::SIGKILL as i32).chain([24, 39]) {
        for (nth, launcher) in
            both(&["sh", "-c", "echo READY; exec sleep 300"]).into_iter().enumerate()
        {
            if nth > 0 && KEPT_BY_TINI.contains(&signal) {
                continue;
            }
            let mut running = launcher.start();
            running.says("READY", 1);
            sys::send(running.pid(), signal);
            running.wait().expect_code(128 + signal).expect_nothing_left();
        }
    }
}

#[test]
fn a_signal_that_is_caught_ends_nothing() {
    let script = "trap 'echo GOT' USR1; trap 'exit 10' TERM; echo READY\n\
        while :; do sleep 0.05; done";
    for launcher in both(&["sh", "-c", script]) {
        let mut running = launcher.start();
        running.says("READY", 1);
        running.signal(Signal::SIGUSR1);
        running.says("GOT", 1);
        running.signal(Signal::SIGTERM);
        running.wait().expect_code(10);
    }
}

#[test]
fn the_second_interrupt_kills() {
    let mut running = shell("trap '' INT; echo READY; while :; do sleep 0.05; done").start();
    running.says("READY", 1);
    let started = std::time::Instant::now();
    let init = running.pid();
    let asking = std::thread::spawn(move || {
        // Interrupts that follow each other at once are one: it takes a second.
        while started.elapsed().as_millis() < 1300 {
            sys::send(init, Signal::SIGINT as i32);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let ended = running.wait().expect_code(137).expect_nothing_left();
    assert!(started.elapsed().as_millis() >= 1000, "{}", ended.err);
    asking.join().expect("the asking ends");
}

#[test]
fn a_stop_and_a_continue_reach_the_command() {
    for launcher in both(&["sh", "-c", "echo READY; while :; do sleep 0.05; done"]) {
        let mut running = launcher.start();
        running.says("READY", 1);
        let init = running.pid();
        let below = || {
            running.processes().into_iter().find(|process| process.parent == init).map(|it| it.pid)
        };
        let command = wait_until("the command", below);
        running.signal(Signal::SIGTSTP);
        wait_until("its stop", || (state(command) == Some('T')).then_some(()));
        running.signal(Signal::SIGCONT);
        wait_until("its continuation", || (state(command) != Some('T')).then_some(()));
        running.signal(Signal::SIGTERM);
        running.wait().expect_code(143);
    }
}

fn state(pid: i32) -> Option<char> {
    stat(pid).map(|(state, _, _)| state)
}

#[test]
fn the_command_gets_the_signal_state_that_init_was_given() {
    use sys::Signal;
    let sets: [(&[Signal], &[Signal]); 4] = [
        (&[], &[]),
        (&[Signal::USR1, Signal::TERM], &[]),
        (&[], &[Signal::HUP, Signal::PIPE, Signal::TSTP, Signal::TTOU]),
        (&[Signal::PIPE], &[Signal::INT, Signal::PIPE]),
    ];
    for (blocked, ignored) in sets {
        let start = Dispositions {
            ignored_real_time: 0,
            mask: SignalSet::of(blocked),
            ignored: SignalSet::of(ignored),
        };
        let below = |mut command: Command, words: &[&str]| {
            sys::in_child(&mut command, move || sys::restore_in_child(&start));
            Launcher::of(command, words).run().expect_code(0).out
        };
        let look = ["-E", "^Sig(Blk|Ign)", "/proc/self/status"];
        let plain = below(Command::new("grep"), &look);
        let mut words = vec!["init", "--", "grep"];
        words.extend(look);
        assert_eq!(below(Command::new(executable()), &words), plain, "{blocked:?} {ignored:?}");
    }
}

#[test]
fn what_was_ignored_stays_ignored() {
    let script = "echo READY; while [ ! -e go ]; do sleep 0.05; done; exit 6";
    let mut nohup = Command::new("nohup");
    nohup.arg(executable());
    let mut running = Launcher::of(nohup, ["init", "--", "sh", "-c", script]).start();
    running.says("READY", 1);
    running.signal(Signal::SIGHUP);
    std::fs::write(running.folder().join("go"), "").expect("a file");
    running.wait().expect_code(6);
}

#[test]
fn streams_and_folder_are_inherited() {
    let launcher = shell("cat; pwd >&2; echo $PPID");
    let input = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(input.path(), "to stdin\n").expect("it is written");
    let folder = launcher.folder().to_owned();
    let file = std::fs::File::open(input.path()).expect("it is there");
    let running = launcher.stdin(file).start();
    let init = running.pid();
    let ended = running.wait().expect_code(0);
    assert_eq!(ended.out, format!("to stdin\n{init}\n"));
    assert_eq!(Path::new(ended.err.trim_end()).canonicalize().ok(), folder.canonicalize().ok());
}

const ORPHANS: &str = "i=0; while [ $i -lt 1000 ]; do (: &); i=$((i + 1)); done; echo MADE";

#[test]
fn a_thousand_orphans_are_reaped() {
    for launcher in both(&["sh", "-c", &format!("{ORPHANS}; exec sleep 300")]) {
        let mut running = launcher.start();
        running.says("MADE", 1);
        wait_until("an end of zombies", || (zombies_of(running.pid()) == 0).then_some(()));
        running.signal(Signal::SIGTERM);
        running.wait().expect_code(143);
    }
    // The same below a subreaper that does not reap.
    let mut careless = Command::new("sh");
    sys::in_child(&mut careless, || {
        Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
    });
    let script = format!("({ORPHANS}) & exec sleep 300");
    let mut running = Launcher::of(careless, ["-c", &script]).start();
    running.says("MADE", 1);
    wait_until("a thousand zombies", || (zombies_of(running.pid()) >= 1000).then_some(()));
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143);
}

/// Leaves behind: a session without our environment, a double fork with a child
/// of its own, and one that is stopped. Each carries `token` in its command line.
fn leave(token: &str) -> String {
    format!(
        "setsid env -i PATH=\"$PATH\" sh -c ': >a; sleep 300; : {token}' &\n\
         (setsid sh -c 'sleep 300 & : >b; sleep 300; : {token}' &)\n\
         sh -c ': >c; kill -STOP $$; : {token}' &\n\
         until [ -e a ] && [ -e b ] && [ -e c ]; do sleep 0.02; done; exit 4"
    )
}

/// The control of `expect_nothing_left`: neither its environment nor its command line tells.
#[test]
fn what_cleared_its_environment_is_seen_by_where_it_runs() {
    let script = "setsid env -i /bin/sleep 304 & until [ $(wc -c </proc/$!/environ) -eq 0 ]; do sleep 0.02; done";
    let ended = Launcher::of(Command::new("sh"), ["-c", script]).run().expect_code(0);
    let left = ended.left_now();
    left.iter().for_each(|process| kill(process.pid));
    let commands: Vec<String> = left.iter().map(harness::Process::command).collect();
    assert_eq!(commands, ["/bin/sleep 304"]);
    wait_until("its end", || ended.left_now().is_empty().then_some(()));
}

#[test]
fn nothing_is_left_behind() {
    let token = format!("left-by-init-{}", std::process::id());
    shell(&leave(&token)).run().expect_code(4).expect_nothing_left();
    let left = processes_of(&token);
    assert!(left.is_empty(), "{left:#?}");

    // The same without an init: the check must see what is left.
    let token = format!("left-by-sh-{}", std::process::id());
    Launcher::of(Command::new("sh"), ["-c", &leave(&token)]).run().expect_code(4);
    let left = processes_of(&token);
    assert_eq!(left.len(), 3, "{left:#?}");
    for process in left {
        kill(process.pid);
    }
}

#[test]
fn earlier_children_and_their_orphans_are_left_alone() {
    // A shell starts something of its own and becomes the init.
    let script = "(until [ -e go ]; do sleep 0.02; done; (setsid sleep 301 &); : >made; exec sleep 302) &\n\
        exec \"$0\" init -- sh -c ': >go; until [ -e made ]; do sleep 0.02; done; setsid sleep 303 & exit 3'";
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script);
    let token = format!("strangers-{}-of-init", std::process::id());
    let launcher = Launcher::of(shell, [executable()]).env("STRANGERS", &token);
    launcher.run().expect_code(3);
    let mut left = processes_of(&token);
    left.sort_by_key(harness::Process::command);
    for process in &left {
        kill(process.pid);
    }
    let commands: Vec<String> = left.iter().map(|process| process.command()).collect();
    assert_eq!(commands, ["sleep 301", "sleep 302"]);
}

#[test]
fn leftovers_get_term_and_the_grace_and_then_kill() {
    let polite = "(trap 'sleep 0.3; echo bye >bye; exit' TERM; echo READY >ready; \
        while :; do sleep 0.05; done) & \
        while [ ! -e ready ]; do sleep 0.02; done; exit 5";
    let ended = shell(polite).run().expect_code(5).expect_nothing_left();
    assert!(ended.folder().join("bye").exists(), "its TERM was waited for");

    let deaf = "(trap '' TERM; echo READY >ready; while :; do sleep 0.05; done) & \
        while [ ! -e ready ]; do sleep 0.02; done; exit 5";
    for (options, variable) in [(&["--grace", "1s"][..], "1h"), (&[], "1s")] {
        let launcher = ours(options, ["sh", "-c", deaf]).env("RANKLAUNCH_GRACE", variable);
        let ended = launcher.run().expect_code(5).expect_nothing_left();
        let millis = ended.elapsed.as_millis();
        assert!(millis >= 1000, "{millis} ms");
    }
}

/// `unshare`, where this user may make a PID namespace.
fn namespace() -> Option<Command> {
    let make = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc"]);
        unshare
    };
    let may = make().arg("true").stderr(Stdio::null()).status().is_ok_and(|ended| ended.success());
    if !may {
        harness::skipped("no PID namespace can be made here: PID 1 is not tested");
    }
    may.then(make)
}

#[test]
fn as_pid_1_it_ends_what_the_command_left_and_no_outsider() {
    let Some(mut unshare) = namespace() else { return };
    unshare.arg(executable());
    // The leftover answers TERM and goes on until it is allowed to end.
    let script = "echo pid1 is $PPID\n\
        (setsid sh -c 'trap \"echo ASKED\" TERM; until [ -e end ]; do sleep 0.05; done' &)\n\
        sh -c ': &' \n\
        echo READY\n\
        until [ -e go ]; do sleep 0.05; done; exit 3";
    let mut running =
        Launcher::of(unshare, ["init", "--grace", "60s", "--", "sh", "-c", script]).start();
    running.says("READY", 1);
    assert!(running.out().contains("pid1 is 1"), "{}", running.out());

    let init = children(running.pid()).first().copied().expect("PID 1 of the namespace");
    let token = format!("outsider-{}", std::process::id());
    let enter = Command::new("nsenter")
        .args(["--pid", "--mount", "--target", &init.to_string(), "sh", "-c"])
        .arg(format!("(setsid sh -c 'sleep 300; : {token}' &)"))
        .status()
        .expect("nsenter runs");
    assert!(enter.success());
    let outsider = wait_until("an outsider that was adopted", || {
        processes_of(&token).into_iter().find(|process| process.parent == init).map(|it| it.pid)
    });

    std::fs::write(running.folder().join("go"), "").expect("a file");
    running.says("ASKED", 1);
    let alive = state(outsider).is_some_and(|state| !matches!(state, 'Z' | 'X'));
    assert!(alive, "the sweep has been there, and passed it by");
    std::fs::write(running.folder().join("end"), "").expect("a file");
    running.wait().expect_code(3).expect_nothing_left();
    assert_eq!(state(outsider), None, "the namespace ends with its PID 1");
}

#[test]
fn as_pid_1_it_passes_signals_on_and_reaps() {
    let Some(mut unshare) = namespace() else { return };
    unshare.arg(executable());
    let script = format!("{ORPHANS}; trap 'exit 9' TERM; echo READY; while :; do sleep 0.05; done");
    let mut running = Launcher::of(unshare, ["init", "--", "sh", "-c", &script]).start();
    running.says("READY", 1);
    let init = children(running.pid()).first().copied().expect("PID 1 of the namespace");
    wait_until("an end of zombies", || (zombies_of(init) == 0).then_some(()));
    sys::send(init, Signal::SIGTERM as i32);
    running.wait().expect_code(9).expect_nothing_left();
}

fn children(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let listed = std::fs::read_to_string(path).unwrap_or_default();
    listed.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Ours, and tini, as the leader of a terminal's session: `docker run -it`.
fn terminals(command: &[&str]) -> Vec<Terminal> {
    let mut init = Command::new(executable());
    init.args(["init", "--"]);
    std::iter::once(init)
        .chain(tini())
        .map(|mut init| {
            init.args(command).env("PS1", "prompt> ").env("TERM", "dumb").env_remove("ENV");
            Terminal::start(init)
        })
        .collect()
}

#[test]
fn at_a_terminal_the_command_is_the_foreground_group() {
    // Process group and the terminal's foreground group, fields 5 and 8.
    let script = "set -- $(cut -d' ' -f5,8 /proc/self/stat); [ $1 = $2 ] && echo SAME; \
        cat; exit 7";
    for mut terminal in terminals(&["sh", "-c", script]) {
        terminal.shows("SAME");
        assert_ne!(terminal.foreground(), terminal.pid(), "it is not init's group");
        terminal.types("abc\n");
        terminal.shows("abc\r\nabc\r\n");
        terminal.types(CTRL_D);
        assert_eq!(terminal.ends(), 7);
    }
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let script = "trap 'echo CAUGHT' INT; echo READY; while :; do read line && echo \"=$line\"; \
        [ \"$line\" = quit ] && exit 8; done";
    for mut terminal in terminals(&["sh", "-c", script]) {
        terminal.shows("READY");
        terminal.types(CTRL_C);
        terminal.shows("CAUGHT");
        terminal.types("quit\n");
        terminal.shows("=quit");
        assert_eq!(terminal.ends(), 8);
        assert_eq!(terminal.everything().matches("CAUGHT").count(), 1);
    }
    for mut terminal in terminals(&["sh", "-c", "echo READY; exec sleep 300"]) {
        terminal.shows("READY");
        terminal.types(CTRL_C);
        assert_eq!(terminal.ends(), 130);
    }
}

#[test]
fn below_a_script_ctrl_c_reaches_script_and_command_once_each() {
    let command = "trap 'echo CAUGHT' INT; echo READY; read one; read two; exit 8";
    let mut script = Command::new("sh");
    script.args([
        "-c",
        "trap 'echo SCRIPT' INT; \"$@\"; echo code=$?; read line; echo \"=$line\"",
        "sh",
    ]);
    script.arg(executable()).args(["init", "--", "sh", "-c", command]);
    let mut terminal = Terminal::start(script);
    terminal.shows("READY");
    terminal.types(CTRL_C);
    terminal.shows("CAUGHT");
    terminal.types("1\n2\n3\n");
    terminal.shows("code=8");
    terminal.types("over\n");
    assert_eq!(terminal.ends(), 0);
    let shown = terminal.everything();
    assert_eq!(shown.matches("CAUGHT").count(), 1, "{shown}");
    assert_eq!(shown.matches("SCRIPT").count(), 1, "{shown}");
}

#[test]
fn a_shell_inside_has_job_control_and_its_typed_exit_counts() {
    for mut terminal in terminals(&["sh", "-i"]) {
        terminal.shows("prompt> ");
        let shell = terminal.foreground();
        terminal.types("sleep 300\n");
        terminal.shows("sleep 300\r\n");
        wait_until("the job in the foreground", || (terminal.foreground() != shell).then_some(()));
        terminal.types(CTRL_Z);
        terminal.shows("prompt> ");
        terminal.types("kill %1; exit 7\n");
        // Shells ask once more about jobs that are stopped.
        terminal.types("exit 7\n");
        assert_eq!(terminal.ends(), 7, "{}", terminal.everything());
        let shown = terminal.everything();
        assert!(!shown.contains("job control turned off"), "{shown}");
    }
}

#[test]
fn ctrl_z_without_a_shell_above_does_not_wedge() {
    let mut init = Command::new(executable());
    init.args(["init", "--", "cat"]);
    let mut terminal = Terminal::start(init);
    terminal.types("one\n");
    terminal.shows("one\r\none\r\n");
    terminal.types(CTRL_Z);
    terminal.types("two\n");
    terminal.shows("two\r\ntwo\r\n");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn below_a_shell_it_is_a_job_like_any_other() {
    let mut shell = Command::new("sh");
    shell.args(["-i", "-m"]).env("PS1", "prompt> ").env("TERM", "dumb").env_remove("ENV");
    let mut terminal = Terminal::start(shell);
    terminal.shows("prompt> ");
    let init = executable();
    let init = init.display();
    terminal.types(&format!("{init} init -- cat\n"));
    let shell = terminal.pid();
    wait_until("cat in the foreground", || (terminal.foreground() != shell).then_some(()));
    terminal.types("one\n");
    terminal.shows("one\r\none\r\n");
    for round in ["two", "three"] {
        terminal.types(CTRL_Z);
        terminal.shows("prompt> ");
        terminal.types("fg\n");
        terminal.shows("fg\r\n");
        wait_until("cat in the foreground", || (terminal.foreground() != shell).then_some(()));
        terminal.types(&format!("{round}\n"));
        terminal.shows(&format!("{round}\r\n{round}\r\n"));
    }
    // Continued in the background it may not read, and stops again.
    terminal.types(CTRL_Z);
    terminal.shows("prompt> ");
    let job = *children(shell).last().expect("the job");
    terminal.types("bg\n");
    terminal.shows("prompt> ");
    wait_until("the job's stop", || (state(job) == Some('T')).then_some(()));
    terminal.types("fg\n");
    terminal.shows("fg\r\n");
    wait_until("cat in the foreground", || (terminal.foreground() != shell).then_some(()));
    terminal.types("four\n");
    terminal.shows("four\r\nfour\r\n");
    terminal.types(CTRL_D);
    terminal.shows("prompt> ");

    // In a pipeline, whose group belongs to others too.
    terminal.types(&format!("{init} init -- cat | cat\n"));
    wait_until("the pipeline in the foreground", || (terminal.foreground() != shell).then_some(()));
    terminal.types("five\n");
    terminal.shows("five\r\nfive\r\n");
    terminal.types(CTRL_C);
    terminal.shows("prompt> ");
    terminal.types("echo piped $?\n");
    terminal.shows("piped 130");
    terminal.types(&format!("echo six | {init} init -- cat; echo code $?\n"));
    terminal.shows("six\r\ncode 0");
    terminal.types("exit 0\n");
    assert_eq!(terminal.ends(), 0);
}
