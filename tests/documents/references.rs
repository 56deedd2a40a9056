//! Everything that docs/ and the contributor's page name exists: every path, every name of the source, every link. The
//! glossary has the same rows in both languages.
//!
//! Names are in backticks: a path from the root of the repository, `room::function`, `Type::method`
//! or `Type::Variant`. Commands, variables and paths of a node are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders whose files define the names.
const SOURCES: &[&str] = &["src", "tests", "benches", "build.rs"];
/// Pages at the top of the repository that name the source.
const OF_CONTRIBUTORS: [&str; 2] = ["CONTRIBUTING.md", "CONTRIBUTING.zh-CN.md"];
/// Pages outside of docs/ that users read.
const OF_USERS: [&str; 6] = [
    "README.md",
    "README.zh-CN.md",
    "CHANGELOG.md",
    "CHANGELOG.zh-CN.md",
    "packaging/README.md",
    "packaging/README.zh-CN.md",
];
/// First parts of a path of the repository.
const TOP: &[&str] = &["src", "tests", "benches", "config", "packaging", "docs", ".ci", ".cargo"];
/// Extensions of a path without a folder.
const ENDS: &[&str] = &[".rs", ".toml", ".md", "Makefile"];
const KINDS: &[&str] =
    &["fn ", "struct ", "enum ", "trait ", "const ", "static ", "type ", "mod ", "macro_rules! "];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(below: &Path, found: &mut Vec<PathBuf>) {
    if below.is_file() {
        found.push(below.to_owned());
    }
    let Ok(entries) = std::fs::read_dir(below) else { return };
    for entry in entries.flatten() {
        // Outputs of builds and fuzzers are not sources.
        if entry.file_name() != "target" {
            files(&entry.path(), found);
        }
    }
}

/// Every Rust file by its path in the repository.
fn sources() -> BTreeMap<PathBuf, String> {
    let mut found = Vec::new();
    for part in SOURCES {
        files(&root().join(part), &mut found);
    }
    let rust = found.into_iter().filter(|file| file.extension().is_some_and(|end| end == "rs"));
    let read = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).expect("UTF-8");
        (file.strip_prefix(root()).expect("below the root").to_owned(), text)
    };
    rust.map(read).collect()
}

/// The documents by their path below docs/.
fn documents() -> BTreeMap<String, String> {
    let mut found = Vec::new();
    files(&root().join("docs"), &mut found);
    let pages = found.into_iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    let docs = root().join("docs");
    let name =
        |file: &Path| file.strip_prefix(&docs).expect("below docs/").to_string_lossy().into_owned();
    pages.map(|file| (name(&file), std::fs::read_to_string(&file).expect("UTF-8"))).collect()
}

/// The text in backticks outside of fenced blocks.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// Files that belong to the reader.
const READERS: &[&str] = &["ranklaunch.toml", "site.toml"];

fn is_path(word: &str) -> bool {
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "./_-".contains(c));
    let top = word.split('/').next().unwrap_or_default();
    let inside = word.contains('/') && TOP.contains(&top);
    plain
        && !READERS.contains(&word)
        && (inside || (!word.contains('/') && ENDS.iter().any(|end| word.ends_with(end))))
}

/// The segments of `a::b`, if the word is nothing else.
fn segments(word: &str) -> Option<Vec<&str>> {
    let segments: Vec<&str> = word.split("::").collect();
    let is_name = |name: &&str| {
        name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    };
    (segments.len() > 1 && segments.iter().all(is_name)).then_some(segments)
}

fn is_word_at(text: &str, at: usize, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let before = text[..at].chars().next_back();
    let after = text[at + name.len()..].chars().next();
    !before.is_some_and(is_part) && !after.is_some_and(is_part)
}

fn has_word(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| is_word_at(text, at, name))
}

