//! Samples of the node and of its ranks while a job runs.
//!
//! Takes the pids of the ranks; gives one JSON object per sample: memory of the node and of its
//! control group, free space for logs, CPU and memory of each rank, traffic of each interface. A
//! file system or a /proc that hangs costs samples, but never delays the job.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Once;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Map, Value, json};
use sysinfo::{MemoryRefreshKind, Networks, Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::deadline::with_deadline;
use crate::rank::GlobalRank;

/// Time limit for reading the free space of the log file system.
const ANSWER: Duration = Duration::from_secs(2);
/// How many interfaces are listed, those with the most traffic; a Kubernetes node may have
/// hundreds.
const INTERFACES: usize = 8;

/// The times of the samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SamplingPace {
    /// Counted from the start of the first rank, so that a job that dies early has a sample as
    /// well.
    pub first: Duration,
    pub every: Duration,
}

impl SamplingPace {
    pub(crate) const STANDARD: SamplingPace =
        SamplingPace { first: Duration::from_secs(2), every: Duration::from_secs(30) };
}

/// The sampled parts of the node.
pub(crate) struct WatchedNode {
    /// The log folder; None if there is none.
    pub log_folder: Option<PathBuf>,
    /// Reads bytes in use and the limit of the memory control group.
    pub group_memory: Box<dyn Fn() -> Option<(u64, u64)> + Send>,
}

impl std::fmt::Debug for WatchedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("log_folder", &self.log_folder).finish_non_exhaustive()
    }
}

enum Said {
    Began(GlobalRank, i32),
    Ended(GlobalRank),
}

/// The handle of the sampling thread.
#[derive(Debug)]
pub(crate) struct Sampler {
    said: Option<Sender<Said>>,
    done: tokio::sync::oneshot::Receiver<()>,
}

impl Sampler {
    /// Starts a thread that begins with the first rank and passes each sample to `keep`. If no
    /// thread can be started there are no samples.
    pub(crate) fn start(
        node: WatchedNode,
        pace: SamplingPace,
        keep: impl Fn(Value) + Send + 'static,
    ) -> Sampler {
        keep_file_limit();
        let (said, hear) = channel();
        let (finished, done) = tokio::sync::oneshot::channel();
        let run = move || {
            run(node, pace, &hear, &keep);
            let _ = finished.send(());
        };
        let thread = std::thread::Builder::new().name("sampler".into()).stack_size(128 * 1024);
        Sampler { said: thread.spawn(run).ok().map(|_| said), done }
    }

    pub(crate) fn began(&self, rank: GlobalRank, pid: i32) {
        self.say(Said::Began(rank, pid));
    }

    pub(crate) fn ended(&self, rank: GlobalRank) {
        self.say(Said::Ended(rank));
    }

    fn say(&self, word: Said) {
        if let Some(said) = &self.said {
            let _ = said.send(word);
        }
    }

    /// Ends the sampling with a last sample.
    pub(crate) fn end(self) -> Sampling {
        Sampling(self.done)
    }
}

/// The last sample, which may still be in progress.
#[derive(Debug)]
pub(crate) struct Sampling(tokio::sync::oneshot::Receiver<()>);

impl Sampling {
    /// Waits until it is passed on, at most `timeout`. A thread that hangs is abandoned.
    pub(crate) async fn finish(self, timeout: Duration) {
        let _ = tokio::time::timeout(timeout, self.0).await;
    }
}

/// Keeps sysinfo from raising the limit of open files, which the ranks would inherit, and from
/// keeping files of /proc open.
fn keep_file_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        sysinfo::set_open_files_limit(0);
        let _ = setrlimit(Resource::Nofile, limit);
    });
}

fn run(node: WatchedNode, pace: SamplingPace, hear: &Receiver<Said>, keep: &impl Fn(Value)) {
    // Reads nothing before the job starts.
    let Ok(first) = hear.recv() else { return };
    let mut state = State::new(node);
    state.hear(first);
    let mut next = Instant::now() + pace.first;
    loop {
        match hear.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(word) => state.hear(word),
            Err(RecvTimeoutError::Timeout) => {
                keep(state.sample());
                next = Instant::now() + pace.every;
            }
            Err(RecvTimeoutError::Disconnected) => return keep(state.sample()),
        }
    }
}

