//! The status line at the end of a terminal: it stays below all output, mixes with nothing, and disappears
//! when nobody is to see it.

use std::process::Command;

use harness::pty::Terminal;
use harness::tmux::Tmux;
use harness::{executable, free_port, run_args, skipped, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// `ranklaunch ARGS…` in a folder, as a person types it.
fn command(folder: &std::path::Path, args: &[&str]) -> Command {
    let mut command = Command::new(executable());
    command.args(args).current_dir(folder);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("LANG", "C.UTF-8");
    command
}

fn direct(nproc: u32, more: &[&str]) -> Vec<String> {
    let words = run_args("direct", nproc);
    let words = words.iter().map(|word| word.to_string_lossy().into_owned());
    words.chain(more.iter().map(|word| (*word).to_owned())).collect()
}

fn start(columns: u16, rows: u16, command: &Command) -> Option<Tmux> {
    let tmux = Tmux::start(columns, rows, command);
    if tmux.is_none() {
        skipped("there is no tmux");
    }
    tmux
}

fn refs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn is_status(row: &str) -> bool {
    row.contains("ranks live") || row.contains("ranks have begun")
}

/// Output that could disturb the status line or be disturbed by it: colours that are not ended, cursor
/// movements, progress bars, wide letters, no line end.
const NOISE: &str = r#"
i=0
while [ $i -lt 150 ]; do
    printf 'plain %s %03d end\n' "$RANK" $i
    printf '\033[41mcolour %s %03d\n' "$RANK" $i
    printf '训练进度 %s %03d 完成\n' "$RANK" $i
    printf '\033[2J\033[Hcleared %s %03d\n' "$RANK" $i
    printf 'error %s %03d\n' "$RANK" $i >&2
    i=$((i + 1))
    sleep 0.01
done
touch "$FOLDER/done-$RANK"
while [ ! -e "$FOLDER/go" ]; do sleep 0.05; done
echo last of "$RANK"
"#;

#[test]
fn status_line_stays_below_all_rank_output() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = direct(2, &["--", "sh", "-c", NOISE]);
    let mut command = command(folder.path(), &refs(&words));
    command.env("FOLDER", folder.path());
    let Some(tmux) = start(72, 30, &command) else { return };
    let row = tmux.shows("the status line", is_status);
    assert!(row.contains("2 of 2 ranks live") || row.contains("ranks have begun"), "{row}");
    wait_until("all lines", || {
        let done = |rank| folder.path().join(format!("done-{rank}")).exists();
        (done(0) && done(1)).then_some(())
    });
    // The status line is drawn again after the last line, as the last row.
    let ends_so = || tmux.screen().last().is_some_and(|row| is_status(row));
    wait_until("the status line below everything", || ends_so().then_some(()));
    let rows = tmux.screen();
    assert_eq!(rows.iter().filter(|row| is_status(row)).count(), 1, "{}", rows.join("\n"));
    // A narrower window wraps the existing rows, and the status line disappears all the same.
    tmux.resizes(41, 30);
    tmux.resizes(100, 30);
    std::fs::write(folder.path().join("go"), "").expect("a file");
    assert_eq!(tmux.ends(), 0);
    let all = tmux.history();
    let left: Vec<&String> = all.iter().filter(|row| is_status(row)).collect();
    assert!(left.is_empty(), "{left:#?}");
    let text = all.join("\n");
    for rank in 0..2 {
        for line in 0..150 {
            for (kind, end) in [("plain", " end"), ("colour", ""), ("cleared", ""), ("error", "")] {
                let whole = format!("{kind} {rank} {line:03}{end}");
                assert_eq!(text.matches(&whole).count(), 1, "{whole}");
            }
            let whole = format!("训练进度 {rank} {line:03} 完成");
            assert_eq!(text.matches(&whole).count(), 1, "{whole}");
        }
    }
    assert!(all.last().is_some_and(|row| row.trim().starts_with("logs:") || !row.is_empty()));
    assert!(text.contains("── ranklaunch: done"), "{text}");
}

