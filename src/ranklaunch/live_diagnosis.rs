//! Searches the output of an attempt for the cause of a failure, while the ranks run.
//!
//! Takes the output that the logs room keeps in a [`Backlog`], and the statements of [`Witnesses`], unless the job
//! went on after them; gives the [`Why`] of the end. Much output is searched at the lowest priority, so that it takes
//! no time from a rank; a little of it is not, since the asking thread waits for the part that is being searched.
//! The asking thread does the rest of the search at its own priority.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use diagnose::{
    Catalogue, LogScan, Node, Origin, Scanned, Survived, diagnose_whole, is_progress,
    recorded_exception,
};
use linux::deadline::with_deadline_async;
use logs::{Backlog, ErrorFile, Piece, log_name};
use monitor::watch::{Breach, ProgressLines, Rules, StepReports};
use monitor::witnesses::{Statement, Witnesses};
use report::Ending;
use report::runs::records::statement;
use text::rank::GlobalRank;
use verdict::outcome::{End, Outcome, Owner, Stream};
use verdict::{Id, Why};

/// Maximum bytes that are searched at once, so that a question for the result never waits long for the thread,
/// which on a busy machine gets a hundredth of a core.
const PART: usize = 8 * 1024;
/// Bytes of one second that are searched at the thread's own priority, in some milliseconds. At the lowest
/// priority, compiling the patterns of one line takes seconds on a busy machine.
const LITTLE: usize = 256 * 1024;
/// The nice value for the rest.
pub(super) const LOWEST: i32 = 19;
/// Statements that come longer than this after the start of the stop are effects of the stop: killed
/// ranks leave Xids behind as well.
const AFTER_STOP: Duration = Duration::from_secs(1);

/// Maximum bytes of all records of `@record` that are kept of one attempt.
const MOST_RECORDED: usize = 16 * 1024 * 1024;

/// The end of a rank as the kernel reports it, for cases that no line explains.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownEnd {
    pub(super) rank: GlobalRank,
    pub(super) end: End,
    /// The kernel killed it for memory.
    pub(super) oom: bool,
    /// A rank that had ended with code 0 before.
    pub(super) gone: Option<GlobalRank>,
}

/// Explanation of the end of the ranks by their output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    Root(Box<Why>),
    /// The output shows only that something failed elsewhere.
    Consequence,
    Nothing,
}

/// The search of one attempt. Ends when dropped.
#[derive(Debug)]
pub(super) struct LiveDiagnosis {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    backlog: Arc<Backlog>,
    witnesses: Witnesses,
    /// Start of the end of the attempt.
    stopped: OnceLock<Instant>,
    search: Mutex<Search>,
    /// Records that are not searched yet.
    records: Mutex<Vec<Record>>,
    error_files: Mutex<Vec<(ErrorFile, Vec<u8>)>>,
}

/// Record of torch's `@record` about the exception that ended a rank.
#[derive(Debug)]
struct Record {
    owner: Owner,
    arrived: Instant,
    bytes: Vec<u8>,
}

/// An action on the rules of the profile.
pub(super) type ToRules<'a> = dyn FnMut(&mut Rules) -> Vec<Breach> + 'a;

/// Role of a log for its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    Stream(Stream),
    ErrorFile,
}

#[derive(Debug)]
struct Search {
    extended: Option<&'static Catalogue>,
    node: u32,
    began: Instant,
    pending: VecDeque<Piece>,
    scans: BTreeMap<Owner, LogScan<'static>>,
    /// The numbers of the logs are their places in this list.
    logs: Vec<(Owner, Log)>,
    /// Survived problems, as of the last request for the result.
    survived: Vec<Survived>,
    /// Progress of all ranks after the first statement.
    progress: Progress,
    /// The rules of the profile, which read the same output.
    rules: Option<Rules>,
    /// Progress of the job, from the output of its rank 0.
    job_progress: Option<ProgressLines>,
}

