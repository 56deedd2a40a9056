//! The guides to other launchers are complete and true: every option of the real `torchrun`,
//! `accelerate launch` and `deepspeed` is in a table, and the program accepts or explains it as the
//! last column says.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use harness::skipped;

fn guide(end: &str) -> String {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/migration").display().to_string();
    std::fs::read_to_string(file + end).expect("the guide")
}

/// The table's entry for an option that is typed unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Typed {
    Taken,
    Explained,
}

/// The options of the table below a heading, without leading dashes; `…` stands for further letters.
fn table(page: &str, heading: &str) -> BTreeSet<(String, Typed)> {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let section = rest.split("\n## ").next().expect("a first part");
    let mut options = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `-")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let (names, last) = (cells[0], cells.last().expect("a last cell").trim());
        let typed = match last {
            "taken" | "直接可用" => Typed::Taken,
            "advice" | "给出说明" => Typed::Explained,
            other => panic!("{other}: {row}"),
        };
        for name in names.split('`').skip(1).step_by(2) {
            options.insert((name.to_owned(), typed));
        }
    }
    assert!(options.len() > 10, "{heading}: {options:?}");
    options
}

const TABLES: [&str; 3] = ["torchrun", "accelerate launch", "deepspeed"];

#[test]
fn both_languages_have_the_same_options() {
    for heading in TABLES {
        assert_eq!(table(&guide(".md"), heading), table(&guide(".zh-CN.md"), heading));
    }
}

/// Values for testing the accepted options; the others are switches.
const VALUES: &[(&str, &str)] = &[
    ("--nproc-per-node", "1"),
    ("--num-gpus", "1"),
    ("--num-accelerators", "1"),
    ("--nnodes", "1"),
    ("--num-nodes", "1"),
    ("--num-machines", "1"),
    ("--node-rank", "0"),
    ("--machine-rank", "0"),
    ("--master-addr", "127.0.0.1"),
    ("--main-process-ip", "127.0.0.1"),
    ("--master-port", "29501"),
    ("--main-process-port", "29501"),
    ("--rdzv-endpoint", "127.0.0.1:29501"),
    ("--rdzv-backend", "static"),
    ("--rdzv-id", "7"),
    ("--max-restarts", "1"),
    ("--log-dir", "logs"),
    ("--module", "this"),
    ("-m", "this"),
    ("--env", "A=1"),
];

/// The output of `plan` with this option, and its kind if it is known.
fn typed(option: &str) -> (String, Option<Typed>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ranklaunch"));
    command.args(["plan", "--lang", "en", "--device", "cpu", "--engine", "direct", option]);
    let value = VALUES.iter().find(|(name, _)| *name == option.replace('_', "-"));
    command.args(value.map(|(_, value)| value)).args(["--", "sh", "-c", "true"]);
    let output = command.current_dir(folder.path()).env_clear().output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let refused = said.contains("exit code 64 (flags)");
    let explained = said.contains("is an option of ")
        || (refused
            && !said.contains("arguments of the script go behind it")
            && !said.contains("did you mean"));
    let known = match (refused, explained) {
        (false, _) => Some(Typed::Taken),
        (true, true) => Some(Typed::Explained),
        (true, false) => None,
    };
    (said, known)
}

#[test]
fn every_option_is_handled_as_the_tables_say() {
    for heading in TABLES {
        for (option, says) in table(&guide(".md"), heading) {
            if option.ends_with('…') {
                continue;
            }
            // Both spellings of a name that has two are typed.
            let name = option.trim_start_matches('-');
            let other = option.replace(name, &name.replace('-', "_"));
            for spelling in BTreeSet::from([option.clone(), other]) {
                let (said, known) = typed(&spelling);
                assert_eq!(known, Some(says), "{heading} {spelling}\n{said}");
            }
        }
    }
    // The control: an option of no launcher.
    assert_eq!(typed("--frobnicate").1, None);
}

/// The options of a launcher's own parser, one per line, with all of their names.
fn real(program: &str) -> Option<Vec<Vec<String>>> {
    let output =
        Command::new(harness::python()).args(["-c", program]).output().expect("python runs");
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).expect("text");
    let names = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    Some(text.lines().map(names).collect())
}

const PRINT: &str = "
for action in parser._actions:
    if action.option_strings and action.dest != 'help':
        print(*action.option_strings)
";

/// Replaces `_` by `-`, since both are accepted.
fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

fn complete(heading: &str, program: &str) {
    let listed: Vec<String> =
        table(&guide(".md"), heading).into_iter().map(|(name, _)| name).collect();
    let has = |name: &str| {
        listed.iter().any(|known| match known.strip_suffix('…') {
            Some(beginning) => name.starts_with(beginning),
            None => known == name,
        })
    };
    let Some(options) = real(&(program.to_owned() + PRINT)) else {
        return skipped(format!("{heading} is not installed in {}", harness::python().display()));
    };
    assert!(options.len() > 15, "{options:?}");
    let missing: Vec<_> =
        options.iter().filter(|names| !names.iter().any(|name| has(&dashed(name)))).collect();
    assert!(missing.is_empty(), "{heading}: not in docs/guide/migration.md: {missing:?}");
    // The program knows the options that the table has by name, and those of a family.
    for names in options.iter().filter(|names| names.iter().any(|name| has(&dashed(name)))) {
        let name = names.iter().max_by_key(|name| name.len()).expect("a name");
        let (said, known) = typed(name);
        assert!(known.is_some(), "{heading} {name}\n{said}");
    }
    // The control: a word that is no option has no row.
    assert!(!has("--frobnicate"));
}

#[test]
fn every_option_of_torchrun_is_in_the_table() {
    complete(
        "torchrun",
        "from torch.distributed.run import get_args_parser\nparser = get_args_parser()\n",
    );
}

#[test]
fn every_option_of_accelerate_is_in_the_table() {
    complete(
        "accelerate launch",
        "from accelerate.commands.launch import launch_command_parser\nparser = launch_command_parser()\n",
    );
}
