//! What the READMEs show is true: their commands run, their options and codes
//! exist, and both languages show the same commands.
//!
//! A block of `sh` after `<!-- test -->` must end with 0, on a node that has
//! eight GPUs. Each line of the `text` block after `<!-- shows -->` must stand
//! in what the commands before it printed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use harness::fake_nvml::FakeNvml;
use ranklaunch::verdict::Verdict;

const ENGLISH: &str = include_str!("../../README.md");
const CHINESE: &str = include_str!("../../README.zh-CN.md");

/// Commands and the lines that they must print.
struct Example {
    commands: String,
    shows: Vec<String>,
}

/// The text of the fenced block that begins at or after `from`, and what follows it.
fn fenced<'a>(from: &'a str, language: &str) -> (&'a str, &'a str) {
    let open = format!("```{language}\n");
    let (between, rest) = from.split_once(&open).expect("a block follows the mark");
    assert_eq!(between.trim(), "", "the mark stands right before its block");
    rest.split_once("```").expect("the block ends")
}

fn examples(readme: &str) -> Vec<Example> {
    readme
        .split("<!-- test -->")
        .skip(1)
        .map(|part| {
            let (commands, rest) = fenced(part, "sh");
            let shows = match rest.trim_start().strip_prefix("<!-- shows -->") {
                Some(rest) => fenced(rest, "text").0.lines().map(str::to_owned).collect(),
                None => Vec::new(),
            };
            Example { commands: commands.to_owned(), shows }
        })
        .collect()
}

fn run(readme: &str, locale: &str) {
    let fake = FakeNvml::new(&[("GPUS", "8")]);
    let executable = Path::new(env!("CARGO_BIN_EXE_ranklaunch"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", executable.parent().expect("a folder").display());
    let examples = examples(readme);
    assert!(examples.len() >= 5, "the marks are found");
    for Example { commands, shows } in examples {
        let folder = tempfile::tempdir().expect("a folder");
        // As in a checkout of this repository.
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
        std::os::unix::fs::symlink(packaging, folder.path().join("packaging")).expect("a link");
        // As in the folder of the reader's own scripts.
        for script in ["generate.py", "train.py"] {
            std::fs::write(folder.path().join(script), "").expect("a script");
        }
        let output = Command::new("sh")
            .args(["-e", "-c", &format!("exec 2>&1\n{commands}")])
            .current_dir(folder.path())
            .env_clear()
            .envs([("PATH", path.as_str()), ("LANG", locale)])
            // The reader's machine has torch.
            .env(
                "VIRTUAL_ENV",
                harness::python().parent().and_then(Path::parent).expect("a folder"),
            )
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path())
            // Other tests may be running jobs on this machine.
            .env("RANKLAUNCH_STALE", "off")
            .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
            .output()
            .expect("sh runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}\n{commands}\n{said}", output.status);
        for line in shows {
            assert!(said.contains(&line), "{line:?} is not in what it prints\n{commands}\n{said}");
        }
    }
}

#[test]
fn the_english_commands_do_what_they_show() {
    run(ENGLISH, "C.UTF-8");
}

#[test]
fn the_chinese_commands_do_what_they_show() {
    run(CHINESE, "zh_CN.UTF-8");
}

#[test]
fn both_languages_hold_the_same_commands_and_headings() {
    let commands = |readme| examples(readme).into_iter().map(|example| example.commands);
    assert!(commands(ENGLISH).eq(commands(CHINESE)));
    let levels = |readme: &str| -> Vec<usize> {
        let headings = readme.lines().filter(|line| line.starts_with('#'));
        headings.map(|line| line.chars().take_while(|mark| *mark == '#').count()).collect()
    };
    assert_eq!(levels(ENGLISH), levels(CHINESE));
}

/// packaging/startup.sh, beside the executable, as `bash FILE` starts it.
#[test]
fn the_startup_script_becomes_the_launcher() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/startup.sh");
    std::fs::copy(script, folder.path().join("startup.sh")).expect("a copy");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ranklaunch"), folder.path().join("ranklaunch"))
        .expect("a link");
    let output = Command::new("bash")
        .arg(folder.path().join("startup.sh"))
        .args(["--engine", "direct", "--device", "cpu", "--nproc-per-node", "1", "--stale", "off"])
        .args(["--", "sh", "-c", "echo \"$PYTORCH_CUDA_ALLOC_CONF\"; exit 7"])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("RANKLAUNCH_LOG_DIR", folder.path().join("logs"))
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(said.contains("expandable_segments"), "the profile is wan22: {said}");
}

/// Words of `text` that begin with `--`.
fn options(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-' && letter != '_')
        .filter(|word| word.len() > 3 && word.starts_with("--"))
        .map(str::to_owned)
        .collect()
}

/// The section between the heading and the next one of its level.
fn section<'a>(readme: &'a str, heading: &str) -> &'a str {
    let (_, rest) = readme.split_once(&format!("\n## {heading}\n")).expect("the heading is there");
    rest.split("\n## ").next().unwrap_or(rest)
}

/// The subcommands that `--help` lists.
fn subcommands(help: &str) -> Vec<String> {
    let (_, list) = help.split_once("\nCommands:\n").expect("they are listed");
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn every_option_is_named_and_every_named_option_exists() {
    let help = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ranklaunch"))
            .args(arguments)
            .arg("--help")
            .env_clear()
            .output()
            .expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    // Only what begins a line is defined there; the rest is mentioned.
    let defined = |text: String| -> BTreeSet<String> {
        let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        lines.flat_map(|line| options(line.split("  ").next().unwrap_or(line))).collect()
    };
    let mut known = defined(help(&[]));
    assert!(known.len() > 30, "{known:?}");
    let commands = subcommands(&help(&[]));
    assert!(commands.len() > 5, "{commands:?}");
    for command in &commands {
        known.extend(defined(help(&[command])));
    }
    for (readme, heading) in [(ENGLISH, "Command line"), (CHINESE, "命令行")] {
        let section = section(readme, heading);
        assert_eq!(options(section), known);
        for command in &commands {
            assert!(section.contains(command), "{command} is not named");
        }
    }
}

#[test]
fn every_code_is_in_the_table() {
    for (readme, heading) in [(ENGLISH, "Exit codes"), (CHINESE, "退出码")] {
        let table: Vec<i32> = section(readme, heading)
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
            .collect();
        let mut codes: Vec<i32> = Verdict::ALL.iter().map(|verdict| verdict.code()).collect();
        codes.insert(0, 0);
        assert_eq!(table, codes);
    }
}
