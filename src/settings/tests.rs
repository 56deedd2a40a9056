//! The promises of settings: who wins, what is refused and in which words, and the embedded jobs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use proptest::prelude::*;

use harness::reference::{self, REFERENCE};

use super::*;
use crate::lang::Text;
use crate::verdict::{Family, Id, Severity, Verdict};

fn options(line: &[&str]) -> cli::Options {
    let words = std::iter::once("ranklaunch").chain(line.iter().copied()).map(OsString::from);
    match cli::parse(words) {
        Ok(cli::Cli { command: cli::Command::Run(options) }) => options,
        other => panic!("{line:?}: {other:?}"),
    }
}

/// A node with these variables and an empty file system.
fn host(variables: &[(&str, &str)]) -> Host {
    let environment = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    Host::replayed("/nonexistent", environment)
}

/// A profile file that lives as long as the folder.
fn file(text: impl AsRef<[u8]>) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("job.toml");
    std::fs::write(&path, text).expect("a file");
    let path = path.to_str().expect("a plain path").to_owned();
    (folder, path)
}

fn read_profile(text: &str) -> Result<Settings, Refusal> {
    let (_folder, path) = file(text);
    let options = cli::Options { profile: Some(path.into()), ..cli::Options::default() };
    read(&options, &host(&[]))
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[test]
fn the_flag_beats_the_variable_which_beats_the_profile_which_beats_the_default() {
    let (_folder, path) = file("[job]\n\nnnodes = 4\n[launch]\nwait_timeout = '2m'\n");
    let profile = ["--profile", &path];
    let variable = host(&[("RANKLAUNCH_NNODES", "3"), ("RANKLAUNCH_WAIT_TIMEOUT", "")]);

    let with = |more: &[&str], host: &Host| {
        read(&options(&[&profile, more].concat()), host).expect("settings")
    };
    let flag = with(&["--nnodes", "2"], &variable);
    assert_eq!(flag.nnodes, Some(Sourced::new(2, Source::Flag("--nnodes".into()))));
    let set = with(&[], &variable);
    assert_eq!(set.nnodes, Some(Sourced::new(3, Source::Environment("RANKLAUNCH_NNODES".into()))));
    let plain = with(&[], &host(&[]));
    let from_file = |line| Source::Profile { file: path.clone(), line };
    assert_eq!(plain.nnodes, Some(Sourced::new(4, from_file(3))));
    assert_eq!(plain.profile.as_deref(), Some(path.as_str()));

    // The empty variable counts as unset, and somebody is told.
    assert_eq!(set.wait_timeout, Sourced::new(Duration::from_secs(120), from_file(5)));
    assert!(set.warnings.iter().any(|w| w.text.en.contains("RANKLAUNCH_WAIT_TIMEOUT")));

    let none = read(&options(&[]), &host(&[])).expect("settings");
    assert_eq!((none.nnodes, none.profile), (None, None));
    assert_eq!(none.wait_timeout, Sourced::default_value(Duration::from_secs(1800)));
    assert_eq!(none.log_cap_rank.value, 256 << 20);
    assert_eq!(none.program, None);
    assert_eq!(none.warnings, []);
}

#[test]
fn every_row_takes_its_example_as_flag_variable_and_profile_line() {
    for row in TABLE {
        let Take::One(put) = row.take else { continue };
        let mut settings = defaults(&host(&[]));
        assert!(put(&mut settings, row.example, Source::Default).is_some(), "{}", row.name);
        if let Some(variable) = row.variable() {
            let settings = read(&options(&[]), &host(&[(&variable, row.example)]));
            assert!(settings.is_ok(), "{variable}: {settings:?}");
        }
        if let Some(table) = row.table {
            let value = match row.toml {
                table::Toml::Text => format!("'{}'", row.example),
                table::Toml::TextOrNumber => format!("\"{}\"", row.example),
                table::Toml::Number | table::Toml::Boolean => row.example.to_owned(),
            };
            let profile = format!("[{table}]\n{} = {value}", row.key());
            let settings = read_profile(&profile);
            assert!(settings.is_ok(), "{profile}: {settings:?}");
        }
    }
}

#[test]
fn a_bad_value_is_refused_with_place_value_and_what_is_allowed() {
    for row in TABLE {
        // These take any text that is not empty.
        let bad = match row.name {
            "profile" | "module" | "chdir" | "python" | "conda-env" | "log-dir"
            | "termination-log" | "host-root" => "a\u{1}b",
            _ => "two nodes",
        };
        let (Some(variable), false) = (row.variable(), matches!(row.take, Take::Apart)) else {
            continue;
        };
        let refusal = read(&options(&[]), &host(&[(&variable, bad)])).expect_err(&variable);
        let id = format!("settings.{}", row.name.replace('-', "_"));
        assert_eq!((refusal.verdict, refusal.id.as_str()), (Verdict::Usage, id.as_str()));
        let Text { en, zh } = &refusal.text;
        for text in [en, zh] {
            assert!(text.contains(&variable), "{text}");
            // A severity's variable is a list: the first entry is at fault.
            let shown = bad.split([' ', '\u{1}']).next().expect("a word");
            assert!(text.contains(shown), "{text}");
        }
        assert!(en.contains(&*row.allowed.text().en), "{en}");
        assert!(zh.contains(&*row.allowed.text().zh), "{zh}");
        assert!(refusal.hint.en.contains(&format!("--{}", row.name)), "{}", refusal.hint.en);
    }
}

#[test]
fn a_flag_overrides_a_variable_that_would_be_refused() {
    let link = host(&[("RANKLAUNCH_MASTER_PORT", "tcp://10.0.0.1:29500")]);
    let refusal = read(&options(&[]), &link).expect_err("a service link");
    assert!(refusal.hint.en.contains("Kubernetes Service"), "{}", refusal.hint.en);
    let settings = read(&options(&["--master-port", "29500"]), &link).expect("settings");
    assert_eq!(settings.master_port.map(|port| port.value), Some(29500));
}

#[test]
fn text_that_is_not_utf8_is_shown_escaped() {
    let bad = OsString::from_vec(b"a\xffb".to_vec());
    let given = cli::Options { nnodes: Some(bad.clone()), ..cli::Options::default() };
    let refusal = read(&given, &host(&[])).expect_err("not UTF-8");
    assert!(refusal.text.en.contains("`a\\xffb`"), "{}", refusal.text.en);

    // The value of a rank's variable is its own business.
    let given = cli::Options {
        env: vec![OsString::from_vec(b"A=\xff".to_vec())],
        ..cli::Options::default()
    };
    let settings = read(&given, &host(&[])).expect("settings");
    assert_eq!(settings.env[0].value, OsString::from_vec(vec![0xff]));
}

#[test]
fn unknown_variables_are_named_with_the_nearest_and_ours_are_not() {
    let node = host(&[
        ("RANKLAUNCH_NNODE", "2"),
        ("RANKLAUNCH_SECRET", "x"),
        ("RANKLAUNCH_JOB", "x"),
        ("RANKLAUNCH_SERVICE_HOST", "10.0.0.1"),
        ("RANKLAUNCH_PORT_29500_TCP_ADDR", "10.0.0.1"),
        ("RANKLAUNCH_WHATEVER_IT_IS", "hunter2"),
    ]);
    let warnings = read(&options(&[]), &node).expect("settings").warnings;
    let told: Vec<String> =
        warnings.iter().map(|w| format!("{} | {}", w.text.en, w.hint.en)).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("RANKLAUNCH_NNODE is") && told[0].contains("mean RANKLAUNCH_NNODES?"));
    assert!(told[1].contains("RANKLAUNCH_WHATEVER_IT_IS") && !told[1].contains("hunter2"));
}