impl LiveDiagnosis {
    /// `extended`: the catalogue in place of the built-in one, which is read when the first rank
    /// writes something.
    pub(super) fn start(
        extended: Option<&'static Catalogue>,
        node: u32,
        witnesses: Witnesses,
    ) -> LiveDiagnosis {
        let backlog = Arc::new(Backlog::default());
        let search = Search {
            extended,
            node,
            began: Instant::now(),
            pending: VecDeque::new(),
            scans: BTreeMap::new(),
            logs: Vec::new(),
            survived: Vec::new(),
            progress: Progress::default(),
            rules: None,
            job_progress: None,
        };
        let shared = Arc::new(Shared {
            backlog,
            witnesses,
            stopped: OnceLock::new(),
            search: Mutex::new(search),
            records: Mutex::default(),
            error_files: Mutex::default(),
        });
        let searching = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("diagnose".to_owned());
        // Without a thread the search runs when the result is requested.
        if let Err(error) = thread.spawn(move || searching.run()) {
            tracing::warn!(%error, "no thread for the diagnosis");
        }
        LiveDiagnosis { shared }
    }

    /// The backlog in which the logs room puts its copy of the output.
    pub(super) fn backlog(&self) -> Arc<Backlog> {
        Arc::clone(&self.shared.backlog)
    }

    pub(super) fn witnesses(&self) -> &Witnesses {
        &self.shared.witnesses
    }

    /// Lets rules read along. The returned function lets them read all output up to its call, then applies
    /// its argument to them.
    pub(super) fn read_along(
        &self,
        rules: Rules,
    ) -> impl Fn(&mut ToRules<'_>) -> Vec<Breach> + Send + 'static {
        self.shared.lock().rules = Some(rules);
        let shared = Arc::clone(&self.shared);
        move |apply| {
            shared.read_up();
            shared.lock().rules.as_mut().map(apply).unwrap_or_default()
        }
    }

    /// Lets these lines read the output of rank 0, and gives what they report.
    pub(super) fn read_progress(&self, lines: ProgressLines) -> StepReports {
        let reports = lines.reports();
        self.shared.lock().job_progress = Some(lines);
        reports
    }

    /// The returned function lets everything read all output up to its call.
    pub(super) fn reads_up(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.read_up()
    }

    /// The end of the attempt begins.
    pub(super) fn stopping(&self) {
        self.shared.stopped.get_or_init(Instant::now);
    }

    /// Explanation of the end by the output and the witnesses so far, and by the end of a rank. `failed`: the job
    /// has failed.
    pub(super) fn told(&self, end: Option<KnownEnd>, failed: bool) -> Told {
        let Shared { backlog, witnesses, stopped, .. } = &*self.shared;
        let mut statements = witnesses.statements();
        if let Some(stopped) = stopped.get() {
            statements.retain(|statement| statement.arrived <= *stopped + AFTER_STOP);
        }
        let mut search = self.shared.lock();
        search.take(backlog);
        while search.step(witnesses.first()) {}
        // The records are searched after the output, in the order in which the rank wrote both.
        let records = std::mem::take(&mut *held(&self.shared.records));
        records.iter().for_each(|record| search.take_record(record));
        search.told(end, failed, &statements, stopped.get().copied())
    }

    /// Takes the record that torch's `@record` wrote of a rank's exception.
    pub(super) fn recorded(&self, owner: Owner, bytes: Vec<u8>) {
        let Some(name) = ErrorFile::of(owner) else { return };
        let mut files = held(&self.shared.error_files);
        let size: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        if size + bytes.len() <= MOST_RECORDED {
            files.push((name, bytes.clone()));
            held(&self.shared.records).push(Record { owner, arrived: Instant::now(), bytes });
        }
    }

    /// The records of all ranks, for the folder of the attempt.
    pub(super) fn error_files(&self) -> Vec<(ErrorFile, Vec<u8>)> {
        std::mem::take(&mut *held(&self.shared.error_files))
    }

    /// Problems that the ranks survived, as of the last request for the cause. Empty while a search is in
    /// progress.
    pub(super) fn survived(&self) -> Vec<Survived> {
        self.shared.search.try_lock().map_or_else(|_| Vec::new(), |search| search.survived.clone())
    }
}

impl Drop for LiveDiagnosis {
    fn drop(&mut self) {
        self.shared.backlog.close();
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Search> {
        held(&self.search)
    }

    /// Searches all output up to now, at the priority of the calling thread.
    fn read_up(&self) {
        self.lock().catalogue();
        self.lock().take(&self.backlog);
        self.search();
    }

    fn run(&self) {
        let (mut second, mut bytes) = (Instant::now(), 0);
        while self.backlog.wait() {
            if second.elapsed() >= Duration::from_secs(1) {
                (second, bytes) = (Instant::now(), 0);
            }
            let mut search = self.lock();
            search.catalogue();
            search.take(&self.backlog);
            bytes += search.pending.iter().map(|piece| piece.bytes.len()).sum::<usize>();
            drop(search);
            if bytes <= LITTLE {
                self.search();
                continue;
            }
            // The priority of a thread is lowered for good.
            std::thread::scope(|scope| {
                let lowly = std::thread::Builder::new().name("diagnose".to_owned());
                let started = lowly.spawn_scoped(scope, || {
                    // Linux sets the nice value of the calling thread alone. If this fails, the search only costs
                    // more.
                    let _ = rustix::process::setpriority_process(None, LOWEST);
                    self.search();
                });
                if started.is_err() {
                    self.search();
                }
            });
        }
    }

    /// Searches the pieces that have been taken.
    fn search(&self) {
        while self.lock().step(self.witnesses.first()) {}
    }
}

impl Search {
    fn catalogue(&self) -> &'static Catalogue {
        self.extended.unwrap_or_else(|| diagnose::catalogue())
    }

