//! What the ranks write: pipes → files, console, and the last lines in memory.
//!
//! Takes the read ends of the ranks' and the engine's pipes. Gives
//! `rank-<rrrrr>.out|.err` with the raw bytes, `engine.log`, prefixed whole lines
//! on the console, the crash tail and an account of what was lost. Plain threads
//! only. Must never hold a rank: a console that stops, a full disk, a file system
//! that hangs cost lines, which are counted, not time.

mod capped;
mod console;
mod escape;
mod files;
mod folder;
mod held;
mod lines;
mod reader;
mod rows;
mod sink;
mod stall_budget;
mod tail;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

pub use console::Console;
pub use escape::printable;
use files::{Closed, FilePort, FileWriter};
pub use folder::{Candidate, choose_folder, default_candidates};
pub use held::{Level, LogFolder};
use lines::LineFormatter;
use reader::{Counters, Quiet, Reader};
use tail::Tail;
pub use tail::TailLine;

use crate::lang::Text;
use crate::rank::GlobalRank;
use crate::settings::{Console as ConsoleMode, ConsolePrefix};
use crate::supervise::{Owner, Stream};
use crate::text;

/// Stack of our threads; they keep their buffers on the heap.
const STACK: usize = 256 * 1024;
/// What an unprivileged process may set (pipe-max-size); beyond 64 MiB for one
/// user in all the kernel refuses, and the pipe stays as it is.
const PIPE_BYTES: usize = 1024 * 1024;
/// How long a pipe may stay open after every process of the job is gone: whoever
/// got hold of its other end from outside keeps it so.
const OPEN: Duration = Duration::from_secs(1);
/// How long a reader that was told to stop may take: it only empties its pipe.
const STOP: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct LogsConfig {
    /// Where the files go. None: memory and console only.
    pub folder: Option<Arc<LogFolder>>,
    pub world_size: u32,
    /// Ranks of this node, among which `cap_node` is divided.
    pub local_ranks: u32,
    pub console: ConsoleMode,
    pub prefix: ConsolePrefix,
    /// Bytes on disk per rank, half of it for each stream.
    pub cap_rank: u64,
    /// Bytes on disk for all files of this node.
    pub cap_node: u64,
}

impl LogsConfig {
    /// Bytes on disk for one owner, so that all together stay below the node's cap.
    fn cap_owner(&self) -> u64 {
        self.cap_rank.min(self.cap_node / (u64::from(self.local_ranks) + 1))
    }

    fn on_console(&self, owner: Owner, stream: Stream) -> bool {
        match self.console {
            ConsoleMode::All => true,
            ConsoleMode::Rank0 => {
                matches!(owner, Owner::Engine | Owner::Rank(GlobalRank(0)) | Owner::Command(0))
            }
            ConsoleMode::Errors => owner == Owner::Engine || stream == Stream::Err,
            ConsoleMode::None => false,
        }
    }

    fn console_prefix(&self, owner: Owner, stream: Stream) -> String {
        if self.world_size <= 1 || self.prefix == ConsolePrefix::None {
            return String::new();
        }
        let width = (self.world_size - 1).to_string().len();
        match (owner, stream) {
            (Owner::Engine, _) => "[engine] ".to_owned(),
            (Owner::Rank(rank), Stream::Out) => format!("[r{rank:0width$}] "),
            (Owner::Rank(rank), Stream::Err) => format!("[r{rank:0width$}!] "),
            (Owner::Command(node), Stream::Out) => format!("[n{node:0width$}] "),
            (Owner::Command(node), Stream::Err) => format!("[n{node:0width$}!] "),
        }
    }
}

/// The output of one attempt.
#[derive(Debug)]
pub struct Logs {
    config: LogsConfig,
    console: Console,
    files: Option<FileWriter>,
    /// The engine's words go to its file alone.
    engine_is_quiet: Arc<AtomicBool>,
    /// Lines of the engine that the console did not show for that reason.
    engine_lines: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A reader has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    owners: BTreeMap<Owner, OwnerState>,
    problems: Vec<Text>,
}

#[derive(Debug, Default)]
struct OwnerState {
    tail: Arc<Mutex<Tail>>,
    counters: Arc<Counters>,
    lost_lines: Arc<AtomicU64>,
    ports: BTreeMap<String, FilePort>,
    /// The readers at work, each with what stops it.
    readers: Vec<Arc<OwnedFd>>,
}

