//! Kernel log records about a job, read when it fails; a file stands for /dev/kmsg.

use std::process::Command;

use harness::fake_nvml::FakeNvml;
use harness::{Ended, Launcher, executable, skipped};
use serde_json::Value;

use super::xids::{expect_no_cause, four, journal, said};

/// A command that enters a namespace in which the kernel's log is `kmsg` in the working folder,
/// with an earlier record, or another file. `None` if this machine allows no namespace.
fn way_in(log: &str) -> Option<Command> {
    let script = format!(
        "set -e
        echo '4,1,1,-;NVRM: Xid (PCI:0000:38:00): 48, before the job' > kmsg
        mount --bind {log} /dev/kmsg"
    );
    let way_in = |script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
        unshare
    };
    let folder = tempfile::tempdir().expect("a folder");
    let tried = way_in(&script).current_dir(folder.path()).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        skipped(format_args!("no namespace with a log of its own: {tried:?}"));
        return None;
    }
    Some(way_in(&format!("{script}\nexec \"$@\"")))
}

/// Rank 1 writes $1 to the kernel's log and $2 to the driver's events, waits until the journal has
/// $3, and ends with 3. The other rank waits.
const RANK: &str = r#"
if [ "$RANK" = 1 ]; then
    now=$(awk '{ printf "%d", $1 * 1000000 }' /proc/uptime)
    if [ "$1" ]; then echo "4,7,$now,-,caller=T1;$1" >> kmsg; fi
    printf "$2" >> "$EVENTS"
    until grep -q "$3" ranklaunch-logs/latest/node-0/agent.jsonl; do sleep 0.02; done
    exit 3
fi
exec sleep 300"#;

/// Two ranks on the GPUs 1 and 2 of four.
fn run(fake: &FakeNvml, log: &str, line: &str, events: &str, heard: &str) -> Option<Ended> {
    let words = ["run", "--engine", "direct", "--stale", "off", "--nproc-per-node", "2", "--"];
    let launcher = Launcher::of(way_in(log)?, [executable()])
        .args(words)
        .args(["sh", "-c", RANK, "sh", line, events, heard])
        .env("CUDA_VISIBLE_DEVICES", "1,2")
        .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
        .env("EVENTS", fake.events());
    Some(launcher.run().expect_nothing_left())
}

const LOST: &str = "NVRM: Xid (PCI:0000:38:00): 79, pid=812, GPU has fallen off the bus.";
/// Text that every journal contains.
const ALWAYS: &str = "decided";

#[test]
fn xid_of_the_kernel_log_alone_is_cause() {
    let fake = FakeNvml::of_old_driver(&[("GPUS", "4")]);
    let Some(ended) = run(&fake, "kmsg", LOST, "", ALWAYS) else { return };
    let cause = &ended.run_json(0)["cause"];
    let told = (&cause["id"], &cause["confidence"], &cause["rank"], &cause["log"]);
    let expected = (&"xid_79".into(), &"certain".into(), &1.into(), &"kernel log".into());
    assert_eq!(told, expected, "{cause:#}\n{}", ended.err);
    assert_eq!(cause["evidence"], LOST);
    assert!(ended.err.contains(&format!("kernel log:1: {LOST}")), "{}", ended.err);
}

/// The driver and the kernel report the same Xid.
#[test]
fn xid_from_both_sources_is_one_cause() {
    let fake = four();
    let Some(ended) = run(&fake, "kmsg", LOST, "2 79\\n", "\"number\":79") else { return };
    let cause = &ended.run_json(0)["cause"];
    let told = (&cause["id"], &cause["confidence"], &cause["rank"]);
    assert_eq!(told, (&"xid_79".into(), &"certain".into(), &1.into()), "{cause:#}\n{}", ended.err);
    assert_eq!(cause["also"], Value::Array(Vec::new()), "{cause:#}");
}

/// Both cases have a record from before the job; one has a record about another GPU as well.
#[test]
fn unrelated_kernel_records_change_nothing() {
    let fake = four();
    let other = LOST.replace("38", "48");
    for line in ["", &other] {
        let Some(ended) = run(&fake, "kmsg", line, "", ALWAYS) else { return };
        expect_no_cause(&ended.expect_code(3));
    }
}

#[test]
fn storage_trouble_is_noted_but_no_cause() {
    let fake = four();
    let line = "blk_update_request: I/O error, dev nvme2n1, sector 81230112";
    let Some(ended) = run(&fake, "kmsg", line, "", ALWAYS) else { return };
    expect_no_cause(&ended);
    let journal = journal(&ended);
    let noted = said(&journal, "the kernel logged, which is no cause");
    assert_eq!(noted.iter().map(|fields| &fields["line"]).collect::<Vec<_>>(), [line]);
}

#[test]
fn unreadable_kernel_log_is_reported_without_effect() {
    let fake = four();
    let Some(ended) = run(&fake, "/dev/null", "", "", ALWAYS) else { return };
    expect_no_cause(&ended);
    let journal = journal(&ended);
    let told = said(&journal, "the kernel log is not readable");
    let errors: Vec<&Value> = told.iter().map(|fields| &fields["error"]).collect();
    assert_eq!(errors, ["it is not the kernel's log"]);
}
