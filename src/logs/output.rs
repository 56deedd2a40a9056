//! Captures the output of one attempt: owns a reader for each stream, the files, and the lanes of the console.
//!
//! Takes the folder, the ranks and the size limits ([`LogsConfig`]); gives a summary of the bytes written and the losses
//! ([`LogsSummary`]).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use super::backlog::Backlog;
use super::console::Console;
use super::file_names::log_name;
use super::files::{FilePort, FileWriter};
use super::folder::LogFolder;
use super::index::Writer;
use super::lines::{LineFormatter, Marks};
use super::queue::FileAccount;
use super::reader::{Counters, Quiet, StreamReader};
use super::sink::Lane;
use super::start_thread;
use super::tail::{Tail, TailLine};
use super::waiting::ConsoleAccount;
use settings::{ConsoleMode, ConsolePrefix};
use text::lang::{Text, cause};
use text::rank::GlobalRank;
use text::style::{self, END, Style};
use text::text;
use verdict::outcome::{Owner, Stream};

/// The most that an unprivileged process may set (pipe-max-size). If a user's pipes exceed 64 MiB in total, the kernel
/// refuses and the pipe keeps its size.
const PIPE_BYTES: usize = 1024 * 1024;
/// Time that a pipe may stay open after every process of the job has ended: a process outside of the job may hold its
/// write end.
pub(super) const OPEN: Duration = Duration::from_secs(1);
/// Time limit for a reader to stop; it only empties its pipe.
const STOP: Duration = Duration::from_secs(1);

/// The output of one attempt.
#[derive(Debug)]
pub struct Logs {
    config: LogsConfig,
    console: Console,
    files: Option<FileWriter>,
    /// Set when the engine's output goes only to its file.
    quiet_engine: Quiet,
    shared: Arc<Readers>,
}

#[derive(Debug, Default)]
struct Readers {
    state: Mutex<Owners>,
    /// Signals that a reader has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Owners {
    owners: BTreeMap<Owner, OwnerState>,
    problems: Vec<Text>,
}

#[derive(Debug, Default)]
struct OwnerState {
    tail: Arc<Mutex<Tail>>,
    counters: Arc<Counters>,
    unshown: Arc<ConsoleAccount>,
    ports: BTreeMap<String, FilePort>,
    /// The stop descriptors of the running readers.
    readers: Vec<Arc<OwnedFd>>,
}

impl Logs {
    /// Starts the file writer, if there is a folder. The folder must exist.
    pub fn start(config: LogsConfig, console: Console) -> Logs {
        let shared = Arc::new(Readers::default());
        let files = config.folder.clone().and_then(|folder| {
            let started = FileWriter::start(folder, console.clone()).map_err(|error| {
                let Text { en, zh } = cause(&error);
                let problem =
                    text!("the log files have no writer: {en}", "日志文件的写入线程无法启动：{zh}");
                shared.state.lock().say(problem, &console);
            });
            started.ok()
        });
        Logs { config, console, files, quiet_engine: Quiet::default(), shared }
    }