/// True if the text defines a function, a type, a constant, or a variant of an enum on its own line.
fn defines(text: &str, name: &str) -> bool {
    if !text.contains(name) {
        return false;
    }
    let item = |kind: &&str| has_word(text, &format!("{kind}{name}"));
    let variant = |line: &str| {
        let rest = line.trim_start().strip_prefix(name);
        line.starts_with(' ') && rest.is_some_and(|rest| rest.starts_with([',', ' ', '(', '{']))
    };
    // A line that begins with the name of a function calls it.
    let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
    KINDS.iter().any(item) || (is_type && text.lines().any(variant))
}

/// True if `file` is `room`, or belongs to it.
fn belongs(file: &Path, room: &str) -> bool {
    let own = file.file_stem().is_some_and(|stem| stem == room);
    own || file.parent().is_some_and(|parents| parents.iter().any(|part| part == room))
}

fn speaks_of_type(text: &str, name: &str) -> bool {
    if !text.contains(name) {
        return false;
    }
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let defined = kinds.iter().any(|kind| has_word(text, &format!("{kind}{name}")));
    let implemented =
        text.lines().any(|line| line.trim_start().starts_with("impl") && has_word(line, name));
    defined || implemented
}

/// The names of a text that do not exist.
fn missing(text: &str, sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut missing = Vec::new();
    for word in quoted(text) {
        if is_path(word) {
            if !root().join(word).exists() {
                missing.push(word.to_owned());
            }
        } else if let Some(segments) = segments(word) {
            let [.., place, name] = segments[..] else { continue };
            let is_type = place.starts_with(|c: char| c.is_ascii_uppercase());
            let holds = |(file, text): (&PathBuf, &String)| {
                let here = if is_type { speaks_of_type(text, place) } else { belongs(file, place) };
                here && defines(text, name)
            };
            if !sources.iter().any(holds) {
                missing.push(word.to_owned());
            }
        }
    }
    missing
}

#[test]
fn everything_named_in_the_documents_exists() {
    let sources = sources();
    let documents = documents();
    for (page, text) in &documents {
        assert_eq!(missing(text, &sources), Vec::<String>::new(), "docs/{page}");
    }
    for page in OF_CONTRIBUTORS {
        let text = std::fs::read_to_string(root().join(page)).expect("UTF-8");
        assert_eq!(missing(&text, &sources), Vec::<String>::new(), "{page}");
    }
    // The parser must find names at all, or it would find none missing.
    let names = quoted(&documents["architecture.md"]);
    let paths = names.iter().filter(|word| is_path(word)).count();
    let items = names.iter().filter(|word| segments(word).is_some()).count();
    assert!(paths > 100 && items > 100, "{paths} paths, {items} names");
}

/// The control: each kind of mistake, with its correct form.
#[test]
fn missing_reference_is_found() {
    let sources = sources();
    let text = "`src/preflight/decide.rs` `src/decided.rs` `decide::decide` `decide::nothing_of_the_kind` \
                `Decided::plan` `Decided::nothing` `Nobody::plan` `Scope::Alone` `Scope::Together` \
                `scope::plan` `packaging/` `packages/none.yaml` `packaging/none.yaml` `none.md` \
                `deny.toml` `agent.jsonl` `/dev/shm` `<log-dir>/x.rs` `a::b c`";
    let wrong = [
        "src/decided.rs",
        "decide::nothing_of_the_kind",
        "Decided::nothing",
        "Nobody::plan",
        "Scope::Together",
        "scope::plan",
        "packaging/none.yaml",
        "none.md",
    ];
    assert_eq!(missing(text, &sources), wrong);
}

/// The targets of a page's links: (file, heading), either may be empty.
fn links(text: &str) -> Vec<(&str, &str)> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(|target| target.split_once('#').unwrap_or((target, ""))).collect()
}

