//! The reading of a run after its end, as a function that a fuzzer feeds. Not part of the program.

use serde_json::Value;

use crate::{compare_view, page::page};
use monitor::history::{JobHistory, JournalReader, NodeHistory, differences};
use text::lang::Lang;

/// Number of values of a quantity over time.
const POINTS: usize = 8;
/// Maximum bytes of a page without data, and of a page of up to a thousand ranks.
const LARGEST_PAGE: usize = 2_300_000;

/// The files of up to four launchers of a run, separated by NUL bytes: agent.jsonl, or another node's history as one
/// document of JSON; a last line `run.json …` is the record. The first byte chooses whether two runs are compared.
///
/// Times are in order, the ledger adds up, a run does not differ from itself, and no content becomes markup of the
/// page.
pub fn journal(data: &[u8]) -> bool {
    let [mode, bytes @ ..] = data else { return false };
    let mut nodes: Vec<NodeHistory> = Vec::new();
    for part in bytes.split(|byte| *byte == 0).take(4) {
        match serde_json::from_slice::<NodeHistory>(part) {
            Ok(sent) => nodes.push(sent),
            Err(_) => nodes.extend(launcher(part)),
        }
    }
    let first = nodes.iter().take(usize::from(mode & 3) + 1).cloned().collect();
    let Some(mut job) = JobHistory::of(first) else { return false };
    let ledger = &job.ledger;
    let spent = [
        ledger.preparing,
        ledger.waiting,
        ledger.computing,
        ledger.lost,
        ledger.standing,
        ledger.restarting,
        ledger.ending,
    ];
    let sum = spent.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
    assert_eq!(sum, ledger.total, "{ledger:?}");
    assert_eq!(differences(&job, &job, Lang::Zh), []);
    if let Some(other) = JobHistory::of(nodes) {
        let differs = differences(&job, &other, Lang::En);
        let text = compare_view::text((&job, &other), &differs, Lang::En);
        text::fuzzing::assert_printable(&text::escape::printable(&text));
        let json = compare_view::json((&job, &other), &differs);
        assert!(json.is_object(), "{json}");
    }
    // A launcher reads the history of another one as it was sent.
    for node in job.nodes() {
        let sent = serde_json::to_vec(node).expect("JSON");
        let read: NodeHistory = serde_json::from_slice(&sent).expect("a history");
        assert_eq!(serde_json::to_vec(&read).expect("JSON"), sent);
    }
    job.thin(POINTS);
    let few = job.ranks() <= 1000;
    let page = page(job, true);
    assert!(!few || page.len() <= LARGEST_PAGE, "{} bytes", page.len());
    // All elements of the page are its own: the content of a log adds none.
    let count = |word: &str| page.matches(word).count();
    assert_eq!((count("<script"), count("</script>")), own(), "{page}");
    true
}

/// The script elements of a page without data.
fn own() -> (usize, usize) {
    static OWN: std::sync::OnceLock<(usize, usize)> = std::sync::OnceLock::new();
    *OWN.get_or_init(|| {
        let job = JobHistory::of(vec![NodeHistory::default()]).expect("a job");
        let page = page(job, true);
        (page.matches("<script").count(), page.matches("</script>").count())
    })
}

fn launcher(part: &[u8]) -> Option<NodeHistory> {
    let mut reader = JournalReader::default();
    let mut record: Option<Value> = None;
    for line in part.split(|byte| *byte == b'\n') {
        match line.strip_prefix(b"run.json ") {
            Some(text) => record = serde_json::from_slice(text).ok(),
            None => reader.line(line),
        }
    }
    if reader.is_empty() && record.is_none() {
        return None;
    }
    let history = reader.finish(record.as_ref(), POINTS);
    assert!(history.began <= history.ended, "{} to {}", history.began, history.ended);
    assert!(history.findings.len() <= 20_000, "{} findings", history.findings.len());
    assert!(history.attempts.is_sorted_by_key(|attempt| attempt.number));
    Some(history)
}
