//! packaging/schemas: the output for programs and run.json fit their schemas; a document with one
//! key more, one fewer, or a value of another type does not.
//!
//! The schema of the profile is written from the table of settings, see
//! src/settings/tests/schema.rs.

use harness::node::{Node, PYTHON};
use harness::{Ended, Launcher, program, run_args};
use serde_json::{Value, json};

use crate::explain_logs;

fn schema(name: &str) -> Value {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/schemas");
    let file = folder.join(format!("{name}.schema.json"));
    serde_json::from_str(&std::fs::read_to_string(&file).expect("a schema")).expect("JSON")
}

fn problems(name: &str, document: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(&schema(name)).expect("a schema");
    let errors = validator.iter_errors(document);
    errors.map(|error| format!("{}: {error}", error.instance_path())).collect()
}

fn expect_valid(name: &str, document: &Value) {
    let problems = problems(name, document);
    assert!(problems.is_empty(), "{name}: {problems:#?}\n{document:#}");
}

/// One change of the document at any depth.
enum Change {
    /// A key that the schema does not name.
    Add,
    /// The document without its first key.
    Remove,
    /// Another number of the format.
    Form,
}

fn changed(document: &Value, at: &str, change: &Change) -> Value {
    let mut document = document.clone();
    let place = document.pointer_mut(at).and_then(Value::as_object_mut).expect(at);
    match change {
        Change::Add => drop(place.insert("unheard_of".to_owned(), json!(1))),
        Change::Remove => {
            let first = place.keys().next().expect("a key").clone();
            place.shift_remove(&first);
        }
        Change::Form => drop(place.insert("schema".to_owned(), json!(2))),
    }
    document
}

/// The control: the schema refuses the document after each change.
fn expect_strict(name: &str, document: &Value, places: &[&str]) {
    expect_valid(name, document);
    for at in places {
        for (what, change) in [("added", Change::Add), ("removed", Change::Remove)] {
            let wrong = changed(document, at, &change);
            assert!(!problems(name, &wrong).is_empty(), "{name}: {what} at {at} is not seen");
        }
    }
    assert!(!problems(name, &changed(document, "", &Change::Form)).is_empty(), "{name}: the form");
}

fn said(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
}

/// A node with GPUs, tasks and variables of a platform.
fn node() -> Node {
    Node::with_gpus(2)
        .platform("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4")
        .platform("SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NODEID=0")
        .platform("SLURM_PROCID=0 SLURM_LOCALID=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500")
        .file("/work/train.py", "print(1)\n")
}

#[test]
fn plans_and_checks_fit_their_schemas() {
    let node = node();
    for lang in ["en", "zh"] {
        let form = ["--format", "json", "--lang", lang, "--engine", "direct", "--python", PYTHON];
        let args = [&form[..], &["--", "/work/train.py"]].concat();
        let planned = said(&node.launcher("plan", &args).run());
        expect_strict("plan", &planned, &["", "/membership", "/layout", "/decisions/0"]);
        let checked = said(&node.launcher("check", &args).run());
        expect_strict("check", &checked, &["", "/summary", "/checks/0", "/plan/network"]);
    }
    let too_many = ["--format", "json", "--python", PYTHON, "--nproc-per-node", "9", "--", "a.py"];
    for command in ["plan", "check"] {
        let refused = said(&node.launcher(command, &too_many).run());
        assert!(refused["refused"].is_object(), "{refused:#}");
        expect_strict(command, &refused, &["/refused"]);
    }
}

/// A job with spares has one key more, and a check more.
#[test]
fn plans_with_spares_fit_the_schemas() {
    let node = Node::with_gpus(2).platform("PET_NNODES=6 PET_NODE_RANK=1 PET_MASTER_ADDR=10.0.0.1");
    for (nodes, seats, severity) in [(&[][..], 4, "ok"), (&["--nnodes", "3"], 3, "warn")] {
        let form = ["--format", "json", "--lang", "en", "--python", PYTHON, "--spares", "2"];
        let args = [&form[..], nodes, &["--", "train.py"]].concat();
        let planned = said(&node.launcher("plan", &args).run());
        let member = &planned["membership"];
        let shown = ["nnodes", "spares", "node_rank"].map(|key| member[key].clone());
        assert_eq!(shown, [seats, 2, 1]);
        expect_strict("plan", &planned, &["/membership"]);
        let checked = said(&node.launcher("check", &args).run());
        let rows = checked["checks"].as_array().expect("checks");
        let row = rows.iter().find(|row| row["id"] == "membership.spares").expect("a row");
        assert_eq!(row["severity"], severity);
        expect_strict("check", &checked, &["/plan/membership"]);
    }
}

