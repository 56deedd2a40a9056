//! External evidence for why a job ended: the driver and the kernel.
//!
//! Takes the GPUs and the ranks of a node; gives their [`Statement`]s to the diagnosis, at any time.

use std::io::{PipeReader, PipeWriter, pipe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::held;
use linux::host::Host;
use node::observe::kernel_log::{About, JobIdentity, KernelLine, KernelLog};
use node::observe::{LoggedKills, gpu};
use node::probe::{CallError, NvmlGpu, Waited, WatchLine, WatchLines, WatchProbe};
use settings::ProbeMode;
use text::rank::GlobalRank;

/// All witnesses of one attempt.
#[derive(Debug, Default)]
pub struct Witnesses {
    driver: Option<DriverWatch>,
    kernel: Option<Mutex<KernelWatch>>,
}

impl Witnesses {
    /// Begins to watch these GPUs and the kernel's log. `asks_driver`: NVML counted the GPUs.
    pub async fn start(
        host: &Arc<Host>,
        mode: ProbeMode,
        gpus: Vec<WatchedGpu>,
        asks_driver: bool,
    ) -> Witnesses {
        let kernel = KernelWatch::start(host, gpus.clone()).map(Mutex::new);
        let asks_driver = asks_driver && !gpus.is_empty();
        let driver = if asks_driver { DriverWatch::start(host, mode, gpus).await } else { None };
        Witnesses { driver, kernel }
    }

    /// The process that watches the driver, a child of ours.
    pub fn companion(&self) -> Option<i32> {
        self.driver.as_ref()?.pid
    }

    /// Handle that asks the driver about the activity of the GPUs.
    pub fn live_gpus(&self) -> Option<LiveGpus> {
        let driver = self.driver.as_ref()?;
        Some(LiveGpus(Arc::clone(&driver.watched)))
    }

    /// A rank has started.
    pub fn began(&self, rank: GlobalRank, pid: i32) {
        if let Some(kernel) = &self.kernel {
            held(kernel).began(rank, pid);
        }
    }

    /// Statements of all witnesses up to now.
    pub fn statements(&self) -> Vec<Statement> {
        let driver = self.driver.iter().flat_map(|driver| driver.watched.statements());
        driver.chain(self.kernel.iter().flat_map(|kernel| held(kernel).statements())).collect()
    }

    /// Kills for memory in the kernel's log; empty if the log is not readable.
    pub fn oom_kills(&self) -> LoggedKills {
        self.kernel.as_ref().map(|kernel| held(kernel).oom_kills()).unwrap_or_default()
    }

    /// Time of the driver's first statement while the ranks ran.
    pub fn first(&self) -> Option<Instant> {
        let heard = held(&self.driver.as_ref()?.watched.heard);
        heard.xids.iter().map(|xid| xid.first).min()
    }
}

/// One line of a witness that is not a process of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Source of the line, as people read it.
    pub place: &'static str,
    /// The rank that the line is about, if known.
    pub rank: Option<GlobalRank>,
    /// Arrival of the line.
    pub arrived: Instant,
    pub line: String,
}

/// A GPU that the ranks of this launcher use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedGpu {
    /// `0000:18:00.0`
    pub pci: String,
    /// NVML's number.
    pub index: u32,
    /// None if several ranks share the GPU, or its user is unknown.
    pub rank: Option<GlobalRank>,
}

/// Source of these statements, as people read it.
const DRIVER: &str = "NVML event";
/// Time limit to execute the probe, which takes milliseconds: the start of the ranks waits for it,
/// since their supervisor has to know it from the start.
const STARTED: Duration = Duration::from_secs(5);
/// Time limit of the wait for an answer. A later answer is given to the next question, if that comes
/// soon.
const ANSWER: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(2);
/// The same Xid of a GPU after a longer pause counts as a new event.
const EPISODE: Duration = Duration::from_secs(60);
/// Maximum number of statements of each witness that are kept; a GPU has no more different Xids in a job.
const MOST: usize = 256;

/// The watch of one attempt. Ends when dropped.
#[derive(Debug)]
struct DriverWatch {
    /// Ends the thread when closed.
    _stop: PipeWriter,
    watched: Arc<WatchedDriver>,
    pid: Option<i32>,
}

/// Asks the driver about the activity of the job's GPUs, for any thread.
#[derive(Debug, Clone)]
pub struct LiveGpus(Arc<WatchedDriver>);

