//! Share of correctly named causes over a folder of labelled logs: `make judge`.
//!
//! RANKLAUNCH_JUDGE names folders or files, separated by colons. Each `*.jsonl` in a folder holds
//! one log per line: `id`, `log`, and `root`, the id of the cause. `root` is null if the job ended
//! well, so that any cause is one too many, and `not_visible` if the job failed and the log does
//! not show why, so that any cause is a wrong answer. `alt`, if a record has it, lists other
//! correct answers: ids, or `not_visible`. `rank`, `root_line` and `retry`, if a record has them,
//! are counted too. Two naive rules are counted for comparison: the first line with a word of
//! failure, and the last exception. The logs belong to other people and are no part of the
//! repository.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{executable, skipped};
use serde_json::Value;

/// Required share of correct answers for logs with a cause that were known when the catalogue was
/// written.
const RIGHT: f64 = 0.97;
/// The same for unseen logs: files whose names begin with [`KEPT_AWAY`].
const RIGHT_UNSEEN: f64 = 0.95;
const KEPT_AWAY: &str = "kept-away";
/// Required share for each of rank, line and retry if the cause is correct. Only ranks that are
/// named count, because the log of one process names none.
const RIGHT_BESIDE: f64 = 0.8;

struct Case {
    name: String,
    log: String,
    /// The id of the cause; `None` if there is none to name.
    root: Option<String>,
    /// True if the job failed, even if its log does not show why.
    failed: bool,
    /// Other correct answers; `None`: no cause is named.
    alt: Vec<Option<String>>,
    /// The line that shows the cause, if the label has one.
    line: Option<String>,
    rank: Option<u64>,
    /// The retry advice, in the words of `explain`.
    retry: Option<String>,
}

impl Case {
    /// True if the answer is the label or one of its alternatives.
    fn accepts(&self, id: &Option<String>) -> bool {
        *id == self.root || self.alt.contains(id)
    }
}

struct Answer {
    id: Option<String>,
    rank: Option<u64>,
    /// The line that the answer shows.
    line: Option<String>,
    retry: Option<String>,
    certain: bool,
}

#[derive(Default)]
struct Count {
    right: usize,
    wrong: usize,
    unknown: usize,
}

/// Counts for a label other than the cause.
#[derive(Default)]
struct Labelled {
    all: usize,
    right: usize,
    wrong: Vec<String>,
}

impl Labelled {
    fn add(&mut self, case: &Case, right: Option<bool>) {
        self.all += usize::from(right.is_some());
        match right {
            Some(true) => self.right += 1,
            Some(false) => self.wrong.push(case.name.clone()),
            None => {}
        }
    }

    fn is_low(&self) -> bool {
        (self.right as f64) < self.all as f64 * RIGHT_BESIDE
    }
}

fn cases(file: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let word = |value: &Value| value.as_str().map(str::to_owned);
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let case: Value = serde_json::from_str(line).expect("a JSON object a line");
            Case {
                name: case["id"].to_string().trim_matches('"').to_owned(),
                log: word(&case["log"]).expect("a log"),
                root: word(case.get("root").expect("a root, or null"))
                    .filter(|root| root != "not_visible"),
                failed: !case["root"].is_null(),
                alt: case["alt"].as_array().map_or_else(Vec::new, |alt| {
                    alt.iter().map(|id| word(id).filter(|id| id != "not_visible")).collect()
                }),
                line: word(&case["root_line"]),
                rank: case["rank"].as_u64(),
                retry: word(&case["retry"])
                    .filter(|retry| retry != "unknown")
                    .map(|retry| if retry == "same_node" { "same-nodes".into() } else { retry })
                    .map(|retry| retry.replace('_', "-")),
            }
        })
        .collect()
}

