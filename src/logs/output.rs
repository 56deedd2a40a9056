//! Captures the output of one attempt: owns a reader for each stream, the files, and the lanes
//! of the console.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::config::LogsConfig;
use super::console::Console;
use super::file_names::log_name;
use super::files::{Closed, FilePort, FileWriter};
use super::index::Writer;
use super::lines::LineFormatter;
use super::queue::FileAccount;
use super::reader::{Counters, Quiet, StreamReader};
use super::sink::{ConsoleAccount, Lane};
use super::summary::{LogsSummary, OwnerNow, OwnerSummary};
use super::tail::{Tail, TailLine};
use super::thread;
use text::lang::{Text, cause};
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
    engine_is_quiet: Arc<AtomicBool>,
    /// Lines of the engine that were kept off the console while `engine_is_quiet` was set.
    engine_lines: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals that a reader has ended.
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
    unshown: Arc<ConsoleAccount>,
    ports: BTreeMap<String, FilePort>,
    /// The stop descriptors of the running readers.
    readers: Vec<Arc<OwnedFd>>,
}

impl Logs {
    /// Starts the file writer, if there is a folder. The folder must exist.
    pub fn start(config: LogsConfig, console: Console) -> Logs {
        let shared = Arc::new(Shared::default());
        let files = config.folder.clone().and_then(|folder| {
            let started = FileWriter::start(folder, console.clone());
            started
                .map_err(|error| {
                    let Text { en, zh } = cause(&error);
                    let problem = text!(
                        "the log files have no writer: {en}",
                        "日志文件的写入线程无法启动：{zh}"
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

    /// Starts reading `pipe`. An owner may attach again after its process was restarted.
    ///
    /// # Errors
    /// When no thread or descriptor is available; `pipe` is then closed.
    pub fn attach(&self, owner: Owner, stream: Stream, pipe: OwnedFd) -> std::io::Result<()> {
        let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES);
        // Once the first rank has started, the console shows only the ranks, provided that the engine's lines have a
        // file.
        if owner != Owner::Engine && self.files.is_some() {
            self.engine_is_quiet.store(true, Ordering::Relaxed);
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let reader = {
            let mut state = self.shared.lock();
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
        let started = thread::start(name, move || {
            let error = reader.run();
            shared.reader_ended(owner, &ended, error, &console);
        });
        started.inspect_err(|_| self.shared.reader_ended(owner, &stop, None, &self.console))
    }

    /// The last `n` lines of both streams, in order of arrival; at most 200.
    pub fn tail(&self, owner: Owner, n: usize) -> Vec<TailLine> {
        self.shared.lock().owners.get(&owner).map(|state| state.tail_lines(n)).unwrap_or_default()
    }

    /// The bytes that each owner has written and lost so far, with its last line. For displays of a running job: the
    /// cost does not grow with the output.
    pub fn now(&self) -> Vec<OwnerNow> {
        let state = self.shared.lock();
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
        let state = self.shared.lock();
        state.owners.get(&owner).map_or(0, |state| state.counters.bytes.load(Ordering::Relaxed))
    }

    /// Lines that went only to the engine's log, after the first rank had begun.
    pub fn engine_lines(&self) -> u64 {
        self.engine_lines.load(Ordering::Relaxed)
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

    /// The summary as it would be if nothing more were written.
    pub fn summary(&self) -> LogsSummary {
        let state = self.shared.lock();
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
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).last(n)
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
            let (Text { en, zh }, owner) = (cause(&error), owner.text());
            let (who, who_zh) = (owner.en, owner.zh);
            let problem = text!(
                "the output of {who} could not be read to its end: {en}",
                "输出未能读完（{who_zh}）：{zh}"
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
