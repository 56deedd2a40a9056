//! The program's own journal, `agent.jsonl`: one JSON document per line.
//!
//! It begins before the run has a folder: early lines wait in a bounded channel. Then a thread
//! of its own opens and writes the file, so a hanging file system costs lines, never time. Lines
//! lost to a full queue or a full disk are counted and reported in a line of their own; no line
//! is written in part.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;

/// Maximum number of lines that may wait for the file.
const QUEUE: usize = 1024;
/// Pause between two checks for room in the queue at the end.
const PAUSE: Duration = Duration::from_millis(1);

/// Messages to the thread that writes, in this order.
#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Reports that everything before it is written.
    Mark(Sender<()>),
    End,
}

/// The queue of lines and, once the run has a folder, the thread that writes them.
#[derive(Debug)]
pub struct Journal {
    lines: Lines,
    /// Lines that wait for a file; None once there is one.
    waiting: Mutex<Option<Receiver<Entry>>>,
    /// Signals that all is written; None before there is a file.
    done: Mutex<Option<Receiver<()>>>,
}

#[derive(Debug, Clone)]
struct Lines {
    queue: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A full queue drops the line, since the journal must not block its caller.
        if self.queue.try_send(Entry::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

impl Journal {
    /// Records all `tracing` events from now on.
    pub fn begin() -> Journal {
        let journal = Journal::new();
        // Names of own crates begin with this prefix; libraries log only warnings and errors.
        let own = Targets::new().with_target("ranklaunch", Level::DEBUG).with_default(Level::WARN);
        let lines = tracing_subscriber::fmt::layer()
            .json()
            .with_target(false)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(journal.lines.clone())
            .with_filter(own);
        let subscriber = tracing_subscriber::registry().with(lines);
        // No other subscriber exists: a process has one agent.
        let _ = tracing::subscriber::set_global_default(subscriber);
        journal
    }

    fn new() -> Journal {
        let (queue, lines) = sync_channel(QUEUE);
        let lines_in = Lines { queue, lost: Arc::default() };
        Journal { lines: lines_in, waiting: Mutex::new(Some(lines)), done: Mutex::new(None) }
    }

    /// Writes the waiting lines, and all that follow, to the file that `open` opens for
    /// appending. All attempts of a run share one file, so a second call changes nothing.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn write_to(
        &self,
        open: impl FnOnce() -> io::Result<File> + Send + 'static,
    ) -> io::Result<()> {
        let Some(lines) = take(&self.waiting) else { return Ok(()) };
        let (finished, done) = channel();
        let lost = Arc::clone(&self.lines.lost);
        std::thread::Builder::new().name("journal".into()).stack_size(128 * 1024).spawn(
            move || {
                if let Ok(file) = open() {
                    write_all(&file, &lines, &lost, &finished);
                }
            },
        )?;
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        Ok(())
    }

    /// Records an event with nested fields, which `tracing` does not support.
    pub fn keeper(&self) -> impl Fn(serde_json::Value) + Send + Sync + 'static + use<> {
        let lines = self.lines.clone();
        move |fields| {
            let _ = lines.clone().write_all(&line("INFO", &fields));
        }
    }

    /// Reports when all lines so far are written. None if there is no file, or no room to ask.
    pub fn mark(&self) -> Option<Receiver<()>> {
        let (mark, written) = channel();
        let has_file = self.done.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let is_asked = has_file && self.lines.queue.try_send(Entry::Mark(mark)).is_ok();
        is_asked.then_some(written)
    }

