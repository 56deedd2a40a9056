//! Asks the kernel's log about the job once the job has failed.
//!
//! Takes the GPUs and, while they start, the ranks; gives [`Statement`]s for the diagnosis. Reads
//! nothing while all is well. Two kinds of lines are only noted in agent.jsonl: the kill of a process that
//! is not a rank, since its rank may have outlived the loss of a helper and otherwise reports it; and
//! problems with storage, which the job may not use.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::statement::{Statement, WatchedGpu};
use linux::host::Host;
use node::observe::LoggedKills;
use node::observe::kernel_log::{About, JobIdentity, KernelLine, KernelLog};
use text::rank::GlobalRank;

/// Source of these statements, as people read it.
const PLACE: &str = "kernel log";
/// Statements that are kept, and other lines that are noted.
const MOST: usize = 256;
const MOST_NOTED: usize = 20;
/// Older lines are not evidence. They are read so late that nothing shows whether the job went on
/// after them; a hang ends by the time-out of the collectives, usually after 10 or 30 minutes.
const RECENT: Duration = Duration::from_secs(40 * 60);

/// The log of one attempt.
#[derive(Debug)]
pub(super) struct KernelWatch(Mutex<Watched>);

#[derive(Debug)]
struct Watched {
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
    pub(super) fn start(host: &Arc<Host>, gpus: Vec<WatchedGpu>) -> Option<KernelWatch> {
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
        Some(KernelWatch(Mutex::new(Watched {
            host: Arc::clone(host),
            log,
            job,
            pids_are_ours,
            gpus,
            ranks: Vec::new(),
            statements: Vec::new(),
            noted: 0,
            kills: LoggedKills::new(pids_are_ours),
        })))
    }

    pub(super) fn began(&self, rank: GlobalRank, pid: i32) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.pids_are_ours {
            watched.ranks.push((pid, rank));
            watched.job.pids.push(pid);
        }
    }

    /// Recent statements of the log up to now.
    pub(super) fn statements(&self) -> Vec<Statement> {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.read();
        let recent = |statement: &&Statement| statement.arrived.elapsed() <= RECENT;
        watched.statements.iter().filter(recent).cloned().collect()
    }

    /// The processes of the job that the kernel killed for memory, and the place whose memory was
    /// exhausted.
    pub(super) fn oom_kills(&self) -> LoggedKills {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.read();
        watched.kills.clone()
    }
}

impl Watched {
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
            self.statements.push(Statement { place: PLACE, rank, arrived, line: text });
        }
    }
}
