//! The ids that stand in the sources, against the table.
//!
//! Reads src/ without its tests. What is handed to a constructor of refusals, warnings, checks,
//! rules or ends is an id, and so is every other literal that looks like one of a family that
//! is known, unless it stands in [`OTHERS`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ranklaunch::findings::{Id, Use};
use ranklaunch::settings;

/// Files, modules, cgroup entries and phases whose names look like ids of a known family.
const OTHERS: &[&str] = &[
    "agent.jsonl",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "engine.log",
    "memory.current",
    "memory.events",
    "memory.failcnt",
    "memory.limit_in_bytes",
    "memory.max",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "memory.peak",
    "memory.total",
    "memory.usage_in_bytes",
    "pids.current",
    "pids.max",
    "ray.scripts.scripts",
    "stale.end",
    "stale.look",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "torch.distributed.run",
];

/// What stands before an id: the call, what it makes of the literal, and the file where it is so.
const CALLS: &[(&str, &str, &str)] = &[
    ("Refusal::new(", "", ""),
    ("Warning::new(", "", ""),
    (".warn(", "", ""),
    ("findings.at(", "", "lint"),
    ("rule(", "", "lint/rules.rs"),
    ("row!(", "", "check/table.rs"),
    ("make(", "", "report/ending.rs"),
    ("refuse(", "", "plan/membership"),
    ("usage(", "settings.", "settings"),
];

struct Source {
    path: String,
    text: String,
}

/// One literal that is an id, and the call that says so.
#[derive(Debug)]
struct Said {
    id: String,
    place: String,
    call: &'static str,
    /// The call up to the literal: `Verdict::Usage, `.
    before: String,
}

fn read() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    let texts: BTreeMap<PathBuf, String> = files
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source");
            (path, text)
        })
        .collect();
    let tests: BTreeSet<PathBuf> =
        texts.iter().flat_map(|(path, text)| modules_of_tests(path, text)).collect();
    texts
        .into_iter()
        .filter(|(path, _)| {
            !path.ancestors().any(|above| tests.contains(&above.with_extension("")))
        })
        .filter_map(|(path, text)| {
            let path = path.strip_prefix(&root).ok()?.display().to_string();
            let ours = !path.starts_with("node-probe") && !path.starts_with("findings");
            ours.then(|| Source { path, text: without_tests_and_comments(&text) })
        })
        .collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The files that a file declares behind `#[cfg(test)]`, without their suffix.
fn modules_of_tests(path: &Path, text: &str) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap_or_default();
    let folder = path.parent().expect("a folder");
    let is_root = ["mod", "lib", "main"].iter().any(|root| stem == *root);
    let folder = if is_root { folder.to_owned() } else { folder.join(stem) };
    let behind = text
        .split("#[cfg(")
        .skip(1)
        .filter(|rest| rest.split(")]").next().is_some_and(|condition| condition.contains("test")));
    behind
        .filter_map(|rest| {
            let line = rest.split_once("]\n")?.1.lines().next()?;
            let name = line.split_once("mod ")?.1.strip_suffix(';')?;
            Some(folder.join(name))
        })
        .collect()
}