/// CPU time of a process, and when it was read.
struct Rank {
    pid: Pid,
    cpu: Duration,
    at: Instant,
}

struct State {
    node: WatchedNode,
    /// The file system of the logs hung, so it is not read again.
    stuck: bool,
    ranks: BTreeMap<GlobalRank, Rank>,
    system: System,
    networks: Networks,
    networks_at: Instant,
}

impl State {
    fn new(node: WatchedNode) -> State {
        State {
            node,
            stuck: false,
            ranks: BTreeMap::new(),
            system: System::new(),
            networks: Networks::new_with_refreshed_list(),
            networks_at: Instant::now(),
        }
    }

    fn hear(&mut self, word: Said) {
        match word {
            Said::Began(rank, pid) => {
                let Ok(pid) = u32::try_from(pid) else { return };
                let rank_of =
                    Rank { pid: Pid::from_u32(pid), cpu: Duration::ZERO, at: Instant::now() };
                self.ranks.insert(rank, rank_of);
            }
            Said::Ended(rank) => {
                self.ranks.remove(&rank);
            }
        }
    }

    fn sample(&mut self) -> Value {
        let began = Instant::now();
        self.system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let mut memory = Map::from_iter([
            ("used".to_owned(), self.system.used_memory().into()),
            ("available".to_owned(), self.system.available_memory().into()),
        ]);
        if let Some((used, limit)) = (self.node.group_memory)() {
            memory.extend([
                ("group_used".to_owned(), used.into()),
                ("group_limit".to_owned(), limit.into()),
            ]);
        }
        let mut fields = Map::from_iter([
            ("message".to_owned(), "sampled".into()),
            ("memory".to_owned(), memory.into()),
            ("ranks".to_owned(), self.ranks().into()),
            ("network".to_owned(), self.network().into()),
        ]);
        if let Some(free) = self.log_free() {
            fields.insert("log_folder_free".to_owned(), free.into());
        }
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        fields.insert("took_us".to_owned(), micros.into());
        fields.into()
    }