fn files(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_owned()];
    }
    let entries = std::fs::read_dir(place).unwrap_or_else(|error| panic!("{place:?}: {error}"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{place:?} holds no .jsonl file");
    files
}

/// The answer of `ranklaunch explain -` about a log.
fn explain(log: &str) -> Answer {
    let mut child = Command::new(executable())
        .args(["explain", "--format", "json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the executable starts");
    child.stdin.take().expect("a pipe").write_all(log.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{:?}", output.status);
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    Answer {
        id: said["cause"]["id"].as_str().map(str::to_owned),
        rank: said["cause"]["rank"].as_u64(),
        line: said["cause"]["evidence"].as_str().map(str::to_owned),
        retry: said["cause"]["retry"].as_str().map(str::to_owned),
        certain: said["confidence"] == "certain",
    }
}

/// The first line that holds a word of failure.
fn first_error(log: &str) -> Option<&str> {
    const WORDS: &[&str] = &["error", "exception", "failed", "killed"];
    log.lines().find(|line| {
        let line = line.to_ascii_lowercase();
        WORDS.iter().any(|word| line.contains(word))
    })
}

/// The last line that looks like the end of a traceback.
fn last_exception(log: &str) -> Option<&str> {
    log.lines().rev().find(|line| {
        let (name, _) = line.split_once(": ").unwrap_or((line, ""));
        let known = ["Error", "Exception", "Interrupt"].iter().any(|end| name.ends_with(end));
        known && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
    })
}

/// True if a naive rule has found the labelled line.
fn hits(found: Option<&str>, label: &str) -> bool {
    found.is_some_and(|found| found.contains(label.trim()) || label.contains(found.trim()))
}

#[test]
fn the_right_cause_is_named() {
    let Some(place) = std::env::var_os("RANKLAUNCH_JUDGE").filter(|place| !place.is_empty()) else {
        skipped("RANKLAUNCH_JUDGE names no folder of labelled logs");
        return;
    };
    let mut missed = Vec::new();
    for file in std::env::split_paths(&place).flat_map(|place| files(&place)) {
        let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let needed = if name.starts_with(KEPT_AWAY) { RIGHT_UNSEEN } else { RIGHT };
        let cases = cases(&file);
        println!("\n{} ({} logs)", file.display(), cases.len());
        let mut counts: BTreeMap<String, Count> = BTreeMap::new();
        let mut confused: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        let (mut sure_and_wrong, mut labelled, mut first, mut last) = (Vec::new(), 0, 0, 0);
        let mut invented = Vec::new();
        let (mut ranks, mut lines, mut retries) =
            (Labelled::default(), Labelled::default(), Labelled::default());
        for case in &cases {
            let answer = explain(&case.log);
            let label = case.root.clone().unwrap_or_else(|| "none".to_owned());
            let count = counts.entry(label.clone()).or_default();
            match &answer.id {
                id if case.accepts(id) => count.right += 1,
                None => count.unknown += 1,
                Some(_) => {
                    count.wrong += 1;
                    if !case.failed {
                        invented.push(case.name.clone());
                    }
                    if answer.certain {
                        sure_and_wrong.push(case.name.clone());
                    }
                }
            }
            // With a wrong cause, these labels say nothing.
            if answer.id.is_some() && answer.id == case.root {
                let labelled = case.rank.filter(|_| answer.rank.is_some());
                ranks.add(case, labelled.map(|rank| Some(rank) == answer.rank));
                let shown = answer.line.as_deref();
                lines.add(case, case.line.as_deref().map(|line| hits(shown, line)));
                let retry = case.retry.as_ref().map(|retry| Some(retry) == answer.retry.as_ref());
                retries.add(case, retry);
            }
            if !case.accepts(&answer.id) {
                let said = answer.id.unwrap_or_else(|| "none".to_owned());
                confused.entry((label, said)).or_default().push(case.name.clone());
            }
            if let Some(line) = &case.line {
                labelled += 1;
                first += usize::from(hits(first_error(&case.log), line));
                last += usize::from(hits(last_exception(&case.log), line));
            }
        }
        let right: usize = counts.values().map(|count| count.right).sum();
        let failed: Vec<&Case> = cases.iter().filter(|case| case.failed).collect();
        let silent = cases.len() - failed.len() - invented.len();
        let with_cause = cases.iter().filter(|case| case.root.is_some()).count();
        let named: usize =
            counts.iter().filter(|(label, _)| *label != "none").map(|(_, count)| count.right).sum();
        println!("{:<28} {:>5} {:>5} {:>7}", "label", "right", "wrong", "unknown");
        for (id, Count { right, wrong, unknown }) in &counts {
            println!("{id:<28} {right:>5} {wrong:>5} {unknown:>7}");
        }
        for ((label, said), names) in &confused {
            println!("{label} is called {said}: {}", names.join(" "));
        }
        let of = |part: usize, all: usize| if all == 0 { 1.0 } else { part as f64 / all as f64 };
        let share = of(right - silent, failed.len());
        println!(
            "right {} of {} that failed ({:.1} %)",
            right - silent,
            failed.len(),
            share * 100.0
        );
        let visible = of(named, with_cause) * 100.0;
        println!("right cause {named} of {with_cause} that show it ({visible:.1} %)");
        println!("causes of logs that ended well: {}", invented.len());
        for (what, of) in [("rank", &ranks), ("line", &lines), ("retry", &retries)] {
            println!("right {what} {} of {}; not {}", of.right, of.all, of.wrong.join(" "));
        }
        println!("wrong and called certain: {}", sure_and_wrong.len());
        println!(
            "of {labelled} labelled lines: first line with a word of failure {first}, last exception {last}"
        );
        let few = [&ranks, &lines, &retries].iter().any(|of| of.is_low());
        if share < needed || !invented.is_empty() || !sure_and_wrong.is_empty() || few {
            missed.push(format!(
                "{}: {share:.3} right of {needed}, sure and wrong {sure_and_wrong:?}, invented {invented:?}",
                file.display()
            ));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
