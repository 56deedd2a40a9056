//! Comparison of a forked rank with an unforked one: below ranklaunch alone, below a real torchrun, and as plain
//! Python. Every allowed difference is listed here, and in docs/warm.md with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Ended, Launcher, cached_python, program, python, run_args, skipped};
use serde_json::Value;

/// Properties by name.
type Properties = BTreeMap<String, Value>;

/// The program that starts the ranks.
#[derive(Debug, Clone, Copy)]
enum Start<'a> {
    Plain,
    Torchrun,
    Ours { engine: &'a str, warm: &'a str },
}
use Start::{Ours, Plain, Torchrun};

const OFF: Start<'_> = Ours { engine: "direct", warm: "off" };
const WARM: Start<'_> = Ours { engine: "direct", warm: "required" };

/// Variables that ranklaunch sets for each of two ranks on two CPUs. The others get the same, for comparison.
const GIVEN: [(&str, &str); 3] =
    [("OMP_NUM_THREADS", "1"), ("PYTHONFAULTHANDLER", "1"), ("PYTHONUNBUFFERED", "1")];

/// A run that reads the properties of two ranks, or of one if `start` is plain Python.
struct Look<'a> {
    python: PathBuf,
    /// Options of ranklaunch.
    settings: &'a [&'a str],
    /// Options before the name of the program, such as `-m`.
    options: &'a [&'a str],
    program: OsString,
    arguments: &'a [&'a str],
    environment: &'a [(&'a str, &'a str)],
}

impl Default for Look<'_> {
    fn default() -> Self {
        let program = program("properties.py").into_os_string();
        let (settings, options, arguments) = (&[], &[], &[]);
        Look { python: python(), settings, options, program, arguments, environment: &GIVEN }
    }
}

impl Look<'_> {
    fn at(&self, start: Start<'_>) -> Vec<Properties> {
        let python = self.python.as_os_str();
        let ranks = if matches!(start, Plain) { 1 } else { 2 };
        let mut args: Vec<OsString> = match start {
            Plain => vec!["-u".into()],
            Torchrun => {
                let words =
                    ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"];
                words.iter().map(OsString::from).collect()
            }
            Ours { engine, warm } => {
                let mut args = run_args(engine, 2);
                args.extend(["--warm", warm, "--python"].map(OsString::from));
                args.push(python.into());
                args.extend(self.settings.iter().map(OsString::from));
                args.push("--".into());
                args
            }
        };
        args.extend(self.options.iter().map(OsString::from));
        args.extend([self.program.clone(), "--to".into(), "seen".into()]);
        args.extend(self.arguments.iter().map(OsString::from));
        let launcher = match start {
            Ours { .. } => Launcher::new(args.clone()),
            Plain | Torchrun => Launcher::new(Vec::<OsString>::new()),
        };
        let launcher =
            self.environment.iter().fold(launcher, |to, (name, value)| to.env(name, value));
        let to = launcher.folder().join("seen");
        std::fs::create_dir(&to).expect("a folder");
        let ended = match start {
            Ours { .. } => launcher.run().expect_nothing_left(),
            Torchrun => launcher.program(&self.python, &args).wait(),
            Plain => launcher.env("RANK", "0").program(&self.python, &args).wait(),
        };
        let ended = ended.expect_code(0);
        expect_forked(&ended);
        let folder = ended.folder().display().to_string();
        let seen = (0..ranks).map(|rank| {
            let text = std::fs::read(to.join(format!("{rank}.json"))).expect("it was written");
            let text = String::from_utf8_lossy(&text).replace(&folder, "FOLDER");
            serde_json::from_str(&text).expect("JSON")
        });
        seen.collect()
    }
}

/// Fails if ranks were to be forked and were not.
#[track_caller]
fn expect_forked(ended: &Ended) {
    let said = ["no warm start", "without the warmed interpreter"];
    assert!(!said.iter().any(|words| ended.err.contains(words)), "{}", ended.err);
}

/// Names of the properties that differ, except `fresh`, of which two ranks must share nothing.
fn different(one: &Properties, other: &Properties) -> BTreeSet<String> {
    let of_either: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differ = |name: &&String| *name != "fresh" && one.get(*name) != other.get(*name);
    of_either.into_iter().filter(differ).cloned().collect()
}