    /// The pieces stay in their order, since only the holder of the search takes them.
    fn take(&mut self, backlog: &Backlog) {
        self.pending.extend(backlog.take());
    }

    /// Searches a part of the pending output; false if there was none. `stated`: time of the first statement of a
    /// witness.
    fn step(&mut self, stated: Option<Instant>) -> bool {
        let Some(piece) = self.pending.front_mut() else { return false };
        let (owner, stream) = (piece.owner, piece.stream);
        let at = piece.arrived;
        let skipped = std::mem::take(&mut piece.skipped);
        let rest = piece.bytes.split_off(piece.bytes.len().min(PART));
        let part = std::mem::replace(&mut piece.bytes, rest);
        if piece.bytes.is_empty() {
            self.pending.pop_front();
        }
        self.progress.note(at, &part, stated);
        if let Some((rules, rank)) = self.rules.as_mut().zip(started(owner)) {
            rules.feed((rank, stream), at, skipped.bytes > 0, &part);
        }
        if let (Some(lines), Some(GlobalRank(0))) = (&mut self.job_progress, started(owner)) {
            lines.feed(stream, at, skipped.bytes > 0, &part);
        }
        let arrived = at.saturating_duration_since(self.began);
        let log = self.number(owner, Log::Stream(stream));
        let scan = self.scan(owner, log);
        if skipped.bytes > 0 {
            scan.skip(log, skipped.bytes, skipped.line_feeds);
        }
        scan.feed_live(log, arrived, &part);
        true
    }

    fn scan(&mut self, owner: Owner, log: usize) -> &mut LogScan<'static> {
        let (catalogue, node) = (self.catalogue(), self.node);
        self.scans.entry(owner).or_insert_with(|| {
            let rank = match owner {
                Owner::Rank(rank) => Some(rank),
                Owner::Engine | Owner::Command(_) => None,
            };
            let node = Some(Node::Rank(node));
            LogScan::new(catalogue, log, Origin { name: String::new(), rank, node })
        })
    }

