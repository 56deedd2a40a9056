//! Kernel messages about a job since its start, from /dev/kmsg.
//!
//! Takes the [`Host`]; gives the lines that concern the job ([`JobIdentity`]). The log is that of the whole machine: a
//! line counts only if it names a GPU, a process or a control group of the job. Reading never waits; without permission
//! (dmesg_restrict, a container) there are no lines.
//!
//!
//! Lines about the kills for memory tell the process, and the limit that was reached ([`LoggedKills`]).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use linux::cgroups::memberships;
use linux::host::Host;
use text::order::InOrder;

const KMSG: &str = "/dev/kmsg";
/// Major and minor number of the device (devices.txt).
const DEVICE: (u32, u32) = (1, 11);
/// Maximum bytes of one record, which the kernel gives whole or not at all (CONSOLE_EXT_LOG_MAX).
const RECORD: usize = 16 * 1024;
/// Maximum bytes that are read at one failure; the kernel's buffer is seldom larger.
const MOST_BYTES: usize = 4 << 20;
/// Time limit of reading, in case the kernel logs faster than we can read.
const MOST_TIME: Duration = Duration::from_millis(300);
/// The pid namespace of the machine (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The kernel's log from the start of a job.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    began: Instant,
    rest: Vec<u8>,
}

/// The properties by which a line is recognised as concerning the job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobIdentity {
    /// PCI addresses of the job's GPUs, in any form of `0000:18:00.0`.
    pub gpus: Vec<String>,
    /// Pids of the job's ranks in the kernel's numbering; empty if the kernel numbers them differently.
    pub pids: Vec<i32>,
    /// Control groups that hold only the job (`/kubepods/pod9/c1`); empty if they are unknown.
    pub groups: Vec<String>,
}

impl JobIdentity {
    /// Whether the kernel's log numbers processes in the same way as this process.
    pub fn has_pids_of_the_machine(host: &Host) -> bool {
        let link = host.read_link(Path::new("/proc/self/ns/pid"));
        link.is_ok_and(|link| link == Path::new(FIRST_PID_NAMESPACE))
    }

    /// A job in our control groups, on GPUs with these addresses.
    pub fn here(host: &Host, gpus: Vec<String>) -> JobIdentity {
        JobIdentity { gpus, pids: Vec::new(), groups: own_groups(host) }
    }
}

/// A line that concerns the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLine {
    /// Time since the machine started.
    pub at: Duration,
    pub about: About,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// A GPU of the job, by its index in [`JobIdentity::gpus`].
    Gpu(usize),
    /// A rank, by its pid.
    Process(i32),
    /// A process of the job, which may not be a rank.
    Group,
    /// Storage of the machine, which the job may not use.
    Storage,
}