/// Fails with both values of each difference that is not `allowed`.
#[track_caller]
fn expect_only(what: &str, allowed: &[&str], one: &Properties, other: &Properties) {
    let is_allowed = |name: &str| {
        let is_of =
            |entry: &&str| entry.strip_suffix('*').is_some_and(|start| name.starts_with(start));
        allowed.iter().any(|entry| *entry == name || is_of(entry))
    };
    let found = different(one, other);
    let wrong: Vec<_> = found
        .iter()
        .filter(|name| !is_allowed(name))
        .map(|name| (name, one.get(name), other.get(name)))
        .collect();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

/// Names of the values that two ranks have drawn in common.
fn drawn_alike(ranks: &[Properties]) -> BTreeSet<String> {
    let drawn = |rank: usize| ranks[rank]["fresh"].as_object().expect("an object").clone();
    let (first, second) = (drawn(0), drawn(1));
    first
        .into_iter()
        .filter(|(name, value)| second.get(name) == Some(value))
        .map(|one| one.0)
        .collect()
}

/// Differences that a forked rank may show.
const OF_WARM: [&str; 3] = ["process.start_variables", "sys.importer_cache", "sys.modules_order"];

#[test]
fn forked_rank_equals_an_unforked_one() {
    expect_alike_below("direct");
}

#[test]
#[ignore = "minutes of a CPU: make test SUITE=warm"]
fn forked_torchrun_rank_equals_an_unforked_one() {
    expect_alike_below("torchrun");
}

fn expect_alike_below(engine: &str) {
    let look = Look::default();
    let alone = look.at(Ours { engine, warm: "off" });
    let forked = look.at(Ours { engine, warm: "required" });
    assert!(forked[0].len() >= 400 && forked[1].len() >= 350, "{}", forked[1].len());
    for (alone, forked) in alone.iter().zip(&forked) {
        expect_only(engine, &OF_WARM, alone, forked);
        let found = different(alone, forked);
        assert_eq!(found.len(), OF_WARM.len(), "one is gone: {found:?}");
    }
    assert_eq!(drawn_alike(&forked), BTreeSet::new(), "{engine}");
}

/// Differences that ranklaunch itself makes, with and without --warm: the ranks write to pipes instead of the files of
/// others, below a process that knows its job and shares a session with them, and the kernel kills them first.
const OF_RANKLAUNCH: [&str; 11] = [
    "environment.names",
    "environment.ours",
    "process.descriptors",
    "process.leads_session",
    "process.oom",
    "process.parent",
    "process.parents_session",
    "stderr.file",
    "stderr.seekable",
    "stdout.file",
    "stdout.seekable",
];
/// Properties that a launcher gives its ranks and plain Python lacks: variables, peers to talk to, and a process
/// group.
const OF_A_JOB: [&str; 3] = ["environment.world", "job.*", "process.leads_group"];

#[test]
#[ignore = "minutes of a CPU: make test SUITE=warm"]
fn forked_rank_equals_torchrun_and_plain_python() {
    let look = Look { settings: &["--inject", "off"], ..Look::default() };
    let by_torchrun = look.at(Torchrun);
    let forked = look.at(Ours { engine: "torchrun", warm: "required" });
    for (theirs, forked) in by_torchrun.iter().zip(&forked) {
        expect_only("torchrun", &[&OF_WARM[..], &OF_RANKLAUNCH].concat(), theirs, forked);
        let names = |properties: &Properties| -> BTreeSet<String> {
            serde_json::from_value(properties["environment.names"].clone()).expect("names")
        };
        let added: Vec<String> = names(forked).difference(&names(theirs)).cloned().collect();
        // VIRTUAL_ENV is set if the interpreter belongs to a virtual environment.
        let known = ["RANKLAUNCH_ATTEMPT", "RANKLAUNCH_JOB", "VIRTUAL_ENV"];
        let is_known = |name: &String| known.contains(&name.as_str());
        assert!(added.iter().all(is_known), "{added:?}");
    }
    let plain = look.at(Plain);
    let forked = look.at(WARM);
    let allowed = [&OF_WARM[..], &OF_RANKLAUNCH, &OF_A_JOB].concat();
    expect_only("python", &allowed, &plain[0], &forked[0]);
}

/// A module, with variables that change the interpreter, the libraries and the locale.
#[test]
#[ignore = "minutes of a CPU: make test SUITE=warm"]
fn forked_module_equals_an_unforked_one() {
    let folder = program("properties.py").parent().expect("a folder").display().to_string();
    let environment = [
        ("PYTHONPATH", folder.as_str()),
        ("PYTHONHASHSEED", "7"),
        ("PYTHONOPTIMIZE", "1"),
        ("PYTHONWARNINGS", "default"),
        ("PYTHONSAFEPATH", "1"),
        ("PYTHONINTMAXSTRDIGITS", "5000"),
        ("OMP_NUM_THREADS", "3"),
        ("MKL_NUM_THREADS", "2"),
        ("OPENBLAS_NUM_THREADS", "2"),
        ("LC_ALL", "C"),
        ("TZ", "Asia/Shanghai"),
        ("TMPDIR", "/var/tmp"),
    ];
    let look = Look {
        options: &["-m"],
        program: "properties".into(),
        environment: &environment,
        ..Look::default()
    };
    let (alone, forked) = (look.at(OFF), look.at(WARM));
    for (alone, forked) in alone.iter().zip(&forked) {
        expect_only("-m", &OF_WARM, alone, forked);
    }
    assert_eq!(drawn_alike(&forked), BTreeSet::new());
    assert_eq!(alone[0]["seeded.hash"], forked[1]["seeded.hash"]);
}

/// Control: a rank that differs is found, and so are two ranks that draw the same values.
#[test]
fn a_planted_difference_is_found() {
    let planted = Look { arguments: &["--plant"], ..Look::default() };
    let (alone, forked) = (Look::default().at(OFF), planted.at(WARM));
    let found = different(&alone[1], &forked[1]);
    for name in
        ["process.umask", "signals.ignored", "signals.usr1", "sys.path", "environment.names"]
    {
        assert!(found.contains(name), "{name} {found:?}");
    }
    assert!(drawn_alike(&forked).contains("python"));
    assert!(drawn_alike(&alone).is_empty());
}

/// torch.compile builds with a C++ compiler in its own workers.
#[test]
#[ignore = "minutes of a CPU: make test SUITE=warm"]
fn torch_compiles_in_a_forked_rank() {
    let look = Look { arguments: &["--compile"], ..Look::default() };
    let (alone, forked) = (look.at(OFF), look.at(WARM));
    for (alone, forked) in alone.iter().zip(&forked) {
        assert_eq!(forked["compile.built"], true, "{forked:?}");
        expect_only("torch.compile", &OF_WARM, alone, forked);
    }
}

/// The versions of tests/python/older_torch.sh.
#[test]
#[ignore = "minutes of a CPU: make test SUITE=warm"]
fn forked_rank_of_older_torch_equals_unforked_one() {
    for version in ["2.6.0", "2.3.1"] {
        let Some(python) = cached_python(&format!("torch-{version}")) else {
            skipped(format!("torch {version} is not installed: tests/python/older_torch.sh does"));
            continue;
        };
        // With 2.6, rank 0 stays in its gloo group after processes were started, with and without --warm. With
        // PYTHONOPTIMIZE as well, each process would compile torch again.
        let environment = &[("PYTHONDONTWRITEBYTECODE", "1")];
        let look = Look { python, arguments: &["--alone"], environment, ..Look::default() };
        let (alone, forked) = (look.at(OFF), look.at(WARM));
        for (alone, forked) in alone.iter().zip(&forked) {
            assert_eq!(
                alone["torch.version"].as_str().map(|it| it.starts_with(version)),
                Some(true)
            );
            expect_only(version, &OF_WARM, alone, forked);
        }
        assert_eq!(drawn_alike(&forked), BTreeSet::new(), "{version}");
    }
}

/// The exit code, the output of either stream, and the launcher's name for the end.
type Ending = (i32, String, String);

/// Every way in which a program ends, with identical output.
#[test]
fn forked_rank_ends_like_an_unforked_one() {
    let ways = [
        "end",
        "raise",
        "chain",
        "group",
        "notes",
        "interrupt",
        "exit",
        "exit-words",
        "exit-none",
        "exit-object",
        "exit-big",
        "exit-true",
        "exit-negative",
        "exit-huge",
        "exit-float",
        "exit-empty",
        "exit-tuple",
        "exit-unprintable",
        "exit-bytes",
        "exit-in-thread",
        "exit-in-exit-handler",
        "exit-in-handler",
        "os-exit",
        "abort",
        "segv",
        "KILL",
        "TERM",
        "USR1",
        "PIPE",
        "INT",
        "recursion",
        "syntax",
        "thread",
        "slow-thread",
        "daemon-thread",
        "unraisable",
        "warn",
        "warn-error",
        "log",
        "bad-exit-handler",
        "hook",
        "pdb",
        "pdb-post-mortem",
        "fork",
        "fork-raise",
        "closed-output",
        "no-output",
        "no-error",
        "dump-later",
        "async",
        "pool",
        "exec",
    ];
    for way in ways {
        let (alone, forked) = (ending(way, "off"), ending(way, "required"));
        assert!(way == "exec" || alone.1.contains("buffered"), "{way} {alone:?}");
        assert_eq!(alone, forked, "{way}");
        assert_eq!(plain_ending(way), forked, "{way}");
    }
}

fn ending(way: &str, warm: &str) -> Ending {
    let launcher = super::job("direct", 1, warm, &[], "endings.py");
    let ended = launcher.args([way]).run().expect_nothing_left();
    expect_forked(&ended);
    let folder = ended.node_folder(0).join("attempt-0");
    let of = |name: &str| {
        let said = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        without_addresses(&said)
    };
    (ended.code, of("rank-00000.out"), of("rank-00000.err"))
}

fn plain_ending(way: &str) -> Ending {
    let args = ["-u".into(), program("endings.py").into_os_string(), way.into()];
    let launcher = Launcher::new(Vec::<OsString>::new());
    let launcher = GIVEN.iter().fold(launcher, |to, (name, value)| to.env(name, value));
    let ended = launcher.program(Path::new(&python()), &args).wait();
    (ended.code, without_addresses(&ended.out), without_addresses(&ended.err))
}

/// faulthandler names a thread by its address.
fn without_addresses(text: &str) -> String {
    let mut words = text.split("0x");
    let mut plain = words.next().unwrap_or_default().to_owned();
    for word in words {
        plain.push_str("0x…");
        plain.push_str(word.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()));
    }
    plain
}

