//! Searches the output of an attempt for the cause of a failure, while the ranks run.
//!
//! Takes what the logs room keeps in a [`Backlog`]; gives the [`Why`] of the end. The search has
//! a thread of the lowest priority, so that it takes no time from a rank. Who asks for the
//! result does at its own priority what is left to do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::deadline::with_deadline_async;
use crate::diagnose::{
    self, Catalogue, LogScan, Node, Origin, Scanned, Survived, diagnose, recorded_exception,
};
use crate::logs::{Backlog, ErrorFile, Piece, log_name};
use crate::rank::GlobalRank;
use crate::report::{Ending, ending};
use crate::supervise::{End, Outcome, Owner, Stream};
use crate::verdict::{Id, Why};

/// Bytes that are searched at once, so that who asks for the result never waits long for the
/// thread, which on a busy machine gets a hundredth of a core.
const PART: usize = 8 * 1024;
/// The nice value of the thread.
const LOWEST: i32 = 19;

/// Bytes of all records of `@record` that are kept of one attempt.
const MOST_RECORDED: usize = 16 * 1024 * 1024;

/// The end of a rank as the kernel tells it, which explains what no line does.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownEnd {
    pub(super) rank: GlobalRank,
    pub(super) end: End,
    /// The kernel killed it for memory.
    pub(super) oom: bool,
}

/// What the output of the ranks says of their end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    Root(Box<Why>),
    /// Only that something failed elsewhere.
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
    search: Mutex<Search>,
    /// Not searched yet.
    records: Mutex<Vec<Record>>,
    error_files: Mutex<Vec<(ErrorFile, Vec<u8>)>>,
}

/// What torch's `@record` wrote of the exception that ended a rank.
#[derive(Debug)]
struct Record {
    owner: Owner,
    arrived: Instant,
    bytes: Vec<u8>,
}

/// What a log is to its owner.
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
    /// As of the last time that the result was asked for.
    survived: Vec<Survived>,
}

impl LiveDiagnosis {
    /// `extended`: the catalogue in place of the built-in one, which is read when the first rank
    /// writes something.
    pub(super) fn start(extended: Option<&'static Catalogue>, node: u32) -> LiveDiagnosis {
        let backlog = Arc::new(Backlog::default());
        let search = Search {
            extended,
            node,
            began: Instant::now(),
            pending: VecDeque::new(),
            scans: BTreeMap::new(),
            logs: Vec::new(),
            survived: Vec::new(),
        };
        let shared = Arc::new(Shared {
            backlog,
            search: Mutex::new(search),
            records: Mutex::default(),
            error_files: Mutex::default(),
        });
        let searching = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("diagnose".to_owned());
        // Without a thread the search is done when the result is asked for.
        if let Err(error) = thread.spawn(move || searching.run()) {
            tracing::warn!(%error, "no thread for the diagnosis");
        }
        LiveDiagnosis { shared }
    }

    /// Where the logs room puts its copy of the output.
    pub(super) fn backlog(&self) -> Arc<Backlog> {
        Arc::clone(&self.shared.backlog)
    }

    /// What the output up to now says, together with how a rank ended. `failed`: the job has.
    pub(super) fn told(&self, end: Option<KnownEnd>, failed: bool) -> Told {
        let mut search = self.shared.lock();
        search.take(&self.shared.backlog);
        while search.step() {}
        // After the output, as the rank wrote it.
        let records = std::mem::take(&mut *held(&self.shared.records));
        records.iter().for_each(|record| search.take_record(record));
        search.told(end, failed)
    }

    /// Takes what torch's `@record` wrote of a rank's exception.
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

    /// What the ranks survived, as of the last time that the cause was asked for. Nothing while
    /// the search is not done.
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

    fn run(&self) {
        let mut is_ready = false;
        while self.backlog.wait() {
            if !is_ready {
                is_ready = true;
                // Who asks for the result would wait for it, and at the lowest priority it would
                // take a hundred times as long.
                self.lock().catalogue();
                // Of this thread, as the kernel takes the call. Without it the search is only
                // dearer.
                let _ = rustix::process::setpriority_process(None, LOWEST);
            }
            self.lock().take(&self.backlog);
            while self.lock().step() {}
        }
    }
}