    /// Waits until everything is written, at most `timeout`.
    pub fn close(&self, timeout: Duration) {
        let Some(done) = take(&self.done) else { return };
        let began = Instant::now();
        // The queue may have no room for the end directly after a burst of lines.
        while let Err(TrySendError::Full(_)) = self.lines.queue.try_send(Entry::End) {
            if began.elapsed() >= timeout {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        let _ = done.recv_timeout(timeout.saturating_sub(began.elapsed()));
    }
}

fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn write_all(file: &File, queue: &Receiver<Entry>, lost: &AtomicU64, finished: &Sender<()>) {
    while let Ok(entry) = queue.recv() {
        let line = match entry {
            Entry::Line(line) => line,
            Entry::Mark(mark) => {
                let _ = mark.send(());
                continue;
            }
            Entry::End => break,
        };
        let gap = lost.swap(0, Ordering::Relaxed);
        if gap > 0 && append(file, &lost_lines(gap)).is_err() {
            lost.fetch_add(gap, Ordering::Relaxed);
        }
        if append(file, &line).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
    let gap = lost.swap(0, Ordering::Relaxed);
    if gap > 0 {
        let _ = append(file, &lost_lines(gap));
    }
    let _ = finished.send(());
}

fn lost_lines(count: u64) -> Vec<u8> {
    line("WARN", &serde_json::json!({ "message": "journal lines were lost", "lines": count }))
}

/// A line of the same shape as those of `tracing`.
fn line(level: &str, fields: &serde_json::Value) -> Vec<u8> {
    let stamp = super::files::stamp(SystemTime::now());
    let line = serde_json::json!({ "timestamp": stamp, "level": level, "fields": fields });
    format!("{line}\n").into_bytes()
}

/// Writes the whole line or nothing of it.
fn append(mut file: &File, line: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(line).inspect_err(|_| {
        // A partial line would corrupt the next one as well. Truncating works on a full disk,
        // and no other process writes here.
        let _ = file.set_len(before);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn read(path: &std::path::Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).expect("the journal");
        text.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
    }

    fn journal(path: &std::path::Path) -> Journal {
        let path = path.to_owned();
        let journal = Journal::new();
        let open = move || File::options().append(true).create(true).open(path);
        journal.write_to(open).expect("started");
        journal
    }

    #[test]
    fn lines_before_the_file_exists_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.jsonl");
        let journal = Journal::new();
        journal.lines.clone().write_all(b"{\"n\":0}\n").expect("kept");
        assert!(!path.exists());
        let at = path.clone();
        journal.write_to(move || File::options().append(true).create(true).open(at)).expect("one");
        journal.lines.clone().write_all(b"{\"n\":1}\n").expect("written");
        journal.write_to(|| Err(io::Error::other("asked twice"))).expect("no second file");
        journal.close(SOON);
        let numbers: Vec<_> = read(&path).iter().filter_map(|line| line["n"].as_u64()).collect();
        assert_eq!(numbers, [0, 1]);
    }

    /// The disk was slow, and the queue is full when the run ends.
    #[test]
    fn close_waits_for_a_full_queue() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.jsonl");
        let journal = Journal::new();
        let (answers, answered) = channel();
        let at = path.clone();
        let open = move || {
            let _ = answered.recv();
            File::options().append(true).create(true).open(at)
        };
        journal.write_to(open).expect("started");
        (0..QUEUE).for_each(|_| journal.lines.clone().write_all(b"{}\n").expect("queued"));
        let (closes, closed) = channel();
        let closing = std::thread::spawn(move || {
            journal.close(SOON);
            let _ = closes.send(());
        });
        closed.recv_timeout(Duration::from_millis(200)).expect_err("nothing is written yet");
        answers.send(()).expect("the disk answers");
        closed.recv_timeout(SOON).expect("closed");
        closing.join().expect("no panic");
        assert_eq!(read(&path).len(), QUEUE, "every line is there");
    }

    #[test]
    fn every_event_is_one_json_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.jsonl");
        let journal = journal(&path);
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_target(false)
            .with_writer(journal.lines.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(rank = 3, "two\nlines \u{1b}[2J");
            tracing::error!(error = %io::Error::other("no"), "a stream");
        });
        journal.close(SOON);
        let lines = read(&path);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["level"], "INFO");
        assert_eq!(lines[0]["fields"]["rank"], 3);
        assert_eq!(lines[0]["fields"]["message"], "two\nlines \u{1b}[2J");
        assert_eq!(lines[1]["fields"]["error"], "no");
        assert!(lines[0]["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')));
    }

    /// A size limit on the file simulates a disk that is full in the middle of a line and has
    /// space again later.
    #[test]
    fn full_disk_tears_no_line_and_counts_losses() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        // The limit applies to a whole process.
        if !harness::inside::is_own_process(
            full_disk_tears_no_line_and_counts_losses,
            "JOURNAL_CHILD",
        ) {
            return;
        }
        linux::sys::Dispositions::ignore(&[linux::sys::Signal::XFSZ]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.jsonl");
        let hard = getrlimit(Resource::Fsize).maximum;
        let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, maximum: hard });
        limit(Some(250)).expect("limited");
        let mut lines = {
            let journal = journal(&path);
            let lines = journal.lines.clone();
            let mut say = |n: u32| {
                let text = format!("{{\"n\":{n},\"fill\":\"{}\"}}\n", "x".repeat(80));
                lines.clone().write_all(text.as_bytes()).expect("queued");
            };
            (0..5).for_each(&mut say);
            let waited = Instant::now();
            while lines.lost.load(Ordering::Relaxed) < 3 {
                assert!(waited.elapsed() < SOON, "three of five find no room");
                std::thread::yield_now();
            }
            assert_eq!(read(&path).len(), 2, "what is there is whole");
            limit(hard).expect("room again");
            say(5);
            journal.close(SOON);
            read(&path)
        };
        let numbers: Vec<_> = lines.iter().filter_map(|line| line["n"].as_u64()).collect();
        assert_eq!(numbers, [0, 1, 5]);
        assert_eq!(lines.remove(2)["fields"]["lines"], 3);
    }
}
