//! Takes samples of the node and of its ranks while a job runs, in a thread of its own.
//!
//! Takes the pids of the ranks; gives a [`Sample`] each 30 s, and one each second while somebody
//! looks. A file system, a /proc or a rank that hangs costs samples, but never delays the job.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use sysinfo::{
    MemoryRefreshKind, NetworkData, Networks, Pid, ProcessRefreshKind, ProcessesToUpdate, System,
};

use super::collectives;
use super::node::{NodeReader, NodeReading, NodeSources, Parts, Reason};
use super::sample::{GpuSample, HcaSample, InterfaceSample, MemorySample, RankSample, Sample};
use crate::deadline::with_deadline;
use crate::rank::GlobalRank;

/// Time limit for reading the free space of the log file system.
const ANSWER: Duration = Duration::from_secs(2);
/// Time limit for reading the counters of the node.
const COUNTERS: Duration = Duration::from_secs(2);
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
    /// While somebody looks.
    pub watched: Duration,
}

impl SamplingPace {
    pub(crate) const STANDARD: SamplingPace = SamplingPace {
        first: Duration::from_secs(2),
        every: Duration::from_secs(30),
        watched: Duration::from_secs(1),
    };
}

/// Who gets the samples.
pub(crate) struct SampleSinks {
    /// Each full sample, for agent.jsonl.
    pub keep: Box<dyn Fn(&Sample) + Send>,
    /// Every sample.
    pub show: Box<dyn Fn(&Sample) + Send>,
    /// Whether somebody looks.
    pub is_watched: Box<dyn Fn() -> bool + Send>,
}

impl std::fmt::Debug for SampleSinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleSinks").finish_non_exhaustive()
    }
}

/// The sampled parts of the node.
pub(crate) struct WatchedNode {
    /// The log folder; None if there is none.
    pub log_folder: Option<PathBuf>,
    /// The folder of the ranks' control sockets, if they have any.
    pub control: Option<PathBuf>,
    /// The counters of which a sample tells what is abnormal.
    pub sources: NodeSources,
    /// Reads bytes received and sent of the ports of the job's HCAs, if there are any.
    pub ports: Option<Ports>,
    /// Reads bytes in use and the limit of the memory control group.
    pub group_memory: Box<dyn Fn() -> Option<(u64, u64)> + Send>,
}

/// The name of each port (`mlx5_0:1`) and its bytes.
pub(crate) type Ports = Arc<dyn Fn() -> Vec<(String, u64, u64)> + Send + Sync>;

impl std::fmt::Debug for WatchedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("log_folder", &self.log_folder).finish_non_exhaustive()
    }
}

enum Said {
    Began(GlobalRank, i32),
    Ended(GlobalRank),
    /// Somebody begins to look.
    Watched,
}

/// The handle of the sampling thread, which ends with it.
#[derive(Debug)]
pub(crate) struct Sampler {
    said: Option<Arc<Sender<Said>>>,
    done: tokio::sync::oneshot::Receiver<()>,
}

impl Sampler {
    /// Starts a thread that begins with the first rank. If no thread can be started there are no
    /// samples.
    pub(crate) fn start(node: WatchedNode, pace: SamplingPace, sinks: SampleSinks) -> Sampler {
        keep_file_limit();
        let (said, hear) = channel();
        let (finished, done) = tokio::sync::oneshot::channel();
        let run = move || {
            run(node, pace, &hear, &sinks);
            let _ = finished.send(());
        };
        let thread = std::thread::Builder::new().name("sampler".into()).stack_size(128 * 1024);
        Sampler { said: thread.spawn(run).ok().map(|_| Arc::new(said)), done }
    }