    /// Searches a record in the log of its rank, so that a traceback that the rank has printed as
    /// well is one piece of evidence.
    fn take_record(&mut self, record: &Record) {
        let Some(said) = recorded_exception(&record.bytes) else { return };
        let mut arrived = record.arrived.saturating_duration_since(self.began);
        let began = SystemTime::now().checked_sub(self.began.elapsed());
        let raised = said.seconds.and_then(|seconds| {
            // The fraction of the second is not known; before the start, the clock is wrong.
            let at = SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_secs(seconds.saturating_add(1)))?;
            at.duration_since(began?).ok()
        });
        arrived = raised.map_or(arrived, |raised| raised.min(arrived));
        let log = self.number(record.owner, Log::ErrorFile);
        self.scan(record.owner, log).feed_record(log, 1, Some(arrived), &said.text);
    }

    fn number(&mut self, owner: Owner, log: Log) -> usize {
        self.logs.iter().position(|known| *known == (owner, log)).unwrap_or_else(|| {
            self.logs.push((owner, log));
            self.logs.len() - 1
        })
    }

    /// `stopped`: start of the end of the attempt.
    fn told(
        &mut self,
        end: Option<KnownEnd>,
        failed: bool,
        statements: &[Statement],
        stopped: Option<Instant>,
    ) -> Told {
        // A kill by the kernel for memory needs no other evidence. The engine knows no more about a signal
        // than its rank's shim.
        let counts = |owner: &Owner| match end {
            Some(KnownEnd { oom: true, .. }) => false,
            Some(KnownEnd { end: End::Signal(_), .. }) => *owner != Owner::Engine,
            _ => true,
        };
        let scans = self.scans.iter().filter(|(owner, _)| counts(owner));
        let mut logs: Vec<Scanned> = scans.map(|(_, scan)| scan.clone().finish()).collect();
        if let Some(stopped) = stopped {
            let stop = stopped.saturating_duration_since(self.began);
            let catalogue = self.catalogue();
            logs.iter_mut().for_each(|log| log.leave_out_stop(catalogue, stop));
        }
        let mut names: Vec<String> = self.logs.iter().map(name).collect();
        // The counters of the kernel are more precise than any statement about a kill.
        if !matches!(end, Some(KnownEnd { oom: true, .. })) {
            for (place, scan) in self.stated(names.len(), statements) {
                logs.push(scan);
                names.push(place.to_owned());
            }
        }
        logs.extend(end.and_then(|end| self.exit_status(names.len(), end)));
        // The line has no log: the end of the rank itself is the evidence.
        names.push(String::new());
        let diagnosis = diagnose_whole(self.catalogue(), &logs, failed);
        self.survived = diagnose::survived(self.catalogue(), &diagnosis.findings);
        match diagnosis.cause {
            Some(cause) => {
                let log = names.get(cause.evidence.first.log).cloned().unwrap_or_default();
                Told::Root(Box::new(Why { log, ..cause.why }))
            }
            None if diagnosis.failed => Told::Consequence,
            None => Told::Nothing,
        }
    }

    /// Statements of the witnesses, as one log for each place and rank. `log`: the number of the first log.
    fn stated(&self, log: usize, statements: &[Statement]) -> Vec<(&'static str, Scanned)> {
        let counts = |statement: &&Statement| !self.progress.outlived(statement.arrived);
        let statements: Vec<&Statement> = statements.iter().filter(counts).collect();
        let mut sources: Vec<_> = statements.iter().map(|said| (said.place, said.rank)).collect();
        sources.sort_unstable();
        sources.dedup();
        let scan = |(log, (place, rank)): (usize, (&'static str, Option<GlobalRank>))| {
            let node = Some(Node::Rank(self.node));
            let origin = Origin { name: String::new(), rank, node };
            let mut scan = LogScan::new(self.catalogue(), log, origin);
            for said in statements.iter().filter(|said| (said.place, said.rank) == (place, rank)) {
                let arrived = said.arrived.saturating_duration_since(self.began);
                scan.feed_live(log, arrived, format!("{}\n", said.line).as_bytes());
            }
            (place, scan.finish())
        };
        (log..).zip(sources).map(scan).collect()
    }

    /// The end of a rank as a log of one line.
    fn exit_status(&self, log: usize, end: KnownEnd) -> Option<Scanned> {
        let statement = statement(end.rank, end.end, end.oom)?;
        let origin = Origin { rank: Some(end.rank), ..Origin::default() };
        let mut scan = LogScan::new(self.catalogue(), log, origin);
        scan.feed_live(log, self.began.elapsed(), statement.as_bytes());
        Some(scan.finish())
    }
}

