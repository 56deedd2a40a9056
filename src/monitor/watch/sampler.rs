//! Takes samples of the node and of its ranks while a job runs, in a thread of its own.
//!
//! Takes the pids of the ranks; gives a [`Sample`] each 30 s, and one each second while somebody
//! looks. A file system, a /proc or a rank that hangs costs samples, but never delays the job.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use super::node::Parts;
use super::readings::{Readings, WatchedNode};
use super::sample::Sample;
use text::rank::GlobalRank;

/// The times of the samples.
#[derive(Debug, Clone, Copy)]
pub struct SamplingPace {
    /// Time after the start of the first rank, so that a job that dies early has a sample as well.
    pub first: Duration,
    pub every: Duration,
    /// Interval while somebody looks.
    pub watched: Duration,
}

impl SamplingPace {
    pub const STANDARD: SamplingPace = SamplingPace {
        first: Duration::from_secs(2),
        every: Duration::from_secs(30),
        watched: Duration::from_secs(1),
    };
}

/// The receivers of the samples.
pub struct SampleSinks {
    /// Receives each full sample, for agent.jsonl.
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

enum Said {
    Began(GlobalRank, i32),
    Ended(GlobalRank),
    /// Somebody begins to look.
    Watched,
}

/// The handle of the sampling thread, which ends with it.
#[derive(Debug)]
pub struct Sampler {
    said: Option<Arc<Sender<Said>>>,
    done: tokio::sync::oneshot::Receiver<()>,
}

impl Sampler {
    /// Starts a thread that begins with the first rank. If no thread can be started there are no
    /// samples.
    pub fn start(node: WatchedNode, pace: SamplingPace, sinks: SampleSinks) -> Sampler {
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
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static + use<> {
        let said = self.said.as_ref().map(Arc::downgrade);
        move || {
            if let Some(said) = said.as_ref().and_then(Weak::upgrade) {
                let _ = said.send(Said::Watched);
            }
        }
    }

    pub fn began(&self, rank: GlobalRank, pid: i32) {
        self.say(Said::Began(rank, pid));
    }

    pub fn ended(&self, rank: GlobalRank) {
        self.say(Said::Ended(rank));
    }

    fn say(&self, word: Said) {
        if let Some(said) = &self.said {
            let _ = said.send(word);
        }
    }

    /// Ends the sampling with a last sample.
    pub fn end(self) -> Sampling {
        Sampling(self.done)
    }
}

/// The last sample, which may still be in progress.
#[derive(Debug)]
pub struct Sampling(tokio::sync::oneshot::Receiver<()>);

impl Sampling {
    /// Waits until it is passed on, at most `timeout`. A thread that hangs is abandoned.
    pub async fn finish(self, timeout: Duration) {
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
    let mut readings = Readings::new(node);
    hear_of(&mut readings, first);
    let mut full = Instant::now() + pace.first;
    let mut live = (sinks.is_watched)().then(Instant::now);
    loop {
        let next = live.map_or(full, |live| live.min(full));
        match hear.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Said::Watched) => live = live.or_else(|| Some(Instant::now())),
            Ok(word) => hear_of(&mut readings, word),
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                if full <= now {
                    let sample = readings.full(Parts::All);
                    (sinks.keep)(&sample);
                    (sinks.show)(&sample);
                    full = now + pace.every;
                } else {
                    (sinks.show)(&readings.live());
                }
                live = (sinks.is_watched)().then(|| now + pace.watched);
            }
            Err(RecvTimeoutError::Disconnected) => {
                // The driver is not asked any more: it may be why the job ended.
                let sample = readings.full(Parts::Kernel);
                (sinks.keep)(&sample);
                return (sinks.show)(&sample);
            }
        }
    }
}

fn hear_of(readings: &mut Readings, word: Said) {
    match word {
        Said::Began(rank, pid) => readings.began(rank, pid),
        Said::Ended(rank) => readings.ended(rank),
        Said::Watched => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::watch::node::NodeSources;
    use linux::host::Host;
    use node::observe::Counters;
    use node::probe::NvmlGpu;

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
            live_gpus: Box::new(Vec::new),
            ports: None,
            group_memory: Box::new(group_memory),
        }
    }

    /// Sends the samples that agent.jsonl would get.
    fn sinks(kept: Sender<Value>, is_watched: impl Fn() -> bool + Send + 'static) -> SampleSinks {
        let keep = move |sample: &Sample| drop(kept.send(sample.event()));
        let is_watched = Box::new(is_watched);
        SampleSinks { keep: Box::new(keep), show: Box::new(|_| {}), is_watched }
    }

    /// The receivers of a job without samples.
    fn unread() -> SampleSinks {
        let never = |_: &Sample| panic!("there is a sample");
        let is_watched = Box::new(|| true);
        SampleSinks { keep: Box::new(never), show: Box::new(never), is_watched }
    }

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).expect("a pid")
    }

    /// A value in bytes from a file of /proc that counts KiB.
    fn kib(path: &str, name: &str) -> f64 {
        let text = std::fs::read_to_string(path).expect("readable");
        let line = text.lines().find(|line| line.starts_with(name)).expect("the line");
        let number = line.split_whitespace().nth(1).expect("a number");
        number.parse::<f64>().expect("a number") * 1024.0
    }

    #[tokio::test]
    async fn sample_matches_proc_for_this_process() {
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
    async fn sampler_uses_the_fast_pace_only_while_watched() {
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
        let (tell, asked) = channel();
        let live_gpus = Box::new(move || {
            let _ = tell.send(());
            vec![NvmlGpu { index: 4, memory_used: Some(7), ..NvmlGpu::default() }]
        });
        let sampler = Sampler::start(WatchedNode { live_gpus, ..node(|| None) }, pace, sinks);
        let wake = sampler.waker();
        sampler.began(GlobalRank(0), own_pid());
        assert!(samples.recv_timeout(soon * 5).is_err(), "nobody looks");
        assert!(asked.try_recv().is_err(), "the driver is asked although nobody looks");
        watched.store(true, Ordering::Relaxed);
        wake();
        for _ in 0..3 {
            let sample = samples.recv_timeout(SOON).expect("a sample");
            assert_eq!(sample.ranks.len(), 1, "{sample:?}");
            let gpus: Vec<_> = sample.gpus.iter().map(|gpu| (gpu.gpu, gpu.memory_used)).collect();
            assert_eq!(gpus, [(4, Some(7))]);
            assert_eq!((&sample.abnormal, &sample.log_folder_free), (&None, &None));
        }
        watched.store(false, Ordering::Relaxed);
        // A sample may still be on its way.
        while samples.recv_timeout(soon * 10).is_ok() {}
        while asked.try_recv().is_ok() {}
        assert!(samples.recv_timeout(soon * 5).is_err(), "nobody looks any more");
        assert!(asked.try_recv().is_err(), "the driver is asked although nobody looks any more");
        assert!(full.try_recv().is_err(), "agent.jsonl has none of these");
        // The sampler ends although the waker lives.
        sampler.end().finish(SOON).await;
        assert_eq!(full.iter().count(), 1);
        wake();
    }

    #[tokio::test]
    async fn sampler_without_ranks_reads_nothing() {
        let sampler = Sampler::start(node(|| panic!("read")), SamplingPace::STANDARD, unread());
        sampler.end().finish(SOON).await;
    }

    #[tokio::test]
    async fn stuck_reading_does_not_delay_the_end() {
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
