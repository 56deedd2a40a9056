//! The completion scripts in the shells themselves: values, profiles and files.

use std::path::Path;
use std::process::Command;

use harness::{executable, skipped};

/// A shell, in a folder that holds `wan-mine.toml` and `train.py`. It offers words in place of the last one.
struct Shell {
    folder: tempfile::TempDir,
}

impl Shell {
    fn new(shell: &str, file: &str) -> Option<Shell> {
        let there =
            Command::new(shell).arg("--version").output().is_ok_and(|out| out.status.success());
        if !there {
            skipped(format!("no {shell} on this machine"));
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let output =
            Command::new(executable()).args(["completions", shell]).output().expect("it runs");
        assert!(output.status.success());
        std::fs::write(folder.path().join(file), output.stdout).expect("a script");
        std::fs::create_dir(folder.path().join("here")).expect("a folder");
        for file in ["here/wan-mine.toml", "here/train.py"] {
            std::fs::write(folder.path().join(file), "").expect("a file");
        }
        Some(Shell { folder })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn offered(&self, shell: &str, args: &[&str], script: &str, line: &str) -> Vec<String> {
        let bin = executable();
        let bin = bin.parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new(shell)
            .args(args)
            .arg(script)
            .arg(line)
            .current_dir(self.path("here"))
            .env("PATH", format!("{bin}:{path}"))
            .env("HOME", self.folder.path())
            .env("XDG_CONFIG_HOME", self.folder.path())
            .env("TERM", "dumb")
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        assert!(!words.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        words
    }
}

/// (line, words that must be offered, words that must not)
const CASES: &[(&str, &[&str], &[&str])] = &[
    ("ranklaunch --engine ", &["torchrun", "accelerate", "direct"], &["wan-mine.toml"]),
    ("ranklaunch run --console ", &["all", "rank0", "errors", "none"], &["wan-mine.toml"]),
    ("ranklaunch plan --layout u", &["ulysses-world", "ulysses-ring"], &["none"]),
    ("ranklaunch check --lang ", &["en", "zh"], &["wan-mine.toml"]),
    ("ranklaunch --severity shm.s", &["shm.size=fail", "shm.size=off"], &["memlock=fail"]),
    ("ranklaunch --profile w", &["wan22", "wan-mine.toml"], &["taehv"]),
    ("ranklaunch plan --profile ", &["wan22", "taehv", "zimdb", "wan-mine.toml"], &[]),
    ("ranklaunch plan --format ", &["text", "json", "shell"], &[]),
    ("ranklaunch explain gpu.c", &["gpu.count"], &["memlock", "wan-mine.toml"]),
    ("ranklaunch profile ", &["list", "show", "new", "check"], &[]),
    ("ranklaunch profile show z", &["zimdb"], &[]),
    ("ranklaunch pl", &["plan"], &["check"]),
    ("ranklaunch ", &["plan", "explain", "train.py"], &["--nnodes", "wan-mine.toml"]),
    ("ranklaunch -", &["--nnodes", "--help"], &["plan", "train.py"]),
    ("ranklaunch --nnodes 2 ", &["run", "train.py"], &["--nnodes", "wan-mine.toml"]),
    ("ranklaunch plan ", &["train.py"], &["check", "--format", "wan-mine.toml"]),
    ("ranklaunch explain cuda_o", &["cuda_oom"], &["wan-mine.toml"]),
    ("ranklaunch help ", &["layout", "exit-codes", "plan"], &["train.py"]),
    ("ranklaunch -- ", &["train.py", "wan-mine.toml"], &["plan", "--nnodes"]),
    ("ranklaunch init -- ", &["train.py", "wan-mine.toml"], &["--grace"]),
    ("ranklaunch train.py --data w", &["wan-mine.toml"], &["train.py"]),
    ("ranklaunch -m package.train ", &["wan-mine.toml"], &["plan"]),
];

fn check(offered: impl Fn(&str) -> Vec<String>) {
    for (line, wanted, unwanted) in CASES {
        let words = offered(line);
        // fish appends a description after a tab.
        let words: Vec<&str> = words.iter().filter_map(|word| word.split('\t').next()).collect();
        for word in *wanted {
            assert!(words.contains(word), "{line}: {word} is not in {words:?}");
        }
        for word in *unwanted {
            assert!(!words.contains(word), "{line}: {word} is in {words:?}");
        }
    }
}

#[test]
fn bash_completes_values_profiles_and_files() {
    let Some(shell) = Shell::new("bash", "ranklaunch.bash") else { return };
    let driver = r#"
        source ../ranklaunch.bash
        line=$0
        read -ra COMP_WORDS <<< "$line"
        [[ $line == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        COMP_LINE=$line COMP_POINT=${#line}
        _ranklaunch ranklaunch "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    check(|line| shell.offered("bash", &["-c"], driver, line));
}

#[test]
fn fish_completes_with_short_descriptions() {
    let Some(shell) = Shell::new("fish", "ranklaunch.fish") else { return };
    let driver = "source ../ranklaunch.fish; complete -C $argv[1]";
    let offered = |line: &str| shell.offered("fish", &["--no-config", "-c"], driver, line);
    check(offered);
    for word in offered("ranklaunch --") {
        let description = word.split('\t').nth(1).unwrap_or_default();
        assert!(description.chars().count() <= 64, "a menu has one line for it: {word}");
    }
}

#[test]
fn zsh_completes_values_profiles_and_files() {
    let Some(shell) = Shell::new("zsh", "_ranklaunch") else { return };
    // The driver types a TAB in a separate terminal, and the widget shows what it would offer.
    let driver = shell.path("driver.zsh");
    std::fs::write(&driver, include_str!("../programs/complete.zsh")).expect("a script");
    let driver = driver.to_str().expect("a plain path").to_owned();
    check(|line| shell.offered("zsh", &["-f"], &driver, line));
    assert!(Path::new(&driver).exists());
}