    /// Tells that somebody begins to look; nothing once the sampler has ended.
    pub(crate) fn waker(&self) -> impl Fn() + Send + Sync + 'static + use<> {
        let said = self.said.as_ref().map(Arc::downgrade);
        move || {
            if let Some(said) = said.as_ref().and_then(Weak::upgrade) {
                let _ = said.send(Said::Watched);
            }
        }
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

fn run(node: WatchedNode, pace: SamplingPace, hear: &Receiver<Said>, sinks: &SampleSinks) {
    // Reads nothing before the job starts.
    let first = loop {
        match hear.recv() {
            Ok(Said::Watched) => {}
            Ok(first) => break first,
            Err(_) => return,
        }
    };
    let mut state = State::new(node);
    state.hear(first);
    let mut full = Instant::now() + pace.first;
    let mut live = (sinks.is_watched)().then(Instant::now);
    loop {
        let next = live.map_or(full, |live| live.min(full));
        match hear.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Said::Watched) => live = live.or_else(|| Some(Instant::now())),
            Ok(word) => state.hear(word),
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                if full <= now {
                    let sample = state.full(Parts::All);
                    (sinks.keep)(&sample);
                    (sinks.show)(&sample);
                    full = now + pace.every;
                } else {
                    (sinks.show)(&state.live());
                }
                live = (sinks.is_watched)().then(|| now + pace.watched);
            }
            Err(RecvTimeoutError::Disconnected) => {
                // The driver is not asked any more: it may be why the job ended.
                let sample = state.full(Parts::Kernel);
                (sinks.keep)(&sample);
                return (sinks.show)(&sample);
            }
        }
    }
}

/// What a rate counts from.
#[derive(Debug, Default)]
struct Baseline {
    /// CPU time, and when it was read.
    cpu: BTreeMap<GlobalRank, (Duration, Instant)>,
    /// Bytes received and sent, and when they were read.
    network: BTreeMap<String, (u64, u64)>,
    network_at: Option<Instant>,
    ports: BTreeMap<String, (u64, u64)>,
    ports_at: Option<Instant>,
}

struct State {
    node: WatchedNode,
    reader: NodeReader,
    reading: Option<NodeReading>,
    /// The file system of the logs hung, so it is not read again.
    stuck: bool,
    /// The same of the HCAs' counters.
    ports_stuck: bool,
    /// With the time of their start.
    ranks: BTreeMap<GlobalRank, (Pid, Instant)>,
    system: System,
    networks: Networks,
    /// Those of the full samples, and of all.
    since_full: Baseline,
    since_last: Baseline,
}

impl State {
    fn new(node: WatchedNode) -> State {
        let networks = Networks::new_with_refreshed_list();
        let totals = |(name, data): (&String, &NetworkData)| {
            (name.clone(), (data.total_received(), data.total_transmitted()))
        };
        let begin = || Baseline {
            network: networks.iter().map(totals).collect(),
            network_at: Some(Instant::now()),
            ..Baseline::default()
        };
        State {
            reader: NodeReader::new(node.sources.clone()),
            reading: None,
            node,
            stuck: false,
            ports_stuck: false,
            ranks: BTreeMap::new(),
            system: System::new(),
            since_full: begin(),
            since_last: begin(),
            networks,
        }
    }

    fn hear(&mut self, word: Said) {
        match word {
            Said::Began(rank, pid) => {
                let Ok(pid) = u32::try_from(pid) else { return };
                self.ranks.insert(rank, (Pid::from_u32(pid), Instant::now()));
                self.since_full.cpu.remove(&rank);
                self.since_last.cpu.remove(&rank);
            }
            Said::Ended(rank) => {
                self.ranks.remove(&rank);
            }
            Said::Watched => {}
        }
    }

    /// Everything, with rates since the last full sample.
    fn full(&mut self, parts: Parts) -> Sample {
        let began = Instant::now();
        let mut baseline = std::mem::take(&mut self.since_full);
        let mut sample = self.quick(&mut baseline);
        self.since_full = baseline;
        (sample.abnormal, sample.gpus) = self.abnormal(parts);
        sample.collectives = self.node.control.as_deref().map(collectives::rows);
        sample.log_folder_free = self.log_free();
        sample.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        sample
    }

    /// What changes from second to second and costs little, with rates since the last sample.
    fn live(&mut self) -> Sample {
        let began = Instant::now();
        let mut baseline = std::mem::take(&mut self.since_last);
        let mut sample = self.quick(&mut baseline);
        self.since_last = baseline;
        sample.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        sample
    }