#[test]
fn faults_of_a_profile_are_told_with_file_and_line() {
    for (text, line, parts) in [
        ("[job]\nnnode = 2", 2, &["`nnode`", "nnodes"][..]),
        ("[jop]\n", 1, &["`jop`", "[job]"]),
        ("[job]\nconsole = 'all'", 2, &["`console`", "[logs]"]),
        ("nnodes = 2", 1, &["`nnodes`", "[job]"]),
        ("[job]\nnnodes = '2'", 2, &["`nnodes`", "`2`", "whole number"]),
        ("[job]\nnnodes = 0", 2, &["nnodes", "`0`", "1 or more"]),
        ("[job]\n\nengine = 3", 3, &["`engine`", "3", "text in quotes"]),
        ("[job]\nengine = 'slurm'", 2, &["`slurm`", "torchrun, accelerate, deepspeed"]),
        ("[layout]\nrule = 'xdit'", 2, &["`xdit`", "none, ulysses-world or ulysses-ring"]),
        ("[job]\nnested = 1", 2, &["`nested`", "true or false"]),
        ("[job]\nscript = ''", 2, &["`script`"]),
        ("[job]\nscript = 'a.py'\nmodule = 'b'", 3, &["`module`", ":2"]),
        ("[job]\nargs = ['x']", 2, &["`args`", "script ="]),
        ("[job]\nscript = 'a.py'\nargs = [\n 'x',\n 3]", 5, &["`args`", "3"]),
        ("[job]\ncommand = []", 2, &["`command`"]),
        ("[job]\nscript = \"a\\u0000\"", 2, &["NUL"]),
        ("[job\n", 1, &["TOML"]),
        ("[job]\nnnodes = 2\nnnodes = 3", 3, &["TOML"]),
        ("[[select]]\nvalues = { a = 'x' }", 1, &["total_gpus"]),
        ("[[select]]\ntotal_gpus = 8\n[[select]]\ntotal_gpus = 8", 3, &["8", ":2"]),
        ("[[select]]\ntotal_gpus = 8\nvalues.a = '1'\n[[select]]\ntotal_gpus = 4", 4, &["`a`"]),
        ("[[select]]\ntotal_gpus = 8\nvalues.nnodes = '1'", 3, &["`nnodes`", "placeholder"]),
        ("[job]\nnnodes = '2'", 2, &["`nnodes`", "without quotes"]),
        ("[job]\nnnodes = 'two'", 2, &["`two`", "a whole number"]),
        ("[[select]]\ntotal_gpus = '*'\n[[select]]\ntotal_gpus = '*'", 3, &["\"*\"", ":2"]),
        ("[[select]]\ntotal_gpus = 'all'", 2, &["`all`", "\"*\""]),
        ("[[select]]\ntotal_gpus = 0", 2, &["1 or more", "\"*\""]),
        ("[[select]]\ntotal_gpu = 8", 2, &["`total_gpu`", "total_gpus"]),
        ("[select]\ntotal_gpus = 8", 1, &["a list"]),
        ("[env]\nA = true", 2, &["`A`", "true"]),
        ("[env]\n'A B' = '1'", 2, &["`A B`"]),
        ("[severity]\n'shm.sise' = 'fail'", 2, &["`shm.sise`", "shm.size"]),
        ("[severity]\nmemlock = 'bad'", 2, &["`memlock`", "`bad`", "fail, warn or off"]),
        ("[exit]\n83 = 256", 2, &["`83`", "256", "0 to 255"]),
        ("[exit]\n63 = 1", 2, &["`63`"]),
        ("[layout.heads]\nargument = '--task'", 1, &["values"]),
        ("[layout.heads]\nargument='-t'\ndefault='b'\nvalues={a=40}", 3, &["`b`", "values: a"]),
        ("[layout.heads]\nargument='-t'\nvalues={a=0}", 3, &["`a`", "0"]),
        ("[logs]\nlog_cap_rank = '1 PB'", 2, &["`1 PB`", "256MiB"]),
    ] {
        let (_folder, path) = file(text);
        let given = cli::Options { profile: Some(path.clone().into()), ..cli::Options::default() };
        let refusal = read(&given, &host(&[])).expect_err(text);
        assert_eq!(refusal.verdict, Verdict::Usage, "{text}");
        for words in [&refusal.text.en, &refusal.text.zh] {
            assert!(words.contains(&format!("{path}:{line}:")), "{text}: {words}");
        }
        let told = format!("{} | {}", refusal.text.en, refusal.hint.en);
        for part in parts {
            assert!(told.contains(part), "{text}: {part} is missing in {told}");
        }
    }
}