/// Headings as GitHub names them.
fn anchors(text: &str) -> BTreeSet<String> {
    // A comment in a block of commands is no heading.
    let outside = text.split("```").step_by(2).flat_map(str::lines);
    let headings = outside.filter(|line| line.starts_with('#'));
    let keep = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|heading| heading.chars().filter(keep).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let docs = root().join("docs");
    let mut pages: Vec<PathBuf> = documents().keys().map(|page| docs.join(page)).collect();
    pages.extend(OF_USERS.map(|page| root().join(page)));
    pages.extend(OF_CONTRIBUTORS.map(|page| root().join(page)));
    let mut seen = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("UTF-8");
        let of_this = links(&text).into_iter().filter(|(file, _)| !file.starts_with("http"));
        for (file, heading) in of_this {
            seen += 1;
            let place = format!("{}: {file}#{heading}", page.display());
            let linked = match file {
                "" => page.clone(),
                file => page.parent().expect("a folder").join(file),
            };
            assert!(linked.exists(), "{place}");
            let known =
                || anchors(&std::fs::read_to_string(&linked).expect("UTF-8")).contains(heading);
            assert!(heading.is_empty() || known(), "{place}");
        }
    }
    assert!(seen > 10, "{seen} links");
    assert_eq!(links("[a](b.md#c), [d](#e)"), [("b.md", "c"), ("", "e")]);
    assert!(!anchors("# A glossary").contains("glossary"));
    assert!(!anchors("```sh\n# remark\n```\n").contains("remark"));
}

/// Pages that are in English only, for those who change the program.
const ENGLISH_ONLY: &[&str] = &["architecture.md", "SUMMARY.md"];

/// The cells of each row of its tables, the number of its list items, and the targets of its links.
fn shape(text: &str) -> (Vec<usize>, usize, Vec<String>) {
    let outside = text.split("```").step_by(2);
    let lines: Vec<&str> = outside.flat_map(str::lines).collect();
    let cells = |line: &&str| line.replace("\\|", "").matches('|').count();
    let rows = lines.iter().filter(|line| line.starts_with('|')).map(cells).collect();
    let items = lines.iter().filter(|line| line.trim_start().starts_with("- ")).count();
    let plain = |file: &str| file.replace(".zh-CN.", ".").replace(".zh.", ".en.");
    let mut targets: Vec<String> = links(text).into_iter().map(|(file, _)| plain(file)).collect();
    targets.sort();
    (rows, items, targets)
}

#[test]
fn chinese_pages_match_the_english_ones() {
    let mut pages = documents();
    for page in OF_USERS.iter().chain(&OF_CONTRIBUTORS) {
        let text = std::fs::read_to_string(root().join(page)).expect("UTF-8");
        pages.insert((*page).to_owned(), text);
    }
    let mut seen = 0;
    for (page, text) in &pages {
        if page.ends_with(".zh-CN.md") || ENGLISH_ONLY.contains(&page.as_str()) {
            continue;
        }
        seen += 1;
        let chinese = pages.get(&page.replace(".md", ".zh-CN.md"));
        let chinese = chinese.unwrap_or_else(|| panic!("{page} is not there in Chinese"));
        assert_eq!(shape(text), shape(chinese), "{page}");
    }
    assert!(seen > 30, "{seen} pages");
    // The control: a row, an item and a link that only one language has.
    let english = "| a | b |\n- c\n[d](e.md)\n";
    assert_eq!(shape(english), shape("| 甲 | 乙 |\n- 丙\n[丁](e.zh-CN.md)\n"));
    for chinese in
        ["| 甲 |\n- 丙\n[丁](e.zh-CN.md)\n", "| 甲 | 乙 |\n[丁](e.md)\n", "| 甲 | 乙 |\n- 丙\n丁\n"]
    {
        assert_ne!(shape(english), shape(chinese));
    }
}

/// The paths that docs/book.sh copies into the book; a link to any other path would be dead there.
fn parts_of_the_book() -> BTreeSet<String> {
    let script = std::fs::read_to_string(root().join("docs/book.sh")).expect("the script");
    let list = script.lines().find_map(|line| line.strip_prefix("for part in "));
    let list = list.and_then(|list| list.strip_suffix("; do")).expect("the list");
    list.split(' ').map(str::to_owned).collect()
}