    fn quick(&mut self, since: &mut Baseline) -> Sample {
        self.system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let group = (self.node.group_memory)();
        let memory = MemorySample {
            used: self.system.used_memory(),
            available: self.system.available_memory(),
            group_used: group.map(|(used, _)| used),
            group_limit: group.map(|(_, limit)| limit),
        };
        let (ranks, network, hcas) = (self.ranks(since), self.network(since), self.hcas(since));
        Sample { memory, ranks, network, hcas, ..Sample::default() }
    }

    /// What is abnormal about the node since the last full sample, and its GPUs.
    fn abnormal(&mut self, parts: Parts) -> (Option<Vec<Reason>>, Vec<GpuSample>) {
        let pid = |pid: &Pid| i32::try_from(pid.as_u32()).unwrap_or(-1);
        let ranks: Vec<_> = self.ranks.iter().map(|(number, (of, _))| (*number, pid(of))).collect();
        let reading = self.reader.read(&ranks, parts, COUNTERS);
        let change = self.reading.as_ref().map(|earlier| reading.since(earlier));
        let gpus = reading.gpus().iter().map(|one| GpuSample::of(&one.gpu)).collect();
        self.reading = Some(reading);
        let reasons = change.map(|change| change.reasons().to_vec()).unwrap_or_default();
        (Some(reasons), gpus)
    }