#[test]
fn severities_may_be_written_with_and_without_quotes() {
    let settings =
        read_profile("[severity]\nshm.size = 'fail'\n'gpu.busy' = 'off'\nmemlock='warn'");
    let severities = settings.expect("settings").severities;
    let found: Vec<(Id, Severity)> = severities.iter().map(|(id, s)| (*id, s.value)).collect();
    let expected = [
        (Id::GpuBusy, Severity::Off),
        (Id::ShmSize, Severity::Fail),
        (Id::Memlock, Severity::Warn),
    ];
    assert_eq!(found, expected);
}

#[test]
fn entries_add_up_and_the_stronger_wins_one_by_one() {
    let (_folder, path) = file("[env]\nA = 'file'\nB = 2\n[severity]\nshm.size = 'fail'");
    let node = host(&[
        ("RANKLAUNCH_ENV", "B=variable\nC=1=2, 3\n"),
        ("RANKLAUNCH_SEVERITY", "memlock=off,nofile=fail"),
    ]);
    let given = options(&[
        "--profile",
        &path,
        "--env",
        "C=flag",
        "--env",
        "D=",
        "--severity",
        "shm.size=warn",
    ]);
    let settings = read(&given, &node).expect("settings");
    let found: Vec<(&str, String, String)> = settings
        .env
        .iter()
        .map(|s| (s.name.as_str(), s.value.to_string_lossy().into_owned(), s.source.to_string()))
        .collect();
    let expected = [
        ("A", "file".to_owned(), format!("{path}:2")),
        ("B", "variable".to_owned(), "RANKLAUNCH_ENV".to_owned()),
        ("C", "flag".to_owned(), "--env".to_owned()),
        ("D", String::new(), "--env".to_owned()),
    ];
    assert_eq!(found, expected);
    let severity = |id: Id| settings.severities.get(&id).map(|s| s.value);
    assert_eq!(severity(Id::ShmSize), Some(Severity::Warn));
    assert_eq!(severity(Id::Memlock), Some(Severity::Off));
    assert_eq!(severity(Id::Nofile), Some(Severity::Fail));

    for bad in ["--env=x", "--env==x", "--env=A B=x"] {
        assert_eq!(read(&options(&[bad]), &host(&[])).expect_err(bad).id, Id::SettingsEnv);
    }
    let secret = read(&options(&["--env", "HF_TOKEN hunter2"]), &host(&[])).expect_err("no =");
    assert!(secret.text.en.contains("`HF_TOKEN`") && !secret.text.en.contains("hunter2"));
    let refusal = read(&options(&["--severity", "shm=fail"]), &host(&[])).expect_err("no such id");
    assert!(refusal.text.en.contains("`shm=fail`"), "{}", refusal.text.en);
}

#[test]
fn the_words_after_the_dashes_become_a_program() {
    let root = tempfile::tempdir().expect("a folder");
    let bin = root.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    for (name, mode) in [("bash", 0o755), ("notes", 0o644), ("tool.py", 0o755), ("torchrun", 0o755)]
    {
        std::fs::write(bin.join(name), "").expect("a file");
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(mode))
            .expect("a mode");
    }
    let node =
        Host::replayed(root.path(), BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]));
    let program = |line: &[&str]| {
        read(&options(line), &node).map(|settings| settings.program.map(|program| program.value))
    };
    let script = |path: &str, args: &[&str]| {
        Ok(Some(Program::Script { path: path.into(), args: words(args) }))
    };
    let module = |name: &str, args: &[&str]| {
        Ok(Some(Program::Module { name: name.into(), args: words(args) }))
    };
    let command = |argv: &[&str]| Ok(Some(Program::Command { argv: words(argv) }));

    assert_eq!(
        program(&["--", "generate.py", "--a", "{x}"]),
        script("generate.py", &["--a", "{x}"])
    );
    assert_eq!(program(&["--", "tool.py"]), script("tool.py", &[]));
    assert_eq!(program(&["--", "notes"]), script("notes", &[]));
    assert_eq!(program(&["--", "-m", "a.b", "-x"]), module("a.b", &["-x"]));
    assert_eq!(program(&["-m", "a.b", "--", "-x"]), module("a.b", &["-x"]));
    assert_eq!(program(&["--", "bash", "-c", "x"]), command(&["bash", "-c", "x"]));
    assert_eq!(program(&["--", "/bin/bash"]), command(&["/bin/bash"]));
    assert_eq!(program(&["--", "python3.11", "a.py"]), command(&["python3.11", "a.py"]));
    assert_eq!(program(&["--", "pythonic"]), script("pythonic", &[]));
    assert_eq!(program(&["--engine", "command", "--", "run.py"]), command(&["run.py"]));
    assert_eq!(program(&[]), Ok(None));
    for (line, id) in [
        (&["--", "--lr", "1"][..], Id::SettingsProgram),
        (&["--", "-m"], Id::SettingsModule),
        (&["--engine", "command", "-m", "a"], Id::SettingsModule),
        (&["-m", ""], Id::SettingsModule),
    ] {
        assert_eq!(program(line).expect_err("no program").id, id, "{line:?}");
    }

    assert_eq!(program(&["--", "accelerate", "config"]), script("accelerate", &["config"]));
}