impl KernelLog {
    /// Opens the log at its end.
    ///
    /// # Errors
    /// If the log does not exist, is not readable, or something else has its name: some containers link it to the
    /// console, and reading that would consume the user's input.
    pub fn begin(host: &Host) -> io::Result<KernelLog> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).unwrap_or_default();
        let mut file =
            File::options().read(true).custom_flags(flags).open(host.path(Path::new(KMSG)))?;
        let metadata = file.metadata()?;
        let device = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        let is_log = metadata.file_type().is_char_device() && device == DEVICE;
        if !is_log && !metadata.is_file() {
            return Err(io::Error::other("it is not the kernel's log"));
        }
        file.seek(SeekFrom::End(0))?;
        Ok(KernelLog { file, began: Instant::now(), rest: Vec::new() })
    }

    /// The lines about the job since the last call, each with its time.
    pub fn lines(&mut self, host: &Host, job: &JobIdentity) -> Vec<(Instant, KernelLine)> {
        self.read();
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        self.rest.drain(..self.rest.len().saturating_sub(RECORD));
        let (up, now) = (uptime(host), Instant::now());
        let lines = concerning(&whole, job).into_iter();
        // The clock of the log drifts from this clock, so its times are clamped to the job's duration.
        let at = |line: &KernelLine| {
            let since = up.saturating_sub(line.at);
            now.checked_sub(since).map_or(self.began, |at| at.max(self.began))
        };
        lines.map(|line| (at(&line), line)).collect()
    }

    fn read(&mut self) {
        let deadline = Instant::now() + MOST_TIME;
        let mut record = vec![0; RECORD];
        while self.rest.len() < MOST_BYTES && Instant::now() < deadline {
            match self.file.read(&mut record) {
                Ok(0) => return,
                Ok(count) => self.rest.extend(record.iter().take(count)),
                // Older records were overwritten; the next read gives the oldest remaining record.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// Time since the machine started, including time in suspension, which nodes do not have.
fn uptime(host: &Host) -> Duration {
    let text = host.read("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// Our memory control groups, with the names of the kernel's log. The root group is left out, and so are groups whose
/// names a namespace hides.
fn own_groups(host: &Host) -> Vec<String> {
    let text = host.read("/proc/self/cgroup").unwrap_or_default();
    let is_own = |(controllers, path): &(&str, &str)| {
        let of_memory =
            controllers.is_empty() || controllers.split(',').any(|name| name == "memory");
        of_memory && path.len() > 1 && !path.contains("/..")
    };
    memberships(&text).filter(is_own).map(|(_, path)| path.to_owned()).collect()
}

/// The lines about the job among records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg).
fn concerning(records: &[u8], job: &JobIdentity) -> Vec<KernelLine> {
    let mut lines: Vec<(Duration, String)> = Vec::new();
    for line in records.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        let Some((at, continues, text)) = record(&line) else { continue };
        match lines.last_mut().filter(|_| continues) {
            Some((_, last)) => last.push_str(text),
            None => lines.push((at, text.to_owned())),
        }
    }
    let line =
        |(at, text): (Duration, String)| Some(KernelLine { at, about: about(&text, job)?, text });
    lines.into_iter().filter_map(line).collect()
}

/// The time of a record such as `4,1312,9120771204,-,caller=T88120;NVRM: Xid …`, whether it continues the last one, and
/// its text. None for a property of a device
/// (` KEY=value`), a part of a record, and a line that a program wrote into the log.
fn record(line: &str) -> Option<(Duration, bool, &str)> {
    let (header, text) = line.split_once(';')?;
    let mut fields = header.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let _sequence: u64 = fields.next()?.parse().ok()?;
    let at = Duration::from_micros(fields.next()?.parse().ok()?);
    let continues = fields.next()? == "+";
    // The upper bits are the facility, which is 0 for the kernel.
    (priority >> 3 == 0).then_some((at, continues, text))
}

fn about(text: &str, job: &JobIdentity) -> Option<About> {
    of_gpu(text, job).or_else(|| of_memory(text, job)).or_else(|| of_crash(text, job)).or_else(
        || {
            const STORAGE: [&str; 4] = ["I/O error", "nfs: server ", "EXT4-fs error", "XFS ("];
            STORAGE.iter().any(|words| text.contains(words)).then_some(About::Storage)
        },
    )
}

/// Recognises `NVRM: Xid (PCI:0000:3b:00): 79, …`, and the loss of a GPU without a number.
fn of_gpu(text: &str, job: &JobIdentity) -> Option<About> {
    let text = text.strip_prefix("NVRM: ")?;
    let address = match text.strip_prefix("Xid (PCI:") {
        Some(rest) => rest.split([')', ' ']).next()?,
        None if text.contains("fallen off the bus") => {
            let rest = text.strip_prefix("GPU at PCI:").or_else(|| text.strip_prefix("GPU "))?;
            rest.split(' ').next()?.trim_end_matches(':')
        }
        None => return None,
    };
    let address = function(address)?;
    job.gpus.iter().position(|gpu| function(gpu) == Some(address)).map(About::Gpu)
}

/// Domain, bus and device of an address such as `0000:3b:00` or `00000000:3B:00.0`.
fn function(address: &str) -> Option<(u32, u32, u32)> {
    let address = address.split('.').next()?;
    let mut parts = address.split(':').map(|part| u32::from_str_radix(part, 16).ok());
    let found = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(found)
}

fn of_memory(text: &str, job: &JobIdentity) -> Option<About> {
    let of_rank = victim(text).filter(|pid| job.pids.contains(pid)).map(About::Process);
    of_rank.or_else(|| {
        let group = field(text.strip_prefix("oom-kill:")?, "task_memcg").unwrap_or_default();
        job.groups.iter().any(|own| is_within(group, own)).then_some(About::Group)
    })
}

/// Recognises `python3[8812]: segfault at 10 ip …`, `traps: python3[8812] general protection fault …`.
fn of_crash(text: &str, job: &JobIdentity) -> Option<About> {
    let (before, _) =
        text.split_once("]: segfault at ").or_else(|| text.split_once("] general protection"))?;
    let pid = before.rsplit('[').next()?.parse().ok()?;
    job.pids.contains(&pid).then_some(About::Process(pid))
}

/// The limit or node whose memory was exhausted, according to the kernel's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomConstraint {
    /// The limit of the control group this many levels around the job's group; 0 is the job's group.
    Around(usize),
    /// The limit of a control group inside the job's group.
    Inside,
    /// The limit of a control group with another place.
    Unknown,
    /// No memory was left on the node, or on the NUMA nodes that the process may use.
    Node,
}

impl OomConstraint {
    fn of(limited: &str, own: &str) -> OomConstraint {
        let depth = |path: &str| path.split('/').filter(|name| !name.is_empty()).count();
        match (is_within(own, limited), is_within(limited, own)) {
            (true, _) => OomConstraint::Around(depth(own) - depth(limited)),
            (false, true) => OomConstraint::Inside,
            (false, false) => OomConstraint::Unknown,
        }
    }
}

/// Whether `inner` is the group `outer` or a group inside it.
fn is_within(inner: &str, outer: &str) -> bool {
    let rest = inner.strip_prefix(outer.trim_end_matches('/'));
    rest.is_some_and(|rest| matches!(rest.bytes().next(), None | Some(b'/')))
}

/// The constraint in a line such as
/// `oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/kubepods/pod9,task_memcg=/kubepods/pod9/c1,…`. With `global_oom`
/// the limit is not that of a control group (mm/oom_kill.c, mem_cgroup_print_oom_context). `own`: the job's groups; if
/// a namespace hides their names, the victim's group is used instead.
fn constraint(text: &str, own: &[String]) -> Option<OomConstraint> {
    let fields = text.strip_prefix("oom-kill:constraint=CONSTRAINT_")?;
    match fields.split(',').next()? {
        "MEMCG" => {
            let task = field(fields, "task_memcg").unwrap_or_default();
            let own = own.iter().map(String::as_str).find(|own| is_within(task, own));
            let limited = field(fields, "oom_memcg").filter(|_| !task.is_empty());
            let place = limited.map(|limited| OomConstraint::of(limited, own.unwrap_or(task)));
            Some(place.unwrap_or(OomConstraint::Unknown))
        }
        _ if fields.split(',').any(|field| field == "global_oom") => Some(OomConstraint::Node),
        _ => None,
    }
}

/// The value of `NAME=VALUE` in a list with commas.
fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// The pid in a line such as `oom-kill:constraint=…,task_memcg=/kubepods/pod9/c1,task=python3,pid=9911,uid=0` or
/// `Memory cgroup out of memory: Killed process 9911 (python3) …`.
fn victim(text: &str) -> Option<i32> {
    if let Some(fields) = text.strip_prefix("oom-kill:") {
        return field(fields, "pid")?.parse().ok();
    }
    let (_, rest) = text.split_once("ut of memory: Killed process ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The kills for memory that the log reports for a job.
#[derive(Debug, Clone, Default)]
pub struct LoggedKills {
    /// Victim and constraint of each line, in their order; one kill may have several lines.
    lines: Vec<(Option<i32>, Option<OomConstraint>)>,
    /// Whether the log numbers processes in the same way as this process.
    pids_are_ours: bool,
}

impl LoggedKills {
    pub fn new(pids_are_ours: bool) -> LoggedKills {
        LoggedKills { lines: Vec::new(), pids_are_ours }
    }

    /// Reads a line about the job. The line may be about something else than a kill.
    pub fn read(&mut self, text: &str, own: &[String]) {
        let (pid, constraint) = (victim(text), constraint(text, own));
        if pid.is_some() || constraint.is_some() {
            self.lines.push((pid.filter(|_| self.pids_are_ours), constraint));
        }
    }

    /// The place whose memory was exhausted when this process was killed, or else at the last kill.
    pub fn constraint(&self, pid: Option<i32>) -> Option<OomConstraint> {
        let own = self.lines.iter().filter(|(victim, _)| victim.is_some() && *victim == pid);
        let said = |(_, constraint): &(_, Option<OomConstraint>)| *constraint;
        own.filter_map(said).next().or_else(|| self.lines.iter().rev().find_map(said))
    }

    /// Whether this process was killed. None: the log does not tell, since it names fewer other processes than were
    /// counted.
    pub fn names(&self, pid: i32, counted: u64) -> Option<bool> {
        let named: BTreeSet<i32> = self.lines.iter().filter_map(|(victim, _)| *victim).in_set();
        let all = u64::try_from(named.len()).is_ok_and(|named| named >= counted);
        if named.contains(&pid) { Some(true) } else { all.then_some(false) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write;

    use super::*;

    fn job() -> JobIdentity {
        JobIdentity {
            gpus: vec!["0000:18:00.0".into(), "0000:3b:00.0".into()],
            pids: vec![8812, 9911],
            groups: vec!["/kubepods/pod9/c1".into()],
        }
    }

    fn found(text: &str) -> Option<About> {
        let record = format!("3,1312,9120771204,-;{text}\n");
        let mut lines = concerning(record.as_bytes(), &job());
        assert!(lines.len() < 2, "{lines:?}");
        lines.pop().map(|line| line.about)
    }

    #[test]
    fn line_counts_only_for_the_jobs_resources() {
        for (text, about) in [
            (
                "NVRM: Xid (PCI:0000:3b:00): 79, pid=88120, name=python3, GPU has fallen off the bus.",
                Some(About::Gpu(1)),
            ),
            (
                "NVRM: Xid (PCI:0000:18:00 GPU-I:03): 94, pid='<unknown>', name=<unknown>",
                Some(About::Gpu(0)),
            ),
            (
                "NVRM: Xid (PCI:0000:3B:00): 149, NVLINK: NETIR Fatal XC0 i0 Link 07 (0x8000c3 0x0)",
                Some(About::Gpu(1)),
            ),
            ("NVRM: Xid (PCI:0000:86:00): 79, pid=1, GPU has fallen off the bus.", None),
            ("NVRM: Xid (PCI:0001:3b:00): 79, pid=1, GPU has fallen off the bus.", None),
            ("NVRM: Xid (PCI:", None),
            ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", Some(About::Gpu(1))),
            ("NVRM: GPU at PCI:0000:3b:00: GPU-8ad1 has fallen off the bus", Some(About::Gpu(1))),
            ("NVRM: GPU at PCI:0000:3b:00: GPU-8ad1", None),
            (
                "nvidia-nvswitch1: SXid (PCI:0000:3b:00.0): 20034, Fatal, Link 22 LTSSM Fault Up",
                None,
            ),
            (
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,oom_memcg=/kubepods/pod9,task_memcg=/kubepods/pod9/c1,task=python3,pid=71,uid=0",
                Some(About::Group),
            ),
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/kubepods/pod9/c12,task=python3,pid=72,uid=0",
                None,
            ),
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task_memcg=/other,task=python3,pid=9911,uid=0",
                Some(About::Process(9911)),
            ),
            (
                "Memory cgroup out of memory: Killed process 9911 (python3) total-vm:81234512kB",
                Some(About::Process(9911)),
            ),
            ("Out of memory: Killed process 99110 (python3) total-vm:81234512kB", None),
            (
                "python3[8812]: segfault at 10 ip 00007f0a11 sp 00007ffd20 error 4 in libx.so[7f0a0+8000]",
                Some(About::Process(8812)),
            ),
            (
                "python3[8813]: segfault at 10 ip 00007f0a11 sp 00007ffd20 error 4 in libx.so[7f0a0+8000]",
                None,
            ),
            (
                "traps: pt_main_thread[8812] general protection fault ip:7f0a sp:7ffd error:0",
                Some(About::Process(8812)),
            ),
            ("blk_update_request: I/O error, dev nvme2n1, sector 81230112", Some(About::Storage)),
            ("nfs: server fs12 not responding, timed out", Some(About::Storage)),
            ("eth0: link up", None),
        ] {
            assert_eq!(found(text), about, "{text}");
        }
        // If pids and groups are unknown, they prove nothing.
        let nobody = JobIdentity::default();
        let records =
            b"3,1,5,-;python3[8812]: segfault at 10 ip 7f\n3,2,6,-;oom-kill:task_memcg=/a,pid=1\n";
        assert_eq!(concerning(records, &nobody), []);
    }

    #[test]
    fn whole_records_are_read_parts_are_ignored() {
        let records = b"0000:3b:00): 79, the end of a record\n\
            4,1312,9120771204,-,caller=T88120;NVRM: Xid (PCI:0000:3b:00): 79, GPU lost\n\
            \x20SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n\
            6,1313,9120771300,c;NVRM: Xid (PCI:0000:18:00): 31, \n\
            6,1314,9120771301,+;Ch 00000008\n\
            12,1315,9120771302,-;NVRM: Xid (PCI:0000:18:00): 48, of a program\n\
            4,1316;NVRM: Xid (PCI:0000:18:00): 48\n\xff\xfe;\n;\n,,,;\n\
            4,1317,9120771303,-;NVRM: Xid (PCI:0000:18";
        let lines = concerning(records, &job());
        let texts: Vec<&str> = lines.iter().map(|line| &*line.text).collect();
        assert_eq!(
            texts,
            [
                "NVRM: Xid (PCI:0000:3b:00): 79, GPU lost",
                "NVRM: Xid (PCI:0000:18:00): 31, Ch 00000008"
            ]
        );
        assert_eq!(lines[0].at, Duration::from_micros(9_120_771_204));
    }

    fn host(root: &Path) -> Host {
        std::fs::create_dir_all(root.join("dev")).expect("a folder");
        Host::replayed(root, BTreeMap::new())
    }

    #[test]
    fn records_since_the_start_are_read_once() {
        let root = tempfile::tempdir().expect("a folder");
        let host = host(root.path());
        assert!(KernelLog::begin(&host).is_err(), "there is none");
        let path = root.path().join("dev/kmsg");
        let xid = |number: u32| format!("4,{number},1,-;NVRM: Xid (PCI:0000:3b:00): {number}, x\n");
        std::fs::write(&path, xid(13)).expect("a file");
        let mut log = KernelLog::begin(&host).expect("it is readable");
        let mut file = File::options().append(true).open(&path).expect("a file");
        let mut texts = |written: &str| {
            file.write_all(written.as_bytes()).expect("written");
            let lines = log.lines(&host, &job());
            assert!(lines.iter().all(|(at, _)| *at >= log.began && *at <= Instant::now()));
            lines.into_iter().map(|(_, line)| line.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(""), [""; 0]);
        let (whole, part) = (xid(79), xid(48));
        let (part, rest) = part.split_at(20);
        assert_eq!(texts(&format!("{whole}{part}")), ["NVRM: Xid (PCI:0000:3b:00): 79, x"]);
        assert_eq!(texts(rest), ["NVRM: Xid (PCI:0000:3b:00): 48, x"]);
        // The input is more than is ever read at once, and none of it is kept for ever.
        assert_eq!(texts(&"x".repeat(3 * RECORD)), [""; 0]);
        assert!(log.rest.len() <= RECORD);
    }

    #[test]
    fn other_file_types_named_kmsg_are_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let host = host(root.path());
        let listener = std::os::unix::net::UnixListener::bind(root.path().join("dev/kmsg"));
        let listener = listener.expect("a socket");
        assert!(KernelLog::begin(&host).is_err());
        drop(listener);
        std::fs::remove_file(root.path().join("dev/kmsg")).expect("removed");
        let fifo = root.path().join("dev/kmsg");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a pipe");
        assert!(KernelLog::begin(&host).is_err());
    }

    #[test]
    fn only_groups_of_the_job_itself_are_named() {
        let groups = |text: &str| {
            let root = tempfile::tempdir().expect("a folder");
            std::fs::create_dir_all(root.path().join("proc/self")).expect("a folder");
            std::fs::write(root.path().join("proc/self/cgroup"), text).expect("a file");
            own_groups(&Host::replayed(root.path(), BTreeMap::new()))
        };
        assert_eq!(groups("0::/kubepods/pod9/c1\n"), ["/kubepods/pod9/c1"]);
        assert_eq!(groups("4:cpu,cpuacct:/a\n3:memory:/docker/1f\n0::/\n"), ["/docker/1f"]);
        assert_eq!(groups("0::/\n"), [""; 0]);
        assert_eq!(groups("0::/../../pod9\n"), [""; 0]);
    }

    #[test]
    fn the_constraint_of_a_kill_is_read() {
        for (text, said) in [
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/pod/c1,task=python3,pid=1,uid=0",
                Some(OomConstraint::Node),
            ),
            (
                "oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=1,uid=0",
                Some(OomConstraint::Unknown),
            ),
            ("Memory cgroup out of memory: Killed process 1 (python3)", None),
        ] {
            assert_eq!(constraint(text, &[]), said, "{text}");
        }
    }

    /// The group whose limit was reached, the victim's group, and our group if it is known.
    #[test]
    fn limited_group_is_placed_relative_to_ours() {
        use OomConstraint::{Around, Inside, Unknown};
        for (limited, task, own, place) in [
            ("/pod/c1", "/pod/c1", Some("/pod/c1"), Around(0)),
            ("/pod", "/pod/c1", Some("/pod/c1"), Around(1)),
            ("/", "/pod/c1", Some("/pod/c1"), Around(2)),
            ("/pod/c1/sub", "/pod/c1/sub", Some("/pod/c1"), Inside),
            ("/pod/c1", "/pod/c1/sub", Some("/pod/c1"), Around(0)),
            ("/pod/c10", "/pod/c1", Some("/pod/c1"), Unknown),
            // A namespace hides our names, and a rank that is known by its pid is in another group.
            ("/pod/c1", "/pod/c1", None, Around(0)),
            ("/pod", "/pod/c1", None, Around(1)),
            ("/other", "/other", Some("/pod/c1"), Around(0)),
        ] {
            let text = format!(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={limited},task_memcg={task},task=python3,pid=1,uid=0"
            );
            let own: Vec<String> = own.into_iter().map(str::to_owned).collect();
            assert_eq!(constraint(&text, &own), Some(place), "{text}");
        }
    }

    #[test]
    fn victim_is_known_if_all_are_named() {
        let helper = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/c,task_memcg=/c,task=perl,pid=71,uid=0";
        let rank = "Memory cgroup out of memory: Killed process 8812 (python3) total-vm:1kB";
        let node = "oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/c,task=python3,pid=8812,uid=0";
        let group = Some(OomConstraint::Around(0));
        for (lines, ours, counted, killed, constraint) in [
            (&[helper][..], true, 1, Some(false), group),
            (&[helper], true, 2, None, group),
            (&[helper], false, 1, None, group),
            (&[helper, rank], true, 2, Some(true), group),
            (&[node, helper], true, 2, Some(true), Some(OomConstraint::Node)),
            (&[helper, helper], true, 2, None, group),
            (&[], true, 1, None, None),
        ] {
            let mut kills = LoggedKills::new(ours);
            lines.iter().for_each(|line| kills.read(line, &["/c".to_owned()]));
            let said = (kills.names(8812, counted), kills.constraint(Some(8812)));
            assert_eq!(said, (killed, constraint), "{lines:?} {counted}");
        }
    }
}