/// Lines that coverage.py has seen, with its tracer begun by the program or by the start of the interpreter.
#[test]
fn coverage_of_forked_and_unforked_rank_is_equal() {
    let Some(python) = cached_python("coverage") else {
        skipped("coverage is not installed: tests/python/beside_torch.sh does");
        return;
    };
    let covered = |warm: &str| {
        let mut args = run_args("direct", 1);
        args.extend(["--inject", "off", "--warm", warm, "--python"].map(OsString::from));
        args.extend([python.clone().into(), "--".into()]);
        args.extend(["-m", "coverage", "run", "--branch", "--data-file=seen"].map(OsString::from));
        args.extend([program("endings.py").into_os_string(), "fork".into()]);
        let ended = Launcher::new(args).run().expect_code(0).expect_nothing_left();
        expect_forked(&ended);
        let mut report = Command::new(&python);
        report.args(["-m", "coverage", "json", "--data-file=seen", "-o", "-"]);
        let said = report.current_dir(ended.folder()).output().expect("it runs").stdout;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("executed_lines"), "{said} {:?}", ended.out);
        let report = said.lines().find(|line| line.starts_with('{')).expect("JSON");
        let report: Value = serde_json::from_str(report).expect("JSON");
        let files = report["files"].as_object().expect("files").clone();
        assert_eq!(files.len(), 1, "{files:?}");
        let file = files.into_values().next().expect("one");
        assert!(file["executed_lines"].as_array().is_some_and(|lines| lines.len() > 20), "{file}");
        [file["executed_lines"].clone(), file["executed_branches"].clone()]
    };
    assert_eq!(covered("off"), covered("required"));
}