/// Each rank would start the launcher once more: jobs of their own, that end with 0.
#[test]
fn a_launcher_is_no_script() {
    let root = tempfile::tempdir().expect("a folder");
    let bin = root.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    std::fs::write(bin.join("torchrun"), "").expect("a file");
    std::fs::set_permissions(bin.join("torchrun"), std::fs::Permissions::from_mode(0o755))
        .expect("a mode");
    let node = Host::replayed(root.path(), BTreeMap::from([("PATH".into(), "/bin".into())]));
    for (line, name, way) in [
        ("-- torchrun --nproc-per-node 2 a.py --lr 1", "torchrun", "-- a.py --lr 1"),
        ("-- /opt/bin/torchrun -m a.b 1", "torchrun", "-- -m a.b 1"),
        ("-- python /opt/bin/torchrun a.py", "torchrun", "-- a.py"),
        ("-- python -um torch.distributed.run a.py", "torchrun", "-- a.py"),
        ("-- python3 -u -m torch.distributed.launch a.py", "torchrun", "-- a.py"),
        ("-- -m torch.distributed.run a.py", "torch.distributed.run", "-- a.py"),
        ("-m torch.distributed.run -- a.py", "torch.distributed.run", "-- a.py"),
        ("-- -m accelerate.commands.launch a.py", "accelerate.commands.launch", "-- a.py"),
        ("-- accelerate launch --num_processes 2 a.py", "accelerate", "-- a.py"),
        ("-- deepspeed a.py --deepspeed", "deepspeed", "-- a.py --deepspeed"),
        ("-- mpirun -np 2 python a.py", "mpirun", "-- SCRIPT ARGS"),
        ("-- mpiexec python a.py", "mpirun", "-- SCRIPT ARGS"),
        ("-- srun python a.py", "srun", "-- SCRIPT ARGS"),
        ("-- horovodrun -np 2 python a.py", "horovodrun", "-- SCRIPT ARGS"),
        ("-- ray start --head", "ray", "-- SCRIPT ARGS"),
        ("-- nohup torchrun a.py", "torchrun", "-- a.py"),
        ("-- time torchrun a.py", "torchrun", "--engine command -- torchrun a.py"),
        ("-- exec torchrun -m a.b", "torchrun", "-- -m a.b"),
        ("-- timeout 1h torchrun a.py", "torchrun", "--engine command -- timeout 1h torchrun a.py"),
        ("-- env X=1 torchrun a.py", "torchrun", "-- env X=1 python a.py"),
        ("-- X=1 nohup torchrun a.py", "torchrun", "-- env X=1 python a.py"),
        ("-- numactl -N 0 torchrun -m a.b", "torchrun", "-- numactl -N 0 python -m a.b"),
        ("-- uv run torchrun a.py", "torchrun", "-- uv run python a.py"),
        ("-- uv run -m torch.distributed.run a.py", "torchrun", "-- uv run python a.py"),
        ("-- conda run -n x accelerate launch a.py", "accelerate", "-- conda run -n x python a.py"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let refusal = read(&options(&words), &node).expect_err(line);
        assert_eq!((refusal.id, refusal.verdict.code()), (Id::SettingsLauncherAsScript, 64));
        assert!(refusal.text.en.contains(&format!("{name} is a launcher")), "{}", refusal.text.en);
        assert!(refusal.text.zh.contains(name), "{}", refusal.text.zh);
        let hint = refusal.hint;
        assert!(hint.en.contains(way) && hint.en.contains("--engine command -- "), "{}", hint.en);
        assert!(hint.zh.contains(way), "{}", hint.zh);
        // A module needs its interpreter there; everything else runs as it stands.
        if !line.contains("-m torch.distributed.run") && !line.contains("-- -m") {
            let meant = [&["--engine", "command"], words.as_slice()].concat();
            assert_eq!(read(&options(&meant), &node).expect(line).warnings, [], "{line}");
        }
    }
    for line in
        ["-- env.py torchrun", "-- uv run a.py", "-- env X=1 a.py", "-- timeout 1h python a.py"]
    {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(read(&options(&words), &node).is_ok(), "{line}");
    }
    // From a profile likewise, with the line that says so.
    let (_folder, path) = file("[job]\nscript = 'torchrun'\nargs = ['a.py']");
    let refusal = read(&options(&["--profile", &path]), &node).expect_err("a launcher");
    assert!(refusal.text.en.contains(&format!("{path}:2")), "{}", refusal.text.en);
}

#[test]
fn a_shell_script_is_not_for_python() {
    let root = tempfile::tempdir().expect("a folder");
    for (name, text, mode) in [
        ("tr.sh", "python a.py", 0o644),
        ("start", "#!/usr/bin/env -S bash -e\n", 0o644),
        ("ready.sh", "#!/bin/sh\n", 0o755),
        ("train", "import torch\n", 0o644),
        ("old", "#!/usr/bin/python\n", 0o644),
    ] {
        std::fs::write(root.path().join(name), text).expect("a file");
        std::fs::set_permissions(root.path().join(name), std::fs::Permissions::from_mode(mode))
            .expect("a mode");
    }
    let node = Host::replayed(root.path(), BTreeMap::new());
    for name in ["/tr.sh", "/start", "gone.sh"] {
        let refusal = read(&options(&["--", name, "--lr", "1"]), &node).expect_err(name);
        assert_eq!((refusal.id, refusal.verdict.code()), (Id::SettingsShellScript, 64));
        let way = format!("-- bash {name} --lr 1");
        assert!(refusal.hint.en.contains(&way) && refusal.hint.zh.contains(&way), "{refusal:?}");
    }
    for name in ["/ready.sh", "/train", "/old", "/gone"] {
        assert!(read(&options(&["--", name]), &node).is_ok(), "{name}");
    }
}

#[test]
fn a_program_on_the_command_line_replaces_the_profiles_and_bare_arguments_follow_it() {
    let (_folder, path) = file("[job]\nscript = 'a.py'\nargs = ['--lr', '1']");
    let program = |line: &[&str], node: &Host| {
        let settings = read(&options(&[&["--profile", &path], line].concat()), node);
        let program = settings.expect("settings").program.expect("a program");
        (program.value, program.source.to_string())
    };
    let from_file = format!("{path}:2");
    let script =
        |path: &str, args: &[&str]| Program::Script { path: path.into(), args: words(args) };
    assert_eq!(program(&[], &host(&[])), (script("a.py", &["--lr", "1"]), from_file.clone()));
    assert_eq!(
        program(&["--", "b.py", "--x"], &host(&[])),
        (script("b.py", &["--x"]), "command line".into())
    );
    assert_eq!(
        program(&["--", "--lr", "2"], &host(&[])),
        (script("a.py", &["--lr", "1", "--lr", "2"]), from_file)
    );
    let module = host(&[("RANKLAUNCH_MODULE", "m.n")]);
    assert_eq!(
        program(&["--", "--lr", "2"], &module),
        (
            Program::Module { name: "m.n".into(), args: words(&["--lr", "2"]) },
            "RANKLAUNCH_MODULE".into()
        )
    );
    assert_eq!(program(&["--", "b.py"], &module).0, script("b.py", &[]));
}

#[test]
fn the_grace_stays_below_that_of_the_pod() {
    let grace = |line: &[&str], period: Option<&str>| {
        let node = host(
            &period.map(|p| ("TerminationGracePeriodSeconds", p)).into_iter().collect::<Vec<_>>(),
        );
        let settings = read(&options(line), &node).expect("settings");
        (
            settings.grace.value.as_secs_f64(),
            settings.grace.source.to_string(),
            settings.warnings.len(),
        )
    };
    assert_eq!(grace(&[], None), (28.0, "default".into(), 0));
    assert_eq!(grace(&[], Some("600")), (598.0, "TerminationGracePeriodSeconds".into(), 0));
    assert_eq!(grace(&[], Some("1")), (0.5, "TerminationGracePeriodSeconds".into(), 0));
    assert_eq!(grace(&[], Some("soon")), (28.0, "default".into(), 1));
    assert_eq!(grace(&["--grace", "10s"], Some("600")), (10.0, "--grace".into(), 0));
}

#[test]
fn the_language_is_the_flags_the_variables_the_profiles_or_the_locales() {
    let (_folder, path) = file("[logs]\nlang = 'en'");
    let zh = ("LANG", "zh_CN.UTF-8");
    for (line, variables, lang) in [
        (&[][..], &[][..], Lang::En),
        (&[], &[zh], Lang::Zh),
        (&["--profile", &path], &[zh], Lang::En),
        (&["--profile", &path], &[zh, ("RANKLAUNCH_LANG", "zh")], Lang::Zh),
        (&["--lang", "en"], &[zh, ("RANKLAUNCH_LANG", "zh")], Lang::En),
    ] {
        assert_eq!(
            read(&options(line), &host(variables)).expect("settings").lang,
            lang,
            "{line:?}"
        );
    }
    assert_eq!(language(&options(&["--lang", "zh"]), &host(&[])), Lang::Zh);
    assert_eq!(language(&options(&[]), &host(&[("RANKLAUNCH_LANG", "xx"), zh])), Lang::Zh);
}

#[test]
fn profiles_are_found_by_name_and_by_file() {
    let root = tempfile::tempdir().expect("a folder");
    let node = Host::replayed(root.path(), BTreeMap::new());
    let etc = root.path().join("etc/ranklaunch");
    std::fs::create_dir_all(&etc).expect("a folder");
    let profile = |line: &[&str]| {
        read(&options(line), &node)
            .map(|s| (s.profile.unwrap_or_default(), s.nnodes.map(|n| n.value)))
    };
    assert_eq!(profile(&[]).expect("none"), (String::new(), None));
    assert_eq!(profile(&["--profile", "zimdb"]).expect("embedded"), ("zimdb".into(), Some(1)));

    std::fs::write(etc.join("ranklaunch.toml"), "[job]\nnnodes = 5").expect("a file");
    std::fs::write(etc.join("zimdb.toml"), "[job]\nnnodes = 6").expect("a file");
    let at = |name: &str| etc.join(name).display().to_string();
    assert_eq!(profile(&[]).expect("unnamed"), (at("ranklaunch.toml"), Some(5)));
    assert_eq!(profile(&["--profile", "zimdb"]).expect("named"), (at("zimdb.toml"), Some(6)));

    let refusal = profile(&["--profile", "wan2"]).expect_err("no such name");
    for part in ["--profile is `wan2`", "wan22, taehv, zimdb", &at("wan2.toml")] {
        assert!(refusal.text.en.contains(part), "{}", refusal.text.en);
    }
    assert!(refusal.hint.en.contains("--profile wan22"));
    let refusal = profile(&["--profile", "/no/such.toml"]).expect_err("no such file");
    assert!(refusal.text.en.contains("searched: /no/such.toml"), "{}", refusal.text.en);

    std::fs::write(etc.join("bad.toml"), b"[job]\n\xff").expect("a file");
    let refusal = profile(&["--profile", &at("bad.toml")]).expect_err("not UTF-8");
    assert!(refusal.text.en.contains("line 2 is not UTF-8"), "{}", refusal.text.en);
    std::fs::write(etc.join("big.toml"), vec![b'#'; 2 << 20]).expect("a file");
    let refusal = profile(&["--profile", &at("big.toml")]).expect_err("too large");
    assert!(refusal.text.en.contains("1 MiB"), "{}", refusal.text.en);
}

#[test]
fn wait_reads_its_target_and_its_time() {
    let wait = |target: &str, timeout: Option<&str>| {
        let wait =
            cli::Wait { target: target.into(), timeout: timeout.map(Into::into), lang: None };
        read_wait(&wait, &host(&[("RANKLAUNCH_WAIT_TIMEOUT", "2m")]))
    };
    let found = wait("[fd00::1]:29500", Some("5")).expect("a target");
    assert_eq!((found.host.as_str(), found.port, found.timeout.as_secs()), ("fd00::1", 29500, 5));
    assert_eq!(wait("a:1", None).expect("a target").timeout, Duration::from_secs(120));
    assert_eq!(wait("a", None).expect_err("no port").id, Id::SettingsTarget);
    let refusal = wait("a:1", Some("soon")).expect_err("no time");
    assert!(refusal.text.en.starts_with("--timeout is `soon`"), "{}", refusal.text.en);
}

fn embedded(name: &str) -> Settings {
    read(&options(&["--profile", name]), &host(&[])).expect(name)
}

#[test]
fn wan22_is_the_job_of_the_guide() {
    let settings = embedded("wan22");
    let Some(Sourced { value: Program::Script { path, args }, source }) = settings.program else {
        panic!("no script")
    };
    assert_eq!(path, "generate.py");
    assert!(matches!(source, Source::Profile { file, .. } if file == "wan22.toml"));
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag).expect(flag);
        args[at + 1].to_str().expect("text")
    };
    assert_eq!(after("--task"), "t2v-A14B");
    assert_eq!(after("--size"), "832*480");
    assert_eq!(after("--ckpt_dir"), "/Wan2.2-T2V-A14B");
    assert_eq!(after("--ulysses_size"), "{ulysses_size}");
    assert_eq!(after("--sample_guide_scale"), "10");
    assert!(after("--prompt").contains("the word \"tenxcloud\" clearly engraved on the rock's"));
    assert_eq!(after("--save_file"), "/workspace/output/{timestamp}.mp4");
    let ConditionalArguments { rows, at } = settings.args_if;
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.when.to_string().as_str(), at), ("world_size > 1", args.len()));
    assert_eq!(row.args, words(&["--dit_fsdp", "--t5_fsdp"]));

    assert_eq!(settings.layout.rule.value, LayoutRule::UlyssesWorld);
    assert_eq!(settings.layout.heads, None);
    let table = settings.layout.heads_table.expect("heads");
    assert_eq!((table.argument.as_str(), table.default.as_deref()), ("--task", Some("t2v-A14B")));
    let heads: Vec<(&str, u32)> = table.heads.iter().map(|(task, n)| (task.as_str(), *n)).collect();
    let expected =
        [("animate-14B", 40), ("i2v-A14B", 40), ("s2v-14B", 40), ("t2v-A14B", 40), ("ti2v-5B", 24)];
    assert_eq!(heads, expected);
    assert_eq!(settings.layout.ulysses_argument.as_deref(), Some("--ulysses_size"));
    assert_eq!(settings.layout.checkpoint_argument.as_deref(), Some("--ckpt_dir"));
    assert_eq!(settings.nproc_per_node.value, Nproc::Auto);
    assert_eq!(settings.engine.value, Engine::Torchrun);
    assert_eq!(settings.severities[&Id::ShmSize].value, Severity::Fail);
}

