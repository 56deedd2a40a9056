//! `ranklaunch adopt` against a real bash: oracle.py executes each script with stand-ins for launchers, and compares
//! what they were given with the plan of what `adopt` printed.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{executable, skipped};
use serde_json::Value;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan/adopt/cases")
}

/// The files of a folder and of the folders in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path() {
            path if path.is_dir() => found.append(&mut files(&path)),
            path => found.push(path),
        }
    }
    found.sort();
    found
}

/// The oracle's verdict on each script.
fn judged(scripts: &[PathBuf]) -> Vec<Value> {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan/adopt/oracle.py");
    let output = Command::new("python3")
        .arg(oracle)
        .arg(executable())
        .args(scripts)
        .env("LANG", "C.UTF-8")
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Scripts in which every shape of a start-up script occurs.
#[test]
fn adopted_scripts_plan_the_same_jobs() {
    let scripts = files(&cases());
    assert!(scripts.len() > 10, "{scripts:?}");
    let judged = judged(&scripts);
    assert_eq!(judged.len(), scripts.len());
    for verdict in judged {
        assert_eq!(verdict["same"], true, "{verdict:#}");
        assert_eq!(verdict["lost"], Value::Array(Vec::new()), "{verdict:#}");
    }
}

/// The control: a script whose launch differs from what is planned is told.
#[test]
fn oracle_tells_another_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.sh");
    // `adopt` cannot know what the variable holds when it is assigned by `eval`.
    let script =
        "eval \"GPUS=3\"\nGPUS=4\nprintf -v GPUS 2\ntorchrun --nproc_per_node $((GPUS)) a.py\n";
    std::fs::write(&path, script).expect("written");
    let right = judged(std::slice::from_ref(&path));
    assert_eq!(right[0]["same"], true, "{right:?}");
    let adopter = folder.path().join("adopter");
    let other =
        script.replace("torchrun --nproc_per_node $((GPUS))", "ranklaunch --nproc-per-node 4 --");
    let said = serde_json::json!({ "answers": [{ "script": other, "profile": null }], "lines": [{ "first": 1, "last": 3, "class": "kept" }] });
    std::fs::write(&adopter, format!("#!/bin/sh\ncat <<'END'\n{said}\nEND\n")).expect("written");
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan/adopt/oracle.py");
    let output = Command::new("python3")
        .arg(oracle)
        .arg(executable())
        .arg(&path)
        .env("ORACLE_ADOPT", format!("sh {}", adopter.display()))
        .output()
        .expect("python3 runs");
    let wrong: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(wrong["same"], false, "{wrong}");
    assert_eq!(wrong["lost"], serde_json::json!([4]), "{wrong}");
}

/// The control: a variable that is lost, and a script that bash cannot read, are told.
#[test]
fn oracle_tells_what_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lost.sh");
    std::fs::write(&path, "export SEED=7\ntorchrun --nproc_per_node 4 a.py\n").expect("written");
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan/adopt/oracle.py");
    for (before, after, same) in
        [("export SEED=7\n", "", true), ("", "", false), ("export SEED=7\n", " (:)", false)]
    {
        let script = format!("{before}ranklaunch --nproc-per-node 4 -- a.py{after}\n");
        let said = serde_json::json!({ "answers": [{ "script": script, "profile": null }], "lines": [{ "first": 1, "last": 2, "class": "kept" }] });
        let adopter = folder.path().join("adopter");
        std::fs::write(&adopter, format!("#!/bin/sh\ncat <<'END'\n{said}\nEND\n"))
            .expect("written");
        let output = Command::new("python3")
            .arg(&oracle)
            .arg(executable())
            .arg(&path)
            .env("ORACLE_ADOPT", format!("sh {}", adopter.display()))
            .output()
            .expect("python3 runs");
        let verdict: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(verdict["same"], same, "{script}: {verdict}");
    }
}

/// Scripts of other projects: nine of ten plan the same job, and no line of any is lost.
#[test]
fn scripts_of_other_projects_plan_the_same_jobs() {
    let folder = std::env::var_os("RANKLAUNCH_LAUNCH_SCRIPTS").filter(|folder| !folder.is_empty());
    let Some(folder) = folder else {
        skipped(
            "RANKLAUNCH_LAUNCH_SCRIPTS names no folder with start-up scripts of other projects",
        );
        return;
    };
    let judged = judged(&files(Path::new(&folder)));
    // A script that launches nothing here, since it wants another argument or file, proves nothing.
    let launched: Vec<&Value> =
        judged.iter().filter(|it| it["ran"].as_u64().is_some_and(|ran| ran > 0)).collect();
    assert!(launched.len() >= 40, "{} of {} launched something", launched.len(), judged.len());
    let other: Vec<&&Value> = launched.iter().filter(|it| it["same"] != true).collect();
    assert!(
        other.len() * 10 <= launched.len(),
        "{} of {}: {other:#?}",
        other.len(),
        launched.len()
    );
    let lost: Vec<&Value> = judged
        .iter()
        .filter(|it| it["lost"].as_array().is_some_and(|lost| !lost.is_empty()))
        .collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

/// `ranklaunch adopt FILE…` in a folder: its exit code and all that it says.
fn adopt(folder: &Path, files: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(executable());
    harness::without_platform(&mut command);
    command.arg("adopt").args(files).env("RANKLAUNCH_LANG", "en").current_dir(folder);
    let output = command.output().expect("it runs");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), format!("{out}{err}"))
}

#[test]
fn pipe_without_a_writer_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let made =
        Command::new("mkfifo").arg(folder.path().join("fifo")).status().expect("mkfifo runs");
    assert!(made.success());
    let (code, said) = adopt(folder.path(), &["fifo"]);
    assert!(code == Some(64) && said.contains("nobody writes"), "{said}");
}

#[test]
fn files_of_accelerate_are_found_or_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
    std::fs::create_dir_all(folder.path().join("a/conf")).expect("made");
    write("a/run.sh", "accelerate launch --config_file conf/x.yaml train.py\n").expect("written");
    let config = |all: u32| format!("distributed_type: FSDP\nnum_processes: {all}\n");
    let nproc = |files: &[&str]| {
        let (code, said) = adopt(folder.path(), files);
        assert_eq!(code, Some(0), "{said}");
        let line = said.lines().find(|line| line.starts_with("    nproc_per_node")).map(str::trim);
        (line.unwrap_or_default().to_owned(), said.contains("conf/x.yaml is not read"))
    };
    assert_eq!(nproc(&["a/run.sh"]), (String::new(), true));
    write("a/conf/x.yaml", &config(3)).expect("written");
    assert_eq!(nproc(&["a/run.sh"]), ("nproc_per_node = 3".to_owned(), false));
    write("x.yaml", &config(5)).expect("written");
    assert_eq!(nproc(&["a/run.sh", "x.yaml"]), ("nproc_per_node = 5".to_owned(), false));
    // Of two files with the name that is meant, the one at the path that is meant.
    let (code, said) = adopt(folder.path(), &["x.yaml", "a/run.sh", "a/conf/x.yaml"]);
    assert!(said.contains("nproc_per_node = 3\n"), "{said}");
    // The other one is named by no launch.
    assert!(code == Some(64) && said.contains("refused: x.yaml: a file of accelerate"), "{said}");
}
