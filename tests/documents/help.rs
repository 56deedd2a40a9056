//! The help and the manual page as they are printed, in both languages.
//!
//! `make docs SUITE=snapshots` writes the output into tests/snapshots, to review in the diff.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use harness::executable;
use harness::snapshot::compare;

const COMMANDS: &[&str] = &[
    "",
    "run",
    "plan",
    "check",
    "clean",
    "wait",
    "init",
    "lint",
    "adopt",
    "checkpoint",
    "explain",
    "report",
    "compare",
    "profile",
    "profile list",
    "profile show",
    "profile new",
    "profile check",
    "install",
    "completions",
    "man",
    "stacks",
    "top",
    "ps",
    "nodes",
    "logs",
    "dump",
    "help",
];

fn printed(words: &[&str], variables: &[(&str, &str)]) -> String {
    let output = Command::new(executable())
        .args(words)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn all(lang: &str, commands: &[&str]) -> String {
    let mut text = String::new();
    for command in commands {
        let words = command.split(' ').filter(|word| !word.is_empty()).chain(["--help"]);
        let words: Vec<&str> = words.collect();
        let shown = printed(&words, &[("RANKLAUNCH_LANG", lang)]);
        // The shared options are in the help of the main command.
        let own = match *command {
            "" => shown.as_str(),
            _ => ["\nThe program:\n", "\n程序：\n"]
                .into_iter()
                .find_map(|heading| Some(shown.split_once(heading)?.0))
                .unwrap_or(&shown),
        };
        let _ = writeln!(text, "$ ranklaunch {}\n{own}", words.join(" "));
    }
    text
}

#[test]
fn help_matches_its_snapshot() {
    for lang in ["en", "zh"] {
        let mut text = all(lang, COMMANDS);
        for words in [&["-h"][..], &["plan", "-h"], &["help"]] {
            let shown = printed(words, &[("RANKLAUNCH_LANG", lang), ("COLUMNS", "80")]);
            let _ = writeln!(text, "$ ranklaunch {}\n{shown}", words.join(" "));
        }
        compare(&format!("help.{lang}"), &text);
    }
}

/// Columns of a terminal.
fn columns(line: &str) -> usize {
    line.chars().map(|one| if one.is_ascii() { 1 } else { 2 }).sum()
}

#[test]
fn short_help_has_one_line_for_each_option_and_command() {
    for lang in ["en", "zh"] {
        let variables = [("RANKLAUNCH_LANG", lang), ("COLUMNS", "80")];
        let short = printed(&["-h"], &variables);
        for line in short.lines() {
            assert!(columns(&line.replace('…', ".")) <= 80, "{lang}: {line}");
        }
        let lines: Vec<&str> = short.lines().filter(|line| line.starts_with("  ")).collect();
        let options = lines.iter().filter(|line| line.trim_start().starts_with('-'));
        // With --help and --version.
        assert_eq!(options.count(), 17, "{short}");
        for command in COMMANDS.iter().filter(|name| !name.is_empty() && !name.contains(' ')) {
            let of = |line: &&&str| line.starts_with(&format!("  {command} "));
            assert_eq!(lines.iter().filter(of).count(), 1, "{lang}: {command}\n{short}");
        }
        let usage = lines.iter().filter(|line| line.trim_start().starts_with("ranklaunch "));
        let commands = COMMANDS.iter().filter(|name| !name.is_empty() && !name.contains(' '));
        assert_eq!(
            lines.len(),
            17 + usage.count() + commands.count(),
            "a text has two lines\n{short}"
        );
    }
}

#[test]
fn topic_is_printed_and_unknown_word_is_refused_with_the_list() {
    for topic in ["layout", "membership", "hangs", "exit-codes"] {
        let (en, zh) =
            (printed(&["help", topic], &[]), printed(&["help", topic, "--lang", "zh"], &[]));
        assert!(en.contains("docs/") && zh.contains("zh-CN.md") && en != zh, "{topic}");
        assert!(printed(&["help"], &[]).contains(&format!("\n  {topic} ")));
    }
    let output = Command::new(executable()).args(["help", "qqqq"]).env_clear().output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("membership, hangs") && said.contains("plan, check"), "{said}");
}

#[test]
fn no_subcommand_is_left_out() {
    for above in ["", "profile"] {
        let words: Vec<&str> =
            [above, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
        let shown = printed(&words, &[("RANKLAUNCH_LANG", "en")]);
        let (_, list) = shown.split_once("\nCommands:\n").expect("they are listed");
        let lines = list.lines().take_while(|line| !line.is_empty());
        let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        assert!(names.len() > 3, "{names:?}");
        for name in names {
            let command = format!("{above} {name}");
            let command = command.trim_start();
            let known = COMMANDS.contains(&command);
            assert!(known, "nothing judges the help of {command}");
        }
    }
}

/// English words in Chinese help must be names of programs, options, values or placeholders.
#[test]
fn chinese_help_has_no_english_sentence() {
    for text in [all("zh", COMMANDS), printed(&["man", "--lang", "zh"], &[])] {
        // The build may have added a note.
        let text = text.split(".SH 版本").next().unwrap_or_default();
        let mut examples = 0;
        for line in text.lines().filter(|line| !line.starts_with('$')) {
            // These lines are usage, examples, and lists of names.
            if line.contains("ranklaunch ") && line.is_ascii() {
                examples += 1;
                continue;
            }
            // The line quotes a command.
            let line = line.split("ranklaunch ").next().unwrap_or_default();
            let mut in_a_row = 0;
            for word in line.split(' ') {
                let is_word = word.len() > 1 && word.bytes().all(|b| b.is_ascii_lowercase());
                in_a_row = if is_word { in_a_row + 1 } else { 0 };
                assert!(in_a_row < 3, "{line}");
            }
        }
        assert!(examples > 3, "{text}");
    }
}

#[test]
fn help_uses_the_chosen_language() {
    let chinese = "启动任务在本节点上的部分";
    for (words, variables, is_chinese) in [
        (&["--help"][..], &[][..], false),
        (&["--help"], &[("LANG", "zh_CN.UTF-8")], true),
        (&["--help"], &[("LANG", "zh_CN.UTF-8"), ("RANKLAUNCH_LANG", "en")], false),
        (&["--help", "--lang", "zh"], &[], true),
        (&["--lang=en", "-h"], &[("RANKLAUNCH_LANG", "zh")], false),
        (&["help"], &[("RANKLAUNCH_LANG", "zh")], true),
        (&["man"], &[("RANKLAUNCH_LANG", "zh")], true),
        (&["man", "--lang", "en"], &[("RANKLAUNCH_LANG", "zh")], false),
        (&["man", "--lang", "zh"], &[], true),
    ] {
        let text = printed(words, variables);
        assert_eq!(text.contains(chinese), is_chinese, "{words:?} {variables:?}\n{text}");
    }
}

/// Chinese help fits a terminal of 80 columns.
#[test]
fn no_line_of_chinese_help_is_too_wide() {
    let text = all("zh", COMMANDS);
    let long: Vec<&str> =
        text.lines().filter(|line| !line.contains("ranklaunch ") && columns(line) > 82).collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}