/// The tests of a file stand at its end.
fn without_tests_and_comments(text: &str) -> String {
    let end = text.match_indices("#[cfg(test)]\nmod ").find(|(at, _)| {
        let line = text.get(*at..).and_then(|rest| rest.lines().nth(1));
        line.is_some_and(|line| line.ends_with('{'))
    });
    let text = text.get(..end.map_or(text.len(), |(at, _)| at)).unwrap_or_default();
    let lines =
        text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Where each literal begins (behind its quotation mark), and the literal.
fn literals(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(letter) = bytes.get(at) {
        match letter {
            // '"' and '\'' are letters, 'a in a type is none.
            b'\'' if bytes.get(at + 1) == Some(&b'\\') => at += 4,
            b'\'' if bytes.get(at + 2) == Some(&b'\'') => at += 3,
            b'"' => {
                let begin = at + 1;
                at = begin;
                while bytes.get(at).is_some_and(|letter| *letter != b'"') {
                    at += if bytes.get(at) == Some(&b'\\') { 2 } else { 1 };
                }
                found.push((begin, text.get(begin..at).unwrap_or_default()));
                at += 1;
            }
            _ => at += 1,
        }
    }
    found
}

/// Ids in the place of an id.
fn said(sources: &[Source]) -> Vec<Said> {
    /// A literal this far away belongs to something else.
    const FAR: usize = 160;
    let mut all = Vec::new();
    for Source { path, text } in sources {
        let literals = literals(text);
        for (call, prefix, _) in CALLS.iter().filter(|(.., place)| path.starts_with(place)) {
            for (at, _) in text.match_indices(call) {
                let begin = at + call.len();
                let Some((to, literal)) = literals.iter().find(|(to, _)| *to > begin) else {
                    continue;
                };
                let before = text.get(begin..to - 1).unwrap_or_default();
                let simple = |c: char| c.is_alphanumeric() || ":_,.() \n".contains(c);
                if to - begin > FAR || !before.chars().all(simple) || before.contains(");") {
                    continue;
                }
                let line = text.get(..at).unwrap_or_default().lines().count();
                all.push(Said {
                    id: format!("{prefix}{literal}"),
                    place: format!("{path}:{line}"),
                    call,
                    before: before.to_owned(),
                });
            }
        }
    }
    all
}

/// Every other literal that looks like an id.
fn alike(sources: &[Source]) -> Vec<(String, String)> {
    let families: BTreeSet<&str> = Id::ALL
        .iter()
        .filter_map(|id| id.as_str().split_once('.'))
        .map(|(family, _)| family)
        .collect();
    let letters = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
    };
    let mut all = Vec::new();
    // Names of commands and their options: lint.format.
    for Source { path, text } in sources.iter().filter(|one| one.path != "cli/chinese.rs") {
        for (_, literal) in literals(text) {
            let mut parts = literal.split('.');
            let family = parts.next().unwrap_or_default();
            let rest: Vec<&str> = parts.collect();
            if families.contains(family)
                && !rest.is_empty()
                && rest.iter().all(|word| letters(word))
            {
                all.push((literal.to_owned(), path.clone()));
            }
        }
    }
    all
}

/// Ids that the sources say and the table does not hold.
fn unknown(sources: &[Source]) -> Vec<String> {
    let said = said(sources).into_iter().map(|one| (one.id, one.place));
    said.chain(alike(sources))
        .filter(|(id, _)| id.parse::<Id>().is_err() && !OTHERS.contains(&id.as_str()))
        .map(|(id, place)| format!("{place}: {id}"))
        .collect()
}

/// Ids of the table that the sources do not say.
fn unused(sources: &[Source]) -> Vec<Id> {
    let mut used: BTreeSet<String> = settings::forms().map(|form| form.id).collect();
    used.extend(said(sources).into_iter().map(|one| one.id));
    for source in sources {
        used.extend(literals(&source.text).into_iter().map(|(_, literal)| literal.to_owned()));
    }
    Id::ALL.iter().copied().filter(|id| !used.contains(id.as_str())).collect()
}

/// The verdict that stands before an id, by its name.
fn verdict_of(one: &Said) -> Option<String> {
    match one.call {
        "refuse(" => Some("Membership".to_owned()),
        "usage(" => Some("Usage".to_owned()),
        _ => {
            let rest = one.before.trim().strip_prefix("Verdict::")?;
            Some(rest.chars().take_while(|c| c.is_alphanumeric()).collect())
        }
    }
}

