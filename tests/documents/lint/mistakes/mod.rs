//! Each mistake is found at its line in every variant, and its repaired version has no finding.

mod commands;
mod jobs;
mod rejected;
mod resources;
mod sizes;
mod volcano;

use std::collections::BTreeSet;

use lint::{self, LintSeverity, RULES};
use text::lang::Lang;

use super::check;
use super::samples::{INDEXED_JOB, PYTORCHJOB, RANKLAUNCH, RAYJOB, SPARES, TRAINJOB, VOLCANO};

/// One mistake: the rule, the sound manifest, the replaced text and its replacement, and the
/// beginning of the finding's line.
struct Case {
    id: &'static str,
    sound: &'static str,
    from: &'static str,
    to: &'static str,
    line: &'static str,
    importance: LintSeverity,
}

const fn case(
    id: &'static str,
    sound: &'static str,
    from: &'static str,
    to: &'static str,
    line: &'static str,
) -> Case {
    Case { id, sound, from, to, line, importance: LintSeverity::Error }
}

const fn warns(case: Case) -> Case {
    Case { importance: LintSeverity::Warning, ..case }
}

const fn tells(case: Case) -> Case {
    Case { importance: LintSeverity::Info, ..case }
}

/// The mistakes of all families.
fn cases() -> impl Iterator<Item = &'static Case> {
    let families = [
        sizes::CASES,
        jobs::CASES,
        resources::CASES,
        commands::CASES,
        rejected::CASES,
        volcano::CASES,
    ];
    families.into_iter().flatten().chain(&*volcano::BUILT)
}

#[test]
fn sound_manifests_have_no_findings() {
    for sound in [PYTORCHJOB, INDEXED_JOB, RANKLAUNCH, TRAINJOB, RAYJOB, VOLCANO, SPARES] {
        let report = check(sound, Some("1Ti"));
        assert!(
            report.findings.is_empty() && report.refused.is_empty(),
            "{}",
            lint::plain(&report, Lang::En)
        );
        assert_eq!(report.exit_code(), 0);
    }
}

/// The sizes are read in every form of the launcher.
#[test]
fn launcher_is_recognised_in_every_command_form() {
    for form in [
        "torchrun \\",
        "/opt/conda/bin/torchrun \\",
        "python -u -m torch.distributed.run \\",
        "python -um torch.distributed.run \\",
        "python3.11 -X dev -mtorch.distributed.run \\",
        "python /opt/conda/bin/torchrun \\",
    ] {
        let sound = PYTORCHJOB.replace("torchrun \\", form);
        assert_eq!(check(&sound, Some("1Ti")).findings, [], "{form}");
        let broken = sound.replace("per_node=4", "per_node=5");
        assert_ne!(broken, sound);
        let report = check(&broken, Some("1Ti"));
        assert!(report.findings.iter().any(|one| one.id.as_str() == "gpu.nproc"), "{form}");
    }
}

#[test]
fn every_mistake_is_found_at_its_line() {
    for Case { id, sound, from, to, line, importance } in cases() {
        let broken = sound.replace(from, to);
        assert_ne!(&broken, sound, "{id}: {from} is not in the manifest");
        let report = check(&broken, Some("200Gi"));
        let said = lint::plain(&report, Lang::En);
        let of_rule: Vec<_> =
            report.findings.iter().filter(|found| found.id.as_str() == *id).collect();
        if line.is_empty() {
            assert!(of_rule.is_empty(), "{id} by mistake:\n{broken}\n{said}");
            continue;
        }
        assert!(!of_rule.is_empty(), "{id} is not found:\n{broken}\n{said}");
        let lines: Vec<&str> = broken.lines().collect();
        for found in &of_rule {
            let at = lines.get(found.line - 1).copied().unwrap_or_default().trim();
            assert!(at.starts_with(line), "{id} at line {}: {at}\n{said}", found.line);
            assert!(!found.hint.en.is_empty(), "{said}");
            assert!(!found.text.zh.is_empty() && !found.hint.zh.is_empty());
        }
        // The most severe is first.
        assert_eq!(of_rule.first().map(|found| found.importance), Some(*importance), "{said}");
        let counts = *importance != LintSeverity::Info;
        assert!(!counts || report.exit_code() == 1, "{said}");
    }
}

/// Rules and lines of the findings, the lines less `before`.
fn shifted(text: &str, before: usize) -> Vec<(&'static str, usize)> {
    let report = check(text, Some("200Gi"));
    assert!(report.refused.is_empty(), "{}\n{text}", lint::plain(&report, Lang::En));
    report.findings.iter().map(|found| (found.id.as_str(), found.line - before)).collect()
}

/// The same mistakes with Windows line ends, after another document, in a List, and after a byte
/// order mark and a comment.
#[test]
fn every_mistake_is_found_in_every_disguise() {
    const OTHER: &str =
        "kind: ConfigMap\nmetadata: {name: other}\ndata:\n  a: |\n    --- \n    x\n---\n";
    const LIST: &str = "apiVersion: v1\nkind: List\nitems:\n";
    for Case { id, sound, from, to, .. } in cases() {
        let plain = sound.replace(from, to);
        let expected = shifted(&plain, 0);
        assert_eq!(shifted(&plain.replace('\n', "\r\n"), 0), expected, "{id}, CRLF");
        let behind = format!("{OTHER}{plain}");
        assert_eq!(shifted(&behind, OTHER.lines().count()), expected, "{id}, second document");
        let marked = format!("\u{feff}# words\n{plain}");
        assert_eq!(shifted(&marked, 1), expected, "{id}, byte order mark");
        // Every document becomes an item, at its own line.
        let items: String = plain
            .split_inclusive('\n')
            .scan(true, |first, line| {
                let is_object = line.starts_with("apiVersion:");
                let lead = if is_object && std::mem::take(first) { "- " } else { "  " };
                if line.starts_with("---") {
                    *first = true;
                    return Some("\n".to_owned());
                }
                Some(if line.trim().is_empty() { "\n".to_owned() } else { format!("{lead}{line}") })
            })
            .collect();
        let list = format!("{LIST}{items}");
        assert_eq!(shifted(&list, LIST.lines().count()), expected, "{id}, List\n{list}");
    }
}

#[test]
fn every_rule_has_a_mistake() {
    let tested: BTreeSet<&str> =
        cases().filter(|case| !case.line.is_empty()).map(|case| case.id).collect();
    let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(tested, rules);
    assert_eq!(rules.len(), RULES.len(), "an id stands twice");
}