#[derive(Debug)]
struct WatchedDriver {
    heard: Mutex<Heard>,
    /// Lines were read.
    read: Condvar,
}

/// Reports of the probe up to now.
#[derive(Debug)]
struct Heard {
    lines: WatchLines,
    gpus: Vec<WatchedGpu>,
    xids: Vec<HeardXid>,
    /// A question waits for its answer.
    is_asked: bool,
    answer: Option<(Vec<NvmlGpu>, Instant)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct HeardXid {
    pci: Option<String>,
    number: u64,
    first: Instant,
    last: Instant,
}

impl DriverWatch {
    /// Starts the probe for GPUs that NVML counted. None if it could not be started.
    async fn start(host: &Host, mode: ProbeMode, gpus: Vec<WatchedGpu>) -> Option<DriverWatch> {
        let library = gpu::library(host);
        let (stopped, stop) = pipe().ok()?;
        let (started, begun) = tokio::sync::oneshot::channel();
        let run = move || {
            let addresses: Vec<String> = gpus.iter().map(|gpu| gpu.pci.clone()).collect();
            let (probe, lines) = match WatchProbe::start(mode, library.as_deref(), &addresses) {
                Ok(begun) => begun,
                Err(error) => {
                    tracing::warn!(%error, "no watch for Xids");
                    return;
                }
            };
            let heard = Mutex::new(Heard::new(lines, gpus));
            let watched = Arc::new(WatchedDriver { heard, read: Condvar::new() });
            // Without a receiver it is too late: the probe would be taken for a part of the job.
            match started.send((Arc::clone(&watched), probe.pid())) {
                Ok(()) => watch(probe, &watched, &stopped),
                Err(_) => probe.end(),
            }
        };
        let thread = std::thread::Builder::new().name("xids".to_owned()).stack_size(256 * 1024);
        thread.spawn(run).ok()?;
        let Ok(begun) = tokio::time::timeout(STARTED, begun).await else {
            tracing::warn!("no watch for Xids: the probe was not executed in time");
            return None;
        };
        let (watched, pid) = begun.ok()?;
        Some(DriverWatch { _stop: stop, watched, pid })
    }
}

impl LiveGpus {
    /// Current state of the GPUs; none if the driver does not answer within a moment. A driver that hangs
    /// is waited for once.
    pub fn now(&self) -> Vec<NvmlGpu> {
        let LiveGpus(watched) = self;
        let mut heard = watched.read();
        let late = heard.answer.take().filter(|(_, at)| at.elapsed() < SOON).map(|(gpus, _)| gpus);
        if heard.is_asked || !heard.lines.ask() {
            return late.unwrap_or_default();
        }
        heard.is_asked = true;
        if let Some(late) = late {
            return late;
        }
        let waits = |heard: &mut Heard| heard.is_asked && !heard.lines.ended;
        let waited = watched.read.wait_timeout_while(heard, ANSWER, waits);
        let (mut heard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        heard.answer.take().map(|(gpus, _)| gpus).unwrap_or_default()
    }
}

impl WatchedDriver {
    /// All Xids up to now.
    fn statements(&self) -> Vec<Statement> {
        let heard = self.read();
        heard.xids.iter().map(|xid| of_xid(xid, &heard.gpus)).collect()
    }

    /// The state after all lines so far.
    fn read(&self) -> MutexGuard<'_, Heard> {
        let mut heard = held(&self.heard);
        let now = Instant::now();
        for line in heard.lines.take() {
            heard.note(line, now);
        }
        self.read.notify_all();
        heard
    }
}

/// Reads the output of the probe until the watch is dropped.
fn watch(mut probe: WatchProbe, watched: &WatchedDriver, stopped: &PipeReader) {
    while probe.wait(stopped) == Waited::Readable {
        let ended = watched.read().lines.ended;
        if ended {
            let noise = probe.noise();
            tracing::info!(noise, "the watch for Xids is over");
            probe.read_out();
        }
    }
    probe.end();
}

impl Heard {
    fn new(lines: WatchLines, gpus: Vec<WatchedGpu>) -> Heard {
        Heard { lines, gpus, xids: Vec::new(), is_asked: false, answer: None }
    }

