//! Driver events of the GPUs while ranks run: an Xid is the cause of what follows, and a driver that fails
//! or hangs changes nothing.

use harness::fake_nvml::FakeNvml;
use harness::{Ended, Launcher, Role, Running};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The journal of the launcher, as a rank sees it.
const JOURNAL: &str = "ranklaunch-logs/latest/node-0/agent.jsonl";

/// Rank 1 waits for the line $1 of the journal, plays the events $3 (INDEX XID), waits until the journal
/// has $4, and ends with 3. The other ranks wait.
const RANK: &str = r#"
until grep -q "$1" "$2"; do sleep 0.02; done
if [ "$RANK" = 1 ]; then
    printf "$3" >> "$EVENTS"
    until grep -q "$4" "$2"; do sleep 0.02; done
    echo "going" >&2
    exit 3
fi
exec sleep 300"#;

const WATCHING: &str = "watching for Xids";

/// A pattern of grep for this text that does not match itself, because the journal holds the words of the
/// program.
fn pattern(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    format!("[{first}]{rest}")
}

/// Two ranks on the GPUs 1 and 2 of four.
fn job(fake: &FakeNvml, begun: &str, events: &str, heard: &str) -> Launcher {
    let words = ["run", "--engine", "direct", "--stale", "off", "--nproc-per-node", "2", "--"];
    Launcher::new(words)
        .args(["sh", "-c", RANK, "sh", &pattern(begun), JOURNAL, events, &pattern(heard)])
        .env("CUDA_VISIBLE_DEVICES", "1,2")
        .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
        .env("EVENTS", fake.events())
}

pub(super) fn four() -> FakeNvml {
    FakeNvml::new(&[("GPUS", "4")])
}

pub(super) fn journal(ended: &Ended) -> Vec<Value> {
    let text =
        std::fs::read_to_string(ended.node_folder(0).join("agent.jsonl")).expect("a journal");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The fields of the lines with this message.
pub(super) fn said<'a>(journal: &'a [Value], message: &str) -> Vec<&'a Value> {
    let fields = journal.iter().map(|line| &line["fields"]);
    fields.filter(|fields| fields["message"] == message).collect()
}

#[track_caller]
pub(super) fn expect_no_cause(ended: &Ended) {
    let run = ended.run_json(0);
    assert!(run["cause"].is_null(), "{:#}\n{}", run["cause"], ended.err);
    assert!(ended.err.contains("rank 1 exited with code 3"), "{}", ended.err);
}

#[test]
fn xid_of_the_ranks_gpu_is_the_cause() {
    for (xid, words) in [(79, "fallen off the bus"), (48, "GPU")] {
        let fake = four();
        let (event, heard) = (format!("2 {xid}\\n"), format!("\"number\":{xid}"));
        let ended = job(&fake, WATCHING, &event, &heard).run().expect_nothing_left();
        let cause = &ended.run_json(0)["cause"];
        let said = (&cause["id"], &cause["confidence"], &cause["rank"], &cause["log"]);
        let id = Value::from(format!("xid_{xid}"));
        let expected = (&id, &"certain".into(), &1.into(), &"NVML event".into());
        assert_eq!(said, expected, "{cause:#}\n{}", ended.err);
        let line = format!("NVRM: Xid (PCI:0000:38:00): {xid}, GPU 2");
        assert_eq!(cause["evidence"], *line, "{cause:#}");
        assert!(cause["text"].as_str().is_some_and(|text| text.contains(words)), "{cause:#}");
        assert!(ended.err.contains(&format!("NVML event:1: {line}")), "{}", ended.err);
    }
}

#[test]
fn rank_failure_without_xid_has_no_cause() {
    let ended = job(&four(), WATCHING, "", WATCHING).run().expect_code(3).expect_nothing_left();
    expect_no_cause(&ended);
    let watching = journal(&ended);
    let watching = said(&watching, WATCHING);
    assert_eq!(watching.len(), 1, "{watching:?}");
    assert_eq!(watching[0]["gpus"], 2, "only those that the job uses");
}

/// GPU 3 is not in the plan. Xid 92 of a planned GPU, which is no failure, shows that the driver was
/// heard.
#[test]
fn an_xid_of_another_gpu_changes_nothing() {
    let fake = four();
    let job = job(&fake, WATCHING, "3 79\\n1 92\\n", "\"number\":92");
    let ended = job.run().expect_code(3).expect_nothing_left();
    expect_no_cause(&ended);
    let journal = journal(&ended);
    let numbers: Vec<&Value> = said(&journal, "Xid").iter().map(|xid| &xid["number"]).collect();
    assert_eq!(numbers, [92]);
}

