//! Failures of one node.

use super::{Expected, expect_no_cause, fails, job, small_job, survives, words};
use crate::memory::MemoryLimit;

/// An exception of the first rank.
const RAISED: Expected =
    Expected { id: "", confidence: "certain", ranks: &[0], frame: None, words: "", codes: &[1] };

#[test]
fn full_dev_shm_is_named_with_waiting_frame() {
    let launcher = || small_job(1, "fill_dev_shm.py", &[]);
    let (Some(fault), Some(control)) = (launcher(), launcher()) else { return };
    let frame = Some(("fill_dev_shm.py", "train"));
    fails(fault, Expected { id: "torch_shm_full", frame, words: "/dev/shm is full", ..RAISED });
    survives(control);
}

#[test]
fn a_full_disk_is_named() {
    let launcher = || small_job(1, "fill_disk.py", &["disk"]);
    let (Some(fault), Some(control)) = (launcher(), launcher()) else { return };
    let frame = Some(("fill_disk.py", "save"));
    fails(fault, Expected { id: "disk_full", frame, words: "file system is full", ..RAISED });
    survives(control);
}

/// torch warns that it does not know the name, and raises only a timeout.
#[test]
fn unknown_master_is_named_instead_of_the_timeout() {
    let launcher = || small_job(1, "name_no_master.py", &[]);
    let (Some(fault), Some(control)) = (launcher(), launcher()) else { return };
    let expected = Expected { id: "gai_error", confidence: "likely", ..RAISED };
    let cause = fails(fault, Expected { words: "cannot be resolved", ..expected });
    assert!(super::text(&cause["evidence"]).contains("train-master-0"), "{cause:#}");
    survives(control);
}

#[test]
fn occupied_master_port_in_the_rank_is_named() {
    let launcher = || job("direct", 1, "lose_master_port.py", &[]);
    fails(launcher(), Expected { id: "port_in_use", words: "already in use", ..RAISED });
    survives(launcher());
}

#[test]
fn missing_package_is_named() {
    let launcher = || job("direct", 1, "import_missing.py", &[]);
    let frame = Some(("import_missing.py", "load"));
    let words = "package is not installed";
    fails(launcher(), Expected { id: "module_missing", frame, words, ..RAISED });
    survives(launcher());
}

#[test]
fn ulysses_size_unlike_the_world_size_is_named() {
    let frame = Some(("ulysses.py", "generate"));
    let words = "differs from the number of processes";
    let expected = Expected { id: "ulysses_world", ranks: &[0, 1], ..RAISED };
    let launcher = job("direct", 2, "ulysses.py", &["--ulysses_size", "4"]);
    fails(launcher, Expected { frame, words, ..expected });
    survives(job("direct", 1, "ulysses.py", &["--ulysses_size", "4"]));
}

#[test]
fn damaged_checkpoint_is_named() {
    let frame = Some(("load_checkpoint.py", "load"));
    for (kind, id, words) in [
        ("cut", "ckpt_corrupt", "checkpoint cannot be read"),
        ("empty", "ckpt_empty", "checkpoint is empty"),
        ("page", "ckpt_refused", "torch.load refused a file"),
    ] {
        let launcher = || job("direct", 1, "load_checkpoint.py", &[kind]);
        fails(launcher(), Expected { id, frame, words, ..RAISED });
    }
    survives(job("direct", 1, "load_checkpoint.py", &["cut"]));
}

/// No line reports the crash: the end of the rank is the evidence.
#[test]
fn a_crash_in_native_code_is_named() {
    let launcher = || job("direct", 2, "segfault.py", &[]);
    let expected = Expected { id: "worker_sigsegv", confidence: "likely", ..RAISED };
    fails(launcher(), Expected { ranks: &[1], words: "SIGSEGV", codes: &[139], ..expected });
    survives(launcher());
}

#[test]
fn rank_killed_by_the_oom_killer_is_named() {
    // torch itself needs half of this.
    const LIMIT: u64 = 1 << 30;
    let limits = || Some([MemoryLimit::new("fault", LIMIT)?, MemoryLimit::new("control", LIMIT)?]);
    let Some([fault, control]) = limits() else { return };
    let expected =
        Expected { id: "host_oom", ranks: &[1], words: "memory", codes: &[137], ..RAISED };
    fails(fault.launcher(words("direct", 2, "exhaust_memory.py", &[])), expected);
    // A child of the rank is killed, and the rank goes on.
    survives(control.launcher(words("direct", 2, "exhaust_memory.py", &[])));
}

/// gloo ends the process from C++. Each rank may be the one that receives too much data.
#[test]
fn ranks_reducing_different_shapes_are_named() {
    let expected = Expected { id: "collective_mismatch", ranks: &[0, 1], ..RAISED };
    let expected = Expected { words: "shapes", codes: &[134], ..expected };
    fails(job("direct", 2, "different_shapes.py", &[]), expected);
}

/// The exception of one rank is the cause, whichever rank ends first.
const RAISED_BESIDE_OTHERS: Expected = Expected {
    id: "user_exception",
    confidence: "likely",
    frame: Some(("one_rank_ends.py", "read")),
    words: "ValueError: sample 17 has no label",
    codes: &[1, 134],
    ..RAISED
};

#[test]
fn raising_rank_is_named_without_waiting_ranks() {
    let launcher = job("direct", 8, "one_rank_ends.py", &["raise", "5"]);
    let cause = fails(launcher, Expected { ranks: &[5], ..RAISED_BESIDE_OTHERS });
    let victims = cause["victims"].as_array().expect("a list");
    let ranks: Vec<&serde_json::Value> =
        victims.iter().filter_map(|of| of["ranks"].as_array()).flatten().collect();
    assert!(ranks.iter().all(|rank| **rank != 5), "{cause:#}");
}

/// An exception that the rank caught is no cause of its later end, and neither is the end of the
/// others.
#[test]
fn exception_caught_long_before_is_not_named() {
    let launcher = job("direct", 2, "one_rank_ends.py", &["raise", "1"]).env("SURVIVE", "1");
    let ended = launcher.run().expect_nothing_left();
    assert!(ended.err.contains("ValueError: sample 17 has no label"), "{}", ended.err);
    expect_no_cause(&ended);
}

#[test]
fn killed_rank_is_named_without_waiting_ranks() {
    let expected = Expected { id: "worker_sigkill", confidence: "likely", frame: None, ..RAISED };
    let expected = Expected { ranks: &[1], words: "SIGKILL", codes: &[137], ..expected };
    fails(job("direct", 3, "one_rank_ends.py", &["kill", "1"]), expected);
}

/// A rank that ends silently explains nothing, and the ranks that waited for it are no cause.
#[test]
fn silently_ending_rank_has_no_cause() {
    let ended = job("direct", 3, "one_rank_ends.py", &["exit", "1"]).run().expect_nothing_left();
    expect_no_cause(&ended);
    let verdict = &ended.run_json(0)["verdict"];
    // The interpreter may not get as far as its own exit code.
    assert!([3, 134].contains(&ended.code), "{}", ended.err);
    assert_eq!(verdict["rank"], 1, "{verdict:#}\n{}", ended.err);
}

/// torchrun's own report is a consequence.
#[test]
fn raising_rank_below_torchrun_is_named() {
    let launcher = job("torchrun", 2, "one_rank_ends.py", &["raise", "1"]);
    fails(launcher, Expected { ranks: &[1], ..RAISED_BESIDE_OTHERS });
}