/// The path of a link from the root of the repository.
fn from_root(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().expect("a folder").to_owned();
    for part in target.split('/') {
        match part {
            ".." => assert!(path.pop(), "{target} leaves the repository"),
            part => path.push(part),
        }
    }
    path
}

#[test]
fn book_has_every_page_once_with_link_targets() {
    let mut pages: BTreeSet<PathBuf> =
        documents().keys().map(|page| Path::new("docs").join(page)).collect();
    assert!(pages.remove(Path::new("docs/SUMMARY.md")), "the list itself is no page");
    pages.extend(["README.md", "README.zh-CN.md"].map(PathBuf::from));
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).expect("the list");
    let listed: Vec<PathBuf> = links(&summary)
        .into_iter()
        .map(|(page, _)| from_root(Path::new("docs/SUMMARY.md"), page))
        .collect();
    let once: BTreeSet<PathBuf> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "a page stands twice");
    assert_eq!(once, pages);
    let parts = parts_of_the_book();
    assert!(parts.contains("docs") && parts.len() > 3, "{parts:?}");
    for page in &pages {
        let text = std::fs::read_to_string(root().join(page)).expect("UTF-8");
        for (file, _) in links(&text) {
            if file.is_empty() || file.starts_with("http") {
                continue;
            }
            let part = from_root(page, file);
            let part = part.iter().next().expect("a first part").to_string_lossy().into_owned();
            assert!(parts.contains(&part), "{}: {file} is not in the book", page.display());
        }
    }
}

/// A faulty picture that no page shows would not be noticed.
#[test]
fn every_picture_is_shown_in_its_language() {
    let mut found = Vec::new();
    for folder in ["docs/screenshots", "docs/pictures"] {
        files(&root().join(folder), &mut found);
    }
    let is_picture =
        |file: &&PathBuf| file.extension().is_some_and(|end| end == "svg" || end == "png");
    let pictures: Vec<String> = (found.iter().filter(is_picture))
        .map(|file| file.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    assert!(pictures.len() >= 10, "{pictures:?}");
    let mut pages = documents();
    for readme in ["README.md", "README.zh-CN.md"] {
        let text = std::fs::read_to_string(root().join(readme)).expect("UTF-8");
        pages.insert(readme.to_owned(), text);
    }
    for picture in pictures {
        let chinese = picture.contains(".zh.");
        let shown = pages.iter().any(|(page, text)| {
            page.ends_with(".zh-CN.md") == chinese && text.contains(&format!("{picture})"))
        });
        assert!(shown, "no page shows {picture}");
    }
}

/// The cells of each row of a page's table.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with("| "));
    lines.skip(1).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_glossary_is_the_same_in_both_languages() {
    let documents = documents();
    // Term, Chinese term, name in the code.
    let of = |page: &str, chinese: usize| -> Vec<(String, String, String)> {
        let cell = |row: &[&str], at: usize| row[at].to_owned();
        let rows = rows(&documents[page]);
        assert!(rows.iter().all(|row| row.len() == 5 && row.iter().all(|cell| !cell.is_empty())));
        rows.iter().map(|row| (cell(row, 0), cell(row, chinese), cell(row, 4))).collect()
    };
    let (english, chinese) = (of("glossary.md", 2), of("glossary.zh-CN.md", 1));
    assert_eq!(english, chinese);
    assert!(english.len() > 40, "{}", english.len());
    let terms: BTreeSet<&String> = english.iter().map(|(term, ..)| term).collect();
    assert_eq!(terms.len(), english.len(), "a term stands twice");
    let sources = sources();
    for (term, _, code) in &english {
        for name in quoted(code) {
            let known = sources.values().any(|text| has_word(text, name));
            assert!(known, "{term}: {name} is no name of the source");
        }
    }
}
