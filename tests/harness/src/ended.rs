//! The end of a launcher: exit code, console, and living processes of the job.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Place, Process, Running};

#[derive(Debug)]
pub struct Ended {
    /// Exit code, or 128 + signal as a shell shows it.
    pub code: i32,
    pub out: String,
    pub err: String,
    /// Time from the call that waited.
    pub elapsed: Duration,
    /// Processes that are alive directly after the launcher's end, without any wait.
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

    /// Fails with the whole console unless standard error holds all of `words`.
    #[track_caller]
    pub fn expect_words(self, words: &[&str]) -> Ended {
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in:\n{}\n{}", self.out, self.err);
        }
        self
    }

    /// The id of the refusal or of the verdict, from the last `exit code N (id)`, in either
    /// language. The id of a known cause may follow.
    pub fn id(&self) -> Option<&str> {
        let (en, zh) = (format!("exit code {} (", self.code), format!("退出码 {}（", self.code));
        self.err.lines().rev().map(str::trim).find_map(|line| {
            let en = || line.strip_prefix(&en)?.split_once(')');
            let zh = || line.strip_prefix(&zh)?.split_once('）');
            en().or_else(zh).map(|(id, _)| id)
        })
    }

    /// Fails with the whole console unless this is the id of the refusal or of the verdict.
    #[track_caller]
    pub fn expect_id(self, id: &str) -> Ended {
        assert_eq!(self.id(), Some(id), "{}\n{}", self.out, self.err);
        self
    }

    /// run.json of this node.
    #[track_caller]
    pub fn run_json(&self, node: u32) -> Value {
        let file = self.node_folder(node).join("run.json");
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", file.display(), self.err));
        serde_json::from_str(&text).expect("run.json is JSON")
    }

    /// Expects that no process of the job lived directly after the launcher's end. Below a
    /// subreaper, the subreaper may not have adopted an unknown process either.
    #[track_caller]
    pub fn expect_nothing_left(self) -> Ended {
        self.expect_nothing_left_in("")
    }

    /// The same, with a description for a failure.
    #[track_caller]
    pub fn expect_nothing_left_in(self, what: &str) -> Ended {
        assert!(self.left.is_empty(), "{what} left: {:#?}\n{}", self.left, self.err);
        if self.running.place == Place::Subreaper {
            let report = self.report();
            assert!(report.starts_with("at-once 0 "), "{what} {report}\n{}", self.err);
        }
        self
    }

    /// Like `expect_nothing_left`, for the loss of the guard: its parent sees the loss at once,
    /// while the agent needs a moment to sweep.
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

    /// The token in the environment of the launch's processes.
    pub fn token(&self) -> &str {
        &self.running.token
    }

    pub fn folder(&self) -> &Path {
        self.running.folder()
    }

    /// The name of the container in which the launcher ran; it exists until this value is dropped.
    #[track_caller]
    pub fn container(&self) -> &str {
        self.running.container()
    }

    /// The id of the newest run, which has a log folder.
    #[track_caller]
    pub fn run_id(&self) -> String {
        self.running.run_id()
    }

    /// This node's folder of the newest run.
    pub fn node_folder(&self, node: u32) -> PathBuf {
        self.running.node_folder(node)
    }

    /// The report of the other subreaper.
    pub fn report(&self) -> String {
        self.running.report()
    }
}