/// Refusals and warnings that the table holds otherwise: with another verdict, or not as such.
fn otherwise(sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut refused: BTreeMap<Id, BTreeSet<String>> = BTreeMap::new();
    let all = said(sources);
    // An id that also stands elsewhere may be refused there, by way of a variable.
    let count = |id: &str| {
        let literals = sources.iter().flat_map(|source| literals(&source.text));
        literals.filter(|(_, literal)| *literal == id).count()
    };
    let direct = |id: &str| all.iter().filter(|one| one.id == id).count() >= count(id);
    for one in &all {
        let Ok(known) = one.id.parse::<Id>() else { continue };
        // Ends as a shell would: its refusal is shown, and its code is 126 or 127.
        if known == Id::InitExec {
            continue;
        }
        let verdict = verdict_of(one);
        let is_held = match (one.call, &verdict) {
            ("Warning::new(" | ".warn(", _) => {
                known.check().is_some() || known.uses().contains(&Use::Warns)
            }
            (_, Some(verdict)) => known
                .codes()
                .iter()
                .any(|code| format!("{code:?}") == format!("Verdict({verdict})")),
            _ => true,
        };
        if !is_held {
            wrong.push(format!("{}: {} ({}{})", one.place, one.id, one.call, one.before.trim()));
        }
        if let (Some(verdict), "Refusal::new(" | "refuse(" | "usage(") = (verdict, one.call) {
            refused.entry(known).or_default().insert(verdict);
        }
    }
    for (id, verdicts) in refused.into_iter().filter(|(id, _)| direct(id.as_str())) {
        for one in id.uses() {
            if let Use::Refuses(verdict) = one
                && !verdicts.contains(&format!("{verdict:?}"))
            {
                wrong.push(format!("{id} is never refused with {verdict:?}"));
            }
        }
    }
    wrong
}

#[test]
fn every_id_of_the_sources_is_in_the_table_and_none_else() {
    let sources = read();
    assert!(sources.len() > 200, "the sources are found");
    let calls = said(&sources);
    for (call, ..) in CALLS {
        assert!(calls.iter().any(|one| one.call == *call), "{call} is found nowhere");
    }
    assert_eq!(unknown(&sources), Vec::<String>::new());
    assert_eq!(unused(&sources), Vec::<Id>::new());
    assert_eq!(otherwise(&sources), Vec::<String>::new());
}

#[test]
fn an_id_that_lacks_is_found() {
    let with = |text: &str| {
        vec![Source { path: "plan/new.rs".to_owned(), text: without_tests_and_comments(text) }]
    };
    for (text, id) in [
        ("Refusal::new(\n    Verdict::Usage,\n    \"invented\",\n    text)", "invented"),
        ("notes.warn(\"gpu.invented\", text, hint)", "gpu.invented"),
        ("const ID: &str = \"muster.invented\";", "muster.invented"),
        ("let mark = '\"'; Warning::new(\"invented.too\", text, hint)", "invented.too"),
    ] {
        let found = unknown(&with(text));
        assert!(
            !found.is_empty() && found.iter().all(|one| one.ends_with(id)),
            "{text}: {found:?}"
        );
    }
    for text in [
        "Refusal::new(verdict, id, text!(\"no id\", \"无\"), hint)",
        "// Warning::new(\"invented\", text, hint)",
        "#[cfg(test)]\nmod tests {\n    Warning::new(\"invented\", text, hint)\n}",
        "let file = \"memory.max\";",
    ] {
        assert_eq!(unknown(&with(text)), Vec::<String>::new(), "{text}");
    }
    let other = with("Refusal::new(Verdict::Layout, \"settings.chdir\", text, hint)");
    let found = otherwise(&other);
    assert_eq!(found.len(), 2, "one verdict too many and one too few: {found:?}");
    let other = with("notes.warn(\"settings.chdir\", text, hint)");
    assert_eq!(otherwise(&other).len(), 1, "a warning in place of a refusal");
    let other = with("Refusal::new(Verdict::PortInUse, \"muster.job\", text, hint)");
    assert_eq!(otherwise(&other), ["muster.job is never refused with Muster"]);
}

#[test]
fn an_id_that_nobody_says_is_found() {
    let mut sources = read();
    assert_eq!(unused(&sources), Vec::<Id>::new());
    for source in &mut sources {
        source.text = source.text.replace("\"gpu.mig\"", "\"\"");
    }
    assert_eq!(unused(&sources), [Id::GpuMig]);
}
