//! Attribution of exhausted memory: to a limit of the container, of both kinds that version 1 of control
//! groups has, or to the node, by the kernel's own records.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Ended, Launcher, executable, run_args, skipped};

/// A control group with a memory limit, version 1 or 2, which the launcher enters; removed at the end.
pub(crate) struct MemoryLimit(PathBuf);

impl MemoryLimit {
    pub(crate) fn new(name: &str, limit: u64) -> Option<MemoryLimit> {
        let name = format!("ranklaunch-test-{}-{name}", std::process::id());
        for (place, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let folder = Path::new(place).join(&name);
            if std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let made = MemoryLimit(folder);
            if std::fs::write(made.0.join(file), limit.to_string()).is_ok() {
                return Some(made);
            }
        }
        skipped("no control group with a memory limit can be made here");
        None
    }

    /// Limits swap as `docker run --memory X --memory-swap X` does; false if swap is not counted with
    /// memory.
    fn also_limits_swap(&self, limit: u64) -> bool {
        let file = self.0.join("memory.memsw.limit_in_bytes");
        file.exists() && std::fs::write(file, limit.to_string()).is_ok()
    }

    pub(crate) fn launcher(&self, words: impl IntoIterator<Item = OsString>) -> Launcher {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0);
        Launcher::of(shell, [executable()]).args(words)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

const LIMIT: u64 = 128 << 20;

/// Two ranks; rank 1 runs this script.
fn job(rank_1: &str) -> Vec<OsString> {
    let script = format!("[ $RANK = 1 ] || exec sleep 300; {rank_1}");
    let words = ["--lang", "en", "--", "sh", "-c", &script];
    run_args("direct", 2).into_iter().chain(words.map(OsString::from)).collect()
}

/// tail keeps a line until its end, and /dev/zero has no line end.
const EAT: &str = "exec tail /dev/zero";

/// The output of `explain` about the run.
fn explained(ended: &Ended) -> String {
    let logs = ended.folder().join("ranklaunch-logs/latest");
    Launcher::new(["explain", "--lang", "en"]).args([logs]).run().out
}

#[test]
fn container_limit_is_blamed_with_either_swap_limit() {
    for swaps in [false, true] {
        let Some(limited) = MemoryLimit::new(&format!("swap-{swaps}"), LIMIT) else { return };
        if swaps && !limited.also_limits_swap(LIMIT) {
            return skipped("no limit of memory and swap here");
        }
        let ended = limited.launcher(job(EAT)).run().expect_nothing_left().expect_code(137);
        let ended = ended.expect_words(&[
            "rank 1 was killed by the kernel's out-of-memory killer",
            "the container's limit is 128 MiB, and its use peaked at 12",
            "raise the limit",
        ]);
        assert!(!ended.err.contains("the node"), "{}", ended.err);
        let oom = &ended.run_json(0)["oom"];
        assert_eq!(oom["limit_bytes"], LIMIT, "{oom}");
        let said = explained(&ended);
        assert!(said.contains("emory limit"), "{said}");
    }
}

/// The control: the same end without a kill by the kernel.
#[test]
fn outside_kill_is_not_called_out_of_memory() {
    let Some(limited) = MemoryLimit::new("outside", LIMIT) else { return };
    let ended = limited.launcher(job("kill -9 $$")).run().expect_nothing_left().expect_code(137);
    let ended = ended.expect_words(&["recorded no out-of-memory kill", "(rank.signal)"]);
    assert!(ended.run_json(0)["oom"].is_null());
}

/// A file stands for /dev/kmsg. The rank writes the kernel's record into it before it is killed.
#[test]
fn kernel_log_blames_the_node() {
    let Some(limited) = MemoryLimit::new("node", LIMIT) else { return };
    let script = "set -e
        : > kmsg
        mount --bind kmsg /dev/kmsg
        exec \"$@\"";
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];
    let can = Command::new(unshare[0]).args(&unshare[1..]).args(["true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return skipped("this machine allows no namespace");
    }
    let rank = r#"now=$(awk '{ printf "%d", $1 * 1000000 }' /proc/uptime)
        echo "4,7,$now,-,caller=T1;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/other,task=tail,pid=$$,uid=0" >> kmsg
        exec tail /dev/zero"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&limited.0);
    shell.args(unshare).args([script, "sh"]);
    let ended = Launcher::of(shell, [executable()]).args(job(rank)).run();
    ended.expect_nothing_left().expect_code(137).expect_words(&[
        "the kernel's log says that the node itself ran out of memory",
        "check what else runs on the node",
    ]);
}

/// One rank that runs this script.
fn alone(options: &[&str], script: &str) -> Vec<OsString> {
    let words = [&["--lang", "en"], options, &["--", "sh", "-c", script]].concat();
    run_args("direct", 1).into_iter().chain(words.into_iter().map(OsString::from)).collect()
}

/// The same launcher with an unreadable kernel log, as in most containers. `None` if no namespace is
/// allowed here.
fn without_log(limited: &MemoryLimit, words: Vec<OsString>) -> Option<Launcher> {
    let unshare = ["unshare", "--mount", "sh", "-c"];
    let hide = "mount --bind /dev/null /dev/kmsg";
    let can = Command::new(unshare[0]).args(&unshare[1..]).arg(hide).output();
    if !can.is_ok_and(|can| can.status.success()) {
        skipped("this machine allows no mount of ours");
        return None;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&limited.0);
    shell.args(unshare).args([&format!("{hide} && exec \"$@\""), "sh"]);
    Some(Launcher::of(shell, [executable()]).args(words))
}

/// The peak is from an earlier program, so only the kernel's record or the peak itself shows the limit.
#[test]
fn full_container_is_blamed_at_the_next_job() {
    let Some(limited) = MemoryLimit::new("next", LIMIT) else { return };
    limited.also_limits_swap(LIMIT);
    let fill = "echo $$ > \"$0/cgroup.procs\" && tail /dev/zero";
    let filled = Command::new("sh").args(["-c", fill]).arg(&limited.0).status().expect("sh");
    assert!(!filled.success());
    let with_log = limited.launcher(alone(&[], EAT));
    for launcher in [Some(with_log), without_log(&limited, alone(&[], EAT))].into_iter().flatten() {
        let ended = launcher.run().expect_nothing_left().expect_code(137).expect_words(&[
            "the container's limit is 128 MiB, and its use peaked at 12",
            "(memory.oom)",
        ]);
        assert_eq!(ended.run_json(0)["oom"]["limit_bytes"], LIMIT);
    }
}

/// The rank goes on after the loss of a helper, and is killed by hand after the launcher has looked at the
/// running processes (twice a second): a cause for which a restart can help.
#[test]
fn outside_kill_is_not_blamed_on_helpers_oom() {
    let Some(limited) = MemoryLimit::new("helper", LIMIT) else { return };
    let script = "[ $RANKLAUNCH_ATTEMPT = 0 ] || exit 0
        tail /dev/zero; echo \"helper ended with $?\"; sleep 3; kill -9 $$";
    let job = || alone(&["--max-restarts", "1"], script);
    let launchers = [Some(limited.launcher(job())), without_log(&limited, job())];
    for launcher in launchers.into_iter().flatten() {
        let ended = launcher.run().expect_nothing_left().expect_code(0);
        let ended = ended.expect_words(&["helper ended with 137"]);
        assert!(!ended.err.contains("out-of-memory killer: "), "{}", ended.err);
    }
    let Some(once) = without_log(&limited, alone(&[], script)) else { return };
    once.run().expect_nothing_left().expect_code(137).expect_words(&[
        "SIGKILL was sent from outside",
        "killer had ended 1 process of this container, not this one: the container's limit is 128 MiB",
        "(rank.signal)",
    ]);
    // The control: the helper's end and the kill come at once, and cannot be distinguished without a log.
    let at_once = "(tail /dev/zero); kill -9 $$";
    let Some(control) = without_log(&limited, alone(&[], at_once)) else { return };
    control.run().expect_nothing_left().expect_code(137).expect_id("memory.oom");
}

#[test]
fn agent_killed_outside_is_not_blamed_on_helper() {
    let Some(limited) = MemoryLimit::new("agent", LIMIT) else { return };
    let script = "tail /dev/zero; sleep 3; kill -9 $(cut -d ' ' -f 4 /proc/$PPID/stat); sleep 60";
    let ended = limited.launcher(alone(&[], script)).run().expect_nothing_left();
    ended.expect_code(137).expect_words(&[
        "agent was killed by SIGKILL",
        "killer had ended 1 process of this container, not this one",
        "(agent.killed)",
    ]);
}

/// Control groups of version 2 without a namespace, as under Slurm: two real groups, with files for their
/// counters and for those of the slice around them. Removed at the end.
struct Slice(PathBuf);

impl Slice {
    fn new(name: &str) -> Option<Slice> {
        let name = format!("ranklaunch-test-{}-{name}", std::process::id());
        let places = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let mounted = |place: &&Path| place.join("cgroup.controllers").exists();
        let slice = Slice(places.into_iter().find(mounted).unwrap_or(places[1]).join(name));
        let made = slice.jobs().iter().all(|job| std::fs::create_dir_all(job).is_ok());
        let can = Command::new("unshare").args(["--mount", "true"]).output();
        if made && can.is_ok_and(|can| can.status.success()) {
            return Some(slice);
        }
        skipped("no control groups of version 2, or no mounts, can be made here");
        None
    }

