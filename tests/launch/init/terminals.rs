//! At a terminal, with and without a shell above.

use std::process::Command;

use harness::pty::{CTRL_C, CTRL_D, CTRL_Z, Terminal};
use harness::{executable, wait_until};

use super::{children, state, tini};

/// Our init, and tini, as the leader of a terminal's session, like `docker run -it`.
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
fn command_at_a_terminal_is_its_foreground_group() {
    // Fields 5 and 8 are the process group and the terminal's foreground group.
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
fn ctrl_c_reaches_script_and_command_once_each() {
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
fn inner_shell_has_job_control_and_sets_code() {
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
fn ctrl_z_without_an_outer_shell_is_harmless() {
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
fn init_below_a_shell_is_an_ordinary_job() {
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
    // A command that is continued in the background may not read, and stops again.
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

    // In a pipeline, the process group belongs to other programs too.
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