/// What was carried and what was lost, at the end of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogsSummary {
    pub folder: Option<PathBuf>,
    pub owners: BTreeMap<Owner, OwnerSummary>,
    /// What went wrong; all of it was said when it did.
    pub problems: Vec<Text>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerSummary {
    pub bytes: u64,
    pub lines: u64,
    /// Bytes that never reached a file: the disk was too slow, full or gone.
    pub dropped_file_bytes: u64,
    /// Lines that the console did not take in time.
    pub dropped_console_lines: u64,
    /// Bytes removed between head and tail by the cap.
    pub truncated_bytes: u64,
    /// Bytes that somebody else removed from the files, or with them.
    pub removed_file_bytes: u64,
}

impl Logs {
    /// Starts the file writer, if there is a folder. The folder must exist.
    pub fn start(config: LogsConfig, console: Console) -> Logs {
        let shared = Arc::new(Shared::default());
        let files = config.folder.clone().and_then(|folder| {
            let started = FileWriter::start(folder, console.clone());
            started
                .map_err(|error| {
                    let problem = text!(
                        "the log files have no writer: {error}",
                        "日志文件的写入线程无法启动：{error}"
                    );
                    console.report(&problem);
                    shared.lock().problems.push(problem);
                })
                .ok()
        });
        Logs {
            config,
            console,
            files,
            engine_is_quiet: Arc::default(),
            engine_lines: Arc::default(),
            shared,
        }
    }

    /// Reads `pipe` from now on. An owner may attach again when its process was restarted.
    ///
    /// # Errors
    /// When no thread or descriptor is to be had; `pipe` is then closed.
    pub fn attach(&self, owner: Owner, stream: Stream, pipe: OwnedFd) -> std::io::Result<()> {
        let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES);
        // From the first rank on its own lines count. Without a file they would be lost.
        if owner != Owner::Engine && self.files.is_some() {
            self.engine_is_quiet.store(true, Ordering::Relaxed);
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let reader = {
            let mut state = self.shared.lock();
            let state = state.owners.entry(owner).or_default();
            state.readers.push(Arc::clone(&stop));
            Reader {
                stream,
                pipe,
                stop: Arc::clone(&stop),
                counters: Arc::clone(&state.counters),
                tail: Arc::clone(&state.tail),
                console: self.console_lane(owner, stream, state),
                file: self.file_port(owner, stream, state),
                shares_file: owner == Owner::Engine,
                quiet: (owner == Owner::Engine).then(|| Quiet {
                    on: Arc::clone(&self.engine_is_quiet),
                    lines: Arc::clone(&self.engine_lines),
                }),
            }
        };
        let shared = Arc::clone(&self.shared);
        let ended = Arc::clone(&stop);
        let console = self.console.clone();
        let name = match owner {
            Owner::Engine => "log-engine".to_owned(),
            Owner::Rank(rank) => format!("log-r{rank}"),
            Owner::Command(node) => format!("log-n{node}"),
        };
        let spawned = std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
            let error = reader.run();
            shared.reader_ended(owner, &ended, error, &console);
        });
        spawned
            .map(drop)
            .inspect_err(|_| self.shared.reader_ended(owner, &stop, None, &self.console))
    }

    /// The last `n` lines of both streams, in order of arrival; at most 200.
    pub fn tail(&self, owner: Owner, n: usize) -> Vec<TailLine> {
        self.shared.lock().owners.get(&owner).map(|state| state.tail_lines(n)).unwrap_or_default()
    }

    /// Lines that the engine wrote into its log alone, once a rank had begun.
    pub fn engine_lines(&self) -> u64 {
        self.engine_lines.load(Ordering::Relaxed)
    }

    /// The job is over: reads what is left in the pipes, closes them, and has every
    /// line in [`tail`](Self::tail). Takes two seconds and `timeout` at most, however
    /// slow the disk or the console is, and mostly no time at all.
    pub fn read_out(&self, timeout: Duration) {
        if let Some(files) = &self.files {
            files.expect_last_bytes();
        }
        self.shared.stop_readers(timeout.min(OPEN), timeout.min(STOP));
    }

    /// Writes the files out, after [`read_out`](Self::read_out): as long as the disk
    /// takes something, and at most until the deadline. Says and counts what is left.
    /// The console is not waited for, see [`Console::flush`].
    pub fn write_out(&self, deadline: Duration) {
        let Some(files) = &self.files else { return };
        let Closed::Left(left) = files.close(deadline) else { return };
        let folder = self.config.folder.as_ref().map(|folder| folder.path()).unwrap_or_default();
        let folder = folder.display();
        let problem = text!(
            "the log files in {folder} are not complete: the disk did not take the last {left} bytes in time",
            "{folder} 中的日志文件不完整：磁盘未能及时写入最后 {left} 字节"
        );
        self.console.report(&problem);
        self.shared.lock().problems.push(problem);
    }

    /// The account, as it is now.
    pub fn summary(&self) -> LogsSummary {
        let state = self.shared.lock();
        let owners = state.owners.iter().map(|(owner, state)| (*owner, state.summary())).collect();
        let files = self.files.as_ref().map(FileWriter::problems).unwrap_or_default();
        LogsSummary {
            folder: self.config.folder.as_ref().map(|folder| folder.path()),
            owners,
            problems: state.problems.iter().cloned().chain(files).collect(),
        }
    }

    fn console_lane(
        &self,
        owner: Owner,
        stream: Stream,
        state: &OwnerState,
    ) -> Option<(LineFormatter, sink::Lane)> {
        self.config.on_console(owner, stream).then(|| {
            let prefix = self.config.console_prefix(owner, stream);
            // Where a line goes without the prefix its gap still needs a name.
            let said_as = if prefix.is_empty() { format!("{owner}: ") } else { prefix.clone() };
            let sink = if owner == Owner::Engine { Stream::Err } else { stream };
            let lane = self.console.lane(sink, &said_as, Arc::clone(&state.lost_lines));
            (LineFormatter::new(&prefix), lane)
        })
    }

    fn file_port(&self, owner: Owner, stream: Stream, state: &mut OwnerState) -> Option<FilePort> {
        let files = self.files.as_ref()?;
        let cap = self.config.cap_owner();
        let (name, cap) = match (owner, stream) {
            (Owner::Engine, _) => ("engine.log".to_owned(), cap),
            (Owner::Rank(GlobalRank(number)) | Owner::Command(number), stream) => {
                let ending = match stream {
                    Stream::Out => "out",
                    Stream::Err => "err",
                };
                (format!("rank-{number:05}.{ending}"), cap / 2)
            }
        };
        let add = || files.add(name.clone(), cap, self.console.lang());
        Some(state.ports.entry(name.clone()).or_insert_with(add).clone())
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.shared.stop_readers(Duration::ZERO, STOP);
        if let Some(files) = &self.files {
            files.close(Duration::ZERO);
        }
    }
}