#[test]
fn status_line_shows_the_node_wait_then_vanishes() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port().to_string();
    let more = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"];
    let words = direct(1, &[&more[..], &["--master-port", &port, "--", "true"]].concat());
    let Some(tmux) = start(100, 30, &command(folder.path(), &refs(&words))) else { return };
    let is_wait = |row: &str| row.starts_with("1 of 2 nodes have arrived; waiting on port");
    tmux.shows("two seconds of the wait", |row| is_wait(row) && row.contains("(0:02 of 30:00)"));
    let rows = tmux.history();
    assert_eq!(rows.iter().filter(|row| is_wait(row)).count(), 1, "{}", rows.join("\n"));
    tmux.presses(&["C-c"]);
    assert_eq!(tmux.ends(), 130);
    let rows = tmux.history();
    assert!(!rows.iter().any(|row| is_wait(row)), "{}", rows.join("\n"));
}

/// As in a container that `docker exec -it` or `unshare` has entered: the guard's group has no number there.
#[test]
fn group_of_another_pid_namespace_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let unshare = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let allowed = Command::new("unshare").args(unshare).arg("true").status();
    if !allowed.is_ok_and(|status| status.success()) {
        return skipped("unshare is not allowed");
    }
    let words = direct(2, &["--", "sh", "-c", "echo begun; sleep 2; echo over"]);
    let own = command(folder.path(), &refs(&words));
    let mut command = Command::new("unshare");
    command.args(unshare).arg(own.get_program()).args(own.get_args()).current_dir(folder.path());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let Some(tmux) = start(100, 30, &command) else { return };
    assert_eq!(tmux.ends(), 0, "{}", tmux.history().join("\n"));
    let text = tmux.history().join("\n");
    assert_eq!(text.matches("] over").count(), 2, "{text}");
    assert!(!text.contains("internal error"), "{text}");
}

#[test]
fn status_line_vanishes_during_suspension_and_returns() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut shell = command(folder.path(), &[]);
    shell = {
        let mut sh = Command::new("sh");
        sh.args(["-i", "-m"]).current_dir(folder.path());
        sh.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
        sh.env("PS1", "shell> ");
        sh
    };
    let Some(tmux) = start(100, 30, &shell) else { return };
    tmux.shows("the prompt", |row| row.starts_with("shell>"));
    let words = direct(2, &["--", "sleep", "300"]);
    let typed = format!("{} {}", executable().display(), words.join(" "));
    tmux.presses(&[&typed, "Enter"]);
    tmux.shows("the status line", is_status);
    tmux.presses(&["C-z"]);
    tmux.shows("the shell", |row| row.contains("Stopped"));
    tmux.presses(&["echo still $((40 + 2))", "Enter"]);
    tmux.shows("the shell's answer", |row| row == "still 42");
    // The status line was drawn several times by then.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let rows = tmux.screen();
    assert!(!rows.iter().any(|row| is_status(row)), "{}", rows.join("\n"));
    assert!(rows.iter().any(|row| row == "still 42"), "{}", rows.join("\n"));
    tmux.presses(&["fg", "Enter"]);
    tmux.shows("the status line again", is_status);
    tmux.presses(&["C-c"]);
    tmux.shows("the shell again", |row| row == "shell>");
    let rows = tmux.screen();
    assert!(!rows.iter().any(|row| is_status(row)), "{}", rows.join("\n"));
    tmux.presses(&["exit", "Enter"]);
}

/// The same command between two reads of the terminal's settings, as from a shell.
fn in_a_shell(folder: &std::path::Path, line: &str, args: &[String]) -> Command {
    let mut shell = Command::new("sh");
    // The shell stays until the test has looked, because tmux changes the modes of a window whose command has
    // ended.
    let line = format!(
        "trap : INT; stty -g > before; {line}; code=$?; stty -g > after; echo 'back in the shell'
        while [ ! -e seen ]; do sleep 0.05; done; exit $code"
    );
    shell.args(["-c", &line]).arg(executable()).args(args).current_dir(folder);
    shell.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("LANG", "C.UTF-8");
    shell
}

/// Changes to the terminal that a launcher left behind.
fn left_behind(tmux: &Tmux, folder: &std::path::Path, modes: &str) -> Vec<String> {
    tmux.shows("the shell", |row| row.contains("back in the shell"));
    let mut left: Vec<String> = tmux.history().into_iter().filter(|row| is_status(row)).collect();
    let now = tmux.modes();
    left.extend((now != modes).then_some(now));
    let settings = ["before", "after"].map(|name| std::fs::read_to_string(folder.join(name)));
    let [before, after] = settings.map(|text| text.expect("settings"));
    left.extend((before != after).then_some(after));
    let is_plain = tmux.coloured().iter().any(|row| row == "back in the shell");
    left.extend((!is_plain).then(|| tmux.coloured().join("\n")));
    std::fs::write(folder.join("seen"), "").expect("a file");
    left
}