/// A plan with the platform's file has two keys more.
#[test]
fn plan_with_a_platform_file_fits_the_schema() {
    let args =
        ["--format", "json", "--engine", "direct", "--python", PYTHON, "--", "/work/train.py"];
    let node = node();
    let launcher = node.launcher("plan", &args).env("RANKLAUNCH_SITE", "site.toml");
    let site = "locked = ['log_keep']\n[logs]\nlog_keep = '20'\n";
    std::fs::write(launcher.folder().join("site.toml"), site).expect("written");
    expect_strict("plan", &said(&launcher.run()), &["", "/site", "/settings/0"]);
}

fn ran(what: &str, code: i32) -> (Value, Ended) {
    let mut args = run_args("direct", 2);
    args.push("--".into());
    let ended = Launcher::new(args).args([program("rank.sh")]).args([what]).run();
    let ended = ended.expect_code(code);
    (ended.run_json(0), ended)
}

#[test]
fn run_record_and_its_explanation_fit_their_schemas() {
    let places = ["", "/verdict", "/outcome", "/outcome/ranks/0", "/plan", "/logs"];
    let (well, _) = ran("succeed", 0);
    expect_strict("run", &well, &places);
    let (failed, ended) = ran("exit-7-on-rank-1", 7);
    expect_strict("run", &failed, &places);
    let folder = ended.folder().join("ranklaunch-logs/latest");
    let explained = explain_logs::json(&[&folder.to_string_lossy()], b"");
    expect_strict("explain", &explained, &[""]);
}

#[test]
fn causes_and_explanations_fit_the_schema() {
    let log = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. \
               GPU 1 has a total capacity of 79.15 GiB of which 1.00 GiB is free.\n\
               [rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process \
               exited or there was a network error, NCCL version 2.21.5\n";
    let explained = explain_logs::json(&["-"], log.as_bytes());
    assert!(explained["cause"].is_object(), "{explained:#}");
    expect_strict("explain", &explained, &["", "/cause", "/findings/0", "/logs/0"]);
    // The document has every id and every exit code.
    let all = explain_logs::json(&[], b"");
    assert!(all["explained"].as_array().is_some_and(|all| all.len() > 100), "{all:#}");
    expect_strict("explain", &all, &["/explained/0"]);
}

#[test]
fn remembered_nodes_fit_the_schema() {
    let launcher = Launcher::new(["nodes", "--format", "json", "--log-dir", "."]);
    expect_strict("nodes", &said(&launcher.run()), &[""]);
    let launcher = Launcher::new(["nodes", "--format", "json", "--log-dir", "."]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at = now.expect("after 1970").as_millis();
    let line = format!("{{\"at\":{at},\"node\":\"gpu-17\",\"id\":\"xid_79\"}}\n");
    std::fs::write(launcher.folder().join(".nodes.jsonl"), line).expect("it is written");
    let listed = said(&launcher.run());
    expect_strict("nodes", &listed, &["", "/nodes/0", "/nodes/0/incidents/0"]);
}

#[test]
fn lists_of_checkpoints_fit_the_schema() {
    let launcher = Launcher::new(["checkpoint", "--format", "json", "saved"]);
    let folder = launcher.folder().join("saved/step-1");
    std::fs::create_dir_all(&folder).expect("it is made");
    std::fs::write(folder.join("model.pt"), "").expect("it is written");
    std::fs::write(folder.join("rank_1.distcp"), "").expect("it is written");
    expect_strict("checkpoint", &said(&launcher.run()), &["", "/checkpoints/0"]);
    // Each format has its name in the schema.
    let schema = schema("checkpoint");
    let formats = schema.pointer("/properties/checkpoints/items/properties/format/enum");
    let known: Vec<&str> = checkpoint::Format::ALL.iter().map(|format| format.name()).collect();
    assert_eq!(formats, Some(&json!(known)));
}
