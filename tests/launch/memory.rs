//! Whose memory was exhausted: a limit of the container, of both kinds that version 1 of control
//! groups has, or the node's, by the kernel's own words.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Ended, Launcher, executable, run_args, skipped};

/// A control group with a memory limit, version 1 or 2, that the launcher enters; removed at the
/// end.
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

    /// As `docker run --memory X --memory-swap X`; false where swap is not counted with it.
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

/// Two ranks; rank 1 does this.
fn job(rank_1: &str) -> Vec<OsString> {
    let script = format!("[ $RANK = 1 ] || exec sleep 300; {rank_1}");
    let words = ["--lang", "en", "--", "sh", "-c", &script];
    run_args("direct", 2).into_iter().chain(words.map(OsString::from)).collect()
}

/// tail keeps a line until it ends, and /dev/zero has no end of line.
const EAT: &str = "exec tail /dev/zero";

/// What `explain` says about the run.
fn explained(ended: &Ended) -> String {
    let logs = ended.folder().join("ranklaunch-logs/latest");
    Launcher::new(["explain", "--lang", "en"]).args([logs]).run().out
}

#[test]
fn the_containers_limit_is_blamed_with_either_limit_of_swap() {
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

/// The control: the same end without a kill of the kernel.
#[test]
fn a_kill_from_outside_is_not_called_out_of_memory() {
    let Some(limited) = MemoryLimit::new("outside", LIMIT) else { return };
    let ended = limited.launcher(job("kill -9 $$")).run().expect_nothing_left().expect_code(137);
    let ended = ended.expect_words(&["recorded no out-of-memory kill", "(rank.signal)"]);
    assert!(ended.run_json(0)["oom"].is_null());
}

/// A file stands for /dev/kmsg, into which the rank writes what the kernel would before it is killed.
#[test]
fn the_node_is_blamed_by_the_words_of_the_kernel() {
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
