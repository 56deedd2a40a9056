//! No input makes `lint` panic or hang.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use lint::{self, Manifest};
use proptest::prelude::*;
use text::lang::Lang;

use super::samples::*;

/// Far more than any of these inputs needs on a busy machine, and far less than a hang.
const TIMEOUT: Duration = Duration::from_secs(60);

fn bounded(bytes: Vec<u8>) {
    let begun = Instant::now();
    let shown = String::from_utf8_lossy(bytes.get(..60).unwrap_or_default()).into_owned();
    let manifest = Manifest { name: "any".into(), bytes };
    let report = lint::lint(&[manifest], Some(1), settings::EMBEDDED);
    for lang in [Lang::En, Lang::Zh] {
        let _ =
            (lint::plain(&report, lang), lint::json(&report, lang), lint::github(&report, lang));
    }
    let (took, count) = (begun.elapsed(), report.findings.len());
    assert!(took < TIMEOUT, "{took:?}, {count} findings, {shown}");
}

#[test]
fn bombs_end_soon() {
    let mut aliases = "kind: Pod\nx0: &x0 {name: a, <<: {}}\n".to_owned();
    for level in 1..40 {
        let below = level - 1;
        let _ =
            writeln!(aliases, "x{level}: &x{level} {{<<: [*x{below}, *x{below}], y: *x{below}}}");
    }
    let chain: String =
        (1..4000).map(|level| format!("x{level}: &x{level} [*x{}]\n", level - 1)).collect();
    let containers = format!(
        "kind: Pod\nspec: {{containers: [{}]}}",
        (0..20_000)
            .map(|n| format!("{{name: a{n}, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}, "))
            .collect::<String>()
    );
    let services = "---\nkind: Service\nmetadata: {name: master}\n".repeat(900)
        + &"---\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}\n".repeat(900);
    let long = format!(
        "kind: Pod\nx: &x '{}'\nspec: {{containers: [{{command: [bash, -c, {}]}}]}}",
        "y".repeat(1 << 20),
        "*x, ".repeat(50_000)
    );
    for text in [
        aliases,
        long,
        format!("kind: Pod\nx0: &x0 []\n{chain}"),
        containers,
        services,
        "kind: List\nitems:\n- ".repeat(2000),
        "[".repeat(1 << 20),
        "a: ".repeat(1 << 18),
        "\"".repeat(1 << 20),
        "&a ".repeat(1 << 18),
        format!(
            "kind: Pod\nspec: {{containers: [{{command: [bash, -c, \"{}\"]}}]}}",
            "$(".repeat(100_000)
        ),
        format!(
            "kind: Pod\nspec: {{containers: [{{command: [bash, -c, \"{}\"]}}]}}",
            "if a; ".repeat(100_000)
        ),
    ] {
        bounded(text.into_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_give_findings_or_a_refusal(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        bounded(bytes);
    }

    #[test]
    fn a_damaged_manifest_gives_findings_or_a_refusal(
        which in 0..5usize,
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0..6usize, "[-:\\[\\]{}&*|>'\"$`()<;# \na0é]{0,4}"), 1..8),
    ) {
        let mut text: Vec<char> =
            [PYTORCHJOB, INDEXED_JOB, RANKLAUNCH, TRAINJOB, RAYJOB][which].chars().collect();
        for (at, length, put) in cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, put.chars());
            if text.is_empty() {
                text.push(' ');
            }
        }
        bounded(text.into_iter().collect::<String>().into_bytes());
    }
}