    fn jobs(&self) -> [PathBuf; 2] {
        ["job_1", "job_2"].map(|job| self.0.join(job))
    }

    /// The launcher runs in job_1. A rank finds the counters in $SLICE, and the real job_2 in the folder
    /// `other`.
    fn launcher(&self, words: Vec<OsString>) -> Launcher {
        let script = r#"set -e
            echo $$ > "$0/cgroup.procs"
            mkdir other; mount --bind "$1" other; shift
            mount --bind /dev/null /dev/kmsg; mount -t tmpfs none /sys/fs/cgroup
            for group in . job_1 job_2; do
                mkdir -p "$SLICE/$group"
                printf 'oom 0\noom_kill 0\n' > "$SLICE/$group/memory.events"
                echo 8589934592 > "$SLICE/$group/memory.max"
                echo 999999999 > "$SLICE/$group/memory.peak"
            done
            exec "$@""#;
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", script]).args(self.jobs());
        let shown = Path::new("/sys/fs/cgroup").join(self.0.file_name().expect("a name"));
        let launcher = Launcher::of(shell, [executable()]).args(words);
        launcher.env("SLICE", shown.to_str().expect("a plain path"))
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        for group in self.jobs().iter().chain([&self.0]) {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// The kernel counts a kill of another job in the slice around both jobs.
#[test]
fn oom_kill_of_another_job_is_ignored() {
    let Some(slice) = Slice::new("beside") else { return };
    let beside = r#"for group in . job_2; do
            printf 'oom 1\noom_kill 1\n' > "$SLICE/$group/memory.events"
        done"#;
    let by_hand = format!("[ $RANKLAUNCH_ATTEMPT = 0 ] || exit 0; {beside}; kill -9 $$");
    let launcher = slice.launcher(alone(&["--max-restarts", "1"], &by_hand));
    let ended = launcher.run().expect_nothing_left().expect_code(0);
    assert!(!ended.err.contains("out-of-memory killer: "), "{}", ended.err);
    // The control: a rank that has entered that group.
    let inside = format!("echo $$ > other/cgroup.procs; {beside}; kill -9 $$");
    let launcher = slice.launcher(alone(&[], &inside));
    launcher.run().expect_nothing_left().expect_code(137).expect_id("memory.oom");
}
