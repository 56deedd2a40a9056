//! Journeys that end in a report, as functions that a fuzzer feeds: the logs of several ranks and nodes, the reading of a
//! run after its end, and the reading of a profile. Not part of the program.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::closing;
use crate::diagnosis_view::View;
use crate::page::{self, page};
use diagnose::{
    Known, LogScan, Node, Origin, Recorded, Scanned, Survived, catalogue, diagnose_knowing,
};
use linux::host::Host;
use monitor::history::{JobHistory, JournalReader, NodeHistory, differences};
use settings::cli::Options;
use settings::{Settings, Source};
use text::fuzzing::{Choices, assert_printable};
use text::lang::Lang;
use text::rank::GlobalRank;
use verdict::{Refusal, Verdict};

const IDS: &[&str] = &["cuda_oom", "nccl_timeout", "heads_div", "user_exception", "no_such_row"];

/// Up to five logs, separated by NUL bytes, and the launcher's knowledge about the ranks' ends.
///
/// A cause is a row of the catalogue and a line of one of the logs, no culprit is a victim of itself, and every view is
/// well formed. The same logs give the same result, however they are cut.
pub fn folders(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    let cut = choices.below(200) + 1;
    let known = known(&mut choices);
    let mut parts: Vec<(Origin, &[u8])> = Vec::new();
    while parts.len() < 5 && !choices.is_empty() {
        let number = parts.len();
        let (rank, node) = (choices.byte(), choices.byte());
        let origin = Origin {
            name: format!("rank-{number:05}.out"),
            rank: (rank < 200).then(|| GlobalRank(u32::from(rank % 8))),
            node: (node < 200).then(|| Node::Rank(u32::from(node % 3))),
        };
        parts.push((origin, choices.until_nul()));
    }
    let read = |cut: usize| -> Vec<Scanned> {
        let one = |(number, (origin, bytes)): (usize, &(Origin, &[u8]))| {
            let mut scan = LogScan::new(catalogue(), number, origin.clone());
            bytes.chunks(cut).for_each(|piece| scan.feed(piece));
            scan.finish()
        };
        parts.iter().enumerate().map(one).collect()
    };
    let (mut whole, mut pieces) = (read(usize::MAX), read(cut));
    let diagnosis = diagnose_knowing(catalogue(), &mut whole, &known);
    assert_eq!(diagnosis, diagnose_knowing(catalogue(), &mut pieces, &known));
    if let Some(cause) = &diagnosis.cause {
        let row = catalogue().row(cause.row).expect("a row");
        assert_eq!(row.id, cause.why.id);
        let place = cause.evidence.first;
        let lines = whole.get(place.log).map(|log| log.lines).expect("a log");
        assert!((1..=lines.max(1)).contains(&place.line), "line {} of {lines}", place.line);
        assert!(!cause.why.text.en.is_empty() && !cause.why.text.zh.is_empty());
        if let Some(rank) = cause.why.rank {
            let mut victims = cause.why.victims.iter().flat_map(|one| &one.ranks);
            assert!(!victims.any(|one| *one == rank), "{rank} is a victim of itself");
        }
    }
    let logs = &whole;
    let notes = [];
    let view = View {
        catalogue: catalogue(),
        diagnosis: &diagnosis,
        logs,
        unread: &[],
        notes: &notes,
        verdicts: &[],
        unended: &[],
        standstills: &[],
    };
    for lang in [Lang::En, Lang::Zh] {
        let text = view.text(lang, Some(80));
        assert!(!text.trim().is_empty());
        assert_printable(&text::escape::printable(&text));
        let json = view.json(lang);
        assert!(json["schema"] == 1 && json["findings"].is_array(), "{json}");
        assert_eq!(json["cause"].is_null(), diagnosis.cause.is_none());
        let annotated = view.github(lang);
        assert!(annotated.lines().all(|line| line.starts_with("::")), "{annotated}");
    }
    !diagnosis.findings.is_empty()
}

