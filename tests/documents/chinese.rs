//! Chinese text has the usual typography: a space between Chinese and Latin letters or digits.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use harness::root;

fn is_han(letter: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&letter)
}

/// Pairs of a Chinese and a Latin letter without a space, each with its context.
fn unspaced(line: &str) -> Vec<String> {
    let letters: Vec<char> = line.chars().collect();
    let is_pair = |pair: &[char]| match pair {
        [one, other] => {
            is_han(*one) && other.is_ascii_alphanumeric()
                || one.is_ascii_alphanumeric() && is_han(*other)
        }
        _ => false,
    };
    let around = |at: usize| letters.iter().skip(at.saturating_sub(10)).take(22).collect();
    let pairs = letters.windows(2).enumerate().filter(|(_, pair)| is_pair(pair));
    pairs.map(|(at, _)| around(at)).collect()
}

fn files(folder: &Path, is_wanted: fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, is_wanted));
        } else if path.to_str().is_some_and(is_wanted) {
            found.push(path);
        }
    }
    found
}

#[test]
fn pages_separate_chinese_from_latin() {
    let mut pages = files(&root().join("docs"), |name| name.ends_with(".zh-CN.md"));
    pages.extend(files(&root().join("tests/snapshots"), |name| name.ends_with(".zh.txt")));
    pages.extend(["README.zh-CN.md", "CHANGELOG.zh-CN.md"].map(|name| root().join(name)));
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        for (number, line) in (1..).zip(read_to_string(&page).expect("a page").lines()) {
            // The anchor of a heading has dashes instead of spaces.
            let words =
                line.split("](").map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
            let pairs: Vec<String> = words.flat_map(unspaced).collect();
            assert!(pairs.is_empty(), "{}:{number}: {pairs:?}", page.display());
        }
    }
}

#[test]
fn program_texts_separate_chinese_from_latin() {
    let sources = files(&root().join("src"), |name| {
        [".rs", ".toml", "words.js"].iter().any(|end| name.ends_with(end))
            && !name.contains("/tests")
    });
    assert!(sources.len() > 300);
    for source in sources {
        let text = read_to_string(&source).expect("a file");
        let own = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for (number, line) in (1..).zip(own.lines()) {
            // Escapes of Rust and of troff.
            let line = line.replace("\\n", " ").replace("\\\\fI", " ").replace("\\\\fR", " ");
            let pairs = unspaced(&line);
            assert!(pairs.is_empty(), "{}:{number}: {pairs:?}", source.display());
        }
    }
}

#[test]
fn a_missing_space_is_found() {
    assert_eq!(unspaced("DataLoader会报"), ["DataLoader会报"]);
    assert_eq!(unspaced("应为1 到 9"), ["应为1 到 9"]);
    assert!(unspaced("rank 3 从未进入（GPU 0），见 ID").is_empty());
}