#[test]
fn taehv_is_the_job_of_the_platform_guide() {
    let settings = embedded("taehv");
    assert_eq!(settings.engine.value, Engine::Accelerate);
    assert_eq!(settings.engine_args, ["--config_file", "{deepspeed_config}"]);
    // Which python has torch is for each user to say.
    assert!(settings.conda_env.is_none() && settings.conda_roots.is_empty());
    assert!(settings.python.is_none() && settings.chdir.is_none());
    let rows: Vec<(Option<u32>, &str, &str)> = settings
        .selects
        .iter()
        .map(|row| (row.total_gpus, &*row.values["train_config"], &*row.values["deepspeed_config"]))
        .collect();
    let expected = [
        (Some(16), "taehv_config_16gpu_h100.py", "deepspeed_16gpu.yaml"),
        (Some(8), "taehv_config_h100.py", "deepspeed_8gpu.yaml"),
    ];
    assert_eq!(rows, expected);
    assert_eq!(
        settings.program.map(|program| program.value),
        Some(Program::Script {
            path: "train_taehv.py".into(),
            args: words(&["--config", "{train_config}"])
        })
    );
    assert_eq!(settings.severities[&Id::ShmSize].value, Severity::Fail);
    assert!(settings.env.is_empty());
}

#[test]
fn conditional_arguments_follow_the_profiles_own() {
    let given = |text: &str, more: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.toml");
        std::fs::write(&file, text).expect("a profile");
        let line = ["--profile", file.to_str().expect("text"), "--"];
        let line = if more.is_empty() { &line[..2] } else { &line };
        let settings = read(&options(&[line, more].concat()), &host(&[])).expect(text);
        (settings.args_if.rows.len(), settings.args_if.at)
    };
    let when = "args_if = [{ when = \"nnodes > 1\", args = [\"--b\"] }]";
    let script = format!("[job]\nscript = \"a.py\"\nargs = [\"--a\", \"1\"]\n{when}\n");
    assert_eq!(given(&script, &[]), (1, 2));
    assert_eq!(given(&script, &["--c", "3"]), (1, 2), "before what the command line adds");
    assert_eq!(given(&script, &["own.py", "--a"]), (0, 0), "the command line's own program");
    let command = format!("[job]\ncommand = [\"sh\", \"a.sh\"]\nargs = [\"x\"]\n{when}\n");
    assert_eq!(given(&command, &[]), (1, 3));
    let engine = script.replace("[job]", "[job]\nengine = \"command\"");
    assert_eq!(given(&engine, &[]), (1, 3));
}

