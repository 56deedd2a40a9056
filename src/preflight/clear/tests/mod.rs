//! Fake /proc folders, and the tests on them and on real processes.

mod adopters;
mod fates;
mod real_processes;
mod silent;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;
use linux::host::Host;

/// A fake process. The defaults describe an orphan of our user that is older than we are.
#[derive(Clone)]
struct Planted {
    pid: i32,
    ppid: i32,
    session: i32,
    terminal: i32,
    start: u64,
    state: char,
    argv: &'static str,
    environ: &'static str,
    uid: u32,
    namespace: &'static str,
    cgroup: &'static str,
    open: &'static str,
    /// The kernel's short name, if it differs from the name of the program.
    comm: &'static str,
    /// Ignores SIGHUP, as after nohup.
    nohup: bool,
    /// The executable, if it is not the first argument.
    exe: &'static str,
    maps: &'static str,
}

fn planted(pid: i32, argv: &'static str) -> Planted {
    Planted {
        pid,
        ppid: 1,
        session: pid,
        terminal: 0,
        start: 100,
        state: 'S',
        argv,
        environ: "PATH=/bin",
        uid: 1000,
        namespace: "pid:[1]",
        cgroup: "0::/pod/a",
        open: "/dev/null",
        comm: "",
        nohup: false,
        exe: "",
        maps: "",
    }
}

/// The init of most tests: the init of a container, which adopts and starts nothing.
fn init() -> Planted {
    Planted { ppid: 0, start: 1, session: 1, ..planted(1, "sleep infinity") }
}

/// The boot id of this host. `HERE` in an environment stands for this and our PID namespace.
const BOOT: &str = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";

/// A /proc with an init (1), ourselves (50, below shell 40), and `processes`; one of them may
/// be another init.
fn host(folder: &Path, processes: &[Planted]) -> Host {
    let own = Planted { ppid: 40, start: 500, ..planted(50, "/bin/ranklaunch run") };
    let shell = Planted { start: 50, ..planted(40, "bash") };
    let init = init();
    let init = Some(&init).filter(|_| processes.iter().all(|one| one.pid != 1));
    for one in init.into_iter().chain([&shell, &own]).chain(processes) {
        let Planted { pid, ppid, session, terminal, start, state, .. } = one;
        let proc = folder.join(format!("proc/{pid}"));
        std::fs::create_dir_all(proc.join("ns")).expect("folder");
        std::fs::create_dir_all(proc.join("fd")).expect("folder");
        let first = one.argv.split(' ').next().unwrap_or_default();
        let comm = first.rsplit('/').next().unwrap_or_default();
        let comm = if one.comm.is_empty() { comm } else { one.comm };
        let zeros = "0 ".repeat(14);
        let stat = format!(
            "{pid} ({comm}) {state} {ppid} {session} {session} {terminal} {zeros}0 {start} 0\n"
        );
        // Fields 8 to 21 are fourteen; removes the extra zero above.
        let stat = stat.replacen(&format!("{zeros}0 "), &zeros, 1);
        std::fs::write(proc.join("stat"), stat).expect("stat");
        let exe = if one.exe.is_empty() { first } else { one.exe };
        symlink(Path::new("/bin").join(exe), proc.join("exe")).expect("exe");
        std::fs::write(proc.join("maps"), one.maps).expect("maps");
        let nul = |text: &str| format!("{}\0", text.replace(' ', "\0"));
        std::fs::write(proc.join("cmdline"), nul(one.argv)).expect("cmdline");
        let environ = one.environ.replace("HERE", "BOOT:1").replace("BOOT", BOOT);
        std::fs::write(proc.join("environ"), nul(&environ)).expect("environ");
        let ignored = u64::from(one.nohup);
        let status = format!("Name:\tx\nUid:\t0\t{}\t0\t0\nSigIgn:\t{ignored:016x}\n", one.uid);
        std::fs::write(proc.join("status"), status).expect("status");
        std::fs::write(proc.join("cgroup"), format!("{}\n", one.cgroup)).expect("cgroup");
        symlink(one.namespace, proc.join("ns/pid")).expect("ns");
        symlink("/job", proc.join("cwd")).expect("cwd");
        symlink(one.open, proc.join("fd/3")).expect("fd");
    }
    std::fs::create_dir_all(folder.join("job")).expect("job");
    std::fs::write(folder.join("job/train.py"), "").expect("script");
    symlink("50", folder.join("proc/self")).expect("self");
    let random = folder.join("proc/sys/kernel/random");
    std::fs::create_dir_all(&random).expect("folder");
    std::fs::write(random.join("boot_id"), format!("{BOOT}\n")).expect("boot id");
    std::fs::write(folder.join("proc/uptime"), "100.25 200.00\n").expect("uptime");
    Host::replayed(
        folder,
        BTreeMap::<OsString, OsString>::from([("SLURM_JOB_ID".into(), "7".into())]),
    )
}

fn request() -> Request {
    Request {
        script: Some(PathBuf::from("/job/train.py")),
        gpu_minors: vec![0, 1],
        ..Request::new(StaleMode::Kill)
    }
}

/// Pids that end under `kill`, only under `force`, and under no mode.
fn fates(processes: &[Planted]) -> [Vec<i32>; 3] {
    let folder = tempfile::tempdir().expect("folder");
    let found = find(&host(folder.path(), processes), &request());
    let of = |which: fn(&Fate) -> bool| {
        found.iter().filter(|one| which(&one.fate)).map(|one| one.pid).collect()
    };
    [
        of(|fate| matches!(fate, Fate::Leftover(_))),
        of(|fate| matches!(fate, Fate::Forced(_))),
        of(|fate| matches!(fate, Fate::Spared(_))),
    ]
}

/// A python that runs the script with these variables.
fn runs(environ: &'static str) -> Planted {
    Planted { environ, ..planted(60, "python -u train.py") }
}

/// `unshare --pid --fork --mount-proc` around many sleeping processes; prints the time of a scan.
#[test]
#[ignore = "a measurement, run by hand among thousands of processes"]
fn scan_time() {
    let host = Host::live();
    for _ in 0..3 {
        let start = Instant::now();
        let found = find(&host, &request());
        let scanned = host.pids().len();
        println!("{scanned} processes, {} found, {:?}", found.len(), start.elapsed());
    }
}