impl OwnerState {
    fn tail_lines(&self, n: usize) -> Vec<TailLine> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).last(n)
    }

    fn summary(&self) -> OwnerSummary {
        let accounts = || self.ports.values().map(FilePort::account);
        OwnerSummary {
            bytes: self.counters.bytes.load(Ordering::Relaxed),
            lines: self.counters.lines.load(Ordering::Relaxed),
            dropped_file_bytes: accounts().map(|account| account.lost).sum(),
            dropped_console_lines: self.lost_lines.load(Ordering::Relaxed),
            truncated_bytes: accounts().map(|account| account.missing).sum(),
            removed_file_bytes: accounts().map(|account| account.gone).sum(),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader_ended(
        &self,
        owner: Owner,
        stop: &Arc<OwnedFd>,
        error: Option<std::io::Error>,
        console: &Console,
    ) {
        let mut state = self.lock();
        if let Some(error) = error {
            let problem = text!(
                "the output of {owner} could not be read to its end: {error}",
                "{owner} 的输出未能读完：{error}"
            );
            console.report(&problem);
            state.problems.push(problem);
        }
        if let Some(state) = state.owners.get_mut(&owner) {
            state.readers.retain(|other| !Arc::ptr_eq(other, stop));
        }
        self.ended.notify_all();
    }

    /// Waits for the readers to end by themselves, then stops them and waits again.
    fn stop_readers(&self, timeout: Duration, stop: Duration) {
        let open = |state: &State| state.owners.values().any(|state| !state.readers.is_empty());
        let (state, _) = self
            .ended
            .wait_timeout_while(self.lock(), timeout, |state| open(state))
            .unwrap_or_else(PoisonError::into_inner);
        for stop in state.owners.values().flat_map(|state| &state.readers) {
            let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
        }
        let _ = self
            .ended
            .wait_timeout_while(state, stop, |state| open(state))
            .unwrap_or_else(PoisonError::into_inner);
    }
}
