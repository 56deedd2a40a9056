//! Sets the CPU affinity and the OOM score of a rank between fork and exec.
//!
//! One variable carries the plan's CPU lists for all ranks of a node, since engines give every
//! rank the same environment. The shim picks its list by local rank and removes the variable. A
//! failure of either step is a line in the rank's standard error and never prevents its start.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::thread::CpuSet;

use linux::cpus::CpuList;
use linux::sys::Pid;
use text::lang::Lang;
use text::text;

/// `0-31;0-31;;32-63`: CPU lists by local rank; an empty one binds nothing.
pub(super) const CPUS: &str = "RANKLAUNCH_CPUS";

/// Difference between a rank's oom_score_adj and ours, in thousandths of the memory that the kernel
/// counts against (the cgroup's limit, or the machine's memory).
///
/// Guard, agent and shims must outlive the rank in order to report what happened. One hundredth
/// of the memory exceeds their size, and that of torchrun from 64 GB on. More would change the
/// rank of the pod among its neighbours, which the kubelet has set (-997 guaranteed, 2 to 999
/// burstable, 1000 best effort). At 1000 nothing can be added, and the size decides: that of a
/// rank is the largest as soon as it has imported torch.
const SOONER: i32 = 10;

const OOM_SCORE: &std::ffi::CStr = c"/proc/self/oom_score_adj";

pub(super) fn encode(bindings: &[Option<CpuList>]) -> OsString {
    let lists: Vec<String> = bindings
        .iter()
        .map(|cpus| cpus.as_ref().map_or_else(String::new, CpuList::to_string))
        .collect();
    lists.join(";").into()
}

fn decode(value: &str, local_rank: u32) -> Option<CpuList> {
    let list = value.split(';').nth(usize::try_from(local_rank).ok()?)?;
    Some(CpuList::read(list)).filter(|cpus| !cpus.is_empty())
}

/// The placement, prepared before the fork, since the child may only make system calls.
pub(super) struct Placement {
    /// The CPUs, with the message if the kernel refuses them.
    cpus: Option<(CpuSet, String)>,
    oom_score: Option<String>,
}

impl Placement {
    /// The placement of the rank that this shim starts.
    pub(super) fn of(local_rank: u32) -> Placement {
        let asked = std::env::var(CPUS).ok().and_then(|value| decode(&value, local_rank));
        let ours = std::fs::read_to_string("/proc/self/oom_score_adj");
        let ours = ours.ok().and_then(|text| text.trim().parse::<i32>().ok());
        Placement {
            cpus: asked.map(|cpus| (cpus.as_set(), refusal(&cpus))),
            oom_score: ours.map(|ours| ours.saturating_add(SOONER).min(1000).to_string()),
        }
    }

    /// Runs in the child.
    pub(super) fn take(&self) {
        if let Some((cpus, refusal)) = &self.cpus
            && rustix::thread::sched_setaffinity(None, cpus).is_err()
        {
            // Standard error already belongs to the rank.
            let _ = rustix::io::write(io::stderr(), refusal.as_bytes());
        }
        // Raising one's own score needs no privilege. If /proc is read-only the rank starts
        // anyway.
        if let Some(score) = &self.oom_score
            && let Ok(file) = rustix::fs::open(OOM_SCORE, OFlags::WRONLY, Mode::empty())
        {
            let _ = rustix::io::write(&file, score.as_bytes());
        }
    }

    /// Places a child that was forked already and executes nothing.
    pub(super) fn give(&self, child: i32, stderr: impl AsFd) {
        if let Some((cpus, refusal)) = &self.cpus
            && rustix::thread::sched_setaffinity(Pid::from_raw(child), cpus).is_err()
        {
            let _ = rustix::io::write(stderr, refusal.as_bytes());
        }
        if let Some(score) = &self.oom_score {
            let _ = std::fs::write(format!("/proc/{child}/oom_score_adj"), score);
        }
    }
}

/// The language of a process that has read no settings.
pub(super) fn language() -> Lang {
    Lang::from_environment(|name| std::env::var(name).ok())
}

fn refusal(cpus: &CpuList) -> String {
    let text = text!(
        "ranklaunch: this rank cannot be bound to CPUs {cpus}: it runs on all that the container has\n  hint: --bind none does not try\n",
        "ranklaunch: 无法将该 rank 绑定到 CPU {cpus}，将使用容器的全部 CPU\n  提示：--bind none 不进行绑定\n"
    );
    text.get(language()).to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use linux::sys;

    #[test]
    fn each_local_rank_gets_its_own_cpu_list() {
        let bindings = [Some(CpuList::read("0-31,64")), None, Some(CpuList::read("7"))];
        let value = encode(&bindings);
        let value = value.to_str().expect("plain text");
        assert_eq!(value, "0-31,64;;7");
        for (rank, expected) in bindings.into_iter().chain([None]).enumerate() {
            assert_eq!(decode(value, u32::try_from(rank).expect("small")), expected, "{rank}");
        }
    }

    /// Starts `cat` with `placement`: its standard output and standard error.
    fn child(placement: Placement, file: &str) -> (String, String) {
        let mut command = Command::new("cat");
        command.arg(file);
        sys::in_child(&mut command, move || {
            placement.take();
            Ok(())
        });
        let output = command.output().expect("cat runs");
        assert!(output.status.success());
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(output.stdout), text(output.stderr))
    }

    fn bound_to(cpus: &CpuList) -> Placement {
        Placement { cpus: Some((cpus.as_set(), refusal(cpus))), oom_score: None }
    }

    #[test]
    fn child_runs_only_on_its_cpus() {
        let status = std::fs::read_to_string("/proc/self/status").expect("a status");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed = allowed.expect("a list").trim();
        let last = allowed.rsplit([',', '-']).next().expect("a CPU");
        let (status, complaint) = child(bound_to(&CpuList::read(last)), "/proc/self/status");
        assert!(status.contains(&format!("Cpus_allowed_list:\t{last}\n")), "{status}");
        assert_eq!(complaint, "");
    }

    #[test]
    fn missing_cpus_are_reported_without_stopping_the_child() {
        let (status, complaint) = child(bound_to(&CpuList::read("1023")), "/proc/self/status");
        assert!(status.contains("Cpus_allowed_list:"));
        assert!(complaint.contains("1023") && complaint.ends_with('\n'), "{complaint}");
    }

    #[test]
    fn child_oom_score_exceeds_our_own() {
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("a score");
        let own: i32 = own.trim().parse().expect("a number");
        let (score, _) = child(Placement::of(0), "/proc/self/oom_score_adj");
        assert_eq!(score.trim().parse(), Ok((own + SOONER).min(1000)));
    }
}