fn child(pid: i32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("a process");
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a child")
}

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it is there");
}

/// Two ranks that ignore every polite stop, and the process of their agent.
fn stubborn(folder: &std::path::Path) -> Option<(Tmux, String, i32)> {
    let rank = "trap '' INT TERM; while :; do sleep 0.1; done";
    // The grace is longer than the test waits, so that only the second stop ends the ranks.
    let words = direct(2, &["--grace", "180s", "--", "sh", "-c", rank]);
    let tmux = start(100, 30, &in_a_shell(folder, "\"$0\" \"$@\"", &words))?;
    let modes = tmux.modes();
    tmux.shows("the status line", is_status);
    let agent = child(child(tmux.pid()));
    Some((tmux, modes, agent))
}

#[test]
fn lost_agent_or_second_stop_restores_the_terminal() {
    for signal in [Some(Signal::SIGKILL), Some(Signal::SIGABRT), None] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some((tmux, modes, agent)) = stubborn(folder.path()) else { return };
        let code = match signal {
            Some(signal) => {
                send(agent, signal);
                128 + signal as i32
            }
            None => {
                tmux.presses(&["C-c"]);
                tmux.shows("the first stop", |row| row.contains("SIGINT"));
                // A second signal within a second is the same stop.
                std::thread::sleep(std::time::Duration::from_millis(1200));
                tmux.presses(&["C-c"]);
                130
            }
        };
        let left = left_behind(&tmux, folder.path(), &modes);
        assert_eq!(tmux.ends(), code, "{}", tmux.history().join("\n"));
        assert!(left.is_empty(), "{signal:?}: {left:#?}");
        if signal.is_some() {
            let rows = tmux.history();
            let said = |row: &String| row.contains("agent was killed by SIG");
            assert!(rows.iter().any(said), "{}", rows.join("\n"));
        }
    }
}

/// The controls of the test above: a row that was not erased, and each property that it checks.
#[test]
fn control_altered_terminal_is_detected() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(tmux) = start(100, 30, &in_a_shell(folder.path(), "true", &[])) else { return };
    let modes = tmux.modes();
    assert_eq!(left_behind(&tmux, folder.path(), &modes), Vec::<String>::new());
    for line in [
        "echo 2 of 2 ranks live",
        "printf '\\033[?25l'",
        "printf '\\033[31m'",
        "printf '\\033[?1049h'",
        "stty -echo",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(tmux) = start(100, 30, &in_a_shell(folder.path(), line, &[])) else { return };
        let left = left_behind(&tmux, folder.path(), &modes);
        assert_eq!(tmux.ends(), 0);
        assert!(!left.is_empty(), "{line}: {}", tmux.modes());
    }
}

/// Nothing is drawn if lines are only printed, or if a rank has the terminal.
#[test]
fn dumb_terminal_or_terminal_owning_rank_hides_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let wait = "sleep 1.2; echo over";
    for (nproc, variables, more) in [
        (2, [("TERM", "dumb")], &["--", "sh", "-c", wait][..]),
        (1, [("TERM", "xterm")], &["--interactive", "--", "sh", "-c", wait]),
        (1, [("TERM", "xterm")], &["--", "sh", "-c", wait]),
    ] {
        let words = direct(nproc, more);
        let mut command = command(folder.path(), &refs(&words));
        harness::without_platform(&mut command);
        command.envs(variables);
        let mut terminal = Terminal::of(80, 24, command);
        terminal.shows("over");
        assert_eq!(terminal.ends(), 0);
        let shown = terminal.rest();
        assert!(!shown.contains("ranks live") && !shown.contains("\x1b[J"), "{shown:?}");
    }
    // Standard error goes to a file, and only the ranks write to the terminal.
    let words = direct(2, &["--", "sh", "-c", wait]);
    let mut sh = Command::new("sh");
    let line = format!("\"$0\" \"$@\" 2> {}", folder.path().join("err").display());
    sh.args(["-c", &line]).arg(executable()).args(&words).current_dir(folder.path());
    sh.env("TERM", "xterm");
    let mut terminal = Terminal::of(80, 24, sh);
    terminal.shows("over");
    assert_eq!(terminal.ends(), 0);
    let said = std::fs::read_to_string(folder.path().join("err")).expect("a file");
    assert!(!terminal.rest().contains("ranks live") && !said.contains('\x1b'), "{said}");
}