#[test]
fn a_condition_that_cannot_be_read_is_refused_with_its_line() {
    for (row, words) in [
        ("{ when = \"world > 1\", args = [\"--b\"] }", "job.toml:3: `when`"),
        ("{ when = \"world_size > many\", args = [\"--b\"] }", "world_size, nnodes"),
        ("{ when = \"nnodes = 1\" }", "needs `when` and `args`"),
        ("{ args = [\"--b\"] }", "needs `when` and `args`"),
        ("{ if = \"nnodes = 1\", args = [\"--b\"] }", "if"),
    ] {
        let text = format!("[job]\nscript = \"a.py\"\nargs_if = [{row}]\n");
        let refusal = read_profile(&text).expect_err(row);
        assert!(refusal.text.en.contains(words), "{row}: {}", refusal.text.en);
        assert_eq!(refusal.verdict.code(), 64);
    }
}

#[test]
fn zimdb_is_one_node_of_four_gpus() {
    let settings = embedded("zimdb");
    assert_eq!(settings.nnodes.map(|n| n.value), Some(1));
    assert_eq!(settings.nproc_per_node.value, Nproc::Count(4));
    assert_eq!(
        settings.program.map(|program| program.value),
        Some(Program::Script { path: "train.py".into(), args: Vec::new() })
    );
    assert!(settings.env.iter().all(|setting| setting.name != "NCCL_IB_DISABLE"));
}