    /// Starts reading `pipe`. An owner may attach again after its process was restarted.
    ///
    /// # Errors
    /// When no thread or descriptor is available; `pipe` is then closed.
    pub fn attach(&self, owner: Owner, stream: Stream, pipe: OwnedFd) -> std::io::Result<()> {
        let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES);
        // Once the first rank has started, the console shows only the ranks, provided that the engine's lines have a
        // file.
        if owner != Owner::Engine && self.files.is_some() {
            self.quiet_engine.on.store(true, Ordering::Relaxed);
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let reader = {
            let mut state = self.shared.state.lock();
            let state = state.owners.entry(owner).or_default();
            state.readers.push(Arc::clone(&stop));
            StreamReader {
                owner,
                stream,
                pipe,
                stop: Arc::clone(&stop),
                counters: Arc::clone(&state.counters),
                tail: Arc::clone(&state.tail),
                backlog: self.config.backlog.clone(),
                console: self.console_lane(owner, stream, state),
                file: self.file_port(owner, stream, state),
                shares_file: owner == Owner::Engine,
                quiet: (owner == Owner::Engine).then(|| self.quiet_engine.clone()),
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
        let started = start_thread(name, move || {
            let error = reader.run();
            shared.reader_ended(owner, &ended, error, &console);
        });
        started.inspect_err(|_| self.shared.reader_ended(owner, &stop, None, &self.console))
    }

    /// The last `n` lines of both streams, in order of arrival; at most 200.
    pub fn tail(&self, owner: Owner, n: usize) -> Vec<TailLine> {
        self.shared
            .state
            .lock()
            .owners
            .get(&owner)
            .map(|state| state.tail_lines(n))
            .unwrap_or_default()
    }

    /// The bytes that each owner has written and lost so far, with its last line. For displays of a running job: the
    /// cost does not grow with the output.
    pub fn now(&self) -> Vec<OwnerNow> {
        let state = self.shared.state.lock();
        let now = |(owner, state): (&Owner, &OwnerState)| OwnerNow {
            owner: *owner,
            summary: state.summary(FilePort::so_far, ConsoleAccount::lost),
            last_line: state.tail_lines(1).pop(),
            last_at: state.counters.last(),
        };
        state.owners.iter().map(now).collect()
    }

    /// Bytes that an owner has written so far to both streams.
    pub fn written(&self, owner: Owner) -> u64 {
        let state = self.shared.state.lock();
        state.owners.get(&owner).map_or(0, |state| state.counters.bytes.load(Ordering::Relaxed))
    }

    /// Lines that went only to the engine's log, after the first rank had begun.
    pub fn engine_lines(&self) -> u64 {
        self.quiet_engine.lines.load(Ordering::Relaxed)
    }

    /// Called after the job: empties and closes the pipes, so that [`tail`](Self::tail) has every line. Takes at most
    /// two seconds and `timeout`, however slow the disk or the console is, and usually no time.
    pub fn read_out(&self, timeout: Duration) {
        if let Some(files) = &self.files {
            files.expect_last_bytes();
        }
        self.shared.stop_readers(timeout.min(OPEN), timeout.min(STOP));
    }

    /// Writes the files after [`read_out`](Self::read_out), as long as the disk makes progress and at most until the
    /// deadline. Reports and counts the rest. Does not wait for the console; see [`Console::flush`].
    pub fn write_out(&self, deadline: Duration) {
        let Some(files) = &self.files else { return };
        let left = files.close(deadline);
        if left == 0 {
            return;
        }
        let folder = self.config.folder.as_ref().map(|folder| folder.path()).unwrap_or_default();
        let folder = folder.display();
        let problem = text!(
            "the log files in {folder} are not complete: the disk did not take the last {left} bytes in time",
            "{folder} 中的日志文件不完整：磁盘未能及时写入最后 {left} 字节"
        );
        self.shared.state.lock().say(problem, &self.console);
    }

    /// The summary as it would be if nothing more were written.
    pub fn summary(&self) -> LogsSummary {
        let state = self.shared.state.lock();
        let of = |state: &OwnerState| state.summary(FilePort::account, ConsoleAccount::unshown);
        let owners = state.owners.iter().map(|(owner, state)| (*owner, of(state))).collect();
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
    ) -> Option<(LineFormatter, Lane)> {
        self.config.on_console(owner, stream).then(|| {
            let sink = if owner == Owner::Engine { Stream::Err } else { stream };
            let marks = self.config.console_marks(owner, stream, self.console.has_colour(sink));
            // Lines may have no prefix, but the report of a gap needs a name.
            let said_as = match marks.before.is_empty() {
                true => format!("{owner}: "),
                false => marks.before.clone(),
            };
            let lane = self.console.lane(sink, &said_as, Arc::clone(&state.unshown));
            (LineFormatter::new(&marks), lane)
        })
    }

    fn file_port(&self, owner: Owner, stream: Stream, state: &mut OwnerState) -> Option<FilePort> {
        let files = self.files.as_ref()?;
        let cap = self.config.cap_owner();
        let name = log_name(owner, stream);
        // A rank has a file for each stream.
        let cap = if owner == Owner::Engine { cap } else { cap / 2 };
        let add = || files.add(name.clone(), Writer::of(owner), cap, self.console.lang());
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
        self.tail.lock().last(n)
    }

    fn summary(
        &self,
        account: fn(&FilePort) -> FileAccount,
        unshown: fn(&ConsoleAccount) -> u64,
    ) -> OwnerSummary {
        let accounts = || self.ports.values().map(account);
        OwnerSummary {
            bytes: self.counters.bytes.load(Ordering::Relaxed),
            lines: self.counters.lines.load(Ordering::Relaxed),
            dropped_file_bytes: accounts().map(|account| account.lost).sum(),
            dropped_console_lines: unshown(&self.unshown),
            truncated_bytes: accounts().map(|account| account.missing).sum(),
            removed_file_bytes: accounts().map(|account| account.gone).sum(),
        }
    }
}

impl Owners {
    fn say(&mut self, problem: Text, console: &Console) {
        console.report(&problem);
        self.problems.push(problem);
    }
}

impl Readers {
    fn reader_ended(
        &self,
        owner: Owner,
        stop: &Arc<OwnedFd>,
        error: Option<std::io::Error>,
        console: &Console,
    ) {
        let mut state = self.state.lock();
        if let Some(error) = error {
            let (Text { en, zh }, owner) = (cause(&error), owner.text());
            let (who, who_zh) = (owner.en, owner.zh);
            let problem = text!(
                "the output of {who} could not be read to its end: {en}",
                "输出未能读完（{who_zh}）：{zh}"
            );
            state.say(problem, console);
        }
        if let Some(state) = state.owners.get_mut(&owner) {
            state.readers.retain(|other| !Arc::ptr_eq(other, stop));
        }
        self.ended.notify_all();
    }

    /// Waits for the readers to end by themselves, then stops them and waits again.
    fn stop_readers(&self, timeout: Duration, stop: Duration) {
        let open =
            |state: &mut Owners| state.owners.values().any(|state| !state.readers.is_empty());
        let mut state = self.state.lock();
        self.ended.wait_while_for(&mut state, open, timeout);
        for stop in state.owners.values().flat_map(|state| &state.readers) {
            let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
        }
        self.ended.wait_while_for(&mut state, open, stop);
    }
}

#[derive(Debug, Clone)]
pub struct LogsConfig {
    /// Folder of the files. None: memory and console only.
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
    /// Receives a copy of all bytes that are read.
    pub backlog: Option<Arc<Backlog>>,
}

impl LogsConfig {
    /// Bytes on disk for one owner, so that all owners together stay below the node's cap.
    pub(super) fn cap_owner(&self) -> u64 {
        self.cap_rank.min(self.cap_node / (u64::from(self.local_ranks) + 1))
    }

    pub(super) fn on_console(&self, owner: Owner, stream: Stream) -> bool {
        match self.console {
            ConsoleMode::All => true,
            ConsoleMode::Rank0 => {
                matches!(owner, Owner::Engine | Owner::Rank(GlobalRank(0)) | Owner::Command(0))
            }
            ConsoleMode::Errors => owner == Owner::Engine || stream == Stream::Err,
            ConsoleMode::None => false,
        }
    }

    /// The text before and after each line of this stream on the console.
    pub(super) fn console_marks(&self, owner: Owner, stream: Stream, colour: bool) -> Marks {
        if self.world_size <= 1 || self.prefix == ConsolePrefix::None {
            return Marks::default();
        }
        let width = (self.world_size - 1).to_string().len();
        let name = match owner {
            Owner::Engine => "engine".to_owned(),
            Owner::Rank(rank) => format!("r{rank:0width$}"),
            Owner::Command(node) => format!("n{node:0width$}"),
        };
        let is_err = owner != Owner::Engine && stream == Stream::Err;
        let mark = if is_err { "!" } else { "" };
        if !colour {
            return Marks { before: format!("[{name}{mark}] "), after: "" };
        }
        let rank = match owner {
            // The whole line is dimmed relative to those of the ranks.
            Owner::Engine => {
                return Marks { before: format!("{}[{name}] ", Style::Dim.begins()), after: END };
            }
            Owner::Rank(rank) => rank,
            Owner::Command(node) => GlobalRank(node),
        };
        let (begin, mark) = (format!("\x1b[{}m", style::of_rank(rank)), mark);
        let mark =
            if is_err { format!("{END}{}{mark}", Style::Fail.begins()) } else { mark.into() };
        Marks { before: format!("{begin}[{name}{mark}{END}{begin}]{END} "), after: "" }
    }
}

/// The bytes written and the losses in an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogsSummary {
    pub folder: Option<PathBuf>,
    pub owners: BTreeMap<Owner, OwnerSummary>,
    /// Problems; each was reported when it occurred.
    pub problems: Vec<Text>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerSummary {
    pub bytes: u64,
    pub lines: u64,
    /// Bytes that never reached a file: the disk was too slow, full or gone.
    pub dropped_file_bytes: u64,
    /// Lines that the console did not accept in time.
    pub dropped_console_lines: u64,
    /// Bytes removed between head and tail because of the cap.
    pub truncated_bytes: u64,
    /// Bytes that another process removed from the files, or together with them.
    pub removed_file_bytes: u64,
}

/// One owner while the job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerNow {
    pub owner: Owner,
    pub summary: OwnerSummary,
    pub last_line: Option<TailLine>,
    /// Time of its last output.
    pub last_at: Option<Instant>,
}