    fn note(&mut self, line: WatchLine, now: Instant) {
        match line {
            WatchLine::Watching(gpus) => tracing::info!(gpus, "watching for Xids"),
            WatchLine::Gpus(mut gpus) => {
                gpus.retain_mut(|gpu| {
                    let known = self.gpus.iter().find(|known| Some(&known.pci) == gpu.pci.as_ref());
                    known.map(|known| gpu.index = known.index).is_some()
                });
                (self.is_asked, self.answer) = (false, Some((gpus, now)));
            }
            WatchLine::Failed { pci, error } => {
                let CallError { call, code, text } = error;
                let gpu = pci.unwrap_or_default();
                tracing::warn!(gpu, call, code, error = text, "the driver does not tell of Xids");
            }
            WatchLine::Xid { pci, number } => {
                let gpu = pci.as_deref().unwrap_or("?");
                tracing::warn!(gpu, number, "Xid");
                let same = |known: &&mut HeardXid| {
                    known.pci == pci
                        && known.number == number
                        && now.saturating_duration_since(known.last) < EPISODE
                };
                if let Some(known) = self.xids.iter_mut().find(same) {
                    known.last = now;
                } else if self.xids.len() < MOST {
                    self.xids.push(HeardXid { pci, number, first: now, last: now });
                }
            }
        }
    }
}

/// The Xid as a line of the kernel, whose rows of the catalogue know it.
fn of_xid(xid: &HeardXid, gpus: &[WatchedGpu]) -> Statement {
    let HeardXid { pci, number, first, .. } = xid;
    let gpu = gpus.iter().find(|gpu| Some(&gpu.pci) == pci.as_ref());
    // The kernel leaves out the function.
    let address = pci.as_deref().map_or("?", |pci| pci.rsplit_once('.').map_or(pci, |(at, _)| at));
    let index = gpu.map(|gpu| format!(", GPU {}", gpu.index)).unwrap_or_default();
    Statement {
        place: DRIVER,
        rank: gpu.and_then(|gpu| gpu.rank),
        arrived: *first,
        line: format!("NVRM: Xid (PCI:{address}): {number}{index}"),
    }
}

/// Source of these statements, as people read it.
const KERNEL: &str = "kernel log";
/// Maximum number of other lines of the kernel that are noted.
const MOST_NOTED: usize = 20;
/// Older lines are not evidence. They are read so late that nothing shows whether the job went on
/// after them; a hang ends by the time-out of the collectives, usually after 10 or 30 minutes.
const RECENT: Duration = Duration::from_secs(40 * 60);

/// The log of one attempt.
#[derive(Debug)]
struct KernelWatch {
    host: Arc<Host>,
    log: KernelLog,
    job: JobIdentity,
    /// Whether pids of the log are those that we see.
    pids_are_ours: bool,
    gpus: Vec<WatchedGpu>,
    ranks: Vec<(i32, GlobalRank)>,
    statements: Vec<Statement>,
    noted: usize,
    kills: LoggedKills,
}

impl KernelWatch {
    /// None if the log is not readable.
    fn start(host: &Arc<Host>, gpus: Vec<WatchedGpu>) -> Option<KernelWatch> {
        let log = match KernelLog::begin(host) {
            Ok(log) => log,
            Err(error) => {
                tracing::info!(%error, "the kernel log is not readable");
                return None;
            }
        };
        let addresses = gpus.iter().map(|gpu| gpu.pci.clone()).collect();
        let job = JobIdentity::here(host, addresses);
        let pids_are_ours = JobIdentity::has_pids_of_the_machine(host);
        Some(KernelWatch {
            host: Arc::clone(host),
            log,
            job,
            pids_are_ours,
            gpus,
            ranks: Vec::new(),
            statements: Vec::new(),
            noted: 0,
            kills: LoggedKills::new(pids_are_ours),
        })
    }

    fn began(&mut self, rank: GlobalRank, pid: i32) {
        if self.pids_are_ours {
            self.ranks.push((pid, rank));
            self.job.pids.push(pid);
        }
    }

    /// Recent statements of the log up to now.
    fn statements(&mut self) -> Vec<Statement> {
        self.read();
        let recent = |statement: &&Statement| statement.arrived.elapsed() <= RECENT;
        self.statements.iter().filter(recent).cloned().collect()
    }

    /// The processes of the job that the kernel killed for memory, and the place whose memory was
    /// exhausted.
    fn oom_kills(&mut self) -> LoggedKills {
        self.read();
        self.kills.clone()
    }

