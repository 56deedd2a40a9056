//! The program's own journal, `agent.jsonl`: one JSON document a line.
//!
//! Lines go through a bounded channel to a thread of their own, so a log folder
//! on a file system that hangs costs lines, never time.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait for the file.
const QUEUE: usize = 1024;

/// Ends the journal; see [`Journal::close`].
#[derive(Debug)]
pub struct Journal {
    done: Receiver<()>,
    lines: SyncSender<Option<Vec<u8>>>,
}

#[derive(Debug, Clone)]
struct Lines(SyncSender<Option<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A full queue drops the line: a journal must not hold its writer up.
        let _ = self.0.try_send(Some(line.to_vec()));
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
    /// Sends all of `tracing` from now on to `path`, appended.
    pub fn open(path: &Path) -> io::Result<Journal> {
        let file = File::options().append(true).create(true).open(path)?;
        let (lines, queue) = sync_channel(QUEUE);
        let (finished, done) = channel();
        std::thread::Builder::new()
            .name("journal".into())
            .stack_size(128 * 1024)
            .spawn(move || write_all(file, &queue, &finished))?;
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::DEBUG)
            .with_target(false)
            .with_writer(Lines(lines.clone()))
            .finish();
        // A second journal in one process keeps the first subscriber: attempts share one file.
        let _ = tracing::subscriber::set_global_default(subscriber);
        Ok(Journal { done, lines })
    }

    /// Waits until everything is written, at most `patience`.
    pub fn close(self, patience: Duration) {
        if self.lines.try_send(None).is_ok() {
            let _ = self.done.recv_timeout(patience);
        }
    }
}

fn write_all(mut file: File, queue: &Receiver<Option<Vec<u8>>>, finished: &Sender<()>) {
    while let Ok(Some(line)) = queue.recv() {
        let _ = file.write_all(&line);
    }
    let _ = finished.send(());
}
