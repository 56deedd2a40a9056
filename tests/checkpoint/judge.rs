//! Compares what `ranklaunch checkpoint` chooses with what its framework loads, and what other rules would choose.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, SystemTime};

use harness::report::checkpoints;
use serde_json::{Value, json};

use crate::servers::Server;

/// A rule by its name, and whether the checkpoint fits it.
type Rule = (&'static str, fn(&Value) -> bool);

/// Rules that lack a protection: a judge that finds none of them wrong would find nothing wrong.
const RULES: &[Rule] = &[
    ("any", |_| true),
    ("missing", |one| lacks_only(one, &["missing"])),
    ("cut", |one| lacks_only(one, &["cut off", "bytes", "empty", "zeros", "damaged"])),
];

/// Whether each of its lacks is of such a kind: without this protection it would be whole.
fn lacks_only(one: &Value, words: &[&str]) -> bool {
    let lacks = one.get("missing").and_then(Value::as_array).expect("a list");
    let is_such = |lack: &Value| {
        words.iter().any(|word| lack.as_str().is_some_and(|lack| lack.contains(word)))
    };
    lacks.iter().all(is_such)
}

/// The kinds of answers over all rounds.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u32,
    /// Rounds in which nothing was whole.
    none: u32,
    /// Rounds in which something was not whole.
    torn: u32,
    /// How often each of [`RULES`], or the newest time, was wrong.
    pub(crate) others: BTreeMap<&'static str, u32>,
    pub(crate) wrong: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, own: Tally) {
        self.rounds += own.rounds;
        self.none += own.none;
        self.torn += own.torn;
        for (rule, count) in own.others {
            *self.others.entry(rule).or_default() += count;
        }
        self.wrong.extend(own.wrong);
    }

    pub(crate) fn line(&self, name: impl Display, took: Duration) {
        let Tally { rounds, none, torn, others, wrong } = self;
        let (wrong, took) = (wrong.len(), took.as_secs());
        let others: Vec<String> =
            others.iter().map(|(rule, count)| format!("{rule} {count}")).collect();
        let others = others.join(", ");
        println!(
            "{name:<12} {rounds:>4} rounds, {torn:>4} with a torn checkpoint, {none:>4} with no whole one: wrong {wrong}; with weaker rules: {others}; {took} s"
        );
    }
}

/// Bytes of all files below the folder.
pub(crate) fn bytes(folder: &Path) -> u64 {
    let Ok(entries) = folder.read_dir() else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes(&entry.path()),
        _ => entry.metadata().map_or(0, |metadata| metadata.len()),
    };
    entries.flatten().map(of).sum()
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

/// Whether there is a file with a name of its own: safetensors writes into `.tmp…`, which says nothing about its format.
fn has_begun(path: &Path) -> bool {
    let Ok(entries) = path.read_dir() else { return path.is_file() };
    let has_begun = |entry: std::fs::DirEntry| {
        let is_temporary = entry.file_name().to_string_lossy().starts_with(".tmp");
        let is_full = |of: std::fs::Metadata| of.is_file() && of.len() > 0;
        !is_temporary && (entry.metadata().is_ok_and(is_full) || bytes(&entry.path()) > 0)
    };
    entries.flatten().any(has_begun)
}

/// Compares what is chosen with what loads.
pub(crate) fn judge(loader: &mut Server, format: &str, folder: &Path, tally: &mut Tally) {
    tally.rounds += 1;
    let seen = checkpoints(folder);
    let tried = loader.ask(&json!({ "format": format, "folder": folder }));
    let tried = tried.as_array().expect("a list");
    let loads = tried.iter().find(|one| one.get("step").is_some());
    let (chosen, right) = (text(&seen, "newest"), loads.and_then(|one| text(one, "path")));
    let number = |list: &[Value], key: &str, path: Option<&str>| {
        list.iter().find(|one| text(one, "path") == path).and_then(|one| one.get(key)?.as_u64())
    };
    let found = seen.get("checkpoints").and_then(Value::as_array).expect("a list");
    let steps = (number(found, "step", chosen), number(tried, "number", right));
    if chosen != right || steps.0 != steps.1 {
        tally.wrong.push(format!("chosen {chosen:?} (step {:?}), and it should be {right:?} (step {:?})\n{seen:#}\n{tried:#?}", steps.0, steps.1));
    }
    // Each that the framework would take for one is listed.
    let paths = |list: &[Value]| {
        let mut paths: Vec<String> =
            list.iter().filter_map(|one| text(one, "path")).map(str::to_owned).collect();
        paths.sort();
        paths
    };
    let (listed, named) = (paths(found), paths(tried));
    let is_missed = |path: &&String| has_begun(Path::new(path)) && !listed.contains(path);
    let missed: Vec<&String> = named.iter().filter(is_missed).collect();
    if !missed.is_empty() {
        tally.wrong.push(format!("not listed: {missed:?}\n{seen:#}"));
    }
    let whole = |one: &&Value| one.get("complete") == Some(&Value::Bool(true));
    tally.none += u32::from(chosen.is_none());
    tally.torn += u32::from(!found.iter().all(|one| whole(&one)));
    for (rule, takes) in RULES {
        let chosen = found.iter().find(|one| takes(one)).and_then(|one| text(one, "path"));
        *tally.others.entry(rule).or_default() += u32::from(chosen != right);
    }
    let modified = |one: &&Value| {
        let path = text(one, "path").map(Path::new);
        path.and_then(|path| path.metadata().ok()?.modified().ok())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let by_time = tried.iter().max_by_key(modified).and_then(|one| text(one, "path"));
    *tally.others.entry("newest time").or_default() += u32::from(by_time != right);
}
