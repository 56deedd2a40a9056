//! Every sentence has both languages side by side.

use crate::{root, shown, sources};

/// No text is printed in only one language: all output uses `text::lang::Text`, and no English sentence
/// is used for both.
#[test]
fn every_sentence_has_two_languages() {
    // The probe's answers are for programs, and build scripts talk to cargo.
    let others = ["test", "fuzz", "build.rs", "src/node-probe/", "src/embed/"];
    let mut files = 0;
    for (path, text) in sources(&root().join("src")) {
        let name = shown(&path);
        if others.iter().any(|other| name.contains(other)) {
            continue;
        }
        files += 1;
        let source = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
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
    assert!(files > 150, "{files} files");
}
