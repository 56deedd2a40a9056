//! Colours and the width of the window: used at a terminal, and elsewhere only on request.

use std::path::Path;
use std::process::Command;

use harness::pty::Terminal;
use harness::{Launcher, executable, run_args};

/// The prefixes of ranks 0 and 1 in their colours.
const PREFIXES: [&str; 2] =
    ["\x1b[36m[r0\x1b[0m\x1b[36m]\x1b[0m ", "\x1b[32m[r1\x1b[0m\x1b[32m]\x1b[0m "];
/// Rank 1 fails after rank 0 has written.
const SCRIPT: &str = "echo out; echo \"$RANK of two\" >&2; : >wrote-$RANK; until [ -e wrote-0 ]; do sleep 0.01; done; test $RANK = 0";

fn ranks(more: &[&str]) -> Vec<std::ffi::OsString> {
    let mut words = run_args("direct", 2);
    words.extend(more.iter().map(Into::into));
    words.extend(["--", "sh", "-c", SCRIPT].map(Into::into));
    words
}

/// Bytes that a launch sends to a terminal with this many columns.
fn at_terminal(columns: u16, variables: &[(&str, &str)], more: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(executable());
    command.args(ranks(more)).current_dir(folder.path());
    harness::without_platform(&mut command);
    command.env("TERM", "xterm-256color").envs(variables.iter().copied());
    let mut terminal = Terminal::of(columns, 50, command);
    assert_eq!(terminal.ends(), 1);
    terminal.rest()
}

#[test]
fn a_terminal_shows_severity_and_ranks_in_colours() {
    let shown = at_terminal(80, &[], &[]);
    for prefix in PREFIXES {
        assert!(shown.contains(&format!("{prefix}out")), "{shown:?}");
    }
    // Output of a rank to its standard error is marked, and the rank's own text stays unchanged.
    assert!(shown.contains("\x1b[1;31m!\x1b[0m\x1b[32m]\x1b[0m 1 of two\r\n"), "{shown:?}");
    assert!(shown.contains("\x1b[1;31m── ranklaunch: rank 1 exited with code 1"), "{shown:?}");
    let source = at_terminal(80, &[("RANKLAUNCH_VERBOSE", "true")], &[]);
    assert!(source.contains("\x1b[2m[--device]\x1b[0m"), "the source of a value: {source:?}");
    // A colour ends on its own line.
    for line in shown.lines() {
        let last = line.rfind("\x1b[").map_or("", |at| &line[at..]);
        assert!(
            last.is_empty() || last.starts_with("\x1b[0m") || last.starts_with("\x1b[J"),
            "{line:?}"
        );
    }
}

#[test]
fn no_color_never_and_dumb_terminals_disable_colours() {
    for (variables, more) in [
        (&[("NO_COLOR", "1")][..], &[][..]),
        (&[("TERM", "dumb")], &[]),
        (&[("CLICOLOR_FORCE", "1")], &["--color", "never"]),
        (&[("RANKLAUNCH_COLOR", "never")], &[]),
    ] {
        let shown = at_terminal(80, variables, more);
        assert!(shown.contains("[r1!] 1 of two"), "{shown:?}");
        assert!(!shown.contains("\x1b[1;31m"), "{variables:?} {more:?}: {shown:?}");
        assert!(!shown.contains("\x1b[3"), "{variables:?} {more:?}: {shown:?}");
    }
}

#[test]
fn pipe_gets_colours_only_on_request_files_never() {
    let run = |variables: &[(&str, &str)], more: &[&str]| {
        let launcher = Launcher::new(ranks(more));
        let launcher = variables.iter().fold(launcher, |it, (name, value)| it.env(name, value));
        launcher.run().expect_code(1).expect_nothing_left()
    };
    for (variables, more) in
        [(&[][..], &[][..]), (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], &[])]
    {
        let plain = run(variables, more);
        assert!(!plain.out.contains('\x1b') && !plain.err.contains('\x1b'), "{}", plain.err);
    }
    for (variables, more) in [(&[][..], &["--color=always"][..]), (&[("CLICOLOR_FORCE", "1")], &[])]
    {
        let painted = run(variables, more);
        assert!(painted.out.contains(PREFIXES[1]), "{}", painted.out);
        assert!(painted.err.contains("\x1b[1;31m── ranklaunch: rank 1"), "{}", painted.err);
        assert!(!painted.err.contains("\x1b[J"), "{}", painted.err);
        let files = files_below(&painted.folder().join("ranklaunch-logs"));
        assert!(files.len() >= 6, "{files:?}");
        for (name, bytes) in files {
            assert!(!bytes.contains(&0x1b), "{name} holds a colour");
        }
    }
    let refused = Launcher::new(ranks(&["--color", "blue"])).run().expect_code(64);
    assert!(refused.err.contains("auto, always or never"), "{}", refused.err);
}

fn files_below(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            files.extend(files_below(&entry.path()));
        } else if kind.is_file() {
            let name = entry.path().display().to_string();
            files.push((name, std::fs::read(entry.path()).expect("a file")));
        }
    }
    files
}

/// `check`, `lint`, `explain` and `plan` colour their text output as `run` does.
#[test]
fn other_commands_have_the_same_option() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("pod.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b, command: [torchrun, --nproc_per_node=2, a.py], resources: {limits: {nvidia.com/gpu: 1}}}]}\n")
        .expect("a manifest");
    std::fs::write(folder.path().join("job.log"), "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nModuleNotFoundError: No module named 'flash_attn'\n")
        .expect("a log");
    for words in [
        &["check", "--device", "cpu", "--nnodes", "1"][..],
        &["lint", "pod.yaml"],
        &["explain", "job.log"],
        &["plan", "--device", "cpu", "--engine", "direct", "--nnodes", "1", "--", "true"],
    ] {
        let of = |color: &str| {
            let mut command = Command::new(executable());
            command.args(&words[..1]).arg(format!("--color={color}")).args(&words[1..]);
            harness::without_platform(&mut command);
            let output = command.current_dir(folder.path()).output().expect("it starts");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let (always, never, auto) = (of("always"), of("never"), of("auto"));
        assert!(always.contains("\x1b["), "{words:?}: {always}");
        assert!(!never.contains('\x1b') && !auto.contains('\x1b'), "{words:?}: {never}");
    }
}

/// Lines wrap at words and continue below their beginning, in both languages.
#[test]
fn a_window_of_80_columns_is_not_exceeded() {
    for lang in ["en", "zh"] {
        let deep = tempfile::tempdir().expect("a folder");
        let logs = deep.path().join("a-folder-with-a-long-name/".repeat(2));
        let logs = logs.to_string_lossy();
        let shown = at_terminal(80, &[("NO_COLOR", "1")], &["--lang", lang, "--log-dir", &logs]);
        for line in shown.replace("\x1b[0m", "").lines() {
            let line = line.trim_end().rsplit("\x1b[J").next().unwrap_or_default();
            let wide: usize = line.chars().map(|c| if (c as u32) > 0x2e80 { 2 } else { 1 }).sum();
            let is_whole = line.trim_start().contains(' ');
            assert!(wide <= 80 || !is_whole, "{lang}: {wide}: {line}");
        }
    }
}
