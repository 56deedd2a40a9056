//! CPUs on which ranks run, and the order in which the kernel would kill processes, read from /proc
//! of real processes.

use std::ffi::OsString;
use std::process::Command;

use harness::{Ended, Launcher, executable, program, run_args, wait_until};

/// Fakes two NUMA nodes of one CPU each, then runs the program. Hides /sys/devices/system/node
/// in a mount namespace of its own.
pub(crate) const TWO_NODES: &str = "mount -t tmpfs none /sys/devices/system/node && \
    cd /sys/devices/system/node && mkdir node0 node1 && \
    echo \"$1\" > node0/cpulist && echo \"$2\" > node1/cpulist && \
    cd \"$3\" && shift 3 && exec \"$@\"";

pub(crate) const NAMESPACE: [&str; 3] = ["--user", "--map-root-user", "--mount"];

/// The first and the last CPU of this process. `None` with a single CPU, or if a mount namespace is
/// not allowed, as in some containers.
pub(crate) fn two_cpus() -> Option<(String, String)> {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = allowed.expect("a list").trim();
    let first = allowed.split([',', '-']).next().expect("a CPU").to_owned();
    let last = allowed.rsplit([',', '-']).next().expect("a CPU").to_owned();
    let tried = Command::new("unshare")
        .args(NAMESPACE)
        .args(["sh", "-c", "mount -t tmpfs none /sys/devices/system/node"])
        .output();
    let possible = tried.is_ok_and(|output| output.status.success());
    if first == last || !possible {
        harness::skipped(format_args!(
            "needs two CPUs ({allowed}) and a mount namespace ({possible})"
        ));
        return None;
    }
    Some((first, last))
}

/// Two ranks on two fake NUMA nodes; each prints its CPUs.
fn ranks_on(nodes: &(String, String), engine: &str, bind: &str) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    let mut args: Vec<OsString> = NAMESPACE.into_iter().map(OsString::from).collect();
    args.extend(["sh", "-c", TWO_NODES, "sh", &nodes.0, &nodes.1].map(OsString::from));
    args.extend([folder.path().into(), executable().into_os_string()]);
    args.extend(run_args(engine, 2));
    args.extend(["--bind", bind, "--", "sh", "-c"].map(OsString::from));
    args.push(
        "echo $LOCAL_RANK runs on $(sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status), \
         $OMP_NUM_THREADS threads, ${RANKLAUNCH_CPUS-nothing} left"
            .into(),
    );
    Launcher::of(Command::new("unshare"), args).run().expect_code(0).expect_nothing_left()
}

#[test]
fn bound_rank_runs_on_its_numa_nodes_cpus() {
    let Some(nodes) = two_cpus() else { return };
    for engine in ["direct", "torchrun"] {
        let ended = ranks_on(&nodes, engine, "numa");
        for (rank, cpu) in [&nodes.0, &nodes.1].into_iter().enumerate() {
            let line = format!("[r{rank}] {rank} runs on {cpu}, 1 threads, nothing left");
            assert!(ended.out.contains(&line), "{engine}: {line}\n{}\n{}", ended.out, ended.err);
        }
    }
}

#[test]
fn unbound_rank_runs_on_all_cpus() {
    let Some(nodes) = two_cpus() else { return };
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let all = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    let all = all.expect("a list");
    let ended = ranks_on(&nodes, "direct", "none");
    assert!(ended.out.contains(&format!("[r1] 1 runs on {all}, ")), "{}", ended.out);
}

#[test]
fn oom_killer_prefers_a_rank_to_its_watchers() {
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), program("rank.sh").into_os_string(), "wait".into()]);
    let mut running = Launcher::new(args).start();
    running.says("READY", 1);
    let score = |pid: i32| -> i32 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
        text.expect("it lives").trim().parse().expect("a number")
    };
    let all = running.processes();
    let shim = all.iter().find(|process| process.command().contains("ranklaunch rank"));
    let shim = shim.expect("a shim is there").pid;
    let rank = wait_until("the rank", || {
        running.processes().into_iter().find(|process| process.parent == shim)
    });
    let own = score(i32::try_from(std::process::id()).expect("a pid"));
    for (who, pid) in [("guard", running.pid()), ("agent", running.agent()), ("shim", shim)] {
        assert_eq!(score(pid), own, "{who}");
    }
    assert_eq!(score(rank.pid), (own + 10).min(1000));
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}
