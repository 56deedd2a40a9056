//! The reading and judging of manifests as a function that a fuzzer feeds. Not part of the program.

pub use adopt::fuzz::script;

use super::{LintSeverity, Manifest, github, json, lint, plain};
use text::fuzzing::assert_printable;
use text::lang::Lang;

/// Values of a manifest that refer to each other are compared in pairs; a one-page file has no more findings than this.
const MOST_FINDINGS: usize = 20_000;

/// Lints one file, or two files that a line `#file` parts.
///
/// Every finding has a line of its file, in order. The same input gives the same report. The texts of the findings are
/// printable, and in the form for GitHub each finding is one line.
pub fn manifest(data: &[u8]) -> bool {
    let mark = b"\n#file\n";
    let at = data.windows(mark.len()).position(|window| window == mark);
    let files = match at {
        Some(at) => vec![&data[..at], &data[at + mark.len()..]],
        None => vec![data],
    };
    let manifests: Vec<Manifest> = files
        .iter()
        .enumerate()
        .map(|(number, bytes)| Manifest { name: format!("{number}.yaml"), bytes: bytes.to_vec() })
        .collect();
    let read = || lint(&manifests, Some(256 << 30), settings::EMBEDDED);
    let report = read();
    assert!(report.findings.len() <= MOST_FINDINGS, "{} findings", report.findings.len());
    let mut before = (String::new(), 0);
    for found in &report.findings {
        let place = (found.file.clone(), found.line);
        assert!(place >= before, "{place:?} after {before:?}");
        before = place;
        let file = manifests.iter().find(|one| one.name == found.file).expect("a file");
        let lines = 1 + file.bytes.iter().filter(|byte| **byte == b'\n').count();
        assert!((1..=lines).contains(&found.line), "{} of {lines}: {found:?}", found.line);
        assert!(!found.text.en.is_empty() && !found.text.zh.is_empty(), "{found:?}");
    }
    let errors = report.findings.iter().any(|found| found.importance != LintSeverity::Info);
    let code = match report.refused.is_empty() {
        false => 64,
        true => i32::from(errors),
    };
    assert_eq!(report.exit_code(), code);
    for lang in [Lang::En, Lang::Zh] {
        // The report as `show` prints it.
        assert_printable(&text::escape::printable(&plain(&report, lang)));
        let json = json(&report, lang).to_string();
        assert_eq!(super::json(&read(), lang).to_string(), json);
        let annotated = github(&report, lang);
        let commands = annotated.lines().filter(|line| line.starts_with("::")).count();
        assert_eq!(annotated.lines().count(), commands, "{annotated}");
        assert!(!annotated.contains('\r'), "{annotated}");
        assert!(commands >= report.findings.len());
    }
    report.refused.is_empty()
}