#[test]
fn a_copy_of_the_reference_changes_nothing() {
    let mut copied = read_profile(REFERENCE).expect("the reference");
    assert!(copied.profile.take().is_some());
    let none = read(&options(&[]), &host(&[])).expect("settings");
    assert_eq!(format!("{copied:?}"), format!("{none:?}"));
    assert!(Profile::read("", REFERENCE).expect("a profile").is_empty());
}

#[test]
fn the_reference_shows_every_key_and_is_a_profile() {
    let text = reference::in_force();
    let settings = read_profile(&text).expect("the reference");
    assert_eq!(settings.layout.heads_table.as_ref().map(|table| table.heads.len()), Some(2));
    let shown = |key: &str| {
        text.lines().any(|line| {
            let line = line.trim_start_matches("# ");
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        })
    };
    for row in TABLE {
        assert!(row.table.is_none() || shown(&row.key()), "{} is missing", row.key());
    }
    for key in profile::JOB_KEYS.iter().chain(&["total_gpus", "values", "argument", "default"]) {
        assert!(shown(key), "{key} is missing");
    }
    for id in Id::checks() {
        assert!(settings.severities.contains_key(&id), "{id} is missing");
    }
    for section in profile::SECTIONS {
        assert!(text.contains(&format!("[{section}]")), "[{section}] is missing");
    }
    assert!(REFERENCE.contains(&format!("#{} = ", profile::EXTENDS)));
    for verdict in Verdict::ALL {
        assert_eq!(settings.exit_codes.get(&verdict.code()), Some(&verdict.code()));
    }
    // What has a default is shown with it.
    let none = read(&options(&[]), &host(&[])).expect("settings");
    let of = |s: &Settings| {
        let text = [
            format!("{:?} {:?}", s.engine.value, s.rdzv.value),
            format!("{:?} {:?}", s.world_size_counts.value, s.nproc_per_node.value),
            format!("{:?} {:?} {:?}", s.device.value, s.layout.rule.value, s.stale.value),
            format!("{:?} {:?} {:?}", s.muster.value, s.wait_timeout.value, s.rdma.value),
            format!("{:?} {:?} {:?}", s.probe.value, s.bind.value, s.grace.value),
            format!("{:?} {:?}", s.max_restarts.value, s.log_cap_rank.value),
            format!(
                "{:?} {:?} {:?}",
                s.log_cap_node.value, s.console.value, s.console_prefix.value
            ),
            format!("{:?} {:?} {:?}", s.nested, s.interactive, s.lang),
        ];
        text.join("\n")
    };
    assert_eq!(of(&settings), of(&none));
    assert!(settings.warnings.iter().any(|warning| warning.id == Id::SettingsNodeRank));
}

/// What help says of a default, in so far as it is a value, is the default.
#[test]
fn help_names_the_defaults_as_they_are() {
    let none = fixtures::undecided();
    let mut told = 0;
    for (name, help) in cli::descriptions() {
        let default = help.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
        let Some((default, _)) = default.filter(|(text, _)| !text.contains([' ', ','])) else {
            continue;
        };
        let row = row(&name).unwrap_or_else(|| panic!("{name} is no row"));
        let Take::One(put) = row.take else { panic!("{name} has several values") };
        let mut settings = none.clone();
        put(&mut settings, default, Source::Default).unwrap_or_else(|| panic!("{name}: {default}"));
        assert_eq!(format!("{settings:?}"), format!("{none:?}"), "{name} is not {default}");
        told += 1;
    }
    assert!(told > 15, "{told} defaults");
    let wait = cli::Wait { target: "a:1".into(), timeout: None, lang: None };
    let wait = read_wait(&wait, &host(&[])).expect("a target");
    assert_eq!(Some(wait.timeout), duration("30m"));
    let init = cli::Init { grace: None, lang: None, command: Vec::new() };
    let init = read_init(&init, &host(&[])).expect("settings");
    assert_eq!(Some(init.grace), duration("5s"));
}

