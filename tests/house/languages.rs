//! Both languages stand side by side in every sentence.

use crate::{root, shown};

/// No text is printed in only one language: all output uses `text::lang::Text`, and no English sentence
/// is used for both.
#[test]
fn every_sentence_has_two_languages() {
    let mut folders = vec![root().join("src")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            // The probe's answers are for programs, and build scripts talk to cargo.
            if path.ends_with("node-probe") || path.ends_with("embed") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = shown(&path);
            if !name.ends_with(".rs")
                || name.contains("test")
                || name.contains("fuzz")
                || name.ends_with("build.rs")
            {
                continue;
            }
            files += 1;
            let source = std::fs::read_to_string(&path).expect("text");
            let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            for (at, line) in source.lines().enumerate() {
                let line = line.trim_start();
                let place = format!("{name}:{}: {line}", at + 1);
                if line.starts_with("//") {
                    continue;
                }
                assert!(!line.contains("println!("), "{place}");
                let Some((_, same)) = line.split_once("Text::same(") else { continue };
                let words = same.split([' ', '"', '(', ')']);
                let english = words.filter(|word| {
                    word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_lowercase())
                });
                assert!(!same.contains('"') || english.count() < 3, "{place}");
            }
        }
    }
    assert!(files > 150, "{files} files");
}