    fn read(&mut self) {
        let lines = self.log.lines(&self.host, &self.job);
        for (at, line) in lines {
            self.note(at, line);
        }
    }

    fn note(&mut self, arrived: Instant, KernelLine { about, text, .. }: KernelLine) {
        self.kills.read(&text, &self.job.groups);
        let rank = match about {
            About::Gpu(at) => self.gpus.get(at).and_then(|gpu| gpu.rank),
            About::Process(pid) => {
                self.ranks.iter().find(|(known, _)| *known == pid).map(|(_, rank)| *rank)
            }
            About::Group | About::Storage => {
                if self.noted < MOST_NOTED {
                    self.noted += 1;
                    tracing::warn!(line = text, "the kernel logged, which is no cause");
                }
                return;
            }
        };
        if self.statements.len() < MOST {
            tracing::warn!(line = text, "the kernel logged");
            self.statements.push(Statement { place: KERNEL, rank, arrived, line: text });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;
    use text::rank::GlobalRank;

    fn xid(pci: Option<&str>, number: u64, at: Instant) -> HeardXid {
        HeardXid { pci: pci.map(str::to_owned), number, first: at, last: at }
    }

    fn heard(gpus: Vec<WatchedGpu>) -> (Heard, UnixStream) {
        let (socket, probe) = UnixStream::pair().expect("a socket");
        (Heard::new(WatchLines::of(socket), gpus), probe)
    }

    #[test]
    fn xid_statement_has_kernel_wording_and_gpu_rank() {
        let now = Instant::now();
        let gpu = WatchedGpu { pci: "0000:3b:00.0".into(), index: 2, rank: Some(GlobalRank(10)) };
        let told = of_xid(&xid(Some("0000:3b:00.0"), 79, now), &[gpu]);
        assert_eq!(told.line, "NVRM: Xid (PCI:0000:3b:00): 79, GPU 2");
        assert_eq!((told.rank, told.place), (Some(GlobalRank(10)), "NVML event"));
        let unknown = of_xid(&xid(None, 48, now), &[]);
        assert_eq!((&*unknown.line, unknown.rank), ("NVRM: Xid (PCI:?): 48", None));
    }

    #[test]
    fn repeated_xids_merge_unless_far_apart() {
        let (mut heard, _) = heard(Vec::new());
        let now = Instant::now();
        let line = || WatchLine::Xid { pci: None, number: 94 };
        for seconds in [0, 10, 69, 200, 210] {
            heard.note(line(), now + Duration::from_secs(seconds));
        }
        heard.note(WatchLine::Xid { pci: None, number: 63 }, now);
        let first: Vec<Duration> = heard.xids.iter().map(|xid| xid.first - now).collect();
        assert_eq!(first, [0, 200, 0].map(Duration::from_secs));
        for number in 0..1000 {
            heard.note(WatchLine::Xid { pci: None, number }, now);
        }
        assert_eq!(heard.xids.len(), MOST);
    }

    #[test]
    fn hung_driver_is_asked_and_awaited_once() {
        let gpu = WatchedGpu { pci: "0000:3b:00.0".into(), index: 2, rank: None };
        let (heard, mut probe) = heard(vec![gpu]);
        let live =
            LiveGpus(Arc::new(WatchedDriver { heard: Mutex::new(heard), read: Condvar::new() }));
        assert_eq!(live.now(), []);
        let again = Instant::now();
        assert_eq!(live.now(), []);
        assert!(again.elapsed() < ANSWER);
        // The driver comes back: the late answer is shown, without the GPU that nobody asked for.
        let of =
            |pci: &str, index| NvmlGpu { pci: Some(pci.to_owned()), index, ..NvmlGpu::default() };
        let line = WatchLine::Gpus(vec![of("0000:3b:00.0", 0), of("0000:5b:00.0", 0)]);
        let line = serde_json::to_string(&line).expect("JSON") + "\n";
        probe.write_all(line.as_bytes()).expect("it is read");
        assert_eq!(live.now(), [of("0000:3b:00.0", 2)]);
        let mut asked = [0; 8];
        assert_eq!(probe.read(&mut asked).expect("questions"), 2, "the first, and one more now");
        drop(probe);
        assert_eq!(live.now(), []);
    }
}
