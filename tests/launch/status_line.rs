//! The line at the end of a terminal that says what the job does now: it stands below everything that
//! is written, mixes with nothing, and is gone when nobody is to see it.

use std::process::Command;

use harness::pty::Terminal;
use harness::tmux::Tmux;
use harness::{executable, free_port, run_args, skipped, wait_until};

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

/// Lines with everything that could disturb the line, or be disturbed by it: colours that are not
/// ended, cursor movements, progress bars, wide letters, no line end.
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
fn it_stands_below_the_lines_of_the_ranks_and_mixes_with_none() {
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
    // It is drawn again after the last line, as the last row.
    let ends_so = || tmux.screen().last().is_some_and(|row| is_status(row));
    wait_until("the status line below everything", || ends_so().then_some(()));
    let rows = tmux.screen();
    assert_eq!(rows.iter().filter(|row| is_status(row)).count(), 1, "{}", rows.join("\n"));
    // A narrower window wraps what stands there, and the line goes all the same.
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
fn it_tells_how_long_a_node_is_awaited_and_goes_with_the_job() {
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

#[test]
fn it_is_gone_while_the_job_is_suspended_and_comes_back() {
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
    // Several turns of the line later.
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

#[test]
fn it_goes_with_an_agent_that_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = direct(2, &["--", "sleep", "300"]);
    let Some(tmux) = start(100, 30, &command(folder.path(), &refs(&words))) else { return };
    tmux.shows("the status line", is_status);
    let guard = tmux.pid();
    let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children"));
    let agent =
        children.expect("the guard").split_whitespace().next().and_then(|pid| pid.parse().ok());
    harness::kill(agent.expect("an agent"));
    assert_eq!(tmux.ends(), 137);
    let rows = tmux.history();
    assert!(!rows.iter().any(|row| is_status(row)), "{}", rows.join("\n"));
    assert!(
        rows.iter()
            .any(|row| row.contains("the agent of this launcher was killed")
                || row.contains("SIGKILL")),
        "{}",
        rows.join("\n")
    );
}

/// Where lines are only printed, and where a rank has the terminal, nothing is drawn.
#[test]
fn there_is_none_for_a_printer_a_rank_with_the_terminal_and_a_pipe() {
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
    // Standard error goes to a file, and only the ranks to the terminal.
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