fn known(choices: &mut Choices<'_>) -> Known {
    let flags = choices.byte();
    let is = |bit: u8| flags & (1 << bit) != 0;
    let mut ranks = |count: usize| -> Vec<GlobalRank> {
        (0..count).map(|_| GlobalRank(u32::from(choices.byte() % 8))).collect()
    };
    let failed = ranks(usize::from(is(0)) * 2);
    let ended_well: BTreeSet<GlobalRank> = ranks(usize::from(is(1))).into_iter().collect();
    let survived = |choices: &mut Choices<'_>| Survived {
        id: choices.of(IDS).to_owned(),
        rank: Some(u32::from(choices.byte() % 8)),
        text: "RuntimeError: CUDA out of memory".to_owned(),
    };
    let recorded = |choices: &mut Choices<'_>| Recorded {
        id: choices.of(IDS).to_owned(),
        rank: Some(GlobalRank(u32::from(choices.byte() % 8))),
        line: u64::from(choices.byte() % 16),
    };
    Known {
        has_failed: is(2),
        is_whole: is(3),
        unended: is(4),
        ended_well,
        failed,
        survived: if is(5) { vec![survived(choices)] } else { Vec::new() },
        recorded: is(6).then(|| recorded(choices)),
        unheard: if is(7) { BTreeSet::from([0]) } else { BTreeSet::new() },
        ..Known::default()
    }
}

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
        let text = page::differences_text((&job, &other), &differs, Lang::En);
        assert_printable(&text::escape::printable(&text));
        let json = page::differences_json((&job, &other), &differs);
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

/// A name that no file has.
const NAME: &str = "fuzzed-profile";

/// A profile, as a file of TOML.
///
/// It gives settings, or a refusal of usage in both languages; a line number always names a line of the file. The
/// same text gives the same result, and no two rows of a section have the same id.
pub fn profile(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let first = settings_of(text);
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    match &first {
        Ok(settings) => {
            let mut ids = BTreeSet::new();
            for row in &settings.diagnose {
                assert!(ids.insert(&row.value.id), "{} twice", row.value.id);
                names_a_line(&row.source, lines);
                assert!(!row.value.cause.en.is_empty() && !row.value.remedy.zh.is_empty());
            }
            settings.watch.iter().for_each(|rule| names_a_line(&rule.source, lines));
            settings.env.iter().for_each(|one| names_a_line(&one.source, lines));
            assert!(settings.exit_codes.values().all(|code| (0..=255).contains(code)));
            let sizes: BTreeSet<String> =
                settings.selects.iter().map(|one| format!("{:?}", one.total_gpus)).collect();
            assert_eq!(sizes.len(), settings.selects.len());
            assert_eq!(format!("{:?}", settings_of(text)), format!("{first:?}"));
        }
        Err(refusal) => refused(refusal, lines),
    }
    first.is_ok()
}

fn settings_of(text: &str) -> Result<Settings, Refusal> {
    let host = Host::replayed("/nonexistent", BTreeMap::new());
    let options = Options { profile: Some(NAME.into()), ..Options::default() };
    Settings::read_with(&options, &host, &[(NAME, text)])
}

fn names_a_line(source: &Source, lines: usize) {
    if let Source::Profile { file, line } = source
        && file.starts_with(NAME)
    {
        assert!((1..=lines).contains(line), "{source} of {lines}");
    }
}

fn refused(refusal: &Refusal, lines: usize) {
    assert_eq!(refusal.verdict, Verdict::Usage, "{refusal:?}");
    for text in [&refusal.text, &refusal.hint] {
        assert!(!text.en.trim().is_empty() && !text.zh.trim().is_empty(), "{refusal:?}");
    }
    for lang in [Lang::En, Lang::Zh] {
        // Printed like the output of `say`.
        assert_printable(&text::escape::printable(&closing::refusal(refusal, 64, lang)));
        let text = refusal.text.get(lang);
        let line = text.split_once(NAME).and_then(|(_, rest)| {
            let rest = rest.strip_prefix(".toml").unwrap_or(rest).strip_prefix(':')?;
            let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse::<usize>().ok()
        });
        let line = line.unwrap_or_else(|| panic!("no line is named: {text}"));
        assert!((1..=lines).contains(&line), "{line} of {lines}: {text}");
    }
}