impl Search {
    fn catalogue(&self) -> &'static Catalogue {
        self.extended.unwrap_or_else(|| diagnose::catalogue())
    }

    /// The pieces stay in their order, since only who holds the search takes them.
    fn take(&mut self, backlog: &Backlog) {
        self.pending.extend(backlog.take());
    }

    /// Searches a part of what is pending; false if there was nothing.
    fn step(&mut self) -> bool {
        let Some(piece) = self.pending.front_mut() else { return false };
        let (owner, stream) = (piece.owner, piece.stream);
        let arrived = piece.arrived.saturating_duration_since(self.began);
        let skipped = std::mem::take(&mut piece.skipped);
        let rest = piece.bytes.split_off(piece.bytes.len().min(PART));
        let part = std::mem::replace(&mut piece.bytes, rest);
        if piece.bytes.is_empty() {
            self.pending.pop_front();
        }
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
            let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds + 1))?;
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

    fn told(&mut self, end: Option<KnownEnd>, failed: bool) -> Told {
        // What the kernel did needs no other evidence, and of a signal the engine knows no more
        // than its rank's shim.
        let counts = |owner: &Owner| match end {
            Some(KnownEnd { oom: true, .. }) => false,
            Some(KnownEnd { end: End::Signal(_), .. }) => *owner != Owner::Engine,
            _ => true,
        };
        let scans = self.scans.iter().filter(|(owner, _)| counts(owner));
        let mut logs: Vec<Scanned> = scans.map(|(_, scan)| scan.clone().finish()).collect();
        let mut names: Vec<String> = self.logs.iter().map(name).collect();
        logs.extend(end.and_then(|end| self.exit_status(names.len(), end)));
        // No log: the end of the rank itself is the evidence.
        names.push(String::new());
        let diagnosis = diagnose(self.catalogue(), &logs, failed);
        self.survived = diagnose::survived(self.catalogue(), &diagnosis.findings);
        match diagnose::why(self.catalogue(), &diagnosis, &names) {
            Some(why) => Told::Root(Box::new(why)),
            None if diagnosis.failed => Told::Consequence,
            None => Told::Nothing,
        }
    }

    /// The end of a rank as a log of one line.
    fn exit_status(&self, log: usize, end: KnownEnd) -> Option<Scanned> {
        let statement = statement(end)?;
        let origin = Origin { rank: Some(end.rank), ..Origin::default() };
        let mut scan = LogScan::new(self.catalogue(), log, origin);
        scan.feed_live(log, self.began.elapsed(), statement.as_bytes());
        Some(scan.finish())
    }
}

/// The file of a log, in the folder of the attempt.
fn name((owner, log): &(Owner, Log)) -> String {
    match log {
        Log::Stream(stream) => log_name(*owner, *stream),
        Log::ErrorFile => ErrorFile::of(*owner).map(|file| file.to_string()).unwrap_or_default(),
    }
}

/// The end of a rank in the words of the launchers whose statements the catalogue knows.
pub(super) fn statement(end: KnownEnd) -> Option<String> {
    let KnownEnd { rank, end, oom } = end;
    match end {
        End::Signal(signal) if !oom => Some(format!("rank {rank}: exitcode: -{signal}\n")),
        End::Code(_) => None,
        End::Signal(_) => Some(format!("error: Detected 1 oom_kill event in rank {rank}\n")),
    }
}

/// How the rank that `ending` names ended.
pub(super) fn known_end(ending: &Ending, outcome: &Outcome) -> Option<KnownEnd> {
    let rank = GlobalRank(ending.rank?);
    let end = outcome.ranks.iter().find(|seen| seen.id.global == rank)?.end?;
    Some(KnownEnd { rank, end, oom: ending.id == Id::MemoryOom })
}

/// `ending` with what the output says about it. Without an answer in time it stays as it is.
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
        Some(Told::Consequence) => ending.unexplained(),
        Some(Told::Nothing) | None => ending,
    }
}

