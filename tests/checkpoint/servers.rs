//! The servers in python: a writer or a loader whose framework is imported once.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use harness::root;
use serde_json::Value;

pub(crate) struct Server {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    /// `program`: writers or loaders. Its output goes to a file in `folder`.
    pub(crate) fn new(python: &Path, program: &str, formats: &[&str], folder: &Path) -> Server {
        let log = folder.join(format!("{program}.log"));
        let log = std::fs::File::create(log).expect("its log is made");
        let mut child = Command::new(python)
            .arg(root().join(format!("tests/checkpoint/{program}.py")))
            .args([&formats.join(","), "serve"])
            .env("OMP_NUM_THREADS", "1")
            .env("PYTHONWARNINGS", "ignore")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("python starts");
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Server { child, requests, answers }
    }

    pub(crate) fn answer(&mut self) -> Value {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).expect("it answers");
        assert!(read > 0, "a server of the frameworks ended; its log says why");
        serde_json::from_str(&line).expect("an answer is JSON")
    }

    pub(crate) fn ask(&mut self, request: &Value) -> Value {
        let requests = self.requests.as_mut().expect("it is open");
        writeln!(requests, "{request}").and_then(|()| requests.flush()).expect("it listens");
        self.answer()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}
