//! How a launcher ended: exit code, console, and what of the job is alive.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Place, Process, Running};

#[derive(Debug)]
pub struct Ended {
    /// Exit code, or 128 + signal as a shell shows it.
    pub code: i32,
    pub out: String,
    pub err: String,
    /// From the call that waited.
    pub elapsed: Duration,
    /// Alive right after the launcher's end: there is no time in which something may go away.
    pub left: Vec<Process>,
    pub(crate) running: Running,
}

impl Ended {
    /// Fails with the whole console unless the code is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Ended {
        let Ended { out, err, running, .. } = &self;
        assert_eq!(self.code, code, "{:?}\nstdout:\n{out}\nstderr:\n{err}", running.place);
        self
    }

    /// Nothing of the job lived right after the launcher's end. Below a subreaper also nothing
    /// unknown to us may have come to it.
    #[track_caller]
    pub fn expect_nothing_left(self) -> Ended {
        self.expect_nothing_left_in("")
    }

    /// The same, with words about the circumstances for a failure.
    #[track_caller]
    pub fn expect_nothing_left_in(self, what: &str) -> Ended {
        assert!(self.left.is_empty(), "{what} left: {:#?}\n{}", self.left, self.err);
        if self.running.place == Place::Subreaper {
            let report = self.report();
            assert!(report.starts_with("at-once 0 "), "{what} {report}\n{}", self.err);
        }
        self
    }

    /// As `expect_nothing_left`, for the loss of the guard: its parent knows of that at
    /// once, and the agent needs a moment to sweep.
    #[track_caller]
    pub fn expect_nothing_left_soon(self) -> Ended {
        self.expect_nothing_left_soon_in("")
    }

    #[track_caller]
    pub fn expect_nothing_left_soon_in(self, what: &str) -> Ended {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let left = self.left_now();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{what} left: {left:#?}\n{}", self.err);
            std::thread::sleep(Duration::from_millis(2));
        }
        if self.running.place == Place::Subreaper {
            let report = self.report();
            assert!(report.contains("\nafter 0 "), "{what} {report}\n{}", self.err);
        }
        self
    }

    /// The processes of the launch that are alive now.
    pub fn left_now(&self) -> Vec<Process> {
        self.running.processes()
    }

    /// What marks the processes of the launch.
    pub fn token(&self) -> &str {
        &self.running.token
    }

    pub fn folder(&self) -> &Path {
        self.running.folder()
    }

    /// The newest run's folder of this node, from `ranklaunch-logs/latest`.
    pub fn node_folder(&self, node: u32) -> PathBuf {
        self.folder().join("ranklaunch-logs/latest").join(format!("node-{node}"))
    }

    /// What the other subreaper says.
    pub fn report(&self) -> String {
        self.running.report()
    }
}
