//! Hears from the driver, while the ranks run, of the Xids of the GPUs that they use.
//!
//! Takes the GPUs; gives [`Statement`]s for the diagnosis. A probe waits in the driver; a thread of
//! ours owns it, since a probe dies with the thread that started it. Whatever the driver does, no
//! rank and no end of a job waits for it. What does not work is said in agent.jsonl, once.

use std::io::{PipeReader, PipeWriter, pipe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::statements::{Statement, WatchedGpu};
use crate::host::Host;
use crate::observe::gpu;
use crate::probe::{CallError, Waited, XidLine, XidLines, XidProbe};
use crate::settings::ProbeMode;

/// Where these statements come from, as people read it.
const PLACE: &str = "NVML event";
/// Time limit to execute the probe, which takes milliseconds: the start of the ranks waits for it,
/// since who supervises them has to know it from the start.
const STARTED: Duration = Duration::from_secs(5);
/// The same Xid of a GPU after a longer pause is another trouble.
const EPISODE: Duration = Duration::from_secs(60);
/// Statements that are kept; a GPU has no more different Xids in a job.
const MOST: usize = 256;

/// The watch of one attempt. Ends when dropped.
#[derive(Debug)]
pub(super) struct XidWatch {
    /// Closed, it ends the thread.
    _stop: PipeWriter,
    heard: Arc<Mutex<Heard>>,
    pid: Option<i32>,
}

/// What the probe said up to now.
#[derive(Debug)]
struct Heard {
    lines: XidLines,
    gpus: Vec<WatchedGpu>,
    xids: Vec<HeardXid>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct HeardXid {
    pci: Option<String>,
    number: u64,
    first: Instant,
    last: Instant,
}

impl XidWatch {
    /// Starts the probe for GPUs that NVML counted. None: it could not be started.
    pub(super) async fn start(
        host: &Host,
        mode: ProbeMode,
        gpus: Vec<WatchedGpu>,
    ) -> Option<XidWatch> {
        let library = gpu::library(host);
        let (stopped, stop) = pipe().ok()?;
        let (started, begun) = tokio::sync::oneshot::channel();
        let run = move || {
            let addresses: Vec<String> = gpus.iter().map(|gpu| gpu.pci.clone()).collect();
            let (probe, lines) = match XidProbe::start(mode, library.as_deref(), &addresses) {
                Ok(begun) => begun,
                Err(error) => {
                    tracing::warn!(%error, "no watch for Xids");
                    return;
                }
            };
            let heard = Arc::new(Mutex::new(Heard { lines, gpus, xids: Vec::new() }));
            // Without a receiver it is too late: it would be taken for a part of the job.
            match started.send((Arc::clone(&heard), probe.pid())) {
                Ok(()) => watch(probe, &heard, &stopped),
                Err(_) => probe.end(),
            }
        };
        let thread = std::thread::Builder::new().name("xids".to_owned()).stack_size(256 * 1024);
        thread.spawn(run).ok()?;
        let Ok(begun) = tokio::time::timeout(STARTED, begun).await else {
            tracing::warn!("no watch for Xids: the probe was not executed in time");
            return None;
        };
        let (heard, pid) = begun.ok()?;
        Some(XidWatch { _stop: stop, heard, pid })
    }

    /// The probe's process, a child of ours.
    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// All Xids up to now.
    pub(super) fn statements(&self) -> Vec<Statement> {
        let mut heard = lock(&self.heard);
        heard.read();
        heard.xids.iter().map(|xid| statement(xid, &heard.gpus)).collect()
    }

    /// When the first Xid came, if any has.
    pub(super) fn first(&self) -> Option<Instant> {
        lock(&self.heard).xids.iter().map(|xid| xid.first).min()
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what the probe says until the watch is dropped.
fn watch(mut probe: XidProbe, heard: &Mutex<Heard>, stopped: &PipeReader) {
    while probe.wait(stopped) == Waited::Readable {
        let ended = {
            let mut heard = lock(heard);
            heard.read();
            heard.lines.ended
        };
        if ended {
            let noise = probe.noise();
            tracing::info!(noise, "the watch for Xids is over");
            probe.read_out();
        }
    }
    probe.end();
}

impl Heard {
    fn read(&mut self) {
        let now = Instant::now();
        for line in self.lines.take() {
            self.note(line, now);
        }
    }

    fn note(&mut self, line: XidLine, now: Instant) {
        match line {
            XidLine::Watching(gpus) => tracing::info!(gpus, "watching for Xids"),
            XidLine::Failed { pci, error } => {
                let CallError { call, code, text } = error;
                let gpu = pci.unwrap_or_default();
                tracing::warn!(gpu, call, code, error = text, "the driver does not tell of Xids");
            }
            XidLine::Xid { pci, number } => {
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
fn statement(xid: &HeardXid, gpus: &[WatchedGpu]) -> Statement {
    let HeardXid { pci, number, first, .. } = xid;
    let gpu = gpus.iter().find(|gpu| Some(&gpu.pci) == pci.as_ref());
    // The kernel leaves out the function.
    let address = pci.as_deref().map_or("?", |pci| pci.rsplit_once('.').map_or(pci, |(at, _)| at));
    let index = gpu.map(|gpu| format!(", GPU {}", gpu.index)).unwrap_or_default();
    Statement {
        place: PLACE,
        rank: gpu.and_then(|gpu| gpu.rank),
        arrived: *first,
        line: format!("NVRM: Xid (PCI:{address}): {number}{index}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::GlobalRank;

    fn xid(pci: Option<&str>, number: u64, at: Instant) -> HeardXid {
        HeardXid { pci: pci.map(str::to_owned), number, first: at, last: at }
    }

    fn heard(gpus: Vec<WatchedGpu>) -> Heard {
        Heard { lines: XidLines::nothing(), gpus, xids: Vec::new() }
    }

    #[test]
    fn an_xid_is_told_as_the_kernel_tells_it_with_the_rank_of_its_gpu() {
        let now = Instant::now();
        let gpu = WatchedGpu { pci: "0000:3b:00.0".into(), index: 2, rank: Some(GlobalRank(10)) };
        let told = statement(&xid(Some("0000:3b:00.0"), 79, now), &[gpu]);
        assert_eq!(told.line, "NVRM: Xid (PCI:0000:3b:00): 79, GPU 2");
        assert_eq!((told.rank, told.place), (Some(GlobalRank(10)), "NVML event"));
        let unknown = statement(&xid(None, 48, now), &[]);
        assert_eq!((&*unknown.line, unknown.rank), ("NVRM: Xid (PCI:?): 48", None));
    }

    #[test]
    fn a_storm_is_one_trouble_and_the_same_xid_hours_later_is_another() {
        let mut heard = heard(Vec::new());
        let now = Instant::now();
        let line = || XidLine::Xid { pci: None, number: 94 };
        for seconds in [0, 10, 69, 200, 210] {
            heard.note(line(), now + Duration::from_secs(seconds));
        }
        heard.note(XidLine::Xid { pci: None, number: 63 }, now);
        let first: Vec<Duration> = heard.xids.iter().map(|xid| xid.first - now).collect();
        assert_eq!(first, [0, 200, 0].map(Duration::from_secs));
        for number in 0..1000 {
            heard.note(XidLine::Xid { pci: None, number }, now);
        }
        assert_eq!(heard.xids.len(), MOST);
    }
}
