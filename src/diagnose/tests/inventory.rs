//! Messages of the failure paths of other software, extracted from its source: `tests/inventory`.
//!
//! Each message is printed as its component prints it, with plausible values, and the catalogue's answer is compared
//! with the place that a person gave the message.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::super::Role;
use super::super::rows::USER_EXCEPTION;
use super::{Diagnosis, Origin, catalogue, diagnose, scanned};

/// The share of the messages of a component that are placed.
const PLACED: f64 = 0.95;
/// A consequence of a row: the catalogue knows that something failed, and looks for the cause elsewhere.
const AFTER: &str = "after";
/// A warning that a job survives: the catalogue names no cause.
const SURVIVED: &str = "survived";
/// The catalogue does not know the message; the column `reason` says why.
const UNKNOWN: &str = "unknown";

/// The messages of one component.
#[derive(Debug, Default)]
struct Inventory {
    name: String,
    title: String,
    versions: Vec<String>,
    /// How a message looks in a log, by the first words of `how`.
    frames: Vec<(String, String)>,
    messages: Vec<Message>,
}

#[derive(Debug)]
struct Message {
    /// The id of a row, [`AFTER`], [`SURVIVED`] or [`UNKNOWN`].
    placed: String,
    /// `path:line:function`
    place: String,
    how: String,
    /// With placeholders.
    text: String,
    reason: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inventory")
}

fn inventories() -> Vec<Inventory> {
    let files = folder().read_dir().expect("the folder").map(|entry| entry.expect("a file").path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == "tsv")).collect();
    files.sort();
    files.iter().map(|file| inventory(file)).collect()
}

fn inventory(file: &Path) -> Inventory {
    let text = std::fs::read_to_string(file).expect("text");
    let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
    let mut all = Inventory { name, ..Inventory::default() };
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# component: ") {
            all.title = title.to_owned();
        } else if let Some(source) = line.strip_prefix("# source: ") {
            all.versions.push(source.split(' ').nth(1).unwrap_or_default().to_owned());
        } else if let Some((how, frame)) =
            line.strip_prefix("# frame ").and_then(|frame| frame.split_once(": "))
        {
            all.frames.push((how.to_owned(), unescaped(frame)));
        } else if !line.starts_with('#') {
            let [placed, place, how, text, reason] =
                line.split('\t').map(str::to_owned).collect::<Vec<_>>().try_into().expect(line);
            all.messages.push(Message { placed, place, how, text, reason });
        }
    }
    all
}

fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\\\", "\\")
}

impl Inventory {
    /// The message as its component prints it.
    fn rendered(&self, message: &Message) -> String {
        let frames = self.frames.iter().filter(|(how, _)| message.how.starts_with(how.as_str()));
        let (_, frame) = frames.max_by_key(|(how, _)| how.len()).expect(&message.how);
        let place = message.place.split(' ').next().unwrap_or_default();
        let mut place = place.split(':');
        let path = place.next().unwrap_or_default();
        let function = place.nth(1).unwrap_or("run");
        // The type of an exception, the level of a logger.
        let kind = message.how.split(' ').nth(1).unwrap_or_default();
        let filled = frame
            .replace("{path}", path)
            .replace("{file}", path.rsplit('/').next().unwrap_or_default())
            .replace("{function}", function)
            .replace("{exception}", kind)
            .replace("{level}", kind)
            .replace("{letter}", kind.get(..1).unwrap_or_default())
            .replace("{text}", &with_values(&unescaped(&message.text)));
        // Without words, Python prints the type alone.
        filled.trim_end_matches([' ', ':']).to_owned() + "\n"
    }

    fn count(&self, placed: impl Fn(&str) -> bool) -> usize {
        self.messages.iter().filter(|message| placed(&message.placed)).count()
    }

    fn share(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let [unknown, all] =
            [self.count(|placed| placed == UNKNOWN), self.messages.len()].map(|n| n as f64);
        1.0 - unknown / all
    }
}

/// The text with a value in place of each placeholder.
fn with_values(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (kind, behind) = after.split_once('}').unwrap_or((after, ""));
        out.push_str(before);
        out.push_str(match kind {
            "d" => "4",
            "x" => "7f3a",
            "f" => "1.5",
            "c" => "b",
            "p" => "0x7f3a40001000",
            "s" | "" if known(&out, behind).is_some() => known(&out, behind).unwrap_or_default(),
            "s" | "" if is_reason(&out) => "unexpected result",
            "s" => "mlx5_2",
            "" => "3",
            _ => {
                out.push('{');
                rest = after;
                continue;
            }
        });
        rest = behind;
    }
    out + rest
}

/// The value that the words around it ask for.
fn known(before: &str, behind: &str) -> Option<&'static str> {
    const VALUES: &[(&str, &str)] = &[
        ("exitcode: ", "1"),
        ("pid: ", "4242"),
        ("pid=", "4242"),
        ("process ", "4242"),
        ("Process ", "4242"),
        ("signal ", "SIGTERM"),
        ("signal: ", "15"),
    ];
    let value = VALUES.iter().find(|(words, _)| before.ends_with(words));
    value.map(|(_, value)| *value).or(behind.starts_with(" death signal").then_some("15"))
}