    fn ranks(&mut self, since: &mut Baseline) -> Vec<RankSample> {
        let pids: Vec<Pid> = self.ranks.values().map(|(pid, _)| *pid).collect();
        let what = ProcessRefreshKind::nothing().with_cpu().with_memory();
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, what);
        let mut rows = Vec::new();
        for (rank, (pid, began)) in &self.ranks {
            // The rank has just ended.
            let Some(process) = self.system.process(*pid) else { continue };
            let (cpu, at) = (Duration::from_millis(process.accumulated_cpu_time()), Instant::now());
            let (before, then) =
                since.cpu.insert(*rank, (cpu, at)).unwrap_or((Duration::ZERO, *began));
            let (spent, passed) = (cpu.saturating_sub(before), at.saturating_duration_since(then));
            let share = spent.as_secs_f64() / passed.as_secs_f64().max(0.001);
            rows.push(RankSample {
                rank: *rank,
                pid: pid.as_u32(),
                cpu_percent: (share * 100.0).round(),
                cpu_seconds: cpu.as_secs_f64(),
                memory: process.memory(),
            });
        }
        rows
    }

    fn hcas(&mut self, since: &mut Baseline) -> Vec<HcaSample> {
        let Some(ports) = self.node.ports.clone().filter(|_| !self.ports_stuck) else {
            return Vec::new();
        };
        let Some(ports) = with_deadline(ANSWER, move || ports()) else {
            self.ports_stuck = true;
            return Vec::new();
        };
        let now = Instant::now();
        let then = since.ports_at.replace(now).unwrap_or(now);
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds).round();
        let row = |(port, received_total, sent_total): (String, u64, u64)| {
            let now = (received_total, sent_total);
            let before = since.ports.insert(port.clone(), now).unwrap_or(now);
            let (received, sent) = (rate(now.0, before.0), rate(now.1, before.1));
            HcaSample { port, received, sent, received_total, sent_total }
        };
        ports.into_iter().map(row).collect()
    }

    fn network(&mut self, since: &mut Baseline) -> Vec<InterfaceSample> {
        self.networks.refresh(true);
        let now = Instant::now();
        let then = since.network_at.replace(now).unwrap_or(now);
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(0.001);
        let mut busy = Vec::new();
        for (name, data) in self.networks.iter().filter(|(name, _)| *name != "lo") {
            let (received_total, sent_total) = (data.total_received(), data.total_transmitted());
            let now = (received_total, sent_total);
            // One that is new counts from its first sight.
            let before = since.network.insert(name.clone(), now).unwrap_or(now);
            let grown = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
            let sum = grown.0.saturating_add(grown.1);
            if sum > 0 {
                let rate = |bytes: u64| (bytes as f64 / seconds).round();
                let (received, sent) = (rate(grown.0), rate(grown.1));
                let interface = name.clone();
                let row = InterfaceSample { interface, received, sent, received_total, sent_total };
                busy.push((sum, row));
            }
        }
        busy.sort_by_key(|(sum, _)| std::cmp::Reverse(*sum));
        busy.truncate(INTERFACES);
        busy.into_iter().map(|(_, row)| row).collect()
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::host::Host;
    use crate::observe::counters::Counters;

    const SOON: Duration = Duration::from_secs(20);

    fn node(group_memory: impl Fn() -> Option<(u64, u64)> + Send + 'static) -> WatchedNode {
        WatchedNode {
            log_folder: Some(std::env::temp_dir()),
            control: None,
            sources: NodeSources {
                host: Arc::new(Host::live()),
                hcas: Arc::new(|_| Counters::default()),
                gpus: Arc::new(|_, _| Vec::new()),
            },
            ports: None,
            group_memory: Box::new(group_memory),
        }
    }

    /// Sends what agent.jsonl would get.
    fn sinks(kept: Sender<Value>, is_watched: impl Fn() -> bool + Send + 'static) -> SampleSinks {
        let keep = move |sample: &Sample| drop(kept.send(sample.event()));
        let is_watched = Box::new(is_watched);
        SampleSinks { keep: Box::new(keep), show: Box::new(|_| {}), is_watched }
    }

    /// Of a job without samples.
    fn unread() -> SampleSinks {
        let never = |_: &Sample| panic!("there is a sample");
        let is_watched = Box::new(|| true);
        SampleSinks { keep: Box::new(never), show: Box::new(never), is_watched }
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
        let first = Duration::from_millis(300);
        let pace = SamplingPace { first, every: SOON, watched: SOON };
        let sampler = Sampler::start(node(|| Some((1, 2))), pace, sinks(kept, || false));
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
    async fn while_somebody_looks_there_are_samples_each_second() {
        let (shown, samples) = channel();
        let watched = Arc::new(AtomicBool::new(false));
        let is_watched = Arc::clone(&watched);
        let (kept, full) = channel();
        let sinks = SampleSinks {
            keep: Box::new(move |_| {
                let _ = kept.send(());
            }),
            show: Box::new(move |sample| drop(shown.send(sample.clone()))),
            is_watched: Box::new(move || is_watched.load(Ordering::Relaxed)),
        };
        let soon = Duration::from_millis(20);
        let pace = SamplingPace { first: SOON, every: SOON, watched: soon };
        let sampler = Sampler::start(node(|| None), pace, sinks);
        let wake = sampler.waker();
        sampler.began(GlobalRank(0), own_pid());
        assert!(samples.recv_timeout(soon * 5).is_err(), "nobody looks");
        watched.store(true, Ordering::Relaxed);
        wake();
        for _ in 0..3 {
            let sample = samples.recv_timeout(SOON).expect("a sample");
            assert_eq!(sample.ranks.len(), 1, "{sample:?}");
            assert_eq!((&sample.abnormal, &sample.log_folder_free), (&None, &None));
        }
        watched.store(false, Ordering::Relaxed);
        // One may be on its way.
        while samples.recv_timeout(soon * 10).is_ok() {}
        assert!(samples.recv_timeout(soon * 5).is_err(), "nobody looks any more");
        assert!(full.try_recv().is_err(), "agent.jsonl has none of these");
        // It ends although the waker lives.
        sampler.end().finish(SOON).await;
        assert_eq!(full.iter().count(), 1);
        wake();
    }

    #[tokio::test]
    async fn without_a_rank_nothing_is_read() {
        let sampler = Sampler::start(node(|| panic!("read")), SamplingPace::STANDARD, unread());
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
        let sampler = Sampler::start(stuck, SamplingPace::STANDARD, unread());
        sampler.began(GlobalRank(0), own_pid());
        let sampling = sampler.end();
        began.recv_timeout(SOON).expect("it was asked");
        let start = Instant::now();
        sampling.finish(Duration::from_millis(50)).await;
        assert!(start.elapsed() < SOON);
    }
}