#[test]
fn a_profile_over_another_says_what_is_different() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
        folder.path().join(name).to_str().expect("a plain path").to_owned()
    };
    let of = |path: &str| {
        let options = cli::Options { profile: Some(path.into()), ..cli::Options::default() };
        read(&options, &host(&[]))
    };
    // One variable and one argument more than the embedded job has.
    let mine = write(
        "mine.toml",
        "extends = 'wan22'\n[job]\nargs = ['--size', '1280*720']\n[env]\nA = '1'\n[severity]\n'memlock' = 'off'",
    );
    let settings = of(&mine).expect("settings");
    let base = embedded("wan22");
    let args = |settings: &Settings| settings.program.as_ref().map(|p| p.value.args().to_vec());
    let mut expected = args(&base).expect("arguments");
    expected.extend(words(&["--size", "1280*720"]));
    assert_eq!(args(&settings), Some(expected));
    assert_eq!(settings.env.len(), base.env.len() + 1);
    assert_eq!(settings.severities.len(), base.severities.len() + 1);
    assert_eq!(settings.layout.rule.value, LayoutRule::UlyssesWorld);
    assert!(settings.layout.heads_table.is_some());

    // A program of its own comes with its own arguments; lists replace lists.
    let other = write(
        "other.toml",
        "extends = 'taehv'\n[job]\nmodule = 'a.b'\nengine_args = []\nworkdir = 'src'\n[layout]\nheads = 8",
    );
    let settings = of(&other).expect("settings");
    let module = Program::Module { name: "a.b".into(), args: Vec::new() };
    assert_eq!(settings.program.map(|program| program.value), Some(module));
    assert_eq!((settings.engine_args.len(), settings.selects.len()), (0, 2));
    assert_eq!(settings.engine.value, Engine::Accelerate);
    assert_eq!(settings.chdir.map(|chdir| chdir.value), Some(folder.path().join("src")));

    // Of two files by path; the working directory is that of the file which names it.
    std::fs::create_dir(folder.path().join("sub")).expect("a folder");
    let top = write("sub/top.toml", "extends = '../other.toml'\n[job]\nnproc_per_node = 2");
    let settings = of(&top).expect("settings");
    assert_eq!(settings.nproc_per_node.value, Nproc::Count(2));
    let workdir = settings.chdir.map(|chdir| chdir.value).expect("a folder");
    assert_eq!(workdir.file_name(), Some("src".as_ref()));
    assert!(!workdir.starts_with(folder.path().join("sub/src")), "{workdir:?}");

    // A file may extend the embedded one of its own name.
    let same = write("wan22.toml", "extends = 'wan22'\n[job]\nnnodes = 3");
    let settings = of(&same).expect("settings");
    assert_eq!(settings.nnodes.map(|n| n.value), Some(3));
    assert!(settings.layout.heads_table.is_some());

    write("a.toml", "extends = 'b.toml'");
    let loops = write("b.toml", "extends = './a.toml'");
    let refusal = of(&loops).expect_err("a loop");
    assert!(refusal.text.en.contains("extends this profile itself"), "{}", refusal.text.en);
    let wrong = write("wrong.toml", "extends = 'wan2'");
    let refusal = of(&wrong).expect_err("no such name");
    assert!(refusal.text.en.contains(&format!("{wrong}:1")), "{}", refusal.text.en);
    assert_eq!(refusal.hint.en, "did you mean wan22?");
    let deep: Vec<String> = (0..12)
        .map(|n| write(&format!("d{n}.toml"), &format!("extends = 'd{}.toml'", n + 1)))
        .collect();
    let refusal = of(&deep[0]).expect_err("too many");
    assert!(refusal.text.en.contains("extend each other"), "{}", refusal.text.en);
}

#[test]
fn what_is_probably_meant_is_said() {
    for (line, hint) in [
        (&["--severity", "shm.sise=fail"][..], "did you mean --severity shm.size=fail?"),
        (&["--severity", "shm.size"], "--severity shm.size=fail"),
        (&["--severity", "shm.size=bad"], "--severity shm.size=fail"),
        (&["--severity", "colour=fail"], "gpu.fault, gpu.fabric"),
        (&["--nnodes", "1:2"], "PET_NNODES"),
        (&["--nproc_per_node", "gpu"], "--nproc-per-node auto --device gpu"),
    ] {
        let refusal = read(&options(line), &host(&[])).expect_err(hint);
        assert!(refusal.hint.en.contains(hint), "{line:?}: {}", refusal.hint.en);
        assert_ne!(refusal.hint.en, refusal.hint.zh);
    }
}

#[test]
fn an_option_that_was_typed_twice_is_noted() {
    let line = ["--wait-timeout", "30m", "--wait-timeout", "5m"];
    let settings = read(&options(&line), &host(&[])).expect("settings");
    assert_eq!(settings.wait_timeout.value, Duration::from_secs(300));
    let Repeated { option, times, value } = &settings.repeated[0];
    assert_eq!((option.as_str(), *times, value.as_str()), ("--wait-timeout", 2, "`5m`"));
}

/// Lines that are nearly right, so that more than the TOML parser is met.
fn nearly_a_profile() -> impl Strategy<Value = Vec<u8>> {
    let keys: Vec<String> =
        TABLE.iter().map(Row::key).chain(profile::JOB_KEYS.iter().map(|k| (*k).into())).collect();
    let sections: Vec<&'static str> = profile::SECTIONS.to_vec();
    let line = prop_oneof![
        prop::sample::select(sections).prop_map(|s| format!("[{s}]")),
        Just("[[select]]".to_owned()),
        Just("[layout.heads]".to_owned()),
        (
            prop::sample::select(keys),
            prop_oneof![
                "[-0-9x]{1,4}",
                "'\\PC{0,8}'",
                Just("true".to_owned()),
                "\\['\\PC{0,4}', [0-9]\\]",
                "\\{ \\w = [0-9] \\}"
            ]
        )
            .prop_map(|(key, value)| format!("{key} = {value}")),
    ];
    prop::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n").into_bytes())
}

proptest! {
    #[test]
    fn any_bytes_as_a_profile_give_settings_or_a_refusal(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), nearly_a_profile()]
    ) {
        let (_folder, path) = file(bytes);
        let given = cli::Options { profile: Some(path.into()), ..cli::Options::default() };
        if let Err(refusal) = read(&given, &host(&[])) {
            prop_assert_eq!(refusal.verdict, Verdict::Usage);
        }
    }

    #[test]
    fn any_variables_and_words_give_settings_or_a_refusal(
        values in prop::collection::vec((0..TABLE.len(), prop::collection::vec(any::<u8>(), 0..12)), 0..5),
        program in prop::collection::vec("\\PC{0,8}", 0..4),
        profile in prop::sample::select(vec!["wan22", "taehv", "zimdb"]),
    ) {
        let environment = values
            .into_iter()
            .filter_map(|(row, value)| Some((OsString::from(TABLE.get(row)?.variable()?), OsString::from_vec(value))))
            .collect();
        let given = cli::Options {
            profile: Some(profile.into()),
            program: program.into_iter().map(OsString::from).collect(),
            ..cli::Options::default()
        };
        if let Err(refusal) = read(&given, &Host::replayed("/nonexistent", environment)) {
            prop_assert_eq!(refusal.verdict, Verdict::Usage);
            prop_assert_eq!(refusal.id.family(), Family::Settings);
        }
    }
}
