//! packaging/systemd/ranklaunch@.service: its exit codes and its times fit the program.

use std::collections::BTreeSet;
use std::path::Path;

use crate::explain_logs;

const UNIT: &str = "packaging/systemd/ranklaunch@.service";

fn file(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(file).expect(name)
}

/// The values of a key, joined.
fn values(unit: &str, key: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

fn seconds(text: &str) -> u32 {
    text.strip_suffix('s').unwrap_or(text).parse().expect("seconds")
}

#[test]
fn systemd_restarts_only_after_retryable_codes() {
    let unit = file(UNIT);
    let prevented: BTreeSet<String> =
        values(&unit, "RestartPreventExitStatus").into_iter().collect();
    for code in &prevented {
        let explained = explain_logs::json(&[code], b"");
        assert_eq!(explained["explained"][0]["exit_code"].to_string(), *code);
    }
    // A failure that is permanent for a Kubernetes job is permanent here too; besides, the node is
    // always the same here.
    let manifest = file("packaging/kubernetes/wan22-indexed-job.yaml");
    let list = manifest.split_once("values: [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.expect("a list of codes");
    let of_a_job: BTreeSet<String> = list.split(", ").map(str::to_owned).collect();
    let here = ["81", "90", "126", "127"].map(str::to_owned);
    assert_eq!(prevented, of_a_job.into_iter().chain(here).collect::<BTreeSet<String>>());
    for code in values(&unit, "RestartForceExitStatus") {
        assert!(!prevented.contains(&code), "{code}");
    }
}

#[test]
fn the_grace_period_ends_before_systemd_kills() {
    let unit = file(UNIT);
    let stop = values(&unit, "TimeoutStopSec");
    let grace = values(&unit, "Environment");
    let grace = grace.iter().find_map(|one| one.strip_prefix("RANKLAUNCH_GRACE="));
    let (stop, grace) = (seconds(&stop[0]), seconds(grace.expect("a grace period")));
    assert!(grace + 5 <= stop, "{grace} s of {stop} s");
    // The user's file comes later, and therefore overrides.
    let at = |what: &str| unit.find(what).expect(what);
    assert!(at("Environment=RANKLAUNCH_GRACE") < at("EnvironmentFile="));
}
