//! The output of `check --format json` and of `checkpoint --format json`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::executable;

/// What `ranklaunch checkpoint` says of a folder.
pub fn checkpoints(folder: &Path) -> Value {
    let mut command = Command::new(executable());
    let output = command.arg("checkpoint").arg(folder).args(["--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One check of a report.
#[derive(Debug)]
pub struct Checked {
    pub severity: String,
    pub text: String,
    /// The hint, or empty.
    pub hint: String,
}

/// The check `id`, which must have been made.
#[track_caller]
pub fn check_of(report: &Value, id: &str) -> Checked {
    let checks = report["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["id"] == id);
    let check = check.unwrap_or_else(|| panic!("no {id} in {report:#}"));
    let word = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
    Checked { severity: word("severity"), text: word("text"), hint: word("hint") }
}