/// The number by which its start is reported. The command of a node has the number of the node.
fn started(owner: Owner) -> Option<GlobalRank> {
    match owner {
        Owner::Rank(rank) => Some(rank),
        Owner::Command(node) => Some(GlobalRank(node)),
        Owner::Engine => None,
    }
}

/// The file of a log, in the folder of the attempt.
fn name((owner, log): &(Owner, Log)) -> String {
    match log {
        Log::Stream(stream) => log_name(*owner, *stream),
        Log::ErrorFile => ErrorFile::of(*owner).map(|file| file.to_string()).unwrap_or_default(),
    }
}

/// The end of the rank that `ending` names.
pub(super) fn known_end(ending: &Ending, outcome: &Outcome) -> Option<KnownEnd> {
    let rank = GlobalRank(ending.rank?);
    let seen = outcome.ranks.iter().find(|seen| seen.id.global == rank)?;
    let before = outcome.ranks.iter().filter(|other| !other.failed() && other.at < seen.at);
    let gone = before.min_by_key(|other| other.at).map(|other| other.id.global);
    Some(KnownEnd { rank, end: seen.end?, oom: ending.id == Id::MemoryOom, gone })
}

/// `ending` with the explanation from the output. Without an answer in time it stays unchanged.
pub(super) async fn explained(
    ending: Ending,
    end: Option<KnownEnd>,
    diagnosis: &Arc<LiveDiagnosis>,
    time_left: Duration,
) -> Ending {
    if !ending.asks_why() {
        return ending;
    }
    let searching = Arc::clone(diagnosis);
    match with_deadline_async(time_left, move || searching.told(end, true)).await {
        Some(Told::Root(why)) => ending.explained(*why),
        Some(Told::Consequence) => ending.unexplained(end.and_then(|end| end.gone)),
        Some(Told::Nothing) | None => ending,
    }
}

/// The failure that a rank has printed before its end. Its report counts only against a cause that shows nothing
/// but consequences, so a likely cause is enough.
pub(super) async fn raised(diagnosis: &Arc<LiveDiagnosis>, time_left: Duration) -> Option<Ending> {
    let searching = Arc::clone(diagnosis);
    let told = with_deadline_async(time_left, move || searching.told(None, false)).await?;
    let Told::Root(why) = told else { return None };
    Some(Ending::rank_raised(GlobalRank(why.rank?)).explained(*why))
}

/// A job that reports progress this long after a moment, three times, has outlived the events of
/// that moment: ranks that wait for each other cannot go on without one of them.
const OUTLIVED: Duration = Duration::from_secs(60);
/// If no rank reports progress, trouble counts for this long: a hang ends by the time-out of the
/// collectives, which is seldom longer.
const COUNTS_FOR: Duration = Duration::from_secs(2 * 60 * 60);
/// Number of lines of progress that show that a job went on.
const WENT_ON: usize = 3;

/// Times at which the ranks last reported progress.
#[derive(Debug, Default)]
pub(super) struct Progress(VecDeque<Instant>);

impl Progress {
    /// Takes the output of a rank at that time. `trouble`: time of the first report; before it, and
    /// soon after it, nothing is read.
    pub(super) fn note(&mut self, at: Instant, part: &[u8], trouble: Option<Instant>) {
        if trouble.is_none_or(|trouble| at.saturating_duration_since(trouble) <= OUTLIVED) {
            return;
        }
        let lines = part.split(|byte| matches!(byte, b'\n' | b'\r'));
        for _ in lines.filter(|line| is_progress(line)).take(WENT_ON) {
            self.0.push_back(at);
        }
        self.0.drain(..self.0.len().saturating_sub(WENT_ON));
    }

    /// Whether the job went on for so long that no event of this moment ended it.
    pub(super) fn outlived(&self, moment: Instant) -> bool {
        let first = self.0.front().filter(|_| self.0.len() == WENT_ON);
        let went_on = first.is_some_and(|at| at.saturating_duration_since(moment) > OUTLIVED);
        went_on || moment.elapsed() > COUNTS_FOR
    }
}

#[cfg(test)]
mod tests;