    fn ranks(&mut self) -> Vec<Value> {
        let pids: Vec<Pid> = self.ranks.values().map(|rank| rank.pid).collect();
        let what = ProcessRefreshKind::nothing().with_cpu().with_memory();
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, what);
        let mut rows = Vec::new();
        for (number, rank) in &mut self.ranks {
            // The rank has just ended.
            let Some(process) = self.system.process(rank.pid) else { continue };
            let (cpu, at) = (Duration::from_millis(process.accumulated_cpu_time()), Instant::now());
            let (spent, passed) = (cpu.saturating_sub(rank.cpu), at.duration_since(rank.at));
            rows.push(json!({
                "rank": number,
                "pid": rank.pid.as_u32(),
                "cpu_percent": (spent.as_secs_f64() / passed.as_secs_f64().max(0.001) * 100.0).round(),
                "memory": process.memory(),
            }));
            (rank.cpu, rank.at) = (cpu, at);
        }
        rows
    }

    /// Bytes per second since the last sample, of interfaces with traffic.
    fn network(&mut self) -> Vec<Value> {
        let seconds = self.networks_at.elapsed().as_secs_f64().max(0.001);
        self.networks.refresh(true);
        self.networks_at = Instant::now();
        let mut busy: Vec<_> = self
            .networks
            .iter()
            .map(|(name, data)| (data.received(), data.transmitted(), name))
            .filter(|(received, sent, name)| received + sent > 0 && *name != "lo")
            .collect();
        busy.sort_by_key(|(received, sent, _)| std::cmp::Reverse(received.saturating_add(*sent)));
        busy.truncate(INTERFACES);
        let rate = |bytes: u64| (bytes as f64 / seconds).round();
        busy.into_iter()
            .map(|(received, sent, name)| {
                json!({ "interface": name, "received": rate(received), "sent": rate(sent) })
            })
            .collect()
    }

    /// Free space of the log folder's own file system. sysinfo's list of disks omits network
    /// file systems and reads all others.
    fn log_free(&mut self) -> Option<u64> {
        let folder = self.node.log_folder.clone().filter(|_| !self.stuck)?;
        let answer = with_deadline(ANSWER, move || rustix::fs::statvfs(&folder));
        self.stuck = answer.is_none();
        let found = answer?.ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn node(group_memory: impl Fn() -> Option<(u64, u64)> + Send + 'static) -> WatchedNode {
        WatchedNode { log_folder: Some(std::env::temp_dir()), group_memory: Box::new(group_memory) }
    }

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).expect("a pid")
    }

    /// Bytes of a line of a file of /proc that counts KiB.
    fn kib(path: &str, name: &str) -> f64 {
        let text = std::fs::read_to_string(path).expect("readable");
        let line = text.lines().find(|line| line.starts_with(name)).expect("the line");
        let number = line.split_whitespace().nth(1).expect("a number");
        number.parse::<f64>().expect("a number") * 1024.0
    }

    #[tokio::test]
    async fn this_process_is_sampled_as_proc_shows_it() {
        let limit = getrlimit(Resource::Nofile).current;
        let (kept, samples) = channel();
        let pace = SamplingPace { first: Duration::from_millis(300), every: SOON };
        let sampler = Sampler::start(node(|| Some((1, 2))), pace, move |sample| {
            let _ = kept.send(sample);
        });
        sampler.began(GlobalRank(3), own_pid());
        let work = std::thread::spawn(|| {
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until {
                std::hint::black_box(0);
            }
        });
        let sample = samples.recv_timeout(SOON).expect("a sample");
        work.join().expect("worked");
        let number = |at: &str| sample.pointer(at).and_then(Value::as_f64).expect(at);
        assert_eq!(number("/ranks/0/rank"), 3.0, "{sample}");
        assert_eq!(number("/ranks/0/pid"), f64::from(own_pid()));
        assert!(number("/ranks/0/cpu_percent") > 5.0, "{sample}");
        let resident = kib("/proc/self/status", "VmRSS:");
        let ratio = number("/ranks/0/memory") / resident;
        assert!((0.3..3.0).contains(&ratio), "{sample} beside {resident}");
        let total = kib("/proc/meminfo", "MemTotal:");
        let sum = number("/memory/used") + number("/memory/available");
        assert!((0.5..1.5).contains(&(sum / total)), "{sample} beside {total}");
        assert_eq!(number("/memory/group_limit"), 2.0);
        assert!(number("/log_folder_free") > 0.0);
        assert_eq!(getrlimit(Resource::Nofile).current, limit, "ranks inherit it");

        sampler.ended(GlobalRank(3));
        sampler.end().finish(SOON).await;
        let last = samples.recv_timeout(SOON).expect("one at the end");
        assert_eq!(last.pointer("/ranks"), Some(&json!([])));
        assert!(samples.recv().is_err(), "and no more");
    }

    #[tokio::test]
    async fn without_a_rank_nothing_is_read() {
        let sampler =
            Sampler::start(node(|| panic!("read")), SamplingPace::STANDARD, |_| panic!("kept"));
        sampler.end().finish(SOON).await;
    }

    #[tokio::test]
    async fn what_does_not_answer_holds_nothing() {
        let (reading, began) = channel();
        let stuck = node(move || {
            let _ = reading.send(());
            loop {
                std::thread::park();
            }
        });
        let sampler = Sampler::start(stuck, SamplingPace::STANDARD, |_| {});
        sampler.began(GlobalRank(0), own_pid());
        let sampling = sampler.end();
        began.recv_timeout(SOON).expect("it was asked");
        let start = Instant::now();
        sampling.finish(Duration::from_millis(50)).await;
        assert!(start.elapsed() < SOON);
    }
}