/// Drivers that cannot report events, and the line of the journal that says so.
#[test]
fn driver_without_xid_events_is_reported_once() {
    const NOT_TOLD: &str = "the driver does not tell of Xids";
    let with = |events: &str| FakeNvml::new(&[("GPUS", "4"), ("BAD", "2"), ("EVENTS", events)]);
    for (fake, call, code, gpu) in [
        (FakeNvml::of_old_driver(&[("GPUS", "4")]), "nvmlEventSetCreate", None, ""),
        (with("no-permission"), "nvmlDeviceRegisterEvents", Some(4), "0000:38:00.0"),
        (with("gone"), "nvmlDeviceGetHandleByPciBusId_v2", Some(15), "0000:38:00.0"),
        (with("lost"), "nvmlEventSetWait_v2", Some(15), ""),
    ] {
        let ended = job(&fake, NOT_TOLD, "", NOT_TOLD).run().expect_code(3).expect_nothing_left();
        expect_no_cause(&ended);
        let journal = journal(&ended);
        let told = said(&journal, NOT_TOLD);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((told[0]["call"].as_str(), told[0]["gpu"].as_str()), (Some(call), Some(gpu)));
        assert_eq!(told[0]["code"].as_u64(), code, "{told:?}");
    }
}

/// The other GPU is watched anyway.
#[test]
fn unwatchable_gpu_hides_no_other() {
    let fake = FakeNvml::new(&[("GPUS", "4"), ("BAD", "1"), ("EVENTS", "no-permission")]);
    let ended = job(&fake, WATCHING, "2 95\\n", "\"number\":95").run().expect_nothing_left();
    assert_eq!(ended.run_json(0)["cause"]["id"], "xid_95", "{}", ended.err);
}

#[test]
fn hung_or_crashed_driver_delays_nothing() {
    for (events, begun) in [("hang", WATCHING), ("crash", "the watch for Xids is over")] {
        let fake = FakeNvml::new(&[("GPUS", "4"), ("EVENTS", events)]);
        let ended = job(&fake, begun, "", begun).run().expect_code(3).expect_nothing_left();
        expect_no_cause(&ended);
    }
}

/// Without `--device gpu` nothing asks the driver.
#[test]
fn ranks_on_cpus_have_no_watch() {
    let fake = four();
    let words = ["run", "--engine", "direct", "--device", "cpu", "--stale", "off", "--", "true"];
    let ended = Launcher::new(words)
        .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
        .run()
        .expect_code(0)
        .expect_nothing_left();
    assert!(said(&journal(&ended), WATCHING).is_empty());
}

/// A job whose probe waits in the driver.
fn waiting(fake: &FakeNvml) -> Running {
    let mut running = job(fake, WATCHING, "", "never").start();
    running.waits("the watch", |running| {
        let journal = std::fs::read_to_string(running.folder().join(JOURNAL)).unwrap_or_default();
        journal.contains(WATCHING)
    });
    running.find(Role::Probe);
    running
}

#[test]
fn probe_ends_with_agent_or_guard() {
    let fake = four();
    let running = waiting(&fake);
    running.send(Role::Agent, Signal::SIGKILL);
    running.wait().expect_code(137).expect_nothing_left();
    let running = waiting(&fake);
    running.send(Role::Guard, Signal::SIGKILL);
    running.wait().expect_nothing_left_soon();
}

/// The probe is no part of the job: its loss is no failure, and a stop ends it too.
#[test]
fn the_loss_of_the_probe_is_no_failure() {
    let mut running = waiting(&four());
    running.send(Role::Probe, Signal::SIGKILL);
    running.waits("its end in the journal", |running| {
        let journal = std::fs::read_to_string(running.folder().join(JOURNAL)).unwrap_or_default();
        journal.contains("the watch for Xids is over")
    });
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}

/// A second attempt has a watch of its own.
#[test]
fn each_attempt_is_watched() {
    let fake = four();
    const ATTEMPT: &str = r#"
if [ -e again ]; then watches=2; else watches=1; fi
until [ "$(grep -c "$1" "$2")" -ge $watches ]; do sleep 0.02; done
touch again
exit 3"#;
    let retry = ["run", "--max-restarts", "1", "--retry-on", "rank.exit"];
    let words = ["--engine", "direct", "--stale", "off", "--nproc-per-node", "1", "--"];
    let ended = Launcher::new(retry)
        .args(words)
        .args(["sh", "-c", ATTEMPT, "sh", &pattern(WATCHING), JOURNAL])
        .env("CUDA_VISIBLE_DEVICES", "1")
        .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
        .run()
        .expect_code(3)
        .expect_nothing_left();
    assert_eq!(said(&journal(&ended), WATCHING).len(), 2, "{}", ended.err);
}