/// Whether the words before a value announce the reason of a failure.
fn is_reason(before: &str) -> bool {
    const WORDS: &[&str] =
        &["error", "failed", "failed with", "failure", "errno", "reason", "exception"];
    let end = before.trim_end_matches([' ', ':', '(', '\'', '=']).to_ascii_lowercase();
    end.len() < before.len() && WORDS.iter().any(|word| end.ends_with(word))
}

/// The id of the cause, with what shows it, as an excerpt shows it and as a launcher knows it.
fn said(log: &str) -> [Diagnosis; 2] {
    let logs = [scanned(0, Origin::default(), log.as_bytes())];
    [false, true].map(|has_failed| diagnose(catalogue(), &logs, has_failed))
}

fn cause(diagnosis: &Diagnosis) -> Option<&str> {
    diagnosis.cause.as_ref().map(|cause| cause.why.id.as_str())
}

/// Whether everything in a diagnosis yields to what stands before it.
fn yields(diagnosis: &Diagnosis) -> bool {
    let rows: Vec<_> =
        diagnosis.findings.iter().filter_map(|one| catalogue().row(one.row)).collect();
    let yields = |role: Role, first_only: bool| match role {
        Role::Root => first_only,
        Role::Cascade | Role::Confirmation => true,
        Role::Context => false,
    };
    rows.iter().any(|row| yields(row.role, row.first_only || row.last_resort))
        && rows.iter().all(|row| {
            row.id == USER_EXCEPTION
                || row.role == Role::Context
                || yields(row.role, row.first_only || row.last_resort)
        })
}

/// The contradiction between the place of a message and what the catalogue says about it.
fn contradiction(inventory: &Inventory, message: &Message) -> Option<String> {
    let said = said(&inventory.rendered(message));
    let agrees = match message.placed.as_str() {
        AFTER => said.iter().all(yields),
        SURVIVED => said.iter().all(|one| cause(one).is_none() && !one.failed),
        // The row of all exceptions is no place.
        UNKNOWN => {
            !message.reason.is_empty()
                && said
                    .iter()
                    .all(|one| cause(one).is_none_or(|id| id == USER_EXCEPTION) && !yields(one))
        }
        id => id != USER_EXCEPTION && said.iter().any(|one| cause(one) == Some(id)),
    };
    if agrees {
        return None;
    }
    let [alone, _] = &said;
    let found: Vec<&str> = alone
        .findings
        .iter()
        .filter_map(|one| catalogue().row(one.row))
        .map(|row| row.id.as_str())
        .collect();
    let Message { placed, how, text, .. } = message;
    let named = said.iter().find_map(cause).unwrap_or("none");
    Some(format!("{}\t{placed}\t{named}\t{}\t{how}\t{text}", inventory.name, found.join(" ")))
}

/// The table of `tests/inventory/README.md`.
fn table(all: &[Inventory]) -> String {
    let mut out = String::from(
        "| component | version | messages | a row | a consequence | survived | unknown | placed |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for one in all {
        let [after, survived, unknown] =
            [AFTER, SURVIVED, UNKNOWN].map(|wanted| one.count(|placed| placed == wanted));
        let messages = one.messages.len();
        let rows = messages - after - survived - unknown;
        let share = (one.share() * 1000.0).floor() / 10.0;
        let versions = one.versions.join(", ");
        let title = &one.title;
        let cells =
            format!("{messages} | {rows} | {after} | {survived} | {unknown} | {share:.1} %");
        writeln!(out, "| {title} | {versions} | {cells} |").expect("a string");
    }
    out
}

#[test]
fn messages_of_sources_are_placed() {
    let all = inventories();
    let wrong: Vec<String> = all
        .iter()
        .flat_map(|one| one.messages.iter().filter_map(|message| contradiction(one, message)))
        .collect();
    println!("{}", table(&all));
    assert!(
        wrong.is_empty(),
        "component, placed, cause, rows that were found, how, text:\n{}\n{} messages are placed wrongly",
        wrong.join("\n"),
        wrong.len()
    );
    for one in &all {
        assert!(
            one.share() >= PLACED,
            "{}: {:.3} of the messages are placed",
            one.name,
            one.share()
        );
    }
}

#[test]
fn table_of_sources_is_counted_anew() {
    let file = folder().join("README.md");
    let text = std::fs::read_to_string(&file).expect("text");
    let (before, _) = text.split_once("\n| component |").expect("a table");
    let counted = format!("{before}\n{}", table(&inventories()));
    if std::env::var_os("RANKLAUNCH_WRITE_DOCS").is_some() {
        std::fs::write(&file, counted).expect("it is written");
    } else {
        assert_eq!(text, counted, "RANKLAUNCH_WRITE_DOCS=1 make inventory writes it");
    }
}

#[test]
fn placeholders_get_values_of_their_kind() {
    let cases = BTreeMap::from([
        ("rank {d} at {p}", "rank 4 at 0x7f3a40001000"),
        ("Call to {s} failed: {s}", "Call to mlx5_2 failed: unexpected result"),
        ("got {}, {error: {}", "got 3, {error: unexpected result"),
    ]);
    for (text, expected) in cases {
        assert_eq!(with_values(text), expected);
    }
}
