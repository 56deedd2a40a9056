//! The contributor's page fits on a screen, its commands exist, and both languages have the same commands.

use std::path::Path;

const PAGES: [&str; 2] = ["CONTRIBUTING.md", "CONTRIBUTING.zh-CN.md"];

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The lines of the fenced blocks, without their comments.
fn commands(page: &str) -> Vec<&str> {
    let blocks = page.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(|block| block.lines().skip(1));
    lines.map(|line| line.split(" #").next().unwrap_or(line).trim()).collect()
}

/// The fault of a command: a target that the Makefile lacks, or a suite or a test that does not exist.
fn problem(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let value = |name: &str| {
        let at = command.find(&format!("{name}="))? + name.len() + 1;
        command[at..].trim_start_matches('"').split(['"', ' ']).next()
    };
    let exists = |suite: &str, test: &str| {
        let place = format!("tests/{suite}");
        let mut parts = test.split("::");
        let module = parts.next().unwrap_or_default();
        let files = [format!("{place}/{module}.rs"), format!("{place}/{module}/mod.rs")];
        let text =
            files.iter().find(|file| Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists());
        let name = parts.next().unwrap_or_default();
        text.is_some_and(|file| name.is_empty() || read(file).contains(&format!("fn {name}(")))
    };
    let is_known = match words[..] {
        ["make"] => true,
        ["make", "test", "SUITE=one", ..] => {
            let suite = command.split("--test ").nth(1).and_then(|rest| rest.split('"').next());
            suite.zip(value("NAME")).is_some_and(|(suite, name)| exists(suite, name))
        }
        ["make", goal, ref more @ ..] => {
            let suite = more.first().and_then(|word| word.strip_prefix("SUITE="));
            let rule = suite.map_or(goal.to_owned(), |suite| format!("suite-{suite}"));
            read("Makefile").contains(&format!("\n{rule}:"))
        }
        ["cargo", "test", "-p", package] => {
            package.strip_prefix("ranklaunch-").is_some_and(|name| {
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("src")
                    .join(name)
                    .join("Cargo.toml")
                    .exists()
            })
        }
        ["cargo", "test", "--test", suite, module] => exists(suite, module),
        ["cargo", "run", "--", command, ..] => {
            read("docs/guide/command-line.md").contains(&format!("ranklaunch {command} "))
        }
        _ => false,
    };
    (!is_known).then(|| command.to_owned())
}

#[test]
fn contributing_page_is_short_and_its_commands_exist() {
    let [english, chinese] = PAGES.map(read);
    for (page, text) in PAGES.iter().zip([&english, &chinese]) {
        assert!(text.lines().count() <= 50, "{page}: {} lines", text.lines().count());
        let known = commands(text);
        assert!(known.len() >= 8, "{page}: {known:?}");
        let wrong: Vec<String> = known.into_iter().filter_map(problem).collect();
        assert_eq!(wrong, Vec::<String>::new(), "{page}");
    }
    assert_eq!(commands(&english), commands(&chinese));
}

#[test]
fn missing_command_is_found() {
    for wrong in [
        "make everything",
        "cargo test -p ranklaunch-nothing",
        "cargo test --test launch nothing::",
        "cargo run -- dance",
        "make test SUITE=one PROGRAM=\"--test launch\" NAME=torchrun::nothing",
        "rm -rf target",
    ] {
        assert!(problem(wrong).is_some(), "{wrong}");
    }
}