/// The failure of a rank that has said so and has not ended yet. Its report counts only against
/// one that shows nothing but consequences, so a likely cause will do.
pub(super) async fn raised(diagnosis: &Arc<LiveDiagnosis>, time_left: Duration) -> Option<Ending> {
    let searching = Arc::clone(diagnosis);
    let told = with_deadline_async(time_left, move || searching.told(None, false)).await?;
    let Told::Root(why) = told else { return None };
    Some(ending::rank_raised(GlobalRank(why.rank?)).explained(*why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Confidence;

    const CLOSED: &str = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:51514\n";

    /// What is said of pieces of (rank, stream, text), each a tenth of a second after the other.
    fn told(pieces: &[(u32, Stream, &str)], end: Option<KnownEnd>) -> Told {
        let began = Instant::now();
        let mut search = Search {
            extended: None,
            node: 0,
            began,
            pending: VecDeque::new(),
            scans: BTreeMap::new(),
            logs: Vec::new(),
            survived: Vec::new(),
        };
        for ((rank, stream, text), tenths) in pieces.iter().zip(1..) {
            search.pending.push_back(Piece {
                owner: Owner::Rank(GlobalRank(*rank)),
                stream: *stream,
                skipped: crate::logs::Skipped::default(),
                arrived: began + Duration::from_millis(100) * tenths,
                bytes: text.as_bytes().to_vec(),
            });
        }
        while search.step() {}
        search.told(end, end.is_some())
    }

    fn raised(what: &str) -> String {
        format!(
            "Traceback (most recent call last):\n  File \"train.py\", line 41, in <module>\n    main()\n{what}\n"
        )
    }

    fn root(told: Told) -> Why {
        match told {
            Told::Root(why) => *why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_to_arrive_is_the_cause_whatever_its_rank() {
        let (memory, file) = (
            raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
            raised("ModuleNotFoundError: No module named 'flash_attn'"),
        );
        let why = root(told(&[(3, Stream::Err, &memory), (1, Stream::Err, &file)], None));
        assert_eq!((&*why.id, why.rank, &*why.log), ("cuda_oom", Some(3), "rank-00003.err"));
        let why = root(told(&[(1, Stream::Err, &file), (3, Stream::Err, &memory)], None));
        assert_eq!((&*why.id, why.rank, why.line), ("module_missing", Some(1), 4));
        assert_eq!(why.frame.as_deref(), Some("train.py:41 <module>"));
    }

    #[test]
    fn a_victim_is_told_from_the_culprit_and_alone_is_no_cause() {
        let closed = raised(CLOSED.trim());
        assert_eq!(told(&[(0, Stream::Err, &closed)], None), Told::Consequence);
        let culprit = raised("ValueError: the batch is empty");
        let why = root(told(&[(0, Stream::Err, &closed), (2, Stream::Err, &culprit)], None));
        assert_eq!((&*why.id, why.rank), ("user_exception", Some(2)));
        assert_eq!(why.victims.first().map(|victims| &*victims.ranks), Some(&[0][..]));
    }

    #[test]
    fn an_exception_that_the_other_stream_outlived_is_none() {
        let caught = raised("ValueError: a bad sample, skipped");
        let progress: String = (0..2000).map(|step| format!("step {step} loss 0.5\n")).collect();
        let pieces = [(0, Stream::Err, &*caught), (0, Stream::Out, &*progress)];
        assert_eq!(told(&pieces, None), Told::Nothing);
        assert_eq!(root(told(&pieces[..1], None)).id, "user_exception");
    }

    #[test]
    fn the_end_of_a_rank_explains_what_no_line_does() {
        let end =
            |signal, oom| Some(KnownEnd { rank: GlobalRank(1), end: End::Signal(signal), oom });
        let quiet = [(1, Stream::Out, "step 1\n")];
        for (signal, oom, id) in [
            (11, false, "worker_sigsegv"),
            (7, false, "worker_sigbus"),
            (9, false, "worker_sigkill"),
            (9, true, "host_oom"),
        ] {
            let why = root(told(&quiet, end(signal, oom)));
            assert_eq!((&*why.id, why.rank, &*why.log), (id, Some(1), ""), "{signal}");
            assert!(why.confidence >= Confidence::Likely);
        }
        let exit = KnownEnd { rank: GlobalRank(1), end: End::Code(1), oom: false };
        assert_eq!(told(&quiet, Some(exit)), Told::Nothing);
    }
}
