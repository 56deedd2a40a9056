//! Ids in the sources: each is used, and none is spelled outside of the table.
//!
//! Reads src/ without its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use report::findings::{Family, Id};

struct Source {
    path: String,
    text: String,
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
            let ours = !path.starts_with("node-probe") && path != "verdict/ids.rs";
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

/// The files that a file declares after `#[cfg(test)]`, without their extension.
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

/// Cuts off the tests, which are at the end of a file.
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

/// The start of each literal (after its quotation mark), and the literal.
fn literals(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(letter) = bytes.get(at) {
        match letter {
            // '"' and '\'' are characters; 'a in a type is not.
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

/// Literals that spell an id of two or more words. A name of one word may be an ordinary word.
fn spelled(sources: &[Source]) -> Vec<String> {
    let is_id = |literal: &str| literal.contains('.') && literal.parse::<Id>().is_ok();
    let of = |source: &Source| -> Vec<String> {
        let found = literals(&source.text).into_iter().filter(|(_, literal)| is_id(literal));
        found.map(|(_, literal)| format!("{}: {literal}", source.path)).collect()
    };
    sources.iter().flat_map(of).collect()
}

/// Ids of the table that the sources do not use.
fn unused(sources: &[Source]) -> Vec<Id> {
    let is_said = |id: &Id| {
        let name = format!("Id::{id:?}");
        sources.iter().any(|source| {
            source.text.match_indices(&name).any(|(at, _)| {
                let next = source.text.get(at + name.len()..).and_then(|rest| rest.chars().next());
                !next.is_some_and(char::is_alphanumeric)
            })
        })
    };
    // The id of a setting is used by the setting's name; OtherVersion is for ids of other versions.
    let by_name = |id: &Id| id.family() == Family::Settings || *id == Id::OtherVersion;
    let said = Id::ALL.iter().copied().filter(|id| !by_name(id));
    said.filter(|id| !is_said(id)).collect()
}

#[test]
fn every_id_is_used_and_none_is_literal() {
    let sources = read();
    assert!(sources.len() > 200, "the sources are found");
    assert_eq!(spelled(&sources), Vec::<String>::new());
    assert_eq!(unused(&sources), Vec::<Id>::new());
}

#[test]
fn literal_id_is_found() {
    let with = |text: &str| {
        vec![Source { path: "plan/new.rs".to_owned(), text: without_tests_and_comments(text) }]
    };
    assert_eq!(spelled(&with("if id == \"gpu.busy\" {")), ["plan/new.rs: gpu.busy"]);
    for text in [
        "let file = \"memory.max\";",
        "// Warning::new(\"gpu.busy\", text, hint)",
        "#[cfg(test)]\nmod tests {\n    let id = \"gpu.busy\";\n}",
    ] {
        assert_eq!(spelled(&with(text)), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn unused_id_is_found() {
    let mut sources = read();
    for source in &mut sources {
        source.text = source.text.replace("Id::GpuMig", "");
    }
    assert_eq!(unused(&sources), [Id::GpuMig]);
}
